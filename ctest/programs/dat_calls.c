// Calls of uDAPL beside its shared receive queues: what they answer to good and to bad input, when
// something runs out, and when a peer is killed. Both ends of most connections are in this process.
#include "dat_test.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4096, PAGES = 512 };
static DAT_PZ_HANDLE pz, other_pz;
static DAT_EVD_HANDLE async, conn, cr, req, recv_evd;
static char *memory;
static DAT_LMR_HANDLE lmr;
static DAT_LMR_CONTEXT key;
static DAT_RMR_CONTEXT rkey;
static DAT_PSP_HANDLE psp;
static DAT_CONN_QUAL port;
static int device;

static DAT_LMR_TRIPLET at(int offset, int length) { return (DAT_LMR_TRIPLET){ (DAT_VADDR)(uintptr_t)memory + offset, length, key }; }
static DAT_RMR_TRIPLET far(int offset, int length, DAT_RMR_CONTEXT context) { return (DAT_RMR_TRIPLET){ (DAT_VADDR)(uintptr_t)memory + offset, length, context }; }
static DAT_DTO_COMPLETION_EVENT_DATA dto(DAT_EVD_HANDLE evd) { return next(evd).event_data.dto_completion_event_data; }

static DAT_EP_HANDLE endpoint(void) { DAT_EP_HANDLE ep; MUST(dat_ep_create(ia, pz, recv_evd, req, conn, NULL, &ep)); return ep; }
static void settle(DAT_EP_HANDLE to)
{
	DAT_EVENT e = next(cr);
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, to, 0, NULL));
	for (int n = 0; n < 2; n++) CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "both ends are connected");
}
static void join_up(DAT_EP_HANDLE from, DAT_EP_HANDLE to)
{
	struct sockaddr_storage peer = here();
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	settle(to);
}
// What a transfer that failed, or a closed end, leaves behind.
static void part(DAT_EP_HANDLE one, DAT_EP_HANDLE other)
{
	DAT_EVENT e;
	MUST(dat_ep_free(one)); MUST(dat_ep_free(other));
	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS || dat_evd_dequeue(req, &e) == DAT_SUCCESS || dat_evd_dequeue(recv_evd, &e) == DAT_SUCCESS) {}
}
static DAT_COUNT vm_size(void)
{
	long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%ld", &pages) != 1) pages = 0;
	if (f) fclose(f);
	return pages;
}

static void regions(void)
{
	DAT_LMR_PARAM p;
	MUST(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, &p));
	CHECK(p.pz_handle == pz && p.mem_type == DAT_MEM_TYPE_VIRTUAL && p.length == PAGES * SIZE && p.mem_priv == DAT_MEM_PRIV_ALL_FLAG && p.lmr_context == key && p.rmr_context == rkey &&
		p.registered_address == (DAT_VADDR)(uintptr_t)memory && p.registered_size == PAGES * SIZE, "dat_lmr_query: what the region was made with");
	CHECK(TYPE(dat_lmr_query(lmr, DAT_LMR_FIELD_ALL, NULL), DAT_INVALID_PARAMETER), "dat_lmr_query without room: DAT_INVALID_PARAMETER");
	CHECK(SUB(dat_lmr_query(pz, DAT_LMR_FIELD_ALL, &p), DAT_INVALID_HANDLE, DAT_INVALID_HANDLE_LMR), "dat_lmr_query of another object: DAT_INVALID_HANDLE");
	DAT_REGION_DESCRIPTION d = { .for_va = memory }, of = { .for_lmr_handle = lmr };
	DAT_LMR_HANDLE h; DAT_LMR_CONTEXT k; DAT_RMR_CONTEXT r; DAT_VLEN l; DAT_VADDR a;
	CHECK(TYPE(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, 0, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &h, &k, &r, &l, &a), DAT_INVALID_PARAMETER), "a region of nothing: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, SIZE, pz, 0x100, DAT_VA_TYPE_VA, &h, &k, &r, &l, &a), DAT_INVALID_PARAMETER), "a right that is none: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, SIZE, conn, 0, DAT_VA_TYPE_VA, &h, &k, &r, &l, &a), DAT_INVALID_HANDLE), "a region of no zone: DAT_INVALID_HANDLE");
	MUST(dat_lmr_create(ia, DAT_MEM_TYPE_LMR, of, 0, other_pz, DAT_MEM_PRIV_LOCAL_READ_FLAG, DAT_VA_TYPE_VA, &h, &k, &r, &l, &a));
	CHECK(l == PAGES * SIZE && k != key, "a region of a region has its memory, and a context of its own");
	MUST(dat_lmr_free(h));
	CHECK(TYPE(dat_lmr_query(h, DAT_LMR_FIELD_ALL, &p), DAT_INVALID_HANDLE), "dat_lmr_query of a region that was freed: DAT_INVALID_HANDLE");
}

// An access that the target does not grant. Over TCP it ends the connection, which says no more than that.
static int refused(void)
{
	int status = dto(req).status;
	return status == DAT_DTO_ERR_REMOTE_ACCESS || status == DAT_DTO_ERR_FLUSHED;
}
static void windows(void)
{
	DAT_EP_HANDLE from = endpoint(), to = endpoint();
	DAT_RMR_HANDLE rmr, foreign; DAT_RMR_CONTEXT window = 0, second; DAT_RMR_PARAM p;
	DAT_LMR_TRIPLET t = at(SIZE, SIZE);
	MUST(dat_rmr_create(pz, &rmr)); MUST(dat_rmr_create(other_pz, &foreign));
	CHECK(TYPE(dat_rmr_create(conn, &rmr), DAT_INVALID_HANDLE), "a window of no zone: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(1), 0, &window), DAT_INVALID_STATE), "a bind without a connection: DAT_INVALID_STATE");
	join_up(from, to);
	CHECK(TYPE(dat_rmr_bind(foreign, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(1), 0, &window), DAT_PROTECTION_VIOLATION), "a window of another zone: DAT_PROTECTION_VIOLATION");
	t.virtual_address -= 2 * SIZE;
	CHECK(TYPE(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(1), 0, &window), DAT_INVALID_PARAMETER), "a window that begins outside its region: DAT_INVALID_PARAMETER");
	t = at(SIZE, SIZE);
	CHECK(TYPE(dat_rmr_bind(rmr, pz, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(1), 0, &window), DAT_INVALID_HANDLE), "a window into no region: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_rmr_bind(rmr, lmr, NULL, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(1), 0, &window), DAT_INVALID_PARAMETER), "a window of no place: DAT_INVALID_PARAMETER");
	MUST(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(2), DAT_COMPLETION_SUPPRESS_FLAG, &window));
	CHECK(nothing(req), "a bind that is suppressed is not told of");
	MUST(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &p));
	CHECK(p.pz_handle == pz && p.rmr_context == window && p.mem_priv == DAT_MEM_PRIV_REMOTE_READ_FLAG && p.lmr_triplet.segment_length == SIZE, "dat_rmr_query: what is bound");
	strcpy(memory + SIZE, "behind the window"); t = at(2 * SIZE, 64);
	DAT_RMR_TRIPLET r = far(SIZE, 64, window);
	MUST(dat_ep_post_rdma_read(from, 1, &t, cookie(3), &r, 0));
	CHECK(dto(req).status == DAT_DTO_SUCCESS && !strcmp(memory + 2 * SIZE, "behind the window"), "a read through a window");
	t = at(4 * SIZE, SIZE);
	MUST(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(4), 0, &second));
	DAT_EVENT e = next(req);
	CHECK(e.event_number == DAT_RMR_BIND_COMPLETION_EVENT && e.event_data.rmr_completion_event_data.status == DAT_RMR_BIND_SUCCESS && second != window, "a window that is bound anew has another key");
	t = at(2 * SIZE, 64);
	MUST(dat_ep_post_rdma_read(from, 1, &t, cookie(5), &r, 0));
	CHECK(refused(), "the key of before is worth nothing: DAT_DTO_ERR_REMOTE_ACCESS, or the end of the connection");
	part(from, to);
	from = endpoint(), to = endpoint(); join_up(from, to);
	r = far(5 * SIZE - 10, 64, second);
	MUST(dat_ep_post_rdma_read(from, 1, &t, cookie(6), &r, 0));
	CHECK(refused(), "a read past the end of a window: DAT_DTO_ERR_REMOTE_ACCESS, or the end of the connection");
	part(from, to);
	from = endpoint(), to = endpoint(); join_up(from, to);
	t = at(4 * SIZE, 0);
	MUST(dat_rmr_bind(rmr, lmr, &t, DAT_MEM_PRIV_REMOTE_READ_FLAG, DAT_VA_TYPE_VA, to, cookie(7), 0, NULL)); next(req);
	MUST(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &p));
	CHECK(p.rmr_context == 0 && p.lmr_triplet.segment_length == 0, "a bind of no bytes unbinds");
	MUST(dat_rmr_free(rmr)); MUST(dat_rmr_free(foreign));
	CHECK(TYPE(dat_rmr_query(rmr, DAT_RMR_FIELD_ALL, &p), DAT_INVALID_HANDLE) && TYPE(dat_rmr_free(rmr), DAT_INVALID_HANDLE), "a window that was freed: DAT_INVALID_HANDLE");
	part(from, to);
}

static void modified(void)
{
	DAT_EP_HANDLE from = endpoint(), to = endpoint();
	DAT_EVD_HANDLE own; DAT_EP_PARAM p, q;
	MUST(dat_evd_create(ia, 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &own));
	MUST(dat_ep_query(to, DAT_EP_FIELD_ALL, &p));
	p.recv_evd_handle = own; p.ep_attr.max_recv_dtos = 3; p.pz_handle = other_pz;
	MUST(dat_ep_modify(to, DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &p));
	MUST(dat_ep_query(to, DAT_EP_FIELD_ALL, &q));
	CHECK(q.recv_evd_handle == own && q.ep_attr.max_recv_dtos == 3 && q.pz_handle == pz, "dat_ep_modify changes what the mask names");
	CHECK(SUB(dat_evd_free(own), DAT_INVALID_STATE, DAT_INVALID_STATE_EVD_IN_USE), "an EVD that an endpoint was given is in use");
	p.recv_evd_handle = conn;
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE, &p), DAT_INVALID_HANDLE), "an EVD of another stream: DAT_INVALID_HANDLE");
	MUST(dat_ep_query(to, DAT_EP_FIELD_ALL, &q));
	CHECK(q.recv_evd_handle == own && q.pz_handle == pz, "a change that is refused changes nothing");
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_EP_STATE, &p), DAT_INVALID_PARAMETER), "a state is not to be modified: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_PZ_HANDLE, NULL), DAT_INVALID_PARAMETER), "a change to nothing: DAT_INVALID_PARAMETER");
	p.ep_attr.max_recv_dtos = 1 << 30;
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &p), DAT_INVALID_PARAMETER), "more than the adaptor has: DAT_INVALID_PARAMETER");
	p.ep_attr.recv_completion_flags = DAT_COMPLETION_SOLICITED_WAIT_FLAG;
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_EP_ATTR_RECV_COMPLETION_FLAGS, &p), DAT_MODEL_NOT_SUPPORTED), "solicited wait: DAT_MODEL_NOT_SUPPORTED");
	DAT_LMR_TRIPLET t = at(0, 64);
	for (int n = 0; n < 3; n++) MUST(dat_ep_post_recv(to, 1, &t, cookie(n), 0));
	CHECK(TYPE(dat_ep_post_recv(to, 1, &t, cookie(9), 0), DAT_INSUFFICIENT_RESOURCES), "more receives than the endpoint takes: DAT_INSUFFICIENT_RESOURCES");
	p.ep_attr.max_recv_dtos = 2;
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_EP_ATTR_MAX_RECV_DTOS, &p), DAT_INVALID_STATE), "fewer receives than are posted: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ep_modify(to, DAT_EP_FIELD_PZ_HANDLE, &p), DAT_INVALID_STATE), "another zone with receives posted: DAT_INVALID_STATE");
	join_up(from, to);
	CHECK(SUB(dat_ep_modify(to, DAT_EP_FIELD_RECV_EVD_HANDLE, &p), DAT_INVALID_STATE, DAT_INVALID_STATE_EP_CONNECTED), "a connected endpoint is not modified: DAT_INVALID_STATE");
	MUST(dat_ep_post_send(from, 1, &t, cookie(5), 0)); next(req);
	CHECK(dto(own).ep_handle == to, "completions come where the change said");
	CHECK(TYPE(dat_ep_recv_query(to, NULL, NULL), DAT_NOT_IMPLEMENTED), "dat_ep_recv_query: DAT_NOT_IMPLEMENTED");

	// a second connection to where the first one went
	DAT_EP_HANDLE again = endpoint(), back = endpoint();
	CHECK(TYPE(dat_ep_dup_connect(again, back, DAT_TIMEOUT_INFINITE, 0, NULL, 0), DAT_INVALID_STATE), "dat_ep_dup_connect like one that is not connected: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ep_dup_connect(from, from, DAT_TIMEOUT_INFINITE, 0, NULL, 0), DAT_INVALID_STATE), "dat_ep_dup_connect of a connected one: DAT_INVALID_STATE");
	CHECK(TYPE(dat_ep_dup_connect(again, pz, DAT_TIMEOUT_INFINITE, 0, NULL, 0), DAT_INVALID_HANDLE), "dat_ep_dup_connect like no endpoint: DAT_INVALID_HANDLE");
	MUST(dat_ep_dup_connect(again, from, DAT_TIMEOUT_INFINITE, 4, "twin", 0));
	DAT_EVENT e = next(cr); DAT_CR_PARAM c;
	MUST(dat_cr_query(e.event_data.cr_arrival_event_data.cr_handle, DAT_CR_FIELD_ALL, &c));
	CHECK(c.private_data_size == 4 && !memcmp(c.private_data, "twin", 4), "dat_ep_dup_connect calls where the other is connected, with its own data");
	MUST(dat_cr_accept(e.event_data.cr_arrival_event_data.cr_handle, back, 0, NULL));
	for (int n = 0; n < 2; n++) CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "and is connected");
	MUST(dat_ep_query(again, DAT_EP_FIELD_ALL, &q));
	CHECK(q.ep_state == DAT_EP_STATE_CONNECTED && q.remote_port_qual == port, "its peer is the other's");
	part(again, back); part(from, to);
	MUST(dat_evd_free(own));
}

static int agent_calls; static DAT_EVD_HANDLE agent_evd; static DAT_PVOID agent_data; static uint64_t agent_took;
static void agent(DAT_PVOID data, DAT_EVD_HANDLE evd)
{
	DAT_EVENT e;
	agent_calls++; agent_data = data; agent_evd = evd;
	while (dat_evd_dequeue(evd, &e) == DAT_SUCCESS) agent_took++;
}
static void notices(void)
{
	DAT_CNO_HANDLE cno, second; DAT_CNO_PARAM p; DAT_EVD_HANDLE se, evd, notified;
	DAT_OS_WAIT_PROXY_AGENT a = { .instance_data = &agent_calls, .proxy_agent_func = agent };
	DAT_EVENT soft = { .event_number = DAT_SOFTWARE_EVENT }, e;
	MUST(dat_cno_create(ia, a, &cno)); MUST(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &second));
	MUST(dat_cno_query(cno, DAT_CNO_FIELD_ALL, &p));
	CHECK(p.proxy_type == DAT_PROXY_TYPE_AGENT && p.proxy.agent.proxy_agent_func == agent && p.proxy.agent.instance_data == &agent_calls, "dat_cno_query names the agent");
	MUST(dat_cno_query(second, DAT_CNO_FIELD_ALL, &p));
	CHECK(p.proxy_type == DAT_PROXY_TYPE_NONE, "or none");
	MUST(dat_evd_create(ia, 8, cno, DAT_EVD_SOFTWARE_FLAG, &se));
	MUST(dat_evd_post_se(se, &soft));
	CHECK(agent_calls == 1 && agent_data == &agent_calls && agent_evd == se && agent_took == 1, "an agent is called, and may call");
	MUST(dat_evd_disable(se)); MUST(dat_evd_post_se(se, &soft));
	CHECK(agent_calls == 1, "not of an EVD that is disabled");
	MUST(dat_evd_enable(se));
	CHECK(agent_calls == 2 && agent_took == 2, "but as soon as it is enabled");
	MUST(dat_evd_modify_cno(se, second)); MUST(dat_evd_post_se(se, &soft));
	CHECK(agent_calls == 2 && dat_cno_wait(second, 1000000, &notified) == DAT_SUCCESS && notified == se, "dat_evd_modify_cno: another CNO is told");
	CHECK(dat_cno_free(cno) == DAT_SUCCESS, "and the one of before is free");
	MUST(dat_evd_modify_cno(se, DAT_HANDLE_NULL)); MUST(dat_evd_post_se(se, &soft));
	CHECK(TYPE(dat_cno_wait(second, 1000, &notified), DAT_TIMEOUT_EXPIRED), "or none");
	CHECK(TYPE(dat_evd_modify_cno(se, pz), DAT_INVALID_HANDLE) && TYPE(dat_evd_modify_cno(pz, second), DAT_INVALID_HANDLE), "dat_evd_modify_cno with other objects: DAT_INVALID_HANDLE");
	MUST(dat_evd_modify_cno(se, second));
	CHECK(dat_cno_wait(second, 1000000, &notified) == DAT_SUCCESS && notified == se, "events that are there are told of to the CNO that comes");
	MUST(dat_cno_modify_agent(second, a)); MUST(dat_evd_post_se(se, &soft));
	CHECK(agent_calls == 3, "dat_cno_modify_agent: the agent that is given is called");
	MUST(dat_evd_free(se));

	// of messages
	MUST(dat_evd_create(ia, 8, second, DAT_EVD_DTO_FLAG, &evd));
	DAT_EP_HANDLE from = endpoint(), to;
	MUST(dat_ep_create(ia, pz, evd, req, conn, NULL, &to));
	join_up(from, to);
	DAT_LMR_TRIPLET t = at(0, 64);
	agent_calls = agent_took = 0;
	MUST(dat_ep_post_recv(to, 1, &t, cookie(1), 0));
	MUST(dat_ep_post_send(from, 1, &t, cookie(2), 0)); next(req);
	dat_cno_wait(second, 1000000, &notified);	// who waits may be told as well
	CHECK(agent_calls == 1 && agent_took == 1 && agent_evd == evd, "an agent is called of a message");
	MUST(dat_ep_post_recv(to, 1, &t, cookie(1), DAT_COMPLETION_UNSIGNALLED_FLAG));
	MUST(dat_ep_post_send(from, 1, &t, cookie(2), 0)); next(req);
	CHECK(TYPE(dat_cno_wait(second, 300000, &notified), DAT_TIMEOUT_EXPIRED) && agent_calls == 1, "not of one that is unsignalled");
	CHECK(dat_evd_dequeue(evd, &e) == DAT_SUCCESS, "which is there all the same");
	part(from, to);
	MUST(dat_evd_free(evd)); MUST(dat_cno_free(second));
	CHECK(TYPE(dat_cno_query(second, DAT_CNO_FIELD_ALL, &p), DAT_INVALID_HANDLE) && TYPE(dat_cno_modify_agent(second, a), DAT_INVALID_HANDLE) && TYPE(dat_cno_wait(second, 0, &notified), DAT_INVALID_HANDLE), "a CNO that was freed: DAT_INVALID_HANDLE");
}

static void lost_events(void)
{
	DAT_EVD_HANDLE small; DAT_EP_HANDLE from, to = endpoint(); DAT_EVENT e;
	while (dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
	MUST(dat_evd_create(ia, 1, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &small));
	MUST(dat_ep_create(ia, pz, recv_evd, req, small, NULL, &from));
	struct sockaddr_storage peer = here();
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	MUST(dat_cr_accept(next(cr).event_data.cr_arrival_event_data.cr_handle, to, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "one end is told of the connection");
	DAT_EP_STATE state = 0; DAT_BOOLEAN idle;
	for (int n = 0; n < 10000 && state != DAT_EP_STATE_CONNECTED; n++) { dat_ep_get_status(from, &state, &idle, &idle); usleep(1000); }
	MUST(dat_ep_disconnect(from, DAT_CLOSE_ABRUPT_FLAG));
	e = next(async);
	CHECK(e.event_number == DAT_ASYNC_ERROR_EVD_OVERFLOW && e.event_data.asynch_error_event_data.dat_handle == small, "an event without room: DAT_ASYNC_ERROR_EVD_OVERFLOW");
	CHECK(next(small).event_number == DAT_CONNECTION_EVENT_ESTABLISHED && TYPE(dat_evd_dequeue(small, &e), DAT_QUEUE_EMPTY), "the events of before are kept");
	part(from, to); MUST(dat_evd_free(small));
}

static void resized(void)
{
	DAT_SRQ_HANDLE srq; DAT_EP_HANDLE from = endpoint(), to; DAT_SRQ_PARAM p;
	DAT_SRQ_ATTR a = { .max_recv_dtos = 8, .max_recv_iov = 1 };
	MUST(dat_srq_create(ia, pz, &a, &srq));
	MUST(dat_ep_create_with_srq(ia, pz, recv_evd, req, conn, srq, NULL, &to));
	MUST(dat_ep_query(to, DAT_EP_FIELD_ALL, &(DAT_EP_PARAM){ 0 }));
	join_up(from, to);
	int posted = 0, sent = 0, came = 0, wrong = 0, sizes[] = { 8, 64, 12, 200, 9 };
	DAT_EVENT e;
	while (came < 600) {
		if (came % 10 == 0 && sent == came) {
			DAT_RETURN r = dat_srq_resize(srq, sizes[came / 10 % 5]);
			wrong += r && !TYPE(r, DAT_INVALID_STATE);
		}
		while (posted - came < 8) { DAT_LMR_TRIPLET t = at(posted % 64 * 64, 64); if (dat_srq_post_recv(srq, 1, &t, cookie(posted))) break; posted++; }
		for (; sent < posted && sent < 600; sent++) {
			DAT_LMR_TRIPLET t = at(8 * SIZE + sent % 64 * 64, 8);
			memcpy(memory + 8 * SIZE + sent % 64 * 64, &(uint64_t){ sent }, 8);
			MUST(dat_ep_post_send(from, 1, &t, cookie(sent), DAT_COMPLETION_SUPPRESS_FLAG));
		}
		DAT_DTO_COMPLETION_EVENT_DATA d = dto(recv_evd);
		uint64_t number;
		memcpy(&number, memory + d.user_cookie.as_64 % 64 * 64, 8);
		wrong += d.status != DAT_DTO_SUCCESS || d.user_cookie.as_64 != (uint64_t)came || number != (uint64_t)came;
		if (wrong) break;
		came++;
	}
	CHECK(!wrong && came == 600, "a queue is resized between and under messages, and none is lost");
	MUST(dat_srq_query(srq, DAT_SRQ_FIELD_ALL, &p));
	CHECK(p.available_dto_count == posted - came, "and the buffers that are left are counted");
	MUST(dat_srq_set_lw(srq, p.available_dto_count + 1 <= p.max_recv_dtos ? p.available_dto_count + 1 : p.max_recv_dtos));
	if (p.available_dto_count < p.max_recv_dtos) CHECK(next(async).event_data.asynch_error_event_data.dat_handle == srq, "a mark above what is there is told of at once");
	part(from, to);
	while (dat_evd_dequeue(async, &e) == DAT_SUCCESS) {}
	MUST(dat_srq_free(srq));
	CHECK(TYPE(dat_srq_set_lw(srq, 1), DAT_INVALID_HANDLE) && TYPE(dat_srq_resize(srq, 8), DAT_INVALID_HANDLE), "a queue that was freed: DAT_INVALID_HANDLE");
}

static void data_of_connections(void)
{
	DAT_PROVIDER_ATTR attr; static char most[300], large[300];
	DAT_EP_HANDLE from = endpoint(), to = endpoint(); DAT_CR_PARAM c; DAT_EVENT e;
	MUST(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	int limit = attr.max_private_data_size;
	memset(most, 'm', sizeof most);
	struct sockaddr_storage peer = here();
	CHECK(TYPE(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, limit + 1, large, 0, 0), DAT_INVALID_PARAMETER), "dat_ep_connect with more data than there may be: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, -1, large, 0, 0), DAT_INVALID_PARAMETER), "with less than none: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, 4, NULL, 0, 0), DAT_INVALID_PARAMETER), "with data that is not there: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_ep_connect(from, NULL, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0), DAT_INVALID_PARAMETER), "to no address: DAT_INVALID_PARAMETER");
	struct sockaddr_storage odd = peer; odd.ss_family = AF_UNIX;
	CHECK(TYPE(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&odd, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0), DAT_INVALID_ADDRESS), "to an address of another kind: DAT_INVALID_ADDRESS");
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, limit, most, 0, 0));
	e = next(cr);
	DAT_CR_HANDLE request = e.event_data.cr_arrival_event_data.cr_handle;
	MUST(dat_cr_query(request, DAT_CR_FIELD_ALL, &c));
	CHECK(c.private_data_size == limit && !memcmp(c.private_data, most, limit), "as much data as there may be arrives");
	CHECK(TYPE(dat_cr_accept(request, to, limit + 1, large), DAT_INVALID_PARAMETER) && TYPE(dat_cr_accept(request, to, 4, NULL), DAT_INVALID_PARAMETER), "dat_cr_accept with more, or none: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_cr_reject(request, limit + 1, large), DAT_INVALID_PARAMETER), "dat_cr_reject with more: DAT_INVALID_PARAMETER");
	CHECK(TYPE(dat_cr_accept(request, conn, 0, NULL), DAT_INVALID_HANDLE), "dat_cr_accept with no endpoint: DAT_INVALID_HANDLE");
	MUST(dat_cr_accept(request, to, limit < 100 ? limit : 100, most));
	for (int n = 0; n < 2; n++) {
		e = next(conn);
		if (e.event_data.connect_event_data.ep_handle == from) CHECK(e.event_data.connect_event_data.private_data_size == (limit < 100 ? limit : 100), "an answer's data is as long as it was");
	}
	CHECK(TYPE(dat_cr_query(request, DAT_CR_FIELD_ALL, &c), DAT_INVALID_HANDLE), "a request that was answered: DAT_INVALID_HANDLE");
	part(from, to);
}

// What the provider's attributes tell by name, which other providers tell as well.
static const char *named(const DAT_PROVIDER_ATTR *attr, const char *name)
{
	for (DAT_COUNT n = 0; n < attr->num_provider_specific_attr; n++)
		if (!strcmp(attr->provider_specific_attr[n].name, name)) return attr->provider_specific_attr[n].value;
	return "";
}
static void named_attributes(void)
{
	DAT_PROVIDER_ATTR attr; char *end;
	MUST(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	CHECK(!strcmp(named(&attr, "DAT_IB_RDMA_READ"), "TRUE"), "the named attribute DAT_IB_RDMA_READ is TRUE");
	long mtu = strtol(named(&attr, "DAT_IB_TRANSPORT_MTU"), &end, 10);
	CHECK(!*end && mtu >= 256 && mtu <= 4096 && !(mtu & (mtu - 1)), "the named attribute DAT_IB_TRANSPORT_MTU is an MTU of InfiniBand's");
}

// Endpoints that a service point makes for its requests.
static void made_endpoints(void)
{
	DAT_PROVIDER_ATTR attr; DAT_PSP_HANDLE point; DAT_PSP_PARAM pp; DAT_CONN_QUAL qual; DAT_CR_PARAM c; DAT_EP_PARAM p; DAT_EVENT e; DAT_EP_STATE state; DAT_BOOLEAN idle;
	struct sockaddr_storage peer = here();
	MUST(dat_ia_query(ia, NULL, 0, NULL, DAT_PROVIDER_FIELD_ALL, &attr));
	CHECK(attr.ep_creator == DAT_PSP_CREATES_EP_IFASKED, "the attributes say that service points make endpoints for who asks");
	CHECK(TYPE(dat_psp_create_any(ia, &qual, cr, 2, &point), DAT_INVALID_PARAMETER), "a flag of a service point that is none: DAT_INVALID_PARAMETER");
	MUST(dat_psp_create_any(ia, &qual, cr, DAT_PSP_PROVIDER_FLAG, &point));
	CHECK(dat_psp_query(point, DAT_PSP_FIELD_ALL, &pp) == DAT_SUCCESS && pp.psp_flags == DAT_PSP_PROVIDER_FLAG && pp.conn_qual == qual, "dat_psp_query: what the point was made with");
	DAT_EP_HANDLE from = endpoint(), other = endpoint(), made;
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, qual, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	DAT_CR_HANDLE request = next(cr).event_data.cr_arrival_event_data.cr_handle;
	MUST(dat_cr_query(request, DAT_CR_FIELD_ALL, &c));
	made = c.local_ep_handle;
	CHECK(made != DAT_HANDLE_NULL && dat_ep_query(made, DAT_EP_FIELD_ALL, &p) == DAT_SUCCESS, "a request comes with an endpoint");
	CHECK(p.ep_state == DAT_EP_STATE_PASSIVE_CONNECTION_PENDING && p.pz_handle == DAT_HANDLE_NULL && p.recv_evd_handle == DAT_HANDLE_NULL && p.request_evd_handle == DAT_HANDLE_NULL && p.connect_evd_handle == DAT_HANDLE_NULL, "which has no zone and no EVDs yet");
	CHECK(TYPE(dat_cr_accept(request, made, 0, NULL), DAT_INVALID_STATE), "and is not connected without: DAT_INVALID_STATE");
	CHECK(TYPE(dat_cr_accept(request, other, 0, NULL), DAT_INVALID_HANDLE), "nor is another in its place: DAT_INVALID_HANDLE");
	p.pz_handle = pz; p.recv_evd_handle = recv_evd; p.request_evd_handle = req; p.connect_evd_handle = conn;
	MUST(dat_ep_modify(made, DAT_EP_FIELD_PZ_HANDLE | DAT_EP_FIELD_RECV_EVD_HANDLE | DAT_EP_FIELD_REQUEST_EVD_HANDLE | DAT_EP_FIELD_CONNECT_EVD_HANDLE, &p));
	DAT_LMR_TRIPLET in = at(0, 64), out = at(SIZE, 64);
	strcpy(memory + SIZE, "to what was made"); memset(memory, 0, 64);
	MUST(dat_ep_post_recv(made, 1, &in, cookie(5), 0));
	MUST(dat_cr_accept(request, DAT_HANDLE_NULL, 0, NULL));
	for (int n = 0; n < 2; n++) CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "with them it is");
	MUST(dat_ep_post_send(from, 1, &out, cookie(6), 0));
	CHECK(dto(recv_evd).user_cookie.as_64 == 5 && dto(req).status == DAT_DTO_SUCCESS && !strcmp(memory, "to what was made"), "and takes messages");
	part(from, made);
	from = endpoint();
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, qual, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	request = next(cr).event_data.cr_arrival_event_data.cr_handle;
	MUST(dat_cr_query(request, DAT_CR_FIELD_ALL, &c));
	MUST(dat_cr_reject(request, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_PEER_REJECTED && TYPE(dat_ep_get_status(c.local_ep_handle, &state, &idle, &idle), DAT_INVALID_HANDLE), "that of a request which is turned away goes with it");
	MUST(dat_ep_reset(from));
	MUST(dat_ep_connect(from, (DAT_IA_ADDRESS_PTR)&peer, qual, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	request = next(cr).event_data.cr_arrival_event_data.cr_handle;
	MUST(dat_cr_query(request, DAT_CR_FIELD_ALL, &c));
	MUST(dat_ep_free(c.local_ep_handle));
	CHECK(TYPE(dat_cr_accept(request, DAT_HANDLE_NULL, 0, NULL), DAT_INVALID_HANDLE), "one that was freed is not connected: DAT_INVALID_HANDLE");
	MUST(dat_cr_reject(request, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_PEER_REJECTED, "but its request can be turned away");
	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS) {}
	MUST(dat_psp_free(point)); MUST(dat_ep_free(from)); MUST(dat_ep_free(other));
}

// Every call with a handle, without one, with one that was closed and with an object of another kind.
static void bad_handles(void)
{
	DAT_EP_HANDLE ep = endpoint(), no_ep = endpoint(); DAT_EVD_HANDLE evd, no_evd, sent; DAT_CNO_HANDLE cno, no_cno; DAT_PZ_HANDLE no_pz; DAT_LMR_HANDLE no_lmr; DAT_RMR_HANDLE rmr, no_rmr;
	DAT_PSP_HANDLE no_psp; DAT_RSP_HANDLE no_rsp; DAT_SRQ_HANDLE srq, no_srq; DAT_CR_HANDLE no_cr; DAT_CONN_QUAL qual; DAT_COUNT more; DAT_CONTEXT word = { 0 }; DAT_HANDLE_TYPE kind;
	DAT_EP_PARAM ep_param; DAT_EVD_PARAM evd_param; DAT_CNO_PARAM cno_param; DAT_PZ_PARAM pz_param; DAT_LMR_PARAM lmr_param; DAT_RMR_PARAM rmr_param; DAT_PSP_PARAM psp_param; DAT_RSP_PARAM rsp_param;
	DAT_SRQ_PARAM srq_param; DAT_CR_PARAM cr_param; DAT_EP_STATE state; DAT_BOOLEAN idle; DAT_EVENT e = { .event_number = DAT_SOFTWARE_EVENT };
	DAT_SRQ_ATTR a = { .max_recv_dtos = 4, .max_recv_iov = 1 }; DAT_LMR_TRIPLET t = at(0, 64); DAT_RMR_TRIPLET r = far(0, 64, rkey); DAT_RMR_CONTEXT window; DAT_LMR_CONTEXT k; DAT_VLEN l; DAT_VADDR v;
	DAT_REGION_DESCRIPTION d = { .for_va = memory }; DAT_HANDLE made; struct sockaddr_storage to = here(); DAT_IA_ADDRESS_PTR peer = (DAT_IA_ADDRESS_PTR)&to;
	MUST(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG, &evd)); MUST(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_SOFTWARE_FLAG | DAT_EVD_DTO_FLAG | DAT_EVD_CR_FLAG | DAT_EVD_CONNECTION_FLAG, &no_evd));
	MUST(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &cno)); MUST(dat_cno_create(ia, DAT_OS_WAIT_PROXY_AGENT_NULL, &no_cno));
	MUST(dat_pz_create(ia, &no_pz)); MUST(dat_rmr_create(pz, &rmr)); MUST(dat_rmr_create(pz, &no_rmr));
	MUST(dat_srq_create(ia, pz, &a, &srq)); MUST(dat_srq_create(ia, pz, &a, &no_srq));
	MUST(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, SIZE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &no_lmr, &k, &window, &l, &v));
	MUST(dat_psp_create_any(ia, &qual, cr, DAT_PSP_CONSUMER_FLAG, &no_psp)); MUST(dat_psp_free(no_psp));
	MUST(dat_rsp_create(ia, qual, no_ep, cr, &no_rsp)); MUST(dat_rsp_free(no_rsp));
	MUST(dat_ep_connect(no_ep, peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	no_cr = next(cr).event_data.cr_arrival_event_data.cr_handle;
	MUST(dat_cr_reject(no_cr, 0, NULL)); next(conn);
	MUST(dat_ep_free(no_ep)); MUST(dat_evd_free(no_evd)); MUST(dat_cno_free(no_cno)); MUST(dat_pz_free(no_pz)); MUST(dat_rmr_free(no_rmr)); MUST(dat_srq_free(no_srq)); MUST(dat_lmr_free(no_lmr));
#define WITH(gone, other, name, call) do { DAT_HANDLE all_[] = { DAT_HANDLE_NULL, gone, other }; int right_ = 1; for (int n_ = 0; n_ < 3; n_++) { DAT_HANDLE h = all_[n_]; right_ &= TYPE(call, DAT_INVALID_HANDLE); } \
	CHECK(right_, name " with no handle, a closed one and another object's: DAT_INVALID_HANDLE"); } while (0)
	WITH(no_cno, evd, "dat_cno_free", dat_cno_free(h)); WITH(no_cno, evd, "dat_cno_query", dat_cno_query(h, DAT_CNO_FIELD_ALL, &cno_param));
	WITH(no_cno, evd, "dat_cno_modify_agent", dat_cno_modify_agent(h, DAT_OS_WAIT_PROXY_AGENT_NULL)); WITH(no_cno, evd, "dat_cno_wait", dat_cno_wait(h, 0, &sent));
	WITH(no_cr, ep, "dat_cr_query", dat_cr_query(h, DAT_CR_FIELD_ALL, &cr_param)); WITH(no_cr, ep, "dat_cr_accept", dat_cr_accept(h, ep, 0, NULL)); WITH(no_cr, ep, "dat_cr_reject", dat_cr_reject(h, 0, NULL));
	WITH(no_evd, ep, "dat_evd_free", dat_evd_free(h)); WITH(no_evd, ep, "dat_evd_query", dat_evd_query(h, DAT_EVD_FIELD_ALL, &evd_param)); WITH(no_evd, ep, "dat_evd_modify_cno", dat_evd_modify_cno(h, cno));
	WITH(no_evd, ep, "dat_evd_enable", dat_evd_enable(h)); WITH(no_evd, ep, "dat_evd_disable", dat_evd_disable(h)); WITH(no_evd, ep, "dat_evd_wait", dat_evd_wait(h, 0, 1, &e, &more)); WITH(no_evd, ep, "dat_evd_resize", dat_evd_resize(h, 8));
	WITH(no_evd, ep, "dat_evd_post_se", dat_evd_post_se(h, &e)); WITH(no_evd, ep, "dat_evd_dequeue", dat_evd_dequeue(h, &e)); WITH(no_evd, ep, "dat_evd_set_unwaitable", dat_evd_set_unwaitable(h)); WITH(no_evd, ep, "dat_evd_clear_unwaitable", dat_evd_clear_unwaitable(h));
	WITH(no_ep, evd, "dat_ep_free", dat_ep_free(h)); WITH(no_ep, evd, "dat_ep_query", dat_ep_query(h, DAT_EP_FIELD_ALL, &ep_param)); WITH(no_ep, evd, "dat_ep_modify", dat_ep_modify(h, 0, &ep_param)); WITH(no_ep, evd, "dat_ep_reset", dat_ep_reset(h));
	WITH(no_ep, evd, "dat_ep_connect", dat_ep_connect(h, peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0)); WITH(no_ep, evd, "dat_ep_dup_connect", dat_ep_dup_connect(h, ep, DAT_TIMEOUT_INFINITE, 0, NULL, 0)); WITH(no_ep, evd, "dat_ep_disconnect", dat_ep_disconnect(h, 0));
	WITH(no_ep, evd, "dat_ep_post_send", dat_ep_post_send(h, 1, &t, cookie(1), 0)); WITH(no_ep, evd, "dat_ep_post_recv", dat_ep_post_recv(h, 1, &t, cookie(1), 0)); WITH(no_ep, evd, "dat_ep_get_status", dat_ep_get_status(h, &state, &idle, &idle));
	WITH(no_ep, evd, "dat_ep_post_rdma_read", dat_ep_post_rdma_read(h, 1, &t, cookie(1), &r, 0)); WITH(no_ep, evd, "dat_ep_post_rdma_write", dat_ep_post_rdma_write(h, 1, &t, cookie(1), &r, 0));
	WITH(no_lmr, ep, "dat_lmr_free", dat_lmr_free(h)); WITH(no_lmr, ep, "dat_lmr_query", dat_lmr_query(h, DAT_LMR_FIELD_ALL, &lmr_param));
	WITH(no_rmr, ep, "dat_rmr_free", dat_rmr_free(h)); WITH(no_rmr, ep, "dat_rmr_query", dat_rmr_query(h, DAT_RMR_FIELD_ALL, &rmr_param)); WITH(no_rmr, ep, "dat_rmr_bind", dat_rmr_bind(h, lmr, &t, 0, DAT_VA_TYPE_VA, ep, cookie(1), 0, &window));
	WITH(no_pz, ep, "dat_pz_free", dat_pz_free(h)); WITH(no_pz, ep, "dat_pz_query", dat_pz_query(h, DAT_PZ_FIELD_ALL, &pz_param)); WITH(no_pz, ep, "dat_rmr_create, for its zone,", dat_rmr_create(h, &made));
	WITH(no_pz, ep, "dat_srq_create, for its zone,", dat_srq_create(ia, h, &a, &made)); WITH(no_pz, ep, "dat_ep_create, for its zone,", dat_ep_create(ia, h, recv_evd, req, conn, NULL, &made));
	WITH(no_pz, ep, "dat_lmr_create, for its zone,", dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, SIZE, h, 0, DAT_VA_TYPE_VA, &made, &k, &window, &l, &v));
	WITH(no_psp, ep, "dat_psp_free", dat_psp_free(h)); WITH(no_psp, ep, "dat_psp_query", dat_psp_query(h, DAT_PSP_FIELD_ALL, &psp_param)); WITH(no_rsp, psp, "dat_rsp_free", dat_rsp_free(h)); WITH(no_rsp, psp, "dat_rsp_query", dat_rsp_query(h, DAT_RSP_FIELD_ALL, &rsp_param));
	WITH(no_evd, ep, "dat_psp_create, for its EVD,", dat_psp_create(ia, qual, h, 0, &made)); WITH(no_evd, ep, "dat_rsp_create, for its EVD,", dat_rsp_create(ia, qual, ep, h, &made)); WITH(no_ep, evd, "dat_rsp_create, for its endpoint,", dat_rsp_create(ia, qual, h, cr, &made));
	WITH(no_srq, ep, "dat_srq_free", dat_srq_free(h)); WITH(no_srq, ep, "dat_srq_query", dat_srq_query(h, DAT_SRQ_FIELD_ALL, &srq_param)); WITH(no_srq, ep, "dat_srq_resize", dat_srq_resize(h, 8)); WITH(no_srq, ep, "dat_srq_set_lw", dat_srq_set_lw(h, 1));
	WITH(no_srq, ep, "dat_srq_post_recv", dat_srq_post_recv(h, 1, &t, cookie(1))); WITH(no_srq, ep, "dat_ep_create_with_srq, for its queue,", dat_ep_create_with_srq(ia, pz, recv_evd, req, conn, h, NULL, &made));
	// none may be given there: an endpoint without such an EVD
	DAT_EVD_HANDLE wrong[] = { no_evd, ep };
	int right = 1;
	for (int n = 0; n < 2; n++) right &= TYPE(dat_ep_create(ia, pz, wrong[n], req, conn, NULL, &made), DAT_INVALID_HANDLE) && TYPE(dat_ep_create(ia, pz, recv_evd, wrong[n], conn, NULL, &made), DAT_INVALID_HANDLE) && TYPE(dat_ep_create(ia, pz, recv_evd, req, wrong[n], NULL, &made), DAT_INVALID_HANDLE);
	CHECK(right, "dat_ep_create with an EVD that was closed, or is none: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_evd_create(ia, 4, no_cno, DAT_EVD_DTO_FLAG, &made), DAT_INVALID_HANDLE) && TYPE(dat_evd_modify_cno(evd, no_cno), DAT_INVALID_HANDLE), "an EVD with a CNO that was closed: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_set_consumer_context(no_ep, word), DAT_INVALID_HANDLE) && TYPE(dat_get_consumer_context(no_ep, &word), DAT_INVALID_HANDLE) && TYPE(dat_get_handle_type(no_ep, &kind), DAT_INVALID_HANDLE), "the context and type of what was closed: DAT_INVALID_HANDLE");
	CHECK(TYPE(dat_rmr_bind(rmr, no_lmr, &t, 0, DAT_VA_TYPE_VA, no_ep, cookie(1), 0, &window), DAT_INVALID_HANDLE), "a bind of a region and at an endpoint that were closed: DAT_INVALID_HANDLE");
	CHECK(dat_ep_get_status(ep, &state, &idle, &idle) == DAT_SUCCESS && state == DAT_EP_STATE_UNCONNECTED && dat_cno_query(cno, DAT_CNO_FIELD_ALL, &cno_param) == DAT_SUCCESS, "and nothing else is changed by any of it");
	MUST(dat_ep_free(ep)); MUST(dat_evd_free(evd)); MUST(dat_cno_free(cno)); MUST(dat_rmr_free(rmr)); MUST(dat_srq_free(srq));
	while (dat_evd_dequeue(conn, &e) == DAT_SUCCESS) {}
}

// Without descriptors or memory, and with queues that are full.
static void shortages(char *name)
{
	DAT_EP_HANDLE from, to = endpoint(), other = endpoint(), spare = endpoint();
	DAT_EVD_HANDLE small; DAT_IA_HANDLE second; DAT_EVD_HANDLE none = DAT_HANDLE_NULL; DAT_SRQ_HANDLE srq;
	DAT_EP_ATTR attr; DAT_EP_PARAM p;
	MUST(dat_ep_query(to, DAT_EP_FIELD_ALL, &p)); attr = p.ep_attr; attr.max_request_dtos = 4;
	MUST(dat_evd_create(ia, 4, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &small));
	MUST(dat_ep_create(ia, pz, recv_evd, small, conn, &attr, &from));
	join_up(from, to);
	DAT_LMR_TRIPLET t = at(0, 64); DAT_RMR_TRIPLET r = far(SIZE, 64, rkey);
	DAT_RETURN answer = 0; int posted = 0;
	for (; posted < 1000 && !answer; posted++) answer = dat_ep_post_rdma_write(from, 1, &t, cookie(posted), &r, 0);
	CHECK(TYPE(answer, DAT_INSUFFICIENT_RESOURCES), "more requests than an endpoint takes: DAT_INSUFFICIENT_RESOURCES");
	for (int n = 0; n < posted - 1; n++) if (dto(small).user_cookie.as_64 != (uint64_t)n) { CHECK(0, "what was taken completes in order"); break; }
	CHECK(dat_ep_post_rdma_write(from, 1, &t, cookie(1), &r, 0) == DAT_SUCCESS, "and then there is room again"); next(small);
	CHECK(TYPE(dat_evd_create(ia, 1 << 30, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &none), DAT_INSUFFICIENT_RESOURCES), "an EVD larger than there are: DAT_INSUFFICIENT_RESOURCES");

	struct rlimit limit, few;
	struct sockaddr_storage peer = here();
	MUST(dat_ep_connect(other, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	DAT_CR_HANDLE request = next(cr).event_data.cr_arrival_event_data.cr_handle;
	DAT_EP_HANDLE third = endpoint();
	getrlimit(RLIMIT_NOFILE, &limit);
	few = limit; few.rlim_cur = 0;
	setrlimit(RLIMIT_NOFILE, &few);
	DAT_EVD_HANDLE second_async = DAT_HANDLE_NULL;
	DAT_RETURN open = dat_ia_open(name, 8, &second_async, &second), call = dat_ep_connect(spare, (DAT_IA_ADDRESS_PTR)&peer, port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0);
	setrlimit(RLIMIT_NOFILE, &limit);
	CHECK(TYPE(open, DAT_INSUFFICIENT_RESOURCES), "dat_ia_open without descriptors: DAT_INSUFFICIENT_RESOURCES");
	if (!device) CHECK(TYPE(call, DAT_INSUFFICIENT_RESOURCES), "dat_ep_connect without descriptors: DAT_INSUFFICIENT_RESOURCES");
	DAT_EP_STATE state; DAT_BOOLEAN idle;
	MUST(dat_ep_get_status(spare, &state, &idle, &idle));
	if (!device) CHECK(state == DAT_EP_STATE_UNCONNECTED, "which leaves the endpoint as it was");
	if (call == DAT_SUCCESS) {	// a device needs none
		MUST(dat_cr_reject(next(cr).event_data.cr_arrival_event_data.cr_handle, 0, NULL));
		next(conn);
	}
	MUST(dat_cr_accept(request, third, 0, NULL));
	for (int n = 0; n < 2; n++) CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "a request that came before is accepted");
	CHECK(dat_ia_open(name, 8, &second_async, &second) == DAT_SUCCESS && dat_ia_close(second, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS, "with descriptors an adaptor is opened again");

	if (!getenv("DAT_NO_LIMITS")) {	// AddressSanitizer and valgrind need all of the space
		getrlimit(RLIMIT_AS, &limit);
		few = limit; few.rlim_cur = ((rlim_t)vm_size() * sysconf(_SC_PAGESIZE)) + 65536;
		DAT_SRQ_ATTR a = { .max_recv_dtos = 1 << 14, .max_recv_iov = 1 };
		DAT_SRQ_HANDLE queues[64]; int made = 0;
		setrlimit(RLIMIT_AS, &few);
		for (answer = 0; made < 64 && !(answer = dat_srq_create(ia, pz, &a, &srq)); made++) queues[made] = srq;
		setrlimit(RLIMIT_AS, &limit);
		CHECK(TYPE(answer, DAT_INSUFFICIENT_RESOURCES), "a queue without memory: DAT_INSUFFICIENT_RESOURCES");
		while (made) MUST(dat_srq_free(queues[--made]));
		DAT_EVD_HANDLE evds[64];
		few.rlim_cur = ((rlim_t)vm_size() * sysconf(_SC_PAGESIZE)) + 65536;
		setrlimit(RLIMIT_AS, &few);
		for (answer = 0; made < 64 && !(answer = dat_evd_create(ia, 1 << 16, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &evds[made])); made++) {}
		DAT_RETURN larger = dat_evd_resize(small, 1 << 16);
		setrlimit(RLIMIT_AS, &limit);
		CHECK(TYPE(answer, DAT_INSUFFICIENT_RESOURCES) && TYPE(larger, DAT_INSUFFICIENT_RESOURCES), "an EVD without memory, made or resized: DAT_INSUFFICIENT_RESOURCES");
		while (made) MUST(dat_evd_free(evds[--made]));
	}
	part(other, third); part(from, to); MUST(dat_ep_free(spare)); MUST(dat_evd_free(small));
}

// Another process that connects, takes nothing and stays until it is killed.
static int peer(char *name, DAT_CONN_QUAL to_port)
{
	DAT_EP_HANDLE ep;
	MUST(dat_ia_open(name, 8, &async, &ia));
	MUST(dat_pz_create(ia, &pz));
	MUST(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
	MUST(dat_evd_create(ia, 8, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &req));
	MUST(dat_ep_create(ia, pz, req, req, conn, NULL, &ep));
	struct sockaddr_storage to = here();
	MUST(dat_ep_connect(ep, (DAT_IA_ADDRESS_PTR)&to, to_port, DAT_TIMEOUT_INFINITE, 0, NULL, 0, 0));
	next(conn);
	pause();
	return 0;
}
static void killed(char **argv)
{
	char number[24];
	DAT_EP_HANDLE ep = endpoint(); DAT_EVENT e;
	DAT_LMR_TRIPLET t = at(0, PAGES / 2 * SIZE), small = at(PAGES / 2 * SIZE, SIZE);
	snprintf(number, sizeof number, "%llu", (unsigned long long)port);
	for (int n = 0; n < 5; n++) MUST(dat_ep_post_recv(ep, 1, &small, cookie(n), n % 2 ? DAT_COMPLETION_UNSIGNALLED_FLAG : 0));
	fflush(stdout);
	pid_t child = fork();
	if (!child) { execl(argv[0], argv[0], argv[1], number, (char *)NULL); _exit(1); }
	MUST(dat_cr_accept(next(cr).event_data.cr_arrival_event_data.cr_handle, ep, 0, NULL));
	CHECK(next(conn).event_number == DAT_CONNECTION_EVENT_ESTABLISHED, "another process connects");
	kill(child, SIGSTOP);
	DAT_RMR_TRIPLET r = far(0, SIZE, rkey);
	for (int n = 0; n < 4; n++) MUST(dat_ep_post_send(ep, 1, &t, cookie(100 + n), n % 2 ? DAT_COMPLETION_SUPPRESS_FLAG : 0));
	MUST(dat_ep_post_rdma_read(ep, 1, &small, cookie(104), &r, 0));
	MUST(dat_ep_post_send(ep, 1, &small, cookie(105), DAT_COMPLETION_BARRIER_FENCE_FLAG));
	kill(child, SIGKILL); waitpid(child, NULL, 0);
	e = next(conn);
	CHECK(e.event_number == DAT_CONNECTION_EVENT_DISCONNECTED || e.event_number == DAT_CONNECTION_EVENT_BROKEN, "a peer that is killed under transfers: an event of the connection");
	int right = 1;
	for (int n = 0; n < 5; n++) { DAT_DTO_COMPLETION_EVENT_DATA d = dto(recv_evd); right &= d.status == DAT_DTO_ERR_FLUSHED && d.user_cookie.as_64 == (uint64_t)n && d.ep_handle == ep; }
	CHECK(right, "its receives are flushed in their order, each once");
	int seen = 0, failed = 0;
	while (dat_evd_dequeue(req, &e) == DAT_SUCCESS) { seen |= 1 << (e.event_data.dto_completion_event_data.user_cookie.as_64 - 100); failed += e.event_data.dto_completion_event_data.status != DAT_DTO_SUCCESS; }
	// sockets may have taken all of the messages; a read is never answered, and a fenced send waits for it
	CHECK((seen & 0x35) == 0x35 && failed >= 2, "its requests end, each that is not a suppressed success once");
	CHECK(TYPE(dat_evd_dequeue(conn, &e), DAT_QUEUE_EMPTY) && TYPE(dat_evd_dequeue(recv_evd, &e), DAT_QUEUE_EMPTY), "and nothing else comes");
	MUST(dat_ep_post_send(ep, 1, &small, cookie(106), 0));
	CHECK(dto(req).status == DAT_DTO_ERR_FLUSHED, "what is posted later is flushed");
	CHECK(dat_ep_reset(ep) == DAT_SUCCESS, "the endpoint is reset");
	DAT_EP_HANDLE other = endpoint();
	join_up(ep, other);
	part(ep, other);
}

// Callers that are no peers of ours: bytes without sense, and none.
static void unknown_peers(void)
{
	struct sockaddr_storage to = here();
	DAT_EP_HANDLE from = endpoint(), back = endpoint(); DAT_EVENT e;
	char noise[400];
	if (to.ss_family == AF_INET6) ((struct sockaddr_in6 *)&to)->sin6_port = htons(port); else ((struct sockaddr_in *)&to)->sin_port = htons(port);
	srand(4711);
	for (int n = 0; n < 50; n++) {
		int s = socket(to.ss_family, SOCK_STREAM, 0);
		if (connect(s, (struct sockaddr *)&to, sizeof to)) { close(s); CHECK(0, "anybody may call"); return; }
		for (size_t k = 0; k < sizeof noise; k++) noise[k] = rand();
		if (n % 3 && write(s, noise, n * 8) < 0) n = n;
		dat_evd_dequeue(cr, &e);
		close(s);
	}
	CHECK(nothing(cr), "bytes without sense are no request");
	join_up(from, back);
	part(from, back);
}

int main(int argc, char **argv)
{
	alarm(120);
	if (argc < 2) return 2;
	if (argc > 2) return peer(argv[1], strtoull(argv[2], NULL, 10));
	MUST(dat_ia_open(argv[1], 64, &async, &ia));
	DAT_IA_ATTR a;
	MUST(dat_ia_query(ia, NULL, DAT_IA_FIELD_ALL, &a, 0, NULL));
	device = !!strstr(a.vendor_name, "verbs");
	MUST(dat_pz_create(ia, &pz)); MUST(dat_pz_create(ia, &other_pz));
	MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CONNECTION_FLAG, &conn));
	MUST(dat_evd_create(ia, 64, DAT_HANDLE_NULL, DAT_EVD_CR_FLAG, &cr));
	MUST(dat_evd_create(ia, 1024, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG | DAT_EVD_RMR_BIND_FLAG, &req));
	MUST(dat_evd_create(ia, 1024, DAT_HANDLE_NULL, DAT_EVD_DTO_FLAG, &recv_evd));
	memory = aligned_alloc(SIZE, PAGES * SIZE); memset(memory, 0, PAGES * SIZE);
	DAT_REGION_DESCRIPTION d = { .for_va = memory }; DAT_VLEN l; DAT_VADDR v;
	MUST(dat_lmr_create(ia, DAT_MEM_TYPE_VIRTUAL, d, PAGES * SIZE, pz, DAT_MEM_PRIV_ALL_FLAG, DAT_VA_TYPE_VA, &lmr, &key, &rkey, &l, &v));
	MUST(dat_psp_create_any(ia, &port, cr, DAT_PSP_CONSUMER_FLAG, &psp));
	regions();
	windows();
	modified();
	notices();
	lost_events();
	resized();
	data_of_connections();
	named_attributes();
	made_endpoints();
	bad_handles();
	if (!device) unknown_peers();
	shortages(argv[1]);
	killed(argv);
	MUST(dat_psp_free(psp)); MUST(dat_lmr_free(lmr)); MUST(dat_pz_free(pz)); MUST(dat_pz_free(other_pz));
	MUST(dat_evd_free(conn)); MUST(dat_evd_free(cr)); MUST(dat_evd_free(req)); MUST(dat_evd_free(recv_evd));
	CHECK(dat_ia_close(ia, DAT_CLOSE_GRACEFUL_FLAG) == DAT_SUCCESS, "nothing is left in the adaptor");
	return bad;
}
