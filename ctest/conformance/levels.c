/*
 * Completion levels (fi_cq(3)), and operations that outlive the call that ends their endpoint: a success
 * completion, or an injected message that was accepted, is never followed by loss while both processes live.
 */
#include "ct.h"

#define LARGE 100000	/* in segments over ofi_rxm */

static uint64_t caps_of(int tagged) { return tagged ? FI_TAGGED : FI_MSG; }
static const size_t sizes[] = { 0, 1, 200, 4096, 16384, 16385, LARGE };
#define SIZES (int)(sizeof sizes / sizeof *sizes)

static void send_level(struct ct *c, int tagged, char *b, size_t n, uint64_t tag, void *ctx, uint64_t flags)
{
	struct iovec v = { b, n };
	void *d = ct_desc(b);
	struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer, .context = ctx };
	struct fi_msg_tagged t = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer, .tag = tag, .context = ctx };

	if (tagged)
		POST(c, fi_tsendmsg(c->ep, &t, flags | FI_COMPLETION));
	else
		POST(c, fi_sendmsg(c->ep, &m, flags | FI_COMPLETION));
}
static void post(struct ct *c, int tagged, char *b, size_t n, uint64_t tag, void *ctx)
{
	if (tagged)
		POST(c, fi_trecv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, tag, 0, ctx));
	else
		POST(c, fi_recv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, ctx));
}

/*
 * fi_cq(3), FI_TRANSMIT_COMPLETE: "a completion should be generated when the operation has been delivered to the
 * peer endpoint"; FI_DELIVERY_COMPLETE: "an application may need to provide a receive buffers in order to
 * retrieve messages that were buffered by the provider."  So neither waits for a posted receive.
 */
static void no_receive(int rank, int tagged, uint64_t level)
{
	struct ct_opt o = { .caps = caps_of(tagged) };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, LARGE);
	for (int i = 0; i < SIZES; i++) {
		if (sizes[i] > ct_unreceived(ct_most(&c, sizes[i])))
			continue;
		if (rank == 0) {
			ct_fill(b, sizes[i], i);
			send_level(&c, tagged, b, sizes[i], i, CTX(i), level);
			ct_sent(&c, CTX(i));		/* rank 1 only makes progress */
			ct_barrier(&c);
		} else {
			ct_barrier(&c);
			post(&c, tagged, b, LARGE, i, CTX(i));
			ct_recvd(&c, CTX(i), sizes[i]);
			CHECK(ct_same(b, sizes[i], i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void transmit(int rank) { no_receive(rank, 0, FI_TRANSMIT_COMPLETE); }
static void tag_transmit(int rank) { no_receive(rank, 1, FI_TRANSMIT_COMPLETE); }
static void delivery(int rank) { no_receive(rank, 0, FI_DELIVERY_COMPLETE); }
static void tag_delivery(int rank) { no_receive(rank, 1, FI_DELIVERY_COMPLETE); }
static void tag_inject(int rank) { no_receive(rank, 1, FI_INJECT_COMPLETE); }

/*
 * Both ranks send first and receive then: with a level that waited for the receive neither would get there
 * (MPI_Send of an MPI that asks for FI_DELIVERY_COMPLETE).
 */
static void both_send_first(int rank, int tagged, uint64_t level)
{
	struct ct_opt o = { .caps = caps_of(tagged), .tx_op_flags = level };
	struct ct c;
	char *b, *in;

	ct_open(&c, &o);
	b = ct_alloc(&c, LARGE);
	in = ct_alloc(&c, LARGE);
	for (int i = 0; i < SIZES; i++) {
		if (sizes[i] > ct_unreceived(ct_most(&c, sizes[i])))
			continue;
		ct_fill(b, sizes[i], i + rank);
		if (tagged)
			POST(&c, fi_tsend(c.ep, b, sizes[i], ct_desc(b), c.peer, i, CTX(0)));
		else
			POST(&c, fi_send(c.ep, b, sizes[i], ct_desc(b), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
		post(&c, tagged, in, LARGE, i, CTX(1));
		ct_recvd(&c, CTX(1), sizes[i]);
		CHECK(ct_same(in, sizes[i], i + !rank));
	}
	ct_done(&c);
}
static void both_transmit(int rank) { both_send_first(rank, 0, FI_TRANSMIT_COMPLETE); }
static void both_delivery(int rank) { both_send_first(rank, 0, FI_DELIVERY_COMPLETE); }
static void tag_both_delivery(int rank) { both_send_first(rank, 1, FI_DELIVERY_COMPLETE); }

/*
 * Of messages that wait for their match (fi_tagged(3), FI_MATCH_COMPLETE: "a completion should be generated only
 * after the message has been matched") and messages that do not, each completes by itself.
 */
static void levels_mixed(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 8192);
	if (rank == 0) {
		ct_fill(b, 8192, 1);
		send_level(&c, 1, b, 100, 7, CTX(7), FI_MATCH_COMPLETE);
		send_level(&c, 1, b, 8192, 8, CTX(8), FI_DELIVERY_COMPLETE);
		ct_sent(&c, CTX(8));
		NOTHING(&c, c.tx, 50);
		ct_barrier(&c);
		ct_sent(&c, CTX(7));
	} else {
		ct_barrier(&c);
		post(&c, 1, b, 8192, 7, CTX(1));
		ct_recvd(&c, CTX(1), 100);
		post(&c, 1, b, 8192, 8, CTX(2));
		ct_recvd(&c, CTX(2), 8192);
		CHECK(ct_same(b, 8192, 1));
	}
	ct_done(&c);
}

/* ---- accepted operations outlive their endpoint ---------------------------- */

#define INJECTS 8
/*
 * fi_msg(3), fi_inject: "The data buffer is available for reuse immediately on return from the call, and no CQ
 * entry will be written if the transfer completes successfully."  A message that was taken in this way reaches a
 * living peer, although there was no connection yet and the endpoint closes at once.  `late`: the receiver makes no progress for a while.  `both`: calls cross.
 */
static void inject_and_close(int rank, int late, int both)
{
	struct ct_opt o = { .caps = FI_TAGGED };

	for (int round = 0; round < 3; round++) {
		struct ct c;
		char *b;
		size_t n;

		ct_open(&c, &o);
		n = c.info->tx_attr->inject_size < 64 ? c.info->tx_attr->inject_size : 64;
		b = ct_alloc(&c, 4096);
		if (rank == 1 || both)
			for (int i = 0; i < INJECTS; i++)
				post(&c, 1, b + 128 * i, 128, i, CTX(i));
		if (rank == 0 || both) {
			for (int i = 0; i < INJECTS; i++) {
				char out[64];

				ct_fill(out, n, i + round);
				POST(&c, fi_tinject(c.ep, out, n, c.peer, i));
			}
		}
		if (rank == 1 || both) {
			if (late)
				ct_nap(round ? 200 : 1500);	/* longer than a close waits for connected peers that take nothing */
			for (int i = 0; i < INJECTS; i++) {
				struct fi_cq_tagged_entry e;

				ct_next(&c, c.rx, &e, NULL, NULL);
				EQ(e.len, n);
				CHECK(ct_same(b + 128 * e.tag, n, e.tag + round));
			}
		}
		/* no barrier: the sender is through without another word */
		ct_close(&c);
		ct_barrier(NULL);
	}
}
static void close_at_once(int rank) { inject_and_close(rank, 0, 0); }
static void close_to_late(int rank) { inject_and_close(rank, 1, 0); }
static void close_crossing(int rank) { inject_and_close(rank, 0, 1); }

/* A message that is complete arrives although its sender closes with messages that it has not received. */
static void close_with_unread(int rank)
{
	enum { N = 1 << 20 };
	struct ct_opt o = { .caps = FI_TAGGED };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, N);
	if (rank == 0) {
		ct_barrier(&c);		/* messages wait for it */
		ct_fill(b, N, 5);
		POST(&c, fi_tsend(c.ep, b, N, ct_desc(b), c.peer, 1, CTX(0)));
		ct_sent(&c, CTX(0));
		ct_close(&c);
		ct_barrier(NULL);
	} else {
		for (int i = 0; i < 20; i++) {
			POST(&c, fi_tsend(c.ep, b, 100, ct_desc(b), c.peer, 2, CTX(1)));
			ct_sent(&c, CTX(1));
		}
		post(&c, 1, b, N, 1, CTX(2));
		ct_barrier(&c);
		ct_recvd(&c, CTX(2), N);
		CHECK(ct_same(b, N, 5));
		ct_barrier(NULL);
		ct_close(&c);
	}
}

/*
 * fi_endpoint(3), fi_close: "Outstanding operations posted to the endpoint when fi_close is called will be
 * discarded. Discarded operations will silently be dropped, with no completions reported."
 */
static void close_is_silent(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 4; i++)
		post(&c, 1, b, 100, 77, CTX(i));
	if (rank == 0) {
		send_level(&c, 1, b, 100, 5, CTX(9), FI_MATCH_COMPLETE);
		ct_idle(&c, 20);
	}
	ct_barrier(&c);
	if (rank == 0) {	/* the other one may see the end of the connection */
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		NOTHING(&c, c.rx, 50);
		NOTHING(&c, c.tx, 1);
	}
	ct_done(&c);
}

/*
 * fi_cq(3): "Note that error completions are generated for all operations, including those for which a completion
 * was not requested (e.g. an endpoint is configured with FI_SELECTIVE_COMPLETION, but the request did not have the
 * FI_COMPLETION flag set)."
 */
static void failed_inject(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct c, gone;
	struct ct_name name;
	ssize_t r;

	(void)rank;
	ct_ip_only();
	if (ct_is_rxd())
		SKIP("a peer that is silent counts as gone after minutes only");
	memset(&gone, 0, sizeof gone);
	gone.o = o;
	name = ct_open_rdm(&gone, NULL);
	memset(&c, 0, sizeof c);
	c.o = o;
	ct_open_rdm(&c, NULL);
	c.peer = ct_insert(&c, &name);
	ct_close(&gone);
	while ((r = fi_tinject(c.ep, "x", 1, c.peer, 1)) == -FI_EAGAIN)
		ct_progress(&c);
	if (r)
		SKIP("refuses it in the call: %zd %s", r, fi_strerror((int)-r));
	EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.err && err.flags & FI_SEND);
	NOTHING(&c, c.tx, 20);
	ct_close(&c);
}

/* ---- refused accesses during other traffic ---------------------------------- */

struct region { uint64_t addr, key; };
enum wrong { WRONG_KEY, OUT_OF_BOUNDS, NO_RIGHT, WRONGS };

static void access_peer(struct ct *c, int write, char *b, size_t n, uint64_t addr, uint64_t key, void *ctx, uint64_t flags)
{
	struct iovec v = { b, n };
	void *d = ct_desc(b);
	struct fi_rma_iov r = { addr, n, key };
	struct fi_msg_rma m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c->peer, .rma_iov = &r,
		.rma_iov_count = 1, .context = ctx };

	if (write)
		POST(c, fi_writemsg(c->ep, &m, flags | FI_COMPLETION));
	else
		POST(c, fi_readmsg(c->ep, &m, flags | FI_COMPLETION));
}
/*
 * An access without the right to it fails alone: with an error entry, and nothing else is lost, neither messages
 * that are complete nor those that follow.
 */
static void refused(int rank, int write, uint64_t level, size_t n)
{
	enum { MESSAGES = 60 };
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct ct c;
	struct region mine[2] = { { 0, 0 } }, theirs[2];
	struct fid_mr *mr[2];
	char *b, *in;

	if (ct_is_rxd())
		SKIP("asks for a right before it sends");
	ct_open(&c, &o);
	b = ct_alloc(&c, 2 * n);
	in = ct_alloc(&c, 2 * n);
	for (int i = 0; i < 2; i++) {
		const int offset = !(c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR);

		/* the second may be read when it is to be written, and the other way around */
		OK(fi_mr_reg(c.domain, in + i * n, n, i ? write ? FI_REMOTE_READ : FI_REMOTE_WRITE : FI_REMOTE_READ | FI_REMOTE_WRITE,
			     0, 11 + i, 0, &mr[i], NULL));
		if (c.info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
			OK(fi_mr_bind(mr[i], &c.ep->fid, 0));
			OK(fi_mr_enable(mr[i]));
		}
		mine[i].key = fi_mr_key(mr[i]);
		mine[i].addr = offset ? 0 : (uintptr_t)(in + i * n);
	}
	ct_swap(&c, mine, theirs, sizeof mine);
	if (rank == 0) {
		int sent = 0, failed = 0, posted = 0;
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		for (int i = 0; i < MESSAGES; i++) {
			*(int *)b = i;
			POST(&c, fi_inject(c.ep, b, sizeof i, c.peer));
			if (i % 10 == 5) {
				const enum wrong wrong = i / 10 % WRONGS;
				const struct region *r = &theirs[wrong == NO_RIGHT];

				access_peer(&c, write, b + n, n, r->addr + (wrong == OUT_OF_BOUNDS), r->key + (wrong == WRONG_KEY) * 0x5000,
					    CTX(100 + i), level);
				posted++;
			}
			send_level(&c, 0, b, sizeof i, 0, CTX(i), FI_TRANSMIT_COMPLETE);
			while (sent <= i)
				if (ct_next(&c, c.tx, &e, NULL, &err) == 1) {
					CHECK(e.op_context == CTX(i));
					sent++;
				} else {
					CHECK(err.op_context >= CTX(100) && err.err && err.err != FI_ECANCELED);
					failed++;
				}
		}
		while (failed < posted) {
			EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context >= CTX(100));
			failed++;
		}
		/* the same connection still executes permitted operations */
		access_peer(&c, write, b, n, theirs[0].addr, theirs[0].key, CTX(3), FI_DELIVERY_COMPLETE);
		ct_sent(&c, CTX(3));
	} else {
		char *to = ct_alloc(&c, 4096);

		for (int i = 0; i < 2 * MESSAGES; i++) {
			POST(&c, fi_recv(c.ep, to, sizeof(int), ct_desc(to), FI_ADDR_UNSPEC, CTX(i)));
			ct_recvd(&c, CTX(i), sizeof(int));
			EQ(*(int *)to, i / 2);
		}
	}
	ct_barrier(&c);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	for (int i = 0; i < 2; i++)
		OK(fi_close(&mr[i]->fid));
	ct_done(&c);
}
static void read_refused(int rank) { refused(rank, 0, 0, 512); }
static void large_read_refused(int rank) { refused(rank, 0, 0, 200000); }
static void write_refused(int rank) { refused(rank, 1, 0, 512); }
static void large_write_refused(int rank) { refused(rank, 1, 0, 200000); }
/* The refusal overtakes the bytes, which the peer does not read from where they are. */
static void unsent_write_refused(int rank)
{
	ct_param("LOCAL_CMA", "0");
	refused(rank, 1, 0, 4 << 20);
}
static void delivered_write_refused(int rank) { refused(rank, 1, FI_DELIVERY_COMPLETE, 512); }

static const struct ct_test tests[] = {
	{ "FI_TRANSMIT_COMPLETE needs no posted receive", transmit, CT_REL },
	{ "FI_TRANSMIT_COMPLETE of a tagged message needs no posted receive", tag_transmit, CT_REL },
	{ "FI_DELIVERY_COMPLETE needs no posted receive", delivery, CT_REL },
	{ "FI_DELIVERY_COMPLETE of a tagged message needs no posted receive", tag_delivery, CT_REL },
	{ "FI_INJECT_COMPLETE of a tagged message needs no posted receive", tag_inject, CT_REL },
	{ "both sides send with FI_TRANSMIT_COMPLETE before they receive", both_transmit, CT_REL },
	{ "both sides send with FI_DELIVERY_COMPLETE before they receive", both_delivery, CT_REL },
	{ "both sides send tagged messages with FI_DELIVERY_COMPLETE before they receive", tag_both_delivery, CT_REL },
	{ "a message waiting for its match delays no other completion", levels_mixed, CT_REL },
	{ "injected messages arrive though their endpoint closes before it is connected", close_at_once, CT_RDM | CT_REL },
	{ "injected messages arrive at a peer that makes progress later", close_to_late, CT_RDM | CT_REL },
	{ "injected messages cross while both endpoints close", close_crossing, CT_RDM | CT_REL },
	{ "a completed message arrives though its sender closes with unread input", close_with_unread, CT_REL },
	{ "operations of a closed endpoint are not reported", close_is_silent, CT_REL },
	{ "an injected message that fails has an error entry", failed_inject, CT_SOLO | CT_RDM | CT_REL },
	{ "a read that is refused fails alone", read_refused, CT_REL },
	{ "a large read that is refused fails alone", large_read_refused, CT_REL },
	{ "a write that is refused fails alone", write_refused, CT_REL },
	{ "a large write that is refused fails alone", large_write_refused, CT_REL },
	{ "a write that is refused before its last byte is sent fails alone", unsent_write_refused, CT_REL },
	{ "a write with FI_DELIVERY_COMPLETE that is refused fails alone", delivered_write_refused, CT_REL },
};
CT_MAIN("levels", tests)
