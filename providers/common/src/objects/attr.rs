//! The attributes of contexts that endpoints share or consist of (fi_endpoint(3)).

/// What a shared receive context, or one of a scalable endpoint, is to be like (struct
/// fi_rx_attr). 0 in a field of a shared receive context stands for the provider's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RxAttr {
    /// Capabilities.
    pub caps: u64,
    /// Default flags of calls that have none of their own.
    pub op_flags: u64,
    /// Order of messages.
    pub msg_order: u64,
    /// Receives that may be posted at a time.
    pub size: usize,
    /// Most pieces (iovecs) of a buffer.
    pub iov_limit: usize,
}

/// What a transmit context of a scalable endpoint is to be like (struct
/// fi_tx_attr).
#[derive(Clone, Copy, Debug, Default)]
pub struct TxAttr {
    /// Capabilities.
    pub caps: u64,
    /// Default flags of calls that have none of their own.
    pub op_flags: u64,
    /// Order of messages.
    pub msg_order: u64,
    /// Most bytes of an injected message.
    pub inject_size: usize,
    /// Transfers that may be under way at a time.
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
