//! Responses to connection requests, sent again if they are lost
//! ([`repeated_requests`](crate::repeated_requests)).
use std::sync::atomic::{AtomicBool, Ordering};

/// Response to a connection request, until its receipt is proven.
#[derive(Debug)]
pub struct UnconfirmedAnswer {
    bytes: Vec<u8>,
    is_repeated: AtomicBool,
}

impl UnconfirmedAnswer {
    /// Creates the record of a sent response. `bytes`: the response, and the first frames sent with it.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, is_repeated: AtomicBool::new(false) }
    }

    /// Returns the bytes to be sent in response to a repeated request.
    pub fn repeat(&self) -> Vec<u8> {
        self.is_repeated.store(true, Ordering::Release);
        self.bytes.clone()
    }

    /// Returns true if the requester has repeated its request: its first socket is lost.
    pub fn is_repeated(&self) -> bool {
        self.is_repeated.load(Ordering::Acquire)
    }
}
