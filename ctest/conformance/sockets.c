/*
 * Requests of programs written for the sockets provider of upstream libfabric: fi_sockets(7).
 */
#include "ct.h"
#include <rdma/fi_atomic.h>
#include <rdma/fi_trigger.h>

/* All that fi_info of the original's 1.17 shows of its order. */
#define ORDER (FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS | FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_WAS | FI_ORDER_SAR | FI_ORDER_SAW | FI_ORDER_SAS)
#define RMA_ORDER (FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW)
#define ATOMIC_ORDER (FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW)

/* Segments of a message, of the memory of either side, and of a region. */
enum { SEGMENTS = 8, GAP = 40, BIG = 1 << 20 };

static void sockets_only(void)
{
	if (strcmp(ct_prov, "sockets"))
		SKIP("an attribute of sockets");
}
/* The info that these hints get, by themselves and by all attributes of the answer. */
static struct fi_info *asked(struct fi_info *h)
{
	struct fi_info *i = NULL, *again = NULL;

	OK(fi_getinfo(CT_VERSION, ct_node(&(struct ct_opt){ 0 }), "0", FI_SOURCE, h, &i));
	fi_freeinfo(h);
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, i, &again));
	fi_freeinfo(again);
	return i;
}
static void attributes(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_TRIGGER | FI_FENCE | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX |
		(ct_type == FI_EP_DGRAM ? 0 : FI_RMA | FI_ATOMIC), .msg_order = ORDER | RMA_ORDER | ATOMIC_ORDER };
	struct fi_info *h, *i;

	(void)rank;
	sockets_only();
	h = ct_hints(&o);
	h->ep_attr->protocol = FI_PROTO_SOCK_TCP;
	h->ep_attr->protocol_version = 2;
	h->ep_attr->max_order_raw_size = h->ep_attr->max_order_war_size = h->ep_attr->max_order_waw_size = 1 << 20;
	h->domain_attr->cq_cnt = 32;
	h->domain_attr->ep_cnt = h->domain_attr->cntr_cnt = h->domain_attr->max_ep_stx_ctx = h->domain_attr->max_ep_srx_ctx = 128;
	h->domain_attr->mr_cnt = 65535;
	h->domain_attr->cq_data_size = 8;
	h->domain_attr->max_err_data = 256;
	h->tx_attr->inject_size = 255;
	h->tx_attr->iov_limit = h->rx_attr->iov_limit = h->domain_attr->mr_iov_limit = SEGMENTS;
	h->tx_attr->rma_iov_limit = ct_type == FI_EP_DGRAM ? 0 : SEGMENTS;
	i = asked(h);
	EQ(i->tx_attr->msg_order, ORDER | RMA_ORDER | ATOMIC_ORDER);
	fi_freeinfo(i);
}
/* Costly features are off without a request. */
static void order_unasked(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct fi_info *i;

	(void)rank;
	sockets_only();
	i = asked(ct_hints(&o));
	EQ(i->tx_attr->msg_order & (FI_ORDER_WAR | FI_ORDER_SAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR), 0);
	fi_freeinfo(i);
}
/*
 * fi_getinfo(3): FI_SOURCE and FI_DIRECTED_RECV "apply to connectionless endpoints only": a connected one takes the words, has no
 * source to name, and receives from its peer.
 */
static void source_of_connection(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV | FI_NAMED_RX_CTX };
	struct ct c;
	char *b;

	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 64);
	for (int tagged = 0; tagged < 2; tagged++) {
		struct fi_cq_tagged_entry e;
		fi_addr_t from = 0;

		if (rank == 0) {
			POST(&c, tagged ? fi_tsend(c.ep, b, 8, ct_desc(b), c.peer, 3, CTX(0)) : fi_send(c.ep, b, 8, ct_desc(b), c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			POST(&c, tagged ? fi_trecv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, 3, 0, CTX(1)) :
				fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
			CHECK(e.op_context == CTX(1) && e.len == 8);
			CHECK(from == FI_ADDR_NOTAVAIL);
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
/* A domain with one requested shared transmit context; its endpoints name it only at their opening. */
static void shared_tx(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *h;
	struct fid_stx *stx;
	struct ct c = { .o = o };
	struct ct_name mine, theirs;
	char *b;

	sockets_only();
	h = ct_hints(&o);
	h->domain_attr->max_ep_stx_ctx = 1;
	c.info = asked(h);
	CHECK(c.info->domain_attr->max_ep_stx_ctx >= 1);
	c.info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	ct_open_in(&c, NULL);
	OK(fi_stx_context(c.domain, c.info->tx_attr, &stx, NULL));
	ct_open_ep(&c, c.info);
	OK(fi_ep_bind(c.ep, &stx->fid, 0));
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	b = ct_alloc(&c, 64);
	POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
	POST(&c, fi_send(c.ep, b, 8, ct_desc(b), c.peer, CTX(0)));
	ct_sent(&c, CTX(0));
	ct_recvd(&c, CTX(1), 8);
	ct_barrier(&c);
	(void)rank;
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&stx->fid));
	ct_close(&c);
}

/*
 * fi_sockets(7): "FI_EP_DGRAM endpoints are those of FI_EP_RDM without access to memory": tags, sources, remote CQ data, messages of
 * any size, buffers for many messages.
 */
static void datagrams(int rank)
{
	enum { LEN = 1 << 20, N = 50 };
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_FENCE };
	struct fi_cq_tagged_entry e;
	fi_addr_t from = FI_ADDR_NOTAVAIL;
	struct ct c;
	char *b;

	sockets_only();
	ct_open(&c, &o);
	EQ(c.info->ep_attr->type, FI_EP_DGRAM);
	CHECK(c.info->ep_attr->max_msg_size >= LEN && c.info->domain_attr->cq_data_size == 8);
	b = ct_alloc(&c, LEN);
	if (rank == 0) {
		/* the second one first, by its tag; from the peer */
		POST(&c, fi_trecv(c.ep, b, LEN, ct_desc(b), c.peer, 8, 0, CTX(1)));
		EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
		CHECK(e.op_context == CTX(1) && e.tag == 8 && e.len == LEN);
		CHECK(from == c.peer && ct_same(b, LEN, 2));
		POST(&c, fi_trecv(c.ep, b, LEN, ct_desc(b), c.peer, 7, 0, CTX(2)));
		EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
		CHECK(e.op_context == CTX(2) && e.tag == 7 && e.len == 100 && e.flags & FI_REMOTE_CQ_DATA && e.data == 0x123456789a);
		CHECK(ct_same(b, 100, 1));
		/* one buffer for many */
		struct iovec v = { b, LEN };
		void *d = ct_desc(b);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(3) };
		POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV));
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
			CHECK(e.op_context == CTX(3) && e.len == (size_t)(i + 1));
			CHECK(ct_same(e.buf, i + 1, i));
		}
	} else {
		ct_fill(b, 100, 1);
		POST(&c, fi_tsenddata(c.ep, b, 100, ct_desc(b), 0x123456789a, c.peer, 7, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_fill(b, LEN, 2);
		POST(&c, fi_tsend(c.ep, b, LEN, ct_desc(b), c.peer, 8, CTX(2)));
		ct_sent(&c, CTX(2));
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			ct_fill(b, i + 1, i);
			POST(&c, fi_send(c.ep, b, i + 1, ct_desc(b), c.peer, CTX(3)));
			ct_sent(&c, CTX(3));
		}
	}
	ct_done(&c);
}
/* fi_trigger(3): a message that is sent when a counter has reached its threshold. */
static void triggered(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TRIGGER, .mode = FI_CONTEXT2, .cntr = 1 };
	struct ct c;
	char *b;

	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 64);
	if (rank == 0) {
		struct fi_triggered_context2 t = { .event_type = FI_TRIGGER_THRESHOLD,
			.trigger.threshold = { .cntr = c.rxc, .threshold = 1 } };
		struct iovec v[SEGMENTS + 1];
		void *d[SEGMENTS + 1];
		struct fi_msg m = { .msg_iov = v, .desc = d, .iov_count = SEGMENTS, .addr = c.peer, .context = &t };
		char x;

		for (int i = 0; i <= SEGMENTS; i++) {
			v[i] = (struct iovec){ b + i, 1 };
			d[i] = ct_desc(b);
		}
		m.iov_count++;
		ERR(fi_sendmsg(c.ep, &m, FI_TRIGGER | FI_COMPLETION), FI_EINVAL);
		m.iov_count--;

		ct_fill(b, 8, 5);
		OK(fi_sendmsg(c.ep, &m, FI_TRIGGER | FI_COMPLETION));
		POST(&c, fi_recv(c.ep, &x, 1, NULL, FI_ADDR_UNSPEC, CTX(1)));
		ct_recvd(&c, CTX(1), 1);
		ct_sent(&c, &t);
		ct_barrier(&c);
	} else {
		POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
		ct_idle(&c, 50);
		POST(&c, fi_inject(c.ep, "x", 1, c.peer));
		ct_recvd(&c, CTX(1), 8);
		CHECK(ct_same(b, 8, 5));
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* A buffer in eight pieces, and one piece too many behind them. */
struct pieces {
	struct iovec v[SEGMENTS + 1];
	void *d[SEGMENTS + 1];
};
/* Cuts up n bytes at b, at least eight; with gap the pieces are apart, each in reverse order behind the one that follows it. */
static struct pieces cut(char *b, size_t n, size_t gap)
{
	struct pieces p;
	char *at = b;

	for (int i = 0; i <= SEGMENTS; i++) {
		size_t len = i == SEGMENTS ? 1 : i == SEGMENTS - 1 ? n - n / SEGMENTS * i + i : n / SEGMENTS - 1;

		p.v[i].iov_base = at;
		p.v[i].iov_len = len;
		p.d[i] = ct_desc(b);
		at += len + gap;
	}
	if (gap)
		for (int i = 0; i < SEGMENTS / 2; i++) {
			struct iovec v = p.v[i];

			p.v[i] = p.v[SEGMENTS - 1 - i];
			p.v[SEGMENTS - 1 - i] = v;
		}
	return p;
}
static size_t space(size_t n) { return n + SEGMENTS * GAP + 64; }
/* Fills the first eight pieces, and compares them. */
static void fill(struct pieces *p, unsigned seed)
{
	static char all[BIG];
	size_t n = 0;

	for (int i = 0; i < SEGMENTS; i++)
		n += p->v[i].iov_len;
	ct_fill(all, n, seed);
	for (int i = n = 0; i < SEGMENTS; n += p->v[i++].iov_len)
		memcpy(p->v[i].iov_base, all + n, p->v[i].iov_len);
}
static void same(struct pieces *p, unsigned seed)
{
	static char all[BIG];
	size_t n = 0;

	for (int i = 0; i < SEGMENTS; n += p->v[i++].iov_len)
		memcpy(all + n, p->v[i].iov_base, p->v[i].iov_len);
	CHECK(ct_same(all, n, seed));
}
static const size_t lengths[] = { 16, 100, 5000, 100000, BIG };
#define LENGTHS (sizeof lengths / sizeof *lengths)
/* More than is offered: hints, and calls. */
static void too_many_hinted(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | (ct_type == FI_EP_DGRAM ? 0 : FI_RMA) };

	(void)rank;
	sockets_only();
	for (int i = 0; i < 4; i++) {
		struct fi_info *h = ct_hints(&o), *info = NULL;

		*(i == 0 ? &h->tx_attr->iov_limit : i == 1 ? &h->rx_attr->iov_limit : i == 2 ? &h->tx_attr->rma_iov_limit :
			&h->domain_attr->mr_iov_limit) = SEGMENTS + 1;
		ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &info), FI_ENODATA);
		fi_freeinfo(h);
	}
}
/*
 * fi_endpoint(3), iov_limit: "This is the maximum number of IO vectors (scatter-gather elements) that a single posted operation may
 * reference."
 */
static void messages(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	struct ct c;
	char *b;

	sockets_only();
	ct_open(&c, &o);
	EQ(c.info->tx_attr->iov_limit, SEGMENTS);
	EQ(c.info->rx_attr->iov_limit, SEGMENTS);
	b = ct_alloc(&c, space(BIG));
	for (unsigned way = 0; way < 8; way++) {
		int tagged = way & 1, by_message = way & 2, late = way & 4;

		for (size_t i = 0; i < LENGTHS; i++) {
			/* apart at one side, so that no piece of one is a piece of the other */
			struct pieces p = cut(b, lengths[i], rank == (int)(way & 1) ? GAP : 0);
			struct fi_msg m = { .msg_iov = p.v, .desc = p.d, .iov_count = SEGMENTS, .addr = c.peer, .context = CTX(i) };
			struct fi_msg_tagged t = { .msg_iov = p.v, .desc = p.d, .iov_count = SEGMENTS, .addr = c.peer, .tag = 7, .context = CTX(i) };
			unsigned seed = way * LENGTHS + i;

			if (rank == 0) {
				int inject = by_message && lengths[i] <= c.info->tx_attr->inject_size;
				uint64_t flags = FI_COMPLETION | (inject ? FI_INJECT : 0);

				if (!late)
					ct_barrier(&c);
				fill(&p, seed);
				if (by_message && tagged)
					POST(&c, fi_tsendmsg(c.ep, &t, flags));
				else if (by_message)
					POST(&c, fi_sendmsg(c.ep, &m, flags));
				else if (tagged)
					POST(&c, fi_tsendv(c.ep, p.v, p.d, SEGMENTS, c.peer, 7, CTX(i)));
				else
					POST(&c, fi_sendv(c.ep, p.v, p.d, SEGMENTS, c.peer, CTX(i)));
				if (inject)
					memset(b, 0, space(BIG));
				if (late)
					ct_barrier(&c);
				ct_sent(&c, CTX(i));
			} else {
				if (late)
					ct_barrier(&c);
				memset(b, 0, space(BIG));
				m.addr = t.addr = FI_ADDR_UNSPEC;
				if (by_message && tagged)
					POST(&c, fi_trecvmsg(c.ep, &t, FI_COMPLETION));
				else if (by_message)
					POST(&c, fi_recvmsg(c.ep, &m, FI_COMPLETION));
				else if (tagged)
					POST(&c, fi_trecvv(c.ep, p.v, p.d, SEGMENTS, FI_ADDR_UNSPEC, 7, 0, CTX(i)));
				else
					POST(&c, fi_recvv(c.ep, p.v, p.d, SEGMENTS, FI_ADDR_UNSPEC, CTX(i)));
				if (!late)
					ct_barrier(&c);
				ct_recvd(&c, CTX(i), lengths[i]);
				same(&p, seed);
			}
		}
	}
	ct_done(&c);
}
static void too_many(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	enum { N = SEGMENTS + 1 };
	struct pieces p;
	struct ct c;
	char *b;

	(void)rank;
	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	p = cut(b, 800, 0);
	struct fi_msg m = { .msg_iov = p.v, .desc = p.d, .iov_count = N, .addr = c.peer, .context = CTX(0) };
	struct fi_msg_tagged t = { .msg_iov = p.v, .desc = p.d, .iov_count = N, .addr = c.peer, .tag = 7, .context = CTX(0) };
	ERR(fi_sendv(c.ep, p.v, p.d, N, c.peer, CTX(0)), FI_EINVAL);
	ERR(fi_sendmsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
	ERR(fi_tsendv(c.ep, p.v, p.d, N, c.peer, 7, CTX(0)), FI_EINVAL);
	ERR(fi_tsendmsg(c.ep, &t, FI_COMPLETION), FI_EINVAL);
	m.addr = t.addr = FI_ADDR_UNSPEC;
	ERR(fi_recvv(c.ep, p.v, p.d, N, FI_ADDR_UNSPEC, CTX(0)), FI_EINVAL);
	ERR(fi_recvmsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
	ERR(fi_trecvv(c.ep, p.v, p.d, N, FI_ADDR_UNSPEC, 7, 0, CTX(0)), FI_EINVAL);
	ERR(fi_trecvmsg(c.ep, &t, FI_COMPLETION), FI_EINVAL);
	ct_done(&c);
}
/* Messages in pieces into a buffer for many (FI_MULTI_RECV). */
static void multi_receive(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_MULTI_RECV };
	enum { N = 20, EACH = 200 };
	struct fi_cq_tagged_entry e;
	struct ct c;
	char *b;

	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, BIG);
	if (rank == 0) {
		struct iovec v = { b, BIG };
		void *d = ct_desc(b);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(3) };

		POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV));
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			EQ(ct_next(&c, c.rx, &e, NULL, NULL), 1);
			CHECK(e.op_context == CTX(3) && e.len == EACH);
			CHECK(ct_same(e.buf, EACH, i));
		}
	} else {
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			struct pieces p = cut(b + i * 1000, EACH, 10);

			fill(&p, i);
			POST(&c, fi_sendv(c.ep, p.v, p.d, SEGMENTS, c.peer, CTX(i)));
		}
		for (int i = 0; i < N; i++)
			ct_sent(&c, CTX(i));
	}
	ct_done(&c);
}

struct region { uint64_t key, at[SEGMENTS]; };
/* Registers memory, in as many segments, and sends their description to the other rank; returns the one received. */
static struct region share(struct ct *c, struct fid_mr **mr, const struct iovec *v, size_t count, uint64_t access, int by_attr)
{
	struct fi_mr_attr a = { .mr_iov = v, .iov_count = count, .access = access, .requested_key = 77 + by_attr };
	uint64_t offset = 0;
	struct region mine = { 0 }, theirs;

	if (by_attr)
		OK(fi_mr_regattr(c->domain, &a, 0, mr));
	else
		OK(fi_mr_regv(c->domain, v, count, access, 0, 77, 0, mr, NULL));
	mine.key = fi_mr_key(*mr);
	for (size_t i = 0; i < count; offset += v[i++].iov_len)
		mine.at[i] = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)v[i].iov_base : offset;
	ct_swap(c, &mine, &theirs, sizeof mine);
	return theirs;
}
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)
/*
 * fi_endpoint(3), rma_iov_limit: "the maximum number of RMA IO vectors (scatter-gather elements) that an RMA or atomic operation may
 * reference."
 */
static void memory(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fi_rma_iov to[SEGMENTS + 1];
	struct fid_mr *mr;
	struct region r;
	struct ct c;
	char *b, *s;

	sockets_only();
	ct_open(&c, &o);
	EQ(c.info->tx_attr->rma_iov_limit, SEGMENTS);
	b = ct_alloc(&c, space(BIG));
	s = ct_alloc(&c, space(BIG));
	r = share(&c, &mr, &(struct iovec){ b, space(BIG) }, 1, REMOTE, 0);
	for (size_t i = 0; i < LENGTHS; i++) {
		struct pieces here = cut(s, lengths[i], 0), there = cut(b, lengths[i], GAP);
		struct fi_msg_rma m = { .msg_iov = here.v, .desc = here.d, .iov_count = SEGMENTS, .addr = c.peer,
			.rma_iov = to, .rma_iov_count = SEGMENTS, .context = CTX(i) };

		for (int k = 0; k <= SEGMENTS; k++)
			to[k] = (struct fi_rma_iov){ r.at[0] + ((char *)there.v[k].iov_base - b), there.v[k].iov_len, r.key };
		/* both ranks at once; several in a row, which leave together */
		for (unsigned k = 0; k < 4; k++) {
			fill(&here, 4 * i + rank);
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE | (k < 3 ? FI_MORE : 0)));
		}
		for (unsigned k = 0; k < 4; k++)
			ct_sent(&c, CTX(i));
		ct_barrier(&c);
		same(&there, 4 * i + !rank);
		memset(s, 0, space(BIG));
		POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
		ct_sent(&c, CTX(i));
		same(&here, 4 * i + rank);
		ct_barrier(&c);
		/* to one place */
		fill(&here, 4 * i + 2 + rank);
		POST(&c, fi_writev(c.ep, here.v, here.d, SEGMENTS, c.peer, r.at[0] + 3, r.key, CTX(i)));
		ct_sent(&c, CTX(i));
		ct_barrier(&c);
		CHECK(ct_same(b + 3, lengths[i], 4 * i + 2 + !rank));
		memset(s, 0, space(BIG));
		POST(&c, fi_readv(c.ep, here.v, here.d, SEGMENTS, c.peer, r.at[0] + 3, r.key, CTX(i)));
		ct_sent(&c, CTX(i));
		same(&here, 4 * i + 2 + rank);
		/* one segment too many, here and there */
		m.iov_count = m.rma_iov_count = SEGMENTS + 1;
		ERR(fi_writemsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
		ERR(fi_readmsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
		ERR(fi_writev(c.ep, here.v, here.d, SEGMENTS + 1, c.peer, r.at[0], r.key, CTX(i)), FI_EINVAL);
		ERR(fi_readv(c.ep, here.v, here.d, SEGMENTS + 1, c.peer, r.at[0], r.key, CTX(i)), FI_EINVAL);
		ct_barrier(&c);
	}
	OK(fi_close(&mr->fid));
	ct_done(&c);
}
/* A write of eight places before there is a connection, and one of which a place is refused. */
static void first_and_refused(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fi_rma_iov to[SEGMENTS];
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fid_mr *mr;
	struct region r;
	struct ct c;
	char *b, *s;

	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, &mr, &(struct iovec){ b, 4096 }, 1, REMOTE, 0);
	if (rank == 0) {
		struct pieces here = cut(s, 800, 0);
		struct fi_msg_rma m = { .msg_iov = here.v, .desc = here.d, .iov_count = SEGMENTS, .addr = c.peer,
			.rma_iov = to, .rma_iov_count = SEGMENTS, .context = CTX(0) };

		ct_fill(s, 800, 3);
		for (int i = 0; i < SEGMENTS; i++)
			to[i] = (struct fi_rma_iov){ r.at[0] + 100 * i, 100, r.key };
		POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(0));
		to[SEGMENTS - 1].addr = r.at[0] + 4096 - 99;
		for (int read = 0; read < 2; read++) {
			/* the original ends a connection on which something was refused */
			m.context = CTX(1 + read);
			POST(&c, read ? fi_readmsg(c.ep, &m, FI_COMPLETION) : fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context == CTX(1 + read) && err.err > 0);
		}
	}
	ct_barrier(&c);
	if (rank == 1)
		CHECK(ct_same(b, 800, 3));
	OK(fi_close(&mr->fid));
	ct_done(&c);
}
/* fi_endpoint(3): "The rma_iov_limit corresponds to the rma_iov_count values in RMA and atomic operations." */
static void atomics(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA | FI_ATOMIC };
	enum { N = SEGMENTS + 1 };
	struct fi_rma_ioc to[N];
	struct fi_ioc of[N], with[N], former[N];
	struct fid_mr *mr;
	struct region r;
	struct ct c;
	uint64_t *b, *s;
	void *d[N];

	sockets_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, &mr, &(struct iovec){ b, 4096 }, 1, REMOTE, 0);
	for (int i = 0; i < N; i++) {
		d[i] = ct_desc(s);
		/* run i has two elements; the target's runs are in reverse order, with a gap between them */
		to[i] = (struct fi_rma_ioc){ r.at[0] + 8 * 3 * (SEGMENTS - i), 2, r.key };
		of[i] = (struct fi_ioc){ s + 2 * i, 2 };
		with[i] = (struct fi_ioc){ s + 100 + 2 * i, 2 };
		former[i] = (struct fi_ioc){ s + 200 + 2 * i, 2 };
	}
	struct fi_msg_atomic m = { .msg_iov = of, .desc = d, .iov_count = SEGMENTS, .addr = c.peer, .rma_iov = to,
		.rma_iov_count = SEGMENTS, .datatype = FI_UINT64, .op = FI_SUM, .context = CTX(0) };

	for (int i = 0; i < 512; i++)
		b[i] = 1000 + i;
	ct_barrier(&c);
	if (rank == 0) {
		for (int i = 0; i < 2 * SEGMENTS; i++)
			s[i] = 1;
		POST(&c, fi_atomicmsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(0));
		POST(&c, fi_fetch_atomicmsg(c.ep, &m, former, d, SEGMENTS, FI_COMPLETION));
		ct_sent(&c, CTX(0));
		for (int i = 0; i < 2 * SEGMENTS; i++) {
			EQ(s[200 + i], 1000 + 3 * (SEGMENTS - i / 2) + i % 2 + 1);
			s[100 + i] = s[200 + i] + 1;
			s[i] = 7000 + i;
		}
		m.op = FI_CSWAP;
		POST(&c, fi_compare_atomicmsg(c.ep, &m, with, d, SEGMENTS, former, d, SEGMENTS, FI_COMPLETION));
		ct_sent(&c, CTX(0));
		for (int i = 0; i < 2 * SEGMENTS; i++)
			EQ(s[200 + i], s[100 + i]);
		/* the same without a message structure: one place of the peer's */
		for (int i = 0; i < 2 * SEGMENTS; i++)
			s[i] = 10;
		POST(&c, fi_atomicv(c.ep, of, d, SEGMENTS, c.peer, r.at[0] + 8 * 100, r.key, FI_UINT64, FI_SUM, CTX(1)));
		ct_sent(&c, CTX(1));
		POST(&c, fi_fetch_atomicv(c.ep, of, d, SEGMENTS, former, d, SEGMENTS, c.peer, r.at[0] + 8 * 100, r.key, FI_UINT64, FI_SUM, CTX(1)));
		ct_sent(&c, CTX(1));
		for (int i = 0; i < 2 * SEGMENTS; i++) {
			EQ(s[200 + i], 1110 + i);
			s[100 + i] = 1120 + i;
		}
		POST(&c, fi_compare_atomicv(c.ep, of, d, SEGMENTS, with, d, SEGMENTS, former, d, SEGMENTS, c.peer, r.at[0] + 8 * 100, r.key, FI_UINT64, FI_CSWAP, CTX(1)));
		ct_sent(&c, CTX(1));
		for (int i = 0; i < 2 * SEGMENTS; i++)
			EQ(s[200 + i], 1120 + i);
		/* one run too many */
		m.iov_count = m.rma_iov_count = N;
		m.op = FI_SUM;
		ERR(fi_atomicmsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
		ERR(fi_fetch_atomicmsg(c.ep, &m, former, d, N, FI_COMPLETION), FI_EINVAL);
		m.op = FI_CSWAP;
		ERR(fi_compare_atomicmsg(c.ep, &m, with, d, N, former, d, N, FI_COMPLETION), FI_EINVAL);
		ERR(fi_atomicv(c.ep, of, d, N, c.peer, r.at[0], r.key, FI_UINT64, FI_SUM, CTX(1)), FI_EINVAL);
		ERR(fi_fetch_atomicv(c.ep, of, d, N, former, d, N, c.peer, r.at[0], r.key, FI_UINT64, FI_SUM, CTX(1)), FI_EINVAL);
		ERR(fi_compare_atomicv(c.ep, of, d, N, with, d, N, former, d, N, c.peer, r.at[0], r.key, FI_UINT64, FI_CSWAP, CTX(1)), FI_EINVAL);
	}
	ct_barrier(&c);
	if (rank == 1) {
		for (int i = 0; i < 2 * SEGMENTS; i++) {
			EQ(b[3 * (SEGMENTS - i / 2) + i % 2], 7000 + i);
			EQ(b[100 + i], 10);
		}
		EQ(b[3 * SEGMENTS + 2], 1000 + 3 * SEGMENTS + 2);
		EQ(b[5], 1005);
	}
	OK(fi_close(&mr->fid));
	ct_done(&c);
}
/*
 * fi_mr(3), fi_mr_regv: "Multiple memory buffers are registered as a single memory region."  FI_MR_VIRT_ADDR: "the provider references
 * memory regions by virtual address, rather than a 0-based offset": offsets go through the buffers in their order, and with virtual
 * addresses each buffer has its own.
 */
static void regions(int rank)
{
	static const int modes[] = { 0, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY };
	enum { N = 100000 };

	sockets_only();
	for (unsigned way = 0; way < 4; way++) {
		int by_attr = way & 1;
		struct ct_opt o = { .caps = FI_MSG | FI_RMA | FI_ATOMIC, .mr_mode = &modes[way / 2] };
		struct fi_rma_iov to[SEGMENTS];
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;
		struct pieces there, here;
		struct fid_mr *mr;
		struct region r;
		struct ct c;
		char *b, *s;
		int virt;

		ct_open(&c, &o);
		virt = !!(c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);
		EQ(c.info->domain_attr->mr_iov_limit, SEGMENTS);
		b = ct_alloc(&c, space(N));
		s = ct_alloc(&c, space(SEGMENTS * N));
		there = cut(b, N, GAP);
		here = cut(s, N, 0);
		memset(b, 0x55, space(N));
		r = share(&c, &mr, there.v, SEGMENTS, REMOTE, by_attr);
		for (int i = 0; i < SEGMENTS; i++)
			to[i] = (struct fi_rma_iov){ r.at[i], there.v[i].iov_len, r.key };
		struct fi_msg_rma m = { .msg_iov = here.v, .desc = here.d, .iov_count = SEGMENTS, .addr = c.peer,
			.rma_iov = to, .rma_iov_count = SEGMENTS, .context = CTX(0) };
		ct_fill(s, N, 10 + rank);
		if (virt)
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		else
			POST(&c, fi_write(c.ep, s, N, ct_desc(s), c.peer, 0, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		same(&there, 10 + !rank);
		/* and nothing between the segments */
		for (int i = 0; i < SEGMENTS; i++)
			for (int k = 0; k < GAP; k++)
				EQ(((char *)there.v[i].iov_base)[there.v[i].iov_len + k], 0x55);
		memset(s, 0, N);
		if (virt)
			POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
		else
			POST(&c, fi_read(c.ep, s, N, ct_desc(s), c.peer, 0, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		CHECK(ct_same(s, N, 10 + rank));
		ct_barrier(&c);
		if (!virt) {
			/* the end of one segment and the beginning of the next, few bytes and many */
			uint64_t at = r.at[3] - 40;

			ct_fill(s, N, 20 + rank);
			POST(&c, fi_write(c.ep, s, 100, ct_desc(s), c.peer, at, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			ct_barrier(&c);
			ct_fill(s, N, 20 + !rank);
			CHECK(!memcmp((char *)there.v[2].iov_base + there.v[2].iov_len - 40, s, 40));
			CHECK(!memcmp(there.v[3].iov_base, s + 40, 60));
			ct_barrier(&c);
			ct_fill(s, N, 30 + rank);
			POST(&c, fi_write(c.ep, s, 60000, ct_desc(s), c.peer, 1, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			ct_barrier(&c);
			memset(s, 0, N);
			POST(&c, fi_read(c.ep, s, 60000, ct_desc(s), c.peer, 1, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			CHECK(ct_same(s, 60000, 30 + rank));
			ct_barrier(&c);
			/* eight places in as many segments each: more pieces than one call of the system takes */
			here = cut(s, SEGMENTS * N, 0);
			for (int i = 0; i < SEGMENTS; i++) {
				to[i] = (struct fi_rma_iov){ 0, N, r.key };
				ct_fill(s + i * N, N, 40 + rank);
			}
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			ct_sent(&c, CTX(0));
			ct_barrier(&c);
			same(&there, 40 + !rank);
			memset(s, 0, SEGMENTS * N);
			POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
			ct_sent(&c, CTX(0));
			for (int i = 0; i < SEGMENTS; i++)
				CHECK(ct_same(s + i * N, N, 40 + rank));
			ct_barrier(&c);
		}
		if (rank == 0) {
			/* one segment too many */
			struct fi_mr_attr a = { .mr_iov = there.v, .iov_count = SEGMENTS + 1, .access = REMOTE, .requested_key = 5 };
			struct fid_mr *more = NULL;

			ERR(fi_mr_regattr(c.domain, &a, 0, &more), FI_EINVAL);
			ERR(fi_mr_regv(c.domain, there.v, SEGMENTS + 1, REMOTE, 0, 5, 0, &more, NULL), FI_EINVAL);
			ERR(fi_mr_regv(c.domain, there.v, 0, REMOTE, 0, 5, 0, &more, NULL), FI_EINVAL);
			/* beyond the end of the region; with virtual addresses, of a segment */
			for (int i = 0; i < 4; i++) {
				uint64_t at = virt ? r.at[i] + there.v[i].iov_len - 7 : N - 7;

				if (i % 2)
					POST(&c, fi_read(c.ep, s, 8, ct_desc(s), c.peer, at, r.key, CTX(i)));
				else
					POST(&c, fi_write(c.ep, s, 8, ct_desc(s), c.peer, at, r.key, CTX(i)));
				EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
				CHECK(err.op_context == CTX(i) && err.err > 0);
			}
		}
		ct_barrier(&c);
		for (int i = 0; i < SEGMENTS; i++)
			EQ(((char *)there.v[i].iov_base)[there.v[i].iov_len], 0x55);
		OK(fi_close(&mr->fid));
		ct_done(&c);
	}
}

/* Connects as a hand-written peer with these features in its request; returns the socket, and the features of the answer. */
static int peer_by_hand(struct ct *c, const struct ct_name *to, int port, unsigned char knows, unsigned char *answered)
{
	unsigned char b[40] = { 3, 0, 0, 8, [24] = 1, [32] = 1, [34] = port >> 8, [35] = port, [39] = 9 };
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(b + 16, "ofi-rs?", 7);
	b[23] = knows;
	CHECK(s >= 0 && !connect(s, (struct sockaddr *)to->b, sizeof(struct sockaddr_in)));
	EQ(send(s, b, sizeof b, MSG_NOSIGNAL), sizeof b);
	for (ssize_t n = 0, r; n < 40; n += r > 0 ? r : 0) {
		r = recv(s, b + n, 40 - n, MSG_DONTWAIT);
		CHECK(r > 0 || (r < 0 && errno == EAGAIN));
		ct_progress(c);
	}
	*answered = b[23];
	return s;
}
/*
 * Peers that do not advertise more than four remote segments in a request (tcp of upstream libfabric, and earlier
 * versions) get no more: such an operation fails with FI_EOPNOTSUPP, and nothing else fails.  Other peers get up to eight
 * in one request.
 */
static void peers_of_four(int rank)
{
	enum { KNOWS_ATOMICS = 1, KNOWS_SEGMENTS = 64, HEAD = 16, POSITION = 24 };
	static const int mode = 0;
	struct ct c = { .o = { .caps = FI_MSG | FI_RMA, .mr_mode = &mode } };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fi_rma_iov to[SEGMENTS];
	unsigned char in[512], reports;
	struct ct_name name;
	struct pieces here;
	char *s;

	(void)rank;
	sockets_only();
	name = ct_open_rdm(&c, NULL);
	s = ct_alloc(&c, 4096);
	here = cut(s, 80, 0);
	for (int i = 0; i < SEGMENTS; i++)
		to[i] = (struct fi_rma_iov){ 100 * i, here.v[i].iov_len, 5 };
	struct fi_msg_rma m = { .msg_iov = here.v, .desc = here.d, .rma_iov = to };
	for (int many = 0; many < 2; many++) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7 + many), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		struct ct_name theirs = { .n = sizeof at };
		unsigned char knows = KNOWS_ATOMICS | (many ? KNOWS_SEGMENTS : 0);
		int sock;

		memcpy(theirs.b, &at, sizeof at);
		m.addr = ct_insert(&c, &theirs);
		sock = peer_by_hand(&c, &name, 7 + many, knows, &reports);
		EQ(reports, knows);
		for (int count = SEGMENTS; count >= SEGMENTS / 2; count -= SEGMENTS / 2) {
			size_t len = 0, n = HEAD + POSITION * count;

			m.iov_count = m.rma_iov_count = count;
			m.context = CTX(count);
			for (int i = 0; i < count; i++)
				len += here.v[i].iov_len;
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION));
			if (count > 4 && !many) {
				EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
				CHECK(err.op_context == CTX(count) && err.err == FI_EOPNOTSUPP);
				POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
				EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
				CHECK(err.op_context == CTX(count) && err.err == FI_EOPNOTSUPP);
				continue;
			}
			ct_sent(&c, CTX(count));
			EQ(recv(sock, in, n + len, MSG_WAITALL), n + len);
			CHECK(in[1] == 4 && in[5] == count && in[6] == n && in[8] == (n + len) % 256);
		}
		/* a request of nine places */
		memset(in, 0, sizeof in);
		in[0] = 3;
		in[1] = 4;
		in[5] = SEGMENTS + 1;
		in[6] = in[8] = HEAD + POSITION * (SEGMENTS + 1);
		EQ(send(sock, in, in[6], MSG_NOSIGNAL), in[6]);
		while (recv(sock, in, 1, MSG_DONTWAIT) && errno == EAGAIN)
			ct_progress(&c);
		close(sock);
	}
	ct_close(&c);
}
/* fi_sockets(7): "the peers of an endpoint are those of tcp": eight remote segments in the memory of one, and its operations in turn. */
static void memory_of_tcp(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fi_rma_iov to[SEGMENTS];
	struct fid_mr *mr;
	struct region r;
	struct ct c;
	char *b, *s;
	int count;

	sockets_only();
	if (rank == 1)
		ct_prov = "tcp";
	ct_open(&c, &o);
	count = c.info->tx_attr->rma_iov_limit;
	EQ(count, rank ? 4 : SEGMENTS);
	b = ct_alloc(&c, space(BIG));
	s = ct_alloc(&c, space(BIG));
	r = share(&c, &mr, &(struct iovec){ b, space(BIG) }, 1, REMOTE, 0);
	for (size_t i = 0; i < LENGTHS; i++) {
		struct pieces here = cut(s, lengths[i], 0), there = cut(b, lengths[i], GAP);
		struct fi_msg_rma m = { .msg_iov = here.v, .desc = here.d, .iov_count = count, .addr = c.peer,
			.rma_iov = to, .rma_iov_count = count, .context = CTX(i) };

		for (int k = 0; k < SEGMENTS; k++)
			to[k] = (struct fi_rma_iov){ r.at[0] + ((char *)there.v[k].iov_base - b), (rank ? &here : &there)->v[k].iov_len, r.key };
		fill(&here, 4 * i + rank);
		POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(i));
		ct_barrier(&c);
		if (rank == 1)
			same(&there, 4 * i);
		memset(s, 0, space(BIG));
		POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
		ct_sent(&c, CTX(i));
		if (rank == 0)
			same(&here, 4 * i);
		ct_barrier(&c);
	}
	if (rank == 1) {
		struct pieces p = cut(s, 100, 0);

		ERR(fi_sendv(c.ep, p.v, p.d, 5, c.peer, CTX(0)), FI_EINVAL);
		ERR(fi_recvv(c.ep, p.v, p.d, 5, FI_ADDR_UNSPEC, CTX(0)), FI_EINVAL);
	}
	OK(fi_close(&mr->fid));
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "hints with the attributes of upstream's sockets provider are satisfied", attributes, CT_SOLO },
	{ "message orders delaying writes and messages are offered only on request", order_unasked, CT_SOLO },
	{ "a connected endpoint with FI_SOURCE and FI_DIRECTED_RECV reports no source", source_of_connection, CT_MSG },
	{ "a domain opens a requested shared transmit context", shared_tx, CT_RDM },
	{ "datagrams support tags, sources, data, any size and multi-receive buffers", datagrams, CT_DGRAM },
	{ "hints with nine segments are refused", too_many_hinted, CT_SOLO },
	{ "messages have eight segments on either side", messages, 0 },
	{ "a message or a receive of nine segments is refused", too_many, 0 },
	{ "messages of eight segments go to a multi-receive buffer", multi_receive, 0 },
	{ "reads and writes have eight segments on either side", memory, CT_REL },
	{ "a refused segment among eight fails only its own operation", first_and_refused, CT_REL },
	{ "atomic operations have eight runs of elements on either side", atomics, CT_REL },
	{ "a region has eight segments with one key", regions, CT_REL },
	{ "peers limited to four remote segments get no more", peers_of_four, CT_SOLO | CT_RDM | CT_REL | CT_BARE },
	{ "eight segments of a tcp peer are written and read", memory_of_tcp, CT_REL },
	{ "datagrams can be triggered", triggered, CT_DGRAM },
};
CT_MAIN("sockets", tests)
