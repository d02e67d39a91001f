//! Errors of fi_perf: sentences for the user.
use ofi::error::Error;
use std::fmt;

/// Reason for an early end.
#[derive(Clone, Debug)]
pub(crate) struct Failure(pub(crate) String);

/// Result of the functions of fi_perf.
pub(crate) type Outcomes<T = ()> = Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an error with this text.
pub(crate) fn fail<T>(text: impl Into<String>) -> Outcomes<T> {
    Err(Failure(text.into()))
}

/// Adds the name of the failed step to an error of the library.
pub(crate) trait During<T> {
    fn during(self, step: &str) -> Outcomes<T>;
}

impl<T> During<T> for Result<T, Error> {
    fn during(self, step: &str) -> Outcomes<T> {
        self.map_err(|error| Failure(format!("{step}: {error}")))
    }
}

impl<T> During<T> for std::io::Result<T> {
    fn during(self, step: &str) -> Outcomes<T> {
        self.map_err(|error| Failure(format!("{step}: {error}")))
    }
}
