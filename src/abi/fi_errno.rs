// `rdma/fi_errno.h`: Error codes (fi_errno(3)).

// Codes that are the platform's own.
pub const FI_SUCCESS: c_int = 0;
pub const FI_EPERM: c_int = 1;
pub const FI_ENOENT: c_int = 2;
pub const FI_EINTR: c_int = 4;
pub const FI_EIO: c_int = 5;
pub const FI_E2BIG: c_int = 7;
pub const FI_EBADF: c_int = 9;
pub const FI_EAGAIN: c_int = 11;
pub const FI_ENOMEM: c_int = 12;
pub const FI_EACCES: c_int = 13;
pub const FI_EFAULT: c_int = 14;
pub const FI_EBUSY: c_int = 16;
pub const FI_ENODEV: c_int = 19;
pub const FI_EINVAL: c_int = 22;
pub const FI_EMFILE: c_int = 24;
pub const FI_ENOSPC: c_int = 28;
pub const FI_ENOSYS: c_int = 38;
pub const FI_EWOULDBLOCK: c_int = 11;
pub const FI_ENOMSG: c_int = 42;
pub const FI_ENODATA: c_int = 61;
pub const FI_EPROTO: c_int = 71;
pub const FI_EOVERFLOW: c_int = 75;
pub const FI_EMSGSIZE: c_int = 90;
pub const FI_ENOPROTOOPT: c_int = 92;
pub const FI_EOPNOTSUPP: c_int = 95;
pub const FI_EADDRINUSE: c_int = 98;
pub const FI_EADDRNOTAVAIL: c_int = 99;
pub const FI_ENETDOWN: c_int = 100;
pub const FI_ENETUNREACH: c_int = 101;
pub const FI_ECONNABORTED: c_int = 103;
pub const FI_ECONNRESET: c_int = 104;
pub const FI_ENOBUFS: c_int = 105;
pub const FI_EISCONN: c_int = 106;
pub const FI_ENOTCONN: c_int = 107;
pub const FI_ESHUTDOWN: c_int = 108;
pub const FI_ETIMEDOUT: c_int = 110;
pub const FI_ECONNREFUSED: c_int = 111;
pub const FI_EHOSTDOWN: c_int = 112;
pub const FI_EHOSTUNREACH: c_int = 113;
pub const FI_EALREADY: c_int = 114;
pub const FI_EINPROGRESS: c_int = 115;
pub const FI_EREMOTEIO: c_int = 121;
pub const FI_ECANCELED: c_int = 125;
pub const FI_EKEYREJECTED: c_int = 129;
pub const FI_ERRNO_OFFSET: c_int = 256;

unnamed_enum! {
    /// Codes of this library (fi_errno(3)).
    enum {
        FI_EOTHER = 256,
        FI_ETOOSMALL = 257,
        FI_EOPBADSTATE = 258,
        FI_EAVAIL = 259,
        FI_EBADFLAGS = 260,
        FI_ENOEQ = 261,
        FI_EDOMAIN = 262,
        FI_ENOCQ = 263,
        FI_ECRC = 264,
        FI_ETRUNC = 265,
        FI_ENOKEY = 266,
        FI_ENOAV = 267,
        FI_EOVERRUN = 268,
        FI_ENORX = 269,
        FI_ENOMR = 270,
        FI_EFIREWALLADDR = 271,
        FI_ERRNO_MAX = 272,
    }
}

unsafe extern "C" {
    pub fn fi_strerror(errnum: c_int) -> *const c_char;
}
