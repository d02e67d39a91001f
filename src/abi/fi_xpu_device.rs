// `rdma/fi_xpu_device.h`: declarations for code running on an accelerator.
//
// Its objects (`struct fid_xpu_*`) are declared in `fi_xpu.h`; their use by a device is specific
// to each provider.
