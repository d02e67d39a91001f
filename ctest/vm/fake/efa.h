/*
 * Stand-ins for libibverbs.so.1 and libefa.so.1 with one device, efa_0: scalable reliable datagrams between
 * processes of one host, in any order. Two parts: the calls of the libraries (efa_verbs.c, efa_dv.c), and the card
 * (efa_card.c), a thread that receives, delivers and acknowledges without a call of the program.
 *
 *   FAKE_EFA_HOST=N       the device has the address of host N (default 0); 'pid': each process is a host of its own
 *   FAKE_EFA_REORDER=N    a packet may be overtaken by up to N others (default 16; 0: in order)
 *   FAKE_EFA_RNR=N        one of N messages is refused as if no receive were posted (default 0: none)
 *   FAKE_EFA_FAIL=N       one of N operations fails as if the peer did not respond (default 0: none)
 *   FAKE_EFA_SEED=N       of the random numbers for these (default: the process id)
 *   FAKE_EFA_CAPS=N       capabilities of efadv_query_device (default: RDMA read and write, RNR retry, source GIDs)
 *   FAKE_EFA_STATS=FILE   a line of numbers is appended when the process exits
 */
#ifndef FAKE_EFA_H
#define FAKE_EFA_H
#define _GNU_SOURCE
#include <infiniband/efadv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

enum {
	MAX_QPN = 0xffff, MAX_MSG = 8928, MAX_INLINE = 32, MAX_SQ_SGE = 2, MAX_RQ_SGE = 3, MAX_SQ_WR = 4096, MAX_RQ_WR = 32768,
	GRH = 40,		/* bytes before a received datagram of an unreliable queue pair */
	UNKNOWN_AH = 0xffff,
};
/* Completion codes of the device, which ibv_wc_read_vendor_err() returns. */
enum {
	CODE_OK = 0, CODE_FLUSHED = 1, CODE_BAD_LKEY = 5, CODE_BAD_LENGTH = 6, CODE_REMOTE_ADDRESS = 7, CODE_REMOTE_QPN = 9,
	CODE_REMOTE_RNR = 10, CODE_REMOTE_LENGTH = 11, CODE_NO_RESPONSE = 13,
};

/* Of a newer efadv.h than Debian's. */
struct fake_efadv_cq {
	struct efadv_cq base;
	bool (*wc_is_unsolicited)(struct efadv_cq *);
};
enum { FAKE_CAPS_RDMA_WRITE = 1 << 3 };

struct fake_cqe {
	uint64_t wr_id;
	enum ibv_wc_opcode opcode;
	uint32_t code, byte_len, qp_num, src_qp;
	__be32 imm;
	unsigned int wc_flags;
	uint16_t slid;
	union ibv_gid sgid;
};
struct fake_channel { struct ibv_comp_channel base; int write_fd; };
struct fake_cq {
	struct ibv_cq_ex ex;		/* of libibverbs: first */
	struct fake_efadv_cq adv;
	struct fake_cqe *ring, current;
	uint32_t size;
	_Atomic uint32_t head, tail;	/* read by a poller, written by the card */
	_Atomic int is_armed;
	pthread_mutex_t poll_lock;
};
struct fake_sge { uint64_t addr; uint32_t len, lkey; };
struct fake_send {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	__be32 imm;
	uint32_t rkey, qpn, qkey, num_sge, inline_len;
	uint64_t remote_addr;
	union ibv_gid gid;
	bool is_inline;
	struct fake_sge sge[MAX_SQ_SGE];
	unsigned char data[MAX_INLINE];
	/* of a posted operation */
	bool in_use;
	struct fake_conn *conn;
};
struct fake_recv { uint64_t wr_id; uint32_t num_sge; struct fake_sge sge[MAX_RQ_SGE]; };
struct fake_qp {
	struct ibv_qp_ex ex;		/* of libibverbs: first */
	uint32_t qkey, max_send, max_recv, max_inline;
	int sq_sig_all;
	pthread_mutex_t batch_lock;	/* from ibv_wr_start() to ibv_wr_complete() */
	struct fake_send *batch;
	uint32_t batched;
	int batch_error;
	/* below: under the card's lock */
	struct fake_send *slots;
	uint32_t next_slot, outstanding;
	struct fake_recv *recvs;
	uint32_t recv_head, recv_tail;
	int listen_fd;
	struct fake_conn *conns;
	struct fake_packet *no_recv, **no_recv_end;	/* packets that wait for a receive */
};
struct fake_ah { struct ibv_ah base; union ibv_gid gid; uint16_t ahn; };
struct fake_mr { struct ibv_mr base; uint64_t iova; unsigned int access; };
struct fake_context { struct verbs_context verbs; };

extern pthread_mutex_t fake_lock;	/* of all that the card uses */
extern struct fake_stats { unsigned long sent, received, overtaken, reads, writes, failed; } fake_stats;

/* Calls of the card; all but the first with its lock. */
void fake_card_start(void);
union ibv_gid fake_gid(void);
unsigned long fake_setting(const char *name, unsigned long otherwise);
int fake_listen(struct fake_qp *qp);			/* chooses qp_num; 0 or an errno */
void fake_post(struct fake_qp *qp, const struct fake_send *send);
void fake_recv_posted(struct fake_qp *qp);
void fake_flush(struct fake_qp *qp);
void fake_forget(struct fake_qp *qp);			/* before it is freed */
void fake_report(struct fake_qp *qp, bool is_recv, const struct fake_cqe *cqe);
struct fake_qp *fake_qp_of(uint32_t qpn);
/* The bytes of a registered region, or NULL */
void *fake_bytes(uint32_t key, uint64_t addr, uint64_t len, unsigned int access);
uint16_t fake_ahn_of(const union ibv_gid *gid);		/* UNKNOWN_AH if none was made */

/* What libefa calls in libibverbs. */
struct ibv_cq_ex *fake_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_cap *cap, enum ibv_qp_type type, struct ibv_cq *send_cq,
			      struct ibv_cq *recv_cq, void *qp_context, int sq_sig_all);
#endif
