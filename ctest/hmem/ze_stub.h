/*
 * The part of Level Zero that the stand-in has: names, numbers and arguments as the Level Zero specification states them.
 */
#ifndef ZE_STUB_H
#define ZE_STUB_H
#include <stddef.h>
#include <stdint.h>

typedef enum {
	ZE_RESULT_SUCCESS = 0,
	ZE_RESULT_NOT_READY = 1,
	ZE_RESULT_ERROR_DEVICE_LOST = 0x70000001,
	ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY = 0x70000002,
	ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY = 0x70000003,
	ZE_RESULT_ERROR_UNINITIALIZED = 0x78000001,
	ZE_RESULT_ERROR_INVALID_ARGUMENT = 0x78000004,
	ZE_RESULT_ERROR_INVALID_NULL_POINTER = 0x78000007
} ze_result_t;
enum {
	ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES = 0x3,
	ZE_STRUCTURE_TYPE_CONTEXT_DESC = 0xd,
	ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC = 0xe,
	ZE_STRUCTURE_TYPE_EVENT_POOL_DESC = 0x10,
	ZE_STRUCTURE_TYPE_EVENT_DESC = 0x11,
	ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC = 0x15,
	ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES = 0x17
};
enum { ZE_DEVICE_TYPE_GPU = 1, ZE_MEMORY_TYPE_UNKNOWN = 0, ZE_MEMORY_TYPE_DEVICE = 2 };
enum { ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS = 1, ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS = 2, ZE_EVENT_POOL_FLAG_HOST_VISIBLE = 1 };

typedef struct _ze_driver_handle_t *ze_driver_handle_t;
typedef struct _ze_device_handle_t *ze_device_handle_t;
typedef struct _ze_context_handle_t *ze_context_handle_t;
typedef struct _ze_command_list_handle_t *ze_command_list_handle_t;
typedef struct _ze_event_pool_handle_t *ze_event_pool_handle_t;
typedef struct _ze_event_handle_t *ze_event_handle_t;
typedef struct { char data[64]; } ze_ipc_mem_handle_t;
typedef struct { unsigned stype; const void *pNext; uint32_t flags; } ze_context_desc_t;
typedef struct { unsigned stype; const void *pNext; uint32_t ordinal, index, flags; unsigned mode, priority; } ze_command_queue_desc_t;
typedef struct { unsigned stype; const void *pNext; uint32_t flags, count; } ze_event_pool_desc_t;
typedef struct { unsigned stype; const void *pNext; uint32_t index, signal, wait; } ze_event_desc_t;
typedef struct { unsigned stype; const void *pNext; uint32_t flags, ordinal; } ze_device_mem_alloc_desc_t;
typedef struct { unsigned stype; void *pNext; unsigned type; uint64_t id, pageSize; } ze_memory_allocation_properties_t;
typedef struct {	/* the numbers are left out */
	unsigned stype;
	void *pNext;
	unsigned type;
	uint32_t others[19];
	unsigned char uuid[16];
	char name[256];
} ze_device_properties_t;

#endif
