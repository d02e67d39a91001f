/**
 * A message, for the calls that take flags (kfi_msg(3)). Without a type the list
 * is of KFI_KVEC.
 */
struct kfi_msg {
	enum kfi_iov_type type;
	union {
		const struct iovec *msg_iov;
		const struct bio_vec *msg_biov;
		const struct scatterlist *msg_sgl;
	};
	void **desc;
	size_t iov_count;
	fi_addr_t addr;
	void *context;
	uint64_t data;
};

/**
 * fi_endpoint. The address it is for is remembered until kfi_close, for
 * kfi_connect.
 */
static inline int
kfi_endpoint(struct fid_domain *domain, struct fi_info *info,
	struct fid_ep **ep, void *context)
{
	struct kfi_note *note = NULL;
	int ret;

	if (info && info->dest_addr && info->dest_addrlen) {
		note = (struct kfi_note *) calloc(1, sizeof *note);
		if (note)
			note->dest_addr = malloc(info->dest_addrlen);
		if (!note || !note->dest_addr) {
			free(note);
			return -FI_ENOMEM;
		}
		memcpy(note->dest_addr, info->dest_addr, info->dest_addrlen);
	}
	ret = fi_endpoint(domain, info, ep, context);
	if (note && ret) {
		free(note->dest_addr);
		free(note);
	} else if (note) {
		note->fid = &(*ep)->fid;
		kfi_note_add(note);
	}
	return ret;
}

/* The message as one of libfabric's; -FI_EINVAL if it is none. */
static inline int
kfi_msg_to_fi(const struct kfi_msg *msg, struct iovec *storage, struct fi_msg *to)
{
	if (!msg)
		return -FI_EINVAL;
	to->msg_iov = kfi_iov(storage, msg->type, msg->msg_iov, msg->iov_count);
	if (!to->msg_iov && msg->iov_count)
		return -FI_EINVAL;
	to->desc = msg->desc;
	to->iov_count = msg->iov_count;
	to->addr = msg->addr;
	to->context = msg->context;
	to->data = msg->data;
	return 0;
}

/**
 * fi_recvmsg.
 */
static inline ssize_t
kfi_recvmsg(struct fid_ep *ep, const struct kfi_msg *msg, uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg to;
	int ret = kfi_msg_to_fi(msg, storage, &to);

	return ret ? ret : fi_recvmsg(ep, &to, flags);
}

/**
 * fi_sendmsg.
 */
static inline ssize_t
kfi_sendmsg(struct fid_ep *ep, const struct kfi_msg *msg, uint64_t flags)
{
	struct iovec storage[KFI_IOV_MAX];
	struct fi_msg to;
	int ret = kfi_msg_to_fi(msg, storage, &to);

	return ret ? ret : fi_sendmsg(ep, &to, flags);
}

/* A call of libfabric's that takes an iovec, with a list of pages. */
#define KFI_LIST_CALL(name, call, type, element) \
static inline ssize_t \
name(struct fid_ep *ep, const struct element *list, void **desc, \
	size_t count, fi_addr_t addr, void *context) \
{ \
	struct iovec storage[KFI_IOV_MAX]; \
	const struct iovec *iov = kfi_iov(storage, type, list, count); \
\
	return iov ? call(ep, iov, desc, count, addr, context) : -FI_EINVAL; \
}

KFI_LIST_CALL(kfi_recvbv, fi_recvv, KFI_BVEC, bio_vec)
KFI_LIST_CALL(kfi_recvsgl, fi_recvv, KFI_SGL, scatterlist)
KFI_LIST_CALL(kfi_sendbv, fi_sendv, KFI_BVEC, bio_vec)
KFI_LIST_CALL(kfi_sendsgl, fi_sendv, KFI_SGL, scatterlist)
