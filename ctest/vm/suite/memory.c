/*
 * Memory that is registered in ways that no software device has: with on-demand paging,
 * and as dma-bufs, which is how a device reaches memory of accelerators.  The stand-ins
 * of ctest/vm/fake make it look as if it could: verbs.c is preloaded, accelerator.c is
 * found as the libraries of accelerators.  The transfers are real.
 */
#include "../../conformance/ct.h"
#include "../fake/fake.h"
#include <dlfcn.h>
#include <infiniband/verbs.h>

enum { BIG = 100000, ALL = 3 * BIG };

static const uint8_t no = 0;	/* a bool */

static const uint32_t RC = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
			   IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV;
static const uint64_t ACCESS = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
static const int WITH_HMEM = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM;
static const struct ct_opt rma = { .caps = FI_MSG | FI_RMA };
static const struct ct_opt hmem = { .caps = FI_MSG | FI_RMA | FI_HMEM, .mr_mode = &WITH_HMEM };

static struct fake *fake(void)
{
	struct fake *f = dlsym(RTLD_DEFAULT, "fake");

	if (!f)
		SKIP("no stand-in for libibverbs is preloaded");
	return f;
}
static struct fake *with_odp(uint64_t general)
{
	struct fake *f = fake();

	setenv("FI_VERBS_USE_ODP", "1", 1);
	f->odp_general = general;
	f->odp_rc = RC;
	return f;
}
static struct fake *with_dmabuf(void)
{
	struct fake *f = fake();

	f->has_dmabuf = 1;
	return f;
}
/* Memory of an accelerator with this library, as its applications would get it. */
static struct fake_memory *of_accelerator(const char *library)
{
	void *l = dlopen(library, RTLD_NOW);
	fake_alloc_fn *alloc = l ? (fake_alloc_fn *)dlsym(l, "fake_alloc") : NULL;
	struct fake_memory *m;

	if (!alloc)
		SKIP("no stand-in for %s", library);
	m = alloc(ALL);
	CHECK(m);
	return m;
}
static void *mapped(size_t n)
{
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}
static void open_domain(struct ct *c, const struct ct_opt *o)
{
	c->o = *o;
	c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);
	OK(fi_fabric(c->info->fabric_attr, &c->fabric, NULL));
	OK(fi_domain(c->fabric, c->info, &c->domain, NULL));
}
/* The same with an endpoint. */
static void open_ep(struct ct *c, const struct ct_opt *o)
{
	open_domain(c, o);
	ct_open_eq(c);
	ct_open_domain(c);
	ct_open_ep(c, c->info);
}
static int set(struct ct *c, int name, const void *value, size_t n)
{
	return fi_setopt(&c->ep->fid, FI_OPT_ENDPOINT, name, value, n);
}
static struct fid_mr *reg(struct ct *c, void *p, size_t n, uint64_t access)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(c->domain, p, n, access, 0, 0, 0, &mr, NULL));
	return mr;
}

/* Messages, writes and reads, small and large, from and to a region of ALL bytes; host is
 * where the processor finds them.  Either descriptor may be NULL. */
static void use(struct ct *c, int rank, uintptr_t at, char *host, void *desc, struct fid_mr *mr)
{
	struct { uint64_t addr, key; } mine = { at + 2 * BIG, fi_mr_key(mr) }, theirs;
	static const size_t sizes[] = { 8, BIG };
	void *from = (void *)at, *to = (void *)(at + BIG);

	ct_swap(c, &mine, &theirs, sizeof mine);
	for (int i = 0; i < 2; i++) {
		size_t n = sizes[i];
		unsigned own = 10 * rank + i, other = 10 * !rank + i;

		ct_fill(host, n, own);
		OK(fi_recv(c->ep, to, n, desc, c->peer, CTX(0)));
		ct_barrier(c);
		POST(c, fi_send(c->ep, from, n, desc, c->peer, CTX(1)));
		ct_sent(c, CTX(1));
		ct_recvd(c, CTX(0), n);
		CHECK(ct_same(host + BIG, n, other));
		POST(c, fi_write(c->ep, from, n, desc, c->peer, theirs.addr, theirs.key, CTX(2)));
		ct_sent(c, CTX(2));
		POST(c, fi_read(c->ep, to, n, desc, c->peer, theirs.addr, theirs.key, CTX(3)));
		ct_sent(c, CTX(3));
		CHECK(ct_same(host + BIG, n, own));
		/* a read comes after the write before it */
		ct_barrier(c);
		CHECK(ct_same(host + 2 * BIG, n, other));
		ct_barrier(c);
	}
}
static void done(struct ct *c, struct fid_mr *mr)
{
	ct_barrier(c);
	OK(fi_close(&c->ep->fid));
	c->ep = NULL;
	OK(fi_close(&mr->fid));
	ct_close(c);
}

static void not_on_demand(int rank)
{
	struct ct c = { 0 };
	struct fake *f = with_odp(0);
	char *b = mapped(4096), line[4000] = "";
	int sent[2];

	(void)rank;
	setenv("FI_LOG_LEVEL", "warn", 1);
	CHECK(!pipe(sent) && dup2(sent[1], 2) == 2);
	open_domain(&c, &rma);
	CHECK(read(sent[0], line, sizeof line - 1) > 0);
	if (!strstr(line, "FI_VERBS_USE_ODP"))
		FAIL("it logs: %s", line);
	f->pinned = 0;
	OK(fi_close(&reg(&c, b, 4096, FI_REMOTE_READ)->fid));
	OK(fi_close(&reg(&c, b, 4096, FI_SEND)->fid));
	EQ(f->pinned, 2);
	EQ(f->on_demand + f->whole, 0);
	ct_close(&c);
}

static void not_wanted(int rank)
{
	struct ct c = { 0 };
	struct fake *f = with_odp(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);

	(void)rank;
	setenv("FI_VERBS_USE_ODP", "0", 1);
	open_domain(&c, &rma);
	OK(fi_close(&reg(&c, mapped(4096), 4096, FI_REMOTE_READ)->fid));
	EQ(f->on_demand + f->whole, 0);
	CHECK(f->pinned > 0);
	ct_close(&c);
}

static void on_demand(int rank)
{
	struct ct c;
	struct fake *f = with_odp(IBV_ODP_SUPPORT);
	char *b = mapped(ALL);
	struct fid_mr *mr, *own;

	ct_open(&c, &rma);
	EQ(f->on_demand + f->whole, 0);
	f->pinned = 0;
	mr = reg(&c, b, ALL, ACCESS);
	EQ(f->on_demand, 1);
	CHECK(f->access & IBV_ACCESS_REMOTE_WRITE);
	/* the device does not report that atomic operations may find pages missing */
	CHECK(!(f->access & IBV_ACCESS_REMOTE_ATOMIC));
	own = reg(&c, b, ALL, FI_SEND | FI_RECV);
	EQ(f->on_demand, 2);
	EQ(f->pinned, 0);
	use(&c, rank, (uintptr_t)b, b, fi_mr_desc(own), mr);
	EQ(f->pinned, 0);
	OK(fi_close(&own->fid));
	done(&c, mr);
}

static void whole(int rank)
{
	struct ct c;
	struct fake *f = with_odp(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	char *b = mapped(ALL);
	struct fid_mr *mr, *own;

	f->arena = b;
	f->arena_len = ALL;
	ct_open(&c, &rma);
	if (!strncmp(c.info->domain_attr->name, "siw", 3)) {
		/* peers could write to all of it */
		EQ(f->whole, 0);
		SKIP("iWARP has it not");
	}
	EQ(f->whole, 1);
	CHECK(!(f->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
	f->pinned = 0;
	own = reg(&c, b, ALL, FI_SEND | FI_RECV);
	EQ(f->on_demand, 0);
	EQ(fi_mr_key(own), FI_KEY_NOTAVAIL);
	mr = reg(&c, b, ALL, ACCESS);
	EQ(f->on_demand, 1);
	CHECK(fi_mr_desc(mr) != fi_mr_desc(own));
	use(&c, rank, (uintptr_t)b, b, fi_mr_desc(own), mr);
	/* without a descriptor as well */
	use(&c, rank, (uintptr_t)b, b, NULL, mr);
	EQ(f->pinned + f->on_demand, 1);
	EQ(f->whole, 1);
	OK(fi_close(&own->fid));
	done(&c, mr);
}

static int offered(const struct ct_opt *o, struct fi_info **info)
{
	struct fi_info *h = ct_hints(o);
	int r = fi_getinfo(CT_VERSION, ct_node(o), "0", FI_SOURCE, h, info);

	fi_freeinfo(h);
	return r;
}
static struct fi_mr_attr of_file(const struct fi_mr_dmabuf *file)
{
	struct fi_mr_attr a = { .dmabuf = file, .iov_count = 1, .access = ACCESS };

	return a;
}

static void no_dmabuf(int rank)
{
	struct ct c = { 0 };
	struct fi_info *info;
	struct fid_mr *mr;
	struct fi_mr_dmabuf file = { .fd = 0, .len = 4096 };
	struct fi_mr_attr a = of_file(&file);

	(void)rank;
	EQ(fake()->has_dmabuf, 0);
	ERR(offered(&hmem, &info), FI_ENODATA);
	open_domain(&c, &rma);
	EQ(c.info->domain_attr->mr_mode & FI_MR_HMEM, 0);
	CHECK(c.info->tx_attr->inject_size > 0);
	ERR(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &mr), FI_EBADFLAGS);
	ct_close(&c);
}

static void what_is_offered(int rank)
{
	struct fi_info *info;
	struct ct_opt o = hmem;
	struct ct c = { 0 };
	size_t n = sizeof(int);
	int way = FI_HMEM_P2P_REQUIRED, now = -1;

	(void)rank;
	with_dmabuf();
	OK(offered(&hmem, &info));
	CHECK(info->caps & FI_HMEM && info->tx_attr->caps & FI_HMEM && info->rx_attr->caps & FI_HMEM);
	CHECK(info->domain_attr->mr_mode & FI_MR_HMEM);
	CHECK(!(info->caps & FI_ATOMIC));
	EQ(info->tx_attr->inject_size, 0);
	fi_freeinfo(info);
	o.mr_mode = NULL;
	ERR(offered(&o, &info), FI_ENODATA);
	o = hmem;
	o.caps |= FI_ATOMIC;
	ERR(offered(&o, &info), FI_ENODATA);
	/* without a request for it nothing of it is visible, for any other capabilities */
	o.caps = FI_MSG | FI_RMA;
	OK(offered(&o, &info));
	CHECK(!(info->caps & FI_HMEM) && !(info->domain_attr->mr_mode & FI_MR_HMEM));
	CHECK(info->tx_attr->inject_size > 0);
	fi_freeinfo(info);
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &info));
	for (struct fi_info *i = info; i; i = i->next)
		CHECK(!(i->caps & FI_HMEM) && !(i->domain_attr->mr_mode & FI_MR_HMEM));
	fi_freeinfo(info);

	open_ep(&c, &hmem);
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &now, &n));
	EQ(now, FI_HMEM_P2P_ENABLED);
	OK(set(&c, FI_OPT_FI_HMEM_P2P, &way, sizeof way));
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &now, &n));
	EQ(now, FI_HMEM_P2P_REQUIRED);
	way = FI_HMEM_P2P_DISABLED;
	ERR(set(&c, FI_OPT_FI_HMEM_P2P, &way, sizeof way), FI_EOPNOTSUPP);
	way = 77;
	ERR(set(&c, FI_OPT_FI_HMEM_P2P, &way, sizeof way), FI_EINVAL);
	ERR(set(&c, FI_OPT_FI_HMEM_P2P, &way, 1), FI_EINVAL);
	ct_close(&c);
	/* without FI_HMEM there are no such options */
	open_ep(&c, &rma);
	ERR(set(&c, FI_OPT_FI_HMEM_P2P, &way, sizeof way), FI_ENOPROTOOPT);
	ERR(set(&c, FI_OPT_CUDA_API_PERMITTED, &no, 1), FI_ENOPROTOOPT);
	ct_close(&c);
}

static void not_allowed(int rank)
{
	struct fi_info *info;

	(void)rank;
	with_dmabuf();
	setenv("FI_HMEM_DISABLE_P2P", "1", 1);
	ERR(offered(&hmem, &info), FI_ENODATA);
}

/* The messages of an endpoint with FI_HMEM in the system's memory: nothing is copied. */
static void in_system(struct ct *c, int rank)
{
	char *b = mapped(ALL);
	struct fid_mr *mr = reg(c, b, ALL, ACCESS);

	use(c, rank, (uintptr_t)b, b, fi_mr_desc(mr), mr);
	ERR(fi_inject(c->ep, b, 1, c->peer), FI_EMSGSIZE);
	ct_barrier(c);
	OK(fi_close(&mr->fid));
}

static void dmabuf(int rank)
{
	struct ct c;
	struct fake *f = with_dmabuf();
	struct fake_memory *m = of_accelerator("libcuda.so.1");
	struct fi_mr_dmabuf file = { .fd = m->fd, .offset = m->addr % 4096, .len = ALL };
	struct fi_mr_attr a = of_file(&file);
	struct fid_mr *mr, *bad;

	/* the address alone has no meaning */
	file.base_addr = (void *)(m->addr - file.offset);
	ct_open(&c, &hmem);
	OK(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &mr));
	EQ(f->dmabuf, 1);
	EQ(f->offset, file.offset);
	EQ(f->iova, m->addr);
	EQ(f->len, ALL);
	CHECK(!(f->access & IBV_ACCESS_ON_DEMAND));
	use(&c, rank, m->addr, m->host, fi_mr_desc(mr), mr);
	in_system(&c, rank);
	/* a region for our own use needs no key */
	a.access = FI_SEND;
	OK(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &bad));
	EQ(fi_mr_key(bad), FI_KEY_NOTAVAIL);
	OK(fi_close(&bad->fid));
	/* not open, not all there, nothing */
	file.fd = 999;
	ERR(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &bad), EBADF);
	file.fd = m->fd;
	file.len = 2 * ALL;
	ERR(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &bad), FI_EINVAL);
	a.dmabuf = NULL;
	ERR(fi_mr_regattr(c.domain, &a, FI_MR_DMABUF, &bad), FI_EINVAL);
	done(&c, mr);
}

static int files(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}
static void device_memory(int rank, const char *library, enum fi_hmem_iface iface)
{
	struct ct c;
	struct fake *f = with_dmabuf();
	struct fake_memory *m = of_accelerator(library);
	struct iovec v = { (void *)m->addr, ALL };
	struct fi_mr_attr a = { .mr_iov = &v, .iov_count = 1, .access = ACCESS, .iface = iface };
	struct fid_mr *mr, *own, *bad;
	int before;

	ct_open(&c, &hmem);
	before = files();
	OK(fi_mr_regattr(c.domain, &a, 0, &mr));
	EQ(f->dmabuf, 1);
	EQ(f->offset, m->addr % 4096);
	EQ(f->iova, m->addr);
	/* the file that was handed out is closed, the region stays */
	EQ(files(), before);
	EQ(m->exported, 1);
	EQ(m->closed, iface == FI_HMEM_ROCR);
	if (iface == FI_HMEM_CUDA) {
		OK(set(&c, FI_OPT_CUDA_API_PERMITTED, &no, 1));
		ERR(set(&c, FI_OPT_CUDA_API_PERMITTED, &no, 0), FI_EINVAL);
	}
	use(&c, rank, m->addr, m->host, fi_mr_desc(mr), mr);
	in_system(&c, rank);
	/* memory outside every accelerator; and memory allocated by one on the host */
	v.iov_base = mapped(4096);
	v.iov_len = 4096;
	ERR(fi_mr_regattr(c.domain, &a, 0, &bad), FI_EINVAL);
	f->pinned = 0;
	OK(fi_mr_regattr(c.domain, &a, FI_HMEM_HOST_ALLOC, &own));
	EQ(f->pinned, 1);
	OK(fi_close(&own->fid));
	a.iface = FI_HMEM_ZE;
	ERR(fi_mr_regattr(c.domain, &a, 0, &bad), FI_EOPNOTSUPP);
	a.iface = FI_HMEM_SYSTEM;
	OK(fi_mr_regattr(c.domain, &a, 0, &own));
	OK(fi_close(&own->fid));
	done(&c, mr);
}
static void cuda(int rank)
{
	device_memory(rank, "libcuda.so.1", FI_HMEM_CUDA);
}
static void rocr(int rank)
{
	device_memory(rank, "libhsa-runtime64.so.1", FI_HMEM_ROCR);
}

static void no_library(int rank)
{
	struct ct c = { 0 };
	struct iovec v = { mapped(4096), 4096 };
	struct fi_mr_attr a = { .mr_iov = &v, .iov_count = 1, .access = FI_SEND, .iface = FI_HMEM_CUDA };
	struct fid_mr *mr;
	char line[4000] = "";
	int sent[2];

	(void)rank;
	with_dmabuf();
	if (dlopen("libcuda.so.1", RTLD_NOW))
		SKIP("there is a libcuda.so.1");
	setenv("FI_LOG_LEVEL", "warn", 1);
	CHECK(!pipe(sent) && dup2(sent[1], 2) == 2);
	open_ep(&c, &hmem);
	ERR(fi_mr_regattr(c.domain, &a, 0, &mr), FI_ENOSYS);
	ERR(set(&c, FI_OPT_CUDA_API_PERMITTED, &no, 1), FI_EINVAL);
	CHECK(read(sent[0], line, sizeof line - 1) > 0);
	if (!strstr(line, "libcuda.so.1"))
		FAIL("it logs: %s", line);
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "without on-demand paging in the device memory is pinned, with a log line", not_on_demand, CT_MSG | CT_SOLO },
	{ "on-demand paging is not used without a request", not_wanted, CT_MSG | CT_SOLO },
	{ "regions are registered on demand, and messages, writes and reads go", on_demand, CT_MSG },
	{ "one region over all of the address space serves local memory only", whole, CT_MSG },
	{ "a device that takes no dma-bufs offers no memory of accelerators", no_dmabuf, CT_MSG | CT_SOLO },
	{ "memory of accelerators is offered only at request", what_is_offered, CT_MSG | CT_SOLO },
	{ "memory of accelerators is not offered where the user forbids it", not_allowed, CT_MSG | CT_SOLO },
	{ "a dma-buf is a region: messages, writes and reads find its bytes", dmabuf, CT_MSG },
	{ "CUDA's memory is found by its library and never touched", cuda, CT_MSG },
	{ "ROCR's memory is found by its library and never touched", rocr, CT_MSG },
	{ "memory of an accelerator without its library is refused, and the log names that", no_library, CT_MSG | CT_SOLO },
};
CT_MAIN("memory", tests)
