/*
 * What qemu-user lacks and the library insists on: madvise(MADV_DONTFORK), which keeps memory that
 * processes share from children. Preloaded into the programs under test, this does it in the child.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 4096 };
static struct { char *at; size_t len; } saved[MOST];
static int many;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(void *at, size_t len)
{
	pthread_mutex_lock(&lock);
	for (int i = many; i-- > 0;)
		if (saved[i].at >= (char *)at && saved[i].at < (char *)at + len)
			saved[i] = saved[--many];
	pthread_mutex_unlock(&lock);
}
int madvise(void *at, size_t len, int advice)
{
	int done = 0;

	if (advice != MADV_DONTFORK)
		return (int)syscall(SYS_madvise, at, len, advice);
	pthread_mutex_lock(&lock);
	if (many < MOST) {
		saved[many].at = at;
		saved[many++].len = len;
	} else {
		done = -1;
	}
	pthread_mutex_unlock(&lock);
	return done;
}
int munmap(void *at, size_t len)
{
	forget(at, len);
	return (int)syscall(SYS_munmap, at, len);
}
static void before(void)
{
	pthread_mutex_lock(&lock);
}
static void parent(void)
{
	pthread_mutex_unlock(&lock);
}
static void child(void)
{
	for (int i = 0; i < many; i++)
		syscall(SYS_munmap, saved[i].at, saved[i].len);
	many = 0;
	pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) static void start(void)
{
	pthread_atfork(before, parent, child);
}
