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
}
