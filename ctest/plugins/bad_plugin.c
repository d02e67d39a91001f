/*
 * A plug-in that is right, or wrong in one way: compiled once per way.
 *   -DNAME='"x"' -DGETINFO=getinfo -DFABRIC=fabric -DVERSION='FI_VERSION(1, 9)' -DINI=fi_prov_ini -DRESULT='&prov'
 *   -DPROV_VERSION='FI_VERSION(7, 1)'
 */
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>
#include <stddef.h>

#ifndef PROV_VERSION
#define PROV_VERSION FI_VERSION(7, 1)
#endif

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **info)
{
	(void)version, (void)node, (void)service, (void)flags, (void)hints, (void)info;
	return -FI_ENODATA;
}

static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void)attr, (void)fabric, (void)context;
	return -FI_ENOSYS;
}

static __attribute__((unused)) struct fi_provider prov = {
	.version = PROV_VERSION, .fi_version = VERSION, .name = NAME, .getinfo = GETINFO, .fabric = FABRIC,
};
#ifdef NEEDS
extern void NEEDS(void);
void (*volatile needs)(void) = NEEDS;
#endif

__attribute__((visibility("default"))) struct fi_provider *INI(void)
{
	(void)getinfo, (void)fabric;
	return RESULT;
}
