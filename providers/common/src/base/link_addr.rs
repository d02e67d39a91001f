//! Addresses of endpoints composed of several endpoints of other providers (fi_lnx(7)). An address
//! begins with the host name and contains, for each component endpoint, its fabric name and its own
//! address. The layout is that of upstream libfabric, in the host's byte order:
//!
//! | bytes | |
//! |---|---|
//! | 64 | the host's name, with a NUL |
//! | 4 | number of parts |
//! | 4 | padding: C aligns the following 8-byte length |
//! | | and for each part, without any gaps: |
//! | 64 | the name of a fabric, with a NUL |
//! | 8 | the length of the address |
//! | this length | the address, as fi_getname(3) returns it |
//!
//! Upstream libfabric compares host names up to their NUL, so the bytes behind it are free.
//! Endpoints of this library store a mark there to identify each other on one host
//! ([`LinkAddr::mark`]).
use crate::error::{Error, Result};
use core::fmt;
use std::sync::Arc;

/// Bytes of a name, with its NUL.
const NAME: usize = 64;
/// Bytes before the first part.
const HEAD: usize = NAME + 8;
/// Bytes of a part before its address.
const PART: usize = NAME + 8;
/// Most parts of an address.
pub const MOST_PARTS: usize = 64;
/// Most bytes of the address of one part.
pub const MOST_PART_LEN: usize = 1024;
/// Bytes of a mark.
pub const MARK_LEN: usize = 16;
/// Prefix of a mark, at the end of the host name field.
const MARKED: &[u8; 8] = b"ofi-lnx\x01";
/// Maximum bytes of a host name, with its NUL, in a field with a mark.
const MARKED_NAME: usize = NAME - MARKED.len() - MARK_LEN;

/// Address of an endpoint composed of several endpoints of other providers, as validated bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkAddr(Arc<[u8]>);

/// Length of an address of which only the beginning was parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkLen {
    /// So many bytes are needed to know more.
    AtLeast(usize),
    /// It has so many bytes.
    Exactly(usize),
}

/// The number at the start of these bytes, in the host's order.
fn count_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Returns the address length of the part at offset `at`.
fn len_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at + NAME..at + PART)?.try_into().ok().map(u64::from_ne_bytes)
}

/// The name at the start of a field, up to its NUL; -FI_EINVAL if it has none.
fn name(field: &[u8]) -> Result<&[u8]> {
    let end = field.iter().position(|byte| *byte == 0).ok_or(Error::INVAL)?;
    Ok(&field[..end])
}

/// A name in a field of its own, cut to `most` bytes with its NUL.
fn field(name: &[u8], most: usize) -> [u8; NAME] {
    let mut field = [0; NAME];
    let len = name.len().min(most - 1);
    field[..len].copy_from_slice(&name[..len]);
    field
}

impl LinkAddr {
    /// Returns the length of the address beginning with these bytes. Fails with -FI_EINVAL if they
    /// begin no address: too many parts, or too long ones.
    pub fn len_of(bytes: &[u8]) -> Result<LinkLen> {
        let Some(count) = count_at(bytes, NAME) else { return Ok(LinkLen::AtLeast(HEAD)) };
        if count as usize > MOST_PARTS {
            return Err(Error::INVAL);
        }
        let mut at = HEAD;
        for _ in 0..count {
            let Some(len) = len_at(bytes, at) else { return Ok(LinkLen::AtLeast(at + PART)) };
            if len > MOST_PART_LEN as u64 {
                return Err(Error::INVAL);
            }
            at += PART + len as usize;
        }
        Ok(LinkLen::Exactly(at))
    }

    /// Parses the address at the start of these bytes. Fails with -FI_EINVAL if they are too short,
    /// or if a name is not terminated.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let LinkLen::Exactly(len) = Self::len_of(bytes)? else { return Err(Error::INVAL) };
        let bytes = bytes.get(..len).ok_or(Error::INVAL)?;
        name(&bytes[..NAME])?;
        let addr = Self(bytes.into());
        addr.fields().try_for_each(|(fabric, _)| name(fabric).map(drop))?;
        Ok(addr)
    }

    /// The address of an endpoint on this host, of these parts; -FI_EINVAL for more than an address
    /// has, or for a longer one.
    pub fn new(
        host: &[u8],
        mark: Option<[u8; MARK_LEN]>,
        parts: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Self> {
        if parts.len() > MOST_PARTS || parts.iter().any(|(_, addr)| addr.len() > MOST_PART_LEN) {
            return Err(Error::INVAL);
        }
        let mut bytes = Vec::from(field(host, if mark.is_some() { MARKED_NAME } else { NAME }));
        if let Some(mark) = mark {
            bytes[MARKED_NAME..NAME - MARK_LEN].copy_from_slice(MARKED);
            bytes[NAME - MARK_LEN..].copy_from_slice(&mark);
        }
        bytes.extend_from_slice(&(parts.len() as u32).to_ne_bytes());
        bytes.resize(HEAD, 0);
        for (fabric, addr) in parts {
            bytes.extend_from_slice(&field(fabric, NAME));
            bytes.extend_from_slice(&(addr.len() as u64).to_ne_bytes());
            bytes.extend_from_slice(addr);
        }
        Ok(Self(bytes.into()))
    }

    /// All of it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the host name. It does not identify a host: several hosts may share a name, and one
    /// host may have several.
    pub fn host(&self) -> &[u8] {
        name(&self.0[..NAME]).unwrap_or_default()
    }

    /// The mark of the endpoint, if it is one of this library's.
    pub fn mark(&self) -> Option<[u8; MARK_LEN]> {
        let (magic, mark) = self.0[MARKED_NAME..NAME].split_at(MARKED.len());
        (magic == MARKED && self.host().len() < MARKED_NAME).then(|| mark.try_into().ok())?
    }

    /// The parts, as they are: the field of the fabric's name, and the address.
    fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.0[HEAD..];
        std::iter::from_fn(move || {
            let len = len_at(rest, 0)? as usize;
            let (part, behind) = rest.split_at_checked(PART + len)?;
            rest = behind;
            Some((&part[..NAME], &part[PART..]))
        })
    }

    /// The parts: the name of the fabric, and the address there.
    pub fn parts(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields().map(|(fabric, addr)| (name(fabric).unwrap_or_default(), addr))
    }
}

impl fmt::Display for LinkAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fi_lnx://{}", self.host().escape_ascii())?;
        self.parts().try_for_each(|(fabric, addr)| {
            write!(f, "/{}:", fabric.escape_ascii())?;
            match addr.strip_suffix(b"\0") {
                // A name of an endpoint is text.
                Some(text) if !text.is_empty() && text.is_ascii() && !text.contains(&0) => {
                    write!(f, "{}", text.escape_ascii())
                }
                _ => addr.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            }
        })
    }
}

impl fmt::Debug for LinkAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkAddr({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<(Vec<u8>, Vec<u8>)> {
        vec![(b"shm".to_vec(), b"17:0:1\0".to_vec()), (b"10.0.0.0/24".to_vec(), vec![2, 0, 7])]
    }

    #[test]
    fn an_address_comes_out_of_its_bytes_as_it_was_made() {
        let mark = [9; MARK_LEN];
        let addr = LinkAddr::new(b"node-1", Some(mark), &parts()).unwrap();
        assert_eq!(addr.as_bytes().len(), HEAD + 2 * PART + 7 + 3);
        let again = LinkAddr::read(addr.as_bytes()).unwrap();
        assert_eq!(again, addr);
        assert_eq!((again.host(), again.mark()), (&b"node-1"[..], Some(mark)));
        let read: Vec<_> = again.parts().map(|(f, a)| (f.to_vec(), a.to_vec())).collect();
        assert_eq!(read, parts());
        assert_eq!(addr.to_string(), "fi_lnx://node-1/shm:17:0:1/10.0.0.0/24:020007");
        // The original's have nothing behind the name.
        let theirs = LinkAddr::new(&[b'h'; 63], None, &parts()).unwrap();
        assert_eq!((theirs.host().len(), theirs.mark()), (63, None));
        // A long name makes room for the mark.
        let long = LinkAddr::new(&[b'h'; 80], Some(mark), &parts()).unwrap();
        assert_eq!((long.host().len(), long.mark()), (MARKED_NAME - 1, Some(mark)));
    }

    /// Address returned by fi_getname(3) of an upstream endpoint (2.5 and 2.7), of shm and tcp on
    /// `lo`. The bytes behind the NUL of a fabric name are uninitialized memory.
    #[test]
    fn an_address_of_the_originals_is_read() {
        let mut bytes = vec![0; 251];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, b"vm\0\0\0\0\0\0\xe8\x5c\x0d\xb8");
        put(64, &2u32.to_ne_bytes());
        put(72, b"shm\0\0\0\0\0\x80\x26\x01");
        put(136, &19u64.to_ne_bytes());
        put(144, b"fi_shm://23544:0:0\0");
        put(163, b"127.0.0.1/32\0P\x03");
        put(227, &16u64.to_ne_bytes());
        put(235, b"\x02\0\xb6\xab\x7f\0\0\x01");
        let mut longer = bytes.clone();
        longer.resize(4096, 7);
        let addr = LinkAddr::read(&longer).unwrap();
        assert_eq!((addr.as_bytes(), addr.host(), addr.mark()), (&bytes[..], &b"vm"[..], None));
        let parts: Vec<_> = addr.parts().collect();
        assert_eq!(parts[0], (&b"shm"[..], &b"fi_shm://23544:0:0\0"[..]));
        assert_eq!(parts[1], (&b"127.0.0.1/32"[..], &bytes[235..]));
    }

    #[test]
    fn the_length_is_found_with_no_more_bytes_than_an_address_has() {
        let addr = LinkAddr::new(b"node", None, &parts()).unwrap();
        let (mut known, mut looks) = (0, 0);
        let len = loop {
            looks += 1;
            match LinkAddr::len_of(&addr.as_bytes()[..known]).unwrap() {
                LinkLen::Exactly(len) => break len,
                LinkLen::AtLeast(more) => {
                    assert!(more > known && more <= addr.as_bytes().len());
                    known = more;
                }
            }
        };
        assert_eq!((len, looks), (addr.as_bytes().len(), 4));
    }

    #[test]
    fn malformed_addresses_are_refused() {
        let good = LinkAddr::new(b"node", Some([1; MARK_LEN]), &parts()).unwrap();
        let good = good.as_bytes();
        for len in 0..good.len() {
            assert_eq!(LinkAddr::read(&good[..len]), Err(Error::INVAL), "{len} bytes");
        }
        let with = |at: usize, bytes: &[u8]| {
            let mut bad = good.to_vec();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            LinkAddr::read(&bad)
        };
        assert_eq!(with(NAME, &65u32.to_ne_bytes()), Err(Error::INVAL));
        assert_eq!(with(NAME, &u32::MAX.to_ne_bytes()), Err(Error::INVAL));
        assert_eq!(with(NAME, &3u32.to_ne_bytes()), Err(Error::INVAL));
        assert_eq!(with(HEAD + NAME, &1025u64.to_ne_bytes()), Err(Error::INVAL));
        assert_eq!(with(HEAD + NAME, &u64::MAX.to_ne_bytes()), Err(Error::INVAL));
        assert_eq!(with(0, &[b'x'; NAME]), Err(Error::INVAL));
        assert_eq!(with(HEAD, &[b'x'; NAME]), Err(Error::INVAL));
        assert!(with(HEAD, b"tcp").is_ok());
        let many = vec![(b"f".to_vec(), vec![0; 4]); MOST_PARTS + 1];
        assert_eq!(LinkAddr::new(b"node", None, &many), Err(Error::INVAL));
        let long = [(b"f".to_vec(), vec![0; MOST_PART_LEN + 1])];
        assert_eq!(LinkAddr::new(b"node", None, &long), Err(Error::INVAL));
    }
}
