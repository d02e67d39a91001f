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
	{ "FI_STATS=0 publishes no statistics", hidden, 0 },
};
CT_MAIN("stats", tests)
