/*
 * A job's pre-shared key (FI_TCP_AUTH_KEY_FILE, FI_SHM_AUTH_KEY_FILE): processes with it exchange
 * messages with each other only.  Hostile peers here replay, reflect, or fall silent.
 */
#include "ct.h"
#include <sys/stat.h>

#define SECRET "the secret of a job, for tests"
#define OTHER "the secret of another job here"
#define WORDS "confidential words of the message"

enum { HELLO = 56, ANSWER = 56, CONFIRM = 24 };	/* bytes of these frames */

static void no_params(void)
{
	/* settings of the user running the tests */
	unsetenv("FI_TCP_AUTH_KEY_FILE");
	unsetenv("FI_TCP_AUTH_KEY");
	unsetenv("FI_SHM_AUTH_KEY_FILE");
	unsetenv("FI_SHM_AUTH_KEY");
	unsetenv("FI_TCP_ENCRYPT");
}
static void encrypt(void)
{
	if (!strcmp(ct_prov, "shm"))
		SKIP("shm has nothing to encrypt");
	ct_param("ENCRYPT", "1");
}
static void talk(struct ct *c, char *b, size_t n, int rounds)
{
	for (int i = 0; i < rounds; i++)
		for (int from = 0; from < 2; from++) {
			if (ct_rank == from) {
				ct_fill(b, n, i + from);
				if (i & 1)
					POST(c, fi_tsend(c->ep, b, n, ct_desc(b), c->peer, 7, CTX(0)));
				else
					POST(c, fi_send(c->ep, b, n, ct_desc(b), c->peer, CTX(0)));
				ct_sent(c, CTX(0));
			} else {
				memset(b, 0, n);
				if (i & 1)
					OK(fi_trecv(c->ep, b, n, ct_desc(b), c->peer, 7, 0, CTX(1)));
				else
					OK(fi_recv(c->ep, b, n, ct_desc(b), c->peer, CTX(1)));
				ct_recvd(c, CTX(1), n);
				CHECK(ct_same(b, n, i + from));
			}
		}
}
/* Many messages of one end that are under way at a time. */
static void burst(struct ct *c, char *b, size_t n)
{
	enum { N = 64 };

	for (int from = 0; from < 2; from++) {
		if (ct_rank == from) {
			ct_fill(b, n * N, from);
			for (int i = 0; i < N; i++)
				POST(c, fi_send(c->ep, b + i * n, n, ct_desc(b), c->peer, CTX(i)));
			for (int i = 0; i < N; i++)
				ct_sent(c, CTX(i));
		} else {
			memset(b, 0, n * N);
			for (int i = 0; i < N; i++)
				OK(fi_recv(c->ep, b + i * n, n, ct_desc(b), c->peer, CTX(i)));
			for (int i = 0; i < N; i++)
				ct_recvd(c, CTX(i), n);
			CHECK(ct_same(b, n * N, from));
		}
		ct_barrier(c);
	}
}
static void usual(void)
{
	struct ct_opt o = { .caps = FI_MSG | FI_TAGGED | FI_RMA };
	struct { uint64_t addr, key; } mine, theirs;
	enum { MOST = 4 << 20 };
	struct fid_mr *mr;
	struct ct c;
	char *b;

	ct_open(&c, &o);
	ct_forget_key_file();
	b = ct_alloc(&c, MOST);
	for (size_t n = 1; n <= MOST; n = n * 5 + 1)
		talk(&c, b, n, 4);
	burst(&c, b, 100);
	burst(&c, b, 60000);
	/* a write into the other's memory, and a read of it */
	mine.addr = c.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)b : 0;
	OK(fi_mr_reg(c.domain, b, MOST, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 5, 0, &mr, NULL));
	mine.key = fi_mr_key(mr);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	for (size_t n = 1; n <= MOST / 2; n = n * 37 + 1) {
		ct_fill(b + MOST / 2, n, n + ct_rank);
		memset(b, 0, n);
		ct_barrier(&c);
		OK(fi_write(c.ep, b + MOST / 2, n, ct_desc(b), c.peer, theirs.addr, theirs.key, CTX(0)));
		ct_sent(&c, CTX(0));
		/* data written before is there when this is */
		OK(fi_read(c.ep, b + MOST / 2, n, ct_desc(b), c.peer, theirs.addr, theirs.key, CTX(1)));
		ct_sent(&c, CTX(1));
		CHECK(ct_same(b + MOST / 2, n, n + ct_rank));
		ct_barrier(&c);
		CHECK(ct_same(b, n, n + !ct_rank));
		ct_barrier(&c);
	}
	ct_barrier(&c);
	OK(fi_close(&c.ep->fid));
	c.ep = NULL;
	OK(fi_close(&mr->fid));
	ct_close(&c);
}
static void both(int rank)
{
	(void)rank;
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	usual();
}
static void both_by_value(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_param("AUTH_KEY", SECRET);
	usual();
	CHECK(ct_logged("AUTH_KEY") && !ct_logged(SECRET));
}
static void both_on_sockets(int rank)
{
	(void)rank;
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	ct_param("LOCAL", "0");
	usual();
}
static void encrypted(int rank)
{
	(void)rank;
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	encrypt();
	ct_param("LOCAL", "0");
	usual();
}
static void encrypted_and_local(int rank)
{
	(void)rank;
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	encrypt();
	usual();
}

static const struct ct_opt usual_ones;

/* Rank 1 tries to reach rank 0, which gets nothing of it: each has set its parameters. */
static void refused(const struct ct_opt *o)
{
	struct ct c = { .o = *o };
	struct ct_name name;
	char b[64] = WORDS;
	int over = 0;

	if (ct_type == FI_EP_MSG) {
		uint32_t ev;
		struct { struct fi_eq_cm_entry e; char data[256]; } e;
		struct fi_eq_err_entry err = { 0 };

		if (ct_rank == 0) {
			ct_listen(&c);
			name = ct_getname(&c.pep->fid);
			ct_send_oob(&name, sizeof name);
			while (recv(ct_sync, &over, sizeof over, MSG_DONTWAIT) != sizeof over) {
				ssize_t r = fi_eq_read(c.eq, &ev, &e, sizeof e, 0);

				if (r != -FI_EAGAIN)
					FAIL("an event %d of an unknown peer", (int)r);
				ct_nap(1);
			}
			ct_close(&c);
			return;
		}
		ct_recv_oob(NULL, &name, sizeof name);
		ct_prepare(&c, &name);
		OK(fi_connect(c.ep, name.b, NULL, 0));
		EQ(ct_event(&c, &ev, &e, sizeof e, &err), -FI_EAVAIL);
		CHECK(err.err);
		ct_send_oob(&over, sizeof over);
		ct_close(&c);
		return;
	}
	name = ct_open_rdm(&c, NULL);
	if (ct_rank == 0) {
		struct fi_cq_tagged_entry e;

		ct_send_oob(&name, sizeof name);
		OK(fi_recv(c.ep, b, sizeof b, NULL, FI_ADDR_UNSPEC, CTX(0)));
		while (recv(ct_sync, &over, sizeof over, MSG_DONTWAIT) != sizeof over) {
			EQ(fi_cq_read(c.rx, &e, 1), -FI_EAGAIN);
			fi_cq_read(c.tx, &e, 1);
			ct_nap(1);
		}
	} else {
		struct fi_cq_err_entry err = { 0 };
		struct fi_cq_tagged_entry e;
		ssize_t r;

		ct_recv_oob(NULL, &name, sizeof name);
		c.peer = ct_insert(&c, &name);
		while ((r = fi_send(c.ep, b, sizeof b, NULL, c.peer, CTX(0))) == -FI_EAGAIN)
			ct_progress(&c);
		if (!r) {
			while ((r = fi_cq_read(c.tx, &e, 1)) == -FI_EAGAIN) {
				fi_cq_read(c.rx, &e, 1);
				ct_nap(1);
			}
			EQ(r, -FI_EAVAIL);
			EQ(fi_cq_readerr(c.tx, &err, 0), 1);
			CHECK(err.err);
		}
		ct_send_oob(&over, sizeof over);
	}
	ct_close(&c);
}
static void one_has_none(int rank)
{
	no_params();
	ct_keep_log("warn");
	if (rank == 0)
		ct_key_file(SECRET, sizeof SECRET, 0600);
	refused(&usual_ones);
	ct_forget_key_file();
	if (rank == 0)
		CHECK(ct_logged("it has no secret"));
}
static void called_has_none(int rank)
{
	no_params();
	ct_keep_log("warn");
	if (rank == 1)
		ct_key_file(SECRET, sizeof SECRET, 0600);
	refused(&usual_ones);
	ct_forget_key_file();
	if (rank == 1)
		CHECK(ct_logged("showed no secret"));
}
static void others(int rank)
{
	no_params();
	ct_keep_log("warn");
	if (rank == 0)
		ct_key_file(SECRET, sizeof SECRET, 0600);
	else
		ct_key_file(OTHER, sizeof OTHER, 0600);
	refused(&usual_ones);
	ct_forget_key_file();
	CHECK(ct_logged("has not the same secret"));
	CHECK(!ct_logged("the secret of a"));
}
static void one_encrypts(int rank)
{
	no_params();
	ct_keep_log("warn");
	ct_key_file(SECRET, sizeof SECRET, 0600);
	if (!strcmp(ct_prov, "shm") || ct_is_lnx())
		SKIP("shm has nothing to encrypt");
	if (rank == 0)
		encrypt();
	refused(&usual_ones);
	ct_forget_key_file();
	CHECK(ct_logged("one end encrypts"));
}

/* With these parameters no domain is opened, and the log contains the cause. */
static void opens_nothing(const char *why)
{
	struct ct_opt o = { 0 };
	struct fi_info *info = ct_getinfo(&o, NULL, NULL, 0);
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	EQ(fi_domain(fabric, info, &domain, NULL), -FI_EACCES);
	CHECK(ct_logged(why));
	CHECK(!ct_logged("secret of a job"));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	ct_forget_key_file();
}
static void readable(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_key_file(SECRET, sizeof SECRET, 0640);
	opens_nothing("others may read");
}
static void empty(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_key_file(SECRET, 0, 0600);
	opens_nothing("the secret is empty");
}
static void brief(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_key_file(SECRET, 15, 0600);
	opens_nothing("shorter than 16 bytes");
}
static void endless(int rank)
{
	static char much[4097];

	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_key_file(much, sizeof much, 0600);
	opens_nothing("longer than 4096 bytes");
}
static void missing(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	ct_param("AUTH_KEY_FILE", "/nonexistent/secret");
	opens_nothing("No such file");
}
static void encrypts_nothing(int rank)
{
	(void)rank;
	no_params();
	ct_keep_log("warn");
	encrypt();
	opens_nothing("needs a secret");
}

/* Secrets of the program's own: auth_key of the domain and of the endpoint, and of the user. */
static void own(const char *domain_key, const char *ep_key, const char *user)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = domain_key, .ep_key = ep_key };
	char b[64];
	struct ct c;

	if (user)
		ct_key_file(user, strlen(user), 0600);
	ct_open(&c, &o);
	if (user)
		ct_forget_key_file();
	/* the answer has the requested values */
	EQ(c.info->domain_attr->auth_key_size, domain_key ? strlen(domain_key) : 0);
	EQ(c.info->ep_attr->auth_key_size, ep_key ? strlen(ep_key) : 0);
	CHECK(!ep_key || !memcmp(c.info->ep_attr->auth_key, ep_key, strlen(ep_key)));
	for (int from = 0; from < 2; from++) {
		if (ct_rank == from) {
			ct_fill(b, sizeof b, from);
			POST(&c, fi_send(c.ep, b, sizeof b, NULL, c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			OK(fi_recv(c.ep, b, sizeof b, NULL, c.peer, CTX(1)));
			ct_recvd(&c, CTX(1), sizeof b);
			CHECK(ct_same(b, sizeof b, from));
		}
	}
	ct_done(&c);
}
static void no_rxm(void)
{
	no_params();
	if (ct_is_rxm())
		SKIP("the keys of ofi_rxm are its own, and no secret");
	if (ct_is_lnx())
		SKIP("the secrets of lnx are those of its cores");
}
static void own_of_domain(int rank)
{
	(void)rank;
	no_rxm();
	own(SECRET, NULL, NULL);
}
static void own_of_endpoint(int rank)
{
	no_rxm();
	/* the endpoint's comes before its domain's */
	own(rank ? OTHER : NULL, SECRET, NULL);
}
static void own_by_both_ways(int rank)
{
	no_rxm();
	own(rank ? SECRET : NULL, rank ? NULL : SECRET, NULL);
}
static void own_and_users(int rank)
{
	(void)rank;
	no_rxm();
	own(NULL, SECRET, OTHER);
}
static void own_encrypted(int rank)
{
	(void)rank;
	no_rxm();
	encrypt();
	ct_param("LOCAL", "0");
	own(SECRET, NULL, NULL);
}
/* Ranks with different keys of their own, or with different keys of the user and the same own key. */
static void own_differ(const struct ct_opt *mine, const char *user)
{
	ct_keep_log("warn");
	if (user)
		ct_key_file(user, strlen(user), 0600);
	refused(mine);
	if (user)
		ct_forget_key_file();
	CHECK(ct_logged("has not the same secret") || ct_logged("it has no secret") || ct_logged("showed no secret"));
	CHECK(!ct_logged("the secret of a"));
}
static void own_others(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = rank ? OTHER : SECRET };

	no_rxm();
	own_differ(&o, NULL);
}
static void own_others_of_endpoint(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = SECRET, .ep_key = rank ? OTHER : SECRET };

	no_rxm();
	own_differ(&o, NULL);
}
static void own_but_not_users(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = SECRET };

	no_rxm();
	own_differ(&o, rank ? OTHER : "the secret that the user has for a job");
}
static void own_missing(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .domain_key = rank ? NULL : SECRET };

	no_rxm();
	ct_keep_log("warn");
	refused(&o);
	if (rank == 0)
		CHECK(ct_logged("it has no secret"));
}
/* Two domains of a process, with a key each: neither's endpoint receives from the other's. */
static void two_domains(int rank)
{
	static const char *const keys[] = { SECRET, OTHER };
	struct ct_name name[2], theirs[2];
	struct ct c[2] = { 0 };
	char b[2][64];

	no_rxm();
	for (int i = 0; i < 2; i++) {
		c[i].o = (struct ct_opt){ .caps = FI_MSG, .domain_key = keys[i] };
		name[i] = ct_open_rdm(&c[i], NULL);
	}
	ct_swap(&c[0], name, theirs, sizeof name);
	for (int i = 0; i < 2; i++) {
		c[i].peer = ct_insert(&c[i], &theirs[i]);
		OK(fi_recv(c[i].ep, b[i], sizeof b[i], NULL, FI_ADDR_UNSPEC, CTX(1)));
	}
	ct_barrier(&c[0]);
	if (rank == 1) {
		fi_addr_t wrong = ct_insert(&c[1], &theirs[0]);
		struct fi_cq_err_entry err = { 0 };
		struct fi_cq_tagged_entry e;
		ssize_t r;

		while ((r = fi_send(c[1].ep, WORDS, sizeof WORDS, NULL, wrong, CTX(0))) == -FI_EAGAIN)
			ct_progress(&c[1]);
		if (!r) {
			while ((r = fi_cq_read(c[1].tx, &e, 1)) == -FI_EAGAIN)
				ct_progress(&c[1]);
			EQ(r, -FI_EAVAIL);
			EQ(fi_cq_readerr(c[1].tx, &err, 0), 1);
		}
		ct_send_oob(&rank, sizeof rank);
	} else {
		int over;

		while (recv(ct_sync, &over, sizeof over, MSG_DONTWAIT) != sizeof over)
			for (int i = 0; i < 2; i++)
				ct_progress(&c[i]);
	}
	for (int i = 0; i < 2; i++) {
		char m[64];

		/* received messages are of peers with the same key */
		ct_fill(m, sizeof m, i);
		POST(&c[i], fi_send(c[i].ep, m, sizeof m, NULL, c[i].peer, CTX(0)));
		ct_recvd(&c[i], CTX(1), sizeof m);
		CHECK(ct_same(b[i], sizeof m, i));
		ct_sent(&c[i], CTX(0));
	}
	ct_barrier(&c[0]);
	ct_close(&c[1]);
	ct_done(&c[0]);
}
static void own_wrong(int rank)
{
	static char much[4097];
	static const struct { uint8_t *key; size_t size; } wrong[] = {
		{ NULL, 16 }, { (uint8_t *)"short", 5 }, { (uint8_t *)much, sizeof much }, { NULL, (size_t)FI_AV_AUTH_KEY },
		{ (uint8_t *)much, (size_t)FI_AV_AUTH_KEY },
	};
	struct ct_opt o = { .caps = FI_MSG }, brief = { .caps = FI_MSG, .ep_key = "fifteen bytes  " };
	struct fi_info *info, *h, *i;
	struct ct c = { .o = o };
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_pep *pep;
	int r;

	(void)rank;
	no_rxm();
	for (int of_domain = 0; of_domain < 2; of_domain++) {
		h = ct_hints(&brief);
		if (of_domain) {
			h->domain_attr->auth_key = h->ep_attr->auth_key;
			h->domain_attr->auth_key_size = h->ep_attr->auth_key_size;
			h->ep_attr->auth_key = NULL;
			h->ep_attr->auth_key_size = 0;
		}
		/* ofi_rxm takes short keys, which are no secrets */
		r = fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i);
		CHECK(r == -FI_ENODATA || (!r && strstr(i->fabric_attr->prov_name, "ofi_rxm")));
		if (!r)
			fi_freeinfo(i);
		fi_freeinfo(h);
	}
	c.info = info = ct_getinfo(&o, ct_node(&o), ct_is_ip() ? "0" : NULL, ct_is_ip() ? FI_SOURCE : 0);
	CHECK(!(info->caps & FI_AUTH_KEY));
	OK(fi_fabric(info->fabric_attr, &c.fabric, NULL));
	ct_open_domain(&c);
	for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
		info->domain_attr->auth_key = wrong[k].key;
		info->domain_attr->auth_key_size = wrong[k].size;
		EQ(fi_domain(c.fabric, info, &domain, NULL), -FI_EINVAL);
		info->domain_attr->auth_key = NULL;
		info->domain_attr->auth_key_size = 0;
		info->ep_attr->auth_key = wrong[k].key;
		info->ep_attr->auth_key_size = wrong[k].size;
		EQ(fi_endpoint(c.domain, info, &ep, NULL), -FI_EINVAL);
		if (ct_type == FI_EP_MSG)
			EQ(fi_passive_ep(c.fabric, info, &pep, NULL), -FI_EINVAL);
		info->ep_attr->auth_key = NULL;
		info->ep_attr->auth_key_size = 0;
	}
	ct_close(&c);
}
/* A connection uses the key requested by its passive endpoint. */
static void own_of_another(int rank)
{
	struct ct_opt o = { .caps = FI_MSG, .ep_key = SECRET };
	struct fi_eq_cm_entry e;
	struct ct c = { .o = o };
	struct ct_name name;
	uint32_t ev;
	struct { struct fi_eq_cm_entry e; char data[256]; } got;
	struct fi_eq_err_entry err = { 0 };

	no_rxm();
	if (rank == 0) {
		ct_listen(&c);
		name = ct_getname(&c.pep->fid);
		ct_send_oob(&name, sizeof name);
		ct_want_event(&c, FI_CONNREQ, &e, sizeof e);
		fi_freeinfo(c.info);
		c.info = e.info;
		EQ(c.info->ep_attr->auth_key_size, strlen(SECRET));
		memcpy(c.info->ep_attr->auth_key, OTHER, strlen(SECRET));
		ct_open_domain(&c);
		EQ(fi_endpoint(c.domain, c.info, &c.ep, NULL), -FI_EKEYREJECTED);
		c.ep = NULL;
	} else {
		ct_recv_oob(NULL, &name, sizeof name);
		ct_prepare(&c, &name);
		OK(fi_connect(c.ep, name.b, NULL, 0));
		EQ(ct_event(&c, &ev, &got, sizeof got, &err), -FI_EAVAIL);
	}
	ct_close(&c);
}

/* The contents of a key file appear neither in the environment nor in the log. */
static void unseen(int rank)
{
	char b[1 << 16];
	FILE *f;
	size_t n;

	(void)rank;
	no_params();
	ct_keep_log("debug");
	ct_key_file(SECRET, sizeof SECRET, 0600);
	usual();
	CHECK((f = fopen("/proc/self/environ", "r")));
	n = fread(b, 1, sizeof b, f);
	CHECK(n > 0 && !memmem(b, n, SECRET, strlen(SECRET)));
	fclose(f);
	CHECK(ct_logged("AUTH_KEY_FILE") >= 0 && !ct_logged(SECRET));
}

/* Keys derived from the pre-shared key, equivalent to it, are in no core dump after the authentication handshake. */
static void undumped(int rank)
{
	/* SHA-256 of "libfabric job secret 1\0" and SECRET, as ct_dumped takes it */
	static const char key[] = "\xaf\x58\xb4\x85\x4f\x19\x9a\xe9\x93\x40\xc3\x4a\x4e\x55\x23\x1c\xa4\xed\x27\x62\x5c\xca\x39\x31\x0e\x97\xc2\xa4\xd8\x22\xd7\xe3";

	(void)rank;
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	ct_param("LOCAL", "0");
	usual();
	EQ(ct_dumped(key, sizeof key - 1), 0);
}

/* A connection to an endpoint. */
static int call(const struct ct_name *n)
{
	struct sockaddr_in a;
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(&a, n->b, sizeof a);
	CHECK(s >= 0 && !connect(s, (void *)&a, sizeof a));
	return s;
}
/* So many bytes, or as many as come before the end; -1 for none while there is progress. */
static int receive_event(struct ct *c, int s, void *b, int most)
{
	int got = 0;

	while (got < most) {
		ssize_t n = recv(s, (char *)b + got, most - got, MSG_DONTWAIT);

		if (n > 0) {
			got += n;
			continue;
		}
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			break;
		ct_progress(c);
	}
	return got;
}
static int is_over(struct ct *c, int s)
{
	char rest[256];

	while (receive_event(c, s, rest, sizeof rest) == sizeof rest)
		;
	return 1;
}
/* Listener of a hostile peer. */
static int position(struct ct_name *n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(s >= 0 && !bind(s, (void *)&a, len) && !listen(s, 64) && !getsockname(s, (void *)&a, &len));
	memset(n, 0, sizeof *n);
	memcpy(n->b, &a, len);
	return s;
}
static struct { char b[1 << 16]; size_t n; } received[2];

struct relay { int listener, change; struct ct_name to; };
/* Relays one connection, records both directions, and changes a byte far behind the authentication handshake. */
static void *pass_on(void *p)
{
	struct relay *r = p;
	int in = accept(r->listener, NULL, NULL), out = call(&r->to), fds[2] = { in, out };
	size_t total = 0;
	char b[4096];

	/* a second connection is refused */
	close(r->listener);
	for (;;) {
		struct pollfd f[2] = { { .fd = in, .events = POLLIN }, { .fd = out, .events = POLLIN } };

		poll(f, 2, -1);
		for (int i = 0; i < 2; i++) {
			ssize_t n, at = 0;

			if (!f[i].revents)
				continue;
			n = recv(fds[i], b, sizeof b, 0);
			if (n <= 0) {
				close(in);
				close(out);
				return NULL;
			}
			for (ssize_t k = 0; k < n && received[i].n < sizeof received[i].b; k++)
				received[i].b[received[i].n++] = b[k];
			if (i == 0 && (total += n) > 2000 && r->change) {
				b[n / 2] ^= 4;
				r->change = 0;
			}
			while (at < n) {
				ssize_t k = send(fds[!i], b + at, n - at, MSG_NOSIGNAL);

				if (k <= 0)
					break;
				at += k;
			}
		}
	}
}
static void sockets_only(void)
{
	if (strcmp(ct_prov, "tcp"))
		SKIP("these peers speak the protocol of tcp");
	no_params();
	ct_key_file(SECRET, sizeof SECRET, 0600);
	ct_param("LOCAL", "0");
}
/* Two endpoints of this process. */
struct two { struct ct a, b; struct ct_name an, bn; };
static void open_two(struct two *t)
{
	static const struct ct_opt o = { .caps = FI_MSG | FI_TAGGED };

	memset(t, 0, sizeof *t);
	t->a.o = t->b.o = o;
	t->an = ct_open_rdm(&t->a, NULL);
	t->bn = ct_open_rdm(&t->b, NULL);
	t->a.peer = ct_insert(&t->a, &t->bn);
	ct_forget_key_file();
}
/* A message from b to the peer it knows a by. */
static void say(struct two *t, char *out, char *in, size_t n)
{
	struct fi_cq_tagged_entry e;
	int sent = 0, got = 0;

	OK(fi_recv(t->a.ep, in, n, NULL, FI_ADDR_UNSPEC, CTX(1)));
	POST(&t->b, fi_send(t->b.ep, out, n, NULL, t->b.peer, CTX(0)));
	while (!sent || !got) {
		ssize_t r = fi_cq_read(t->b.tx, &e, 1), q = fi_cq_read(t->a.rx, &e, 1);

		CHECK((r == 1 || r == -FI_EAGAIN) && (q == 1 || q == -FI_EAGAIN));
		sent += r == 1;
		got += q == 1;
		fi_cq_read(t->a.tx, &e, 1);
		fi_cq_read(t->b.rx, &e, 1);
	}
	CHECK(!memcmp(out, in, n));
}
static void close_two(struct two *t)
{
	ct_close(&t->b);
	ct_close(&t->a);
}
/* Tests if a relay can read the relayed data. */
static void recorded(int secretly)
{
	struct relay r = { 0 };
	struct ct_name at;
	struct two t;
	char out[400], in[400];
	pthread_t thread;

	open_two(&t);
	r.listener = position(&at);
	r.to = t.an;
	t.b.peer = ct_insert(&t.b, &at);
	CHECK(!pthread_create(&thread, NULL, pass_on, &r));
	memset(out, 'x', sizeof out);
	memcpy(out + 50, WORDS, sizeof WORDS);
	for (int i = 0; i < 5; i++)
		say(&t, out, in, sizeof out);
	EQ(!memmem(received[0].b, received[0].n, WORDS, sizeof WORDS), secretly);
	/* all of it again: the answer is another one, so the bytes behind the HELLO do not authenticate */
	{
		int s = call(&t.an);
		char answer[ANSWER], reject[8];

		CHECK(received[0].n > HELLO + CONFIRM && received[1].n > ANSWER);
		EQ(send(s, received[0].b, HELLO, MSG_NOSIGNAL), HELLO);
		EQ(receive_event(&t.a, s, answer, ANSWER), ANSWER);
		CHECK(memcmp(answer, received[1].b, ANSWER));
		EQ(send(s, received[0].b + HELLO, CONFIRM, MSG_NOSIGNAL), CONFIRM);
		EQ(receive_event(&t.a, s, reject, sizeof reject), 8);
		EQ(reject[5], 4);
		CHECK(is_over(&t.a, s));
		close(s);
	}
	say(&t, out, in, sizeof out);
	close_two(&t);
	pthread_join(thread, NULL);
}
static void in_the_clear(int rank)
{
	(void)rank;
	sockets_only();
	recorded(0);
}
static void in_secret(int rank)
{
	(void)rank;
	sockets_only();
	encrypt();
	recorded(1);
}
/* A byte that was changed on the way ends the connection, and no message with it is received. */
static void changed(int rank)
{
	struct relay r = { .change = 1 };
	struct ct_name at;
	struct two t;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	char out[400], in[400];
	pthread_t thread;
	ssize_t q, sent = 0;

	(void)rank;
	sockets_only();
	encrypt();
	open_two(&t);
	r.listener = position(&at);
	r.to = t.an;
	t.b.peer = ct_insert(&t.b, &at);
	CHECK(!pthread_create(&thread, NULL, pass_on, &r));
	memset(out, 'x', sizeof out);
	for (int i = 0; ; i++) {
		memset(in, 0, sizeof in);
		OK(fi_recv(t.a.ep, in, sizeof in, NULL, FI_ADDR_UNSPEC, CTX(1)));
		while ((q = fi_send(t.b.ep, out, sizeof out, NULL, t.b.peer, CTX(0))) == -FI_EAGAIN)
			ct_progress(&t.b);
		if (!r.change)
			break;
		CHECK(i < 100);
		OK(q);
		while ((q = fi_cq_read(t.a.rx, &e, 1)) == -FI_EAGAIN) {
			sent += fi_cq_read(t.b.tx, &e, 1) == 1;
			if (!r.change)
				break;
		}
		if (q == 1)
			CHECK(!memcmp(in, out, sizeof in));
	}
	/* the end is reported to the sender; the receive waits on */
	while ((q = fi_send(t.b.ep, out, sizeof out, NULL, t.b.peer, CTX(0))) == 0 || q == -FI_EAGAIN) {
		EQ(fi_cq_read(t.a.rx, &e, 1), -FI_EAGAIN);
		q = fi_cq_read(t.b.tx, &e, 1);
		if (q == -FI_EAVAIL)
			break;
		fi_cq_read(t.b.rx, &e, 1);
	}
	EQ(fi_cq_readerr(t.b.tx, &err, 0), 1);
	CHECK(err.err);
	close_two(&t);
	pthread_join(thread, NULL);
}
/* A peer that reflects all data, as the connecting and as the accepting end. */
static void mirror(int rank)
{
	struct ct_name at;
	struct two t;
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	char b[400] = "", answer[ANSWER], hello[HELLO];
	int l, s, r;

	(void)rank;
	sockets_only();
	open_two(&t);
	l = position(&at);
	t.b.peer = ct_insert(&t.b, &at);
	POST(&t.b, fi_send(t.b.ep, b, sizeof b, NULL, t.b.peer, CTX(0)));
	CHECK((s = accept(l, NULL, NULL)) >= 0);
	EQ(receive_event(&t.b, s, hello, HELLO), HELLO);
	EQ(send(s, hello, HELLO, MSG_NOSIGNAL), HELLO);
	while ((r = fi_cq_read(t.b.tx, &e, 1)) == -FI_EAGAIN)
		fi_cq_read(t.b.rx, &e, 1);
	EQ(r, -FI_EAVAIL);
	EQ(fi_cq_readerr(t.b.tx, &err, 0), 1);
	EQ(err.err, FI_EACCES);
	close(s);
	/* the hello of an honest end, and its answer */
	s = call(&t.an);
	EQ(send(s, hello, HELLO, MSG_NOSIGNAL), HELLO);
	EQ(receive_event(&t.a, s, answer, ANSWER), ANSWER);
	EQ(send(s, answer, ANSWER, MSG_NOSIGNAL), ANSWER);
	CHECK(is_over(&t.a, s));
	close(s);
	close(l);
	close_two(&t);
}
/* Peers that send nonsense, or fall silent within the authentication handshake, do not hinder others. */
static void silent(int rank)
{
	enum { N = 50 };
	struct ct_name at;
	struct two t;
	char out[400], in[400], hello[HELLO], answer[ANSWER];
	int s[2 * N], l, first;

	(void)rank;
	sockets_only();
	open_two(&t);
	/* a hello that is right */
	l = position(&at);
	t.b.peer = ct_insert(&t.b, &at);
	POST(&t.b, fi_send(t.b.ep, out, 1, NULL, t.b.peer, CTX(0)));
	CHECK((first = accept(l, NULL, NULL)) >= 0);
	EQ(receive_event(&t.b, first, hello, HELLO), HELLO);
	t.b.peer = ct_insert(&t.b, &t.an);
	memset(out, 'y', sizeof out);
	for (int i = 0; i < N; i++) {
		int n = i % HELLO + 1;

		s[i] = call(&t.an);
		EQ(send(s[i], hello, n, MSG_NOSIGNAL), n);
		s[N + i] = call(&t.an);
		if (i % 2) {
			EQ(send(s[N + i], hello, HELLO, MSG_NOSIGNAL), HELLO);
			EQ(receive_event(&t.a, s[N + i], answer, ANSWER), ANSWER);
		} else {
			memset(answer, i, sizeof answer);
			EQ(send(s[N + i], answer, sizeof answer, MSG_NOSIGNAL), sizeof answer);
			CHECK(is_over(&t.a, s[N + i]));
		}
		say(&t, out, in, sizeof out);
	}
	for (int i = 0; i < 2 * N; i++)
		close(s[i]);
	say(&t, out, in, sizeof out);
	close(first);
	close(l);
	close_two(&t);
}
/* A forked child must not send anything with the keys of its parent. */
static void forked(int rank)
{
	struct two t;
	struct fi_cq_tagged_entry e;
	char out[400], in[400];
	pid_t child;
	int status;

	(void)rank;
	sockets_only();
	encrypt();
	open_two(&t);
	t.b.peer = ct_insert(&t.b, &t.an);
	memset(out, 'z', sizeof out);
	say(&t, out, in, sizeof out);
	CHECK((child = fork()) >= 0);
	if (!child) {
		ssize_t r;

		memset(out, '!', sizeof out);
		r = fi_send(t.b.ep, out, sizeof out, NULL, t.b.peer, CTX(0));
		for (int i = 0; !r && i < 1000; i++)
			if ((r = fi_cq_read(t.b.tx, &e, 1)) == -FI_EAGAIN)
				r = 0;
		_exit(r == 1);
	}
	EQ(waitpid(child, &status, 0), child);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	say(&t, out, in, sizeof out);
	close_two(&t);
}

static const struct ct_test tests[] = {
	{ "peers with the same pre-shared key exchange messages and data of every size", both, CT_REL | CT_CONN },
	{ "peers with the same pre-shared key exchange data of every size through sockets", both_on_sockets, CT_REL | CT_CONN },
	{ "a pre-shared key may come from the environment, with a warning", both_by_value, CT_REL | CT_CONN },
	{ "peers with the same pre-shared key exchange encrypted messages and data of every size", encrypted, CT_REL | CT_CONN },
	{ "encrypting peers of one host exchange messages and data of every size", encrypted_and_local, CT_REL | CT_CONN },
	{ "a connecting peer without the key is refused, and the log has the reason", one_has_none, CT_REL | CT_CONN },
	{ "an endpoint with a key connects to no peer without it, and the log has the reason", called_has_none, CT_REL | CT_CONN },
	{ "peers with different pre-shared keys refuse each other, and both logs have the reason", others, CT_REL | CT_CONN },
	{ "an encrypting and a plain peer refuse each other, and both logs have the reason", one_encrypts, CT_REL | CT_CONN },
	{ "a key file readable by other users is refused", readable, CT_REL | CT_SOLO | CT_CONN },
	{ "an empty key file is refused", empty, CT_REL | CT_SOLO | CT_CONN },
	{ "a short key file is refused", brief, CT_REL | CT_SOLO | CT_CONN },
	{ "an endless key file is refused", endless, CT_REL | CT_SOLO | CT_CONN },
	{ "a missing key file is refused", missing, CT_REL | CT_SOLO | CT_CONN },
	{ "encryption without a pre-shared key opens no domain", encrypts_nothing, CT_REL | CT_SOLO | CT_CONN },
	{ "a domain may have an application key (auth_key)", own_of_domain, CT_REL | CT_CONN },
	{ "an endpoint may have an application key in place of its domain's", own_of_endpoint, CT_REL | CT_CONN },
	{ "equal application keys of a domain and of an endpoint match", own_by_both_ways, CT_REL | CT_CONN },
	{ "an application key works only between peers with the user's pre-shared key", own_and_users, CT_REL | CT_CONN },
	{ "an application key encrypts", own_encrypted, CT_REL | CT_CONN },
	{ "domains with different application keys refuse each other", own_others, CT_REL | CT_CONN },
	{ "endpoints with different application keys refuse each other", own_others_of_endpoint, CT_REL | CT_CONN },
	{ "an application key does not replace the user's pre-shared key", own_but_not_users, CT_REL | CT_CONN },
	{ "a domain with an application key refuses peers without one", own_missing, CT_REL | CT_CONN },
	{ "two domains of one process have a key each", two_domains, CT_RDM | CT_REL | CT_CONN },
	{ "an application key that is too short or a null pointer is refused", own_wrong, CT_REL | CT_SOLO | CT_CONN },
	{ "a connection is accepted by an endpoint with the key of its passive endpoint", own_of_another, CT_MSG | CT_CONN },
	{ "the pre-shared key is neither in the environment nor in the log", unseen, CT_REL | CT_CONN },
	{ "keys derived from the pre-shared key are in no core dump after the authentication", undumped, CT_REL | CT_CONN },
	{ "a recorded authentication handshake does not authenticate", in_the_clear, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
	{ "recorded encrypted traffic does not authenticate and cannot be read", in_secret, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
	{ "data changed on its way to an encrypted peer ends the connection", changed, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
	{ "a peer echoing the handshake is refused", mirror, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
	{ "unknown peers silent during the authentication block no other peer", silent, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
	{ "a forked child sends nothing with the keys of its parent", forked, CT_RDM | CT_REL | CT_SOLO | CT_CONN },
};
CT_MAIN("secret", tests)
