//! Unit tests of `buf`.
use super::*;
use crate::addr;
use crate::datagram_io::{BATCH, Datagram, receive_datagrams, send_datagrams};

fn segments(parts: &mut [&mut [u8]]) -> Vec<iovec> {
    let one = |p: &mut &mut [u8]| iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() };
    parts.iter_mut().map(one).collect()
}

#[test]
fn small_copies_write_exactly_the_given_bytes() {
    let from: Vec<u8> = (1..=100).collect();
    for n in 0..=from.len() {
        let mut to = vec![0; from.len() + 1];
        // SAFETY: both have so many bytes.
        unsafe { copy_any(from.as_ptr(), to.as_mut_ptr(), n) };
        assert_eq!(to[..n], from[..n]);
        assert!(to[n..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn bytes_go_through_segments_in_order_from_any_offset() {
    let (mut a, mut b, mut c) = (*b"abc", *b"", *b"defgh");
    let iov = segments(&mut [&mut a, &mut b, &mut c]);
    // SAFETY: the arrays outlive the buffer.
    let buf = unsafe { SendBuf::from_iov(iov.as_ptr(), iov.len()) }.unwrap();
    let mut out = [0; 4];
    buf.copy_to(2, &mut out);
    assert_eq!(&out, b"cdef");
    assert_eq!(&*buf.to_boxed().unwrap(), b"abcdefgh");
    let mut list = GatherList::default();
    assert_eq!(buf.gather(4, &mut list), 4);
}

#[test]
fn lists_are_copied_between_any_offsets() {
    let mut list = GatherList::default();
    assert!(list.push_bytes(b"abc") && list.push_bytes(b"") && list.push_bytes(b"defgh"));
    for from in 0..10 {
        for len in 0..10 {
            let mut dst = vec![b'.'; len];
            let n = list.copy_to(from, &mut dst);
            let want = b"abcdefgh".get(from..).unwrap_or_default();
            assert_eq!(dst[..n], want[..want.len().min(len)]);
            let (mut one, mut two) = (*b"...", *b".....");
            let mut bufs = ScatterList::default();
            assert!(bufs.push_buf(&mut one) && bufs.push_buf(&mut two));
            assert_eq!(bufs.copy_from(from, &dst[..n]), n);
            let both = [&one[..], &two].concat();
            assert_eq!(both.get(from..from + n).unwrap_or_default(), &dst[..n]);
            assert_eq!(both.iter().filter(|byte| **byte != b'.').count(), n);
        }
    }
}

#[test]
fn receive_buffer_takes_fitting_bytes_and_returns_their_count() {
    let (mut a, mut b) = ([0u8; 2], [0u8; 3]);
    let iov = segments(&mut [&mut a, &mut b]);
    // SAFETY: the arrays outlive the buffer.
    let buf = unsafe { RecvBuf::from_iov(iov.as_ptr(), iov.len()) }.unwrap();
    assert_eq!(buf.copy_from(1, b"wxyz!"), 4);
    assert_eq!((&a, &b), (b"\0w", b"xyz"));
    assert_eq!(buf.copy_from(9, b"!"), 0);
}

#[test]
fn datagrams_fill_one_buffer_each_in_order_and_tell_their_length() {
    use std::os::fd::AsRawFd;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (fd, own) = (socket.as_raw_fd(), socket.local_addr().unwrap());
    let (mut a, mut b, mut c) = ([0u8; 4], [0u8; 2], [9u8; 4]);
    // SAFETY: the arrays outlive the buffers.
    let bufs = [&mut a[..], &mut b, &mut c]
        .map(|dst| unsafe { RecvBuf::new(dst.as_mut_ptr().cast(), dst.len()) }.unwrap());
    let mut got = [Datagram { len: 0, from: None, segment: 0 }; BATCH];
    assert_eq!(receive_datagrams(fd, bufs.iter(), true, false, &mut got), Err(Error::AGAIN));
    let (mut one, mut two) = (*b"xy", *b"z");
    let iov = segments(&mut [&mut one, &mut two]);
    // SAFETY: the arrays outlive the buffers.
    let (whole, part) = unsafe {
        let whole = SendBuf::from_iov(iov.as_ptr(), 2).unwrap();
        (whole, SendBuf::new(one.as_ptr().cast(), 0).unwrap())
    };
    for buf in [whole.clone(), whole, part] {
        buf.send_to(fd, &addr::to_raw(&own)).unwrap();
    }
    assert_eq!(receive_datagrams(fd, bufs[..2].iter(), true, false, &mut got), Ok(2));
    assert_eq!((&a, &b), (b"xyz\0", b"xy"));
    assert_eq!((got[0].len, got[1].len, got[1].from), (3, 3, Some(own)));
    assert_eq!(receive_datagrams(fd, bufs[2..].iter(), false, false, &mut got), Ok(1));
    assert_eq!((got[0].len, got[0].from, c), (0, None, [9; 4]));
}

#[test]
fn batched_datagrams_arrive_split_or_coalesced_per_socket_option() {
    use std::os::fd::{AsFd, AsRawFd};
    let sockets = [0; 2].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    let [apart, batched] = &sockets;
    crate::sys::set_option(batched.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).unwrap();
    let fd = apart.as_raw_fd();
    for to in &sockets {
        let own = addr::to_raw(&to.local_addr().unwrap());
        send_datagrams(fd, &own, b"abcdefgh", 3).unwrap();
        send_datagrams(fd, &own, b"xy", 3).unwrap();
    }
    let mut memory = [[0u8; 16]; 5];
    // SAFETY: the arrays outlive the buffers.
    let bufs = memory
        .each_mut()
        .map(|dst| unsafe { RecvBuf::new(dst.as_mut_ptr().cast(), dst.len()) }.unwrap());
    let mut got = [Datagram { len: 0, from: None, segment: 0 }; BATCH];
    assert_eq!(receive_datagrams(fd, bufs.iter(), false, false, &mut got), Ok(4));
    assert_eq!([0, 1, 2, 3].map(|at| got[at].len), [3, 3, 2, 2]);
    let fd = batched.as_raw_fd();
    assert_eq!(receive_datagrams(fd, bufs.iter(), false, true, &mut got), Ok(2));
    assert_eq!([(8, 3), (2, 0)], [0, 1].map(|at| (got[at].len, got[at].segment)));
    assert_eq!(&memory[0][..8], b"abcdefgh");
}

#[test]
fn null_memory_with_bytes_and_too_many_segments_are_refused() {
    // SAFETY: nothing is read through the bad pointers.
    unsafe {
        assert!(SendBuf::new(std::ptr::null(), 1).is_err());
        assert!(SendBuf::new(std::ptr::null(), 0).is_ok());
        assert!(SendBuf::from_iov([EMPTY; MAX_SEGMENTS].as_ptr(), MAX_SEGMENTS).is_ok());
        assert!(SendBuf::from_iov([EMPTY; MAX_SEGMENTS + 1].as_ptr(), MAX_SEGMENTS + 1).is_err());
        assert!(RecvBuf::from_iov(std::ptr::null(), 1).is_err());
    }
}
