/*
 * A peer that speaks the protocol of ofi_rxm over tcp up to a point: calls that
 * do not fit are refused, packets that make no sense end their connection, and
 * an honest pair on the same endpoint does not notice.
 */
#include "ct.h"
#include <arpa/inet.h>
#include <sys/socket.h>

static void only_rxm(void)
{
	if (strcmp(ct_prov, "tcp;ofi_rxm"))
		SKIP("the peer speaks the protocol of ofi_rxm over tcp");
}
static void put(unsigned char *o, uint64_t v, int bytes)
{
	memcpy(o, &v, bytes);
}

enum { CM = 32, CALL = 24, ACCEPT = 16, FRAME = 16, HEAD = 64 };

/* Writes valid data of a connection request, from a port without a listener. */
static void call(unsigned char *o, int port)
{
	const uint16_t one = 1;

	memset(o, 0, CALL);
	o[0] = 1;
	o[1] = *(const unsigned char *)&one ? 2 : 1;
	o[2] = 4;
	o[3] = 3;
	put(o + 4, port, 2);
	o[6] = 2;
	put(o + 8, 16384, 4);
	put(o + 12, 4096, 4);
	put(o + 16, 77ull << 32, 8);
}
/* All of n bytes; 0 at the end of the connection. */
static int get(struct ct *c, int fd, void *b, size_t n)
{
	for (size_t at = 0; at < n;) {
		ssize_t r = recv(fd, (char *)b + at, n - at, MSG_DONTWAIT);

		if (r > 0)
			at += r;
		else if (r == 0 || (errno != EAGAIN && errno != EINTR))
			return 0;
		else
			ct_idle(c, 1);
	}
	return 1;
}
/* Calls with these data; the socket, the type of the answer and its data. */
static int dial(struct ct *c, const struct ct_name *to, const unsigned char *data, size_t n, int *type, unsigned char *answer)
{
	unsigned char cm[CM + 256] = { 3 };
	int fd = socket(((const struct sockaddr *)to->b)->sa_family, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	EQ(connect(fd, (const struct sockaddr *)to->b, to->n), 0);
	cm[2] = n >> 8;
	cm[3] = n;
	put(cm + 24, 1, 8);
	memcpy(cm + CM, data, n);
	EQ(send(fd, cm, CM + n, MSG_NOSIGNAL), (ssize_t)(CM + n));
	CHECK(get(c, fd, cm, CM));
	*type = cm[1];
	n = cm[2] << 8 | cm[3];
	CHECK(n <= 256);
	memset(answer, 0, 256);
	CHECK(get(c, fd, answer, n));
	return fd;
}
/* A packet with this header and payload, as one message of the core's. */
static void packet(int fd, const unsigned char *head, const void *payload, size_t n)
{
	unsigned char frame[FRAME + HEAD + 20000] = { 3 };

	frame[6] = FRAME;
	put(frame + 8, FRAME + HEAD + n, 8);
	memcpy(frame + FRAME, head, HEAD);
	memcpy(frame + FRAME + HEAD, payload, n);
	EQ(send(fd, frame, FRAME + HEAD + n, MSG_NOSIGNAL), (ssize_t)(FRAME + HEAD + n));
}
/* The header of an eager message of n bytes. */
static void eager(unsigned char *o, uint64_t conn, size_t n)
{
	memset(o, 0, HEAD);
	o[0] = 4;
	put(o + 8, conn, 8);
	o[32] = 2;
	put(o + 40, n, 8);
}
/* The honest pair is still there. */
static void honest(struct ct *c, int rank, int i)
{
	char *b = ct_alloc(c, 100);

	if (rank == 0) {
		POST(c, fi_recv(c->ep, b, 100, ct_desc(b), c->peer, CTX(i)));
		ct_recvd(c, CTX(i), 100);
		CHECK(ct_same(b, 100, i));
	} else {
		ct_fill(b, 100, i);
		POST(c, fi_send(c->ep, b, 100, ct_desc(b), c->peer, CTX(i)));
		ct_sent(c, CTX(i));
	}
}
static struct ct_name start(struct ct *c)
{
	struct ct_name mine, theirs;

	only_rxm();
	ct_open(c, NULL);
	mine = ct_getname(&c->ep->fid);
	ct_swap(c, &mine, &theirs, sizeof mine);
	return theirs;
}

static void bad_calls(int rank)
{
	struct ct c;
	struct ct_name to = start(&c);

	honest(&c, rank, 0);
	for (int i = 0; rank == 1 && i < 11; i++) {
		unsigned char data[CALL + 5], answer[256];
		size_t n = CALL;
		int type, fd;

		call(data, 1000 + i);
		switch (i) {
		case 0: data[0] = 9; break;		/* the version of these data */
		case 1: data[1] = 3; break;		/* no byte order */
		case 2: data[2] = 3; break;		/* another version of packets */
		case 3: data[3] = 9; break;		/* another version of operations */
		case 4: put(data + 8, 8192, 4); break;	/* another buffer size */
		case 5: put(data + 4, 0, 2); break;	/* no name */
		case 6: n = CALL - 1; break;
		case 7: n = 0; break;
		case 8: data[0] = 0x81; break;		/* contexts that it does not name */
		case 9: data[0] = 0x81; put(data + CALL, 1ull << 16, 5); n += 5; break;	/* one that is not there */
		case 10: data[0] = 0x81; put(data + CALL, 3ull << 32, 5); n += 5; break;	/* a key that is too short */
		}
		fd = dial(&c, &to, data, n, &type, answer);
		EQ(type, 6);	/* refused */
		EQ(answer[0], 1);
		EQ(answer[1], 1);
		close(fd);
	}
	ct_barrier(&c);
	honest(&c, rank, 1);
	ct_done(&c);
}
static void bad_packets(int rank)
{
	struct ct c;
	struct ct_name to = start(&c);

	honest(&c, rank, 0);
	for (int i = 0; rank == 1 && i < 22; i++) {
		unsigned char data[CALL], answer[256], head[HEAD], payload[20000] = { 0 }, x;
		uint64_t conn = 0;
		size_t n = 100;
		int type, fd;

		call(data, 1000 + i);
		fd = dial(&c, &to, data, CALL, &type, answer);
		EQ(type, 1);	/* accepted */
		memcpy(&conn, answer, 4);
		eager(head, conn, n);
		switch (i) {
		case 0: head[0] = 5; break;			/* version */
		case 1: head[1] = 99; break;			/* kind */
		case 2: head[32] = 3; break;			/* version of operations */
		case 3: head[34] = 2; break;			/* a message that is none */
		case 4: put(head + 40, 101, 8); break;		/* longer than it is */
		case 5: put(head + 40, ~0ull, 8); break;
		case 6: head[1] = 1; break;			/* a segment of no length */
		case 7: head[1] = 1; put(head + 2, n, 2); head[24] = 2; break;	/* one in the middle first */
		case 8: head[1] = 1; put(head + 2, n, 2); head[24] = 1; put(head + 40, 50, 8); break;
		case 9: head[1] = 1; put(head + 2, n, 2); head[24] = 1; head[4] = 7; put(head + 40, 500, 8); break;
		case 10: head[1] = 2; break;			/* a rendezvous that is too short */
		case 11: head[1] = 2; n = 104; payload[96] = 5; break;
		case 12: head[1] = 2; n = 104; payload[96] = 1; put(payload + 8, 99, 8); break;
		case 13: head[1] = 2; n = 104; payload[96] = 2; put(payload + 8, ~0ull, 8); put(payload + 32, ~0ull, 8); break;
		case 14: head[1] = 3; n = 0; put(head + 16, 12345, 8); break;	/* the end of none */
		case 15: head[1] = 7; n = 104; payload[96] = 1; break;
		case 16: head[1] = 8; n = 0; break;
		case 17: head[1] = 5; break;			/* an unrequested answer */
		case 18: head[1] = 4; head[34] = 5; break;	/* an atomic operation of no group */
		case 19: head[1] = 4; head[34] = 6; put(head + 40, n, 8); head[58] = 9; break;
		case 20: head[1] = 4; head[34] = 7; put(head + 40, n + 1, 8); head[58] = 1; break;
		case 21: head[1] = 5; put(head + 16, ~0ull, 8); break;
		}
		packet(fd, head, payload, n);
		/* the end of this one connection */
		CHECK(!get(&c, fd, &x, 1));
		close(fd);
	}
	ct_barrier(&c);
	honest(&c, rank, 1);
	ct_done(&c);
}
static void half_messages(int rank)
{
	struct ct c;
	struct ct_name to = start(&c);

	/* incomplete messages, and an invalid name of a connection */
	for (int i = 0; rank == 1 && i < 3; i++) {
		unsigned char data[CALL], answer[256], head[HEAD], payload[104] = { 0 };
		uint64_t conn = 0;
		int type, fd;

		call(data, 1000 + i);
		fd = dial(&c, &to, data, CALL, &type, answer);
		EQ(type, 1);
		memcpy(&conn, answer, 4);
		eager(head, i == 2 ? conn + 1000 : conn, 100);
		if (i == 0) {
			head[1] = 1;
			put(head + 2, 100, 2);
			head[24] = 1;
			put(head + 40, 50000, 8);
		} else if (i == 1) {
			head[1] = 2;
			payload[96] = 1;
			put(payload + 8, 100, 8);
		}
		packet(fd, head, payload, i == 1 ? 104 : 100);
		ct_idle(&c, 20);
		close(fd);
	}
	ct_barrier(&c);
	honest(&c, rank, 1);
	honest(&c, rank, 2);
	ct_done(&c);
}

/* The next message of the core's: its bytes, without the core's header. */
static size_t frame(struct ct *c, int fd, unsigned char *o)
{
	unsigned char head[FRAME];
	uint64_t n = 0;

	CHECK(get(c, fd, head, FRAME));
	memcpy(&n, head + 8, 8);
	CHECK(n >= FRAME && n <= 4096 && head[6] >= FRAME);
	CHECK(get(c, fd, o, n - FRAME));
	memmove(o, o + head[6] - FRAME, n - head[6]);
	return n - head[6];
}

/* A caller that is taken in: its socket, and how packets to the endpoint name the connection. No endpoint has its port by
   chance: a call in the name of a peer takes the place of that peer's connection. */
static int caller(struct ct *c, const struct ct_name *to, int port, uint64_t *conn)
{
	unsigned char data[CALL], answer[256];
	int type, fd;

	call(data, port);
	fd = dial(c, to, data, CALL, &type, answer);
	EQ(type, 1);
	*conn = 0;
	memcpy(conn, answer, 4);
	return fd;
}
/* Two connections: one sends packets that name the other, whose number it knows. */
static void another_ones_name(int rank, int kinds)
{
	enum { BIG = 1 << 20, PORT = 1000 };
	struct ct c;
	struct ct_name to = start(&c);
	char *b = ct_alloc(&c, BIG);
	/* a whole message, a part of one, an announcement, and a report about a message of ours */
	static const unsigned char what[] = { 0, 1, 2, 3, 7, 8, 5, 4, 6 };

	honest(&c, rank, 0);
	for (int i = 0; i < kinds; i++) {
		struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		uint64_t one, two, msg = 0;
		int liar, known;
		unsigned char head[HEAD], o[4096], payload[104] = { 0 }, x;

		if (rank == 0) {
			struct fi_cq_tagged_entry e;
			struct ct_name name = { .n = sizeof at };

			memset(b, 0, 100);
			POST(&c, fi_recv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			ct_barrier(&c);
			/* both are there; a message that the other one is to fetch */
			at.sin_port = htons(PORT + 2 * i + 1);
			memcpy(name.b, &at, sizeof at);
			POST(&c, fi_send(c.ep, b, BIG, ct_desc(b), ct_insert(&c, &name), CTX(2)));
			ct_barrier(&c);
			/* no packet sent in its name is accepted */
			NOTHING(&c, c.rx, 30);
			NOTHING(&c, c.tx, 30);
			ct_barrier(&c);
			e = ct_recvd(&c, CTX(1), 100);
			CHECK(e.buf == NULL || e.buf == b);
			CHECK(ct_same(b, 100, 7));
			ct_sent(&c, CTX(2));
			ct_barrier(&c);
			continue;
		}
		liar = caller(&c, &to, PORT + 2 * i, &one);
		known = caller(&c, &to, PORT + 2 * i + 1, &two);
		CHECK(one != two);
		ct_barrier(&c);
		EQ(frame(&c, known, o), HEAD + 104);
		EQ(o[1], 2);
		memcpy(&msg, o + 16, 8);
		ct_fill(payload, 100, 6);
		eager(head, two, 100);
		head[1] = what[i];
		if (what[i] == 1) {
			put(head + 2, 100, 2);
			head[24] = 1;
			put(head + 40, 5000, 8);
		} else if (what[i] == 2) {
			memset(payload, 0, sizeof payload);
			payload[96] = 1;
			put(payload + 8, 100, 8);
		} else if (what[i] == 4) {
			head[34] = 6;
			put(head + 40, 100, 8);
			head[58] = 1;
		} else if (what[i] == 7) {
			memset(payload, 0, sizeof payload);
			payload[96] = 1;
			put(payload + 8, BIG, 8);
		}
		if (what[i] > 2 && what[i] != 4)
			put(head + 16, msg, 8);
		packet(liar, head, payload, what[i] == 2 || what[i] == 7 ? 104 : what[i] == 3 || what[i] == 8 ? 0 : 100);
		/* the end of the liar's connection, and not of the other */
		CHECK(!get(&c, liar, &x, 1));
		close(liar);
		ct_barrier(&c);
		ct_barrier(&c);
		ct_fill(payload, 100, 7);
		eager(head, two, 100);
		packet(known, head, payload, 100);
		memset(head, 0, HEAD);
		head[0] = 4;
		head[1] = 3;
		head[32] = 2;
		put(head + 8, two, 8);
		put(head + 16, msg, 8);
		packet(known, head, payload, 0);
		ct_barrier(&c);
		close(known);
	}
	honest(&c, rank, 1);
	ct_done(&c);
}
/* Many begin a message each, and end it, or never do, after others were served. */
static void started_messages(int rank)
{
	enum { N = 48, BIG = 15000, LEN = FRAME + HEAD + BIG };
	static unsigned char frame[N][LEN];
	static int fd[N], seen[N];
	struct ct c;
	struct ct_name to = start(&c);
	char *b = ct_alloc(&c, BIG);

	honest(&c, rank, 0);
	for (int i = 0; rank == 1 && i < N; i++) {
		size_t n = i % 2 ? BIG : 3000;
		uint64_t conn;

		fd[i] = caller(&c, &to, 1000 + i, &conn);
		frame[i][0] = 3;
		frame[i][6] = FRAME;
		put(frame[i] + 8, FRAME + HEAD + n, 8);
		eager(frame[i] + FRAME, conn, n);
		put(frame[i] + FRAME + 36, FI_REMOTE_CQ_DATA, 4);
		put(frame[i] + FRAME + 48, i, 8);
		ct_fill(frame[i] + FRAME + HEAD, n, i);
		EQ(send(fd[i], frame[i], 200, MSG_NOSIGNAL), 200);
	}
	ct_idle(&c, 50);
	ct_barrier(&c);
	for (int i = 1; i < 50; i++)
		honest(&c, rank, i);
	ct_barrier(&c);
	if (rank == 0) {
		for (int i = 0; i < N - 4; i++) {
			struct fi_cq_tagged_entry e = { 0 };

			POST(&c, fi_recv(c.ep, b, BIG, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(1) && e.data < N - 4 && !seen[e.data]++);
			EQ(e.len, e.data % 2 ? BIG : 3000);
			CHECK(ct_same(b, e.len, e.data));
		}
	} else {
		/* a part of each in turn, and of four nothing more */
		for (size_t at = 200; at < LEN; at += 5000)
			for (int i = 0; i < N - 4; i++) {
				size_t n = FRAME + HEAD + (i % 2 ? BIG : 3000), most = n - at < 5000 ? n - at : 5000;

				if (at < n)
					EQ(send(fd[i], frame[i] + at, most, MSG_NOSIGNAL), (ssize_t)most);
			}
	}
	ct_barrier(&c);
	for (int i = 0; rank == 1 && i < N; i++)
		close(fd[i]);
	honest(&c, rank, 1);
	ct_done(&c);
}
static void *read_for_long(void *arg)
{
	ct_idle(arg, 500);
	return NULL;
}
/* All nonsense packets are there before the endpoint reads the first of them, in a thread with a small stack. */
static void nonsense_at_once(int rank)
{
	enum { N = 10000, LEN = FRAME + HEAD };
	struct ct c;
	struct ct_name to;

	/* many buffers, so that many packets are there at once */
	setenv("FI_OFI_RXM_COMP_PER_PROGRESS", "4096", 1);
	to = start(&c);
	honest(&c, rank, 0);
	if (rank == 0) {
		pthread_attr_t small;
		pthread_t t;
		char ready;

		ct_barrier(&c);
		for (int i = 0; i < 2; i++) {
			CHECK(recv(ct_sync, &ready, 1, 0) == 1);
			if (i == 0) {
				ct_idle(&c, 300);
				ct_barrier(&c);
			}
		}
		OK(pthread_attr_init(&small));
		OK(pthread_attr_setstacksize(&small, 256 << 10));
		OK(pthread_create(&t, &small, read_for_long, &c));
		OK(pthread_join(t, NULL));
	} else {
		uint64_t conn;
		int fd = caller(&c, &to, 1000, &conn);
		char *all = calloc(N, LEN), x;

		CHECK(all);
		ct_barrier(&c);
		for (int round = 0; round < 2; round++) {
			for (int i = 0; i < N; i++) {
				unsigned char *frame = (unsigned char *)all + i * LEN;

				frame[0] = 3;
				frame[6] = FRAME;
				put(frame + 8, LEN, 8);
				eager(frame + FRAME, conn, 0);
				frame[FRAME + 34] = 1;		/* a tagged message without a receive */
				frame[FRAME + 1] = 3 * round;	/* the end of a message that there is not */
			}
			for (ssize_t at = 0, n; at < N * LEN && (n = send(fd, all + at, N * LEN - at, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;)
				at += n;
			ct_send_oob("r", 1);
			if (round == 0)
				ct_barrier(&c);
		}
		while (recv(fd, &x, 1, 0) > 0)
			;
		close(fd);
		free(all);
	}
	ct_barrier(&c);
	honest(&c, rank, 1);
	ct_done(&c);
}
/* Callers in no address vector that leave messages without end. */
static void left_by_unknown_peers(int rank)
{
	enum { LEN = 16000, WHOLE = FRAME + HEAD + LEN };
	struct ct c;
	struct ct_name to = start(&c);

	honest(&c, rank, 0);
	for (int i = 0; rank == 1 && i < 3; i++) {
		unsigned char frame[WHOLE] = { 3 };
		uint64_t conn;
		int fd = caller(&c, &to, 1001 + i, &conn);
		size_t all = 0, at = 0;
		ssize_t n;

		frame[6] = FRAME;
		put(frame + 8, WHOLE, 8);
		eager(frame + FRAME, conn, LEN);
		while (all < 200u << 20 && (n = send(fd, frame + at, WHOLE - at, MSG_NOSIGNAL)) > 0) {
			all += n;
			at = (at + n) % WHOLE;
		}
		if (all >= 200u << 20)
			FAIL("unknown peer %d left %zu MiB", i, all >> 20);
		close(fd);
	}
	/* there is space for messages of a known peer before their receive is posted */
	if (rank == 1) {
		char *b = ct_alloc(&c, 100);

		ct_fill(b, 100, 1);
		POST(&c, fi_send(c.ep, b, 100, ct_desc(b), c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	ct_barrier(&c);
	if (rank == 0) {
		char *b = ct_alloc(&c, 100);

		ct_idle(&c, 50);
		POST(&c, fi_recv(c.ep, b, 100, ct_desc(b), c.peer, CTX(1)));
		ct_recvd(&c, CTX(1), 100);
		CHECK(ct_same(b, 100, 1));
	}
	ct_done(&c);
}
static void names_shared(int rank) { another_ones_name(rank, 9); }
static void names_own(int rank)
{
	setenv("FI_OFI_RXM_USE_SRX", "0", 1);
	another_ones_name(rank, 9);
}

/* Numbers of so many bytes, in the other order. */
static void round_number(unsigned char *at, int bytes)
{
	for (int i = 0; i < bytes / 2; i++) {
		unsigned char b = at[i];

		at[i] = at[bytes - 1 - i];
		at[bytes - 1 - i] = b;
	}
}
static void serve_call(unsigned char *data)
{
	data[1] ^= 3;
	round_number(data + 4, 2);
	round_number(data + 8, 4);
	round_number(data + 12, 4);
	round_number(data + 16, 8);
}
static void convert_header(unsigned char *head)
{
	round_number(head + 2, 2);
	round_number(head + 4, 4);
	for (int at = 8; at < 32; at += 8)
		round_number(head + at, 8);
	round_number(head + 36, 4);
	for (int at = 40; at < 64; at += 8)
		round_number(head + at, 8);
}
/* A peer of the other byte order calls, and sends. */
static void other_order_calls(int rank)
{
	struct ct c;
	struct ct_name to = start(&c);
	char *b = ct_alloc(&c, 40000);

	honest(&c, rank, 0);
	if (rank == 0) {
		for (int i = 0; i < 3; i++) {
			struct fi_cq_tagged_entry e;
			size_t n = i ? 32000 : 300;

			memset(b, 0, 40000);
			POST(&c, fi_recv(c.ep, b, 40000, ct_desc(b), FI_ADDR_UNSPEC, CTX(5)));
			ct_barrier(&c);
			if (i == 2)
				break;
			e = ct_recvd(&c, CTX(5), n);
			CHECK(e.flags & FI_REMOTE_CQ_DATA);
			EQ(e.data, 0x123456789);
			CHECK(ct_same(b, n, 17));
		}
		OK(fi_cancel(&c.ep->fid, CTX(5)));
		EQ(ct_next(&c, c.rx, &(struct fi_cq_tagged_entry){ 0 }, NULL, &(struct fi_cq_err_entry){ 0 }), -FI_EAVAIL);
	} else {
		unsigned char data[CALL + 5] = { 0 }, answer[256], head[HEAD];
		uint64_t conn = 0;
		int type, fd;

		ct_fill(b, 32000, 17);
		call(data, 1000);
		serve_call(data);
		fd = dial(&c, &to, data, CALL, &type, answer);
		EQ(type, 6);
		CHECK(answer[0] == 1 && answer[1] == 1 && answer[2] == 0x81);
		close(fd);
		/* so it calls as those do that understand either order */
		data[0] = 0x81;
		fd = dial(&c, &to, data, CALL + 5, &type, answer);
		EQ(type, 1);
		CHECK(answer[13] == (data[1] ^ 3));
		memcpy(&conn, answer, 4);
		ct_barrier(&c);
		for (int i = 0; i < 3; i++) {
			size_t n = i ? 16000 : 300;

			/* one message as a packet, one in two segments */
			eager(head, conn, n);
			put(head + 36, FI_REMOTE_CQ_DATA, 4);
			put(head + 48, 0x123456789, 8);
			if (i) {
				head[1] = 1;
				put(head + 2, n, 2);
				put(head + 4, i - 1, 4);
				put(head + 16, 99, 8);
				put(head + 24, i == 1 ? 1 : 3, 8);
				put(head + 40, 32000, 8);
			}
			convert_header(head);
			packet(fd, head, b + (i == 2 ? 16000 : 0), n);
			if (i == 0)
				ct_barrier(&c);
		}
		ct_barrier(&c);
		/* in our own order it makes no sense any more */
		eager(head, conn, 300);
		packet(fd, head, b, 300);
		ct_idle(&c, 20);
		close(fd);
	}
	ct_barrier(&c);
	honest(&c, rank, 1);
	ct_done(&c);
}
/* A peer of the other byte order is called, and sent to. */
static void other_order_answers(int rank)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ct_name mine = { .n = sizeof at }, theirs;
	unsigned char cm[CM + 256], o[4096];
	socklen_t len = sizeof at;
	struct ct c;
	int s, fd;

	start(&c);
	if (rank == 0) {
		char *b = ct_alloc(&c, 100);

		ct_swap(&c, &mine, &theirs, sizeof mine);
		ct_fill(b, 100, 3);
		c.peer = ct_insert(&c, &theirs);
		POST(&c, fi_senddata(c.ep, b, 100, ct_desc(b), 0x1234, c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
		ct_barrier(&c);
		ct_done(&c);
		return;
	}
	s = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(s >= 0 && !bind(s, (void *)&at, sizeof at) && !listen(s, 4) && !getsockname(s, (void *)&at, &len));
	memcpy(mine.b, &at, sizeof at);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	for (int i = 0; i < 2; i++) {
		size_t n;

		fd = accept(s, NULL, NULL);
		CHECK(fd >= 0 && get(&c, fd, cm, CM));
		n = cm[2] << 8 | cm[3];
		CHECK(n <= 256 && get(&c, fd, cm + CM, n));
		EQ(cm[CM], i ? 0x81 : 1);
		EQ(n, i ? CALL + 5 : CALL);
		if (i == 0) {
			/* understood, but for its order */
			memset(cm + 4, 0, CM - 4);
			cm[1] = 6;
			cm[2] = 0;
			cm[3] = 3;
			memcpy(cm + CM, "\1\1\x81", 3);
			EQ(send(fd, cm, CM + 3, MSG_NOSIGNAL), CM + 3);
			close(fd);
		}
	}
	cm[1] = 1;
	cm[2] = 0;
	cm[3] = ACCEPT;
	o[0] = cm[CM + 1];
	memset(cm + CM, 0, ACCEPT);
	put(cm + CM, 0x0123456789abcdefull, 8);
	round_number(cm + CM, 8);
	cm[CM + 12] = 2;
	cm[CM + 13] = o[0] ^ 3;
	EQ(send(fd, cm, CM + ACCEPT, MSG_NOSIGNAL), CM + ACCEPT);
	EQ(frame(&c, fd, o), HEAD + 100);
	/* the connection has the name that its peer gave it, in the sender's order */
	{
		uint64_t id = 0, d = 0;

		memcpy(&id, o + 8, 8);
		memcpy(&d, o + 48, 8);
		EQ(id, 0x89abcdef);
		EQ(d, 0x1234);
		CHECK(ct_same(o + HEAD, 100, 3));
	}
	ct_barrier(&c);
	close(fd);
	close(s);
	ct_done(&c);
}

/* Ranks with these keys; results of a message from rank 0, and from rank 1. */
static void keys_of(int rank, const struct ct_opt *mine, int error0, int error1)
{
	struct ct c = { .o = *mine };
	struct ct_name name, theirs;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	char *b;

	c.o.caps = FI_MSG;
	name = ct_open_rdm(&c, NULL);
	if (mine->ep_key)
		EQ(c.info->ep_attr->auth_key_size, strlen(mine->ep_key));
	ct_swap(&c, &name, &theirs, sizeof name);
	c.peer = ct_insert(&c, &theirs);
	b = ct_alloc(&c, 100);
	for (int from = 0; from < 2; from++) {
		int error = from ? error1 : error0;

		if (rank == from) {
			ct_fill(b, 100, from);
			POST(&c, fi_send(c.ep, b, 100, ct_desc(b), c.peer, CTX(0)));
			if (error) {
				EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
				EQ(err.err, error);
			} else {
				ct_sent(&c, CTX(0));
			}
		} else if (!error) {
			POST(&c, fi_recv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, CTX(0)));
			ct_recvd(&c, CTX(0), 100);
			CHECK(ct_same(b, 100, from));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void keys(int rank)
{
	struct ct_opt none = { 0 }, one = { .ep_key = "one" }, both = { .ep_key = "one", .domain_key = "other" },
		domain = { .domain_key = "one" }, two = { .ep_key = "two, of twenty-four byte" },
		longer = { .ep_key = "one of twenty-five bytes." };
	struct fi_info *h, *i;

	if (!ct_is_rxm())
		SKIP("the keys are those of ofi_rxm");
	h = ct_hints(&longer);
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
	/* the same, the endpoint's own or its domain's */
	keys_of(rank, &one, 0, 0);
	keys_of(rank, rank ? &domain : &both, 0, 0);
	keys_of(rank, &two, 0, 0);
	/* others */
	keys_of(rank, rank ? &two : &domain, FI_EKEYREJECTED, FI_EKEYREJECTED);
	/* one that has none is as any peer of another library */
	keys_of(rank, rank ? &none : &one, FI_EKEYREJECTED, FI_ECONNREFUSED);
}

/* Messages of sizes around a buffer's, each complete when it was matched. */
static void all_sizes(int rank)
{
	static const size_t sizes[] = { 0, 1, 40, 63, 64, 65, 103, 104, 105, 500, 5000, 16384, 100000, 1 << 20 };
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 1 << 20);
	for (int i = 0; i < 2 * (int)(sizeof sizes / sizeof *sizes); i++) {
		size_t n = sizes[i / 2];

		if (rank == 0) {
			POST(&c, fi_trecv(c.ep, b, 1 << 20, ct_desc(b), c.peer, i, 0, CTX(i)));
			ct_recvd(&c, CTX(i), n);
			CHECK(ct_same(b, n, i));
		} else {
			struct iovec v = { b, n };
			struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .tag = i, .context = CTX(i) };

			ct_fill(b, n, i);
			POST(&c, fi_tsendmsg(c.ep, &m, FI_COMPLETION | (i % 2 ? FI_MATCH_COMPLETE : FI_TRANSMIT_COMPLETE)));
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}
/* In a process of its own for each value, which is read once. */
static void every_value(int rank, const char *name, const char *const *values)
{
	if (!ct_is_rxm())
		SKIP("the parameters are those of ofi_rxm");
	for (int i = 0; values[i]; i++) {
		pid_t child = fork();
		int status;

		CHECK(child >= 0);
		snprintf(ct_prefix, sizeof ct_prefix, "%s=%s: ", name, values[i]);
		if (child == 0) {
			setenv(name, values[i], 1);
			all_sizes(rank);
			_exit(0);
		}
		EQ(waitpid(child, &status, 0), child);
		if (status)
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
}
static void buffer_sizes(int rank)
{
	static const char *const values[] = { "", "none", "0", "1", "63", "64", "103", "104", "105", "1000", "65535", "65536",
					      "1000000", "0x100", "100 bytes", NULL };

	every_value(rank, "FI_OFI_RXM_BUFFER_SIZE", values);
}
static void other_sizes(int rank)
{
	static const char *const names[] = { "FI_OFI_RXM_SAR_LIMIT", "FI_OFI_RXM_TX_SIZE", "FI_OFI_RXM_RX_SIZE", "FI_OFI_RXM_MSG_TX_SIZE",
					     "FI_OFI_RXM_MSG_RX_SIZE", "FI_OFI_RXM_COMP_PER_PROGRESS", "FI_OFI_RXM_CQ_EQ_FAIRNESS",
					     "FI_OFI_RXM_CM_PROGRESS_INTERVAL", "FI_UNIVERSE_SIZE" };
	static const char *const values[] = { "", "none", "0", "1", "2", "-1", "99999999999999999999", NULL };

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		every_value(rank, names[i], values);
}
/* fi_getinfo(3): with FI_SOURCE node and service are the local address; a peer cannot insert one that stands for all of a host. */
static void source_by_port(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *h = ct_hints(&o), *i = NULL;
	int loopback = 0;

	(void)rank;
	only_rxm();
	OK(fi_getinfo(CT_VERSION, NULL, "7471", FI_SOURCE, h, &i));
	for (struct fi_info *p = i; p; p = p->next) {
		const struct sockaddr_in *a = p->src_addr;

		CHECK(a && p->addr_format == FI_SOCKADDR_IN);
		EQ(a->sin_port, htons(7471));
		CHECK(a->sin_addr.s_addr != htonl(INADDR_ANY));
		loopback |= a->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
	}
	CHECK(loopback);
	fi_freeinfo(i);
	fi_freeinfo(h);
}

static const struct ct_test tests[] = {
	{ "a source given by its port alone is at each address of the host", source_by_port, CT_RDM | CT_SOLO },
	{ "a peer of the other byte order can connect and send", other_order_calls, CT_RDM },
	{ "a peer of the other byte order can be connected to and sent to", other_order_answers, CT_RDM },
	{ "only peers with the same authorization key communicate", keys, CT_RDM | CT_REL },
	{ "incompatible connection requests are refused", bad_calls, CT_RDM },
	{ "malformed packets end their own connection and no other", bad_packets, CT_RDM },
	{ "messages never completed affect no other peer", half_messages, CT_RDM },
	{ "messages arrive with any FI_OFI_RXM_BUFFER_SIZE", buffer_sizes, CT_RDM },
	{ "messages arrive with any number in the parameters", other_sizes, CT_RDM },
	{ "unfinished messages do not delay others", started_messages, CT_RDM },
	{ "thousands of malformed packets at a time end their own connection and no other", nonsense_at_once, CT_RDM },
	{ "messages left by unknown peers are bounded and dropped with their connections", left_by_unknown_peers, CT_RDM },
	{ "a packet is accepted only for the connection it arrived on", names_shared, CT_RDM },
	{ "a packet is accepted only for its own connection, with separate receive buffers", names_own, CT_RDM },
};
CT_MAIN("rxm", tests)
