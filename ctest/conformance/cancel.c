/* pthread_cancel of threads that are in a call: they end, and nothing else does. */
#include "ct.h"
#include <rdma/fi_errno.h>

static struct ct C;
static struct fid_wait *set;
static struct fid_cq *in_set;

/* AddressSanitizer marks the frames of a stack, and does not see that they are unwound. */
void __asan_handle_no_return(void) __attribute__((weak));
static void unwound(void *a)
{
	(void)a;
	if (__asan_handle_no_return)
		__asan_handle_no_return();
}
#define FOR_EVER(call) pthread_cleanup_push(unwound, NULL); for (;;) (void)(call); pthread_cleanup_pop(0)

/* Each is in the call for ever, or calls it again and again. */
static void *in_cq_sread(void *a) { struct fi_cq_tagged_entry e; FOR_EVER(fi_cq_sread(C.rx, &e, 1, NULL, -1)); return a; }
static void *in_cq_sreadfrom(void *a) { struct fi_cq_tagged_entry e; fi_addr_t f; FOR_EVER(fi_cq_sreadfrom(C.rx, &e, 1, &f, NULL, -1)); return a; }
static void *in_eq_sread(void *a) { uint32_t ev; char b[256]; FOR_EVER(fi_eq_sread(C.eq, &ev, b, sizeof b, -1, 0)); return a; }
static void *in_cntr_wait(void *a) { FOR_EVER(fi_cntr_wait(C.rxc, 1000000, -1)); return a; }
static void *in_wait(void *a) { FOR_EVER(fi_wait(set, -1)); return a; }
static void *in_cq_read(void *a) { struct fi_cq_tagged_entry e; FOR_EVER(fi_cq_read(C.tx, &e, 1)); return a; }
static void *in_eq_read(void *a) { uint32_t ev; char b[256]; FOR_EVER(fi_eq_read(C.eq, &ev, b, sizeof b, 0)); return a; }
static void *in_cntr_read(void *a) { FOR_EVER(fi_cntr_read(C.txc)); return a; }

static const struct { const char *name; void *(*run)(void *); } calls[] = {
	{ "fi_cq_sread", in_cq_sread }, { "fi_cq_sreadfrom", in_cq_sreadfrom }, { "fi_eq_sread", in_eq_sread },
	{ "fi_cntr_wait", in_cntr_wait }, { "fi_wait", in_wait }, { "fi_cq_read", in_cq_read },
	{ "fi_eq_read", in_eq_read }, { "fi_cntr_read", in_cntr_read },
};

static void open_all(void)
{
	struct ct_opt o = { .caps = FI_TAGGED, .wait = FI_WAIT_UNSPEC, .cntr = 1, .threading = FI_THREAD_SAFE };
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_SET };

	if (getenv("FI_HOOK"))
		SKIP_HERE("through hooks a thread is cancelled at the end of the call");
	ct_open(&C, &o);
	if (!C.eq)
		ct_open_eq(&C);
	OK(fi_wait_open(C.fabric, &wa, &set));
	ca.wait_set = set;
	OK(fi_cq_open(C.domain, &ca, &in_set, NULL));
}
static void close_all(void)
{
	OK(fi_close(&in_set->fid));
	OK(fi_close(&set->fid));
	ct_done(&C);
}
/* A message of eight bytes from this rank to the other, or back; the receiver sleeps. */
static void message(int from, int rank, uint64_t tag)
{
	static char *b;

	if (!b)
		b = ct_alloc(&C, 64);
	if (rank == from) {
		POST(&C, fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, tag, CTX(1)));
		ct_sent(&C, CTX(1));
	} else {
		struct fi_cq_tagged_entry e;
		ssize_t r;

		POST(&C, fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, tag, 0, CTX(2)));
		while ((r = fi_cq_sread(C.rx, &e, 1, NULL, 1000)) == -FI_EAGAIN || r == -FI_EINTR)
			ct_progress(&C);
		EQ(r, 1);
		EQ(e.tag, tag);
	}
}
static void end(pthread_t t, const char *name)
{
	void *answer;

	OK(pthread_cancel(t));
	OK(pthread_join(t, &answer));
	if (answer != PTHREAD_CANCELED)
		FAIL("the thread in %s is not cancelled", name);
}

static void each_call(int rank)
{
	open_all();
	message(0, rank, 1);
	message(1, rank, 2);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		pthread_t t;

		if (rank == 0) {
			OK(pthread_create(&t, NULL, calls[i].run, NULL));
			ct_nap(30);
			end(t, calls[i].name);
		}
		ct_barrier(&C);
		message(1, rank, 10 + i);
		message(0, rank, 50 + i);
	}
	close_all();
}

static int got;
static void *takes_one(void *a)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;

	pthread_cleanup_push(unwound, NULL);
	while ((r = fi_cq_sread(C.rx, &e, 1, NULL, -1)) == -FI_EAGAIN)
		;
	pthread_cleanup_pop(0);
	EQ(r, 1);
	__atomic_fetch_add(&got, 1, __ATOMIC_SEQ_CST);
	return a;
}
/* Several threads sleep on one queue; the one that is cancelled was the first, or a later one. */
static void one_of_several(int rank)
{
	open_all();
	for (int round = 0; round < 9; round++) {
		char *b = ct_alloc(&C, 64);
		pthread_t t[3];

		if (rank == 0) {
			got = 0;
			for (int i = 0; i < 3; i++) {
				POST(&C, fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, 1, 0, CTX(i)));
				OK(pthread_create(&t[i], NULL, takes_one, NULL));
				ct_nap(10);
			}
			end(t[round % 3], "fi_cq_sread");
		}
		ct_barrier(NULL);
		if (rank == 1) {
			for (int i = 0; i < 2; i++) {
				POST(&C, fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, 1, CTX(i)));
				ct_sent(&C, CTX(i));
			}
		} else {
			for (int i = 0; i < 3; i++)
				if (i != round % 3)
					OK(pthread_join(t[i], NULL));
			EQ(got, 2);
		}
		ct_barrier(&C);
		if (rank == 1) {
			POST(&C, fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, 1, CTX(5)));
			ct_sent(&C, CTX(5));
		} else {
			ct_recvd(&C, CTX(2), 8);
		}
		ct_barrier(&C);
	}
	close_all();
}

/* Threads are cancelled at any instruction of calls that have something to do. */
static void under_traffic(int rank)
{
	static char *b;
	const int rounds = 300;

	open_all();
	b = ct_alloc(&C, 64);
	if (rank == 1) {
		/* messages without end, until the other has seen enough */
		struct pollfd p = { .fd = ct_sync, .events = POLLIN };
		long sent = 0, done = 0;
		struct fi_cq_tagged_entry e;

		while (poll(&p, 1, 0) == 0) {
			if (sent - done < 16 && !fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, 7, CTX(1)))
				sent++;
			while (fi_cq_read(C.tx, &e, 1) == 1)
				done++;
			sched_yield();
		}
		while (done < sent)
			done += fi_cq_read(C.tx, &e, 1) == 1;
	} else {
		unsigned seed = 1;

		for (int i = 0; i < rounds; i++) {
			pthread_t t;
			struct timespec ns = { 0, rand_r(&seed) % 1000000 };
			unsigned call = rand_r(&seed) % (sizeof calls / sizeof *calls);

			for (int k = 0; k < 4; k++)
				(void)fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, 7, 0, CTX(k));
			OK(pthread_create(&t, NULL, calls[call].run, NULL));
			nanosleep(&ns, NULL);
			end(t, calls[call].name);
			ct_progress(&C);
		}
	}
	ct_send_oob("x", 1);
	{
		char x;
		struct fi_cq_tagged_entry e;

		/* receives take the other's remaining messages */
		for (struct pollfd p = { .fd = ct_sync, .events = POLLIN }; poll(&p, 1, 0) == 0; sched_yield()) {
			if (rank == 0) {
				(void)fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, 7, 0, CTX(9));
				while (fi_cq_read(C.rx, &e, 1) == 1)
					;
			}
			ct_progress(&C);
		}
		ct_recv_oob(&C, &x, 1);
	}
	/* and the queues are whole: one more message both ways, of another tag */
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };

		POST(&C, fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, 99, 0, CTX(11)));
		ct_send_oob("y", 1);
		while (e.op_context != CTX(11))
			ct_next(&C, C.rx, &e, NULL, NULL);
		EQ(e.tag, 99);
	} else {
		char y;

		ct_recv_oob(&C, &y, 1);
		POST(&C, fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, 99, CTX(12)));
		ct_sent(&C, CTX(12));
	}
	close_all();
}

static const struct ct_test tests[] = {
	{ "a thread cancelled in a call ends, and the called object keeps working", each_call, CT_REL },
	{ "of several threads waiting on a queue one is cancelled, and the others wake up", one_of_several, CT_REL },
	{ "threads can be cancelled during calls under traffic", under_traffic, CT_REL },
};
CT_MAIN("cancel", tests)
