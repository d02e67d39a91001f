/*
 * With -DCT_DEVICE the buffers of all transfers and regions of a suite are on a device (or the stand-in for one,
 * ctest/hmem; accelerator.h), while its tests look at memory of the host: each call of a transfer has its buffer replaced by one of
 * the device, whose bytes are moved to it before, and back when the operation is complete.  Regions are compared on
 * both sides whenever the ranks or the queues have something to tell; what one side changed is changed on the other.
 * A child of a process with a device has none (the drivers do not survive a fork): its buffers stay on the host.
 */
#ifndef CT_DEVICE_H
#define CT_DEVICE_H
#include "accelerator.h"

static const struct acc *ctd_acc;

enum ctd_kind { CTD_TX, CTD_RX, CTD_MULTI, CTD_REGION };
struct ctd {
	enum ctd_kind kind;
	unsigned char *host, *dev, *seen;	/* seen: the bytes when both were the same */
	size_t n, capacity;
	void *ctx;
	unsigned long op;			/* segments of one operation have one number; 0: unused */
	struct fid *mr;
};
static struct ctd *ctd_all;
static size_t ctd_count;
static unsigned long ctd_ops;
static pthread_mutex_t ctd_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { struct fid_cq *cq; enum fi_cq_format format; } ctd_cqs[256];

/* The process that has loaded the device; the child of one has only the host. */
static pid_t ctd_owner;
static inline int ctd_in_child(void)
{
	if (!ctd_owner || ctd_owner == getpid())
		return 0;
	ctd_count = 0;	/* the operations of the parent */
	return 1;
}
static inline void ctd_load(void)
{
	if (ctd_acc)
		return;
	ctd_owner = getpid();
	ctd_acc = acc_of(0);
	if (!ctd_acc || ctd_acc->load()) {
		fprintf(stderr, "no accelerator: %s\n", getenv("CT_HMEM") ? getenv("CT_HMEM") : "cuda");
		_exit(1);
	}
}
static inline void ctd_must(int ok)
{
	if (!ok)
		abort();
}
/* A place for n bytes on the device, with those of the host in it. */
static inline struct ctd *ctd_new(enum ctd_kind kind, const void *host, size_t n, void *ctx, unsigned long op)
{
	struct ctd *d = NULL;

	ctd_load();
	for (size_t i = 0; i < ctd_count && !d; i++)
		if (!ctd_all[i].op && ctd_all[i].capacity >= n && ctd_all[i].capacity / 4 <= n)
			d = &ctd_all[i];
	if (!d) {
		void *dev;

		ctd_must((ctd_all = realloc(ctd_all, (ctd_count + 1) * sizeof *ctd_all)) != NULL);
		d = &ctd_all[ctd_count++];
		memset(d, 0, sizeof *d);
		ctd_must(!ctd_acc->allocate(&dev, n) && (d->seen = malloc(n)));
		d->dev = dev;
		d->capacity = n;
	}
	d->kind = kind;
	d->host = (void *)host;
	d->n = n;
	d->ctx = ctx;
	d->op = op;
	d->mr = NULL;
	memcpy(d->seen, host, n);
	ctd_must(!ctd_acc->copy(d->dev, host, n));
	return d;
}
/* Moves what the device has changed to the host, and of a region what the host has changed to the device. */
static inline void ctd_merge(struct ctd *d)
{
	enum { PIECE = 256 };
	static unsigned char *now;
	static size_t capacity;

	if (d->kind == CTD_TX || !d->n)
		return;
	if (capacity < d->n)
		ctd_must((now = realloc(now, capacity = d->n)) != NULL);
	ctd_must(!ctd_acc->copy(now, d->dev, d->n));
	for (size_t at = 0; at < d->n; at += PIECE) {
		size_t n = d->n - at < PIECE ? d->n - at : PIECE;
		int push = 0;

		if (memcmp(now + at, d->seen + at, n)) {
			for (size_t i = at; i < at + n; i++)
				if (now[i] != d->seen[i])
					d->host[i] = d->seen[i] = now[i];
		}
		if (d->kind != CTD_REGION || !memcmp(d->host + at, d->seen + at, n))
			continue;
		for (size_t i = at; i < at + n; i++)
			push |= d->host[i] != d->seen[i];
		for (size_t i = at; push && i < at + n; i++)
			if (d->host[i] != d->seen[i]) {
				size_t k = i;

				while (k < at + n && d->host[k] != d->seen[k])
					k++;
				ctd_must(!ctd_acc->copy(d->dev + i, d->host + i, k - i));
				memcpy(d->seen + i, d->host + i, k - i);
				i = k;
			}
	}
}
static inline int ctd_by_op(const void *a, const void *b)
{
	unsigned long x = ctd_all[*(const size_t *)a].op, y = ctd_all[*(const size_t *)b].op;

	return x < y ? -1 : x > y;
}
/* Merges the operations with any of these bytes of the host, the oldest first: bytes of a later one replace its bytes. */
static inline void ctd_look(const void *b, size_t n)
{
	static size_t *found, capacity;
	const unsigned char *at = b;
	size_t count = 0;

	if (ctd_in_child())
		return;
	pthread_mutex_lock(&ctd_lock);
	if (capacity < ctd_count)
		ctd_must((found = realloc(found, (capacity = ctd_count) * sizeof *found)) != NULL);
	for (size_t i = 0; i < ctd_count; i++) {
		const struct ctd *d = &ctd_all[i];

		if (d->op && d->kind != CTD_TX && at < d->host + d->n && d->host < at + n)
			found[count++] = i;
	}
	if (count > 1)
		qsort(found, count, sizeof *found, ctd_by_op);
	for (size_t i = 0; i < count; i++)
		ctd_merge(&ctd_all[found[i]]);
	pthread_mutex_unlock(&ctd_lock);
}
static inline void ctd_sync(int all)
{
	if (ctd_in_child())
		return;
	if (all)
		return ctd_look(NULL, SIZE_MAX);
	pthread_mutex_lock(&ctd_lock);
	for (size_t i = 0; i < ctd_count; i++)
		if (ctd_all[i].op && ctd_all[i].kind == CTD_REGION)
			ctd_merge(&ctd_all[i]);
	pthread_mutex_unlock(&ctd_lock);
}
/* Replaces the segments of an operation. */
static inline unsigned long ctd_post(enum ctd_kind kind, const struct iovec *from, struct iovec *to, size_t count, void *ctx)
{
	unsigned long op;

	if (ctd_in_child()) {
		memmove(to, from, count * sizeof *to);
		return 0;
	}
	ctd_sync(0);
	/* operations without an entry are still there, and this one begins where they end */
	for (size_t i = 0; i < count && kind != CTD_TX; i++)
		ctd_look(from[i].iov_base, from[i].iov_len);
	pthread_mutex_lock(&ctd_lock);
	op = ++ctd_ops;
	for (size_t i = 0; i < count; i++) {
		to[i] = from[i];
		if (from[i].iov_base && from[i].iov_len)
			to[i].iov_base = ctd_new(kind, from[i].iov_base, from[i].iov_len, ctx, op)->dev;
	}
	pthread_mutex_unlock(&ctd_lock);
	return op;
}
static inline void ctd_end(unsigned long op)
{
	for (size_t i = 0; i < ctd_count; i++)
		if (ctd_all[i].op == op) {
			ctd_merge(&ctd_all[i]);
			ctd_all[i].op = 0;
		}
}
/* The call is over: failed, or with an injected buffer, which nothing may read any more. */
static inline ssize_t ctd_posted(unsigned long op, ssize_t r, int injected)
{
	if (op && (r || injected)) {
		pthread_mutex_lock(&ctd_lock);
		for (size_t i = 0; i < ctd_count && injected && !r; i++)
			if (ctd_all[i].op == op) {
				memset(ctd_all[i].seen, 0xdb, ctd_all[i].n);
				ctd_must(!ctd_acc->copy(ctd_all[i].dev, ctd_all[i].seen, ctd_all[i].n));
			}
		for (size_t i = 0; i < ctd_count; i++)
			if (ctd_all[i].op == op)
				ctd_all[i].op = 0;
		pthread_mutex_unlock(&ctd_lock);
	}
	return r;
}
/* An operation with this context is complete; returns the address of the host for one of the device. */
static inline void *ctd_complete(void *ctx, uint64_t flags, void *buf)
{
	struct ctd *first = NULL;
	int named;

	if (ctd_in_child())
		return buf;
	pthread_mutex_lock(&ctd_lock);
	for (size_t i = 0; i < ctd_count; i++) {
		struct ctd *d = &ctd_all[i];

		if (d->op && (unsigned char *)buf >= d->dev && (unsigned char *)buf < d->dev + d->n) {
			/* a receive is named by its buffer, whatever others have its context */
			if (d->kind == CTD_MULTI || (d->kind == CTD_RX && flags & FI_RECV))
				first = d;
			buf = d->host + ((unsigned char *)buf - d->dev);
			break;
		}
	}
	named = first != NULL;
	for (size_t i = 0; i < ctd_count && !first; i++) {
		struct ctd *d = &ctd_all[i];
		int fits = d->kind == CTD_TX ? !(flags & FI_RECV) : d->kind == CTD_RX || d->kind == CTD_MULTI ? !(flags & FI_SEND) : 0;

		if (d->op && d->ctx == ctx && fits && (!first || d->op < first->op))
			first = d;
	}
	for (size_t i = 0; i < ctd_count; i++) {	/* of several with this context the oldest */
		struct ctd *d = &ctd_all[i];

		if (first && !named && first->kind != CTD_MULTI && d->op && d->ctx == ctx && d->kind == first->kind && d->op < first->op)
			first = d;
	}
	if (first && first->kind == CTD_MULTI && !(flags & FI_MULTI_RECV))
		ctd_merge(first);
	else if (first)
		ctd_end(first->op);
	pthread_mutex_unlock(&ctd_lock);
	ctd_sync(0);
	return buf;
}

static inline int ctd_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *ctx)
{
	int r = fi_cq_open(domain, attr, cq, ctx);

	for (int i = 0; !r && i < 256; i++)
		if (!ctd_cqs[i].cq || ctd_cqs[i].cq == *cq) {
			ctd_cqs[i].cq = *cq;
			ctd_cqs[i].format = attr && attr->format ? attr->format : FI_CQ_FORMAT_CONTEXT;
			break;
		}
	return r;
}
static inline ssize_t ctd_entries(struct fid_cq *cq, void *b, ssize_t n)
{
	static const size_t sizes[] = { 8, 8, sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry), sizeof(struct fi_cq_tagged_entry) };
	enum fi_cq_format format = FI_CQ_FORMAT_CONTEXT;

	for (int i = 0; i < 256; i++)
		if (ctd_cqs[i].cq == cq)
			format = ctd_cqs[i].format;
	for (ssize_t i = 0; i < n; i++) {
		struct fi_cq_tagged_entry *e = (void *)((char *)b + i * sizes[format]);
		uint64_t flags = format >= FI_CQ_FORMAT_MSG ? e->flags : 0;

		if (format >= FI_CQ_FORMAT_DATA)
			e->buf = ctd_complete(e->op_context, flags, e->buf);
		else
			ctd_complete(e->op_context, flags, NULL);
	}
	return n;
}
static inline ssize_t ctd_cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *e, uint64_t flags)
{
	ssize_t r = fi_cq_readerr(cq, e, flags);

	if (r == 1)
		e->buf = ctd_complete(e->op_context, e->flags, e->buf);
	return r;
}
static inline ssize_t ctd_cq_read(struct fid_cq *cq, void *b, size_t n)
{
	return ctd_entries(cq, b, fi_cq_read(cq, b, n));
}
static inline ssize_t ctd_cq_readfrom(struct fid_cq *cq, void *b, size_t n, fi_addr_t *src)
{
	return ctd_entries(cq, b, fi_cq_readfrom(cq, b, n, src));
}
static inline ssize_t ctd_cq_sread(struct fid_cq *cq, void *b, size_t n, const void *cond, int timeout)
{
	return ctd_entries(cq, b, fi_cq_sread(cq, b, n, cond, timeout));
}
static inline ssize_t ctd_cq_sreadfrom(struct fid_cq *cq, void *b, size_t n, fi_addr_t *src, const void *cond, int timeout)
{
	return ctd_entries(cq, b, fi_cq_sreadfrom(cq, b, n, src, cond, timeout));
}
static inline uint64_t ctd_cntr_read(struct fid_cntr *cntr)
{
	uint64_t n = fi_cntr_read(cntr);

	ctd_sync(1);
	return n;
}
static inline int ctd_cntr_wait(struct fid_cntr *cntr, uint64_t n, int timeout)
{
	int r = fi_cntr_wait(cntr, n, timeout);

	ctd_sync(1);
	return r;
}

/* NAME(ep, buf, len, desc, ARGS, context) and the like, with what is behind `desc` as it is. */
#define CTD_ONE(kind, name, parameters, arguments, injected, context) \
	static inline ssize_t ctd_##name parameters \
	{ \
		struct iovec v = { (void *)buf, len }; \
		unsigned long op = ctd_post(kind, &v, &v, 1, context); \
		buf = v.iov_base; \
		return ctd_posted(op, fi_##name arguments, injected); \
	}
#define CTD_VECTOR(kind, name, parameters, arguments) \
	static inline ssize_t ctd_##name parameters \
	{ \
		struct iovec v[16]; \
		unsigned long op; \
		if (!iov || count > 16) \
			return fi_##name arguments; \
		op = ctd_post(kind, iov, v, count, context); \
		iov = v; \
		return ctd_posted(op, fi_##name arguments, 0); \
	}
#define CTD_MESSAGE(rx, name, type) \
	static inline ssize_t ctd_##name(struct fid_ep *ep, const struct type *msg, uint64_t flags) \
	{ \
		struct iovec v[16]; \
		struct type m; \
		unsigned long op; \
		if (!msg || !msg->msg_iov || msg->iov_count > 16 || flags & (FI_PEEK | FI_DISCARD)) \
			return fi_##name(ep, msg, flags); \
		m = *msg; \
		op = ctd_post(!rx ? CTD_TX : flags & FI_MULTI_RECV ? CTD_MULTI : CTD_RX, m.msg_iov, v, m.iov_count, m.context); \
		m.msg_iov = v; \
		return ctd_posted(op, fi_##name(ep, &m, flags), !rx && flags & FI_INJECT); \
	}
CTD_ONE(CTD_TX, send, (struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, void *context), (ep, buf, len, desc, dest, context), 0, context)
CTD_ONE(CTD_TX, senddata, (struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest, void *context), (ep, buf, len, desc, data, dest, context), 0, context)
CTD_ONE(CTD_TX, inject, (struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest), (ep, buf, len, dest), 1, NULL)
CTD_ONE(CTD_TX, injectdata, (struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest), (ep, buf, len, data, dest), 1, NULL)
CTD_ONE(CTD_RX, recv, (struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, void *context), (ep, buf, len, desc, src, context), 0, context)
CTD_ONE(CTD_TX, tsend, (struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t tag, void *context), (ep, buf, len, desc, dest, tag, context), 0, context)
CTD_ONE(CTD_TX, tsenddata, (struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest, uint64_t tag, void *context), (ep, buf, len, desc, data, dest, tag, context), 0, context)
CTD_ONE(CTD_TX, tinject, (struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest, uint64_t tag), (ep, buf, len, dest, tag), 1, NULL)
CTD_ONE(CTD_TX, tinjectdata, (struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t tag), (ep, buf, len, data, dest, tag), 1, NULL)
CTD_ONE(CTD_RX, trecv, (struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t tag, uint64_t ignore, void *context), (ep, buf, len, desc, src, tag, ignore, context), 0, context)
CTD_ONE(CTD_RX, read, (struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t src, uint64_t addr, uint64_t key, void *context), (ep, buf, len, desc, src, addr, key, context), 0, context)
CTD_ONE(CTD_TX, write, (struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t dest, uint64_t addr, uint64_t key, void *context), (ep, buf, len, desc, dest, addr, key, context), 0, context)
CTD_ONE(CTD_TX, writedata, (struct fid_ep *ep, const void *buf, size_t len, void *desc, uint64_t data, fi_addr_t dest, uint64_t addr, uint64_t key, void *context), (ep, buf, len, desc, data, dest, addr, key, context), 0, context)
CTD_ONE(CTD_TX, inject_write, (struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest, uint64_t addr, uint64_t key), (ep, buf, len, dest, addr, key), 1, NULL)
CTD_ONE(CTD_TX, inject_writedata, (struct fid_ep *ep, const void *buf, size_t len, uint64_t data, fi_addr_t dest, uint64_t addr, uint64_t key), (ep, buf, len, data, dest, addr, key), 1, NULL)
CTD_VECTOR(CTD_TX, sendv, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, void *context), (ep, iov, desc, count, dest, context))
CTD_VECTOR(CTD_RX, recvv, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, void *context), (ep, iov, desc, count, src, context))
CTD_VECTOR(CTD_TX, tsendv, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, uint64_t tag, void *context), (ep, iov, desc, count, dest, tag, context))
CTD_VECTOR(CTD_RX, trecvv, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t tag, uint64_t ignore, void *context), (ep, iov, desc, count, src, tag, ignore, context))
CTD_VECTOR(CTD_RX, readv, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t src, uint64_t addr, uint64_t key, void *context), (ep, iov, desc, count, src, addr, key, context))
CTD_VECTOR(CTD_TX, writev, (struct fid_ep *ep, const struct iovec *iov, void **desc, size_t count, fi_addr_t dest, uint64_t addr, uint64_t key, void *context), (ep, iov, desc, count, dest, addr, key, context))
CTD_MESSAGE(0, sendmsg, fi_msg)
CTD_MESSAGE(1, recvmsg, fi_msg)
CTD_MESSAGE(0, tsendmsg, fi_msg_tagged)
CTD_MESSAGE(1, trecvmsg, fi_msg_tagged)
CTD_MESSAGE(1, readmsg, fi_msg_rma)
CTD_MESSAGE(0, writemsg, fi_msg_rma)

/* Regions of one segment; those of several stay on the host. */
static inline int ctd_region(struct fid_mr **mr, int r, unsigned long op)
{
	if (!op)
		return r;
	pthread_mutex_lock(&ctd_lock);
	for (size_t i = 0; i < ctd_count; i++)
		if (ctd_all[i].op == op) {
			if (r)
				ctd_all[i].op = 0;
			else
				ctd_all[i].mr = &(*mr)->fid;
		}
	pthread_mutex_unlock(&ctd_lock);
	return r;
}
static inline int ctd_mr_reg(struct fid_domain *domain, const void *buf, size_t len, uint64_t access, uint64_t offset,
			     uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	struct iovec v = { (void *)buf, len };
	unsigned long op;

	/* a size that no memory has, in tests of errors */
	if (len > 64UL << 20)
		return fi_mr_reg(domain, buf, len, access, offset, key, flags, mr, context);
	op = ctd_post(CTD_REGION, &v, &v, 1, NULL);
	return ctd_region(mr, fi_mr_reg(domain, v.iov_base, len, access, offset, key, flags, mr, context), op);
}
static inline int ctd_mr_regattr(struct fid_domain *domain, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
	struct fi_mr_attr a;
	struct iovec v;
	unsigned long op;

	if (!attr || !attr->mr_iov || attr->iov_count != 1 || attr->mr_iov->iov_len > 64UL << 20)
		return fi_mr_regattr(domain, attr, flags, mr);
	a = *attr;
	op = ctd_post(CTD_REGION, a.mr_iov, &v, 1, NULL);
	a.mr_iov = &v;
	a.iface = v.iov_base == attr->mr_iov->iov_base ? FI_HMEM_SYSTEM : ctd_acc->iface;
	return ctd_region(mr, fi_mr_regattr(domain, &a, flags, mr), op);
}
static inline int ctd_close(struct fid *fid)
{
	int r;

	ctd_sync(0);
	r = fi_close(fid);
	if (ctd_in_child())
		return r;
	pthread_mutex_lock(&ctd_lock);
	for (size_t i = 0; i < ctd_count && !r; i++)
		if (ctd_all[i].op && ctd_all[i].mr == fid)
			ctd_end(ctd_all[i].op);
	pthread_mutex_unlock(&ctd_lock);
	return r;
}

#define fi_send ctd_send
#define fi_sendv ctd_sendv
#define fi_sendmsg ctd_sendmsg
#define fi_senddata ctd_senddata
#define fi_inject ctd_inject
#define fi_injectdata ctd_injectdata
#define fi_recv ctd_recv
#define fi_recvv ctd_recvv
#define fi_recvmsg ctd_recvmsg
#define fi_tsend ctd_tsend
#define fi_tsendv ctd_tsendv
#define fi_tsendmsg ctd_tsendmsg
#define fi_tsenddata ctd_tsenddata
#define fi_tinject ctd_tinject
#define fi_tinjectdata ctd_tinjectdata
#define fi_trecv ctd_trecv
#define fi_trecvv ctd_trecvv
#define fi_trecvmsg ctd_trecvmsg
#define fi_read ctd_read
#define fi_readv ctd_readv
#define fi_readmsg ctd_readmsg
#define fi_write ctd_write
#define fi_writev ctd_writev
#define fi_writemsg ctd_writemsg
#define fi_writedata ctd_writedata
#define fi_inject_write ctd_inject_write
#define fi_inject_writedata ctd_inject_writedata
#define fi_mr_reg ctd_mr_reg
#define fi_mr_regattr ctd_mr_regattr
#define fi_close ctd_close
#define fi_cq_open ctd_cq_open
#define fi_cq_read ctd_cq_read
#define fi_cq_readfrom ctd_cq_readfrom
#define fi_cq_readerr ctd_cq_readerr
#define fi_cq_sread ctd_cq_sread
#define fi_cq_sreadfrom ctd_cq_sreadfrom
#define fi_cntr_read ctd_cntr_read
#define fi_cntr_wait ctd_cntr_wait
#endif
