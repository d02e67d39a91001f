//! Pending connections: accepted connections with an incomplete or unanswered connection request,
//! at a passive endpoint or at the endpoints of an engine.
//!
//! Without a well-formed request an unknown peer stays in this list. It holds one of a bounded
//! number of entries for at most half a minute. No other part of the provider knows of the peer.
use crate::conn_quota::{ReservedDescriptor, UnknownPeerConn};
use crate::transport::{ByteLink, LinkPoller};
use crate::wire::{CM_LEN, CmMessage, CmType, Malformed};
use ofi_provider::addr::Addr;
use ofi_provider::error::Error;
use ofi_provider::slab::Slab;
use ofi_provider::sys::{Interest, max_descriptors};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time limit for a pending connection to send its connection request.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// Age of a pending connection without a complete request after which it is dropped for lack of
/// descriptors. A peer sends its request in its next progress iteration.
const SILENT_TIME: Duration = Duration::from_secs(5);

/// Maximum bytes discarded by one call. A thread may have a stack of 16 KiB.
const DISCARD: usize = 512;

/// An accepted connection, until its request is complete and taken.
#[derive(Debug)]
pub struct PendingConn<L> {
    /// The caller's link.
    pub link: L,
    /// The address the call comes from.
    pub from: Addr,
    /// Counts the pending connection among those of unknown peers.
    pub unknown_conn: UnknownPeerConn,
    /// Counts one of the last descriptors of the process.
    pub(crate) reserved: Option<ReservedDescriptor>,
    /// Number of the addressed endpoint among the endpoints sharing the list.
    pub called: u32,
    /// Bytes received of the connection request.
    bytes: Vec<u8>,
    request: Option<CmMessage>,
    /// Set while the caller has to wait until the address vector holds this address
    /// ([`only_known`](crate::settings::StreamSettings::only_known)).
    held: Option<Addr>,
    /// The answer to a repeated request was sent: the link ends with the peer's end.
    is_answered: bool,
    serial: u64,
    since: Instant,
}

/// Progress of a pending connection with its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingConnState {
    /// A part of the request is missing.
    Incomplete,
    /// The request is complete: [`AcceptQueue::take`] gives it.
    Complete,
    /// The caller has hung up, or was refused.
    Over,
}

/// All callers of a passive endpoint or an engine.
#[derive(Debug)]
pub struct AcceptQueue<L> {
    waiting: Slab<PendingConn<L>>,
    /// Pending connections in order of arrival, as index and serial number; some may be closed.
    order: VecDeque<(u32, u64)>,
    came: u64,
    /// The poller's token of a caller is this plus its index.
    token: u64,
    /// Maximum number of pending connections, even if descriptors would allow more.
    most: usize,
    /// Messages may follow a request before its response: they stay in the link.
    early_data: bool,
}

impl<L: ByteLink> AcceptQueue<L> {
    /// An empty list, of at most `most` callers. The poller reports a caller by `token` plus its
    /// index.
    pub fn new(token: u64, most: usize) -> Self {
        let (waiting, order) = (Slab::default(), VecDeque::new());
        Self { waiting, order, came: 0, token, most, early_data: false }
    }

    /// Permits messages behind a request before its response.
    pub fn permit_early_data(&mut self) {
        self.early_data = true;
    }

    /// Number of pending connections.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if there are no pending connections.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an accepted connection and reads the bytes received, often the complete request. Drops
    /// the oldest pending connections when there are too many: half of the descriptors stay
    /// available to the program.
    pub fn admit(
        &mut self,
        poller: &impl LinkPoller<L::Id>,
        link: L,
        from: Addr,
        called: u32,
        now: Instant,
    ) -> (u32, PendingConnState) {
        let most = self.most.min(max_descriptors() / 2);
        while self.len() >= most.max(1) && self.drop_oldest() {}
        self.came += 1;
        let (serial, watched) = (self.came, link.id());
        let id = self.waiting.insert(PendingConn {
            reserved: ReservedDescriptor::of(link.fd()),
            link,
            unknown_conn: UnknownPeerConn::new(&from),
            from,
            called,
            bytes: Vec::new(),
            request: None,
            held: None,
            is_answered: false,
            serial,
            since: now,
        });
        let mut call = self.receive(id);
        if call == PendingConnState::Incomplete {
            self.order.push_back((id, serial));
            if self.order.len() > 2 * self.len() + 64 {
                self.forget_those_who_left();
            }
            if poller.add(watched, self.token | u64::from(id), Interest::READ).is_err() {
                self.drop(id);
                call = PendingConnState::Over;
            }
        }
        (id, call)
    }

    /// Reads from a pending connection, and drops it if the peer disconnected or broke the
    /// protocol.
    pub fn receive(&mut self, id: u32) -> PendingConnState {
        let Some(caller) = self.waiting.get_mut(id) else { return PendingConnState::Over };
        match caller.read(self.early_data) {
            Ok(true) => PendingConnState::Complete,
            Ok(false) => PendingConnState::Incomplete,
            Err(why) => {
                if let Some(why) = why {
                    log_rejection::<L>(format_args!("of {}", caller.from), why);
                }
                self.drop(id);
                PendingConnState::Over
            }
        }
    }

    /// The numbers of all callers.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.waiting.iter().map(|(id, _)| id).collect()
    }

    /// The complete request of a caller, and the address it comes from.
    pub(crate) fn request(&self, id: u32) -> Option<(&CmMessage, &Addr)> {
        let caller = self.waiting.get(id)?;
        Some((caller.request.as_ref()?, &caller.from))
    }

    /// Returns true if the caller has ended its direction of the link after a request with early data:
    /// it sends the data on another link.
    pub(crate) fn is_withdrawn(&self, id: u32) -> bool {
        let is_early = |caller: &&PendingConn<L>| {
            caller.request.as_ref().is_some_and(|request| request.knows.early)
        };
        let caller = self.waiting.get(id).filter(is_early);
        self.early_data && caller.is_some_and(|caller| caller.link.has_ended())
    }

    /// Returns the number of the endpoint addressed by a pending connection.
    pub(crate) fn called_by(&self, id: u32) -> Option<u32> {
        Some(self.waiting.get(id)?.called)
    }

    /// Removes a pending connection with a complete request from the list and from the poller.
    pub fn take(
        &mut self,
        poller: &impl LinkPoller<L::Id>,
        id: u32,
    ) -> Option<(PendingConn<L>, CmMessage)> {
        let mut caller = self.waiting.remove(id)?;
        poller.remove(caller.link.id());
        let request = caller.request.take()?;
        Some((caller, request))
    }

    /// Makes a caller wait until the address vector holds this address.
    pub(crate) fn hold(&mut self, poller: &impl LinkPoller<L::Id>, id: u32, name: Addr) {
        let Some(caller) = self.waiting.get_mut(id) else { return };
        caller.held = Some(name);
        self.await_more(poller, id);
    }

    /// Sends the answer to a repeated request, and ends the direction to the caller. The caller
    /// continues its connection by another link. Its bytes on this one are discarded: a close with
    /// unread bytes could destroy a part of the answer.
    pub(crate) fn answer_again(&mut self, poller: &impl LinkPoller<L::Id>, id: u32, answer: &[u8]) {
        let Some(caller) = self.waiting.get_mut(id) else { return };
        if caller.link.send(answer) != Ok(answer.len()) {
            // The caller repeats its request.
            return self.drop(id);
        }
        caller.link.end_sending();
        caller.is_answered = true;
        self.await_more(poller, id);
    }

    /// Watches a pending connection with a complete request.
    fn await_more(&mut self, poller: &impl LinkPoller<L::Id>, id: u32) {
        let Some(caller) = self.waiting.get_mut(id) else { return };
        let (watched, known) = (caller.link.id(), (id, caller.serial));
        let token = self.token | u64::from(id);
        // Early data is not read before the response; the poller reports the end of the link.
        let reads_on = !self.early_data || caller.is_answered;
        let interest = if reads_on { Interest::READ } else { Interest::NONE };
        let is_watched = if self.order.contains(&known) {
            reads_on || poller.modify(watched, token, interest).is_ok()
        } else {
            // The request was complete when the caller was admitted, so it was never put in the
            // list and the poller.
            self.order.push_back(known);
            poller.add(watched, token, interest).is_ok()
        };
        if !is_watched {
            self.drop(id);
        }
    }

    /// Returns the pending connections with a complete request and another reason to wait.
    pub(crate) fn held(&self) -> Vec<u32> {
        self.waiting.indices(|caller| caller.held.is_some())
    }

    /// Returns the pending connections of an endpoint waiting until the address vector contains
    /// this address.
    pub(crate) fn held_as(&self, called: u32, name: &Addr) -> Vec<u32> {
        let is_meant =
            |caller: &PendingConn<L>| caller.called == called && caller.held.as_ref() == Some(name);
        self.waiting.indices(is_meant)
    }

    /// Drops the oldest pending connection; returns false if there is none.
    pub fn drop_oldest(&mut self) -> bool {
        while let Some((id, serial)) = self.order.pop_front() {
            if self.is_here(id, serial) {
                self.drop(id);
                return true;
            }
        }
        false
    }

    /// Drops the oldest pending connection if it has waited for [`SILENT_TIME`]; returns false
    /// otherwise.
    pub fn drop_silent(&mut self, now: Instant) -> bool {
        let mut order = self.order.iter();
        let oldest = order.find(|(id, serial)| self.is_here(*id, *serial));
        let since = oldest.map(|(id, _)| self.waiting[*id].since);
        since.is_some_and(|since| now.saturating_duration_since(since) >= SILENT_TIME)
            && self.drop_oldest()
    }

    /// Drops pending connections without a complete request after [`HANDSHAKE_TIMEOUT`]. Returns
    /// the connections found to be complete now (this side did not read the rest in time), and the
    /// time of the next check.
    pub fn end_silence(&mut self, now: Instant) -> (Vec<u32>, Option<Instant>) {
        let mut complete = Vec::new();
        while let Some(&(id, serial)) = self.order.front() {
            if self.is_here(id, serial) {
                let end = self.waiting[id].since + HANDSHAKE_TIMEOUT;
                if now < end {
                    return (complete, Some(end));
                }
                let held = self.waiting[id].held.clone();
                match (self.receive(id), held) {
                    (PendingConnState::Complete, None) => complete.push(id),
                    (PendingConnState::Over, _) => {}
                    (_, held) => {
                        if let Some(name) = held {
                            ofi_provider::log_sparsely!(
                                L::provider(),
                                WARN,
                                EP_CTRL,
                                "refusing the connection of {name}: it is not in the address \
                                 vector ({})",
                                L::settings().only_known_by
                            );
                        }
                        self.drop(id);
                    }
                }
            }
            self.order.pop_front();
        }
        (complete, None)
    }

    /// Drops all pending connections of a closed endpoint.
    pub fn drop_all_of(&mut self, called: u32) {
        for id in self.waiting.indices(|caller| caller.called == called) {
            self.drop(id);
        }
    }

    /// Drops a caller and closes its connection.
    pub(crate) fn drop(&mut self, id: u32) {
        self.waiting.remove(id);
    }

    fn is_here(&self, id: u32, serial: u64) -> bool {
        self.waiting.get(id).is_some_and(|caller| caller.serial == serial)
    }

    fn forget_those_who_left(&mut self) {
        let waiting = &self.waiting;
        let is_here = |id: u32, serial| waiting.get(id).is_some_and(|c| c.serial == serial);
        self.order.retain(|&(id, serial)| is_here(id, serial));
    }
}

/// Logs the rejection of a connection because the peer does not speak the provider's protocol;
/// `whose` is "of" the connecting peer, or "with" the addressed peer.
pub fn log_rejection<L: ByteLink>(whose: std::fmt::Arguments<'_>, why: Malformed) {
    ofi_provider::log_sparsely!(
        L::provider(),
        WARN,
        EP_CTRL,
        "refusing the connection {whose}: {why}"
    );
}

impl<L: ByteLink> PendingConn<L> {
    /// Discards bytes of a peer after the answer. Fails at the end of the link. A separate function, to
    /// leave its buffer out of the stack frames of others.
    #[inline(never)]
    fn discard(&self) -> Result<bool, Option<Malformed>> {
        match self.link.recv(&mut [0; DISCARD]) {
            Ok(1..) | Err(Error::AGAIN | Error::INTR) => Ok(false),
            Ok(0) | Err(_) => Err(None),
        }
    }

    /// Returns true if the request is complete now. The error is the reason for closing the
    /// connection, or none if the peer closed it.
    fn read(&mut self, early_data: bool) -> Result<bool, Option<Malformed>> {
        if self.is_answered {
            return self.discard();
        }
        let mut buf = [0u8; CM_LEN];
        while self.request.is_none() {
            // First the fixed part, then as much as it says follows, so that no byte
            // of a message behind it is taken.
            let want = match CmMessage::len_at(&self.bytes)? {
                Some(len) if self.bytes.len() >= CM_LEN => len - self.bytes.len(),
                _ => CM_LEN - self.bytes.len(),
            };
            if want == 0 {
                self.request = CmMessage::first_in(&self.bytes)?;
                let is_request = |message: &CmMessage| {
                    matches!(message.kind, CmType::Request | CmType::ContextRequest)
                };
                if !self.request.as_ref().is_some_and(is_request) {
                    return Err(Some(Malformed("connection message out of turn")));
                }
                return Ok(true);
            }
            let most = want.min(buf.len());
            match self.link.recv(&mut buf[..most]) {
                Ok(0) => return Err(None),
                Ok(n) => self.bytes.extend_from_slice(&buf[..n]),
                Err(Error::AGAIN | Error::INTR) => return Ok(false),
                Err(_) => return Err(None),
            }
        }
        if early_data {
            return if self.link.has_ended() { Err(None) } else { Ok(true) };
        }
        // A caller whose request is complete must send nothing before it is answered.
        match self.link.recv(&mut buf[..1]) {
            Err(Error::AGAIN | Error::INTR) => Ok(true),
            Ok(0) | Err(_) => Err(None),
            Ok(_) => Err(Some(Malformed("data before the connection is made"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::StreamSettings;
    use crate::wire::PeerFeatures;
    use ofi_provider::buf::{CopyMode, GatherList, ScatterList};
    use ofi_provider::error::Result;
    use ofi_provider::provider::Provider;
    use ofi_provider::sys::Epoll;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, RawFd};
    use std::sync::LazyLock;

    const DATA: &[u8] = b"who I am";

    /// Link with few features, sufficient for pending connections.
    #[derive(Debug)]
    struct ReceivingLink(TcpStream);

    impl ByteLink for ReceivingLink {
        type Id = RawFd;

        fn provider() -> &'static Provider {
            static RECEIVED: Provider = Provider::named(c"heard", 0, 0);
            &RECEIVED
        }

        fn settings() -> &'static StreamSettings {
            static CHOSEN: LazyLock<StreamSettings> = LazyLock::new(StreamSettings::default);
            &CHOSEN
        }

        fn id(&self) -> RawFd {
            self.0.as_raw_fd()
        }

        fn recv(&self, buf: &mut [u8]) -> Result<usize> {
            Ok((&self.0).read(buf)?)
        }

        fn send(&self, bytes: &[u8]) -> Result<usize> {
            Ok((&self.0).write(bytes)?)
        }

        fn recv_list(&self, _list: &mut ScatterList<'_>) -> Result<usize> {
            unimplemented!()
        }

        fn send_list(&self, _list: &mut GatherList<'_>, _way: CopyMode) -> Result<usize> {
            unimplemented!()
        }

        fn take_error(&self) -> Result {
            unimplemented!()
        }

        fn local_addr(&self) -> Result<Addr> {
            unimplemented!()
        }

        fn peer_addr(&self) -> Result<Addr> {
            unimplemented!()
        }

        fn unacknowledged(&self) -> usize {
            unimplemented!()
        }

        fn has_ended(&self) -> bool {
            unimplemented!()
        }

        fn shutdown(&self) {
            self.0.shutdown(Shutdown::Write).unwrap();
        }
    }

    /// List of pending connections with its listener.
    struct AcceptQueueSlot {
        epoll: Epoll,
        listener: TcpListener,
        callers: AcceptQueue<ReceivingLink>,
    }

    impl AcceptQueueSlot {
        fn new(most: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Self {
                epoll: Epoll::new().unwrap(),
                listener,
                callers: AcceptQueue::new(7 << 32, most),
            }
        }

        /// Starts a connection with these first bytes. Returns the connecting end, the number of
        /// the pending connection, and its state.
        fn call(&mut self, first: &[u8]) -> (TcpStream, u32, PendingConnState) {
            let mut stream = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            stream.write_all(first).unwrap();
            let (accepted, from) = self.listener.accept().unwrap();
            accepted.set_nonblocking(true).unwrap();
            let link = ReceivingLink(accepted);
            let (id, call) = self.callers.admit(&self.epoll, link, from.into(), 3, Instant::now());
            (stream, id, call)
        }

        /// Reads from the pending connection reported by the poller. Returns its number and its
        /// state.
        fn next_event(&mut self) -> (u32, PendingConnState) {
            let mut token = None;
            self.epoll.wait(None, |event| token = Some(event.token)).unwrap();
            assert_eq!(token.unwrap() >> 32, 7);
            let id = token.unwrap() as u32;
            (id, self.callers.receive(id))
        }
    }

    fn request() -> Vec<u8> {
        CmMessage::encode(CmType::Request, PeerFeatures::default(), DATA)
    }

    #[test]
    fn request_is_assembled_and_bytes_after_it_stay_unread() {
        let mut queue_slot = AcceptQueueSlot::new(8);
        let bytes = request();
        let (mut stream, id, call) = queue_slot.call(&bytes[..5]);
        assert_eq!(call, PendingConnState::Incomplete);
        stream.write_all(&bytes[5..CM_LEN + 1]).unwrap();
        while queue_slot.callers.waiting[id].bytes.len() < CM_LEN + 1 {
            assert_eq!(queue_slot.next_event(), (id, PendingConnState::Incomplete));
        }
        stream.write_all(&bytes[CM_LEN + 1..]).unwrap();
        stream.write_all(b"message").unwrap();
        assert_eq!(queue_slot.next_event(), (id, PendingConnState::Complete));
        let (caller, request) = queue_slot.callers.take(&queue_slot.epoll, id).unwrap();
        assert_eq!((request.data, caller.called), (DATA.to_vec(), 3));
        let mut rest = [0; 16];
        let n = loop {
            match caller.link.recv(&mut rest) {
                Err(Error::AGAIN) => std::thread::yield_now(),
                n => break n.unwrap(),
            }
        };
        assert!(b"message".starts_with(&rest[..n]) && n > 0);
        assert_eq!(queue_slot.callers.len(), 0);
    }

    #[test]
    fn malformed_or_closed_pending_connection_is_dropped() {
        let mut queue_slot = AcceptQueueSlot::new(8);
        let answer = CmMessage::encode(CmType::Response, PeerFeatures::default(), DATA);
        for nonsense in [&b"GET / HTTP/1.1\r\n"[..], &answer] {
            let (mut stream, id, mut call) = queue_slot.call(nonsense);
            while call == PendingConnState::Incomplete {
                call = queue_slot.callers.receive(id);
            }
            assert_eq!((call, queue_slot.callers.len()), (PendingConnState::Over, 0));
            let _ = stream.read(&mut [0]);
        }
        let (stream, id, _) = queue_slot.call(b"");
        drop(stream);
        assert_eq!(queue_slot.next_event(), (id, PendingConnState::Over));
        assert!(queue_slot.callers.take(&queue_slot.epoll, id).is_none());
    }

    #[test]
    fn oldest_pending_connection_is_dropped_at_the_limit() {
        let mut queue_slot = AcceptQueueSlot::new(2);
        let all: Vec<_> = (0..3).map(|_| queue_slot.call(b"")).collect();
        assert_eq!(queue_slot.callers.len(), 2);
        assert_eq!((&all[0].0).read(&mut [0]).unwrap(), 0, "the first is hung up on");
        let since = queue_slot.callers.waiting[all[1].1].since;
        assert!(!queue_slot.callers.drop_silent(since + SILENT_TIME / 2), "it may be slow");
        assert!(queue_slot.callers.drop_silent(since + SILENT_TIME));
        assert!(queue_slot.callers.drop_oldest());
        assert!(!queue_slot.callers.drop_oldest());
        assert_eq!((&all[2].0).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn silence_ends_in_time_and_not_before() {
        let mut queue_slot = AcceptQueueSlot::new(8);
        let ((_silent, first, _), (mut slow, second, _)) =
            (queue_slot.call(b""), queue_slot.call(b""));
        let since = queue_slot.callers.waiting[first].since;
        let (complete, next) = queue_slot.callers.end_silence(since);
        assert_eq!((complete, next), (vec![], Some(since + HANDSHAKE_TIMEOUT)));
        slow.write_all(&request()).unwrap();
        let (id, call) = queue_slot.next_event();
        assert_eq!((id, call), (second, PendingConnState::Complete));
        let later = Instant::now() + HANDSHAKE_TIMEOUT;
        assert_eq!(queue_slot.callers.end_silence(later), (vec![second], None));
        assert_eq!(queue_slot.callers.len(), 1);
        queue_slot.callers.drop_all_of(3);
        assert_eq!(queue_slot.callers.len(), 0);
    }

    #[test]
    fn held_connection_must_stay_silent_and_is_found_by_address() {
        let mut queue_slot = AcceptQueueSlot::new(8);
        let name = Addr::Ip("192.0.2.1:5".parse().unwrap());
        let hold = |queue_slot: &mut AcceptQueueSlot| {
            let (stream, id, mut call) = queue_slot.call(&request());
            while call == PendingConnState::Incomplete {
                call = queue_slot.callers.receive(id);
            }
            queue_slot.callers.hold(&queue_slot.epoll, id, name.clone());
            (stream, id)
        };
        let ((mut eager, first), (_patient, second)) =
            (hold(&mut queue_slot), hold(&mut queue_slot));
        assert_eq!(queue_slot.callers.receive(first), PendingConnState::Complete);
        assert_eq!(queue_slot.callers.held_as(3, &name), [first, second]);
        assert_eq!(queue_slot.callers.held_as(4, &name), []);
        eager.write_all(b"x").unwrap();
        assert_eq!(queue_slot.next_event(), (first, PendingConnState::Over));
        assert_eq!(queue_slot.callers.held_as(3, &name), [second]);
        let later = Instant::now() + HANDSHAKE_TIMEOUT;
        assert_eq!(queue_slot.callers.end_silence(later), (vec![], None));
        assert_eq!(queue_slot.callers.len(), 0);
    }

    #[test]
    fn repeated_answer_is_followed_by_the_end_and_later_bytes_of_the_caller_are_discarded() {
        let mut queue_slot = AcceptQueueSlot::new(8);
        let (mut stream, id, call) = queue_slot.call(&request());
        assert_eq!(call, PendingConnState::Complete);
        queue_slot.callers.answer_again(&queue_slot.epoll, id, b"the answer");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"the answer");
        stream.write_all(b"message").unwrap();
        assert_eq!(queue_slot.next_event(), (id, PendingConnState::Incomplete));
        drop(stream);
        assert_eq!(queue_slot.next_event(), (id, PendingConnState::Over));
        let (mut silent, id, _) = queue_slot.call(&request());
        queue_slot.callers.answer_again(&queue_slot.epoll, id, b"the answer");
        let late = Instant::now() + HANDSHAKE_TIMEOUT;
        assert_eq!(queue_slot.callers.end_silence(late), (Vec::new(), None));
        assert!(queue_slot.callers.is_empty());
        assert_eq!(silent.read_to_end(&mut answer).unwrap(), 10);
    }
}
