/* Effects of peers, the network and the operating system on an endpoint. */
#include "ct.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int port_of(const struct ct_name *n)
{
	const struct sockaddr *sa = (const void *)n->b;

	return ntohs(sa->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
					       : ((const struct sockaddr_in *)sa)->sin_port);
}
static int tcp_to(int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int s = socket(AF_INET, SOCK_STREAM, 0);

	ct_ip_only();
	CHECK(s >= 0);
	CHECK(!connect(s, (void *)&a, sizeof a));
	return s;
}

/*
 * Rank 1 is killed while messages flow both ways.  Every operation of rank 0
 * must end, in success or in error, and its process must live on.
 */
static void peer_killed(int rank, size_t n)
{
	enum { W = 16 };
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, n * W);
	if (rank == 1) {
		int sent = 0;

		for (int i = 0; i < W; i++)
			POST(&c, fi_recv(c.ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
		ct_send_oob("k", 1);
		for (;;) {
			struct fi_cq_tagged_entry e;

			if (sent < 3 && fi_send(c.ep, b, n, ct_desc(b), c.peer, CTX(9)) == 0)
				sent++;
			(void)fi_cq_read(c.tx, &e, 1);
			if (fi_cq_read(c.rx, &e, 1) == 1 && sent == 3) {
				ct_rank = 1;
				kill(getpid(), SIGKILL);
			}
		}
	} else {
		int errors = 0, posted = 0, done = 0;
		char x;
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;
		uint32_t ev;
		struct fi_eq_cm_entry cm;

		ct_recv_oob(&c, &x, 1);
		/* go on sending until the library reports that the peer is gone */
		while (!errors) {
			ssize_t r;

			if (posted - done < W) {
				r = fi_send(c.ep, b, n, ct_desc(b), c.peer, CTX(0));
				if (r == 0)
					posted++;
				else if (r != -FI_EAGAIN)
					errors++;	/* refused at once: reported as well */
			}
			memset(&err, 0, sizeof err);
			r = fi_cq_read(c.tx, &e, 1);
			if (r == 1) {
				done++;
			} else if (r == -FI_EAVAIL) {
				EQ(fi_cq_readerr(c.tx, &err, 0), 1);
				CHECK(err.err > 0);
				CHECK(err.op_context == CTX(0));
				done++;
				errors++;
			}
			ct_progress(&c);
			if (c.eq && fi_eq_read(c.eq, &ev, &cm, sizeof cm, 0) > 0)
				errors += ev == FI_SHUTDOWN;
		}
		while (done < posted) {		/* nothing is left hanging */
			ssize_t r = ct_next(&c, c.tx, &e, NULL, &err);

			CHECK(r == 1 || err.err > 0);
			done++;
		}
		ct_close(&c);
		ct_end(0, "survived");
	}
}
/* Rank 1 dies by SIGKILL on purpose: only rank 0 has a verdict. */
static void in_child(int rank, void (*f)(int))
{
	pid_t p;
	int st;

	if (rank == 0) {
		f(0);
		return;
	}
	p = fork();
	if (p == 0) {
		f(1);
		_exit(0);
	}
	close(ct_sync);
	CHECK(waitpid(p, &st, 0) == p);
	CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
}
static void kill_small(int rank) { peer_killed(rank, 64); }
static void kill_large(int rank) { peer_killed(rank, 1 << 20); }
static void peer_killed_small(int rank)
{
	in_child(rank, kill_small);
}

static void peer_killed_large(int rank)
{
	in_child(rank, kill_large);
}


/* Small messages until both ends use shared memory, where they have any. */
static void use_memory(struct ct *c, int rank, char *b)
{
	for (int i = 0; i < 100; i++) {
		if (rank == 0) {
			POST(c, fi_send(c->ep, b, 8, ct_desc(b), c->peer, CTX(0)));
			ct_sent(c, CTX(0));
		} else {
			OK(fi_recv(c->ep, b, 8, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			ct_recvd(c, CTX(1), 8);
		}
		ct_idle(c, i % 20 ? 0 : 1);
	}
}
/* Messages of which at most window are in flight, until the peer buffers no more of them. */
static void fill_unexpected(struct ct *c, char *b, size_t len, int window)
{
	struct fi_cq_tagged_entry e;
	int in_flight = 0;

	for (int64_t moved = ct_ms(); ct_ms() - moved < 500;) {
		while (in_flight < window && !fi_send(c->ep, b, len, ct_desc(b), c->peer, CTX(1)))
			in_flight++;
		if (fi_cq_read(c->tx, &e, 1) == 1) {
			in_flight--;
			moved = ct_ms();
		}
	}
}
/*
 * fi_cq(3): every started operation completes, with success or with an error. A peer with messages waiting for a
 * receive is not read, and yet its end ends the operations in flight to it.
 */
static void kill_unread(int rank)
{
	enum { LEN = 40000, BIG = 16 << 20, W = 60 };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	struct ct c;
	char *b;

	ct_param("MAX_UNEXPECTED", "1000000");
	ct_open(&c, NULL);
	b = ct_alloc(&c, BIG);
	use_memory(&c, rank, b);
	if (rank == 1) {
		fill_unexpected(&c, b, LEN, W);
		ct_barrier(&c);
		ct_recv_oob(&c, b, 1);
		kill(getpid(), SIGKILL);
	}
	ct_barrier(&c);
	ct_idle(&c, 200);
	POST(&c, fi_send(c.ep, b, BIG, ct_desc(b), c.peer, CTX(9)));
	ct_idle(&c, 100);
	ct_send_oob("k", 1);
	if (ct_next(&c, c.tx, &e, NULL, &err) < 0)
		CHECK(err.op_context == CTX(9) && err.err > 0);
	ct_close(&c);
}
static void peer_killed_unread(int rank)
{
	in_child(rank, kill_unread);
}
/*
 * fi_cq(3): every started operation completes, with success or with an error. Reads and acknowledged operations complete as well,
 * also if their response would follow unread messages.
 */
static void kill_unanswered(int rank)
{
	enum { LEN = 40000, W = 60, OPS = 3 };
	struct { uint64_t addr, key; pid_t pid; } theirs, mine = { 0 };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	struct iovec v;
	struct fi_rma_iov at;
	struct ct c;
	int seen[OPS] = { 0 };
	char *b;

	ct_param("MAX_UNEXPECTED", "1000000");
	ct_open(&c, &(struct ct_opt){ .caps = FI_MSG | FI_RMA });
	b = ct_alloc(&c, LEN);
	if (rank == 1) {
		struct fid_mr *mr;

		OK(fi_mr_reg(c.domain, b, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 77, 0, &mr, NULL));
		mine.key = fi_mr_key(mr);
		mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
		mine.pid = getpid();
	}
	ct_swap(&c, &mine, &theirs, sizeof mine);
	use_memory(&c, rank, b);
	if (rank == 1) {
		fill_unexpected(&c, b, LEN, W);
		ct_barrier(&c);
		for (;;)
			ct_nap(1000);
	}
	ct_barrier(&c);
	ct_idle(&c, 100);
	ct_stop(theirs.pid);	/* its unread data makes its end known */
	v = (struct iovec){ b, 8 };
	at = (struct fi_rma_iov){ theirs.addr, 8, theirs.key };
	POST(&c, fi_read(c.ep, b, 8, ct_desc(b), c.peer, theirs.addr, theirs.key, CTX(0)));
	POST(&c, fi_writemsg(c.ep, &(struct fi_msg_rma){ .msg_iov = &v, .desc = (void *[]){ ct_desc(b) }, .iov_count = 1, .addr = c.peer,
		.rma_iov = &at, .rma_iov_count = 1, .context = CTX(1) }, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	POST(&c, fi_sendmsg(c.ep, &(struct fi_msg){ .msg_iov = &v, .desc = (void *[]){ ct_desc(b) }, .iov_count = 1, .addr = c.peer,
		.context = CTX(2) }, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	ct_idle(&c, 100);
	OK(kill(theirs.pid, SIGKILL));
	for (int i = 0; i < OPS; i++) {
		int64_t which;

		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		which = (struct fi_context2 *)err.op_context - ct_ctx;
		CHECK(which >= 0 && which < OPS && !seen[which] && err.err > 0);
		seen[which] = 1;
	}
	NOTHING(&c, c.tx, 20);
	ct_close(&c);
}
static void peer_killed_unanswered(int rank)
{
	if (ct_is_rxd())
		SKIP("a peer that is silent counts as gone after minutes only");
	in_child(rank, kill_unanswered);
}
/* Nothing arrives any more: receives of a lost MSG connection are flushed. */
static void kill_idle(int rank)
{
	struct ct c;
	static char b[64];
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	ct_open(&c, NULL);
	if (rank == 1) {
		ct_recv_oob(&c, b, 1);
		kill(getpid(), SIGKILL);
	}
	OK(fi_recv(c.ep, b, 64, NULL, 0, CTX(3)));
	ct_send_oob("k", 1);
	ct_want_event(&c, FI_SHUTDOWN, NULL, 0);
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.op_context == CTX(3) && err.err > 0);
	ct_close(&c);
}
static void peer_killed_idle(int rank) { in_child(rank, kill_idle); }

/* The next peer at the same address can be talked to after one was lost. */
static void restarted(int rank)
{
	struct ct c;
	static char b[64];

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		struct ct_name n, mine = ct_open_rdm(&c, NULL);
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;
		fi_addr_t a;

		for (int i = 0; i < 2; i++) {
			int st;

			ct_send_oob(&mine, sizeof mine);
			ct_recv_oob(&c, &n, sizeof n);
			a = ct_insert(&c, &n);
			for (;;) {
				POST(&c, fi_send(c.ep, b, 8, NULL, a, CTX(i)));
				if (ct_next(&c, c.tx, &e, NULL, &err) == 1)
					break;
				CHECK(err.err > 0);	/* the old connection may report its end first */
			}
			ct_recv_oob(&c, &st, sizeof st);
		}
		ct_close(&c);
	} else {
		int port = 0;

		for (int i = 0; i < 2; i++) {
			int pp[2], st;
			pid_t p;

			CHECK(!pipe(pp));
			p = fork();
			if (p == 0) {
				struct ct_name peer, me;
				char svc[16];

				snprintf(svc, sizeof svc, "%d", port);
				c.info = ct_getinfo(&c.o, "127.0.0.1", svc, FI_SOURCE);
				ct_open_in(&c, NULL);
				ct_open_ep(&c, c.info);
				OK(fi_enable(c.ep));
				me = ct_getname(&c.ep->fid);
				st = port_of(&me);
				CHECK(write(pp[1], &st, sizeof st) == sizeof st);
				ct_recv_oob(&c, &peer, sizeof peer);
				ct_send_oob(&me, sizeof me);
				OK(fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(i)));
				ct_recvd(&c, CTX(i), 8);
				kill(getpid(), SIGKILL);
			}
			CHECK(read(pp[0], &port, sizeof port) == sizeof port);
			CHECK(waitpid(p, &st, 0) == p);
			CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
			ct_send_oob(&st, sizeof st);
		}
	}
}

/* A port of this host's that no endpoint gets as long as the socket is open, which does not listen, and its address. */
static int hold_port(struct ct_name *n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t al = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(s >= 0 && !bind(s, (void *)&a, al) && !getsockname(s, (void *)&a, &al));
	n->n = sizeof a;
	memcpy(n->b, &a, sizeof a);
	return s;
}

/* Sending to an address without a listener ends in an error entry. */
static void no_peer(int rank)
{
	setenv("FI_OFI_RXD_PEER_TIMEOUT", "1", 1);	/* a silent peer counts as gone after minutes */
	struct ct c;
	struct ct_name n;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	static char b[8];
	fi_addr_t to;

	ct_param("PEER_WAIT", "1");	/* of shm, which waits for peers that may come */
	(void)rank;
	hold_port(&n);
	memset(&c, 0, sizeof c);
	ct_open_rdm(&c, NULL);
	to = ct_insert(&c, &n);
	for (;;) {
		ssize_t r = fi_send(c.ep, b, 8, NULL, to, CTX(1));

		if (r == 0) {
			EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context == CTX(1));
			CHECK(err.err == FI_ECONNREFUSED || err.err == FI_EHOSTUNREACH || err.err == FI_ENOTCONN);
			break;
		}
		EQ(r, -FI_EAGAIN);	/* for ever is caught by the watchdog */
		ct_progress(&c);
	}
	ct_close(&c);
}

/* The name of a closed endpoint, unknown to every process. No other one gets its port meanwhile: a bound socket refuses connections. */
static struct ct_name closed_name(void)
{
	struct ct c = { 0 };
	struct ct_name n = ct_open_rdm(&c, NULL);

	ct_close(&c);
	if (((struct sockaddr *)n.b)->sa_family == AF_INET)
		(void)!bind(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), (void *)n.b, sizeof(struct sockaddr_in));
	return n;
}
/* fi_av(3): "All resources associated with the indicated addresses are released." Operations in flight to an absent peer, which
 * would wait for its start, end with the removal of its address.  Each operation completes once. */
static void removed_before_there(int rank)
{
	struct ct c = { .o = { .caps = FI_MSG | FI_TAGGED } };
	struct ct_name n = closed_name();
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	static char b[8];
	int posted = 0, ended = 0, seen[4] = { 0 };
	int64_t until = ct_ms() + 300;
	fi_addr_t to;

	(void)rank;
	ct_open_rdm(&c, NULL);
	to = ct_insert(&c, &n);
	while (ct_ms() < until) {
		ssize_t r = posted == 4 ? -FI_EAGAIN : posted % 2 ? fi_tsend(c.ep, b, 8, NULL, to, 1, CTX(posted)) :
			fi_send(c.ep, b, 8, NULL, to, CTX(posted));

		if (!r)
			posted++;
		else
			EQ(r, -FI_EAGAIN);
		ct_progress(&c);
	}
	OK(fi_av_remove(c.av, &to, 1, 0));
	for (; ended < posted; ended++) {
		int64_t i;

		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		i = (struct fi_context2 *)err.op_context - ct_ctx;
		CHECK(i >= 0 && i < posted && !seen[i]);
		seen[i] = 1;
		CHECK(err.err == FI_ECANCELED || err.err == FI_ECONNREFUSED || err.err == FI_EHOSTUNREACH);
	}
	NOTHING(&c, c.tx, 50);
	/* the address may be inserted again, and messages sent to it then are new */
	to = ct_insert(&c, &n);
	if (!fi_send(c.ep, b, 8, NULL, to, CTX(9))) {
		ct_idle(&c, 20);
		OK(fi_av_remove(c.av, &to, 1, 0));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(9));
	}
	ct_close(&c);
}

/* The peer's host takes the connection, and no program answers: the user's limit ends waiting operations. */
static void unanswered(int rank)
{
	struct ct c;
	struct ct_name n;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	static char b[8];
	int s;

	(void)rank;
	if (strncmp(ct_prov, "tcp", 3))
		SKIP("the limit is of tcp's connections");
	setenv("FI_TCP_CONNECT_TIMEOUT", "1", 1);
	s = hold_port(&n);
	OK(listen(s, 8));
	memset(&c, 0, sizeof c);
	if (ct_type == FI_EP_MSG) {
		struct fi_eq_err_entry cm = { 0 };
		struct fi_eq_cm_entry x;
		uint32_t ev;

		ct_prepare(&c, &n);
		OK(fi_connect(c.ep, n.b, NULL, 0));
		EQ(ct_event(&c, &ev, &x, sizeof x, &cm), -FI_EAVAIL);
		CHECK(cm.fid == &c.ep->fid);
		EQ(cm.err, FI_ETIMEDOUT);
	} else {
		fi_addr_t to;

		ct_open_rdm(&c, NULL);
		to = ct_insert(&c, &n);
		POST(&c, fi_send(c.ep, b, 8, NULL, to, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(1));
		EQ(err.err, FI_ETIMEDOUT);
	}
	close(s);
	ct_close(&c);
}

/* Injected messages to an absent peer: the failure has an entry, with and without a request for one of its success. */
static void injected_without_peer(int rank)
{
	setenv("FI_OFI_RXD_PEER_TIMEOUT", "1", 1);	/* a silent peer counts as gone after minutes */
	struct ct c;
	struct ct_name n;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	static char b[8];
	struct iovec v = { b, 8 };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .context = CTX(2) };
	fi_addr_t to;
	int s;

	ct_param("PEER_WAIT", "1");	/* of shm, which waits for peers that may come */
	(void)rank;
	s = hold_port(&n);
	for (int counts = 0; counts < 2; counts++) {
		memset(&c, 0, sizeof c);
		c.o.cntr = counts;
		ct_open_rdm(&c, NULL);
		to = m.addr = ct_insert(&c, &n);
		POST(&c, fi_inject(c.ep, b, 8, to));
		if (counts) {
			while (fi_cntr_readerr(c.txc) != 1)
				ct_progress(&c);
			EQ(fi_cntr_read(c.txc), 0);
		}
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(!err.op_context && err.flags & FI_SEND);
		POST(&c, fi_sendmsg(c.ep, &m, FI_INJECT | FI_COMPLETION));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(2));
		CHECK(err.err == FI_ECONNREFUSED || err.err == FI_EHOSTUNREACH || err.err == FI_ENOTCONN);
		NOTHING(&c, c.tx, 20);
		if (counts)
			EQ(fi_cntr_readerr(c.txc), 2);
		ct_close(&c);
	}
	close(s);
}

/* Garbage of many shapes on the listening port; an honest peer is served afterwards. */
static void garbage(int rank)
{
	if (ct_is_rxd())
		SKIP("without connections");
	struct ct c;
	struct ct_name n;
	static unsigned char junk[70000];
	uint32_t seed = 4711;

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		char done;

		if (ct_type == FI_EP_RDM) {
			n = ct_open_rdm(&c, NULL);
		} else {
			ct_listen(&c);
			n = ct_getname(&c.pep->fid);
		}
		ct_send_oob(&n, sizeof n);
		/* serve the listener until the other side has written it all */
		while (recv(ct_sync, &done, 1, MSG_DONTWAIT) != 1) {
			struct { struct fi_eq_cm_entry e; char d[512]; } x;
			uint32_t ev;

			ct_progress(&c);
			if (c.eq && fi_eq_read(c.eq, &ev, &x, sizeof x, 0) == -FI_EAVAIL) {
				struct fi_eq_err_entry err = { 0 };

				(void)fi_eq_readerr(c.eq, &err, 0);
			}
			ct_nap(1);
		}
		/* still alive and listening */
		int s = tcp_to(port_of(&n));
		close(s);
		ct_close(&c);
	} else {
		ct_recv_oob(NULL, &n, sizeof n);
		for (int i = 0; i < 60; i++) {
			int s = tcp_to(port_of(&n));
			size_t len = i < 40 ? (size_t)i * 3 : sizeof junk;

			for (size_t k = 0; k < sizeof junk; k++) {
				seed = seed * 1103515245 + 12345;
				junk[k] = i == 10 ? 0 : i == 11 ? 0xff : seed >> 16;
			}
			if (i >= 20) {	/* a good beginning: version 3, request, then nonsense */
				static const unsigned char head[] = { 3, 0, 0, 8, 0, 0, 0, 0 };

				memset(junk, 0, 32);
				memcpy(junk, head, sizeof head);
				junk[24] = 1;
				if (i % 4 == 1) {
					junk[2] = 0xff;		/* absurd data length */
					junk[3] = 0xff;
				}
				if (i % 4 == 2)
					junk[1] = 1 + i % 6;	/* another message type */
				if (i % 4 == 3)
					junk[32] = 1;		/* plausible RDM connection data */
			}
			if (len && send(s, junk, len, MSG_NOSIGNAL) < 0)
				CHECK(errno == EPIPE || errno == ECONNRESET);
			ct_nap(2);
			close(s);
		}
		ct_nap(50);
		ct_send_oob("d", 1);
	}
}

/* Concurrent garbage connections do not disturb honest traffic. */
static void garbage_connections(int rank)
{
	if (ct_is_rxd())
		SKIP("without connections");
	struct ct c;
	static char b[64];
	static unsigned char junk[4096];
	struct ct_name n, theirs;

	ct_open(&c, NULL);
	n = ct_getname(&c.ep->fid);
	ct_swap(&c, &n, &theirs, sizeof n);
	for (int i = 0; i < 30; i++) {
		if (rank == 0) {
			POST(&c, fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(i)));
			ct_recvd(&c, CTX(i), 64);
			CHECK(ct_same(b, 64, i));
		} else {
			int s = tcp_to(port_of(&theirs));

			ct_fill(junk, sizeof junk, i);
			junk[0] = i & 1 ? 3 : junk[0];
			if (send(s, junk, 40 + i * 20, MSG_NOSIGNAL) < 0)
				CHECK(errno == EPIPE || errno == ECONNRESET);
			ct_fill(b, 64, i);
			POST(&c, fi_send(c.ep, b, 64, NULL, c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
			close(s);
		}
	}
	ct_done(&c);
}

/* Descriptors run out: calls fail, the process lives, and later calls work again. */
static void no_descriptors(int rank)
{
	struct ct c;
	struct rlimit l, low;
	int fds[64], n = 0;

	(void)rank;
	memset(&c, 0, sizeof c);
	c.info = ct_getinfo(&c.o, "127.0.0.1", "0", FI_SOURCE);
	CHECK(!getrlimit(RLIMIT_NOFILE, &l));
	low = l;
	low.rlim_cur = 40;
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	while (n < 64 && (fds[n] = dup(0)) >= 0)
		n++;
	for (int keep = 0; keep < 12 && n > 0; keep++) {
		struct fid_fabric *f;
		struct fid_domain *d;
		struct fid_cq *q;
		struct fid_av *av;
		struct fid_ep *ep;
		struct fi_cq_attr qa = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
		struct fi_av_attr aa = { 0 };

		if (fi_fabric(c.info->fabric_attr, &f, NULL) == 0) {
			if (fi_domain(f, c.info, &d, NULL) == 0) {
				if (fi_cq_open(d, &qa, &q, NULL) == 0) {
					if (fi_av_open(d, &aa, &av, NULL) == 0) {
						if (fi_endpoint(d, c.info, &ep, NULL) == 0) {
							(void)fi_ep_bind(ep, &q->fid, FI_TRANSMIT | FI_RECV);
							(void)fi_ep_bind(ep, &av->fid, 0);
							(void)fi_enable(ep);
							OK(fi_close(&ep->fid));
						}
						OK(fi_close(&av->fid));
					}
					OK(fi_close(&q->fid));
				}
				OK(fi_close(&d->fid));
			}
			OK(fi_close(&f->fid));
		}
		close(fds[--n]);		/* one more descriptor to use in the next round */
	}
	while (n > 0)
		close(fds[--n]);
	CHECK(!setrlimit(RLIMIT_NOFILE, &l));
	fi_freeinfo(c.info);
	c.info = NULL;
	ct_open_rdm(&c, NULL);
	ct_close(&c);
}
/* The accepting side has no descriptor left while peers connect. */
static void accept_without_descriptors(int rank)
{
	struct ct c;
	static char b[64];
	struct ct_name n, theirs;

	memset(&c, 0, sizeof c);
	n = ct_open_rdm(&c, NULL);
	ct_swap(&c, &n, &theirs, sizeof n);
	c.peer = ct_insert(&c, &theirs);
	if (rank == 0) {
		struct rlimit l, low;
		int fds[256], k = 0;

		CHECK(!getrlimit(RLIMIT_NOFILE, &l));
		low = l;
		low.rlim_cur = 64;
		CHECK(!setrlimit(RLIMIT_NOFILE, &low));
		while (k < 256 && (fds[k] = dup(0)) >= 0)
			k++;
		POST(&c, fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(0)));
		ct_send_oob("g", 1);
		ct_idle(&c, 100);
		while (k > 0)
			close(fds[--k]);
		CHECK(!setrlimit(RLIMIT_NOFILE, &l));
		ct_recvd(&c, CTX(0), 8);	/* accepted once there is room again */
	} else {
		ct_recv_oob(&c, b, 1);
		POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}
/* One rank's table of descriptors has room for so many more while the two get to know each other.  A message fails or
   comes, and where it came all that follow do, more than any buffer between the two holds. */
static void few_descriptors(int rank)
{
	enum { BUFFERED = 14, FIRST = 50, N = 400, SIZE = 4000 };

	for (int round = 0; round < 2 * BUFFERED; round++) {
		int full = rank == round % 2, fds[256], k = 0, first = 0, sent = 0, received = 0;
		struct fi_cq_tagged_entry e;
		struct ct_name n, theirs;
		struct rlimit l, low;
		char *b, failed = 0, x;
		struct ct c;

		memset(&c, 0, sizeof c);
		n = ct_open_rdm(&c, NULL);
		b = ct_alloc(&c, SIZE);
		ct_swap(&c, &n, &theirs, sizeof n);
		c.peer = ct_insert(&c, &theirs);
		CHECK(!getrlimit(RLIMIT_NOFILE, &l));
		low = l;
		low.rlim_cur = 200;
		if (full) {
			CHECK(!setrlimit(RLIMIT_NOFILE, &low));
			while (k < 256 && (fds[k] = dup(0)) >= 0)
				k++;
			for (int i = 0; i < round / 2 && k > 0; i++)
				close(fds[--k]);
		}
		ct_barrier(&c);
		for (int i = 0; i < FIRST; i++) {
			ssize_t r = 0;

			if (!rank) {
				POST(&c, fi_recv(c.ep, b, SIZE, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
				continue;
			}
			while ((r = fi_send(c.ep, b, 8, ct_desc(b), c.peer, CTX(0))) == -FI_EAGAIN)
				ct_progress(&c);
			if (r == -FI_EMFILE)
				break;
			OK(r);
			first++;
		}
		ct_idle(&c, 60);
		ct_barrier(&c);
		while (k > 0)
			close(fds[--k]);
		CHECK(!setrlimit(RLIMIT_NOFILE, &l));
		if (rank) {
			struct fi_cq_err_entry err = { 0 };

			failed = first < FIRST;
			for (int i = 0; i < first; i++)
				failed |= ct_next(&c, c.tx, &e, NULL, &err) < 0;
			ct_send_oob(&failed, 1);
		} else {
			ct_recv_oob(&c, &failed, 1);
			for (int i = 0; !failed && i < FIRST; i++)
				ct_recvd(&c, CTX(0), 8);
		}
		while (!failed && rank == 0 && sent < N) {
			ssize_t r = fi_send(c.ep, b, SIZE, ct_desc(b), c.peer, CTX(1));

			if (r == -FI_EAGAIN) {
				if (fi_cq_read(c.tx, &e, 1) == 1)
					received++;
				continue;
			}
			OK(r);
			sent++;
		}
		if (!failed && rank)
			ct_nap(20);	/* the reader is late */
		for (; !failed && received < N; received++) {
			if (rank) {
				POST(&c, fi_recv(c.ep, b, SIZE, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
				ct_recvd(&c, CTX(1), SIZE);
			} else {
				ct_sent(&c, CTX(1));
			}
		}
		x = 'x';
		ct_send_oob(&x, 1);
		ct_recv_oob(&c, &x, 1);
		ct_close(&c);
	}
	ct_barrier(NULL);
}
/* A signal handler that interrupts system calls disturbs nothing. */
static void on_alarm(int s) { (void)s; }
static void interrupted(int rank)
{
	struct sigaction sa = { .sa_handler = on_alarm };	/* no SA_RESTART */
	timer_t t;
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec it = { { 0, 300000 }, { 0, 300000 } };
	struct ct_opt o = { .wait = FI_WAIT_FD, .one_cq = 1 };
	struct ct c;
	char *b;
	size_t n = 200000;

	ct_open(&c, &o);
	sigaction(SIGUSR1, &sa, NULL);
	CHECK(!timer_create(CLOCK_MONOTONIC, &ev, &t));
	CHECK(!timer_settime(t, 0, &it, NULL));
	b = ct_alloc(&c, n);
	n = ct_most(&c, n);
	for (int i = 0; i < 100; i++) {
		struct fi_cq_tagged_entry e = { 0 };
		ssize_t r;

		if (rank == 0) {
			POST(&c, fi_recv(c.ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
		} else {
			ct_fill(b, n, i);
			POST(&c, fi_send(c.ep, b, n, ct_desc(b), c.peer, CTX(i)));
		}
		while ((r = fi_cq_sread(c.rx, &e, 1, NULL, 1000)) != 1)
			CHECK(r == -FI_EAGAIN || r == -FI_EINTR);
		if (rank == 0)
			CHECK(ct_same(b, n, i));
	}
	timer_delete(t);
	ct_barrier(&c);
	ct_close(&c);
}

/*
 * With FI_TCP_MAX_SAVED=1 one unexpected message is buffered and the next one stops
 * its connection.  Receiving the first must make it go on: the next expected
 * message is behind.
 */
static void rx_blocked(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	static const int order[] = { 0, 2, 1, 3 };
	struct ct c;
	char b[8] = "";

	ct_param("MAX_SAVED", "1");
	ct_open(&c, &o);
	if (rank == 1)
		for (int i = 0; i < 4; i++) {
			b[0] = i;
			POST(&c, fi_tinject(c.ep, b, 8, c.peer, i));
		}
	ct_barrier(&c);
	if (rank == 0) {
		ct_idle(&c, 100);
		for (int i = 0; i < 4; i++) {
			OK(fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, order[i], 0, CTX(i)));
			EQ(ct_recvd(&c, CTX(i), 8).tag, order[i]);
			EQ(b[0], order[i]);
		}
	}
	ct_done(&c);
}

/* A child of the program that ends leaves its parent's messages alone. */
static void forked(int rank)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 64 * 4);
	if (rank == 0) {
		for (int i = 0; i < 3; i++)
			OK(fi_recv(c.ep, b + 64 * i, 64, ct_desc(b), c.peer, CTX(i)));
		for (int i = 0; i < 3; i++) {
			ct_recvd(&c, CTX(i), 64);
			CHECK(ct_same(b + 64 * i, 64, i));
		}
	} else {
		for (int i = 0; i < 3; i++) {
			struct iovec v = { b + 64 * i, 64 };
			void *d = ct_desc(b);
			struct fi_msg m = { .msg_iov = &v, .desc = &d, .iov_count = 1, .addr = c.peer, .context = CTX(i) };
			pid_t p;
			int st;

			ct_fill(b + 64 * i, 64, i);
			/* the second waits for the third */
			POST(&c, fi_sendmsg(c.ep, &m, FI_COMPLETION | (i == 1 ? FI_MORE : 0)));
			if (i == 0)
				ct_sent(&c, CTX(0));
			if (i != 1)
				continue;
			p = fork();
			if (p == 0)
				exit(0);
			CHECK(waitpid(p, &st, 0) == p);
			EQ(st, 0);
		}
		ct_sent(&c, CTX(1));
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}

/* A child of the program that closes all it finds open closes nothing of its parent's. */
static void forked_and_closed(int rank)
{
	struct ct c;
	char *b;
	pid_t p;
	int st;

	/* with threads of the library in addition to those of the program */
	ct_open(&c, &(struct ct_opt){ .wait = FI_WAIT_FD });
	b = ct_alloc(&c, 64);
	for (int round = 0; round < 2; round++) {
		/* each way, so that connections are there before the child is */
		for (int to = 0; to < 2; to++) {
			struct fi_cq_tagged_entry e;

			if (rank != to) {
				POST(&c, fi_send(c.ep, b, 64, ct_desc(b), c.peer, CTX(0)));
				ct_sent(&c, CTX(0));
				continue;
			}
			OK(fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
			EQ(fi_cq_sread(c.rx, &e, 1, NULL, -1), 1);
		}
		ct_barrier(&c);
		if (round)
			break;
		p = fork();
		if (p == 0) {
			alarm(60);
			/* nothing of the harness's is the child's */
			ct_sync = -1;
			ct_close(&c);
			_exit(0);
		}
		CHECK(waitpid(p, &st, 0) == p);
		EQ(st, 0);
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void *reads_for_ever(void *cq)
{
	for (;;)
		(void)fi_cq_read(cq, NULL, 0);
	return NULL;
}
/* The end of a program makes no call concurrent with a thread that is promised to be alone (FI_THREAD_DOMAIN). */
static void ends_while_reading(int rank)
{
	(void)rank;
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	for (int i = 0; i < 10; i++) {
		int sent[2], st;
		char b[200];
		ssize_t n;
		pid_t p;

		CHECK(!pipe(sent));
		p = fork();
		if (p == 0) {
			struct ct c = { .o = { .threading = FI_THREAD_DOMAIN } };
			pthread_t t;

			dup2(sent[1], 2);
			setenv("FI_LOG_LEVEL", "warn", 1);
			ct_open_rdm(&c, NULL);
			OK(pthread_create(&t, NULL, reads_for_ever, c.rx));
			ct_nap(20);
			exit(0);
		}
		close(sent[1]);
		n = read(sent[0], b, sizeof b - 1);
		b[n > 0 ? n : 0] = 0;
		CHECK(waitpid(p, &st, 0) == p);
		if (n)
			FAIL("it prints %s", b);
		EQ(st, 0);
		close(sent[0]);
	}
}

static int64_t cpu_ms(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000LL + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
}
/* A connection stopped for lack of space after the end of its peer costs no time. */
static void rx_blocked_and_gone(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED, .wait = FI_WAIT_FD };
	struct fi_cq_tagged_entry e;
	struct ct c;
	char b[8] = "", x = 0;
	int64_t before;

	ct_param("MAX_SAVED", "1");
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&c, &o);
	if (rank == 1)
		for (int i = 0; i < 3; i++) {
			POST(&c, fi_tsend(c.ep, b, 8, NULL, c.peer, i, CTX(i)));
			ct_sent(&c, CTX(i));
		}
	ct_barrier(&c);
	if (rank == 1) {
		/* closed with something unread, a connection is reset */
		ct_recv_oob(NULL, &x, 1);
		ct_close(&c);
		ct_send_oob(&x, 1);
		return;
	}
	ct_idle(&c, 100);
	POST(&c, fi_tinject(c.ep, b, 8, c.peer, 9));
	ct_idle(&c, 100);
	ct_send_oob(&x, 1);
	ct_recv_oob(NULL, &x, 1);
	before = cpu_ms();
	ERR(fi_cq_sread(c.rx, &e, 1, NULL, 600), FI_EAGAIN);
	before = cpu_ms() - before;
	if (before >= 60)
		FAIL("%lld ms of processor time in 600 ms of sleep", (long long)before);
	for (int i = 0; i < 3; i++) {
		OK(fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, i, 0, CTX(i)));
		EQ(ct_recvd(&c, CTX(i), 8).tag, i);
	}
	ct_close(&c);
}

/* A listener without a descriptor for a pending connection sleeps, and accepts it once there is one. */
static void listen_without_descriptors(int rank)
{
	struct ct c;
	struct ct_name to;

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		struct rlimit l, low;
		struct fi_eq_cm_entry e;
		uint32_t ev;
		int fds[256], k = 0;
		int64_t before;
		char x;

		ct_listen(&c);
		to = ct_getname(&c.pep->fid);
		ct_send_oob(&to, sizeof to);
		CHECK(!getrlimit(RLIMIT_NOFILE, &l));
		low = l;
		low.rlim_cur = 64;
		CHECK(!setrlimit(RLIMIT_NOFILE, &low));
		while (k < 256 && (fds[k] = dup(0)) >= 0)
			k++;
		ct_recv_oob(NULL, &x, 1);
		before = cpu_ms();
		ERR(fi_eq_sread(c.eq, &ev, &e, sizeof e, 600, 0), FI_EAGAIN);
		before = cpu_ms() - before;
		if (before >= 60)
			FAIL("%lld ms of processor time in 600 ms of sleep", (long long)before);
		while (k > 0)
			close(fds[--k]);
		CHECK(!setrlimit(RLIMIT_NOFILE, &l));
		EQ(fi_eq_sread(c.eq, &ev, &e, sizeof e, -1, 0), sizeof e);
		EQ(ev, FI_CONNREQ);
		OK(fi_reject(c.pep, e.info->handle, NULL, 0));
		fi_freeinfo(e.info);
	} else {
		struct fi_eq_err_entry err = { 0 };
		struct fi_eq_cm_entry e;
		uint32_t ev;

		ct_recv_oob(NULL, &to, sizeof to);
		ct_prepare(&c, &to);
		OK(fi_connect(c.ep, c.info->dest_addr ? c.info->dest_addr : to.b, NULL, 0));
		ct_send_oob("c", 1);
		EQ(ct_event(&c, &ev, &e, sizeof e, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECONNREFUSED);
	}
	ct_barrier(NULL);
	ct_close(&c);
}

/* Silent connections use up every descriptor; an honest peer still connects. */
static void silent_callers(int rank)
{
	if (ct_is_rxd())
		SKIP("without connections");
	enum { N = 100 };
	struct ct c;
	static char b[64];
	struct ct_name n, theirs;
	struct rlimit low = { 64, 64 };
	int s[N];

	memset(&c, 0, sizeof c);
	if (ct_type == FI_EP_MSG && rank == 0) {
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
	} else if (ct_type != FI_EP_MSG) {
		n = ct_open_rdm(&c, NULL);
	}
	if (rank == 0)
		CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	ct_swap(&c, &n, &theirs, sizeof n);
	if (ct_type != FI_EP_MSG)
		c.peer = ct_insert(&c, &theirs);
	if (rank == 0) {
		char x;

		if (ct_type == FI_EP_MSG) {
			ct_want_event(&c, FI_CONNREQ, NULL, 0);
		} else {
			POST(&c, fi_recv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, CTX(0)));
			ct_recvd(&c, CTX(0), 8);
		}
		/* and the program has descriptors left for itself */
		for (int64_t end = ct_ms() + 100; ct_ms() < end;) {
			ct_progress(&c);
			if (c.eq)
				(void)fi_eq_read(c.eq, (uint32_t[1]){ 0 }, b, sizeof b, 0);
		}
		for (int i = 0; i < 8; i++)
			CHECK((s[i] = dup(0)) >= 0);
		for (int i = 0; i < 8; i++)
			close(s[i]);
		ct_send_oob("", 1);
		ct_recv_oob(&c, &x, 1);
	} else {
		char x;

		for (int i = 0; i < N; i++)
			s[i] = tcp_to(port_of(&theirs));
		ct_nap(100);
		if (ct_type == FI_EP_MSG) {
			ct_prepare(&c, &theirs);
			OK(fi_connect(c.ep, c.info->dest_addr ? c.info->dest_addr : theirs.b, NULL, 0));
		} else {
			POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		}
		while (recv(ct_sync, &x, 1, MSG_DONTWAIT) != 1) {
			ct_progress(&c);
			if (c.eq)
				(void)fi_eq_read(c.eq, (uint32_t[1]){ 0 }, b, sizeof b, 0);
			ct_nap(1);
		}
		for (int i = 0; i < N; i++)
			close(s[i]);
		ct_send_oob("", 1);
	}
	ct_close(&c);
}

/* A peer that computes for longer than FI_TCP_PEER_TIMEOUT is not gone: its system answers. */
static void busy_peer(int rank)
{
	enum { LEN = 16 << 20 };
	struct ct c;
	char *b, x = 0;

	ct_param("PEER_TIMEOUT", "2");
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&c, NULL);
	b = ct_alloc(&c, LEN);
	if (rank == 0) {
		OK(fi_recv(c.ep, b, 1, ct_desc(b), c.peer, CTX(1)));
		ct_recvd(&c, CTX(1), 1);
		OK(fi_recv(c.ep, b, LEN, ct_desc(b), c.peer, CTX(0)));
		ct_send_oob(&x, 1);
		ct_nap(7000);
		ct_recvd(&c, CTX(0), LEN);
		CHECK(ct_same(b, LEN, 5));
	} else {
		ct_fill(b, LEN, 5);
		POST(&c, fi_send(c.ep, b, 1, ct_desc(b), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_recv_oob(&c, &x, 1);
		POST(&c, fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
	}
	ct_done(&c);
}

/* A machine that is switched off sends nothing: here, the loopback interface of a private network. */
static void set_lo(int up)
{
	struct ifreq r = { .ifr_name = "lo" };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(s >= 0);
	EQ(ioctl(s, SIOCGIFFLAGS, &r), 0);
	r.ifr_flags = up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP;
	EQ(ioctl(s, SIOCSIFFLAGS, &r), 0);
	close(s);
}
/* A kernel before Linux 6.15 has no TCP_RTO_MAX_MS. */
static int without_rto_max(void)
{
	enum { TCP_RTO_MAX_MS_ = 44 };
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_TCP, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TCP_RTO_MAX_MS_, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = { .len = sizeof f / sizeof *f, .filter = f };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}
static void silent(int with_rto_max)
{
	struct ct a, b;
	struct ct_opt o = { .caps = FI_MSG };
	struct ct_name na, nb;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry x;
	char buf[64], in[64];

	if (strcmp(ct_prov, "tcp"))
		SKIP("has no FI_TCP_PEER_TIMEOUT");
	ct_param("PEER_TIMEOUT", "2");
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		SKIP_HERE("no private network: %s", strerror(errno));
	set_lo(1);
	if (!with_rto_max && without_rto_max())
		SKIP_HERE("no system call filter: %s", strerror(errno));
	memset(&a, 0, sizeof a);
	memset(&b, 0, sizeof b);
	a.o = b.o = o;
	na = ct_open_rdm(&a, NULL);
	nb = ct_open_rdm(&b, NULL);
	a.peer = ct_insert(&a, &nb);
	b.peer = ct_insert(&b, &na);
	OK(fi_recv(b.ep, in, sizeof in, NULL, b.peer, &ct_ctx[0]));
	while (fi_send(a.ep, buf, sizeof buf, NULL, a.peer, &ct_ctx[1]) == -FI_EAGAIN)
		ct_progress(&a);
	while (fi_cq_read(b.rx, &e, 1) != 1)
		ct_progress(&a);
	ct_next(&a, a.tx, &e, NULL, NULL);
	CHECK(e.op_context == &ct_ctx[1]);
	set_lo(0);
	{
		/* operations waiting for the peer's answer fail, with the cause */
		struct iovec v = { buf, sizeof buf };
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = a.peer, .context = &ct_ctx[2] };

		OK(fi_sendmsg(a.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		EQ(ct_next(&a, a.tx, &e, NULL, &x), -FI_EAVAIL);
		CHECK(x.op_context == &ct_ctx[2]);
		EQ(x.err, FI_ETIMEDOUT);
	}
	/* the other end has nothing under way and notices all the same: it calls again */
	set_lo(1);
	OK(fi_recv(a.ep, in, sizeof in, NULL, a.peer, &ct_ctx[3]));
	while (fi_send(b.ep, buf, sizeof buf, NULL, b.peer, &ct_ctx[4]) == -FI_EAGAIN)
		ct_progress(&b);
	for (int again = 0; fi_cq_read(a.rx, &e, 1) != 1; ct_nap(1)) {
		/* the first try may be lost with the old connection, before or after its completion */
		ssize_t n = fi_cq_read(b.tx, &e, 1);

		if (n == -FI_EAVAIL) {
			memset(&x, 0, sizeof x);
			EQ(fi_cq_readerr(b.tx, &x, 0), 1);
		}
		if (n != -FI_EAGAIN)
			again = 500;
		if (again > 0 && !--again)
			OK(fi_send(b.ep, buf, sizeof buf, NULL, b.peer, &ct_ctx[4]));
	}
	ct_close(&a);
	ct_close(&b);
}

static void silent_peer(int rank)
{
	(void)rank;
	silent(1);
}
static void silent_peer_of_old_kernel(int rank)
{
	(void)rank;
	silent(0);
}

/* A peer that reads nothing answers probes of its full receive buffer, without end: it is not gone. */
static void busy_peer_of_old_kernel(int rank)
{
	if (strcmp(ct_prov, "tcp"))
		SKIP("has no FI_TCP_PEER_TIMEOUT");
	ct_param("LOCAL", "0");
	if (without_rto_max())
		SKIP_HERE("no system call filter: %s", strerror(errno));
	busy_peer(rank);
}

/* A caller bound to its address takes a port that is free for this one connection, not one that nothing uses. */
static void few_ports(int rank)
{
	enum { N = 64 };
	static const char range[] = "40000 40015";
	static struct ct a, b[N];
	static char in[N][8], out[N][8];
	struct fi_cq_tagged_entry e;
	int fd, notified = 0, received = 0;

	(void)rank;
	if (ct_is_lnx())
		SKIP("each endpoint listens at a port of every interface");
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		SKIP_HERE("no private network: %s", strerror(errno));
	set_lo(1);
	fd = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, range, sizeof range - 1) < 0)
		SKIP_HERE("the ports that the system gives away cannot be set: %s", strerror(errno));
	close(fd);
	a.o.caps = FI_MSG;
	ct_open_rdm(&a, NULL);
	for (int i = 0; i < N; i++) {
		char *port = out[i];
		struct ct_name n;

		snprintf(port, sizeof out[i], "%d", 20000 + i);
		b[i].o.caps = FI_MSG;
		b[i].info = ct_getinfo(&b[i].o, "127.0.0.1", port, FI_SOURCE);
		if (!i) {
			ct_open_in(&b[0], NULL);
		}
		ct_open_second(&b[i], &b[0]);
		OK(fi_recv(b[i].ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, &ct_ctx[i]));
		n = ct_getname(&b[i].ep->fid);
		a.peer = ct_insert(&a, &n);
		POST(&a, fi_send(a.ep, port, sizeof out[i], NULL, a.peer, NULL));
	}
	while (notified < N || received < N) {
		struct fi_cq_err_entry err = { 0 };
		ssize_t r = fi_cq_read(a.tx, &e, 1);

		if (r == -FI_EAVAIL) {
			EQ(fi_cq_readerr(a.tx, &err, 0), 1);
			FAIL("send %d: %s", notified, fi_strerror(err.err));
		}
		notified += r == 1;
		received += fi_cq_read(b[0].rx, &e, 1) == 1;
		sched_yield();
	}
	for (int i = 0; i < N; i++)
		EQ(atoi(in[i]), 20000 + i);
	for (int i = N; i-- > 1;) {
		OK(fi_close(&b[i].ep->fid));
		fi_freeinfo(b[i].info);
	}
	ct_close(&b[0]);
	ct_close(&a);
}

/* Endpoints of one domain, in a ring: each sends to the next, which blocks for it on its own or on the common queue. */
static void ring(int n, int own)
{
	struct ct base, c[200];
	struct ct_name name[200];
	struct { struct fi_context2 rx, tx; char in[32], out[32]; } *op = calloc(n, sizeof *op);
	struct rlimit l;

	OK(getrlimit(RLIMIT_NOFILE, &l));
	l.rlim_cur = l.rlim_max;
	OK(setrlimit(RLIMIT_NOFILE, &l));
	memset(&base, 0, sizeof base);
	base.o.wait = FI_WAIT_FD;
	base.o.one_cq = 1;
	base.o.cq_size = 4 * n;
	base.info = ct_getinfo(&base.o, ct_node(&base.o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	ct_open_in(&base, NULL);
	for (int i = 0; i < n; i++) {
		int fd;

		c[i] = base;
		ct_open_eq(&c[i]);
		if (own) {
			struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };

			OK(fi_cq_open(base.domain, &q, &c[i].rx, &c[i]));
			c[i].tx = c[i].rx;
			OK(fi_control(&c[i].rx->fid, FI_GETWAIT, &fd));
			CHECK(fcntl(fd, F_GETFD) >= 0);
			OK(fi_control(&c[i].eq->fid, FI_GETWAIT, &fd));
			CHECK(fcntl(fd, F_GETFD) >= 0);
		}
		ct_open_ep(&c[i], base.info);
		OK(fi_ep_bind(c[i].ep, &c[i].eq->fid, 0));
		OK(fi_enable(c[i].ep));
		name[i] = ct_getname(&c[i].ep->fid);
		ct_fill(op[i].out, sizeof op[i].out, i);
		OK(fi_recv(c[i].ep, op[i].in, sizeof op[i].in, NULL, FI_ADDR_UNSPEC, &op[i].rx));
	}
	for (int i = 0; i < n; i++)
		c[i].peer = ct_insert(&base, &name[(i + 1) % n]);
	for (int i = 0; i < n; i++) {
		while (own == 0 && fi_send(c[i].ep, op[i].out, sizeof op[i].out, NULL, c[i].peer, &op[i].tx) == -FI_EAGAIN)
			ct_progress(&base);
		if (own)
			OK(fi_send(c[i].ep, op[i].out, sizeof op[i].out, NULL, c[i].peer, &op[i].tx));
	}
	for (int i = 0; i < 2 * n; i++) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = { 0 };
		struct fid_cq *q = own ? c[i / 2].rx : base.rx;
		ssize_t r = fi_cq_sread(q, &e, 1, NULL, -1);

		if (r == -FI_EAVAIL)
			fi_cq_readerr(q, &err, 0);
		if (r != 1)
			FAIL("entry %d: %zd, error %d", i, r, err.err);
	}
	for (int i = 0; i < n; i++)
		CHECK(ct_same(op[i].in, sizeof op[i].in, (i + n - 1) % n));
	for (int i = 0; i < n; i++) {
		OK(fi_close(&c[i].ep->fid));
		OK(fi_close(&c[i].eq->fid));
		if (own)
			OK(fi_close(&c[i].rx->fid));
	}
	ct_close(&base);
	free(op);
}
static void many_endpoints(int rank) { (void)rank; ring(200, 0); }
static void many_queues(int rank) { (void)rank; ring(150, 1); }

/*
 * Rank 1 sends and ends its endpoint before rank 0, whose thread makes no
 * progress meanwhile, sends to it without success.
 */
static void ended_with_messages_unread(int rank)
{
	if (ct_is_rxd())
		SKIP("a peer that is silent counts as gone after minutes only");
	enum { COUNT = 8, LEN = 64 };
	struct ct c;
	char *b, x;

	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&c, &(struct ct_opt){ .threading = FI_THREAD_DOMAIN });
	b = ct_alloc(&c, LEN * COUNT);
	if (rank == 0)
		for (int i = 0; i < COUNT; i++)
			POST(&c, fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
	/* the first makes the connection */
	if (rank == 1) {
		POST(&c, fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
	} else {
		ct_recvd(&c, CTX(0), LEN);
	}
	ct_barrier(&c);
	if (rank == 1) {
		for (int i = 1; i < COUNT; i++) {
			POST(&c, fi_send(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
		}
		EQ(fi_close(&c.ep->fid), 0);
		c.ep = NULL;
		ct_send_oob("x", 1);
		return;
	}
	CHECK(read(ct_sync, &x, 1) == 1);
	for (int i = 0; i < 3; i++) {
		(void)fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(100 + i));
		ct_nap(20);
	}
	for (int i = 1; i < COUNT; i++)
		ct_recvd(&c, CTX(i), LEN);
	ct_close(&c);
}
/*
 * The same with a large message and others behind it that wait in the socket,
 * since the message before it filled the buffer space: the sends fail at once, and
 * the messages sent by the peer are received when there are receives for them.
 */
static void ended_with_messages_blocked(int rank)
{
	if (ct_is_rxd())
		SKIP("a peer that is silent counts as gone after minutes only");
	enum { COUNT = 5, LEN = 64 << 10 };
	const size_t large = ct_unreceived(LEN);
	struct ct_opt o = { .threading = FI_THREAD_DOMAIN };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct c;
	char *b, x;

	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_param("MAX_SAVED", "1");
	ct_open(&c, &o);
	b = ct_alloc(&c, LEN * COUNT);
	/* the first makes the connection */
	if (rank == 1) {
		for (int i = 0; i < COUNT; i++)
			ct_fill(b + i * LEN, LEN, i);
		for (int i = 0; i < COUNT; i++) {
			POST(&c, fi_send(c.ep, b + i * LEN, i == 2 ? large : 64, ct_desc(b), c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
		}
	} else {
		OK(fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
		ct_recvd(&c, CTX(0), 64);
		ct_idle(&c, 50);
	}
	ct_barrier(&c);
	if (rank == 1) {
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		ct_send_oob("x", 1);
		return;
	}
	CHECK(read(ct_sync, &x, 1) == 1);
	for (int i = 0, failed = 0; !failed; i++) {
		ssize_t r = fi_send(c.ep, b, 64, ct_desc(b), c.peer, CTX(100 + i));

		CHECK(r == 0 || r == -FI_EAGAIN);
		failed = r == 0 && ct_next(&c, c.tx, &e, NULL, &err) != 1;
		ct_nap(1);
	}
	for (int i = 1; i < COUNT; i++) {
		size_t len = i == 2 ? large : 64;

		OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
		ct_recvd(&c, CTX(i), len);
		CHECK(ct_same(b + i * LEN, len, i));
	}
	if (ct_type == FI_EP_MSG)
		ct_want_event(&c, FI_SHUTDOWN, NULL, 0);
	ct_close(&c);
}
static const struct ct_test tests[] = {
	{ "messages sent before the end of a peer are received though sends to it fail first", ended_with_messages_unread, CT_REL },
	{ "unreceived messages of an ended peer survive failing sends to it", ended_with_messages_blocked, CT_REL },
	{ "silent connections do not block an honest peer", silent_callers, CT_REL },
	{ "a listener without descriptors takes no CPU time and accepts its peer later", listen_without_descriptors, CT_MSG },
	{ "a message without buffer space blocks others only until space is free", rx_blocked, CT_RDM | CT_REL },
	{ "a blocked connection to an ended peer takes no CPU time", rx_blocked_and_gone, CT_RDM | CT_REL },
	{ "a killed peer ends small transfers with errors and without a hang", peer_killed_small, CT_REL },
	{ "a killed peer ends large transfers with errors and without a hang", peer_killed_large, CT_REL },
	{ "a killed peer ends operations in flight though its messages wait for receives", peer_killed_unread, CT_REL },
	{ "a killed peer ends requests awaiting its answer though its messages wait for receives", peer_killed_unanswered, CT_REL },
	{ "a killed peer of an idle connection gives FI_SHUTDOWN and flushes receives", peer_killed_idle, CT_MSG },
	{ "a peer restarted at the same address is reached again", restarted, CT_RDM },
	{ "sending to an absent peer ends in an error entry", no_peer, CT_RDM | CT_SOLO | CT_REL },
	{ "operations waiting for an absent peer end when its address is removed", removed_before_there, CT_RDM | CT_SOLO | CT_REL },
	{ "a peer not answering a connection request is given up after the configured time", unanswered, CT_SOLO | CT_REL | CT_CONN | CT_BARE },
	{ "an injected message to an absent peer has an error entry and is counted", injected_without_peer, CT_RDM | CT_REL | CT_SOLO },
	{ "garbage on the listening port is refused", garbage, CT_REL },
	{ "garbage connections do not disturb honest peers", garbage_connections, CT_RDM | CT_REL },
	{ "running out of descriptors fails calls and ends no process", no_descriptors, CT_RDM | CT_SOLO },
	{ "a connection waits while the acceptor has no free descriptor", accept_without_descriptors, CT_RDM | CT_REL },
	{ "peers connecting with few descriptors lose no messages", few_descriptors, CT_RDM | CT_REL },
	{ "signals interrupting system calls have no effect", interrupted, CT_REL },
	{ "a peer busy for a long time is not taken for ended", busy_peer, CT_REL },
	{ "an unreachable peer is detected, and reached again after its return", silent_peer, CT_RDM | CT_REL | CT_SOLO },
	{ "an unreachable peer is detected by kernels before Linux 6.15 as well", silent_peer_of_old_kernel, CT_RDM | CT_REL | CT_SOLO },
	{ "a full receive buffer is no silence of the peer for kernels before Linux 6.15", busy_peer_of_old_kernel, CT_REL },
	{ "few local ports serve many peers", few_ports, CT_RDM | CT_REL | CT_SOLO },
	{ "the end of a forked child does not affect messages", forked, CT_REL },
	{ "a forked child closing everything closes nothing of its parent", forked_and_closed, CT_REL },
	{ "a process may exit while a thread reads a queue of its own domain", ends_while_reading, CT_RDM | CT_SOLO | CT_REL },
	{ "two hundred endpoints of one domain each exchange messages with a neighbour", many_endpoints, CT_SOLO | CT_RDM | CT_REL },
	{ "a hundred and fifty endpoints have separate blocking queues", many_queues, CT_SOLO | CT_RDM | CT_REL },
};
CT_MAIN("robust", tests)
