//! What a provider lets its users choose of the engine.

/// Most bytes that unexpected messages of an endpoint, or of those that share receives, take by
/// default.
pub const MAX_UNEXPECTED: usize = 256 << 20;

/// What a provider lets its users choose of the engine.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// Most unexpected messages kept per peer, if the user sets a bound.
    pub max_saved: Option<usize>,
    /// Most bytes that unexpected messages of an endpoint take.
    pub max_unexpected: usize,
    /// Tagged messages that are larger wait at their sender until a receive is
    /// posted for them.
    pub max_saved_size: usize,
    /// Bytes of small messages that are collected to leave together; 0: each leaves by itself.
    pub batch: usize,
    /// Bytes read ahead of what is known to be there.
    pub prefetch: usize,
    /// Messages from this size on are sent without being copied.
    pub zerocopy_size: usize,
    /// Whether every header that leaves or comes is logged, at FI_LOG_TRACE.
    pub trace: bool,
    /// Whether a reliable datagram endpoint listens only to peers in its address vector.
    pub only_known: bool,
    /// The name of the parameter by which users set `only_known`, for the log.
    pub only_known_by: &'static str,
}

impl Default for StreamSettings {
    fn default() -> Self {
        Self {
            max_saved: None,
            max_unexpected: MAX_UNEXPECTED,
            max_saved_size: usize::MAX,
            batch: 9000,
            prefetch: 64 << 10,
            zerocopy_size: usize::MAX,
            trace: false,
            only_known: false,
            only_known_by: "",
        }
    }
}
