//! Buffers for reads from links.
use ofi_provider::buf::zeroed;
use ofi_provider::error::Result;
use std::mem::take;

/// Staging buffers of an engine. While one of them is in use by a read it is moved out.
#[derive(Debug)]
pub(super) struct Staging {
    /// Buffer for reads from one connection, of
    /// [`prefetch`](crate::settings::StreamSettings::prefetch) bytes; empty while in use.
    buf: Box<[u8]>,
    /// Buffers for reads from many connections at once, one per read.
    batch: Vec<Box<[u8]>>,
}

impl Staging {
    /// Allocates the buffer for one connection.
    pub(super) fn new(len: usize) -> Result<Self> {
        Ok(Self { buf: zeroed(len)?, batch: Vec::new() })
    }

    /// The buffer for one connection, for a read without other work.
    #[inline(always)]
    pub(super) fn buf(&mut self) -> &mut [u8] {
        &mut self.buf
    }

    /// Returns true while the buffer for one connection is moved out.
    pub(super) fn is_taken(&self) -> bool {
        self.buf.is_empty()
    }

    /// Moves the buffer for one connection out.
    pub(super) fn take(&mut self) -> Box<[u8]> {
        take(&mut self.buf)
    }

    /// Returns the buffer for one connection.
    pub(super) fn restore(&mut self, buf: Box<[u8]>) {
        self.buf = buf;
    }

    /// Moves the buffers for at least `count` connections out; each has `len` bytes.
    pub(super) fn take_batch(&mut self, count: usize, len: usize) -> Vec<Box<[u8]>> {
        let mut bufs = take(&mut self.batch);
        bufs.resize_with(bufs.len().max(count), || vec![0; len].into_boxed_slice());
        bufs
    }

    /// Returns the buffers for many connections.
    pub(super) fn restore_batch(&mut self, bufs: Vec<Box<[u8]>>) {
        self.batch = bufs;
    }
}
