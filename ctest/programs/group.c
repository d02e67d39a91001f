/*
 * A member of a multicast group of datagrams, for tests of one libfabric against another.
 *
 *   group hear ADDRESS GROUP PORT	prints "joined", hears ten messages, and ends
 *   group tell ADDRESS GROUP PORT	joins to send, and sends until it is ended
 *
 * ADDRESS is the endpoint's own; one that hears has the group's port there.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#define OK(x) do { long r_ = (long)(x); if (r_) { printf("%s: %ld %s\n", #x, r_, fi_strerror((int)-r_)); exit(1); } } while (0)

int main(int argc, char **argv)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_MSG };
	struct fi_eq_attr a = { .size = 8 };
	struct fi_av_attr v = { .type = FI_AV_TABLE };
	struct sockaddr_in g = { .sin_family = AF_INET };
	struct fi_info *h = fi_allocinfo(), *i;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_eq *eq;
	struct fid_cq *tx, *rx;
	struct fid_av *av;
	struct fid_mc *mc;
	struct fi_eq_entry e;
	struct fi_cq_msg_entry x;
	uint32_t ev = 0;
	char buf[64] = "";
	int receives;

	if (argc != 5)
		return 2;
	receives = !strcmp(argv[1], "hear");
	setvbuf(stdout, NULL, _IOLBF, 0);
	h->caps = FI_MSG | FI_MULTICAST;
	h->ep_attr->type = FI_EP_DGRAM;
	h->fabric_attr->prov_name = strdup("udp");
	h->addr_format = FI_SOCKADDR_IN;
	OK(fi_getinfo(FI_VERSION(1, 17), argv[2], receives ? argv[4] : "0", FI_SOURCE, h, &i));
	OK(fi_fabric(i->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, i, &domain, NULL));
	OK(fi_cq_open(domain, &q, &tx, NULL));
	OK(fi_cq_open(domain, &q, &rx, NULL));
	OK(fi_av_open(domain, &v, &av, NULL));
	OK(fi_eq_open(fabric, &a, &eq, NULL));
	OK(fi_endpoint(domain, i, &ep, NULL));
	OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_enable(ep));
	g.sin_port = htons(atoi(argv[4]));
	if (inet_pton(AF_INET, argv[3], &g.sin_addr) != 1)
		return 2;
	OK(fi_join(ep, &g, receives ? FI_RECV : FI_SEND, &mc, NULL));
	while (fi_eq_read(eq, &ev, &e, sizeof e, 0) != sizeof e || ev != FI_JOIN_COMPLETE)
		usleep(1000);
	printf("joined\n");
	for (int n = 0; !receives || n < 10; n++) {
		if (receives) {
			ssize_t r;

			OK(fi_recv(ep, buf, sizeof buf, NULL, FI_ADDR_UNSPEC, NULL));
			while ((r = fi_cq_read(rx, &x, 1)) == -FI_EAGAIN)
				usleep(1000);
			if (r != 1 || x.len != 20 || strcmp(buf, "to all of the group")) {
				printf("heard: %zd, %zu bytes, %.20s\n", r, x.len, buf);
				return 1;
			}
		} else {
			struct iovec iov = { "to all of the group", 20 };
			struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = fi_mc_addr(mc) };

			OK(fi_sendmsg(ep, &m, FI_MULTICAST));
			while (fi_cq_read(tx, &x, 1) == -FI_EAGAIN)
				;
			usleep(10000);
		}
	}
	printf("heard ten\n");
	OK(fi_close(&mc->fid));
	return 0;
}
