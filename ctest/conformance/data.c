/* fi_msg(3) and fi_tagged(3): every call, every size, completions, flags. */
#include "ct.h"

enum send_call { SEND, SENDV, SENDMSG, INJECT, SENDDATA, INJECTDATA };
enum recv_call { RECV, RECVV, RECVMSG };

static uint64_t caps_of(int tagged) { return tagged ? FI_TAGGED : FI_MSG; }

/* Cut b into up to `limit` uneven pieces. */
static size_t cut(struct iovec *v, void **desc, size_t limit, char *b, size_t n)
{
	size_t k = limit > 3 ? 3 : limit, off = 0;

	for (size_t i = 0; i < k; i++) {
		size_t len = i == k - 1 ? n - off : i == 0 ? n / 3 : (n - off) / 5;

		v[i].iov_base = b + off;
		v[i].iov_len = len;
		desc[i] = ct_desc(b);
		off += len;
	}
	return k;
}

static void post_send(struct ct *c, int tagged, enum send_call call, char *b, size_t n,
		      uint64_t data, uint64_t tag, void *ctx)
{
	struct iovec v[4];
	void *d[4];

	switch (call) {
	case SEND:
		if (tagged)
			POST(c, fi_tsend(c->ep, b, n, ct_desc(b), c->peer, tag, ctx));
		else
			POST(c, fi_send(c->ep, b, n, ct_desc(b), c->peer, ctx));
		break;
	case SENDV: {
		size_t k = cut(v, d, c->info->tx_attr->iov_limit, b, n);
		if (tagged)
			POST(c, fi_tsendv(c->ep, v, d, k, c->peer, tag, ctx));
		else
			POST(c, fi_sendv(c->ep, v, d, k, c->peer, ctx));
		break;
	}
	case SENDMSG: {
		size_t k = cut(v, d, c->info->tx_attr->iov_limit, b, n);
		struct fi_msg_tagged t = { .msg_iov = v, .desc = d, .iov_count = k, .addr = c->peer,
			.tag = tag, .context = ctx, .data = data };
		struct fi_msg m = { .msg_iov = v, .desc = d, .iov_count = k, .addr = c->peer,
			.context = ctx, .data = data };
		if (tagged)
			POST(c, fi_tsendmsg(c->ep, &t, FI_COMPLETION));
		else
			POST(c, fi_sendmsg(c->ep, &m, FI_COMPLETION));
		break;
	}
	case INJECT:
		if (tagged)
			POST(c, fi_tinject(c->ep, b, n, c->peer, tag));
		else
			POST(c, fi_inject(c->ep, b, n, c->peer));
		break;
	case SENDDATA:
		if (tagged)
			POST(c, fi_tsenddata(c->ep, b, n, ct_desc(b), data, c->peer, tag, ctx));
		else
			POST(c, fi_senddata(c->ep, b, n, ct_desc(b), data, c->peer, ctx));
		break;
	case INJECTDATA:
		if (tagged)
			POST(c, fi_tinjectdata(c->ep, b, n, data, c->peer, tag));
		else
			POST(c, fi_injectdata(c->ep, b, n, data, c->peer));
		break;
	}
}

static void post_recv(struct ct *c, int tagged, enum recv_call call, char *b, size_t n, uint64_t tag, void *ctx)
{
	struct iovec v[4];
	void *d[4];

	switch (call) {
	case RECV:
		if (tagged)
			POST(c, fi_trecv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, tag, 0, ctx));
		else
			POST(c, fi_recv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, ctx));
		break;
	case RECVV: {
		size_t k = cut(v, d, c->info->rx_attr->iov_limit, b, n);
		if (tagged)
			POST(c, fi_trecvv(c->ep, v, d, k, FI_ADDR_UNSPEC, tag, 0, ctx));
		else
			POST(c, fi_recvv(c->ep, v, d, k, FI_ADDR_UNSPEC, ctx));
		break;
	}
	case RECVMSG: {
		size_t k = cut(v, d, c->info->rx_attr->iov_limit, b, n);
		struct fi_msg_tagged t = { .msg_iov = v, .desc = d, .iov_count = k,
			.addr = FI_ADDR_UNSPEC, .tag = tag, .context = ctx };
		struct fi_msg m = { .msg_iov = v, .desc = d, .iov_count = k, .addr = FI_ADDR_UNSPEC, .context = ctx };
		if (tagged)
			POST(c, fi_trecvmsg(c->ep, &t, FI_COMPLETION));
		else
			POST(c, fi_recvmsg(c->ep, &m, FI_COMPLETION));
		break;
	}
	}
}

static void every_size(int rank, int tagged, enum send_call call)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	const int with_data = call == SENDDATA || call == INJECTDATA;
	const int inject = call == INJECT || call == INJECTDATA;
	const uint64_t tag = 0x1234567890ull;
	char *b;
	size_t inj, size[12], n = 0;

	ct_open(&c, &o);
	if (with_data && !c.info->domain_attr->cq_data_size)
		SKIP("no remote CQ data");
	inj = c.info->tx_attr->inject_size;
	size[n++] = 0;
	size[n++] = 1;
	if (!inject || inj >= 64)
		size[n++] = 64;
	size[n++] = inj;
	if (!inject) {
		size[n++] = inj + 1;
		size[n++] = 4096;
		size[n++] = 9000;
		size[n++] = 65536;
		size[n++] = 65537;
		size[n++] = 1 << 20;
		if (call == SEND || call == SENDMSG)
			size[n++] = 16 << 20;
	}
	while (ct_most(&c, size[n - 1]) < size[n - 1])
		n--;
	b = ct_alloc(&c, 16 << 20);
	for (size_t i = 0; i < n; i++) {
		for (int rc = RECV; rc <= RECVMSG; rc++) {
			uint64_t data = 0xdeadbeef00000000ull + i * 16 + rc;

			if (c.info->domain_attr->cq_data_size < 8)
				data &= 0xff;
			if (rank == 0) {
				memset(b, 0, size[i] + 8);
				post_recv(&c, tagged, rc, b, size[i], tag, CTX(i));
				if (rc == RECVV)
					ct_barrier(&c);	/* once with the receive surely posted */
				struct fi_cq_tagged_entry e = ct_recvd(&c, CTX(i), size[i]);
				CHECK(e.flags & caps_of(tagged));
				if (tagged)
					EQ(e.tag, tag);
				EQ(!!(e.flags & FI_REMOTE_CQ_DATA), with_data);
				if (with_data)
					EQ(e.data, data);
				if (!ct_same(b, size[i], i + rc))
					FAIL("wrong bytes at size %zu", size[i]);
				CHECK(!memcmp(b + size[i], "\0\0\0\0\0\0\0\0", 8));
			} else {
				ct_fill(b, size[i], i + rc);
				if (rc == RECVV)
					ct_barrier(&c);
				post_send(&c, tagged, call, b, size[i], data, tag, CTX(i));
				if (inject)
					memset(b, 0xee, size[i]);	/* reusable at once */
				else
					ct_sent(&c, CTX(i));
			}
		}
		ct_barrier(&c);
	}
	if (inject && rank == 1)
		NOTHING(&c, c.tx, 20);
	ct_done(&c);
}
#define SIZES(name, tagged, call) static void name(int rank) { every_size(rank, tagged, call); }
SIZES(msg_send, 0, SEND)
SIZES(msg_sendv, 0, SENDV)
SIZES(msg_sendmsg, 0, SENDMSG)
SIZES(msg_inject, 0, INJECT)
SIZES(msg_senddata, 0, SENDDATA)
SIZES(msg_injectdata, 0, INJECTDATA)
SIZES(tag_send, 1, SEND)
SIZES(tag_sendv, 1, SENDV)
SIZES(tag_sendmsg, 1, SENDMSG)
SIZES(tag_inject, 1, INJECT)
SIZES(tag_senddata, 1, SENDDATA)
SIZES(tag_injectdata, 1, INJECTDATA)

/* One sendmsg, msg or tagged, of one segment. */
static void smsg(struct ct *c, int tagged, void *b, size_t n, uint64_t data, uint64_t tag, void *ctx, uint64_t flags)
{
	struct iovec v = { b, n };
	void *d = ct_desc(b);
	struct fi_msg_tagged t = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer,
		.tag = tag, .context = ctx, .data = data };
	struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer, .context = ctx, .data = data };

	if (tagged)
		POST(c, fi_tsendmsg(c->ep, &t, flags));
	else
		POST(c, fi_sendmsg(c->ep, &m, flags));
}

static void remote_cq_data_flag(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	if (!c.info->domain_attr->cq_data_size)
		SKIP("no remote CQ data");
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 4; i++) {
		size_t n = i < 2 ? 0 : 4000;

		if (rank == 0) {
			post_recv(&c, tagged, RECV, b, 4096, 9, CTX(i));
			struct fi_cq_tagged_entry e = ct_recvd(&c, CTX(i), n);
			EQ(!!(e.flags & FI_REMOTE_CQ_DATA), i & 1);
			if (i & 1)
				EQ(e.data, 0x70 + i);
		} else {
			smsg(&c, tagged, b, n, 0x70 + i, 9, CTX(i), FI_COMPLETION | (i & 1 ? FI_REMOTE_CQ_DATA : 0));
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
static void msg_rcqd(int rank) { remote_cq_data_flag(rank, 0); }
static void tag_rcqd(int rank) { remote_cq_data_flag(rank, 1); }

static void inject_flag(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	size_t n;
	char *b;

	ct_open(&c, &o);
	n = c.info->tx_attr->inject_size;
	b = ct_alloc(&c, n + 64);
	for (int i = 0; i < 32; i++) {
		if (rank == 0) {
			memset(b, 0, n);
			post_recv(&c, tagged, RECV, b, n, 5, CTX(i));
			ct_recvd(&c, CTX(i), n);
			CHECK(ct_same(b, n, i));
		} else {
			ct_fill(b, n, i);
			smsg(&c, tagged, b, n, 0, 5, CTX(i), FI_INJECT | FI_COMPLETION);
			memset(b, 0xff, n);
		}
	}
	if (rank == 1)
		for (int i = 0; i < 32; i++)
			ct_sent(&c, CTX(i));
	ct_done(&c);
}
static void msg_inject_flag(int rank) { inject_flag(rank, 0); }
static void tag_inject_flag(int rank) { inject_flag(rank, 1); }

static void selective(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged), .cq_flags = FI_SELECTIVE_COMPLETION };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct iovec v = { b, 64 };
		void *d = ct_desc(b);
		struct fi_msg_tagged t = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 1, .context = CTX(9) };
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(9) };

		post_recv(&c, tagged, RECV, b, 64, 1, CTX(0));
		post_recv(&c, tagged, RECV, b, 64, 1, CTX(1));
		if (tagged)
			POST(&c, fi_trecvmsg(c.ep, &t, FI_COMPLETION));
		else
			POST(&c, fi_recvmsg(c.ep, &m, FI_COMPLETION));
		ct_barrier(&c);
		ct_recvd(&c, CTX(9), 64);	/* the first entry is that of the third receive */
	} else {
		ct_barrier(&c);
		post_send(&c, tagged, SEND, b, 64, 0, 1, CTX(0));
		smsg(&c, tagged, b, 64, 0, 1, CTX(1), 0);
		smsg(&c, tagged, b, 64, 0, 1, CTX(2), FI_COMPLETION);
		ct_sent(&c, CTX(2));
	}
	ct_barrier(&c);
	NOTHING(&c, rank ? c.tx : c.rx, 20);
	ct_done(&c);
}
static void msg_selective(int rank) { selective(rank, 0); }
static void tag_selective(int rank) { selective(rank, 1); }

/* A receive may name its completion level, without effect on its completion. */
static void recv_level(int rank)
{
	static const uint64_t kinds[2] = { FI_MSG, FI_TAGGED };
	struct ct c;
	char *b;

	for (int k = 0; k < 2; k++) {
		struct ct_opt o = { .caps = kinds[k] };

		if (k && ct_type == FI_EP_DGRAM)
			continue;
		ct_open(&c, &o);
		b = ct_alloc(&c, 4096);
		if (rank == 0) {
			struct iovec v = { b, 64 };
			void *d = ct_desc(b);
			struct fi_msg_tagged t = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
				.tag = 1, .context = CTX(1) };
			struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
				.context = CTX(1) };

			if (k)
				OK(fi_trecvmsg(c.ep, &t, FI_TRANSMIT_COMPLETE | FI_COMPLETION));
			else
				OK(fi_recvmsg(c.ep, &m, FI_TRANSMIT_COMPLETE | FI_COMPLETION));
			ct_barrier(&c);
			ct_recvd(&c, CTX(1), 64);
			CHECK(ct_same(b, 64, 4));
		} else {
			ct_barrier(&c);
			ct_fill(b, 64, 4);
			post_send(&c, k, SEND, b, 64, 0, 1, CTX(0));
			ct_sent(&c, CTX(0));
		}
		ct_done(&c);
	}
}

static void selective_default(int rank)
{
	struct ct_opt o = { .cq_flags = FI_SELECTIVE_COMPLETION, .tx_op_flags = FI_COMPLETION };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		for (int i = 0; i < 3; i++)
			post_recv(&c, 0, RECV, b, 64, 1, CTX(i));
		ct_barrier(&c);
	} else {
		ct_barrier(&c);
		post_send(&c, 0, SEND, b, 64, 0, 1, CTX(0));		/* by op_flags */
		ct_sent(&c, CTX(0));
		smsg(&c, 0, b, 64, 0, 1, CTX(1), 0);			/* flags given: none */
		post_send(&c, 0, SEND, b, 64, 0, 1, CTX(2));
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}

static void levels(int rank, int tagged, uint64_t level, size_t n)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	n = ct_most(&c, n);
	b = ct_alloc(&c, n + 1);
	for (int i = 0; i < 8; i++) {
		if (rank == 0) {
			post_recv(&c, tagged, RECV, b, n, 3, CTX(i));
			ct_recvd(&c, CTX(i), n);
			CHECK(ct_same(b, n, i));
		} else {
			ct_fill(b, n, i);
			smsg(&c, tagged, b, n, 0, 3, CTX(i), level | FI_COMPLETION);
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
static void inject_complete(int rank) { levels(rank, 0, FI_INJECT_COMPLETE, 2048); }
static void transmit_complete(int rank) { levels(rank, 0, FI_TRANSMIT_COMPLETE, 2048); }
static void delivery_complete(int rank) { levels(rank, 0, FI_DELIVERY_COMPLETE, 2048); }
static void delivery_complete_large(int rank) { levels(rank, 0, FI_DELIVERY_COMPLETE, 1 << 20); }
static void tag_delivery_complete(int rank) { levels(rank, 1, FI_DELIVERY_COMPLETE, 2048); }
static void tag_match_complete(int rank) { levels(rank, 1, FI_MATCH_COMPLETE, 2048); }

/* The completion must not come while no receive is posted. */
static void not_before_receive(int rank, int tagged, uint64_t level, size_t n)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		ct_barrier(&c);		/* sender watched its queue */
		post_recv(&c, tagged, RECV, b, 100, 3, CTX(0));
		ct_recvd(&c, CTX(0), n);
		CHECK(ct_same(b, n, 4));
	} else {
		ct_fill(b, n, 4);
		smsg(&c, tagged, b, n, 0, 3, CTX(0), level | FI_COMPLETION);
		NOTHING(&c, c.tx, 100);
		ct_barrier(&c);
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}
/* The completion must not come while the peer's process stands still. */
static void not_before_peer(int rank, int tagged, uint64_t level, size_t n)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	pid_t me = getpid(), peer;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	ct_swap(&c, &me, &peer, sizeof me);
	for (int i = 0; i < 2; i++) {
		/* the first makes the connection */
		if (rank == 0)
			post_recv(&c, tagged, RECV, b, 100, 3, CTX(i));
		ct_barrier(&c);
		if (rank == 0) {
			ct_recvd(&c, CTX(i), n);
		} else {
			if (i)
				ct_stop(peer);
			smsg(&c, tagged, b, n, 0, 3, CTX(i), level | FI_COMPLETION);
			if (i) {
				NOTHING(&c, c.tx, 100);
				OK(kill(peer, SIGCONT));
			}
			ct_sent(&c, CTX(i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void msg_stopped(int rank) { not_before_peer(rank, 0, FI_DELIVERY_COMPLETE, 100); }
static void msg_stopped_empty(int rank) { not_before_peer(rank, 0, FI_DELIVERY_COMPLETE, 0); }
static void tag_stopped_empty(int rank) { not_before_peer(rank, 1, FI_DELIVERY_COMPLETE, 0); }
static void match_stopped_empty(int rank) { not_before_peer(rank, 1, FI_MATCH_COMPLETE, 0); }
/* Of two messages that complete at their match, the received one is complete,
   although the other was sent first. */
static void received_first_completes_first(int rank)
{
	struct ct_opt o = { .caps = caps_of(1) };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		for (int i = 1; i >= 0; i--) {
			ct_barrier(&c);		/* sender watched its queue */
			post_recv(&c, 1, RECV, b, 100, 3 + i, CTX(i));
			ct_recvd(&c, CTX(i), 100);
			CHECK(ct_same(b, 100, 4 + i));
		}
	} else {
		for (int i = 0; i < 2; i++) {
			ct_fill(b + 200 * i, 100, 4 + i);
			smsg(&c, 1, b + 200 * i, 100, 0, 3 + i, CTX(i), FI_MATCH_COMPLETE | FI_COMPLETION);
		}
		for (int i = 1; i >= 0; i--) {
			NOTHING(&c, c.tx, 100);
			ct_barrier(&c);
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
static void tag_matched_late(int rank) { not_before_receive(rank, 1, FI_MATCH_COMPLETE, 100); }
static void tag_matched_late_empty(int rank) { not_before_receive(rank, 1, FI_MATCH_COMPLETE, 0); }
/* The buffer of an injected message may be overwritten at once, for every completion level. */
static void injected_delivered(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged), .tx_op_flags = FI_DELIVERY_COMPLETE };
	struct ct c;
	size_t n;
	char *b;

	ct_open(&c, &o);
	n = c.info->tx_attr->inject_size < 64 ? c.info->tx_attr->inject_size : 64;
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 4; i++) {
		if (rank == 0) {
			ct_barrier(&c);		/* sender has written over it, and watched its queue */
			post_recv(&c, tagged, RECV, b, n, 3, CTX(i));
			ct_recvd(&c, CTX(i), n);
			CHECK(ct_same(b, n, i));
		} else {
			struct iovec v = { b, n };
			struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .context = CTX(i) };
			struct fi_msg_tagged t = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .tag = 3, .context = CTX(i) };
			const uint64_t flags = FI_INJECT | FI_DELIVERY_COMPLETE | FI_COMPLETION;

			ct_fill(b, n, i);
			if (i % 2 && tagged)
				POST(&c, fi_tsendmsg(c.ep, &t, flags));
			else if (i % 2)
				POST(&c, fi_sendmsg(c.ep, &m, flags));
			else if (tagged)
				POST(&c, fi_tinject(c.ep, b, n, c.peer, 3));
			else
				POST(&c, fi_inject(c.ep, b, n, c.peer));
			memset(b, -1, n);
			if (i % 2 == 0)
				NOTHING(&c, c.tx, 20);
			ct_barrier(&c);
			if (i % 2)
				ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
static void msg_injected_delivered(int rank) { injected_delivered(rank, 0); }
static void tag_injected_delivered(int rank) { injected_delivered(rank, 1); }

/* Messages sent before any receive is posted arrive in order. */
static void unexpected_order(int rank)
{
	enum { N = 200 };
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, N * 64);
	if (rank == 1) {
		for (int i = 0; i < N; i++) {
			ct_fill(b + i * 64, 32 + i % 32, i);
			post_send(&c, 0, SEND, b + i * 64, 32 + i % 32, 0, 0, CTX(i));
		}
		for (int i = 0; i < N; i++)
			ct_sent(&c, CTX(i));
		ct_barrier(&c);
	} else {
		ct_idle(&c, 50);
		for (int i = 0; i < N; i++) {
			post_recv(&c, 0, RECV, b, 64, 0, CTX(i));
			ct_recvd(&c, CTX(i), 32 + i % 32);
			CHECK(ct_same(b, 32 + i % 32, i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void truncated(int rank, int tagged, int olen)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 70000);
	for (int i = 0; i < 4; i++) {
		size_t big = i & 1 ? ct_most(&c, 65536) : 256;

		if (rank == 0) {
			memset(b, 0, 512);
			if (i < 2)		/* posted before, then after the message came */
				post_recv(&c, tagged, RECV, b, 64, 7, CTX(i));
			ct_barrier(&c);
			if (i >= 2) {
				ct_idle(&c, 30);
				post_recv(&c, tagged, RECV, b, 64, 7, CTX(i));
			}
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			EQ(err.err, FI_ETRUNC);
			if (olen)
				EQ(err.olen, big - 64);
			CHECK(err.op_context == CTX(i));
			EQ(b[64], 0);		/* nothing past the end of the buffer */
			post_recv(&c, tagged, RECV, b, 64, 8, CTX(i + 10));
			ct_recvd(&c, CTX(i + 10), 64);
			CHECK(ct_same(b, 64, i));
		} else {
			ct_fill(b, big, i);
			ct_barrier(&c);
			post_send(&c, tagged, SEND, b, big, 0, 7, CTX(i));
			post_send(&c, tagged, SEND, b, 64, 0, 8, CTX(i + 10));
			/* in either order: comp_order is FI_ORDER_NONE */
			EQ(ct_next(&c, c.tx, &e, NULL, NULL), 1);
			CHECK(e.op_context == CTX(i) || e.op_context == CTX(i + 10));
			ct_sent(&c, e.op_context == CTX(i) ? CTX(i + 10) : CTX(i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void msg_truncated(int rank) { truncated(rank, 0, 0); }
static void tag_truncated(int rank) { truncated(rank, 1, 0); }
static void msg_olen(int rank) { truncated(rank, 0, 1); }
static void tag_olen(int rank) { truncated(rank, 1, 1); }

static void cancel(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		post_recv(&c, tagged, RECV, b, 64, 1, CTX(1));
		post_recv(&c, tagged, RECV, b + 64, 64, 1, CTX(2));
		post_recv(&c, tagged, RECV, b + 128, 64, 1, CTX(3));
		OK(fi_cancel(&c.ep->fid, CTX(2)));
		EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECANCELED);
		CHECK(err.op_context == CTX(2));
		OK(fi_cancel(&c.ep->fid, CTX(77)));	/* no such operation: not an error */
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), 10);
		ct_recvd(&c, CTX(3), 20);
		CHECK(ct_same(b, 10, 1) && ct_same(b + 128, 20, 2));
	} else {
		ct_barrier(&c);
		ct_fill(b, 10, 1);
		ct_fill(b + 64, 20, 2);
		post_send(&c, tagged, SEND, b, 10, 0, 1, CTX(1));
		post_send(&c, tagged, SEND, b + 64, 20, 0, 1, CTX(2));
		ct_sent(&c, CTX(1));
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}
static void msg_cancel(int rank) { cancel(rank, 0); }
static void tag_cancel(int rank) { cancel(rank, 1); }

/* Both sides keep a window of messages in flight in both directions. */
static void duplex(int rank, int tagged, size_t n, int count)
{
	enum { W = 16 };
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	char *s, *r;
	int posted = 0, sent = 0, done = 0;
	struct fi_cq_tagged_entry e;

	if (n > 16384)
		ct_needs_order();
	ct_open(&c, &o);
	s = ct_alloc(&c, n * W);
	r = ct_alloc(&c, n * W);
	for (int i = 0; i < W; i++)
		post_recv(&c, tagged, RECV, r + i * n, n, 0, CTX(i));
	ct_barrier(&c);
	while (done < count || sent < count) {
		ssize_t k;

		while (posted < count && posted - sent < W) {
			char *b = s + (posted % W) * n;

			ct_fill(b, n, posted + rank);
			post_send(&c, tagged, SEND, b, n, 0, 0, CTX(100 + posted % W));
			posted++;
		}
		k = fi_cq_read(c.tx, &e, 1);
		if (k == 1) {
			CHECK(e.op_context == CTX(100 + sent % W));
			sent++;
		} else {
			EQ(k, -FI_EAGAIN);
		}
		k = fi_cq_read(c.rx, &e, 1);
		if (k == 1) {
			int i = done % W;

			CHECK(e.op_context == CTX(i));
			EQ(e.len, n);
			if (!ct_same(r + i * n, n, done + !rank))
				FAIL("message %d has wrong bytes", done);
			done++;
			if (done + W <= count)
				post_recv(&c, tagged, RECV, r + i * n, n, 0, CTX(i));
		} else {
			EQ(k, -FI_EAGAIN);
		}
	}
	ct_done(&c);
}
static void duplex_small(int rank) { duplex(rank, 0, 64, ct_fewer(5000)); }
static void duplex_large(int rank) { duplex(rank, 0, 300000, ct_fewer(100)); }
static void tag_duplex_small(int rank) { duplex(rank, 1, 64, ct_fewer(5000)); }
static void tag_duplex_large(int rank) { duplex(rank, 1, 300000, ct_fewer(100)); }

/* More than the transmit queue holds is pushed back or queued, never lost. */
static void flood(int rank)
{
	enum { N = 3000 };
	struct ct c;
	char *b;
	long again = 0;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 4096);
	if (rank == 1) {
		int sent = 0, k = 0;
		struct fi_cq_tagged_entry e;

		while (sent < N) {
			if (k < N) {
				ssize_t r = fi_send(c.ep, b, 512, ct_desc(b), c.peer, CTX(k));

				if (r == 0) {
					k++;
					continue;
				}
				EQ(r, -FI_EAGAIN);
				again++;
			}
			if (fi_cq_read(c.tx, &e, 1) == 1)
				CHECK(e.op_context == CTX(sent++));
		}
	} else {
		ct_nap(50);
		for (int i = 0; i < N; i++) {
			post_recv(&c, 0, RECV, b, 512, 0, CTX(i));
			ct_recvd(&c, CTX(i), 512);
		}
	}
	ct_done(&c);
}

static void more_flag(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 64; i++) {
		if (rank == 0) {
			post_recv(&c, 0, RECV, b, 100, 0, CTX(i));
			ct_recvd(&c, CTX(i), 100);
			CHECK(ct_same(b, 100, i));
		} else {
			ct_fill(b, 100, i);
			smsg(&c, 0, b, 100, 0, 0, CTX(i), FI_COMPLETION | (i % 8 == 7 ? 0 : FI_MORE));
			if (i % 8 == 7)
				for (int j = i - 7; j <= i; j++)
					ct_sent(&c, CTX(j));
			b += 0;
			if (i % 8 != 7)
				b = ct_alloc(&c, 4096);	/* the buffer belongs to the library until then */
		}
	}
	ct_done(&c);
}

static void multi_recv(int rank)
{
	enum { N = 40, LEN = 256, MIN = 512, BUF = 4096 };
	struct ct_opt o = { .caps = FI_MSG | FI_MULTI_RECV };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 2 * BUF);
	if (rank == 0) {
		size_t min = MIN, len = sizeof min, used[2] = { 0, 0 };
		int seen = 0, released = 0;
		char *buf[2] = { b, b + BUF };

		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
		min = 0;
		OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, &len));
		EQ(min, MIN);
		for (int i = 0; i < 2; i++) {
			struct iovec v = { buf[i], BUF };
			void *d = ct_desc(buf[i]);
			struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(i) };
			POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
		}
		ct_barrier(&c);
		while (seen < N) {
			struct fi_cq_tagged_entry e = { 0 };
			int i;

			ct_next(&c, c.rx, &e, NULL, NULL);
			i = e.op_context == CTX(1);
			CHECK(e.op_context == CTX(i));
			if (e.flags & FI_RECV) {
				CHECK((char *)e.buf >= buf[i] && (char *)e.buf + e.len <= buf[i] + BUF);
				CHECK((char *)e.buf >= buf[i] + used[i]);
				used[i] = (char *)e.buf + e.len - buf[i];
				EQ(e.len, LEN);
				CHECK(ct_same(e.buf, LEN, seen));
				seen++;
			}
			if (e.flags & FI_MULTI_RECV) {
				struct iovec v = { buf[i], BUF };
				void *d = ct_desc(buf[i]);
				struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(i) };

				CHECK(BUF - used[i] < MIN);
				released++;
				used[i] = 0;
				POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
			}
		}
		CHECK(released >= N * LEN / BUF - 1);
	} else {
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			ct_fill(b, LEN, i);
			post_send(&c, 0, SEND, b, LEN, 0, 0, CTX(i));
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}

/* A multi-receive buffer posted while the queue is full takes waiting messages, in order. */
static void multi_recv_full_queue(int rank)
{
	enum { N = 4, LEN = 64, BUF = 4096 };
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV, .cq_size = 2 };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, BUF + N * LEN);
	if (rank == 0) {
		size_t min = LEN;
		struct iovec v = { b, BUF };
		void *d = ct_desc(b);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(9) };

		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
		for (int i = 0; i < 2; i++)
			POST(&c, fi_trecv(c.ep, b + BUF + i * LEN, LEN, ct_desc(b), FI_ADDR_UNSPEC, i, 0, CTX(i)));
		ct_barrier(&c);
		ct_barrier(&c);
		ct_idle(&c, 100);
		POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
		for (int i = 0; i < 2; i++)
			ct_recvd(&c, CTX(i), LEN);
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			struct fi_cq_tagged_entry e = ct_recvd(&c, CTX(9), LEN);

			CHECK((char *)e.buf == b + i * LEN);
			CHECK(ct_same(e.buf, LEN, i));
		}
	} else {
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			ct_fill(b + i * LEN, LEN, i);
			if (i == 2) {	/* those before them wait, and these fill the queue */
				for (int t = 0; t < 2; t++) {
					POST(&c, fi_tsend(c.ep, b + BUF, LEN, ct_desc(b), c.peer, t, CTX(t)));
					ct_sent(&c, CTX(t));
				}
				ct_barrier(&c);
				ct_barrier(&c);
			}
			POST(&c, fi_send(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}

/* The last message before the end of a connection, and then the buffer itself, come back. */
static void multi_recv_after_end(int rank)
{
	enum { LEN = 64, BUF = 4096 };
	struct ct_opt o = { .caps = FI_MSG | FI_MULTI_RECV };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, BUF);
	if (rank == 1) {
		POST(&c, fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
	} else {
		size_t min = LEN;
		struct iovec v = { b, BUF };
		void *d = ct_desc(b);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CTX(9) };
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		ct_barrier(&c);
		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
		ct_want_event(&c, FI_SHUTDOWN, NULL, 0);
		POST(&c, fi_recvmsg(c.ep, &m, FI_MULTI_RECV | FI_COMPLETION));
		ct_recvd(&c, CTX(9), LEN);
		EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECANCELED);
		CHECK(err.op_context == CTX(9) && (err.flags & FI_MULTI_RECV));
	}
	ct_close(&c);
}

/* One receiver, two senders: directed receives pick by source, in posting order. */
static void directed(int rank, int tagged)
{
	struct ct_opt o = { .caps = caps_of(tagged) | FI_DIRECTED_RECV };
	struct ct c, second;
	struct ct_name extra;
	fi_addr_t from2 = FI_ADDR_UNSPEC;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct fi_cq_tagged_entry e;

		ct_recv_oob(&c, &extra, sizeof extra);
		from2 = ct_insert(&c, &extra);
		/* second sender's message arrives first and must skip the first receive */
		if (tagged) {
			POST(&c, fi_trecv(c.ep, b, 64, ct_desc(b), c.peer, 1, 0, CTX(0)));
			POST(&c, fi_trecv(c.ep, b + 64, 64, ct_desc(b), from2, 1, 0, CTX(1)));
			POST(&c, fi_trecv(c.ep, b + 128, 64, ct_desc(b), FI_ADDR_UNSPEC, 1, 0, CTX(2)));
			POST(&c, fi_trecv(c.ep, b + 192, 64, ct_desc(b), from2, 1, 0, CTX(3)));
		} else {
			POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), c.peer, CTX(0)));
			POST(&c, fi_recv(c.ep, b + 64, 64, ct_desc(b), from2, CTX(1)));
			POST(&c, fi_recv(c.ep, b + 128, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(2)));
			POST(&c, fi_recv(c.ep, b + 192, 64, ct_desc(b), from2, CTX(3)));
		}
		ct_barrier(&c);
		e = ct_recvd(&c, CTX(1), 22);		/* exact source, posted before the wildcard */
		CHECK(ct_same(b + 64, 22, 2));
		ct_barrier(&c);
		e = ct_recvd(&c, CTX(2), 23);		/* the wildcard was posted before CTX(3) */
		CHECK(ct_same(b + 128, 23, 2));
		ct_barrier(&c);
		e = ct_recvd(&c, CTX(0), 11);
		CHECK(ct_same(b, 11, 1));
		ct_barrier(&c);
		e = ct_recvd(&c, CTX(3), 24);
		(void)e;
	} else {
		struct ct_name to = { .n = sizeof to.b };

		memset(&second, 0, sizeof second);
		second.o = o;
		extra = ct_open_rdm(&second, &c);
		OK(fi_av_lookup(c.av, c.peer, to.b, &to.n));
		second.peer = ct_insert(&second, &to);
		ct_send_oob(&extra, sizeof extra);
		ct_barrier(&c);
		ct_fill(b, 22, 2);
		post_send(&second, tagged, SEND, b, 22, 0, 1, CTX(0));
		ct_sent(&second, CTX(0));
		ct_barrier(&c);
		ct_fill(b, 23, 2);
		post_send(&second, tagged, SEND, b, 23, 0, 1, CTX(0));
		ct_sent(&second, CTX(0));
		ct_barrier(&c);
		ct_fill(b, 11, 1);
		post_send(&c, tagged, SEND, b, 11, 0, 1, CTX(0));
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		post_send(&second, tagged, SEND, b, 24, 0, 1, CTX(0));
		ct_sent(&second, CTX(0));
	}
	ct_barrier(&c);
	if (rank == 1)
		ct_close(&second);
	ct_close(&c);
}
static void msg_directed(int rank) { directed(rank, 0); }
static void tag_directed(int rank) { directed(rank, 1); }

/* An unexpected message of one source does not match a receive directed at another. */
static void directed_unexpected(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED | FI_DIRECTED_RECV };
	struct ct c, second;
	struct ct_name extra;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		fi_addr_t from2;

		ct_recv_oob(&c, &extra, sizeof extra);
		from2 = ct_insert(&c, &extra);
		ct_barrier(&c);
		ct_idle(&c, 50);
		POST(&c, fi_trecv(c.ep, b, 64, ct_desc(b), from2, 1, 0, CTX(1)));
		NOTHING(&c, c.rx, 50);
		POST(&c, fi_trecv(c.ep, b + 64, 64, ct_desc(b), c.peer, 1, 0, CTX(0)));
		ct_recvd(&c, CTX(0), 11);
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), 22);
	} else {
		struct ct_name to = { .n = sizeof to.b };

		memset(&second, 0, sizeof second);
		second.o = o;
		extra = ct_open_rdm(&second, &c);
		OK(fi_av_lookup(c.av, c.peer, to.b, &to.n));
		second.peer = ct_insert(&second, &to);
		ct_send_oob(&extra, sizeof extra);
		post_send(&c, 1, SEND, b, 11, 0, 1, CTX(0));
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		ct_barrier(&c);
		post_send(&second, 1, SEND, b, 22, 0, 1, CTX(0));
		ct_sent(&second, CTX(0));
	}
	ct_barrier(&c);
	if (rank == 1)
		ct_close(&second);
	ct_close(&c);
}

static void receives_before_connection(int rank)
{
	struct ct c;
	struct ct_name n;
	struct fi_eq_cm_entry e;
	static char b[64];

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
		ct_send_oob(&n, sizeof n);
		ct_want_event(&c, FI_CONNREQ, &e, sizeof e);
		fi_freeinfo(c.info);
		c.info = e.info;
		ct_open_domain(&c);
		ct_open_ep(&c, c.info);
		OK(fi_enable(c.ep));
		OK(fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(0)));
		OK(fi_accept(c.ep, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
		ct_recvd(&c, CTX(0), 64);
		CHECK(ct_same(b, 64, 5));
	} else {
		ct_recv_oob(NULL, &n, sizeof n);
		ct_prepare(&c, &n);
		OK(fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(0)));
		OK(fi_connect(c.ep, n.b, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
		ct_fill(b, 64, 5);
		post_send(&c, 0, SEND, b, 64, 0, 0, CTX(1));
		ct_sent(&c, CTX(1));
	}
	ct_done(&c);
}

static void v6(int rank)
{
	struct ct_opt o = { .af = AF_INET6 };
	struct ct c;
	char *b;

	ct_ip_only();
	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	EQ(c.info->addr_format, FI_SOCKADDR_IN6);
	if (rank == 0) {
		post_recv(&c, 0, RECV, b, 1000, 0, CTX(0));
		ct_recvd(&c, CTX(0), 1000);
		CHECK(ct_same(b, 1000, 3));
	} else {
		ct_fill(b, 1000, 3);
		post_send(&c, 0, SEND, b, 1000, 0, 0, CTX(0));
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}

static void bad_arguments(int rank)
{
	struct ct c;
	char *b;
	struct iovec v[64];
	void *d[64] = { 0 };
	struct fi_msg m = { .msg_iov = v, .desc = d, .iov_count = 64 };
	size_t inj;
	ssize_t r;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 1 << 20);
	for (int i = 0; i < 64; i++)
		v[i] = (struct iovec){ b, 1 };
	inj = c.info->tx_attr->inject_size;
	m.addr = c.peer;
	if (rank == 1) {
		r = fi_inject(c.ep, b, inj + 1, c.peer);
		CHECK(r < 0 && r != -FI_EAGAIN);
		CHECK(c.info->tx_attr->iov_limit < 64);
		r = fi_sendv(c.ep, v, d, 64, c.peer, CTX(0));
		CHECK(r < 0 && r != -FI_EAGAIN);
		r = fi_sendmsg(c.ep, &m, 0);
		CHECK(r < 0 && r != -FI_EAGAIN);
		r = fi_recvv(c.ep, v, d, 64, FI_ADDR_UNSPEC, CTX(0));
		CHECK(r < 0 && r != -FI_EAGAIN);
	}
	/* and the endpoint still works */
	if (rank == 0) {
		post_recv(&c, 0, RECV, b, 8, 0, CTX(0));
		ct_recvd(&c, CTX(0), 8);
	} else {
		post_send(&c, 0, SEND, b, 8, 0, 0, CTX(0));
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}

/* Both first messages cross on the wire: one connection must win, no message be lost. */
static void crossing(int rank)
{
	for (int round = 0; round < 10; round++) {
		struct ct c;
		char *b;

		ct_open(&c, NULL);
		b = ct_alloc(&c, 4096);
		post_recv(&c, 0, RECV, b, 64, 0, CTX(0));
		ct_fill(b + 64, 64, round + rank);
		post_send(&c, 0, SEND, b + 64, 64, 0, 0, CTX(1));
		ct_sent(&c, CTX(1));
		ct_recvd(&c, CTX(0), 64);
		CHECK(ct_same(b, 64, round + !rank));
		ct_done(&c);
	}
}

/* Sixteen endpoints in each process, each sends one message to every other. */
static void many(int rank)
{
	enum { K = 16 };
	static struct ct e[K];
	static struct ct_name mine[K], theirs[K];
	static fi_addr_t to[K][2 * K];
	static uint32_t out[2 * K], in[K][2 * K];
	struct fi_cq_tagged_entry x;
	int got = 0, sent = 0;

	for (int i = 0; i < K; i++)
		mine[i] = ct_open_rdm(&e[i], i ? &e[0] : NULL);
	ct_swap(NULL, mine, theirs, sizeof mine);
	for (int i = 0; i < K; i++) {
		for (int j = 0; j < K; j++) {
			to[i][j] = ct_insert(&e[i], rank ? &theirs[j] : &mine[j]);
			to[i][K + j] = ct_insert(&e[i], rank ? &mine[j] : &theirs[j]);
		}
		for (int j = 0; j < 2 * K; j++)
			POST(&e[i], fi_recv(e[i].ep, &in[i][j], 4, NULL, FI_ADDR_UNSPEC, CTX(j)));
	}
	ct_barrier(NULL);
	for (int i = 0; i < K; i++) {
		out[i] = rank * K + i;
		for (int j = 0; j < 2 * K; j++) {
			ssize_t r;
			while ((r = fi_send(e[i].ep, &out[i], 4, NULL, to[i][j], CTX(100 + j))) == -FI_EAGAIN)
				for (int k = 0; k < K; k++)
					ct_progress(&e[k]);
			OK(r);
		}
	}
	while (got < K * 2 * K || sent < K * 2 * K) {
		for (int i = 0; i < K; i++) {
			ssize_t r = fi_cq_read(e[i].rx, &x, 1);
			CHECK(r == 1 || r == -FI_EAGAIN);
			if (r == 1) {
				EQ(x.len, 4);
				got++;
			}
			r = fi_cq_read(e[i].tx, &x, 1);
			CHECK(r == 1 || r == -FI_EAGAIN);
			sent += r == 1;
		}
	}
	for (int i = 0; i < K; i++) {
		uint64_t seen = 0;

		for (int j = 0; j < 2 * K; j++)
			seen |= 1ull << in[i][j];
		EQ(seen, (1ull << (2 * K)) - 1);
	}
	{	/* others may still need our progress */
		char a = 0;
		ct_send_oob(&a, 1);
		while (recv(ct_sync, &a, 1, MSG_DONTWAIT) != 1)
			for (int i = 0; i < K; i++)
				ct_progress(&e[i]);
	}
	for (int i = K - 1; i >= 0; i--)
		ct_close(&e[i]);
}

static void self_send(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct ct c;
	struct ct_name n;
	static char a[100000], b[100000];
	fi_addr_t me;

	(void)rank;
	memset(&c, 0, sizeof c);
	c.o = o;
	n = ct_open_rdm(&c, NULL);
	me = ct_insert(&c, &n);
	ct_fill(a, sizeof a, 1);
	POST(&c, fi_trecv(c.ep, b, sizeof b, NULL, me, 4, 0, CTX(0)));
	POST(&c, fi_tsend(c.ep, a, sizeof a, NULL, me, 4, CTX(1)));
	ct_recvd(&c, CTX(0), sizeof b);
	ct_sent(&c, CTX(1));
	CHECK(ct_same(b, sizeof b, 1));
	ct_close(&c);
}

#define BURST 5
static void say_burst(struct ct *c)
{
	for (int i = 0; i < BURST; i++)
		while (fi_inject(c->ep, &i, sizeof i, c->peer) == -FI_EAGAIN)
			ct_progress(c);
}
static void receive_burst(struct ct *c)
{
	char b[BURST][8];

	for (int i = 0; i < BURST; i++)
		OK(fi_recv(c->ep, b[i], sizeof b[i], NULL, c->peer, &ct_ctx[i]));
	for (int i = 0; i < BURST; i++) {
		int got;

		ct_recvd(c, &ct_ctx[i], sizeof got);
		memcpy(&got, b[i], sizeof got);
		EQ(got, i);
	}
}
/* A sender that makes no further call while it waits must not hold back its messages. */
static void burst_leaves(int rank)
{
	struct ct_opt o = { .progress = ct_auto() };
	struct ct c;
	char go;

	ct_open(&c, &o);
	if (rank == 0) {
		say_burst(&c);
		/* blocks in the system: no progress by calls */
		ct_recv_oob(NULL, &go, 1);
	} else {
		receive_burst(&c);
		ct_send_oob("x", 1);
	}
	ct_done(&c);
}
/*
 * A sender with immediate answers to its messages, time after time, gets the completion of the last one
 * although its receiver makes no further call.
 */
static void no_answer(int rank)
{
	enum { ROUNDS = 200, LEN = 8 };
	struct ct_opt o = { .threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL };
	struct ct c;
	char *in, *out, go;

	ct_open(&c, &o);
	in = ct_alloc(&c, LEN);
	out = ct_alloc(&c, LEN);
	OK(fi_recv(c.ep, in, LEN, ct_desc(in), c.peer, CTX(1)));
	ct_barrier(&c);
	for (int i = 0; i < ROUNDS; i++) {
		if (rank == 0)
			POST(&c, fi_send(c.ep, out, LEN, ct_desc(out), c.peer, CTX(0)));
		ct_recvd(&c, CTX(1), LEN);
		OK(fi_recv(c.ep, in, LEN, ct_desc(in), c.peer, CTX(1)));
		if (rank == 1)
			POST(&c, fi_send(c.ep, out, LEN, ct_desc(out), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
	}
	if (rank == 0) {
		POST(&c, fi_send(c.ep, out, LEN, ct_desc(out), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
		ct_send_oob("x", 1);
	} else {
		ct_recvd(&c, CTX(1), LEN);
		ct_recv_oob(NULL, &go, 1);
	}
	ct_done(&c);
}
/* fi_inject is complete when it returns: the program may end without a word. */
static void exit_after_inject(int rank)
{
	struct ct c;
	char b[8];

	ct_open(&c, NULL);
	/* connected, before the burst */
	if (rank == 0) {
		while (fi_send(c.ep, b, 1, NULL, c.peer, &ct_ctx[BURST]) == -FI_EAGAIN)
			ct_progress(&c);
		ct_sent(&c, &ct_ctx[BURST]);
	} else {
		OK(fi_recv(c.ep, b, 1, NULL, c.peer, &ct_ctx[BURST]));
		ct_recvd(&c, &ct_ctx[BURST], 1);
	}
	if (rank == 0) {
		say_burst(&c);
		exit(0);
	}
	receive_burst(&c);
	ct_close(&c);
}

/* Each side's fence waits for a message that the other side has yet to fetch, behind a fence of its own. */
static void fences_behind_large(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_FENCE };
	size_t big = 2 << 20;
	struct ct c;
	char *in, *out;

	ct_open(&c, &o);
	in = ct_alloc(&c, big + 64);
	out = ct_alloc(&c, big + 64);
	for (int i = 0; i < 20; i++) {
		struct iovec v = { out + big, 64 };
		void *d = ct_desc(out);
		struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .context = CTX(1) };

		ct_fill(out, big, 10 + i + rank);
		ct_fill(out + big, 64, 50 + i + rank);
		POST(&c, fi_send(c.ep, out, big, d, c.peer, CTX(0)));
		POST(&c, fi_sendmsg(c.ep, &m, FI_COMPLETION | FI_FENCE));
		POST(&c, fi_recv(c.ep, in, big, ct_desc(in), c.peer, CTX(2)));
		POST(&c, fi_recv(c.ep, in + big, 64, ct_desc(in), c.peer, CTX(3)));
		ct_sent(&c, CTX(0));
		ct_sent(&c, CTX(1));
		ct_recvd(&c, CTX(2), big);
		ct_recvd(&c, CTX(3), 64);
		CHECK(ct_same(in, big, 10 + i + !rank) && ct_same(in + big, 64, 50 + i + !rank));
		ct_barrier(&c);
	}
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "fences of both sides wait for large messages and not for each other", fences_behind_large, CT_REL },
	{ "fi_send of every size arrives intact in every receive call", msg_send, 0 },
	{ "fi_sendv of every size arrives intact in every receive call", msg_sendv, 0 },
	{ "fi_sendmsg of every size arrives intact in every receive call", msg_sendmsg, 0 },
	{ "fi_inject leaves the buffer reusable and generates no completion", msg_inject, 0 },
	{ "fi_senddata delivers remote CQ data", msg_senddata, 0 },
	{ "fi_injectdata delivers remote CQ data", msg_injectdata, 0 },
	{ "fi_tsend of every size arrives intact in every receive call", tag_send, 0 },
	{ "fi_tsendv of every size arrives intact in every receive call", tag_sendv, 0 },
	{ "fi_tsendmsg of every size arrives intact in every receive call", tag_sendmsg, 0 },
	{ "fi_tinject leaves the buffer reusable and generates no completion", tag_inject, 0 },
	{ "fi_tsenddata delivers remote CQ data", tag_senddata, 0 },
	{ "fi_tinjectdata delivers remote CQ data", tag_injectdata, 0 },
	{ "fi_sendmsg carries data only with FI_REMOTE_CQ_DATA", msg_rcqd, 0 },
	{ "fi_tsendmsg carries data only with FI_REMOTE_CQ_DATA", tag_rcqd, 0 },
	{ "FI_INJECT on fi_sendmsg leaves the buffer reusable", msg_inject_flag, 0 },
	{ "FI_INJECT on fi_tsendmsg leaves the buffer reusable", tag_inject_flag, 0 },
	{ "selective completion reports only operations with FI_COMPLETION", msg_selective, 0 },
	{ "selective completion reports only tagged messages with FI_COMPLETION", tag_selective, 0 },
	{ "FI_COMPLETION as default operation flag applies to fi_send and not to fi_sendmsg", selective_default, 0 },
	{ "a receive accepts FI_TRANSMIT_COMPLETE", recv_level, 0 },
	{ "FI_INJECT_COMPLETE completes", inject_complete, 0 },
	{ "FI_TRANSMIT_COMPLETE completes", transmit_complete, 0 },
	{ "FI_DELIVERY_COMPLETE completes", delivery_complete, CT_REL },
	{ "FI_DELIVERY_COMPLETE completes for a large message", delivery_complete_large, CT_REL },
	{ "FI_DELIVERY_COMPLETE completes for a tagged message", tag_delivery_complete, 0 },
	{ "FI_MATCH_COMPLETE completes for a tagged message", tag_match_complete, 0 },
	{ "an injected message with FI_DELIVERY_COMPLETE releases its buffer immediately", msg_injected_delivered, CT_REL },
	{ "an injected tagged message with FI_DELIVERY_COMPLETE releases its buffer immediately", tag_injected_delivered, 0 },
	{ "of two messages with FI_MATCH_COMPLETE only the received one completes", received_first_completes_first, CT_REL },
	{ "FI_MATCH_COMPLETE waits for the match", tag_matched_late, 0 },
	{ "FI_MATCH_COMPLETE of an empty message waits for the match", tag_matched_late_empty, 0 },
	{ "FI_DELIVERY_COMPLETE waits for a stopped process", msg_stopped, CT_REL },
	{ "FI_DELIVERY_COMPLETE of an empty message waits for a stopped process", msg_stopped_empty, CT_REL },
	{ "FI_DELIVERY_COMPLETE of an empty tagged message waits for a stopped process", tag_stopped_empty, CT_REL },
	{ "FI_MATCH_COMPLETE of an empty message waits for a stopped process", match_stopped_empty, CT_REL },
	{ "messages sent before any receive arrive in order", unexpected_order, 0 },
	{ "a message longer than its buffer gives FI_ETRUNC and affects no other", msg_truncated, 0 },
	{ "a tagged message longer than its buffer gives FI_ETRUNC and affects no other", tag_truncated, 0 },
	{ "olen of a truncated message counts the bytes that did not fit", msg_olen, 0 },
	{ "olen of a truncated tagged message counts the bytes that did not fit", tag_olen, 0 },
	{ "fi_cancel cancels one receive", msg_cancel, 0 },
	{ "fi_cancel cancels one tagged receive", tag_cancel, 0 },
	{ "small messages flow in both directions concurrently", duplex_small, CT_REL },
	{ "large messages flow in both directions concurrently", duplex_large, CT_REL },
	{ "small tagged messages flow in both directions concurrently", tag_duplex_small, 0 },
	{ "large tagged messages flow in both directions concurrently", tag_duplex_large, 0 },
	{ "a flood of sends is pushed back without loss", flood, CT_REL },
	{ "FI_MORE delays no message indefinitely", more_flag, 0 },
	{ "a multi-receive buffer takes messages until less than the minimum is left", multi_recv, 0 },
	{ "a multi-receive buffer posted while the queue is full takes waiting messages in order", multi_recv_full_queue, CT_REL },
	{ "a multi-receive buffer is released at the end of the connection", multi_recv_after_end, CT_MSG },
	{ "directed receives pick by source in posting order", msg_directed, CT_RDM },
	{ "directed tagged receives pick by source in posting order", tag_directed, CT_RDM },
	{ "an unexpected message waits for a receive directed at its source", directed_unexpected, CT_RDM },
	{ "receives may be posted before the connection", receives_before_connection, CT_MSG },
	{ "IPv6 loopback carries messages", v6, 0 },
	{ "arguments beyond the limits are refused without side effects", bad_arguments, 0 },
	{ "first messages sent to each other establish one connection and arrive", crossing, CT_RDM },
	{ "thirty-two endpoints exchange messages with each other", many, CT_RDM },
	{ "an endpoint can send to itself", self_send, CT_RDM | CT_SOLO },
	{ "a burst is sent although its sender makes no further call", burst_leaves, 0 },
	{ "the last message completes although its receiver makes no further call", no_answer, CT_REL },
	{ "injected messages are sent although their sender exits immediately", exit_after_inject, CT_REL },
};
CT_MAIN("data", tests)
