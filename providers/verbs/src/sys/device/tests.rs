//! Unit tests of `device`.
use super::*;

#[test]
fn kernels_with_copies_of_pinned_pages_on_fork_are_recognized() {
    for release in ["5.12.0", "5.15.0-91-generic", "6.1.0-43-amd64", "10.0"] {
        assert!(copies_on_fork(release), "{release}");
    }
    for release in ["4.18.0-553.el8.x86_64", "5.11.22", "5", "", "none.5.12"] {
        assert!(!copies_on_fork(release), "{release}");
    }
    assert!(kernel().contains('.'));
}
