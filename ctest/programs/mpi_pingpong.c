/*
 * Two MPI ranks exchange messages: every byte checked, latency of 64 bytes and
 * bandwidth of 1 MiB printed, with the libfabric that rank 0 has mapped.
 *   mpicc mpi_pingpong.c -o mpi_pingpong && mpirun -np 2 ./mpi_pingpong
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

static void fill(unsigned char *b, unsigned n, int seed)
{
	for (unsigned i = 0; i < n; i++)
		b[i] = (unsigned char)(i * 13 + seed);
}
static void check(const unsigned char *b, unsigned n, int seed, int rank)
{
	for (unsigned i = 0; i < n; i++)
		if (b[i] != (unsigned char)(i * 13 + seed)) {
			fprintf(stderr, "rank %d: byte %u of %u is wrong\n", rank, i, n);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

int main(int argc, char **argv)
{
	static const unsigned sizes[] = { 0, 1, 64, 4096, 70000, 1 << 20, 5 << 20 };
	int rank, ranks, few = argc > 1 ? atoi(argv[1]) : 1000;
	unsigned char *b;
	double t, latency, bandwidth;
	MPI_Status st;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	b = malloc(8 << 20);
	if (ranks != 2 || !b || few < 1) {
		fprintf(stderr, "run this with -np 2\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (unsigned k = 0; k < sizeof sizes / sizeof *sizes; k++) {
		const unsigned n = sizes[k];
		int got = -1;

		if (rank == 0) {
			fill(b, n, k);
			MPI_Send(b, n, MPI_BYTE, 1, k, MPI_COMM_WORLD);
			memset(b, 0, n);
			MPI_Recv(b, n, MPI_BYTE, 1, k, MPI_COMM_WORLD, &st);
			check(b, n, k + 3, rank);
		} else {
			MPI_Recv(b, n, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &st);
			check(b, n, k, rank);
			fill(b, n, k + 3);
			MPI_Send(b, n, MPI_BYTE, 0, k, MPI_COMM_WORLD);
		}
		MPI_Get_count(&st, MPI_BYTE, &got);
		if (got != (int)n || st.MPI_TAG != (int)k) {
			fprintf(stderr, "rank %d: wrong length or tag\n", rank);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	for (int pass = 0; pass < 2; pass++) {		/* the first one warms up */
		int n = pass ? few : few / 10 + 1;

		MPI_Barrier(MPI_COMM_WORLD);
		t = MPI_Wtime();
		for (int i = 0; i < n; i++) {
			if (rank == 0)
				MPI_Send(b, 64, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
			MPI_Recv(b, 64, MPI_BYTE, !rank, 0, MPI_COMM_WORLD, &st);
			if (rank == 1)
				MPI_Send(b, 64, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		}
		latency = (MPI_Wtime() - t) / n / 2 * 1e6;
	}
	{
		enum { W = 16 };
		MPI_Request r[W];
		int rounds = few / W / 4 + 1;

		MPI_Barrier(MPI_COMM_WORLD);
		t = MPI_Wtime();
		for (int i = 0; i < rounds; i++) {
			for (int j = 0; j < W; j++) {
				if (rank == 0)
					MPI_Isend(b, 1 << 20, MPI_BYTE, 1, j, MPI_COMM_WORLD, &r[j]);
				else
					MPI_Irecv(b, 1 << 20, MPI_BYTE, 0, j, MPI_COMM_WORLD, &r[j]);
			}
			MPI_Waitall(W, r, MPI_STATUSES_IGNORE);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		bandwidth = (double)rounds * W * (1 << 20) / (MPI_Wtime() - t) / 1e6;
	}
	if (rank == 0) {
		print_library();
		printf("64 B latency/us: %.2f\n1 MiB MB/s: %.1f\n", latency, bandwidth);
	}
	free(b);
	MPI_Finalize();
	return 0;
}
