//! The engine of stream as a state machine: a script decides what up to eight endpoints do, what
//! becomes of the bytes on their links, and what somebody says there who keeps to no protocol; an
//! oracle checks all that is reported. See `engine/sim` of stream.

pub fn run(script: &[u8]) {
    ofi_stream::engine::sim::follow(script);
}
