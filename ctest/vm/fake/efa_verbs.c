/* The calls of libibverbs that a program of the device makes (efa.h). */
#include "efa.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_MR = 1 << 16, MAX_AH = 1 << 12 };
static struct ibv_device device = {
	.node_type = IBV_NODE_UNSPECIFIED, .transport_type = IBV_TRANSPORT_UNSPECIFIED, .name = "efa_0", .dev_name = "uverbs0",
};
static struct fake_mr *mrs[MAX_MR];
static uint32_t next_mr;
static struct { union ibv_gid gid; unsigned int users; } ahs[MAX_AH];

struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = calloc(2, sizeof *list);
	const char *sysfs = getenv("SYSFS_PATH");

	snprintf(device.dev_path, sizeof device.dev_path, "%s/class/infiniband_verbs/uverbs0", sysfs ? sysfs : "/sys");
	snprintf(device.ibdev_path, sizeof device.ibdev_path, "%s/class/infiniband/efa_0", sysfs ? sysfs : "/sys");
	list[0] = &device;
	if (num)
		*num = 1;
	return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *dev) { return dev->name; }
__be64 ibv_get_device_guid(struct ibv_device *dev) { (void)dev; return fake_gid().global.interface_id; }
int ibv_fork_init(void) { return 0; }
enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) { (void)qp, (void)op, (void)flags; return 0; }
const char *ibv_wc_status_str(enum ibv_wc_status status) { (void)status; return "status of the stand-in"; }

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.fw_ver = "0.0.0.0", .node_guid = fake_gid().global.interface_id, .sys_image_guid = fake_gid().global.interface_id,
		.max_mr_size = UINT64_C(1) << 40, .page_size_cap = 0xfffff000, .vendor_id = 0x1d0f, .vendor_part_id = 0xefa2, .max_qp = 256,
		.max_qp_wr = MAX_RQ_WR, .max_sge = MAX_SQ_SGE, .max_sge_rd = 1, .max_cq = 512, .max_cqe = 65535, .max_mr = MAX_MR - 1, .max_pd = 256,
		.max_ah = MAX_AH, .phys_port_cnt = 1, .max_pkeys = 1,
	};
	return 0;
}
static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t size)
{
	(void)input;
	memset(attr, 0, size);
	return ibv_query_device(context, &attr->orig_attr);
}
static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t size)
{
	struct ibv_port_attr all = {
		.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .gid_tbl_len = 1, .max_msg_sz = MAX_MSG, .pkey_tbl_len = 1,
		.max_vl_num = 1, .active_width = 2, .active_speed = 32, .phys_state = 5,
	};

	(void)context;
	if (port != 1)
		return EINVAL;
	memcpy(attr, &all, size < sizeof all ? size : sizeof all);
	return 0;
}
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	/* the size of the oldest: up to the member phys_state */
	return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, link_layer));
}
int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	(void)context;
	if (port != 1 || index)
		return EINVAL;
	*gid = fake_gid();
	return 0;
}

/* Regions */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof *pd);

	pd->context = context;
	return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) { free(pd); return 0; }

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned int access)
{
	struct fake_mr *mr = calloc(1, sizeof *mr);
	uint32_t index;

	pthread_mutex_lock(&fake_lock);
	/* in turn, so that the key of a closed region stays wrong for long */
	for (uint32_t i = 0; index = 1 + next_mr++ % (MAX_MR - 1), mrs[index]; i++)
		if (i == MAX_MR) {
			pthread_mutex_unlock(&fake_lock);
			free(mr);
			errno = ENOMEM;
			return NULL;
		}
	mr->base = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = addr, .length = len, .handle = index, .lkey = index, .rkey = index };
	mr->iova = iova;
	mr->access = access;
	mrs[index] = mr;
	pthread_mutex_unlock(&fake_lock);
	return &mr->base;
}
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, iova, (unsigned int)access);
}
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, (uintptr_t)addr, (unsigned int)access);
}
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t len, uint64_t iova, int fd, int access)
{
	(void)pd, (void)offset, (void)len, (void)iova, (void)fd, (void)access;
	errno = EOPNOTSUPP;
	return NULL;
}
int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&fake_lock);
	mrs[mr->lkey] = NULL;
	pthread_mutex_unlock(&fake_lock);
	free(mr);
	return 0;
}
void *fake_bytes(uint32_t key, uint64_t addr, uint64_t len, unsigned int access)
{
	struct fake_mr *mr = key < MAX_MR ? mrs[key] : NULL;

	if (!mr || addr < mr->iova || len > mr->base.length || addr - mr->iova > mr->base.length - len || (access & ~mr->access))
		return NULL;
	return (char *)mr->base.addr + (addr - mr->iova);
}

/* Address handles: of two for one address, the number is the same */

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct fake_ah *ah = calloc(1, sizeof *ah);
	int at = -1;

	pthread_mutex_lock(&fake_lock);
	for (int i = 0; i < MAX_AH; i++)
		if (ahs[i].users && !memcmp(&ahs[i].gid, &attr->grh.dgid, sizeof ahs[i].gid)) {
			at = i;
			break;
		} else if (!ahs[i].users && at < 0) {
			at = i;
		}
	if (at >= 0) {
		ahs[at].users++;
		ahs[at].gid = attr->grh.dgid;
	}
	pthread_mutex_unlock(&fake_lock);
	if (at < 0) {
		free(ah);
		errno = ENOMEM;
		return NULL;
	}
	ah->base = (struct ibv_ah){ .context = pd->context, .pd = pd };
	ah->gid = attr->grh.dgid;
	ah->ahn = (uint16_t)at;
	return &ah->base;
}
int ibv_destroy_ah(struct ibv_ah *ah)
{
	pthread_mutex_lock(&fake_lock);
	ahs[((struct fake_ah *)ah)->ahn].users--;
	pthread_mutex_unlock(&fake_lock);
	free(ah);
	return 0;
}
uint16_t fake_ahn_of(const union ibv_gid *gid)
{
	for (uint16_t i = 0; i < MAX_AH; i++)
		if (ahs[i].users && !memcmp(&ahs[i].gid, gid, sizeof *gid))
			return i;
	return UNKNOWN_AH;
}

/* Completions */

static enum ibv_wc_status status_of(uint32_t code)
{
	switch (code) {
	case CODE_OK: return IBV_WC_SUCCESS;
	case CODE_FLUSHED: return IBV_WC_WR_FLUSH_ERR;
	case CODE_BAD_LKEY: return IBV_WC_LOC_PROT_ERR;
	case CODE_BAD_LENGTH: return IBV_WC_LOC_LEN_ERR;
	case CODE_REMOTE_ADDRESS: return IBV_WC_REM_ACCESS_ERR;
	case CODE_REMOTE_QPN: return IBV_WC_REM_INV_RD_REQ_ERR;
	case CODE_REMOTE_RNR: return IBV_WC_RNR_RETRY_EXC_ERR;
	case CODE_REMOTE_LENGTH: return IBV_WC_REM_INV_REQ_ERR;
	case CODE_NO_RESPONSE: return IBV_WC_RESP_TIMEOUT_ERR;
	default: return IBV_WC_GENERAL_ERR;
	}
}

void fake_report(struct fake_qp *qp, bool is_recv, const struct fake_cqe *cqe)
{
	struct fake_cq *cq = (struct fake_cq *)(is_recv ? qp->ex.qp_base.recv_cq : qp->ex.qp_base.send_cq);
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);

	if (fake_qp_of(qp->ex.qp_base.qp_num) != qp)
		return;
	if (tail - atomic_load_explicit(&cq->head, memory_order_acquire) == cq->size) {
		fprintf(stderr, "efa_0: a completion queue of %u entries is full\n", cq->size);
		abort();
	}
	cq->ring[tail % cq->size] = *cqe;
	cq->ring[tail % cq->size].qp_num = qp->ex.qp_base.qp_num;
	atomic_store(&cq->tail, tail + 1);
	if (cq->ex.channel && atomic_exchange(&cq->is_armed, 0)) {
		void *it = cq;

		if (write(((struct fake_channel *)cq->ex.channel)->write_fd, &it, sizeof it) != sizeof it)
			abort();
	}
}

/* With the lock of pollers */
static bool take(struct fake_cq *cq)
{
	for (;;) {
		uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);

		if (head == atomic_load_explicit(&cq->tail, memory_order_acquire))
			return false;
		cq->current = cq->ring[head % cq->size];
		atomic_store_explicit(&cq->head, head + 1, memory_order_release);
		/* those of a destroyed queue pair are taken back */
		if (fake_qp_of(cq->current.qp_num))
			return true;
	}
}
static int next_poll(struct ibv_cq_ex *ex)
{
	struct fake_cq *cq = (struct fake_cq *)ex;

	if (!take(cq))
		return ENOENT;
	ex->wr_id = cq->current.wr_id;
	ex->status = status_of(cq->current.code);
	return 0;
}
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct fake_cq *cq = (struct fake_cq *)ex;
	int ret;

	if (attr->comp_mask)
		return EINVAL;
	if (atomic_load_explicit(&cq->head, memory_order_relaxed) == atomic_load_explicit(&cq->tail, memory_order_relaxed))
		return ENOENT;
	pthread_mutex_lock(&cq->poll_lock);
	ret = next_poll(ex);
	if (ret)
		pthread_mutex_unlock(&cq->poll_lock);
	return ret;
}
static void end_poll(struct ibv_cq_ex *ex) { pthread_mutex_unlock(&((struct fake_cq *)ex)->poll_lock); }
#define READ(type, name, member) static type read_##name(struct ibv_cq_ex *ex) { return ((struct fake_cq *)ex)->current.member; }
READ(enum ibv_wc_opcode, opcode, opcode)
READ(uint32_t, vendor_err, code)
READ(uint32_t, byte_len, byte_len)
READ(__be32, imm_data, imm)
READ(uint32_t, qp_num, qp_num)
READ(uint32_t, src_qp, src_qp)
READ(unsigned int, wc_flags, wc_flags)
READ(uint32_t, slid, slid)
static uint8_t read_sl(struct ibv_cq_ex *ex) { (void)ex; return 0; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex) { (void)ex; return 0; }
static int read_sgid(struct efadv_cq *adv, union ibv_gid *gid)
{
	struct fake_cq *cq = (struct fake_cq *)((char *)adv - offsetof(struct fake_cq, adv));

	/* as the device does: only of a peer that has no address handle here */
	if (cq->current.slid != UNKNOWN_AH)
		return -ENOENT;
	*gid = cq->current.sgid;
	return 0;
}
static bool is_unsolicited(struct efadv_cq *adv) { (void)adv; return false; }

static int poll_cq(struct ibv_cq *base, int num, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)base;
	int n = 0;

	pthread_mutex_lock(&cq->poll_lock);
	for (; n < num && take(cq); n++)
		wc[n] = (struct ibv_wc){
			.wr_id = cq->current.wr_id, .status = status_of(cq->current.code), .opcode = cq->current.opcode, .vendor_err = cq->current.code,
			.byte_len = cq->current.byte_len, .imm_data = cq->current.imm, .qp_num = cq->current.qp_num, .src_qp = cq->current.src_qp,
			.wc_flags = cq->current.wc_flags, .slid = cq->current.slid,
		};
	pthread_mutex_unlock(&cq->poll_lock);
	return n;
}
static int req_notify_cq(struct ibv_cq *base, int solicited_only)
{
	(void)solicited_only;
	atomic_store(&((struct fake_cq *)base)->is_armed, 1);
	return 0;
}

struct ibv_cq_ex *fake_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct fake_cq *cq = calloc(1, sizeof *cq);

	cq->size = attr->cqe;
	cq->ring = calloc(cq->size, sizeof *cq->ring);
	pthread_mutex_init(&cq->poll_lock, NULL);
	cq->ex = (struct ibv_cq_ex){
		.context = context, .channel = attr->channel, .cq_context = attr->cq_context, .cqe = (int)attr->cqe, .start_poll = start_poll,
		.next_poll = next_poll, .end_poll = end_poll, .read_opcode = read_opcode, .read_vendor_err = read_vendor_err, .read_byte_len = read_byte_len,
		.read_imm_data = read_imm_data, .read_qp_num = read_qp_num, .read_src_qp = read_src_qp, .read_wc_flags = read_wc_flags, .read_slid = read_slid,
		.read_sl = read_sl, .read_dlid_path_bits = read_dlid_path_bits,
	};
	cq->adv = (struct fake_efadv_cq){ .base.wc_read_sgid = read_sgid, .wc_is_unsolicited = is_unsolicited };
	return &cq->ex;
}
struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	return (struct ibv_cq *)fake_create_cq(context, &(struct ibv_cq_init_attr_ex){
		.cqe = (uint32_t)cqe, .cq_context = cq_context, .channel = channel, .comp_vector = (uint32_t)vector });
}
int ibv_destroy_cq(struct ibv_cq *base)
{
	free(((struct fake_cq *)base)->ring);
	free(base);
	return 0;
}
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct fake_channel *channel = calloc(1, sizeof *channel);
	int fds[2];

	if (pipe2(fds, O_CLOEXEC)) {
		free(channel);
		return NULL;
	}
	channel->base = (struct ibv_comp_channel){ .context = context, .fd = fds[0] };
	channel->write_fd = fds[1];
	return &channel->base;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *base)
{
	close(base->fd);
	close(((struct fake_channel *)base)->write_fd);
	free(base);
	return 0;
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	if (read(channel->fd, cq, sizeof *cq) != sizeof *cq)
		return -1;
	*cq_context = (*cq)->cq_context;
	return 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int num) { (void)cq, (void)num; }

/* Queue pairs */

static struct fake_send *add(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct fake_qp *qp = (struct fake_qp *)ex;

	if (qp->batched == qp->max_send) {
		qp->batch_error = ENOMEM;
		qp->batched--;
	}
	qp->batch[qp->batched] = (struct fake_send){ .wr_id = ex->wr_id, .flags = ex->wr_flags, .opcode = opcode };
	return &qp->batch[qp->batched++];
}
static struct fake_send *last(struct ibv_qp_ex *ex) { return &((struct fake_qp *)ex)->batch[((struct fake_qp *)ex)->batched - 1]; }
static void wr_start(struct ibv_qp_ex *ex)
{
	struct fake_qp *qp = (struct fake_qp *)ex;

	pthread_mutex_lock(&qp->batch_lock);
	qp->batched = 0;
	qp->batch_error = 0;
}
static void wr_send(struct ibv_qp_ex *ex) { add(ex, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) { add(ex, IBV_WR_SEND_WITH_IMM)->imm = imm; }
static void remote(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct fake_send *send = add(ex, opcode);

	send->rkey = rkey;
	send->remote_addr = addr;
	send->imm = imm;
}
static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { remote(ex, IBV_WR_RDMA_READ, rkey, addr, 0); }
static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { remote(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0); }
static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}
static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t num, const struct ibv_sge *list)
{
	struct fake_send *send = last(ex);

	if (num > MAX_SQ_SGE) {
		((struct fake_qp *)ex)->batch_error = EINVAL;
		return;
	}
	send->num_sge = (uint32_t)num;
	for (size_t i = 0; i < num; i++)
		send->sge[i] = (struct fake_sge){ list[i].addr, list[i].length, list[i].lkey };
}
static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t len)
{
	wr_set_sge_list(ex, 1, &(struct ibv_sge){ addr, len, lkey });
}
static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t num, const struct ibv_data_buf *list)
{
	struct fake_send *send = last(ex);

	send->is_inline = true;
	for (size_t i = 0; i < num; i++) {
		if (list[i].length > MAX_INLINE - send->inline_len) {
			((struct fake_qp *)ex)->batch_error = EINVAL;
			return;
		}
		memcpy(send->data + send->inline_len, list[i].addr, list[i].length);
		send->inline_len += (uint32_t)list[i].length;
	}
}
static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t len)
{
	wr_set_inline_data_list(ex, 1, &(struct ibv_data_buf){ addr, len });
}
static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct fake_send *send = last(ex);

	send->gid = ((struct fake_ah *)ah)->gid;
	send->qpn = qpn;
	send->qkey = qkey;
}
static int wr_complete(struct ibv_qp_ex *ex)
{
	struct fake_qp *qp = (struct fake_qp *)ex;
	int ret = qp->batch_error;

	pthread_mutex_lock(&fake_lock);
	if (!ret && qp->ex.qp_base.state != IBV_QPS_RTS)
		ret = EINVAL;
	if (!ret && qp->batched > qp->max_send - qp->outstanding)
		ret = ENOMEM;
	for (uint32_t i = 0; !ret && i < qp->batched; i++)
		fake_post(qp, &qp->batch[i]);
	pthread_mutex_unlock(&fake_lock);
	pthread_mutex_unlock(&qp->batch_lock);
	return ret;
}
static void wr_abort(struct ibv_qp_ex *ex) { pthread_mutex_unlock(&((struct fake_qp *)ex)->batch_lock); }

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_qp_ex *ex = (struct ibv_qp_ex *)base;

	for (; wr; wr = wr->next) {
		struct fake_send *send;
		int ret;

		wr_start(ex);
		ex->wr_id = wr->wr_id;
		ex->wr_flags = wr->send_flags;
		send = add(ex, wr->opcode);
		send->imm = wr->imm_data;
		wr_set_ud_addr(ex, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
		if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)
			((struct fake_qp *)ex)->batch_error = EINVAL;
		else if (wr->send_flags & IBV_SEND_INLINE)
			for (int i = 0; i < wr->num_sge; i++)
				wr_set_inline_data_list(ex, 1, &(struct ibv_data_buf){ (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length });
		else
			wr_set_sge_list(ex, (size_t)wr->num_sge, wr->sg_list);
		ret = wr_complete(ex);
		if (ret) {
			*bad = wr;
			return ret;
		}
	}
	return 0;
}
static int post_recv(struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;
	int ret = 0;

	pthread_mutex_lock(&fake_lock);
	for (; wr; wr = wr->next) {
		struct fake_recv *recv = &qp->recvs[qp->recv_tail % qp->max_recv];

		if (qp->recv_tail - qp->recv_head == qp->max_recv || wr->num_sge > MAX_RQ_SGE || base->state == IBV_QPS_RESET) {
			ret = wr->num_sge > MAX_RQ_SGE || base->state == IBV_QPS_RESET ? EINVAL : ENOMEM;
			*bad = wr;
			break;
		}
		recv->wr_id = wr->wr_id;
		recv->num_sge = (uint32_t)wr->num_sge;
		for (int i = 0; i < wr->num_sge; i++)
			recv->sge[i] = (struct fake_sge){ wr->sg_list[i].addr, wr->sg_list[i].length, wr->sg_list[i].lkey };
		qp->recv_tail++;
	}
	fake_recv_posted(qp);
	pthread_mutex_unlock(&fake_lock);
	return ret;
}

struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_cap *cap, enum ibv_qp_type type, struct ibv_cq *send_cq, struct ibv_cq *recv_cq,
			      void *qp_context, int sq_sig_all)
{
	struct fake_qp *qp;
	int ret;

	if (cap->max_send_wr > MAX_SQ_WR || cap->max_recv_wr > MAX_RQ_WR || cap->max_send_sge > MAX_SQ_SGE || cap->max_recv_sge > MAX_RQ_SGE ||
	    cap->max_inline_data > MAX_INLINE) {
		errno = EINVAL;
		return NULL;
	}
	fake_card_start();
	qp = calloc(1, sizeof *qp);
	qp->max_send = cap->max_send_wr ? cap->max_send_wr : 1;
	qp->max_recv = cap->max_recv_wr ? cap->max_recv_wr : 1;
	qp->sq_sig_all = sq_sig_all;
	qp->slots = calloc(qp->max_send, sizeof *qp->slots);
	qp->batch = calloc(qp->max_send, sizeof *qp->batch);
	qp->recvs = calloc(qp->max_recv, sizeof *qp->recvs);
	pthread_mutex_init(&qp->batch_lock, NULL);
	qp->ex = (struct ibv_qp_ex){
		.qp_base = { .context = pd->context, .qp_context = qp_context, .pd = pd, .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = type },
		.wr_start = wr_start, .wr_complete = wr_complete, .wr_abort = wr_abort, .wr_send = wr_send, .wr_send_imm = wr_send_imm,
		.wr_rdma_read = wr_rdma_read, .wr_rdma_write = wr_rdma_write, .wr_rdma_write_imm = wr_rdma_write_imm, .wr_set_sge = wr_set_sge,
		.wr_set_sge_list = wr_set_sge_list, .wr_set_inline_data = wr_set_inline_data, .wr_set_inline_data_list = wr_set_inline_data_list,
		.wr_set_ud_addr = wr_set_ud_addr,
	};
	pthread_mutex_lock(&fake_lock);
	ret = fake_listen(qp);
	pthread_mutex_unlock(&fake_lock);
	if (ret) {
		errno = ret;
		return NULL;
	}
	return &qp->ex.qp_base;
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return fake_create_qp(pd, &attr->cap, attr->qp_type, attr->send_cq, attr->recv_cq, attr->qp_context, attr->sq_sig_all);
}
/* Of unreliable datagrams: those of the device's own kind are made by libefa */
static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	(void)context;
	if (attr->qp_type != IBV_QPT_UD || !attr->pd) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return fake_create_qp(attr->pd, &attr->cap, attr->qp_type, attr->send_cq, attr->recv_cq, attr->qp_context, attr->sq_sig_all);
}
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return (struct ibv_qp_ex *)qp; }
int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	pthread_mutex_lock(&fake_lock);
	if (mask & IBV_QP_QKEY)
		qp->qkey = attr->qkey;
	if (mask & IBV_QP_STATE) {
		base->state = attr->qp_state;
		if (attr->qp_state == IBV_QPS_ERR)
			fake_flush(qp);
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}
int ibv_destroy_qp(struct ibv_qp *base)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	pthread_mutex_lock(&fake_lock);
	fake_forget(qp);
	pthread_mutex_unlock(&fake_lock);
	free(qp->slots);
	free(qp->batch);
	free(qp->recvs);
	free(qp);
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	struct fake_context *context = calloc(1, sizeof *context);

	context->verbs = (struct verbs_context){
		.query_port = query_port, .create_cq_ex = fake_create_cq, .create_qp_ex = create_qp_ex, .query_device_ex = query_device_ex, .sz = sizeof context->verbs,
		.context = {
			.device = dev, .cmd_fd = -1, .async_fd = -1, .num_comp_vectors = 4, .abi_compat = __VERBS_ABI_IS_EXTENDED,
			.ops = { .poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_send = post_send, .post_recv = post_recv },
		},
	};
	return &context->verbs.context;
}
int ibv_close_device(struct ibv_context *context)
{
	free((char *)context - offsetof(struct verbs_context, context));
	return 0;
}
