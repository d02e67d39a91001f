//! The hook provider `noop`: passes every call on and adds nothing, which shows what
//! hooking itself costs, and that it changes nothing.
use ofi_hook::error::Result;
use ofi_hook::{Call, Hook, Log};

struct Noop;

impl Hook for Noop {
    const NAME: &'static str = "noop";
    type Entry = ();

    fn install(_log: Log) -> Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn enter(&self, _call: &Call) {}

    #[inline]
    unsafe fn leave(&self, _entry: (), _call: &Call, _ret: isize) {}
}

ofi_hook::plug_in!("noop", Noop);
