/*
 * The card of efa.h: a socket of each queue pair accepts packets from others, connections start at the first packet. Each packet is
 * answered, as reliable datagrams are. Remote reads and writes are made by the target's card, which checks the key, by
 * process_vm_writev() and process_vm_readv().
 */
#include "efa.h"
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum packet_type { HELLO = 1, MESSAGE, READ, WRITE, ACK };
struct header {
	uint8_t type, is_imm, is_inline;
	uint32_t code, slot, qkey, qpn, rkey, len, num_sge;
	__be32 imm;
	uint64_t remote_addr;
	union ibv_gid gid;
	struct { uint64_t addr, len; } sge[MAX_SQ_SGE];
};
struct fake_packet {
	struct fake_packet *next;
	struct fake_conn *conn;
	uint32_t qpn;			/* of the receiver: a connection may be closed before its packets are delivered */
	unsigned int overtakers;	/* packets that may be delivered before it */
	size_t len;			/* of data */
	struct header head;
	unsigned char data[];
};
struct fake_conn {
	struct fake_conn *next;		/* of the queue pair */
	struct fake_qp *qp;		/* NULL: closed */
	int fd;
	bool is_ours;			/* opened by this end: packets out, acknowledgements in */
	bool is_full;
	uint32_t qpn;
	union ibv_gid gid;
	pid_t pid;
	unsigned int users;		/* packets that name it */
	struct fake_packet *out, **out_end;	/* that the socket had no space for */
};

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_stats fake_stats;
static int epoll_fd = -1;
static uint64_t seed;
static unsigned long reorder, rnr, fail;
static struct fake_qp *qps[MAX_QPN + 1];
/* packets that arrived and may be overtaken */
static struct fake_packet *held;
/* closed in this round: events for it may still be in the card's hands */
static struct fake_conn *closed;

unsigned long fake_setting(const char *name, unsigned long otherwise)
{
	const char *value = getenv(name);

	return value && *value ? strtoul(value, NULL, 0) : otherwise;
}

static uint32_t chance(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)(seed >> 16);
}

union ibv_gid fake_gid(void)
{
	const char *host = getenv("FAKE_EFA_HOST");
	uint32_t number = host && !strcmp(host, "pid") ? (uint32_t)getpid() : (uint32_t)fake_setting("FAKE_EFA_HOST", 0);
	union ibv_gid gid = { .raw = { 0xfe, 0x80, [8] = 0x02, 0xef, 0xa0, 0x00 } };

	for (int i = 0; i < 4; i++)
		gid.raw[15 - i] = (uint8_t)(number >> 8 * i);
	return gid;
}

struct fake_qp *fake_qp_of(uint32_t qpn) { return qpn <= MAX_QPN ? qps[qpn] : NULL; }

static socklen_t name_of(struct sockaddr_un *at, const union ibv_gid *gid, uint32_t qpn)
{
	char *p = at->sun_path + 1;	/* of the abstract names: they end with their process */

	memset(at, 0, sizeof *at);
	at->sun_family = AF_UNIX;
	p += sprintf(p, "fake-efa-%u/", (unsigned int)geteuid());
	for (int i = 0; i < 16; i++)
		p += sprintf(p, "%02x", gid->raw[i]);
	p += sprintf(p, "/%u", qpn);
	return (socklen_t)(p - (char *)at);
}

static void watch(int fd, uint32_t events, void *who, int op)
{
	struct epoll_event event = { .events = events, .data.ptr = who };

	if (epoll_ctl(epoll_fd, op, fd, &event))
		abort();
}

static struct fake_conn *new_conn(struct fake_qp *qp, int fd, bool is_ours)
{
	struct fake_conn *conn = calloc(1, sizeof *conn);

	conn->qp = qp;
	conn->fd = fd;
	conn->is_ours = is_ours;
	conn->out_end = &conn->out;
	conn->next = qp->conns;
	qp->conns = conn;
	watch(fd, EPOLLIN, (char *)conn + 1, EPOLL_CTL_ADD);	/* odd: no queue pair */
	return conn;
}

static void finish(struct fake_qp *qp, uint32_t slot, uint32_t code)
{
	struct fake_send *send = &qp->slots[slot];
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_SEND] = IBV_WC_SEND, [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND, [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	};

	if (slot >= qp->max_send || !send->in_use)
		return;
	send->in_use = false;
	qp->outstanding--;
	fake_stats.failed += code != CODE_OK;
	if (code || qp->sq_sig_all || send->flags & IBV_SEND_SIGNALED)
		fake_report(qp, false, &(struct fake_cqe){ .wr_id = send->wr_id, .opcode = opcodes[send->opcode], .code = code });
}

static void free_packet(struct fake_packet *packet)
{
	if (packet && packet->conn)
		packet->conn->users--;
	free(packet);
}

static void close_conn(struct fake_conn *conn)
{
	struct fake_qp *qp = conn->qp;
	struct fake_conn **at = &qp->conns;
	struct fake_packet *packet;

	while (*at != conn)
		at = &(*at)->next;
	*at = conn->next;
	conn->qp = NULL;
	epoll_ctl(epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);	/* a child of this process may have the socket as well */
	close(conn->fd);
	while ((packet = conn->out)) {
		conn->out = packet->next;
		free_packet(packet);
	}
	conn->next = closed;
	closed = conn;
	for (uint32_t i = 0; conn->is_ours && i < qp->max_send; i++)
		if (qp->slots[i].in_use && qp->slots[i].conn == conn)
			finish(qp, i, CODE_NO_RESPONSE);
}

/* What no packet and no event of this round names any more. */
static void free_closed(void)
{
	for (struct fake_conn **at = &closed, *conn; (conn = *at);) {
		if (conn->users) {
			at = &conn->next;
		} else {
			*at = conn->next;
			free(conn);
		}
	}
}

/* 0: sent or queued; otherwise the connection is broken */
static int transmit(struct fake_conn *conn, const struct header *head, const struct iovec *data, size_t num_data)
{
	struct iovec iov[1 + MAX_SQ_SGE] = { { (void *)head, sizeof *head } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 1 + num_data };
	struct fake_packet *packet;
	size_t len = 0;

	for (size_t i = 0; i < num_data; i++) {
		iov[1 + i] = data[i];
		len += data[i].iov_len;
	}
	if (!conn->is_full) {
		if (sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno != EAGAIN && errno != ENOBUFS)
			return errno;
		conn->is_full = true;
		watch(conn->fd, EPOLLIN | EPOLLOUT, (char *)conn + 1, EPOLL_CTL_MOD);
	}
	packet = malloc(sizeof *packet + len);
	*packet = (struct fake_packet){ .conn = conn, .head = *head };
	conn->users++;
	for (size_t i = 0; i < num_data; i++) {
		memcpy(packet->data + packet->len, data[i].iov_base, data[i].iov_len);
		packet->len += data[i].iov_len;
	}
	*conn->out_end = packet;
	conn->out_end = &packet->next;
	return 0;
}

static void resume(struct fake_conn *conn)
{
	struct fake_packet *packet;

	while ((packet = conn->out)) {
		struct iovec iov[] = { { &packet->head, sizeof packet->head }, { packet->data, packet->len } };
		struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

		if (sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
			if (errno != EAGAIN && errno != ENOBUFS)
				close_conn(conn);
			return;
		}
		if (!(conn->out = packet->next))
			conn->out_end = &conn->out;
		free_packet(packet);
	}
	conn->is_full = false;
	watch(conn->fd, EPOLLIN, (char *)conn + 1, EPOLL_CTL_MOD);
}

static struct fake_conn *conn_to(struct fake_qp *qp, const union ibv_gid *gid, uint32_t qpn)
{
	union ibv_gid own = fake_gid();
	struct header hello = { .type = HELLO, .qpn = qp->ex.qp_base.qp_num, .gid = own };
	struct sockaddr_un at;
	socklen_t len = name_of(&at, gid, qpn);
	struct fake_conn *conn;
	int fd;

	for (conn = qp->conns; conn; conn = conn->next)
		if (conn->is_ours && conn->qpn == qpn && !memcmp(&conn->gid, gid, sizeof *gid))
			return conn;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, len)) {
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	conn = new_conn(qp, fd, true);
	conn->gid = *gid;
	conn->qpn = qpn;
	transmit(conn, &hello, NULL, 0);
	return conn;
}

void fake_post(struct fake_qp *qp, const struct fake_send *send)
{
	struct header head = { .code = CODE_OK, .qkey = send->qkey, .rkey = send->rkey, .remote_addr = send->remote_addr, .imm = send->imm,
			       .is_inline = send->is_inline, .num_sge = send->num_sge };
	struct iovec iov[MAX_SQ_SGE] = { { (void *)send->data, send->inline_len } };
	size_t num_data = 1;
	uint32_t slot = qp->next_slot, code = CODE_OK;
	struct fake_conn *conn;

	while (qp->slots[slot].in_use)
		slot = (slot + 1) % qp->max_send;
	qp->next_slot = (slot + 1) % qp->max_send;
	qp->slots[slot] = *send;
	qp->slots[slot].in_use = true;
	qp->outstanding++;
	head.slot = slot;
	head.is_imm = send->opcode == IBV_WR_SEND_WITH_IMM || send->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	head.type = send->opcode == IBV_WR_RDMA_READ ? READ : send->opcode == IBV_WR_SEND || send->opcode == IBV_WR_SEND_WITH_IMM ? MESSAGE : WRITE;
	head.len = send->inline_len;
	for (uint32_t i = 0; !send->is_inline && i < send->num_sge; i++) {
		const struct fake_sge *sge = &send->sge[i];
		void *bytes = fake_bytes(sge->lkey, sge->addr, sge->len, head.type == READ ? IBV_ACCESS_LOCAL_WRITE : 0);

		if (!bytes)
			code = CODE_BAD_LKEY;
		iov[i] = (struct iovec){ bytes, sge->len };
		head.sge[i].addr = (uintptr_t)bytes;
		head.sge[i].len = sge->len;
		head.len += sge->len;
		num_data = i + 1;
	}
	if (head.type == MESSAGE && head.len > MAX_MSG)
		code = CODE_BAD_LENGTH;
	if (head.type != MESSAGE && !send->is_inline)
		num_data = 0;
	if (fail && chance() % fail == 0)
		code = CODE_NO_RESPONSE;
	conn = code ? NULL : conn_to(qp, &send->gid, send->qpn);
	if (!conn) {
		finish(qp, slot, code ? code : CODE_NO_RESPONSE);
		return;
	}
	qp->slots[slot].conn = conn;
	fake_stats.sent += head.type == MESSAGE;
	fake_stats.reads += head.type == READ;
	fake_stats.writes += head.type == WRITE;
	if (transmit(conn, &head, iov, num_data))
		close_conn(conn);
}

static void acknowledge(struct fake_packet *packet, uint32_t code)
{
	struct header head = { .type = ACK, .slot = packet->head.slot, .code = code };

	if (packet->conn->qp && transmit(packet->conn, &head, NULL, 0))
		close_conn(packet->conn);
}

/* Takes the first receive: a message, or a write with immediate data. */
static uint32_t receive(struct fake_qp *qp, struct fake_packet *packet)
{
	struct fake_recv *recv = &qp->recvs[qp->recv_head++ % qp->max_recv];
	bool is_message = packet->head.type == MESSAGE;
	unsigned char grh[GRH] = { 0 };
	size_t before = is_message && qp->ex.qp_base.qp_type == IBV_QPT_UD ? GRH : 0, left = is_message ? before + packet->len : 0, at = 0;
	struct fake_cqe cqe = {
		.wr_id = recv->wr_id, .opcode = is_message ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = is_message ? (uint32_t)left : packet->head.len,
		.imm = packet->head.imm, .wc_flags = packet->head.is_imm ? IBV_WC_WITH_IMM : 0, .src_qp = packet->conn->qpn,
		.sgid = packet->conn->gid, .slid = fake_ahn_of(&packet->conn->gid),
	};

	memcpy(grh + 8, &packet->conn->gid, 16);
	for (uint32_t i = 0; i < recv->num_sge && left; i++) {
		size_t len = recv->sge[i].len < left ? recv->sge[i].len : left;
		unsigned char *to = fake_bytes(recv->sge[i].lkey, recv->sge[i].addr, len, IBV_ACCESS_LOCAL_WRITE);

		if (!to) {
			cqe.code = CODE_BAD_LKEY;
			break;
		}
		for (size_t n; len; len -= n, left -= n, at += n, to += n) {
			n = at < before ? before - at : len;
			n = n < len ? n : len;
			memcpy(to, at < before ? grh + at : packet->data + (at - before), n);
		}
	}
	if (left && !cqe.code)
		cqe.code = CODE_BAD_LENGTH;
	fake_stats.received++;
	fake_report(qp, true, &cqe);
	return cqe.code ? CODE_REMOTE_LENGTH : CODE_OK;
}

/* The whole of a remote read or write, by the target's card. */
static uint32_t transfer(struct fake_packet *packet)
{
	struct header *head = &packet->head;
	unsigned char *own = fake_bytes(head->rkey, head->remote_addr, head->len, head->type == READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);

	if (!own)
		return CODE_REMOTE_ADDRESS;
	if (head->is_inline) {
		memcpy(own, packet->data, packet->len);
		return CODE_OK;
	}
	for (uint32_t i = 0; i < head->num_sge; i++)
		for (size_t left = head->sge[i].len, done = 0; left;) {
			struct iovec here = { own, left }, there = { (void *)(uintptr_t)(head->sge[i].addr + done), left };
			ssize_t n = head->type == READ ? process_vm_writev(packet->conn->pid, &here, 1, &there, 1, 0) :
							 process_vm_readv(packet->conn->pid, &here, 1, &there, 1, 0);

			if (n <= 0)
				return CODE_NO_RESPONSE;
			left -= (size_t)n;
			done += (size_t)n;
			own += n;
		}
	return CODE_OK;
}

/* False: it waits for a receive */
static bool deliver(struct fake_packet *packet)
{
	struct fake_qp *qp = fake_qp_of(packet->qpn);
	bool needs_recv = packet->head.type == MESSAGE || packet->head.is_imm;
	uint32_t code = CODE_OK;

	/* The memory of a peer that has closed its end may be another's by now. */
	if (!qp || (!packet->conn->qp && packet->head.type != MESSAGE))
		return true;
	if (packet->head.qkey != qp->qkey) {
		acknowledge(packet, CODE_REMOTE_QPN);
		return true;
	}
	if (needs_recv && rnr && chance() % rnr == 0) {
		acknowledge(packet, CODE_REMOTE_RNR);
		return true;
	}
	if (needs_recv && qp->recv_head == qp->recv_tail)
		return false;
	if (packet->head.type != MESSAGE)
		code = transfer(packet);
	if (needs_recv && !code)
		code = receive(qp, packet);
	acknowledge(packet, code);
	return true;
}

static void deliver_or_queue(struct fake_packet *packet)
{
	struct fake_qp *qp = fake_qp_of(packet->qpn);

	if (deliver(packet)) {
		free_packet(packet);
		return;
	}
	packet->next = NULL;
	*qp->no_recv_end = packet;
	qp->no_recv_end = &packet->next;
}

void fake_recv_posted(struct fake_qp *qp)
{
	struct fake_packet *packet;

	while ((packet = qp->no_recv) && qp->recv_head != qp->recv_tail) {
		if (!(qp->no_recv = packet->next))
			qp->no_recv_end = &qp->no_recv;
		deliver_or_queue(packet);
	}
}

/* Delivers the held packets that have been overtaken often enough, or all. */
static void release(bool all)
{
	struct fake_packet **at = &held, *packet;

	while ((packet = *at)) {
		if (!all && packet->overtakers) {
			at = &packet->next;
			continue;
		}
		*at = packet->next;
		deliver_or_queue(packet);
	}
}

static void arrived(struct fake_packet *packet)
{
	for (struct fake_packet *p = held; p; p = p->next)
		if (p->overtakers) {
			p->overtakers--;
			fake_stats.overtaken++;
		}
	if (reorder && chance() % 4 == 0) {
		packet->overtakers = 1 + chance() % reorder;
		/* in front of others held: so they leave in another order as well */
		packet->next = held;
		held = packet;
	} else {
		deliver_or_queue(packet);
	}
	release(false);
}

static void read_conn(struct fake_conn *conn)
{
	struct { struct header head; unsigned char data[MAX_MSG]; } in;

	/* a bounded number: other connections and the program want the lock */
	for (int i = 0; i < 32 && conn->qp; i++) {
		ssize_t n = recv(conn->fd, &in, sizeof in, MSG_DONTWAIT);
		struct fake_packet *packet;

		/* the peer closed with packets unread: what it sent before is read first */
		if (n < 0 && errno == ECONNRESET)
			n = recv(conn->fd, &in, sizeof in, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < (ssize_t)sizeof in.head) {
			close_conn(conn);
			return;
		}
		if (in.head.type == ACK) {
			if (conn->is_ours)
				finish(conn->qp, in.head.slot, in.head.code);
			continue;
		}
		if (in.head.type == HELLO) {
			struct ucred peer;
			socklen_t len = sizeof peer;

			if (getsockopt(conn->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len))
				abort();
			conn->pid = peer.pid;
			conn->gid = in.head.gid;
			conn->qpn = in.head.qpn;
			continue;
		}
		packet = malloc(sizeof *packet + (size_t)n - sizeof in.head);
		*packet = (struct fake_packet){ .conn = conn, .qpn = conn->qp->ex.qp_base.qp_num, .head = in.head, .len = (size_t)n - sizeof in.head };
		memcpy(packet->data, in.data, packet->len);
		conn->users++;
		arrived(packet);
	}
}

static void *card(void *unused)
{
	const struct timespec soon = { .tv_nsec = 50000 };

	for (;;) {
		struct epoll_event events[16];
		/* `held` is changed by this thread alone, but for the end of a queue pair */
		int n = epoll_pwait2(epoll_fd, events, 16, held ? &soon : NULL, NULL);

		pthread_mutex_lock(&fake_lock);
		if (n == 0)
			release(true);
		for (int i = 0; i < n; i++) {
			uintptr_t who = (uintptr_t)events[i].data.ptr;
			struct fake_conn *conn = (struct fake_conn *)(who - 1);

			if (who & 1) {
				if (conn->qp && events[i].events & EPOLLOUT)
					resume(conn);
				if (conn->qp && events[i].events & ~(uint32_t)EPOLLOUT)
					read_conn(conn);
			} else {
				/* by number: the queue pair may be gone */
				struct fake_qp *qp = fake_qp_of((uint32_t)(who >> 1));
				int fd = qp ? accept4(qp->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;

				if (fd >= 0)
					new_conn(qp, fd, false);
			}
		}
		free_closed();
		pthread_mutex_unlock(&fake_lock);
	}
	return unused;
}

static void report_stats(void)
{
	const char *file = getenv("FAKE_EFA_STATS");
	FILE *f = file ? fopen(file, "a") : NULL;

	if (!f)
		return;
	fprintf(f, "sent %lu received %lu overtaken %lu reads %lu writes %lu failed %lu\n", fake_stats.sent, fake_stats.received,
		fake_stats.overtaken, fake_stats.reads, fake_stats.writes, fake_stats.failed);
	fclose(f);
}

static void start(void)
{
	sigset_t all, before;
	pthread_t thread;

	seed = fake_setting("FAKE_EFA_SEED", (unsigned long)getpid()) * 0x9e3779b97f4a7c15u + 1;
	reorder = fake_setting("FAKE_EFA_REORDER", 16);
	rnr = fake_setting("FAKE_EFA_RNR", 0);
	fail = fake_setting("FAKE_EFA_FAIL", 0);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (epoll_fd < 0 || pthread_create(&thread, NULL, card, NULL))
		abort();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_detach(thread);
	atexit(report_stats);
}

void fake_card_start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start);
}

int fake_listen(struct fake_qp *qp)
{
	static uint32_t last;
	union ibv_gid gid = fake_gid();

	qp->no_recv_end = &qp->no_recv;
	qp->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (qp->listen_fd < 0)
		return errno;
	for (int i = 0; i < MAX_QPN; i++) {
		uint32_t qpn = 1 + ((uint32_t)getpid() * 61 + last++) % (MAX_QPN - 1);
		struct sockaddr_un at;
		socklen_t len = name_of(&at, &gid, qpn);

		if (qps[qpn] || bind(qp->listen_fd, (struct sockaddr *)&at, len))
			continue;
		if (listen(qp->listen_fd, 4096))
			return errno;
		qp->ex.qp_base.qp_num = qpn;
		qps[qpn] = qp;
		watch(qp->listen_fd, EPOLLIN, (void *)(uintptr_t)(qpn << 1), EPOLL_CTL_ADD);
		return 0;
	}
	return ENOSPC;
}

void fake_flush(struct fake_qp *qp)
{
	for (uint32_t i = 0; i < qp->max_send; i++)
		finish(qp, i, CODE_FLUSHED);
	while (qp->recv_head != qp->recv_tail)
		fake_report(qp, true, &(struct fake_cqe){ .wr_id = qp->recvs[qp->recv_head++ % qp->max_recv].wr_id, .opcode = IBV_WC_RECV, .code = CODE_FLUSHED });
}

void fake_forget(struct fake_qp *qp)
{
	struct fake_packet **at = &held, *packet;

	qps[qp->ex.qp_base.qp_num] = NULL;	/* from here on its completions are not reported */
	while ((packet = *at)) {
		if (packet->qpn != qp->ex.qp_base.qp_num) {
			at = &packet->next;
			continue;
		}
		*at = packet->next;
		free_packet(packet);
	}
	while ((packet = qp->no_recv)) {
		qp->no_recv = packet->next;
		free_packet(packet);
	}
	while (qp->conns)
		close_conn(qp->conns);
	close(qp->listen_fd);
}
