/*
 * The part common to the stand-ins for the libraries of accelerators: memory of a device that no processor can touch,
 * settings from the environment, and the numbers of calls.
 *
 * Memory of a device is address space without any right (PROT_NONE).  Its bytes are in another mapping, and only the
 * copies of a stand-in reach them: any other access ends the program with SIGSEGV.
 *
 * NAME is CUDA, ROCR or ZE:
 *
 *   NAME_STUB_DEVICES=N   so many devices (1); 0: the library initializes and reports none, or an error
 *   NAME_STUB_DELAY_US=N  a copy is due so many microseconds after the call (0)
 *   NAME_STUB_RATE_MB=N   copies take place at this rate in MB/s (0: no limit)
 *   NAME_STUB_FAIL=N      the Nth copy fails when it is due; with NAME_STUB_FAIL_AT_CALL at once
 *   NAME_STUB_HANG=N      the Nth copy is never done
 *   NAME_STUB_LOSE=N      from the Nth copy on every call fails: the device is lost
 *   NAME_STUB_REUSE=1     the next allocation of a size has the addresses of the last freed one
 *   NAME_STUB_NO_IPC=1    no memory has a handle for other processes; =open: none can be opened
 *   NAME_STUB_DMABUF=1    memory has a file for network devices (of CUDA; ctest/vm/fake/verbs.c)
 *   NAME_STUB_COUNT=FILE  appends a line with the numbers of calls when the process ends
 *
 * The copies of the program itself, which are synchronous, are not counted for N.
 *
 * Each stand-in defines _GNU_SOURCE, STUB_NAME, its result type RESULT, and RESULT_UNINITIALIZED and RESULT_LOST of it.
 */
#ifndef HMEM_STUB_H
#define HMEM_STUB_H
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define GUARD (64UL << 10)
enum { MAX_DEVICES = 8, MAX_CALLS = 64 };
enum { OF_DEVICE = 0, ALLOCATED_HOST = 1, REGISTERED_HOST = 2 };

struct range {
	struct range *next;
	uintptr_t base;
	size_t len, mapped;
	unsigned char *bytes;	/* of a device: where its bytes are */
	int host;		/* OF_DEVICE, or memory of the host */
	int device;
	off_t at;		/* place of the bytes of a device's memory in the file, -1: none */
	int opened;		/* memory of another process: how often it was opened */
	int owner;		/* of it */
	unsigned long long id;
	int closed;		/* copies do not reach it */
	void *physical;		/* of memory with addresses of its own */
	int managed;		/* the processor reaches it as well; so often was its kind asked for */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static unsigned long long ids;
static long copies, fail_at, hang_at, lose_at, delay_ns, rate;
static int64_t busy_until;
static int devices, lost, fails_at_call, reorder;
static pid_t initialized;
static struct { const char *name; long n; } calls[MAX_CALLS];

static void count(const char *name)
{
	for (int i = 0; i < MAX_CALLS; i++) {
		if (!calls[i].name)
			calls[i].name = name;
		if (!strcmp(calls[i].name, name)) {
			calls[i].n++;
			return;
		}
	}
}
static const char *setting(const char *name)
{
	char full[64];

	snprintf(full, sizeof full, STUB_NAME "_STUB_%s", name);
	return getenv(full);
}
static long number(const char *name, long otherwise)
{
	const char *text = setting(name);

	return text ? atol(text) : otherwise;
}
static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
/* So often was this function called; for tests. */
long stub_calls(const char *name)
{
	long n = 0;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < MAX_CALLS && calls[i].name; i++)
		if (!strcmp(calls[i].name, name))
			n = calls[i].n;
	pthread_mutex_unlock(&lock);
	return n;
}
/* The nth copy from here on is never done. */
void stub_hang(long n)
{
	pthread_mutex_lock(&lock);
	hang_at = copies + n;
	pthread_mutex_unlock(&lock);
}
__attribute__((destructor)) static void tell(void)
{
	const char *path = setting("COUNT");
	FILE *f = path ? fopen(path, "a") : NULL;

	if (!f)
		return;
	for (int i = 0; i < MAX_CALLS && calls[i].name; i++)
		fprintf(f, "%s%s=%ld", i ? " " : "", calls[i].name, calls[i].n);
	fprintf(f, "%scopies=%ld\n", calls[0].name ? " " : "", copies);
	fclose(f);
}
static void read_devices(void)
{
	devices = (int)number("DEVICES", 1);
	if (devices > MAX_DEVICES)
		devices = MAX_DEVICES;
}
static off_t extend(size_t whole);
static void read_settings(void)
{
	(void)extend(0);	/* the descriptor is there from the start */
	fail_at = number("FAIL", 0);
	hang_at = number("HANG", 0);
	lose_at = number("LOSE", 0);
	delay_ns = number("DELAY_US", 0) * 1000;
	rate = number("RATE_MB", 0);
	fails_at_call = setting("FAIL_AT_CALL") != NULL;
	reorder = setting("REORDER") != NULL;
}

static struct range *range_at(uintptr_t at, size_t len)
{
	for (struct range *r = ranges; r; r = r->next)
		if (at >= r->base && at - r->base < r->len && len <= r->len - (at - r->base))
			return r;
	return NULL;
}
/* A range that this memory touches, with some of its bytes. */
static struct range *range_near(uintptr_t at, size_t len)
{
	for (struct range *r = ranges; r; r = r->next)
		if (at < r->base + r->len && r->base < at + (len ? len : 1))
			return r;
	return NULL;
}
/* The address at which a stand-in reaches memory: NULL for such of a device that is not all in one allocation. */
static void *reach(const void *p, size_t len, int device)
{
	struct range *near = range_near((uintptr_t)p, len), *r = range_at((uintptr_t)p, len);

	if (device)
		return r && r->host == OF_DEVICE && !r->closed ? r->bytes + ((uintptr_t)p - r->base) : NULL;
	return near && near->host == OF_DEVICE ? NULL : (void *)p;
}
/* The same by the kind of the address. */
static void *reach_any(const void *p, size_t len)
{
	struct range *r = range_at((uintptr_t)p, len);

	return reach(p, len, r && r->host == OF_DEVICE);
}
static struct range *note(void *base, size_t len, int host, int device)
{
	struct range *r = calloc(1, sizeof *r);

	if (!r)
		abort();
	*r = (struct range){ ranges, (uintptr_t)base, len, 0, NULL, host, device, -1, 0, 0, ++ids, 0, NULL, 0 };
	return ranges = r;
}
static struct range *forget(uintptr_t base, int host)
{
	for (struct range **at = &ranges, *r; (r = *at); at = &r->next)
		if (r->base == base && r->host == host)
			return *at = r->next, r;
	return NULL;
}

/* Begins a call: takes the lock. */
static RESULT enter(const char *name)
{
	pthread_mutex_lock(&lock);
	count(name);
	if (!initialized || initialized != getpid())
		return RESULT_UNINITIALIZED;
	return lost ? RESULT_LOST : (RESULT)0;
}
static RESULT leave(RESULT r)
{
	pthread_mutex_unlock(&lock);
	return r;
}
#define ENTER() do { RESULT r_ = enter(__func__); if (r_) return leave(r_); } while (0)
#define NEED(ok, error) do { if (!(ok)) return leave(error); } while (0)

/* Ends the process, as hardware does. */
static inline void fault(const char *text)
{
	fprintf(stderr, "%s stand-in: %s\n", STUB_NAME, text);
	abort();
}
/* The time of a copy without an order: the copies share the rate, and with REORDER each second one is due later than the next. */
static inline int64_t due_of(long number, size_t len)
{
	int64_t now = now_ns();

	if (busy_until < now)
		busy_until = now;
	busy_until += rate ? (int64_t)(len * 1000 / rate) : 0;
	if (hang_at == number)
		return INT64_MAX;
	return busy_until + delay_ns + (reorder && number % 2 ? delay_ns + 50000 : 0);
}

/* Address space without rights, between others. */
static void *trap(size_t len)
{
	void *base = mmap(NULL, len + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return base == MAP_FAILED ? NULL : (char *)base + GUARD;
}
/*
 * The bytes of all memory of a process, in one file: a program with few descriptors, or that counts them, has one more.
 * No place in it is used twice.  Without a file the memory has no handle for other processes.
 */
static int arena = -1;
static size_t arena_end;
static ino_t arena_ino;
/* A place for so many bytes of the file, or -1. */
static off_t extend(size_t whole)
{
	struct rlimit most;
	struct stat st;

	/* a program may close all descriptors */
	if (arena >= 0 && (fstat(arena, &st) || st.st_ino != arena_ino))
		return -1;
	/* beyond the limit a signal ends the process */
	if (getrlimit(RLIMIT_FSIZE, &most) || (most.rlim_cur != RLIM_INFINITY && most.rlim_cur < arena_end + whole))
		return -1;
	if (arena < 0) {
		arena = memfd_create("device", MFD_CLOEXEC);
		if (arena < 0 || fstat(arena, &st))
			return -1;
		arena_ino = st.st_ino;
	}
	if (ftruncate(arena, arena_end + whole))
		return -1;
	arena_end += whole;
	return arena_end - whole;
}
/* A descriptor of the file of its own, which stands at this place. */
static inline int file_at(off_t at)
{
	char path[64];
	int fd;

	snprintf(path, sizeof path, "/proc/self/fd/%d", arena);
	fd = open(path, O_RDWR);
	if (fd >= 0 && lseek(fd, at, SEEK_SET) != at) {
		close(fd);
		return -1;
	}
	return fd;
}
/* Memory of a device with its bytes at this place of a file, or in no file. */
static struct range *memory_of(int fd, off_t at, size_t len, void *base, int device)
{
	size_t whole = (len + PAGE - 1) / PAGE * PAGE;
	void *bytes = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, fd < 0 ? 0 : at);
	struct range *r;

	if (!base)
		base = trap(whole);
	if (bytes == MAP_FAILED || !base)
		return NULL;
	r = note(base, len, OF_DEVICE, device);
	r->bytes = bytes;
	r->mapped = whole;
	r->at = fd < 0 ? -1 : at;
	return r;
}
/*
 * Allocates memory of a device; NULL without space.  A free of the stand-ins removes the range from the list alone:
 * copies in progress keep its bytes, and no later allocation has its addresses, so a late access ends the program.
 * With REUSE the next allocation of the same length has the addresses, with other bytes.
 */
static uintptr_t freed_base;
static size_t freed_len;
static struct range *new_memory(size_t len, int device)
{
	size_t whole = (len + PAGE - 1) / PAGE * PAGE;
	void *base = NULL;
	struct range *r;
	off_t at = extend(whole);

	if (freed_base && freed_len == len) {
		base = (void *)freed_base;
		freed_base = 0;
	}
	r = memory_of(at < 0 ? -1 : arena, at, len, base, device);
	if (r)
		memset(r->bytes, 0x5a, whole);
	return r;
}
/* Ends a range of device memory. */
static inline void end_memory(struct range *r)
{
	if (setting("REUSE") && !r->opened) {
		freed_base = r->base;
		freed_len = r->len;
	}
	free(r);
}

/*
 * A handle of memory of a device, of 64 bytes: the process, and the place of the bytes in its file.  Other processes open
 * the file through /proc, so it is valid while this process lives.
 */
struct stub_handle {
	uint64_t magic, len, at, id;
	int32_t pid, fd, device;
	char pad[20];
};
_Static_assert(sizeof(struct stub_handle) == 64, "a handle");
#define HANDLE_MAGIC 0x1bc0ffee5a5a1234ULL

/* The handle of the memory that begins here; 0 without one. */
static inline int handle_of(uintptr_t base, struct stub_handle *h)
{
	const char *no = setting("NO_IPC");
	struct range *r = range_at(base, 1);

	if ((no && strcmp(no, "open")) || !r || r->host != OF_DEVICE || r->opened || r->physical || r->at < 0)
		return 0;
	memset(h, 0, sizeof *h);
	*h = (struct stub_handle){ HANDLE_MAGIC, r->len, r->at, r->id, getpid(), arena, r->device, { 0 } };
	return 1;
}
/* Maps memory of another process, in this file; NULL if it is not there. */
static inline struct range *open_part(int fd, const struct stub_handle *h)
{
	const char *no = setting("NO_IPC");
	struct range *r = NULL;
	struct stat st;

	if ((no && !strcmp(no, "open")) || h->magic != HANDLE_MAGIC || h->device < 0 || h->device >= devices || fstat(fd, &st))
		return NULL;
	if (h->len && h->len <= (uint64_t)st.st_size && h->at <= (uint64_t)st.st_size - h->len && h->at % PAGE == 0)
		r = memory_of(fd, h->at, h->len, NULL, h->device);
	if (r) {
		r->opened = 1;
		r->id = h->id;
		r->owner = h->pid;
	}
	return r;
}
/* Opens a handle; NULL if it names no memory. */
static inline struct range *open_handle(const struct stub_handle *h)
{
	char path[64];
	struct range *r;
	int fd;

	if (h->magic != HANDLE_MAGIC || h->pid <= 0 || h->fd < 0)
		return NULL;
	for (r = ranges; r; r = r->next)
		if (r->opened && r->id == h->id && r->owner == h->pid) {
			r->opened++;
			return r;
		}
	snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	r = open_part(fd, h);
	close(fd);
	return r;
}
/* Ends the process if this copy, due at some time, reads memory that is being closed. */
static inline void keeps_open(const struct range *r, const void *src, int64_t due)
{
	const unsigned char *at = src;

	if (r && at >= r->bytes && at < r->bytes + r->mapped && due != INT64_MAX)
		fault("memory of another process closed during a copy");
}
#define KEEP_OPEN(r) do { for (struct op *op = ops; op; op = op->next) keeps_open(r, op->src, op->due); } while (0)
/* Closes memory opened by a handle: no address of it is valid afterwards. */
static inline int close_handle(uintptr_t base)
{
	for (struct range **at = &ranges, *r; (r = *at); at = &r->next)
		if (r->base == base && r->opened) {
			if (!--r->opened) {
				*at = r->next;
				munmap(r->bytes, r->mapped);
				free(r);
			}
			return 1;
		}
	return 0;
}

#endif
