/*
 * What only a provider over RDMA devices has to show: how requests reach the
 * device, and what the application hears when its peer or the system fails.  It
 * runs as root in the guest of ctest/vm.
 */
#include "ends.h"
#include <linux/capability.h>
#include <sys/syscall.h>

enum { N = 64, LEN = 64 };

/* Write calls of this process: a software device is told of work by one. */
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
		long before, each, together;

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
		together = writes() - before;
		for (int i = 0; i < 2 * N; i++)
			ct_sent(&c, CTX(i));
		ct_barrier(&c);
		if (each < N)
			SKIP("the device is not told by write calls: %ld", each);
		if (together * 4 > each)
			FAIL("%ld write calls with FI_MORE, %ld without", together, each);
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

static void nobody(int rank)
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
	/* somebody of the same network who is not there */
	in->sin_addr.s_addr = htonl((ntohl(in->sin_addr.s_addr) & ~255u) | 77);
	ct_prepare(&c, &to);
	OK(fi_connect(c.ep, to.b, NULL, 0));
	EQ(ct_event(&c, &ev, &e, sizeof e, &err), -FI_EAVAIL);
	if (err.err != FI_ETIMEDOUT && err.err != FI_EHOSTUNREACH && err.err != FI_ECONNREFUSED)
		FAIL("error %d %s", err.err, fi_strerror(err.err));
	CHECK(err.fid == &c.ep->fid);
	ct_close(&c);
}

static void locked_memory(int rank)
{
	struct ct c = { 0 };
	struct rlimit limit = { 65536, 65536 };
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[2];
	char *b, line[4000] = "";
	struct fid_mr *mr;
	int said[2];

	(void)rank;
	/* before the library reads it */
	setenv("FI_LOG_LEVEL", "warn", 1);
	CHECK(!pipe(said));
	CHECK(dup2(said[1], 2) == 2);
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
	CHECK(read(said[0], line, sizeof line - 1) > 0);
	if (!strstr(line, "RLIMIT_MEMLOCK is 65536 bytes"))
		FAIL("it says: %s", line);
	/* what fits goes */
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

/* Somebody of this address who speaks TCP, as siw does, and never answers a call. */
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
	{ "connecting to nobody ends in an error event", nobody, CT_MSG | CT_SOLO },
	{ "memory above RLIMIT_MEMLOCK is refused, and the log names the limit", locked_memory, CT_MSG | CT_SOLO },
	{ "an endpoint and its domain close while its call is not answered", unanswered, CT_MSG | CT_SOLO },
	{ "a call that the peer's system does not take stalls no other connection", blocked, CT_MSG },
	{ "a child of fork disturbs no transfer", forks, CT_MSG },
};
CT_MAIN("device", tests)
