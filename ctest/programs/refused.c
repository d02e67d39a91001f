/* Asks for what is named: "fits", "refused", "absent" (a provider that is not there); prints a line before each. */
#include <stdio.h>
#include <string.h>
#include <rdma/fabric.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct fi_info *hints = fi_allocinfo(), *info = NULL;
		int refused = !strcmp(argv[i], "refused"), absent = !strcmp(argv[i], "absent"), ret;

		if (!hints)
			return 1;
		hints->fabric_attr->prov_name = strdup(absent ? "no_such_provider" : "tcp");
		if (refused)
			hints->domain_attr->cq_data_size = 1 << 20;
		fprintf(stderr, "%s:\n", argv[i]);
		ret = fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info);
		if (ret != (refused || absent ? -61 : 0))
			return 1;
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
	return 0;
}
