//! The hook provider `noop`: passes every call on without any addition. It shows the cost of
//! hooking itself, and its transparency.
use ofi_hook::error::Result;
use ofi_hook::{Hook, HookCall, HookLog};

struct Noop;

impl Hook for Noop {
    const NAME: &'static str = "noop";
    type Entry = ();

    fn install(_log: HookLog) -> Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn enter(&self, _call: &HookCall) {}

    #[inline]
    unsafe fn leave(&self, _entry: (), _call: &HookCall, _ret: isize) {}
}

ofi_hook::plug_in!("noop", Noop);
