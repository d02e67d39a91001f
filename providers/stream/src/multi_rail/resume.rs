//! State of a link continued over other sockets after the loss of its sockets.
use super::frame::{ACK_INTERVAL_MAX, Hello, LONG_MAX};
use super::send_log::{LogMemory, SendLog};
use crate::settings::RailSettings;
use ofi_provider::error::Result;
use ofi_provider::malformed::{Malformed, Parsed};
use std::sync::Arc;

/// Minimum of the bytes read without an acknowledgement: a peer cannot request an acknowledgement for each byte.
const ACK_INTERVAL_MIN: u64 = 4 << 10;

/// State of a link continued over other sockets after the loss of its sockets.
#[derive(Debug)]
pub(super) struct ResumeState {
    /// Bytes not acknowledged by the peer.
    pub(super) log: SendLog,
    /// The last send found no space in the log.
    pub(super) is_log_full: bool,
    /// Offset of the last acknowledgement, and maximum of later bytes without one.
    acked: u64,
    interval: u64,
    /// Offset to be acknowledged as soon as it is read.
    wanted: Option<u64>,
    /// The peer is asked for an acknowledgement, and has not answered.
    pub(super) has_asked: bool,
    /// The stream to the peer has ended.
    pub(super) has_ended_sending: bool,
    /// End of the stream of the peer.
    rx_end: Option<u64>,
    /// End of the first of the last sockets lost together: the end of the stream, or an error.
    pub(super) outcome: Option<Result>,
}

impl ResumeState {
    /// Creates the state of a new link, if the user wants it.
    pub(super) fn new(settings: &RailSettings, memory: &Arc<LogMemory>) -> Option<Box<Self>> {
        (settings.resume > 0).then(|| {
            Box::new(Self {
                log: SendLog::new(settings.resume_memory, memory.clone()),
                is_log_full: false,
                acked: 0,
                interval: ACK_INTERVAL_MAX as u64,
                wanted: None,
                has_asked: false,
                has_ended_sending: false,
                rx_end: None,
                outcome: None,
            })
        })
    }

    /// Returns the first frame of this end.
    pub(super) fn hello(settings: &RailSettings) -> Hello {
        let ack_interval = (settings.resume_memory / 4).min(LONG_MAX) as u32;
        Hello { resume: settings.resume, ack_interval }
    }

    /// Records the first frame of the peer.
    pub(super) fn set_peer(&mut self, hello: &Hello) {
        let max = ACK_INTERVAL_MAX as u64;
        self.interval = u64::from(hello.ack_interval).clamp(ACK_INTERVAL_MIN, max);
    }

    /// Returns the number of bytes to be sent now, `len` at most. `is_retained`: they stay in the application's
    /// buffer.
    pub(super) fn prepare(&mut self, len: usize, is_retained: bool) -> usize {
        let space = if is_retained { len } else { self.log.prepare(len) };
        self.is_log_full = space == 0;
        space
    }

    /// Records the peer's acknowledgement of the stream up to an offset.
    pub(super) fn acknowledge(&mut self, offset: u64) -> Parsed {
        if self.log.acknowledge(offset)? {
            (self.is_log_full, self.has_asked) = (false, false);
        }
        Ok(())
    }

    /// Records the loss of a socket: its frames are sent again, also a request for an acknowledgement and
    /// acknowledgements.
    pub(super) fn lose(&mut self, rail: usize) {
        self.log.lose(rail);
        self.has_asked = false;
        self.want_ack(0);
    }

    /// Has the stream acknowledged once it is read up to this offset.
    pub(super) fn want_ack(&mut self, offset: u64) {
        self.wanted = self.wanted.max(Some(offset));
    }

    /// Returns true if an acknowledgement is due after the bytes before `read` were read. `is_long`:
    /// they end within a long frame, acknowledged as a whole.
    pub(super) fn is_ack_due(&self, read: u64, is_long: bool) -> bool {
        let is_wanted = self.wanted.is_some_and(|wanted| wanted <= read);
        is_wanted || (!is_long && read - self.acked >= self.interval)
    }

    /// Records a sent acknowledgement.
    pub(super) fn set_acked(&mut self, read: u64) {
        self.acked = read;
        self.wanted = self.wanted.filter(|wanted| *wanted > read);
    }

    /// Records the end of the peer's stream, read up to `read`.
    pub(super) fn set_rx_end(&mut self, end: u64, read: u64) -> Parsed {
        if end < read || self.rx_end.is_some_and(|known| known != end) {
            return Err(Malformed(
                "the stream has two ends, or ends before bytes already received",
            ));
        }
        self.rx_end = Some(end);
        Ok(())
    }

    /// Returns true if the peer's stream has ended, and is read up to its end.
    pub(super) fn is_read_to_end(&self, read: u64) -> bool {
        self.rx_end == Some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Box<ResumeState> {
        let settings = RailSettings { resume: 1, ..RailSettings::default() };
        ResumeState::new(&settings, &Arc::new(LogMemory::new(0))).unwrap()
    }

    #[test]
    fn acknowledgement_is_due_at_the_interval_or_on_request() {
        let mut state = state();
        state.set_peer(&Hello { resume: 1, ack_interval: 1 });
        assert!(!state.is_ack_due(4095, false) && state.is_ack_due(4096, false));
        state.set_acked(4100);
        state.want_ack(4150);
        state.want_ack(4120);
        assert!(!state.is_ack_due(4149, false) && state.is_ack_due(4150, false));
        state.set_acked(4149);
        assert!(state.is_ack_due(4150, false));
        state.set_acked(4150);
        assert!(!state.is_ack_due(4150, false));
        assert!(!state.is_ack_due(1 << 20, true) && state.is_ack_due(1 << 20, false));
    }

    #[test]
    fn acknowledgements_and_requests_are_repeated_after_the_loss_of_a_socket() {
        let mut state = state();
        state.set_acked(100);
        state.has_asked = true;
        assert!(!state.is_ack_due(100, false));
        state.lose(0);
        assert!(!state.has_asked && state.is_ack_due(100, false));
        state.set_acked(100);
        assert!(!state.is_ack_due(100, false));
    }

    #[test]
    fn contradicting_ends_of_the_stream_are_malformed() {
        let mut state = state();
        assert!(state.set_rx_end(5, 6).is_err());
        assert!(state.set_rx_end(7, 6).is_ok() && state.set_rx_end(7, 7).is_ok());
        assert!(state.set_rx_end(8, 7).is_err());
        assert!(!state.is_read_to_end(6) && state.is_read_to_end(7));
    }
}
