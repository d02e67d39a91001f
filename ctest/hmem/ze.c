/*
 * A strict stand-in for the loader of Level Zero (libze_loader.so.1): devices whose memory no processor can touch.
 *
 * stub.h describes the memory and lists the settings, with ZE for NAME.  An asynchronous copy is appended to its immediate
 * command list, and takes place when a later call finds it due, not before.  Copies of a list have no order, other than by
 * their events: with ZE_STUB_REORDER each second copy is due later than the one after it.  A failing copy has the event
 * report the loss of the device.  A copy outside of the memory of a device, or an event of two copies, ends the process.
 * A forked child has no driver.
 */
#define _GNU_SOURCE
#define STUB_NAME "ZE"
#define RESULT ze_result_t
#define RESULT_UNINITIALIZED ZE_RESULT_ERROR_UNINITIALIZED
#define RESULT_LOST ZE_RESULT_ERROR_DEVICE_LOST
#include "ze_stub.h"
#include "stub.h"

struct _ze_driver_handle_t { int unused; };
struct _ze_device_handle_t { int number; };
struct _ze_context_handle_t { int unused; };
struct _ze_command_list_handle_t {
	struct _ze_device_handle_t *device;
	int synchronous;
};
struct _ze_event_pool_handle_t { uint32_t count; };
struct _ze_event_handle_t {
	enum { UNSIGNALED, PENDING, SIGNALED, FAILED } state;
};
struct op {
	struct op *next;
	void *dst;
	const void *src;
	size_t len;
	int64_t due;		/* in nanoseconds; INT64_MAX: never */
	int fails;
	struct _ze_event_handle_t *event;
};

/* The stand-in, and no driver. */
const char ze_is_stub = 1;

static struct _ze_driver_handle_t driver;
static struct _ze_device_handle_t all[MAX_DEVICES];
static struct op *ops;

#define NEED_TYPE(p, type) NEED((p) && (p)->stype == (type), ZE_RESULT_ERROR_INVALID_ARGUMENT)

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
		op->event->state = op->fails ? FAILED : SIGNALED;
		*at = op->next;
		free(op);
	}
}

ze_result_t zeInit(uint32_t flags)
{
	pthread_mutex_lock(&lock);
	count(__func__);
	(void)flags;
	if (initialized && initialized != getpid())
		return leave(ZE_RESULT_ERROR_UNINITIALIZED);
	if (!initialized) {
		read_devices();
		read_settings();
		for (int i = 0; i < MAX_DEVICES; i++)
			all[i].number = i;
		initialized = getpid();
	}
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeDriverGet(uint32_t *n, ze_driver_handle_t *drivers)
{
	ENTER();
	NEED(n, ZE_RESULT_ERROR_INVALID_NULL_POINTER);
	if (*n && drivers)
		drivers[0] = &driver;
	*n = 1;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeDeviceGet(ze_driver_handle_t of, uint32_t *n, ze_device_handle_t *to)
{
	ENTER();
	NEED(of == &driver && n, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (!*n || *n > (uint32_t)devices)
		*n = devices;
	for (uint32_t i = 0; to && i < *n; i++)
		to[i] = &all[i];
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeDeviceGetProperties(ze_device_handle_t device, ze_device_properties_t *properties)
{
	ENTER();
	NEED_TYPE(properties, ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES);
	properties->type = ZE_DEVICE_TYPE_GPU;
	memset(properties->others, 0, sizeof properties->others);
	memset(properties->uuid, 0x70 + device->number, sizeof properties->uuid);
	memset(properties->name, 0, sizeof properties->name);
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeContextCreate(ze_driver_handle_t of, const ze_context_desc_t *desc, ze_context_handle_t *context)
{
	ENTER();
	NEED(of == &driver && context, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED_TYPE(desc, ZE_STRUCTURE_TYPE_CONTEXT_DESC);
	*context = calloc(1, sizeof **context);
	return leave(*context ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
}

ze_result_t zeMemAllocDevice(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, size_t len, size_t alignment, ze_device_handle_t device, void **p)
{
	struct range *r;

	ENTER();
	NEED(context && len && alignment <= PAGE && device, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED_TYPE(desc, ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC);
	r = new_memory(len, device->number);
	NEED(r, ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
	*p = (void *)r->base;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeMemFree(ze_context_handle_t context, void *p)
{
	struct range *r;

	ENTER();
	r = forget((uintptr_t)p, OF_DEVICE);
	NEED(context && r, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	end_memory(r);
	return leave(ZE_RESULT_SUCCESS);
}
/* For an address that it does not know it answers success, and a type. */
ze_result_t zeMemGetAllocProperties(ze_context_handle_t context, const void *p, ze_memory_allocation_properties_t *properties, ze_device_handle_t *device)
{
	struct range *r;

	ENTER();
	NEED(context && p, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED_TYPE(properties, ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES);
	r = range_at((uintptr_t)p, 0);
	properties->type = r ? ZE_MEMORY_TYPE_DEVICE : ZE_MEMORY_TYPE_UNKNOWN;
	properties->id = r ? r->id : 0;
	properties->pageSize = r ? PAGE : 0;
	if (device)
		*device = r ? &all[r->device] : NULL;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeMemGetAddressRange(ze_context_handle_t context, const void *p, void **base, size_t *len)
{
	struct range *r;

	ENTER();
	r = range_at((uintptr_t)p, 0);
	NEED(context && r, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (base)
		*base = (void *)r->base;
	if (len)
		*len = r->len;
	return leave(ZE_RESULT_SUCCESS);
}

/*
 * A handle begins with a descriptor of the process that it is used in: another process puts that of its own copy of the
 * file there.  The descriptor is open until zeMemPutIpcHandle, also in children that execute another program.
 */
struct ze_handle {
	int32_t fd;
	char pad[4];
	uint64_t len, at, id;
	int32_t pid, device;
	uint64_t magic;
	char rest[16];
};
_Static_assert(sizeof(struct ze_handle) == sizeof(ze_ipc_mem_handle_t), "a handle");
ze_result_t zeMemGetIpcHandle(ze_context_handle_t context, const void *p, ze_ipc_mem_handle_t *handle)
{
	struct range *r;
	struct stub_handle h;
	struct ze_handle z = { 0 };

	ENTER();
	r = range_at((uintptr_t)p, 0);
	NEED(context && handle && r && r->base == (uintptr_t)p, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED(handle_of(r->base, &h), ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	z = (struct ze_handle){ .fd = dup(arena), .len = h.len, .at = h.at, .id = h.id, .pid = h.pid, .device = h.device, .magic = h.magic };
	NEED(z.fd >= 0, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	memcpy(handle, &z, sizeof z);
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeMemPutIpcHandle(ze_context_handle_t context, ze_ipc_mem_handle_t handle)
{
	struct ze_handle z;

	ENTER();
	memcpy(&z, &handle, sizeof z);
	NEED(context && z.magic == HANDLE_MAGIC && z.pid == getpid(), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (close(z.fd))
		fault("a handle put twice");
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeMemOpenIpcHandle(ze_context_handle_t context, ze_device_handle_t device, ze_ipc_mem_handle_t handle, uint32_t flags, void **p)
{
	struct ze_handle z;
	struct range *r;

	ENTER();
	memcpy(&z, &handle, sizeof z);
	NEED(context && device && p && !flags && z.device == device->number, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	r = open_part(z.fd, &(struct stub_handle){ z.magic, z.len, z.at, z.id, z.pid, z.fd, z.device, { 0 } });
	NEED(r, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	*p = (void *)r->base;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeMemCloseIpcHandle(ze_context_handle_t context, const void *p)
{
	ENTER();
	run();
	KEEP_OPEN(range_at((uintptr_t)p, 0));
	NEED(context && close_handle((uintptr_t)p), ZE_RESULT_ERROR_INVALID_ARGUMENT);
	return leave(ZE_RESULT_SUCCESS);
}

ze_result_t zeCommandListCreateImmediate(ze_context_handle_t context, ze_device_handle_t device, const ze_command_queue_desc_t *desc, ze_command_list_handle_t *list)
{
	ENTER();
	NEED(context && device, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED_TYPE(desc, ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC);
	NEED(!desc->ordinal && !desc->index, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	*list = calloc(1, sizeof **list);
	NEED(*list, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	(*list)->device = device;
	(*list)->synchronous = desc->mode == ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeEventPoolCreate(ze_context_handle_t context, const ze_event_pool_desc_t *desc, uint32_t n, ze_device_handle_t *of, ze_event_pool_handle_t *pool)
{
	ENTER();
	NEED(context && !n == !of, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	NEED_TYPE(desc, ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
	NEED(desc->count && desc->flags & ZE_EVENT_POOL_FLAG_HOST_VISIBLE, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	*pool = calloc(1, sizeof **pool);
	NEED(*pool, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	(*pool)->count = desc->count;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeEventCreate(ze_event_pool_handle_t pool, const ze_event_desc_t *desc, ze_event_handle_t *event)
{
	ENTER();
	NEED_TYPE(desc, ZE_STRUCTURE_TYPE_EVENT_DESC);
	NEED(pool && desc->index < pool->count, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	*event = calloc(1, sizeof **event);
	return leave(*event ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
}
ze_result_t zeEventHostReset(ze_event_handle_t event)
{
	ENTER();
	if (event->state == PENDING)
		fault("an event reset during its copy");
	event->state = UNSIGNALED;
	return leave(ZE_RESULT_SUCCESS);
}
ze_result_t zeEventQueryStatus(ze_event_handle_t event)
{
	ENTER();
	run();
	switch (event->state) {
	case SIGNALED:
		return leave(ZE_RESULT_SUCCESS);
	case FAILED:
		return leave(ZE_RESULT_ERROR_DEVICE_LOST);
	default:
		return leave(ZE_RESULT_NOT_READY);
	}
}

/* Memory of a device by its address, else of the host. */
static void *end_of(const void *p, size_t len)
{
	void *at = reach_any(p, len);

	if (!at)
		fault("a copy outside of the memory of a device");
	return at;
}
ze_result_t zeCommandListAppendMemoryCopy(ze_command_list_handle_t list, void *dst, const void *src, size_t len, ze_event_handle_t event, uint32_t n, ze_event_handle_t *waits)
{
	struct op *op;
	long number;

	ENTER();
	NEED(list && dst && src && !n && !waits, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	if (list->synchronous) {
		/* the program's own copies */
		memmove(end_of(dst, len), end_of(src, len), len);
		return leave(ZE_RESULT_SUCCESS);
	}
	if (!event || event->state != UNSIGNALED)
		fault("an event of two copies");
	{
		struct range *to = range_at((uintptr_t)dst, 0), *from = range_at((uintptr_t)src, 0);

		count(!to ? "copies to the host" : from ? "copies between devices" : "copies to a device");
	}
	number = ++copies;
	if (lose_at && number >= lose_at)
		return lost = 1, leave(ZE_RESULT_ERROR_DEVICE_LOST);
	NEED(fail_at != number || !fails_at_call, ZE_RESULT_ERROR_INVALID_ARGUMENT);
	op = calloc(1, sizeof *op);
	NEED(op, ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
	op->dst = end_of(dst, len);
	op->src = end_of(src, len);
	op->len = len;
	op->event = event;
	op->fails = fail_at == number;
	op->due = due_of(number, len);
	event->state = PENDING;
	op->next = ops;
	ops = op;
	return leave(ZE_RESULT_SUCCESS);
}
