/*
 * Scalable endpoints: one address with several transmit and receive contexts, each with its own completion queue. A
 * program with threads gives a pair of contexts to each of them. The sender chooses the context of the receiver.
 *
 * See fi_endpoint(3), fi_scalable_ep(3), fi_rx_addr(3). Of this library tcp and 'tcp;ofi_rxm' have them, of upstream
 * libfabric sockets.
 */
#include "common.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define SIZE 64
#define CONTEXTS 2
#define BITS 1		/* of an fi_addr_t: number of a receive context */

/* One transmit context and one receive context. */
struct pair {
	struct fid_ep *tx, *rx;
	struct fid_cq *tx_cq, *rx_cq;
	struct operation operation;
	char buffer[SIZE];
};

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "One process sends a message to each receive context of the other one.");
	int control = connect_control(&options);
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1, .rx_ctx_bits = BITS };
	struct address mine = { sizeof mine.bytes, { 0 } }, theirs;
	struct pair pairs[CONTEXTS], *pair;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_ep *sep;
	fi_addr_t peer;
	int i;

	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->ep_attr->tx_ctx_cnt = hints->ep_attr->rx_ctx_cnt = CONTEXTS;
	hints->caps = FI_MSG | FI_NAMED_RX_CTX;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	hints->fabric_attr->prov_name = strdup(options.provider);
	TRY(fi_getinfo(API, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);

	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_scalable_ep(domain, info, &sep, NULL));
	TRY(fi_scalable_ep_bind(sep, &av->fid, 0));
	memset(pairs, 0, sizeof pairs);
	for (i = 0; i < CONTEXTS; i++) {
		pair = &pairs[i];
		TRY(fi_cq_open(domain, &cq_attr, &pair->tx_cq, NULL));
		TRY(fi_cq_open(domain, &cq_attr, &pair->rx_cq, NULL));
		TRY(fi_tx_context(sep, i, NULL, &pair->tx, NULL));
		TRY(fi_rx_context(sep, i, NULL, &pair->rx, NULL));
		TRY(fi_ep_bind(pair->tx, &pair->tx_cq->fid, FI_TRANSMIT));
		TRY(fi_ep_bind(pair->rx, &pair->rx_cq->fid, FI_RECV));
		TRY(fi_enable(pair->tx));
		TRY(fi_enable(pair->rx));
	}
	TRY(fi_enable(sep));

	TRY(fi_getname(&sep->fid, mine.bytes, &mine.len));
	exchange(control, &mine, &theirs, sizeof mine);
	if (fi_av_insert(av, theirs.bytes, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EADDRNOTAVAIL);

	for (i = 0; i < CONTEXTS; i++) {
		pair = &pairs[i];
		if (options.host) {
			snprintf(pair->buffer, SIZE, "for context %d", i);
			POST(pair->tx_cq, fi_send(pair->tx, pair->buffer, SIZE, NULL, fi_rx_addr(peer, i, BITS), &pair->operation));
		} else {
			POST(pair->rx_cq, fi_recv(pair->rx, pair->buffer, SIZE, NULL, FI_ADDR_UNSPEC, &pair->operation));
		}
	}
	for (i = 0; i < CONTEXTS; i++) {
		pair = &pairs[i];
		wait_for(options.host ? pair->tx_cq : pair->rx_cq, &pair->operation);
		if (options.host)
			printf("sent by context %d\n", i);
		else
			printf("received by context %d: %.*s\n", i, SIZE - 1, pair->buffer);
	}

	barrier(control);
	for (i = 0; i < CONTEXTS; i++) {
		TRY(fi_close(&pairs[i].tx->fid));
		TRY(fi_close(&pairs[i].rx->fid));
		TRY(fi_close(&pairs[i].tx_cq->fid));
		TRY(fi_close(&pairs[i].rx_cq->fid));
	}
	TRY(fi_close(&sep->fid));
	TRY(fi_close(&av->fid));
	TRY(fi_close(&domain->fid));
	TRY(fi_close(&fabric->fid));
	fi_freeinfo(info);
	close(control);
	return 0;
}
