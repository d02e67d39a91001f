/* Objects that programs provide to the library: fi_open(3), logs and memory monitors of their own. */
#include "ct.h"
#include <rdma/fi_ext.h>
#include <rdma/providers/fi_log.h>

#define MODERN FI_VERSION(1, 13)

static void known_parts(int rank)
{
	static const struct { const char *name; size_t class; } part[] = {
		{ "logging", FI_CLASS_LOG }, { "mr_cache", FI_CLASS_MR_CACHE }, { "MR_Cache", FI_CLASS_MR_CACHE },
	};
	struct fid *f;

	(void)rank;
	for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
		f = NULL;
		OK(fi_open(MODERN, part[i].name, NULL, 0, 0, &f, &f));
		EQ(f->fclass, part[i].class);
		CHECK(f->context == &f);
		ERR(fi_control(f, FI_GETWAIT, NULL), FI_ENOSYS);
		OK(fi_close(f));
		ERR(fi_open(FI_VERSION(1, 12), part[i].name, NULL, 0, 0, &f, NULL), FI_EINVAL);
		ERR(fi_open(MODERN, part[i].name, &rank, sizeof rank, 0, &f, NULL), FI_EINVAL);
		ERR(fi_open(MODERN, part[i].name, NULL, 0, 1, &f, NULL), FI_EBADFLAGS);
	}
	ERR(fi_open(MODERN, "no such part", NULL, 0, 0, &f, NULL), FI_ENOSYS);
}

static struct { int enabled, ready, lines, unnamed; char last[200]; } seen;

static int log_enabled(const struct fi_provider *p, enum fi_log_level l, enum fi_log_subsys s, uint64_t flags)
{
	(void)s;
	(void)flags;
	seen.enabled++;
	seen.unnamed += !p || !p->name || !*p->name;
	return l <= FI_LOG_INFO;
}
static int log_ready(const struct fi_provider *p, enum fi_log_level l, enum fi_log_subsys s, uint64_t flags,
		     uint64_t *showtime)
{
	(void)p;
	(void)l;
	(void)s;
	(void)flags;
	*showtime = 7;
	return ++seen.ready == 1;
}
static void log_line(const struct fi_provider *p, enum fi_log_level l, enum fi_log_subsys s, const char *func,
		     int line, const char *text)
{
	(void)l;
	(void)s;
	(void)func;
	(void)line;
	seen.lines++;
	seen.unnamed += !p || !p->name || !*p->name;
	snprintf(seen.last, sizeof seen.last, "%s", text);
}

static void own_log(int rank)
{
	struct fi_ops_log ops = { sizeof ops, log_enabled, log_ready, log_line }, bare = { .size = sizeof bare };
	struct fid_logging mine = { .ops = &ops }, other = { .ops = &bare };
	struct fi_provider prov = { .name = "zed" };
	struct fi_info *info;
	struct fid *f;
	uint64_t showtime = 0;
	int lines;

	(void)rank;
	OK(fi_import_log(MODERN, 0, &mine));
	EQ(mine.fid.fclass, FI_CLASS_LOG);
	ERR(fi_import_log(MODERN, 0, &other), FI_EALREADY);
	ERR(fi_import_log(MODERN, 1, &other), FI_EBADFLAGS);

	/* the library's lines and the provider's, each with the name of its source */
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &info));
	fi_freeinfo(info);
	CHECK(seen.enabled > 0 && seen.lines > 0);
	EQ(seen.unnamed, 0);

	CHECK(fi_log_enabled(&prov, FI_LOG_INFO, FI_LOG_CQ));
	CHECK(!fi_log_enabled(&prov, FI_LOG_DEBUG, FI_LOG_CQ));
	CHECK(fi_log_ready(&prov, FI_LOG_WARN, FI_LOG_CQ, &showtime));
	EQ(showtime, 7);
	CHECK(!fi_log_ready(&prov, FI_LOG_WARN, FI_LOG_CQ, &showtime));
	lines = seen.lines;
	fi_log(&prov, FI_LOG_INFO, FI_LOG_CQ, "func", 3, "%s %d\n", "a line", 42);
	EQ(seen.lines, lines + 1);
	CHECK(!strcmp(seen.last, "a line 42\n"));

	/* closing it gives the log back */
	OK(fi_close(&mine.fid));
	fi_log(&prov, FI_LOG_DEBUG, FI_LOG_CQ, "func", 3, "not for anybody\n");
	EQ(seen.lines, lines + 1);

	/* a log without functions takes nothing, and other objects are refused */
	OK(fi_import_log(MODERN, 0, &other));
	CHECK(!fi_log_enabled(&prov, FI_LOG_WARN, FI_LOG_CQ));
	CHECK(!fi_log_ready(&prov, FI_LOG_WARN, FI_LOG_CQ, &showtime));
	OK(fi_close(&other.fid));
	OK(fi_open(MODERN, "logging", NULL, 0, 0, &f, NULL));
	ERR(fi_import_fid(f, &mine.fid, 1), FI_EINVAL);
	mine.fid.fclass = FI_CLASS_CQ;
	ERR(fi_import_fid(f, &mine.fid, 0), FI_EINVAL);
	mine.fid.fclass = FI_CLASS_LOG;
	ops.size = offsetof(struct fi_ops_log, log);
	ERR(fi_import_fid(f, &mine.fid, 0), FI_EINVAL);
	OK(fi_close(f));
}

static int mon_start(struct fid_mem_monitor *m) { (void)m; return 0; }
static void mon_stop(struct fid_mem_monitor *m) { (void)m; }
static int mon_subscribe(struct fid_mem_monitor *m, const void *a, size_t n) { (void)m; (void)a; (void)n; return 0; }
static void mon_unsubscribe(struct fid_mem_monitor *m, const void *a, size_t n) { (void)m; (void)a; (void)n; }
static bool mon_valid(struct fid_mem_monitor *m, const void *a, size_t n) { (void)m; (void)a; (void)n; return true; }

static void own_monitor(int rank)
{
	struct fi_ops_mem_monitor ops = {
		sizeof ops, mon_start, mon_stop, mon_subscribe, mon_unsubscribe, mon_valid
	};
	struct fid_mem_monitor mine = { .export_ops = &ops }, other = { .export_ops = &ops };
	struct fi_info *info;
	struct fid *f;

	(void)rank;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, NULL, &info));
	fi_freeinfo(info);
	OK(fi_open(MODERN, "mr_cache", NULL, 0, 0, &f, NULL));
	ERR(fi_import_fid(f, &mine.fid, 0), FI_EINVAL);
	mine.fid.fclass = other.fid.fclass = FI_CLASS_MEM_MONITOR;
	ERR(fi_import_fid(f, &mine.fid, 1), FI_EINVAL);
	ops.size = offsetof(struct fi_ops_mem_monitor, valid);
	ERR(fi_import_fid(f, &mine.fid, 0), FI_EINVAL);
	ops.size = sizeof ops;
	OK(fi_import_fid(f, &mine.fid, 0));
	ERR(fi_import_fid(f, &other.fid, 0), FI_EBUSY);
	ERR(fi_import_fid(f, &mine.fid, 0), FI_EBUSY);
	CHECK(mine.import_ops && mine.import_ops->size >= sizeof *mine.import_ops);
	/* no region is registered there: the notification has no effect */
	mine.import_ops->notify(&mine, ops.start, 4096);
	/* the part and the object imported into it have separate lifetimes */
	OK(fi_close(f));
	OK(fi_open(MODERN, "mr_cache", NULL, 0, 0, &f, NULL));
	ERR(fi_import_fid(f, &other.fid, 0), FI_EBUSY);
	OK(fi_close(&mine.fid));
	OK(fi_import_fid(f, &other.fid, 0));
	OK(fi_close(&other.fid));
	OK(fi_close(f));
}

static void known_variables(int rank)
{
	static const struct { const char *name; enum fi_param_type type; } want[] = {
		{ "FI_MR_CACHE_MAX_SIZE", FI_PARAM_SIZE_T }, { "FI_MR_CACHE_MAX_COUNT", FI_PARAM_SIZE_T },
		{ "FI_MR_CACHE_MONITOR", FI_PARAM_STRING }, { "FI_MR_CUDA_CACHE_MONITOR_ENABLED", FI_PARAM_BOOL },
		{ "FI_MR_ROCR_CACHE_MONITOR_ENABLED", FI_PARAM_BOOL }, { "FI_MR_ZE_CACHE_MONITOR_ENABLED", FI_PARAM_BOOL },
	};
	struct fi_param *p;
	int n, k;

	(void)rank;
	OK(fi_getparams(&p, &n));
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		for (k = 0; k < n && strcmp(p[k].name, want[i].name); k++)
			;
		if (k == n)
			FAIL("no %s", want[i].name);
		EQ(p[k].type, want[i].type);
	}
	fi_freeparams(p);
}

static struct { int dups, closes, texts; } card;
static struct fid_nic *card_copy(const struct fid_nic *nic)
{
	struct fid_nic *copy = malloc(sizeof *copy);

	CHECK(copy);
	return memcpy(copy, nic, sizeof *copy);
}
static int card_close(struct fid *f)
{
	card.closes++;
	free(f);
	return 0;
}
static int card_control(struct fid *f, int command, void *arg)
{
	if (command != FI_DUP)
		return -FI_ENOSYS;
	card.dups++;
	*(struct fid_nic **)arg = card_copy((struct fid_nic *)f);
	return 0;
}
static int card_tostr(const struct fid *f, char *buf, size_t len)
{
	(void)f;
	card.texts++;
	strncat(buf, "    nic: mine\n", len - strlen(buf) - 1);
	return 0;
}
/* the provider of a card copies, describes and frees it */
static void own_card(int rank)
{
	struct fi_ops ops = {
		.size = sizeof ops, .close = card_close, .control = card_control, .tostr = card_tostr
	};
	struct fid_nic nic = { .fid = { FI_CLASS_NIC, NULL, &ops } };
	struct fi_info *i = fi_allocinfo(), *copy;

	(void)rank;
	CHECK(i);
	i->nic = card_copy(&nic);
	copy = fi_dupinfo(i);
	CHECK(copy && copy->nic && copy->nic != i->nic);
	EQ(card.dups, 1);
	CHECK(strstr(fi_tostr(copy, FI_TYPE_INFO), "    nic: mine\n"));
	EQ(card.texts, 1);
	fi_freeinfo(copy);
	EQ(card.closes, 1);
	fi_freeinfo(i);
	EQ(card.closes, 2);
}

/* Returns the value in a file of sysfs about an interface; an empty text if there is none. */
static const char *of_interface(const char *name, const char *file)
{
	static char text[256];
	char path[512];
	FILE *f;

	text[0] = 0;
	snprintf(path, sizeof path, "/sys/class/net/%s/%s", name, file);
	if ((f = fopen(path, "r"))) {
		if (!fgets(text, sizeof text, f))
			text[0] = 0;
		fclose(f);
	}
	text[strcspn(text, "\n")] = 0;
	return text;
}
/* Ours reports the address on the bus on request. */
static struct fi_info *infos_with_pci(const struct ct_opt *o)
{
	setenv("FI_TCP_NIC_PCI", "1", 1);
	setenv("FI_UDP_NIC_PCI", "1", 1);
	return ct_getinfo(o, NULL, NULL, 0);
}
static struct fi_info *first_with_card(struct fi_info *i)
{
	while (i && !i->nic)
		i = i->next;
	return i;
}
/* Infos of IP providers have a card where this host has one. */
static void skip_without_card(void)
{
	if (!strncmp(ct_prov, "tcp", 3) || !strncmp(ct_prov, "udp", 3) || !strcmp(ct_prov, "sockets") || !strcmp(ct_prov, "net"))
		SKIP_HERE("no interface has a device");
	SKIP("no card in the infos");
}
/* "device_attr.name: The operating system name associated with the device. This may be a logical network interface
 * name"; "address: The primary link-level address associated with the NIC, such as a MAC address"; "mtu: The maximum
 * transfer unit of link level frames or packets, in bytes"; "speed: The active link data rate, given in bits per
 * second"; "Bus attributes are used to identify the physical location of the NIC in the system" */
static void described_card(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *all = infos_with_pci(&o), *i = first_with_card(all);
	char link[600], *where, pci[32];
	const struct fid_nic *nic;
	const char *name;

	(void)rank;
	if (!i)
		skip_without_card();
	nic = i->nic;
	CHECK(nic->device_attr && nic->bus_attr && nic->link_attr && nic->device_attr->name);
	EQ(nic->fid.fclass, FI_CLASS_NIC);
	name = nic->device_attr->name;
	if (!*of_interface(name, "address"))
		SKIP("the device is no network interface");
	CHECK(!strncmp(i->domain_attr->name, name, strlen(name)));
	CHECK(!strcmp(nic->link_attr->address, of_interface(name, "address")));
	EQ(nic->link_attr->mtu, strtoul(of_interface(name, "mtu"), NULL, 10));
	if (atol(of_interface(name, "speed")) > 0)
		EQ(nic->link_attr->speed, strtoul(of_interface(name, "speed"), NULL, 10) * 1000000);
	else
		EQ(nic->link_attr->speed, 0);
	if (!strcmp(of_interface(name, "operstate"), "up"))
		EQ(nic->link_attr->state, FI_LINK_UP);
	if (!strcmp(of_interface(name, "type"), "1"))
		CHECK(!strcmp(nic->link_attr->network_type, "Ethernet"));
	snprintf(link, sizeof link, "/sys/class/net/%s/device", name);
	CHECK((where = realpath(link, NULL)));
	if (nic->bus_attr->bus_type == FI_BUS_PCI) {
		const struct fi_pci_attr *at = &nic->bus_attr->attr.pci;

		snprintf(pci, sizeof pci, "/%04x:%02x:%02x.%x", at->domain_id, at->bus_id, at->device_id, at->function_id);
		CHECK(strstr(where, pci));
	} else {
		CHECK(!strstr(where, "/pci0"));
	}
	free(where);
	fi_freeinfo(all);
}
/* "It is automatically freed as part of calling fi_freeinfo(3)"; fi_dupinfo(3) copies an info with all of it */
static void copied_card(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *all = ct_getinfo(&o, NULL, NULL, 0), *i = first_with_card(all), *copy;
	const struct fid_nic *nic;
	static char text[16384];

	(void)rank;
	if (!i)
		skip_without_card();
	CHECK((copy = fi_dupinfo(i)));
	CHECK((nic = copy->nic) && nic != i->nic && nic->device_attr->name != i->nic->device_attr->name);
	CHECK(!strcmp(nic->device_attr->name, i->nic->device_attr->name));
	CHECK(!memcmp(&nic->bus_attr->attr.pci, &i->nic->bus_attr->attr.pci, sizeof nic->bus_attr->attr.pci));
	snprintf(text, sizeof text, "%s", fi_tostr(i, FI_TYPE_INFO));
	fi_freeinfo(all);
	CHECK(!strcmp(text, fi_tostr(copy, FI_TYPE_INFO)));
	CHECK(strstr(text, "    nic:\n        fi_device_attr:\n            name: "));
	CHECK(strstr(text, "\n        fi_link_attr:\n            address: "));
	fi_freeinfo(copy);
}
/* "attributes for a struct fi_info that is directly associated with underlying networking hardware": others have none */
static void no_card(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *all = ct_getinfo(&o, NULL, NULL, 0);

	(void)rank;
	for (struct fi_info *i = all; i; i = i->next)
		CHECK(strcmp(i->domain_attr->name, "lo") || !i->nic);
	fi_freeinfo(all);
}

/* only the name changes, in infos and in the names of variables */
static void other_name(int rank)
{
	struct fi_info *h = fi_allocinfo(), *i;
	struct fid_fabric *fabric;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("tcp has a variable for that");
	setenv("FI_TCP_PROV_NAME", "renamed", 1);
	setenv("FI_RENAMED_TX_SIZE", "77", 1);
	setenv("FI_TCP_TX_SIZE", "78", 1);
	h->ep_attr->type = FI_EP_MSG;
	h->fabric_attr->prov_name = strdup("tcp");
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	free(h->fabric_attr->prov_name);
	h->fabric_attr->prov_name = strdup("renamed");
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
	CHECK(!strcmp(i->fabric_attr->prov_name, "renamed"));
	EQ(i->tx_attr->size, 77);
	OK(fi_fabric(i->fabric_attr, &fabric, NULL));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(i);
	fi_freeinfo(h);
}

static const struct ct_test tests[] = {
	{ "parts of the library are opened by name", known_parts, CT_SOLO },
	{ "an application's log receives all lines until it is closed", own_log, CT_SOLO },
	{ "an application's memory monitor is imported once and can be closed", own_monitor, CT_SOLO },
	{ "the variables of the registration cache are listed", known_variables, CT_SOLO },
	{ "a provider works under another name", other_name, CT_SOLO },
	{ "the NIC of an info is copied, described and freed by its provider", own_card, CT_SOLO },
	{ "the NIC of an info describes the interface of its domain", described_card, CT_SOLO },
	{ "a copy of an info has a NIC of its own, with the same text", copied_card, CT_SOLO },
	{ "an info of the loopback has no NIC", no_card, CT_SOLO },
};
CT_MAIN("ext", tests)
