/*
 * The first alltoalls of a job, for benches/first: `alltoall SIZE COUNT` prints the milliseconds
 * that COUNT alltoalls with SIZE bytes for each rank take in the slowest rank, right behind MPI_Init,
 * when no rank has had a message from another.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int rank, ranks, size, count;
	char *out, *in;
	double t, slowest;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	size = argc > 2 ? atoi(argv[1]) : 0;
	count = argc > 2 ? atoi(argv[2]) : 0;
	if (size < 1 || count < 1) {
		if (rank == 0)
			fprintf(stderr, "usage: alltoall SIZE COUNT\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	out = malloc((size_t)size * ranks);
	in = malloc((size_t)size * ranks);
	if (!out || !in)
		MPI_Abort(MPI_COMM_WORLD, 1);
	t = MPI_Wtime();
	for (int i = 0; i < count; i++) {
		memset(out, (rank + i) % 128, (size_t)size * ranks);
		MPI_Alltoall(out, size, MPI_CHAR, in, size, MPI_CHAR, MPI_COMM_WORLD);
		for (int r = 0; r < ranks; r++)
			if (in[(size_t)size * r] != (r + i) % 128 || in[(size_t)size * (r + 1) - 1] != (r + i) % 128) {
				fprintf(stderr, "alltoall: wrong data of rank %d\n", r);
				MPI_Abort(MPI_COMM_WORLD, 1);
			}
	}
	t = (MPI_Wtime() - t) * 1000;
	MPI_Reduce(&t, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%.2f\n", slowest);
	MPI_Finalize();
	return 0;
}
