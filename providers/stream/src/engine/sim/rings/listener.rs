//! Listeners of simulated links.
use super::{RingCursor, RingId, Rings};
use crate::transport::LinkListener;
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use ofi_simulation::here;

/// Listener of the simulated world.
#[derive(Debug)]
pub struct RingListener {
    pub(super) net: Rings,
    pub(super) id: usize,
}

impl LinkListener for RingListener {
    type Link = RingCursor;

    fn id(&self) -> RingId {
        RingId::Listener(self.id)
    }

    fn listen(&self, _backlog: i32) -> Result {
        Ok(())
    }

    fn stop_listening(&self) {}

    fn waiting(&self) -> usize {
        self.net.world().listeners[self.id].as_ref().map_or(0, |listener| listener.waiting.len())
    }

    fn accept(&self) -> Result<(RingCursor, Addr)> {
        let mut world = self.net.world();
        if world.listener(self.id).waiting.is_empty() {
            return Err(Error::AGAIN);
        }
        here::memory()?;
        world.open_end(self.net.node)?;
        let pipe = world.listener(self.id).waiting.pop_front().ok_or(Error::AGAIN)?;
        let from =
            world.pipes[pipe].as_ref().map(|pipe| pipe.addrs[0].clone()).ok_or(Error::AGAIN)?;
        Ok((RingCursor { net: self.net.clone(), pipe, side: 1 }, from))
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        let listener = self.net.world().listeners[self.id].take();
        // Connections not accepted are disconnected.
        for pipe in listener.into_iter().flat_map(|listener| listener.waiting) {
            self.net.world().watches[self.net.node].ends += 1;
            drop(RingCursor { net: self.net.clone(), pipe, side: 1 });
        }
    }
}
