/*
 * A peer that speaks the protocol of tcp, or that of ofi_rxd, up to a point: proper and broken
 * connection messages, then frames that are right, nearly right or nonsense,
 * cut into pieces at random and ended in every way a connection can end.
 * An honest pair talks over the same endpoint meanwhile and must not notice.
 *
 * CT_SEED=N repeats a run that failed (the reason names it).
 */
#include "ct.h"
#include <netinet/tcp.h>

enum { ROUNDS = 300, BUFFERED = 8, SPACE = 1 << 16, SMALL = 100, KEY = 5, REGION = 4096 };
#define HONEST 0x7e57000000000000ull	/* tags of the honest pair; no frame below starts like this */

static uint64_t seed, state;
static uint32_t rnd(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 33) % n;
}
static void put(unsigned char *o, uint64_t v, int bytes, int big)
{
	for (int i = 0; i < bytes; i++)
		o[big ? bytes - 1 - i : i] = (unsigned char)(v >> (8 * i));
}

/* One frame at o; its length. */
static size_t frame(unsigned char *o, size_t space, int big)
{
	static const uint64_t extreme[] = { 0, 1, 15, 17, 1ull << 31, 1ull << 32, 1ull << 63, ~0ull };
	static const unsigned char ops[] = { 0, 0, 0, 1, 1, 1, 5, 5, 6, 7, 2, 3, 4, 64, 64, 64, 65 };
	unsigned op = ops[rnd(sizeof ops)], flags = rnd(3) ? 0 : rnd(2) ? 1 : 4 | rnd(2);
	unsigned segments = op == 2 || op == 4 || op == 64 ? 1 + rnd(4) : 0;
	size_t head = 16 + (flags & 1 ? 8 : 0) + (op == 1 || op == 64 ? 8 : op == 5 ? 16 : 0) + 24 * segments;
	size_t body = op == 2 || op == 5 || op == 6 ? 0 : rnd(4) ? rnd(2 * SMALL) : rnd(20000), at = 16;
	uint64_t wanted = 0, len = 0;

	if (head + body > space)
		body = space - head;
	memset(o, 0, head);
	o[0] = 3;
	o[1] = op;
	put(o + 2, flags, 2, big);
	o[4] = op >= 5 && op < 64 ? 1 + rnd(3) : rnd(8) ? 0 : 2;
	o[5] = segments;
	o[6] = head;
	put(o + 8, head + body, 8, big);
	if (flags & 1)
		at += 8;
	if (op == 1 || op == 5) {
		put(o + at, rnd(4) ? 7 : rnd(1000), 8, big);
		at += 8;
	}
	if (op == 64) {
		/* operation and type; mostly as many bytes as the remote segments have */
		unsigned kind = rnd(3), what = kind == 2 ? 12 + rnd(7) : rnd(12);

		put(o + at, rnd(8) ? rnd(20) | what << 8 | kind << 16 : extreme[rnd(8)], 8, big);
		at += 8;
		len = rnd(4) ? 32 * rnd(20) : (uint64_t)rnd(1000);
		wanted = segments * len * (kind == 2 ? 2 : kind == 1 && what == 10 ? 0 : 1);
		if (rnd(8) && head + wanted <= space) {
			body = wanted;
			put(o + 8, head + body, 8, big);
		}
	}
	if (op == 5)
		put(o + at, rnd(2) ? rnd(100000) : extreme[rnd(8)], 8, big);
	for (unsigned i = 0; i < segments; i++, at += 24) {
		put(o + at, rnd(4) ? rnd(2 * REGION) : extreme[rnd(8)], 8, big);
		put(o + at + 8, op == 64 && rnd(8) ? len : rnd(4) ? (uint64_t)rnd(REGION / 2) : extreme[rnd(8)], 8, big);
		put(o + at + 16, rnd(8) ? KEY : rnd(100), 8, big);
	}
	for (size_t i = 0; i < body; i++)
		o[head + i] = rnd(256);
	if (rnd(4) == 0)
		put(o + 8, extreme[rnd(8)], 8, big);
	for (unsigned k = rnd(3) ? 0 : rnd(4); k > 0; k--)
		o[rnd(head < 16 ? head : 16)] = rnd(256);
	return head + body;
}

/* A connection message; its length. Mostly one that will be accepted. */
static size_t hello(unsigned char *o, int big, int port)
{
	size_t n = ct_type == FI_EP_RDM ? 8 : rnd(3) ? 0 : rnd(257);

	memset(o, 0, 32);
	o[0] = 3;
	put(o + 2, n, 2, 1);
	if (rnd(3))		/* a peer that supports atomic operations, or claims to */
		memcpy(o + 16, rnd(6) ? "ofi-rs?\1" : "ofi-rs!\377", 8);
	put(o + 24, 1, 8, big);
	for (size_t i = 0; i < n; i++)
		o[32 + i] = rnd(256);
	if (ct_type == FI_EP_RDM) {
		o[32] = rnd(4) ? 1 : rnd(256);
		o[33] = 0;
		/* any peer except the two honest ones */
		put(o + 34, port, 2, 1);
	}
	if (rnd(6) == 0)
		o[rnd(32 + n)] = rnd(256);
	return 32 + n;
}

static void attack(const struct sockaddr_in *to, int port, int *buffered)
{
	static unsigned char b[SPACE];
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, big = rnd(4) == 0, how = rnd(4);
	struct linger reset = { 1, 0 };
	size_t n, frames = rnd(8) ? rnd(20) : 0, done = 0, first;

	CHECK(s >= 0);
	CHECK(!connect(s, (const void *)to, sizeof *to));
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	n = first = hello(b, big, port);
	while (frames-- > 0 && SPACE - n > 1000)
		n += frame(b + n, SPACE - n, big);
	if (rnd(5) == 0)
		n -= rnd(n);
	while (done < n) {
		size_t piece = done < first && rnd(2) ? first - done : done < 600 && rnd(8) ? 1 + rnd(40) : n - done;
		ssize_t r;

		if (piece > n - done)
			piece = n - done;
		r = send(s, b + done, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (r < 0)
			break;		/* disconnected, or no reader: fine */
		done += r;
		if (rnd(6) == 0)
			ct_nap(1);
	}
	if (how == 0)
		setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
	if (how <= 1) {
		close(s);
		return;
	}
	if (how == 2)
		shutdown(s, SHUT_WR);
	one = rnd(BUFFERED);		/* stays, silent, for a while */
	if (buffered[one] >= 0)
		close(buffered[one]);
	buffered[one] = s;
}

/* One packet of ofi_rxd at o; its length. */
static size_t packet(unsigned char *o, int port)
{
	static const uint64_t extreme[] = { 0, 1, 127, 128, 1ull << 31, 1ull << 32, 1ull << 63, ~0ull };
	static const unsigned char types[] = { 0, 0, 1, 1, 2, 4, 6, 7, 8, 9, 9, 9, 10, 11, 11, 12, 12, 13, 14, 3, 64, 255 };
	unsigned type = types[rnd(sizeof types)], flags = rnd(3) ? rnd(2) * 32 : rnd(128);
	size_t n = 16;

	memset(o, 0, 1472);
	o[0] = rnd(20) ? 2 : rnd(256);
	o[1] = type;
	if (type == 1 && rnd(8))
		flags |= 16;
	put(o + 2, flags, 2, 0);
	put(o + 4, rnd(4) ? rnd(6) : extreme[rnd(8)], 4, 0);
	put(o + 8, rnd(4) ? rnd(40) : extreme[rnd(8)], 8, 0);
	if (type == 9) {		/* a handshake: the own index, and where from */
		struct sockaddr_in a = { .sin_family = rnd(8) ? AF_INET : rnd(256), .sin_port = htons(port) };

		a.sin_addr.s_addr = rnd(4) ? htonl(INADDR_LOOPBACK) : htonl(rnd(~0u));
		put(o + 16, rnd(4) ? 1 + rnd(5) : extreme[rnd(8)], 8, 0);
		memcpy(o + 24, &a, sizeof a);
		if (rnd(2))		/* as one of this library */
			memcpy(o + 72, "ofi-rxd\1", 8), put(o + 80, rnd(3), 8, 0), flags = rnd(2) * 512;
		n = 88;
	} else if (type == 10) {
		put(o + 16, rnd(4) ? rnd(5) : extreme[rnd(8)], 8, 0);
		put(o + 24, rnd(4) ? 1 + rnd(5) : extreme[rnd(8)], 8, 0);
		n = 32;
	} else if (type >= 11 && type <= 13) {
		put(o + 16, rnd(2) ? rnd(8) : rnd(~0u), 4, 0);
		put(o + 20, rnd(2) ? rnd(200) : rnd(~0u), 4, 0);
		put(o + 24, rnd(2) ? rnd(8) : extreme[rnd(8)], 8, 0);
		n = 32 + (type == 11 ? 0 : rnd(1441));
	} else if (type < 9) {
		if (flags & 16)
			put(o + n, rnd(4) ? 7 : rnd(1000), 8, 0), n += 8;
		if (flags & 1)
			n += 8;
		if (!(flags & 32) || type == 2 || type > 6) {
			put(o + n, rnd(2) ? rnd(5000) : extreme[rnd(8)], 8, 0);
			put(o + n + 8, rnd(2) ? rnd(5) : extreme[rnd(8)], 8, 0);
			put(o + n + 16, rnd(~0u), 4, 0);
			o[n + 20] = rnd(3) ? 1 : rnd(256);
			n += 24;
		}
		if (type >= 2) {
			put(o + n, rnd(2) ? rnd(2 * REGION) : extreme[rnd(8)], 8, 0);
			put(o + n + 8, rnd(2) ? rnd(2 * REGION) : extreme[rnd(8)], 8, 0);
			put(o + n + 16, rnd(8) ? KEY : rnd(100), 8, 0);
			n += 24;
		}
		if (type >= 6) {
			put(o + n, rnd(30), 4, 0);
			put(o + n + 4, rnd(30), 4, 0);
			n += 8;
		}
		n += rnd(400);
	}
	if (type != 9 && type != 11 && rnd(3) == 0) {	/* an acknowledgement behind the data */
		put(o + n, rnd(4) ? rnd(40) : extreme[rnd(8)], 8, 0);
		put(o + n + 8, rnd(2) ? rnd(200) : rnd(~0u), 4, 0);
		n += 12;
		flags |= 512;
	}
	put(o + 2, flags, 2, 0);
	if (rnd(8) == 0)
		n = rnd(n + 1);
	if (rnd(6) == 0)
		o[rnd(n + 1)] = rnd(256);
	return n;
}
/* The same for a sender of packets, from several addresses, with its own or a forged name. */
static void attack_with_packets(const struct sockaddr_in *to, int port, int *buffered)
{
	static unsigned char b[1600];
	int *s = &buffered[rnd(BUFFERED)];
	struct sockaddr_in me = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof me;

	if (*s < 0 || rnd(20) == 0) {
		if (*s >= 0)
			close(*s);
		CHECK((*s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
		CHECK(!bind(*s, (void *)&me, sizeof me));
	}
	CHECK(!getsockname(*s, (void *)&me, &len));
	for (int n = 1 + rnd(100); n > 0; n--)
		(void)!sendto(*s, b, packet(b, rnd(4) ? ntohs(me.sin_port) : port), MSG_DONTWAIT, (const void *)to, sizeof *to);
	if (rnd(6) == 0)
		ct_nap(1);
}

static char space[BUFFERED + 1][4][SMALL];

/* Receives for messages of the hostile peer. */
static void bait(struct fid_ep *ep, char (*b)[SMALL])
{
	(void)fi_recv(ep, b[0], SMALL, NULL, FI_ADDR_UNSPEC, CTX(1));
	(void)fi_trecv(ep, b[1], SMALL, NULL, FI_ADDR_UNSPEC, 7, 0, CTX(2));
	(void)fi_trecv(ep, b[2], SMALL, NULL, FI_ADDR_UNSPEC, 0, 1023, CTX(2));
}

static struct fid_ep *connections[BUFFERED];

/* MSG: accepts every connection, and closes the oldest one. */
static void doorman(struct ct *c)
{
	static unsigned next;
	struct { struct fi_eq_cm_entry e; char d[512]; } x;
	struct fi_eq_err_entry err = { 0 };
	uint32_t ev;
	ssize_t r = fi_eq_read(c->eq, &ev, &x, sizeof x, 0);

	if (r == -FI_EAVAIL)
		EQ(fi_eq_readerr(c->eq, &err, 0), sizeof err);
	if (r < 0 || ev != FI_CONNREQ)
		return;
	struct fid_ep **ep = &connections[next++ % BUFFERED];
	if (*ep)
		OK(fi_close(&(*ep)->fid));
	OK(fi_endpoint(c->domain, x.e.info, ep, c));
	OK(fi_ep_bind(*ep, &c->eq->fid, 0));
	OK(fi_ep_bind(*ep, &c->tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(*ep, &c->rx->fid, FI_RECV));
	OK(fi_enable(*ep));
	bait(*ep, space[ep - connections]);
	(void)fi_accept(*ep, NULL, 0);	/* it may be gone already */
	fi_freeinfo(x.e.info);
}

static void victim(struct ct *c)
{
	static char b[2 * SMALL];
	uint64_t honest = 0;
	char done;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	OK(fi_trecv(c->ep, b, sizeof b, NULL, c->peer, HONEST, 0, CTX(9)));
	bait(c->ep, space[BUFFERED]);
	while (recv(ct_sync, &done, 1, MSG_DONTWAIT) != 1) {
		ssize_t r = fi_cq_read(c->rx, &e, 1);

		if (r == -FI_EAVAIL) {
			memset(&err, 0, sizeof err);
			EQ(fi_cq_readerr(c->rx, &err, 0), 1);
			CHECK(err.err > 0 && err.op_context != CTX(9));
			e.op_context = err.op_context;
		} else if (r != 1) {
			EQ(r, -FI_EAGAIN);
			if (c->eq)
				doorman(c);
			while (fi_cq_read(c->tx, &e, 1) == 1)
				;
			sched_yield();
			continue;
		}
		if (e.op_context == CTX(9)) {
			EQ(e.len, sizeof b);
			CHECK(ct_same(b, sizeof b, honest));
			POST(c, fi_tinject(c->ep, b, 64, c->peer, HONEST | ++honest));
			OK(fi_trecv(c->ep, b, sizeof b, NULL, c->peer, HONEST | honest, 0, CTX(9)));
		} else if (ct_type == FI_EP_RDM) {
			if (e.op_context == CTX(1))
				OK(fi_recv(c->ep, space[BUFFERED][0], SMALL, NULL, FI_ADDR_UNSPEC, CTX(1)));
			else
				OK(fi_trecv(c->ep, space[BUFFERED][1], SMALL, NULL, FI_ADDR_UNSPEC, 7, 0, CTX(2)));
		}
	}
	CHECK(honest > ROUNDS / 4);
	for (int i = 0; i < BUFFERED; i++)
		if (connections[i])
			OK(fi_close(&connections[i]->fid));
}

static void hostile(int rank, uint64_t caps)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | caps };
	struct fid_mr *mr = NULL;
	static char region[3 * REGION];
	struct ct c;
	struct ct_name mine, theirs;
	struct sockaddr_in to;
	static char b[2 * SMALL];
	int buffered[BUFFERED], own, port;

	ct_ip_only();
	seed = state = getenv("CT_SEED") ? strtoull(getenv("CT_SEED"), NULL, 0) : (uint64_t)ct_ms() << 8 | 1;
	ct_open(&c, &o);
	mine = ct_getname(rank == 0 && c.pep ? &c.pep->fid : &c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		memset(region, 0x55, sizeof region);
		if (caps & FI_RMA)	/* the middle of it is all they may touch */
			OK(fi_mr_reg(c.domain, region + REGION, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
		victim(&c);
		for (size_t i = 0; i < REGION; i++)
			CHECK(region[i] == 0x55 && region[2 * REGION + i] == 0x55);
		if (mr)
			OK(fi_close(&mr->fid));
	} else {
		memcpy(&to, theirs.b, sizeof to);
		memcpy(&own, mine.b, sizeof own);
		own = ntohs(((struct sockaddr_in *)mine.b)->sin_port);
		memset(buffered, 0xff, sizeof buffered);
		for (int i = 0, honest = 0; i < ROUNDS; i++) {
			do
				port = 1 + rnd(65535);
			while (port == own || port == ntohs(to.sin_port));
			if (ct_is_rxd())	/* uses the honest peer's name, too */
				attack_with_packets(&to, rnd(2) ? own : port, buffered);
			else
				attack(&to, port, buffered);
			if (i % 3)
				continue;
			ct_fill(b, sizeof b, honest);
			POST(&c, fi_tsend(c.ep, b, sizeof b, NULL, c.peer, HONEST | honest, CTX(3)));
			ct_sent(&c, CTX(3));
			POST(&c, fi_trecv(c.ep, b, sizeof b, NULL, c.peer, HONEST | (honest + 1), 0, CTX(4)));
			ct_recvd(&c, CTX(4), 64);
			if (!ct_same(b, 64, honest))
				FAIL("wrong bytes in round %d of CT_SEED=%llu", i, (unsigned long long)seed);
			honest++;
		}
		for (int i = 0; i < BUFFERED; i++)
			if (buffered[i] >= 0)
				close(buffered[i]);
		ct_send_oob("d", 1);
	}
	ct_done(&c);
}

static void hostile_peer(int rank) { hostile(rank, 0); }
static void hostile_rma(int rank) { hostile(rank, FI_RMA); }
static void hostile_atomic(int rank) { hostile(rank, FI_RMA | FI_ATOMIC); }

static const struct ct_test tests[] = {
	{ "a peer breaking the protocol in every way affects no other peer", hostile_peer, CT_REL },
	{ "a peer breaking the protocol of remote access changes only memory it may access", hostile_rma, CT_REL },
	{ "a peer breaking the protocol of atomics changes only memory it may access", hostile_atomic, CT_REL },
};
CT_MAIN("hostile", tests)
