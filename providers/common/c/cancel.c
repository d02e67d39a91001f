/*
 * Threads that are cancelled (pthread_cancel).
 *
 * Cancellation unwinds the stack, which Rust code that has something to clean up does not
 * survive.  So a thread is cancelled at two places only, in frames that have nothing to clean
 * up: asleep in here, and at the end of a call whose polls were empty.  Everywhere else no
 * function called by the library may be a cancellation point.
 */
#define _GNU_SOURCE
/* The types and names of Rust: on processors with 32 bits the compilers of some distributions set others. */
#undef _FILE_OFFSET_BITS
#undef _TIME_BITS
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <errno.h>

/*
 * A call of the plug-in, or of Rust's standard library in it, to one of these names is the
 * system call and nothing else.  Hidden: other objects do not bind to these names.
 */
#define OWN __attribute__((visibility("hidden")))

/* Names and types of C libraries other than glibc (musl), which are for 64 bits without a suffix. */
#ifdef __GLIBC__
#define LARGE(name) name##64
typedef int mmsg_flags;
#else
#define LARGE(name) name
#undef pread64
#undef pwrite64
#undef open64
typedef unsigned mmsg_flags;
#if __SIZEOF_LONG__ != 8
#error "types of time with 64 bits are not those of the system calls"
#endif
#endif
#define FUTEX_WAIT_PRIVATE 128	/* linux/futex.h, which the compiler of another C library may not find */

OWN int close(int fd) { return syscall(SYS_close, fd); }
OWN ssize_t read(int fd, void *b, size_t n) { return syscall(SYS_read, fd, b, n); }
OWN ssize_t write(int fd, const void *b, size_t n) { return syscall(SYS_write, fd, b, n); }
OWN ssize_t readv(int fd, const struct iovec *v, int n) { return syscall(SYS_readv, fd, v, n); }
OWN ssize_t writev(int fd, const struct iovec *v, int n) { return syscall(SYS_writev, fd, v, n); }
/*
 * PAIR(N): an argument with 64 bits as the kernel takes it. With registers of 32 bits it takes two of them;
 * those of ARM begin with an even one, so behind three others there is one more (ODD).
 */
#if __SIZEOF_LONG__ == 8
#define PAIR(n) (n)
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define PAIR(n) (long)(n), (long)((int64_t)(n) >> 32)
#else
#error "the order of the halves is unknown"
#endif
#ifdef __ARM_EABI__
#define ODD 0,
#else
#define ODD
#endif
OWN ssize_t LARGE(pread)(int fd, void *b, size_t n, int64_t at) { return syscall(SYS_pread64, fd, b, n, ODD PAIR(at)); }
OWN ssize_t LARGE(pwrite)(int fd, const void *b, size_t n, int64_t at) { return syscall(SYS_pwrite64, fd, b, n, ODD PAIR(at)); }
/* F_OFD_SETLKW waits; its argument is a struct flock64 */
#ifdef SYS_fcntl64
#define OWN_FCNTL SYS_fcntl64
#else
#define OWN_FCNTL SYS_fcntl
#endif
OWN int fcntl(int fd, int command, ...)
{
	va_list l;
	void *argument;

	va_start(l, command);
	argument = va_arg(l, void *);
	va_end(l);
	return syscall(OWN_FCNTL, fd, command, argument);
}
OWN int LARGE(open)(const char *path, int flags, ...)
{
	va_list l;
	int mode;

	va_start(l, flags);
	mode = va_arg(l, int);
	va_end(l);
	return syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
OWN int poll(struct pollfd *p, nfds_t n, int ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	return syscall(SYS_ppoll, p, n, ms < 0 ? NULL : &t, NULL, 8);
}
OWN int ppoll(struct pollfd *p, nfds_t n, const struct timespec *limit, const sigset_t *mask)
{
	/* the kernel writes to it */
	struct timespec t = limit ? *limit : (struct timespec){ 0, 0 };

	return syscall(SYS_ppoll, p, n, limit ? &t : NULL, mask, 8);
}
OWN int epoll_wait(int fd, struct epoll_event *e, int n, int ms)
{
#ifdef SYS_epoll_wait	/* takes least time */
	return syscall(SYS_epoll_wait, fd, e, n, ms);
#else
	return syscall(SYS_epoll_pwait, fd, e, n, ms, NULL, 8);
#endif
}
OWN int connect(int fd, const struct sockaddr *a, socklen_t n) { return syscall(SYS_connect, fd, a, n); }
OWN int accept4(int fd, struct sockaddr *restrict a, socklen_t *restrict n, int flags)
{
	return syscall(SYS_accept4, fd, a, n, flags);
}
OWN ssize_t sendto(int fd, const void *b, size_t n, int flags, const struct sockaddr *a, socklen_t l)
{
	return syscall(SYS_sendto, fd, b, n, flags, a, l);
}
OWN ssize_t recvfrom(int fd, void *restrict b, size_t n, int flags, struct sockaddr *restrict a, socklen_t *restrict l)
{
	return syscall(SYS_recvfrom, fd, b, n, flags, a, l);
}
OWN ssize_t send(int fd, const void *b, size_t n, int flags) { return sendto(fd, b, n, flags, NULL, 0); }
OWN ssize_t recv(int fd, void *b, size_t n, int flags) { return recvfrom(fd, b, n, flags, NULL, NULL); }
/* The members that musl has with 32 bits and the kernel with 64 are followed by others, which callers leave 0. */
OWN ssize_t sendmsg(int fd, const struct msghdr *m, int flags) { return syscall(SYS_sendmsg, fd, m, flags); }
OWN ssize_t recvmsg(int fd, struct msghdr *m, int flags) { return syscall(SYS_recvmsg, fd, m, flags); }
OWN int recvmmsg(int fd, struct mmsghdr *m, unsigned n, mmsg_flags flags, struct timespec *limit)
{
	return syscall(SYS_recvmmsg, fd, m, n, flags, limit);
}
OWN int sendmmsg(int fd, struct mmsghdr *m, unsigned n, mmsg_flags flags) { return syscall(SYS_sendmmsg, fd, m, n, flags); }
OWN int clock_nanosleep(clockid_t clock, int flags, const struct timespec *t, struct timespec *left)
{
	/* answers the error */
	return syscall(SYS_clock_nanosleep, clock, flags, t, left) ? errno : 0;
}
OWN int fallocate(int fd, int mode, off_t at, off_t n) { return syscall(SYS_fallocate, fd, mode, PAIR(at), PAIR(n)); }
#if __SIZEOF_LONG__ != 8
OWN int fallocate64(int fd, int mode, off64_t at, off64_t n) { return syscall(SYS_fallocate, fd, mode, PAIR(at), PAIR(n)); }
#endif
/* a map that is made asks for it, the first one of each thread */
OWN ssize_t getrandom(void *b, size_t n, unsigned flags) { return syscall(SYS_getrandom, b, n, flags); }
OWN int nanosleep(const struct timespec *t, struct timespec *left) { return syscall(SYS_nanosleep, t, left); }

/* A blocking call about to sleep: `Waiter` of wait.rs. */
struct ofi_waiter {
	const void *wait;	/* what it sleeps on */
	const uint32_t *ticket;	/* a follower sleeps until this is not `seen` */
	const void *sources;	/* for `abandon` */
	void (*end_wait)(const void *);
	int64_t nanos;		/* at most so long; negative: for ever */
	int32_t ms;		/* the same */
	int32_t epoll;		/* what a leader sleeps on; negative: a follower */
	uint32_t seen;
	uint32_t signalled;	/* out: the event of token 0 was there */
	uint32_t interrupted;	/* out: a signal ended the sleep */
};

/*
 * Sleeps.  When the thread is cancelled meanwhile, `abandon` ends the sleep and the stack is
 * unwound from here: the callers have nothing to clean up.
 */
OWN void ofi_sleep(struct ofi_waiter *s, void (*abandon)(void *))
{
	struct epoll_event e[64];
	/*
	 * Even a follower that sleeps for ever has a limit, of 34 years: with one a signal ends the
	 * sleep also if its handler has SA_RESTART, as it ends that of a leader.
	 */
	struct timespec t = { s->nanos < 0 ? 1L << 30 : s->nanos / 1000000000, s->nanos < 0 ? 0 : s->nanos % 1000000000 };
	volatile long n = 0;	/* cleaning up may be a longjmp */
	int before;

	pthread_cleanup_push(abandon, s);
	/* Nothing happens in between that could not be given up at any instruction. */
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
	if (s->epoll >= 0)
		n = syscall(SYS_epoll_pwait, s->epoll, e, 64, s->ms, NULL, 8);
	else
		n = syscall(SYS_futex, s->ticket, FUTEX_WAIT_PRIVATE, s->seen, &t, NULL, 0);
	s->interrupted = n < 0 && errno == EINTR;
	pthread_setcanceltype(before, NULL);
	pthread_cleanup_pop(0);
	for (long i = n; i-- > 0;)
		if (e[i].data.u64 == 0)
			s->signalled = 1;
}

static void restore(void *mask) { syscall(SYS_rt_sigprocmask, SIG_SETMASK, mask, NULL, 8); }

/* Ends a thread that was cancelled while it holds back signals, with `mask` as its signal mask again. */
OWN void ofi_end_if_cancelled(const uint64_t *mask)
{
	pthread_cleanup_push(restore, (void *)mask);
	pthread_testcancel();
	pthread_cleanup_pop(0);
}
