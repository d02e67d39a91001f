/* fi_open("stats") of fi_open(3): statistics of a process's endpoints, for tools within it. */
#include "ct.h"
#include <rdma/fi_ext.h>

static const struct ct_opt TAGGED = { .caps = FI_TAGGED };

static struct fid_stats *open_stats(void)
{
	struct fid *f;
	int r = fi_open(FI_VERSION(1, 13), "stats", NULL, 0, 0, &f, NULL);

	if (r == -FI_ENOSYS)
		SKIP("not in this library");
	OK(r);
	return (struct fid_stats *)f;
}

static void opened_by_name(int rank)
{
	struct fi_stats_endpoint ep;
	struct fi_stats_peer peer;
	struct fid_stats *s = open_stats();
	struct fid *f;
	size_t n = 7;

	CHECK(s->ops->size >= sizeof(struct fi_ops_stats));
	ERR(fi_control(&s->fid, FI_GETWAIT, NULL), FI_ENOSYS);
	/* No domain is open, so nothing is shown, and nothing was looked at. */
	ERR(s->ops->look(s, &n), FI_ENODATA);
	ERR(s->ops->look(s, NULL), FI_EINVAL);
	ERR(s->ops->endpoint(s, 0, &ep, sizeof ep), FI_EINVAL);
	ERR(s->ops->peer(s, 0, 0, &peer, sizeof peer), FI_EINVAL);
	OK(fi_close(&s->fid));
	OK(fi_open(FI_VERSION(1, 13), "Stats", NULL, 0, 0, &f, &f));
	CHECK(f->context == &f);
	OK(fi_close(f));
	ERR(fi_open(FI_VERSION(1, 12), "stats", NULL, 0, 0, &f, NULL), FI_EINVAL);
	ERR(fi_open(FI_VERSION(1, 13), "stats", &rank, sizeof rank, 0, &f, NULL), FI_EINVAL);
	ERR(fi_open(FI_VERSION(1, 13), "stats", NULL, 0, 1, &f, NULL), FI_EBADFLAGS);
}

/* Looks until the one endpoint of the application's is as wanted; returns its index. */
static size_t look(struct ct *c, struct fid_stats *s, struct fi_stats_endpoint *ep,
		   int (*wanted)(const struct fi_stats_endpoint *))
{
	for (;;) {
		size_t n = 0, own = 0, at = 0;

		ct_idle(c, 20);
		OK(s->ops->look(s, &n));
		for (size_t i = 0; i < n; i++) {
			struct fi_stats_endpoint e;

			OK(s->ops->endpoint(s, i, &e, sizeof e));
			if (e.flags & FI_STATS_SERVES || e.ep_type == FI_EP_UNSPEC)
				continue;
			own++;
			at = i;
			*ep = e;
		}
		CHECK(own <= 1);
		if (own && wanted(ep))
			return at;
	}
}

static int passed_eleven(const struct fi_stats_endpoint *ep) { return ep->sent == 11 && ep->received == 10; }
static int received_eleven(const struct fi_stats_endpoint *ep) { return ep->received == 11; }

static void shows_itself(int rank)
{
	struct fi_stats_endpoint ep, old;
	struct fi_stats_peer peer;
	struct fid_stats *s;
	struct ct c;
	size_t at, n;
	uint64_t iterations;
	char *b;

	s = open_stats();
	ct_open(&c, &TAGGED);
	b = ct_alloc(&c, 4096);
	if (!strcmp(ct_prov, "lnx"))
		SKIP("not offered: the endpoints that it is made of are shown, and it is not");
	if (s->ops->look(s, &n) == -FI_ENODATA)
		SKIP("not offered: this provider shows nothing");
	for (int i = 0; i < 10; i++) {
		POST(&c, fi_trecv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, 5, 0, CTX(1)));
		POST(&c, fi_tsend(c.ep, b + 1024, 100, ct_desc(b), c.peer, 5, CTX(2)));
		ct_sent(&c, CTX(2));
		ct_recvd(&c, CTX(1), 100);
	}
	/* One message of which the tag is wrong. */
	if (rank == 0) {
		POST(&c, fi_tsend(c.ep, b + 1024, 64, ct_desc(b), c.peer, 8, CTX(2)));
		ct_sent(&c, CTX(2));
		at = look(&c, s, &ep, passed_eleven);
		EQ(ep.sent_bytes, 1064);
		EQ(ep.received_bytes, 1000);
	} else {
		POST(&c, fi_trecv(c.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, 7, 0, CTX(1)));
		at = look(&c, s, &ep, received_eleven);
		EQ(ep.received_bytes, 1064);
		EQ(ep.posted[1], 1);
		EQ(ep.unexpected[1], 1);
		CHECK(ep.unexpected_bytes >= 64);
	}
	CHECK(strstr(ct_prov, ep.provider));
	EQ(ep.ep_type, ct_type);
	CHECK(*ep.address);
	EQ(ep.in_flight, 0);
	EQ(ep.rx_queue, 0);
	CHECK(ep.rx_queue_size > 0);
	EQ(ep.lost, 0);
	EQ(ep.peers, 1);
	OK(s->ops->peer(s, at, 0, &peer, sizeof peer));
	EQ(peer.state, FI_STATS_CONNECTED);
	EQ(peer.sent, ep.sent);
	EQ(peer.received, ep.received);
	EQ(peer.unsent, 0);
	EQ(peer.subflows, 0);
	EQ(peer.sockets, 0);
	EQ(peer.resumes, 0);
	EQ(peer.repeated_bytes, 0);
	CHECK(*peer.address);
	ERR(s->ops->peer(s, at, 1, &peer, sizeof peer), FI_EINVAL);
	ERR(s->ops->endpoint(s, 1000, &ep, sizeof ep), FI_EINVAL);
	ERR(s->ops->endpoint(s, at, NULL, sizeof ep), FI_EINVAL);

	/* A caller built with a shorter type gets as many members as that has. */
	memset(&old, 0x55, sizeof old);
	OK(s->ops->endpoint(s, at, &old, offsetof(struct fi_stats_endpoint, iterations)));
	EQ(old.written, ep.written);
	EQ(old.iterations, 0x5555555555555555);
	/* Statistics that are not updated do not change; progress iterations do. */
	iterations = ep.iterations;
	ct_idle(&c, 50);
	OK(s->ops->endpoint(s, at, &ep, sizeof ep));
	EQ(ep.iterations, iterations);
	OK(s->ops->look(s, &n));
	OK(s->ops->endpoint(s, at, &ep, sizeof ep));
	CHECK(ep.iterations > iterations);

	ct_barrier(&c);
	OK(fi_close(&s->fid));
	if (rank == 1) {
		OK(fi_cancel(&c.ep->fid, CTX(1)));
	}
	ct_close(&c);
}

static struct ct A;
static struct fid_stats *stats;
static struct fid_wait *set;
static struct fid_cq *in_set;

/* No thread of this process counts as asleep after the call. */
static void check_asleep(const char *call)
{
	struct fi_stats_endpoint e;
	size_t n = 0;

	OK(stats->ops->look(stats, &n));
	CHECK(n > 0);
	for (size_t i = 0; i < n; i++) {
		OK(stats->ops->endpoint(stats, i, &e, sizeof e));
		if (e.flags & FI_STATS_ASLEEP)
			FAIL("%s, endpoint %zu of %s: a thread counts as asleep", call, i, e.provider);
	}
}
/* What a blocking call waits for, done by another thread while the call sleeps. */
enum { CQ_ENTRY = 1, EQ_EVENT, COUNT, SIGNAL };
static struct { int what, over; pthread_t caller; void *buf; } later;
static void handler(int signal) { (void)signal; }
static void *do_later(void *a)
{
	struct fi_eq_entry e = { .data = 5 };

	ct_nap(20);
	if (later.what == CQ_ENTRY)
		POST(NULL, fi_tsend(A.ep, later.buf, 8, ct_desc(later.buf), A.peer, 3, CTX(1)));
	else if (later.what == EQ_EVENT)
		EQ(fi_eq_write(A.eq, FI_NOTIFY, &e, sizeof e, 0), sizeof e);
	else if (later.what == COUNT)
		OK(fi_cntr_add(A.rxc, 100));
	for (; later.what == SIGNAL && !__atomic_load_n(&later.over, __ATOMIC_SEQ_CST); ct_nap(1))
		OK(pthread_kill(later.caller, SIGUSR1));
	return a;
}
static pthread_t start(int what)
{
	pthread_t t;

	later.what = what, later.over = 0, later.caller = pthread_self();
	OK(pthread_create(&t, NULL, do_later, NULL));
	return t;
}
static void end(pthread_t t)
{
	__atomic_store_n(&later.over, 1, __ATOMIC_SEQ_CST);
	OK(pthread_join(t, NULL));
}
static void with_events(struct ct *c)
{
	if (!c->eq) {
		ct_open_eq(c);
		OK(fi_ep_bind(c->ep, &c->eq->fid, 0));
	}
}
static void *sleeps(void *a)
{
	struct fi_cq_tagged_entry e;

	for (;;)
		fi_cq_sread(A.rx, &e, 1, NULL, -1);
	return a;
}

static void wakes_up(int rank)
{
	const struct ct_opt o = { .caps = FI_TAGGED, .wait = FI_WAIT_UNSPEC, .cntr = 1, .threading = FI_THREAD_SAFE,
		.progress = FI_PROGRESS_MANUAL, .setup = with_events };
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_SET };
	struct sigaction action = { .sa_handler = handler };
	struct fi_cq_tagged_entry e;
	struct fid *fids[2];
	uint64_t count;
	uint32_t event;
	pthread_t t;
	char *b, buf[256];
	void *answer;
	ssize_t r;
	size_t n;

	stats = open_stats();
	if (ct_is_lnx())
		SKIP("not offered: idle cores wake a thread that polls the other");
	ct_open(&A, &o);
	if (stats->ops->look(stats, &n) == -FI_ENODATA)
		SKIP("not offered: this provider shows nothing");
	OK(sigaction(SIGUSR1, &action, NULL));
	OK(fi_wait_open(A.fabric, &wa, &set));
	ca.wait_set = set;
	OK(fi_cq_open(A.domain, &ca, &in_set, NULL));
	b = ct_alloc(&A, 4096);
	later.buf = b + 1024;
	/* The peer is reached, and the first message is in no queue. */
	POST(&A, fi_trecv(A.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, 5, 0, CTX(2)));
	POST(&A, fi_tsend(A.ep, b + 1024, 100, ct_desc(b), A.peer, 5, CTX(1)));
	ct_sent(&A, CTX(1));
	ct_recvd(&A, CTX(2), 100);
	ct_barrier(&A);

	ERR(fi_cq_sread(A.rx, &e, 1, NULL, 20), FI_EAGAIN);
	check_asleep("fi_cq_sread, its time over");
	ERR(fi_eq_sread(A.eq, &event, buf, sizeof buf, 20, 0), FI_EAGAIN);
	check_asleep("fi_eq_sread, its time over");
	count = fi_cntr_read(A.rxc);
	ERR(fi_cntr_wait(A.rxc, count + 1, 20), FI_ETIMEDOUT);
	check_asleep("fi_cntr_wait, its time over");
	ERR(fi_wait(set, 20), FI_ETIMEDOUT);
	check_asleep("fi_wait, its time over");

	/* Events without progress of a domain. */
	for (int i = 0; i < 20; i++) {
		t = start(EQ_EVENT);
		EQ(fi_eq_sread(A.eq, &event, buf, sizeof buf, -1, 0), sizeof(struct fi_eq_entry));
		check_asleep("fi_eq_sread, an event of another thread");
		end(t);
	}
	t = start(COUNT);
	OK(fi_cntr_wait(A.rxc, count + 100, -1));
	check_asleep("fi_cntr_wait, counted by another thread");
	end(t);
	/* Both ranks send and receive one. */
	POST(&A, fi_trecv(A.ep, b, 100, ct_desc(b), FI_ADDR_UNSPEC, 3, 0, CTX(2)));
	t = start(CQ_ENTRY);
	while ((r = fi_cq_sread(A.rx, &e, 1, NULL, -1)) == -FI_EINTR || r == -FI_EAGAIN)
		check_asleep("fi_cq_sread, without an entry");
	EQ(r, 1);
	check_asleep("fi_cq_sread, an entry");
	end(t);
	/* The message that was sent has an entry in another queue, or soon. */
	fids[0] = &A.rx->fid, fids[1] = &A.tx->fid;
	while ((r = fi_trywait(A.fabric, fids, 2)) == 0)
		ct_progress(&A);
	EQ(r, -FI_EAGAIN);
	check_asleep("fi_trywait, an entry");
	ct_sent(&A, CTX(1));
	ct_barrier(&A);

	t = start(SIGNAL);
	r = fi_cq_sread(A.rx, &e, 1, NULL, 300);
	CHECK(r == -FI_EINTR || r == -FI_EAGAIN);
	end(t);
	check_asleep("fi_cq_sread, a signal");
	if (!getenv("FI_HOOK")) {
		OK(pthread_create(&t, NULL, sleeps, NULL));
		ct_nap(30);
		OK(pthread_cancel(t));
		OK(pthread_join(t, &answer));
		CHECK(answer == PTHREAD_CANCELED);
		check_asleep("fi_cq_sread, its thread cancelled");
	}
	ct_barrier(&A);
	OK(fi_close(&in_set->fid));
	OK(fi_close(&set->fid));
	OK(fi_close(&stats->fid));
	ct_done(&A);
	(void)rank;
}

static void hidden(int rank)
{
	struct fid_stats *s = open_stats();
	struct ct c;
	size_t n;

	(void)rank;
	setenv("FI_STATS", "0", 1);
	ct_open(&c, &TAGGED);
	ERR(s->ops->look(s, &n), FI_ENODATA);
	ct_close(&c);
	OK(fi_close(&s->fid));
}

static const struct ct_test tests[] = {
	{ "the statistics of a process can be opened by name", opened_by_name, CT_SOLO },
	{ "messages, receives and peers are published with their actual state", shows_itself, CT_REL },
	{ "no thread counts as asleep after a blocking call", wakes_up, CT_REL },
	{ "FI_STATS=0 publishes no statistics", hidden, 0 },
};
CT_MAIN("stats", tests)
