/*
 * Peers of one host: their messages use shared memory after the shared-memory upgrade, and TCP
 * without it.  Unknown peers here speak the protocol of tcp and know the upgrade.
 */
#include "ct.h"
#include <rdma/fi_ext.h>
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/un.h>

enum { REQUEST = 40, ANSWER = 80, OFFER = 40, HELLO = 56 };

static void tcp_only(void)
{
	if (strcmp(ct_prov, "tcp"))
		SKIP("parameters of tcp");
	ct_needs_memory();
}
/* Mappings of memory that peers share, in this process. */
static int shared(void) { return ct_mappings("/memfd:ofi-local"); }
/* A message each way, so often. */
static void talk(struct ct *c, char *b, size_t n, int rounds)
{
	for (int i = 0; i < rounds; i++)
		for (int from = 0; from < 2; from++) {
			if (ct_rank == from) {
				ct_fill(b, n, i + from);
				POST(c, fi_send(c->ep, b, n, ct_desc(b), c->peer, CTX(0)));
				ct_sent(c, CTX(0));
			} else {
				memset(b, 0, n);
				OK(fi_recv(c->ep, b, n, ct_desc(b), c->peer, CTX(1)));
				ct_recvd(c, CTX(1), n);
				CHECK(ct_same(b, n, i + from));
			}
		}
}
/* Exchanges messages until they use shared memory. */
static void synchronize(struct ct *c, char *b)
{
	int here = 0, there = 0;

	while (!here || !there) {
		talk(c, b, 64, 10);
		here = shared() >= 3;	/* two doors and a pipe */
		ct_swap(c, &here, &there, sizeof here);
	}
}
/* The same with a library that may have no such memory. */
static void upgrade_if_possible(struct ct *c, char *b)
{
	int here = 0, there = 0;

	for (int i = 0; i < 100 && (!here || !there); i++) {
		talk(c, b, 64, 10);
		here = shared() >= 3;
		ct_swap(c, &here, &there, sizeof here);
	}
}
static void matched(int rank)
{
	struct ct c;
	char *b;
	int before, mapped;

	(void)rank;
	tcp_only();
	/* descriptors and mappings held by the library */
	ct_open(&c, NULL);
	ct_done(&c);
	before = ct_descriptors();
	mapped = shared();
	ct_open(&c, NULL);
	b = ct_alloc(&c, 3 << 20);
	synchronize(&c, b);
	for (size_t n = 1; n <= 3 << 20; n = n * 3 + 1)
		talk(&c, b, n, 3);
	ct_barrier(&c);
	ct_close(&c);
	EQ(ct_descriptors(), before);
	EQ(shared(), mapped);
}
/* From here on the system answers a call of this process so (SECCOMP_RET_ERRNO with an error, SECCOMP_RET_KILL_PROCESS). */
static void filter(int call, unsigned answer)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = { .len = sizeof f / sizeof *f, .filter = f };

	OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	/* other threads may be there */
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all))
		SKIP_HERE("no filter of system calls: %s", strerror(errno));
}
static void memory_only(void)
{
	if (strcmp(ct_prov, "tcp") && strcmp(ct_prov, "tcp;ofi_rxm") && strcmp(ct_prov, "shm"))
		SKIP("no memory that peers share");
	ct_needs_memory();
}
/*
 * fi_endpoint(3): "any outstanding operations posted to an endpoint when fi_close is called are discarded".
 * A peer that is stopped while it writes to this process's memory goes on when the memory has been given
 * back. So none does that: here the system ends a process that tries.
 */
static void no_writes(int rank)
{
	enum { W = 4, LEN = 256 << 10 };
	struct ct c;
	char *b;

	memory_only();
	filter(SYS_process_vm_writev, SECCOMP_RET_KILL_PROCESS);
	ct_open(&c, NULL);
	b = ct_alloc(&c, W * LEN);
	upgrade_if_possible(&c, b);
	for (size_t n = 16 << 10; n <= 1 << 20; n *= 2)
		talk(&c, b, n, 20);
	/* several in flight at once; their sender makes progress during the copy */
	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < W; k++)
			if (rank == 0)
				POST(&c, fi_send(c.ep, b + k * LEN, LEN, ct_desc(b), c.peer, CTX(k)));
			else
				OK(fi_recv(c.ep, b + k * LEN, LEN, ct_desc(b), c.peer, CTX(k)));
		for (int k = 0; k < W; k++)
			if (rank == 0)
				ct_sent(&c, CTX(k));
			else
				ct_recvd(&c, CTX(k), LEN);
	}
	ct_done(&c);
}
/* The operation that notices a restriction of the system. */
enum noticed { BY_MESSAGE, BY_WRITE, BY_READ };
static int drops;
static void forbid(int error)
{
	if (!drops) {
		filter(SYS_process_vm_readv, SECCOMP_RET_ERRNO | error);
		return;
	}
	/* as a server that began as root: its memory may not be read from then on, nor others' by it */
	if (setresgid(12345, 12345, 12345) || setresuid(12345, 12345, 12345))
		SKIP_HERE("may not become another user: %s", strerror(errno));
}
/*
 * Peers that read each other's memory may be forbidden to at any time: by a filter of system calls, another
 * user, prctl(PR_SET_DUMPABLE). Operations in flight then continue, and later ones succeed.
 */
static void forbidden_reads(enum noticed noticed)
{
	enum { W = 3, LEN = 1 << 20 };
	struct { uint64_t key, addr; } mine, theirs;
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fid_mr *mr;
	struct ct c;
	char *b, *region;

	memory_only();
	if (noticed == BY_WRITE)
		o.tx_op_flags = FI_DELIVERY_COMPLETE;
	ct_open(&c, &o);
	b = ct_alloc(&c, W * LEN);
	region = ct_alloc(&c, W * LEN);
	OK(fi_mr_reg(c.domain, region, W * LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 100, 0, &mr, NULL));
	mine.key = fi_mr_key(mr);
	mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)region : 0;
	ct_swap(&c, &mine, &theirs, sizeof mine);
	upgrade_if_possible(&c, b);
	talk(&c, b, LEN, 3);
	for (int round = 0; round < 3; round++) {
		ct_barrier(&c);
		ct_fill(noticed == BY_READ ? region : b, W * LEN, round + ct_rank);
		for (int k = 0; k < W && noticed == BY_MESSAGE; k++)
			POST(&c, fi_send(c.ep, b + k * LEN, LEN, ct_desc(b), c.peer, CTX(k)));
		ct_barrier(&c);
		for (int k = 0; k < W && noticed != BY_MESSAGE; k++)
			if (noticed == BY_WRITE)
				POST(&c, fi_write(c.ep, b + k * LEN, LEN, ct_desc(b), c.peer, theirs.addr + k * LEN, theirs.key, CTX(k)));
			else
				POST(&c, fi_read(c.ep, b + k * LEN, LEN, ct_desc(b), c.peer, theirs.addr + k * LEN, theirs.key, CTX(k)));
		if (round == 1 && (drops || ct_rank == 0))
			forbid(EPERM);
		if (round == 2 && !drops && ct_rank == 1)
			forbid(ENOSYS);
		for (int k = 0; k < W && noticed == BY_MESSAGE; k++)
			OK(fi_recv(c.ep, region + k * LEN, LEN, ct_desc(region), c.peer, CTX(W + k)));
		for (int left = noticed == BY_MESSAGE ? 2 * W : W; left;) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry err = { 0 };
			struct fid_cq *all[2] = { c.tx, c.rx };

			for (int q = 0; q < 2 - (c.tx == c.rx); q++) {
				ssize_t n = fi_cq_read(all[q], &e, 1);

				if (n == -FI_EAVAIL && fi_cq_readerr(all[q], &err, 0) == 1)
					FAIL("round %d: %s", round, fi_strerror(err.err));
				left -= n == 1;
			}
		}
		ct_barrier(&c);
		if (!ct_same(noticed == BY_READ ? b : region, W * LEN, round + !ct_rank))
			FAIL("round %d: other bytes", round);
	}
	talk(&c, b, LEN, 3);
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
static void forbidden_messages(int rank) { (void)rank; forbidden_reads(BY_MESSAGE); }
static void forbidden_writes(int rank) { (void)rank; forbidden_reads(BY_WRITE); }
static void forbidden_answers(int rank) { (void)rank; forbidden_reads(BY_READ); }
static void another_user(int rank) { (void)rank; drops = 1; forbidden_reads(BY_MESSAGE); }
/* Small and large messages, none of them through memory that both share. */
static void stay_on_sockets(void)
{
	struct ct c;
	char *b;

	ct_open(&c, NULL);
	b = ct_alloc(&c, 1 << 20);
	talk(&c, b, 64, 200);
	talk(&c, b, 1 << 20, 3);
	CHECK(shared() == 0);
	ct_done(&c);
}
/*
 * Memory without a name is a file to the system. setrlimit(2): a program that tries to extend a file beyond
 * RLIMIT_FSIZE is sent SIGXFSZ, which ends it.
 */
static void no_files(int rank)
{
	struct rlimit none = { 0, 0 };

	(void)rank;
	memory_only();
	if (getenv("FI_HOOK"))
		SKIP_HERE("hooks write to files as well");
	OK(setrlimit(RLIMIT_FSIZE, &none));
	stay_on_sockets();
}
static void not_wanted(int rank)
{
	tcp_only();
	/* by one of them */
	if (rank)
		setenv("FI_TCP_LOCAL", "0", 1);
	stay_on_sockets();
}
static struct fi_peer_links links(struct ct *c)
{
	struct fi_peer_links links;
	size_t n = sizeof links;

	OK(fi_getopt(&c->ep->fid, FI_OPT_ENDPOINT, FI_OPT_PEER_LINKS, &links, &n));
	EQ(n, sizeof links);
	return links;
}
/* Also over providers based on tcp. */
static void notified(int forbidden)
{
	struct ct c;
	struct fi_peer_links now;
	char *b, permitted = 7;
	size_t n = 1;
	int here = 0, there = 0;

	if (strncmp(ct_prov, "tcp", 3))
		SKIP("parameters of tcp");
	ct_needs_memory();
	ct_open(&c, NULL);
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &permitted, &n));
	EQ(permitted, 1);
	EQ(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_PEER_LINKS, &now, sizeof now), -FI_ENOPROTOOPT);
	EQ(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &now, sizeof now), -FI_EINVAL);
	if (forbidden && ct_rank) {
		permitted = 0;
		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &permitted, sizeof permitted));
		permitted = 7;
		OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &permitted, &n));
		EQ(permitted, 0);
	}
	b = ct_alloc(&c, 64);
	ct_barrier(&c);		/* no connection before */
	for (int i = 0; forbidden ? i < 100 : !here || !there; i++) {
		talk(&c, b, 64, 10);
		now = links(&c);
		EQ(now.network + now.memory, 1);
		here = now.memory == 1;
		if (forbidden)
			EQ(here, 0);
		else
			ct_swap(&c, &here, &there, sizeof here);
	}
	ct_done(&c);
}
static void links_notified(int rank) { (void)rank; notified(0); }
static void forbidden(int rank) { (void)rank; notified(1); }
/* A caller that finds each completion at once makes no other call, and gets the shared-memory upgrade all the same. */
static void only_sends(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .progress = FI_PROGRESS_MANUAL };
	enum { COMBINED = 8, MOST = 4000, WAYS = 3 };
	static const struct { size_t len; int inject; } ways[WAYS] = { { 64, 0 }, { 64, 1 }, { 5000, 0 } };

	if (strcmp(ct_prov, "tcp") && strcmp(ct_prov, "tcp;ofi_rxm") && strcmp(ct_prov, "shm"))
		SKIP("no memory that peers share");
	ct_needs_memory();
	for (int sender = 0; sender < 2; sender++)
		for (int way = 0; way < WAYS; way++) {
			const size_t len = ways[way].len;
			struct ct c;
			char *b, end = 0;
			int sent = 0;

			ct_open(&c, &o);
			b = ct_alloc(&c, len);
			talk(&c, b, len, 1);
			ct_barrier(&c);
			while (!end) {
				if (rank != sender) {
					for (int i = 0; i < COMBINED; i++) {
						OK(fi_recv(c.ep, b, len, ct_desc(b), c.peer, CTX(1)));
						if (!i)
							ct_send_oob("r", 1);
						ct_recvd(&c, CTX(1), len);
					}
					ct_send_oob("g", 1);
					ct_recv_oob(NULL, &end, 1);
					continue;
				}
				ct_recv_oob(NULL, &end, 1);
				for (int i = 0; i < COMBINED; i++, sent++) {
					struct fi_cq_tagged_entry e;

					if (ways[way].inject) {
						OK(fi_inject(c.ep, b, len, c.peer));
						continue;
					}
					OK(fi_send(c.ep, b, len, ct_desc(b), c.peer, CTX(0)));
					EQ(fi_cq_read(c.tx, &e, 1), 1);
				}
				ct_recv_oob(NULL, &end, 1);
				end = shared() >= 3;	/* two doors and a pipe */
				if (!end && sent >= MOST)
					FAIL("%d messages of %zu bytes, and none through memory", sent, len);
				ct_send_oob(&end, 1);
			}
			ct_done(&c);
		}
}
/* Large messages both ways, received late, through this much memory. */
static void sizes(const char *ring, const char *cma)
{
	static const size_t all[] = { 0, 1, 1000, 4095, 4096, 40000, 49151, 49152, 70000, 1 << 20, 3 << 20, 5 };
	enum { N = sizeof all / sizeof *all };
	char *in[N], *out[N];
	struct ct c;

	tcp_only();
	setenv("FI_TCP_LOCAL_RING", ring, 1);
	setenv("FI_TCP_LOCAL_CMA", cma, 1);
	ct_open(&c, NULL);
	for (int i = 0; i < N; i++) {
		in[i] = ct_alloc(&c, all[i] + 1);
		out[i] = ct_alloc(&c, all[i] + 1);
		ct_fill(out[i], all[i], 20 * ct_rank + i);
	}
	synchronize(&c, ct_alloc(&c, 64));
	for (int round = 0; round < ct_fewer(20); round++) {
		for (int i = 0; i < N; i++) {
			memset(in[i], 0, all[i]);
			if (round % 2)
				OK(fi_recv(c.ep, in[i], all[i], ct_desc(in[i]), c.peer, CTX(i)));
		}
		if (round % 4 == 1)
			ct_barrier(&c);
		for (int i = 0; i < N; i++)
			POST(&c, fi_send(c.ep, out[i], all[i], ct_desc(out[i]), c.peer, CTX(N + i)));
		for (int i = 0; i < N && round % 2 == 0; i++)
			OK(fi_recv(c.ep, in[i], all[i], ct_desc(in[i]), c.peer, CTX(i)));
		for (int got = 0, sent = 0; got + sent < 2 * N;) {
			struct fi_cq_tagged_entry e;
			int i;

			if (c.tx != c.rx && sent < N && fi_cq_read(c.tx, &e, 1) == 1)
				EQ((struct fi_context2 *)e.op_context - ct_ctx, N + sent++);
			if (fi_cq_read(c.rx, &e, 1) != 1)
				continue;
			i = (struct fi_context2 *)e.op_context - ct_ctx;
			if (i >= N) {
				EQ(i, N + sent++);
				continue;
			}
			EQ(i, got++);
			EQ(e.len, all[i]);
			CHECK(ct_same(in[i], all[i], 20 * !ct_rank + i));
		}
	}
	ct_done(&c);
}
static void usual(int rank) { (void)rank; sizes("65536", "1"); }
static void tiny(int rank) { (void)rank; sizes("4096", "1"); }
static void copied(int rank) { (void)rank; sizes("65536", "0"); }
static void tiny_copied(int rank) { (void)rank; sizes("1", "0"); }

/* Injected messages are complete at once: those for which there was no room leave when the endpoint is closed. */
static void injected_and_closed(int rank)
{
	enum { N = 300, LEN = 64 };
	struct ct c;
	char *b;

	tcp_only();
	setenv("FI_TCP_LOCAL_RING", "4096", 1);
	setenv("FI_TCP_TX_SIZE", "1024", 1);
	ct_open(&c, NULL);
	b = ct_alloc(&c, N * LEN);
	synchronize(&c, b);
	for (int i = 0; i < N && rank == 1; i++)
		OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
	ct_barrier(&c);
	if (rank == 0) {
		for (int i = 0; i < N; i++) {
			char m[LEN];
			ssize_t r;

			ct_fill(m, LEN, i);
			r = fi_inject(c.ep, m, LEN, c.peer);
			CHECK(r == 0);
		}
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		ct_send_oob("c", 1);
		ct_recv_oob(NULL, b, 1);
	} else {
		char x;

		/* without looking meanwhile */
		CHECK(recv(ct_sync, &x, 1, 0) == 1);
		for (int i = 0; i < N; i++) {
			ct_recvd(&c, CTX(i), LEN);
			CHECK(ct_same(b + i * LEN, LEN, i));
		}
		ct_send_oob("r", 1);
	}
	ct_close(&c);
}

/*
 * Rank 1's child is killed, at any moment from before the shared-memory upgrade to the middle of a
 * message; each operation of its peer in flight ends, and the peer holds no more resources than before.
 */
static void killed(int rank)
{
	enum { ROUNDS = 40, W = 4, BIG = 300000 };
	struct ct c, base;
	static char in[W][BIG], out[W][BIG];
	int before = 0, mapped = 0, waiting = 0;

	tcp_only();
	if (rank == 1)
		return;
	memset(&base, 0, sizeof base);
	base.o.one_cq = 1;
	ct_open_rdm(&base, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		struct ct_name mine, theirs;
		int open = 0, p[2], died = 0;
		int64_t until;
		fi_addr_t to;
		pid_t child;

		mine = ct_getname(&base.ep->fid);
		CHECK(!pipe(p));
		child = fork();
		if (!child) {
			struct fi_cq_tagged_entry e;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(p[0]);
			memset(&c, 0, sizeof c);
			c.o.one_cq = 1;
			theirs = ct_open_rdm(&c, NULL);
			c.peer = ct_insert(&c, &mine);
			CHECK(write(p[1], &theirs, sizeof theirs) == sizeof theirs);
			for (int i = 0;; i++) {
				size_t n = i % 5 ? 64 : BIG;

				if (i < W || i % 3 == 0)
					(void)fi_recv(c.ep, in[i % W], BIG, NULL, FI_ADDR_UNSPEC, CTX(i % W));
				(void)fi_send(c.ep, out[i % W], n, NULL, c.peer, CTX(W));
				while (fi_cq_read(c.rx, &e, 1) == 1)
					;
			}
		}
		close(p[1]);
		CHECK(read(p[0], &theirs, sizeof theirs) == sizeof theirs);
		close(p[0]);
		to = ct_insert(&base, &theirs);
		until = ct_ms() + round % 20;
		while (open || !died) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry err = { 0 };

			/* the first one completes the upgrade, for which the domain holds resources of its own */
			if (!died && (round ? ct_ms() >= until : links(&base).memory > 0)) {
				EQ(kill(child, SIGKILL), 0);
				died = 1;
			}
			for (int i = 0; i < W && !died; i++)
				if (!(open & 1 << i) && !fi_recv(base.ep, in[i], BIG, NULL, to, CTX(i)))
					open |= 1 << i;
			for (int i = 0; i < W && !died; i++)
				if (!(open & 1 << (W + i)) && !fi_send(base.ep, out[i], i % 2 ? BIG : 64, NULL, to, CTX(W + i)))
					open |= 1 << (W + i);
			/* receives from a peer that has gone wait for its successor */
			if (died)
				for (int i = 0; i < W; i++)
					if (open & 1 << i)
						(void)fi_cancel(&base.ep->fid, CTX(i));
			switch (fi_cq_read(base.rx, &e, 1)) {
			case 1:
				open &= ~(1 << ((struct fi_context2 *)e.op_context - ct_ctx));
				break;
			case -FI_EAVAIL:
				EQ(fi_cq_readerr(base.rx, &err, 0), 1);
				open &= ~(1 << ((struct fi_context2 *)err.op_context - ct_ctx));
			}
		}
		CHECK(waitpid(child, NULL, 0) == child);
		OK(fi_av_remove(base.av, &to, 1, 0));
		/* with the domain's own resources after the first upgrade */
		if (round < ROUNDS / 2) {
			before = ct_descriptors() > before ? ct_descriptors() : before;
			mapped = shared() > mapped ? shared() : mapped;
		}
	}
	/* resources of the connections end with them, after the messages sent by peers before their death are received */
	for (int64_t end = ct_ms() + 60000; (ct_descriptors() > before || shared() > mapped) && ct_ms() < end;) {
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = { 0 };
		ssize_t r;

		for (int i = 0; i < W; i++)
			if (!(waiting & 1 << i) && !fi_recv(base.ep, in[i], BIG, NULL, FI_ADDR_UNSPEC, CTX(i)))
				waiting |= 1 << i;
		while ((r = fi_cq_read(base.rx, &e, 1)) != -FI_EAGAIN) {
			if (r == -FI_EAVAIL)
				EQ(fi_cq_readerr(base.rx, &err, 0), 1);
			waiting &= ~(1 << ((struct fi_context2 *)(r == 1 ? e.op_context : err.op_context) - ct_ctx));
		}
	}
	CHECK(ct_descriptors() <= before);
	CHECK(shared() <= mapped);
	ct_close(&base);
}

/* Where a peer is when it is killed. */
enum phase { CALLED, RECEIVES, SENDS, HALF_READ, PHASES };

/* A peer that reaches a phase, reports it, and stops. */
static void __attribute__((noreturn)) halting(enum phase phase, const struct ct_name *to, int tell)
{
	static char small[64];
	enum { BIG = 3 << 20 };
	struct ct c;
	struct ct_name mine;
	char *big;
	int halt = phase == CALLED;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	memset(&c, 0, sizeof c);
	c.o.one_cq = 1;
	c.o.progress = FI_PROGRESS_MANUAL;
	c.o.caps = FI_TAGGED;
	mine = ct_open_rdm(&c, NULL);
	c.peer = ct_insert(&c, to);
	big = ct_alloc(&c, BIG);
	CHECK(write(tell, &mine, sizeof mine) == sizeof mine);
	for (int i = 0; !halt; i++) {
		struct fi_cq_tagged_entry e;

		if (phase == RECEIVES) {
			OK(fi_trecv(c.ep, small, sizeof small, ct_desc(small), FI_ADDR_UNSPEC, 1, 0, CTX(0)));
			ct_next(&c, c.rx, &e, NULL, NULL);
			/* the last notification is the end */
			halt = small[0] == 'x';
		} else {
			POST(&c, fi_tsend(c.ep, small, sizeof small, ct_desc(small), c.peer, 1, CTX(1)));
			ct_next(&c, c.rx, &e, NULL, NULL);
			ct_progress(&c);
			halt = i > 50 && shared() >= 3;
		}
	}
	if (phase == SENDS || phase == HALF_READ) {
		char go;

		CHECK(write(tell, "s", 1) == 1);
		/* the large message must not come before the other has stopped to look */
		CHECK(read(tell, &go, 1) == 1);
		POST(&c, fi_tsend(c.ep, big, BIG, ct_desc(big), c.peer, 2, CTX(2)));
	}
	CHECK(write(tell, "h", 1) == 1);
	for (;;)
		pause();
}
static void killed_in(const char *cma)
{
	enum { BIG = 3 << 20 };
	struct ct c;
	static char small[64];
	int before = 0, mapped = 0;
	char *big;

	tcp_only();
	setenv("FI_TCP_LOCAL_CMA", cma, 1);
	memset(&c, 0, sizeof c);
	c.o.one_cq = 1;
	c.o.progress = FI_PROGRESS_MANUAL;
	c.o.caps = FI_TAGGED;
	ct_open_rdm(&c, NULL);
	big = ct_alloc(&c, BIG);
	for (int round = 0; round < 3 * PHASES; round++) {
		struct ct_name mine = ct_getname(&c.ep->fid), theirs;
		enum phase phase = round % PHASES;
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err = { 0 };
		int p[2], got = 1;
		fi_addr_t to;
		pid_t child;
		char x;

		snprintf(ct_prefix, sizeof ct_prefix, "phase %d: ", phase);
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
		child = fork();
		if (!child)
			halting(phase, &mine, p[1]);
		close(p[1]);
		CHECK(read(p[0], &theirs, sizeof theirs) == sizeof theirs);
		to = ct_insert(&c, &theirs);
		/* until it has stopped, or is about to with a message under way */
		CHECK(!fcntl(p[0], F_SETFL, O_NONBLOCK));
		for (int i = 0; read(p[0], &x, 1) != 1; i++) {
			if (phase == RECEIVES && small[0] != 'x') {
				small[0] = i > 50 && shared() >= 3 ? 'x' : 'm';
				POST(&c, fi_tsend(c.ep, small, sizeof small, ct_desc(small), to, 1, CTX(0)));
				ct_next(&c, c.rx, &e, NULL, NULL);
				ct_progress(&c);
			} else if (phase == SENDS || phase == HALF_READ) {
				if (got)
					OK(fi_trecv(c.ep, small, sizeof small, ct_desc(small), FI_ADDR_UNSPEC, 1, 0, CTX(1)));
				got = fi_cq_read(c.rx, &e, 1) == 1;
			} else {
				ct_progress(&c);
			}
		}
		small[0] = 0;
		if (x == 's') {
			(void)fi_cancel(&c.ep->fid, CTX(1));
			if (!got && fi_cq_readerr(c.rx, &err, 0) != 1)
				EQ(fi_cq_read(c.rx, &e, 1), 1);
			CHECK(!fcntl(p[0], F_SETFL, 0));
			CHECK(write(p[0], "g", 1) == 1);
			EQ(read(p[0], &x, 1), 1);
		}
		close(p[0]);
		switch (phase) {
		case CALLED:
		case RECEIVES:
			POST(&c, fi_tsend(c.ep, big, BIG, ct_desc(big), to, 2, CTX(3)));
			break;
		default:
			OK(fi_trecv(c.ep, big, BIG, ct_desc(big), FI_ADDR_UNSPEC, 2, 0, CTX(3)));
			if (phase == HALF_READ && *cma == '0')
				for (int i = 0; i < 20; i++)
					ct_progress(&c);
		}
		if (phase == CALLED || phase == RECEIVES) {
			for (int i = 0; i < 100; i++)
				ct_progress(&c);
			ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
		}
		EQ(kill(child, SIGKILL), 0);
		CHECK(waitpid(child, NULL, 0) == child);
		memset(&err, 0, sizeof err);
		EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(3));
		OK(fi_av_remove(c.av, &to, 1, 0));
		if (round < PHASES && ct_descriptors() > before)
			before = ct_descriptors();
		if (round < PHASES && shared() > mapped)
			mapped = shared();
	}
	while (ct_descriptors() > before || shared() > mapped)	/* for ever is caught by the watchdog */
		ct_progress(&c);
	ct_close(&c);
}
static void killed_exposing(int rank)
{
	(void)rank;
	killed_in("1");
}
static void killed_copying(int rank)
{
	(void)rank;
	killed_in("0");
}

/* An unknown peer that knows the shared-memory upgrade. */
static int connection(const struct ct_name *to)
{
	struct sockaddr_in a;
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	ct_ip_only();
	memcpy(&a, to->b, sizeof a);
	CHECK(s >= 0);
	CHECK(!connect(s, (void *)&a, sizeof a));
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return s;
}
static size_t take(struct ct *c, int s, void *to, size_t n)
{
	size_t got = 0;

	while (got < n) {
		ssize_t r = recv(s, (char *)to + got, n - got, MSG_DONTWAIT);

		if (r == 0 || (r < 0 && errno != EAGAIN))
			return got;
		got += r > 0 ? r : 0;
		ct_progress(c);
	}
	return got;
}
/* Connects as the process listening at that port, and gets an offer. */
static int unknown_peer(struct ct *c, const struct ct_name *to, int port, unsigned char *offer)
{
	unsigned char b[ANSWER] = { 3, 0, 0, 8 };
	int s = connection(to);

	memcpy(b + 16, "ofi-rs?\x11", 8);
	b[24] = 1;
	b[32] = 1;
	b[34] = port >> 8;
	b[35] = port;
	b[39] = 9;
	EQ(send(s, b, REQUEST, MSG_NOSIGNAL), REQUEST);
	EQ(take(c, s, b, ANSWER), ANSWER);
	EQ(b[1], 1);
	EQ(b[3], 8 + OFFER);
	CHECK(!memcmp(b + 16, "ofi-rs!", 7) && b[23] & 16);
	memcpy(offer, b + 40, OFFER);
	return s;
}
/* Goes to the place of an offer. */
static int upgrade(const unsigned char *offer)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), n = 0;

	CHECK(s >= 0);
	n += sprintf(a.sun_path + 1, "ofi-local/");
	for (int i = 0; i < 16; i++)
		n += sprintf(a.sun_path + 1 + n, "%02x", offer[i]);
	CHECK(!connect(s, (void *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + n));
	return s;
}
static void greet(int s, const unsigned char *offer, int nfd, const int *fd)
{
	unsigned char b[HELLO] = "ofimeet1";
	union { char b[CMSG_SPACE(8 * sizeof *fd)]; struct cmsghdr h; } u = { 0 };
	struct iovec v = { b, sizeof b };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };

	memcpy(b + 8, offer + 16, 24);
	if (nfd) {
		m.msg_control = &u;
		m.msg_controllen = CMSG_SPACE(nfd * sizeof *fd);
		u.h.cmsg_level = SOL_SOCKET;
		u.h.cmsg_type = SCM_RIGHTS;
		u.h.cmsg_len = CMSG_LEN(nfd * sizeof *fd);
		memcpy(CMSG_DATA(&u.h), fd, nfd * sizeof *fd);
	}
	EQ(sendmsg(s, &m, MSG_NOSIGNAL), HELLO);
}
/* A message of an unknown peer over TCP, and one back. */
static void exchange(struct ct *c, int s, char *b, fi_addr_t to)
{
	unsigned char f[24] = { 3, 0, 0, 0, 0, 0, 16, 0, 24 }, g[24];

	memset(f + 16, 7, 8);
	OK(fi_recv(c->ep, b, 8, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
	EQ(send(s, f, sizeof f, MSG_NOSIGNAL), sizeof f);
	ct_recvd(c, CTX(1), 8);
	CHECK(b[0] == 7 && b[7] == 7);
	POST(c, fi_send(c->ep, b, 8, ct_desc(b), to, CTX(2)));
	ct_sent(c, CTX(2));
	EQ(take(c, s, g, sizeof g), sizeof g);
	CHECK(!memcmp(g + 16, f + 16, 8));
}
/* An honest pair of endpoints, concurrent with unknown peers. */
struct honest { struct ct c; char *b; };
static void honest_talk(struct ct *c, struct honest *h)
{
	for (int i = 0; i < 20; i++) {
		OK(fi_trecv(h->c.ep, h->b, 64, ct_desc(h->b), FI_ADDR_UNSPEC, 5, 0, CTX(3)));
		POST(c, fi_tsend(c->ep, h->b + 64, 64, ct_desc(h->b), h->c.peer, 5, CTX(4)));
		for (int got = 0; got < 2;) {
			struct fi_cq_tagged_entry e;

			got += fi_cq_read(h->c.rx, &e, 1) == 1;
			if (h->c.rx != c->tx)
				got += fi_cq_read(c->tx, &e, 1) == 1;
		}
	}
}
static void unknown_peers(int rank)
{
	enum { N = 12 };
	struct ct c;
	struct honest h;
	struct ct_name at, other;
	unsigned char offer[N][OFFER];
	int s[N], upgrades[200], before, null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int many[8] = { null, null, null, null, null, null, null, null };
	fi_addr_t to[N];
	char *b;

	(void)rank;
	tcp_only();
	memset(&c, 0, sizeof c);
	memset(&h, 0, sizeof h);
	c.o.caps = h.c.o.caps = FI_MSG | FI_TAGGED;
	at = ct_open_rdm(&c, NULL);
	other = ct_open_rdm(&h.c, NULL);
	h.c.peer = ct_insert(&c, &other);
	h.b = ct_alloc(&h.c, 128);
	b = ct_alloc(&c, 64);
	/* both ends are in this process: its doorbell and the peer's, and a pipe, twice */
	while (shared() < 6)
		honest_talk(&c, &h);
	for (int i = 0; i < N; i++) {
		struct ct_name name = at;

		((struct sockaddr_in *)name.b)->sin_port = htons(1000 + i);
		to[i] = ct_insert(&c, &name);
		s[i] = unknown_peer(&c, &at, 1000 + i, offer[i]);
	}
	before = ct_descriptors();
	/* silent peers; and data other than a HELLO, or with wrong descriptors */
	for (int i = 0; i < 200; i++)
		upgrades[i] = upgrade(offer[0]);
	for (int i = 0; i < N; i++) {
		static const char wrong[] = "GET / HTTP/1.1\r\n";
		unsigned char bad[OFFER];
		int v = upgrade(offer[i]);
		char x;

		memcpy(bad, offer[i], OFFER);
		switch (i % 6) {
		case 0:
			EQ(send(v, wrong, sizeof wrong, MSG_NOSIGNAL), (ssize_t)sizeof wrong);
			break;
		case 1:
			bad[24] ^= 1;
			greet(v, bad, 3, many);
			break;
		case 2:
			bad[16] ^= 64;
			greet(v, bad, 3, many);
			break;
		case 3:
			greet(v, bad, 0, NULL);
			break;
		case 4:
			greet(v, bad, 8, many);
			break;
		default:
			greet(v, bad, 3, many);
		}
		EQ(take(&c, v, &x, 1), 0);
		close(v);
		if (i % 6 == 5) {
			/* a cookie is good for one meeting, whatever came of it */
			v = upgrade(offer[i]);
			greet(v, bad, 3, many);
			EQ(take(&c, v, &x, 1), 0);
			close(v);
		}
		exchange(&c, s[i], b, to[i]);
		honest_talk(&c, &h);
	}
	for (int i = 0; i < 200; i++)
		close(upgrades[i]);
	for (int i = 0; i < N; i++)
		exchange(&c, s[i], b, to[i]);
	while (ct_descriptors() > before)	/* for ever is caught by the watchdog */
		ct_progress(&c);
	for (int i = 0; i < N; i++)
		close(s[i]);
	honest_talk(&c, &h);
	close(null);
	OK(fi_close(&h.c.ep->fid));
	h.c.ep = NULL;
	ct_close(&c);
	ct_close(&h.c);
}

/*
 * Closing a socket closes descriptors in its queue as well, and closing these may wait for a time chosen by
 * their sender.  Neither calls nor fi_close wait for that.
 */
static void lingering(int rank)
{
	enum { N = 4 };
	struct ct c;
	struct ct_name at, name;
	unsigned char offer[N][OFFER], hello[HELLO] = "ofimeet1";
	int s[N], v[2 * N], rest[2 * N];
	fi_addr_t to;
	char *b;

	(void)rank;
	tcp_only();
	/* else a thread of the library may be through with a descriptor before it is closed here, which waits then */
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	memset(&c, 0, sizeof c);
	at = ct_open_rdm(&c, NULL);
	b = ct_alloc(&c, 64);
	for (int i = 0; i < N; i++) {
		name = at;
		((struct sockaddr_in *)name.b)->sin_port = htons(1000 + i);
		to = ct_insert(&c, &name);
		s[i] = unknown_peer(&c, &at, 1000 + i, offer[i]);
		/* with the requested cookie, and without */
		memcpy(hello + 8, offer[i] + 16, 24);
		hello[16] ^= i % 2;
		v[i] = upgrade(offer[i]);
		if (ct_send_lingering(v[i], i == 3 ? "?" : (char *)hello, i == 3 ? 1 : HELLO, &rest[i]))
			SKIP_HERE("no descriptors may be sent: %s", strerror(errno));
		ct_idle(&c, 10);
		exchange(&c, s[i], b, to);
	}
	/* and pending connections */
	for (int i = N; i < 2 * N; i++) {
		v[i] = upgrade(offer[0]);
		OK(ct_send_lingering(v[i], "?", 1, &rest[i]));
	}
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	for (int i = 0; i < 2 * N; i++) {
		close(rest[i]);
		close(v[i]);
	}
	for (int i = 0; i < N; i++)
		close(s[i]);
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "peers of one host use shared memory and leave none behind", matched, CT_REL },
	{ "an endpoint reports the number of its shared-memory peers", links_notified, CT_REL },
	{ "an endpoint with only sends and immediate completions is upgraded to shared memory", only_sends, CT_REL },
	{ "FI_OPT_SHARED_MEMORY_PERMITTED keeps the peers of an endpoint on TCP", forbidden, CT_RDM | CT_REL },
	{ "no peer writes to the memory of another process", no_writes, CT_REL },
	{ "large messages continue after the receiver loses access to its peer's memory", forbidden_messages, CT_REL },
	{ "large writes continue after the target loses access to its peer's memory", forbidden_writes, CT_REL },
	{ "large reads continue after the initiator loses access to its peer's memory", forbidden_answers, CT_REL },
	{ "large messages continue after the processes change to another user", another_user, CT_REL },
	{ "a process unable to create files communicates through sockets", no_files, CT_REL },
	{ "peers stay on TCP if one of them requires it", not_wanted, CT_REL },
	{ "messages of every size arrive in order in both directions", usual, CT_REL },
	{ "messages of every size pass through rings of one page", tiny, CT_REL },
	{ "messages of every size arrive without access to peer memory", copied, CT_REL },
	{ "messages of every size pass through one-page rings without access to peer memory", tiny_copied, CT_REL },
	{ "injected messages are sent though the ring is full at the close of the endpoint", injected_and_closed, CT_REL },
	{ "a peer may be killed before, during or after the shared-memory upgrade", killed, CT_RDM | CT_REL },
	{ "a killed peer leaves an error entry in each phase, with or without exposed buffers", killed_exposing, CT_RDM | CT_REL | CT_SOLO },
	{ "a killed peer leaves an error entry in each phase of copied large messages", killed_copying, CT_RDM | CT_REL | CT_SOLO },
	{ "descriptors with a blocking close, from any process, block no call", lingering, CT_RDM | CT_REL | CT_SOLO | CT_BARE },
	{ "an intruder in the shared-memory handshake affects no peer", unknown_peers, CT_RDM | CT_REL | CT_SOLO | CT_BARE },
};
CT_MAIN("local", tests)
