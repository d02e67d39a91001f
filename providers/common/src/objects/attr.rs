//! Attributes of shared contexts, and of contexts of scalable endpoints (fi_endpoint(3)).

/// Attributes of a shared receive context, or of one of a scalable endpoint (struct fi_rx_attr). 0
/// in a field of a shared receive context stands for the provider's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxAttr {
    /// Capabilities.
    pub caps: u64,
    /// Default flags of calls without a flags argument.
    pub op_flags: u64,
    /// Order of messages.
    pub msg_order: u64,
    /// Maximum number of posted receives.
    pub size: usize,
    /// Most pieces (iovecs) of a buffer.
    pub iov_limit: usize,
}

/// Attributes of a transmit context of a scalable endpoint (struct fi_tx_attr).
#[derive(Clone, Copy, Debug, Default)]
pub struct TxAttr {
    /// Capabilities.
    pub caps: u64,
    /// Default flags of calls without a flags argument.
    pub op_flags: u64,
    /// Order of messages.
    pub msg_order: u64,
    /// Most bytes of an injected message.
    pub inject_size: usize,
    /// Maximum number of transfers in flight.
    pub size: usize,
    /// Most pieces (iovecs) of a buffer.
    pub iov_limit: usize,
    /// Most places in a peer's memory.
    pub rma_iov_limit: usize,
}

/// A context of a scalable endpoint (fi_tx_context, fi_rx_context).
#[derive(Clone, Copy, Debug)]
pub enum ContextAttr {
    /// The attributes of a transmit context.
    Tx(TxAttr),
    /// The attributes of a receive context.
    Rx(RxAttr),
}
