/**
 * fi_eq_open, of a queue that can be waited on; a handler is called when there
 * are events, from a thread of its own. The macro below takes the four arguments
 * of kfabric's first version as well, which has no handler.
 */
static inline int
kfi_eq_open(struct fid_fabric *fabric, const struct fi_eq_attr *attr,
	struct fid_eq **eq, kfi_event_handler event_handler, void *context)
{
	struct fi_eq_attr waits;
	int ret;

	memset(&waits, 0, sizeof waits);
	if (attr)
		waits = *attr;
	waits.wait_obj = kfi_wait_obj(waits.wait_obj);
	ret = fi_eq_open(fabric, &waits, eq, context);
	if (ret || !event_handler)
		return ret;
	return kfi_opened(kfi_note_handler(&(*eq)->fid, fabric, NULL,
					   event_handler, context),
			  &(*eq)->fid);
}

static inline int
kfi_eq_open_first(struct fid_fabric *fabric, const struct fi_eq_attr *attr,
	struct fid_eq **eq, void *context)
{
	int ret = kfi_eq_open(fabric, attr, eq, NULL, context);

	return ret ? ret : kfi_opened(kfi_note_first(&(*eq)->fid), &(*eq)->fid);
}

#define KFI_EQ_OPEN(a, b, c, d, e, name, ...) name
#define kfi_eq_open(...) \
	KFI_EQ_OPEN(__VA_ARGS__, kfi_eq_open, kfi_eq_open_first, , ) \
	(__VA_ARGS__)

/**
 * fi_eq_sread; -KFI_ETIMEDOUT if nothing came in time. A queue that was opened as
 * in kfabric's first version waits without a limit with a timeout of 0, too.
 */
static inline ssize_t
kfi_eq_sread(struct fid_eq *eq, uint32_t *event, void *buf, size_t len,
	int timeout, uint64_t flags)
{
	return kfi_waited(fi_eq_sread(eq, event, buf, len,
				      kfi_timeout(&eq->fid, timeout), flags),
			  timeout);
}

/**
 * fi_cq_sread, as kfi_eq_sread.
 */
static inline ssize_t
kfi_cq_sread(struct fid_cq *cq, void *buf, size_t count, const void *cond,
	int timeout)
{
	return kfi_waited(fi_cq_sread(cq, buf, count, cond,
				      kfi_timeout(&cq->fid, timeout)),
			  timeout);
}

/**
 * fi_cq_sreadfrom, as kfi_eq_sread.
 */
static inline ssize_t
kfi_cq_sreadfrom(struct fid_cq *cq, void *buf, size_t count,
	fi_addr_t *src_addr, const void *cond, int timeout)
{
	return kfi_waited(fi_cq_sreadfrom(cq, buf, count, src_addr, cond,
					  kfi_timeout(&cq->fid, timeout)),
			  timeout);
}
