/* Shared receive contexts of FI_EP_MSG endpoints: fi_endpoint(3), fi_srx_context. */
#include "ct.h"

#define N 3

/* A server of N endpoints that share their receives, and its clients, in one process. */
struct srv {
	struct ct base;			/* fabric, domain, event queue, listener */
	struct fid_ep *srx, *ep[N];
	struct fid_cq *rx[N];		/* each endpoint reports its own receives */
	struct ct cli[N];
};

static struct fi_info *shared_info(const struct ct_opt *o)
{
	struct fi_info *h = ct_hints(o), *i = NULL;
	int r;

	h->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	r = fi_getinfo(CT_VERSION, ct_node(o), "0", FI_SOURCE, h, &i);
	fi_freeinfo(h);
	if (r == -FI_ENODATA)
		SKIP("no shared receive contexts");
	OK(r);
	EQ(i->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
	CHECK(i->domain_attr->max_ep_srx_ctx > 0);
	return i;
}
static void open_server(struct srv *s, uint64_t caps)
{
	struct ct *b = &s->base;

	memset(s, 0, sizeof *s);
	b->o.caps = caps;
	b->info = shared_info(&b->o);
	OK(fi_fabric(b->info->fabric_attr, &b->fabric, NULL));
	ct_open_eq(b);
	OK(fi_passive_ep(b->fabric, b->info, &b->pep, NULL));
	OK(fi_pep_bind(b->pep, &b->eq->fid, 0));
	OK(fi_listen(b->pep));
	ct_open_domain(b);
	OK(fi_srx_context(b->domain, b->info->rx_attr, &s->srx, s));
	EQ(s->srx->fid.fclass, FI_CLASS_SRX_CTX);
	CHECK(s->srx->fid.context == s);
}
/* Connects the next client to a new endpoint of the server. */
static void connect_one(struct srv *s, int i)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };
	struct ct *b = &s->base, *c = &s->cli[i];
	struct ct_name at = ct_getname(&b->pep->fid);
	struct fi_eq_cm_entry e;
	int got = 0;

	c->o.caps = b->o.caps;
	ct_prepare(c, &at);
	OK(fi_connect(c->ep, c->info->dest_addr, NULL, 0));
	ct_want_event(b, FI_CONNREQ, &e, sizeof e);
	OK(fi_cq_open(b->domain, &q, &s->rx[i], NULL));
	OK(fi_endpoint(b->domain, e.info, &s->ep[i], (void *)(intptr_t)i));
	OK(fi_ep_bind(s->ep[i], &b->eq->fid, 0));
	OK(fi_ep_bind(s->ep[i], &b->tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(s->ep[i], &s->rx[i]->fid, FI_RECV));
	OK(fi_ep_bind(s->ep[i], &s->srx->fid, 0));
	ERR(fi_ep_bind(s->ep[i], &s->srx->fid, 0), FI_EINVAL);
	OK(fi_enable(s->ep[i]));
	OK(fi_accept(s->ep[i], NULL, 0));
	fi_freeinfo(e.info);
	/* both ends are driven by this thread */
	while (got != 3) {
		struct fi_eq_cm_entry x;
		uint32_t ev;

		if (!(got & 1) && fi_eq_read(b->eq, &ev, &x, sizeof x, 0) > 0) {
			EQ(ev, FI_CONNECTED);
			CHECK(x.fid == &s->ep[i]->fid);
			got |= 1;
		}
		if (!(got & 2) && fi_eq_read(c->eq, &ev, &x, sizeof x, 0) > 0) {
			EQ(ev, FI_CONNECTED);
			got |= 2;
		}
	}
}
static void close_ep(struct srv *s, int i)
{
	if (!s->ep[i])
		return;
	OK(fi_close(&s->ep[i]->fid));
	OK(fi_close(&s->rx[i]->fid));
	s->ep[i] = NULL;
}
static void close_server(struct srv *s)
{
	for (int i = 0; i < N; i++) {
		if (s->cli[i].ep)
			ct_close(&s->cli[i]);
		if (s->ep[i] && s->srx)
			ERR(fi_close(&s->srx->fid), FI_EBUSY);
		close_ep(s, i);
	}
	OK(fi_close(&s->srx->fid));
	ct_close(&s->base);
}
/* Sends from a client and waits until the system has taken it. */
static void say(struct ct *c, const void *buf, size_t len)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;

	while ((r = fi_send(c->ep, buf, len, NULL, FI_ADDR_UNSPEC, NULL)) == -FI_EAGAIN)
		ct_progress(c);
	OK(r);
	while ((r = fi_cq_read(c->tx, &e, 1)) == -FI_EAGAIN)
		;
	EQ(r, 1);
}
/* The next receive that endpoint i reports. */
static struct fi_cq_tagged_entry hear(struct srv *s, int i)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;

	while ((r = fi_cq_read(s->rx[i], &e, 1)) == -FI_EAGAIN)
		for (int j = 0; j < N; j++)
			if (s->cli[j].ep)
				ct_progress(&s->cli[j]);
	if (r == -FI_EAVAIL) {
		struct fi_cq_err_entry x = { 0 };
		EQ(fi_cq_readerr(s->rx[i], &x, 0), 1);
		FAIL("error entry %d %s", x.err, fi_strerror(x.err));
	}
	EQ(r, 1);
	return e;
}
static void nothing(struct srv *s, int i)
{
	struct fi_cq_tagged_entry e;

	ERR(fi_cq_read(s->rx[i], &e, 1), FI_EAGAIN);
}

static void next_buffer(int rank)
{
	struct srv s;
	char buf[6][64];
	struct iovec iov[2] = { { buf[2], 3 }, { buf[2] + 32, 32 } };
	struct fi_cq_tagged_entry e;

	(void)rank;
	memset(buf, 0, sizeof buf);
	open_server(&s, FI_MSG);
	/* posting needs no endpoint */
	OK(fi_recv(s.srx, buf[0], 64, NULL, FI_ADDR_UNSPEC, &buf[0]));
	OK(fi_recv(s.srx, buf[1], 64, NULL, FI_ADDR_UNSPEC, &buf[1]));
	OK(fi_recvv(s.srx, iov, NULL, 2, FI_ADDR_UNSPEC, &buf[2]));
	OK(fi_recv(s.srx, NULL, 0, NULL, FI_ADDR_UNSPEC, &buf[3]));
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	/* whoever gets a message takes the oldest buffer, and reports it */
	say(&s.cli[2], "two", 4);
	e = hear(&s, 2);
	CHECK(e.op_context == &buf[0] && e.len == 4 && !strcmp(buf[0], "two"));
	EQ(e.flags & (FI_RECV | FI_MSG), FI_RECV | FI_MSG);
	say(&s.cli[0], "zero", 5);
	e = hear(&s, 0);
	CHECK(e.op_context == &buf[1] && !strcmp(buf[1], "zero"));
	/* segments are filled front to back */
	say(&s.cli[1], "abcdef", 7);
	e = hear(&s, 1);
	CHECK(e.op_context == &buf[2] && e.len == 7);
	CHECK(!memcmp(buf[2], "abc", 3) && !strcmp(buf[2] + 32, "def"));
	/* no room at all takes a message without bytes */
	say(&s.cli[1], "", 0);
	e = hear(&s, 1);
	CHECK(e.op_context == &buf[3] && e.len == 0);
	for (int i = 0; i < N; i++)
		nothing(&s, i);
	close_server(&s);
}

static void early(int rank)
{
	struct srv s;
	struct fi_cq_tagged_entry e;
	size_t big = 1 << 20;
	char *to = malloc(big), *from = malloc(big), small[64];

	(void)rank;
	open_server(&s, FI_MSG);
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	ct_fill(from, big, 7);
	/* before there is a buffer for them: order holds per connection */
	say(&s.cli[0], "a", 2);
	say(&s.cli[0], "b", 2);
	nothing(&s, 0);
	OK(fi_recv(s.srx, small, 32, NULL, FI_ADDR_UNSPEC, small));
	OK(fi_recv(s.srx, small + 32, 32, NULL, FI_ADDR_UNSPEC, small + 32));
	e = hear(&s, 0);
	CHECK(e.op_context == small && small[0] == 'a');
	e = hear(&s, 0);
	CHECK(e.op_context == small + 32 && small[32] == 'b');
	OK(fi_recv(s.srx, to, big, NULL, FI_ADDR_UNSPEC, to));
	while (fi_send(s.cli[1].ep, from, big, NULL, FI_ADDR_UNSPEC, NULL) == -FI_EAGAIN)
		ct_progress(&s.cli[1]);
	e = hear(&s, 1);
	CHECK(e.op_context == to && e.len == big && ct_same(to, big, 7));
	close_server(&s);
	free(to);
	free(from);
}

static void one_leaves(int rank)
{
	struct srv s;
	char buf[2][64];
	struct fi_eq_cm_entry x;
	struct fi_cq_tagged_entry e;

	(void)rank;
	open_server(&s, FI_MSG);
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	say(&s.cli[0], "lost", 5);
	nothing(&s, 0);
	OK(fi_recv(s.srx, buf[0], 64, NULL, FI_ADDR_UNSPEC, &buf[0]));
	e = hear(&s, 0);
	CHECK(e.op_context == &buf[0]);
	OK(fi_recv(s.srx, buf[1], 64, NULL, FI_ADDR_UNSPEC, &buf[1]));
	/* a connection that ends takes no buffer with it */
	ct_close(&s.cli[0]);
	ct_want_event(&s.base, FI_SHUTDOWN, &x, sizeof x);
	CHECK(x.fid == &s.ep[0]->fid);
	nothing(&s, 0);
	close_ep(&s, 0);
	say(&s.cli[1], "stays", 6);
	e = hear(&s, 1);
	CHECK(e.op_context == &buf[1] && !strcmp(buf[1], "stays"));
	/* what came for an endpoint that is closed is nobody's any more */
	say(&s.cli[1], "gone", 5);
	ct_idle(&s.base, 20);
	nothing(&s, 1);
	close_ep(&s, 1);
	OK(fi_recv(s.srx, buf[0], 64, NULL, FI_ADDR_UNSPEC, &buf[0]));
	say(&s.cli[2], "other", 6);
	e = hear(&s, 2);
	CHECK(e.op_context == &buf[0] && !strcmp(buf[0], "other"));
	close_server(&s);
}

static void multi(int rank)
{
	struct srv s;
	char buf[256];
	struct iovec iov = { buf, sizeof buf };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buf };
	size_t min = 64, got = 0, len = sizeof got;
	struct fi_cq_tagged_entry e;

	(void)rank;
	open_server(&s, FI_MSG | FI_MULTI_RECV);
	OK(fi_setopt(&s.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
	OK(fi_getopt(&s.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &len));
	EQ(got, min);
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	OK(fi_recvmsg(s.srx, &m, FI_MULTI_RECV | FI_COMPLETION));
	for (int i = 0; i < N; i++) {
		char text[80];

		memset(text, 'a' + i, sizeof text);
		say(&s.cli[i], text, sizeof text);
		e = hear(&s, i);
		CHECK(e.op_context == buf && e.buf == buf + 80 * i && e.len == 80);
		EQ(!!(e.flags & FI_MULTI_RECV), i == N - 1);
		CHECK(!memcmp(e.buf, text, sizeof text));
	}
	close_server(&s);
}

static void tags(int rank)
{
	struct srv s;
	char buf[2][64];
	struct fi_cq_tagged_entry e;

	(void)rank;
	open_server(&s, FI_MSG | FI_TAGGED);
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	OK(fi_trecv(s.srx, buf[0], 64, NULL, FI_ADDR_UNSPEC, 5, 0, &buf[0]));
	OK(fi_trecv(s.srx, buf[1], 64, NULL, FI_ADDR_UNSPEC, 6, 0, &buf[1]));
	OK(fi_tsend(s.cli[1].ep, "six", 4, NULL, FI_ADDR_UNSPEC, 6, NULL));
	e = hear(&s, 1);
	CHECK(e.op_context == &buf[1] && e.tag == 6 && !strcmp(buf[1], "six"));
	OK(fi_tsend(s.cli[2].ep, "five", 5, NULL, FI_ADDR_UNSPEC, 5, NULL));
	e = hear(&s, 2);
	CHECK(e.op_context == &buf[0] && e.tag == 5 && !strcmp(buf[0], "five"));
	close_server(&s);
}

static void wrong_use(int rank)
{
	struct srv s;
	char buf[64];
	struct fi_cq_err_entry err = { 0 };
	struct fi_cq_tagged_entry e;
	struct fid_ep *other;

	(void)rank;
	open_server(&s, FI_MSG);
	/* it receives, and nothing else */
	ERR(fi_send(s.srx, buf, 1, NULL, FI_ADDR_UNSPEC, NULL), FI_ENOSYS);
	ERR(fi_connect(s.srx, s.base.info->src_addr, NULL, 0), FI_ENOSYS);
	ERR(fi_ep_bind(s.srx, &s.base.eq->fid, 0), FI_EINVAL);
	ERR(fi_ep_bind(s.srx, &s.base.tx->fid, FI_TRANSMIT), FI_EINVAL);
	/* what is taken back is reported to its own queue */
	OK(fi_ep_bind(s.srx, &s.base.rx->fid, FI_RECV));
	OK(fi_enable(s.srx));
	OK(fi_recv(s.srx, buf, 64, NULL, FI_ADDR_UNSPEC, buf));
	OK(fi_cancel(&s.srx->fid, buf));
	ERR(fi_cq_read(s.base.rx, &e, 1), FI_EAVAIL);
	EQ(fi_cq_readerr(s.base.rx, &err, 0), 1);
	CHECK(err.err == FI_ECANCELED && err.op_context == buf);
	/* an endpoint with shared receives posts none itself */
	connect_one(&s, 0);
	ERR(fi_recv(s.ep[0], buf, 64, NULL, FI_ADDR_UNSPEC, buf), FI_ENOSYS);
	/* an endpoint is no shared context, nor is one of a closed domain */
	OK(fi_endpoint(s.base.domain, s.base.info, &other, NULL));
	ERR(fi_ep_bind(s.ep[0], &other->fid, 0), FI_EOPBADSTATE);
	ERR(fi_ep_bind(other, &s.ep[0]->fid, 0), FI_EINVAL);
	OK(fi_close(&other->fid));
	close_server(&s);
}

static const struct ct_test tests[] = {
	{ "any connected endpoint takes the next shared buffer and reports it", next_buffer, CT_MSG | CT_SOLO },
	{ "messages that come before a shared buffer wait for one", early, CT_MSG | CT_SOLO },
	{ "shared buffers stay when an endpoint that shares them goes", one_leaves, CT_MSG | CT_SOLO },
	{ "a shared multi-receive buffer is filled by all endpoints", multi, CT_MSG | CT_SOLO },
	{ "shared tagged receives match over all endpoints", tags, CT_MSG | CT_SOLO },
	{ "a shared receive context refuses what it cannot do", wrong_use, CT_MSG | CT_SOLO },
};
CT_MAIN("srx", tests)
