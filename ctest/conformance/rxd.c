/*
 * Hand-written peers of ofi_rxd over udp: their permitted actions, and bounds on packets, memory and state
 * that they can cause at an endpoint. They are sockets of the test.
 */
#include "ct.h"
#include <malloc.h>

enum { MSG = 0, TAGGED = 1, READ_REQ = 2, WRITE = 4, RTS = 9, CTS = 10, ACK = 11, DATA_READ = 13, NO_OP = 14 };
enum { WITH_TAG = 16, INLINE = 32, DELIVER = 256, CARRIES = 512 };
enum { KEY = 3, SPACE = 65536, WINDOW = 128, BEYOND = 64 };

/* A peer: its socket and address, its index at the endpoint under test, and its next number. */
struct raw { int s; struct sockaddr_in at; uint32_t index; uint64_t seq; };

static void put16(unsigned char *o, uint16_t v) { memcpy(o, &v, 2); }
static void put32(unsigned char *o, uint32_t v) { memcpy(o, &v, 4); }
static void put64(unsigned char *o, uint64_t v) { memcpy(o, &v, 8); }
static uint32_t get32(const unsigned char *o) { uint32_t v; memcpy(&v, o, 4); return v; }
static uint64_t get64(const unsigned char *o) { uint64_t v; memcpy(&v, o, 8); return v; }

static struct sockaddr_in at(const struct ct_name *n)
{
	struct sockaddr_in a;

	memcpy(&a, n->b, sizeof a);
	return a;
}
static struct raw raw_open(void)
{
	struct raw r = { .at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof r.at;
	int space = 1 << 22;

	CHECK((r.s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
	CHECK(!bind(r.s, (void *)&r.at, sizeof r.at) && !getsockname(r.s, (void *)&r.at, &len));
	setsockopt(r.s, SOL_SOCKET, SO_RCVBUF, &space, sizeof space);
	return r;
}
static void raw_send(const struct raw *r, const struct ct_name *to, const void *b, size_t n)
{
	struct sockaddr_in a = at(to);

	EQ(sendto(r->s, b, n, 0, (void *)&a, sizeof a), n);
}
/* The next packet that came to a peer, with progress of the endpoint meanwhile; 0 if none came for a while. */
static size_t raw_take(struct ct *c, const struct raw *r, unsigned char *b)
{
	for (int64_t end = ct_ms() + 200; ct_ms() < end;) {
		ssize_t n = recv(r->s, b, SPACE, MSG_DONTWAIT);

		if (n > 0)
			return n;
		ct_progress(c);
	}
	return 0;
}
static void base(unsigned char *o, int type, int flags, uint32_t peer, uint64_t seq)
{
	o[0] = 2;
	o[1] = type;
	put16(o + 2, flags);
	put32(o + 4, peer);
	put64(o + 8, seq);
}
/* A request to get to know the endpoint: from r, in the name of this address, as a peer of this library if it has a nonce. */
static void ask(const struct raw *r, const struct ct_name *to, const struct sockaddr_in *name, uint64_t index, uint64_t nonce)
{
	unsigned char b[88] = { 0 };

	base(b, RTS, nonce ? CARRIES : 0, 0, 0);
	put64(b + 16, index);
	memcpy(b + 24, name, sizeof *name);
	if (nonce)
		memcpy(b + 72, "ofi-rxd\1", 8), put64(b + 80, nonce);
	raw_send(r, to, b, sizeof b);
}
/* Gets to know the endpoint. */
static void synchronize(struct ct *c, struct raw *r, const struct ct_name *to, uint64_t nonce)
{
	unsigned char b[SPACE];
	size_t n;

	ask(r, to, &r->at, 7, nonce);
	do
		CHECK((n = raw_take(c, r, b)));
	while (b[1] != CTS);
	CHECK(n == 32 || (nonce && n == 48));
	EQ(get64(b + 16), 7);
	r->index = get64(b + 24);
	r->seq = 0;
}
/* A packet of no effect. */
static void no_op(struct raw *r, const struct ct_name *to)
{
	unsigned char b[16];

	base(b, NO_OP, 0, r->index, r->seq++);
	raw_send(r, to, b, sizeof b);
}
/* The first packet of an operation with n bytes of so many; of one on memory, with this key. */
static size_t op(unsigned char *b, int type, int flags, uint32_t index, uint64_t seq, uint64_t total, uint64_t packets,
		 uint64_t key, size_t n)
{
	size_t at = 16;

	base(b, type, flags, index, seq);
	if (flags & WITH_TAG)
		put64(b + at, 5), at += 8;
	memset(b + at, 0, 24);
	put64(b + at, total);
	put64(b + at + 8, packets);
	put32(b + at + 16, seq);
	b[at + 20] = type == READ_REQ || type == WRITE;
	at += 24;
	if (type == READ_REQ || type == WRITE) {
		put64(b + at, 0);
		put64(b + at + 8, total);
		put64(b + at + 16, key);
		at += 24;
	}
	memset(b + at, 'x', n);
	return at + n;
}
static void start(struct raw *r, const struct ct_name *to, int type, int flags, uint64_t total, uint64_t key, size_t n)
{
	unsigned char b[SPACE];

	raw_send(r, to, b, op(b, type, flags, r->index, r->seq, total, 1, key, n));
	r->seq++;
}
static void acknowledge(const struct raw *r, const struct ct_name *to, uint64_t next, uint32_t window)
{
	unsigned char b[32] = { 0 };

	base(b, ACK, 0, r->index, next);
	put32(b + 20, window);
	raw_send(r, to, b, sizeof b);
}
/* Values unknown to peers but possible to guess: indices following on one, and small ones. */
static uint32_t guess(uint32_t index, int i)
{
	uint32_t next = (((index - 1) >> 20) + 1) << 20;

	return i < 64 ? (uint32_t)i : i < 128 ? index + i - 96 : next + ((index - 1) & 0xfffff) + i - 160;
}

static void needs_rxd(void)
{
	if (!ct_is_rxd())
		SKIP("these peers speak the protocol of ofi_rxd");
	ct_ip_only();
}
/* An endpoint, and a region of so many bytes that peers may read and write. */
static struct fid_mr *mr;
static struct ct_name open_for_peers(struct ct *c, uint64_t caps, size_t n)
{
	static const int mode = 0;
	struct ct_name name;

	needs_rxd();
	memset(c, 0, sizeof *c);
	c->o.caps = caps;
	c->o.mr_mode = &mode;
	name = ct_open_rdm(c, NULL);
	if (n)
		OK(fi_mr_reg(c->domain, mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), n,
			     FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	return name;
}
static void end(struct ct *c)
{
	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
	if (mr)
		OK(fi_close(&mr->fid));
	mr = NULL;
	ct_close(c);
}
static fi_addr_t insert(struct ct *c, const struct sockaddr_in *a)
{
	struct ct_name n = { .n = sizeof *a };

	memcpy(n.b, a, sizeof *a);
	return ct_insert(c, &n);
}

/* A third party named in a peer's request gets less than the peer sent, and no more for any later action of the peer. */
static void third_party(int rank)
{
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG | FI_TAGGED | FI_RMA, 1 << 20);
	struct raw a = raw_open(), third = raw_open();
	unsigned char b[SPACE];
	size_t got = 0, packets = 0, len, asked = 88;

	(void)rank;
	synchronize(&c, &a, &n, 0);
	ask(&a, &n, &third.at, 9, 0);
	ct_idle(&c, 20);
	for (int i = 0; i < 192; i++) {
		raw_send(&a, &n, b, op(b, READ_REQ, 0, guess(a.index, i), 0, 1 << 20, 1, KEY, 0));
		raw_send(&a, &n, b, op(b, TAGGED, WITH_TAG, guess(a.index, i), 0, 100, 2, 0, 1));
	}
	while ((len = raw_take(&c, &third, b))) {
		got += len;
		packets++;
		/* in its name */
		for (int i = 0; i < 192; i++) {
			uint32_t index = a.index;

			a.index = guess(index, i);
			acknowledge(&a, &n, packets, WINDOW);
			a.index = index;
		}
	}
	if (packets > 1 || got > asked)
		FAIL("%zu packets of %zu bytes for a request of %zu", packets, got, asked);
}
/* Indices reveal nothing about other peers. */
static void indices(int rank)
{
	enum { N = 200 };
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG, 0);
	uint32_t index[N];

	(void)rank;
	for (int i = 0; i < N; i++) {
		struct raw r = raw_open();	/* stays open: no other is to have its address */

		synchronize(&c, &r, &n, i % 2);
		index[i] = r.index;
		CHECK(index[i]);
		for (int k = 0; k < i; k++)
			CHECK(index[i] != index[k]);
	}
	for (int bit = 0; bit < 32; bit++) {
		int ones = 0, changes = 0;

		for (int i = 0; i < N; i++) {
			ones += index[i] >> bit & 1;
			changes += i && (index[i] ^ index[i - 1]) >> bit & 1;
		}
		/* more than eight standard deviations off the mean are no accident */
		if (ones < 40 || ones > 160 || changes < 40 || changes > 160)
			FAIL("bit %d of %d indices: %d ones, %d changes", bit, N, ones, changes);
	}
	end(&c);
}
/* fi_recv(3): "If the endpoint has been configured with FI_DIRECTED_RECV … the message must come from that address" */
static void directed(int rank)
{
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV, 0);
	struct raw a = raw_open(), peer = raw_open();
	fi_addr_t name = insert(&c, &peer.at);
	unsigned char b[SPACE];
	char space[100];

	(void)rank;
	OK(fi_trecv(c.ep, space, sizeof space, NULL, name, 5, 0, CTX(0)));
	synchronize(&c, &a, &n, 0);
	ask(&a, &n, &peer.at, 9, 0);
	ct_idle(&c, 20);
	start(&a, &n, TAGGED, WITH_TAG, 8, 0, 8);
	for (int i = 0; i < 192; i++)
		raw_send(&a, &n, b, op(b, TAGGED, WITH_TAG, guess(a.index, i), 0, 8, 1, 0, 8));
	NOTHING(&c, c.rx, 100);
	/* messages of the peer itself are received */
	synchronize(&c, &peer, &n, 0);
	start(&peer, &n, TAGGED, WITH_TAG, 8, 0, 8);
	ct_recvd(&c, CTX(0), 8);
	end(&c);
}
/* Two endpoints of this process send each other messages, and any sender may send requests in the name of each. */
static void named_before(int rank)
{
	struct ct v, w;
	struct raw a;

	(void)rank;
	for (uint64_t nonce = 0; nonce < 2; nonce++) {
		struct ct_name name[2] = { open_for_peers(&v, FI_MSG, 0), open_for_peers(&w, FI_MSG, 0) };
		struct ct *of[2] = { &v, &w };
		char in[2][100], out[2][100];
		struct sockaddr_in ws = at(&name[1]), vs = at(&name[0]);

		a = raw_open();
		v.peer = ct_insert(&v, &name[1]);
		w.peer = ct_insert(&w, &name[0]);
		for (int i = 0; i < 20; i++) {
			ask(&a, &name[0], &ws, 9, nonce);
			ct_idle(&v, 2);
			ct_idle(&w, 2);
			for (int k = 0; k < 2; k++) {
				ct_fill(out[k], 100, i + k);
				OK(fi_recv(of[k]->ep, in[k], 100, NULL, FI_ADDR_UNSPEC, CTX(k)));
				POST(of[k], fi_send(of[k]->ep, out[k], 100, NULL, of[k]->peer, CTX(2 + k)));
			}
			for (int k = 0, done = 0; done < 4; k = !k) {
				struct fi_cq_tagged_entry e;
				struct fid_cq *cq[2] = { of[k]->tx, of[k]->rx };

				for (int q = 0; q < 2; q++) {
					ssize_t r = fi_cq_read(cq[q], &e, 1);

					if (r == 1)
						done++;
					else
						EQ(r, -FI_EAGAIN);
				}
			}
			CHECK(ct_same(in[0], 100, i + 1) && ct_same(in[1], 100, i));
			ask(&a, &name[1], &vs, 9, nonce);
		}
		close(a.s);
		ct_close(&v);
		ct_close(&w);
	}
}
/* The last acknowledgement at a peer, as how many packets are taken. */
static uint64_t taken(struct ct *c, const struct raw *r)
{
	unsigned char b[SPACE];
	uint64_t last = 0;

	while (raw_take(c, r, b))
		if (b[1] == ACK)
			last = get64(b + 8) + get32(b + 16);
	return last;
}
/* The number of accepted requests with unacknowledged refusals is at most a small multiple of the number in flight. */
static void rejections(int rank)
{
	enum { N = 20000 };
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG | FI_RMA, 4096);
	struct raw a = raw_open();
	uint64_t last;

	(void)rank;
	synchronize(&c, &a, &n, 11);
	for (int i = 0; i < N; i++) {
		start(&a, &n, WRITE, 0, 1, KEY + 1, 1);
		if (i % 100 == 0)
			ct_idle(&c, 1);
	}
	last = taken(&c, &a);
	if (last > 1000)
		FAIL("%lld requests are taken", (long long)last);
	end(&c);
}
/* The same for messages with a notification of their match to the sender. */
static void notices(int rank)
{
	enum { N = 5000 };
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG, 0);
	struct raw a = raw_open();
	struct fi_cq_tagged_entry e;
	static char space[8];
	int got = 0;

	(void)rank;
	synchronize(&c, &a, &n, 11);
	for (int i = 0, posted = 0; i < N; i++) {
		while (posted < N && !fi_recv(c.ep, space, sizeof space, NULL, FI_ADDR_UNSPEC, CTX(0)))
			posted++;
		start(&a, &n, MSG, DELIVER, 8, 0, 8);
		if (i % 100 == 0)
			ct_idle(&c, 1);
		while (fi_cq_read(c.rx, &e, 1) == 1)
			got++;
	}
	ct_idle(&c, 100);
	while (fi_cq_read(c.rx, &e, 1) == 1)
		got++;
	CHECK(got > 0);
	if (got > 1100)
		FAIL("%d messages are taken", got);
}
static size_t memory(void)
{
	struct mallinfo2 m = mallinfo2();

	return (m.uordblks + m.hblkhd) >> 20;
}
/* The same for reads with answers unacknowledged by unknown peers. */
static void answers(int rank)
{
	enum { PEERS = 40, READS = 256 };
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG | FI_RMA, 65536);
	size_t before = memory(), after;

	(void)rank;
	for (int i = 0; i < PEERS; i++) {
		struct raw a = raw_open();

		synchronize(&c, &a, &n, 0);
		for (int k = 0; k < READS; k++) {
			start(&a, &n, READ_REQ, 0, 65536, KEY, 0);
			if (k % 64 == 63)
				ct_idle(&c, 2);
		}
		close(a.s);
	}
	after = memory();
	if (after > before + 48)
		FAIL("%zu MiB are held", after - before);
}
/* However many packets a peer would take, no more are under way than the endpoint has room for. */
static void wide_window(int rank)
{
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG | FI_RMA, 4 << 20);
	struct raw a = raw_open();
	unsigned char b[SPACE];
	uint64_t next = 0;

	(void)rank;
	synchronize(&c, &a, &n, 0);
	start(&a, &n, READ_REQ, 0, 4 << 20, KEY, 0);
	for (int i = 0; i < 3; i++) {
		uint64_t acked = next;

		acknowledge(&a, &n, acked, 1 << 20);
		while (raw_take(&c, &a, b))
			if (b[1] == DATA_READ && get64(b + 8) >= next)
				next = get64(b + 8) + 1;
		CHECK(next > acked);
		if (next > acked + WINDOW + BEYOND)
			FAIL("%lld packets are under way", (long long)(next - acked));
	}
}
/*
 * fi_cq(3): FI_DELIVERY_COMPLETE "Indicates that a completion should not be generated until an operation has been processed by the
 * destination endpoint(s)", FI_MATCH_COMPLETE "that a completion should be generated only after the operation has been matched with an
 * application specified buffer": a message that waits for its receive is delivered, and not matched.
 */
static void levels(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	struct ct c;
	char *b;

	needs_rxd();
	ct_open(&c, &o);
	b = ct_alloc(&c, 1 << 16);
	for (int i = 0; i < 4; i++) {
		size_t n = i < 2 ? 100 : 1 << 16;
		uint64_t level = i % 2 ? FI_MATCH_COMPLETE : FI_DELIVERY_COMPLETE;

		if (rank == 0) {
			ct_barrier(&c);
			POST(&c, fi_trecv(c.ep, b, n, ct_desc(b), c.peer, i, 0, CTX(i)));
			ct_recvd(&c, CTX(i), n);
			CHECK(ct_same(b, n, i));
		} else {
			struct iovec v = { b, n };
			struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .tag = i, .context = CTX(i) };

			ct_fill(b, n, i);
			POST(&c, fi_tsendmsg(c.ep, &m, FI_COMPLETION | level));
			if (level == FI_DELIVERY_COMPLETE) {
				ct_sent(&c, CTX(i));
				ct_barrier(&c);
			} else {
				NOTHING(&c, c.tx, 100);
				ct_barrier(&c);
				ct_sent(&c, CTX(i));
			}
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
/*
 * fi_cq(3): "error completions are generated for all operations, including those for which a completion was not requested (e.g.
 * inject transfers or when an endpoint is configured with FI_SELECTIVE_COMPLETION …)"
 */
static void failed_inject(int rank)
{
	struct ct c;
	struct ct_name n;
	struct raw a;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	fi_addr_t name;

	(void)rank;
	for (int selective = 0; selective < 2; selective++) {
		needs_rxd();
		memset(&c, 0, sizeof c);
		c.o.caps = FI_MSG;
		c.o.cq_flags = selective ? FI_SELECTIVE_COMPLETION : 0;
		n = ct_open_rdm(&c, NULL);
		a = raw_open();
		name = insert(&c, &a.at);
		synchronize(&c, &a, &n, 1);
		no_op(&a, &n);
		ct_idle(&c, 10);
		OK(fi_inject(c.ep, "lost", 4, name));
		/* another process at the same address */
		synchronize(&c, &a, &n, 2);
		no_op(&a, &n);
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECONNRESET);
		ct_close(&c);
		close(a.s);
	}
}
/* fi_endpoint(3): "Discarded operations will silently be dropped, with no completions reported." */
static void close_drops(int rank)
{
	struct ct c;
	struct ct_name n = open_for_peers(&c, FI_MSG, 0);
	struct raw a = raw_open();
	fi_addr_t name = insert(&c, &a.at);
	static char b[100];
	struct fi_cq_tagged_entry e;

	(void)rank;
	synchronize(&c, &a, &n, 1);
	no_op(&a, &n);
	ct_idle(&c, 10);
	OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(0)));
	OK(fi_send(c.ep, b, sizeof b, NULL, name, CTX(1)));
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	ERR(fi_cq_read(c.tx, &e, 1), FI_EAGAIN);
	ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
	ct_close(&c);
}
/* Injected messages, stored by the library, arrive although the endpoint is closed at once and the peer computes meanwhile. */
static void close_keeps(int rank)
{
	enum { N = 200 };
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c;
	char b[64];

	needs_rxd();
	ct_open(&c, &o);
	for (int i = 0; i < N; i++) {
		if (rank == 0) {
			ct_fill(b, sizeof b, i);
			POST(&c, fi_inject(c.ep, b, sizeof b, c.peer));
			continue;
		}
		if (i == 0)
			ct_nap(1500);
		OK(fi_recv(c.ep, b, sizeof b, NULL, c.peer, CTX(i)));
		ct_recvd(&c, CTX(i), sizeof b);
		CHECK(ct_same(b, sizeof b, i));
	}
	if (rank == 0) {
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
	}
	ct_done(&c);
}
/*
 * Peers with closed ports, one that the endpoint never received from and one that it knew: their host reports that for each
 * packet, and so messages to them need not be repeated for minutes.
 */
static void gone_peers(int rank)
{
	struct ct c;
	struct ct_name n;
	struct raw never, known;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	fi_addr_t to_never, to_known;

	(void)rank;
	n = open_for_peers(&c, FI_MSG, 0);
	never = raw_open();
	known = raw_open();
	to_never = insert(&c, &never.at);
	to_known = insert(&c, &known.at);
	synchronize(&c, &known, &n, 1);
	no_op(&known, &n);
	ct_idle(&c, 10);
	close(never.s);
	close(known.s);
	for (int i = 0; i < 2; i++) {
		OK(fi_send(c.ep, "lost", 4, NULL, i ? to_known : to_never, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECONNREFUSED);
	}
	ct_close(&c);
}
/* A peer that opens its port after its host has reported several times that it is closed is reached all the same. */
static void late_peer(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c, late;
	struct ct_name n;
	struct sockaddr_in at_late = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const char *service;
	char b[8] = "";

	(void)rank;
	needs_rxd();
	service = ct_lasting_port();
	at_late.sin_port = htons(atoi(service));
	memset(&c, 0, sizeof c);
	c.o = o;
	ct_open_rdm(&c, NULL);
	OK(fi_send(c.ep, "message", 8, NULL, insert(&c, &at_late), CTX(1)));
	ct_idle(&c, 1000);
	n = ct_open_at(&late, NULL, &o, service);
	EQ(((struct sockaddr_in *)n.b)->sin_port, at_late.sin_port);
	OK(fi_recv(late.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(2)));
	while (!b[0]) {
		ct_progress(&late);
		ct_progress(&c);
		ct_nap(1);
	}
	ct_recvd(&late, CTX(2), 8);
	ct_sent(&c, CTX(1));
	ct_close(&late);
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "a send to a closed port fails after seconds of reports from the host", gone_peers, CT_SOLO | CT_RDM | CT_BARE },
	{ "a peer opening its port late is reached although its host reported it closed", late_peer, CT_SOLO | CT_RDM },
	{ "a third party gets fewer bytes than a peer sends in its name", third_party, CT_SOLO | CT_RDM | CT_BARE },
	{ "the index assigned to a peer reveals nothing about the indices of others", indices, CT_SOLO | CT_RDM | CT_BARE },
	{ "a request in the name of another peer is not received as from that peer", directed, CT_SOLO | CT_RDM | CT_BARE },
	{ "requests in the names of peers do not block these peers", named_before, CT_SOLO | CT_RDM },
	{ "refusals not acknowledged by a peer are bounded", rejections, CT_SOLO | CT_RDM | CT_BARE },
	{ "receive notices not acknowledged by a peer are bounded", notices, CT_SOLO | CT_RDM | CT_BARE },
	{ "responses not acknowledged by unknown peers are bounded", answers, CT_SOLO | CT_RDM | CT_BARE },
	{ "a peer with an unlimited window gets no more packets at a time than others", wide_window, CT_SOLO | CT_RDM | CT_BARE },
	{ "a message is delivered before its receive is posted, and matched afterwards", levels, CT_RDM },
	{ "an injected message lost with its connection is reported", failed_inject, CT_SOLO | CT_RDM | CT_BARE },
	{ "outstanding operations of a closed endpoint leave no entries", close_drops, CT_SOLO | CT_RDM | CT_BARE },
	{ "messages injected before a close arrive at a computing peer", close_keeps, CT_RDM },
};
CT_MAIN("rxd", tests)
