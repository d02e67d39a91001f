/* What fi_getinfo answers to sets of hints, a line for each provider and set:
 *	provider<TAB>number<TAB>hints<TAB>answer
 * where the hints are the attributes that the set names, and the answer is the error or the attributes of the first info, as
 * name=value with blanks between them.  Sets are the same in each run and over each library: first each choice on its own,
 * then choices that a generator of numbers makes.
 *	hint_sets COUNT VERSION PROVIDER...	VERSION: the newest version of the API that sets ask for, as in 1.17
 */
#include <arpa/inet.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum kind { NUMBER, FLAGS, ORDER, MODE, MR_MODE, NAMED };

/* Attributes: a name, how its values read, and where it is in an info. */
#define ATTRIBUTES(X) \
	X(caps, FLAGS, caps) X(mode, MODE, mode) X(addr_format, NAMED, addr_format) \
	X(ep_type, NAMED, ep_attr->type) X(protocol, NUMBER, ep_attr->protocol) \
	X(protocol_version, NUMBER, ep_attr->protocol_version) X(max_msg_size, NUMBER, ep_attr->max_msg_size) \
	X(msg_prefix_size, NUMBER, ep_attr->msg_prefix_size) X(max_order_raw_size, NUMBER, ep_attr->max_order_raw_size) \
	X(max_order_war_size, NUMBER, ep_attr->max_order_war_size) \
	X(max_order_waw_size, NUMBER, ep_attr->max_order_waw_size) X(mem_tag_format, NUMBER, ep_attr->mem_tag_format) \
	X(tx_ctx_cnt, NUMBER, ep_attr->tx_ctx_cnt) X(rx_ctx_cnt, NUMBER, ep_attr->rx_ctx_cnt) \
	X(tx.caps, FLAGS, tx_attr->caps) X(tx.mode, MODE, tx_attr->mode) X(tx.op_flags, FLAGS, tx_attr->op_flags) \
	X(tx.msg_order, ORDER, tx_attr->msg_order) X(tx.comp_order, ORDER, tx_attr->comp_order) \
	X(tx.inject_size, NUMBER, tx_attr->inject_size) X(tx.size, NUMBER, tx_attr->size) \
	X(tx.iov_limit, NUMBER, tx_attr->iov_limit) X(tx.rma_iov_limit, NUMBER, tx_attr->rma_iov_limit) \
	X(rx.caps, FLAGS, rx_attr->caps) X(rx.mode, MODE, rx_attr->mode) X(rx.op_flags, FLAGS, rx_attr->op_flags) \
	X(rx.msg_order, ORDER, rx_attr->msg_order) X(rx.comp_order, ORDER, rx_attr->comp_order) \
	X(rx.total_buffered_recv, NUMBER, rx_attr->total_buffered_recv) X(rx.size, NUMBER, rx_attr->size) \
	X(rx.iov_limit, NUMBER, rx_attr->iov_limit) \
	X(threading, NAMED, domain_attr->threading) X(control_progress, NAMED, domain_attr->control_progress) \
	X(data_progress, NAMED, domain_attr->data_progress) X(resource_mgmt, NAMED, domain_attr->resource_mgmt) \
	X(av_type, NAMED, domain_attr->av_type) X(mr_mode, MR_MODE, domain_attr->mr_mode) \
	X(mr_key_size, NUMBER, domain_attr->mr_key_size) X(cq_data_size, NUMBER, domain_attr->cq_data_size) \
	X(cq_cnt, NUMBER, domain_attr->cq_cnt) X(ep_cnt, NUMBER, domain_attr->ep_cnt) \
	X(domain.tx_ctx_cnt, NUMBER, domain_attr->tx_ctx_cnt) X(domain.rx_ctx_cnt, NUMBER, domain_attr->rx_ctx_cnt) \
	X(max_ep_tx_ctx, NUMBER, domain_attr->max_ep_tx_ctx) X(max_ep_rx_ctx, NUMBER, domain_attr->max_ep_rx_ctx) \
	X(max_ep_stx_ctx, NUMBER, domain_attr->max_ep_stx_ctx) X(max_ep_srx_ctx, NUMBER, domain_attr->max_ep_srx_ctx) \
	X(cntr_cnt, NUMBER, domain_attr->cntr_cnt) X(mr_iov_limit, NUMBER, domain_attr->mr_iov_limit) \
	X(domain.caps, FLAGS, domain_attr->caps) X(domain.mode, MODE, domain_attr->mode) \
	X(max_err_data, NUMBER, domain_attr->max_err_data) X(mr_cnt, NUMBER, domain_attr->mr_cnt)

struct attribute {
	const char *name;
	enum kind kind;
};
#define NAME(name, kind, at) { #name, kind },
static const struct attribute attributes[] = { ATTRIBUTES(NAME) };
enum { ATTRIBUTE_COUNT = sizeof attributes / sizeof *attributes };

static uint64_t get(const struct fi_info *info, int which)
{
	int n = 0;
#define GET(name, kind, at) if (n++ == which) return (uint64_t)info->at;
	ATTRIBUTES(GET)
	return 0;
}
static void set(struct fi_info *info, int which, uint64_t value)
{
	int n = 0;
#define SET(name, kind, at) if (n++ == which) info->at = value;
	ATTRIBUTES(SET)
}
static int attribute(const char *name)
{
	for (int n = 0; n < ATTRIBUTE_COUNT; n++)
		if (!strcmp(attributes[n].name, name))
			return n;
	fprintf(stderr, "no attribute %s\n", name);
	exit(2);
}

/* Bits by their names. */
struct bit {
	const char *name;
	uint64_t bit;
};
#define BIT(name) { #name, name }
static const struct bit flags[] = {
	BIT(FI_MSG), BIT(FI_RMA), BIT(FI_TAGGED), BIT(FI_ATOMIC), BIT(FI_MULTICAST), BIT(FI_COLLECTIVE), BIT(FI_READ),
	BIT(FI_WRITE), BIT(FI_RECV), BIT(FI_SEND), BIT(FI_REMOTE_READ), BIT(FI_REMOTE_WRITE), BIT(FI_MULTI_RECV),
	BIT(FI_REMOTE_CQ_DATA), BIT(FI_MORE), BIT(FI_TRIGGER), BIT(FI_FENCE), BIT(FI_COMPLETION), BIT(FI_INJECT),
	BIT(FI_INJECT_COMPLETE), BIT(FI_TRANSMIT_COMPLETE), BIT(FI_DELIVERY_COMPLETE), BIT(FI_COMMIT_COMPLETE),
	BIT(FI_MATCH_COMPLETE), BIT(FI_AV_USER_ID), BIT(FI_PEER), BIT(FI_XPU), BIT(FI_RMA_PMEM),
	BIT(FI_SOURCE_ERR), BIT(FI_LOCAL_COMM), BIT(FI_REMOTE_COMM), BIT(FI_SHARED_AV), BIT(FI_RMA_EVENT), BIT(FI_SOURCE),
	BIT(FI_NAMED_RX_CTX), BIT(FI_DIRECTED_RECV), BIT(FI_HMEM), { NULL, 0 },
};
static const struct bit orders[] = {
	BIT(FI_ORDER_RAR), BIT(FI_ORDER_RAW), BIT(FI_ORDER_RAS), BIT(FI_ORDER_WAR), BIT(FI_ORDER_WAW), BIT(FI_ORDER_WAS),
	BIT(FI_ORDER_SAR), BIT(FI_ORDER_SAW), BIT(FI_ORDER_SAS), BIT(FI_ORDER_RMA_RAR), BIT(FI_ORDER_RMA_RAW),
	BIT(FI_ORDER_RMA_WAR), BIT(FI_ORDER_RMA_WAW), BIT(FI_ORDER_ATOMIC_RAR), BIT(FI_ORDER_ATOMIC_RAW),
	BIT(FI_ORDER_ATOMIC_WAR), BIT(FI_ORDER_ATOMIC_WAW), BIT(FI_ORDER_DATA), { NULL, 0 },
};
static const struct bit modes[] = {
	BIT(FI_CONTEXT), BIT(FI_MSG_PREFIX), BIT(FI_ASYNC_IOV), BIT(FI_RX_CQ_DATA), BIT(FI_LOCAL_MR), BIT(FI_CONTEXT2),
	BIT(FI_BUFFERED_RECV), { NULL, 0 },
};
static const struct bit mr_modes[] = {
	BIT(FI_MR_BASIC), BIT(FI_MR_SCALABLE), BIT(FI_MR_LOCAL), BIT(FI_MR_RAW), BIT(FI_MR_VIRT_ADDR), BIT(FI_MR_ALLOCATED),
	BIT(FI_MR_PROV_KEY), BIT(FI_MR_MMU_NOTIFY), BIT(FI_MR_RMA_EVENT), BIT(FI_MR_ENDPOINT), BIT(FI_MR_HMEM),
	BIT(FI_MR_COLLECTIVE), { NULL, 0 },
};
static const struct bit *bits_of(enum kind kind)
{
	return kind == FLAGS ? flags : kind == ORDER ? orders : kind == MODE ? modes : mr_modes;
}
static void print_value(enum kind kind, uint64_t value)
{
	const char *comma = "";

	if (kind == NUMBER || kind == NAMED) {
		if (value == SIZE_MAX)
			printf("max");
		else
			printf("%llu", (unsigned long long)value);
		return;
	}
	if (value == UINT64_MAX) {
		printf("all");
		return;
	}
	if (kind == MR_MODE)
		value = (uint32_t)value;
	for (const struct bit *bit = bits_of(kind); bit->name; bit++)
		if (value & bit->bit) {
			printf("%s%s", comma, bit->name);
			comma = ",";
			value &= ~bit->bit;
		}
	for (int n = 0; n < 64; n++)
		if (value & 1ULL << n) {
			printf("%sbit%d", comma, n);
			comma = ",";
		}
}

/* The choices: an attribute and a value for it. */
struct choice {
	const char *name;
	uint64_t value;
};
#define TWO_SIDED(side) \
	{ side ".caps", FI_MSG }, { side ".caps", FI_TAGGED }, { side ".caps", FI_RMA }, { side ".caps", FI_ATOMIC }
static const struct choice choices[] = {
	{ "ep_type", FI_EP_MSG }, { "ep_type", FI_EP_DGRAM }, { "ep_type", FI_EP_RDM }, { "ep_type", FI_EP_RDM + 1 },
	{ "caps", FI_MSG }, { "caps", FI_TAGGED }, { "caps", FI_RMA }, { "caps", FI_ATOMIC }, { "caps", FI_MULTICAST },
	{ "caps", FI_COLLECTIVE }, { "caps", FI_MSG | FI_SEND }, { "caps", FI_MSG | FI_RECV }, { "caps", FI_SEND },
	{ "caps", FI_MSG | FI_SEND | FI_RECV }, { "caps", FI_TAGGED | FI_SEND }, { "caps", FI_TAGGED | FI_RECV },
	{ "caps", FI_RMA | FI_READ }, { "caps", FI_RMA | FI_WRITE }, { "caps", FI_RMA | FI_REMOTE_READ },
	{ "caps", FI_RMA | FI_REMOTE_WRITE }, { "caps", FI_RMA | FI_READ | FI_WRITE },
	{ "caps", FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE }, { "caps", FI_ATOMIC | FI_WRITE | FI_REMOTE_WRITE },
	{ "caps", FI_ATOMIC | FI_READ }, { "caps", FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_SEND },
	{ "caps", FI_MSG | FI_TAGGED }, { "caps", FI_MSG | FI_RMA }, { "caps", FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC },
	{ "caps", FI_MSG | FI_MULTI_RECV }, { "caps", FI_MSG | FI_SOURCE }, { "caps", FI_MSG | FI_SOURCE | FI_SOURCE_ERR },
	{ "caps", FI_MSG | FI_DIRECTED_RECV }, { "caps", FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE },
	{ "caps", FI_MSG | FI_NAMED_RX_CTX }, { "caps", FI_MSG | FI_TRIGGER }, { "caps", FI_MSG | FI_FENCE },
	{ "caps", FI_RMA | FI_RMA_EVENT }, { "caps", FI_RMA | FI_RMA_PMEM }, { "caps", FI_MSG | FI_LOCAL_COMM },
	{ "caps", FI_MSG | FI_REMOTE_COMM }, { "caps", FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM }, { "caps", FI_MSG | FI_HMEM },
	{ "caps", FI_MSG | FI_SHARED_AV }, { "caps", FI_MSG | 1ULL << 48 }, { "caps", FI_MSG | FI_AV_USER_ID },
	{ "caps", FI_MSG | FI_PEER }, { "caps", FI_MSG | FI_MULTICAST }, { "caps", FI_MSG | FI_COLLECTIVE },
	{ "caps", FI_MSG | FI_XPU }, { "caps", FI_RMA_EVENT }, { "caps", FI_SOURCE }, { "caps", FI_LOCAL_COMM },
	{ "caps", 1ULL << 60 },
	{ "mode", FI_CONTEXT }, { "mode", FI_CONTEXT | FI_CONTEXT2 }, { "mode", FI_MSG_PREFIX }, { "mode", FI_LOCAL_MR },
	{ "mode", FI_ASYNC_IOV }, { "mode", FI_RX_CQ_DATA }, { "mode", FI_BUFFERED_RECV }, { "mode", UINT64_MAX },
	{ "mr_mode", FI_MR_BASIC }, { "mr_mode", FI_MR_SCALABLE }, { "mr_mode", FI_MR_LOCAL }, { "mr_mode", FI_MR_VIRT_ADDR },
	{ "mr_mode", FI_MR_ALLOCATED }, { "mr_mode", FI_MR_PROV_KEY },
	{ "mr_mode", FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY },
	{ "mr_mode", FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY }, { "mr_mode", FI_MR_RAW },
	{ "mr_mode", FI_MR_ENDPOINT }, { "mr_mode", FI_MR_MMU_NOTIFY }, { "mr_mode", FI_MR_RMA_EVENT },
	{ "mr_mode", FI_MR_HMEM }, { "mr_mode", FI_MR_COLLECTIVE }, { "mr_mode", FI_MR_BASIC | FI_MR_LOCAL },
	{ "mr_mode", FI_MR_BASIC | FI_MR_SCALABLE }, { "mr_mode", 0xfffffffc },
	{ "threading", FI_THREAD_SAFE }, { "threading", FI_THREAD_FID }, { "threading", FI_THREAD_DOMAIN },
	{ "threading", FI_THREAD_COMPLETION }, { "threading", FI_THREAD_ENDPOINT }, { "threading", 17 },
	{ "data_progress", FI_PROGRESS_AUTO }, { "data_progress", FI_PROGRESS_MANUAL }, { "data_progress", 17 },
	{ "control_progress", FI_PROGRESS_AUTO }, { "control_progress", FI_PROGRESS_MANUAL }, { "control_progress", 17 },
	{ "resource_mgmt", FI_RM_DISABLED }, { "resource_mgmt", FI_RM_ENABLED }, { "resource_mgmt", 17 },
	{ "av_type", FI_AV_MAP }, { "av_type", FI_AV_TABLE }, { "av_type", 17 },
	{ "addr_format", FI_SOCKADDR }, { "addr_format", FI_SOCKADDR_IN }, { "addr_format", FI_SOCKADDR_IN6 },
	{ "addr_format", FI_SOCKADDR_IB }, { "addr_format", FI_ADDR_STR }, { "addr_format", FI_SOCKADDR_IP },
	{ "protocol", FI_PROTO_SOCK_TCP }, { "protocol", FI_PROTO_RXM }, { "protocol", FI_PROTO_RXD },
	{ "protocol", FI_PROTO_UDP }, { "protocol", FI_PROTO_SHM }, { "protocol", FI_PROTO_XNET },
	{ "protocol", FI_PROTO_IB_UD }, { "protocol_version", 1 }, { "protocol_version", 2 }, { "protocol_version", 99 },
	{ "max_msg_size", 1 }, { "max_msg_size", 1472 }, { "max_msg_size", 1473 }, { "max_msg_size", 1 << 16 },
	{ "max_msg_size", 1 << 23 }, { "max_msg_size", 1ULL << 32 }, { "max_msg_size", SIZE_MAX },
	{ "msg_prefix_size", 1 }, { "msg_prefix_size", 64 }, { "max_order_raw_size", 1 }, { "max_order_raw_size", 4096 },
	{ "max_order_raw_size", SIZE_MAX }, { "max_order_war_size", 1 }, { "max_order_war_size", SIZE_MAX },
	{ "max_order_waw_size", 1 }, { "max_order_waw_size", SIZE_MAX }, { "mem_tag_format", 1 },
	{ "mem_tag_format", 0x5555555555555555 }, { "mem_tag_format", 0xaaaaaaaaaaaaaaaa }, { "mem_tag_format", UINT64_MAX },
	{ "tx_ctx_cnt", 1 }, { "tx_ctx_cnt", 2 }, { "tx_ctx_cnt", 16 }, { "tx_ctx_cnt", 17 }, { "tx_ctx_cnt", 256 },
	{ "tx_ctx_cnt", FI_SHARED_CONTEXT }, { "rx_ctx_cnt", 1 }, { "rx_ctx_cnt", 2 }, { "rx_ctx_cnt", 16 },
	{ "rx_ctx_cnt", 17 }, { "rx_ctx_cnt", 256 }, { "rx_ctx_cnt", FI_SHARED_CONTEXT },
	TWO_SIDED("tx"), TWO_SIDED("rx"), { "tx.caps", FI_MSG | FI_SEND }, { "tx.caps", FI_RMA | FI_WRITE },
	{ "tx.caps", FI_RECV }, { "rx.caps", FI_MSG | FI_RECV }, { "rx.caps", FI_RMA | FI_REMOTE_WRITE }, { "rx.caps", FI_SEND },
	{ "rx.caps", FI_MSG | FI_SOURCE }, { "rx.caps", FI_MSG | FI_MULTI_RECV },
	{ "tx.mode", FI_CONTEXT }, { "rx.mode", FI_CONTEXT }, { "tx.mode", FI_MSG_PREFIX }, { "rx.mode", FI_MSG_PREFIX },
	{ "tx.op_flags", FI_COMPLETION }, { "tx.op_flags", FI_INJECT }, { "tx.op_flags", FI_INJECT_COMPLETE },
	{ "tx.op_flags", FI_TRANSMIT_COMPLETE }, { "tx.op_flags", FI_DELIVERY_COMPLETE }, { "tx.op_flags", FI_COMMIT_COMPLETE },
	{ "tx.op_flags", FI_MATCH_COMPLETE }, { "tx.op_flags", FI_MORE }, { "tx.op_flags", FI_FENCE },
	{ "tx.op_flags", FI_REMOTE_CQ_DATA }, { "tx.op_flags", FI_MULTICAST }, { "tx.op_flags", FI_MULTI_RECV },
	{ "rx.op_flags", FI_COMPLETION }, { "rx.op_flags", FI_MULTI_RECV }, { "rx.op_flags", FI_INJECT },
	{ "tx.msg_order", FI_ORDER_SAS }, { "tx.msg_order", FI_ORDER_RAR }, { "tx.msg_order", FI_ORDER_RAW },
	{ "tx.msg_order", FI_ORDER_WAW }, { "tx.msg_order", FI_ORDER_WAR }, { "tx.msg_order", FI_ORDER_WAS },
	{ "tx.msg_order", FI_ORDER_SAW }, { "tx.msg_order", FI_ORDER_SAR }, { "tx.msg_order", FI_ORDER_RAS },
	{ "tx.msg_order", FI_ORDER_STRICT }, { "tx.msg_order", FI_ORDER_RMA_RAW }, { "tx.msg_order", FI_ORDER_RMA_WAW },
	{ "tx.msg_order", FI_ORDER_RMA_WAR }, { "tx.msg_order", FI_ORDER_RMA_RAR }, { "tx.msg_order", FI_ORDER_ATOMIC_RAW },
	{ "tx.msg_order", FI_ORDER_ATOMIC_WAW }, { "tx.msg_order", FI_ORDER_ATOMIC_WAR },
	{ "tx.msg_order", FI_ORDER_ATOMIC_RAR }, { "rx.msg_order", FI_ORDER_SAS }, { "rx.msg_order", FI_ORDER_STRICT },
	{ "rx.msg_order", FI_ORDER_WAW }, { "rx.msg_order", FI_ORDER_WAR }, { "tx.comp_order", FI_ORDER_STRICT },
	{ "tx.comp_order", FI_ORDER_DATA }, { "rx.comp_order", FI_ORDER_STRICT }, { "rx.comp_order", FI_ORDER_DATA },
	{ "tx.inject_size", 1 }, { "tx.inject_size", 64 }, { "tx.inject_size", 128 }, { "tx.inject_size", 129 },
	{ "tx.inject_size", 255 }, { "tx.inject_size", 256 }, { "tx.inject_size", 1472 }, { "tx.inject_size", 4096 },
	{ "tx.inject_size", 16384 }, { "tx.inject_size", 1 << 20 }, { "tx.size", 1 }, { "tx.size", 128 }, { "tx.size", 256 },
	{ "tx.size", 1024 }, { "tx.size", 1025 }, { "tx.size", 2048 }, { "tx.size", 16384 }, { "tx.size", 65536 },
	{ "tx.size", 65537 }, { "tx.size", 1 << 20 }, { "rx.size", 1 }, { "rx.size", 128 }, { "rx.size", 256 },
	{ "rx.size", 1024 }, { "rx.size", 1025 }, { "rx.size", 2048 }, { "rx.size", 16384 }, { "rx.size", 65536 },
	{ "rx.size", 65537 }, { "rx.size", 1 << 20 }, { "rx.total_buffered_recv", 1 },
	{ "rx.total_buffered_recv", 1 << 16 }, { "rx.total_buffered_recv", 1 << 26 }, { "tx.iov_limit", 1 },
	{ "tx.iov_limit", 4 }, { "tx.iov_limit", 5 }, { "tx.iov_limit", 8 }, { "tx.iov_limit", 9 }, { "rx.iov_limit", 1 },
	{ "rx.iov_limit", 4 }, { "rx.iov_limit", 5 }, { "rx.iov_limit", 8 }, { "rx.iov_limit", 9 },
	{ "tx.rma_iov_limit", 1 }, { "tx.rma_iov_limit", 4 }, { "tx.rma_iov_limit", 5 }, { "tx.rma_iov_limit", 8 },
	{ "tx.rma_iov_limit", 9 }, { "mr_key_size", 4 }, { "mr_key_size", 8 }, { "mr_key_size", 9 }, { "cq_data_size", 4 },
	{ "cq_data_size", 8 }, { "cq_data_size", 9 }, { "cq_cnt", 1 }, { "cq_cnt", 1 << 20 }, { "ep_cnt", 1 },
	{ "ep_cnt", 1 << 20 }, { "domain.tx_ctx_cnt", 1 << 20 }, { "domain.rx_ctx_cnt", 1 << 20 }, { "max_ep_tx_ctx", 1 },
	{ "max_ep_tx_ctx", 16 }, { "max_ep_rx_ctx", 16 }, { "max_ep_stx_ctx", 1 }, { "max_ep_srx_ctx", 1 },
	{ "cntr_cnt", 1 }, { "cntr_cnt", 1 << 20 }, { "mr_iov_limit", 1 }, { "mr_iov_limit", 4 }, { "mr_iov_limit", 8 },
	{ "mr_iov_limit", 9 }, { "domain.caps", FI_LOCAL_COMM }, { "domain.caps", FI_REMOTE_COMM },
	{ "domain.caps", FI_SHARED_AV }, { "domain.caps", FI_AV_USER_ID }, { "domain.caps", FI_PEER },
	{ "domain.mode", FI_CONTEXT }, { "max_err_data", 1 }, { "mr_cnt", 1 }, { "mr_cnt", 1 << 20 },
};
enum { CHOICE_COUNT = sizeof choices / sizeof *choices };

/* Which addresses a set names. */
struct address {
	const char *text, *node, *service;
	uint64_t flags;
	const char *src, *dest;	/* IPv4 address in the hints, with port 5000 */
};
static const struct address addresses[] = {
	{ "node=127.0.0.1", "127.0.0.1", NULL, 0, NULL, NULL },
	{ "node=127.0.0.1 service=5000", "127.0.0.1", "5000", 0, NULL, NULL },
	{ "node=127.0.0.1 service=5000 flags=FI_SOURCE", "127.0.0.1", "5000", FI_SOURCE, NULL, NULL },
	{ "node=127.0.0.1 flags=FI_SOURCE", "127.0.0.1", NULL, FI_SOURCE, NULL, NULL },
	{ "service=5000", NULL, "5000", 0, NULL, NULL },
	{ "service=5000 flags=FI_SOURCE", NULL, "5000", FI_SOURCE, NULL, NULL },
	{ "service=0 flags=FI_SOURCE", NULL, "0", FI_SOURCE, NULL, NULL },
	{ "flags=FI_SOURCE", NULL, NULL, FI_SOURCE, NULL, NULL },
	{ "node=::1", "::1", NULL, 0, NULL, NULL },
	{ "node=::1 service=5000 flags=FI_SOURCE", "::1", "5000", FI_SOURCE, NULL, NULL },
	{ "node=localhost service=5000", "localhost", "5000", 0, NULL, NULL },
	{ "node=localhost service=5000 flags=FI_NUMERICHOST", "localhost", "5000", FI_NUMERICHOST, NULL, NULL },
	{ "node=127.0.0.1 service=5000 flags=FI_NUMERICHOST", "127.0.0.1", "5000", FI_NUMERICHOST, NULL, NULL },
	{ "node=127.0.0.1 service=no-such-service", "127.0.0.1", "no-such-service", 0, NULL, NULL },
	{ "node=256.0.0.1 flags=FI_NUMERICHOST", "256.0.0.1", NULL, FI_NUMERICHOST, NULL, NULL },
	{ "node=fi_sockaddr_in://127.0.0.1:5000", "fi_sockaddr_in://127.0.0.1:5000", NULL, 0, NULL, NULL },
	{ "node=fi_shm://peer", "fi_shm://peer", NULL, 0, NULL, NULL },
	{ "node=name service=7 flags=FI_SOURCE,FI_NUMERICHOST", "name", "7", FI_SOURCE | FI_NUMERICHOST, NULL, NULL },
	{ "flags=FI_NUMERICHOST", NULL, NULL, FI_NUMERICHOST, NULL, NULL },
	{ "flags=FI_RESCAN", NULL, NULL, FI_RESCAN, NULL, NULL },
	{ "flags=FI_PROV_ATTR_ONLY", NULL, NULL, FI_PROV_ATTR_ONLY, NULL, NULL },
	{ "src=127.0.0.1:5000", NULL, NULL, 0, "127.0.0.1", NULL },
	{ "dest=127.0.0.1:5000", NULL, NULL, 0, NULL, "127.0.0.1" },
	{ "src=127.0.0.1:5000 dest=127.0.0.1:5000", NULL, NULL, 0, "127.0.0.1", "127.0.0.1" },
	{ "src=127.0.0.1:5000 node=127.0.0.1 service=5000", "127.0.0.1", "5000", 0, "127.0.0.1", NULL },
	{ "dest=127.0.0.1:5000 node=127.0.0.1 service=5000 flags=FI_SOURCE", "127.0.0.1", "5000", FI_SOURCE, NULL, "127.0.0.1" },
};
enum { ADDRESS_COUNT = sizeof addresses / sizeof *addresses };

/* Versions of the API; those that are newer than the caller names are not asked for. */
static const uint32_t versions[] = {
	FI_VERSION(1, 0), FI_VERSION(1, 4), FI_VERSION(1, 5), FI_VERSION(1, 9), FI_VERSION(1, 17), FI_VERSION(2, 0),
	FI_VERSION(2, 5),
};
static const char *const domains[] = { "lo", "no-such-domain" };

static uint64_t state;
static unsigned draw(unsigned bound)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (unsigned)((state >> 33) % bound);
}

/* The source of an info that is of this process alone reads PID. */
static void print_addr(const char *name, const void *addr, size_t len, uint32_t format)
{
	char text[256] = "", own[16], *at;
	size_t size = sizeof text;

	printf(" %s=", name);
	if (!addr) {
		printf("none");
		return;
	}
	if (format == FI_SOCKADDR_IN && len >= sizeof(struct sockaddr_in)) {
		const struct sockaddr_in *in = addr;
		printf("%s:%u", inet_ntop(AF_INET, &in->sin_addr, text, sizeof text), ntohs(in->sin_port));
		return;
	}
	if (format == FI_SOCKADDR_IN6 && len >= sizeof(struct sockaddr_in6)) {
		const struct sockaddr_in6 *in = addr;
		printf("[%s]:%u", inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text), ntohs(in->sin6_port));
		return;
	}
	if (format != FI_ADDR_STR) {
		printf("%zu_bytes", len);
		return;
	}
	if (len < size)
		size = len;
	memcpy(text, addr, size < sizeof text ? size : sizeof text - 1);
	snprintf(own, sizeof own, "%d", (int)getpid());
	at = strstr(text, own);
	if (at)
		printf("%.*sPID%s", (int)(at - text), text, at + strlen(own));
	else
		printf("%s", text);
}
static void *sock_addr(const char *ip)
{
	struct sockaddr_in *in = calloc(1, sizeof *in);

	in->sin_family = AF_INET;
	in->sin_port = htons(5000);
	inet_pton(AF_INET, ip, &in->sin_addr);
	return in;
}
/* Asks for a set, and prints hints and answer. */
static void ask(const char *provider, int number, const struct choice **some, int count, const struct address *address,
		uint32_t version, const char *domain)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;
	const char *blank = "";
	int r;

	hints->fabric_attr->prov_name = strdup(provider);
	printf("%s\t%d\t", provider, number);
	for (int n = 0; n < count; n++) {
		int which = attribute(some[n]->name);

		set(hints, which, some[n]->value);
		printf("%s%s=", blank, some[n]->name);
		print_value(attributes[which].kind, some[n]->value);
		blank = " ";
	}
	if (domain) {
		hints->domain_attr->name = strdup(domain);
		printf("%sdomain=%s", blank, domain);
		blank = " ";
	}
	if (address) {
		printf("%s%s", blank, address->text);
		blank = " ";
		if (address->src) {
			hints->src_addr = sock_addr(address->src);
			hints->src_addrlen = sizeof(struct sockaddr_in);
		}
		if (address->dest) {
			hints->dest_addr = sock_addr(address->dest);
			hints->dest_addrlen = sizeof(struct sockaddr_in);
		}
	}
	printf("%sapi=%u.%u\t", blank, FI_MAJOR(version), FI_MINOR(version));
	r = fi_getinfo(version, address ? address->node : NULL, address ? address->service : NULL,
		       address ? address->flags : 0, hints, &found);
	if (r) {
		printf("error=%d\n", r);
		fi_freeinfo(hints);
		return;
	}
	printf("provider=%s", found->fabric_attr->prov_name);
	if (address && address->flags & FI_PROV_ATTR_ONLY) {
		printf("\n");
	} else {
		printf(" fabric=%s domain=%s", found->fabric_attr->name, found->domain_attr->name);
		for (int n = 0; n < ATTRIBUTE_COUNT; n++) {
			printf(" %s=", attributes[n].name);
			print_value(attributes[n].kind, get(found, n));
		}
		print_addr("src", found->src_addr, found->src_addrlen, found->addr_format);
		print_addr("dest", found->dest_addr, found->dest_addrlen, found->addr_format);
		printf("\n");
	}
	fi_freeinfo(found);
	fi_freeinfo(hints);
}
int main(int argc, char **argv)
{
	static const struct choice open_mode = { "mode", UINT64_MAX }, open_mr = { "mr_mode", 0xfffffffc };
	unsigned major = 0, minor = 0;
	int count, known = 0;

	if (argc < 4 || sscanf(argv[2], "%u.%u", &major, &minor) != 2)
		return 2;
	count = atoi(argv[1]);
	while (known < (int)(sizeof versions / sizeof *versions) && !FI_VERSION_LT(FI_VERSION(major, minor), versions[known]))
		known++;
	for (int p = 3; p < argc; p++) {
		int number = 0;

		for (int n = 0; n < CHOICE_COUNT && number < count; n++) {
			const struct choice *one = &choices[n];

			ask(argv[p], number++, &one, 1, NULL, versions[known - 1], NULL);
		}
		for (int n = 0; n < ADDRESS_COUNT && number < count; n++)
			ask(argv[p], number++, NULL, 0, &addresses[n], versions[known - 1], NULL);
		for (int n = 0; n < known && number < count; n++)
			ask(argv[p], number++, NULL, 0, NULL, versions[n], NULL);
		for (int n = 0; n < 2 && number < count; n++)
			ask(argv[p], number++, NULL, 0, NULL, versions[known - 1], domains[n]);
		for (state = 1; number < count;) {
			const struct choice *some[6];
			const struct address *address = draw(4) ? NULL : &addresses[draw(ADDRESS_COUNT)];
			uint32_t version = versions[draw(2) ? known - 1 : (int)draw(known)];
			int n = 0, most = 2 + draw(3);

			/* a program that takes everything, in half of the sets */
			if (draw(2)) {
				some[n++] = &open_mode;
				some[n++] = &open_mr;
				most += 2;
			}
			while (n < most && n < 6) {
				const struct choice *next = &choices[draw(CHOICE_COUNT)];
				int twice = 0;

				for (int other = 0; other < n; other++)
					twice |= !strcmp(some[other]->name, next->name);
				if (!twice)
					some[n++] = next;
			}
			ask(argv[p], number++, some, n, address, version, NULL);
		}
	}
	return 0;
}
