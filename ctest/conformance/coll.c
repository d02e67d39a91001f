/* fi_collective(3), fi_av_set(3): groups of endpoints, in one process and in two. */
#include "values.h"
#include <sys/prctl.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>

#define MOST 9

/* Endpoints of this process; all of a group's, or every other one of it. */
struct party {
	struct ct c[MOST];
	int own;		/* endpoints here */
	int n;			/* members in all */
	int first, step;	/* the ranks of those here */
	fi_addr_t addr[MOST][MOST];	/* of rank r, at the own endpoint e */
	struct fid_mc *mc[MOST];
	fi_addr_t coll[MOST];
};

static uint64_t CAPS = FI_MSG | FI_TAGGED | FI_COLLECTIVE;

static struct ct_name open_one(struct ct *c, struct ct *base, const struct ct_opt *o) { return ct_open_at(c, base, o, NULL); }
static void round_number(struct party *p)
{
	for (int e = 0; e < p->own; e++)
		ct_progress(&p->c[e]);
}
/* n members; with both, every other one is the other process's. */
static void open_party(struct party *p, int n, int both, const struct ct_opt *opt)
{
	struct ct_opt o = opt ? *opt : (struct ct_opt){ .cq_size = 128 };
	struct ct_name mine[MOST], theirs[MOST];

	memset(p, 0, sizeof *p);
	if (!o.caps)
		o.caps = CAPS;
	p->n = n;
	p->step = both ? 2 : 1;
	p->first = both ? ct_rank : 0;
	for (int r = p->first; r < n; r += p->step) {
		open_one(&p->c[p->own], p->own ? &p->c[0] : NULL, &o);
		mine[p->own] = ct_getname(&p->c[p->own].ep->fid);
		p->own++;
	}
	if (both)
		ct_swap(&p->c[0], mine, theirs, sizeof mine);
	for (int e = 0; e < p->own; e++)
		for (int r = 0; r < n; r++)
			p->addr[e][r] = ct_insert(&p->c[e], both && r % 2 != ct_rank ? &theirs[r / 2] : &mine[r / p->step]);
}
static struct fid_av_set *set_of(struct party *p, int e, const int *ranks, int n)
{
	struct fi_av_set_attr a = { .count = n, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	struct fid_av_set *s;

	OK(fi_av_set(p->c[e].av, &a, &s, NULL));
	for (int i = 0; i < n; i++)
		OK(fi_av_set_insert(s, p->addr[e][ranks[i]]));
	return s;
}
static struct fid_mc *begin_join(struct party *p, int e, const int *ranks, int n, void *ctx)
{
	struct fid_av_set *s = set_of(p, e, ranks, n);
	struct fid_mc *mc = NULL;
	fi_addr_t at;

	OK(fi_av_set_addr(s, &at));
	OK(fi_join_collective(p->c[e].ep, at, s, 0, &mc, ctx));
	CHECK(mc);
	OK(fi_close(&s->fid));	/* the group does not need it */
	return mc;
}
/* Waits for the event of a join, and stores others that come meanwhile. */
static fi_addr_t end_join(struct party *p, struct fid_mc *mc, void *ctx)
{
	static struct fi_eq_entry seen[64];
	static int n;
	struct fi_eq_entry x;
	uint32_t ev;
	ssize_t r;

	for (;;) {
		for (int i = 0; i < n; i++)
			if (seen[i].fid == &mc->fid) {
				CHECK(seen[i].context == ctx);
				CHECK(fi_mc_addr(mc) != FI_ADDR_NOTAVAIL);
				seen[i] = seen[--n];
				return fi_mc_addr(mc);
			}
		while ((r = fi_eq_read(p->c[0].eq, &ev, &x, sizeof x, 0)) == -FI_EAGAIN)
			round_number(p);
		if (r == -FI_EAVAIL) {
			struct fi_eq_err_entry err = { 0 };
			fi_eq_readerr(p->c[0].eq, &err, 0);
			FAIL("joining failed: %d %s", err.err, fi_strerror(err.err));
		}
		EQ(r, sizeof x);
		EQ(ev, FI_JOIN_COMPLETE);
		CHECK(n < 64);
		seen[n++] = x;
	}
}
static const int everybody[MOST] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
static void join_all(struct party *p)
{
	for (int e = 0; e < p->own; e++)
		p->mc[e] = begin_join(p, e, everybody, p->n, CTX(e));
	for (int e = 0; e < p->own; e++)
		p->coll[e] = end_join(p, p->mc[e], CTX(e));
}
/* The next completion of an endpoint: a collective's. */
static void complete(struct party *p, int e, void *ctx)
{
	struct fi_cq_tagged_entry x;
	ssize_t r;

	while ((r = fi_cq_read(p->c[e].tx, &x, 1)) == -FI_EAGAIN)
		round_number(p);
	if (r == -FI_EAVAIL) {
		struct fi_cq_err_entry err = { 0 };
		fi_cq_readerr(p->c[e].tx, &err, 0);
		FAIL("error entry %d %s", err.err, fi_strerror(err.err));
	}
	EQ(r, 1);
	CHECK(x.op_context == ctx);
	CHECK(x.flags & FI_COLLECTIVE);
}
static void complete_all(struct party *p)
{
	for (int e = 0; e < p->own; e++)
		complete(p, e, CTX(100 + e));
}
static void close_party(struct party *p, int both)
{
	for (int e = 0; e < p->own; e++) {
		struct fi_cq_tagged_entry x;

		ERR(fi_cq_read(p->c[e].tx, &x, 1), FI_EAGAIN);	/* nothing more than the entries read before */
		ERR(fi_cq_read(p->c[e].rx, &x, 1), FI_EAGAIN);
	}
	if (both)
		ct_barrier(&p->c[0]);
	for (int e = p->own - 1; e >= 0; e--) {
		if (p->mc[e])
			OK(fi_close(&p->mc[e]->fid));
		ct_close(&p->c[e]);
	}
}

#define EACH(p) for (int e = 0, r = (p)->first; e < (p)->own; e++, r += (p)->step)

/* Every operation with count elements for each member, at every root. */
static void all_operations(struct party *p, size_t count)
{
	uint64_t *in[MOST], *out[MOST];
	size_t n = p->n, all = n * count;

	EACH(p) {
		in[e] = filled(r, all);
		out[e] = calloc(all + 1, 8);
		OK(fi_barrier(p->c[e].ep, p->coll[e], CTX(100 + e)));
	}
	complete_all(p);
	EACH(p) OK(fi_barrier2(p->c[e].ep, p->coll[e], 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) OK(fi_allreduce(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], FI_UINT64, FI_SUM, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < count; i++)
		EQ(out[e][i], total(p->n, i));
	EACH(p) OK(fi_allgather(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], FI_UINT64, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < all; i++)
		EQ(out[e][i], value(i / count, i % count));
	EACH(p) OK(fi_alltoall(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], FI_UINT64, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < all; i++)
		EQ(out[e][i], value(i / count, r * count + i % count));
	EACH(p) OK(fi_reduce_scatter(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], FI_UINT64, FI_SUM, 0, CTX(100 + e)));
	complete_all(p);
	EACH(p) for (size_t i = 0; i < count; i++)
		EQ(out[e][i], total(p->n, r * count + i));
	for (int root = 0; root < p->n; root++) {
		EACH(p) memset(out[e], 0, all * 8);
		EACH(p) OK(fi_reduce(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], p->addr[e][root], FI_UINT64, FI_SUM, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < count; i++)
			EQ(out[e][i], r == root ? total(p->n, i) : 0);
		EACH(p) OK(fi_gather(p->c[e].ep, in[e], count, NULL, out[e], NULL, p->coll[e], p->addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < all; i++)
			EQ(out[e][i], r == root ? value(i / count, i % count) : 0);
		EACH(p) OK(fi_scatter(p->c[e].ep, r == root ? in[e] : NULL, count, NULL, out[e], NULL, p->coll[e], p->addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < count; i++)
			EQ(out[e][i], value(root, r * count + i));
		EACH(p) memcpy(out[e], in[e], count * 8);
		EACH(p) OK(fi_broadcast(p->c[e].ep, out[e], count, NULL, p->coll[e], p->addr[e][root], FI_UINT64, 0, CTX(100 + e)));
		complete_all(p);
		EACH(p) for (size_t i = 0; i < count; i++)
			EQ(out[e][i], value(root, i));
	}
	EACH(p) free(in[e]), free(out[e]);
}
static void sizes(int rank, int n, int both)
{
	struct party p;

	(void)rank;
	open_party(&p, n, both, NULL);
	join_all(&p);
	all_operations(&p, 1);
	all_operations(&p, 5);
	all_operations(&p, 4096);
	close_party(&p, both);
}
static void one(int rank) { sizes(rank, 1, 0); }
static void two(int rank) { sizes(rank, 2, 1); }
static void three(int rank) { sizes(rank, 3, 1); }
static void seven(int rank) { sizes(rank, 7, 1); }
static void eight_here(int rank) { sizes(rank, 8, 0); }
static void large(int rank)
{
	struct party p;

	(void)rank;
	open_party(&p, 3, 1, NULL);
	join_all(&p);
	all_operations(&p, 300000);
	close_party(&p, 1);
}

/* Every type with every operation that combines, by the results of C. */
static void types(int rank)
{
	static const int sizes_of[] = { 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 16, 32, 16, 16, 2, 2, 1, 1 };
	struct party p;
	unsigned char in[3][64], out[3][64];

	(void)rank;
	open_party(&p, 3, 0, NULL);
	join_all(&p);
	for (int type = 0; type < 20; type++)
		for (int op = 0; op < FI_ATOMIC_OP_LAST + 2; op++) {
			struct fi_collective_attr a = { .op = op, .datatype = type };
			int ok = fi_query_collective(p.c[0].domain, FI_ALLREDUCE, &a, 0);

			memset(in, 0, sizeof in);
			EACH(&p) {
				long got = fi_allreduce(p.c[e].ep, in[e], 2, NULL, out[e], NULL, p.coll[e], type, op, 0, CTX(100 + e));
				EQ(got, ok);
			}
			if (ok) {
				EQ(ok, -FI_EOPNOTSUPP);
				continue;
			}
			EQ(a.datatype_attr.size, sizes_of[type]);
			CHECK(a.max_members >= 1024);
			complete_all(&p);
			EACH(&p) CHECK(!memcmp(out[e], in[e], 2 * sizes_of[type]));	/* of zeros, all give zeros */
		}
	/* and some of which the results differ */
	static const struct { int op; int64_t want; } known[] = {
		{ FI_MIN, -7 }, { FI_MAX, 12 }, { FI_SUM, 10 }, { FI_PROD, -420 }, { FI_LOR, 1 }, { FI_LAND, 1 },
		{ FI_LXOR, 1 }, { FI_BOR, -3 }, { FI_BAND, 0 }, { FI_BXOR, (-7) ^ 5 ^ 12 },
	};
	for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
		int64_t v[3] = { 5, -7, 12 }, res[3];
		double d[3] = { 5, -7, 12 }, dres[3];

		EACH(&p) OK(fi_allreduce(p.c[e].ep, &v[e], 1, NULL, &res[e], NULL, p.coll[e], FI_INT64, known[k].op, 0, CTX(100 + e)));
		complete_all(&p);
		EACH(&p) EQ(res[e], known[k].op == FI_BOR ? (5 | -7 | 12) : known[k].op == FI_BAND ? (5 & -7 & 12) : known[k].want);
		if (known[k].op == FI_BOR || known[k].op == FI_BAND || known[k].op == FI_BXOR)
			continue;
		EACH(&p) OK(fi_reduce(p.c[e].ep, &d[e], 1, NULL, &dres[e], NULL, p.coll[e], p.addr[e][1], FI_DOUBLE, known[k].op, 0, CTX(100 + e)));
		complete_all(&p);
		CHECK(dres[1] == (double)known[k].want);
	}
	close_party(&p, 0);
}
/* Data that is not combined may be of any type. */
static void moved(int rank)
{
	struct party p;
	unsigned char b[4][256], out[4][256];

	(void)rank;
	open_party(&p, 4, 0, NULL);
	join_all(&p);
	for (int type = 0; type < 20; type++) {
		struct fi_collective_attr a = { .op = FI_NOOP, .datatype = type };

		OK(fi_query_collective(p.c[0].domain, FI_ALLTOALL, &a, 0));
		EACH(&p) ct_fill(b[e], sizeof b[e], e);
		EACH(&p) OK(fi_alltoall(p.c[e].ep, b[e], 2, NULL, out[e], NULL, p.coll[e], type, 0, CTX(100 + e)));
		complete_all(&p);
		size_t z = 2 * a.datatype_attr.size;
		EACH(&p) for (int s = 0; s < 4; s++)
			CHECK(!memcmp(out[e] + s * z, b[s] + e * z, z));
	}
	close_party(&p, 0);
}
/* Many operations at a time, on groups that share members, begun in different orders. */
static void overlapping(int rank)
{
	enum { N = 40 };
	struct party p;
	static const int ranks[3][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 } };
	static uint64_t in[3][4][N], out[3][4][N];
	struct fid_mc *mc[3][4];
	fi_addr_t at[3][4];

	(void)rank;
	open_party(&p, 3, 0, NULL);
	for (int g = 0; g < 3; g++)
		EACH(&p) mc[g][e] = begin_join(&p, e, ranks[g], 3, CTX(g));
	EACH(&p) for (int g = 0; g < 3; g++)
		at[g][e] = end_join(&p, mc[g][e], CTX(g));
	EACH(&p) CHECK(at[0][e] != at[1][e] && at[1][e] != at[2][e] && at[0][e] != at[2][e]);
	for (int k = 0; k < N; k++)
		EACH(&p) for (int j = 0; j < 3; j++) {
			int g = (j + e) % 3;
			in[g][e][k] = value(e, k) * (g + 1);
			OK(fi_allreduce(p.c[e].ep, &in[g][e][k], 1, NULL, &out[g][e][k], NULL, at[g][e], FI_UINT64, FI_SUM, 0, CTX(100)));
		}
	EACH(&p) for (int k = 0; k < 3 * N; k++)
		complete(&p, e, CTX(100));
	for (int g = 0; g < 3; g++)
		EACH(&p) for (int k = 0; k < N; k++)
			EQ(out[g][e][k], total(3, k) * (g + 1));
	for (int g = 0; g < 3; g++)
		EACH(&p) OK(fi_close(&mc[g][e]->fid));
	close_party(&p, 0);
}
/* A group of some of the endpoints; others have nothing to do with it. */
static void subgroup(int rank)
{
	struct party p;
	static const int ranks[] = { 4, 1, 3 };
	uint64_t in[5], out[5][3];

	(void)rank;
	open_party(&p, 5, 0, NULL);
	for (int i = 0; i < 3; i++)
		p.mc[ranks[i]] = begin_join(&p, ranks[i], ranks, 3, CTX(0));
	for (int i = 0; i < 3; i++)
		p.coll[ranks[i]] = end_join(&p, p.mc[ranks[i]], CTX(0));
	for (int i = 0; i < 3; i++) {
		int e = ranks[i];
		in[e] = 100 + e;
		OK(fi_allgather(p.c[e].ep, &in[e], 1, NULL, out[e], NULL, p.coll[e], FI_UINT64, 0, CTX(100 + e)));
	}
	for (int i = 0; i < 3; i++)
		complete(&p, ranks[i], CTX(100 + ranks[i]));
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < 3; k++)
			EQ(out[ranks[i]][k], 100 + ranks[k]);	/* in the order of the set */
	/* a root that is no member */
	ERR(fi_broadcast(p.c[1].ep, in, 1, NULL, p.coll[1], p.addr[1][0], FI_UINT64, 0, NULL), FI_EINVAL);
	close_party(&p, 0);
}
/* The application's own messages and the group's go their own ways. */
static void with_messages(int rank)
{
	enum { N = 30 };
	struct party p;
	uint64_t in = 7, out = 0, got[2 * N];
	struct fi_cq_tagged_entry x;

	open_party(&p, 2, 1, NULL);
	/* these take any message with any tag, but for the group's */
	for (int i = 0; i < N; i++) {
		OK(fi_trecv(p.c[0].ep, &got[i], 8, NULL, FI_ADDR_UNSPEC, 0, ~0ULL, CTX(500 + i)));
		OK(fi_recv(p.c[0].ep, &got[N + i], 8, NULL, FI_ADDR_UNSPEC, CTX(600 + i)));
	}
	join_all(&p);
	for (int i = 0; i < N; i++) {
		uint64_t m = i;
		OK(fi_allreduce(p.c[0].ep, &in, 1, NULL, &out, NULL, p.coll[0], FI_UINT64, FI_SUM, 0, CTX(100)));
		POST(&p.c[0], fi_tinject(p.c[0].ep, &m, 8, p.addr[0][!rank], i));
		POST(&p.c[0], fi_inject(p.c[0].ep, &m, 8, p.addr[0][!rank]));
		complete(&p, 0, CTX(100));
		EQ(out, 14);
	}
	for (int i = 0, t = 0, u = 0; i < 2 * N; i++) {
		ct_next(&p.c[0], p.c[0].rx, &x, NULL, NULL);
		if (x.flags & FI_TAGGED) {
			CHECK(x.op_context == CTX(500 + t));
			EQ(x.tag, t);
			EQ(got[t], t);
			t++;
		} else {
			CHECK(x.op_context == CTX(600 + u));
			EQ(got[N + u], u);
			u++;
		}
	}
	close_party(&p, 1);
}
static void in_vectors(int rank)
{
	struct party p;
	uint32_t a[2][6], b[2][6];
	struct fi_ioc src[2][2], dst[2][2];
	static const uint32_t want[6] = { 20, 21, 22, 23, 24, 25 };

	(void)rank;
	open_party(&p, 2, 0, NULL);
	join_all(&p);
	for (int coll = FI_BARRIER; coll <= FI_GATHER; coll++) {
		memset(b, 0, sizeof b);
		EACH(&p) {
			struct fi_msg_collective m = { .msg_iov = src[e], .iov_count = 2, .coll_addr = p.coll[e],
				.root_addr = p.addr[e][1], .coll = coll, .datatype = FI_UINT32, .op = FI_MAX, .context = CTX(100 + e) };
			struct fid_ep *ep = p.c[e].ep;

			for (int i = 0; i < 6; i++)
				a[e][i] = 10 * (e + 1) + i;
			src[e][0] = (struct fi_ioc){ a[e], 1 };
			src[e][1] = (struct fi_ioc){ a[e] + 1, coll == FI_GATHER || coll == FI_ALLGATHER ? 2 : 5 };
			dst[e][0] = (struct fi_ioc){ b[e], 2 };
			dst[e][1] = (struct fi_ioc){ b[e] + 2, coll == FI_SCATTER || coll == FI_REDUCE_SCATTER ? 1 : 4 };
			OK(ep->collective->msg(ep, &m, dst[e], NULL, 2, 0));
			memset(&m, 0xee, sizeof m);
		}
		complete_all(&p);
		switch (coll) {
		case FI_BROADCAST:
			CHECK(!memcmp(a[0], want, sizeof want) && !memcmp(a[1], want, sizeof want));
			break;
		case FI_ALLTOALL:
			CHECK(b[0][0] == 10 && b[0][3] == 20 && b[1][0] == 13 && b[1][5] == 25);
			break;
		case FI_ALLREDUCE:
			CHECK(!memcmp(b[0], want, sizeof want) && !memcmp(b[1], want, sizeof want));
			break;
		case FI_ALLGATHER:
			CHECK(b[0][0] == 10 && b[0][2] == 12 && b[0][3] == 20 && b[0][5] == 22);
			CHECK(!memcmp(b[0], b[1], sizeof b[0]));
			break;
		case FI_REDUCE_SCATTER:
			CHECK(b[0][0] == 20 && b[0][2] == 22 && b[1][0] == 23 && b[1][2] == 25 && !b[1][3]);
			break;
		case FI_REDUCE:
			CHECK(!b[0][0] && !memcmp(b[1], want, sizeof want));
			break;
		case FI_SCATTER:
			CHECK(b[0][0] == 20 && b[0][2] == 22 && b[1][0] == 23 && b[1][2] == 25);
			break;
		case FI_GATHER:
			CHECK(!b[0][0] && b[1][0] == 10 && b[1][3] == 20 && b[1][5] == 22);
			break;
		}
	}
	close_party(&p, 0);
}
static void quiet(int rank)
{
	struct ct_opt o = { .cq_flags = FI_SELECTIVE_COMPLETION, .cntr = 1, .cq_size = 64 };
	struct party p;
	struct fi_cq_tagged_entry x;

	(void)rank;
	open_party(&p, 2, 0, &o);
	join_all(&p);
	EACH(&p) OK(fi_barrier(p.c[e].ep, p.coll[e], CTX(100 + e)));
	complete_all(&p);
	EACH(&p) OK(fi_barrier2(p.c[e].ep, p.coll[e], 0, CTX(100 + e)));
	complete_all(&p);
	EACH(&p) OK(fi_barrier2(p.c[e].ep, p.coll[e], FI_COMPLETION, CTX(100 + e)));
	complete_all(&p);
	EACH(&p) ERR(fi_cq_read(p.c[e].tx, &x, 1), FI_EAGAIN);
	EACH(&p) {
		EQ(fi_cntr_read(p.c[e].txc), 3);
		EQ(fi_cntr_read(p.c[e].rxc), 0);	/* internal operations are not counted */
	}
	close_party(&p, 0);
}
/* With the promise to serialize all calls; a thread of the library may run concurrently. */
static void serialized(int rank)
{
	struct ct_opt o = { .threading = FI_THREAD_DOMAIN, .cq_size = 64 };
	struct party p;

	(void)rank;
	open_party(&p, 2, 1, &o);
	join_all(&p);
	all_operations(&p, 3);
	all_operations(&p, 20000);
	close_party(&p, 1);
}
static void none_too_early(int rank)
{
	struct party p;
	struct fi_cq_tagged_entry x;

	(void)rank;
	open_party(&p, 5, 0, NULL);
	join_all(&p);
	for (int late = 0; late < 5; late++) {
		EACH(&p) if (e != late)
			OK(fi_barrier(p.c[e].ep, p.coll[e], CTX(100 + e)));
		for (int i = 0; i < 30; i++, ct_nap(1))
			round_number(&p);
		EACH(&p) ERR(fi_cq_read(p.c[e].tx, &x, 1), FI_EAGAIN);
		ERR(fi_close(&p.mc[!late]->fid), FI_EBUSY);
		OK(fi_barrier(p.c[late].ep, p.coll[late], CTX(100 + late)));
		complete_all(&p);
	}
	close_party(&p, 0);
}
static void asleep(int rank)
{
	struct ct_opt o = { .wait = FI_WAIT_UNSPEC, .cq_size = 64 };
	struct party p;
	struct fi_cq_tagged_entry x;

	open_party(&p, 2, 1, &o);
	join_all(&p);
	for (int i = 0; i < 20; i++) {
		if (i % 2 == rank)
			ct_nap(10);
		OK(fi_barrier(p.c[0].ep, p.coll[0], CTX(100)));
		while (fi_cq_sread(p.c[0].tx, &x, 1, NULL, -1) == -FI_EAGAIN)
			;
		CHECK(x.op_context == CTX(100));
	}
	close_party(&p, 1);
}
/* A member of the group ends without closing; no member waits for ever, and all are notified. */
static void vanished(int how)
{
	struct party p;
	struct fi_cq_err_entry err = { 0 };
	uint64_t v[2] = { 1, 2 }, out[2 * MOST];

	open_party(&p, 6, 1, NULL);
	join_all(&p);
	EACH(&p) OK(fi_barrier(p.c[e].ep, p.coll[e], CTX(100 + e)));
	complete_all(&p);
	if (ct_rank == 1) {
		ct_barrier(&p.c[0]);
		_exit(0);
	}
	ct_barrier(&p.c[0]);
	if (how)
		ct_nap(50);	/* it is gone before the call */
	EACH(&p) {
		long ret = fi_allgather(p.c[e].ep, v, 2, NULL, out, NULL, p.coll[e], FI_UINT64, 0, CTX(100 + e));
		struct fi_cq_tagged_entry x;
		ssize_t got;

		if (ret) {	/* an earlier endpoint notified this one already */
			CHECK(ret < 0 && ret != -FI_EAGAIN);
			continue;
		}
		while ((got = fi_cq_read(p.c[e].tx, &x, 1)) == -FI_EAGAIN)
			round_number(&p);
		EQ(got, -FI_EAVAIL);
		EQ(fi_cq_readerr(p.c[e].tx, &err, 0), 1);
		CHECK(err.op_context == CTX(100 + e));
		CHECK(err.flags & FI_COLLECTIVE);
		CHECK(err.err > 0);
	}
	/* the group is no more good for anything */
	EACH(&p) {
		while (fi_barrier(p.c[e].ep, p.coll[e], CTX(100 + e)) == 0)
			round_number(&p);
		OK(fi_close(&p.mc[e]->fid));
		p.mc[e] = NULL;
	}
}
static void dies(int rank) { (void)rank; vanished(0); }
static void died(int rank) { (void)rank; vanished(1); }
/* The first four of five join; an error event reports the failure to each. */
static void fail_join(struct party *p, const int *order)
{
	struct fid_mc *mc[4];
	uint32_t ev;

	for (int i = 0; i < 4; i++) {
		mc[i] = begin_join(p, order[i], everybody, 5, CTX(i));
		for (int64_t end = ct_ms() + 20; ct_ms() < end;)
			round_number(p);
	}
	for (int failed = 0; failed < 4; failed++) {
		struct fi_eq_err_entry err = { 0 };
		ssize_t r;

		while ((r = fi_eq_read(p->c[0].eq, &ev, NULL, 0, 0)) == -FI_EAGAIN)
			round_number(p);
		EQ(r, -FI_EAVAIL);
		EQ(fi_eq_readerr(p->c[0].eq, &err, 0), sizeof err);
		CHECK(err.err > 0);
		for (int i = 0; i < 4; i++)
			if (mc[i] && err.fid == &mc[i]->fid) {
				CHECK(err.context == CTX(i));
				OK(fi_close(&mc[i]->fid));
				mc[i] = NULL;
			}
	}
}
/* One member is gone: members waiting for others only are notified as well, at any time of their join. */
static void joined_without_effect(int rank)
{
	static const int order[][4] = { { 0, 1, 2, 3 }, { 1, 0, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
	struct party p;

	(void)rank;
	ct_param("PEER_WAIT", "1");	/* of shm, which waits for peers that may come */
	open_party(&p, 5, 0, NULL);
	OK(fi_close(&p.c[4].ep->fid));
	p.c[4].ep = NULL;
	for (int i = 0; i < 4; i++)
		fail_join(&p, order[i]);
	/* remains of that disturb no other group */
	p.own = p.n = 4;
	join_all(&p);
	all_operations(&p, 3);
	p.own = 5;
	close_party(&p, 0);
}
/* Member e ends, and another one begins at its address: it knows of nothing before. */
static void restart(struct party *p, int e)
{
	struct ct_opt o = p->c[e].o;
	struct ct_name name = ct_getname(&p->c[e].ep->fid);
	char service[8];

	ct_ip_only();
	snprintf(service, sizeof service, "%d", ntohs(((struct sockaddr_in *)name.b)->sin_port));
	OK(fi_close(&p->c[e].ep->fid));
	p->c[e].ep = NULL;
	if (p->mc[e])
		OK(fi_close(&p->mc[e]->fid));
	p->mc[e] = NULL;
	ct_close(&p->c[e]);
	ct_open_at(&p->c[e], &p->c[0], &o, service);
	for (int r = 0; r < p->n; r++) {
		struct ct_name other = ct_getname(&p->c[r].ep->fid);
		p->addr[e][r] = ct_insert(&p->c[e], &other);
	}
	/* the remaining members are notified of its end before they join again, which would fail otherwise */
	for (int64_t end = ct_ms() + 50, n = 0; ct_ms() < end || n < 300; n++)
		round_number(p);
}
static void leave_all(struct party *p)
{
	EACH(p) if (p->mc[e]) {
		OK(fi_close(&p->mc[e]->fid));
		p->mc[e] = NULL;
	}
}
static void restarted(int rank)
{
	struct party p;

	(void)rank;
	for (int n = 2; n < 8; n++) {
		open_party(&p, n, 0, NULL);
		for (int k = 0; k < n; k++) {
			join_all(&p);
			all_operations(&p, 2);
			leave_all(&p);
		}
		for (int e = 1; e < n; e++) {
			restart(&p, e);
			if (e % 3 == 0)		/* two at a time */
				restart(&p, e - 1);
			for (int k = 0; k < 2; k++) {
				join_all(&p);
				all_operations(&p, 2);
				leave_all(&p);
			}
		}
		close_party(&p, 0);
	}
}
/* A process of four that joins a set, uses the group, and joins it again, until it is killed. */
static void again_and_again(int me, const int *ports, volatile int *through)
{
	enum { N = 4 };
	struct ct_opt o = { .caps = CAPS, .cq_size = 64, .one_cq = 1 };
	struct fi_av_set_attr a = { .count = N, .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	struct fid_av_set *s;
	struct ct c;
	char service[8];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(service, sizeof service, "%d", ports[me]);
	ct_open_at(&c, NULL, &o, service);
	OK(fi_av_set(c.av, &a, &s, NULL));
	for (int i = 0; i < N; i++) {
		struct ct_name name = ct_getname(&c.ep->fid);
		((struct sockaddr_in *)name.b)->sin_port = htons(ports[i]);
		OK(fi_av_set_insert(s, ct_insert(&c, &name)));
	}
	for (;;) {
		struct fi_eq_err_entry err = { 0 };
		struct fi_eq_entry e;
		struct fid_mc *mc;
		fi_addr_t at;
		uint32_t ev;
		ssize_t r;

		OK(fi_av_set_addr(s, &at));
		OK(fi_join_collective(c.ep, at, s, 0, &mc, NULL));
		while ((r = fi_eq_read(c.eq, &ev, &e, sizeof e, 0)) == -FI_EAGAIN) {
			ct_progress(&c);
			sched_yield();
		}
		if (r == -FI_EAVAIL) {
			EQ(fi_eq_readerr(c.eq, &err, 0), sizeof err);
			ct_idle(&c, 5);
		}
		for (int i = 0; r > 0 && i < 5; i++) {
			struct fi_cq_err_entry failed = { 0 };
			struct fi_cq_tagged_entry x;
			uint64_t in = 1, out = 0;

			if (fi_allreduce(c.ep, &in, 1, NULL, &out, NULL, fi_mc_addr(mc), FI_UINT64, FI_SUM, 0, NULL))
				break;
			while ((r = fi_cq_read(c.rx, &x, 1)) == -FI_EAGAIN)
				sched_yield();
			if (r < 0) {
				EQ(fi_cq_readerr(c.rx, &failed, 0), 1);
				break;
			}
			EQ(out, N);
			through[me]++;
		}
		OK(fi_close(&mc->fid));
	}
}
static void killed_at_random(int rank)
{
	enum { N = 4, ROUNDS = 8 };
	unsigned seed = (unsigned)ct_ms();
	volatile int *through = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct party p;
	int ports[N];
	pid_t pid[N];

	(void)rank;
	ct_ip_only();
	CHECK(through != MAP_FAILED);
	open_party(&p, N, 0, NULL);
	for (int i = 0; i < N; i++) {
		struct ct_name name = ct_getname(&p.c[i].ep->fid);
		ports[i] = ntohs(((struct sockaddr_in *)name.b)->sin_port);
	}
	close_party(&p, 0);
	for (int i = 0; i < N; i++)
		if (!(pid[i] = fork()))
			again_and_again(i, ports, through);
	for (int k = 0; k < ROUNDS; k++) {
		/* every member makes progress */
		for (int i = 0; i < N; i++)
			for (int before = through[i]; through[i] < before + 6; ct_nap(5))
				if (waitpid(pid[i], NULL, WNOHANG) == pid[i])
					FAIL("member %d ended, seed %u", i, seed);
		for (int n = rand_r(&seed) % 3; n >= 0; n--) {
			int i = rand_r(&seed) % N;

			ct_nap(rand_r(&seed) % 30);
			kill(pid[i], SIGKILL);
			CHECK(waitpid(pid[i], NULL, 0) == pid[i]);
			ct_nap(rand_r(&seed) % 2 * 20);
			if (!(pid[i] = fork()))
				again_and_again(i, ports, through);
		}
	}
	for (int i = 0; i < N; i++) {
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
	}
}
/* An endpoint gets a join request from a peer not yet in its address vector. */
static void known_late(int rank)
{
	static const int others[2] = { 0, 2 }, both[2] = { 0, 1 };
	struct party p;
	struct fid_mc *mc[3];
	struct ct_name name;

	(void)rank;
	open_party(&p, 3, 0, NULL);
	name = ct_getname(&p.c[1].ep->fid);
	OK(fi_av_remove(p.c[0].av, &p.addr[0][1], 1, 0));
	for (int i = 0; i < 2; i++)
		mc[others[i]] = begin_join(&p, others[i], others, 2, CTX(0));
	for (int i = 0; i < 2; i++)
		end_join(&p, mc[others[i]], CTX(0));
	mc[1] = begin_join(&p, 1, both, 2, CTX(1));
	for (int64_t end = ct_ms() + 50; ct_ms() < end;)
		round_number(&p);
	p.addr[0][1] = ct_insert(&p.c[0], &name);
	p.mc[0] = begin_join(&p, 0, both, 2, CTX(1));
	end_join(&p, p.mc[0], CTX(1));
	end_join(&p, mc[1], CTX(1));
	for (int i = 0; i < 3; i++)
		OK(fi_close(&mc[i]->fid));
	close_party(&p, 0);
}
/* In a group left by a restarted member, no member waits for operations unknown to its successor. */
static void successor(int rank)
{
	struct party p, old;

	(void)rank;
	open_party(&p, 4, 0, NULL);
	join_all(&p);
	EACH(&p) OK(fi_barrier(p.c[e].ep, p.coll[e], CTX(100 + e)));
	complete_all(&p);
	old = p;
	restart(&p, 2);
	memset(p.mc, 0, sizeof p.mc);
	old.mc[2] = NULL;
	join_all(&p);
	all_operations(&p, 2);
	EACH(&p) if (e != 2)
		OK(fi_barrier(p.c[e].ep, old.coll[e], CTX(100 + e)));
	EACH(&p) if (e != 2) {
		struct fi_cq_tagged_entry x;
		struct fi_cq_err_entry err = { 0 };
		ssize_t got;

		while ((got = fi_cq_read(p.c[e].tx, &x, 1)) == -FI_EAGAIN)
			round_number(&p);
		EQ(got, -FI_EAVAIL);
		EQ(fi_cq_readerr(p.c[e].tx, &err, 0), 1);
		CHECK(err.op_context == CTX(100 + e));
	}
	EACH(&p) if (old.mc[e])
		OK(fi_close(&old.mc[e]->fid));
	all_operations(&p, 2);
	close_party(&p, 0);
}
/* Messages as of a member of a group, from an endpoint outside it. */
static void forged(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct party p;
	struct ct other;
	struct fi_cq_tagged_entry x;
	unsigned char notice[16] = { 0 };

	(void)rank;
	open_party(&p, 3, 0, NULL);
	join_all(&p);
	o.one_cq = 1;
	open_one(&other, &p.c[0], &o);
	for (int known = 0; known < 2; known++) {
		struct ct_name name = ct_getname(&other.ep->fid);

		/* the address of a group is its number, and 1 << 62 */
		for (int i = 0; i < 4; i++)
			notice[i] = p.coll[0] >> (24 - 8 * i);
		notice[7] = FI_EIO;
		EACH(&p) {
			struct ct_name to = ct_getname(&p.c[e].ep->fid);

			if (known)
				ct_insert(&p.c[e], &name);
			POST(&other, fi_tsend(other.ep, notice, sizeof notice, NULL, ct_insert(&other, &to), 1ULL << 63, NULL));
			while (ct_progress(&other), fi_cq_read(other.tx, &x, 1) == -FI_EAGAIN)
				round_number(&p);
		}
		for (int64_t end = ct_ms() + 50; ct_ms() < end;)
			round_number(&p);
		all_operations(&p, 2);
	}
	ct_close(&other);
	close_party(&p, 0);
}
/* Sends a message to an endpoint as of a member, and waits until it is sent. */
static void forge(struct party *p, struct ct *from, fi_addr_t to, const void *b, size_t n, uint64_t tag)
{
	struct fi_cq_tagged_entry x;

	POST(from, fi_tsend(from->ep, b, n, NULL, to, tag, NULL));
	while (ct_progress(from), fi_cq_read(from->tx, &x, 1) == -FI_EAGAIN)
		round_number(p);
}
/* An endpoint that is no member, in the vectors of the members or not, sends messages as of members. */
static void forged_data(int rank, int known)
{
	enum { BIG = 1 << 20 };
	struct ct_opt o = { .caps = FI_TAGGED, .one_cq = 1 };
	struct party p;
	struct ct other;
	struct ct_name name;
	uint64_t sum = 0xcbf29ce484222325ull ^ 3, joining, lie = 1000;
	unsigned char number[4] = { 0x11, 0x22, 0x33, 0x44 }, vote[9] = { 0 };
	fi_addr_t to[3];

	(void)rank;
	for (int i = 0; i < 4; i++) {
		vote[1 + i] = number[i];
		vote[5 + i] = ~number[i];
	}
	ct_ip_only();
	open_party(&p, 3, 0, NULL);
	open_one(&other, &p.c[0], &o);
	name = ct_getname(&other.ep->fid);
	EACH(&p) {
		struct ct_name its = ct_getname(&p.c[e].ep->fid);
		unsigned port = ntohs(((struct sockaddr_in *)its.b)->sin_port);

		if (known)
			ct_insert(&p.c[e], &name);
		to[e] = ct_insert(&other, &its);
		sum = (sum ^ port) * 0x100000001b3ull;
		sum ^= sum >> 32;
	}
	/* the number proposed by rank 0, votes for it, and other values */
	joining = 3ull << 62 | (sum & 0xffffffff) << 30;
	EACH(&p) for (int rounds = 0; rounds < 2; rounds++)
		for (int as = 0; as < 3; as++) {
			forge(&p, &other, to[e], number, 4, joining | rounds << 16 | as);
			forge(&p, &other, to[e], vote, rounds ? 9 : 1, joining | rounds << 16 | as);
			forge(&p, &other, to[e], vote, 7, joining | rounds << 16 | as);
		}
	for (int64_t end = ct_ms() + 50; ct_ms() < end;)
		round_number(&p);
	join_all(&p);
	/* the messages of the first operations */
	EACH(&p) for (uint64_t op = 0; op < 4; op++)
		for (int as = 0; as < 3; as++)
			forge(&p, &other, to[e], &lie, 8, 1ull << 63 | (p.coll[e] & 0xffffffff) << 30 | op << 16 | as);
	for (int64_t end = ct_ms() + 50; ct_ms() < end;)
		round_number(&p);
	all_operations(&p, 1);
	/* no message of an unknown peer is stored: they would exceed the space */
	char *big = calloc(1, BIG);
	for (int i = 0; !known && i < 300; i++)
		forge(&p, &other, to[i % 3], big, BIG, 1ull << 63 | 5ull << 30);
	all_operations(&p, 2);
	free(big);
	ct_close(&other);
	close_party(&p, 0);
}
static void forged_by_unknown_peer(int rank) { forged_data(rank, 0); }
static void forged_by_peer(int rank) { forged_data(rank, 1); }
static void closed_under_way(int rank)
{
	struct party p;

	(void)rank;
	open_party(&p, 3, 0, NULL);
	join_all(&p);
	uint64_t *in = filled(0, 100000), *out = calloc(300000, 8);
	EACH(&p) if (e < 2)
		OK(fi_allgather(p.c[e].ep, in, 100000, NULL, out, NULL, p.coll[e], FI_UINT64, 0, CTX(100 + e)));
	round_number(&p);
	/* nothing of it is used after its endpoint is closed */
	EACH(&p) {
		OK(fi_close(&p.c[e].ep->fid));
		p.c[e].ep = NULL;
		OK(fi_close(&p.mc[e]->fid));
		p.mc[e] = NULL;
	}
	free(in);
	free(out);
	for (int e = 2; e >= 0; e--)
		ct_close(&p.c[e]);
}

static int holds(struct party *p, struct fid_av_set *s, const char *ranks)
{
	/* a set can only be queried by others: its members cannot be inserted again */
	for (int r = 0; r < p->n; r++) {
		int is = strchr(ranks, '0' + r) != NULL;
		int ret = fi_av_set_remove(s, p->addr[0][r]);

		if (is != (ret == 0))
			return 0;
		if (is)
			OK(fi_av_set_insert(s, p->addr[0][r]));
	}
	return 1;
}
static void sets(int rank)
{
	struct party p;
	struct fid_av_set *a, *b, *u;
	static const int ra[] = { 0, 2, 3 }, rb[] = { 3, 1 };
	struct fi_av_set_attr t = { .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
	fi_addr_t at[2];

	(void)rank;
	open_party(&p, 5, 0, NULL);
	a = set_of(&p, 0, ra, 3);
	b = set_of(&p, 0, rb, 2);
	CHECK(holds(&p, a, "023") && holds(&p, b, "13"));
	OK(fi_av_set_union(a, b));
	CHECK(holds(&p, a, "0123"));
	OK(fi_av_set_intersect(a, b));
	CHECK(holds(&p, a, "13"));
	OK(fi_av_set_insert(a, p.addr[0][4]));
	ERR(fi_av_set_insert(a, p.addr[0][4]), FI_EINVAL);
	ERR(fi_av_set_insert(a, 1000), FI_EINVAL);
	OK(fi_av_set_diff(a, b));
	CHECK(holds(&p, a, "4"));
	OK(fi_av_set_remove(a, p.addr[0][4]));
	ERR(fi_av_set_remove(a, p.addr[0][4]), FI_EINVAL);
	OK(fi_av_set_diff(b, b));
	CHECK(holds(&p, b, ""));
	OK(fi_av_set_addr(a, &at[0]));
	OK(fi_av_set_addr(b, &at[1]));
	CHECK(at[0] != at[1] && at[0] != FI_ADDR_NOTAVAIL);
	t.flags = FI_UNIVERSE;
	OK(fi_av_set(p.c[0].av, &t, &u, NULL));
	CHECK(holds(&p, u, "01234"));
	ERR(fi_close(&p.c[0].av->fid), FI_EBUSY);
	OK(fi_close(&u->fid));
	t.flags = FI_BARRIER_SET | FI_ALLREDUCE_SET;
	t.start_addr = 1;
	t.end_addr = 4;
	t.stride = 2;
	OK(fi_av_set(p.c[0].av, &t, &u, NULL));
	CHECK(holds(&p, u, "13"));
	OK(fi_close(&u->fid));
	t.stride = 1;
	t.count = 2;	/* fewer than there are */
	ERR(fi_av_set(p.c[0].av, &t, &u, NULL), FI_EINVAL);
	t.flags = 1ULL << 63;
	ERR(fi_av_set(p.c[0].av, &t, &u, NULL), FI_EBADFLAGS);
	OK(fi_close(&a->fid));
	OK(fi_close(&b->fid));
	close_party(&p, 0);
}
static void refused(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	struct party p;
	struct fid_av_set *s;
	struct fid_mc *mc;
	struct fi_collective_attr a = { .op = FI_NOOP, .datatype = FI_VOID };
	uint64_t v = 0, w = 0;
	static const int others[] = { 1, 2 };

	(void)rank;
	open_party(&p, 3, 0, NULL);
	join_all(&p);
	s = set_of(&p, 0, others, 2);	/* of which the endpoint is none */
	ERR(fi_join_collective(p.c[0].ep, FI_ADDR_NOTAVAIL, s, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join_collective(p.c[1].ep, FI_ADDR_NOTAVAIL, s, 0, &mc, NULL), FI_EINVAL);	/* another vector's */
	OK(fi_close(&s->fid));
	ERR(fi_join(p.c[0].ep, "x", 0, &mc, NULL), FI_ENOSYS);
	ERR(fi_barrier(p.c[0].ep, 12345, NULL), FI_EINVAL);
	ERR(fi_allreduce(p.c[0].ep, &v, 1, NULL, &w, NULL, p.coll[0], FI_FLOAT, FI_BAND, 0, NULL), FI_EOPNOTSUPP);
	ERR(fi_allreduce(p.c[0].ep, &v, 1, NULL, &w, NULL, p.coll[0], 99, FI_SUM, 0, NULL), FI_EOPNOTSUPP);
	ERR(fi_broadcast(p.c[0].ep, &v, 1, NULL, p.coll[0], p.addr[0][0], FI_VOID, 0, NULL), FI_EOPNOTSUPP);
	ERR(fi_allgather(p.c[0].ep, NULL, 1, NULL, &w, NULL, p.coll[0], FI_UINT64, 0, NULL), FI_EINVAL);
	OK(fi_query_collective(p.c[0].domain, FI_BARRIER, &a, 0));
	ERR(fi_query_collective(p.c[0].domain, 77, &a, 0), FI_EOPNOTSUPP);
	ERR(fi_query_collective(p.c[0].domain, FI_BROADCAST, &a, 0), FI_EOPNOTSUPP);
	ERR(fi_query_collective(p.c[0].domain, FI_BARRIER, NULL, 0), FI_EINVAL);
	/* the group is as good as before */
	all_operations(&p, 3);
	close_party(&p, 0);
	/* without the capability there is none of it */
	open_party(&p, 1, 0, &o);
	s = set_of(&p, 0, everybody, 1);
	ERR(fi_join_collective(p.c[0].ep, FI_ADDR_NOTAVAIL, s, 0, &mc, NULL), FI_ENOSYS);
	ERR(fi_barrier(p.c[0].ep, 1, NULL), FI_ENOSYS);
	ERR(fi_query_collective(p.c[0].domain, FI_BARRIER, &a, 0), FI_ENOSYS);
	OK(fi_close(&s->fid));
	close_party(&p, 0);
}
static void only_if_asked(int rank)
{
	struct ct_opt o = { .caps = CAPS };
	struct fi_info *i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);

	(void)rank;
	CHECK(i->caps & FI_COLLECTIVE);
	CHECK(!(i->ep_attr->mem_tag_format & 1ULL << 63));
	fi_freeinfo(i);
	o.caps = FI_TAGGED;
	i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	CHECK(!(i->caps & FI_COLLECTIVE));
	CHECK(i->ep_attr->mem_tag_format & 1ULL << 63);
	fi_freeinfo(i);
}

static const struct ct_test tests[] = {
	{ "FI_COLLECTIVE is offered only on request and reserves the highest tag bit", only_if_asked, CT_RDM | CT_SOLO },
	{ "address vector sets unite, intersect and subtract", sets, CT_RDM | CT_SOLO },
	{ "collectives work in a group of one member", one, CT_RDM | CT_SOLO },
	{ "every collective, two processes", two, CT_RDM },
	{ "every collective, three members in two processes", three, CT_RDM },
	{ "every collective, seven members in two processes", seven, CT_RDM },
	{ "every collective, eight endpoints of a process", eight_here, CT_RDM | CT_SOLO },
	{ "every collective, with megabytes of data", large, CT_RDM },
	{ "every type and operation", types, CT_RDM | CT_SOLO },
	{ "data of every type is transferred", moved, CT_RDM | CT_SOLO },
	{ "operations of overlapping groups do not mix", overlapping, CT_RDM | CT_SOLO },
	{ "collectives work in a group of some of the endpoints", subgroup, CT_RDM | CT_SOLO },
	{ "group traffic does not reach the application's messages and wildcard receives", with_messages, CT_RDM },
	{ "collectives with vectors through the message structure", in_vectors, CT_RDM | CT_SOLO },
	{ "selective completion and counters", quiet, CT_RDM | CT_SOLO },
	{ "every collective under FI_THREAD_DOMAIN", serialized, CT_RDM },
	{ "no member leaves a barrier before all members have entered it", none_too_early, CT_RDM | CT_SOLO },
	{ "the end of a barrier wakes a waiter", asleep, CT_RDM },
	{ "the death of a member ends pending collectives with an error", dies, CT_RDM },
	{ "a collective fails with an error if a member died before the call", died, CT_RDM },
	{ "a join failing at one member fails at all members, including late ones", joined_without_effect, CT_RDM | CT_SOLO },
	{ "members replaced at their address join with the remaining members", restarted, CT_RDM | CT_SOLO },
	{ "members killed and restarted at any time can join again", killed_at_random, CT_RDM | CT_SOLO },
	{ "a member joins though the join request came from a peer then unknown", known_late, CT_RDM | CT_SOLO },
	{ "a group with an ended member fails even if another endpoint has its address", successor, CT_RDM | CT_SOLO },
	{ "a group accepts failure notices only from its members", forged, CT_RDM | CT_SOLO },
	{ "a group ignores messages of an unknown peer and buffers none of them", forged_by_unknown_peer, CT_RDM | CT_SOLO },
	{ "a group ignores messages of a peer outside the group", forged_by_peer, CT_RDM | CT_SOLO },
	{ "endpoints can be closed with collectives in flight", closed_under_way, CT_RDM | CT_SOLO },
	{ "invalid arguments are refused", refused, CT_RDM | CT_SOLO },
};
CT_MAIN("coll", tests)
