/*
 * kfi_msg(3): kfabric's interface in user space, on the calls of this library.
 *
 * Statements of kfabric's page, and the test of each:
 *
 *   len: from 0 bytes up to max_msg_size				in_order, too_long
 *   iov, count, desc: vectored data, as one message			every_call, bad_lists
 *   data: remote CQ data (kfi_senddata, KFI_REMOTE_CQ_DATA)		every_call
 *   dest_addr is ignored by connected endpoints			no_addresses
 *   src_addr counts with KFI_DIRECTED_RECV alone, and
 *   KFI_ADDR_UNSPEC is any source					directed, no_addresses
 *   context comes back with the completion				every_call, and all others
 *   messages are received into posted buffers, their bounds kept	every_call, in_order
 *   a buffer is its owner's when the operation has completed		in_order
 *   kfi_send needs a connection					unconnected
 *   kfi_sendmsg, kfi_recvmsg: connected and unconnected endpoints,
 *   struct kfi_msg with its type and list				every_call, on RDM and MSG
 *   kfi_inject leaves the buffer at once and is never reported		every_call, own_flags, flags
 *   receives are searched in the order of their posts			in_order
 *   flags of kfi_sendmsg and kfi_recvmsg stand in place of the
 *   endpoint's								own_flags
 *   KFI_COMPLETION: an entry is made; ignored if queues report all	flags, own_flags, all_notified
 *   KFI_MORE: more is posted at once					flags
 *   KFI_INJECT: as kfi_inject, reported at request			inject_flag
 *   KFI_MULTI_RECV: one buffer, many messages, freed when less is
 *   left than KFI_OPT_MIN_MULTI_RECV					flags
 *   KFI_FENCE waits for earlier operations				fenced
 *   0, or a negative code of kfi_errno.h				bad_lists, too_long, unconnected
 *   -KFI_EAGAIN: try again when operations have completed		again
 */
#include "ct.h"

#if __has_include(<kfabric.h>)
#include <kfi_cm.h>
#include <kfi_domain.h>
#include <kfi_endpoint.h>
#include <kfi_eq.h>
#include <kfi_errno.h>
#include <kfi_rma.h>
#include <kfi_tagged.h>

/* A message's bytes in three pieces of a buffer, as each kind of list. */
struct pieces {
	struct kvec iov[3];
	struct bio_vec biov[3];
	struct scatterlist sgl[3];
	void *desc[3];
	size_t count;
};

static struct pieces cut(char *b, size_t n, size_t limit)
{
	struct pieces p = { .count = limit < 3 ? 1 : 3 };

	for (size_t i = 0, off = 0; i < p.count; i++) {
		size_t len = i == p.count - 1 ? n - off : n / 5 + i;

		p.iov[i] = (struct kvec){ b + off, len };
		/* a page begins somewhere before the bytes */
		p.biov[i] = (struct bio_vec){ (struct page *)b, len, off };
		p.sgl[i] = (struct scatterlist){ (struct page *)(b + off - off / 2), off / 2, len };
		p.desc[i] = ct_desc(b);
		off += len;
	}
	return p;
}

static struct kfi_msg msg_of(const struct pieces *p, enum kfi_iov_type type, kfi_addr_t addr, void *context, uint64_t data)
{
	struct kfi_msg m = { .type = type, .desc = (void **)p->desc, .iov_count = p->count,
		.addr = addr, .context = context, .data = data };

	if (type == KFI_BVEC)
		m.msg_biov = p->biov;
	else if (type == KFI_SGL)
		m.msg_sgl = p->sgl;
	else
		m.msg_iov = p->iov;
	return m;
}

enum call { BARE, VEC, BVEC, SGL, MSG_NONE, MSG_VEC, MSG_BVEC, MSG_SGL, INJECT, DATA, CALLS };

static ssize_t post_send(struct ct *c, enum call call, char *b, size_t n, uint64_t data, void *context)
{
	struct pieces p = cut(b, n, c->info->tx_attr->iov_limit);
	struct kfi_msg m;

	switch (call) {
	case BARE: return kfi_send(c->ep, b, n, ct_desc(b), c->peer, context);
	case VEC: return kfi_sendv(c->ep, p.iov, p.desc, p.count, c->peer, context);
	case BVEC: return kfi_sendbv(c->ep, p.biov, p.desc, p.count, c->peer, context);
	case SGL: return kfi_sendsgl(c->ep, p.sgl, p.desc, p.count, c->peer, context);
	case INJECT: return kfi_inject(c->ep, b, n, c->peer);
	case DATA: return kfi_senddata(c->ep, b, n, ct_desc(b), data, c->peer, context);
	default:
		m = msg_of(&p, (enum kfi_iov_type)(call - MSG_NONE), c->peer, context, data);
		return kfi_sendmsg(c->ep, &m, KFI_COMPLETION | (data ? KFI_REMOTE_CQ_DATA : 0));
	}
}

static ssize_t post_recv(struct ct *c, enum call call, char *b, size_t n, void *context)
{
	struct pieces p = cut(b, n, c->info->rx_attr->iov_limit);
	struct kfi_msg m;

	switch (call) {
	case VEC: return kfi_recvv(c->ep, p.iov, p.desc, p.count, KFI_ADDR_UNSPEC, context);
	case BVEC: return kfi_recvbv(c->ep, p.biov, p.desc, p.count, KFI_ADDR_UNSPEC, context);
	case SGL: return kfi_recvsgl(c->ep, p.sgl, p.desc, p.count, KFI_ADDR_UNSPEC, context);
	case BARE: case INJECT: case DATA: return kfi_recv(c->ep, b, n, ct_desc(b), KFI_ADDR_UNSPEC, context);
	default:
		m = msg_of(&p, (enum kfi_iov_type)(call - MSG_NONE), KFI_ADDR_UNSPEC, context, 0);
		return kfi_recvmsg(c->ep, &m, KFI_COMPLETION);
	}
}

/* Messages by each call, received by each call: bytes, lengths, data, completions. */
static void every_call(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	for (int call = 0; call < CALLS; call++) {
		const size_t space = call == INJECT ? c.info->tx_attr->inject_size : ct_most(&c, 2000);
		const size_t sizes[] = { 100, 16, space };
		const uint64_t data = call == DATA || call == MSG_BVEC ? 0x1234567800 + call : 0;

		for (int i = 0; i < 3; i++) {
			size_t n = sizes[i] < space ? sizes[i] : space;

			if (rank == 0) {
				struct fi_cq_tagged_entry e;

				memset(b, 0, n + 1);
				POST(&c, post_recv(&c, (enum call)call, b, n, CTX(i)));
				ct_barrier(&c);
				e = ct_recvd(&c, CTX(i), n);
				CHECK(ct_same(b, n, call));
				EQ(b[n], 0);
				EQ(!!(e.flags & KFI_REMOTE_CQ_DATA), data && c.info->domain_attr->cq_data_size);
				if (e.flags & KFI_REMOTE_CQ_DATA)
					EQ(e.data, c.info->domain_attr->cq_data_size < 8 ? data & 0xffffffff : data);
			} else {
				ct_fill(b, n, call);
				ct_barrier(&c);
				POST(&c, post_send(&c, (enum call)call, b, n, data, CTX(i + 10)));
				if (call == INJECT)
					/* the buffer may be reused at once, and nothing is reported */
					memset(b, 0xee, n);
				else
					ct_sent(&c, CTX(i + 10));
			}
			ct_barrier(&c);
		}
	}
	if (rank == 1)
		NOTHING(&c, c.tx, 20);
	ct_done(&c);
}

static void bad_lists(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	char *b;
	struct pieces p;
	struct bio_vec many[KFI_IOV_MAX + 1] = { { 0 } };
	struct kfi_msg m;

	(void)rank;
	ct_open(&c, &o);
	b = ct_alloc(&c, 100);
	p = cut(b, 90, 3);
	m = msg_of(&p, KFI_KVEC, c.peer, NULL, 0);
	m.type = (enum kfi_iov_type)9;
	EQ(kfi_sendmsg(c.ep, &m, 0), -KFI_EINVAL);
	EQ(kfi_recvmsg(c.ep, &m, 0), -KFI_EINVAL);
	m.type = KFI_BVEC;
	m.msg_biov = NULL;
	EQ(kfi_sendmsg(c.ep, &m, 0), -KFI_EINVAL);
	EQ(kfi_sendmsg(c.ep, NULL, 0), -KFI_EINVAL);
	EQ(kfi_recvmsg(c.ep, NULL, 0), -KFI_EINVAL);
	EQ(kfi_sendbv(c.ep, NULL, NULL, 1, c.peer, NULL), -KFI_EINVAL);
	EQ(kfi_recvsgl(c.ep, NULL, NULL, 1, c.peer, NULL), -KFI_EINVAL);
	EQ(kfi_sendbv(c.ep, many, NULL, KFI_IOV_MAX + 1, c.peer, NULL), -KFI_EINVAL);
	/* more than the provider takes, though no more than a list may have */
	EQ(kfi_sendbv(c.ep, many, NULL, KFI_IOV_MAX, c.peer, NULL), -KFI_EINVAL);
	NOTHING(&c, c.tx, 5);
	ct_done(&c);
}

/* The flags of the page: their effect in kfi_sendmsg and kfi_recvmsg equals that in libfabric's calls. */
static void flags(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG | KFI_MULTI_RECV, .cq_flags = KFI_SELECTIVE_COMPLETION };
	struct ct c;
	struct pieces p;
	struct kfi_msg m;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 8192);
	if (rank == 0) {
		struct fi_cq_tagged_entry e;
		size_t least = 1024;

		/* one buffer takes all, until less is left than the minimum */
		OK(kfi_setopt(&c.ep->fid, KFI_OPT_ENDPOINT, KFI_OPT_MIN_MULTI_RECV, &least, sizeof least));
		p = cut(b, 2048, 1);
		m = msg_of(&p, KFI_BVEC, KFI_ADDR_UNSPEC, CTX(1), 0);
		POST(&c, kfi_recvmsg(c.ep, &m, KFI_MULTI_RECV | KFI_COMPLETION));
		ct_barrier(&c);
		for (int i = 0; i < 4; i++) {
			char *at;

			memset(&e, 0, sizeof e);
			ct_next(&c, c.rx, &e, NULL, NULL);
			CHECK(e.op_context == CTX(1));
			EQ(e.len, 300);
			at = e.buf;
			CHECK(at >= b && at + 300 <= b + 2048 && ct_same(at, 300, i));
			EQ(!!(e.flags & KFI_MULTI_RECV), i == 3);
		}
		ct_barrier(&c);
	} else {
		const uint64_t with[4] = { 0, KFI_MORE, KFI_FENCE, KFI_COMPLETION };

		ct_barrier(&c);
		for (int i = 0; i < 4; i++) {
			ct_fill(b + i * 300, 300, i);
			p = cut(b + i * 300, 300, c.info->tx_attr->iov_limit);
			m = msg_of(&p, i & 1 ? KFI_KVEC : KFI_SGL, c.peer, CTX(i), 0);
			POST(&c, kfi_sendmsg(c.ep, &m, with[i]));
		}
		/* without KFI_COMPLETION nothing is reported */
		ct_sent(&c, CTX(3));
		NOTHING(&c, c.tx, 10);
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void inject_flag(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	struct pieces p;
	struct kfi_msg m;
	size_t n;
	char *b;

	ct_open(&c, &o);
	n = c.info->tx_attr->inject_size < 64 ? c.info->tx_attr->inject_size : 64;
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		POST(&c, kfi_recv(c.ep, b, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(1)));
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), n);
		CHECK(ct_same(b, n, 7));
	} else {
		ct_barrier(&c);
		ct_fill(b, n, 7);
		p = cut(b, n, 1);
		m = msg_of(&p, KFI_BVEC, c.peer, CTX(2), 0);
		POST(&c, kfi_sendmsg(c.ep, &m, KFI_INJECT | KFI_COMPLETION));
		memset(b, 0, n);
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}

/* Only receives for that peer, or for any, match. */
static void directed(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG | KFI_DIRECTED_RECV };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		struct ct_name own = ct_getname(&c.ep->fid);
		kfi_addr_t self = ct_insert(&c, &own);

		POST(&c, kfi_recv(c.ep, b, 64, ct_desc(b), self, CTX(1)));
		POST(&c, kfi_recv(c.ep, b + 64, 64, ct_desc(b), c.peer, CTX(2)));
		POST(&c, kfi_recv(c.ep, b + 128, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(3)));
		ct_barrier(&c);
		ct_recvd(&c, CTX(2), 32);
		ct_recvd(&c, CTX(3), 32);
		NOTHING(&c, c.rx, 5);
		OK(kfi_cancel(&c.ep->fid, CTX(1)));
	} else {
		ct_barrier(&c);
		for (int i = 0; i < 2; i++) {
			POST(&c, kfi_send(c.ep, b, 32, ct_desc(b), c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
		}
	}
	ct_done(&c);
}

static void tagged(int rank)
{
	struct ct_opt o = { .caps = KFI_TAGGED };
	const enum kfi_iov_type types[4] = { (enum kfi_iov_type)0, KFI_KVEC, KFI_BVEC, KFI_SGL };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 8192);
	for (int i = 0; i < 6; i++) {
		struct pieces p = cut(b, 700, c.info->tx_attr->iov_limit);
		struct kfi_msg_tagged m = { .type = types[i % 4], .desc = p.desc, .iov_count = p.count,
			.addr = rank ? c.peer : KFI_ADDR_UNSPEC, .tag = 0x50 + i, .ignore = rank ? 0 : 0xf, .context = CTX(i) };

		m.msg_iov = p.iov;
		if (m.type == KFI_BVEC)
			m.msg_biov = p.biov;
		else if (m.type == KFI_SGL)
			m.msg_sgl = p.sgl;
		if (rank == 0) {
			struct fi_cq_tagged_entry e;

			memset(b, 0, 700);
			if (i == 4)
				POST(&c, kfi_trecvbv(c.ep, p.biov, p.desc, p.count, KFI_ADDR_UNSPEC, 0x50, 0xf, CTX(i)));
			else if (i == 5)
				POST(&c, kfi_trecvsgl(c.ep, p.sgl, p.desc, p.count, KFI_ADDR_UNSPEC, 0x50, 0xf, CTX(i)));
			else
				POST(&c, kfi_trecvmsg(c.ep, &m, KFI_COMPLETION));
			ct_barrier(&c);
			e = ct_recvd(&c, CTX(i), 700);
			EQ(e.tag, 0x50 + i);
			CHECK(ct_same(b, 700, i));
		} else {
			ct_fill(b, 700, i);
			ct_barrier(&c);
			if (i == 4)
				POST(&c, kfi_tsendbv(c.ep, p.biov, p.desc, p.count, c.peer, 0x54, CTX(i)));
			else if (i == 5)
				POST(&c, kfi_tsendsgl(c.ep, p.sgl, p.desc, p.count, c.peer, 0x55, CTX(i)));
			else
				POST(&c, kfi_tsendmsg(c.ep, &m, KFI_COMPLETION));
			ct_sent(&c, CTX(i));
		}
		ct_barrier(&c);
	}
	EQ(kfi_tsendmsg(c.ep, NULL, 0), -KFI_EINVAL);
	EQ(kfi_trecvbv(c.ep, NULL, NULL, 1, KFI_ADDR_UNSPEC, 0, 0, NULL), -KFI_EINVAL);
	ct_done(&c);
}

/* The data of a write takes a receive of the peer's, as kfabric has it; the bytes are there before. */
static void write_data(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG | KFI_RMA };
	struct { uint64_t addr, key; } mine, theirs;
	struct kfid_mr *mr;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 8192);
	OK(kfi_mr_reg(c.domain, b, 4096, KFI_REMOTE_WRITE | KFI_REMOTE_READ | KFI_WRITE | KFI_READ, 0, 77, 0, &mr, NULL));
	mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	mine.key = kfi_mr_key(mr);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	for (int i = 0; i < 4; i++) {
		if (rank == 0) {
			struct fi_cq_tagged_entry e;

			memset(b, 0, 4096);
			POST(&c, kfi_recv(c.ep, b + 4096, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(i)));
			ct_barrier(&c);
			e = ct_recvd(&c, CTX(i), 0);
			CHECK(e.flags & KFI_REMOTE_CQ_DATA);
			EQ(e.data, 1000 + i);
			CHECK(ct_same(b, i == 3 ? 8 : 2000, i));
		} else {
			struct pieces p = cut(b, 2000, c.info->tx_attr->iov_limit);
			struct kfi_rma_iov to = { theirs.addr, 2000, theirs.key };
			struct kfi_msg_rma m = { .type = KFI_BVEC, .msg_biov = p.biov, .desc = p.desc, .iov_count = p.count,
				.addr = c.peer, .rma_iov = &to, .rma_iov_count = 1, .context = CTX(i), .data = 1000 + i };

			ct_fill(b, 2000, i);
			ct_barrier(&c);
			if (i == 0)
				POST(&c, kfi_writedata(c.ep, b, 2000, ct_desc(b), 1000, c.peer, theirs.addr, theirs.key, CTX(i)));
			else if (i == 3)
				POST(&c, kfi_inject_writedata(c.ep, b, 8, 1003, c.peer, theirs.addr, theirs.key));
			else
				POST(&c, kfi_writemsg(c.ep, &m, KFI_REMOTE_CQ_DATA | KFI_COMPLETION));
			if (i < 3)
				ct_sent(&c, CTX(i));
		}
		ct_barrier(&c);
	}
	if (rank == 1) {
		struct pieces p = cut(b + 2000, 2000, c.info->tx_attr->iov_limit);

		NOTHING(&c, c.tx, 5);
		/* the other rank's data is the last round's */
		POST(&c, kfi_readbv(c.ep, p.biov, p.desc, p.count, c.peer, theirs.addr, theirs.key, CTX(9)));
		ct_sent(&c, CTX(9));
		CHECK(ct_same(b + 2000, 8, 3));
		ct_fill(b + 2000, 2000, 5);
		POST(&c, kfi_writesgl(c.ep, p.sgl, p.desc, p.count, c.peer, theirs.addr, theirs.key, CTX(10)));
		ct_sent(&c, CTX(10));
		/* the message behind the write announces its arrival */
		POST(&c, kfi_inject(c.ep, NULL, 0, c.peer));
		EQ(kfi_writemsg(c.ep, NULL, 0), -KFI_EINVAL);
	} else {
		POST(&c, kfi_recv(c.ep, b + 4096, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(11)));
		ct_recvd(&c, CTX(11), 0);
		CHECK(ct_same(b, 2000, 5));
	}
	ct_barrier(&c);
	OK(kfi_close(&c.ep->fid));
	c.ep = NULL;
	OK(kfi_close(&mr->fid));
	ct_close(&c);
}

/* Receives are taken as they were posted, one for each message, of no bytes too. */
static void in_order(int rank)
{
	const size_t sizes[5] = { 10, 0, 64, 1, 33 };
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		for (int i = 0; i < 5; i++)
			POST(&c, kfi_recv(c.ep, b + i * 64, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(i)));
		ct_barrier(&c);
		for (int i = 0; i < 5; i++) {
			ct_recvd(&c, CTX(i), sizes[i]);
			CHECK(ct_same(b + i * 64, sizes[i], i));
		}
	} else {
		ct_barrier(&c);
		for (int i = 0; i < 5; i++) {
			ct_fill(b, sizes[i], i);
			POST(&c, kfi_send(c.ep, b, sizes[i], ct_desc(b), c.peer, CTX(i)));
			ct_sent(&c, CTX(i));
			/* reported, so that the buffer is ours again */
			memset(b, 0xee, 64);
		}
	}
	ct_done(&c);
}

static void too_long(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	size_t most;
	ssize_t r;
	char *b;

	(void)rank;
	ct_open(&c, &o);
	b = ct_alloc(&c, 1 << 20);
	most = c.info->tx_attr->inject_size;
	if (most < 1 << 20) {
		r = kfi_inject(c.ep, b, most + 1, c.peer);
		CHECK(r < 0 && r != -KFI_EAGAIN);
	}
	most = c.info->ep_attr->max_msg_size;
	if (most < SIZE_MAX) {
		r = kfi_send(c.ep, b, most + 1, ct_desc(b), c.peer, CTX(0));
		CHECK(r < 0 && r != -KFI_EAGAIN);
		r = kfi_senddata(c.ep, b, most + 1, ct_desc(b), 1, c.peer, CTX(0));
		CHECK(r < 0 && r != -KFI_EAGAIN);
	}
	NOTHING(&c, c.tx, 5);
	ct_done(&c);
}

/* A full queue returns -KFI_EAGAIN, and takes more when operations are reported. */
static void again(int rank)
{
	enum { N = 3000 };
	struct ct_opt o = { .caps = KFI_MSG };
	struct fi_cq_tagged_entry e;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (rank == 1) {
		int posted = 0, reported = 0;

		while (reported < N) {
			ssize_t r = posted < N ? kfi_send(c.ep, b, 512, ct_desc(b), c.peer, CTX(posted)) : -KFI_EAGAIN;

			if (r == 0) {
				posted++;
				continue;
			}
			EQ(r, -KFI_EAGAIN);
			if (kfi_cq_read(c.tx, &e, 1) == 1) {
				CHECK(e.op_context == CTX(reported));
				reported++;
			}
		}
	} else {
		ct_nap(50);
		for (int i = 0; i < N; i++) {
			POST(&c, kfi_recv(c.ep, b, 512, ct_desc(b), KFI_ADDR_UNSPEC, CTX(i)));
			ct_recvd(&c, CTX(i), 512);
		}
	}
	ct_done(&c);
}

/* Flags of kfi_sendmsg and kfi_recvmsg stand in place of the endpoint's. */
static void own_flags(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG, .cq_flags = KFI_SELECTIVE_COMPLETION, .tx_op_flags = KFI_COMPLETION };
	struct ct c;
	struct pieces p;
	struct kfi_msg m;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	p = cut(b, 60, 1);
	if (rank == 0) {
		for (int i = 0; i < 4; i++) {
			m = msg_of(&p, KFI_KVEC, KFI_ADDR_UNSPEC, CTX(i), 0);
			POST(&c, kfi_recvmsg(c.ep, &m, i == 3 ? KFI_COMPLETION : 0));
		}
		ct_barrier(&c);
		ct_recvd(&c, CTX(3), 60);
		NOTHING(&c, c.rx, 10);
	} else {
		ct_barrier(&c);
		POST(&c, kfi_send(c.ep, b, 60, ct_desc(b), c.peer, CTX(0)));
		ct_sent(&c, CTX(0));
		m = msg_of(&p, KFI_KVEC, c.peer, CTX(1), 0);
		POST(&c, kfi_sendmsg(c.ep, &m, 0));
		POST(&c, kfi_inject(c.ep, b, c.info->tx_attr->inject_size < 60 ? 0 : 60, c.peer));
		m.context = CTX(3);
		POST(&c, kfi_sendmsg(c.ep, &m, KFI_COMPLETION));
		ct_sent(&c, CTX(3));
		NOTHING(&c, c.tx, 10);
	}
	ct_done(&c);
}

/* KFI_COMPLETION has no effect if queues report all operations; kfi_inject is never reported. */
static void all_notified(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	struct pieces p;
	struct kfi_msg m;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	p = cut(b, 16, 1);
	for (int i = 0; i < 2; i++) {
		m = msg_of(&p, KFI_KVEC, rank ? c.peer : KFI_ADDR_UNSPEC, CTX(i), 0);
		if (rank == 0) {
			POST(&c, kfi_recvmsg(c.ep, &m, i ? KFI_COMPLETION : 0));
			ct_barrier(&c);
			ct_recvd(&c, CTX(i), 16);
		} else {
			ct_barrier(&c);
			POST(&c, kfi_sendmsg(c.ep, &m, i ? KFI_COMPLETION : 0));
			ct_sent(&c, CTX(i));
		}
	}
	NOTHING(&c, rank ? c.tx : c.rx, 5);
	ct_done(&c);
}

/* Addresses mean nothing to connected endpoints, nor sources to those that do not direct receives. */
static void no_addresses(int rank)
{
	struct ct_opt o = { .caps = KFI_MSG };
	struct ct c;
	kfi_addr_t odd = 0x1234567;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 4096);
	if (ct_type != FI_EP_MSG) {
		struct ct_name own = ct_getname(&c.ep->fid);

		if (c.info->caps & KFI_DIRECTED_RECV)
			SKIP("this endpoint always directs receives");
		odd = ct_insert(&c, &own);
	}
	if (rank == 0) {
		POST(&c, kfi_recv(c.ep, b, 64, ct_desc(b), odd, CTX(1)));
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), 32);
	} else {
		ct_barrier(&c);
		POST(&c, kfi_send(c.ep, b, 32, ct_desc(b), ct_type == FI_EP_MSG ? odd : c.peer, CTX(2)));
		ct_sent(&c, CTX(2));
	}
	ct_done(&c);
}

/* Fenced operations wait for earlier ones. */
static void fenced(int rank)
{
	enum { N = 200000 };
	struct ct_opt o = { .caps = KFI_MSG | KFI_RMA };
	struct { uint64_t addr, key; } mine, theirs;
	struct kfid_mr *mr;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	b = ct_alloc(&c, 2 * N);
	ct_fill(b, N, rank);
	OK(kfi_mr_reg(c.domain, b, N, KFI_REMOTE_READ | KFI_READ | KFI_WRITE, 0, 78, 0, &mr, NULL));
	mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	mine.key = kfi_mr_key(mr);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		POST(&c, kfi_recv(c.ep, b + N, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(1)));
		ct_barrier(&c);
		ct_recvd(&c, CTX(1), 8);
	} else {
		struct pieces p = cut(b, 8, 1);
		struct kfi_msg m = msg_of(&p, KFI_KVEC, c.peer, CTX(3), 0);

		ct_barrier(&c);
		POST(&c, kfi_read(c.ep, b + N, N, ct_desc(b), c.peer, theirs.addr, theirs.key, CTX(2)));
		POST(&c, kfi_sendmsg(c.ep, &m, KFI_FENCE | KFI_COMPLETION));
		ct_sent(&c, CTX(2));
		CHECK(ct_same(b + N, N, 0));
		ct_sent(&c, CTX(3));
	}
	ct_barrier(&c);
	OK(kfi_close(&c.ep->fid));
	c.ep = NULL;
	OK(kfi_close(&mr->fid));
	ct_close(&c);
}

static void unconnected(int rank)
{
	struct ct c;
	struct ct_name n;
	char b[64] = "";

	memset(&c, 0, sizeof c);
	if (rank == 0) {
		ct_listen(&c);
		n = ct_getname(&c.pep->fid);
		ct_send_oob(&n, sizeof n);
	} else {
		ct_recv_oob(NULL, &n, sizeof n);
		ct_prepare(&c, &n);
		CHECK(kfi_send(c.ep, b, 1, NULL, 0, CTX(0)) < 0);
		CHECK(kfi_inject(c.ep, b, 1, 0) < 0);
	}
	ct_barrier(NULL);
	ct_close(&c);
}

/* ---- queues that can be waited on, and call back --------------------------------------------------------- */

static pthread_mutex_t called = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t calls = PTHREAD_COND_INITIALIZER;
static int completions, spins, closed_inside;

static void on_completion(struct kfid_cq *cq, void *context)
{
	struct fi_cq_tagged_entry e;

	pthread_mutex_lock(&called);
	spins++;
	if (closed_inside == 1) {
		closed_inside = 2;
		EQ(kfi_close(&cq->fid), -KFI_EBUSY);
	}
	CHECK(context == CTX(50));
	while (kfi_cq_read(cq, &e, 1) == 1)
		completions++;
	pthread_cond_broadcast(&calls);
	pthread_mutex_unlock(&called);
}

/* A handler is called when there are completions, and not any more when its queue is closed. */
static void call_back(int rank)
{
	/* the handler reads from a thread of its own */
	struct ct_opt o = { .caps = KFI_MSG, .threading = FI_THREAD_SAFE };
	struct kfi_cq_attr attr = { .format = KFI_CQ_FORMAT_TAGGED };
	struct kfid_domain *domain;
	struct kfid_ep *ep;
	struct ct c;
	char *b;

	if (ct_type != FI_EP_RDM)
		SKIP("one kind of endpoint is enough");
	memset(&c, 0, sizeof c);
	c.o = o;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	OK(kfi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	OK(kfi_domain(c.fabric, c.info, &domain, NULL));
	c.domain = domain;
	OK(kfi_cq_open(domain, &attr, &c.rx, on_completion, CTX(50)));
	OK(kfi_cq_open(domain, &attr, &c.tx, NULL));
	{
		struct fi_av_attr a = { .count = 4 };

		OK(kfi_av_open(domain, &a, &c.av, NULL));
	}
	OK(kfi_endpoint(domain, c.info, &ep, NULL));
	c.ep = ep;
	OK(kfi_ep_bind(ep, &c.av->fid, 0));
	OK(kfi_ep_bind(ep, &c.rx->fid, KFI_RECV));
	OK(kfi_ep_bind(ep, &c.tx->fid, KFI_TRANSMIT));
	OK(kfi_enable(ep));
	{
		struct ct_name mine = ct_getname(&ep->fid), theirs;

		ct_swap(NULL, &mine, &theirs, sizeof mine);
		c.peer = ct_insert(&c, &theirs);
	}
	b = ct_alloc(&c, 4096);
	if (rank == 0) {
		closed_inside = 1;
		for (int i = 0; i < 10; i++)
			POST(&c, kfi_recv(ep, b + i * 64, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(i)));
		ct_send_oob("", 1);
		pthread_mutex_lock(&called);
		while (completions < 10)
			pthread_cond_wait(&calls, &called);
		EQ(closed_inside, 2);
		/* an empty queue makes no call */
		spins = 0;
		pthread_mutex_unlock(&called);
		ct_nap(50);
		pthread_mutex_lock(&called);
		CHECK(spins <= 1);
		pthread_mutex_unlock(&called);
		/* a queue in use is not closed, and goes on calling */
		EQ(kfi_close(&c.rx->fid), -KFI_EBUSY);
		POST(&c, kfi_recv(ep, b, 64, ct_desc(b), KFI_ADDR_UNSPEC, CTX(1)));
		ct_send_oob("", 1);
		pthread_mutex_lock(&called);
		while (completions < 11)
			pthread_cond_wait(&calls, &called);
		pthread_mutex_unlock(&called);
	} else {
		char go;

		for (int i = 0; i < 11; i++) {
			struct fi_cq_tagged_entry e;

			if (i == 0 || i == 10)
				ct_recv_oob(NULL, &go, 1);
			POST(&c, kfi_send(ep, b, 32, ct_desc(b), c.peer, CTX(i)));
			/* opened as in the first version: a timeout of 0 is none */
			EQ(kfi_cq_sread(c.tx, &e, 1, NULL, 0), 1);
			CHECK(e.op_context == CTX(i));
		}
		EQ(kfi_cq_sread(c.tx, b, 1, NULL, 20), -KFI_ETIMEDOUT);
	}
	ct_barrier(NULL);
	OK(kfi_close(&ep->fid));
	OK(kfi_close(&c.rx->fid));
	OK(kfi_close(&c.tx->fid));
	OK(kfi_close(&c.av->fid));
	for (int i = 0; i < ct_nmem; i++)
		if (ct_mem[i].mr)
			OK(kfi_close(&ct_mem[i].mr->fid));
	OK(kfi_close(&domain->fid));
	OK(kfi_close(&c.fabric->fid));
	kfi_freeinfo(c.info);
}

static uint32_t event_seen;
static void on_event(struct kfid_eq *eq, void *context)
{
	char space[sizeof(struct kfi_eq_cm_entry) + 64];
	uint32_t event;

	CHECK(context == CTX(51));
	pthread_mutex_lock(&called);
	while (kfi_eq_read(eq, &event, space, sizeof space, 0) > 0)
		event_seen = event;
	pthread_cond_broadcast(&calls);
	pthread_mutex_unlock(&called);
}

/* Connections as the first version of kfabric makes them: addresses in the hints, and none in the call. */
static void connections(int rank)
{
	struct kfi_info hints = { 0 }, *info = NULL;
	struct kfi_fabric_attr wanted = { .prov_name = (char *)ct_prov };
	struct kfi_eq_attr attr = { .size = 16 };
	struct kfi_cq_attr queue = { .format = KFI_CQ_FORMAT_DATA };
	struct kfid_fabric *fabric;
	struct kfid_domain *domain;
	struct kfid_pep *pep = NULL;
	struct kfid_eq *eq, *listens = NULL;
	struct kfid_cq *cq;
	struct kfid_ep *ep;
	struct kfid_mr *mr;
	uint64_t dma = 0;
	char buffer[256] = "", event_space[sizeof(struct kfi_eq_cm_entry) + 64];
	struct kfi_eq_cm_entry *entry = (void *)event_space;
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct kfi_cq_data_entry e;
	uint32_t event;

	ct_host_only("its info is asked for without FI_HMEM");
	ct_ip_only();
	inet_pton(AF_INET, ct_node(&(struct ct_opt){ 0 }), &at.sin_addr);
	hints.fabric_attr = &wanted;
	if (rank == 0) {
		size_t n = sizeof at;

		hints.src_addr = &at;
		hints.src_addrlen = sizeof at;
		OK(kfi_getinfo(0, &hints, &info));
		EQ(info->ep_attr->type, KFI_EP_MSG);
		OK(kfi_fabric(info->fabric_attr, &fabric, NULL));
		OK(kfi_passive_ep(fabric, info, &pep, NULL));
		OK(kfi_eq_open(fabric, &attr, &listens, NULL));
		OK(kfi_pep_bind(pep, &listens->fid, 0));
		OK(kfi_listen(pep));
		OK(kfi_getname(&pep->fid, &at, &n));
		ct_send_oob(&at, sizeof at);
		kfi_freeinfo(info);
		CHECK(kfi_eq_sread(listens, &event, entry, sizeof event_space, 0, 0) >= (ssize_t)sizeof *entry);
		EQ(event, KFI_CONNREQ);
		EQ(memcmp(entry->data, "hello", 5), 0);
		info = entry->info;
	} else {
		ct_recv_oob(NULL, &at, sizeof at);
		hints.dest_addr = &at;
		hints.dest_addrlen = sizeof at;
		OK(kfi_getinfo(0, &hints, &info));
		OK(kfi_fabric(info->fabric_attr, &fabric, NULL));
	}
	OK(kfi_domain(fabric, info, &domain, NULL));
	OK(kfi_endpoint(domain, info, &ep, NULL));
	OK(kfi_eq_open(fabric, &attr, &eq, on_event, CTX(51)));
	OK(kfi_cq_open(domain, &queue, &cq, NULL));
	OK(kfi_ep_bind(ep, &eq->fid, 0));
	OK(kfi_ep_bind(ep, &cq->fid, KFI_SEND | KFI_RECV));
	/* the first version names memory by its address, returned by the call */
	OK(kfi_mr_reg(domain, buffer, sizeof buffer, KFI_REMOTE_WRITE | KFI_SEND | KFI_RECV, 0, 0, 0, &mr, NULL, &dma));
	EQ(dma, (uintptr_t)buffer);
	OK(kfi_enable(ep));
	if (rank == 0) {
		OK(kfi_recv(ep, buffer, sizeof buffer, kfi_mr_desc(mr), 0, CTX(1)));
		OK(kfi_accept(ep, NULL, 0));
	} else {
		OK(kfi_connect(ep, NULL, "hello", 5));
	}
	pthread_mutex_lock(&called);
	while (!event_seen)
		pthread_cond_wait(&calls, &called);
	EQ(event_seen, KFI_CONNECTED);
	event_seen = 0;
	pthread_mutex_unlock(&called);
	if (rank == 0) {
		EQ(kfi_cq_sread(cq, &e, 1, NULL, 0), 1);
		EQ(e.len, 14);
		EQ(strcmp(buffer, "from kfi_send"), 0);
		ct_send_oob("", 1);
		OK(kfi_shutdown(ep, 0));
	} else {
		strcpy(buffer, "from kfi_send");
		OK(kfi_send(ep, buffer, 14, kfi_mr_desc(mr), 0, CTX(2)));
		EQ(kfi_cq_sread(cq, &e, 1, NULL, 0), 1);
		ct_recv_oob(NULL, event_space, 1);
		/* the shutdown of the other side calls back, too */
		pthread_mutex_lock(&called);
		while (!event_seen)
			pthread_cond_wait(&calls, &called);
		EQ(event_seen, KFI_SHUTDOWN);
		pthread_mutex_unlock(&called);
	}
	OK(kfi_close(&ep->fid));
	OK(kfi_close(&mr->fid));
	OK(kfi_close(&cq->fid));
	OK(kfi_close(&domain->fid));
	OK(kfi_close(&eq->fid));
	if (pep) {
		OK(kfi_close(&pep->fid));
		OK(kfi_close(&listens->fid));
	}
	OK(kfi_close(&fabric->fid));
	kfi_freeinfo(info);
	CHECK(!kfi_notes);
}

static const struct ct_test tests[] = {
	{ "every call of kfi_msg(3) sends and receives with every kind of list", every_call, CT_REL },
	{ "receives are filled in posting order, and a reported buffer belongs to its owner again", in_order, CT_REL },
	{ "messages longer than max_msg_size, or than inject_size for kfi_inject, are refused", too_long, 0 },
	{ "a full queue returns -KFI_EAGAIN, and accepts more after completions", again, CT_REL },
	{ "flags of kfi_sendmsg and kfi_recvmsg replace those of the endpoint", own_flags, CT_REL },
	{ "a queue reporting all operations ignores KFI_COMPLETION", all_notified, CT_REL },
	{ "connected endpoints ignore addresses, and ignore sources without KFI_DIRECTED_RECV", no_addresses, CT_REL },
	{ "KFI_FENCE waits for a read posted earlier", fenced, CT_REL },
	{ "kfi_send and kfi_inject without a connection fail", unconnected, CT_MSG },
	{ "lists of an unknown kind, missing or too long ones are refused", bad_lists, 0 },
	{ "KFI_MULTI_RECV, KFI_MORE, KFI_FENCE and KFI_COMPLETION", flags, CT_REL },
	{ "KFI_INJECT releases the buffer to the caller immediately", inject_flag, CT_REL },
	{ "KFI_DIRECTED_RECV receives messages of the given peer only", directed, CT_RDM | CT_REL },
	{ "tagged messages use every kind of list", tagged, CT_REL },
	{ "data of kfi_writedata takes a receive after the written bytes", write_data, CT_REL },
	{ "queues call back, can be waited on, and stop when they are closed", call_back, CT_RDM | CT_REL },
	{ "the calls of kfabric's first version connect without an address", connections, CT_MSG },
};
CT_MAIN("kfi", tests)
#else
/* a library without these headers has nothing to test */
int main(void) { return 0; }
#endif
