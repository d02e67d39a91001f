/* A provider plug-in, "mock", that carries nothing and writes down, in the file that the
 * environment variable MOCK_LOG names, which calls reach it, on which of its objects and
 * with which values.  An object that is not its own is written as UNKNOWN.  So a run with
 * hooks between the program and it must leave the same file as a run without.
 *
 * MOCK_SHORT=1: its tables end where those of 1.0 ended, and are followed by slots that
 * end the process. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <rdma/providers/fi_prov.h>

struct object {
	union {
		struct fid fid;
		struct fid_fabric fabric;
		struct fid_domain domain;
		struct fid_ep ep;
		struct fid_pep pep;
		struct fid_stx stx;
		struct fid_cq cq;
		struct fid_cntr cntr;
		struct fid_eq eq;
		struct fid_av av;
		struct fid_av_set set;
		struct fid_mr mr;
		struct fid_mc mc;
		struct fid_poll poll;
		struct fid_wait wait;
	} u;
	enum fi_cq_format format;	/* of a cq */
};
static FILE *out;
static struct object *all[256];
static int count;

static const char *who(const void *fid)
{
	static char text[8][24];
	static int round_number;
	char *t = text[round_number++ % 8];
	if (!fid) return "none";
	for (int i = 0; i < count; i++)
		if (all[i] == fid) { snprintf(t, 24, "#%d", i); return t; }
	return "UNKNOWN";
}

/* One call: a letter per argument: f a fid, p or u a word, i 32 bits, s not written. */
static void note(const char *name, const char *kinds, ...)
{
	va_list ap;
	va_start(ap, kinds);
	fprintf(out, "%s(", name);
	for (const char *k = kinds; *k; k++) {
		uint64_t v = va_arg(ap, uint64_t);
		const char *sep = k[1] ? ", " : "";
		if (*k == 'f') fprintf(out, "%s%s", who((void *)(uintptr_t)v), sep);
		else if (*k == 'i') fprintf(out, "%#x%s", (uint32_t)v, sep);
		else if (*k == 's') fprintf(out, "-%s", sep);
		else fprintf(out, "%#" PRIx64 "%s", v, sep);
	}
	fprintf(out, ")\n");
	fflush(out);
	va_end(ap);
}
#define W(x) ((uint64_t)(uintptr_t)(x))

/* All arguments of all calls are integers or pointers, so one function per number of them
 * and name fits every slot; conversions are made through void *. */
#define A1 uint64_t a
#define A2 A1, uint64_t b
#define A3 A2, uint64_t c
#define A4 A3, uint64_t d
#define A5 A4, uint64_t e
#define A6 A5, uint64_t f
#define A7 A6, uint64_t g
#define A8 A7, uint64_t h
#define A9 A8, uint64_t i
#define A10 A9, uint64_t j
#define A11 A10, uint64_t k
#define A12 A11, uint64_t l
#define A13 A12, uint64_t m
#define A14 A13, uint64_t n
#define A15 A14, uint64_t o
#define A16 A15, uint64_t p
#define V1 a
#define V2 V1, b
#define V3 V2, c
#define V4 V3, d
#define V5 V4, e
#define V6 V5, f
#define V7 V6, g
#define V8 V7, h
#define V9 V8, i
#define V10 V9, j
#define V11 V10, k
#define V12 V11, l
#define V13 V12, m
#define V14 V13, n
#define V15 V14, o
#define V16 V15, p
#define CALL(name, n, kinds, ret) static uint64_t m_##name(A##n) { note(#name, kinds, V##n); return W(ret); }
#define SLOT(name) (void *)m_##name

CALL(control_other, 3, "fip", 0)
CALL(open_ops, 5, "fsusp", -FI_ENOSYS)
CALL(set_ops, 5, "fsupp", 0)
CALL(bind, 3, "ffu", 0)
CALL(tostr, 3, "fpu", 0)

CALL(cancel, 2, "fp", 0)
CALL(getopt, 5, "fiipp", 0)
CALL(setopt, 5, "fiipu", 0)
CALL(rx_size_left, 1, "f", 11)
CALL(tx_size_left, 1, "f", 12)
CALL(ep_export_xpu, 3, "fup", 0)
CALL(setname, 3, "fpu", 0)
CALL(getname, 3, "fpp", 0)
CALL(getpeer, 3, "fpp", 0)
CALL(connect, 4, "fppu", 0)
CALL(listen, 1, "f", 0)
CALL(accept, 3, "fpu", 0)
CALL(reject, 4, "fppu", 0)
CALL(shutdown, 2, "fu", 0)

CALL(recv, 6, "fpupup", 0)
CALL(recvv, 6, "fppuup", 0)
CALL(send, 6, "fpupup", 0)
CALL(sendv, 6, "fppuup", 0)
CALL(inject, 4, "fpuu", 0)
CALL(senddata, 7, "fpupuup", 0)
CALL(injectdata, 5, "fpuuu", 0)
CALL(read, 8, "fpupuuup", 0)
CALL(readv, 8, "fppuuuup", 0)
CALL(write, 8, "fpupuuup", 0)
CALL(writev, 8, "fppuuuup", 0)
CALL(inject_write, 6, "fpuuuu", 0)
CALL(writedata, 9, "fpupuuuup", 0)
CALL(inject_writedata, 7, "fpuuuuu", 0)
CALL(trecv, 8, "fpupuuup", 0)
CALL(trecvv, 8, "fppuuuup", 0)
CALL(tsend, 7, "fpupuup", 0)
CALL(tsendv, 7, "fppuuup", 0)
CALL(tinject, 5, "fpuuu", 0)
CALL(tsenddata, 8, "fpupuuup", 0)
CALL(tinjectdata, 6, "fpuuuu", 0)
static uint64_t message(const char *name, struct fid_ep *ep, const void *msg, uint64_t flags, void *context)
{
	note(name, "fpup", W(ep), W(msg), flags, W(context));
	if (flags & FI_TRIGGER) note(" trigger", "f", W(((struct fi_triggered_context *)context)->trigger.threshold.cntr));
	return 0;
}
#define MESSAGE(name, type) static uint64_t m_##name(struct fid_ep *ep, const struct type *msg, uint64_t flags) { return message(#name, ep, msg, flags, msg->context); }
MESSAGE(recvmsg, fi_msg)
MESSAGE(sendmsg, fi_msg)
MESSAGE(readmsg, fi_msg_rma)
MESSAGE(writemsg, fi_msg_rma)
MESSAGE(trecvmsg, fi_msg_tagged)
MESSAGE(tsendmsg, fi_msg_tagged)
MESSAGE(atomicmsg, fi_msg_atomic)
CALL(atomic, 10, "fpupuuuiip", 0)
CALL(atomicv, 10, "fppuuuuiip", 0)
CALL(inject_atomic, 8, "fpuuuuii", 0)
CALL(fetch_atomic, 12, "fpupppuuuiip", 0)
CALL(fetch_atomicv, 13, "fppuppuuuuiip", 0)
CALL(fetch_atomicmsg, 6, "fpppuu", 0)
CALL(compare_atomic, 14, "fpupppppuuuiip", 0)
CALL(compare_atomicv, 16, "fppuppuppuuuuiip", 0)
CALL(compare_atomicmsg, 9, "fpppuppuu", 0)
CALL(atomicvalid, 4, "fiip", 0)
CALL(fetch_atomicvalid, 4, "fiip", 0)
CALL(compare_atomicvalid, 4, "fiip", 0)
CALL(barrier, 3, "fup", 0)
CALL(broadcast, 9, "fpupuuiup", 0)
CALL(alltoall, 10, "fpupppuiup", 0)
CALL(allreduce, 11, "fpupppuiiup", 0)
CALL(allgather, 10, "fpupppuiup", 0)
CALL(reduce_scatter, 11, "fpupppuiiup", 0)
CALL(reduce, 12, "fpupppuuiiup", 0)
CALL(scatter, 11, "fpupppuuiup", 0)
CALL(gather, 11, "fpupppuuiup", 0)
CALL(collmsg, 6, "fpppuu", 0)
CALL(barrier2, 4, "fuup", 0)

CALL(av_insert, 6, "fpupup", 1)
CALL(av_insertsvc, 6, "fpppup", 1)
CALL(av_insertsym, 8, "fpupupup", 1)
CALL(av_remove, 4, "fpuu", 0)
CALL(av_lookup, 4, "fupp", 0)
CALL(av_straddr, 4, "fppp", "an address")
CALL(av_insert_auth_key, 5, "fpupu", 0)
CALL(av_lookup_auth_key, 4, "fupp", 0)
CALL(av_set_user_id, 4, "fuuu", 0)
CALL(av_lookup2, 6, "fuppup", 0)
CALL(set_union, 2, "ff", 0)
CALL(set_intersect, 2, "ff", 0)
CALL(set_diff, 2, "ff", 0)
CALL(set_insert, 2, "fu", 0)
CALL(set_remove, 2, "fu", 0)
CALL(set_addr, 2, "fp", 0)
CALL(query_atomic, 5, "fiipu", 0)
CALL(query_collective, 4, "fipu", 0)
CALL(xpu_ctx, 4, "fppp", 0)

/* The completion of a receive, then that of a send. */
static uint64_t entries(struct fid_cq *cq, void *buf, size_t n)
{
	static const size_t sizes[] = { 0, 8, 24, 40, 48 };
	size_t i;
	if (n < 1) return W(-FI_EAGAIN);
	for (i = 0; i < n && i < 2; i++) {
		struct fi_cq_tagged_entry e = { .op_context = (void *)(0x1000 + i), .flags = (i ? FI_SEND : FI_RECV | FI_REMOTE_CQ_DATA) | FI_TAGGED,
			.len = 64 << i, .buf = (void *)0x2000, .data = 5, .tag = 0x77 };
		size_t size = sizes[((struct object *)cq)->format];
		memcpy((char *)buf + i * size, &e, size);
	}
	return i;
}
static uint64_t m_cq_read(struct fid_cq *cq, void *buf, size_t n) { note("cq_read", "fpu", W(cq), W(buf), n); return entries(cq, buf, n); }
static uint64_t m_cq_readfrom(struct fid_cq *cq, void *buf, size_t n, fi_addr_t *src) { note("cq_readfrom", "fpup", W(cq), W(buf), n, W(src)); for (size_t i = 0; i < n && i < 2; i++) src[i] = 3 + i; return entries(cq, buf, n); }
static uint64_t m_cq_readerr(struct fid_cq *cq, struct fi_cq_err_entry *e, uint64_t flags)
{
	note("cq_readerr", "fpu", W(cq), W(e), flags);
	*e = (struct fi_cq_err_entry){ .op_context = (void *)0x1000, .flags = FI_RECV | FI_TAGGED, .len = 64, .buf = (void *)0x2000, .data = 5, .tag = 0x77, .olen = 9, .err = FI_ETRUNC, .prov_errno = 2, .err_data_size = 0 };
	return 1;
}
static uint64_t m_cq_sread(struct fid_cq *cq, void *buf, size_t n, const void *cond, int timeout) { note("cq_sread", "fpupi", W(cq), W(buf), n, W(cond), W((uint32_t)timeout)); return entries(cq, buf, n); }
static uint64_t m_cq_sreadfrom(struct fid_cq *cq, void *buf, size_t n, fi_addr_t *src, const void *cond, int timeout) { note("cq_sreadfrom", "fpuppi", W(cq), W(buf), n, W(src), W(cond), W((uint32_t)timeout)); for (size_t i = 0; i < n && i < 2; i++) src[i] = 3 + i; return entries(cq, buf, n); }
CALL(cq_signal, 1, "f", 0)
CALL(cq_strerror, 5, "fippu", "an error")
CALL(cq_export_xpu, 3, "fup", 0)
CALL(cntr_read, 1, "f", 41)
CALL(cntr_readerr, 1, "f", 42)
CALL(cntr_add, 2, "fu", 0)
CALL(cntr_set, 2, "fu", 0)
CALL(cntr_wait, 3, "fui", 0)
CALL(cntr_adderr, 2, "fu", 0)
CALL(cntr_seterr, 2, "fu", 0)
CALL(cntr_export_xpu, 3, "fup", 0)
CALL(wait, 2, "fi", 0)
CALL(poll, 3, "fpi", 0)
CALL(poll_add, 3, "ffu", 0)
CALL(poll_del, 3, "ffu", 0)

/* Events tell of the object that was last bound to the queue, of a kind that follows. */
static struct fid *event_fid;
static uint64_t event(const char *name, struct fid_eq *eq, uint32_t *kind, void *buf, size_t len, uint64_t flags)
{
	struct fi_eq_cm_entry *e = buf;
	note(name, "fuu", W(eq), len, flags);
	if (!event_fid || len < sizeof *e) return W(-FI_EAGAIN);
	memset(e, 0, sizeof *e);
	e->fid = event_fid;
	switch (event_fid->fclass) {
	case FI_CLASS_PEP: *kind = FI_CONNREQ; break;
	case FI_CLASS_EP: *kind = FI_CONNECTED; break;
	case FI_CLASS_MR: *kind = FI_MR_COMPLETE; ((struct fid_mr *)event_fid)->key = 99; break;
	case FI_CLASS_MC: *kind = FI_JOIN_COMPLETE; ((struct fid_mc *)event_fid)->fi_addr = 98; break;
	default: *kind = FI_AV_COMPLETE;
	}
	return sizeof *e;
}
static uint64_t m_eq_read(struct fid_eq *eq, uint32_t *kind, void *buf, size_t len, uint64_t flags) { return event("eq_read", eq, kind, buf, len, flags); }
static uint64_t m_eq_sread(struct fid_eq *eq, uint32_t *kind, void *buf, size_t len, int timeout, uint64_t flags) { (void)timeout; return event("eq_sread", eq, kind, buf, len, flags); }
static uint64_t m_eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *e, uint64_t flags)
{
	note("eq_readerr", "fu", W(eq), flags);
	memset(e, 0, sizeof *e);
	e->fid = event_fid;
	e->err = FI_ECONNREFUSED;
	return sizeof *e;
}
CALL(eq_write, 5, "fipuu", 16)
CALL(eq_strerror, 5, "fippu", "an error")

static uint64_t m_trywait(struct fid_fabric *fabric, struct fid **fids, int n)
{
	note("trywait", "fi", W(fabric), W(n));
	for (int i = 0; i < n; i++) note(" fid", "f", W(fids[i]));
	return 0;
}
static uint64_t m_close(struct fid *fid)
{
	note("close", "f", W(fid));
	if (event_fid == fid) event_fid = NULL;
	return 0; /* kept, for its number */
}
static uint64_t m_bind_any(struct fid *fid, struct fid *to, uint64_t flags)
{
	m_bind(W(fid), W(to), flags);
	event_fid = fid;
	return 0;
}
static struct object *object(size_t class, void *context);
static void work(const struct fi_deferred_work *w)
{
	note(" work", "uffi", w->threshold, W(w->triggering_cntr), W(w->completion_cntr), W(w->op_type));
	/* the endpoint, or the counter, is the first member of each */
	note(" op", "f", W(*(void **)w->op.msg));
}
static uint64_t m_control(struct fid *fid, int command, void *arg)
{
	struct fi_alias *alias = arg;
	struct fi_mr_modify *modify = arg;
	if (command != FI_ALIAS && command != FI_REFRESH && command != FI_GET_RAW_MR) m_control_other(W(fid), W((uint32_t)command), W(arg));
	else note("control", "fi", W(fid), W((uint32_t)command));
	if (command == FI_ALIAS) *alias->fid = &object(fid->fclass, fid->context)->u.fid;
	if (command == FI_QUEUE_WORK || command == FI_CANCEL_WORK) work(arg);
	if (command == FI_REFRESH && modify) note(" base", "f", W(modify->attr.base_mr));
	if (command == FI_ENABLE && fid->fclass == FI_CLASS_MR) { ((struct fid_mr *)fid)->key = 55; ((struct fid_mr *)fid)->mem_desc = (void *)0x55; }
	return 0;
}

static void *open_object(const char *name, struct fid *parent, size_t class, void *context, void *fid)
{
	struct object *o = object(class, context);
	note(name, "fp", W(parent), W(context));
	*(void **)fid = o;
	return o;
}
static void note_info(struct fi_info *info)
{
	note(" info", "fff", W(info->handle), W(info->domain_attr ? info->domain_attr->domain : NULL), W(info->fabric_attr ? info->fabric_attr->fabric : NULL));
}
#define OPEN_INFO(name, class) static uint64_t m_##name(struct fid *parent, struct fi_info *info, void *fid, void *context) { open_object(#name, parent, class, context, fid); note_info(info); return 0; }
OPEN_INFO(domain, FI_CLASS_DOMAIN)
OPEN_INFO(passive_ep, FI_CLASS_PEP)
OPEN_INFO(endpoint, FI_CLASS_EP)
OPEN_INFO(scalable_ep, FI_CLASS_SEP)
static uint64_t m_domain2(struct fid *parent, struct fi_info *info, void *fid, uint64_t flags, void *context) { note("domain2", "u", flags); return m_domain(parent, info, fid, context); }
static uint64_t m_endpoint2(struct fid *parent, struct fi_info *info, void *fid, uint64_t flags, void *context) { note("endpoint2", "u", flags); return m_endpoint(parent, info, fid, context); }
#define OPEN_WAIT(name, attr_type, class) static uint64_t m_##name(struct fid *parent, struct attr_type *attr, void *fid, void *context) { open_object(#name, parent, class, context, fid); if (attr) note(" attr", "if", W(attr->wait_obj), W(attr->wait_set)); return 0; }
OPEN_WAIT(eq_open, fi_eq_attr, FI_CLASS_EQ)
static uint64_t m_cq_open(struct fid *parent, struct fi_cq_attr *attr, void *fid, void *context)
{
	struct object *cq = open_object("cq_open", parent, FI_CLASS_CQ, context, fid);
	cq->format = attr->format;
	note(" attr", "iif", W(attr->format), W(attr->wait_obj), W(attr->wait_set));
	return 0;
}
OPEN_WAIT(cntr_open, fi_cntr_attr, FI_CLASS_CNTR)
#define OPEN(name, class) static uint64_t m_##name(struct fid *parent, void *attr, void *fid, void *context) { open_object(#name, parent, class, context, fid); note(" attr", "p", W(attr)); return 0; }
OPEN(av_open, FI_CLASS_AV)
OPEN(stx_ctx, FI_CLASS_STX_CTX)
OPEN(srx_ctx, FI_CLASS_SRX_CTX)
OPEN(av_set, FI_CLASS_AV_SET)
static uint64_t m_wait_open(struct fid *parent, void *attr, void *fid) { (void)attr; open_object("wait_open", parent, FI_CLASS_WAIT, NULL, fid); return 0; }
static uint64_t m_poll_open(struct fid *parent, void *attr, void *fid) { (void)attr; open_object("poll_open", parent, FI_CLASS_POLL, NULL, fid); return 0; }
static uint64_t m_tx_ctx(struct fid *sep, int index, void *attr, void *fid, void *context) { (void)index; (void)attr; open_object("tx_ctx", sep, FI_CLASS_TX_CTX, context, fid); return 0; }
static uint64_t m_rx_ctx(struct fid *sep, int index, void *attr, void *fid, void *context) { (void)index; (void)attr; open_object("rx_ctx", sep, FI_CLASS_RX_CTX, context, fid); return 0; }
static uint64_t m_join(struct fid *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context)
{
	const struct fi_collective_addr *coll = addr;
	open_object("join", ep, FI_CLASS_MC, context, mc);
	(*mc)->fi_addr = FI_ADDR_NOTAVAIL;
	note(" flags", "u", flags);
	if (flags & FI_COLLECTIVE) note(" set", "fu", W(coll->set), coll->coll_addr);
	event_fid = &(*mc)->fid;
	return 0;
}
static void region(struct fid_mr *mr) { mr->mem_desc = (void *)0x44; mr->key = 44; }
static uint64_t m_mr_reg(struct fid *domain, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	note("mr_reg args", "puuuuu", W(buf), len, access, offset, key, flags);
	open_object("mr_reg", domain, FI_CLASS_MR, context, mr); region(*mr); return 0;
}
static uint64_t m_mr_regv(struct fid *domain, const struct iovec *iov, size_t n, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr, void *context)
{
	note("mr_regv args", "puuuuu", W(iov), n, access, offset, key, flags);
	open_object("mr_regv", domain, FI_CLASS_MR, context, mr); region(*mr); return 0;
}
static uint64_t m_mr_regattr(struct fid *domain, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
	note("mr_regattr args", "fuuu", W(attr->base_mr), attr->sub_mr_cnt, attr->requested_key, flags);
	open_object("mr_regattr", domain, FI_CLASS_MR, attr->context, mr); region(*mr); return 0;
}

static struct fi_ops fid_ops = { sizeof fid_ops, SLOT(close), SLOT(bind_any), SLOT(control), SLOT(open_ops), SLOT(tostr), SLOT(set_ops) };
static struct fi_ops_fabric fabric_ops = { sizeof fabric_ops, SLOT(domain), SLOT(passive_ep), SLOT(eq_open), SLOT(wait_open), SLOT(trywait), SLOT(domain2) };
static struct fi_ops_domain domain_ops = { sizeof domain_ops, SLOT(av_open), SLOT(cq_open), SLOT(endpoint), SLOT(scalable_ep), SLOT(cntr_open), SLOT(poll_open), SLOT(stx_ctx), SLOT(srx_ctx), SLOT(query_atomic), SLOT(query_collective), SLOT(endpoint2), SLOT(xpu_ctx) };
static struct fi_ops_mr mr_ops = { sizeof mr_ops, SLOT(mr_reg), SLOT(mr_regv), SLOT(mr_regattr) };
static struct fi_ops_ep ep_ops = { sizeof ep_ops, SLOT(cancel), SLOT(getopt), SLOT(setopt), SLOT(tx_ctx), SLOT(rx_ctx), SLOT(rx_size_left), SLOT(tx_size_left), SLOT(ep_export_xpu) };
static struct fi_ops_cm cm_ops = { sizeof cm_ops, SLOT(setname), SLOT(getname), SLOT(getpeer), SLOT(connect), SLOT(listen), SLOT(accept), SLOT(reject), SLOT(shutdown), SLOT(join) };
static struct fi_ops_msg msg_ops = { sizeof msg_ops, SLOT(recv), SLOT(recvv), SLOT(recvmsg), SLOT(send), SLOT(sendv), SLOT(sendmsg), SLOT(inject), SLOT(senddata), SLOT(injectdata) };
static struct fi_ops_rma rma_ops = { sizeof rma_ops, SLOT(read), SLOT(readv), SLOT(readmsg), SLOT(write), SLOT(writev), SLOT(writemsg), SLOT(inject_write), SLOT(writedata), SLOT(inject_writedata) };
static struct fi_ops_tagged tagged_ops = { sizeof tagged_ops, SLOT(trecv), SLOT(trecvv), SLOT(trecvmsg), SLOT(tsend), SLOT(tsendv), SLOT(tsendmsg), SLOT(tinject), SLOT(tsenddata), SLOT(tinjectdata) };
static struct fi_ops_atomic atomic_ops = { sizeof atomic_ops, SLOT(atomic), SLOT(atomicv), SLOT(atomicmsg), SLOT(inject_atomic), SLOT(fetch_atomic), SLOT(fetch_atomicv), SLOT(fetch_atomicmsg), SLOT(compare_atomic), SLOT(compare_atomicv), SLOT(compare_atomicmsg), SLOT(atomicvalid), SLOT(fetch_atomicvalid), SLOT(compare_atomicvalid) };
static struct fi_ops_collective collective_ops = { sizeof collective_ops, SLOT(barrier), SLOT(broadcast), SLOT(alltoall), SLOT(allreduce), SLOT(allgather), SLOT(reduce_scatter), SLOT(reduce), SLOT(scatter), SLOT(gather), SLOT(collmsg), SLOT(barrier2) };
static struct fi_ops_av av_ops = { sizeof av_ops, SLOT(av_insert), SLOT(av_insertsvc), SLOT(av_insertsym), SLOT(av_remove), SLOT(av_lookup), SLOT(av_straddr), SLOT(av_set), SLOT(av_insert_auth_key), SLOT(av_lookup_auth_key), SLOT(av_set_user_id), SLOT(av_lookup2) };
static struct fi_ops_av_set set_ops = { sizeof set_ops, SLOT(set_union), SLOT(set_intersect), SLOT(set_diff), SLOT(set_insert), SLOT(set_remove), SLOT(set_addr) };
static struct fi_ops_cq cq_ops = { sizeof cq_ops, SLOT(cq_read), SLOT(cq_readfrom), SLOT(cq_readerr), SLOT(cq_sread), SLOT(cq_sreadfrom), SLOT(cq_signal), SLOT(cq_strerror), SLOT(cq_export_xpu) };
static struct fi_ops_cntr cntr_ops = { sizeof cntr_ops, SLOT(cntr_read), SLOT(cntr_readerr), SLOT(cntr_add), SLOT(cntr_set), SLOT(cntr_wait), SLOT(cntr_adderr), SLOT(cntr_seterr), SLOT(cntr_export_xpu) };
static struct fi_ops_eq eq_ops = { sizeof eq_ops, SLOT(eq_read), SLOT(eq_readerr), SLOT(eq_write), SLOT(eq_sread), SLOT(eq_strerror) };
static struct fi_ops_poll poll_ops = { sizeof poll_ops, SLOT(poll), SLOT(poll_add), SLOT(poll_del) };
static struct fi_ops_wait wait_ops = { sizeof wait_ops, SLOT(wait) };

static struct object *object(size_t class, void *context)
{
	struct object *o = calloc(1, sizeof *o);
	o->u.fid = (struct fid){ class, context, &fid_ops };
	switch (class) {
	case FI_CLASS_FABRIC: o->u.fabric.ops = &fabric_ops; break;
	case FI_CLASS_DOMAIN: o->u.domain.ops = &domain_ops; o->u.domain.mr = &mr_ops; break;
	case FI_CLASS_PEP: o->u.pep.ops = &ep_ops; o->u.pep.cm = &cm_ops; break;
	case FI_CLASS_STX_CTX: o->u.stx.ops = &ep_ops; break;
	case FI_CLASS_CQ: o->u.cq.ops = &cq_ops; break;
	case FI_CLASS_CNTR: o->u.cntr.ops = &cntr_ops; break;
	case FI_CLASS_EQ: o->u.eq.ops = &eq_ops; break;
	case FI_CLASS_AV: o->u.av.ops = &av_ops; break;
	case FI_CLASS_AV_SET: o->u.set.ops = &set_ops; break;
	case FI_CLASS_POLL: o->u.poll.ops = &poll_ops; break;
	case FI_CLASS_WAIT: o->u.wait.ops = &wait_ops; break;
	case FI_CLASS_MR: case FI_CLASS_MC: break;
	default:
		o->u.ep.ops = &ep_ops; o->u.ep.cm = &cm_ops; o->u.ep.msg = &msg_ops; o->u.ep.rma = &rma_ops;
		o->u.ep.tagged = &tagged_ops; o->u.ep.atomic = &atomic_ops; o->u.ep.collective = &collective_ops;
	}
	if (count == (int)(sizeof all / sizeof *all)) abort();
	all[count++] = o;
	return o;
}

/* The tables as 1.0 had them; what lies behind must not be called. */
static void beyond(void) { fprintf(stderr, "a slot behind the end of a table was called\n"); abort(); }
static void cut(void *table, size_t size)
{
	size_t whole = *(size_t *)table;
	for (size_t at = size; at < whole; at += sizeof(void *)) *(void **)((char *)table + at) = (void *)beyond;
	*(size_t *)table = size;
}
static void shorten(void)
{
	cut(&fid_ops, offsetof(struct fi_ops, tostr));
	cut(&fabric_ops, offsetof(struct fi_ops_fabric, domain2));
	cut(&domain_ops, offsetof(struct fi_ops_domain, query_atomic));
	cut(&ep_ops, offsetof(struct fi_ops_ep, export_xpu));
	cut(&cm_ops, offsetof(struct fi_ops_cm, join));
	cut(&collective_ops, offsetof(struct fi_ops_collective, barrier2));
	cut(&av_ops, offsetof(struct fi_ops_av, av_set));
	cut(&cq_ops, offsetof(struct fi_ops_cq, export_xpu));
	cut(&cntr_ops, offsetof(struct fi_ops_cntr, adderr));
}

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
	struct fi_info *i = fi_dupinfo(NULL);
	(void)version; (void)node; (void)service; (void)flags; (void)hints;
	if (!i) return -FI_ENOMEM;
	i->fabric_attr->name = strdup("mock");
	i->domain_attr->name = strdup("mock");
	i->ep_attr->type = FI_EP_RDM;
	i->domain_attr->threading = FI_THREAD_DOMAIN;
	i->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
	*info = i;
	return 0;
}
static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void)attr;
	open_object("fabric", NULL, FI_CLASS_FABRIC, context, fabric);
	return 0;
}
static struct fi_provider provider = { .version = FI_VERSION(1, 0), .fi_version = FI_VERSION(2, 0), .name = "mock", .getinfo = getinfo, .fabric = fabric };
struct fi_provider *fi_prov_ini(void);
__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	const char *file = getenv("MOCK_LOG");
	out = file ? fopen(file, "w") : stderr;
	if (getenv("MOCK_SHORT")) shorten();
	return out ? &provider : NULL;
}
