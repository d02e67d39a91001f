/*
 * One figure of one libfabric, for benches/run: the same binary runs on every
 * library that is compared.
 *
 *   fabbench lat|wait|bw|rate msg|rdm|raw PROVIDER SIZE COUNT
 *       lat   half a round trip, microseconds
 *       wait  the same with queues that are slept on (fi_cq_sread)
 *       bw    one-way stream, MB/s, window of 16
 *       rate  one-way stream, thousand messages a second, window of 64
 *       raw   the same over one non-blocking TCP connection: the floor
 *   fabbench first|longest msg|rdm PROVIDER SIZE COUNT
 *       milliseconds of the first COUNT round trips of a pair that has just met, and the longest of
 *       them, microseconds.  FABBENCH_THREADS=1: each process has another thread, which sleeps
 *   fabbench write|read|writebw|readbw rdm PROVIDER SIZE COUNT
 *       as rate and bw, of writes to the other's memory and reads of it
 *   fabbench writebibw|readbibw rdm PROVIDER SIZE COUNT
 *       MB/s of one direction while both processes write to or read from the other, 16 transfers
 *       at a time, all of which are complete before the next begin
 *   fabbench steps rdm PROVIDER SIZE COUNT
 *       COUNT times tagged send, receive and both completions between two
 *       endpoints of one process, for an instruction counter around it
 *   fabbench calm msg|rdm PROVIDER SIZE COUNT
 *       the same with a rest before completions are read, which then are there: no
 *       empty poll is counted
 *   fabbench posted rdm PROVIDER SIZE COUNT
 *       how much longer such a step takes with 10000 receives posted than with 10
 *   fabbench kept rdm PROVIDER SIZE COUNT
 *       how much longer steps take whose receives name a source, or ignore bits of the
 *       tag, with 100000 other messages that wait for a receive than with none
 *   fabbench idle rdm PROVIDER SIZE COUNT
 *       how much longer it takes with 1000 idle connected peers than with none
 *   fabbench memory rdm PROVIDER SIZE COUNT
 *       bytes that each of 1000 idle connected peers takes
 *   fabbench getinfo msg|rdm PROVIDER SIZE COUNT
 *       microseconds of one fi_getinfo, the first of the process aside
 *   fabbench start msg|rdm PROVIDER SIZE COUNT
 *       milliseconds from the start of two processes to the end of a first message
 *       of SIZE bytes and its answer
 *   fabbench pairs rdm PROVIDER SIZE COUNT
 *       milliseconds until each of COUNT processes has a message of SIZE bytes from each
 *       other, none of which were connected before
 *   fabbench crowd|kind rdm PROVIDER SIZE COUNT
 *       microseconds of a barrier among SIZE processes that poll without a pause (kind: that
 *       yield when there is nothing), COUNT times; more processes than processors
 *   fabbench couples rdm PROVIDER SIZE COUNT
 *       half a round trip of the slowest of SIZE pairs that play at once, microseconds
 *
 * FABBENCH_HMEM=1: the endpoints are asked to have FI_HMEM; all buffers are the host's.
 * FABBENCH_NODE=ADDRESS: the address of the serving process, in place of 127.0.0.1.
 * FABBENCH_SERVER_NETNS=FILE: of two processes the serving one enters this network namespace,
 * which has that address, before it calls libfabric; not with raw.
 *
 * FI_EP_RDM uses tagged messages, FI_EP_MSG untagged ones.  Queues have no wait
 * object and both sides spin, each on a core of its own where there are two.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#define MAXW 64
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) { \
	fprintf(stderr, "fabbench: %s: %s\n", #call, fi_strerror((int)-r_)); exit(1); } } while (0)

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_cq *tx, *rx;
	struct fid_av *av;
	struct fid_ep *ep;
	fi_addr_t peer;
	long sent;		/* completions not yet read */
	struct fi_context2 ctx[2 * MAXW];
	unsigned next;
};

static const char *provider;
static enum fi_ep_type type;
static char *sbuf, *rbuf;
/* Where sbuf and rbuf are registered, if the provider wants that. */
static void *sdesc, *rdesc;
static size_t buflen;

/* An endpoint's address, of whatever format. */
union name {
	struct sockaddr_storage addr;
	char bytes[1024];
};

/* FABBENCH_NODE: for providers that have no loopback, an address of this host. */
static const char *node(void)
{
	const char *named = getenv("FABBENCH_NODE");

	return named ? named : "127.0.0.1";
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
static void pin(int core)
{
	cpu_set_t all, one;

	CPU_ZERO(&one);
	if (sched_getaffinity(0, sizeof all, &all) || CPU_COUNT(&all) < 2)
		return;
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &all) && core-- == 0)
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof one, &one);
}

/* Puts this process, which has one thread yet, into the network namespace that is asked for. */
static void enter_netns(void)
{
	const char *file = getenv("FABBENCH_SERVER_NETNS");
	int fd;

	if (!file)
		return;
	fd = open(file, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET)) {
		fprintf(stderr, "fabbench: %s: %s\n", file, strerror(errno));
		exit(1);
	}
	close(fd);
}

/* What the queue for receives has to sleep on. */
static enum fi_wait_obj wait_obj = FI_WAIT_NONE;

static uint64_t more_caps;
static struct fi_info *find(const char *node, const char *service, uint64_t flags)
{
	struct fi_info *h = fi_allocinfo(), *info = NULL;

	h->ep_attr->type = type;
	h->caps = type == FI_EP_RDM ? FI_TAGGED | more_caps : FI_MSG;
	if (more_caps & FI_RMA)
		h->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	if (getenv("FABBENCH_HMEM")) {
		h->caps |= FI_HMEM;
		h->domain_attr->mr_mode |= FI_MR_HMEM;
	}
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	if (type == FI_EP_MSG)
		h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	h->fabric_attr->prov_name = strdup(provider);
	h->addr_format = FI_SOCKADDR_IN;
	if (!strcmp(provider, "shm") || !strcmp(provider, "lnx")) {	/* each side takes its own */
		h->addr_format = *provider == 's' ? FI_ADDR_STR : FI_FORMAT_UNSPEC;
		node = service = NULL;
		flags = 0;
	}
	TRY(fi_getinfo(FI_VERSION(1, 14), node, service, flags, h, &info));
	fi_freeinfo(h);
	return info;
}
static void *registered(struct side *s, char *buf, uint64_t access)
{
	struct fid_mr *mr;

	TRY(fi_mr_reg(s->domain, buf, buflen, access, 0, 0, 0, &mr, NULL));
	return fi_mr_desc(mr);
}
static void open_ep(struct side *s)
{
	struct fi_cq_attr qa = { .format = type == FI_EP_MSG ? FI_CQ_FORMAT_DATA : FI_CQ_FORMAT_TAGGED, .size = 4 * MAXW };
	struct fi_av_attr aa = { .type = FI_AV_TABLE, .count = 4 };

	if (!s->domain)		/* sides of one process share a registration, so a domain */
		TRY(fi_domain(s->fabric, s->info, &s->domain, NULL));
	if (type == FI_EP_MSG && s->info->domain_attr->mr_mode & FI_MR_LOCAL && !sdesc) {
		sdesc = registered(s, sbuf, FI_SEND);
		rdesc = registered(s, rbuf, FI_RECV);
	}
	TRY(fi_cq_open(s->domain, &qa, &s->tx, NULL));
	qa.wait_obj = wait_obj;
	TRY(fi_cq_open(s->domain, &qa, &s->rx, NULL));
	TRY(fi_endpoint(s->domain, s->info, &s->ep, NULL));
	TRY(fi_ep_bind(s->ep, &s->tx->fid, FI_TRANSMIT));
	TRY(fi_ep_bind(s->ep, &s->rx->fid, FI_RECV));
	if (type == FI_EP_RDM) {
		TRY(fi_av_open(s->domain, &aa, &s->av, NULL));
		TRY(fi_ep_bind(s->ep, &s->av->fid, 0));
	} else {
		TRY(fi_ep_bind(s->ep, &s->eq->fid, 0));
	}
	TRY(fi_enable(s->ep));
}
static struct fi_info *event(struct side *s, uint32_t want)
{
	struct fi_eq_cm_entry e;
	uint32_t ev;
	ssize_t r = fi_eq_sread(s->eq, &ev, &e, sizeof e, -1, 0);

	if (r < 0 || ev != want) {
		fprintf(stderr, "fabbench: connection failed\n");
		exit(1);
	}
	return e.info;
}
static int take(struct fid_cq *q, int wait)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	ssize_t r = wait ? fi_cq_sread(q, &e, 1, NULL, -1) : fi_cq_read(q, &e, 1);

	if (r == 1)
		return 1;
	if (r != -FI_EAGAIN) {
		if (r == -FI_EAVAIL)
			fi_cq_readerr(q, &err, 0);
		fprintf(stderr, "fabbench: transfer failed: %s\n", fi_strerror(err.err ? err.err : (int)-r));
		exit(1);
	}
	return 0;
}
static int reap(struct fid_cq *q)
{
	return take(q, 0);
}
static void post_recv(struct side *s, size_t n, int slot)
{
	ssize_t r;

	for (;;) {
		if (type == FI_EP_RDM)
			r = fi_trecv(s->ep, rbuf, n, NULL, FI_ADDR_UNSPEC, 1, 0, &s->ctx[MAXW + slot % MAXW]);
		else
			r = fi_recv(s->ep, rbuf, n, rdesc, FI_ADDR_UNSPEC, &s->ctx[MAXW + slot % MAXW]);
		if (r != -FI_EAGAIN)
			break;
		s->sent -= reap(s->tx);
	}
	TRY(r);
}
static void post_send(struct side *s, size_t n)
{
	ssize_t r;

	for (;;) {
		void *c = &s->ctx[s->next % MAXW];

		if (type == FI_EP_RDM)
			r = fi_tsend(s->ep, sbuf, n, NULL, s->peer, 1, c);
		else
			r = fi_send(s->ep, sbuf, n, sdesc, s->peer, c);
		if (r != -FI_EAGAIN)
			break;
		s->sent -= reap(s->tx);
	}
	TRY(r);
	s->next++;
	s->sent++;
}
/* The other's memory. */
static struct position { uint64_t addr, key; } position;
static struct position share(struct side *s)
{
	struct fid_mr *mr;
	int virt = s->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;

	TRY(fi_mr_reg(s->domain, rbuf, buflen, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	return (struct position){ virt ? (uintptr_t)rbuf : 0, fi_mr_key(mr) };
}
static int reads;
static void post_rma(struct side *s, size_t n)
{
	ssize_t r;

	for (;;) {
		void *c = &s->ctx[s->next % MAXW];

		if (reads)
			r = fi_read(s->ep, sbuf, n, NULL, s->peer, position.addr, position.key, c);
		else
			r = fi_write(s->ep, sbuf, n, NULL, s->peer, position.addr, position.key, c);
		if (r != -FI_EAGAIN)
			break;
		s->sent -= reap(s->tx);
	}
	TRY(r);
	s->next++;
	s->sent++;
}
static void await_sends(struct side *s, long left)
{
	while (s->sent > left)
		s->sent -= reap(s->tx);
}
static void await_recv(struct side *s)
{
	while (!take(s->rx, wait_obj != FI_WAIT_NONE))
		if (s->sent)
			s->sent -= reap(s->tx);
}

static void pingpong(struct side *s, size_t n, long count, int client)
{
	for (long i = 0; i < count; i++) {
		post_recv(s, n, 0);
		if (client)
			post_send(s, n);
		await_recv(s);
		if (!client)
			post_send(s, n);
		await_sends(s, 0);
	}
}
/* The longest of these round trips, microseconds. */
static double longest(struct side *s, size_t n, long count, int client)
{
	double most = 0, t = now_us(), then;

	for (long i = 0; i < count; i++, t = then) {
		pingpong(s, n, 1, client);
		then = now_us();
		if (then - t > most)
			most = then - t;
	}
	return most;
}
static void *sleeps(void *none)
{
	for (;;)
		pause();
	return none;
}
static void stream(struct side *s, size_t n, long count, int w, int client)
{
	if (client) {
		post_recv(s, 1, 0);
		for (long i = 0; i < count; i++) {
			await_sends(s, w - 1);
			post_send(s, n);
		}
		await_recv(s);
		await_sends(s, 0);
	} else {
		long posted = 0;

		for (; posted < count && posted < w; posted++)
			post_recv(s, n, posted);
		for (long i = 0; i < count; i++) {
			await_recv(s);
			if (posted < count)
				post_recv(s, n, posted++);
		}
		post_send(s, 1);
		await_sends(s, 0);
	}
}
/* The message behind the last transfer comes when all are there. */
static void stream_rma(struct side *s, size_t n, long count, int w, int client)
{
	post_recv(s, 1, 0);
	if (client) {
		for (long i = 0; i < count; i++) {
			await_sends(s, w - 1);
			post_rma(s, n);
		}
		await_sends(s, 0);
		post_send(s, 1);
	}
	await_recv(s);
	if (!client)
		post_send(s, 1);
	await_sends(s, 0);
}

/* Each tells the other where its memory is. */
static void share_both(struct side *s)
{
	struct position mine = share(s);

	post_recv(s, sizeof mine, 0);
	memcpy(sbuf, &mine, sizeof mine);
	post_send(s, sizeof mine);
	await_recv(s);
	await_sends(s, 0);
	memcpy(&position, rbuf, sizeof position);
}
static void stream_both(struct side *s, size_t n, long count, int w, int client)
{
	(void)client;
	post_recv(s, 1, 0);
	for (long i = 0; i < count; i += w) {
		for (long j = i; j < i + w && j < count; j++)
			post_rma(s, n);
		await_sends(s, 0);
	}
	post_send(s, 1);
	await_recv(s);
	await_sends(s, 0);
}

/* ---- the floor: one TCP connection ----------------------------------- */

static void raw_recv(int s, char *b, size_t n)
{
	while (n) {
		ssize_t r = recv(s, b, n, MSG_DONTWAIT);

		if (r > 0)
			b += r, n -= r;
		else if (r == 0 || errno != EAGAIN)
			exit(1);
	}
}
static void raw_send(int s, const char *b, size_t n)
{
	while (n) {
		ssize_t r = send(s, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (r > 0)
			b += r, n -= r;
		else if (errno != EAGAIN)
			exit(1);
	}
}
static double raw(const char *mode, size_t n, long count)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t al = sizeof a;
	int l = socket(AF_INET, SOCK_STREAM, 0), s, one = 1, lat = !strcmp(mode, "lat");
	long warm = lat ? count / 10 + 1 : 0;
	pid_t p;
	double t = 0;

	if (bind(l, (void *)&a, al) || getsockname(l, (void *)&a, &al) || listen(l, 1))
		exit(1);
	p = fork();
	if (p == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(1);
		s = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(s, (void *)&a, al))
			exit(1);
	} else {
		pin(0);
		s = accept(l, NULL, NULL);
	}
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (long i = 0; i < (lat ? warm + count : count); i++) {
		if (p && (i == warm))
			t = now_us();
		if (p)
			raw_send(s, sbuf, n);
		if (lat || !p)
			raw_recv(s, rbuf, n);
		if (lat && !p)
			raw_send(s, sbuf, n);
	}
	if (!lat && !p)
		raw_send(s, sbuf, 1);
	if (!p)
		exit(0);
	if (!lat)
		raw_recv(s, rbuf, 1);
	t = now_us() - t;
	waitpid(p, NULL, 0);
	return t;
}

/* ---- two endpoints of one process -------------------------------------- */

static struct side one, two;
static int calm;

static void open_pair(union name name[2])
{
	struct side *s[2] = { &one, &two };

	for (int i = 0; i < 2; i++) {
		size_t len = sizeof name[i];

		s[i]->info = find(node(), "0", FI_SOURCE);
		TRY(fi_fabric(s[i]->info->fabric_attr, &s[i]->fabric, NULL));
		open_ep(s[i]);
		TRY(fi_getname(&s[i]->ep->fid, &name[i], &len));
	}
	for (int i = 0; i < 2; i++)
		if (fi_av_insert(s[i]->av, &name[!i], 1, &s[i]->peer, 0, NULL) != 1)
			exit(1);
}
/* The next event of one side, while the other makes progress as well. */
static struct fi_info *event_of_pair(struct side *s, uint32_t want)
{
	struct side *other = s == &one ? &two : &one;
	struct fi_eq_cm_entry e;
	uint32_t ev;
	ssize_t r;

	while ((r = fi_eq_read(s->eq, &ev, &e, sizeof e, 0)) == -FI_EAGAIN) {
		struct fi_eq_cm_entry later;
		uint32_t kind;

		(void)fi_eq_read(other->eq, &kind, &later, sizeof later, FI_PEEK);
		if (one.rx)
			(void)fi_cq_read(one.rx, NULL, 0);
		if (two.rx)
			(void)fi_cq_read(two.rx, NULL, 0);
	}
	if (r < 0 || ev != want) {
		fprintf(stderr, "fabbench: connection failed\n");
		exit(1);
	}
	return e.info;
}
/* The same, connected. */
static void connect_pair(void)
{
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	union name name;
	size_t len = sizeof name;
	char port[8];

	two.info = find(node(), "0", FI_SOURCE);
	TRY(fi_fabric(two.info->fabric_attr, &two.fabric, NULL));
	one.fabric = two.fabric;
	TRY(fi_eq_open(two.fabric, &ea, &two.eq, NULL));
	TRY(fi_eq_open(two.fabric, &ea, &one.eq, NULL));
	TRY(fi_passive_ep(two.fabric, two.info, &two.pep, NULL));
	TRY(fi_pep_bind(two.pep, &two.eq->fid, 0));
	TRY(fi_listen(two.pep));
	TRY(fi_getname(&two.pep->fid, &name, &len));
	snprintf(port, sizeof port, "%d", ntohs(((struct sockaddr_in *)&name)->sin_port));
	one.info = find(node(), port, 0);
	open_ep(&one);
	TRY(fi_connect(one.ep, &name, NULL, 0));
	two.info = event_of_pair(&two, FI_CONNREQ);
	two.domain = one.domain;
	open_ep(&two);
	TRY(fi_accept(two.ep, NULL, 0));
	event_of_pair(&two, FI_CONNECTED);
	event_of_pair(&one, FI_CONNECTED);
	one.peer = two.peer = FI_ADDR_UNSPEC;
}
/* A message from one to two, which has posted a receive with this tag. */
static void step(size_t n, uint64_t tag)
{
	do {
		ssize_t r = type == FI_EP_MSG ? fi_send(one.ep, sbuf, n, sdesc, one.peer, &one.ctx[0])
			: fi_tsend(one.ep, sbuf, n, NULL, one.peer, tag, &one.ctx[0]);

		if (r == 0)
			break;
		if (r != -FI_EAGAIN)
			TRY(r);
		(void)reap(one.tx);
		(void)fi_cq_read(two.rx, NULL, 0);
	} while (1);
	if (calm)
		usleep(10000);
	while (!reap(one.tx))
		(void)fi_cq_read(two.rx, NULL, 0);
	while (!reap(two.rx))
		;
}
/* By its name instructions are counted. */
static __attribute__((noinline)) void steps(size_t n, long count)
{
	for (long i = 0; i < count; i++) {
		post_recv(&two, n, 0);
		step(n, 1);
	}
}
/* Microseconds a step, the best of some tries. */
static double step_time(size_t n, long count)
{
	double best = 1e18;

	steps(n, count / 10 + 1);
	for (int i = 0; i < 5; i++) {
		double t = now_us();

		steps(n, count);
		t = (now_us() - t) / count;
		if (t < best)
			best = t;
	}
	return best;
}
static void tagged_recv(uint64_t tag)
{
	static struct fi_context2 ctx;
	ssize_t r;

	while ((r = fi_trecv(two.ep, rbuf, 64, NULL, FI_ADDR_UNSPEC, tag, 0, &ctx)) == -FI_EAGAIN)
		(void)fi_cq_read(two.rx, NULL, 0);
	TRY(r);
}
static double posted(size_t n, long count)
{
	double few, many;

	for (int i = 0; i < 10; i++)
		tagged_recv(1000 + i);
	few = step_time(n, count);
	for (int i = 10; i < 10000; i++)
		tagged_recv(1000 + i);
	many = step_time(n, count);
	return many / few;
}
/* Receives that name a source and such as ignore bits of the tag, in turn. */
static __attribute__((noinline)) void choosy_steps(size_t n, long count)
{
	for (long i = 0; i < count; i++) {
		fi_addr_t from = i % 2 ? two.peer : FI_ADDR_UNSPEC;
		ssize_t r;

		while ((r = fi_trecv(two.ep, rbuf, n, NULL, from, 0x500, i % 2 ? 0 : 0xff, &two.ctx[MAXW])) == -FI_EAGAIN)
			(void)fi_cq_read(two.rx, NULL, 0);
		TRY(r);
		step(n, 0x500);
	}
}
static double choosy_time(size_t n, long count)
{
	double best = 1e18;

	choosy_steps(n, count / 10 + 1);
	for (int i = 0; i < 5; i++) {
		double t = now_us();

		choosy_steps(n, count);
		t = (now_us() - t) / count;
		if (t < best)
			best = t;
	}
	return best;
}
static double buffered(size_t n, long count)
{
	double none = choosy_time(n, count), end = now_us() + 20e6;

	for (int i = 0; i < 100000; i++) {
		while (fi_tinject(one.ep, sbuf, 8, one.peer, 0x1000 + i) == -FI_EAGAIN) {
			(void)reap(one.tx);
			(void)fi_cq_read(two.rx, NULL, 0);
			if (now_us() > end) {
				fprintf(stderr, "fabbench: only %d messages are kept\n", i);
				exit(1);
			}
		}
	}
	/* the last one is behind all others */
	post_recv(&two, n, 0);
	step(n, 1);
	return choosy_time(n, count) / none;
}
static long resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long pages = 0;

	if (!f || fscanf(f, "%*d %ld", &pages) != 1)
		exit(1);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}
/* So many endpoints of another process that have said one word to two. */
static void connect_peers(int peers, union name *name)
{
	int done = 0, go[2];
	pid_t parent = getpid();

	if (pipe(go))
		exit(1);
	if (fork() == 0) {
		struct side *s = calloc(peers, sizeof *s);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			exit(1);
		for (int i = 0; i < peers; i++) {
			s[i].info = find(node(), "0", FI_SOURCE);
			TRY(fi_fabric(s[i].info->fabric_attr, &s[i].fabric, NULL));
			open_ep(&s[i]);
			if (fi_av_insert(s[i].av, name, 1, &s[i].peer, 0, NULL) != 1)
				exit(1);
			post_send(&s[i], 1);
			await_sends(&s[i], 0);
			if (write(go[1], "", 1) != 1)
				exit(1);
		}
		for (;;)
			pause();
	}
	while (done < peers) {
		post_recv(&two, 64, 0);
		await_recv(&two);
		done++;
	}
}

static double getinfo_time(long count)
{
	double t;

	fi_freeinfo(find(NULL, NULL, 0));
	t = now_us();
	for (long i = 0; i < count; i++)
		fi_freeinfo(find(NULL, NULL, 0));
	return (now_us() - t) / count;
}
/* Whole processes: loading, fi_getinfo, opening, connecting, one round trip. */
static double start_time(char **argv, long count)
{
	char *args[] = { argv[0], "lat", argv[2], argv[3], argv[4], "1", NULL };
	double t = now_us();

	for (long i = 0; i < count; i++) {
		int st, out = open("/dev/null", O_WRONLY);
		pid_t p = fork();

		if (p == 0) {
			dup2(out, 1);
			execv("/proc/self/exe", args);
			_exit(127);
		}
		close(out);
		if (p < 0 || waitpid(p, &st, 0) != p || st != 0) {
			fprintf(stderr, "fabbench: a process failed\n");
			exit(1);
		}
	}
	return (now_us() - t) / count / 1000;
}

/* What the processes of all pairs share. */
struct all {
	atomic_int open, go, through;
	_Atomic double slowest;
	union name name[];
};

static void await_count(atomic_int *n, int wanted, struct side *s)
{
	while (atomic_load(n) < wanted) {
		if (s) {
			(void)fi_cq_read(s->rx, NULL, 0);
			(void)fi_cq_read(s->tx, NULL, 0);
		}
		sched_yield();
	}
}
/* Opens an endpoint that has all n in its address vector, process i as address i. */
static void know_all(struct all *all, struct side *s, int me, int n)
{
	size_t len = sizeof all->name[me];

	s->info = find(node(), "0", FI_SOURCE);
	TRY(fi_fabric(s->info->fabric_attr, &s->fabric, NULL));
	open_ep(s);
	TRY(fi_getname(&s->ep->fid, &all->name[me], &len));
	atomic_fetch_add(&all->open, 1);
	await_count(&all->go, 1, NULL);
	for (int i = 0; i < n; i++) {
		fi_addr_t peer;

		if (fi_av_insert(s->av, &all->name[i], 1, &peer, 0, NULL) != 1 || peer != (fi_addr_t)i)
			exit(1);
	}
}
/* One of n processes: its endpoint tells all others, and hears from them. */
static void talk_to_all(struct all *all, int me, int n, size_t size)
{
	static struct side s;
	struct fi_context2 *ctx = calloc(2 * n, sizeof *ctx);
	int sent = 0, received = 0;

	know_all(all, &s, me, n);
	for (int i = 0; i < n; i++)
		if (i != me)
			TRY(fi_trecv(s.ep, rbuf, size, NULL, FI_ADDR_UNSPEC, 1, 0, &ctx[i]));
	/* each begins with another */
	for (int i = 1; i < n; i++) {
		int to = (me + i) % n;
		ssize_t r;

		while ((r = fi_tsend(s.ep, sbuf, size, NULL, to, 1, &ctx[n + to])) == -FI_EAGAIN) {
			received += reap(s.rx);
			sent += reap(s.tx);
		}
		TRY(r);
	}
	while (sent < n - 1 || received < n - 1) {
		int before = sent + received;

		received += reap(s.rx);
		sent += reap(s.tx);
		if (sent + received == before)
			sched_yield();
	}
	atomic_fetch_add(&all->through, 1);
	await_count(&all->through, n, &s);
	_exit(0);
}
static int yields;
/* Eight bytes to one process and from another. */
static void swap_with(struct side *s, int to, int from, uint64_t tag)
{
	int sent = 0, received = 0;
	ssize_t r;

	while ((r = fi_trecv(s->ep, rbuf, 8, NULL, from, tag, 0, &s->ctx[0])) == -FI_EAGAIN)
		(void)fi_cq_read(s->rx, NULL, 0);
	TRY(r);
	while ((r = fi_tsend(s->ep, sbuf, 8, NULL, to, tag, &s->ctx[1])) == -FI_EAGAIN)
		received += reap(s->rx);
	TRY(r);
	while (!sent || !received) {
		int before = sent + received;

		received += reap(s->rx);
		sent += reap(s->tx);
		if (yields && sent + received == before)
			sched_yield();
	}
}
static void barrier(struct side *s, int me, int n)
{
	for (int k = 1; k < n; k <<= 1)
		swap_with(s, (me + k) % n, (me + n - k) % n, k);
}
static void over(struct all *all, double us)
{
	double slowest = atomic_load(&all->slowest);

	while (us > slowest && !atomic_compare_exchange_weak(&all->slowest, &slowest, us))
		;
}
static long crowd_count;
static void synchronize_all(struct all *all, int me, int n, size_t size)
{
	static struct side s;
	double t;

	(void)size;
	know_all(all, &s, me, n);
	for (int i = 0; i < 5; i++)
		barrier(&s, me, n);
	t = now_us();
	for (long i = 0; i < crowd_count; i++)
		barrier(&s, me, n);
	over(all, (now_us() - t) / crowd_count);
	atomic_fetch_add(&all->through, 1);
	await_count(&all->through, n, &s);
	_exit(0);
}
/* Processes 2i and 2i + 1 play. */
static void play(struct all *all, int me, int n, size_t size)
{
	static struct side s;
	double t = 0;

	(void)size;
	know_all(all, &s, me, n);
	for (long i = -20; i < crowd_count; i++) {
		ssize_t r;

		if (i == 0)
			t = now_us();
		for (int half = 0; half < 2; half++) {
			if (half == me % 2) {
				while ((r = fi_tsend(s.ep, sbuf, 64, NULL, me ^ 1, 1, &s.ctx[1])) == -FI_EAGAIN)
					(void)fi_cq_read(s.tx, NULL, 0);
				TRY(r);
				while (!reap(s.tx))
					;
			} else {
				while ((r = fi_trecv(s.ep, rbuf, 64, NULL, me ^ 1, 1, 0, &s.ctx[0])) == -FI_EAGAIN)
					(void)fi_cq_read(s.rx, NULL, 0);
				TRY(r);
				while (!reap(s.rx))
					;
			}
		}
	}
	over(all, (now_us() - t) / crowd_count / 2);
	atomic_fetch_add(&all->through, 1);
	await_count(&all->through, n, &s);
	_exit(0);
}
/* Milliseconds that n processes take; the longest time that one of them measured goes to *us. */
static double processes(int n, size_t size, void (*each)(struct all *, int, int, size_t), double *us)
{
	struct all *all = mmap(NULL, sizeof *all + n * sizeof *all->name, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t *pid = calloc(n, sizeof *pid), parent = getpid();
	double t;

	for (int i = 0; i < n; i++) {
		pid[i] = fork();
		if (pid[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() == parent)
				each(all, i, n, size);
			_exit(1);
		}
	}
	while (atomic_load(&all->open) < n) {
		if (waitpid(-1, NULL, WNOHANG) > 0)
			exit(1);
		usleep(1000);
	}
	t = now_us();
	atomic_store(&all->go, 1);
	while (atomic_load(&all->through) < n) {
		if (waitpid(-1, NULL, WNOHANG) > 0 && atomic_load(&all->through) < n)
			exit(1);
		usleep(200);
	}
	t = now_us() - t;
	while (wait(NULL) > 0)
		;
	if (us)
		*us = atomic_load(&all->slowest);
	return t / 1000;
}

int main(int argc, char **argv)
{
	static struct side s;
	size_t n, len = sizeof(union name);
	long count, warm;
	int fds[2], client, lat, first, bw, both, rma, w, st = 0;
	void (*run)(struct side *s, size_t n, long count, int w, int client);
	pid_t p;
	double t, most;
	union name a = { 0 };

	if (argc != 6) {
		fprintf(stderr, "usage: fabbench lat|wait|bw|rate|first|longest|write|read|writebw|readbw|writebibw|readbibw|steps|calm|posted|kept|idle|memory|getinfo|start|pairs|crowd|kind|couples msg|rdm|raw PROVIDER SIZE COUNT\n");
		return 2;
	}
	provider = argv[3];
	n = strtoull(argv[4], NULL, 0);
	count = atol(argv[5]);
	type = strcmp(argv[2], "msg") ? FI_EP_RDM : FI_EP_MSG;
	lat = !strcmp(argv[1], "lat") || !strcmp(argv[1], "wait");
	first = !strcmp(argv[1], "first") || !strcmp(argv[1], "longest");
	if (!strcmp(argv[1], "wait"))
		wait_obj = FI_WAIT_UNSPEC;
	if (!strcmp(argv[1], "getinfo")) {
		printf("%.2f\n", getinfo_time(count));
		return 0;
	}
	if (!strcmp(argv[1], "start")) {
		printf("%.2f\n", start_time(argv, count));
		return 0;
	}
	reads = !strncmp(argv[1], "read", 4);
	rma = reads || !strncmp(argv[1], "write", 5);
	if (rma)
		more_caps = FI_RMA;
	bw = strstr(argv[1], "bw") != NULL;
	both = strstr(argv[1], "bibw") != NULL;
	run = both ? stream_both : rma ? stream_rma : stream;
	w = bw ? 16 : 64;
	buflen = n + 256;
	sbuf = calloc(1, n + 256);
	rbuf = calloc(1, n + 256);
	memset(sbuf, 1, n + 256);
	if (!strcmp(argv[1], "pairs")) {
		printf("%.1f\n", processes(count, n, talk_to_all, NULL));
		return 0;
	}
	if (!strcmp(argv[1], "crowd") || !strcmp(argv[1], "kind") || !strcmp(argv[1], "couples")) {
		crowd_count = count;
		yields = argv[1][0] == 'k';
		buflen = 256;
		sbuf = calloc(1, buflen);
		rbuf = calloc(1, buflen);
		if (!strcmp(argv[1], "couples"))
			processes(2 * n, 64, play, &t);
		else
			processes(n, 8, synchronize_all, &t);
		printf("%.2f\n", t);
		return 0;
	}
	calm = !strcmp(argv[1], "calm");
	if (!strcmp(argv[1], "steps") || calm || !strcmp(argv[1], "posted") || !strcmp(argv[1], "kept") || !strcmp(argv[1], "idle") || !strcmp(argv[1], "memory")) {
		union name name[2];
		struct rlimit files;
		double none;

		if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
			files.rlim_cur = files.rlim_max;
			setrlimit(RLIMIT_NOFILE, &files);
		}
		if (!strcmp(argv[1], "kept"))
			more_caps = FI_DIRECTED_RECV;
		if (type == FI_EP_MSG)
			connect_pair();
		else
			open_pair(name);
		if (!strcmp(argv[1], "steps") || calm) {
			/* connects, says a little, and has peers of one host meet if they do that */
			for (int i = 0; i < 2000; i++) {
				if (i % 20 == 0) {
					post_recv(&two, n, 0);
					step(n, 1);
				}
				(void)fi_cq_read(one.rx, NULL, 0);
				(void)fi_cq_read(two.rx, NULL, 0);
			}
			steps(n, count);
		} else if (!strcmp(argv[1], "posted")) {
			printf("%.3f\n", posted(n, count));
		} else if (!strcmp(argv[1], "kept")) {
			printf("%.3f\n", buffered(n, count));
		} else {
			long before;

			none = step_time(n, count);
			before = resident();
			connect_peers(1000, &name[1]);
			if (!strcmp(argv[1], "memory"))
				printf("%.0f\n", (resident() - before) / 1000.0);
			else
				printf("%.3f\n", step_time(n, count) / none);
		}
		return 0;
	}
	if (!strcmp(argv[2], "raw")) {
		t = raw(argv[1], n, count);
		goto out;
	}
	if (pipe(fds))
		return 1;
	p = fork();
	client = p != 0;
	pin(!client);
	if (!client)
		enter_netns();
	/* each has pages of its own: those that a fork left to both are copied when a process's memory is read */
	memset(sbuf, 1, n + 256);
	memset(rbuf, 0, n + 256);
	if (getenv("FABBENCH_THREADS")) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, sleeps, NULL))
			return 1;
	}
	if (!client) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		s.info = find(node(), "0", FI_SOURCE);
	} else {
		char port[8];

		close(fds[1]);
		if (read(fds[0], &a, sizeof a) != sizeof a)
			return 1;
		snprintf(port, sizeof port, "%d", ntohs(((struct sockaddr_in *)&a)->sin_port));
		s.info = find(node(), port, 0);
	}
	TRY(fi_fabric(s.info->fabric_attr, &s.fabric, NULL));
	if (type == FI_EP_MSG) {
		struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };

		TRY(fi_eq_open(s.fabric, &ea, &s.eq, NULL));
		s.peer = FI_ADDR_UNSPEC;
		if (client) {
			open_ep(&s);
			TRY(fi_connect(s.ep, &a, NULL, 0));
		} else {
			TRY(fi_passive_ep(s.fabric, s.info, &s.pep, NULL));
			TRY(fi_pep_bind(s.pep, &s.eq->fid, 0));
			TRY(fi_listen(s.pep));
			TRY(fi_getname(&s.pep->fid, &a, &len));
			if (write(fds[1], &a, sizeof a) != sizeof a)
				return 1;
			s.info = event(&s, FI_CONNREQ);
			open_ep(&s);
			TRY(fi_accept(s.ep, NULL, 0));
		}
		event(&s, FI_CONNECTED);
	} else {
		char *keep_s = sbuf, *keep_r = rbuf;

		open_ep(&s);
		if (client) {		/* the first message holds our address */
			if (fi_av_insert(s.av, &a, 1, &s.peer, 0, NULL) != 1)
				return 1;
			TRY(fi_getname(&s.ep->fid, &a, &len));
			sbuf = (char *)&a;
			post_send(&s, sizeof a);
			await_sends(&s, 0);
		} else {
			TRY(fi_getname(&s.ep->fid, &a, &len));
			if (write(fds[1], &a, sizeof a) != sizeof a)
				return 1;
			rbuf = (char *)&a;
			post_recv(&s, sizeof a, 0);
			await_recv(&s);
			if (fi_av_insert(s.av, &a, 1, &s.peer, 0, NULL) != 1)
				return 1;
		}
		sbuf = keep_s;
		rbuf = keep_r;
	}
	if (both) {
		share_both(&s);
	} else if (rma && !client) {
		position = share(&s);
		if (write(fds[1], &position, sizeof position) != sizeof position)
			return 1;
	} else if (rma && read(fds[0], &position, sizeof position) != sizeof position) {
		return 1;
	}
	if (first) {
		t = now_us();
		most = longest(&s, n, count, client);
		t = now_us() - t;
		if (!client)
			pause();
		kill(p, SIGKILL);
		waitpid(p, &st, 0);
		printf("%.2f\n", strcmp(argv[1], "first") ? most : t / 1000);
		return 0;
	}
	warm = count / 10 + 1;
	if (lat)
		pingpong(&s, n, warm, client);
	else
		run(&s, n, warm, w, client);
	pingpong(&s, 1, 1, client);
	t = now_us();
	if (lat)
		pingpong(&s, n, count, client);
	else
		run(&s, n, count, w, client);
	t = now_us() - t;
	pingpong(&s, 1, 1, client);
	if (!client)
		pause();		/* the client ends us: no side closes early */
	kill(p, SIGKILL);
	waitpid(p, &st, 0);
out:
	if (lat)
		printf("%.3f\n", t / count / 2);
	else if (bw)
		printf("%.1f\n", n * (double)count / t);
	else
		printf("%.1f\n", count / t * 1000);
	return 0;
}
