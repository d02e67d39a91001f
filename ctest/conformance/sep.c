/* Scalable endpoints and shared contexts of FI_EP_RDM: fi_endpoint(3), fi_av(3) for fi_rx_addr. */
#include "ct.h"
#include <rdma/fi_rma.h>
#include <rdma/fi_trigger.h>

#define N 3		/* contexts of each kind */
#define BITS 2		/* of an fi_addr_t, that name one */

/* A scalable endpoint with all it stands on; c.tx and c.rx are for progress alone. */
struct sep {
	struct ct c;
	struct fid_ep *sep, *tx[N], *rx[N];
	struct fid_cq *txq[N], *rxq[N];
	struct ct_name name;
};

static struct fi_info *sep_info(struct ct_opt *o)
{
	struct fi_info *h, *i = NULL;
	int r;

	o->caps |= FI_NAMED_RX_CTX;
	h = ct_hints(o);
	h->ep_attr->tx_ctx_cnt = h->ep_attr->rx_ctx_cnt = N;
	r = fi_getinfo(CT_VERSION, ct_node(o), "0", FI_SOURCE, h, &i);
	fi_freeinfo(h);
	if (r == -FI_ENODATA)
		SKIP("no scalable endpoints");
	OK(r);
	CHECK(i->caps & FI_NAMED_RX_CTX);
	EQ(i->ep_attr->tx_ctx_cnt, N);
	EQ(i->ep_attr->rx_ctx_cnt, N);
	CHECK(i->domain_attr->max_ep_tx_ctx >= N && i->domain_attr->max_ep_rx_ctx >= N);
	return i;
}
/* Opens an address vector with addresses that name receive contexts. */
static void open_av(struct ct *c)
{
	struct fi_av_attr a = { .type = FI_AV_TABLE, .rx_ctx_bits = BITS };

	if (c->av)
		OK(fi_close(&c->av->fid));
	OK(fi_av_open(c->domain, &a, &c->av, c));
}
/* Everything but the contexts. */
static void start(struct sep *s, uint64_t caps)
{
	memset(s, 0, sizeof *s);
	s->c.o.caps = caps;
	s->c.info = sep_info(&s->c.o);
	ct_open_in(&s->c, NULL);
	open_av(&s->c);
	OK(fi_scalable_ep(s->c.domain, s->c.info, &s->sep, s));
	EQ(s->sep->fid.fclass, FI_CLASS_SEP);
	CHECK(s->sep->fid.context == s);
	OK(fi_scalable_ep_bind(s->sep, &s->c.av->fid, 0));
}
static void open_tx(struct sep *s, int i)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };

	OK(fi_tx_context(s->sep, i, NULL, &s->tx[i], &s->tx[i]));
	EQ(s->tx[i]->fid.fclass, FI_CLASS_TX_CTX);
	CHECK(s->tx[i]->fid.context == &s->tx[i]);
	OK(fi_cq_open(s->c.domain, &q, &s->txq[i], NULL));
	OK(fi_ep_bind(s->tx[i], &s->txq[i]->fid, FI_TRANSMIT));
	OK(fi_enable(s->tx[i]));
}
static void open_rx(struct sep *s, int i)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED };

	OK(fi_rx_context(s->sep, i, NULL, &s->rx[i], &s->rx[i]));
	EQ(s->rx[i]->fid.fclass, FI_CLASS_RX_CTX);
	OK(fi_cq_open(s->c.domain, &q, &s->rxq[i], NULL));
	OK(fi_ep_bind(s->rx[i], &s->rxq[i]->fid, FI_RECV));
	OK(fi_enable(s->rx[i]));
}
static void open_all(struct sep *s, uint64_t caps)
{
	start(s, caps);
	for (int i = 0; i < N; i++) {
		open_tx(s, i);
		open_rx(s, i);
	}
	OK(fi_enable(s->sep));
	s->name = ct_getname(&s->sep->fid);
}
/* The other rank's address. */
static void synchronize(struct sep *s)
{
	struct ct_name theirs;

	ct_swap(&s->c, &s->name, &theirs, sizeof theirs);
	s->c.peer = ct_insert(&s->c, &theirs);
	ct_barrier(&s->c);
}
static void close_one(struct fid_ep **ep, struct fid_cq **q)
{
	if (*ep)
		OK(fi_close(&(*ep)->fid));
	if (*q)
		OK(fi_close(&(*q)->fid));
	*ep = NULL;
	*q = NULL;
}
static void close_all(struct sep *s)
{
	for (int i = 0; i < N; i++) {
		close_one(&s->tx[i], &s->txq[i]);
		close_one(&s->rx[i], &s->rxq[i]);
	}
	OK(fi_close(&s->sep->fid));
	ct_close(&s->c);
}
static void done(struct sep *s)
{
	ct_barrier(&s->c);
	close_all(s);
}
static fi_addr_t at(struct sep *s, int rx)
{
	return fi_rx_addr(s->c.peer, rx, BITS);
}

/* Path of a message, in its payload. */
struct way { int from, tx, rx, number; };
#define EACH 200

static void ways(int rank)
{
	static char got[N][N * EACH][8192];
	size_t big = sizeof got[0][0];
	int seen[N][N] = { { 0 } }, last[N][N];
	struct sep s;

	open_all(&s, FI_MSG | FI_SOURCE);
	synchronize(&s);
	for (int r = 0; r < N; r++)
		for (int i = 0; i < N * EACH; i++)
			POST(&s.c, fi_recv(s.rx[r], got[r][i], big, NULL, FI_ADDR_UNSPEC, got[r][i]));
	ct_barrier(&s.c);
	for (int n = 0; n < EACH; n++)
		for (int t = 0; t < N; t++)
			for (int r = 0; r < N; r++) {
				/* every seventh fills the buffer */
				static char buf[N][N][EACH][8192];
				struct way w = { rank, t, r, n };
				size_t len = n % 7 ? sizeof w : big;

				memcpy(buf[t][r][n], &w, sizeof w);
				POST(&s.c, fi_send(s.tx[t], buf[t][r][n], len, NULL, at(&s, r), NULL));
			}
	for (int r = 0; r < N; r++)
		for (int i = 0; i < N * EACH; i++) {
			struct fi_cq_tagged_entry e;
			fi_addr_t src = FI_ADDR_NOTAVAIL;
			struct way w;
			int slot;

			ct_next(&s.c, s.rxq[r], &e, &src, NULL);
			EQ(src, s.c.peer);
			slot = ((char *)e.op_context - got[r][0]) / (int)big;
			CHECK(slot >= 0 && slot < N * EACH && e.op_context == got[r][slot]);
			memcpy(&w, got[r][slot], sizeof w);
			EQ(w.from, !rank);
			EQ(w.rx, r);
			CHECK(w.tx >= 0 && w.tx < N);
			EQ(w.number, seen[w.tx][r]++);
			/* a later message of the same context has a later receive */
			CHECK(w.number == 0 || slot > last[w.tx][r]);
			last[w.tx][r] = slot;
			EQ(e.len, w.number % 7 ? sizeof w : big);
		}
	for (int t = 0; t < N; t++)
		for (int i = 0; i < N * EACH; i++) {
			struct fi_cq_tagged_entry e;

			ct_next(&s.c, s.txq[t], &e, NULL, NULL);
			CHECK(e.flags & FI_SEND);
		}
	done(&s);
}

static void tags(int rank)
{
	struct sep s;
	struct fi_cq_tagged_entry e;
	uint64_t out[N], in[N] = { 0 };

	open_all(&s, FI_TAGGED);
	synchronize(&s);
	/* the same tag in every context: each message goes to its own; two wait unexpected */
	for (int r = 0; r < N; r++) {
		out[r] = rank * 100 + r;
		POST(&s.c, fi_tsend(s.tx[N - 1 - r], &out[r], 8, NULL, at(&s, r), 7, NULL));
		ct_next(&s.c, s.txq[N - 1 - r], &e, NULL, NULL);
	}
	ct_barrier(&s.c);
	for (int r = 0; r < N; r++) {
		OK(fi_trecv(s.rx[r], &in[r], 8, NULL, FI_ADDR_UNSPEC, 7, 0, &in[r]));
		ct_next(&s.c, s.rxq[r], &e, NULL, NULL);
		CHECK(e.op_context == &in[r]);
		EQ(e.tag, 7);
		EQ(in[r], !rank * 100 + r);
	}
	done(&s);
}

static void itself(int rank)
{
	struct sep s;
	struct fi_cq_tagged_entry e;
	fi_addr_t me, unknown_peer;
	struct ct_name other;
	int n = 0, a = 0, b = 0;

	(void)rank;
	open_all(&s, FI_MSG | FI_DIRECTED_RECV | FI_SOURCE);
	me = ct_insert(&s.c, &s.name);
	other = s.name;
	((struct sockaddr_in *)other.b)->sin_port ^= htons(1);
	unknown_peer = ct_insert(&s.c, &other);
	for (int t = 0; t < N; t++)
		for (int r = 0; r < N; r++) {
			/* the receive from another source is skipped */
			OK(fi_recv(s.rx[r], &a, sizeof a, NULL, unknown_peer, &a));
			OK(fi_recv(s.rx[r], &b, sizeof b, NULL, me, &b));
			n = 10 * t + r;
			POST(&s.c, fi_inject(s.tx[t], &n, sizeof n, fi_rx_addr(me, r, BITS)));
			ct_next(&s.c, s.rxq[r], &e, NULL, NULL);
			CHECK(e.op_context == &b);
			EQ(b, n);
			OK(fi_cancel(&s.rx[r]->fid, &a));
			EQ(ct_next(&s.c, s.rxq[r], &e, NULL, &(struct fi_cq_err_entry){ 0 }), -FI_EAVAIL);
		}
	close_all(&s);
}

/* Rank 0 is scalable, rank 1 is not. */
static void simple(int rank)
{
	struct fi_cq_tagged_entry e;
	struct ct_name mine, theirs;
	int word;

	if (rank == 0) {
		struct sep s;

		open_all(&s, FI_MSG | FI_SOURCE);
		synchronize(&s);
		for (int i = 0; i < N; i++) {
			fi_addr_t src = FI_ADDR_NOTAVAIL;

			OK(fi_recv(s.rx[i], &word, sizeof word, NULL, FI_ADDR_UNSPEC, NULL));
			ct_next(&s.c, s.rxq[i], &e, &src, NULL);
			EQ(word, 70 + i);
			EQ(src, s.c.peer);
			word = 80 + i;
			POST(&s.c, fi_send(s.tx[i], &word, sizeof word, NULL, s.c.peer, NULL));
			ct_next(&s.c, s.txq[i], &e, NULL, NULL);
			ct_barrier(&s.c);
		}
		done(&s);
		return;
	}
	struct ct c = { .o.caps = FI_MSG | FI_SOURCE };

	fi_freeinfo(sep_info(&c.o));	/* skips where the other rank does */
	c.o.caps = FI_MSG | FI_SOURCE;
	c.info = ct_getinfo(&c.o, ct_node(&c.o), "0", FI_SOURCE);
	ct_open_in(&c, NULL);
	open_av(&c);
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	ct_barrier(&c);
	for (int i = 0; i < N; i++) {
		fi_addr_t src = FI_ADDR_NOTAVAIL;
		int out = 70 + i;

		OK(fi_recv(c.ep, &word, sizeof word, NULL, FI_ADDR_UNSPEC, NULL));
		POST(&c, fi_send(c.ep, &out, sizeof out, NULL, fi_rx_addr(c.peer, i, BITS), NULL));
		ct_sent(&c, NULL);
		ct_next(&c, c.rx, &e, &src, NULL);
		EQ(word, 80 + i);
		EQ(src, c.peer);
		ct_barrier(&c);
	}
	ct_done(&c);
}

static void nowhere(int rank)
{
	struct sep s;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	int word = rank, in = -1;

	open_all(&s, FI_MSG);
	synchronize(&s);
	OK(fi_recv(s.rx[1], &in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
	ct_barrier(&s.c);
	POST(&s.c, fi_send(s.tx[1], &word, sizeof word, NULL, at(&s, N), &word));
	EQ(ct_next(&s.c, s.txq[1], &e, NULL, &err), -FI_EAVAIL);
	EQ(err.err, FI_ECONNREFUSED);
	CHECK(err.op_context == &word);
	/* and hurts nothing else */
	POST(&s.c, fi_send(s.tx[1], &word, sizeof word, NULL, at(&s, 1), &word));
	ct_next(&s.c, s.txq[1], &e, NULL, NULL);
	ct_next(&s.c, s.rxq[1], &e, NULL, NULL);
	EQ(in, !rank);
	done(&s);
}

/* Contexts report their attributes and refuse unsupported calls. */
static void rules(int rank)
{
	struct fi_tx_attr tx = { 0 };
	struct fi_rx_attr rx = { 0 };
	struct fid_ep *ep, *other;
	struct fid_cq *q;
	struct ct_name name;
	struct sep s;
	char b[8];

	(void)rank;
	start(&s, FI_MSG | FI_TAGGED | FI_RMA);
	/* the endpoint itself transfers nothing and takes only its address vector */
	ERR(fi_send(s.sep, b, 1, NULL, 0, NULL), FI_ENOSYS);
	ERR(fi_trecv(s.sep, b, 1, NULL, 0, 0, 0, NULL), FI_ENOSYS);
	ERR(fi_ep_bind(s.sep, &s.c.tx->fid, FI_TRANSMIT), FI_EINVAL);
	ERR(fi_scalable_ep_bind(s.sep, &s.c.av->fid, 0), FI_EINVAL);
	ERR(fi_tx_context(s.sep, N, NULL, &ep, NULL), FI_EINVAL);
	ERR(fi_rx_context(s.sep, -1, NULL, &ep, NULL), FI_EINVAL);
	/* attributes: less than the endpoint has, and the resulting ones */
	tx.size = s.c.info->tx_attr->size + 1;
	ERR(fi_tx_context(s.sep, 0, &tx, &ep, NULL), FI_EINVAL);
	tx.size = 2;
	tx.caps = FI_MSG | FI_SEND;
	OK(fi_tx_context(s.sep, 0, &tx, &ep, NULL));
	EQ(tx.size, 2);
	EQ(tx.caps, FI_MSG | FI_SEND);
	EQ(tx.inject_size, s.c.info->tx_attr->inject_size);
	ERR(fi_tx_context(s.sep, 0, NULL, &other, NULL), FI_EBUSY);
	ERR(fi_close(&s.sep->fid), FI_EBUSY);
	ERR(fi_send(ep, b, 1, NULL, 0, NULL), FI_EOPBADSTATE);
	ERR(fi_enable(ep), FI_ENOCQ);
	ERR(fi_ep_bind(ep, &s.c.rx->fid, FI_RECV), FI_EINVAL);
	ERR(fi_ep_bind(ep, &s.c.av->fid, 0), FI_EINVAL);
	OK(fi_cq_open(s.c.domain, &(struct fi_cq_attr){ 0 }, &q, NULL));
	OK(fi_ep_bind(ep, &q->fid, FI_TRANSMIT));
	OK(fi_enable(ep));
	ERR(fi_recv(ep, b, 1, NULL, FI_ADDR_UNSPEC, NULL), FI_ENOSYS);
	/* its own capabilities */
	ERR(fi_tsend(ep, b, 1, NULL, 0, 0, NULL), FI_ENOSYS);
	ERR(fi_write(ep, b, 1, NULL, 0, 0, 0, NULL), FI_ENOSYS);
	EQ(fi_tx_size_left(ep), 2);
	/* one address for all */
	s.name = ct_getname(&s.sep->fid);
	name = ct_getname(&ep->fid);
	CHECK(name.n == s.name.n && !memcmp(name.b, s.name.b, name.n));
	CHECK(((struct sockaddr_in *)name.b)->sin_port);
	/* an alias is the same context */
	OK(fi_ep_alias(ep, &other, FI_TRANSMIT));
	EQ(other->fid.fclass, FI_CLASS_TX_CTX);
	OK(fi_close(&ep->fid));
	ERR(fi_tx_context(s.sep, 0, NULL, &ep, NULL), FI_EBUSY);
	ERR(fi_close(&q->fid), FI_EBUSY);
	OK(fi_close(&other->fid));
	OK(fi_close(&q->fid));
	/* closed, it can be had again */
	OK(fi_tx_context(s.sep, 0, NULL, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_rx_context(s.sep, 0, &rx, &ep, NULL));
	EQ(rx.size, s.c.info->rx_attr->size);
	/* programs pass FI_NAMED_RX_CTX for the named endpoint, too */
	OK(fi_close(&ep->fid));
	rx.caps |= FI_NAMED_RX_CTX;
	OK(fi_rx_context(s.sep, 0, &rx, &ep, NULL));
	ERR(fi_ep_bind(ep, &s.c.tx->fid, FI_TRANSMIT), FI_EINVAL);
	OK(fi_ep_bind(ep, &s.c.rx->fid, FI_RECV));
	OK(fi_enable(ep));
	ERR(fi_send(ep, b, 1, NULL, 0, NULL), FI_ENOSYS);
	ERR(fi_read(ep, b, 1, NULL, 0, 0, 0, NULL), FI_ENOSYS);
	OK(fi_close(&ep->fid));
	close_all(&s);
	/* without an address vector no context works */
	start(&s, FI_MSG);
	OK(fi_scalable_ep(s.c.domain, s.c.info, &other, NULL));
	OK(fi_rx_context(other, 0, NULL, &ep, NULL));
	OK(fi_ep_bind(ep, &s.c.rx->fid, FI_RECV));
	ERR(fi_enable(ep), FI_ENOAV);
	ERR(fi_enable(other), FI_ENOAV);
	OK(fi_close(&ep->fid));
	OK(fi_close(&other->fid));
	close_all(&s);
}

static void memory(int rank)
{
	struct fi_cntr_attr n = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *out, *in;
	struct fi_cq_tagged_entry e;
	struct { uint64_t key, addr; } mine, theirs;
	struct fid_mr *mr;
	static uint64_t window[4], data[4];
	struct sep s;

	start(&s, FI_MSG | FI_RMA | FI_RMA_EVENT);
	for (int i = 0; i < N - 1; i++) {
		open_tx(&s, i);
		open_rx(&s, i);
	}
	/* the last contexts count */
	OK(fi_cntr_open(s.c.domain, &n, &out, NULL));
	OK(fi_cntr_open(s.c.domain, &n, &in, NULL));
	OK(fi_tx_context(s.sep, N - 1, NULL, &s.tx[N - 1], NULL));
	ERR(fi_ep_bind(s.tx[N - 1], &in->fid, FI_REMOTE_WRITE), FI_EINVAL);
	OK(fi_ep_bind(s.tx[N - 1], &out->fid, FI_WRITE | FI_READ | FI_SEND));
	OK(fi_cq_open(s.c.domain, &(struct fi_cq_attr){ .format = FI_CQ_FORMAT_TAGGED }, &s.txq[N - 1], NULL));
	OK(fi_ep_bind(s.tx[N - 1], &s.txq[N - 1]->fid, FI_TRANSMIT));
	OK(fi_enable(s.tx[N - 1]));
	OK(fi_rx_context(s.sep, N - 1, NULL, &s.rx[N - 1], NULL));
	ERR(fi_ep_bind(s.rx[N - 1], &out->fid, FI_WRITE), FI_EINVAL);
	OK(fi_ep_bind(s.rx[N - 1], &in->fid, FI_REMOTE_WRITE | FI_RECV));
	OK(fi_cq_open(s.c.domain, &(struct fi_cq_attr){ .format = FI_CQ_FORMAT_TAGGED }, &s.rxq[N - 1], NULL));
	OK(fi_ep_bind(s.rx[N - 1], &s.rxq[N - 1]->fid, FI_RECV));
	OK(fi_enable(s.rx[N - 1]));
	OK(fi_enable(s.sep));
	s.name = ct_getname(&s.sep->fid);
	OK(fi_mr_reg(s.c.domain, window, sizeof window, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL));
	if (s.c.info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		OK(fi_mr_bind(mr, &s.sep->fid, 0));
		OK(fi_mr_enable(mr));
	}
	mine.key = fi_mr_key(mr);
	mine.addr = s.c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)window : 0;
	synchronize(&s);
	ct_swap(&s.c, &mine, &theirs, sizeof mine);
	for (int i = 0; i < N; i++)
		data[i] = 1000 * (rank + 1) + i;
	for (int i = 0; i < N; i++) {
		POST(&s.c, fi_writedata(s.tx[i], &data[i], 8, NULL, 40 + i, at(&s, i),
					theirs.addr + 8 * i, theirs.key, &data[i]));
		ct_next(&s.c, s.txq[i], &e, NULL, NULL);
		CHECK(e.op_context == &data[i]);
	}
	/* each context is notified of writes through it */
	for (int i = 0; i < N; i++) {
		ct_next(&s.c, s.rxq[i], &e, NULL, NULL);
		CHECK(e.flags & FI_REMOTE_WRITE);
		EQ(e.data, 40 + i);
		EQ(window[i], 1000 * (!rank + 1) + i);
	}
	EQ(fi_cntr_read(out), 1);
	EQ(fi_cntr_read(in), 1);
	data[3] = 0;
	POST(&s.c, fi_read(s.tx[N - 1], &data[3], 8, NULL, at(&s, 1), theirs.addr + 8, theirs.key, NULL));
	ct_next(&s.c, s.txq[N - 1], &e, NULL, NULL);
	EQ(data[3], data[1]);
	EQ(fi_cntr_read(out), 2);
	ct_barrier(&s.c);
	OK(fi_close(&mr->fid));
	for (int i = 0; i < N; i++) {
		close_one(&s.tx[i], &s.txq[i]);
		close_one(&s.rx[i], &s.rxq[i]);
	}
	OK(fi_close(&out->fid));
	OK(fi_close(&in->fid));
	close_all(&s);
}

/* Operations posted to a context end with it, unreported; all others stay. */
static void closing(int rank)
{
	struct fi_cq_tagged_entry e;
	struct sep s;
	int out = 5 + rank, old = -1, in = -1;

	open_all(&s, FI_MSG);
	synchronize(&s);
	OK(fi_recv(s.rx[1], &old, sizeof old, NULL, FI_ADDR_UNSPEC, &old));
	OK(fi_recv(s.rx[0], &in, sizeof in, NULL, FI_ADDR_UNSPEC, &in));
	OK(fi_cancel(&s.tx[0]->fid, &in));
	OK(fi_close(&s.rx[1]->fid));
	OK(fi_close(&s.tx[0]->fid));
	s.rx[1] = s.tx[0] = NULL;
	ERR(fi_cq_read(s.rxq[1], &e, 1), FI_EAGAIN);
	ct_barrier(&s.c);
	/* one message waits for the context to come back, the other for nothing */
	POST(&s.c, fi_send(s.tx[1], &out, sizeof out, NULL, at(&s, 1), NULL));
	POST(&s.c, fi_send(s.tx[1], &out, sizeof out, NULL, at(&s, 0), NULL));
	ct_next(&s.c, s.rxq[0], &e, NULL, NULL);
	CHECK(e.op_context == &in);
	EQ(in, 5 + !rank);
	ct_barrier(&s.c);
	NOTHING(&s.c, s.rxq[1], 30);
	EQ(old, -1);
	OK(fi_close(&s.rxq[1]->fid));
	OK(fi_close(&s.txq[0]->fid));
	open_rx(&s, 1);
	open_tx(&s, 0);
	in = -1;
	OK(fi_recv(s.rx[1], &in, sizeof in, NULL, FI_ADDR_UNSPEC, &in));
	ct_next(&s.c, s.rxq[1], &e, NULL, NULL);
	EQ(in, 5 + !rank);
	OK(fi_recv(s.rx[2], &in, sizeof in, NULL, FI_ADDR_UNSPEC, &in));
	ct_barrier(&s.c);
	POST(&s.c, fi_send(s.tx[0], &out, sizeof out, NULL, at(&s, 2), NULL));
	ct_next(&s.c, s.txq[0], &e, NULL, NULL);
	ct_next(&s.c, s.rxq[2], &e, NULL, NULL);
	done(&s);
}

/* Endpoints of rank 0 that share receives and a transmit context. */
static void shared(int rank)
{
	struct fi_info *h, *i = NULL;
	struct ct c = { .o.caps = FI_MSG | FI_SOURCE };
	struct ct_name names[2] = { 0 }, theirs[2];
	struct fid_ep *ep[2], *srx, *other;
	struct fid_cq *q[2];
	struct fid_stx *stx;
	struct fi_cq_tagged_entry e;
	int in[2] = { 0 }, r;

	h = ct_hints(&c.o);
	h->ep_attr->tx_ctx_cnt = h->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	r = fi_getinfo(CT_VERSION, ct_node(&c.o), "0", FI_SOURCE, h, &i);
	fi_freeinfo(h);
	if (r == -FI_ENODATA)
		SKIP("no shared contexts");
	OK(r);
	EQ(i->ep_attr->tx_ctx_cnt, FI_SHARED_CONTEXT);
	EQ(i->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
	CHECK(i->domain_attr->max_ep_stx_ctx > 0 && i->domain_attr->max_ep_srx_ctx > 0);
	c.info = i;
	if (rank == 1) {
		fi_freeinfo(i);
		names[0] = ct_open_rdm(&c, NULL);
		ct_swap(&c, names, theirs, sizeof names);
		for (int n = 0; n < 2; n++) {
			int word = 30 + n;

			c.peer = ct_insert(&c, &theirs[n]);
			OK(fi_recv(c.ep, &in[n], sizeof in[n], NULL, FI_ADDR_UNSPEC, NULL));
			POST(&c, fi_send(c.ep, &word, sizeof word, NULL, c.peer, NULL));
			ct_sent(&c, NULL);
			ct_next(&c, c.rx, &e, NULL, NULL);
			EQ(in[n], 60 + n);
			ct_barrier(&c);
		}
		ct_done(&c);
		return;
	}
	OK(fi_fabric(i->fabric_attr, &c.fabric, NULL));
	ct_open_domain(&c);
	OK(fi_srx_context(c.domain, i->rx_attr, &srx, NULL));
	OK(fi_stx_context(c.domain, i->tx_attr, &stx, &c));
	EQ(stx->fid.fclass, FI_CLASS_STX_CTX);
	CHECK(stx->fid.context == &c);
	ERR(fi_ep_bind(srx, &stx->fid, 0), FI_EINVAL);
	for (int n = 0; n < 2; n++) {
		OK(fi_endpoint(c.domain, i, &ep[n], NULL));
		OK(fi_cq_open(c.domain, &(struct fi_cq_attr){ .format = FI_CQ_FORMAT_TAGGED }, &q[n], NULL));
		OK(fi_ep_bind(ep[n], &c.av->fid, 0));
		OK(fi_ep_bind(ep[n], &stx->fid, 0));
		ERR(fi_ep_bind(ep[n], &stx->fid, 0), FI_EINVAL);
		OK(fi_ep_bind(ep[n], &srx->fid, 0));
		OK(fi_ep_bind(ep[n], &q[n]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(ep[n]));
		names[n] = ct_getname(&ep[n]->fid);
	}
	ERR(fi_close(&stx->fid), FI_EBUSY);
	ERR(fi_close(&srx->fid), FI_EBUSY);
	ct_swap(&c, names, theirs, sizeof names);
	c.peer = ct_insert(&c, &theirs[0]);
	for (int n = 0; n < 2; n++) {
		fi_addr_t src = FI_ADDR_NOTAVAIL;
		int word = 60 + n;

		OK(fi_recv(srx, &in[n], sizeof in[n], NULL, FI_ADDR_UNSPEC, &in[n]));
		/* the endpoint that got the message reports it, and its sender */
		ct_next(&c, q[n], &e, &src, NULL);
		CHECK(e.op_context == &in[n]);
		EQ(in[n], 30 + n);
		EQ(src, c.peer);
		POST(&c, fi_send(ep[n], &word, sizeof word, NULL, c.peer, &word));
		ct_next(&c, q[n], &e, NULL, NULL);
		CHECK(e.op_context == &word);
		ct_barrier(&c);
	}
	ct_barrier(&c);
	for (int n = 0; n < 2; n++) {
		OK(fi_close(&ep[n]->fid));
		OK(fi_close(&q[n]->fid));
	}
	OK(fi_endpoint(c.domain, i, &other, NULL));
	OK(fi_close(&stx->fid));
	OK(fi_close(&other->fid));
	OK(fi_close(&srx->fid));
	ct_close(&c);
}

/* Two endpoints on one transmit context and nothing else in common: each sends to the other. */
static void shared_tx(int rank)
{
	struct ct c[2] = { 0 };
	struct ct_name name[2];
	struct fi_info *h, *i = NULL;
	struct fi_cq_tagged_entry e;
	struct fid_stx *stx;
	int in[2] = { 0 }, r;

	(void)rank;
	h = ct_hints(&c[0].o);
	h->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
	r = fi_getinfo(CT_VERSION, ct_node(&c[0].o), "0", FI_SOURCE, h, &i);
	fi_freeinfo(h);
	if (r == -FI_ENODATA)
		SKIP("no shared transmit contexts");
	OK(r);
	EQ(i->ep_attr->tx_ctx_cnt, FI_SHARED_CONTEXT);
	EQ(i->ep_attr->rx_ctx_cnt, 1);
	CHECK(i->domain_attr->max_ep_stx_ctx > 0);
	OK(fi_fabric(i->fabric_attr, &c[0].fabric, NULL));
	OK(fi_domain(c[0].fabric, i, &c[0].domain, NULL));
	OK(fi_stx_context(c[0].domain, i->tx_attr, &stx, c));
	for (int n = 0; n < 2; n++) {
		c[n].info = n ? fi_dupinfo(i) : i;
		c[n].borrowed = n;
		c[n].domain = c[0].domain;
		ct_open_domain(&c[n]);
		ct_open_ep(&c[n], c[n].info);
		OK(fi_ep_bind(c[n].ep, &stx->fid, 0));
		ERR(fi_ep_bind(c[n].ep, &stx->fid, 0), FI_EINVAL);
		OK(fi_enable(c[n].ep));
		name[n] = ct_getname(&c[n].ep->fid);
		OK(fi_recv(c[n].ep, &in[n], sizeof in[n], NULL, FI_ADDR_UNSPEC, &in[n]));
	}
	ERR(fi_close(&stx->fid), FI_EBUSY);
	for (int n = 0; n < 2; n++) {
		int word = 40 + n;

		c[n].peer = ct_insert(&c[n], &name[!n]);
		POST(&c[n], fi_send(c[n].ep, &word, sizeof word, NULL, c[n].peer, &c[n]));
		for (int64_t k; (k = fi_cq_read(c[n].tx, &e, 1)) != 1; ct_progress(&c[!n]))
			EQ(k, -FI_EAGAIN);
		CHECK(e.op_context == &c[n]);
		for (int64_t k; (k = fi_cq_read(c[!n].rx, &e, 1)) != 1; ct_progress(&c[n]))
			EQ(k, -FI_EAGAIN);
		CHECK(e.op_context == &in[!n]);
		EQ(in[!n], word);
	}
	OK(fi_close(&c[0].ep->fid));
	c[0].ep = NULL;
	ERR(fi_close(&stx->fid), FI_EBUSY);
	OK(fi_close(&c[1].ep->fid));
	c[1].ep = NULL;
	OK(fi_close(&stx->fid));
	ct_close(&c[1]);
	ct_close(&c[0]);
}

/* Sends a connection message of tcp that requests contexts; returns the length of the answer, 0 if the connection ended. */
static size_t ask(struct ct *c, const struct ct_name *to, const char mark[8], uint16_t tx, uint16_t rx, unsigned char *answer)
{
	unsigned char m[40] = { 3, 64, 0, 8, [8] = tx >> 8, tx, rx >> 8, rx, [32] = 1, [34] = 1, 2 };
	uint64_t one = 1;
	size_t got = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	memcpy(m + 16, mark, 8);
	memcpy(m + 24, &one, 8);
	CHECK(fd >= 0 && !connect(fd, (const void *)to->b, sizeof(struct sockaddr_in)));
	EQ(send(fd, m, sizeof m, MSG_NOSIGNAL), sizeof m);
	for (;;) {
		ssize_t r = recv(fd, answer + got, 200 - got, MSG_DONTWAIT);

		ct_progress(c);
		if (r > 0)
			got += r;
		else if (r == 0 || (errno != EAGAIN && errno != EINTR) || got >= 32)
			break;
	}
	close(fd);
	return got;
}
static void unknown_peers(int rank)
{
	unsigned char a[200];
	struct fi_cq_tagged_entry e;
	struct ct_opt o = { 0 };
	struct ct_name name;
	struct ct c = { 0 };
	struct sep s;
	int word = 4, in = 0;

	(void)rank;
	if (strcmp(ct_prov, "tcp"))
		SKIP("the messages are those of tcp");
	fi_freeinfo(sep_info(&o));
	name = ct_open_rdm(&c, NULL);
	/* the first context of any endpoint may be requested explicitly */
	CHECK(ask(&c, &name, "ofi-rs?\2", 1, 0, a) >= 32);
	EQ(a[1], 1);
	CHECK(!memcmp(a + 16, "ofi-rs!\2", 8) && a[9] == 1);
	EQ(ask(&c, &name, "ofi-rs?\1", 1, 0, a), 0);
	EQ(ask(&c, &name, "\0\0\0\0\0\0\0\2", 1, 0, a), 0);
	EQ(ask(&c, &name, "ofi-rs?\2", 0, 0, a), 0);
	CHECK(ask(&c, &name, "ofi-rs?\2", 0, 1, a) >= 32);
	EQ(a[1], 6);
	ct_close(&c);
	open_all(&s, FI_MSG);
	CHECK(ask(&s.c, &s.name, "ofi-rs?\2", 0xffff, N - 1, a) >= 32);
	EQ(a[1], 1);
	CHECK(ask(&s.c, &s.name, "ofi-rs?\2", 0, N, a) >= 32);
	EQ(a[1], 6);
	CHECK(ask(&s.c, &s.name, "ofi-rs?\2", 0, 0xffff, a) >= 32);
	EQ(a[1], 6);
	/* all else goes on */
	s.c.peer = ct_insert(&s.c, &s.name);
	OK(fi_recv(s.rx[2], &in, sizeof in, NULL, FI_ADDR_UNSPEC, NULL));
	POST(&s.c, fi_send(s.tx[1], &word, sizeof word, NULL, at(&s, 2), NULL));
	ct_next(&s.c, s.rxq[2], &e, NULL, NULL);
	EQ(in, 4);
	close_all(&s);
}

/* A caller without a request for contexts sees nothing of them. */
static void unasked(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *h = ct_hints(&o), *i;

	(void)rank;
	fi_freeinfo(sep_info(&(struct ct_opt){ 0 }));
	h->caps = 0;
	OK(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i));
	for (struct fi_info *x = i; x; x = x->next) {
		/* programs for sockets expect them */
		EQ(!!(x->caps & FI_NAMED_RX_CTX), !strcmp(x->fabric_attr->prov_name, "sockets"));
		EQ(x->ep_attr->tx_ctx_cnt, 1);
		EQ(x->ep_attr->rx_ctx_cnt, 1);
	}
	fi_freeinfo(i);
	/* more than there are */
	h->ep_attr->tx_ctx_cnt = 1 << 20;
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
}

/* Operations of contexts wait for counters, each kind on contexts of its side alone. */
static void later(int rank)
{
	struct fi_triggered_context2 tc[3] = { 0 };
	struct fi_deferred_work work[2] = { 0 };
	struct fi_op_msg op[2] = { 0 };
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err;
	struct fid_cntr *go, *sent, *got;
	struct iovec v[2];
	struct fi_msg m;
	struct sep s;
	int out[2] = { 10 + rank, 20 + rank }, in[2] = { 0 };

	open_all(&s, FI_MSG | FI_TRIGGER);
	CHECK(s.c.info->caps & FI_TRIGGER);
	CHECK(!(s.c.info->caps & FI_COLLECTIVE));
	synchronize(&s);
	OK(fi_cntr_open(s.c.domain, NULL, &go, NULL));
	OK(fi_cntr_open(s.c.domain, NULL, &sent, NULL));
	OK(fi_cntr_open(s.c.domain, NULL, &got, NULL));
	OK(fi_recv(s.rx[1], &in[0], sizeof in[0], NULL, FI_ADDR_UNSPEC, &in[0]));
	for (int i = 0; i < 3; i++) {
		tc[i].event_type = FI_TRIGGER_THRESHOLD;
		tc[i].trigger.threshold.cntr = go;
		tc[i].trigger.threshold.threshold = 1 + i;
	}
	v[0] = (struct iovec){ &out[0], sizeof out[0] };
	m = (struct fi_msg){ .msg_iov = v, .iov_count = 1, .addr = at(&s, 1), .context = &tc[0] };
	OK(fi_sendmsg(s.tx[2], &m, FI_TRIGGER));
	/* cancelled before its time, and the last one waits without a message */
	m.context = &tc[1];
	OK(fi_sendmsg(s.tx[2], &m, FI_TRIGGER));
	OK(fi_cancel(&s.tx[2]->fid, &tc[1]));
	EQ(ct_next(&s.c, s.txq[2], &e, NULL, &err), -FI_EAVAIL);
	CHECK(err.err == FI_ECANCELED && err.op_context == &tc[1]);
	m.context = &tc[2];
	OK(fi_sendmsg(s.tx[2], &m, FI_TRIGGER));
	NOTHING(&s.c, s.rxq[1], 50);
	ct_barrier(&s.c);
	OK(fi_cntr_add(go, 1));
	ct_next(&s.c, s.txq[2], &e, NULL, NULL);
	CHECK(e.op_context == &tc[0]);
	ct_next(&s.c, s.rxq[1], &e, NULL, NULL);
	EQ(in[0], 10 + !rank);
	/* deferred: a receive on one context, a send to it from another */
	v[0] = (struct iovec){ &in[1], sizeof in[1] };
	v[1] = (struct iovec){ &out[1], sizeof out[1] };
	for (int i = 0; i < 2; i++) {
		op[i].ep = i ? s.tx[0] : s.rx[2];
		op[i].msg = (struct fi_msg){ .msg_iov = &v[i], .iov_count = 1, .addr = i ? at(&s, 2) : FI_ADDR_UNSPEC, .context = &op[i] };
		work[i].triggering_cntr = go;
		work[i].threshold = 2;
		work[i].completion_cntr = i ? sent : got;
		work[i].op_type = i ? FI_OP_SEND : FI_OP_RECV;
		work[i].op.msg = &op[i];
	}
	op[0].ep = s.tx[0];
	ERR(fi_control(&s.c.domain->fid, FI_QUEUE_WORK, &work[0]), FI_ENOSYS);
	op[0].ep = s.sep;
	ERR(fi_control(&s.c.domain->fid, FI_QUEUE_WORK, &work[0]), FI_EINVAL);
	op[0].ep = s.rx[2];
	OK(fi_control(&s.c.domain->fid, FI_QUEUE_WORK, &work[0]));
	OK(fi_control(&s.c.domain->fid, FI_QUEUE_WORK, &work[1]));
	NOTHING(&s.c, s.rxq[2], 50);
	ct_barrier(&s.c);
	OK(fi_cntr_add(go, 1));
	while (fi_cntr_read(sent) + fi_cntr_read(got) < 2)
		ct_progress(&s.c);
	EQ(in[1], 20 + !rank);
	ct_barrier(&s.c);
	/* waiting operations end with their context */
	ERR(fi_close(&go->fid), FI_EBUSY);
	close_one(&s.tx[2], &s.txq[2]);
	OK(fi_close(&go->fid));
	OK(fi_close(&sent->fid));
	OK(fi_close(&got->fid));
	close_all(&s);
}

static const struct ct_test tests[] = {
	{ "messages of every transmit context reach the named receive context in order", ways, CT_RDM | CT_REL },
	{ "contexts match tags independently", tags, CT_RDM | CT_REL },
	{ "a scalable endpoint exchanges messages between its own contexts, by source", itself, CT_RDM | CT_REL | CT_SOLO },
	{ "a regular endpoint exchanges messages with every context of a scalable one", simple, CT_RDM | CT_REL },
	{ "a message for a context missing at the peer fails alone", nowhere, CT_RDM | CT_REL },
	{ "contexts inherit attributes, refuse invalid requests and close before their endpoint", rules, CT_RDM | CT_REL | CT_SOLO },
	{ "reads and writes are reported and counted by their own contexts", memory, CT_RDM | CT_REL },
	{ "a closed context does not affect others", closing, CT_RDM | CT_REL },
	{ "connectionless endpoints share receives and a transmit context", shared, CT_RDM | CT_REL },
	{ "connectionless endpoints share only a transmit context", shared_tx, CT_RDM | CT_REL | CT_SOLO },
	{ "invalid requests for contexts are refused one by one", unknown_peers, CT_RDM | CT_REL | CT_SOLO | CT_BARE },
	{ "several contexts are offered only on request", unasked, CT_RDM | CT_REL | CT_SOLO },
	{ "operations of contexts can be triggered by counters and deferred", later, CT_RDM | CT_REL },
};
CT_MAIN("sep", tests)
