/* The calls of libefa.so.1 on the device of efa.h. */
#include "efa.h"
#include <errno.h>
#include <string.h>

int efadv_query_device(struct ibv_context *context, struct efadv_device_attr *attr, uint32_t len)
{
	struct efadv_device_attr all = {
		.max_sq_wr = MAX_SQ_WR, .max_rq_wr = MAX_RQ_WR, .max_sq_sge = MAX_SQ_SGE, .max_rq_sge = MAX_RQ_SGE, .inline_buf_size = MAX_INLINE,
		.max_rdma_size = 1 << 30,
		.device_caps = (uint32_t)fake_setting("FAKE_EFA_CAPS", EFADV_DEVICE_ATTR_CAPS_RDMA_READ | EFADV_DEVICE_ATTR_CAPS_RNR_RETRY |
						      EFADV_DEVICE_ATTR_CAPS_CQ_WITH_SGID | FAKE_CAPS_RDMA_WRITE),
	};

	(void)context;
	memset(attr, 0, len);
	memcpy(attr, &all, len < sizeof all ? len : sizeof all);
	return 0;
}
int efadv_query_ah(struct ibv_ah *ah, struct efadv_ah_attr *attr, uint32_t len)
{
	memset(attr, 0, len);
	attr->ahn = ((struct fake_ah *)ah)->ahn;
	return 0;
}
struct ibv_cq_ex *efadv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr, struct efadv_cq_init_attr *more, uint32_t len)
{
	if (more && len && more->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	return fake_create_cq(context, attr);
}
struct efadv_cq *efadv_cq_from_ibv_cq_ex(struct ibv_cq_ex *cq) { return &((struct fake_cq *)cq)->adv.base; }
struct ibv_qp *efadv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct efadv_qp_init_attr *more, uint32_t len)
{
	(void)context;
	if (!len || more->comp_mask || attr->qp_type != IBV_QPT_DRIVER || more->driver_qp_type != EFADV_QP_DRIVER_TYPE_SRD) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return fake_create_qp(attr->pd, &attr->cap, attr->qp_type, attr->send_cq, attr->recv_cq, attr->qp_context, attr->sq_sig_all);
}
struct ibv_qp *efadv_create_driver_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint32_t type)
{
	if (type != EFADV_QP_DRIVER_TYPE_SRD) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return fake_create_qp(pd, &attr->cap, IBV_QPT_DRIVER, attr->send_cq, attr->recv_cq, attr->qp_context, attr->sq_sig_all);
}
