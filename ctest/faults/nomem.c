/*
 * Memory runs out: the n-th allocation of the process fails, alone or because there is no more memory from then on, while endpoints are opened, exchange
 * messages and close, and in the first call of the library. No failure ends the process; a call either succeeds
 * or returns -FI_ENOMEM (-FI_EAGAIN, of transfers); every operation completes; and all works when there is memory again.
 *
 *   FAULT_LONG=1  each n, and not one in some
 *   FAULT_AT=52   from this n on
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <dlfcn.h>

#ifdef __SANITIZE_ADDRESS__
#define NO_MALLOC 1	/* its allocator takes this place */
#else
#define NO_MALLOC 0
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
#endif

/*
 * Allocations are counted while `counts`; the one with the number `first` fails. With `all` the process has no more memory from then on
 * than it had then: freed memory can be used again.
 */
static int counts, all;
static long allocations, first, live, bytes, most;
/* Allocations of the C library that end the process on failure: variables of a thread. Of the
   loader's allocations those of dlopen fail. */
static __thread int in_dlopen;
static int is_the_systems(void *caller)
{
	static __thread int looks;
	Dl_info envelope;
	int is = 0;

	if (looks)
		return 1;
	looks = 1;
	if (dladdr(caller, &envelope) && envelope.dli_fname)
		is = (!in_dlopen && strstr(envelope.dli_fname, "/ld-linux")) ||
			(envelope.dli_sname && !strcmp(envelope.dli_sname, "__cxa_thread_atexit_impl"));
	looks = 0;
	return is;
}
static int fails(size_t size, void *caller)
{
	long n;

	if (!__atomic_load_n(&counts, __ATOMIC_RELAXED) || is_the_systems(caller))
		return 0;
	n = __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	if (n == first)
		__atomic_store_n(&most, __atomic_load_n(&bytes, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
	if (n < first || (n > first && (!all || __atomic_load_n(&bytes, __ATOMIC_RELAXED) + (long)size <= most)))
		return 0;
	errno = ENOMEM;
	return 1;
}
static void *noted(void *p)
{
	if (p) {
		__atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&bytes, (long)malloc_usable_size(p), __ATOMIC_RELAXED);
	}
	return p;
}
static void forgotten(void *p)
{
	if (p) {
		__atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
		__atomic_fetch_sub(&bytes, (long)malloc_usable_size(p), __ATOMIC_RELAXED);
	}
}
#if !NO_MALLOC
#define FAILS(n) fails(n, __builtin_return_address(0))
void *malloc(size_t n) { return FAILS(n) ? NULL : noted(__libc_malloc(n)); }
void *calloc(size_t a, size_t n) { return FAILS(a * n) ? NULL : noted(__libc_calloc(a, n)); }
void *aligned_alloc(size_t a, size_t n) { return FAILS(n) ? NULL : noted(__libc_memalign(a, n)); }
void *memalign(size_t a, size_t n) { return FAILS(n) ? NULL : noted(__libc_memalign(a, n)); }
int posix_memalign(void **p, size_t a, size_t n)
{
	if (FAILS(n))
		return ENOMEM;
	*p = noted(__libc_memalign(a, n));
	return *p ? 0 : ENOMEM;
}
void *realloc(void *p, size_t n)
{
	void *q;

	if (n && FAILS(n))
		return NULL;
	forgotten(p);
	q = __libc_realloc(p, n);
	noted(q ? q : n ? p : NULL);
	return q;
}
void free(void *p)
{
	forgotten(p);
	__libc_free(p);
}
static void *(*real_dlopen)(const char *, int);
void *dlopen(const char *file, int flags)
{
	void *p;

	if (!real_dlopen)
		real_dlopen = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
	in_dlopen++;
	p = real_dlopen(file, flags);
	in_dlopen--;
	return p;
}
#endif

/* The n-th allocation from here on fails, or there is no more memory from then on. */
static void fail_from(long n, int no_more)
{
	allocations = 0;
	first = n;
	all = no_more;
	most = INT64_MAX;
	__atomic_store_n(&counts, 1, __ATOMIC_SEQ_CST);
}
/* There is memory again; returns how many allocations there were. */
static long fail_no_more(void)
{
	__atomic_store_n(&counts, 0, __ATOMIC_SEQ_CST);
	return allocations;
}

/* Prints the state of the test at a signal that ends the process. */
static void died(int sig)
{
	if (write(ct_why, ct_prefix, strlen(ct_prefix)) < 0)
		_exit(1);
	signal(sig, SIG_DFL);
	raise(sig);
}
static void begin_test(void)
{
	if (NO_MALLOC)
		SKIP_HERE("malloc is AddressSanitizer's");
	signal(SIGABRT, died);
	signal(SIGSEGV, died);
	signal(SIGBUS, died);
}

enum { LEN = 300000, OPS = 16 };

/* An endpoint with its domain and fabric, and a region. */
struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_cntr *cntr;
	struct fid_eq *eq;
	struct fid_av *av;
	struct fid_mr *mr;
	struct fid_ep *ep;
	struct ct_name name;
	fi_addr_t peer;
	int under_way;
};
static unsigned char *area[2];		/* of each end: data to send, behind received data */
static struct fi_context2 contexts[2][OPS];

/* Checks the result of a call. */
static int memory(const char *call, long r)
{
	if (r && r != -FI_ENOMEM)
		FAIL("%s: %ld %s", call, r, fi_strerror((int)-r));
	return (int)r;
}
#define TRY(x) do { int t_ = memory(#x, (long)(x)); if (t_) return t_; } while (0)

static struct fi_info *hints;

static int open_end(struct end *e, int number)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC, .size = 3000 };
	struct fi_cntr_attr n = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr a = { .type = FI_AV_TABLE, .count = 1000 };
	struct fi_eq_attr q2 = { .wait_obj = FI_WAIT_UNSPEC };

	memset(e, 0, sizeof *e);
	TRY(fi_getinfo(CT_VERSION, ct_is_ip() ? ct_node(&(struct ct_opt){ 0 }) : NULL, ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0, hints, &e->info));
	TRY(fi_fabric(e->info->fabric_attr, &e->fabric, NULL));
	TRY(fi_eq_open(e->fabric, &q2, &e->eq, NULL));
	TRY(fi_domain(e->fabric, e->info, &e->domain, NULL));
	TRY(fi_cq_open(e->domain, &q, &e->cq, NULL));
	TRY(fi_cntr_open(e->domain, &n, &e->cntr, NULL));
	TRY(fi_av_open(e->domain, &a, &e->av, NULL));
	TRY(fi_mr_reg(e->domain, area[number], 2 * LEN, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 77 + number, 0, &e->mr, NULL));
	TRY(fi_endpoint(e->domain, e->info, &e->ep, NULL));
	TRY(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_ep_bind(e->ep, &e->cntr->fid, FI_SEND));
	TRY(fi_ep_bind(e->ep, &e->av->fid, 0));
	TRY(fi_enable(e->ep));
	e->name.n = sizeof e->name.b;
	TRY(fi_getname(&e->ep->fid, e->name.b, &e->name.n));
	return 0;
}
/* Closing needs no memory that may be missing. */
static void close_end(struct end *e)
{
	if (e->ep)
		OK(fi_close(&e->ep->fid));
	if (e->mr)
		OK(fi_close(&e->mr->fid));
	if (e->av)
		OK(fi_close(&e->av->fid));
	if (e->cntr)
		OK(fi_close(&e->cntr->fid));
	if (e->cq)
		OK(fi_close(&e->cq->fid));
	if (e->domain)
		OK(fi_close(&e->domain->fid));
	if (e->eq)
		OK(fi_close(&e->eq->fid));
	if (e->fabric)
		OK(fi_close(&e->fabric->fid));
	if (e->info)
		fi_freeinfo(e->info);
	memset(e, 0, sizeof *e);
}
static int insert_peer(struct end *e, const struct end *other)
{
	int r = fi_av_insert(e->av, other->name.b, 1, &e->peer, 0, NULL);

	return r == 1 ? 0 : r == 0 ? -FI_ENOMEM : memory("fi_av_insert", r);
}
/* Reads completions; errors are counted as operations that are over. */
static int reap(struct end *e)
{
	struct fi_cq_tagged_entry c;
	struct fi_cq_err_entry x = { 0 };
	ssize_t n;
	int errors = 0;

	while ((n = fi_cq_read(e->cq, &c, 1)) == 1 || n == -FI_EAVAIL) {
		if (n != 1) {
			memset(&x, 0, sizeof x);
			EQ(fi_cq_readerr(e->cq, &x, 0), 1);
			errors++;
		}
		e->under_way--;
	}
	if (n != -FI_EAGAIN && n != -FI_ENOMEM)
		FAIL("fi_cq_read: %zd %s", n, fi_strerror((int)-n));
	return errors;
}
/* A transfer call, a few times while there is no room; true if it is under way. */
#define START(e, o, x) ({ long r_ = 0; for (int k_ = 0; k_ < 20 && (r_ = (long)(x)) == -FI_EAGAIN; k_++) { reap(e); reap(o); } \
	if (r_ && r_ != -FI_EAGAIN && r_ != -FI_ENOMEM) FAIL("%s: %ld %s", #x, r_, fi_strerror((int)-r_)); \
	(e)->under_way += !r_; !r_; })

/* Of each message: whether it was sent, and whether its receive was posted. */
static const size_t sizes[] = { 8, 200, 5000, 60000, LEN };
enum { MESSAGES = 10 };
static int sent[MESSAGES], posted[MESSAGES];

static int post(struct end *a, struct end *b, int i)
{
	return START(b, a, fi_trecv(b->ep, area[1], sizes[i % 5], fi_mr_desc(b->mr), FI_ADDR_UNSPEC, i, 0, &contexts[1][i]));
}
/* Messages of several sizes, some of which come before their receives do, and accesses to the peer's region. */
static void talk(struct end *a, struct end *b)
{
	void *ad = fi_mr_desc(a->mr);
	uint64_t at = a->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)area[1] : 0;
	uint64_t key = fi_mr_key(b->mr);

	memset(sent, 0, sizeof sent);
	memset(posted, 0, sizeof posted);
	if (insert_peer(a, b) || insert_peer(b, a))
		return;
	for (int i = 0; i < MESSAGES; i++) {
		if (i % 2)
			posted[i] = post(a, b, i);
		sent[i] = START(a, b, fi_tsend(a->ep, area[0] + LEN, sizes[i % 5], ad, a->peer, i, &contexts[0][i]));
		for (int k = 0; k < 8; k++) {
			reap(b);
			reap(a);
		}
		if (i % 2 == 0)
			posted[i] = post(a, b, i);
		for (int k = 0; k < 8; k++) {
			reap(a);
			reap(b);
		}
	}
	START(a, b, fi_write(a->ep, area[0] + LEN, 3000, ad, a->peer, at, key, &contexts[0][10]));
	START(a, b, fi_read(a->ep, area[0], 3000, ad, a->peer, at, key, &contexts[0][11]));
	for (int k = 0; k < 20; k++) {
		reap(a);
		reap(b);
	}
}
/* With memory: started operations complete. A receive of a lost message, or of one not sent, is cancelled. */
static void settle(struct end *a, struct end *b)
{
	int64_t since = 0, idle = 0;

	for (int i = 0; i < MESSAGES; i++)
		while (sent[i] && !posted[i])
			posted[i] = post(a, b, i);
	while (a->under_way > 0 || b->under_way > 0) {
		int before = b->under_way;

		reap(a);
		reap(b);
		ct_relax(&since);
		if (a->under_way > 0 || b->under_way < before)
			idle = ct_ms();
		else if (ct_ms() - idle > 10) {
			for (int i = 0; i < MESSAGES; i++)
				fi_cancel(&b->ep->fid, &contexts[1][i]);
			idle = ct_ms();
		}
	}
	EQ(a->under_way, 0);
	EQ(b->under_way, 0);
}
/* With memory: one message comes through, as it was sent. */
static void one_message(struct end *a, struct end *b)
{
	static unsigned seed;
	int64_t since = 0;

	ct_fill(area[0] + LEN, 1000, ++seed);
	memset(area[1], 0, 1000);
	OK(insert_peer(a, b));
	OK(fi_trecv(b->ep, area[1], 1000, fi_mr_desc(b->mr), FI_ADDR_UNSPEC, 99, 0, &contexts[1][0]));
	b->under_way++;
	while (!START(a, b, fi_tsend(a->ep, area[0] + LEN, 1000, fi_mr_desc(a->mr), a->peer, 99, &contexts[0][0])))
		ct_relax(&since);
	while (a->under_way || b->under_way) {
		EQ(reap(a), 0);
		EQ(reap(b), 0);
		ct_relax(&since);
	}
	CHECK(ct_same(area[1], 1000, seed));
}
static void make_hints(void)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .threading = FI_THREAD_SAFE };

	hints = ct_hints(&o);
	for (int i = 0; i < 2; i++) {
		area[i] = mmap(NULL, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(area[i] != MAP_FAILED);
	}
}
/* Returns the next n: the following one with FAULT_LONG, else a later one. FAULT_AT is the first n. */
static long next_of(long n, long total)
{
	return n + 1 + (getenv("FAULT_LONG") ? 0 : total / 12);
}
static long first_of(void)
{
	return fault_count("FAULT_AT", 0);
}
static void state(const char *what, long n, int none)
{
	snprintf(ct_prefix, sizeof ct_prefix, "%s, allocation %ld%s: ", what, n, none ? " and no memory from then on" : "");
}
/* The allocations of a run from fail_from on; more than the longest before make more runs. */
static long total;
static void count(void)
{
	if (fail_no_more() > total)
		total = allocations;
}
/* Runs `once` for each n, where the n-th allocation fails alone, and then where there is no memory from it on. */
static void for_each(const char *what, void (*once)(long n, int none))
{
	begin_test();
	make_hints();
	for (int none = 0; none < 2; none++) {
		total = 1;
		for (long n = first_of(); n <= first_of() || n < total; n = next_of(n, total)) {
			state(what, n, none);
			once(n, none);
		}
	}
	ct_prefix[0] = 0;
}
static long live_before;
static int fds_before;
static void open_once(long n, int none)
{
	struct end a, b;

	fail_from(n, none);
	memset(&b, 0, sizeof b);
	if (!open_end(&a, 0))
		open_end(&b, 1);
	count();
	close_end(&a);
	close_end(&b);
	if (n % 5)
		return;
	OK(open_end(&a, 0));
	OK(open_end(&b, 1));
	one_message(&a, &b);
	close_end(&a);
	close_end(&b);
	if (!n && !none) {
		live_before = live;
		fds_before = open_fds();
	}
}
static void opening(int rank)
{
	(void)rank;
	for_each("opening", open_once);
	/* tables that grew, and the library's state of ended threads */
	if (live > live_before + 60)
		FAIL("%ld allocations are left over", live - live_before);
	EQ(open_fds(), fds_before);
}
static void talk_once(long n, int none)
{
	struct end a, b;

	OK(open_end(&a, 0));
	OK(open_end(&b, 1));
	fail_from(n, none);
	talk(&a, &b);
	count();
	settle(&a, &b);
	one_message(&a, &b);
	close_end(&a);
	close_end(&b);
}
static void talking(int rank)
{
	(void)rank;
	for_each("talking", talk_once);
}
static void close_once(long n, int none)
{
	struct end a, b;

	OK(open_end(&a, 0));
	OK(open_end(&b, 1));
	talk(&a, &b);
	fail_from(n, none);
	close_end(&a);
	close_end(&b);
	count();
}
static void closing(int rank)
{
	(void)rank;
	for_each("closing", close_once);
}
/* The first call of a process. */
static void starting(int rank)
{
	int *infos = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	long *total = (long *)(infos + 2), step;

	(void)rank;
	begin_test();
	if (strcmp(ct_prov, "tcp"))
		SKIP_HERE("all providers take part, for any provider under test");
	CHECK(infos != MAP_FAILED);
	for (long n = -1; n < *total; n += step) {
		pid_t child = fork();
		int status;

		step = n < 0 ? 1 + first_of() : getenv("FAULT_LONG") ? 1 : *total / 30 + 1;
		CHECK(child >= 0);
		if (!child) {
			struct fi_info *info = NULL;
			int r, k = 0;

			state("starting", n, n & 1);
			fail_from(n < 0 ? INT64_MAX - 1 : n, n & 1);
			r = memory("fi_getinfo", fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &info));
			fail_no_more();
			if (n < 0)
				*total = allocations;
			if (r)
				OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &info));
			for (struct fi_info *i = info; i; i = i->next)
				k++;
			if (n < 0)
				infos[0] = k;
			EQ(k, infos[0]);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		if (WIFSIGNALED(status))
			FAIL("allocation %ld: signal %d", n, WTERMSIG(status));
		if (status)
			_exit(1);
	}
}

static const struct ct_test tests[] = {
	{ "a failed allocation in the first call of a process is an error, and the next call finds all providers", starting, CT_SOLO | CT_RDM },
	{ "a failed allocation while endpoints open is an error that leaves nothing behind", opening, CT_SOLO | CT_RDM },
	{ "a failed allocation during transfers ends no more than its operation", talking, CT_SOLO | CT_RDM },
	{ "endpoints close without memory", closing, CT_SOLO | CT_RDM },
};
CT_MAIN("nomem", tests)
