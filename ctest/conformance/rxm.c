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

/* The data of a call that fits, from a port that nobody listens at. */
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
	for (int i = 0; rank == 1 && i < 10; i++) {
		unsigned char data[CALL + 4], answer[256];
		size_t n = CALL;
		int type, fd;

		call(data, 40000 + i);
		switch (i) {
		case 0: data[0] = 9; break;		/* the version of these data */
		case 1: data[1] ^= 3; break;		/* the other byte order */
		case 2: data[2] = 3; break;		/* another version of packets */
		case 3: data[3] = 9; break;		/* another version of operations */
		case 4: put(data + 8, 8192, 4); break;	/* another buffer size */
		case 5: put(data + 4, 0, 2); break;	/* no name */
		case 6: n = CALL - 1; break;
		case 7: n = 0; break;
		case 8: data[0] = 0x81; break;		/* contexts that it does not name */
		case 9: data[0] = 0x81; put(data + CALL, 1ull << 16, 4); n += 4; break;	/* one that is not there */
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

		call(data, 41000 + i);
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
		case 17: head[1] = 5; break;			/* an answer nobody asked for */
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

	/* beginnings of messages whose rest never comes, and a name of a connection that is none */
	for (int i = 0; rank == 1 && i < 3; i++) {
		unsigned char data[CALL], answer[256], head[HEAD], payload[104] = { 0 };
		uint64_t conn = 0;
		int type, fd;

		call(data, 42000 + i);
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

static const struct ct_test tests[] = {
	{ "calls that do not fit are refused", bad_calls, CT_RDM },
	{ "packets that make no sense end their connection and no other", bad_packets, CT_RDM },
	{ "messages that never become whole harm nobody", half_messages, CT_RDM },
};
CT_MAIN("rxm", tests)
