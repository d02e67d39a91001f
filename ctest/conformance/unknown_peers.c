/*
 * Unknown peers, able to connect to an endpoint of the tcp provider without further
 * knowledge: their permitted actions, and bounds on the memory, processor time and output
 * that they can cause.  The peers are sockets of the test, one process plays both sides.
 */
#include "ct.h"
#include <netinet/tcp.h>
#include <rdma/fi_atomic.h>

enum { MSG = 0, TAG = 1, READ_REQ = 2, READ_RSP = 3, WRITE = 4, ATOMIC = 64, ATOMIC_RSP = 65 };
enum { DATA_BIT = 1, DELIVERY = 4, ACK = 2 };
enum { KEY = 7, REGION = 4096 };

static void put64(unsigned char *o, uint64_t v) { memcpy(o, &v, 8); }

/* Writes a header with up to one remote segment, and data and a tag if they fit; returns its length. */
struct position { uint64_t addr, len, key; };
struct frame { int op, flags; uint64_t tag, data, body; const struct position *position; };
static size_t frame(unsigned char *o, struct frame f)
{
	size_t n = 16;

	memset(o, 0, 64);
	o[0] = 3;
	o[1] = f.op;
	o[2] = f.flags;
	if (f.flags & DATA_BIT)
		put64(o + n, f.data), n += 8;
	if (f.op == TAG || f.op == ATOMIC)
		put64(o + n, f.tag), n += 8;
	if (f.position)
		memcpy(o + n, f.position, 24), n += 24, o[5] = 1;
	o[6] = n;
	put64(o + 8, n + f.body);
	return n;
}

static struct sockaddr_in at(const struct ct_name *n)
{
	struct sockaddr_in a;

	memcpy(&a, n->b, sizeof a);
	return a;
}

static int connection(const struct ct_name *to)
{
	struct sockaddr_in a = at(to);
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	ct_ip_only();
	CHECK(s >= 0);
	CHECK(!connect(s, (void *)&a, sizeof a));
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return s;
}
/* Sends a HELLO with the port at which the peer listens. */
static void say_hello(int s, int port)
{
	unsigned char b[40] = { 3, 0, 0, 8 };

	memcpy(b + 16, "ofi-rs?\1", 8);
	b[24] = 1;
	b[32] = 1;
	b[34] = port >> 8;
	b[35] = port;
	b[39] = 9;
	EQ(send(s, b, sizeof b, MSG_NOSIGNAL), sizeof b);
}
/* Takes n bytes from the socket of an unknown peer; returns the number of bytes before its end. */
static size_t take(struct ct *c, int s, void *to, size_t n)
{
	size_t got = 0;

	while (got < n) {
		ssize_t r = recv(s, (char *)to + got, n - got, MSG_DONTWAIT);

		if (r == 0 || (r < 0 && errno != EAGAIN))
			return got;
		got += r > 0 ? r : 0;
		ct_progress(c);
	}
	return got;
}
static int unknown_peer(struct ct *c, const struct ct_name *to, int port)
{
	unsigned char b[40];
	int s = connection(to);

	say_hello(s, port);
	EQ(take(c, s, b, 40), 40);
	EQ(b[1], 1);
	return s;
}
static int is_cut_off(struct ct *c, int s)
{
	char b;

	for (;;) {
		ssize_t r = recv(s, &b, 1, MSG_DONTWAIT);

		if (r == 1)
			return 0;
		if (r == 0 || errno != EAGAIN)
			return 1;
		ct_progress(c);
	}
}
static void shout(struct ct *c, int s, const void *b, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t r = send(s, (const char *)b + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT);

		CHECK(r >= 0 || errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
		if (r < 0 && errno != EAGAIN)
			return;
		done += r > 0 ? r : 0;
		ct_progress(c);
	}
}

/* An endpoint with these capabilities that anybody can call, and a region. */
static struct ct_name open_listener(struct ct *c, uint64_t caps, struct fid_mr **mr, char *region)
{
	static const int mode = 0;
	struct ct_name n;

	if (ct_is_rxm())
		SKIP("these peers speak the protocol of tcp");
	memset(c, 0, sizeof *c);
	c->o.caps = caps;
	c->o.mr_mode = &mode;
	n = ct_open_rdm(c, NULL);
	if (mr)
		OK(fi_mr_reg(c->domain, region, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, mr, NULL));
	return n;
}

static void unkeyed_data(int rank)
{
	static char region[REGION];
	struct fid_mr *mr;
	struct ct c, p;
	struct ct_name n = open_listener(&c, FI_MSG | FI_RMA, &mr, region);
	unsigned char b[64];
	struct position wrong = { 0, 0, KEY + 1 };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	struct fi_rma_iov iov = { 0 };
	struct fi_msg_rma m = { .rma_iov = &iov };
	int s;

	(void)rank;
	for (int i = 0; i < 2; i++) {
		s = unknown_peer(&c, &n, 1 + i);
		shout(&c, s, b, frame(b, (struct frame){ WRITE, DATA_BIT, .data = 5, .position = i ? &wrong : NULL }));
		CHECK(is_cut_off(&c, s));
		NOTHING(&c, c.rx, 20);
		close(s);
	}
	/* with the key an empty write is permitted, and reported */
	memset(&p, 0, sizeof p);
	p.o = c.o;
	ct_open_rdm(&p, NULL);
	m.addr = ct_insert(&p, &n);
	POST(&p, fi_writedata(p.ep, NULL, 0, NULL, 77, m.addr, 0, KEY, CTX(1)));
	while (fi_cq_read(c.rx, &e, 1) != 1)
		ct_progress(&p);
	EQ(e.data, 77);
	CHECK(e.flags & FI_REMOTE_CQ_DATA && e.flags & FI_REMOTE_WRITE);
	ct_sent(&p, CTX(1));
	ERR(fi_writemsg(p.ep, &m, FI_REMOTE_CQ_DATA), FI_EINVAL);
	/* with a wrong key the write fails */
	m.rma_iov_count = 1;
	m.context = CTX(2);
	iov.key = KEY + 1;
	POST(&p, fi_writemsg(p.ep, &m, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE | FI_COMPLETION));
	while (fi_cq_read(p.tx, &e, 1) != -FI_EAVAIL)
		ct_progress(&c);
	EQ(fi_cq_readerr(p.tx, &err, 0), 1);
	CHECK(err.op_context == CTX(2));
	NOTHING(&c, c.rx, 20);
	ct_close(&p);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* Tests the operations that an endpoint with these capabilities permits to peers with the key. */
static void without(uint64_t caps, int reads, int writes, int fetches)
{
	static char region[REGION];
	struct fid_mr *mr;
	struct ct c;
	struct ct_name n = open_listener(&c, caps, &mr, region);
	struct position one = { 8, 8, KEY }, none = { 8, 0, KEY };
	unsigned char b[128];
	size_t k;
	int s;

	snprintf(ct_prefix, sizeof ct_prefix, "caps %#llx: ", (unsigned long long)caps);
	memset(region, 0x55, sizeof region);
	s = unknown_peer(&c, &n, 1);
	shout(&c, s, b, frame(b, (struct frame){ READ_REQ, .position = &one }));
	if (reads)
		EQ(take(&c, s, b, 24), 24);
	else
		CHECK(is_cut_off(&c, s));
	close(s);
	s = unknown_peer(&c, &n, 2);
	k = frame(b, (struct frame){ WRITE, DELIVERY, .position = &one, .body = 8 });
	memset(b + k, 0x66, 8);
	shout(&c, s, b, k + 8);
	if (writes)
		EQ(take(&c, s, b, 16), 16);
	else
		CHECK(is_cut_off(&c, s));
	EQ(region[8], writes ? 0x66 : 0x55);
	close(s);
	s = unknown_peer(&c, &n, 3);
	shout(&c, s, b, frame(b, (struct frame){ WRITE, DATA_BIT | DELIVERY, .position = &none }));
	if (writes) {
		struct fi_cq_tagged_entry e;

		EQ(take(&c, s, b, 16), 16);
		EQ(fi_cq_read(c.rx, &e, 1), 1);
	} else {
		CHECK(is_cut_off(&c, s));
		NOTHING(&c, c.rx, 5);
	}
	close(s);
	s = unknown_peer(&c, &n, 4);
	/* the former value of eight bytes, to which 1 is added */
	k = frame(b, (struct frame){ ATOMIC, DELIVERY, .tag = FI_UINT64 | FI_SUM << 8 | 1 << 16, .position = &one, .body = 8 });
	put64(b + k, 1);
	shout(&c, s, b, k + 8);
	EQ(take(&c, s, b, 16), 16);
	EQ(b[1], ATOMIC_RSP);
	EQ(b[4] == 0, fetches);
	CHECK((region[8] == (writes ? 0x67 : 0x56)) == fetches);
	close(s);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
static void targets(int rank)
{
	(void)rank;
	without(FI_MSG | FI_TAGGED, 0, 0, 0);
	without(FI_MSG | FI_RMA, 1, 1, 0);
	without(FI_MSG | FI_RMA | FI_READ | FI_WRITE, 0, 0, 0);
	without(FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_READ, 1, 0, 0);
	without(FI_MSG | FI_RMA | FI_READ | FI_REMOTE_WRITE, 0, 1, 0);
	without(FI_MSG | FI_ATOMIC, 0, 0, 1);
	without(FI_MSG | FI_ATOMIC | FI_REMOTE_READ, 0, 0, 0);
	without(FI_MSG | FI_RMA | FI_ATOMIC, 1, 1, 1);
}

/* An endpoint that the one of c knows by name, on queues of its own. */
static fi_addr_t open_friend(struct ct *c, struct ct *p, const struct ct_name *n)
{
	struct ct_name own;

	memset(p, 0, sizeof *p);
	p->o = c->o;
	own = ct_open_rdm(p, NULL);
	ct_insert(c, &own);
	return ct_insert(p, n);
}
/* Inserts the address of the unknown peer with this port, which makes it a known one. */
static void introduce(struct ct *c, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	fi_addr_t name;

	EQ(fi_av_insert(c->av, &a, 1, &name, 0, NULL), 1);
}
static void send_and_wait(struct ct *p, struct ct *c, fi_addr_t to, uint64_t tag)
{
	struct fi_cq_tagged_entry e;

	POST(p, fi_tsend(p->ep, "hello", 5, NULL, to, tag, CTX(1)));
	while (fi_cq_read(p->tx, &e, 1) != 1)
		ct_progress(c);
}
static void wait_for(struct ct *c, struct ct *p, void *ctx)
{
	struct fi_cq_tagged_entry e;

	while (fi_cq_read(c->rx, &e, 1) != 1)
		ct_progress(p);
	CHECK(e.op_context == ctx);
}
/* Sends tagged messages of one byte with tags from `from` on until none is accepted; returns the number of bytes accepted. */
static size_t babble(struct ct *c, int s, uint64_t from, size_t most)
{
	enum { MESSAGE = 25, BLOCK = 4096 };
	static unsigned char b[MESSAGE * BLOCK + 64];
	size_t sent = 0, done = sizeof b;
	int attempts = 0;

	/* time alone is no measure on a busy machine: a process may wait that long for a processor */
	for (int64_t end = ct_ms() + 300; (ct_ms() < end || attempts < 1000) && sent < most; attempts++) {
		ssize_t r;

		if (done >= MESSAGE * BLOCK) {
			done = 0;
			for (size_t i = 0; i < BLOCK; i++)
				frame(b + i * MESSAGE, (struct frame){ TAG, .tag = from++, .body = 1 });
		}
		r = send(s, b + done, MESSAGE * BLOCK - done, MSG_NOSIGNAL | MSG_DONTWAIT);
		CHECK(r > 0 || errno == EAGAIN);
		if (r > 0) {
			done += r;
			sent += r;
			attempts = 0;
			end = ct_ms() + 300;
		}
		ct_progress(c);
	}
	return sent;
}

/* A peer announces more than there is memory for, and sends some of it or all. */
static void no_memory(int rank)
{
	struct ct c, p;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	enum { MANY = 240 << 20, MORE = 64 << 20, BLOCK = 1 << 20, BURST = 16 };
	struct fi_cq_tagged_entry e;
	unsigned char b[64];
	char *block = calloc(1, BLOCK), got[8];
	struct rlimit all, few;
	fi_addr_t to = open_friend(&c, &p, &n);
	unsigned long pages;
	FILE *f;

	(void)rank;
#ifdef __SANITIZE_ADDRESS__
	SKIP_HERE("the address sanitizer needs all address space");
#endif
	/* Several at once: the library's thread for such messages begins now. One that begins when there is no memory is
	 * ended by the C library, with the process, which has none for the thread's own variables. */
	for (int i = 0; i < BURST; i++)
		POST(&p, fi_tsend(p.ep, "hello", 5, NULL, to, 1, CTX(1)));
	for (int i = 0; i < BURST;) {
		i += fi_cq_read(p.tx, &e, 1) == 1;
		ct_progress(&c);
	}
	ct_idle(&p, 20);
	CHECK((f = fopen("/proc/self/statm", "r")));
	EQ(fscanf(f, "%lu", &pages), 1);
	fclose(f);
	OK(getrlimit(RLIMIT_AS, &all));
	few = all;
	few.rlim_cur = pages * 4096 + MORE;
	for (int named = 0; named < 2; named++) {
		int s = unknown_peer(&c, &n, 1 + named), cut;

		OK(setrlimit(RLIMIT_AS, &few));
		if (named)
			introduce(&c, 2);
		shout(&c, s, b, frame(b, (struct frame){ TAG, .tag = 9, .body = MANY }));
		ct_idle(&c, 20);
		/* a message of an unknown peer waits at its sender, one of a known peer is buffered within the limit */
		for (int i = 0; named && i < MANY / BLOCK; i++)
			shout(&c, s, block, BLOCK);
		cut = named && is_cut_off(&c, s);
		EQ(cut, named);
		send_and_wait(&p, &c, to, 2);
		POST(&c, fi_trecv(c.ep, got, 8, NULL, FI_ADDR_UNSPEC, 2, 0, CTX(2)));
		wait_for(&c, &p, CTX(2));
		close(s);
		OK(setrlimit(RLIMIT_AS, &all));
	}
	free(block);
	ct_close(&p);
	ct_close(&c);
}

/* Unexpected messages: an unknown peer can leave few, and known peers keep their space. */
static void unwanted(int rank)
{
	enum { MB = 1 << 20, UNKNOWN_PEERS = 160 };
	struct ct c, p;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	fi_addr_t to = open_friend(&c, &p, &n);
	char b[2][8];
	size_t sent;
	int s = unknown_peer(&c, &n, 1);

	(void)rank;
	sent = babble(&c, s, 1ull << 40, 100 * MB);
	if (sent > 20 * MB)	/* most of the data is in the sockets */
		FAIL("an unknown peer left %zu MB of messages", sent / MB);
	/* departed peers release their space for new ones */
	for (int i = 0; i < UNKNOWN_PEERS; i++) {
		unsigned char m[64 + 5000];
		int one = unknown_peer(&c, &n, 100 + i);

		for (int k = 0; k < 100; k++) {
			size_t h = frame(m, (struct frame){ TAG, .tag = 1ull << 41 | i << 8 | k, .body = 5000 });

			shout(&c, one, m, h + 5000);
		}
		ct_idle(&c, 2);
		close(one);
	}
	for (int named = 0; named < 2; named++) {
		int one = named ? -1 : unknown_peer(&c, &n, 99);
		unsigned char m[64];

		for (int k = 0; k < 2; k++) {
			if (named)
				send_and_wait(&p, &c, to, 50 + k);
			else
				shout(&c, one, m, frame(m, (struct frame){ TAG, .tag = 50 + k, .body = 5 }) + 5);
		}
		for (int k = 1; k >= 0; k--) {
			POST(&c, fi_trecv(c.ep, b[k], 8, NULL, FI_ADDR_UNSPEC, 50 + k, 0, CTX(k)));
			wait_for(&c, &p, CTX(k));
		}
		if (!named)
			close(one);
	}
	close(s);
	ct_close(&p);
	ct_close(&c);
}

/* Messages of a peer are received after its end, also if a known peer fills the remaining space. */
static void last_words(int rank)
{
	struct ct c;
	struct ct_name n;
	unsigned char m[64];
	char b[8];
	int s;

	(void)rank;
	setenv("FI_TCP_MAX_UNEXPECTED", "1048576", 1);
	n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	s = unknown_peer(&c, &n, 1);
	shout(&c, s, m, frame(m, (struct frame){ TAG, .tag = 5, .body = 5 }) + 5);
	ct_idle(&c, 5);
	close(s);
	ct_idle(&c, 5);
	s = unknown_peer(&c, &n, 2);
	introduce(&c, 2);
	CHECK(babble(&c, s, 1ull << 40, 1ull << 30) < 1ull << 30);
	POST(&c, fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, 5, 0, CTX(1)));
	ct_recvd(&c, CTX(1), 5);
	close(s);
	ct_close(&c);
}

static int64_t spent(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}
/* Processor time of a number of unknown peers that come and go. */
static int64_t upgrades(struct ct *c, const struct ct_name *n)
{
	int64_t least = INT64_MAX;

	for (int round = 0; round < 5; round++) {
		int64_t t = spent();

		for (int i = 0; i < 20; i++)
			close(unknown_peer(c, n, 1000 + i));
		ct_idle(c, 2);
		t = spent() - t;
		if (t < least)
			least = t;
	}
	return least;
}
static void goodbye_costs(int rank)
{
	struct ct c;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	int64_t before, after;
	char b[8];
	int s;

	(void)rank;
	before = upgrades(&c, &n);
	introduce(&c, 1);
	s = unknown_peer(&c, &n, 1);
	/* a hundred thousand messages of one byte that wait, and then that one */
	babble(&c, s, 1ull << 40, 25ull * 4096 * 25);
	POST(&c, fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, (1ull << 40) + 100000, 0, CTX(1)));
	ct_recvd(&c, CTX(1), 1);
	after = upgrades(&c, &n);
	if (after > 4 * before)
		FAIL("%lld us of processor time without buffered messages, %lld us with many", (long long)before / 1000, (long long)after / 1000);
	close(s);
	ct_close(&c);
}

static int count_files(void)
{
	int n = 0;

	for (int i = 0; i < 4096; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}
static void limit_files(int n)
{
	struct rlimit r;

	OK(getrlimit(RLIMIT_NOFILE, &r));
	if (r.rlim_max != RLIM_INFINITY && r.rlim_max < (rlim_t)n)
		SKIP_HERE("only %d descriptors", (int)r.rlim_max);
	r.rlim_cur = n;
	OK(setrlimit(RLIMIT_NOFILE, &r));
}
/* The program can open so many files. */
static void open_files(int n)
{
	int f[64];

	for (int i = 0; i < n; i++) {
		f[i] = open("/dev/null", O_RDONLY);
		if (f[i] < 0)
			FAIL("only %d files can be opened: %s", i, strerror(errno));
	}
	for (int i = 0; i < n; i++)
		close(f[i]);
}
/* RDM endpoint without a thread of the library's. */
static struct ct_name open_manual(struct ct *c)
{
	if (ct_is_rxm())
		SKIP("these peers speak the protocol of tcp");
	memset(c, 0, sizeof *c);
	c->o.caps = FI_MSG | FI_TAGGED;
	c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);
	c->info->domain_attr->data_progress = c->info->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	ct_open_in(c, NULL);
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
	return ct_getname(&c->ep->fid);
}

/* Unknown peers with many names each, at both endpoints of a process; rank 1 is all of them. */
static void crowd(int rank)
{
	enum { FILES = 128, UNKNOWN_PEERS = 300 };
	static int s[UNKNOWN_PEERS];
	struct ct c, d;
	struct ct_name name[2], own;
	char b[8], x;

	if (rank == 0) {
		limit_files(FILES);
		name[0] = open_manual(&c);
		name[1] = open_manual(&d);
		ct_send_oob(name, sizeof name);
		ct_recv_oob(&c, &own, sizeof own);
		for (int i = 0; i < UNKNOWN_PEERS; i++) {
			ct_recv_oob(NULL, &x, 1);
			for (int k = 0; k < 3; k++) {
				ct_progress(&c);
				ct_progress(&d);
			}
			ct_send_oob("n", 1);
		}
		open_files(FILES / 8);
		/* known peers are connected to, and new ones accepted */
		ct_insert(&c, &own);
		POST(&c, fi_tsend(c.ep, "hello", 5, NULL, 0, 5, CTX(1)));
		ct_sent(&c, CTX(1));
		for (int i = 0; i < 2; i++) {
			struct ct *to = i ? &d : &c;

			OK(fi_trecv(to->ep, b, 8, NULL, FI_ADDR_UNSPEC, 6, 0, CTX(2)));
			ct_send_oob("s", 1);
			ct_recvd(to, CTX(2), 5);
		}
		ct_barrier(&c);
		ct_close(&d);
		ct_close(&c);
		return;
	}
	limit_files(UNKNOWN_PEERS + 100);
	own = open_manual(&c);
	ct_recv_oob(&c, name, sizeof name);
	ct_send_oob(&own, sizeof own);
	for (int i = 0; i < UNKNOWN_PEERS; i++) {
		s[i] = connection(&name[i % 2]);
		say_hello(s[i], 1 + i);
		ct_send_oob("c", 1);
		ct_recv_oob(NULL, &x, 1);
	}
	OK(fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, 5, 0, CTX(1)));
	ct_recvd(&c, CTX(1), 5);
	for (int i = 0; i < 2; i++) {
		fi_addr_t to = ct_insert(&c, &name[i]);

		ct_recv_oob(&c, &x, 1);
		POST(&c, fi_tsend(c.ep, "hello", 5, NULL, to, 6, CTX(2)));
		ct_sent(&c, CTX(2));
	}
	ct_barrier(&c);
	ct_close(&c);
}

/* Requests that the application does not answer yet: they wait, and none is lost. */
static void requests(int rank)
{
	enum { FILES = 128, UNKNOWN_PEERS = 200 };
	static struct fi_info *known[UNKNOWN_PEERS];
	static int s[UNKNOWN_PEERS];
	struct ct c;
	struct ct_name n;
	int seen = 0;

	if (rank == 1) {
		limit_files(UNKNOWN_PEERS + 100);
		ct_recv_oob(NULL, &n, sizeof n);
		for (int i = 0; i < UNKNOWN_PEERS; i++) {
			unsigned char b[32] = { 3 };

			s[i] = connection(&n);
			b[24] = 1;
			EQ(send(s[i], b, 32, MSG_NOSIGNAL), 32);
		}
		ct_barrier(NULL);
		for (int i = 0; i < UNKNOWN_PEERS; i++) {
			unsigned char b[34] = { 0 };
			struct pollfd p = { .fd = s[i], .events = POLLIN };

			while (poll(&p, 1, -1) != 1)
				;
			EQ(recv(s[i], b, sizeof b, 0), 34);
			EQ(b[1], 6);
			close(s[i]);
		}
		ct_barrier(NULL);
		return;
	}
	limit_files(FILES);
	memset(&c, 0, sizeof c);
	ct_listen(&c);
	n = ct_getname(&c.pep->fid);
	ct_send_oob(&n, sizeof n);
	ct_barrier(NULL);
	while (seen < UNKNOWN_PEERS) {
		int before = seen, more = 1;

		for (int64_t end = ct_ms() + 100; ct_ms() < end && more;) {
			struct fi_eq_cm_entry e;
			uint32_t ev;
			ssize_t r = fi_eq_read(c.eq, &ev, &e, sizeof e, 0);

			if (r == -FI_EAGAIN)
				continue;
			CHECK(r > 0);
			EQ(ev, FI_CONNREQ);
			known[seen++] = e.info;
			end = ct_ms() + 100;
			more = seen < UNKNOWN_PEERS;
		}
		open_files(FILES / 8);
		for (int i = before; i < seen; i++) {
			OK(fi_reject(c.pep, known[i]->handle, "no", 2));
			fi_freeinfo(known[i]);
		}
	}
	ct_barrier(NULL);
	ct_close(&c);
}

/* Callers are let in one lot after the other, whatever waits. */
static void rush(int rank)
{
	enum { UNKNOWN_PEERS = 600, LOT = 150 };
	static int s[UNKNOWN_PEERS];
	struct ct c;
	struct ct_name n;
	char x;

	limit_files(4096);
	if (rank == 1) {
		ct_recv_oob(NULL, &n, sizeof n);
		for (int i = 0; i < UNKNOWN_PEERS; i++)
			s[i] = connection(&n);
		ct_send_oob("c", 1);
		ct_recv_oob(NULL, &x, 1);
		for (int i = 0; i < UNKNOWN_PEERS; i++)
			close(s[i]);
		return;
	}
	if (ct_type == FI_EP_MSG) {
		memset(&c, 0, sizeof c);
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
	} else {
		n = open_manual(&c);
	}
	ct_send_oob(&n, sizeof n);
	ct_recv_oob(NULL, &x, 1);
	for (int before = count_files(), first = before, now; before < first + UNKNOWN_PEERS; before = now) {
		struct fi_eq_cm_entry e;
		uint32_t ev;

		if (c.pep)
			ERR(fi_eq_read(c.eq, &ev, &e, sizeof e, 0), FI_EAGAIN);
		else
			(void)fi_cq_read(c.rx, NULL, 0);
		now = count_files();
		if (now - before > LOT)
			FAIL("%d callers were accepted in one call", now - before);
	}
	ct_send_oob("d", 1);
	ct_close(&c);
}

static long resident(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f);
	EQ(fscanf(f, "%*d %ld", &pages), 1);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}
/* Sends frames until the socket takes no more for a while; returns the number sent completely, with the rest of the next in b. */
static long ask(struct ct *c, int s, const unsigned char *b, size_t n, size_t *part)
{
	static unsigned char block[4096 * 64];
	long asked = 0;
	size_t done = 0, all = n * 4096;

	for (int i = 0; i < 4096; i++)
		memcpy(block + i * n, b, n);
	for (int64_t end = ct_ms() + 300; ct_ms() < end;) {
		ssize_t r = send(s, block + done, all - done, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (r < 0 && errno != EAGAIN)
			FAIL("cut off after %ld requests", asked);
		if (r > 0) {
			asked += (done % n + r) / n;
			done = (done + r) % all;
			end = ct_ms() + 300;
		}
		ct_progress(c);
	}
	*part = done % n;
	return asked;
}
/* Requests with answers unread for a while: none is lost, and memory is not taken for many. */
static void accept_paused(int rank)
{
	static char region[REGION];
	struct fid_mr *mr;
	struct ct c;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC, &mr, region);
	struct position one = { 0, 0, KEY }, eight = { 0, 2048, KEY };

	(void)rank;
	for (int kind = 0; kind < 3; kind++) {
		unsigned char b[64], *got = malloc(1 << 16);
		int s = unknown_peer(&c, &n, 1 + kind), small = 128 << 10;
		size_t k, part, size = kind < 2 ? 16 : 16 + 2048;
		long asked, before = resident(), more;

		snprintf(ct_prefix, sizeof ct_prefix, "kind %d: ", kind);
		setsockopt(s, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		k = kind == 0 ? frame(b, (struct frame){ .op = READ_REQ }) : kind == 1 ? frame(b, (struct frame){ WRITE, DELIVERY, .position = &one })
			: frame(b, (struct frame){ ATOMIC, DELIVERY, .tag = FI_UINT64 | FI_ATOMIC_READ << 8 | 1 << 16, .position = &eight });
		asked = ask(&c, s, b, k, &part);
		more = resident() - before;
#ifndef __SANITIZE_ADDRESS__
		if (more > 4 << 20)
			FAIL("%ld requests without taking the answers took %ld KB of memory", asked, more >> 10);
#endif
		for (size_t have = 0, want = asked * size; have < want;) {
			ssize_t r = recv(s, got, want - have < 1 << 16 ? want - have : 1 << 16, MSG_DONTWAIT);

			if (r == 0 || (r < 0 && errno != EAGAIN))
				FAIL("%zu of %zu bytes of answers came", have, want);
			have += r > 0 ? r : 0;
			ct_progress(&c);
		}
		/* the rest of the one that was cut */
		if (part) {
			shout(&c, s, b + part, k - part);
			EQ(take(&c, s, got, size), size);
		}
		close(s);
		free(got);
	}
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* A peer acknowledges a message before it has read it. */
static void hasty(int rank)
{
	enum { SIZE = 300000 };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int lst = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), s, little = 4096;
	unsigned char b[64], *all = malloc(SIZE + 16);
	char *buf = malloc(SIZE);
	struct iovec v = { buf, SIZE };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .context = CTX(1) };
	struct fi_cq_tagged_entry e;
	struct pollfd p = { .fd = lst, .events = POLLIN };
	socklen_t k = sizeof a;
	struct ct c;
	int over = 0;

	ct_ip_only();
	(void)rank;
	setenv("FI_TCP_ZEROCOPY_SIZE", "2000", 1);
	open_listener(&c, FI_MSG, NULL, NULL);
	setsockopt(lst, SOL_SOCKET, SO_RCVBUF, &little, sizeof little);
	CHECK(!bind(lst, (void *)&a, sizeof a) && !listen(lst, 1) && !getsockname(lst, (void *)&a, &k));
	EQ(fi_av_insert(c.av, &a, 1, &m.addr, 0, NULL), 1);
	ct_fill(buf, SIZE, 1);
	POST(&c, fi_sendmsg(c.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	while (poll(&p, 1, 0) != 1)
		ct_progress(&c);
	CHECK((s = accept(lst, NULL, NULL)) >= 0);
	EQ(take(&c, s, b, 40), 40);
	b[1] = 1;			/* yes */
	b[32] = 0x81;
	memset(b + 16, 0, 8);
	EQ(send(s, b, 40, MSG_NOSIGNAL), 40);
	ct_idle(&c, 200);
	frame(b, (struct frame){ .op = MSG });
	b[4] = ACK;
	EQ(send(s, b, 16, MSG_NOSIGNAL), 16);
	for (int64_t end = ct_ms() + 300; ct_ms() < end && !over; ct_nap(1))
		over = fi_cq_read(c.tx, &e, 1) == 1;
	if (over)	/* then the buffer is the program's */
		memset(buf, 0x99, SIZE);
	EQ(take(&c, s, all, SIZE + 16), SIZE + 16);
	CHECK(ct_same(all + 16, SIZE, 1));
	if (!over)
		ct_sent(&c, CTX(1));
	close(s);
	close(lst);
	ct_close(&c);
	free(all);
	free(buf);
}

/* Log lines at the default level about peers that break the protocol. */
static void noise(int rank)
{
	enum { UNKNOWN_PEERS = 2000 };
	struct ct c;
	struct ct_name n;
	char nonsense[32];
	int lines = 0, counted = 0, total = 0;

	(void)rank;
	ct_keep_log("warn");
	memset(nonsense, 0xff, sizeof nonsense);
	n = open_manual(&c);
	for (int i = 0; i <= UNKNOWN_PEERS; i++) {
		int s;

		if (i == UNKNOWN_PEERS)	/* the last one is logged again */
			ct_idle(&c, 1200);
		s = i % 2 && i < UNKNOWN_PEERS ? unknown_peer(&c, &n, 1 + i) : connection(&n);
		EQ(send(s, nonsense, sizeof nonsense, MSG_NOSIGNAL), sizeof nonsense);
		CHECK(is_cut_off(&c, s));
		close(s);
	}
	for (char *line = strtok(ct_log(), "\n"); line; line = strtok(NULL, "\n")) {
		char *left = strstr(line, " similar lines left out)"), *open = left ? strrchr(line, '(') : NULL;

		CHECK(!strstr(line, "panic"));
		lines++;
		total++;
		if (left && open && open < left) {
			counted++;
			total += atoi(open + 1);
		}
	}
	if (lines == 0 || lines > 100)
		FAIL("%d lines were printed", lines);
	CHECK(counted > 0 && total > UNKNOWN_PEERS / 2);
	ct_close(&c);
}

/* A region is closed, and its memory gone, while a peer takes its time to read it. */
static void closed_early(int rank)
{
	enum { SIZE = 8 << 20 };
	struct ct c;
	struct ct_name n;
	struct fid_mr *mr;
	struct position all = { 0, SIZE, KEY }, some = { 100, 50, KEY };
	char *region = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), got[8];
	unsigned char b[64], *answer = malloc(SIZE + 16);
	int s;

	(void)rank;
	CHECK(region != MAP_FAILED);
	n = open_listener(&c, FI_MSG | FI_TAGGED | FI_RMA, NULL, NULL);
	OK(fi_mr_reg(c.domain, region, SIZE, FI_REMOTE_READ, 0, KEY, 0, &mr, NULL));
	ct_fill(region, SIZE, 3);
	s = unknown_peer(&c, &n, 1);
	/* one that is under way, and one that waits behind it */
	shout(&c, s, b, frame(b, (struct frame){ .op = READ_REQ, .position = &all }));
	shout(&c, s, b, frame(b, (struct frame){ .op = READ_REQ, .position = &some }));
	ct_idle(&c, 100);
	OK(fi_close(&mr->fid));
	CHECK(!munmap(region, SIZE));
	EQ(take(&c, s, answer, SIZE + 16), SIZE + 16);
	CHECK(ct_same(answer + 16, SIZE, 3));
	EQ(take(&c, s, answer, 50 + 16), 50 + 16);
	for (int i = 0; i < 50; i++)
		EQ(answer[16 + i], ct_byte(100 + i, 3));
	/* the connection goes on */
	OK(fi_trecv(c.ep, got, 8, NULL, FI_ADDR_UNSPEC, 4, 0, CTX(1)));
	shout(&c, s, b, frame(b, (struct frame){ TAG, .tag = 4, .body = 5 }) + 5);
	ct_recvd(&c, CTX(1), 5);
	/* and later peers are refused, as ever */
	shout(&c, s, b, frame(b, (struct frame){ .op = READ_REQ, .position = &some }));
	CHECK(is_cut_off(&c, s));
	close(s);
	free(answer);
	ct_close(&c);
}

/* Sends a HELLO as a process of this number and random number, 0 for one without; returns 1 if it is accepted. */
static int let_in(struct ct *c, int s, int port, uint32_t instance)
{
	unsigned char b[40] = { 3, 0, 0, 8 };

	if (instance) {
		memcpy(b + 12, &instance, 4);
		memcpy(b + 16, "ofi-rs?\1", 8);
	}
	b[24] = 1;
	b[32] = 1;
	b[34] = port >> 8;
	b[35] = port;
	b[39] = 1;
	EQ(send(s, b, sizeof b, MSG_NOSIGNAL), sizeof b);
	EQ(take(c, s, b, 32), 32);
	CHECK(b[1] == 1 || b[1] == 6);
	return b[1] == 1;
}
/* A peer that has the number of the one before it, as in a container. */
static void restarted(int rank)
{
	struct ct c;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	int first = connection(&n), again = connection(&n), next = connection(&n);

	(void)rank;
	CHECK(let_in(&c, first, 7, 111));
	CHECK(!let_in(&c, again, 7, 111));
	CHECK(let_in(&c, next, 7, 222));
	CHECK(take(&c, first, (char[40]){ 0 }, 40) < 40);
	close(first);
	close(again);
	close(next);
	ct_close(&c);
}
/* A peer with the protocol of upstream libfabric whose host stopped without closing, and came back. */
static void vanished(int rank)
{
	struct ct c;
	struct ct_name n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	int first = connection(&n), on = 1, s, in = 0;

	(void)rank;
	CHECK(let_in(&c, first, 7, 0));
	ct_idle(&c, 20);
	/* closed like this it sends nothing: the system has forgotten it */
	if (setsockopt(first, IPPROTO_TCP, TCP_REPAIR, &on, sizeof on))
		SKIP_HERE("no right to lose a connection (TCP_REPAIR): %s", strerror(errno));
	close(first);
	while (!in) {
		s = connection(&n);
		in = let_in(&c, s, 7, 0);
		close(s);
		ct_idle(&c, 50);
	}
	ct_close(&c);
}

/* Nothing came for a receive that is posted. */
static void nothing_comes(struct ct *c)
{
	struct fi_cq_tagged_entry e;

	for (int64_t end = ct_ms() + 200; ct_ms() < end; ct_nap(1))
		EQ(fi_cq_read(c->rx, &e, 1), -FI_EAGAIN);
}
static void invited(int rank)
{
	struct ct c, d = { .o.caps = FI_MSG | FI_TAGGED };
	unsigned char b[64] = { 0 }, in[8];
	struct ct_name n, own;
	fi_addr_t who;
	int s, early;
	size_t len;

	(void)rank;
	setenv("FI_TCP_PEERS", "av", 1);
	n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	own = ct_open_rdm(&d, NULL);
	ct_insert(&d, &n);
	OK(fi_trecv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ull, CTX(1)));
	/* an unknown peer is not answered, and may not send before that */
	s = connection(&n);
	say_hello(s, 77);
	nothing_comes(&c);
	EQ(recv(s, b, 1, MSG_DONTWAIT), -1);
	EQ(errno, EAGAIN);
	early = connection(&n);
	say_hello(early, 78);
	nothing_comes(&c);
	len = frame(b, (struct frame){ .op = TAG, .tag = 5, .body = 4 });
	shout(&c, early, b, len + 4);
	CHECK(is_cut_off(&c, early));
	/* messages of a peer are received once it is in the address vector */
	POST(&d, fi_tsend(d.ep, "hello", 5, NULL, 0, 6, CTX(2)));
	for (int i = 0; i < 20; i++) {
		ct_progress(&d);
		ct_idle(&c, 10);
	}
	nothing_comes(&c);
	who = ct_insert(&c, &own);
	while (fi_cq_readfrom(c.rx, &(struct fi_cq_tagged_entry){ 0 }, 1, &(fi_addr_t){ 0 }) == -FI_EAGAIN)
		ct_progress(&d);
	EQ(memcmp(in, "hello", 5), 0);
	ct_sent(&d, CTX(2));
	/* and until it is taken out */
	OK(fi_trecv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ull, CTX(3)));
	OK(fi_av_remove(c.av, &who, 1, 0));
	ct_idle(&d, 20);
	POST(&d, fi_tsend(d.ep, "again", 5, NULL, 0, 6, CTX(4)));
	for (int i = 0; i < 20; i++) {
		ct_progress(&d);
		ct_idle(&c, 10);
	}
	nothing_comes(&c);
	ct_insert(&c, &own);
	while (fi_cq_read(c.rx, &(struct fi_cq_tagged_entry){ 0 }, 1) == -FI_EAGAIN)
		ct_progress(&d);
	EQ(memcmp(in, "again", 5), 0);
	EQ(recv(s, b, 1, MSG_DONTWAIT), -1);
	close(s);
	close(early);
	ct_close(&d);
	ct_close(&c);
}
static void elsewhere(int rank)
{
	struct ct c;
	struct ct_name n;
	uint32_t event;
	char in[256];
	int s;

	(void)rank;
	setenv("FI_TCP_PEERS", "192.0.2.0/24,2001:db8::/32", 1);
	if (ct_type == FI_EP_MSG) {
		memset(&c, 0, sizeof c);
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
	} else {
		n = open_listener(&c, FI_MSG | FI_TAGGED, NULL, NULL);
	}
	s = connection(&n);
	say_hello(s, 77);
	while (recv(s, in, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN) {
		if (c.eq)
			EQ(fi_eq_read(c.eq, &event, in, sizeof in, 0), -FI_EAGAIN);
		ct_idle(&c, 5);
	}
	close(s);
	ct_close(&c);
}
static void whom(int rank)
{
	struct ct_opt o = { 0 };
	struct fid_fabric *f;
	struct fid_domain *d;
	struct fi_info *i;

	(void)rank;
	if (ct_is_rxm())
		SKIP("a parameter of tcp's");
	setenv("FI_TCP_PEERS", "av,localhost", 1);
	ct_ip_only();
	i = ct_getinfo(&o, NULL, NULL, 0);
	OK(fi_fabric(i->fabric_attr, &f, NULL));
	EQ(fi_domain(f, i, &d, NULL), -FI_EINVAL);
	OK(fi_close(&f->fid));
	fi_freeinfo(i);
}

static const struct ct_test tests[] = {
	{ "a write is reported only with the key of a region, even without bytes", unkeyed_data, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "peers read and write memory only as the endpoint's capabilities permit", targets, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "an announcement larger than the memory ends at most its own connection", no_memory, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "unknown peers can leave few messages, and take no space from known peers", unwanted, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "messages of an unknown peer are received after it disconnects", last_words, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "unknown peers do not use up descriptors, with any names and target addresses", crowd, CT_RDM | CT_REL | CT_CONN },
	{ "unanswered connection requests do not use up descriptors", requests, CT_MSG | CT_REL | CT_BARE | CT_CONN },
	{ "each call accepts a limited number of pending connections", rush, CT_REL | CT_CONN },
	{ "responses not read by an unknown peer take little memory and are not lost", accept_paused, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "a premature acknowledgement gets the peer only the message sent", hasty, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "unknown peers cause few log lines, with a count of the omitted ones", noise, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "a peer gets the data of its read though the region is closed meanwhile", closed_early, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "a restarted peer with the same process number replaces its predecessor", restarted, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "a peer of a restarted host is soon accepted although its old connection never closed", vanished, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "the end of a connection costs no more with many waiting messages of others", goodbye_costs, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "only peers in the address vector are accepted with FI_TCP_PEERS=av", invited, CT_SOLO | CT_RDM | CT_REL | CT_BARE | CT_CONN },
	{ "connections from other networks are refused (FI_TCP_PEERS=192.0.2.0/24)", elsewhere, CT_SOLO | CT_REL | CT_CONN },
	{ "no domain is opened without a valid list of permitted peers (FI_TCP_PEERS)", whom, CT_SOLO | CT_REL | CT_CONN },
};
CT_MAIN("unknown_peers", tests)
