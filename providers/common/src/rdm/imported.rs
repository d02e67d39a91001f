//! Receives of a matching engine belonging to another provider (`crate::imports`).
use super::inbox::About;
use super::multi_recv::Recv;
use crate::abi::{FI_COMPLETION, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, fi_addr_t};
use crate::buf::MessageBytes;
use crate::imports::{
    NotedMessage, OwnersAnswer, OwnersEntry, SrxOwner, StartedMessage, StartedMessages,
};
use crate::slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Another provider's queue as one inbox takes receives from it.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) owner: SrxOwner,
    started: Arc<StartedMessages>,
    /// Entry for a note of the last message queried without a receive.
    room: Option<(About, OwnersEntry)>,
    /// Receives being filled.
    filling: Slab<OwnersEntry>,
    /// Notes held by the owner, by the queues and numbers of the messages.
    noted: HashMap<(usize, u32), OwnersEntry>,
}

/// Returns true if a note of one message is valid for the other.
fn are_alike(one: &About, other: &About) -> bool {
    (one.tagged, one.tag, one.len, one.cq_data, one.peer)
        == (other.tagged, other.tag, other.len, other.cq_data, other.peer)
}

impl Imported {
    pub(super) fn new(owner: SrxOwner, started: &Arc<StartedMessages>) -> Self {
        Self {
            owner,
            started: started.clone(),
            room: None,
            filling: Slab::default(),
            noted: HashMap::new(),
        }
    }

    /// A receive for a message from `sender`, if the owner has one.
    pub(super) fn take(&mut self, about: &About, sender: fi_addr_t) -> Option<Recv> {
        // A message that is asked for again may have a receive by now, and those behind it must not
        // get theirs first.
        if self.room.is_some() {
            self.drop_room();
        }
        match self.owner.get(about.tagged, sender, about.len, about.tag).ok()? {
            OwnersAnswer::Receive(entry) => self.receive(entry),
            OwnersAnswer::Room(entry) => {
                self.room = Some((*about, entry));
                None
            }
        }
    }

    /// Passes a completely arrived message from `sender` to a receive of an owner of this library.
    /// Returns false if nothing was done.
    #[inline]
    pub(super) fn take_whole(
        &mut self,
        tagged: bool,
        sender: fi_addr_t,
        tag: u64,
        bytes: impl MessageBytes,
    ) -> bool {
        if self.room.is_some() {
            self.drop_room();
        }
        self.owner.take(tagged, sender, tag, bytes)
    }

    #[cold]
    fn drop_room(&mut self) {
        if let Some((_, entry)) = self.room.take() {
            self.owner.free(entry);
        }
    }

    /// Returns the receive of an owner's entry.
    pub(super) fn receive(&mut self, entry: OwnersEntry) -> Option<Recv> {
        let Ok((buf, context, flags)) = entry.receive() else {
            self.owner.free(entry);
            return None;
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

    /// Leaves a note of a kept message with the owner.
    pub(super) fn note(&mut self, about: &About, sender: fi_addr_t, ep: u32, message: u32) {
        let room = self.room.take().filter(|(of, _)| are_alike(of, about));
        let entry = match room {
            Some((_, entry)) => Some(entry),
            None => match self.owner.get(about.tagged, sender, about.len, about.tag) {
                Ok(OwnersAnswer::Room(entry)) => Some(entry),
                // A receive that came meanwhile is like one that comes later.
                Ok(OwnersAnswer::Receive(entry)) => {
                    let (queue, dropped) = (about.queue(), false);
                    self.started.put(StartedMessage { entry, dropped, ep, queue, message });
                    None
                }
                Err(_) => None,
            },
        };
        let Some(entry) = entry else { return };
        let noted = NotedMessage {
            started: Arc::downgrade(&self.started),
            ep,
            queue: about.queue(),
            message,
            tagged: about.tagged,
            flags: if about.cq_data.is_some() { FI_REMOTE_CQ_DATA } else { 0 },
            len: about.len,
            tag: about.tag,
            cq_data: about.cq_data,
            addr: AtomicU64::new(sender),
        };
        if self.owner.note(entry, noted).is_ok() {
            self.noted.insert((about.queue(), message), entry);
        } else {
            self.owner.free(entry);
        }
    }

    /// The sender of a kept message has this address from now on.
    pub(super) fn name(&self, message: (usize, u32), addr: fi_addr_t) {
        if let Some(entry) = self.noted.get(&message) {
            self.owner.name(*entry, addr);
        }
    }

    /// A kept message is not there any more.
    pub(super) fn forget(&mut self, message: (usize, u32)) {
        self.noted.remove(&message);
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        self.drop_room();
        for number in self.filling.indices(|_| true) {
            self.release(number);
        }
    }
}
