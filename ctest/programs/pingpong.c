/*
 * A complete example of a libfabric program: two processes exchange messages,
 * over connected endpoints (FI_EP_MSG) or over reliable datagram endpoints
 * with tags (FI_EP_RDM), and print latency and bandwidth.
 *
 *   cc pingpong.c -o pingpong $(pkg-config --cflags --libs libfabric)
 *
 *   pingpong [-e msg|rdm]             both sides, the peer is a forked child
 *   pingpong [-e msg|rdm] -s          server: prints its address and waits
 *   pingpong [-e msg|rdm] -a ADDR:PORT   client of such a server
 *
 *   -p PROVIDER   default tcp           -n COUNT   iterations per size (1000)
 *   -S SIZE       one size only         -b ADDR    address to listen on (127.0.0.1)
 *   -q            print the table only, no heading
 *   -w            sleep until there is a completion (fi_cq_sread), in place of polling
 *
 * The program is also what a test runs: it checks every byte it receives,
 * prints which libfabric it has mapped, and ends with status 1 on any error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "library.h"

#define WINDOW 64			/* messages in flight of the bandwidth part */
#define MAX_SIZE ((size_t)16 << 20)
#define TAG 0xf00d

static const char *provider = "tcp", *node = "127.0.0.1", *service = "0";
static enum fi_ep_type type = FI_EP_RDM;
static int iterations = 1000, quiet, sleeps;
static size_t only_size = SIZE_MAX;
static int listening = -1;		/* RDM with a forked peer: pipe to tell the address */

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fid_cq *txcq, *rxcq;
static struct fid_av *av;
static struct fid_ep *ep;
static fi_addr_t peer = FI_ADDR_UNSPEC;
static unsigned char *sbuf, *rbuf;
static long outstanding;		/* sends whose completion was not read yet */

static void __attribute__((noreturn)) die(const char *what, long r)
{
	fprintf(stderr, "pingpong: %s: %s\n", what, fi_strerror((int)-r));
	exit(1);
}
/* Run a libfabric call; end the program with its message when it fails. */
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) die(#call, r_); } while (0)

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* ---- set-up ----------------------------------------------------------- */

static struct fi_info *find(const char *n, const char *s, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;

	if (!hints)
		die("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = type;
	hints->caps = type == FI_EP_RDM ? FI_TAGGED : FI_MSG;
	hints->mode = FI_CONTEXT;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->addr_format = strchr(node, ':') ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	TRY(fi_getinfo(FI_VERSION(1, 14), n, s, flags, hints, &info));
	fi_freeinfo(hints);
	return info;
}

static void open_endpoint(struct fi_info *info)
{
	struct fi_cq_attr cq_attr = {
		.format = FI_CQ_FORMAT_TAGGED, .size = 2 * WINDOW, .wait_obj = sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE,
	};
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 2 };

	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &txcq, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &rxcq, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &txcq->fid, FI_TRANSMIT));
	TRY(fi_ep_bind(ep, &rxcq->fid, FI_RECV));
	if (type == FI_EP_RDM) {
		TRY(fi_av_open(domain, &av_attr, &av, NULL));
		TRY(fi_ep_bind(ep, &av->fid, 0));
	} else {
		TRY(fi_ep_bind(ep, &eq->fid, 0));
	}
	TRY(fi_enable(ep));
}

/* Wait for one connection event and return its fi_info, if it has one. */
static struct fi_info *await_event(uint32_t wanted)
{
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry err = { 0 };
	uint32_t event = 0;
	ssize_t r = fi_eq_sread(eq, &event, &entry, sizeof entry, -1, 0);

	if (r == -FI_EAVAIL) {
		TRY(fi_eq_readerr(eq, &err, 0));
		die("connection", -err.err);
	}
	TRY(r);
	if (event != wanted)
		die("unexpected connection event", -FI_EOTHER);
	return entry.info;
}

static void print_address(struct fid *fid)
{
	struct sockaddr_storage a;
	size_t n = sizeof a;
	char s[INET6_ADDRSTRLEN];

	TRY(fi_getname(fid, &a, &n));
	if (listening >= 0) {
		if (write(listening, &a, sizeof a) != sizeof a)
			die("pipe", -errno);
	} else if (a.ss_family == AF_INET6) {
		struct sockaddr_in6 *in = (void *)&a;
		inet_ntop(AF_INET6, &in->sin6_addr, s, sizeof s);
		printf("listening on %s:%d\n", s, ntohs(in->sin6_port));
	} else {
		struct sockaddr_in *in = (void *)&a;
		inet_ntop(AF_INET, &in->sin_addr, s, sizeof s);
		printf("listening on %s:%d\n", s, ntohs(in->sin_port));
	}
	fflush(stdout);
}

static void open_fabric(struct fi_info *info)
{
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };

	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	if (type == FI_EP_MSG)
		TRY(fi_eq_open(fabric, &attr, &eq, NULL));
}

/* ---- transfers --------------------------------------------------------- */

/* What reading a queue answered; true when there was an entry. */
static int found(struct fid_cq *cq, ssize_t r)
{
	struct fi_cq_err_entry err = { 0 };

	if (r == 1)
		return 1;
	if (r == -FI_EAVAIL) {
		TRY(fi_cq_readerr(cq, &err, 0));
		die("transfer", -err.err);
	}
	if (r != -FI_EAGAIN && r != -FI_EINTR)
		die("fi_cq_read", r);
	return 0;
}
/* Read one queue; true when it had an entry. Progress of the other comes along. */
static int reap(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;

	return found(cq, fi_cq_read(cq, &e, 1));
}
/* The same for a queue that will have one; -w sleeps until then. */
static int await(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry e;

	return found(cq, sleeps ? fi_cq_sread(cq, &e, 1, NULL, -1) : fi_cq_read(cq, &e, 1));
}

static struct fi_context contexts[2 * WINDOW];
static unsigned next_context;

static void post_recv(size_t n, int slot)
{
	ssize_t r;

	do {
		if (type == FI_EP_RDM)
			r = fi_trecv(ep, rbuf, n, NULL, FI_ADDR_UNSPEC, TAG, 0, &contexts[WINDOW + slot]);
		else
			r = fi_recv(ep, rbuf, n, NULL, FI_ADDR_UNSPEC, &contexts[WINDOW + slot]);
		if (r == -FI_EAGAIN)
			outstanding -= reap(txcq);
	} while (r == -FI_EAGAIN);
	TRY(r);
}

static void post_send(size_t n)
{
	ssize_t r;

	do {
		struct fi_context *c = &contexts[next_context % WINDOW];

		if (type == FI_EP_RDM)
			r = fi_tsend(ep, sbuf, n, NULL, peer, TAG, c);
		else
			r = fi_send(ep, sbuf, n, NULL, peer, c);
		if (r == -FI_EAGAIN)
			outstanding -= reap(txcq);
	} while (r == -FI_EAGAIN);
	TRY(r);
	next_context++;
	outstanding++;
}

static void await_recv(void)
{
	while (!await(rxcq))
		outstanding -= outstanding ? reap(txcq) : 0;
}
static void await_sends(long left)
{
	while (outstanding > left)
		outstanding -= await(txcq);
}

static void fill(size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		sbuf[i] = (unsigned char)(i * 31 + seed);
}
static void check(size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		if (rbuf[i] != (unsigned char)(i * 31 + seed)) {
			fprintf(stderr, "pingpong: byte %zu of %zu is wrong\n", i, n);
			exit(1);
		}
}

/* There and back `count` times; returns microseconds one way. */
static double latency(size_t n, int count, int client)
{
	double start = now_us();

	for (int i = 0; i < count; i++) {
		post_recv(n, 0);
		if (client)
			post_send(n);
		await_recv();
		if (!client)
			post_send(n);
		await_sends(0);
	}
	return (now_us() - start) / count / 2;
}

/* The client streams `count` messages, the server answers once; returns MB/s. */
static double bandwidth(size_t n, int count, int client)
{
	double start = now_us();

	if (client) {
		post_recv(0, 0);
		for (int i = 0; i < count; i++) {
			await_sends(WINDOW - 1);
			post_send(n);
		}
		await_recv();
		await_sends(0);
	} else {
		int posted = 0;

		for (; posted < count && posted < WINDOW - 1; posted++)
			post_recv(n, posted);
		for (int i = 0; i < count; i++) {
			await_recv();
			if (posted < count)
				post_recv(n, posted++ % WINDOW);
		}
		post_send(0);
		await_sends(0);
	}
	return n * (double)count / (now_us() - start);
}

static void run(int client)
{
	static const size_t sizes[] = { 0, 1, 64, 1024, 4096, 65536, 1 << 20 };
	const size_t count = only_size == SIZE_MAX ? sizeof sizes / sizeof *sizes : 1;

	sbuf = calloc(1, MAX_SIZE);
	rbuf = calloc(1, MAX_SIZE);
	if (!sbuf || !rbuf)
		die("memory", -FI_ENOMEM);
	if (client && !quiet)
		printf("%10s %12s %12s\n", "bytes", "latency/us", "MB/s");
	for (size_t k = 0; k < count; k++) {
		size_t n = count == 1 ? only_size : sizes[k];
		int few = n >= 65536 ? (iterations + 9) / 10 : iterations;
		double l, b;

		for (unsigned round = 0; round < 3; round++) {	/* contents, both ways */
			if (client) {
				fill(n, round);
				latency(n, 1, 1);
				check(n, round + 7);
			} else {
				memset(rbuf, 0, n);
				post_recv(n, 0);
				await_recv();
				check(n, round);
				fill(n, round + 7);
				post_send(n);
				await_sends(0);
			}
		}
		latency(n, few / 10 + 1, client);		/* warm up */
		l = latency(n, few, client);
		b = bandwidth(n, few * 4, client);
		if (client)
			printf("%10zu %12.2f %12.1f\n", n, l, b);
		fflush(stdout);
	}
	/* Leave together: neither side closes while the other still reads. */
	if (client) {
		post_send(0);
		await_sends(0);
		post_recv(0, 0);
		await_recv();
	} else {
		post_recv(0, 0);
		await_recv();
		post_send(0);
		await_sends(0);
	}
}

static void serve(void)
{
	struct fi_info *info = find(node, service, FI_SOURCE);
	struct sockaddr_storage a = { 0 };

	open_fabric(info);
	if (type == FI_EP_MSG) {
		struct fi_info *request;

		TRY(fi_passive_ep(fabric, info, &pep, NULL));
		TRY(fi_pep_bind(pep, &eq->fid, 0));
		TRY(fi_listen(pep));
		print_address(&pep->fid);
		request = await_event(FI_CONNREQ);
		open_endpoint(request);
		fi_freeinfo(request);
		TRY(fi_accept(ep, NULL, 0));
		await_event(FI_CONNECTED);
	} else {
		open_endpoint(info);
		print_address(&ep->fid);
		/* the client's first message holds its address */
		rbuf = (void *)&a;
		post_recv(sizeof a, 0);
		await_recv();
		if (fi_av_insert(av, &a, 1, &peer, 0, NULL) != 1)
			die("fi_av_insert", -FI_EADDRNOTAVAIL);
	}
	fi_freeinfo(info);
	run(0);
}

static void call(void)
{
	struct fi_info *info = find(node, service, 0);
	struct sockaddr_storage a = { 0 };
	size_t n = sizeof a;

	open_fabric(info);
	open_endpoint(info);
	if (type == FI_EP_MSG) {
		TRY(fi_connect(ep, info->dest_addr, NULL, 0));
		await_event(FI_CONNECTED);
	} else {
		if (fi_av_insert(av, info->dest_addr, 1, &peer, 0, NULL) != 1)
			die("fi_av_insert", -FI_EADDRNOTAVAIL);
		TRY(fi_getname(&ep->fid, &a, &n));
		sbuf = (void *)&a;
		post_send(sizeof a);
		await_sends(0);
	}
	fi_freeinfo(info);
	run(1);
}

static void close_all(void)
{
	TRY(fi_close(&ep->fid));
	if (pep)
		TRY(fi_close(&pep->fid));
	TRY(fi_close(&txcq->fid));
	TRY(fi_close(&rxcq->fid));
	if (av)
		TRY(fi_close(&av->fid));
	TRY(fi_close(&domain->fid));
	if (eq)
		TRY(fi_close(&eq->fid));
	TRY(fi_close(&fabric->fid));
}

/* "1.2.3.4:5", "[::1]:5" or "::1:5": the port is what follows the last colon. */
static void split_address(char *s)
{
	char *colon = strrchr(s, ':');

	if (!colon) {
		fprintf(stderr, "pingpong: -a wants ADDR:PORT\n");
		exit(2);
	}
	*colon = 0;
	service = colon + 1;
	if (*s == '[') {
		s++;
		s[strcspn(s, "]")] = 0;
	}
	node = s;
}

int main(int argc, char **argv)
{
	enum { BOTH, SERVER, CLIENT } role = BOTH;
	int c, fds[2], status = 0;
	pid_t child = 0;

	while ((c = getopt(argc, argv, "e:p:sa:b:n:S:qw")) != -1) {
		switch (c) {
		case 'e': type = strcmp(optarg, "msg") ? FI_EP_RDM : FI_EP_MSG; break;
		case 'p': provider = optarg; break;
		case 's': role = SERVER; break;
		case 'a': role = CLIENT; split_address(optarg); break;
		case 'b': node = optarg; break;
		case 'n': iterations = atoi(optarg) > 0 ? atoi(optarg) : 1; break;
		case 'S': only_size = strtoull(optarg, NULL, 0); break;
		case 'q': quiet = 1; break;
		case 'w': sleeps = 1; break;
		default:
			fprintf(stderr, "usage: %s [-e msg|rdm] [-p provider] [-s | -a ADDR:PORT] [-b ADDR] [-n COUNT] [-S SIZE] [-q] [-w]\n", argv[0]);
			return 2;
		}
	}
	if (only_size != SIZE_MAX && only_size > MAX_SIZE) {
		fprintf(stderr, "pingpong: sizes up to %zu\n", MAX_SIZE);
		return 2;
	}
	if (role == BOTH) {		/* fork before any libfabric call */
		if (pipe(fds))
			die("pipe", -errno);
		child = fork();
		if (child < 0)
			die("fork", -errno);
		role = child ? CLIENT : SERVER;
		if (role == SERVER) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);	/* never outlive the client */
			close(fds[0]);
			listening = fds[1];
		} else {
			static char addr[INET6_ADDRSTRLEN], port[8];
			struct sockaddr_storage a;

			close(fds[1]);
			if (read(fds[0], &a, sizeof a) != sizeof a) {
				waitpid(child, &status, 0);
				return 1;	/* the server has said why */
			}
			if (a.ss_family == AF_INET6) {
				inet_ntop(AF_INET6, &((struct sockaddr_in6 *)&a)->sin6_addr, addr, sizeof addr);
				snprintf(port, sizeof port, "%d", ntohs(((struct sockaddr_in6 *)&a)->sin6_port));
			} else {
				inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, addr, sizeof addr);
				snprintf(port, sizeof port, "%d", ntohs(((struct sockaddr_in *)&a)->sin_port));
			}
			node = addr;
			service = port;
		}
	}
	if (role == SERVER) {
		serve();
		close_all();
		return 0;
	}
	if (!quiet)
		print_library();
	call();
	close_all();
	if (child) {
		waitpid(child, &status, 0);
		if (status) {
			fprintf(stderr, "pingpong: the server side failed\n");
			return 1;
		}
	}
	return 0;
}
