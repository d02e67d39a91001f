//! Paths of transfers by size: the rows of `fi_info --protocols` (fi_info(1)).
//!
//! A provider logs its rows during getinfo, at level trace of the subsystem `ep_data`. A row is made
//! of the values in use by the provider's code.
use core::ffi::CStr;
use core::fmt;
use core::str::FromStr;

/// Function name in log lines with a [`TransferPath`].
pub const PATHS: &CStr = c"paths";

/// Path of transfers of some sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransferPath {
    /// Transfers on this path: messages, writes, injected ones.
    pub transfers: String,
    /// Smallest and largest size in bytes; a smallest size above the largest stands for none.
    pub sizes: (usize, usize),
    /// Name of the path, of a few words.
    pub path: String,
    /// Condition and effect.
    pub text: String,
    /// Variables of the limits, with their present values.
    pub limits: Vec<(String, String)>,
}

impl TransferPath {
    /// Returns a path of transfers of all sizes, without variables.
    pub fn new(transfers: &str, path: &str, text: impl Into<String>) -> Self {
        Self {
            transfers: transfers.into(),
            sizes: (0, usize::MAX),
            path: path.into(),
            text: text.into(),
            limits: Vec::new(),
        }
    }

    /// Restricts the path to sizes from `least` to `most` bytes.
    #[must_use]
    pub fn of(mut self, least: usize, most: usize) -> Self {
        self.sizes = (least, most);
        self
    }

    /// Restricts the path to no size: it is available, and the variables disable it.
    #[must_use]
    pub fn of_none(self) -> Self {
        self.of(1, 0)
    }

    /// Adds a variable and its present value.
    #[must_use]
    pub fn limit(mut self, variable: impl Into<String>, value: impl fmt::Display) -> Self {
        self.limits.push((variable.into(), value.to_string()));
        self
    }

    /// Returns true if no size takes the path.
    pub fn is_unused(&self) -> bool {
        self.sizes.0 > self.sizes.1
    }

    /// Returns the sizes as text: `0-128`, `1025-` without an upper limit, `none`.
    pub fn sizes_text(&self) -> String {
        match self.sizes {
            (least, most) if least > most => "none".into(),
            (least, usize::MAX) => format!("{least}-"),
            (least, most) => format!("{least}-{most}"),
        }
    }

    /// Returns the variables as text: `NAME=value`, separated by blanks.
    pub fn limits_text(&self) -> String {
        let limits: Vec<_> =
            self.limits.iter().map(|(name, value)| format!("{name}={value}")).collect();
        limits.join(" ")
    }
}

/// The fields, separated by tabs; [`FromStr`] reads them.
impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sizes, limits) = (self.sizes_text(), self.limits_text());
        write!(f, "{}\t{sizes}\t{}\t{}\t{limits}", self.transfers, self.path, self.text)
    }
}

impl FromStr for TransferPath {
    type Err = ();

    fn from_str(line: &str) -> Result<Self, ()> {
        let mut fields = line.trim_end_matches('\n').split('\t');
        let mut field = || fields.next().ok_or(());
        let (transfers, sizes, path, text, limits) =
            (field()?, field()?, field()?, field()?, field()?);
        let number = |text: &str| text.parse().map_err(|_| ());
        let sizes = match sizes.split_once('-') {
            None if sizes == "none" => (1, 0),
            Some((least, "")) => (number(least)?, usize::MAX),
            Some((least, most)) => (number(least)?, number(most)?),
            None => return Err(()),
        };
        let limit = |limit: &str| {
            limit.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).ok_or(())
        };
        Ok(Self {
            transfers: transfers.into(),
            sizes,
            path: path.into(),
            text: text.into(),
            limits: limits.split_whitespace().map(limit).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_read_from_its_text() {
        let path = |text: &str| TransferPath::new("messages", "eager", text);
        for path in [
            path("copied: once"),
            path("").of(0, 128).limit("FI_X", 128).limit("FI_Y", "a"),
            path("x").of(1025, usize::MAX),
            path("x").of_none(),
        ] {
            assert_eq!(path.to_string().parse(), Ok(path.clone()), "{path}");
        }
        for malformed in ["", "a\tb", "a\t1\tb\tc\t", "a\t1-2\tb\tc\td", "a\tx-\tb\tc\t"] {
            assert_eq!(malformed.parse::<TransferPath>(), Err(()), "{malformed}");
        }
    }
}
