/*
 * Atomic operations (FI_ATOMIC) on a counter in the memory of another process: a sum, a sum that returns the earlier
 * value, and compare-and-swap. Any number of peers may change the counter at the same time.
 *
 * See fi_atomic(3).
 */
#include "common.h"

#include <inttypes.h>

#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

/* Memory of a process: the counter, and the local values of operations. */
struct memory {
	uint64_t counter;
	uint64_t operand, compare, result;
	char message;
};

struct region {
	uint64_t address, key;
};

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "One process changes a counter in the memory of the other one.");
	int control = connect_control(&options);
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1 };
	struct operation sum = { .is_complete = 0 }, fetch = { .is_complete = 0 }, swap = { .is_complete = 0 }, message = { .is_complete = 0 };
	struct address mine = { sizeof mine.bytes, { 0 } }, theirs;
	struct region my_region, target;
	struct memory memory = { 0, 0, 0, 0, 0 };
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	fi_addr_t peer;
	size_t count;
	void *descriptor;

	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_ATOMIC | FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	/* An operation is complete after its effect on the counter. */
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
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

	/* Providers differ in their types and operations; these calls are the question for each kind. */
	TRY(fi_atomicvalid(ep, FI_UINT64, FI_SUM, &count));
	TRY(fi_fetch_atomicvalid(ep, FI_UINT64, FI_SUM, &count));
	TRY(fi_compare_atomicvalid(ep, FI_UINT64, FI_CSWAP, &count));

	/* The same as in rma.c. */
	TRY(fi_mr_reg(domain, &memory, sizeof memory, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
		      0, 1, 0, &mr, NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		TRY(fi_mr_bind(mr, &ep->fid, 0));
		TRY(fi_mr_enable(mr));
	}
	descriptor = fi_mr_desc(mr);
	my_region.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t) (uintptr_t) &memory : 0;
	my_region.key = fi_mr_key(mr);

	TRY(fi_getname(&ep->fid, mine.bytes, &mine.len));
	exchange(control, &mine, &theirs, sizeof mine);
	exchange(control, &my_region, &target, sizeof target);
	if (fi_av_insert(av, theirs.bytes, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EADDRNOTAVAIL);

	if (options.host) {
		/* The counter is the first member, so its address is that of the region. */
		memory.operand = 40;
		POST(cq, fi_atomic(ep, &memory.operand, 1, descriptor, peer, target.address, target.key, FI_UINT64, FI_SUM, &sum));
		wait_for(cq, &sum);

		memory.operand = 2;
		POST(cq, fi_fetch_atomic(ep, &memory.operand, 1, descriptor, &memory.result, descriptor, peer, target.address, target.key,
					 FI_UINT64, FI_SUM, &fetch));
		wait_for(cq, &fetch);
		printf("the counter was %" PRIu64 " before 2 was added\n", memory.result);

		memory.compare = 42;
		memory.operand = 100;
		POST(cq, fi_compare_atomic(ep, &memory.operand, 1, descriptor, &memory.compare, descriptor, &memory.result, descriptor,
					   peer, target.address, target.key, FI_UINT64, FI_CSWAP, &swap));
		wait_for(cq, &swap);
		printf("the counter was %" PRIu64 ": %s by 100\n", memory.result, memory.result == 42 ? "replaced" : "not replaced");

		POST(cq, fi_send(ep, &memory.message, 1, descriptor, peer, &message));
		wait_for(cq, &message);
	} else {
		/* Waiting makes the progress that some providers need for the accesses of peers. */
		POST(cq, fi_recv(ep, &memory.message, 1, descriptor, FI_ADDR_UNSPEC, &message));
		wait_for(cq, &message);
		printf("own counter: %" PRIu64 "\n", memory.counter);
	}

	barrier(control);
	TRY(fi_close(&mr->fid));
	TRY(fi_close(&ep->fid));
	TRY(fi_close(&cq->fid));
	TRY(fi_close(&av->fid));
	TRY(fi_close(&domain->fid));
	TRY(fi_close(&fabric->fid));
	fi_freeinfo(info);
	close(control);
	return 0;
}
