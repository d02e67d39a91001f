//! Bytes of a peer of this host in memory of devices, copied by the device of this process (FI_HMEM).
//!
//! The peer announces an allocation, then mapped into this process, and later sends cells with
//! places in it, in place of the bytes of messages
//! ([`device_export`](super::device_export)). The bytes are copied to memory of a device at once, or through
//! bounce buffers to memory of the host. The connection is not read meanwhile.
use super::arrival::{Arrival, StreamUnexpected, UnexpectedPayload};
use super::device_export::ALLOCATIONS_MAX;
use super::device_send::{DeviceSend, ReadyBytes};
use super::incoming::{Got, MessageTarget};
use super::peer_devices::{DeviceFetch, FetchWay};
use super::rx_path::RxPath;
use crate::transport::{ByteLink, ShmLink, ShmTransport, peer_of};
use ofi_provider::buf::SendBuf;
use ofi_provider::device_sharing::MappedAllocation;
use ofi_provider::error::{Error, Result};
use ofi_provider::log::peer_text;
use ofi_provider::shm_channel::{DEVICE_CELL, DeviceCell, DeviceCellKind};

/// Progress of a copied buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FetchProgress {
    /// Copies are in progress.
    Pending,
    /// All bytes are in the message's target.
    Done,
    /// The connection has ended, or waits for copies of its message.
    Over,
}

/// Copies of buffers of a peer, on behalf of the connections of an engine.
pub(super) struct DeviceFetcher<'a, N: ShmTransport> {
    rx: &'a mut RxPath<N>,
}

impl<'a, N: ShmTransport> DeviceFetcher<'a, N> {
    pub(super) fn new(rx: &'a mut RxPath<N>) -> Self {
        Self { rx }
    }

    /// Handles a cell about memory of devices, next on a link.
    #[cold]
    pub(super) fn handle_cell(&mut self, id: u32) -> Got {
        let Some(conn) = self.rx.tx.io.conns.get_mut(id) else { return Got::Last };
        if conn.devices.as_ref().is_some_and(|devices| devices.fetch.is_some()) {
            // Another event has resumed the connection.
            return self.pause_fetch(id);
        }
        let cell = match conn.link.inbound_channel().and_then(|channel| channel.device_cell()) {
            Ok(cell) => cell,
            Err(error) => {
                // The error is the link's own if there is no such cell.
                let is_own = !conn.link.rx_over_shm();
                self.rx.fail(id, if is_own { DEVICE_CELL } else { error });
                return Got::Last;
            }
        };
        match cell.kind {
            DeviceCellKind::Allocation => {
                self.map_allocation(id, &cell);
                return Got::More;
            }
            DeviceCellKind::Buffer => {}
        }
        if let Err(error) = self.begin_fetch(id, &cell) {
            self.rx.fail(id, error);
            return Got::Last;
        }
        match self.advance_fetch(id) {
            FetchProgress::Pending => self.pause_fetch(id),
            FetchProgress::Done => Got::More,
            FetchProgress::Over => Got::Last,
        }
    }

    /// Maps an announced allocation, if it can be, and ends the mapping of another.
    fn map_allocation(&mut self, id: u32, cell: &DeviceCell) {
        let conn = &mut self.rx.tx.io.conns[id];
        let devices = conn.devices.get_or_insert_default();
        devices.mapped.remove(&cell.ended);
        let ep = &self.rx.tx.eps[conn.ep];
        // Buffered receives take the first bytes of a message with its header.
        let takes_cells = ep.matcher.buffering.state().is_none();
        let pool = ep.bounce.as_ref().filter(|pool| takes_cells && pool.shares());
        let len = usize::try_from(cell.len).unwrap_or(usize::MAX);
        let mapped = match pool {
            _ if cell.number == 0 => None,
            Some(pool) if devices.mapped.len() < ALLOCATIONS_MAX => {
                let interfaces = pool.interfaces();
                let memory =
                    conn.link.inbound_channel().ok().and_then(|channel| channel.peer_memory());
                let copy_file = |file| memory.ok_or(Error::OPNOTSUPP)?.copy_file(file);
                let (interface, handle) = (cell.interface, &cell.handle);
                let opened = MappedAllocation::open(interfaces, interface, handle, len, copy_file);
                ofi_provider::log_sparsely!(
                    N::Link::provider(),
                    INFO,
                    EP_DATA,
                    "memory of devices of {} {}",
                    peer_text(peer_of(&conn.link)),
                    match &opened {
                        Ok(_) => "is read where it is".to_owned(),
                        Err(error) => format!("is copied by it: {error}"),
                    }
                );
                opened.ok()
            }
            _ => None,
        };
        let is_mapped = mapped.is_some();
        if let Some(mapped) = mapped {
            devices.mapped.insert(cell.number, mapped);
        }
        if let Ok(channel) = conn.link.inbound_channel() {
            channel.took_announcement(cell.number, is_mapped);
        }
    }

    /// Starts the copy of a buffer with the next bytes of the message in progress. Fails with
    /// -FI_EPROTO if there is no such message, or if the buffer is not in a mapped allocation.
    fn begin_fetch(&mut self, id: u32, cell: &DeviceCell) -> Result {
        let conn = &mut self.rx.tx.io.conns[id];
        let (incoming, devices) = (conn.incoming.as_mut(), conn.devices.as_mut());
        let (incoming, devices) = (incoming.ok_or(Error::PROTO)?, devices.ok_or(Error::PROTO)?);
        let mapped = devices.mapped.get(&cell.number).ok_or(Error::PROTO)?;
        let len = usize::try_from(cell.len).map_err(|_| Error::PROTO)?;
        if len == 0 || len > incoming.left() {
            return Err(Error::PROTO);
        }
        let source = SendBuf::of_mapped(mapped, cell.from, len).ok_or(Error::PROTO)?;
        let is_direct = match &mut incoming.target {
            MessageTarget::Device(recv) => recv.start_shared(incoming.done, mapped, cell.from, len),
            _ => false,
        };
        let way = match incoming.target {
            MessageTarget::Discard => FetchWay::Dropped,
            _ if is_direct => FetchWay::Direct,
            _ => FetchWay::Staged(Box::new(DeviceSend::new(source, None))),
        };
        devices.fetch = Some(DeviceFetch::new(way, len, mapped));
        Ok(())
    }

    /// Stops reading a connection until the copies of a peer's buffer have ended.
    fn pause_fetch(&mut self, id: u32) -> Got {
        if self.rx.block(id, &[]) {
            self.rx.tx.io.await_copies(id);
            self.rx.tx.io.watch(id);
        }
        Got::Last
    }

    /// Continues a connection that waits for copies.
    pub(super) fn resume_copies(&mut self, id: u32) {
        let conn = &mut self.rx.tx.io.conns[id];
        conn.copying = false;
        let is_blocked = conn.blocked;
        if conn.devices.as_ref().is_some_and(|devices| devices.fetch.is_some()) {
            self.resume_fetch(id);
        } else if let Some(incoming) = &mut conn.incoming {
            if matches!(incoming.target, MessageTarget::Device(_)) {
                match incoming.left() {
                    0 if self.rx.complete_incoming(id) => self.rx.unblock(id),
                    0 => {}
                    _ if is_blocked => self.rx.unblock(id),
                    _ => {
                        self.rx.read(id);
                    }
                }
            }
        }
        if self.rx.tx.io.conns.get(id).is_some_and(|conn| conn.is_connected() && conn.has_unsent())
        {
            self.rx.flush(id);
            self.rx.tx.io.watch_unsent(id);
        }
    }

    /// Continues a connection with a peer's buffer being copied.
    fn resume_fetch(&mut self, id: u32) {
        match self.advance_fetch(id) {
            FetchProgress::Pending => self.rx.tx.io.await_copies(id),
            FetchProgress::Done => self.rx.unblock(id),
            FetchProgress::Over => {}
        }
    }

    /// Advances the copies of a peer's buffer, and finishes it after the last one.
    fn advance_fetch(&mut self, id: u32) -> FetchProgress {
        match self.copy_fetched(id) {
            Ok(false) => FetchProgress::Pending,
            Ok(true) => self.finish_fetch(id, None),
            Err(error) => self.finish_fetch(id, Some(error)),
        }
    }

    /// Advances the copies of a peer's buffer. Returns true after the last one.
    fn copy_fetched(&mut self, id: u32) -> Result<bool> {
        loop {
            let conn = &mut self.rx.tx.io.conns[id];
            let ep = &mut self.rx.tx.eps[conn.ep];
            let (incoming, devices) = (conn.incoming.as_mut(), conn.devices.as_mut());
            let fetch = devices.and_then(|devices| devices.fetch.as_mut());
            let (Some(incoming), Some(fetch)) = (incoming, fetch) else { return Ok(true) };
            let send = match &mut fetch.way {
                FetchWay::Dropped => return Ok(true),
                FetchWay::Direct => {
                    let MessageTarget::Device(recv) = &mut incoming.target else { return Ok(true) };
                    return Ok(recv.is_shared_copied());
                }
                FetchWay::Staged(send) => send,
            };
            let pool = ep.bounce.as_ref().ok_or(Error::PROTO)?;
            if fetch.done == fetch.len {
                return Ok(true);
            }
            if send.advance(fetch.done, pool)? == ReadyBytes::None {
                return Ok(false);
            }
            match incoming.feed(&mut ep.matcher, &self.rx.tx.regions, send.copied(fetch.done)) {
                Ok(0) => return Ok(false),
                Ok(n) => fetch.done += n,
                // The region was closed that the peer writes.
                Err(error) if self.rx.refuse_rest(id, error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Finishes a peer's buffer after the end of its copies, with an error or without.
    fn finish_fetch(&mut self, id: u32, error: Option<Error>) -> FetchProgress {
        let conn = &mut self.rx.tx.io.conns[id];
        let Some(devices) = &mut conn.devices else { return FetchProgress::Over };
        let Some(fetch) = devices.fetch.take() else { return FetchProgress::Over };
        let taken = conn.link.inbound_channel().and_then(|channel| channel.took_device_buffer());
        if let Err(error) = taken {
            if error != Error::CANCELED {
                self.rx.fail(id, error);
                return FetchProgress::Over;
            }
        }
        let Some(incoming) = &mut conn.incoming else { return FetchProgress::Over };
        incoming.done += fetch.len - fetch.done;
        drop(fetch);
        if let Some(error) = error.or(taken.err()) {
            if !self.fail_message(id, error) {
                return FetchProgress::Over;
            }
        }
        let Some(conn) = self.rx.tx.io.conns.get(id) else { return FetchProgress::Over };
        if conn.left() == 0 && !self.rx.complete_incoming(id) {
            if self.rx.tx.io.conns.get(id).is_some_and(|conn| !conn.blocked) {
                self.rx.pause_for_copies(id, &[]);
            }
            return FetchProgress::Over;
        }
        FetchProgress::Done
    }

    /// Fails the message in progress with its bytes lost. If its target cannot be failed alone, the
    /// connection ends, and the result is false.
    fn fail_message(&mut self, id: u32, error: Error) -> bool {
        let conn = &mut self.rx.tx.io.conns[id];
        let Some(incoming) = &mut conn.incoming else { return true };
        let ep = &mut self.rx.tx.eps[conn.ep];
        match std::mem::replace(&mut incoming.target, MessageTarget::Discard) {
            MessageTarget::Device(mut recv) => {
                recv.fail(error);
                incoming.target = MessageTarget::Device(recv);
            }
            MessageTarget::Posted(recv) => ep.matcher.failed(&recv, &incoming.envelope, error),
            MessageTarget::Buffered(number) => {
                let lose = |buffered: &mut UnexpectedPayload| {
                    buffered.body = StreamUnexpected::Lost(error);
                };
                ep.matcher.change(incoming.envelope.queue(), number, lose);
            }
            MessageTarget::Answer(_, finish) => {
                ep.finish_tx(&finish, Err(error));
                let sent = self.rx.tx.lift_fence(id);
                self.rx.conclude(sent);
            }
            MessageTarget::Region(_) => {
                let mut envelope: Arrival = incoming.envelope;
                self.rx.refuse_write(id, &mut envelope, error);
                if let Some(incoming) =
                    self.rx.tx.io.conns.get_mut(id).and_then(|conn| conn.incoming.as_mut())
                {
                    incoming.envelope = envelope;
                }
            }
            MessageTarget::Discard => {}
            target => {
                incoming.target = target;
                self.rx.fail(id, error);
                return false;
            }
        }
        self.rx.tx.io.conns.get(id).is_some()
    }
}
