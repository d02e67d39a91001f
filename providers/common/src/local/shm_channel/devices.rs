//! Exchange of cells about memory of devices with the peer.
//!
//! Such a cell contains no bytes of the stream itself. The reader handles it at its position in the
//! stream: [`ShmChannel::recv`] fails with [`DEVICE_CELL`](super::DEVICE_CELL) until it is taken.
use super::ShmChannel;
use super::cells::exposed_word;
use super::device_cells::{DeviceCell, DeviceCellKind, STATE_WORD};
use crate::device_allocation::{DeviceHandle, HANDLE_LEN};
use crate::error::{Error, Result};
use crate::ring_layout::{CellKind, INLINE};
use core::sync::atomic::Ordering;
use std::os::fd::RawFd;

const ALLOCATION: u32 = 1;
const BUFFER: u32 = 2;

/// Content of a cell.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Content {
    kind: u32,
    number: u32,
    ended: u32,
    interface: u32,
    /// Buffer: offset in the allocation. Announcement: descriptor of the handle ([`word_of`]).
    from: u64,
    len: u64,
    state: u64,
    device: [u8; 16],
    handle: [u8; HANDLE_LEN],
}

const _: () = assert!(size_of::<Content>() <= INLINE);
const _: () = assert!(core::mem::offset_of!(Content, state) == 8 * STATE_WORD);

/// Returns the word of an announcement for a descriptor of the handle. Other versions of this library
/// have 0 there.
fn word_of(file: Option<RawFd>) -> u64 {
    file.and_then(|file| u64::try_from(file).ok()).map_or(0, |file| file + 1)
}

/// Returns the descriptor of a peer's announcement.
fn file_of(word: u64) -> Option<RawFd> {
    word.checked_sub(1).and_then(|file| RawFd::try_from(file).ok())
}

impl ShmChannel {
    /// Returns true if the peer handles cells about memory of devices.
    pub fn peer_knows_devices(&self) -> bool {
        self.out().knows_devices()
    }

    /// Sends a cell about memory of devices; returns false if there is no space. A buffer counts as
    /// a call with zero copy ([`ShmChannel::zcopy_completed`]); `key`: it is in the region with
    /// this key. The buffer stays unchanged until then.
    pub fn send_device_cell(&self, cell: &DeviceCell, key: Option<u64>) -> Result<bool> {
        while !self.writer.has_cell(self.out())? {
            if !self.writer.want_space(self.out())? {
                return Ok(false);
            }
        }
        let is_buffer = cell.kind == DeviceCellKind::Buffer;
        let content = Content {
            kind: if is_buffer { BUFFER } else { ALLOCATION },
            number: cell.number,
            ended: cell.ended,
            interface: cell.interface,
            from: if is_buffer { cell.from } else { word_of(cell.handle.file) },
            len: cell.len,
            state: 0,
            device: cell.handle.device,
            handle: cell.handle.bytes,
        };
        let number = self.writer.next_cell();
        self.out().cell(number).body.with_mut(|body| {
            // SAFETY: the cell has space for the content.
            unsafe { body.cast::<Content>().write_unaligned(content) };
        });
        self.writer.publish(self.out(), CellKind::Device, 1);
        if is_buffer {
            self.writer.count_exposed();
            self.exposed.add_device(self.writer.exposed(), number, key);
            self.exposed.add_call(self.writer.exposed());
        }
        self.writer.sent_all();
        self.notify();
        Ok(true)
    }

    /// Returns true if the peer has mapped the allocation announced last, with this number; none
    /// without an answer yet.
    pub fn allocation_is_mapped(&self, number: u32) -> Option<bool> {
        self.out().is_mapped(number)
    }

    /// Returns the next cell after [`ShmChannel::recv`] has failed with
    /// [`DEVICE_CELL`](super::DEVICE_CELL). Fails with -FI_EPROTO if there is none, or for an unknown
    /// kind.
    pub fn device_cell(&self) -> Result<DeviceCell> {
        let words = self.inbound();
        if !self.reader.look(words)? || self.reader.kind() != CellKind::Device {
            return Err(Error::PROTO);
        }
        let content = words.cell(self.reader.this_cell()).body.with(|body| {
            // SAFETY: the cell has so many bytes, of any content. It is read once.
            unsafe { body.cast::<Content>().read_unaligned() }
        });
        let kind = match content.kind {
            ALLOCATION => DeviceCellKind::Allocation,
            BUFFER => DeviceCellKind::Buffer,
            _ => return Err(Error::PROTO),
        };
        let Content { number, ended, interface, from, len, .. } = content;
        let (from, file) = match kind {
            DeviceCellKind::Allocation => (0, file_of(from)),
            DeviceCellKind::Buffer => (from, None),
        };
        let handle = DeviceHandle { device: content.device, bytes: content.handle, file };
        Ok(DeviceCell { kind, number, ended, interface, from, len, handle })
    }

    /// Ends an announcement ([`ShmChannel::device_cell`]), with an answer for one with a number.
    pub fn took_announcement(&self, number: u32, is_mapped: bool) {
        if number != 0 {
            self.inbound().answer_allocation(number, is_mapped);
        }
        if self.reader.took(self.inbound(), 1) {
            self.notify();
        }
    }

    /// Ends the use of a buffer ([`ShmChannel::device_cell`]). Fails with -FI_ECANCELED if its
    /// memory may have changed before, and with -FI_ECONNRESET if the pipe has ended.
    pub fn took_device_buffer(&self) -> Result {
        // The bytes are read before the state of the buffer.
        let withdrawn = self.inbound().is_withdrawn();
        let cell = self.inbound().cell(self.reader.this_cell());
        let state = exposed_word(cell, STATE_WORD).load(Ordering::Acquire);
        self.reader.took_piece(self.inbound());
        self.notify();
        if withdrawn {
            Err(Error::CONNRESET)
        } else if state != 0 {
            Err(Error::CANCELED)
        } else {
            Ok(())
        }
    }
}
