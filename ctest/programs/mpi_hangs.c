/*
 * MPI programs that hang on purpose, for ctest/programs/mpi_doctor: what fi_doctor says of them is compared
 * there.
 *
 *   mpi_hangs CASE DIR
 *
 * Once a rank hangs, its process number is in DIR/pid.RANK. It ends after five minutes: beside much load the start alone takes one.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[4 << 20], out[4 << 20];
static int rank, ranks;
static const char *dir;

static void hangs(void)
{
	char part[512], whole[512];
	FILE *f;

	snprintf(part, sizeof(part), "%s/.pid.%d", dir, rank);
	snprintf(whole, sizeof(whole), "%s/pid.%d", dir, rank);
	f = fopen(part, "w");
	if (!f || fprintf(f, "%d\n", (int)getpid()) < 0 || fclose(f) || rename(part, whole))
		MPI_Abort(MPI_COMM_WORLD, 1);
}

static void rest_a_little(void)
{
	struct timespec t = { 0, 2000000 };

	nanosleep(&t, NULL);
}

/* MPI waits without a pause, which takes the processor from the tests beside this one: what never ends is waited
   for with pauses instead. */
static void wait_for(MPI_Request request)
{
	for (int is_over = 0; !is_over; rest_a_little())
		MPI_Test(&request, &is_over, MPI_STATUS_IGNORE);
}

static void compute(double seconds)
{
	double begin = MPI_Wtime();

	while (MPI_Wtime() - begin < seconds)
		;
}

/* For a message that never comes. */
static void receive(int from, int tag)
{
	MPI_Request request;

	MPI_Irecv(buf, sizeof(buf), MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
	wait_for(request);
}

/* Until that is received. */
static void send_to(int to, int len)
{
	MPI_Request request;

	MPI_Issend(out, len, MPI_BYTE, to, 5, MPI_COMM_WORLD, &request);
	wait_for(request);
}

/* Every rank has exchanged a message with every other one. */
static void greet(void)
{
	for (int other = 0; other < ranks; other++)
		if (other != rank)
			MPI_Sendrecv(out, 8, MPI_BYTE, other, 99, buf, 8, MPI_BYTE, other, 99, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
}

/* Looks at its queues, and receives nothing. */
static void poll_on(void)
{
	int flag;

	for (;; rest_a_little())
		MPI_Iprobe(MPI_ANY_SOURCE, 1234, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
	MPI_Request request;
	const char *name;
	int next;

	alarm(300);
	MPI_Init(&argc, &argv);
	if (argc != 3)
		MPI_Abort(MPI_COMM_WORLD, 2);
	name = argv[1];
	dir = argv[2];
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	next = (rank + 1) % ranks;
	if (!strcmp(name, "firewall")) {
		/* Nothing reaches the other rank, and most hang in MPI_Init already. */
		hangs();
		if (rank == 0)
			MPI_Send(out, 64, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
		receive(!rank, 5);
	}
	greet();

	if (!strcmp(name, "tag")) {
		if (rank == 0)
			MPI_Send(out, 64, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
		hangs();
		if (rank == 1)
			receive(0, 6);
	} else if (!strcmp(name, "source")) {
		if (rank == 0)
			MPI_Send(out, 64, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
		hangs();
		if (rank == 1)
			receive(2, 5);
	} else if (!strcmp(name, "no-receive")) {
		hangs();
		if (rank == 0)
			send_to(1, 64);
	} else if (!strcmp(name, "nothing-sent")) {
		hangs();
		if (rank == 0)
			receive(1, 5);
	} else if (!strcmp(name, "stopped")) {
		hangs();
		if (rank == 1)
			raise(SIGSTOP);
		receive(1, 5);
	} else if (!strcmp(name, "computes")) {
		hangs();
		if (rank == 1)
			compute(100);
		receive(1, 5);
	} else if (!strcmp(name, "deadlock") || !strcmp(name, "ring")) {
		hangs();
		receive(next, 5);
	} else if (!strcmp(name, "both-send")) {
		hangs();
		send_to(next, sizeof(out));
	} else if (!strcmp(name, "barrier")) {
		/* The last one never comes. */
		hangs();
		if (rank == ranks - 1)
			compute(100);
		MPI_Ibarrier(MPI_COMM_WORLD, &request);
		wait_for(request);
	} else if (!strcmp(name, "healthy") || !strcmp(name, "computing")) {
		hangs();
		for (int round_number = 0;; round_number++) {
			MPI_Sendrecv(out, 8192, MPI_BYTE, next, 7, buf, 8192, MPI_BYTE, (rank + ranks - 1) % ranks, 7,
				     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Allreduce(out, buf, 16, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
			/* One computes while the others wait, each in its turn. */
			if (!strcmp(name, "computing") && round_number % ranks == rank)
				compute(0.8);
		}
	} else {
		fprintf(stderr, "no such case: %s\n", name);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	poll_on();
}
