/*
 * Random calls on the endpoints of one process, while connections are cut at
 * random: every operation completes once, received data is undamaged, no
 * buffer is accessed after its completion (AddressSanitizer detects this:
 * each buffer is freed then), and nothing is left behind.
 *
 *   FAULT_SEED    which random numbers (default: the time; it is printed)
 *   FAULT_ITERS   number of calls (default 4000)
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <malloc.h>

enum { SLOTS = 8, OPS = 400, ROUND = 1000, REGION = 1 << 17 };

static uint64_t seed;
static uint32_t rnd(uint32_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed * 0x2545f4914f6cdd1dull) >> 33) % n;
}

enum { SEND, RECV, MULTI, PEEK, CLAIM, RMA };
/* One operation under way; `buf` is its memory. */
struct op {
	struct fi_context2 ctx;		/* first: completions name it */
	struct op *next;
	struct slot *slot;
	int gen, kind, tagged;
	struct fid_ep *ep;
	size_t len;
	unsigned char *buf;
};
struct slot {
	struct fid_ep *ep;
	struct fid_av *av;		/* RDM */
	struct ct_name name;		/* stays when the endpoint is closed: a stale address */
	fi_addr_t to[SLOTS];
	int gen, live;			/* MSG: connected */
	int under_way;
};

static struct ct_opt opt = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fid_mr *mr;
static unsigned char *region;
static struct slot slots[SLOTS];
static struct op *ops;
static int nops;
static int closing;
static long calls, posted, good, bad, received, cuts;

static size_t some_len(void)
{
	static const size_t l[] = { 0, 4, 8, 64, 600, 1500, 4000, 17000, 70000, 300000 };
	return l[rnd(sizeof l / sizeof *l)];
}
static void fill(struct op *o)
{
	uint32_t s = rnd(1u << 30);

	ct_fill(o->buf, o->len, s);
	if (o->len >= 4)
		memcpy(o->buf, &s, 4);
}
static void check_data(const unsigned char *b, size_t n)
{
	uint32_t s;
	size_t wrong;

	if (n < 4)
		return;
	memcpy(&s, b, 4);
	wrong = ct_wrong(b, 4, n, s);
	if (wrong < n)
		FAIL("byte %zu of %zu is wrong", wrong, n);
}
static struct op *new_op(struct slot *s, int kind, size_t len)
{
	struct op *o = calloc(1, sizeof *o);

	o->buf = malloc(len ? len : 1);
	o->len = len;
	o->slot = s;
	o->gen = s->gen;
	o->kind = kind;
	return o;
}
static void drop(struct op *o)
{
	free(o->buf);
	free(o);
}
/* The call went well: the operation must complete. */
static void keep(struct op *o)
{
	o->next = ops;
	ops = o;
	nops++;
	posted++;
	o->slot->under_way++;
}
static void done(struct op *o)
{
	struct op **p = &ops;

	while (*p && *p != o)
		p = &(*p)->next;
	if (!*p)
		FAIL("%p completed more than once, or was never posted", (void *)o);
	*p = o->next;
	nops--;
	if (o->slot->gen == o->gen)
		o->slot->under_way--;
	drop(o);
}
static int is_open(struct op *o)
{
	return o->slot->gen == o->gen && o->slot->ep;
}
static int posted_now(struct op *o)
{
	struct op *p = ops;

	while (p && p != o)
		p = p->next;
	return p != NULL;
}
/* Takes one entry of the queue; 0 if there is none. */
static int complete(void)
{
	struct fi_cq_tagged_entry e = { 0 };
	struct fi_cq_err_entry x = { 0 };
	ssize_t r = fi_cq_read(cq, &e, 1);
	struct op *o;

	if (r == -FI_EAGAIN)
		return 0;
	if (r == -FI_EAVAIL) {
		EQ(fi_cq_readerr(cq, &x, 0), 1);
		CHECK(x.err > 0);
		o = x.op_context;
		if (!o) {	/* injected: fi_cq(3) */
			CHECK(x.flags & (FI_SEND | FI_WRITE | FI_ATOMIC));
			return 1;
		}
		bad++;
		if (!posted_now(o))
			FAIL("an error entry, %s, for %p, which is not under way", fi_strerror(x.err), (void *)o);
		if (o->kind != MULTI || x.flags & FI_MULTI_RECV)
			done(o);
		return 1;
	}
	EQ(r, 1);
	good++;
	o = e.op_context;
	if (!o) {
		CHECK(e.flags & (FI_REMOTE_READ | FI_REMOTE_WRITE));
		return 1;
	}
	if (!posted_now(o))
		FAIL("an entry (flags %llx) for %p, which is not under way", (unsigned long long)e.flags, (void *)o);
	switch (o->kind) {
	case RECV:
	case CLAIM:
		CHECK(e.flags & FI_RECV);
		check_data(o->buf, e.len);
		received++;
		break;
	case MULTI:
		if (e.flags & FI_RECV && e.len) {
			unsigned char *at = e.buf;

			CHECK(at >= o->buf && at + e.len <= o->buf + o->len);
			check_data(at, e.len);
			received++;
		}
		if (!(e.flags & FI_MULTI_RECV))
			return 1;
		break;
	case PEEK:
		if (o->tagged == 2 && is_open(o)) {	/* claimed: now take it */
			struct iovec v = { o->buf, o->len };
			struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .context = o };
			int throw_away = rnd(3) == 0;

			o->kind = throw_away ? PEEK : CLAIM;
			o->tagged = 1;
			r = fi_trecvmsg(o->slot->ep, &m, FI_CLAIM | FI_COMPLETION | (throw_away ? FI_DISCARD : 0));
			if (r == 0)
				return 1;
			/* nothing else may have taken it, but the endpoint can be at its end */
			CHECK(ct_type == FI_EP_MSG || r == -FI_EAGAIN);
		}
		break;
	default:
		break;
	}
	done(o);
	return 1;
}
static void drain(int most)
{
	while (most-- > 0 && complete())
		;
}
static void bind_ep(struct slot *s)
{
	if (s->av)
		OK(fi_ep_bind(s->ep, &s->av->fid, 0));
	if (eq)
		OK(fi_ep_bind(s->ep, &eq->fid, 0));
	OK(fi_ep_bind(s->ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(s->ep));
}
static void open_slot(struct slot *s)
{
	struct fi_av_attr a = { .count = 8 };

	s->gen++;
	s->under_way = 0;
	s->live = 0;
	if (ct_type == FI_EP_RDM) {
		OK(fi_av_open(domain, &a, &s->av, NULL));
		OK(fi_endpoint(domain, info, &s->ep, NULL));
		bind_ep(s);
		s->name = ct_getname(&s->ep->fid);
		for (int i = 0; i < SLOTS; i++)
			s->to[i] = FI_ADDR_NOTAVAIL;
	} else {
		struct ct_name at = ct_getname(&pep->fid);

		OK(fi_endpoint(domain, info, &s->ep, s));
		bind_ep(s);
		OK(fi_connect(s->ep, at.b, NULL, 0));
	}
}
static void events(void)
{
	struct { struct fi_eq_cm_entry e; char data[256]; } b;
	uint32_t ev;
	ssize_t r;

	while (eq && (r = fi_eq_read(eq, &ev, &b, sizeof b, 0)) != -FI_EAGAIN) {
		if (r == -FI_EAVAIL) {
			struct fi_eq_err_entry x = { 0 };

			CHECK(fi_eq_readerr(eq, &x, 0) > 0);
			continue;
		}
		CHECK(r >= (ssize_t)sizeof b.e);
		if (ev == FI_CONNREQ) {
			struct slot *s = &slots[0];
			int how = rnd(10);

			while (s < slots + SLOTS - 1 && s->ep)
				s++;
			if (!s->ep && how > 1 && !closing) {
				s->gen++;
				s->under_way = s->live = 0;
				OK(fi_endpoint(domain, b.e.info, &s->ep, s));
				bind_ep(s);
				/* the connecting peer may be gone by now */
				if (fi_accept(s->ep, NULL, 0)) {
					OK(fi_close(&s->ep->fid));
					s->ep = NULL;
				}
			} else if (how == 0) {
				/* the application forgets about it: closing the listener ends it */
			} else {
				(void)fi_reject(pep, b.e.info->handle, NULL, 0);
			}
			fi_freeinfo(b.e.info);
		} else {
			struct slot *s = NULL;

			for (int i = 0; i < SLOTS; i++)
				if (slots[i].ep && b.e.fid == &slots[i].ep->fid)
					s = &slots[i];
			if (!s)
				FAIL("event %u for an endpoint that is closed", ev);
			s->live = ev == FI_CONNECTED;
		}
	}
}
static void close_slot(struct slot *s)
{
	struct fid_ep *ep = s->ep;

	events();
	s->ep = NULL;
	OK(fi_close(&ep->fid));
	if (s->av)
		OK(fi_close(&s->av->fid));
	s->av = NULL;
	/* operations in flight are reported by now, or never (fi_endpoint(3)) */
	while (complete())
		;
	for (struct op *o = ops, *next; o; o = next) {
		next = o->next;
		if (o->slot == s && o->gen == s->gen) {
			done(o);
			bad++;
		}
	}
	EQ(s->under_way, 0);
}
static fi_addr_t dest(struct slot *s)
{
	int i = rnd(SLOTS);

	if (ct_type == FI_EP_MSG)
		return FI_ADDR_UNSPEC;
	if (!slots[i].name.n)
		return FI_ADDR_NOTAVAIL;
	if (s->to[i] == FI_ADDR_NOTAVAIL || rnd(20) == 0)
		if (fi_av_insert(s->av, slots[i].name.b, 1, &s->to[i], 0, NULL) != 1)
			FAIL("fi_av_insert");
	return s->to[i];
}
static void send_some(struct slot *s)
{
	fi_addr_t to = dest(s);
	struct op *o;
	struct iovec v;
	static const uint64_t flags[] = { 0, 0, FI_DELIVERY_COMPLETE, FI_TRANSMIT_COMPLETE, FI_FENCE, FI_MORE, FI_REMOTE_CQ_DATA };
	uint64_t f = flags[rnd(sizeof flags / sizeof *flags)];
	ssize_t r;

	if (to == FI_ADDR_NOTAVAIL && ct_type != FI_EP_MSG)
		return;
	if (rnd(4) == 0) {	/* completes silently, with the call */
		unsigned char b[64];
		uint32_t n = rnd(65), x = rnd(1000);

		ct_fill(b, n, x);
		if (n >= 4)
			memcpy(b, &x, 4);
		(void)(rnd(2) ? fi_inject(s->ep, b, n, to) : fi_tinject(s->ep, b, n, to, rnd(4)));
		return;
	}
	if (f == FI_FENCE && !(info->caps & FI_FENCE))
		f = 0;
	o = new_op(s, SEND, some_len());
	fill(o);
	v = (struct iovec){ o->buf, o->len };
	o->tagged = rnd(2);
	if (o->tagged) {
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = to, .tag = rnd(4), .context = o, .data = 7 };
		r = fi_tsendmsg(s->ep, &m, f | FI_COMPLETION);
	} else {
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = to, .context = o, .data = 7 };
		r = fi_sendmsg(s->ep, &m, f | FI_COMPLETION);
	}
	if (r == 0)
		keep(o);
	else
		drop(o);
}
static void recv_some(struct slot *s)
{
	struct op *o;
	struct iovec v;
	ssize_t r;
	int how = rnd(10);

	if (how == 0) {
		o = new_op(s, MULTI, 200000);
		v = (struct iovec){ o->buf, o->len };
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = o };
		r = fi_recvmsg(s->ep, &m, FI_MULTI_RECV | FI_COMPLETION);
	} else if (how == 1) {
		o = new_op(s, PEEK, some_len());
		v = (struct iovec){ o->buf, o->len };
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = rnd(4), .context = o };
		int what = rnd(3);

		o->tagged = 1 + (what == 1);
		r = fi_trecvmsg(s->ep, &m, FI_PEEK | FI_COMPLETION | (what == 1 ? FI_CLAIM : what == 2 ? FI_DISCARD : 0));
	} else {
		o = new_op(s, RECV, rnd(3) ? 300000 : some_len());
		o->tagged = rnd(2);
		r = o->tagged ? fi_trecv(s->ep, o->buf, o->len, NULL, FI_ADDR_UNSPEC, rnd(4), rnd(2) ? ~0ull : 0, o)
			      : fi_recv(s->ep, o->buf, o->len, NULL, FI_ADDR_UNSPEC, o);
	}
	if (r == 0)
		keep(o);
	else
		drop(o);
}
static void rma_some(struct slot *s)
{
	size_t n = some_len() % REGION, at = rnd(REGION - (uint32_t)n);
	fi_addr_t to = dest(s);
	struct op *o;
	ssize_t r;
	uint64_t base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)region : 0;
	uint64_t key = fi_mr_key(mr) + (rnd(50) == 0);	/* now and then a wrong one */

	if ((to == FI_ADDR_NOTAVAIL && ct_type != FI_EP_MSG) || !n)
		return;
	o = new_op(s, RMA, n);
	memset(o->buf, 1, n);
	r = rnd(2) ? fi_write(s->ep, o->buf, n, NULL, to, base + at, key, o)
		   : fi_read(s->ep, o->buf, n, NULL, to, base + at, key, o);
	if (r == 0)
		keep(o);
	else
		drop(o);
}
static void cancel_some(void)
{
	struct op *o = ops;

	for (uint32_t i = nops ? rnd(nops) : 0; o && i; i--)
		o = o->next;
	/* a send may be cancelled too: it goes on */
	if (o && is_open(o))
		OK(fi_cancel(&o->slot->ep->fid, o));
}
static void remove_some(struct slot *s)
{
	int i = rnd(SLOTS);

	if (s->av && s->to[i] != FI_ADDR_NOTAVAIL) {
		OK(fi_av_remove(s->av, &s->to[i], 1, 0));
		s->to[i] = FI_ADDR_NOTAVAIL;
	}
}
static void one_call(void)
{
	struct slot *s = &slots[rnd(SLOTS)];
	uint32_t what = rnd(100);

	calls++;
	if (!s->ep) {
		if (what < (ct_type == FI_EP_MSG ? 30 : 60))
			open_slot(s);
	} else if (ct_type == FI_EP_MSG && !s->live && what < 6) {
		close_slot(s);
	} else if (what < 2 && (s->live || ct_type != FI_EP_MSG)) {
		close_slot(s);
	} else if (what < 30) {
		send_some(s);
	} else if (what < 62) {
		recv_some(s);
	} else if (what < 70) {
		rma_some(s);
	} else if (what < 78) {
		cancel_some();
	} else if (what < 82) {
		remove_some(s);
	} else if (what < 84) {
		cuts += cut_connection(rnd(1000), rnd(2));
	} else if (what < 86) {
		usleep(rnd(2000));	/* the progress thread's turn */
	} else if (what == 86 && ct_type == FI_EP_MSG) {
		(void)fi_shutdown(s->ep, 0);
	} else {
		drain(rnd(30));
	}
	if (rnd(4) == 0)
		events();
	if (nops > OPS)		/* receives without a message */
		close_slot(s->ep ? s : ops->slot);
}
static void open_all(void)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED, .size = rnd(3) ? 4096 : 16 };
	struct fi_eq_attr a = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_info *h = ct_hints(&opt);

	h->domain_attr->mr_mode |= FI_MR_ENDPOINT;
	h->domain_attr->threading = rnd(2) ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
	h->domain_attr->data_progress = h->domain_attr->control_progress = rnd(2) ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
	OK(fi_getinfo(CT_VERSION, ct_node(&opt), "0", FI_SOURCE, h, &info));
	fi_freeinfo(h);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_cq_open(domain, &q, &cq, NULL));
	OK(fi_mr_reg(domain, region, REGION, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	if (ct_type == FI_EP_MSG) {
		OK(fi_eq_open(fabric, &a, &eq, NULL));
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq->fid, 0));
		OK(fi_listen(pep));
	}
}
static void close_all(void)
{
	closing = 1;
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].ep)
			close_slot(&slots[i]);
	EQ(nops, 0);
	for (int i = 0; i < SLOTS; i++)
		slots[i].name.n = 0;
	if (pep)
		OK(fi_close(&pep->fid));
	events();
	OK(fi_close(&mr->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	if (eq)
		OK(fi_close(&eq->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	pep = NULL;
	eq = NULL;
	closing = 0;
}
/* Parameters that lead other ways through the provider. */
static void some_parameters(void)
{
	static const char *const p[][2] = {
		{ "FI_TCP_MAX_SAVED_SIZE", "1024" }, { "FI_TCP_MAX_RX_SIZE", "1024" }, { "FI_TCP_MAX_SAVED", "2" },
		{ "FI_TCP_STAGING_SBUF_SIZE", "0" }, { "FI_TCP_PREFETCH_RBUF_SIZE", "2048" }, { "FI_TCP_NODELAY", "0" }, { "FI_TCP_ZEROCOPY_SIZE", "4000" },
		{ "FI_OFI_RXM_USE_SRX", "0" }, { "FI_OFI_RXM_USE_RNDV_WRITE", "1" }, { "FI_OFI_RXM_ENABLE_DIRECT_SEND", "0" },
	};

	for (size_t i = 0; i < sizeof p / sizeof *p; i++)
		if (rnd(3) == 0)
			setenv(p[i][0], p[i][1], 0);
}
static void stress(int rank)
{
	const char *s = getenv("FAULT_SEED");
	long most = fault_count("FAULT_ITERS", 4000);
	uint64_t first = s ? strtoull(s, NULL, 0) : (uint64_t)ct_ms() * 2654435761u + getpid();
	int fds = 0;
	size_t heap = 0, after = 0;

	(void)rank;
	setenv("FI_LOG_PROV", "core", 0);	/* lost connections cause hundreds of log lines */
	snprintf(ct_prefix, sizeof ct_prefix, "seed %llu: ", (unsigned long long)first);
	seed = first * 2 + 1;
	some_parameters();
	region = calloc(1, REGION);
	for (int round = 0; calls < most; round++) {
		open_all();
		for (int i = 0; i < ROUND && calls < most; i++)
			one_call();
		close_all();
		/* the first rounds fill caches */
		if (round == 1)
			ct_nap(50);	/* a thread of the library's may be about to end */
		after = heap_bytes();
		if (round == 1) {
			fds = open_fds();
			heap = after;
		} else if (round > 1) {
			for (int i = 0; i < 300 && open_fds() > fds; i++)
				ct_nap(10);
			if (open_fds() > fds) {
				each_fd(tell_fd, NULL);
				FAIL("%d descriptors are open after round %d, not %d", open_fds(), round, fds);
			}
		}
	}
	free(region);
	if (heap && after > heap + (1 << 20))
		FAIL("the heap grew from %zu to %zu bytes", heap, after);
	printf("     %s seed %llu: %ld calls, %ld posted, %ld entries, %ld of errors, %ld messages, %ld cuts\n", ct_prov,
	       (unsigned long long)first, calls, posted, good + bad, bad, received, cuts);
	fflush(stdout);
}

static const struct ct_test tests[] = {
	{ "random calls while connections are cut complete once each and leave nothing", stress, CT_SOLO },
};
CT_MAIN("stress", tests)
