//! The calls of an endpoint but for binding and transfers: fi_control, fi_cancel, options, names and
//! connections (fi_endpoint(3), fi_cm(3)).
use super::fid::EpFid;
use crate::abi::{self, FI_ADDR_STR, fi_alias, fi_ops_cm, fi_ops_ep, fid, fid_ep, fid_t};
use crate::addr;
use crate::api::join;
use crate::api::traits::Endpoint;
use crate::boundary::{CReturn, ffi_guard, ffi_guard_if_memory, ffi_guard_nocancel};
use crate::cq::Context;
use crate::error::{Error, Result};
use crate::fid::{FidObject, enosys_stub};
use crate::heap;
use crate::operation::ImmediateSendFns;
use crate::reserved::SENDS_AT_ONCE;
use crate::scoped_buf::{bytes, copy_out};
use core::ffi::{c_int, c_void};
use libc::ssize_t;
impl<E: Endpoint> EpFid<E> {
    pub(crate) const EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: Some(cancel::<E>),
        getopt: Some(getopt::<E>),
        setopt: Some(setopt::<E>),
        tx_ctx: enosys_stub(),
        rx_ctx: enosys_stub(),
        rx_size_left: Some(rx_size_left::<E>),
        tx_size_left: Some(tx_size_left::<E>),
        export_xpu: enosys_stub(),
    };

    /// A shared receive context receives and does nothing else.
    pub(super) const SRX_EP_OPS: &'static fi_ops_ep =
        &fi_ops_ep { rx_size_left: enosys_stub(), tx_size_left: enosys_stub(), ..*Self::EP_OPS };

    pub(super) const CM_OPS: &'static fi_ops_cm = &fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: Some(setname::<E>),
        getname: Some(getname::<E>),
        getpeer: Some(getpeer::<E>),
        connect: Some(connect::<E>),
        listen: enosys_stub(),
        accept: Some(accept::<E>),
        reject: enosys_stub(),
        shutdown: Some(shutdown::<E>),
        join: Some(join::join::<E>),
    };
}

// SAFETY of the entry points below: each is reachable only through the ops
// tables of an endpoint of the same `E` that is open, or with null.

pub(super) unsafe extern "C" fn control<E: Endpoint>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    ffi_guard("fi_control(ep)", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        match command {
            abi::FI_ENABLE => {
                heap::ready()?;
                ep.enable()
            }
            abi::FI_GETOPSFLAG | abi::FI_SETOPSFLAG => {
                // SAFETY: both pass a pointer to the flags (fi_endpoint(3)).
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(Error::INVAL)?;
                ep.op_flags(flags, command == abi::FI_SETOPSFLAG)
            }
            abi::FI_GET_FD => {
                // SAFETY: FI_GET_FD passes a pointer to an int (fi_control(3)).
                let to = unsafe { arg.cast::<c_int>().as_mut() }.ok_or(Error::INVAL)?;
                *to = ep.inner().fd()?;
                Ok(())
            }
            abi::FI_ALIAS => {
                // SAFETY: FI_ALIAS passes a struct fi_alias (fi_endpoint(3)).
                let alias = unsafe { arg.cast::<fi_alias>().as_ref() }.ok_or(Error::INVAL)?;
                if alias.fid.is_null() {
                    return Err(Error::INVAL);
                }
                heap::ready()?;
                let ep = ep.alias(alias.flags)?;
                // SAFETY: checked above.
                unsafe { alias.fid.write(ep.into_c().cast()) };
                Ok(())
            }
            SENDS_AT_ONCE => {
                // SAFETY: the command passes room for the calls.
                let to = unsafe { arg.cast::<Option<ImmediateSendFns>>().as_mut() };
                *to.ok_or(Error::INVAL)? = Some(ep.sends_at_once()?);
                Ok(())
            }
            // SAFETY: `arg` is what the command asks for, as fi_control(3) says.
            _ => unsafe { ep.inner().control(command, arg) },
        }
    })
}

unsafe extern "C" fn cancel<E: Endpoint>(fid: fid_t, context: *mut c_void) -> ssize_t {
    let cancel = || -> Result {
        // SAFETY: see above.
        let shared = &unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?.shared;
        if shared.cancel_triggered(context) {
            return Ok(());
        }
        shared.inner.cancel(Context(context), false)
    };
    // Without memory as well.
    ffi_guard_nocancel("fi_cancel", || cancel().into_c() as ssize_t)
}

unsafe extern "C" fn getopt<E: Endpoint>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard("fi_getopt", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        if value.is_null() || len.is_null() {
            return Err(Error::INVAL);
        }
        let mut bytes = [0; 64];
        let n = ep.inner().getopt(name, &mut bytes)?;
        // SAFETY: the caller gives `*len` bytes at `value`.
        if unsafe { copy_out(&bytes[..n], value, len) } { Ok(()) } else { Err(Error::TOOSMALL) }
    })
}

unsafe extern "C" fn setopt<E: Endpoint>(
    fid: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard("fi_setopt", || {
        // SAFETY: see above.
        let ep = unsafe { EpFid::<E>::from_c(fid.cast::<fid_ep>()) }?;
        if level != abi::FI_OPT_ENDPOINT {
            return Err(Error::NOPROTOOPT);
        }
        if value.is_null() {
            return Err(Error::INVAL);
        }
        // SAFETY: the caller gives `len` bytes at `value`.
        ep.inner().setopt(name, unsafe { bytes(value, len) })
    })
}

unsafe extern "C" fn rx_size_left<E: Endpoint>(ep: *mut fid_ep) -> ssize_t {
    // SAFETY: see above.
    ffi_guard("fi_rx_size_left", || unsafe { EpFid::<E>::from_c(ep) }?.inner().size_left(false))
}

unsafe extern "C" fn tx_size_left<E: Endpoint>(ep: *mut fid_ep) -> ssize_t {
    // SAFETY: see above.
    ffi_guard("fi_tx_size_left", || unsafe { EpFid::<E>::from_c(ep) }?.inner().size_left(true))
}

unsafe extern "C" fn setname<E: Endpoint>(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    ffi_guard("fi_setname", || {
        // SAFETY: see above; the caller gives `len` bytes at `addr`.
        unsafe {
            let ep = EpFid::<E>::from_c(fid.cast::<fid_ep>())?;
            ep.inner().setname(bytes(addr, len))
        }
    })
}

/// Copies an address to the caller's buffer, as fi_getname and fi_getpeer do.
///
/// # Safety
/// `len` is null or points to the number of bytes of `addr`.
pub(crate) unsafe fn give_name(name: &[u8], addr: *mut c_void, len: *mut usize) -> Result {
    if len.is_null() {
        return Err(Error::INVAL);
    }
    // SAFETY: by this function's contract.
    if unsafe { copy_out(name, addr, len) } { Ok(()) } else { Err(Error::TOOSMALL) }
}

unsafe extern "C" fn getname<E: Endpoint>(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    ffi_guard("fi_getname", || {
        // SAFETY: see above; the buffer is the caller's.
        unsafe {
            let name = EpFid::<E>::from_c(fid.cast::<fid_ep>())?.inner().getname()?;
            give_name(&name, addr, len)
        }
    })
}

unsafe extern "C" fn getpeer<E: Endpoint>(
    ep: *mut fid_ep,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    ffi_guard("fi_getpeer", || {
        // SAFETY: see above; the buffer is the caller's.
        unsafe {
            let name = EpFid::<E>::from_c(ep)?.inner().getpeer()?;
            give_name(&name, addr, len)
        }
    })
}

unsafe extern "C" fn connect<E: Endpoint>(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    param_len: usize,
) -> c_int {
    ffi_guard_if_memory("fi_connect", || {
        // SAFETY: see above; `addr` is null or an address of the domain's format, `param` has
        // `param_len` bytes.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            let addr = match ep.shared.ground.addr_format {
                _ if addr.is_null() => None,
                format if format == FI_ADDR_STR as u32 => {
                    Some(addr::string_or_bytes(format, addr)?)
                }
                _ => Some(addr::bytes_at(addr)?),
            };
            ep.enable()?;
            ep.inner().connect(addr, bytes(param, param_len))
        }
    })
}

unsafe extern "C" fn accept<E: Endpoint>(
    ep: *mut fid_ep,
    param: *const c_void,
    param_len: usize,
) -> c_int {
    ffi_guard_if_memory("fi_accept", || {
        // SAFETY: see above; `param` has `param_len` bytes.
        unsafe {
            let ep = EpFid::<E>::from_c(ep)?;
            ep.enable()?;
            ep.inner().accept(bytes(param, param_len))
        }
    })
}

unsafe extern "C" fn shutdown<E: Endpoint>(ep: *mut fid_ep, flags: u64) -> c_int {
    ffi_guard("fi_shutdown", || {
        if flags != 0 {
            return Err(Error::BADFLAGS);
        }
        // SAFETY: see above.
        unsafe { EpFid::<E>::from_c(ep) }?.inner().shutdown()
    })
}
