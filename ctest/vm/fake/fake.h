/* What the stand-ins of this directory and the tests tell each other. */
#ifndef FAKE_H
#define FAKE_H
#include <stddef.h>
#include <stdint.h>

/* Of verbs.c, as the symbol "fake": a test sets what the device is to say before it
 * calls the library, and reads what the library did. */
struct fake {
	uint64_t odp_general;		/* struct ibv_odp_caps */
	uint32_t odp_rc, odp_ud;
	int has_dmabuf;			/* the device registers dma-bufs */
	void *arena;			/* what of the address space a region over all of it reaches */
	size_t arena_len;

	int pinned, on_demand, whole, dmabuf;	/* regions registered so far */
	int access;			/* of the last: IBV_ACCESS_... */
	uint64_t offset, iova, len;	/* of the last dma-buf */
};

/* Of accelerator.c: memory at an address that the processor cannot use. */
struct fake_memory {
	uintptr_t addr;			/* as the accelerator has it */
	char *host;			/* the same bytes for the processor */
	int fd;
	int exported, closed;		/* files handed out; taken back by the library itself */
};
/* "fake_alloc": bytes at such an address, which begin 0x100 behind a page's start */
typedef struct fake_memory *fake_alloc_fn(size_t len);
#endif
