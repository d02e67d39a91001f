/*
 * A libcuda.so.1 without a device: what NIXL's libfabric backend is linked with,
 * which comes with the driver of a GPU alone.  Each call fails, as it does for
 * memory that is not a GPU's.
 */
enum { NOT_INITIALIZED = 3, INVALID_VALUE = 1 };

int cuCtxSetCurrent(void *context)
{
	(void)context;
	return NOT_INITIALIZED;
}
int cuDeviceGetPCIBusId(char *id, int len, int device)
{
	(void)id, (void)len, (void)device;
	return NOT_INITIALIZED;
}
int cuPointerGetAttributes(unsigned count, int *attributes, void **data, unsigned long long at)
{
	(void)count, (void)attributes, (void)data, (void)at;
	return INVALID_VALUE;
}
