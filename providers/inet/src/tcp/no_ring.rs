//! In place of an io_uring on processors without support for it: no ring is created.
use super::sock::TcpSocket;
use ofi_provider::buf::CopyMode;
use ofi_provider::error::{Error, Result};
use ofi_stream::transport::MAX_EACH;
use std::marker::PhantomData;

/// Most operations in one call.
pub(crate) const BATCH: usize = MAX_EACH;

/// Send or receive that is never run.
pub(crate) struct RingOp<'a> {
    /// -FI_EAGAIN.
    pub(crate) result: Result<usize>,
    uses: PhantomData<&'a mut [u8]>,
}

impl<'a> RingOp<'a> {
    fn new() -> Self {
        Self { result: Err(Error::AGAIN), uses: PhantomData }
    }

    /// Creates an array of empty operations, to be replaced.
    pub(crate) fn nothing() -> [Self; BATCH] {
        std::array::from_fn(|_| Self::new())
    }

    /// Creates an operation.
    pub(crate) fn send(_socket: &'a TcpSocket, _bytes: &'a [u8]) -> Self {
        Self::new()
    }

    /// Creates an operation.
    pub(crate) fn receive(_socket: &'a TcpSocket, _buf: &'a mut [u8]) -> Self {
        Self::new()
    }

    /// Creates an operation.
    ///
    /// # Safety
    /// As with an io_uring, the memory named by `list` is alive when the operation is run.
    pub(crate) unsafe fn send_list(
        _socket: &'a TcpSocket,
        _list: &'a libc::msghdr,
        _way: CopyMode,
    ) -> Self {
        Self::new()
    }

    /// Creates an operation.
    ///
    /// # Safety
    /// As with an io_uring, the memory named by `list` is alive when the operation is run.
    pub(crate) unsafe fn receive_list(_socket: &'a TcpSocket, _list: &'a mut libc::msghdr) -> Self {
        Self::new()
    }
}

/// No ring.
#[derive(Debug)]
pub(crate) enum Ring {}

impl Ring {
    /// Fails with -FI_ENOSYS.
    pub(crate) fn new() -> Result<Self> {
        Err(Error::NOSYS)
    }

    /// Runs operations.
    pub(crate) fn run(&mut self, _ops: &mut [RingOp<'_>]) -> Result {
        match *self {}
    }
}
