/*
 * Two processes, each on the libfabric that it was started with: one writes, reads and changes the other's memory, and
 * looks at every byte.
 *
 *   access_pair accesses|serves PROVIDER OWN OTHER     files: OWN is written, and OTHER waited for
 *
 * Prints which libfabric it has mapped; ends with status 1 on any error, and after 200 seconds.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "library.h"

#define MAX_SIZE ((size_t)1 << 18)
#define UNDER_WAY 8			/* reads of a size at a time */
#define ROUNDS 30
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) { \
	fprintf(stderr, "access_pair: %s: %s\n", #call, fi_strerror((int)-r_)); exit(1); } } while (0)

struct position {
	char name[256];
	size_t len;
	uint64_t addr, key;
};

static const size_t sizes[] = { 1, 64, 4096, MAX_SIZE };
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t peer;
static struct position own, theirs;
static struct fi_context2 contexts[UNDER_WAY];
/* What the other may access: a part that is written and read, and a number behind it. */
static unsigned char *memory, *bytes, *back;
static int over;

static void die(const char *what)
{
	fprintf(stderr, "access_pair: %s\n", what);
	exit(1);
}
static void look(void)
{
	struct fi_cq_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t r = fi_cq_read(cq, &entry, 1);

	if (r == 1) {
		over++;
	} else if (r == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		die(fi_strerror(error.err));
	} else if (r != -FI_EAGAIN) {
		die(fi_strerror((int)-r));
	}
}
static void wait_for(int count)
{
	while (over < count)
		look();
	over = 0;
}
#define START(call) do { ssize_t s_; while ((s_ = (call)) == -FI_EAGAIN) look(); TRY(s_); } while (0)

/* Writes a file, and reads another's when that is there; progress goes on meanwhile. */
static void swap(const char *mine, const char *other, const char *step, const void *out, void *in, size_t len)
{
	char name[4096], part[4200];
	FILE *f;

	snprintf(name, sizeof name, "%s.%s", mine, step);
	snprintf(part, sizeof part, "%s.part", name);
	if (!(f = fopen(part, "w")) || fwrite(out, 1, len, f) != len || fclose(f) || rename(part, name))
		die("a file cannot be written");
	snprintf(name, sizeof name, "%s.%s", other, step);
	while (!(f = fopen(name, "r"))) {
		look();
		usleep(1000);
	}
	if (fread(in, 1, len, f) != len)
		die("too little in a file");
	fclose(f);
}
static void open_endpoint(const char *provider)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .size = 256 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 4 };
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA | FI_ATOMIC;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	TRY(fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", "0", FI_SOURCE, hints, &info));
	fi_freeinfo(hints);
	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_enable(ep));
	if (!(memory = calloc(1, MAX_SIZE + 64)) || !(bytes = calloc(1, MAX_SIZE)) || !(back = calloc(UNDER_WAY, MAX_SIZE)))
		die("no memory");
	TRY(fi_mr_reg(domain, memory, MAX_SIZE + 64, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &mr, NULL));
	own.len = sizeof own.name;
	TRY(fi_getname(&ep->fid, own.name, &own.len));
	own.addr = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
	own.key = fi_mr_key(mr);
	fi_freeinfo(info);
}

/* Writes to the other's memory and reads it again, in many requests at a time; and adds to a number there. */
static void access_all(void)
{
	uint64_t one = 1, before = 0, last = 0;

	for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
		for (int round = 0; round < ROUNDS; round++) {
			size_t n = sizes[s];

			for (size_t i = 0; i < n; i++)
				bytes[i] = (unsigned char)(i * 31 + (i >> 8) + round * 7 + n);
			START(fi_write(ep, bytes, n, NULL, peer, theirs.addr, theirs.key, &contexts[0]));
			wait_for(1);
			memset(back, 0xa5, UNDER_WAY * n);
			for (int i = 0; i < UNDER_WAY; i++)
				START(fi_read(ep, back + i * n, n, NULL, peer, theirs.addr, theirs.key, &contexts[i]));
			wait_for(UNDER_WAY);
			for (int i = 0; i < UNDER_WAY; i++)
				if (memcmp(back + i * n, bytes, n))
					die("what is read is not what was written");
			START(fi_fetch_atomic(ep, &one, 1, NULL, &before, NULL, peer, theirs.addr + MAX_SIZE, theirs.key, FI_UINT64,
					      FI_SUM, &contexts[0]));
			wait_for(1);
			if (before != last++)
				die("a fetched number is not the one before");
		}
	}
}

int main(int argc, char **argv)
{
	uint64_t added;
	char a = 'a', b;

	if (argc != 5)
		return 2;
	alarm(200);
	print_library();
	open_endpoint(argv[2]);
	swap(argv[3], argv[4], "place", &own, &theirs, sizeof own);
	if (fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1)
		die("the other's address is refused");
	if (!strcmp(argv[1], "accesses"))
		access_all();
	/* who serves makes progress meanwhile */
	swap(argv[3], argv[4], "over", &a, &b, 1);
	memcpy(&added, memory + MAX_SIZE, sizeof added);
	printf("all is done, and %llu was added here\n", (unsigned long long)added);
	return 0;
}
