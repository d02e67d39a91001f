/*
 * A strict stand-in for the HSA runtime (libhsa-runtime64.so.1): devices whose memory no processor can touch, and that
 * reach memory of the host only while it is locked.
 *
 * stub.h describes the memory and lists the settings, with ROCR for NAME.  An asynchronous copy takes place when a later
 * call finds it due, not before.  Copies have no order, other than by their signals: with ROCR_STUB_REORDER each second
 * copy is due later than the one after it.  A device does not report an access outside of its memory and of locked
 * memory, nor the use of a signal or a lock that was given back: as with hardware, the process ends.  A forked child has
 * no runtime.
 */
#define _GNU_SOURCE
#define STUB_NAME "ROCR"
#define RESULT hsa_status_t
#define RESULT_UNINITIALIZED HSA_STATUS_ERROR_NOT_INITIALIZED
#define RESULT_LOST HSA_STATUS_ERROR
#include "rocr_stub.h"
#include "stub.h"

/* Called when memory is freed. */
struct notifier {
	struct notifier *next;
	void *p, *data;
	void (*callback)(void *, void *);
};
static struct notifier *notifiers;

enum { CPU = 0x100, GPU = 0x200, CPU_POOL = 0x300, GPU_POOL = 0x400 };

struct signal {
	hsa_signal_value_t value;
	int pending;		/* copies under way */
};
struct op {
	struct op *next;
	void *dst;
	const void *src;
	size_t len;
	int64_t due;		/* in nanoseconds; INT64_MAX: never */
	int fails;
	struct signal *signal;
	struct locked *locked;
};
/* Memory of the host that devices reach, at an address that the processor does not. */
struct locked {
	struct locked *next;
	unsigned char *host;
	uintptr_t agent;
	size_t len;
	int pending;
};

/* The stand-in, and no runtime. */
const char rocr_is_stub = 1;

static struct op *ops;
static struct locked *locks;

static int is_gpu(hsa_agent_t agent)
{
	return agent.handle >= GPU && agent.handle < (uint64_t)GPU + devices;
}

/* Makes the copies that are due. */
static void run(void)
{
	int64_t now = now_ns();

	for (struct op **at = &ops, *op; (op = *at);) {
		if (op->due > now) {
			at = &op->next;
			continue;
		}
		if (!op->fails)
			memcpy(op->dst, op->src, op->len);
		op->signal->pending--;
		if (op->locked)
			op->locked->pending--;
		op->signal->value = op->fails ? -1 : op->signal->value - 1;
		*at = op->next;
		free(op);
	}
}

hsa_status_t hsa_init(void)
{
	pthread_mutex_lock(&lock);
	count(__func__);
	if (initialized && initialized != getpid())
		return leave(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	if (!initialized) {
		read_devices();
		read_settings();
		initialized = getpid();
	}
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_shut_down(void)
{
	ENTER();
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_status_string(hsa_status_t status, const char **text)
{
	switch (status) {
	case HSA_STATUS_SUCCESS: *text = "HSA_STATUS_SUCCESS"; break;
	case HSA_STATUS_INFO_BREAK: *text = "HSA_STATUS_INFO_BREAK"; break;
	case HSA_STATUS_ERROR: *text = "HSA_STATUS_ERROR"; break;
	case HSA_STATUS_ERROR_INVALID_ARGUMENT: *text = "HSA_STATUS_ERROR_INVALID_ARGUMENT"; break;
	case HSA_STATUS_ERROR_INVALID_ALLOCATION: *text = "HSA_STATUS_ERROR_INVALID_ALLOCATION"; break;
	case HSA_STATUS_ERROR_INVALID_AGENT: *text = "HSA_STATUS_ERROR_INVALID_AGENT"; break;
	case HSA_STATUS_ERROR_INVALID_SIGNAL: *text = "HSA_STATUS_ERROR_INVALID_SIGNAL"; break;
	case HSA_STATUS_ERROR_OUT_OF_RESOURCES: *text = "HSA_STATUS_ERROR_OUT_OF_RESOURCES"; break;
	case HSA_STATUS_ERROR_NOT_INITIALIZED: *text = "HSA_STATUS_ERROR_NOT_INITIALIZED"; break;
	default: return HSA_STATUS_ERROR_INVALID_ARGUMENT;
	}
	return HSA_STATUS_SUCCESS;
}
/* Without the lock, since the callback makes calls. */
hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data)
{
	hsa_status_t r = leave(enter(__func__));

	for (int i = -1; i < devices && !r; i++)
		r = callback((hsa_agent_t){ i < 0 ? CPU : (uint64_t)GPU + i }, data);
	return r;
}
hsa_status_t hsa_agent_get_info(hsa_agent_t agent, unsigned attribute, void *value)
{
	ENTER();
	NEED(agent.handle == CPU || is_gpu(agent), HSA_STATUS_ERROR_INVALID_AGENT);
	switch (attribute) {
	case HSA_AGENT_INFO_NAME:
		snprintf(value, 64, "stub %d", (int)(agent.handle & 0xff));
		return leave(HSA_STATUS_SUCCESS);
	case HSA_AGENT_INFO_DEVICE:
		*(uint32_t *)value = is_gpu(agent) ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU;
		return leave(HSA_STATUS_SUCCESS);
	case HSA_AMD_AGENT_INFO_UUID:	/* the first device has none */
		if (agent.handle == GPU)
			strcpy(value, "GPU-XX");
		else
			sprintf(value, "GPU-%016x", (unsigned)agent.handle);
		return leave(HSA_STATUS_SUCCESS);
	case HSA_AMD_AGENT_INFO_BDFID:
		*(uint32_t *)value = (agent.handle & 0xff) << 8;
		return leave(HSA_STATUS_SUCCESS);
	case HSA_AMD_AGENT_INFO_DOMAIN:
		*(uint32_t *)value = 1;
		return leave(HSA_STATUS_SUCCESS);
	default:
		return leave(HSA_STATUS_ERROR_INVALID_ARGUMENT);
	}
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data)
{
	hsa_status_t r = leave(enter(__func__));

	if (r)
		return r;
	if (agent.handle == CPU)
		return callback((hsa_amd_memory_pool_t){ CPU_POOL }, data);
	return is_gpu(agent) ? callback((hsa_amd_memory_pool_t){ agent.handle - GPU + GPU_POOL }, data) : HSA_STATUS_ERROR_INVALID_AGENT;
}
hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool, unsigned attribute, void *value)
{
	ENTER();
	(void)pool;
	switch (attribute) {
	case HSA_AMD_MEMORY_POOL_INFO_SEGMENT:
		*(uint32_t *)value = HSA_AMD_SEGMENT_GLOBAL;
		return leave(HSA_STATUS_SUCCESS);
	case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED:
		*(bool *)value = true;
		return leave(HSA_STATUS_SUCCESS);
	default:
		return leave(HSA_STATUS_ERROR_INVALID_ARGUMENT);
	}
}
hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t pool, size_t len, uint32_t flags, void **p)
{
	struct range *r;

	ENTER();
	NEED(len && !flags, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	if (pool.handle == CPU_POOL) {
		*p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		NEED(*p != MAP_FAILED, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
		note(*p, len, ALLOCATED_HOST, 0)->mapped = len;
		return leave(HSA_STATUS_SUCCESS);
	}
	NEED(pool.handle >= GPU_POOL && pool.handle < (uint64_t)GPU_POOL + devices, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	r = new_memory(len, (int)(pool.handle - GPU_POOL));
	NEED(r, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	*p = (void *)r->base;
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_amd_register_deallocation_callback(void *p, void (*callback)(void *, void *), void *data)
{
	struct range *r;
	struct notifier *n;

	ENTER();
	r = range_at((uintptr_t)p, 0);
	NEED(r && r->base == (uintptr_t)p && callback, HSA_STATUS_ERROR_INVALID_ALLOCATION);
	n = calloc(1, sizeof *n);
	NEED(n, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	*n = (struct notifier){ notifiers, p, data, callback };
	notifiers = n;
	return leave(HSA_STATUS_SUCCESS);
}
/* Those of this memory, once each, without the lock. */
static void notify(void *p)
{
	struct notifier *due = NULL, *n;

	pthread_mutex_lock(&lock);
	for (struct notifier **at = &notifiers; (n = *at);) {
		if (n->p != p) {
			at = &n->next;
			continue;
		}
		*at = n->next;
		n->next = due;
		due = n;
	}
	pthread_mutex_unlock(&lock);
	while ((n = due)) {
		due = n->next;
		n->callback(n->p, n->data);
		free(n);
	}
}
hsa_status_t hsa_amd_memory_pool_free(void *p)
{
	struct range *r;

	notify(p);
	ENTER();
	if ((r = forget((uintptr_t)p, ALLOCATED_HOST))) {
		munmap(p, r->mapped);
		free(r);
		return leave(HSA_STATUS_SUCCESS);
	}
	r = forget((uintptr_t)p, OF_DEVICE);
	NEED(r, HSA_STATUS_ERROR_INVALID_ALLOCATION);
	end_memory(r);
	return leave(HSA_STATUS_SUCCESS);
}
/* A handle of 32 bytes: struct stub_handle in fewer. */
struct short_handle {
	uint32_t magic;
	int32_t pid;
	int16_t fd, device;
	uint32_t id;
	uint64_t at, len;
};
_Static_assert(sizeof(struct short_handle) == sizeof(hsa_amd_ipc_memory_t), "a handle");
hsa_status_t hsa_amd_ipc_memory_create(void *p, size_t len, hsa_amd_ipc_memory_t *handle)
{
	struct stub_handle h;
	struct short_handle s;
	struct range *r;

	ENTER();
	r = range_at((uintptr_t)p, 0);
	NEED(handle && r && r->base == (uintptr_t)p && r->len == len, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	NEED(handle_of(r->base, &h), HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	s = (struct short_handle){ (uint32_t)HANDLE_MAGIC, h.pid, (int16_t)h.fd, (int16_t)h.device, (uint32_t)h.id, h.at, h.len };
	memcpy(handle, &s, sizeof s);
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_amd_ipc_memory_attach(const hsa_amd_ipc_memory_t *handle, size_t len, uint32_t n, const hsa_agent_t *agents, void **p)
{
	struct short_handle s;
	struct range *r;

	ENTER();
	NEED(handle && p && !n == !agents, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	memcpy(&s, handle, sizeof s);
	NEED(s.magic == (uint32_t)HANDLE_MAGIC && s.len == len, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	r = open_handle(&(struct stub_handle){ HANDLE_MAGIC, s.len, s.at, s.id, s.pid, s.fd, s.device, { 0 } });
	NEED(r, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	*p = (void *)r->base;
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_amd_ipc_memory_detach(void *p)
{
	ENTER();
	run();
	KEEP_OPEN(range_at((uintptr_t)p, 0));
	NEED(close_handle((uintptr_t)p), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	return leave(HSA_STATUS_SUCCESS);
}

/* For an address that it does not know it answers success, and a type. */
hsa_status_t hsa_amd_pointer_info(const void *p, hsa_amd_pointer_info_t *info, void *(*alloc)(size_t), uint32_t *n, hsa_agent_t **agents)
{
	hsa_amd_pointer_info_t answer = { .size = sizeof answer };
	struct range *r;

	ENTER();
	(void)alloc;
	NEED(p && info && info->size && !n && !agents, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	if ((r = range_at((uintptr_t)p, 0))) {
		answer.type = r->opened ? HSA_EXT_POINTER_TYPE_IPC : HSA_EXT_POINTER_TYPE_HSA;
		answer.agentBaseAddress = answer.hostBaseAddress = (void *)r->base;
		answer.sizeInBytes = r->len;
		answer.agentOwner.handle = r->host == OF_DEVICE ? (uint64_t)GPU + r->device : CPU;
	}
	for (struct locked *l = locks; l && !r; l = l->next)
		if ((uintptr_t)p - (uintptr_t)l->host < l->len || (uintptr_t)p - l->agent < l->len) {
			answer.type = HSA_EXT_POINTER_TYPE_LOCKED;
			answer.agentBaseAddress = (void *)l->agent;
			answer.hostBaseAddress = l->host;
			answer.sizeInBytes = l->len;
			answer.agentOwner.handle = CPU;
		}
	if (answer.size > info->size)
		answer.size = info->size;
	memcpy(info, &answer, answer.size);
	return leave(HSA_STATUS_SUCCESS);
}

hsa_status_t hsa_amd_memory_lock(void *host, size_t len, hsa_agent_t *agents, int n, void **agent)
{
	size_t offset = (uintptr_t)host % PAGE;
	struct locked *l;

	ENTER();
	NEED(host && len && agent && !agents == !n, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	NEED(!range_near((uintptr_t)host, len), HSA_STATUS_ERROR_INVALID_ARGUMENT);
	l = calloc(1, sizeof *l);
	NEED(l, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	*l = (struct locked){ .next = locks, .host = host, .len = len };
	l->agent = (uintptr_t)trap(offset + len);
	NEED(l->agent, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	l->agent += offset;
	locks = l;
	*agent = (void *)l->agent;
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_amd_memory_unlock(void *host)
{
	ENTER();
	run();
	for (struct locked **at = &locks, *l; (l = *at); at = &l->next)
		if (l->host == host) {
			if (l->pending)
				fault("memory unlocked during a copy");
			*at = l->next;
			munmap((void *)((l->agent & ~(PAGE - 1)) - GUARD), l->agent % PAGE + l->len + 2 * GUARD);
			free(l);
			return leave(HSA_STATUS_SUCCESS);
		}
	return leave(HSA_STATUS_ERROR_INVALID_ARGUMENT);
}

hsa_status_t hsa_signal_create(hsa_signal_value_t value, uint32_t n, const hsa_agent_t *consumers, hsa_signal_t *signal)
{
	struct signal *s;

	ENTER();
	(void)consumers;
	NEED(signal && !n, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	s = calloc(1, sizeof *s);
	NEED(s, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	s->value = value;
	signal->handle = (uintptr_t)s;
	return leave(HSA_STATUS_SUCCESS);
}
hsa_status_t hsa_signal_destroy(hsa_signal_t signal)
{
	struct signal *s = (void *)(uintptr_t)signal.handle;

	ENTER();
	NEED(s, HSA_STATUS_ERROR_INVALID_SIGNAL);
	if (s->pending)
		fault("a signal destroyed during its copy");
	free(s);
	return leave(HSA_STATUS_SUCCESS);
}
hsa_signal_value_t hsa_signal_load_scacquire(hsa_signal_t signal)
{
	struct signal *s = (void *)(uintptr_t)signal.handle;
	hsa_signal_value_t value;

	enter(__func__);
	run();
	value = s->value;
	leave(HSA_STATUS_SUCCESS);
	return value;
}
void hsa_signal_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value)
{
	struct signal *s = (void *)(uintptr_t)signal.handle;

	enter(__func__);
	if (s->pending)
		fault("a signal stored during its copy");
	s->value = value;
	leave(HSA_STATUS_SUCCESS);
}

/* The address at which this file reaches an end of a copy, as a device does. */
static unsigned char *end_of(uintptr_t at, hsa_agent_t agent, size_t len, struct locked **locked)
{
	struct range *r = range_at(at, len);

	if (is_gpu(agent)) {
		if (!r || r->host != OF_DEVICE || r->device != (int)(agent.handle - GPU))
			fault("access outside of the memory of a device");
		return r->bytes + (at - r->base);
	}
	for (struct locked *l = locks; l; l = l->next)
		if (at - l->agent < l->len && len <= l->len - (at - l->agent)) {
			*locked = l;
			return l->host + (at - l->agent);
		}
	fault("access of a device to memory of the host that is not locked");
	return NULL;
}
hsa_status_t hsa_amd_memory_async_copy(void *dst, hsa_agent_t dst_agent, const void *src, hsa_agent_t src_agent, size_t len,
				       uint32_t n, const hsa_signal_t *dependencies, hsa_signal_t signal)
{
	struct op *op;
	long number;

	ENTER();
	(void)dependencies;
	NEED(dst && src && signal.handle && !n, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	NEED(is_gpu(dst_agent) || is_gpu(src_agent), HSA_STATUS_ERROR_INVALID_AGENT);
	count(!is_gpu(dst_agent) ? "copies to the host" : is_gpu(src_agent) ? "copies between devices" : "copies to a device");
	op = calloc(1, sizeof *op);
	NEED(op, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
	op->dst = end_of((uintptr_t)dst, dst_agent, len, &op->locked);
	op->src = end_of((uintptr_t)src, src_agent, len, &op->locked);
	op->len = len;
	op->signal = (void *)(uintptr_t)signal.handle;
	if (op->signal->value != 1 || op->signal->pending)
		fault("a signal of two copies");
	number = ++copies;
	if (lose_at && number >= lose_at) {
		lost = 1;
		free(op);
		return leave(HSA_STATUS_ERROR);
	}
	if (fail_at == number && fails_at_call) {
		free(op);
		return leave(HSA_STATUS_ERROR_INVALID_ALLOCATION);
	}
	op->fails = fail_at == number;
	op->due = due_of(number, len);
	op->signal->pending++;
	if (op->locked)
		op->locked->pending++;
	op->next = ops;
	ops = op;
	return leave(HSA_STATUS_SUCCESS);
}
/* Any direction, at once, by the kind of each address: for the program's own copies. */
hsa_status_t hsa_memory_copy(void *dst, const void *src, size_t len)
{
	void *from, *to;

	ENTER();
	from = reach_any(src, len);
	to = reach_any(dst, len);
	NEED(from && to, HSA_STATUS_ERROR_INVALID_ARGUMENT);
	memmove(to, from, len);
	return leave(HSA_STATUS_SUCCESS);
}
