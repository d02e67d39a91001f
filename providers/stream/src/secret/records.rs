//! The form of what encrypted links carry: records.
//!
//! A record is its length in four bytes, most significant first, at most [`RECORD_MAX`] bytes that
//! are encrypted, their tag, and one byte that says nothing ([`RECORD_END`]). The nonce is the
//! record's number in its direction, so none can be left out, repeated or moved; a wrong length has
//! the tag looked for elsewhere. Every [`RECORDS_PER_KEY`] records the key is replaced by one that is
//! made of it.
//!
//! The last byte is what keeps a poller right that sees the link beneath alone: a reader leaves it
//! there until all bytes of the record were taken, so that there is something to read as long as
//! there is.
use super::proof::TAG_LEN;
use snow::TransportState;
use std::fmt;

/// Most bytes in a record.
pub const RECORD_MAX: usize = 16 << 10;

/// The byte behind each record.
const RECORD_END: u8 = 0x5a;

/// Bytes of a record's length.
const LEN_LEN: usize = 4;

/// After so many records the key is replaced.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// A record that is none, or was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokenRecord;

/// Both directions of an encrypted link.
pub struct RecordStream {
    keys: Box<TransportState>,
    per_key: u64,
    sealed: u64,
    opened: u64,
    /// Records that were not sent yet.
    unsent: Vec<u8>,
    unsent_from: usize,
    /// The record that comes: its length, then the bytes.
    len: [u8; LEN_LEN + 1],
    len_heard: usize,
    cipher: Vec<u8>,
    cipher_len: usize,
    /// Bytes that were opened, and how many of them were taken.
    plain: Vec<u8>,
    taken: usize,
    /// The end of the record before is still to be read.
    end_is_due: bool,
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream")
            .field("sealed", &self.sealed)
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

impl RecordStream {
    /// What follows a handshake that made these keys.
    pub fn new(keys: Box<TransportState>) -> Self {
        Self {
            keys,
            per_key: RECORDS_PER_KEY,
            sealed: 0,
            opened: 0,
            unsent: Vec::new(),
            unsent_from: 0,
            len: [0; LEN_LEN + 1],
            len_heard: 0,
            cipher: Vec::new(),
            cipher_len: 0,
            plain: Vec::new(),
            taken: 0,
            end_is_due: false,
        }
    }

    /// Makes a record of these bytes, at most [`RECORD_MAX`], to be sent.
    pub fn seal(&mut self, bytes: &[u8]) -> Result<(), BrokenRecord> {
        let bytes = bytes.get(..bytes.len().min(RECORD_MAX)).unwrap_or(bytes);
        let body = bytes.len() + TAG_LEN;
        let at = self.unsent.len();
        self.unsent.extend((body as u32).to_be_bytes());
        self.unsent.resize(at + LEN_LEN + body, 0);
        let room = &mut self.unsent[at + LEN_LEN..];
        self.keys.write_message(bytes, room).map_err(|_| BrokenRecord)?;
        self.unsent.push(RECORD_END);
        self.sealed += 1;
        if self.sealed.is_multiple_of(self.per_key) {
            self.keys.rekey_outgoing();
        }
        Ok(())
    }

    /// Records to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent[self.unsent_from..]
    }

    /// So many bytes of that were sent.
    pub fn sent(&mut self, n: usize) {
        self.unsent_from += n;
        if self.unsent_from >= self.unsent.len() {
            self.unsent.clear();
            self.unsent_from = 0;
        }
    }

    /// Takes bytes that were opened.
    pub fn take(&mut self, room: &mut [u8]) -> usize {
        let left = &self.plain[self.taken..];
        let n = left.len().min(room.len());
        room[..n].copy_from_slice(&left[..n]);
        self.taken += n;
        n
    }

    /// Whether there are bytes to take.
    pub fn has_opened(&self) -> bool {
        self.taken < self.plain.len()
    }

    /// Whether a record has come in part.
    pub fn is_within(&self) -> bool {
        self.len_heard > usize::from(self.end_is_due) || self.cipher_len > 0
    }

    /// The room for what is to be received next, as long as there is nothing to take.
    pub fn room(&mut self) -> &mut [u8] {
        let head = LEN_LEN + usize::from(self.end_is_due);
        if self.len_heard < head {
            return &mut self.len[self.len_heard..head];
        }
        &mut self.cipher[self.cipher_len..]
    }

    /// So many bytes have come into that room.
    pub fn came(&mut self, n: usize) -> Result<(), BrokenRecord> {
        let start = usize::from(self.end_is_due);
        let head = LEN_LEN + start;
        if self.len_heard < head {
            self.len_heard += n;
            if start == 1 && self.len_heard > 0 && self.len[0] != RECORD_END {
                return Err(BrokenRecord);
            }
            if self.len_heard == head {
                let len =
                    self.len[start..head].iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
                if !(TAG_LEN + 1..=TAG_LEN + RECORD_MAX).contains(&len) {
                    return Err(BrokenRecord);
                }
                self.cipher.resize(len, 0);
                self.cipher_len = 0;
            }
            return Ok(());
        }
        self.cipher_len += n;
        if self.cipher_len < self.cipher.len() {
            return Ok(());
        }
        self.plain.resize(self.cipher.len(), 0);
        self.taken = 0;
        let opened = self.keys.read_message(&self.cipher, &mut self.plain);
        let n = opened.map_err(|_| {
            self.plain.clear();
            BrokenRecord
        })?;
        self.plain.truncate(n);
        self.opened += 1;
        if self.opened.is_multiple_of(self.per_key) {
            self.keys.rekey_incoming();
        }
        (self.len_heard, self.cipher_len, self.end_is_due) = (0, 0, true);
        self.cipher.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::proof::tests::{hex, known};
    use super::*;

    fn pair() -> [RecordStream; 2] {
        let (ends, _) = known();
        ends.map(|mut end| RecordStream::new(end.take_keys().unwrap()))
    }

    /// Has `to` read these bytes in pieces of at most `piece`; what it opened, or that it cannot go on.
    fn read(to: &mut RecordStream, bytes: &[u8], piece: usize) -> Result<Vec<u8>, BrokenRecord> {
        let (mut at, mut opened, mut room) = (0, Vec::new(), [0; 1000]);
        loop {
            while to.has_opened() {
                let n = to.take(&mut room);
                opened.extend_from_slice(&room[..n]);
            }
            let n = to.room().len().min(piece).min(bytes.len() - at);
            if n == 0 {
                return Ok(opened);
            }
            to.room()[..n].copy_from_slice(&bytes[at..at + n]);
            to.came(n)?;
            at += n;
        }
    }

    fn said(of: &mut RecordStream) -> Vec<u8> {
        let said = of.unsent().to_vec();
        of.sent(said.len());
        said
    }

    /// As for the handshake, of another implementation.
    #[test]
    fn the_records_are_the_known_ones() {
        let [mut caller, mut called] = pair();
        // The caller's key is replaced behind its first record.
        (caller.per_key, called.per_key) = (1, 2);
        caller.seal(b"from the caller").unwrap();
        let first = said(&mut caller);
        caller.seal(b"with another key").unwrap();
        called.seal(b"from the called").unwrap();
        let told = [
            "0000001f825ffb6de767b9ef44bb1632f865a79ea59332936fb6e9889e9d7cd4e2a14f5a",
            "0000001f0a52152c62e607e90384623c6db0d18d667f51e29d008cd9684ad8845d8b885a",
            "0000002038df125aceb485b871eaacf1a7c570a88d9b8bc4ad9239e8591ac859561e97b85a",
        ];
        let records = [first, said(&mut called), said(&mut caller)];
        assert_eq!(records.map(|record| hex(&record)), told);
    }

    #[test]
    fn bytes_come_as_they_were_sent_whatever_the_pieces() {
        for piece in [1, 7, 300, usize::MAX] {
            let [mut one, mut other] = pair();
            (one.per_key, other.per_key) = (3, 3);
            let mut sent = Vec::new();
            for len in [1, 2, 999, 1000, 1001, RECORD_MAX - 1, RECORD_MAX, 5] {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
                one.seal(&bytes).unwrap();
                sent.extend(bytes);
            }
            let said = said(&mut one);
            // The end of the last record is left where it is.
            let (all, end) = said.split_at(said.len() - 1);
            assert_eq!(read(&mut other, all, piece), Ok(sent));
            assert!(!other.is_within());
            assert_eq!(read(&mut other, end, piece), Ok(Vec::new()));
            assert!(!other.is_within());
        }
    }

    #[test]
    fn every_change_of_a_record_is_noticed() {
        let sealed = |n: usize| {
            let [mut one, other] = pair();
            let records: Vec<_> = (0..n)
                .map(|index| {
                    one.seal(&[index as u8; 20]).unwrap();
                    said(&mut one)
                })
                .collect();
            (records, other)
        };
        for at in 0..41 {
            let (records, mut other) = sealed(2);
            let mut bytes = records.concat();
            bytes[at] ^= 1;
            // A longer record is waited for, and nothing of it is believed meanwhile.
            let got = read(&mut other, &bytes, usize::MAX);
            let waits = got == Ok(Vec::new()) && other.is_within();
            assert!(got == Err(BrokenRecord) || waits, "byte {at}: {got:?}");
        }
        // Left out, repeated, and in another order.
        for order in [&[1][..], &[0, 0], &[0, 2], &[1, 0]] {
            let (records, mut other) = sealed(3);
            let bytes: Vec<u8> = order.iter().flat_map(|&at| records[at].clone()).collect();
            assert_eq!(read(&mut other, &bytes, usize::MAX), Err(BrokenRecord), "{order:?}");
        }
        // Said back to who said it.
        let [mut one, _] = pair();
        one.seal(b"words").unwrap();
        let bytes = said(&mut one);
        assert_eq!(read(&mut one, &bytes, usize::MAX), Err(BrokenRecord));
        // Lengths that no record has.
        for len in [0, TAG_LEN, TAG_LEN + RECORD_MAX + 1, u32::MAX as usize] {
            let [mut one, _] = pair();
            let head = (len as u32).to_be_bytes();
            assert_eq!(read(&mut one, &head, usize::MAX), Err(BrokenRecord), "{len}");
            assert!(one.cipher.is_empty());
        }
        // A record that is cut is no end.
        let (records, mut other) = sealed(1);
        assert_eq!(read(&mut other, &records[0][..30], usize::MAX), Ok(Vec::new()));
        assert!(other.is_within());
    }
}
