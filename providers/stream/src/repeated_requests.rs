//! Connection requests repeated by their sender after the loss of a socket.
//!
//! An endpoint with `FI_TCP_RESUME` numbers its request. If the socket is lost before the response,
//! the endpoint connects again and repeats the request. The receiver of a request known by its number
//! reports nothing:
//!
//! - Before its response, the new socket replaces the lost one ([`RequestLink`]).
//! - After its response, the response is sent again on the new socket ([`UnconfirmedAnswer`]), together with
//!   the first frames of the connection, and the socket is closed. The requester joins the accepted
//!   connection by another socket, with the token in these frames
//!   ([`MultiRail`](crate::multi_rail::MultiRail)).
//!
//! The response stays available until the first frame of the requester has arrived: after the receipt
//! of the response no request is repeated. The number is a secret of the requester and the receiver,
//! and valid only for the host of the first request.
use crate::accept_queue::AcceptQueue;
use crate::transport::{ByteLink, LinkPoller};
use crate::unconfirmed_answer::UnconfirmedAnswer;
use crate::wire::{CmMessage, RequestNumber};
use ofi_provider::addr::Addr;
use ofi_provider::error::{Error, Result};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Maximum numbers of known requests, in sum and of one host. Peers determine their number.
const REQUESTS_MAX: usize = 1024;
const REQUESTS_PER_HOST: usize = 256;

/// State of a connection request.
#[derive(Debug)]
enum RequestState<L> {
    /// There is no response yet. None while the socket is lost.
    Open(Option<L>),
    /// The response was sent. It is dropped when its receipt is proven, or with the connection.
    Answered(Weak<UnconfirmedAnswer>),
}

/// Link of a connection request, replaced by the one of a repeated request until the response.
#[derive(Debug)]
pub struct RequestLink<L>(Mutex<RequestState<L>>);

impl<L> RequestLink<L> {
    /// Creates the link of a first request.
    pub fn new(link: L) -> Self {
        Self(Mutex::new(RequestState::Open(Some(link))))
    }

    fn answered(answer: Weak<UnconfirmedAnswer>) -> Self {
        Self(Mutex::new(RequestState::Answered(answer)))
    }

    fn lock(&self) -> MutexGuard<'_, RequestState<L>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls `look` with the link, if there is one.
    pub fn with<R>(&self, look: impl FnOnce(&L) -> R) -> Option<R> {
        match &*self.lock() {
            RequestState::Open(Some(link)) => Some(look(link)),
            _ => None,
        }
    }

    /// Answers the request by `respond`, the source of the response to be sent again. After an
    /// error another link may follow. Fails with -FI_ECONNRESET without a link.
    pub fn answer(&self, respond: impl FnOnce(L) -> Result<Weak<UnconfirmedAnswer>>) -> Result {
        // A repeated request waits until it is clear whether there is a response.
        let mut state = self.lock();
        let RequestState::Open(link) = &mut *state else { return Err(Error::CONNRESET) };
        let answer = respond(link.take().ok_or(Error::CONNRESET)?)?;
        *state = RequestState::Answered(answer);
        Ok(())
    }

    /// Ends the request: closes the link, unless there is a response.
    pub fn close(&self) {
        let state = &mut *self.lock();
        if matches!(state, RequestState::Open(_)) {
            *state = RequestState::Answered(Weak::new());
        }
    }

    /// Returns true if no repeated request is expected.
    fn is_over(&self) -> bool {
        matches!(&*self.lock(), RequestState::Answered(answer) if answer.strong_count() == 0)
    }
}

/// Sender of a request with its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RequestKey {
    host: IpAddr,
    instance: u32,
    number: RequestNumber,
}

impl RequestKey {
    fn of(message: &CmMessage, from: &Addr) -> Option<Self> {
        let host = from.ip().ok()?.ip().to_canonical();
        Some(Self { host, instance: message.instance, number: message.number? })
    }
}

/// Outcome of a complete request of a pending connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepeatOutcome {
    /// The request is new, or has no number.
    New,
    /// The request is a repeated one, and was handled.
    Handled,
    /// The request is a repeated one of an established or ended connection.
    Over,
}

/// Numbered requests received by a passive endpoint or an engine, at most [`REQUESTS_MAX`].
#[derive(Debug)]
pub struct NumberedRequests<L> {
    /// Oldest first.
    requests: VecDeque<(RequestKey, Arc<RequestLink<L>>)>,
}

impl<L> Default for NumberedRequests<L> {
    fn default() -> Self {
        Self { requests: VecDeque::new() }
    }
}

impl<L> NumberedRequests<L> {
    fn find(&self, message: &CmMessage, from: &Addr) -> Option<&RequestLink<L>> {
        let key = RequestKey::of(message, from)?;
        let found = self.requests.iter().find(|(known, _)| *known == key);
        found.map(|(_, request)| &**request)
    }

    /// Adds a new request, if it is numbered. Others make space: those without an expected repetition,
    /// or the oldest one.
    pub fn add(&mut self, message: &CmMessage, from: &Addr, link: &Arc<RequestLink<L>>) {
        let Some(key) = RequestKey::of(message, from) else { return };
        let of_host = |requests: &VecDeque<(RequestKey, _)>| {
            requests.iter().filter(|(known, _)| known.host == key.host).count()
        };
        let is_full = |requests: &VecDeque<_>| requests.len() >= REQUESTS_MAX;
        if is_full(&self.requests) || of_host(&self.requests) >= REQUESTS_PER_HOST {
            self.requests.retain(|(_, request)| !request.is_over());
        }
        if of_host(&self.requests) >= REQUESTS_PER_HOST {
            let oldest = self.requests.iter().position(|(known, _)| known.host == key.host);
            oldest.and_then(|at| self.requests.remove(at));
        } else if is_full(&self.requests) {
            self.requests.pop_front();
        }
        // After the end of a connection its number may name another one.
        self.requests.retain(|(known, _)| *known != key);
        self.requests.push_back((key, link.clone()));
    }

    /// Adds a new request with a response, if it is numbered.
    pub fn add_answered(
        &mut self,
        message: &CmMessage,
        from: &Addr,
        answer: Weak<UnconfirmedAnswer>,
    ) {
        self.add(message, from, &Arc::new(RequestLink::answered(answer)));
    }
}

impl<L: ByteLink> NumberedRequests<L> {
    /// Handles the complete request of a pending connection, if it is a repeated one.
    pub fn handle_repeated(
        &self,
        callers: &mut AcceptQueue<L>,
        poller: &impl LinkPoller<L::Id>,
        id: u32,
    ) -> RepeatOutcome {
        let known = callers.request(id).and_then(|(message, from)| self.find(message, from));
        let Some(known) = known else { return RepeatOutcome::New };
        match &mut *known.lock() {
            RequestState::Open(link) => {
                if let Some((caller, _)) = callers.take(poller, id) {
                    *link = Some(caller.link);
                }
                RepeatOutcome::Handled
            }
            RequestState::Answered(answer) => match answer.upgrade() {
                Some(answer) => {
                    callers.answer_again(poller, id, &answer.repeat());
                    RepeatOutcome::Handled
                }
                None => RepeatOutcome::Over,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CmType, PeerFeatures};

    fn request(number: u64) -> CmMessage {
        let mut request = CmMessage::encode(CmType::Request, PeerFeatures::default(), b"");
        if let Some(number) = RequestNumber::new(number) {
            CmMessage::add_number(&mut request, number);
        }
        CmMessage::parse(&request).unwrap()
    }

    fn from(text: &str) -> Addr {
        Addr::Ip(text.parse().unwrap())
    }

    #[test]
    fn link_is_answered_once_and_replaced_until_then() {
        let link = RequestLink::new(1);
        assert_eq!(link.answer(|_| Err(Error::CONNRESET)), Err(Error::CONNRESET));
        assert_eq!((link.with(|link| *link), link.is_over()), (None, false));
        *link.lock() = RequestState::Open(Some(2));
        let answer = Arc::new(UnconfirmedAnswer::new(b"the answer".to_vec()));
        assert_eq!(link.with(|link| *link), Some(2));
        let respond = |link| {
            assert_eq!(link, 2);
            Ok(Arc::downgrade(&answer))
        };
        assert_eq!(link.answer(respond), Ok(()));
        assert_eq!(link.answer(|_| Ok(Weak::new())), Err(Error::CONNRESET));
        link.close();
        assert!(!link.is_over() && !answer.is_repeated());
        assert_eq!(answer.repeat(), b"the answer");
        assert!(answer.is_repeated());
        drop(answer);
        assert!(link.is_over());
    }

    #[test]
    fn requests_of_other_hosts_and_without_numbers_are_new() {
        let mut requests = NumberedRequests::default();
        let link = Arc::new(RequestLink::new(0));
        for number in [0, 7] {
            requests.add(&request(number), &from("10.0.0.1:5"), &link);
        }
        let is_new = |number, host| requests.find(&request(number), &from(host)).is_none();
        assert!(is_new(0, "10.0.0.1:5") && is_new(8, "10.0.0.1:5") && is_new(7, "10.0.0.2:5"));
        let mut other_process = request(7);
        other_process.instance ^= 1;
        assert!(requests.find(&other_process, &from("10.0.0.1:5")).is_none());
        // The port of the new socket is another one.
        assert!(!is_new(7, "[::ffff:10.0.0.1]:6"));
    }

    #[test]
    fn number_of_known_requests_is_bounded_in_sum_and_for_each_host() {
        let mut requests = NumberedRequests::default();
        let (link, other) = (Arc::new(RequestLink::new(0)), from("10.0.0.2:5"));
        requests.add(&request(1), &other, &link);
        for number in 1..=1 + REQUESTS_PER_HOST as u64 {
            requests.add(&request(number), &from("10.0.0.1:5"), &link);
        }
        assert_eq!(requests.requests.len(), 1 + REQUESTS_PER_HOST);
        assert!(requests.find(&request(1), &from("10.0.0.1:5")).is_none());
        assert!(requests.find(&request(2), &from("10.0.0.1:5")).is_some());
        assert!(requests.find(&request(1), &other).is_some());
        for host in 3..3 + REQUESTS_MAX {
            let host = from(&format!("10.1.{}.{}:5", host / 256, host % 256));
            requests.add(&request(1), &host, &link);
        }
        assert_eq!(requests.requests.len(), REQUESTS_MAX);
    }

    #[test]
    fn requests_without_an_expected_repetition_make_space_first() {
        let (mut requests, host) = (NumberedRequests::<u8>::default(), from("10.0.0.1:5"));
        let answer = Arc::new(UnconfirmedAnswer::new(Vec::new()));
        requests.add_answered(&request(1), &host, Arc::downgrade(&answer));
        for number in 2..2 + 2 * REQUESTS_PER_HOST as u64 {
            requests.add_answered(&request(number), &host, Weak::new());
        }
        assert!(requests.requests.len() <= REQUESTS_PER_HOST);
        assert!(requests.find(&request(1), &host).is_some_and(|request| !request.is_over()));
    }
}
