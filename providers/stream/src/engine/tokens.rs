//! Tokens of an engine's registrations with the poller.

/// Upper 32 bits of a poller's token, giving the meaning of the lower 32 bits: number of a
/// connection, number of an endpoint with a listener, the engine's timer
/// ([`TIMER_TOKEN`](crate::transport::TIMER_TOKEN)), or number of a pending connection
/// ([`AcceptQueue`](crate::accept_queue::AcceptQueue)).
pub(super) const TOKEN_CONN: u64 = 0;
pub(super) const TOKEN_LISTENER: u64 = 1 << 32;
pub(super) const TOKEN_CALLER: u64 = 3 << 32;
