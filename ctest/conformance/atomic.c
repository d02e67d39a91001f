/* fi_atomic(3): every group of calls, several places, rights, what is not there. */
#include "ct.h"
#include <rdma/fi_atomic.h>

static const uint64_t CAPS = FI_MSG | FI_RMA | FI_ATOMIC;
static struct fid_mr *mr;
static uint64_t key, addr;

#define N 8
/* N numbers of rank 1 that rank 0 changes: 10, 20, 30 ...; c.peer's key and addr */
static int64_t *share(struct ct *c, int rank, uint64_t access)
{
	struct { uint64_t key, addr; } mine = { 0 }, theirs;
	int64_t *b;
	struct ct_opt o = { .caps = CAPS };

	mr = NULL;
	ct_open(c, &o);
	b = ct_alloc(c, 4096);
	for (int i = 0; i < N; i++)
		b[i] = 10 * (i + 1);
	if (rank == 1) {
		OK(fi_mr_reg(c->domain, b, N * sizeof *b, access, 0, 7, 0, &mr, NULL));
		mine.key = fi_mr_key(mr);
		mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	}
	ct_swap(c, &mine, &theirs, sizeof mine);
	key = theirs.key;
	addr = theirs.addr;
	return b;
}
/* rank 1 makes progress until rank 0 is through */
static void through(struct ct *c)
{
	ct_barrier(c);
	if (mr)
		OK(fi_close(&mr->fid));
	ct_close(c);
}
#define BOTH (FI_REMOTE_READ | FI_REMOTE_WRITE)

static void sums(int rank)
{
	struct ct c;
	int64_t *b = share(&c, rank, BOTH);

	if (rank == 0) {
		int64_t *s = (int64_t *)ct_alloc(&c, 64);

		for (int i = 0; i < 4; i++)
			s[i] = i + 1;
		POST(&c, fi_atomic(c.ep, s, 4, ct_desc(s), c.peer, addr, key, FI_INT64, FI_SUM, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_inject_atomic(c.ep, s, 1, c.peer, addr + 4 * sizeof *s, key, FI_INT64, FI_SUM));
		/* of two arrays, to two places */
		struct fi_ioc v[2] = { { s, 1 }, { s + 2, 1 } };
		struct fi_rma_ioc p[2] = { { addr + 5 * sizeof *s, 1, key }, { addr + 7 * sizeof *s, 1, key } };
		void *desc[2] = { ct_desc(s), ct_desc(s) };
		struct fi_msg_atomic m = { .msg_iov = v, .desc = desc, .iov_count = 2, .addr = c.peer, .rma_iov = p,
			.rma_iov_count = 2, .datatype = FI_INT64, .op = FI_SUM, .context = CTX(1) };

		POST(&c, fi_atomicmsg(c.ep, &m, FI_COMPLETION));
		ct_sent(&c, CTX(1));
	}
	ct_barrier(&c);
	if (rank == 1) {
		static const int64_t expected[N] = { 11, 22, 33, 44, 51, 61, 70, 83 };

		for (int i = 0; i < N; i++)
			EQ(b[i], expected[i]);
	}
	through(&c);
}
static void fetches(int rank)
{
	struct ct c;
	int64_t *b = share(&c, rank, BOTH);

	if (rank == 0) {
		int64_t *s = (int64_t *)ct_alloc(&c, 64), *r = (int64_t *)ct_alloc(&c, 64);

		s[0] = 5, s[1] = 500;
		POST(&c, fi_fetch_atomic(c.ep, s, 2, ct_desc(s), r, ct_desc(r), c.peer, addr, key, FI_INT64, FI_MAX, CTX(0)));
		ct_sent(&c, CTX(0));
		EQ(r[0], 10);
		EQ(r[1], 20);
		POST(&c, fi_fetch_atomic(c.ep, NULL, 2, NULL, r, ct_desc(r), c.peer, addr, key, FI_INT64, FI_ATOMIC_READ, CTX(1)));
		ct_sent(&c, CTX(1));
		EQ(r[0], 10);
		EQ(r[1], 500);
	}
	ct_barrier(&c);
	if (rank == 1) {
		EQ(b[0], 10);
		EQ(b[1], 500);
		EQ(b[2], 30);
	}
	through(&c);
}
static void compares(int rank)
{
	struct ct c;
	int64_t *b = share(&c, rank, BOTH);

	if (rank == 0) {
		int64_t *s = (int64_t *)ct_alloc(&c, 64), *k = (int64_t *)ct_alloc(&c, 64), *r = (int64_t *)ct_alloc(&c, 64);

		s[0] = 1, s[1] = 2;
		k[0] = 10, k[1] = 21;
		POST(&c, fi_compare_atomic(c.ep, s, 2, ct_desc(s), k, ct_desc(k), r, ct_desc(r), c.peer, addr, key, FI_INT64, FI_CSWAP, CTX(0)));
		ct_sent(&c, CTX(0));
		EQ(r[0], 10);
		EQ(r[1], 20);
	}
	ct_barrier(&c);
	if (rank == 1) {
		EQ(b[0], 1);
		EQ(b[1], 20);
	}
	through(&c);
}
static void ordered(int rank)
{
	struct ct c;
	int64_t *b = share(&c, rank, BOTH);
	char x;

	/* a message behind an atomic operation comes behind it */
	for (int i = 0; i < 50; i++) {
		if (rank == 0) {
			int64_t *s = (int64_t *)ct_alloc(&c, 64);

			s[0] = 1;
			POST(&c, fi_inject_atomic(c.ep, s, 1, c.peer, addr, key, FI_INT64, FI_SUM));
			POST(&c, fi_inject(c.ep, s, 1, c.peer));
		} else {
			POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(0)));
			ct_recvd(&c, CTX(0), 1);
			CHECK(b[0] >= 10 + i + 1);
		}
	}
	through(&c);
}
static void refused(int rank)
{
	struct ct c;
	int64_t *b = share(&c, rank, FI_REMOTE_READ);

	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry x = { 0 };
		int64_t *s = (int64_t *)ct_alloc(&c, 64), *r = (int64_t *)ct_alloc(&c, 64);

		/* no right to write, no such region, past its end */
		POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, addr, key, FI_INT64, FI_SUM, CTX(0)));
		EQ(ct_next(&c, c.tx, &e, NULL, &x), -FI_EAVAIL);
		EQ(x.err, FI_EACCES);
		CHECK(x.op_context == CTX(0));
		POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, addr, key + 1, FI_INT64, FI_SUM, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, &x), -FI_EAVAIL);
		CHECK(x.op_context == CTX(1));
		POST(&c, fi_fetch_atomic(c.ep, NULL, 2, NULL, r, ct_desc(r), c.peer, addr + 7 * sizeof *s, key, FI_INT64, FI_ATOMIC_READ, CTX(2)));
		EQ(ct_next(&c, c.tx, &e, NULL, &x), -FI_EAVAIL);
		EQ(x.err, FI_EACCES);
		/* what may be done still works on the same connection */
		POST(&c, fi_fetch_atomic(c.ep, NULL, 1, NULL, r, ct_desc(r), c.peer, addr, key, FI_INT64, FI_ATOMIC_READ, CTX(3)));
		ct_sent(&c, CTX(3));
		EQ(r[0], 10);
	}
	ct_barrier(&c);
	if (rank == 1)
		EQ(b[0], 10);
	through(&c);
}
static void valid(int rank)
{
	struct ct c;
	struct fi_atomic_attr a;
	size_t n = 0;
	int64_t *b = share(&c, rank, BOTH);

	OK(fi_atomicvalid(c.ep, FI_INT64, FI_SUM, &n));
	CHECK(n >= 1);
	OK(fi_query_atomic(c.domain, FI_INT64, FI_SUM, &a, 0));
	EQ(a.count, n);
	EQ(a.size, 8);
	OK(fi_query_atomic(c.domain, FI_UINT32, FI_CSWAP, &a, FI_COMPARE_ATOMIC));
	CHECK(a.count >= 1 && a.size == 4);
	/* bits of a fraction, an order of nothing, a comparison that is none */
	EQ(fi_atomicvalid(c.ep, FI_DOUBLE, FI_BOR, &n), -FI_EOPNOTSUPP);
	EQ(fi_compare_atomicvalid(c.ep, FI_INT64, FI_SUM, &n), -FI_EOPNOTSUPP);
	EQ(fi_atomic(c.ep, b, 1, NULL, c.peer, addr, key, FI_FLOAT, FI_BXOR, CTX(0)), -FI_EOPNOTSUPP);
	through(&c);
}

static const struct ct_test tests[] = {
	{ "fi_atomic, fi_inject_atomic and fi_atomicmsg change the target and nothing beside it", sums, CT_REL },
	{ "fi_fetch_atomic brings what was there", fetches, CT_REL },
	{ "fi_compare_atomic changes only what compares", compares, CT_REL },
	{ "a message behind an atomic operation comes behind it", ordered, CT_REL },
	{ "an atomic operation without a right fails and changes nothing", refused, CT_REL },
	{ "what operations there are can be asked for", valid, CT_REL },
};
CT_MAIN("atomic", tests)
