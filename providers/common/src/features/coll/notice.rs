//! Notices between members of groups.
/// Error code of an unsolicited notice with a join number.
pub(super) const UNASKED: i32 = -1;
/// Error code of a notice answering the membership question: its sender does not belong to the
/// group.
pub(super) const NO_MEMBER: i32 = -2;

/// Notice of a broken group, a failed join, or join numbers, or an empty one.
#[derive(Clone, Copy, Default)]
pub(super) struct CollNotice {
    /// Number of the group, or 0; in a notice of a join number the name of the set (`Set::name`).
    pub(super) group: u32,
    /// Errno of the failure, 0 without one. [`UNASKED`] in an unsolicited notice of a join number,
    /// [`NO_MEMBER`] in an answer to a membership question.
    pub(super) error: i32,
    /// The tag of the joining without the sender's rank, or 0.
    pub(super) joining: u64,
}

impl CollNotice {
    pub(super) const LEN: usize = 16;

    pub(super) fn write(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.group.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.error.to_be_bytes());
        bytes[8..].copy_from_slice(&self.joining.to_be_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8; Self::LEN]) -> Self {
        let [a, b, c, d, e, f, g, h, joining @ ..] = *bytes;
        let (group, error) = (u32::from_be_bytes([a, b, c, d]), i32::from_be_bytes([e, f, g, h]));
        Self { group, error, joining: u64::from_be_bytes(joining) }
    }
}
