/*
 * Preloaded, it makes of a software RDMA device one that has on-demand paging and
 * registers dma-bufs, as far as libibverbs shows: regions are really registered, of
 * pages that are there.
 */
#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

enum { PAGE = 4096, MAPPED = 64 };

struct fake fake;
/* FAKE_DMABUF=1: for programs that do not know of this. */
__attribute__((constructor)) static void read_settings(void) { fake.has_dmabuf = getenv("FAKE_DMABUF") != NULL; }
static struct { struct ibv_mr *mr; void *at; size_t len; } mapped[MAPPED];
static __typeof__(((struct verbs_context *)0)->query_device_ex) real_query;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int query(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		 struct ibv_device_attr_ex *attr, size_t size)
{
	int ret = real_query(context, input, attr, size);

	if (!ret && size >= offsetof(struct ibv_device_attr_ex, completion_timestamp_mask)) {
		attr->odp_caps.general_caps = fake.odp_general;
		attr->odp_caps.per_transport_caps.rc_odp_caps = fake.odp_rc;
		attr->odp_caps.per_transport_caps.ud_odp_caps = fake.odp_ud;
	}
	return ret;
}

/* ibv_query_device_ex is an inline of verbs.h that calls what the context has. */
struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = REAL(ibv_open_device)(device);
	struct verbs_context *extended = context ? verbs_get_ctx_op(context, query_device_ex) : NULL;

	if (extended && extended->query_device_ex != query) {
		real_query = extended->query_device_ex;
		extended->query_device_ex = query;
	}
	return context;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	fake.access = access;
	if (!(access & IBV_ACCESS_ON_DEMAND)) {
		fake.pinned++;
		return REAL(ibv_reg_mr)(pd, addr, len, access);
	}
	if (!(fake.odp_general & IBV_ODP_SUPPORT)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!addr && len == SIZE_MAX) {
		if (!(fake.odp_general & IBV_ODP_SUPPORT_IMPLICIT)) {
			errno = EINVAL;
			return NULL;
		}
		fake.whole++;
		addr = fake.arena;
		len = fake.arena_len;
	} else {
		fake.on_demand++;
	}
	return REAL(ibv_reg_mr)(pd, addr, len, access & ~IBV_ACCESS_ON_DEMAND);
}

/* As the kernel does, but for any file, from where it stands.  It is mapped where the accelerator has it (siw
 * knows a region by the processor's address alone), and then closed to the processor, but
 * on siw, which copies what is small in the caller's name: the device has the pages. */
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	struct stat st;
	uint64_t before = offset % PAGE, from;
	size_t whole = (len + before + PAGE - 1) / PAGE * PAGE;
	char *at;
	struct ibv_mr *mr;

	if (!fake.has_dmabuf) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (fstat(fd, &st))
		return NULL;
	from = offset + (uint64_t)lseek(fd, 0, SEEK_CUR);
	if (iova % PAGE != before || from + len > (uint64_t)st.st_size) {
		errno = EINVAL;
		return NULL;
	}
	at = mmap((void *)(uintptr_t)(iova - before), whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)(from - before));
	if (at == MAP_FAILED)
		return NULL;
	mr = REAL(ibv_reg_mr)(pd, at + before, len, access);
	if (!mr || (pd->context->device->transport_type != IBV_TRANSPORT_IWARP && mprotect(at, whole, PROT_NONE)))
		return NULL;
	fake.dmabuf++;
	fake.access = access;
	fake.offset = offset;
	fake.iova = iova;
	fake.len = len;
	for (int i = 0; i < MAPPED; i++)
		if (!mapped[i].mr) {
			mapped[i].mr = mr;
			mapped[i].at = at;
			mapped[i].len = whole;
			return mr;
		}
	abort();
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	for (int i = 0; i < MAPPED; i++)
		if (mapped[i].mr == mr) {
			mapped[i].mr = NULL;
			mmap(mapped[i].at, mapped[i].len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		}
	return REAL(ibv_dereg_mr)(mr);
}
