/* fi_rma(3): every call, sizes, several places, rights, events. */
#include "ct.h"

static const uint64_t CAPS = FI_MSG | FI_RMA | FI_RMA_EVENT;
static const size_t sizes[] = { 1, 64, 1024, 4096, 65536, 1 << 20, 5 << 20 };
#define MAX (5 << 20)

struct region { uint64_t key, addr; };
static struct fid_mr *mr[2];

/* Registers b and sends its description to the other rank; returns the one received. */
static struct region share(struct ct *c, int i, void *b, size_t n, uint64_t access)
{
	struct region mine, theirs;

	OK(fi_mr_reg(c->domain, b, n, access, 0, 100 + i, 0, &mr[i], NULL));
	mine.key = fi_mr_key(mr[i]);
	mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	ct_swap(c, &mine, &theirs, sizeof mine);
	return theirs;
}
static void done(struct ct *c)
{
	ct_barrier(c);
	for (int i = 0; i < 2; i++)
		if (mr[i])
			OK(fi_close(&mr[i]->fid));
	ct_close(c);
}
static void open_rma(struct ct *c, int cntr)
{
	struct ct_opt o = { .caps = CAPS, .cntr = cntr };

	mr[0] = mr[1] = NULL;
	ct_open(c, &o);
}
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

static void write_sizes(int rank)
{
	struct ct c;
	struct region r;
	char *b, *s;

	open_rma(&c, 0);
	b = ct_alloc(&c, MAX);
	s = ct_alloc(&c, MAX);
	r = share(&c, 0, b, MAX, REMOTE);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (rank == 0) {
			ct_fill(s, sizes[i], i);
			POST(&c, fi_write(c.ep, s, sizes[i], ct_desc(s), c.peer, r.addr + 7 * (i < 4), r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			POST(&c, fi_inject(c.ep, s, 1, c.peer));
		} else {
			char x;

			/* a message behind a write arrives behind it (FI_ORDER_SAW) */
			POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(0)));
			ct_recvd(&c, CTX(0), 1);
			CHECK(ct_same(b + 7 * (i < 4), sizes[i], i));
		}
		ct_barrier(&c);
	}
	done(&c);
}
/*
 * fi_getinfo(3), FI_MSG: "The caps may be used to specify or restrict the type of messaging operations that are supported."
 * May: programs that name access to memory alone send messages as well, and the original sends them.
 */
static void messages_during_transfers(int rank)
{
	struct ct_opt o = { .caps = FI_RMA };
	struct region r;
	struct ct c;
	char *b, *s;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, 8192);
	s = ct_alloc(&c, 8192);
	r = share(&c, 0, b, 4096, REMOTE);
	ct_fill(s, 4096, rank);
	for (int i = 0; i < 20; i++) {
		size_t n = i % 2 ? 8 : 4096;

		POST(&c, fi_recv(c.ep, b + 4096, 4096, ct_desc(b), c.peer, CTX(0)));
		POST(&c, fi_send(c.ep, s, n, ct_desc(s), c.peer, CTX(1)));
		ct_recvd(&c, CTX(0), n);
		ct_sent(&c, CTX(1));
		CHECK(ct_same(b + 4096, n, !rank));
		POST(&c, fi_write(c.ep, s, n, ct_desc(s), c.peer, r.addr, r.key, CTX(2)));
		ct_sent(&c, CTX(2));
	}
	done(&c);
}
/*
 * fi_mr(3): "The raw key support functions are usable with all registered memory regions, even if FI_MR_RAW has not been
 * set." "If the actual key is larger than what can fit into the buffer, it will return -FI_ETOOSMALL."
 */
static void raw_keys(int rank)
{
	struct { uint64_t base; size_t size; uint8_t key[64]; } mine, theirs;
	struct region r;
	struct ct c;
	uint64_t key = 0;
	char *b, *s;

	open_rma(&c, 0);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	memset(&mine, 0, sizeof mine);
	ERR(fi_mr_raw_attr(mr[0], &mine.base, mine.key, &mine.size, 0), FI_ETOOSMALL);
	CHECK(mine.size > 0 && mine.size <= sizeof mine.key);
	OK(fi_mr_raw_attr(mr[0], &mine.base, mine.key, &mine.size, 0));
	ct_swap(&c, &mine, &theirs, sizeof mine);
	EQ(theirs.base, r.addr);
	OK(fi_mr_map_raw(c.domain, theirs.base, theirs.key, theirs.size, &key, 0));
	ct_fill(s, 4096, rank);
	POST(&c, fi_write(c.ep, s, 4096, ct_desc(s), c.peer, theirs.base, key, CTX(0)));
	ct_sent(&c, CTX(0));
	ct_barrier(&c);
	CHECK(ct_same(b, 4096, !rank));
	OK(fi_mr_unmap_key(c.domain, key));
	done(&c);
}
static void bind_bytes(struct ct *c)
{
	ct_count_bytes(c);
	OK(fi_ep_bind(c->ep, &c->txc->fid, FI_READ | FI_WRITE));
}
/* fi_cntr(3), FI_CNTR_EVENTS_BYTES: the counter counts bytes. */
static void counted_bytes(int rank)
{
	struct ct_opt o = { .caps = CAPS, .setup = bind_bytes };
	struct region r;
	struct ct c;
	uint64_t sum = 0;
	char *b, *s;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, MAX);
	s = ct_alloc(&c, MAX);
	r = share(&c, 0, b, MAX, REMOTE);
	for (size_t i = 0; rank == 0 && i < sizeof sizes / sizeof *sizes; i++) {
		sum += 2 * sizes[i];
		POST(&c, fi_write(c.ep, s, sizes[i], ct_desc(s), c.peer, r.addr, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_read(c.ep, s, sizes[i], ct_desc(s), c.peer, r.addr, r.key, CTX(1)));
		ct_sent(&c, CTX(1));
		if (sizes[i] <= c.info->tx_attr->inject_size) {
			sum += sizes[i];
			POST(&c, fi_inject_write(c.ep, s, sizes[i], c.peer, r.addr, r.key));
		}
	}
	while (fi_cntr_read(c.txc) < sum)
		ct_progress(&c);
	EQ(fi_cntr_read(c.txc), sum);
	EQ(fi_cntr_read(c.rxc), 0);
	done(&c);
}
/* Every way to ask for memory registration there ever was: 1 is FI_MR_BASIC, 2 FI_MR_SCALABLE. */
static void registration_modes(int rank)
{
	static const struct { uint32_t version; int mode; } ways[] = {
		{ FI_VERSION(1, 4), 1 }, { FI_VERSION(1, 4), 2 }, { FI_VERSION(1, 4), 0 },
		{ FI_VERSION(1, 17), 1 }, { FI_VERSION(1, 17), 2 }, { FI_VERSION(1, 17), 0 },
	};

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct ct_opt o = { .caps = CAPS, .version = ways[i].version, .mr_mode = &ways[i].mode };
		struct region mine, theirs;
		char *b, *s, x;
		struct ct c;
		int mode, basic;

		mr[0] = mr[1] = NULL;
		ct_open(&c, &o);
		mode = c.info->domain_attr->mr_mode;
		if (ways[i].mode)
			EQ(mode, ways[i].mode);
		basic = mode == 1 || mode & FI_MR_VIRT_ADDR;
		b = ct_alloc(&c, 4096);
		s = ct_alloc(&c, 4096);
		OK(fi_mr_reg(c.domain, b, 4096, REMOTE, 0, 7000 + rank, 0, &mr[0], NULL));
		mine.key = fi_mr_key(mr[0]);
		/* the program's key, and places counted from the region's start */
		if (mode == 2 || !mode)
			EQ(mine.key, 7000 + rank);
		mine.addr = basic ? (uintptr_t)b : 0;
		ct_swap(&c, &mine, &theirs, sizeof mine);
		ct_fill(s, 100, rank);
		POST(&c, fi_write(c.ep, s, 100, ct_desc(s), c.peer, theirs.addr + 9, theirs.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_inject(c.ep, s, 1, c.peer));
		POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 1);
		CHECK(ct_same(b + 9, 100, !rank));
		POST(&c, fi_read(c.ep, s, 100, ct_desc(s), c.peer, theirs.addr + 9, theirs.key, CTX(1)));
		ct_sent(&c, CTX(1));
		CHECK(ct_same(s, 100, rank));
		done(&c);
	}
}
static void read_sizes(int rank)
{
	struct ct c;
	struct region r;
	char *b, *d;

	open_rma(&c, 0);
	b = ct_alloc(&c, MAX);
	d = ct_alloc(&c, MAX);
	ct_fill(b, MAX, 40 + rank);
	r = share(&c, 0, b, MAX, REMOTE);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		/* both ranks read each other at once */
		memset(d, 0, sizes[i]);
		POST(&c, fi_read(c.ep, d, sizes[i], ct_desc(d), c.peer, r.addr, r.key, CTX(i)));
		ct_sent(&c, CTX(i));
		CHECK(ct_same(d, sizes[i], 40 + !rank));
	}
	done(&c);
}
static void many_segments(int rank)
{
	struct ct c;
	struct region r;
	char *b, *s;

	open_rma(&c, 0);
	b = ct_alloc(&c, 8192);
	s = ct_alloc(&c, 8192);
	memset(b, 0, 8192);
	r = share(&c, 0, b, 8192, REMOTE);
	if (rank == 0) {
		struct iovec v[3] = { { s, 10 }, { s + 10, 2000 }, { s + 2010, 990 } };
		void *d[3] = { ct_desc(s), ct_desc(s), ct_desc(s) };
		struct fi_rma_iov p[3] = { { r.addr + 5000, 1500, r.key }, { r.addr, 1000, r.key }, { r.addr + 3000, 500, r.key } };
		struct fi_msg_rma m = { .msg_iov = v, .desc = d, .iov_count = 3, .addr = c.peer,
			.rma_iov = p, .rma_iov_count = 3, .context = CTX(0) };

		ct_fill(s, 3000, 9);
		POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(0));
		memset(s, 0, 3000);
		m.context = CTX(1);
		POST(&c, fi_readmsg(c.ep, &m, FI_COMPLETION));
		ct_sent(&c, CTX(1));
		CHECK(ct_same(s, 3000, 9));
		/* the places must be as long as the buffer, and no more than are offered */
		p[2].len = 499;
		ERR(fi_writemsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
		p[2].len = 500;
		m.rma_iov_count = c.info->tx_attr->rma_iov_limit + 1;
		ERR(fi_readmsg(c.ep, &m, FI_COMPLETION), FI_EINVAL);
	}
	ct_barrier(&c);
	if (rank == 1) {
		char x[3000];

		ct_fill(x, 3000, 9);
		CHECK(!memcmp(b + 5000, x, 1500));
		CHECK(!memcmp(b, x + 1500, 1000));
		CHECK(!memcmp(b + 3000, x + 2500, 500));
	}
	done(&c);
}
static void with_data(int rank)
{
	struct ct c;
	struct region r;
	char *b, *s;

	open_rma(&c, 0);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	if (rank == 0) {
		ct_fill(s, 4096, 3);
		POST(&c, fi_writedata(c.ep, s, 4096, ct_desc(s), 0x1122334455667788, c.peer, r.addr, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_inject_writedata(c.ep, s, 8, 42, c.peer, r.addr, r.key));
		POST(&c, fi_inject_write(c.ep, s + 8, 8, c.peer, r.addr + 8, r.key));
		NOTHING(&c, c.tx, 20);
	} else {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		EQ(ct_next(&c, c.rx, &e, NULL, &err), 1);
		CHECK(e.flags & FI_REMOTE_WRITE && e.flags & FI_REMOTE_CQ_DATA && e.flags & FI_RMA);
		EQ(e.data, 0x1122334455667788);
		EQ(e.len, 4096);
		CHECK(ct_same(b, 4096, 3));
		EQ(ct_next(&c, c.rx, &e, NULL, &err), 1);
		EQ(e.data, 42);
		/* the write without data makes no entry */
		NOTHING(&c, c.rx, 20);
	}
	done(&c);
}
/* Writes with data to a peer that makes progress and leaves its queue unread. */
static void data_unread(int rank)
{
	enum { LEN = 4096, WINDOW = 16, MOST = 12000, ENOUGH = 8000 };
	struct ct_opt o = { .caps = CAPS, .cq_size = WINDOW };
	struct fi_cq_tagged_entry e;
	struct ct c;
	struct region r;
	char *b;
	int n = 0, notified = 0;

	ct_needs_order();
	if (!strncmp(ct_prov, "verbs", 5))
		SKIP("each takes one of the receives posted there");
	/* number of queue entries a utility provider takes of its core before it waits */
	setenv("FI_UNIVERSE_SIZE", "1", 1);
	setenv("FI_OFI_RXM_MSG_RX_SIZE", "64", 1);
	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, LEN);
	r = share(&c, 0, b, LEN, REMOTE);
	if (rank == 0) {
		for (int64_t last = ct_ms(); n < MOST && (notified < WINDOW || ct_ms() - last < 500);) {
			long ret = n - notified < WINDOW ? fi_writedata(c.ep, b, LEN, ct_desc(b), n, c.peer, r.addr, r.key, CTX(n % WINDOW)) : -FI_EAGAIN;

			if (!ret)
				n++;
			else
				EQ(ret, -FI_EAGAIN);
			if (fi_cq_read(c.tx, &e, 1) == 1) {
				CHECK(e.op_context == CTX(notified % WINDOW));
				notified++;
				last = ct_ms();
			}
			sched_yield();
		}
		/* the system's buffers have room for some; the rest waits here */
		if (n > ENOUGH)
			FAIL("%d writes went to a peer with a queue of %d entries", n, WINDOW);
		CHECK(n > WINDOW);
		ct_send_oob(&n, sizeof n);
		for (; notified < n; notified++)
			ct_sent(&c, CTX(notified % WINDOW));
	} else {
		ct_recv_oob(&c, &n, sizeof n);
		for (int i = 0; i < n; i++) {
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.flags & FI_REMOTE_WRITE);
			EQ(e.data, (uint64_t)i);
			EQ(e.len, LEN);
		}
		NOTHING(&c, c.rx, 20);
	}
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
	struct fid_cntr *k[4];
	struct region r;
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct ct_name n, them;
	char *b, *s;

	if (ct_type != FI_EP_RDM)
		SKIP("needs an endpoint that is opened by hand");
	(void)rank;
	open_rma(&c, 0);
	/* a second endpoint on the same domain, with a counter for each kind */
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
	ct_swap(&c, &n, &them, sizeof n);
	d.peer = ct_insert(&c, &them);
	POST(&c, fi_write(d.ep, s, 4096, ct_desc(s), d.peer, r.addr, r.key, CTX(0)));
	ct_sent(&c, CTX(0));
	for (int i = 0; i < 3; i++) {
		POST(&c, fi_read(d.ep, s, 4096, ct_desc(s), d.peer, r.addr, r.key, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	EQ(reached(&c, k[0], 3), 3);
	EQ(reached(&c, k[1], 1), 1);
	EQ(reached(&c, k[2], 3), 3);
	EQ(reached(&c, k[3], 1), 1);
	ct_barrier(&c);
	OK(fi_close(&d.ep->fid));
	for (int i = 0; i < 4; i++)
		OK(fi_close(&k[i]->fid));
	done(&c);
}
/*
 * As in OpenSHMEM: an endpoint in use gets counters, and the count alone, of writes injected
 * with or without a completion level, shows that the data is written.
 */
static void counters_come_late(int rank)
{
	const uint64_t levels[] = { 0, FI_DELIVERY_COMPLETE };
	struct ct_opt o = { .caps = CAPS, .cq_flags = FI_SELECTIVE_COMPLETION };
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *put, *get, *other;
	struct region r;
	struct ct c;
	char *b, *s, x;

	for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
		o.tx_op_flags = levels[l];
		mr[0] = mr[1] = NULL;
		ct_open(&c, &o);
		b = ct_alloc(&c, 4096);
		s = ct_alloc(&c, 4096);
		r = share(&c, 0, b, 4096, REMOTE);
		if (rank == 0) {
			struct iovec v = { s, 64 };
			void *d = ct_desc(s);
			struct fi_rma_iov p = { r.addr + 64, 64, r.key };
			struct fi_msg_rma m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .rma_iov = &p,
				.rma_iov_count = 1, .context = CTX(0) };

			/* from here on there is a connection */
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION));
			ct_sent(&c, CTX(0));
		}
		ct_barrier(&c);
		OK(fi_cntr_open(c.domain, &a, &put, NULL));
		OK(fi_cntr_open(c.domain, &a, &get, NULL));
		OK(fi_cntr_open(c.domain, &a, &other, NULL));
		OK(fi_ep_bind(c.ep, &put->fid, FI_WRITE));
		OK(fi_ep_bind(c.ep, &get->fid, FI_READ));
		ERR(fi_ep_bind(c.ep, &put->fid, FI_WRITE), FI_EINVAL);
		ERR(fi_ep_bind(c.ep, &other->fid, FI_WRITE | FI_SEND), FI_EINVAL);
		OK(fi_close(&other->fid));
		ERR(fi_close(&put->fid), FI_EBUSY);
		if (rank == 0) {
			ct_recv_oob(&c, &x, 1);		/* the peer looks away */
			ct_fill(s, 64, 5 + l);
			POST(&c, fi_inject_write(c.ep, s, 64, c.peer, r.addr, r.key));
			if (c.info->domain_attr->data_progress == FI_PROGRESS_MANUAL)
				for (int64_t end = ct_ms() + 100; ct_ms() < end; ct_progress(&c))
					EQ(fi_cntr_read(put), 0);
			ct_send_oob("l", 1);
			EQ(reached(&c, put, 1), 1);
			ct_send_oob("w", 1);
			memset(s, 0, 64);
			POST(&c, fi_read(c.ep, s, 64, ct_desc(s), c.peer, r.addr, r.key, CTX(1)));
			EQ(reached(&c, get, 1), 1);
			CHECK(ct_same(s, 64, 5 + l));
			EQ(fi_cntr_read(put), 1);
		} else {
			ct_send_oob("a", 1);
			ct_recv_oob(NULL, &x, 1);
			ct_recv_oob(&c, &x, 1);
			CHECK(ct_same(b, 64, 5 + l));
		}
		ct_barrier(&c);
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		OK(fi_close(&put->fid));
		OK(fi_close(&get->fid));
		done(&c);
	}
}
/* The connection a forbidden access came on ends; nothing else does. */
static void forbidden(int rank)
{
	struct ct c;
	struct region r, ro;
	char *b, *s;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	if (ct_type == FI_EP_MSG)
		SKIP("a connected endpoint has one connection only");
	open_rma(&c, 0);
	b = ct_alloc(&c, 8192);
	s = ct_alloc(&c, 4096);
	ct_fill(b, 8192, 1);
	r = share(&c, 0, b, 4096, REMOTE);
	ro = share(&c, 1, b + 4096, 4096, FI_REMOTE_READ);
	/* where that ends no connection, both do it at once */
	if (rank == 0 || strstr(ct_prov, "rxd")) {
		struct { uint64_t addr, key; int read; } bad[] = {
			{ ro.addr, ro.key, 0 },			/* written although read-only */
			{ r.addr + 1, r.key, 0 },		/* one byte past the end */
			{ r.addr - 1, r.key, 1 },		/* one before the start */
			{ r.addr, 0xdeadbeef, 1 },		/* no such key */
			{ r.addr + (1ULL << 63), r.key, 0 },	/* far away */
		};

		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
			if (bad[i].read)
				POST(&c, fi_read(c.ep, s, 4096, ct_desc(s), c.peer, bad[i].addr, bad[i].key, CTX(i)));
			else {
				struct iovec v = { s, 4096 };
				void *d = ct_desc(s);
				struct fi_rma_iov p = { bad[i].addr, 4096, bad[i].key };
				struct fi_msg_rma m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer,
					.rma_iov = &p, .rma_iov_count = 1, .context = CTX(i) };
				POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			}
			EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context == CTX(i) && err.err > 0);
		}
		/* permitted operations work as before */
		POST(&c, fi_read(c.ep, s, 4096, ct_desc(s), c.peer, ro.addr, ro.key, CTX(9)));
		ct_sent(&c, CTX(9));
		CHECK(ct_same(s, 4096, 1) == 0);
		POST(&c, fi_read(c.ep, s, 4096, ct_desc(s), c.peer, r.addr, r.key, CTX(10)));
		ct_sent(&c, CTX(10));
		CHECK(ct_same(s, 4096, 1));
	}
	ct_barrier(&c);
	CHECK(ct_same(b, 8192, 1));
	done(&c);
}
static void too_much_injected(int rank)
{
	struct ct c;
	struct region r;
	char *b;

	(void)rank;
	open_rma(&c, 0);
	b = ct_alloc(&c, 1 << 20);
	r = share(&c, 0, b, 1 << 20, REMOTE);
	CHECK(fi_inject_write(c.ep, b, c.info->tx_attr->inject_size + 1, c.peer, r.addr, r.key) < 0);
	done(&c);
}
static void mixed(int rank)
{
	struct ct c;
	struct region r;
	char *b, *s;
	enum { N = 200, LEN = 3000 };

	/* writes, messages and reads in one stream, from both sides */
	open_rma(&c, 0);
	b = ct_alloc(&c, LEN * 2);
	s = ct_alloc(&c, LEN * 2);
	r = share(&c, 0, b, LEN * 2, REMOTE);
	for (int i = 0; i < N; i++) {
		char x[64];

		ct_fill(s, LEN, i + 100 * rank);
		POST(&c, fi_recv(c.ep, x, sizeof x, NULL, c.peer, CTX(1)));
		POST(&c, fi_write(c.ep, s, LEN, ct_desc(s), c.peer, r.addr, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_inject(c.ep, s, 64, c.peer));
		POST(&c, fi_read(c.ep, s + LEN, LEN, ct_desc(s), c.peer, r.addr, r.key, CTX(2)));
		ct_sent(&c, CTX(2));
		CHECK(ct_same(s + LEN, LEN, i + 100 * rank));	/* a read sees the write before it */
		ct_recvd(&c, CTX(1), 64);
		CHECK(ct_same(x, 64, i + 100 * !rank));
		CHECK(ct_same(b, LEN, i + 100 * !rank));
		ct_barrier(&c);
	}
	done(&c);
}

/* A fenced write starts only when the reads before it are over: they see the old data. */
static void fenced(int rank)
{
	enum { LEN = 24 << 20 };
	struct ct_opt o = { .caps = CAPS | FI_FENCE };
	struct ct c;
	struct region r;
	char *b, *s, *d;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	CHECK(c.info->caps & FI_FENCE);
	b = ct_alloc(&c, LEN);
	s = ct_alloc(&c, LEN);
	d = ct_alloc(&c, LEN);
	r = share(&c, 0, b, LEN, REMOTE);
	for (int round = 0; round < 3; round++) {
		ct_fill(b, LEN, round);
		ct_barrier(&c);
		if (rank == 0) {
			struct iovec v = { s, LEN };
			void *desc = ct_desc(s);
			struct fi_rma_iov p = { r.addr, LEN, r.key };
			struct fi_msg_rma m = { .msg_iov = &v, .desc = &desc, .iov_count = 1, .addr = c.peer,
				.rma_iov = &p, .rma_iov_count = 1, .context = CTX(1) };

			ct_fill(s, LEN, 200 + round);
			POST(&c, fi_read(c.ep, d, LEN, ct_desc(d), c.peer, r.addr, r.key, CTX(0)));
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_FENCE | FI_DELIVERY_COMPLETE));
			ct_sent(&c, CTX(0));
			CHECK(ct_same(d, LEN, round));
			ct_sent(&c, CTX(1));
			/* behind the fence everything goes on */
			POST(&c, fi_send(c.ep, s, 1, NULL, c.peer, CTX(2)));
			ct_sent(&c, CTX(2));
		} else {
			char x;

			POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(2)));
			ct_recvd(&c, CTX(2), 1);
			CHECK(ct_same(b, LEN, 200 + round));
		}
		ct_barrier(&c);
	}
	done(&c);
}
/*
 * fi_endpoint(3): "FI_ORDER_RMA_WAR: RMA write after RMA read", "FI_ORDER_SAR: message sends after RMA reads": operations after a
 * read neither change its data nor come before it. Reads are long, so that their answers take a while.
 */
static void after_reads(int rank)
{
	enum { LEN = 3 << 20, ROUNDS = 8 };
	const uint64_t order = FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_SAR;
	struct ct_opt o = { .caps = CAPS, .msg_order = order };
	struct ct c;
	struct region r;
	char *b, *s, *d;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	EQ(c.info->tx_attr->msg_order & order, order);
	CHECK(c.info->ep_attr->max_order_war_size >= LEN);
	b = ct_alloc(&c, LEN);
	s = ct_alloc(&c, LEN);
	d = ct_alloc(&c, LEN);
	ct_fill(b, LEN, 1);
	r = share(&c, 0, b, LEN, REMOTE);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		char x;

		if (rank == i % 2) {
			ct_fill(s, LEN, i + 2);
			POST(&c, fi_read(c.ep, d, LEN, ct_desc(d), c.peer, r.addr, r.key, CTX(0)));
			POST(&c, fi_write(c.ep, s, LEN, ct_desc(s), c.peer, r.addr, r.key, CTX(1)));
			ct_sent(&c, CTX(0));
			CHECK(ct_same(d, LEN, 1));
			ct_sent(&c, CTX(1));
			/* the message announces that the memory is read, and may change */
			POST(&c, fi_read(c.ep, d, LEN, ct_desc(d), c.peer, r.addr, r.key, CTX(2)));
			POST(&c, fi_send(c.ep, s, 1, ct_desc(s), c.peer, CTX(3)));
			ct_sent(&c, CTX(2));
			CHECK(ct_same(d, LEN, i + 2));
			ct_sent(&c, CTX(3));
		} else {
			POST(&c, fi_recv(c.ep, &x, 1, NULL, c.peer, CTX(4)));
			ct_recvd(&c, CTX(4), 1);
			CHECK(ct_same(b, LEN, i + 2));
			ct_fill(b, LEN, 1);
		}
		ct_barrier(&c);
	}
	done(&c);
}
/* Each side's fence waits for a read that the other answers behind its own fence. */
static void fences_face_to_face(int rank)
{
	struct ct_opt o = { .caps = CAPS | FI_FENCE };
	struct ct c;
	struct region r;
	char *b, *s;
	enum { LEN = 100000 };

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, LEN);
	s = ct_alloc(&c, 2 * LEN);
	r = share(&c, 0, b, LEN, REMOTE);
	for (int i = 0; i < ct_fewer(100); i++) {
		struct iovec v = { s + LEN, LEN };
		void *desc = ct_desc(s);
		struct fi_rma_iov p = { r.addr, LEN, r.key };
		struct fi_msg_rma m = { .msg_iov = &v, .desc = &desc, .iov_count = 1, .addr = c.peer,
			.rma_iov = &p, .rma_iov_count = 1, .context = CTX(1) };

		ct_fill(s + LEN, LEN, i + rank);
		POST(&c, fi_read(c.ep, s, LEN, desc, c.peer, r.addr, r.key, CTX(0)));
		POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_FENCE | FI_DELIVERY_COMPLETE));
		ct_sent(&c, CTX(0));
		CHECK(i == 0 || ct_same(s, LEN, i - 1 + rank));
		ct_sent(&c, CTX(1));
		ct_barrier(&c);
		CHECK(ct_same(b, LEN, i + !rank));
		ct_barrier(&c);
	}
	done(&c);
}
/* fi_getinfo(3), FI_RMA_PMEM, asks for FI_COMMIT_COMPLETE: of each write by
 * itself, or of all as the endpoint's default. */
static void commits(int rank, int by_default)
{
	struct ct_opt o = { .caps = CAPS | FI_RMA_PMEM, .tx_op_flags = by_default ? FI_COMMIT_COMPLETE : 0 };
	struct ct c;
	struct region r;
	char *b, *s;

	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	b = ct_alloc(&c, 10000);
	s = ct_alloc(&c, 10000);
	r = share(&c, 0, b, 10000, REMOTE);
	if (rank == 0) {
		struct iovec v = { s, 9000 };
		void *desc = ct_desc(s);
		struct fi_rma_iov p = { r.addr + 1, 9000, r.key };
		struct fi_msg_rma m = { .msg_iov = &v, .desc = &desc, .iov_count = 1, .addr = c.peer,
			.rma_iov = &p, .rma_iov_count = 1, .context = CTX(0) };

		ct_fill(s, 9000, 3);
		if (by_default)
			POST(&c, fi_write(c.ep, s, 9000, desc, c.peer, r.addr + 1, r.key, CTX(0)));
		else
			POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_COMMIT_COMPLETE));
		ct_sent(&c, CTX(0));
		/* concurrent messages complete as ever */
		POST(&c, fi_send(c.ep, s, 8, desc, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
	} else {
		POST(&c, fi_recv(c.ep, s, 8, ct_desc(s), c.peer, CTX(1)));
		ct_recvd(&c, CTX(1), 8);
	}
	/* complete means that it is there */
	ct_barrier(&c);
	if (rank == 1)
		CHECK(ct_same(b + 1, 9000, 3));
	done(&c);
}
static void committed(int rank) { commits(rank, 0); }
static void committed_by_default(int rank) { commits(rank, 1); }

static void region_counter(int rank)
{
	struct ct c;
	struct region r;
	struct fi_cntr_attr a = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *n;
	char *b, *s;

	open_rma(&c, 0);
	b = ct_alloc(&c, 4096);
	s = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	OK(fi_cntr_open(c.domain, &a, &n, NULL));
	OK(fi_mr_bind(mr[0], &n->fid, FI_REMOTE_WRITE));
	ERR(fi_mr_bind(mr[0], &n->fid, FI_REMOTE_WRITE), FI_EINVAL);
	ERR(fi_close(&n->fid), FI_EBUSY);
	ct_barrier(&c);
	if (rank == 0) {
		for (int i = 0; i < 3; i++) {
			POST(&c, fi_write(c.ep, s, 64, ct_desc(s), c.peer, r.addr, r.key, CTX(i)));
			ct_sent(&c, CTX(i));
		}
	} else {
		while (fi_cntr_read(n) < 3)
			ct_progress(&c);
		EQ(fi_cntr_read(n), 3);
	}
	ct_barrier(&c);
	EQ(fi_cntr_read(n), rank ? 3 : 0);
	OK(fi_close(&mr[0]->fid));
	mr[0] = NULL;
	OK(fi_close(&n->fid));
	done(&c);
}
static void nothing(int rank)
{
	struct ct c;
	struct region r;
	char *b;
	struct iovec v = { NULL, 0 };
	struct fi_rma_iov p = { 0 };
	struct fi_msg_rma g = { .msg_iov = &v, .iov_count = 1, .rma_iov = &p, .rma_iov_count = 1, .context = CTX(4) };
	struct fi_cq_tagged_entry e = { 0 };

	(void)rank;
	open_rma(&c, 0);
	b = ct_alloc(&c, 4096);
	r = share(&c, 0, b, 4096, REMOTE);
	g.addr = c.peer;
	p.addr = r.addr;
	p.key = r.key;
	POST(&c, fi_write(c.ep, b, 0, ct_desc(b), c.peer, r.addr, r.key, CTX(0)));
	ct_sent(&c, CTX(0));
	POST(&c, fi_write(c.ep, NULL, 0, NULL, c.peer, r.addr + 4096, r.key, CTX(1)));
	ct_sent(&c, CTX(1));
	POST(&c, fi_read(c.ep, b, 0, ct_desc(b), c.peer, r.addr, r.key, CTX(2)));
	ct_sent(&c, CTX(2));
	POST(&c, fi_read(c.ep, NULL, 0, NULL, c.peer, r.addr + 4096, r.key, CTX(3)));
	ct_sent(&c, CTX(3));
	for (int i = 0; i < 4; i++) {
		g.iov_count = i % 2;
		g.rma_iov_count = i / 2;
		POST(&c, fi_writemsg(c.ep, &g, 0));
		ct_sent(&c, CTX(4));
		POST(&c, fi_readmsg(c.ep, &g, 0));
		ct_sent(&c, CTX(4));
	}
	POST(&c, fi_inject_write(c.ep, NULL, 0, c.peer, r.addr, r.key));
	POST(&c, fi_inject_writedata(c.ep, NULL, 0, 77, c.peer, r.addr, r.key));
	ct_next(&c, c.rx, &e, NULL, NULL);
	EQ(e.data, 77);
	EQ(e.len, 0);
	done(&c);
}
static void all_memory(int rank)
{
	static const int modes[] = { 0, FI_MR_VIRT_ADDR, 2, 1 };

	for (int i = 0; i < 4; i++) {
		int mode = modes[i];
		struct ct_opt o = { .caps = CAPS, .mr_mode = &mode, .version = i < 2 ? 0 : FI_VERSION(1, 4) };
		struct region r;
		struct fid_mr *none;
		struct ct c;
		char *b;

		mr[0] = mr[1] = NULL;
		ct_open(&c, &o);
		b = ct_alloc(&c, 4096);
		ERR(fi_mr_reg(c.domain, (char *)4096, SIZE_MAX - 10, REMOTE, 0, 50, 0, &none, NULL), FI_EINVAL);
		r = share(&c, 0, NULL, SIZE_MAX, REMOTE);
		ct_swap(&c, &(uint64_t){ (uintptr_t)b }, &r.addr, sizeof r.addr);
		ct_fill(b + 100, 50, rank);
		POST(&c, fi_write(c.ep, b + 100, 50, NULL, c.peer, r.addr, r.key, CTX(0)));
		ct_sent(&c, CTX(0));
		POST(&c, fi_read(c.ep, b + 200, 50, NULL, c.peer, r.addr, r.key, CTX(1)));
		ct_sent(&c, CTX(1));
		CHECK(ct_same(b + 200, 50, rank));
		done(&c);
	}
}

/*
 * Bursts of small operations of all kinds, both sides at once, without reading a queue
 * between them: operations that may be batched, and others that may not.
 */
static void bursts(int rank)
{
	enum { N = 96, SLOT = 1200, ROUNDS = 25 };
	struct ct_opt o = { .caps = CAPS | FI_FENCE, .cq_size = 2 * N };
	struct ct c;
	struct region r;
	char *b, *s, *d;
	size_t inject, want[N];
	int raw;

	ct_needs_order();
	mr[0] = mr[1] = NULL;
	ct_open(&c, &o);
	inject = c.info->tx_attr->inject_size < 60 ? c.info->tx_attr->inject_size : 60;
	b = ct_alloc(&c, N * SLOT);
	s = ct_alloc(&c, N * SLOT);
	d = ct_alloc(&c, N * SLOT);
	raw = !!(c.info->tx_attr->msg_order & FI_ORDER_RAW);
	for (int i = 3; i < N; i += 8)	/* indices never written */
		ct_fill(b + i * SLOT, SLOT, i);
	r = share(&c, 0, b, N * SLOT, REMOTE);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned seed = 1000 * rank + 7 * round, theirs = 1000 * !rank + 7 * round;
		int notified = 0, posted = 0, ended = 0, received = 0;
		char x[N / 8][64];

		for (int i = 0; i < N / 8; i++)
			POST(&c, fi_recv(c.ep, x[i], sizeof x[i], NULL, c.peer, CTX(N + i)));
		memset(d, 0, N * SLOT);
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			char *from = s + i * SLOT;
			uint64_t to = r.addr + i * SLOT;
			size_t len = i % 8 == 0 ? inject : i % 8 == 1 ? (size_t)(1 + 11 * i) : i % 8 == 5 ? 1024 : 200;
			struct iovec v = { from, len };
			void *desc = ct_desc(s);
			struct fi_rma_iov p = { to, len, r.key };
			struct fi_msg_rma m = { .msg_iov = &v, .desc = &desc, .iov_count = 1, .addr = c.peer,
				.rma_iov = &p, .rma_iov_count = 1, .context = CTX(i) };

			ct_fill(from, len, seed + i);
			want[i] = i % 8 == 3 || i % 8 == 7 ? 0 : len;
			posted += i % 8 != 0 && i % 8 != 7;
			switch (i % 8) {
			case 0:
				POST(&c, fi_inject_write(c.ep, from, len, c.peer, to, r.key));
				memset(from, 0, len);
				break;
			case 1:
				POST(&c, fi_write(c.ep, from, len, desc, c.peer, to, r.key, CTX(i)));
				break;
			case 2:
				POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_MORE));
				break;
			case 3:		/* reads of data written just before, if reads do not overtake */
				POST(&c, fi_read(c.ep, d + i * SLOT, 1 + 11 * (i - 2), ct_desc(d), c.peer, to - 2 * raw * SLOT, r.key, CTX(i)));
				break;
			case 4:
				POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | (i % 32 == 20 ? FI_FENCE : 0)));
				break;
			case 5:
				POST(&c, fi_writemsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
				break;
			case 6:
				POST(&c, fi_writedata(c.ep, from, len, desc, i, c.peer, to, r.key, CTX(i)));
				break;
			case 7:
				ct_fill(from, inject, seed + i);
				POST(&c, fi_inject(c.ep, from, inject, c.peer));
				break;
			}
		}
		while (ended < posted || received < N / 8 || notified < N / 8) {
			struct fi_cq_tagged_entry e = { 0 };
			int upto;

			if (ended < posted && fi_cq_read(c.tx, &e, 1) == 1)
				ended++;
			if (received == N / 8 && notified == N / 8)
				continue;
			if (fi_cq_read(c.rx, &e, 1) != 1) {
				ct_progress(&c);
				sched_yield();
				continue;
			}
			if (e.flags & FI_RECV) {
				upto = 8 * received + 7;
				CHECK(e.op_context == CTX(N + received));
				CHECK(ct_same(x[received++], inject, theirs + upto));
			} else {
				CHECK(e.flags & FI_REMOTE_WRITE);
				upto = 8 * notified++ + 6;
				EQ(e.data, (uint64_t)upto);
			}
			/* all that was written before is there */
			for (int i = 0; i <= upto; i++)
				if (!ct_same(b + i * SLOT, want[i], theirs + i))
					FAIL("round %d: write %d is not there at %d", round, i, upto);
		}
		for (int i = 3; i < N; i += 8)
			if (!ct_same(d + i * SLOT, 1 + 11 * (i - 2), raw ? seed + i - 2 : (unsigned)i))
				FAIL("round %d: read %d brought something else", round, i);
		NOTHING(&c, c.tx, 0);
		NOTHING(&c, c.rx, 0);
		ct_barrier(&c);
	}
	done(&c);
}

/* The memory of a closed region is the application's, for any pending requests of peers. */
static void closed_amid(int rank, int N, int LEN)
{
	struct ct_opt o = { .caps = CAPS };

	for (int round = 0; round < ct_fewer(20); round++) {
		struct ct c;
		struct region r;
		char *b;
		int good = 0, bad = 0;

		mr[0] = mr[1] = NULL;
		ct_open(&c, &o);
		b = rank ? mmap(NULL, N * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : ct_alloc(&c, N * LEN);
		CHECK(b != MAP_FAILED);
		if (rank)
			ct_fill(b, N * LEN, round + 1);
		r = share(&c, 0, b, N * LEN, REMOTE);
		if (rank == 0) {
			/* connected before, so that all of them travel */
			POST(&c, fi_read(c.ep, b, LEN, ct_desc(b), c.peer, r.addr, r.key, CTX(N)));
			ct_sent(&c, CTX(N));
			memset(b, 0, LEN);
			ct_barrier(&c);
			for (int i = 0; i < N; i++) {
				long ret;

				while ((ret = fi_read(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, r.addr + i * LEN, r.key, CTX(i))) == -FI_EAGAIN)
					ct_progress(&c);
				if (ret)	/* the connection is over */
					bad++;
			}
			while (good + bad < N) {
				struct fi_cq_tagged_entry e;
				struct fi_cq_err_entry err;

				if (ct_next(&c, c.tx, &e, NULL, &err) == 1) {
					int i = (struct fi_context2 *)e.op_context - ct_ctx;

					CHECK(i >= 0 && i < N);
					for (int k = 0; k < LEN; k++)
						if ((unsigned char)b[i * LEN + k] != ct_byte(i * LEN + k, round + 1))
							FAIL("round %d: byte %d of read %d is something else", round, k, i);
					good++;
				} else {
					bad++;
				}
			}
			NOTHING(&c, c.tx, 0);
		} else {
			ct_barrier(&c);
			for (int i = 0; i < round % 7; i++)
				ct_progress(&c);
			OK(fi_close(&mr[0]->fid));
			mr[0] = NULL;
			/* odd rounds: a read now gets other data; even ones: none */
			memset(b, 0xee, N * LEN);
			if (round % 2 == 0)
				CHECK(!munmap(b, N * LEN));
		}
		done(&c);
		if (rank && round % 2)
			CHECK(!munmap(b, N * LEN));
	}
}
static void closed_amid_reads(int rank)
{
	closed_amid(rank, 200, 64);
}
static void closed_amid_large_reads(int rank)
{
	closed_amid(rank, 6, 200000);
}

/* Nor does anybody write to it any more, however much peers are at. */
static void closed_amid_writes(int rank)
{
	enum { N = 4, LEN = 1 << 20 };
	struct ct_opt o = { .caps = CAPS };

	for (int round = 0; round < ct_fewer(10); round++) {
		struct ct c;
		struct region r;
		char *b;

		mr[0] = mr[1] = NULL;
		ct_open(&c, &o);
		b = ct_alloc(&c, N * LEN);
		if (rank == 0)
			ct_fill(b, N * LEN, round + 1);
		r = share(&c, 0, b, N * LEN, REMOTE);
		if (rank == 0) {
			/* until they are in memory, where there is any */
			for (int i = 0; i < 200; i++) {
				POST(&c, fi_write(c.ep, b, 1000, ct_desc(b), c.peer, r.addr, r.key, CTX(N)));
				ct_sent(&c, CTX(N));
				if (i % 20 == 0)
					usleep(1000);
			}
			ct_barrier(&c);
			int over = 0;

			for (int i = 0; i < N; i++) {
				long ret;

				while ((ret = fi_write(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, r.addr + i * LEN, r.key, CTX(i))) == -FI_EAGAIN)
					ct_progress(&c);
				over += ret != 0;	/* the connection is */
			}
			for (; over < N; over++) {
				struct fi_cq_tagged_entry e;
				struct fi_cq_err_entry err;

				ct_next(&c, c.tx, &e, NULL, &err);
			}
			NOTHING(&c, c.tx, 0);
		} else {
			ct_barrier(&c);
			/* some have come, and more is under way */
			volatile char *at = b + round % N * LEN + LEN / 5 * (round % 5) + 1;

			for (int64_t end = ct_ms() + 200; !at[0] && !at[1] && ct_ms() < end; )
				ct_progress(&c);
			OK(fi_close(&mr[0]->fid));
			mr[0] = NULL;
			memset(b, 0xee, N * LEN);
			for (int i = 0; i < 100; i++)
				ct_progress(&c);
			for (int i = 0; i < N * LEN; i++)
				if ((unsigned char)b[i] != 0xee)
					FAIL("round %d: byte %d was written to when the region was closed", round, i);
		}
		done(&c);
	}
}

static const struct ct_test tests[] = {
	{ "regions follow FI_MR_BASIC, FI_MR_SCALABLE or neither, in old and new applications", registration_modes, CT_REL },
	{ "an endpoint opened for FI_RMA alone sends messages as well", messages_during_transfers, CT_REL },
	{ "fi_write of every size arrives before the message behind it", write_sizes, CT_REL },
	{ "fi_read of every size works from both sides concurrently", read_sizes, CT_REL },
	{ "one transfer can use several buffers and several segments", many_segments, CT_REL },
	{ "remote CQ data makes an entry at the target, and a write without data makes none", with_data, CT_REL },
	{ "writes with data wait for space in the target's unread queue, and all are reported", data_unread, CT_REL },
	{ "counters count reads and writes at both ends", counted, CT_REL },
	{ "a region has a raw key for peers to map", raw_keys, CT_REL },
	{ "byte counters count the bytes read and written", counted_bytes, CT_REL },
	{ "counters bound to an enabled endpoint count writes already visible at the target", counters_come_late, CT_REL },
	{ "access without a right fails, ends one connection and changes nothing", forbidden, CT_REL },
	{ "fi_inject_write past the limit is refused", too_much_injected, CT_REL },
	{ "writes, messages and reads stay in order", mixed, CT_REL },
	{ "bursts of small writes, reads and messages keep order and bytes, even with fences", bursts, CT_REL },
	{ "a region can be closed during bursts of small reads of it", closed_amid_reads, CT_REL },
	{ "a region can be closed during large reads of it", closed_amid_large_reads, CT_REL },
	{ "a region can be closed during large writes to it", closed_amid_writes, CT_REL },
	{ "a counter bound to a region counts the writes to it", region_counter, CT_REL },
	{ "a fenced write waits for the reads before it", fenced, CT_REL },
	{ "with FI_ORDER_RMA_WAR and FI_ORDER_SAR writes and messages wait for earlier reads", after_reads, CT_REL },
	{ "fences of both sides wait for reads but not for each other", fences_face_to_face, CT_REL },
	{ "a committed write is visible at its completion", committed, CT_REL },
	{ "FI_COMMIT_COMPLETE can be the default of an endpoint", committed_by_default, CT_REL },
	{ "empty transfers complete, even without a buffer or a segment", nothing, CT_REL },
	{ "all memory can be one region, and a region past the address space is refused", all_memory, CT_REL },
};
CT_MAIN("rma", tests)
