/* fi_trigger(3): operations that wait for a counter, and deferred work queues. */
#include "ct.h"
#include <rdma/fi_atomic.h>
#include <rdma/fi_trigger.h>

static const uint64_t CAPS = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER;
#define MAX (1 << 20)

static struct fid_mr *mr;
static struct { uint64_t key, addr; } at;
static char *mem, *buf;		/* memory visible to the peer, and memory that is not */
static struct fid_cntr *cn[8];	/* counters of the test */

static void open_it(struct ct *c, uint64_t cq_flags, int cntr)
{
	struct ct_opt o = { .caps = CAPS, .cq_flags = cq_flags, .cntr = cntr };
	struct { uint64_t key, addr; } mine;

	ct_open(c, &o);
	mem = ct_alloc(c, MAX);
	buf = ct_alloc(c, MAX);
	OK(fi_mr_reg(c->domain, mem, MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 77, 0, &mr, NULL));
	mine.key = fi_mr_key(mr);
	mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)mem : 0;
	ct_swap(c, &mine, &at, sizeof mine);
	for (int i = 0; i < 8; i++)
		OK(fi_cntr_open(c->domain, NULL, &cn[i], NULL));
}
static void close_it(struct ct *c)
{
	ct_barrier(c);
	for (int i = 0; i < 8; i++)
		if (cn[i])
			OK(fi_close(&cn[i]->fid));
	OK(fi_close(&mr->fid));
	ct_close(c);
}
static void reaches(struct ct *c, struct fid_cntr *k, uint64_t n)
{
	while (fi_cntr_read(k) < n) {
		ct_progress(c);
		sched_yield();
	}
	EQ(fi_cntr_read(k), n);
}
/* The context of a triggered operation: when k is at least n. */
static struct fi_triggered_context2 tc[64];
static void *when(int i, struct fid_cntr *k, size_t n)
{
	memset(&tc[i], 0, sizeof tc[i]);
	tc[i].event_type = FI_TRIGGER_THRESHOLD;
	tc[i].trigger.threshold.cntr = k;
	tc[i].trigger.threshold.threshold = n;
	return &tc[i];
}
static long send_when(struct ct *c, void *ctx, const void *b, size_t n, uint64_t flags)
{
	struct iovec v = { (void *)b, n };
	void *d = ct_desc(b);
	struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer, .context = ctx };
	long r = fi_sendmsg(c->ep, &m, FI_TRIGGER | flags);

	/* neither is needed any more */
	memset(&v, 0xee, sizeof v);
	memset(&m, 0xee, sizeof m);
	return r;
}

static void by_add(int rank)
{
	struct ct c;

	open_it(&c, 0, 0);
	ct_fill(buf, 64, 1);
	if (rank == 0) {
		OK(send_when(&c, when(0, cn[0], 3), buf, 64, 0));
		OK(fi_cntr_add(cn[0], 2));
		NOTHING(&c, c.tx, 50);
		ct_barrier(&c);
		OK(fi_cntr_add(cn[0], 1));
		ct_sent(&c, &tc[0]);
		/* the condition is met already */
		OK(send_when(&c, when(1, cn[0], 3), buf, 64, 0));
		ct_sent(&c, &tc[1]);
	} else {
		OK(fi_recv(c.ep, mem, 64, ct_desc(mem), c.peer, CTX(0)));
		OK(fi_recv(c.ep, mem + 64, 64, ct_desc(mem), c.peer, CTX(1)));
		ct_idle(&c, 50);
		ERR(fi_cq_read(c.rx, tc, 1), FI_EAGAIN);
		ct_barrier(&c);
		ct_recvd(&c, CTX(0), 64);
		ct_recvd(&c, CTX(1), 64);
		CHECK(ct_same(mem, 64, 1) && ct_same(mem + 64, 64, 1));
	}
	close_it(&c);
}
/* An endpoint with the flags for all its calls; the calls have none of their own. */
static void by_alias(int rank)
{
	struct fid_ep *alias = NULL;
	struct ct c;

	if (getenv("FI_HOOK"))
		SKIP("a hook sees no flag in the call, and leaves the counter in its context alone");
	open_it(&c, 0, 0);
	ct_fill(buf, 64, 1);
	if (rank == 0) {
		OK(fi_ep_alias(c.ep, &alias, FI_TRANSMIT | FI_TRIGGER));
		OK(fi_send(alias, buf, 64, ct_desc(buf), c.peer, when(0, cn[0], 1)));
		NOTHING(&c, c.tx, 50);
		/* it has no context to name a counter with */
		OK(fi_inject(alias, buf, 1, c.peer));
		ct_barrier(&c);
		OK(fi_cntr_add(cn[0], 1));
		ct_sent(&c, &tc[0]);
		OK(fi_close(&alias->fid));
	} else {
		OK(fi_recv(c.ep, mem, 64, ct_desc(mem), c.peer, CTX(0)));
		OK(fi_recv(c.ep, mem + 64, 64, ct_desc(mem), c.peer, CTX(1)));
		ct_recvd(&c, CTX(0), 1);
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), 64);
		CHECK(ct_same(mem + 64, 64, 1));
	}
	close_it(&c);
}
static void by_set(int rank)
{
	struct ct c;

	open_it(&c, 0, 0);
	if (rank == 0) {
		OK(send_when(&c, when(0, cn[0], 100), buf, 1, 0));
		OK(fi_cntr_set(cn[0], 99));
		/* failures do not count towards the threshold of an operation */
		OK(fi_cntr_adderr(cn[0], 10));
		NOTHING(&c, c.tx, 50);
		OK(fi_cntr_set(cn[0], 1000));
		ct_sent(&c, &tc[0]);
	} else {
		OK(fi_recv(c.ep, mem, 1, ct_desc(mem), c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 1);
	}
	close_it(&c);
}
/* Every transfer call that takes flags, behind a receive. */
static void behind_a_receive(int rank)
{
	struct ct c;
	struct iovec v, w;
	struct fi_rma_iov r = { at.addr, 8, at.key };
	struct fi_cq_tagged_entry e;
	struct fi_ioc ioc, res, cmp;
	struct fi_rma_ioc rioc;

	open_it(&c, 0, 1);
	r.key = at.key;
	r.addr = at.addr;
	if (rank == 0) {
		/* rank 1 sends one message, which sets off all of it, in this order */
		struct fi_msg_tagged t = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .tag = 5 };
		struct fi_msg_rma m = { .msg_iov = &w, .iov_count = 1, .addr = c.peer, .rma_iov = &r, .rma_iov_count = 1 };
		struct fi_msg_atomic a = { .msg_iov = &ioc, .iov_count = 1, .addr = c.peer, .rma_iov = &rioc,
					   .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_SUM };
		void *d = ct_desc(buf);

		OK(fi_recv(c.ep, mem + 4096, 1, ct_desc(mem), c.peer, CTX(0)));
		((uint64_t *)buf)[0] = 1000;
		((uint64_t *)buf)[1] = 11;
		((uint64_t *)buf)[7] = 1011;
		/* 0: write 1000; 1: add 11; 2: fetch and add 11; 3: swap if 1011, which it is not; 4: read; 5: message */
		v = (struct iovec){ buf, 64 };
		w = (struct iovec){ buf, 8 };
		m.desc = t.desc = a.desc = &d;
		m.context = when(0, c.rxc, 1);
		OK(fi_writemsg(c.ep, &m, FI_TRIGGER | FI_DELIVERY_COMPLETE));
		ct_idle(&c, 20);
		ioc = (struct fi_ioc){ buf + 8, 1 };
		res = (struct fi_ioc){ buf + 128, 1 };
		cmp = (struct fi_ioc){ buf + 56, 1 };
		rioc = (struct fi_rma_ioc){ at.addr, 1, at.key };
		a.context = when(1, c.rxc, 1);
		OK(fi_atomicmsg(c.ep, &a, FI_TRIGGER));
		a.context = when(2, c.rxc, 1);
		OK(fi_fetch_atomicmsg(c.ep, &a, &res, &d, 1, FI_TRIGGER));
		a.context = when(3, c.rxc, 1);
		a.op = FI_CSWAP;
		res.addr = buf + 136;
		OK(fi_compare_atomicmsg(c.ep, &a, &cmp, &d, 1, &res, &d, 1, FI_TRIGGER));
		w.iov_base = buf + 144;
		r.addr = at.addr + 64;
		m.context = when(4, c.rxc, 1);
		OK(fi_readmsg(c.ep, &m, FI_TRIGGER));
		t.context = when(5, c.rxc, 1);
		OK(fi_tsendmsg(c.ep, &t, FI_TRIGGER));
		/* nothing of a call is needed after it */
		memset(&v, 0, sizeof v), memset(&w, 0, sizeof w), memset(&r, 0, sizeof r);
		memset(&ioc, 0, sizeof ioc), memset(&rioc, 0, sizeof rioc), memset(&res, 0, sizeof res), memset(&cmp, 0, sizeof cmp);
		NOTHING(&c, c.tx, 50);
		ct_barrier(&c);
		ct_recvd(&c, CTX(0), 1);
		for (int i = 0, seen = 0; i < 6; i++) {
			ct_next(&c, c.tx, &e, NULL, NULL);
			int n = (struct fi_triggered_context2 *)e.op_context - tc;
			CHECK(n >= 0 && n < 6 && !(seen & 1 << n));
			seen |= 1 << n;
		}
		EQ(((uint64_t *)buf)[16], 1011);
		EQ(((uint64_t *)buf)[17], 1022);
		EQ(((uint64_t *)buf)[18], 4321);
	} else {
		((uint64_t *)mem)[8] = 4321;
		OK(fi_trecv(c.ep, buf, 64, ct_desc(buf), c.peer, 5, 0, CTX(1)));
		ct_barrier(&c);
		EQ(*(uint64_t *)mem, 0);
		POST(&c, fi_inject(c.ep, "x", 1, c.peer));
		ct_recvd(&c, CTX(1), 64);
		EQ(((uint64_t *)buf)[0], 1000);
	}
	close_it(&c);
}
/* A receive posted at a counter's value takes a waiting message. */
static void receives(int rank)
{
	struct ct c;
	struct iovec v;
	void *d;
	struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1 };
	struct fi_msg_tagged t = { .msg_iov = &v, .desc = &d, .iov_count = 1, .tag = 3 };

	open_it(&c, 0, 0);
	d = ct_desc(mem);
	m.addr = t.addr = c.peer;
	if (rank == 0) {
		v = (struct iovec){ mem, 8 };
		m.context = when(0, cn[0], 1);
		OK(fi_recvmsg(c.ep, &m, FI_TRIGGER));
		v.iov_base = mem + 8;
		t.context = when(1, cn[0], 2);
		OK(fi_trecvmsg(c.ep, &t, FI_TRIGGER));
		ct_barrier(&c);
		NOTHING(&c, c.rx, 50);
		OK(fi_cntr_add(cn[0], 1));
		ct_recvd(&c, &tc[0], 8);
		NOTHING(&c, c.rx, 20);
		OK(fi_cntr_add(cn[0], 1));
		ct_recvd(&c, &tc[1], 8);
		CHECK(ct_same(mem, 8, 1) && ct_same(mem + 8, 8, 2));
	} else {
		ct_fill(buf, 8, 1);
		ct_fill(buf + 8, 8, 2);
		POST(&c, fi_inject(c.ep, buf, 8, c.peer));
		POST(&c, fi_tinject(c.ep, buf + 8, 8, c.peer, 3));
		ct_barrier(&c);
	}
	close_it(&c);
}
static void in_order(int rank)
{
	static const size_t at_value[] = { 5, 3, 4, 3, 9, 1, 5 };
	static const int order[] = { 5, 1, 3, 2, 0, 6, 4 };
	struct ct c;
	enum { N = sizeof order / sizeof *order };

	open_it(&c, 0, 0);
	for (int i = 0; i < N; i++)
		buf[i] = i;
	if (rank == 0) {
		for (int i = 0; i < N; i++)
			OK(send_when(&c, when(i, cn[0], at_value[i]), buf + i, 1, 0));
		OK(fi_cntr_add(cn[0], 20));
		for (int i = 0; i < N; i++)
			ct_sent(&c, &tc[order[i]]);
	} else {
		for (int i = 0; i < N; i++)
			OK(fi_recv(c.ep, mem + i, 1, ct_desc(mem), c.peer, CTX(i)));
		for (int i = 0; i < N; i++) {
			ct_recvd(&c, CTX(i), 1);
			EQ(mem[i], order[i]);
		}
	}
	close_it(&c);
}
static void injected(int rank)
{
	struct ct c;
	char b[16];

	open_it(&c, FI_SELECTIVE_COMPLETION, 1);
	ct_fill(b, sizeof b, 7);
	if (rank == 0) {
		OK(send_when(&c, when(0, cn[0], 1), b, sizeof b, FI_INJECT));
		memset(b, 0, sizeof b);	/* ours again */
		OK(fi_cntr_add(cn[0], 1));
		reaches(&c, c.txc, 1);
	} else {
		OK(fi_recv(c.ep, mem, 16, ct_desc(mem), c.peer, CTX(0)));
		reaches(&c, c.rxc, 1);
		CHECK(ct_same(mem, 16, 7));
	}
	close_it(&c);
}
static void taken_back(int rank)
{
	struct ct c;
	struct fi_cq_err_entry e;
	struct fi_cq_tagged_entry t;

	open_it(&c, 0, 0);
	if (rank == 0) {
		OK(send_when(&c, when(0, cn[0], 1), buf, 1, 0));
		ERR(fi_close(&cn[0]->fid), FI_EBUSY);
		OK(fi_cancel(&c.ep->fid, &tc[0]));
		EQ(ct_next(&c, c.tx, &t, NULL, &e), -FI_EAVAIL);
		EQ(e.err, FI_ECANCELED);
		CHECK(e.op_context == &tc[0]);
		OK(fi_cntr_add(cn[0], 1));
		NOTHING(&c, c.tx, 20);
		/* closing the endpoint lets go of the counter */
		OK(send_when(&c, when(1, cn[1], 1), buf, 1, 0));
		ERR(fi_close(&cn[1]->fid), FI_EBUSY);
	}
	ct_barrier(&c);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	close_it(&c);
}
static void refused(int rank)
{
	struct ct c, d = { 0 };
	struct fid_cntr *other;

	(void)rank;
	open_it(&c, 0, 0);
	ERR(send_when(&c, NULL, buf, 1, 0), FI_EINVAL);
	ERR(send_when(&c, when(0, NULL, 1), buf, 1, 0), FI_EINVAL);
	when(0, cn[0], 1);
	tc[0].event_type = FI_TRIGGER_XPU;
	ERR(send_when(&c, &tc[0], buf, 1, 0), FI_ENOSYS);
	/* a counter of another domain */
	OK(fi_domain(c.fabric, c.info, &d.domain, NULL));
	OK(fi_cntr_open(d.domain, NULL, &other, NULL));
	ERR(send_when(&c, when(0, other, 1), buf, 1, 0), FI_EINVAL);
	OK(fi_close(&other->fid));
	OK(fi_close(&d.domain->fid));
	close_it(&c);
	/* an endpoint that was not opened for it */
	ct_open(&c, NULL);
	mem = buf = ct_alloc(&c, 64);
	OK(fi_cntr_open(c.domain, NULL, &other, NULL));
	ERR(send_when(&c, when(0, other, 0), buf, 1, 0), FI_EBADFLAGS);
	OK(fi_close(&other->fid));
	ERR(fi_control(&c.domain->fid, FI_FLUSH_WORK, NULL), FI_ENOSYS);
	ct_done(&c);
}
/* FI_TRIGGER is there only at request. */
static void only_if_asked(int rank)
{
	struct ct_opt o = { .caps = CAPS };
	struct fi_info *i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);

	(void)rank;
	CHECK(i->caps & FI_TRIGGER);
	fi_freeinfo(i);
	o.caps = FI_MSG;
	i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	CHECK(!(i->caps & FI_TRIGGER));
	fi_freeinfo(i);
}

/* ---- deferred work --------------------------------------------------- */

static struct fi_deferred_work *work(int i, struct fid_cntr *k, uint64_t n, struct fid_cntr *done, int type, void *op)
{
	static struct fi_deferred_work w[16];

	memset(&w[i], 0, sizeof w[i]);
	w[i].triggering_cntr = k;
	w[i].threshold = n;
	w[i].completion_cntr = done;
	w[i].op_type = type;
	w[i].op.msg = op;
	return &w[i];
}
static int queue(struct ct *c, struct fi_deferred_work *w)
{
	return fi_control(&c->domain->fid, FI_QUEUE_WORK, w);
}

/* Each kind of transfer waits for the one before; none shows at the endpoint. */
static void every_kind(int rank)
{
	struct ct c;
	struct iovec v[8];
	void *d;
	struct fi_rma_iov r = { 0, 8, 0 };
	struct fi_rma_ioc rc = { 0, 1, 0 };
	struct fi_ioc src, res[2], cmp;
	struct fi_op_msg snd = { 0 }, rcv = { 0 };
	struct fi_op_tagged tsnd = { 0 }, trcv = { 0 };
	struct fi_op_rma wr = { 0 }, rd = { 0 };
	struct fi_op_atomic at_ = { 0 };
	struct fi_op_fetch_atomic ft = { 0 };
	struct fi_op_compare_atomic cp = { 0 };

	open_it(&c, 0, 1);
	d = ct_desc(buf);
	if (rank == 0) {
		r.addr = rc.addr = at.addr;
		r.key = rc.key = at.key;
		((uint64_t *)buf)[0] = 500;
		((uint64_t *)buf)[1] = 20;
		((uint64_t *)buf)[2] = 540;
		((uint64_t *)buf)[3] = 9;
		v[0] = (struct iovec){ buf, 8 };
		v[1] = (struct iovec){ buf + 256, 8 };
		src = (struct fi_ioc){ buf + 8, 1 };
		cmp = (struct fi_ioc){ buf + 16, 1 };
		res[0] = (struct fi_ioc){ buf + 264, 1 };
		res[1] = (struct fi_ioc){ buf + 272, 1 };
		wr = (struct fi_op_rma){ c.ep, { &v[0], &d, 1, c.peer, &r, 1, NULL, 0 }, FI_DELIVERY_COMPLETE };
		at_ = (struct fi_op_atomic){ c.ep, { &src, &d, 1, c.peer, &rc, 1, FI_UINT64, FI_SUM, NULL, 0 }, 0 };
		ft = (struct fi_op_fetch_atomic){ c.ep, at_.msg, { &res[0], &d, 1 }, 0 };
		cp = (struct fi_op_compare_atomic){ c.ep, at_.msg, { &res[1], &d, 1 }, { &cmp, &d, 1 }, 0 };
		cp.msg.op = FI_CSWAP;	/* 540 becomes 20 */
		rd = (struct fi_op_rma){ c.ep, { &v[1], &d, 1, c.peer, &r, 1, NULL, 0 }, 0 };
		snd = (struct fi_op_msg){ c.ep, { &v[0], &d, 1, c.peer, NULL, 0 }, 0 };
		tsnd = (struct fi_op_tagged){ c.ep, { &v[0], &d, 1, c.peer, 9, 0, NULL, 0 }, 0 };
		/* in the wrong order: only the thresholds count */
		OK(queue(&c, work(6, cn[0], 7, cn[0], FI_OP_TSEND, &tsnd)));
		OK(queue(&c, work(5, cn[0], 6, cn[0], FI_OP_SEND, &snd)));
		OK(queue(&c, work(4, cn[0], 5, cn[0], FI_OP_READ, &rd)));
		OK(queue(&c, work(3, cn[0], 4, cn[0], FI_OP_COMPARE_ATOMIC, &cp)));
		OK(queue(&c, work(2, cn[0], 3, cn[0], FI_OP_FETCH_ATOMIC, &ft)));
		OK(queue(&c, work(1, cn[0], 2, cn[0], FI_OP_ATOMIC, &at_)));
		OK(queue(&c, work(0, cn[0], 1, cn[0], FI_OP_WRITE, &wr)));
		ct_idle(&c, 30);
		EQ(fi_cntr_read(cn[0]), 0);
		ct_barrier(&c);
		OK(fi_cntr_add(cn[0], 1));
		reaches(&c, cn[0], 8);
		EQ(((uint64_t *)buf)[33], 520);
		EQ(((uint64_t *)buf)[34], 540);
		EQ(((uint64_t *)buf)[32], 20);
		NOTHING(&c, c.tx, 20);
		EQ(fi_cntr_read(c.txc), 0);
	} else {
		v[0] = (struct iovec){ buf, 8 };
		v[1] = (struct iovec){ buf + 8, 8 };
		rcv = (struct fi_op_msg){ c.ep, { &v[0], &d, 1, c.peer, NULL, 0 }, 0 };
		trcv = (struct fi_op_tagged){ c.ep, { &v[1], &d, 1, c.peer, 9, 0, NULL, 0 }, 0 };
		OK(queue(&c, work(0, cn[0], 1, cn[1], FI_OP_RECV, &rcv)));
		OK(queue(&c, work(1, cn[0], 0, cn[1], FI_OP_TRECV, &trcv)));
		OK(fi_cntr_add(cn[0], 1));
		ct_barrier(&c);
		reaches(&c, cn[1], 2);
		EQ(((uint64_t *)buf)[0], 500);
		EQ(((uint64_t *)buf)[1], 500);
		NOTHING(&c, c.rx, 20);
		EQ(fi_cntr_read(c.rxc), 0);
	}
	close_it(&c);
}
static void reported(int rank)
{
	struct ct c;
	struct iovec v;
	void *d;
	struct fi_op_msg op;

	open_it(&c, 0, 1);
	d = ct_desc(buf);
	v = (struct iovec){ buf, 8 };
	op = (struct fi_op_msg){ c.ep, { &v, &d, 1, c.peer, CTX(3), 0 }, FI_COMPLETION };
	OK(queue(&c, work(0, cn[0], 1, cn[1], rank ? FI_OP_RECV : FI_OP_SEND, &op)));
	ct_barrier(&c);
	OK(fi_cntr_add(cn[0], 1));
	if (rank == 0)
		ct_sent(&c, CTX(3));
	else
		ct_recvd(&c, CTX(3), 8);
	reaches(&c, cn[1], 1);
	reaches(&c, rank ? c.rxc : c.txc, 1);
	/* the endpoint's own counter counts once when it is named as well */
	OK(queue(&c, work(0, cn[0], 1, rank ? c.rxc : c.txc, rank ? FI_OP_RECV : FI_OP_SEND, &op)));
	if (rank == 0)
		ct_sent(&c, CTX(3));
	else
		ct_recvd(&c, CTX(3), 8);
	reaches(&c, rank ? c.rxc : c.txc, 2);
	close_it(&c);
}
static void counters(int rank)
{
	struct ct c;
	struct fi_op_cntr set, add;

	(void)rank;
	open_it(&c, 0, 0);
	set = (struct fi_op_cntr){ cn[2], 50 };
	add = (struct fi_op_cntr){ cn[2], 7 };
	ERR(queue(&c, work(0, cn[0], 1, cn[1], FI_OP_CNTR_SET, &set)), FI_EINVAL);
	OK(queue(&c, work(0, cn[0], 1, NULL, FI_OP_CNTR_SET, &set)));
	OK(queue(&c, work(1, cn[0], 3, NULL, FI_OP_CNTR_ADD, &add)));
	EQ(fi_cntr_read(cn[2]), 0);
	OK(fi_cntr_add(cn[0], 1));
	reaches(&c, cn[2], 50);
	/* failures count: one success, two failures */
	OK(fi_cntr_adderr(cn[0], 1));
	reaches(&c, cn[2], 50);
	OK(fi_cntr_adderr(cn[0], 1));
	reaches(&c, cn[2], 57);
	close_it(&c);
}
/* Each step sets off the next one: none is done inside another. */
static void long_chain(int rank)
{
	enum { N = 10000 };
	struct ct c;
	static struct fi_deferred_work w[N];
	static struct fi_op_cntr op;

	(void)rank;
	open_it(&c, 0, 0);
	op = (struct fi_op_cntr){ cn[0], 1 };
	for (int i = N - 1; i >= 0; i--) {
		w[i].triggering_cntr = cn[0];
		w[i].threshold = i + 1;
		w[i].op_type = FI_OP_CNTR_ADD;
		w[i].op.cntr = &op;
		OK(queue(&c, &w[i]));
	}
	OK(fi_cntr_add(cn[0], 1));
	reaches(&c, cn[0], N + 1);
	close_it(&c);
}
/* The ranks send each other one message in turn, which only their counters know. */
static void back_and_forth(int rank)
{
	enum { N = 500 };
	struct ct c;
	static struct fi_deferred_work w[N];
	struct iovec v[2];
	void *d;
	struct fi_op_tagged snd, rcv;

	open_it(&c, 0, 0);
	d = ct_desc(buf);
	v[0] = (struct iovec){ buf, 64 };
	v[1] = (struct iovec){ buf + 64, 64 };
	snd = (struct fi_op_tagged){ c.ep, { &v[0], &d, 1, c.peer, 1, 0, NULL, 0 }, 0 };
	rcv = (struct fi_op_tagged){ c.ep, { &v[1], &d, 1, c.peer, 1, 0, NULL, 0 }, 0 };
	for (int i = 0; i < N; i++) {
		OK(queue(&c, work(0, cn[7], 0, cn[0], FI_OP_TRECV, &rcv)));
		w[i].triggering_cntr = cn[0];
		w[i].threshold = i + 1;
		w[i].completion_cntr = cn[1];
		w[i].op_type = FI_OP_TSEND;
		w[i].op.tagged = &snd;
		OK(queue(&c, &w[i]));
	}
	ct_barrier(&c);
	if (rank == 0)
		OK(fi_cntr_add(cn[0], 1));	/* as if one had come: N messages go, N come */
	reaches(&c, cn[1], rank ? N : N);
	reaches(&c, cn[0], rank ? N : N + 1);
	NOTHING(&c, c.rx, 1);
	close_it(&c);
}
static void cancelled(int rank)
{
	struct ct c;
	struct fi_op_cntr op;
	struct fi_deferred_work *a, *b, *d;

	(void)rank;
	open_it(&c, 0, 0);
	op = (struct fi_op_cntr){ cn[2], 1 };
	a = work(0, cn[0], 1, NULL, FI_OP_CNTR_ADD, &op);
	b = work(1, cn[0], 1, NULL, FI_OP_CNTR_ADD, &op);
	d = work(2, cn[1], 1, NULL, FI_OP_CNTR_ADD, &op);
	OK(queue(&c, a));
	OK(queue(&c, b));
	OK(queue(&c, d));
	ERR(fi_close(&cn[0]->fid), FI_EBUSY);
	ERR(fi_close(&cn[2]->fid), FI_EBUSY);
	OK(fi_control(&c.domain->fid, FI_CANCEL_WORK, a));
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, a), FI_ENOENT);
	OK(fi_cntr_add(cn[0], 1));
	reaches(&c, cn[2], 1);
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, b), FI_ENOENT);
	/* of one counter, of all */
	a->threshold = 5;
	OK(queue(&c, a));
	OK(fi_control(&c.domain->fid, FI_FLUSH_WORK, a));
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, a), FI_ENOENT);
	OK(queue(&c, a));
	OK(fi_control(&c.domain->fid, FI_FLUSH_WORK, cn[0]));
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, a), FI_ENOENT);
	OK(queue(&c, a));
	OK(fi_control(&c.domain->fid, FI_FLUSH_WORK, NULL));
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, a), FI_ENOENT);
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, d), FI_ENOENT);
	OK(fi_cntr_add(cn[1], 1));
	reaches(&c, cn[2], 1);
	close_it(&c);
}
static void bad_work(int rank)
{
	struct ct c;
	struct iovec v;
	struct fi_op_msg op;
	struct fi_op_cntr co;

	(void)rank;
	open_it(&c, 0, 0);
	v = (struct iovec){ buf, 8 };
	op = (struct fi_op_msg){ c.ep, { &v, NULL, 1, c.peer, NULL, 0 }, 0 };
	co = (struct fi_op_cntr){ cn[2], 1 };
	ERR(fi_control(&c.domain->fid, FI_QUEUE_WORK, NULL), FI_EINVAL);
	ERR(fi_control(&c.domain->fid, FI_CANCEL_WORK, NULL), FI_EINVAL);
	ERR(queue(&c, work(0, NULL, 1, NULL, FI_OP_SEND, &op)), FI_EINVAL);
	ERR(queue(&c, work(0, cn[0], 1, NULL, FI_OP_SEND, NULL)), FI_EINVAL);
	ERR(queue(&c, work(0, cn[0], 1, NULL, FI_OP_CNTR_ADD, NULL)), FI_EINVAL);
	ERR(queue(&c, work(0, cn[0], 1, NULL, 99, &op)), FI_ENOSYS);
	op.ep = (void *)&co;	/* no endpoint of the domain's */
	ERR(queue(&c, work(0, cn[0], 1, NULL, FI_OP_SEND, &op)), FI_EINVAL);
	op.ep = c.ep;
	op.msg.iov_count = 1000;
	ERR(queue(&c, work(0, cn[0], 1, NULL, FI_OP_SEND, &op)), FI_EINVAL);
	OK(fi_close(&cn[0]->fid));
	cn[0] = NULL;
	close_it(&c);
}
/* Work that cannot be done is counted as failed. */
static void failed_work(int rank)
{
	struct ct c;
	struct iovec v;
	void *d;
	struct fi_rma_iov r;
	struct fi_op_rma op;

	open_it(&c, 0, 0);
	if (rank == 0) {
		d = ct_desc(buf);
		v = (struct iovec){ buf, 8 };
		r = (struct fi_rma_iov){ at.addr, 8, at.key + 1000 };
		op = (struct fi_op_rma){ c.ep, { &v, &d, 1, c.peer, &r, 1, NULL, 0 }, 0 };
		OK(queue(&c, work(0, cn[0], 0, cn[1], FI_OP_READ, &op)));
		while (fi_cntr_readerr(cn[1]) == 0)
			ct_progress(&c);
		EQ(fi_cntr_readerr(cn[1]), 1);
		EQ(fi_cntr_read(cn[1]), 0);
		NOTHING(&c, c.tx, 20);
	}
	close_it(&c);
}
/* A thread that sleeps until a counter has its value needs no other thread for progress. */
static void asleep(int rank)
{
	struct ct c;
	struct iovec v;
	void *d;
	struct fi_op_msg op;

	open_it(&c, 0, 1);
	d = ct_desc(buf);
	v = (struct iovec){ buf, 8 };
	op = (struct fi_op_msg){ c.ep, { &v, &d, 1, c.peer, NULL, 0 }, 0 };
	if (rank == 0) {
		/* answers the message that comes, and then the counter is set off */
		OK(fi_recv(c.ep, mem, 8, ct_desc(mem), c.peer, CTX(0)));
		OK(queue(&c, work(0, c.rxc, 1, cn[1], FI_OP_SEND, &op)));
		ct_barrier(&c);
		OK(fi_cntr_wait(cn[1], 1, -1));
	} else {
		OK(fi_recv(c.ep, mem, 8, ct_desc(mem), c.peer, CTX(0)));
		ct_barrier(&c);
		ct_nap(100);
		POST(&c, fi_inject(c.ep, buf, 8, c.peer));
		OK(fi_cntr_wait(c.rxc, 1, -1));
	}
	close_it(&c);
}

static const struct ct_test tests[] = {
	{ "FI_TRIGGER is offered only on request", only_if_asked, CT_SOLO },
	{ "a send waits until fi_cntr_add reaches its threshold", by_add, 0 },
	{ "calls on an alias with FI_TRIGGER wait, except injected operations", by_alias, 0 },
	{ "a send waits until fi_cntr_set passes its threshold, not counting failures", by_set, 0 },
	{ "one receive triggers every kind of transfer", behind_a_receive, 0 },
	{ "receives are posted when their counter reaches its threshold", receives, 0 },
	{ "operations start in the order of their thresholds", in_order, 0 },
	{ "the buffer of an injected operation is reusable immediately", injected, 0 },
	{ "fi_cancel and fi_close cancel waiting operations", taken_back, 0 },
	{ "invalid triggers are refused", refused, 0 },
	{ "deferred work of every kind in sequence is reported only by its counters", every_kind, 0 },
	{ "deferred work with FI_COMPLETION is reported at the endpoint", reported, 0 },
	{ "deferred work sets and adds to counters, and counts failures", counters, 0 },
	{ "a chain of ten thousand triggered steps ends", long_chain, 0 },
	{ "five hundred messages are exchanged without calls of the application", back_and_forth, 0 },
	{ "deferred work is cancelled and flushed", cancelled, 0 },
	{ "invalid deferred work is refused", bad_work, 0 },
	{ "deferred work that fails is counted as failed", failed_work, 0 },
	{ "work triggered by another counter wakes a waiter", asleep, 0 },
};
CT_MAIN("trigger", tests)
