/* Common parts of the fault programs, in addition to the harness. */
#ifndef FAULT_H
#define FAULT_H
#include <dirent.h>
#include <malloc.h>
#include <netinet/tcp.h>

/* Each of these programs has an address of its own (CT_NODE): peers of another test that call again and again cannot
   reach an endpoint of this one at a port that theirs had. Here are thousands of endpoints, so that would happen. */
static void __attribute__((constructor)) fault_node(void)
{
	char node[16];
	unsigned id = getpid();

	snprintf(node, sizeof node, "127.%u.%u.%u", 1 + (id >> 16 & 63), id >> 8 & 255, id & 255);
	setenv("CT_NODE", node, 0);
}
/* A number from the environment. */
static inline long fault_count(const char *name, long otherwise)
{
	const char *s = getenv(name);
	return s && *s ? strtol(s, NULL, 0) : otherwise;
}
/* Calls f for each descriptor of this process, until it requests a stop. */
static inline int each_fd(int (*f)(int fd, void *arg), void *arg)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int r = 0;

	CHECK(d);
	while (!r && (e = readdir(d)))
		if (e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d))
			r = f(atoi(e->d_name), arg);
	closedir(d);
	return r;
}
static inline int count_fd(int fd, void *n)
{
	(void)fd;
	++*(int *)n;
	return 0;
}
static inline int open_fds(void)
{
	int n = 0;

	each_fd(count_fd, &n);
	return n;
}
static inline __attribute__((unused)) int tell_fd(int fd, void *arg)
{
	char path[64], to[256] = { 0 };

	(void)arg;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (readlink(path, to, sizeof to - 1) > 0)
		fprintf(stderr, "descriptor %d: %s\n", fd, to);
	return 0;
}
/* Bytes that malloc has given out; 0 under AddressSanitizer, which has its own. */
static inline size_t heap_bytes(void)
{
	struct mallinfo2 m = mallinfo2();
	return m.uordblks + m.hblkhd;
}
static inline int is_tcp_connection(int fd)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof a, k = sizeof(int);
	int type = 0;

	return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &k) && type == SOCK_STREAM && !getpeername(fd, (void *)&a, &n) &&
	       (a.ss_family == AF_INET || a.ss_family == AF_INET6);
}
/* Whatever ends the connection resets it from now on. */
static inline __attribute__((unused)) int reset_fd(int fd, void *arg)
{
	struct linger l = { .l_onoff = 1 };

	(void)arg;
	if (is_tcp_connection(fd))
		CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
	return 0;
}
struct cut { int skip, reset; };
static inline int cut_fd(int fd, void *arg)
{
	struct cut *c = arg;

	if (!is_tcp_connection(fd) || c->skip--)
		return 0;
	if (c->reset) {
		/* dissolving the association ends the connection with RST */
		struct sockaddr a = { .sa_family = AF_UNSPEC };
		connect(fd, &a, sizeof a);
	} else {
		shutdown(fd, SHUT_RDWR);
	}
	return 1;
}
/* Ends one of the TCP connections of this process behind the library's back. */
static inline int cut_connection(int which, int reset)
{
	struct cut c = { which % 16, reset };
	return each_fd(cut_fd, &c);
}
#endif
