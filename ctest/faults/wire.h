/*
 * A private network: this process, another one, and between them a wire that
 * can lose, double and delay packets, or be cut.  No packet scheduler of the
 * kernel's is needed: a process passes the packets on.
 */
#ifndef WIRE_H
#define WIRE_H
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

struct wire {
	volatile int loss;	/* of a thousand packets; as many are doubled, and delayed */
	volatile int cut;	/* nothing passes */
	volatile int firewall;	/* the far end accepts no connection */
	volatile int up;
	volatile long passed, dropped;
	pid_t middle, far;	/* process passing packets on; process at the other end */
};

static inline __attribute__((format(printf, 1, 2))) void wire_sh(const char *fmt, ...)
{
	char line[500];
	va_list a;

	va_start(a, fmt);
	vsnprintf(line, sizeof line, fmt, a);
	va_end(a);
	if (system(line))
		FAIL("%s", line);
}
/* Packets must be whole and have their checksums when a program passes them on. */
static inline void wire_fast(const char *name)
{
	static const uint32_t off[] = { ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(s >= 0);
	for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
		struct ethtool_value v = { .cmd = off[i] };
		struct ifreq r = { .ifr_data = (void *)&v };

		strcpy(r.ifr_name, name);
		(void)ioctl(s, SIOCETHTOOL, &r);
	}
	close(s);
}
static inline int wire_end(const char *name)
{
	struct sockaddr_ll a = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name) };
	int s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), big = 8 << 20;

	CHECK(s >= 0 && a.sll_ifindex);
	setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big);
	CHECK(!bind(s, (void *)&a, sizeof a));
	return s;
}
/* Whether a packet is the first of a connection: SYN without ACK. */
static inline int wire_calls(const unsigned char *b, ssize_t n)
{
	ssize_t ip = 14, tcp;

	if (n < ip + 20 || b[12] != 8 || b[13] != 0 || b[ip + 9] != IPPROTO_TCP)
		return 0;
	tcp = ip + (b[ip] & 15) * 4;
	return n > tcp + 13 && (b[tcp + 13] & 0x12) == 0x02;
}
static inline void __attribute__((noreturn)) wire_pass_on(struct wire *w)
{
	static char b[65536], late[65536];
	ssize_t nlate = 0;
	int end[2] = { wire_end("wa"), wire_end("wb") }, late_to = 0;

	for (;;) {
		struct pollfd p[2] = { { .fd = end[0], .events = POLLIN }, { .fd = end[1], .events = POLLIN } };

		poll(p, 2, 20);
		for (int i = 0; i < 2; i++) {
			struct sockaddr_ll from;
			socklen_t k = sizeof from;
			ssize_t n;

			while ((n = recvfrom(end[i], b, sizeof b, MSG_DONTWAIT, (void *)&from, &k)) > 0) {
				if (from.sll_pkttype == PACKET_OUTGOING)
					continue;
				if (w->firewall && i == 0 && wire_calls((unsigned char *)b, n)) {
					w->dropped++;
					continue;
				}
				if (w->cut || rand() % 1000 < w->loss) {
					w->dropped++;
					continue;
				}
				if (!nlate && rand() % 1000 < w->loss) {
					memcpy(late, b, nlate = n);
					late_to = end[!i];
					continue;
				}
				(void)!send(end[!i], b, n, 0);
				if (rand() % 1000 < w->loss)
					(void)!send(end[!i], b, n, 0);
				w->passed++;
				k = sizeof from;
			}
		}
		if (nlate && !w->cut)
			(void)!send(late_to, late, nlate, 0);
		nlate = 0;
	}
}
/* Repeats address resolution on the wire for as long as a busy machine takes: by default the
 * system gives up a host after three unanswered requests, one a second. */
static inline void wire_be_patient(const char *name)
{
	static const char *const which[] = { "mcast_solicit", "ucast_solicit" };

	for (int i = 0; i < 2; i++) {
		char path[80];
		FILE *f;

		snprintf(path, sizeof path, "/proc/sys/net/ipv4/neigh/%s/%s", name, which[i]);
		if ((f = fopen(path, "w"))) {
			fputs("1000", f);
			fclose(f);
		}
	}
}
/* A process in a network of its own, where it executes `run`. */
static inline pid_t wire_fork(struct wire *w, void (*run)(struct wire *))
{
	int up[2];
	char x;
	pid_t p;

	CHECK(!pipe2(up, O_CLOEXEC));
	p = fork();
	if (p == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHECK(!unshare(CLONE_NEWNET));
		CHECK(write(up[1], "x", 1) == 1);
		run(w);
	}
	CHECK(read(up[0], &x, 1) == 1);
	close(up[0]);
	close(up[1]);
	return p;
}
static inline void wire_middle(struct wire *w)
{
	/* the ends come from the parent */
	while (!if_nametoindex("wa") || !if_nametoindex("wb"))
		ct_nap(2);
	wire_fast("wa");
	wire_fast("wb");
	wire_sh("ip link set wa up && ip link set wb up");
	wire_pass_on(w);
}
static inline void wire_far(struct wire *w)
{
	while (!if_nametoindex("v1"))
		ct_nap(2);
	wire_fast("v1");
	wire_be_patient("v1");
	wire_sh("ip link set lo up && ip addr add 10.99.1.2/24 dev v1 && ip link set v1 up");
	w->up = 1;
	for (;;)
		pause();
}
/* Puts this process into a network of its own, with one end of the wire. */
static inline struct wire *wire_open(void)
{
	struct wire *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(w != MAP_FAILED);
	if (system("command -v ip >/dev/null"))
		SKIP("no ip (iproute2)");
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		SKIP("no private network: %s", strerror(errno));
	if (system("ip link set lo up && ip link add v0 type veth peer name wa 2>/dev/null"))
		SKIP("no pair of virtual interfaces (veth)");
	wire_sh("ip link add v1 type veth peer name wb");
	w->middle = wire_fork(w, wire_middle);
	w->far = wire_fork(w, wire_far);
	wire_sh("ip link set wa netns %d && ip link set wb netns %d && ip link set v1 netns %d", w->middle, w->middle, w->far);
	wire_fast("v0");
	wire_be_patient("v0");
	wire_sh("ip addr add 10.99.1.9/24 dev v0 && ip link set v0 up");
	/* until it is up to the other end */
	while (!w->up)
		ct_nap(2);
	return w;
}
/* Puts this process at the other end, which outlives it. */
static inline void wire_join(struct wire *w)
{
	char path[64];
	int fd;

	snprintf(path, sizeof path, "/proc/%d/ns/net", w->far);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && !setns(fd, CLONE_NEWNET));
	close(fd);
}
/* This process's interface. */
static inline void wire_set_link(int up)
{
	struct ifreq r = { .ifr_name = "v0" };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK(s >= 0);
	EQ(ioctl(s, SIOCGIFFLAGS, &r), 0);
	r.ifr_flags = up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP;
	EQ(ioctl(s, SIOCSIFFLAGS, &r), 0);
	close(s);
}
static inline void wire_close(struct wire *w)
{
	kill(w->middle, SIGKILL);
	kill(w->far, SIGKILL);
	CHECK(waitpid(w->middle, NULL, 0) == w->middle && waitpid(w->far, NULL, 0) == w->far);
	munmap(w, sizeof *w);
}
#endif
