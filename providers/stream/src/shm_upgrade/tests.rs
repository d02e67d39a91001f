//! Unit tests of `shm_upgrade`.
use super::*;

#[test]
fn doorbell_bit_is_ignored_by_links_without_shared_memory() {
    let mut entry = LocalEntry {
        carrier: (),
        changes: Arc::default(),
        token: 0,
        watched: true,
        interest: Interest::READ,
        registered: None,
        fresh: false,
        filled: false,
        listed: false,
    };
    assert!(!entry.gets_sign() && !entry.is_notified());
    // There may be space again, reported once.
    entry.changes.sends.store(true, Ordering::Relaxed);
    assert!(entry.gets_sign() && entry.fresh && !entry.filled);
    entry.changes.may_receive.store(true, Ordering::Relaxed);
    assert!(entry.gets_sign() && entry.filled && entry.is_notified());
}
