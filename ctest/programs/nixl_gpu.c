/*
 * Preloaded under NIXL 1.5.1, which counts no GPU of a host with the provider tcp and then refuses memory of one: the
 * function that logs its topology sets the number of NVIDIA's devices to 1 instead, at its place in the object of that
 * release.
 */
enum { NVIDIA_DEVICES = 0x74 };

void _ZNK21nixlLibfabricTopology17printTopologyInfoEv(char *topology);
void _ZNK21nixlLibfabricTopology17printTopologyInfoEv(char *topology)
{
	*(int *)(topology + NVIDIA_DEVICES) = 1;
}
