use super::testing::{FakeDevice, SIZE};
use super::*;
use crate::buf::{RecvBuf, SendBuf};
use crate::device_allocation::HANDLE_LEN;
use crate::device_sharing::{MappedAllocation, SharedCopies};
use crate::rights::ReceivedFd;
use core::ffi::c_void;
use libc::iovec;
use std::os::fd::RawFd;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn copy_ends_when_a_poll_finds_it_complete() {
    let device = FakeDevice::new(Some(3));
    let pool = BouncePool::new(device.interfaces(), 1 << 20, LONG);
    device.state().bytes[10..14].copy_from_slice(b"abcd");
    let mut bounce = pool.take(100).unwrap();
    bounce.start_copy(device.location(), CopyDirection::ToHost, device.base + 10, 5, 4).unwrap();
    assert_eq!([(); 4].map(|()| bounce.poll()), [Ok(false), Ok(false), Ok(false), Ok(true)]);
    assert_eq!(&bounce.bytes()[5..9], b"abcd");
    let end = bounce.size();
    let behind = bounce.start_copy(device.location(), CopyDirection::ToHost, device.base, end, 1);
    assert_eq!(behind, Err(Error::INVAL));
}

#[test]
fn failed_copy_is_reported_after_all_have_ended() {
    let device = FakeDevice::new(Some(2));
    let pool = BouncePool::new(device.interfaces(), 1 << 20, LONG);
    let mut bounce = pool.take(100).unwrap();
    bounce.start_copy(device.location(), CopyDirection::ToDevice, device.base, 0, 4).unwrap();
    device.state().polls = None;
    bounce.start_copy(device.location(), CopyDirection::ToDevice, device.base, 4, 4).unwrap();
    assert_eq!(
        [bounce.poll(), bounce.poll(), bounce.poll()],
        [Ok(false), Ok(false), Err(Error::IO)]
    );
}

#[test]
fn copy_without_an_end_fails_in_time_and_keeps_its_memory() {
    let device = FakeDevice::new(Some(usize::MAX - 1));
    let pool = BouncePool::new(device.interfaces(), 4 * MIN_SIZE, Duration::ZERO);
    let mut bounce = pool.take(MIN_SIZE).unwrap();
    let at = bounce.bytes().as_ptr();
    bounce.start_copy(device.location(), CopyDirection::ToDevice, device.base, 0, 4).unwrap();
    assert_eq!(bounce.wait(), Err(Error::TIMEDOUT));
    drop(bounce);
    let all: Vec<_> = std::iter::from_fn(|| pool.take(MIN_SIZE)).collect();
    assert_eq!(all.len(), 3, "the lost buffer counts");
    assert!(all.iter().all(|other| other.bytes().as_ptr() != at));
}

#[test]
fn pool_is_limited_and_reuses_buffers_of_any_size() {
    let device = FakeDevice::new(Some(0));
    let pool = BouncePool::new(device.interfaces(), 64 << 10, LONG);
    let large: Vec<_> = std::iter::from_fn(|| pool.take(SIZE)).collect();
    assert_eq!(large.iter().map(BounceBuf::size).collect::<Vec<_>>(), [16 << 10; 4]);
    assert_eq!(pool.take_extra().unwrap().size(), EXTRA_SIZE);
    drop(large);
    let small: Vec<_> = std::iter::from_fn(|| pool.take(1)).collect();
    assert_eq!((small.len(), small[0].size()), (16, MIN_SIZE));
    assert_eq!(device.state().pinned, 2 * (64 << 10));
}

/// Returns a send and a receive buffer of two segments of 1000 bytes: the device's from its start
/// on, and the host's.
fn bufs(device: &'static FakeDevice, host: &mut [u8]) -> (SendBuf, RecvBuf) {
    let iov = [
        iovec { iov_base: device.base as *mut c_void, iov_len: 1000 },
        iovec { iov_base: host.as_mut_ptr().cast(), iov_len: 1000 },
    ];
    let mut locations = crate::buf::Locations::default();
    locations[0] = Some(device.location());
    // SAFETY: the bytes of the host outlive the buffers, those of the device are not accessed.
    let (send, recv) =
        unsafe { (SendBuf::from_iov(iov.as_ptr(), 2), RecvBuf::from_iov(iov.as_ptr(), 2)) };
    (send.unwrap().with_locations(locations), recv.unwrap().with_locations(locations))
}

#[test]
fn buffers_of_devices_and_hosts_are_copied_by_segment() {
    let device = FakeDevice::new(Some(1));
    let pool = BouncePool::new(device.interfaces(), 1 << 20, LONG);
    let mut host = vec![0; 1000];
    let (send, recv) = bufs(device, &mut host);
    assert!(send.is_device() && send.in_one_piece().is_none());
    let bytes: Vec<u8> = (0..2000).map(|byte| byte as u8 ^ (byte >> 8) as u8).collect();
    let mut bounce = pool.take(300).unwrap();
    recv.copy_through(0, &bytes, &mut bounce).unwrap();
    assert_eq!(device.state().bytes[..1000], bytes[..1000]);
    let mut back = vec![0; 1500];
    send.copy_through(400, &mut back, &mut bounce).unwrap();
    assert_eq!(back, bytes[400..1900]);
    assert_eq!(host, bytes[1000..]);
}

#[test]
fn parts_of_a_buffer_keep_their_locations() {
    let device = FakeDevice::new(Some(0));
    let mut host = vec![0; 1000];
    let (send, _) = bufs(device, &mut host);
    assert!(send.part(900, 50).is_device() && send.part(900, 500).is_device());
    assert!(!send.part(1000, 500).is_device(), "a part of the host's alone");
    // SAFETY: no processor accesses the bytes.
    let whole = unsafe { RecvBuf::new(device.base as *mut c_void, 1000) }.unwrap();
    let mut locations = crate::buf::Locations::default();
    locations[0] = Some(device.location());
    let whole = whole.with_locations(locations);
    let (empty, rest) = whole.split(0);
    assert_eq!((empty.len(), empty.address(), rest.len()), (0, device.base, 1000));
    let (first, rest) = whole.split(300);
    assert!(first.is_device() && rest.is_device());
    assert_eq!((first.len(), rest.len(), rest.address()), (300, 700, device.base + 300));
}

fn no_file(_: RawFd) -> Result<ReceivedFd> {
    panic!("no handle names a file")
}

fn handle(first: u8) -> DeviceHandle {
    let mut bytes = [0; HANDLE_LEN];
    bytes[0] = first;
    DeviceHandle { device: [0; 16], bytes, file: None }
}

#[test]
fn only_a_valid_handle_is_mapped_and_once_until_its_drop() {
    let device = FakeDevice::new(Some(0));
    let open = |interface, first, len| {
        MappedAllocation::open(device.interfaces(), interface, &handle(first), len, no_file)
    };
    assert_eq!(open(7, 1, SIZE).err(), Some(Error::OPNOTSUPP), "an unknown interface");
    assert_eq!(open(1, 0, SIZE).err(), Some(Error::FAULT));
    for len in [0, SIZE + 1, usize::MAX] {
        assert_eq!(open(1, 1, len).err(), Some(Error::OPNOTSUPP), "it has another length");
    }
    assert_eq!(device.state().mapped, 0);
    let mapped = open(1, 1, SIZE).unwrap();
    assert_eq!(device.state().mapped, 1);
    assert_eq!(mapped.address(SIZE as u64 - 8, 8), Some(device.base + SIZE - 8));
    for (from, len) in [(0, SIZE + 1), (1, SIZE), (SIZE as u64, 1), (u64::MAX, 2)] {
        assert_eq!(mapped.address(from, len), None, "{from}");
        assert!(SendBuf::of_mapped(&mapped, from, len).is_none());
    }
    drop(mapped);
    assert_eq!(device.state().mapped, 0);
}

#[test]
fn a_handle_is_not_mapped_without_the_file_named_by_it() {
    let device = FakeDevice::new(Some(0));
    let named = DeviceHandle { file: Some(5), ..handle(1) };
    let open = |copy_file: &dyn Fn(RawFd) -> Result<ReceivedFd>| {
        MappedAllocation::open(device.interfaces(), 1, &named, SIZE, copy_file)
    };
    assert_eq!(open(&|_| Err(Error::PROTO)).err(), Some(Error::PROTO));
    assert_eq!(device.state().mapped, 0);
    let null = || ReceivedFd::new(std::fs::File::open("/dev/null").unwrap().into());
    let mapped = open(&|file| if file == 5 { Ok(null()) } else { Err(Error::INVAL) }).unwrap();
    assert_eq!(mapped.address(0, SIZE), Some(device.base));
}

#[test]
fn an_allocation_stays_mapped_during_its_copies() {
    let device = FakeDevice::new(Some(2));
    let pool = BouncePool::new(device.interfaces(), 1 << 20, LONG);
    let mapped = MappedAllocation::open(device.interfaces(), 1, &handle(1), SIZE, no_file).unwrap();
    device.state().bytes[..4].copy_from_slice(b"abcd");
    // SAFETY: the buffer is accessed by copies alone.
    let target = unsafe { RecvBuf::new((device.base + 100) as *mut c_void, 3) }.unwrap();
    let mut copies = SharedCopies::new(&pool, &mapped);
    assert_eq!(target.start_shared_copy(0, &mapped, 0, 4, &mut copies), Ok(false), "of a host");
    let mut locations = crate::buf::Locations::default();
    locations[0] = Some(device.location());
    let target = target.with_locations(locations);
    assert_eq!(target.start_shared_copy(0, &mapped, 0, 4, &mut copies), Ok(true));
    drop(mapped);
    assert_eq!(device.state().mapped, 1);
    drop(copies);
    let state = device.state();
    assert_eq!((state.mapped, &state.bytes[100..104]), (0, &b"abc\0"[..]));
}

#[test]
fn an_allocation_with_a_copy_without_an_end_stays_mapped() {
    let device = FakeDevice::new(Some(usize::MAX - 1));
    let pool = BouncePool::new(device.interfaces(), 1 << 20, Duration::ZERO);
    let mapped = MappedAllocation::open(device.interfaces(), 1, &handle(1), SIZE, no_file).unwrap();
    let mut copies = SharedCopies::new(&pool, &mapped);
    // SAFETY: the target is the test's.
    unsafe { copies.start_copy(0, device.location(), device.base + 9, 4) }.unwrap();
    drop((copies, mapped));
    assert_eq!(device.state().mapped, 1);
}
