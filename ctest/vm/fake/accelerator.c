/*
 * What the libraries of two accelerators have for the files behind their memory: built
 * as libcuda.so.1 and libhsa-runtime64.so.1.  The memory is a file's.
 */
#define _GNU_SOURCE
#include "fake.h"
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, START = 0x100, MOST = 16 };

static struct fake_memory memory[MOST];
static struct { uintptr_t start; size_t len; } of[MOST];

struct fake_memory *fake_alloc(size_t len)
{
	size_t whole = (START + len + PAGE - 1) / PAGE * PAGE;
	int i = 0;
	char *at;

	while (i < MOST && of[i].len)
		i++;
	if (i == MOST)
		return NULL;
	/* an address that nothing else gets, and that the processor cannot use */
	at = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return NULL;
	of[i].start = (uintptr_t)at;
	of[i].len = whole;
	memory[i].fd = memfd_create("accelerator", MFD_CLOEXEC);
	if (memory[i].fd < 0 || ftruncate(memory[i].fd, (off_t)whole))
		return NULL;
	at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, memory[i].fd, 0);
	if (at == MAP_FAILED)
		return NULL;
	memory[i].addr = of[i].start + START;
	memory[i].host = at + START;
	return &memory[i];
}

static int find(uintptr_t addr, size_t len)
{
	for (int i = 0; i < MOST; i++)
		if (of[i].len && addr >= of[i].start && addr - of[i].start + len <= of[i].len)
			return i;
	return -1;
}

/* The file begins with the range.  Only whole pages, and here those from the first on. */
int cuMemGetHandleForAddressRange(void *handle, unsigned long long addr, size_t len, int type, unsigned long long flags)
{
	int i = find(addr, len);

	if (type != 1 || flags || addr % PAGE || len % PAGE || i < 0 || addr != of[i].start)
		return 1;
	memory[i].exported++;
	*(int *)handle = dup(memory[i].fd);
	return 0;
}

/* The file is of the whole memory, and the range somewhere in it. */
uint32_t hsa_amd_portable_export_dmabuf(const void *ptr, size_t len, int *fd, uint64_t *offset)
{
	int i = find((uintptr_t)ptr, len);

	if (i < 0)
		return 0x1001;
	memory[i].exported++;
	*fd = dup(memory[i].fd);
	*offset = (uintptr_t)ptr - of[i].start;
	return 0;
}

uint32_t hsa_amd_portable_close_dmabuf(int fd)
{
	for (int i = 0; i < MOST; i++)
		if (memory[i].closed < memory[i].exported) {
			memory[i].closed++;
			return close(fd) ? 0x1000 : 0;
		}
	return 0x1001;
}
