//! Errors, and their one mapping to negative `FI_E*` codes (fi_errno(3)).
use crate::abi;
use core::ffi::c_int;
use core::fmt;
use core::num::NonZero;

/// Failed operation: an `FI_E*` code, always positive.
///
/// A newtype rather than a closed enum because any errno of the operating system can come back from
/// a socket, and must reach the caller unchanged. It is never 0, so a [`Result`] without a value is
/// one number, like the result of a call in C.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Error(NonZero<c_int>);

/// Return type of fallible calls of the library.
pub type Result<T = ()> = core::result::Result<T, Error>;

macro_rules! codes {
    ($($name:ident = $code:ident),+ $(,)?) => {
        #[allow(missing_docs, reason = "each is the FI_E* code of its name, see fi_errno(3)")]
        impl Error {
            $(pub const $name: Self = Self(NonZero::new(abi::$code).expect("a code is not 0"));)+
        }
    };
}

codes! {
    PERM = FI_EPERM, NOENT = FI_ENOENT, INTR = FI_EINTR, IO = FI_EIO, TOOBIG = FI_E2BIG,
    BADF = FI_EBADF, AGAIN = FI_EAGAIN, NOMEM = FI_ENOMEM, ACCES = FI_EACCES,
    FAULT = FI_EFAULT, BUSY = FI_EBUSY, NODEV = FI_ENODEV, INVAL = FI_EINVAL,
    MFILE = FI_EMFILE, NOSPC = FI_ENOSPC, NOSYS = FI_ENOSYS, NOMSG = FI_ENOMSG,
    NODATA = FI_ENODATA, PROTO = FI_EPROTO, OVERFLOW = FI_EOVERFLOW, MSGSIZE = FI_EMSGSIZE,
    NOPROTOOPT = FI_ENOPROTOOPT, OPNOTSUPP = FI_EOPNOTSUPP, ADDRINUSE = FI_EADDRINUSE,
    ADDRNOTAVAIL = FI_EADDRNOTAVAIL, NETDOWN = FI_ENETDOWN, NETUNREACH = FI_ENETUNREACH,
    CONNABORTED = FI_ECONNABORTED, CONNRESET = FI_ECONNRESET, NOBUFS = FI_ENOBUFS,
    ISCONN = FI_EISCONN, NOTCONN = FI_ENOTCONN, SHUTDOWN = FI_ESHUTDOWN,
    TIMEDOUT = FI_ETIMEDOUT, CONNREFUSED = FI_ECONNREFUSED, HOSTDOWN = FI_EHOSTDOWN,
    HOSTUNREACH = FI_EHOSTUNREACH, ALREADY = FI_EALREADY, INPROGRESS = FI_EINPROGRESS,
    REMOTEIO = FI_EREMOTEIO, CANCELED = FI_ECANCELED, KEYREJECTED = FI_EKEYREJECTED,
    OTHER = FI_EOTHER, TOOSMALL = FI_ETOOSMALL, OPBADSTATE = FI_EOPBADSTATE,
    AVAIL = FI_EAVAIL, BADFLAGS = FI_EBADFLAGS, NOEQ = FI_ENOEQ, DOMAIN = FI_EDOMAIN,
    NOCQ = FI_ENOCQ, CRC = FI_ECRC, TRUNC = FI_ETRUNC, NOKEY = FI_ENOKEY, NOAV = FI_ENOAV,
    OVERRUN = FI_EOVERRUN, NORX = FI_ENORX, NOMR = FI_ENOMR,
    FIREWALLADDR = FI_EFIREWALLADDR,
}

impl Error {
    /// Returns the error with this positive code. Any other code becomes [`Error::OTHER`], because
    /// 0 would read as success.
    pub const fn from_code(code: c_int) -> Self {
        match NonZero::new(code) {
            Some(code) if code.is_positive() => Self(code),
            _ => Self::OTHER,
        }
    }

    /// The positive code, as completion and error entries carry it.
    pub const fn code(self) -> c_int {
        self.0.get()
    }

    /// The negative code, as calls return it.
    pub const fn to_ret(self) -> c_int {
        -self.0.get()
    }

    /// Returns the error of the last failed system call.
    pub fn last_os() -> Self {
        std::io::Error::last_os_error().into()
    }

    /// Success for 0 and above, else the error a C function returned.
    pub fn check(ret: c_int) -> Result<c_int> {
        if ret < 0 { Err(Self::from_code(ret.saturating_neg())) } else { Ok(ret) }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::from_code(error.raw_os_error().unwrap_or(abi::FI_EIO))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&strerror(self.code()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-{} ({self})", self.code())
    }
}

impl core::error::Error for Error {}

/// The text of the library's own codes, those from 256 on (fi_errno(3)).
const OFI_TEXTS: [&core::ffi::CStr; 16] = [
    c"Unspecified error",
    c"Provided buffer is too small",
    c"Operation not permitted in current state",
    c"Error available",
    c"Flags not supported",
    c"Missing or unavailable event queue",
    c"Invalid resource domain",
    c"Missing or unavailable completion queue",
    c"CRC error",
    c"Truncation error",
    c"Required key not available",
    c"Missing or unavailable address vector",
    c"Queue has been overrun",
    c"Receiver not ready, no receive buffers available",
    c"Memory registration limit exceeded",
    c"Host unreacheable due to firewall",
];

/// Returns the text for one of the library's own codes, or `None` for an errno of the operating
/// system: its text is in the C library.
pub fn ofi_text(code: c_int) -> Option<&'static core::ffi::CStr> {
    let code = code.checked_abs()?;
    let index = code.checked_sub(abi::FI_ERRNO_OFFSET)?;
    if index < 0 {
        return None;
    }
    // An unknown code of ours reads as the unspecified one.
    Some(OFI_TEXTS.get(index as usize).copied().unwrap_or(OFI_TEXTS[0]))
}

/// The text of any code, of either sign, as `fi_strerror` gives it.
pub fn strerror(code: c_int) -> String {
    match ofi_text(code) {
        Some(text) => text.to_string_lossy().into_owned(),
        // std appends " (os error N)", which C's strerror does not.
        None => {
            let text = std::io::Error::from_raw_os_error(code.saturating_abs()).to_string();
            match text.rfind(" (os error ") {
                Some(end) => text[..end].to_owned(),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_its_negative_code_for_c_and_its_text_for_people() {
        assert_eq!(Error::NODATA.to_ret(), -61);
        assert_eq!(Error::NODATA.to_string(), "No data available");
        assert_eq!(Error::TOOSMALL.to_ret(), -257);
        assert_eq!(strerror(-257), strerror(257));
    }

    #[test]
    fn code_zero_still_becomes_an_error() {
        assert_eq!(Error::from_code(0), Error::OTHER);
    }
}
