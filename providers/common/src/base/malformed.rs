//! What reading bytes from a peer comes to.
use std::fmt;

/// Why bytes from a peer are not what they should be. The text is for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub &'static str);

/// The result of reading bytes from a peer.
pub type Parsed<T = ()> = Result<T, Malformed>;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}
