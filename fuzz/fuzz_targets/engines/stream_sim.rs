//! The engine of stream as a state machine. A script determines the actions of up to eight
//! endpoints, the delivery of the bytes on their links, and the data of a peer ignoring the
//! protocol. An oracle checks all reports. See `engine/sim` of stream.

pub fn run(script: &[u8]) {
    ofi_stream::engine::sim::follow(script);
}
