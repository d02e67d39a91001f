//! Record format of encrypted links.
//!
//! A record is its length in four bytes, most significant first, at most [`RECORD_MAX`] encrypted
//! bytes, their tag, and one byte without meaning ([`RECORD_END`]). The nonce is the record's
//! number in its direction, so none can be omitted, repeated or moved. A wrong length moves the
//! expected position of the tag. Every [`RECORDS_PER_KEY`] records the key is replaced by one
//! derived from it. Cipher, nonces and new keys are those of Noise's transport messages.
//!
//! The last byte serves a poller watching only the underlying link. A reader leaves it there until
//! all bytes of the record were taken. So the link stays readable as long as decrypted data is
//! left.
//!
//! Bytes are copied once on either side, and encrypted and decrypted in place. One call receives
//! the rest of a record with the length of the next one, if its caller takes the whole record.
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a tag.
pub(super) const TAG_LEN: usize = 16;

/// Maximum payload bytes in a record: with the overhead they fit in one packet of 64 KiB.
pub const RECORD_MAX: usize = 60 << 10;

/// The byte behind each record.
const RECORD_END: u8 = 0x5a;

/// Bytes of a record's length.
const LEN_LEN: usize = 4;

/// Bytes between the payloads of two records: the end of one and the length of the other.
const HEAD_MAX: usize = 1 + LEN_LEN;

/// After so many records the key is replaced.
const RECORDS_PER_KEY: u64 = 1 << 20;

/// Bytes of a key.
const RECORD_KEY_LEN: usize = 32;

/// Invalid or changed record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordError;

/// The keys of a link, one for each direction.
pub struct RecordKeys {
    sends: RecordKey,
    takes: RecordKey,
}

impl RecordKeys {
    /// Creates the keys of one end: its own sending key, and its peer's.
    pub fn new(sends: &[u8; RECORD_KEY_LEN], takes: &[u8; RECORD_KEY_LEN]) -> Self {
        Self { sends: RecordKey::new(sends), takes: RecordKey::new(takes) }
    }

    /// Returns the tag proving the possession of the keys, before any record.
    #[inline(never)]
    pub fn prove(&mut self) -> Result<[u8; TAG_LEN], RecordError> {
        let mut tag = [0; TAG_LEN];
        tag.copy_from_slice(self.sends.seal(&mut [])?.as_ref());
        Ok(tag)
    }

    /// Returns true if this is the other end's proof tag.
    #[inline(never)]
    pub fn is_proven_by(&mut self, tag: &[u8]) -> bool {
        self.takes.open(tag, &mut []).is_ok()
    }
}

impl fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordKeys")
    }
}

/// The key of one direction.
struct RecordKey {
    key: LessSafeKey,
    /// Number of the next item to be sealed: the proof, or a record.
    next: u64,
    /// Number of records, and the limit of records per key.
    records: u64,
    per_key: u64,
}

impl RecordKey {
    fn new(bytes: &[u8; RECORD_KEY_LEN]) -> Self {
        Self { key: Self::of(bytes), next: 0, records: 0, per_key: RECORDS_PER_KEY }
    }

    fn of(bytes: &[u8; RECORD_KEY_LEN]) -> LessSafeKey {
        // The length is the cipher's, which is all that is asked of a key.
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("the length of a key"))
    }

    fn nonce(number: u64) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(bytes)
    }

    /// Encrypts these bytes in place.
    fn seal(&mut self, bytes: &mut [u8]) -> Result<Tag, RecordError> {
        let tag = self.key.seal_in_place_separate_tag(Self::nonce(self.next), Aad::empty(), bytes);
        self.next += 1;
        tag.map_err(|_| RecordError)
    }

    /// Decrypts these bytes in place. With a wrong tag their content is lost.
    fn open(&mut self, tag: &[u8], bytes: &mut [u8]) -> Result<(), RecordError> {
        let tag = Tag::try_from(tag).map_err(|_| RecordError)?;
        let (key, nonce) = (&self.key, Self::nonce(self.next));
        let opened = key.open_in_place_separate_tag(nonce, Aad::empty(), tag, bytes, 0..);
        self.next += 1;
        opened.map(|_| ()).map_err(|_| RecordError)
    }

    /// Counts a record; goes on to the next key when it is time.
    fn count(&mut self) -> Result<(), RecordError> {
        self.records += 1;
        if self.records % self.per_key == 0 {
            let mut next = [0; RECORD_KEY_LEN];
            let (nonce, none) = (Self::nonce(u64::MAX), Aad::empty());
            let tag = self.key.seal_in_place_separate_tag(nonce, none, &mut next);
            let _ = tag.map_err(|_| RecordError)?;
            self.key = Self::of(&next);
        }
        Ok(())
    }
}

/// Buffer for a record: the link's own for short ones, and one shared between links for long ones.
#[derive(Default)]
struct RecordBuf {
    short: Vec<u8>,
    long: Option<Vec<u8>>,
}

/// Size in bytes of a link's own buffer, if it has any.
const SHORT_BUF: usize = 2 << 10;

/// Size in bytes of one record with everything between two records.
const LONG_BUF: usize = LEN_LEN + RECORD_MAX + TAG_LEN + HEAD_MAX;

/// Free buffers for long records. A forked child finds the list locked at worst.
static FREE_BUFS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Maximum number of free buffers.
const MAX_FREE_BUFS: usize = 8;

impl RecordBuf {
    /// Provides space for `len` bytes, at most [`LONG_BUF`]. The previous content is lost.
    fn begin(&mut self, len: usize) {
        if len > SHORT_BUF {
            self.long.get_or_insert_with(|| {
                let free = FREE_BUFS.try_lock().ok().and_then(|mut free| free.pop());
                free.unwrap_or_else(|| vec![0; LONG_BUF])
            });
        } else if self.short.is_empty() {
            self.short = vec![0; SHORT_BUF];
        }
    }

    /// Returns the whole buffer.
    fn bytes(&mut self) -> &mut [u8] {
        self.long.as_mut().unwrap_or(&mut self.short)
    }

    fn seen(&self) -> &[u8] {
        self.long.as_ref().unwrap_or(&self.short)
    }

    /// Releases the long buffer, no longer needed.
    fn end(&mut self) {
        if let Some(long) = self.long.take() {
            if let Ok(mut free) = FREE_BUFS.try_lock() {
                if free.len() < MAX_FREE_BUFS {
                    free.push(long);
                }
            }
        }
    }
}

impl Drop for RecordBuf {
    fn drop(&mut self) {
        self.end();
    }
}

/// Both directions of an encrypted link.
pub struct RecordStream {
    keys: Box<RecordKeys>,
    /// Unsent record.
    sealed: RecordBuf,
    unsent: Range<usize>,
    /// Bytes between the previous record and the next: the end of the former, if it is still to be
    /// read, and the length of the latter.
    head: [u8; HEAD_MAX],
    head_received: usize,
    end_is_due: bool,
    /// Record being received: its length including the tag, and the bytes received.
    body: RecordBuf,
    body_len: usize,
    body_received: usize,
    /// Decrypted bytes not taken yet.
    plaintext: Range<usize>,
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream")
            .field("sealed", &self.keys.sends.records)
            .field("opened", &self.keys.takes.records)
            .finish_non_exhaustive()
    }
}

impl RecordStream {
    /// Creates the stream after a handshake with these keys.
    pub fn new(keys: Box<RecordKeys>) -> Self {
        Self {
            keys,
            sealed: RecordBuf::default(),
            unsent: 0..0,
            head: [0; HEAD_MAX],
            head_received: 0,
            end_is_due: false,
            body: RecordBuf::default(),
            body_len: 0,
            body_received: 0,
            plaintext: 0..0,
        }
    }

    /// Seals a record of `len` bytes, at least one and at most [`RECORD_MAX`], written by `fill` to
    /// the given buffer. All previous records must have been sent.
    pub fn seal(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), RecordError> {
        if !(1..=RECORD_MAX).contains(&len) || !self.unsent.is_empty() {
            return Err(RecordError);
        }
        let all = LEN_LEN + len + TAG_LEN + 1;
        self.sealed.begin(all);
        let dst = &mut self.sealed.bytes()[..all];
        let (head, dst) = dst.split_at_mut(LEN_LEN);
        let (bytes, dst) = dst.split_at_mut(len);
        let (tag, end) = dst.split_at_mut(TAG_LEN);
        head.copy_from_slice(&((len + TAG_LEN) as u32).to_be_bytes());
        fill(bytes);
        tag.copy_from_slice(self.keys.sends.seal(bytes)?.as_ref());
        self.keys.sends.count()?;
        end.fill(RECORD_END);
        self.unsent = 0..all;
        Ok(())
    }

    /// Returns the bytes to be sent.
    pub fn unsent(&self) -> &[u8] {
        self.sealed.seen().get(self.unsent.clone()).unwrap_or(&[])
    }

    /// Counts `n` of these bytes as sent.
    pub fn sent(&mut self, n: usize) {
        self.unsent.start = self.unsent.end.min(self.unsent.start + n);
        if self.unsent.is_empty() {
            self.sealed.end();
        }
    }

    /// Takes decrypted bytes.
    pub fn take(&mut self, dst: &mut [u8]) -> usize {
        if self.plaintext.is_empty() {
            return 0;
        }
        let n = self.plaintext.len().min(dst.len());
        let from = self.plaintext.start;
        dst[..n].copy_from_slice(&self.body.seen()[from..from + n]);
        self.plaintext.start += n;
        if self.plaintext.is_empty() {
            self.body.end();
        }
        n
    }

    /// Returns true if there are bytes to take.
    pub fn has_opened(&self) -> bool {
        !self.plaintext.is_empty()
    }

    /// Returns true if a record was received in part.
    pub fn is_within(&self) -> bool {
        self.head_received > usize::from(self.end_is_due) || self.body_len > 0
    }

    /// Returns true if a record's bytes were all taken, its end is still to be received, and no
    /// byte of the next record is here.
    pub fn is_at_end(&self) -> bool {
        self.end_is_due && self.head_received == 0 && !self.has_opened()
    }

    /// Returns the buffer for the next receive, for a reader of `takes` bytes, as long as there is
    /// nothing to take. If the call fills all of it, there may be more.
    pub fn buf(&mut self, takes: usize) -> &mut [u8] {
        let head = LEN_LEN + usize::from(self.end_is_due);
        if self.body_len == 0 {
            return &mut self.head[self.head_received..head];
        }
        let behind = if takes >= self.body_len - TAG_LEN { HEAD_MAX } else { 0 };
        &mut self.body.bytes()[self.body_received..self.body_len + behind]
    }

    /// Processes `n` bytes received into the buffer. Returns the number of bytes decrypted to
    /// `into`, if they fit there; others are to be taken later.
    pub fn came(&mut self, n: usize, into: &mut [u8]) -> Result<usize, RecordError> {
        if self.body_len == 0 {
            self.head_received += n;
            self.read_head()?;
            return Ok(0);
        }
        self.body_received += n;
        let Some(behind) = self.body_received.checked_sub(self.body_len) else { return Ok(0) };
        let len = self.body_len - TAG_LEN;
        (self.body_len, self.body_received) = (0, 0);
        let (bytes, rest) = self.body.bytes().split_at_mut(len);
        let (tag, next) = rest.split_at(TAG_LEN);
        let direct = match into.get_mut(..len) {
            Some(into) => {
                into.copy_from_slice(bytes);
                self.keys.takes.open(tag, into)?;
                len
            }
            None => {
                self.keys.takes.open(tag, bytes)?;
                0
            }
        };
        self.keys.takes.count()?;
        (self.end_is_due, self.head_received) = (true, behind);
        self.head[..behind].copy_from_slice(&next[..behind]);
        if direct > 0 {
            self.body.end();
        } else {
            self.plaintext = 0..len;
        }
        self.read_head()?;
        Ok(direct)
    }

    /// Begins the next record, if its length is here.
    fn read_head(&mut self) -> Result<(), RecordError> {
        let start = usize::from(self.end_is_due);
        if start == 1 && self.head_received > 0 && self.head[0] != RECORD_END {
            return Err(RecordError);
        }
        if self.head_received < start + LEN_LEN {
            return Ok(());
        }
        let len = self.head[start..start + LEN_LEN].iter();
        let len = len.fold(0, |len, byte| len << 8 | usize::from(*byte));
        if !(TAG_LEN + 1..=TAG_LEN + RECORD_MAX).contains(&len) {
            return Err(RecordError);
        }
        self.body.begin(len + HEAD_MAX);
        (self.body_len, self.body_received) = (len, 0);
        (self.head_received, self.end_is_due) = (0, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::psk_handshake::tests::{hex, known};
    use super::*;

    fn pair() -> [RecordStream; 2] {
        let (ends, _) = known();
        ends.map(|mut end| RecordStream::new(end.take_keys().unwrap()))
    }

    /// Passes these bytes to `to` in pieces of at most `piece`; returns the decrypted data or an
    /// error.
    fn read(to: &mut RecordStream, bytes: &[u8], piece: usize) -> Result<Vec<u8>, RecordError> {
        read_to(&mut [0; 1000], to, bytes, piece)
    }

    /// Does the same with this buffer for decrypted data.
    fn read_to(
        dst: &mut [u8],
        to: &mut RecordStream,
        bytes: &[u8],
        piece: usize,
    ) -> Result<Vec<u8>, RecordError> {
        let (mut at, mut opened) = (0, Vec::new());
        loop {
            while to.has_opened() {
                let n = to.take(dst);
                opened.extend_from_slice(&dst[..n]);
            }
            let takes = dst.len();
            let n = to.buf(takes).len().min(piece).min(bytes.len() - at);
            if n == 0 {
                return Ok(opened);
            }
            to.buf(takes)[..n].copy_from_slice(&bytes[at..at + n]);
            let direct = to.came(n, dst)?;
            opened.extend_from_slice(&dst[..direct]);
            at += n;
        }
    }

    fn seal(of: &mut RecordStream, bytes: &[u8]) -> Vec<u8> {
        of.seal(bytes.len(), |dst| dst.copy_from_slice(bytes)).unwrap();
        take_unsent(of)
    }

    fn take_unsent(of: &mut RecordStream) -> Vec<u8> {
        let take_unsent = of.unsent().to_vec();
        of.sent(take_unsent.len());
        take_unsent
    }

    /// As for the handshake, of another implementation.
    #[test]
    fn record_bytes_match_another_implementation() {
        let [mut caller, mut called] = pair();
        // The caller's key is replaced behind its first record.
        (caller.keys.sends.per_key, called.keys.sends.per_key) = (1, 2);
        let expected = [
            "0000001f825ffb6de767b9ef44bb1632f865a79ea59332936fb6e9889e9d7cd4e2a14f5a",
            "0000001f0a52152c62e607e90384623c6db0d18d667f51e29d008cd9684ad8845d8b885a",
            "0000002038df125aceb485b871eaacf1a7c570a88d9b8bc4ad9239e8591ac859561e97b85a",
        ];
        let first = seal(&mut caller, b"from the caller");
        let second = seal(&mut called, b"from the called");
        let records = [first, second, seal(&mut caller, b"with another key")];
        assert_eq!(records.map(|record| hex(&record)), expected);
    }

    #[test]
    fn bytes_arrive_as_sent_for_any_chunk_sizes() {
        for (piece, dst) in [1, 7, 300, usize::MAX]
            .into_iter()
            .flat_map(|piece| [1, 999, 1000, RECORD_MAX, 2 * RECORD_MAX].map(|dst| (piece, dst)))
        {
            let [mut one, mut other] = pair();
            (one.keys.sends.per_key, other.keys.takes.per_key) = (3, 3);
            let (mut sent, mut take_unsent) = (Vec::new(), Vec::new());
            for len in [1, 2, 999, 1000, 1001, RECORD_MAX - 1, RECORD_MAX, 5] {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + len) as u8).collect();
                take_unsent.extend(seal(&mut one, &bytes));
                sent.extend(bytes);
            }
            // The end of the last record is left where it is.
            let (all, end) = take_unsent.split_at(take_unsent.len() - 1);
            let mut dst = vec![0; dst];
            assert_eq!(read_to(&mut dst, &mut other, all, piece), Ok(sent));
            assert!(!other.is_within() && other.is_at_end());
            assert_eq!(read(&mut other, end, piece), Ok(Vec::new()));
            assert!(!other.is_within() && !other.is_at_end());
        }
    }

    #[test]
    fn no_byte_is_read_past_a_record_still_to_be_taken() {
        let [mut one, mut other] = pair();
        let take_unsent = [seal(&mut one, &[1; 100]), seal(&mut one, &[2; 100])].concat();
        let received = |other: &mut RecordStream, at: &mut usize, dst: &mut [u8]| {
            let n = other.buf(dst.len()).len();
            other.buf(dst.len()).copy_from_slice(&take_unsent[*at..*at + n]);
            *at += n;
            other.came(n, dst).unwrap()
        };
        let (mut at, mut dst) = (0, [0; 100]);
        received(&mut other, &mut at, &mut dst[..99]);
        assert_eq!(received(&mut other, &mut at, &mut dst[..99]), 0);
        assert!(other.has_opened());
        assert_eq!(
            (at, take_unsent[at]),
            (LEN_LEN + 100 + TAG_LEN, RECORD_END),
            "the end is left there"
        );
        assert_eq!((other.take(&mut dst[..99]), other.take(&mut dst)), (99, 1));
        received(&mut other, &mut at, &mut dst);
        assert_eq!(other.buf(100).len(), 100 + TAG_LEN + HEAD_MAX, "who takes it all goes on");
    }

    #[test]
    fn incomplete_record_yields_no_bytes() {
        let [mut one, mut other] = pair();
        let (bytes, mut dst) = (vec![7; RECORD_MAX], vec![0; RECORD_MAX]);
        let take_unsent = seal(&mut one, &bytes);
        let mut got = 0;
        for byte in &take_unsent {
            got += other.take(&mut dst);
            other.buf(RECORD_MAX)[0] = *byte;
            got += other.came(1, &mut dst).unwrap();
        }
        assert_eq!((got, dst == bytes), (RECORD_MAX, true));
    }

    #[test]
    fn one_record_is_sealed_at_a_time_and_of_some_bytes() {
        let [mut one, _] = pair();
        for len in [0, RECORD_MAX + 1] {
            assert_eq!(one.seal(len, |_| unreachable!("of no such length")), Err(RecordError));
        }
        one.seal(1, |dst| dst.fill(1)).unwrap();
        assert_eq!(one.seal(1, |_| unreachable!("with one unsent")), Err(RecordError));
    }

    #[test]
    fn every_change_of_a_record_is_noticed() {
        let sealed = |n: usize| {
            let [mut one, other] = pair();
            let records: Vec<_> = (0..n).map(|index| seal(&mut one, &[index as u8; 20])).collect();
            (records, other)
        };
        for at in 0..41 {
            let (records, mut other) = sealed(2);
            let mut bytes = records.concat();
            bytes[at] ^= 1;
            // A longer record is waited for, and nothing of it is believed meanwhile.
            let got = read(&mut other, &bytes, usize::MAX);
            let waits = got == Ok(Vec::new()) && other.is_within();
            assert!(got == Err(RecordError) || waits, "byte {at}: {got:?}");
        }
        // Left out, repeated, and in another order.
        for order in [&[1][..], &[0, 0], &[0, 2], &[1, 0]] {
            let (records, mut other) = sealed(3);
            let bytes: Vec<u8> = order.iter().flat_map(|&at| records[at].clone()).collect();
            assert_eq!(read(&mut other, &bytes, usize::MAX), Err(RecordError), "{order:?}");
        }
        // Reflected to its sender.
        let [mut one, _] = pair();
        let bytes = seal(&mut one, b"words");
        assert_eq!(read(&mut one, &bytes, usize::MAX), Err(RecordError));
        // Lengths that no record has.
        for len in [0, TAG_LEN, TAG_LEN + RECORD_MAX + 1, u32::MAX as usize] {
            let [mut one, _] = pair();
            let head = (len as u32).to_be_bytes();
            assert_eq!(read(&mut one, &head, usize::MAX), Err(RecordError), "{len}");
            assert!(one.body.seen().is_empty());
        }
        // A record that is cut is no end.
        let (records, mut other) = sealed(1);
        assert_eq!(read(&mut other, &records[0][..30], usize::MAX), Ok(Vec::new()));
        assert!(other.is_within());
    }
}
