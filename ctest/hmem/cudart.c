/*
 * The part of CUDA's runtime library (libcudart.so) that programs of this suite and fabtests call, over the
 * stand-in for the driver (cuda.c).  A thread's first call gives it the primary context of its device.
 */
#include "cuda_stub.h"
#include <stdint.h>

typedef int cudaError_t;

static _Thread_local int chosen;

static int ready(void)
{
	static CUcontext primary[8];
	CUcontext ctx;
	int r = cuInit(0);

	if (r)
		return r;
	if (!primary[chosen] && (r = cuDevicePrimaryCtxRetain(&primary[chosen], chosen)))
		return r;
	if ((r = cuCtxGetCurrent(&ctx)))
		return r;
	return ctx == primary[chosen] ? 0 : (int)cuCtxSetCurrent(primary[chosen]);
}
#define READY() do { int r_ = ready(); if (r_) return r_; } while (0)

cudaError_t cudaGetDeviceCount(int *n)
{
	READY();
	return cuDeviceGetCount(n);
}
cudaError_t cudaSetDevice(int device)
{
	int n;

	READY();
	if (cuDeviceGetCount(&n) || device < 0 || device >= n)
		return 101;
	chosen = device;
	return ready();
}
cudaError_t cudaGetDevice(int *device)
{
	READY();
	*device = chosen;
	return 0;
}
cudaError_t cudaMalloc(void **p, size_t len)
{
	CUdeviceptr at = 0;
	int r;

	READY();
	r = cuMemAlloc_v2(&at, len);
	*p = (void *)(uintptr_t)at;
	return r;
}
cudaError_t cudaFree(void *p)
{
	READY();
	return p ? cuMemFree_v2((CUdeviceptr)(uintptr_t)p) : 0;
}
cudaError_t cudaMallocHost(void **p, size_t len)
{
	READY();
	return cuMemHostAlloc(p, len, 0);
}
cudaError_t cudaFreeHost(void *p)
{
	READY();
	return p ? cuMemFreeHost(p) : 0;
}
cudaError_t cudaHostRegister(void *p, size_t len, unsigned flags)
{
	READY();
	return cuMemHostRegister_v2(p, len, flags);
}
cudaError_t cudaHostUnregister(void *p)
{
	READY();
	return cuMemHostUnregister(p);
}
cudaError_t cudaMemcpy(void *dst, const void *src, size_t len, int kind)
{
	(void)kind;
	READY();
	return len ? cuMemcpy((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, len) : 0;
}
cudaError_t cudaMemset(void *dst, int value, size_t len)
{
	READY();
	return len ? cuMemsetD8_v2((CUdeviceptr)(uintptr_t)dst, (unsigned char)value, len) : 0;
}
cudaError_t cudaDeviceSynchronize(void)
{
	READY();
	return 0;
}
const char *cudaGetErrorName(cudaError_t r)
{
	const char *name;

	cuGetErrorName((CUresult)r, &name);
	return name;
}
const char *cudaGetErrorString(cudaError_t r)
{
	return cudaGetErrorName(r);
}
