/* The run-time parameters of tcp: each has the effect described in fi_tcp(7). */
#include "ct.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static void tcp_only(void)
{
	if (strcmp(ct_prov, "tcp"))
		SKIP("parameters of tcp");
}
/* All bytes go through sockets. */
static void sockets_only(void)
{
	tcp_only();
	setenv("FI_TCP_LOCAL", "0", 1);
}
/* The socket with the endpoint's data, of this type. */
static int data_socket(int type)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int found = -1;

	CHECK(d);
	while ((e = readdir(d))) {
		struct sockaddr_storage a;
		socklen_t n = sizeof a, k = sizeof(int);
		int fd = atoi(e->d_name), is = 0;

		if (e->d_name[0] == '.' || getsockopt(fd, SOL_SOCKET, SO_TYPE, &is, &k) || is != type)
			continue;
		if (!(type == SOCK_STREAM ? getpeername : getsockname)(fd, (void *)&a, &n) && a.ss_family != AF_UNIX)
			found = fd;
	}
	closedir(d);
	CHECK(found >= 0);
	return found;
}
/* The TCP connection of this process; there is one. */
static int connection(void)
{
	return data_socket(SOCK_STREAM);
}
/* Threads of this process, of this name if one is given. */
static int threads(const char *name)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		char path[300], is[64] = { 0 };
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		f = fopen(path, "r");
		if (f && fgets(is, sizeof is, f))
			n += !name || !strncmp(is, name, strlen(name));
		if (f)
			fclose(f);
	}
	closedir(d);
	return n;
}
/* Both ends are connected when this returns, by one connection: rank 1 calls. */
static void hello(struct ct *c)
{
	static char b[8];

	OK(fi_recv(c->ep, b, sizeof b, NULL, c->peer, CTX(0)));
	if (ct_rank == 0)
		ct_recvd(c, CTX(0), sizeof b);
	POST(c, fi_send(c->ep, b, sizeof b, NULL, c->peer, CTX(1)));
	ct_sent(c, CTX(1));
	if (ct_rank == 1)
		ct_recvd(c, CTX(0), sizeof b);
	ct_barrier(c);
}

static void iface(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *h, *i;

	(void)rank;
	tcp_only();
	setenv("FI_TCP_IFACE", "lo", 1);
	i = ct_getinfo(&o, NULL, NULL, 0);
	for (struct fi_info *p = i; p; p = p->next)
		CHECK(!strcmp(p->domain_attr->name, "lo"));
	fi_freeinfo(i);
	h = ct_hints(&o);
	free(h->domain_attr->name);
	h->domain_attr->name = strdup("eth99");
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
}
/* Returns the infos with this choice of interfaces; none if there are none. */
static struct fi_info *chosen(const char *choice)
{
	struct ct_opt o = { 0 };
	struct fi_info *h, *i = NULL;
	int r;

	tcp_only();
	setenv("FI_TCP_IFACE", choice, 1);
	h = ct_hints(&o);
	r = fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i);
	fi_freeinfo(h);
	if (r)
		EQ(r, -FI_ENODATA);
	return r ? NULL : i;
}
static void no_iface(int rank)
{
	(void)rank;
	CHECK(!chosen("eth99"));
}
static void malformed_iface(int rank)
{
	(void)rank;
	CHECK(!chosen("lo,127.0.0.0/33"));
}
/* checks that a choice is the loopback's address of IPv4 */
static void only_ipv4_of_lo(const char *choice)
{
	struct fi_info *i = chosen(choice);

	CHECK(i);
	for (struct fi_info *p = i; p; p = p->next) {
		CHECK(!strcmp(p->domain_attr->name, "lo"));
		EQ(p->addr_format, FI_SOCKADDR_IN);
	}
	fi_freeinfo(i);
}
static void iface_network(int rank)
{
	(void)rank;
	only_ipv4_of_lo("eth99,127.0.0.0/8");
}
static void iface_prefix(int rank)
{
	(void)rank;
	only_ipv4_of_lo("lo*,^::/0");
}
static void iface_excluded(int rank)
{
	struct fi_info *i;

	(void)rank;
	i = chosen("^lo,eth99");
	/* a host may have nothing but its loopback */
	for (struct fi_info *p = i; p; p = p->next)
		CHECK(strcmp(p->domain_attr->name, "lo"));
	if (i)
		fi_freeinfo(i);
}
static void sizes(int rank)
{
	struct ct_opt o = { 0 };
	struct fi_info *i;

	(void)rank;
	tcp_only();
	setenv("FI_TCP_TX_SIZE", "77", 1);
	setenv("FI_TCP_RX_SIZE", "99", 1);
	i = ct_getinfo(&o, NULL, NULL, 0);
	for (struct fi_info *p = i; p; p = p->next) {
		if (strcmp(p->fabric_attr->prov_name, "tcp"))
			continue;	/* tcp;ofi_rxm has its own */
		EQ(p->tx_attr->size, 77);
		EQ(p->rx_attr->size, 99);
	}
	EQ(strcmp(i->fabric_attr->prov_name, "tcp"), 0);
	fi_freeinfo(i);
}
static void max_inject(int rank)
{
	struct ct c;
	static char b[400];

	tcp_only();
	setenv("FI_TCP_MAX_INJECT", "333", 1);
	ct_open(&c, NULL);
	EQ(c.info->tx_attr->inject_size, 333);
	if (rank == 0) {
		POST(&c, fi_inject(c.ep, b, 333, c.peer));
		CHECK(fi_inject(c.ep, b, 334, c.peer) < 0);
	} else {
		OK(fi_recv(c.ep, b, sizeof b, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 333);
	}
	ct_done(&c);
}
static int port_of(struct fid *f)
{
	struct ct_name n = ct_getname(f);

	return ntohs(((struct sockaddr_in *)n.b)->sin_port);
}
static void ports(int rank)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM, 0), low;
	char text[16];
	struct ct c[3];

	(void)rank;
	tcp_only();
	/* a range that begins with a port in use */
	CHECK(!bind(s, (void *)&a, n) && !listen(s, 1) && !getsockname(s, (void *)&a, &n));
	low = ntohs(a.sin_port);
	snprintf(text, sizeof text, "%d", low);
	setenv("FI_TCP_PORT_LOW_RANGE", text, 1);
	snprintf(text, sizeof text, "%d", low + 200 < 65535 ? low + 200 : 65535);
	setenv("FI_TCP_PORT_HIGH_RANGE", text, 1);
	for (int i = 0; i < 3; i++) {
		int p;

		memset(&c[i], 0, sizeof c[i]);
		if (ct_type == FI_EP_MSG)
			ct_listen(&c[i]);
		else
			ct_open_rdm(&c[i], NULL);
		p = port_of(ct_type == FI_EP_MSG ? &c[i].pep->fid : &c[i].ep->fid);
		CHECK(p > low && p <= low + 200);
	}
	for (int i = 0; i < 3; i++)
		ct_close(&c[i]);
}
static void nodelay(const char *value)
{
	struct ct c;
	int on = -1;
	socklen_t n = sizeof on;

	tcp_only();
	if (value)
		setenv("FI_TCP_NODELAY", value, 1);
	ct_open(&c, NULL);
	hello(&c);
	CHECK(!getsockopt(connection(), IPPROTO_TCP, TCP_NODELAY, &on, &n));
	EQ(!!on, !value);
	ct_done(&c);
}
static void nodelay_off(int rank) { (void)rank; nodelay("0"); }
static void nodelay_on(int rank) { (void)rank; nodelay(NULL); }

/* Checks the DSCP of the packets of an endpoint opened with these options and this variable. */
static void packets_have(struct ct_opt o, const char *value, int dscp)
{
	const int ipv6 = o.af == AF_INET6, udp = !strncmp(ct_prov, "udp", 3);
	socklen_t n = sizeof(int);
	int tos = -1, fd;
	struct ct c;

	if (strncmp(ct_prov, "tcp", 3) && !udp)
		SKIP("tcp and udp have traffic classes");
	setenv("FI_TCP_LOCAL", "0", 1);
	if (value)
		setenv(udp ? "FI_UDP_TCLASS" : "FI_TCP_TCLASS", value, 1);
	ct_open(&c, &o);
	EQ(c.info->tx_attr->tclass, o.tclass);
	EQ(c.info->domain_attr->tclass, o.domain_tclass);
	hello(&c);
	fd = data_socket(udp ? SOCK_DGRAM : SOCK_STREAM);
	CHECK(!getsockopt(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_TCLASS : IP_TOS, &tos, &n));
	EQ(tos >> 2, dscp);
	CHECK(!getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &tos, &n));
	CHECK(tos > 0 || !dscp);
	ct_done(&c);
}
static void class_of_variable(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { 0 }, "low_latency", 18);
}
static void class_by_number(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { 0 }, "0x2e", 46);
}
static void class_malformed(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { 0 }, "64", 0);
}
/* "Traffic classes can be a differentiated services code point (DSCP) value, one of the following defined labels" */
static void class_of_endpoint(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { .tclass = fi_tc_dscp_set(34), .domain_tclass = FI_TC_BULK_DATA }, "46", 34);
}
/* "If tclass is unset or set to FI_TC_UNSPEC, the endpoint will use the default traffic class associated with the domain" */
static void class_of_domain(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { .domain_tclass = FI_TC_BULK_DATA }, "46", 10);
}
static void class_of_ipv6(int rank)
{
	(void)rank;
	packets_have((struct ct_opt) { .af = AF_INET6, .tclass = FI_TC_DEDICATED_ACCESS }, NULL, 46);
}

/*
 * Checks if the flush timer sent held messages of bursts of small messages.
 * (Segments are no measure: the system batches messages too.)
 */
static int flush_timer(int rank, int want)
{
	enum { BURSTS = 20, N = 20, ALL = BURSTS * N };
	struct ct c;
	static char b[ALL][64];
	int n = 0;

	ct_open(&c, NULL);
	hello(&c);
	if (rank == 0) {
		char x;

		ct_recv_oob(&c, &x, 1);
		for (int m = 0; m < BURSTS; m++) {
			for (int k = 0; k < N; k++)
				OK(fi_send(c.ep, b[k], 64, NULL, c.peer, CTX(k)));
			for (int k = 0; k < N; k++)
				ct_sent(&c, CTX(k));
		}
		ct_nap(50);	/* it names itself when it first runs */
		while ((n = threads("ofi-tcp-late")) < want)
			ct_nap(1);
	} else {
		for (int k = 0; k < ALL; k++)
			POST(&c, fi_recv(c.ep, b[k], 64, NULL, c.peer, CTX(k)));
		ct_send_oob("", 1);
		for (int k = 0; k < ALL; k++)
			ct_recvd(&c, CTX(k), 64);
	}
	ct_done(&c);
	return n;
}
static void staging(int rank)
{
	sockets_only();
	ct_host_only("its messages are sent one by one");
	EQ(flush_timer(rank, 1), rank == 0);
}
static void no_staging(int rank)
{
	sockets_only();
	setenv("FI_TCP_STAGING_SBUF_SIZE", "0", 1);
	EQ(flush_timer(rank, 0), 0);
}
/* Two peers of this host that lnx has talk over sockets of its tcp. */
static void lnx_sockets(void)
{
	if (!ct_is_lnx())
		SKIP("of lnx");
	setenv("FI_LNX_DISABLE_SHM", "1", 1);
	setenv("FI_TCP_LOCAL", "0", 1);
}
static void lnx_staging(int rank)
{
	lnx_sockets();
	ct_host_only("its messages are sent one by one");
	EQ(flush_timer(rank, 1), rank == 0);
}
/* With a promise to serialize calls, and none while the messages that wait for company are under way. */
static void lnx_bursts(int rank)
{
	enum { ROUNDS = 10, N = 12 };
	struct ct_opt o = { .threading = FI_THREAD_DOMAIN };
	struct ct c;
	static char b[N][64];
	char x;

	lnx_sockets();
	ct_open(&c, &o);
	hello(&c);
	for (int round = 0; round < ROUNDS; round++) {
		if (rank == 0) {
			ct_recv_oob(&c, &x, 1);
			for (int k = 0; k < N; k++) {
				ct_fill(b[k], 64, round + k);
				OK(fi_send(c.ep, b[k], 64, NULL, c.peer, CTX(k)));
			}
			EQ(recv(ct_sync, &x, 1, 0), 1);	/* without a call of the library's */
			for (int k = 0; k < N; k++)
				ct_sent(&c, CTX(k));
		} else {
			for (int k = 0; k < N; k++)
				POST(&c, fi_recv(c.ep, b[k], 64, NULL, c.peer, CTX(k)));
			ct_send_oob("", 1);
			for (int k = 0; k < N; k++) {
				ct_recvd(&c, CTX(k), 64);
				CHECK(ct_same(b[k], 64, round + k));
			}
			ct_send_oob("", 1);
		}
	}
	ct_done(&c);
}
/* The context of one entry of the queues, or none. */
static void *entry_of(struct ct *c)
{
	struct fid_cq *queues[] = { c->tx, c->rx };

	for (int k = 0; k < 2; k++) {
		struct fi_cq_tagged_entry e;
		ssize_t r = fi_cq_read(queues[k], &e, 1);

		CHECK(r == 1 || r == -FI_EAGAIN);
		if (r == 1)
			return e.op_context;
	}
	return NULL;
}
/* The first side sends to itself over shm, or does nothing, while the other's messages come over tcp after a
 * while without traffic. */
static void lnx_idle_way(int rank)
{
	enum { ROUNDS = 12, MS = 5 };
	struct ct_opt o = { .caps = FI_TAGGED, .threading = FI_THREAD_DOMAIN };
	struct ct c;
	static char b[64], m[64], out[64];
	char name[2048] = { 0 }, x;
	size_t len = sizeof name;
	fi_addr_t self;

	if (!ct_is_lnx())
		SKIP("of lnx");
	setenv("FI_TCP_LOCAL", "0", 1);
	if (rank == 1)
		setenv("FI_LNX_DISABLE_SHM", "1", 1);
	ct_open(&c, &o);
	OK(fi_getname(&c.ep->fid, name, &len));
	EQ(fi_av_insert(c.av, name, 1, &self, 0, NULL), 1);
	for (int round = 0; round < ROUNDS; round++) {
		int talks = round % 2, notified = 0, mine = 0, came = 0;
		int64_t end = ct_ms() + MS;

		if (rank == 1) {
			ct_recv_oob(&c, &x, 1);
			ct_fill(out, 64, round);
			POST(&c, fi_tsend(c.ep, out, 64, NULL, c.peer, 2, CTX(2)));
			ct_sent(&c, CTX(2));
			continue;
		}
		POST(&c, fi_trecv(c.ep, b, 64, NULL, FI_ADDR_UNSPEC, 2, 0, CTX(2)));
		while (!came || mine) {
			void *context;

			if (talks && !mine && !came) {
				POST(&c, fi_trecv(c.ep, m, 64, NULL, FI_ADDR_UNSPEC, 1, 0, CTX(0)));
				POST(&c, fi_tsend(c.ep, out, 64, NULL, self, 1, CTX(1)));
				mine = 2;
			}
			context = entry_of(&c);
			mine -= context == CTX(0) || context == CTX(1);
			came |= context == CTX(2);
			if (!notified && ct_ms() >= end) {
				CHECK(!came);
				ct_send_oob("", 1);
				notified = 1;
			}
		}
		CHECK(ct_same(b, 64, round));
	}
	ct_done(&c);
}

/* Returns the bytes left in the socket when the queue is full. */
static int left_over(int rank)
{
	enum { N = 200, LEN = 200 };
	struct ct c;
	struct ct_opt o = { .cq_size = 16 };
	static char b[N][LEN];
	int left = 0, s;

	/* no other thread reads the socket */
	setenv("FI_TCP_DISABLE_AUTO_PROGRESS", "1", 1);
	ct_open(&c, &o);
	hello(&c);
	if (rank == 0) {
		for (int i = 0; i < N; i++)
			OK(fi_recv(c.ep, b[i], LEN, NULL, c.peer, CTX(i)));
		s = connection();
		ct_send_oob("", 1);
		while (ioctl(s, FIONREAD, &left) || left < N * (LEN + 16))
			ct_nap(1);
		ct_progress(&c);
		CHECK(!ioctl(s, FIONREAD, &left));
		for (int i = 0; i < N; i++)
			ct_recvd(&c, CTX(i), LEN);
	} else {
		char x;
		int sent = 0;
		struct fi_cq_tagged_entry e;

		ct_recv_oob(NULL, &x, 1);
		for (int i = 0; i < N; i++) {
			while (fi_send(c.ep, b[i], LEN, NULL, c.peer, CTX(i)) == -FI_EAGAIN)
				while (fi_cq_read(c.tx, &e, 1) == 1)
					sent++;
		}
		for (; sent < N; sent++)
			ct_next(&c, c.tx, &e, NULL, NULL);
	}
	ct_done(&c);
	return left;
}
static void prefetch(int rank)
{
	int n;

	sockets_only();
	n = left_over(rank);
	CHECK(rank || n == 0);
}
static void little_prefetch(int rank)
{
	int n;

	sockets_only();
	setenv("FI_TCP_PREFETCH_RBUF_SIZE", "2048", 1);
	n = left_over(rank);
	CHECK(rank || n > 2048);
}

/* Log lines during a message. */
static int logged(const char *what)
{
	struct ct c;

	ct_keep_log("info");	/* and trace, which is less */
	setenv("FI_LOG_PROV", "tcp", 1);
	ct_open(&c, NULL);
	hello(&c);
	ct_done(&c);
	return ct_logged(what);
}
static void trace_msg(int rank)
{
	(void)rank;
	tcp_only();
	setenv("FI_TCP_TRACE_MSG", "1", 1);
	CHECK(logged("op: Msg") >= 2);	/* one that left, one that came */
}
static void no_trace_msg(int rank)
{
	(void)rank;
	tcp_only();
	EQ(logged("op: Msg"), 0);
}
static void auto_progress(const char *off)
{
	struct ct c;
	struct fi_info *h;

	tcp_only();
	if (off)
		setenv("FI_TCP_DISABLE_AUTO_PROGRESS", off, 1);
	memset(&c, 0, sizeof c);
	h = ct_hints(&c.o);
	h->domain_attr->data_progress = FI_PROGRESS_AUTO;
	h->domain_attr->threading = FI_THREAD_SAFE;
	OK(fi_getinfo(CT_VERSION, "127.0.0.1", "0", FI_SOURCE, h, &c.info));
	fi_freeinfo(h);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	if (ct_type == FI_EP_MSG)
		ct_open_eq(&c);
	ct_open_domain(&c);
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	if (off)
		EQ(threads(NULL), 1);
	else
		CHECK(threads(NULL) > 1);
	ct_close(&c);
}
static void auto_on(int rank) { (void)rank; auto_progress(NULL); }
static void auto_off(int rank) { (void)rank; auto_progress("1"); }

/* Large messages, sent from where they are: none is damaged, and each buffer is the application's again at its completion. */
static void zerocopy(const char *from)
{
	enum { N = 12, LEN = 1 << 20, ROUNDS = 3 };
	struct ct c;
	static char *b[N];
	int on = -1, next = 0;
	socklen_t k = sizeof on;

	tcp_only();
	if (from)
		setenv("FI_TCP_ZEROCOPY_SIZE", from, 1);
	ct_open(&c, NULL);
	hello(&c);
	CHECK(!getsockopt(connection(), SOL_SOCKET, SO_ZEROCOPY, &on, &k));
	EQ(on, !!from);
	for (int i = 0; i < N; i++)
		b[i] = ct_alloc(&c, LEN);
	for (int round = 0; round < ROUNDS; round++) {
		if (ct_rank == 0) {
			for (int i = 0; i < N; i++) {
				ct_fill(b[i], LEN, round * N + i);
				POST(&c, fi_send(c.ep, b[i], i % 3 ? LEN - i : 64, ct_desc(b[i]), c.peer, CTX(i)));
			}
			for (int i = 0; i < N; i++) {
				struct fi_cq_tagged_entry e;

				ct_next(&c, c.tx, &e, NULL, NULL);
				memset(b[(struct fi_context2 *)e.op_context - ct_ctx], 0xee, LEN);
			}
		} else {
			ct_nap(30);	/* the sender's system is full meanwhile */
			for (int i = 0; i < N; i++, next++) {
				size_t len = i % 3 ? LEN - i : 64;

				OK(fi_recv(c.ep, b[0], LEN, ct_desc(b[0]), c.peer, CTX(i)));
				ct_recvd(&c, CTX(i), len);
				CHECK(ct_same(b[0], len, next));
			}
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void zerocopy_on(int rank) { (void)rank; zerocopy("4096"); }
static void zerocopy_off(int rank) { (void)rank; zerocopy(NULL); }

/* Rank 1 is behind a firewall: only it makes connections. */
static void firewall(int rank, int by_option)
{
	struct ct c;
	struct ct_name mine, theirs;
	static char b[8];
	int behind = 0;
	size_t n = sizeof behind;

	tcp_only();
	if (rank == 1 && !by_option)
		setenv("FI_TCP_FIREWALL_ADDR", "1", 1);
	memset(&c, 0, sizeof c);
	mine = ct_open_rdm(&c, NULL);
	if (rank == 1 && by_option) {
		char yes = 1;	/* a bool */
		OK(fi_setopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FIREWALL_ADDR, &yes, sizeof yes));
	}
	OK(fi_getopt(&c.ep->fid, FI_OPT_ENDPOINT, FI_OPT_FIREWALL_ADDR, &behind, &n));
	EQ(behind, rank == 1);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	if (rank == 0) {
		OK(fi_recv(c.ep, b, 8, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 8);
		/* over the connection that it made */
		POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		ct_barrier(&c);
		/* and when that is over it cannot be called */
		for (;;) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry x;
			ssize_t r = fi_send(c.ep, b, 8, NULL, c.peer, CTX(2));

			if (r) {
				EQ(r, -FI_EFIREWALLADDR);
				break;
			}
			ct_next(&c, c.tx, &e, NULL, &x);
		}
		ct_send_oob("", 1);
	} else {
		char x;

		POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		OK(fi_recv(c.ep, b, 8, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 8);
		ct_barrier(&c);
		OK(fi_close(&c.ep->fid));
		c.ep = NULL;
		ct_recv_oob(NULL, &x, 1);
	}
	ct_close(&c);
}
static void firewall_env(int rank) { firewall(rank, 0); }
static void firewall_opt(int rank) { firewall(rank, 1); }
static void firewall_flag(int rank)
{
	struct ct c;
	struct ct_name mine, theirs;
	static char b[8];

	if (strncmp(ct_prov, "tcp", 3))
		SKIP("not offered");
	memset(&c, 0, sizeof c);
	mine = ct_open_rdm(&c, NULL);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (rank == 0) {
		EQ(fi_av_insert(c.av, theirs.b, 1, &c.peer, FI_FIREWALL_ADDR, NULL), 1);
		ERR(fi_send(c.ep, b, 8, NULL, c.peer, CTX(1)), FI_EFIREWALLADDR);
		ct_barrier(&c);
		OK(fi_recv(c.ep, b, 8, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 8);
		POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
	} else {
		c.peer = ct_insert(&c, &theirs);
		ct_barrier(&c);
		POST(&c, fi_send(c.ep, b, 8, NULL, c.peer, CTX(1)));
		ct_sent(&c, CTX(1));
		OK(fi_recv(c.ep, b, 8, NULL, c.peer, CTX(0)));
		ct_recvd(&c, CTX(0), 8);
	}
	ct_done(&c);
}

/* From now on these calls fail in this process, but for those on one descriptor. */
static void forbid(int but_fd, const int *calls, int n)
{
	struct sock_filter f[16] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)but_fd, n + 1, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	struct sock_fprog p = { n + 5, f };

	for (int i = 0; i < n; i++)
		f[3 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], n - i, 0);
	f[3 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	f[4 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p));
}
/* The io_urings of this process. */
static int rings(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		char to[100] = "";

		if (readlinkat(dirfd(d), e->d_name, to, sizeof to - 1) > 0)
			n += !strcmp(to, "anon_inode:[io_uring]");
	}
	closedir(d);
	return n;
}
/* FI_TCP_IO_URING=1, where this system has that. */
static void want_ring(void)
{
	char params[120] = { 0 };	/* struct io_uring_params */
	int fd;

	sockets_only();
	fd = syscall(SYS_io_uring_setup, 1, params);
	if (fd < 0)
		SKIP_HERE("no io_uring: %s", strerror(errno));
	close(fd);
	setenv("FI_TCP_IO_URING", "1", 1);
}
/* Messages of many sizes both ways, some to be received before they come and some after. */
static void many_sizes(struct ct *c)
{
	static const size_t sizes[] = { 0, 8, 1000, 1025, 5000, 70000, 1 << 20, 3 << 20, 16 };
	enum { N = sizeof sizes / sizeof *sizes };
	char *in[N], *out[N];

	for (int i = 0; i < N; i++) {
		in[i] = ct_alloc(c, sizes[i] + 1);
		out[i] = ct_alloc(c, sizes[i] + 1);
		ct_fill(out[i], sizes[i], 10 * ct_rank + i);
	}
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N && !round; i++)
			OK(fi_recv(c->ep, in[i], sizes[i], ct_desc(in[i]), c->peer, CTX(i)));
		ct_barrier(c);
		for (int i = 0; i < N; i++)
			POST(c, fi_send(c->ep, out[i], sizes[i], ct_desc(out[i]), c->peer, CTX(N + i)));
		for (int i = 0; i < N && round; i++) {
			memset(in[i], 0, sizes[i]);
			OK(fi_recv(c->ep, in[i], sizes[i], ct_desc(in[i]), c->peer, CTX(i)));
		}
		for (int got = 0, sent = 0; got + sent < 2 * N;) {
			struct fi_cq_tagged_entry e;
			int i;

			if (c->tx != c->rx && sent < N && fi_cq_read(c->tx, &e, 1) == 1)
				sent++;
			if (fi_cq_read(c->rx, &e, 1) != 1)
				continue;
			i = (struct fi_context2 *)e.op_context - ct_ctx;
			if (i >= N) {
				sent++;
				continue;
			}
			EQ(i, got++);
			EQ(e.len, sizes[i]);
			CHECK(ct_same(in[i], sizes[i], 10 * !ct_rank + i));
		}
		ct_barrier(c);
	}
}
static void io_uring(int rank)
{
	static const int calls[] = { SYS_sendto, SYS_sendmsg, SYS_recvfrom, SYS_recvmsg };
	struct ct c;

	(void)rank;
	want_ring();
	ct_open(&c, NULL);
	EQ(rings(), 1);
	hello(&c);
	/* whatever is sent and received goes through the ring now */
	forbid(ct_sync, calls, sizeof calls / sizeof *calls);
	many_sizes(&c);
	ct_done(&c);
	/* a thread of the library's may be the last to let go of it */
	while (rings())
		ct_nap(1);
}
static void no_io_uring(int rank)
{
	struct ct c;

	(void)rank;
	tcp_only();
	unsetenv("FI_TCP_IO_URING");
	ct_open(&c, NULL);
	EQ(rings(), 0);
	ct_done(&c);
}
static void io_uring_refused(int rank)
{
	static const int setup = SYS_io_uring_setup;

	(void)rank;
	tcp_only();
	setenv("FI_TCP_IO_URING", "1", 1);
	forbid(-1, &setup, 1);
	EQ(logged("<info> the system lets us have no io_uring"), 1);
}
static void io_uring_broken(int rank)
{
	static const int enter = SYS_io_uring_enter;
	struct ct c;

	(void)rank;
	want_ring();
	ct_open(&c, NULL);
	hello(&c);
	forbid(-1, &enter, 1);
	many_sizes(&c);
	EQ(rings(), 0);
	ct_done(&c);
}

/* More peers than entries of one call; at the end some close with messages to them in flight. */
static void io_uring_peers(int rank)
{
	enum { N = 40, M = 3, LEN = 64, ROUNDS = 20 };
	static struct ct hub, peer[N];
	static char in[N][M][LEN], out[M][N][LEN];
	fi_addr_t to[N];

	(void)rank;
	want_ring();
	ct_open_rdm(&hub, NULL);
	for (int i = 0; i < N; i++) {
		struct ct_name name = ct_open_rdm(&peer[i], i ? peer : NULL);

		to[i] = ct_insert(&hub, &name);
	}
	EQ(rings(), 2);
	for (int round = 0; round < ROUNDS; round++) {
		int last = round == ROUNDS - 1;

		for (int i = 0; i < N * M; i++)
			OK(fi_recv(peer[i / M].ep, in[i / M][i % M], LEN, NULL, FI_ADDR_UNSPEC, CTX(i)));
		for (int i = 0; i < N * M; i++) {
			ct_fill(out[i / N][i % N], LEN, i + round);
			POST(&hub, fi_send(hub.ep, out[i / N][i % N], LEN, NULL, to[i % N], CTX(N * M + i)));
		}
		for (int i = 0; i < N && last; i += 3) {
			OK(fi_close(&peer[i].ep->fid));
			peer[i].ep = NULL;
		}
		for (int done = 0; done < N * M;) {
			struct fi_cq_tagged_entry e;
			struct fi_cq_err_entry x = { 0 };
			ssize_t r = fi_cq_read(hub.tx, &e, 1);

			if (r == -FI_EAVAIL) {
				EQ(fi_cq_readerr(hub.tx, &x, 0), 1);
				CHECK(last && ((struct fi_context2 *)x.op_context - ct_ctx) % N % 3 == 0);
			}
			done += r == 1 || r == -FI_EAVAIL;
			ct_progress(peer);
		}
		for (int i = 0; i < N; i++)
			for (int m = 0; peer[i].ep && m < M; m++) {
				ct_recvd(&peer[i], CTX(i * M + m), LEN);
				CHECK(ct_same(in[i][m], LEN, m * N + i + round));
			}
	}
	for (int i = N; i-- > 0;)
		ct_close(&peer[i]);
	ct_close(&hub);
}

static const struct ct_test tests[] = {
	{ "FI_TCP_IFACE restricts the provider to one interface", iface, CT_SOLO },
	{ "FI_TCP_IFACE with an unknown interface name leaves no info", no_iface, CT_SOLO },
	{ "FI_TCP_IFACE with a malformed network leaves no info", malformed_iface, CT_SOLO },
	{ "FI_TCP_IFACE takes networks in a list", iface_network, CT_SOLO },
	{ "FI_TCP_IFACE takes beginnings of names, and excludes networks", iface_prefix, CT_SOLO },
	{ "FI_TCP_IFACE excludes interfaces", iface_excluded, CT_SOLO },
	{ "FI_TCP_TCLASS sets the traffic class of packets", class_of_variable, 0 },
	{ "FI_TCP_TCLASS takes a DSCP", class_by_number, 0 },
	{ "a malformed FI_TCP_TCLASS has no effect", class_malformed, 0 },
	{ "the traffic class of an endpoint sets the DSCP of its packets", class_of_endpoint, 0 },
	{ "an endpoint without a traffic class has that of its domain", class_of_domain, 0 },
	{ "the traffic class applies to packets of IPv6", class_of_ipv6, 0 },
	{ "FI_TCP_TX_SIZE and FI_TCP_RX_SIZE are the sizes of queues", sizes, CT_SOLO },
	{ "FI_TCP_MAX_INJECT is the inject size", max_inject, CT_REL },
	{ "FI_TCP_PORT_LOW_RANGE and FI_TCP_PORT_HIGH_RANGE limit the listening ports", ports, CT_SOLO | CT_REL },
	{ "small segments are sent immediately without FI_TCP_NODELAY", nodelay_on, CT_REL },
	{ "FI_TCP_NODELAY=0 delays small segments", nodelay_off, CT_REL },
	{ "small messages of a burst are batched", staging, CT_REL },
	{ "small messages of a burst are batched over lnx", lnx_staging, CT_REL },
	{ "over lnx a burst arrives although its sender makes no call", lnx_bursts, CT_REL },
	{ "over lnx a message through a long idle core is received", lnx_idle_way, CT_REL },
	{ "FI_TCP_STAGING_SBUF_SIZE=0 sends each message separately", no_staging, CT_REL },
	{ "received bytes are read ahead by default", prefetch, CT_REL },
	{ "FI_TCP_PREFETCH_RBUF_SIZE sets the number of bytes read ahead", little_prefetch, CT_REL },
	{ "messages are not logged by default", no_trace_msg, CT_REL },
	{ "FI_TCP_TRACE_MSG logs each message", trace_msg, CT_REL },
	{ "automatic progress has a thread", auto_on, CT_SOLO },
	{ "FI_TCP_DISABLE_AUTO_PROGRESS starts no progress thread", auto_off, CT_SOLO },
	{ "large messages are copied by default", zerocopy_off, CT_REL },
	{ "FI_TCP_ZEROCOPY_SIZE: larger messages are sent without a copy", zerocopy_on, CT_REL },
	{ "FI_TCP_FIREWALL_ADDR: peers accept connections and initiate none", firewall_env, CT_RDM | CT_REL },
	{ "FI_OPT_FIREWALL_ADDR: peers of one endpoint accept connections and initiate none", firewall_opt, CT_RDM | CT_REL },
	{ "an address with FI_FIREWALL_ADDR is not connected to, but may connect", firewall_flag, CT_RDM | CT_REL },
	{ "no io_uring is used without FI_TCP_IO_URING", no_io_uring, CT_REL },
	{ "FI_TCP_IO_URING: all data goes through an io_uring", io_uring, CT_REL },
	{ "one io_uring serves many peers, including closing ones", io_uring_peers, CT_SOLO | CT_RDM | CT_REL },
	{ "without permission for io_uring the provider uses sockets and logs one line", io_uring_refused, CT_REL },
	{ "the provider continues without an io_uring forbidden by the system", io_uring_broken, CT_REL },
};
CT_MAIN("params", tests)
