/*
 * Peers of one host that see different parts of it, as in containers: namespaces, users, and
 * systems that forbid calls.  Each pair uses shared memory or the provider's sockets, with
 * its data intact, and log lines contain the path and its cause.
 */
#include "ct.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* Properties of the process of a rank. */
enum {
	BARE = 0,
	PIDS = 1,		/* in a pid namespace, where its number is 1 */
	USER = 2,		/* in a user namespace that has the user by its number */
	RENAMED = 4,		/* in one that has the user by another number */
	UNKNOWN = 8,		/* in one that knows no user */
	SMALL_SHM = 16,		/* with 64 MB in /dev/shm */
	NO_SHM = 32,		/* without /dev/shm */
	SYSTEM = 64,		/* with names and System V memory of its own */
	OTHER_USER = 128,
	NETWORK = 256,		/* in a network of its own, with a wire to the other rank's */
	PROXY = 512,		/* the same, and calls the other rank by a program that passes bytes on */
};
struct position {
	int is;
	int denied;		/* a system call, of `with_first` if that is not 0 */
	int error;
	int with_first;
};
struct pair {
	struct position rank[2];
	int memory;		/* whether they talk through memory */
	int reads[2];		/* whether a rank may read the other's: 1 yes, 0 no, -1 no matter */
	const char *why;	/* else, the log line about it */
};

/* Log lines about shared memory. */
static const char *all_sent(void)
{
	static char lines[400];
	size_t at = 0;

	lines[0] = 0;
	for (char *line = strtok(ct_log(), "\n"); line; line = strtok(NULL, "\n"))
		if (strstr(line, "memory") || strstr(line, "large messages"))
			at += snprintf(lines + at, at < sizeof lines ? sizeof lines - at : 0, "%.150s/", strstr(line, "():") ? strstr(line, "():") : line);
	return lines;
}

static void write_to(const char *path, const char *what)
{
	int f = open(path, O_WRONLY | O_CLOEXEC);

	if (f < 0 || write(f, what, strlen(what)) < 0)
		SKIP_HERE("may not write %s: %s", path, strerror(errno));
	close(f);
}
static void enter(int which, const char *name)
{
	if (unshare(which))
		SKIP_HERE("no %s namespace: %s", name, strerror(errno));
}
/* From here on the system refuses a call. */
static void deny(const struct position *p)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, p->denied, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
		BPF_JUMP(BPF_JMP | (p->with_first ? BPF_JEQ : BPF_JGE) | BPF_K, p->with_first, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | p->error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog all = { .len = sizeof f / sizeof *f, .filter = f };

	OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all))
		SKIP_HERE("no filter of system calls: %s", strerror(errno));
}
static void shell(const char *fmt, ...)
{
	char line[300];
	va_list a;

	va_start(a, fmt);
	vsnprintf(line, sizeof line, fmt, a);
	va_end(a);
	if (system(line))
		SKIP_HERE("%s", line);
}
/* Waits until the system at 10.99.7.N answers: on a busy host the kernel takes seconds to bring a new link up, and a provider's
   connection may fail in that time. */
static void await_answer(int n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x0a630700 + n) };
	struct timeval limit = { .tv_sec = 1 };

	for (int tries = 0; tries < 120; tries++) {
		int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

		setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
		r = connect(s, (struct sockaddr *)&a, sizeof a) ? errno : 0;
		close(s);
		if (!r || r == ECONNREFUSED)
			return;
		ct_nap(50);
	}
	FAIL("10.99.7.%d does not answer", n);
}
/* A network for each rank, and a wire between them. */
static void wire(void)
{
	pid_t mine = getpid(), theirs;
	char name[40];

	if (system("command -v ip >/dev/null"))
		SKIP_HERE("no ip (iproute2)");
	enter(CLONE_NEWNET, "network");
	shell("ip link set lo up");
	ct_swap(NULL, &mine, &theirs, sizeof mine);
	if (!ct_rank)
		shell("ip link add w0 type veth peer name w1 netns %d 2>/dev/null", theirs);
	snprintf(name, sizeof name, "w%d", ct_rank);
	ct_barrier(NULL);
	shell("ip addr add 10.99.7.%d/24 dev %s && ip link set %s up", ct_rank + 1, name, name);
	/* Beside other processes the other end may take long to answer ARP; three requests, one a second, are too few. */
	shell("echo 60 >/proc/sys/net/ipv4/neigh/%s/mcast_solicit 2>/dev/null || true", name);
	ct_barrier(NULL);
	await_answer(2 - ct_rank);
	snprintf(name, sizeof name, "10.99.7.%d", ct_rank + 1);
	setenv("CT_NODE", name, 1);
	ct_barrier(NULL);
}
/* Relays data between the connecting and the accepting end, both in `a` and `b`. */
static void pass_on(int a, int b)
{
	struct pollfd p[2] = { { .fd = a, .events = POLLIN }, { .fd = b, .events = POLLIN } };
	static char space[65536];

	for (;;) {
		poll(p, 2, -1);
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[i].revents ? recv(p[i].fd, space, sizeof space, MSG_DONTWAIT) : -1;

			if (n == 0 || (n < 0 && p[i].revents && errno != EAGAIN))
				_exit(0);
			for (ssize_t done = 0; done < n;) {
				ssize_t sent = send(p[!i].fd, space + done, n - done, MSG_NOSIGNAL);

				if (sent < 0)
					_exit(0);
				done += sent;
			}
		}
	}
}
/*
 * Rank 1's network has nothing but a program at `port` of its loopback that calls rank 0 at its
 * loopback: both find their peer at an address of their own.
 */
static int proxy_to(int network, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(l >= 0 && !bind(l, (void *)&a, sizeof a) && !listen(l, 4) && !getsockname(l, (void *)&a, &n));
	if (fork() == 0) {
		int in, out;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(!setns(network, CLONE_NEWNET));
		in = accept(l, NULL, NULL);
		out = socket(AF_INET, SOCK_STREAM, 0);
		a.sin_port = htons(port);
		if (in < 0 || connect(out, (void *)&a, sizeof a))
			_exit(1);
		pass_on(in, out);
	}
	close(l);
	return ntohs(a.sin_port);
}
/* Enters the given environment; a process started for it continues in its stead. */
static void become(const struct position *p)
{
	char line[60];
	int uid = geteuid();

	if (geteuid() && p->is)
		SKIP_HERE("is not root");
	if (p->is & (SMALL_SHM | NO_SHM)) {
		enter(CLONE_NEWNS, "mount");
		if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount("none", p->is & NO_SHM ? "/dev" : "/dev/shm", "tmpfs", 0, "size=64m"))
			SKIP_HERE("may not mount: %s", strerror(errno));
	}
	if (p->is & SYSTEM)
		enter(CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP, "other");
	if (p->is & (USER | RENAMED | UNKNOWN)) {
		enter(CLONE_NEWUSER, "user");
		if (!(p->is & UNKNOWN)) {
			snprintf(line, sizeof line, "%d %d 1", p->is & USER ? uid : 1000, uid);
			write_to("/proc/self/uid_map", line);
		}
	}
	if (p->is & PIDS) {
		int st;
		pid_t child;

		enter(CLONE_NEWPID, "pid");
		child = fork();
		CHECK(child >= 0);
		if (child) {
			CHECK(waitpid(child, &st, 0) == child);
			if (WIFSIGNALED(st))
				FAIL("killed by signal %d", WTERMSIG(st));
			_exit(WEXITSTATUS(st));
		}
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		EQ(getpid(), 1);
	}
	if (p->is & OTHER_USER) {
		struct fi_info *i = NULL;

		OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &i));	/* while it may read the plug-ins */
		fi_freeinfo(i);
		OK(setresuid(65533, 65533, 65533));
		prctl(PR_SET_DUMPABLE, 1);
	}
	if (p->denied)
		deny(p);
}
/* A message each way at once, with and without a receive that waits. */
static void talk(struct ct *c, char *in, char *out, size_t n, unsigned seed, int early)
{
	ct_fill(out, n, seed + ct_rank);
	memset(in, 0, n);
	if (early)
		OK(fi_recv(c->ep, in, n, ct_desc(in), FI_ADDR_UNSPEC, CTX(1)));
	POST(c, fi_send(c->ep, out, n, ct_desc(out), c->peer, CTX(0)));
	if (!early)
		OK(fi_recv(c->ep, in, n, ct_desc(in), FI_ADDR_UNSPEC, CTX(1)));
	ct_recvd(c, CTX(1), n);
	CHECK(ct_same(in, n, seed + !ct_rank));
	ct_sent(c, CTX(0));
}
/* A connected pair, of which rank 1 calls. */
static void open_pair(struct ct *c, const struct pair *p)
{
	struct ct_name theirs;
	struct sockaddr_in *a = (void *)theirs.b;
	int network;

	if (!((p->rank[0].is | p->rank[1].is) & PROXY)) {
		ct_open(c, &(struct ct_opt){ 0 });
		return;
	}
	if (ct_type != FI_EP_MSG)
		SKIP("calls both ways");
	if (ct_rank == 0) {
		ct_open(c, &(struct ct_opt){ 0 });
		return;
	}
	ct_recv_oob(NULL, &theirs, sizeof theirs);
	network = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	enter(CLONE_NEWNET, "network");
	shell("ip link set lo up");
	a->sin_port = htons(proxy_to(network, ntohs(a->sin_port)));
	memset(c, 0, sizeof *c);
	ct_prepare(c, &theirs);
	OK(fi_connect(c->ep, c->info->dest_addr, NULL, 0));
	ct_want_event(c, FI_CONNECTED, NULL, 0);
	ct_barrier(c);
}
static void act(const struct pair *p)
{
	enum { BIG = 3 << 20 };
	struct ct c;
	char *in, *out;
	int done = 0, theirs = 0, silent = 1;

	ct_needs_memory();
	ct_keep_log("info");
	setenv("FI_LOG_PROV", "tcp,shm", 1);
	if ((p->rank[0].is | p->rank[1].is) & NETWORK)
		wire();
	become(&p->rank[ct_rank]);
	open_pair(&c, p);
	in = ct_alloc(&c, BIG);
	out = ct_alloc(&c, BIG);
	/* both log the shared-memory upgrade; its failure is logged by an end that notices it */
	for (int i = 0; p->memory ? !done || !theirs : i < 200 || silent; i++) {
		talk(&c, in, out, 64, i, i % 2);
		done = p->memory ? ct_logged("to it go through memory from now on") && ct_logged("from it go through memory from now on")
			: !p->why || ct_logged(p->why);
		ct_swap(&c, &done, &theirs, sizeof done);
		silent = !done && !theirs;
		if (p->memory && ct_logged("do not go through memory"))
			FAIL("not through memory: %s", all_sent());
	}
	for (size_t n = 0; n <= BIG; n = n * 3 + 1)
		for (int i = 0; i < 4; i++)
			talk(&c, in, out, n, n + i, i % 2);
	if (!p->memory && ct_logged("go through memory from now on"))
		FAIL("through memory: %s", all_sent());
	if (p->memory && p->reads[ct_rank] >= 0 &&
	    !!ct_logged("are read where they are") != p->reads[ct_rank])
		FAIL("%s", all_sent());
	ct_done(&c);
}
/* Each pair is two processes that each rank begins for it. */
static void act_all(const struct pair *p, size_t n)
{
	int skipped = 0;

	for (size_t i = 0; i < n; i++, p++) {
		pid_t child = fork();
		int st, theirs;

		CHECK(child >= 0);
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			snprintf(ct_prefix, sizeof ct_prefix, "pair %zu: ", i);
			act(p);
			_exit(0);
		}
		CHECK(waitpid(child, &st, 0) == child);
		if (!WIFEXITED(st) || (WEXITSTATUS(st) && WEXITSTATUS(st) != 77))
			_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 1);
		/* if one is not permitted here, the other is not needed */
		skipped = WEXITSTATUS(st);
		if (skipped)
			_exit(77);
		ct_swap(NULL, &skipped, &theirs, sizeof theirs);
	}
}
#define PAIRS(name, ...) static void name(int rank) \
	{ static const struct pair p[] = { __VA_ARGS__ }; (void)rank; act_all(p, sizeof p / sizeof *p); }

#define IN(x) { .is = x }
PAIRS(simple, { { IN(BARE), IN(BARE) }, 1, { -1, -1 }, NULL })
PAIRS(pids,
	{ { IN(PIDS), IN(PIDS) }, 1, { 0, 0 }, NULL },
	{ { IN(BARE), IN(PIDS) }, 1, { -1, 0 }, NULL },
	{ { IN(PIDS), IN(BARE) }, 1, { 0, -1 }, NULL })
PAIRS(users,
	{ { IN(BARE), IN(USER) }, 1, { -1, 0 }, NULL },
	{ { IN(USER), IN(BARE) }, 1, { 0, -1 }, NULL },
	{ { IN(USER), IN(USER) }, 1, { 0, 0 }, NULL })
PAIRS(other_numbers,
	{ { IN(USER), IN(RENAMED) }, 1, { 0, 0 }, NULL },
	{ { IN(RENAMED), IN(BARE) }, 1, { 0, -1 }, NULL })
PAIRS(unknown_users,
	{ { IN(BARE), IN(UNKNOWN) }, 0, { -1, -1 }, "do not go through memory" },
	{ { IN(UNKNOWN), IN(BARE) }, 0, { -1, -1 }, "do not go through memory" },
	{ { IN(UNKNOWN), IN(UNKNOWN) }, 0, { -1, -1 }, "do not go through memory" })
PAIRS(other_users,
	{ { IN(BARE), IN(OTHER_USER) }, 0, { -1, -1 }, "do not go through memory" },
	{ { IN(OTHER_USER), IN(BARE) }, 0, { -1, -1 }, "do not go through memory" })
PAIRS(another_user, { { IN(OTHER_USER), IN(OTHER_USER) }, 1, { -1, -1 }, NULL })
PAIRS(shm,
	{ { IN(SMALL_SHM), IN(SMALL_SHM) }, 1, { -1, -1 }, NULL },
	{ { IN(SMALL_SHM), IN(BARE) }, 1, { -1, -1 }, NULL },
	{ { IN(NO_SHM), IN(SMALL_SHM) }, 1, { -1, -1 }, NULL })
PAIRS(pod,
	{ { IN(PIDS | SYSTEM | SMALL_SHM), IN(PIDS | SYSTEM | SMALL_SHM) }, 1, { 0, 0 }, NULL },
	{ { IN(PIDS | SYSTEM | SMALL_SHM | USER), IN(PIDS | SYSTEM | NO_SHM | USER) }, 1, { 0, 0 }, NULL },
	{ { IN(PIDS | SYSTEM | NO_SHM | USER), IN(BARE) }, 1, { 0, -1 }, NULL })
PAIRS(networks, { { IN(NETWORK), IN(NETWORK) }, 0, { -1, -1 }, NULL })
PAIRS(tunnel, { { IN(BARE), IN(PROXY) }, 0, { -1, -1 }, NULL })

/* Every call that may be denied, to both ranks with the error codes of different systems, and to either. */
static void denied(int call, int with_first, int memory, int reads)
{
	static const int errors[] = { EPERM, ENOSYS, EACCES };

	for (int i = 0; i < 5; i++) {
		struct pair p = { .memory = memory, .reads = { -1, -1 } };

		for (int r = 0; r < 2; r++)
			if (i != 3 + r) {
				p.rank[r] = (struct position){ .denied = call, .error = errors[i % 3], .with_first = with_first };
				p.reads[r] = reads;
			}
		p.why = memory ? NULL : "do not go through memory";
		act_all(&p, 1);
	}
}
static void no_reads(int rank) { (void)rank; denied(SYS_process_vm_readv, 0, 1, 0); }
static void no_barriers(int rank) { (void)rank; denied(SYS_membarrier, 0, 1, -1); }
static void no_memory(int rank)
{
	(void)rank;
	denied(SYS_memfd_create, 0, 0, -1);
}
static void no_unix_sockets(int rank)
{
	(void)rank;
	denied(SYS_socket, AF_UNIX, 0, -1);
}

static void tcp_or_shm(void (*run)(int), int rank)
{
	/* the peers do not find each other then; no call of the library may precede the setup of the processes */
	if (!strcmp(ct_prov, "shm") && (run == unknown_users || run == other_users || run == other_numbers || run == networks ||
	    run == no_unix_sockets))
		SKIP("its peers do not find each other");
	if (strcmp(ct_prov, "tcp") && strcmp(ct_prov, "shm") && strcmp(ct_prov, "tcp;ofi_rxm"))
		SKIP("no memory that peers share");
	run(rank);
}
#define TEST(name) static void test_##name(int rank) { tcp_or_shm(name, rank); }
TEST(simple) TEST(pids) TEST(users) TEST(other_numbers) TEST(unknown_users) TEST(other_users) TEST(another_user)
TEST(shm) TEST(pod) TEST(networks)
TEST(tunnel) TEST(no_reads) TEST(no_barriers) TEST(no_memory) TEST(no_unix_sockets)

static const struct ct_test tests[] = {
	{ "peers of one host log their use of shared memory", test_simple, CT_REL },
	{ "peers in pid namespaces with equal process numbers use shared memory", test_pids, CT_REL },
	{ "peers in user namespaces with their user mapped use shared memory", test_users, CT_REL },
	{ "peers in user namespaces with different numbers for one user use shared memory", test_other_numbers, CT_REL },
	{ "peers in user namespaces without mapped users do not count as equal users", test_unknown_users, CT_REL },
	{ "peers of other users do not share memory", test_other_users, CT_REL },
	{ "peers of a user other than root use shared memory", test_another_user, CT_REL },
	{ "peers with a small or missing /dev/shm use shared memory", test_shm, CT_REL },
	{ "containers with one network use shared memory", test_pod, CT_REL },
	{ "peers in separate networks communicate over the network", test_networks, CT_REL },
	{ "peers in separate networks with equal addresses stay on TCP", test_tunnel, CT_MSG },
	{ "peers without access to each other's memory communicate through rings", test_no_reads, CT_REL },
	{ "peers without membarrier between processes use shared memory", test_no_barriers, CT_REL },
	{ "peers unable to create anonymous memory files still communicate", test_no_memory, CT_REL },
	{ "peers without permission for unix sockets still communicate", test_no_unix_sockets, CT_REL },
};
CT_MAIN("containers", tests)
