//! Unit tests of `rx_path`.
use crate::engine::StreamEngine;
use crate::engine::sim::{Rings, SimNet, SimRandom, StreamWorld};
use ofi_provider::lock::Level;
use ofi_provider::mr::MrTable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

#[test]
fn staging_buffer_is_restored_after_a_panic() {
    let regions = Arc::new(MrTable::new(0));
    let world = StreamWorld::new(Instant::now(), SimRandom::new(1));
    let net = SimNet::from(Rings::new(&world, false));
    let engine = StreamEngine::new(net, Level::Shared, false, regions).unwrap();
    let mut state = engine.lock();
    let rx = &mut state.rx;
    let len = rx.staging.buf().len();
    assert!(len > 0);
    let panics = AssertUnwindSafe(|| {
        rx.expose_staging(&[0], |rx, staging| {
            assert!(rx.staging.is_taken() && staging.len() == len);
            panic!("on purpose");
        })
    });
    assert!(catch_unwind(panics).is_err());
    assert_eq!(rx.staging.buf().len(), len);
    // Reading lends the buffer, too, and gives it back: connection 7 does not exist.
    assert!(rx.read(7));
    assert_eq!(rx.staging.buf().len(), len);
}
