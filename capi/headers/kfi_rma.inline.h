/**
 * A memory access, for the calls that take flags. Without a type the list is of
 * KFI_KVEC.
 */
struct kfi_msg_rma {
	enum kfi_iov_type type;
	union {
		const struct iovec *msg_iov;
		const struct bio_vec *msg_biov;
		const struct scatterlist *msg_sgl;
	};
	void **desc;
	size_t iov_count;
	fi_addr_t addr;
	const struct fi_rma_iov *rma_iov;
	size_t rma_iov_count;
	void *context;
	uint64_t data;
};

static inline int
kfi_msg_rma_to_fi(const struct kfi_msg_rma *msg, struct iovec *storage,
	struct fi_msg_rma *to)
{
	if (!msg)
		return -FI_EINVAL;
	to->msg_iov = kfi_iov(storage, msg->type, msg->msg_iov, msg->iov_count);
	if (!to->msg_iov && msg->iov_count)
		return -FI_EINVAL;
	to->desc = msg->desc;
	to->iov_count = msg->iov_count;
	to->addr = msg->addr;
	to->rma_iov = msg->rma_iov;
	to->rma_iov_count = msg->rma_iov_count;
	to->context = msg->context;
	to->data = msg->data;
	return 0;
}

/**
 * fi_readmsg.
 */
static inline ssize_t
kfi_readmsg(struct fid_ep *ep, const struct kfi_msg_rma *msg, uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg_rma to;
	int ret = kfi_msg_rma_to_fi(msg, storage, &to);

	return ret ? ret : fi_readmsg(ep, &to, flags);
}

/*
 * Sends data for the peer's completion queue in a message without bytes, behind
 * a memory access that was posted just now: it takes a receive of the peer's, as
 * kfabric says (KFI_RX_CQ_DATA). An endpoint that cannot send it any more
 * tells so by its events.
 */
static inline void
kfi_data_behind(struct fid_ep *ep, uint64_t data, fi_addr_t addr)
{
	while (fi_injectdata(ep, NULL, 0, data, addr) == -FI_EAGAIN)
		sched_yield();
}

/**
 * fi_writemsg; with KFI_REMOTE_CQ_DATA as kfi_writedata.
 */
static inline ssize_t
kfi_writemsg(struct fid_ep *ep, const struct kfi_msg_rma *msg, uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg_rma to;
	ssize_t ret = kfi_msg_rma_to_fi(msg, storage, &to);

	if (!ret)
		ret = fi_writemsg(ep, &to, flags & ~FI_REMOTE_CQ_DATA);
	if (!ret && flags & FI_REMOTE_CQ_DATA)
		kfi_data_behind(ep, to.data, to.addr);
	return ret;
}

/**
 * fi_write, whose data takes a receive that the peer posted, and is reported
 * with it.
 */
static inline ssize_t
kfi_writedata(struct fid_ep *ep, const void *buf, size_t len, void *desc,
	uint64_t data, fi_addr_t dest_addr, uint64_t addr, uint64_t key,
	void *context)
{
	ssize_t ret = fi_write(ep, buf, len, desc, dest_addr, addr, key,
			       context);

	if (!ret)
		kfi_data_behind(ep, data, dest_addr);
	return ret;
}

/**
 * kfi_writedata of bytes that may be reused at once, and without a completion.
 */
static inline ssize_t
kfi_inject_writedata(struct fid_ep *ep, const void *buf, size_t len,
	uint64_t data, fi_addr_t dest_addr, uint64_t addr, uint64_t key)
{
	ssize_t ret = fi_inject_write(ep, buf, len, dest_addr, addr, key);

	if (!ret)
		kfi_data_behind(ep, data, dest_addr);
	return ret;
}

/* A memory access with a list of pages. */
#define KFI_LIST_ACCESS(name, call, type, element) \
static inline ssize_t \
name(struct fid_ep *ep, const struct element *list, void **desc, \
	size_t count, fi_addr_t peer, uint64_t addr, uint64_t key, \
	void *context) \
{ \
	struct iovec storage[KFI_IOV_MAX]; \
	const struct iovec *iov = kfi_iov(storage, type, list, count); \
\
	return iov ? call(ep, iov, desc, count, peer, addr, key, context) \
		   : -FI_EINVAL; \
}

KFI_LIST_ACCESS(kfi_readbv, fi_readv, KFI_BVEC, bio_vec)
KFI_LIST_ACCESS(kfi_readsgl, fi_readv, KFI_SGL, scatterlist)
KFI_LIST_ACCESS(kfi_writebv, fi_writev, KFI_BVEC, bio_vec)
KFI_LIST_ACCESS(kfi_writesgl, fi_writev, KFI_SGL, scatterlist)
