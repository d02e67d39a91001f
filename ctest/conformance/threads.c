/* FI_THREAD_SAFE: every call from several threads at once. */
#include "ct.h"
#include <dirent.h>
#include <limits.h>

enum { T = 4, N = 400, LEN = 512 };

static struct ct C;
static char *rbuf, *sbuf;
static unsigned char seen[T][N];
static int received;
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

/* One entry of each queue, if there: any thread may get the entry of any other. */
static int sent_total;
static void drain(void)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	ssize_t r = fi_cq_read(C.tx, &e, 1);

	if (r == 1)
		__atomic_add_fetch(&sent_total, 1, __ATOMIC_RELAXED);
	else
		CHECK(r == -FI_EAGAIN);
	r = fi_cq_read(C.rx, &e, 1);
	if (r == 1) {
		int i = (struct fi_context2 *)e.op_context - ct_ctx;
		char *b = rbuf + i * LEN;
		int t = ((int *)b)[0], k = ((int *)b)[1];

		EQ(e.len, LEN);
		EQ(e.tag, t);
		CHECK(t >= 0 && t < T && k >= 0 && k < N);
		CHECK(ct_same(b + 8, LEN - 8, t * N + k));
		pthread_mutex_lock(&seen_lock);
		EQ(seen[t][k], 0);
		seen[t][k] = 1;
		received++;
		pthread_mutex_unlock(&seen_lock);
	} else if (r == -FI_EAVAIL) {
		if (fi_cq_readerr(C.rx, &err, 0) == 1)
			FAIL("error entry %d %s", err.err, fi_strerror(err.err));
	} else {
		EQ(r, -FI_EAGAIN);
	}
}
static int all_received(void)
{
	int r;

	pthread_mutex_lock(&seen_lock);
	r = received;
	pthread_mutex_unlock(&seen_lock);
	return r == T * N;
}
static void *worker(void *arg)
{
	int t = (int)(intptr_t)arg;

	for (int k = 0; k < N; k++) {
		int i = t * N + k;
		char *s = sbuf + i * LEN, *r = rbuf + i * LEN;
		ssize_t x;

		while ((x = fi_trecv(C.ep, r, LEN, ct_desc(r), FI_ADDR_UNSPEC, t, 0, &ct_ctx[i])) == -FI_EAGAIN)
			drain();
		OK(x);
		((int *)s)[0] = t;
		((int *)s)[1] = k;
		ct_fill(s + 8, LEN - 8, i);
		while ((x = fi_tsend(C.ep, s, LEN, ct_desc(s), C.peer, t, &ct_ctx[T * N + i])) == -FI_EAGAIN)
			drain();
		OK(x);
		drain();
	}
	while (!all_received() || __atomic_load_n(&sent_total, __ATOMIC_RELAXED) < T * N)
		drain();
	return NULL;
}
static void four_threads(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED, .threading = FI_THREAD_SAFE };
	pthread_t t[T];

	(void)rank;
	ct_open(&C, &o);
	EQ(C.info->domain_attr->threading, FI_THREAD_SAFE);
	rbuf = ct_alloc(&C, T * N * LEN);
	sbuf = ct_alloc(&C, T * N * LEN);
	for (int i = 0; i < T; i++)
		EQ(pthread_create(&t[i], NULL, worker, (void *)(intptr_t)i), 0);
	for (int i = 0; i < T; i++)
		EQ(pthread_join(t[i], NULL), 0);
	ct_done(&C);
}

/* The same on untagged messages: a MSG connection keeps each whole. */
static void *msender(void *arg)
{
	int t = (int)(intptr_t)arg;

	for (int k = 0; k < N; k++) {
		int i = t * N + k;
		char *s = sbuf + i * LEN;
		ssize_t x;

		((int *)s)[0] = t;
		((int *)s)[1] = k;
		ct_fill(s + 8, LEN - 8, i);
		while ((x = fi_send(C.ep, s, LEN, ct_desc(s), C.peer, &ct_ctx[i])) == -FI_EAGAIN)
			sched_yield();
		OK(x);
	}
	return NULL;
}
static void *mreaper(void *arg)
{
	struct fi_cq_tagged_entry e;

	(void)arg;
	for (int n = 0; n < T * N; ) {
		ssize_t r = fi_cq_read(C.tx, &e, 1);

		if (r == 1)
			n++;
		else
			EQ(r, -FI_EAGAIN);
	}
	return NULL;
}
static void threads_untagged(int rank)
{
	struct ct_opt o = { .threading = FI_THREAD_SAFE };
	pthread_t t[T + 1];
	int last[T];

	ct_open(&C, &o);
	rbuf = ct_alloc(&C, LEN);
	sbuf = ct_alloc(&C, T * N * LEN);
	for (int i = 0; i < T; i++)
		last[i] = -1;
	if (rank == 1) {
		for (int i = 0; i < T; i++)
			EQ(pthread_create(&t[i], NULL, msender, (void *)(intptr_t)i), 0);
		EQ(pthread_create(&t[T], NULL, mreaper, NULL), 0);
		for (int i = 0; i <= T; i++)
			EQ(pthread_join(t[i], NULL), 0);
	} else {
		for (int i = 0; i < T * N; i++) {
			int s, k;

			POST(&C, fi_recv(C.ep, rbuf, LEN, ct_desc(rbuf), FI_ADDR_UNSPEC, CTX(1)));
			ct_recvd(&C, CTX(1), LEN);
			s = ((int *)rbuf)[0];
			k = ((int *)rbuf)[1];
			CHECK(s >= 0 && s < T);
			EQ(k, last[s] + 1);	/* each thread's messages keep their order */
			last[s] = k;
			CHECK(ct_same(rbuf + 8, LEN - 8, s * N + k));
		}
	}
	ct_done(&C);
}

/* Two threads, each with objects of its own, as fast as they can. */
static void *open_close(void *arg)
{
	struct ct_opt o = { 0 };

	(void)arg;
	for (int i = 0; i < 20; i++) {
		struct ct c;

		memset(&c, 0, sizeof c);
		c.o = o;
		ct_open_rdm(&c, NULL);
		ct_close(&c);
	}
	return NULL;
}
static void open_in_parallel(int rank)
{
	pthread_t t[T];

	(void)rank;
	for (int i = 0; i < T; i++)
		EQ(pthread_create(&t[i], NULL, open_close, NULL), 0);
	for (int i = 0; i < T; i++)
		EQ(pthread_join(t[i], NULL), 0);
}
/* Many threads wait on queues of one domain; each is woken by its own message. */
struct waiter { struct ct c; struct ct_name n; int i; char b[8]; };
static void *wait_one(void *arg)
{
	struct waiter *w = arg;
	struct fi_cq_tagged_entry e = { 0 };
	ssize_t r;

	while ((r = fi_cq_sread(w->c.rx, &e, 1, NULL, -1)) == -FI_EAGAIN)
		;
	EQ(r, 1);
	CHECK(e.op_context == CTX(w->i));
	return NULL;
}
static void many_waiters(int rank)
{
	static struct waiter w[T];
	pthread_t t[T];
	struct ct s;
	char x = 0;

	(void)rank;
	for (int i = 0; i < T; i++) {
		w[i].c.o.wait = FI_WAIT_FD;
		w[i].c.o.threading = FI_THREAD_SAFE;
		w[i].i = i;
		w[i].n = ct_open_rdm(&w[i].c, NULL);
		OK(fi_recv(w[i].c.ep, w[i].b, 8, NULL, FI_ADDR_UNSPEC, CTX(i)));
		EQ(pthread_create(&t[i], NULL, wait_one, &w[i]), 0);
	}
	memset(&s, 0, sizeof s);
	ct_open_rdm(&s, NULL);
	ct_nap(50);
	for (int i = T - 1; i >= 0; i--) {
		fi_addr_t a = ct_insert(&s, &w[i].n);

		POST(&s, fi_send(s.ep, &x, 1, NULL, a, CTX(100)));
		ct_sent(&s, CTX(100));
		EQ(pthread_join(t[i], NULL), 0);
	}
	for (int i = 0; i < T; i++)
		ct_close(&w[i].c);
	ct_close(&s);
}

/*
 * One thread sleeps on the queue, another sends more than the system takes at
 * once and does nothing more: the rest must go out, and the first one must be notified.
 */
enum { BIG = 32 << 20 };
static void *sleep_for_send(void *arg)
{
	struct fi_cq_tagged_entry e = { 0 };
	ssize_t r;

	(void)arg;
	while ((r = fi_cq_sread(C.tx, &e, 1, NULL, -1)) == -FI_EAGAIN)
		;
	EQ(r, 1);
	CHECK(e.op_context == CTX(2));
	return NULL;
}
static void left_to_a_waiter(int rank)
{
	struct ct_opt o = { .threading = FI_THREAD_SAFE, .wait = FI_WAIT_FD };
	pthread_t t;
	char *b;

	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&C, &o);
	b = ct_alloc(&C, BIG);
	if (rank == 0) {
		EQ(pthread_create(&t, NULL, sleep_for_send, NULL), 0);
		ct_nap(100);	/* it sleeps by now, most likely */
		ct_fill(b, BIG, 3);
		OK(fi_send(C.ep, b, BIG, ct_desc(b), C.peer, CTX(2)));
		EQ(pthread_join(t, NULL), 0);
	} else {
		ct_nap(300);
		POST(&C, fi_recv(C.ep, b, BIG, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
		ct_recvd(&C, CTX(1), BIG);
		CHECK(ct_same(b, BIG, 3));
	}
	ct_done(&C);
}

/*
 * FI_THREAD_DOMAIN: one thread makes all calls for the domain.  The event queue
 * is the fabric's, and another one may wait for its events meanwhile.
 */
static void *wait_for_event(void *arg)
{
	struct fi_eq_cm_entry e;
	uint32_t ev;
	ssize_t r;

	(void)arg;
	while ((r = fi_eq_sread(C.eq, &ev, &e, sizeof e, 1, 0)) == -FI_EAGAIN)
		;
	EQ(r, sizeof e);
	EQ(ev, FI_SHUTDOWN);
	return NULL;
}
static void events_outside_domain(int rank)
{
	struct ct_opt o = { .threading = FI_THREAD_DOMAIN };
	pthread_t t;
	char b[8] = "";

	ct_param("DISABLE_AUTO_PROGRESS", "1");
	ct_open(&C, &o);
	EQ(pthread_create(&t, NULL, wait_for_event, NULL), 0);
	for (int i = 0; i < 5000; i++) {
		if (rank == 0) {
			POST(&C, fi_recv(C.ep, b, 8, NULL, FI_ADDR_UNSPEC, CTX(1)));
			ct_recvd(&C, CTX(1), 8);
		}
		POST(&C, fi_send(C.ep, b, 8, NULL, C.peer, CTX(2)));
		ct_sent(&C, CTX(2));
		if (rank == 1) {
			POST(&C, fi_recv(C.ep, b, 8, NULL, FI_ADDR_UNSPEC, CTX(1)));
			ct_recvd(&C, CTX(1), 8);
		}
	}
	ct_barrier(&C);
	if (rank == 0)
		OK(fi_shutdown(C.ep, 0));
	EQ(pthread_join(t, NULL), 0);
	ct_done(&C);
}

/*
 * FI_WAIT_MUTEX_COND in the manner of a condition variable: read with the mutex held,
 * then wait.  The read itself may produce the entry.
 */
static void look_with_mutex_held(int rank)
{
	struct ct_opt o = { .threading = FI_THREAD_SAFE, .wait = FI_WAIT_MUTEX_COND, .progress = ct_auto() };
	struct fi_mutex_cond mc;
	struct fi_cq_tagged_entry e;
	char b[8] = "";

	ct_open(&C, &o);
	OK(fi_control(&C.rx->fid, FI_GETWAIT, &mc));
	for (int i = 0; i < 300; i++) {
		if (rank == i % 2) {
			POST(&C, fi_send(C.ep, b, 8, NULL, C.peer, CTX(2)));
			ct_sent(&C, CTX(2));
			continue;
		}
		POST(&C, fi_recv(C.ep, b, 8, NULL, FI_ADDR_UNSPEC, CTX(1)));
		EQ(pthread_mutex_lock(mc.mutex), 0);
		for (;;) {
			ssize_t r = fi_cq_read(C.rx, &e, 1);

			if (r == 1)
				break;
			EQ(r, -FI_EAGAIN);
			if (i > 200)	/* before that it only looks */
				EQ(pthread_cond_wait(mc.cond, mc.mutex), 0);
		}
		EQ(pthread_mutex_unlock(mc.mutex), 0);
		CHECK(e.op_context == CTX(1));
	}
	ct_done(&C);
}

/* An endpoint of a domain with this kind of progress, and with nothing to wait for. */
static struct ct_name open_progress(struct ct *c, uint64_t caps, enum fi_progress progress)
{
	struct fi_info *h;

	memset(c, 0, sizeof *c);
	c->o.caps = caps;
	c->o.threading = FI_THREAD_SAFE;
	h = ct_hints(&c->o);
	h->domain_attr->data_progress = progress;
	if (fi_getinfo(CT_VERSION, ct_node(&c->o), "0", FI_SOURCE, h, &c->info) == -FI_ENODATA)
		SKIP("not offered with this progress");
	fi_freeinfo(h);
	if (progress != FI_PROGRESS_UNSPEC)
		EQ(c->info->domain_attr->data_progress, progress);
	ct_open_in(c, NULL);
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
	return ct_getname(&c->ep->fid);
}
enum { SIZES = 3, REGION = 100000 };
static const size_t sizes[SIZES] = { 100, 40000, 1 << 20 };
struct region { uint64_t key, addr; };
/* Answers a peer with no call but those that set it up. */
static void be_used(struct ct *c, enum fi_progress progress)
{
	static char in[SIZES][1 << 20], memory[REGION];
	struct ct_name name = open_progress(c, FI_MSG | FI_TAGGED | FI_RMA, progress), theirs;
	struct region at;
	struct fid_mr *mr;
	char done;

	for (int i = 0; i < SIZES; i++)
		OK(fi_trecv(c->ep, in[i], sizes[i], NULL, FI_ADDR_UNSPEC, i, 0, CTX(i)));
	OK(fi_mr_reg(c->domain, memory, REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	at.key = fi_mr_key(mr);
	at.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)memory : 0;
	ct_send_oob(&name, sizeof name);
	ct_send_oob(&at, sizeof at);
	ct_recv_oob(NULL, &theirs, sizeof theirs);
	/* the peer reports the end of its work */
	ct_recv_oob(NULL, &done, 1);
	CHECK(ct_same(memory, REGION, 5));
	for (int i = 0; i < SIZES; i++)
		CHECK(ct_same(in[i], sizes[i], i));
	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
	OK(fi_close(&mr->fid));
	ct_close(c);
}
static void use(struct ct *c)
{
	static char b[1 << 20], back[REGION];
	struct ct_name mine = open_progress(c, FI_MSG | FI_TAGGED | FI_RMA, FI_PROGRESS_UNSPEC), theirs;
	struct region at;

	ct_recv_oob(c, &theirs, sizeof theirs);
	ct_recv_oob(c, &at, sizeof at);
	ct_send_oob(&mine, sizeof mine);
	c->peer = ct_insert(c, &theirs);
	for (int i = 0; i < SIZES; i++) {
		struct iovec v = { b, sizes[i] };
		struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = c->peer, .tag = i, .context = CTX(i) };

		ct_fill(b, sizes[i], i);
		POST(c, fi_tsendmsg(c->ep, &m, FI_COMPLETION | FI_MATCH_COMPLETE));
		ct_sent(c, CTX(i));
	}
	ct_fill(b, REGION, 5);
	POST(c, fi_write(c->ep, b, REGION, NULL, c->peer, at.addr, at.key, CTX(4)));
	ct_sent(c, CTX(4));
	POST(c, fi_read(c->ep, back, REGION, NULL, c->peer, at.addr, at.key, CTX(5)));
	ct_sent(c, CTX(5));
	CHECK(ct_same(back, REGION, 5));
	ct_send_oob("d", 1);
	ct_close(c);
}
static void no_calls(int rank)
{
	struct ct c;

	if (rank == 0)
		be_used(&c, FI_PROGRESS_AUTO);
	else
		use(&c);
}
/* The same, by ofi_rxm's parameter. */
static void no_calls_param(int rank)
{
	struct ct c;

	if (!ct_is_rxm())
		SKIP("the parameter is ofi_rxm's");
	if (rank == 0) {
		setenv("FI_OFI_RXM_DATA_AUTO_PROGRESS", "1", 1);
		be_used(&c, FI_PROGRESS_UNSPEC);
	} else {
		use(&c);
	}
}
/* The same in a child of a process that has a domain with a thread itself. */
static void no_calls_of_child(int rank)
{
	struct ct c, parents;
	pid_t child;
	int status;

	if (rank) {
		use(&c);
		return;
	}
#ifdef __SANITIZE_ADDRESS__
	SKIP_HERE("AddressSanitizer's locks stay locked in a child if the parent's thread held them");
#endif
	open_progress(&parents, FI_MSG, FI_PROGRESS_AUTO);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		be_used(&c, FI_PROGRESS_AUTO);
		_exit(0);
	}
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
	ct_close(&parents);
}
static int tasks(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}
static void no_thread(int rank)
{
	struct ct c;

	(void)rank;
	open_progress(&c, FI_MSG, FI_PROGRESS_MANUAL);
	EQ(tasks(), 1);
	ct_close(&c);
}

/*
 * pthread_exit(3): "After the last thread in a process terminates, the process terminates as by calling exit(3) with an exit
 * status of zero".  A thread of the library is none that the application could end.
 */
static void end_main_thread(enum fi_progress progress)
{
	pid_t child;
	int status;

	CHECK((child = fork()) >= 0);
	if (child == 0) {
		struct ct c;
		struct ct_name name = open_progress(&c, FI_MSG, progress);
		char *b = ct_alloc(&c, 128);

		c.peer = ct_insert(&c, &name);
		for (int i = 0; i < 100; i++) {
			POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			POST(&c, fi_send(c.ep, b + 64, 64, ct_desc(b), c.peer, CTX(2)));
			ct_recvd(&c, CTX(1), 64);
			ct_sent(&c, CTX(2));
		}
		pthread_exit(NULL);
	}
	EQ(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP("not offered with this progress");
	EQ(status, 0);
}
static void no_thread_left(int rank)
{
	(void)rank;
	end_main_thread(FI_PROGRESS_MANUAL);
}
static void no_thread_left_automatic(int rank)
{
	(void)rank;
	end_main_thread(FI_PROGRESS_AUTO);
}
/* The main thread ends first, and the last thread has opened nothing. */
static void *outlive(void *arg)
{
	(void)arg;
	ct_nap(300);
	return NULL;
}
static void no_thread_left_of_several(int rank)
{
	pid_t child;
	int status;

	(void)rank;
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		struct ct c;
		pthread_t t;

		open_progress(&c, FI_MSG, FI_PROGRESS_AUTO);
		CHECK(!pthread_create(&t, NULL, outlive, NULL));
		pthread_exit(NULL);
	}
	EQ(waitpid(child, &status, 0), child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		SKIP("not offered with this progress");
	EQ(status, 0);
}

/* PTHREAD_STACK_MIN is enough for a thread that calls the library; the thread has little on it besides. */
static struct ct small;
static char *small_bytes;
static fi_addr_t small_self;
enum { SMALL_MOST = 70000 };
static void small_next(void)
{
	struct fi_cq_tagged_entry e;
	ssize_t r = fi_cq_sread(small.tx, &e, 1, NULL, 1);

	CHECK(r == 1 || r == -FI_EAGAIN);
	r = fi_cq_read(small.tx, &e, 1);
	CHECK(r == 1 || r == -FI_EAGAIN);
}
static void *use_small_stack(void *arg)
{
	struct fi_info *hints = arg, *info;
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	static struct ct_name name;

	EQ(fi_getinfo(CT_VERSION, ct_node(&small.o), NULL, ct_node(&small.o) ? FI_SOURCE : 0, hints, &info), 0);
	OK(fi_fabric(info->fabric_attr, &small.fabric, NULL));
	OK(fi_domain(small.fabric, info, &small.domain, NULL));
	OK(fi_cq_open(small.domain, &cq, &small.tx, NULL));
	OK(fi_av_open(small.domain, &av, &small.av, NULL));
	OK(fi_endpoint(small.domain, info, &small.ep, NULL));
	OK(fi_ep_bind(small.ep, &small.tx->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(small.ep, &small.av->fid, 0));
	OK(fi_enable(small.ep));
	name.n = sizeof name.b;
	OK(fi_getname(&small.ep->fid, name.b, &name.n));
	EQ(fi_av_insert(small.av, name.b, 1, &small_self, 0, NULL), 1);
	for (int i = 0; i < 100; i++) {
		size_t n = i % 3 ? SMALL_MOST : 9;

		while (fi_trecv(small.ep, small_bytes, SMALL_MOST, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(1)) == -FI_EAGAIN)
			small_next();
		while (fi_tinject(small.ep, small_bytes, 8, small_self, 1) == -FI_EAGAIN)
			small_next();
		small_next();
		while (fi_tsend(small.ep, small_bytes + SMALL_MOST, n, NULL, small_self, 2, CTX(2)) == -FI_EAGAIN)
			small_next();
		while (fi_trecv(small.ep, small_bytes, SMALL_MOST, NULL, FI_ADDR_UNSPEC, 2, 0, CTX(3)) == -FI_EAGAIN)
			small_next();
		small_next();
	}
	OK(fi_close(&small.ep->fid));
	OK(fi_close(&small.av->fid));
	OK(fi_close(&small.tx->fid));
	OK(fi_close(&small.domain->fid));
	OK(fi_close(&small.fabric->fid));
	fi_freeinfo(info);
	return NULL;
}
static void run_in_small_stack(void)
{
	struct fi_info *hints;
	pthread_attr_t attr;
	pthread_t t;
	size_t size = PTHREAD_STACK_MIN;

#ifdef __SANITIZE_ADDRESS__
	SKIP_HERE("AddressSanitizer's frames are larger");
#endif
#ifdef CT_DEVICE
	size += 16384;	/* of the driver, called below the library */
#endif
	/* fabric(7): a provider outside of the library may take more */
	if (!strcmp(ct_prov, "example"))
		size = 32768;
	small.o.caps = FI_TAGGED;
	hints = ct_hints(&small.o);
	hints->domain_attr->mr_mode = 0;
	CHECK((small_bytes = malloc(2 * SMALL_MOST)));
	CHECK(!pthread_attr_init(&attr));
	CHECK(!pthread_attr_setstacksize(&attr, size));
	CHECK(!pthread_create(&t, &attr, use_small_stack, hints));
	CHECK(!pthread_join(t, NULL));
}
static void small_stack(int rank)
{
	(void)rank;
	run_in_small_stack();
}
/* The cryptography alone takes about as much as there is. */
static void small_stack_secret(int rank)
{
	static const char secret[] = "a secret of this job, which is long enough";

	(void)rank;
	ct_key_file(secret, sizeof secret, 0600);
	if (strcmp(ct_prov, "shm") && !ct_is_lnx() && strcmp(ct_prov, "udp") && !ct_is_rxd())
		ct_param("ENCRYPT", "1");
	run_in_small_stack();
	ct_forget_key_file();
}

static const struct ct_test tests[] = {
	{ "the mutex of a condition variable can be held while a queue is read", look_with_mutex_held, CT_REL },
	{ "a send is completed while another thread waits on its queue", left_to_a_waiter, CT_REL },
	{ "a thread waits for events while another thread uses the domain", events_outside_domain, CT_MSG },
	{ "four threads send and receive tagged messages on one endpoint", four_threads, 0 },
	{ "four threads send on one endpoint and each keeps its order", threads_untagged, CT_REL },
	{ "a process without calls is sent to, written and read with automatic progress", no_calls, CT_RDM | CT_REL },
	{ "FI_OFI_RXM_DATA_AUTO_PROGRESS enables automatic progress for unspecified hints", no_calls_param, CT_RDM | CT_REL },
	{ "a forked child without calls is sent to, written and read with automatic progress", no_calls_of_child, CT_RDM | CT_REL },
	{ "manual progress has no thread", no_thread, CT_RDM | CT_REL | CT_SOLO },
	{ "a process with manual progress ends with the last thread of the application", no_thread_left, CT_RDM | CT_REL | CT_SOLO },
	{ "a process with automatic progress ends with the last thread of the application", no_thread_left_automatic, CT_RDM | CT_REL | CT_SOLO },
	{ "a process exits though a thread without calls outlives the main thread", no_thread_left_of_several, CT_RDM | CT_REL | CT_SOLO },
	{ "a thread with a small stack opens, transfers and closes", small_stack, CT_RDM | CT_REL | CT_SOLO },
	{ "a thread with a small stack and a pre-shared key opens, transfers and closes", small_stack_secret, CT_RDM | CT_REL | CT_SOLO },
	{ "endpoints can be opened and closed in parallel", open_in_parallel, CT_RDM | CT_SOLO },
	{ "threads waiting on their own queues are woken by their own messages", many_waiters, CT_RDM | CT_SOLO },
};
CT_MAIN("threads", tests)
