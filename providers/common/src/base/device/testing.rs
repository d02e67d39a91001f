//! Device without hardware, for unit tests.
use super::*;

/// Device with one allocation, at addresses without any access for the processor.
#[derive(Debug)]
pub(crate) struct FakeDevice {
    pub(crate) base: usize,
    state: Mutex<FakeState>,
}

#[derive(Debug, Default)]
pub(crate) struct FakeState {
    pub(crate) bytes: Vec<u8>,
    /// Copies in progress, with the number of polls until their end.
    copies: Vec<Option<(FakeCopy, usize)>>,
    /// Polls until the end of a new copy; none: it fails.
    pub(crate) polls: Option<usize>,
    pub(crate) pinned: usize,
    /// Mappings of the allocation by its handle.
    pub(crate) mapped: usize,
}

#[derive(Debug)]
struct FakeCopy {
    direction: CopyDirection,
    at: usize,
    host: usize,
    len: usize,
}

pub(crate) const SIZE: usize = 1 << 20;

impl FakeDevice {
    pub(crate) fn new(polls: Option<usize>) -> &'static Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping without any access.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let state = FakeState { bytes: vec![0; SIZE], polls, ..FakeState::default() };
        Box::leak(Box::new(Self { base: base as usize, state: Mutex::new(state) }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    pub(crate) fn interfaces(&'static self) -> DeviceInterfaces {
        Box::leak(Box::new([self as &dyn DeviceInterface]))
    }

    pub(crate) fn location(&'static self) -> DeviceLocation {
        DeviceLocation { interface: self, device: 0 }
    }
}

impl DeviceInterface for FakeDevice {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn number(&self) -> u32 {
        1
    }

    fn device_of(&self, addr: usize) -> Option<u32> {
        (addr.wrapping_sub(self.base) < SIZE).then_some(0)
    }

    unsafe fn start_copy(
        &self,
        _device: u32,
        direction: CopyDirection,
        addr: usize,
        host: *mut u8,
        len: usize,
    ) -> Result<CopyTicket> {
        let mut state = self.state();
        let copy = FakeCopy { direction, at: addr - self.base, host: host as usize, len };
        let polls = state.polls.unwrap_or(usize::MAX);
        state.copies.push(Some((copy, polls)));
        Ok(CopyTicket(state.copies.len() - 1))
    }

    fn poll_copy(&self, _device: u32, ticket: &CopyTicket) -> Result<bool> {
        let mut state = self.state();
        let FakeState { bytes, copies, .. } = &mut *state;
        let slot = &mut copies[ticket.0];
        let (copy, polls) = slot.as_mut().expect("a copy is polled after its end");
        if *polls == usize::MAX {
            *slot = None;
            return Err(Error::IO);
        }
        if *polls > 0 {
            *polls -= 1;
            return Ok(false);
        }
        let of_device = &mut bytes[copy.at..copy.at + copy.len];
        // SAFETY: the caller of `start_copy` keeps the host's bytes valid and unused.
        unsafe {
            let host = std::slice::from_raw_parts_mut(copy.host as *mut u8, copy.len);
            match copy.direction {
                CopyDirection::ToHost => host.copy_from_slice(of_device),
                CopyDirection::ToDevice => of_device.copy_from_slice(host),
            }
        }
        *slot = None;
        Ok(true)
    }

    unsafe fn pin(&self, _host: *mut u8, len: usize) -> Result {
        self.state().pinned += len;
        Ok(())
    }

    fn unpin(&self, _host: *mut u8) {}

    /// The handle with a first byte of 1 names the allocation.
    fn map_handle(
        &self,
        handle: &DeviceHandle,
        _file: Option<BorrowedFd<'_>>,
        _len: usize,
    ) -> Result<(u32, DeviceAllocation)> {
        if handle.bytes[0] != 1 {
            return Err(Error::FAULT);
        }
        self.state().mapped += 1;
        Ok((0, DeviceAllocation { base: self.base, len: SIZE, id: 0 }))
    }

    fn unmap(&self, _device: u32, base: usize) {
        assert_eq!(base, self.base);
        self.state().mapped -= 1;
    }

    unsafe fn start_device_copy(
        &self,
        _device: u32,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<CopyTicket> {
        let mut state = self.state();
        let FakeState { bytes, copies, polls, .. } = &mut *state;
        bytes.copy_within(from - self.base..from - self.base + len, to - self.base);
        // The bytes of the copy itself are in place.
        let copy = FakeCopy { direction: CopyDirection::ToHost, at: 0, host: 1, len: 0 };
        copies.push(Some((copy, polls.unwrap_or(usize::MAX))));
        Ok(CopyTicket(copies.len() - 1))
    }
}
