// What the programs on the uDAPL plug-in share.
#include <dat2/udat.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int bad;
static void tell(int ok, const char *what, int line)
{
	printf("%s %s", ok ? "ok" : "FAIL", what);
	if (!ok) { printf(" (line %d)", line); bad = 1; }
	puts("");
}
#define CHECK(ok, what) tell(!!(ok), what, __LINE__)
#define TYPE(answer, type) (DAT_GET_TYPE(answer) == (type))
#define SUB(answer, type, subtype) (TYPE(answer, type) && DAT_GET_SUBTYPE(answer) == (subtype))
#define MUST(call) do { DAT_RETURN r_ = (call); if (r_) { printf("FAIL %s answered %x (line %d)\n", #call, r_, __LINE__); exit(1); } } while (0)

static DAT_IA_HANDLE ia;
static DAT_EVENT next(DAT_EVD_HANDLE evd)
{
	DAT_EVENT e; DAT_COUNT more;
	memset(&e, 0, sizeof e);
	if (dat_evd_wait(evd, 100000000, 1, &e, &more)) e.event_number = 0;
	return e;
}
static int nothing(DAT_EVD_HANDLE evd)
{
	DAT_EVENT e; DAT_COUNT more;
	return TYPE(dat_evd_wait(evd, 50000, 1, &e, &more), DAT_TIMEOUT_EXPIRED);
}
static DAT_DTO_COOKIE cookie(uint64_t n) { return (DAT_DTO_COOKIE){ .as_64 = n }; }
// The adaptor's own address.
static struct sockaddr_storage here(void)
{
	DAT_IA_ATTR a;
	struct sockaddr_storage to = { 0 };
	MUST(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &a, 0, NULL));
	memcpy(&to, a.ia_address_ptr, a.ia_address_ptr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	return to;
}
