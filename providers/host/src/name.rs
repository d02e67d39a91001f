//! Names of endpoints (FI_ADDR_STR), and the system's names of their sockets.
use crate::plug_in::{current, provider};
use crate::settings::MAX_INJECT;
use ofi_provider::abi::fi_ep_type;
use ofi_provider::addr::{Addr, EndpointName};
use ofi_provider::error::{Error, Result};
use ofi_provider::info::InfoRef;
use ofi_provider::sys;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, Ordering};

/// Digits of a process's number and of an endpoint's in a name with both: those of the largest
/// process number of Linux (4194304), and of 10,000 endpoints.
const DIGITS: usize = 7 + 4;

/// Bytes of `sun_path` in `struct sockaddr_un`.
const PATH: usize = 108;

/// Returns the name for a new endpoint of this info. A name with the plug-in's scheme belongs to
/// the process; user and number are added to it.
pub(crate) fn of_endpoint(info: InfoRef<'_>) -> Result<Addr> {
    info.must_be(fi_ep_type::FI_EP_RDM)?;
    if info.tx().is_some_and(|tx| tx.inject_size > MAX_INJECT) {
        return Err(Error::INVAL);
    }
    let src = info.src_addr().ok_or(Error::INVAL)?;
    let name = CStr::from_bytes_until_nul(src).map_err(|_| Error::INVAL)?;
    let scheme = current().scheme.as_bytes();
    if !name.to_bytes().windows(scheme.len()).any(|part| part == scheme) {
        return EndpointName::proposed(name).map(Addr::Name);
    }
    numbered(name)
}

/// A new name of this process.
pub(crate) fn fresh() -> Result<Addr> {
    numbered(&of_process()?)
}

/// Returns the name of this process in infos.
pub(crate) fn of_process() -> Result<CString> {
    CString::new(format!("{}{}", current().scheme, std::process::id())).map_err(|_| Error::INVAL)
}

/// A process's name with the user and another number each time.
fn numbered(process: &CStr) -> Result<Addr> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    with_suffix(process, &suffix(process.count_bytes(), number))
}

/// Returns the suffix of a process's name of this length: the user and the endpoint's number. The
/// names of one user's processes are equally long, regardless of the processes' numbers: MPICH
/// exchanges the names of all ranks with the length of the rank's own.
fn suffix(process: usize, number: u32) -> String {
    let width = (current().scheme.len() + DIGITS).saturating_sub(process);
    format!(":{}:{number:0width$}", sys::user())
}

/// Returns another name for an endpoint with its name in use elsewhere.
pub(crate) fn another(taken: &EndpointName) -> Result<Addr> {
    with_suffix(taken.whole(), &format!(":{}", sys::random() as u32))
}

fn with_suffix(name: &CStr, suffix: &str) -> Result<Addr> {
    let name = CString::new([name.to_bytes(), suffix.as_bytes()].concat());
    EndpointName::proposed(&name.map_err(|_| Error::INVAL)?).map(Addr::Name)
}

/// Returns the same name, final from now on.
pub(crate) fn settled(addr: &Addr) -> Result<Addr> {
    EndpointName::new(named(addr)?.whole()).map(Addr::Name)
}

/// The name in an address of ours.
pub(crate) fn named(addr: &Addr) -> Result<&EndpointName> {
    match addr {
        Addr::Name(name) if !addr.is_any() => Ok(name),
        _ => Err(Error::INVAL),
    }
}

/// Returns the system's name of an endpoint's listening socket: `struct sockaddr_un` with an
/// abstract name (unix(7)). The number in it is increased by changes making earlier and later
/// endpoints incompatible.
pub(crate) fn of_socket(name: &EndpointName) -> Vec<u8> {
    let family = (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    let provider = provider().name().to_string_lossy();
    let before = format!("\0ofi-{provider}-1/{}/", sys::user());
    let name = name.as_c_str().to_bytes();
    let path = match before.len() + name.len() <= PATH {
        true => [before.as_bytes(), name].concat(),
        false => format!("{before}/{:032x}", hash(name)).into_bytes(),
    };
    [&family[..], &path].concat()
}

/// Hashes a name too long for the system, for use as a unique number (FNV-1a of 128 bits).
fn hash(name: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    name.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// Encodes a connecting peer's name: the length in one byte, and the name.
pub(crate) fn encode(name: &EndpointName) -> Vec<u8> {
    let bytes = name.as_c_str().to_bytes();
    // A name has less than 256 bytes.
    [&[u8::try_from(bytes.len()).unwrap_or(0)], bytes].concat()
}

/// Returns the missing bytes of data encoded by [`encode`], after `received` were received.
pub(crate) fn missing(received: &[u8]) -> usize {
    received.first().map_or(1, |len| 1 + usize::from(*len) - received.len())
}

/// Decodes the connecting peer's address from all bytes encoded by [`encode`].
pub(crate) fn caller(received: &[u8]) -> Result<Addr> {
    let name = CString::new(received.get(1..).unwrap_or_default()).map_err(|_| Error::INVAL)?;
    let name = EndpointName::new(&name)?;
    // Text before a scheme is not part of a name.
    if name.as_c_str() == name.whole() { Ok(Addr::Name(name)) } else { Err(Error::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ofi_provider::info::InfoBuf;

    fn name(text: &CStr) -> EndpointName {
        EndpointName::new(text).unwrap()
    }

    fn endpoint(src: Option<&[u8]>) -> Result<String> {
        let mut info = InfoBuf::new().unwrap();
        info.edit_ep(|ep| ep.r#type = fi_ep_type::FI_EP_RDM.into());
        info.set_src_addr(src).unwrap();
        let Addr::Name(name) = of_endpoint(info.as_ref())? else { panic!("a name") };
        assert!(name.is_replaceable());
        Ok(name.whole().to_str().unwrap().to_owned())
    }

    #[test]
    fn a_process_s_name_gets_user_and_number_and_others_stay() {
        let [one, two] = [(); 2].map(|()| endpoint(Some(b"fi_shm://17\0")).unwrap());
        let start = format!("fi_shm://17:{}:", sys::user());
        assert!(one.starts_with(&start) && two.starts_with(&start) && one != two);
        assert_eq!(endpoint(Some(b"fi_ns://node:5\0")), Ok("fi_ns://node:5".to_owned()));
        assert_eq!(endpoint(Some(b"plain\0")), Ok("plain".to_owned()));
        let long = [&[b'x'; 256][..], b"\0"].concat();
        for not in [None, Some(&b"no end"[..]), Some(&long)] {
            assert_eq!(endpoint(not), Err(Error::INVAL));
        }
        assert_eq!(endpoint(Some(&long[1..])).map(|name| name.len()), Ok(255));
    }

    #[test]
    fn names_of_processes_are_equally_long() {
        let of = |process: &str, number| format!("{process}{}", suffix(process.len(), number));
        let long = of("fi_shm://4194304", 9999);
        for name in [of("fi_shm://9", 0), of("fi_shm://10", 123), of("fi_shm://99999", 1)] {
            assert_eq!(name.len(), long.len(), "{name} {long}");
        }
        assert!(of("fi_shm://9", 0).ends_with(":0000000000"));
        // more endpoints, and longer names, are still distinct
        assert!(of("fi_shm://4194304", 10_000).ends_with(":10000"));
        assert!(of("fi_shm://a name of the application's", 12).ends_with(":12"));
    }

    #[test]
    fn another_name_is_the_taken_one_and_more() {
        let other = another(&name(c"fi_shm://17:0:1")).unwrap();
        let other = named(&other).unwrap().whole().to_str().unwrap();
        assert!(other.starts_with("fi_shm://17:0:1:") && other.len() > 16, "{other}");
    }

    #[test]
    fn socket_names_fit_and_are_unique_per_endpoint() {
        let long = |last: &str| CString::new("n".repeat(200) + last).unwrap();
        let of = |text: &CStr| of_socket(&name(text));
        assert_eq!(of(c"fi_shm://17:0:1"), of(c"17:0:1"));
        let names = [of(c"a"), of(c"b"), of(&long("a")), of(&long("b"))];
        for (index, one) in names.iter().enumerate() {
            assert!(one.len() <= 2 + PATH && one[2] == 0);
            assert!(names[..index].iter().all(|other| other != one));
        }
    }

    #[test]
    fn callers_are_believed_to_have_names_and_nothing_else() {
        let whole = encode(&name(c"fi_shm://17:0:1"));
        assert_eq!(whole, b"\x0617:0:1");
        for len in 0..whole.len() {
            assert_eq!(missing(&whole[..len]), if len == 0 { 1 } else { whole.len() - len });
        }
        assert_eq!(missing(&whole), 0);
        assert_eq!(caller(&whole), Ok(Addr::Name(name(c"17:0:1"))));
        for not in [&b""[..], b"\0", b"\x03a\0b", b"\x06x://ab"] {
            assert_eq!(caller(not), Err(Error::INVAL), "{not:?}");
        }
    }
}
