//! Contents of verified messages: a sequence number and bytes derived from it.

/// Returns the byte at an offset from 8 of message `sequence`.
#[inline]
fn byte(sequence: u64, at: usize) -> u8 {
    (sequence as u8) ^ (at as u8).wrapping_mul(31) ^ ((at >> 8) as u8)
}

/// Writes the content of message `sequence`.
pub(crate) fn fill(buffer: &mut [u8], sequence: u64) {
    let number = sequence.to_le_bytes();
    let head = buffer.len().min(8);
    buffer[..head].copy_from_slice(&number[..head]);
    for (at, to) in buffer.iter_mut().enumerate().skip(8) {
        *to = byte(sequence, at);
    }
}

/// Returns the sequence number of a message of at least eight bytes.
pub(crate) fn sequence_of(buffer: &[u8]) -> Option<u64> {
    buffer.first_chunk().map(|number| u64::from_le_bytes(*number))
}

/// Returns true if a buffer has the content of message `sequence`.
pub(crate) fn is_message(buffer: &[u8], sequence: u64) -> bool {
    let number = sequence.to_le_bytes();
    let head = buffer.len().min(8);
    buffer[..head] == number[..head]
        && buffer
            .iter()
            .enumerate()
            .skip(8)
            .fold(0, |bad, (at, found)| bad | (found ^ byte(sequence, at)))
            == 0
}
