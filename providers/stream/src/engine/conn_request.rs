//! Connection requests of the engine's endpoints, repeated after the loss of their socket
//! ([`repeated_requests`](crate::repeated_requests)).
use super::stream_request::StreamRequest;
use crate::wire::RequestNumber;
use ofi_provider::addr::Addr;
use ofi_provider::error::Error;
use std::time::{Duration, Instant};

/// Maximum repetitions of a request.
const REPEATS_MAX: u8 = 16;

/// Interval between checks for a repeated request.
pub(super) const REPEAT_CHECK: Duration = Duration::from_millis(10);

/// Returns true if an established socket ended by a failure of the network, or by a reset.
pub(super) fn is_loss(error: Error) -> bool {
    const PIPE: Error = Error::from_code(libc::EPIPE);
    is_reset(error)
        || matches!(error, PIPE | Error::TIMEDOUT | Error::HOSTUNREACH | Error::NETUNREACH)
}

/// Returns true if a socket ended by a reset.
pub(super) fn is_reset(error: Error) -> bool {
    matches!(error, Error::CONNRESET | Error::CONNABORTED)
}

/// Connection request, kept until it is sent, or until its response if it is numbered.
#[derive(Debug)]
pub(super) struct ConnRequest {
    data: Vec<u8>,
    number: Option<RequestNumber>,
    repeats: Option<Repeats>,
    is_tried: bool,
}

#[derive(Debug)]
struct Repeats {
    to: Addr,
    left: u8,
}

impl ConnRequest {
    /// Creates a request sent once, with this user data.
    pub(super) fn new(data: Vec<u8>) -> Self {
        Self { data, number: None, repeats: None, is_tried: false }
    }

    /// Numbers the request: a later one with this number is its repetition.
    pub(super) fn set_number(&mut self, number: RequestNumber) {
        self.number = Some(number);
    }

    /// Has the request repeated to an address at once after the loss of its socket.
    pub(super) fn set_repeated(&mut self, to: Addr) {
        self.repeats = Some(Repeats { to, left: REPEATS_MAX });
    }

    /// Returns true in the first call: the request may be sent before the poller reports the link.
    pub(super) fn take_first_try(&mut self) -> bool {
        !std::mem::replace(&mut self.is_tried, true)
    }

    /// User data.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the number of the request.
    pub(super) fn number(&self) -> Option<RequestNumber> {
        self.number
    }

    /// Counts one more repetition, and returns its address; `None` if there are no more.
    pub(super) fn repeat(&mut self) -> Option<Addr> {
        let repeats = self.repeats.as_mut()?;
        repeats.left = repeats.left.checked_sub(1)?;
        Some(repeats.to.clone())
    }
}

/// Request accepted after the loss of its socket: its sender is expected to repeat it.
#[derive(Debug)]
pub(super) struct AwaitedRepeat<L> {
    pub(super) ep: u32,
    pub(super) request: StreamRequest<L>,
    /// User data of the response.
    pub(super) data: Vec<u8>,
    pub(super) until: Instant,
}

/// Requests accepted after the loss of their sockets, one of an endpoint.
#[derive(Debug)]
pub(super) struct AwaitedRepeats<L> {
    requests: Vec<AwaitedRepeat<L>>,
}

impl<L> Default for AwaitedRepeats<L> {
    fn default() -> Self {
        Self { requests: Vec::new() }
    }
}

impl<L> AwaitedRepeats<L> {
    /// Adds a request.
    pub(super) fn add(&mut self, request: AwaitedRepeat<L>) {
        self.requests.push(request);
    }

    /// Returns true if an endpoint awaits a repeated request.
    pub(super) fn has(&self, ep: u32) -> bool {
        self.requests.iter().any(|request| request.ep == ep)
    }

    /// Returns true if no endpoint awaits a repeated request.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Removes all requests, to be checked.
    pub(super) fn take(&mut self) -> Vec<AwaitedRepeat<L>> {
        std::mem::take(&mut self.requests)
    }

    /// Removes the request of an endpoint.
    pub(super) fn remove(&mut self, ep: u32) {
        self.requests.retain(|request| request.ep != ep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_of_a_request_are_bounded_and_need_a_number() {
        let mut request = ConnRequest::new(b"data".to_vec());
        assert_eq!((request.data(), request.number()), (&b"data"[..], None));
        assert_eq!([request.take_first_try(), request.take_first_try()], [true, false]);
        assert_eq!(request.repeat(), None);
        let (number, to) =
            (RequestNumber::new(5).unwrap(), Addr::Ip("10.0.0.1:2".parse().unwrap()));
        request.set_number(number);
        assert_eq!(request.repeat(), None);
        request.set_repeated(to.clone());
        for _ in 0..REPEATS_MAX {
            assert_eq!(request.repeat(), Some(to.clone()));
        }
        assert_eq!((request.number(), request.repeat()), (Some(number), None));
    }

    #[test]
    fn refused_and_silent_connections_are_not_lost_by_a_reset() {
        assert!(is_loss(Error::CONNRESET) && is_loss(Error::from_code(libc::EPIPE)));
        assert!(is_loss(Error::TIMEDOUT) && !is_reset(Error::TIMEDOUT));
        assert!(!is_loss(Error::CONNREFUSED) && !is_loss(Error::NOMEM));
    }
}
