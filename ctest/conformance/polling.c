/* Programs that poll: the cost of an empty poll, and the processor time left to others. */
#include "ct.h"
#include <dlfcn.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static struct ct C, Q[6];

/* Looks of the library at the kernel, all of which pass here: the program's symbols come first. */
static long looks;

/* More arguments are read than most calls pass, and AddressSanitizer would report that. */
__attribute__((no_sanitize_address)) long syscall(long number, ...)
{
	static long (*next)(long, ...);
	va_list l;
	long a[6];

	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	va_start(l, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(l, long);
	va_end(l);
	switch (number) {
#ifdef SYS_epoll_wait
	case SYS_epoll_wait:
#endif
	case SYS_recvfrom: case SYS_recvmsg: case SYS_epoll_pwait: case SYS_epoll_pwait2:
		looks++;
	}
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
ssize_t recvfrom(int fd, void *restrict b, size_t n, int flags, struct sockaddr *restrict a, socklen_t *restrict l)
{
	return syscall(SYS_recvfrom, fd, b, n, flags, a, l);
}
ssize_t recv(int fd, void *b, size_t n, int flags)
{
	return syscall(SYS_recvfrom, fd, b, n, flags, NULL, NULL);
}
ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	return syscall(SYS_recvmsg, fd, m, flags);
}
int epoll_wait(int fd, struct epoll_event *e, int n, int ms)
{
	return syscall(SYS_epoll_pwait, fd, e, n, ms, NULL, 8);
}

/* Six endpoints of rank 1 each send a message to the one of rank 0, which then is idle. */
static void attempts(int rank)
{
	const int peers = 6, rounds = 1000;
	long fewest = LONG_MAX;
	struct ct_opt o = { .caps = FI_TAGGED, .threading = FI_THREAD_DOMAIN };
	struct ct_name all[6], to;

	if (ct_is_lnx())
		SKIP("a look at each provider of the link");
	ct_open(&C, &o);
	if (rank == 0) {
		char *b = ct_alloc(&C, 64);

		to = ct_getname(&C.ep->fid);
		ct_send_oob(&to, sizeof to);
		ct_recv_oob(&C, all, sizeof all);
		for (int i = 0; i < peers; i++)
			ct_insert(&C, &all[i]);
		for (int round = 0; round < 3; round++)
			for (int i = 0; i < peers; i++) {
				POST(&C, fi_trecv(C.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, 1, 0, CTX(1)));
				ct_recvd(&C, CTX(1), 8);
			}
		ct_barrier(&C);
		/* operations in flight, such as an answer, cost more, and so do yields to others */
		for (int once = 0; once < 20 && fewest > rounds; once++) {
			looks = 0;
			for (int i = 0; i < rounds; i++)
				(void)fi_cq_read(C.rx, NULL, 0);
			if (looks < fewest)
				fewest = looks;
		}
		if (ct_is_ip() && !ct_is_rxm() && !ct_is_rxd())
			CHECK(fewest > 0);	/* or they do not pass here */
		if (fewest > rounds * 11 / 10)
			FAIL("%d empty polls made %ld system calls", rounds, fewest);
	} else {
		fi_addr_t peer[6];

		ct_recv_oob(&C, &to, sizeof to);
		for (int i = 0; i < peers; i++) {
			Q[i].o = o;
			all[i] = ct_open_rdm(&Q[i], &C);
			peer[i] = ct_insert(&Q[i], &to);
		}
		ct_send_oob(all, sizeof all);
		for (int round = 0; round < 3; round++)
			for (int i = 0; i < peers; i++) {
				char *b = ct_alloc(&C, 64);

				POST(&Q[i], fi_tsend(Q[i].ep, b, 8, ct_desc(b), peer[i], 1, CTX(2)));
				ct_sent(&Q[i], CTX(2));
			}
		ct_barrier(&C);
	}
	ct_barrier(&C);
	for (int i = 0; i < peers && rank == 1; i++)
		ct_close(&Q[i]);
	ct_done(&C);
}

static double processor_ms(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e3;
}
/* Both ranks share one processor and do nothing but poll. */
static void combined(int rank)
{
	const int batches = 20, times = 10;
	struct ct_opt o = { .caps = FI_TAGGED, .threading = FI_THREAD_DOMAIN, .one_cq = 1 };
	cpu_set_t all, one;
	double used, least = 1e9, look;
	char *b;

	ct_open(&C, &o);
	if (!ct_is_ip())
		SKIP("another provider's ways of polling");
	CPU_ZERO(&one);
	CHECK(!sched_getaffinity(0, sizeof all, &all));
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all)) {
			CPU_SET(i, &one);
			break;
		}
	CHECK(!sched_setaffinity(0, sizeof one, &one));
	b = ct_alloc(&C, 64);
	look = processor_ms();
	for (int i = 0; i < 10000; i++)
		(void)fi_cq_read(C.rx, NULL, 0);
	look = (processor_ms() - look) / 10000;
	ct_barrier(&C);
	for (int batch = 0; batch < batches; batch++) {
		used = processor_ms();
		for (int i = 0; i < 2 * times; i++) {
			struct fi_cq_tagged_entry e;
			ssize_t r;

			if (i % 2 == rank)
				POST(&C, fi_tsend(C.ep, b, 8, ct_desc(b), C.peer, 1, CTX(1)));
			else
				POST(&C, fi_trecv(C.ep, b, 64, ct_desc(b), C.peer, 1, 0, CTX(1)));
			while ((r = fi_cq_read(C.rx, &e, 1)) == -FI_EAGAIN)
				;
			EQ(r, 1);
		}
		used = (processor_ms() - used) / times;
		/* in most of them a busy machine may have disturbed it */
		if (used < least)
			least = used;
	}
	/* A caller without yields uses up time slices of some milliseconds. An instrumented library
	 * (sanitizers, valgrind) polls too slowly to be recognized as a busy one. */
	if (least > 1 && look < 0.002)
		FAIL("an exchange takes %.2f ms of processor time", least);
	ct_done(&C);
}

static const struct ct_test tests[] = {
	{ "an empty poll is one system call, regardless of the number of recent peers", attempts, CT_RDM | CT_REL },
	{ "an empty poll yields the CPU to the awaited peer", combined, CT_RDM | CT_REL },
};
CT_MAIN("polling", tests)
