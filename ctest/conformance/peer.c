/* Peer objects, fi_peer(3): the test is the owner, the provider the peer. */
#include "ct.h"

#if FI_MAJOR_VERSION < 2
/* Peer counters came with 1.19, and 1.x changed them from release to release. */
static void too_old(int rank)
{
	(void)rank;
	SKIP("headers of %d.%d", FI_MAJOR_VERSION, FI_MINOR_VERSION);
}
static const struct ct_test tests[] = { { "peer objects", too_old, CT_SOLO } };
#else
#include <rdma/providers/fi_peer.h>

/* Entries written by the provider. */
static struct {
	struct { void *ctx; uint64_t flags, data, tag; size_t len; int err; size_t olen; } e[64];
	int n, errs, incs, incerrs, queries, wrong;
} got;
static struct fid_peer_cq my_cq;
static struct fid_peer_cntr my_cntr;
static struct fid_peer_av my_av;

static ssize_t cq_write(struct fid_peer_cq *q, void *ctx, uint64_t flags, size_t len, void *buf, uint64_t data,
			uint64_t tag, fi_addr_t src)
{
	(void)buf;
	(void)src;
	got.wrong += q != &my_cq || got.n == 64;
	got.e[got.n].ctx = ctx;
	got.e[got.n].flags = flags;
	got.e[got.n].len = len;
	got.e[got.n].data = data;
	got.e[got.n++].tag = tag;
	return 0;
}
static ssize_t cq_writeerr(struct fid_peer_cq *q, const struct fi_cq_err_entry *e)
{
	got.wrong += q != &my_cq || got.n == 64;
	got.e[got.n].ctx = e->op_context;
	got.e[got.n].flags = e->flags;
	got.e[got.n].olen = e->olen;
	got.e[got.n++].err = e->err;
	got.errs++;
	return 0;
}
static struct fi_ops_cq_owner cq_ops = { sizeof cq_ops, cq_write, cq_writeerr };
static struct fid_peer_cq my_cq = { { FI_CLASS_PEER_CQ, NULL, NULL }, &cq_ops };

static void cntr_inc(struct fid_peer_cntr *c) { got.incs++; got.wrong += c != &my_cntr; }
static void cntr_incerr(struct fid_peer_cntr *c) { got.incerrs++; got.wrong += c != &my_cntr; }
static struct fi_ops_cntr_owner cntr_ops = { sizeof cntr_ops, cntr_inc, cntr_incerr };
static struct fid_peer_cntr my_cntr = { { FI_CLASS_PEER_CNTR, NULL, NULL }, &cntr_ops };

static int av_query(struct fid_peer_av *a, struct fi_av_attr *attr)
{
	got.queries++;
	got.wrong += a != &my_av;
	attr->type = FI_AV_MAP;
	attr->count = 5;
	return 0;
}
static fi_addr_t av_ep_addr(struct fid_peer_av *a, struct fid_ep *ep)
{
	(void)a;
	(void)ep;
	return FI_ADDR_NOTAVAIL;
}
static struct fi_ops_av_owner av_ops = { sizeof av_ops, av_query, av_ep_addr };
static struct fid_peer_av my_av = { { FI_CLASS_PEER_AV, NULL, NULL }, &av_ops };

static int open_cq(struct ct *c, void *context, struct fid_cq **q)
{
	struct fi_cq_attr a = { .flags = FI_PEER, .format = FI_CQ_FORMAT_TAGGED };

	return fi_cq_open(c->domain, &a, q, context);
}
static int open_cntr(struct ct *c, void *context, struct fid_cntr **n)
{
	struct fi_cntr_attr a = { .flags = FI_PEER };

	return fi_cntr_open(c->domain, &a, n, context);
}
/* rank 0 is a peer, the other rank has queues of its own */
static void peer_queues(struct ct *c)
{
	struct fi_peer_cq_context q = { sizeof q, &my_cq };
	struct fi_peer_cntr_context n = { sizeof n, &my_cntr };
	struct fi_cq_attr own = { .format = FI_CQ_FORMAT_TAGGED };

	if (ct_rank) {
		OK(fi_cq_open(c->domain, &own, &c->rx, c));
		c->tx = c->rx;
		return;
	}
	OK(open_cq(c, &q, &c->rx));
	c->tx = c->rx;
	OK(open_cntr(c, &n, &c->txc));
	OK(open_cntr(c, &n, &c->rxc));
	/* the contexts were for opening alone */
	memset(&q, 0, sizeof q);
	memset(&n, 0, sizeof n);
}
static void await_entries(struct ct *c, int n)
{
	for (; got.n < n; sched_yield())
		EQ(fi_cq_read(c->rx, NULL, 0), 0);
	EQ(got.n, n);
	EQ(got.wrong, 0);
}
static void entry_is(int i, void *ctx, uint64_t flags, size_t len)
{
	CHECK(got.e[i].ctx == ctx);
	EQ(got.e[i].err, 0);
	EQ(got.e[i].flags & (FI_SEND | FI_RECV | FI_MSG | FI_TAGGED), flags);
	if (flags & FI_RECV)
		EQ(got.e[i].len, len);
}

static void write_to_owner(int rank)
{
	struct ct_opt o = { .one_cq = 1, .queues = peer_queues };
	struct fi_cq_tagged_entry e;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 200);
	if (rank == 1) {
		POST(&c, fi_recv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
		ct_barrier(&c);
		ct_recvd(&c, CTX(0), 60);
		CHECK(ct_same(b, 60, 1));
		POST(&c, fi_send(c.ep, b, 60, ct_desc(b), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_barrier(&c);
		ct_close(&c);
		return;
	}
	/* nothing is there to be read, ever */
	ERR(fi_cq_read(c.rx, &e, 1), FI_ENOSYS);
	ERR(fi_cq_readfrom(c.rx, &e, 1, &c.peer), FI_ENOSYS);
	ERR(fi_cq_readerr(c.rx, &(struct fi_cq_err_entry){ 0 }, 0), FI_ENOSYS);
	ERR(fi_cq_sread(c.rx, &e, 1, NULL, 0), FI_ENOSYS);
	ERR(fi_cq_signal(c.rx), FI_ENOSYS);
	ERR(fi_cntr_set(c.txc, 1), FI_ENOSYS);
	ERR(fi_cntr_add(c.txc, 1), FI_ENOSYS);
	ERR(fi_cntr_wait(c.txc, 1, 0), FI_ENOSYS);

	ct_barrier(&c);
	ct_fill(b, 60, 1);
	POST(&c, fi_recv(c.ep, b + 100, 100, ct_desc(b), FI_ADDR_UNSPEC, CTX(2)));
	POST(&c, fi_send(c.ep, b, 60, ct_desc(b), c.peer, CTX(3)));
	await_entries(&c, 2);
	entry_is(0, CTX(3), FI_SEND | FI_MSG, 60);
	entry_is(1, CTX(2), FI_RECV | FI_MSG, 60);
	CHECK(ct_same(b + 100, 60, 1));
	EQ(got.incs, 2);
	EQ(got.incerrs, 0);
	EQ(fi_cntr_read(c.txc), 0);
	/* a failure goes there, too */
	POST(&c, fi_recv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, CTX(4)));
	OK(fi_cancel(&c.ep->fid, CTX(4)));
	await_entries(&c, 3);
	EQ(got.errs, 1);
	CHECK(got.e[2].ctx == CTX(4));
	EQ(got.e[2].err, FI_ECANCELED);
	EQ(got.incerrs, 1);
	EQ(got.incs, 2);
	/* in use as any other queue */
	ERR(fi_close(&c.rx->fid), FI_EBUSY);
	ERR(fi_close(&c.txc->fid), FI_EBUSY);
	ct_done(&c);
}

static void tagged_to_owner(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED, .one_cq = 1, .queues = peer_queues };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 64);
	if (rank == 1) {
		ct_barrier(&c);
		POST(&c, fi_tsend(c.ep, b, 64, ct_desc(b), c.peer, 0x42, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_tsend(c.ep, b, 64, ct_desc(b), c.peer, 0x43, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_done(&c);
		return;
	}
	POST(&c, fi_trecv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, 0x40, 0xf, CTX(2)));
	POST(&c, fi_trecv(c.ep, b, 16, ct_desc(b), FI_ADDR_UNSPEC, 0x43, 0, CTX(3)));
	ct_barrier(&c);
	await_entries(&c, 2);
	entry_is(0, CTX(2), FI_RECV | FI_TAGGED, 64);
	EQ(got.e[0].tag, 0x42);
	EQ(got.e[1].err, FI_ETRUNC);
	EQ(got.e[1].olen, 48);
	ct_done(&c);
}

/* one entry more than any queue of the provider's own holds, none of them read */
static void no_bound(int rank)
{
	struct ct_opt o = { .one_cq = 1, .queues = peer_queues };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 64);
	if (rank == 1) {
		for (int i = 0; i < 3000; i++) {
			POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
			if (i == 0)
				ct_barrier(&c);
			ct_recvd(&c, CTX(0), 8);
		}
		ct_done(&c);
		return;
	}
	ct_barrier(&c);
	for (int i = 0; i < 3000; i++) {
		POST(&c, fi_send(c.ep, b, 8, ct_desc(b), c.peer, CTX(1)));
		for (; !got.n; sched_yield())
			fi_cq_read(c.rx, NULL, 0);
		EQ(got.n, 1);
		entry_is(0, CTX(1), FI_SEND | FI_MSG, 8);
		got.n = 0;
	}
	EQ(got.incs, 3000);
	ct_done(&c);
}

static void open_base(struct ct *c)
{
	memset(c, 0, sizeof *c);
	c->info = ct_getinfo(&c->o, NULL, NULL, 0);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
	OK(fi_domain(c->fabric, c->info, &c->domain, c));
}

static void bad_contexts(int rank)
{
	struct fi_peer_cq_context q = { sizeof q, &my_cq };
	struct fi_peer_cntr_context n = { sizeof n, &my_cntr };
	struct fi_peer_av_context a = { sizeof a, &my_av };
	struct fi_av_attr attr = { .flags = FI_PEER };
	struct ct c;

	(void)rank;
	open_base(&c);
#define REFUSED(...) do { __VA_ARGS__; \
	ERR(open_cq(&c, &q, &c.rx), FI_EINVAL); \
	ERR(open_cntr(&c, &n, &c.txc), FI_EINVAL); \
	ERR(fi_av_open(c.domain, &attr, &c.av, &a), FI_EINVAL); } while (0)
	REFUSED(q.size = n.size = a.size = sizeof(size_t));
	q.size = n.size = a.size = sizeof q;
	REFUSED(q.cq = NULL, n.cntr = NULL, a.av = NULL);
	q.cq = &my_cq, n.cntr = &my_cntr, a.av = &my_av;
	REFUSED(cq_ops.size = cntr_ops.size = av_ops.size = 2 * sizeof(size_t));
	cq_ops.size = sizeof cq_ops, cntr_ops.size = sizeof cntr_ops, av_ops.size = sizeof av_ops;
	REFUSED(cq_ops.writeerr = NULL, cntr_ops.incerr = NULL, av_ops.ep_addr = NULL);
	cq_ops.writeerr = cq_writeerr, cntr_ops.incerr = cntr_incerr, av_ops.ep_addr = av_ep_addr;
	REFUSED(my_cq.owner_ops = NULL, my_cntr.owner_ops = NULL, my_av.owner_ops = NULL);
	my_cq.owner_ops = &cq_ops, my_cntr.owner_ops = &cntr_ops, my_av.owner_ops = &av_ops;
	ERR(open_cq(&c, NULL, &c.rx), FI_EINVAL);
	ERR(open_cntr(&c, NULL, &c.txc), FI_EINVAL);
	ERR(fi_av_open(c.domain, &attr, &c.av, NULL), FI_EINVAL);
	c.rx = NULL, c.txc = NULL, c.av = NULL;
	ct_close(&c);
}

static void av_of_owner(int rank)
{
	struct fi_peer_av_context a = { sizeof a, &my_av };
	struct fi_av_attr attr = { .flags = FI_PEER };
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	fi_addr_t at;
	struct ct c;

	(void)rank;
	open_base(&c);
	OK(fi_av_open(c.domain, &attr, &c.av, &a));
	EQ(got.queries, 1);
	EQ(attr.type, FI_AV_MAP);
	/* in addition to the owner's, the peer knows addresses of its own */
	if (ct_is_ip() && c.info->addr_format == FI_SOCKADDR_IN)
		EQ(fi_av_insert(c.av, &to, 1, &at, 0, NULL), 1);
	ct_close(&c);
}

static void eq_and_domain(int rank)
{
	struct fi_eq_attr own = { .flags = FI_WRITE }, attr = { .flags = FI_PEER };
	struct fi_peer_eq_context e = { sizeof e, NULL };
	struct fi_peer_domain_context d = { sizeof d, NULL };
	struct fid_domain *second;
	struct fid_eq *peer;
	struct ct c;

	(void)rank;
	open_base(&c);
	OK(fi_eq_open(c.fabric, &own, &c.eq, NULL));
	ERR(fi_eq_open(c.fabric, &attr, &peer, &e), FI_EINVAL);
	e.eq = c.eq;
	OK(fi_eq_open(c.fabric, &attr, &peer, &e));
	ERR(fi_domain2(c.fabric, c.info, &second, FI_PEER, &d), FI_EINVAL);
	d.domain = c.domain;
	OK(fi_domain2(c.fabric, c.info, &second, FI_PEER, &d));
	CHECK(second != c.domain);
	OK(fi_close(&second->fid));
	OK(fi_close(&peer->fid));
	ct_close(&c);
}

static struct fid_eq *owners_eq;

/* connection events of rank 0 come out of the owner's queue */
static void eq_events(int rank)
{
	struct fi_eq_attr own = { .flags = FI_WRITE, .wait_obj = FI_WAIT_NONE }, attr = { .flags = FI_PEER };
	struct fi_peer_eq_context e = { sizeof e, NULL };
	struct fi_eq_cm_entry cm;
	struct ct_name name;
	struct fid_eq *peer;
	uint32_t event;
	struct ct c = { 0 };

	if (rank) {
		ct_recv_oob(NULL, &name, sizeof name);
		ct_prepare(&c, &name);
		OK(fi_connect(c.ep, c.info->dest_addr, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
		ct_done(&c);
		return;
	}
	c.info = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, &c));
	OK(fi_eq_open(c.fabric, &own, &owners_eq, NULL));
	e.eq = owners_eq;
	OK(fi_eq_open(c.fabric, &attr, &peer, &e));
	OK(fi_passive_ep(c.fabric, c.info, &c.pep, NULL));
	OK(fi_pep_bind(c.pep, &peer->fid, 0));
	OK(fi_listen(c.pep));
	name = ct_getname(&c.pep->fid);
	ct_send_oob(&name, sizeof name);
	for (;; ct_nap(1)) {
		ssize_t r = fi_eq_read(owners_eq, &event, &cm, sizeof cm, 0);

		if (r == sizeof cm)
			break;
		EQ(r, -FI_EAGAIN);
		ERR(fi_eq_read(peer, &event, &cm, sizeof cm, 0), FI_EAGAIN);	/* progress */
	}
	EQ(event, FI_CONNREQ);
	CHECK(cm.fid == &c.pep->fid && cm.info);
	fi_freeinfo(c.info);
	c.info = cm.info;
	ct_open_domain(&c);
	c.eq = peer;
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	OK(fi_accept(c.ep, NULL, 0));
	for (;; ct_nap(1)) {
		ssize_t r = fi_eq_read(owners_eq, &event, &cm, sizeof cm, 0);

		if (r == sizeof cm)
			break;
		EQ(r, -FI_EAGAIN);
		(void)fi_eq_read(peer, &event, &cm, sizeof cm, 0);
	}
	EQ(event, FI_CONNECTED);
	CHECK(cm.fid == &c.ep->fid);
	ct_barrier(&c);
	c.eq = NULL;
	OK(fi_close(&c.ep->fid));
	OK(fi_close(&c.pep->fid));
	c.ep = NULL, c.pep = NULL;
	OK(fi_close(&peer->fid));
	OK(fi_close(&owners_eq->fid));
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "completions go to the owner and cannot be read from the peer queue", write_to_owner, 0 },
	{ "tagged completions and truncation go to the owner", tagged_to_owner, 0 },
	{ "three thousand completions need no space in the peer queue", no_bound, CT_REL },
	{ "incomplete contexts and owners are refused", bad_contexts, CT_SOLO },
	{ "an address vector queries its owner for its attributes", av_of_owner, CT_SOLO | CT_RDM },
	{ "event queues and domains can be opened as peers of an owner's", eq_and_domain, CT_SOLO },
	{ "connection events go to the owner's queue", eq_events, CT_MSG },
};
#endif
CT_MAIN("peer", tests)
