/*
 * Common parts of the examples: the command line, errors, completions, and a socket for the exchange of addresses.
 * Each example contains all other calls of libfabric.
 */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

/* API version of these programs. Every later library offers it. */
#define API FI_VERSION(1, 14)

/* Milliseconds without a completion after which a program gives up. */
#define TIMEOUT 60000

/* ---- errors -------------------------------------------------------------------------------- */

static inline void fail(const char *call, long result)
{
	fprintf(stderr, "%s: %s\n", call, fi_strerror((int) -result));
	exit(1);
}

/* Calls libfabric, and ends the program with the reason if the call fails. */
#define TRY(call) \
	do { \
		long result_ = (long) (call); \
		if (result_ < 0) \
			fail(#call, result_); \
	} while (0)

/* Starts an operation. -FI_EAGAIN: the provider has no free space; reading the queue makes progress. */
#define POST(cq, call) \
	do { \
		long result_; \
		while ((result_ = (long) (call)) == -FI_EAGAIN) \
			(void) fi_cq_read((cq), NULL, 0); \
		if (result_ < 0) \
			fail(#call, result_); \
	} while (0)

/* ---- the command line ---------------------------------------------------------------------- */

struct options {
	const char *provider;		/* -p */
	const char *host, *port;	/* of the other end; NULL in the first one */
};

static inline void print_usage(FILE *out, const char *program, const char *purpose)
{
	fprintf(out, "usage: %s [-h] [-p PROVIDER] [HOST PORT]\n\n"
		"%s\n\n"
		"Start it without HOST first. It prints its port; start the other end with its host and this port.\n"
		"  -p PROVIDER   tcp (the default), shm, 'tcp;ofi_rxm' ...: 'fi_info -l' lists them\n"
		"  -h            this text\n", program, purpose);
}

static inline struct options parse(int argc, char **argv, const char *purpose)
{
	struct options options = { "tcp", NULL, NULL };
	int option;

	while ((option = getopt(argc, argv, "hp:")) != -1) {
		switch (option) {
		case 'p':
			options.provider = optarg;
			break;
		case 'h':
			print_usage(stdout, argv[0], purpose);
			exit(0);
		default:
			print_usage(stderr, argv[0], purpose);
			exit(2);
		}
	}
	if (argc - optind == 2) {
		options.host = argv[optind];
		options.port = argv[optind + 1];
	} else if (argc != optind) {
		print_usage(stderr, argv[0], purpose);
		exit(2);
	}
	return options;
}

/* ---- the control connection ---------------------------------------------------------------- */

/*
 * Connects both ends by an ordinary socket. Addresses and keys of libfabric have to reach the peer on some way outside
 * of libfabric; jobs of MPI use their launcher for it.
 */
static inline int connect_control(const struct options *options)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found, *at;
	struct sockaddr_storage address;
	socklen_t len = sizeof address;
	char port[32];
	int r, listener, control = -1;

	hints.ai_flags = options->host ? 0 : AI_PASSIVE;
	r = getaddrinfo(options->host, options->host ? options->port : "0", &hints, &found);
	if (r) {
		fprintf(stderr, "%s: %s\n", options->host ? options->host : "the own host", gai_strerror(r));
		exit(1);
	}
	if (options->host) {
		for (at = found; at && control < 0; at = at->ai_next) {
			control = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
			if (control >= 0 && connect(control, at->ai_addr, at->ai_addrlen)) {
				r = errno;
				close(control);
				errno = r;
				control = -1;
			}
		}
	} else {
		listener = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
		if (listener >= 0 && !bind(listener, found->ai_addr, found->ai_addrlen) && !listen(listener, 1) &&
		    !getsockname(listener, (struct sockaddr *) &address, &len) &&
		    !getnameinfo((struct sockaddr *) &address, len, NULL, 0, port, sizeof port, NI_NUMERICSERV)) {
			printf("waiting at port %s\n", port);
			fflush(stdout);
			control = accept(listener, NULL, NULL);
			close(listener);
		}
	}
	freeaddrinfo(found);
	if (control < 0) {
		perror(options->host ? options->host : "control connection");
		exit(1);
	}
	return control;
}

/* Sends bytes to the other end, and receives as many of it. Both ends call it: it is a barrier as well. */
static inline void exchange(int control, const void *mine, void *theirs, size_t size)
{
	size_t done = 0;
	ssize_t n;

	if (send(control, mine, size, MSG_NOSIGNAL) != (ssize_t) size) {
		perror("control connection");
		exit(1);
	}
	while (done < size) {
		n = recv(control, (char *) theirs + done, size - done, 0);
		if (n <= 0) {
			fprintf(stderr, "control connection: the other end has closed it\n");
			exit(1);
		}
		done += (size_t) n;
	}
}

static inline void barrier(int control)
{
	char mine = 0, theirs;

	exchange(control, &mine, &theirs, 1);
}

/* An address of libfabric. Its format depends on the provider. */
struct address {
	size_t len;
	char bytes[256];
};

/* ---- completions --------------------------------------------------------------------------- */

/*
 * An operation in flight. The provider may use the context until the completion, and the completion names it, so that
 * the program finds its own data behind it.
 */
struct operation {
	struct fi_context2 context;
	int is_complete;
	struct fi_cq_tagged_entry entry;
};

/* Waits for one completion, of any operation. */
static inline struct fi_cq_tagged_entry read_completion(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t n;

	do
		n = fi_cq_sread(cq, &entry, 1, NULL, TIMEOUT);
	while (n == -FI_EINTR);
	if (n == -FI_EAVAIL) {		/* an operation has failed */
		TRY(fi_cq_readerr(cq, &error, 0));
		fail("operation", -error.err);
	}
	if (n == -FI_EAGAIN) {
		fprintf(stderr, "no completion within %d s\n", TIMEOUT / 1000);
		exit(1);
	}
	if (n < 0)
		fail("fi_cq_sread", n);
	return entry;
}

/* Waits for one operation. Completions arrive in any order, so those of others are recorded as well. */
static inline void wait_for(struct fid_cq *cq, struct operation *operation)
{
	struct fi_cq_tagged_entry entry;
	struct operation *completed;

	while (!operation->is_complete) {
		entry = read_completion(cq);
		completed = entry.op_context;
		if (completed) {
			completed->entry = entry;
			completed->is_complete = 1;
		}
	}
}

#endif
