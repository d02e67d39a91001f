//! Completion queues, as programs open and read them.
use crate::oracle::ReportedEntry;
use ofi_provider::abi::{
    fi_addr_t, fi_cq_attr, fi_cq_err_entry, fi_cq_format, fi_cq_tagged_entry, fi_eq_cm_entry,
    fi_eq_err_entry, fid_cq, fid_eq,
};
use ofi_provider::cq::{Cq, OnDomain};
use ofi_provider::eq::Eq;
use ofi_provider::error::Error;
use ofi_provider::fid::FidObject;
use ofi_provider::lock::Level;
use ofi_provider::object::Parent;
use ofi_provider::testing::IdleProgress;
use std::sync::Arc;

pub(crate) fn parent() -> Parent {
    Parent::new(Arc::new(()), Arc::default())
}

pub(crate) fn queue(size: usize) -> Arc<Cq> {
    let domain = OnDomain {
        parent: parent(),
        // Nothing happens by itself: the simulator drives the engines.
        progress: Arc::new(IdleProgress),
        api_version: ofi_provider::info::API_VERSION,
        level: Level::Serialized,
        on_blocking: Box::new(|_| Ok(())),
        later: None,
    };
    // SAFETY: all zeros are the defaults of an attribute structure.
    let mut attr = unsafe { std::mem::zeroed::<fi_cq_attr>() };
    (attr.size, attr.format) = (size, fi_cq_format::FI_CQ_FORMAT_TAGGED.into());
    // SAFETY: neither a peer nor a wait set.
    unsafe { Cq::open(domain, Some(&attr), std::ptr::null_mut()) }.unwrap()
}

/// Returns the next event of a queue, none for a failure, and the number of the event's endpoint.
pub(crate) fn next_event(eq: &Arc<Eq>) -> Option<(Option<u32>, usize)> {
    let c: *mut fid_eq = eq.as_c();
    // SAFETY: an open queue and its table; the buffers have room for what is read.
    unsafe {
        let ops = &*(*c).ops;
        let (mut event, mut buf) = (0, [0_u64; 64]);
        let n = ops.read.unwrap()(c, &raw mut event, buf.as_mut_ptr().cast(), 512, 0);
        if n >= 0 {
            return Some((Some(event), (*buf.as_ptr().cast::<fi_eq_cm_entry>()).fid as usize));
        }
        if n != -Error::AVAIL.code() as isize {
            return None;
        }
        let mut entry = std::mem::zeroed::<fi_eq_err_entry>();
        assert!(ops.readerr.unwrap()(c, &raw mut entry, 0) > 0);
        Some((None, entry.fid as usize))
    }
}

/// Returns the next entry of a queue, read by the calls of programs.
pub(crate) fn read_queue(cq: &Arc<Cq>) -> Option<ReportedEntry> {
    let c: *mut fid_cq = cq.as_c();
    // SAFETY: an open queue and its table; the buffers have room for one entry of its format.
    unsafe {
        let ops = &*(*c).ops;
        let mut entry = std::mem::zeroed::<fi_cq_tagged_entry>();
        let mut src: fi_addr_t = 0;
        let n = ops.readfrom.unwrap()(c, (&raw mut entry).cast(), 1, &raw mut src);
        if n == 1 {
            return Some(ReportedEntry {
                context: entry.op_context as usize,
                flags: entry.flags,
                len: entry.len,
                buf: entry.buf as usize,
                data: entry.data,
                tag: entry.tag,
                src,
                error: None,
            });
        }
        if n != -Error::AVAIL.code() as isize {
            return None;
        }
        let mut entry = std::mem::zeroed::<fi_cq_err_entry>();
        assert_eq!(ops.readerr.unwrap()(c, &raw mut entry, 0), 1);
        Some(ReportedEntry {
            context: entry.op_context as usize,
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf as usize,
            data: entry.data,
            tag: entry.tag,
            src: entry.src_addr,
            error: Some((Error::from_code(entry.err), entry.olen)),
        })
    }
}
