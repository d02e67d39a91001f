//! Timer of a transport, used by the engine and by the links with several sockets.
use crate::transport::{TIMER_TOKEN, Transport};
use core::time::Duration;
use ofi_provider::sys::PollEvent;
use std::cell::Cell;

/// Timer of a transport, used by the engine and by the links with several sockets. Times are in
/// nanoseconds.
#[derive(Debug, Default)]
pub(super) struct SharedTimer {
    /// Expiry wanted by the engine, and by the links.
    engine: Cell<Option<u64>>,
    own: Cell<Option<u64>>,
}

impl SharedTimer {
    /// Sets the expiry for the engine ([`Transport::set_timer`]).
    pub(super) fn set(&self, net: &impl Transport, delay: Duration) {
        let now = net.nanos();
        self.engine.set(Some(now.saturating_add(delay.as_nanos() as u64)));
        if self.own.get().is_some() { self.arm(net, now) } else { net.set_timer(delay) }
    }

    /// Ends the expiry for the engine ([`Transport::clear_timer`]).
    pub(super) fn clear(&self, net: &impl Transport) {
        self.engine.set(None);
        if self.own.get().is_some() { self.arm(net, net.nanos()) } else { net.clear_timer() }
    }

    /// Sets the expiry for the links.
    pub(super) fn set_own(&self, net: &impl Transport, at: Option<u64>) {
        if self.own.replace(at) != at {
            self.arm(net, net.nanos());
        }
    }

    /// Removes the expiry from the events, from `start` on, unless it is the engine's.
    pub(super) fn filter(&self, net: &impl Transport, events: &mut Vec<PollEvent>, start: usize) {
        if self.own.get().is_none() {
            return;
        }
        let is_expiry = |event: &PollEvent| event.token == TIMER_TOKEN;
        let Some(at) = events[start..].iter().position(is_expiry) else { return };
        let now = net.nanos();
        if self.engine.get().is_none_or(|expiry| now < expiry) {
            events.swap_remove(start + at);
            self.own.set(None);
            self.arm(net, now);
        }
    }

    /// Sets the timer to the earlier expiry.
    fn arm(&self, net: &impl Transport, now: u64) {
        let expiries = [self.engine.get(), self.own.get()];
        match expiries.into_iter().flatten().min() {
            Some(at) => {
                let delay = Duration::from_nanos(at.saturating_sub(now));
                net.set_timer(delay.max(Duration::from_micros(1)));
            }
            None => net.clear_timer(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sim::{Rings, SimRandom, StreamWorld};
    use std::time::Instant;

    #[test]
    fn timer_expires_for_the_earlier_of_engine_and_links() {
        let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
        let (net, timer) = (Rings::new(&world, false), SharedTimer::default());
        let expired = || {
            let mut events = Vec::new();
            net.poll(&mut events);
            timer.filter(&net, &mut events, 0);
            events.len()
        };
        let pass = |nanos| world.lock().unwrap().nanos = nanos;
        timer.set(&net, Duration::from_nanos(2_000_000));
        timer.set_own(&net, Some(1_000_000));
        assert_eq!(expired(), 0);
        pass(1_500_000);
        assert_eq!(expired(), 0, "the event is that of the links");
        timer.set_own(&net, Some(9_000_000));
        pass(2_500_000);
        assert_eq!(expired(), 1);
        timer.clear(&net);
        assert_eq!(expired(), 0);
        pass(9_500_000);
        let mut events = Vec::new();
        net.poll(&mut events);
        assert_eq!(events.len(), 1);
        timer.filter(&net, &mut events, 0);
        assert_eq!(events.len(), 0);
        net.poll(&mut events);
        assert_eq!(events.len(), 0, "the timer is not set");
    }
}
