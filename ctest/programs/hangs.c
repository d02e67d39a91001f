/*
 * Processes that hang on purpose, each for a reason of its own, for
 * ctest/programs/doctor: what fi_doctor says of them is compared there.
 *
 *   hangs CASE [PROVIDER]
 *   hangs crowd PROVIDER COUNT     so many processes with an endpoint each, which sleep
 *
 * The ranks are forked children. Once all of them hang, their process numbers are
 * printed in a line; they are ended when standard input ends, or after some minutes.
 * With HANGS_NETS="NAMESPACE=ADDRESS ..." each rank is in a network namespace of its own,
 * by the name of ip(8), the last of them the rest.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define MAX_RANKS 8
#define NAME 256

static const char *provider = "tcp";
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *txcq, *rxcq;
static struct fid_ep *ep;
static struct fi_info *info;
static fi_addr_t peers[MAX_RANKS];
static char names[MAX_RANKS][NAME];
static size_t name_len[MAX_RANKS];
static int ranks = 2, tell[MAX_RANKS][2], receive_event[MAX_RANKS][2], done[2];
static char buf[1 << 16], out[1 << 16];
static struct fi_context2 contexts[4096];
static int used;

#define OK(call) do { \
	int r_ = (int)(call); \
	if (r_ < 0) { fprintf(stderr, "%s: %s\n", #call, fi_strerror(-r_)); exit(1); } \
} while (0)

static void open_all(size_t queue, int waits)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .size = queue, .wait_obj = waits ? FI_WAIT_UNSPEC : FI_WAIT_NONE };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };

	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | FI_DIRECTED_RECV;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->data_progress = hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	OK(fi_getinfo(FI_VERSION(1, 20), getenv("HANGS_NODE") ? getenv("HANGS_NODE") : "127.0.0.1", "0", FI_SOURCE, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &attr, &rxcq, NULL));
	attr.size = 0;
	OK(fi_cq_open(domain, &attr, &txcq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &rxcq->fid, FI_RECV));
	OK(fi_ep_bind(ep, &txcq->fid, FI_TRANSMIT));
	OK(fi_enable(ep));
	fi_freeinfo(hints);
}

/* All ranks' names go to the parent, and from there to all ranks. */
static void synchronize(int rank)
{
	name_len[rank] = NAME;
	OK(fi_getname(&ep->fid, names[rank], &name_len[rank]));
	if (write(tell[rank][1], &name_len[rank], sizeof(size_t)) < 0 || write(tell[rank][1], names[rank], NAME) != NAME)
		exit(1);
	for (int i = 0; i < ranks; i++) {
		if (read(receive_event[rank][0], names[i], NAME) != NAME)
			exit(1);
		OK(fi_av_insert(av, names[i], 1, &peers[i], 0, NULL) == 1 ? 0 : -FI_EINVAL);
	}
}

static void look(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };

	if (fi_cq_read(cq, &entry, 1) == -FI_EAVAIL)
		fi_cq_readerr(cq, &error, 0);
}

static void post(uint64_t tag, fi_addr_t from)
{
	OK(fi_trecv(ep, buf, sizeof(buf), NULL, from, tag, 0, &contexts[used++]));
}

static void give(int to, uint64_t tag, size_t len)
{
	ssize_t r;

	while ((r = fi_tsend(ep, out, len, NULL, peers[to], tag, &contexts[used])) == -FI_EAGAIN) {
		look(txcq);
		fi_cq_read(rxcq, NULL, 0);
	}
	used++;
	OK(r);
}

/* Rank 0 and another one have exchanged a message. */
static void greet(int rank)
{
	struct fi_cq_tagged_entry entry;

	for (int other = 0; other < ranks; other++) {
		if (other == rank)
			continue;
		post(99, peers[other]);
		give(other, 99, 8);
		while (fi_cq_read(rxcq, &entry, 1) != 1)
			look(txcq);
	}
	for (int i = 0; i < 10000; i++)
		look(txcq);
}

static void hangs(void)
{
	if (write(done[1], "", 1) != 1)
		exit(1);
}

/* Sleeps: empty polls without a pause take the processor from concurrent tests. */
static void rest_a_little(void)
{
	struct timespec t = { 0, 2000000 };

	nanosleep(&t, NULL);
}

static void poll_on(void)
{
	hangs();
	for (;; rest_a_little()) {
		look(rxcq);
		look(txcq);
	}
}

static void compute(void)
{
	hangs();
	for (volatile unsigned n = 0;; n++)
		;
}

/* Whether another message was taken. */
static int flood_once(int to)
{
	static int i;
	struct fi_cq_tagged_entry entry;
	int taken = fi_tsend(ep, out, 1000, NULL, peers[to], 5, &contexts[i % 4096]) == 0;

	i += taken;
	fi_cq_read(txcq, &entry, 1);
	fi_cq_read(rxcq, NULL, 0);
	return taken;
}
/* Sends until nothing more is taken for a while. */
static void flood(int to)
{
	struct timespec now, last;

	clock_gettime(CLOCK_MONOTONIC, &last);
	for (now = last; now.tv_sec - last.tv_sec < 3; clock_gettime(CLOCK_MONOTONIC, &now))
		if (flood_once(to))
			last = now;
}

/* Has as much memory as it may have. */
static void fill_memory(void)
{
	struct rlimit most;
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu", &pages) != 1)
		exit(1);
	fclose(f);
	most.rlim_cur = most.rlim_max = pages * sysconf(_SC_PAGESIZE);
	if (setrlimit(RLIMIT_AS, &most))
		exit(1);
}

/* Computes on a processor that others have all the time. */
static void starve(void)
{
	struct sched_param none = { 0 };
	cpu_set_t may, one;

	if (sched_getaffinity(0, sizeof(may), &may))
		exit(1);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (CPU_ISSET(cpu, &may)) {
			CPU_SET(cpu, &one);
			break;
		}
	}
	if (sched_setaffinity(0, sizeof(one), &one))
		exit(1);
	hangs();
	for (int i = 0; i < 2; i++) {
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(150);
			for (volatile unsigned n = 0;; n++)
				;
		}
	}
	if (sched_setscheduler(0, SCHED_IDLE, &none))
		exit(1);
	for (volatile unsigned n = 0;; n++)
		;
}

static void rest(void)
{
	hangs();
	for (;;)
		sleep(100);
}

/* The rank is in its network namespace, and its endpoint has the address there. */
static void enter_network(int rank)
{
	char path[200], *nets = getenv("HANGS_NETS"), *net, *node, *next = NULL;
	int fd;

	if (!nets)
		return;
	nets = strdup(nets);
	for (net = strtok_r(nets, " ", &next); rank > 0 && *next; rank--)
		net = strtok_r(NULL, " ", &next);
	node = net ? strchr(net, '=') : NULL;
	if (!node)
		exit(1);
	*node++ = 0;
	snprintf(path, sizeof(path), "/run/netns/%s", net);
	fd = open(path, O_RDONLY);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		exit(1);
	close(fd);
	setenv("HANGS_NODE", node, 1);
}

static void run(const char *name, int rank)
{
	int is_small = !strcmp(name, "queue-full"), sleeps = !strcmp(name, "asleep");
	struct fi_cq_tagged_entry entry;

	enter_network(rank);
	open_all(is_small ? 16 : 0, sleeps);
	if (!strcmp(name, "half-made") && rank == 1) {
		synchronize(rank);
		rest();
	}
	synchronize(rank);
	if (strcmp(name, "half-made") && strcmp(name, "refused") && strcmp(name, "firewall"))
		greet(rank);

	if (!strcmp(name, "tag")) {
		if (rank == 0)
			give(1, 5, 64);
		else
			post(6, peers[0]);
		poll_on();
	} else if (!strcmp(name, "source")) {
		if (rank == 0)
			give(1, 5, 64);
		else if (rank == 1)
			post(5, peers[2]);
		poll_on();
	} else if (!strcmp(name, "no-receive")) {
		if (rank == 0)
			give(1, 5, 64);
		poll_on();
	} else if (!strcmp(name, "stopped")) {
		if (rank == 0) {
			post(5, peers[1]);
			poll_on();
		}
		hangs();
		raise(SIGSTOP);
		poll_on();
	} else if (!strcmp(name, "computes") || !strcmp(name, "sleeps")) {
		if (rank == 0) {
			post(5, peers[1]);
			poll_on();
		}
		if (!strcmp(name, "sleeps"))
			rest();
		compute();
	} else if (!strcmp(name, "deadlock")) {
		post(5, peers[!rank]);
		poll_on();
	} else if (!strcmp(name, "chain")) {
		/* Each waits for the next one. */
		if (rank == ranks - 1)
			rest();
		post(5, peers[rank + 1]);
		poll_on();
	} else if (!strcmp(name, "ring")) {
		post(5, peers[(rank + 1) % ranks]);
		poll_on();
	} else if (!strcmp(name, "flood")) {
		if (rank == 0) {
			flood(1);
			hangs();
			/* The receiver may just have had no processor for a while. */
			for (;; rest_a_little())
				while (flood_once(1))
					;
		}
		/* The sender waits for it until it takes no more. */
		hangs();
		for (;;)
			look(rxcq);
	} else if (!strcmp(name, "memory")) {
		if (rank == 1)
			fill_memory();
		poll_on();
	} else if (!strcmp(name, "starved")) {
		if (rank == 1)
			starve();
		post(5, peers[1]);
		poll_on();
	} else if (!strcmp(name, "asleep")) {
		post(5, peers[!rank]);
		hangs();
		for (;;)
			fi_cq_sread(rxcq, &entry, 1, NULL, 10000);
	} else if (!strcmp(name, "nothing-sent")) {
		if (rank == 0)
			post(5, peers[1]);
		poll_on();
	} else if (!strcmp(name, "gone")) {
		if (rank == 1) {
			hangs();
			/* Without a word to the library, as who crashes. */
			raise(SIGKILL);
		}
		post(5, FI_ADDR_UNSPEC);
		poll_on();
	} else if (!strcmp(name, "queue-full") || !strcmp(name, "queue-unread")) {
		int count = is_small ? 40 : 3;

		for (int i = 0; i < count; i++) {
			if (rank == 0)
				give(1, 5, 64);
			else
				post(5, peers[0]);
		}
		hangs();
		for (;; rest_a_little())
			look(rank == 0 ? rxcq : txcq);
	} else if (!strcmp(name, "descriptors")) {
		if (rank == 1) {
			struct rlimit most = { 64, 64 };

			setrlimit(RLIMIT_NOFILE, &most);
			while (open("/dev/null", O_RDONLY) >= 0)
				;
		}
		poll_on();
	} else if (!strcmp(name, "refused") || !strcmp(name, "firewall")) {
		struct sockaddr_in no_peer = { .sin_family = AF_INET, .sin_port = htons(9) };

		inet_pton(AF_INET, getenv("HANGS_NOBODY") ? getenv("HANGS_NOBODY") : "127.0.0.1", &no_peer.sin_addr);
		if (rank == 0) {
			OK(fi_av_insert(av, &no_peer, 1, &peers[1], 0, NULL) == 1 ? 0 : -FI_EINVAL);
			post(5, FI_ADDR_UNSPEC);
			give(1, 5, 64);
		}
		poll_on();
	} else if (!strcmp(name, "half-made")) {
		give(1, 5, 64);
		poll_on();
	} else if (!strcmp(name, "healthy")) {
		hangs();
		for (;;) {
			used = 0;
			post(5, peers[!rank]);
			give(!rank, 5, 64);
			while (fi_cq_read(rxcq, &entry, 1) != 1)
				look(txcq);
		}
	} else if (!strcmp(name, "counted")) {
		/* As healthy, and rank 0 notes how many messages it has sent at what time. */
		FILE *log = rank == 0 && getenv("HANGS_LOG") ? fopen(getenv("HANGS_LOG"), "w") : NULL;
		unsigned long sent = 1; /* the greeting */

		if (log) /* it ends by a signal */
			setvbuf(log, NULL, _IOLBF, 0);
		hangs();
		for (;;) {
			struct timespec now;

			used = 0;
			post(5, peers[!rank]);
			give(!rank, 5, 64);
			while (fi_cq_read(rxcq, &entry, 1) != 1)
				look(txcq);
			if (++sent % 256 || !log)
				continue;
			clock_gettime(CLOCK_MONOTONIC, &now);
			fprintf(log, "%lld %lu\n", now.tv_sec * 1000000000LL + now.tv_nsec, sent);
		}
	} else if (!strcmp(name, "idle")) {
		/* Nothing to do, and nothing wrong. */
		poll_on();
	} else {
		fprintf(stderr, "no such case: %s\n", name);
		exit(2);
	}
}

/* Many processes that have nothing to do with each other. */
static int crowd(int count)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	pid_t pid;
	char one;

	if (pipe(done))
		return 1;
	for (int i = 0; i < count; i++) {
		pid = fork();
		if (pid < 0)
			return 1;
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			open_all(0, 0);
			look(rxcq);
			rest();
		}
		/* One after the other: the beginning of many at once takes much memory. */
		if (read(done[0], &one, 1) != 1)
			return 1;
		printf("%d%c", (int)pid, i + 1 < count ? ' ' : '\n');
	}
	fflush(stdout);
	poll(&in, 1, -1);
	return 0;
}

int main(int argc, char **argv)
{
	pid_t pids[MAX_RANKS];
	char all[MAX_RANKS][NAME], one;
	struct pollfd in = { .fd = 0, .events = POLLIN };

	if (argc < 2)
		return 2;
	if (argc > 2)
		provider = argv[2];
	if (argc > 3 && !strcmp(argv[1], "crowd"))
		return crowd(atoi(argv[3]));
	if (!strcmp(argv[1], "source"))
		ranks = 3;
	else if (!strcmp(argv[1], "ring") || !strcmp(argv[1], "chain"))
		ranks = 4;
	alarm(150);
	if (pipe(done))
		return 1;
	for (int i = 0; i < ranks; i++) {
		if (pipe(tell[i]) || pipe(receive_event[i]))
			return 1;
		pids[i] = fork();
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			alarm(150);
			run(argv[1], i);
			return 0;
		}
	}
	for (int i = 0; i < ranks; i++) {
		if (read(tell[i][0], &name_len[i], sizeof(size_t)) != sizeof(size_t) || read(tell[i][0], all[i], NAME) != NAME)
			return 1;
	}
	for (int i = 0; i < ranks; i++)
		for (int j = 0; j < ranks; j++)
			if (write(receive_event[i][1], all[j], NAME) != NAME)
				return 1;
	for (int i = 0; i < ranks; i++)
		if (read(done[0], &one, 1) != 1)
			return 1;
	for (int i = 0; i < ranks; i++)
		printf("%d%c", (int)pids[i], i + 1 < ranks ? ' ' : '\n');
	fflush(stdout);
	/* The children that end are not waited for: their numbers stay theirs. */
	poll(&in, 1, -1);
	for (int i = 0; i < ranks; i++)
		kill(pids[i], SIGKILL);
	return 0;
}
