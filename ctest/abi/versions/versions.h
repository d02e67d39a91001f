/*
 * struct fi_info and its parts as releases declared them.  NODE says which:
 * 100 is FABRIC_1.0, 101 FABRIC_1.1 … 110 FABRIC_1.10.  Nothing here comes
 * from the installed headers: they describe one generation only.
 */
#ifndef VERSIONS_H
#define VERSIONS_H
#include <stddef.h>
#include <stdint.h>

struct abi_tx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t inject_size, size, iov_limit, rma_iov_limit;
#if NODE >= 103
	uint32_t tclass;
#endif
};

struct abi_rx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t total_buffered_recv, size, iov_limit;
};

struct abi_ep_attr {
	int type;
	uint32_t protocol, protocol_version;
	size_t max_msg_size, msg_prefix_size;
	size_t max_order_raw_size, max_order_war_size, max_order_waw_size;
	uint64_t mem_tag_format;
	size_t tx_ctx_cnt, rx_ctx_cnt;
#if NODE >= 101
	size_t auth_key_size;
	uint8_t *auth_key;
#endif
#if NODE >= 110
	void *xpu_ctx;
#endif
};

struct abi_domain_attr {
	void *domain;
	char *name;
	int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
	size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt;
	size_t max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx;
#if NODE >= 101
	size_t cntr_cnt, mr_iov_limit;
	uint64_t caps, mode;
	uint8_t *auth_key;
	size_t auth_key_size, max_err_data, mr_cnt;
#endif
#if NODE >= 103
	uint32_t tclass;
#endif
#if NODE >= 107
	size_t max_ep_auth_key;
#endif
#if NODE >= 108
	uint32_t max_group_id;
#endif
#if NODE >= 109
	uint64_t max_cntr_value, max_err_cntr_value;
#endif
#if NODE >= 110
	size_t max_xpu_ctx_cnt;
#endif
};

struct abi_fabric_attr {
	void *fabric;
	char *name, *prov_name;
	uint32_t prov_version;
#if NODE >= 101
	uint32_t api_version;
#endif
};

struct abi_info {
	struct abi_info *next;
	uint64_t caps, mode;
	uint32_t addr_format;
	size_t src_addrlen, dest_addrlen;
	void *src_addr, *dest_addr, *handle;
	struct abi_tx_attr *tx_attr;
	struct abi_rx_attr *rx_attr;
	struct abi_ep_attr *ep_attr;
	struct abi_domain_attr *domain_attr;
	struct abi_fabric_attr *fabric_attr;
#if NODE >= 102
	void *nic;
#endif
};

struct abi_cq_err_entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data, tag;
	size_t olen;
	int err, prov_errno;
	void *err_data;
#if NODE >= 101
	size_t err_data_size;
#endif
#if NODE >= 107
	uint64_t src_addr;
#endif
};

struct abi_cq_attr {
	size_t size;
	uint64_t flags;
	int format, wait_obj, signaling_vector, wait_cond;
	void *wait_set;
#if NODE >= 110
	void *xpu_ctx;
#endif
};

struct abi_cntr_attr {
	int events, wait_obj;
	void *wait_set;
	uint64_t flags;
#if NODE >= 110
	void *xpu_ctx;
#endif
};

/* Also grew at 1.19, 1.22: between symbol versions. */
struct abi_mr_attr {
	const void *mr_iov;
	size_t iov_count;
	uint64_t access, offset, requested_key;
	void *context;
#if NODE >= 101
	size_t auth_key_size;
	uint8_t *auth_key;
#endif
#if NODE >= 103
	int iface;
	uint64_t device;
#endif
#if NODE >= 107
	void *hmem_data;
#endif
#if NODE >= 108
	size_t page_size;
	const void *base_mr;
	size_t sub_mr_cnt;
#endif
};

/* Sizes that the releases had, by node: 1.0 1.1 1.2 1.3 1.7 1.8 1.9 1.10 */
#define AT (NODE == 100 ? 0 : NODE == 101 ? 1 : NODE == 102 ? 2 : NODE == 103 ? 3 : NODE == 107 ? 4 : NODE == 108 ? 5 : NODE == 109 ? 6 : 7)
#define SIZES(s, a, b, c, d, e, f, g, h) \
	_Static_assert(sizeof(struct s) == (AT == 0 ? a : AT == 1 ? b : AT == 2 ? c : AT == 3 ? d : AT == 4 ? e : AT == 5 ? f : AT == 6 ? g : h), #s)
SIZES(abi_info,         112, 112, 120, 120, 120, 120, 120, 120);
SIZES(abi_tx_attr,       72,  72,  72,  80,  80,  80,  80,  80);
SIZES(abi_rx_attr,       64,  64,  64,  64,  64,  64,  64,  64);
SIZES(abi_ep_attr,       80,  96,  96,  96,  96,  96,  96, 104);
SIZES(abi_domain_attr,  120, 184, 184, 192, 200, 208, 224, 232);
SIZES(abi_fabric_attr,   32,  32,  32,  32,  32,  32,  32,  32);
SIZES(abi_cq_attr,       40,  40,  40,  40,  40,  40,  40,  48);
SIZES(abi_cntr_attr,     24,  24,  24,  24,  24,  24,  24,  32);
SIZES(abi_mr_attr,       48,  64,  64,  80,  88, 112, 112, 112);
SIZES(abi_cq_err_entry,  72,  80,  80,  80,  88,  88,  88,  88);
#endif
