/*
 * Reports to the application after a failure of a device or its port.  After each test
 * its caller creates the device anew, as root in the guest of ctest/vm.
 *
 *   VM_DEVICE, VM_NETDEV, VM_TYPE   the RDMA device, its interface and driver
 */
#include "ends.h"

enum { LEN = 64 };

static const char *env(const char *name)
{
	const char *value = getenv(name);

	if (!value)
		SKIP("no %s", name);
	return value;
}
static void run(const char *fmt, ...)
{
	char command[300];
	va_list a;

	va_start(a, fmt);
	vsnprintf(command, sizeof command, fmt, a);
	va_end(a);
	EQ(system(command), 0);
}
static void port_down(int rank)
{
	struct ct c;
	struct fi_cq_err_entry err;
	struct fi_cq_tagged_entry e;
	char *b, text[100];

	if (strcmp(env("VM_TYPE"), "rxe"))
		SKIP("TCP below iWARP tries for minutes");
	ct_open(&c, NULL);
	b = ct_alloc(&c, 2 * LEN);
	OK(fi_recv(c.ep, b + LEN, LEN, ct_desc(b), c.peer, CTX(0)));
	ct_barrier(&c);
	if (rank == 0) {
		run("ip link set %s down", env("VM_NETDEV"));
		POST(&c, fi_send(c.ep, b, LEN, ct_desc(b), c.peer, CTX(1)));
		EQ(ct_next(&c, c.tx, &e, NULL, &err), -FI_EAVAIL);
		run("ip link set %s up", env("VM_NETDEV"));
		CHECK(err.op_context == CTX(1));
		CHECK(err.err && err.err != FI_ECANCELED && err.prov_errno && err.err_data_size == 4);
		CHECK(*fi_cq_strerror(c.tx, err.prov_errno, err.err_data, text, sizeof text));
		wants_end(&c, 1);
	}
	/* the other side has only its own receive, which goes with the endpoint */
	ct_done(&c);
}

static void device_removed(int rank)
{
	struct ct c;
	char *b;
	const char *device = env("VM_DEVICE");

	ct_open(&c, NULL);
	b = ct_alloc(&c, 3 * LEN);
	for (int i = 0; i < 3; i++)
		OK(fi_recv(c.ep, b + i * LEN, LEN, ct_desc(b), c.peer, CTX(i)));
	ct_barrier(&c);
	/* it goes after the last process has released it */
	if (rank == 0)
		run("rdma link del %s </dev/null >/dev/null 2>&1 &", device);
	wants_end(&c, 3);
	ct_done(&c);
}

static const struct ct_test tests[] = {
	{ "a port that goes down ends sends with the device's reason", port_down, CT_MSG },
	{ "a device that is removed ends its connections", device_removed, CT_MSG },
};
CT_MAIN("outage", tests)
