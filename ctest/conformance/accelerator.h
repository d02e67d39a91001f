/*
 * Memory of an accelerator, by calls of its own library as a program makes them.  CT_HMEM names the interface: cuda (the
 * default), vmm (CUDA with memory of cuMemCreate), rocr, ze, or several, of which the first is used.  Either with a device, or with a stand-in for its library
 * (ctest/hmem).
 */
#ifndef CT_ACCELERATOR_H
#define CT_ACCELERATOR_H
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One kind of memory; calls return 0, or an error of the library. */
struct acc {
	const char *name;
	const char *stub;	/* the name in the settings of the stand-in */
	const char *library;	/* that the provider loads */
	enum fi_hmem_iface iface;
	int (*load)(void);	/* no accelerator: -1 */
	int (*allocate)(void **p, size_t n);
	int (*release)(void *p);
	int (*copy)(void *dst, const void *src, size_t n);	/* in any direction, and at once */
};
#define ACC_SYM(library, call, name) ((*(void **)&(call) = dlsym(library, name)) ? 0 : -1)

/* CUDA, by the runtime library: libcudart.so. */
static int (*acc_cuda_malloc)(void **, size_t);
static int (*acc_cuda_free)(void *);
static int (*acc_cuda_memcpy)(void *, const void *, size_t, int);
static inline int acc_cuda_load(void)
{
	void *l = dlopen("libcudart.so", RTLD_NOW);

	return !l || ACC_SYM(l, acc_cuda_malloc, "cudaMalloc") || ACC_SYM(l, acc_cuda_free, "cudaFree") || ACC_SYM(l, acc_cuda_memcpy, "cudaMemcpy") ? -1 : 0;
}
static inline int acc_cuda_allocate(void **p, size_t n) { return acc_cuda_malloc(p, n); }
static inline int acc_cuda_release(void *p) { return acc_cuda_free(p); }
/* cudaMemcpyDefault: by the addresses */
static inline int acc_cuda_copy(void *dst, const void *src, size_t n) { return acc_cuda_memcpy(dst, src, n, 4); }

/* CUDA, memory with addresses of its own (cuMemCreate), shared by descriptors. */
struct acc_vmm_prop { int type, handles, location, device; void *none; unsigned char flags[8]; };
struct acc_vmm_access { int location, device, flags; };
static int (*acc_vmm_granularity)(size_t *, const struct acc_vmm_prop *, int);
static int (*acc_vmm_create)(unsigned long long *, size_t, const struct acc_vmm_prop *, unsigned long long);
static int (*acc_vmm_drop)(unsigned long long);
static int (*acc_vmm_reserve)(unsigned long long *, size_t, size_t, unsigned long long, unsigned long long);
static int (*acc_vmm_end)(unsigned long long, size_t);
static int (*acc_vmm_map)(unsigned long long, size_t, size_t, unsigned long long, unsigned long long);
static int (*acc_vmm_unmap)(unsigned long long, size_t);
static int (*acc_vmm_access)(unsigned long long, size_t, const struct acc_vmm_access *, size_t);
static int (*acc_vmm_range)(unsigned long long *, size_t *, unsigned long long);
static const struct acc_vmm_prop acc_vmm_prop = { .type = 1, .handles = 1, .location = 1 };
static inline int acc_vmm_load(void)
{
	void *l = dlopen("libcuda.so.1", RTLD_NOW), *p;

	if (!l || acc_cuda_load() || ACC_SYM(l, acc_vmm_granularity, "cuMemGetAllocationGranularity") || ACC_SYM(l, acc_vmm_create, "cuMemCreate") ||
	    ACC_SYM(l, acc_vmm_drop, "cuMemRelease") || ACC_SYM(l, acc_vmm_reserve, "cuMemAddressReserve") || ACC_SYM(l, acc_vmm_end, "cuMemAddressFree") ||
	    ACC_SYM(l, acc_vmm_map, "cuMemMap") || ACC_SYM(l, acc_vmm_unmap, "cuMemUnmap") || ACC_SYM(l, acc_vmm_access, "cuMemSetAccess") ||
	    ACC_SYM(l, acc_vmm_range, "cuMemGetAddressRange_v2"))
		return -1;
	/* a current context */
	return acc_cuda_malloc(&p, 1) || acc_cuda_free(p) ? -1 : 0;
}
static inline int acc_vmm_allocate(void **p, size_t n)
{
	static const struct acc_vmm_access access = { .location = 1, .flags = 3 };
	unsigned long long memory, at;
	size_t unit = 0;

	if (acc_vmm_granularity(&unit, &acc_vmm_prop, 0))
		return -1;
	n = (n + unit - 1) / unit * unit;
	if (acc_vmm_create(&memory, n, &acc_vmm_prop, 0) || acc_vmm_reserve(&at, n, 0, 0, 0) || acc_vmm_map(at, n, 0, memory, 0) || acc_vmm_access(at, n, &access, 1))
		return -1;
	*p = (void *)(uintptr_t)at;
	return acc_vmm_drop(memory);
}
static inline int acc_vmm_release(void *p)
{
	unsigned long long at = (uintptr_t)p;
	size_t n = 0;

	return acc_vmm_range(&at, &n, at) || acc_vmm_unmap(at, n) || acc_vmm_end(at, n) ? -1 : 0;
}

/* ROCm, by the HSA runtime: the first pool of the first GPU. */
struct acc_hsa { uint64_t handle; };
static int (*acc_hsa_init)(void);
static int (*acc_hsa_agents)(int (*)(struct acc_hsa, void *), void *);
static int (*acc_hsa_agent_info)(struct acc_hsa, unsigned, void *);
static int (*acc_hsa_pools)(struct acc_hsa, int (*)(struct acc_hsa, void *), void *);
static int (*acc_hsa_pool_info)(struct acc_hsa, unsigned, void *);
static int (*acc_hsa_allocate)(struct acc_hsa, size_t, uint32_t, void **);
static int (*acc_hsa_free)(void *);
static int (*acc_hsa_copy)(void *, const void *, size_t);
static struct acc_hsa acc_hsa_pool;
static inline int acc_hsa_take_pool(struct acc_hsa pool, void *found)
{
	unsigned char allowed = 0;	/* HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, a bool */
	uint32_t segment = 1;		/* HSA_AMD_MEMORY_POOL_INFO_SEGMENT: 0 is global */

	if (acc_hsa_pool_info(pool, 0, &segment) || segment || acc_hsa_pool_info(pool, 5, &allowed) || !allowed)
		return 0;
	*(struct acc_hsa *)found = pool;
	return 1;	/* HSA_STATUS_INFO_BREAK */
}
static inline int acc_hsa_take_agent(struct acc_hsa agent, void *found)
{
	uint32_t type = 0;	/* HSA_AGENT_INFO_DEVICE: HSA_DEVICE_TYPE_GPU */

	return acc_hsa_agent_info(agent, 17, &type) || type != 1 ? 0 : acc_hsa_pools(agent, acc_hsa_take_pool, found);
}
static inline int acc_rocr_load(void)
{
	void *l = dlopen("libhsa-runtime64.so.1", RTLD_NOW);

	if (!l || ACC_SYM(l, acc_hsa_init, "hsa_init") || ACC_SYM(l, acc_hsa_agents, "hsa_iterate_agents") || ACC_SYM(l, acc_hsa_agent_info, "hsa_agent_get_info") ||
	    ACC_SYM(l, acc_hsa_pools, "hsa_amd_agent_iterate_memory_pools") || ACC_SYM(l, acc_hsa_pool_info, "hsa_amd_memory_pool_get_info") ||
	    ACC_SYM(l, acc_hsa_allocate, "hsa_amd_memory_pool_allocate") || ACC_SYM(l, acc_hsa_free, "hsa_amd_memory_pool_free") || ACC_SYM(l, acc_hsa_copy, "hsa_memory_copy"))
		return -1;
	return acc_hsa_init() || acc_hsa_agents(acc_hsa_take_agent, &acc_hsa_pool) != 1 ? -1 : 0;
}
static inline int acc_rocr_allocate(void **p, size_t n) { return acc_hsa_allocate(acc_hsa_pool, n, 0, p); }
static inline int acc_rocr_release(void *p) { return acc_hsa_free(p); }
static inline int acc_rocr_copy(void *dst, const void *src, size_t n) { return n ? acc_hsa_copy(dst, src, n) : 0; }

/* Level Zero: the first device of the first driver. */
struct acc_ze_context { unsigned stype; const void *next; uint32_t flags; };
struct acc_ze_memory { unsigned stype; const void *next; uint32_t flags, ordinal; };
struct acc_ze_queue { unsigned stype; const void *next; uint32_t ordinal, index, flags; unsigned mode, priority; };
static int (*acc_ze_init)(uint32_t);
static int (*acc_ze_drivers)(uint32_t *, void **);
static int (*acc_ze_devices)(void *, uint32_t *, void **);
static int (*acc_ze_context_create)(void *, const struct acc_ze_context *, void **);
static int (*acc_ze_list_create)(void *, void *, const struct acc_ze_queue *, void **);
static int (*acc_ze_alloc)(void *, const struct acc_ze_memory *, size_t, size_t, void *, void **);
static int (*acc_ze_free)(void *, void *);
static int (*acc_ze_append_copy)(void *, void *, const void *, size_t, void *, uint32_t, void **);
static void *acc_ze_device, *acc_ze_context, *acc_ze_list;
static inline int acc_ze_load(void)
{
	struct acc_ze_context context = { .stype = 0xd };	/* ZE_STRUCTURE_TYPE_CONTEXT_DESC */
	/* ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC, ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS */
	struct acc_ze_queue queue = { .stype = 0xe, .mode = 1 };
	void *l = dlopen("libze_loader.so.1", RTLD_NOW), *driver = NULL;
	uint32_t drivers = 1, devices = 1;

	if (acc_ze_list)
		return 0;
	if (!l || ACC_SYM(l, acc_ze_init, "zeInit") || ACC_SYM(l, acc_ze_drivers, "zeDriverGet") || ACC_SYM(l, acc_ze_devices, "zeDeviceGet") ||
	    ACC_SYM(l, acc_ze_context_create, "zeContextCreate") || ACC_SYM(l, acc_ze_list_create, "zeCommandListCreateImmediate") || ACC_SYM(l, acc_ze_alloc, "zeMemAllocDevice") ||
	    ACC_SYM(l, acc_ze_free, "zeMemFree") || ACC_SYM(l, acc_ze_append_copy, "zeCommandListAppendMemoryCopy"))
		return -1;
	if (acc_ze_init(0) || acc_ze_drivers(&drivers, &driver) || !drivers || acc_ze_devices(driver, &devices, &acc_ze_device) || !devices)
		return -1;
	return acc_ze_context_create(driver, &context, &acc_ze_context) || acc_ze_list_create(acc_ze_context, acc_ze_device, &queue, &acc_ze_list) ? -1 : 0;
}
static inline int acc_ze_allocate(void **p, size_t n)
{
	struct acc_ze_memory memory = { .stype = 0x15 };	/* ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC */

	return acc_ze_alloc(acc_ze_context, &memory, n, 64, acc_ze_device, p);
}
static inline int acc_ze_release(void *p) { return acc_ze_free(acc_ze_context, p); }
static inline int acc_ze_copy(void *dst, const void *src, size_t n) { return n ? acc_ze_append_copy(acc_ze_list, dst, src, n, NULL, 0, NULL) : 0; }

static const struct acc acc_kinds[] = {
	{ "cuda", "CUDA", "libcuda.so", FI_HMEM_CUDA, acc_cuda_load, acc_cuda_allocate, acc_cuda_release, acc_cuda_copy },
	{ "vmm", "CUDA", "libcuda.so", FI_HMEM_CUDA, acc_vmm_load, acc_vmm_allocate, acc_vmm_release, acc_cuda_copy },
	{ "rocr", "ROCR", "libhsa-runtime64.so", FI_HMEM_ROCR, acc_rocr_load, acc_rocr_allocate, acc_rocr_release, acc_rocr_copy },
	{ "ze", "ZE", "libze_loader.so", FI_HMEM_ZE, acc_ze_load, acc_ze_allocate, acc_ze_release, acc_ze_copy },
};
enum { ACC_KINDS = sizeof acc_kinds / sizeof *acc_kinds };

/* The interface at this index in CT_HMEM, or NULL. */
static inline const struct acc *acc_of(int index)
{
	const char *names = getenv("CT_HMEM"), *at = names && *names ? names : "cuda";

	for (; index && at; index--)
		at = (at = strchr(at, ' ')) ? at + 1 : NULL;
	for (int i = 0; at && i < ACC_KINDS; i++) {
		size_t n = strlen(acc_kinds[i].name);

		if (!strncmp(at, acc_kinds[i].name, n) && (!at[n] || at[n] == ' '))
			return &acc_kinds[i];
	}
	return NULL;
}
static inline int acc_fill(const struct acc *acc, void *dst, int value, size_t n)
{
	void *bytes = malloc(n ? n : 1);
	int r = bytes ? acc->copy(dst, memset(bytes, value, n), n) : -1;

	free(bytes);
	return r;
}

#endif
