static inline int
fi_domain2(struct fid_fabric *fabric, struct fi_info *info,
	struct fid_domain **domain, uint64_t flags, void *context)
{
	if (!flags)
		return fi_domain(fabric, info, domain, context);
	if (!FI_CHECK_OP(fabric->ops, struct fi_ops_fabric, domain2))
		return -FI_ENOSYS;
	return fabric->ops->domain2(fabric, info, domain, flags, context);
}

/* The value of fi_mr_attr.device.ze. */
static inline int fi_hmem_ze_device(int driver_index, int device_index)
{
	return (int) ((unsigned int) driver_index << 16 |
		(unsigned int) device_index);
}

static inline void *fi_mr_desc(struct fid_mr *mr)
{
	return mr->mem_desc;
}

static inline uint64_t fi_mr_key(struct fid_mr *mr)
{
	return mr->key;
}

static inline int
fi_mr_raw_attr(struct fid_mr *mr, uint64_t *base_addr, uint8_t *raw_key,
	size_t *key_size, uint64_t flags)
{
	struct fi_mr_raw_attr attr;

	attr.flags = flags;
	attr.base_addr = base_addr;
	attr.raw_key = raw_key;
	attr.key_size = key_size;
	return fi_control(&mr->fid, FI_GET_RAW_MR, &attr);
}

static inline int
fi_mr_map_raw(struct fid_domain *domain, uint64_t base_addr, uint8_t *raw_key,
	size_t key_size, uint64_t *key, uint64_t flags)
{
	struct fi_mr_map_raw map;

	map.flags = flags;
	map.base_addr = base_addr;
	map.raw_key = raw_key;
	map.key_size = key_size;
	map.key = key;
	return fi_control(&domain->fid, FI_MAP_RAW_MR, &map);
}

static inline int fi_mr_unmap_key(struct fid_domain *domain, uint64_t key)
{
	return fi_control(&domain->fid, FI_UNMAP_KEY, &key);
}

static inline int
fi_mr_refresh(struct fid_mr *mr, const struct iovec *iov, size_t count,
	uint64_t flags)
{
	struct fi_mr_modify modify;

	memset(&modify, 0, sizeof(modify));
	modify.flags = flags;
	modify.attr.mr_iov = iov;
	modify.attr.iov_count = count;
	return fi_control(&mr->fid, FI_REFRESH, &modify);
}

static inline int fi_mr_enable(struct fid_mr *mr)
{
	return fi_control(&mr->fid, FI_ENABLE, NULL);
}

static inline int
fi_mr_get_xpu_desc(struct fid_mr *mr, void *buf, size_t *len, uint64_t flags,
	struct fid_xpu_ctx *ctx)
{
	struct fi_mr_xpu_desc desc;

	desc.buf = buf;
	desc.len = len;
	desc.flags = flags;
	desc.ctx = ctx;
	return fi_control(&mr->fid, FI_GET_MR_XPU_DESC, &desc);
}

/* The address of one receive context of a scalable endpoint: its index in the
 * highest bits, as many as the AV was opened with. */
static inline fi_addr_t
fi_rx_addr(fi_addr_t fi_addr, int rx_index, int rx_ctx_bits)
{
	return ((uint64_t) rx_index << (64 - rx_ctx_bits)) | fi_addr;
}

/* The address of a peer within a group: the group in the upper half. */
static inline fi_addr_t fi_group_addr(fi_addr_t fi_addr, uint32_t group_id)
{
	return ((uint64_t) group_id << 32) | fi_addr;
}
