/*
 * A plug-in that does what plug-ins should not do, compiled once per way: -DNAME='"x"' -DVERSION=7 and one of
 *   -DPRINTS    its entry point prints to standard output
 *   -DQUERIES      its entry point calls back into the library: fi_getinfo, fi_fabric, fi_param_get, fi_log
 *   -DTHREADS   its constructor starts threads that call the library, also while it is being started, and that never end
 *   -DEXITS     its entry point calls exit(3)
 *   -DCRASHES   its constructor reads address 0
 *   -DERRNO     it has nothing to offer, and leaves ENOMEM in errno
 *   -DTLS       it has more thread-local memory than the loader can still give
 *   -DCOUNTS    it says when it is started, queried and cleaned up
 *   -DBORROWS   it has no entry point of its own; linked to another plug-in, the loader finds that of the other
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#ifdef BORROWS
extern struct fi_provider *fi_prov_ini(void);
struct fi_provider *(*volatile borrowed)(void) = fi_prov_ini;
#else

static void say(const char *what)
{
#ifdef COUNTS
	fprintf(stderr, "odd %s %d: %s\n", NAME, VERSION, what);
#else
	(void)what;
#endif
}
static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **info)
{
	(void)version, (void)node, (void)service, (void)flags, (void)hints, (void)info;
	say("queried");
	return -FI_ENODATA;
}
static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void)attr, (void)fabric, (void)context;
	return -FI_ENOSYS;
}
static void cleanup(void) { say("cleaned up"); }
static struct fi_provider prov = {
	.version = FI_VERSION(VERSION, 0), .fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = NAME, .getinfo = getinfo, .fabric = fabric, .cleanup = cleanup,
};

#ifdef TLS
static __thread char big[64 << 20] __attribute__((tls_model("initial-exec")));
char *big_of_this_thread(void) { return big; }
#endif
#ifdef THREADS
static void *lists(void *arg)
{
	struct fi_info *list = NULL;
	int r = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &list), n = 0;

	for (struct fi_info *i = list; i; i = i->next)
		n++;
	fi_freeinfo(list);
	fprintf(stderr, "odd thread: fi_getinfo returned %d, %s infos\n", r, n ? "some" : "no");
	*(volatile int *)arg = 1;
	for (;;)
		pause();
	return NULL;
}
static void *logs(void *arg)
{
	(void)arg;
	for (;;) {
		FI_INFO(&prov, FI_LOG_CORE, "still here\n");
		usleep(1000);
	}
	return NULL;
}
static volatile int has_listed;
#endif
#if defined THREADS || defined CRASHES
static __attribute__((constructor)) void constructor(void)
{
#ifdef THREADS
	pthread_t thread;

	for (int i = 0; i < 2; i++)
		if (!pthread_create(&thread, NULL, i ? lists : logs, (void *)&has_listed))
			pthread_detach(thread);
#else
	*(volatile int *)0 = 1;
#endif
}
#endif

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	say("started");
#ifdef PRINTS
	printf("printed by a plug-in\n");
	fflush(stdout);
#endif
#ifdef QUERIES
	struct fi_info *hints = fi_allocinfo(), *list = NULL;
	struct fi_fabric_attr attr = { .prov_name = "tcp", .name = "any" };
	struct fid_fabric *opened;

	hints->ep_attr->type = FI_EP_RDM;
	fprintf(stderr, "odd: fi_getinfo returned %d\n", fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &list));
	fprintf(stderr, "odd: fi_fabric returned %d\n", fi_fabric(&attr, &opened, NULL));
	fi_param_define(&prov, "size", FI_PARAM_SIZE_T, "a size");
	fprintf(stderr, "odd: fi_param_get returned %d\n", fi_param_get_size_t(&prov, "size", &(size_t){ 0 }));
	FI_WARN(&prov, FI_LOG_CORE, "a line of the entry point\n");
	fi_freeinfo(hints);
#endif
#ifdef EXITS
	exit(3);
#endif
#ifdef ERRNO
	errno = ENOMEM;
	return NULL;
#endif
	return &prov;
}
#endif
