/*
 * All peers of a host exchange messages with all: many processes, many endpoints of each, few descriptors,
 * little memory.  FAULT_PROCS and FAULT_ENDPOINTS are their numbers (default: 64 processes; 60 endpoints of
 * ten processes, and a quarter of this number, or 40, of one process).
 */
#include "../conformance/ct.h"
#include "fault.h"
#include <sys/prctl.h>

enum { LEN = 64, MOST = 512 };

/* Memory shared by all processes of a crowd. */
struct crowd {
	struct ct_name name[MOST];
	int opened, done, reported;		/* processes that came so far */
	size_t mapped, links;		/* bytes of memory that peers share, of all processes; connections that use it */
	int most_fds;
};
static struct crowd *crowd;
static int procs, each, rounds;		/* processes, endpoints of each, messages to each peer */

struct head { uint16_t from, to; uint32_t number; };

static void synchronize_all(struct ct *c, int *counter)
{
	int64_t since = 0;

	__atomic_add_fetch(counter, 1, __ATOMIC_SEQ_CST);
	for (; __atomic_load_n(counter, __ATOMIC_SEQ_CST) < procs; ct_relax(&since))
		ct_progress(c);
}
/* Bytes of memory that this process shares with peers, and how many rings are in it. */
static size_t shared(size_t *rings)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[500];
	size_t bytes = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (strstr(line, "/memfd:ofi-local") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
			if (to - from == 4096)	/* a process's doorbell, for all of its peers */
				continue;
			bytes += to - from;
			++*rings;
		}
	fclose(f);
	return bytes;
}
static size_t count_one(const char *b, const struct fi_cq_tagged_entry *e, uint32_t (*next)[MOST])
{
	const struct head *h = (const void *)b;

	EQ(e->len, LEN);
	CHECK(h->from < procs * each && h->to < MOST);
	/* in the order of their sending, from each endpoint to each */
	EQ(h->number, next[h->to % each][h->from]++);
	CHECK(ct_same(b + sizeof *h, LEN - sizeof *h, h->from * 7 + h->number));
	return 1;
}
static void member(int p)
{
	enum { W = 128 };
	static struct ct c[MOST];
	static char in[W][LEN], out[LEN];
	static uint32_t next[MOST][MOST];
	static fi_addr_t at[MOST];
	static struct fi_context2 rctx[W];
	struct ct_opt o = { .one_cq = 1, .cq_size = 1024 };
	int all = procs * each, per = W / each > 0 ? W / each : 1;
	size_t expected = (size_t)(all - 1) * each * rounds, got = 0, sent = 0, rings = 0;

	for (int i = 0; i < each; i++) {
		c[i].o = o;
		if (i) {
			c[i].info = ct_getinfo(&c[0].o, ct_node(&c[0].o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
			ct_open_second(&c[i], &c[0]);
			crowd->name[p * each + i] = ct_getname(&c[i].ep->fid);
		} else {
			crowd->name[p * each] = ct_open_rdm(&c[0], NULL);
		}
	}
	synchronize_all(&c[0], &crowd->opened);
	for (int i = 0; i < all; i++)
		at[i] = ct_insert(&c[0], &crowd->name[i]);
	for (int i = 0; i < each && i * per < W; i++)
		for (int j = 0; j < per; j++)
			OK(fi_recv(c[i].ep, in[i * per + j], LEN, NULL, FI_ADDR_UNSPEC, &rctx[i * per + j]));
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < each; i++)
			for (int to = 0; to < all; to++) {
				int from = p * each + i, k = (to + from) % all;
				struct head h = { from, k, r };
				struct fi_cq_tagged_entry e;
				ssize_t ret;

				if (k == from)
					continue;
				memcpy(out, &h, sizeof h);
				ct_fill(out + sizeof h, LEN - sizeof h, from * 7 + r);
				/* is copied at once */
				do {
					ret = fi_inject(c[i].ep, out, LEN, at[k]);
					while (fi_cq_read(c[0].rx, &e, 1) == 1) {
						int slot = (struct fi_context2 *)e.op_context - rctx;

						got += count_one(in[slot], &e, next);
						OK(fi_recv(c[slot / per].ep, in[slot], LEN, NULL, FI_ADDR_UNSPEC, &rctx[slot]));
					}
				} while (ret == -FI_EAGAIN);
				OK(ret);
				sent++;
			}
	while (got < expected) {
		struct fi_cq_tagged_entry e;
		int slot;

		ct_next(&c[0], c[0].rx, &e, NULL, NULL);
		slot = (struct fi_context2 *)e.op_context - rctx;
		got += count_one(in[slot], &e, next);
		OK(fi_recv(c[slot / per].ep, in[slot], LEN, NULL, FI_ADDR_UNSPEC, &rctx[slot]));
	}
	synchronize_all(&c[0], &crowd->done);
	__atomic_add_fetch(&crowd->mapped, shared(&rings), __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&crowd->links, rings, __ATOMIC_SEQ_CST);
	if (open_fds() > crowd->most_fds)
		crowd->most_fds = open_fds();
	synchronize_all(&c[0], &crowd->reported);
	for (int i = each - 1; i > 0; i--) {
		OK(fi_close(&c[i].ep->fid));
		fi_freeinfo(c[i].info);
	}
	ct_close(&c[0]);
	_exit(0);
}
/* So many processes with so many endpoints each, of which the first has this many descriptors. */
static void all_to_all(int n, int endpoints, int messages, rlim_t fds)
{
	pid_t pid[MOST];

	if (strcmp(ct_prov, "shm") && strcmp(ct_prov, "tcp") && strcmp(ct_prov, "tcp;ofi_rxm"))
		SKIP("no memory that peers share");
	ct_needs_memory();
	procs = n;
	each = endpoints;
	rounds = messages;
	CHECK(procs * each <= MOST);
	crowd = mmap(NULL, sizeof *crowd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(crowd != MAP_FAILED);
	fflush(stdout);
	for (int i = 0; i < procs; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (!pid[i]) {
			struct rlimit l;
			rlim_t need = fds && i == 0 ? fds : (rlim_t)each * (procs * each + procs) + 500;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			snprintf(ct_prefix, sizeof ct_prefix, "process %d: ", i);
			OK(getrlimit(RLIMIT_NOFILE, &l));
			if ((fds && i == 0) || l.rlim_cur < need) {
				l.rlim_cur = need;
				if (setrlimit(RLIMIT_NOFILE, &l))
					SKIP_HERE("no %d descriptors: %s", (int)need, strerror(errno));
			}
			member(i);
		}
	}
	for (int i = 0; i < procs; i++) {
		int st;

		/* the first failing process has printed the cause */
		CHECK(wait(&st) > 0);
		if (!WIFEXITED(st) || WEXITSTATUS(st)) {
			for (int k = 0; k < procs; k++)
				kill(pid[k], SIGKILL);
			if (WIFSIGNALED(st))
				FAIL("a process was killed by signal %d", WTERMSIG(st));
			_exit(WEXITSTATUS(st));
		}
	}
	printf("     %s: %d processes with %d endpoints: %zu of %zu connections' ends have memory, %zu KiB in all, %zu KiB each; "
	       "at most %d descriptors of a process\n", ct_prov, procs, each, crowd->links, (size_t)procs * each * (procs * each - 1),
	       crowd->mapped >> 10, crowd->links ? crowd->mapped / crowd->links >> 10 : 0, crowd->most_fds);
	fflush(stdout);
	if (crowd->links && crowd->mapped / crowd->links > 140 << 10)
		FAIL("%zu bytes of memory for a pair", crowd->mapped / crowd->links);
}
static void processes(int rank)
{
	(void)rank;
	all_to_all((int)fault_count("FAULT_PROCS", 64), 1, 40, 0);
	CHECK(crowd->links);
}
static void endpoints(int rank)
{
	int n = (int)fault_count("FAULT_ENDPOINTS", 60);

	(void)rank;
	all_to_all(10, n / 10, 20, 0);
	CHECK(crowd->links);
}
static void one_process(int rank)
{
	/* more connections than bits by which they give each other signs */
	int n = (int)fault_count("FAULT_ENDPOINTS", 160) / 4;

	(void)rank;
	all_to_all(1, n, 20, 0);
	CHECK(crowd->links);
}
/* Descriptors for all connections of the first, and not for all meetings. */
static void few_descriptors(int rank)
{
	(void)rank;
	all_to_all(64, 1, 40, 110);
	CHECK(crowd->links && crowd->links < 64 * 63);
}
static void quiet(int rank)
{
	(void)rank;
	all_to_all(32, 1, 3, 0);
	EQ(crowd->links, 0);
}
static void little_memory(int rank)
{
	(void)rank;
	ct_param("LOCAL_MEMORY", "500000");
	all_to_all(20, 1, 40, 0);
	/* each end of a pair has it mapped, one has made it */
	CHECK(crowd->links && crowd->mapped <= 2 * 20 * 500000);
}

static const struct ct_test tests[] = {
	{ "many processes talk all to all", processes, CT_SOLO | CT_RDM },
	{ "many endpoints of some processes talk all to all", endpoints, CT_SOLO | CT_RDM },
	{ "many endpoints of one process talk all to all", one_process, CT_SOLO | CT_RDM },
	{ "a process with few descriptors uses sockets to some peers", few_descriptors, CT_SOLO | CT_RDM },
	{ "peers with little traffic take no memory", quiet, CT_SOLO | CT_RDM },
	{ "memory of many peers stays within its bound", little_memory, CT_SOLO | CT_RDM },
};
CT_MAIN("crowds", tests)
