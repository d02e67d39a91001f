//! Datagrams sent and received by system calls, several at a time.
use crate::addr::{self, RawAddr};
use crate::buf::RecvBuf;
use crate::error::{Error, Result};
use core::ffi::c_int;
use libc::iovec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;

/// Received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Length of the datagram in bytes; more than the size of its buffer if the datagram was
    /// truncated.
    pub len: usize,
    /// The sender's address, if it was asked for.
    pub from: Option<SocketAddr>,
    /// If there are several, one behind the other, the length of each but the last; else 0.
    pub segment: usize,
}

/// Largest control message by which the kernel reports the length of each of several coalesced
/// datagrams.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct SegmentMessage([u8; 64]);

/// Sends datagrams of `stride` bytes each to one address in one system call, without blocking or
/// SIGPIPE; the last may be shorter.
pub fn send_datagrams(socket: RawFd, to: &RawAddr, bytes: &[u8], stride: usize) -> Result {
    let stride = u16::try_from(stride).map_err(|_| Error::MSGSIZE)?;
    let (name, name_len) = crate::addr::as_sockaddr(to);
    let mut dst = SegmentMessage([0; 64]);
    let mut iov = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // SAFETY: the kernel only reads the address, the bytes and the control message, all of
        // which outlive the call; the latter has room for the one that is written to it.
        let sent = unsafe {
            let mut message = std::mem::zeroed::<libc::msghdr>();
            message.msg_name = name.cast_mut().cast();
            message.msg_namelen = name_len;
            (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
            if bytes.len() > usize::from(stride) {
                message.msg_control = (&raw mut dst).cast();
                message.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                ((*head).cmsg_level, (*head).cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
                (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
                libc::CMSG_DATA(head).cast::<u16>().write_unaligned(stride);
            }
            libc::sendmsg(socket, &raw const message, flags)
        };
        match Error::last_os() {
            _ if sent >= 0 => return Ok(()),
            Error::INTR => {}
            error => return Err(error),
        }
    }
}

/// Returns the length of each of several coalesced datagrams, as reported by the control message; 0
/// for a single datagram.
///
/// # Safety
/// The kernel has filled in the header, and its control message is still valid.
unsafe fn segment_of(message: &libc::msghdr) -> usize {
    // SAFETY: by this function's contract.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if ((*head).cmsg_level, (*head).cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let segment = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
                return usize::try_from(segment).unwrap_or(0);
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    0
}

/// Maximum number of datagrams received by one call.
pub const BATCH: usize = 8;

/// Receives datagrams into `bufs`, in order, with one system call and without blocking. Each
/// buffer gets one datagram (or `several` of one sender, if the socket has UDP_GRO). Only the first
/// [`BATCH`] buffers are used. Returns the number of datagrams; a smaller number than buffers means
/// no more have arrived. Fails with -FI_EAGAIN if there is none.
#[inline]
pub fn receive_datagrams<'a>(
    socket: RawFd,
    bufs: impl Iterator<Item = &'a RecvBuf>,
    sources: bool,
    several: bool,
    out: &mut [Datagram; BATCH],
) -> Result<usize> {
    let mut names = [[0u8; addr::MAX_LEN]; BATCH];
    let mut controls = [SegmentMessage([0; 64]); BATCH];
    // SAFETY: all zeros is a valid mmsghdr: no name, no room, no control data.
    let mut messages = unsafe { std::mem::zeroed::<[libc::mmsghdr; BATCH]>() };
    let mut count = 0;
    for dst in bufs.take(BATCH) {
        let header = &mut messages[count].msg_hdr;
        if several {
            header.msg_control = (&raw mut controls[count]).cast();
            header.msg_controllen = size_of::<SegmentMessage>() as _;
        }
        let iov = dst.iov();
        header.msg_iov = iov.as_ptr().cast_mut();
        header.msg_iovlen = iov.len() as _;
        if sources {
            header.msg_name = names[count].as_mut_ptr().cast();
            header.msg_namelen = addr::MAX_LEN as libc::socklen_t;
        }
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    let got = loop {
        // SAFETY: the kernel writes to `count` headers, their names, and the memory of the
        // application, valid for the lifetime of its `RecvBuf`; it only reads the iovecs, borrowed
        // from `bufs`.
        let got = unsafe {
            let (messages, count) = (messages.as_mut_ptr(), count as _);
            libc::recvmmsg(socket, messages, count, flags as _, std::ptr::null_mut())
        };
        match usize::try_from(got) {
            Ok(got) => break got.min(BATCH),
            Err(_) if Error::last_os() == Error::INTR => {}
            Err(_) => return Err(Error::last_os()),
        }
    };
    for at in 0..got {
        let (message, name) = (&messages[at], &names[at]);
        let name_len = (message.msg_hdr.msg_namelen as usize).min(name.len());
        out[at] = Datagram {
            len: message.msg_len as usize,
            from: if sources { addr::from_bytes(&name[..name_len]).ok() } else { None },
            // SAFETY: just filled in.
            segment: if several { unsafe { segment_of(&message.msg_hdr) } } else { 0 },
        };
    }
    Ok(got)
}

/// A datagram, or several of one sender, in memory of the library's.
#[derive(Clone, Copy, Debug)]
pub struct AddressedDatagram {
    /// Bytes of it.
    pub len: usize,
    /// The sender's address.
    pub from: SocketAddr,
    /// Destination IP address, if reported by the socket (IP_PKTINFO, IPV6_RECVPKTINFO).
    pub to: Option<IpAddr>,
    /// If there are several, one behind the other, the length of each but the last; else 0.
    pub segment: usize,
}

/// The control messages of one call as long as they can be: the length of segments and the addresses.
#[repr(C, align(8))]
struct AddressMessages([u8; 128]);

/// Receives one datagram into `dst`, without blocking. Fails with -FI_EAGAIN if there is none, and
/// with -FI_ETRUNC if it exceeded the buffer; it is then lost.
pub fn receive_datagram(socket: RawFd, dst: &mut [u8]) -> Result<AddressedDatagram> {
    let mut name = [0u8; addr::MAX_LEN];
    let mut controls = AddressMessages([0; 128]);
    let mut iov = iovec { iov_base: dst.as_mut_ptr().cast(), iov_len: dst.len() };
    loop {
        // SAFETY: all zeros is a valid header. The kernel writes to the room, the name and the control
        // messages, all of which outlive the call and are as long as said.
        let (got, message) = unsafe {
            let mut message = std::mem::zeroed::<libc::msghdr>();
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = name.len() as libc::socklen_t;
            (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
            message.msg_control = (&raw mut controls).cast();
            message.msg_controllen = size_of::<AddressMessages>() as _;
            (libc::recvmsg(socket, &raw mut message, libc::MSG_DONTWAIT), message)
        };
        let Ok(len) = usize::try_from(got) else {
            match Error::last_os() {
                Error::INTR => continue,
                error => return Err(error),
            }
        };
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(Error::TRUNC);
        }
        let name_len = (message.msg_namelen as usize).min(name.len());
        let from = addr::from_bytes(&name[..name_len])?;
        // SAFETY: the kernel has filled the header in, and its control messages are still there.
        let (segment, to) = unsafe { (segment_of(&message), destination_of(&message)) };
        return Ok(AddressedDatagram { len, from, to, segment });
    }
}

/// Returns the destination IP address of a datagram from its message header.
///
/// # Safety
/// The kernel has filled in the header, and its control messages are still in place.
unsafe fn destination_of(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: by this function's contract; control messages of these types have such data.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            match ((*head).cmsg_level, (*head).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = libc::CMSG_DATA(head).cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = libc::CMSG_DATA(head).cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => head = libc::CMSG_NXTHDR(message, head),
            }
        }
    }
    None
}
