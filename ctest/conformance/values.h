/* Values of the tests of collectives. */
#ifndef VALUES_H
#define VALUES_H
#include "ct.h"

/* Values with the rank of their owner and their index. */
static uint64_t value(int rank, size_t i) { return (uint64_t)(rank + 1) * 1000003 + i * 17; }
static uint64_t *filled(int rank, size_t n)
{
	uint64_t *b = malloc(n * 8 + 8);

	CHECK(b);
	for (size_t i = 0; i < n; i++)
		b[i] = value(rank, i);
	return b;
}
static uint64_t total(int n, size_t i)
{
	uint64_t t = 0;

	for (int r = 0; r < n; r++)
		t += value(r, i);
	return t;
}

#endif
