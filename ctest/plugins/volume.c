/*
 * Two processes send each other tagged messages of random sizes, 16 at a time, and look at every byte; with -r they also read and
 * write each other's memory; with -u receives are of any source and posted after messages have arrived, the first ones of an unknown
 * peer; with -w a caller without anything to send sleeps in fi_cq_sread until there is a completion. For providers of any kind: plug-ins of other projects, over networks that change the order.
 *
 *   volume -p PROVIDER [-m MIB] [-s SEED] [-S MAX_SIZE] [-r] [-u] [-w]
 *
 * Prints the libfabric that it has mapped, and the number of messages. Ends with status 1 on any error, and after 300 seconds.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "../programs/library.h"

enum { WINDOW = 16, TAGS = 7, REMOTE = 200, REGION = 4 << 20 };
#define TRY(call) do { long r_ = (long)(call); if (r_ < 0) { \
	fprintf(stderr, "volume: %s: %s\n", #call, fi_strerror((int)-r_)); exit(1); } } while (0)

static const char *provider = "tcp";
static uint64_t bytes = 16 << 20, seed = 1;
static size_t max_size = 4 << 20;
static int side, rma, late, sleeps, wire, is_local;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
struct operation { struct fi_context2 context; unsigned char *buf; void *desc; uint64_t number; size_t len; int is_done; };
static struct operation sends[WINDOW], recvs[WINDOW], remote;
struct exposed { uint64_t base, key; };

static void die(const char *what)
{
	fprintf(stderr, "volume: %s (seed %llu)\n", what, (unsigned long long)seed);
	exit(1);
}
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}
/* As many messages below 64 bytes as between 64 KiB and 4 MiB. */
static size_t size_of(int from, uint64_t number)
{
	uint64_t r = mix(seed * 2 + (uint64_t)from + number * 0x9e3779b97f4a7c15u);
	unsigned int bits = 1;

	while ((size_t)1 << bits < max_size)
		bits++;
	return (size_t)(mix(r) & (((uint64_t)1 << r % (bits + 1)) - 1)) % (max_size + 1);
}
static uint64_t word_of(int from, uint64_t number, size_t at) { return (number * 2 + (uint64_t)from + seed * 31) * 0x9e3779b97f4a7c15u + at * 0xff51afd7ed558ccdu; }
static void fill(unsigned char *buf, size_t len, int from, uint64_t number)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = word_of(from, number, i);

		memcpy(buf + i, &word, len - i < 8 ? len - i : 8);
	}
}
static int is_filled(const unsigned char *buf, size_t len, int from, uint64_t number)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = word_of(from, number, i);

		if (memcmp(buf + i, &word, len - i < 8 ? len - i : 8))
			return 0;
	}
	return 1;
}

static unsigned char *buffer(size_t len, uint64_t access, void **desc, struct exposed *exposed)
{
	static uint64_t key;
	unsigned char *buf = aligned_alloc(4096, (len + 4095) / 4096 * 4096);
	struct fid_mr *mr;

	if (!buf)
		die("no memory");
	memset(buf, 0xee, len);
	if (is_local || exposed) {
		TRY(fi_mr_reg(domain, buf, len, access, 0, ++key, 0, &mr, NULL));
		if (desc)
			*desc = fi_mr_desc(mr);
		if (exposed)
			exposed->key = fi_mr_key(mr);
	}
	return buf;
}
static struct timespec time_in(long ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += ms * 1000000;
	t.tv_sec += t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}
static int before(const struct timespec *end)
{
	struct timespec t = time_in(0);

	return t.tv_sec < end->tv_sec || (t.tv_sec == end->tv_sec && t.tv_nsec < end->tv_nsec);
}
static void wire_write(const void *what, size_t len)
{
	if (write(wire, what, len) != (ssize_t)len)
		die("the other process is gone");
}
static void wire_read(void *what, size_t len)
{
	if (recv(wire, what, len, MSG_WAITALL) != (ssize_t)len)
		die("the other process is gone");
}
static void progress_for(int ms)
{
	struct fi_cq_tagged_entry entry[8];
	ssize_t n = ms ? fi_cq_sread(cq, entry, 8, NULL, ms) : fi_cq_read(cq, entry, 8);

	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = { 0 };

		fi_cq_readerr(cq, &err, 0);
		fprintf(stderr, "volume: an operation failed: %s, provider's error %d\n", fi_strerror(err.err), err.prov_errno);
		exit(1);
	}
	if (n == -FI_EAGAIN && !ms)
		return;
	if (n == -FI_EAGAIN)
		die("a sleeping caller was not woken");
	TRY(n);
	for (ssize_t i = 0; i < n; i++) {
		struct operation *op = entry[i].op_context;

		if (entry[i].flags & FI_RECV && entry[i].len != op->len)
			die("a message has another length");
		op->is_done = 1;
	}
}
static void progress(void) { progress_for(0); }
#define POST(call) do { ssize_t r_; while ((r_ = (call)) == -FI_EAGAIN) progress(); TRY(r_); } while (0)

static void post_recv(struct operation *op, uint64_t number)
{
	op->number = number;
	op->len = size_of(!side, number);
	op->is_done = 0;
	for (int i = 0; late && i < 20; i++)
		progress();
	POST(fi_trecv(ep, op->buf, max_size, op->desc, late ? FI_ADDR_UNSPEC : peer, number % TAGS, 0, &op->context));
}
static void post_send(struct operation *op, uint64_t number)
{
	op->number = number;
	op->is_done = 0;
	op->len = size_of(side, number);
	fill(op->buf, op->len, side, number);
	POST(fi_tsend(ep, op->buf, op->len, op->desc, peer, number % TAGS, &op->context));
}

static void exchange_messages(void)
{
	uint64_t count[2] = { 0, 0 };	/* of either side: both know the sizes of both */
	uint64_t sent = 0, completed = 0, received = 0, posted = 0;
	int is_idle;

	for (int from = 0; from < 2; from++)
		for (uint64_t all = 0; all < bytes; count[from]++)
			all += size_of(from, count[from]) + 1;
	while (posted < WINDOW && posted < count[!side]) {
		post_recv(&recvs[posted % WINDOW], posted);
		posted++;
	}
	while (completed < count[side] || received < count[!side]) {
		struct operation *op = &sends[sent % WINDOW];

		if (sent < count[side] && sent - completed < WINDOW)
			post_send(op, sent++);
		is_idle = sent == count[side] || sent - completed == WINDOW;
		is_idle = is_idle && !(completed < sent && sends[completed % WINDOW].is_done);
		is_idle = is_idle && !(received < count[!side] && recvs[received % WINDOW].is_done);
		progress_for(sleeps && is_idle ? 20000 : 0);
		while (completed < sent && sends[completed % WINDOW].is_done)
			completed++;
		op = &recvs[received % WINDOW];
		if (received < count[!side] && op->is_done) {
			if (!is_filled(op->buf, op->len, !side, op->number))
				die("a message has other bytes");
			received++;
			if (posted < count[!side])
				post_recv(op, posted++);
		}
	}
	printf("%llu messages sent, %llu received\n", (unsigned long long)sent, (unsigned long long)received);
}

/* The first half of each region is read, the second is written. */
static void access_memory(unsigned char *region, struct exposed other)
{
	enum { HALF = REGION / 2 };

	for (uint64_t i = 0; i < REMOTE; i++) {
		size_t len = size_of(side, ~i) % (HALF / 2) + 1, at = mix(i + seed) % (HALF - len) / 8 * 8;
		int is_write = i % 2;

		for (int step = is_write ? 0 : 1; step < 2; step++) {
			uint64_t addr = other.base + at + (is_write ? HALF : 0);

			remote.is_done = 0;
			remote.len = len;
			if (!step) {
				fill(remote.buf, len, side, ~i);
				/* a transmitted write may be overtaken by the read */
				POST(fi_writemsg(ep, &(struct fi_msg_rma){
					.msg_iov = &(struct iovec){ remote.buf, len }, .desc = &remote.desc, .iov_count = 1, .addr = peer,
					.rma_iov = &(struct fi_rma_iov){ addr, len, other.key }, .rma_iov_count = 1, .context = &remote.context,
				}, FI_COMPLETION | FI_DELIVERY_COMPLETE));
			} else {
				memset(remote.buf, 0xdd, len);
				POST(fi_read(ep, remote.buf, len, remote.desc, peer, addr, other.key, &remote.context));
			}
			while (!remote.is_done)
				progress();
		}
		if (is_write ? !is_filled(remote.buf, len, side, ~i) : memcmp(remote.buf, region + at, len))
			die("remote memory has other bytes");
	}
	printf("%d remote accesses\n", REMOTE);
}

static void run(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 256 };
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE, .count = 4 };
	struct exposed own = { 0 }, other = { 0 };
	struct fid_fabric *fabric;
	struct fid_av *av;
	unsigned char *region = NULL;
	char name[512] = { 0 };
	size_t len = sizeof name;
	char end = 0;

	alarm(300);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED | (rma ? FI_RMA : 0);
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->fabric_attr->prov_name = strdup(provider);
	TRY(fi_getinfo(FI_VERSION(1, 14), NULL, NULL, 0, hints, &info));
	is_local = !!(info->domain_attr->mr_mode & FI_MR_LOCAL);
	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	cq_attr.wait_obj = sleeps ? FI_WAIT_UNSPEC : FI_WAIT_NONE;
	TRY(fi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(fi_av_open(domain, &av_attr, &av, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_enable(ep));
	TRY(fi_getname(&ep->fid, name, &len));
	for (int i = 0; i < WINDOW; i++) {
		sends[i].buf = buffer(max_size, FI_SEND, &sends[i].desc, NULL);
		recvs[i].buf = buffer(max_size, FI_RECV, &recvs[i].desc, NULL);
	}
	if (rma) {
		/* of both sides with the same bytes: the reader knows them */
		remote.buf = buffer(REGION, FI_READ | FI_WRITE, &remote.desc, NULL);
		region = buffer(REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, NULL, &own);
		fill(region, REGION, 0, 12345);
		own.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)region : 0;
	}
	wire_write(name, sizeof name);
	wire_write(&own, sizeof own);
	wire_read(name, sizeof name);
	wire_read(&other, sizeof other);
	for (struct timespec end = time_in(late && side ? 300 : 0); before(&end);)
		progress();
	if (fi_av_insert(av, name, 1, &peer, 0, NULL) != 1)
		die("the address is refused");
	exchange_messages();
	if (rma)
		access_memory(region, other);
	/* the other may need this one's progress until it has all */
	wire_write(&end, 1);
	while (recv(wire, &end, 1, MSG_DONTWAIT) != 1)
		progress();
	print_library();
	TRY(fi_close(&ep->fid));
}

int main(int argc, char **argv)
{
	int wires[2], status = 0, o;
	pid_t child;

	while ((o = getopt(argc, argv, "p:m:s:S:ruw")) != -1) switch (o) {
	case 'p': provider = optarg; break;
	case 'm': bytes = strtoull(optarg, NULL, 0) << 20; break;
	case 's': seed = strtoull(optarg, NULL, 0); break;
	case 'S': max_size = strtoull(optarg, NULL, 0); break;
	case 'r': rma = 1; break;
	case 'u': late = 1; break;
	case 'w': sleeps = 1; break;
	default: return 2;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, wires))
		return 1;
	child = fork();
	side = !child;
	wire = wires[side];
	close(wires[!side]);
	run();
	if (child && (wait(&status) != child || status)) {
		fprintf(stderr, "volume: the child ended with status %d\n", status);
		return 1;
	}
	return 0;
}
