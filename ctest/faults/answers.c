/*
 * Connections whose first socket is lost while they are being made, with FI_TCP_RESUME: a relay between both ends resets the
 * socket after each possible number of bytes of the accepting end. The answer to the connection request is among them.
 * No connection may fail, and each message arrives once.
 *
 *   FAULT_BYTES    numbers of bytes, from 0 on (default 160, and 330 with encryption)
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <poll.h>
#include <pthread.h>

enum { LEN = 100, PAIRS = 64 };

/* Relayed connection: its sockets, the bytes from the server, and the number of bytes before a reset (-1: none). */
struct pair { int c, s, eof; long bytes, limit; };
static struct relay {
	struct sockaddr_in server, at;
	int listener, stop, held, go;
	int losses;			/* connections still to be reset */
	long limit;
	int resets;
	long sent;			/* bytes of the server in this round */
	struct pair pairs[PAIRS];
} relay;
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), v, __ATOMIC_SEQ_CST)

static void end_pair(struct pair *p, int reset)
{
	struct linger now = { .l_onoff = 1 };
	int fds[] = { p->c, p->s };

	for (int i = 0; i < 2; i++) {
		if (reset)
			setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &now, sizeof now);
		close(fds[i]);
	}
	memset(p, 0, sizeof *p);
	p->c = p->s = -1;
}
/* Passes bytes on. Returns 0 if the connection was reset, by an end or here. */
static int pass_on(struct pair *p, int from, int to)
{
	char b[4096];
	size_t most = sizeof b;
	ssize_t n;

	if (from == p->s && p->limit >= 0 && (long)most > p->limit - p->bytes)
		most = p->limit - p->bytes;
	if (!most) {
		STORE(relay.held, 1);
		if (!LOAD(relay.go))
			return 1;
		relay.resets++;
		end_pair(p, 1);
		return 0;
	}
	n = read(from, b, most);
	if (n < 0 || (n > 0 && send(to, b, n, MSG_NOSIGNAL) != n)) {
		end_pair(p, 1);
		return 0;
	}
	if (n == 0) {
		shutdown(to, SHUT_WR);
		p->eof |= from == p->c ? 1 : 2;
	}
	if (from == p->s) {
		p->bytes += n;
		STORE(relay.sent, relay.sent + n);
	}
	return 1;
}
static void admit(void)
{
	struct sockaddr_in here = relay.server;
	struct pair *p = relay.pairs;

	while (p < relay.pairs + PAIRS && p->c >= 0)
		p++;
	CHECK(p < relay.pairs + PAIRS);
	p->c = accept(relay.listener, NULL, NULL);
	p->s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(p->c >= 0 && p->s >= 0);
	here.sin_port = 0;
	CHECK(!bind(p->s, (void *)&here, sizeof here));
	if (connect(p->s, (void *)&relay.server, sizeof relay.server))
		end_pair(p, 1);
	else
		p->limit = relay.losses > 0 ? relay.limit : -1;
	relay.losses -= relay.losses > 0;
}
static void *relay_all(void *arg)
{
	while (!LOAD(relay.stop)) {
		struct pollfd f[1 + 2 * PAIRS] = { { relay.listener, POLLIN, 0 } };

		for (int i = 0; i < PAIRS; i++) {
			struct pair *p = &relay.pairs[i];
			f[1 + 2 * i] = (struct pollfd) { p->eof & 1 ? -1 : p->c, POLLIN, 0 };
			f[2 + 2 * i] = (struct pollfd) { p->eof & 2 ? -1 : p->s, POLLIN, 0 };
		}
		poll(f, 1 + 2 * PAIRS, 1);
		for (int i = 0; i < PAIRS; i++) {
			struct pair *p = &relay.pairs[i];
			if (f[1 + 2 * i].revents && !pass_on(p, p->c, p->s))
				continue;
			if (f[2 + 2 * i].revents && !pass_on(p, p->s, p->c))
				continue;
			if (p->eof == 3)
				end_pair(p, 0);
		}
		if (f[0].revents)
			admit();
	}
	return arg;
}
static pthread_t begin_relay(const struct ct_name *server)
{
	socklen_t len = sizeof relay.at;
	pthread_t t;

	for (int i = 0; i < PAIRS; i++)
		relay.pairs[i].c = relay.pairs[i].s = -1;
	memcpy(&relay.server, server->b, sizeof relay.server);
	relay.at = relay.server;
	relay.at.sin_port = 0;
	relay.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(relay.listener >= 0 && !bind(relay.listener, (void *)&relay.at, sizeof relay.at));
	CHECK(!listen(relay.listener, 16) && !getsockname(relay.listener, (void *)&relay.at, &len));
	CHECK(!pthread_create(&t, NULL, relay_all, NULL));
	return t;
}

static struct ct server, client;
static char *in[2], *out[2];
enum { RECEIVED = 1, SENT = 2 };

/* Reads the completions of one end: each of its operations completes once. */
static void complete(struct ct *c, int end, int *done)
{
	struct fid_cq *queues[] = { c->rx, c->tx };

	for (int q = 0; q < 2; q++) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry err = { 0 };
		ssize_t r = fi_cq_read(queues[q], &e, 1);

		if (r == -FI_EAVAIL) {
			EQ(fi_cq_readerr(queues[q], &err, 0), 1);
			FAIL("after %ld bytes: the %s of end %d fails: %s", relay.limit, q ? "send" : "receive", end, fi_strerror(err.err));
		}
		if (r != 1)
			continue;
		CHECK(!(*done & 1 << q));
		CHECK(e.op_context == CTX(4 * end + q));
		*done |= 1 << q;
		if (!q) {
			EQ(e.len, LEN);
			CHECK(ct_same(in[end], LEN, 2 * relay.limit + !end));
		}
	}
}
static void post_receive(struct ct *c, int end)
{
	memset(in[end], 0, LEN);
	POST(c, fi_recv(c->ep, in[end], LEN, ct_desc(in[end]), FI_ADDR_UNSPEC, CTX(4 * end)));
}
static void post_send(struct ct *c, int end)
{
	ct_fill(out[end], LEN, 2 * relay.limit + end);
	POST(c, fi_send(c->ep, out[end], LEN, ct_desc(out[end]), c->peer, CTX(4 * end + 1)));
}
/* The next event of an end, if there is one: 0 otherwise. The end of a connection of an earlier round is ignored. */
static uint32_t next_event(struct ct *c, struct fi_eq_cm_entry *e)
{
	struct fi_eq_err_entry err = { 0 };
	uint32_t event = 0;
	ssize_t r = fi_eq_read(c->eq, &event, e, sizeof *e, 0);

	if (r == -FI_EAVAIL) {
		EQ(fi_eq_readerr(c->eq, &err, 0), sizeof err);
		FAIL("after %ld bytes: the connection fails: %s", relay.limit, fi_strerror(err.err));
	}
	if (r < 0)
		return 0;
	if (event == FI_SHUTDOWN) {
		CHECK(e->fid != &server.ep->fid && e->fid != &client.ep->fid);
		return 0;
	}
	return event;
}
/* Has connections reset after so many bytes (-1: none), and begins. */
static void begin_round(long bytes)
{
	relay.limit = bytes;
	STORE(relay.held, 0);
	STORE(relay.go, 0);
	STORE(relay.sent, 0);
	STORE(relay.losses, bytes < 0 ? 0 : bytes % 3 ? 1 : 2);
}
/* Makes a connection with a message in each direction. Returns the number of bytes of the server before its answer: those of
   the handshake of a key. */
static long make_msg(void)
{
	long before = 0;
	int done[2] = { 0 }, accepted = 0;
	int64_t held = 0;

	ct_open_ep(&client, client.info);
	OK(fi_enable(client.ep));
	post_receive(&client, 1);
	OK(fi_connect(client.ep, &relay.at, NULL, 0));
	while ((done[0] & done[1]) != (RECEIVED | SENT)) {
		struct fi_eq_cm_entry e;

		switch (next_event(&server, &e)) {
		case FI_CONNREQ:
			CHECK(!server.ep);
			before = LOAD(relay.sent);
			ct_open_ep(&server, e.info);
			OK(fi_enable(server.ep));
			fi_freeinfo(e.info);
			post_receive(&server, 0);
			OK(fi_accept(server.ep, NULL, 0));
			break;
		case FI_CONNECTED:
			CHECK(!accepted++);
			post_send(&server, 0);
		}
		if (next_event(&client, &e) == FI_CONNECTED)
			post_send(&client, 1);
		complete(&server, 0, &done[0]);
		complete(&client, 1, &done[1]);
		/* The accepting end has sent something by then, if it has got the request. */
		if (LOAD(relay.held) && !held)
			held = ct_ms();
		if (held && (accepted || ct_ms() > held + 20))
			STORE(relay.go, 1);
		ct_relax(&(int64_t) { 0 });
	}
	return before;
}
static void make_rdm(int is_encrypted)
{
	int done[2] = { 0 }, posted = 0;
	int64_t held = 0;
	struct ct_name me;

	ct_open_ep(&client, client.info);
	OK(fi_enable(client.ep));
	client.peer = 0;
	me = ct_getname(&client.ep->fid);
	server.peer = ct_insert(&server, &me);
	post_receive(&server, 0);
	post_receive(&client, 1);
	post_send(&client, 1);
	while ((done[0] & done[1]) != (RECEIVED | SENT)) {
		complete(&server, 0, &done[0]);
		complete(&client, 1, &done[1]);
		if (LOAD(relay.held) && !held)
			held = ct_ms();
		/* A message on a connection that the other end does not know yet. Bytes of the server are its answer unless
		   they are of the handshake of a key. */
		if (!posted && ((held && !is_encrypted) || done[0] & RECEIVED)) {
			post_send(&server, 0);
			posted = 1;
		}
		if (held && (posted || ct_ms() > held + 20))
			STORE(relay.go, 1);
		ct_relax(&(int64_t) { 0 });
	}
}
static void lose_answers(const char *key)
{
	int is_msg = ct_type == FI_EP_MSG, n = fault_count("FAULT_BYTES", key ? 330 : 160);
	struct ct_name to, at = { .n = sizeof relay.at };
	pthread_t t;

	if (ct_is_rxm())
		SKIP("its endpoints make other connections by themselves");
	ct_param("RESUME", "20");
	ct_param("LOCAL", "0");
	if (key) {
		ct_key_file(key, strlen(key), 0600);
		ct_param("ENCRYPT", "1");
	}
	server.o.caps = client.o.caps = FI_MSG;
	if (is_msg) {
		ct_listen(&server);
		ct_open_domain(&server);
		to = ct_getname(&server.pep->fid);
	} else {
		to = ct_open_rdm(&server, NULL);
	}
	t = begin_relay(&to);
	memcpy(at.b, &relay.at, sizeof relay.at);
	if (is_msg) {
		ct_prepare(&client, &at);
	} else {
		ct_open_rdm(&client, NULL);
		EQ(ct_insert(&client, &at), 0);
	}
	ct_forget_key_file();
	OK(fi_close(&client.ep->fid));
	for (int end = 0; end < 2; end++) {
		in[end] = ct_alloc(end ? &client : &server, LEN);
		out[end] = ct_alloc(end ? &client : &server, LEN);
	}
	for (long bytes = -1; bytes < n; bytes++) {
		begin_round(bytes);
		if (!is_msg) {
			make_rdm(key != NULL);
		} else {
			long before = make_msg();
			/* To a connected endpoint a reset during the handshake of a key is a rejection: its peer may have another. */
			if (bytes < 0)
				bytes = before - 1;
		}
		OK(fi_close(&client.ep->fid));
		client.ep = NULL;
		if (!is_msg) {
			OK(fi_av_remove(server.av, &server.peer, 1, 0));
			continue;
		}
		OK(fi_close(&server.ep->fid));
		server.ep = NULL;
	}
	/* Connections whose bytes were fewer have not been reset. */
	CHECK(relay.resets > n / 3);
	STORE(relay.stop, 1);
	CHECK(!pthread_join(t, NULL));
	ct_close(&client);
	ct_close(&server);
}
static void unencrypted(int rank)
{
	(void)rank;
	lose_answers(NULL);
}
static void encrypted(int rank)
{
	(void)rank;
	lose_answers("a key of thirty-two bytes or more of a job");
}

static const struct ct_test tests[] = {
	{ "a connection is made although its socket is reset at any byte of the answer", unencrypted, CT_SOLO },
	{ "an encrypted connection is made although its socket is reset at any byte of the answer", encrypted, CT_SOLO },
};
CT_MAIN("answers", tests)
