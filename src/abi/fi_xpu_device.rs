//! `rdma/fi_xpu_device.h`: What code running on an accelerator includes.
//!
//! The objects it works on (`struct fid_xpu_*`) are declared in `fi_xpu.h`; how
//! a device uses them is each provider's own.
