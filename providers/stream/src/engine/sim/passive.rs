//! Passive endpoints over links between simulated engines.
use super::rings::{Rings, StreamWorld};
use super::{SimLink, SimNet};
use crate::accept_queue::{AcceptQueue, PendingConnState};
use crate::engine::StreamRequest;
use crate::repeated_requests::{NumberedRequests, RepeatOutcome};
use crate::transport::{LinkClock, LinkListener, Transport};
use ofi_provider::error::Result;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// A passive endpoint.
#[derive(Debug)]
pub(super) struct RingPassive {
    net: SimNet,
    listener: <SimNet as Transport>::Listener,
    callers: AcceptQueue<SimLink>,
    numbered: NumberedRequests<SimLink>,
}

impl RingPassive {
    pub(super) fn new(world: &Arc<Mutex<StreamWorld>>, at: SocketAddr) -> Result<Self> {
        let net = SimNet::from(Rings::new(world, false));
        let (listener, _) = net.bind(&at.into())?;
        Ok(Self {
            net,
            listener,
            callers: AcceptQueue::new(0, 64),
            numbered: NumberedRequests::default(),
        })
    }

    /// Returns a complete request, with the connecting peer's data.
    pub(super) fn request(&mut self) -> Option<(Vec<u8>, StreamRequest<SimLink>)> {
        while let Ok((link, from)) = self.listener.accept() {
            let now = self.net.now();
            self.callers.admit(self.net.poller(), link, from, 0, now);
        }
        for id in self.callers.ids() {
            if self.callers.receive(id) != PendingConnState::Complete {
                continue;
            }
            let poller = self.net.poller();
            match self.numbered.handle_repeated(&mut self.callers, poller, id) {
                RepeatOutcome::New => {}
                RepeatOutcome::Handled => continue,
                RepeatOutcome::Over => {
                    self.callers.drop(id);
                    continue;
                }
            }
            let (caller, message) = self.callers.take(self.net.poller(), id)?;
            let request = StreamRequest::admit(&mut self.numbered, caller, &message, Arc::new(()));
            return Some((message.data, request));
        }
        None
    }
}
