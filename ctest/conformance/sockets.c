/*
 * What programs that were written for the original's sockets ask for.  fi_sockets(7): "What programs that ask for sockets look at
 * is as they know it".
 */
#include "ct.h"
#include <rdma/fi_trigger.h>

/* All that fi_info of the original's 1.17 shows of its order. */
#define ORDER (FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS | FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_WAS | FI_ORDER_SAR | FI_ORDER_SAW | FI_ORDER_SAS)
#define RMA_ORDER (FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW)
#define ATOMIC_ORDER (FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW)

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
	i = asked(h);
	EQ(i->tx_attr->msg_order, ORDER | RMA_ORDER | ATOMIC_ORDER);
	fi_freeinfo(i);
}
/* What costs something is not there for those who do not ask. */
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
/* A domain that was asked for one shared transmit context, whose endpoints say only when they are opened that they share it. */
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
		struct iovec v = { b, 8 };
		void *d = ct_desc(b);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .context = &t };
		char x;

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

static const struct ct_test tests[] = {
	{ "hints with the attributes of the original's sockets are met", attributes, CT_SOLO },
	{ "orders that make writes and messages wait are for those who ask", order_unasked, CT_SOLO },
	{ "a connected endpoint with FI_SOURCE and FI_DIRECTED_RECV names no source", source_of_connection, CT_MSG },
	{ "a domain asked for a shared transmit context has one", shared_tx, CT_RDM },
	{ "datagrams have tags, sources, data, any size, and buffers for many", datagrams, CT_DGRAM },
	{ "datagrams can be triggered", triggered, CT_DGRAM },
};
CT_MAIN("sockets", tests)
