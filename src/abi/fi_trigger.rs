// `rdma/fi_trigger.h`: Triggered and deferred operations (fi_trigger(3)).

/// Trigger of a triggered operation (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_trigger_event {
    FI_TRIGGER_THRESHOLD = 0,
    FI_TRIGGER_XPU = 1,
}

/// The operation of a deferred work request (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_op_type {
    FI_OP_RECV = 0,
    FI_OP_SEND = 1,
    FI_OP_TRECV = 2,
    FI_OP_TSEND = 3,
    FI_OP_READ = 4,
    FI_OP_WRITE = 5,
    FI_OP_ATOMIC = 6,
    FI_OP_FETCH_ATOMIC = 7,
    FI_OP_COMPARE_ATOMIC = 8,
    FI_OP_CNTR_SET = 9,
    FI_OP_CNTR_ADD = 10,
}

/// Counter, and its threshold for the operation (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_threshold {
    pub cntr: *mut fid_cntr,
    pub threshold: usize,
}

/// Variable written by a device to trigger the operation (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_var {
    pub datatype: c_enum<fi_datatype>,
    pub count: c_int,
    pub addr: *mut c_void,
    pub value: fi_trigger_var__value,
}

/// Value, or its location.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_var__value {
    pub val8: u8,
    pub val16: u16,
    pub val32: u32,
    pub val64: u64,
    pub data: *mut u8,
}

/// Variables written by a device, and the device (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_xpu {
    pub count: c_int,
    pub iface: c_enum<fi_hmem_iface>,
    pub device: fi_trigger_xpu__device,
    pub var: *mut fi_trigger_var,
}

/// The device, in the terms of `iface`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_xpu__device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
}

/// A deferred message (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_msg {
    pub ep: *mut fid_ep,
    pub msg: fi_msg,
    pub flags: u64,
}

/// A deferred tagged message (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_tagged {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_tagged,
    pub flags: u64,
}

/// A deferred remote memory access (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_rma {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_rma,
    pub flags: u64,
}

/// A deferred atomic (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub flags: u64,
}

/// A deferred fetching atomic (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_fetch_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub flags: u64,
}

/// A deferred comparing atomic (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_compare_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub compare: fi_msg_compare,
    pub flags: u64,
}

/// A deferred change of a counter (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_cntr {
    pub cntr: *mut fid_cntr,
    pub value: u64,
}

/// The context of a triggered operation, under `FI_CONTEXT` (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_triggered_context {
    pub event_type: c_enum<fi_trigger_event>,
    pub trigger: fi_triggered_context__trigger,
}

/// Parameters of `event_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_triggered_context__trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 3],
}

/// The context of a triggered operation, under `FI_CONTEXT2` (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_triggered_context2 {
    pub event_type: c_enum<fi_trigger_event>,
    pub trigger: fi_triggered_context2__trigger,
}

/// Parameters of `event_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_triggered_context2__trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 7],
}

/// Request waiting for a counter, the argument of `FI_QUEUE_WORK` (fi_trigger(3)).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_deferred_work {
    pub context: fi_context2,
    pub threshold: u64,
    pub triggering_cntr: *mut fid_cntr,
    pub completion_cntr: *mut fid_cntr,
    pub op_type: c_enum<fi_op_type>,
    pub op: fi_deferred_work__op,
}

/// Request of the kind `op_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_deferred_work__op {
    pub msg: *mut fi_op_msg,
    pub tagged: *mut fi_op_tagged,
    pub rma: *mut fi_op_rma,
    pub atomic: *mut fi_op_atomic,
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    pub compare_atomic: *mut fi_op_compare_atomic,
    pub cntr: *mut fi_op_cntr,
}
