//! The hook provider `monitor`: counts successful calls transferring data, reading completions or
//! registering memory, and their bytes, by size class, in a file for a sampler (fi_hook(7),
//! fi_mon_sampler(1)).
mod file;

use file::{MonitorDir, MonitorFile};
use ofi_hook::abi::FI_RECV;
use ofi_hook::error::{Error, Result};
use ofi_hook::log::{level, subsys};
use ofi_hook::param;
use ofi_hook::{Args, Hook, HookCall, HookLog, HookOp};
use ofi_stats::monitor::{CLASSES, NUMBERS, cell_indices, class_of, row_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// User settings from environment variables.
#[derive(Debug)]
struct MonitorSettings {
    dir: MonitorDir,
    /// Calls between two checks for a request of a sampler.
    ticks: u32,
    /// Files remain after fabrics are closed.
    linger: bool,
}

/// The settings, read once; declares them to the core at first use.
fn settings() -> &'static MonitorSettings {
    static SETTINGS: OnceLock<MonitorSettings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let number = |name, usual: u32, help| {
            let chosen = param::int(&PROVIDER, name, help);
            chosen.and_then(|number| u32::try_from(number).ok()).unwrap_or(usual)
        };
        let base = param::string(
            &PROVIDER,
            c"basepath",
            c"the folder for the files, in which each user has one (/dev/shm/ofi)",
        );
        MonitorSettings {
            dir: MonitorDir {
                base: base.filter(|base| !base.is_empty()).unwrap_or("/dev/shm/ofi".into()).into(),
                dir_mode: number(c"dir_mode", 0o1700, c"access mode of folders in it (01700)"),
                file_mode: number(c"file_mode", 0o600, c"access mode of the files (0600)"),
            },
            ticks: number(
                c"tick_max",
                1024,
                c"calls between two looks at whether a sampler asks for data (1024)",
            )
            .max(1),
            linger: param::boolean(
                &PROVIDER,
                c"linger",
                c"whether files stay when fabrics are closed, for a sampler to read; default no",
            )
            .unwrap_or(false),
        }
    })
}

/// Returns the batch job number of the process; 0 if there is none.
fn job() -> u64 {
    let text = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    text.parse().unwrap_or(0)
}

struct CallMonitor {
    file: MonitorFile,
    settings: &'static MonitorSettings,
    /// Counts since the last response to a sampler, in the order of the file.
    numbers: Vec<AtomicU64>,
    ticks: AtomicU32,
    /// Held by the thread responding to a sampler.
    answering: Mutex<()>,
    /// The row of each call, if it has one.
    rows: Vec<Option<usize>>,
    /// The rows of completions, sent and received, of each format of queues.
    completions: [[usize; 2]; 4],
}

/// Receive calls. Their buffer lengths are not meaningful: received bytes are counted with
/// completions.
const RECEIVES: [HookOp; 6] =
    [HookOp::Recv, HookOp::Recvv, HookOp::Recvmsg, HookOp::Trecv, HookOp::Trecvv, HookOp::Trecvmsg];

impl CallMonitor {
    fn new(file: MonitorFile, settings: &'static MonitorSettings) -> Result<Self> {
        let row = |name| row_of(name).ok_or(Error::OTHER);
        let contexts = row("cq_ctx")?;
        Ok(Self {
            file,
            settings,
            numbers: (0..NUMBERS).map(|_| AtomicU64::new(0)).collect(),
            ticks: AtomicU32::new(0),
            answering: Mutex::new(()),
            rows: HookOp::ALL.iter().map(|op| row_of(op.name())).collect(),
            completions: [
                [contexts; 2],
                [row("cq_msg_tx")?, row("cq_msg_rx")?],
                [row("cq_data_tx")?, row("cq_data_rx")?],
                [row("cq_tagged_tx")?, row("cq_tagged_rx")?],
            ],
        })
    }

    fn count(&self, row: usize, class: usize, bytes: usize) {
        let [count, sum] = cell_indices(row, class).map(|dir| self.numbers.get(dir));
        if let (Some(count), Some(sum)) = (count, sum) {
            count.fetch_add(1, Ordering::Relaxed);
            sum.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Counts a completion in a queue of this format: received bytes count by their size.
    fn completed(&self, format: u32, received: Option<usize>) {
        let rows = usize::try_from(format).ok().and_then(|format| format.checked_sub(1));
        let Some([sent, came]) = rows.and_then(|at| self.completions.get(at)) else { return };
        match received {
            Some(bytes) => self.count(*came, class_of(bytes as u64), bytes),
            None => self.count(*sent, 0, 0),
        }
    }

    /// Takes the count at an index.
    fn take(&self, dir: usize) -> u64 {
        self.numbers.get(dir).map_or(0, |number| number.swap(0, Ordering::Relaxed))
    }

    /// Counts a call, and periodically responds to a sampler's request.
    fn tick(&self) {
        let ticks = self.ticks.fetch_add(1, Ordering::Relaxed);
        if ticks.wrapping_add(1) % self.settings.ticks != 0 || !self.file.is_asked() {
            return;
        }
        if let Ok(_answering) = self.answering.try_lock() {
            if self.file.is_asked() {
                self.file.answer(|dir| self.take(dir));
            }
        }
    }
}

impl Hook for CallMonitor {
    const NAME: &'static str = "monitor";
    type Entry = ();

    fn install(log: HookLog) -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        // SAFETY: a number is asked for.
        let parent = unsafe { libc::getppid() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let provider = log.provider().unwrap_or_else(|| "unknown".to_owned()).replace('/', "_");
        let name = format!("{parent}_{}_{number}_{}_{provider}", std::process::id(), job());
        let settings = settings();
        let refused = |why: &dyn std::fmt::Display| {
            log.line(
                level::WARN,
                subsys::FABRIC,
                "hook_monitor_fabric",
                format_args!("no file for a sampler, so nothing is monitored: {why}"),
            );
            Error::OTHER
        };
        if ofi_hook::has_more_rights() {
            return Err(refused(&"this program has more rights than its caller"));
        }
        let file = MonitorFile::new(&settings.dir, &name).map_err(|why| refused(&why))?;
        Self::new(file, settings)
    }

    #[inline]
    fn enter(&self, _call: &HookCall) {}

    unsafe fn leave(&self, _entry: (), call: &HookCall, ret: isize) {
        let Some(row) = self.rows.get(call.op as usize).copied().flatten() else { return };
        // SAFETY: by this function's contract the call has just answered.
        unsafe {
            match call.args {
                Args::Transfer(_) if ret == 0 && RECEIVES.contains(&call.op) => {
                    self.count(row, 0, 0);
                }
                Args::Transfer(it) if ret == 0 => {
                    let bytes = it.pieces.total().1;
                    self.count(row, class_of(bytes as u64), bytes);
                }
                // Registered memory counts by whose it is.
                Args::Region(it) if ret == 0 => {
                    let owner = it.iface(call.api_version) as usize;
                    self.count(row, owner.min(CLASSES.len() - 1), it.bytes());
                }
                Args::Completions(..) if ret > 0 => {
                    self.count(row, 0, 0);
                    for it in call.completions(ret) {
                        let received = it.flags.is_some_and(|flags| flags & FI_RECV != 0);
                        self.completed(call.format, received.then(|| it.received()));
                    }
                }
                Args::Error(_) if ret > 0 => self.count(row, 0, 0),
                _ => {}
            }
        }
        self.tick();
    }
}

/// Runs when the fabric and everything opened through it are closed.
impl Drop for CallMonitor {
    fn drop(&mut self) {
        self.file.end(|dir| self.take(dir));
        if !self.settings.linger {
            self.file.remove();
        }
    }
}

ofi_hook::plug_in!("monitor", CallMonitor, {
    // The parameters are declared when the plug-in is loaded, so that fi_getparams lists them.
    settings();
});

#[cfg(test)]
mod tests;
