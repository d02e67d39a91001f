/* What a project builds that uses libfabric: prints the versions and a provider. */
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <stdio.h>

int main(void)
{
	struct fi_info *info = NULL;
	int r = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &info);

	if (r) {
		fprintf(stderr, "fi_getinfo: %s\n", fi_strerror(-r));
		return 1;
	}
	printf("headers %d.%d, library %u.%u, %s\n", FI_MAJOR_VERSION, FI_MINOR_VERSION,
	       FI_MAJOR(fi_version()), FI_MINOR(fi_version()), info->fabric_attr->prov_name);
	fi_freeinfo(info);
	return 0;
}
