/*
 * A program of one release of libfabric, bound to that release's symbol
 * versions and carrying its structures: compiled once per NODE (see versions.h).
 *
 * Every structure it hands over ends where a page ends, and the next page can
 * not be touched: who reads or writes a byte that the release did not have
 * ends the program.  Prints 'ok' and 'FAIL' lines and the count of both.
 */
#define _GNU_SOURCE
#include "versions.h"
#include <rdma/fabric.h>	/* for the objects, whose tables are not versioned */
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define STR_(x) #x
#define STR(x) STR_(x)
/* NODE_NAME is 1.3 and so on, API the version such a program asks for. */
#define BIND(f) __asm__(".symver abi_" #f ",fi_" #f "@FABRIC_" STR(NODE_NAME))
int abi_getinfo(uint32_t, const char *, const char *, uint64_t, const struct abi_info *, struct abi_info **);
void abi_freeinfo(struct abi_info *);
struct abi_info *abi_dupinfo(const struct abi_info *);
int abi_fabric(struct abi_fabric_attr *, struct fid_fabric **, void *);
BIND(getinfo);
BIND(freeinfo);
BIND(dupinfo);
#if NODE == 100
__asm__(".symver abi_fabric,fi_fabric@FABRIC_1.0");
#else
__asm__(".symver abi_fabric,fi_fabric@FABRIC_1.1");
#endif

static const char *test = "start", *prov = "tcp";
static int passed, failed;

/* What a crash says: which test it was. */
static void crashed(int sig)
{
	static const char end[] = ": touched what this release did not have\n";

	(void)!write(1, "FAIL ", 5);
	(void)!write(1, test, strlen(test));
	(void)!write(1, end, sizeof end - 1);
	_exit(100 + sig);
}
static void check(int good, const char *what)
{
	printf("%s " STR(NODE_NAME) ": %s: %s\n", good ? "ok  " : "FAIL", test, what);
	good ? passed++ : failed++;
}
#define CHECK(condition) check(!!(condition), #condition)
/* Without this nothing that follows makes sense. */
#define MUST(condition) do { if (!(condition)) { CHECK(condition); exit(1); } } while (0)

/* Zeroed memory whose end is the end of what may be touched. */
static void *edge(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED || mprotect(at + page, page, PROT_NONE)) {
		perror("mmap");
		exit(1);
	}
	return at + page - size;
}
static void *edge_copy(const void *of, size_t size)
{
	return of ? memcpy(edge(size), of, size) : NULL;
}
#define EDGE(type) ((struct type *)edge(sizeof(struct type)))
#define EDGE_COPY(type, of) ((struct type *)edge_copy(of, sizeof(struct type)))

static struct abi_info *hints_of(int type)
{
	struct abi_info *hints = EDGE(abi_info);

	hints->tx_attr = EDGE(abi_tx_attr);
	hints->rx_attr = EDGE(abi_rx_attr);
	hints->ep_attr = EDGE(abi_ep_attr);
	hints->domain_attr = EDGE(abi_domain_attr);
	hints->fabric_attr = EDGE(abi_fabric_attr);
	hints->ep_attr->type = type;
	hints->caps = FI_MSG;
	hints->mode = ~0ull;
	hints->fabric_attr->prov_name = strcpy(edge(strlen(prov) + 1), prov);
	return hints;
}

/* An info as a program of the release holds it: no byte more than it knows. */
static struct abi_info *trimmed(const struct abi_info *info)
{
	struct abi_info *copy = EDGE_COPY(abi_info, info);

	copy->next = NULL;
	copy->tx_attr = EDGE_COPY(abi_tx_attr, info->tx_attr);
	copy->rx_attr = EDGE_COPY(abi_rx_attr, info->rx_attr);
	copy->ep_attr = EDGE_COPY(abi_ep_attr, info->ep_attr);
	copy->domain_attr = EDGE_COPY(abi_domain_attr, info->domain_attr);
	copy->fabric_attr = EDGE_COPY(abi_fabric_attr, info->fabric_attr);
	return copy;
}

static void getinfo(void)
{
	struct abi_info *info = NULL, *i;
	int n = 0, right = 1, msg = 0;

	test = "fi_getinfo without hints";
	CHECK(abi_getinfo(API, NULL, NULL, 0, NULL, &info) == 0 && info);
	abi_freeinfo(info);

	test = "fi_getinfo with this release's hints";
	MUST(abi_getinfo(API, "127.0.0.1", NULL, FI_SOURCE, hints_of(FI_EP_MSG), &info) == 0);
	for (i = info; i; i = i->next, n++) {
		right &= i->tx_attr && i->rx_attr && i->ep_attr && i->domain_attr && i->fabric_attr;
		right &= right && !strcmp(i->fabric_attr->prov_name, prov) && i->fabric_attr->name && i->domain_attr->name;
		right &= right && i->src_addr && i->src_addrlen >= 16 && (i->caps & FI_MSG);
		msg += right && i->ep_attr->type == FI_EP_MSG;
#if NODE >= 101
		right &= right && i->fabric_attr->api_version == API;
#endif
	}
	CHECK(n > 0 && right);
	CHECK(msg == n);
	abi_freeinfo(info);

	test = "fi_getinfo with wishes in the last fields";
	struct abi_info *hints = hints_of(FI_EP_MSG);
	hints->tx_attr->rma_iov_limit = 1;
	hints->rx_attr->iov_limit = 2;
	hints->ep_attr->rx_ctx_cnt = 1;
	CHECK(abi_getinfo(API, NULL, NULL, 0, hints, &info) == 0 && info->rx_attr->iov_limit >= 2);
	abi_freeinfo(info);
	hints->ep_attr->rx_ctx_cnt = 1 << 20;
	info = NULL;
	CHECK(abi_getinfo(API, NULL, NULL, 0, hints, &info) == -FI_ENODATA && !info);

	test = "fi_getinfo with no attributes in hints";
	hints = EDGE(abi_info);
	hints->mode = ~0ull;
	CHECK(abi_getinfo(API, NULL, NULL, 0, hints, &info) == 0 && info && info->tx_attr && info->fabric_attr);
	abi_freeinfo(info);
}

static void dupinfo(void)
{
	struct abi_info *info = NULL, *held, *copy;

	test = "fi_dupinfo of null";
	copy = abi_dupinfo(NULL);
	MUST(copy && copy->tx_attr && copy->rx_attr && copy->ep_attr && copy->domain_attr && copy->fabric_attr);
	CHECK(!copy->caps && !copy->domain_attr->name && !copy->fabric_attr->prov_name && !copy->src_addr);
	abi_freeinfo(copy);
	abi_freeinfo(NULL);

	test = "fi_dupinfo of this release's info";
	MUST(abi_getinfo(API, "127.0.0.1", NULL, FI_SOURCE, hints_of(FI_EP_MSG), &info) == 0);
	held = trimmed(info);
	held->ep_attr->mem_tag_format = 0x5a5a;
#if NODE >= 101
	held->ep_attr->auth_key_size = 3;
	held->ep_attr->auth_key = edge_copy("key", 3);
	held->domain_attr->auth_key_size = 4;
	held->domain_attr->auth_key = edge_copy("keys", 4);
	held->domain_attr->mr_cnt = 77;
#endif
#if NODE >= 102
	held->nic = NULL;
#endif
	MUST((copy = abi_dupinfo(held)));
	CHECK(copy->caps == held->caps && copy->mode == held->mode && copy->addr_format == held->addr_format && !copy->next);
	CHECK(copy->src_addr != held->src_addr && copy->src_addrlen == held->src_addrlen && !memcmp(copy->src_addr, held->src_addr, held->src_addrlen));
	CHECK(!memcmp(copy->tx_attr, held->tx_attr, sizeof *held->tx_attr) && !memcmp(copy->rx_attr, held->rx_attr, sizeof *held->rx_attr));
	CHECK(!memcmp(copy->ep_attr, held->ep_attr, offsetof(struct abi_ep_attr, rx_ctx_cnt) + sizeof(size_t)));
	CHECK(copy->domain_attr->name != held->domain_attr->name && !strcmp(copy->domain_attr->name, held->domain_attr->name));
	CHECK(!strcmp(copy->fabric_attr->prov_name, prov) && !strcmp(copy->fabric_attr->name, held->fabric_attr->name));
#if NODE >= 101
	CHECK(copy->ep_attr->auth_key != held->ep_attr->auth_key && copy->ep_attr->auth_key_size == 3 && !memcmp(copy->ep_attr->auth_key, "key", 3));
	CHECK(copy->domain_attr->auth_key_size == 4 && !memcmp(copy->domain_attr->auth_key, "keys", 4) && copy->domain_attr->mr_cnt == 77);
	CHECK(copy->fabric_attr->api_version == API);
#endif
	/* what the release did not know is zero in the copy, not garbage */
	struct fi_info *now = (struct fi_info *)copy;
#if NODE < 102
	CHECK(!now->nic);
#endif
#if NODE < 103
	CHECK(!now->tx_attr->tclass && !now->domain_attr->tclass);
#endif
#if NODE < 107
	CHECK(!now->domain_attr->max_ep_auth_key);
#endif
#if NODE < 108
	CHECK(!now->domain_attr->max_group_id);
#endif
#if NODE < 109
	CHECK(!now->domain_attr->max_cntr_value && !now->domain_attr->max_err_cntr_value);
#endif
#if NODE < 110
	CHECK(!now->domain_attr->max_xpu_ctx_cnt && !now->ep_attr->xpu_ctx);
#endif
	CHECK(now->fabric_attr->prov_version == held->fabric_attr->prov_version);
	abi_freeinfo(copy);

	test = "the answer is that of the copy that fi_getinfo takes as hints";
	held->ep_attr->mem_tag_format = 0;
#if NODE >= 101
	held->ep_attr->auth_key_size = held->domain_attr->auth_key_size = held->domain_attr->mr_cnt = 0;
	held->ep_attr->auth_key = held->domain_attr->auth_key = NULL;
#endif
	CHECK(abi_getinfo(API, NULL, NULL, 0, held, &copy) == 0 && !strcmp(copy->domain_attr->name, info->domain_attr->name));
	abi_freeinfo(copy);
	abi_freeinfo(info);
}

#define OK(call) MUST((call) == 0)
static void objects(void)
{
	struct abi_info *info = NULL, *held;
	struct abi_fabric_attr *attr;
	struct fid_fabric *fabric = NULL;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_cntr *cntr;
	struct fid_mr *mr;
	struct abi_cq_attr *cq_attr = EDGE(abi_cq_attr);
	struct abi_mr_attr *mr_attr = EDGE(abi_mr_attr);
	struct fi_av_attr *av_attr = EDGE(fi_av_attr);	/* the same in all releases */
	struct iovec *iov = EDGE(iovec);
	char buf[8], *wide;
	int context, i;

	test = "fi_fabric";
	MUST(abi_getinfo(API, "127.0.0.1", NULL, FI_SOURCE, hints_of(FI_EP_RDM), &info) == 0);
	attr = EDGE_COPY(abi_fabric_attr, info->fabric_attr);
#if NODE == 100
	((uint32_t *)attr)[7] = 0xdeadbeef;	/* padding then: may hold anything */
#endif
	OK(abi_fabric(attr, &fabric, &context));
	MUST(fabric);
	CHECK(fabric->fid.fclass == FI_CLASS_FABRIC && fabric->fid.context == &context && fabric->ops->size >= 40);
	CHECK(fabric->api_version == (NODE == 100 ? FI_VERSION(1, 0) : API));
	CHECK(abi_fabric(NULL, &fabric, NULL) == -FI_EINVAL);

	test = "objects opened with this release's attributes";
	held = trimmed(info);
	OK(fi_domain(fabric, (struct fi_info *)held, &domain, NULL));
	cq_attr->format = FI_CQ_FORMAT_MSG;
	OK(fi_cq_open(domain, (struct fi_cq_attr *)cq_attr, &cq, NULL));
	av_attr->type = FI_AV_TABLE;
	OK(fi_av_open(domain, av_attr, &av, NULL));
	OK(fi_endpoint(domain, (struct fi_info *)held, &ep, NULL));
	CHECK(fi_cntr_open(domain, (struct fi_cntr_attr *)EDGE(abi_cntr_attr), &cntr, NULL) == 0 && fi_close(&cntr->fid) == 0);
	*iov = (struct iovec){ buf, sizeof buf };
	mr_attr->mr_iov = iov;
	mr_attr->iov_count = 1;
	mr_attr->access = FI_SEND | FI_RECV;
	CHECK(fi_mr_regattr(domain, (struct fi_mr_attr *)mr_attr, 0, &mr) == 0 && fi_close(&mr->fid) == 0);

	test = "fi_cq_readerr";
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_enable(ep));
	for (i = 0; i < 2; i++) {	/* at the edge of a page, then with a mark behind it */
		struct abi_cq_err_entry *err = EDGE(abi_cq_err_entry);
		size_t space = 256;
		ssize_t r;

		wide = memset(malloc(space), 0xa5, space);
		if (i) {
			err = (void *)wide;
			memset(err, 0, sizeof *err);
		}
		OK(fi_recv(ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, &context));
		OK(fi_cancel(&ep->fid, &context));
		MUST(fi_cq_read(cq, wide + 128, 1) == -FI_EAVAIL);
		memset(wide + 128, 0xa5, 24);
		/* by the table: the inline function sets a field that came with 1.20 */
		r = cq->ops->readerr(cq, (struct fi_cq_err_entry *)err, 0);
		CHECK(r == 1 && err->err == FI_ECANCELED && err->op_context == &context);
		CHECK(err->flags & FI_RECV);
		if (i) {
			size_t at = sizeof *err;
			while (at < space && (unsigned char)wide[at] == 0xa5)
				at++;
			CHECK(at == space);
		}
		free(wide);
	}
	OK(fi_close(&ep->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	abi_freeinfo(info);
}

static void count(void)
{
	printf("%d passed, %d failed, 0 skipped\n", passed, failed);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	atexit(count);
	signal(SIGSEGV, crashed);
	signal(SIGBUS, crashed);
	getinfo();
	dupinfo();
	objects();
	return failed != 0;
}
