/* fi_tagged(3): the match rule, unexpected messages, FI_PEEK, FI_CLAIM, FI_DISCARD. */
#include "ct.h"

static const struct ct_opt TAGGED = { .caps = FI_TAGGED };

static void tsend(struct ct *c, const void *b, size_t n, uint64_t tag, int i)
{
	POST(c, fi_tsend(c->ep, b, n, ct_desc(b), c->peer, tag, CTX(i)));
}
static void tsend_wait(struct ct *c, const void *b, size_t n, uint64_t tag, int i)
{
	tsend(c, b, n, tag, i);
	ct_sent(c, CTX(i));
}
static void trecv(struct ct *c, void *b, size_t n, uint64_t tag, uint64_t ignore, int i)
{
	POST(c, fi_trecv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, tag, ignore, CTX(i)));
}
/* fi_trecvmsg of one segment (or none). */
static void trecvmsg(struct ct *c, void *b, size_t n, uint64_t tag, uint64_t ignore, int i, uint64_t flags)
{
	struct iovec v = { b, n };
	void *d = ct_desc(b);
	struct fi_msg_tagged m = { .msg_iov = b ? &v : NULL, .desc = b ? &d : NULL, .iov_count = b ? 1 : 0,
		.addr = FI_ADDR_UNSPEC, .tag = tag, .ignore = ignore, .context = CTX(i) };

	POST(c, fi_trecvmsg(c->ep, &m, flags));
}
/* The receive named i completed with this length and tag. */
static struct fi_cq_tagged_entry got(struct ct *c, int i, size_t n, uint64_t tag)
{
	struct fi_cq_tagged_entry e = ct_recvd(c, CTX(i), n);

	EQ(e.tag, tag);
	CHECK(e.flags & FI_TAGGED);
	return e;
}
/* Peek until the message is there; each miss must be an FI_ENOMSG entry. */
static struct fi_cq_tagged_entry peek(struct ct *c, uint64_t tag, uint64_t ignore, int i, uint64_t flags)
{
	for (;;) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry err;

		trecvmsg(c, NULL, 0, tag, ignore, i, FI_PEEK | flags);
		if (ct_next(c, c->rx, &e, NULL, &err) == 1) {
			CHECK(e.op_context == CTX(i));
			return e;
		}
		EQ(err.err, FI_ENOMSG);
		CHECK(err.op_context == CTX(i));
		ct_nap(1);
	}
}

static void ignore_mask(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		trecv(&c, b, 64, 0xff00, 0x00ff, 0);			/* any low byte */
		trecv(&c, b + 64, 64, 0x1100, 0xff, 1);
		trecv(&c, b + 128, 64, ~0ull, 0, 2);			/* all bits set, exact */
		trecv(&c, b + 192, 64, 0xff55, 0xff, 3);		/* same match set as the first */
		trecv(&c, b + 256, 64, 0, ~0ull, 4);			/* everything */
		trecv(&c, b + 320, 64, 0x8000000000000000ull, 0, 5);
		ct_barrier(&c);
		got(&c, 2, 1, ~0ull);
		got(&c, 1, 2, 0x11aa);
		got(&c, 0, 3, 0xff12);
		got(&c, 3, 4, 0xff34);
		got(&c, 4, 5, 0x8000000000000000ull);	/* the wildcard was posted first */
		got(&c, 5, 6, 0x8000000000000000ull);
	} else {
		ct_barrier(&c);
		tsend_wait(&c, b, 1, ~0ull, 0);
		tsend_wait(&c, b, 2, 0x11aa, 1);
		tsend_wait(&c, b, 3, 0xff12, 2);
		tsend_wait(&c, b, 4, 0xff34, 3);
		tsend_wait(&c, b, 5, 0x8000000000000000ull, 4);
		tsend_wait(&c, b, 6, 0x8000000000000000ull, 5);
	}
	ct_done(&c);
}

static void posting_order(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		trecv(&c, b, 64, 1, 0, 0);
		trecv(&c, b, 64, 0, ~0ull, 1);
		trecv(&c, b, 64, 1, 0, 2);
		trecv(&c, b, 64, 2, 0, 3);
		trecv(&c, b, 64, 3, 1, 4);	/* 2 or 3 */
		trecv(&c, b, 64, 2, 0, 5);
		ct_barrier(&c);
		got(&c, 0, 1, 1);
		got(&c, 1, 2, 1);
		got(&c, 2, 3, 1);
		got(&c, 3, 4, 2);
		got(&c, 4, 5, 2);
		got(&c, 5, 6, 2);
	} else {
		ct_barrier(&c);
		for (int i = 0; i < 3; i++)
			tsend_wait(&c, b, 1 + i, 1, i);
		for (int i = 3; i < 6; i++)
			tsend_wait(&c, b, 1 + i, 2, i);
	}
	ct_done(&c);
}

/* Receives of mixed kinds against messages of mixed tags, checked by a model. */
static void random_match(int rank)
{
	enum { MAX = 2000, TAGS = 6 };
	struct ct c;
	char *b;
	uint32_t seed = 12345;
	static uint64_t rtag[MAX], rign[MAX], stag[MAX];
	static int expect[MAX];		/* message -> receive, or -1 */
	static char taken[MAX];
	int n, done = 0;

	ct_open(&c, &TAGGED);
	n = c.info->rx_attr->size < MAX ? (int)c.info->rx_attr->size : MAX;
	for (int i = 0; i < n; i++) {
		seed = seed * 1103515245 + 12345;
		stag[i] = (seed >> 16) % TAGS;
		seed = seed * 1103515245 + 12345;
		rtag[i] = (seed >> 16) % TAGS;
		rign[i] = (seed >> 20) % 5 == 0 ? ((seed >> 23) & 7) : 0;
	}
	for (int i = 0; i < n; i++) {
		expect[i] = -1;
		for (int j = 0; j < n && expect[i] < 0; j++)
			if (!taken[j] && (stag[i] & ~rign[j]) == (rtag[j] & ~rign[j])) {
				taken[j] = 1;
				expect[i] = j;
			}
	}
	b = ct_alloc(&c, n * 8);
	if (rank == 0) {
		for (int i = 0; i < n; i++)
			trecv(&c, b + i * 8, 8, rtag[i], rign[i], i);
		ct_barrier(&c);
		for (int i = 0; i < n; i++) {
			struct fi_cq_tagged_entry e = { 0 };

			if (expect[i] < 0)
				continue;
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(expect[i]));
			EQ(*(uint64_t *)(b + expect[i] * 8), i);
			done++;
		}
		CHECK(done > n / 2);
	} else {
		uint64_t *p = (void *)b;

		ct_barrier(&c);
		for (int i = 0; i < n; i++) {
			p[i] = i;
			if (expect[i] >= 0)	/* unmatched messages would only accumulate */
				tsend_wait(&c, &p[i], 8, stag[i], i);
		}
	}
	ct_done(&c);
}

static void unexpected_reverse(int rank, int count, size_t n)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, n * count);
	if (rank == 1) {
		for (int i = 0; i < count; i++) {
			ct_fill(b + i * n, n, i);
			tsend(&c, b + i * n, n, 100 + i, i);
		}
		ct_barrier(&c);
		for (int i = 0; i < count; i++)
			ct_next(&c, c.tx, &(struct fi_cq_tagged_entry){ 0 }, NULL, NULL);
	} else {
		ct_barrier(&c);
		ct_idle(&c, 50);
		for (int i = count - 1; i >= 0; i--) {
			trecv(&c, b, n, 100 + i, 0, i);
			got(&c, i, n, 100 + i);
			CHECK(ct_same(b, n, i));
		}
	}
	ct_done(&c);
}
static void unexpected_few(int rank) { unexpected_reverse(rank, 40, 100); }
static void unexpected_many(int rank) { unexpected_reverse(rank, 200, 100); }
static void unexpected_large(int rank) { unexpected_reverse(rank, 10, 1 << 20); }
static void unexpected_same_tag(int rank)
{
	enum { N = 50 };
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 64 * N);
	if (rank == 1) {
		for (int i = 0; i < N; i++) {
			ct_fill(b + i * 64, 1 + i, i);
			tsend(&c, b + i * 64, 1 + i, i % 2, i);
		}
		ct_barrier(&c);
		for (int i = 0; i < N; i++)
			ct_next(&c, c.tx, &(struct fi_cq_tagged_entry){ 0 }, NULL, NULL);
	} else {
		ct_barrier(&c);
		ct_idle(&c, 50);
		for (int i = 1; i < N; i += 2) {		/* odd tags in order */
			trecv(&c, b, 64, 1, 0, i);
			got(&c, i, 1 + i, 1);
			CHECK(ct_same(b, 1 + i, i));
		}
		for (int i = 0; i < N; i += 2) {		/* the rest by wildcard, in order */
			trecv(&c, b, 64, 99, ~0ull, i);
			got(&c, i, 1 + i, 0);
			CHECK(ct_same(b, 1 + i, i));
		}
	}
	ct_done(&c);
}
/* A pile of unexpected messages must not hold up one that is awaited. */
static void awaited_overtakes(int rank)
{
	enum { N = 300 };
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 64 * (N + 1));
	if (rank == 0) {
		trecv(&c, b, 64, 7777, 0, 0);
		ct_barrier(&c);
		got(&c, 0, 64, 7777);
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			trecv(&c, b, 64, i, 0, 1);
			got(&c, 1, 10, i);
		}
	} else {
		int done = 0;
		struct fi_cq_tagged_entry e;

		ct_barrier(&c);
		for (int i = 0; i < N; i++)
			tsend(&c, b, 10, i, i);
		tsend(&c, b, 64, 7777, N);
		while (done < N + 1) {
			if (fi_cq_read(c.tx, &e, 1) == 1)
				done++;
			if (done == N + 1)
				break;
			ct_progress(&c);
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void peek_miss(int rank)
{
	struct ct c;

	ct_open(&c, &TAGGED);
	if (rank == 0) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		for (int i = 0; i < 3; i++) {
			uint64_t extra = i == 0 ? 0 : i == 1 ? FI_CLAIM : FI_DISCARD;

			trecvmsg(&c, NULL, 0, 42, 0, i, FI_PEEK | extra);
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			EQ(err.err, FI_ENOMSG);
			CHECK(err.op_context == CTX(i));
			CHECK(err.flags & FI_TAGGED);
		}
		NOTHING(&c, c.rx, 20);
	}
	ct_done(&c);
}
static void peek_hit(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 1 << 20);
	for (int i = 0; i < 2; i++) {
		size_t n = i ? 500000 : 77;

		if (rank == 0) {
			for (int j = 0; j < 3; j++) {	/* peeking changes nothing */
				struct fi_cq_tagged_entry e = peek(&c, 0x40, 0xf, 1, 0);
				EQ(e.len, n);
				EQ(e.tag, 0x42);
				if (c.info->domain_attr->cq_data_size) {
					CHECK(e.flags & FI_REMOTE_CQ_DATA);
					EQ(e.data, 0x99);
				}
			}
			trecv(&c, b, n, 0x42, 0, 2);
			got(&c, 2, n, 0x42);
			CHECK(ct_same(b, n, 1));
		} else {
			ct_fill(b, n, 1);
			if (c.info->domain_attr->cq_data_size)
				POST(&c, fi_tsenddata(c.ep, b, n, ct_desc(b), 0x99, c.peer, 0x42, CTX(0)));
			else
				tsend(&c, b, n, 0x42, 0);
			ct_sent(&c, CTX(0));
		}
	}
	ct_done(&c);
}
static void peek_claim(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 1 << 20);
	for (int i = 0; i < 2; i++) {
		size_t n = i ? 300000 : 50;

		if (rank == 0) {
			struct fi_cq_tagged_entry e = peek(&c, 5, 0, 1, FI_CLAIM);
			EQ(e.len, n);
			/* claimed: another receive of that tag gets the next message */
			trecv(&c, b + 600000, 60, 5, 0, 2);
			got(&c, 2, 60, 5);
			CHECK(ct_same(b + 600000, 60, 8));
			trecvmsg(&c, b, n, 5, 0, 1, FI_CLAIM | FI_COMPLETION);
			/* not marked: the mark is for buffered messages (fi_msg(3) of 1.x) */
			e = got(&c, 1, n, 5);
			CHECK(!(e.flags & FI_CLAIM));
			CHECK(ct_same(b, n, 7));
		} else {
			ct_fill(b, n, 7);
			ct_fill(b + 600000, 60, 8);
			tsend(&c, b, n, 5, 0);
			tsend(&c, b + 600000, 60, 5, 1);
			ct_next(&c, c.tx, &(struct fi_cq_tagged_entry){ 0 }, NULL, NULL);
			ct_next(&c, c.tx, &(struct fi_cq_tagged_entry){ 0 }, NULL, NULL);
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void discard(int rank, int claim_first, size_t n)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, n + 100);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = peek(&c, 5, 0, 1, claim_first ? FI_CLAIM : FI_DISCARD);
		struct fi_cq_err_entry err;

		EQ(e.len, n);
		if (claim_first) {
			trecvmsg(&c, NULL, 0, 5, 0, 1, FI_CLAIM | FI_DISCARD | FI_COMPLETION);
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(1));
		}
		trecvmsg(&c, NULL, 0, 5, 0, 3, FI_PEEK);	/* it is gone */
		EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ENOMSG);
		ct_barrier(&c);
		trecv(&c, b, 60, 5, 0, 2);			/* and the next one arrives */
		got(&c, 2, 60, 5);
		CHECK(ct_same(b, 60, 8));
	} else {
		tsend_wait(&c, b, n, 5, 0);
		ct_barrier(&c);
		ct_fill(b, 60, 8);
		tsend_wait(&c, b, 60, 5, 1);
	}
	ct_done(&c);
}
static void peek_discard(int rank) { discard(rank, 0, 50); }
static void peek_discard_large(int rank) { discard(rank, 0, 1 << 20); }
static void claim_discard(int rank) { discard(rank, 1, 50); }

/* A request to discard a message has no buffer, for any contents of the structure. */
static void discard_buffer(int rank, size_t n)
{
	static const struct { uint64_t first, second; } ways[] = {
		{ FI_PEEK | FI_DISCARD, 0 }, { FI_PEEK | FI_CLAIM, FI_CLAIM | FI_DISCARD },
	};
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, n);
	for (int way = 0; way < 2; way++) {
		for (int bad = 0; bad < 2; bad++) {
			struct iovec v = { bad ? (void *)0x20 : b, bad ? ~(size_t)0 : n };
			struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
				.tag = 5, .context = CTX(1) };
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry err;

			if (rank == 1) {
				ct_fill(b, n, 3);
				tsend_wait(&c, b, n, 5, 0);
				ct_barrier(&c);
				continue;
			}
			memset(b, 0x55, n);
			peek(&c, 5, 0, 3, 0);		/* it is here */
			if (ways[way].second) {
				e = peek(&c, 5, 0, 1, FI_CLAIM);
				POST(&c, fi_trecvmsg(c.ep, &m, ways[way].second | FI_COMPLETION));
			} else {
				POST(&c, fi_trecvmsg(c.ep, &m, ways[way].first | FI_COMPLETION));
			}
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(1));
			EQ(e.len, n);
			CHECK(e.buf == NULL);
			for (size_t i = 0; i < n; i++)
				EQ(b[i], 0x55);
			trecvmsg(&c, NULL, 0, 5, 0, 3, FI_PEEK);
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			EQ(err.err, FI_ENOMSG);
			ct_barrier(&c);
		}
	}
	ct_done(&c);
}
static void discard_ignores(int rank) { discard_buffer(rank, 50); }
static void discard_ignores_large(int rank) { discard_buffer(rank, 1 << 20); }

/* A peek with a buffer: the entry names it only when bytes of the message are there. */
static void peek_buffer(int rank, size_t n)
{
	struct ct c;
	char *b;

	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, n + 4096);
	/* only to a peer that is known to ask for them messages are announced */
	if (rank == 0) {
		tsend_wait(&c, b, 64, 0, 0);
	} else {
		trecv(&c, b, 64, 0, 0, 0);
		got(&c, 0, 64, 0);
	}
	if (rank == 1) {
		ct_fill(b, n, 1);
		tsend(&c, b, n, 5, 0);
		ct_sent(&c, CTX(0));
		ct_done(&c);
		return;
	}
	for (int found = 0, tries = 0; found < 6 && tries < 5000; tries++) {
		size_t space = tries % 2 ? n / 2 : n + 9;
		struct iovec v = { b, space };
		void *d = ct_desc(b);
		struct fi_msg_tagged m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
			.tag = 5, .context = CTX(1) };
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		memset(b, 0x77, n + 10);
		POST(&c, fi_trecvmsg(c.ep, &m, FI_PEEK));
		if (ct_next(&c, c.rx, &e, NULL, &err) != 1) {
			EQ(err.err, FI_ENOMSG);
			continue;
		}
		found++;
		EQ(e.len, n);
		if (e.buf) {
			size_t there = space < n ? space : n;

			CHECK(e.buf == b);
			CHECK(there > 0 && ct_same(b, there, 1));
		} else {
			CHECK(b[0] == 0x77 && !memcmp(b, b + 1, n + 9));
		}
	}
	trecv(&c, b, n, 5, 0, 2);
	got(&c, 2, n, 5);
	CHECK(ct_same(b, n, 1));
	ct_done(&c);
}
static void peek_buffer_small(int rank) { peek_buffer(rank, 64); }
static void peek_buffer_empty(int rank) { peek_buffer(rank, 0); }
static void peek_buffer_large(int rank) { peek_buffer(rank, 32 << 20); }
static void peek_buffer_waiting(int rank)
{
	ct_param("MAX_SAVED_SIZE", "0");
	ct_param("MAX_RX_SIZE", "0");
	peek_buffer(rank, 1000);
}

/* Tagged and untagged messages do not match each other. */
static void both_kinds(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
		trecv(&c, b + 64, 64, 0, ~0ull, 1);
		ct_barrier(&c);
		struct fi_cq_tagged_entry e = ct_recvd(&c, CTX(1), 20);
		CHECK(e.flags & FI_TAGGED && !(e.flags & FI_MSG));
		e = ct_recvd(&c, CTX(0), 10);
		CHECK(e.flags & FI_MSG && !(e.flags & FI_TAGGED));
	} else {
		ct_barrier(&c);
		tsend_wait(&c, b, 20, 0, 0);
		POST(&c, fi_send(c.ep, b, 10, ct_desc(b), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	ct_done(&c);
}

/* A fence holds until a message that waits at its sender has gone too. */
static void fence_behind_waiting(int rank)
{
	enum { LEN = 1 << 20 };
	struct ct_opt o = { .caps = FI_TAGGED | FI_FENCE };
	struct ct c;
	char *b;

	ct_param("MAX_SAVED_SIZE", "1024");
	ct_param("MAX_RX_SIZE", "1024");
	ct_open(&c, &o);
	b = ct_alloc(&c, LEN + 64);
	/* only to a peer that is known to ask for them messages are announced */
	if (rank == 0) {
		tsend_wait(&c, b, 64, 0, 0);
	} else {
		trecv(&c, b, 64, 0, 0, 0);
		got(&c, 0, 64, 0);
	}
	if (rank == 0) {
		struct iovec v = { b, 64 };
		void *d = ct_desc(b);
		struct fi_msg_tagged m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer,
			.tag = 2, .context = CTX(2) };

		tsend(&c, b, LEN, 1, 1);
		POST(&c, fi_tsendmsg(c.ep, &m, FI_COMPLETION | FI_FENCE));
		ct_barrier(&c);
		ct_sent(&c, CTX(1));
		ct_sent(&c, CTX(2));
	} else {
		ct_barrier(&c);
		ct_idle(&c, 50);
		trecv(&c, b + LEN, 64, 2, 0, 2);
		trecv(&c, b, LEN, 1, 0, 1);
		got(&c, 1, LEN, 1);
		got(&c, 2, 64, 2);
	}
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "a tag matches by the bits outside the ignore mask", ignore_mask, 0 },
	{ "messages take matching receives in posting order", posting_order, 0 },
	{ "a full queue of mixed receives matches like a model", random_match, 0 },
	{ "unexpected messages can be received in any order", unexpected_few, 0 },
	{ "two hundred unexpected messages can be received in reverse order", unexpected_many, 0 },
	{ "large unexpected messages can be received in reverse order", unexpected_large, 0 },
	{ "unexpected messages of one tag arrive in sending order", unexpected_same_tag, 0 },
	{ "an expected message passes three hundred unexpected ones", awaited_overtakes, 0 },
	{ "FI_PEEK without a message gives FI_ENOMSG", peek_miss, 0 },
	{ "FI_PEEK returns length, tag and data and leaves the message", peek_hit, 0 },
	{ "FI_PEEK with FI_CLAIM reserves the message for FI_CLAIM", peek_claim, 0 },
	{ "FI_PEEK with FI_DISCARD drops the message", peek_discard, 0 },
	{ "FI_PEEK with FI_DISCARD drops a large message", peek_discard_large, 0 },
	{ "FI_CLAIM with FI_DISCARD drops a claimed message", claim_discard, 0 },
	{ "FI_DISCARD accesses no buffer", discard_ignores, 0 },
	{ "FI_DISCARD of a large message accesses no buffer", discard_ignores_large, 0 },
	{ "a peek with a buffer gets as much of the message as fits", peek_buffer_small, 0 },
	{ "a peek at an empty message returns no buffer", peek_buffer_empty, 0 },
	{ "a peek returns a buffer only for received bytes of a large message", peek_buffer_large, 0 },
	{ "a peek at a message waiting at its sender returns no buffer", peek_buffer_waiting, 0 },
	{ "tagged and untagged messages never match each other", both_kinds, 0 },
	{ "a fence waits for a message waiting at its sender", fence_behind_waiting, CT_RDM | CT_REL },
};
CT_MAIN("tagged", tests)
