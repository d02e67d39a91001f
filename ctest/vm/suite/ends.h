/* Expected events of tests with a failing connection. */
#ifndef ENDS_H
#define ENDS_H
#include "../../conformance/ct.h"

/* The endpoint ends: FI_SHUTDOWN, and posted receives come back. */
static inline void wants_end(struct ct *c, int recvs)
{
	struct fi_cq_err_entry err;
	struct fi_cq_tagged_entry e;

	ct_want_event(c, FI_SHUTDOWN, NULL, 0);
	for (int i = 0; i < recvs; i++) {
		EQ(ct_next(c, c->rx, &e, NULL, &err), -FI_EAVAIL);
		EQ(err.err, FI_ECANCELED);
		CHECK(err.op_context == CTX(i));
	}
}
#endif
