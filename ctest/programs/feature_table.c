// Prints a table of the capabilities, calls and limits of providers: answers of fi_getinfo(3) to hints, and results of calls.
//   features PROVIDER:TYPE...   one column each
#include <inttypes.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COLUMNS 16
#define ANY_MR_MODE (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_HMEM | FI_MR_RAW)

struct column {
	char prov[64];
	enum fi_ep_type type;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
};

static struct column columns[MAX_COLUMNS];
static int count;

static struct fi_info *hints_for(const struct column *of)
{
	struct fi_info *hints = fi_allocinfo();
	if (!hints)
		exit(2);
	hints->fabric_attr->prov_name = strdup(of->prov);
	hints->ep_attr->type = of->type;
	hints->domain_attr->mr_mode = ANY_MR_MODE;
	hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_MSG_PREFIX | FI_RX_CQ_DATA;
	return hints;
}

// Returns 1 if fi_getinfo has an answer to hints that SET changed.
static int has(const struct column *of, void (*set)(struct fi_info *, uint64_t), uint64_t value)
{
	struct fi_info *hints = hints_for(of), *info = NULL;
	set(hints, value);
	int ret = fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, hints, &info);
	if (!ret)
		fi_freeinfo(info);
	fi_freeinfo(hints);
	return !ret;
}

static void set_caps(struct fi_info *hints, uint64_t caps) { hints->caps = caps; }
static void set_level(struct fi_info *hints, uint64_t flag) { hints->tx_attr->op_flags = flag; }
static void set_order(struct fi_info *hints, uint64_t order) { hints->tx_attr->msg_order = hints->rx_attr->msg_order = order; }
static void set_threading(struct fi_info *hints, uint64_t value) { hints->domain_attr->threading = value; }
static void set_progress(struct fi_info *hints, uint64_t value)
{
	hints->domain_attr->control_progress = hints->domain_attr->data_progress = value;
}
static void set_management(struct fi_info *hints, uint64_t value) { hints->domain_attr->resource_mgmt = value; }
static void set_av(struct fi_info *hints, uint64_t value) { hints->domain_attr->av_type = value; }
static void set_mr_mode(struct fi_info *hints, uint64_t mode) { hints->domain_attr->mr_mode = mode; }

static const struct {
	const char *name;
	void (*set)(struct fi_info *, uint64_t);
	uint64_t value;
} questions[] = {
	{"FI_MSG", set_caps, FI_MSG},
	{"FI_TAGGED", set_caps, FI_TAGGED},
	{"FI_RMA", set_caps, FI_RMA},
	{"FI_ATOMIC", set_caps, FI_ATOMIC},
	{"FI_COLLECTIVE", set_caps, FI_COLLECTIVE | FI_TAGGED},
	{"FI_MULTICAST", set_caps, FI_MULTICAST | FI_MSG},
	{"FI_MULTI_RECV", set_caps, FI_MULTI_RECV | FI_MSG},
	{"FI_DIRECTED_RECV", set_caps, FI_DIRECTED_RECV | FI_MSG},
	{"FI_NAMED_RX_CTX", set_caps, FI_NAMED_RX_CTX | FI_MSG},
	{"FI_SOURCE", set_caps, FI_SOURCE | FI_MSG},
	{"FI_SOURCE_ERR", set_caps, FI_SOURCE_ERR | FI_SOURCE | FI_MSG},
	{"FI_AV_USER_ID", set_caps, FI_AV_USER_ID | FI_SOURCE | FI_MSG},
	{"FI_RMA_EVENT", set_caps, FI_RMA_EVENT | FI_RMA},
	{"FI_RMA_PMEM", set_caps, FI_RMA_PMEM | FI_RMA},
	{"FI_FENCE", set_caps, FI_FENCE | FI_RMA},
	{"FI_TRIGGER", set_caps, FI_TRIGGER | FI_MSG},
	{"FI_HMEM", set_caps, FI_HMEM | FI_MSG},
	{"FI_SHARED_AV", set_caps, FI_SHARED_AV | FI_MSG},
	{"FI_PEER", set_caps, FI_PEER | FI_TAGGED},
	{"FI_LOCAL_COMM", set_caps, FI_LOCAL_COMM | FI_MSG},
	{"FI_REMOTE_COMM", set_caps, FI_REMOTE_COMM | FI_MSG},
	{"FI_INJECT_COMPLETE", set_level, FI_INJECT_COMPLETE},
	{"FI_TRANSMIT_COMPLETE", set_level, FI_TRANSMIT_COMPLETE},
	{"FI_DELIVERY_COMPLETE", set_level, FI_DELIVERY_COMPLETE},
	{"FI_COMMIT_COMPLETE", set_level, FI_COMMIT_COMPLETE},
	{"FI_MATCH_COMPLETE", set_level, FI_MATCH_COMPLETE},
	{"FI_ORDER_SAS", set_order, FI_ORDER_SAS},
	{"FI_ORDER_SAW", set_order, FI_ORDER_SAW},
	{"FI_ORDER_WAW", set_order, FI_ORDER_WAW},
	{"FI_ORDER_RAW", set_order, FI_ORDER_RAW},
	{"FI_ORDER_RAR", set_order, FI_ORDER_RAR},
	{"FI_ORDER_WAR", set_order, FI_ORDER_WAR},
	{"FI_THREAD_SAFE", set_threading, FI_THREAD_SAFE},
	{"FI_THREAD_DOMAIN", set_threading, FI_THREAD_DOMAIN},
	{"FI_PROGRESS_AUTO", set_progress, FI_PROGRESS_AUTO},
	{"FI_PROGRESS_MANUAL", set_progress, FI_PROGRESS_MANUAL},
	{"FI_RM_ENABLED", set_management, FI_RM_ENABLED},
	{"FI_AV_MAP", set_av, FI_AV_MAP},
	{"FI_AV_TABLE", set_av, FI_AV_TABLE},
	{"no registration mode bits (mr_mode 0)", set_mr_mode, 0},
	{"FI_MR_VIRT_ADDR and FI_MR_PROV_KEY", set_mr_mode, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_ALLOCATED},
};

static const char *answer(int ret) { return !ret ? "yes" : "no"; }

static const char *open_cq(const struct column *of, enum fi_wait_obj wait)
{
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = wait, .size = 8};
	struct fid_cq *cq;
	int ret = fi_cq_open(of->domain, &attr, &cq, NULL);
	if (!ret)
		fi_close(&cq->fid);
	return answer(ret);
}
static const char *wait_fd(const struct column *of) { return open_cq(of, FI_WAIT_FD); }
static const char *wait_pollfd(const struct column *of) { return open_cq(of, FI_WAIT_POLLFD); }
static const char *wait_cond(const struct column *of) { return open_cq(of, FI_WAIT_MUTEX_COND); }

static const char *open_counter(const struct column *of, enum fi_cntr_events events)
{
	struct fi_cntr_attr attr = {.events = events};
	struct fid_cntr *cntr;
	int ret = fi_cntr_open(of->domain, &attr, &cntr, NULL);
	if (!ret)
		fi_close(&cntr->fid);
	return answer(ret);
}
static const char *counter(const struct column *of) { return open_counter(of, FI_CNTR_EVENTS_COMP); }
static const char *byte_counter(const struct column *of) { return open_counter(of, FI_CNTR_EVENTS_BYTES); }
static const char *poll_set(const struct column *of)
{
	struct fid_poll *set;
	int ret = fi_poll_open(of->domain, NULL, &set);
	if (!ret)
		fi_close(&set->fid);
	return answer(ret);
}
static const char *wait_set(const struct column *of)
{
	struct fi_wait_attr attr = {.wait_obj = FI_WAIT_FD};
	struct fid_wait *set;
	int ret = fi_wait_open(of->fabric, &attr, &set);
	if (!ret)
		fi_close(&set->fid);
	return answer(ret);
}
static const char *shared_rx(const struct column *of)
{
	struct fid_ep *srx;
	int ret = fi_srx_context(of->domain, of->info->rx_attr, &srx, NULL);
	if (!ret)
		fi_close(&srx->fid);
	return answer(ret);
}
static const char *shared_tx(const struct column *of)
{
	struct fid_stx *stx;
	int ret = fi_stx_context(of->domain, of->info->tx_attr, &stx, NULL);
	if (!ret)
		fi_close(&stx->fid);
	return answer(ret);
}
static const char *scalable(const struct column *of)
{
	struct fid_ep *sep;
	int ret = fi_scalable_ep(of->domain, of->info, &sep, NULL);
	if (!ret)
		fi_close(&sep->fid);
	return answer(ret);
}
static const char *passive(const struct column *of)
{
	struct fid_pep *pep;
	int ret = fi_passive_ep(of->fabric, of->info, &pep, NULL);
	if (!ret)
		fi_close(&pep->fid);
	return answer(ret);
}
static const char *register_memory(const struct column *of)
{
	static char bytes[64];
	struct fid_mr *mr;
	int ret = fi_mr_reg(of->domain, bytes, sizeof bytes, FI_SEND | FI_RECV, 0, 7, 0, &mr, NULL);
	if (!ret)
		fi_close(&mr->fid);
	return answer(ret);
}
static const char *fp64_sum(const struct column *of)
{
	struct fi_atomic_attr attr;
	return answer(fi_query_atomic(of->domain, FI_DOUBLE, FI_SUM, &attr, 0));
}
static const char *u128_cswap(const struct column *of)
{
	struct fi_atomic_attr attr;
	return answer(fi_query_atomic(of->domain, FI_UINT128, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
}
static const struct {
	const char *name;
	const char *(*ask)(const struct column *);
} calls[] = {
	{"fi_cq_open: FI_WAIT_FD", wait_fd},
	{"fi_cq_open: FI_WAIT_POLLFD", wait_pollfd},
	{"fi_cq_open: FI_WAIT_MUTEX_COND", wait_cond},
	{"fi_cntr_open: completions", counter},
	{"fi_cntr_open: FI_CNTR_EVENTS_BYTES", byte_counter},
	{"fi_poll_open", poll_set},
	{"fi_wait_open", wait_set},
	{"fi_mr_reg", register_memory},
	{"fi_passive_ep", passive},
	{"fi_srx_context", shared_rx},
	{"fi_stx_context", shared_tx},
	{"fi_scalable_ep", scalable},
	{"fi_query_atomic: FI_SUM of FI_DOUBLE", fp64_sum},
	{"fi_query_atomic: FI_CSWAP of FI_UINT128", u128_cswap},
};

// A size in the largest unit that divides it.
static const char *size_text(uint64_t n)
{
	static char text[32];
	if (n == UINT64_MAX || n == INT64_MAX)
		return "no limit";
	const char *units[] = {"", " KiB", " MiB", " GiB"};
	int unit = 0;
	while (unit < 3 && n >= 1024 && n % 1024 == 0) {
		n /= 1024;
		unit++;
	}
	snprintf(text, sizeof text, "%" PRIu64 "%s", n, units[unit]);
	return text;
}

#define LIMIT(name, field)                                                                                                                                     \
	static uint64_t name(const struct fi_info *info) { return info->field; }
LIMIT(max_msg, ep_attr->max_msg_size)
LIMIT(inject, tx_attr->inject_size)
LIMIT(tx_size, tx_attr->size)
LIMIT(rx_size, rx_attr->size)
LIMIT(tx_iov, tx_attr->iov_limit)
LIMIT(rx_iov, rx_attr->iov_limit)
LIMIT(rma_iov, tx_attr->rma_iov_limit)
LIMIT(mr_iov, domain_attr->mr_iov_limit)
LIMIT(data, domain_attr->cq_data_size)
LIMIT(key, domain_attr->mr_key_size)
LIMIT(tx_contexts, domain_attr->max_ep_tx_ctx)
LIMIT(rx_contexts, domain_attr->max_ep_rx_ctx)

static const struct {
	const char *name;
	uint64_t (*of)(const struct fi_info *);
} limits[] = {
	{"max_msg_size, bytes", max_msg},
	{"inject_size, bytes", inject},
	{"tx_attr size, operations", tx_size},
	{"rx_attr size, receives", rx_size},
	{"tx_attr iov_limit", tx_iov},
	{"rx_attr iov_limit", rx_iov},
	{"rma_iov_limit", rma_iov},
	{"mr_iov_limit", mr_iov},
	{"cq_data_size, bytes", data},
	{"mr_key_size, bytes", key},
	{"max_ep_tx_ctx", tx_contexts},
	{"max_ep_rx_ctx", rx_contexts},
};

static void open_column(struct column *of, const char *text)
{
	const char *colon = strrchr(text, ':');
	if (!colon || colon - text >= (long) sizeof of->prov) {
		fprintf(stderr, "features: a column is PROVIDER:TYPE, not %s\n", text);
		exit(2);
	}
	memcpy(of->prov, text, colon - text);
	of->type = !strcmp(colon, ":rdm") ? FI_EP_RDM : !strcmp(colon, ":msg") ? FI_EP_MSG : FI_EP_DGRAM;
	struct fi_info *hints = hints_for(of);
	int ret = fi_getinfo(FI_VERSION(2, 0), NULL, NULL, 0, hints, &of->info);
	fi_freeinfo(hints);
	if (!ret)
		ret = fi_fabric(of->info->fabric_attr, &of->fabric, NULL);
	if (!ret)
		ret = fi_domain(of->fabric, of->info, &of->domain, NULL);
	if (ret) {
		fprintf(stderr, "features: %s: %s\n", text, fi_strerror(-ret));
		exit(1);
	}
}

static void line(const char *name, const char *(*cell)(const struct column *, size_t), size_t row)
{
	printf("| %s |", name);
	for (int i = 0; i < count; i++)
		printf(" %s |", cell(&columns[i], row));
	printf("\n");
}
static const char *question_cell(const struct column *of, size_t row) { return has(of, questions[row].set, questions[row].value) ? "yes" : "no"; }
static const char *call_cell(const struct column *of, size_t row) { return calls[row].ask(of); }
static const char *limit_cell(const struct column *of, size_t row) { return size_text(limits[row].of(of->info)); }

int main(int argc, char **argv)
{
	if (argc < 2 || argc - 1 > MAX_COLUMNS || argv[1][0] == '-') {
		fprintf(stderr, "usage: %s PROVIDER:TYPE...   (at most %d; TYPE is rdm, msg or dgram)\n", argv[0], MAX_COLUMNS);
		return 2;
	}
	count = argc - 1;
	for (int i = 0; i < count; i++)
		open_column(&columns[i], argv[i + 1]);
	printf("| capability, call or limit |");
	for (int i = 0; i < count; i++)
		printf(" %s |", argv[i + 1]);
	printf("\n|---|");
	for (int i = 0; i < count; i++)
		printf("---|");
	printf("\n");
	for (size_t row = 0; row < sizeof questions / sizeof *questions; row++)
		line(questions[row].name, question_cell, row);
	for (size_t row = 0; row < sizeof calls / sizeof *calls; row++)
		line(calls[row].name, call_cell, row);
	for (size_t row = 0; row < sizeof limits / sizeof *limits; row++)
		line(limits[row].name, limit_cell, row);
	for (int i = 0; i < count; i++) {
		fi_close(&columns[i].domain->fid);
		fi_close(&columns[i].fabric->fid);
		fi_freeinfo(columns[i].info);
	}
	return 0;
}
