/*
 * Reliable datagrams (FI_EP_RDM): one endpoint sends to any number of peers, without connections of the program. An
 * address vector turns the addresses of peers into an fi_addr_t.
 *
 * See fi_endpoint(3), fi_av(3), fi_cq(3), fi_msg(3).
 */
#include "common.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define SIZE 64

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "Two processes send a message to each other.");
	int control = connect_control(&options);
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1 };
	struct operation receive = { .is_complete = 0 }, send = { .is_complete = 0 };
	struct address mine = { sizeof mine.bytes, { 0 } }, theirs;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	fi_addr_t peer;
	char in[SIZE], out[SIZE];

	/* Hints: what the program needs. fi_getinfo answers with a list of infos; the first one is the best. */
	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	hints->fabric_attr->prov_name = strdup(options.provider);
	TRY(fi_getinfo(API, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);

	/* The objects: fabric (network), domain (device), address vector, completion queue, endpoint. */
	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_enable(ep));
	printf("an endpoint of %s\n", info->fabric_attr->prov_name);

	/* The address of each end is in the address vector of the other one. */
	TRY(fi_getname(&ep->fid, mine.bytes, &mine.len));
	exchange(control, &mine, &theirs, sizeof mine);
	if (fi_av_insert(av, theirs.bytes, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EADDRNOTAVAIL);

	/* A message and a receive on each side. Buffers belong to the library until their completion. */
	POST(cq, fi_recv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, &receive));
	snprintf(out, sizeof out, "hello from the %s", options.host ? "client" : "server");
	POST(cq, fi_send(ep, out, sizeof out, NULL, peer, &send));
	wait_for(cq, &receive);
	wait_for(cq, &send);
	printf("received %zu bytes: %.*s\n", receive.entry.len, SIZE - 1, in);

	/* Neither end closes while the other one still works. */
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
