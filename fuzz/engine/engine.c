/*
 * An endpoint between an application and three hostile peers, all of which do what a script
 * says: each byte is an action, those behind it its arguments.  Peers are sockets that connect,
 * send well-formed frames, frames with anything in them and parts of frames, hang up, half or
 * all, or reset.  The application posts, cancels, progresses, registers memory and ends that.
 *
 * Checked in the end, whatever the script was: an honest peer's message gets through; every
 * operation completed once, and not before it was posted; all closes, and leaves no descriptor
 * and no memory behind.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int ofi_fuzz_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info);
int ofi_fuzz_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

enum { PEERS = 3, OPS = 64, BUF = 40000, MEMORY = 4096, KEY = 7 };
#define FAIL(...) do { fprintf(stderr, "ERROR: " __VA_ARGS__); fprintf(stderr, "\n"); abort(); } while (0)
#define OK(x) do { long r_ = (long)(x); if (r_) FAIL("%s: %ld %s", #x, r_, strerror((int)-r_)); } while (0)

struct op { struct fi_context2 ctx; int posted, done, multi; char *buf; };
static struct {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq[2];		/* the endpoint's, the honest peer's */
	struct fid_av *av[2];
	struct fid_ep *ep[2];
	struct fid_mr *mr;
	char *memory;
	fi_addr_t to[2];		/* one another */
	fi_addr_t hostile[PEERS];
	struct sockaddr_in name;
	struct { int fd; uint64_t conn; } peer[PEERS];
	struct op op[OPS];
	int nops;
	int rxm;
} S;

static const uint8_t *at, *end;
static uint64_t take(int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n && at < end; i++)
		v |= (uint64_t)*at++ << 8 * i;
	return v;
}
static size_t in_use(void)
{
	return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : 0;
}
static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* ---- the application -------------------------------------------------- */

static void done(void *context, uint64_t flags, int error)
{
	struct op *o = context;

	if (!o)		/* what a peer did to our memory */
		return;
	if (o < S.op || o >= S.op + S.nops || !o->posted)
		FAIL("a completion of nothing, error %d", error);
	if (o->done)
		FAIL("operation %ld completed twice", (long)(o - S.op));
	if (o->multi && !(flags & FI_MULTI_RECV))
		return;
	o->done = 1;
	free(o->buf);	/* no further message is written to it */
	o->buf = NULL;
}
static int drain(int which)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry x = { 0 };
	int n = 0;

	for (; n < 200; n++) {
		ssize_t r = fi_cq_read(S.cq[which], &e, 1);

		if (r == 1) {
			if (which == 0)
				done(e.op_context, e.flags, 0);
			else if (e.op_context != &S.to[1])
				FAIL("the honest peer has a completion of nothing");
		} else if (r == -FI_EAVAIL) {
			if (fi_cq_readerr(S.cq[which], &x, 0) != 1)
				FAIL("no error entry");
			if (which == 0)
				done(x.op_context, x.flags, x.err);
		} else if (r == -FI_EAGAIN) {
			break;
		} else {
			FAIL("fi_cq_read: %zd", r);
		}
	}
	return n;
}
static struct op *new_op(void)
{
	struct op *o;

	if (S.nops == OPS)
		return NULL;
	o = &S.op[S.nops++];
	memset(o, 0, sizeof *o);
	o->buf = malloc(BUF);
	memset(o->buf, 'a', BUF);
	o->posted = 1;
	return o;
}
static void posted(struct op *o, ssize_t r)
{
	if (r == 0)
		return;
	if (o->done)
		FAIL("a call failed, %zd, and its operation completed", r);
	o->posted = 0;
	free(o->buf);
	o->buf = NULL;
}
static fi_addr_t whom(int who)
{
	return who % 4 == 3 ? S.to[0] : S.hostile[who % 4];
}
static void post_recv(void)
{
	int how = (int)take(1);
	size_t len = (size_t)take(2) % (BUF + 1);
	struct op *o = new_op();
	struct iovec v;

	if (!o)
		return;
	v = (struct iovec){ o->buf, len };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = o };
	struct fi_msg_tagged t = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = (uint64_t)how >> 4, .ignore = how & 8 ? ~0ull : 0, .context = o };
	fi_addr_t from = how & 4 ? whom(how >> 6) : FI_ADDR_UNSPEC;

	switch (how & 3) {
	case 0: posted(o, fi_recv(S.ep[0], o->buf, len, NULL, from, o)); break;
	case 1: posted(o, fi_trecv(S.ep[0], o->buf, len, NULL, from, t.tag, t.ignore, o)); break;
	case 2:
		o->multi = 1;
		posted(o, fi_recvmsg(S.ep[0], &m, FI_MULTI_RECV | FI_COMPLETION));
		break;
	default: posted(o, fi_trecvmsg(S.ep[0], &t, FI_COMPLETION | FI_PEEK | (how & 4 ? FI_DISCARD : 0))); break;
	}
}
static void post_send(void)
{
	int how = (int)take(1);
	size_t len = (size_t)take(2) % (BUF + 1);
	fi_addr_t to = whom(how & 3);
	struct op *o;

	if (to == FI_ADDR_NOTAVAIL)
		return;
	if (!(o = new_op()))
		return;
	struct iovec v = { o->buf, len };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = to, .context = o };
	struct fi_rma_iov there = { S.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)S.memory : 0, len, KEY };
	struct fi_msg_rma r = { .msg_iov = &v, .iov_count = 1, .addr = to, .rma_iov = &there, .rma_iov_count = 1, .context = o };
	int64_t one = 1;
	uint64_t flags = FI_COMPLETION | (how & 4 ? FI_DELIVERY_COMPLETE : 0);

	switch (how >> 3 & 7) {
	case 0: case 1: posted(o, fi_sendmsg(S.ep[0], &m, flags)); break;
	case 2: case 3: posted(o, fi_tsend(S.ep[0], o->buf, len, NULL, to, (uint64_t)how >> 6, o)); break;
	case 4: posted(o, fi_writemsg(S.ep[0], &r, flags)); break;
	case 5: posted(o, fi_readmsg(S.ep[0], &r, FI_COMPLETION)); break;
	case 6:
		memcpy(o->buf, &one, sizeof one);
		posted(o, fi_atomic(S.ep[0], o->buf, 1, NULL, to, there.addr, KEY, FI_INT64, FI_SUM, o));
		break;
	default:
		posted(o, -1);
		(void)fi_inject(S.ep[0], "inject", 7, to);
		break;
	}
}
static void change_memory(void)
{
	if (S.mr) {
		OK(fi_close(&S.mr->fid));
		S.mr = NULL;
		free(S.memory);
		S.memory = NULL;
	} else {
		S.memory = calloc(1, MEMORY);
		OK(fi_mr_reg(S.domain, S.memory, MEMORY, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &S.mr, NULL));
	}
}
static void change_names(int i)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)(i + 1)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	if (S.hostile[i] == FI_ADDR_NOTAVAIL) {
		if (fi_av_insert(S.av[0], &a, 1, &S.hostile[i], 0, NULL) != 1)
			FAIL("fi_av_insert");
	} else {
		OK(fi_av_remove(S.av[0], &S.hostile[i], 1, 0));
		S.hostile[i] = FI_ADDR_NOTAVAIL;
	}
}

/* ---- hostile peers ---------------------------------------------------- */

static void put(uint8_t **p, uint64_t v, int n, int big)
{
	for (int i = 0; i < n; i++)
		*(*p)++ = (uint8_t)(v >> 8 * (big ? n - 1 - i : i));
}
static void to_engine(int i, const void *b, size_t n)
{
	if (S.peer[i].fd >= 0)
		(void)send(S.peer[i].fd, b, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}
static void hang_up(int i, int reset)
{
	struct linger l = { .l_onoff = 1 };

	if (S.peer[i].fd < 0)
		return;
	if (reset)
		setsockopt(S.peer[i].fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	close(S.peer[i].fd);
	S.peer[i].fd = -1;
}
static void call_engine(int i)
{
	int one = 1;

	hang_up(i, 0);
	S.peer[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	S.peer[i].conn = 0;
	if (S.peer[i].fd < 0 || connect(S.peer[i].fd, (void *)&S.name, sizeof S.name))
		FAIL("no connection");
	setsockopt(S.peer[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}
/* A request to connect as peer i says it, with something else in one place if the script likes. */
static void hello(int i)
{
	uint8_t b[128] = { 0 }, *p = b, odd = (uint8_t)take(1), what = (uint8_t)take(1);

	put(&p, 3, 1, 1);
	put(&p, odd & 2 ? 64 : 0, 1, 1);
	put(&p, S.rxm ? 24 : 8, 2, 1);
	p += 12;
	if (odd & 1)
		memcpy(p, "ofi-rs?\x05", 8);
	p += 8;
	put(&p, 1, 8, odd >> 2 & 1);
	if (S.rxm) {
		put(&p, 1, 1, 0);
		put(&p, 2, 1, 0);
		put(&p, 4, 1, 0);
		put(&p, 3, 1, 0);
		put(&p, (uint64_t)i + 1, 2, 0);
		put(&p, 2, 1, 0);
		put(&p, 0, 1, 0);
		put(&p, 16384, 4, 0);
		put(&p, 512, 4, 0);
		put(&p, 77ull << 32 | 5, 8, 0);
	} else {
		put(&p, odd >> 3 & 1, 1, 1);
		put(&p, odd >> 4 & 1, 1, 1);
		put(&p, (uint64_t)i + 1, 2, 1);
		put(&p, 4242, 4, 1);
	}
	if (odd & 128)
		b[what % (p - b)] ^= (uint8_t)take(1);
	to_engine(i, b, (size_t)(p - b));
}
/* What the engine said; the answer to hello has ofi_rxm's name for the connection. */
static void read_answer(int i)
{
	uint8_t b[4096];
	ssize_t n = S.peer[i].fd < 0 ? 0 : recv(S.peer[i].fd, b, sizeof b, MSG_DONTWAIT);

	if (n >= 40 && b[0] == 3 && b[1] == 1 && !S.peer[i].conn)
		memcpy(&S.peer[i].conn, b + 32, 8);
}
/* A transfer header of tcp, and so many bytes of what follows. */
static void frame(int i, int op, int flags, int op_data, int segments, uint64_t tag, int tagged, int64_t more, const uint8_t *body, size_t n, size_t cut)
{
	static uint8_t b[BUF + 256];
	uint8_t *p = b + 16, *q = b;

	if (flags & 1)
		put(&p, 99, 8, 0);
	if (tagged)
		put(&p, tag, 8, 0);
	if (op == 5)
		put(&p, (uint64_t)more, 8, 0);
	for (int s = 0; s < segments; s++) {
		put(&p, (S.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)S.memory : 0) + take(1), 8, 0);
		put(&p, n, 8, 0);
		put(&p, KEY, 8, 0);
	}
	put(&q, 3, 1, 0);
	put(&q, (uint64_t)op, 1, 0);
	put(&q, (uint64_t)flags, 2, 0);
	put(&q, (uint64_t)op_data, 1, 0);
	put(&q, (uint64_t)segments, 1, 0);
	put(&q, (uint64_t)(p - b), 1, 0);
	put(&q, 0, 1, 0);
	put(&q, (uint64_t)(p - b) + (op == 2 || op == 5 ? 0 : n) + (uint64_t)(op == 5 ? 0 : more), 8, 0);
	n = n < BUF ? n : BUF;
	memcpy(p, body, n);
	p += op == 2 || op == 5 ? 0 : n;
	to_engine(i, b, (size_t)(p - b) > cut ? (size_t)(p - b) - cut : 0);
}
static void any_frame(int i)
{
	static const uint8_t ops[] = { 0, 1, 2, 3, 4, 5, 6, 7, 64, 65, 0, 1, 5, 4, 2, 8 };
	static uint8_t body[BUF];
	int op = ops[take(1) & 15], shape = (int)take(1);
	size_t n = (size_t)take(shape & 1 ? 2 : 1) % BUF, cut = shape & 2 ? (size_t)take(1) : 0;
	int flags = shape >> 2 & 1 ? (int)take(1) : 0, op_data = shape >> 3 & 1 ? (int)take(1) : 0;
	int segments = op == 2 || op == 4 || op == 64 ? 1 + (shape >> 4 & 1) : 0;
	int tagged = op == 1 || op == 5 || op == 64;
	int64_t more = op == 5 ? (int64_t)n + 1 : shape & 128 ? (int64_t)take(1) : 0;

	if (shape & 64)
		segments = (int)take(1) & 7;
	if (segments == 2)
		n &= ~(size_t)1;
	frame(i, op, flags, op_data, segments, op == 64 ? take(3) : take(1) & 15, tagged, more, body, n, cut);
}
/* A packet of ofi_rxm's in a message of tcp's. */
static void packet(int i)
{
	static uint8_t b[64 + BUF];
	uint8_t *p = b, kind = (uint8_t)take(1), shape = (uint8_t)take(1);
	size_t n = (size_t)take(shape & 1 ? 2 : 1) % 17000;
	uint64_t size = shape & 2 ? take(4) : n;

	memset(b, 0, 64 + n);
	put(&p, shape & 128 ? take(1) : 4, 1, 0);
	put(&p, kind % 10, 1, 0);
	put(&p, kind % 10 == 1 ? n : 0, 2, 0);
	put(&p, shape & 4 ? take(1) : 0, 4, 0);
	put(&p, shape & 8 ? take(8) : S.peer[i].conn, 8, 0);
	put(&p, take(1) & 7, 8, 0);
	put(&p, shape & 16 ? take(3) : 0, 8, 0);
	put(&p, 2, 1, 0);
	put(&p, 0, 1, 0);
	put(&p, take(1) & 7, 1, 0);
	put(&p, 0, 1, 0);
	put(&p, shape & 32 ? take(1) : 0, 4, 0);
	put(&p, size, 8, 0);
	put(&p, 0, 8, 0);
	put(&p, take(1) & 15, 8, 0);
	if (kind % 10 == 2 || kind % 10 == 7) {	/* places */
		put(&p, 1 + (take(1) & 3), 8, 0);
		put(&p, 0x1000, 8, 0);
		put(&p, size, 8, 0);
		put(&p, take(1), 8, 0);
		n = n < 32 ? 104 : n;
	}
	frame(i, 0, 0, 0, 0, 0, 0, 0, b, 64 + n, shape & 64 ? (size_t)take(1) : 0);
}

/* ---- the whole -------------------------------------------------------- */

static void open_ep(int i)
{
	struct fi_cq_attr q = { .format = FI_CQ_FORMAT_TAGGED, .size = 256 };
	struct fi_av_attr a = { .count = 8 };

	OK(fi_cq_open(S.domain, &q, &S.cq[i], NULL));
	OK(fi_av_open(S.domain, &a, &S.av[i], NULL));
	OK(fi_endpoint(S.domain, S.info, &S.ep[i], NULL));
	OK(fi_ep_bind(S.ep[i], &S.av[i]->fid, 0));
	OK(fi_ep_bind(S.ep[i], &S.cq[i]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(S.ep[i]));
}
static void open_all(void)
{
	struct fi_info *h = fi_allocinfo();
	struct sockaddr_in other;
	size_t n = sizeof other;

	h->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->addr_format = FI_SOCKADDR_IN;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
	h->domain_attr->threading = FI_THREAD_SAFE;
	OK(ofi_fuzz_getinfo(FI_VERSION(1, 17), "127.0.0.1", "0", FI_SOURCE, h, &S.info));
	fi_freeinfo(h);
	S.info->fabric_attr->api_version = FI_VERSION(1, 17);
	OK(ofi_fuzz_fabric(S.info->fabric_attr, &S.fabric, NULL));
	OK(fi_domain(S.fabric, S.info, &S.domain, NULL));
	open_ep(0);
	open_ep(1);
	OK(fi_getname(&S.ep[1]->fid, &other, &n));
	if (fi_av_insert(S.av[0], &other, 1, &S.to[0], 0, NULL) != 1)
		FAIL("fi_av_insert");
	n = sizeof S.name;
	OK(fi_getname(&S.ep[0]->fid, &S.name, &n));
	if (fi_av_insert(S.av[1], &S.name, 1, &S.to[1], 0, NULL) != 1)
		FAIL("fi_av_insert");
	for (int i = 0; i < PEERS; i++) {
		S.peer[i].fd = -1;
		S.hostile[i] = FI_ADDR_NOTAVAIL;
	}
}
/* Whatever happened: a message of the honest peer's comes to the receive that waits for it. */
static void honest(void)
{
	static const uint64_t tag = 0x40e57a6b3c1d5e2f;
	struct op *o = NULL;
	ssize_t r = -FI_EAGAIN;
	int64_t again = 0;

	S.nops = S.nops == OPS ? OPS - 1 : S.nops;
	if (S.op[S.nops].posted && !S.op[S.nops].done)
		return;		/* every operation is under way */
	o = new_op();
	posted(o, fi_trecv(S.ep[0], o->buf, 64, NULL, S.to[0], tag, 0, o));
	if (!o->posted)
		FAIL("no receive can be posted");
	for (int64_t until = now_ms() + 20000; !o->done; sched_yield()) {
		/* what the application did may have ended their connection: then it is lost, and told again */
		if (r == -FI_EAGAIN || now_ms() > again) {
			again = now_ms() + 300;
			r = fi_tsend(S.ep[1], "honest", 7, NULL, S.to[1], tag, &S.to[1]);
		}
		if (r && r != -FI_EAGAIN && r != -FI_ENOTCONN)
			FAIL("the honest peer cannot send: %zd", r);
		drain(0);
		drain(1);
		if (now_ms() > until)
			FAIL("the honest peer's message does not come");
	}
}
static int under_way(void)
{
	int n = 0;

	for (int i = 0; i < S.nops; i++)
		n += S.op[i].posted && !S.op[i].done;
	return n;
}
static void cancel_all(void)
{
	for (int i = 0; i < S.nops; i++)
		if (S.op[i].posted && !S.op[i].done)
			(void)fi_cancel(&S.ep[0]->fid, &S.op[i]);
}
/* Every operation completes once all peers are gone, at the latest. */
static void complete_all(void)
{
	for (int i = 0; i < PEERS; i++)
		hang_up(i, 0);
	OK(fi_close(&S.ep[1]->fid));
	for (int64_t until = now_ms() + 20000; under_way(); sched_yield()) {
		cancel_all();
		drain(0);
		if (now_ms() > until)
			FAIL("%d operations do not complete", under_way());
	}
}
static void close_all(void)
{
	OK(fi_close(&S.ep[0]->fid));
	for (int i = 0; i < 2; i++) {
		while (drain(i))
			;
		OK(fi_close(&S.av[i]->fid));
		OK(fi_close(&S.cq[i]->fid));
	}
	if (S.mr)
		change_memory();
	OK(fi_close(&S.domain->fid));
	OK(fi_close(&S.fabric->fid));
	fi_freeinfo(S.info);
}
void ofi_fuzz_engine(const uint8_t *script, size_t len, int rxm)
{
	static int runs, lowest;
	static long left_behind;
	size_t before = in_use();
	int fd;

	memset(&S, 0, sizeof S);
	S.rxm = rxm;
	at = script;
	end = script + len;
	open_all();
	while (at < end) {
		int what = (int)take(1), i = what / 16 % PEERS;

		switch (what % 16) {
		case 0: call_engine(i); break;
		case 1: hello(i); break;
		case 2: if (rxm) packet(i); else any_frame(i); break;
		case 3: any_frame(i); break;
		case 4: {
			size_t n = (size_t)take(1), left = (size_t)(end - at);

			n = n < left ? n : left;
			to_engine(i, at, n);
			at += n;
			break;
		}
		case 5: if (S.peer[i].fd >= 0) shutdown(S.peer[i].fd, SHUT_WR); break;
		case 6: hang_up(i, what & 1); break;
		case 7: read_answer(i); break;
		case 8: post_recv(); break;
		case 9: post_send(); break;
		case 10: if (S.nops) (void)fi_cancel(&S.ep[0]->fid, &S.op[take(1) % S.nops]); break;
		case 11: change_memory(); break;
		case 12: change_names(i); break;
		case 13: hang_up(i, 1); break;
		case 14: call_engine(i); hello(i); drain(0); drain(0); drain(0); read_answer(i); break;
		default: for (int n = 1 + what / 16; n > 0; n--) drain(0), drain(1); break;
		}
	}
	/* the receives of the script would take the honest message */
	cancel_all();
	drain(0);
	honest();
	complete_all();
	close_all();

	/* the first runs fill caches and start threads */
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	close(fd);
	if (++runs < 50)
		return;
	if (runs == 50)
		lowest = fd;
	if (fd > lowest + 8)
		FAIL("the lowest free descriptor was %d and is %d", lowest, fd);
	left_behind += (long)in_use() - (long)before;
	if (left_behind > 8 << 20)
		FAIL("%ld bytes are left behind by %d scripts", left_behind, runs - 50);
}
