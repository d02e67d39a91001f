/*
 * One process goes through the faults of its peers, its network and itself,
 * while it exchanges messages with a victim and with an observer, which are
 * processes of their own.  Everywhere: each posted operation completes exactly
 * once, in success or error; received data is the data sent; traffic with the
 * observer continues; the victim's successor at the same address is reached; and
 * when all is closed no descriptor is left.
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <sched.h>
#include "wire.h"

enum { W = 8, MOST = 1 << 20, SOME = 64 /* entries */ };
enum { VICTIM, CARRIER, PEERS, CALLERS = PEERS /* all unknown peers of this process */, SENDERS };

/* Operation named by completions. */
struct op {
	struct fi_context2 ctx;		/* first */
	int under_way, recv, peer;
	char *buf;
	size_t len;
};
/* A peer, as the surviving process sees it. */
struct peer {
	pid_t pid;
	int sync;			/* commands to it, one byte each */
	struct fid_ep *ep;		/* RDM: the one endpoint */
	struct fi_info *info;
	fi_addr_t to;
	struct ct_name name;
	struct op send[W], recv[W];
	int talking, next;		/* sends are to be posted */
	int ended;			/* MSG: FI_SHUTDOWN came */
	long sent, errors, received;
};
static struct ct me;
static struct peer peers[SENDERS];
static struct op common[2 * W];		/* RDM: receives from anybody */
static char node[16];			/* where this process and its peers are */
static size_t largest = 100000;
static int out_of_reach;		/* this process: for the others */
static int may_fail = 1;		/* errors are part of the fault */

static size_t some_len(void)
{
	static const size_t l[] = { 16, 16, 64, 1000, 5000, 20000, 100000, MOST };
	size_t n = l[rand() % 8];
	return n < largest ? n : largest;
}
/* Messages begin with their sender and the seed of the rest. */
static void make(char *b, size_t n, int from)
{
	uint32_t h[2] = { (uint32_t)from, (uint32_t)rand() };

	ct_fill(b, n, h[1]);
	memcpy(b, h, sizeof h);
}
static int check_message(const char *b, size_t n)
{
	uint32_t h[2];
	size_t wrong;

	CHECK(n >= sizeof h);
	memcpy(h, b, sizeof h);
	if (h[0] >= SENDERS) {
		size_t first = 0;

		while (first < n && !b[first])
			first++;
		FAIL("%zu bytes that begin with %#x %#x are no peer's message; the first %zu are 0", n, h[0], h[1], first);
	}
	wrong = ct_wrong(b, sizeof h, n, h[1]);
	if (wrong < n)
		FAIL("byte %zu of %zu from %u is wrong", wrong, n, h[0]);
	return (int)h[0];
}

/* ---- a peer's side --------------------------------------------------- */

static struct fid_ep *child_connect(struct ct *c, const struct ct_name *to)
{
	if (ct_type == FI_EP_MSG) {
		ct_prepare(c, to);
		OK(fi_connect(c->ep, c->info->dest_addr ? c->info->dest_addr : to->b, NULL, 0));
		ct_want_event(c, FI_CONNECTED, NULL, 0);
	} else {
		c->peer = ct_insert(c, to);
	}
	return c->ep;
}
/* Sends and receives until it is stopped or ended. */
static void talk(int id, const struct ct_name *to, int port)
{
	struct ct c;
	static char *out[W], *in[W];
	static struct fi_context2 octx[W], ictx[W];
	char svc[16], x;
	int busy[W] = { 0 };

	memset(&c, 0, sizeof c);
	c.o.caps = FI_MSG;
	c.o.cq_size = 256;
	if (ct_type != FI_EP_MSG) {
		struct ct_name mine;

		snprintf(svc, sizeof svc, "%d", port);
		c.info = ct_getinfo(&c.o, node, port ? svc : ct_lasting_port(), FI_SOURCE);
		ct_open_in(&c, NULL);
		ct_open_ep(&c, c.info);
		if (out_of_reach)	/* the environment was read before the fork */
			OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FIREWALL_ADDR, &out_of_reach, sizeof out_of_reach));
		OK(fi_enable(c.ep));
		mine = ct_getname(&c.ep->fid);
		ct_send_oob(&mine, sizeof mine);
	}
	for (int i = 0; i < W; i++) {
		out[i] = malloc(MOST);
		in[i] = malloc(MOST);
	}
	child_connect(&c, to);
	for (int i = 0; i < W; i++)
		POST(&c, fi_recv(c.ep, in[i], MOST, NULL, FI_ADDR_UNSPEC, &ictx[i]));
	for (int64_t since = 0;; ct_relax(&since)) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;
		ssize_t r;

		for (int i = 0; i < W; i++) {
			size_t n = some_len();

			if (busy[i])
				continue;
			make(out[i], n, id);
			if (fi_send(c.ep, out[i], n, NULL, c.peer, &octx[i]) == 0)
				busy[i] = 1;
		}
		for (int q = 0; q < 2; q++) {
			struct fid_cq *cq = q ? c.rx : c.tx;

			for (int n = 0; n < SOME && ((r = fi_cq_read(cq, &e, 1)) == 1 || r == -FI_EAVAIL); n++) {
				void *ctx = e.op_context;

				since = 0;
				if (r != 1) {
					memset(&err, 0, sizeof err);
					EQ(fi_cq_readerr(cq, &err, 0), 1);
					ctx = err.op_context;
				}
				if (!q) {
					busy[(struct fi_context2 *)ctx - octx] = 0;
				} else {
					int i = (struct fi_context2 *)ctx - ictx;

					if (r == 1)
						check_message(in[i], e.len);
					(void)fi_recv(c.ep, in[i], MOST, NULL, FI_ADDR_UNSPEC, &ictx[i]);
				}
			}
		}
		if (c.eq)
			(void)fi_eq_read(c.eq, (uint32_t[1]){ 0 }, (char[512]){ 0 }, 512, 0);
		if (recv(ct_sync, &x, 1, MSG_DONTWAIT) == 1)
			break;
	}
	if (x == 'r')
		each_fd(reset_fd, NULL);	/* the end of this process resets its connections */
	if (x == 'c')
		ct_close(&c);			/* everything that is under way as well */
	_exit(0);
}

/* ---- the surviving side ---------------------------------------------- */

static void finish(struct op *o)
{
	if (!o->under_way)
		FAIL("an operation (%s, peer %d) completed more than once", o->recv ? "receive" : "send", o->peer);
	o->under_way = 0;
}
static void post_recv(struct fid_ep *ep, struct op *o)
{
	CHECK(!o->under_way);
	o->recv = 1;
	if (!o->buf)
		o->buf = malloc(MOST);
	if (fi_recv(ep, o->buf, MOST, NULL, FI_ADDR_UNSPEC, o) == 0)
		o->under_way = 1;
}
/* Reads some entries, not all: peers may write others as quickly. */
static int take(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry x;
	int came = 0;
	ssize_t r = 0;

	while (came < SOME && ((r = fi_cq_read(cq, &e, 1)) == 1 || r == -FI_EAVAIL)) {
		struct op *o = e.op_context;
		struct peer *p;

		if (r != 1) {
			memset(&x, 0, sizeof x);
			EQ(fi_cq_readerr(cq, &x, 0), 1);
			CHECK(x.err > 0);
			if (!may_fail)
				FAIL("error entry %s", fi_strerror(x.err));
			o = x.op_context;
		}
		finish(o);
		p = &peers[o->peer];
		if (o->recv) {
			if (r == 1)
				peers[check_message(o->buf, e.len)].received++;
			if (ct_type != FI_EP_MSG)
				post_recv(me.ep, o);
			else if (r == 1 && p->ep)	/* an error means that the connection is over */
				post_recv(p->ep, o);
		} else if (r == 1) {
			p->sent++;
		} else {
			p->errors++;
		}
		came++;
	}
	CHECK(came == SOME || r == -FI_EAGAIN);
	return came;
}
static void accept_one(struct peer *p, struct fi_eq_cm_entry *e)
{
	CHECK(!p->ep);
	OK(fi_endpoint(me.domain, e->info, &p->ep, p));
	OK(fi_ep_bind(p->ep, &me.eq->fid, 0));
	OK(fi_ep_bind(p->ep, &me.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(p->ep, &me.rx->fid, FI_RECV));
	OK(fi_enable(p->ep));
	for (int i = 0; i < W; i++)
		post_recv(p->ep, &p->recv[i]);
	OK(fi_accept(p->ep, NULL, 0));
	p->ended = 0;
	fi_freeinfo(e->info);
}
static struct peer *called;	/* MSG: peer of the next connection request */
static void step(void)
{
	static int64_t since;
	int did = 0;

	for (int i = 0; i < PEERS; i++) {
		struct peer *p = &peers[i];

		for (int k = 0; p->talking && p->ep && k < W; k++) {
			struct op *o = &p->send[k];
			ssize_t r;

			if (o->under_way)
				continue;
			if (!o->buf)
				o->buf = malloc(MOST);
			o->peer = i;
			o->len = some_len();
			make(o->buf, o->len, i);
			r = fi_send(p->ep, o->buf, o->len, NULL, p->to, o);
			if (r == 0)
				o->under_way = did = 1;
			else if (r != -FI_EAGAIN && r != -FI_ENOTCONN)
				FAIL("fi_send: %s", fi_strerror((int)-r));
		}
	}
	did |= take(me.tx) | take(me.rx);
	if (me.eq) {
		struct { struct fi_eq_cm_entry e; char d[512]; } b;
		uint32_t ev;
		ssize_t r = fi_eq_read(me.eq, &ev, &b, sizeof b, 0);

		if (r == -FI_EAVAIL) {
			struct fi_eq_err_entry x = { 0 };

			(void)fi_eq_readerr(me.eq, &x, 0);
		} else if (r > 0 && ev == FI_CONNREQ) {
			CHECK(called);
			accept_one(called, &b.e);
			called = NULL;
		} else if (r > 0 && ev == FI_SHUTDOWN) {
			for (int i = 0; i < PEERS; i++)
				if (peers[i].ep && b.e.fid == &peers[i].ep->fid)
					peers[i].ended = 1;
		}
		did |= r != -FI_EAGAIN;
	}
	if (did)
		since = 0;
	ct_relax(&since);
}
/* Continues traffic. After a moment it leaves others a processor: longer waits are for time to pass. */
static void step_since(int64_t start)
{
	step();
	if (ct_ms() > start + 100)
		ct_nap(1);
}
#define UNTIL(c) do { int64_t start_ = ct_ms(); snprintf(ct_prefix, sizeof ct_prefix, "%.50s: ", #c); while (!(c)) step_since(start_); ct_prefix[0] = 0; } while (0)
static void steps_for(int ms)
{
	for (int64_t start = ct_ms(), end = start + ms; ct_ms() < end;)
		step_since(start);
}
static int under_way(struct peer *p)
{
	int n = 0;

	for (int i = 0; i < W; i++)
		n += p->send[i].under_way;
	return n;
}
/* MSG: receives that its connection has */
static int awaited(struct peer *p)
{
	int n = 0;

	for (int i = 0; i < W; i++)
		n += p->recv[i].under_way;
	return n;
}
/*
 * Operations of an endpoint that is closed are over: fi_endpoint(3), fi_close: "Discarded operations will silently be
 * dropped, with no completions reported."
 */
static void forget(struct op *ops, int n)
{
	for (int i = 0; i < n; i++)
		ops[i].under_way = 0;
}
static void open_me(void)
{
	memset(&me, 0, sizeof me);
	me.o.caps = FI_MSG;
	me.o.cq_size = 256;
	me.info = ct_getinfo(&me.o, node, "0", FI_SOURCE);
	OK(fi_fabric(me.info->fabric_attr, &me.fabric, NULL));
	if (ct_type == FI_EP_MSG) {
		ct_open_eq(&me);
		OK(fi_passive_ep(me.fabric, me.info, &me.pep, NULL));
		OK(fi_pep_bind(me.pep, &me.eq->fid, 0));
		OK(fi_listen(me.pep));
		ct_open_domain(&me);
	} else {
		ct_open_domain(&me);
		ct_open_ep(&me, me.info);
		OK(fi_enable(me.ep));
		for (int i = 0; i < 2 * W; i++)
			post_recv(me.ep, &common[i]);
	}
	for (int i = 0; i < PEERS; i++)
		for (int k = 0; k < W; k++)
			peers[i].send[k].peer = peers[i].recv[k].peer = i;
}
/* Starts a peer's process; when it returns messages go both ways. `in` prepares the process. */
static void start(int id, void (*in)(void))
{
	struct peer *p = &peers[id];
	struct ct_name mine = ct_getname(ct_type == FI_EP_MSG ? &me.pep->fid : &me.ep->fid);
	int sp[2], port = 0;
	long got;

	if (p->name.n) {	/* the successor has its address */
		const struct sockaddr_in *a = (const void *)p->name.b;
		port = ntohs(a->sin_port);
	}
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
	p->ended = 0;
	called = p;
	p->pid = fork();
	if (p->pid == 0) {
		ct_rank = id + 1;
		ct_sync = sp[1];
		close(sp[0]);
		if (in)
			in();
		talk(id, &mine, port);
	}
	close(sp[1]);
	p->sync = sp[0];
	if (ct_type != FI_EP_MSG) {
		struct ct_name n;
		size_t k = 0;
		ssize_t r;

		while (k < sizeof n) {
			r = recv(p->sync, (char *)&n + k, sizeof n - k, MSG_DONTWAIT);
			if (r > 0)
				k += r;
			else if (r == 0)
				FAIL("peer %d ended", id);
			step();
		}
		if (!p->name.n)
			p->to = ct_insert(&me, &n);
		p->name = n;
		p->ep = me.ep;
	} else {
		UNTIL(p->ep);
	}
	p->talking = 1;
	got = p->received;
	UNTIL(p->received > got + 10);
	got = p->sent;
	UNTIL(p->sent > got + 10);
}
/* The process is over, or about to be: all that is under way with it ends. */
static void mourn(int id)
{
	struct peer *p = &peers[id];
	int st;
	pid_t r;

	while ((r = waitpid(p->pid, &st, WNOHANG)) == 0)
		step();
	CHECK(r == p->pid);
	if (WIFEXITED(st))
		EQ(WEXITSTATUS(st), 0);
	close(p->sync);
	p->talking = 0;
	UNTIL(!under_way(p));
	if (ct_type == FI_EP_MSG) {
		UNTIL(p->ended);
		UNTIL(!awaited(p));	/* flushed by the end of the connection */
		OK(fi_close(&p->ep->fid));
	}
	p->ep = NULL;
}
/* Checks that traffic with the observer continues. */
static void carrier_lives(void)
{
	long s = peers[CARRIER].sent, r = peers[CARRIER].received, e = peers[CARRIER].errors;

	UNTIL(peers[CARRIER].sent > s + 30 && peers[CARRIER].received > r + 30);
	EQ(peers[CARRIER].errors, e);
}
static void send_byte(int id, char x)
{
	CHECK(send(peers[id].sync, &x, 1, MSG_NOSIGNAL) == 1);
}
/* Ends the peers and closes everything; nothing is left. */
static void close_me(int fds)
{
	for (int i = 0; i < PEERS; i++) {
		struct peer *p = &peers[i];

		if (!p->ep)
			continue;
		kill(p->pid, SIGKILL);
		mourn(i);
	}
	if (me.ep) {
		OK(fi_close(&me.ep->fid));
		me.ep = NULL;
		for (ssize_t r; ; ) {
			struct fi_cq_err_entry x = { 0 };
			struct fi_cq_tagged_entry e;

			if ((r = fi_cq_read(me.rx, &e, 1)) == 1) {	/* a message that came at the last moment */
				finish(e.op_context);
				continue;
			}
			if (r == -FI_EAGAIN)
				break;
			EQ(r, -FI_EAVAIL);
			EQ(fi_cq_readerr(me.rx, &x, 0), 1);
			EQ(x.err, FI_ECONNRESET);
			finish(x.op_context);
		}
		forget(common, 2 * W);
	}
	for (int i = 0; i < PEERS; i++)
		EQ(under_way(&peers[i]), 0);
	ct_close(&me);
	for (int i = 0; i < 300 && open_fds() > fds; i++)
		ct_nap(10);
	if (open_fds() > fds) {
		each_fd(tell_fd, NULL);
		FAIL("%d descriptors are open, not %d", open_fds(), fds);
	}
}
static int begin(void (*in)(void))
{
	int fds;

	if (!*node)
		snprintf(node, sizeof node, "%s", ct_node(&me.o));
	setenv("FI_LOG_PROV", "core", 0);	/* lost connections cause hundreds of log lines */
	srand(ct_ms());
	/* the first use keeps some descriptors */
	open_me();
	close_me(1 << 20 /* any */);
	fds = open_fds();
	open_me();
	start(CARRIER, NULL);
	start(VICTIM, in);
	return fds;
}

/* ---- the faults ------------------------------------------------------ */

static void killed(int rank)
{
	int fds = begin(NULL);

	(void)rank;
	for (long i = 4 * fault_count("FAULT_ROUNDS", 1); i > 0; i--) {
		steps_for(rand() % 30);
		kill(peers[VICTIM].pid, SIGKILL);
		mourn(VICTIM);
		carrier_lives();
		start(VICTIM, NULL);
	}
	close_me(fds);
}
static void reset(int rank)
{
	int fds = begin(NULL);

	(void)rank;
	for (long i = 4 * fault_count("FAULT_ROUNDS", 1); i > 0; i--) {
		steps_for(rand() % 30);
		send_byte(VICTIM, 'r');
		mourn(VICTIM);
		carrier_lives();
		start(VICTIM, NULL);
	}
	close_me(fds);
}
static void closed_there(int rank)
{
	int fds = begin(NULL);

	(void)rank;
	for (long i = 4 * fault_count("FAULT_ROUNDS", 1); i > 0; i--) {
		steps_for(rand() % 30);
		send_byte(VICTIM, 'c');
		mourn(VICTIM);
		carrier_lives();
		start(VICTIM, NULL);
	}
	close_me(fds);
}
/* A stopped peer's system still answers: nothing fails, however long it is. */
static void stopped(int rank)
{
	int fds, ms[] = { 20, 300, 3000 };

	(void)rank;
	setenv("FI_TCP_PEER_TIMEOUT", "2", 1);
	fds = begin(NULL);
	may_fail = 0;
	for (int i = 0; i < 3; i++) {
		long s, r;

		kill(peers[VICTIM].pid, SIGSTOP);
		steps_for(ms[i]);
		carrier_lives();
		s = peers[VICTIM].sent;
		r = peers[VICTIM].received;
		kill(peers[VICTIM].pid, SIGCONT);
		UNTIL(peers[VICTIM].sent > s + 30 && peers[VICTIM].received > r + 30);
	}
	/* and then it is gone for good */
	kill(peers[VICTIM].pid, SIGSTOP);
	steps_for(300);
	may_fail = 1;
	kill(peers[VICTIM].pid, SIGKILL);
	mourn(VICTIM);
	carrier_lives();
	close_me(fds);
}
static void removed(int rank)
{
	int fds = begin(NULL);

	(void)rank;
	for (long i = 20 * fault_count("FAULT_ROUNDS", 1); i > 0; i--) {
		struct peer *p = &peers[VICTIM];
		long s, r;

		steps_for(rand() % 10);
		p->talking = 0;
		OK(fi_av_remove(me.av, &p->to, 1, 0));
		if (i & 1)
			steps_for(rand() % 10);
		p->to = ct_insert(&me, &p->name);
		p->talking = 1;
		s = p->sent;
		r = p->received;
		UNTIL(p->sent > s + 10 && p->received > r + 10);
	}
	EQ(peers[VICTIM].errors, 0);
	carrier_lives();
	close_me(fds);
}
/* The endpoint is closed with everything under way, while the peers send. */
static void closed_here(int rank)
{
	int fds = begin(NULL);

	(void)rank;
	for (long i = 5 * fault_count("FAULT_ROUNDS", 1); i > 0; i--) {
		steps_for(rand() % 20);
		if (ct_type == FI_EP_MSG) {
			OK(fi_close(&peers[VICTIM].ep->fid));
			peers[VICTIM].ended = 1;
		} else {
			OK(fi_close(&me.ep->fid));
			me.ep = NULL;
		}
		for (int k = 0; k < PEERS; k++)
			if (k == VICTIM || ct_type != FI_EP_MSG)
				peers[k].ep = NULL;
		for (int k = 0; k < PEERS; k++) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry x;
			struct peer *p = &peers[k];
			ssize_t r;

			if (p->ep)
				continue;
			/* operations not reported by now never are; the observer may go on, as quickly as this reads */
			for (int q = 0; q < 2; q++) {
				struct fid_cq *cq = q ? me.rx : me.tx;

				while ((ct_type != FI_EP_MSG || under_way(p) || awaited(p))
				       && ((r = fi_cq_read(cq, &e, 1)) == 1 || r == -FI_EAVAIL)) {
					struct op *o = e.op_context;

					if (r != 1) {
						memset(&x, 0, sizeof x);
						EQ(fi_cq_readerr(cq, &x, 0), 1);
						o = x.op_context;
					}
					finish(o);
					if (ct_type == FI_EP_MSG && o->peer != VICTIM && o->recv)
						post_recv(peers[o->peer].ep, o);
				}
			}
			forget(p->send, W);
			forget(p->recv, W);
			kill(p->pid, SIGKILL);
			CHECK(waitpid(p->pid, NULL, 0) == p->pid);
			close(p->sync);
			p->talking = 0;
			p->name.n = 0;
		}
		if (ct_type != FI_EP_MSG) {
			forget(common, 2 * W);
			ct_open_ep(&me, me.info);
			OK(fi_enable(me.ep));
			for (int j = 0; j < 2 * W; j++)
				post_recv(me.ep, &common[j]);
			start(CARRIER, NULL);
		}
		start(VICTIM, NULL);
		carrier_lives();
	}
	close_me(fds);
}

/* Unknown peers stop at every point of a connection setup and stay there; known peers connect all the same. */
static void half_open(int rank)
{
	enum { N = 60 };
	/* a request of version 3 with the connection data of RDM endpoints */
	static unsigned char hello[32 + 8] = { 3, 0, 0, 8, [24] = 1, [32] = 1, [34] = 1, [35] = 2 };
	static const size_t upto[] = { 0, 1, 31, 32, 33, 39, 40 };
	int fds = begin(NULL), s[N], port;
	struct ct_name n = ct_getname(ct_type == FI_EP_MSG ? &me.pep->fid : &me.ep->fid);
	struct sockaddr_in a;

	(void)rank;
	memcpy(&a, n.b, sizeof a);
	port = a.sin_port;
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++) {
			size_t len = upto[i % 7];

			/* of a MSG endpoint's listener a whole request is an event of its own */
			if (ct_type == FI_EP_MSG && len == 40)
				len = 20;
			s[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			a.sin_port = port;
			CHECK(!connect(s[i], (void *)&a, sizeof a));
			hello[34] = 1 + i;	/* each has another port */
			if (len)
				EQ(send(s[i], hello, len, MSG_NOSIGNAL), (ssize_t)len);
			step();
		}
		steps_for(50);
		kill(peers[VICTIM].pid, SIGKILL);
		mourn(VICTIM);
		start(VICTIM, NULL);
		carrier_lives();
		for (int i = 0; i < N; i++) {
			if (i % 2)
				reset_fd(s[i], NULL);
			close(s[i]);
		}
	}
	carrier_lives();
	close_me(fds);
}

/* Several hundred endpoints connect at once, send one message, and end at once. */
static void storm(int rank)
{
	enum { N = 300 };
	int fds = begin(NULL), sp[2];
	struct ct_name to = ct_getname(ct_type == FI_EP_MSG ? &me.pep->fid : &me.ep->fid);
	struct fid_ep *ep[N];
	struct op *in = calloc(N, sizeof *in);
	struct rlimit l;
	int n = 0, came = 0, over = 0, st;
	pid_t p;

	(void)rank;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
	peers[VICTIM].talking = 0;
	UNTIL(!under_way(&peers[VICTIM]));
	kill(peers[VICTIM].pid, SIGKILL);	/* its name is the storm's */
	mourn(VICTIM);
	p = fork();
	if (p == 0) {
		static struct ct c[N];
		static char b[N][64], x;
		static struct fi_context2 ctx[N];
		int sent = 0, up = 0;

		ct_rank = 3;
		for (int i = 0; i < N; i++) {
			c[i].o.caps = FI_MSG;
			if (i) {
				c[i].fabric = c[0].fabric;
				c[i].domain = c[0].domain;
				c[i].tx = c[0].tx;
				c[i].rx = c[0].rx;
				c[i].eq = c[0].eq;
			}
			if (ct_type == FI_EP_MSG) {
				ct_prepare(&c[i], &to);
			} else {
				c[i].info = ct_getinfo(&c[i].o, node, "0", FI_SOURCE);
				if (!i) {
					OK(fi_fabric(c[i].info->fabric_attr, &c[i].fabric, NULL));
					c[0].o.cq_size = 2 * N;
					ct_open_domain(&c[0]);
				}
				c[i].av = c[0].av;
				ct_open_ep(&c[i], c[i].info);
				OK(fi_enable(c[i].ep));
				if (!i)
					c[0].peer = ct_insert(&c[0], &to);
				c[i].peer = c[0].peer;
			}
			make(b[i], sizeof b[i], CALLERS);
		}
		for (int i = 0; i < N; i++) {
			if (ct_type == FI_EP_MSG)
				OK(fi_connect(c[i].ep, c[i].info->dest_addr, NULL, 0));
			else
				POST(&c[0], fi_send(c[i].ep, b[i], sizeof b[i], NULL, c[i].peer, &ctx[i]));
		}
		while (ct_type == FI_EP_MSG && up < N) {
			ct_want_event(&c[0], FI_CONNECTED, NULL, 0);
			up++;
		}
		for (int i = 0; ct_type == FI_EP_MSG && i < N; i++)
			POST(&c[0], fi_send(c[i].ep, b[i], sizeof b[i], NULL, 0, &ctx[i]));
		while (sent < N) {
			struct fi_cq_tagged_entry e;

			ct_next(&c[0], c[0].tx, &e, NULL, NULL);
			sent++;
		}
		/* all at once, when the other side has everything */
		while (recv(sp[1], &x, 1, MSG_DONTWAIT) != 1)
			ct_progress(&c[0]);
		_exit(0);
	}
	close(sp[1]);
	/* fewer descriptors than callers: some wait until there are more */
	CHECK(!getrlimit(RLIMIT_NOFILE, &l));
	if (ct_type != FI_EP_MSG && strcmp(ct_prov, "tcp") == 0) {
		struct rlimit low = { open_fds() + 100, l.rlim_max };

		CHECK(!setrlimit(RLIMIT_NOFILE, &low));
		steps_for(500);
		carrier_lives();
		CHECK(!setrlimit(RLIMIT_NOFILE, &l));
	}
	if (ct_type != FI_EP_MSG) {
		UNTIL(peers[CALLERS].received == N);
	} else {
		int lost = 0;

		while (came < N || over < n || n < N) {
			struct { struct fi_eq_cm_entry e; char d[512]; } b;
			uint32_t ev;
			struct fi_cq_tagged_entry e;
			ssize_t r = fi_eq_read(me.eq, &ev, &b, sizeof b, 0);

			if (r > 0 && ev == FI_CONNREQ) {
				CHECK(n < N);
				OK(fi_endpoint(me.domain, b.e.info, &ep[n], NULL));
				OK(fi_ep_bind(ep[n], &me.eq->fid, 0));
				OK(fi_ep_bind(ep[n], &me.tx->fid, FI_TRANSMIT));
				OK(fi_ep_bind(ep[n], &me.rx->fid, FI_RECV));
				OK(fi_enable(ep[n]));
				in[n].peer = VICTIM;
				post_recv(ep[n], &in[n]);
				OK(fi_accept(ep[n], NULL, 0));
				fi_freeinfo(b.e.info);
				n++;
			} else if (r > 0 && ev == FI_SHUTDOWN) {
				over++;
			} else if (r < 0) {
				EQ(r, -FI_EAGAIN);
			}
			/* some entries, as take() does: the observer sends as quickly as this takes */
			for (int i = 0; i < SOME && (r = fi_cq_read(me.rx, &e, 1)) == 1; i++) {
				struct op *o = e.op_context;

				finish(o);
				peers[check_message(o->buf, e.len)].received++;
				if (o >= in && o < in + N)
					came++;
				else
					post_recv(peers[o->peer].ep, o);
			}
			CHECK(r == 1 || r == -FI_EAGAIN);
			take(me.tx);
			if (came == N && !lost++)
				CHECK(send(sp[0], "x", 1, MSG_NOSIGNAL) == 1);
			sched_yield();
		}
		for (int i = 0; i < N; i++)
			OK(fi_close(&ep[i]->fid));
	}
	if (ct_type != FI_EP_MSG)
		CHECK(send(sp[0], "x", 1, MSG_NOSIGNAL) == 1);
	while (waitpid(p, &st, WNOHANG) == 0)
		step();
	EQ(st, 0);
	close(sp[0]);
	carrier_lives();
	if (ct_type == FI_EP_MSG)
		for (int i = 0; i < N; i++)
			free(in[i].buf);
	free(in);
	start(VICTIM, NULL);
	close_me(fds);
}

/* Opens an endpoint with objects of its own. */
static void open_alone(struct ct *c)
{
	memset(c, 0, sizeof *c);
	c->o.caps = FI_MSG;
	c->info = ct_getinfo(&c->o, node, "0", FI_SOURCE);
	ct_open_in(c, NULL);
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
}
/* Sends, and stops between two messages according to the first byte of `sync`. */
static void slow_caller(const struct ct_name *to)
{
	struct ct c;
	char b[64], x;
	struct fi_context2 ctx;
	struct fi_cq_tagged_entry e;

	open_alone(&c);
	c.peer = ct_insert(&c, to);
	make(b, sizeof b, CALLERS);
	while (1) {
		POST(&c, fi_send(c.ep, b, sizeof b, NULL, c.peer, &ctx));
		ct_next(&c, c.tx, &e, NULL, NULL);
		if (send(ct_sync, "x", 1, MSG_NOSIGNAL) != 1 || recv(ct_sync, &x, 1, 0) != 1)
			break;
	}
	_exit(0);
}
/* A forked child has copies of its parent's sockets. The parent's endpoint closes: its peer has to notice, although the
   child keeps the sockets open. */
static void inherited(int rank)
{
	struct ct c, p;
	char b[64];
	struct fi_context2 ctx;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	struct ct_name to;
	int st, sp[2];
	pid_t peer, holder;
	char x;

	(void)rank;
	if (!*node)
		snprintf(node, sizeof node, "%s", ct_node(&me.o));
	open_alone(&c);
	to = ct_getname(&c.ep->fid);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
	if ((peer = fork()) == 0) {
		int errors = 0;

		close(sp[0]);
		open_alone(&p);
		p.peer = ct_insert(&p, &to);
		memset(b, 1, sizeof b);
		for (int sent = 0; !errors; sent++) {
			ssize_t r;

			POST(&p, fi_send(p.ep, b, sizeof b, NULL, p.peer, &ctx));
			while ((r = fi_cq_read(p.tx, &e, 1)) == -FI_EAGAIN)
				sched_yield();
			errors = r == -FI_EAVAIL && fi_cq_readerr(p.tx, &err, 0) == 1;
			CHECK(r == 1 || errors);
			if (!sent)
				CHECK(send(sp[1], "x", 1, MSG_NOSIGNAL) == 1);
		}
		_exit(0);
	}
	close(sp[1]);
	OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, &ctx));
	ct_next(&c, c.rx, &e, NULL, NULL);
	CHECK(recv(sp[0], &x, 1, 0) == 1);
	if ((holder = fork()) == 0) {
		while (1)
			pause();
	}
	OK(fi_close(&c.ep->fid));
	CHECK(waitpid(peer, &st, 0) == peer);
	EQ(st, 0);
	kill(holder, SIGKILL);
	CHECK(waitpid(holder, NULL, 0) == holder);
	close(sp[0]);
	c.ep = NULL;
	ct_close(&c);
}

/* Unknown peers are disconnected in favour of others; messages they sent by then, or send before they are
   notified, count as delivered on their side. */
static void makes_space(int rank)
{
	enum { N = 200 };
	int fds, sp[2], st;
	struct ct_name to;
	struct rlimit l, low;
	static struct ct c[N];
	static char b[64];
	static struct fi_context2 ctx[N];
	char x;
	pid_t slow, many;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("it is tcp that bounds the number of its callers");
	fds = begin(NULL);
	to = ct_getname(&me.ep->fid);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
	peers[VICTIM].talking = 0;
	UNTIL(!under_way(&peers[VICTIM]));
	kill(peers[VICTIM].pid, SIGKILL);	/* its name is the callers' */
	mourn(VICTIM);
	if ((slow = fork()) == 0) {
		ct_rank = 3;
		ct_sync = sp[1];
		close(sp[0]);
		slow_caller(&to);
	}
	close(sp[1]);
	UNTIL(recv(sp[0], &x, 1, MSG_DONTWAIT) == 1);
	UNTIL(peers[CALLERS].received == 1);
	steps_for(1500);			/* callers may stay for a second */
	CHECK(!getrlimit(RLIMIT_NOFILE, &l));
	low = (struct rlimit){ open_fds() + 100, l.rlim_max };
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
	if ((many = fork()) == 0) {
		struct fi_cq_tagged_entry e;

		CHECK(!setrlimit(RLIMIT_NOFILE, &l));
		ct_rank = 4;
		make(b, sizeof b, CALLERS);
		for (int i = 0; i < N; i++) {
			c[i].o = me.o;
			c[i].o.cq_size = 2 * N;
			c[i].info = ct_getinfo(&c[i].o, node, "0", FI_SOURCE);
			if (i) {
				c[i].fabric = c[0].fabric, c[i].domain = c[0].domain, c[i].av = c[0].av;
				c[i].tx = c[0].tx, c[i].rx = c[0].rx, c[i].eq = c[0].eq;
			} else {
				ct_open_in(&c[0], NULL);
			}
			ct_open_ep(&c[i], c[i].info);
			OK(fi_enable(c[i].ep));
			c[i].peer = i ? c[0].peer : ct_insert(&c[0], &to);
			POST(&c[0], fi_send(c[i].ep, b, sizeof b, NULL, c[i].peer, &ctx[i]));
		}
		for (int i = 0; i < N; i++)
			ct_next(&c[0], c[0].tx, &e, NULL, NULL);
		while (1)
			ct_progress(&c[0]);
	}
	/* the maximum number, and one more: the oldest was asked to close */
	UNTIL(peers[CALLERS].received > 1 + (long)(low.rlim_cur - low.rlim_cur / 4 - 20));
	CHECK(send(sp[0], "x", 1, MSG_NOSIGNAL) == 1);
	UNTIL(recv(sp[0], &x, 1, MSG_DONTWAIT) == 1);
	UNTIL(peers[CALLERS].received == 2 + N);
	CHECK(!setrlimit(RLIMIT_NOFILE, &l));
	kill(many, SIGKILL);
	close(sp[0]);
	while (waitpid(slow, &st, WNOHANG) == 0 || waitpid(many, NULL, WNOHANG) == 0)
		step();
	EQ(st, 0);
	carrier_lives();
	start(VICTIM, NULL);
	close_me(fds);
}

/* ---- faults of the network ------------------------------------------- */

static struct wire *wire;
/* The victim's process gets the other end. */
static void other_end(void)
{
	wire_join(wire);
	strcpy(node, "10.99.1.2");
}
static int begin_wired(void)
{
	int fds;

	wire = wire_open();
	strcpy(node, "10.99.1.9");
	largest = 20000;
	fds = begin(other_end);
	return fds;
}
static void end_wired(int fds)
{
	wire->loss = wire->cut = 0;
	close_me(fds);
	wire_close(wire);
}
static void talks(int id, int n)
{
	long s = peers[id].sent, r = peers[id].received;

	UNTIL(peers[id].sent > s + n && peers[id].received > r + n);
}
static void lossy(int rank)
{
	int fds = begin_wired();
	long before;

	(void)rank;
	may_fail = 0;
	before = wire->dropped;
	wire->loss = 30;	/* of a thousand packets, and as many come twice or late */
	talks(VICTIM, 150);
	wire->loss = 0;
	CHECK(wire->dropped > before);
	carrier_lives();
	may_fail = 1;
	end_wired(fds);
}
static void link_down(int rank)
{
	int fds = begin_wired();

	(void)rank;
	may_fail = 0;
	for (int i = 0; i < 4; i++) {
		if (i & 1)
			wire_set_link(0);	/* the interface itself */
		else
			wire->cut = 1;		/* somewhere on the way */
		steps_for(i < 2 ? 100 : 700);
		carrier_lives();
		if (i & 1)
			wire_set_link(1);
		wire->cut = 0;
		talks(VICTIM, 20);
	}
	may_fail = 1;
	end_wired(fds);
}
/* While the way to it is cut the peer dies and is started anew: its end was never noticed. */
static void unheard(int rank)
{
	struct peer *p = &peers[VICTIM];
	int fds, st;

	(void)rank;
	fds = begin_wired();
	for (int i = 0; i < 2; i++) {
		wire->cut = 1;
		kill(p->pid, SIGKILL);
		while (waitpid(p->pid, &st, WNOHANG) == 0)
			step();
		close(p->sync);
		steps_for(300);
		carrier_lives();
		wire->cut = 0;
		p->talking = i == 0 || ct_type == FI_EP_MSG;
		if (ct_type == FI_EP_MSG) {
			p->talking = 0;
			UNTIL(!under_way(p) && p->ended);
			OK(fi_close(&p->ep->fid));
			p->ep = NULL;
		}
		start(VICTIM, other_end);
	}
	carrier_lives();
	end_wired(fds);
}
/*
 * The victim is behind a firewall.  Connection requests of this process remain
 * unanswered, until a connection from the victim itself carries the waiting
 * messages.
 */
static void behind_firewall(void)
{
	other_end();
	out_of_reach = 1;
}
static void connect_through_firewall(int rank)
{
	struct peer *p = &peers[VICTIM];
	int fds;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("has no FI_TCP_FIREWALL_ADDR");
	fds = begin_wired();
	wire->firewall = 1;
	kill(p->pid, SIGKILL);
	mourn(VICTIM);
	/* its name is known, no process answers there: messages are sent to it before its start */
	p->ep = me.ep;
	p->talking = 1;
	/* until the end of the earlier connection is noticed, which fails the operations it accepted */
	for (int64_t since = ct_ms(); ct_ms() < since + 200;) {
		step();
		if (under_way(p) < W)
			since = ct_ms();
	}
	may_fail = 0;
	start(VICTIM, behind_firewall);
	may_fail = 1;
	/* and now it is known to be out of reach */
	p->talking = 0;
	UNTIL(!under_way(p));
	kill(p->pid, SIGKILL);
	mourn(VICTIM);
	{
		ssize_t r;

		while ((r = fi_send(me.ep, p->send[0].buf, 64, NULL, p->to, &p->send[0])) == 0) {
			p->send[0].under_way = 1;	/* the connection's end is not noticed yet */
			UNTIL(!p->send[0].under_way);
		}
		EQ(r, -FI_EFIREWALLADDR);
	}
	carrier_lives();
	end_wired(fds);
}
/* The peer's machine is gone: after FI_TCP_PEER_TIMEOUT all that is under way fails. */
static void silent(int rank)
{
	struct peer *p = &peers[VICTIM];
	int fds, st;

	(void)rank;
	if (!fault_count("FAULT_LONG", 0))
		SKIP("takes half a minute: FAULT_LONG=1");
	setenv("FI_TCP_PEER_TIMEOUT", "2", 1);
	fds = begin_wired();
	wire->cut = 1;
	p->talking = 0;
	UNTIL(!under_way(p) || p->errors);
	UNTIL(!under_way(p));
	carrier_lives();
	kill(p->pid, SIGKILL);
	CHECK(waitpid(p->pid, &st, 0) == p->pid);
	close(p->sync);
	if (ct_type == FI_EP_MSG) {
		UNTIL(p->ended);
		OK(fi_close(&p->ep->fid));
		p->ep = NULL;
	}
	wire->cut = 0;
	start(VICTIM, other_end);
	end_wired(fds);
}

/* A process with a successor at its address: messages sent before its end arrive before those of the successor. */
static void speak(const struct ct_name *to, const char *service, int successor)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct_name mine;
	struct ct c;
	int i;

	mine = ct_open_at(&c, NULL, &o, service);
	c.peer = ct_insert(&c, to);
	if (!successor)
		ct_send_oob(&mine, sizeof mine);
	for (i = 0; i < (successor ? 1 : 100); i++) {
		POST(&c, fi_send(c.ep, &i, sizeof i, NULL, c.peer, CTX(0)));
		if (successor) {	/* it calls */
			for (int64_t end = ct_ms() + 20; ct_ms() < end;)
				ct_progress(&c);
			ct_send_oob("x", 1);
		}
		ct_sent(&c, CTX(0));
	}
	if (!successor) {
		ct_recv_oob(&c, &(char){ 0 }, 1);	/* no reads from here on */
		for (; i < 120; i++)
			POST(&c, fi_inject(c.ep, &i, sizeof i, c.peer));
	}
	exit(0);
}
static void successor(int rank)
{
	enum { N = 121 };
	struct ct_opt o = { .caps = FI_MSG };
	static struct fi_context2 ctx[N];
	int in[N], sp[2], st;
	struct ct_name mine, theirs;
	struct ct c;
	char x;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("its peers' connections are the core provider's, or others have no such names");
	for (int round = 0; round < 6; round++) {
		char service[8];
		pid_t pid;

		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
		mine = ct_open_at(&c, NULL, &o, NULL);
		snprintf(service, sizeof service, "%s", ct_lasting_port());
		ct_sync = sp[0];
		for (int last = 0; last < 2; last++) {
			if ((pid = fork()) == 0) {
				ct_rank = 1 + last;
				ct_sync = sp[1];
				close(sp[0]);
				speak(&mine, service, last);
			}
			if (!last) {
				ct_recv_oob(NULL, &theirs, sizeof theirs);
				ct_insert(&c, &theirs);
				for (int i = 0; i < N; i++)
					OK(fi_recv(c.ep, &in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, &ctx[i]));
				for (int i = 0; i < 100; i++)
					ct_recvd(&c, &ctx[i], sizeof in[i]);
				/* the connection is not looked at in each turn any more */
				for (int64_t end = ct_ms() + 30; ct_ms() < end;)
					ct_progress(&c);
				ct_send_oob("x", 1);
				CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && !WEXITSTATUS(st));
			} else {
				ct_recv_oob(NULL, &x, 1);
			}
		}
		for (int i = 100; i < N; i++)
			ct_recvd(&c, &ctx[i], sizeof in[i]);
		for (int i = 0; i < N; i++)
			EQ(in[i], i < 120 ? i : 0);
		CHECK(waitpid(pid, &st, 0) == pid && WIFEXITED(st) && !WEXITSTATUS(st));
		ct_close(&c);
		close(sp[0]);
		close(sp[1]);
	}
}

/* Passes bytes between callers of a socket and an address, one connection at a time, and resets it for each byte of
   `orders`. */
static void relay(int listener, const struct sockaddr_in *to, int orders)
{
	struct linger reset = { 1, 0 };
	int s[2] = { -1, -1 };
	char b[4096];

	while (1) {
		struct pollfd p[4] = { { orders, POLLIN, 0 }, { listener, POLLIN, 0 }, { s[0], POLLIN, 0 }, { s[1], POLLIN, 0 } };

		CHECK(poll(p, 4, -1) > 0);
		if (p[0].revents) {
			if (read(orders, b, 1) != 1)
				_exit(0);
			for (int i = 0; i < 2; i++) {
				CHECK(!setsockopt(s[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset));
				close(s[i]);
				s[i] = -1;
			}
			CHECK(write(orders, b, 1) == 1);
			continue;
		}
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[2 + i].revents ? recv(s[i], b, sizeof b, 0) : -1;

			if (n > 0)
				CHECK(send(s[1 - i], b, (size_t)n, MSG_NOSIGNAL) == n);
			else if (p[2 + i].revents)
				_exit(0);
		}
		if (s[0] < 0 && p[1].revents) {
			CHECK((s[0] = accept(listener, NULL, NULL)) >= 0);
			CHECK((s[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
			CHECK(!connect(s[1], (const struct sockaddr *)to, sizeof *to));
		}
	}
}
/* Makes a connection by a relay that resets it between the request and the answer. `late`: the program answers after the
   request has come again. */
static void connect_again(int rank, int late, int accepts)
{
	struct ct c;
	struct ct_name name;
	struct fi_eq_cm_entry e;
	uint32_t ev;
	char b[2][64];

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		ct_listen(&c);
		name = ct_getname(&c.pep->fid);
		ct_send_oob(&name, sizeof name);
		ct_want_event(&c, FI_CONNREQ, &e, sizeof e);
		ct_barrier(&c);
		ct_barrier(&c);
		for (int64_t end = ct_ms() + 300; late && ct_ms() < end; ct_nap(1))
			EQ(fi_eq_read(c.eq, &ev, b, sizeof b, 0), -FI_EAGAIN);
		fi_freeinfo(c.info);
		c.info = e.info;
		if (accepts) {
			ct_open_domain(&c);
			ct_open_ep(&c, c.info);
			OK(fi_enable(c.ep));
			OK(fi_accept(c.ep, NULL, 0));
			ct_want_event(&c, FI_CONNECTED, NULL, 0);
		} else {
			OK(fi_reject(c.pep, c.info->handle, NULL, 0));
		}
	} else {
		struct sockaddr_in to, at = { .sin_family = AF_INET };
		socklen_t n = sizeof at;
		int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), sp[2];
		pid_t p;
		char x = 'x';

		ct_recv_oob(NULL, &name, sizeof name);
		memcpy(&to, name.b, sizeof to);
		at.sin_addr = to.sin_addr;
		CHECK(l >= 0 && !bind(l, (void *)&at, sizeof at) && !listen(l, 4) && !getsockname(l, (void *)&at, &n));
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sp));
		if ((p = fork()) == 0) {
			close(sp[0]);
			relay(l, &to, sp[1]);
		}
		close(l);
		close(sp[1]);
		memcpy(name.b, &at, sizeof at);
		ct_prepare(&c, &name);
		OK(fi_connect(c.ep, name.b, NULL, 0));
		ct_barrier(&c);
		CHECK(write(sp[0], &x, 1) == 1 && read(sp[0], &x, 1) == 1);
		ct_barrier(&c);
		if (accepts) {
			ct_want_event(&c, FI_CONNECTED, NULL, 0);
		} else {
			struct fi_eq_err_entry err = { 0 };
			ssize_t r;

			while ((r = fi_eq_read(c.eq, &ev, b, sizeof b, 0)) == -FI_EAGAIN)
				ct_nap(1);
			EQ(r, -FI_EAVAIL);
			CHECK(fi_eq_readerr(c.eq, &err, 0) == sizeof err);
			EQ(err.err, FI_ECONNREFUSED);
		}
		ct_barrier(&c);
		for (int i = 0; i < 2 && accepts; i++) {
			ct_fill(b[0], sizeof b[0], i);
			OK(fi_send(c.ep, b[0], sizeof b[0], NULL, 0, CTX(0)));
			ct_sent(&c, CTX(0));
		}
		ct_barrier(&c);
		ct_close(&c);
		close(sp[0]);
		CHECK(waitpid(p, NULL, 0) == p);
		return;
	}
	ct_barrier(&c);
	for (int i = 0; i < 2 && accepts; i++) {
		OK(fi_recv(c.ep, b[0], sizeof b[0], NULL, 0, CTX(0)));
		ct_recvd(&c, CTX(0), sizeof b[0]);
		CHECK(ct_same(b[0], sizeof b[0], i));
	}
	EQ(fi_eq_read(c.eq, &ev, b, sizeof b, 0), -FI_EAGAIN);
	ct_barrier(&c);
	ct_close(&c);
}
static void repeated(int rank)
{
	if (strcmp(ct_prov, "tcp"))
		SKIP("no other provider has FI_TCP_RESUME");
	ct_param("LOCAL", "0");
	ct_param("RESUME", "60");
	connect_again(rank, 0, 1);
	connect_again(rank, 1, 1);
	connect_again(rank, 1, 0);
}
static const struct ct_test tests[] = {
	{ "a killed peer in the middle of traffic takes nothing else along, four times", killed, CT_SOLO },
	{ "a peer that resets its connections takes nothing else along", reset, CT_SOLO },
	{ "a peer that closes everything in the middle of traffic takes nothing else along", closed_there, CT_SOLO },
	{ "a stopped peer is waited for beyond FI_TCP_PEER_TIMEOUT, and its death ends operations in flight", stopped, CT_SOLO },
	{ "removing an address in the middle of traffic loses nothing", removed, CT_SOLO | CT_RDM },
	{ "closing an endpoint in the middle of traffic completes everything once", closed_here, CT_SOLO },
	{ "unknown peers stopped within a connection setup do not exclude others", half_open, CT_SOLO },
	{ "a storm of connections, and the end of all at once, disturb no other peer", storm, CT_SOLO },
	{ "a connection request is repeated after a reset before its answer, and reported once", repeated, CT_MSG },
	{ "the end of an endpoint reaches its peer although a forked child has its sockets", inherited, CT_SOLO | CT_RDM },
	{ "callers that make room for others lose nothing that they have sent", makes_space, CT_SOLO | CT_RDM },
	{ "lost, doubled and late packets damage nothing", lossy, CT_SOLO },
	{ "a link that goes down and comes back costs no operation", link_down, CT_SOLO },
	{ "a peer that is started anew behind a broken link is reached", unheard, CT_SOLO },
	{ "a peer behind a firewall connects and gets waiting messages, and is not connected to", connect_through_firewall, CT_SOLO | CT_RDM },
	{ "messages sent before a peer's end arrive before those of its successor", successor, CT_SOLO | CT_RDM },
	{ "the loss of a peer's machine ends operations in flight", silent, CT_SOLO },
};
CT_MAIN("faults", tests)
