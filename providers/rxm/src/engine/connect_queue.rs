//! Connection attempts: those in progress, queued ones, and rejected ones to be tried again.
use super::common::clock;
use super::conn::{Link, came_on};
use super::conns::RxmConns;
use ofi_provider::conn_arbiter::{
    CALLS_AT_A_TIME, CallState, ConnectLimiter, MOST_CALLS_AT_A_TIME,
};
use std::collections::VecDeque;

/// Concurrent connection attempts, at first and at most; few for simulated peers, because there are few
/// of them.
const AT_A_TIME: [usize; 2] =
    if cfg!(test) { [2, 4] } else { [CALLS_AT_A_TIME, MOST_CALLS_AT_A_TIME] };

/// Connection attempts of an endpoint.
#[derive(Default)]
pub(super) struct ConnectQueue {
    /// Rejected connections to be tried again.
    refused: Vec<u32>,
    /// Local connection attempts in progress, and queued connections.
    calls: ConnectLimiter,
    line: VecDeque<u32>,
}

impl ConnectQueue {
    /// Returns true if another connection attempt may start now
    /// ([`ConnectLimiter`](ofi_provider::conn_arbiter::ConnectLimiter)), with at most `most` of them.
    pub(super) fn has_space(&mut self, conns: &RxmConns, most: usize) -> bool {
        let state_of = |_, name| match came_on(conns, name).map(|(_, to)| to.link) {
            Some(Link::Calling) => CallState::Pending,
            Some(link) if link.is_established() => CallState::Made,
            _ => CallState::Failed,
        };
        let [first, at_most] = AT_A_TIME.map(|number| number.min(most));
        self.calls.has_space(first, at_most, clock(), state_of)
    }

    /// Records the start of an attempt.
    pub(super) fn started(&mut self, id: u32, source: u64) {
        self.calls.started(id, source, clock());
    }

    /// Queues a connection.
    pub(super) fn push(&mut self, id: u32) {
        self.line.push_back(id);
    }

    /// Returns true if connections are queued.
    pub(super) fn has_queued(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns the number of queued connections.
    pub(super) fn queued(&self) -> usize {
        self.line.len()
    }

    /// Takes the next queued connection.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.line.pop_front()
    }

    /// Returns true if rejected connections are to be tried again.
    pub(super) fn has_rejected(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Adds a rejected connection, to be tried again.
    pub(super) fn push_rejected(&mut self, id: u32) {
        self.refused.push(id);
    }

    /// Takes the rejected connections.
    pub(super) fn take_rejected(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.refused)
    }

    /// Removes a connection from the rejected ones.
    pub(super) fn remove_rejected(&mut self, id: u32) {
        self.refused.retain(|refused| *refused != id);
    }
}
