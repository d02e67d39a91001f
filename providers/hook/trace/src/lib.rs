//! The hook provider `trace`: logs a line, at level trace, for each successful call: opened objects
//! with their attributes, transfers, completions and errors, connections and regions (fi_hook(7)).
use core::ffi::c_void;
use ofi_hook::abi::*;
use ofi_hook::error::{Result, strerror};
use ofi_hook::log::{level, subsys};
use ofi_hook::text::{self, Pointer};
use ofi_hook::{
    Args, Hook, HookCall, HookCompletion, HookLog, HookOp, OpenArgs, OpenAttr, RegionArgs,
    TransferArgs,
};

struct Trace(HookLog);

impl Hook for Trace {
    const NAME: &'static str = "trace";
    type Entry = ();

    fn install(log: HookLog) -> Result<Self> {
        Ok(Self(log))
    }

    #[inline]
    fn enter(&self, _call: &HookCall) {}

    unsafe fn leave(&self, _entry: (), call: &HookCall, ret: isize) {
        let Some(subsys) = subsystem(call) else { return };
        if !self.0.enabled(level::TRACE, subsys) {
            return;
        }
        // SAFETY: by this function's contract.
        for line in unsafe { lines(call, ret) } {
            self.0.trace(subsys, &format!("trace_{}", call.op.name()), format_args!("{line}"));
        }
    }
}

/// Returns the log subsystem of a call; `None` for calls without log lines.
fn subsystem(call: &HookCall) -> Option<fi_log_subsys> {
    use HookOp::*;
    match call.args {
        Args::Transfer(_) => Some(subsys::EP_DATA),
        Args::Completions(..) | Args::Error(_) => Some(subsys::CQ),
        Args::Address(_) => Some(subsys::EP_CTRL),
        Args::Region(_) => Some(subsys::DOMAIN),
        Args::Open(_) => match call.op {
            CqOpen | CntrOpen | AvOpen | Endpoint | Endpoint2 | ScalableEp => Some(subsys::DOMAIN),
            Join => Some(subsys::EP_CTRL),
            _ => None,
        },
        _ => match call.op {
            Listen | Accept | Reject | Shutdown => Some(subsys::EP_CTRL),
            _ => None,
        },
    }
}

fn pointer<T>(pointer: *const T) -> Pointer {
    Pointer(pointer.addr())
}

/// # Safety
/// `call` has just answered `ret`.
unsafe fn lines(call: &HookCall, ret: isize) -> Vec<String> {
    // SAFETY: by this function's contract.
    unsafe {
        match call.args {
            Args::Completions(..) => call.completions(ret).map(completion).collect(),
            Args::Error(entry) if ret > 0 => {
                entry.as_ref().map(|entry| error(call, entry)).into_iter().collect()
            }
            _ if ret != 0 => Vec::new(),
            Args::Transfer(ref it) => vec![transfer(call.op, it)],
            Args::Address(address) => {
                vec![format!("addr: {}", text::address(call.format, address))]
            }
            Args::Region(ref it) => vec![region(it)],
            Args::Open(_) if call.op == HookOp::Join => vec![endpoint(call)],
            Args::Open(ref it) => opened(call, it),
            _ => vec![endpoint(call)],
        }
    }
}

fn endpoint(call: &HookCall) -> String {
    format!("ep/pep {}", pointer(call.object))
}

/// # Safety
/// The call is still in progress.
unsafe fn transfer(op: HookOp, it: &TransferArgs) -> String {
    use HookOp::*;
    // SAFETY: by this function's contract.
    let (buf, len) = unsafe { it.pieces.total() };
    let (buf, context) = (pointer(buf), pointer(it.context));
    let TransferArgs { addr, data, flags, tag, ignore, raddr, key, .. } = *it;
    match op {
        Recv | Recvv | Recvmsg | Send | Sendv | Sendmsg | Inject | Senddata | Injectdata => {
            format!("buf {buf} len {len} addr {addr} data {data:#x} flags {flags:#x} ctx {context}")
        }
        Trecv | Trecvv | Trecvmsg | Tsend | Tsendv | Tsendmsg | Tinject | Tsenddata
        | Tinjectdata => format!(
            "buf {buf} len {len} addr {addr} data {data} flags {flags:#x} tag {tag:#x} \
             ignore {ignore:#x} ctx {context}"
        ),
        _ => format!(
            "buf {buf} len {len} addr {addr} raddr {raddr} data {data} flags {flags:#x} \
             key {key:#x} ctx {context}"
        ),
    }
}

/// Formats a completion as far as its format permits: for sends there are only the flags.
fn completion(it: HookCompletion) -> String {
    let mut line = format!("ctx {}", Pointer(it.context));
    let Some(flags) = it.flags else { return line };
    line += &format!(" flags {flags:#x}");
    if flags & FI_RECV == 0 {
        return line;
    }
    if let Some(len) = it.len {
        line += &format!(" len {len}");
    }
    if let Some((buf, data)) = it.buf_data {
        let data = if flags & FI_REMOTE_CQ_DATA != 0 { data } else { 0 };
        line += &format!(" buf {}, data {data}", Pointer(buf));
    }
    if let Some(tag) = it.tag {
        line += &format!(" tag {tag:#x}");
    }
    line
}

/// # Safety
/// `call` has just read `entry`.
unsafe fn error(call: &HookCall, entry: &fi_cq_err_entry) -> String {
    let fi_cq_err_entry { flags, len, data, tag, olen, err, prov_errno, .. } = *entry;
    let context = pointer(entry.op_context);
    // SAFETY: by this function's contract.
    let why = unsafe { text::cq_strerror(call, prov_errno, entry.err_data) };
    let end = format!(
        "tag {tag:#x} olen {olen} err {err} ({}) prov_errno {prov_errno} ({why})",
        strerror(err)
    );
    if flags & FI_RECV != 0 {
        let buf = pointer(entry.buf);
        format!("ctx {context} flags {flags:#x}, len {len} buf {buf} data {data:#x} {end}")
    } else {
        format!("ctx {context} flags {flags:#x}, data {data} {end}")
    }
}

/// # Safety
/// The call has just succeeded.
unsafe fn region(it: &RegionArgs) -> String {
    // SAFETY: by this function's contract.
    unsafe {
        let mr = it.out.as_ref().map_or(Pointer(0), |mr| pointer(*mr));
        let attr = dump(it.attr, fi_type::FI_TYPE_MR_ATTR);
        format!("mr {mr} len {} flags {:#x}\n{attr}", it.bytes(), it.flags)
    }
}

/// # Safety
/// `data` is null or of this type.
unsafe fn dump<T>(data: *const T, kind: fi_type) -> String {
    // SAFETY: by this function's contract.
    unsafe { text::dump(data.cast::<c_void>(), kind) }
}

/// # Safety
/// The call has just succeeded.
unsafe fn opened(call: &HookCall, it: &OpenArgs) -> Vec<String> {
    use fi_type::*;
    let (parent, context) = (pointer(call.object), pointer(it.context));
    // SAFETY: by this function's contract; attributes are of their types or null.
    unsafe {
        let object = pointer(it.object());
        match it.attr {
            OpenAttr::Cq(attr) => vec![format!(
                "cq {object} domain {parent} context {context}\n{}",
                dump(attr, FI_TYPE_CQ_ATTR)
            )],
            OpenAttr::Cntr(attr) => vec![format!(
                "cntr {object}, domain {parent} context {context} \n{}",
                dump(attr, FI_TYPE_CNTR_ATTR)
            )],
            OpenAttr::Av(attr) => {
                vec![format!("av {object}, context {context}\n{}", dump(attr, FI_TYPE_AV_ATTR))]
            }
            OpenAttr::Info(info) => {
                let name = if call.op == HookOp::ScalableEp { "sep" } else { "ep" };
                let mut lines = vec![format!("{name} {object} context {context}")];
                if let Some(info) = info.as_ref() {
                    lines.push(format!("\n{}", dump(info.ep_attr, FI_TYPE_EP_ATTR)));
                    lines.push(format!("\n{}", dump(info.tx_attr, FI_TYPE_TX_ATTR)));
                    lines.push(format!("\n{}", dump(info.rx_attr, FI_TYPE_RX_ATTR)));
                    lines.push(format!("\n{}", dump(info.domain_attr, FI_TYPE_DOMAIN_ATTR)));
                }
                lines
            }
            OpenAttr::None => Vec::new(),
        }
    }
}

ofi_hook::plug_in!("trace", Trace);

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;
    use ofi_hook::Pieces;

    fn some() -> TransferArgs {
        TransferArgs {
            pieces: Pieces::One(ptr::without_provenance(0x2000), 64),
            addr: 3,
            data: 0xda7a,
            flags: 0x20000,
            tag: 0x7a9,
            ignore: 0xf,
            raddr: 4660,
            key: 0x4e1,
            context: ptr::null_mut(),
        }
    }

    #[test]
    fn transfers_of_each_kind_have_their_line() {
        // SAFETY: a buffer that is not a vector is not followed.
        let line = |op| unsafe { transfer(op, &some()) };
        assert_eq!(
            line(HookOp::Send),
            "buf 0x2000 len 64 addr 3 data 0xda7a flags 0x20000 ctx (nil)"
        );
        assert_eq!(
            line(HookOp::Trecv),
            "buf 0x2000 len 64 addr 3 data 55930 flags 0x20000 tag 0x7a9 ignore 0xf ctx (nil)"
        );
        assert_eq!(
            line(HookOp::Write),
            "buf 0x2000 len 64 addr 3 raddr 4660 data 55930 flags 0x20000 key 0x4e1 ctx (nil)"
        );
    }

    #[test]
    fn send_completion_is_traced_without_a_length() {
        let all = HookCompletion {
            context: 0x1000,
            flags: Some(FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA),
            len: Some(64),
            buf_data: Some((0x2000, 5)),
            tag: Some(0x77),
        };
        assert_eq!(completion(all), "ctx 0x1000 flags 0x20408 len 64 buf 0x2000, data 5 tag 0x77");
        let sent = HookCompletion { flags: Some(FI_SEND | FI_TAGGED), ..all };
        assert_eq!(completion(sent), "ctx 0x1000 flags 0x808");
        let without_data = HookCompletion { flags: Some(FI_RECV | FI_MSG), tag: None, ..all };
        assert_eq!(completion(without_data), "ctx 0x1000 flags 0x402 len 64 buf 0x2000, data 0");
        assert_eq!(
            completion(HookCompletion { context: 0x1000, ..HookCompletion::default() }),
            "ctx 0x1000"
        );
    }

    #[test]
    fn failed_call_is_not_traced() {
        let call = HookCall {
            op: HookOp::Send,
            object: ptr::null(),
            format: 0,
            api_version: 0,
            args: Args::Transfer(some()),
        };
        // SAFETY: nothing in it is followed.
        unsafe {
            assert_eq!(lines(&call, -11), [] as [&str; 0]);
            assert_eq!(lines(&call, 0).len(), 1);
        }
    }
}
