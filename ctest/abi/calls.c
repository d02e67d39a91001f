/* The calls of the headers that do more than jump through one table, each in its
 * two forms: the inline and the exported function. The plain ones are added by
 * the test that compiles this file, from the tables beside it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_profile.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_xpu.h>
#include <rdma/providers/fi_prov.h>

static void *library;
static int failures, calls_made, exported_form;

#define EXPECT(condition) do { \
	if (!(condition)) { \
		printf("%s:%d: %s%s\n", __func__, __LINE__, \
			exported_form ? "exported form: " : "", #condition); \
		failures++; \
	} \
} while (0)

static void *symbol(const char *name)
{
	void *address = dlvsym(library, name, "FABRIC_OFI_1.0");

	if (!address) {
		printf("%s is not exported: %s\n", name, dlerror());
		exit(1);
	}
	return address;
}

/* The form of a call that is looked at now. */
#define CALL(name) \
	(calls_made++, exported_form ? (__typeof__(name) *) symbol(#name) : name)

/* What the slots were called with. */
static uint64_t seen[16];
static int called;

static struct {
	struct fid *fid;
	int command;
	union {
		struct fi_alias alias;
		struct fi_fid_var var;
		struct fi_mr_raw_attr raw_attr;
		struct fi_mr_map_raw map_raw;
		struct fi_mr_modify modify;
		struct fi_mr_xpu_desc xpu_desc;
		struct fi_fid_export export_;
		uint64_t key;
	} arg;
	int has_arg;
} command;

static struct fid_ep another_ep;

static int control(struct fid *fid, int number, void *arg)
{
	size_t size;

	switch (number) {
	case FI_ALIAS: size = sizeof(struct fi_alias); break;
	case FI_GET_VAL:
	case FI_SET_VAL: size = sizeof(struct fi_fid_var); break;
	case FI_GET_RAW_MR: size = sizeof(struct fi_mr_raw_attr); break;
	case FI_MAP_RAW_MR: size = sizeof(struct fi_mr_map_raw); break;
	case FI_UNMAP_KEY: size = sizeof(uint64_t); break;
	case FI_REFRESH: size = sizeof(struct fi_mr_modify); break;
	case FI_GET_MR_XPU_DESC: size = sizeof(struct fi_mr_xpu_desc); break;
	case FI_EXPORT_FID: size = sizeof(struct fi_fid_export); break;
	default: size = 0;
	}
	memset(&command, 0, sizeof(command));
	command.fid = fid;
	command.command = number;
	command.has_arg = arg != NULL;
	if (size)
		memcpy(&command.arg, arg, size);
	if (number == FI_ALIAS)
		*command.arg.alias.fid = &another_ep.fid;
	called++;
	return 5 - 5 * (number == FI_ALIAS);
}

static struct fi_ops fid_ops = { .size = sizeof(fid_ops), .control = control };

static void commands(void)
{
	struct fid_ep ep, *alias_ep = NULL;
	struct fid_mr mr;
	struct fid_domain domain;
	struct fid *alias = NULL, *expfid = NULL;
	struct iovec iov;
	uint64_t base = 0, key = 0;
	uint8_t raw[4];
	size_t size = 4;

	memset(&ep, 0, sizeof(ep));
	memset(&mr, 0, sizeof(mr));
	memset(&domain, 0, sizeof(domain));
	ep.fid.ops = mr.fid.ops = domain.fid.ops = &fid_ops;

	EXPECT(CALL(fi_alias)(&ep.fid, &alias, 7) == 0);
	EXPECT(command.command == FI_ALIAS && command.arg.alias.flags == 7);
	EXPECT(command.fid == &ep.fid && alias == &another_ep.fid);
	EXPECT(CALL(fi_ep_alias)(&ep, &alias_ep, 8) == 0);
	EXPECT(alias_ep == &another_ep && command.arg.alias.flags == 8);

	EXPECT(CALL(fi_get_val)(&ep.fid, 3, &key) == 5);
	EXPECT(command.command == FI_GET_VAL && command.arg.var.name == 3);
	EXPECT(command.arg.var.val == &key);
	EXPECT(CALL(fi_set_val)(&ep.fid, 4, &base) == 5);
	EXPECT(command.command == FI_SET_VAL && command.arg.var.name == 4);
	EXPECT(command.arg.var.val == &base);

	EXPECT(CALL(fi_enable)(&ep) == 5);
	EXPECT(command.fid == &ep.fid && command.command == FI_ENABLE && !command.has_arg);
	EXPECT(CALL(fi_mr_enable)(&mr) == 5);
	EXPECT(command.fid == &mr.fid && command.command == FI_ENABLE && !command.has_arg);

	EXPECT(CALL(fi_mr_raw_attr)(&mr, &base, raw, &size, 9) == 5);
	EXPECT(command.fid == &mr.fid && command.command == FI_GET_RAW_MR);
	EXPECT(command.arg.raw_attr.flags == 9 && command.arg.raw_attr.base_addr == &base);
	EXPECT(command.arg.raw_attr.raw_key == raw && command.arg.raw_attr.key_size == &size);

	EXPECT(CALL(fi_mr_map_raw)(&domain, 10, raw, 4, &key, 11) == 5);
	EXPECT(command.fid == &domain.fid && command.command == FI_MAP_RAW_MR);
	EXPECT(command.arg.map_raw.flags == 11 && command.arg.map_raw.base_addr == 10);
	EXPECT(command.arg.map_raw.raw_key == raw && command.arg.map_raw.key_size == 4);
	EXPECT(command.arg.map_raw.key == &key);

	EXPECT(CALL(fi_mr_unmap_key)(&domain, 12) == 5);
	EXPECT(command.fid == &domain.fid && command.command == FI_UNMAP_KEY);
	EXPECT(command.arg.key == 12);

	EXPECT(CALL(fi_mr_refresh)(&mr, &iov, 13, 14) == 5);
	EXPECT(command.fid == &mr.fid && command.command == FI_REFRESH);
	EXPECT(command.arg.modify.flags == 14 && command.arg.modify.attr.mr_iov == &iov);
	EXPECT(command.arg.modify.attr.iov_count == 13 && !command.arg.modify.attr.context);

	EXPECT(CALL(fi_mr_get_xpu_desc)(&mr, raw, &size, 15, (struct fid_xpu_ctx *) 16) == 5);
	EXPECT(command.fid == &mr.fid && command.command == FI_GET_MR_XPU_DESC);
	EXPECT(command.arg.xpu_desc.buf == raw && command.arg.xpu_desc.len == &size);
	EXPECT(command.arg.xpu_desc.flags == 15);
	EXPECT(command.arg.xpu_desc.ctx == (struct fid_xpu_ctx *) 16);

	EXPECT(CALL(fi_export_fid)(&ep.fid, 17, &expfid, &key) == 5);
	EXPECT(command.fid == &ep.fid && command.command == FI_EXPORT_FID);
	EXPECT(command.arg.export_.fid == &expfid && command.arg.export_.flags == 17);
	EXPECT(command.arg.export_.context == &key);

	if (!exported_form)
		return;
	EXPECT(CALL(fi_alias)(NULL, &alias, 0) == -FI_EINVAL);
	EXPECT(CALL(fi_ep_alias)(NULL, &alias_ep, 0) == -FI_EINVAL);
	EXPECT(CALL(fi_enable)(NULL) == -FI_EINVAL);
	EXPECT(CALL(fi_mr_refresh)(NULL, &iov, 1, 0) == -FI_EINVAL);
	ep.fid.ops = NULL;
	EXPECT(CALL(fi_enable)(&ep) == -FI_ENOSYS);
	EXPECT(CALL(fi_get_val)(&ep.fid, 3, &key) == -FI_ENOSYS);
}

static void computed(void)
{
	struct fid_mr mr;
	struct fid_mc mc;

	memset(&mr, 0, sizeof(mr));
	memset(&mc, 0, sizeof(mc));
	mr.mem_desc = &mc;
	mr.key = 18;
	mc.fi_addr = 19;
	EXPECT(CALL(fi_mr_desc)(&mr) == &mc);
	EXPECT(CALL(fi_mr_key)(&mr) == 18);
	EXPECT(CALL(fi_mc_addr)(&mc) == 19);

	EXPECT(CALL(fi_tc_dscp_set)(46) == (FI_TC_DSCP | 46));
	EXPECT(CALL(fi_tc_dscp_set)(255) == 511);
	EXPECT(CALL(fi_tc_dscp_get)(FI_TC_DSCP | 46) == 46);
	EXPECT(CALL(fi_tc_dscp_get)(767) == 0); /* a label, not a DSCP */
	EXPECT(CALL(fi_tc_dscp_get)(FI_TC_BULK_DATA) == 0);
	EXPECT(CALL(fi_rx_addr)(7, 3, 4) == 0x3000000000000007ULL);
	EXPECT(CALL(fi_rx_addr)(7, 1, 1) == 0x8000000000000007ULL);
	EXPECT(CALL(fi_group_addr)(7, 3) == 0x0000000300000007ULL);
	EXPECT(CALL(fi_hmem_ze_device)(2, 5) == 0x20005);
	EXPECT(CALL(fi_tag_mpi)(-1, 2) == 0x2FFFFFFFFULL);
	EXPECT(CALL(fi_tag_mpi)(6, 0xFF) == 0xFF00000006ULL);

	if (!exported_form)
		return;
	EXPECT(CALL(fi_mr_desc)(NULL) == NULL);
	EXPECT(CALL(fi_mr_key)(NULL) == FI_KEY_NOTAVAIL);
	EXPECT(CALL(fi_mc_addr)(NULL) == FI_ADDR_NOTAVAIL);
	EXPECT(CALL(fi_rx_addr)(7, 0, 0) == 7);
}

static ssize_t
readerr(struct fid_cq *cq, struct fi_cq_err_entry *buf, uint64_t flags)
{
	(void) cq;
	buf->err = (int) flags;
	return 1;
}

static void error_entries(void)
{
	struct fi_ops_cq ops = { .size = sizeof(ops), .readerr = readerr };
	struct fid_cq cq = { .ops = &ops };
	struct fi_cq_err_entry entry;

	memset(&entry, 0, sizeof(entry));
	EXPECT(CALL(fi_cq_readerr)(&cq, &entry, 20) == 1);
	EXPECT(entry.err == 20 && entry.src_addr == FI_ADDR_NOTAVAIL);
	if (!exported_form)
		return;
	EXPECT(CALL(fi_cq_readerr)(&cq, NULL, 0) == -FI_EINVAL);
	EXPECT(CALL(fi_cq_readerr)(NULL, &entry, 0) == -FI_EINVAL);
	ops.size = offsetof(struct fi_ops_cq, readerr);
	EXPECT(CALL(fi_cq_readerr)(&cq, &entry, 0) == -FI_ENOSYS);
}

static struct fi_collective_addr joined;

static int
join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc,
	void *context)
{
	(void) ep, (void) mc, (void) context;
	joined = *(const struct fi_collective_addr *) addr;
	seen[0] = flags;
	return 6;
}

static ssize_t barrier(struct fid_ep *ep, fi_addr_t coll_addr, void *context)
{
	(void) ep, (void) context;
	return (ssize_t) coll_addr;
}

static int
open_domain(struct fid_fabric *fabric, struct fi_info *info,
	struct fid_domain **domain, void *context)
{
	(void) fabric, (void) info, (void) domain, (void) context;
	return 8;
}

static int
open_endpoint(struct fid_domain *domain, struct fi_info *info,
	struct fid_ep **ep, void *context)
{
	(void) domain, (void) info, (void) ep, (void) context;
	return 9;
}

/* Calls that fall back on an older one. */
static void combined(void)
{
	struct fi_ops_cm cm = { .size = sizeof(cm), .join = join };
	struct fi_ops_collective coll = { .size = sizeof(coll), .barrier = barrier };
	struct fi_ops_fabric fabric_ops = { .size = sizeof(fabric_ops), .domain = open_domain };
	struct fi_ops_domain domain_ops = { .size = sizeof(domain_ops), .endpoint = open_endpoint };
	struct fid_ep ep = { .cm = &cm, .collective = &coll };
	struct fid_fabric fabric = { .ops = &fabric_ops };
	struct fid_domain domain = { .ops = &domain_ops };
	struct fid_av_set set;

	EXPECT(CALL(fi_join_collective)(&ep, 21, &set, 2, NULL, NULL) == 6);
	EXPECT(joined.set == &set && joined.coll_addr == 21);
	EXPECT(seen[0] == (FI_COLLECTIVE | 2));

	EXPECT(CALL(fi_barrier2)(&ep, 22, 0, NULL) == 22);
	EXPECT(CALL(fi_barrier2)(&ep, 22, 1, NULL) == -FI_ENOSYS);
	EXPECT(CALL(fi_domain2)(&fabric, NULL, NULL, 0, NULL) == 8);
	EXPECT(CALL(fi_domain2)(&fabric, NULL, NULL, 1, NULL) == -FI_ENOSYS);
	EXPECT(CALL(fi_endpoint2)(&domain, NULL, NULL, 0, NULL) == 9);
	EXPECT(CALL(fi_endpoint2)(&domain, NULL, NULL, 1, NULL) == -FI_ENOSYS);
}

static struct fid_profile profile;

static int
ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void) fid, (void) context;
	*ops = &profile.ops;
	return strcmp(name, "fi_profile_ops") ? -FI_ENOSYS : (int) flags;
}

static ssize_t read_var(struct fid_profile *prof, uint32_t id, void *data, size_t *size)
{
	(void) prof;
	*(uint64_t *) data = id;
	return (ssize_t) *size;
}

static int event(struct fid_profile *prof, struct fi_profile_desc *desc, void *param,
	size_t size, void *context)
{
	(void) prof, (void) desc, (void) param, (void) size, (void) context;
	return 0;
}

static int
reg_callback(struct fid_profile *prof, uint32_t id,
	int (*callback)(struct fid_profile *, struct fi_profile_desc *, void *, size_t, void *),
	void *context)
{
	return prof == &profile && id == 23 && callback == event && context == &profile ? 24 : 0;
}

static void profiles(void)
{
	struct fi_ops fops = { .size = sizeof(fops), .ops_open = ops_open };
	struct fi_profile_ops ops =
		{ .size = sizeof(ops), .read_var = read_var, .reg_callback = reg_callback };
	struct fid fid = { .ops = &fops };
	struct fid_profile *opened = NULL;
	uint64_t data = 0;

	profile.ops = &ops;
	EXPECT(CALL(fi_profile_open)(&fid, 0, &opened, NULL) == 0 && opened == &profile);
	opened = NULL;
	EXPECT(CALL(fi_profile_open)(&fid, 3, &opened, NULL) == 3 && !opened);
	EXPECT(CALL(fi_profile_read_u64)(&profile, 25, &data) == sizeof(data) && data == 25);
	EXPECT(CALL(fi_profile_register_callback)(&profile, 23, event, &profile) == 24);
	if (!exported_form)
		return;
	EXPECT(CALL(fi_profile_open)(NULL, 0, &opened, NULL) == -FI_EINVAL);
	EXPECT(CALL(fi_profile_read_u64)(NULL, 25, &data) == -FI_EINVAL);
	ops.size = offsetof(struct fi_profile_ops, read_var);
	EXPECT(CALL(fi_profile_read_u64)(&profile, 25, &data) == -FI_ENOSYS);
	EXPECT(CALL(fi_profile_register_callback)(&profile, 23, event, NULL) == -FI_ENOSYS);
}

/* Stand-ins for the core functions that some calls end in; being the program's,
 * they come before the library's. */
static struct fi_info *const empty_info = (struct fi_info *) 0x1000;
static struct fid opened_by_name;
static int closed;

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
	return info ? NULL : empty_info;
}

int fi_open(uint32_t version, const char *name, void *attr, size_t attr_len,
	uint64_t flags, struct fid **fid, void *context)
{
	(void) attr, (void) attr_len, (void) flags, (void) context;
	if (version < FI_VERSION(1, 13) || strcmp(name, "logging"))
		return -FI_ENOSYS;
	*fid = &opened_by_name;
	return 0;
}

int fi_param_get(struct fi_provider *provider, const char *param_name, void *value)
{
	seen[0] = (uintptr_t) provider;
	seen[1] = (uintptr_t) param_name;
	seen[2] = (uintptr_t) value;
	return 26;
}

static int bind_import(struct fid *fid, struct fid *bfid, uint64_t flags)
{
	return fid == &opened_by_name && bfid->fclass == FI_CLASS_LOG ? (int) flags : -1;
}

static int close_import(struct fid *fid)
{
	closed += fid == &opened_by_name;
	return 0;
}

static void core(void)
{
	struct fi_ops ops = { .size = sizeof(ops), .bind = bind_import, .close = close_import };
	struct fid_logging log;
	struct fi_provider *prov = (struct fi_provider *) 0x2000;
	char name[] = "name";

	memset(&log, 0, sizeof(log));
	opened_by_name.ops = &ops;
	closed = 0;
	EXPECT(CALL(fi_allocinfo)() == empty_info);
	EXPECT(CALL(fi_import_log)(FI_VERSION(1, 16), 27, &log) == 27 && closed == 1);
	EXPECT(log.fid.fclass == FI_CLASS_LOG);
	EXPECT(CALL(fi_import)(FI_VERSION(1, 16), "logging", NULL, 0, 28, &log.fid, NULL) == 28);
	EXPECT(closed == 2);
	EXPECT(CALL(fi_import)(FI_VERSION(1, 16), "other", NULL, 0, 28, &log.fid, NULL) == -FI_ENOSYS);
	EXPECT(closed == 2);

#define PARAM(call, type) do { \
		type value; \
		memset(seen, 0, sizeof(seen)); \
		EXPECT(CALL(call)(prov, name, &value) == 26); \
		EXPECT(seen[0] == (uintptr_t) prov && seen[1] == (uintptr_t) name); \
		EXPECT(seen[2] == (uintptr_t) &value); \
	} while (0)
	PARAM(fi_param_get_str, char *);
	PARAM(fi_param_get_int, int);
	PARAM(fi_param_get_bool, int);
	PARAM(fi_param_get_size_t, size_t);
	if (exported_form)
		EXPECT(CALL(fi_import_log)(FI_VERSION(1, 16), 0, NULL) == -FI_EINVAL);
}

static void composed(void)
{
	for (exported_form = 0; exported_form < 2; exported_form++) {
		commands();
		computed();
		error_entries();
		combined();
		profiles();
		core();
	}
}
