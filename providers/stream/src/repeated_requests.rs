//! Connection requests repeated by their sender after the loss of a socket.
//!
//! A connected endpoint with `FI_TCP_RESUME` numbers its request. If the socket is lost before the
//! response, the endpoint connects again and repeats the request; the passive endpoint exchanges the
//! socket of the first request and reports nothing. The program may have answered by then: the answer
//! is sent on the new socket.
use crate::wire::{CmMessage, RequestNumber};
use ofi_provider::addr::Addr;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Maximum number of requests known to a passive endpoint. Peers determine their number.
const REQUESTS_MAX: usize = 256;

/// Link of an unanswered connection request. A repeated request replaces it.
#[derive(Debug)]
pub struct RequestLink<L> {
    link: Mutex<Option<L>>,
}

impl<L> RequestLink<L> {
    /// The link of a first request.
    pub fn new(link: L) -> Self {
        Self { link: Mutex::new(Some(link)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<L>> {
        self.link.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Calls `look` with the link, if it is not taken.
    pub fn with<R>(&self, look: impl FnOnce(&L) -> R) -> Option<R> {
        self.lock().as_ref().map(look)
    }

    /// Takes the link, once after each request.
    pub fn take(&self) -> Option<L> {
        self.lock().take()
    }

    /// Exchanges the link for that of a repeated request.
    pub fn replace(&self, link: L) {
        *self.lock() = Some(link);
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

/// State of a request received before.
#[derive(Debug)]
pub enum KnownRequest<L> {
    /// The answer is not sent yet: the link is to be exchanged.
    Unanswered(Arc<RequestLink<L>>),
    /// The answer was sent, and lost.
    Answered,
}

/// Numbered requests received by a passive endpoint, at most [`REQUESTS_MAX`].
#[derive(Debug)]
pub struct NumberedRequests<L> {
    /// Oldest first. Links of answered requests are gone.
    requests: VecDeque<(RequestKey, Weak<RequestLink<L>>)>,
}

impl<L> Default for NumberedRequests<L> {
    fn default() -> Self {
        Self { requests: VecDeque::new() }
    }
}

impl<L> NumberedRequests<L> {
    /// Returns the state of a request received before; `None` for a new one.
    pub fn find(&self, message: &CmMessage, from: &Addr) -> Option<KnownRequest<L>> {
        let key = RequestKey::of(message, from)?;
        let (_, link) = self.requests.iter().find(|(known, _)| *known == key)?;
        Some(link.upgrade().map_or(KnownRequest::Answered, KnownRequest::Unanswered))
    }

    /// Adds a new request, if it is numbered. The oldest one makes space.
    pub fn add(&mut self, message: &CmMessage, from: &Addr, link: &Arc<RequestLink<L>>) {
        let Some(key) = RequestKey::of(message, from) else { return };
        if self.requests.len() >= REQUESTS_MAX {
            self.requests.pop_front();
        }
        self.requests.push_back((key, Arc::downgrade(link)));
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
    fn repeated_request_exchanges_the_link_until_the_answer() {
        let mut requests = NumberedRequests::default();
        let first = Arc::new(RequestLink::new(1));
        requests.add(&request(7), &from("10.0.0.1:5"), &first);
        // The port of the new socket is another one.
        let known = requests.find(&request(7), &from("10.0.0.1:6"));
        let Some(KnownRequest::Unanswered(link)) = known else { panic!("{known:?}") };
        link.replace(2);
        drop(link);
        assert_eq!(
            (first.with(|link| *link), first.take(), first.take()),
            (Some(2), Some(2), None)
        );
        drop(first);
        let known = requests.find(&request(7), &from("10.0.0.1:6"));
        assert!(matches!(known, Some(KnownRequest::Answered)));
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
        assert!(!is_new(7, "[::ffff:10.0.0.1]:5"));
    }

    #[test]
    fn number_of_known_requests_is_bounded() {
        let mut requests = NumberedRequests::default();
        let (link, caller) = (Arc::new(RequestLink::new(0)), from("10.0.0.1:5"));
        for number in 1..=1 + REQUESTS_MAX as u64 {
            requests.add(&request(number), &caller, &link);
        }
        assert_eq!(requests.requests.len(), REQUESTS_MAX);
        assert!(requests.find(&request(1), &caller).is_none());
        assert!(requests.find(&request(2), &caller).is_some());
    }
}
