/*
 * fi_atomic(3): every operation on every type against C's own, every call,
 * several remote segments and buffers, rights, events, and concurrent operations
 * of two sides and the processor.
 */
#include "ct.h"
#include <complex.h>
#include <rdma/fi_atomic.h>

static const uint64_t CAPS = FI_MSG | FI_RMA | FI_ATOMIC;
#ifndef FI_OPT_MAX_ATOMIC_SIZE
#define FI_OPT_MAX_ATOMIC_SIZE 15	/* new in 2.0 */
#endif
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)
#define SPACE (1 << 16)
enum { BASE, FETCH, COMPARE, KINDS };
enum { DIFF = 19 };	/* FI_DIFF, new in 2.0 */
enum class { INT, REAL, COMPLEX, SMALL };

struct region { uint64_t key, addr; };
static struct fid_mr *mr[2];
static struct region share(struct ct *c, int i, void *b, size_t n, uint64_t access)
{
	struct region mine, theirs;

	OK(fi_mr_reg(c->domain, b, n, access, 0, 100 + i, 0, &mr[i], NULL));
	mine.key = fi_mr_key(mr[i]);
	mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	ct_swap(c, &mine, &theirs, sizeof mine);
	return theirs;
}
static void open_atomic(struct ct *c, uint64_t caps)
{
	struct ct_opt o = { .caps = CAPS | caps };

	mr[0] = mr[1] = NULL;
	ct_open(c, &o);
}
static void done(struct ct *c)
{
	ct_barrier(c);
	for (int i = 0; i < 2; i++)
		if (mr[i])
			OK(fi_close(&mr[i]->fid));
	ct_close(c);
}

/* The result of C for a target, an operand and a value to compare with. */
#define COMMON(T) \
	T t = *(T *)target, s = *(const T *)source, c = *(const T *)compare; \
	switch (op) { \
	case FI_SUM: t = t + s; break; \
	case DIFF: t = t - s; break; \
	case FI_PROD: t = t * s; break; \
	case FI_LOR: t = t || s; break; \
	case FI_LAND: t = t && s; break; \
	case FI_LXOR: t = !t != !s; break; \
	case FI_ATOMIC_WRITE: t = s; break; \
	case FI_CSWAP: if (c == t) t = s; break; \
	case FI_CSWAP_NE: if (c != t) t = s; break;
#define ORDERED \
	case FI_MIN: if (s < t) t = s; break; \
	case FI_MAX: if (s > t) t = s; break; \
	case FI_CSWAP_LE: if (c <= t) t = s; break; \
	case FI_CSWAP_LT: if (c < t) t = s; break; \
	case FI_CSWAP_GE: if (c >= t) t = s; break; \
	case FI_CSWAP_GT: if (c > t) t = s; break;
#define BITS \
	case FI_BOR: t = t | s; break; \
	case FI_BAND: t = t & s; break; \
	case FI_BXOR: t = t ^ s; break; \
	case FI_MSWAP: t = (s & c) | (t & ~c); break;
#define REFERENCE(T, name, ...) \
	static void name(int op, void *target, const void *source, const void *compare) \
	{ COMMON(T) __VA_ARGS__ default: break; } *(T *)target = t; }
REFERENCE(int8_t, do_int8, ORDERED BITS)
REFERENCE(uint8_t, do_uint8, ORDERED BITS)
REFERENCE(int16_t, do_int16, ORDERED BITS)
REFERENCE(uint16_t, do_uint16, ORDERED BITS)
REFERENCE(int32_t, do_int32, ORDERED BITS)
REFERENCE(uint32_t, do_uint32, ORDERED BITS)
REFERENCE(int64_t, do_int64, ORDERED BITS)
REFERENCE(uint64_t, do_uint64, ORDERED BITS)
#ifdef __SIZEOF_INT128__
REFERENCE(__int128, do_int128, ORDERED BITS)
REFERENCE(unsigned __int128, do_uint128, ORDERED BITS)
#else	/* processors with 32 bits */
#define do_int128 NULL
#define do_uint128 NULL
#endif
REFERENCE(float, do_float, ORDERED)
REFERENCE(double, do_double, ORDERED)
REFERENCE(long double, do_long_double, ORDERED)
REFERENCE(float complex, do_float_complex)
REFERENCE(double complex, do_double_complex)
REFERENCE(long double complex, do_long_double_complex)
#if defined __FLT16_MAX__ && (!defined __i386__ || defined __SSE2__)
#define HAS_FLOAT16
REFERENCE(_Float16, do_float16, ORDERED)
#endif

static const struct type {
	size_t size;
	enum class class;
	void (*reference)(int op, void *target, const void *source, const void *compare);
} types[20] = {
	[FI_INT8] = { 1, INT, do_int8 }, [FI_UINT8] = { 1, INT, do_uint8 },
	[FI_INT16] = { 2, INT, do_int16 }, [FI_UINT16] = { 2, INT, do_uint16 },
	[FI_INT32] = { 4, INT, do_int32 }, [FI_UINT32] = { 4, INT, do_uint32 },
	[FI_INT64] = { 8, INT, do_int64 }, [FI_UINT64] = { 8, INT, do_uint64 },
	[FI_INT128] = { 16, INT, do_int128 }, [FI_UINT128] = { 16, INT, do_uint128 },
	[FI_FLOAT] = { 4, REAL, do_float }, [FI_DOUBLE] = { 8, REAL, do_double },
	[FI_FLOAT_COMPLEX] = { 8, COMPLEX, do_float_complex },
	[FI_DOUBLE_COMPLEX] = { 16, COMPLEX, do_double_complex },
#ifdef __x86_64__
	[FI_LONG_DOUBLE] = { 16, REAL, do_long_double },
	[FI_LONG_DOUBLE_COMPLEX] = { 32, COMPLEX, do_long_double_complex },
#endif
	/* not in every C compiler */
#ifdef HAS_FLOAT16
	[16] = { 2, REAL, do_float16 },
#else
	[16] = { 2, SMALL, NULL },
#endif
	[17] = { 2, SMALL, NULL }, [18] = { 1, SMALL, NULL }, [19] = { 1, SMALL, NULL },
};

/* ofi_rxm speaks the protocol of upstream libfabric, and a target there does not survive elements of 16 bytes. */
static int is_valid(int kind, int type, int op)
{
	int bits = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP;
	int order = op == FI_MIN || op == FI_MAX || (op >= FI_CSWAP_LE && op <= FI_CSWAP_GT);
	int swap = op >= FI_CSWAP && op <= FI_MSWAP;

	if (type >= 20 || op >= 20 || !types[type].size || ((ct_is_rxm() || ct_is_rxd()) && types[type].size >= 16))
		return 0;
	if (kind == COMPARE ? !swap : swap || (kind == BASE && op == FI_ATOMIC_READ))
		return 0;
	return !(bits && types[type].class != INT) && !(order && types[type].class == COMPLEX);
}
/* Elements that are often equal, and at their limits now and then. */
static uint32_t state = 1;
static int rnd(int n)
{
	state = state * 1103515245 + 12345;
	return (int)(state >> 16) % n;
}
static void fill(int type, unsigned char *b, size_t n)
{
	const struct type *t = &types[type];

	for (size_t i = 0; i < n; i++, b += t->size) {
		memset(b, 0, t->size);
		if (t->class == INT) {
			int how = rnd(4);

			for (size_t k = 0; k < t->size; k++)
				b[k] = how == 0 ? rnd(256) : how == 1 ? (k + 1 == t->size ? 0x7f : 0xff) : 0;
			if (how > 1)
				b[0] = rnd(4);
			continue;
		}
		for (int part = 0; part < 2; part++) {
			double v = (rnd(9) - 4) * 0.375;
			unsigned char *p = b + part * t->size / 2;

			if (type == FI_FLOAT || type == FI_FLOAT_COMPLEX)
				*(float *)p = (float)v;
			else if (type == FI_DOUBLE || type == FI_DOUBLE_COMPLEX)
				*(double *)p = v;
			else if (type == FI_LONG_DOUBLE || type == FI_LONG_DOUBLE_COMPLEX)
				*(long double *)p = v + 1.0L / (3 + rnd(2));
#ifdef HAS_FLOAT16
			else
				*(_Float16 *)p = (_Float16)(v * 700);
#endif
			if (t->class != COMPLEX)
				break;
		}
	}
}
/* The bytes of a long double that mean nothing are not looked at. */
static int same(int type, const unsigned char *a, const unsigned char *b, size_t n)
{
	size_t part = type == FI_LONG_DOUBLE || type == FI_LONG_DOUBLE_COMPLEX ? 16 : types[type].size;

	for (size_t i = 0; i < n * types[type].size; i += part)
		if (memcmp(a + i, b + i, part == 16 && type < FI_INT128 && type > FI_DOUBLE_COMPLEX ? 10 : part))
			return 0;
	return 1;
}

static void every_operation(int rank)
{
	enum { N = 24, BYTES = N * 32 };
	struct ct c;
	struct region r;
	unsigned char *b, *s;
	int count = 0;

	open_atomic(&c, 0);
	b = ct_alloc(&c, SPACE);
	s = ct_alloc(&c, 8 * BYTES);
	r = share(&c, 0, b, SPACE, REMOTE);
	unsigned char *target = s, *source = s + BYTES, *compare = s + 2 * BYTES, *result = s + 3 * BYTES,
		*now = s + 4 * BYTES, *want = s + 5 * BYTES;
	for (int type = 0; rank == 0 && type < 20; type++)
		for (int op = 0; types[type].reference && op < 20; op++)
			for (int kind = 0; kind < KINDS; kind++) {
				size_t size = types[type].size, n = 1 + rnd(N - 1), len = n * size;
				/* mostly where elements belong */
				uint64_t at = r.addr + 32 * rnd(8) + (rnd(4) ? 0 : rnd(32));

				if (!is_valid(kind, type, op))
					continue;
				fill(type, target, n);
				fill(type, source, n);
				fill(type, compare, n);
				memcpy(want, target, len);
				for (size_t i = 0; i < len; i += size)
					types[type].reference(op, want + i, source + i, compare + i);
				memset(result, 0xee, BYTES);
				POST(&c, fi_write(c.ep, target, len, ct_desc(s), c.peer, at, r.key, CTX(0)));
				ct_sent(&c, CTX(0));
				if (kind == BASE)
					POST(&c, fi_atomic(c.ep, source, n, ct_desc(s), c.peer, at, r.key, type, op, CTX(1)));
				else if (kind == FETCH)
					POST(&c, fi_fetch_atomic(c.ep, op == FI_ATOMIC_READ ? NULL : source, n, ct_desc(s), result,
						ct_desc(s), c.peer, at, r.key, type, op, CTX(1)));
				else
					POST(&c, fi_compare_atomic(c.ep, source, n, ct_desc(s), compare, ct_desc(s), result,
						ct_desc(s), c.peer, at, r.key, type, op, CTX(1)));
				ct_sent(&c, CTX(1));
				POST(&c, fi_read(c.ep, now, len, ct_desc(s), c.peer, at, r.key, CTX(2)));
				ct_sent(&c, CTX(2));
				if (!same(type, now, want, n))
					FAIL("kind %d type %d op %d of %zu elements: wrong result", kind, type, op, n);
				if (kind != BASE && !same(type, result, target, n))
					FAIL("kind %d type %d op %d of %zu elements: wrong former value", kind, type, op, n);
				CHECK(kind == BASE || result[len] == 0xee);
				count++;
			}
	CHECK(rank || count > 300);
	done(&c);
}
/* A number of one or two bytes in the host's byte order. */
static void put_small(unsigned char *at, unsigned number, size_t size)
{
	uint16_t two = (uint16_t)number;
	uint8_t one = (uint8_t)number;

	memcpy(at, size == 2 ? (void *)&two : (void *)&one, size);
}
static unsigned get_small(const unsigned char *at, size_t size)
{
	uint16_t two;

	memcpy(&two, at, sizeof two);
	return size == 2 ? two : *at;
}
/* Types that C has no name for: results that are known. */
static void small_floats(int rank)
{
	static const struct { int type, op; unsigned old, with, now; } known[] = {
		{ 16, FI_SUM, 0x3c00, 0x3c00, 0x4000 },		/* half precision: 1 + 1 */
		{ 16, FI_PROD, 0x7bff, 0x7bff, 0x7c00 },	/* too much */
		{ 16, FI_SUM, 0x6800, 0x3c00, 0x6800 },		/* 2048 + 1, to even */
		{ 17, FI_SUM, 0x3f80, 0x3f80, 0x4000 },		/* brain float: 1 + 1 */
		{ 17, FI_MIN, 0x3f80, 0xbf80, 0xbf80 },
		{ 18, FI_SUM, 0x38, 0x38, 0x40 },		/* 4 and 3 bits: 1 + 1 */
		{ 18, FI_PROD, 0x7e, 0x7e, 0x7f },		/* no infinity: NaN */
		{ 19, FI_SUM, 0x3c, 0x3c, 0x40 },		/* 5 and 2 bits: 1 + 1 */
		{ 19, FI_PROD, 0x7b, 0xfb, 0xfc },		/* minus infinity */
		{ 19, FI_LAND, 0x80, 0x3c, 0x00 },		/* minus zero is no truth */
	};
	struct ct c;
	struct region r;
	unsigned char *b, *s;

	open_atomic(&c, 0);
	b = ct_alloc(&c, SPACE);
	s = ct_alloc(&c, SPACE);
	r = share(&c, 0, b, SPACE, REMOTE);
	for (size_t i = 0; rank == 0 && i < sizeof known / sizeof *known; i++) {
		const size_t size = known[i].type < 18 ? 2 : 1;

		put_small(s, known[i].old, size);
		put_small(s + 2, known[i].with, size);
		put_small(s + 4, 0, size);
		POST(&c, fi_write(c.ep, s, 2, ct_desc(s), c.peer, r.addr, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_fetch_atomic(c.ep, s + 2, 1, ct_desc(s), s + 4, ct_desc(s), c.peer, r.addr, r.key,
			known[i].type, known[i].op, CTX(1)));
		ct_sent(&c, CTX(1));
		EQ(get_small(s + 4, size), known[i].old);
		POST(&c, fi_read(c.ep, s, 2, ct_desc(s), c.peer, r.addr, r.key, CTX(2)));
		ct_sent(&c, CTX(2));
		EQ(get_small(s, size), known[i].now);
	}
	done(&c);
}
static void valid(int rank)
{
	static const uint64_t flags[KINDS] = { 0, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC };
	struct ct c;
	struct fi_atomic_attr a;
	struct fi_info *i;
	struct fid_ep *ep;
	size_t n;

	(void)rank;
	open_atomic(&c, 0);
	for (int kind = 0; kind < KINDS; kind++)
		for (int type = 0; type < 22; type++)
			for (int op = 0; op < 22; op++) {
				int q, v;

				a.count = a.size = n = 0;
				q = fi_query_atomic(c.domain, type, op, &a, flags[kind]);
				v = kind == BASE ? fi_atomicvalid(c.ep, type, op, &n) :
					kind == FETCH ? fi_fetch_atomicvalid(c.ep, type, op, &n) :
					fi_compare_atomicvalid(c.ep, type, op, &n);
				if (q != v || q != (is_valid(kind, type, op) ? 0 : -FI_EOPNOTSUPP))
					FAIL("kind %d type %d op %d: %d and %d", kind, type, op, q, v);
				EQ(a.count, n);
				if (q == 0) {
					EQ(a.size, types[type].size);
					CHECK(n > 0);
				}
			}
	ERR(fi_query_atomic(c.domain, FI_UINT64, FI_SUM, &a, FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC), FI_EBADFLAGS);
	ERR(fi_query_atomic(c.domain, FI_UINT64, FI_SUM, &a, FI_TAGGED), FI_EINVAL);
	/* the query works before anything is bound */
	i = ct_getinfo(&c.o, NULL, NULL, 0);
	OK(fi_endpoint(c.domain, i, &ep, NULL));
	fi_freeinfo(i);
	OK(fi_atomicvalid(ep, FI_UINT64, FI_SUM, &n));
	OK(fi_close(&ep->fid));
	done(&c);
}
static void vectors(int rank)
{
	struct ct c;
	struct region r;
	uint32_t *b, *s;

	open_atomic(&c, 0);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	for (int i = 0; i < 1024; i++)
		b[i] = 1000 + i;
	r = share(&c, 0, b, 4096, REMOTE);
	if (rank == 0) {
		struct fi_ioc v[3] = { { s, 1 }, { s + 10, 4 }, { s + 20, 2 } };
		struct fi_ioc cmp[2] = { { s + 100, 3 }, { s + 110, 4 } };
		struct fi_ioc res[4] = { { s + 200, 2 }, { s + 210, 2 }, { s + 220, 2 }, { s + 230, 1 } };
		void *d[4] = { ct_desc(s), ct_desc(s), ct_desc(s), ct_desc(s) };
		struct fi_rma_ioc p[2] = { { r.addr + 400, 5, r.key }, { r.addr, 2, r.key } };
		struct fi_msg_atomic m = { .msg_iov = v, .desc = d, .iov_count = 3, .addr = c.peer, .rma_iov = p,
			.rma_iov_count = 2, .datatype = FI_UINT32, .op = FI_SUM, .context = CTX(0) };
		static const uint32_t first[7] = { 1100, 1101, 1102, 1103, 1104, 1000, 1001 };

		for (int i = 0; i < 1024; i++)
			s[i] = 1;
		POST(&c, fi_atomicv(c.ep, v, d, 3, c.peer, r.addr + 4 * 500, r.key, FI_UINT32, FI_SUM, CTX(3)));
		ct_sent(&c, CTX(3));
		POST(&c, fi_atomicmsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(0));
		s[0] = s[10] = s[11] = s[12] = s[13] = s[20] = s[21] = 10;
		POST(&c, fi_fetch_atomicmsg(c.ep, &m, res, d, 4, FI_COMPLETION));
		ct_sent(&c, CTX(0));
		for (int i = 0; i < 7; i++)
			EQ(s[200 + 10 * (i / 2) + i % 2], first[i] + 1);
		/* those that are as expected are swapped: all but the second */
		for (int i = 0; i < 7; i++)
			s[(i < 3 ? 100 : 107) + i] = first[i] + 11 + (i == 1);
		m.op = FI_CSWAP;
		POST(&c, fi_compare_atomicmsg(c.ep, &m, cmp, d, 2, res, d, 4, FI_COMPLETION));
		ct_sent(&c, CTX(0));
		for (int i = 0; i < 7; i++)
			EQ(s[200 + 10 * (i / 2) + i % 2], first[i] + 11);
		POST(&c, fi_fetch_atomicv(c.ep, NULL, NULL, 0, res, d, 3, c.peer, r.addr + 400, r.key, FI_UINT32, FI_ATOMIC_READ, CTX(1)));
		ct_sent(&c, CTX(1));
		EQ(s[200], 10);
		EQ(s[201], 1112);
		EQ(s[210], 10);
		EQ(s[221], 1105);	/* behind the first place nothing changed */
		POST(&c, fi_compare_atomicv(c.ep, v, d, 3, cmp, d, 2, res, d, 4, c.peer, r.addr + 4 * 500, r.key, FI_UINT32, FI_CSWAP_NE, CTX(2)));
		ct_sent(&c, CTX(2));
		for (int i = 0; i < 7; i++)
			EQ(s[200 + 10 * (i / 2) + i % 2], 1501 + i);

		/* inconsistent arguments are refused at once */
		m.op = FI_SUM;
		p[1].count = 3;
		ERR(fi_atomicmsg(c.ep, &m, 0), FI_EINVAL);
		p[1].count = 2;
		res[3].count = 2;
		ERR(fi_fetch_atomicmsg(c.ep, &m, res, d, 4, 0), FI_EINVAL);
		ERR(fi_atomicmsg(c.ep, &m, FI_MULTI_RECV), FI_EBADFLAGS);
		m.rma_iov_count = c.info->tx_attr->rma_iov_limit + 1;
		ERR(fi_atomicmsg(c.ep, &m, 0), FI_EINVAL);
		ERR(fi_atomicv(c.ep, v, d, c.info->tx_attr->iov_limit + 1, c.peer, r.addr, r.key, FI_UINT32, FI_SUM, CTX(3)), FI_EINVAL);
		ERR(fi_atomic(c.ep, s, 0, NULL, c.peer, r.addr, r.key, FI_UINT32, FI_SUM, CTX(3)), FI_EINVAL);
		ERR(fi_atomic(c.ep, NULL, 1, NULL, c.peer, r.addr, r.key, FI_UINT32, FI_SUM, CTX(3)), FI_EINVAL);
		ERR(fi_atomic(c.ep, s, SIZE_MAX / 2, NULL, c.peer, r.addr, r.key, FI_UINT32, FI_SUM, CTX(3)), FI_EINVAL);
		ERR(fi_atomic(c.ep, s, 1, NULL, c.peer, r.addr, r.key, FI_FLOAT, FI_BOR, CTX(3)), FI_EOPNOTSUPP);
		ERR(fi_atomic(c.ep, s, 1, NULL, c.peer, r.addr, r.key, FI_UINT32, FI_CSWAP, CTX(3)), FI_EOPNOTSUPP);
		ERR(fi_fetch_atomic(c.ep, s, 1, NULL, s, NULL, c.peer, r.addr, r.key, 77, FI_SUM, CTX(3)), FI_EOPNOTSUPP);
		NOTHING(&c, c.tx, 20);
	}
	done(&c);
}
static void largest(int rank)
{
	struct ct c;
	struct region r;
	unsigned char *b, *s;
	size_t n, most, bytes, len = sizeof bytes;

	open_atomic(&c, 0);
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_ATOMIC_SIZE, &bytes, &len));
	OK(fi_atomicvalid(c.ep, FI_UINT64, FI_SUM, &n));
	OK(fi_compare_atomicvalid(c.ep, FI_UINT64, FI_CSWAP, &most));
	EQ(bytes, 8 * n);
	b = ct_alloc(&c, 8 * (n + 1));
	s = ct_alloc(&c, 32 * (n + 1));
	memset(b, 0, 8 * (n + 1));
	r = share(&c, 0, b, 8 * (n + 1), REMOTE);
	uint64_t *one = (uint64_t *)s, *got = one + n, *cmp = got + n;
	for (size_t i = 0; i < n; i++)
		one[i] = i + 1;
	ERR(fi_atomic(c.ep, s, n + 1, NULL, c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)), FI_EMSGSIZE);
	/* both sides at once, many under way, each as large as can be */
	for (int round = 0; round < 40; round++) {
		POST(&c, fi_atomic(c.ep, one, n, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(round % 4)));
		if (round % 4 == 3)
			for (int i = 0; i < 4; i++)
				ct_sent(&c, CTX(i));
	}
	POST(&c, fi_fetch_atomic(c.ep, one, n, ct_desc(s), got, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)));
	ct_sent(&c, CTX(0));
	for (size_t i = 0; i < n; i++)
		EQ(got[i], 40 * (i + 1));
	for (size_t i = 0; i < most; i++)
		cmp[i] = 41 * (i + 1);
	POST(&c, fi_compare_atomic(c.ep, one, most, ct_desc(s), cmp, ct_desc(s), got, ct_desc(s), c.peer, r.addr, r.key,
		FI_UINT64, FI_CSWAP, CTX(0)));
	ct_sent(&c, CTX(0));
	ct_barrier(&c);
	for (size_t i = 0; i < most; i++)
		EQ(((uint64_t *)b)[i], i + 1);
	(void)rank;
	done(&c);
}
static void reported(int rank)
{
	struct ct c;
	struct region r;
	uint64_t *b, *s;
	struct fi_cq_tagged_entry e;
	size_t inject;

	open_atomic(&c, 0);
	b = ct_alloc(&c, SPACE);
	s = ct_alloc(&c, SPACE);
	r = share(&c, 0, b, SPACE, REMOTE);
	inject = c.info->tx_attr->inject_size / 8;
	if (rank == 0) {
		struct fi_ioc v = { s, 1 };
		void *d = ct_desc(s);
		struct fi_rma_ioc p = { r.addr, 1, r.key };
		struct fi_msg_atomic m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = &p,
			.rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM, .context = CTX(2) };

		s[0] = 1;
		POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)));
		EQ(ct_next(&c, c.tx, &e, NULL, NULL), 1);
		CHECK(e.op_context == CTX(0));
		EQ(e.flags & (FI_ATOMIC | FI_READ | FI_WRITE | FI_RMA | FI_MSG), FI_ATOMIC | FI_WRITE);
		POST(&c, fi_fetch_atomic(c.ep, s, 1, ct_desc(s), s + 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, NULL), 1);
		EQ(e.flags & (FI_ATOMIC | FI_READ | FI_WRITE | FI_RMA | FI_MSG), FI_ATOMIC | FI_READ);
		EQ(s[1], 1);
		POST(&c, fi_inject_atomic(c.ep, s, 1, c.peer, r.addr, r.key, FI_UINT64, FI_SUM));
		s[0] = 0;	/* ours again */
		NOTHING(&c, c.tx, 20);
		s[0] = 1;
		POST(&c, fi_atomicmsg(c.ep, &m, FI_INJECT | FI_COMPLETION));
		s[0] = 0;
		ct_sent(&c, CTX(2));
		s[0] = 5;
		POST(&c, fi_atomicmsg(c.ep, &m, FI_MORE | FI_COMPLETION));
		POST(&c, fi_fetch_atomic(c.ep, s, 1, ct_desc(s), s + 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_ATOMIC_READ, CTX(3)));
		ct_sent(&c, CTX(2));
		ct_sent(&c, CTX(3));
		EQ(s[1], 9);
		ERR(fi_inject_atomic(c.ep, s, inject + 1, c.peer, r.addr, r.key, FI_UINT64, FI_SUM), FI_EINVAL);
		POST(&c, fi_inject_atomic(c.ep, s + 8, inject, c.peer, r.addr, r.key, FI_UINT64, FI_SUM));
	}
	NOTHING(&c, c.rx, 20);		/* the target is not notified */
	done(&c);
}
static void with_data(int rank)
{
	struct ct c;
	struct region r;
	uint64_t *b, *s;

	if (ct_is_rxm())
		SKIP("the protocol has no place for remote CQ data");
	open_atomic(&c, 0);
	b = ct_alloc(&c, 64);
	s = ct_alloc(&c, 64);
	r = share(&c, 0, b, 64, REMOTE);
	if (rank == 0) {
		struct fi_ioc v = { s, 3 }, res = { s + 3, 3 };
		void *d = ct_desc(s);
		struct fi_rma_ioc p = { r.addr, 3, r.key };
		struct fi_msg_atomic m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = &p,
			.rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_BOR, .context = CTX(0), .data = 0x1122334455667788 };

		s[0] = s[1] = s[2] = 7;
		POST(&c, fi_atomicmsg(c.ep, &m, FI_REMOTE_CQ_DATA | FI_COMPLETION));
		ct_sent(&c, CTX(0));
		m.data = 42;
		POST(&c, fi_fetch_atomicmsg(c.ep, &m, &res, &d, 1, FI_REMOTE_CQ_DATA | FI_COMPLETION));
		ct_sent(&c, CTX(0));
		EQ(s[5], 7);
	} else {
		struct fi_cq_tagged_entry e;

		EQ(ct_next(&c, c.rx, &e, NULL, NULL), 1);
		EQ(e.flags, FI_ATOMIC | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
		EQ(e.data, 0x1122334455667788);
		EQ(e.len, 24);
		EQ(b[2], 7);
		EQ(ct_next(&c, c.rx, &e, NULL, NULL), 1);
		EQ(e.flags, FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_CQ_DATA);
		EQ(e.data, 42);
	}
	done(&c);
}
static void forbidden(int rank)
{
	struct ct c;
	struct region rw, ro;
	uint64_t *b, *s;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	open_atomic(&c, 0);
	b = ct_alloc(&c, 8192);
	s = ct_alloc(&c, 4096);
	memset(b, 0x11, 8192);
	s[0] = 1;
	rw = share(&c, 0, b, 4096, FI_REMOTE_WRITE);
	ro = share(&c, 1, b + 512, 4096, FI_REMOTE_READ);
	if (rank == 0) {
		const struct { uint64_t addr, key; int op, fetch; } bad[] = {
			{ ro.addr, ro.key, FI_SUM, 0 },			/* changed although read-only */
			{ ro.addr, ro.key, FI_SUM, 1 },
			{ rw.addr, rw.key, FI_SUM, 1 },			/* fetched although write-only */
			{ rw.addr, rw.key, FI_ATOMIC_READ, 1 },
			{ rw.addr + 4096 - 4, rw.key, FI_SUM, 0 },	/* half of it outside */
			{ rw.addr - 8, rw.key, FI_SUM, 0 },
			{ rw.addr, 0xdeadbeef, FI_SUM, 0 },		/* no such key */
			{ rw.addr + (1ULL << 63), rw.key, FI_SUM, 0 },	/* far away */
		};

		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
			if (bad[i].fetch)
				POST(&c, fi_fetch_atomic(c.ep, s, 1, ct_desc(s), s + 1, ct_desc(s), c.peer, bad[i].addr, bad[i].key,
					FI_UINT64, bad[i].op, CTX(i)));
			else
				POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, bad[i].addr, bad[i].key, FI_UINT64, bad[i].op, CTX(i)));
			EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context == CTX(i) && (err.err == FI_EACCES || err.err == FI_EINVAL));
			CHECK(err.flags & FI_ATOMIC);
			EQ(s[1], 0);
		}
		/* none of all elements is changed when the last place is forbidden */
		struct fi_ioc v = { s, 2 };
		void *d = ct_desc(s);
		struct fi_rma_ioc p[2] = { { rw.addr, 1, rw.key }, { ro.addr, 1, ro.key } };
		struct fi_msg_atomic m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = p,
			.rma_iov_count = 2, .datatype = FI_UINT64, .op = FI_SUM, .context = CTX(20) };
		POST(&c, fi_atomicmsg(c.ep, &m, FI_COMPLETION));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		/* fi_cq(3): "error completions are generated for all operations, including those for which a completion
		   was not requested" */
		POST(&c, fi_inject_atomic(c.ep, s, 1, c.peer, ro.addr, ro.key, FI_UINT64, FI_SUM));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(!err.op_context && err.err == FI_EACCES);
		/* the connection is still there, and permitted operations work */
		POST(&c, fi_fetch_atomic(c.ep, NULL, 1, NULL, s + 1, ct_desc(s), c.peer, ro.addr, ro.key, FI_UINT64, FI_ATOMIC_READ, CTX(9)));
		ct_sent(&c, CTX(9));
		EQ(s[1], 0x1111111111111111);
		POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, rw.addr + 4088, rw.key, FI_UINT64, FI_SUM, CTX(10)));
		ct_sent(&c, CTX(10));
	}
	ct_barrier(&c);
	for (int i = 0; i < 1024; i++)
		EQ(b[i], 0x1111111111111111 + (rank == 1 && i == 511));
	done(&c);
}
static uint64_t reached(struct ct *c, struct fid_cntr *k, uint64_t n)
{
	uint64_t v;

	while ((v = fi_cntr_read(k)) < n)
		ct_progress(c);
	return v;
}
static void counted(int rank)
{
	static const uint64_t kinds[4] = { FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE };
	struct ct c, d;
	struct fid_cntr *k[4], *of_region;
	struct region r;
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct ct_name n, them;
	uint64_t *b, *s;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	if (ct_type != FI_EP_RDM)
		SKIP("needs an endpoint that is opened by hand");
	(void)rank;
	open_atomic(&c, 0);
	d = c;
	d.tx = d.rx = NULL;
	d.ep = NULL;
	d.borrowed = 1;
	OK(fi_endpoint(c.domain, c.info, &d.ep, NULL));
	OK(fi_ep_bind(d.ep, &c.av->fid, 0));
	OK(fi_ep_bind(d.ep, &c.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(d.ep, &c.rx->fid, FI_RECV));
	for (int i = 0; i < 4; i++) {
		OK(fi_cntr_open(c.domain, &a, &k[i], NULL));
		OK(fi_ep_bind(d.ep, &k[i]->fid, kinds[i]));
	}
	OK(fi_enable(d.ep));
	n = ct_getname(&d.ep->fid);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	OK(fi_cntr_open(c.domain, &a, &of_region, NULL));
	OK(fi_mr_bind(mr[0], &of_region->fid, FI_REMOTE_WRITE));
	ct_barrier(&c);
	ct_swap(&c, &n, &them, sizeof n);
	d.peer = ct_insert(&c, &them);
	/* the first waits for the connection, as any transfer */
	POST(&c, fi_atomic(d.ep, s, 8, ct_desc(s), d.peer, r.addr, r.key, FI_INT64, FI_MAX, CTX(0)));
	ct_sent(&c, CTX(0));
	POST(&c, fi_inject_atomic(d.ep, s, 1, d.peer, r.addr, r.key, FI_INT64, FI_MAX));
	POST(&c, fi_fetch_atomic(d.ep, s, 8, ct_desc(s), s + 8, ct_desc(s), d.peer, r.addr, r.key, FI_INT64, FI_MIN, CTX(1)));
	ct_sent(&c, CTX(1));
	for (int i = 0; i < 2; i++) {
		POST(&c, fi_compare_atomic(d.ep, s, 8, ct_desc(s), s + 8, ct_desc(s), s + 16, ct_desc(s), d.peer, r.addr, r.key,
			FI_INT64, FI_CSWAP, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	EQ(reached(&c, k[0], 3), 3);
	EQ(reached(&c, k[1], 2), 2);
	EQ(reached(&c, k[2], 3), 3);
	EQ(reached(&c, k[3], 2), 2);
	EQ(reached(&c, of_region, 5), 5);	/* all of them may have changed it */
	POST(&c, fi_fetch_atomic(d.ep, s, 1, ct_desc(s), s + 8, ct_desc(s), d.peer, r.addr, 0xdead, FI_INT64, FI_MIN, CTX(1)));
	EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
	EQ(fi_cntr_readerr(k[0]), 1);
	ct_barrier(&c);
	EQ(fi_cntr_read(k[2]), 3);
	EQ(fi_cntr_read(of_region), 5);
	OK(fi_close(&d.ep->fid));
	OK(fi_close(&mr[0]->fid));
	mr[0] = NULL;
	OK(fi_close(&of_region->fid));
	for (int i = 0; i < 4; i++)
		OK(fi_close(&k[i]->fid));
	done(&c);
}
/* Injected operations without a report may be acknowledged all the same; a counting endpoint waits for that. */
static void acknowledged(int rank)
{
	struct ct_opt o = { .caps = CAPS, .cq_flags = FI_SELECTIVE_COMPLETION };
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *k;
	struct ct c;
	struct region r;
	uint64_t *b, *s;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, SPACE);
	s = ct_alloc(&c, SPACE);
	r = share(&c, 0, b, SPACE, REMOTE);
	OK(fi_cntr_open(c.domain, &a, &k, NULL));
	if (rank == 0) {
		struct fi_ioc v = { s, 1 };
		void *d = ct_desc(s);
		struct fi_rma_ioc p = { r.addr, 1, r.key };
		struct fi_msg_atomic m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = &p,
			.rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM, .context = CTX(0) };
		struct fi_ioc none = { NULL, 1 };
		struct fi_msg_atomic read = m;

		read.msg_iov = &none;
		read.op = FI_ATOMIC_READ;
		for (int i = 0; i < 8; i++) {
			if (i == 4) {
				POST(&c, fi_fetch_atomicmsg(c.ep, &read, &(struct fi_ioc){ s, 1 }, &d, 1, FI_COMPLETION));
				ct_sent(&c, CTX(0));
				EQ(s[0], 4);
				OK(fi_ep_bind(c.ep, &k->fid, FI_WRITE));
			}
			s[0] = 1;
			POST(&c, fi_atomicmsg(c.ep, &m, FI_INJECT | (i % 2 ? FI_DELIVERY_COMPLETE : 0)));
			s[0] = 0;
		}
		EQ(reached(&c, k, 4), 4);
		POST(&c, fi_inject_atomic(c.ep, s, 1, c.peer, r.addr, r.key, FI_UINT64, FI_SUM));
		EQ(reached(&c, k, 5), 5);
		POST(&c, fi_fetch_atomicmsg(c.ep, &read, &(struct fi_ioc){ s, 1 }, &d, 1, FI_COMPLETION));
		ct_sent(&c, CTX(0));
		EQ(s[0], 8);
	}
	ct_barrier(&c);
	EQ(b[0], rank == 1 ? 8 : 0);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&k->fid));
	done(&c);
}
/* Both ranks and both processors count up the same numbers. */
static void combined(int rank)
{
	const int N = ct_fewer(2000);
	struct ct c;
	struct region r;
	struct { uint64_t a; uint32_t b; uint16_t c; uint8_t d; float f; uint64_t wide[2] __attribute__((aligned(16))); } *b, *s;
	const int low = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
	uint64_t before = 0;

	(void)rank;
	open_atomic(&c, 0);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	s->a = s->b = s->c = s->d = 1;
	s->f = 1;
	s->wide[low] = ~0ull;
	s->wide[!low] = 0;
	for (int i = 0; i < N; i++) {
		uint64_t *old = (uint64_t *)(s + 1);

		POST(&c, fi_fetch_atomic(c.ep, &s->a, 1, ct_desc(s), old, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)));
		POST(&c, fi_inject_atomic(c.ep, &s->b, 1, c.peer, r.addr + 8, r.key, FI_UINT32, FI_SUM));
		POST(&c, fi_inject_atomic(c.ep, &s->c, 1, c.peer, r.addr + 12, r.key, FI_UINT16, FI_SUM));
		POST(&c, fi_inject_atomic(c.ep, &s->d, 1, c.peer, r.addr + 14, r.key, FI_UINT8, FI_SUM));
		POST(&c, fi_inject_atomic(c.ep, &s->f, 1, c.peer, r.addr + 16, r.key, FI_FLOAT, FI_SUM));
		if (!ct_is_rxm() && !ct_is_rxd())
			POST(&c, fi_inject_atomic(c.ep, s->wide, 1, c.peer, r.addr + 32, r.key, FI_UINT128, FI_SUM));
		for (int k = 0; k < 20; k++) {
			__atomic_fetch_add(&b->a, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&b->b, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&b->c, 1, __ATOMIC_RELAXED);
			__atomic_fetch_add(&b->d, 1, __ATOMIC_RELAXED);
		}
		ct_sent(&c, CTX(0));
		CHECK(i == 0 || *old > before);
		before = *old;
	}
	/* the injected operation is done before the answer to the next one */
	POST(&c, fi_fetch_atomic(c.ep, NULL, 1, NULL, s + 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_ATOMIC_READ, CTX(0)));
	ct_sent(&c, CTX(0));
	ct_barrier(&c);
	EQ(b->a, 21 * N);
	EQ(b->b, 21 * N);
	EQ(b->c, (uint16_t)(21 * N));
	EQ(b->d, (uint8_t)(21 * N));
	EQ((int)b->f, N);
	CHECK(ct_is_rxm() || ct_is_rxd() || (b->wide[low] == -(uint64_t)N && b->wide[!low] == (uint64_t)N - 1));
	done(&c);
}
static void ordered(int rank)
{
	struct ct c;
	struct region r;
	uint64_t *b, *s;
	enum { N = 300 };

	ct_needs_order();
	/* a message behind an atomic arrives behind it, a read sees its result, a fence waits for it */
	open_atomic(&c, FI_FENCE);
	b = ct_alloc(&c, 64);
	s = ct_alloc(&c, 64);
	r = share(&c, 0, b, 64, REMOTE);
	for (int i = 1; i <= N; i++) {
		char x;
		struct fi_ioc v = { s, 1 };
		void *d = ct_desc(s);
		struct fi_rma_ioc p = { r.addr, 1, r.key };
		struct fi_msg_atomic m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = &p,
			.rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_ATOMIC_WRITE, .context = CTX(1) };

		s[0] = i;
		POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(0)));
		POST(&c, fi_read(c.ep, s + 1, 8, d, c.peer, r.addr, r.key, CTX(2)));
		POST(&c, fi_atomicmsg(c.ep, &m, FI_COMPLETION | FI_FENCE));
		POST(&c, fi_inject(c.ep, s, 1, c.peer));
		POST(&c, fi_read(c.ep, s + 2, 8, d, c.peer, r.addr, r.key, CTX(3)));
		ct_sent(&c, CTX(2));
		EQ(s[1], i - 1);
		ct_sent(&c, CTX(1));
		ct_sent(&c, CTX(3));
		EQ(s[2], i);
		ct_recvd(&c, CTX(0), 1);
		EQ(b[0], i);
		ct_barrier(&c);
	}
	(void)rank;
	done(&c);
}
/* fi_endpoint(3): "FI_ORDER_ATOMIC_WAR: atomic write after atomic read"; no write changes the data of earlier reads. */
static void writes_after_reads(int rank)
{
	struct ct_opt o = { .caps = CAPS, .msg_order = FI_ORDER_ATOMIC_WAR };
	struct ct c;
	struct region r;
	uint64_t *b, *s;
	enum { N = 200 };

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	CHECK(c.info->tx_attr->msg_order & FI_ORDER_ATOMIC_WAR);
	b = ct_alloc(&c, 64);
	s = ct_alloc(&c, 64);
	r = share(&c, 0, b, 64, REMOTE);
	for (int i = 1; i <= N; i++) {
		s[0] = i;
		POST(&c, fi_fetch_atomic(c.ep, NULL, 1, NULL, s + 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_ATOMIC_READ, CTX(0)));
		POST(&c, fi_atomic(c.ep, s, 1, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_ATOMIC_WRITE, CTX(1)));
		POST(&c, fi_fetch_atomic(c.ep, NULL, 1, NULL, s + 2, ct_desc(s), c.peer, r.addr, r.key, FI_UINT64, FI_ATOMIC_READ, CTX(2)));
		for (int left = 3; left; left--) {
			struct fi_cq_tagged_entry e;

			ct_next(&c, c.tx, &e, NULL, NULL);	/* in any order: comp_order is FI_ORDER_NONE */
		}
		EQ(s[1], i - 1);
		EQ(s[2], i);
	}
	(void)rank;
	done(&c);
}
/* All n bytes, or no test. */
static void take(int fd, void *b, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t r = recv(fd, (char *)b + at, n - at, 0);

		CHECK(r > 0);
		at += r;
	}
}
/* Rank 1 speaks tcp's protocol as far as others have it, which is without atomics. */
static void unknown(int rank, int echo)
{
	struct ct_opt o = { .caps = CAPS };
	struct ct c = { .o = o };
	struct ct_name name = { .n = sizeof(struct sockaddr_in) };
	struct sockaddr_in *at = (void *)name.b;
	socklen_t n = sizeof *at;
	unsigned char b[64];
	uint64_t v[2] = { 1, 2 };

	if (strcmp(ct_prov, "tcp"))
		SKIP("a peer of tcp's");
	fi_freeinfo(ct_getinfo(&o, NULL, NULL, 0));	/* or it is not offered */
	if (rank == 1) {
		int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), s;
		size_t data = ct_type == FI_EP_RDM ? 8 : 0;

		at->sin_family = AF_INET;
		at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		CHECK(!bind(l, (void *)at, n) && !listen(l, 1) && !getsockname(l, (void *)at, &n));
		ct_send_oob(&name, sizeof name);
		s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		take(s, b, 32 + data);
		CHECK(b[0] == 3 && b[1] == 0);
		b[1] = 1;
		if (!echo)
			memset(b + 4, 0, 20);
		if (data)
			b[32] |= 0x80;
		EQ(send(s, b, 32 + data, 0), 32 + data);
		/* of all that was posted only this arrives */
		take(s, b, 16 + sizeof v);
		CHECK(b[0] == 3 && b[1] == 0);
		CHECK(!memcmp(b + 16, v, sizeof v));
		EQ(recv(s, b, sizeof b, 0), 0);
		close(s);
		close(l);
		return;
	}
	ct_recv_oob(NULL, &name, sizeof name);
	if (ct_type == FI_EP_RDM) {
		ct_open_rdm(&c, NULL);
		c.peer = ct_insert(&c, &name);
	} else {
		ct_prepare(&c, &name);
		OK(fi_connect(c.ep, c.info->dest_addr, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
	}
	for (int i = 0; i < 2; i++) {
		/* one that waits for the connection, and one that is posted on it */
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		POST(&c, fi_fetch_atomic(c.ep, v, 1, NULL, v + 1, NULL, c.peer, 0, 1, FI_UINT64, FI_SUM, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(1) && err.err == FI_EOPNOTSUPP && err.flags == (FI_ATOMIC | FI_READ));
		POST(&c, fi_inject_atomic(c.ep, v, 1, c.peer, 0, 1, FI_UINT64, FI_SUM));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(!err.op_context && err.err == FI_EOPNOTSUPP);
	}
	EQ(v[1], 2);
	POST(&c, fi_send(c.ep, v, sizeof v, NULL, c.peer, CTX(2)));
	ct_sent(&c, CTX(2));
	ct_close(&c);
}
static void unknown_there(int rank) { unknown(rank, 0); }
static void echoed(int rank) { unknown(rank, 1); }
static void not_asked_for(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c;
	uint64_t v = 0;
	size_t n;

	(void)rank;
	ct_open(&c, &o);
	if (c.info->caps & FI_ATOMIC)
		SKIP("comes with every endpoint");
	ERR(fi_atomic(c.ep, &v, 1, NULL, c.peer, 0, 0, FI_UINT64, FI_SUM, CTX(0)), FI_ENOSYS);
	ERR(fi_atomicvalid(c.ep, FI_UINT64, FI_SUM, &n), FI_ENOSYS);
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "every operation on every type does what C does", every_operation, CT_REL },
	{ "floating point types missing in C are rounded to even", small_floats, CT_REL },
	{ "fi_query_atomic and the fi_*valid calls report the supported operations", valid, CT_REL },
	{ "operations take several buffers, results and segments, and mismatched ones are refused", vectors, CT_REL },
	{ "the largest operations run from both sides concurrently", largest, CT_REL },
	{ "completions identify the operation, and injected operations generate none", reported, CT_REL },
	{ "injected atomics are acknowledged if requested or if the endpoint counts", acknowledged, CT_REL },
	{ "remote CQ data makes an entry at the target", with_data, CT_REL },
	{ "an operation without access rights fails alone and changes nothing", forbidden, CT_REL },
	{ "counters count atomics at both ends", counted, CT_REL },
	{ "concurrent additions of peers and processors lose no update", combined, CT_REL },
	{ "atomics keep their order with messages, reads and fences", ordered, CT_REL },
	{ "with FI_ORDER_ATOMIC_WAR atomic writes do not overtake atomic reads", writes_after_reads, CT_REL },
	{ "atomics fail at a peer without support for them, and other operations succeed", unknown_there, CT_REL | CT_BARE },
	{ "an echoed advertisement does not count as support of atomics", echoed, CT_REL | CT_BARE },
	{ "an endpoint without FI_ATOMIC refuses atomic operations", not_asked_for, CT_REL },
};
CT_MAIN("atomic", tests)
