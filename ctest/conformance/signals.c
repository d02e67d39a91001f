/*
 * Signals that end calls.  fi_cq(3), fi_eq(3), fi_cntr(3), fi_poll(3): a signal with its handler in the
 * waiting thread ends the call with -FI_EINTR if there is nothing to read, with and without SA_RESTART.
 */
#include "ct.h"
#include <rdma/fi_errno.h>

static struct ct C;
static struct fid_wait *set;
static struct fid_cq *in_set;
static int timeout;
static volatile sig_atomic_t handled;

static void count(int s)
{
	(void)s;
	handled++;
}
static void handle(int flags)
{
	struct sigaction a = { .sa_handler = count, .sa_flags = flags };
	const char *ring = getenv("FI_TCP_IO_URING");

	if (ring && !strcmp(ring, "1"))
		SKIP_HERE("with an io_uring sleeps end as by a signal without one");
	CHECK(!sigaction(SIGUSR1, &a, NULL));
	handled = 0;
}

/* Each is in its call until something ends that. */
static long cq_sread(void) { struct fi_cq_tagged_entry e; return fi_cq_sread(C.rx, &e, 1, NULL, timeout); }
static long cq_sreadfrom(void) { struct fi_cq_tagged_entry e; fi_addr_t f; return fi_cq_sreadfrom(C.rx, &e, 1, &f, NULL, timeout); }
static long cq_sread_in_set(void) { struct fi_cq_tagged_entry e; return fi_cq_sread(in_set, &e, 1, NULL, timeout); }
static long eq_sread(void) { uint32_t ev; char b[256]; return fi_eq_sread(C.eq, &ev, b, sizeof b, timeout, 0); }
static long cntr_wait(void) { return fi_cntr_wait(C.rxc, 1000000, timeout); }
static long set_wait(void) { return fi_wait(set, timeout); }

static const struct { const char *name; long (*run)(void); } calls[] = {
	{ "fi_cq_sread", cq_sread }, { "fi_cq_sreadfrom", cq_sreadfrom }, { "fi_cq_sread in a wait set", cq_sread_in_set },
	{ "fi_eq_sread", eq_sread }, { "fi_cntr_wait", cntr_wait }, { "fi_wait", set_wait },
};
#define CALLS (sizeof calls / sizeof *calls)

struct caller { unsigned call; pthread_t thread; long answer; int over; };
static void *runs(void *a)
{
	struct caller *c = a;

	c->answer = calls[c->call].run();
	__atomic_store_n(&c->over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}
static void start(struct caller *c, unsigned call)
{
	*c = (struct caller){ .call = call };
	OK(pthread_create(&c->thread, NULL, runs, c));
	ct_nap(20);
}
/* A signal that is there before the thread sleeps does not end its call, so it gets one after the other. */
static void interrupt(struct caller *c)
{
	while (!__atomic_load_n(&c->over, __ATOMIC_SEQ_CST)) {
		OK(pthread_kill(c->thread, SIGUSR1));
		ct_nap(20);
	}
	OK(pthread_join(c->thread, NULL));
	if (c->answer != -FI_EINTR)
		FAIL("%s: %ld %s, timeout %d", calls[c->call].name, c->answer, c->answer < 0 ? fi_strerror((int)-c->answer) : "", timeout);
	CHECK(handled > 0);
}

static void open_all(enum fi_wait_obj wait)
{
	struct ct_opt o = { .wait = wait, .threading = FI_THREAD_SAFE };
	struct fi_cntr_attr na = { .wait_obj = wait };
	struct fi_wait_attr wa = { .wait_obj = wait };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_SET };
	struct fi_eq_attr qa = { .wait_obj = wait };

	memset(&C, 0, sizeof C);
	ct_open(&C, &o);
	if (!C.eq)
		OK(fi_eq_open(C.fabric, &qa, &C.eq, NULL));
	OK(fi_cntr_open(C.domain, &na, &C.rxc, NULL));
	OK(fi_wait_open(C.fabric, &wa, &set));
	ca.wait_set = set;
	OK(fi_cq_open(C.domain, &ca, &in_set, NULL));
}
static void close_all(void)
{
	OK(fi_close(&in_set->fid));
	OK(fi_close(&set->fid));
	ct_close(&C);
}
/* A message from rank 1, for which rank 0 waits in fi_cq_sread. */
static void message(int rank)
{
	static char *b;

	if (!b)
		b = ct_alloc(&C, 64);
	if (rank == 1) {
		POST(&C, fi_send(C.ep, b, 8, ct_desc(b), C.peer, CTX(1)));
		ct_sent(&C, CTX(1));
	} else {
		struct fi_cq_tagged_entry e;
		ssize_t r;

		POST(&C, fi_recv(C.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(2)));
		while ((r = fi_cq_sread(C.rx, &e, 1, NULL, 1000)) == -FI_EAGAIN || r == -FI_EINTR)
			ct_progress(&C);
		EQ(r, 1);
	}
}

static void each_call(int rank, enum fi_wait_obj wait)
{
	open_all(wait);
	message(rank);
	if (rank == 0)
		for (int restart = 0; restart < 2; restart++)
			for (int limit = 0; limit < 2; limit++)
				for (unsigned i = 0; i < CALLS; i++) {
					struct caller c;

					handle(restart ? SA_RESTART : 0);
					timeout = limit ? 1000000 : -1;
					start(&c, i);
					interrupt(&c);
				}
	ct_barrier(&C);
	message(rank);
	close_all();
}
static void calls_end(int rank) { each_call(rank, FI_WAIT_UNSPEC); }
static void calls_on_condition_end(int rank) { each_call(rank, FI_WAIT_MUTEX_COND); }
static void yielding_calls_end(int rank) { each_call(rank, FI_WAIT_YIELD); }

/* Of three threads in one call the one running the handler returns, and the others go on. */
static void one_of_three(int rank)
{
	open_all(FI_WAIT_UNSPEC);
	message(rank);
	timeout = -1;
	if (rank == 0)
		for (int restart = 0; restart < 2; restart++)
			for (int round = 0; round < 3; round++) {
				struct caller c[3];

				handle(restart ? SA_RESTART : 0);
				for (int i = 0; i < 3; i++)
					start(&c[i], 0);
				for (int i = 0; i < 3; i++) {
					interrupt(&c[(round + i) % 3]);
					for (int k = i + 1; k < 3; k++)
						CHECK(!__atomic_load_n(&c[(round + k) % 3].over, __ATOMIC_SEQ_CST));
				}
			}
	ct_barrier(&C);
	message(rank);
	close_all();
}

/* "if there is nothing to read": signals without end take no message away, and report none twice. */
static void messages_among_signals(int rank)
{
	const int n = ct_fewer(300);
	struct itimerspec it = { .it_value.tv_nsec = 200000, .it_interval.tv_nsec = 200000 };
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	timer_t t;
	char *b;

	handle(0);
	open_all(FI_WAIT_UNSPEC);
	b = ct_alloc(&C, 64);
	if (rank == 0) {
		CHECK(!timer_create(CLOCK_MONOTONIC, &ev, &t));
		CHECK(!timer_settime(t, 0, &it, NULL));
	}
	for (int i = 0; i < n; i++) {
		struct fi_cq_tagged_entry e = { 0 };
		ssize_t r;

		if (rank == 1) {
			/* one at a time: a datagram too many would be lost */
			POST(&C, fi_send(C.ep, b, 8, ct_desc(b), C.peer, CTX(i)));
			ct_sent(&C, CTX(i));
			ct_barrier(&C);
			continue;
		}
		POST(&C, fi_recv(C.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
		while ((r = fi_cq_sread(C.rx, &e, 1, NULL, -1)) == -FI_EINTR || r == -FI_EAGAIN)
			;
		EQ(r, 1);
		CHECK(e.op_context == CTX(i));
		ct_barrier(&C);
	}
	if (rank == 0)
		timer_delete(t);
	close_all();
}

/*
 * A call may look for a while before it sleeps. Signals that come then are not missed: the message ends a call, and
 * right behind it comes a signal, when the next one has just begun. Where the system has the thread do something
 * else at that moment the signal comes too early, and another one ends the call.
 */
static void just_started(int rank)
{
	enum { ROUNDS = 40 };
	const pid_t pid = getpid();
	pid_t other;
	int missed = 0;
	char *b, x = 0;

	handle(0);
	open_all(FI_WAIT_UNSPEC);
	b = ct_alloc(&C, 64);
	ct_swap(&C, &pid, &other, sizeof pid);
	for (int i = 0; i < ROUNDS; i++) {
		struct fi_cq_tagged_entry e;
		ssize_t r;

		/* soon one after the other, so that calls expect their event soon */
		for (int k = 0; k < 3; k++) {
			if (rank == 1) {
				ct_recv_oob(&C, &x, 1);
				POST(&C, fi_send(C.ep, b, 8, ct_desc(b), C.peer, CTX(i)));
				ct_sent(&C, CTX(i));
				continue;
			}
			POST(&C, fi_recv(C.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
			ct_send_oob(&x, 1);
			while ((r = fi_cq_sread(C.rx, &e, 1, NULL, -1)) == -FI_EAGAIN || r == -FI_EINTR)
				;
			EQ(r, 1);
		}
		if (rank == 1) {
			struct pollfd p = { .fd = ct_sync, .events = POLLIN };

			for (int64_t since = ct_ms(); ct_ms() == since;)	/* a part of a millisecond */
				;
			for (int k = 0; k == 0 || poll(&p, 1, 100) == 0; k++)
				OK(kill(other, SIGUSR1));
			ct_recv_oob(&C, &x, 1);
			continue;
		}
		handled = 0;
		while ((r = fi_cq_sread(C.rx, &e, 1, NULL, -1)) == -FI_EAGAIN)
			;
		EQ(r, -FI_EINTR);
		missed += handled > 1;
		ct_send_oob(&x, 1);
	}
	if (missed > ROUNDS / 2)
		FAIL("%d of %d calls missed their first signal", missed, ROUNDS);
	ct_barrier(&C);
	close_all();
}

static const struct ct_test tests[] = {
	{ "a signal interrupts each blocking call, with and without SA_RESTART", calls_end, 0 },
	{ "a signal interrupts calls on a queue with FI_WAIT_MUTEX_COND", calls_on_condition_end, 0 },
	{ "a signal interrupts calls on a queue with FI_WAIT_YIELD", yielding_calls_end, 0 },
	{ "of three threads waiting on a queue the signalled one returns", one_of_three, 0 },
	{ "messages sent among signals are each reported once", messages_among_signals, CT_REL },
	{ "a signal at the start of a call interrupts it", just_started, CT_REL },
};
CT_MAIN("signals", tests)
