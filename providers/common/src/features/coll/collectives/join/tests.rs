//! Unit tests of `join`.
use super::*;

#[test]
fn ballots_agree_only_for_equal_and_untaken_numbers() {
    let numbers = [1, 2, 0x0102_0304, 0x0201_0403, u32::MAX, 0x1122_3344, 0x1122_3345];
    let highest = |a: [u8; BALLOT], b: [u8; BALLOT]| std::array::from_fn(|at| a[at].max(b[at]));
    for ours in numbers {
        for theirs in numbers {
            for taken in [false, true] {
                let verdict = highest(ballot(false, ours), ballot(taken, theirs));
                let agreed = ours == theirs && !taken;
                assert_eq!(verdict == ballot(false, ours), agreed, "{ours:x} {theirs:x}");
                assert_eq!(verdict == ballot(false, theirs), agreed, "{ours:x} {theirs:x}");
            }
        }
    }
}
