/*
 * MPI jobs that do next to nothing, so that nothing hides what happens while ranks start and end.
 *
 *   mpi_start [plain]   MPI_Init, groups, MPI_Finalize: what is sent is MPI's own
 *   mpi_start dup       and a communicator that is duplicated and freed
 *   mpi_start reduce    and a reduction
 *   mpi_start sends     neighbours both send before they receive, 0 B to 16 KiB: MPI_Send of messages that an MPI
 *                       library buffers does not wait for the receive
 *   mpi_start alltoall  all ranks exchange data with all others, in several rounds with a pause
 *   mpi_start until F   the same until the file F exists; F.started is created after the first round
 */
#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>
#include "library.h"

static int wrong(const char *what)
{
	fprintf(stderr, "mpi_start: %s\n", what);
	return MPI_Abort(MPI_COMM_WORLD, 1);
}

static void send_first(int rank, int ranks)
{
	static unsigned char out[16384], in[16384];
	const int peer = rank ^ 1;

	if (peer >= ranks)
		return;
	for (int n = 0; n <= (int)sizeof out; n = n ? 2 * n : 1) {
		MPI_Status status;
		int got;

		memset(out, rank + n % 7, n);
		MPI_Send(out, n, MPI_BYTE, peer, n, MPI_COMM_WORLD);
		memset(in, 99, sizeof in);
		MPI_Recv(in, sizeof in, MPI_BYTE, peer, n, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &got);
		if (got != n)
			wrong("the length is wrong");
		for (int i = 0; i < n; i++)
			if (in[i] != (unsigned char)(peer + n % 7))
				wrong("a byte is wrong");
	}
}

enum { BLOCK = 256, ALLTOALLS = 3 };

static int number_of(int from, int to, int round, int at)
{
	return (from * 1009 + to) * 31 + round * 7 + at;
}

static void exchange_all(int rank, int ranks, int rounds)
{
	int *out = malloc(sizeof(int) * BLOCK * ranks), *in = malloc(sizeof(int) * BLOCK * ranks);

	for (int round = 0; round < rounds; round++) {
		for (int to = 0; to < ranks; to++)
			for (int i = 0; i < BLOCK; i++)
				out[to * BLOCK + i] = number_of(rank, to, round, i);
		memset(in, 0xff, sizeof(int) * BLOCK * ranks);
		MPI_Alltoall(out, BLOCK, MPI_INT, in, BLOCK, MPI_INT, MPI_COMM_WORLD);
		for (int from = 0; from < ranks; from++)
			for (int i = 0; i < BLOCK; i++)
				if (in[from * BLOCK + i] != number_of(from, rank, round, i))
					wrong("a number is wrong");
		usleep(100000);
	}
	free(out);
	free(in);
}

static void exchange_until(int rank, int ranks, const char *file)
{
	char started[4096];
	FILE *f;

	snprintf(started, sizeof started, "%s.started", file);
	for (int is_over = 0; !is_over;) {
		exchange_all(rank, ranks, 1);
		if (!rank && (f = fopen(started, "a")))
			fclose(f);
		is_over = !rank && !access(file, F_OK);
		MPI_Bcast(&is_over, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "plain";
	MPI_Group all, some;
	int rank, ranks, first[2] = { 0, 1 };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_group(MPI_COMM_WORLD, &all);
	MPI_Group_incl(all, ranks < 2 ? ranks : 2, first, &some);
	if (!strcmp(what, "dup")) {
		MPI_Comm copy;

		MPI_Comm_dup(MPI_COMM_WORLD, &copy);
		MPI_Comm_free(&copy);
	} else if (!strcmp(what, "reduce")) {
		int one = 1, sum = 0;

		MPI_Reduce(&one, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
		if (!rank && sum != ranks)
			wrong("the sum is wrong");
	} else if (!strcmp(what, "sends")) {
		send_first(rank, ranks);
	} else if (!strcmp(what, "alltoall")) {
		exchange_all(rank, ranks, ALLTOALLS);
	} else if (!strcmp(what, "until") && argc > 2) {
		exchange_until(rank, ranks, argv[2]);
	}
	MPI_Group_free(&some);
	MPI_Group_free(&all);
	if (!rank)
		print_library();
	MPI_Finalize();
	return 0;
}
