// What dat_srq_post_recv(3DAT) says of shared receive queues, and the answers of other calls to bad
// input, through Debian's libdat2. Both ends of most connections are in this process.
//
// The sentences of the page, and the lines of this program's output that show them:
//
//   srq_handle, DAT_INVALID_HANDLE	"no queue", "another object", "a queue that was freed"
//   num_segments may be 0, local_iov NULL, for a message of no bytes
//					"a buffer of no segments takes a message of no bytes, and no cookie ..."
//   user_cookie: may be NULL, need not be unique, comes back
//					the same, "a cookie comes back", "for each buffer that was posted with it"
//   any connected endpoint of the queue takes the buffer
//					"the completion is on the receive EVD of the endpoint that took the buffer",
//					"each endpoint tells of its own", "another endpoint takes it"
//   segments are filled in order, one in part, those behind it not
//					"segments are filled front to back", "the segments listed at the post are filled ..."
//   completion by the endpoint's configuration; UNSIGNALLED is the default and signals
//					"the default flag of an endpoint with a queue ...", "a threshold of three waits for three, ..."
//   SOLICITED_WAIT			cannot be had: "solicited wait: DAT_MODEL_NOT_SUPPORTED" (dat_calls), "the attributes promise ..."
//   EVD_THRESHOLD: dat_evd_wait's threshold decides	"DAT_COMPLETION_EVD_THRESHOLD_FLAG: ...", "but by three"
//   local_iov is its owner's again, as the attributes say	"the attributes say that a list of segments ..."
//   DAT_SUCCESS is a receive that was posted	"remaining receives are counted", "a full queue"
//   posting allocates nothing and does not block	"posting allocates nothing"
//   messages of a connection complete in their order	"messages of a connection complete in their order"
//   valid in all states of the queue		posts before, between and after connections, all through this program
//   DAT_INSUFFICIENT_RESOURCES			"a full queue: DAT_INSUFFICIENT_RESOURCES"
//   DAT_INVALID_PARAMETER			"a segment that ends outside its LMR", "one that begins outside", "more segments ..."
//   DAT_PROTECTION_VIOLATION			"an LMR of another zone"
//   DAT_PRIVILEGES_VIOLATION			"one that may not be written", "one that is not there"
//   only endpoints that are connected or about to disconnect take buffers
//					"an endpoint without a connection takes no buffer", "in that state an endpoint takes buffers, too",
//					"an endpoint that is disconnected takes none"
//   what an endpoint has taken is told of when it is disconnected, what is not complete flushed
//					"when the connection ends that buffer is flushed ...", "no buffer of the queue is flushed",
//					"and the one behind it stays in the queue"
#include "dat_test.h"
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, EPS = 3 };
static DAT_PZ_HANDLE pz, other_pz;
static DAT_EVD_HANDLE async, conn, cr, req, recv_evd[EPS], send_recv;
static DAT_SRQ_HANDLE srq;
static char *memory;
static DAT_LMR_HANDLE lmr, readonly, foreign;
static DAT_LMR_CONTEXT key, readonly_key, foreign_key;
static DAT_RMR_CONTEXT rkey;
static DAT_PSP_HANDLE psp;
static DAT_CONN_QUAL port;
static DAT_EP_HANDLE taker[EPS], sender[EPS];

static DAT_LMR_TRIPLET at(int offset, int length) { return (DAT_LMR_TRIPLET){ (DAT_VADDR)(uintptr_t)memory + offset, length, key }; }
static DAT_RETURN post(int offset, int length, uint64_t n) { DAT_LMR_TRIPLET t = at(offset, length); return dat_srq_post_recv(srq, 1, &t, cookie(n)); }
static DAT_LMR_HANDLE reg(DAT_PZ_HANDLE zone, int priv, DAT_LMR_CONTEXT *k, DAT_RMR_CONTEXT *r)
{
	DAT_LMR_HANDLE h; DAT_VLEN l; DAT_VADDR a; DAT_RMR_CONTEXT own;
	DAT_REGION_DESCRIPTION d = { .for_va = memory };
	MUST(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, 64 * SIZE, zone, priv, DAT_VA_TYPE_VA, &h, k, r ? r : &own, &l, &a));
	return h;
}
static void link_up(int k)
{
	struct sockaddr_storage to = here();
	char hello[8] = "hello";
	MUST(dat_ep_create_with_srq(ia, pz, recv_evd[k], req, conn, srq, NULL, &taker[k]));
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &sender[k]));
	MUST(dat_ep_connect(sender[k], (DAT_IA_ADDRESS_PTR)&to, port, DAT_TIMEOUT_INFINITE, sizeof hello, hello, DAT_QOS_BEST_EFFORT, DAT_CONNECT_DEFAULT_FLAG));
	DAT_EVENT e = next(cr);
	CHECK(e.event_number == DAT_CONNECTION_REQUEST_EVENT, "a request arrives");
	DAT_CR_PARAM p;
	MUST(dat_cr_query(e.event_data.cr_arrival_event_data.cr_handle, DAT_CR_FIELD_ALL, &p));
	CHECK(p.private_data_size == sizeof hello && !memcmp(p.private_data, hello, sizeof hello), "its data is the caller's");
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, taker[k], 3, "yes"));
	for (int n = 0; n < 2; n++) {
		e = next(conn);
		CHECK(e.event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "both ends are told of the connection");
		if (e.event_data.connect_event_data.ep_handle == sender[k])
			CHECK(e.event_data.connect_event_data.private_data_size == 3, "the caller gets the data of the answer");
	}
}
static void send_to(int k, const char *text, int length)
{
	memcpy(memory + 32 * SIZE, text, length);
	DAT_LMR_TRIPLET t = at(32 * SIZE, length);
	MUST(dat_ep_post_send(sender[k], 1, &t, cookie(77), DAT_COMPLETION_DEFAULT_FLAG));
	DAT_EVENT e = next(req);
	CHECK(e.event_number == DAT_DTO_COMPLETION_EVENT && e.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS, "a send completes");
}

enum { LARGE = 48 << 20 };
// Another process that connects and stays until it is killed; it may send a message before it is
// stopped, "sends", or be stopped while it sends a large one, "begins".
static int peer(char *name, DAT_CONN_QUAL to_port, const char *what)
{
	DAT_EP_HANDLE ep; DAT_EVENT e;
	MUST(dat_ia_open(name, 8, &async, &ia));
	struct sockaddr_storage to = here();
	MUST(dat_pz_create(ia, &pz));
	MUST(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
	MUST(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &req));
	MUST(dat_ep_create(ia, pz, DAT_HANDLE_NULL, req, conn, NULL, &ep));
	MUST(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, to_port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	next(conn);
	if (*what) {
		int length = strcmp(what, "begins") ? 4 : LARGE;
		char *m = malloc(length);
		DAT_REGION_DESCRIPTION d = { .for_va = m }; DAT_LMR_CONTEXT k; DAT_RMR_CONTEXT r; DAT_VLEN l; DAT_VADDR v;
		memset(m, '+', length);
		MUST(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, length, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr, &k, &r, &l, &v));
		DAT_LMR_TRIPLET t = { (DAT_VADDR)(uintptr_t)m, length, k };
		MUST(dat_ep_post_send(ep, 1, &t, cookie(1), 0));
		if (length == 4) e = next(req);
		(void)e;
		raise(SIGSTOP);
	}
	pause();
	return 0;
}
static pid_t starts(char **argv, DAT_EP_HANDLE ep, const char *what)
{
	char number[24];
	int status;
	snprintf(number, sizeof number, "%llu", (unsigned long long)port);
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		// what is under way between processes of one host is else read where it is, also of one that is stopped
		setenv("FI_TCP_LOCAL", "0", 1);
		execl(argv[0], argv[0], argv[1], number, what, (char *)NULL); _exit(1);
	}
	DAT_EVENT e = next(cr);
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "another process connects");
	waitpid(child, &status, WUNTRACED);
	return child;
}

// The sentences of the page that the rest leaves open: a buffer for nothing, flags, states, posting without memory.
static void sentences(char **argv, int device)
{
	DAT_SRQ_ATTR a = { .max_recv_dtos = 8, .max_recv_iov = 2, .low_watermark = 0 }; DAT_SRQ_PARAM p; DAT_SRQ_HANDLE q;
	DAT_EVD_HANDLE rv; DAT_EP_HANDLE from, to, calm; DAT_EP_PARAM ep_param; DAT_EP_ATTR attr; DAT_EP_STATE state; DAT_BOOLEAN idle; DAT_EVENT e; DAT_COUNT left;
	struct sockaddr_storage peer_at = here();
	DAT_DTO_COMPLETION_EVENT_DATA *d = &e.event_data.dto_completion_event_data;
	MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &rv));
	MUST(dat_srq_create(ia, pz, &a, &q));
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &from));
	MUST(dat_ep_query(from, DAT_EP_FIELD_ALL, &ep_param));
	attr = ep_param.ep_attr; attr.recv_completion_flags = DAT_COMPLETION_EVD_THRESHOLD_FLAG;
	MUST(dat_ep_create_with_srq(ia, pz, rv, req, conn, q, &attr, &to));
	MUST(dat_ep_create_with_srq(ia, pz, rv, req, conn, q, NULL, &calm));
	size_t before = mallinfo2().uordblks;
	DAT_DTO_COOKIE none; memset(&none, 0, sizeof none);
	MUST(dat_srq_post_recv(q, 0, NULL, none));
	for (int n = 1; n < 8; n++) { DAT_LMR_TRIPLET t = at(n * 64, 64); MUST(dat_srq_post_recv(q, 1, &t, cookie(n))); }
	CHECK(mallinfo2().uordblks == before, "posting allocates nothing");
	MUST(dat_srq_query(q, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.available_dto_count == 8 && nothing(rv), "an endpoint without a connection takes no buffer");
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer_at, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	e = next(cr);
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, to, 0, NULL));
	for (int n = 0; n < 2; n++) CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "both ends are told of the connection");
	MUST(dat_ep_post_send(from, 0, NULL, cookie(70), 0)); next(req);
	e = next(rv);
	CHECK(d->status == DAT_DTO_SUCCESS && d->transfered_length == 0 && d->user_cookie.as_64 == 0 && d->ep_handle == to, "a buffer of no segments takes a message of no bytes, and no cookie comes back as none");
	DAT_LMR_TRIPLET t = at(32 * SIZE, 8);
	for (int n = 0; n < 2; n++) { MUST(dat_ep_post_send(from, 1, &t, cookie(71), 0)); next(req); }
	CHECK(TYPE(dat_evd_wait(rv, 200000, 3, &e, &left), DAT_TIMEOUT_EXPIRED) && left == 2, "DAT_COMPLETION_EVD_THRESHOLD_FLAG: dat_evd_wait with a threshold of three is not woken by two");
	MUST(dat_ep_post_send(from, 1, &t, cookie(71), 0)); next(req);
	CHECK(dat_evd_wait(rv, 10000000, 3, &e, &left) == DAT_SUCCESS && left == 2 && d->user_cookie.as_64 == 1, "but by three");
	next(rv); next(rv);
	MUST(dat_ep_free(from)); MUST(dat_ep_free(to));
	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS || dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
	MUST(dat_srq_query(q, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.available_dto_count == 4, "what an endpoint that is freed has not taken stays");
	CHECK(TYPE(dat_srq_post_recv(q, 1, NULL, none), DAT_INVALID_PARAMETER), "a segment that is announced and not there: DAT_INVALID_PARAMETER");
	MUST(dat_ep_free(calm)); MUST(dat_srq_free(q));
	if (!device) {	// a device goes on when its process is stopped
		// an endpoint whose connection is to end when its requests have takes buffers until then
		MUST(dat_srq_create(ia, pz, &a, &q));
		MUST(dat_ep_create_with_srq(ia, pz, rv, req, conn, q, NULL, &to));
		pid_t child = starts(argv, to, "sends");
		DAT_RMR_TRIPLET r = { 4096, 8, 1 };
		MUST(dat_ep_post_rdma_read(to, 1, &t, cookie(80), &r, 0));
		MUST(dat_ep_disconnect(to, DAT_CLOSE_GRACEFUL_FLAG));
		MUST(dat_ep_get_status(to, &state, &idle, &idle));
		CHECK(state == DAT_EP_STATE_DISCONNECT_PENDING, "a graceful end waits for a read that is not answered: DAT_EP_STATE_DISCONNECT_PENDING");
		DAT_LMR_TRIPLET in = at(0, 64);
		MUST(dat_srq_post_recv(q, 1, &in, cookie(81)));
		e = next(rv);
		CHECK(d->user_cookie.as_64 == 81 && d->status == DAT_DTO_SUCCESS && d->transfered_length == 4, "in that state an endpoint takes buffers, too");
		kill(child, SIGKILL); waitpid(child, NULL, 0);
		CHECK(next(conn).event_number != 0 && next(req).event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED, "and the read is flushed when the peer is gone");
		MUST(dat_srq_post_recv(q, 1, &in, cookie(82)));
		CHECK(nothing(rv), "an endpoint that is disconnected takes none");
		while (dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
		MUST(dat_ep_free(to)); MUST(dat_srq_free(q));

		// a message that came in part
		DAT_REGION_DESCRIPTION region = { .for_va = calloc(1, LARGE) }; DAT_LMR_HANDLE big; DAT_LMR_CONTEXT k; DAT_RMR_CONTEXT w; DAT_VLEN l; DAT_VADDR v;
		volatile char *first = region.for_va;
		MUST(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, region, LARGE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &big, &k, &w, &l, &v));
		MUST(dat_srq_create(ia, pz, &a, &q));
		MUST(dat_ep_create_with_srq(ia, pz, rv, req, conn, q, NULL, &to));
		DAT_LMR_TRIPLET all = { (DAT_VADDR)(uintptr_t)region.for_va, LARGE, k };
		MUST(dat_srq_post_recv(q, 1, &all, cookie(90))); MUST(dat_srq_post_recv(q, 1, &in, cookie(91)));
		child = starts(argv, to, "begins");
		for (int n = 0; n < 100 && !*first; n++) nothing(rv);
		CHECK(*first == '+' && nothing(rv), "a buffer is filled in part, and nothing is told");
		kill(child, SIGKILL); waitpid(child, NULL, 0);
		e = next(rv);
		CHECK(d->user_cookie.as_64 == 90 && d->status == DAT_DTO_ERR_FLUSHED && d->ep_handle == to, "when the connection ends that buffer is flushed on the EVD of the endpoint that took it");
		MUST(dat_srq_query(q, DAT_SRQ_FIELD_ALL, &p));
		CHECK(p.available_dto_count == 1 && nothing(rv), "and the one behind it stays in the queue");
		CHECK(next(conn).event_number != 0, "a peer that dies: an event of the connection");
		while (dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
		MUST(dat_ep_free(to)); MUST(dat_srq_free(q)); MUST(dat_lmr_free(big)); free(region.for_va);
	}
	MUST(dat_evd_free(rv));
}

int main(int argc, char **argv)
{
	alarm(120);
	if (argc < 2) return 2;
	if (argc > 2) return peer(argv[1], strtoull(argv[2], NULL, 10), argc > 3 ? argv[3] : "");
	MUST(dat_ia_open(argv[1], 64, &async, &ia));
	MUST(dat_pz_create(ia, &pz)); MUST(dat_pz_create(ia, &other_pz));
	MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
	MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr));
	MUST(dat_evd_create(ia, 256, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &req));
	MUST(dat_evd_create(ia, 256, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &send_recv));
	for (int k = 0; k < EPS; k++) MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &recv_evd[k]));
	memory = aligned_alloc(SIZE, 64 * SIZE); memset(memory, 0, 64 * SIZE);
	lmr = reg(pz, DAT_MEM_PRIV_ALL_FLAG, &key, &rkey);
	readonly = reg(pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, &readonly_key, NULL);
	foreign = reg(other_pz, DAT_MEM_PRIV_ALL_FLAG, &foreign_key, NULL);
	MUST(dat_psp_create_any(ia, &port, cr, DAT_PSP_CONSUMER_FLAG, &psp));

	// create, query
	DAT_SRQ_ATTR a = { .max_recv_dtos = 8, .max_recv_iov = 2, .low_watermark = 0 };
	DAT_SRQ_PARAM p;
	DAT_LMR_TRIPLET t = at(0, 64);
	MUST(dat_srq_create(ia, pz, &a, &srq));
	MUST(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.max_recv_dtos >= 8 && p.max_recv_iov >= 2 && p.pz_handle == pz && p.srq_state == DAT_SRQ_STATE_OPERATIONAL, "a queue has what it was made with");
	a.max_recv_dtos = 0;
	DAT_SRQ_HANDLE none;
	CHECK(TYPE(dat_srq_create(ia, pz, &a, &none), DAT_INVALID_PARAMETER), "a queue of nothing: DAT_INVALID_PARAMETER");

	// the errors of the page
	CHECK(SUB(dat_srq_post_recv(DAT_HANDLE_NULL, 1, &t, cookie(1)), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_SRQ), "no queue: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_srq_post_recv(pz, 1, &t, cookie(1)), DAT_INVALID_HANDLE), "another object: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_srq_post_recv(srq, 3, &t, cookie(1)), DAT_INVALID_PARAMETER), "more segments than the queue takes: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_srq_post_recv(srq, -1, &t, cookie(1)), DAT_INVALID_PARAMETER), "fewer than none: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_srq_post_recv(srq, 1, NULL, cookie(1)), DAT_INVALID_PARAMETER), "a segment that is not there: DAT_INVALID_PARAMETER");
	CHECK(TYPE(post(64 * SIZE - 10, 11, 1), DAT_INVALID_PARAMETER), "a segment that ends outside its LMR: DAT_INVALID_PARAMETER");
	CHECK(TYPE(post(-1, 10, 1), DAT_INVALID_PARAMETER), "one that begins outside: DAT_INVALID_PARAMETER");
	t.lmr_context = foreign_key;
	CHECK(TYPE(dat_srq_post_recv(srq, 1, &t, cookie(1)), DAT_PROTECTION_VIOLATION), "an LMR of another zone: DAT_PROTECTION_VIOLATION");
	t.lmr_context = readonly_key;
	CHECK(TYPE(dat_srq_post_recv(srq, 1, &t, cookie(1)), DAT_PRIVILEGES_VIOLATION), "one that may not be written: DAT_PRIVILEGES_VIOLATION");
	t.lmr_context = 0xdead;
	CHECK(TYPE(dat_srq_post_recv(srq, 1, &t, cookie(1)), DAT_PRIVILEGES_VIOLATION), "one that is not there: DAT_PRIVILEGES_VIOLATION");
	MUST(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.available_dto_count == 0, "refused receives are not posted");
	// segments of no bytes are not looked at
	t = (DAT_LMR_TRIPLET){ 1, 0, 0xdead };
	for (int n = 0; n < 8; n++) MUST(n % 2 ? dat_srq_post_recv(srq, 1, &t, cookie(n)) : dat_srq_post_recv(srq, 0, NULL, cookie(n)));
	CHECK(TYPE(post(0, 64, 9), DAT_INSUFFICIENT_RESOURCES), "a full queue: DAT_INSUFFICIENT_RESOURCES");
	CHECK(TYPE(dat_srq_resize(srq, 4), DAT_INVALID_STATE), "less room than is used: DAT_INVALID_STATE");
	MUST(dat_srq_resize(srq, 16));
	MUST(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.max_recv_dtos >= 16, "more room");
	CHECK(post(0, 64, 9) == DAT_SUCCESS, "which is used");
	MUST(dat_srq_free(srq));
	CHECK(TYPE(dat_srq_post_recv(srq, 0, NULL, cookie(1)), DAT_INVALID_HANDLE), "a queue that was freed: DAT_INVALID_HANDLE");

	// any connected endpoint takes the next buffer
	a = (DAT_SRQ_ATTR){ .max_recv_dtos = 16, .max_recv_iov = 2, .low_watermark = 0 };
	MUST(dat_srq_create(ia, pz, &a, &srq));
	DAT_LMR_TRIPLET two[2] = { at(0, 4), at(SIZE, 60) };
	MUST(dat_srq_post_recv(srq, 2, two, cookie(100)));
	for (int n = 1; n < 8; n++) MUST(post(n * 2 * SIZE, SIZE, 100 + n));
	for (int k = 0; k < EPS; k++) link_up(k);
	CHECK(TYPE(dat_srq_free(srq), DAT_INVALID_STATE), "a queue in use: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ep_post_recv(taker[0], 0, NULL, cookie(1), DAT_COMPLETION_DEFAULT_FLAG), DAT_INVALID_STATE), "an endpoint of a queue has no receives of its own");
	send_to(0, "abcdefgh", 8);
	DAT_EVENT e = next(recv_evd[0]);
	DAT_DTO_COMPLETION_EVENT_DATA *d = &e.event_data.dto_completion_event_data;
	CHECK(e.event_number == DAT_DTO_COMPLETION_EVENT && d->ep_handle == taker[0] && d->status == DAT_DTO_SUCCESS && d->operation == DAT_DTO_RECEIVE, "the completion is on the receive EVD of the endpoint that took the buffer");
	CHECK(d->user_cookie.as_64 == 100 && d->transfered_length == 8, "with the buffer's cookie and the length");
	CHECK(!memcmp(memory, "abcd", 4) && !memcmp(memory + SIZE, "efgh", 4), "segments are filled front to back");
	CHECK(!memcmp(memory + SIZE + 4, "\0\0\0\0", 4), "and of the last one no more than the message has");
	for (int k = 0; k < EPS; k++) {
		send_to(k, "one", 3); send_to(k, "second", 6);
		DAT_EVENT first = next(recv_evd[k]), then = next(recv_evd[k]);
		CHECK(first.event_data.dto_completion_event_data.transfered_length == 3 && then.event_data.dto_completion_event_data.transfered_length == 6, "messages of a connection complete in their order");
		CHECK(first.event_data.dto_completion_event_data.ep_handle == taker[k], "each endpoint tells of its own");
	}
	MUST(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.available_dto_count == 1, "remaining receives are counted");

	// what a cookie, a list of segments and an endpoint's flags mean
	DAT_PROVIDER_ATTR pa; DAT_EP_PARAM ep_param; DAT_COUNT left;
	MUST(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &pa));
	MUST(dat_ep_query(taker[0], DAT_EP_FIELD_ALL, &ep_param));
	CHECK(ep_param.ep_attr.recv_completion_flags == DAT_COMPLETION_UNSIGNALLED_FLAG && ep_param.srq_handle == srq, "the default flag of an endpoint with a queue is DAT_COMPLETION_UNSIGNALLED_FLAG");
	memset(memory + 10 * SIZE, '-', 4 * SIZE);
	DAT_LMR_TRIPLET four[2] = { at(10 * SIZE, 8), at(11 * SIZE, 8) };
	MUST(post(0, 64, 150));	// behind the one that is left
	MUST(dat_srq_post_recv(srq, 2, four, cookie(150)));
	CHECK(pa.iov_ownership_on_return == DAT_IOV_CONSUMER, "the attributes say that a list of segments is its owner's when the call returns");
	memset(four, 0xff, sizeof four);
	send_to(0, "one", 3); send_to(0, "two", 3); send_to(0, "third", 5);
	CHECK(dat_evd_wait(recv_evd[0], 10000000, 3, &e, &left) == DAT_SUCCESS && left == 2, "a threshold of three waits for three, each with a signal");
	e = next(recv_evd[0]);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 150, "a cookie comes back");
	e = next(recv_evd[0]);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 150 && e.event_data.dto_completion_event_data.transfered_length == 5, "for each buffer that was posted with it");
	CHECK(!memcmp(memory + 10 * SIZE, "third---", 8) && !memcmp(memory + 11 * SIZE, "--------", 8), "the segments listed at the post are filled: one in part, the later ones not");
	MUST(post(0, 64, 151));

	// a mark
	MUST(dat_srq_set_lw(srq, 1));
	CHECK(nothing(async), "no event while there is as much as the mark says");
	send_to(1, "x", 1); next(recv_evd[1]);
	e = next(async);
	CHECK(e.event_data.asynch_error_event_data.dat_handle == srq && e.event_data.asynch_error_event_data.reason == DAT_SRQ_LOW_WATERMARK_EVENT, "fewer buffers than the mark: an event");
	CHECK(TYPE(dat_srq_set_lw(srq, 100), DAT_INVALID_PARAMETER), "a mark above the queue: DAT_INVALID_PARAMETER");

	// too short a buffer
	MUST(post(0, 4, 200));
	t = at(32 * SIZE, 15);
	MUST(dat_ep_post_send(sender[0], 1, &t, cookie(78), 0));
	next(req);
	e = next(recv_evd[0]);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 200 && e.event_data.dto_completion_event_data.status == DAT_DTO_ERR_LOCAL_LENGTH, "a message longer than its buffer: DAT_DTO_ERR_LOCAL_LENGTH");
	DAT_IA_ATTR ia_attr;
	MUST(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &ia_attr, 0, NULL));
	if (strstr(ia_attr.vendor_name, "verbs")) {	// a device ends the connection
		while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS && e.event_number == DAT_CONNECTION_EVENT_ESTABLISHED) {}
		int notified_of = e.event_number == DAT_CONNECTION_EVENT_BROKEN || e.event_number == DAT_CONNECTION_EVENT_DISCONNECTED;
		while (notified_of < 2) { e = next(conn); if (e.event_number != DAT_CONNECTION_EVENT_BROKEN && e.event_number != DAT_CONNECTION_EVENT_DISCONNECTED) break; notified_of++; }
		CHECK(notified_of == 2, "both ends are told that a failed transfer ended the connection");
		e = next(async);
		CHECK(e.event_number == DAT_ASYNC_ERROR_EP_BROKEN && e.event_data.asynch_error_event_data.dat_handle == taker[0], "as is who looks for asynchronous errors");
		MUST(dat_ep_free(taker[0])); MUST(dat_ep_free(sender[0]));
		link_up(0);
	}

	// a connection ends: unread events stay
	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS) {}
	MUST(post(0, 64, 300));
	MUST(dat_ep_disconnect(sender[2], DAT_CLOSE_ABRUPT_FLAG));
	for (int n = 0, m; n < 2; n++) { e = next(conn); m = e.event_number; CHECK(m == DAT_CONNECTION_EVENT_DISCONNECTED, "both ends are told of the end"); }
	e = next(async);
	CHECK(e.event_number == DAT_ASYNC_ERROR_EP_BROKEN && e.event_data.asynch_error_event_data.dat_handle == taker[2], "an endpoint of a queue takes no more: DAT_ASYNC_ERROR_EP_BROKEN");
	CHECK(nothing(recv_evd[2]), "no buffer of the queue is flushed");
	send_to(1, "still", 5);
	e = next(recv_evd[1]);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 300, "another endpoint takes it");

	// threshold, software events, states of an EVD
	DAT_EVD_HANDLE se; DAT_COUNT more;
	DAT_EVENT soft = { .event_number = DAT_SOFTWARE_EVENT };
	MUST(dat_evd_create(ia, 2, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &se));
	MUST(dat_evd_post_se(se, &soft));
	CHECK(TYPE(dat_evd_wait(se, 1000, 2, &e, &more), DAT_TIMEOUT_EXPIRED) && more == 1, "a threshold that is not met: DAT_TIMEOUT_EXPIRED, and how many there are");
	MUST(dat_evd_post_se(se, &soft));
	CHECK(TYPE(dat_evd_post_se(se, &soft), DAT_QUEUE_FULL), "a full EVD: DAT_QUEUE_FULL");
	MUST(dat_evd_wait(se, 1000, 2, &e, &more));
	CHECK(more == 1 && e.evd_handle == se, "a threshold that is met");
	CHECK(TYPE(dat_evd_wait(se, 0, 3, &e, &more), DAT_INVALID_PARAMETER), "one above the EVD: DAT_INVALID_PARAMETER");
	MUST(dat_evd_set_unwaitable(se));
	CHECK(SUB(dat_evd_wait(se, 0, 1, &e, &more), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_UNWAITABLE), "an unwaitable EVD: DAT_INVALID_STATE");
	MUST(dat_evd_dequeue(se, &e));
	CHECK(TYPE(dat_evd_dequeue(se, &e), DAT_QUEUE_EMPTY), "an empty EVD: DAT_QUEUE_EMPTY");
	CHECK(TYPE(dat_evd_resize(se, 0), DAT_INVALID_PARAMETER) && dat_evd_resize(se, 10) == DAT_SUCCESS, "an EVD is resized");
	MUST(dat_evd_free(se));
	CHECK(TYPE(dat_evd_dequeue(se, &e), DAT_INVALID_HANDLE), "an EVD that was freed: DAT_INVALID_HANDLE");
	CHECK(SUB(dat_evd_free(req), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE), "an EVD in use: DAT_INVALID_STATE");

	// a CNO
	DAT_CNO_HANDLE cno; DAT_EVD_HANDLE notified;
	MUST(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno));
	MUST(dat_evd_create(ia, 4, cno, DAT_EVD_SOFTWARE_FLAG, &se));
	CHECK(TYPE(dat_cno_wait(cno, 1000, &notified), DAT_TIMEOUT_EXPIRED), "a CNO without news: DAT_TIMEOUT_EXPIRED");
	MUST(dat_evd_post_se(se, &soft));
	CHECK(dat_cno_wait(cno, 1000000, &notified) == DAT_SUCCESS && notified == se, "a CNO names the EVD that has news");
	CHECK(SUB(dat_cno_free(cno), DAT_INVALID_STATE, DAT_INVALID_STATE_CNO_IN_USE), "a CNO in use: DAT_INVALID_STATE");
	MUST(dat_evd_free(se)); MUST(dat_cno_free(cno));

	// remote access, fences, flags
	DAT_RMR_TRIPLET r = { (DAT_VADDR)(uintptr_t)memory + 40 * SIZE, 64, rkey };
	strcpy(memory + 33 * SIZE, "written"); t = at(33 * SIZE, 64);
	MUST(dat_ep_post_rdma_write(sender[0], 1, &t, cookie(1), &r, DAT_COMPLETION_SUPPRESS_FLAG));
	t = at(34 * SIZE, 64);
	MUST(dat_ep_post_rdma_read(sender[0], 1, &t, cookie(2), &r, DAT_COMPLETION_DEFAULT_FLAG));
	MUST(post(0, 64, 400));
	MUST(dat_ep_post_send(sender[0], 1, &t, cookie(3), DAT_COMPLETION_BARRIER_FENCE_FLAG));
	e = next(req);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 2 && e.event_data.dto_completion_event_data.operation == DAT_DTO_RDMA_READ, "a success that is suppressed is not told of");
	CHECK(!strcmp(memory + 34 * SIZE, "written"), "what was written is read");
	next(req); next(recv_evd[0]);
	CHECK(!strcmp(memory, "written"), "a fenced send waits for the read before it");
	r.segment_length = 8; t = at(34 * SIZE, 64);
	CHECK(TYPE(dat_ep_post_rdma_write(sender[0], 1, &t, cookie(4), &r, 0), DAT_LENGTH_ERROR), "more than the target takes: DAT_LENGTH_ERROR");
	t.lmr_context = foreign_key;
	CHECK(TYPE(dat_ep_post_send(sender[0], 1, &t, cookie(5), 0), DAT_PROTECTION_VIOLATION), "a send of another zone: DAT_PROTECTION_VIOLATION");

	// successes that are not told of leave room for others
	r.segment_length = 64; t = at(33 * SIZE, 64);
	int posted = 0, refused = 0;
	while (posted < 1000 && refused < 1000000)
		if (dat_ep_post_rdma_write(sender[0], 1, &t, cookie(6), &r, DAT_COMPLETION_SUPPRESS_FLAG) == DAT_SUCCESS) posted++;
		else { refused++; dat_evd_dequeue(recv_evd[0], &e); }
	CHECK(posted == 1000, "a thousand suppressed writes need no poll");

	// a window: its own key, its own rights, gone when it is unbound
	DAT_RMR_HANDLE rmr; DAT_RMR_CONTEXT window; DAT_RMR_PARAM rp;
	MUST(dat_rmr_create(pz, &rmr));
	t = at(50 * SIZE, SIZE);
	CHECK(TYPE(dat_rmr_bind(rmr, foreign, &t, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, taker[0], cookie(8), 0, &window), DAT_PROTECTION_VIOLATION), "a window into another zone: DAT_PROTECTION_VIOLATION");
	MUST(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_WRITE_FLAG, DAT_VA_TYPE_VA, taker[0], cookie(9), 0, &window));
	e = next(req);
	CHECK(e.event_number == DAT_RMR_BIND_COMPLETION_EVENT && e.event_data.rmr_completion_event_data.user_cookie.as_64 == 9, "a bind completes");
	CHECK(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &rp) == DAT_SUCCESS && rp.rmr_context == window && window != rkey, "a window has a key of its own");
	CHECK(TYPE(dat_lmr_free(lmr), DAT_INVALID_STATE), "memory with a window: DAT_INVALID_STATE");
	r = (DAT_RMR_TRIPLET){ (DAT_VADDR)(uintptr_t)memory + 50 * SIZE, 64, window };
	t = at(33 * SIZE, 64);
	MUST(dat_ep_post_rdma_write(sender[0], 1, &t, cookie(10), &r, 0));
	e = next(req);
	CHECK(e.event_data.dto_completion_event_data.status == DAT_DTO_SUCCESS, "a write through it completes");
	MUST(post(0, 64, 700));
	send_to(0, "", 0);	// behind the write
	next(recv_evd[0]);
	CHECK(!strcmp(memory + 50 * SIZE, "written"), "and is there when what was sent after it is");
	MUST(dat_rmr_free(rmr));

	// connections that do not come about
	struct sockaddr_storage to = here();
	static char large[300];
	DAT_EP_HANDLE ep; DAT_EP_STATE state; DAT_BOOLEAN idle;
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &ep));
	t = at(0, 64);
	CHECK(SUB(dat_ep_post_send(ep, 1, &t, cookie(1), 0), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_UNCONNECTED), "a send without a connection: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, port, DAT_TIMEOUT_INFINITE, sizeof large, large, 0, 0), DAT_INVALID_PARAMETER), "too much data: DAT_INVALID_PARAMETER");
	MUST(dat_ep_post_recv(ep, 1, &t, cookie(500), 0));
	MUST(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	e = next(cr);
	MUST(dat_cr_reject(e.event_data.cr_arrival_event_data.cr_handle, 4, "busy"));
	CHECK(TYPE(dat_cr_reject(e.event_data.cr_arrival_event_data.cr_handle, 0, NULL), DAT_INVALID_HANDLE), "a request that was answered: DAT_INVALID_HANDLE");
	e = next(conn);
	CHECK(e.event_number == DAT_CONNECTION_EVENT_PEER_REJECTED && e.event_data.connect_event_data.private_data_size == 4, "a request that is turned away: DAT_CONNECTION_EVENT_PEER_REJECTED, with data");
	e = next(send_recv);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 500 && e.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED, "its receives are flushed");
	MUST(dat_ep_get_status(ep, &state, &idle, &idle));
	CHECK(state == DAT_EP_STATE_DISCONNECTED, "its state is disconnected");
	MUST(dat_ep_reset(ep));
	DAT_EVD_HANDLE gone_evd; DAT_PSP_HANDLE gone; DAT_CONN_QUAL gone_port;
	MUST(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &gone_evd));
	MUST(dat_psp_create_any(ia, &gone_port, gone_evd, DAT_PSP_CONSUMER_FLAG, &gone));
	DAT_PSP_HANDLE twice;
	CHECK(TYPE(dat_psp_create(ia, gone_port, gone_evd, DAT_PSP_CONSUMER_FLAG, &twice), DAT_CONN_QUAL_IN_USE), "a qualifier in use: DAT_CONN_QUAL_IN_USE");
	CHECK(TYPE(dat_psp_create(ia, 70000, gone_evd, DAT_PSP_CONSUMER_FLAG, &twice), DAT_INVALID_PARAMETER), "one that is none: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_psp_create(ia, gone_port, conn, DAT_PSP_CONSUMER_FLAG, &twice), DAT_INVALID_HANDLE), "an EVD of no requests: DAT_INVALID_HANDLE");
	MUST(dat_psp_free(gone)); MUST(dat_evd_free(gone_evd));
	MUST(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, gone_port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_NON_PEER_REJECTED, "no listener: DAT_CONNECTION_EVENT_NON_PEER_REJECTED");
	MUST(dat_ep_free(ep));
	CHECK(TYPE(dat_ep_free(ep), DAT_INVALID_HANDLE), "an endpoint that was freed: DAT_INVALID_HANDLE");

	// a reserved service point is for one endpoint, and gone with its request
	DAT_RSP_HANDLE rsp; DAT_EP_HANDLE buffered; DAT_CONN_QUAL qual = gone_port;
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &ep));
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &buffered));
	MUST(dat_rsp_create(ia, qual, buffered, cr, &rsp));
	MUST(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, qual, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	e = next(cr);
	CHECK(e.event_data.cr_arrival_event_data.sp_handle.rsp_handle == DAT_HANDLE_NULL, "a reserved point names itself no more");
	CHECK(TYPE(dat_rsp_free(rsp), DAT_INVALID_HANDLE), "and is gone");
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, DAT_HANDLE_NULL, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED && next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "its endpoint is connected");
	MUST(dat_ep_disconnect(ep, DAT_CLOSE_GRACEFUL_FLAG));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_DISCONNECTED && next(conn).event_number == DAT_CONNECTION_EVENT_DISCONNECTED, "and disconnected");
	MUST(dat_ep_free(ep)); MUST(dat_ep_free(buffered));

	// a peer that dies
	char number[24];
	snprintf(number, sizeof number, "%llu", (unsigned long long)port);
	MUST(dat_ep_create(ia, pz, send_recv, req, conn, NULL, &ep));
	t = at(0, 64);
	MUST(dat_ep_post_recv(ep, 1, &t, cookie(600), 0));
	fflush(stdout);
	pid_t child = fork();
	if (!child) { execl(argv[0], argv[0], argv[1], number, (char *)NULL); _exit(1); }
	e = next(cr);
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "another process connects");
	kill(child, SIGKILL); waitpid(child, NULL, 0);
	e = next(conn);
	CHECK(e.event_number == DAT_CONNECTION_EVENT_DISCONNECTED || e.event_number == DAT_CONNECTION_EVENT_BROKEN, "a peer that dies: an event of the connection");
	e = next(send_recv);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 600 && e.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED, "and its receives are flushed");
	MUST(dat_ep_post_recv(ep, 1, &t, cookie(601), 0));
	e = next(send_recv);
	CHECK(e.event_data.dto_completion_event_data.user_cookie.as_64 == 601 && e.event_data.dto_completion_event_data.status == DAT_DTO_ERR_FLUSHED, "as are those that are posted later");
	MUST(dat_ep_free(ep));

	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS || dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
	sentences(argv, !!strstr(ia_attr.vendor_name, "verbs"));

	// no descriptors
	struct rlimit limit, few;
	getrlimit(RLIMIT_NOFILE, &limit);
	few = limit; few.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &few);
	DAT_RETURN answer = dat_psp_create_any(ia, &gone_port, cr, DAT_PSP_CONSUMER_FLAG, &gone);
	setrlimit(RLIMIT_NOFILE, &limit);
	CHECK(TYPE(answer, DAT_INSUFFICIENT_RESOURCES), "no descriptors: DAT_INSUFFICIENT_RESOURCES");

	// context, type, what there is no meaning for
	DAT_CONTEXT c = { .as_64 = 4711 };
	DAT_HANDLE_TYPE type;
	MUST(dat_set_consumer_context(srq, c)); c.as_64 = 0; MUST(dat_get_consumer_context(srq, &c));
	CHECK(c.as_64 == 4711, "a context is kept");
	CHECK(dat_get_handle_type(srq, &type) == DAT_SUCCESS && type == DAT_HANDLE_TYPE_SRQ, "a handle has a type");
	CHECK(TYPE(dat_ep_set_watermark(taker[0], 1, 1), DAT_NOT_IMPLEMENTED), "what has no meaning: DAT_NOT_IMPLEMENTED");
	DAT_PROVIDER_ATTR attr;
	MUST(dat_ia_query(ia, &notified, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	CHECK(notified == async && attr.srq_supported && !(attr.completion_flags_supported & DAT_COMPLETION_SOLICITED_WAIT_FLAG), "the attributes promise shared queues, and no solicited wait");
	CHECK(TYPE(dat_pz_free(pz), DAT_INVALID_STATE), "a zone in use: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG), DAT_INVALID_STATE), "an adaptor in use: DAT_INVALID_STATE");
	for (int k = 0; k < EPS; k++) { MUST(dat_ep_free(taker[k])); MUST(dat_ep_free(sender[k])); MUST(dat_evd_free(recv_evd[k])); }
	MUST(dat_srq_free(srq));
	MUST(dat_lmr_free(lmr)); MUST(dat_lmr_free(readonly)); MUST(dat_lmr_free(foreign));
	CHECK(TYPE(dat_lmr_free(lmr), DAT_INVALID_HANDLE), "an LMR that was freed: DAT_INVALID_HANDLE");
	MUST(dat_pz_free(pz)); MUST(dat_pz_free(other_pz));
	MUST(dat_psp_free(psp));
	MUST(dat_evd_free(conn)); MUST(dat_evd_free(cr)); MUST(dat_evd_free(req)); MUST(dat_evd_free(send_recv));
	CHECK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS, "an adaptor without objects closes");
	return bad;
}
