/*
 * What a parallel job does when it starts, in N processes of one host, for benches/scale: each opens an
 * endpoint, inserts the addresses of all, sends a message to each other, again when all are connected,
 * and closes everything.
 *
 *   wireup PROVIDER N [ADDRESS]
 *
 * Prints one line: N; milliseconds until the last process has opened its endpoint, has inserted all, has
 * a message of each other, has another one, has closed; MiB of memory a process has of its own share
 * (PSS) at the end of the messages; its descriptors; processor time of all of them in milliseconds. Each
 * message holds who it is from and to, which is looked at.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
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
#include <rdma/fi_tagged.h>

#include "job.h"

enum { PHASES = 5, NAME = 256, MOST = 4096 };

/* What the processes share. */
struct job {
	atomic_int arrived[PHASES + 2];
	atomic_int failed;
	double done[PHASES][MOST];
	double pss[MOST];
	int fds[MOST];
	size_t len;
	char names[MOST][NAME];
};

struct rank {
	struct job *job;
	int rank, count;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t *peers;
	uint64_t (*out)[2], (*in)[2];
	long completions;
};

/* Reads the queue; others run when there is nothing. */
static void progress(struct rank *r)
{
	struct fi_cq_tagged_entry e[16];
	struct fi_cq_err_entry err = { 0 };
	ssize_t n = fi_cq_read(r->cq, e, 16);

	if (n > 0) {
		r->completions += n;
		return;
	}
	if (n == -FI_EAVAIL) {
		fi_cq_readerr(r->cq, &err, 0);
		DIE("rank %d: %s", r->rank, fi_strerror(err.err));
	}
	if (n != -FI_EAGAIN)
		TRY(n);
	if (atomic_load(&r->job->failed))
		exit(1);
	sched_yield();
}
/* All have come here; until then progress is made, which others may need. */
static void synchronize(struct rank *r, int phase)
{
	atomic_fetch_add(&r->job->arrived[phase], 1);
	while (atomic_load(&r->job->arrived[phase]) < r->count) {
		if (r->cq)
			progress(r);
		else if (atomic_load(&r->job->failed))
			exit(1);
		else
			usleep(200);
	}
}
static void done(struct rank *r, int phase, double since)
{
	r->job->done[phase][r->rank] = now() - since;
}
static void open_all(struct rank *r, const char *provider, const char *node)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av = { .type = FI_AV_TABLE, .count = r->count };
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .size = 2 * r->count + 16 };
	size_t len = NAME;

	hints->caps = FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->mode = ~0ull;
	hints->fabric_attr->prov_name = strdup(provider);
	TRY(fi_getinfo(FI_VERSION(1, 17), node, NULL, node ? FI_SOURCE : 0, hints, &r->info));
	fi_freeinfo(hints);
	TRY(fi_fabric(r->info->fabric_attr, &r->fabric, NULL));
	TRY(fi_domain(r->fabric, r->info, &r->domain, NULL));
	TRY(fi_av_open(r->domain, &av, &r->av, NULL));
	TRY(fi_cq_open(r->domain, &cq, &r->cq, NULL));
	TRY(fi_endpoint(r->domain, r->info, &r->ep, NULL));
	TRY(fi_ep_bind(r->ep, &r->av->fid, 0));
	TRY(fi_ep_bind(r->ep, &r->cq->fid, FI_SEND | FI_RECV));
	TRY(fi_enable(r->ep));
	TRY(fi_getname(&r->ep->fid, r->job->names[r->rank], &len));
	r->job->len = len;
}
/* Each has a message of each other. */
static void all_to_all(struct rank *r, uint64_t round)
{
	long wanted = r->completions + 2 * (r->count - 1);
	ssize_t rc;
	int i, to;

	for (i = 1; i < r->count; i++) {
		to = (r->rank + r->count - i) % r->count;
		while ((rc = fi_trecv(r->ep, r->in[to], 16, NULL, FI_ADDR_UNSPEC, round << 32 | to, 0, r->in[to])) == -FI_EAGAIN)
			progress(r);
		TRY(rc);
	}
	for (i = 1; i < r->count; i++) {
		to = (r->rank + i) % r->count;
		r->out[to][0] = round << 32 | r->rank;
		r->out[to][1] = to;
		while ((rc = fi_tsend(r->ep, r->out[to], 16, NULL, r->peers[to], round << 32 | r->rank, r->out[to])) == -FI_EAGAIN)
			progress(r);
		TRY(rc);
	}
	while (r->completions < wanted)
		progress(r);
	for (i = 0; i < r->count; i++)
		if (i != r->rank && (r->in[i][0] != (round << 32 | i) || r->in[i][1] != (uint64_t)r->rank))
			DIE("rank %d has something else of rank %d", r->rank, i);
}
static void work(struct job *job, int rank, int count, const char *provider, const char *node)
{
	struct rank r = { .job = job, .rank = rank, .count = count };
	double since;
	int i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	r.peers = calloc(count, sizeof *r.peers);
	r.out = calloc(count, sizeof *r.out);
	r.in = calloc(count, sizeof *r.in);
	synchronize(&r, 0);
	since = now();
	open_all(&r, provider, node);
	done(&r, 0, since);
	synchronize(&r, 1);
	since = now();
	/* names may be longer than their structure elsewhere, but not of these providers */
	for (i = 0; i < count; i++)
		if (fi_av_insert(r.av, job->names[i], 1, &r.peers[i], 0, NULL) != 1)
			DIE("rank %d cannot insert rank %d", rank, i);
	done(&r, 1, since);
	synchronize(&r, 2);
	for (i = 0; i < 2; i++) {
		since = now();
		all_to_all(&r, i + 1);
		done(&r, 2 + i, since);
		synchronize(&r, 3 + i);
	}
	job->pss[rank] = own_memory("Pss: %lf");
	job->fds[rank] = own_descriptors();
	synchronize(&r, 5);
	since = now();
	TRY(fi_close(&r.ep->fid));
	TRY(fi_close(&r.cq->fid));
	r.cq = NULL;
	TRY(fi_close(&r.av->fid));
	TRY(fi_close(&r.domain->fid));
	TRY(fi_close(&r.fabric->fid));
	fi_freeinfo(r.info);
	done(&r, 4, since);
	synchronize(&r, 6);
	exit(0);
}
int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 0, i, status, bad = 0, fds = 0;
	struct rusage used;
	struct job *job;
	double most, pss = 0;

	if (count < 2 || count > MOST) {
		fprintf(stderr, "usage: wireup PROVIDER N [ADDRESS], N from 2 to %d\n", MOST);
		return 2;
	}
	job = mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job == MAP_FAILED)
		DIE("no memory");
	for (i = 0; i < count; i++) {
		pid_t pid = fork();

		if (pid < 0) {
			atomic_store(&job->failed, 1);
			DIE("no more processes than %d", i);
		}
		if (!pid)
			work(job, i, count, argv[1], argc > 3 ? argv[3] : NULL);
	}
	for (i = 0; i < count; i++) {
		if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
			atomic_store(&job->failed, 1);
			bad = 1;
		}
	}
	if (bad)
		return 1;
	getrusage(RUSAGE_CHILDREN, &used);
	printf("%d", count);
	for (int phase = 0; phase < PHASES; phase++) {
		for (most = 0, i = 0; i < count; i++)
			if (job->done[phase][i] > most)
				most = job->done[phase][i];
		printf(" %.2f", most);
	}
	for (i = 0; i < count; i++) {
		pss += job->pss[i] / count;
		if (job->fds[i] > fds)
			fds = job->fds[i];
	}
	printf(" %.2f %d %.0f\n", pss, fds, (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e3 + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e3);
	return 0;
}
