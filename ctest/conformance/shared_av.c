/*
 * Address vectors that processes share by a name.  fi_av(3): "Address vectors may be shared across multiple processes which access
 * the same named domain on the same node."  Location and lifetime of the tables: fi_sockets(7).
 */
#include "ct.h"

#define COUNT 64	/* upstream refuses readers that pass another one */

static const struct ct_opt shared = { .caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV | FI_SHARED_AV };

static void sockets_only(void)
{
	if (strcmp(ct_prov, "sockets"))
		SKIP("an attribute of sockets");
}
/* A name that no other test has, for this process alone. */
static const char *own_name(void)
{
	static char name[64];
	static int last;

	snprintf(name, sizeof name, "ct-av-%d-%d", (int)getpid(), last++);
	return name;
}
/* A name that both ranks know. */
static const char *our_name(void)
{
	static char name[64];

	if (ct_rank == 0) {
		snprintf(name, sizeof name, "%s", own_name());
		ct_send_oob(name, sizeof name);
	} else {
		ct_recv_oob(NULL, name, sizeof name);
	}
	return name;
}
static const char *file_of(const char *name)
{
	static char path[96];

	snprintf(path, sizeof path, "/dev/shm/%s", name);
	return path;
}
static int is_there(const char *name)
{
	struct stat st;

	return !lstat(file_of(name), &st);
}
/* A domain, and nothing bound to anything; the harness's own vector is closed. */
static void open_domain(struct ct *c, const struct ct_opt *o)
{
	memset(c, 0, sizeof *c);
	c->o = *o;
	c->info = ct_getinfo(&c->o, ct_node(&c->o), "0", FI_SOURCE);
	ct_open_in(c, NULL);
	OK(fi_close(&c->av->fid));
	c->av = NULL;
}
static int try_open(struct ct *c, const char *name, uint64_t flags, struct fid_av **av)
{
	struct fi_av_attr a = { .type = FI_AV_TABLE, .count = COUNT, .name = name, .flags = flags };

	return fi_av_open(c->domain, &a, av, NULL);
}
static struct fid_av *open_av(struct ct *c, const char *name, uint64_t flags)
{
	struct fid_av *av;

	OK(try_open(c, name, flags, &av));
	return av;
}
static struct sockaddr_in addr_of(int host, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x0a000000 + host) };

	return a;
}
static fi_addr_t put(struct fid_av *av, int host, int port)
{
	struct sockaddr_in a = addr_of(host, port);
	fi_addr_t at = FI_ADDR_NOTAVAIL;

	EQ(fi_av_insert(av, &a, 1, &at, 0, NULL), 1);
	return at;
}
/* Whether the index is this address's. */
static int names(struct fid_av *av, fi_addr_t at, int host, int port)
{
	struct sockaddr_in a = addr_of(host, port), b = { 0 };
	size_t n = sizeof b;

	return !fi_av_lookup(av, at, &b, &n) && n == sizeof b && a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr &&
		b.sin_family == AF_INET;
}

/* fi_getinfo(3): FI_SHARED_AV "Requests or indicates support for address vectors which may be shared among multiple processes." */
static void offered(int rank)
{
	const struct ct_opt none = { .caps = FI_MSG };
	struct fi_info *i;

	(void)rank;
	sockets_only();
	i = ct_getinfo(&shared, ct_node(&shared), "0", FI_SOURCE);
	CHECK(i->caps & FI_SHARED_AV && i->domain_attr->caps & FI_SHARED_AV);
	fi_freeinfo(i);
	/* fi_getinfo(3): "Secondary capabilities: ... FI_SHARED_AV": there without a request */
	i = ct_getinfo(&none, ct_node(&none), "0", FI_SOURCE);
	CHECK(i->caps & FI_SHARED_AV && i->domain_attr->caps & FI_SHARED_AV);
	CHECK(!((i->tx_attr->caps | i->rx_attr->caps) & FI_SHARED_AV));
	fi_freeinfo(i);
}
/* A provider without it does not report it, and has no vectors with names. */
static void not_offered(int rank)
{
	const struct ct_opt none = { .caps = FI_MSG };
	struct fi_info *h = ct_hints(&shared), *i = NULL;
	struct ct c = { .o = none };
	struct fid_av *av;

	(void)rank;
	if (!strcmp(ct_prov, "sockets"))
		SKIP("sockets has them");
	h->caps = FI_MSG | FI_SHARED_AV;
	ERR(fi_getinfo(CT_VERSION, NULL, NULL, 0, h, &i), FI_ENODATA);
	fi_freeinfo(h);
	c.info = ct_getinfo(&none, ct_node(&none), ct_is_ip() ? "0" : NULL, FI_SOURCE);
	CHECK(!((c.info->caps | c.info->domain_attr->caps) & FI_SHARED_AV));
	ct_open_in(&c, NULL);
	ERR(try_open(&c, own_name(), 0, &av), FI_ENOSYS);
	ct_close(&c);
}

/*
 * fi_av(3): "The only requirement is that an fi_addr_t returned as part of an fi_av_insert call on one process is usable on another
 * process which opens an AV of the same name at the same map_addr value."  "If name is non-NULL and map_addr is 0, then the map_addr
 * used by the provider will be returned through the attribute structure."
 */
static void used_by_both(enum fi_av_type type)
{
	struct fi_av_attr a = { .type = type, .count = COUNT };
	struct ct_name mine, theirs;
	struct fi_cq_tagged_entry e;
	fi_addr_t at[2], from = FI_ADDR_NOTAVAIL;
	struct ct c;
	char *b;

	sockets_only();
	a.name = our_name();
	open_domain(&c, &shared);
	if (ct_rank == 0) {
		OK(fi_av_open(c.domain, &a, &c.av, NULL));
		CHECK(a.map_addr);
		ct_send_oob(&a.map_addr, sizeof a.map_addr);
	} else {
		ct_recv_oob(&c, &a.map_addr, sizeof a.map_addr);
		a.flags = FI_READ;
		OK(fi_av_open(c.domain, &a, &c.av, NULL));
	}
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	if (ct_rank == 0) {
		at[0] = ct_insert(&c, &mine);
		at[1] = ct_insert(&c, &theirs);
		ct_send_oob(at, sizeof at);
	} else {
		ct_recv_oob(&c, at, sizeof at);
	}
	c.peer = at[!ct_rank];
	b = ct_alloc(&c, 64);
	for (int k = 0; k < 4; k++) {
		if (k % 2 == ct_rank) {
			ct_fill(b, 8, k);
			POST(&c, fi_tsend(c.ep, b, 8, ct_desc(b), c.peer, k, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			POST(&c, fi_trecv(c.ep, b, 64, ct_desc(b), c.peer, k, 0, CTX(1)));
			EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
			CHECK(e.op_context == CTX(1) && e.len == 8 && from == c.peer && ct_same(b, 8, k));
		}
		ct_barrier(&c);
	}
	ct_done(&c);
}
static void table_used(int rank) { (void)rank; used_by_both(FI_AV_TABLE); }
static void map_used(int rank) { (void)rank; used_by_both(FI_AV_MAP); }

/* The same for a peer that spoke before another process inserted it: it has the index when this process looks that up. */
static void named_later(int rank)
{
	struct ct_name mine, theirs;
	struct fi_cq_tagged_entry e;
	fi_addr_t at, from = 0;
	struct fid_av *av;
	const char *name;
	char *b, addr[64];
	size_t n = sizeof addr;
	struct ct c;

	sockets_only();
	name = our_name();
	open_domain(&c, &shared);
	if (rank == 0)
		av = open_av(&c, name, 0);
	ct_barrier(&c);
	/* rank 0 speaks by a vector of its own */
	c.av = open_av(&c, rank == 0 ? NULL : name, rank == 0 ? 0 : FI_READ);
	ct_open_ep(&c, c.info);
	OK(fi_enable(c.ep));
	mine = ct_getname(&c.ep->fid);
	ct_swap(&c, &mine, &theirs, sizeof mine);
	b = ct_alloc(&c, 64);
	if (rank == 0)
		c.peer = ct_insert(&c, &theirs);
	for (int k = 0; k < 2; k++) {
		if (rank == 0) {
			POST(&c, fi_send(c.ep, b, 8, ct_desc(b), c.peer, CTX(0)));
			ct_sent(&c, CTX(0));
		} else {
			POST(&c, fi_recv(c.ep, b, 64, ct_desc(b), k ? at : FI_ADDR_UNSPEC, CTX(1)));
			EQ(ct_next(&c, c.rx, &e, &from, NULL), 1);
			EQ(from, k ? at : FI_ADDR_NOTAVAIL);
		}
		if (k)
			break;
		ct_barrier(&c);
		if (rank == 0) {
			EQ(fi_av_insert(av, mine.b, 1, &at, 0, NULL), 1);
			ct_send_oob(&at, sizeof at);
		} else {
			ct_recv_oob(&c, &at, sizeof at);
			OK(fi_av_lookup(c.av, at, addr, &n));
		}
		ct_barrier(&c);
	}
	ct_barrier(&c);
	if (rank == 0)
		OK(fi_close(&av->fid));
	ct_close(&c);
}

/* fi_av(3): FI_READ "Opens an AV for read-only access.  An AV opened for read-only access must be named (name attribute specified)
 * and the AV must exist." */
static void missing(int rank)
{
	const char *name = own_name();
	struct fid_av *av;
	struct ct c;

	(void)rank;
	sockets_only();
	open_domain(&c, &shared);
	ERR(try_open(&c, name, FI_READ, &av), FI_EINVAL);
	CHECK(!is_there(name));
	ERR(try_open(&c, NULL, FI_READ, &av), FI_EINVAL);
	ERR(try_open(&c, "", 0, &av), FI_EINVAL);
	ERR(try_open(&c, "..", 0, &av), FI_EINVAL);
	ERR(try_open(&c, "ct/av", 0, &av), FI_EINVAL);
	ct_close(&c);
}
static void read_only(int rank)
{
	const char *name = own_name();
	struct sockaddr_in a = addr_of(9, 9);
	struct fid_av *av, *reader;
	fi_addr_t at = 0;
	struct ct c;

	(void)rank;
	sockets_only();
	open_domain(&c, &shared);
	av = open_av(&c, name, 0);
	EQ(put(av, 1, 1), 0);
	reader = open_av(&c, name, FI_READ);
	CHECK(names(reader, 0, 1, 1));
	/* "insertion calls return the number of successful insertions" */
	CHECK(fi_av_insert(reader, &a, 1, &at, 0, NULL) <= 0);
	CHECK(!names(av, 1, 9, 9) && !names(reader, 1, 9, 9));
	at = 0;
	(void)fi_av_remove(reader, &at, 1, 0);
	CHECK(names(av, 0, 1, 1) && names(reader, 0, 1, 1));
	/* "Sequential indices will be assigned across insertion calls on the same AV" */
	EQ(put(av, 2, 2), 1);
	CHECK(names(reader, 1, 2, 2));
	OK(fi_close(&reader->fid));
	OK(fi_close(&av->fid));
	ct_close(&c);
}
static void two_names(int rank)
{
	char first[64];
	struct fid_av *a, *b, *none;
	struct ct c;

	(void)rank;
	sockets_only();
	open_domain(&c, &shared);
	strcpy(first, own_name());
	a = open_av(&c, first, 0);
	b = open_av(&c, own_name(), 0);
	none = open_av(&c, NULL, 0);
	EQ(put(a, 1, 1), 0);
	EQ(put(b, 2, 2), 0);
	EQ(put(none, 3, 3), 0);
	CHECK(names(a, 0, 1, 1) && names(b, 0, 2, 2) && names(none, 0, 3, 3));
	CHECK(!names(a, 1, 2, 2) && !names(b, 1, 1, 1));
	OK(fi_close(&a->fid));
	OK(fi_close(&b->fid));
	OK(fi_close(&none->fid));
	ct_close(&c);
}
/* fi_av(3): "If the name field is non-NULL and the AV is not opened for read-only access, a named AV will be created, if it does not
 * already exist": one that exists is the same one, and an index is one address's. */
static void both_insert(int rank)
{
	enum { N = 20 };
	fi_addr_t mine[N], theirs[N], same, same_there;
	struct fid_av *av;
	const char *name;
	struct ct c;

	sockets_only();
	name = our_name();
	open_domain(&c, &shared);
	av = open_av(&c, name, 0);
	ct_barrier(&c);
	for (int k = 0; k < N; k++)
		mine[k] = put(av, 10 + rank, 1 + k);
	ct_swap(&c, mine, theirs, sizeof mine);
	for (int k = 0; k < N; k++) {
		CHECK(names(av, mine[k], 10 + rank, 1 + k));
		CHECK(names(av, theirs[k], 11 - rank, 1 + k));
		CHECK(mine[k] < 2 * N);
	}
	/* here an address that is there already gets the same index, and goes when it was removed as often */
	same = put(av, 12, 1);
	ct_swap(&c, &same, &same_there, sizeof same);
	EQ(same, same_there);
	if (rank == 0)
		OK(fi_av_remove(av, &same, 1, 0));
	ct_barrier(&c);
	CHECK(names(av, same, 12, 1));
	ct_barrier(&c);
	if (rank == 1)
		OK(fi_av_remove(av, &same, 1, 0));
	ct_barrier(&c);
	CHECK(!names(av, same, 12, 1));
	OK(fi_close(&av->fid));
	ct_barrier(&c);
	CHECK(!is_there(name));
	ct_close(&c);
}

/* fi_sockets(7): the last process that closes a vector removes its name. */
static void last_one_removes(int rank)
{
	struct fid_av *av;
	const char *name;
	struct ct c;

	sockets_only();
	name = our_name();
	open_domain(&c, &shared);
	if (rank == 0) {
		av = open_av(&c, name, 0);
		EQ(put(av, 1, 1), 0);
	}
	ct_barrier(&c);
	if (rank == 1)
		av = open_av(&c, name, FI_READ);
	ct_barrier(&c);
	/* once each goes first */
	if (rank == 0)
		OK(fi_close(&av->fid));
	ct_barrier(&c);
	CHECK(is_there(name));
	if (rank == 0)
		av = open_av(&c, name, 0);
	ct_barrier(&c);
	if (rank == 1) {
		CHECK(names(av, 0, 1, 1));
		OK(fi_close(&av->fid));
	}
	ct_barrier(&c);
	CHECK(is_there(name));
	ct_barrier(&c);
	if (rank == 0) {
		CHECK(names(av, 0, 1, 1));
		OK(fi_close(&av->fid));
	}
	ct_barrier(&c);
	CHECK(!is_there(name));
	ct_close(&c);
}
/* fi_sockets(7): vectors of processes that ended without closing can be read, and a process with write access starts them anew. */
static void left_behind(int rank)
{
	const char *name = own_name();
	struct fid_av *av, *other;
	int status;
	struct ct c;
	pid_t pid;

	(void)rank;
	sockets_only();
	/* nothing of the library's is open in this process yet */
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		open_domain(&c, &shared);
		av = open_av(&c, name, 0);
		EQ(put(av, 1, 1), 0);
		EQ(put(av, 2, 2), 1);
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(is_there(name));
	open_domain(&c, &shared);
	av = open_av(&c, name, FI_READ);
	CHECK(names(av, 0, 1, 1) && names(av, 1, 2, 2));
	/* a vector that is open keeps its indices */
	other = open_av(&c, name, 0);
	CHECK(names(other, 1, 2, 2));
	EQ(put(other, 3, 3), 2);
	CHECK(names(av, 2, 3, 3));
	OK(fi_close(&other->fid));
	OK(fi_close(&av->fid));
	CHECK(!is_there(name));

	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct ct d;

		open_domain(&d, &shared);
		av = open_av(&d, name, 0);
		EQ(put(av, 1, 1), 0);
		kill(getpid(), SIGKILL);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	av = open_av(&c, name, 0);
	CHECK(!names(av, 0, 1, 1));
	EQ(put(av, 4, 4), 0);
	OK(fi_close(&av->fid));
	CHECK(!is_there(name));
	ct_close(&c);
}

static void plant(const char *name, const void *b, size_t n, mode_t mode)
{
	int fd = open(file_of(name), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK(write(fd, b, n) == (ssize_t)n);
	OK(fchmod(fd, mode));
	close(fd);
}
/* A file of this name is refused for both kinds of access, and stays as it is. */
static void refused(struct ct *c, const char *name, const void *b, size_t n)
{
	char *now = malloc(n + 1);
	struct fid_av *av;
	int fd;

	CHECK(now);
	for (int write = 0; write < 2; write++) {
		CHECK(try_open(c, name, write ? 0 : FI_READ, &av) < 0);
		CHECK(is_there(name));
		fd = open(file_of(name), O_RDONLY | O_CLOEXEC);
		CHECK(fd >= 0);
		EQ(read(fd, now, n + 1), n);
		CHECK(!memcmp(now, b, n));
		close(fd);
	}
	free(now);
	OK(unlink(file_of(name)));
}
/* A file under a name that is no vector of this user is neither read nor written. */
static void injected(int rank)
{
	const char *name = own_name();
	static char garbage[4096], table[4096];
	char target[64];
	struct fid_av *av;
	struct stat st;
	ssize_t n;
	struct ct c;
	int fd;

	(void)rank;
	sockets_only();
	open_domain(&c, &shared);
	/* the bytes of a vector */
	av = open_av(&c, name, 0);
	EQ(put(av, 1, 1), 0);
	fd = open(file_of(name), O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && (n = read(fd, table, sizeof table)) > 16);
	OK(fstat(fd, &st));
	EQ(st.st_mode & 07777, 0600);
	close(fd);
	OK(fi_close(&av->fid));
	CHECK(!is_there(name));

	memset(garbage, 0x55, sizeof garbage);
	plant(name, garbage, 15, 0600);
	refused(&c, name, garbage, 15);
	plant(name, garbage, sizeof garbage, 0600);
	refused(&c, name, garbage, sizeof garbage);
	plant(name, table, 5, 0600);	/* cut off in its header */
	refused(&c, name, table, 5);
	plant(name, table, n, 0666);	/* others may write it */
	refused(&c, name, table, n);
	if (!geteuid()) {
		plant(name, table, n, 0600);
		OK(chown(file_of(name), 12345, 12345));
		refused(&c, name, table, n);
	}
	/* links: to a vector, to nothing */
	snprintf(target, sizeof target, "%s-target", name);
	plant(target, table, n, 0600);
	strcpy(target, file_of(target));
	OK(symlink(target, file_of(name)));
	refused(&c, name, table, n);
	OK(link(target, file_of(name)));
	refused(&c, name, table, n);
	OK(unlink(target));
	OK(symlink(target, file_of(name)));
	CHECK(try_open(&c, name, 0, &av) < 0 && try_open(&c, name, FI_READ, &av) < 0);
	CHECK(lstat(target, &st) && errno == ENOENT);
	OK(unlink(file_of(name)));
	/* opening such a file could block */
	OK(mkfifo(file_of(name), 0600));
	CHECK(try_open(&c, name, 0, &av) < 0 && try_open(&c, name, FI_READ, &av) < 0);
	OK(unlink(file_of(name)));
	ct_close(&c);
}
/* A vector whose file is cut off or written over by another program has fewer addresses, and raises no signal. */
static void damaged(int rank)
{
	const char *name = own_name();
	struct fid_av *av, *reader, *late;
	char noise[4096];
	struct sockaddr_in a = addr_of(7, 7);
	fi_addr_t at;
	struct ct c;
	int fd;

	(void)rank;
	sockets_only();
	open_domain(&c, &shared);
	av = open_av(&c, name, 0);
	for (int k = 0; k < 200; k++)
		EQ(put(av, k, 1), k);
	reader = open_av(&c, name, FI_READ);
	CHECK(names(reader, 199, 199, 1));
	memset(noise, 0xa5, sizeof noise);
	fd = open(file_of(name), O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(pwrite(fd, noise, sizeof noise, 4096) == sizeof noise);
	late = open_av(&c, name, FI_READ);
	for (int k = 0; k < 200; k++)
		CHECK(names(late, k, k, 1) == names(reader, k, k, 1));
	CHECK(names(late, 3, 3, 1) && !names(late, 100, 100, 1) && names(late, 199, 199, 1));
	OK(ftruncate(fd, 0));
	for (int k = 0; k < 210; k++)
		CHECK(!names(reader, k, k, 1));
	CHECK(fi_av_insert(av, &a, 1, &at, 0, NULL) <= 0);
	close(fd);
	OK(fi_close(&late->fid));
	OK(fi_close(&reader->fid));
	OK(fi_close(&av->fid));
	CHECK(!is_there(name));
	ct_close(&c);
}

static const struct ct_test tests[] = {
	{ "FI_SHARED_AV is offered with and without a request", offered, CT_SOLO },
	{ "without FI_SHARED_AV vectors cannot be named", not_offered, CT_SOLO },
	{ "a process sends to an index of FI_AV_TABLE inserted by another process", table_used, CT_RDM },
	{ "a process sends to an address of FI_AV_MAP inserted by another process", map_used, CT_RDM },
	{ "a peer with earlier messages has its index after insertion by another process", named_later, CT_RDM },
	{ "FI_READ requires a name and an existing vector of that name", missing, CT_SOLO | CT_RDM },
	{ "a vector opened with FI_READ can be read and not changed", read_only, CT_SOLO | CT_RDM },
	{ "two names give two vectors", two_names, CT_SOLO | CT_RDM },
	{ "two processes insert, and each index belongs to one address", both_insert, CT_RDM },
	{ "the name of a vector is removed with the last process closing it", last_one_removes, CT_RDM },
	{ "a vector left by a killed process is read or created anew", left_behind, CT_SOLO | CT_RDM },
	{ "a file other than a vector of this user is refused and unchanged", injected, CT_SOLO | CT_RDM },
	{ "an overwritten or truncated vector has no addresses in the damaged part", damaged, CT_SOLO | CT_RDM },
};
CT_MAIN("shared_av", tests)
