/*
 * The whole harness of the conformance suite: one header, no library.
 *
 * A test is a function that two processes run at once, as rank 0 and rank 1
 * (or one process, CT_SOLO).  A failed CHECK ends its process, the other one
 * is ended with it, and a watchdog ends both when nothing more happens.  No
 * test asserts an upper bound on time: the watchdog is there for hangs alone.
 * SIGPIPE keeps its default action everywhere, so that a library which lets
 * one through is caught by whichever test provokes it.
 *
 *   PROGRAM -p PROVIDER -t rdm|msg|dgram [-l] [-k SUBSTRING] [-w SECONDS]
 */
#ifndef CT_H
#define CT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#ifdef CT_DEVICE
#include "device.h"
#else
static inline void ctd_sync(int all) { (void)all; }
static inline void ctd_look(const void *b, size_t n) { (void)b, (void)n; }
#endif

#define CT_SOLO 1	/* only rank 0 runs */
#define CT_RDM 2	/* makes sense without connections alone: FI_EP_RDM, FI_EP_DGRAM */
#define CT_MSG 4	/* makes sense on FI_EP_MSG alone */
#define CT_REL 8	/* asks more than unreliable datagrams promise: not on FI_EP_DGRAM */
#define CT_DGRAM 16	/* makes sense on FI_EP_DGRAM alone */
#define CT_CONN 64	/* tests of connections: not on packets (ofi_rxd) */
#define CT_BARE 32	/* speaks the protocol by hand, without a proof of a job's secret */

struct ct_test {
	const char *name;
	void (*run)(int rank);
	int flags;
};

struct ct;
/* Requirements of a test; zero means the suite's default. */
struct ct_opt {
	uint64_t caps;			/* default FI_MSG */
	uint64_t mode;			/* besides FI_CONTEXT and FI_CONTEXT2 */
	enum fi_cq_format fmt;		/* default FI_CQ_FORMAT_TAGGED */
	enum fi_wait_obj wait;		/* default FI_WAIT_NONE */
	uint64_t cq_flags;		/* FI_SELECTIVE_COMPLETION */
	uint64_t tx_op_flags;
	uint64_t msg_order;		/* of both sides */
	uint32_t tclass, domain_tclass;	/* of the transmit attributes and of the domain */
	enum fi_threading threading;
	enum fi_progress progress;	/* of data */
	enum fi_av_type av;
	int af;				/* AF_INET6; default AF_INET */
	int one_cq;			/* transmit and receive share a queue */
	int cntr;			/* open and bind counters */
	size_t cq_size;
	uint32_t version;		/* of the API; default CT_VERSION */
	const int *mr_mode;		/* hinted; default the modes needed today */
	const char *ep_key, *domain_key;	/* authorization keys */
	const void *param;		/* connection data of fi_connect */
	size_t paramlen;
	void (*queues)(struct ct *c);	/* opens tx, rx and counters in the harness's place */
	void (*setup)(struct ct *c);	/* sees the endpoint before it is bound */
};

/* One endpoint and all it stands on. */
struct ct {
	struct ct_opt o;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_cq *tx, *rx;
	struct fid_cntr *txc, *rxc;
	struct fid_ep *ep;
	fi_addr_t peer;			/* the other rank; MSG: FI_ADDR_UNSPEC */
	int borrowed;			/* fabric and domain belong to another ct */
};

static const char *ct_prov = "tcp";
static enum fi_ep_type ct_type = FI_EP_RDM;
static int ct_sync = -1;		/* socketpair to the other rank */
static int ct_why = -1;			/* pipe to the runner for the reason */
static int ct_rank;
static int ct_secs = 30;
static char ct_prefix[64];		/* before every reason */

static inline void __attribute__((noreturn, format(printf, 2, 3)))
ct_end(int code, const char *fmt, ...)
{
	char b[600];
	va_list a;
	int n = snprintf(b, sizeof b, "[rank %d: %s", ct_rank, ct_prefix);

	va_start(a, fmt);
	n += vsnprintf(b + n, sizeof b - n, fmt, a);
	va_end(a);
	if (n > (int)sizeof b - 2)
		n = sizeof b - 2;
	b[n++] = ']';
	if (write(ct_why, b, n) < 0)
		fprintf(stderr, "%s\n", b);
	_exit(code);
}

/* features that the library does not offer */
#define SKIP(...) ct_end(77, __VA_ARGS__)
/* features that this system does not have: not compared with other systems */
#define SKIP_HERE(...) ct_end(77, "not here: " __VA_ARGS__)
/* For tests of what memory of a device does not have; `why` is the difference. */
static inline void ct_host_only(const char *why)
{
#ifdef CT_DEVICE
	SKIP_HERE("the buffers are on a device: %s", why);
#else
	(void)why;
#endif
}
#define FAIL(fmt, ...) ct_end(1, "%s:%d: " fmt, strrchr("/" __FILE__, '/') + 1, __LINE__, ##__VA_ARGS__)
#define CHECK(x) do { if (!(x)) FAIL("%s", #x); } while (0)
/* a and b are integers; both are printed */
#define EQ(a, b) do { long long a_ = (long long)(a), b_ = (long long)(b); \
	if (a_ != b_) FAIL("%s is %lld, not %s = %lld", #a, a_, #b, b_); } while (0)
/* a libfabric call that must return 0 */
#define OK(x) do { long r_ = (long)(x); \
	if (r_) FAIL("%s: %ld %s", #x, r_, fi_strerror((int)-r_)); } while (0)
/* a libfabric call that must fail with one error */
#define ERR(x, e) do { long r_ = (long)(x); if (r_ != -(e)) \
	FAIL("%s: %ld %s, not -%s", #x, r_, r_ < 0 ? fi_strerror((int)-r_) : "", #e); } while (0)

static inline int64_t ct_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static inline unsigned char ct_byte(size_t i, unsigned seed)
{
	return (unsigned char)(i * 131 + (i >> 8) * 7 + seed * 29 + 1);
}
/* Those bytes, which begin anew after 64 KiB; a seed begins in another row of 256. */
static unsigned char ct_bytes[1 << 16];
__attribute__((constructor)) static void ct_make_bytes(void)
{
	for (size_t i = 0; i < sizeof ct_bytes; i++)
		ct_bytes[i] = ct_byte(i, 0);
}
/* Of the bytes from i on, which are n to the end, as many as are in one piece. */
static inline const unsigned char *ct_piece(size_t i, size_t *n, unsigned seed)
{
	size_t at = (i + 256 * (seed * 29 * 183 % 256)) % sizeof ct_bytes;	/* 7 * 183 is 1 */

	if (*n > sizeof ct_bytes - at)
		*n = sizeof ct_bytes - at;
	return ct_bytes + at;
}
static inline void ct_fill(void *b, size_t n, unsigned seed)
{
	for (size_t i = 0, k; i < n; i += k) {
		const unsigned char *piece = ct_piece(i, (k = n - i, &k), seed);

		memcpy((char *)b + i, piece, k);
	}
}
/* Returns the index of the first of these bytes, from the i-th on, that differs from ct_fill's; n if none does. */
static inline size_t ct_wrong(const void *b, size_t i, size_t n, unsigned seed)
{
	const unsigned char *at = b;

	ctd_look(at + i, n - i);
	for (size_t k; i < n; i += k) {
		const unsigned char *piece = ct_piece(i, (k = n - i, &k), seed);

		if (memcmp(at + i, piece, k)) {
			while (at[i] == *piece++)
				i++;
			return i;
		}
	}
	return n;
}
static inline int ct_same(const void *b, size_t n, unsigned seed)
{
	return ct_wrong(b, 0, n, seed) == n;
}
/* CT_FEWER=4: a quarter of so many messages, where each takes long or others have sent them all. */
static inline int ct_fewer(int n)
{
	const char *fewer = getenv("CT_FEWER");
	int k = fewer ? atoi(fewer) : 1;

	return k > 1 ? (n + k - 1) / k : n;
}

/* Progress without consuming anything. */
static inline void ct_progress(struct ct *c)
{
	if (!c)
		return;
	if (c->tx)
		(void)fi_cq_read(c->tx, NULL, 0);
	if (c->rx && c->rx != c->tx)
		(void)fi_cq_read(c->rx, NULL, 0);
}

/*
 * Called between empty polls; *since is 0 before the first one.  A caller that has waited for longer than an
 * answer takes sleeps for a short time.  The processor is not yielded to others (sched_yield): computing
 * programs would take it for a time slice, again and again, and a test of many steps would take minutes.
 */
static inline void ct_relax(int64_t *since)
{
	const struct timespec nap = { 0, 50000 };
	struct timespec t;
	int64_t now;

	clock_gettime(CLOCK_MONOTONIC, &t);
	now = t.tv_sec * 1000000000LL + t.tv_nsec;
	if (!*since)
		*since = now;
	else if (now - *since > 50000)
		nanosleep(&nap, NULL);
}

/* Exchange n bytes with the other rank, driving progress meanwhile. */
static inline void ct_send_oob(const void *b, size_t n)
{
	ctd_sync(0);
	if (send(ct_sync, b, n, MSG_NOSIGNAL) != (ssize_t)n)
		_exit(3);		/* the other rank ended and printed the cause */
}
static inline void ct_recv_oob(struct ct *c, void *b, size_t n)
{
	int64_t since = 0;
	size_t got = 0;

	while (got < n) {
		ssize_t r = recv(ct_sync, (char *)b + got, n - got, MSG_DONTWAIT);

		if (r > 0) {
			got += r;
		} else if (r == 0 || (errno != EAGAIN && errno != EINTR)) {
			_exit(3);
		} else {
			struct pollfd p = { .fd = ct_sync, .events = POLLIN };

			ct_progress(c);
			if (c)
				ct_relax(&since);
			else
				poll(&p, 1, 100);
		}
	}
	ctd_sync(0);
}
static inline void ct_swap(struct ct *c, const void *mine, void *theirs, size_t n)
{
	ct_send_oob(mine, n);
	ct_recv_oob(c, theirs, n);
}
static inline int ct_is_rxm(void) { return strstr(ct_prov, "ofi_rxm") != NULL; }
/* n, or the longest message that needs no receive: ofi_rxm announces longer ones, of a device those beyond a packet. */
static inline size_t ct_unreceived(size_t n)
{
#ifdef CT_DEVICE
	return ct_is_rxm() && n > 16384 ? 16384 : n;
#else
	return n;
#endif
}
/* n, or the longest message there can be */
static inline size_t ct_most(struct ct *c, size_t n)
{
	return n < c->info->ep_attr->max_msg_size ? n : c->info->ep_attr->max_msg_size;
}
static inline void ct_barrier(struct ct *c)
{
	char a = 'b', b = 0;

	ct_swap(c, &a, &b, 1);
}
static inline void ct_nap(int ms)
{
	struct timespec t = { ms / 1000, (ms % 1000) * 1000000L };
	nanosleep(&t, NULL);
}
/* Mappings of this process with this part of a name. */
static inline int ct_mappings(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[1000];
	int n = 0;

	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		n += strstr(line, name) != NULL;
	fclose(maps);
	return n;
}
/* Open descriptors of this process, and a few more. */
static inline int ct_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
/* Stops a process; when this returns, all of its threads stand. */
static inline void ct_stop(pid_t pid)
{
	char path[64], line[512];
	int moving = 1;

	OK(kill(pid, SIGSTOP));
	for (; moving; ct_nap(1)) {
		DIR *d;
		struct dirent *e;

		moving = 0;
		snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
		CHECK((d = opendir(path)));
		while ((e = readdir(d))) {
			FILE *f;

			snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, e->d_name);
			if (e->d_name[0] == '.' || !(f = fopen(path, "r")))
				continue;
			if (!fgets(line, sizeof line, f) || !strrchr(line, ')') || strrchr(line, ')')[2] != 'T')
				moving = 1;
			fclose(f);
		}
		closedir(d);
	}
}
/* Drive progress for a while: "nothing happens" can only be watched. */
static inline void ct_idle(struct ct *c, int ms)
{
	for (int64_t end = ct_ms() + ms; ct_ms() < end; ct_nap(1))
		ct_progress(c);
}

static inline int ct_is_lnx(void) { return !strcmp(ct_prov, "lnx"); }
static inline int ct_is_rxd(void) { return strstr(ct_prov, "ofi_rxd") != NULL; }
/* For tests in which a side makes no calls: automatic progress, of a provider that does not offer it without a request. */
static inline enum fi_progress ct_auto(void) { return strcmp(ct_prov, "shm") && strcmp(ct_prov, "sm2") && !ct_is_lnx() ? FI_PROGRESS_UNSPEC : FI_PROGRESS_AUTO; }
/* Returns 1 if the provider's addresses are IP addresses, 0 for names (FI_ADDR_STR), from its infos. */
static inline int ct_is_ip(void)
{
	static int known = -1;

	if (known < 0) {
		struct fi_info *h = fi_allocinfo(), *i = NULL;

		CHECK(h);
		h->fabric_attr->prov_name = strdup(ct_prov);
		h->ep_attr->type = ct_type;
		h->mode = ~0ULL;
		h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
		known = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &i) ||
			(i->addr_format != FI_ADDR_STR && i->addr_format != FI_FORMAT_UNSPEC && i->addr_format != FI_ADDR_IB_UD);
		fi_freeinfo(h);
		if (i)
			fi_freeinfo(i);
	}
	return known;
}
/* Reads, writes and large messages of several connections to a peer complete in any order. */
static inline void ct_needs_order(void)
{
	const char *n = getenv("FI_OFI_RXM_NUM_MSG_EPS");

	if (ct_is_rxm() && n && atoi(n) > 1)
		SKIP("several connections to a peer keep no such order");
}
/* Sets a parameter of the provider under test, or of its cores: MAX_SAVED is FI_TCP_MAX_SAVED for tcp and tcp;ofi_rxm, and
 * FI_SHM_MAX_SAVED as well for lnx, which is tested over both. */
static inline void ct_param(const char *name, const char *value)
{
	const char *cores[] = { "SHM", "TCP" };
	char var[128];
	int n = snprintf(var, sizeof var, "FI_%.*s_%s", (int)strcspn(ct_prov, ";"), ct_prov, name);

	CHECK(n < (int)sizeof var);
	for (char *c = var; *c; c++)
		*c = (char)toupper(*c);
	setenv(var, value, 1);
	for (size_t k = 0; ct_is_lnx() && k < 2; k++) {
		snprintf(var, sizeof var, "FI_%s_%s", cores[k], name);
		setenv(var, value, 1);
	}
}
/* A file with this secret as the parameter of this process, until ct_forget_key_file. */
static char ct_key_path[PATH_MAX];
static inline void ct_key_file(const void *secret, size_t n, int mode)
{
	int fd;

	snprintf(ct_key_path, sizeof ct_key_path, "%s/secret.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	CHECK((fd = mkstemp(ct_key_path)) >= 0);
	EQ(write(fd, secret, n), n);
	CHECK(!fchmod(fd, mode));
	close(fd);
	ct_param("AUTH_KEY_FILE", ct_key_path);
}
/* The library has read the file, if there is one. */
static inline void ct_forget_key_file(void)
{
	if (ct_key_path[0])
		unlink(ct_key_path);
	ct_key_path[0] = 0;
}
/* For tests of memory that peers of a host share: where all goes through sockets there is nothing to test. */
static inline void ct_needs_memory(void)
{
	const char *local = getenv("FI_TCP_LOCAL"), *ring = getenv("FI_TCP_IO_URING");

	if ((local && !strcmp(local, "0")) || (ring && !strcmp(ring, "1")))
		SKIP_HERE("the environment keeps peers on sockets");
	/* Shared memory is hidden from children. qemu-user cannot do that, and so the library refuses it there. */
	void *page = mmap(NULL, sysconf(_SC_PAGESIZE), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || madvise(page, sysconf(_SC_PAGESIZE), MADV_DONTFORK))
		SKIP_HERE("the system does not keep memory from children (MADV_DONTFORK)");
	munmap(page, sysconf(_SC_PAGESIZE));
}
/* A socket whose closing waits for a quarter of an hour (SO_LINGER), or until `rest` is closed. */
static inline int ct_lingering(int *rest)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct linger wait = { 1, 900 };
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), few = 4096;
	static char b[65536];
	socklen_t n = sizeof a;

	CHECK(l >= 0 && s >= 0);
	OK(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &few, sizeof few));
	OK(bind(l, (void *)&a, n));
	OK(listen(l, 1));
	OK(getsockname(l, (void *)&a, &n));
	OK(connect(s, (void *)&a, n));
	CHECK((*rest = accept(l, NULL, NULL)) >= 0);
	close(l);
	while (send(s, b, sizeof b, MSG_DONTWAIT) > 0)
		;
	OK(setsockopt(s, SOL_SOCKET, SO_LINGER, &wait, sizeof wait));
	return s;
}
/* Sends bytes and such a socket, of which no other descriptor is left; -1 if the system does not. */
static inline int ct_send_lingering(int to, const void *b, size_t len, int *rest)
{
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } u = { 0 };
	struct iovec v = { (void *)b, len };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof u };
	int s = ct_lingering(rest), r;

	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	u.h.cmsg_len = CMSG_LEN(sizeof s);
	memcpy(CMSG_DATA(&u.h), &s, sizeof s);
	r = sendmsg(to, &m, MSG_NOSIGNAL) == (ssize_t)len ? 0 : -1;
	if (r) {	/* it is the last one here */
		close(*rest);
		*rest = -1;
	}
	close(s);
	return r;
}
/* From here on the library's output of this level and above goes to a file in memory. */
static inline void ct_keep_log(const char *level)
{
	int fd = memfd_create("log", MFD_CLOEXEC);

	CHECK(fd >= 0 && dup2(fd, 2) == 2);
	close(fd);
	OK(fcntl(2, F_SETFL, O_APPEND));	/* reading it moves no writer's position */
	setenv("FI_LOG_LEVEL", level, 1);
	unsetenv("FI_LOG_LOCATION");
}
/* Returns the contents of that file, valid until the next call. */
static inline char *ct_log(void)
{
	static char *log;
	struct stat st;
	ssize_t n;

	/* at a level that the program was started with, which stays, every call may be in it */
	CHECK(!fstat(2, &st));
	log = realloc(log, st.st_size + 1);
	CHECK(log);
	n = pread(2, log, st.st_size, 0);
	CHECK(n >= 0);
	log[n] = 0;
	return log;
}
/* How many of its lines have this. */
static inline int ct_logged(const char *what)
{
	int n = 0;

	for (char *line = ct_log(); (line = strstr(line, what)); line += strcspn(line, "\n"))
		n++;
	return n;
}
/*
 * Returns the number of occurrences of these n bytes in the memory of this process in a core dump: readable and not excluded from dumps
 * (the flag "dd").  They are given with each byte xor 0x55, so that they are not found here.
 */
static inline int ct_dumped(const char *masked, size_t n)
{
	FILE *maps = fopen("/proc/self/smaps", "r");
	int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC), found = 0;
	unsigned long low = 0, high = 0, lo, hi;
	char line[512], access[8], is_read = 0;

	CHECK(maps && mem >= 0);
	while (fgets(line, sizeof line, maps)) {
		static unsigned char b[1 << 20];

		if (sscanf(line, "%lx-%lx %7s", &lo, &hi, access) == 3) {
			low = lo, high = hi, is_read = access[0] == 'r';
			continue;
		}
		if (strncmp(line, "VmFlags:", 8) || strstr(line, " dd") || !is_read)
			continue;
		for (unsigned long at = low; at + n <= high; at += sizeof b - n) {
			ssize_t got = pread(mem, b, sizeof b < high - at ? sizeof b : high - at, at);

			for (ssize_t i = 0; i + (ssize_t)n <= got; i++) {
				size_t k = 0;

				while (k < n && (b[i + k] ^ 0x55) == (unsigned char)masked[k])
					k++;
				found += k == n && (at + i < (uintptr_t)b || at + i >= (uintptr_t)b + sizeof b);
			}
		}
	}
	fclose(maps);
	close(mem);
	memset(line, 0, sizeof line);
	return found;
}
/* For tests that take the provider's addresses apart, or call them by sockets of their own. */
static inline void ct_ip_only(void)
{
	if (!ct_is_ip())
		SKIP("its addresses are no IP addresses");
}
static inline const char *ct_node(const struct ct_opt *o)
{
	/* CT_NODE: for providers that have no loopback, an address of this host */
	const char *node = getenv("CT_NODE");

	return !ct_is_ip() ? NULL : o->af == AF_INET6 ? "::1" : node ? node : "127.0.0.1";
}
static inline struct fi_info *ct_hints(const struct ct_opt *o)
{
	struct fi_info *h = fi_allocinfo();

	CHECK(h);
	h->caps = o->caps ? o->caps : FI_MSG;
#ifdef CT_DEVICE
	/* before the library does, so that a child knows of it */
	ctd_load();
	h->caps |= FI_HMEM;
#endif
	h->mode = FI_CONTEXT | FI_CONTEXT2 | o->mode;
	h->ep_attr->type = ct_type;
	h->domain_attr->mr_mode = o->mr_mode ? *o->mr_mode :
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
#ifdef CT_DEVICE
	/* peers would name the addresses of the device, of which tests know nothing */
	if (o->mr_mode)
		SKIP_HERE("modes of registration are those of the host");
	h->domain_attr->mr_mode &= ~FI_MR_VIRT_ADDR;
#endif
	h->domain_attr->threading = o->threading;
	/* CT_THREADING=domain: tests without a setting for it serialize their calls */
	if (o->threading == FI_THREAD_UNSPEC && getenv("CT_THREADING"))
		h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->data_progress = o->progress;
	h->domain_attr->av_type = o->av;
	h->tx_attr->op_flags = o->tx_op_flags;
	h->tx_attr->tclass = o->tclass;
	h->domain_attr->tclass = o->domain_tclass;
	h->tx_attr->msg_order = h->rx_attr->msg_order = o->msg_order;
	if (o->ep_key) {
		h->ep_attr->auth_key = (uint8_t *)strdup(o->ep_key);
		h->ep_attr->auth_key_size = strlen(o->ep_key);
	}
	if (o->domain_key) {
		h->domain_attr->auth_key = (uint8_t *)strdup(o->domain_key);
		h->domain_attr->auth_key_size = strlen(o->domain_key);
	}
	h->fabric_attr->prov_name = strdup(ct_prov);
	if (ct_is_ip())
		h->addr_format = o->af == AF_INET6 ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	return h;
}
#define CT_VERSION FI_VERSION(1, 17)
/* -FI_ENODATA, the answer for features that a provider does not offer, skips the test. */
static inline struct fi_info *ct_getinfo(const struct ct_opt *o, const char *node,
					 const char *service, uint64_t flags)
{
	struct fi_info *h = ct_hints(o), *i = NULL;
	int r;

	if (!node && !service)
		flags &= ~FI_SOURCE;
	r = fi_getinfo(o->version ? o->version : CT_VERSION, node, service, flags, h, &i);

	if (r == -FI_ENODATA) {
		/* only a missing feature skips: the bare provider must be there */
		uint64_t caps = h->caps;
		h->caps = FI_MSG;
		h->tx_attr->op_flags = 0;
		h->tx_attr->msg_order = h->rx_attr->msg_order = 0;
		h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
		h->domain_attr->threading = FI_THREAD_UNSPEC;
		OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
		SKIP("not offered: %s", fi_tostr(&caps, FI_TYPE_CAPS));
	}
	if (r)
		FAIL("fi_getinfo: %d %s", r, fi_strerror(-r));
	CHECK(i);
	fi_freeinfo(h);
	return i;
}

static inline void ct_open_eq(struct ct *c)
{
	struct fi_eq_attr a = { .size = 64, .wait_obj = FI_WAIT_UNSPEC, .flags = FI_WRITE };

	OK(fi_eq_open(c->fabric, &a, &c->eq, c));
}
/* Domain, queues and counters for c->info. */
static inline void ct_open_domain(struct ct *c)
{
	struct fi_cq_attr q = {
		.size = c->o.cq_size,
		.format = c->o.fmt ? c->o.fmt : FI_CQ_FORMAT_TAGGED,
		.wait_obj = c->o.wait ? c->o.wait : FI_WAIT_NONE,
	};
	struct fi_cntr_attr n = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };

	if (!c->domain)
		OK(fi_domain(c->fabric, c->info, &c->domain, c));
	if (c->o.queues) {
		c->o.queues(c);
	} else {
		OK(fi_cq_open(c->domain, &q, &c->rx, c));
		if (c->o.one_cq)
			c->tx = c->rx;
		else
			OK(fi_cq_open(c->domain, &q, &c->tx, c));
	}
	if (c->o.cntr) {
		OK(fi_cntr_open(c->domain, &n, &c->txc, c));
		OK(fi_cntr_open(c->domain, &n, &c->rxc, c));
	}
	if (ct_type != FI_EP_MSG) {
		struct fi_av_attr a = { .type = c->o.av, .count = 64 };

		OK(fi_av_open(c->domain, &a, &c->av, c));
	}
}
/* Endpoint on c->info, bound to everything but not enabled. */
static inline void ct_open_ep(struct ct *c, struct fi_info *info)
{
	uint64_t sel = c->o.cq_flags;

	OK(fi_endpoint(c->domain, info, &c->ep, c));
	if (c->o.setup)
		c->o.setup(c);
	if (c->eq && ct_type == FI_EP_MSG)
		OK(fi_ep_bind(c->ep, &c->eq->fid, 0));
	if (c->av)
		OK(fi_ep_bind(c->ep, &c->av->fid, 0));
	if (c->o.one_cq) {
		OK(fi_ep_bind(c->ep, &c->rx->fid, FI_TRANSMIT | FI_RECV | sel));
	} else {
		OK(fi_ep_bind(c->ep, &c->tx->fid, FI_TRANSMIT | sel));
		OK(fi_ep_bind(c->ep, &c->rx->fid, FI_RECV | sel));
	}
	if (c->txc) {
		OK(fi_ep_bind(c->ep, &c->txc->fid, FI_SEND));
		OK(fi_ep_bind(c->ep, &c->rxc->fid, FI_RECV));
	}
	c->peer = FI_ADDR_UNSPEC;
}
/* Opens counters of bytes as the endpoint's: for .setup. Not bound in addition to the test's own. */
static inline __attribute__((unused)) void ct_count_bytes(struct ct *c)
{
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_BYTES };
	int r = fi_cntr_open(c->domain, &a, &c->txc, NULL);

	if (r == -FI_EINVAL || r == -FI_ENOSYS)
		SKIP("refused by fi_cntr_open");
	OK(r);
	OK(fi_cntr_open(c->domain, &a, &c->rxc, NULL));
}
/* The next event; returns its length, or -FI_EAVAIL with *err filled. */
static inline ssize_t ct_event(struct ct *c, uint32_t *ev, void *b, size_t n, struct fi_eq_err_entry *err)
{
	for (;; ct_nap(1)) {
		ssize_t r = fi_eq_read(c->eq, ev, b, n, 0);

		if (r == -FI_EAVAIL) {
			struct fi_eq_err_entry e = { 0 };
			if (!err)
				err = &e;
			EQ(fi_eq_readerr(c->eq, err, 0), sizeof *err);
			if (err == &e)
				FAIL("error event %d %s (prov_errno %d)", e.err, fi_strerror(e.err), e.prov_errno);
			return r;
		}
		if (r != -FI_EAGAIN)
			return r;
		ct_progress(c);
	}
}
static inline void ct_want_event(struct ct *c, uint32_t want, struct fi_eq_cm_entry *e, size_t n)
{
	struct fi_eq_cm_entry x;
	uint32_t ev = ~0u;
	ssize_t r = ct_event(c, &ev, e ? e : &x, e ? n : sizeof x, NULL);

	if (r < 0)
		FAIL("fi_eq_read: %zd %s", r, fi_strerror((int)-r));
	EQ(ev, want);
	CHECK((size_t)r >= sizeof x);
}
struct ct_name { char b[512]; size_t n; };
static inline struct ct_name ct_getname(struct fid *f)
{
	struct ct_name a = { .n = sizeof a.b };

	OK(fi_getname(f, a.b, &a.n));
	return a;
}
static inline void ct_listen(struct ct *c)
{
	c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
	ct_open_eq(c);
	OK(fi_passive_ep(c->fabric, c->info, &c->pep, c));
	OK(fi_pep_bind(c->pep, &c->eq->fid, 0));
	OK(fi_listen(c->pep));
}
/* Client side of a MSG endpoint, everything but fi_connect. */
static inline void ct_prepare(struct ct *c, const struct ct_name *to)
{
	char svc[16], node[sizeof to->b];
	const struct sockaddr *sa = (const void *)to->b;

	if (!ct_is_ip()) {
		snprintf(node, sizeof node, "%s", to->b);
	} else if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *s = (const void *)sa;
		inet_ntop(AF_INET6, &s->sin6_addr, node, sizeof node);
		snprintf(svc, sizeof svc, "%d", ntohs(s->sin6_port));
	} else {
		const struct sockaddr_in *s = (const void *)sa;
		inet_ntop(AF_INET, &s->sin_addr, node, sizeof node);
		snprintf(svc, sizeof svc, "%d", ntohs(s->sin_port));
	}
	c->info = ct_getinfo(&c->o, node, ct_is_ip() ? svc : NULL, 0);
	if (!c->fabric) {
		OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
		ct_open_eq(c);
		ct_open_domain(c);
	}
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
}
/* Queues and an address vector; base lends fabric and domain. */
static inline void ct_open_in(struct ct *c, const struct ct *base)
{
	if (base) {
		c->fabric = base->fabric;
		c->domain = base->domain;
		c->borrowed = 1;
	} else {
		OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
	}
	ct_open_domain(c);
}
/* Another endpoint, enabled, on base's queues and address vector. */
static inline void ct_open_second(struct ct *c, const struct ct *base)
{
	c->domain = base->domain;
	c->rx = base->rx;
	c->tx = base->tx;
	c->av = base->av;
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
}
/* RDM endpoint of this process, enabled; base lends fabric and domain. */
static inline struct ct_name ct_open_rdm(struct ct *c, struct ct *base)
{
	c->info = ct_getinfo(&c->o, ct_node(&c->o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	ct_open_in(c, base);
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
	return ct_getname(&c->ep->fid);
}
/* A port that stays its endpoint's while that ends and begins again: below those that the kernel gives to connections, and
   those from 20000 on that scripts give to fi_pingpong. */
static inline const char *ct_lasting_port(void)
{
	static char service[8];
	static int last;
	unsigned low = 32768;
	FILE *range = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");

	if (range) {
		if (fscanf(range, "%u", &low) != 1 || low < 4096)
			low = 32768;
		fclose(range);
	}
	if (low > 20000)
		low = 20000;
	for (int tries = 0; tries < 5000; tries++) {
		struct sockaddr_in a = { .sin_family = AF_INET };
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), taken;

		if (!last)
			last = getpid() * 64;
		a.sin_port = htons(2048 + last++ % (low - 2048));
		taken = bind(s, (void *)&a, sizeof a);
		close(s);
		if (!taken) {
			snprintf(service, sizeof service, "%d", ntohs(a.sin_port));
			return service;
		}
	}
	FAIL("no free port below %u", low);
}
/* RDM endpoint of this process at that port, or one that lasts, with the event queue that base has, or one of its own. */
static inline struct ct_name ct_open_at(struct ct *c, struct ct *base, const struct ct_opt *o, const char *service)
{
	memset(c, 0, sizeof *c);
	c->o = *o;
	c->info = ct_getinfo(&c->o, ct_node(&c->o), service ? service : ct_lasting_port(), FI_SOURCE);
	ct_open_in(c, base);
	if (!base)
		ct_open_eq(c);
	ct_open_ep(c, c->info);
	OK(fi_ep_bind(c->ep, &(base ? base : c)->eq->fid, 0));
	OK(fi_enable(c->ep));
	return ct_getname(&c->ep->fid);
}
static inline fi_addr_t ct_insert(struct ct *c, const struct ct_name *n)
{
	fi_addr_t a = FI_ADDR_NOTAVAIL;

	EQ(fi_av_insert(c->av, n->b, 1, &a, 0, NULL), 1);
	CHECK(a != FI_ADDR_NOTAVAIL);
	return a;
}
/* A connected pair, one endpoint in each rank. Rank 1 is the client. */
static inline void ct_open(struct ct *c, const struct ct_opt *o)
{
	struct ct_name mine, theirs;

	memset(c, 0, sizeof *c);
	if (o)
		c->o = *o;
	if (ct_type != FI_EP_MSG) {
		mine = ct_open_rdm(c, NULL);
		ct_swap(c, &mine, &theirs, sizeof mine);
		c->peer = ct_insert(c, &theirs);
	} else if (ct_rank == 0) {
		struct fi_eq_cm_entry e;

		ct_listen(c);
		mine = ct_getname(&c->pep->fid);
		ct_send_oob(&mine, sizeof mine);
		ct_want_event(c, FI_CONNREQ, &e, sizeof e);
		CHECK(e.fid == &c->pep->fid);
		fi_freeinfo(c->info);
		c->info = e.info;
		CHECK(c->info);
		ct_open_domain(c);
		ct_open_ep(c, c->info);
		OK(fi_enable(c->ep));
		OK(fi_accept(c->ep, NULL, 0));
		ct_want_event(c, FI_CONNECTED, NULL, 0);
	} else {
		ct_recv_oob(NULL, &theirs, sizeof theirs);
		ct_prepare(c, &theirs);
		OK(fi_connect(c->ep, c->info->dest_addr ? c->info->dest_addr : theirs.b, c->o.param, c->o.paramlen));
		ct_want_event(c, FI_CONNECTED, NULL, 0);
	}
	ct_barrier(c);
}
static struct { char *p; size_t n; struct fid_mr *mr; struct fid_domain *of; } ct_mem[4096];
static int ct_nmem;
static inline void ct_close(struct ct *c)
{
	for (int i = 0; i < ct_nmem && !c->borrowed; i++)
		if (ct_mem[i].of == c->domain && ct_mem[i].mr) {
			if (c->ep)	/* before its memory */
				OK(fi_close(&c->ep->fid));
			c->ep = NULL;
			OK(fi_close(&ct_mem[i].mr->fid));
			ct_mem[i].mr = NULL;
		}
	if (c->ep)
		OK(fi_close(&c->ep->fid));
	if (c->pep)
		OK(fi_close(&c->pep->fid));
	if (c->tx && c->tx != c->rx)
		OK(fi_close(&c->tx->fid));
	if (c->rx)
		OK(fi_close(&c->rx->fid));
	if (c->txc)
		OK(fi_close(&c->txc->fid));
	if (c->rxc)
		OK(fi_close(&c->rxc->fid));
	if (c->av)
		OK(fi_close(&c->av->fid));
	if (!c->borrowed && c->domain)
		OK(fi_close(&c->domain->fid));
	if (c->eq)
		OK(fi_close(&c->eq->fid));
	if (!c->borrowed && c->fabric)
		OK(fi_close(&c->fabric->fid));
	fi_freeinfo(c->info);
	memset(c, 0, sizeof *c);
}
/* Both ranks are through: a peer that leaves early would cut the other off. */
static inline void ct_done(struct ct *c)
{
	ct_barrier(c);
	ct_close(c);
}

/*
 * The next entry of q: 1, or -FI_EAVAIL with *err filled (err NULL: an error
 * entry fails the test).  Progresses every queue of c while it waits.
 */
static inline int ct_next(struct ct *c, struct fid_cq *q, struct fi_cq_tagged_entry *e,
			  fi_addr_t *src, struct fi_cq_err_entry *err)
{
	int64_t since = 0;

	for (;; ct_relax(&since)) {
		ssize_t r = src ? fi_cq_readfrom(q, e, 1, src) : fi_cq_read(q, e, 1);

		if (r == 1)
			return 1;
		if (r == -FI_EAVAIL) {
			struct fi_cq_err_entry x = { 0 };

			if (!err)
				err = &x;
			else
				memset(err, 0, sizeof *err);
			EQ(fi_cq_readerr(q, err, 0), 1);
			if (err == &x)
				FAIL("error entry %d %s, prov_errno %d", x.err, fi_strerror(x.err), x.prov_errno);
			return (int)r;
		}
		if (r != -FI_EAGAIN)
			FAIL("fi_cq_read: %zd %s", r, fi_strerror((int)-r));
		ct_progress(c);
	}
}
static inline void ct_sent(struct ct *c, void *ctx)
{
	struct fi_cq_tagged_entry e = { 0 };

	ct_next(c, c->tx, &e, NULL, NULL);
	CHECK(e.op_context == ctx);
}
static inline struct fi_cq_tagged_entry ct_recvd(struct ct *c, void *ctx, size_t len)
{
	struct fi_cq_tagged_entry e = { 0 };

	ct_next(c, c->rx, &e, NULL, NULL);
	CHECK(e.op_context == ctx);
	EQ(e.len, len);
	CHECK(e.flags & FI_RECV);
	return e;
}
/* q has no entry, watched for a while */
#define NOTHING(c, q, ms) do { struct fi_cq_tagged_entry e_; ct_idle(c, ms); \
	ERR(fi_cq_read(q, &e_, 1), FI_EAGAIN); } while (0)
/* A posting call, repeated while the provider pushes back. */
#define POST(c, x) do { long r_; int64_t s_ = 0; while ((r_ = (long)(x)) == -FI_EAGAIN) { ct_progress(c); ct_relax(&s_); } \
	if (r_) FAIL("%s: %ld %s", #x, r_, fi_strerror((int)-r_)); } while (0)

/* Contexts with room for FI_CONTEXT2. */
static __attribute__((unused)) struct fi_context2 ct_ctx[4096];
#define CTX(i) ((void *)&ct_ctx[i])

/* Zeroed memory, registered when the provider wants FI_MR_LOCAL: until its domain closes. */
static inline void *ct_alloc(struct ct *c, size_t n)
{
	char *p = mmap(NULL, n + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	if (c->info->domain_attr->mr_mode & FI_MR_LOCAL) {
		CHECK(ct_nmem < 4096);
		ct_mem[ct_nmem].p = p;
		ct_mem[ct_nmem].n = n + 4096;
		ct_mem[ct_nmem].of = c->domain;
		OK(fi_mr_reg(c->domain, p, n + 4096, FI_SEND | FI_RECV, 0, ct_nmem + 1, 0, &ct_mem[ct_nmem].mr, NULL));
		ct_nmem++;
	}
	return p;
}
static inline void *ct_desc(const void *b)
{
	for (int i = 0; i < ct_nmem; i++)
		if (ct_mem[i].mr && (const char *)b >= ct_mem[i].p && (const char *)b < ct_mem[i].p + ct_mem[i].n)
			return fi_mr_desc(ct_mem[i].mr);
	return NULL;
}

/* ---- runner ---------------------------------------------------------- */

/* Processor time of the tests so far. */
static inline int64_t ct_processor_ms(void)
{
	struct rusage u;

	getrusage(RUSAGE_CHILDREN, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000LL + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
}
/* CT_TIMES names a file: a line for each test, how long it took and how much of a processor's time, in ms. */
static inline void ct_note_time(const char *type, const char *suite, const char *name, int64_t ms, int64_t processor)
{
	const char *path = getenv("CT_TIMES");
	FILE *f = path && *path ? fopen(path, "a") : NULL;

	if (!f)
		return;
	fprintf(f, "%lld\t%lld\t%s/%s %s: %s\n", (long long)ms, (long long)processor, ct_prov, type, suite, name);
	fclose(f);
}

static inline int ct_run_one(const struct ct_test *t, char *why, size_t nwhy)
{
	int sp[2], pp[2], n = (t->flags & CT_SOLO) ? 1 : 2, code = 0, left = n;
	pid_t pid[2] = { 0, 0 };
	size_t got = 0;
	int64_t end = ct_ms() + ct_secs * 1000LL, kill_at = 0;

	why[0] = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp) || pipe2(pp, O_CLOEXEC | O_NONBLOCK)) {
		snprintf(why, nwhy, "harness: %s", strerror(errno));
		return 1;
	}
	fflush(stdout);
	for (int i = 0; i < n; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			setpgid(0, 0);
			signal(SIGPIPE, SIG_DFL);
			ct_rank = i;
			ct_sync = sp[i];
			close(sp[!i]);
			ct_why = pp[1];
			t->run(i);
			_exit(0);
		}
		setpgid(pid[i], pid[i]);
	}
	close(sp[0]);
	close(sp[1]);
	close(pp[1]);
	while (left) {
		int st, worst;
		struct pollfd p = { .fd = pp[0], .events = POLLIN };
		ssize_t r;

		poll(&p, 1, 5);
		if (!(p.revents & POLLIN) && (p.revents & POLLHUP))
			ct_nap(2);
		while ((r = read(pp[0], why + got, nwhy - 1 - got)) > 0) {
			got += r;
			why[got] = 0;
		}
		for (int i = 0; i < n; i++) {
			siginfo_t ended = { 0 };

			/* its group first: once it is waited for, its number may be another's */
			if (pid[i] <= 0 || waitid(P_PID, pid[i], &ended, WEXITED | WNOHANG | WNOWAIT) || ended.si_pid != pid[i])
				continue;
			left--;
			kill(-pid[i], SIGKILL);
			waitpid(pid[i], &st, 0);
			pid[i] = 0;
			/* a rank ended here because of the other one has no verdict */
			worst = WIFEXITED(st) ? WEXITSTATUS(st) : kill_at && WTERMSIG(st) == SIGKILL ? 0 : 1;
			if (WIFSIGNALED(st) && !(kill_at && WTERMSIG(st) == SIGKILL) && got < nwhy - 60)
				got += snprintf(why + got, nwhy - got, "[rank %d: killed by signal %d, %s]", i,
						WTERMSIG(st), strsignal(WTERMSIG(st)));
			/* 3: lost the other rank, whose verdict counts */
			if (worst == 1 || worst > 77 || (worst == 77 && code != 1) || (worst && !code))
				code = worst == 1 || worst == 77 || worst == 3 ? worst : 1;
			if (worst && !kill_at)
				kill_at = ct_ms() + 300;
		}
		if (left && !kill_at && ct_ms() > end) {
			snprintf(why + got, nwhy - got, "[watchdog: not finished after %d s]", ct_secs);
			got = strlen(why);
			code = 1;
			kill_at = ct_ms();
		}
		if (left && kill_at && ct_ms() >= kill_at) {
			for (int i = 0; i < n; i++)
				if (pid[i] > 0)
					kill(-pid[i], SIGKILL);
		}
	}
	{
		ssize_t r;
		while ((r = read(pp[0], why + got, nwhy - 1 - got)) > 0) {
			got += r;
			why[got] = 0;
		}
	}
	close(pp[0]);
	if (code == 3)
		code = 1;
	if (code == 1 && !got)
		snprintf(why, nwhy, "ended without a reason");
	for (char *s = why; *s; s++)
		if (*s == '\n')
			*s = ' ';
	return code;
}

static inline int ct_main(int argc, char **argv, const char *suite, const struct ct_test *t, size_t n)
{
	const char *only = NULL;
	int c, list = 0, ok = 0, bad = 0, skip = 0, others = 0;

	while ((c = getopt(argc, argv, "p:t:k:w:l")) != -1) {
		switch (c) {
		case 'p': ct_prov = optarg; break;
		case 't': ct_type = !strcmp(optarg, "msg") ? FI_EP_MSG : !strcmp(optarg, "dgram") ? FI_EP_DGRAM : FI_EP_RDM; break;
		case 'k': only = optarg; break;
		case 'w': ct_secs = atoi(optarg); break;
		case 'l': list = 1; break;
		default:
			fprintf(stderr, "usage: %s [-p provider] [-t rdm|msg|dgram] [-k substring] [-w seconds] [-l]\n", argv[0]);
			return 2;
		}
	}
	for (size_t i = 0; i < n; i++) {
		char why[2000];
		int r;
		int64_t ms, processor;
		const char *type = ct_type == FI_EP_MSG ? "msg" : ct_type == FI_EP_DGRAM ? "dgram" : "rdm";

		if ((t[i].flags & CT_RDM && ct_type == FI_EP_MSG) || (t[i].flags & CT_MSG && ct_type != FI_EP_MSG) ||
		    (t[i].flags & CT_REL && ct_type == FI_EP_DGRAM) || (t[i].flags & CT_DGRAM && ct_type != FI_EP_DGRAM) ||
		    (t[i].flags & CT_CONN && ct_is_rxd())) {
			others++;
			continue;
		}
		if (only && !strstr(t[i].name, only))
			continue;
		if (list) {
			printf("%s: %s\n", suite, t[i].name);
			continue;
		}
		ms = ct_ms();
		processor = ct_processor_ms();
		if (t[i].flags & CT_BARE && (ct_is_rxd() ? getenv("FI_UDP_AUTH_KEY_FILE") || getenv("FI_UDP_AUTH_KEY") :
					     getenv("FI_TCP_AUTH_KEY_FILE") || getenv("FI_TCP_AUTH_KEY"))) {
			snprintf(why, sizeof why, "[not here: its hand-written peers have no key]");
			r = 77;
		} else {
			r = ct_run_one(&t[i], why, sizeof why);
		}
		ct_note_time(type, suite, t[i].name, ct_ms() - ms, ct_processor_ms() - processor);
		if (r == 0)
			ok++, printf("ok   %s/%s %s: %s\n", ct_prov, type, suite, t[i].name);
		else if (r == 77)
			skip++, printf("skip %s/%s %s: %s # %s\n", ct_prov, type, suite, t[i].name, why);
		else
			bad++, printf("FAIL %s/%s %s: %s # %s\n", ct_prov, type, suite, t[i].name, why);
		fflush(stdout);
	}
	return bad ? 1 : ok + skip == 0 && !list && (only || !others) ? 2 : 0;
}
#define CT_MAIN(suite, tests) \
	int main(int argc, char **argv) { return ct_main(argc, argv, suite, tests, sizeof tests / sizeof *tests); }
#endif
