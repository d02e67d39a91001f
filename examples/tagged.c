/*
 * Tagged messages (FI_TAGGED): a receive takes the next message with its tag. Bits of the tag can be ignored. MPI
 * libraries put communicator, rank and tag into these 64 bits.
 *
 * See fi_tagged(3).
 */
#include "common.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>

#define SIZE 64

/* A tag of this program: a kind in the upper half, a number in the lower one. */
#define TAG(kind, number) ((uint64_t) (kind) << 32 | (number))
#define ANY_NUMBER 0xffffffffULL
enum { LETTERS = 1, DIGITS = 2 };

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "One process sends three messages with tags, the other one chooses their order.");
	int control = connect_control(&options);
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1 };
	struct operation operations[3];
	struct address mine = { sizeof mine.bytes, { 0 } }, theirs;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t peer;
	char buffers[3][SIZE];
	int i;

	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	hints->fabric_attr->prov_name = strdup(options.provider);
	TRY(fi_getinfo(API, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);

	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_enable(ep));

	TRY(fi_getname(&ep->fid, mine.bytes, &mine.len));
	exchange(control, &mine, &theirs, sizeof mine);
	if (fi_av_insert(av, theirs.bytes, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EADDRNOTAVAIL);

	memset(operations, 0, sizeof operations);
	if (options.host) {
		static const char *const texts[] = { "abc", "123", "def" };
		const uint64_t tags[] = { TAG(LETTERS, 7), TAG(DIGITS, 8), TAG(LETTERS, 9) };

		for (i = 0; i < 3; i++) {
			snprintf(buffers[i], SIZE, "%s", texts[i]);
			POST(cq, fi_tsend(ep, buffers[i], strlen(texts[i]) + 1, NULL, peer, tags[i], &operations[i]));
		}
		for (i = 0; i < 3; i++)
			wait_for(cq, &operations[i]);
		printf("sent 3 messages\n");
	} else {
		/* The digits first, then letters of any number: messages with matching tags keep their order. */
		const uint64_t tags[] = { TAG(DIGITS, 8), TAG(LETTERS, 0), TAG(LETTERS, 0) };
		const uint64_t ignored[] = { 0, ANY_NUMBER, ANY_NUMBER };

		for (i = 0; i < 3; i++) {
			POST(cq, fi_trecv(ep, buffers[i], SIZE, NULL, FI_ADDR_UNSPEC, tags[i], ignored[i], &operations[i]));
			wait_for(cq, &operations[i]);
			printf("received kind %u, number %u: %.*s\n", (unsigned) (operations[i].entry.tag >> 32),
			       (unsigned) operations[i].entry.tag, SIZE - 1, buffers[i]);
		}
	}

	barrier(control);
	TRY(fi_close(&ep->fid));
	TRY(fi_close(&cq->fid));
	TRY(fi_close(&av->fid));
	TRY(fi_close(&domain->fid));
	TRY(fi_close(&fabric->fid));
	fi_freeinfo(info);
	close(control);
	return 0;
}
