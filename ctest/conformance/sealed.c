/*
 * Datagrams with a job's pre-shared key (FI_UDP_AUTH_KEY_FILE, auth_key): udp and ofi_rxd over it.  Hostile peers here are
 * sockets of the test that repeat, change and redirect recorded datagrams, or send datagrams made without a key.
 */
#include "ct.h"
#include <malloc.h>
#include <sys/stat.h>

#define SECRET "the secret of a job, for tests"
#define OTHER "the secret of another job here"
#define WORDS "confidential words of the message"

enum { HEAD = 32, OVERHEAD = 48, MOST = 1472 - OVERHEAD };

static void sealed_only(void)
{
	if (strcmp(ct_prov, "udp") && strcmp(ct_prov, "udp;ofi_rxd"))
		SKIP("its messages are no datagrams of udp");
	unsetenv("FI_UDP_AUTH_KEY_FILE");
	unsetenv("FI_UDP_AUTH_KEY");
	unsetenv("FI_TCP_AUTH_KEY_FILE");
	unsetenv("FI_TCP_AUTH_KEY");
}
static void with_secret(const char *secret)
{
	if (secret)
		ct_key_file(secret, strlen(secret), 0600);
}
/* One message each way, of n bytes. */
static void talk(struct ct *c, char *b, size_t n)
{
	for (int from = 0; from < 2; from++) {
		if (ct_rank == from) {
			ct_fill(b, n, n + from);
			POST(c, fi_send(c->ep, b, n, ct_desc(b), c->peer, CTX(0)));
			ct_sent(c, CTX(0));
		} else {
			memset(b, 0, n);
			OK(fi_recv(c->ep, b, n, ct_desc(b), FI_ADDR_UNSPEC, CTX(1)));
			ct_recvd(c, CTX(1), n);
			CHECK(ct_same(b, n, n + from));
		}
	}
}
/* Messages of all sizes between the ranks, and of ofi_rxd many that are under way at a time. */
static void exchange(const struct ct_opt *o)
{
	enum { LONG = 1 << 20, N = 64 };
	struct ct c;
	size_t most;
	char *b;

	ct_open(&c, o);
	ct_forget_key_file();
	EQ(c.info->domain_attr->auth_key_size, o->domain_key ? strlen(o->domain_key) : 0);
	EQ(c.info->ep_attr->auth_key_size, o->ep_key ? strlen(o->ep_key) : 0);
	if (!ct_is_rxd())
		EQ(c.info->ep_attr->max_msg_size, MOST);
	most = ct_most(&c, LONG);
	b = ct_alloc(&c, LONG);
	talk(&c, b, 0);
	for (size_t n = 1; n < most; n = n * 3 + 1)
		talk(&c, b, n);
	talk(&c, b, most);
	if (!ct_is_rxd()) {
		ERR(fi_send(c.ep, b, MOST + 1, ct_desc(b), c.peer, CTX(0)), FI_EMSGSIZE);
		ERR(fi_inject(c.ep, b, MOST + 1, c.peer), FI_EMSGSIZE);
		ct_done(&c);
		return;
	}
	for (int from = 0; from < 2; from++) {
		for (int i = 0; i < N; i++)
			if (ct_rank == from) {
				ct_fill(b + i * 4096, 4096, i);
				POST(&c, fi_send(c.ep, b + i * 4096, 4096, ct_desc(b), c.peer, CTX(i)));
			} else {
				OK(fi_recv(c.ep, b + i * 4096, 4096, ct_desc(b), FI_ADDR_UNSPEC, CTX(i)));
			}
		for (int i = 0; i < N; i++)
			if (ct_rank == from)
				ct_sent(&c, CTX(i));
			else
				ct_recvd(&c, CTX(i), 4096);
		for (int i = 0; i < N; i++)
			CHECK(ct_same(b + i * 4096, 4096, i));
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void by_file(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };

	(void)rank;
	sealed_only();
	with_secret(SECRET);
	exchange(&o);
}
static void by_file_v6(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .af = AF_INET6 };

	(void)rank;
	sealed_only();
	with_secret(SECRET);
	exchange(&o);
}
/* fi_domain(3): "The default authorization key to associate with endpoint and memory registrations created within the domain." */
static void by_domain(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = SECRET };

	(void)rank;
	sealed_only();
	exchange(&o);
}
/* fi_endpoint(3): "If non-zero, the key will be used to enable the endpoint": in place of its domain's. */
static void by_endpoint(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = rank ? OTHER : NULL, .ep_key = SECRET };

	sealed_only();
	exchange(&o);
}
static void by_both(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = rank ? NULL : SECRET, .ep_key = rank ? SECRET : NULL };

	sealed_only();
	with_secret(OTHER);
	exchange(&o);
}
static void unseen(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };

	(void)rank;
	sealed_only();
	ct_keep_log("debug");
	with_secret(SECRET);
	exchange(&o);
	CHECK(!ct_logged(SECRET));
}
static void undumped(int rank)
{
	/* SHA-256 of "libfabric job secret 1\0" and SECRET, as ct_dumped takes it */
	static const char key[] = "\x2d\xe2\x99\xbe\x30\xcd\xde\xb5\x6a\x6f\x88\xe0\xa8\xc7\x90\x48\x12\xc8\x52\x27\xc6\xec\x96\xbf\x7b\x1c\xb7\x97\xd9\x1a\x53\x91";
	struct ct_opt o = { .caps = FI_MSG };

	(void)rank;
	sealed_only();
	with_secret(SECRET);
	exchange(&o);
	EQ(ct_dumped(key, sizeof key - 1), 0);
}

/* Neither rank receives from the other, and both logs contain the cause. */
static void accept_paused(const struct ct_opt *o, const char *user, const char *why)
{
	struct ct c = { .o = *o };
	struct ct_name mine, theirs;
	char b[64] = WORDS, in[64];

	ct_keep_log("warn");
	with_secret(user);
	mine = ct_open_rdm(&c, NULL);
	ct_forget_key_file();
	ct_swap(&c, &mine, &theirs, sizeof mine);
	c.peer = ct_insert(&c, &theirs);
	OK(fi_recv(c.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, CTX(1)));
	ct_barrier(&c);
	for (int i = 0; i < 8; i++)
		POST(&c, fi_send(c.ep, b, sizeof b, NULL, c.peer, CTX(2 + i)));
	NOTHING(&c, c.rx, 200);
	ct_barrier(&c);
	/* without a key a sealed datagram is no message of ofi_rxd, and udp takes any bytes for one */
	CHECK(!why || ct_logged(why));
	ct_close(&c);
	CHECK(!ct_logged("the secret of a"));
}
static void differ(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };

	sealed_only();
	accept_paused(&o, rank ? OTHER : SECRET, "has not the same secret");
}
static void differ_own(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = SECRET, .ep_key = rank ? OTHER : NULL };

	sealed_only();
	accept_paused(&o, NULL, "has not the same secret");
}
static void differ_user(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = SECRET };

	sealed_only();
	accept_paused(&o, rank ? OTHER : "the secret that the user has for a job", "has not the same secret");
}
/* An endpoint without a key, sending its HELLO to an endpoint with one. */
static void simple(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c = { .o = o };
	struct ct_name name;
	char b[64] = WORDS;

	sealed_only();
	ct_keep_log("warn");
	if (rank == 0)
		with_secret(SECRET);
	name = ct_open_rdm(&c, NULL);
	if (rank == 0) {
		ct_forget_key_file();
		OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(1)));
		ct_send_oob(&name, sizeof name);
		ct_barrier(&c);
		NOTHING(&c, c.rx, 200);
		CHECK(ct_logged("it is not sealed"));
	} else {
		ct_recv_oob(NULL, &name, sizeof name);
		c.peer = ct_insert(&c, &name);
		OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(1)));
		for (int i = 0; i < 8; i++)
			POST(&c, fi_send(c.ep, b, sizeof b, NULL, c.peer, CTX(2 + i)));
		ct_idle(&c, 50);
		ct_barrier(&c);
		NOTHING(&c, c.rx, 200);
	}
	ct_barrier(&c);
	ct_close(&c);
}

/* Datagrams sent by an endpoint: it is closed, and its address and the target address are free again. */
struct recording {
	char from[8], to[8];
	struct sockaddr_in sender, receiver;
	size_t n[4];
	unsigned char b[4][2048];
};
static struct sockaddr_in address(const struct ct_name *n)
{
	struct sockaddr_in a;

	memcpy(&a, n->b, sizeof a);
	return a;
}
static int at(const struct sockaddr_in *a)
{
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	CHECK(s >= 0);
	if (bind(s, (const void *)a, sizeof *a))
		SKIP_HERE("the port was taken by another");
	return s;
}
static void record(struct recording *r, int count)
{
	static char words[4][64];
	struct ct_opt o = { .caps = FI_MSG };
	struct ct_name name, to = { .n = sizeof r->receiver };
	struct ct e;
	int s;

	strcpy(r->from, ct_lasting_port());
	do
		strcpy(r->to, ct_lasting_port());
	while (!strcmp(r->to, r->from));
	name = ct_open_at(&e, NULL, &o, r->from);
	r->sender = r->receiver = address(&name);
	r->receiver.sin_port = htons(atoi(r->to));
	s = at(&r->receiver);
	memcpy(to.b, &r->receiver, sizeof r->receiver);
	e.peer = ct_insert(&e, &to);
	for (int i = 0; i < count; i++) {
		ssize_t n;

		snprintf(words[i], sizeof words[i], "%d " WORDS, i);
		POST(&e, fi_send(e.ep, words[i], sizeof words[i], NULL, e.peer, CTX(i)));
		while ((n = recv(s, r->b[i], sizeof r->b[i], MSG_DONTWAIT)) < 0)
			ct_progress(&e);
		r->n[i] = n;
		CHECK(!memmem(r->b[i], n, WORDS, strlen(WORDS)));
	}
	ct_close(&e);
	close(s);
}
static void send_to(int s, const struct sockaddr_in *to, const void *b, size_t n)
{
	EQ(sendto(s, b, n, 0, (const void *)to, sizeof *to), n);
}
static int is_answered(struct ct *c, int s)
{
	char b[2048];
	int64_t end = ct_ms() + 200;

	while (ct_ms() < end) {
		if (recv(s, b, sizeof b, MSG_DONTWAIT) > 0)
			return 1;
		ct_progress(c);
	}
	return 0;
}
/* A message that came to an endpoint: which of those of the recording. */
static void comes(struct ct *c, char (*in)[64], int post, int which)
{
	char words[64] = "";

	snprintf(words, sizeof words, "%d " WORDS, which);
	ct_recvd(c, CTX(post), sizeof words);
	CHECK(!strcmp(in[post], words));
}
static void repeated(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct recording r;
	static char in[8][64];
	struct ct c;
	int s;

	(void)rank;
	sealed_only();
	ct_keep_log("warn");
	with_secret(SECRET);
	record(&r, 4);
	ct_open_at(&c, NULL, &o, r.to);
	s = at(&r.sender);
	for (int i = 0; i < 8; i++)
		OK(fi_recv(c.ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, CTX(i)));
	/* the first one is indistinguishable from a fresh one, as described in fi_udp(7) */
	send_to(s, &r.receiver, r.b[1], r.n[1]);
	comes(&c, in, 0, 1);
	for (int i = 0; i < 3; i++)
		send_to(s, &r.receiver, r.b[1], r.n[1]);
	NOTHING(&c, c.rx, 50);
	CHECK(ct_logged("it came before"));
	/* in another order */
	send_to(s, &r.receiver, r.b[3], r.n[3]);
	comes(&c, in, 1, 3);
	send_to(s, &r.receiver, r.b[0], r.n[0]);
	comes(&c, in, 2, 0);
	for (int i = 0; i < 4; i++)
		send_to(s, &r.receiver, r.b[i], r.n[i]);
	comes(&c, in, 3, 2);
	NOTHING(&c, c.rx, 50);
	CHECK(!is_answered(&c, s));
	ct_forget_key_file();
	ct_close(&c);
}
static void changed(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct_name elsewhere;
	struct sockaddr_in to;
	struct recording r;
	static char in[2][64];
	struct ct c, other = { .o = o };
	int s, t;

	(void)rank;
	sealed_only();
	with_secret(SECRET);
	record(&r, 1);
	ct_open_at(&c, NULL, &o, r.to);
	elsewhere = ct_open_rdm(&other, NULL);
	ct_forget_key_file();
	s = at(&r.sender);
	for (int i = 0; i < 2; i++)
		OK(fi_recv(i ? other.ep : c.ep, in[i], sizeof in[i], NULL, FI_ADDR_UNSPEC, CTX(0)));
	for (size_t i = 0; i < r.n[0]; i++) {
		r.b[0][i] ^= 1 << i % 8;
		send_to(s, &r.receiver, r.b[0], r.n[0]);
		r.b[0][i] ^= 1 << i % 8;
		send_to(s, &r.receiver, r.b[0], i);
		ct_progress(&c);
	}
	send_to(s, &r.receiver, r.b[0], r.n[0] + 1);
	NOTHING(&c, c.rx, 50);
	/* to another endpoint that has the secret, and from another address */
	to = address(&elsewhere);
	send_to(s, &to, r.b[0], r.n[0]);
	NOTHING(&other, other.rx, 50);
	to = r.sender;
	to.sin_port = 0;
	t = at(&to);
	send_to(t, &r.receiver, r.b[0], r.n[0]);
	NOTHING(&c, c.rx, 50);
	CHECK(!is_answered(&c, s) && !is_answered(&c, t));
	/* all of that was nothing */
	send_to(s, &r.receiver, r.b[0], r.n[0]);
	comes(&c, &in[0], 0, 0);
	ct_close(&other);
	ct_close(&c);
}
/* Datagrams made without a key, from as many senders as there are numbers. */
static void flood(int rank)
{
	enum { FORGED = 40000, AT_ONCE = 32 };
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c, peer;
	struct ct_name name, n;
	struct sockaddr_in to, any = { .sin_family = AF_INET };
	static char in[64], out[64] = WORDS;
	unsigned char b[1472] = { 0xc5, 'O', 'F', 'D', 1, 1 };
	size_t before, after;
	int s;

	(void)rank;
	sealed_only();
	ct_keep_log("warn");
	with_secret(SECRET);
	name = ct_open_at(&c, NULL, &o, NULL);
	n = ct_open_at(&peer, NULL, &o, NULL);
	(void)n;
	ct_forget_key_file();
	peer.peer = ct_insert(&peer, &name);
	to = address(&name);
	any.sin_addr = to.sin_addr;
	s = at(&any);
	OK(fi_recv(c.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, CTX(0)));
	before = after = 0;
	for (int i = 0; i < FORGED; i += AT_ONCE) {
		/* the first ones may make room that stays */
		if (i == FORGED / 10 / AT_ONCE * AT_ONCE)
			before = mallinfo2().uordblks;
		for (int k = 0; k < AT_ONCE; k++) {
			int sender = i + k;

			memcpy(b + 8, &sender, sizeof sender);
			send_to(s, &to, b, k & 1 ? sizeof b : 100);
		}
		ct_progress(&c);
	}
	ct_idle(&c, 50);
	after = mallinfo2().uordblks;
	if (after > before + (64 << 10))
		FAIL("%zu bytes more", after - before);
	CHECK(!is_answered(&c, s));
	CHECK(ct_logged("dropping a datagram") >= 1);
	CHECK(ct_logged("dropping a datagram") < 1000);
	POST(&peer, fi_send(peer.ep, out, sizeof out, NULL, peer.peer, CTX(1)));
	for (struct fi_cq_tagged_entry e;;) {
		ssize_t r = fi_cq_read(c.rx, &e, 1);

		if (r == 1)
			break;
		EQ(r, -FI_EAGAIN);
		ct_progress(&peer);
	}
	CHECK(!strcmp(in, WORDS));
	ct_close(&peer);
	ct_close(&c);
}
/* A request to be known that was recorded: the process that has the address now answers it once, and believes nothing. */
static void recorded_request(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct recording r;
	unsigned char b[2048];
	char in[64];
	struct ct c;
	ssize_t n;
	int s;

	(void)rank;
	sealed_only();
	if (!ct_is_rxd())
		SKIP("there is no handshake");
	with_secret(SECRET);
	record(&r, 1);
	ct_open_at(&c, NULL, &o, r.to);
	ct_forget_key_file();
	s = at(&r.sender);
	OK(fi_recv(c.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, CTX(0)));
	send_to(s, &r.receiver, r.b[0], r.n[0]);
	while ((n = recv(s, b, sizeof b, MSG_DONTWAIT)) < 0)
		ct_progress(&c);
	/* the answer is shorter, sealed, and useless when reflected */
	CHECK((size_t)n < r.n[0] && !memcmp(b, r.b[0], 5) && memcmp(b + 8, r.b[0] + 8, 16));
	send_to(s, &r.receiver, b, n);
	for (int i = 0; i < 5; i++)
		send_to(s, &r.receiver, r.b[0], r.n[0]);
	CHECK(!is_answered(&c, s));
	NOTHING(&c, c.rx, 10);
	ct_close(&c);
}
/* A child that was forked sends as another one than its parent: no number is used twice with a key. */
static void forked(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	unsigned char b[2][2048];
	struct sockaddr_in any = { .sin_family = AF_INET };
	socklen_t len = sizeof any;
	struct ct_name name, to = { .n = sizeof any };
	struct ct c = { .o = o };
	pid_t pid;
	int s, status;

	(void)rank;
	sealed_only();
	if (ct_is_rxd())
		SKIP("an endpoint of ofi_rxd is its process's");
	with_secret(SECRET);
	name = ct_open_rdm(&c, NULL);
	ct_forget_key_file();
	any.sin_addr = address(&name).sin_addr;
	s = at(&any);
	CHECK(!getsockname(s, (void *)&any, &len));
	memcpy(to.b, &any, sizeof any);
	c.peer = ct_insert(&c, &to);
	OK(fi_inject(c.ep, WORDS, sizeof WORDS, c.peer));
	EQ(recv(s, b[0], sizeof b[0], 0), sizeof WORDS + OVERHEAD);
	CHECK((pid = fork()) >= 0);
	if (!pid)
		_exit(fi_inject(c.ep, WORDS, sizeof WORDS, c.peer) != 0);
	EQ(recv(s, b[0], sizeof b[0], 0), sizeof WORDS + OVERHEAD);
	CHECK(waitpid(pid, &status, 0) == pid && !status);
	OK(fi_inject(c.ep, WORDS, sizeof WORDS, c.peer));
	EQ(recv(s, b[1], sizeof b[1], 0), sizeof WORDS + OVERHEAD);
	CHECK(memcmp(b[0] + 8, b[1] + 8, 16));
	ct_close(&c);
}

/* Offered and refused capabilities. */
static void offered(int rank)
{
	static char much[4097];
	static const struct { uint8_t *key; size_t size; } wrong[] = {
		{ NULL, 16 }, { (uint8_t *)"short", 5 }, { (uint8_t *)much, sizeof much }, { NULL, (size_t)FI_AV_AUTH_KEY },
	};
	struct ct_opt o = { .caps = FI_MSG }, keyed = { .caps = FI_MSG, .ep_key = SECRET };
	struct ct_opt brief = { .caps = FI_MSG, .ep_key = "fifteen bytes  " };
	struct ct c = { .o = o };
	struct fid_domain *domain;
	struct fi_info *h, *i;
	struct fid_ep *ep;

	(void)rank;
	sealed_only();
	c.info = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	i = ct_getinfo(&keyed, ct_node(&o), "0", FI_SOURCE);
	EQ(i->ep_attr->auth_key_size, strlen(SECRET));
	CHECK(!memcmp(i->ep_attr->auth_key, SECRET, strlen(SECRET)));
	EQ(c.info->ep_attr->auth_key_size, 0);
	EQ(c.info->tx_attr->inject_size - i->tx_attr->inject_size, OVERHEAD);
	if (!ct_is_rxd()) {
		EQ(c.info->ep_attr->max_msg_size, MOST + OVERHEAD);
		EQ(i->ep_attr->max_msg_size, MOST);
	}
	fi_freeinfo(i);
	h = ct_hints(&brief);
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
	OK(fi_fabric(c.info->fabric_attr, &c.fabric, NULL));
	ct_open_domain(&c);
	for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
		c.info->domain_attr->auth_key = wrong[k].key;
		c.info->domain_attr->auth_key_size = wrong[k].size;
		EQ(fi_domain(c.fabric, c.info, &domain, NULL), -FI_EINVAL);
		c.info->domain_attr->auth_key = NULL;
		c.info->domain_attr->auth_key_size = 0;
		c.info->ep_attr->auth_key = wrong[k].key;
		c.info->ep_attr->auth_key_size = wrong[k].size;
		EQ(fi_endpoint(c.domain, c.info, &ep, NULL), -FI_EINVAL);
		c.info->ep_attr->auth_key = NULL;
		c.info->ep_attr->auth_key_size = 0;
	}
	ct_close(&c);
}
static void readable(int rank)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	(void)rank;
	sealed_only();
	ct_keep_log("warn");
	ct_key_file(SECRET, strlen(SECRET), 0640);
	info = ct_getinfo(&o, ct_node(&o), "0", FI_SOURCE);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	EQ(fi_domain(fabric, info, &domain, NULL), -FI_EACCES);
	CHECK(ct_logged("others may read"));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	ct_forget_key_file();
}
/* The secret of another provider's variable. */
static void elsewhere(int with_own)
{
	struct ct_opt o = { .caps = FI_MSG };
	struct ct c = { .o = o };

	sealed_only();
	ct_keep_log("warn");
	setenv("FI_TCP_AUTH_KEY_FILE", "/nonexistent/secret", 1);
	if (with_own)
		with_secret(SECRET);
	ct_open_rdm(&c, NULL);
	ct_forget_key_file();
	EQ(ct_logged("FI_TCP_AUTH_KEY_FILE has no effect here"), !with_own);
	ct_close(&c);
}
static void notified(int rank)
{
	(void)rank;
	elsewhere(0);
}
static void not_notified(int rank)
{
	(void)rank;
	elsewhere(1);
}

static const struct ct_test tests[] = {
	{ "endpoints with the same pre-shared key exchange messages of every size", by_file, CT_RDM },
	{ "endpoints with the same pre-shared key exchange messages of every size over IPv6", by_file_v6, CT_RDM },
	{ "an application key of the domain works as well", by_domain, CT_RDM },
	{ "an application key of the endpoint takes precedence over the domain's", by_endpoint, CT_RDM },
	{ "an application key is needed in addition to the user's pre-shared key", by_both, CT_RDM },
	{ "the pre-shared key is in no line of the log", unseen, CT_RDM },
	{ "keys derived from the pre-shared key are in no core dump", undumped, CT_RDM },
	{ "endpoints with different pre-shared keys receive nothing from each other", differ, CT_RDM },
	{ "endpoints with different application keys receive nothing from each other", differ_own, CT_RDM },
	{ "an application key does not replace the user's pre-shared key", differ_user, CT_RDM },
	{ "datagrams of a peer without a key are dropped and not answered", simple, CT_RDM },
	{ "a repeated datagram is received once", repeated, CT_SOLO | CT_DGRAM },
	{ "changed, shortened or redirected datagrams are dropped", changed, CT_SOLO | CT_DGRAM },
	{ "a flood of forged datagrams gets no answer and takes no memory", flood, CT_SOLO | CT_RDM },
	{ "a recorded handshake request creates no peer", recorded_request, CT_SOLO | CT_RDM },
	{ "a forked child sends as a different sender", forked, CT_SOLO | CT_RDM },
	{ "infos with a pre-shared key have shorter messages, and invalid keys are refused", offered, CT_SOLO | CT_RDM },
	{ "a key file readable by other users is refused", readable, CT_SOLO | CT_RDM },
	{ "the log warns that the key of tcp has no effect on datagrams", notified, CT_SOLO | CT_RDM },
	{ "no warning about the key of tcp is logged where datagrams have a key", not_notified, CT_SOLO | CT_RDM },
};
CT_MAIN("sealed", tests)
