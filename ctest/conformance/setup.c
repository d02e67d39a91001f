/* fi_getinfo(3), fi_av(3), fi_endpoint(3): discovery, address vectors, set-up errors, options. */
#include "ct.h"

static void getinfo_basics(int rank)
{
	struct fi_info *h, *i = NULL, *d;
	int n = 0;

	(void)rank;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &i));
	for (struct fi_info *p = i; p; p = p->next, n++) {
		CHECK(p->fabric_attr->name && p->fabric_attr->prov_name && p->domain_attr->name);
		CHECK(p->ep_attr->type != FI_EP_UNSPEC);
		EQ(p->fabric_attr->api_version, CT_VERSION);
	}
	CHECK(n > 0);
	d = fi_dupinfo(i);
	CHECK(d && !d->next && !strcmp(d->fabric_attr->name, i->fabric_attr->name));
	fi_freeinfo(d);
	fi_freeinfo(i);
	h = fi_allocinfo();
	CHECK(h && h->ep_attr && h->tx_attr && h->rx_attr && h->domain_attr && h->fabric_attr);
	h->fabric_attr->prov_name = strdup("no such provider");
	i = NULL;
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
	ERR(fi_getinfo(FI_VERSION(99, 0), NULL, NULL, 0, NULL, &i), FI_ENOSYS);
	fi_freeinfo(NULL);
}
static void hints_hold(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RECV };
	struct fi_info *h = ct_hints(&o), *i = NULL;
	int n = 0;

	(void)rank;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
	for (struct fi_info *p = i; p; p = p->next, n++) {
		/* layered providers are listed for the name of their core too */
		CHECK(!strncmp(p->fabric_attr->prov_name, ct_prov, strlen(ct_prov)));
		EQ(p->ep_attr->type, ct_type);
		EQ(p->caps & o.caps, o.caps);
		EQ(p->caps & FI_RMA, 0);		/* primary capabilities: as requested, no more */
		EQ(p->caps & FI_SEND, 0);
		if (ct_is_ip())
			EQ(p->addr_format, FI_SOCKADDR_IN);
	}
	CHECK(n > 0);
	fi_freeinfo(i);
	i = NULL;
	h->tx_attr->inject_size = SIZE_MAX / 2;	/* more than any provider has */
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	h->tx_attr->inject_size = 0;
	h->ep_attr->max_msg_size = 1;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
	CHECK(i->ep_attr->max_msg_size >= 1);
	fi_freeinfo(i);
	fi_freeinfo(h);
}
static void getinfo_addresses(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *h = ct_hints(&o), *i = NULL;
	struct sockaddr_in *a;

	(void)rank;
	ct_ip_only();
	OK(fi_getinfo(CT_VERSION, "127.0.0.1", "7777", FI_SOURCE, h, &i));
	a = i->src_addr;
	CHECK(a && !i->dest_addr);
	EQ(i->src_addrlen, sizeof *a);
	EQ(a->sin_port, htons(7777));
	EQ(a->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	fi_freeinfo(i);
	i = NULL;
	OK(fi_getinfo(CT_VERSION, "127.0.0.1", "7778", 0, h, &i));
	a = i->dest_addr;
	CHECK(a);
	EQ(i->dest_addrlen, sizeof *a);
	EQ(a->sin_port, htons(7778));
	EQ(a->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	CHECK(i->src_addr);
	EQ(((struct sockaddr_in *)i->src_addr)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	fi_freeinfo(i);
	i = NULL;
	ERR(fi_getinfo(CT_VERSION, "not.a.number", "1", FI_NUMERICHOST, h, &i), FI_ENODATA);
	CHECK(fi_getinfo(CT_VERSION, NULL, NULL, FI_SOURCE, h, &i) < 0);
	fi_freeinfo(h);
}
static void prov_attr_only(int rank)
{
	struct fi_info *i = NULL;
	int found = 0;

	(void)rank;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &i));
	for (struct fi_info *p = i; p; p = p->next)
		found |= p->fabric_attr && !strncmp(p->fabric_attr->prov_name, ct_prov, strcspn(ct_prov, ";"));
	CHECK(found);
	fi_freeinfo(i);
}

/* ---- address vectors --------------------------------------------------- */

static void open_av(struct ct *c, enum fi_av_type t, size_t count)
{
	struct fi_av_attr a = { .type = t, .count = count };

	memset(c, 0, sizeof *c);
	c->o.av = t;
	c->info = ct_getinfo(&c->o, "127.0.0.1", "0", FI_SOURCE);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, NULL));
	OK(fi_domain(c->fabric, c->info, &c->domain, NULL));
	OK(fi_av_open(c->domain, &a, &c->av, NULL));
}
static struct sockaddr_in sin_of(const char *ip, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, ip, &a.sin_addr);
	return a;
}
static void av_insert(int rank, enum fi_av_type t)
{
	struct ct c;
	struct sockaddr_in a[40], b;
	fi_addr_t f[40], again, x;
	size_t n;
	char s[100];

	(void)rank;
	ct_ip_only();
	open_av(&c, t, 4);			/* grows past its count */
	for (int i = 0; i < 40; i++)
		a[i] = sin_of("127.0.0.1", 5000 + i);
	EQ(fi_av_insert(c.av, a, 40, f, 0, NULL), 40);
	for (int i = 0; i < 40; i++) {
		CHECK(f[i] != FI_ADDR_NOTAVAIL);
		if (t == FI_AV_TABLE)
			EQ(f[i], i);
		for (int j = 0; j < i; j++)
			CHECK(f[i] != f[j]);
		n = sizeof b;
		memset(&b, 0, sizeof b);
		OK(fi_av_lookup(c.av, f[i], &b, &n));
		EQ(n, sizeof b);
		EQ(b.sin_port, a[i].sin_port);
	}
	/* lookup with too little room: as much as fits, and the whole length */
	n = 4;
	memset(&b, 0xee, sizeof b);
	OK(fi_av_lookup(c.av, f[0], &b, &n));
	EQ(n, sizeof b);
	EQ(((unsigned char *)&b)[4], 0xee);
	/* a duplicate is the same peer, and is removed as often as it was inserted */
	EQ(fi_av_insert(c.av, &a[3], 1, &again, 0, NULL), 1);
	EQ(again, f[3]);
	OK(fi_av_remove(c.av, &f[3], 1, 0));
	n = sizeof b;
	OK(fi_av_lookup(c.av, f[3], &b, &n));
	OK(fi_av_remove(c.av, &f[3], 1, 0));
	n = sizeof b;
	CHECK(fi_av_lookup(c.av, f[3], &b, &n) < 0);
	CHECK(fi_av_remove(c.av, &f[3], 1, 0) < 0);
	/* the free slot can be used again */
	EQ(fi_av_insert(c.av, &a[3], 1, &x, 0, NULL), 1);
	n = sizeof b;
	OK(fi_av_lookup(c.av, x, &b, &n));
	EQ(b.sin_port, a[3].sin_port);
	CHECK(fi_av_remove(c.av, f, 1, 1ull << 50) < 0);
	x = 99999;
	n = sizeof b;
	CHECK(fi_av_lookup(c.av, x, &b, &n) < 0);
	n = sizeof s;
	CHECK(fi_av_straddr(c.av, &a[0], s, &n) == s);
	CHECK(!strcmp(s, "fi_sockaddr_in://127.0.0.1:5000"));
	EQ(n, strlen(s) + 1);
	n = 5;
	memset(s, 'z', sizeof s);
	fi_av_straddr(c.av, &a[0], s, &n);
	CHECK(n > 5 && s[5] == 'z' && s[4] == 0);
	OK(fi_close(&c.av->fid));
	c.av = NULL;
	ct_close(&c);
}
static void av_table(int rank) { av_insert(rank, FI_AV_TABLE); }
static void av_map(int rank) { av_insert(rank, FI_AV_MAP); }
static void av_bad(int rank)
{
	struct ct c;
	struct sockaddr_in a[3] = { sin_of("127.0.0.1", 5000), sin_of("127.0.0.1", 5001), sin_of("127.0.0.1", 5002) };
	fi_addr_t f[3] = { 1, 2, 3 };
	int e[3] = { -1, -1, -1 };

	(void)rank;
	ct_ip_only();
	open_av(&c, FI_AV_TABLE, 8);
	a[1].sin_family = 77;
	EQ(fi_av_insert(c.av, a, 3, f, 0, NULL), 2);
	CHECK(f[0] != FI_ADDR_NOTAVAIL && f[2] != FI_ADDR_NOTAVAIL);
	EQ(f[1], FI_ADDR_NOTAVAIL);
	a[0].sin_port = htons(6000);
	a[2].sin_port = htons(6002);
	EQ(fi_av_insert(c.av, a, 3, f, FI_SYNC_ERR, e), 2);
	EQ(e[0], 0);
	CHECK(e[1] > 0);
	EQ(e[2], 0);
	CHECK(fi_av_insert(c.av, a, 1, f, 1ull << 50, NULL) < 0);
	ct_close(&c);
}
static void av_service(int rank)
{
	struct ct c;
	struct sockaddr_in b;
	size_t n = sizeof b;
	fi_addr_t f[6];

	(void)rank;
	ct_ip_only();
	open_av(&c, FI_AV_TABLE, 8);
	EQ(fi_av_insertsvc(c.av, "127.0.0.1", "8000", f, 0, NULL), 1);
	OK(fi_av_lookup(c.av, f[0], &b, &n));
	EQ(b.sin_port, htons(8000));
	EQ(b.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	EQ(fi_av_insertsym(c.av, "127.0.0.1", 2, "9000", 3, f, 0, NULL), 6);
	for (int i = 0; i < 6; i++) {	/* hosts in the outer loop, services in the inner */
		n = sizeof b;
		OK(fi_av_lookup(c.av, f[i], &b, &n));
		EQ(ntohl(b.sin_addr.s_addr), INADDR_LOOPBACK + i / 3);
		EQ(ntohs(b.sin_port), 9000 + i % 3);
	}
	ct_close(&c);
}

/* ---- endpoints ----------------------------------------------------------- */

/* All that an endpoint of this host's loopback address stands on, and no endpoint. */
static void open_without_ep(struct ct *c)
{
	memset(c, 0, sizeof *c);
	c->info = ct_getinfo(&c->o, "127.0.0.1", "0", FI_SOURCE);
	ct_open_in(c, NULL);
}
static void enable_errors(int rank)
{
	struct ct c;
	struct fid_ep *ep;

	(void)rank;
	open_without_ep(&c);
	OK(fi_endpoint(c.domain, c.info, &ep, NULL));
	CHECK(fi_enable(ep) < 0);
	OK(fi_ep_bind(ep, &c.av->fid, 0));
	ERR(fi_enable(ep), FI_ENOCQ);
	OK(fi_close(&ep->fid));
	OK(fi_endpoint(c.domain, c.info, &ep, NULL));
	OK(fi_ep_bind(ep, &c.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(ep, &c.rx->fid, FI_RECV));
	ERR(fi_enable(ep), FI_ENOAV);
	OK(fi_close(&ep->fid));
	OK(fi_endpoint(c.domain, c.info, &ep, NULL));
	CHECK(fi_ep_bind(ep, &c.tx->fid, 1ull << 55) < 0);
	CHECK(fi_ep_bind(ep, &c.domain->fid, 0) < 0);
	OK(fi_close(&ep->fid));
	ct_close(&c);
}
/*
 * fi_domain(3): "The default authorization key to associate with endpoint and memory registrations created within the domain."
 * A provider that associates none refuses the key: the program would take its messages for protected.
 */
static void refused_keys(int rank)
{
	static uint8_t key[] = "a secret of some bytes";
	struct ct_opt keyed = { .ep_key = (char *)key };
	struct ct c;
	struct fi_info *hints = ct_hints(&keyed), *with = NULL;
	struct fid_domain *d;
	struct fid_ep *ep;

	(void)rank;
	if (!fi_getinfo(CT_VERSION, NULL, NULL, 0, hints, &with) && with->ep_attr->auth_key_size)
		SKIP("keys are used");
	open_without_ep(&c);
	c.info->domain_attr->auth_key = key;
	c.info->domain_attr->auth_key_size = sizeof key - 1;
	CHECK(fi_domain(c.fabric, c.info, &d, NULL) < 0);
	c.info->domain_attr->auth_key = NULL;
	c.info->domain_attr->auth_key_size = 0;
	c.info->ep_attr->auth_key = key;
	c.info->ep_attr->auth_key_size = sizeof key - 1;
	CHECK(fi_endpoint(c.domain, c.info, &ep, NULL) < 0);
	c.info->ep_attr->auth_key = NULL;
	c.info->ep_attr->auth_key_size = 0;
	OK(fi_endpoint(c.domain, c.info, &ep, NULL));
	OK(fi_close(&ep->fid));
	ct_close(&c);
}
/*
 * fi_domain(3): "An event queue bound to a domain will be the default EQ associated with asynchronous control events that
 * occur on the domain or active endpoints allocated on a domain. This includes CM events."
 */
static void domain_eq(int rank)
{
	struct fi_av_attr a = { .flags = FI_EVENT };
	struct fi_eq_entry e = { 0 };
	struct ct c;
	struct fid_ep *ep;
	struct fid_av *av;
	struct fid_eq *eq;
	uint32_t ev = 0;

	(void)rank;
	open_without_ep(&c);
	OK(fi_eq_open(c.fabric, &(struct fi_eq_attr){ .size = 8 }, &eq, NULL));
	ERR(fi_domain_bind(c.domain, NULL, 0), FI_EINVAL);
	OK(fi_domain_bind(c.domain, &eq->fid, 0));
	ERR(fi_domain_bind(c.domain, &eq->fid, 0), FI_EINVAL);
	ERR(fi_close(&eq->fid), FI_EBUSY);
	/* a vector without a queue of its own reports its insertions there */
	if (c.av && !fi_av_open(c.domain, &a, &av, NULL)) {
		struct ct_name name;
		fi_addr_t addr = FI_ADDR_NOTAVAIL;

		OK(fi_endpoint(c.domain, c.info, &ep, NULL));
		OK(fi_ep_bind(ep, &c.tx->fid, FI_TRANSMIT));
		OK(fi_ep_bind(ep, &c.rx->fid, FI_RECV));
		OK(fi_ep_bind(ep, &c.av->fid, 0));
		OK(fi_enable(ep));
		name = ct_getname(&ep->fid);
		OK(fi_av_insert(av, name.b, 1, &addr, 0, CTX(3)));
		EQ(fi_eq_read(eq, &ev, &e, sizeof e, 0), sizeof e);
		EQ(ev, FI_AV_COMPLETE);
		CHECK(e.fid == &av->fid && e.context == CTX(3));
		EQ(e.data, 1);
		OK(fi_close(&av->fid));
		OK(fi_close(&ep->fid));
	} else if (!c.av) {
		/* a connected endpoint is enabled without one of its own */
		OK(fi_endpoint(c.domain, c.info, &ep, NULL));
		OK(fi_ep_bind(ep, &c.tx->fid, FI_TRANSMIT));
		OK(fi_ep_bind(ep, &c.rx->fid, FI_RECV));
		OK(fi_enable(ep));
		OK(fi_close(&ep->fid));
	}
	/* the domain has the queue until it closes */
	if (c.eq)
		OK(fi_close(&c.eq->fid));
	c.eq = eq;
	ct_close(&c);
}
/*
 * fi_endpoint(3): "inject_size: ... the maximum size data transfer that can be associated with an inject operation",
 * "iov_limit: ... the maximum number of IO vectors ... that a single posted operation may reference". An endpoint cannot
 * be opened with more than the provider has, which it would not keep.
 */
static void beyond_limits(int rank)
{
	struct ct c;
	struct fid_ep *ep;

	(void)rank;
	open_without_ep(&c);
	struct { const char *name; size_t *value, much; } all[] = {
		{ "tx_attr->inject_size", &c.info->tx_attr->inject_size, 1 << 30 },
		{ "tx_attr->size", &c.info->tx_attr->size, 1 << 24 },
		{ "tx_attr->iov_limit", &c.info->tx_attr->iov_limit, 1000 },
		{ "tx_attr->rma_iov_limit", &c.info->tx_attr->rma_iov_limit, 1000 },
		{ "rx_attr->size", &c.info->rx_attr->size, 1 << 24 },
		{ "rx_attr->iov_limit", &c.info->rx_attr->iov_limit, 1000 },
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		size_t had = *all[i].value;
		int r;

		*all[i].value = all[i].much;
		r = fi_endpoint(c.domain, c.info, &ep, NULL);
		if (r != -FI_ENODATA)
			FAIL("%s of %zu: %d", all[i].name, all[i].much, r);
		*all[i].value = had;
		OK(fi_endpoint(c.domain, c.info, &ep, NULL));
		OK(fi_close(&ep->fid));
		/* less is fine */
		*all[i].value = had ? 1 : 0;
		OK(fi_endpoint(c.domain, c.info, &ep, NULL));
		OK(fi_close(&ep->fid));
		*all[i].value = had;
	}
	ct_close(&c);
}
static void before_enable(int rank)
{
	struct ct c;
	struct fid_ep *ep;
	char b[8];

	(void)rank;
	open_without_ep(&c);
	OK(fi_endpoint(c.domain, c.info, &ep, NULL));
	CHECK(fi_send(ep, b, 1, NULL, 0, CTX(0)) < 0);
	CHECK(fi_recv(ep, b, 1, NULL, 0, CTX(0)) < 0);
	OK(fi_close(&ep->fid));
	ct_close(&c);
}
static void options(int rank)
{
	struct ct c;
	size_t v = 0, n = sizeof v;

	(void)rank;
	ct_open(&c, NULL);
	if (ct_type == FI_EP_DGRAM)
		SKIP("no option that every provider has");
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &v, &n));
	CHECK(v > 0);
	v = 100;
	OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &v, sizeof v));
	v = 0;
	n = sizeof v;
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &v, &n));
	EQ(v, 100);
	EQ(n, sizeof v);
	n = 1;
	ERR(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &v, &n), FI_ETOOSMALL);
	n = sizeof v;
	ERR(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, 0x7fff, &v, &n), FI_ENOPROTOOPT);
	ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, 0x7fff, &v, sizeof v), FI_ENOPROTOOPT);
	ERR(fi_getopt(&c.ep->fid, 77, FI_OPT_MIN_MULTI_RECV, &v, &n), FI_ENOPROTOOPT);
	ct_done(&c);
}
static void op_flags(int rank)
{
	struct ct c;
	uint64_t f = FI_TRANSMIT;

	(void)rank;
	ct_open(&c, NULL);
	int r = fi_control(&c.ep->fid, FI_GETOPSFLAG, &f);
	if (r == -FI_ENOSYS)
		SKIP("FI_GETOPSFLAG not offered");
	OK(r);
	f = FI_TRANSMIT | FI_COMPLETION;
	OK(fi_control(&c.ep->fid, FI_SETOPSFLAG, &f));
	f = FI_TRANSMIT;
	OK(fi_control(&c.ep->fid, FI_GETOPSFLAG, &f));
	CHECK(f & FI_COMPLETION);
	ct_done(&c);
}
static void rdm_name(int rank)
{
	struct ct c;
	struct ct_name n;
	char b[128];
	size_t l = 3;

	(void)rank;
	ct_ip_only();
	memset(&c, 0, sizeof c);
	n = ct_open_rdm(&c, NULL);
	EQ(n.n, sizeof(struct sockaddr_in));
	EQ(((struct sockaddr_in *)n.b)->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	CHECK(((struct sockaddr_in *)n.b)->sin_port != 0);
	ERR(fi_getname(&c.ep->fid, b, &l), FI_ETOOSMALL);
	EQ(l, n.n);
	ct_close(&c);
}
static void null_arguments(int rank)
{
	struct ct c;
	struct fid_fabric *f = NULL;
	struct fi_fabric_attr a = { 0 };

	(void)rank;
	CHECK(fi_fabric(&a, &f, NULL) < 0);		/* no name, no provider */
	a.name = (char *)"x";
	a.prov_name = (char *)"no such provider";
	CHECK(fi_fabric(&a, &f, NULL) < 0);
	open_without_ep(&c);
	CHECK(fi_endpoint(c.domain, c.info, &c.ep, NULL) == 0);
	CHECK(fi_control(&c.ep->fid, 9999, NULL) < 0);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	ct_close(&c);
}
/*
 * fi_mr(3): "A region that grants peers no right has no key, and requested_key of it is ignored": programs that register
 * buffers for their own transfers alone pass 0 each time.
 */
static void keyless_regions(int rank)
{
	static const uint64_t own[] = { FI_SEND | FI_RECV, FI_SEND | FI_RECV, FI_READ | FI_WRITE, FI_SEND, FI_WRITE };
	static const int modes[] = { 0, FI_MR_LOCAL, FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY };
	static char b[4096];
	int tried = 0;

	(void)rank;
	for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
		struct ct_opt o = { .mr_mode = &modes[m], .version = FI_VERSION(1, 20) };
		struct fi_info *h = ct_hints(&o);
		struct fid_mr *mr[sizeof own / sizeof *own], *remote;
		struct ct c = { .o = o };
		int r;

		h->caps = ct_type == FI_EP_DGRAM ? FI_MSG : FI_MSG | FI_RMA;
		r = fi_getinfo(o.version, NULL, NULL, 0, h, &c.info);
		fi_freeinfo(h);
		if (r == -FI_ENODATA)
			continue;
		OK(r);
		tried = 1;
		OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
		OK(fi_domain(c.fabric, c.info, &c.domain, NULL));
		for (size_t i = 0; i < sizeof own / sizeof *own; i++)
			OK(fi_mr_reg(c.domain, b, sizeof b, own[i], 0, 0, 0, &mr[i], NULL));
		for (size_t i = 0; i < sizeof own / sizeof *own; i++)
			CHECK(fi_mr_key(mr[i]) == FI_KEY_NOTAVAIL);
		/* and the key that they requested is free, also when they are closed */
		OK(fi_mr_reg(c.domain, b, sizeof b, FI_REMOTE_READ, 0, 0, 0, &remote, NULL));
		if (!(c.info->domain_attr->mr_mode & FI_MR_PROV_KEY)) {
			struct fid_mr *again;

			EQ(fi_mr_key(remote), 0);
			ERR(fi_mr_reg(c.domain, b, sizeof b, FI_REMOTE_READ, 0, 0, 0, &again, NULL), FI_ENOKEY);
		}
		for (size_t i = 0; i < sizeof own / sizeof *own; i++)
			OK(fi_close(&mr[i]->fid));
		if (!(c.info->domain_attr->mr_mode & FI_MR_PROV_KEY)) {
			struct fid_mr *again;

			ERR(fi_mr_reg(c.domain, b, sizeof b, FI_REMOTE_READ, 0, 0, 0, &again, NULL), FI_ENOKEY);
		}
		OK(fi_close(&remote->fid));
		OK(fi_close(&c.domain->fid));
		OK(fi_close(&c.fabric->fid));
		fi_freeinfo(c.info);
	}
	CHECK(tried);
}
/* Opening and closing everything many times leaks no descriptor. */
/* Flag arguments without a meaning are ignored. */
static void idle_flags(int rank)
{
	const uint64_t junk = 1ULL << 37 | 1;
	struct fi_eq_attr qa = { .flags = FI_WRITE, .wait_obj = FI_WAIT_NONE };
	struct fi_eq_entry n = { 0 };
	struct fi_eq_err_entry ee = { 0 };
	struct fi_cq_err_entry ce = { 0 };
	struct fi_poll_attr pa = { 0 };
	struct fid_poll *poll;
	struct fid_mr *mr;
	struct ct c = { 0 };
	uint32_t ev;
	char b[64];

	(void)rank;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	ct_open_in(&c, NULL);
	OK(fi_eq_open(c.fabric, &qa, &c.eq, NULL));
	EQ(fi_eq_write(c.eq, FI_NOTIFY, &n, sizeof n, junk), sizeof n);
	EQ(fi_eq_read(c.eq, &ev, &n, sizeof n, junk), sizeof n);
	EQ(fi_eq_read(c.eq, &ev, &n, sizeof n, junk), -FI_EAGAIN);
	EQ(fi_eq_readerr(c.eq, &ee, junk), -FI_EAGAIN);
	EQ(fi_cq_readerr(c.tx, &ce, junk), -FI_EAGAIN);
	OK(fi_poll_open(c.domain, &pa, &poll));
	OK(fi_poll_add(poll, &c.tx->fid, junk));
	OK(fi_poll_del(poll, &c.tx->fid, junk));
	OK(fi_close(&poll->fid));
	if (c.info->caps & FI_RMA || c.info->domain_attr->mr_mode & FI_MR_LOCAL) {
		OK(fi_mr_reg(c.domain, b, sizeof b, FI_SEND | FI_RECV | junk, 0, 1, junk, &mr, NULL));
		OK(fi_close(&mr->fid));
	}
	if (ct_type == FI_EP_MSG) {
		OK(fi_passive_ep(c.fabric, c.info, &c.pep, NULL));
		OK(fi_pep_bind(c.pep, &c.eq->fid, FI_CONNREQ));
		OK(fi_listen(c.pep));
	}
	ct_close(&c);
}
static void reopen(int rank)
{
	int first = -1, last;

	(void)rank;
	for (int i = 0; i < 40; i++) {
		struct ct c;

		ct_open(&c, NULL);
		ct_done(&c);
		if (i == 4) {
			first = dup(0);
			close(first);
		}
	}
	last = dup(0);
	close(last);
	CHECK(last <= first + 2);
}

/* the first info of loopback, with the open objects */
static void open_is(struct ct *c, struct fid_fabric *fabric, struct fid_domain *domain)
{
	struct fi_info *i = ct_getinfo(&c->o, ct_node(&c->o), NULL, ct_is_ip() ? FI_SOURCE : 0);

	CHECK(i->fabric_attr->fabric == fabric);
	CHECK(i->domain_attr->domain == domain);
	fi_freeinfo(i);
}
static void open_objects(int rank)
{
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fi_info *i;
	struct ct c = { 0 };

	(void)rank;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), NULL, ct_is_ip() ? FI_SOURCE : 0);
	open_is(&c, NULL, NULL);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	open_is(&c, c.fabric, NULL);
	OK(fi_fabric(c.info->fabric_attr, &fabric, NULL));
	open_is(&c, c.fabric, NULL);
	OK(fi_domain(fabric, c.info, &domain, NULL));
	open_is(&c, c.fabric, NULL);
	OK(fi_domain(c.fabric, c.info, &c.domain, NULL));
	open_is(&c, c.fabric, c.domain);
	/* hints pick another one, and leave out infos of others */
	c.info->fabric_attr->fabric = fabric;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, c.info, &i));
	for (struct fi_info *each = i; each; each = each->next) {
		CHECK(each->fabric_attr->fabric == fabric);
		CHECK(!strcmp(each->fabric_attr->name, c.info->fabric_attr->name));
	}
	CHECK(i->domain_attr->domain == domain);
	fi_freeinfo(i);
	/* closed objects are in no info any more */
	OK(fi_close(&c.domain->fid));
	open_is(&c, c.fabric, NULL);
	OK(fi_close(&c.fabric->fid));
	open_is(&c, fabric, domain);
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	open_is(&c, NULL, NULL);
	c.domain = NULL, c.fabric = NULL;
	fi_freeinfo(c.info);
}

/* no provider here counts anything for fi_profile(3), which opens these operations */
static void no_profile(int rank)
{
	struct fid *all[6];
	void *ops;
	struct ct c;

	(void)rank;
	memset(&c, 0, sizeof c);
	c.o.cntr = 1;
	c.info = ct_getinfo(&c.o, NULL, NULL, 0);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, &c));
	ct_open_eq(&c);
	ct_open_domain(&c);
	ct_open_ep(&c, c.info);
	all[0] = &c.fabric->fid, all[1] = &c.domain->fid, all[2] = &c.ep->fid;
	all[3] = &c.rx->fid, all[4] = &c.rxc->fid, all[5] = &c.eq->fid;
	for (int i = 0; i < 6; i++)
		ERR(fi_open_ops(all[i], "fi_profile_ops", 0, &ops, NULL), FI_ENOSYS);
	ct_close(&c);
}

/* FI_MSG_PREFIX: the provider's part before each message, if it wants one.  fi_getinfo(3): "providers will clear mode bits
 * that are not necessary", so a prefix without bytes has no mode. */
static void prefix(int rank)
{
	struct ct_opt o = { .mode = FI_MSG_PREFIX };
	struct fi_cq_tagged_entry e;
	struct fi_info *i;
	struct ct c;
	size_t pre, n = 1000;
	char *buf;

	/* a caller without this mode does not get it */
	o.mode = 0;
	i = ct_getinfo(&o, ct_node(&o), NULL, FI_SOURCE);
	CHECK(!(i->mode & FI_MSG_PREFIX));
	fi_freeinfo(i);
	o.mode = FI_MSG_PREFIX;
	ct_open(&c, &o);
	pre = c.info->ep_attr->msg_prefix_size;
	EQ(!!(c.info->mode & FI_MSG_PREFIX), !!pre);
	EQ(c.info->tx_attr->mode & FI_MSG_PREFIX, c.info->mode & FI_MSG_PREFIX);
	EQ(c.info->rx_attr->mode & FI_MSG_PREFIX, c.info->mode & FI_MSG_PREFIX);
	buf = ct_alloc(&c, 2 * (pre + n));
	ct_fill(buf + pre, n, rank);
	OK(fi_recv(c.ep, buf + pre + n, pre + n, NULL, FI_ADDR_UNSPEC, CTX(1)));
	ct_barrier(&c);
	POST(&c, fi_send(c.ep, buf, pre + n, NULL, c.peer, CTX(2)));
	ct_sent(&c, CTX(2));
	e = ct_recvd(&c, CTX(1), pre + n);
	CHECK(!(e.flags & FI_MORE));
	CHECK(ct_same(buf + pre + n + pre, n, !rank));
	ct_done(&c);
}

/* fi_getinfo(3), domain_attr->caps: a domain has the capabilities requested of it, or of the whole; those of address
 * vectors and of peers are on only at request. */
static void domain_caps(int rank)
{
	const uint64_t asked[] = { FI_AV_USER_ID, FI_PEER };
	int offered = 0;

	(void)rank;
	for (int n = 0; n < 2; n++) {
		struct ct_opt o = { .caps = FI_MSG };
		struct fi_info *h = ct_hints(&o), *i;

		OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
		CHECK(!(i->domain_attr->caps & asked[n]));
		fi_freeinfo(i);
		h->caps = FI_MSG | asked[n];
		if (fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i)) {
			fi_freeinfo(h);
			continue;
		}
		offered++;
		CHECK(i->caps & asked[n] && i->domain_attr->caps & asked[n]);
		fi_freeinfo(i);
		/* the capabilities of an answer can be requested */
		h->domain_attr->caps = asked[n];
		OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
		EQ(i->domain_attr->caps & (FI_AV_USER_ID | FI_PEER), asked[n]);
		CHECK(i->domain_attr->caps & FI_LOCAL_COMM);
		fi_freeinfo(i);
		fi_freeinfo(h);
	}
	if (!offered)
		SKIP("not offered: FI_AV_USER_ID, FI_PEER");
}

/* Objects of another domain are not bound; an event queue is the fabric's. */
static void other_domain(int rank)
{
	struct fi_cntr_attr n = { .events = FI_CNTR_EVENTS_COMP };
	struct ct here, there;
	struct fid_cntr *cntr = NULL;
	struct fid_ep *srx = NULL;
	struct fid_stx *stx = NULL;
	struct ct_opt o = { 0 };

	(void)rank;
	memset(&here, 0, sizeof here);
	memset(&there, 0, sizeof there);
	here.o = there.o = o;
	here.info = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	there.info = fi_dupinfo(here.info);
	ct_open_in(&here, NULL);
	ct_open_eq(&here);
	there.fabric = here.fabric;
	ct_open_domain(&there);
	CHECK(here.domain != there.domain);
	OK(fi_endpoint(here.domain, here.info, &here.ep, NULL));
	ERR(fi_ep_bind(here.ep, &there.tx->fid, FI_TRANSMIT), FI_EINVAL);
	ERR(fi_ep_bind(here.ep, &there.rx->fid, FI_RECV), FI_EINVAL);
	if (there.av)
		ERR(fi_ep_bind(here.ep, &there.av->fid, 0), FI_EINVAL);
	OK(fi_cntr_open(there.domain, &n, &cntr, NULL));
	ERR(fi_ep_bind(here.ep, &cntr->fid, FI_SEND), FI_EINVAL);
	OK(fi_close(&cntr->fid));
	if (!fi_srx_context(there.domain, there.info->rx_attr, &srx, NULL)) {
		ERR(fi_ep_bind(here.ep, &srx->fid, 0), FI_EINVAL);
		OK(fi_close(&srx->fid));
	}
	if (!fi_stx_context(there.domain, there.info->tx_attr, &stx, NULL)) {
		ERR(fi_ep_bind(here.ep, &stx->fid, 0), FI_EINVAL);
		OK(fi_close(&stx->fid));
	}
	/* nothing of the other domain is in use, and the endpoint takes its own */
	OK(fi_close(&there.tx->fid));
	OK(fi_close(&there.rx->fid));
	if (there.av)
		OK(fi_close(&there.av->fid));
	OK(fi_close(&there.domain->fid));
	OK(fi_ep_bind(here.ep, &here.eq->fid, 0));
	OK(fi_ep_bind(here.ep, &here.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(here.ep, &here.rx->fid, FI_RECV));
	if (here.av)
		OK(fi_ep_bind(here.ep, &here.av->fid, 0));
	OK(fi_enable(here.ep));
	fi_freeinfo(there.info);
	ct_close(&here);
}
/* One byte each way between the ranks. */
static void exchange(struct ct *c, int rank)
{
	char got = 0;

	OK(fi_recv(c->ep, &got, 1, NULL, FI_ADDR_UNSPEC, CTX(1)));
	ct_barrier(c);
	POST(c, fi_send(c->ep, rank ? "b" : "a", 1, NULL, c->peer, CTX(2)));
	ct_sent(c, CTX(2));
	ct_recvd(c, CTX(1), 1);
	EQ(got, rank ? 'a' : 'b');
}
/*
 * fi_cm(3): "If no service address is specified and a service address has not yet been assigned to the endpoint, then the
 * provider will allocate a service address and assign it to the endpoint.  If a node or service address is specified, then,
 * upon successful completion of fi_setname, the endpoint will be assigned the given addressing."
 */
static void assigned_name(int rank)
{
	struct sockaddr_in none = sin_of("127.0.0.1", 0), *a, *b;
	struct ct_name first, then;
	struct ct c;

	ct_ip_only();
	memset(&c, 0, sizeof c);
	c.info = ct_getinfo(&c.o, "127.0.0.1", "0", FI_SOURCE);
	ct_open_in(&c, NULL);
	OK(fi_endpoint(c.domain, c.info, &c.ep, NULL));
	OK(fi_setname(&c.ep->fid, &none, sizeof none));
	first = ct_getname(&c.ep->fid);
	a = (struct sockaddr_in *)first.b;
	EQ(a->sin_addr.s_addr, none.sin_addr.s_addr);
	CHECK(a->sin_port != 0);
	OK(fi_ep_bind(c.ep, &c.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(c.ep, &c.rx->fid, FI_RECV));
	OK(fi_ep_bind(c.ep, &c.av->fid, 0));
	OK(fi_enable(c.ep));
	then = ct_getname(&c.ep->fid);
	b = (struct sockaddr_in *)then.b;
	EQ(b->sin_port, a->sin_port);
	/* it is where messages come */
	ct_swap(&c, &then, &first, sizeof first);
	c.peer = ct_insert(&c, &first);
	exchange(&c, rank);
	ct_done(&c);
}
/* The same of endpoints that connect: their peers see the address. */
static void assigned_caller(int rank)
{
	struct sockaddr_in none = sin_of("127.0.0.1", 0);
	struct ct_name name, to;
	struct cm_event { struct fi_eq_cm_entry e; char data[64]; } x;
	struct ct c;

	ct_ip_only();
	memset(&c, 0, sizeof c);
	if (rank == 0) {
		ct_listen(&c);
		to = ct_getname(&c.pep->fid);
		ct_send_oob(&to, sizeof to);
		ct_recv_oob(&c, &name, sizeof name);
		ct_want_event(&c, FI_CONNREQ, &x.e, sizeof x);
		EQ(((struct sockaddr_in *)x.e.info->dest_addr)->sin_port, ((struct sockaddr_in *)name.b)->sin_port);
		OK(fi_reject(c.pep, x.e.info->handle, NULL, 0));
		fi_freeinfo(x.e.info);
		ct_barrier(NULL);
	} else {
		ct_recv_oob(NULL, &to, sizeof to);
		ct_prepare(&c, &to);
		OK(fi_setname(&c.ep->fid, &none, sizeof none));
		name = ct_getname(&c.ep->fid);
		CHECK(((struct sockaddr_in *)name.b)->sin_port != 0);
		ct_send_oob(&name, sizeof name);
		OK(fi_connect(c.ep, to.b, NULL, 0));
		ct_barrier(NULL);
	}
	ct_close(&c);
}
/*
 * fi_getinfo(3): with FI_SOURCE "node and service are the local address", and node may be null. An endpoint of all addresses
 * of the host is named by one that peers can use.
 */
static void wildcard_name(int rank)
{
	struct ct c;
	struct ct_name mine, theirs;

	ct_ip_only();
	memset(&c, 0, sizeof c);
	c.info = ct_getinfo(&c.o, NULL, "0", FI_SOURCE);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	CHECK(((struct sockaddr_in *)mine.b)->sin_addr.s_addr != htonl(INADDR_ANY));
	CHECK(((struct sockaddr_in *)mine.b)->sin_port != 0);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	exchange(&c, rank);
	ct_done(&c);
}
/*
 * fi_endpoint(3): "If an endpoint is using a shared transmit and/or receive context, the shared contexts must be bound to the
 * endpoint.  CQs, counters, AV, and shared contexts must be bound to endpoints before they are enabled."
 */
static void shared_contexts_bound(int rank)
{
	struct fi_info *h, *i = NULL;
	struct ct_opt o = { 0 };
	struct fid_ep *srx;
	struct ct c;

	(void)rank;
	h = ct_hints(&o);
	h->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	if (fi_getinfo(CT_VERSION, ct_node(&o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0, h, &i) == -FI_ENODATA)
		SKIP("no shared receive contexts");
	fi_freeinfo(h);
	CHECK(i != NULL);
	memset(&c, 0, sizeof c);
	c.info = i;
	ct_open_in(&c, NULL);
	ct_open_eq(&c);
	OK(fi_endpoint(c.domain, c.info, &c.ep, NULL));
	OK(fi_ep_bind(c.ep, &c.eq->fid, 0));
	OK(fi_ep_bind(c.ep, &c.tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(c.ep, &c.rx->fid, FI_RECV));
	if (c.av)
		OK(fi_ep_bind(c.ep, &c.av->fid, 0));
	CHECK(fi_enable(c.ep) < 0);
	OK(fi_srx_context(c.domain, c.info->rx_attr, &srx, NULL));
	OK(fi_ep_bind(c.ep, &srx->fid, 0));
	OK(fi_enable(c.ep));
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&srx->fid));
	ct_close(&c);
}
/* fi_endpoint(3), FI_SETOPSFLAG: "Valid control flags are defined below." fi_errno(3): "FI_EBADFLAGS: Flags not supported". */
static void unknown_op_flags(int rank)
{
	uint64_t unknown = 1ULL << 62, f;
	struct iovec v;
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1 };
	struct fi_msg_tagged t = { .msg_iov = &v, .iov_count = 1 };
	struct ct c;
	char b[8];

	(void)rank;
	v.iov_base = b;
	v.iov_len = sizeof b;
	ct_open(&c, NULL);
	m.addr = t.addr = c.peer;
	ERR(fi_sendmsg(c.ep, &m, unknown), FI_EBADFLAGS);
	ERR(fi_recvmsg(c.ep, &m, unknown), FI_EBADFLAGS);
	if (c.info->caps & FI_TAGGED) {
		ERR(fi_tsendmsg(c.ep, &t, unknown), FI_EBADFLAGS);
		ERR(fi_trecvmsg(c.ep, &t, unknown), FI_EBADFLAGS);
	}
	f = FI_TRANSMIT | unknown;
	ERR(fi_control(&c.ep->fid, FI_SETOPSFLAG, &f), FI_EBADFLAGS);
	f = FI_RECV | unknown;
	ERR(fi_control(&c.ep->fid, FI_SETOPSFLAG, &f), FI_EBADFLAGS);
	f = FI_RECV | FI_TRANSMIT;
	ERR(fi_control(&c.ep->fid, FI_SETOPSFLAG, &f), FI_EINVAL);
	f = FI_TRANSMIT;
	OK(fi_control(&c.ep->fid, FI_GETOPSFLAG, &f));
	CHECK(!(f & unknown));
	ct_done(&c);
}
/*
 * fi_av(3): "Applications may also pass in an FI_ADDR_STR formatted address as the node parameter. In such cases, the service
 * parameter must be NULL."
 */
static void av_string_node(int rank)
{
	struct ct c;
	struct sockaddr_in b;
	size_t n = sizeof b;
	fi_addr_t f;

	(void)rank;
	ct_ip_only();
	open_av(&c, FI_AV_TABLE, 8);
	EQ(fi_av_insertsvc(c.av, "fi_sockaddr_in://127.0.0.1:8001", NULL, &f, 0, NULL), 1);
	OK(fi_av_lookup(c.av, f, &b, &n));
	EQ(n, sizeof b);
	EQ(b.sin_port, htons(8001));
	EQ(b.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	CHECK(fi_av_insertsvc(c.av, "127.0.0.1", NULL, &f, 0, NULL) < 0);
	CHECK(fi_av_insertsvc(c.av, NULL, NULL, &f, 0, NULL) < 0);
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "fi_getinfo without hints returns complete records", getinfo_basics, CT_SOLO },
	{ "every record satisfies the hints", hints_hold, CT_SOLO },
	{ "node and service become source or destination address", getinfo_addresses, CT_SOLO },
	{ "FI_PROV_ATTR_ONLY lists the provider", prov_attr_only, CT_SOLO },
	{ "an FI_AV_TABLE stores, finds, counts and removes addresses", av_table, CT_SOLO | CT_RDM },
	{ "an FI_AV_MAP stores, finds, counts and removes addresses", av_map, CT_SOLO | CT_RDM },
	{ "an invalid address fails alone and reports its error", av_bad, CT_SOLO | CT_RDM },
	{ "insertsvc and insertsym resolve names and count up", av_service, CT_SOLO | CT_RDM },
	{ "insertsvc takes an address string in place of node and service", av_string_node, CT_SOLO | CT_RDM },
	{ "fi_enable returns the error of the missing binding", enable_errors, CT_SOLO | CT_RDM },
	{ "objects of another domain are not bound to an endpoint", other_domain, CT_SOLO },
	{ "a provider without authorization keys refuses them", refused_keys, CT_SOLO },
	{ "an event queue bound to a domain serves endpoints and vectors without their own", domain_eq, CT_SOLO },
	{ "an endpoint is not opened with more than the provider offers", beyond_limits, CT_SOLO },
	{ "an endpoint that is not enabled refuses transfers", before_enable, CT_SOLO },
	{ "endpoint options are stored and unknown ones refused", options, CT_RDM },
	{ "operation flags can be read and set", op_flags, 0 },
	{ "unknown flags are refused, also as defaults", unknown_op_flags, 0 },
	{ "an endpoint returns its own address", rdm_name, CT_SOLO | CT_RDM },
	{ "fi_setname assigns an address before the endpoint is enabled", assigned_name, CT_RDM },
	{ "fi_setname assigns the source address of a connection", assigned_caller, CT_MSG },
	{ "an endpoint bound to all addresses of the host has an address usable by peers", wildcard_name, CT_RDM },
	{ "an endpoint is not enabled without the shared contexts of its info", shared_contexts_bound, CT_SOLO },
	{ "missing and unknown arguments are refused", null_arguments, CT_SOLO },
	{ "flags of calls without defined flags are ignored", idle_flags, CT_SOLO },
	{ "opening and closing objects leaks no descriptor", reopen, 0 },
	{ "regions without remote rights have no key and accept none", keyless_regions, CT_SOLO },
	{ "infos contain the open fabric and domain", open_objects, CT_SOLO },
	{ "no object has a profile", no_profile, CT_SOLO },
	{ "an application with space for a prefix gets messages behind it", prefix, 0 },
	{ "a domain has the capabilities requested in the domain or info hints", domain_caps, CT_SOLO },
};
CT_MAIN("setup", tests)
