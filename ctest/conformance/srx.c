/* Shared receive contexts: fi_endpoint(3), fi_srx_context. */
#include "ct.h"

#define N 3

/* How each endpoint's queue is bound besides: FI_SELECTIVE_COMPLETION. */
static uint64_t bound_as[N];

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
	OK(fi_ep_bind(s->ep[i], &s->rx[i]->fid, FI_RECV | bound_as[i]));
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
static struct fi_cq_tagged_entry receive_event(struct srv *s, int i)
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
	/* the receiving endpoint takes the oldest buffer, and reports it */
	say(&s.cli[2], "two", 4);
	e = receive_event(&s, 2);
	CHECK(e.op_context == &buf[0] && e.len == 4 && !strcmp(buf[0], "two"));
	EQ(e.flags & (FI_RECV | FI_MSG), FI_RECV | FI_MSG);
	say(&s.cli[0], "zero", 5);
	e = receive_event(&s, 0);
	CHECK(e.op_context == &buf[1] && !strcmp(buf[1], "zero"));
	/* segments are filled front to back */
	say(&s.cli[1], "abcdef", 7);
	e = receive_event(&s, 1);
	CHECK(e.op_context == &buf[2] && e.len == 7);
	CHECK(!memcmp(buf[2], "abc", 3) && !strcmp(buf[2] + 32, "def"));
	/* no room at all takes a message without bytes */
	say(&s.cli[1], "", 0);
	e = receive_event(&s, 1);
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
	e = receive_event(&s, 0);
	CHECK(e.op_context == small && small[0] == 'a');
	e = receive_event(&s, 0);
	CHECK(e.op_context == small + 32 && small[32] == 'b');
	OK(fi_recv(s.srx, to, big, NULL, FI_ADDR_UNSPEC, to));
	while (fi_send(s.cli[1].ep, from, big, NULL, FI_ADDR_UNSPEC, NULL) == -FI_EAGAIN)
		ct_progress(&s.cli[1]);
	e = receive_event(&s, 1);
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
	e = receive_event(&s, 0);
	CHECK(e.op_context == &buf[0]);
	OK(fi_recv(s.srx, buf[1], 64, NULL, FI_ADDR_UNSPEC, &buf[1]));
	/* a connection that ends takes no buffer with it */
	ct_close(&s.cli[0]);
	ct_want_event(&s.base, FI_SHUTDOWN, &x, sizeof x);
	CHECK(x.fid == &s.ep[0]->fid);
	nothing(&s, 0);
	close_ep(&s, 0);
	say(&s.cli[1], "stays", 6);
	e = receive_event(&s, 1);
	CHECK(e.op_context == &buf[1] && !strcmp(buf[1], "stays"));
	/* messages for a closed endpoint are dropped */
	say(&s.cli[1], "gone", 5);
	ct_idle(&s.base, 20);
	nothing(&s, 1);
	close_ep(&s, 1);
	OK(fi_recv(s.srx, buf[0], 64, NULL, FI_ADDR_UNSPEC, &buf[0]));
	say(&s.cli[2], "other", 6);
	e = receive_event(&s, 2);
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
		e = receive_event(&s, i);
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
	e = receive_event(&s, 1);
	CHECK(e.op_context == &buf[1] && e.tag == 6 && !strcmp(buf[1], "six"));
	OK(fi_tsend(s.cli[2].ep, "five", 5, NULL, FI_ADDR_UNSPEC, 5, NULL));
	e = receive_event(&s, 2);
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
	/* a cancelled receive is reported to its own queue */
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

/* The endpoint taking the buffer determines the report of a success. */
static void selective(int rank)
{
	struct srv s;
	char buf[64], out[64];
	struct iovec iov = { buf, 64 };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buf };
	struct fi_cq_tagged_entry e;

	(void)rank;
	bound_as[1] = FI_SELECTIVE_COMPLETION;
	open_server(&s, FI_MSG);
	for (int i = 0; i < N; i++)
		connect_one(&s, i);
	/* receives that wait for messages, or the other way round */
	for (int early = 0; early < 2; early++) {
		for (int i = 0; i < N; i++) {
			ct_fill(out, 64, i);
			if (early) {
				say(&s.cli[i], out, 64);
				nothing(&s, i);
			}
			OK(fi_recv(s.srx, buf, 64, NULL, FI_ADDR_UNSPEC, buf));
			if (!early)
				say(&s.cli[i], out, 64);
			if (i == 1) {
				/* on a busy machine it comes later */
				do
					nothing(&s, 1);
				while (!ct_same(buf, 64, i));
			} else {
				e = receive_event(&s, i);
				CHECK(e.op_context == buf);
			}
			CHECK(ct_same(buf, 64, i));
		}
		/* a call with flags: the same, and one that asks is reported by all */
		for (int requests = 0; requests < 2; requests++)
			for (int i = 0; i < N; i++) {
				OK(fi_recvmsg(s.srx, &m, requests ? FI_COMPLETION : 0));
				say(&s.cli[i], "x", 2);
				if (i == 1 && !requests) {
					nothing(&s, 1);
					continue;
				}
				e = receive_event(&s, i);
				CHECK(e.op_context == buf && e.len == 2);
			}
	}
	close_server(&s);
}

/* The same for connectionless endpoints: N of one domain that share their receives, and one that sends to them. */
struct hall {
	struct ct at[N], out;
	struct fid_ep *srx;
	fi_addr_t to[N];
};

static enum fi_threading hall_threading;	/* FI_THREAD_UNSPEC: the setting of the run */
static void open_hall(struct hall *h, uint64_t caps)
{
	struct ct *b = &h->at[0];

	memset(h, 0, sizeof *h);
	b->o.caps = caps;
	b->o.threading = hall_threading;
	b->info = shared_info(&b->o);
	OK(fi_fabric(b->info->fabric_attr, &b->fabric, NULL));
	OK(fi_domain(b->fabric, b->info, &b->domain, NULL));
	OK(fi_srx_context(b->domain, b->info->rx_attr, &h->srx, h));
	EQ(h->srx->fid.fclass, FI_CLASS_SRX_CTX);
	h->out.o.caps = caps;
	ct_open_rdm(&h->out, NULL);
	for (int i = 0; i < N; i++) {
		struct ct_name name;
		struct ct *c = &h->at[i];

		if (i) {
			c->o = b->o;
			c->info = fi_dupinfo(b->info);
			c->fabric = b->fabric;
			c->domain = b->domain;
			c->borrowed = 1;
		}
		c->o.cq_flags = bound_as[i];
		ct_open_domain(c);
		ct_open_ep(c, c->info);
		OK(fi_ep_bind(c->ep, &h->srx->fid, 0));
		OK(fi_enable(c->ep));
		name = ct_getname(&c->ep->fid);
		h->to[i] = ct_insert(&h->out, &name);
		name = ct_getname(&h->out.ep->fid);
		c->peer = ct_insert(c, &name);
	}
}
static void hall_progress(struct hall *h)
{
	for (int i = 0; i < N; i++)
		if (h->at[i].ep)
			ct_progress(&h->at[i]);
	ct_progress(&h->out);
}
static void leave_hall(struct hall *h, int i)
{
	struct ct *c = &h->at[i];

	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
}
static void close_hall(struct hall *h)
{
	for (int i = 0; i < N; i++)
		if (h->at[i].ep)
			leave_hall(h, i);
	OK(fi_close(&h->srx->fid));
	ct_close(&h->out);
	for (int i = N; i-- > 0;)
		ct_close(&h->at[i]);
}
/* Starts sending to endpoint i, with a tag if that is not 0. */
static void tell(struct hall *h, int i, const void *buf, size_t len, uint64_t tag)
{
	struct fid_ep *ep = h->out.ep;
	ssize_t r;

	while ((r = tag ? fi_tsend(ep, buf, len, NULL, h->to[i], tag, (void *)buf)
			: fi_send(ep, buf, len, NULL, h->to[i], (void *)buf)) == -FI_EAGAIN)
		hall_progress(h);
	OK(r);
}
/* Waits for sent messages to arrive. Both ends are of this process: on a busy machine its own progress calls count, and not the
   time of other processes. */
static void pause_hall(struct hall *h)
{
	int64_t end = ct_ms() + 20;

	for (int rounds = 0; rounds < 300 || ct_ms() < end; rounds++)
		hall_progress(h);
}
/* The next entry of endpoint i, and the sender of the message. */
static struct fi_cq_tagged_entry notified(struct hall *h, int i)
{
	struct fi_cq_tagged_entry e;
	fi_addr_t src = FI_ADDR_NOTAVAIL;
	ssize_t r;

	while ((r = fi_cq_readfrom(h->at[i].rx, &e, 1, &src)) == -FI_EAGAIN)
		hall_progress(h);
	EQ(r, 1);
	EQ(src, h->at[i].peer);
	return e;
}
/* The next send is complete. */
static void gone(struct hall *h)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;

	while ((r = fi_cq_read(h->out.tx, &e, 1)) == -FI_EAGAIN)
		hall_progress(h);
	EQ(r, 1);
}
static void silent(struct hall *h)
{
	struct fi_cq_tagged_entry e;

	pause_hall(h);
	for (int i = 0; i < N; i++)
		ERR(fi_cq_read(h->at[i].rx, &e, 1), FI_EAGAIN);
}

static void hall_order(int rank)
{
	static const size_t sizes[] = { 8, 5000, 40000, 300000 };
	struct hall h;
	struct fi_cq_tagged_entry e;
	size_t most = 300000;
	char *in = malloc(4 * most), *out = malloc(most);

	(void)rank;
	open_hall(&h, FI_MSG | FI_SOURCE);
	ct_fill(out, most, 3);
	for (int early = 0; early < 2; early++)
		for (size_t s = 0; s < 4; s++) {
			/* receives that wait for messages, or the other way round */
			memset(in, 0, 4 * most);
			for (int step = 0; step < 2; step++)
				for (int i = 0; i < N; i++) {
					if (step == early)
						OK(fi_recv(h.srx, in + i * most, most, NULL, FI_ADDR_UNSPEC, in + i * most));
					else
						tell(&h, (i + 1) % N, out, sizes[s], 0);
					/* each comes before the next is sent */
					if (step != early && early)
						pause_hall(&h);
					if (step != early && !early) {
						e = notified(&h, (i + 1) % N);
						CHECK(e.op_context == in + i * most);
						EQ(e.len, sizes[s]);
						CHECK(ct_same(in + i * most, sizes[s], 3));
					}
				}
			for (int i = 0; early && i < N; i++) {
				e = notified(&h, (i + 1) % N);
				CHECK(e.op_context == in + i * most);
				EQ(e.len, sizes[s]);
				CHECK(ct_same(in + i * most, sizes[s], 3));
			}
			for (int i = 0; i < N; i++)
				gone(&h);
		}
	silent(&h);
	close_hall(&h);
	free(in);
	free(out);
}

/* Waits until the message with this tag is there, which is for endpoint i. */
static void there(struct hall *h, int i, struct fi_msg_tagged m, uint64_t tag)
{
	struct fi_cq_err_entry err = { 0 };
	struct fi_cq_tagged_entry e;

	m.tag = tag;
	for (;;) {
		OK(fi_trecvmsg(h->srx, &m, FI_PEEK | FI_COMPLETION));
		for (;;) {
			hall_progress(h);
			if (fi_cq_read(h->at[i].rx, &e, 1) == 1) {
				EQ(e.tag, tag);
				return;
			}
			if (fi_cq_read(h->at[0].rx, &e, 1) == -FI_EAVAIL)
				break;
		}
		EQ(fi_cq_readerr(h->at[0].rx, &err, 0), 1);
		EQ(err.err, FI_ENOMSG);
	}
}
static void hall_tags(int rank)
{
	struct hall h;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	uint64_t out[N] = { 10, 11, 12 }, in[2] = { 0 };
	struct iovec iov = { &in[0], 8 };
	struct fi_msg_tagged m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 51, .context = &in[0] };

	(void)rank;
	open_hall(&h, FI_TAGGED | FI_SOURCE);
	OK(fi_trecv(h.srx, &in[1], 8, NULL, FI_ADDR_UNSPEC, 7, 0, &in[1]));
	for (int i = 0; i < N; i++)
		tell(&h, i, &out[i], 8, 50 + i);
	for (int i = 0; i < N; i++)
		there(&h, i, m, 50 + i);
	silent(&h);
	/* a peek of a message at the endpoint that received it */
	OK(fi_trecvmsg(h.srx, &m, FI_PEEK | FI_CLAIM | FI_COMPLETION));
	e = notified(&h, 1);
	CHECK(e.op_context == &in[0] && e.tag == 51);
	/* no other receive gets a claimed message */
	OK(fi_trecv(h.srx, &in[1], 8, NULL, FI_ADDR_UNSPEC, 51, 1, &in[1]));
	EQ(notified(&h, 0).tag, 50);
	EQ(in[1], 10);
	OK(fi_trecvmsg(h.srx, &m, FI_CLAIM | FI_COMPLETION));
	EQ(notified(&h, 1).tag, 51);
	EQ(in[0], 11);
	m.tag = 52;
	OK(fi_trecvmsg(h.srx, &m, FI_PEEK | FI_DISCARD | FI_COMPLETION));
	EQ(notified(&h, 2).tag, 52);
	OK(fi_trecvmsg(h.srx, &m, FI_PEEK | FI_COMPLETION));
	/* the message is gone, as the first endpoint's queue reports */
	ERR(fi_cq_read(h.at[0].rx, &e, 1), FI_EAVAIL);
	EQ(fi_cq_readerr(h.at[0].rx, &err, 0), 1);
	EQ(err.err, FI_ENOMSG);
	/* the receive with tag 7 is there still */
	tell(&h, 2, &out[2], 8, 7);
	e = notified(&h, 2);
	CHECK(e.op_context == &in[1] && in[1] == 12);
	close_hall(&h);
}

static void hall_selective(int rank)
{
	static const size_t sizes[] = { 8, 5000, 40000, 300000 };
	size_t most = 300000;
	char *in = malloc(most), *out = malloc(most);
	struct iovec iov = { in, most };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = in };
	struct fi_msg_tagged t = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 3, .context = in };
	struct fi_cq_tagged_entry e;
	struct hall h;

	(void)rank;
	bound_as[1] = FI_SELECTIVE_COMPLETION;
	open_hall(&h, FI_MSG | FI_TAGGED | FI_SOURCE);
	for (int s = 0; s < 4; s++)
		for (int early = 0; early < 2; early++)
			for (int requests = 0; requests < 3; requests++)
				for (int i = 0; i < N; i++) {
					ct_fill(out, sizes[s], i);
					if (early) {
						tell(&h, i, out, sizes[s], s % 2 ? 3 : 0);
						pause_hall(&h);
					}
					if (!requests && s % 2)
						OK(fi_trecv(h.srx, in, most, NULL, FI_ADDR_UNSPEC, 3, 0, in));
					else if (!requests)
						OK(fi_recv(h.srx, in, most, NULL, FI_ADDR_UNSPEC, in));
					else if (s % 2)
						OK(fi_trecvmsg(h.srx, &t, requests == 2 ? FI_COMPLETION : 0));
					else
						OK(fi_recvmsg(h.srx, &m, requests == 2 ? FI_COMPLETION : 0));
					if (!early)
						tell(&h, i, out, sizes[s], s % 2 ? 3 : 0);
					if (i == 1 && requests < 2) {
						silent(&h);
					} else {
						e = notified(&h, i);
						CHECK(e.op_context == in && e.len == sizes[s]);
						CHECK(ct_same(in, sizes[s], i));
					}
					gone(&h);
				}
	close_hall(&h);
	free(in);
	free(out);
}

static void hall_leaves(int rank)
{
	struct hall h;
	struct fi_cq_tagged_entry e;
	static char big[2][300000];
	int in = -1, n = 4;

	(void)rank;
	open_hall(&h, FI_MSG | FI_SOURCE);
	/* messages for a closed endpoint are dropped: a small one and one that waits at its sender */
	tell(&h, 0, &n, sizeof n, 0);
	tell(&h, 0, big[0], sizeof big[0], 0);
	pause_hall(&h);
	leave_hall(&h, 0);
	tell(&h, 2, "2", 2, 0);
	pause_hall(&h);
	OK(fi_recv(h.srx, big[1], sizeof big[1], NULL, FI_ADDR_UNSPEC, &in));
	e = notified(&h, 2);
	CHECK(e.op_context == &in && e.len == 2 && !strcmp(big[1], "2"));
	/* a receive waits for the remaining endpoints */
	OK(fi_recv(h.srx, &in, sizeof in, NULL, FI_ADDR_UNSPEC, &in));
	leave_hall(&h, 1);
	n = 9;
	tell(&h, 2, &n, sizeof n, 0);
	e = notified(&h, 2);
	CHECK(e.op_context == &in && in == 9);
	ERR(fi_close(&h.srx->fid), FI_EBUSY);
	leave_hall(&h, 2);
	/* and stays without endpoints */
	OK(fi_recv(h.srx, &in, sizeof in, NULL, FI_ADDR_UNSPEC, &in));
	close_hall(&h);
}

/* Announced messages end with their sender, and do not block others. */
static void hall_sender_leaves(int rank)
{
	static char big[300000], in[3][300000];
	struct fi_cq_err_entry err = { 0 };
	struct ct_name name;
	struct fi_cq_tagged_entry e;
	struct ct late = { 0 };
	struct hall h;

	(void)rank;
	open_hall(&h, FI_MSG | FI_SOURCE);
	tell(&h, 0, big, sizeof big, 0);
	tell(&h, 1, big, sizeof big, 0);
	pause_hall(&h);
	OK(fi_close(&h.out.ep->fid));
	h.out.ep = NULL;
	pause_hall(&h);
	late.o = h.out.o;
	name = ct_open_rdm(&late, NULL);
	h.at[0].peer = ct_insert(&h.at[0], &name);
	name = ct_getname(&h.at[0].ep->fid);
	ct_insert(&late, &name);
	/* one of which all was here may be taken */
	for (int i = 0; i < 3; i++)
		OK(fi_recv(h.srx, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, in[i]));
	pause_hall(&h);
	POST(&late, fi_inject(late.ep, "late", 5, 0));
	for (;;) {
		ssize_t r = fi_cq_read(h.at[0].rx, &e, 1);

		ct_progress(&late);
		hall_progress(&h);
		if (r == -FI_EAVAIL)
			EQ(fi_cq_readerr(h.at[0].rx, &err, 0), 1);
		else if (r == 1 && e.len == 5)
			break;
		else
			CHECK(r == -FI_EAGAIN || e.len == sizeof big);
	}
	CHECK(!strcmp(e.op_context, "late"));
	ct_close(&late);
	close_hall(&h);
}

enum { RACERS = 300 };
struct race {
	struct hall h;
	pthread_barrier_t combined;
	char in[RACERS][8], done[RACERS];
};
static void *post_all(void *arg)
{
	struct race *r = arg;

	pthread_barrier_wait(&r->combined);
	for (int i = 0; i < RACERS; i++)
		OK(fi_trecv(r->h.srx, r->in[i], 8, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(i)));
	return NULL;
}
/* Reads entries of receives with a message or of cancelled ones; at least `want`. */
static void read_all(struct race *r, int *n, int want)
{
	struct fi_cq_tagged_entry e = { 0 };
	struct fi_cq_err_entry err = { 0 };

	for (int64_t end = ct_ms() + 20; *n < want || ct_ms() < end; hall_progress(&r->h))
		for (int i = 0; i < N; i++) {
			ssize_t got = fi_cq_read(r->h.at[i].rx, &e, 1);

			if (got == -FI_EAVAIL) {
				EQ(fi_cq_readerr(r->h.at[i].rx, &err, 0), 1);
				e.op_context = err.op_context;
			} else if (got != 1) {
				continue;
			}
			CHECK(!r->done[(struct fi_context2 *)e.op_context - ct_ctx]++);
			++*n;
			end = ct_ms() + 60;
		}
}
/* Receives are posted while an endpoint is closed for which messages wait. */
static void hall_race(int rank)
{
	static struct race r;

	(void)rank;
	hall_threading = FI_THREAD_SAFE;
	for (int round = 0; round < 8; round++) {
		int leaver = round % 2, n = 0;
		pthread_t poster;

		if (leaver == 0)
			open_hall(&r.h, FI_TAGGED | FI_SOURCE);
		memset(r.done, 0, sizeof r.done);
		for (int i = 0; i < RACERS; i++) {
			ssize_t q;

			while ((q = fi_tinject(r.h.out.ep, "hello", 5, r.h.to[leaver], 1)) == -FI_EAGAIN)
				hall_progress(&r.h);
			OK(q);
		}
		pause_hall(&r.h);
		OK(pthread_barrier_init(&r.combined, NULL, 2));
		OK(pthread_create(&poster, NULL, post_all, &r));
		pthread_barrier_wait(&r.combined);
		for (volatile int spin = 0; spin < round * 3000; spin++)
			;
		leave_hall(&r.h, leaver);
		OK(pthread_join(poster, NULL));
		read_all(&r, &n, 0);
		for (int i = 0; i < RACERS; i++)
			if (!r.done[i])
				OK(fi_cancel(&r.h.srx->fid, CTX(i)));
		read_all(&r, &n, RACERS);
		EQ(n, RACERS);
		if (leaver)
			close_hall(&r.h);
	}
}

static void hall_multi(int rank)
{
	struct hall h;
	struct fi_cq_tagged_entry e;
	char buf[256], text[N][80];
	struct iovec iov = { buf, sizeof buf };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buf };
	size_t min = 64;

	(void)rank;
	open_hall(&h, FI_MSG | FI_MULTI_RECV | FI_SOURCE);
	OK(fi_setopt(&h.srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
	for (int early = 0; early < 2; early++) {
		if (early)
			OK(fi_recvmsg(h.srx, &m, FI_MULTI_RECV | FI_COMPLETION));
		for (int i = 0; i < N; i++) {
			memset(text[i], 'a' + i + early, 80);
			tell(&h, i, text[i], 80, 0);
			pause_hall(&h);
		}
		if (!early)
			OK(fi_recvmsg(h.srx, &m, FI_MULTI_RECV | FI_COMPLETION));
		for (int i = 0; i < N; i++) {
			e = notified(&h, i);
			CHECK(e.op_context == buf && e.buf == buf + 80 * i && e.len == 80);
			EQ(!!(e.flags & FI_MULTI_RECV), i == N - 1);
			CHECK(!memcmp(e.buf, text[i], 80));
		}
	}
	close_hall(&h);
}

static void hall_chooses(int rank)
{
	struct hall h;
	struct ct other = { 0 };
	struct ct_name name;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	int in[3] = { 0 }, n = 6;
	fi_addr_t from;

	(void)rank;
	open_hall(&h, FI_MSG | FI_SOURCE | FI_DIRECTED_RECV);
	/* the same address has the same name at all of them, except at the first, whose vector has no other */
	other.o.caps = FI_MSG;
	name = ct_open_rdm(&other, NULL);
	for (int i = 1; i < N; i++)
		from = ct_insert(&h.at[i], &name);
	OK(fi_recv(h.srx, &in[0], 4, NULL, from, &in[0]));
	OK(fi_recv(h.srx, &in[1], 4, NULL, FI_ADDR_UNSPEC, &in[1]));
	tell(&h, 1, &n, sizeof n, 0);
	e = notified(&h, 1);
	CHECK(e.op_context == &in[1] && in[1] == 6);
	/* a cancelled receive is reported to the first bound queue */
	OK(fi_cancel(&h.srx->fid, &in[0]));
	ERR(fi_cq_read(h.at[0].rx, &e, 1), FI_EAVAIL);
	EQ(fi_cq_readerr(h.at[0].rx, &err, 0), 1);
	CHECK(err.err == FI_ECANCELED && err.op_context == &in[0]);
	/* a message waits for the receive that names its sender */
	tell(&h, 2, &n, sizeof n, 0);
	pause_hall(&h);
	OK(fi_recv(h.srx, &in[0], 4, NULL, from, &in[0]));
	silent(&h);
	OK(fi_recv(h.srx, &in[2], 4, NULL, h.at[2].peer, &in[2]));
	e = notified(&h, 2);
	CHECK(e.op_context == &in[2] && in[2] == 6);
	ct_close(&other);
	close_hall(&h);
}

/* Cancelled receives have a queue for their report as long as endpoints share the context. */
static void taken_back(struct hall *h, int i)
{
	struct fi_cq_err_entry err = { 0 };
	struct fi_cq_tagged_entry e;
	int in;

	OK(fi_recv(h->srx, &in, 4, NULL, FI_ADDR_UNSPEC, &in));
	OK(fi_cancel(&h->srx->fid, &in));
	ERR(fi_cq_read(h->at[i].rx, &e, 1), FI_EAVAIL);
	EQ(fi_cq_readerr(h->at[i].rx, &err, 0), 1);
	CHECK(err.err == FI_ECANCELED && err.op_context == &in);
}
static void hall_borrows(int rank)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct hall h;

	(void)rank;
	open_hall(&h, FI_MSG | FI_SOURCE);
	taken_back(&h, 0);
	ERR(fi_close(&h.at[0].rx->fid), FI_EBUSY);
	for (int i = 0; i < N; i++) {
		leave_hall(&h, i);
		OK(fi_close(&h.at[i].rx->fid));
		h.at[i].rx = NULL;
		if (i + 1 < N)
			taken_back(&h, i + 1);
	}
	/* no endpoint is left, and then another one comes */
	OK(fi_cq_open(h.at[0].domain, &attr, &h.at[0].rx, NULL));
	ct_open_ep(&h.at[0], h.at[0].info);
	OK(fi_ep_bind(h.at[0].ep, &h.srx->fid, 0));
	OK(fi_enable(h.at[0].ep));
	taken_back(&h, 0);
	close_hall(&h);
}

static const struct ct_test tests[] = {
	{ "any connected endpoint takes the next shared buffer and reports it", next_buffer, CT_MSG | CT_SOLO },
	{ "messages arriving before a shared buffer wait for one", early, CT_MSG | CT_SOLO },
	{ "closing an endpoint keeps the shared buffers", one_leaves, CT_MSG | CT_SOLO },
	{ "a shared multi-receive buffer is filled by all endpoints", multi, CT_MSG | CT_SOLO },
	{ "shared tagged receives match over all endpoints", tags, CT_MSG | CT_SOLO },
	{ "a shared buffer is reported as configured by the connected endpoint taking it", selective, CT_MSG | CT_SOLO },
	{ "a shared receive context refuses unsupported calls", wrong_use, CT_MSG | CT_SOLO },
	{ "any connectionless endpoint takes the next shared buffer, for a message of any size", hall_order, CT_RDM | CT_REL | CT_SOLO },
	{ "shared tagged receives of connectionless endpoints match, peek, claim and discard", hall_tags, CT_RDM | CT_REL | CT_SOLO },
	{ "a shared buffer is reported as configured by the connectionless endpoint taking it", hall_selective, CT_RDM | CT_REL | CT_SOLO },
	{ "closing a connectionless endpoint keeps shared buffers and drops its messages", hall_leaves, CT_RDM | CT_REL | CT_SOLO },
	{ "messages announced for shared receives are dropped with their sender", hall_sender_leaves, CT_RDM | CT_REL | CT_SOLO },
	{ "no shared receive is lost when an endpoint with waiting messages closes", hall_race, CT_RDM | CT_REL | CT_SOLO },
	{ "a shared multi-receive buffer is filled by all connectionless endpoints", hall_multi, CT_RDM | CT_REL | CT_SOLO },
	{ "shared receives select the sender and can be cancelled", hall_chooses, CT_RDM | CT_REL | CT_SOLO },
	{ "a shared receive context without a queue reports to that of an existing endpoint", hall_borrows, CT_RDM | CT_REL | CT_SOLO },
};
CT_MAIN("srx", tests)
