/* FI_MULTICAST of reliable endpoints (fi_join of fi_cm(3), fi_msg(3)): groups, their members, and the receivers of messages. */
#include "ct.h"
#include <sys/prctl.h>

#define MOST 5

/* Endpoints of this process that have each other in their vectors. */
struct party {
	struct ct c[MOST];
	struct ct_name name[MOST];
	fi_addr_t addr[MOST][MOST];	/* of endpoint r, at endpoint e */
	int n;
};

static const struct ct_opt usual = { .caps = FI_MSG | FI_TAGGED | FI_MULTICAST | FI_SOURCE, .cq_size = 128 };

static struct ct_name open_one(struct ct *c, struct ct *base, const struct ct_opt *o) { return ct_open_at(c, base, o, NULL); }
static void round_number(struct party *p)
{
	for (int e = 0; e < p->n; e++)
		ct_progress(&p->c[e]);
}
static void synchronize(struct party *p, int e, int r) { p->addr[e][r] = ct_insert(&p->c[e], &p->name[r]); }
/* n endpoints; each has all others in its vector, but not itself. */
static void open_party(struct party *p, int n, const struct ct_opt *o)
{
	memset(p, 0, sizeof *p);
	for (p->n = 0; p->n < n; p->n++)
		p->name[p->n] = open_one(&p->c[p->n], p->n ? &p->c[0] : NULL, o ? o : &usual);
	for (int e = 0; e < n; e++)
		for (int r = 0; r < n; r++)
			if (r != e)
				synchronize(p, e, r);
}
static void close_party(struct party *p)
{
	for (int e = p->n - 1; e >= 0; e--)
		ct_close(&p->c[e]);
}
static struct sockaddr_in group_at(int i)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(7000 + i) };

	inet_pton(AF_INET, "239.1.2.3", &a.sin_addr);
	return a;
}
static struct fid_mc *begin_join(struct party *p, int e, int i, uint64_t flags)
{
	struct sockaddr_in a = group_at(i);
	struct fid_mc *mc = NULL;

	OK(fi_join(p->c[e].ep, &a, flags, &mc, CTX(e)));
	CHECK(mc);
	EQ(mc->fid.fclass, FI_CLASS_MC);
	return mc;
}
/* The next event: this group's. */
static struct fid_mc *end_join(struct party *p, struct fid_mc *mc, int e)
{
	struct fi_eq_entry x;
	uint32_t ev;
	ssize_t r;

	while ((r = fi_eq_read(p->c[0].eq, &ev, &x, sizeof x, 0)) == -FI_EAGAIN)
		round_number(p);
	EQ(r, sizeof x);
	EQ(ev, FI_JOIN_COMPLETE);
	CHECK(x.fid == &mc->fid);
	CHECK(x.context == CTX(e));
	CHECK(fi_mc_addr(mc) != FI_ADDR_NOTAVAIL);
	return mc;
}
static struct fid_mc *join(struct party *p, int e, int i, uint64_t flags)
{
	return end_join(p, begin_join(p, e, i, flags), e);
}
/* A send to a group, repeated until every peer has reported its membership. */
#define TO_GROUP(p, x) do { long sent_; while ((sent_ = (long)(x)) == -FI_EAGAIN) round_number(p); OK(sent_); } while (0)

/* The next entry of a queue of endpoint e. */
static struct fi_cq_tagged_entry next(struct party *p, int e, int tx, fi_addr_t *src, struct fi_cq_err_entry *err)
{
	struct fi_cq_tagged_entry x = { 0 };
	struct fid_cq *q = tx ? p->c[e].tx : p->c[e].rx;
	ssize_t r;

	while ((r = src ? fi_cq_readfrom(q, &x, 1, src) : fi_cq_read(q, &x, 1)) == -FI_EAGAIN)
		round_number(p);
	if (r == -FI_EAVAIL) {
		struct fi_cq_err_entry got = { 0 };

		EQ(fi_cq_readerr(q, &got, 0), 1);
		if (!err)
			FAIL("error entry %d %s", got.err, fi_strerror(got.err));
		*err = got;
	} else {
		EQ(r, 1);
		CHECK(!err);
	}
	return x;
}
static void sent(struct party *p, int e, void *ctx)
{
	struct fi_cq_tagged_entry x = next(p, e, 1, NULL, NULL);

	CHECK(x.op_context == ctx);
	CHECK(x.flags & FI_SEND);
}
/* A message of len bytes of this seed has come to r, from s. */
static void received(struct party *p, int r, int s, const void *buf, size_t len, unsigned seed)
{
	fi_addr_t src = FI_ADDR_NOTAVAIL;
	struct fi_cq_tagged_entry x = next(p, r, 0, &src, NULL);

	CHECK(x.op_context == CTX(200 + r));
	EQ(x.len, len);
	EQ(src, p->addr[r][s]);
	CHECK(ct_same(buf, len, seed));
}
static void post(struct party *p, int r, void *buf, size_t len)
{
	POST(&p->c[r], fi_recv(p->c[r].ep, buf, len, ct_desc(buf), FI_ADDR_UNSPEC, CTX(200 + r)));
}
/* None of the queues has anything; watched for a while. */
static void silence(struct party *p)
{
	for (int64_t end = ct_ms() + 100; ct_ms() < end; ct_nap(1))
		round_number(p);
	for (int e = 0; e < p->n; e++) {
		struct fi_cq_tagged_entry x;

		ERR(fi_cq_read(p->c[e].tx, &x, 1), FI_EAGAIN);
		ERR(fi_cq_read(p->c[e].rx, &x, 1), FI_EAGAIN);
	}
}
/* One message of len bytes from s to the group: exactly the endpoints with their bit set get it. */
static void round_of(struct party *p, int s, fi_addr_t to, unsigned who, size_t len, unsigned seed)
{
	static char *buf[MOST], *out;
	static size_t space;

	if (space < len + 1) {
		out = malloc(space = len + 1);
		for (int r = 0; r < MOST; r++)
			buf[r] = malloc(space);
	}
	ct_fill(out, len, seed);
	for (int r = 0; r < p->n; r++)
		if (who >> r & 1)
			post(p, r, buf[r], len + 1);
	TO_GROUP(p, fi_send(p->c[s].ep, out, len, NULL, to, CTX(100)));
	sent(p, s, CTX(100));
	for (int r = 0; r < p->n; r++)
		if (who >> r & 1)
			received(p, r, s, buf[r], len, seed);
}

static void only_if_asked(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_MULTICAST };
	struct fi_info *i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);

	(void)rank;
	CHECK(i->caps & FI_MULTICAST);
	CHECK(!(i->ep_attr->mem_tag_format & 1ULL << 63));
	fi_freeinfo(i);
	o.caps = 0;
	i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	CHECK(!((i->caps | i->tx_attr->caps | i->rx_attr->caps) & FI_MULTICAST));
	fi_freeinfo(i);
}
static void everybody(int rank)
{
	struct party p;
	struct fid_mc *mc[MOST];
	fi_addr_t to;

	(void)rank;
	open_party(&p, 4, NULL);
	for (int e = 0; e < 4; e++)
		mc[e] = join(&p, e, 0, e == 0 ? FI_SEND : e == 1 ? FI_RECV : 0);
	to = fi_mc_addr(mc[0]);
	round_of(&p, 0, to, 0xe, 0, 1);
	round_of(&p, 0, to, 0xe, 17, 2);
	round_of(&p, 0, to, 0xe, 5000, 3);
	round_of(&p, 0, to, 0xe, 3 << 20, 4);
	round_of(&p, 2, fi_mc_addr(mc[2]), 0xa, 40, 5);	/* one that receives as well */
	round_of(&p, 3, fi_mc_addr(mc[3]), 0x6, 300000, 6);
	silence(&p);
	for (int e = 0; e < 4; e++)
		OK(fi_close(&mc[e]->fid));
	close_party(&p);
}
/* An endpoint with its own address in its vector is a member like any other. */
static void itself(int rank)
{
	struct party p;
	struct fid_mc *mc[2];

	(void)rank;
	open_party(&p, 2, NULL);
	synchronize(&p, 0, 0);
	mc[0] = join(&p, 0, 0, FI_SEND | FI_RECV);
	mc[1] = join(&p, 1, 0, FI_RECV);
	round_of(&p, 0, fi_mc_addr(mc[0]), 0x3, 100, 1);
	round_of(&p, 0, fi_mc_addr(mc[0]), 0x3, 1 << 20, 2);
	silence(&p);
	OK(fi_close(&mc[0]->fid));
	OK(fi_close(&mc[1]->fid));
	close_party(&p);
}
static void come_and_go(int rank)
{
	struct party p;
	struct fid_mc *s, *a, *b;
	fi_addr_t to;
	char out[8] = { 0 };

	(void)rank;
	open_party(&p, 3, NULL);
	s = join(&p, 0, 0, FI_SEND);
	to = fi_mc_addr(s);
	round_of(&p, 0, to, 0, 10, 1);		/* no receiver */
	TO_GROUP(&p, fi_inject(p.c[0].ep, out, sizeof out, to));
	a = join(&p, 1, 0, FI_RECV);
	round_of(&p, 0, to, 2, 10, 2);
	b = join(&p, 2, 0, FI_RECV);
	round_of(&p, 0, to, 6, 10, 3);
	OK(fi_close(&a->fid));
	for (int64_t end = ct_ms() + 200; ct_ms() < end; ct_nap(1))
		round_number(&p);			/* the sender is notified */
	round_of(&p, 0, to, 4, 10, 4);
	a = join(&p, 1, 0, FI_RECV);
	round_of(&p, 0, to, 6, 10, 5);
	silence(&p);
	OK(fi_close(&s->fid));
	ERR(fi_send(p.c[0].ep, out, 1, NULL, to, NULL), FI_EINVAL);	/* no group any more */
	s = join(&p, 0, 0, FI_SEND);		/* asks again */
	round_of(&p, 0, fi_mc_addr(s), 6, 10, 6);
	OK(fi_close(&s->fid));
	OK(fi_close(&a->fid));
	OK(fi_close(&b->fid));
	close_party(&p);
}
/* Groups differ by address and by port. */
static void several(int rank)
{
	struct party p;
	struct fid_mc *s[3], *r[3];

	(void)rank;
	open_party(&p, 3, NULL);
	for (int i = 0; i < 3; i++) {
		s[i] = join(&p, 0, i, FI_SEND);
		r[i] = join(&p, 1 + i % 2, i, FI_RECV);
	}
	for (int i = 0; i < 3; i++)
		round_of(&p, 0, fi_mc_addr(s[i]), i % 2 ? 4 : 2, 64, i);
	silence(&p);
	for (int i = 0; i < 3; i++) {
		OK(fi_close(&s[i]->fid));
		OK(fi_close(&r[i]->fid));
	}
	close_party(&p);
}
/* Addresses that are inserted when the group is there already. */
static void inserted_late(int rank)
{
	struct party p = { .n = 0 };
	struct fid_mc *s, *r;

	(void)rank;
	for (; p.n < 3; p.n++)
		p.name[p.n] = open_one(&p.c[p.n], p.n ? &p.c[0] : NULL, &usual);
	s = join(&p, 0, 0, FI_SEND);		/* no peer to query */
	r = join(&p, 1, 0, FI_RECV);
	round_of(&p, 0, fi_mc_addr(s), 0, 10, 1);
	synchronize(&p, 0, 1);				/* queried by an unknown peer */
	for (int i = 0; i < 50; i++, ct_nap(2))
		round_number(&p);
	ERR(fi_send(p.c[0].ep, &p, 1, NULL, fi_mc_addr(s), NULL), FI_EAGAIN);
	synchronize(&p, 1, 0);
	round_of(&p, 0, fi_mc_addr(s), 2, 10, 2);
	synchronize(&p, 2, 0);				/* notified by an unknown peer */
	OK(fi_close(&r->fid));
	r = begin_join(&p, 2, 0, FI_RECV);
	for (int i = 0; i < 50; i++, ct_nap(2))
		round_number(&p);
	synchronize(&p, 0, 2);
	end_join(&p, r, 2);
	round_of(&p, 0, fi_mc_addr(s), 4, 10, 3);
	/* and taken out */
	OK(fi_av_remove(p.c[0].av, &p.addr[0][2], 1, 0));
	round_of(&p, 0, fi_mc_addr(s), 0, 10, 4);
	silence(&p);
	OK(fi_close(&s->fid));
	OK(fi_close(&r->fid));
	close_party(&p);
}
static void every_call(int rank)
{
	struct party p;
	struct fid_mc *s, *r[2];
	char out[64], in[2][64];
	struct iovec v[2] = { { out, 20 }, { out + 20, 13 } };
	struct fi_msg m = { .msg_iov = v, .iov_count = 2, .context = CTX(100), .data = 77 };
	struct fi_msg_tagged t = { .msg_iov = v, .iov_count = 2, .context = CTX(100), .data = 78, .tag = 9 };
	fi_addr_t to;

	(void)rank;
	open_party(&p, 3, NULL);
	s = join(&p, 0, 0, FI_SEND);
	for (int i = 0; i < 2; i++)
		r[i] = join(&p, 1 + i, 0, FI_RECV);
	to = m.addr = t.addr = fi_mc_addr(s);
	for (int call = 0; call < 13; call++) {
		struct fid_ep *ep = p.c[0].ep;
		int tagged = call >= 7, quiet = 0, data = 0;

		ct_fill(out, sizeof out, call);
		for (int i = 0; i < 2; i++) {
			memset(in[i], 0, sizeof in[i]);
			if (tagged)
				POST(&p.c[1 + i], fi_trecv(p.c[1 + i].ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, 9, 0, CTX(201 + i)));
			else
				post(&p, 1 + i, in[i], sizeof in[i]);
		}
		switch (call) {
		case 0: TO_GROUP(&p, fi_send(ep, out, 33, NULL, to, CTX(100))); break;
		case 1: TO_GROUP(&p, fi_sendv(ep, v, NULL, 2, to, CTX(100))); break;
		case 2: TO_GROUP(&p, fi_sendmsg(ep, &m, FI_MULTICAST | FI_REMOTE_CQ_DATA)); data = 77; break;
		case 3: TO_GROUP(&p, fi_sendmsg(ep, &m, FI_MULTICAST | FI_INJECT | FI_DELIVERY_COMPLETE)); break;
		case 4: TO_GROUP(&p, fi_senddata(ep, out, 33, NULL, 76, to, CTX(100))); data = 76; break;
		case 5: TO_GROUP(&p, fi_inject(ep, out, 33, to)); quiet = 1; break;
		case 6: TO_GROUP(&p, fi_injectdata(ep, out, 33, 75, to)); quiet = 1, data = 75; break;
		case 7: TO_GROUP(&p, fi_tsend(ep, out, 33, NULL, to, 9, CTX(100))); break;
		case 8: TO_GROUP(&p, fi_tsendv(ep, v, NULL, 2, to, 9, CTX(100))); break;
		case 9: TO_GROUP(&p, fi_tsendmsg(ep, &t, FI_MULTICAST | FI_REMOTE_CQ_DATA)); data = 78; break;
		case 10: TO_GROUP(&p, fi_tsenddata(ep, out, 33, NULL, 74, to, 9, CTX(100))); data = 74; break;
		case 11: TO_GROUP(&p, fi_tinject(ep, out, 33, to, 9)); quiet = 1; break;
		case 12: TO_GROUP(&p, fi_tinjectdata(ep, out, 33, 73, to, 9)); quiet = 1, data = 73; break;
		}
		if (quiet || call == 3)
			memset(out, 0, sizeof out);	/* the application's again */
		for (int i = 0; i < 2; i++) {
			struct fi_cq_tagged_entry x = next(&p, 1 + i, 0, NULL, NULL);

			CHECK(x.op_context == CTX(201 + i));
			CHECK(x.flags & (tagged ? FI_TAGGED : FI_MSG));
			EQ(!!(x.flags & FI_REMOTE_CQ_DATA), !!data);
			EQ(x.len, 33);
			if (data)
				EQ(x.data, data);
			if (tagged)
				EQ(x.tag, 9);
			CHECK(ct_same(in[i], 33, call));
		}
		if (!quiet) {
			struct fi_cq_tagged_entry x = next(&p, 0, 1, NULL, NULL);

			CHECK(x.op_context == CTX(100));
			CHECK(x.flags & FI_MULTICAST);
			CHECK(x.flags & (tagged ? FI_TAGGED : FI_MSG));
		}
	}
	silence(&p);
	OK(fi_close(&s->fid));
	OK(fi_close(&r[0]->fid));
	OK(fi_close(&r[1]->fid));
	close_party(&p);
}
static void counted(int rank)
{
	struct ct_opt o = usual;
	struct party p;
	struct fid_mc *s, *r[2];
	struct fi_msg m = { .context = CTX(100) };
	char b[32], in[2][32];

	(void)rank;
	o.cntr = 1;
	o.cq_flags = FI_SELECTIVE_COMPLETION;
	open_party(&p, 3, &o);
	s = join(&p, 0, 0, FI_SEND);
	for (int i = 0; i < 2; i++)
		r[i] = join(&p, 1 + i, 0, FI_RECV);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 3; k++)
			post(&p, 1 + i, in[i], sizeof in[i]);
	ct_fill(b, sizeof b, 1);
	m.addr = fi_mc_addr(s);
	TO_GROUP(&p, fi_send(p.c[0].ep, b, sizeof b, NULL, m.addr, CTX(100)));
	TO_GROUP(&p, fi_inject(p.c[0].ep, b, sizeof b, m.addr));
	TO_GROUP(&p, fi_sendmsg(p.c[0].ep, &m, FI_MULTICAST | FI_COMPLETION));
	sent(&p, 0, CTX(100));
	while (fi_cntr_read(p.c[0].txc) < 3 || fi_cntr_read(p.c[1].rxc) < 3 || fi_cntr_read(p.c[2].rxc) < 3)
		round_number(&p);
	silence(&p);		/* one entry for the send that requested it */
	EQ(fi_cntr_read(p.c[0].txc), 3);
	EQ(fi_cntr_read(p.c[1].rxc), 3);
	EQ(fi_cntr_readerr(p.c[0].txc), 0);
	OK(fi_close(&s->fid));
	OK(fi_close(&r[0]->fid));
	OK(fi_close(&r[1]->fid));
	close_party(&p);
}
/* Messages to a group and to one of its members keep their order. */
static void in_order(int rank)
{
	struct party p;
	struct fid_mc *s, *r;
	enum { N = 40 };
	static uint32_t out[N], in[N];

	(void)rank;
	open_party(&p, 2, NULL);
	s = join(&p, 0, 0, FI_SEND);
	r = join(&p, 1, 0, FI_RECV);
	for (int i = 0; i < N; i++) {
		out[i] = i;
		POST(&p.c[1], fi_recv(p.c[1].ep, &in[i], 4, NULL, FI_ADDR_UNSPEC, CTX(i)));
	}
	for (int i = 0; i < N; i++)
		TO_GROUP(&p, fi_send(p.c[0].ep, &out[i], 4, NULL, i % 3 ? fi_mc_addr(s) : p.addr[0][1], CTX(i)));
	for (int i = 0; i < N; i++) {
		next(&p, 1, 0, NULL, NULL);
		next(&p, 0, 1, NULL, NULL);
	}
	for (int i = 0; i < N; i++)
		EQ(in[i], i);
	OK(fi_close(&s->fid));
	OK(fi_close(&r->fid));
	close_party(&p);
}
static void refused(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct party p;
	struct fid_mc *mc, *same, *in;
	struct sockaddr_in a = group_at(0), one = group_at(0);
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(1) };
	struct iovec v = { &a, 4 };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1 };
	char big[8192] = { 0 };
	struct fid_ep *none;
	struct ct c;

	(void)rank;
	open_party(&p, 2, NULL);
	inet_pton(AF_INET, "127.0.0.1", &one.sin_addr);
	ERR(fi_join(p.c[0].ep, &one, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(p.c[0].ep, &six, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(p.c[0].ep, NULL, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(p.c[0].ep, &a, 0, NULL, NULL), FI_EINVAL);
	ERR(fi_join(p.c[0].ep, &a, FI_MORE, &mc, NULL), FI_EBADFLAGS);
	one.sin_family = 99;
	ERR(fi_join(p.c[0].ep, &one, 0, &mc, NULL), FI_EINVAL);
	mc = join(&p, 0, 0, 0);
	ERR(fi_join(p.c[0].ep, &a, 0, &same, NULL), FI_EALREADY);
	in = join(&p, 0, 1, FI_RECV);
	ERR(fi_send(p.c[0].ep, &a, 4, NULL, fi_mc_addr(in), NULL), FI_EINVAL);	/* does not send there */
	m.addr = p.addr[0][1];
	ERR(fi_sendmsg(p.c[0].ep, &m, FI_MULTICAST), FI_EINVAL);		/* no group */
	ERR(fi_recvmsg(p.c[0].ep, &m, FI_MULTICAST), FI_EBADFLAGS);
	CHECK(p.c[0].info->tx_attr->inject_size < sizeof big || ct_is_rxm());
	if (p.c[0].info->tx_attr->inject_size < sizeof big)
		ERR(fi_inject(p.c[0].ep, big, sizeof big, fi_mc_addr(mc)), FI_EINVAL);
	ERR(fi_send(p.c[0].ep, &a, 4, NULL, fi_mc_addr(in) + 1, NULL), FI_EINVAL);
	silence(&p);
	OK(fi_close(&in->fid));
	/* the endpoint may go before its group */
	p.n = 1;
	ct_close(&p.c[1]);
	OK(fi_close(&p.c[0].ep->fid));
	p.c[0].ep = NULL;
	OK(fi_close(&mc->fid));
	ct_close(&p.c[0]);
	/* without an event queue, without being enabled, and without the capability */
	c = (struct ct){ .o = usual };
	ct_open_rdm(&c, NULL);
	ERR(fi_join(c.ep, &a, 0, &mc, NULL), FI_ENOEQ);
	ct_close(&c);
	c = (struct ct){ .o = usual };
	c.info = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	ERR(fi_join(c.ep, &a, 0, &mc, NULL), FI_EOPBADSTATE);
	ct_close(&c);
	open_one(&c, NULL, &o);
	ERR(fi_join(c.ep, &a, 0, &mc, NULL), FI_ENOSYS);
	c.info->caps |= FI_MULTICAST;	/* its domain was not opened for that */
	ERR(fi_endpoint(c.domain, c.info, &none, NULL), FI_EINVAL);
	ERR(fi_sendmsg(c.ep, &m, FI_MULTICAST), FI_EBADFLAGS);
	ct_close(&c);
}
/* Leaving while joining is under way: no event comes. */
static void left_early(int rank)
{
	struct party p = { .n = 0 };
	struct fid_mc *mc;
	struct fi_eq_entry x;
	uint32_t ev;

	(void)rank;
	for (; p.n < 2; p.n++)
		p.name[p.n] = open_one(&p.c[p.n], p.n ? &p.c[0] : NULL, &usual);
	synchronize(&p, 0, 1);
	mc = begin_join(&p, 0, 0, 0);
	for (int i = 0; i < 50; i++, ct_nap(2))
		round_number(&p);
	OK(fi_close(&mc->fid));
	synchronize(&p, 1, 0);
	silence(&p);
	ERR(fi_eq_read(p.c[0].eq, &ev, &x, sizeof x, 0), FI_EAGAIN);
	close_party(&p);
}
/* A member is closed; the next message goes to the others, and so it is when one comes to its address. */
static void closed(int rank)
{
	struct party p;
	struct fid_mc *s, *r[2];
	struct ct_opt o = usual;
	fi_addr_t to;

	(void)rank;
	open_party(&p, 3, &o);
	s = join(&p, 0, 0, FI_SEND);
	to = fi_mc_addr(s);
	for (int i = 0; i < 2; i++)
		r[i] = join(&p, 1 + i, 0, FI_RECV);
	round_of(&p, 0, to, 6, 30, 1);
	OK(fi_close(&r[1]->fid));
	ct_close(&p.c[2]);
	p.n = 2;
	for (int64_t end = ct_ms() + 200; ct_ms() < end; ct_nap(1))
		round_number(&p);
	round_of(&p, 0, to, 2, 30, 2);
	round_of(&p, 0, to, 2, 1 << 20, 3);
	silence(&p);
	OK(fi_close(&s->fid));
	OK(fi_close(&r[0]->fid));
	close_party(&p);
}
/* One process sends, the other one's endpoints are members, of which a third process is killed. */
static void killed(int rank)
{
	struct party p = { .n = 0 };
	struct ct_name theirs[2];
	struct fid_mc *mc;
	static char big[1 << 20], in[1 << 20];

	if (rank == 0) {
		p.name[p.n++] = open_one(&p.c[0], NULL, &usual);
		ct_swap(&p.c[0], p.name, theirs, sizeof p.name[0]);
		ct_recv_oob(&p.c[0], &theirs[1], sizeof theirs[1]);
		ct_insert(&p.c[0], &theirs[0]);
		ct_insert(&p.c[0], &theirs[1]);
		ct_barrier(&p.c[0]);		/* both are in the group */
		mc = join(&p, 0, 0, FI_SEND);
		ct_fill(big, sizeof big, 1);
		TO_GROUP(&p, fi_send(p.c[0].ep, big, 100, NULL, fi_mc_addr(mc), CTX(100)));
		sent(&p, 0, CTX(100));
		ct_barrier(&p.c[0]);		/* both have it, and one is killed */
		for (int failed = 0, i = 0; i < 3; i++) {
			/* the first one may be under way when the end is noticed: one entry whatever becomes of it */
			struct fi_cq_tagged_entry x;
			struct fi_cq_err_entry err = { 0 };
			ssize_t r;

			TO_GROUP(&p, fi_send(p.c[0].ep, big, sizeof big, NULL, fi_mc_addr(mc), CTX(101 + i)));
			while ((r = fi_cq_read(p.c[0].tx, &x, 1)) == -FI_EAGAIN)
				round_number(&p);
			if (r == -FI_EAVAIL) {
				EQ(fi_cq_readerr(p.c[0].tx, &err, 0), 1);
				CHECK(err.op_context == CTX(101 + i));
				CHECK(err.flags & FI_MULTICAST);
				EQ(++failed, 1);
			} else {
				EQ(r, 1);
				CHECK(x.op_context == CTX(101 + i));
			}
		}
		silence(&p);
		ct_barrier(&p.c[0]);
	} else {
		int pipes[2][2];
		char x = 0;
		pid_t child;
		struct ct_name other;

		CHECK(!pipe(pipes[0]) && !pipe(pipes[1]));
		child = fork();
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			p.name[p.n++] = open_one(&p.c[0], NULL, &usual);
			CHECK(write(pipes[1][1], p.name, sizeof p.name[0]) == sizeof p.name[0]);
			CHECK(read(pipes[0][0], &other, sizeof other) == sizeof other);
			p.addr[0][0] = ct_insert(&p.c[0], &other);
			begin_join(&p, 0, 0, FI_RECV);
			post(&p, 0, in, sizeof in);
			CHECK(write(pipes[1][1], &x, 1) == 1);
			received(&p, 0, 0, in, 100, 1);
			CHECK(write(pipes[1][1], &x, 1) == 1);
			for (;;)
				round_number(&p);
		}
		p.name[p.n++] = open_one(&p.c[0], NULL, &usual);
		ct_swap(&p.c[0], p.name, &other, sizeof other);
		CHECK(read(pipes[1][0], &theirs[1], sizeof theirs[1]) == sizeof theirs[1]);
		ct_send_oob(&theirs[1], sizeof theirs[1]);
		CHECK(write(pipes[0][1], &other, sizeof other) == sizeof other);
		p.addr[0][0] = ct_insert(&p.c[0], &other);
		mc = begin_join(&p, 0, 0, FI_RECV);
		CHECK(read(pipes[1][0], &x, 1) == 1);
		end_join(&p, mc, 0);
		post(&p, 0, in, sizeof in);
		ct_barrier(&p.c[0]);
		received(&p, 0, 0, in, 100, 1);
		CHECK(read(pipes[1][0], &x, 1) == 1);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		ct_barrier(&p.c[0]);
		for (int i = 0; i < 3; i++) {
			memset(in, 0, sizeof in);
			post(&p, 0, in, sizeof in);
			received(&p, 0, 0, in, sizeof in, 1);
		}
		ct_barrier(&p.c[0]);
	}
	OK(fi_close(&mc->fid));
	close_party(&p);
}
/* Processes that follow each other at one address, each killed at another moment: messages sent after the join of
 * one reach it. */
static void again_and_again(int rank)
{
	enum { ROUNDS = 8 };
	struct party p = { .n = 0 };
	struct ct_name theirs, mine;
	struct fid_mc *mc;
	char service[16] = "";
	unsigned char out, in;

	if (rank == 0) {
		p.name[p.n++] = open_one(&p.c[0], NULL, &usual);
		ct_send_oob(p.name, sizeof p.name[0]);
		ct_recv_oob(&p.c[0], &theirs, sizeof theirs);
		ct_insert(&p.c[0], &theirs);
		mc = join(&p, 0, 0, FI_SEND);
		for (int i = 0; i < ROUNDS; i++) {
			struct fi_cq_tagged_entry x;
			struct fi_cq_err_entry err;

			ct_recv_oob(&p.c[0], &out, 1);	/* it has joined */
			out = (unsigned char)i;
			TO_GROUP(&p, fi_send(p.c[0].ep, &out, 1, NULL, fi_mc_addr(mc), CTX(100)));
			sent(&p, 0, CTX(100));
			/* and others that may reach it or not */
			for (int k = 0; k < 3 * i; k++) {
				long r;

				TO_GROUP(&p, fi_send(p.c[0].ep, &out, 1, NULL, fi_mc_addr(mc), CTX(101)));
				while ((r = fi_cq_read(p.c[0].tx, &x, 1)) == -FI_EAGAIN)
					round_number(&p);
				if (r == -FI_EAVAIL)
					EQ(fi_cq_readerr(p.c[0].tx, &err, 0), 1);
			}
		}
		ct_barrier(&p.c[0]);
		OK(fi_close(&mc->fid));
		close_party(&p);
		return;
	}
	ct_recv_oob(NULL, &theirs, sizeof theirs);
	for (int i = 0; i < ROUNDS; i++) {
		int notified[2];
		pid_t child;

		CHECK(!pipe(notified));
		child = fork();
		if (child == 0) {
			static char more[64][8];

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			p.name[p.n++] = mine = ct_open_at(&p.c[0], NULL, &usual, *service ? service : NULL);
			CHECK(write(notified[1], &mine, sizeof mine) == sizeof mine);
			p.addr[0][0] = ct_insert(&p.c[0], &theirs);
			POST(&p.c[0], fi_recv(p.c[0].ep, &in, 1, NULL, FI_ADDR_UNSPEC, CTX(200)));
			for (int k = 0; k < 64; k++)
				POST(&p.c[0], fi_recv(p.c[0].ep, more[k], 8, NULL, FI_ADDR_UNSPEC, CTX(201)));
			join(&p, 0, 0, FI_RECV);
			CHECK(write(notified[1], &in, 1) == 1);
			CHECK(next(&p, 0, 0, NULL, NULL).op_context == CTX(200));
			CHECK(write(notified[1], &in, 1) == 1);
			for (;;)
				round_number(&p);
		}
		close(notified[1]);		/* its end is seen */
		if (read(notified[0], &mine, sizeof mine) != sizeof mine)
			_exit(3);
		if (i == 0)
			ct_send_oob(&mine, sizeof mine);
		ct_ip_only();
		snprintf(service, sizeof service, "%d", ntohs(((struct sockaddr_in *)mine.b)->sin_port));
		if (read(notified[0], &in, 1) != 1)
			_exit(3);
		ct_send_oob(&in, 1);
		if (read(notified[0], &in, 1) != 1)
			_exit(3);
		ct_nap(i % 3);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(notified[0]);
	}
	ct_barrier(NULL);
}
/* Two processes, each of which sends to the other's members. */
static void both_ways(int rank)
{
	struct party p = { .n = 0 };
	struct ct_name theirs;
	struct fid_mc *mc;
	char in[64], out[64];
	struct ct_opt o = usual;

	o.threading = FI_THREAD_DOMAIN;
	p.name[p.n++] = open_one(&p.c[0], NULL, &o);
	ct_swap(&p.c[0], p.name, &theirs, sizeof theirs);
	p.addr[0][0] = ct_insert(&p.c[0], &theirs);
	mc = join(&p, 0, 0, 0);
	ct_barrier(&p.c[0]);
	for (int i = 0; i < 20; i++) {
		post(&p, 0, in, sizeof in);
		ct_fill(out, sizeof out, i + rank);
		TO_GROUP(&p, fi_send(p.c[0].ep, out, sizeof out, NULL, fi_mc_addr(mc), CTX(100)));
		received(&p, 0, 0, in, sizeof in, i + !rank);
		sent(&p, 0, CTX(100));
	}
	ct_barrier(&p.c[0]);
	OK(fi_close(&mc->fid));
	close_party(&p);
}

/* Peers without groups are not queried, and see nothing of it. */
static void others(int rank)
{
	static const uint64_t caps[2] = { FI_MSG | FI_TAGGED | FI_SOURCE, FI_MSG | FI_TAGGED | FI_SOURCE | FI_COLLECTIVE };
	struct party p = { .n = 0 };
	struct fid_mc *s, *r;
	char in[2][64], out[8] = { 0 };

	(void)rank;
	for (; p.n < 4; p.n++) {
		struct ct_opt o = usual;

		if (p.n >= 2)	/* on a domain of its own, opened for this case */
			o.caps = caps[p.n - 2];
		p.name[p.n] = open_one(&p.c[p.n], p.n == 1 ? &p.c[0] : NULL, &o);
	}
	for (int e = 0; e < 4; e++)
		for (int i = 0; i < 4; i++)
			if (i != e)
				synchronize(&p, e, i);
	for (int i = 0; i < 2; i++)
		POST(&p.c[2 + i], fi_trecv(p.c[2 + i].ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, 0, ~0ULL, CTX(202 + i)));
	/* one is connected already, from the other side */
	POST(&p.c[0], fi_recv(p.c[0].ep, in[0], 8, NULL, FI_ADDR_UNSPEC, CTX(200)));
	TO_GROUP(&p, fi_send(p.c[2].ep, out, 8, NULL, p.addr[2][0], CTX(100)));
	sent(&p, 2, CTX(100));
	next(&p, 0, 0, NULL, NULL);
	s = join(&p, 0, 0, 0);
	r = join(&p, 1, 0, FI_RECV);
	round_of(&p, 0, fi_mc_addr(s), 2, 100, 1);
	silence(&p);
	/* messages addressed to them alone arrive */
	for (int i = 0; i < 2; i++) {
		TO_GROUP(&p, fi_tsend(p.c[0].ep, out, 8, NULL, p.addr[0][2 + i], 5, CTX(100)));
		sent(&p, 0, CTX(100));
		EQ(next(&p, 2 + i, 0, NULL, NULL).tag, 5);
	}
	OK(fi_close(&s->fid));
	OK(fi_close(&r->fid));
	close_party(&p);
}

/* The minimum of capabilities: neither tagged messages nor sources. Groups of both kinds of addresses. */
static void bare(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_MULTICAST, .cq_size = 128 };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(7) };
	struct party p;
	struct fid_mc *s, *r[2], *other;
	char in[2][16], out[16];

	(void)rank;
	open_party(&p, 3, &o);
	inet_pton(AF_INET6, "ff02::1234", &six.sin6_addr);
	OK(fi_join(p.c[0].ep, &six, FI_SEND, &s, CTX(0)));
	end_join(&p, s, 0);
	for (int i = 0; i < 2; i++) {
		OK(fi_join(p.c[1 + i].ep, &six, FI_RECV, &r[i], CTX(1 + i)));
		end_join(&p, r[i], 1 + i);
		post(&p, 1 + i, in[i], sizeof in[i]);
	}
	other = join(&p, 0, 0, FI_SEND);
	ct_fill(out, sizeof out, 1);
	TO_GROUP(&p, fi_send(p.c[0].ep, out, sizeof out, NULL, fi_mc_addr(other), CTX(100)));
	sent(&p, 0, CTX(100));
	silence(&p);
	TO_GROUP(&p, fi_send(p.c[0].ep, out, sizeof out, NULL, fi_mc_addr(s), CTX(100)));
	sent(&p, 0, CTX(100));
	for (int i = 0; i < 2; i++) {
		CHECK(next(&p, 1 + i, 0, NULL, NULL).op_context == CTX(201 + i));
		CHECK(ct_same(in[i], sizeof in[i], 1));
		OK(fi_close(&r[i]->fid));
	}
	OK(fi_close(&other->fid));
	OK(fi_close(&s->fid));
	close_party(&p);
}
/* Both processes sleep until they have joined, and until a message comes. */
static void asleep(int rank)
{
	struct ct_opt o = usual;
	struct party p = { .n = 0 };
	struct ct_name theirs;
	struct sockaddr_in a = group_at(0);
	struct fid_mc *mc;
	struct fi_eq_entry x;
	struct fi_cq_tagged_entry e;
	uint32_t ev;
	char in[64], out[64];

	o.wait = FI_WAIT_UNSPEC;
	p.name[p.n++] = open_one(&p.c[0], NULL, &o);
	ct_swap(NULL, p.name, &theirs, sizeof theirs);
	if (rank == 1)
		ct_nap(100);		/* queried before it knows the peer */
	p.addr[0][0] = ct_insert(&p.c[0], &theirs);
	OK(fi_join(p.c[0].ep, &a, 0, &mc, CTX(0)));
	EQ(fi_eq_sread(p.c[0].eq, &ev, &x, sizeof x, -1, 0), sizeof x);
	EQ(ev, FI_JOIN_COMPLETE);
	ct_barrier(&p.c[0]);
	post(&p, 0, in, sizeof in);
	if (rank == 1) {
		EQ(fi_cq_sread(p.c[0].rx, &e, 1, NULL, -1), 1);
		CHECK(ct_same(in, sizeof in, 1));
	} else {
		ct_nap(100);
		ct_fill(out, sizeof out, 1);
		TO_GROUP(&p, fi_send(p.c[0].ep, out, sizeof out, NULL, fi_mc_addr(mc), CTX(100)));
		EQ(fi_cq_sread(p.c[0].tx, &e, 1, NULL, -1), 1);
		CHECK(e.op_context == CTX(100));
	}
	ct_barrier(&p.c[0]);
	OK(fi_close(&mc->fid));
	close_party(&p);
}

/* Forged notices of the library, from a known peer and from an unknown one. */
static void forged(int rank)
{
	struct party p = { .n = 0 };
	struct fid_mc *s, *r;
	struct ct_opt simple = { .caps = FI_MSG | FI_TAGGED, .cq_size = 128 };
	unsigned char b[40];
	unsigned seed = 7;

	(void)rank;
	for (; p.n < 4; p.n++)
		p.name[p.n] = open_one(&p.c[p.n], p.n == 1 ? &p.c[0] : NULL, p.n < 2 ? &usual : &simple);
	for (int e = 0; e < 4; e++)
		for (int i = 0; i < 4; i++)
			if (i != e && (i < 3 || e == 3))
				synchronize(&p, e, i);
	s = join(&p, 0, 0, 0);
	r = join(&p, 1, 0, FI_RECV);
	for (int i = 0; i < 4000; i++) {
		int from = 2 + i % 2;
		size_t len = i % 5 ? 24 : (size_t)(rand_r(&seed) % (int)sizeof b);

		for (size_t k = 0; k < sizeof b; k++)
			b[k] = (unsigned char)rand_r(&seed);
		b[0] = b[6] = b[7] = 0;
		b[1] %= 8;			/* every word, and two that are none */
		if (b[1] == 4 || i % 3) {	/* the group that there is, but for joining it */
			struct sockaddr_in g = group_at(0);

			if (b[1] == 4)
				b[1] = 3;
			memcpy(b + 4, &g.sin_port, 2);
			memset(b + 8, 0, 10);
			memset(b + 18, 0xff, 2);
			memcpy(b + 20, &g.sin_addr, 4);
		}
		TO_GROUP(&p, fi_tsend(p.c[from].ep, b, len, NULL, p.addr[from][i / 2 % 2], 1ULL << 63 | 1, CTX(100)));
		sent(&p, from, CTX(100));
	}
	round_of(&p, 0, fi_mc_addr(s), 2, 100, 1);
	round_of(&p, 2, p.addr[2][0], 1, 100, 2);	/* still a peer */
	silence(&p);
	OK(fi_close(&s->fid));
	OK(fi_close(&r->fid));
	close_party(&p);
}
/* Threads that send to a group at once, while another one joins and leaves others. */
enum { THREADS = 3, EACH = 150 };
static struct party crowd;
static fi_addr_t crowd_group;

static void *sends(void *arg)
{
	static unsigned char out[THREADS];
	intptr_t t = (intptr_t)arg;

	out[t] = (unsigned char)t;
	for (int i = 0; i < EACH; i++)
		TO_GROUP(&crowd, fi_send(crowd.c[0].ep, &out[t], 1, NULL, crowd_group, CTX(1000)));
	return NULL;
}
static void *joins(void *arg)
{
	for (int i = 0; i < 20; i++) {
		struct fid_mc *mc = begin_join(&crowd, 0, 1 + i % 3, 0);

		for (int k = 0; i % 2 && k < 20; k++)
			round_number(&crowd);
		OK(fi_close(&mc->fid));
	}
	return arg;
}
static void rx_blocked(int rank)
{
	struct ct_opt o = usual;
	struct fid_mc *s, *r[2];
	pthread_t t[THREADS + 1];
	unsigned char in[2][8];
	int got[2] = { 0 }, done = 0, of[2][THREADS] = { 0 };

	(void)rank;
	o.threading = FI_THREAD_SAFE;
	o.cq_size = 1024;
	open_party(&crowd, 3, &o);
	s = join(&crowd, 0, 0, FI_SEND);
	for (int i = 0; i < 2; i++) {
		r[i] = join(&crowd, 1 + i, 0, FI_RECV);
		post(&crowd, 1 + i, in[i], sizeof in[i]);
	}
	crowd_group = fi_mc_addr(s);
	for (intptr_t i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, sends, (void *)i));
	CHECK(!pthread_create(&t[THREADS], NULL, joins, NULL));
	while (got[0] < THREADS * EACH || got[1] < THREADS * EACH || done < THREADS * EACH) {
		struct fi_cq_tagged_entry x;

		if (fi_cq_read(crowd.c[0].tx, &x, 1) == 1)
			done++;
		for (int i = 0; i < 2; i++)
			if (fi_cq_read(crowd.c[1 + i].rx, &x, 1) == 1) {
				EQ(x.len, 1);
				CHECK(in[i][0] < THREADS);
				of[i][in[i][0]]++;
				if (++got[i] < THREADS * EACH)
					post(&crowd, 1 + i, in[i], sizeof in[i]);
			}
	}
	for (int i = 0; i <= THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < THREADS; k++)
			EQ(of[i][k], EACH);
	silence(&crowd);
	OK(fi_close(&s->fid));
	OK(fi_close(&r[0]->fid));
	OK(fi_close(&r[1]->fid));
	close_party(&crowd);
}
/* Members that share a receive context: each takes a message of it. */
static struct fid_ep *shared;

static void share(struct ct *c) { OK(fi_ep_bind(c->ep, &shared->fid, 0)); }
static void sharing(int rank)
{
	struct ct_opt o = usual;
	struct party p = { .n = 0 };
	struct fid_mc *s, *r[2];
	char in[4][64], out[64];

	(void)rank;
	p.name[p.n++] = open_one(&p.c[0], NULL, &usual);
	o.setup = share;
	for (; p.n < 3; p.n++) {
		struct ct *c = &p.c[p.n];
		struct fi_info *h = ct_hints(&usual);
		int got;

		h->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
		got = fi_getinfo(CT_VERSION, ct_node(&o), "0", FI_SOURCE, h, &c->info);
		fi_freeinfo(h);
		/* in the place of a provider that has no such endpoints another one over it may answer */
		if (got == -FI_ENODATA || strcmp(c->info->fabric_attr->prov_name, p.c[0].info->fabric_attr->prov_name))
			SKIP("not offered: groups of endpoints that share their receives");
		OK(got);
		c->o = o;
		c->fabric = p.c[0].fabric;
		c->domain = p.n == 1 ? NULL : p.c[1].domain;
		c->borrowed = 1;
		ct_open_domain(c);
		if (p.n == 1)
			OK(fi_srx_context(c->domain, c->info->rx_attr, &shared, NULL));
		ct_open_ep(c, c->info);
		OK(fi_ep_bind(c->ep, &p.c[0].eq->fid, 0));
		OK(fi_enable(c->ep));
		p.name[p.n] = ct_getname(&c->ep->fid);
	}
	for (int e = 0; e < 3; e++)
		for (int i = 0; i < 3; i++)
			if (i != e)
				synchronize(&p, e, i);
	for (int i = 0; i < 4; i++)
		POST(&p.c[1], fi_recv(shared, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, CTX(200 + i)));
	s = join(&p, 0, 0, FI_SEND);
	for (int i = 0; i < 2; i++)
		r[i] = join(&p, 1 + i, 0, 0);
	for (int rounds = 0; rounds < 2; rounds++) {
		ct_fill(out, sizeof out, rounds);
		TO_GROUP(&p, fi_send(p.c[0].ep, out, sizeof out, NULL, fi_mc_addr(s), CTX(100)));
		sent(&p, 0, CTX(100));
		for (int i = 0; i < 2; i++) {
			struct fi_cq_tagged_entry x = next(&p, 1 + i, 0, NULL, NULL);

			CHECK(ct_same(in[(struct fi_context2 *)x.op_context - &ct_ctx[200]], sizeof out, rounds));
		}
	}
	/* among themselves */
	POST(&p.c[1], fi_recv(shared, in[0], sizeof in[0], NULL, FI_ADDR_UNSPEC, CTX(200)));
	TO_GROUP(&p, fi_send(p.c[1].ep, out, sizeof out, NULL, fi_mc_addr(r[0]), CTX(100)));
	sent(&p, 1, CTX(100));
	CHECK(next(&p, 2, 0, NULL, NULL).op_context == CTX(200));
	silence(&p);
	OK(fi_close(&r[0]->fid));
	OK(fi_close(&r[1]->fid));
	OK(fi_close(&s->fid));
	for (int e = 2; e > 0; e--) {
		struct fid_domain *d = e == 1 ? p.c[1].domain : NULL;

		OK(fi_close(&p.c[e].ep->fid));
		p.c[e].ep = NULL;
		if (d)
			OK(fi_close(&shared->fid));
		ct_close(&p.c[e]);
		if (d)
			OK(fi_close(&d->fid));
	}
	ct_close(&p.c[0]);
}

static const struct ct_test tests[] = {
	{ "FI_MULTICAST is offered only on request", only_if_asked, CT_RDM | CT_REL | CT_SOLO },
	{ "a group message of any size reaches each other member once", everybody, CT_RDM | CT_REL | CT_SOLO },
	{ "a sender with its own address in the AV is a regular member", itself, CT_RDM | CT_REL | CT_SOLO },
	{ "members join and leave repeatedly", come_and_go, CT_RDM | CT_REL | CT_SOLO },
	{ "messages of different groups do not mix", several, CT_RDM | CT_REL | CT_SOLO },
	{ "members can be inserted into the AV after the join", inserted_late, CT_RDM | CT_REL | CT_SOLO },
	{ "groups work without other capabilities and with both address formats", bare, CT_RDM | CT_REL | CT_SOLO },
	{ "threads send to a group concurrently while another thread joins and leaves others", rx_blocked, CT_RDM | CT_REL | CT_SOLO },
	{ "forged library notices affect no endpoint", forged, CT_RDM | CT_REL | CT_SOLO },
	{ "members can share a receive context", sharing, CT_RDM | CT_REL | CT_SOLO },
	{ "every send call works with groups", every_call, CT_RDM | CT_REL | CT_SOLO },
	{ "a send is counted once and reported only on request", counted, CT_RDM | CT_REL | CT_SOLO },
	{ "messages to a group and to one of its members stay in order", in_order, CT_RDM | CT_REL | CT_SOLO },
	{ "peers without groups get no group notices", others, CT_RDM | CT_REL | CT_SOLO },
	{ "invalid arguments are refused", refused, CT_RDM | CT_REL | CT_SOLO },
	{ "a group can be left during its join", left_early, CT_RDM | CT_REL | CT_SOLO },
	{ "a closed endpoint is no longer a member", closed, CT_RDM | CT_REL | CT_SOLO },
	{ "a killed member costs at most one message", killed, CT_RDM | CT_REL },
	{ "successive members at one address get the messages sent after their joins", again_and_again, CT_RDM | CT_REL },
	{ "two processes send to one group, under FI_THREAD_DOMAIN", both_ways, CT_RDM | CT_REL },
	{ "the end of a join and group messages wake waiters", asleep, CT_RDM | CT_REL },
};
CT_MAIN("mcast", tests)
