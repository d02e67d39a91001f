/* Makes every call of the API once, on the provider "mock", with values that are the same in
 * every run, and prints what the program gets to see: results, classes and contexts of objects,
 * and which of its objects events and entries name.  Hooks must change nothing of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#define ME(p) ((void *)(uintptr_t)(p))
/* CALLS_PLAIN=1 in the environment leaves out what the hooks of the original cannot pass on:
 * wait sets, collectives, triggered and deferred operations. */
static struct { const char *name; void *fid; } objects[64];
static int count;

static const char *who(const void *fid)
{
	if (!fid) return "none";
	for (int i = 0; i < count; i++) if (objects[i].fid == fid) return objects[i].name;
	return "UNKNOWN";
}
static void opened(const char *name, int ret, void *fid)
{
	const struct fid *f = fid;
	objects[count].name = name;
	objects[count++].fid = fid;
	printf("%s: %d, class %zu, context %p\n", name, ret, f->fclass, f->context);
}
#define OPEN(name, object, call) do { int r_ = (call); if (r_) { printf("%s: %d\n", name, r_); exit(1); } opened(name, r_, object); } while (0)
#define DO(call) printf(#call ": %lld\n", (long long)(call))
/* of calls that releases appended: what a short table answers with */
#define MAY(call) DO(call)

/* Everything that calls point to lies at a fixed place. */
struct data {
	char buf[4096];
	char other[4096];
	struct iovec iov[2];
	struct fi_rma_iov rma_iov[2];
	struct fi_ioc ioc[2];
	struct fi_rma_ioc rma_ioc[2];
	void *desc[2];
	struct fi_msg msg;
	struct fi_msg_tagged tagged;
	struct fi_msg_rma rma;
	struct fi_msg_atomic atomic;
	struct fi_triggered_context triggered;
	struct fi_deferred_work work;
	struct fi_op_msg op_msg;
	struct fi_op_tagged op_tagged;
	struct fi_op_rma op_rma;
	struct fi_op_atomic op_atomic;
	struct fi_op_fetch_atomic op_fetch;
	struct fi_op_compare_atomic op_compare;
	struct fi_op_cntr op_cntr;
	struct fi_cq_tagged_entry entry[4];
	struct fi_cq_err_entry error;
	fi_addr_t addr[4];
	struct fi_av_attr av_attr;
	struct fi_av_set_attr set_attr;
	struct fi_tx_attr tx_attr;
	struct fi_rx_attr rx_attr;
	struct fi_eq_entry eq_entry;
	char address[64];
	size_t len;
};
static struct data *D;

static void events(struct fid_eq *eq, const char *of)
{
	union { struct fi_eq_entry entry; struct fi_eq_cm_entry cm; char space[64]; } e;
	struct fi_eq_err_entry error = { 0 };
	uint32_t kind = 0;
	ssize_t n = fi_eq_read(eq, &kind, &e, sizeof e, 0);
	printf("event of %s: %zd, kind %u, fid %s\n", of, n, kind, n > 0 ? who(e.entry.fid) : "-");
	n = fi_eq_sread(eq, &kind, &e, sizeof e, 0, FI_PEEK);
	printf("event of %s, waited for: %zd, kind %u, fid %s\n", of, n, kind, n > 0 ? who(e.entry.fid) : "-");
	n = fi_eq_readerr(eq, &error, 0);
	printf("error of %s: %zd, fid %s\n", of, n, n > 0 ? who(error.fid) : "-");
}
static void completions(const char *what, ssize_t n)
{
	printf("%s: %zd", what, n);
	for (ssize_t i = 0; i < n; i++) printf(", context %p length %zu", D->entry[i].op_context, D->entry[i].len);
	printf("\n");
}
static void transfers(struct fid_ep *ep, struct fid_cntr *cntr, struct fid_av_set *set)
{
	(void)set;
	DO(fi_recv(ep, D->buf, 64, ME(0x71), 3, ME(0x81)));
	DO(fi_recvv(ep, D->iov, D->desc, 2, 3, ME(0x82)));
	DO(fi_recvmsg(ep, &D->msg, FI_COMPLETION));
	DO(fi_send(ep, D->buf, 100, ME(0x72), 4, ME(0x83)));
	DO(fi_sendv(ep, D->iov, D->desc, 2, 4, ME(0x84)));
	DO(fi_sendmsg(ep, &D->msg, FI_COMPLETION | FI_REMOTE_CQ_DATA));
	DO(fi_inject(ep, D->buf, 16, 5));
	DO(fi_senddata(ep, D->buf, 600, ME(0x73), 0xda7a, 5, ME(0x85)));
	DO(fi_injectdata(ep, D->buf, 17, 0xda7b, 5));
	DO(fi_trecv(ep, D->buf, 64, ME(0x71), 3, 0x7a9, 0xf, ME(0x91)));
	DO(fi_trecvv(ep, D->iov, D->desc, 2, 3, 0x7a9, 0xf, ME(0x92)));
	DO(fi_trecvmsg(ep, &D->tagged, FI_PEEK));
	DO(fi_tsend(ep, D->buf, 5000, ME(0x72), 4, 0x7aa, ME(0x93)));
	DO(fi_tsendv(ep, D->iov, D->desc, 2, 4, 0x7aa, ME(0x94)));
	DO(fi_tsendmsg(ep, &D->tagged, FI_INJECT));
	DO(fi_tinject(ep, D->buf, 16, 5, 0x7ab));
	DO(fi_tsenddata(ep, D->buf, 600, ME(0x73), 0xda7a, 5, 0x7ac, ME(0x95)));
	DO(fi_tinjectdata(ep, D->buf, 17, 0xda7b, 5, 0x7ad));
	DO(fi_read(ep, D->buf, 70000, ME(0x74), 6, 0x1234, 0x4e1, ME(0xa1)));
	DO(fi_readv(ep, D->iov, D->desc, 2, 6, 0x1234, 0x4e2, ME(0xa2)));
	DO(fi_readmsg(ep, &D->rma, FI_COMPLETION));
	DO(fi_write(ep, D->buf, 2000000, ME(0x75), 6, 0x1234, 0x4e3, ME(0xa3)));
	DO(fi_writev(ep, D->iov, D->desc, 2, 6, 0x1234, 0x4e4, ME(0xa4)));
	DO(fi_writemsg(ep, &D->rma, FI_FENCE));
	DO(fi_inject_write(ep, D->buf, 20, 6, 0x1234, 0x4e5));
	DO(fi_writedata(ep, D->buf, 3000, ME(0x76), 0xda7c, 6, 0x1234, 0x4e6, ME(0xa5)));
	DO(fi_inject_writedata(ep, D->buf, 21, 0xda7d, 6, 0x1234, 0x4e7));
	DO(fi_atomic(ep, D->buf, 8, ME(0x77), 7, 0x99, 0x4e8, FI_UINT32, FI_SUM, ME(0xb1)));
	DO(fi_atomicv(ep, D->ioc, D->desc, 2, 7, 0x99, 0x4e9, FI_UINT64, FI_MIN, ME(0xb2)));
	DO(fi_atomicmsg(ep, &D->atomic, FI_COMPLETION));
	DO(fi_inject_atomic(ep, D->buf, 8, 7, 0x99, 0x4ea, FI_UINT8, FI_MAX));
	DO(fi_fetch_atomic(ep, D->buf, 8, ME(0x77), D->other, ME(0x78), 7, 0x99, 0x4eb, FI_UINT32, FI_SUM, ME(0xb3)));
	DO(fi_fetch_atomicv(ep, D->ioc, D->desc, 2, D->ioc, D->desc, 2, 7, 0x99, 0x4ec, FI_UINT64, FI_MIN, ME(0xb4)));
	DO(fi_fetch_atomicmsg(ep, &D->atomic, D->ioc, D->desc, 2, FI_COMPLETION));
	DO(fi_compare_atomic(ep, D->buf, 8, ME(0x77), D->other, ME(0x78), D->other, ME(0x79), 7, 0x99, 0x4ed, FI_UINT32, FI_CSWAP, ME(0xb5)));
	DO(fi_compare_atomicv(ep, D->ioc, D->desc, 2, D->ioc, D->desc, 2, D->ioc, D->desc, 2, 7, 0x99, 0x4ee, FI_UINT64, FI_CSWAP, ME(0xb6)));
	DO(fi_compare_atomicmsg(ep, &D->atomic, D->ioc, D->desc, 2, D->ioc, D->desc, 2, FI_COMPLETION));
	DO(fi_atomicvalid(ep, FI_UINT32, FI_SUM, &D->len));
	DO(fi_fetch_atomicvalid(ep, FI_UINT32, FI_SUM, &D->len));
	DO(fi_compare_atomicvalid(ep, FI_UINT32, FI_CSWAP, &D->len));
	if (getenv("CALLS_PLAIN")) return;
	DO(fi_barrier(ep, 8, ME(0xc1)));
	MAY(fi_barrier2(ep, 8, FI_COMPLETION, ME(0xc2)));
	DO(fi_broadcast(ep, D->buf, 4, ME(0x7a), 8, 9, FI_UINT32, 1, ME(0xc3)));
	DO(fi_alltoall(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, FI_UINT32, 2, ME(0xc4)));
	DO(fi_allreduce(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, FI_UINT32, FI_SUM, 3, ME(0xc5)));
	DO(fi_allgather(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, FI_UINT32, 4, ME(0xc6)));
	DO(fi_reduce_scatter(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, FI_UINT32, FI_SUM, 5, ME(0xc7)));
	DO(fi_reduce(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, 9, FI_UINT32, FI_SUM, 6, ME(0xc8)));
	DO(fi_scatter(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, 9, FI_UINT32, 7, ME(0xc9)));
	DO(fi_gather(ep, D->buf, 4, ME(0x7a), D->other, ME(0x7b), 8, 9, FI_UINT32, 8, ME(0xca)));
	D->triggered.event_type = FI_TRIGGER_THRESHOLD;
	D->triggered.trigger.threshold.cntr = cntr;
	D->msg.context = D->tagged.context = D->rma.context = &D->triggered;
	DO(fi_sendmsg(ep, &D->msg, FI_TRIGGER));
	DO(fi_tsendmsg(ep, &D->tagged, FI_TRIGGER));
	DO(fi_writemsg(ep, &D->rma, FI_TRIGGER));
}
static void deferred(struct fid_domain *domain, struct fid_ep *ep, struct fid_cntr *cntr, struct fid_cntr *done)
{
	D->op_msg.ep = D->op_tagged.ep = D->op_rma.ep = D->op_atomic.ep = D->op_fetch.ep = D->op_compare.ep = ep;
	D->op_cntr.cntr = done;
	for (int op = FI_OP_RECV; op <= FI_OP_CNTR_ADD; op++) {
		struct fi_deferred_work *w = &D->work;
		w->threshold = op + 1;
		w->triggering_cntr = cntr;
		w->completion_cntr = done;
		w->op_type = op;
		switch (op) {
		case FI_OP_RECV: case FI_OP_SEND: w->op.msg = &D->op_msg; break;
		case FI_OP_TRECV: case FI_OP_TSEND: w->op.tagged = &D->op_tagged; break;
		case FI_OP_READ: case FI_OP_WRITE: w->op.rma = &D->op_rma; break;
		case FI_OP_ATOMIC: w->op.atomic = &D->op_atomic; break;
		case FI_OP_FETCH_ATOMIC: w->op.fetch_atomic = &D->op_fetch; break;
		case FI_OP_COMPARE_ATOMIC: w->op.compare_atomic = &D->op_compare; break;
		default: w->op.cntr = &D->op_cntr;
		}
		DO(fi_control(&domain->fid, FI_QUEUE_WORK, w));
	}
	DO(fi_control(&domain->fid, FI_CANCEL_WORK, &D->work));
	DO(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
}

int main(void)
{
	struct fi_info *hints = fi_allocinfo(), *list, *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain, *second;
	struct fid_eq *eq;
	struct fid_wait *wait;
	struct fid_poll *poll;
	struct fid_cq *cq;
	struct fid_cntr *cntr, *done;
	struct fid_av *av;
	struct fid_av_set *set, *other;
	struct fid_ep *ep, *ep2, *alias, *sep, *tx, *rx, *srx;
	struct fid_stx *stx;
	struct fid_pep *pep;
	struct fid_mr *mr, *mrv, *mra;
	struct fid_mc *mc, *coll;
	int ret;
	if (!getenv("CALLS_BUFFERED")) setvbuf(stdout, NULL, _IONBF, 0);
	D = mmap(ME(0x200000000), sizeof *D, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (D == MAP_FAILED) { perror("mmap"); return 1; }
	D->iov[0] = (struct iovec){ D->buf, 40 };
	D->iov[1] = (struct iovec){ D->other, 50 };
	D->rma_iov[0] = (struct fi_rma_iov){ 0x1000, 40, 0x4e0 };
	D->rma_iov[1] = (struct fi_rma_iov){ 0x2000, 50, 0x4ef };
	D->ioc[0] = (struct fi_ioc){ D->buf, 3 };
	D->ioc[1] = (struct fi_ioc){ D->other, 4 };
	D->msg = (struct fi_msg){ D->iov, D->desc, 2, 11, ME(0xd1), 0xda01 };
	D->tagged = (struct fi_msg_tagged){ D->iov, D->desc, 2, 11, 0x7ae, 0xff, ME(0xd2), 0xda02 };
	D->rma = (struct fi_msg_rma){ D->iov, D->desc, 2, 11, D->rma_iov, 2, ME(0xd3), 0xda03 };
	D->atomic = (struct fi_msg_atomic){ D->ioc, D->desc, 2, 11, D->rma_ioc, 2, FI_UINT64, FI_SUM, ME(0xd4), 0xda04 };
	memcpy(D->address, "\2\0\22\64\177\0\0\1", 8);	/* 127.0.0.1:4660 */

	hints->fabric_attr->prov_name = strdup("mock");
	ret = fi_getinfo(getenv("CALLS_PLAIN") ? FI_VERSION(1, 17) : FI_VERSION(2, 0), NULL, NULL, 0, hints, &list);
	/* utility providers may be over it as well */
	for (info = ret ? NULL : list; info && strcmp(info->fabric_attr->prov_name, "mock"); info = info->next);
	if (!info) { printf("fi_getinfo: %d\n", ret); return 1; }
	OPEN("fabric", fabric, fi_fabric(info->fabric_attr, &fabric, ME(0x11)));
	printf("version %x\n", fabric->api_version);
	OPEN("domain", domain, fi_domain(fabric, info, &domain, ME(0x12)));
	info->fabric_attr->fabric = fabric;
	info->domain_attr->domain = domain;
	OPEN("domain by fi_domain2", second, fi_domain2(fabric, info, &second, 0, ME(0x13)));
	OPEN("wait", wait, fi_wait_open(fabric, &(struct fi_wait_attr){ .wait_obj = FI_WAIT_FD }, &wait));
	/* the original's hooks pass no wait sets on */
	enum fi_wait_obj waits = getenv("CALLS_PLAIN") ? FI_WAIT_NONE : FI_WAIT_SET;
	struct fid_wait *set_of = getenv("CALLS_PLAIN") ? NULL : wait;
	OPEN("eq", eq, fi_eq_open(fabric, &(struct fi_eq_attr){ .wait_obj = waits, .wait_set = set_of }, &eq, ME(0x14)));
	OPEN("cq", cq, fi_cq_open(domain, &(struct fi_cq_attr){ .size = 7, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = waits, .wait_set = set_of }, &cq, ME(0x15)));
	OPEN("cntr", cntr, fi_cntr_open(domain, &(struct fi_cntr_attr){ .wait_obj = waits, .wait_set = set_of }, &cntr, ME(0x16)));
	OPEN("done", done, fi_cntr_open(domain, &(struct fi_cntr_attr){ .wait_obj = FI_WAIT_NONE }, &done, ME(0x17)));
	OPEN("poll", poll, fi_poll_open(domain, &(struct fi_poll_attr){ 0 }, &poll));
	OPEN("av", av, fi_av_open(domain, &D->av_attr, &av, ME(0x18)));
	OPEN("stx", stx, fi_stx_context(domain, &D->tx_attr, &stx, ME(0x19)));
	OPEN("srx", srx, fi_srx_context(domain, &D->rx_attr, &srx, ME(0x1a)));
	OPEN("ep", ep, fi_endpoint(domain, info, &ep, ME(0x1b)));
	OPEN("ep by fi_endpoint2", ep2, fi_endpoint2(domain, info, &ep2, 0, ME(0x1c)));
	OPEN("sep", sep, fi_scalable_ep(domain, info, &sep, ME(0x1d)));
	OPEN("tx", tx, fi_tx_context(sep, 1, &D->tx_attr, &tx, ME(0x1e)));
	OPEN("rx", rx, fi_rx_context(sep, 2, &D->rx_attr, &rx, ME(0x1f)));
	OPEN("pep", pep, fi_passive_ep(fabric, info, &pep, ME(0x20)));
	info->handle = &pep->fid;
	{
		struct fid_ep *from_pep;
		OPEN("ep of pep", from_pep, fi_endpoint(domain, info, &from_pep, ME(0x21)));
	}
	info->handle = NULL;

	DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_ep_bind(ep, &cntr->fid, FI_SEND));
	DO(fi_ep_bind(ep, &av->fid, 0));
	DO(fi_ep_bind(ep, &stx->fid, 0));
	DO(fi_ep_bind(ep, &srx->fid, 0));
	DO(fi_scalable_ep_bind(sep, &av->fid, 0));
	DO(fi_domain_bind(domain, &eq->fid, FI_REG_MR));
	DO(fi_av_bind(av, &eq->fid, 0));
	events(eq, "the av");
	DO(fi_pep_bind(pep, &eq->fid, 0));
	events(eq, "the pep");
	DO(fi_ep_bind(ep, &eq->fid, 0));
	events(eq, "the ep");
	DO(fi_enable(ep));
	OPEN("alias", alias, fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_COMPLETION));
	DO(fi_send(alias, D->buf, 1, ME(0x72), 4, ME(0x83)));
	DO(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &D->len, sizeof D->len));
	DO(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &D->len, &D->len));
	DO(fi_setopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &D->len, sizeof D->len));
	DO(fi_cancel(&ep->fid, ME(0x83)));
	DO(fi_rx_size_left(ep));
	DO(fi_tx_size_left(ep));

	DO(fi_setname(&ep->fid, D->address, 16));
	DO(fi_getname(&ep->fid, D->other, &D->len));
	DO(fi_setname(&pep->fid, D->address, 16));
	DO(fi_getname(&pep->fid, D->other, &D->len));
	DO(fi_getpeer(ep, D->other, &D->len));
	DO(fi_connect(ep, D->address, D->buf, 5));
	DO(fi_listen(pep));
	DO(fi_accept(ep, D->buf, 6));
	DO(fi_reject(pep, ME(0x4a4d1e), D->buf, 7));
	DO(fi_shutdown(ep, 0));

	DO(fi_av_insert(av, D->address, 1, D->addr, 0, ME(0x31)));
	DO(fi_av_insertsvc(av, D->buf, D->other, D->addr, 0, ME(0x32)));
	DO(fi_av_insertsym(av, D->buf, 1, D->other, 1, D->addr, 0, ME(0x33)));
	DO(fi_av_lookup(av, 2, D->other, &D->len));
	printf("%s\n", fi_av_straddr(av, D->address, D->other, &D->len));
	DO(fi_av_remove(av, D->addr, 1, 0));
	MAY(fi_av_insert_auth_key(av, D->buf, 8, D->addr, 0));
	MAY(fi_av_lookup_auth_key(av, 2, D->other, &D->len));
	MAY(fi_av_set_user_id(av, 2, 3, 0));
	MAY(fi_query_atomic(domain, FI_UINT32, FI_SUM, (struct fi_atomic_attr *)D->buf, 0));
	MAY(fi_query_collective(domain, FI_BARRIER, (struct fi_collective_attr *)D->buf, 0));

	OPEN("mr", mr, fi_mr_reg(domain, D->buf, 4096, FI_READ | FI_REMOTE_WRITE, 5, 6, 0, &mr, ME(0x41)));
	printf("key %" PRIx64 " desc %p\n", fi_mr_key(mr), fi_mr_desc(mr));
	OPEN("mr by fi_mr_regv", mrv, fi_mr_regv(domain, D->iov, 2, FI_SEND, 5, 6, 0, &mrv, ME(0x42)));
	OPEN("mr by fi_mr_regattr", mra, fi_mr_regattr(domain, &(struct fi_mr_attr){ .mr_iov = D->iov, .iov_count = 1, .access = FI_SEND, .requested_key = 9, .context = ME(0x43), .base_mr = mr, .sub_mr_cnt = 2 }, 0, &mra));
	DO(fi_mr_bind(mr, &ep->fid, 0));
	events(eq, "the mr");
	printf("key %" PRIx64 "\n", fi_mr_key(mr));
	DO(fi_mr_enable(mr));
	printf("key %" PRIx64 " desc %p\n", fi_mr_key(mr), fi_mr_desc(mr));
	DO(fi_control(&mr->fid, FI_REFRESH, &(struct fi_mr_modify){ .attr = { .base_mr = mrv } }));
	{
		uint64_t base = 0;
		DO(fi_mr_raw_attr(mr, &base, (uint8_t *)D->other, &D->len, 0) * 0);
	}

	if (!getenv("MOCK_SHORT")) {
		OPEN("mc", mc, fi_join(ep, D->address, 0, &mc, ME(0x51)));
		events(eq, "the mc");
		printf("address %" PRIu64 "\n", fi_mc_addr(mc));
		if (!getenv("CALLS_PLAIN")) {
			OPEN("set", set, fi_av_set(av, &D->set_attr, &set, ME(0x52)));
			OPEN("other", other, fi_av_set(av, &D->set_attr, &other, ME(0x53)));
			DO(fi_av_set_union(set, other));
			DO(fi_av_set_intersect(set, other));
			DO(fi_av_set_diff(set, other));
			DO(fi_av_set_insert(set, 1));
			DO(fi_av_set_remove(set, 1));
			DO(fi_av_set_addr(set, D->addr));
			OPEN("coll", coll, fi_join_collective(ep, 9, set, 0, &coll, ME(0x54)));
			DO(fi_close(&coll->fid));
			DO(fi_close(&other->fid));
			DO(fi_close(&set->fid));
		}
		DO(fi_close(&mc->fid));
	} else {
		DO(fi_join(ep, D->address, 0, &mc, ME(0x51)));
		DO(fi_av_set(av, &D->set_attr, &set, ME(0x52)));
	}

	DO(fi_poll_add(poll, &cq->fid, 0));
	DO(fi_poll(poll, (void **)D->buf, 3));
	DO(fi_poll_del(poll, &cq->fid, 0));
	DO(fi_wait(wait, 5));
	{
		struct fid *fids[3] = { &cq->fid, &eq->fid, &cntr->fid };
		DO(fi_trywait(fabric, fids, 3));
		printf("after that: %s, %s, %s\n", who(fids[0]), who(fids[1]), who(fids[2]));
	}
	DO(fi_control(&cq->fid, FI_GETWAIT, D->buf));

	transfers(ep, cntr, NULL);
	if (!getenv("CALLS_PLAIN")) deferred(domain, ep, cntr, done);

	completions("read", fi_cq_read(cq, D->entry, 4));
	for (int format = FI_CQ_FORMAT_CONTEXT; format <= FI_CQ_FORMAT_TAGGED; format++) {
		struct fid_cq *of;
		OPEN("cq of a format", of, fi_cq_open(domain, &(struct fi_cq_attr){ .format = format }, &of, ME(0x14)));
		DO(fi_cq_read(of, D->entry, 4));
		printf("context %p\n", D->entry->op_context);
	}
	completions("read nothing", fi_cq_read(cq, D->entry, 0));
	completions("readfrom", fi_cq_readfrom(cq, D->entry, 4, D->addr));
	completions("sread", fi_cq_sread(cq, D->entry, 1, NULL, 3));
	completions("sreadfrom", fi_cq_sreadfrom(cq, D->entry, 4, D->addr, NULL, 3));
	DO(fi_cq_readerr(cq, &D->error, 0));
	printf("error %d of %p\n", D->error.err, D->error.op_context);
	printf("%s\n", fi_cq_strerror(cq, 1, NULL, D->buf, 10));
	DO(fi_cq_signal(cq));
	DO(fi_cntr_read(cntr));
	DO(fi_cntr_readerr(cntr));
	DO(fi_cntr_add(cntr, 3));
	DO(fi_cntr_set(cntr, 4));
	DO(fi_cntr_wait(cntr, 5, 6));
	MAY(fi_cntr_adderr(cntr, 7));
	MAY(fi_cntr_seterr(cntr, 8));
	D->eq_entry = (struct fi_eq_entry){ .fid = &ep->fid, .context = ME(0x61), .data = 62 };
	DO(fi_eq_write(eq, FI_NOTIFY, &D->eq_entry, sizeof D->eq_entry, 0));
	printf("%s\n", fi_eq_strerror(eq, 1, NULL, D->buf, 10));
	DO(fi_open_ops(&domain->fid, "some ops", 0, (void **)D->buf, ME(0x63)));
	DO(fi_set_ops(&domain->fid, "some ops", 0, D->buf, ME(0x63)));

	for (int i = count - 1; i >= 0; i--)
		if (strcmp(objects[i].name, "mc") && strcmp(objects[i].name, "coll") && strcmp(objects[i].name, "set") && strcmp(objects[i].name, "other"))
			printf("close %s: %d\n", objects[i].name, fi_close((struct fid *)objects[i].fid));
	fi_freeinfo(list);
	fi_freeinfo(hints);
	return 0;
}
