/* A hook provider of another vendor, "ofi_hook_third": prints its calls and the number of
 * domains opened through it by programs.  "ofi_hook_fails" (-DFAILS) cannot be installed. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

static struct fid_fabric *inner;
static struct fid_fabric outer;

#ifndef FAILS
static int domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	(void)fabric;
	fprintf(stderr, "third: domain %s\n", info->domain_attr->name);
	return fi_domain(inner, info, domain, context);
}
static int passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context) { (void)fabric; return fi_passive_ep(inner, info, pep, context); }
static int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context) { (void)fabric; return fi_eq_open(inner, attr, eq, context); }
static int wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **wait) { (void)fabric; return fi_wait_open(inner, attr, wait); }
static int trywait(struct fid_fabric *fabric, struct fid **fids, int count) { (void)fabric; return fi_trywait(inner, fids, count); }
static int close_fabric(struct fid *fid)
{
	(void)fid;
	fprintf(stderr, "third: closed\n");
	return fi_close(&inner->fid);
}
static struct fi_ops fid_ops = { .size = sizeof fid_ops, .close = close_fabric };
/* a table that ends before domain2 */
static struct fi_ops_fabric ops = { .size = offsetof(struct fi_ops_fabric, domain2), .domain = domain, .passive_ep = passive_ep, .eq_open = eq_open, .wait_open = wait_open, .trywait = trywait };
#endif
static int hook(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	struct fi_provider *prov = context;
#ifdef FAILS
	*fabric = NULL;
	(void)attr; (void)prov; (void)outer; (void)inner;
	return -FI_ENOMEM;
#else
	fprintf(stderr, "third: around %s, class %zu, context %p, names %s, %s\n", prov->name, attr->fabric->fid.fclass,
		attr->fabric->fid.context, attr->name ? attr->name : "none", attr->prov_name ? attr->prov_name : "none");
	inner = attr->fabric;
	outer = *inner;
	outer.fid.ops = &fid_ops;
	outer.ops = &ops;
	*fabric = &outer;
	return 0;
#endif
}
static struct fi_provider provider = { .version = FI_VERSION(1, 0), .fi_version = FI_VERSION(1, 17), .fabric = hook,
#ifdef FAILS
	.name = "ofi_hook_fails",
#else
	.name = "ofi_hook_third",
#endif
};
struct fi_provider *fi_prov_ini(void);
__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void) { return &provider; }
