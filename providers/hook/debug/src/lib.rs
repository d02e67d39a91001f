//! The hook provider `debug`: logs, at level trace, the attributes of opened objects, their
//! bindings and the results of calls, and counts the outstanding operations of each endpoint
//! (fi_hook(7)).
//!
//! Operations are matched with completions by queue. If several endpoints share one, or completions
//! are not requested, the numbers count the posted operations.
use core::fmt;
use ofi_hook::abi::*;
use ofi_hook::error::{Result, strerror};
use ofi_hook::log::{level, subsys};
use ofi_hook::{Args, Hook, HookCall, HookCompletion, HookLog, HookOp, OpenAttr, text};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Incomplete operations of an endpoint.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
struct Outstanding {
    tx: usize,
    rx: usize,
}

/// Endpoints and queues by their addresses in the program.
#[derive(Default)]
struct DebugState {
    endpoints: HashMap<usize, Outstanding>,
    /// Endpoints writing to a queue, with the direction of their completions.
    queues: HashMap<usize, Vec<(usize, u64)>>,
}

impl DebugState {
    fn post(&mut self, endpoint: usize, direction: u64) -> Outstanding {
        let outstanding = self.endpoints.entry(endpoint).or_default();
        match direction {
            FI_SEND => outstanding.tx += 1,
            _ => outstanding.rx += 1,
        }
        *outstanding
    }

    /// Takes a completion into account, if only one endpoint can have it.
    fn complete(&mut self, queue: usize, direction: u64) -> Option<(usize, Outstanding)> {
        let mut writers =
            self.queues.get(&queue)?.iter().filter(|(_, flags)| flags & direction != 0);
        let (Some((endpoint, _)), None) = (writers.next(), writers.next()) else { return None };
        let outstanding = self.endpoints.get_mut(endpoint)?;
        match direction {
            FI_SEND => outstanding.tx = outstanding.tx.saturating_sub(1),
            _ => outstanding.rx = outstanding.rx.saturating_sub(1),
        }
        Some((*endpoint, *outstanding))
    }

    /// Returns the outstanding operations of a closed object.
    fn forget(&mut self, object: usize) -> Option<Outstanding> {
        self.queues.remove(&object);
        for writers in self.queues.values_mut() {
            writers.retain(|(endpoint, _)| *endpoint != object);
        }
        self.endpoints.remove(&object)
    }
}

struct Debug {
    log: HookLog,
    state: Mutex<DebugState>,
}

/// Returns the direction of an operation: `None` for operations without a completion.
fn direction(op: HookOp) -> Option<u64> {
    use HookOp::*;
    match op {
        Recv | Recvv | Recvmsg | Trecv | Trecvv | Trecvmsg => Some(FI_RECV),
        Inject | Injectdata | Tinject | Tinjectdata | InjectWrite | InjectWritedata
        | InjectAtomic => None,
        _ => Some(FI_SEND),
    }
}

/// Returns the direction of a completion: `None` for actions of a peer.
fn completed(flags: u64) -> Option<u64> {
    if flags & FI_RECV != 0 {
        return Some(FI_RECV);
    }
    let remote = flags & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
    (!remote && flags & (FI_SEND | FI_READ | FI_WRITE) != 0).then_some(FI_SEND)
}

impl Debug {
    fn state(&self) -> std::sync::MutexGuard<'_, DebugState> {
        // A panic between two updates leaves numbers that are off, no more.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs the result of a call, except for results repeated any number of times.
    fn exit(&self, call: &HookCall, subsys: fi_log_subsys, ret: isize, text: bool) {
        if ret == -(FI_EAGAIN as isize) {
            return;
        }
        let why = Why(ret, text);
        self.log.trace(
            subsys,
            "hook_debug_trace_exit",
            format_args!("fi_{} (fid: {:p}) returned: {ret}{why}", call.op.name(), call.object),
        );
    }

    fn completion(&self, call: &HookCall, it: &HookCompletion) {
        if self.log.enabled(level::TRACE, subsys::CQ) {
            let line = |text: fmt::Arguments<'_>| {
                self.log.trace(subsys::CQ, "hook_debug_cq_entry_log", text)
            };
            line(format_args!("cq_entry:"));
            line(format_args!("\top_context: {}", text::Pointer(it.context)));
            if let Some(flags) = it.flags {
                line(format_args!("\tflags: {}", names(flags)));
                if let (Some(len), true) = (it.len, flags & FI_RECV != 0) {
                    line(format_args!("\tlen: {len}"));
                }
                if let (Some((_, data)), true) = (it.buf_data, flags & FI_REMOTE_CQ_DATA != 0) {
                    line(format_args!("\tdata: {data:#x}"));
                }
                if let (Some(tag), true) = (it.tag, flags & FI_TAGGED != 0) {
                    line(format_args!("\ttag: {tag:x}"));
                }
            }
        }
        self.complete(call, it.flags.unwrap_or(0));
    }

    fn complete(&self, call: &HookCall, flags: u64) {
        let Some(direction) = completed(flags) else { return };
        let completed = self.state().complete(call.object.addr(), direction);
        if let Some((endpoint, outstanding)) = completed {
            self.outstanding("hook_debug_cq_process_entry", endpoint, outstanding, direction);
        }
    }

    fn outstanding(&self, func: &str, endpoint: usize, now: Outstanding, direction: u64) {
        let (name, number) = match direction {
            FI_SEND => ("tx_outs", now.tx),
            _ => ("rx_outs", now.rx),
        };
        self.log.trace(subsys::EP_DATA, func, format_args!("ep: {endpoint:#x} {name}: {number}"));
    }

    /// # Safety
    /// `call` has just opened `object`, with these attributes.
    unsafe fn opened(&self, call: &HookCall, object: *const fid, attr: OpenAttr) {
        use fi_type::*;
        // SAFETY: by this function's contract attributes are of their types or null.
        unsafe {
            match attr {
                OpenAttr::Cq(attr) => {
                    // Flags and the like as fi_tostr writes them, a line for each.
                    for line in text::dump(attr.cast(), FI_TYPE_CQ_ATTR).lines() {
                        let line = line.replacen("    ", "\t", 1);
                        let func = "hook_debug_cq_attr_log";
                        self.log.trace(subsys::CQ, func, format_args!("{line}"));
                    }
                    let func = "hook_debug_cq_open";
                    self.log.trace(subsys::CQ, func, format_args!("cq opened, fid: {object:p}"));
                }
                OpenAttr::Cntr(_) => {
                    let func = "hook_debug_cntr_init";
                    self.log.trace(subsys::CNTR, func, format_args!("fi_cntr_open: {object:p}"));
                }
                OpenAttr::Info(info)
                    if matches!(
                        call.op,
                        HookOp::Endpoint | HookOp::Endpoint2 | HookOp::ScalableEp
                    ) =>
                {
                    let line = |text: fmt::Arguments<'_>| {
                        self.log.trace(subsys::EP_CTRL, "hook_debug_endpoint", text);
                    };
                    if let Some(info) = info.as_ref() {
                        let tx = info.tx_attr.as_ref().map_or(0, |attr| attr.size);
                        let rx = info.rx_attr.as_ref().map_or(0, |attr| attr.size);
                        line(format_args!("tx_attr->size: {tx}"));
                        line(format_args!("rx_attr->size: {rx}"));
                    }
                    line(format_args!("endpoint opened, fid: {object:p}"));
                    self.state().endpoints.insert(object.addr(), Outstanding::default());
                }
                _ => {}
            }
        }
    }

    /// # Safety
    /// `call` has just bound the object to `other`.
    unsafe fn bound(&self, call: &HookCall, other: *const fid, flags: u64) {
        // SAFETY: by this function's contract both are open.
        let (class, other_class) = unsafe {
            let class = |fid: *const fid| fid.as_ref().map_or(0, |fid| fid.fclass as i32);
            (class(call.object), class(other))
        };
        let name = match other_class {
            FI_CLASS_CQ => "cq",
            FI_CLASS_CNTR => "cntr",
            _ => return,
        };
        if !matches!(class, FI_CLASS_EP | FI_CLASS_TX_CTX | FI_CLASS_RX_CTX | FI_CLASS_SRX_CTX) {
            return;
        }
        if other_class == FI_CLASS_CQ {
            let mut state = self.state();
            state.queues.entry(other.addr()).or_default().push((call.object.addr(), flags));
        }
        let flags = names(flags);
        self.log.trace(
            subsys::EP_CTRL,
            "hook_debug_ep_bind",
            format_args!("{name}: {other:p} bind flags: {flags}"),
        );
    }
}

/// The text of an error behind its number.
struct Why(isize, bool);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = i32::try_from(self.0).unwrap_or(0);
        if self.1 || code < 0 { write!(f, " ({})", strerror(code)) } else { Ok(()) }
    }
}

/// Names of flags of operations and completions.
fn names(flags: u64) -> String {
    // SAFETY: flags of this type are 64 bits.
    unsafe { text::dump((&raw const flags).cast(), fi_type::FI_TYPE_CAPS) }
}

impl Hook for Debug {
    const NAME: &'static str = "debug";
    type Entry = ();

    fn install(log: HookLog) -> Result<Self> {
        Ok(Self { log, state: Mutex::default() })
    }

    fn enter(&self, call: &HookCall) {
        if let Args::Threshold(threshold, timeout) = call.args {
            self.log.trace(
                subsys::CNTR,
                "hook_debug_cntr_wait",
                format_args!("cntr: {:p}, threshold: {threshold}, timeout: {timeout}", call.object),
            );
        }
    }

    unsafe fn leave(&self, _entry: (), call: &HookCall, ret: isize) {
        let object = call.object.addr();
        // SAFETY: by this function's contract the call has just answered `ret`.
        unsafe {
            match call.args {
                Args::Transfer(_) => {
                    self.exit(call, subsys::EP_DATA, ret, true);
                    let Some(direction) = direction(call.op).filter(|_| ret == 0) else { return };
                    let outstanding = self.state().post(object, direction);
                    if direction == FI_SEND {
                        self.outstanding("hook_debug_tx_end", object, outstanding, direction);
                    }
                }
                Args::Completions(..) => {
                    self.exit(call, subsys::CQ, ret, false);
                    for it in call.completions(ret) {
                        self.completion(call, &it);
                    }
                }
                Args::Error(entry) => {
                    self.exit(call, subsys::CQ, ret, false);
                    if let (Some(entry), true) = (entry.as_ref(), ret > 0) {
                        self.complete(call, entry.flags);
                    }
                }
                Args::Open(ref it) if ret == 0 => self.opened(call, it.object(), it.attr),
                Args::Bind(other, flags) if ret == 0 => self.bound(call, other, flags),
                _ => match call.op {
                    HookOp::EqRead | HookOp::EqSread => self.exit(call, subsys::EQ, ret, false),
                    HookOp::Close if ret == 0 => {
                        let left = self.state().forget(object);
                        if let Some(left) = left.filter(|left| *left != Outstanding::default()) {
                            self.log.trace(
                                subsys::EP_CTRL,
                                "hook_debug_ep_close",
                                format_args!(
                                    "ep: {object:#x} closed, tx_outs: {} rx_outs: {}",
                                    left.tx, left.rx
                                ),
                            );
                        }
                    }
                    _ => {}
                },
            }
        }
    }
}

ofi_hook::plug_in!("debug", Debug);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_outstanding_until_the_queue_of_their_endpoint_has_them() {
        let (ep, tx, rx) = (1, 10, 20);
        let mut state = DebugState::default();
        state.queues.insert(tx, vec![(ep, FI_SEND)]);
        state.queues.insert(rx, vec![(ep, FI_RECV)]);
        state.post(ep, FI_SEND);
        assert_eq!(state.post(ep, FI_SEND), Outstanding { tx: 2, rx: 0 });
        assert_eq!(state.post(ep, FI_RECV), Outstanding { tx: 2, rx: 1 });
        assert_eq!(state.complete(tx, FI_RECV), None);
        assert_eq!(state.complete(tx, FI_SEND), Some((ep, Outstanding { tx: 1, rx: 1 })));
        // One receive may have many completions.
        state.complete(rx, FI_RECV);
        assert_eq!(state.complete(rx, FI_RECV), Some((ep, Outstanding { tx: 1, rx: 0 })));
        assert_eq!(state.forget(ep), Some(Outstanding { tx: 1, rx: 0 }));
        assert_eq!(state.complete(tx, FI_SEND), None);
    }

    #[test]
    fn ambiguous_completion_is_assigned_to_no_endpoint() {
        let mut state = DebugState::default();
        state.queues.insert(10, vec![(1, FI_SEND | FI_RECV), (2, FI_SEND)]);
        state.post(1, FI_SEND);
        assert_eq!(state.complete(10, FI_SEND), None);
        state.post(1, FI_RECV);
        assert_eq!(state.complete(10, FI_RECV), Some((1, Outstanding { tx: 1, rx: 0 })));
    }

    #[test]
    fn remote_access_completes_no_local_operation() {
        assert_eq!(completed(FI_RMA | FI_REMOTE_WRITE), None);
        assert_eq!(completed(FI_RMA | FI_READ), Some(FI_SEND));
        assert_eq!(completed(FI_ATOMIC | FI_WRITE), Some(FI_SEND));
        assert_eq!(completed(FI_MSG | FI_RECV), Some(FI_RECV));
        assert_eq!((direction(HookOp::Tinject), direction(HookOp::Atomic)), (None, Some(FI_SEND)));
    }

    #[test]
    fn return_values_and_flags_are_printed_as_text() {
        let text = |ret, text| Why(ret, text).to_string();
        assert_eq!(text(0, true), " (Success)");
        assert_eq!(text(16, false), "");
        assert_eq!(text(-259, false), " (Error available)");
        assert_eq!(names(FI_TAGGED | FI_RECV), "FI_TAGGED, FI_RECV");
    }
}
