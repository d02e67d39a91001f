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
/* The next message that is reported. */
static struct fi_recv_context *hear(struct ct *c, struct fi_cq_tagged_entry *e, uint64_t kind, size_t len)
{
	struct fi_recv_context *r;

	memset(e, 0, sizeof *e);
	ct_next(c, c->rx, e, NULL, NULL);
	EQ(e->flags & (FI_RECV | FI_MSG | FI_TAGGED), FI_RECV | kind);
	EQ(e->len, len);
	CHECK(!(e->flags & FI_CLAIM));
	r = e->op_context;
	/* hooks hand out endpoints of their own */
	CHECK(getenv("FI_HOOK") ? r->ep != NULL : r->ep == c->ep);
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

static void in_place(int rank)
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
		r = hear(&c, &e, FI_MSG, sizes[i]);
		CHECK(!(e.flags & FI_MORE));
		CHECK(e.flags & FI_REMOTE_CQ_DATA);
		EQ(e.data, 70 + i);
		CHECK(ct_same(e.buf, sizes[i], i));
		OK(settle(&c, r, NULL, 0, FI_MSG, FI_DISCARD));
	}
	/* nothing more is said of them */
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
	r = hear(&c, &e, FI_MSG, 1000);
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
	r = hear(&c, &e, FI_MSG, 1000);
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

/* Longer than the limit: the start is told, the rest waits. */
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
		r = hear(&c, &e, kinds[k], BIG);
		CHECK(e.flags & FI_MORE);
		CHECK(ct_same(e.buf, start, 0));
		EQ(e.tag, k ? 50 : 0);
		r->context = CTX(9);
		OK(settle(&c, r, buf, BIG, kinds[k], FI_CLAIM));
		e = claim_done(&c, CTX(9), BIG);
		CHECK(ct_same(buf, BIG, 0));
		CHECK(!(e.flags & FI_MORE));
		r = hear(&c, &e, kinds[k], BIG);
		CHECK(e.flags & FI_MORE);
		CHECK(ct_same(e.buf, start, 1));
		OK(settle(&c, r, NULL, 0, kinds[k], FI_DISCARD));
		/* what comes behind is not lost with it */
		r = hear(&c, &e, kinds[k], 8);
		CHECK(!(e.flags & FI_MORE) && ct_same(e.buf, 8, 2));
		OK(settle(&c, r, NULL, 0, kinds[k], FI_DISCARD));
	}
	ct_done(&c);
}

#define MANY 300
static void any_order(int rank)
{
	static struct fi_recv_context *all[MANY];
	static struct { void *buf; size_t len; } told[MANY];
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
		all[i] = hear(&c, &e, FI_TAGGED, i % 1000);
		EQ(e.tag, 3000 + i);
		told[i].buf = e.buf;
		told[i].len = e.len;
	}
	/* the last first; every third is claimed */
	for (int i = MANY - 1; i >= 0; i--) {
		CHECK(ct_same(told[i].buf, told[i].len, i));
		all[i]->context = CTX(i);
		if (i % 3) {
			OK(settle(&c, all[i], NULL, 0, FI_TAGGED, FI_DISCARD));
			continue;
		}
		OK(settle(&c, all[i], buf, 1000, FI_TAGGED, FI_CLAIM));
		e = claim_done(&c, CTX(i), told[i].len);
		EQ(e.tag, 3000 + i);
		CHECK(ct_same(buf, told[i].len, i));
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
		r = hear(&c, &e, FI_MSG, len);
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
	small = hear(&c, &e, FI_MSG, 100);
	big = hear(&c, &e, FI_MSG, 64 << 20);
	CHECK(e.flags & FI_MORE);
	ct_barrier(&c);
	big->context = CTX(1);
	OK(settle(&c, big, buf, 64 << 20, FI_MSG, FI_CLAIM));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.op_context == CTX(1));
	CHECK(err.err == FI_ECONNRESET || err.err == FI_ENOTCONN || err.err == FI_EIO);
	/* what was here already is still */
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
		r = hear(&c, &e, FI_MSG, 16);
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

static const struct ct_test tests[] = {
	{ "messages are reported where the provider has them, and discarded", in_place, CT_REL },
	{ "a message that is claimed goes to the application's buffers", claimed, CT_REL },
	{ "of a message past the limit the start is reported, and the rest waits", longer, CT_REL },
	{ "tagged messages are settled in any order", any_order, CT_REL },
	{ "limits are asked for, and set before the endpoint is enabled", options, CT_REL },
	{ "FI_VARIABLE_MSG, with a limit of the application's", variable, CT_REL },
	{ "a claim fails when the sender is gone, and messages that are here stay", gone, CT_REL },
	{ "only a program of 1.x that asks has its messages buffered", unasked, CT_REL },
	{ "a message counts when it is settled", counted, CT_REL },
};
CT_MAIN("buffered", tests)
