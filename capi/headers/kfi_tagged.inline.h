/**
 * A tagged message, for the calls that take flags. Without a type the list is of
 * KFI_KVEC.
 */
struct kfi_msg_tagged {
	enum kfi_iov_type type;
	union {
		const struct iovec *msg_iov;
		const struct bio_vec *msg_biov;
		const struct scatterlist *msg_sgl;
	};
	void **desc;
	size_t iov_count;
	fi_addr_t addr;
	uint64_t tag;
	uint64_t ignore;
	void *context;
	uint64_t data;
};

static inline int
kfi_msg_tagged_to_fi(const struct kfi_msg_tagged *msg, struct iovec *storage,
	struct fi_msg_tagged *to)
{
	if (!msg)
		return -FI_EINVAL;
	to->msg_iov = kfi_iov(storage, msg->type, msg->msg_iov, msg->iov_count);
	if (!to->msg_iov && msg->iov_count)
		return -FI_EINVAL;
	to->desc = msg->desc;
	to->iov_count = msg->iov_count;
	to->addr = msg->addr;
	to->tag = msg->tag;
	to->ignore = msg->ignore;
	to->context = msg->context;
	to->data = msg->data;
	return 0;
}

/**
 * fi_trecvmsg.
 */
static inline ssize_t
kfi_trecvmsg(struct fid_ep *ep, const struct kfi_msg_tagged *msg,
	uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg_tagged to;
	int ret = kfi_msg_tagged_to_fi(msg, storage, &to);

	return ret ? ret : fi_trecvmsg(ep, &to, flags);
}

/**
 * fi_tsendmsg.
 */
static inline ssize_t
kfi_tsendmsg(struct fid_ep *ep, const struct kfi_msg_tagged *msg,
	uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg_tagged to;
	int ret = kfi_msg_tagged_to_fi(msg, storage, &to);

	return ret ? ret : fi_tsendmsg(ep, &to, flags);
}

#define KFI_LIST_TSEND(name, type, element) \
static inline ssize_t \
name(struct fid_ep *ep, const struct element *list, void **desc, \
	size_t count, fi_addr_t addr, uint64_t tag, void *context) \
{ \
	struct iovec storage[KFI_IOV_MAX]; \
	const struct iovec *iov = kfi_iov(storage, type, list, count); \
\
	return iov ? fi_tsendv(ep, iov, desc, count, addr, tag, context) \
		   : -FI_EINVAL; \
}

#define KFI_LIST_TRECV(name, type, element) \
static inline ssize_t \
name(struct fid_ep *ep, const struct element *list, void **desc, \
	size_t count, fi_addr_t addr, uint64_t tag, uint64_t ignore, \
	void *context) \
{ \
	struct iovec storage[KFI_IOV_MAX]; \
	const struct iovec *iov = kfi_iov(storage, type, list, count); \
\
	return iov ? fi_trecvv(ep, iov, desc, count, addr, tag, ignore, \
			       context) \
		   : -FI_EINVAL; \
}

KFI_LIST_TSEND(kfi_tsendbv, KFI_BVEC, bio_vec)
KFI_LIST_TSEND(kfi_tsendsgl, KFI_SGL, scatterlist)
KFI_LIST_TRECV(kfi_trecvbv, KFI_BVEC, bio_vec)
KFI_LIST_TRECV(kfi_trecvsgl, KFI_SGL, scatterlist)
