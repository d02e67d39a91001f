// `rdma/providers/fi_log.h`: Logging, as providers call it (fi_provider(7)).

/// The number of log levels, as programs written for 1.x count them.
pub const FI_LOG_MAX: c_int = 4;
/// The number of subsystems, as programs written for 1.x count them.
pub const FI_LOG_SUBSYS_MAX: c_int = 10;

/// Subsystem of a log line.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_log_subsys {
    FI_LOG_CORE = 0,
    FI_LOG_FABRIC = 1,
    FI_LOG_DOMAIN = 2,
    FI_LOG_EP_CTRL = 3,
    FI_LOG_EP_DATA = 4,
    FI_LOG_AV = 5,
    FI_LOG_CQ = 6,
    FI_LOG_EQ = 7,
    FI_LOG_MR = 8,
    FI_LOG_CNTR = 9,
}

/// Severity of a log line (`FI_LOG_LEVEL`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum fi_log_level {
    FI_LOG_WARN = 0,
    FI_LOG_TRACE = 1,
    FI_LOG_INFO = 2,
    FI_LOG_DEBUG = 3,
}

unsafe extern "C" {
    pub fn fi_log_enabled(
        prov: *const fi_provider,
        level: c_enum<fi_log_level>,
        subsys: c_enum<fi_log_subsys>,
    ) -> c_int;
    pub fn fi_log_ready(
        prov: *const fi_provider,
        level: c_enum<fi_log_level>,
        subsys: c_enum<fi_log_subsys>,
        showtime: *mut u64,
    ) -> c_int;
    pub fn fi_log(
        prov: *const fi_provider,
        level: c_enum<fi_log_level>,
        subsys: c_enum<fi_log_subsys>,
        func: *const c_char,
        line: c_int,
        fmt: *const c_char,
        ...
    );
}
