//! Contexts with the size of a pointer: a slot, and a serial number distinguishing its uses.

/// Bits of the slot.
const SLOT_BITS: u32 = if usize::BITS == 64 { 32 } else { 20 };
/// Number of slots.
pub(crate) const MAX_SLOTS: usize = 1 << SLOT_BITS;
/// Largest serial number.
pub(crate) const MAX_SERIAL: u32 = (usize::MAX >> SLOT_BITS) as u32;

/// Returns the context of a slot below [`MAX_SLOTS`] and a serial number up to [`MAX_SERIAL`].
#[inline(always)]
pub(crate) fn join(serial: u32, slot: u32) -> usize {
    (serial as usize) << SLOT_BITS | slot as usize
}

/// Returns the serial number and the slot of a context.
#[inline(always)]
pub(crate) fn split(context: usize) -> (u32, u32) {
    ((context >> SLOT_BITS) as u32, (context & (MAX_SLOTS - 1)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_has_its_slot_and_serial_number() {
        let last = MAX_SLOTS as u64 - 1;
        for (serial, slot) in [(0, 0), (1, 7), (MAX_SERIAL, last as u32)] {
            assert_eq!(split(join(serial, slot)), (serial, slot));
        }
        assert_eq!(join(MAX_SERIAL, last as u32), usize::MAX);
    }
}
