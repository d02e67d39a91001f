/*
 * Many endpoints of one host, for benches/scale: P processes with E reliable datagram endpoints each insert the
 * addresses of all, and send messages in a pattern. Each message has a number; each number arrives once.
 *
 *   endpoints PROVIDER PxE PATTERN SECONDS [ADDRESS]
 *
 * ring    each endpoint sends one message to the next one
 * random  64 to endpoints at random, the same in each run
 * halo    one to each of the six neighbours in a torus of three dimensions
 * one     the first endpoint sends one to each other
 * burst   each other endpoint sends eight to the first
 * all     each endpoint sends one to each other
 *
 * A process has one domain, one completion queue and one address vector. The job ends with an error after SECONDS,
 * and if the host is about to run out of memory.
 *
 * Prints one line: messages; milliseconds to open the endpoints and to insert the addresses; milliseconds until the
 * first message has come to some endpoint, to half of them, to the slowest one, and until all have come; milliseconds
 * to close; MiB of memory (RSS) of a process on average, the sum, and the sum with shared pages counted once (PSS);
 * descriptors of the process with most, and of all; milliseconds of processor time for the messages, of all processes.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "job.h"

enum { ADDR_LEN = 64, MAX_PROCESSES = 4096, MAX_ENDPOINTS = 1 << 17, RECEIVES = 64, SENDS = 1024, RANDOM = 64, BURST = 8 };
enum phase { START, OPEN, INSERT, MESSAGES, MEASURE, CLOSE, PHASES };
static const char *const phase_names[] = { "start", "open", "insert", "messages", "measure", "close" };

/* Shape of the job: endpoints, and the messages between them. */
struct shape {
	char kind;
	int processes, each, count;
	int side[3];
};
/* State of one process, written by it and read by the parent. */
struct member {
	_Alignas(64) atomic_int phase;
	atomic_long received;
	double since, took[PHASES];
	double rss, pss, cpu;
	int fds;
};
/* Memory common to all processes. */
struct job {
	atomic_int phase;
	double start;
	size_t addr_len;
	struct member members[MAX_PROCESSES];
	char addrs[MAX_ENDPOINTS][ADDR_LEN];
	uint32_t expected[MAX_ENDPOINTS];
	double first[MAX_ENDPOINTS], last[MAX_ENDPOINTS];
	atomic_uchar arrived[];
};
struct receive {
	struct fi_context2 context;
	int endpoint;
	uint32_t data[2];
};
struct send {
	struct fi_context2 context;
	struct send *next;
	uint32_t data[2];
};
struct process {
	struct job *job;
	struct member *self;
	const struct shape *shape;
	int first;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep **eps;
	fi_addr_t *peers;
	struct receive *receives;
	struct send *sends, *unused;
	uint32_t *posted;
	int unposted;		/* endpoints with fewer receives than wanted */
	long sending, sent, wanted;
};

/* Most messages of one endpoint. */
static int fan_out(const struct shape *s)
{
	switch (s->kind) {
	case 'r': return 1;
	case 'n': return RANDOM;
	case 'h': return 6;
	case 'b': return BURST;
	default: return s->count - 1;
	}
}
/* The receiver of an endpoint's message, or -1 if there is no such message. */
static int target(const struct shape *s, int from, int k)
{
	int at[3] = { from % s->side[0], from / s->side[0] % s->side[1], from / s->side[0] / s->side[1] };
	uint64_t x;
	int axis, to;

	switch (s->kind) {
	case 'r': return (from + 1) % s->count;
	case 'n':
		x = ((uint64_t)from * RANDOM + k + 1) * 0x9e3779b97f4a7c15;
		x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9;
		return (int)((from + 1 + (x >> 32) % (s->count - 1)) % s->count);
	case 'h':
		axis = k / 2;
		at[axis] = (at[axis] + (k % 2 ? s->side[axis] - 1 : 1)) % s->side[axis];
		to = (at[2] * s->side[1] + at[1]) * s->side[0] + at[0];
		/* both neighbours are the same one in a side of two */
		return to == from || (k % 2 && s->side[axis] == 2) ? -1 : to;
	case 'o': return from ? -1 : k + 1;
	case 'b': return from ? 0 : -1;
	default: return (from + 1 + k) % s->count;
	}
}
/* Number of an endpoint's message among all of them. */
static uint32_t number_of(const struct shape *s, int from, int k)
{
	return (uint32_t)from * fan_out(s) + k;
}
static size_t numbers(const struct shape *s)
{
	return (size_t)(s->kind == 'o' ? 1 : s->count) * fan_out(s);
}
/* The sides of the torus, as equal as possible. */
static void set_sides(struct shape *s)
{
	int a, b, left, spread = s->count + 1;

	for (a = 1; a * a * a <= s->count; a++) {
		left = s->count / a;
		for (b = a; s->count % a == 0 && b * b <= left; b++)
			if (left % b == 0 && left / b - a < spread) {
				spread = left / b - a;
				memcpy(s->side, (int[]){ a, b, left / b }, sizeof s->side);
			}
	}
}

static void post(struct process *p, struct receive *r)
{
	int e = r->endpoint;
	ssize_t rc = fi_recv(p->eps[e], r->data, sizeof r->data, NULL, FI_ADDR_UNSPEC, &r->context);

	if (rc == -FI_EAGAIN)
		DIE("no space for a receive of endpoint %d", p->first + e);
	TRY(rc);
	p->posted[e]++;
}
static void take(struct process *p, struct receive *r)
{
	struct job *job = p->job;
	int to = p->first + r->endpoint;
	double at = now() - job->start;

	if (r->data[1] != (uint32_t)to || r->data[0] >= numbers(p->shape))
		DIE("endpoint %d has a message for endpoint %u", to, r->data[1]);
	if (atomic_fetch_add(&job->arrived[r->data[0]], 1))
		DIE("message %u has come twice", r->data[0]);
	if (!job->first[to])
		job->first[to] = at;
	job->last[to] = at;
	atomic_fetch_add_explicit(&p->self->received, 1, memory_order_relaxed);
	if (p->posted[r->endpoint] < job->expected[to])
		post(p, r);
}
static void progress(struct process *p)
{
	struct receive *end = p->receives + (size_t)p->shape->each * RECEIVES;
	struct fi_cq_entry entries[32];
	struct fi_cq_err_entry err = { 0 };
	ssize_t n = fi_cq_read(p->cq, entries, 32), i;

	if (n == -FI_EAVAIL) {
		fi_cq_readerr(p->cq, &err, 0);
		DIE("%s", fi_strerror(err.err));
	}
	if (n == -FI_EAGAIN) {
		sched_yield();
		return;
	}
	TRY(n);
	for (i = 0; i < n; i++) {
		struct receive *r = entries[i].op_context;
		struct send *s = entries[i].op_context;

		if (r >= p->receives && r < end) {
			take(p, r);
		} else {
			s->next = p->unused;
			p->unused = s;
			p->sent++;
		}
	}
}
/* Waits until the parent begins a phase; others may need the progress meanwhile. */
static void await(struct process *p, enum phase phase)
{
	if (p->self->since)
		p->self->took[phase - 1] = now() - p->self->since;
	atomic_store(&p->self->phase, phase);
	while (atomic_load(&p->job->phase) < (int)phase) {
		if (p->cq)
			progress(p);
		else
			usleep(1000);
	}
	p->self->since = now();
}
static void open_all(struct process *p, const char *provider, const char *node)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av = { .type = FI_AV_TABLE, .count = p->shape->count };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_CONTEXT, .size = p->shape->each * RECEIVES + SENDS };
	int e, each = p->shape->each;

	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->fabric_attr->prov_name = strdup(provider);
	TRY(fi_getinfo(FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE : 0, hints, &p->info));
	fi_freeinfo(hints);
	TRY(fi_fabric(p->info->fabric_attr, &p->fabric, NULL));
	TRY(fi_domain(p->fabric, p->info, &p->domain, NULL));
	TRY(fi_av_open(p->domain, &av, &p->av, NULL));
	TRY(fi_cq_open(p->domain, &cq, &p->cq, NULL));
	p->eps = calloc(each, sizeof *p->eps);
	for (e = 0; e < each; e++) {
		size_t len = ADDR_LEN;

		TRY(fi_endpoint(p->domain, p->info, &p->eps[e], NULL));
		TRY(fi_ep_bind(p->eps[e], &p->av->fid, 0));
		TRY(fi_ep_bind(p->eps[e], &p->cq->fid, FI_SEND | FI_RECV));
		TRY(fi_enable(p->eps[e]));
		TRY(fi_getname(&p->eps[e]->fid, p->job->addrs[p->first + e], &len));
		p->job->addr_len = len;
	}
}
static void insert_all(struct process *p)
{
	size_t len = p->job->addr_len;
	int i, count = p->shape->count;
	char *addrs = calloc(count, len);

	p->peers = calloc(count, sizeof *p->peers);
	for (i = 0; i < count; i++)
		memcpy(addrs + i * len, p->job->addrs[i], len);
	if (fi_av_insert(p->av, addrs, count, p->peers, 0, NULL) != count)
		DIE("not all addresses are inserted");
	free(addrs);
}
static void post_all(struct process *p)
{
	int e, i;

	p->receives = calloc((size_t)p->shape->each * RECEIVES, sizeof *p->receives);
	p->posted = calloc(p->shape->each, sizeof *p->posted);
	p->sends = calloc(SENDS, sizeof *p->sends);
	for (i = 0; i < SENDS; i++)
		p->sends[i].next = i + 1 < SENDS ? &p->sends[i + 1] : NULL;
	p->unused = p->sends;
	for (e = 0; e < p->shape->each; e++) {
		p->wanted += p->job->expected[p->first + e];
		for (i = 0; i < RECEIVES; i++)
			p->receives[e * RECEIVES + i].endpoint = e;
		for (i = 0; i < RECEIVES && p->posted[e] < p->job->expected[p->first + e]; i++)
			post(p, &p->receives[e * RECEIVES + i]);
	}
}
static void send_one(struct process *p, int e, int k)
{
	int to = target(p->shape, p->first + e, k);
	struct send *s;
	ssize_t rc;

	if (to < 0)
		return;
	while (!p->unused)
		progress(p);
	s = p->unused;
	p->unused = s->next;
	s->data[0] = number_of(p->shape, p->first + e, k);
	s->data[1] = to;
	while ((rc = fi_send(p->eps[e], s->data, sizeof s->data, NULL, p->peers[to], &s->context)) == -FI_EAGAIN)
		progress(p);
	TRY(rc);
	p->sending++;
}
static double own_cpu(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3;
}
static void work(struct job *job, const struct shape *shape, int rank, const char *provider, const char *node)
{
	struct process p = { .job = job, .self = &job->members[rank], .shape = shape, .first = rank * shape->each };
	double cpu;
	int e, k;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	await(&p, OPEN);
	open_all(&p, provider, node);
	await(&p, INSERT);
	insert_all(&p);
	post_all(&p);
	await(&p, MESSAGES);
	cpu = own_cpu();
	for (k = 0; k < fan_out(shape); k++) {
		if (shape->kind == 'o' && rank)
			break;
		for (e = 0; e < shape->each; e++)
			send_one(&p, e, k);
		if (k % 8 == 0)
			progress(&p);
	}
	while (p.sent < p.sending || p.self->received < p.wanted)
		progress(&p);
	await(&p, MEASURE);
	p.self->cpu = own_cpu() - cpu;
	p.self->rss = own_memory("Rss: %lf");
	p.self->pss = own_memory("Pss: %lf");
	p.self->fds = own_descriptors();
	await(&p, CLOSE);
	for (e = 0; e < shape->each; e++)
		TRY(fi_close(&p.eps[e]->fid));
	TRY(fi_close(&p.cq->fid));
	TRY(fi_close(&p.av->fid));
	TRY(fi_close(&p.domain->fid));
	TRY(fi_close(&p.fabric->fid));
	fi_freeinfo(p.info);
	p.self->took[CLOSE] = now() - p.self->since;
	exit(0);
}

static pid_t children[MAX_PROCESSES];
static int started, running;
static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	stopped = signal;
}
static void end_all(void)
{
	int i;

	for (i = 0; i < started; i++)
		if (children[i])
			kill(children[i], SIGKILL);
	/* The shell may have left a child of its own, which lasts as long as this process. */
	for (i = 0; i < started; i++)
		if (children[i])
			waitpid(children[i], NULL, 0);
}
/* Counts ended processes. Returns false if one has failed. */
static bool reap(void)
{
	int status, i;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (i = 0; i < started; i++)
			if (children[i] == pid)
				children[i] = 0;
		running--;
		if (!WIFEXITED(status) || WEXITSTATUS(status))
			return false;
	}
	return true;
}
/* True if less than a twentieth of the host's memory is available. */
static bool is_memory_short(void)
{
	FILE *f = fopen("/proc/meminfo", "r");
	double total = 0, available = 0;
	char line[256];

	while (f && fgets(line, sizeof line, f)) {
		sscanf(line, "MemTotal: %lf", &total);
		sscanf(line, "MemAvailable: %lf", &available);
	}
	if (f)
		fclose(f);
	return available < total / 20;
}
static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}
static void print(struct job *job, const struct shape *s, long messages)
{
	double *first = calloc(s->count, sizeof *first), last = 0, took[PHASES] = { 0 }, rss = 0, pss = 0, cpu = 0;
	int i, phase, receivers = 0, most = 0;
	long fds = 0;

	for (i = 0; i < s->count; i++) {
		if (job->expected[i])
			first[receivers++] = job->first[i];
		if (job->last[i] > last)
			last = job->last[i];
	}
	qsort(first, receivers, sizeof *first, by_value);
	for (i = 0; i < s->processes; i++) {
		struct member *m = &job->members[i];

		for (phase = 0; phase < PHASES; phase++)
			if (m->took[phase] > took[phase])
				took[phase] = m->took[phase];
		rss += m->rss;
		pss += m->pss;
		cpu += m->cpu;
		fds += m->fds;
		if (m->fds > most)
			most = m->fds;
	}
	printf("%ld %.1f %.1f %.2f %.1f %.1f %.1f %.1f %.2f %.1f %.1f %d %ld %.0f\n", messages, took[OPEN], took[INSERT], first[0],
	       first[receivers / 2], first[receivers - 1], last, took[CLOSE], rss / s->processes, rss, pss, most, fds, cpu);
	free(first);
}
int main(int argc, char **argv)
{
	static const char *const kinds[] = { "ring", "random", "halo", "one", "burst", "all" };
	struct shape shape = { 0 };
	struct job *job;
	struct sigaction action = { .sa_handler = stop };
	double limit, since = now(), reported = since, looked = since;
	long messages = 0, received;
	size_t size;
	int i, k, to;

	if (argc > 4 && sscanf(argv[2], "%dx%d", &shape.processes, &shape.each) == 2)
		for (i = 0; i < 6; i++)
			if (!strcmp(argv[3], kinds[i]))
				shape.kind = i == 1 ? 'n' : kinds[i][0];
	if (!shape.kind || shape.processes < 1 || shape.processes > MAX_PROCESSES || shape.each < 1 ||
	    shape.each > MAX_ENDPOINTS / shape.processes || shape.processes * shape.each < 2) {
		fprintf(stderr, "usage: endpoints PROVIDER PxE ring|random|halo|one|burst|all SECONDS [ADDRESS]\n"
			"P to %d, P times E from 2 to %d\n", MAX_PROCESSES, MAX_ENDPOINTS);
		return 2;
	}
	shape.count = shape.processes * shape.each;
	limit = since + atof(argv[4]) * 1e3;
	set_sides(&shape);
	size = sizeof *job + numbers(&shape);
	job = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (job == MAP_FAILED)
		DIE("no memory");
	for (i = 0; i < (shape.kind == 'o' ? 1 : shape.count); i++)
		for (k = 0; k < fan_out(&shape); k++)
			if ((to = target(&shape, i, k)) >= 0) {
				job->expected[to]++;
				messages++;
			}
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
	for (; started < shape.processes; started++, running++) {
		if ((children[started] = fork()) < 0) {
			end_all();
			DIE("no more processes than %d", started);
		}
		if (!children[started])
			work(job, &shape, started, argv[1], argc > 5 ? argv[5] : NULL);
	}
	while (running) {
		int phase = atomic_load(&job->phase), there = 0;

		usleep(300);
		if (!reap() || stopped || now() > limit) {
			end_all();
			DIE("%s while in phase %s", stopped ? "stopped" : now() > limit ? "time is up" : "a process failed", phase_names[phase]);
		}
		for (received = 0, i = 0; i < shape.processes; i++) {
			there += atomic_load(&job->members[i].phase) > phase;
			received += atomic_load(&job->members[i].received);
		}
		if (now() > looked + 250) {
			looked = now();
			if (is_memory_short()) {
				end_all();
				DIE("the host has no more memory in phase %s", phase_names[phase]);
			}
		}
		if (now() > reported + 5000) {
			reported = now();
			fprintf(stderr, "%5.0f s: %s, %d of %d processes done, %ld of %ld messages\n", (reported - since) / 1e3,
				phase_names[phase], there, shape.processes, received, messages);
		}
		if (there == shape.processes && phase < CLOSE) {
			job->start = now();
			atomic_store(&job->phase, phase + 1);
		}
	}
	print(job, &shape, messages);
	return 0;
}
