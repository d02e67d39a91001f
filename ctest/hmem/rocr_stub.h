/*
 * The part of the HSA runtime that the stand-in has: names, numbers and arguments as the HSA runtime specification and
 * AMD's extensions to it (hsa_ext_amd.h) state them.
 */
#ifndef ROCR_STUB_H
#define ROCR_STUB_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
	HSA_STATUS_SUCCESS = 0,
	HSA_STATUS_INFO_BREAK = 1,
	HSA_STATUS_ERROR = 0x1000,
	HSA_STATUS_ERROR_INVALID_ARGUMENT = 0x1001,
	HSA_STATUS_ERROR_INVALID_ALLOCATION = 0x1003,
	HSA_STATUS_ERROR_INVALID_AGENT = 0x1004,
	HSA_STATUS_ERROR_INVALID_SIGNAL = 0x1006,
	HSA_STATUS_ERROR_OUT_OF_RESOURCES = 0x1008,
	HSA_STATUS_ERROR_NOT_INITIALIZED = 0x100b
} hsa_status_t;

enum { HSA_AGENT_INFO_NAME = 0, HSA_AGENT_INFO_DEVICE = 17, HSA_AMD_AGENT_INFO_BDFID = 0xA006, HSA_AMD_AGENT_INFO_DOMAIN = 0xA00F, HSA_AMD_AGENT_INFO_UUID = 0xA011 };
enum { HSA_DEVICE_TYPE_CPU = 0, HSA_DEVICE_TYPE_GPU = 1 };
enum { HSA_AMD_SEGMENT_GLOBAL = 0 };
enum { HSA_AMD_MEMORY_POOL_INFO_SEGMENT = 0, HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED = 5 };
enum { HSA_EXT_POINTER_TYPE_UNKNOWN = 0, HSA_EXT_POINTER_TYPE_HSA = 1, HSA_EXT_POINTER_TYPE_LOCKED = 2, HSA_EXT_POINTER_TYPE_IPC = 4 };

typedef struct { uint64_t handle; } hsa_agent_t;
typedef struct { uint64_t handle; } hsa_signal_t;
typedef struct { uint64_t handle; } hsa_amd_memory_pool_t;
typedef int64_t hsa_signal_value_t;
typedef struct { uint32_t handle[8]; } hsa_amd_ipc_memory_t;
typedef struct {
	uint32_t size;
	uint32_t type;
	void *agentBaseAddress;
	void *hostBaseAddress;
	size_t sizeInBytes;
	void *userData;
	hsa_agent_t agentOwner;
	uint32_t global_flags;
} hsa_amd_pointer_info_t;

#endif
