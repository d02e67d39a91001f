/*
 * Memory of devices (FI_HMEM): messages and accesses of peers between memory of devices, of hosts, or of both, and
 * failures of copies.  It runs with a device (accelerator.h), or with the stand-in for one (ctest/hmem/run), which ends a
 * program whose processor touches the memory of a device.
 */
#undef CT_DEVICE	/* the memory of these tests is where they put it */
#include "ct.h"
#include "accelerator.h"
#include <stdbool.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

static const struct acc *acc;

static const struct acc *kind(void)
{
	if (!acc && !(acc = acc_of(0)))
		SKIP_HERE("no such interface to memory of devices");
	return acc;
}
/* The stand-in; a test that needs it does not run on a device. */
static void *stand_in(void)
{
	char text[64];
	void *library;

	snprintf(text, sizeof text, "%s.1", kind()->library);
	library = dlopen(text, RTLD_LAZY);
	snprintf(text, sizeof text, "%s_is_stub", acc->name);
	if (!library || !dlsym(library, text))
		SKIP_HERE("no stand-in for a device");
	return library;
}
/* A setting of the stand-in. */
static void stub(const char *name, const char *value)
{
	char text[64];

	stand_in();
	snprintf(text, sizeof text, "%s_STUB_%s", acc->stub, name);
	setenv(text, value, 1);
}
/* Memory of the interface at this index in CT_HMEM is used from here on. */
static void use_kind(int index)
{
	if (!(acc = acc_of(index)))
		SKIP_HERE("one interface to memory of devices");
}
static void load_runtime(void)
{
	if (kind()->load())
		SKIP_HERE("no device");
}

/* A parameter of the provider, and of ofi_rxm over it, which has copies of its own. */
static void copy_param(const char *name, const char *value)
{
	char var[64];

	ct_param(name, value);
	snprintf(var, sizeof var, "FI_OFI_RXM_%s", name);
	setenv(var, value, 1);
}

/* A buffer of the device, with bytes of the host that are moved to it and back. */
struct mem {
	char *at;	/* the address in transfers */
	char *host;	/* a copy of the bytes, or the same address */
	size_t n;
	const struct acc *acc;	/* of the device */
};
static struct mem new_mem(size_t n, int device)
{
	struct mem m = { .n = n, .acc = acc };

	CHECK((m.host = calloc(1, n)));
	m.at = m.host;
	if (device) {
		void *p;

		EQ(acc->allocate(&p, n), 0);
		m.at = p;
		EQ(acc_fill(acc, m.at, 0, n), 0);
	}
	return m;
}
static void push(struct mem *m)
{
	if (m->at != m->host)
		EQ(m->acc->copy(m->at, m->host, m->n), 0);
}
static void pull(struct mem *m)
{
	if (m->at != m->host)
		EQ(m->acc->copy(m->host, m->at, m->n), 0);
}
static void fill(struct mem *m, size_t n, unsigned seed)
{
	ct_fill(m->host, n, seed);
	push(m);
}
static int same(struct mem *m, size_t n, unsigned seed)
{
	pull(m);
	return ct_same(m->host, n, seed);
}

/* Which ends have their buffers on a device. */
enum { BOTH, SENDER, RECEIVER };
static int on_device(int who, int sender)
{
	return who == BOTH || (who == SENDER) == sender;
}

static void open_hmem(struct ct *c, uint64_t caps)
{
	struct ct_opt o = { .caps = caps | FI_HMEM };

	load_runtime();
	ct_open(c, &o);
	CHECK(c->info->caps & FI_HMEM);
}

static const size_t sizes[] = { 0, 1, 8, 100, 1024, 4096, 5000, 65536, 300000, 1 << 20, 5 << 20 };
#define MAX (5 << 20)
#define SIZES (sizeof sizes / sizeof *sizes)

static void messages(int rank, int who, int tagged)
{
	struct ct c;
	struct mem m;

	open_hmem(&c, tagged ? FI_TAGGED : FI_MSG);
	m = new_mem(MAX, on_device(who, rank == 0));
	for (size_t i = 0; i < SIZES; i++) {
		size_t n = sizes[i];

		if (rank == 0) {
			fill(&m, n, i);
			if (tagged)
				POST(&c, fi_tsend(c.ep, m.at, n, NULL, c.peer, i, CTX(0)));
			else
				POST(&c, fi_send(c.ep, m.at, n, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			if (tagged)
				POST(&c, fi_trecv(c.ep, m.at, n, NULL, c.peer, i, 0, CTX(0)));
			else
				POST(&c, fi_recv(c.ep, m.at, n, NULL, c.peer, CTX(0)));
			ct_recvd(&c, CTX(0), n);
			CHECK(same(&m, n, i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void messages_both(int rank) { messages(rank, BOTH, 0); }
static void messages_sender(int rank) { messages(rank, SENDER, 0); }
static void messages_receiver(int rank) { messages(rank, RECEIVER, 0); }
static void tagged_both(int rank) { messages(rank, BOTH, 1); }
static void tagged_sender(int rank) { messages(rank, SENDER, 1); }
static void tagged_receiver(int rank) { messages(rank, RECEIVER, 1); }

/* Copies that take time overlap with others, and complete nothing early. */
static void slow_copies(int rank)
{
	stub("DELAY_US", "2000");
	messages(rank, BOTH, 1);
}
/* Bounce memory smaller than a message. */
static void little_bounce_memory(int rank)
{
	copy_param("HMEM_BOUNCE", "16384");
	messages(rank, BOTH, 0);
}

/* Messages of many sizes at a time, of which the receives come early or late. */
static void many(int rank, int late)
{
	enum { N = 64 };
	struct ct c;
	struct mem m[N];

	open_hmem(&c, FI_TAGGED);
	for (int i = 0; i < N; i++)
		m[i] = new_mem(1 + (size_t)i * i * 37, i % 3);
	for (int round = 0; round < 3; round++) {
		if (rank == 1 && late)
			ct_idle(&c, 50);
		for (int i = 0; i < N; i++) {
			if (rank == 0) {
				fill(&m[i], m[i].n, i + round);
				POST(&c, fi_tsend(c.ep, m[i].at, m[i].n, NULL, c.peer, i, CTX(i)));
			} else {
				/* from the last one to the first, so that nearly all are unexpected */
				int k = late ? N - 1 - i : i;

				POST(&c, fi_trecv(c.ep, m[k].at, m[k].n, NULL, c.peer, k, 0, CTX(k)));
			}
		}
		for (int i = 0; i < N; i++) {
			struct fi_cq_tagged_entry e;

			ct_next(&c, rank ? c.rx : c.tx, &e, NULL, NULL);
			if (rank)
				EQ(e.len, m[e.tag].n);
		}
		for (int i = 0; i < N && rank; i++)
			CHECK(same(&m[i], m[i].n, i + round));
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void many_messages(int rank) { many(rank, 0); }
static void many_unexpected(int rank) { many(rank, 1); }

/* fi_msg(3), FI_MULTI_RECV: a buffer of the device takes several messages. */
static void multi_recv(int rank)
{
	enum { N = 16, LEN = 20000, EMPTY = 5 };
	struct ct c;
	struct mem m;

	/* An empty message follows message EMPTY. */
	open_hmem(&c, FI_MSG | FI_MULTI_RECV);
	m = new_mem(N * LEN, 1);
	if (rank == 1) {
		struct iovec v = { m.at, m.n };
		struct fi_msg msg = { .msg_iov = &v, .iov_count = 1, .addr = c.peer, .context = CTX(0) };
		size_t min = LEN;

		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
		POST(&c, fi_recvmsg(c.ep, &msg, FI_MULTI_RECV));
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			struct fi_cq_tagged_entry e;

			ct_next(&c, c.rx, &e, NULL, NULL);
			EQ((char *)e.buf - m.at, i * LEN);
			EQ(e.len, LEN);
			if (i == EMPTY) {
				ct_next(&c, c.rx, &e, NULL, NULL);
				EQ((char *)e.buf - m.at, (i + 1) * LEN);
				EQ(e.len, 0);
			}
		}
		pull(&m);
		for (int i = 0; i < N; i++)
			CHECK(ct_same(m.host + i * LEN, LEN, i));
	} else {
		ct_barrier(&c);
		for (int i = 0; i < N; i++) {
			ct_fill(m.host + i * LEN, LEN, i);
			push(&m);
			POST(&c, fi_send(c.ep, m.at + i * LEN, LEN, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
			if (i == EMPTY) {
				POST(&c, fi_send(c.ep, m.at, 0, NULL, c.peer, CTX(0)));
				ct_sent(&c, CTX(0));
			}
		}
	}
	ct_done(&c);
}

/* fi_msg(3): several segments, of which some are the device's and some the host's. */
static void mixed_segments(int rank)
{
	struct ct c;
	struct mem m[4];
	struct iovec v[4];

	open_hmem(&c, FI_MSG);
	for (int i = 0; i < 4; i++) {
		m[i] = new_mem(1000 + i * 70000, (i + rank) % 2);
		v[i] = (struct iovec){ m[i].at, m[i].n };
		if (rank == 0)
			fill(&m[i], m[i].n, i);
	}
	if (rank == 0) {
		POST(&c, fi_sendv(c.ep, v, NULL, 4, c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
	} else {
		POST(&c, fi_recvv(c.ep, v, NULL, 4, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 4 * 1000 + 6 * 70000);
		for (int i = 0; i < 4; i++)
			CHECK(same(&m[i], m[i].n, i));
	}
	ct_done(&c);
}

/* fi_msg(3): "fi_inject ... the data buffer is immediately available for reuse." */
static void inject(int rank)
{
	struct ct c;
	struct mem m;
	size_t n;

	open_hmem(&c, FI_MSG);
	n = c.info->tx_attr->inject_size;
	m = new_mem(n + 1, 1);
	for (int i = 0; i < 20; i++) {
		if (rank == 0) {
			fill(&m, n, i);
			POST(&c, fi_inject(c.ep, m.at, n, c.peer));
			fill(&m, n, 99);
		} else {
			POST(&c, fi_recv(c.ep, m.at, n, NULL, c.peer, CTX(0)));
			ct_recvd(&c, CTX(0), n);
			CHECK(same(&m, n, i));
		}
	}
	ct_done(&c);
}

struct region { uint64_t key, addr; };
static struct fid_mr *mr;
static struct region share(struct ct *c, struct mem *m, uint64_t access)
{
	struct iovec v = { m->at, m->n };
	struct fi_mr_attr a = { .mr_iov = &v, .iov_count = 1, .access = access, .requested_key = 77 };
	struct region mine, theirs;

	if (m->at != m->host)
		a.iface = acc->iface;
	OK(fi_mr_regattr(c->domain, &a, 0, &mr));
	mine.key = fi_mr_key(mr);
	mine.addr = c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)m->at : 0;
	ct_swap(c, &mine, &theirs, sizeof mine);
	return theirs;
}
#define REMOTE (FI_REMOTE_READ | FI_REMOTE_WRITE)

/* Rank 0 writes to memory of rank 1 and reads it back. */
static void accesses(int rank, int who)
{
	struct ct c;
	struct mem m, back;
	struct region r;

	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(MAX, on_device(who, rank == 0));
	back = new_mem(MAX, on_device(who, rank == 0));
	r = share(&c, &m, REMOTE);
	for (size_t i = 0; i < SIZES; i++) {
		size_t n = sizes[i], at = MAX - n > 13 ? 13 : 0;

		if (rank == 0) {
			fill(&m, n, i);
			POST(&c, fi_write(c.ep, m.at, n, NULL, c.peer, r.addr + at, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			POST(&c, fi_read(c.ep, back.at, n, NULL, c.peer, r.addr + at, r.key, CTX(1)));
			ct_sent(&c, CTX(1));
			CHECK(same(&back, n, i));
		}
		ct_barrier(&c);
		if (rank == 1) {
			pull(&m);
			CHECK(ct_same(m.host + at, n, i));
		}
		ct_barrier(&c);
	}
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
static void accesses_both(int rank) { accesses(rank, BOTH); }
static void accesses_initiator(int rank) { accesses(rank, SENDER); }
static void accesses_target(int rank) { accesses(rank, RECEIVER); }
static void slow_accesses(int rank)
{
	stub("DELAY_US", "2000");
	accesses(rank, BOTH);
}

/* fi_rma(3): the data of a write is reported after the bytes are in place. */
static void write_data(int rank)
{
	struct ct c;
	struct mem m;
	struct region r;

	stub("DELAY_US", "5000");
	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(1 << 20, 1);
	r = share(&c, &m, REMOTE);
	for (int i = 0; i < 10; i++) {
		if (rank == 0) {
			fill(&m, m.n, i);
			POST(&c, fi_writedata(c.ep, m.at, m.n, NULL, i, c.peer, r.addr, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			struct fi_cq_data_entry e = { 0 };
			struct fi_cq_tagged_entry t = { 0 };

			ct_next(&c, c.rx, &t, NULL, NULL);
			memcpy(&e, &t, sizeof e);
			CHECK(e.flags & FI_REMOTE_CQ_DATA);
			EQ(e.data, i);
			CHECK(same(&m, m.n, i));
		}
		ct_barrier(&c);
	}
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* fi_cq(3), -FI_ETRUNC: the first bytes of a message that is too long are received. */
static void truncated(int rank)
{
	struct ct c;
	struct mem m;

	open_hmem(&c, FI_MSG);
	m = new_mem(1 << 20, 1);
	for (int i = 0; i < 4; i++) {
		size_t n = i % 2 ? 1 << 20 : 100, less = n / 3;

		if (rank == 0) {
			fill(&m, n, i);
			POST(&c, fi_send(c.ep, m.at, n, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry err;

			EQ(acc_fill(acc, m.at, 0x33, m.n), 0);
			POST(&c, fi_recv(c.ep, m.at, less, NULL, c.peer, CTX(0)));
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			EQ(err.err, FI_ETRUNC);
			EQ(err.olen, n - less);
			CHECK(same(&m, less, i));
			for (size_t k = less; k < m.n; k++)
				EQ(m.host[k], 0x33);
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* A program that sleeps is woken, although no descriptor tells of the end of a copy. */
static void blocking(int rank)
{
	struct ct_opt o = { .caps = FI_TAGGED | FI_HMEM, .wait = FI_WAIT_UNSPEC };
	struct ct c;
	struct mem m;

	stub("DELAY_US", "20000");
	load_runtime();
	ct_open(&c, &o);
	m = new_mem(600000, 1);
	for (int i = 0; i < 10; i++) {
		struct fi_cq_tagged_entry e;

		if (rank == i % 2) {
			fill(&m, m.n, i);
			POST(&c, fi_tsend(c.ep, m.at, m.n, NULL, c.peer, i, CTX(0)));
			EQ(fi_cq_sread(c.tx, &e, 1, NULL, -1), 1);
		} else {
			POST(&c, fi_trecv(c.ep, m.at, m.n, NULL, c.peer, i, 0, CTX(0)));
			EQ(fi_cq_sread(c.rx, &e, 1, NULL, -1), 1);
			CHECK(same(&m, m.n, i));
		}
	}
	ct_done(&c);
}

/* The next completion of a queue: 0, or the error. */
static int outcome(struct ct *c, struct fid_cq *q)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;

	return ct_next(c, q, &e, NULL, &err) == 1 ? 0 : err.err;
}
/* Messages of the memory of the host go on. */
static void host_goes_on(struct ct *c, int rank, struct mem *host)
{
	if (rank == 0) {
		fill(host, 1000, 50);
		POST(c, fi_tsend(c->ep, host->at, 1000, NULL, c->peer, 100, CTX(1)));
		EQ(outcome(c, c->tx), 0);
	} else {
		POST(c, fi_trecv(c->ep, host->at, 1000, NULL, c->peer, 100, 0, CTX(1)));
		EQ(outcome(c, c->rx), 0);
		CHECK(same(host, 1000, 50));
	}
}
/* A transfer of which a copy fails, at the sender or the receiver, and others behind it. */
static void failing(int rank, int who, size_t n, int expected)
{
	struct ct c;
	struct mem m, host;
	int fails = rank == (who == SENDER ? 0 : 1);

	if (fails)
		stub("FAIL", "3");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(n, fails);
	host = new_mem(1000, 0);
	for (int i = 0; i < 6; i++) {
		if (rank == 0)
			fill(&m, n, i);
		else
			POST(&c, fi_trecv(c.ep, m.at, n, NULL, c.peer, i, 0, CTX(0)));
		/* a message of a failed copy is not sent, so its receive stays posted */
		if (rank == 0)
			POST(&c, fi_tsend(c.ep, m.at, n, NULL, c.peer, i, CTX(0)));
		if (rank == 0 || !(who == SENDER && i == 2)) {
			int error = outcome(&c, rank ? c.rx : c.tx);

			EQ(error, fails && i == 2 ? expected : 0);
			if (rank == 1 && !error)
				CHECK(same(&m, n, i));
		}
		ct_barrier(&c);
	}
	host_goes_on(&c, rank, &host);
	ct_done(&c);
}
static void failing_send(int rank) { failing(rank, SENDER, 1000, FI_EIO); }
static void failing_receive(int rank) { failing(rank, RECEIVER, 1000, FI_EIO); }
static void failing_call(int rank)
{
	stub("FAIL_AT_CALL", "1");
	failing(rank, RECEIVER, 1000, FI_EFAULT);
}

/* The first copy of a large message fails: its sender gets the error, and later messages go on. */
static void failing_start(int rank)
{
	struct ct c;
	struct mem m, host;

	if (rank == 0)
		stub("FAIL", "1");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(2 << 20, rank == 0);
	host = new_mem(1000, 0);
	if (rank == 0) {
		fill(&m, m.n, 1);
		POST(&c, fi_tsend(c.ep, m.at, m.n, NULL, c.peer, 1, CTX(0)));
		EQ(outcome(&c, c.tx), FI_EIO);
		fill(&host, 1000, 50);
		POST(&c, fi_tsend(c.ep, host.at, 1000, NULL, c.peer, 100, CTX(1)));
		EQ(outcome(&c, c.tx), 0);
	} else {
		int error;

		POST(&c, fi_trecv(c.ep, m.at, m.n, NULL, c.peer, 1, 0, CTX(0)));
		POST(&c, fi_trecv(c.ep, host.at, 1000, NULL, c.peer, 100, 0, CTX(1)));
		/* the receive of the failed message stays posted, or fails */
		error = outcome(&c, c.rx);
		if (error)
			EQ(outcome(&c, c.rx), 0);
		CHECK(same(&host, 1000, 50));
	}
	ct_done(&c);
}

/* A later copy of a large message fails: the message does at both ends, and later ones go on. */
static void failing_middle(int rank, int who)
{
	struct ct c;
	struct mem m, host;
	int fails = rank == (who == SENDER ? 0 : 1), error;

	/* the first bytes are on their way before so many copies are made ahead */
	if (fails)
		stub("FAIL", "7");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(2 << 20, fails);
	host = new_mem(1000, 0);
	if (rank == 0) {
		fill(&m, m.n, 1);
		POST(&c, fi_tsend(c.ep, m.at, m.n, NULL, c.peer, 1, CTX(0)));
	} else {
		POST(&c, fi_trecv(c.ep, m.at, m.n, NULL, c.peer, 1, 0, CTX(0)));
	}
	error = outcome(&c, rank ? c.rx : c.tx);
	/* the sender may not know of a failure at the receiver */
	CHECK(error || (rank == 0 && who == RECEIVER));
	if (rank == 1 && fails)
		EQ(error, FI_EIO);
	ct_barrier(&c);
	if (ct_type == FI_EP_MSG && who == SENDER) {
		ct_close(&c);
		return;
	}
	host_goes_on(&c, rank, &host);
	ct_done(&c);
}
static void failing_middle_send(int rank) { failing_middle(rank, SENDER); }
static void failing_middle_receive(int rank) { failing_middle(rank, RECEIVER); }

/* A copy that is never complete: its transfer fails after FI_*_HMEM_TIMEOUT, others go on. */
static void hanging(int rank)
{
	struct ct c;
	struct mem m, host;

	copy_param("HMEM_TIMEOUT", "300");
	if (rank == 1)
		stub("HANG", "2");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(5000, rank == 1);
	host = new_mem(5000, 0);
	for (int i = 0; i < 3; i++) {
		struct mem *b = i == 2 ? &host : &m;

		if (rank == 0) {
			fill(b, b->n, i);
			POST(&c, fi_tsend(c.ep, b->at, b->n, NULL, c.peer, i, CTX(0)));
			EQ(outcome(&c, c.tx), 0);
		} else {
			POST(&c, fi_trecv(c.ep, b->at, b->n, NULL, c.peer, i, 0, CTX(0)));
			EQ(outcome(&c, c.rx), i == 1 ? FI_ETIMEDOUT : 0);
			if (i != 1)
				CHECK(same(b, b->n, i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* The context is lost: transfers with memory of the device fail, with that of the host they do not. */
static void lost_context(int rank)
{
	struct ct c;
	struct mem m, host;

	if (rank == 1)
		stub("LOSE", "2");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(5000, rank == 1);
	host = new_mem(5000, 0);
	for (int i = 0; i < 4; i++) {
		if (rank == 0) {
			fill(&m, m.n, i);
			POST(&c, fi_tsend(c.ep, m.at, m.n, NULL, c.peer, i, CTX(0)));
			EQ(outcome(&c, c.tx), 0);
			fill(&host, host.n, i);
			POST(&c, fi_tsend(c.ep, host.at, host.n, NULL, c.peer, 100 + i, CTX(0)));
			EQ(outcome(&c, c.tx), 0);
		} else {
			int error;

			/* after the loss the library of the device does not know the address any more */
			POST(&c, fi_trecv(c.ep, m.at, m.n, NULL, c.peer, i, 0, CTX(0)));
			error = outcome(&c, c.rx);
			if (i == 0 ? error : error != FI_EIO && error != FI_EFAULT)
				FAIL("receive %d has the error %d", i, error);
			POST(&c, fi_trecv(c.ep, host.at, host.n, NULL, c.peer, 100 + i, 0, CTX(0)));
			EQ(outcome(&c, c.rx), 0);
			CHECK(ct_same(host.host, host.n, i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* Memory freed while it is registered: the peer's access fails, and nothing else does. */
static void freed(int rank)
{
	struct ct c;
	struct mem m;
	struct region r;

	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(100000, rank == 1);
	r = share(&c, &m, REMOTE);
	if (rank == 1)
		EQ(acc->release(m.at), 0);
	ct_barrier(&c);
	if (rank == 0) {
		int error;

		POST(&c, fi_read(c.ep, m.at, m.n, NULL, c.peer, r.addr, r.key, CTX(0)));
		error = outcome(&c, c.tx);
		CHECK(error == FI_EFAULT || error == FI_EIO);
		POST(&c, fi_write(c.ep, m.at, m.n, NULL, c.peer, r.addr, r.key, CTX(0)));
		error = outcome(&c, c.tx);
		CHECK(error == FI_EFAULT || error == FI_EIO);
		POST(&c, fi_send(c.ep, m.at, 1000, NULL, c.peer, CTX(0)));
		EQ(outcome(&c, c.tx), 0);
	} else {
		struct mem host = new_mem(1000, 0);

		POST(&c, fi_recv(c.ep, host.at, 1000, NULL, c.peer, CTX(0)));
		EQ(outcome(&c, c.rx), 0);
	}
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* A region is closed while a peer reads it. */
static void closed_region(int rank)
{
	struct ct c;
	struct mem m;
	struct region r;

	stub("DELAY_US", "3000");
	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(4 << 20, 1);
	if (rank == 1)
		fill(&m, m.n, 4);
	r = share(&c, &m, REMOTE);
	if (rank == 0) {
		int error;

		POST(&c, fi_read(c.ep, m.at, m.n, NULL, c.peer, r.addr, r.key, CTX(0)));
		ct_send_oob("r", 1);
		error = outcome(&c, c.tx);
		/* all the bytes of the time before, or an error */
		if (!error)
			CHECK(same(&m, m.n, 4));
	} else {
		char x;

		ct_recv_oob(&c, &x, 1);
		ct_idle(&c, 8);
	}
	if (rank == 1) {
		OK(fi_close(&mr->fid));
		EQ(acc_fill(acc, m.at, 0, m.n), 0);
	}
	ct_barrier(&c);
	if (rank == 0)
		OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* Managed memory, whose kind changes between two look-ups: all transfers have the right bytes. */
static void changing_kind(int rank)
{
	int (*managed)(void **, size_t, unsigned);
	struct ct c;
	struct mem m, received;
	struct region r;
	void *p;

	if (strcmp(kind()->name, "cuda"))
		SKIP_HERE("managed memory is CUDA's");
	open_hmem(&c, FI_MSG | FI_RMA);
	CHECK((managed = (int (*)(void **, size_t, unsigned))dlsym(stand_in(), "cuMemAllocManaged")));
	/* with a context in this thread */
	(void)new_mem(1, 1);
	m = new_mem(300000, 0);
	EQ(managed(&p, m.n, 1), 0);
	m.at = p;
	received = new_mem(m.n, 0);
	EQ(managed(&p, m.n, 1), 0);
	received.at = p;
	r = share(&c, &m, REMOTE);
	for (int i = 0; i < 12; i++) {
		size_t n = i % 2 ? m.n : 3000;

		if (rank == 0) {
			fill(&m, n, i);
			POST(&c, fi_send(c.ep, m.at, n, NULL, c.peer, CTX(0)));
			EQ(outcome(&c, c.tx), 0);
			fill(&m, n, 50 + i);
			POST(&c, fi_write(c.ep, m.at, n, NULL, c.peer, r.addr, r.key, CTX(1)));
			EQ(outcome(&c, c.tx), 0);
			fill(&m, n, 99);
			POST(&c, fi_read(c.ep, m.at, n, NULL, c.peer, r.addr, r.key, CTX(1)));
			EQ(outcome(&c, c.tx), 0);
			CHECK(same(&m, n, 50 + i));
		} else {
			POST(&c, fi_recv(c.ep, received.at, n, NULL, c.peer, CTX(0)));
			EQ(outcome(&c, c.rx), 0);
			CHECK(same(&received, n, i));
		}
		ct_barrier(&c);
	}
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/* No memory is left for bounce buffers: transfers of the device fail or take those there are, and others go on. */
static void no_bounce_memory(int rank)
{
	struct ct c;
	struct mem m, host;
	struct rlimit all, now;

	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, rank == 1);
	host = new_mem(1000, 0);
	/* until processes of one host talk through shared memory, which is mapped as well */
	for (int i = 0; i < 50; i++)
		host_goes_on(&c, rank, &host);
	ct_barrier(&c);
	CHECK(!getrlimit(RLIMIT_AS, &all));
	now = all;
	for (int i = 0; i < 12; i++) {
		size_t n = i % 2 ? m.n : 3000;
		int error;

		/* for the first messages nothing more can be mapped */
		now.rlim_cur = i < 8 ? 4096 : all.rlim_cur;
		if (rank == 1)
			CHECK(!setrlimit(RLIMIT_AS, &now));
		if (rank == 0) {
			fill(&m, n, i);
			POST(&c, fi_tsend(c.ep, m.at, n, NULL, c.peer, i, CTX(0)));
		} else {
			POST(&c, fi_trecv(c.ep, m.at, n, NULL, c.peer, i, 0, CTX(0)));
		}
		error = outcome(&c, rank ? c.rx : c.tx);
		if (rank == 1) {
			CHECK(!setrlimit(RLIMIT_AS, &all));
			if (error ? error != FI_ENOMEM || i >= 8 : !same(&m, n, i))
				FAIL("message %d has the error %d, or wrong bytes", i, error);
		}
		ct_barrier(&c);
		host_goes_on(&c, rank, &host);
		ct_barrier(&c);
	}
	ct_done(&c);
}

/* A thread that has no context of the driver sends and receives memory of the device. */
static struct { struct ct c; struct mem m; int rank, error; } other;
static void *in_thread(void *none)
{
	(void)none;
	for (int i = 0; i < 4 && !other.error; i++) {
		size_t n = i % 2 ? other.m.n : 3000;

		if (other.rank == 0)
			POST(&other.c, fi_tsend(other.c.ep, other.m.at, n, NULL, other.c.peer, i, CTX(0)));
		else
			POST(&other.c, fi_trecv(other.c.ep, other.m.at, n, NULL, other.c.peer, i, 0, CTX(0)));
		other.error = outcome(&other.c, other.rank ? other.c.rx : other.c.tx);
	}
	return NULL;
}
static void without_context(int rank)
{
	pthread_t thread;

	open_hmem(&other.c, FI_TAGGED);
	other.m = new_mem(1 << 20, 1);
	other.rank = rank;
	if (rank == 0)
		fill(&other.m, other.m.n, 6);
	OK(pthread_create(&thread, NULL, in_thread, NULL));
	OK(pthread_join(thread, NULL));
	EQ(other.error, 0);
	if (rank == 1)
		CHECK(same(&other.m, other.m.n, 6));
	ct_done(&other.c);
}

/* fi_mr(3): iface "indicates the software interfaces used by the application to allocate and manage the memory region." */
static void wrong_iface(int rank)
{
	struct ct c;
	struct mem m, host;
	struct fi_mr_attr a = { .iov_count = 1, .access = FI_SEND | FI_RECV | REMOTE };
	struct iovec v;
	struct fid_mr *r;

	(void)rank;
	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(5000, 1);
	host = new_mem(5000, 0);
	a.mr_iov = &v;
	v = (struct iovec){ host.at, host.n };
	a.iface = acc->iface;
	ERR(fi_mr_regattr(c.domain, &a, 0, &r), FI_EINVAL);
	v = (struct iovec){ m.at, m.n };
	a.iface = acc->iface == FI_HMEM_ROCR ? FI_HMEM_CUDA : FI_HMEM_ROCR;
	ERR(fi_mr_regattr(c.domain, &a, 0, &r), FI_EINVAL);
	a.iface = acc->iface;
	OK(fi_mr_regattr(c.domain, &a, 0, &r));
	OK(fi_close(&r->fid));
	/* without an interface the provider finds it */
	OK(fi_mr_reg(c.domain, m.at, m.n, REMOTE, 0, 5, 0, &r, NULL));
	OK(fi_close(&r->fid));
	ct_done(&c);
}

/* A file for FI_MR_DMABUF, seen by this process as well: memory that cannot shrink, or a dma-buf of it where the system
 * has udmabuf. */
struct file {
	int fd;
	char *bytes;
	size_t n;
};
#define DMABUF_NAME "ct-dmabuf"
static struct file new_file(size_t n, int seals, int udmabuf)
{
	struct { uint32_t memfd, flags; uint64_t offset, size; } create = { .size = n };
	struct file f = { .fd = memfd_create(DMABUF_NAME, MFD_ALLOW_SEALING), .n = n };

	CHECK(f.fd >= 0 && !ftruncate(f.fd, n));
	f.bytes = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
	CHECK(f.bytes != MAP_FAILED);
	if (seals)
		EQ(fcntl(f.fd, F_ADD_SEALS, seals), 0);
	if (udmabuf >= 0) {
		int fd;

		create.memfd = f.fd;
		/* UDMABUF_CREATE of linux/udmabuf.h */
		CHECK((fd = ioctl(udmabuf, _IOC(_IOC_WRITE, 'u', 0x42, sizeof create), &create)) >= 0);
		close(f.fd);
		f.fd = fd;
	}
	return f;
}
static void close_file(struct file *f)
{
	munmap(f->bytes, f->n);
	close(f->fd);
}
/* Mappings of such files in this process. */
static int file_mappings(void) { return ct_mappings("/memfd:" DMABUF_NAME) + ct_mappings("/dmabuf:"); }
static int register_file(struct ct *c, struct fi_mr_dmabuf d, uint64_t access, struct fid_mr **r)
{
	struct fi_mr_attr a = { .dmabuf = &d, .iov_count = 1, .access = access, .requested_key = 77 };

	return fi_mr_regattr(c->domain, &a, FI_MR_DMABUF, r);
}
/* Both ends name the bytes by an address that the processor cannot use, or with none. */
static void file_transfers(struct ct *c, int rank, int udmabuf)
{
	enum { AT = 5000, LEN = 3 << 20, ALL = (2 * LEN + AT + 4095) & ~4095 };
	static const size_t lens[] = { 1, 100, 5000, 70000, LEN };
	struct file f = new_file(ALL, F_SEAL_SHRINK, udmabuf);
	char *base = mmap(NULL, ALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int virt = !!(c->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR), before = file_mappings();
	struct region mine, theirs;
	struct fid_mr *r;

	CHECK(base != MAP_FAILED);
	for (int named = 1; named >= 0; named--) {
		struct fi_mr_dmabuf d = { .fd = f.fd, .offset = AT, .len = 2 * LEN, .base_addr = named ? base : NULL };

		OK(register_file(c, d, FI_SEND | FI_RECV | FI_READ | FI_WRITE | REMOTE, &r));
		mine.key = fi_mr_key(r);
		mine.addr = virt ? (uintptr_t)d.base_addr + AT : 0;
		ct_swap(c, &mine, &theirs, sizeof mine);
		for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
			size_t n = lens[i];
			char *host = calloc(1, n), *from = named ? base + AT : host;

			if (rank == 0) {
				ct_fill(f.bytes + AT, n, i);
				ct_fill(host, n, i);
				if (named) {
					POST(c, fi_send(c->ep, from, n, fi_mr_desc(r), c->peer, CTX(0)));
					ct_sent(c, CTX(0));
				}
				POST(c, fi_write(c->ep, from, n, named ? fi_mr_desc(r) : NULL, c->peer, theirs.addr + LEN, theirs.key, CTX(1)));
				ct_sent(c, CTX(1));
				POST(c, fi_read(c->ep, named ? base + AT + LEN : host, n, named ? fi_mr_desc(r) : NULL, c->peer, theirs.addr + LEN, theirs.key, CTX(2)));
				ct_sent(c, CTX(2));
				CHECK(ct_same(named ? f.bytes + AT + LEN : host, n, i));
			} else if (named) {
				POST(c, fi_recv(c->ep, from, n, fi_mr_desc(r), c->peer, CTX(0)));
				ct_recvd(c, CTX(0), n);
				CHECK(ct_same(f.bytes + AT, n, i));
			}
			ct_barrier(c);
			if (rank == 1)
				CHECK(ct_same(f.bytes + AT + LEN, n, i));
			/* beyond the region */
			if (rank == 0) {
				POST(c, fi_read(c->ep, host, n, NULL, c->peer, theirs.addr + 2 * LEN, theirs.key, CTX(3)));
				CHECK(outcome(c, c->tx));
			}
			ct_barrier(c);
			free(host);
		}
		OK(fi_close(&r->fid));
		EQ(file_mappings(), before);
	}
	munmap(base, ALL);
	close_file(&f);
}
static void dmabuf(int rank)
{
	struct ct c;

	open_hmem(&c, FI_MSG | FI_RMA);
	file_transfers(&c, rank, -1);
	ct_done(&c);
}
static void udmabuf(int rank)
{
	int fd = open("/dev/udmabuf", O_RDWR);
	struct ct c;

	if (fd < 0)
		SKIP_HERE("no /dev/udmabuf");
	open_hmem(&c, FI_MSG | FI_RMA);
	file_transfers(&c, rank, fd);
	ct_done(&c);
}
/* fi_mr(3): "This flag is only usable for domains opened with FI_HMEM capability support." */
static void bad_dmabuf(int rank)
{
	struct ct c;
	struct ct_opt o = { .caps = FI_MSG | FI_RMA };
	struct file f = new_file(8192, F_SEAL_SHRINK, -1), loose = new_file(8192, 0, -1), readable = new_file(8192, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE, -1);
	struct fi_mr_dmabuf good = { .fd = f.fd, .len = 8192 }, d;
	int huge = memfd_create(DMABUF_NAME, MFD_ALLOW_SEALING | MFD_HUGETLB), before = file_mappings();
	struct fid_mr *r;

	(void)rank;
	open_hmem(&c, FI_MSG | FI_RMA);
	OK(register_file(&c, good, REMOTE, &r));
	/* one, or more below ofi_rxm and lnx */
	CHECK(file_mappings() > before);
	OK(fi_close(&r->fid));
	for (int i = 0; i < 4; i++) {
		d = good;
		d.offset = (uint64_t[]){ 1, 8192, UINT64_MAX, 1ull << 63 }[i];
		ERR(register_file(&c, d, REMOTE, &r), FI_EINVAL);
	}
	d = good;
	d.len = 0;
	ERR(register_file(&c, d, REMOTE, &r), FI_EINVAL);
	d = good;
	d.len = SIZE_MAX;
	ERR(register_file(&c, d, REMOTE, &r), FI_EINVAL);
	d = good;
	d.fd = -1;
	ERR(register_file(&c, d, REMOTE, &r), EBADF);
	/* a file that can shrink under the mapping */
	d.fd = loose.fd;
	ERR(register_file(&c, d, REMOTE, &r), FI_EINVAL);
	/* a file that can be read alone */
	d.fd = readable.fd;
	ERR(register_file(&c, d, REMOTE, &r), FI_EACCES);
	OK(register_file(&c, d, FI_REMOTE_READ, &r));
	OK(fi_close(&r->fid));
	/* an exporter that permits no mapping of this part */
	if (huge >= 0) {
		CHECK(!ftruncate(huge, 4 << 20) && !fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK));
		d = (struct fi_mr_dmabuf){ .fd = huge, .offset = 4096, .len = 4096 };
		ERR(register_file(&c, d, REMOTE, &r), FI_EOPNOTSUPP);
		close(huge);
	}
	EQ(file_mappings(), before);
	ct_done(&c);
	ct_open(&c, &o);
	ERR(register_file(&c, good, REMOTE, &r), FI_EBADFLAGS);
	ct_done(&c);
	close_file(&f);
	close_file(&loose);
	close_file(&readable);
}
/* The file of memory of a device is not mapped: the device copies the memory at its address. */
static void dmabuf_of_device(int rank)
{
	struct ct c;
	struct mem m;
	struct file f = new_file(8192, F_SEAL_SHRINK, -1);
	struct fi_mr_dmabuf d = { .fd = f.fd, .offset = 1000, .len = 5000 };
	struct region mine, theirs;
	struct fid_mr *r;
	int before = file_mappings();

	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(8192, 1);
	d.base_addr = m.at;
	OK(register_file(&c, d, REMOTE, &r));
	EQ(file_mappings(), before);
	mine.key = fi_mr_key(r);
	mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)m.at + 1000 : 0;
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		fill(&m, m.n, 3);
		POST(&c, fi_write(c.ep, m.at, 5000, NULL, c.peer, theirs.addr, theirs.key, CTX(1)));
		ct_sent(&c, CTX(1));
	}
	ct_barrier(&c);
	if (rank == 1) {
		pull(&m);
		CHECK(ct_same(m.host + 1000, 5000, 3));
	}
	ct_barrier(&c);
	OK(fi_close(&r->fid));
	ct_done(&c);
	close_file(&f);
}

/* FI_SOURCE_ERR: the copies of a message end after its sender, which is in no address vector. */
static void unknown_peer_gone(int rank)
{
	struct ct c;
	struct ct_name mine, theirs;
	struct mem m;
	char x = 0;

	stub("DELAY_US", "20000");
	open_hmem(&c, FI_MSG | FI_SOURCE | FI_SOURCE_ERR);
	m = new_mem(5000, 1);
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		struct fi_cq_tagged_entry e = { 0 };
		struct fi_cq_err_entry err = { 0 };

		OK(fi_av_remove(c.av, &c.peer, 1, 0));
		ct_send_oob(&x, 1);
		for (int i = 0; i < 2; i++) {
			if (i) {
				ct_recv_oob(NULL, &x, 1);
				ct_idle(&c, 100);
			}
			POST(&c, fi_recv(c.ep, m.at, m.n, NULL, FI_ADDR_UNSPEC, CTX(i)));
			EQ(ct_next(&c, c.rx, &e, NULL, &err), -FI_EAVAIL);
			CHECK(err.op_context == CTX(i));
			EQ(err.err, FI_EADDRNOTAVAIL);
			EQ(err.err_data_size, theirs.n);
			CHECK(!memcmp(err.err_data, theirs.b, theirs.n));
			CHECK(same(&m, m.n, i));
		}
	} else {
		ct_recv_oob(NULL, &x, 1);
		for (int i = 0; i < 2; i++) {
			fill(&m, m.n, i);
			POST(&c, fi_send(c.ep, m.at, m.n, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		}
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		ct_send_oob(&x, 1);
	}
	ct_done(&c);
}

static int ask(uint64_t caps, struct fi_info **i)
{
	struct ct_opt o = { .caps = caps };
	struct fi_info *h = ct_hints(&o);
	int r = fi_getinfo(CT_VERSION, NULL, NULL, 0, h, i);

	fi_freeinfo(h);
	return r;
}
static int is_mapped(const char *name) { return ct_mappings(name) > 0; }
/* fi_getinfo(3): FI_HMEM is for those that ask for it: no library of a device is loaded for others. */
static void only_on_request(int rank)
{
	struct fi_info *i;

	(void)rank;
	OK(ask(FI_MSG, &i));
	CHECK(!(i->caps & FI_HMEM));
	fi_freeinfo(i);
	CHECK(!is_mapped(kind()->library));
	if (ask(FI_MSG | FI_HMEM, &i) == -FI_ENODATA) {
		load_runtime();
		SKIP("not offered");
	}
	CHECK(i->caps & FI_HMEM);
	CHECK(!(i->caps & FI_ATOMIC));
	fi_freeinfo(i);
	CHECK(is_mapped(kind()->library));
	/* the processor would have to access the memory */
	ERR(ask(FI_ATOMIC | FI_HMEM, &i), FI_ENODATA);
	ERR(ask(FI_COLLECTIVE | FI_HMEM, &i), FI_ENODATA);
}
/* FI_HMEM=system: no library of a device is loaded, and FI_HMEM is not offered. */
static void excluded(int rank)
{
	struct fi_info *i;

	(void)rank;
	setenv("FI_HMEM", "system", 1);
	ERR(ask(FI_MSG | FI_HMEM, &i), FI_ENODATA);
	CHECK(!is_mapped(kind()->library));
}
/* Libraries without a device. */
static void no_device(int rank)
{
	struct fi_info *i;

	(void)rank;
	kind();
	for (int index = 0; (acc = acc_of(index)); index++)
		stub("DEVICES", "0");
	ERR(ask(FI_MSG | FI_HMEM, &i), FI_ENODATA);
}

/* FI_HMEM=rocr: the library of another interface is not loaded. */
static void named(int rank)
{
	struct fi_info *i;

	(void)rank;
	use_kind(1);
	setenv("FI_HMEM", acc->name, 1);
	if (ask(FI_MSG | FI_HMEM, &i) == -FI_ENODATA) {
		load_runtime();
		SKIP("not offered");
	}
	fi_freeinfo(i);
	CHECK(is_mapped(acc->library));
	use_kind(0);
	CHECK(!is_mapped(acc->library));
}
/* A library without a device, and another one with one. */
static void one_with_device(int rank)
{
	use_kind(0);
	stub("DEVICES", "0");
	use_kind(1);
	messages(rank, BOTH, 1);
}
/* Devices of two kinds: a message has segments of both and of the host at each end. */
static void two_kinds(int rank)
{
	enum { SEGMENTS = 3, LEN = 200000 };
	struct ct c;
	struct mem m[SEGMENTS];
	struct iovec v[SEGMENTS];
	struct fi_msg msg = { .msg_iov = v, .iov_count = SEGMENTS, .context = CTX(0) };

	use_kind(1);
	load_runtime();
	use_kind(0);
	open_hmem(&c, FI_MSG);
	if (c.info->tx_attr->iov_limit < SEGMENTS)
		SKIP("fewer segments");
	msg.addr = c.peer;
	for (int i = 0; i < SEGMENTS; i++) {
		/* the segments of the receiver are of other kinds than those of the sender */
		int of = (i + rank) % SEGMENTS;

		if (of < 2)
			use_kind(of);
		m[i] = new_mem(LEN, of < 2);
		v[i] = (struct iovec){ m[i].at, LEN };
	}
	for (int round = 0; round < 3; round++) {
		if (rank == 0) {
			for (int i = 0; i < SEGMENTS; i++)
				fill(&m[i], LEN, round * SEGMENTS + i);
			POST(&c, fi_sendmsg(c.ep, &msg, 0));
			ct_sent(&c, CTX(0));
		} else {
			POST(&c, fi_recvmsg(c.ep, &msg, 0));
			ct_recvd(&c, CTX(0), SEGMENTS * LEN);
			for (int i = 0; i < SEGMENTS; i++)
				CHECK(same(&m[i], LEN, round * SEGMENTS + i));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
/* Copies without an order, as those of ROCm, end in another one than that of their calls. */
static void reordered(int rank)
{
	for (int i = 0; (acc = acc_of(i)) && !strcmp(acc->name, "cuda");)
		i++;
	if (!acc)
		SKIP_HERE("copies of a CUDA stream have an order");
	stub("REORDER", "1");
	stub("DELAY_US", "500");
	messages(rank, BOTH, 1);
}

/* Atomic operations and collectives are not offered with FI_HMEM: their calls answer -FI_ENOSYS, as without FI_ATOMIC. */
static void no_atomics(int rank)
{
	struct ct c;
	struct mem m, result;
	struct region r;
	struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_UINT64 };
	struct fid_av_set *set;
	struct fi_av_set_attr of = { .count = 1, .start_addr = 0, .end_addr = 0, .stride = 1 };
	struct fid_mc *mc;
	size_t count;

	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(4096, 1);
	result = new_mem(4096, 1);
	r = share(&c, &m, REMOTE);
	if (rank == 0) {
		CHECK(fi_atomicvalid(c.ep, FI_UINT64, FI_SUM, &count) < 0);
		CHECK(fi_query_collective(c.domain, FI_ALLREDUCE, &attr, 0) < 0);
		ERR(fi_atomic(c.ep, m.at, 8, NULL, c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)), FI_ENOSYS);
		ERR(fi_inject_atomic(c.ep, m.at, 1, c.peer, r.addr, r.key, FI_UINT64, FI_SUM), FI_ENOSYS);
		ERR(fi_fetch_atomic(c.ep, m.at, 8, NULL, result.at, NULL, c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0)), FI_ENOSYS);
		ERR(fi_compare_atomic(c.ep, m.at, 8, NULL, m.at, NULL, result.at, NULL, c.peer, r.addr, r.key, FI_UINT64, FI_CSWAP, CTX(0)),
		    FI_ENOSYS);
		if (c.av && !fi_av_set(c.av, &of, &set, NULL)) {
			CHECK(fi_join_collective(c.ep, FI_ADDR_NOTAVAIL, set, 0, &mc, CTX(0)) < 0);
			OK(fi_close(&set->fid));
		}
	}
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
/* An atomic operation of a peer without FI_HMEM on a region of a device is refused. */
static void atomic_of_peer(int rank)
{
	struct ct_opt o = { .caps = FI_MSG | FI_RMA | (rank ? FI_HMEM : FI_ATOMIC) };
	struct ct c;
	struct mem m;
	struct region r;

	load_runtime();
	ct_open(&c, &o);
	m = new_mem(4096, rank == 1);
	if (rank == 1)
		fill(&m, m.n, 3);
	r = share(&c, &m, REMOTE);
	if (rank == 0) {
		int error = (int)-fi_atomic(c.ep, m.at, 8, NULL, c.peer, r.addr, r.key, FI_UINT64, FI_SUM, CTX(0));

		if (!error)
			error = outcome(&c, c.tx);
		CHECK(error == FI_EACCES || error == FI_EOPNOTSUPP);
	}
	/* the peer makes progress meanwhile */
	ct_barrier(&c);
	if (rank == 1)
		CHECK(same(&m, m.n, 3));
	OK(fi_close(&mr->fid));
	ct_close(&c);
}

/*
 * fi_endpoint(3): "If an endpoint's support of CUDA memory relies on making calls to CUDA API, it will return -FI_EOPNOTSUPP
 * for the call to fi_setopt." "fi_setopt() will return -FI_EOPNOTSUPP if the mode requested cannot be supported by the provider."
 */
static void options(int rank)
{
	struct ct c;
	bool permitted = true;
	int p2p = -1;
	size_t n = sizeof p2p;

	(void)rank;
	open_hmem(&c, FI_MSG);
	OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &permitted, sizeof permitted));
	permitted = false;
	ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &permitted, sizeof permitted), FI_EOPNOTSUPP);
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &n));
	EQ(p2p, FI_HMEM_P2P_ENABLED);
	p2p = FI_HMEM_P2P_DISABLED;
	OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &n));
	EQ(p2p, FI_HMEM_P2P_DISABLED);
	p2p = FI_HMEM_P2P_PREFERRED;
	OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	p2p = FI_HMEM_P2P_REQUIRED;
	ERR(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p), FI_EOPNOTSUPP);
	ct_done(&c);
}

/* The calls of an interface by which processes share memory of a device. */
enum { EXPORT, MAP, UNMAP, BETWEEN, TO_HOST };
static long calls(int of)
{
	static const struct { const char *name, *calls[5]; } all[] = {
		{ "cuda", { "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2" } },
		{ "vmm", { "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMemUnmap of another process", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2" } },
		{ "rocr", { "hsa_amd_ipc_memory_create", "hsa_amd_ipc_memory_attach", "hsa_amd_ipc_memory_detach", "copies between devices", "copies to the host" } },
		{ "ze", { "zeMemGetIpcHandle", "zeMemOpenIpcHandle", "zeMemCloseIpcHandle", "copies between devices", "copies to the host" } },
	};
	long (*count)(const char *) = (long (*)(const char *))dlsym(stand_in(), "stub_calls");

	CHECK(count);
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, acc->name))
			return count(all[i].calls[of]);
	return 0;
}
static void needs_sharing(void)
{
	stand_in();
	ct_needs_memory();
}
/* Closes; the receiving process has mapped so many times, and the last mapping ends with the endpoint. */
static void end_mapped(struct ct *c, int rank, long maps)
{
	if (rank == 1) {
		EQ(calls(MAP), maps);
		EQ(calls(UNMAP), maps - 1);
	}
	ct_done(c);
	if (rank == 1)
		EQ(calls(UNMAP), maps);
}

enum { SHARED = 300000 };
/* Tagged messages from one allocation to another. */
static void stream_of(struct ct *c, int rank, struct mem *m, int n, unsigned seed)
{
	for (int i = 0; i < n; i++) {
		if (rank == 0) {
			fill(m, SHARED, seed + i);
			POST(c, fi_tsend(c->ep, m->at, SHARED, NULL, c->peer, i, CTX(0)));
			ct_sent(c, CTX(0));
		} else {
			POST(c, fi_trecv(c->ep, m->at, SHARED, NULL, c->peer, i, 0, CTX(0)));
			ct_recvd(c, CTX(0), SHARED);
			CHECK(same(m, SHARED, seed + i));
		}
		ct_barrier(c);
	}
}
/* The device of a peer on this host reads the memory: it is mapped once for many messages, and not copied by this process. */
static void shared_messages(int rank)
{
	struct ct c;
	struct mem m;
	long before, copies;

	needs_sharing();
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	stream_of(&c, rank, &m, 10, 0);
	before = calls(BETWEEN);
	copies = calls(TO_HOST);
	stream_of(&c, rank, &m, 10, 100);
	if (rank == 1) {
		EQ(calls(MAP), 1);
		/* an unexpected message goes to memory of the host first */
		CHECK(calls(BETWEEN) > before);
	} else {
		EQ(calls(EXPORT), 1);
		EQ(calls(TO_HOST), copies);
	}
	ct_done(&c);
}
/* One end has the memory of a host. */
static void shared_with_host(int rank, int who)
{
	struct ct c;
	struct mem m;

	needs_sharing();
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, on_device(who, rank == 0));
	stream_of(&c, rank, &m, 12, 0);
	if (rank == 1)
		EQ(calls(MAP), who == SENDER);
	ct_done(&c);
}
static void shared_to_host(int rank) { shared_with_host(rank, SENDER); }
static void shared_from_host(int rank) { shared_with_host(rank, RECEIVER); }

/* Memory at the address of a freed allocation is another's: its bytes are sent, not those of the freed one. */
static void shared_reused(int rank)
{
	struct ct c;
	struct mem m;

	needs_sharing();
	stub("REUSE", "1");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	for (int round = 0; round < 3; round++) {
		void *p = m.at;

		stream_of(&c, rank, &m, 8, 100 * round);
		OK(acc->release(p));
		OK(acc->allocate(&p, m.n));
		CHECK(p == m.at);
	}
	stream_of(&c, rank, &m, 8, 300);
	end_mapped(&c, rank, 4);
}
/* More allocations than a peer maps: those used last stay mapped. */
static void shared_many(int rank)
{
	enum { ALLOCATIONS = 300, MOST = 256, LEN = 50000 };
	static struct mem m[ALLOCATIONS];
	struct ct c;

	needs_sharing();
	open_hmem(&c, FI_TAGGED);
	for (int i = 0; i < ALLOCATIONS; i++)
		m[i] = new_mem(rank == 0 || i == 0 ? LEN : 1, 1);
	for (int i = 0; i < ALLOCATIONS + 10; i++) {
		struct mem *from = &m[rank ? 0 : i % ALLOCATIONS];

		if (rank == 0) {
			fill(from, LEN, i);
			POST(&c, fi_tsend(c.ep, from->at, LEN, NULL, c.peer, i, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			POST(&c, fi_trecv(c.ep, from->at, LEN, NULL, c.peer, i, 0, CTX(0)));
			ct_recvd(&c, CTX(0), LEN);
			CHECK(same(from, LEN, i));
		}
		ct_barrier(&c);
	}
	if (rank == 1) {
		CHECK(calls(MAP) > MOST);
		CHECK(calls(MAP) - calls(UNMAP) <= MOST);
	}
	ct_done(&c);
	if (rank == 1)
		EQ(calls(MAP), calls(UNMAP));
}
/* A handle may have a descriptor: it is closed when the peer has mapped the memory, and the peer's copy as well. */
static void shared_descriptors(int rank)
{
	enum { ALLOCATIONS = 10 };
	struct ct c;
	struct mem m = { 0 };
	int before = 0;

	needs_sharing();
	open_hmem(&c, FI_TAGGED);
	for (int i = 0; i < ALLOCATIONS; i++) {
		m = new_mem(1 << 20, 1);
		stream_of(&c, rank, &m, 4, 10 * i);
		if (i == 1)
			before = ct_descriptors();
	}
	if (rank == 1)
		CHECK(calls(MAP) >= ALLOCATIONS - 1);
	/* that of the last allocation is perhaps in use, or not closed yet */
	for (int64_t end = ct_ms() + 30000; ct_descriptors() > before + (rank == 0) && ct_ms() < end; ct_nap(1))
		ct_progress(&c);
	if (ct_descriptors() > before + (rank == 0))
		FAIL("%d descriptors, %d before", ct_descriptors(), before);
	ct_done(&c);
}
/* Memory without a handle, or with one that cannot be opened, is copied. */
static void unshared(int rank, const char *how)
{
	struct ct c;
	struct mem m;

	needs_sharing();
	stub("NO_IPC", how);
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	stream_of(&c, rank, &m, 10, 0);
	EQ(calls(BETWEEN), 0);
	if (rank == 0)
		EQ(calls(EXPORT), 1);
	else
		EQ(calls(MAP), strcmp(how, "open") == 0);
	ct_done(&c);
}
static void no_handle(int rank) { unshared(rank, "1"); }
static void no_open(int rank) { unshared(rank, "open"); }

/* fabric(7), FI_HMEM_DISABLE_P2P; fi_endpoint(3): FI_HMEM_P2P_DISABLED: "Peer to peer support should not be used." */
static void p2p_disabled(int rank, int by_option)
{
	struct ct c;
	struct mem m;
	int p2p = FI_HMEM_P2P_DISABLED;

	needs_sharing();
	if (!by_option)
		setenv("FI_HMEM_DISABLE_P2P", "1", 1);
	open_hmem(&c, FI_TAGGED);
	if (by_option && rank == 0)
		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof p2p));
	m = new_mem(1 << 20, 1);
	stream_of(&c, rank, &m, 10, 0);
	EQ(calls(EXPORT), 0);
	EQ(calls(MAP), 0);
	ct_done(&c);
}
static void p2p_disabled_by_user(int rank) { p2p_disabled(rank, 0); }
static void p2p_disabled_by_option(int rank) { p2p_disabled(rank, 1); }

/* Reads and writes of a peer's region by a device of this host. */
static void shared_accesses(int rank)
{
	struct ct c;
	struct mem m, back;
	struct region r;

	needs_sharing();
	open_hmem(&c, FI_MSG | FI_RMA);
	m = new_mem(1 << 20, 1);
	back = new_mem(1 << 20, 1);
	r = share(&c, &m, REMOTE);
	for (int i = 0; i < 12; i++) {
		if (rank == 0) {
			fill(&m, SHARED, i);
			POST(&c, fi_write(c.ep, m.at, SHARED, NULL, c.peer, r.addr + 13, r.key, CTX(0)));
			ct_sent(&c, CTX(0));
			POST(&c, fi_read(c.ep, back.at, SHARED, NULL, c.peer, r.addr + 13, r.key, CTX(1)));
			ct_sent(&c, CTX(1));
			CHECK(same(&back, SHARED, i));
		}
		ct_barrier(&c);
	}
	/* each end maps the memory that the other one sends from */
	EQ(calls(MAP), 1);
	CHECK(calls(BETWEEN) > 0);
	ct_barrier(&c);
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
/* A send whose bytes the peer could not copy: ofi_rxm reads them, and reports it at both ends. */
static void sent_or(struct ct *c, int expected)
{
	int error = outcome(c, c->tx);

	if (error && !(ct_is_rxm() && error == expected))
		FAIL("the send has the error %d", error);
}
/* A copy of the peer's memory fails: that message does, and others go on.  If `late`, it is there before its receive. */
static void failing_shared(int rank, int late)
{
	struct ct c;
	struct mem m, host;

	needs_sharing();
	if (rank == 1)
		stub("FAIL", "40");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	host = new_mem(1000, 0);
	for (int i = 0, failed = 0; i < 60; i++) {
		if (rank == 0) {
			POST(&c, fi_tsend(c.ep, m.at, SHARED, NULL, c.peer, i, CTX(0)));
			if (late)
				ct_send_oob("s", 1);
			sent_or(&c, FI_EIO);
		} else {
			int error;
			char sent;

			if (late) {
				ct_recv_oob(&c, &sent, 1);
				ct_idle(&c, 3);
			}
			POST(&c, fi_trecv(c.ep, m.at, SHARED, NULL, c.peer, i, 0, CTX(0)));
			error = outcome(&c, c.rx);
			if (error && (error != FI_EIO || failed))
				FAIL("message %d has the error %d after %d", i, error, failed);
			failed |= error;
			CHECK(failed || i < 50);
		}
	}
	host_goes_on(&c, rank, &host);
	ct_done(&c);
}
static void failing_expected(int rank) { failing_shared(rank, 0); }
static void failing_unexpected(int rank) { failing_shared(rank, 1); }
/* A copy of the peer's memory that never ends. */
static void hanging_shared(int rank)
{
	struct ct c;
	struct mem m, host;

	needs_sharing();
	copy_param("HMEM_TIMEOUT", "300");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	host = new_mem(1000, 0);
	stream_of(&c, rank, &m, 8, 0);
	if (rank == 1) {
		void (*hang)(long) = (void (*)(long))dlsym(stand_in(), "stub_hang");

		CHECK(hang);
		hang(1);
	}
	if (rank == 0) {
		POST(&c, fi_tsend(c.ep, m.at, SHARED, NULL, c.peer, 9, CTX(0)));
		sent_or(&c, FI_ETIMEDOUT);
	} else {
		POST(&c, fi_trecv(c.ep, m.at, SHARED, NULL, c.peer, 9, 0, CTX(0)));
		EQ(outcome(&c, c.rx), FI_ETIMEDOUT);
	}
	host_goes_on(&c, rank, &host);
	ct_done(&c);
}
/* The peer ends while its memory is copied: the receive fails or has all bytes, and the memory is unmapped. */
static void shared_peer_gone(int rank)
{
	struct ct c;
	struct mem m;

	needs_sharing();
	stub("DELAY_US", "1000");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(4 << 20, 1);
	stream_of(&c, rank, &m, 8, 0);
	if (rank == 0) {
		fill(&m, m.n, 5);
		POST(&c, fi_tsend(c.ep, m.at, m.n, NULL, c.peer, 9, CTX(0)));
		ct_send_oob("g", 1);
		exit(0);
	} else {
		char go;
		int error;

		POST(&c, fi_trecv(c.ep, m.at, m.n, NULL, c.peer, 9, 0, CTX(0)));
		ct_recv_oob(&c, &go, 1);
		error = outcome(&c, c.rx);
		if (!error)
			CHECK(same(&m, m.n, 5));
		ct_close(&c);
		EQ(calls(MAP), 1);
		EQ(calls(UNMAP), 1);
	}
}
/* Children of both processes, one of which closes all objects, leave the mappings of their parents and a transfer in
 * progress as they are: a child has no driver. */
static void shared_forked(int rank)
{
	struct ct c;
	struct mem m;

	needs_sharing();
	stub("DELAY_US", "3000");
	open_hmem(&c, FI_TAGGED);
	m = new_mem(1 << 20, 1);
	stream_of(&c, rank, &m, 8, 0);
	for (int closes = 0; closes < 2; closes++) {
		pid_t child;
		int status;

		if (rank == 0) {
			fill(&m, SHARED, 50 + closes);
			POST(&c, fi_tsend(c.ep, m.at, SHARED, NULL, c.peer, 50, CTX(0)));
		} else {
			POST(&c, fi_trecv(c.ep, m.at, SHARED, NULL, c.peer, 50, 0, CTX(0)));
		}
		if ((child = fork()) == 0) {
			alarm(60);
			/* nothing of the harness's is the child's */
			ct_sync = -1;
			if (!closes)
				exit(0);
			ct_close(&c);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		EQ(status, 0);
		EQ(outcome(&c, rank ? c.rx : c.tx), 0);
		if (rank == 1)
			CHECK(same(&m, SHARED, 50 + closes));
		ct_barrier(&c);
		stream_of(&c, rank, &m, 4, 100 + 10 * closes);
	}
	end_mapped(&c, rank, 1);
}
/* In a child the driver answers no call: transfers of memory of the device fail, and others do not. */
static void forked(int rank)
{
	struct ct c = { .o = { .caps = FI_TAGGED | FI_HMEM } };
	struct fi_info *i;
	struct mem m, host;
	pid_t child;
	int status;

	(void)rank;
	stand_in();
	load_runtime();
	if (ask(FI_TAGGED | FI_HMEM, &i))
		SKIP("not offered");
	fi_freeinfo(i);
	m = new_mem(100000, 1);
	host = new_mem(100000, 0);
	if ((child = fork()) == 0) {
		struct ct_name own;

		alarm(60);
		own = ct_open_rdm(&c, NULL);
		c.peer = ct_insert(&c, &own);
		for (int round = 0; round < 2; round++) {
			int error;

			/* ofi_rxm has the receiver of a long message read it */
			for (int k = ct_is_rxm(); k < 2; k++) {
				POST(&c, fi_tsend(c.ep, m.at, k ? 100 : m.n, NULL, c.peer, 5, CTX(0)));
				error = outcome(&c, c.tx);
				if (error != FI_EIO && error != FI_EFAULT)
					FAIL("a send has the error %d", error);
			}
			fill(&host, host.n, round);
			POST(&c, fi_trecv(c.ep, host.at, host.n, NULL, c.peer, 7, 0, CTX(1)));
			POST(&c, fi_tsend(c.ep, host.at, host.n, NULL, c.peer, 7, CTX(2)));
			EQ(outcome(&c, c.rx), 0);
			EQ(outcome(&c, c.tx), 0);
		}
		ct_close(&c);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	EQ(status, 0);
}

static const struct ct_test tests[] = {
	{ "FI_HMEM is offered only to hints with it, without atomics and collectives", only_on_request, CT_SOLO | CT_REL },
	{ "FI_HMEM=system loads no library of a device", excluded, CT_SOLO | CT_REL },
	{ "FI_HMEM is not offered without a device", no_device, CT_SOLO | CT_REL },
	{ "FI_HMEM names the interfaces with a library to load", named, CT_SOLO | CT_REL },
	{ "FI_HMEM: messages between devices", messages_both, CT_REL },
	{ "FI_HMEM: messages from a device to a host", messages_sender, CT_REL },
	{ "FI_HMEM: messages from a host to a device", messages_receiver, CT_REL },
	{ "FI_HMEM: tagged messages between devices", tagged_both, CT_REL },
	{ "FI_HMEM: tagged messages from a device to a host", tagged_sender, CT_REL },
	{ "FI_HMEM: tagged messages from a host to a device", tagged_receiver, CT_REL },
	{ "FI_HMEM: copies that take milliseconds", slow_copies, CT_REL },
	{ "FI_HMEM: copies that end in another order", reordered, CT_REL },
	{ "FI_HMEM: a library without a device leaves the devices of another", one_with_device, CT_REL },
	{ "FI_HMEM: segments of devices of two kinds in one message", two_kinds, CT_REL },
	{ "FI_HMEM: less bounce memory than a message has", little_bounce_memory, CT_REL },
	{ "FI_HMEM: many messages of devices and hosts at a time", many_messages, CT_REL },
	{ "FI_HMEM: unexpected messages for devices", many_unexpected, CT_REL },
	{ "FI_HMEM: a multi-receive buffer on a device", multi_recv, CT_REL },
	{ "FI_HMEM: segments of devices and hosts in one message", mixed_segments, CT_REL },
	{ "FI_HMEM: memory of a device is reusable after fi_inject", inject, CT_REL },
	{ "FI_HMEM: reads and writes between devices", accesses_both, CT_REL },
	{ "FI_HMEM: reads and writes of a host by a device", accesses_initiator, CT_REL },
	{ "FI_HMEM: reads and writes of a device by a host", accesses_target, CT_REL },
	{ "FI_HMEM: reads and writes with copies that take milliseconds", slow_accesses, CT_REL },
	{ "FI_HMEM: a write's data is reported after its bytes are on the device", write_data, CT_REL },
	{ "FI_HMEM: a truncated message writes nothing behind the receive", truncated, CT_REL },
	{ "FI_HMEM: fi_cq_sread wakes for copies", blocking, CT_REL },
	{ "FI_HMEM: a failed copy of a send is its error", failing_send, CT_REL },
	{ "FI_HMEM: a failed copy of a receive is its error", failing_receive, CT_REL },
	{ "FI_HMEM: a copy refused by the device is an error", failing_call, CT_REL },
	{ "FI_HMEM: a failed copy of a large message is its sender's error", failing_start, CT_REL },
	{ "FI_HMEM: a copy failing within a sent message fails it at both ends", failing_middle_send, CT_REL },
	{ "FI_HMEM: a copy failing within a received message fails its receive", failing_middle_receive, CT_REL },
	{ "FI_HMEM: a copy that never ends is an error in time", hanging, CT_REL },
	{ "FI_HMEM: a lost context fails the transfers of the device alone", lost_context, CT_REL },
	{ "FI_HMEM: memory freed while registered fails its accesses alone", freed, CT_REL },
	{ "FI_HMEM: managed memory may change its kind", changing_kind, CT_REL },
	{ "FI_HMEM: transfers without memory for bounce buffers fail alone", no_bounce_memory, CT_REL },
	{ "FI_HMEM: threads need no context of the driver", without_context, CT_REL },
	{ "FI_HMEM: a region of a device closes while a peer reads it", closed_region, CT_REL },
	{ "FI_HMEM: fi_mr_regattr refuses another interface's memory", wrong_iface, CT_REL },
	{ "FI_HMEM: the memory of a file is a region without an address of the processor", dmabuf, CT_REL },
	{ "FI_HMEM: the memory of a udmabuf is a region without an address of the processor", udmabuf, CT_REL },
	{ "FI_HMEM: a region of a file is checked", bad_dmabuf, CT_REL },
	{ "FI_HMEM: a file of memory of a device is copied by the device", dmabuf_of_device, CT_REL },
	{ "FI_HMEM: a peer's device reads memory mapped once for many messages", shared_messages, CT_REL },
	{ "FI_HMEM: mapped memory is received in memory of a host", shared_to_host, CT_REL },
	{ "FI_HMEM: memory of a host is not mapped", shared_from_host, CT_REL },
	{ "FI_HMEM: memory at the address of a freed allocation is mapped anew", shared_reused, CT_REL },
	{ "FI_HMEM: a peer maps a limited number of allocations", shared_many, CT_REL },
	{ "FI_HMEM: mapped memory takes no descriptors", shared_descriptors, CT_REL },
	{ "FI_HMEM: memory without a handle is copied", no_handle, CT_REL },
	{ "FI_HMEM: memory with a handle that no peer can open is copied", no_open, CT_REL },
	{ "FI_HMEM: FI_HMEM_DISABLE_P2P keeps memory from being mapped", p2p_disabled_by_user, CT_REL },
	{ "FI_HMEM: FI_HMEM_P2P_DISABLED keeps memory from being mapped", p2p_disabled_by_option, CT_REL },
	{ "FI_HMEM: reads and writes of mapped memory", shared_accesses, CT_REL },
	{ "FI_HMEM: a failed copy of mapped memory fails its message alone", failing_expected, CT_REL },
	{ "FI_HMEM: a failed copy of mapped memory fails an unexpected message alone", failing_unexpected, CT_REL },
	{ "FI_HMEM: a copy of mapped memory that never ends is an error in time", hanging_shared, CT_REL },
	{ "FI_HMEM: a peer ends while its memory is copied", shared_peer_gone, CT_REL },
	{ "FI_HMEM: forked children leave mapped memory to their parents", shared_forked, CT_REL },
	{ "FI_HMEM: a forked child's transfers of a device are errors", forked, CT_SOLO | CT_RDM | CT_REL },
	{ "FI_HMEM: an unknown peer ends while its message is copied", unknown_peer_gone, CT_RDM | CT_REL },
	{ "FI_HMEM: atomic operations with memory of a device are refused", no_atomics, CT_REL },
	{ "FI_HMEM: a peer's atomic operation on memory of a device is refused", atomic_of_peer, CT_REL },
	{ "FI_HMEM: options FI_OPT_CUDA_API_PERMITTED and FI_OPT_FI_HMEM_P2P", options, CT_REL },
};
CT_MAIN("hmem", tests)
