//! Short internal messages between endpoints, used by collectives and multicast.
use crate::abi::{FI_ADDR_UNSPEC, fi_addr_t};
use crate::buf::{RecvBuf, SendBuf};
use crate::coll::area::Area;
use crate::coll::plan::Bytes;
use crate::cq::Context;
use crate::deferred::{DeferredQueue, Task};
use crate::error::{Error, Result};
use crate::reserved::{COLLECTIVE_TAG, MULTICAST_TAG};
use std::sync::{Arc, Weak};

/// Bytes of the longest notice.
const LONGEST: usize = 64;

/// Maximum number of notices stored of an unknown peer.
const MAX_BUFFERED: u32 = 64;

/// Returns true if an unexpected internal message has to be dropped because its sender, with `buffered`
/// stored messages, is not in the address vector. All group members are in it. Notices may arrive
/// earlier.
pub(crate) fn is_of_unknown_peer(tag: u64, len: usize, buffered: u32) -> bool {
    let notice = tag == COLLECTIVE_TAG || tag == MULTICAST_TAG;
    !notice || len > LONGEST || buffered >= MAX_BUFFERED
}

/// Message transport of an endpoint for internal messages.
pub(crate) trait Port: Send + Sync {
    /// Sends a message, as an internal operation with this `context`.
    fn send(&self, to: fi_addr_t, tag: u64, buf: SendBuf, context: Context) -> Result;
    /// Posts an internal receive with this `context`, of a message from `from`, or from any peer
    /// for FI_ADDR_UNSPEC.
    fn recv(&self, from: fi_addr_t, tag: u64, buf: RecvBuf, context: Context) -> Result;
    /// Takes a receive back.
    fn cancel(&self, context: Context);
    /// Returns the address reported by completions for this one.
    fn id_of(&self, member: fi_addr_t) -> fi_addr_t;
}

/// Notices with one tag sent and received by an endpoint. All work runs as tasks of the domain,
/// without any lock held.
pub(crate) struct NoticeLine {
    port: Weak<dyn Port>,
    later: Arc<DeferredQueue>,
    task_queue: usize,
    tag: u64,
}

impl NoticeLine {
    pub(crate) fn new(
        port: Weak<dyn Port>,
        later: Arc<DeferredQueue>,
        task_queue: usize,
        tag: u64,
    ) -> Arc<Self> {
        Arc::new(Self { port, later, task_queue, tag })
    }

    /// Passes every notice of `LEN` bytes, and its sender as reported by completions, to `on_notice`;
    /// others are dropped. Must be called once, by a task or without any lock held.
    pub(crate) fn listen<const LEN: usize>(
        self: &Arc<Self>,
        on_notice: impl Fn(fi_addr_t, &[u8; LEN]) + Send + Sync + 'static,
    ) {
        self.expect(Arc::new(on_notice));
    }

    fn expect<const LEN: usize>(
        self: &Arc<Self>,
        on_notice: Arc<dyn Fn(fi_addr_t, &[u8; LEN]) + Send + Sync>,
    ) {
        let Some(port) = self.port.upgrade() else { return };
        let Ok(area) = Area::new(LEN) else { return };
        let whole = Bytes { at: 0, len: LEN };
        let buf = area.recv(whole);
        let notices = self.clone();
        let context = self.later.expect(self.task_queue, move |outcome| {
            match outcome {
                Ok(of) => {
                    if let (true, Some(bytes)) = (of.len == LEN, area.bytes(whole).first_chunk()) {
                        on_notice(of.src, bytes);
                    }
                }
                // The receive was cancelled because the endpoint is closed.
                Err(error) if error.error == Error::CANCELED => return,
                Err(_) => {}
            }
            notices.expect(on_notice);
        });
        // This also receives notices of peers that are not in the address vector yet.
        if port.recv(FI_ADDR_UNSPEC, self.tag, buf, context).is_err() {
            self.later.unexpect(context);
        }
    }

    /// Sends a notice soon; `over` is called once with the result. Any lock may be held.
    pub(crate) fn send(
        self: &Arc<Self>,
        to: fi_addr_t,
        bytes: impl AsRef<[u8]> + Send + 'static,
        over: impl Fn(Result) + Send + Sync + 'static,
    ) {
        let (notices, over) = (self.clone(), Arc::new(over));
        self.later.add([Task::new(self.task_queue, move || {
            match notices.post(to, bytes.as_ref(), over.clone()) {
                Err(error) if error != Error::AGAIN => {
                    over(Err(error));
                    Ok(())
                }
                result => result,
            }
        })]);
    }

    fn post(&self, to: fi_addr_t, bytes: &[u8], over: Arc<dyn Fn(Result) + Send + Sync>) -> Result {
        let Some(port) = self.port.upgrade() else { return Ok(()) };
        let area = Area::new(bytes.len())?;
        area.write(0, bytes);
        let buf = area.send(Bytes { at: 0, len: bytes.len() });
        let context = self.later.expect(self.task_queue, move |outcome| {
            let _sent = area;
            over(outcome.map_or_else(|error| Err(error.error), |_| Ok(())));
        });
        port.send(to, self.tag, buf, context).inspect_err(|_| self.later.unexpect(context))
    }
}
