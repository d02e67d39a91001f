/* What the programs of benches/scale have in common: errors, the clock, and what a process uses. */
#ifndef BENCHES_JOB_H
#define BENCHES_JOB_H
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DIE(...) do { fprintf(stderr, "%s: ", program_invocation_short_name); fprintf(stderr, __VA_ARGS__); \
	fputc('\n', stderr); exit(1); } while (0)
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) \
	DIE("%s: %s", #call, fi_strerror((int)-r_)); } while (0)

/* Milliseconds of a clock that all processes of the host have in common. */
static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}
/* MiB of memory of this process: "Rss: %lf" all that it has, "Pss: %lf" its share of what others have as well. */
static inline double own_memory(const char *member)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	double kib = 0, found = 0;
	char line[256];

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, member, &kib) == 1)
			found = kib / 1024;
	if (f)
		fclose(f);
	return found;
}
static inline int own_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = -3;	/* less ., .. and the one that is read by */

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}
#endif
