/* Opens an endpoint with FI_COLLECTIVE of the provider that is named, and prints the call that failed and its answer, or "opened". */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *call, int r)
{
	printf("%s: %d\n", call, r);
	return 1;
}
int main(int argc, char **argv)
{
	struct fi_info *h = fi_allocinfo(), *i;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	int r;

	if (!h || argc != 2)
		return 2;
	h->caps = FI_TAGGED | FI_COLLECTIVE;
	h->ep_attr->type = FI_EP_RDM;
	h->mode = ~0ULL;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->fabric_attr->prov_name = strdup(argv[1]);
	if ((r = fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, h, &i)))
		return failed("fi_getinfo", r);
	if ((r = fi_fabric(i->fabric_attr, &fabric, NULL)))
		return failed("fi_fabric", r);
	if ((r = fi_domain(fabric, i, &domain, NULL)))
		return failed("fi_domain", r);
	if ((r = fi_endpoint(domain, i, &ep, NULL)))
		return failed("fi_endpoint", r);
	puts("opened");
	return 0;
}
