/*
 * An endpoint with thousands of peers, which are endpoints of a few processes:
 * each connects and sends a message, is answered, stays idle, and closes.
 *
 *   FAULT_PEERS    number of peers (default 2000)
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <rdma/fi_ext.h>

enum { PROCS = 4, LEN = 64, WINDOW = 64 };
/* Maximum memory of this process for an idle peer, in addition to the system's for its socket. */
enum { IDLE_BYTES = 8192 };
/* The same for a peer that would use shared memory with more traffic. */
enum { LOCAL_BYTES = IDLE_BYTES + 2048 };
/* Descriptors opened by an endpoint for all peers of this host, with the first peer. */
enum { OWN_FDS = 4 };

static int npeers;

static size_t resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	size_t pages = 0;

	CHECK(f && fscanf(f, "%*s %zu", &pages) == 1);
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}
/* One descriptor for each connection, and some at each end. */
static void need_fds(rlim_t n)
{
	struct rlimit l;

	CHECK(!getrlimit(RLIMIT_NOFILE, &l));
	if (l.rlim_cur >= n)
		return;
	l.rlim_cur = n;
	if (l.rlim_max < n)
		l.rlim_max = n;
	if (setrlimit(RLIMIT_NOFILE, &l))
		SKIP("RLIMIT_NOFILE is below %ld", (long)n);
}
/* A process with n endpoints: each sends a message, and gets it back. */
static void __attribute__((noreturn)) many(const struct ct_name *to, int n, int first, int sync)
{
	struct ct *c = calloc(n, sizeof *c);
	struct fi_context2 *ctx = calloc(2 * n, sizeof *ctx);
	char (*in)[LEN] = calloc(n, LEN), (*out)[LEN] = calloc(n, LEN), x;
	int notified = 0, received = 0;

	ct_sync = sync;
	ct_rank = 1 + first;
	for (int i = 0; i < n; i++) {
		c[i].o.caps = FI_MSG;
		c[i].info = i ? fi_dupinfo(c[0].info) : ct_getinfo(&c[0].o, ct_node(&c[0].o), "0", FI_SOURCE);
		if (!i) {
			OK(fi_fabric(c[0].info->fabric_attr, &c[0].fabric, NULL));
			c[0].o.cq_size = 4096;
			ct_open_domain(&c[0]);
			c[0].peer = ct_insert(&c[0], to);
		}
		ct_open_second(&c[i], &c[0]);
		c[i].peer = 0;
		OK(fi_recv(c[i].ep, in[i], LEN, NULL, FI_ADDR_UNSPEC, &ctx[i]));
	}
	for (int i = 0; i < n; i++) {
		struct ct_name me = ct_getname(&c[i].ep->fid);

		/* its name goes with its word, so that it can be answered */
		memcpy(out[i], me.b, 48);
		POST(&c[0], fi_send(c[i].ep, out[i], LEN, NULL, c[i].peer, &ctx[n + i]));
	}
	while (notified < n || received < n) {
		struct fi_cq_tagged_entry e;

		if (fi_cq_read(c[0].tx, &e, 1) == 1)
			notified++;
		if (fi_cq_read(c[0].rx, &e, 1) == 1) {
			int i = (struct fi_context2 *)e.op_context - ctx;

			EQ(e.len, LEN);
			CHECK(!memcmp(in[i], out[i], LEN));
			received++;
		}
		sched_yield();
	}
	ct_send_oob("d", 1);
	ct_recv_oob(NULL, &x, 1);	/* idle until then */
	_exit(0);
}
static char in[WINDOW][LEN], out[WINDOW][LEN];
static struct fi_context2 rctx[WINDOW], sctx[WINDOW];
static int line[PROCS];
static pid_t pid[PROCS];

/* An endpoint with receives. */
static struct ct_name open_one(struct ct *c)
{
	struct ct_name mine;

	/* idle connections beyond three quarters of them would be closed */
	need_fds(2 * npeers + 200);
	memset(c, 0, sizeof *c);
	c->o.caps = FI_MSG;
	c->o.cq_size = 1024;
	mine = ct_open_rdm(c, NULL);
	for (int i = 0; i < WINDOW; i++)
		OK(fi_recv(c->ep, in[i], LEN, NULL, FI_ADDR_UNSPEC, &rctx[i]));
	return mine;
}
/* Its peers have connected and were answered; the name of the first. */
static fi_addr_t connect_all(struct ct *c, const struct ct_name *mine)
{
	int busy[WINDOW] = { 0 }, received = 0, answered = 0;
	fi_addr_t first = FI_ADDR_NOTAVAIL;
	char x;

	for (int i = 0; i < PROCS; i++) {
		int sp[2];

		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
		pid[i] = fork();
		if (pid[i] == 0)
			many(mine, npeers / PROCS, i, sp[1]);
		close(sp[1]);
		line[i] = sp[0];
	}
	while (answered < npeers) {
		struct fi_cq_tagged_entry e;
		ssize_t r;

		while ((r = fi_cq_read(c->tx, &e, 1)) == 1) {
			busy[(struct fi_context2 *)e.op_context - sctx] = 0;
			answered++;
		}
		EQ(r, -FI_EAGAIN);
		for (int k = 0; k < WINDOW && received < npeers; k++) {
			struct ct_name n = { .n = 48 };
			fi_addr_t a;
			int i;

			if (busy[k])
				continue;
			r = fi_cq_read(c->rx, &e, 1);
			if (r == -FI_EAGAIN)
				break;
			EQ(r, 1);
			i = (struct fi_context2 *)e.op_context - rctx;
			memcpy(out[k], in[i], LEN);
			memcpy(n.b, in[i], 48);
			a = ct_insert(c, &n);
			if (first == FI_ADDR_NOTAVAIL)
				first = a;
			OK(fi_recv(c->ep, in[i], LEN, NULL, FI_ADDR_UNSPEC, &rctx[i]));
			POST(c, fi_send(c->ep, out[k], LEN, NULL, a, &sctx[k]));
			busy[k] = 1;
			received++;
		}
		sched_yield();
	}
	for (int i = 0; i < PROCS; i++)
		ct_sync = line[i], ct_recv_oob(c, &x, 1);
	return first;
}
static void thousands(size_t idle_bytes)
{
	struct ct c;
	struct ct_name mine;
	size_t heap, idle;
	fi_addr_t first;
	int fds, st;

	npeers = (int)fault_count("FAULT_PEERS", 2000) / PROCS * PROCS;
	mine = open_one(&c);
	fds = open_fds();
	heap = heap_bytes();
	idle = resident();
	first = connect_all(&c, &mine);
	/* all are connected and idle now */
	CHECK(open_fds() >= fds + npeers);
	idle = resident() > idle ? resident() - idle : 0;
	heap = heap_bytes() > heap ? heap_bytes() - heap : 0;
	printf("     %s: %zu bytes of the heap and %zu of resident memory for each of %d idle peers\n", ct_prov,
	       heap / npeers, idle / npeers, npeers);
	fflush(stdout);
	/* AddressSanitizer holds freed memory */
	if (heap && idle / npeers > idle_bytes)
		FAIL("%zu bytes of resident memory for an idle peer", idle / npeers);
	/* and go, half of them at once */
	for (int i = 0; i < PROCS; i++) {
		if (i % 2)
			kill(pid[i], SIGKILL);
		else
			CHECK(send(line[i], "x", 1, MSG_NOSIGNAL) == 1);
	}
	for (int i = 0; i < PROCS; i++) {
		while (waitpid(pid[i], &st, WNOHANG) == 0)
			ct_progress(&c);
		CHECK(i % 2 ? WIFSIGNALED(st) : WIFEXITED(st) && !WEXITSTATUS(st));
		close(line[i]);
	}
	while (open_fds() > fds + OWN_FDS)	/* their connections are closed here as well */
		ct_idle(&c, 10);
	/* sends to a departed peer fail, with a report */
	{
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		POST(&c, fi_send(c.ep, out[0], LEN, NULL, first, &sctx[0]));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == &sctx[0]);
	}
	ct_close(&c);
}

static void over_sockets(int rank)
{
	(void)rank;
	setenv("FI_TCP_LOCAL", "0", 1);
	thousands(IDLE_BYTES);
}
static void through_memory(int rank)
{
	(void)rank;
	unsetenv("FI_TCP_LOCAL");
	thousands(LOCAL_BYTES);
}

static double cpu_seconds(void)
{
	struct timespec t;

	CHECK(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t));
	return t.tv_sec + t.tv_nsec / 1e9;
}
/* Seconds of the processor for closing an endpoint with n connected peers. */
static double closing(int n)
{
	struct ct c;
	struct ct_name mine;
	double t;

	npeers = n;
	mine = open_one(&c);
	connect_all(&c, &mine);
	t = cpu_seconds();
	OK(fi_close(&c.ep->fid));
	t = cpu_seconds() - t;
	c.ep = NULL;
	ct_close(&c);
	for (int i = 0; i < PROCS; i++) {
		kill(pid[i], SIGKILL);
		CHECK(waitpid(pid[i], NULL, 0) == pid[i]);
		close(line[i]);
	}
	return t;
}
/* Few of them are an eighth: an unoptimized library that looks at all connections to end one
   shows at 2000, an optimized one at 8000. */
static void closes(int rank)
{
	int n = (int)fault_count("FAULT_PEERS", 2000) / PROCS * PROCS;
	double few, many;

	(void)rank;
	few = closing(n / 8 / PROCS * PROCS) * 1e6 / (n / 8);
	many = closing(n) * 1e6 / n;
	printf("     %s: closed with %d peers in %.1f us each, with an eighth of them in %.1f us\n", ct_prov, n, many, few);
	fflush(stdout);
	/* closing a socket is most of it, and takes more where others do the same */
	if (many > 3 * few && many > 30)
		FAIL("%.1f us for each of %d peers, and %.1f us for each of an eighth of them", many, n, few);
}

/* Seconds of the processor for asking each of the first connections of n for its link, many times. */
static double asking(struct ct *c, int n, struct fid_ep **ep, int *made)
{
	enum { ASKED = 20, TIMES = 2000 };
	struct ct_name to = ct_getname(&c->pep->fid);
	double t;

	for (; *made < 2 * n; *made += 2) {
		struct ct caller = { .o = c->o, .fabric = c->fabric, .domain = c->domain, .eq = c->eq, .tx = c->tx, .rx = c->rx };
		struct ct called = caller;
		struct { struct fi_eq_cm_entry e; char d[512]; } b;
		uint32_t ev = 0;

		ct_prepare(&caller, &to);
		ep[*made] = caller.ep;
		OK(fi_connect(caller.ep, caller.info->dest_addr, NULL, 0));
		fi_freeinfo(caller.info);
		CHECK(ct_event(c, &ev, &b, sizeof b, NULL) > 0);
		EQ(ev, FI_CONNREQ);
		ct_open_ep(&called, b.e.info);
		ep[*made + 1] = called.ep;
		OK(fi_enable(called.ep));
		OK(fi_accept(called.ep, NULL, 0));
		fi_freeinfo(b.e.info);
		ct_want_event(c, FI_CONNECTED, NULL, 0);
		ct_want_event(c, FI_CONNECTED, NULL, 0);
	}
	t = cpu_seconds();
	for (int i = 0; i < ASKED * TIMES; i++) {
		struct fi_peer_links links;
		size_t len = sizeof links;

		OK(fi_getopt(&ep[i % ASKED]->fid, FI_OPT_ENDPOINT, FI_OPT_PEER_LINKS, &links, &len));
		EQ(links.memory + links.network, 1);
	}
	return (cpu_seconds() - t) / (ASKED * TIMES);
}
static void requests(int rank)
{
	enum { FEW = 20, MANY = 800 };
	static struct fid_ep *ep[2 * MANY];
	struct ct c = { .o.caps = FI_MSG, .o.cq_size = 4096 };
	double few, many;
	int made = 0;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("an option of tcp");
	need_fds(2 * MANY + 200);
	ct_listen(&c);
	ct_open_domain(&c);
	few = asking(&c, FEW, ep, &made) * 1e9;
	many = asking(&c, MANY, ep, &made) * 1e9;
	printf("     %s: polled in %.0f ns with %d connections, in %.0f ns with %d\n", ct_prov, few, FEW, many, MANY);
	fflush(stdout);
	if (many > 4 * few && many > 1000)
		FAIL("%.0f ns with %d connections, and %.0f ns with %d", few, FEW, many, MANY);
	while (made)
		OK(fi_close(&ep[--made]->fid));
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "thousands of peers connect, are answered, stay idle and go", over_sockets, CT_SOLO | CT_RDM },
	{ "thousands of peers of this host connect, are answered, stay idle and go", through_memory, CT_SOLO | CT_RDM },
	{ "closing an endpoint takes as long for each of its peers, however many there are", closes, CT_SOLO | CT_RDM },
	{ "asking a connected endpoint for its link takes as long, however many there are", requests, CT_SOLO | CT_MSG },
};
CT_MAIN("thousands", tests)
