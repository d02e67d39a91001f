//! The hook provider `profile`: counts successful calls transferring data, reading completions or
//! registering memory, and their bytes, by size class; logged when the fabric is closed
//! (fi_hook(7)).
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use ofi_hook::error::Result;
use ofi_hook::log::{level, subsys};
use ofi_hook::{Args, Hook, HookCall, HookLog, HookOp};

/// Names of the size classes, with the size in bytes starting the next class.
const CLASSES: [(&str, usize); 9] = [
    ("0-64", 64),
    ("64-512", 512),
    ("512-1K", 1 << 10),
    ("1K-4K", 4 << 10),
    ("4K-64K", 64 << 10),
    ("64K-256K", 256 << 10),
    ("256K-1M", 1 << 20),
    ("1M-4M", 4 << 20),
    ("4M-", usize::MAX),
];

/// Calls of one name with operations in one size class.
#[derive(Default)]
struct ProfileSum {
    calls: AtomicU64,
    bytes: AtomicU64,
}

struct Profile {
    log: HookLog,
    /// A row for each call of the API.
    sums: Vec<[ProfileSum; CLASSES.len()]>,
}

/// Returns the class of a size.
fn class(bytes: usize) -> usize {
    CLASSES.iter().position(|(_, end)| bytes < *end).unwrap_or(CLASSES.len() - 1)
}

impl Profile {
    fn count(&self, op: HookOp, bytes: usize) {
        if let Some(sum) = self.sums.get(op as usize).and_then(|row| row.get(class(bytes))) {
            sum.calls.fetch_add(1, Ordering::Relaxed);
            sum.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Returns the lines of the table, without calls never made.
    fn rows(&self) -> impl Iterator<Item = ProfileRow> {
        HookOp::ALL.iter().zip(&self.sums).flat_map(|(op, row)| {
            row.iter().zip(CLASSES).filter_map(|(sum, (size, _))| {
                let row = ProfileRow {
                    name: op.name(),
                    size,
                    calls: sum.calls.load(Ordering::Relaxed),
                    bytes: sum.bytes.load(Ordering::Relaxed),
                };
                (row.calls > 0).then_some(row)
            })
        })
    }
}

/// One line of the table.
#[derive(PartialEq, Eq, Debug)]
struct ProfileRow {
    name: &'static str,
    size: &'static str,
    calls: u64,
    bytes: u64,
}

impl fmt::Display for ProfileRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\t{:<20} {:<10} {:<12} {}", self.name, self.size, self.calls, self.bytes)
    }
}

impl Hook for Profile {
    const NAME: &'static str = "profile";
    type Entry = ();

    fn install(log: HookLog) -> Result<Self> {
        Ok(Self { log, sums: HookOp::ALL.iter().map(|_| Default::default()).collect() })
    }

    #[inline]
    fn enter(&self, _call: &HookCall) {}

    unsafe fn leave(&self, _entry: (), call: &HookCall, ret: isize) {
        // SAFETY: by this function's contract the call has just answered.
        unsafe {
            match call.args {
                Args::Transfer(it) if ret == 0 => self.count(call.op, it.pieces.total().1),
                Args::Region(it) if ret == 0 => self.count(call.op, it.bytes()),
                // Each completion, by what it says was received.
                Args::Completions(..) => {
                    for it in call.completions(ret) {
                        self.count(call.op, it.received());
                    }
                }
                Args::Error(_) if ret > 0 => self.count(call.op, 0),
                _ => {}
            }
        }
    }

    fn finish(&self) {
        if !self.log.enabled(level::TRACE, subsys::CORE) {
            return;
        }
        let line =
            |text: fmt::Arguments<'_>| self.log.trace(subsys::CORE, "hook_profile_log", text);
        line(format_args!("\tPROFILE"));
        line(format_args!("\t{:<20} {:<10} {:<12} {}", "Name", "Size", "Calls", "Bytes"));
        for row in self.rows() {
            line(format_args!("{row}"));
        }
    }
}

ofi_hook::plug_in!("profile", Profile);

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr;
    use ofi_hook::{Pieces, TransferArgs};

    fn send(len: usize) -> HookCall {
        let args = Args::Transfer(TransferArgs {
            pieces: Pieces::One(ptr::null(), len),
            addr: 0,
            data: 0,
            flags: 0,
            tag: 0,
            ignore: 0,
            raddr: 0,
            key: 0,
            context: ptr::null_mut(),
        });
        HookCall { op: HookOp::Send, object: ptr::null(), format: 0, api_version: 0, args }
    }

    #[test]
    fn successful_operations_are_counted_by_size() {
        let profile = Profile::install(HookLog::NOWHERE).unwrap();
        for (len, ret) in [(0, 0), (63, 0), (64, 0), (64, -11), (5 << 20, 0), (6 << 20, 0)] {
            // SAFETY: nothing in the call is followed.
            unsafe { profile.leave((), &send(len), ret) };
        }
        let rows: Vec<_> = profile.rows().map(|row| row.to_string()).collect();
        assert_eq!(
            rows,
            [
                "\tsend                 0-64       2            63",
                "\tsend                 64-512     1            64",
                "\tsend                 4M-        2            11534336",
            ]
        );
    }

    #[test]
    fn every_size_belongs_to_one_class() {
        let names = [0, 64, 511, 512, 1023, 1024, 65535, 65536, 262_144, 1 << 20, usize::MAX]
            .map(|size| CLASSES[class(size)].0);
        assert_eq!(
            names,
            [
                "0-64", "64-512", "64-512", "512-1K", "512-1K", "1K-4K", "4K-64K", "64K-256K",
                "256K-1M", "1M-4M", "4M-"
            ]
        );
    }
}
