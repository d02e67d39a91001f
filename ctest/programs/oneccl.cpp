// Collectives of oneCCL, their results checked. The first rank writes the address of its key-value store to a file.
//   oneccl RANK RANKS FILE
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <oneapi/ccl.hpp>
#include <string>
#include <unistd.h>
#include <vector>

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	const int rank = atoi(argv[1]), ranks = atoi(argv[2]);
	const std::string file = argv[3];

	alarm(100);
	try {
		ccl::init();
		ccl::shared_ptr_class<ccl::kvs> kvs;
		ccl::kvs::address_type address;
		if (rank == 0) {
			kvs = ccl::create_main_kvs();
			address = kvs->get_address();
			std::ofstream(file + ".new", std::ios::binary).write(reinterpret_cast<char *>(address.data()), address.size());
			if (rename((file + ".new").c_str(), file.c_str()))
				return 2;
		} else {
			while (access(file.c_str(), R_OK))
				usleep(10000);
			std::ifstream(file, std::ios::binary).read(reinterpret_cast<char *>(address.data()), address.size());
			kvs = ccl::create_kvs(address);
		}
		auto comm = ccl::create_communicator(ranks, rank, kvs);
		for (size_t count : {1, 1000, 1000000}) {
			std::vector<int> from(count), to(count, -1), all(count * ranks, -1);
			for (size_t i = 0; i < count; i++)
				from[i] = rank + int(i);
			ccl::allreduce(from.data(), to.data(), count, ccl::reduction::sum, comm).wait();
			ccl::allgatherv(from.data(), count, all.data(), std::vector<size_t>(ranks, count), comm).wait();
			for (size_t i = 0; i < count; i++) {
				if (to[i] != ranks * int(i) + ranks * (ranks - 1) / 2) {
					fprintf(stderr, "sum %zu of %zu is %d\n", i, count, to[i]);
					return 1;
				}
				for (int of = 0; of < ranks; of++)
					if (all[of * count + i] != of + int(i)) {
						fprintf(stderr, "word %zu of %zu, rank %d, is %d\n", i, count, of, all[of * count + i]);
						return 1;
					}
			}
		}
		ccl::barrier(comm).wait();
	} catch (const std::exception &error) {
		fprintf(stderr, "%s\n", error.what());
		return 1;
	}
	std::ifstream maps("/proc/self/maps");
	for (std::string line; std::getline(maps, line);)
		if (line.find("libfabric.so") != std::string::npos) {
			printf("library: %s\n", line.substr(line.find('/')).c_str());
			break;
		}
	return 0;
}
