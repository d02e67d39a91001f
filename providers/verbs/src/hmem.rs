//! Accelerator memory (FI_HMEM): the dma-buf file representing it, from the accelerator's own
//! library, loaded when the first such region is registered.
use crate::provider::VERBS;
use core::ffi::{CStr, c_int, c_void};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use ofi_provider::abi::{c_enum, fi_hmem_iface};
use ofi_provider::error::{Error, Result};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Logs the result of a registration for the user.
pub(crate) fn say(line: &str) {
    ofi_provider::log!(&VERBS, WARN, MR, "{line}");
}

/// File representing accelerator memory, until this is dropped. (A region registered from it
/// stays.)
#[derive(Debug)]
pub(crate) struct Exported {
    pub(crate) fd: RawFd,
    /// Offset of the memory in the file.
    pub(crate) offset: u64,
    close: unsafe extern "C" fn(c_int) -> c_int,
}

impl Drop for Exported {
    fn drop(&mut self) {
        // SAFETY: the file is ours, and this is what ends it.
        unsafe { (self.close)(self.fd) };
    }
}

/// Exports the file of `len` bytes at an address of a device.
///
/// Fails with -FI_ENOSYS without the library of this interface. Fails with -FI_EOPNOTSUPP if it has
/// no such files or the interface is unknown here. Fails with -FI_EINVAL if it has none for this
/// memory. A log line names the reason.
pub(crate) fn export(iface: c_enum<fi_hmem_iface>, addr: usize, len: usize) -> Result<Exported> {
    match iface {
        iface if iface == fi_hmem_iface::FI_HMEM_CUDA => cuda(addr, len),
        iface if iface == fi_hmem_iface::FI_HMEM_ROCR => rocr(addr, len),
        iface => {
            say(&format!("memory of the interface {iface:?} is registered by FI_MR_DMABUF alone"));
            Err(Error::OPNOTSUPP)
        }
    }
}

/// Checks the return value of an accelerator library's call; 0 is success.
fn check(
    call: &CStr,
    ret: c_int,
    unsupported: Option<c_int>,
    (addr, len): (usize, usize),
) -> Result {
    if ret == 0 {
        return Ok(());
    }
    let call = call.to_string_lossy();
    say(&format!("no dma-buf for {len} bytes at {addr:#x}: {call} answers {ret}"));
    Err(if Some(ret) == unsupported { Error::OPNOTSUPP } else { Error::INVAL })
}

/// A library's functions of these names. It stays loaded.
fn load<const N: usize>(name: &str, calls: [&CStr; N]) -> Result<[*const c_void; N]> {
    // SAFETY: loading it runs its code, which the application that uses the accelerator
    // has run before.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        say(&format!("memory of an accelerator cannot be registered: {error}"));
        Error::NOSYS
    })?;
    let mut found = [core::ptr::null(); N];
    for (call, to) in calls.into_iter().zip(&mut found) {
        // SAFETY: the address of a function, of any type.
        let address = unsafe { library.get::<*const c_void>(call.to_bytes_with_nul()) };
        *to = *address.map_err(|error| {
            say(&format!("memory of an accelerator cannot be registered: {error}"));
            Error::OPNOTSUPP
        })?;
    }
    core::mem::forget(library);
    Ok(found)
}

/// Returns the pages containing `len` bytes at `addr`: the address of the first, and their bytes.
fn pages(addr: usize, len: usize, page: usize) -> Result<(usize, usize)> {
    let start = addr - addr % page;
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok((start, end.ok_or(Error::INVAL)? - start))
}

fn page_size() -> Result<usize> {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| Error::OTHER)
}

/// `CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr, size_t,
/// CUmemRangeHandleType, unsigned long long flags)`
type CuGetHandle = unsafe extern "C" fn(*mut c_int, u64, usize, c_int, u64) -> c_int;
/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
const CU_DMABUF: c_int = 1;
/// CUDA_ERROR_NOT_SUPPORTED
const CU_NOT_SUPPORTED: c_int = 801;

const CU_CALL: &CStr = c"cuMemGetHandleForAddressRange";

/// Loads CUDA's library, if it is there.
pub(crate) fn load_cuda() -> Result {
    cu_get_handle().map(|_| ())
}

fn cu_get_handle() -> Result<CuGetHandle> {
    static LOADED: OnceLock<Result<CuGetHandle>> = OnceLock::new();
    *LOADED.get_or_init(|| {
        let [get_handle] = load("libcuda.so.1", [CU_CALL])?;
        // SAFETY: the function of that name has that type.
        Ok(unsafe { core::mem::transmute::<*const c_void, CuGetHandle>(get_handle) })
    })
}

fn cuda(addr: usize, len: usize) -> Result<Exported> {
    let get_handle = cu_get_handle()?;
    // The accelerator's library hands out whole pages.
    let (start, bytes) = pages(addr, len, page_size()?)?;
    let mut fd = -1;
    // SAFETY: writes to the file descriptor; an address that is no device's is an error.
    let ret = unsafe { get_handle(&raw mut fd, start as u64, bytes, CU_DMABUF, 0) };
    check(CU_CALL, ret, Some(CU_NOT_SUPPORTED), (addr, len))?;
    Ok(Exported { fd, offset: (addr - start) as u64, close: libc::close })
}

/// `hsa_status_t hsa_amd_portable_export_dmabuf(const void *, size_t, int *fd,
/// uint64_t *offset)`
type HsaExport = unsafe extern "C" fn(*const c_void, usize, *mut c_int, *mut u64) -> c_int;
/// `hsa_status_t hsa_amd_portable_close_dmabuf(int fd)`
type HsaClose = unsafe extern "C" fn(c_int) -> c_int;

fn rocr(addr: usize, len: usize) -> Result<Exported> {
    const CALL: &CStr = c"hsa_amd_portable_export_dmabuf";
    static LOADED: OnceLock<Result<(HsaExport, HsaClose)>> = OnceLock::new();
    let (export, close) = (*LOADED.get_or_init(|| {
        let calls = [CALL, c"hsa_amd_portable_close_dmabuf"];
        let [export, close] = load("libhsa-runtime64.so.1", calls)?;
        // SAFETY: the functions of those names have those types.
        Ok(unsafe {
            (
                core::mem::transmute::<*const c_void, HsaExport>(export),
                core::mem::transmute::<*const c_void, HsaClose>(close),
            )
        })
    }))?;
    let (mut fd, mut offset) = (-1, 0);
    // SAFETY: writes to both; an address that is no device's is an error.
    let ret = unsafe { export(addr as *const c_void, len, &raw mut fd, &raw mut offset) };
    check(CALL, ret, None, (addr, len))?;
    Ok(Exported { fd, offset, close })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_extended_to_whole_pages() {
        for (addr, len, found) in [
            (0x1000, 0x1000, (0x1000, 0x1000)),
            (0x1fff, 1, (0x1000, 0x1000)),
            (0x1fff, 2, (0x1000, 0x2000)),
            (0x2010, 0, (0x2000, 0x1000)),
        ] {
            assert_eq!(pages(addr, len, 0x1000), Ok(found));
        }
        assert_eq!(pages(usize::MAX, 1, 0x1000), Err(Error::INVAL));
        assert_eq!(pages(usize::MAX - 8, 1, 0x1000), Err(Error::INVAL));
    }

    #[test]
    fn missing_library_and_missing_call_have_distinct_errors() {
        assert_eq!(load("libnowhere.so.77", [c"f"]).unwrap_err(), Error::NOSYS);
        assert_eq!(load("libc.so.6", [c"getpid", c"no_such_call"]).unwrap_err(), Error::OPNOTSUPP);
        assert!(load("libc.so.6", [c"getpid"]).is_ok());
    }

    #[test]
    fn interfaces_without_dmabuf_export_are_refused() {
        for iface in [
            fi_hmem_iface::FI_HMEM_ZE.into(),
            fi_hmem_iface::FI_HMEM_NEURON.into(),
            fi_hmem_iface::FI_HMEM_SYNAPSEAI.into(),
            c_enum::from_raw(77),
        ] {
            assert_eq!(export(iface, 0x1000, 64).unwrap_err(), Error::OPNOTSUPP);
        }
    }

    #[test]
    fn unsupported_operation_is_not_reported_as_invalid_argument() {
        let of = |ret| check(c"call", ret, Some(CU_NOT_SUPPORTED), (0x1000, 64));
        assert_eq!(of(0), Ok(()));
        assert_eq!(of(CU_NOT_SUPPORTED), Err(Error::OPNOTSUPP));
        assert_eq!(of(1), Err(Error::INVAL));
    }
}
