/*
 * Connected endpoints (FI_EP_MSG): a listener, a connection, one message in each direction, and the end of the
 * connection. An event queue reports connections; a completion queue reports transfers.
 *
 * See fi_cm(3), fi_eq(3), fi_msg(3).
 */
#include "common.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define SIZE 64

static struct fid_fabric *fabric;
static struct fid_eq *eq;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_ep *ep;

/*
 * Waits for an event of connections. A connection request contains a fi_info. Some providers notice the end of a
 * connection only while the program reads the completion queue.
 */
static struct fi_info *wait_event(uint32_t expected)
{
	struct fi_eq_cm_entry entry;
	struct fi_eq_err_entry error = { 0 };
	uint32_t event;
	int waited = 0;
	ssize_t n;

	while ((n = fi_eq_sread(eq, &event, &entry, sizeof entry, 100, 0)) == -FI_EAGAIN && waited < TIMEOUT) {
		if (cq)
			(void) fi_cq_read(cq, NULL, 0);
		waited += 100;
	}
	if (n == -FI_EAVAIL) {		/* for example a rejected request */
		TRY(fi_eq_readerr(eq, &error, 0));
		fail("connection", -error.err);
	}
	if (n < 0)
		fail("fi_eq_sread", n);
	if (event != expected)
		fail("an unexpected event", -FI_EOTHER);
	return entry.info;
}

static struct fi_info *get_info(const struct options *options, const struct address *destination)
{
	struct fi_info *hints = fi_allocinfo(), *info;

	if (!hints)
		fail("fi_allocinfo", -FI_ENOMEM);
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;	/* each operation has a context: struct operation */
	hints->fabric_attr->prov_name = strdup(options->provider);
	if (destination) {		/* freed with the hints */
		hints->dest_addr = malloc(destination->len);
		if (!hints->dest_addr)
			fail("malloc", -FI_ENOMEM);
		memcpy(hints->dest_addr, destination->bytes, destination->len);
		hints->dest_addrlen = destination->len;
	}
	TRY(fi_getinfo(API, NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	return info;
}

/* Opens the endpoint of a connection, by the info of a destination or of a connection request. */
static void open_endpoint(struct fi_info *info)
{
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };

	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &eq->fid, 0));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_enable(ep));
}

int main(int argc, char **argv)
{
	struct options options = parse(argc, argv, "Two processes connect, and exchange a message.");
	int control = connect_control(&options);
	struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
	struct operation receive = { .is_complete = 0 }, send = { .is_complete = 0 };
	struct address address = { sizeof address.bytes, { 0 } }, unused;
	struct fi_info *info, *request;
	struct fid_pep *pep = NULL;
	char in[SIZE], out[SIZE];

	if (!options.host) {
		/* The listener. Its address is known once it listens. */
		info = get_info(&options, NULL);
		TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
		TRY(fi_eq_open(fabric, &eq_attr, &eq, NULL));
		TRY(fi_passive_ep(fabric, info, &pep, NULL));
		TRY(fi_pep_bind(pep, &eq->fid, 0));
		TRY(fi_listen(pep));
		TRY(fi_getname(&pep->fid, address.bytes, &address.len));
		exchange(control, &address, &unused, sizeof address);

		request = wait_event(FI_CONNREQ);
		open_endpoint(request);
		fi_freeinfo(request);
		/* A receive that is posted before the connection exists misses no message. */
		POST(cq, fi_recv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, &receive));
		TRY(fi_accept(ep, NULL, 0));
		wait_event(FI_CONNECTED);
	} else {
		exchange(control, &address, &address, sizeof address);
		info = get_info(&options, &address);
		TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
		TRY(fi_eq_open(fabric, &eq_attr, &eq, NULL));
		open_endpoint(info);
		POST(cq, fi_recv(ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, &receive));
		TRY(fi_connect(ep, info->dest_addr, NULL, 0));
		wait_event(FI_CONNECTED);
	}
	printf("connected over %s\n", info->fabric_attr->prov_name);

	snprintf(out, sizeof out, "hello from the %s", options.host ? "client" : "server");
	POST(cq, fi_send(ep, out, sizeof out, NULL, FI_ADDR_UNSPEC, &send));
	wait_for(cq, &receive);
	wait_for(cq, &send);
	printf("received %zu bytes: %.*s\n", receive.entry.len, SIZE - 1, in);

	/* One end closes the connection, the other one gets an event about it. */
	barrier(control);
	if (options.host)
		TRY(fi_shutdown(ep, 0));
	else
		wait_event(FI_SHUTDOWN);

	/* Objects are closed before those that they were opened with. */
	TRY(fi_close(&ep->fid));
	TRY(fi_close(&cq->fid));
	TRY(fi_close(&domain->fid));
	if (pep)
		TRY(fi_close(&pep->fid));
	TRY(fi_close(&eq->fid));
	TRY(fi_close(&fabric->fid));
	fi_freeinfo(info);
	close(control);
	return 0;
}
