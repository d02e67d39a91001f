/**
 * fi_domain. What memory is registered by, and how queues are waited on, is
 * remembered until kfi_close.
 */
static inline int
kfi_domain(struct fid_fabric *fabric, struct fi_info *info,
	struct fid_domain **domain, void *context)
{
	struct kfi_note *note = (struct kfi_note *) calloc(1, sizeof *note);
	int ret;

	if (!note)
		return -FI_ENOMEM;
	ret = fi_domain(fabric, info, domain, context);
	if (ret) {
		free(note);
		return ret;
	}
	note->fid = &(*domain)->fid;
	note->fabric = fabric;
	if (info->domain_attr)
		note->mr_mode = info->domain_attr->mr_mode;
	kfi_note_add(note);
	return 0;
}

/**
 * fi_cq_open, of a queue that can be waited on; a handler is called when there
 * are completions, from a thread of its own. The macro below takes the four
 * arguments of kfabric's first version as well, which has no handler.
 */
static inline int
kfi_cq_open(struct fid_domain *domain, const struct fi_cq_attr *attr,
	struct fid_cq **cq, kfi_comp_handler comp_handler, void *context)
{
	struct fi_cq_attr waits;
	int ret;

	memset(&waits, 0, sizeof waits);
	if (attr)
		waits = *attr;
	waits.wait_obj = kfi_wait_obj(waits.wait_obj);
	ret = fi_cq_open(domain, &waits, cq, context);
	if (ret || !comp_handler)
		return ret;
	return kfi_opened(kfi_note_handler(&(*cq)->fid,
					   kfi_note_of(&domain->fid).fabric,
					   comp_handler, NULL, context),
			  &(*cq)->fid);
}

static inline int
kfi_cq_open_first(struct fid_domain *domain, const struct fi_cq_attr *attr,
	struct fid_cq **cq, void *context)
{
	int ret = kfi_cq_open(domain, attr, cq, NULL, context);

	return ret ? ret : kfi_opened(kfi_note_first(&(*cq)->fid), &(*cq)->fid);
}

#define KFI_CQ_OPEN(a, b, c, d, e, name, ...) name
#define kfi_cq_open(...) \
	KFI_CQ_OPEN(__VA_ARGS__, kfi_cq_open, kfi_cq_open_first, , ) \
	(__VA_ARGS__)

/**
 * fi_mr_reg. The macro below takes a last argument, too, as kfabric's first
 * version: where the address is written by which peers name the memory.
 */
static inline int
kfi_mr_reg(struct fid_domain *domain, const void *buf, size_t len,
	uint64_t access, uint64_t offset, uint64_t requested_key,
	uint64_t flags, struct fid_mr **mr, void *context)
{
	return fi_mr_reg(domain, buf, len, access, offset, requested_key, flags,
			 mr, context);
}

static inline int
kfi_mr_reg_first(struct fid_domain *domain, const void *buf, size_t len,
	uint64_t access, uint64_t offset, uint64_t requested_key,
	uint64_t flags, struct fid_mr **mr, void *context, uint64_t *dma_addr)
{
	uint64_t mode = kfi_note_of(&domain->fid).mr_mode;

	if (dma_addr)
		*dma_addr = mode == FI_MR_BASIC || mode & FI_MR_VIRT_ADDR ?
			(uint64_t) (uintptr_t) buf : 0;
	return fi_mr_reg(domain, buf, len, access, offset, requested_key, flags,
			 mr, context);
}

#define KFI_MR_REG(a, b, c, d, e, f, g, h, i, j, name, ...) name
#define kfi_mr_reg(...) \
	KFI_MR_REG(__VA_ARGS__, kfi_mr_reg_first, kfi_mr_reg, ) (__VA_ARGS__)

/**
 * fi_mr_regv, of a list of the kernel.
 */
static inline int
kfi_mr_reg_list(struct fid_domain *domain, enum kfi_iov_type type,
	const void *list, size_t count, uint64_t access, uint64_t offset,
	uint64_t requested_key, uint64_t flags, struct fid_mr **mr,
	void *context)
{
	struct iovec storage[KFI_IOV_MAX];
	const struct iovec *iov = kfi_iov(storage, type, list, count);

	if (!iov)
		return -FI_EINVAL;
	return fi_mr_regv(domain, iov, count, access, offset, requested_key,
			  flags, mr, context);
}

#define kfi_mr_regbv(domain, biov, ...) \
	kfi_mr_reg_list(domain, KFI_BVEC, biov, __VA_ARGS__)
#define kfi_mr_regsgl(domain, sgl, ...) \
	kfi_mr_reg_list(domain, KFI_SGL, sgl, __VA_ARGS__)
