/*
 * Small stand-ins for the kernel's headers, so that modules written to kfabric
 * can be compiled as programs: what the public test modules of kfabric use, and
 * no more. A program's arguments are the module's parameters, as name=value. The
 * module is unloaded when its thread has nothing to do any more.
 */
#ifndef KFI_LINUX_MODULE_H
#define KFI_LINUX_MODULE_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define __init
#define __exit
#define MODULE_AUTHOR(text) struct kfi_unused
#define MODULE_DESCRIPTION(text) struct kfi_unused
#define MODULE_LICENSE(text) struct kfi_unused
#define MODULE_PARM_DESC(name, text) struct kfi_unused

/* Parameters: each registers itself before main. */
struct kfi_module_param {
	struct kfi_module_param *next;
	const char *name;
	char *text;		/* a string of so many bytes, or */
	size_t len;
	int *number;
};

__attribute__((weak)) struct kfi_module_param *kfi_module_params;

#define KFI_MODULE_PARAM(name, text, len, number) \
	static struct kfi_module_param kfi_param_##name = \
		{ NULL, #name, text, len, number }; \
	__attribute__((constructor)) static void kfi_add_##name(void) \
	{ \
		kfi_param_##name.next = kfi_module_params; \
		kfi_module_params = &kfi_param_##name; \
	} \
	struct kfi_unused

#define module_param_string(name, text, len, mode) \
	KFI_MODULE_PARAM(name, text, len, NULL)
#define module_param(name, type, mode) KFI_MODULE_PARAM(name, NULL, 0, &name)

/* Memory. */
#define GFP_KERNEL 0
#define kmalloc(size, flags) malloc(size)
#define kzalloc(size, flags) calloc(1, size)
#define kfree(at) free((void *) (at))

static inline void *kmemdup(const void *from, size_t len, int flags)
{
	void *copy = malloc(len);

	(void) flags;
	return copy ? memcpy(copy, from, len) : NULL;
}

static inline void get_random_bytes(void *to, size_t len)
{
	if (getrandom(to, len, 0) != (ssize_t) len)
		abort();
}

/* Errors in pointers. */
#define IS_ERR(at) ((uintptr_t) (at) >= (uintptr_t) -4095)
#define PTR_ERR(at) ((long) (at))
#define ERR_PTR(error) ((void *) (long) (error))

/* Messages. */
#define KERN_DEBUG ""
#define KERN_DEFAULT ""
#define KERN_INFO ""
#define KERN_NOTICE ""
#define KERN_WARNING ""
#define KERN_ERR ""
#define KERN_CRIT ""
#define KERN_ALERT ""
#define KERN_EMERG ""
#define printk(...) fprintf(stderr, __VA_ARGS__)

/* Addresses: the whole text is one, without a delimiter. */
static inline int in4_pton(const char *text, int len, u8 *to, int delimiter,
	const char **end)
{
	(void) len;
	(void) delimiter;
	if (inet_pton(AF_INET, text, to) != 1)
		return 0;
	if (end)
		*end = text + strlen(text);
	return 1;
}

/* Threads. */
struct task_struct {
	pthread_t thread;
	int (*main)(void *data);
	void *data;
	int result;
	bool started;
};

__attribute__((weak)) pthread_mutex_t kfi_thread_lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((weak)) pthread_cond_t kfi_thread_idle = PTHREAD_COND_INITIALIZER;
__attribute__((weak)) bool kfi_thread_is_idle, kfi_thread_stops;

static inline void kfi_thread_reports(bool *what)
{
	pthread_mutex_lock(&kfi_thread_lock);
	*what = true;
	pthread_cond_broadcast(&kfi_thread_idle);
	pthread_mutex_unlock(&kfi_thread_lock);
}

static inline void *kfi_thread_main(void *task)
{
	struct task_struct *self = task;

	self->result = self->main(self->data);
	kfi_thread_reports(&kfi_thread_is_idle);
	return NULL;
}

#define kthread_create(main, data, name) kfi_kthread_create(main, data)
static inline struct task_struct *kfi_kthread_create(int (*main)(void *),
	void *data)
{
	struct task_struct *task = calloc(1, sizeof *task);

	if (!task)
		return ERR_PTR(-ENOMEM);
	task->main = main;
	task->data = data;
	return task;
}

static inline int wake_up_process(struct task_struct *task)
{
	task->started = !pthread_create(&task->thread, NULL, kfi_thread_main, task);
	return task->started;
}

/* A signal that a thread allows ends its blocked calls, and nothing else. */
static inline void kfi_signalled(int number)
{
	(void) number;
}

static inline void allow_signal(int number)
{
	struct sigaction action = { .sa_handler = kfi_signalled };

	sigaction(number, &action, NULL);
}

static inline int send_sig(int number, struct task_struct *task, int private)
{
	(void) private;
	return task->started ? -pthread_kill(task->thread, number) : 0;
}

#define TASK_INTERRUPTIBLE 1
#define set_current_state(state) ((void) (state))

static inline bool kthread_should_stop(void)
{
	bool stops;

	pthread_mutex_lock(&kfi_thread_lock);
	stops = kfi_thread_stops;
	pthread_mutex_unlock(&kfi_thread_lock);
	return stops;
}

/* Who gives the processor away has nothing to do. */
static inline void schedule(void)
{
	kfi_thread_reports(&kfi_thread_is_idle);
	usleep(1000);
}

static inline int kthread_stop(struct task_struct *task)
{
	int result = -EINTR;

	kfi_thread_reports(&kfi_thread_stops);
	if (task->started) {
		pthread_join(task->thread, NULL);
		result = task->result;
	}
	free(task);
	return result;
}

static inline int kfi_module_main(int argc, char **argv, int (*init)(void),
	void (*leave)(void))
{
	struct kfi_module_param *param;
	const char *value;
	int i, ret;

	for (i = 1; i < argc; i++) {
		value = strchr(argv[i], '=');
		for (param = kfi_module_params; param; param = param->next)
			if (value && strlen(param->name) == (size_t) (value - argv[i]) &&
			    !strncmp(param->name, argv[i], value - argv[i]))
				break;
		if (!value || !param) {
			fprintf(stderr, "no parameter: %s\n", argv[i]);
			return 2;
		}
		if (param->number)
			*param->number = atoi(value + 1);
		else
			snprintf(param->text, param->len, "%s", value + 1);
	}
	ret = init();
	if (ret)
		return 1;
	pthread_mutex_lock(&kfi_thread_lock);
	while (!kfi_thread_is_idle)
		pthread_cond_wait(&kfi_thread_idle, &kfi_thread_lock);
	pthread_mutex_unlock(&kfi_thread_lock);
	leave();
	return 0;
}

#define module_init(name) \
	static int (*const kfi_module_init)(void) = name; \
	struct kfi_unused
#define module_exit(name) \
	int main(int argc, char **argv) \
	{ \
		return kfi_module_main(argc, argv, kfi_module_init, name); \
	} \
	struct kfi_unused

#endif
