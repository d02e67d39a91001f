/*
 * A server and clients of tcp for tests with few descriptors (ctest/faults/limit_test). A client is a process with several
 * endpoints; in each round each of them sends a short and a longer message and waits for the answer.
 * PEERS_PROVIDER names the provider (default tcp). With PEERS_TAGGED=1 the messages are tagged: a server takes requests with any
 * tag, and an answer has the tag of its request, as with Mercury. With PEERS_FILES=N a server has N files open, and opens another
 * for each message.
 *
 *   many_peers server PEERS ROUNDS          prints its address, and serves so many endpoints
 *   many_peers client ADDRESS FIRST PEERS ROUNDS [PAUSE]
 *                                           endpoints with the numbers FIRST and up; PAUSE milliseconds between rounds
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include "library.h"

enum { SHORT = 96, LONG = 5000, RECEIVES = 256, ADDRESS = 64 };

struct message {
	char address[ADDRESS];
	uint32_t peer, number, len;
	unsigned char body[LONG];
};
enum { HEAD = offsetof(struct message, body) };

#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define OK(call) do { int ok_ = (call); if (ok_) FAIL("line %d: %s: %s", __LINE__, #call, fi_strerror(-ok_)); } while (0)

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
static int tagged;

static const char *provider(void)
{
	const char *name = getenv("PEERS_PROVIDER");

	return name ? name : "tcp";
}
static void open_domain(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG, .size = 4096 };

	hints->fabric_attr->prov_name = strdup(provider());
	hints->ep_attr->type = FI_EP_RDM;
	tagged = getenv("PEERS_TAGGED") != NULL;
	hints->caps = tagged ? FI_TAGGED : FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	OK(fi_getinfo(FI_VERSION(1, 14), "127.0.0.1", "0", FI_SOURCE, hints, &info));
	fi_freeinfo(hints);
	if (strcmp(info->fabric_attr->prov_name, provider()))
		FAIL("the provider is %s", info->fabric_attr->prov_name);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
	OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
}
static struct fid_ep *open_endpoint(char *address)
{
	struct fid_ep *ep;
	size_t len = ADDRESS;

	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
	OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
	OK(fi_enable(ep));
	memset(address, 0, ADDRESS);
	OK(fi_getname(&ep->fid, address, &len));
	return ep;
}
static unsigned char byte_of(const struct message *m, uint32_t at)
{
	return (unsigned char)(m->peer * 31 + m->number * 7 + at);
}
static size_t fill(struct message *m, const char *address, uint32_t peer, uint32_t number)
{
	memcpy(m->address, address, ADDRESS);
	m->peer = peer;
	m->number = number;
	m->len = number % 2 ? LONG : SHORT;
	for (uint32_t i = 0; i < m->len; i++)
		m->body[i] = byte_of(m, i);
	return HEAD + m->len;
}
static void check_message(const struct message *m, size_t len)
{
	if (len < HEAD || m->len > LONG || len != HEAD + m->len)
		FAIL("a message of %zu bytes", len);
	for (uint32_t i = 0; i < m->len; i++)
		if (m->body[i] != byte_of(m, i))
			FAIL("message %u of peer %u is damaged at byte %u", m->number, m->peer, i);
}
/* One entry of a queue, or 0. */
static int next(struct fid_cq *cq, struct fi_cq_msg_entry *e)
{
	ssize_t n = fi_cq_read(cq, e, 1);

	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = { 0 };

		fi_cq_readerr(cq, &err, 0);
		FAIL("%s fails: %s", cq == tx ? "a send" : "a receive", fi_strerror(err.err));
	}
	if (n != 1 && n != -FI_EAGAIN)
		FAIL("fi_cq_read: %s", fi_strerror(-(int)n));
	return n == 1;
}
struct operation {
	struct fi_context2 context;	/* first */
	struct message m;
};
/* The tag of all messages of a peer, and of the answers to it. */
static uint64_t tag_of(uint32_t peer)
{
	return (uint64_t)peer << 32 | 7;
}
static void post_receive(struct fid_ep *ep, struct operation *op, uint64_t tag, uint64_t ignore)
{
	if (tagged)
		OK((int)fi_trecv(ep, &op->m, sizeof op->m, NULL, FI_ADDR_UNSPEC, tag, ignore, op));
	else
		OK((int)fi_recv(ep, &op->m, sizeof op->m, NULL, FI_ADDR_UNSPEC, op));
}
static int sent;	/* transfers complete */
static void progress(void)
{
	struct fi_cq_msg_entry e;

	while (next(tx, &e)) {
		struct operation *op = e.op_context;

		free(op);
		sent++;
	}
}
static void post_send(struct fid_ep *ep, fi_addr_t to, const char *address, uint32_t peer, uint32_t number)
{
	struct operation *op = calloc(1, sizeof *op);
	size_t len = fill(&op->m, address, peer, number);
	ssize_t n;

	while ((n = tagged ? fi_tsend(ep, &op->m, len, NULL, to, tag_of(peer), op)
			   : fi_send(ep, &op->m, len, NULL, to, op)) == -FI_EAGAIN)
		progress();
	OK((int)n);
}
/* Waits for a message, and checks it. Sleeps so many microseconds between two looks. */
static struct operation *receive(int pause)
{
	struct fi_cq_msg_entry e;

	for (progress(); !next(rx, &e); progress())
		usleep(pause);
	struct operation *op = e.op_context;

	check_message(&op->m, e.len);
	return op;
}
static int open_file(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		FAIL("a file cannot be opened: %s", strerror(errno));
	return fd;
}
static void serve(uint32_t peers, uint32_t rounds)
{
	const char *files = getenv("PEERS_FILES");

	char address[ADDRESS];
	struct fid_ep *ep;
	fi_addr_t *names = calloc(peers, sizeof *names);
	uint32_t *numbers = calloc(peers, sizeof *numbers), answers = peers * rounds;
	struct operation *ops = calloc(RECEIVES, sizeof *ops);

	for (int i = files ? atoi(files) : 0; i; i--)
		open_file();
	open_domain();
	ep = open_endpoint(address);
	for (int i = 0; i < RECEIVES; i++)
		post_receive(ep, &ops[i], 0, ~0ULL);
	for (int i = 0; i < ADDRESS; i++)
		printf("%02x", (unsigned char)address[i]);
	printf("\n");
	fflush(stdout);
	for (uint32_t left = 2 * answers; left; ) {
		struct operation *op = receive(50);
		struct message *m = &op->m;

		if (m->peer >= peers || m->number != numbers[m->peer])
			FAIL("message %u of peer %u arrives in place of %u", m->number, m->peer, numbers[m->peer % peers]);
		numbers[m->peer]++;
		if (!m->number && fi_av_insert(av, m->address, 1, &names[m->peer], 0, NULL) != 1)
			FAIL("fi_av_insert");
		if (m->number % 2)
			post_send(ep, names[m->peer], address, m->peer, m->number);
		post_receive(ep, op, 0, ~0ULL);
		if (files)
			close(open_file());
		left--;
	}
	while (sent < (int)answers)
		progress(), usleep(50);
	OK(fi_close(&ep->fid));
}
static void call(const char *server, uint32_t first, uint32_t peers, uint32_t rounds, int pause)
{
	struct fid_ep **ep = calloc(peers, sizeof *ep);
	char (*addresses)[ADDRESS] = calloc(peers, ADDRESS), to[ADDRESS];
	struct operation *ops = calloc(peers, sizeof *ops);
	fi_addr_t name;

	for (int i = 0; i < ADDRESS; i++) {
		unsigned byte;

		if (sscanf(server + 2 * i, "%2x", &byte) != 1)
			FAIL("no address");
		to[i] = (char)byte;
	}
	open_domain();
	if (fi_av_insert(av, to, 1, &name, 0, NULL) != 1)
		FAIL("fi_av_insert");
	for (uint32_t i = 0; i < peers; i++)
		ep[i] = open_endpoint(addresses[i]);
	for (uint32_t round = 0; round < rounds; round++) {
		for (uint32_t i = 0; i < peers; i++) {
			post_receive(ep[i], &ops[i], tag_of(first + i), 0);
			post_send(ep[i], name, addresses[i], first + i, 2 * round);
			post_send(ep[i], name, addresses[i], first + i, 2 * round + 1);
		}
		for (uint32_t left = peers; left; ) {
			struct operation *op = receive(200);

			if (op->m.peer != first + (op - ops) || op->m.number != 2 * round + 1)
				FAIL("answer %u to peer %u at peer %u", op->m.number, op->m.peer, first + (uint32_t)(op - ops));
			left--;
		}
		/* Peers make progress meanwhile, as a program that polls does. */
		for (int i = 0; i < pause; i++)
			progress(), usleep(1000);
	}
	for (uint32_t i = 0; i < peers; i++)
		OK(fi_close(&ep[i]->fid));
}
int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "server")) {
		serve(atoi(argv[2]), atoi(argv[3]));
	} else if (argc >= 6 && !strcmp(argv[1], "client")) {
		call(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), argc > 6 ? atoi(argv[6]) : 0);
	} else {
		return 2;
	}
	print_library();
	return 0;
}
