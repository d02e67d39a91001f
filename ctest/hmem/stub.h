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
 *   NAME_STUB_COUNT=FILE  appends a line with the numbers of calls when the process ends
 *
 * The copies of the program itself, which are synchronous, are not counted for N.
 *
 * Each stand-in defines _GNU_SOURCE, STUB_NAME, its result type RESULT, and RESULT_UNINITIALIZED and RESULT_LOST of it.
 */
#ifndef HMEM_STUB_H
#define HMEM_STUB_H
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
	unsigned long long id;
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
static void read_settings(void)
{
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
		return r && r->host == OF_DEVICE ? r->bytes + ((uintptr_t)p - r->base) : NULL;
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
	*r = (struct range){ ranges, (uintptr_t)base, len, 0, NULL, host, device, ++ids };
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
 * Allocates memory of a device; NULL without space.  A free of the stand-ins removes the range from the list alone:
 * copies in progress keep its bytes, and no later allocation has its addresses, so a late access ends the program.
 */
static struct range *new_memory(size_t len, int device)
{
	size_t whole = (len + PAGE - 1) / PAGE * PAGE;
	int fd = memfd_create("device", MFD_CLOEXEC);
	void *base, *bytes;
	struct range *r;

	if (fd < 0)
		return NULL;
	if (ftruncate(fd, whole)) {
		close(fd);
		return NULL;
	}
	bytes = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	base = trap(whole);
	if (bytes == MAP_FAILED || !base)
		return NULL;
	memset(bytes, 0x5a, whole);
	r = note(base, len, OF_DEVICE, device);
	r->bytes = bytes;
	r->mapped = whole;
	return r;
}

#endif
