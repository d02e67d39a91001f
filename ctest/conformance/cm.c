/* fi_eq(3), fi_cm(3): events, connection management of FI_EP_MSG endpoints. */
#include "ct.h"

static void open_fabric(struct ct *c)
{
	memset(c, 0, sizeof *c);
	c->info = ct_getinfo(&c->o, NULL, NULL, 0);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, c));
	ct_open_eq(c);
}

static void eq_events(int rank)
{
	struct ct c;
	struct fi_eq_entry in = { .context = &c, .data = 77 }, out;
	struct fi_eq_err_entry err = { 0 };
	uint32_t ev = 99;
	char buf[64];

	(void)rank;
	open_fabric(&c);
	ERR(fi_eq_read(c.eq, &ev, &out, sizeof out, 0), FI_EAGAIN);
	ERR(fi_eq_sread(c.eq, &ev, &out, sizeof out, 20, 0), FI_EAGAIN);
	ERR(fi_eq_readerr(c.eq, &err, 0), FI_EAGAIN);
	in.fid = &c.eq->fid;
	EQ(fi_eq_write(c.eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	in.data = 78;
	EQ(fi_eq_write(c.eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	memset(&out, 0, sizeof out);
	EQ(fi_eq_read(c.eq, &ev, &out, sizeof out, FI_PEEK), sizeof out);
	EQ(out.data, 77);
	EQ(fi_eq_read(c.eq, &ev, &out, sizeof out, 0), sizeof out);
	EQ(ev, FI_NOTIFY);
	EQ(out.data, 77);
	CHECK(out.fid == &c.eq->fid && out.context == &c);
	EQ(fi_eq_sread(c.eq, &ev, &out, sizeof out, -1, 0), sizeof out);
	EQ(out.data, 78);
	ERR(fi_eq_read(c.eq, &ev, &out, sizeof out, 0), FI_EAGAIN);
	CHECK(fi_eq_strerror(c.eq, FI_EIO, NULL, buf, sizeof buf) != NULL);
	OK(fi_close(&c.eq->fid));
	OK(fi_close(&c.fabric->fid));
}

static void eq_small_buffer(int rank)
{
	struct ct c;
	struct fi_eq_entry in = { .context = &c, .data = 77 }, out;
	uint32_t ev;

	(void)rank;
	open_fabric(&c);
	EQ(fi_eq_write(c.eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	ERR(fi_eq_read(c.eq, &ev, &out, 4, 0), FI_ETOOSMALL);
	EQ(fi_eq_read(c.eq, &ev, &out, sizeof out, 0), sizeof out);
	EQ(out.data, 77);
	OK(fi_close(&c.eq->fid));
	OK(fi_close(&c.fabric->fid));
}

static void *write_later(void *q)
{
	struct fi_eq_entry e = { .data = 5 };

	ct_nap(50);
	EQ(fi_eq_write(q, FI_NOTIFY, &e, sizeof e, 0), sizeof e);
	return NULL;
}
static void eq_wakes(int rank)
{
	struct ct c;
	struct fi_eq_entry e;
	uint32_t ev;
	pthread_t t;
	int fd = -1;

	(void)rank;
	open_fabric(&c);
	EQ(pthread_create(&t, NULL, write_later, c.eq), 0);
	EQ(fi_eq_sread(c.eq, &ev, &e, sizeof e, -1, 0), sizeof e);
	EQ(e.data, 5);
	EQ(pthread_join(t, NULL), 0);
	OK(fi_close(&c.eq->fid));

	struct fi_eq_attr a = { .wait_obj = FI_WAIT_FD, .flags = FI_WRITE };
	OK(fi_eq_open(c.fabric, &a, &c.eq, NULL));
	OK(fi_control(&c.eq->fid, FI_GETWAIT, &fd));
	EQ(pthread_create(&t, NULL, write_later, c.eq), 0);
	for (;;) {
		struct fid *f = &c.eq->fid;
		struct pollfd p = { .fd = fd, .events = POLLIN };

		if (fi_eq_read(c.eq, &ev, &e, sizeof e, 0) == sizeof e)
			break;
		if (fi_trywait(c.fabric, &f, 1) == 0)
			poll(&p, 1, -1);
	}
	EQ(pthread_join(t, NULL), 0);
	OK(fi_close(&c.eq->fid));
	a.wait_obj = FI_WAIT_NONE;
	OK(fi_eq_open(c.fabric, &a, &c.eq, NULL));
	ERR(fi_eq_sread(c.eq, &ev, &e, sizeof e, 10, 0), FI_ENOSYS);
	OK(fi_close(&c.eq->fid));
	OK(fi_close(&c.fabric->fid));
}

struct cm_event { struct fi_eq_cm_entry e; unsigned char data[512]; };

/* Connection data of n bytes goes both ways. */
static void cm_data(int rank)
{
	static const size_t N[] = { 0, 1, 16, 56, 255, 256 };
	for (size_t k = 0; k < sizeof N / sizeof *N; k++) {
		struct ct c;
		struct ct_name n;
		struct cm_event x;
		unsigned char p[512];
		uint32_t ev;
		size_t max = 0, len = sizeof max;

		memset(&c, 0, sizeof c);
		ct_fill(p, sizeof p, rank);
		if (rank == 0) {
			ct_listen(&c);
			OK(fi_getopt(&c.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &max, &len));
			EQ(len, sizeof max);
			CHECK(max >= 16);
			ct_send_oob(&max, sizeof max);
			n = ct_getname(&c.pep->fid);
			ct_send_oob(&n, sizeof n);
		} else {
			ct_recv_oob(NULL, &max, sizeof max);
			ct_recv_oob(NULL, &n, sizeof n);
		}
		if (N[k] > max)
			break;
		if (rank == 0) {
			EQ(ct_event(&c, &ev, &x, sizeof x, NULL), sizeof x.e + N[k]);
			EQ(ev, FI_CONNREQ);
			CHECK(x.e.fid == &c.pep->fid);
			CHECK(x.e.info && x.e.info->handle);
			CHECK(ct_same(x.data, N[k], 1));
			fi_freeinfo(c.info);
			c.info = x.e.info;
			ct_open_domain(&c);
			ct_open_ep(&c, c.info);
			OK(fi_enable(c.ep));
			OK(fi_accept(c.ep, N[k] ? p : NULL, N[k]));
			CHECK(ct_event(&c, &ev, &x, sizeof x, NULL) >= (ssize_t)sizeof x.e);
			EQ(ev, FI_CONNECTED);
			CHECK(x.e.fid == &c.ep->fid);
		} else {
			ct_prepare(&c, &n);
			OK(fi_connect(c.ep, n.b, N[k] ? p : NULL, N[k]));
			EQ(ct_event(&c, &ev, &x, sizeof x, NULL), sizeof x.e + N[k]);
			EQ(ev, FI_CONNECTED);
			CHECK(x.e.fid == &c.ep->fid);
			CHECK(ct_same(x.data, N[k], 0));
		}
		ct_done(&c);
	}
}

/* fi_cm(3): "The fi_connect, fi_accept, and fi_reject calls will silently truncate any application data which cannot fit". */
static void too_much_data(int rank)
{
	static unsigned char p[70000];
	size_t max = 0, len = sizeof max;

	ct_fill(p, sizeof p, 4);
	for (int rejects = 0; rejects < 2; rejects++) {
		struct ct c;
		struct ct_name n;
		struct {
			struct fi_eq_cm_entry e;
			unsigned char data[70000];
		} x;
		uint32_t ev;
		ssize_t r;

		memset(&c, 0, sizeof c);
		if (rank == 0) {
			ct_listen(&c);
			OK(fi_getopt(&c.pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &max, &len));
			n = ct_getname(&c.pep->fid);
			ct_send_oob(&n, sizeof n);
			r = ct_event(&c, &ev, &x, sizeof x, NULL);
			EQ(ev, FI_CONNREQ);
			EQ(r, sizeof x.e + max);
			CHECK(ct_same(x.data, max, 4));
			if (rejects) {
				OK(fi_reject(c.pep, x.e.info->handle, p, sizeof p));
				fi_freeinfo(x.e.info);
			} else {
				c.info = x.e.info;
				ct_open_domain(&c);
				ct_open_ep(&c, c.info);
				OK(fi_accept(c.ep, p, max + 1));
				ct_want_event(&c, FI_CONNECTED, &x.e, sizeof x);
			}
			ct_barrier(NULL);
		} else {
			struct fi_eq_err_entry err = { 0 };

			ct_recv_oob(NULL, &n, sizeof n);
			ct_prepare(&c, &n);
			OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &max, &len));
			OK(fi_connect(c.ep, n.b, p, sizeof p));
			if (rejects) {
				err.err_data = x.data;
				err.err_data_size = sizeof x.data;
				EQ(ct_event(&c, &ev, &x.e, sizeof x.e, &err), -FI_EAVAIL);
				EQ(err.err, FI_ECONNREFUSED);
				EQ(err.err_data_size, max);
				CHECK(ct_same(err.err_data, max, 4));
			} else {
				r = ct_event(&c, &ev, &x, sizeof x, NULL);
				EQ(ev, FI_CONNECTED);
				EQ(r, sizeof x.e + max);
				CHECK(ct_same(x.data, max, 4));
			}
			ct_barrier(NULL);
		}
		ct_close(&c);
	}
}

/* fi_cm(3): "calls fi_reject with the listening endpoint and a reference to the connection request": also when an endpoint was
 * opened for it, which has not accepted it. */
static void rejected_late(int rank)
{
	struct ct c;
	struct ct_name n;
	struct cm_event x;
	unsigned char p[16];
	uint32_t ev;

	memset(&c, 0, sizeof c);
	ct_fill(p, sizeof p, 9);
	if (rank == 0) {
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
		ct_send_oob(&n, sizeof n);
		EQ(ct_event(&c, &ev, &x, sizeof x, NULL), sizeof x.e);
		EQ(ev, FI_CONNREQ);
		fi_freeinfo(c.info);
		c.info = x.e.info;
		ct_open_domain(&c);
		ct_open_ep(&c, c.info);
		OK(fi_reject(c.pep, c.info->handle, p, sizeof p));
		ERR(fi_reject(c.pep, c.info->handle, p, sizeof p), FI_EINVAL);
		CHECK(fi_accept(c.ep, NULL, 0) < 0);
		ct_barrier(NULL);
	} else {
		struct fi_eq_err_entry err = { 0 };

		ct_recv_oob(NULL, &n, sizeof n);
		ct_prepare(&c, &n);
		OK(fi_connect(c.ep, n.b, NULL, 0));
		EQ(ct_event(&c, &ev, &x, sizeof x, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECONNREFUSED);
		EQ(err.err_data_size, sizeof p);
		CHECK(ct_same(err.err_data, sizeof p, 9));
		ct_barrier(NULL);
	}
	ct_close(&c);
}
static void rejected(int rank)
{
	for (size_t k = 0; k < 3; k++) {
		struct ct c;
		struct ct_name n;
		struct cm_event x;
		unsigned char p[16];
		uint32_t ev;

		memset(&c, 0, sizeof c);
		ct_fill(p, sizeof p, 9);
		if (rank == 0) {
			ct_listen(&c);
			n = ct_getname(&c.pep->fid);
			ct_send_oob(&n, sizeof n);
			EQ(ct_event(&c, &ev, &x, sizeof x, NULL), sizeof x.e);
			EQ(ev, FI_CONNREQ);
			OK(fi_reject(c.pep, x.e.info->handle, k ? p : NULL, k ? sizeof p : 0));
			fi_freeinfo(x.e.info);
			ct_barrier(NULL);
		} else {
			struct fi_eq_err_entry err = { 0 };
			char own[17];

			ct_recv_oob(NULL, &n, sizeof n);
			ct_prepare(&c, &n);
			OK(fi_connect(c.ep, n.b, NULL, 0));
			if (k == 2) {
				/* the program's buffer gets as much as fits */
				memset(own, 0x5a, sizeof own);
				err.err_data = own;
				err.err_data_size = 7;
				while (fi_eq_read(c.eq, &ev, &x, sizeof x, 0) == -FI_EAGAIN)
					;
				EQ(fi_eq_readerr(c.eq, &err, 0), sizeof err);
				EQ(err.err, FI_ECONNREFUSED);
				CHECK(err.err_data == own);
				EQ(err.err_data_size, 7);
				CHECK(ct_same(own, 7, 9) && own[7] == 0x5a);
				ct_barrier(NULL);
				ct_close(&c);
				continue;
			}
			EQ(ct_event(&c, &ev, &x, sizeof x, &err), -FI_EAVAIL);
			EQ(err.err, FI_ECONNREFUSED);
			CHECK(err.fid == &c.ep->fid);
			EQ(err.err_data_size, k ? sizeof p : 0);
			if (k)
				CHECK(ct_same(err.err_data, sizeof p, 9));
			ct_barrier(NULL);
		}
		ct_close(&c);
	}
}
static void refused(int rank)
{
	struct ct c;
	struct ct_name n;
	struct cm_event x;
	struct fi_eq_err_entry err = { 0 };
	uint32_t ev;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t al = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM, 0);

	(void)rank;		/* a port that is bound and does not listen */
	CHECK(s >= 0 && !bind(s, (void *)&a, al) && !getsockname(s, (void *)&a, &al));
	memset(&c, 0, sizeof c);
	memcpy(n.b, &a, sizeof a);
	n.n = sizeof a;
	ct_prepare(&c, &n);
	OK(fi_connect(c.ep, n.b, NULL, 0));
	EQ(ct_event(&c, &ev, &x, sizeof x, &err), -FI_EAVAIL);
	EQ(err.err, FI_ECONNREFUSED);
	CHECK(err.fid == &c.ep->fid);
	ct_close(&c);
}
static void shutdown_event(int rank)
{
	struct ct c;
	char *b;
	struct fi_eq_cm_entry e;
	struct fi_cq_tagged_entry q;
	struct fi_cq_err_entry err;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), 0, CTX(0)));
		POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), 0, CTX(1)));
		ct_barrier(&c);	/* iWARP forgives no message without a receive */
		ct_recvd(&c, CTX(0), 64);
		ct_want_event(&c, FI_SHUTDOWN, &e, sizeof e);
		CHECK(e.fid == &c.ep->fid);
		/* the receive left behind is flushed */
		EQ(ct_next(&c, c.rx, &q, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(1));
		CHECK(err.err > 0);
		OK(fi_shutdown(c.ep, 0));	/* there is nothing left to end */
	} else {
		ct_barrier(&c);
		POST(&c, fi_send(c.ep, b, 64, ct_desc(b), 0, CTX(0)));
		ct_sent(&c, CTX(0));
		OK(fi_shutdown(c.ep, 0));
	}
	ct_barrier(&c);
	ct_close(&c);
}
static void own_shutdown(int rank)
{
	struct ct c;
	struct fi_eq_cm_entry e;

	ct_open(&c, NULL);
	if (rank == 0) {	/* no help from the other side: it only waits */
		OK(fi_shutdown(c.ep, 0));
		ct_want_event(&c, FI_SHUTDOWN, &e, sizeof e);
		CHECK(e.fid == &c.ep->fid);
	}
	ct_barrier(NULL);
	ct_close(&c);
}
static void closed_peer(int rank)
{
	struct ct c;

	ct_open(&c, NULL);
	if (rank == 0) {
		struct fi_eq_cm_entry e;

		ct_want_event(&c, FI_SHUTDOWN, &e, sizeof e);
		CHECK(e.fid == &c.ep->fid);
	} else {
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
	}
	ct_barrier(rank ? NULL : &c);
	ct_close(&c);
}
static void names(int rank)
{
	struct ct c;
	struct ct_name l, p, theirs;
	char b[128];
	size_t n = 2;

	ct_ip_only();
	ct_open(&c, NULL);
	l = ct_getname(&c.ep->fid);
	p.n = sizeof p.b;
	OK(fi_getpeer(c.ep, p.b, &p.n));
	ct_swap(&c, &l, &theirs, sizeof l);
	EQ(((struct sockaddr *)p.b)->sa_family, AF_INET);
	EQ(p.n, sizeof(struct sockaddr_in));
	/* the accepting side may be known by its listening port */
	if (rank == 0)
		EQ(((struct sockaddr_in *)p.b)->sin_port, ((struct sockaddr_in *)theirs.b)->sin_port);
	ERR(fi_getname(&c.ep->fid, b, &n), FI_ETOOSMALL);
	EQ(n, l.n);
	n = 2;
	ERR(fi_getpeer(c.ep, b, &n), FI_ETOOSMALL);
	EQ(n, p.n);
	{
		struct sockaddr_in of;
		socklen_t len = sizeof of;
		int fd = -1, r = fi_control(&c.ep->fid, FI_GET_FD, &fd);

		/* releases before 2.2 have no such command */
		if (r != -FI_ENOSYS) {
			OK(r);
			EQ(getpeername(fd, (void *)&of, &len), 0);
			EQ(of.sin_port, ((struct sockaddr_in *)p.b)->sin_port);
		}
	}
	ct_done(&c);
}
static void pep_name(int rank)
{
	struct ct c;
	struct ct_name n;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	(void)rank;
	ct_ip_only();
	memset(&c, 0, sizeof c);
	c.info = ct_getinfo(&c.o, "127.0.0.1", "0", FI_SOURCE);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	ct_open_eq(&c);
	OK(fi_passive_ep(c.fabric, c.info, &c.pep, NULL));
	OK(fi_setname(&c.pep->fid, &a, sizeof a));
	OK(fi_pep_bind(c.pep, &c.eq->fid, 0));
	OK(fi_listen(c.pep));
	n = ct_getname(&c.pep->fid);
	EQ(((struct sockaddr_in *)n.b)->sin_family, AF_INET);
	CHECK(((struct sockaddr_in *)n.b)->sin_port != 0);
	EQ(((struct sockaddr_in *)n.b)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	ct_close(&c);
}
/* rank 1's endpoint takes the address that its passive endpoint was given */
static void from_pep(int rank)
{
	struct ct c;
	struct ct_name to, mine, ep;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	ct_ip_only();
	memset(&c, 0, sizeof c);
	inet_pton(AF_INET, ct_node(&c.o), &a.sin_addr);
	if (rank == 0) {
		struct cm_event x;

		ct_listen(&c);
		to = ct_getname(&c.pep->fid);
		ct_send_oob(&to, sizeof to);
		ct_recv_oob(&c, &mine, sizeof mine);
		ct_want_event(&c, FI_CONNREQ, &x.e, sizeof x);
		EQ(((struct sockaddr_in *)x.e.info->dest_addr)->sin_port, ((struct sockaddr_in *)mine.b)->sin_port);
		OK(fi_reject(c.pep, x.e.info->handle, NULL, 0));
		fi_freeinfo(x.e.info);
		ct_barrier(NULL);
	} else {
		struct fid_pep *pep;
		struct fi_info *info;
		struct cm_event x;
		struct fi_eq_err_entry err = { 0 };
		uint32_t ev;

		ct_recv_oob(NULL, &to, sizeof to);
		ct_prepare(&c, &to);
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		OK(fi_passive_ep(c.fabric, c.info, &pep, NULL));
		OK(fi_setname(&pep->fid, &a, sizeof a));
		mine = ct_getname(&pep->fid);
		CHECK(((struct sockaddr_in *)mine.b)->sin_port != 0);
		info = fi_dupinfo(c.info);
		info->handle = &pep->fid;
		OK(fi_endpoint(c.domain, info, &c.ep, NULL));
		ep = ct_getname(&c.ep->fid);
		EQ(ep.n, mine.n);
		EQ(((struct sockaddr_in *)ep.b)->sin_port, ((struct sockaddr_in *)mine.b)->sin_port);
		ct_send_oob(&mine, sizeof mine);
		OK(fi_ep_bind(c.ep, &c.eq->fid, 0));
		OK(fi_ep_bind(c.ep, &c.tx->fid, FI_TRANSMIT));
		OK(fi_ep_bind(c.ep, &c.rx->fid, FI_RECV));
		OK(fi_enable(c.ep));
		OK(fi_connect(c.ep, to.b, NULL, 0));
		EQ(ct_event(&c, &ev, &x, sizeof x, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECONNREFUSED);
		ct_barrier(NULL);
		fi_freeinfo(info);
		OK(fi_close(&pep->fid));
	}
	ct_close(&c);
}
/*
 * fi_cm(3): "After receiving such an event, the application allocates a new endpoint to accept the connection." The program has the
 * request then: closing the passive endpoint drops those that were not read, and no others.
 */
static void accepted_after_close(int rank)
{
	struct ct c = { 0 };
	struct ct_name n;
	static char b[8];

	if (rank == 0) {
		struct fi_eq_cm_entry e;

		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
		ct_send_oob(&n, sizeof n);
		ct_want_event(&c, FI_CONNREQ, &e, sizeof e);
		OK(fi_close(&c.pep->fid));
		c.pep = NULL;
		fi_freeinfo(c.info);
		c.info = e.info;
		ct_open_domain(&c);
		ct_open_ep(&c, c.info);
		OK(fi_enable(c.ep));
		OK(fi_accept(c.ep, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
		OK(fi_recv(c.ep, b, 8, NULL, 0, CTX(1)));
		ct_recvd(&c, CTX(1), 8);
	} else {
		ct_recv_oob(NULL, &n, sizeof n);
		ct_prepare(&c, &n);
		OK(fi_connect(c.ep, n.b, NULL, 0));
		ct_want_event(&c, FI_CONNECTED, NULL, 0);
		POST(&c, fi_send(c.ep, b, 8, NULL, 0, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	ct_done(&c);
}
static void many_connections(int rank)
{
	enum { N = 64 };
	static struct ct c[N];
	struct ct l;
	struct ct_name n;
	static char in[N], out = 'x';

	memset(&l, 0, sizeof l);
	if (rank == 0) {
		int up = 0, asked = 0;

		ct_listen(&l);
		n = ct_getname(&l.pep->fid);
		ct_send_oob(&n, sizeof n);
		while (up < N) {
			struct fi_eq_cm_entry e;
			uint32_t ev;

			CHECK(ct_event(&l, &ev, &e, sizeof e, NULL) >= (ssize_t)sizeof e);
			if (ev == FI_CONNREQ) {
				struct ct *x = &c[asked++];

				x->fabric = l.fabric;
				x->domain = asked > 1 ? c[0].domain : NULL;
				x->borrowed = asked > 1;
				x->info = e.info;
				x->eq = l.eq;
				ct_open_domain(x);
				ct_open_ep(x, x->info);
				OK(fi_enable(x->ep));
				OK(fi_recv(x->ep, &in[asked - 1], 1, NULL, 0, CTX(asked - 1)));
				OK(fi_accept(x->ep, NULL, 0));
			} else {
				EQ(ev, FI_CONNECTED);
				up++;
			}
		}
		for (int i = 0; i < N; i++)
			ct_recvd(&c[i], CTX(i), 1);
	} else {
		int up = 0;

		ct_recv_oob(NULL, &n, sizeof n);
		for (int i = 0; i < N; i++) {
			if (i) {
				c[i].fabric = c[0].fabric;
				c[i].domain = c[0].domain;
				c[i].eq = c[0].eq;
				c[i].borrowed = 1;
				c[i].info = fi_dupinfo(c[0].info);
				ct_open_domain(&c[i]);
				ct_open_ep(&c[i], c[i].info);
				OK(fi_enable(c[i].ep));
			} else {
				ct_prepare(&c[0], &n);
			}
			OK(fi_connect(c[i].ep, n.b, NULL, 0));
		}
		for (; up < N; up++)
			ct_want_event(&c[0], FI_CONNECTED, NULL, 0);
		for (int i = 0; i < N; i++)
			POST(&c[i], fi_inject(c[i].ep, &out, 1, 0));
	}
	ct_barrier(&c[0]);
	for (int i = N - 1; i > 0; i--) {
		c[i].eq = NULL;
		ct_close(&c[i]);
	}
	if (rank == 0) {
		struct fid_domain *d = c[0].domain;
		c[0].eq = NULL;
		c[0].borrowed = 1;
		ct_close(&c[0]);
		OK(fi_close(&d->fid));
		ct_close(&l);
	} else {
		ct_close(&c[0]);
	}
}
static void before_connect(int rank)
{
	struct ct c;
	struct ct_name n;
	char b[64];
	ssize_t r;

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
		ct_send_oob(&n, sizeof n);
		ct_barrier(NULL);
	} else {
		ct_recv_oob(NULL, &n, sizeof n);
		ct_prepare(&c, &n);
		r = fi_send(c.ep, b, 1, NULL, 0, CTX(0));
		CHECK(r < 0);
		ct_barrier(NULL);
	}
	ct_close(&c);
}
static void ep_without_eq(int rank)
{
	struct ct c;
	struct ct_opt o = { 0 };

	(void)rank;
	memset(&c, 0, sizeof c);
	c.o = o;
	c.info = ct_getinfo(&c.o, "127.0.0.1", "1", 0);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	ERR(fi_enable(c.ep), FI_ENOEQ);
	ct_close(&c);
}

/* Events name an endpoint by a handle that is open, and none are left of it when the last is closed. */
static void alias_events(int rank)
{
	struct fi_eq_cm_entry e;
	struct fid_ep *alias = NULL, *other = NULL;
	struct ct c;
	uint32_t ev;

	ct_open(&c, NULL);
	if (rank == 1) {
		OK(fi_shutdown(c.ep, 0));
		ct_barrier(&c);
		ct_close(&c);
		return;
	}
	OK(fi_ep_alias(c.ep, &alias, FI_TRANSMIT));
	OK(fi_ep_alias(c.ep, &other, FI_RECV));
	ct_barrier(&c);
	while (fi_eq_read(c.eq, &ev, &e, sizeof e, FI_PEEK) == -FI_EAGAIN)
		ct_progress(&c);
	CHECK(ev == FI_SHUTDOWN && e.fid == &c.ep->fid);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	EQ(fi_eq_read(c.eq, &ev, &e, sizeof e, FI_PEEK), sizeof e);
	CHECK(ev == FI_SHUTDOWN && e.fid == &alias->fid);
	OK(fi_close(&other->fid));
	EQ(fi_eq_read(c.eq, &ev, &e, sizeof e, FI_PEEK), sizeof e);
	CHECK(ev == FI_SHUTDOWN && e.fid == &alias->fid);
	OK(fi_close(&alias->fid));
	ERR(fi_eq_read(c.eq, &ev, &e, sizeof e, FI_PEEK), FI_EAGAIN);
	ct_close(&c);
}
/* The same when the event comes after the first handle is closed. */
static void alias_shutdown(int rank)
{
	struct fi_eq_cm_entry e;
	struct fid_ep *alias = NULL;
	struct ct c;

	ct_open(&c, NULL);
	if (rank == 0) {
		OK(fi_ep_alias(c.ep, &alias, FI_TRANSMIT));
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
	}
	ct_barrier(&c);
	if (rank == 0) {
		ct_want_event(&c, FI_SHUTDOWN, &e, sizeof e);
		CHECK(e.fid == &alias->fid);
		OK(fi_close(&alias->fid));
	}
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "an event queue returns written events in order", eq_events, CT_SOLO },
	{ "an event larger than the buffer stays queued", eq_small_buffer, CT_SOLO },
	{ "writing to an event queue wakes its reader", eq_wakes, CT_SOLO },
	{ "connection data of every length is delivered in both directions", cm_data, CT_MSG },
	{ "connection data longer than FI_OPT_CM_DATA_SIZE is truncated", too_much_data, CT_MSG },
	{ "a request can be rejected after an endpoint was opened for it", rejected_late, CT_MSG },
	{ "a rejected connection reports the data of the rejecting peer", rejected, CT_MSG },
	{ "a request already read can be accepted after its passive endpoint is closed", accepted_after_close, CT_MSG },
	{ "a port without a listener gives FI_ECONNREFUSED", refused, CT_MSG | CT_SOLO },
	{ "fi_shutdown gives FI_SHUTDOWN and flushes receives", shutdown_event, CT_MSG },
	{ "fi_shutdown gives its caller FI_SHUTDOWN as well", own_shutdown, CT_MSG },
	{ "closing an endpoint gives the peer FI_SHUTDOWN", closed_peer, CT_MSG },
	{ "events name an open handle of the endpoint and are removed with its last handle", alias_events, CT_MSG },
	{ "an event after the close of an endpoint names its alias", alias_shutdown, CT_MSG },
	{ "fi_getname and fi_getpeer return the two addresses of a connection", names, CT_MSG },
	{ "a passive endpoint has the address it listens on", pep_name, CT_MSG | CT_SOLO },
	{ "an endpoint opened with a passive endpoint as handle has its address", from_pep, CT_MSG },
	{ "sixty-four connections share one event queue", many_connections, CT_MSG },
	{ "sending before fi_connect fails", before_connect, CT_MSG },
	{ "fi_enable without event queue answers -FI_ENOEQ", ep_without_eq, CT_MSG | CT_SOLO },
};
CT_MAIN("cm", tests)
