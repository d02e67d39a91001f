/*
 * Threads that share the objects of a domain (FI_THREAD_SAFE) and make all available calls at
 * random: every operation completes once, received data is the data sent, no message
 * between endpoints that stay is lost, all receives come back, everything closes.
 *
 * Some endpoints stay and are strict: nothing between them may fail. Others come and go while
 * their queues, vectors, regions and shared contexts are in use. No thread uses an endpoint, or
 * a region's key, at the moment of its close by another thread; everything else is free.
 *
 *   FAULT_SEED    which random numbers (default: the time; it is printed)
 *   FAULT_SECS    how long (default 5)
 *   FAULT_ITERS   maximum number of calls of each thread
 *   FAULT_THREADS number of threads (default 5)
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <rdma/fi_atomic.h>

enum {
	STAY = 4,		/* endpoints that stay; MSG: 0-1 and 2-3 are connected */
	SLOTS = 8,		/* and those that come and go */
	OPS = 300000,		/* operations of a round */
	MAX_LEN = 130000, AREAS = 32, AREA = 40000, MOST_THREADS = 64,
	MAGIC = 0x7ead5afe,
};

static __thread uint64_t rnd_state;
static uint32_t rnd(uint32_t n)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return (uint32_t)((rnd_state * 0x2545f4914f6cdd1dull) >> 33) % n;
}
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)
#define SWAP(x, v) __atomic_exchange_n(&(x), v, __ATOMIC_SEQ_CST)
#define ADD(x, n) __atomic_add_fetch(&(x), n, __ATOMIC_SEQ_CST)

/* The beginning of every message that is not empty. */
struct head { uint32_t magic, id, len; uint8_t from, to, strict, gen; };

/* Kinds of operations. */
enum { SEND = 1, RECV, MULTI, PEEK, WRITE, READ, SUM };
struct op {
	struct fi_context2 ctx;		/* first: completions name it */
	int state;			/* 0 not used, 1 under way, 2 completed */
	int kind, slot, gen;		/* slot -1: the shared context */
	int strict;			/* may not fail */
	int area;
	fi_addr_t from;			/* directed at this peer, an index of `stays` */
	uint32_t id;
	int *count;			/* how many of its kind wait */
	size_t len;
	unsigned char *buf;
};
struct slot {
	pthread_rwlock_t lock;		/* write-locked by the closing or opening thread */
	struct fid_ep *ep;
	int gen, under_way, shared;
	int live;			/* MSG: connected */
	struct ct_name name;		/* stays when the endpoint is closed: a stale address */
	fi_addr_t to;			/* in the vector of those that come and go */
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cqs[2];		/* of those that stay, and of the others */
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fid_av *stays, *goes;
static fi_addr_t at[STAY];		/* in `stays` */
static struct fid_ep *srx;
static int srx_under_way;
static struct slot slots[SLOTS];
static struct op *ops;
static unsigned nops;
/* Of each message: 1 sent by a strict pair, 2 arrived, 4 the call failed. */
static unsigned char *messages;
static unsigned nmessages;
static long pending;			/* messages that have to arrive */
static struct fid_mr *mr;		/* stays */
static unsigned char *region;
static int64_t *sum, summed;
static uint32_t areas;
static pthread_rwlock_t second_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct fid_mr *second;		/* comes and goes */
static unsigned char *second_memory;
static pthread_mutex_t eq_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t waiter_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t waiter;
static int stop;
static int64_t until;
static long calls, completed, errors, arrived, closes, cancels;
static long most_calls;

static size_t some_len(void)
{
	static const size_t l[] = { 16, 20, 64, 600, 1500, 4000, 17000, 70000, MAX_LEN };
	return l[rnd(rnd(3) ? 5 : sizeof l / sizeof *l)];
}
/* The state of operations that their endpoint has taken along: fi_endpoint(3), fi_close. */
#define DROPPED 4
static struct op *new_op(int slot, int kind, size_t len)
{
	unsigned n = ADD(nops, 1);
	struct op *o = &ops[n - 1];

	if (n > OPS) {
		STORE(stop, 1);
		return NULL;
	}
	o->buf = malloc(len ? len : 1);
	o->len = len;
	o->kind = kind;
	o->slot = slot;
	o->gen = slot < 0 ? 0 : slots[slot].gen;
	o->strict = 0;
	o->from = FI_ADDR_UNSPEC;
	o->area = -1;
	o->count = NULL;
	ADD(*(slot < 0 ? &srx_under_way : &slots[slot].under_way), 1);
	STORE(o->state, 1);
	return o;
}
static void ended(struct op *o, int as)
{
	int was;

	was = SWAP(o->state, as);
	if (was == DROPPED)	/* its entry was read before its endpoint closed */
		return;
	if (was != 1)
		FAIL("operation %ld of kind %d completed twice", (long)(o - ops), o->kind);
	if (o->count)
		ADD(*o->count, -1);
	if (o->area >= 0)
		__atomic_and_fetch(&areas, ~(1u << o->area), __ATOMIC_SEQ_CST);
	if (o->kind != MULTI)	/* another thread may still read earlier messages: see close_all */
		free(o->buf);
	ADD(*(o->slot < 0 ? &srx_under_way : &slots[o->slot].under_way), -1);
}
/* The call failed: the operation may not complete. */
static void not_posted(struct op *o, ssize_t r)
{
	if (o->strict && r != -FI_EAGAIN)
		FAIL("an operation of kind %d of endpoints that stay is refused: %zd %s", o->kind, r, fi_strerror((int)-r));
	ended(o, 0);
}
static uint32_t new_message(unsigned char *b, size_t n, int from, int to, int strict)
{
	struct head h = { MAGIC, ADD(nmessages, 1) - 1, (uint32_t)n, (uint8_t)from, (uint8_t)to, (uint8_t)strict, 0 };

	if (n < sizeof h)
		return 0;
	CHECK(h.id < OPS * 2);
	ct_fill(b, n, h.id);
	memcpy(b, &h, sizeof h);
	if (strict)
		ADD(pending, 1);
	return h.id;
}
static void not_sent(uint32_t id, int strict)
{
	if (__atomic_fetch_or(&messages[id], 4, __ATOMIC_SEQ_CST) & 2)
		FAIL("message %u arrived, although the call that sends it failed", id);
	if (strict)
		ADD(pending, -1);
}
static void check_message(struct op *o, const unsigned char *b, size_t n, fi_addr_t src)
{
	struct head h;
	size_t wrong;

	if (n < sizeof h)
		return;
	memcpy(&h, b, sizeof h);
	if (h.magic != MAGIC || h.len != n || h.id >= OPS * 2)
		FAIL("a message of %zu bytes begins without a header: %x, %u bytes", n, h.magic, h.len);
	wrong = ct_wrong(b, sizeof h, n, h.id);
	if (wrong < n)
		FAIL("byte %zu of %zu is wrong", wrong, n);
	switch (__atomic_fetch_or(&messages[h.id], 2, __ATOMIC_SEQ_CST)) {
	case 0: break;
	case 2: FAIL("message %u arrived twice", h.id);
	default: FAIL("message %u arrived, although the call that sends it failed", h.id);
	}
	if (h.strict) {
		if (o->slot >= 0)
			EQ(h.to, o->slot);
		if (ct_type == FI_EP_RDM && h.to < STAY)
			EQ(src, at[h.from]);
		ADD(pending, -1);
	}
	if (o->from != FI_ADDR_UNSPEC && h.from < STAY)
		EQ(at[h.from], o->from);
	ADD(arrived, 1);
}
static void one_entry(const struct fi_cq_tagged_entry *e, fi_addr_t src)
{
	struct op *o = e->op_context;

	if (!o) {
		CHECK(e->flags & (FI_REMOTE_READ | FI_REMOTE_WRITE));
		return;
	}
	CHECK(o >= ops && o < ops + OPS);
	if (o->kind != MULTI && LOAD(o->state) != 1 && LOAD(o->state) != DROPPED)
		FAIL("an entry (flags %llx) for operation %ld of kind %d, which is not under way", (unsigned long long)e->flags, (long)(o - ops), o->kind);
	ADD(completed, 1);
	switch (o->kind) {
	case RECV:
		CHECK(e->flags & FI_RECV && e->len <= o->len);
		check_message(o, o->buf, e->len, src);
		break;
	case MULTI:
		if (e->flags & FI_RECV && e->len) {
			unsigned char *b = e->buf;

			CHECK(b >= o->buf && b + e->len <= o->buf + o->len);
			check_message(o, b, e->len, src);
		}
		if (!(e->flags & FI_MULTI_RECV))
			return;
		break;
	case WRITE:
		if (o->area >= 0 && !ct_same(region + o->area * AREA, o->len, o->id))
			FAIL("the written data is not there");
		break;
	case READ:
		if (o->area >= 0 && !ct_same(o->buf, o->len, o->id))
			FAIL("the data read is wrong");
		break;
	case SUM:
		ADD(summed, 1);
		break;
	default:
		break;
	}
	ended(o, 2);
}
static int one_error(struct fid_cq *cq)
{
	struct fi_cq_err_entry x = { 0 };
	ssize_t r = fi_cq_readerr(cq, &x, 0);
	struct op *o = x.op_context;

	if (r == -FI_EAGAIN)	/* another thread took it */
		return 0;
	EQ(r, 1);
	CHECK(x.err > 0);
	ADD(errors, 1);
	if (!o) {	/* injected: fi_cq(3) */
		CHECK(x.flags & (FI_SEND | FI_WRITE | FI_ATOMIC));
		return 1;
	}
	CHECK(o >= ops && o < ops + OPS);
	/* another thread may have taken the entry that gives a buffer back meanwhile */
	if (o->kind != MULTI && LOAD(o->state) != 1 && LOAD(o->state) != DROPPED)
		FAIL("an error entry, %s, for operation %ld of kind %d, which is not under way", fi_strerror(x.err), (long)(o - ops), o->kind);
	if (o->strict)
		FAIL("an operation of kind %d of endpoints that stay failed: %s", o->kind, fi_strerror(x.err));
	if (o->kind == MULTI && !(x.flags & FI_MULTI_RECV))
		return 1;
	ended(o, 2);
	return 1;
}
/* Takes one entry; 0 if there is none. */
static int complete(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e[4];
	fi_addr_t src[4];
	ssize_t r = fi_cq_readfrom(cq, e, 1 + rnd(4), src);

	if (r == -FI_EAGAIN)
		return 0;
	if (r == -FI_EAVAIL)
		return one_error(cq);
	CHECK(r > 0);
	for (int i = 0; i < r; i++)
		one_entry(&e[i], src[i]);
	return 1;
}
static void drain(int most)
{
	while (most-- > 0 && complete(cqs[0]) + complete(cqs[1]))
		;
}
/* Reads until nothing of `*n` is under way. */
static void await(int *n, const char *what)
{
	for (int64_t end = ct_ms() + 60000; LOAD(*n); sched_yield()) {
		drain(50);
		if (ct_ms() > end) {
			for (unsigned i = 0; i < nops && i < OPS; i++)
				if (LOAD(ops[i].state) == 1 && n == (ops[i].slot < 0 ? &srx_under_way : &slots[ops[i].slot].under_way))
					fprintf(stderr, "left: operation %u, kind %d, slot %d, %zu bytes\n", i, ops[i].kind, ops[i].slot, ops[i].len);
			FAIL("%s: %d operations did not complete", what, *n);
		}
	}
}

/* ---- opening and closing --------------------------------------------- */

static void bind_ep(struct slot *s)
{
	int i = (int)(s - slots);
	size_t most = MAX_LEN;

	if (ct_type == FI_EP_RDM)
		OK(fi_ep_bind(s->ep, &(i < STAY ? stays : goes)->fid, 0));
	if (eq)
		OK(fi_ep_bind(s->ep, &eq->fid, 0));
	s->shared = i % 2;
	if (s->shared)
		OK(fi_ep_bind(s->ep, &srx->fid, 0));
	else
		OK(fi_setopt(&s->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &most, sizeof most));
	OK(fi_ep_bind(s->ep, &cqs[i >= STAY]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(s->ep));
}
/* With the lock of the slot, of both slots of a pair. */
static void open_slot(int i)
{
	struct slot *s = &slots[i];

	s->gen++;
	STORE(s->live, ct_type == FI_EP_RDM);
	OK(fi_endpoint(domain, info, &s->ep, s));
	bind_ep(s);
	if (ct_type == FI_EP_RDM) {
		s->name = ct_getname(&s->ep->fid);
	} else {
		struct ct_name to = ct_getname(&pep->fid);
		int who[2] = { i, s->gen };

		OK(fi_connect(s->ep, to.b, who, sizeof who));
	}
}
static void close_slot(int i)
{
	struct slot *s = &slots[i];

	OK(fi_close(&s->ep->fid));
	s->ep = NULL;
	STORE(s->live, 0);
	/* operations in flight are in the queues by now, or in another thread, or dropped */
	drain(200);
	for (unsigned k = 0; k < nops && k < OPS; k++) {
		struct op *o = &ops[k];
		int is = 1;

		if (o->slot != i || !__atomic_compare_exchange_n(&o->state, &is, DROPPED, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			continue;
		if (o->count)
			ADD(*o->count, -1);
		if (o->area >= 0)
			__atomic_and_fetch(&areas, ~(1u << o->area), __ATOMIC_SEQ_CST);
		ADD(s->under_way, -1);
	}
	await(&s->under_way, "an endpoint that is closed");
	ADD(closes, 1);
}
static void one_event(void)
{
	struct { struct fi_eq_cm_entry e; int who[2]; char more[256]; } b = { 0 };
	struct fi_eq_err_entry x = { 0 };
	uint32_t ev = 0;
	ssize_t r;

	if (!eq || pthread_mutex_trylock(&eq_lock))
		return;
	r = fi_eq_read(eq, &ev, &b, sizeof b, 0);
	if (r == -FI_EAVAIL) {
		r = fi_eq_readerr(eq, &x, 0);
		if (r > 0 && (x.fid == &slots[0].ep->fid || x.fid == &slots[2].ep->fid))
			FAIL("a connection that stays failed: %s", fi_strerror(x.err));
	} else if (r > 0 && ev == FI_CONNREQ) {
		/* slot who[0] connected: its partner answers, if both are unchanged */
		int i = b.who[0] ^ 1;
		struct slot *s = &slots[i];

		CHECK(r >= (ssize_t)sizeof b.e && i >= 0 && i < SLOTS);
		if (pthread_rwlock_trywrlock(&s->lock)) {
			(void)fi_reject(pep, b.e.info->handle, NULL, 0);
		} else {
			if (s->ep || slots[i ^ 1].gen != b.who[1]) {
				(void)fi_reject(pep, b.e.info->handle, NULL, 0);
			} else {
				s->gen++;
				STORE(s->live, 0);
				OK(fi_endpoint(domain, b.e.info, &s->ep, s));
				bind_ep(s);
				/* the connecting peer may be gone by now */
				if (fi_accept(s->ep, NULL, 0)) {
					CHECK(i >= STAY);
					close_slot(i);
				}
			}
			pthread_rwlock_unlock(&s->lock);
		}
		fi_freeinfo(b.e.info);
	} else if (r > 0) {
		for (int i = 0; i < SLOTS; i++)
			if (slots[i].ep && b.e.fid == &slots[i].ep->fid) {
				CHECK(ev == FI_CONNECTED || i >= STAY);
				STORE(slots[i].live, ev == FI_CONNECTED);
			}
	}
	pthread_mutex_unlock(&eq_lock);
}
/* An endpoint that comes and goes does so. */
static void come_or_go(void)
{
	int i = STAY + rnd(SLOTS - STAY);
	struct slot *s = &slots[i];

	if (pthread_rwlock_trywrlock(&s->lock))
		return;
	if (s->ep)
		close_slot(i);
	else if (ct_type == FI_EP_RDM || i % 2 == 0)
		open_slot(i);
	pthread_rwlock_unlock(&s->lock);
}
static void open_second(void)
{
	static uint64_t key = 100;

	if (pthread_rwlock_trywrlock(&second_lock))
		return;
	if (second) {
		OK(fi_close(&second->fid));
		second = NULL;
		free(second_memory);
	} else {
		second_memory = malloc(MAX_LEN);
		OK(fi_mr_reg(domain, second_memory, MAX_LEN, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key++, 0, &second, NULL));
	}
	pthread_rwlock_unlock(&second_lock);
}

/* ---- operations ------------------------------------------------------- */

/* An endpoint, locked against being closed; -1 if there is none. */
static int use_slot(int i)
{
	if (pthread_rwlock_tryrdlock(&slots[i].lock))
		return -1;
	if (slots[i].ep && LOAD(slots[i].live))
		return i;
	pthread_rwlock_unlock(&slots[i].lock);
	return -1;
}
/* Returns the slot to which slot i sends, and its address. */
static int partner(int i, fi_addr_t *to)
{
	int j = rnd(SLOTS);

	*to = FI_ADDR_UNSPEC;
	if (ct_type == FI_EP_MSG)
		return i ^ 1;
	if (i < STAY) {
		j %= STAY;
		*to = at[j];
		return j;
	}
	*to = LOAD(slots[j].to);
	if (*to == FI_ADDR_NOTAVAIL || rnd(30) == 0) {
		struct ct_name name = slots[j].name;	/* may be another's by now */

		if (!name.n || fi_av_insert(goes, name.b, 1, to, 0, NULL) != 1)
			return -1;
		fi_addr_t was = SWAP(slots[j].to, *to);
		if (was != FI_ADDR_NOTAVAIL)
			OK(fi_av_remove(goes, &was, 1, 0));
	}
	return j;
}
static void forget_some(void)
{
	fi_addr_t was;

	if (ct_type != FI_EP_RDM)
		return;
	was = SWAP(slots[rnd(SLOTS)].to, FI_ADDR_NOTAVAIL);
	if (was != FI_ADDR_NOTAVAIL)
		OK(fi_av_remove(goes, &was, 1, 0));
	/* in the vector of those that stay: an address once more, and an unused one */
	struct sockaddr_in no_peer = { .sin_family = AF_INET, .sin_port = htons(1 + rnd(20)), .sin_addr.s_addr = htonl(0x7f000001) };
	fi_addr_t a;
	int i = rnd(STAY);

	EQ(fi_av_insert(stays, slots[i].name.b, 1, &a, 0, NULL), 1);
	EQ(a, at[i]);
	OK(fi_av_remove(stays, &a, 1, 0));
	EQ(fi_av_insert(stays, &no_peer, 1, &a, 0, NULL), 1);
	OK(fi_av_remove(stays, &a, 1, 0));
}
static void send_some(int i)
{
	static const uint64_t flags[] = { 0, 0, 0, FI_DELIVERY_COMPLETE, FI_TRANSMIT_COMPLETE, FI_MORE, FI_REMOTE_CQ_DATA };
	uint64_t f = flags[rnd(sizeof flags / sizeof *flags)];
	struct slot *s = &slots[i];
	fi_addr_t to;
	int j = partner(i, &to), strict = i < STAY, tagged = rnd(2);
	struct op *o;
	ssize_t r;

	if (j < 0 || (strict && LOAD(pending) > 300))
		return;
	if (rnd(3) == 0) {	/* completes silently, with the call */
		unsigned char b[64];
		size_t n = 16 + rnd(49);
		uint32_t id = new_message(b, n, i, j, strict);

		r = tagged ? fi_tinject(s->ep, b, n, to, rnd(3)) : fi_inject(s->ep, b, n, to);
		if (r)
			not_sent(id, strict);
		if (r && r != -FI_EAGAIN && strict)
			FAIL("an inject to an endpoint that stays is refused: %zd %s", r, fi_strerror((int)-r));
		return;
	}
	o = new_op(i, SEND, strict || rnd(8) ? some_len() : 0);
	if (!o)
		return;
	o->strict = strict;
	o->id = new_message(o->buf, o->len, i, j, strict);
	uint32_t id = o->id;	/* it may complete before the call is back */
	int empty = o->len == 0;
	struct iovec v = { o->buf, o->len };
	if (tagged) {
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = to, .tag = rnd(3), .context = o, .data = 7 };
		r = fi_tsendmsg(s->ep, &m, f | FI_COMPLETION);
	} else {
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = to, .context = o, .data = 7 };
		r = fi_sendmsg(s->ep, &m, f | FI_COMPLETION);
	}
	if (r) {
		if (!empty)
			not_sent(id, strict);
		not_posted(o, r);
	}
}
/* With `all` for every message there may be, which is counted there. */
static void recv_from(int i, int tagged, int *all)
{
	struct slot *s = &slots[i];
	int of = s->shared ? -1 : i;
	struct fid_ep *ep = s->shared ? srx : s->ep;
	fi_addr_t from = FI_ADDR_UNSPEC;
	struct op *o;
	ssize_t r;

	if (LOAD(*(of < 0 ? &srx_under_way : &s->under_way)) > 60 && !all)
		return;
	if (!all && !tagged && rnd(4) == 0) {
		o = new_op(of, MULTI, MAX_LEN * 2 + rnd(1000));
		if (!o)
			return;
		struct iovec v = { o->buf, o->len };
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = o };
		r = fi_recvmsg(ep, &m, FI_MULTI_RECV | FI_COMPLETION);
	} else if (!all && i >= STAY && of >= 0 && rnd(8) == 0) {
		o = new_op(of, PEEK, MAX_LEN);
		if (!o)
			return;
		struct iovec v = { o->buf, o->len };
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = rnd(3), .context = o };
		r = fi_trecvmsg(ep, &m, FI_PEEK | FI_COMPLETION | (rnd(2) ? FI_DISCARD : 0));
	} else {
		o = new_op(of, RECV, i < STAY || of < 0 || rnd(2) ? MAX_LEN : some_len());
		if (!o)
			return;
		if (ct_type == FI_EP_RDM && i < STAY && of >= 0 && !all && rnd(4) == 0)
			o->from = from = at[rnd(STAY)];
		if ((o->count = all))
			ADD(*all, 1);
		r = tagged ? fi_trecv(ep, o->buf, o->len, NULL, from, rnd(3), all || rnd(2) ? ~0ull : 0, o)
			   : fi_recv(ep, o->buf, o->len, NULL, from, o);
	}
	if (r) {
		CHECK(r == -FI_EAGAIN || i >= STAY);
		not_posted(o, r);
	}
}
static uint64_t position(const void *p, const void *base)
{
	return info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)p : (uintptr_t)p - (uintptr_t)base;
}
static void rma_some(int i)
{
	struct slot *s = &slots[i];
	fi_addr_t to;
	int j = partner(i, &to), strict = i < STAY, what = rnd(info->caps & FI_ATOMIC && strict ? 3 : 2);
	struct op *o;
	ssize_t r;

	if (j < 0)
		return;
	if (strict && what == 2) {
		o = new_op(i, SUM, sizeof *sum);
		if (!o)
			return;
		o->strict = 1;
		memcpy(o->buf, &(int64_t){ 1 }, sizeof *sum);
		r = fi_atomic(s->ep, o->buf, 1, NULL, to, position(sum, region), fi_mr_key(mr), FI_INT64, FI_SUM, o);
	} else if (strict) {
		uint32_t a = rnd(AREAS), bit = 1u << a;
		size_t n = some_len() % AREA;

		if (__atomic_fetch_or(&areas, bit, __ATOMIC_SEQ_CST) & bit)
			return;
		o = new_op(i, what ? READ : WRITE, n);
		if (!o)
			return;
		o->strict = 1;
		o->area = (int)a;
		o->id = rnd(1000);
		ct_fill(what ? region + a * AREA : o->buf, n, o->id);
		memset(what ? o->buf : region + a * AREA, 0xee, n);
		struct iovec v = { o->buf, n };
		struct fi_rma_iov there = { position(region + a * AREA, region), n, fi_mr_key(mr) };
		struct fi_msg_rma m = { .msg_iov = &v, .iov_count = 1, .addr = to, .rma_iov = &there, .rma_iov_count = 1, .context = o };
		r = what ? fi_readmsg(s->ep, &m, FI_COMPLETION) : fi_writemsg(s->ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
	} else {
		size_t n = some_len(), off = rnd((uint32_t)(MAX_LEN - n) + 1);

		if (pthread_rwlock_tryrdlock(&second_lock))
			return;
		o = second ? new_op(i, what ? READ : WRITE, n) : NULL;
		if (!o) {
			pthread_rwlock_unlock(&second_lock);
			return;
		}
		memset(o->buf, 1, n);
		r = what ? fi_read(s->ep, o->buf, n, NULL, to, position(second_memory + off, second_memory), fi_mr_key(second), o)
			 : fi_write(s->ep, o->buf, n, NULL, to, position(second_memory + off, second_memory), fi_mr_key(second), o);
		pthread_rwlock_unlock(&second_lock);
	}
	if (r)
		not_posted(o, r);
}
static void cancel_some(void)
{
	unsigned n = LOAD(nops), back = rnd(400);
	struct op *o;

	n = n < OPS ? n : OPS;
	if (n <= back)
		return;
	o = &ops[n - 1 - back];
	/* a send may be cancelled too: it goes on */
	if (LOAD(o->state) != 1 || o->strict)
		return;
	if (o->slot < 0) {
		OK(fi_cancel(&srx->fid, o));
	} else if (use_slot(o->slot) >= 0) {
		if (slots[o->slot].gen == o->gen)
			OK(fi_cancel(&slots[o->slot].ep->fid, o));
		pthread_rwlock_unlock(&slots[o->slot].lock);
	}
}
/* Sleeps on a queue until it is cancelled, which happens in the call alone. */
static void *sleeps(void *arg)
{
	struct fid_cq *cq = arg;
	int before;

	rnd_state = 77;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	for (;;) {
		struct fi_cq_tagged_entry e;
		fi_addr_t src;

		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
		ssize_t r = fi_cq_sreadfrom(cq, &e, 1, &src, NULL, -1);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
		if (r == 1)
			one_entry(&e, src);
		else if (r == -FI_EAVAIL)
			one_error(cq);
		else
			CHECK(r == -FI_EAGAIN || r == -FI_EINTR);
	}
	return NULL;
}
static void end_waiter(void)
{
	void *answer;

	OK(pthread_cancel(waiter));
	OK(pthread_join(waiter, &answer));
	CHECK(answer == PTHREAD_CANCELED);
	ADD(cancels, 1);
}
static void wake_some(void)
{
	struct fi_cq_tagged_entry e;
	fi_addr_t src;
	struct fid_cq *cq = cqs[rnd(2)];
	ssize_t r;

	switch (rnd(4)) {
	case 0:
		OK(fi_cq_signal(cq));
		break;
	case 1:
		if (pthread_mutex_trylock(&waiter_lock) == 0) {
			end_waiter();
			OK(pthread_create(&waiter, NULL, sleeps, cq));
			pthread_mutex_unlock(&waiter_lock);
		}
		break;
	default:
		r = fi_cq_sreadfrom(cq, &e, 1, &src, NULL, (int)rnd(4));
		if (r == 1)
			one_entry(&e, src);
		else if (r == -FI_EAVAIL)
			one_error(cq);
		else
			CHECK(r == -FI_EAGAIN);
	}
}
static void *worker(void *arg)
{
	rnd_state = (uint64_t)(uintptr_t)arg * 2 + 1;
	for (long n = 0; !LOAD(stop) && n < most_calls; n++) {
		uint32_t what = rnd(100);

		ADD(calls, 1);
		if (n % 64 == 0 && ct_ms() > until)
			break;
		if (what < 66) {
			int i = use_slot(rnd(SLOTS));

			if (i < 0)
				what = 90;
			else if (what < 30)
				send_some(i);
			else if (what < 56)
				recv_from(i, rnd(2), NULL);
			else
				rma_some(i);
			if (i >= 0)
				pthread_rwlock_unlock(&slots[i].lock);
		} else if (what < 72) {
			cancel_some();
		} else if (what < 76) {
			forget_some();
		} else if (what < 77) {
			come_or_go();
		} else if (what < 78) {
			open_second();
		} else if (what < 80) {
			wake_some();
		}
		if (what >= 80)
			drain(rnd(30));
		if (rnd(8) == 0)
			one_event();
	}
	return NULL;
}

/* ---- a round ---------------------------------------------------------- */

static void open_all(void)
{
	static const struct ct_opt opt = { .caps = FI_MSG | FI_TAGGED | FI_RMA, .threading = FI_THREAD_SAFE };
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED, .size = rnd(3) ? 4096 : 16, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr a = { .count = 16 };
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *h = ct_hints(&opt);
	size_t most = MAX_LEN;
	int r;

	h->caps |= FI_ATOMIC | (ct_type == FI_EP_RDM ? FI_SOURCE | FI_DIRECTED_RECV : 0);
	h->domain_attr->data_progress = h->domain_attr->control_progress = rnd(2) ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	r = fi_getinfo(CT_VERSION, ct_node(&opt), "0", FI_SOURCE, h, &info);
	if (r == -FI_ENODATA) {
		h->caps &= ~FI_ATOMIC;
		r = fi_getinfo(CT_VERSION, ct_node(&opt), "0", FI_SOURCE, h, &info);
	}
	OK(r);
	fi_freeinfo(h);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &q, &cqs[0], NULL));
	OK(fi_cq_open(domain, &q, &cqs[1], NULL));
	OK(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	OK(fi_setopt(&srx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &most, sizeof most));
	region = calloc(1, AREAS * AREA + sizeof *sum);
	sum = (void *)(region + AREAS * AREA);
	OK(fi_mr_reg(domain, region, AREAS * AREA + sizeof *sum, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	for (int i = 0; i < SLOTS; i++) {
		slots[i].to = FI_ADDR_NOTAVAIL;
		slots[i].name.n = 0;
	}
	if (ct_type == FI_EP_MSG) {
		OK(fi_eq_open(fabric, &ea, &eq, NULL));
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
		open_slot(0);
		open_slot(2);
		for (int i = 0; i < STAY; i++)
			while (!slots[i].live) {
				one_event();
				drain(1);
			}
	} else {
		OK(fi_av_open(domain, &a, &stays, NULL));
		OK(fi_av_open(domain, &a, &goes, NULL));
		for (int i = 0; i < STAY; i++) {
			open_slot(i);
			EQ(fi_av_insert(stays, slots[i].name.b, 1, &at[i], 0, NULL), 1);
		}
	}
}
/* After the end of the threads: sent messages arrive, posted receives come back, all closes. */
static void close_all(void)
{
	static int wait[STAY][2];
	unsigned n;

	for (int64_t end = ct_ms() + 60000; LOAD(pending); sched_yield()) {
		for (int i = 0; i < STAY; i++)
			for (int tagged = 0; tagged < 2; tagged++)
				if (LOAD(wait[slots[i].shared ? 1 : i][tagged]) < 4)
					recv_from(i, tagged, &wait[slots[i].shared ? 1 : i][tagged]);
		drain(10);
		if (ct_ms() > end)
			FAIL("%ld messages between endpoints that stay did not arrive", pending);
	}
	for (int64_t end = ct_ms() + 60000;; sched_yield()) {
		struct op *left = NULL;

		drain(50);
		for (unsigned i = 0; i < nops && i < OPS && !left; i++)
			if (ops[i].strict && LOAD(ops[i].state) == 1)
				left = &ops[i];
		if (!left)
			break;
		if (ct_ms() > end)
			FAIL("operation %ld of kind %d of endpoints that stay did not complete", (long)(left - ops), left->kind);
	}
	EQ(*sum, summed);
	/* every receive of those that stay comes back */
	n = nops < OPS ? nops : OPS;
	for (unsigned i = 0; i < n; i++)
		if (LOAD(ops[i].state) == 1 && ops[i].slot < STAY)
			OK(fi_cancel(ops[i].slot < 0 ? &srx->fid : &slots[ops[i].slot].ep->fid, &ops[i]));
	await(&srx_under_way, "the shared receive context");
	for (int i = 0; i < STAY; i++)
		await(&slots[i].under_way, "receives that were taken back");
	for (int i = SLOTS - 1; i >= 0; i--)
		if (slots[i].ep)
			close_slot(i);
	OK(fi_close(&srx->fid));
	if (stays) {
		OK(fi_close(&stays->fid));
		OK(fi_close(&goes->fid));
	}
	if (pep)
		OK(fi_close(&pep->fid));
	if (second) {
		OK(fi_close(&second->fid));
		free(second_memory);
	}
	OK(fi_close(&mr->fid));
	while (complete(cqs[0]) + complete(cqs[1]))
		;
	OK(fi_close(&cqs[0]->fid));
	OK(fi_close(&cqs[1]->fid));
	OK(fi_close(&domain->fid));
	if (eq) {
		struct fi_eq_cm_entry e[4];
		uint32_t ev;

		while (fi_eq_read(eq, &ev, e, sizeof e, 0) > 0)
			if (ev == FI_CONNREQ)
				fi_freeinfo(e[0].info);
		OK(fi_close(&eq->fid));
	}
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	for (unsigned i = 0; i < n; i++) {
		if (ops[i].state == 1)
			FAIL("operation %u of kind %d is left", i, ops[i].kind);
		if (ops[i].kind == MULTI)
			free(ops[i].buf);
	}
	free(region);
	stays = goes = NULL;
	pep = NULL;
	eq = NULL;
	second = NULL;
}
static void one_round(uint64_t seed, int threads)
{
	pthread_t t[MOST_THREADS];

	rnd_state = seed * 2 + 1;
	ops = calloc(OPS, sizeof *ops);
	messages = calloc(OPS, 2);
	nops = nmessages = 0;
	summed = 0;
	areas = 0;
	stop = 0;
	open_all();
	OK(pthread_create(&waiter, NULL, sleeps, cqs[0]));
	for (int i = 0; i < threads; i++)
		OK(pthread_create(&t[i], NULL, worker, (void *)(uintptr_t)(seed * 1000003 + i * 7919)));
	for (int i = 0; i < threads; i++)
		OK(pthread_join(t[i], NULL));
	end_waiter();
	close_all();
	free(ops);
	free(messages);
}
static void share_all(int rank)
{
	const char *s = getenv("FAULT_SEED");
	uint64_t first = s ? strtoull(s, NULL, 0) : (uint64_t)ct_ms() * 2654435761u + getpid();
	long threads = fault_count("FAULT_THREADS", 5);
	int64_t end = ct_ms() + fault_count("FAULT_SECS", 5) * 1000;
	int rounds = 0, fds = 0;

	(void)rank;
	most_calls = fault_count("FAULT_ITERS", LONG_MAX);
	CHECK(threads > 0 && threads <= MOST_THREADS);
	setenv("FI_LOG_PROV", "core", 0);	/* ended connections cause hundreds of log lines */
	snprintf(ct_prefix, sizeof ct_prefix, "seed %llu: ", (unsigned long long)first);
	for (int i = 0; i < SLOTS; i++)
		OK(pthread_rwlock_init(&slots[i].lock, NULL));
	do {
		until = ct_ms() + 2000 < end ? ct_ms() + 2000 : end;
		one_round(first + rounds, (int)threads);
		if (++rounds == 2)
			fds = open_fds();
		for (int i = 0; rounds > 2 && i < 500 && open_fds() > fds; i++)
			ct_nap(10);
		if (rounds > 2 && open_fds() > fds) {
			each_fd(tell_fd, NULL);
			FAIL("%d descriptors are open after %d rounds, not %d", open_fds(), rounds, fds);
		}
	} while (ct_ms() < end);
	printf("     %s seed %llu: %d rounds, %ld calls, %ld entries, %ld of errors, %ld messages, %ld endpoints closed, %ld threads cancelled\n",
	       ct_prov, (unsigned long long)first, rounds, calls, completed + errors, errors, arrived, closes, cancels);
	fflush(stdout);
}

/* ---- an address that comes and goes ----------------------------------- */

enum { LISTENERS = 12 };
static struct fid_ep *received[LISTENERS];
static fi_addr_t before;
static pthread_barrier_t combined;

static void *removes(void *arg)
{
	(void)arg;
	for (;;) {
		pthread_barrier_wait(&combined);
		if (LOAD(stop))
			return NULL;
		OK(fi_av_remove(stays, &before, 1, 0));
		pthread_barrier_wait(&combined);
	}
}
/* Holds locks now and then, so that others contend for them. */
static void *reads(void *arg)
{
	while (!LOAD(stop))
		(void)fi_cq_read(cqs[0], NULL, 0);
	return arg;
}
/* One thread takes an address out while another puts it in: it is in the vector then, and all endpoints know. */
static void come_and_go(int rank)
{
	static const struct ct_opt opt = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV, .threading = FI_THREAD_SAFE };
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr a = { .count = 16 };
	int64_t end = ct_ms() + fault_count("FAULT_SECS", 5) * 500;
	struct ct_name name;
	fi_addr_t to[LISTENERS], now, other;
	struct fid_ep *ep;
	pthread_t t[3];
	int rounds = 0;

	(void)rank;
	setenv("FI_LOG_PROV", "core", 0);
	info = ct_getinfo(&opt, ct_node(&opt), "0", FI_SOURCE);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	for (int i = 0; i < 2; i++)
		OK(fi_cq_open(domain, &q, &cqs[i], NULL));
	OK(fi_av_open(domain, &a, &stays, NULL));
	OK(fi_av_open(domain, &a, &goes, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &goes->fid, 0));
	OK(fi_ep_bind(ep, &cqs[1]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	for (int i = 0; i < LISTENERS; i++) {
		OK(fi_endpoint(domain, info, &received[i], NULL));
		OK(fi_ep_bind(received[i], &stays->fid, 0));
		OK(fi_ep_bind(received[i], &cqs[0]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(received[i]));
		name = ct_getname(&received[i]->fid);
		EQ(fi_av_insert(goes, name.b, 1, &to[i], 0, NULL), 1);
	}
	name = ct_getname(&ep->fid);
	EQ(fi_av_insert(stays, name.b, 1, &before, 0, NULL), 1);
	OK(pthread_barrier_init(&combined, NULL, 2));
	OK(pthread_create(&t[0], NULL, removes, NULL));
	OK(pthread_create(&t[1], NULL, reads, NULL));
	while (ct_ms() < end) {
		char in[LISTENERS][8];
		int got = 0;

		pthread_barrier_wait(&combined);
		for (volatile int k = 0; k < rounds * 37 % 3000; k++)
			;
		EQ(fi_av_insert(stays, name.b, 1, &now, 0, NULL), 1);
		pthread_barrier_wait(&combined);
		rounds++;
		/* the same index: it was there all the time, but the endpoints' view may have differed */
		before = now;
		if (rounds % 8)
			continue;
		for (int i = 0; i < LISTENERS; i++) {
			ssize_t r;

			OK(fi_trecv(received[i], in[i], 8, NULL, now, 1, 0, &ct_ctx[i]));
			while ((r = fi_tinject(ep, "x", 2, to[i], 1)) == -FI_EAGAIN)
				(void)fi_cq_read(cqs[1], NULL, 0);
			OK(r);
		}
		for (int64_t late = ct_ms() + 20000; got < LISTENERS;) {
			struct fi_cq_tagged_entry e;

			(void)fi_cq_read(cqs[1], NULL, 0);
			if (fi_cq_readfrom(cqs[0], &e, 1, &other) == 1) {
				EQ(other, now);
				got++;
			} else if (ct_ms() > late) {
				FAIL("round %d: %d endpoints of %d do not know the sender", rounds, LISTENERS - got, LISTENERS);
			}
		}
	}
	STORE(stop, 1);
	pthread_barrier_wait(&combined);
	OK(pthread_join(t[0], NULL));
	OK(pthread_join(t[1], NULL));
	for (int i = 0; i < LISTENERS; i++)
		OK(fi_close(&received[i]->fid));
	OK(fi_close(&ep->fid));
	OK(fi_close(&stays->fid));
	OK(fi_close(&goes->fid));
	OK(fi_close(&cqs[0]->fid));
	OK(fi_close(&cqs[1]->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	printf("     %s: %d times\n", ct_prov, rounds);
	fflush(stdout);
}

static const struct ct_test tests[] = {
	{ "threads that share everything lose nothing, and nothing completes twice", share_all, CT_SOLO },
	{ "an address that one thread takes out while another puts it in is known to all endpoints", come_and_go, CT_RDM | CT_SOLO },
};
CT_MAIN("sharing", tests)
