/* What fi_getinfo lists, a line for each info:
 *	provider|type|domain|fabric|address format|caps|mode|mr_mode|receive contexts
 * with numbers in hexadecimal.
 *	listed none		without hints
 *	listed any		with hints of a program that takes everything, as fi_info's are
 *	listed ask <FILE	a line of this form is asked for by hints: prints those to which there
 *				is no answer, with the error in front
 */
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int list(struct fi_info *hints)
{
	struct fi_info *all = NULL;
	int r = fi_getinfo(fi_version(), NULL, NULL, 0, hints, &all);

	if (r) {
		fprintf(stderr, "fi_getinfo: %d\n", r);
		return 1;
	}
	for (struct fi_info *i = all; i; i = i->next)
		printf("%s|%u|%s|%s|%u|%llx|%llx|%x|%zx\n", i->fabric_attr->prov_name,
		       (unsigned)i->ep_attr->type, i->domain_attr->name, i->fabric_attr->name,
		       i->addr_format, (unsigned long long)i->caps, (unsigned long long)i->mode,
		       (unsigned)i->domain_attr->mr_mode, i->ep_attr->rx_ctx_cnt);
	fi_freeinfo(all);
	return 0;
}
static int ask(void)
{
	char line[1024], *field[9];
	int bad = 0;

	while (fgets(line, sizeof line, stdin)) {
		struct fi_info *hints = fi_allocinfo(), *found = NULL;
		char whole[sizeof line], *at = line;
		int n = 0, r;

		strcpy(whole, line);
		while (n < 9 && (field[n] = strsep(&at, "|\n")))
			n++;
		if (n != 9)
			return 1;
		hints->fabric_attr->prov_name = strdup(field[0]);
		hints->ep_attr->type = strtoul(field[1], NULL, 10);
		hints->domain_attr->name = strdup(field[2]);
		hints->fabric_attr->name = strdup(field[3]);
		hints->addr_format = strtoul(field[4], NULL, 10);
		hints->caps = strtoull(field[5], NULL, 16);
		hints->mode = strtoull(field[6], NULL, 16);
		hints->domain_attr->mr_mode = strtoul(field[7], NULL, 16);
		/* how many contexts there may be is told, but not asked for */
		if (strtoull(field[8], NULL, 16) == FI_SHARED_CONTEXT)
			hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
		r = fi_getinfo(fi_version(), NULL, NULL, 0, hints, &found);
		if (r) {
			printf("%d %s", r, whole);
			bad = 1;
		} else {
			fi_freeinfo(found);
		}
		fi_freeinfo(hints);
	}
	return bad;
}
int main(int argc, char **argv)
{
	struct fi_info *hints;
	const char *what = argc > 1 ? argv[1] : "";
	int r;

	if (!strcmp(what, "none"))
		return list(NULL);
	if (!strcmp(what, "ask"))
		return ask();
	if (strcmp(what, "any"))
		return 2;
	hints = fi_allocinfo();
	hints->mode = ~0ULL;
	hints->domain_attr->mode = ~0ULL;
	hints->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE);
	r = list(hints);
	fi_freeinfo(hints);
	return r;
}
