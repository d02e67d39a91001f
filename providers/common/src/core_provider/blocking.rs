//! Permission to block on a core provider's queues (fi_trywait(3)).
use super::cm::CoreEq;
use super::fabric::CoreFabric;
use super::queue::CoreCq;
use crate::abi::fid;

impl CoreFabric {
    /// Returns true if a caller may sleep until a descriptor of these queues is readable
    /// (fi_trywait(3)).
    pub fn may_block(&self, cqs: &[&CoreCq], eq: Option<&CoreEq>) -> bool {
        let mut fids: Vec<*mut fid> = cqs.iter().map(|cq| cq.fid()).collect();
        fids.extend(eq.map(CoreEq::fid));
        // SAFETY: all are open objects of this fabric.
        unsafe { self.try_wait(&mut fids) }.is_ok()
    }
}
