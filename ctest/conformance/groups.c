/* FI_MULTICAST of datagrams: groups of the network's (fi_join of fi_cm(3), fi_msg(3)). */
#include "ct.h"
#include <ifaddrs.h>
#include <net/if.h>

static const struct ct_opt usual = { .caps = FI_MSG | FI_MULTICAST | FI_SOURCE };

/* Groups of this run alone: number i. */
union group {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};
static union group group_at(int i, int af)
{
	int pid = getppid();
	char text[64];
	union group g;

	memset(&g, 0, sizeof g);
	if (af == AF_INET6) {
		snprintf(text, sizeof text, "ff11::%x:%x", pid & 0xffff, i + 1);
		g.in6.sin6_family = AF_INET6;
		g.in6.sin6_port = htons(20000 + (pid + i) % 10000);
		inet_pton(AF_INET6, text, &g.in6.sin6_addr);
	} else {
		snprintf(text, sizeof text, "239.%d.%d.%d", 100 + i, pid >> 8 & 255, pid & 255);
		g.in.sin_family = AF_INET;
		g.in.sin_port = htons(20000 + (pid + i) % 10000);
		inet_pton(AF_INET, text, &g.in.sin_addr);
	}
	return g;
}
/* An endpoint of this process, at this address or any of the loopback's, with an event queue. */
static struct ct_name open_one(struct ct *c, const struct ct_opt *o, const char *node, const char *service)
{
	struct fi_info *h, *i = NULL;

	memset(c, 0, sizeof *c);
	c->o = *o;
	h = ct_hints(&c->o);
	if (fi_getinfo(CT_VERSION, node ? node : ct_node(&c->o), service ? service : "0", FI_SOURCE, h, &i))
		c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);	/* skips */
	else
		c->info = i;
	fi_freeinfo(h);
	ct_open_in(c, NULL);
	ct_open_eq(c);
	ct_open_ep(c, c->info);
	OK(fi_ep_bind(c->ep, &c->eq->fid, 0));
	OK(fi_enable(c->ep));
	return ct_getname(&c->ep->fid);
}
static struct fid_mc *join(struct ct *c, const union group *g, uint64_t flags)
{
	struct fi_eq_entry x = { 0 };
	struct fid_mc *mc = NULL;
	uint32_t ev = 0;
	ssize_t r = fi_join(c->ep, g, flags, &mc, CTX(50));

	if (r == -ENODEV || r == -EADDRNOTAVAIL)
		SKIP_HERE("no interface for groups: %s", fi_strerror((int)-r));
	OK(r);
	EQ(mc->fid.fclass, FI_CLASS_MC);
	while ((r = fi_eq_read(c->eq, &ev, &x, sizeof x, 0)) == -FI_EAGAIN)
		ct_progress(c);
	EQ(r, sizeof x);
	EQ(ev, FI_JOIN_COMPLETE);
	CHECK(x.fid == &mc->fid);
	CHECK(x.context == CTX(50));
	CHECK(fi_mc_addr(mc) != FI_ADDR_NOTAVAIL);
	return mc;
}
static void say(struct ct *c, fi_addr_t to, const void *buf, size_t len)
{
	struct iovec v = { (void *)buf, len };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = to, .context = CTX(60) };
	struct fi_cq_tagged_entry e = { 0 };

	POST(c, fi_sendmsg(c->ep, &m, FI_MULTICAST | FI_COMPLETION));
	ct_next(c, c->tx, &e, NULL, NULL);
	CHECK(e.op_context == CTX(60));
	CHECK(e.flags & FI_SEND);
}
static void post(struct ct *c, void *buf, size_t len, int i)
{
	POST(c, fi_recv(c->ep, buf, len, NULL, FI_ADDR_UNSPEC, CTX(i)));
}
static void received(struct ct *c, int i, const void *buf, size_t len, unsigned seed, fi_addr_t from)
{
	struct fi_cq_tagged_entry e = { 0 };
	fi_addr_t src = 0;

	ct_next(c, c->rx, &e, &src, NULL);
	CHECK(e.op_context == CTX(i));
	CHECK(e.flags & FI_RECV);
	EQ(e.len, len);
	CHECK(ct_same(buf, len, seed));
	if (from != FI_ADDR_UNSPEC)
		EQ(src, from);
}

static void offered(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_MULTICAST };
	struct fi_info *h = fi_allocinfo(), *i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);

	(void)rank;
	CHECK(i->caps & FI_MULTICAST && i->tx_attr->caps & FI_MULTICAST);
	fi_freeinfo(i);
	o.caps = FI_MSG;
	i = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	CHECK(!(i->caps & FI_MULTICAST));
	fi_freeinfo(i);
	/* as upstream: without hints it is offered */
	h->fabric_attr->prov_name = strdup(ct_prov);
	h->ep_attr->type = FI_EP_DGRAM;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
	CHECK(i->caps & FI_MULTICAST && i->tx_attr->caps & FI_MULTICAST);
	fi_freeinfo(i);
	fi_freeinfo(h);
}
/* Rank 1 sends, rank 0 receives; a third endpoint is in no group. */
static void members_of(int rank, int af, const char *node)
{
	struct ct_opt o = usual;
	struct ct_name mine, theirs;
	struct ct c, other;
	struct fid_mc *mc;
	char buf[3][2000], out[2000];
	union group g = group_at(0, af);

	o.af = af;
	mine = open_one(&c, &o, node, NULL);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	mc = join(&c, &g, rank ? FI_SEND : FI_RECV);
	if (rank == 1) {
		post(&c, buf[0], 2000, 0);
		ct_barrier(&c);
		for (int i = 0; i < 3; i++) {
			size_t n = i == 0 ? 0 : i == 1 ? 100 : c.info->ep_attr->max_msg_size;

			ct_fill(out, n, i);
			say(&c, fi_mc_addr(mc), out, n);
		}
		/* a member that only sends receives nothing */
		NOTHING(&c, c.rx, 50);
		ct_barrier(&c);
		/* the other one has left */
		ct_barrier(&c);
		say(&c, fi_mc_addr(mc), out, 10);
		POST(&c, fi_send(c.ep, out, 20, NULL, c.peer, NULL));
		ct_sent(&c, NULL);
		ct_barrier(&c);
	} else {
		struct iovec v = { out, 4 };
		struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = fi_mc_addr(mc) };

		open_one(&other, &o, node, NULL);
		post(&other, out, 2000, 9);
		for (int i = 0; i < 3; i++)
			post(&c, buf[i], 2000, i);
		ct_barrier(&c);
		for (int i = 0; i < 3; i++)
			received(&c, i, buf[i], i == 0 ? 0 : i == 1 ? 100 : c.info->ep_attr->max_msg_size, i, c.peer);
		NOTHING(&c, c.rx, 20);
		NOTHING(&other, other.rx, 20);
		/* a member that only receives sends nothing */
		ERR(fi_sendmsg(c.ep, &m, FI_MULTICAST), FI_EINVAL);
		ct_barrier(&c);
		OK(fi_close(&mc->fid));
		ERR(fi_sendmsg(c.ep, &m, FI_MULTICAST), FI_EINVAL);
		post(&c, buf[0], 2000, 0);
		ct_barrier(&c);
		/* the next message is the one sent to it alone */
		received(&c, 0, buf[0], 20, 2, c.peer);
		NOTHING(&other, other.rx, 20);
		ct_close(&other);
		ct_barrier(&c);
		mc = NULL;
	}
	if (mc)
		OK(fi_close(&mc->fid));
	ct_done(&c);
}
static void members(int rank) { members_of(rank, AF_INET, NULL); }
/* The loopback interface has no route to groups of IPv6, but messages on other interfaces come back to this host. */
static void members6(int rank)
{
	char node[64] = "";
	struct ifaddrs *all, *i;

	CHECK(!getifaddrs(&all));
	for (i = all; i && !*node; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET6 && i->ifa_flags & IFF_UP && i->ifa_flags & IFF_MULTICAST &&
		    !((struct sockaddr_in6 *)i->ifa_addr)->sin6_scope_id)
			inet_ntop(AF_INET6, &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, node, sizeof node);
	freeifaddrs(all);
	if (!*node)
		SKIP_HERE("no interface with an IPv6 address and multicast");
	members_of(rank, AF_INET6, node);
}
/* Groups do not mix, a sender receives its own messages, and a group joined twice delivers them once. */
static void several(int rank)
{
	union group g[2] = { group_at(0, AF_INET), group_at(1, AF_INET) };
	struct ct c[3];
	struct fid_mc *mc[4], *again;
	char buf[3][2][64], out[64];

	(void)rank;
	for (int i = 0; i < 3; i++) {
		open_one(&c[i], &usual, NULL, NULL);
		for (int k = 0; k < 2; k++)
			post(&c[i], buf[i][k], 64, k);
	}
	mc[0] = join(&c[0], &g[0], 0);
	mc[1] = join(&c[1], &g[0], 0);
	mc[2] = join(&c[1], &g[1], 0);
	mc[3] = join(&c[2], &g[1], 0);
	again = join(&c[0], &g[0], 0);
	ct_fill(out, 64, 1);
	say(&c[0], fi_mc_addr(mc[0]), out, 30);
	received(&c[0], 0, buf[0][0], 30, 1, FI_ADDR_UNSPEC);
	received(&c[1], 0, buf[1][0], 30, 1, FI_ADDR_UNSPEC);
	say(&c[2], fi_mc_addr(mc[3]), out, 31);
	received(&c[1], 1, buf[1][1], 31, 1, FI_ADDR_UNSPEC);
	received(&c[2], 0, buf[2][0], 31, 1, FI_ADDR_UNSPEC);
	for (int i = 0; i < 3; i++)
		NOTHING(&c[i], c[i].rx, 20);
	OK(fi_close(&mc[0]->fid));
	say(&c[1], fi_mc_addr(mc[1]), out, 32);
	received(&c[0], 1, buf[0][1], 32, 1, FI_ADDR_UNSPEC);
	OK(fi_close(&again->fid));
	for (int i = 1; i < 4; i++)
		OK(fi_close(&mc[i]->fid));
	for (int i = 0; i < 3; i++)
		ct_close(&c[i]);
}
/* At the group's port, on all interfaces: as the original's members have to be. */
static void at_its_port(int rank)
{
	union group g = group_at(2, AF_INET);
	char service[8], buf[2][64], out[64];
	struct fid_mc *mc, *to;
	struct ct c, from;

	(void)rank;
	snprintf(service, sizeof service, "%d", ntohs(g.in.sin_port));
	open_one(&c, &usual, "0.0.0.0", service);
	open_one(&from, &usual, "0.0.0.0", NULL);
	/* by the interface with the route to groups, or with the default route */
	mc = join(&c, &g, FI_RECV);
	to = join(&from, &g, FI_SEND);
	ct_fill(out, 64, 1);
	post(&c, buf[0], 64, 0);
	post(&c, buf[1], 64, 1);
	say(&from, fi_mc_addr(to), out, 10);
	received(&c, 0, buf[0], 10, 1, FI_ADDR_UNSPEC);
	OK(fi_close(&mc->fid));
	say(&from, fi_mc_addr(to), out, 10);
	NOTHING(&c, c.rx, 50);
	OK(fi_close(&to->fid));
	ct_close(&from);
	ct_close(&c);
}
static void every_call(int rank)
{
	struct ct_opt o = usual;
	union group g = group_at(0, AF_INET);
	struct ct c;
	struct fid_mc *mc;
	char buf[8][64], out[64];
	struct iovec v[2] = { { out, 20 }, { out + 20, 10 } };
	struct fi_msg m = { .msg_iov = v, .iov_count = 2, .context = CTX(3) };
	fi_addr_t to;

	(void)rank;
	o.cntr = 1;
	open_one(&c, &o, NULL, NULL);
	mc = join(&c, &g, 0);
	to = m.addr = fi_mc_addr(mc);
	for (int i = 0; i < 5; i++)
		post(&c, buf[i], 64, 10 + i);
	ct_fill(out, 64, 4);
	POST(&c, fi_send(c.ep, out, 30, NULL, to, CTX(1)));
	ct_sent(&c, CTX(1));
	POST(&c, fi_sendv(c.ep, v, NULL, 2, to, CTX(2)));
	ct_sent(&c, CTX(2));
	POST(&c, fi_sendmsg(c.ep, &m, FI_MULTICAST | FI_COMPLETION));
	ct_sent(&c, CTX(3));
	POST(&c, fi_sendmsg(c.ep, &m, FI_MULTICAST | FI_INJECT | FI_COMPLETION));
	ct_sent(&c, CTX(3));
	POST(&c, fi_inject(c.ep, out, 30, to));
	for (int i = 0; i < 5; i++)
		received(&c, 10 + i, buf[i], 30, 4, FI_ADDR_UNSPEC);
	NOTHING(&c, c.tx, 10);
	EQ(fi_cntr_read(c.txc), 5);
	EQ(fi_cntr_read(c.rxc), 5);
	/* the flag is for groups alone */
	m.addr = 0;
	ERR(fi_sendmsg(c.ep, &m, FI_MULTICAST), FI_EINVAL);
	OK(fi_close(&mc->fid));
	ct_close(&c);
}
static void refused(int rank)
{
	struct ct_opt o = usual;
	union group g = group_at(0, AF_INET), x = g, g6 = group_at(0, AF_INET6);
	struct fid_mc *mc;
	struct ct c;

	(void)rank;
	open_one(&c, &o, NULL, NULL);
	x.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	ERR(fi_join(c.ep, &x, 0, &mc, NULL), FI_EINVAL);
	x = g;
	x.in.sin_port = 0;
	ERR(fi_join(c.ep, &x, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(c.ep, &g6, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(c.ep, NULL, 0, &mc, NULL), FI_EINVAL);
	ERR(fi_join(c.ep, &g, FI_READ, &mc, NULL), FI_EBADFLAGS);
	ct_close(&c);
	/* without an event queue, and before it is enabled */
	memset(&c, 0, sizeof c);
	c.o = o;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	ERR(fi_join(c.ep, &g, 0, &mc, NULL), FI_EOPBADSTATE);
	OK(fi_enable(c.ep));
	ERR(fi_join(c.ep, &g, 0, &mc, NULL), FI_ENOEQ);
	ct_close(&c);
	/* not offered without a request for it */
	o.caps = FI_MSG;
	open_one(&c, &o, NULL, NULL);
	ERR(fi_join(c.ep, &g, 0, &mc, NULL), FI_ENOSYS);
	ct_close(&c);
}
/* A sleeping reader is woken by messages to the group, also with many other endpoints. */
static void asleep(int rank)
{
	enum { MANY = 8 };
	struct ct_opt o = usual;
	union group g = group_at(3, AF_INET);
	struct fi_cq_tagged_entry e;
	struct ct c, alternate[MANY];
	struct fid_mc *mc;
	char buf[64], out[64];

	o.wait = FI_WAIT_UNSPEC;
	open_one(&c, &o, NULL, NULL);
	for (int i = 0; i < MANY; i++) {
		alternate[i] = c;
		OK(fi_endpoint(c.domain, c.info, &alternate[i].ep, NULL));
		OK(fi_ep_bind(alternate[i].ep, &c.rx->fid, FI_RECV));
		OK(fi_ep_bind(alternate[i].ep, &c.tx->fid, FI_TRANSMIT));
		OK(fi_ep_bind(alternate[i].ep, &c.av->fid, 0));
		OK(fi_enable(alternate[i].ep));
	}
	mc = join(&c, &g, rank ? FI_SEND : FI_RECV);
	if (rank == 0)
		post(&c, buf, 64, 0);
	ct_barrier(&c);
	if (rank == 1) {
		ct_nap(100);
		ct_fill(out, 64, 7);
		say(&c, fi_mc_addr(mc), out, 50);
	} else {
		EQ(fi_cq_sread(c.rx, &e, 1, NULL, -1), 1);
		CHECK(e.op_context == CTX(0));
		EQ(e.len, 50);
		CHECK(ct_same(buf, 50, 7));
	}
	ct_barrier(&c);
	OK(fi_close(&mc->fid));
	for (int i = 0; i < MANY; i++)
		OK(fi_close(&alternate[i].ep->fid));
	ct_close(&c);
}
/* The endpoint goes first. */
static void endpoint_first(int rank)
{
	union group g = group_at(0, AF_INET);
	struct fid_mc *mc;
	struct ct c;

	(void)rank;
	open_one(&c, &usual, NULL, NULL);
	mc = join(&c, &g, 0);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&mc->fid));
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "multicast groups of the network are offered", offered, CT_DGRAM | CT_SOLO },
	{ "only current members receive messages to the group", members, CT_DGRAM },
	{ "IPv6 groups work", members6, CT_DGRAM },
	{ "messages of different groups do not mix, and each is received once", several, CT_DGRAM | CT_SOLO },
	{ "a group at the endpoint's own port is received until it is left", at_its_port, CT_DGRAM | CT_SOLO },
	{ "every send call reaches the group", every_call, CT_DGRAM | CT_SOLO },
	{ "joining an address outside the multicast range is refused", refused, CT_DGRAM | CT_SOLO },
	{ "a group message wakes a waiter", asleep, CT_DGRAM },
	{ "a group outlives its endpoint", endpoint_first, CT_DGRAM | CT_SOLO },
};
CT_MAIN("groups", tests)
