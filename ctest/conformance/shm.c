/* The provider shm: its behaviour with programs for upstream libfabric (fi_shm(7)), and cases that upstream gets wrong. */
#include "ct.h"
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/mount.h>
#include <sys/un.h>
#include <rdma/fi_atomic.h>
#include <rdma/providers/fi_peer.h>

#define MB (1 << 20)
static char big[64 * MB], in[64 * MB];

static void shm_only(void)
{
	if (strcmp(ct_prov, "shm"))
		SKIP("of shm");
}
static struct fi_info *hints(void)
{
	struct fi_info *h = fi_allocinfo();

	CHECK(h);
	h->fabric_attr->prov_name = strdup("shm");
	return h;
}
/* The one info for these hints, which are freed. */
static struct fi_info *info_of(struct fi_info *h, const char *node, const char *service, uint64_t flags)
{
	struct fi_info *i = NULL;

	OK(fi_getinfo(FI_VERSION(2, 0), node, service, flags, h, &i));
	CHECK(i && !i->next);
	fi_freeinfo(h);
	return i;
}
#define ALL_CAPS (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_RECV | FI_READ | FI_WRITE | \
	FI_REMOTE_READ | FI_REMOTE_WRITE | FI_MULTI_RECV | FI_RMA_EVENT | FI_SOURCE | FI_DIRECTED_RECV | \
	FI_LOCAL_COMM | FI_AV_USER_ID | FI_PEER)
static void infos(int rank)
{
	struct fi_info *i, *h = hints();
	char own[64];

	(void)rank;
	shm_only();
	h->domain_attr->mr_mode = FI_MR_ENDPOINT;
	i = info_of(h, NULL, NULL, 0);
	EQ(i->caps, ALL_CAPS);
	EQ(i->domain_attr->caps, FI_LOCAL_COMM | FI_AV_USER_ID | FI_PEER);
	EQ(i->mode, 0);
	EQ(i->addr_format, FI_ADDR_STR);
	snprintf(own, sizeof own, "fi_shm://%d", getpid());
	CHECK(!strcmp(i->src_addr, own) && i->src_addrlen == strlen(own) + 1);
	CHECK(!strcmp(i->dest_addr, own) && i->dest_addrlen == strlen(own) + 1);
	EQ(i->tx_attr->caps, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE);
	EQ(i->rx_attr->caps, FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE |
	   FI_MULTI_RECV | FI_RMA_EVENT | FI_SOURCE | FI_DIRECTED_RECV);
	EQ(i->tx_attr->inject_size, 4096);
	EQ(i->tx_attr->size, 1024);
	EQ(i->rx_attr->size, 1024);
	EQ(i->tx_attr->iov_limit, 4);
	EQ(i->tx_attr->rma_iov_limit, 4);
	EQ(i->rx_attr->iov_limit, 4);
	EQ(i->ep_attr->type, FI_EP_RDM);
	EQ(i->ep_attr->protocol, FI_PROTO_SHM);
	EQ(i->ep_attr->protocol_version, 1);
	EQ(i->ep_attr->max_msg_size, SIZE_MAX);
	EQ(i->ep_attr->mem_tag_format, 0xaaaaaaaaaaaaaaaaULL);
	EQ(i->domain_attr->threading, FI_THREAD_SAFE);
	EQ(i->domain_attr->control_progress, FI_PROGRESS_AUTO);
	EQ(i->domain_attr->data_progress, FI_PROGRESS_MANUAL);
	EQ(i->domain_attr->resource_mgmt, FI_RM_ENABLED);
	EQ(i->domain_attr->av_type, FI_AV_UNSPEC);
	EQ(i->domain_attr->mr_mode, 0);
	EQ(i->domain_attr->mr_key_size, 8);
	EQ(i->domain_attr->cq_data_size, 8);
	EQ(i->domain_attr->cq_cnt, 1024);
	EQ(i->domain_attr->ep_cnt, 256);
	EQ(i->domain_attr->tx_ctx_cnt, 1024);
	EQ(i->domain_attr->rx_ctx_cnt, 1024);
	CHECK(!strcmp(i->domain_attr->name, "shm") && !strcmp(i->fabric_attr->name, "shm"));
	CHECK(!strcmp(i->fabric_attr->prov_name, "shm"));
	EQ(i->fabric_attr->prov_version, FI_VERSION(206, 0));
	fi_freeinfo(i);
}
static void fast(int rank)
{
	static const struct { int mode; uint64_t order; int fast; } t[] = {
		{ FI_MR_VIRT_ADDR, 0, 1 },
		{ FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED, FI_ORDER_SAS, 1 },
		{ FI_MR_VIRT_ADDR, FI_ORDER_WAW, 0 },
		{ FI_MR_VIRT_ADDR, FI_ORDER_RAS, 0 },
		{ FI_MR_PROV_KEY, 0, 0 },
		{ FI_MR_SCALABLE, 0, 0 },
		{ FI_MR_BASIC, 0, 0 },
	};
	struct fi_info *i = NULL;

	(void)rank;
	shm_only();
	for (size_t n = 0; n < sizeof t / sizeof *t; n++) {
		struct fi_info *h = hints();

		h->domain_attr->mr_mode = t[n].mode;
		h->tx_attr->msg_order = t[n].order;
		i = info_of(h, NULL, NULL, 0);
		if (t[n].fast) {
			EQ(i->domain_attr->mr_mode, FI_MR_VIRT_ADDR);
			EQ(i->tx_attr->msg_order, FI_ORDER_SAS);
			EQ(i->ep_attr->max_order_raw_size, 0);
			EQ(i->ep_attr->max_order_waw_size, 0);
		} else {
			EQ(i->domain_attr->mr_mode, t[n].mode & (FI_MR_BASIC | FI_MR_SCALABLE));
			EQ(i->tx_attr->msg_order & (FI_ORDER_SAS | FI_ORDER_WAW), FI_ORDER_SAS | FI_ORDER_WAW);
			EQ(i->ep_attr->max_order_waw_size, SIZE_MAX);
		}
		CHECK(i->rx_attr->msg_order & FI_ORDER_WAW);
		fi_freeinfo(i);
	}
	OK(fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, NULL, &i));
	for (struct fi_info *one = i; one; one = one->next)
		if (!strcmp(one->fabric_attr->prov_name, "shm"))
			EQ(one->domain_attr->mr_mode, FI_MR_VIRT_ADDR);
	fi_freeinfo(i);
}
static void nodes(int rank)
{
	static const struct { const char *node, *service; uint64_t flags; const char *src, *dest; } t[] = {
		{ NULL, NULL, 0, "", "" },
		{ "n", "7", 0, "", "fi_ns://n:7" },
		{ "n", NULL, 0, "", "fi_shm://n" },
		{ NULL, "7", 0, "", "fi_ns://7" },
		{ "fi_shm://n", NULL, 0, "", "fi_shm://n" },
		{ "n", "7", FI_SOURCE, "fi_ns://n:7", NULL },
		{ "n", NULL, FI_SOURCE, "fi_shm://n", NULL },
		{ NULL, "7", FI_SOURCE, "fi_ns://7", NULL },
	};
	struct fi_info *h, *i;
	char own[64];

	(void)rank;
	shm_only();
	snprintf(own, sizeof own, "fi_shm://%d", getpid());
	for (size_t n = 0; n < sizeof t / sizeof *t; n++) {
		const char *src = *t[n].src ? t[n].src : own, *dest = t[n].dest && !*t[n].dest ? own : t[n].dest;

		i = info_of(hints(), t[n].node, t[n].service, t[n].flags);
		CHECK(!strcmp(i->src_addr, src) && i->src_addrlen == strlen(src) + 1);
		CHECK(dest ? !strcmp(i->dest_addr, dest) && i->dest_addrlen == strlen(dest) + 1 : !i->dest_addr);
		fi_freeinfo(i);
	}
	h = hints();
	h->src_addr = strdup("anything");
	h->src_addrlen = 9;
	h->dest_addr = strdup("fi_shm://other");
	h->dest_addrlen = 15;
	i = info_of(h, NULL, NULL, 0);
	CHECK(!strcmp(i->src_addr, "anything") && !strcmp(i->dest_addr, "fi_shm://other"));
	fi_freeinfo(i);
	h = hints();
	h->addr_format = FI_SOCKADDR_IN;
	ERR(fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, h, &i), FI_ENODATA);
	h->addr_format = FI_FORMAT_UNSPEC;
	h->caps = FI_MSG | FI_REMOTE_COMM;
	ERR(fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, h, &i), FI_ENODATA);
	setenv("FI_HMEM", "system", 1);
	h->caps = FI_MSG | FI_HMEM;
	ERR(fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
}
static int has(struct fi_info *h, uint64_t flags, const char *name)
{
	struct fi_info *i = NULL;
	int at = 0, n = 0;

	if (fi_getinfo(FI_VERSION(2, 0), NULL, NULL, flags, h, &i))
		return 0;
	for (struct fi_info *one = i; one; one = one->next)
		if (n++, !at && !strcmp(one->fabric_attr->prov_name, name))
			at = n;
	fi_freeinfo(i);
	return at;
}
static void position(int rank)
{
	struct fi_info *h = fi_allocinfo();

	(void)rank;
	shm_only();
	CHECK(h);
	h->caps = FI_MSG;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_BASIC;
	CHECK(has(h, 0, "shm"));
	CHECK(has(NULL, FI_PROV_ATTR_ONLY, "shm"));
	for (int i = 0; i < 2; i++) {
		int at = has(NULL, FI_PROV_ATTR_ONLY, i ? "udp" : "tcp");

		CHECK(!at || at > has(NULL, FI_PROV_ATTR_ONLY, "shm"));
	}
	/* features of other providers only are not taken from them */
	h->caps = FI_MSG | FI_TRIGGER;
	CHECK(!has(h, 0, "shm"));
	h->fabric_attr->prov_name = strdup("shm");
	CHECK(has(h, 0, "shm"));
	free(h->fabric_attr->prov_name);
	h->caps = FI_MSG;
	h->fabric_attr->prov_name = strdup("shm;ofi_rxm");
	CHECK(!has(h, 0, "shm;ofi_rxm"));
	fi_freeinfo(h);
}
static void hidden(int rank)
{
	struct fi_info *h = hints();

	(void)rank;
	shm_only();
	setenv("FI_PROVIDER", "^shm", 1);
	CHECK(!has(h, 0, "shm"));
	CHECK(has(h, 1ULL << 60, "shm"));	/* as efa and lnx ask */
	fi_freeinfo(h);
}
/* ---- names ----------------------------------------------------------- */

/* An endpoint of this process with this source, enabled; a name if one is to be set before. */
static struct ct_name open_as(struct ct *c, const char *src, const char *set)
{
	struct ct_name none = { .n = 0 };
	int r;

	if (c->info)
		fi_freeinfo(c->info);
	c->info = ct_getinfo(&c->o, NULL, NULL, 0);
	if (src) {
		free(c->info->src_addr);
		c->info->src_addr = strdup(src);
		c->info->src_addrlen = strlen(src) + 1;
	}
	if (!c->fabric)
		ct_open_in(c, NULL);
	ct_open_ep(c, c->info);
	if (set)
		OK(fi_setname(&c->ep->fid, (void *)set, strlen(set) + 1));
	r = fi_enable(c->ep);
	if (!r)
		return ct_getname(&c->ep->fid);
	EQ(r, -FI_EBUSY);
	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
	return none;
}
static void name(int rank)
{
	struct ct c = { .o = { 0 } };
	struct ct_name n, first;
	char start[64], b[300];
	size_t len;
	struct ct_name with;
	fi_addr_t a;

	(void)rank;
	shm_only();
	snprintf(start, sizeof start, "fi_shm://%d:%d:", getpid(), geteuid());
	c.info = ct_getinfo(&c.o, NULL, NULL, 0);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	first = ct_getname(&c.ep->fid);		/* before it is enabled */
	CHECK(!strncmp(first.b, start, strlen(start)) && first.n == strlen(first.b) + 1);
	OK(fi_enable(c.ep));
	n = ct_getname(&c.ep->fid);
	CHECK(!strcmp(n.b, first.b));
	len = 4;
	ERR(fi_getname(&c.ep->fid, b, &len), FI_ETOOSMALL);
	EQ(len, n.n);
	/* a name is the same with any scheme or none */
	a = ct_insert(&c, &n);
	with.n = snprintf(with.b, sizeof with.b, "other://%s", n.b + 9) + 1;
	EQ(ct_insert(&c, &with), a);
	with.n = snprintf(with.b, sizeof with.b, "%s", n.b + 9) + 1;
	EQ(ct_insert(&c, &with), a);
	len = sizeof b;
	OK(fi_av_lookup(c.av, a, b, &len));
	CHECK(!strcmp(b, n.b + 9) && len == strlen(b) + 1);
	len = sizeof b;
	CHECK(fi_av_straddr(c.av, n.b, b, &len) && !strcmp(b, n.b) && len == n.n);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	/* the next one has another number */
	n = open_as(&c, NULL, NULL);
	CHECK(!strncmp(n.b, start, strlen(start)) && strcmp(n.b, first.b));
	ct_close(&c);
}
static void sources(int rank)
{
	struct ct c = { .o = { 0 } };
	struct fid_ep *ep;
	struct ct_name n;
	char src[300];

	(void)rank;
	shm_only();
	snprintf(src, sizeof src, "fi_ns://node%d:5", getpid());
	n = open_as(&c, src, NULL);
	CHECK(!strcmp(n.b, src));
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	/* no name, or one that is too long */
	free(c.info->src_addr);
	c.info->src_addr = NULL;
	c.info->src_addrlen = 0;
	ERR(fi_endpoint(c.domain, c.info, &ep, NULL), FI_EINVAL);
	memset(src, 'x', sizeof src);
	src[256] = 0;
	c.info->src_addr = strdup(src);
	c.info->src_addrlen = 257;
	ERR(fi_endpoint(c.domain, c.info, &ep, NULL), FI_EINVAL);
	ct_close(&c);
}
static void setname(int rank)
{
	struct ct c = { .o = { 0 } }, d = { .o = { 0 } }, e = { .o = { 0 } };
	struct ct_name n, m;
	char src[80], set[64], b[300];
	fi_addr_t to;

	(void)rank;
	shm_only();
	snprintf(set, sizeof set, "GID_qpn_%d", getpid());
	n = open_as(&c, NULL, set);
	CHECK(!strcmp(n.b, set));
	ERR(fi_setname(&c.ep->fid, "other", 6), FI_EBUSY);
	/* a caller that insists on a name in use gets none, and its owner keeps it */
	m = open_as(&d, NULL, set);
	EQ(m.n, 0);
	m = open_as(&d, NULL, NULL);
	to = ct_insert(&d, &n);
	OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(1)));
	POST(&d, fi_send(d.ep, set, 8, NULL, to, CTX(2)));
	while (fi_cq_read(c.rx, b, 1) != 1)
		ct_progress(&d);
	OK(fi_close(&d.ep->fid));
	d.ep = NULL;
	/* a caller that does not insist gets another one */
	snprintf(src, sizeof src, "fi_ns://%s", set);
	m = open_as(&d, src, NULL);
	CHECK(!strncmp(m.b, src, strlen(src)) && m.b[strlen(src)] == ':');
	/* before it is enabled: nothing too long */
	e.info = ct_getinfo(&e.o, NULL, NULL, 0);
	ct_open_in(&e, NULL);
	ct_open_ep(&e, e.info);
	memset(b, 'x', sizeof b);
	b[256] = 0;
	ERR(fi_setname(&e.ep->fid, b, 257), FI_EINVAL);
	b[255] = 0;
	OK(fi_setname(&e.ep->fid, b, 256));
	OK(fi_enable(e.ep));
	ct_close(&e);
	ct_close(&d);
	ct_close(&c);
}
/* Both want one name: the second gets another, and they talk. */
static void equal_names(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED } };
	struct ct_name mine, theirs;
	char src[64], b[8] = "";
	int id = getppid();

	shm_only();
	snprintf(src, sizeof src, "fi_ns://twin%d", id);
	if (rank == 1)
		ct_recv_oob(NULL, b, 1);
	mine = open_as(&c, src, NULL);
	if (rank == 0)
		ct_send_oob("x", 1);
	CHECK(!strncmp(mine.b, src, strlen(src)) && (rank == 0) == !mine.b[strlen(src)]);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	OK(fi_trecv(c.ep, b, 8, NULL, c.peer, 5, 0, CTX(1)));
	POST(&c, fi_tsend(c.ep, src, 8, NULL, c.peer, 5, CTX(2)));
	ct_sent(&c, CTX(2));
	ct_recvd(&c, CTX(1), 8);
	ct_done(&c);
}
static void long_names(int rank)
{
	struct ct c = { .o = { .caps = FI_MSG | FI_SOURCE } };
	struct { char b[256]; } mine, theirs;
	char set[256], b[8];
	fi_addr_t from;
	struct fi_cq_tagged_entry e;

	shm_only();
	memset(set, 'l', sizeof set);
	snprintf(set + 230, 26, "%d:%d", getppid(), rank);
	c.info = ct_getinfo(&c.o, NULL, NULL, 0);
	ct_open_in(&c, NULL);
	ct_open_ep(&c, c.info);
	OK(fi_setname(&c.ep->fid, set, strlen(set) + 1));
	OK(fi_enable(c.ep));
	memcpy(mine.b, set, sizeof set);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	EQ(fi_av_insert(c.av, theirs.b, 1, &c.peer, 0, NULL), 1);
	OK(fi_recv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, CTX(1)));
	POST(&c, fi_send(c.ep, set, 8, NULL, c.peer, CTX(2)));
	ct_sent(&c, CTX(2));
	ct_next(&c, c.rx, &e, &from, NULL);
	EQ(from, c.peer);
	ct_done(&c);
}
static void vector(int rank)
{
	struct ct c = { .o = { 0 } };
	static char names[1000 * 16];
	static fi_addr_t a[1000];
	struct fi_av_attr attr = { .count = 100000 };
	struct fid_av *av;
	fi_addr_t twice[2];
	size_t n = 0, len;
	char b[32];

	(void)rank;
	shm_only();
	open_as(&c, NULL, NULL);
	for (int i = 0; i < 1000; i++)
		n += snprintf(names + n, 16, "%sp%d", i % 2 ? "fi_shm://" : "", i) + 1;
	EQ(fi_av_insert(c.av, names, 1000, a, 0, NULL), 1000);
	for (int i = 0; i < 1000; i++) {
		len = sizeof b;
		OK(fi_av_lookup(c.av, a[i], b, &len));
		EQ(atoi(b + 1), i);
		EQ(len, strlen(b) + 1);
	}
	EQ(fi_av_insert(c.av, "p7\0fi_shm://p7", 2, twice, 0, NULL), 2);
	CHECK(twice[0] == a[7] && twice[1] == a[7]);
	ERR(fi_av_insertsvc(c.av, "n", "1", a, 0, NULL), FI_ENOSYS);
	ERR(fi_av_insertsym(c.av, "n", 1, "1", 1, a, 0, NULL), FI_ENOSYS);
	OK(fi_av_open(c.domain, &attr, &av, NULL));
	EQ(attr.type, FI_AV_TABLE);
	OK(fi_close(&av->fid));
	attr.name = "shared";
	ERR(fi_av_open(c.domain, &attr, &av, NULL), FI_ENOSYS);
	ct_close(&c);
}
static void not_there(int rank)
{
	struct ct c = { .o = { .caps = FI_MSG | FI_ATOMIC } };
	struct fi_tx_attr ta = { 0 };
	struct fi_rx_attr ra = { 0 };
	struct fi_atomic_attr aa;
	struct fid_stx *stx;
	struct fid_ep *ep;
	struct fid_pep *pep;
	struct fi_info *i;
	size_t v = 0, n = sizeof v;

	(void)rank;
	shm_only();
	open_as(&c, NULL, NULL);
	ERR(fi_stx_context(c.domain, &ta, &stx, NULL), FI_ENOSYS);
	ERR(fi_scalable_ep(c.domain, c.info, &ep, NULL), FI_ENOSYS);
	ERR(fi_srx_context(c.domain, &ra, &ep, NULL), FI_EINVAL);
	i = fi_dupinfo(c.info);
	i->ep_attr->type = FI_EP_MSG;
	CHECK(fi_endpoint(c.domain, i, &ep, NULL) < 0);
	CHECK(fi_passive_ep(c.fabric, i, &pep, NULL) < 0);
	fi_freeinfo(i);
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &v, &n));
	EQ(v, 4096);
	ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_BUFFERED_MIN + 100, &v, sizeof v), FI_ENOPROTOOPT);
	OK(fi_query_atomic(c.domain, FI_UINT64, FI_SUM, &aa, 0));
	CHECK(aa.count >= 512 && aa.size == 8);
	OK(fi_query_atomic(c.domain, FI_UINT64, FI_CSWAP, &aa, FI_COMPARE_ATOMIC));
	CHECK(aa.count >= 256);
	ct_close(&c);
}
static void sizes(int rank)
{
	struct fi_info *i;

	(void)rank;
	shm_only();
	setenv("FI_SHM_TX_SIZE", "77", 1);
	setenv("FI_SHM_RX_SIZE", "2048", 1);
	i = info_of(hints(), NULL, NULL, 0);
	EQ(i->tx_attr->size, 77);
	EQ(i->rx_attr->size, 2048);
	fi_freeinfo(i);
}
static void params(int rank)
{
	static const char *names[] = { "tx_size", "rx_size", "disable_cma", "use_xpmem", "buffer_threshold", "max_gdrcopy_size",
		"use_dsa_sar", "sar_threshold", "enable_dsa_page_touch", "peer_wait" };
	struct fi_param *p;
	int n, found = 0;
	struct fi_info *i = info_of(hints(), NULL, NULL, 0);

	(void)rank;
	shm_only();
	fi_freeinfo(i);
	OK(fi_getparams(&p, &n));
	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		char var[64] = "FI_SHM_";

		for (size_t j = 0; names[k][j]; j++)
			var[7 + j] = (char)toupper(names[k][j]);
		for (int j = 0; j < n; j++)
			if (!strcmp(p[j].name, var)) {
				found++;
				break;
			}
	}
	EQ(found, sizeof names / sizeof *names);
	fi_freeparams(p);
}
/* ---- messages --------------------------------------------------------- */

/* The first message goes out before its receiver has a name. */
static void early(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED } };
	struct ct_name theirs;
	char set[64], b[8] = "";

	shm_only();
	snprintf(set, sizeof set, "late%d", getppid());
	if (rank == 0) {
		open_as(&c, NULL, NULL);
		theirs.n = snprintf(theirs.b, sizeof theirs.b, "fi_shm://%s", set) + 1;
		c.peer = ct_insert(&c, &theirs);
		for (int i = 0; i < 3; i++) {
			b[0] = (char)i;
			POST(&c, fi_tsend(c.ep, b, 8, NULL, c.peer, i, CTX(i)));
			b[0] = 0;
		}
		POST(&c, fi_tinject(c.ep, "\7......", 8, c.peer, 3));
		NOTHING(&c, c.tx, 300);
		ct_send_oob("x", 1);
		for (int i = 0; i < 3; i++)
			ct_sent(&c, CTX(i));
	} else {
		ct_recv_oob(NULL, b, 1);
		open_as(&c, NULL, set);
		for (int i = 0; i < 4; i++) {
			OK(fi_trecv(c.ep, b, 8, NULL, FI_ADDR_UNSPEC, i, 0, CTX(9)));
			ct_recvd(&c, CTX(9), 8);
		}
		EQ(b[0], 7);
	}
	ct_done(&c);
}
/* Messages to a new peer reach it while their sender makes no call, as those of the original do. */
static void sender_sleeps(int rank)
{
	static const size_t lens[] = { 0, 8, 1000, 4096, 16000, 1 };
	struct ct c = { .o = { .caps = FI_TAGGED } };
	char x = 0;
	int n = sizeof lens / sizeof *lens;

	shm_only();
	ct_host_only("its sender copies a message with progress");
	ct_open(&c, &c.o);
	for (int i = 0; rank && i < n; i++)
		OK(fi_trecv(c.ep, in + i * MB, lens[i], NULL, FI_ADDR_UNSPEC, i, 0, CTX(i)));
	ct_barrier(&c);
	if (rank == 0) {
		for (int i = 0; i < n; i++) {
			ct_fill(big + i * MB, lens[i], i);
			if (i == 1)
				POST(&c, fi_tinject(c.ep, big + i * MB, lens[i], c.peer, i));
			else
				POST(&c, fi_tsend(c.ep, big + i * MB, lens[i], NULL, c.peer, i, CTX(i)));
		}
		ct_recv_oob(NULL, &x, 1);
		for (int i = 1; i < n; i++) {
			struct fi_cq_tagged_entry e;

			EQ(ct_next(&c, c.tx, &e, NULL, NULL), 1);
		}
	} else {
		for (int i = 0; i < n; i++) {
			struct fi_cq_tagged_entry e;

			EQ(ct_next(&c, c.rx, &e, NULL, NULL), 1);
		}
		for (int i = 0; i < n; i++)
			CHECK(ct_same(in + i * MB, lens[i], i));
		ct_send_oob(&x, 1);
	}
	/* the connection goes on in both directions */
	for (int i = 0; i < 50; i++) {
		OK(fi_trecv(c.ep, in, 1000, NULL, FI_ADDR_UNSPEC, 100 + i, 0, CTX(100 + i)));
		ct_fill(big, 1000, i);
		POST(&c, fi_tsend(c.ep, big, 1000, NULL, c.peer, 100 + i, CTX(200)));
		ct_sent(&c, CTX(200));
		ct_recvd(&c, CTX(100 + i), 1000);
		CHECK(ct_same(in, 1000, i));
	}
	ct_done(&c);
}
/* Both first messages cross each other: each is received once. */
static void first_messages_cross(int rank)
{
	enum { TIMES = 40 };
	struct ct c = { .o = { .caps = FI_TAGGED } };

	(void)rank;
	shm_only();
	ct_open(&c, &c.o);
	for (int i = 0; i < TIMES; i++) {
		struct ct p = { .o = c.o, .info = fi_dupinfo(c.info) };
		struct ct_name mine, theirs;
		char got[3] = "";
		fi_addr_t to;

		ct_open_second(&p, &c);
		mine = ct_getname(&p.ep->fid);
		ct_swap(&c, &mine, &theirs, sizeof mine);
		to = ct_insert(&c, &theirs);
		for (int k = 0; k < 3; k++)
			OK(fi_trecv(p.ep, got + k, 1, NULL, FI_ADDR_UNSPEC, 0, 0, CTX(k)));
		ct_swap(NULL, "x", &mine, 1);
		POST(&c, fi_tinject(p.ep, "1", 1, to, 0));
		POST(&c, fi_tinject(p.ep, "2", 1, to, 0));
		ct_recvd(&c, CTX(0), 1);
		ct_recvd(&c, CTX(1), 1);
		CHECK(got[0] == '1' && got[1] == '2');
		ct_barrier(&c);
		NOTHING(&c, c.rx, 2);
		ct_barrier(&c);
		POST(&c, fi_tinject(p.ep, "3", 1, to, 0));
		ct_recvd(&c, CTX(2), 1);
		EQ(got[2], '3');
		ct_barrier(&c);
		OK(fi_av_remove(c.av, &to, 1, 0));
		OK(fi_close(&p.ep->fid));
		fi_freeinfo(p.info);
	}
	ct_done(&c);
}
static void truncated(int rank)
{
	static const size_t sent[] = { 100, 3000, 100000, 100000, 8 * MB }, space[] = { 10, 100, 3000, 50000, 100 };
	struct ct c;

	shm_only();
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED });
	ct_fill(big, 8 * MB, 3);
	for (int unexpected = 0; unexpected < 2; unexpected++)
		for (int i = 0; i < 5; i++) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry err;

			if (rank == 1 && !unexpected)
				OK(fi_trecv(c.ep, in, space[i], NULL, c.peer, 7, 0, CTX(4)));
			ct_barrier(&c);
			if (rank == 0) {
				POST(&c, fi_tsend(c.ep, big, sent[i], NULL, c.peer, 7, CTX(3)));
				if (!unexpected)
					ct_sent(&c, CTX(3));
				POST(&c, fi_tsend(c.ep, big, 9, NULL, c.peer, 8, CTX(5)));
				for (int left = 1 + unexpected; left; left--)
					ct_next(&c, c.tx, &e, NULL, NULL);
				ct_barrier(&c);
				continue;
			}
			/* the next message is received */
			OK(fi_trecv(c.ep, in + 60000, 9, NULL, c.peer, 8, 0, CTX(6)));
			if (unexpected) {
				ct_recvd(&c, CTX(6), 9);
				OK(fi_trecv(c.ep, in, space[i], NULL, c.peer, 7, 0, CTX(4)));
			}
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			EQ(err.err, FI_ETRUNC);
			CHECK(err.op_context == CTX(4));
			EQ(err.len, space[i]);
			EQ(err.olen, sent[i] - space[i]);
			CHECK(ct_same(in, space[i], 3));
			if (!unexpected)
				ct_recvd(&c, CTX(6), 9);
			ct_barrier(&c);
		}
	ct_done(&c);
}
static void large_first(int rank)
{
	struct ct c;

	shm_only();
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED });
	if (rank == 0) {
		ct_fill(big, 32 * MB, 5);
		POST(&c, fi_tsend(c.ep, big, 32 * MB, NULL, c.peer, 1, CTX(1)));
		for (int i = 0; i < 100; i++)
			POST(&c, fi_tsend(c.ep, big, 8, NULL, c.peer, 2, CTX(2)));
		for (int i = 0; i < 101; i++) {
			struct fi_cq_tagged_entry e;

			ct_next(&c, c.tx, &e, NULL, NULL);
		}
	} else {
		for (int i = 0; i < 100; i++) {
			OK(fi_trecv(c.ep, in, 8, NULL, c.peer, 2, 0, CTX(2)));
			ct_recvd(&c, CTX(2), 8);
		}
		OK(fi_trecv(c.ep, in, 32 * MB, NULL, c.peer, 1, 0, CTX(1)));
		ct_recvd(&c, CTX(1), 32 * MB);
		CHECK(ct_same(in, 32 * MB, 5));
	}
	ct_done(&c);
}
/* ---- memory ----------------------------------------------------------- */

#define LEN (4 * MB)
/* Registers `in` at both ends, and sends its address to the other. */
struct position { uint64_t addr, key; };
static struct fid_mr *register_exposed(struct ct *c, struct position *theirs)
{
	struct position mine;
	struct fid_mr *mr;

	OK(fi_mr_reg(c->domain, in, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 42, 0, &mr, NULL));
	mine.key = fi_mr_key(mr);
	mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)in : 0;
	ct_swap(c, &mine, theirs, sizeof mine);
	return mr;
}
/* The end of that: the endpoint goes before the memory. */
static void take_back(struct ct *c, struct fid_mr *mr)
{
	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
	OK(fi_close(&mr->fid));
	ct_close(c);
}
/* Opens an endpoint of the chosen info, with the other rank's as its peer. */
static void open_chosen(struct ct *c)
{
	struct ct_name mine, theirs;

	ct_open_in(c, NULL);
	ct_open_ep(c, c->info);
	OK(fi_enable(c->ep));
	mine = ct_getname(&c->ep->fid);
	ct_swap(c, &mine, &theirs, sizeof mine);
	c->peer = ct_insert(c, &theirs);
}
static void wrong_keys(int rank)
{
	static const size_t len[] = { 8, 2000, 100000 };
	struct position to;
	struct fid_mr *mr;
	struct ct c;

	shm_only();
	ct_fill(in, LEN, 9);
	ct_open(&c, &(struct ct_opt){ .caps = FI_MSG | FI_RMA, .tx_op_flags = FI_DELIVERY_COMPLETE });
	mr = register_exposed(&c, &to);
	for (int i = 0; rank == 0 && i < 12; i++) {
		struct position at = { to.addr + (i / 3 % 2 ? LEN : 0), to.key + (i / 3 % 2 ? 0 : 35) };
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		if (i < 6)
			POST(&c, fi_write(c.ep, big, len[i % 3], NULL, c.peer, at.addr, at.key, CTX(i)));
		else
			POST(&c, fi_read(c.ep, big, len[i % 3], NULL, c.peer, at.addr, at.key, CTX(i)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(i) && err.err);
		EQ(err.flags & (FI_RMA | FI_READ | FI_WRITE), FI_RMA | (i < 6 ? FI_WRITE : FI_READ));
	}
	/* and correct operations work */
	if (rank == 0) {
		POST(&c, fi_read(c.ep, big, LEN, NULL, c.peer, to.addr, to.key, CTX(1)));
		ct_sent(&c, CTX(1));
		CHECK(ct_same(big, LEN, 9));
	}
	ct_barrier(&c);
	CHECK(ct_same(in, LEN, 9));
	take_back(&c, mr);
}
/* The same where accesses are of the fast kind: neither done without a look at the key, nor begun again and again. */
static void wrong_keys_fast(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fi_info *h = ct_hints(&o);
	struct ct c = { .o = o };
	struct position to;
	struct fid_mr *mr;

	shm_only();
	h->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
	h->tx_attr->msg_order = FI_ORDER_SAS;
	h->tx_attr->op_flags = FI_DELIVERY_COMPLETE;	/* of writes that is to be known */
	c.info = info_of(h, NULL, NULL, 0);
	EQ(c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR, FI_MR_VIRT_ADDR);
	open_chosen(&c);
	ct_fill(in, LEN, 9);
	mr = register_exposed(&c, &to);
	for (int i = 0; rank == 0 && i < 8; i++) {
		size_t len = i % 2 ? 100000 : 8;
		uint64_t key = to.key + (i / 2 % 2 ? 35 : 0), addr = to.addr + (i / 2 % 2 ? 0 : LEN);
		struct fi_cq_tagged_entry e;
		struct fi_cq_err_entry err;

		if (i < 4)
			OK(fi_write(c.ep, big, len, NULL, c.peer, addr, key, CTX(i)));
		else
			OK(fi_read(c.ep, big, len, NULL, c.peer, addr, key, CTX(i)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		CHECK(err.op_context == CTX(i) && err.err);
		ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
	}
	ct_barrier(&c);
	CHECK(ct_same(in, LEN, 9));
	take_back(&c, mr);
}
/* Operations after a read neither change its data nor are seen before. */
static void after_reads(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct fi_info *h = ct_hints(&o);
	struct ct c = { .o = o };
	struct position to;
	struct fid_mr *mr;

	shm_only();
	h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_WAR | FI_ORDER_SAR | FI_ORDER_SAS;
	c.info = info_of(h, NULL, NULL, 0);
	CHECK((c.info->tx_attr->msg_order & FI_ORDER_WAR) && (c.info->tx_attr->msg_order & FI_ORDER_SAR));
	EQ(c.info->ep_attr->max_order_war_size, SIZE_MAX);
	open_chosen(&c);
	ct_fill(in, LEN, 1);
	mr = register_exposed(&c, &to);
	ct_barrier(&c);
	for (int i = 0; i < 20; i++) {
		struct fi_cq_tagged_entry e;

		if (rank == 0) {
			ct_fill(big + LEN, LEN, i + 2);
			POST(&c, fi_read(c.ep, big, LEN, NULL, c.peer, to.addr, to.key, CTX(1)));
			POST(&c, fi_write(c.ep, big + LEN, LEN, NULL, c.peer, to.addr, to.key, CTX(2)));
			POST(&c, fi_read(c.ep, big + 2 * LEN, LEN, NULL, c.peer, to.addr, to.key, CTX(3)));
			POST(&c, fi_send(c.ep, big, 1, NULL, c.peer, CTX(4)));
			usleep(10000);	/* for a message that does not wait */
			for (int left = 4; left; left--)
				ct_next(&c, c.tx, &e, NULL, NULL);
			CHECK(ct_same(big, LEN, i + 1));
			CHECK(ct_same(big + 2 * LEN, LEN, i + 2));
		} else {
			OK(fi_recv(c.ep, big, 1, NULL, c.peer, CTX(5)));
			ct_recvd(&c, CTX(5), 1);
			CHECK(ct_same(in, LEN, i + 2));
			/* the reads are over: this changes none of their data */
			ct_fill(in, LEN, i + 100);
			usleep(20000);
			ct_fill(in, LEN, i + 2);
		}
		ct_barrier(&c);
	}
	/* and with nothing but a read before it */
	for (int i = 0; i < 20; i++) {
		if (rank == 0) {
			POST(&c, fi_read(c.ep, big, LEN, NULL, c.peer, to.addr, to.key, CTX(1)));
			POST(&c, fi_send(c.ep, big + LEN, 1, NULL, c.peer, CTX(2)));
			usleep(10000);
			ct_sent(&c, CTX(1));
			ct_sent(&c, CTX(2));
			CHECK(ct_same(big, LEN, 21));
		} else {
			OK(fi_recv(c.ep, big, 1, NULL, c.peer, CTX(5)));
			ct_recvd(&c, CTX(5), 1);
			ct_fill(in, LEN, i + 100);
			usleep(20000);
			ct_fill(in, LEN, 21);
		}
		ct_barrier(&c);
	}
	take_back(&c, mr);
}
/* ---- the system ------------------------------------------------------- */

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	if (!d)
		return -1;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
/* A /dev/shm of the process's own, as others' files come and go in that of the host; where it may have none, the host's.
   Returns whether it is its own. */
static int own_dev_shm(void)
{
	return !geteuid() && !unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("none", "/dev/shm", "tmpfs", 0, "size=64m");
}
static void be_killed(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct_name name, theirs;
	struct ct c, d = { .o = o };
	int fds = 0, own, files, pid = getpid(), dead, errors = 0;

	shm_only();
	own = own_dev_shm();
	files = entries("/dev/shm");
	ct_open(&c, &o);
	name = ct_getname(&c.ep->fid);
	ct_send_oob(&pid, sizeof pid);
	ct_recv_oob(&c, &dead, sizeof dead);
	ct_send_oob(&name, sizeof name);
	ct_recv_oob(&c, &theirs, sizeof theirs);
	/* both ways */
	OK(fi_trecv(c.ep, in, 8, NULL, c.peer, 1, 0, CTX(1)));
	POST(&c, fi_tsend(c.ep, big, 8, NULL, c.peer, 1, CTX(2)));
	ct_sent(&c, CTX(2));
	ct_recvd(&c, CTX(1), 8);
	ct_barrier(&c);
	if (rank == 1)
		for (;;)
			pause();
	fds = entries("/proc/self/fd");
	/* it stands, so that much is under way */
	ct_stop(dead);
	for (int i = 0; i < 500; i++)
		while (fi_tsend(c.ep, big, i % 10 ? 8 : MB, NULL, c.peer, 2, CTX(3)) == -FI_EAGAIN)
			if (++errors > 1000)
				goto full;
full:
	errors = 0;
	OK(kill(dead, SIGKILL));
	while (!errors) {
		int r = ct_next(&c, c.tx, &e, NULL, &err);

		errors += r < 0;
		CHECK(r > 0 || err.err);
	}
	/* later ones end as well, and no call returns -FI_EAGAIN for ever */
	for (int seen = 0; !seen;) {
		int r;

		POST(&c, fi_tsend(c.ep, big, 8, NULL, c.peer, 2, CTX(4)));
		do {
			r = ct_next(&c, c.tx, &e, NULL, &err);
		} while ((r < 0 ? err.op_context : e.op_context) != CTX(4));
		seen = r < 0;
	}
	CHECK(entries("/proc/self/fd") < fds);
	if (own)
		EQ(entries("/dev/shm"), files);
	/* its name is free */
	name = open_as(&d, NULL, theirs.b);
	CHECK(!strcmp(name.b, theirs.b));
	ct_close(&d);
	ct_close(&c);
}
/* Rank 1 dies on purpose: only rank 0 has a verdict. */
static void killed(int rank)
{
	int st;
	pid_t p;

	shm_only();
	if (rank == 0) {
		be_killed(0);
		return;
	}
	if (!(p = fork())) {
		be_killed(1);
		_exit(0);
	}
	close(ct_sync);
	CHECK(waitpid(p, &st, 0) == p);
	CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGKILL);
}
static void handlers(int rank)
{
	struct sigaction before[65] = { 0 }, after[65] = { 0 };	/* some numbers are no signals */
	struct ct c;
	int own, files;

	shm_only();
	own = own_dev_shm();
	files = entries("/dev/shm");
	for (int i = 1; i < 65; i++)
		sigaction(i, NULL, &before[i]);
	ct_open(&c, &(struct ct_opt){ .caps = FI_MSG });
	if (rank == 0) {
		POST(&c, fi_send(c.ep, big, 100000, NULL, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
	} else {
		OK(fi_recv(c.ep, in, 100000, NULL, c.peer, CTX(1)));
		ct_recvd(&c, CTX(1), 100000);
	}
	if (own)
		EQ(entries("/dev/shm"), files);
	for (int i = 1; i < 65; i++) {
		sigaction(i, NULL, &after[i]);
		CHECK(before[i].sa_handler == after[i].sa_handler);
	}
	ct_done(&c);
}
static void talk(struct ct *c, int rank, size_t len)
{
	ct_fill(big, len, rank);
	memset(in, 0, len);
	OK(fi_trecv(c->ep, in, len, NULL, c->peer, 1, 0, CTX(1)));
	POST(c, fi_tsend(c->ep, big, len, NULL, c->peer, 1, CTX(2)));
	ct_recvd(c, CTX(1), len);
	ct_sent(c, CTX(2));
	CHECK(ct_same(in, len, !rank));
}
static void small_shm(int rank)
{
	struct ct c;

	shm_only();
	/* a /dev/shm of this process alone, with one page */
	if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("none", "/dev/shm", "tmpfs", 0, "size=4k"))
		SKIP_HERE("may not mount: %s", strerror(errno));
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED });
	talk(&c, rank, 8);
	talk(&c, rank, 16 * MB);
	OK(umount2("/dev/shm", MNT_DETACH));
	talk(&c, rank, MB);
	ct_done(&c);
}
static void other_user(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct_name mine, theirs;
	struct ct c = { .o = o };

	shm_only();
	if (geteuid())
		SKIP_HERE("is not root");
	ct_param("PEER_WAIT", "1");
	fi_freeinfo(info_of(hints(), NULL, NULL, 0));	/* while it may read the plug-ins */
	if (rank == 1)
		OK(setresuid(65534, 65534, 65534));
	mine = open_as(&c, NULL, NULL);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	OK(fi_trecv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(1)));
	POST(&c, fi_tsend(c.ep, big, 8, NULL, c.peer, 1, CTX(2)));
	EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
	ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
	ct_done(&c);
}
/* Another user has created a socket with a peer's name, and does not answer: messages to the peer need not wait for ever. */
static void taken_name(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct_name peer;
	struct ct c = { .o = { .caps = FI_MSG } };

	(void)rank;
	shm_only();
	if (geteuid())
		SKIP_HERE("is not root");
	open_as(&c, NULL, NULL);
	for (int listens = 0; listens < 2; listens++) {
		struct sockaddr_un a = { .sun_family = AF_UNIX };
		int n, ready[2], callers[4];
		pid_t child;
		char go;

		peer.n = snprintf(peer.b, sizeof peer.b, "fi_ns://taken-%d-%d", getpid(), listens) + 1;
		n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ofi-shm-1/%u/%s", geteuid(), peer.b + 8);
		EQ(pipe(ready), 0);
		child = fork();
		if (!child) {
			int s;

			if (setresuid(65534, 65534, 65534))
				_exit(1);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			s = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
			if (bind(s, (void *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + n))
				_exit(1);
			if (listens) {
				/* a full queue */
				listen(s, 0);
				for (int i = 0; i < 4; i++) {
					callers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
					(void)!connect(callers[i], (void *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + n);
				}
			}
			(void)!write(ready[1], "x", 1);
			for (;;)
				pause();
		}
		close(ready[1]);
		EQ(read(ready[0], &go, 1), 1);
		close(ready[0]);
		POST(&c, fi_send(c.ep, big, 8, NULL, ct_insert(&c, &peer), CTX(2)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_EACCES);
		kill(child, SIGKILL);
		EQ(waitpid(child, NULL, 0), child);
	}
	ct_close(&c);
}
/*
 * In a namespace without users, as of a container without root, all have one number. The user of a process is
 * then unknown, even that of the calling process.
 */
static void unknown_users(int rank)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct ct_name n;
	struct ct c = { .o = { .caps = FI_TAGGED } };

	(void)rank;
	shm_only();
	if (unshare(CLONE_NEWUSER))
		SKIP_HERE("no namespaces of users: %s", strerror(errno));
	ct_param("PEER_WAIT", "1");
	n = open_as(&c, NULL, NULL);
	c.peer = ct_insert(&c, &n);
	OK(fi_trecv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(1)));
	POST(&c, fi_tsend(c.ep, big, 8, NULL, c.peer, 1, CTX(2)));
	EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
	EQ(err.err, FI_EACCES);
	ERR(fi_cq_read(c.rx, &e, 1), FI_EAGAIN);
	ct_close(&c);
}
/* A process without permission to be a peer knows the socket's name, and connects. */
static void unknown_peer(int rank)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ct c = { .o = { .caps = FI_TAGGED } };
	struct ct_name n;
	socklen_t len;
	int s[300];

	(void)rank;
	shm_only();
	n = open_as(&c, NULL, NULL);
	c.peer = ct_insert(&c, &n);
	len = offsetof(struct sockaddr_un, sun_path) + 1 +
		snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ofi-shm-1/%d/%s", geteuid(), n.b + 9);
	for (int i = 0; i < 300; i++) {
		static const char garbage[] = "\4abcd\377\377\377\377garbage garbage garbage garbage";

		CHECK((s[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
		OK(connect(s[i], (void *)&a, len));
		if (i % 3 == 1)
			EQ(send(s[i], "\377x", 2, MSG_NOSIGNAL), 2);
		if (i % 3 == 2)
			EQ(send(s[i], garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
		ct_progress(&c);
	}
	ct_idle(&c, 50);
	/* to itself */
	OK(fi_trecv(c.ep, in, MB, NULL, c.peer, 1, 0, CTX(1)));
	POST(&c, fi_tsend(c.ep, big, MB, NULL, c.peer, 1, CTX(2)));
	ct_recvd(&c, CTX(1), MB);
	ct_sent(&c, CTX(2));
	for (int i = 0; i < 300; i++)
		close(s[i]);
	ct_close(&c);
}
/*
 * Closing a socket closes descriptors in its queue as well, and closing these may wait for a time chosen by
 * their sender.  Neither calls nor fi_close wait for that.
 */
static void lingering(int rank)
{
	enum { N = 6 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ct c = { .o = { .caps = FI_TAGGED } };
	struct ct_name n;
	socklen_t len;
	int s[2 * N], rest[2 * N];

	(void)rank;
	shm_only();
	/* else a thread of the library may be through with a descriptor before it is closed here, which waits then */
	ct_param("DISABLE_AUTO_PROGRESS", "1");
	n = open_as(&c, NULL, NULL);
	c.peer = ct_insert(&c, &n);
	len = offsetof(struct sockaddr_un, sun_path) + 1 +
		snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "ofi-shm-1/%d/%s", geteuid(), n.b + 9);
	for (int i = 0; i < 2 * N; i++) {
		CHECK((s[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
		OK(connect(s[i], (void *)&a, len));
		/* no name; and a name, and more */
		ct_send_lingering(s[i], i % 2 ? "\377x" : "\3abc\1\2\3\4", i % 2 ? 2 : 8, &rest[i]);
		if (i < N)
			ct_idle(&c, 10);
	}
	/* the others wait to be accepted */
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	for (int i = 0; i < 2 * N; i++) {
		close(rest[i]);
		close(s[i]);
	}
	ct_close(&c);
}
#define PEERS 300
static void many(int rank)
{
	struct rlimit l;
	struct ct c = { .o = { .caps = FI_TAGGED | FI_SOURCE } };
	static struct ct p[PEERS];
	static fi_addr_t to[PEERS];
	struct ct_name hub, n;
	static char b[PEERS];

	(void)rank;
	shm_only();
	OK(getrlimit(RLIMIT_NOFILE, &l));
	l.rlim_cur = l.rlim_max < 4096 ? l.rlim_max : 4096;
	OK(setrlimit(RLIMIT_NOFILE, &l));
	if (l.rlim_cur < 2048)
		SKIP_HERE("may have %ld descriptors", (long)l.rlim_cur);
	hub = open_as(&c, NULL, NULL);
	for (int i = 0; i < PEERS; i++) {
		p[i].o = c.o;
		p[i].info = fi_dupinfo(c.info);
		ct_open_second(&p[i], &c);
		n = ct_getname(&p[i].ep->fid);
		to[i] = ct_insert(&c, &n);
	}
	c.peer = ct_insert(&c, &hub);
	for (int i = 0; i < PEERS; i++) {
		b[i] = (char)i;
		OK(fi_trecv(c.ep, in + i, 1, NULL, to[i], i, 0, CTX(i)));
		OK(fi_trecv(p[i].ep, in + PEERS + i, 1, NULL, c.peer, i, 0, CTX(PEERS + i)));
		POST(&c, fi_tsend(p[i].ep, b + i, 1, NULL, c.peer, i, CTX(2 * PEERS)));
		POST(&c, fi_tsend(c.ep, b + i, 1, NULL, to[i], i, CTX(2 * PEERS)));
	}
	for (int i = 0; i < 2 * PEERS; i++) {
		struct fi_cq_tagged_entry e;

		ct_next(&c, c.rx, &e, NULL, NULL);
		ct_next(&c, c.tx, &e, NULL, NULL);
	}
	CHECK(!memcmp(in, b, PEERS) && !memcmp(in + PEERS, b, PEERS));
	for (int i = 0; i < PEERS; i++) {
		OK(fi_close(&p[i].ep->fid));
		fi_freeinfo(p[i].info);
	}
	ct_close(&c);
}
/* Many endpoints of two processes connect to each other at one moment: no endpoint is left out. */
static void first_contacts(int rank)
{
	enum { EPS = 8, TIMES = 10 };
	struct ct c = { .o = { .caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV } };

	(void)rank;
	shm_only();
	open_as(&c, NULL, NULL);
	for (int round = 0; round < TIMES; round++) {
		struct ct p[EPS];
		struct ct_name mine[EPS], theirs[EPS];
		fi_addr_t to[EPS];
		static char b[EPS][EPS];

		memset(b, 0, sizeof b);
		for (int i = 0; i < EPS; i++) {
			p[i] = (struct ct){ .o = c.o, .info = fi_dupinfo(c.info) };
			ct_open_second(&p[i], &c);
			mine[i] = ct_getname(&p[i].ep->fid);
		}
		ct_swap(&c, mine, theirs, sizeof mine);
		for (int i = 0; i < EPS; i++)
			to[i] = ct_insert(&c, &theirs[i]);
		for (int i = 0; i < EPS; i++)
			for (int k = 0; k < EPS; k++)
				OK(fi_trecv(p[i].ep, &b[i][k], 1, NULL, to[k], 1, 0, CTX(i * EPS + k)));
		ct_barrier(&c);
		for (int i = 0; i < EPS; i++)
			for (int k = 0; k < EPS; k++)
				POST(&c, fi_tinject(p[i].ep, "12345678" + i, 1, to[(i + k) % EPS], 1));
		for (int i = 0; i < EPS * EPS; i++) {
			struct fi_cq_tagged_entry e;

			ct_next(&c, c.rx, &e, NULL, NULL);
		}
		for (int i = 0; i < EPS; i++)
			CHECK(!memcmp(b[i], "12345678", EPS));
		ct_barrier(&c);
		OK(fi_av_remove(c.av, to, EPS, 0));
		for (int i = 0; i < EPS; i++) {
			OK(fi_close(&p[i].ep->fid));
			fi_freeinfo(p[i].info);
		}
	}
	ct_done(&c);
}
/* Bytes of memory that peers share, but for doors. */
static size_t pipes(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[500];
	size_t n = 0;

	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (strstr(line, "/memfd:ofi-local") && sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from > 4096)
			n += to - from;
	fclose(f);
	return n;
}
/* An endpoint of this process goes and another takes its name: neither its memory nor its connection is left. */
static void replaced(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV } };
	struct ct_name hub, n;
	fi_addr_t to = FI_ADDR_UNSPEC;
	char src[64];
	int fds = 0;

	(void)rank;
	shm_only();
	ct_needs_memory();
	hub = open_as(&c, NULL, NULL);
	c.peer = ct_insert(&c, &hub);
	snprintf(src, sizeof src, "fi_ns://again%d", getpid());
	for (int round = 0; round < 6; round++) {
		struct ct p = { .o = c.o, .info = fi_dupinfo(c.info) };
		size_t most = 0;

		free(p.info->src_addr);
		p.info->src_addr = strdup(src);
		p.info->src_addrlen = strlen(src) + 1;
		ct_open_second(&p, &c);
		n = ct_getname(&p.ep->fid);
		CHECK(!strcmp(n.b, src));
		if (to == FI_ADDR_UNSPEC)
			to = ct_insert(&c, &n);
		for (int i = 0; i < 40; i++) {
			size_t len = i % 10 ? 3000 : MB;
			struct fi_cq_tagged_entry e;

			ct_fill(big, len, round + i);
			OK(fi_trecv(p.ep, in, len, NULL, c.peer, 1, 0, CTX(1)));
			OK(fi_trecv(c.ep, in + MB, len, NULL, to, 2, 0, CTX(2)));
			POST(&c, fi_tsend(c.ep, big, len, NULL, to, 1, CTX(3)));
			POST(&c, fi_tsend(p.ep, big, len, NULL, c.peer, 2, CTX(3)));
			for (int left = 2; left; left--) {
				ct_next(&c, c.rx, &e, NULL, NULL);
				ct_next(&c, c.tx, &e, NULL, NULL);
			}
			CHECK(ct_same(in, len, round + i) && ct_same(in + MB, len, round + i));
			most = pipes() > most ? pipes() : most;
		}
		CHECK(most);
		if (round % 2) {	/* before it goes */
			OK(fi_av_remove(c.av, &to, 1, 0));
			to = FI_ADDR_UNSPEC;
		}
		OK(fi_close(&p.ep->fid));
		fi_freeinfo(p.info);
		while (pipes())
			ct_progress(&c);
		ct_idle(&c, 20);
		if (round == 1)
			fds = entries("/proc/self/fd");
		if (round > 1 && round % 2)
			EQ(entries("/proc/self/fd"), fds);
	}
	ct_close(&c);
}
/* One process of three may not be read: large messages of the others are read where they are. */
static void some_read(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV } };
	struct ct_name name[3];
	fi_addr_t to[3];
	int me = rank, sync[2], st = 0;
	pid_t third = 0;
	FILE *yama = fopen("/proc/sys/kernel/yama/ptrace_scope", "r");
	struct iovec one = { &me, sizeof me }, other = { &st, sizeof st };

	shm_only();
	ct_needs_memory();
	if ((yama && fgetc(yama) != '0') || process_vm_readv(getpid(), &one, 1, &other, 1, 0) != sizeof me)
		SKIP_HERE("processes may not read each other");
	me = rank;
	ct_keep_log("info");
	fi_freeinfo(info_of(hints(), NULL, NULL, 0));	/* while it may read the plug-ins */
	OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sync));
	if (rank == 0 && !(third = fork())) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		me = 2;
		ct_keep_log("info");
	}
	CHECK(third >= 0);
	/* root reads all; 65534 is a user without a number here, so its identity is unknown */
	if (!geteuid())
		OK(setresuid(65533, 65533, 65533));
	OK(prctl(PR_SET_DUMPABLE, me != 2));
	name[me] = open_as(&c, NULL, NULL);
	if (me == 2) {
		EQ(write(sync[1], &name[2], sizeof name[2]), sizeof name[2]);
		EQ(recv(sync[1], name, 2 * sizeof name[0], MSG_WAITALL), 2 * sizeof name[0]);
	} else {
		if (me == 0)
			EQ(recv(sync[0], &name[2], sizeof name[2], MSG_WAITALL), sizeof name[2]);
		ct_swap(&c, name + me, name + !me, sizeof name[0]);
		if (me == 0) {
			EQ(write(sync[0], name, 2 * sizeof name[0]), 2 * sizeof name[0]);
			ct_send_oob(&name[2], sizeof name[2]);
		} else {
			ct_recv_oob(&c, &name[2], sizeof name[2]);
		}
	}
	for (int i = 0; i < 3; i++)
		to[i] = ct_insert(&c, &name[i]);
	for (int round = 0; round < 60; round++) {
		size_t len = round % 4 ? 8 : MB;
		struct fi_cq_tagged_entry e;

		for (int i = 0; i < 3; i++)
			if (i != me)
				OK(fi_trecv(c.ep, in + i * MB, len, NULL, to[i], round, 0, CTX(i)));
		ct_fill(big, len, me + round);
		for (int i = 0; i < 3; i++)
			if (i != me)
				POST(&c, fi_tsend(c.ep, big, len, NULL, to[i], round, CTX(3)));
		for (int left = 2; left; left--) {
			ct_next(&c, c.rx, &e, NULL, NULL);
			ct_next(&c, c.tx, &e, NULL, NULL);
		}
		for (int i = 0; i < 3; i++)
			if (i != me)
				CHECK(ct_same(in + i * MB, len, i + round));
	}
	/* no process reads the third, which reads both, and they read each other */
	EQ(ct_logged("are read where they are"), me == 2 ? 2 : 1);
	EQ(ct_logged("its memory is not read"), me == 2 ? 0 : 1);
	if (me == 2) {
		char x;

		EQ(write(sync[1], "x", 1), 1);
		while (recv(sync[1], &x, 1, MSG_DONTWAIT) != 1)
			ct_progress(&c);
		ct_close(&c);
		_exit(0);
	}
	if (third) {
		char x;

		while (recv(sync[0], &x, 1, MSG_DONTWAIT) != 1)
			ct_progress(&c);
		ct_barrier(&c);
		EQ(write(sync[0], "x", 1), 1);
		CHECK(waitpid(third, &st, 0) == third);
		if (!WIFEXITED(st) || WEXITSTATUS(st))
			_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 1);
	} else {
		ct_barrier(&c);
	}
	ct_done(&c);
}
/* As in two containers of one host: both are process 1, and have the names that follow from that. */
static void equal_processes(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED } };
	struct ct_name mine, theirs;
	int st;
	pid_t p;

	shm_only();
	if (unshare(CLONE_NEWPID))
		SKIP_HERE("no processes of its own: %s", strerror(errno));
	p = fork();
	CHECK(p >= 0);
	if (p) {
		close(ct_sync);
		CHECK(waitpid(p, &st, 0) == p);
		_exit(WIFEXITED(st) ? WEXITSTATUS(st) : 1);
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	EQ(getpid(), 1);
	/* one after the other, so that both want one name */
	if (rank == 1)
		ct_recv_oob(NULL, &st, 1);
	mine = open_as(&c, NULL, NULL);
	CHECK(!strncmp(mine.b, "fi_shm://1:", 11));
	if (rank == 0)
		ct_send_oob("x", 1);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	CHECK(strcmp(mine.b, theirs.b));
	c.peer = ct_insert(&c, &theirs);
	for (int i = 0; i < 50; i++)
		talk(&c, rank, i % 10 ? 8 : MB);
	ct_done(&c);
	_exit(0);
}
/* The end of a forked child, or its close of inherited objects, ends no operation of its parent. */
static void forked(int rank)
{
	struct ct c;

	shm_only();
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED });
	talk(&c, rank, 100);
	for (int how = 0; how < 2; how++) {
		int status;
		pid_t p = fork();

		CHECK(p >= 0);
		if (!p) {
			if (how)
				ct_close(&c);
			exit(0);
		}
		EQ(waitpid(p, &status, 0), p);
		EQ(status, 0);
		ct_barrier(&c);
		talk(&c, rank, MB);
	}
	ct_done(&c);
}

/* ---- another provider's receive queue (fi_peer(3)) ----------------------- */

/* The owner: receives that wait, and notes of messages that do. */
#define ENTRIES 4096
static struct owner {
	struct fid_peer_srx srx;
	struct entry {
		struct fi_peer_rx_entry e;
		struct iovec iov;
		int state;	/* 0 free, 1 posted, 2 with the provider, 3 a note, 4 room for one */
		int tagged;
		uint64_t ignore;
	} at[ENTRIES];
	int exposed, freed, unnamed;
} owner;
static pthread_mutex_t owner_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct entry *owner_new(int state)
{
	for (int i = 0; i < ENTRIES; i++)
		if (!owner.at[i].state) {
			memset(&owner.at[i], 0, sizeof owner.at[i]);
			owner.at[i].state = state;
			owner.at[i].e.srx = &owner.srx;
			owner.at[i].e.iov = &owner.at[i].iov;
			owner.at[i].e.owner_context = &owner.at[i];
			return &owner.at[i];
		}
	FAIL("no entry is free");
}
/* The oldest receive for a message, or note for a receive: entries are never reordered in these tests. */
static struct entry *owner_find(int state, int tagged, uint64_t addr, uint64_t tag, uint64_t ignore)
{
	for (int i = 0; i < ENTRIES; i++) {
		struct entry *at = &owner.at[i];
		uint64_t both = ignore | at->ignore;

		if (at->state == state && at->tagged == tagged && (at->e.tag & ~both) == (tag & ~both) &&
		    (at->e.addr == FI_ADDR_UNSPEC || addr == FI_ADDR_UNSPEC || at->e.addr == addr))
			return at;
	}
	return NULL;
}
static int owner_get(struct fi_peer_match_attr *envelope, struct fi_peer_rx_entry **entry, int tagged)
{
	struct entry *at;

	pthread_mutex_lock(&owner_lock);
	at = owner_find(1, tagged, envelope->addr, envelope->tag, 0);
	owner.exposed++;
	if (at) {
		at->state = 2;
	} else {
		at = owner_new(4);
		at->tagged = tagged;
	}
	*entry = &at->e;
	pthread_mutex_unlock(&owner_lock);
	return at->state == 2 ? 0 : -FI_ENOENT;
}
static int owner_get_msg(struct fid_peer_srx *srx, struct fi_peer_match_attr *envelope, struct fi_peer_rx_entry **entry)
{
	CHECK(srx == &owner.srx);
	return owner_get(envelope, entry, 0);
}
static int owner_get_tag(struct fid_peer_srx *srx, struct fi_peer_match_attr *envelope, struct fi_peer_rx_entry **entry)
{
	CHECK(srx == &owner.srx);
	return owner_get(envelope, entry, 1);
}
static int owner_queue(struct fi_peer_rx_entry *entry)
{
	struct entry *at = entry->owner_context;

	pthread_mutex_lock(&owner_lock);
	CHECK(at->state == 4 && entry->peer_context);
	at->state = 3;
	pthread_mutex_unlock(&owner_lock);
	return 0;
}
static void owner_unspec(struct fid_peer_srx *srx, fi_addr_t (*addr_of)(struct fi_peer_rx_entry *))
{
	CHECK(srx == &owner.srx);
	for (int i = 0; i < ENTRIES; i++)
		if (owner.at[i].state == 3 && owner.at[i].e.addr == FI_ADDR_UNSPEC)
			owner.at[i].e.addr = addr_of(&owner.at[i].e);
	owner.unnamed++;
}
static void owner_free(struct fi_peer_rx_entry *entry)
{
	struct entry *at = entry->owner_context;

	pthread_mutex_lock(&owner_lock);
	/* Owners of the original take an entry for a note to be among the waiting messages, and remove it from there. */
	CHECK(at->state == 2);
	at->state = 0;
	owner.freed++;
	pthread_mutex_unlock(&owner_lock);
}
static struct fi_ops_srx_owner owner_ops = { sizeof owner_ops, owner_get_msg, owner_get_tag, owner_queue, owner_queue,
	owner_unspec, owner_free };
/* Posts a receive to the owner, which starts a message that waits for it. */
static void owner_recv(void *b, size_t len, fi_addr_t from, int tagged, uint64_t tag, uint64_t ignore, void *context)
{
	struct entry *at;

	pthread_mutex_lock(&owner_lock);
	at = owner_find(3, tagged, from, tag, ignore);
	if (at) {
		at->state = 2;
	} else {
		at = owner_new(1);
		at->tagged = tagged;
		at->e.addr = from;
		at->e.tag = tag;
		at->ignore = ignore;
	}
	at->iov = (struct iovec){ b, len };
	at->e.count = 1;
	at->e.context = context;
	at->e.flags |= FI_RECV | (tagged ? FI_TAGGED : FI_MSG) | FI_COMPLETION;
	/* with the lock for which the provider may wait, in another thread and with locks of its own */
	if (at->state == 2)
		OK((tagged ? owner.srx.peer_ops->start_tag : owner.srx.peer_ops->start_msg)(&at->e));
	pthread_mutex_unlock(&owner_lock);
}
static int owner_waits(int state)
{
	int n = 0;

	for (int i = 0; i < ENTRIES; i++)
		n += owner.at[i].state == state;
	return n;
}
static void importers_only(void)
{
	if (strcmp(ct_prov, "shm") && strcmp(ct_prov, "tcp") && !ct_is_rxm())
		SKIP("cannot take receives of other providers");
}
static struct fid_ep *import_srx(struct ct *c, int own_fid)
{
	struct fi_peer_srx_context context = { sizeof context, &owner.srx };
	struct fi_rx_attr attr = { .op_flags = FI_PEER };
	struct fid_ep *srx;

	owner.srx.ep_fid.fid.fclass = FI_CLASS_SRX_CTX;
	owner.srx.owner_ops = &owner_ops;
	ERR(fi_srx_context(c->domain, &attr, &srx, NULL), FI_EINVAL);
	OK(fi_srx_context(c->domain, &attr, &srx, &context));
	CHECK(owner.srx.peer_ops && owner.srx.peer_ops->size >= sizeof *owner.srx.peer_ops);
	OK(fi_ep_bind(c->ep, own_fid ? &owner.srx.ep_fid.fid : &srx->fid, 0));
	ERR(fi_ep_bind(c->ep, &srx->fid, 0), FI_EINVAL);
	return srx;
}
static struct fid_ep *srx_of;
static void bind_srx(struct ct *c) { srx_of = import_srx(c, ct_rank); }
static void foreign_receives(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE, .setup = bind_srx };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	fi_addr_t from;
	struct ct c;

	importers_only();
	ct_open(&c, &o);
	ERR(fi_recv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, CTX(1)), FI_ENOSYS);
	ERR(fi_trecv(c.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(1)), FI_ENOSYS);
	static const size_t len[] = { 0, 1, 200, 5000, 300000, 16 * MB };

	for (int tagged = 0; tagged < 2; tagged++)
		for (int early = 0; early < 2; early++)
			for (size_t i = 0; i < sizeof len / sizeof *len; i++) {
				ct_fill(big, len[i], i + rank);
				memset(in, 0, len[i]);
				if (early)
					owner_recv(in, len[i], FI_ADDR_UNSPEC, tagged, tagged ? 7 : 0, 0, CTX(1));
				ct_barrier(&c);
				if (tagged)
					POST(&c, fi_tsenddata(c.ep, big, len[i], NULL, 5, c.peer, 7, CTX(2)));
				else
					POST(&c, fi_senddata(c.ep, big, len[i], NULL, 5, c.peer, CTX(2)));
				if (!early) {
					while (!owner_waits(3))
						ct_progress(&c);
					for (int k = 0; k < ENTRIES; k++)
						if (owner.at[k].state == 3) {
							EQ(owner.at[k].e.msg_size, len[i]);
							EQ(owner.at[k].e.cq_data, 5);
							CHECK(owner.at[k].e.flags & FI_REMOTE_CQ_DATA);
							EQ(owner.at[k].e.tag, tagged ? 7 : 0);
						}
					if (i % 2)	/* some of it may be here only */
						ct_idle(&c, 5);
					owner_recv(in, len[i], FI_ADDR_UNSPEC, tagged, tagged ? 7 : 0, 0, CTX(1));
				}
				ct_sent(&c, CTX(2));
				ct_next(&c, c.rx, &e, &from, NULL);
				CHECK(e.op_context == CTX(1) && ct_same(in, len[i], i + !rank));
				EQ(e.len, len[i]);
				EQ(e.data, 5);
				EQ(from, c.peer);
				EQ(e.flags & (FI_RECV | FI_MSG | FI_TAGGED | FI_REMOTE_CQ_DATA),
				   FI_RECV | FI_REMOTE_CQ_DATA | (tagged ? FI_TAGGED : FI_MSG));
				ct_barrier(&c);
			}
	/* in a row, larger than its receive, dropped */
	for (int i = 0; i < 200; i++)
		POST(&c, fi_tinject(c.ep, big, 64, c.peer, 100 + i));
	POST(&c, fi_tinject(c.ep, big, 64, c.peer, 99));
	while (owner_waits(3) < 201)
		ct_progress(&c);
	for (int i = 199; i >= 0; i--) {
		owner_recv(in, 64, c.peer, 1, 100 + i, 0, CTX(i));
		ct_next(&c, c.rx, &e, NULL, NULL);
		CHECK(e.op_context == CTX(i) && e.tag == (uint64_t)(100 + i));
	}
	for (int k = 0; k < ENTRIES; k++)
		if (owner.at[k].state == 3) {
			owner.at[k].state = 2;
			OK(owner.srx.peer_ops->discard_tag(&owner.at[k].e));
		}
	owner_recv(in, 10, FI_ADDR_UNSPEC, 1, 5, 0, CTX(9));
	ct_barrier(&c);
	POST(&c, fi_tinject(c.ep, big, 64, c.peer, 5));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.err == FI_ETRUNC && err.op_context == CTX(9) && err.len == 10 && err.olen == 54);
	ct_barrier(&c);
	EQ(owner.exposed, owner.freed);
	EQ(owner_waits(2) + owner_waits(3) + owner_waits(4), 0);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&srx_of->fid));
	ct_close(&c);
}
/* One thread makes progress, and so asks the owner for receives, while another posts some and starts messages. */
static volatile int foreign_over;
static void *foreign_progress(void *c)
{
	while (!foreign_over)
		ct_progress(c);
	return NULL;
}
/* A receive may have been posted between the query for it and its record: the match happens here. */
static void owner_settle(void)
{
	pthread_mutex_lock(&owner_lock);
	for (int i = 0; i < ENTRIES; i++) {
		struct entry *recv = &owner.at[i], *note;

		if (recv->state != 1 || !(note = owner_find(3, recv->tagged, recv->e.addr, recv->e.tag, 0)))
			continue;
		note->state = 2;
		note->iov = recv->iov;
		note->e.count = 1;
		note->e.context = recv->e.context;
		recv->state = 0;
		OK(owner.srx.peer_ops->start_tag(&note->e));
	}
	pthread_mutex_unlock(&owner_lock);
}
static void foreign_threads(int rank)
{
	struct ct c;
	struct fi_cq_tagged_entry e;
	pthread_t t;
	enum { COUNT = 1000 };

	importers_only();
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED, .setup = bind_srx, .threading = FI_THREAD_SAFE });
	if (rank == 0) {
		for (int i = 0; i < COUNT; i++)
			POST(&c, fi_tinject(c.ep, big, 64, c.peer, i));
	} else {
		OK(pthread_create(&t, NULL, foreign_progress, &c));
		for (int i = 0; i < COUNT; i++) {
			owner_recv(in, 64, c.peer, 1, i, 0, CTX(i % 4096));
			/* some are early, some late */
			for (int left = i % 7 == 6 ? 7 : i == COUNT - 1 ? COUNT % 7 : 0; left;) {
				ssize_t r = fi_cq_read(c.rx, &e, 1);

				CHECK(r == 1 || r == -FI_EAGAIN);
				left -= r == 1;
				if (r != 1) {
					owner_settle();
					ct_nap(1);	/* the other thread wants the lock, too */
				}
			}
		}
		foreign_over = 1;
		OK(pthread_join(t, NULL));
		EQ(owner.exposed, owner.freed);
	}
	ct_done(&c);
}
/* An unknown sender gets its address when the vector does. */
static void foreign_unknown(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED | FI_SOURCE, .setup = bind_srx } };
	struct fi_cq_tagged_entry e;
	struct ct_name mine, theirs;
	fi_addr_t from;

	importers_only();
	mine = ct_open_rdm(&c, NULL);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		c.peer = ct_insert(&c, &theirs);
		POST(&c, fi_tinject(c.ep, "12345678", 8, c.peer, 3));
		ct_barrier(&c);
	} else {
		while (!owner_waits(3))
			ct_progress(&c);
		EQ(owner.at[0].e.addr, FI_ADDR_UNSPEC);
		c.peer = ct_insert(&c, &theirs);
		CHECK(owner.unnamed);
		EQ(owner.at[0].e.addr, c.peer);
		owner_recv(in, 8, c.peer, 1, 3, 0, CTX(1));
		ct_next(&c, c.rx, &e, &from, NULL);
		EQ(from, c.peer);
		ct_barrier(&c);
	}
	ct_done(&c);
}
/* The sender dies while the owner has notes of its messages, and the endpoint is closed before they are started. */
static void foreign_lost(int rank)
{
	struct ct c;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	char x;

	importers_only();
	ct_open(&c, &(struct ct_opt){ .caps = FI_TAGGED, .setup = bind_srx });
	if (rank == 1) {
		POST(&c, fi_tinject(c.ep, "12345678", 8, c.peer, 3));
		POST(&c, fi_tsend(c.ep, big, sizeof big, NULL, c.peer, 4, CTX(1)));
		POST(&c, fi_tinject(c.ep, "12345678", 8, c.peer, 5));
		ct_recv_oob(&c, &x, 1);
		ct_send_oob("x", 1);
		_exit(0);
	}
	while (owner_waits(3) < 2)
		ct_progress(&c);
	ct_send_oob("x", 1);
	ct_recv_oob(&c, &x, 1);
	ct_idle(&c, 20);
	owner_recv(in, 8, FI_ADDR_UNSPEC, 1, 3, 0, CTX(3));
	ct_next(&c, c.rx, &e, NULL, NULL);
	CHECK(e.op_context == CTX(3) && !memcmp(in, "12345678", 8));
	owner_recv(in, sizeof in, FI_ADDR_UNSPEC, 1, 4, 0, CTX(4));
	EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.op_context == CTX(4));
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	EQ(owner_waits(2) + owner_waits(4), 0);
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "infos equal those of upstream libfabric, without device memory", infos, CT_SOLO | CT_RDM },
	{ "virtual addresses without access ordering select the fast-path info", fast, CT_SOLO | CT_RDM },
	{ "node and service become names", nodes, CT_SOLO | CT_RDM },
	{ "the provider is listed before tcp, ignores hints only others satisfy, and refuses ofi_rxm", position, CT_SOLO | CT_RDM },
	{ "the provider is visible to providers requesting hidden ones", hidden, CT_SOLO | CT_RDM },
	{ "an endpoint is named by process, user and number, and any scheme is accepted", name, CT_SOLO | CT_RDM },
	{ "other source strings are used as names unchanged", sources, CT_SOLO | CT_RDM },
	{ "fi_setname names an endpoint before it is enabled, and takes no name in use", setname, CT_SOLO | CT_RDM },
	{ "two processes requesting one name both get a name and communicate", equal_names, CT_RDM },
	{ "names may be as long as 255 bytes", long_names, CT_RDM },
	{ "address vectors accept consecutive names, and more than 256", vector, CT_SOLO | CT_RDM },
	{ "unsupported features return an error", not_there, CT_SOLO | CT_RDM },
	{ "FI_SHM_TX_SIZE and FI_SHM_RX_SIZE are the sizes of queues", sizes, CT_SOLO | CT_RDM },
	{ "the parameters of upstream libfabric are known", params, CT_SOLO | CT_RDM },
	{ "messages wait for a peer started later", early, CT_RDM },
	{ "messages to a new peer arrive while their sender makes no call", sender_sleeps, CT_RDM },
	{ "first messages of two peers to each other arrive once and in order", first_messages_cross, CT_RDM },
	{ "a message longer than its receive fails with its length, and later ones arrive", truncated, CT_RDM },
	{ "a large message without a receive blocks no others", large_first, CT_RDM },
	{ "accesses without a right to the memory fail at their initiator", wrong_keys, CT_RDM },
	{ "accesses on the fast path without a right to the memory fail in the same way", wrong_keys_fast, CT_RDM },
	{ "operations ordered after reads wait for them", after_reads, CT_RDM },
	{ "operations to a killed peer end in errors and leave nothing behind", killed, CT_RDM },
	{ "no signal handler is installed, and no file created", handlers, CT_RDM },
	{ "a small or missing /dev/shm has no effect", small_shm, CT_RDM },
	{ "processes of another user are no peers", other_user, CT_RDM },
	{ "a send to a name taken by an unresponsive process of another user fails", taken_name, CT_SOLO | CT_RDM },
	{ "without mapped users no process is a peer", unknown_users, CT_SOLO | CT_RDM },
	{ "silent or malformed connections block no peer", unknown_peer, CT_SOLO | CT_RDM },
	{ "descriptors with a blocking close, from any process, block no call", lingering, CT_SOLO | CT_RDM },
	{ "one endpoint has three hundred peers", many, CT_SOLO | CT_RDM },
	{ "many endpoints connect to each other at the same time, and all are received", first_contacts, CT_RDM },
	{ "an endpoint reusing a name of its process is reached, and no old state is left", replaced, CT_SOLO | CT_RDM },
	{ "large messages are read directly from readable peers and copied from others", some_read, CT_RDM },
	{ "processes with equal process numbers, as in two containers, communicate", equal_processes, CT_RDM },
	{ "a forked child does not affect its parent", forked, CT_RDM },
	{ "receives from a peer provider's queue are found, filled and returned", foreign_receives, CT_RDM },
	{ "a peer provider starts messages while a thread requests receives from it", foreign_threads, CT_RDM },
	{ "a peer provider gets the address of a sender inserted after its message", foreign_unknown, CT_RDM },
	{ "entries of lost messages at a peer provider end in errors", foreign_lost, CT_RDM },
};
CT_MAIN("shm", tests)
