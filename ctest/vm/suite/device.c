/*
 * Tests for providers over RDMA devices only: the path of requests to the
 * device, and the reports to the application after a failure of its peer or of the
 * system.  They run as root in the guest of ctest/vm.
 */
#include "ends.h"
#include <endian.h>
#include <infiniband/ib.h>
#include <linux/capability.h>
#include <sys/syscall.h>

enum { N = 64, LEN = 64 };

/* Number of write calls of this process: one notifies a software device of work. */
static long writes(void)
{
	FILE *f = fopen("/proc/self/io", "r");
	long n = -1;
	char line[100];

	CHECK(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "syscw: %ld", &n);
	fclose(f);
	if (n < 0)
		SKIP("the kernel counts no write calls");
	return n;
}
static void post_more(struct ct *c, char *b, int i, uint64_t flags)
{
	struct iovec v = { b + i * LEN, LEN };
	void *desc = ct_desc(b);
	struct fi_msg m = { .msg_iov = &v, .desc = &desc, .iov_count = 1, .addr = c->peer, .context = CTX(i) };

	POST(c, fi_sendmsg(c->ep, &m, flags));
}

static void more(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 2 * N * LEN);
	if (rank == 1) {
		for (int i = 0; i < 2 * N; i++)
			OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
		ct_barrier(&c);
		for (int i = 0; i < 2 * N; i++) {
			ct_recvd(&c, CTX(i), LEN);
			CHECK(ct_same(b + i * LEN, LEN, i));
		}
		ct_barrier(&c);
	} else {
		long before, each, combined;

		for (int i = 0; i < 2 * N; i++)
			ct_fill(b + i * LEN, LEN, i);
		ct_barrier(&c);
		before = writes();
		for (int i = 0; i < N; i++)
			post_more(&c, b, i, FI_COMPLETION);
		each = writes() - before;
		before = writes();
		for (int i = N; i < 2 * N; i++)
			post_more(&c, b, i, FI_COMPLETION | (i < 2 * N - 1 ? FI_MORE : 0));
		combined = writes() - before;
		for (int i = 0; i < 2 * N; i++)
			ct_sent(&c, CTX(i));
		ct_barrier(&c);
		if (each < N)
			SKIP("the device is not notified by write calls: %ld", each);
		if (combined * 4 > each)
			FAIL("%ld write calls with FI_MORE, %ld without", combined, each);
	}
	ct_done(&c);
}

static void more_alone(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 4 * LEN);
	if (rank == 1) {
		for (int i = 0; i < 3; i++)
			OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
		ct_barrier(&c);
		for (int i = 0; i < 3; i++) {
			ct_recvd(&c, CTX(i), LEN);
			CHECK(ct_same(b + i * LEN, LEN, i));
		}
	} else {
		ct_barrier(&c);
		/* nothing follows, yet it leaves when the application looks for its completion */
		for (int i = 0; i < 3; i++) {
			ct_fill(b + i * LEN, LEN, i);
			post_more(&c, b, i, FI_COMPLETION | FI_MORE);
		}
		for (int i = 0; i < 3; i++)
			ct_sent(&c, CTX(i));
	}
	ct_done(&c);
}

static void peer_killed(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 3 * LEN);
	if (rank == 0) {
		/* the runner waits for both: a child of ours does as the peer would */
		for (int i = 0; i < 3; i++)
			OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
		ct_barrier(&c);
		wants_end(&c, 3);
		ERR(fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(9)), FI_ENOTCONN);
		ct_close(&c);
	} else {
		ct_barrier(&c);
		/* no call of the library's ends the connection */
		_exit(0);
	}
}

static void no_peer(int rank)
{
	struct ct c = { 0 };
	struct fi_eq_cm_entry e;
	struct fi_eq_err_entry err = { 0 };
	struct ct_name to = { .n = sizeof(struct sockaddr_in) };
	struct sockaddr_in *in = (void *)to.b;
	uint32_t ev;

	(void)rank;
	in->sin_family = AF_INET;
	in->sin_port = htons(4999);
	inet_pton(AF_INET, ct_node(&c.o), &in->sin_addr);
	/* an unused address of the same network */
	in->sin_addr.s_addr = htonl((ntohl(in->sin_addr.s_addr) & ~255u) | 77);
	ct_prepare(&c, &to);
	OK(fi_connect(c.ep, to.b, NULL, 0));
	EQ(ct_event(&c, &ev, &e, sizeof e, &err), -FI_EAVAIL);
	if (err.err != FI_ETIMEDOUT && err.err != FI_EHOSTUNREACH && err.err != FI_ECONNREFUSED)
		FAIL("error %d %s", err.err, fi_strerror(err.err));
	CHECK(err.fid == &c.ep->fid);
	ct_close(&c);
}

/* The device's own address of this format; skips where it has none. */
static struct fi_info *ib_info(const struct fi_info *device)
{
	struct ct_opt o = { 0 };
	struct fi_info *h = ct_hints(&o), *i = NULL;
	int r;

	h->addr_format = FI_SOCKADDR_IB;
	h->domain_attr->name = strdup(device->domain_attr->name);
	r = fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i);
	if (r == -FI_ENODATA)
		SKIP("the device has no addresses of InfiniBand's");
	OK(r);
	EQ(i->addr_format, FI_SOCKADDR_IB);
	EQ(i->src_addrlen, sizeof(struct sockaddr_ib));
	EQ(((struct sockaddr_ib *)i->src_addr)->sib_family, AF_IB);
	fi_freeinfo(h);
	return i;
}
static void ib_name(struct fid *f, struct sockaddr_ib *sib)
{
	struct ct_name name = ct_getname(f);

	EQ(name.n, sizeof *sib);
	memcpy(sib, name.b, sizeof *sib);
	EQ(sib->sib_family, AF_IB);
}

static void ib_refused(int rank)
{
	struct ct c = { 0 };
	struct ct_name to = { .n = sizeof(struct sockaddr_in) }, before, after;
	struct sockaddr_in *in = (void *)to.b;
	struct fi_info *ib;
	struct fid_pep *pep;
	struct fid_ep *ep;
	struct fi_eq_cm_entry e;
	struct fi_eq_err_entry err = { 0 };
	uint32_t ev;
	char log[8000] = "";
	int r, sent[2];

	(void)rank;
	/* before the library reads it */
	setenv("FI_LOG_LEVEL", "warn", 1);
	CHECK(!pipe(sent));
	CHECK(dup2(sent[1], 2) == 2);
	in->sin_family = AF_INET;
	in->sin_port = htons(4998);
	inet_pton(AF_INET, ct_node(&c.o), &in->sin_addr);
	in->sin_addr.s_addr = htonl((ntohl(in->sin_addr.s_addr) & ~255u) | 77);
	ct_prepare(&c, &to);
	ib = ib_info(c.info);
	r = fi_passive_ep(c.fabric, ib, &pep, NULL);
	if (!r)
		SKIP("here the kernel takes them");
	EQ(r, -FI_ENODEV);
	ERR(fi_endpoint(c.domain, ib, &ep, NULL), FI_ENODEV);
	/* an endpoint that has an IP address keeps it, and can connect */
	before = ct_getname(&c.ep->fid);
	ERR(fi_setname(&c.ep->fid, ib->src_addr, ib->src_addrlen), FI_ENODEV);
	ERR(fi_connect(c.ep, ib->src_addr, NULL, 0), FI_EINVAL);
	after = ct_getname(&c.ep->fid);
	CHECK(before.n == after.n && !memcmp(before.b, after.b, before.n));
	CHECK(read(sent[0], log, sizeof log - 1) > 0);
	if (!strstr(log, "cannot bind to fi_sockaddr_ib://") || !strstr(log, "cannot connect to fi_sockaddr_ib://"))
		FAIL("it logs: %s", log);
	OK(fi_connect(c.ep, to.b, NULL, 0));
	EQ(ct_event(&c, &ev, &e, sizeof e, &err), -FI_EAVAIL);
	CHECK(err.fid == &c.ep->fid);
	/* so does one that would listen */
	c.info->dest_addrlen = 0;
	OK(fi_passive_ep(c.fabric, c.info, &pep, NULL));
	before = ct_getname(&pep->fid);
	ERR(fi_setname(&pep->fid, ib->src_addr, ib->src_addrlen), FI_ENODEV);
	after = ct_getname(&pep->fid);
	CHECK(before.n == after.n && !memcmp(before.b, after.b, before.n));
	OK(fi_pep_bind(pep, &c.eq->fid, 0));
	OK(fi_listen(pep));
	OK(fi_close(&pep->fid));
	ct_close(&c);
	fi_freeinfo(ib);
}

static void ib_any(int rank)
{
	struct ct c = { 0 };
	struct sockaddr_ib *sib, name, set;
	struct fi_info *ip;

	(void)rank;
	ip = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	c.info = ib_info(ip);
	fi_freeinfo(ip);
	sib = c.info->src_addr;
	memset(&sib->sib_addr, 0, sizeof sib->sib_addr);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	ct_open_eq(&c);
	OK(fi_passive_ep(c.fabric, c.info, &c.pep, NULL));
	OK(fi_pep_bind(c.pep, &c.eq->fid, 0));
	/* the kernel chose a service of the port space of these addresses */
	ib_name(&c.pep->fid, &name);
	EQ(be64toh(name.sib_sid) >> 16, 0x13f);
	CHECK(be64toh(name.sib_sid) & 0xffff);
	set = name;
	set.sib_sid = htobe64(0x13f0000 | 7471);
	OK(fi_setname(&c.pep->fid, &set, sizeof set));
	OK(fi_listen(c.pep));
	ib_name(&c.pep->fid, &name);
	CHECK(name.sib_sid == set.sib_sid);
	ct_close(&c);
}

static void ib_vector(int rank)
{
	struct ct c = { 0 };
	struct fi_av_attr a = { .type = FI_AV_TABLE };
	struct sockaddr_ib sib, found;
	size_t len = sizeof found, space;
	char text[100];
	const char *own;
	struct fi_info *ip;
	fi_addr_t at;

	(void)rank;
	ip = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	EQ(ip->addr_format, FI_SOCKADDR_IN);
	c.info = ib_info(ip);
	fi_freeinfo(ip);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	OK(fi_domain(c.fabric, c.info, &c.domain, NULL));
	OK(fi_av_open(c.domain, &a, &c.av, NULL));
	memcpy(&sib, c.info->src_addr, sizeof sib);
	sib.sib_sid = htobe64(0x13f0000 | 7471);
	sib.sib_scope_id = 0;
	EQ(fi_av_insert(c.av, &sib, 1, &at, 0, NULL), 1);
	OK(fi_av_lookup(c.av, at, &found, &len));
	CHECK(len == sizeof sib && !memcmp(&sib, &found, len));
	space = sizeof text;
	CHECK(fi_av_straddr(c.av, &sib, text, &space) == text);
	EQ(space, strlen(text) + 1);
	CHECK(!strncmp(text, "fi_sockaddr_ib://[", 18) && strstr(text, "]:0x") && strstr(text, ":0x13f:0x0"));
	own = fi_tostr(c.info, FI_TYPE_INFO);
	if (!strstr(own, text))
		FAIL("%s is not in %s", text, own);
	sib.sib_family = AF_INET;
	CHECK(fi_av_insert(c.av, &sib, 1, &at, 0, NULL) != 1);
	ct_close(&c);
}

/* An address string in the place of a host, of hints; and the same bytes. */
static void ib_named(int rank)
{
	struct ct c = { 0 };
	struct fi_info *ip, *ib, *h, *i;
	char text[100], *end;
	const char *at;
	const uint32_t formats[] = { FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB, FI_ADDR_STR };

	(void)rank;
	ip = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	ib = ib_info(ip);
	at = strstr(fi_tostr(ib, FI_TYPE_INFO), "fi_sockaddr_ib://");
	CHECK(at);
	snprintf(text, sizeof text, "%s", at);
	end = strchr(text, '\n');
	CHECK(end);
	*end = 0;
	for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
		for (int way = 0; way < 3; way++) {
			struct sockaddr_ib *src, *dest;

			h = ct_hints(&c.o);
			h->addr_format = formats[f];
			if (way == 2 && formats[f] == FI_ADDR_STR) {
				h->dest_addr = strdup(text);
				h->dest_addrlen = strlen(text) + 1;
			} else if (way == 2) {
				h->dest_addr = malloc(ib->src_addrlen);
				memcpy(h->dest_addr, ib->src_addr, ib->src_addrlen);
				h->dest_addrlen = ib->src_addrlen;
			}
			OK(fi_getinfo(CT_VERSION, way < 2 ? text : NULL, way < 2 ? "7471" : NULL, way ? 0 : FI_SOURCE, h, &i));
			CHECK(!i->next);
			EQ(i->addr_format, FI_SOCKADDR_IB);
			CHECK(!strcmp(i->domain_attr->name, ib->domain_attr->name));
			src = i->src_addr, dest = i->dest_addr;
			CHECK(!memcmp(&src->sib_addr, &((struct sockaddr_ib *)ib->src_addr)->sib_addr, 16));
			EQ(be64toh(src->sib_sid), way ? 0x13f0000 : 0x13f0000 | 7471);
			CHECK(!way == !dest);
			if (dest)
				EQ(be64toh(dest->sib_sid), way == 1 ? 0x13f0000 | 7471 : 0x13f0000);
			fi_freeinfo(i);
			fi_freeinfo(h);
		}
	}
	/* not with another address format, nor from an unassigned port */
	h = ct_hints(&c.o);
	ERR(fi_getinfo(CT_VERSION, text, NULL, FI_SOURCE, h, &i), FI_ENODATA);
	h->addr_format = FI_SOCKADDR_IB;
	ERR(fi_getinfo(CT_VERSION, ct_node(&c.o), "7471", FI_SOURCE, h, &i), FI_ENODATA);
	ERR(fi_getinfo(CT_VERSION, "fi_sockaddr_ib://[fec0::7]:0xffff:0x13f:0x0", NULL, FI_SOURCE, h, &i), FI_ENODATA);
	/* nor from one kind to the other */
	h->addr_format = FI_FORMAT_UNSPEC;
	h->dest_addr = malloc(ip->src_addrlen);
	memcpy(h->dest_addr, ip->src_addr, ip->src_addrlen);
	h->dest_addrlen = ip->src_addrlen;
	ERR(fi_getinfo(CT_VERSION, text, NULL, FI_SOURCE, h, &i), FI_ENODATA);
	free(h->dest_addr);
	h->dest_addr = NULL;
	h->dest_addrlen = 0;
	h->addr_format = FI_SOCKADDR_IB;
	ERR(fi_getinfo(CT_VERSION, "fi_sockaddr_ib://[fec0::7]:0xffff:0x13f:0x0", NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
	fi_freeinfo(ib);
	fi_freeinfo(ip);
}

static void locked_memory(int rank)
{
	struct ct c = { 0 };
	struct rlimit limit = { 65536, 65536 };
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[2];
	char *b, line[4000] = "";
	struct fid_mr *mr;
	int sent[2];

	(void)rank;
	/* before the library reads it */
	setenv("FI_LOG_LEVEL", "warn", 1);
	CHECK(!pipe(sent));
	CHECK(dup2(sent[1], 2) == 2);
	c.info = ct_getinfo(&c.o, NULL, NULL, 0);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	OK(fi_domain(c.fabric, c.info, &c.domain, NULL));
	b = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(b != MAP_FAILED);
	CHECK(!syscall(SYS_capget, &head, caps));
	caps[0].effective &= ~(1u << CAP_IPC_LOCK);
	CHECK(!syscall(SYS_capset, &head, caps));
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	ERR(fi_mr_reg(c.domain, b, 1 << 20, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL), FI_ENOMEM);
	CHECK(read(sent[0], line, sizeof line - 1) > 0);
	if (!strstr(line, "RLIMIT_MEMLOCK is 65536 bytes"))
		FAIL("it logs: %s", line);
	/* a region within the limit is registered */
	OK(fi_mr_reg(c.domain, b, 8192, FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	OK(fi_close(&mr->fid));
	OK(fi_close(&c.domain->fid));
	OK(fi_close(&c.fabric->fid));
	fi_freeinfo(c.info);
}

static void forks(int rank)
{
	struct ct c;
	char *b;
	int status;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 8 * LEN);
	for (int i = 0; i < 4; i++)
		OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
	ct_barrier(&c);
	for (int i = 0; i < 4; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (!pid) {
			/* in pages of its own, whatever the device has of the parent's */
			memset(b, 0xee, 8 * LEN);
			_exit(0);
		}
		ct_fill(b + (4 + i) * LEN, LEN, 10 * rank + i);
		POST(&c, fi_send(c.ep, b + (4 + i) * LEN, LEN, ct_desc(b), c.peer, CTX(4 + i)));
		ct_sent(&c, CTX(4 + i));
		ct_recvd(&c, CTX(i), LEN);
		CHECK(ct_same(b + i * LEN, LEN, 10 * !rank + i));
		CHECK(waitpid(pid, &status, 0) == pid && !status);
	}
	ct_done(&c);
}

/* A TCP listener at this address, as in siw, that never answers a connection request. */
static int mute(struct ct *c, struct ct_name *name, int backlog)
{
	struct sockaddr_in *in = (void *)name->b;
	socklen_t len = sizeof *in;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	name->n = sizeof *in;
	in->sin_family = AF_INET;
	inet_pton(AF_INET, ct_node(&c->o), &in->sin_addr);
	CHECK(!bind(fd, (void *)in, sizeof *in));
	CHECK(!listen(fd, backlog));
	CHECK(!getsockname(fd, (void *)in, &len));
	return fd;
}
static void only_siw(const struct ct *c)
{
	if (strncmp(c->info->domain_attr->name, "siw", 3))
		SKIP("calls block on siw alone");
}
static void unanswered(int rank)
{
	struct ct c = { 0 };
	struct ct_name to = { 0 };
	char b[64];
	int fd, peer;

	(void)rank;
	fd = mute(&c, &to, 5);
	ct_prepare(&c, &to);
	only_siw(&c);
	OK(fi_connect(c.ep, to.b, NULL, 0));
	peer = accept(fd, NULL, NULL);
	/* the call, which siw waits seconds for an answer to and then hangs up */
	CHECK(peer >= 0 && read(peer, b, sizeof b) > 0);
	ct_close(&c);
	EQ(recv(peer, b, sizeof b, MSG_DONTWAIT), -1);
	CHECK(errno == EAGAIN);
}
static void blocked(int rank)
{
	struct ct c, d = { 0 };
	struct ct_name to = { 0 };
	struct fi_eq_cm_entry e;
	uint32_t ev;
	char *b;

	ct_open(&c, NULL);
	only_siw(&c);
	b = ct_alloc(&c, 2 * LEN);
	if (rank == 0) {
		int fd = mute(&d, &to, 0);

		/* takes no more calls: the system tries again for minutes */
		for (int i = 0; i < 4; i++) {
			int full = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

			CHECK(!connect(full, (void *)to.b, sizeof(struct sockaddr_in)) || errno == EINPROGRESS);
		}
		CHECK(fd >= 0);
		d.info = ct_getinfo(&d.o, ct_node(&d.o), "1", 0);
		d.fabric = c.fabric, d.domain = c.domain, d.borrowed = 1;
		ct_open_eq(&d);
		ct_open_domain(&d);
		ct_open_ep(&d, d.info);
		OK(fi_enable(d.ep));
		OK(fi_connect(d.ep, to.b, NULL, 0));
		ct_nap(500);
	}
	for (int i = 0; i < N; i++) {
		OK(fi_recv(c.ep, b, LEN, ct_desc(b), c.peer, CTX(0)));
		ct_barrier(&c);
		POST(&c, fi_send(c.ep, b + LEN, LEN, ct_desc(b), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_recvd(&c, CTX(0), LEN);
	}
	if (rank == 0) {
		EQ(fi_eq_read(d.eq, &ev, &e, sizeof e, 0), -FI_EAGAIN);
		ct_close(&d);
	}
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "requests with FI_MORE reach the device together", more, CT_MSG },
	{ "a request with FI_MORE that nothing follows leaves all the same", more_alone, CT_MSG },
	{ "a peer that is killed ends the connection, and receives come back", peer_killed, CT_MSG },
	{ "connecting to an absent peer ends in an error event", no_peer, CT_MSG | CT_SOLO },
	{ "an InfiniBand address that the kernel does not take is refused, and nothing is lost", ib_refused, CT_MSG | CT_SOLO },
	{ "a passive endpoint listens on any InfiniBand port", ib_any, CT_MSG | CT_SOLO },
	{ "an address vector takes InfiniBand addresses, and prints them as infos have them", ib_vector, CT_MSG | CT_SOLO },
	{ "an InfiniBand port is named by an address string, or by its bytes", ib_named, CT_MSG | CT_SOLO },
	{ "memory above RLIMIT_MEMLOCK is refused, and the log names the limit", locked_memory, CT_MSG | CT_SOLO },
	{ "an endpoint and its domain close while its call is not answered", unanswered, CT_MSG | CT_SOLO },
	{ "a call that the peer's system does not take stalls no other connection", blocked, CT_MSG },
	{ "a child of fork disturbs no transfer", forks, CT_MSG },
};
CT_MAIN("device", tests)
