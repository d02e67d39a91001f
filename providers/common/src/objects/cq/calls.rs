//! Calls of programs on completion queues: the functions of `struct fi_ops_cq`.
use super::{Cq, Look};
use crate::abi::{fi_addr_t, fi_cq_err_entry, fi_ops_cq, fid_cq};
use crate::boundary::{CReturn, end_if_cancelled, ffi_guard, ffi_guard_nocancel};
use crate::error::Error;
use crate::error_text::{copy_text, error_text};
use crate::fid::{FidObject, enosys_stub};
use crate::lock::Level;
use crate::operation::{DirectReadFn, ProgressFn};
use crate::packet_sink::{DeliverPacketFn, PacketSink};
use crate::wait::{Blocking, cancellable};
use core::ffi::{c_char, c_int, c_void};
use libc::ssize_t;
use std::sync::atomic::Ordering;

impl Cq {
    /// Calls on queues of each [level](Level::number).
    pub(super) const OPS: &'static [fi_ops_cq; Level::COUNT] = &CQ_OPS;
    /// Calls on queues of FI_PEER.
    pub(super) const PEER_OPS: &'static fi_ops_cq = &PEER_CQ_OPS;
    /// Function returned by [`RUNS_PROGRESS`](crate::reserved::RUNS_PROGRESS).
    pub(super) const RUN_PROGRESS: ProgressFn = run_progress;
    /// Function returned by [`DELIVERS_PACKETS`](crate::reserved::DELIVERS_PACKETS).
    pub(super) const READ_INTO: DirectReadFn = read_into;
}

/// Calls on queues of each [level](Level::number), without a run-time check of the level.
static CQ_OPS: [fi_ops_cq; Level::COUNT] = [
    cq_ops::<{ Level::SERIALIZED }>(),
    cq_ops::<{ Level::SHARED }>(),
    cq_ops::<{ Level::GATED }>(),
];

const fn cq_ops<const LEVEL: usize>() -> fi_ops_cq {
    fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        read: cancellable!(read::<LEVEL>: fn(*mut fid_cq, *mut c_void, usize) -> ssize_t),
        readfrom: cancellable!(readfrom::<LEVEL>: fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> ssize_t),
        readerr: Some(readerr),
        sread: cancellable!(
            sread: fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> ssize_t
        ),
        sreadfrom: cancellable!(
            sreadfrom: fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int)
                -> ssize_t
        ),
        signal: Some(signal),
        strerror: Some(cq_strerror),
        export_xpu: enosys_stub(),
    }
}

/// Calls on a queue of FI_PEER, with its entries in its owner's queue: a read of no entries makes
/// progress, and all else fails (fi_peer(3)).
static PEER_CQ_OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(progress_only),
    readfrom: enosys_stub(),
    readerr: enosys_stub(),
    sread: enosys_stub(),
    sreadfrom: enosys_stub(),
    signal: enosys_stub(),
    strerror: Some(cq_strerror),
    export_xpu: enosys_stub(),
};

// SAFETY of the entry points below: each is reachable only through the ops table
// of a queue that `open` made and `close` has not taken back, or with null.

/// Ends a cancelled thread after a read without an entry.
///
/// # Safety
/// The queue is open or null, and as for [`end_if_cancelled`].
#[inline(always)]
unsafe extern "C-unwind" fn end_if_cancelled_without_entry(cq: *mut fid_cq, answer: ssize_t) {
    if answer != Error::AGAIN.to_ret() as ssize_t {
        return;
    }
    // SAFETY: only an open queue answers that.
    unsafe {
        if !(*cq.cast::<Cq>()).spares_callers.load(Ordering::Relaxed) {
            end_if_cancelled();
        }
    }
}

pub(super) unsafe extern "C-unwind" fn read<const LEVEL: usize>(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
) -> ssize_t {
    // SAFETY: see above; the buffer is the caller's.
    unsafe { read_fast::<LEVEL>(cq, buf, count, std::ptr::null_mut()) }
}

pub(super) unsafe extern "C-unwind" fn readfrom<const LEVEL: usize>(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
) -> ssize_t {
    // SAFETY: see above; the buffers are the caller's.
    unsafe { read_fast::<LEVEL>(cq, buf, count, src) }
}

/// Fast path of the only requested or available entry: saves the stack frame, since all calls and
/// unwinding are in the function called last.
///
/// # Safety
/// The queue is open or null; the buffers are as [`Cq::read_one`] requires.
#[inline(always)]
unsafe fn read_fast<const LEVEL: usize>(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
) -> ssize_t {
    // SAFETY: by this function's contract.
    unsafe {
        if cq.is_null() {
            return Error::INVAL.to_ret() as ssize_t;
        }
        match (*cq.cast::<Cq>()).read_one::<LEVEL>(buf, count, src) {
            Look::Took => 1,
            Look::Empty => read_slow::<LEVEL, true>(cq, buf, count, src),
            Look::Else => read_slow::<LEVEL, false>(cq, buf, count, src),
            Look::Wake { took } => wake_and_read(cq, buf, count, src, took),
        }
    }
}

/// Wakes the thread waiting for the queue's lock, then continues normally.
///
/// # Safety
/// As for [`read_slow`].
#[cold]
unsafe extern "C-unwind" fn wake_and_read(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
    took: bool,
) -> ssize_t {
    // SAFETY: by this function's contract.
    unsafe {
        (*cq.cast::<Cq>()).ring.wake_waiter();
        if took { 1 } else { read_slow::<{ Level::SHARED }, false>(cq, buf, count, src) }
    }
}

/// Makes progress if the queue is empty, and reads. `EMPTY`: it is known to be empty. Otherwise
/// there is more work than in [`read_fast`]: several entries, an error, or a read of none.
///
/// # Safety
/// The queue is open; the buffers are as [`Cq::read_one`] requires. No frame here, nor in the
/// program's call to it, has anything to clean up.
#[inline(never)]
unsafe extern "C-unwind" fn read_slow<const LEVEL: usize, const EMPTY: bool>(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
) -> ssize_t {
    let answer = ffi_guard_nocancel("fi_cq_read", || {
        // SAFETY: by this function's contract.
        unsafe {
            let cq = &*cq.cast::<Cq>();
            if !EMPTY {
                cq.look_for(count);
                return cq.read_all(buf, count, src).into_c();
            }
            cq.progress.get().progress();
            match cq.read_one::<LEVEL>(buf, count, src) {
                Look::Took => return 1,
                Look::Empty => return Error::AGAIN.to_ret() as ssize_t,
                Look::Wake { took } => {
                    cq.ring.wake_waiter();
                    if took {
                        return 1;
                    }
                }
                Look::Else => {}
            }
            cq.read_all(buf, count, src).into_c()
        }
    });
    // SAFETY: by this function's contract.
    unsafe { end_if_cancelled_without_entry(cq, answer) };
    answer
}

unsafe extern "C" fn progress_only(cq: *mut fid_cq, _buf: *mut c_void, count: usize) -> ssize_t {
    ffi_guard_nocancel("fi_cq_read", || -> ssize_t {
        // SAFETY: see above.
        let cq = unsafe { cq.cast::<Cq>().as_ref() };
        match cq {
            None => Error::INVAL.to_ret() as ssize_t,
            Some(_) if count != 0 => Error::NOSYS.to_ret() as ssize_t,
            Some(cq) => {
                cq.progress.get().progress();
                0
            }
        }
    })
}

/// [`Cq::RUN_PROGRESS`]: progress, and nothing else of a read.
unsafe extern "C" fn run_progress(who: *const c_void) {
    ffi_guard_nocancel("a turn for another provider", || -> ssize_t {
        // SAFETY: see above; any holder of this function has the queue open.
        unsafe { (*who.cast::<Cq>()).progress.get().progress() };
        0
    });
}

/// [`Cq::READ_INTO`]: a read of an empty queue makes progress with the packet sink.
unsafe extern "C" fn read_into(
    who: *const c_void,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
    deliver: DeliverPacketFn,
    context: *mut c_void,
) -> ssize_t {
    ffi_guard_nocancel("a read of another provider", || -> ssize_t {
        // SAFETY: see above; any holder of this function has the queue open, and the buffers and the
        // sink are its own.
        unsafe {
            let cq = &*who.cast::<Cq>();
            if cq.len() == 0 {
                cq.progress.get().progress_into(&PacketSink::new(who, deliver, context));
            }
            cq.read_all(buf, count, src).into_c()
        }
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> ssize_t {
    ffi_guard("fi_cq_readerr", || {
        // SAFETY: see above; the entry is the caller's.
        unsafe { Cq::from_c(cq)?.read_error(out) }
    })
}

unsafe extern "C-unwind" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> ssize_t {
    // SAFETY: see above.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C-unwind" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
    _cond: *const c_void,
    timeout: c_int,
) -> ssize_t {
    let mut call = Blocking::new(timeout);
    loop {
        let answer = ffi_guard("fi_cq_sread", || {
            // SAFETY: see above; the buffers are the caller's.
            unsafe { Cq::from_c(cq)?.sread(buf, count, src, &mut call) }
        });
        // SAFETY: as in `read`; the queue is not closed while it is read.
        if !unsafe { call.can_continue() } {
            return answer;
        }
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    ffi_guard("fi_cq_signal", || {
        // SAFETY: see above.
        unsafe { Cq::from_c(cq) }?.wait()?.ok_or(Error::NOSYS)?.signal();
        Ok(())
    })
}

unsafe extern "C" fn cq_strerror(
    cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: see above.
    let cq = unsafe { Cq::from_c(cq) };
    let own = cq.ok().and_then(|cq| cq.progress.get().error_text(prov_errno));
    // SAFETY: `buf` is null or has `len` bytes, as the caller says.
    unsafe {
        match own {
            Some(text) if buf.is_null() || len == 0 => text.as_ptr(),
            Some(text) => copy_text(text.to_bytes(), buf, len),
            None => error_text(prov_errno, buf, len),
        }
    }
}
