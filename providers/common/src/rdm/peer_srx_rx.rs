//! Receives of a matching engine belonging to another provider (`crate::imports`).
use super::messages::Envelope;
use super::multi_recv::Recv;
use crate::abi::{FI_COMPLETION, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, fi_addr_t};
use crate::buf::MessageBytes;
use crate::mr::MrTable;
use crate::peer_srx::{NotedMessage, OwnersAnswer, OwnersEntry, SrxOwner, SrxStart, SrxStartQueue};
use crate::probes;
use crate::slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Another provider's queue, as a source of receives for one matching engine.
#[derive(Debug)]
pub(super) struct PeerSrxQueue {
    pub(super) owner: SrxOwner,
    started: Arc<SrxStartQueue>,
    /// Entry for a note of the last message queried without a receive.
    slot: Option<(Envelope, OwnersEntry)>,
    /// Receives being filled.
    filling: Slab<OwnersEntry>,
    /// Regions of the domain, for the locations of buffers, if it has FI_HMEM.
    devices: Option<Arc<MrTable>>,
    /// Notes held by the owner, by the queues and numbers of the messages.
    noted: HashMap<(usize, u32), OwnersEntry>,
}

/// Returns true if a note of one message is valid for the other.
fn are_alike(one: &Envelope, other: &Envelope) -> bool {
    (one.tagged, one.tag, one.len, one.cq_data, one.peer)
        == (other.tagged, other.tag, other.len, other.cq_data, other.peer)
}

impl PeerSrxQueue {
    pub(super) fn new(
        owner: SrxOwner,
        started: &Arc<SrxStartQueue>,
        devices: Option<Arc<MrTable>>,
    ) -> Self {
        Self {
            devices,
            owner,
            started: started.clone(),
            slot: None,
            filling: Slab::default(),
            noted: HashMap::new(),
        }
    }

    /// A receive for a message from `sender`, if the owner has one. The caller buffers a message
    /// without a receive if `is_last`. Otherwise it requests one again, and none is possibly in memory
    /// of a device.
    pub(super) fn take(
        &mut self,
        envelope: &Envelope,
        sender: fi_addr_t,
        is_last: bool,
    ) -> Option<Recv> {
        // Other owners keep an entry for each query without a receive: they get one query for each
        // message, followed by its note.
        if !is_last && (!self.owner.is_own() || self.devices.is_some()) {
            return None;
        }
        // A message that is asked for again may have a receive by now, and those behind it must not
        // get theirs first.
        if self.slot.is_some() {
            self.drop_slot();
        }
        match self.owner.get(envelope.tagged, sender, envelope.len, envelope.tag).ok()? {
            OwnersAnswer::Receive(entry) => self.receive(entry),
            OwnersAnswer::Slot(entry) => {
                self.slot = Some((*envelope, entry));
                None
            }
        }
    }

    /// Passes a completely arrived message from `sender` to a receive of an owner of this library.
    /// Returns false if nothing was done, as during a trace: the other paths have probes.
    #[inline]
    pub(super) fn recv_whole_message(
        &mut self,
        tagged: bool,
        sender: fi_addr_t,
        tag: u64,
        bytes: impl MessageBytes,
    ) -> bool {
        if !self.owner.is_own() || probes::is_enabled() {
            return false;
        }
        if self.slot.is_some() {
            self.drop_slot();
        }
        self.owner.take(tagged, sender, tag, bytes)
    }

    #[cold]
    fn drop_slot(&mut self) {
        if let Some((_, entry)) = self.slot.take() {
            self.free_unqueued(entry);
        }
    }

    /// Returns an entry without a note. The original's owners expect none: they would remove it from
    /// the list of waiting messages, and count one of the sender's messages less. They free it when
    /// they are closed.
    fn free_unqueued(&self, entry: OwnersEntry) {
        if self.owner.is_own() {
            self.owner.free(entry);
        }
    }

    /// Returns the receive of an owner's entry.
    pub(super) fn receive(&mut self, entry: OwnersEntry) -> Option<Recv> {
        let Ok((buf, context, flags)) = entry.receive() else {
            self.owner.free(entry);
            return None;
        };
        let buf = match &self.devices {
            Some(regions) => regions.located(buf),
            None => buf,
        };
        let number = self.filling.insert(entry);
        // The owner asks for an entry of each receive.
        let flags = (flags & FI_MULTI_RECV) | FI_COMPLETION;
        Some(Recv::imported(buf, context, flags, number))
    }

    /// Returns a reported receive to its owner.
    pub(super) fn release(&mut self, number: u32) {
        if let Some(entry) = self.filling.remove(number) {
            self.owner.free(entry);
        }
    }

    /// Stores a note of a buffered message at the owner.
    pub(super) fn note(&mut self, envelope: &Envelope, sender: fi_addr_t, ep: u32, message: u32) {
        if self.slot.as_ref().is_some_and(|(of, _)| !are_alike(of, envelope)) {
            self.drop_slot();
        }
        let entry = match self.slot.take() {
            Some((_, entry)) => Some(entry),
            None => match self.owner.get(envelope.tagged, sender, envelope.len, envelope.tag) {
                Ok(OwnersAnswer::Slot(entry)) => Some(entry),
                // A receive that came meanwhile is like one that comes later.
                Ok(OwnersAnswer::Receive(entry)) => {
                    let (queue, dropped) = (envelope.queue(), false);
                    self.started.put(SrxStart { entry, dropped, ep, queue, message });
                    None
                }
                Err(_) => None,
            },
        };
        let Some(entry) = entry else { return };
        let noted = NotedMessage {
            started: Arc::downgrade(&self.started),
            ep,
            queue: envelope.queue(),
            message,
            tagged: envelope.tagged,
            flags: if envelope.cq_data.is_some() { FI_REMOTE_CQ_DATA } else { 0 },
            len: envelope.len,
            tag: envelope.tag,
            cq_data: envelope.cq_data,
            addr: AtomicU64::new(sender),
        };
        if self.owner.note(entry, noted).is_ok() {
            self.noted.insert((envelope.queue(), message), entry);
        } else {
            self.free_unqueued(entry);
        }
    }

    /// Sets the address of the sender of a buffered message.
    pub(super) fn name(&self, message: (usize, u32), addr: fi_addr_t) {
        if let Some(entry) = self.noted.get(&message) {
            self.owner.name(*entry, addr);
        }
    }

    /// Removes the note of a buffered message that no longer exists.
    pub(super) fn forget(&mut self, message: (usize, u32)) {
        self.noted.remove(&message);
    }
}

impl Drop for PeerSrxQueue {
    fn drop(&mut self) {
        self.drop_slot();
        for number in self.filling.indices(|_| true) {
            self.release(number);
        }
    }
}
