/* Uses the API the way programs of both generations do; has to compile, as C
 * and as C++, without a warning. */
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_profile.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include <rdma/fi_xpu.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_peer.h>
#include <rdma/providers/fi_prov.h>

/* Names are numbers the preprocessor can compare. */
#if FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), FI_VERSION(1, 5))
#error "older than 1.5"
#endif
#if FI_MAJOR(FI_VERSION(1, 17)) != 1 || FI_MINOR(FI_VERSION(1, 17)) != 17
#error "FI_VERSION"
#endif
#if !(FI_HMEM & (1ULL << 47)) || FI_EAGAIN <= 0 || !FI_VERSION_GE(2, 1)
#error "not a number"
#endif

int use_1_x(struct fid_domain *domain, struct fid_fabric *fabric);
int use_2_x(struct fid_domain *domain, struct fid_mr *mr);
void use_logs(struct fi_provider *prov, int value);

static char path[FI_PATH_MAX], version[FI_VERSION_MAX], name[FI_NAME_MAX];
static const char *levels[FI_LOG_MAX], *subsystems[FI_LOG_SUBSYS_MAX];

int use_1_x(struct fid_domain *domain, struct fid_fabric *fabric)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_wait_attr wait_attr;
	struct fi_poll_attr poll_attr;
	enum fi_mr_mode mr_mode;
	struct fid_wait *waitset;
	struct fid_poll *pollset;
	void *ready[4];

	if (!hints)
		return -FI_ENOMEM;
	path[0] = version[0] = name[0] = 0;
	levels[0] = subsystems[0] = name;
	hints->mode = FI_CONTEXT | FI_LOCAL_MR | FI_BUFFERED_RECV | FI_NOTIFY_FLAGS_ONLY;
	hints->caps = FI_MSG | FI_TAGGED | FI_VARIABLE_MSG | FI_XPU_TRIGGER;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->msg_order = FI_ORDER_STRICT;
	hints->rx_attr->comp_order = FI_ORDER_NONE | FI_ORDER_DATA;
	hints->tx_attr->op_flags = FI_PRIORITY;
	hints->domain_attr->mr_mode = FI_MR_BASIC;
	hints->domain_attr->mr_mode = FI_MR_SCALABLE;
	mr_mode = (enum fi_mr_mode) hints->domain_attr->mr_mode;
	if (mr_mode == FI_MR_UNSPEC)
		return -FI_EINVAL;
	hints->domain_attr->threading = FI_THREAD_FID;
	hints->domain_attr->av_type = FI_AV_MAP;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;

	wait_attr.wait_obj = FI_WAIT_MUTEX_COND;
	wait_attr.flags = 0;
	poll_attr.flags = 0;
	if (fi_wait_open(fabric, &wait_attr, &waitset) ||
	    fi_poll_open(domain, &poll_attr, &pollset) ||
	    fi_poll_add(pollset, &waitset->fid, 0) ||
	    fi_poll(pollset, ready, (int) count_of(ready)) < 0 ||
	    fi_wait(waitset, -1))
		return -FI_EOTHER;
	return FI_CHECK_OP(domain->ops, struct fi_ops_domain, endpoint2);
}

int use_2_x(struct fid_domain *domain, struct fid_mr *mr)
{
	struct fi_mr_dmabuf dmabuf = { 0, 0, 0, NULL };
	struct fi_mr_attr attr;
	struct fi_domain_attr domain_attr;

	memset(&attr, 0, sizeof(attr));
	attr.dmabuf = &dmabuf;
	attr.iov_count = 1;
	attr.iface = FI_HMEM_ZE;
	attr.device.ze = fi_hmem_ze_device(0, 1);
	attr.base_mr = mr;
	domain_attr.progress = FI_PROGRESS_CONTROL_UNIFIED;
	domain_attr.max_group_id = 1;
	if (container_of(&mr->fid, struct fid_mr, fid) != mr)
		return -FI_EINVAL;
	(void) domain_attr;
	(void) fi_tag_mpi(1, 2);
	(void) fi_group_addr(FI_ADDR_UNSPEC, 3);
	return fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &mr);
}

void use_logs(struct fi_provider *prov, int value)
{
	FI_LOG(prov, FI_LOG_WARN, FI_LOG_CORE, "plain\n");
	FI_LOG_SPARSE(prov, FI_LOG_INFO, FI_LOG_CQ, "%d\n", value);
	FI_WARN(prov, FI_LOG_CORE, "%d\n", value);
	FI_WARN_SPARSE(prov, FI_LOG_EP_DATA, "%d\n", value);
	FI_WARN_ONCE(prov, FI_LOG_CNTR, "%d\n", value);
	FI_TRACE(prov, FI_LOG_MR, "%d\n", value);
	FI_INFO(prov, FI_LOG_AV, "%s: %d\n", "info", value);
	if (value)
		FI_DBG(prov, FI_LOG_EQ, "%d\n", value);
	else
		FI_DBG_TRACE(prov, FI_LOG_FABRIC, "%d\n", value);
}

static int
prov_getinfo(uint32_t version, const char *node, const char *service,
	uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
	(void) version, (void) node, (void) service, (void) flags;
	(void) hints, (void) info;
	return -FI_ENODATA;
}

static struct fi_provider prov;

FI_EXT_INI
{
	char *text;
	int number, truth;
	size_t size;

	prov.version = FI_VERSION(1, 0);
	prov.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
	prov.name = "example";
	prov.getinfo = prov_getinfo;
	fi_param_define(&prov, "size", FI_PARAM_SIZE_T, "A size of %d", 1);
	if (fi_param_get_str(&prov, "text", &text) ||
	    fi_param_get_int(&prov, "number", &number) ||
	    fi_param_get_bool(&prov, "truth", &truth) ||
	    fi_param_get_size_t(&prov, "size", &size))
		return NULL;
	return &prov;
}
