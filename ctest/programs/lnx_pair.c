/*
 * Two processes that talk over lnx or another provider, each on the libfabric that it was started with: tagged
 * messages of every kind of size both ways, before and after their receives are posted, and every byte is looked at.
 *
 *   lnx_pair first|second OWN OTHER [PROVIDER]     files with the addresses: OWN is written, OTHER is waited for
 *
 * With the variable PAIR_ANY endpoints are bound to all addresses of IPv4.
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
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "library.h"

#define MAX_SIZE ((size_t)1 << 20)
#define EACH 20				/* messages of each size, of which half come before their receives */
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) { \
	fprintf(stderr, "lnx_pair: %s: %s\n", #call, fi_strerror((int)-r_)); exit(1); } } while (0)

static const size_t sizes[] = { 0, 1, 64, 4096, 16384, 65536, MAX_SIZE };
#define SIZES (sizeof sizes / sizeof *sizes)

static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
static struct fi_context2 contexts[2 * EACH];
static unsigned char *sbuf, *rbuf[EACH];
static int sent, received;

static void die(const char *what)
{
	fprintf(stderr, "lnx_pair: %s\n", what);
	exit(1);
}
static unsigned char byte_of(int side, size_t size, int message, size_t at)
{
	return (unsigned char)(side * 101 + size * 7 + message * 13 + at * 31 + (at >> 8));
}
/* Writes the endpoint's address to a file of its own, and waits for the other's. */
static void exchange(struct fid_av *av, const char *own, const char *other)
{
	char name[2048] = { 0 }, part[4096];
	size_t len = sizeof name;
	FILE *f;

	TRY(fi_getname(&ep->fid, name, &len));
	snprintf(part, sizeof part, "%s.part", own);
	if (!(f = fopen(part, "w")) || fwrite(name, 1, len, f) != len || fclose(f) || rename(part, own))
		die("the address cannot be written");
	while (!(f = fopen(other, "r")))
		usleep(10000);
	memset(name, 0, sizeof name);
	if (!fread(name, 1, sizeof name, f))
		die("no address in the file");
	fclose(f);
	if (fi_av_insert(av, name, 1, &peer, 0, NULL) != 1)
		die("the other's address is refused");
}
static void open_endpoint(const char *provider, const char *own, const char *other)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 256 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 4 };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
	hints->fabric_attr->prov_name = strdup(provider);
	if (getenv("PAIR_ANY")) {
		hints->addr_format = FI_SOCKADDR_IN;
		TRY(fi_getinfo(FI_VERSION(1, 14), NULL, "0", FI_SOURCE, hints, &info));
	} else {
		TRY(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info));
	}
	fi_freeinfo(hints);
	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_enable(ep));
	exchange(av, own, other);
}
static void look(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t r = fi_cq_read(cq, &entry, 1);

	if (r == 1) {
		if (entry.flags & FI_RECV)
			received++;
		else
			sent++;
	} else if (r == -FI_EAVAIL) {
		fi_cq_readerr(cq, &error, 0);
		die(fi_strerror(error.err));
	} else if (r != -FI_EAGAIN) {
		die(fi_strerror((int)-r));
	}
}
static void post_receive(int round, size_t size, int message)
{
	ssize_t r;

	memset(rbuf[message], 0xa5, size);
	while ((r = fi_trecv(ep, rbuf[message], size, NULL, peer, round * EACH + message, 0,
			     &contexts[message])) == -FI_EAGAIN)
		look();
	TRY(r);
}
static void send_all(int side, int round, size_t size)
{
	for (int message = 0; message < EACH; message++) {
		unsigned char *bytes = sbuf + message * size;
		ssize_t r;

		for (size_t at = 0; at < size; at++)
			bytes[at] = byte_of(side, size, message, at);
		while ((r = fi_tsend(ep, bytes, size, NULL, peer, round * EACH + message,
				     &contexts[EACH + message])) == -FI_EAGAIN)
			look();
		TRY(r);
	}
	while (sent < EACH)
		look();
	sent = 0;
}
static void receive_all(int side, int round, size_t size, int posted)
{
	/* some messages are there by now, or on their way */
	for (int looks = 0; looks < 1000; looks++)
		look();
	for (int message = posted; message < EACH; message++)
		post_receive(round, size, message);
	while (received < EACH)
		look();
	received = 0;
	for (int message = 0; message < EACH; message++)
		for (size_t at = 0; at < size; at++)
			if (rbuf[message][at] != byte_of(side, size, message, at))
				die("a message has other bytes than were sent");
}
int main(int argc, char **argv)
{
	int first = argc >= 4 && !strcmp(argv[1], "first");

	if (argc != 4 && argc != 5)
		die("usage: lnx_pair first|second OWN OTHER [PROVIDER]");
	alarm(200);
	open_endpoint(argc == 5 ? argv[4] : "lnx", argv[2], argv[3]);
	print_library();
	sbuf = malloc(EACH * MAX_SIZE);
	for (int message = 0; message < EACH; message++)
		rbuf[message] = malloc(MAX_SIZE);
	for (int i = 0; i < (int)SIZES; i++) {
		size_t size = sizes[i];

		for (int message = 0; message < EACH / 2; message++)
			post_receive(i, size, message);
		if (first)
			send_all(0, i, size);
		receive_all(first, i, size, EACH / 2);
		if (!first)
			send_all(1, i, size);
	}
	/* the other's last messages may still need this side */
	for (int looks = 0; looks < 200; looks++) {
		look();
		usleep(1000);
	}
	printf("%d messages each way\n", (int)SIZES * EACH);
	return 0;
}
