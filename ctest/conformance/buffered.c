/* Buffered receives and variable length messages: fi_msg(3) as of 1.7 to 1.22. */
#include "ct.h"

#define VARIABLE_MSG (1ULL << 48)	/* FI_VARIABLE_MSG before 1.21 */
#define BIG (1 << 20)

static size_t start;	/* FI_OPT_BUFFERED_MIN of the endpoints to open */

static void setup(struct ct *c)
{
	if (start)
		OK(fi_setopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_MIN, &start, sizeof start));
}
static void open_buffered(struct ct *c, uint64_t caps)
{
	struct ct_opt o = { .caps = caps, .mode = FI_BUFFERED_RECV, .setup = setup };
	struct fi_info *i = ct_getinfo(&o, NULL, NULL, 0);

	if (!(i->mode & FI_BUFFERED_RECV))
		SKIP("not offered: FI_BUFFERED_RECV");
	fi_freeinfo(i);
	ct_open(c, &o);
	CHECK(c->info->mode & FI_BUFFERED_RECV);
}
static size_t limit(struct ct *c)
{
	size_t n = 0, len = sizeof n;

	OK(fi_getopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &n, &len));
	EQ(len, sizeof n);
	CHECK(n > 0);
	return n;
}
/* The entry of a claim: that of a receive, marked. */
static struct fi_cq_tagged_entry claim_done(struct ct *c, void *context, size_t len)
{
	struct fi_cq_tagged_entry e = ct_recvd(c, context, len);

	CHECK(e.flags & FI_CLAIM);
	return e;
}
/* The next message that is reported. A tagged one is when a tag is posted for it: any. */
static struct fi_recv_context *receive_event(struct ct *c, struct fi_cq_tagged_entry *e, uint64_t kind, size_t len)
{
	struct fi_recv_context *r;

	if (kind == FI_TAGGED)
		POST(c, fi_trecv(c->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, 0, ~0ull, NULL));
	memset(e, 0, sizeof *e);
	ct_next(c, c->rx, e, NULL, NULL);
	EQ(e->flags & (FI_RECV | FI_MSG | FI_TAGGED), FI_RECV | kind);
	EQ(e->len, len);
	CHECK(!(e->flags & FI_CLAIM));
	r = e->op_context;
	/* hooks hand out endpoints of their own */
	CHECK(kind == FI_TAGGED ? r->ep == NULL : getenv("FI_HOOK") ? r->ep != NULL : r->ep == c->ep);
	CHECK(r->context == NULL);
	return r;
}
/* Claims or discards it; without a buffer where none is looked at. */
static ssize_t settle(struct ct *c, struct fi_recv_context *r, void *buf, size_t len, uint64_t kind, uint64_t flags)
{
	struct iovec iov = { buf, len };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = r };
	struct fi_msg_tagged t = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = r };

	if (!buf) {
		m.msg_iov = t.msg_iov = NULL;
		m.iov_count = t.iov_count = 0;
	}
	return kind == FI_MSG ? fi_recvmsg(c->ep, &m, flags) : fi_trecvmsg(c->ep, &t, flags);
}

static void own_buffer(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	size_t sizes[4] = { 0, 1, 3000 };
	struct ct c;
	char *buf;

	open_buffered(&c, FI_MSG);
	sizes[3] = limit(&c);
	buf = ct_alloc(&c, sizes[3]);
	for (int i = 0; i < 4; i++) {
		if (rank == 1) {
			ct_fill(buf, sizes[i], i);
			POST(&c, fi_senddata(c.ep, buf, sizes[i], NULL, 70 + i, c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
			continue;
		}
		r = receive_event(&c, &e, FI_MSG, sizes[i]);
		CHECK(!(e.flags & FI_MORE));
		CHECK(e.flags & FI_REMOTE_CQ_DATA);
		EQ(e.data, 70 + i);
		CHECK(ct_same(e.buf, sizes[i], i));
		OK(settle(&c, r, NULL, 0, FI_MSG, FI_DISCARD));
	}
	/* no further report of them */
	if (rank == 0)
		NOTHING(&c, c.rx, 30);
	ct_done(&c);
}

static void claimed(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fi_recv_context *r;
	struct ct c;
	char *buf;

	open_buffered(&c, FI_MSG);
	buf = ct_alloc(&c, 4096);
	if (rank == 1) {
		ct_fill(buf, 1000, 3);
		for (int i = 0; i < 2; i++) {
			POST(&c, fi_send(c.ep, buf, 1000, NULL, c.peer, NULL));
			ct_sent(&c, NULL);
			ct_barrier(&c);
		}
		ct_done(&c);
		return;
	}
	r = receive_event(&c, &e, FI_MSG, 1000);
	r->context = CTX(5);
	{
		struct iovec iov[2] = { { buf, 300 }, { buf + 2000, 2000 } };
		struct fi_msg m = { .msg_iov = iov, .iov_count = 2, .addr = FI_ADDR_UNSPEC, .context = r };

		OK(fi_recvmsg(c.ep, &m, FI_CLAIM));
	}
	e = claim_done(&c, CTX(5), 1000);
	memmove(buf + 300, buf + 2000, 700);
	CHECK(ct_same(buf, 1000, 3));
	ct_barrier(&c);
	/* a buffer too small */
	r = receive_event(&c, &e, FI_MSG, 1000);
	r->context = CTX(6);
	memset(buf, 0, 4096);
	OK(settle(&c, r, buf, 400, FI_MSG, FI_CLAIM));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	EQ(err.err, FI_ETRUNC);
	CHECK(err.op_context == CTX(6));
	EQ(err.olen, 600);
	CHECK(err.flags & FI_CLAIM);
	CHECK(ct_same(buf, 400, 3) && !buf[400]);
	ct_barrier(&c);
	ct_done(&c);
}

/* Longer than the limit: the start is reported, the rest waits. */
static void longer(int rank)
{
	uint64_t kinds[2] = { FI_MSG, FI_TAGGED };
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	struct ct c;
	char *buf;

	start = 64;
	open_buffered(&c, FI_MSG | FI_TAGGED);
	buf = ct_alloc(&c, BIG);
	CHECK(limit(&c) < BIG);
	for (int k = 0; k < 2; k++) {
		if (rank == 1) {
			for (int i = 0; i < 3; i++) {
				size_t len = i < 2 ? BIG : 8;

				ct_fill(buf, len, i);
				if (k)
					POST(&c, fi_tsend(c.ep, buf, len, NULL, c.peer, 50 + i, CTX(i)));
				else
					POST(&c, fi_send(c.ep, buf, len, NULL, c.peer, CTX(i)));
				ct_sent(&c, CTX(i));
			}
			continue;
		}
		r = receive_event(&c, &e, kinds[k], BIG);
		CHECK(e.flags & FI_MORE);
		CHECK(ct_same(e.buf, start, 0));
		EQ(e.tag, k ? 50 : 0);
		r->context = CTX(9);
		OK(settle(&c, r, buf, BIG, kinds[k], FI_CLAIM));
		e = claim_done(&c, CTX(9), BIG);
		CHECK(ct_same(buf, BIG, 0));
		CHECK(!(e.flags & FI_MORE));
		r = receive_event(&c, &e, kinds[k], BIG);
		CHECK(e.flags & FI_MORE);
		CHECK(ct_same(e.buf, start, 1));
		OK(settle(&c, r, NULL, 0, kinds[k], FI_DISCARD));
		/* the next message is not lost with it */
		r = receive_event(&c, &e, kinds[k], 8);
		CHECK(!(e.flags & FI_MORE) && ct_same(e.buf, 8, 2));
		OK(settle(&c, r, NULL, 0, kinds[k], FI_DISCARD));
	}
	ct_done(&c);
}

#define MANY 300
static void any_order(int rank)
{
	static struct fi_recv_context *all[MANY];
	static struct { void *buf; size_t len; } notified[MANY];
	struct fi_cq_tagged_entry e;
	struct ct c;
	char *buf;

	open_buffered(&c, FI_TAGGED);
	buf = ct_alloc(&c, MANY * 1000);
	if (rank == 1) {
		for (int i = 0; i < MANY; i++) {
			ct_fill(buf + i * 1000, i % 1000, i);
			POST(&c, fi_tsend(c.ep, buf + i * 1000, i % 1000, NULL, c.peer, 3000 + i, CTX(i)));
		}
		for (int i = 0; i < MANY; i++)
			ct_next(&c, c.tx, &e, NULL, NULL);
		ct_done(&c);
		return;
	}
	for (int i = 0; i < MANY; i++) {
		all[i] = receive_event(&c, &e, FI_TAGGED, i % 1000);
		EQ(e.tag, 3000 + i);
		notified[i].buf = e.buf;
		notified[i].len = e.len;
	}
	/* the last first; every third is claimed */
	for (int i = MANY - 1; i >= 0; i--) {
		CHECK(ct_same(notified[i].buf, notified[i].len, i));
		all[i]->context = CTX(i);
		if (i % 3) {
			OK(settle(&c, all[i], NULL, 0, FI_TAGGED, FI_DISCARD));
			continue;
		}
		OK(settle(&c, all[i], buf, 1000, FI_TAGGED, FI_CLAIM));
		e = claim_done(&c, CTX(i), notified[i].len);
		EQ(e.tag, 3000 + i);
		CHECK(ct_same(buf, notified[i].len, i));
	}
	ct_done(&c);
}

static void options(int rank)
{
	struct ct_opt o = { .mode = FI_BUFFERED_RECV };
	struct ct c;
	struct fi_info *i;
	struct fid_ep *ep;
	size_t n, len, most;
	int word;

	(void)rank;
	open_buffered(&c, FI_MSG);
	i = ct_getinfo(&o, ct_node(&o), NULL, FI_SOURCE);
	OK(fi_endpoint(c.domain, i, &ep, NULL));
	for (int name = FI_OPT_BUFFERED_MIN; name <= FI_OPT_BUFFERED_LIMIT; name++) {
		n = 123;
		OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &n, sizeof n));
		n = 0;
		len = sizeof n;
		OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &n, &len));
		EQ(n, 123);
		/* as much as there can be; more is too much */
		n = SIZE_MAX;
		OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &n, sizeof n));
		OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &most, &len));
		CHECK(most > 123 && most < SIZE_MAX);
		n = most + 1;
		ERR(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &n, sizeof n), FI_EMSGSIZE);
		ERR(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &word, sizeof word), FI_EINVAL);
		/* it is too late once the endpoint is enabled */
		n = 99;
		ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, name, &n, sizeof n), FI_EOPBADSTATE);
	}
	OK(fi_close(&ep->fid));
	fi_freeinfo(i);
	ct_done(&c);
}

/* A limit of the application's own. */
static void set_limit(struct ct *c)
{
	size_t n = 100;

	OK(fi_setopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &n, sizeof n));
}
static void variable(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | VARIABLE_MSG, .setup = set_limit };
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	struct ct c;
	char *buf;

	ct_open(&c, &o);
	CHECK(c.info->caps & VARIABLE_MSG);
	buf = ct_alloc(&c, 200);
	for (int i = 0; i < 2; i++) {
		size_t len = 100 + i;

		if (rank == 1) {
			ct_fill(buf, len, i);
			POST(&c, fi_send(c.ep, buf, len, NULL, c.peer, NULL));
			ct_sent(&c, NULL);
			ct_barrier(&c);
			continue;
		}
		r = receive_event(&c, &e, FI_MSG, len);
		EQ(!!(e.flags & FI_MORE), i);
		r->context = CTX(i);
		OK(settle(&c, r, buf, 200, FI_MSG, FI_CLAIM));
		claim_done(&c, CTX(i), len);
		CHECK(ct_same(buf, len, i));
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void gone(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fi_recv_context *small, *big;
	struct ct c;
	char *buf;

	open_buffered(&c, FI_MSG);
	buf = ct_alloc(&c, 64 << 20);
	if (rank == 1) {
		ct_fill(buf, 100, 1);
		POST(&c, fi_send(c.ep, buf, 100, NULL, c.peer, NULL));
		ct_sent(&c, NULL);
		/* more than a socket takes, and never all of it */
		POST(&c, fi_send(c.ep, buf, 64 << 20, NULL, c.peer, NULL));
		ct_barrier(&c);
		_exit(0);
	}
	small = receive_event(&c, &e, FI_MSG, 100);
	big = receive_event(&c, &e, FI_MSG, 64 << 20);
	CHECK(e.flags & FI_MORE);
	ct_barrier(&c);
	big->context = CTX(1);
	OK(settle(&c, big, buf, 64 << 20, FI_MSG, FI_CLAIM));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.op_context == CTX(1));
	CHECK(err.err == FI_ECONNRESET || err.err == FI_ENOTCONN || err.err == FI_EIO);
	/* messages buffered before still are */
	small->context = CTX(2);
	memset(buf, 0, 100);
	OK(settle(&c, small, buf, 100, FI_MSG, FI_CLAIM));
	claim_done(&c, CTX(2), 100);
	CHECK(ct_same(buf, 100, 1));
	ct_close(&c);
}

static void unasked(int rank)
{
	struct ct_opt o = { .mode = FI_BUFFERED_RECV };
	struct fi_info *h, *i;
	struct fi_context2 x;
	struct fi_msg m = { .context = &x };
	struct ct c;
	size_t n = 1;

	(void)rank;
	/* a program of today cannot know the mode: bits of no meaning are passed over */
	h = ct_hints(&o);
	OK(fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, h, &i));
	CHECK(!(i->mode & FI_BUFFERED_RECV));
	fi_freeinfo(i);
	fi_freeinfo(h);
	ct_open(&c, NULL);
	CHECK(!(c.info->mode & FI_BUFFERED_RECV));
	ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &n, sizeof n), FI_ENOPROTOOPT);
	ERR(fi_recvmsg(c.ep, &m, FI_CLAIM), FI_EBADFLAGS);
	ERR(fi_recvmsg(c.ep, &m, FI_DISCARD), FI_EBADFLAGS);
	ct_done(&c);
}

static void counted(int rank)
{
	struct ct_opt o = { .mode = FI_BUFFERED_RECV, .cntr = 1 };
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	struct fi_info *i = ct_getinfo(&o, NULL, NULL, 0);
	struct fi_context2 other;
	struct ct c;
	char buf[16] = "";

	if (!(i->mode & FI_BUFFERED_RECV))
		SKIP("not offered: FI_BUFFERED_RECV");
	fi_freeinfo(i);
	ct_open(&c, &o);
	for (int k = 0; k < 2; k++) {
		if (rank == 1) {
			POST(&c, fi_send(c.ep, buf, 16, NULL, c.peer, NULL));
			ct_sent(&c, NULL);
			ct_barrier(&c);
			continue;
		}
		r = receive_event(&c, &e, FI_MSG, 16);
		/* counted when it is settled, and once */
		EQ(fi_cntr_read(c.rxc), k);
		ERR(settle(&c, (void *)&other, buf, 16, FI_MSG, FI_CLAIM), FI_EINVAL);
		ERR(settle(&c, (void *)&other, NULL, 0, FI_MSG, FI_DISCARD), FI_EINVAL);
		OK(settle(&c, r, buf, 16, FI_MSG, k ? FI_DISCARD : FI_CLAIM));
		if (!k)
			claim_done(&c, NULL, 16);
		EQ(fi_cntr_read(c.rxc), k + 1);
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* fi_tagged(3): posted tags name messages, and have no buffers. */
#define NOWHERE ((void *)0x30)

static void post_tag(struct ct *c, int how, uint64_t tag, uint64_t ignore, void *context)
{
	/* hooks read how long the buffers are */
	static struct iovec wild[2] = { { NOWHERE, 1 << 20 }, { NOWHERE, 1 << 20 } };
	struct iovec *v = getenv("FI_HOOK") ? wild : NOWHERE;
	size_t count = getenv("FI_HOOK") ? 2 : 1 << 20;
	struct fi_msg_tagged m = { .msg_iov = v, .iov_count = count, .addr = FI_ADDR_UNSPEC,
		.tag = tag, .ignore = ignore, .context = context };

	if (how % 3 == 0)
		POST(c, fi_trecv(c->ep, NOWHERE, ~(size_t)0, NULL, FI_ADDR_UNSPEC, tag, ignore, context));
	else if (how % 3 == 1)
		POST(c, fi_trecvv(c->ep, v, NULL, count, FI_ADDR_UNSPEC, tag, ignore, context));
	else
		POST(c, fi_trecvmsg(c->ep, &m, FI_COMPLETION));
}
/* The next message that matched a tag. */
static struct fi_recv_context *matched(struct ct *c, struct fi_cq_tagged_entry *e, uint64_t tag, size_t len, void *context)
{
	struct fi_recv_context *r;

	memset(e, 0, sizeof *e);
	ct_next(c, c->rx, e, NULL, NULL);
	EQ(e->flags & (FI_RECV | FI_MSG | FI_TAGGED | FI_CLAIM), FI_RECV | FI_TAGGED);
	EQ(e->tag, tag);
	EQ(e->len, len);
	EQ(!!(e->flags & FI_MORE), len > limit(c));
	r = e->op_context;
	CHECK(r->ep == NULL);
	CHECK(r->context == context);
	return r;
}
static void tell(struct ct *c, char *buf, size_t len, uint64_t tag, int seed)
{
	ct_fill(buf, len, seed);
	POST(c, fi_tsend(c->ep, buf, len, ct_desc(buf), c->peer, tag, CTX(99)));
	ct_sent(c, CTX(99));
}
static void by_tag_as(int rank, struct ct *c)
{
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r[4];
	struct fi_cq_err_entry err;
	char *buf = ct_alloc(c, BIG);

	if (rank == 1) {
		ct_barrier(c);
		tell(c, buf, 100, 7, 0);	/* no receive matches it yet */
		tell(c, buf, 0, 5, 1);
		tell(c, buf, 3000, 5, 2);
		tell(c, buf, 10, 0x123, 3);
		tell(c, buf, 11, 5, 4);
		ct_barrier(c);
		POST(c, fi_send(c->ep, buf, 20, ct_desc(buf), c->peer, CTX(99)));
		ct_sent(c, CTX(99));
		ct_done(c);
		return;
	}
	post_tag(c, 0, 5, 0, CTX(0));
	post_tag(c, 1, 0x100, 0xff, CTX(1));
	post_tag(c, 2, 5, 0, CTX(2));
	post_tag(c, 0, 8, 0, CTX(3));
	ct_barrier(c);
	r[0] = matched(c, &e, 5, 0, CTX(0));
	r[1] = matched(c, &e, 5, 3000, CTX(2));
	CHECK(ct_same(e.buf, 3000, 2));
	r[2] = matched(c, &e, 0x123, 10, CTX(1));
	CHECK(ct_same(e.buf, 10, 3));
	NOTHING(c, c->rx, 30);
	/* buffered messages match the new tag, the oldest message first */
	post_tag(c, 0, 0, ~0ull, CTX(4));
	r[3] = matched(c, &e, 7, 100, CTX(4));
	CHECK(ct_same(e.buf, 100, 0));
	/* a claim reports the context of the tag, or the program's replacement for it */
	OK(settle(c, r[1], buf, 4000, FI_TAGGED, FI_CLAIM | FI_COMPLETION));
	e = claim_done(c, CTX(2), 3000);
	EQ(e.tag, 5);
	CHECK(ct_same(buf, 3000, 2));
	r[3]->context = CTX(9);
	OK(settle(c, r[3], buf, 4000, FI_TAGGED, FI_CLAIM | FI_COMPLETION));
	claim_done(c, CTX(9), 100);
	CHECK(ct_same(buf, 100, 0));
	OK(settle(c, r[0], NULL, 0, FI_TAGGED, FI_DISCARD));
	OK(settle(c, r[2], NULL, 0, FI_TAGGED, FI_DISCARD));
	/* a tag is taken back */
	OK(fi_cancel(&c->ep->fid, CTX(3)));
	EQ(ct_next(c, c->rx, &e, NULL, &err), -FI_EAVAIL);
	EQ(err.err, FI_ECANCELED);
	CHECK(err.op_context == CTX(3));
	/* there is one message left */
	post_tag(c, 1, 5, 0, CTX(5));
	r[0] = matched(c, &e, 5, 11, CTX(5));
	CHECK(ct_same(e.buf, 11, 4));
	OK(settle(c, r[0], NULL, 0, FI_TAGGED, FI_DISCARD));
	/* untagged messages are reported as they come */
	ct_barrier(c);
	r[0] = receive_event(c, &e, FI_MSG, 20);
	OK(settle(c, r[0], NULL, 0, FI_MSG, FI_DISCARD));
	NOTHING(c, c->rx, 30);
	ct_done(c);
}
/* fi_tagged(3), Buffered Tagged Receives: "When a provider receives a message for which there is a matching tag, it
   will write an entry to the completion queue": without one a tagged message is not reported. */
static void no_tag(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	struct ct c;
	char *buf;

	open_buffered(&c, FI_TAGGED);
	buf = ct_alloc(&c, BIG);
	if (rank == 1) {
		tell(&c, buf, 100, 7, 0);
		tell(&c, buf, limit(&c) + 1, 8, 1);
		ct_barrier(&c);
	} else {
		NOTHING(&c, c.rx, 100);
		post_tag(&c, 0, 8, 0, CTX(0));
		r = matched(&c, &e, 8, limit(&c) + 1, CTX(0));
		OK(settle(&c, r, NULL, 0, FI_TAGGED, FI_DISCARD));
		post_tag(&c, 0, 7, 0, CTX(1));
		r = matched(&c, &e, 7, 100, CTX(1));
		CHECK(ct_same(e.buf, 100, 0));
		OK(settle(&c, r, NULL, 0, FI_TAGGED, FI_DISCARD));
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void by_tag(int rank)
{
	struct ct c;

	open_buffered(&c, FI_MSG | FI_TAGGED);
	by_tag_as(rank, &c);
}
static void by_tag_variable(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | VARIABLE_MSG };
	struct ct c;

	ct_open(&c, &o);
	by_tag_as(rank, &c);
}
/* Longer than the limit, with a tag that waits or comes later. */
static void by_tag_long(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r[4];
	struct ct c;
	char *buf;

	start = 64;
	open_buffered(&c, FI_TAGGED);
	buf = ct_alloc(&c, BIG);
	if (rank == 1) {
		struct fi_cq_tagged_entry x;

		ct_barrier(&c);
		ct_fill(buf, BIG, 1);
		for (int i = 0; i < 3; i++)
			POST(&c, fi_tsend(c.ep, buf, BIG, ct_desc(buf), c.peer, 20 + i, CTX(i)));
		POST(&c, fi_tsend(c.ep, buf, 50, ct_desc(buf), c.peer, 30, CTX(3)));
		for (int i = 0; i < 4; i++)
			ct_next(&c, c.tx, &x, NULL, NULL);
		ct_done(&c);
		return;
	}
	/* an unmatched message does not block later ones */
	post_tag(&c, 0, 30, 0, CTX(3));
	ct_barrier(&c);
	r[3] = matched(&c, &e, 30, 50, CTX(3));
	CHECK(ct_same(e.buf, 50, 1));
	for (int i = 2; i >= 0; i--) {
		post_tag(&c, i, 20 + i, 0, CTX(i));
		r[i] = matched(&c, &e, 20 + i, BIG, CTX(i));
		CHECK(ct_same(e.buf, start, 1));
	}
	OK(settle(&c, r[0], NULL, 0, FI_TAGGED, FI_DISCARD));
	for (int i = 1; i < 3; i++) {
		memset(buf, 0, BIG);
		OK(settle(&c, r[i], buf, BIG, FI_TAGGED, FI_CLAIM | FI_COMPLETION));
		claim_done(&c, CTX(i), BIG);
		CHECK(ct_same(buf, BIG, 1));
	}
	OK(settle(&c, r[3], NULL, 0, FI_TAGGED, FI_DISCARD));
	ct_done(&c);
}
static void set_most(struct ct *c)
{
	size_t n = SIZE_MAX;

	OK(fi_setopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_LIMIT, &n, sizeof n));
}
/* A message has its tag, and then does not come. */
static void by_tag_gone(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED | VARIABLE_MSG, .setup = set_most };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fi_recv_context *r;
	struct ct c;
	size_t len;
	char *buf;

	ct_open(&c, &o);
	len = limit(&c);
	buf = ct_alloc(&c, len);
	if (rank == 1) {
		ct_barrier(&c);
		tell(&c, buf, 10, 1, 0);
		/* more than a socket takes, and never all of it */
		POST(&c, fi_tsend(c.ep, buf, len, ct_desc(buf), c.peer, 2, NULL));
		_exit(0);
	}
	post_tag(&c, 0, 1, 0, CTX(1));
	post_tag(&c, 0, 2, 0, CTX(2));
	ct_barrier(&c);
	r = matched(&c, &e, 1, 10, CTX(1));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.op_context == CTX(2));
	CHECK(err.err == FI_ECONNRESET || err.err == FI_ENOTCONN || err.err == FI_EIO);
	/* the buffered messages stay */
	OK(settle(&c, r, buf, 100, FI_TAGGED, FI_CLAIM | FI_COMPLETION));
	claim_done(&c, CTX(1), 10);
	ct_close(&c);
}
/* Peeks at buffered messages. */
static void by_tag_peek(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fi_recv_context *r;
	struct ct c;
	char *buf;

	open_buffered(&c, FI_TAGGED);
	buf = ct_alloc(&c, 4096);
	if (rank == 1) {
		ct_barrier(&c);
		tell(&c, buf, 40, 4, 1);
		tell(&c, buf, 50, 4, 2);
		ct_done(&c);
		return;
	}
	post_tag(&c, 0, 99, 0, CTX(0));
	ct_barrier(&c);
	for (;;) {
		struct iovec v = { buf, 4096 };
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 4, .context = CTX(1) };

		OK(fi_trecvmsg(c.ep, &m, FI_PEEK | FI_CLAIM | FI_COMPLETION));
		if (ct_next(&c, c.rx, &e, NULL, &err) != 1) {
			EQ(err.err, FI_ENOMSG);
			continue;
		}
		CHECK(e.op_context == CTX(1));
		EQ(e.len, 40);
		memset(buf, 0, 4096);
		OK(fi_trecvmsg(c.ep, &m, FI_CLAIM | FI_COMPLETION));
		e = ct_recvd(&c, CTX(1), 40);
		CHECK(ct_same(buf, 40, 1));
		break;
	}
	post_tag(&c, 0, 4, 0, CTX(2));
	r = matched(&c, &e, 4, 50, CTX(2));
	OK(settle(&c, r, NULL, 0, FI_TAGGED, FI_DISCARD));
	ct_done(&c);
}

/* Messages of every protocol of a provider: reported in the order of their sends, and complete up to the limit. */
static void order_with(int rank, void (*set)(struct ct *), uint64_t kind, int whole)
{
	static const size_t sizes[] = { 300000, 1, 40000, 0, 200000, 16384, 5000, 16385, 1000000, 7, 131073, 90000 };
	enum { KINDS = sizeof sizes / sizeof *sizes, ALL = 4 * KINDS };
	static struct fi_recv_context *all[ALL];
	struct ct_opt o = { .caps = kind | VARIABLE_MSG, .setup = set };
	struct fi_cq_tagged_entry e;
	struct ct c;
	size_t most = 1000000;
	char *buf;

	ct_open(&c, &o);
	buf = ct_alloc(&c, most * (rank ? KINDS : 1));
	if (rank == 1) {
		for (int i = 0; i < KINDS; i++)
			ct_fill(buf + i * most, sizes[i], i);
		for (int i = 0; i < ALL; i++) {
			char *b = buf + i % KINDS * most;

			if (kind == FI_TAGGED)
				POST(&c, fi_tsend(c.ep, b, sizes[i % KINDS], ct_desc(b), c.peer, i, CTX(i)));
			else
				POST(&c, fi_send(c.ep, b, sizes[i % KINDS], ct_desc(b), c.peer, CTX(i)));
		}
		for (int i = 0; i < ALL; i++)
			ct_next(&c, c.tx, &e, NULL, NULL);
		ct_done(&c);
		return;
	}
	for (int i = 0; i < ALL; i++) {
		size_t n = sizes[i % KINDS];

		all[i] = receive_event(&c, &e, kind, n);
		if (kind == FI_TAGGED)
			EQ(e.tag, i);
		if (whole)
			EQ(!!(e.flags & FI_MORE), n > limit(&c));
		if (!(e.flags & FI_MORE))
			CHECK(ct_same(e.buf, n, i % KINDS));
		else if (whole)
			CHECK(ct_same(e.buf, start, i % KINDS));
		all[i]->context = CTX(i);
		/* a message waiting in the connection blocks the ones behind it */
		if (i % 3 == 0 && n > limit(&c)) {
			OK(settle(&c, all[i], NULL, 0, kind, FI_DISCARD));
			continue;
		}
		memset(buf, 0, most);
		OK(settle(&c, all[i], buf, most, kind, FI_CLAIM | FI_COMPLETION));
		/* others may be reported meanwhile: they wait in the provider for this reader */
		for (;;) {
			ct_next(&c, c.rx, &e, NULL, NULL);
			if (e.flags & FI_CLAIM)
				break;
			i++;
			all[i] = e.op_context;
			EQ(e.len, sizes[i % KINDS]);
			OK(settle(&c, all[i], NULL, 0, kind, FI_DISCARD));
		}
		EQ(e.len, n);
		CHECK(ct_same(buf, n, ((char *)e.op_context - (char *)CTX(0)) / sizeof ct_ctx[0] % KINDS));
	}
	NOTHING(&c, c.rx, 30);
	ct_done(&c);
}
static void set_start(struct ct *c)
{
	OK(fi_setopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_MIN, &start, sizeof start));
}
static void order(int rank)
{
	order_with(rank, NULL, FI_MSG, 1);
	start = 700;
	order_with(rank, set_start, FI_TAGGED, 1);
}
static void order_whole(int rank)
{
	order_with(rank, set_most, FI_MSG, 1);
	order_with(rank, set_most, FI_TAGGED, 1);
}
/* Senders that write their messages: no start of those can be had. */
static void order_written(int rank)
{
	setenv("FI_OFI_RXM_USE_RNDV_WRITE", "1", 1);
	order_with(rank, set_most, FI_MSG, 0);
	start = 700;
	order_with(rank, set_start, FI_TAGGED, 0);
}
/* An unfinished message of a peer does not block messages of others. */
static void others_pass(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | VARIABLE_MSG, .setup = set_most };
	struct fi_cq_tagged_entry e;
	struct fi_recv_context *r;
	struct ct c, other;
	struct ct_name name;
	size_t len = 50 << 20;
	pid_t pid = getpid();
	char *buf, *small;

	ct_open(&c, &o);
	buf = ct_alloc(&c, len);
	if (rank == 1) {
		ct_send_oob(&pid, sizeof pid);
		POST(&c, fi_send(c.ep, buf, 10, ct_desc(buf), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		POST(&c, fi_send(c.ep, buf, len, ct_desc(buf), c.peer, CTX(1)));
		raise(SIGSTOP);
		ct_sent(&c, CTX(1));
		ct_done(&c);
		return;
	}
	ct_recv_oob(&c, &pid, sizeof pid);
	r = receive_event(&c, &e, FI_MSG, 10);
	OK(settle(&c, r, NULL, 0, FI_MSG, FI_DISCARD));
	/* the other one stands, with most of its message; this one has another address */
	for (int state = 0; state != 'T'; ct_nap(1)) {
		char path[64], line[256] = "";
		FILE *f;

		snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
		CHECK((f = fopen(path, "r")) && fgets(line, sizeof line, f));
		fclose(f);
		state = strrchr(line, ')')[2];
	}
	ct_idle(&c, 50);
	memset(&other, 0, sizeof other);
	other.o.caps = FI_MSG;
	ct_open_rdm(&other, NULL);
	name = ct_getname(&c.ep->fid);
	other.peer = ct_insert(&other, &name);
	small = ct_alloc(&other, 64);
	ct_fill(small, 64, 9);
	POST(&other, fi_send(other.ep, small, 64, ct_desc(small), other.peer, CTX(2)));
	memset(&e, 0, sizeof e);
	while (fi_cq_read(c.rx, &e, 1) == -FI_EAGAIN)
		ct_progress(&other);
	EQ(e.len, 64);
	CHECK(ct_same(e.buf, 64, 9));
	OK(settle(&c, e.op_context, NULL, 0, FI_MSG, FI_DISCARD));
	OK(kill(pid, SIGCONT));
	r = receive_event(&c, &e, FI_MSG, len);
	OK(settle(&c, r, NULL, 0, FI_MSG, FI_DISCARD));
	ct_close(&other);
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "messages are reported in the provider's buffers and can be discarded", own_buffer, CT_REL },
	{ "a claimed message goes to the application's buffers", claimed, CT_REL },
	{ "the start of a message beyond the limit is reported, and the rest waits", longer, CT_REL },
	{ "tagged messages can be claimed or discarded in any order", any_order, CT_REL },
	{ "limits can be queried, and set before the endpoint is enabled", options, CT_REL },
	{ "FI_VARIABLE_MSG works with a limit set by the application", variable, CT_REL },
	{ "a claim fails after the sender ended, and messages already received stay", gone, CT_REL },
	{ "only 1.x applications with FI_BUFFERED_RECV get buffered messages", unasked, CT_REL },
	{ "a message is counted once, at its claim or discard", counted, CT_REL },
	{ "messages of all sizes are reported in the order they were sent", order, CT_REL },
	{ "messages of all sizes are reported whole up to the limit", order_whole, CT_REL },
	{ "rendezvous-write messages are reported and claimed in order", order_written, CT_REL },
	{ "a message of a stalled sender blocks no messages of other peers", others_pass, CT_RDM | CT_REL },
	{ "a tagged message is not reported before a tag is posted", no_tag, CT_REL },
	{ "tagged messages match posted tags without buffers", by_tag, CT_REL },
	{ "tagged messages match posted tags with FI_VARIABLE_MSG", by_tag_variable, CT_REL },
	{ "the start of a message beyond the limit is reported at its tag match", by_tag_long, CT_REL },
	{ "a matched tag fails if its message is then lost", by_tag_gone, CT_REL },
	{ "a message waiting for a tag can be peeked and claimed", by_tag_peek, CT_REL },
};
CT_MAIN("buffered", tests)
