/* fi_cq(3), fi_cntr(3), fi_poll(3): queues, wait objects, counters, poll and wait sets. */
#include "ct.h"

static void send1(struct ct *c, void *b, size_t n, int i)
{
	POST(c, fi_send(c->ep, b, n, ct_desc(b), c->peer, CTX(i)));
}
static void recv1(struct ct *c, void *b, size_t n, int i)
{
	POST(c, fi_recv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
}

/* Every format fills exactly its own members. */
static void formats(int rank)
{
	static const struct { enum fi_cq_format f; size_t n; } F[] = {
		{ FI_CQ_FORMAT_CONTEXT, sizeof(struct fi_cq_entry) },
		{ FI_CQ_FORMAT_MSG, sizeof(struct fi_cq_msg_entry) },
		{ FI_CQ_FORMAT_DATA, sizeof(struct fi_cq_data_entry) },
		{ FI_CQ_FORMAT_TAGGED, sizeof(struct fi_cq_tagged_entry) },
	};

	if (sizeof(void *) == 8) {
		EQ(F[0].n, 8); EQ(F[1].n, 24); EQ(F[2].n, 40); EQ(F[3].n, 48);
	}
	for (int k = 0; k < 4; k++) {
		struct ct_opt o = { .caps = FI_TAGGED, .fmt = F[k].f };
		struct ct c;
		char *b;

		ct_open(&c, &o);
		b = ct_alloc(&c, 4096);
		if (rank == 0) {
			unsigned char raw[4 * 48];
			struct fi_cq_tagged_entry *e = (void *)raw;
			ssize_t r;

			memset(raw, 0xa5, sizeof raw);
			POST(&c, fi_trecv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, 17, 0, CTX(3)));
			while ((r = fi_cq_read(c.rx, raw, 1)) == -FI_EAGAIN)
				ct_progress(&c);
			EQ(r, 1);
			CHECK(e->op_context == CTX(3));
			if (k >= 1) {
				EQ(e->len, 33);
				CHECK(e->flags & FI_RECV && e->flags & FI_TAGGED);
			}
			if (k >= 2 && c.info->domain_attr->cq_data_size) {
				CHECK(e->flags & FI_REMOTE_CQ_DATA);
				EQ(e->data, 0x5a);
			}
			if (k == 3)
				EQ(e->tag, 17);
			for (size_t i = F[k].n; i < sizeof raw; i++)
				EQ(raw[i], 0xa5);
		} else {
			if (c.info->domain_attr->cq_data_size)
				POST(&c, fi_tsenddata(c.ep, b, 33, ct_desc(b), 0x5a, c.peer, 17, CTX(4)));
			else
				POST(&c, fi_tsend(c.ep, b, 33, ct_desc(b), c.peer, 17, CTX(4)));
			/* a queue of another format is read with entries of that size */
			unsigned char raw[48];
			ssize_t r;
			while ((r = fi_cq_read(c.tx, raw, 1)) == -FI_EAGAIN)
				ct_progress(&c);
			EQ(r, 1);
			CHECK(((struct fi_cq_entry *)raw)->op_context == CTX(4));
		}
		ct_done(&c);
	}
}

static void read_many(int rank)
{
	struct ct_opt o = { .fmt = FI_CQ_FORMAT_MSG };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct fi_cq_msg_entry e[16];
		int n = 0;

		for (int i = 0; i < 10; i++)
			recv1(&c, b, 64, i);
		ct_barrier(&c);
		while (n < 10) {
			ssize_t r = fi_cq_read(c.rx, e, 16);

			if (r == -FI_EAGAIN)
				continue;
			CHECK(r > 0);
			for (int i = 0; i < r; i++, n++) {
				CHECK(e[i].op_context == CTX(n));
				EQ(e[i].len, n);
			}
		}
		ERR(fi_cq_read(c.rx, e, 16), FI_EAGAIN);
	} else {
		struct fi_cq_msg_entry e;
		ct_barrier(&c);
		for (int i = 0; i < 10; i++)
			send1(&c, b, i, i);
		for (int i = 0; i < 10; i++) {
			ssize_t r;
			while ((r = fi_cq_read(c.tx, &e, 1)) == -FI_EAGAIN)
				;
			EQ(r, 1);
			CHECK(e.flags & FI_SEND);
		}
	}
	ct_done(&c);
}

static void empty(int rank)
{
	struct ct c;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	char buf[128];

	(void)rank;
	ct_open(&c, NULL);
	ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
	ERR(fi_cq_readfrom(c.rx, &e, 1, &(fi_addr_t){ 0 }), FI_EAGAIN);
	ERR(fi_cq_readerr(c.rx, &err, 0), FI_EAGAIN);
	ERR(fi_cq_read(c.rx, NULL, 0), FI_EAGAIN);
	CHECK(fi_cq_strerror(c.rx, FI_EIO, NULL, buf, sizeof buf) != NULL);
	ct_done(&c);
}

/* A queue with fewer entries than operations in flight loses nothing. */
static void small_queue(int rank)
{
	enum { N = 200 };
	struct ct_opt o = { .cq_size = 4 };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		for (int i = 0; i < N; i++)
			recv1(&c, b, 64, i);
		ct_barrier(&c);
		ct_idle(&c, 50);
		for (int i = 0; i < N; i++)
			ct_recvd(&c, CTX(i), 64);
	} else {
		int sent = 0;
		struct fi_cq_tagged_entry e;

		ct_barrier(&c);
		for (int i = 0; i < N; ) {
			ssize_t r = fi_send(c.ep, b, 64, ct_desc(b), c.peer, CTX(i));

			if (r == 0) {
				i++;
				continue;
			}
			EQ(r, -FI_EAGAIN);
			if (fi_cq_read(c.tx, &e, 1) == 1)
				CHECK(e.op_context == CTX(sent++));
		}
		while (sent < N) {
			ct_next(&c, c.tx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(sent++));
		}
	}
	ct_done(&c);
}

static void one_queue(int rank)
{
	struct ct_opt o = { .one_cq = 1 };
	struct ct c;
	char *b;
	int s = 0, r = 0;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	recv1(&c, b, 64, 1);
	ct_barrier(&c);
	send1(&c, b + 64, 64, 2);
	for (int i = 0; i < 2; i++) {
		struct fi_cq_tagged_entry e = { 0 };

		ct_next(&c, c.rx, &e, NULL, NULL);
		if (e.op_context == CTX(1)) {
			CHECK(e.flags & FI_RECV && !(e.flags & FI_SEND));
			r++;
		} else {
			CHECK(e.op_context == CTX(2) && e.flags & FI_SEND && !(e.flags & FI_RECV));
			s++;
		}
	}
	EQ(s, 1); EQ(r, 1);
	(void)rank;
	ct_done(&c);
}

static void source(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 3; i++) {
		if (rank == 0) {
			struct fi_cq_tagged_entry e = { 0 };
			fi_addr_t from = 12345;

			recv1(&c, b, 64, i);
			ct_next(&c, c.rx, &e, &from, NULL);
			CHECK(e.op_context == CTX(i));
			EQ(from, c.peer);
		} else {
			send1(&c, b, 64, i);
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
static void source_unknown(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		fi_addr_t from = 12345;

		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		recv1(&c, b, 64, 0);
		ct_barrier(&c);
		ct_next(&c, c.rx, &e, &from, NULL);
		EQ(from, FI_ADDR_NOTAVAIL);
	} else {
		ct_barrier(&c);
		send1(&c, b, 64, 0);
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}

/* fi_cq(3): "Source address data is only available for those endpoints configured with FI_SOURCE capability. If
 * fi_cq_readfrom is called on an endpoint for which source addressing data is not available, the source address will
 * be set to FI_ADDR_NOTAVAIL."  For messages that were awaited and for one that was not. */
static void source_not_asked(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	if (c.info->caps & FI_SOURCE)
		SKIP("FI_SOURCE comes unasked");
	b = ct_alloc(&c, 4096);
	for (int i = 0; i < 3; i++) {
		if (rank == 0) {
			struct fi_cq_tagged_entry e = { 0 };
			fi_addr_t from = 12345;

			if (i < 2)
				recv1(&c, b, 64, i);
			ct_barrier(&c);
			if (i == 2) {
				ct_barrier(&c);
				recv1(&c, b, 64, i);
			}
			ct_next(&c, c.rx, &e, &from, NULL);
			CHECK(e.op_context == CTX(i));
			EQ(from, FI_ADDR_NOTAVAIL);
		} else {
			ct_barrier(&c);
			send1(&c, b, 64, i);
			if (i == 2)
				ct_barrier(&c);
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}

/* A read that makes space in a full queue is enough for waiting entries: no further call is needed. */
static void space_is_used(int rank)
{
	enum { SIZE = 4, ALL = 2 * SIZE };
	struct ct_opt o = { .cq_size = SIZE };
	struct ct c;
	char *b, go;

	/* a thread of the provider would hide it */
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct fi_cq_tagged_entry e[ALL];

		for (int i = 0; i < ALL; i++)
			recv1(&c, b + 64 * i, 64, i);
		/* until the queue is full and more waits */
		ct_recv_oob(&c, &go, 1);
		ct_idle(&c, 20);
		CHECK(fi_cq_read(c.rx, e, ALL) > 0);
		/* blocks in the system */
		ct_recv_oob(NULL, &go, 1);
	} else {
		struct fi_cq_tagged_entry e;
		int done = 0;

		for (int i = 0; i < ALL; i++) {
			struct iovec v = { b, 64 };
			struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .context = CTX(i) };
			ssize_t r;

			while ((r = fi_sendmsg(c.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)) == -FI_EAGAIN)
				done += fi_cq_read(c.tx, &e, 1) == 1;
			OK(r);
		}
		while (done < SIZE)
			done += fi_cq_read(c.tx, &e, 1) == 1;
		ct_send_oob("x", 1);
		while (done < ALL)
			done += fi_cq_read(c.tx, &e, 1) == 1;
		ct_send_oob("x", 1);
	}
	ct_done(&c);
}

/* FI_AV_USER_ID: the application chooses the name of a peer in completions; receives choose by fi_addr_t all the same. */
static void user_id(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV | FI_AV_USER_ID };
	struct fi_av_attr a = { .flags = FI_AV_USER_ID, .count = 8 };
	struct ct c;
	struct ct_name mine, theirs;
	struct fid_av *av;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	/* only a vector opened for it has ids */
	ERR(fi_av_set_user_id(c.av, c.peer, 1, 0), FI_ENOSYS);
	OK(fi_close(&c.ep->fid));
	OK(fi_av_open(c.domain, &a, &av, NULL));
	OK(fi_close(&c.av->fid));
	c.av = av;
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	/* by the insertion, and changed later */
	c.peer = 4711;
	EQ(fi_av_insert(c.av, theirs.b, 1, &c.peer, FI_AV_USER_ID, NULL), 1);
	CHECK(c.peer != 4711);
	ERR(fi_av_set_user_id(c.av, c.peer, 1, 1), FI_EBADFLAGS);
	ERR(fi_av_set_user_id(c.av, 77, 1, 0), FI_EINVAL);
	/* no id is known of an address that is inserted without one */
	OK(fi_av_remove(c.av, &c.peer, 1, 0));
	EQ(fi_av_insert(c.av, theirs.b, 1, &c.peer, 0, NULL), 1);
	ct_barrier(&c);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		fi_addr_t from = 12345;

		OK(fi_recv(c.ep, b, 64, ct_desc(b), c.peer, CTX(9)));
		ct_next(&c, c.rx, &e, &from, NULL);
		CHECK(e.op_context == CTX(9));
		EQ(from, FI_ADDR_NOTAVAIL);
		OK(fi_av_set_user_id(c.av, c.peer, 4711, 0));
	} else {
		send1(&c, b, 64, 9);
		ct_sent(&c, CTX(9));
	}
	ct_barrier(&c);
	for (int i = 0; i < 2; i++) {
		if (rank == 0) {
			struct fi_cq_tagged_entry e = { 0 };
			fi_addr_t from = 12345;

			if (i == 1)
				OK(fi_av_set_user_id(c.av, c.peer, 4712, 0));
			OK(fi_recv(c.ep, b, 64, ct_desc(b), c.peer, CTX(i)));
			ct_next(&c, c.rx, &e, &from, NULL);
			CHECK(e.op_context == CTX(i));
			EQ(from, 4711 + i);
		} else {
			send1(&c, b, 64, i);
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}

/* A message that came before its sender was inserted takes the sender's name then, and no other peer's. */
static void late_name(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV };
	struct ct c;
	struct ct_name mine, theirs;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		fi_addr_t from = 12345, me;

		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		ct_barrier(&c);
		ct_barrier(&c);
		ct_idle(&c, 100);
		/* the names are given out in an order other than that in which the peers came */
		me = ct_insert(&c, &mine);
		c.peer = ct_insert(&c, &theirs);
		OK(fi_recv(c.ep, b + 1024, 64, ct_desc(b), me, CTX(9)));
		for (int i = 0; i < 3; i++) {
			OK(fi_recv(c.ep, b, 64, ct_desc(b), c.peer, CTX(i)));
			ct_next(&c, c.rx, &e, &from, NULL);
			CHECK(e.op_context == CTX(i));
			EQ(from, c.peer);
		}
	} else {
		ct_barrier(&c);
		for (int i = 0; i < 3; i++) {
			send1(&c, b, 64, i);
			ct_sent(&c, CTX(i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* Nor does a message that waits keep the name when that is removed: it may be another's then. */
static void lost_name(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV };
	struct ct c;
	struct ct_name mine, theirs;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		fi_addr_t from = 12345, me;

		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		ct_barrier(&c);
		ct_barrier(&c);
		ct_idle(&c, 100);
		c.peer = ct_insert(&c, &theirs);
		ct_idle(&c, 20);
		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		me = ct_insert(&c, &mine);
		OK(fi_recv(c.ep, b + 1024, 64, ct_desc(b), me, CTX(9)));
		recv1(&c, b, 64, 0);
		ct_next(&c, c.rx, &e, &from, NULL);
		CHECK(e.op_context == CTX(0));
		EQ(from, FI_ADDR_NOTAVAIL);
		ct_barrier(&c);
	} else {
		ct_barrier(&c);
		send1(&c, b, 64, 0);
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* FI_SOURCE_ERR: a message of an unknown peer fails with the peer's address, and is there all the same. */
static void source_unknown_peer(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR };
	struct ct c;
	struct ct_name mine, theirs;
	char *b, data[65];

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry x = { 0 };

		recv1(&c, b, 64, 0);
		ct_next(&c, c.rx, &e, NULL, NULL);
		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		b[0] = 0;
		recv1(&c, b, 64, 1);
		ct_barrier(&c);
		ct_next(&c, c.rx, &e, NULL, &x);
		EQ(x.err, FI_EADDRNOTAVAIL);
		CHECK(x.op_context == CTX(1) && x.len == 64);
		EQ(x.err_data_size, theirs.n);
		CHECK(!memcmp(x.err_data, theirs.b, theirs.n));
		/* the program's own buffer gets as much as fits, and no byte more */
		for (size_t space = 4; space <= 64; space += 60) {
			struct fi_cq_err_entry own = { .err_data = data, .err_data_size = space };

			memset(data, 0x5a, sizeof data);
			recv1(&c, b, 64, 1);
			ct_barrier(&c);
			while (fi_cq_read(c.rx, &e, 1) == -FI_EAGAIN)
				ct_progress(&c);
			EQ(fi_cq_readerr(c.rx, &own, 0), 1);
			EQ(own.err, FI_EADDRNOTAVAIL);
			CHECK(own.err_data == data);
			EQ(own.err_data_size, space < theirs.n ? space : theirs.n);
			CHECK(!memcmp(data, theirs.b, own.err_data_size));
			CHECK(data[own.err_data_size] == 0x5a);
		}
		/* the address is good for answering */
		c.peer = ct_insert(&c, &theirs);
		recv1(&c, b, 64, 2);
		ct_barrier(&c);
		ct_next(&c, c.rx, &e, NULL, NULL);
		CHECK(e.op_context == CTX(2));
	} else {
		send1(&c, b, 64, 0);
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		for (int i = 0; i < 3; i++) {
			send1(&c, b, 64, 1);
			ct_sent(&c, CTX(1));
			ct_barrier(&c);
		}
		send1(&c, b, 64, 2);
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}

/* FI_SOURCE_ERR: the address of a departed unknown peer is reported; a truncated message is no success. */
static void source_unknown_peer_gone(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR };
	struct ct c;
	struct ct_name mine, theirs;
	char *b, x = 0;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry err = { 0 };

		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		recv1(&c, b, 16, 0);
		ct_send_oob(&x, 1);
		ct_next(&c, c.rx, &e, NULL, &err);
		CHECK(err.op_context == CTX(0));
		EQ(err.err, FI_ETRUNC);
		EQ(err.len, 16);
		EQ(err.olen, 48);
		ct_recv_oob(NULL, &x, 1);
		ct_idle(&c, 100);
		recv1(&c, b, 64, 1);
		ct_next(&c, c.rx, &e, NULL, &err);
		CHECK(err.op_context == CTX(1));
		EQ(err.err, FI_EADDRNOTAVAIL);
		EQ(err.err_data_size, theirs.n);
		CHECK(!memcmp(err.err_data, theirs.b, theirs.n));
	} else {
		ct_recv_oob(NULL, &x, 1);
		for (int i = 0; i < 2; i++) {
			send1(&c, b, 64, i);
			ct_sent(&c, CTX(i));
		}
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		ct_send_oob(&x, 1);
	}
	ct_close(&c);
}

/* ---- waiting ---------------------------------------------------------- */

static void open_waiting(struct ct *c, enum fi_wait_obj w, int cntr)
{
	struct ct_opt o = { .cntr = cntr, .one_cq = 1 };
	struct fi_cq_attr a = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = w };
	struct ct probe;
	struct fid_cq *q;
	int r;

	/* a provider may refuse FI_WAIT_YIELD, and then when the queue is opened */
	ct_open(&probe, &o);
	r = fi_cq_open(probe.domain, &a, &q, NULL);
	if (w == FI_WAIT_YIELD && (r == -FI_ENOSYS || r == -FI_EINVAL))
		SKIP("refused by fi_cq_open");
	OK(r);
	OK(fi_close(&q->fid));
	ct_done(&probe);
	o.wait = w;
	ct_open(c, &o);
}
static void sread_with(int rank, enum fi_wait_obj w)
{
	struct ct c;
	char *b;
	struct fi_cq_tagged_entry e = { 0 };

	open_waiting(&c, w, 0);
	b = ct_alloc(&c, 4096);
	ERR(fi_cq_sread(c.rx, &e, 1, NULL, 0), FI_EAGAIN);
	ERR(fi_cq_sread(c.rx, &e, 1, NULL, 30), FI_EAGAIN);
	for (int i = 0; i < 20; i++) {
		ssize_t r;

		if (rank == 0) {
			recv1(&c, b, 64, i);
			while ((r = fi_cq_sread(c.rx, &e, 1, NULL, -1)) == -FI_EAGAIN)
				;	/* may return early */
			EQ(r, 1);
			CHECK(e.op_context == CTX(i));
		} else {
			ct_idle(&c, i < 3 ? 40 : 1);
			send1(&c, b, 64, i);
			while ((r = fi_cq_sread(c.rx, &e, 1, NULL, 1000)) == -FI_EAGAIN)
				;
			EQ(r, 1);
		}
	}
	ct_done(&c);
}
static void sread_unspec(int rank) { sread_with(rank, FI_WAIT_UNSPEC); }
static void sread_fd(int rank) { sread_with(rank, FI_WAIT_FD); }
static void sread_yield(int rank) { sread_with(rank, FI_WAIT_YIELD); }

/* A wait object either works or is refused when the queue is opened. */
static void mutex_cond(int rank)
{
	struct ct_opt o = { 0 };
	struct ct c;
	struct fi_cq_attr a = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_MUTEX_COND };
	struct fid_cq *q;
	int r;

	ct_open(&c, &o);
	(void)rank;
	r = fi_cq_open(c.domain, &a, &q, NULL);
	if (r == 0) {
		struct fi_cq_tagged_entry e;
		struct fi_mutex_cond mc = { 0 };

		OK(fi_control(&q->fid, FI_GETWAIT, &mc));
		CHECK(mc.mutex && mc.cond);
		ERR(fi_cq_sread(q, &e, 1, NULL, 10), FI_EAGAIN);
		OK(fi_close(&q->fid));
	} else {
		CHECK(r == -FI_ENOSYS || r == -FI_EINVAL);
	}
	a.wait_obj = (enum fi_wait_obj)9999;
	CHECK(fi_cq_open(c.domain, &a, &q, NULL) < 0);
	a.wait_obj = FI_WAIT_NONE;
	a.format = (enum fi_cq_format)9999;
	CHECK(fi_cq_open(c.domain, &a, &q, NULL) < 0);
	a.format = FI_CQ_FORMAT_MSG;
	a.flags = 1ull << 55;
	CHECK(fi_cq_open(c.domain, &a, &q, NULL) < 0);
	ct_done(&c);
}

static void *signal_later(void *q)
{
	ct_nap(50);
	OK(fi_cq_signal(q));
	return NULL;
}
static void cq_signal(int rank)
{
	struct ct_opt o = { .wait = FI_WAIT_FD, .one_cq = 1 };
	struct ct c;
	struct fi_cq_tagged_entry e;
	pthread_t t;

	(void)rank;
	ct_open(&c, &o);
	for (int i = 0; i < 3; i++) {
		EQ(pthread_create(&t, NULL, signal_later, c.rx), 0);
		ERR(fi_cq_sread(c.rx, &e, 1, NULL, -1), FI_EAGAIN);	/* the watchdog waits with us */
		EQ(pthread_join(t, NULL), 0);
	}
	ct_done(&c);
}

/*
 * The descriptors of FI_WAIT_POLLFD. fi_poll(3): "On output, this will be set to the number of entries needed to store the
 * current number of file descriptors. If the input value is smaller than the output value, fi_control() will return the
 * error -FI_ETOOSMALL."
 */
static size_t poll_fds(struct fid *f, struct pollfd *p, size_t space)
{
	struct fi_wait_pollfd list = { .nfds = 0 };
	uint64_t index;

	ERR(fi_control(f, FI_GETWAIT, &list), FI_ETOOSMALL);
	CHECK(list.nfds > 0 && list.nfds <= space);
	index = list.change_index;
	list.fd = p;
	OK(fi_control(f, FI_GETWAIT, &list));
	EQ(list.change_index, index);
	for (size_t i = 0; i < list.nfds; i++)
		CHECK(p[i].fd >= 0 && fcntl(p[i].fd, F_GETFD) >= 0 && p[i].events);
	return list.nfds;
}
/* fi_trywait, poll, read: the loop of an application with its own event loop. */
static void poll_loop(int rank, enum fi_wait_obj w)
{
	struct ct_opt o = { .wait = w, .one_cq = 1 };
	struct ct c;
	char *b;
	int fd = -1, polls = 0;

	ct_open(&c, &o);
	b = ct_alloc(&c, 1 << 20);
	if (w == FI_WAIT_FD) {
		OK(fi_control(&c.rx->fid, FI_GETWAIT, &fd));
		CHECK(fd >= 0 && fcntl(fd, F_GETFD) >= 0);
	}
	for (int i = 0; i < 60; i++) {
		size_t n = i % 20 == 19 ? ct_most(&c, 1 << 20) : 64;
		struct fi_cq_tagged_entry e = { 0 };

		if (rank == 0) {
			recv1(&c, b, n, i);
		} else {
			if (i < 5)
				ct_nap(20);
			send1(&c, b, n, i);
		}
		for (;;) {
			struct fid *f = &c.rx->fid;
			struct pollfd p[8] = { { .fd = fd, .events = POLLIN } };
			size_t fds = w == FI_WAIT_FD ? 1 : poll_fds(f, p, 8);
			ssize_t r = fi_cq_read(c.rx, &e, 1);
			int t;

			if (r == 1)
				break;
			EQ(r, -FI_EAGAIN);
			t = fi_trywait(c.fabric, &f, 1);
			if (t == 0) {
				polls++;
				poll(p, fds, -1);
			} else {
				EQ(t, -FI_EAGAIN);
			}
		}
		CHECK(e.op_context == CTX(i));
	}
	CHECK(rank == 1 || polls > 0);
	ct_done(&c);
}

static void wait_fd(int rank) { poll_loop(rank, FI_WAIT_FD); }
static void wait_pollfd(int rank) { poll_loop(rank, FI_WAIT_POLLFD); }

static void sread_none(int rank)
{
	struct ct c;
	int fd;

	(void)rank;
	ct_open(&c, NULL);
	CHECK(fi_control(&c.rx->fid, FI_GETWAIT, &fd) < 0);
	ct_done(&c);
}

/*
 * fi_control(3): FI_GETWAIT and FI_GETWAITOBJ of queues, counters and wait sets return the wait object, such as a file
 * descriptor, and its kind. A provider over another one queries them to add the object to its own.
 */
static void wait_kinds(int rank)
{
	static const enum fi_wait_obj kinds[] = {
		FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_SET, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD
	};
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_wait *set;
	struct ct c;

	(void)rank;
	ct_open(&c, NULL);
	OK(fi_wait_open(c.fabric, &wa, &set));
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		const enum fi_wait_obj kind = kinds[i];
		struct fid_wait *in = kind == FI_WAIT_SET ? set : NULL;
		struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = kind, .wait_set = in };
		struct fi_eq_attr qa = { .wait_obj = kind, .wait_set = in };
		struct fi_cntr_attr na = { .wait_obj = kind, .wait_set = in };
		struct fid_cq *cq;
		struct fid_eq *eq;
		struct fid_cntr *cntr;
		struct fid_wait *wait;
		struct fid *all[4];
		int n = 0, r = fi_cq_open(c.domain, &ca, &cq, NULL);

		/* FI_WAIT_MUTEX_COND and FI_WAIT_YIELD need not be there, but then for none of them */
		if (r) {
			CHECK((r == -FI_ENOSYS || r == -FI_EINVAL) && i > 2);
			continue;
		}
		all[n++] = &cq->fid;
		OK(fi_eq_open(c.fabric, &qa, &eq, NULL));
		all[n++] = &eq->fid;
		if (!(r = fi_cntr_open(c.domain, &na, &cntr, NULL)))
			all[n++] = &cntr->fid;
		wa.wait_obj = kind;
		if (kind != FI_WAIT_SET) {
			OK(fi_wait_open(c.fabric, &wa, &wait));
			all[n++] = &wait->fid;
		}
		for (int k = 0; k < n; k++) {
			enum fi_wait_obj got = FI_WAIT_NONE;
			union { int fd; struct fi_mutex_cond mc; } w = { .fd = -1 };

			OK(fi_control(all[k], FI_GETWAITOBJ, &got));
			EQ(got, i < 3 ? FI_WAIT_FD : kind);
			if (got == FI_WAIT_FD) {
				OK(fi_control(all[k], FI_GETWAIT, &w));
				CHECK(fcntl(w.fd, F_GETFD) >= 0);
			}
			if (got == FI_WAIT_POLLFD)
				poll_fds(all[k], (struct pollfd[8]){ 0 }, 8);
		}
		while (n-- > 0)
			OK(fi_close(all[n]));
	}
	OK(fi_close(&set->fid));
	ct_done(&c);
}

/* ---- counters --------------------------------------------------------- */

static void counters(int rank)
{
	struct ct_opt o = { .cntr = 1 };
	struct ct c;
	char *b;
	struct fid_cntr *mine;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	mine = rank ? c.txc : c.rxc;
	EQ(fi_cntr_read(mine), 0);
	if (rank == 0) {
		for (int i = 0; i < 10; i++)
			recv1(&c, b, 64, i);
		ct_barrier(&c);
		OK(fi_cntr_wait(mine, 10, -1));
	} else {
		ct_barrier(&c);
		for (int i = 0; i < 9; i++)
			send1(&c, b, 64, i);
		POST(&c, fi_inject(c.ep, b, 8, c.peer));	/* counts, though it has no entry */
		OK(fi_cntr_wait(mine, 10, -1));
	}
	EQ(fi_cntr_read(mine), 10);
	EQ(fi_cntr_read(rank ? c.rxc : c.txc), 0);
	EQ(fi_cntr_readerr(mine), 0);
	ERR(fi_cntr_wait(mine, 11, 20), FI_ETIMEDOUT);
	OK(fi_cntr_wait(mine, 5, 0));
	ct_done(&c);
}
/* fi_cntr(3), FI_CNTR_EVENTS_BYTES: the counter counts bytes. */
static void counted_bytes(int rank)
{
	struct ct_opt o = { .setup = ct_count_bytes };
	struct ct c;
	uint64_t sum = 0;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 1 << 20);
	for (int i = 0; i < 24; i++) {
		static const size_t sizes[] = { 0, 1, 64, 200, 1400, 4096, 40000, 1 << 20 };
		size_t n = ct_most(&c, sizes[i % 8]);

		sum += n;
		if (rank == 0) {
			recv1(&c, b, n, i);
			ct_barrier(&c);
			ct_recvd(&c, CTX(i), n);
		} else {
			ct_barrier(&c);
			if (i >= 16 && n <= c.info->tx_attr->inject_size) {
				POST(&c, fi_inject(c.ep, b, n, c.peer));
			} else {
				send1(&c, b, n, i);
				ct_sent(&c, CTX(i));
			}
		}
	}
	while (fi_cntr_read(rank ? c.txc : c.rxc) < sum)
		ct_progress(&c);
	EQ(fi_cntr_read(rank ? c.txc : c.rxc), sum);
	EQ(fi_cntr_read(rank ? c.rxc : c.txc), 0);
	ct_done(&c);
}
static void counter_arithmetic(int rank)
{
	struct ct_opt o = { .cntr = 1 };
	uint64_t flags;
	struct ct c;

	(void)rank;
	ct_open(&c, &o);
	OK(fi_cntr_set(c.txc, 100));
	EQ(fi_cntr_read(c.txc), 100);
	OK(fi_cntr_add(c.txc, 11));
	EQ(fi_cntr_read(c.txc), 111);
	OK(fi_cntr_seterr(c.txc, 7));
	EQ(fi_cntr_readerr(c.txc), 7);
	OK(fi_cntr_adderr(c.txc, 3));
	EQ(fi_cntr_readerr(c.txc), 10);
	EQ(fi_cntr_read(c.txc), 111);
	EQ(fi_cntr_read(c.rxc), 0);
	/* fi_cntr(3): "FI_GETOPSFLAG: Returns the current default operational flags associated with the counter." */
	flags = 1;
	OK(fi_control(&c.txc->fid, FI_GETOPSFLAG, &flags));
	EQ(flags, 0);
	OK(fi_control(&c.txc->fid, FI_SETOPSFLAG, &flags));
	ct_done(&c);
}
/*
 * fi_cntr(3): "Wait objects allow applications to block until the wait object is signaled, indicating that a counter has reached
 * a specific threshold", "When an event is added to the event counter, the corresponding wait set will be signaled".
 */
static void *change_counter(void *arg)
{
	struct fid_cntr **cntr = arg;

	ct_nap(50);
	OK(fi_cntr_add(cntr[0], 1));
	ct_nap(50);
	OK(fi_cntr_set(cntr[0], 5));
	ct_nap(50);
	OK(fi_cntr_adderr(cntr[0], 1));
	return NULL;
}
static void changed_counter_wakes(int rank)
{
	struct fi_wait_attr w = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cntr_attr by_fd = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_FD };
	struct fi_cntr_attr by_set = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_SET };
	struct fid_wait *set;
	struct fid_cntr *cntr;
	struct ct c = { .o = { 0 } };
	pthread_t other;
	int r, fd = -1;

	(void)rank;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	ct_open_in(&c, NULL);
	/* a descriptor */
	r = fi_cntr_open(c.domain, &by_fd, &cntr, NULL);
	if (r == -FI_ENOSYS)
		SKIP("no counters with descriptors");
	OK(r);
	OK(fi_control(&cntr->fid, FI_GETWAIT, &fd));
	EQ(pthread_create(&other, NULL, change_counter, &cntr), 0);
	for (uint64_t before = 0; before < 5;) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct fid *f = &cntr->fid;

		if (fi_cntr_read(cntr) != before)
			before = fi_cntr_read(cntr);
		else if (!fi_trywait(c.fabric, &f, 1) && fi_cntr_read(cntr) == before)
			CHECK(poll(&p, 1, -1) == 1 || errno == EINTR);
	}
	EQ(pthread_join(other, NULL), 0);
	EQ(fi_cntr_readerr(cntr), 1);
	OK(fi_close(&cntr->fid));
	/* a wait set, and a call that waits for a threshold */
	OK(fi_wait_open(c.fabric, &w, &set));
	by_set.wait_set = set;
	OK(fi_cntr_open(c.domain, &by_set, &cntr, NULL));
	EQ(pthread_create(&other, NULL, change_counter, &cntr), 0);
	while (fi_cntr_read(cntr) < 5 || !fi_cntr_readerr(cntr))
		OK(fi_wait(set, -1));
	EQ(pthread_join(other, NULL), 0);
	OK(fi_close(&cntr->fid));
	OK(fi_close(&set->fid));
	by_fd.wait_obj = FI_WAIT_UNSPEC;
	OK(fi_cntr_open(c.domain, &by_fd, &cntr, NULL));
	EQ(pthread_create(&other, NULL, change_counter, &cntr), 0);
	OK(fi_cntr_wait(cntr, 5, -1));
	ERR(fi_cntr_wait(cntr, 6, -1), FI_EAVAIL);
	EQ(pthread_join(other, NULL), 0);
	OK(fi_close(&cntr->fid));
	ct_close(&c);
}
static void counter_errors(int rank)
{
	struct ct_opt o = { .cntr = 1 };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct fi_cq_err_entry err = { 0 };

		recv1(&c, b, 64, 1);
		OK(fi_cancel(&c.ep->fid, CTX(1)));
		while (fi_cntr_readerr(c.rxc) == 0)
			ct_progress(&c);
		EQ(fi_cntr_readerr(c.rxc), 1);
		EQ(fi_cntr_read(c.rxc), 0);
		EQ(fi_cq_readerr(c.rx, &err, 0), 1);
		EQ(err.err, FI_ECANCELED);
		ERR(fi_cntr_wait(c.rxc, 1, 20), FI_ETIMEDOUT);	/* that error was there before */
	}
	ct_done(&c);
}
static void *err_later(void *q)
{
	ct_nap(50);
	OK(fi_cntr_adderr(q, 1));
	return NULL;
}
static void *add_later(void *q)
{
	ct_nap(50);
	OK(fi_cntr_add(q, 3));
	return NULL;
}
static void counter_wakes(int rank)
{
	struct ct_opt o = { .cntr = 1 };
	struct ct c;
	pthread_t t;

	(void)rank;
	ct_open(&c, &o);
	EQ(pthread_create(&t, NULL, add_later, c.txc), 0);
	OK(fi_cntr_wait(c.txc, 3, -1));
	EQ(pthread_join(t, NULL), 0);
	EQ(pthread_create(&t, NULL, err_later, c.txc), 0);
	ERR(fi_cntr_wait(c.txc, 4, -1), FI_EAVAIL);
	EQ(pthread_join(t, NULL), 0);
	ct_done(&c);
}

/* ---- poll and wait sets, busy queues ----------------------------------- */

static void poll_set(int rank)
{
	struct ct_opt o = { .cntr = 1 };
	struct ct c;
	char *b;
	struct fid_poll *p;
	struct fi_poll_attr a = { 0 };
	void *hit[4] = { 0 };

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	OK(fi_poll_open(c.domain, &a, &p));
	OK(fi_poll_add(p, &c.rx->fid, 0));
	OK(fi_poll_add(p, &c.tx->fid, 0));
	EQ(fi_poll(p, hit, 4), 0);
	if (rank == 0) {
		int n;

		recv1(&c, b, 64, 0);
		ct_send_oob("x", 1);
		while ((n = fi_poll(p, hit, 4)) == 0)
			;
		EQ(n, 1);
		CHECK(hit[0] == &c);		/* context of the queue */
		ct_recvd(&c, CTX(0), 64);
		EQ(fi_poll(p, hit, 4), 0);
	} else {
		char x;
		ct_recv_oob(&c, &x, 1);
		send1(&c, b, 64, 0);
		ct_sent(&c, CTX(0));
	}
	ERR(fi_close(&c.rx->fid), FI_EBUSY);
	OK(fi_poll_del(p, &c.rx->fid, 0));
	OK(fi_poll_del(p, &c.tx->fid, 0));
	OK(fi_close(&p->fid));
	ct_done(&c);
}
/* Fabric and domain alone. */
static void open_bare(struct ct *c)
{
	memset(c, 0, sizeof *c);
	c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
	OK(fi_domain(c->fabric, c->info, &c->domain, c));
}
static void poll_counters(int rank)
{
	struct fi_cntr_attr n = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE };
	struct fi_poll_attr a = { 0 };
	struct fid_cntr *cntr[3];
	struct fid_poll *p;
	void *hit[3];
	struct ct c;
	int seen = 0;

	(void)rank;
	open_bare(&c);
	OK(fi_poll_open(c.domain, &a, &p));
	for (int i = 0; i < 3; i++) {
		OK(fi_cntr_open(c.domain, &n, &cntr[i], CTX(i)));
		OK(fi_poll_add(p, &cntr[i]->fid, 0));
		OK(fi_cntr_add(cntr[i], 1));
	}
	EQ(fi_poll(p, NULL, 0), 0);
	for (int i = 0; i < 3; i++) {
		EQ(fi_poll(p, hit, 1), 1);
		for (int k = 0; k < 3; k++)
			seen |= (hit[0] == CTX(k)) << k;
	}
	EQ(seen, 7);
	EQ(fi_poll(p, hit, 3), 0);
	for (int i = 0; i < 3; i++) {
		OK(fi_poll_del(p, &cntr[i]->fid, 0));
		OK(fi_close(&cntr[i]->fid));
	}
	OK(fi_close(&p->fid));
	ct_close(&c);
}
static void too_large(int rank)
{
	struct fi_cq_attr q = { .size = 1u << 29, .format = FI_CQ_FORMAT_TAGGED };
	struct rlimit l = { 4ull << 30, 4ull << 30 };
	struct fid_cq *cq;
	struct ct c;

	(void)rank;
#ifdef __SANITIZE_ADDRESS__
	SKIP_HERE("AddressSanitizer needs address space of its own");
#endif
	open_bare(&c);
	CHECK(!setrlimit(RLIMIT_AS, &l));
	ERR(fi_cq_open(c.domain, &q, &cq, NULL), FI_ENOMEM);
	ct_close(&c);
}
static void wait_set(int rank)
{
	struct ct c;
	struct fid_wait *w;
	struct fid_cq *q;
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr qa = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_SET };
	int r;

	(void)rank;
	ct_open(&c, NULL);
	r = fi_wait_open(c.fabric, &wa, &w);
	if (r == -FI_ENOSYS)
		SKIP("no wait sets");
	OK(r);
	qa.wait_set = w;
	OK(fi_cq_open(c.domain, &qa, &q, NULL));
	while ((r = fi_wait(w, 20)) == 0)
		;	/* may return early */
	EQ(r, -FI_ETIMEDOUT);
	ERR(fi_close(&w->fid), FI_EBUSY);
	OK(fi_close(&q->fid));
	OK(fi_close(&w->fid));
	ct_done(&c);
}

static void busy(int rank)
{
	struct ct c;

	(void)rank;
	ct_open(&c, NULL);
	ERR(fi_close(&c.rx->fid), FI_EBUSY);
	ERR(fi_close(&c.tx->fid), FI_EBUSY);
	if (c.av)
		ERR(fi_close(&c.av->fid), FI_EBUSY);
	ERR(fi_close(&c.domain->fid), FI_EBUSY);
	ERR(fi_close(&c.fabric->fid), FI_EBUSY);
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "each queue format fills its own members and no byte beyond them", formats, CT_RDM },
	{ "one read returns many entries in order", read_many, 0 },
	{ "an empty queue answers -FI_EAGAIN to every read", empty, 0 },
	{ "a queue of four entries loses none of two hundred completions", small_queue, 0 },
	{ "one queue can serve both directions", one_queue, 0 },
	{ "readfrom returns the sender's address", source, CT_RDM },
	{ "a read freeing space in a full queue lets blocked operations continue", space_is_used, CT_REL },
	{ "readfrom returns FI_ADDR_NOTAVAIL for a sender outside the address vector", source_unknown, CT_RDM },
	{ "readfrom returns FI_ADDR_NOTAVAIL without FI_SOURCE", source_not_asked, 0 },
	{ "with FI_AV_USER_ID completions identify a peer by the application's id", user_id, CT_RDM | CT_REL },
	{ "an unexpected message gets its source address once its sender is in the AV", late_name, CT_RDM | CT_REL },
	{ "an unexpected message has no source address after its sender leaves the AV", lost_name, CT_RDM | CT_REL },
	{ "with FI_SOURCE_ERR a message of an unknown peer fails with its address", source_unknown_peer, CT_RDM | CT_REL },
	{ "with FI_SOURCE_ERR an unknown peer may have ended, and truncation is reported", source_unknown_peer_gone, CT_RDM | CT_REL },
	{ "sread waits on FI_WAIT_UNSPEC", sread_unspec, 0 },
	{ "sread waits on FI_WAIT_FD", sread_fd, 0 },
	{ "sread waits on FI_WAIT_YIELD", sread_yield, 0 },
	{ "FI_WAIT_MUTEX_COND works or is refused, and invalid wait objects are refused", mutex_cond, 0 },
	{ "fi_cq_signal wakes a waiting reader", cq_signal, 0 },
	{ "fi_trywait and poll on the descriptor miss no completion", wait_fd, 0 },
	{ "fi_trywait and poll on the descriptors of FI_WAIT_POLLFD miss no completion", wait_pollfd, 0 },
	{ "a queue without wait object has no descriptor", sread_none, 0 },
	{ "queues, counters and wait sets report the kind of their wait object", wait_kinds, 0 },
	{ "counters count completed operations, including injected ones", counters, 0 },
	{ "byte counters count the bytes of messages", counted_bytes, 0 },
	{ "counters can be set and added to", counter_arithmetic, 0 },
	{ "a changed counter signals its wait object", changed_counter_wakes, CT_SOLO },
	{ "a cancelled receive counts as an error", counter_errors, 0 },
	{ "fi_cntr_add and fi_cntr_adderr wake a waiter", counter_wakes, 0 },
	{ "a queue too large for the available memory is refused", too_large, CT_SOLO },
	{ "a poll set reports the queues with entries", poll_set, 0 },
	{ "a poll set reports every changed counter even if each call returns few", poll_counters, CT_SOLO },
	{ "a wait set waits and is busy while a queue uses it", wait_set, 0 },
	{ "objects in use answer -FI_EBUSY to fi_close", busy, 0 },
};
CT_MAIN("cq", tests)
