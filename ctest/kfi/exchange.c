/*
 * A kernel module in the way of kfabric's own tests, for the stand-ins beside
 * it: a server receives a message and answers, a client calls it.
 *
 *   exchange role=server addr=127.0.0.1 port=N	 (N as the address has it in memory)
 */
#include <linux/module.h>
#include <linux/inet.h>
#include <linux/kthread.h>
#include <linux/slab.h>
#include <kfabric.h>
#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>

MODULE_AUTHOR("ofi-rs");
MODULE_DESCRIPTION("A message and its answer");
MODULE_LICENSE("Dual BSD/GPL");

#define MODULE_NAME "exchange"
#include <kfi_log.h>

static char role[10];
static char addr[INET_ADDRSTRLEN];
static int port;
module_param_string(role, role, sizeof(role), 0);
MODULE_PARM_DESC(role, "server or client");
module_param_string(addr, addr, sizeof(addr), 0);
module_param(port, int, 0);

static struct task_struct *worker;

static int check(int ret, const char *what)
{
	if (ret)
		LOG_ERR("%s: %d", what, ret);
	return ret;
}
#define TRY(call) do { ret = check(call, #call); if (ret) return ret; } while (0)

static int event(struct kfid_eq *eq, uint32_t wanted, struct kfi_info **info)
{
	struct kfi_eq_cm_entry entry;
	uint32_t got = 0;
	ssize_t n = kfi_eq_sread(eq, &got, &entry, sizeof(entry), 0, 0);

	if (n < 0 || got != wanted)
		return -EIO;
	if (info)
		*info = entry.info;
	return 0;
}

static int completion(struct kfid_cq *cq, void *context)
{
	struct kfi_cq_data_entry entry = { 0 };

	if (kfi_cq_sread(cq, &entry, 1, NULL, 0) != 1)
		return -EIO;
	return entry.op_context == context ? 0 : -EINVAL;
}

static int talk(bool server)
{
	struct kfi_info hints = { 0 }, *info = NULL;
	struct kfi_eq_attr eq_attr = { .size = 4 };
	struct kfi_cq_attr cq_attr = { .format = KFI_CQ_FORMAT_DATA };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = port };
	struct kfid_fabric *fabric;
	struct kfid_domain *domain;
	struct kfid_pep *pep = NULL;
	struct kfid_eq *eq, *calls = NULL;
	struct kfid_cq *cq;
	struct kfid_ep *ep;
	const char *end;
	char *text = kzalloc(64, GFP_KERNEL);
	struct kvec piece = { .iov_base = text, .iov_len = 32 };
	int ret;

	if (!text || !in4_pton(addr, -1, (u8 *)&at.sin_addr, -1, &end))
		return -EINVAL;
	hints.src_addr = server ? kmemdup(&at, sizeof(at), GFP_KERNEL) : NULL;
	hints.src_addrlen = server ? sizeof(at) : 0;
	hints.dest_addr = server ? NULL : kmemdup(&at, sizeof(at), GFP_KERNEL);
	hints.dest_addrlen = server ? 0 : sizeof(at);
	TRY(kfi_getinfo(KFI_VERSION(1, 1), &hints, &info));
	kfree(hints.src_addr);
	kfree(hints.dest_addr);
	TRY(kfi_fabric(info->fabric_attr, &fabric, NULL));
	if (server) {
		TRY(kfi_passive_ep(fabric, info, &pep, NULL));
		TRY(kfi_eq_open(fabric, &eq_attr, &calls, NULL));
		TRY(kfi_pep_bind(pep, &calls->fid, 0));
		TRY(kfi_listen(pep));
		LOG_INFO("listening");
		kfi_freeinfo(info);
		TRY(event(calls, KFI_CONNREQ, &info));
	}
	TRY(kfi_domain(fabric, info, &domain, NULL));
	TRY(kfi_endpoint(domain, info, &ep, NULL));
	kfi_freeinfo(info);
	TRY(kfi_eq_open(fabric, &eq_attr, &eq, NULL));
	TRY(kfi_ep_bind(ep, &eq->fid, 0));
	TRY(kfi_cq_open(domain, &cq_attr, &cq, NULL));
	TRY(kfi_ep_bind(ep, &cq->fid, KFI_SEND | KFI_RECV));
	TRY(kfi_enable(ep));
	TRY(kfi_recvv(ep, &piece, NULL, 1, 0, text));
	TRY(server ? kfi_accept(ep, NULL, 0) : kfi_connect(ep, NULL, NULL, 0));
	TRY(event(eq, KFI_CONNECTED, NULL));
	if (server)
		TRY(completion(cq, text));
	snprintf(text + 32, 32, "%s", server ? "good day" : "hello");
	TRY(kfi_send(ep, text + 32, 32, NULL, 0, text + 32));
	if (!server)
		TRY(completion(cq, text + 32));
	TRY(completion(cq, server ? text + 32 : text));
	LOG_INFO("heard '%s'", text);
	/* who called hangs up */
	if (server)
		TRY(event(eq, KFI_SHUTDOWN, NULL));
	TRY(kfi_close(&ep->fid));
	TRY(kfi_close(&cq->fid));
	TRY(kfi_close(&eq->fid));
	TRY(kfi_close(&domain->fid));
	if (server) {
		TRY(kfi_close(&pep->fid));
		TRY(kfi_close(&calls->fid));
	}
	TRY(kfi_close(&fabric->fid));
	kfree(text);
	return 0;
}

static int work(void *data)
{
	int ret = talk(data);

	if (!ret)
		LOG_INFO("done");
	while (!kthread_should_stop()) {
		set_current_state(TASK_INTERRUPTIBLE);
		schedule();
	}
	return ret;
}

static int __init exchange_init(void)
{
	if (strcmp(role, "server") && strcmp(role, "client"))
		return -EINVAL;
	worker = kthread_create(work, strcmp(role, "server") ? NULL : role, "hello");
	if (IS_ERR(worker))
		return PTR_ERR(worker);
	wake_up_process(worker);
	return 0;
}

static void __exit exchange_exit(void)
{
	int ret = kthread_stop(worker);

	if (ret)
		exit(-ret);
}

module_init(exchange_init);
module_exit(exchange_exit);
