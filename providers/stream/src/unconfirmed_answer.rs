//! Responses to connection requests, sent again if they are lost
//! ([`repeated_requests`](crate::repeated_requests)).
use std::sync::{Mutex, MutexGuard};

/// Response to a connection request, until its receipt is proven.
#[derive(Debug)]
pub struct UnconfirmedAnswer {
    bytes: Vec<u8>,
    is_repeated: Mutex<bool>,
}

impl UnconfirmedAnswer {
    /// Creates the record of a sent response. `bytes`: the response, and the first frames sent with it.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, is_repeated: Mutex::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_repeated.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the bytes to be sent in response to a repeated request.
    pub fn repeat(&self) -> Vec<u8> {
        *self.lock() = true;
        self.bytes.clone()
    }

    /// Returns true if the requester has repeated its request: its first socket is lost.
    pub fn is_repeated(&self) -> bool {
        *self.lock()
    }
}
