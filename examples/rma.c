/*
 * Remote memory access (FI_RMA): one process writes to and reads from registered memory of the other one. The other
 * process makes no call for a single access. It gets a completion only for the write with remote data.
 *
 * See fi_mr(3), fi_rma(3).
 */
#include "common.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#define SIZE 64
#define FINISHED 42	/* remote data of the last write */

/* Memory of a process, for accesses of its peer. */
struct region {
	uint64_t address, key;
};

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "One process writes to and reads from the memory of the other one.");
	int control = connect_control(&options);
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 1 };
	struct operation write = { .is_complete = 0 }, read = { .is_complete = 0 }, last = { .is_complete = 0 };
	struct address mine = { sizeof mine.bytes, { 0 } }, theirs;
	struct region my_region, target;
	struct fi_cq_tagged_entry entry;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	fi_addr_t peer;
	char memory[2 * SIZE] = { 0 };
	char *in = memory, *out = memory + SIZE;
	void *descriptor;

	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_RMA | FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	/* Duties of the program: the provider chooses among them. */
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	/* A write is complete as soon as a read of the same bytes returns them. */
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

	/*
	 * Registers the memory for local and remote use. With FI_MR_PROV_KEY the provider chooses the key, without it
	 * the program (here 1). With FI_MR_VIRT_ADDR peers name the address, without it the offset in the region.
	 */
	TRY(fi_mr_reg(domain, memory, sizeof memory, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		TRY(fi_mr_bind(mr, &ep->fid, 0));
		TRY(fi_mr_enable(mr));
	}
	descriptor = fi_mr_desc(mr);
	my_region.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t) (uintptr_t) memory : 0;
	my_region.key = fi_mr_key(mr);
	if (my_region.key == FI_KEY_NOTAVAIL)	/* FI_MR_RAW: not in the hints */
		fail("fi_mr_key", -FI_ENOKEY);

	TRY(fi_getname(&ep->fid, mine.bytes, &mine.len));
	exchange(control, &mine, &theirs, sizeof mine);
	exchange(control, &my_region, &target, sizeof target);
	if (fi_av_insert(av, theirs.bytes, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", -FI_EADDRNOTAVAIL);

	if (options.host) {
		snprintf(out, SIZE, "written by the client");
		POST(cq, fi_write(ep, out, SIZE, descriptor, peer, target.address, target.key, &write));
		wait_for(cq, &write);
		POST(cq, fi_read(ep, in, SIZE, descriptor, peer, target.address, target.key, &read));
		wait_for(cq, &read);
		printf("read from the server: %.*s\n", SIZE - 1, in);
		if (memcmp(in, out, SIZE))
			fail("the bytes differ", -FI_EOTHER);
		/* A write with data: the target gets a completion with this number. */
		snprintf(out, SIZE, "the last write");
		POST(cq, fi_writedata(ep, out, SIZE, descriptor, FINISHED, peer, target.address + SIZE, target.key, &last));
		wait_for(cq, &last);
	} else {
		/* Waiting makes the progress that some providers need for the accesses of peers. */
		entry = read_completion(cq);
		if (!(entry.flags & FI_REMOTE_CQ_DATA) || entry.data != FINISHED)
			fail("an unexpected completion", -FI_EOTHER);
		printf("own memory: %.*s, %.*s\n", SIZE - 1, memory, SIZE - 1, memory + SIZE);
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
