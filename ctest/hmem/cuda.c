/*
 * A strict stand-in for the CUDA driver (libcuda.so.1): devices whose memory no processor can touch.
 *
 * Memory of a device is address space without any right (PROT_NONE).  Its bytes are in another mapping, and only
 * the copies of this file reach them: any other access ends the program with SIGSEGV.  Asynchronous copies are
 * queued on their stream, and take place when a later call finds them due, not before: what reads the target too
 * early, or reuses the source, has wrong bytes.  Copies need a current context in the calling thread, and a
 * forked child has no driver.
 *
 * stub.h lists the settings, with CUDA for NAME.  Copies of a stream take place in order, so a copy is due after those
 * before it, and CUDA_STUB_HANG has those behind it on its stream hang as well.  Without a device cuInit answers so.
 */
#define _GNU_SOURCE
#define STUB_NAME "CUDA"
#define RESULT CUresult
#define RESULT_UNINITIALIZED CUDA_ERROR_NOT_INITIALIZED
#define RESULT_LOST CUDA_ERROR_CONTEXT_IS_DESTROYED
#include "cuda_stub.h"
#include "stub.h"

struct CUctx_st {
	int device, used;
};
struct op {
	struct op *next;
	void *dst;
	const void *src;
	size_t len;
	int64_t due;		/* in nanoseconds; INT64_MAX: never */
	int fails;
	struct CUevent_st *event;	/* to be done, in place of a copy */
	unsigned long long round;
};
struct CUstream_st {
	struct op *first, **last;
	struct CUctx_st *ctx;
	int64_t due;
	int failed;
};
struct CUevent_st {
	struct CUctx_st *ctx;
	unsigned long long recorded, done;
	int failed;
};

/* The stand-in, and no driver; also for memory of cuMemCreate (conformance/accelerator.h). */
const char cuda_is_stub = 1, vmm_is_stub = 1;

static struct CUctx_st contexts[MAX_DEVICES];
static struct CUstream_st null_stream;
static _Thread_local struct CUctx_st *current;


/* The streams that copies were queued on. */
static struct CUstream_st *streams[256];

/* Makes the copies of a stream that are due. */
static void run(struct CUstream_st *s, int64_t now)
{
	while (s->first && s->first->due <= now) {
		struct op *op = s->first;

		if (op->event) {
			/* a failure is told once, by the event behind the copy */
			op->event->failed = s->failed;
			s->failed = 0;
			op->event->done = op->round;
		} else if (op->fails) {
			s->failed = 1;
		} else {
			memcpy(op->dst, op->src, op->len);
		}
		if (!(s->first = op->next))
			s->last = &s->first;
		free(op);
	}
}
static void add(struct CUstream_st *s, struct op op)
{
	struct op *new = malloc(sizeof *new);
	int64_t now = now_ns();

	if (!new)
		abort();
	if (s->due < now)
		s->due = now;
	if (op.due == INT64_MAX)
		s->due = INT64_MAX;
	else if (!op.event && s->due != INT64_MAX)
		s->due += delay_ns + (rate ? (int64_t)(op.len * 1000 / rate) : 0);
	op.due = s->due;
	op.next = NULL;
	*new = op;
	if (!s->last)
		s->last = &s->first;
	*s->last = new;
	s->last = &new->next;
	run(s, now);
}
static struct CUstream_st *stream(struct CUstream_st *s)
{
	return s ? s : &null_stream;
}
/* A copy of the library's, which is counted. */
static CUresult copy_async(void *dst, const void *src, size_t len, struct CUstream_st *s)
{
	struct op op = { .dst = dst, .src = src, .len = len };
	long n = ++copies;

	if (lose_at && n >= lose_at)
		return lost = 1, CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (fail_at == n) {
		if (fails_at_call)
			return CUDA_ERROR_INVALID_VALUE;
		op.fails = 1;
	}
	if (hang_at == n)
		op.due = INT64_MAX;
	add(stream(s), op);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned flags)
{
	pthread_mutex_lock(&lock);
	count(__func__);
	if (flags)
		return leave(CUDA_ERROR_INVALID_VALUE);
	read_devices();
	if (devices <= 0)
		return leave(CUDA_ERROR_NO_DEVICE);
	if (initialized && initialized != getpid())
		return leave(CUDA_ERROR_NOT_INITIALIZED);
	if (!initialized) {
		for (int i = 0; i < devices; i++)
			contexts[i].device = i;
		read_settings();
		initialized = getpid();
	}
	return leave(CUDA_SUCCESS);
}
CUresult cuDriverGetVersion(int *version)
{
	*version = 12040;
	return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *n)
{
	ENTER();
	*n = devices;
	return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER();
	NEED(ordinal >= 0 && ordinal < devices, CUDA_ERROR_INVALID_DEVICE);
	*device = ordinal;
	return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices, CUDA_ERROR_INVALID_DEVICE);
	snprintf(name, len, "stub %d", device);
	return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices, CUDA_ERROR_INVALID_DEVICE);
	(void)attribute;
	*value = 0;
	return leave(CUDA_SUCCESS);
}
CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices, CUDA_ERROR_INVALID_DEVICE);
	snprintf(id, len, "0000:%02x:00.0", device + 1);
	return leave(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices, CUDA_ERROR_INVALID_DEVICE);
	contexts[device].used++;
	*ctx = &contexts[device];
	return leave(CUDA_SUCCESS);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices && contexts[device].used > 0, CUDA_ERROR_INVALID_CONTEXT);
	contexts[device].used--;
	return leave(CUDA_SUCCESS);
}
CUresult cuCtxSetCurrent(CUcontext ctx)
{
	ENTER();
	current = ctx;
	return leave(CUDA_SUCCESS);
}
CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	ENTER();
	*ctx = current;
	return leave(CUDA_SUCCESS);
}
CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	*device = current->device;
	return leave(CUDA_SUCCESS);
}
static _Thread_local struct CUctx_st *pushed[16];
static _Thread_local int depth;
CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	ENTER();
	NEED(ctx && depth < 16, CUDA_ERROR_INVALID_VALUE);
	pushed[depth++] = current;
	current = ctx;
	return leave(CUDA_SUCCESS);
}
CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	/* also of a lost context: the thread's own state */
	pthread_mutex_lock(&lock);
	count(__func__);
	NEED(depth > 0, CUDA_ERROR_INVALID_CONTEXT);
	if (ctx)
		*ctx = current;
	current = pushed[--depth];
	return leave(CUDA_SUCCESS);
}

static CUresult attribute_of(void *to, CUpointer_attribute attribute, CUdeviceptr p, int several)
{
	struct range *r = range_at(p, 0);

	/* registered and allocated memory of the host is known, any other is not */
	if (!r && !several)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)to = r && !r->host ? &contexts[r->device] : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)to = !r ? 0 : r->host || (r->managed && r->managed++ % 2) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)to = r ? r->id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)to = r && r->managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)to = !r || r->host == REGISTERED_HOST ? -2 : r->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)to = r ? r->base : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)to = r ? r->len : 0;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}
CUresult cuPointerGetAttribute(void *to, CUpointer_attribute attribute, CUdeviceptr p)
{
	ENTER();
	return leave(attribute_of(to, attribute, p, 0));
}
/* For an address of the host that it does not know it answers success, and zeros. */
CUresult cuPointerGetAttributes(unsigned n, CUpointer_attribute *attributes, void **to, CUdeviceptr p)
{
	CUresult r = CUDA_SUCCESS;

	ENTER();
	for (unsigned i = 0; i < n && !r; i++)
		r = attribute_of(to[i], attributes[i], p, 1);
	return leave(r);
}
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr p)
{
	ENTER();
	(void)value;
	(void)attribute;
	return leave(range_at(p, 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *len, CUdeviceptr p)
{
	struct range *r;

	ENTER();
	r = range_at(p, 0);
	NEED(r && !r->host, CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = r->base;
	if (len)
		*len = r->len;
	return leave(CUDA_SUCCESS);
}
/* The file for a network device stands at the first byte (ctest/vm/fake/verbs.c). */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t len, int type, unsigned long long flags)
{
	struct range *r;
	size_t last;

	ENTER();
	NEED(setting("DMABUF"), CUDA_ERROR_NOT_SUPPORTED);
	/* whole pages, of which the last one may be part of the allocation */
	NEED(type == 1 && !flags && p % PAGE == 0 && len && len % PAGE == 0, CUDA_ERROR_INVALID_VALUE);
	r = range_at(p, 1);
	NEED(r && !r->host && r->at >= 0, CUDA_ERROR_INVALID_VALUE);
	last = (r->len + PAGE - 1) / PAGE * PAGE - (p - r->base);
	NEED(len <= last, CUDA_ERROR_INVALID_VALUE);
	NEED((*(int *)handle = file_at(r->at + (off_t)(p - r->base))) >= 0, CUDA_ERROR_OUT_OF_MEMORY);
	return leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t len)
{
	struct range *r;

	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(len, CUDA_ERROR_INVALID_VALUE);
	r = new_memory(len, current->device);
	NEED(r, CUDA_ERROR_OUT_OF_MEMORY);
	*p = r->base;
	return leave(CUDA_SUCCESS);
}
/* Memory that is the host's and the device's in turn: each question about its kind has another answer. */
CUresult cuMemAllocManaged(CUdeviceptr *p, size_t len, unsigned flags)
{
	size_t whole = (len + PAGE - 1) / PAGE * PAGE;
	struct range *r;
	void *base;

	ENTER();
	(void)flags;
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(len, CUDA_ERROR_INVALID_VALUE);
	base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(base != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
	r = note(base, len, OF_DEVICE, current->device);
	r->bytes = base;
	r->mapped = whole;
	r->managed = 1;
	*p = r->base;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemFree_v2(CUdeviceptr p)
{
	struct range *r;

	ENTER();
	r = range_at(p, 1);
	NEED(r && !r->opened && (r = forget(p, OF_DEVICE)), CUDA_ERROR_INVALID_VALUE);
	end_memory(r);
	return leave(CUDA_SUCCESS);
}
/* Memory for other processes.  A second open of the same memory gives the same address. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	ENTER();
	NEED(device >= 0 && device < devices, CUDA_ERROR_INVALID_DEVICE);
	memset(uuid, 0x40 + device, sizeof *uuid);
	return leave(CUDA_SUCCESS);
}
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p)
{
	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(handle_of(p, (struct stub_handle *)handle), CUDA_ERROR_INVALID_VALUE);
	return leave(CUDA_SUCCESS);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *p, CUipcMemHandle handle, unsigned flags)
{
	struct stub_handle h;
	struct range *r;

	ENTER();
	memcpy(&h, &handle, sizeof h);
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS && h.pid != getpid(), CUDA_ERROR_INVALID_VALUE);
	NEED((r = open_handle(&h)), CUDA_ERROR_INVALID_VALUE);
	*p = r->base;
	return leave(CUDA_SUCCESS);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	for (int i = 0; i < 256 && streams[i]; i++)
		for (struct op *op = streams[i]->first; op; op = op->next)
			keeps_open(range_at(p, 1), op->src, op->due);
	NEED(close_handle(p), CUDA_ERROR_INVALID_VALUE);
	return leave(CUDA_SUCCESS);
}

/*
 * Memory with addresses of its own.  Its bytes follow a page of the file that tells of them, at which an exported
 * descriptor stands.
 */
#define GRANULARITY (2UL << 20)
#define PHYSICAL_MAGIC 0x1bc0ffee5a5a4321ULL
struct physical {
	uint64_t magic, size;
	int device, shares;	/* shares: the kinds of handles that it was made for */
	off_t at;
	int fd;			/* of another process's file, -1: of this one's */
	int handles, mappings;
};
static struct reservation {
	struct reservation *next;
	uintptr_t base;
	size_t len;
} *reservations;

static struct physical *physical_of(CUmemGenericAllocationHandle handle) { return (struct physical *)(uintptr_t)handle; }
static void drop_physical(struct physical *m, int *references)
{
	--*references;
	if (!m->handles && m->fd >= 0) {
		close(m->fd);
		m->fd = -1;
	}
	if (!m->handles && !m->mappings)
		free(m);
}
CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *prop, int option)
{
	(void)prop, (void)option;
	*n = GRANULARITY;
	return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct physical *m, head = { .magic = PHYSICAL_MAGIC, .size = size, .fd = -1 };

	ENTER();
	NEED(!flags && size && size % GRANULARITY == 0 && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE,
	     CUDA_ERROR_INVALID_VALUE);
	NEED(prop->location.id >= 0 && prop->location.id < devices, CUDA_ERROR_INVALID_DEVICE);
	head.device = prop->location.id;
	head.shares = prop->requestedHandleTypes;
	head.at = extend(PAGE + size);
	NEED(head.at >= 0 && pwrite(arena, &head, sizeof head, head.at) == sizeof head, CUDA_ERROR_OUT_OF_MEMORY);
	NEED((m = malloc(sizeof *m)), CUDA_ERROR_OUT_OF_MEMORY);
	*m = head;
	m->handles = 1;
	*handle = (uintptr_t)m;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	ENTER();
	NEED(physical_of(handle)->handles > 0, CUDA_ERROR_INVALID_VALUE);
	drop_physical(physical_of(handle), &physical_of(handle)->handles);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemAddressReserve(CUdeviceptr *p, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
	struct reservation *new;
	void *base = NULL;

	ENTER();
	(void)alignment, (void)wanted;
	NEED(!flags && size && size % GRANULARITY == 0, CUDA_ERROR_INVALID_VALUE);
	if (freed_base && freed_len == size) {
		base = (void *)freed_base;
		freed_base = 0;
	}
	if (!base)
		base = trap(size);
	NEED(base && (new = malloc(sizeof *new)), CUDA_ERROR_OUT_OF_MEMORY);
	*new = (struct reservation){ reservations, (uintptr_t)base, size };
	reservations = new;
	*p = (uintptr_t)base;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemAddressFree(CUdeviceptr p, size_t size)
{
	struct reservation **at, *r;

	ENTER();
	for (at = &reservations; (r = *at) && r->base != p;)
		at = &r->next;
	NEED(r && r->len == size && !range_near(p, size), CUDA_ERROR_INVALID_VALUE);
	if (setting("REUSE")) {
		freed_base = p;
		freed_len = size;
	}
	*at = r->next;
	free(r);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemMap(CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct physical *m = physical_of(handle);
	struct reservation *at;
	struct range *r;

	ENTER();
	for (at = reservations; at && (p < at->base || p - at->base > at->len || size > at->len - (p - at->base));)
		at = at->next;
	NEED(at && !flags && !offset && size && size % GRANULARITY == 0 && m->magic == PHYSICAL_MAGIC && size <= m->size && !range_near(p, size), CUDA_ERROR_INVALID_VALUE);
	r = memory_of(m->fd < 0 ? arena : m->fd, m->at + (off_t)PAGE, size, (void *)(uintptr_t)p, m->device);
	NEED(r, CUDA_ERROR_OUT_OF_MEMORY);
	r->closed = 1;
	r->physical = m;
	r->opened = m->fd >= 0;
	m->mappings++;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemSetAccess(CUdeviceptr p, size_t size, const CUmemAccessDesc *access, size_t n)
{
	struct range *r;

	ENTER();
	r = range_at(p, size);
	NEED(r && r->physical && r->base == p && r->len == size, CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < n; i++) {
		NEED(access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_VALUE);
		NEED(access[i].location.id >= 0 && access[i].location.id < devices, CUDA_ERROR_INVALID_DEVICE);
		if (access[i].location.id == r->device)
			r->closed = 0;
	}
	return leave(CUDA_SUCCESS);
}
CUresult cuMemUnmap(CUdeviceptr p, size_t size)
{
	struct physical *m;
	struct range *r;

	ENTER();
	r = range_at(p, size);
	NEED(r && r->physical && r->base == p && r->len == size, CUDA_ERROR_INVALID_VALUE);
	m = r->physical;
	forget(p, OF_DEVICE);
	/* copies in progress keep the bytes of own memory */
	if (r->opened) {
		count("cuMemUnmap of another process");
		for (int i = 0; i < 256 && streams[i]; i++)
			for (struct op *op = streams[i]->first; op; op = op->next)
				keeps_open(r, op->src, op->due);
		munmap(r->bytes, r->mapped);
	}
	free(r);
	drop_physical(m, &m->mappings);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *p)
{
	struct range *r;

	ENTER();
	r = range_at((uintptr_t)p, 1);
	NEED(r && r->physical && !r->opened, CUDA_ERROR_INVALID_VALUE);
	((struct physical *)r->physical)->handles++;
	*handle = (uintptr_t)r->physical;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemExportToShareableHandle(void *to, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	struct physical *m = physical_of(handle);
	const char *no = setting("NO_IPC");

	ENTER();
	NEED(!(no && strcmp(no, "open")) && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && m->shares & type && !flags && m->fd < 0, CUDA_ERROR_INVALID_VALUE);
	NEED((*(int *)to = file_at(m->at)) >= 0, CUDA_ERROR_OUT_OF_MEMORY);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *from, int type)
{
	int fd = (int)(intptr_t)from;
	struct physical *m, head;
	const char *no = setting("NO_IPC");
	off_t at;

	ENTER();
	NEED(!(no && !strcmp(no, "open")) && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
	at = lseek(fd, 0, SEEK_CUR);
	NEED(at >= 0 && pread(fd, &head, sizeof head, at) == sizeof head && head.magic == PHYSICAL_MAGIC && head.at == at, CUDA_ERROR_INVALID_VALUE);
	NEED(head.device >= 0 && head.device < devices && (m = malloc(sizeof *m)), CUDA_ERROR_INVALID_VALUE);
	*m = head;
	m->handles = 1;
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	*handle = (uintptr_t)m;
	return leave(CUDA_SUCCESS);
}

CUresult cuMemHostAlloc(void **p, size_t len, unsigned flags)
{
	void *base;
	struct range *r;

	ENTER();
	(void)flags;
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(len, CUDA_ERROR_INVALID_VALUE);
	base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(base != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
	r = note(base, len, ALLOCATED_HOST, current->device);
	r->mapped = len;
	*p = base;
	return leave(CUDA_SUCCESS);
}
CUresult cuMemFreeHost(void *p)
{
	struct range *r;

	ENTER();
	r = forget((uintptr_t)p, ALLOCATED_HOST);
	NEED(r, CUDA_ERROR_INVALID_VALUE);
	munmap(p, r->mapped);
	free(r);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemHostRegister_v2(void *p, size_t len, unsigned flags)
{
	ENTER();
	(void)flags;
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(!range_near((uintptr_t)p, len), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	note(p, len, REGISTERED_HOST, current->device);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemHostUnregister(void *p)
{
	struct range *r;

	ENTER();
	r = forget((uintptr_t)p, REGISTERED_HOST);
	NEED(r, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	free(r);
	return leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *s, unsigned flags)
{
	ENTER();
	(void)flags;
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	*s = calloc(1, sizeof **s);
	NEED(*s, CUDA_ERROR_OUT_OF_MEMORY);
	(*s)->ctx = current;
	return leave(CUDA_SUCCESS);
}
CUresult cuStreamDestroy_v2(CUstream s)
{
	ENTER();
	run(s, INT64_MAX - 1);
	free(s);
	return leave(CUDA_SUCCESS);
}
static CUresult state(struct CUstream_st *s)
{
	run(s, now_ns());
	return s->first ? CUDA_ERROR_NOT_READY : s->failed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream s)
{
	ENTER();
	return leave(state(stream(s)));
}
CUresult cuStreamSynchronize(CUstream s)
{
	CUresult r;

	while ((r = cuStreamQuery(s)) == CUDA_ERROR_NOT_READY)
		usleep(100);
	return r;
}
CUresult cuEventCreate(CUevent *e, unsigned flags)
{
	ENTER();
	(void)flags;
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	*e = calloc(1, sizeof **e);
	NEED(*e, CUDA_ERROR_OUT_OF_MEMORY);
	(*e)->ctx = current;
	return leave(CUDA_SUCCESS);
}
CUresult cuEventDestroy_v2(CUevent e)
{
	ENTER();
	free(e);
	return leave(CUDA_SUCCESS);
}
CUresult cuEventRecord(CUevent e, CUstream s)
{
	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	NEED(e->ctx == current && (!s || s->ctx == current), CUDA_ERROR_INVALID_HANDLE);
	e->failed = 0;
	add(stream(s), (struct op){ .event = e, .round = ++e->recorded });
	return leave(CUDA_SUCCESS);
}
static void run_all_of(struct CUevent_st *e);
CUresult cuEventQuery(CUevent e)
{
	ENTER();
	run_all_of(e);
	return leave(e->done < e->recorded ? CUDA_ERROR_NOT_READY : e->failed ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}
CUresult cuEventSynchronize(CUevent e)
{
	CUresult r;

	while ((r = cuEventQuery(e)) == CUDA_ERROR_NOT_READY)
		usleep(100);
	return r;
}

static void remember(struct CUstream_st *s)
{
	for (int i = 0; i < 256; i++) {
		if (streams[i] == s)
			return;
		if (!streams[i]) {
			streams[i] = s;
			return;
		}
	}
}
static void run_all_of(struct CUevent_st *e)
{
	(void)e;
	for (int i = 0; i < 256 && streams[i]; i++)
		run(streams[i], now_ns());
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t len, CUstream s)
{
	void *from, *to;

	ENTER();
	NEED(current && (!s || s->ctx == current), CUDA_ERROR_INVALID_CONTEXT);
	from = reach((void *)src, len, 1);
	to = reach(dst, len, 0);
	NEED(from && to, CUDA_ERROR_INVALID_VALUE);
	remember(stream(s));
	return leave(copy_async(to, from, len, s));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t len, CUstream s)
{
	void *from, *to;

	ENTER();
	NEED(current && (!s || s->ctx == current), CUDA_ERROR_INVALID_CONTEXT);
	from = reach(src, len, 0);
	to = reach((void *)dst, len, 1);
	NEED(from && to, CUDA_ERROR_INVALID_VALUE);
	remember(stream(s));
	return leave(copy_async(to, from, len, s));
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t len, CUstream s)
{
	void *from, *to;

	ENTER();
	NEED(current && (!s || s->ctx == current), CUDA_ERROR_INVALID_CONTEXT);
	from = reach((void *)src, len, 1);
	to = reach((void *)dst, len, 1);
	NEED(from && to, CUDA_ERROR_INVALID_VALUE);
	remember(stream(s));
	return leave(copy_async(to, from, len, s));
}
/* Any direction, at once, by the kind of each address: for the program's own copies. */
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	void *from, *to;

	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	from = reach_any((void *)src, len);
	to = reach_any((void *)dst, len);
	NEED(from && to, CUDA_ERROR_INVALID_VALUE);
	memmove(to, from, len);
	return leave(CUDA_SUCCESS);
}
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t len)
{
	return cuMemcpy((CUdeviceptr)(uintptr_t)dst, src, len);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t len)
{
	return cuMemcpy(dst, (CUdeviceptr)(uintptr_t)src, len);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t len)
{
	return cuMemcpy(dst, src, len);
}
CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t len)
{
	void *to;

	ENTER();
	NEED(current, CUDA_ERROR_INVALID_CONTEXT);
	to = reach_any((void *)dst, len);
	NEED(to, CUDA_ERROR_INVALID_VALUE);
	memset(to, value, len);
	return leave(CUDA_SUCCESS);
}

CUresult cuGetErrorName(CUresult r, const char **name)
{
	switch (r) {
	case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
	case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
	case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
	case CUDA_ERROR_NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; break;
	case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
	case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
	case CUDA_ERROR_NOT_READY: *name = "CUDA_ERROR_NOT_READY"; break;
	case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
	case CUDA_ERROR_CONTEXT_IS_DESTROYED: *name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; break;
	default: *name = "CUDA_ERROR_UNKNOWN"; break;
	}
	return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult r, const char **text)
{
	return cuGetErrorName(r, text);
}
