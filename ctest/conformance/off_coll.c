/*
 * The offload provider off_coll, fi_peer(3): the test is the provider that owns endpoint, queues and vector, and makes the
 * transfers by endpoints of the provider under test.  Members are in both processes.
 */
#include "values.h"
#include <dlfcn.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>

#if FI_MAJOR_VERSION < 2
static void too_old(int rank)
{
	(void)rank;
	SKIP("headers of %d.%d", FI_MAJOR_VERSION, FI_MINOR_VERSION);
}
static const struct ct_test tests[] = { { "the collectives of an owner's endpoints", too_old, CT_SOLO } };
#else
#include <rdma/providers/fi_peer.h>

/* Providers ask so for the providers that serve others. */
#define OFFLOAD_PROV_ONLY (1ULL << 61)
#define MOST 7
static int by_queue;	/* no other way to make the peer progress */

/* A transfer of the owner's endpoint. */
struct op {
	struct fi_context2 context;
	void *ctx;		/* what the peer gave */
	int receives, done, fails;
	struct op *next;
};
struct entry { void *ctx; uint64_t flags; int err; };
/* An endpoint of the provider under test, and what the offload provider has on it. */
struct owner {
	struct fid_ep ep;	/* what the peer calls */
	struct fid_peer_cq cq;
	struct fid_peer_av av;
	struct fid_peer_av_set set;
	struct ct *c;
	struct op *ops;
	fi_addr_t self, *members;
	size_t n;		/* of members */
	int sends, receives, wrong, fail_sends;	/* so many sends fail */
	struct entry e[64];
	int got;
	struct fid_cq *coll_cq;
	struct fid_av *coll_av;
	struct fid_eq *coll_eq;
	struct fid_ep *coll_ep;
	struct fid_av_set *coll_set;
	struct fid_mc *mc;
	fi_addr_t coll;
	struct fi_ops_transfer_peer *peer_ops;
	struct fid *event_fid;
};
struct party {
	struct ct c[MOST];
	struct owner o[MOST];
	int own, n, first, step;
	fi_addr_t addr[MOST][MOST];
	struct fi_info *info, *owner_info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
};
#define EACH(p) for (int e = 0, r = (p)->first; e < (p)->own; e++, r += (p)->step)

/* --- the owner's endpoint */

static struct op *new_op(struct owner *o, void *ctx, int receives)
{
	struct op *op = calloc(1, sizeof *op);

	CHECK(op);
	op->ctx = ctx;
	op->receives = receives;
	op->next = o->ops;
	o->ops = op;
	return op;
}
static ssize_t began(struct owner *o, struct op *op, ssize_t r)
{
	if (r)
		op->done = 1;
	else if (op->receives)
		o->receives++;
	else
		o->sends++;
	return r;
}
static ssize_t owner_trecv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t tag, uint64_t ignore, void *ctx)
{
	struct owner *o = (void *)ep;
	struct op *op = new_op(o, ctx, 1);

	o->wrong++;	/* without FI_PEER_TRANSFER */
	return began(o, op, fi_trecv(o->c->ep, buf, len, desc, src, tag, ignore, op));
}
static ssize_t owner_tsend(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t tag, void *ctx)
{
	struct owner *o = (void *)ep;
	struct op *op = new_op(o, ctx, 0);

	o->wrong++;
	return began(o, op, fi_tsend(o->c->ep, buf, len, desc, dest, tag, op));
}
static ssize_t owner_tmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags, int receives)
{
	struct owner *o = (void *)ep;
	struct fi_msg_tagged m = *msg;
	struct op *op = new_op(o, msg->context, receives);

	o->wrong += !(flags & FI_PEER_TRANSFER);
	m.context = op;
	if (!receives && o->fail_sends > 0) {
		o->fail_sends--;
		op->fails = 1;
		return 0;
	}
	flags = (flags & ~FI_PEER_TRANSFER) | FI_COMPLETION;
	return began(o, op, receives ? fi_trecvmsg(o->c->ep, &m, flags) : fi_tsendmsg(o->c->ep, &m, flags));
}
static ssize_t owner_trecvmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) { return owner_tmsg(ep, msg, flags, 1); }
static ssize_t owner_tsendmsg(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags) { return owner_tmsg(ep, msg, flags, 0); }
static struct fi_ops_tagged owner_tagged = { .size = sizeof owner_tagged, .recv = owner_trecv, .recvmsg = owner_trecvmsg, .send = owner_tsend, .sendmsg = owner_tsendmsg };

static ssize_t owner_cancel(fid_t fid, void *ctx)
{
	struct owner *o = (void *)fid;

	for (struct op *op = o->ops; op; op = op->next)
		if (op->ctx == ctx && op->receives && !op->done)
			return fi_cancel(&o->c->ep->fid, op);
	return -FI_ENOENT;
}
static struct fi_ops_ep owner_ep_ops = { .size = sizeof owner_ep_ops, .cancel = owner_cancel };
static int owner_getname(fid_t fid, void *addr, size_t *n) { return fi_getname(&((struct owner *)(void *)fid)->c->ep->fid, addr, n); }
static struct fi_ops_cm owner_cm = { .size = sizeof owner_cm, .getname = owner_getname };
static int owner_close(struct fid *fid) { (void)fid; return 0; }
static struct fi_ops owner_fid_ops = { .size = sizeof owner_fid_ops, .close = owner_close };

/* --- its queue, vector and set */

static ssize_t cq_write(struct fid_peer_cq *q, void *ctx, uint64_t flags, size_t len, void *buf, uint64_t data, uint64_t tag, fi_addr_t src)
{
	struct owner *o = q->fid.context;

	(void)len, (void)buf, (void)data, (void)tag, (void)src;
	if (o->got < 64)
		o->e[o->got++] = (struct entry){ ctx, flags, 0 };
	return 0;
}
static ssize_t cq_writeerr(struct fid_peer_cq *q, const struct fi_cq_err_entry *err)
{
	struct owner *o = q->fid.context;

	if (o->got < 64)
		o->e[o->got++] = (struct entry){ err->op_context, err->flags, err->err };
	return 0;
}
static struct fi_ops_cq_owner cq_ops = { sizeof cq_ops, cq_write, cq_writeerr };
static int av_query(struct fid_peer_av *a, struct fi_av_attr *attr)
{
	struct owner *o = a->fid.context;

	attr->type = FI_AV_TABLE;
	attr->count = o->n;
	return 0;
}
static fi_addr_t av_ep_addr(struct fid_peer_av *a, struct fid_ep *ep)
{
	struct owner *o = a->fid.context;

	return ep == &o->ep || ep == o->coll_ep ? o->self : FI_ADDR_NOTAVAIL;
}
static struct fi_ops_av_owner av_ops = { sizeof av_ops, av_query, av_ep_addr };
static int set_members(struct fid_peer_av_set *s, fi_addr_t *addr, size_t *count)
{
	struct owner *o = s->fid.context;
	size_t most = *count;

	*count = o->n;
	if (most < o->n)
		return -FI_ETOOSMALL;
	memcpy(addr, o->members, o->n * sizeof *addr);
	return 0;
}
static struct fi_ops_av_set_owner set_ops = { sizeof set_ops, set_members };

/* Takes what the endpoint of the provider under test has done, and tells the peer of it. */
static void progress_one(struct owner *o)
{
	struct fid_cq *q[2] = { o->c->tx, o->c->rx };
	struct fi_cq_tagged_entry x;
	fi_addr_t src;
	ssize_t n;

	if (!o->peer_ops)
		return;
	for (struct op *op = o->ops; op; op = op->next)
		if (op->fails) {
			struct fi_cq_err_entry err = { .op_context = op->ctx, .flags = FI_TAGGED | FI_SEND, .err = FI_EHOSTUNREACH };

			op->fails = 0;
			op->done = 1;
			o->peer_ops->comperr(o->coll_ep, &err);
		}
	for (int k = 0; k < 2; k++)
		while ((n = fi_cq_readfrom(q[k], &x, 1, &src)) == 1 || n == -FI_EAVAIL) {
			struct fi_cq_err_entry err = { 0 };
			struct op *op;

			if (n == -FI_EAVAIL)
				CHECK(fi_cq_readerr(q[k], &err, 0) == 1);
			op = n == 1 ? x.op_context : err.op_context;
			CHECK(op && !op->done);
			op->done = 1;
			x.op_context = err.op_context = op->ctx;
			if (n == 1)
				o->peer_ops->complete(o->coll_ep, &x, FI_ADDR_NOTAVAIL);
			else
				o->peer_ops->comperr(o->coll_ep, &err);
		}
	if (by_queue || dlvsym(RTLD_DEFAULT, "fi_barrier", "FABRIC_OFI_1.0"))
		(void)fi_cq_read(o->coll_cq, NULL, 0);
	else	/* the original's reads no queue: its ofi_rxm finds a function here */
		(*(void (**)(struct fid_ep *))((char *)o->coll_ep + 0x128))(o->coll_ep);
}
static void progress_all(struct party *p)
{
	EACH(p) progress_one(&p->o[e]);
}

/* --- opening */

static struct fi_info *offload_info(void)
{
	struct fi_info *h = fi_allocinfo(), *i = NULL;

	CHECK(h);
	h->fabric_attr->prov_name = strdup("off_coll");
	h->mode = FI_PEER_TRANSFER;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, OFFLOAD_PROV_ONLY, h, &i));
	fi_freeinfo(h);
	return i;
}
static int open_transfer(struct party *p, struct owner *o, struct fi_info *info)
{
	struct fi_peer_transfer_context t = { sizeof t, p->owner_info, &o->ep, NULL };
	int r = fi_endpoint(p->domain, info, &o->coll_ep, &t);


	if (!r) {
		CHECK(o->peer_ops = t.peer_ops);
		CHECK(t.peer_ops->complete && t.peer_ops->comperr);
		memset(&t, 0, sizeof t);	/* it was for opening alone */
	}
	return r;
}
static void open_objects(struct party *p, struct owner *o)
{
	struct fi_cq_attr qa = { .flags = FI_PEER, .format = FI_CQ_FORMAT_TAGGED };
	struct fi_eq_attr ea = { .flags = FI_PEER | FI_WRITE };
	struct fi_av_attr aa = { .flags = FI_PEER };
	struct fi_peer_cq_context q = { sizeof q, &o->cq };
	struct fi_peer_eq_context eq = { sizeof eq, p->c[0].eq };
	struct fi_peer_av_context av = { sizeof av, &o->av };

	o->ep = (struct fid_ep){ .fid = { FI_CLASS_EP, o, &owner_fid_ops }, .ops = &owner_ep_ops, .cm = &owner_cm, .tagged = &owner_tagged };
	o->cq = (struct fid_peer_cq){ { FI_CLASS_PEER_CQ, o, NULL }, &cq_ops };
	o->av = (struct fid_peer_av){ { FI_CLASS_PEER_AV, o, NULL }, &av_ops };
	o->set = (struct fid_peer_av_set){ { FI_CLASS_PEER_AV_SET, o, NULL }, &set_ops };
	OK(fi_cq_open(p->domain, &qa, &o->coll_cq, &q));
	OK(fi_av_open(p->domain, &aa, &o->coll_av, &av));
	OK(fi_eq_open(p->fabric, &ea, &o->coll_eq, &eq));
}
static void open_offload(struct party *p, struct owner *o)
{
	open_objects(p, o);
	OK(open_transfer(p, o, p->info));
	OK(fi_ep_bind(o->coll_ep, &o->coll_cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(o->coll_ep, &o->coll_av->fid, 0));
	OK(fi_ep_bind(o->coll_ep, &o->coll_eq->fid, 0));
	OK(fi_enable(o->coll_ep));
}
static void open_domain(struct party *p)
{
	struct fi_peer_domain_context d = { sizeof d, p->c[0].domain };

	p->info = offload_info();
	CHECK(p->owner_info = fi_dupinfo(p->c[0].info));
	free(p->owner_info->fabric_attr->prov_name);
	p->owner_info->fabric_attr->prov_name = strdup("owner");
	OK(fi_fabric(p->info->fabric_attr, &p->fabric, NULL));
	OK(fi_domain2(p->fabric, p->info, &p->domain, FI_PEER, &d));
}
/* n members; with both, every other one is the other process's. */
static void open_party(struct party *p, int n, int both)
{
	struct ct_opt opt = { .caps = FI_MSG | FI_TAGGED, .cq_size = 512 };
	struct ct_name mine[MOST], theirs[MOST];

	memset(p, 0, sizeof *p);
	p->n = n;
	p->step = both ? 2 : 1;
	p->first = both ? ct_rank : 0;
	for (int r = p->first; r < n; r += p->step) {
		ct_open_at(&p->c[p->own], p->own ? &p->c[0] : NULL, &opt, NULL);
		mine[p->own] = ct_getname(&p->c[p->own].ep->fid);
		p->own++;
	}
	if (both)
		ct_swap(NULL, mine, theirs, sizeof mine);
	EACH(p) for (int m = 0; m < n; m++)
		p->addr[e][m] = ct_insert(&p->c[e], both && m % 2 != ct_rank ? &theirs[m / 2] : &mine[m / p->step]);
	open_domain(p);
	EACH(p) {
		p->o[e].c = &p->c[e];
		p->o[e].self = p->addr[e][r];
		p->o[e].members = p->addr[e];
		p->o[e].n = n;
		open_offload(p, &p->o[e]);
	}
}
static void open_set(struct party *p, struct owner *o)
{
	struct fi_av_set_attr a = { .count = o->n, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };

	(void)p;
	OK(fi_av_set(o->coll_av, &a, &o->coll_set, NULL));
	for (size_t m = 0; m < o->n; m++)
		OK(fi_av_set_insert(o->coll_set, o->members[m]));
}
static void begin_join(struct owner *o, void *ctx)
{
	fi_addr_t at;

	OK(fi_av_set_addr(o->coll_set, &at));
	OK(fi_join_collective(o->coll_ep, at, o->coll_set, 0, &o->mc, ctx));
	CHECK(o->mc);
}
/* The events of the joins of all endpoints here, which come to the owner's queue. */
static void end_joins(struct party *p)
{
	for (int left = p->own; left; left--) {
		struct fi_eq_entry x;
		uint32_t ev;
		ssize_t n;
		int found = 0;

		while ((n = fi_eq_read(p->c[0].eq, &ev, &x, sizeof x, 0)) == -FI_EAGAIN)
			progress_all(p);
		EQ(n, sizeof x);
		EQ(ev, FI_JOIN_COMPLETE);
		EACH(p) if (x.context == CTX(e)) {
			p->o[e].event_fid = x.fid;
			p->o[e].coll = fi_mc_addr(p->o[e].mc);
			found++;
		}
		EQ(found, 1);
	}
}
static void join_all(struct party *p)
{
	EACH(p) open_set(p, &p->o[e]);
	EACH(p) begin_join(&p->o[e], CTX(e));
	end_joins(p);
}
static void complete_one(struct party *p, struct owner *o, void *ctx, int err)
{
	while (!o->got)
		progress_all(p);
	EQ(o->e[0].err, err);
	CHECK(o->e[0].ctx == ctx);
	if (!err)
		CHECK(o->e[0].flags & FI_COLLECTIVE);
	memmove(o->e, o->e + 1, --o->got * sizeof o->e[0]);
}
static void complete_all(struct party *p)
{
	EACH(p) complete_one(p, &p->o[e], CTX(100 + e), 0);
}
/* The two processes meet, and go on with the transfers of each other meanwhile. */
static void synchronize(struct party *p)
{
	char a = 'm', b;

	ct_send_oob(&a, 1);
	while (recv(ct_sync, &b, 1, MSG_DONTWAIT) != 1) {
		progress_all(p);
		ct_nap(1);
	}
}
static void close_party(struct party *p, int both)
{
	EACH(p) EQ(p->o[e].wrong, 0);
	if (both)
		synchronize(p);
	EACH(p) {
		struct owner *o = &p->o[e];

		EQ(o->got, 0);
		if (o->mc)
			OK(fi_close(&o->mc->fid));
		if (o->coll_set)
			OK(fi_close(&o->coll_set->fid));
		if (o->coll_ep)
			OK(fi_close(&o->coll_ep->fid));
		OK(fi_close(&o->coll_cq->fid));
		OK(fi_close(&o->coll_eq->fid));
		OK(fi_close(&o->coll_av->fid));
	}
	OK(fi_close(&p->domain->fid));
	OK(fi_close(&p->fabric->fid));
	fi_freeinfo(p->info);
	fi_freeinfo(p->owner_info);
	if (both)
		ct_barrier(NULL);
	for (int e = p->own - 1; e >= 0; e--)
		ct_close(&p->c[e]);
}

/* The operations that every off_coll has. */
static void five_operations(struct party *p, size_t count)
{
	uint64_t *in[MOST], *out[MOST];
	size_t n = p->n, all = n * count;

	EACH(p) {
		in[e] = filled(r, all);
		out[e] = calloc(all + 1, 8);
		OK(fi_barrier(p->o[e].coll_ep, p->o[e].coll, CTX(100 + e)));
	}
	complete_all(p);
	EACH(p) OK(fi_barrier2(p->o[e].coll_ep, p->o[e].coll, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) OK(fi_allreduce(p->o[e].coll_ep, in[e], count, NULL, out[e], NULL, p->o[e].coll, FI_UINT64, FI_SUM, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < count; i++)
		EQ(out[e][i], total(p->n, i));
	EACH(p) OK(fi_allgather(p->o[e].coll_ep, in[e], count, NULL, out[e], NULL, p->o[e].coll, FI_UINT64, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < all; i++)
		EQ(out[e][i], value(i / count, i % count));
	for (int root = 0; root < p->n; root++) {
		EACH(p) memset(out[e], 0, all * 8);
		EACH(p) OK(fi_scatter(p->o[e].coll_ep, r == root ? in[e] : NULL, count, NULL, out[e], NULL, p->o[e].coll, p->addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < count; i++)
			EQ(out[e][i], value(root, r * count + i));
		EACH(p) memcpy(out[e], in[e], count * 8);
		EACH(p) OK(fi_broadcast(p->o[e].coll_ep, out[e], count, NULL, p->o[e].coll, p->addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < count; i++)
			EQ(out[e][i], value(root, i));
	}
	EACH(p) free(in[e]), free(out[e]);
}
/* "The FI_PEER_TRANSFER flag ... transfers that a provider makes on behalf of its peer" */
static void members(int n, int both)
{
	struct party p;

	open_party(&p, n, both);
	join_all(&p);
	five_operations(&p, 1);
	five_operations(&p, 5);
	five_operations(&p, 3000);
	EACH(&p) if (n > 1)
		CHECK(p.o[e].sends && p.o[e].receives);
	close_party(&p, both);
}
static void one(int rank) { (void)rank; members(1, 0); }
static void two(int rank) { (void)rank; members(2, 1); }
static void five(int rank) { (void)rank; members(5, 1); }
static void four_here(int rank) { (void)rank; members(4, 0); }

/* fi_getinfo(3): "An offload provider ... is not usable for general purposes", fi_peer(3) */
static void found(int rank)
{
	struct fi_info *h = fi_allocinfo(), *i = NULL;

	(void)rank;
	h->fabric_attr->prov_name = strdup("off_coll");
	ERR(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &i), FI_ENODATA);
	ERR(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, OFFLOAD_PROV_ONLY, h, &i), FI_ENODATA);
	h->mode = FI_PEER_TRANSFER;
	ERR(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, h, &i), FI_ENODATA);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, OFFLOAD_PROV_ONLY, h, &i));
	CHECK(!i->next);
	CHECK(!strcmp(i->fabric_attr->name, "UTIL-COLL"));
	CHECK(!strcmp(i->domain_attr->name, "util-coll"));
	CHECK(i->caps & FI_COLLECTIVE);
	EQ(i->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC), 0);
	CHECK(i->mode & FI_PEER_TRANSFER);
	EQ(i->ep_attr->type, FI_EP_RDM);
	EQ(i->ep_attr->protocol, FI_PROTO_COLL);
	EQ(i->ep_attr->mem_tag_format, 0xaaaaaaaaaaaaaaaaULL >> 1);
	fi_freeinfo(i);
	h->caps = FI_TAGGED;
	ERR(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, OFFLOAD_PROV_ONLY, h, &i), FI_ENODATA);
	fi_freeinfo(h);
}
static void queue_alone(int rank)
{
	(void)rank;
	by_queue = 1;
	members(3, 1);
}
static void event_names_group(int rank)
{
	struct party p;

	(void)rank;
	open_party(&p, 2, 0);
	join_all(&p);
	EACH(&p) CHECK(p.o[e].event_fid == &p.o[e].mc->fid);
	close_party(&p, 0);
}
/* the operations that the original's does not have, at every root */
static void four_more(int rank)
{
	enum { N = 5, COUNT = 3 };
	struct party p;
	uint64_t *in[MOST], *out[MOST];
	struct fi_collective_attr a = { .op = FI_SUM, .datatype = FI_UINT64 };

	(void)rank;
	open_party(&p, N, 1);
	join_all(&p);
	OK(fi_query_collective(p.domain, FI_REDUCE, &a, 0));
	EACH(&p) {
		in[e] = filled(r, N * COUNT);
		out[e] = calloc(N * COUNT, 8);
		OK(fi_alltoall(p.o[e].coll_ep, in[e], COUNT, NULL, out[e], NULL, p.o[e].coll, FI_UINT64, 0, CTX(100 + e)));
	}
	complete_all(&p);
	EACH(&p) for (size_t i = 0; i < N * COUNT; i++)
		EQ(out[e][i], value(i / COUNT, r * COUNT + i % COUNT));
	EACH(&p) OK(fi_reduce_scatter(p.o[e].coll_ep, in[e], COUNT, NULL, out[e], NULL, p.o[e].coll, FI_UINT64, FI_SUM, 0, CTX(100 + e)));
	complete_all(&p);
	EACH(&p) for (size_t i = 0; i < COUNT; i++)
		EQ(out[e][i], total(N, r * COUNT + i));
	for (int root = 0; root < N; root++) {
		EACH(&p) OK(fi_reduce(p.o[e].coll_ep, in[e], COUNT, NULL, out[e], NULL, p.o[e].coll, p.addr[e][root], FI_UINT64, FI_SUM, 0, CTX(100 + e)));
		complete_all(&p);
		EACH(&p) for (size_t i = 0; i < COUNT && r == root; i++)
			EQ(out[e][i], total(N, i));
		EACH(&p) OK(fi_gather(p.o[e].coll_ep, in[e], COUNT, NULL, out[e], NULL, p.o[e].coll, p.addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(&p);
		EACH(&p) for (size_t i = 0; i < N * COUNT && r == root; i++)
			EQ(out[e][i], value(i / COUNT, i % COUNT));
	}
	EACH(&p) free(in[e]), free(out[e]);
	close_party(&p, 1);
}
/* fi_query_collective(3): "reports which collective operations are supported" */
static void queried(int rank)
{
	struct party p;
	struct fi_collective_attr none = { .op = FI_NOOP, .datatype = FI_VOID }, sum = { .op = FI_SUM, .datatype = FI_UINT64 },
		moved = { .op = FI_NOOP, .datatype = FI_UINT64 };

	(void)rank;
	open_party(&p, 1, 0);
	OK(fi_query_collective(p.domain, FI_BARRIER, &none, 0));
	OK(fi_query_collective(p.domain, FI_BROADCAST, &moved, 0));
	OK(fi_query_collective(p.domain, FI_ALLGATHER, &moved, 0));
	OK(fi_query_collective(p.domain, FI_SCATTER, &moved, 0));
	OK(fi_query_collective(p.domain, FI_ALLREDUCE, &sum, 0));
	CHECK(sum.datatype_attr.size == 8 && sum.datatype_attr.count > 0 && sum.max_members > 1);
	close_party(&p, 0);
}
/*
 * "Peer AV sets are configured by ... passing in the FI_PEER_AV flag, and pointing the context parameter to struct
 * fi_peer_av_set_context"; "This call returns an array of AV addresses that are members of the AV set", fi_peer(3)
 */
static void owners_set(int rank)
{
	struct party p;

	(void)rank;
	open_party(&p, 3, 1);
	EACH(&p) {
		struct fi_peer_av_set_context s = { sizeof s, (struct fi_peer_av_set *)&p.o[e].set }, empty = { sizeof s, NULL };
		struct fi_av_set_attr a = { .flags = FI_PEER, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };

		ERR(fi_av_set(p.o[e].coll_av, &a, &p.o[e].coll_set, NULL), FI_EINVAL);
		ERR(fi_av_set(p.o[e].coll_av, &a, &p.o[e].coll_set, &empty), FI_EINVAL);
		OK(fi_av_set(p.o[e].coll_av, &a, &p.o[e].coll_set, &s));
		memset(&s, 0, sizeof s);
		begin_join(&p.o[e], CTX(e));
	}
	end_joins(&p);
	five_operations(&p, 4);
	close_party(&p, 1);
}
/* A range of a table's addresses, as fi_av_set(3) has it. */
static void range(int rank)
{
	struct party p;

	(void)rank;
	open_party(&p, 4, 1);
	EACH(&p) {
		struct fi_av_set_attr a = { .start_addr = 0, .end_addr = 3, .stride = 1 };

		EQ(p.addr[e][0], 0);
		EQ(p.addr[e][3], 3);
		OK(fi_av_set(p.o[e].coll_av, &a, &p.o[e].coll_set, NULL));
		begin_join(&p.o[e], CTX(e));
	}
	end_joins(&p);
	EACH(&p) OK(fi_barrier(p.o[e].coll_ep, p.o[e].coll, CTX(100 + e)));
	complete_all(&p);
	close_party(&p, 1);
}
/* Groups that overlap are joined at once, in another order at each member. */
static void overlap(int rank)
{
	static const int set[3][3] = { { 0, 1, 2 }, { 0, 1, 3 }, { 0, 2, 3 } };
	struct party p;
	struct fid_av_set *s[MOST][3] = { 0 };
	struct fid_mc *mc[MOST][3] = { 0 };
	int left = 0, done[3] = { 0 };

	(void)rank;
	open_party(&p, 4, 1);
	EACH(&p) for (int k = 0; k < 3; k++) {
		struct fi_av_set_attr a = { .count = 3, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
		int g = (k + r) % 3, here = 0;

		OK(fi_av_set(p.o[e].coll_av, &a, &s[e][g], NULL));
		for (int m = 0; m < 3; m++) {
			OK(fi_av_set_insert(s[e][g], p.addr[e][set[g][m]]));
			here |= set[g][m] == r;
		}
		if (here) {
			OK(fi_join_collective(p.o[e].coll_ep, FI_ADDR_NOTAVAIL, s[e][g], 0, &mc[e][g], CTX(10 * e + g)));
			left++;
		}
	}
	for (; left; left--) {
		struct fi_eq_entry x;
		uint32_t ev;
		ssize_t n;

		while ((n = fi_eq_read(p.c[0].eq, &ev, &x, sizeof x, 0)) == -FI_EAGAIN)
			progress_all(&p);
		EQ(n, sizeof x);
		EQ(ev, FI_JOIN_COMPLETE);
	}
	for (int g = 0; g < 3; g++) {
		uint64_t in[MOST], out[MOST] = { 0 };

		EACH(&p) if (mc[e][g]) {
			in[e] = value(r, g);
			OK(fi_allreduce(p.o[e].coll_ep, &in[e], 1, NULL, &out[e], NULL, fi_mc_addr(mc[e][g]), FI_UINT64, FI_SUM, 0, CTX(200 + e)));
		}
		EACH(&p) if (mc[e][g]) {
			uint64_t want = 0;

			for (int m = 0; m < 3; m++)
				want += value(set[g][m], g);
			complete_one(&p, &p.o[e], CTX(200 + e), 0);
			EQ(out[e], want);
			done[g]++;
		}
	}
	synchronize(&p);
	EACH(&p) for (int g = 0; g < 3; g++) {
		if (mc[e][g])
			OK(fi_close(&mc[e][g]->fid));
		OK(fi_close(&s[e][g]->fid));
	}
	close_party(&p, 1);
}
/* fi_peer(3): "the context parameter ... must reference a struct" */
static void refused(int rank)
{
	struct party p;
	struct owner *o = &p.o[0];
	struct fid_ep *ep = NULL;
	struct fid_mc *mc = NULL;

	(void)rank;
	open_party(&p, 1, 0);
	ERR(fi_endpoint(p.domain, p.info, &ep, NULL), FI_EINVAL);
	struct fi_peer_transfer_context no_ep = { sizeof no_ep, p.owner_info, NULL, NULL },
		small = { sizeof small - 8, p.owner_info, &o->ep, NULL }, whole = { sizeof whole, p.owner_info, &o->ep, NULL };
	ERR(fi_endpoint(p.domain, p.info, &ep, &no_ep), FI_EINVAL);
	ERR(fi_endpoint(p.domain, p.info, &ep, &small), FI_EINVAL);
	ERR(fi_endpoint(p.domain, p.info, NULL, &whole), FI_EINVAL);
	/* the original's ofi_rxm, which looks into structures of its own off_coll */
	struct fi_info *rxm = fi_dupinfo(p.owner_info);
	free(rxm->fabric_attr->prov_name);
	rxm->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
	struct fi_peer_transfer_context of_rxm = { sizeof of_rxm, rxm, &o->ep, NULL };
	ERR(fi_endpoint(p.domain, p.info, &ep, &of_rxm), FI_ENOSYS);
	fi_freeinfo(rxm);
	CHECK(!ep && !whole.peer_ops);
	/* by the call that has flags as well */
	ERR(fi_endpoint2(p.domain, p.info, &ep, FI_PEER, &whole), FI_EBADFLAGS);
	OK(fi_endpoint2(p.domain, p.info, &ep, FI_PEER_TRANSFER, &whole));
	CHECK(whole.peer_ops);
	/* ends of transfers that there are not */
	struct fi_cq_tagged_entry x = { .op_context = &p };
	struct fi_cq_err_entry err = { .op_context = &p, .err = FI_EIO };
	CHECK(whole.peer_ops->complete(ep, &x, 0) < 0);
	CHECK(whole.peer_ops->complete(ep, NULL, 0) < 0);
	CHECK(whole.peer_ops->comperr(ep, &err) < 0);
	CHECK(whole.peer_ops->comperr(ep, NULL) < 0);
	ERR(fi_enable(ep), FI_ENOCQ);
	OK(fi_close(&ep->fid));
	/* messages of its own it has not */
	CHECK(fi_tsend(o->coll_ep, "x", 1, NULL, 0, 1, NULL) < 0);
	CHECK(fi_trecv(o->coll_ep, &x, 1, NULL, 0, 1, 0, NULL) < 0);
	CHECK(fi_send(o->coll_ep, "x", 1, NULL, 0, NULL) < 0);
	/* a set of which the owner's endpoint is no member */
	o->self = 77;
	open_set(&p, o);
	ERR(fi_join_collective(o->coll_ep, FI_ADDR_NOTAVAIL, o->coll_set, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join_collective(o->coll_ep, FI_ADDR_NOTAVAIL, NULL, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_barrier(o->coll_ep, 5, NULL), FI_EINVAL);
	ERR(fi_close(&o->coll_av->fid), FI_EBUSY);
	ERR(fi_close(&o->coll_cq->fid), FI_EBUSY);
	ERR(fi_close(&p.domain->fid), FI_EBUSY);
	close_party(&p, 0);
}
/* A transfer that fails ends the operation at all members in an error, and those after it. */
static void failed_transfer(int rank)
{
	struct party p;
	uint64_t in[MOST] = { 0 }, out[MOST];
	int refused[MOST] = { 0 };

	(void)rank;
	open_party(&p, 4, 1);
	join_all(&p);
	synchronize(&p);
	if (!ct_rank)
		p.o[0].fail_sends = 1;
	EACH(&p) {
		ssize_t r = fi_allreduce(p.o[e].coll_ep, &in[e], 1, NULL, &out[e], NULL, p.o[e].coll, FI_UINT64, FI_SUM, 0, CTX(100 + e));

		/* the other process may have failed before */
		refused[e] = ct_rank && r == -FI_EHOSTUNREACH;
		if (!refused[e])
			OK(r);
	}
	EACH(&p) {
		while (!refused[e] && !p.o[e].got)
			progress_all(&p);
		if (!refused[e]) {
			CHECK(p.o[e].e[0].err);
			CHECK(p.o[e].e[0].ctx == CTX(100 + e));
		}
		if (!ct_rank && !e)
			EQ(p.o[e].e[0].err, FI_EHOSTUNREACH);
		p.o[e].got = 0;
		CHECK(fi_barrier(p.o[e].coll_ep, p.o[e].coll, CTX(100 + e)) < 0);
	}
	close_party(&p, 1);
}
/* Closed with operations under way: nothing is reported, and no memory is used afterwards. */
static void closed_early(int rank)
{
	struct party p;
	static uint64_t in[2000], out[2000 * 3];

	(void)rank;
	open_party(&p, 3, 0);
	join_all(&p);
	for (int e = 0; e < 2; e++)
		OK(fi_allgather(p.o[e].coll_ep, in, 2000, NULL, out, NULL, p.o[e].coll, FI_UINT64, 0, CTX(e)));
	progress_all(&p);
	for (int e = 0; e < 2; e++) {
		ERR(fi_close(&p.o[e].mc->fid), FI_EBUSY);
		p.o[e].peer_ops = NULL;
		OK(fi_close(&p.o[e].coll_ep->fid));
		p.o[e].coll_ep = NULL;
	}
	close_party(&p, 0);
}
/* Bytes from a peer that is no member, and from one that is, with any tag: nothing breaks, and what is kept is bounded. */
static uint64_t dice = 12345;
static uint64_t roll(void)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	return dice ^= dice << 17;
}
static void hostile(int rank)
{
	enum { ROUNDS = 4000 };
	struct ct_opt opt = { .caps = FI_MSG | FI_TAGGED, .cq_size = 512 };
	struct ct_name mine[2] = { 0 }, theirs[2] = { 0 };
	struct party p;
	struct ct bad;
	fi_addr_t at[2];
	unsigned char b[96];

	(void)rank;
	open_party(&p, 2, 0);
	EACH(&p) mine[e] = ct_getname(&p.c[e].ep->fid);
	ct_swap(NULL, mine, theirs, sizeof mine);
	ct_open_at(&bad, NULL, &opt, NULL);
	for (int k = 0; k < 2; k++)
		at[k] = ct_insert(&bad, &theirs[k]);
	join_all(&p);
	for (int n = 0; n < ct_fewer(ROUNDS); n++) {
		size_t len = roll() % sizeof b;
		/* notices of groups, of ids, and anything with the highest bit */
		uint64_t tag = 1ULL << 63 | (roll() % 4 == 0 ? roll() >> 1 : roll() % 3);
		struct fi_cq_tagged_entry x;
		ssize_t r;

		for (size_t i = 0; i < len; i++)
			b[i] = roll() % 3 ? 0 : roll();
		if (roll() % 2) {	/* one that looks right */
			uint32_t words[4] = { htonl(roll() % 2), htonl(2), htonl(roll() % 2), htonl(roll() % 2) };

			len = 40;
			memcpy(b + 8, words, sizeof words);
		}
		while ((r = fi_tsend(bad.ep, b, len, NULL, at[roll() % 2], tag, CTX(0))) == -FI_EAGAIN) {
			ct_progress(&bad);
			progress_all(&p);
		}
		OK(r);
		while ((r = fi_cq_read(bad.tx, &x, 1)) == -FI_EAGAIN)
			progress_all(&p);
		EQ(r, 1);
		if (n % 16 == 0) {
			progress_all(&p);
			EACH(&p) OK(fi_barrier(p.o[e].coll_ep, p.o[e].coll, CTX(100 + e)));
			complete_all(&p);
		}
	}
	five_operations(&p, 3);
	synchronize(&p);
	ct_close(&bad);
	close_party(&p, 1);
}
static const struct ct_test tests[] = {
	{ "off_coll is found by hints that accept FI_PEER_TRANSFER", found, CT_SOLO | CT_RDM | CT_REL },
	{ "a group of one member", one, CT_SOLO | CT_RDM | CT_REL },
	{ "two members in two processes", two, CT_RDM | CT_REL },
	{ "four members in one process", four_here, CT_SOLO | CT_RDM | CT_REL },
	{ "five members in two processes", five, CT_RDM | CT_REL },
	{ "reading the peer's queue is all the progress there is", queue_alone, CT_RDM | CT_REL },
	{ "all-to-all, gather and reductions to one", four_more, CT_RDM | CT_REL },
	{ "a domain says which operations there are", queried, CT_SOLO | CT_RDM | CT_REL },
	{ "the event of a join names the group", event_names_group, CT_SOLO | CT_RDM | CT_REL },
	{ "a group of the owner's set", owners_set, CT_RDM | CT_REL },
	{ "a group of a range of addresses", range, CT_RDM | CT_REL },
	{ "groups that overlap are joined at once in any order", overlap, CT_RDM | CT_REL },
	{ "contexts with something missing are refused", refused, CT_SOLO | CT_RDM | CT_REL },
	{ "a transfer that fails ends its operation at all members", failed_transfer, CT_RDM | CT_REL },
	{ "endpoints are closed with operations under way", closed_early, CT_SOLO | CT_RDM | CT_REL },
	{ "messages of unknown peers with any tag harm no group", hostile, CT_RDM | CT_REL },
};
#endif
CT_MAIN("off_coll", tests)
