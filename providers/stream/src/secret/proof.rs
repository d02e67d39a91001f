//! Authentication handshake: two ends of a link prove to each other the possession of the same
//! pre-shared key.
//!
//! It is Noise's pattern NNpsk0, with the cryptography of [`snow`]. Each frame has a head of
//! [`HEAD_LEN`] bytes: a magic number of four bytes, the version, the kind of the frame, a flag for
//! the sender's encryption, and the number of bytes following. No message of the engine's protocol
//! starts with the magic number.
//!
//! | frame | from | content after the head |
//! |---|---|---|
//! | hello | connecting end | an ephemeral key, and a tag requiring the pre-shared key |
//! | answer | accepting end | an ephemeral key, and a tag proving the key and the receipt of this hello |
//! | proof | connecting end | a tag proving the receipt of this answer |
//! | refusal | either | nothing; the sender disconnects |
//!
//! A hello alone proves nothing, since an attacker may replay a recorded one. So the accepting end
//! trusts nothing before the proof. The heads of hello and answer are bound into the handshake
//! (Noise's prologue): changing one, for example to disable encryption, ends it.
use super::SecretKey;
use super::records::RecordKeys;
use ofi_provider::secret::{WipedBox, on_wiped_stack};
use snow::resolvers::{DefaultResolver, FallbackResolver, RingResolver};
use snow::{Builder, HandshakeState};
use std::fmt;

/// Magic number at the start of a frame: no message of the engine's protocol begins with it.
const FRAME_MARK: [u8; 4] = *b"\xc5OFS";
const FRAME_VERSION: u8 = 1;

/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 8;
/// Bytes of an ephemeral key.
const EPHEMERAL_LEN: usize = 32;
/// Bytes of a tag.
pub(super) const TAG_LEN: usize = 16;
/// Bytes after the head of the longest frame.
const BODY_MAX: usize = EPHEMERAL_LEN + TAG_LEN;

/// The handshake, in Noise's terms.
const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Purpose of the handshake, in its prologue.
const PURPOSE: &[u8] = b"libfabric stream link";

/// The kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameKind {
    Hello = 1,
    Answer = 2,
    Proof = 3,
    Refusal = 4,
}

impl FrameKind {
    fn body_len(self) -> usize {
        match self {
            Self::Hello | Self::Answer => BODY_MAX,
            Self::Proof => TAG_LEN,
            Self::Refusal => 0,
        }
    }

    fn head(self, encrypts: bool) -> [u8; HEAD_LEN] {
        let [a, b, c, d] = FRAME_MARK;
        let len = self.body_len() as u8;
        [a, b, c, d, FRAME_VERSION, self as u8, u8::from(encrypts), len]
    }
}

/// Reason for failed authentication of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disbelief {
    /// It does not speak of secrets at all.
    NoSecret,
    /// It has another version of the handshake.
    Version,
    /// One end encrypts and the other one does not.
    Encryption,
    /// It has another pre-shared key, or its frames were changed or replayed in transit.
    OtherSecret,
    /// It refused this end.
    Refused,
    /// It says something else than is its turn.
    OutOfTurn,
    /// The system has no random numbers, or the like.
    System,
}

impl fmt::Display for Disbelief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSecret => "it has no secret, and this process has one",
            Self::Version => "it has another version of the proof of the secret",
            Self::Encryption => "one end encrypts and the other one does not",
            Self::OtherSecret => "it has not the same secret",
            Self::Refused => "it refuses us: it has not the same secret",
            Self::OutOfTurn => "what it says is no proof of the secret",
            Self::System => "the system has no random numbers",
        })
    }
}

/// Stage of the handshake at one end.
enum ProofStage {
    /// Connecting end, after sending its hello.
    AwaitAnswer(WipedBox<HandshakeState>),
    /// The called end.
    AwaitHello(WipedBox<HandshakeState>),
    /// Accepting end, after sending its answer.
    AwaitProof(Box<RecordKeys>),
    Proven(Option<Box<RecordKeys>>),
    Over,
}

/// One end's part of the handshake.
pub struct ProofExchange {
    stage: ProofStage,
    encrypts: bool,
    /// Frame being received: the bytes available.
    heard: Vec<u8>,
    /// Bytes to be sent.
    unsent: Vec<u8>,
}

impl fmt::Debug for ProofExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            ProofStage::AwaitAnswer(_) => "AwaitAnswer",
            ProofStage::AwaitHello(_) => "AwaitHello",
            ProofStage::AwaitProof(_) => "AwaitProof",
            ProofStage::Proven(_) => "Proven",
            ProofStage::Over => "Over",
        };
        f.debug_struct("ProofExchange").field("stage", &stage).finish_non_exhaustive()
    }
}

/// Creates a builder with a resolver of Noise's functions: ring's, and the curve missing there.
fn builder<'a>(prologue: &'a [u8], key: &'a SecretKey) -> Result<Builder<'a>, snow::Error> {
    let resolver = FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver));
    Builder::with_resolver(PATTERN.parse()?, Box::new(resolver))
        .prologue(prologue)?
        .psk(0, key.bytes())
}

fn with_ephemeral<'a>(builder: Builder<'a>, ephemeral: Option<&'a [u8]>) -> Builder<'a> {
    match ephemeral {
        Some(key) => builder.fixed_ephemeral_key_for_testing_only(key),
        None => builder,
    }
}

fn prologue(encrypts: bool) -> Vec<u8> {
    let heads = [FrameKind::Hello.head(encrypts), FrameKind::Answer.head(encrypts)];
    [PURPOSE, heads.as_flattened()].concat()
}

impl ProofExchange {
    /// Creates the connecting end's part.
    pub fn caller(key: &SecretKey, encrypts: bool) -> Result<Self, Disbelief> {
        Self::begin_caller(key, encrypts, None)
    }

    /// Creates the accepting end's part.
    pub fn called(key: &SecretKey, encrypts: bool) -> Result<Self, Disbelief> {
        Self::begin_called(key, encrypts, None)
    }

    /// `ephemeral` is this end's private key, for known answers.
    fn begin_called(
        key: &SecretKey,
        encrypts: bool,
        ephemeral: Option<&[u8]>,
    ) -> Result<Self, Disbelief> {
        let prologue = prologue(encrypts);
        let state = on_wiped_stack(|| {
            let builder = with_ephemeral(builder(&prologue, key)?, ephemeral);
            builder.build_responder().map(WipedBox::new)
        });
        let stage = ProofStage::AwaitHello(state.map_err(|_: snow::Error| Disbelief::System)?);
        Ok(Self { stage, encrypts, heard: Vec::new(), unsent: Vec::new() })
    }

    /// `ephemeral` is this end's private key, for known answers.
    fn begin_caller(
        key: &SecretKey,
        encrypts: bool,
        ephemeral: Option<&[u8]>,
    ) -> Result<Self, Disbelief> {
        let prologue = prologue(encrypts);
        let begun = on_wiped_stack(|| {
            let builder = with_ephemeral(builder(&prologue, key)?, ephemeral);
            let mut state = WipedBox::new(builder.build_initiator()?);
            let mut body = [0; BODY_MAX];
            state.write_message(&[], &mut body)?;
            Ok((state, body))
        });
        let (state, body) = begun.map_err(|_: snow::Error| Disbelief::System)?;
        let unsent = [&FrameKind::Hello.head(encrypts)[..], &body].concat();
        let stage = ProofStage::AwaitAnswer(state);
        Ok(Self { stage, encrypts, heard: Vec::new(), unsent })
    }

    /// Returns true if the other end has proven its pre-shared key. There may be bytes left to
    /// send.
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, ProofStage::Proven(_))
    }

    /// Returns true for the connecting end before any response.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.stage, ProofStage::AwaitAnswer(_)) && self.heard.is_empty()
    }

    /// Returns true if the first message may wait for the handshake: only at the connecting end.
    pub fn takes_first(&self) -> bool {
        matches!(self.stage, ProofStage::AwaitAnswer(_))
    }

    /// Returns the keys for the following data, once.
    pub fn take_keys(&mut self) -> Option<Box<RecordKeys>> {
        match &mut self.stage {
            ProofStage::Proven(keys) => keys.take(),
            _ => None,
        }
    }

    /// Returns the bytes to be sent.
    pub fn unsent(&self) -> &[u8] {
        &self.unsent
    }

    /// Counts `n` of these bytes as sent.
    pub fn sent(&mut self, n: usize) {
        self.unsent.drain(..n.min(self.unsent.len()));
    }

    /// Returns the number of bytes to be received next. Further bytes may belong to another reader.
    pub fn wants(&self) -> usize {
        let whole = match self.stage {
            ProofStage::Proven(_) | ProofStage::Over => return 0,
            // The first bytes tell strangers apart, without waiting for more that may never come.
            _ if self.heard.is_empty() => 1,
            _ if self.heard.len() < HEAD_LEN => HEAD_LEN,
            _ => HEAD_LEN + usize::from(self.heard[HEAD_LEN - 1]),
        };
        whole - self.heard.len()
    }

    /// Processes received bytes, at most the number wanted. An error ends the exchange; the
    /// remaining bytes to send notify the other end of it.
    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), Disbelief> {
        if bytes.len() > self.wants() {
            return Err(self.end(Disbelief::OutOfTurn));
        }
        self.heard.extend_from_slice(bytes);
        on_wiped_stack(|| self.understand()).map_err(|why| self.end(why))
    }

    fn end(&mut self, why: Disbelief) -> Disbelief {
        self.stage = ProofStage::Over;
        self.heard.clear();
        self.unsent.clear();
        if !matches!(why, Disbelief::Refused | Disbelief::NoSecret) {
            self.unsent.extend(FrameKind::Refusal.head(self.encrypts));
        }
        why
    }

    fn understand(&mut self) -> Result<(), Disbelief> {
        let known = self.heard.len().min(FRAME_MARK.len());
        if self.heard[..known] != FRAME_MARK[..known] {
            return Err(Disbelief::NoSecret);
        }
        let Some(head) = self.heard.first_chunk::<HEAD_LEN>() else { return Ok(()) };
        let turn = match self.stage {
            ProofStage::AwaitAnswer(_) => FrameKind::Answer,
            ProofStage::AwaitHello(_) => FrameKind::Hello,
            ProofStage::AwaitProof(_) => FrameKind::Proof,
            ProofStage::Proven(_) | ProofStage::Over => return Err(Disbelief::OutOfTurn),
        };
        if *head != turn.head(self.encrypts) {
            return Err(match head {
                [.., version, _, _, _] if *version != FRAME_VERSION => Disbelief::Version,
                [.., kind, encrypts, _]
                    if *kind == FrameKind::Refusal as u8
                        && *encrypts == u8::from(self.encrypts) =>
                {
                    Disbelief::Refused
                }
                [.., kind, encrypts, _]
                    if [turn, FrameKind::Refusal].iter().any(|known| *kind == *known as u8)
                        && *encrypts == u8::from(!self.encrypts) =>
                {
                    Disbelief::Encryption
                }
                _ => Disbelief::OutOfTurn,
            });
        }
        if self.heard.len() < HEAD_LEN + turn.body_len() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.heard);
        let body = &frame[HEAD_LEN..];
        let stage = std::mem::replace(&mut self.stage, ProofStage::Over);
        self.stage = match stage {
            ProofStage::AwaitHello(mut state) => {
                read(&mut state, body)?;
                let mut answer = [0; BODY_MAX];
                state.write_message(&[], &mut answer).map_err(|_| Disbelief::System)?;
                self.unsent.extend(FrameKind::Answer.head(self.encrypts));
                self.unsent.extend(answer);
                ProofStage::AwaitProof(keys_of(state))
            }
            ProofStage::AwaitAnswer(mut state) => {
                read(&mut state, body)?;
                let mut keys = keys_of(state);
                let tag = keys.prove().map_err(|_| Disbelief::System)?;
                self.unsent.extend(FrameKind::Proof.head(self.encrypts));
                self.unsent.extend(tag);
                ProofStage::Proven(Some(keys))
            }
            ProofStage::AwaitProof(mut keys) => {
                if !keys.is_proven_by(body) {
                    return Err(Disbelief::OtherSecret);
                }
                ProofStage::Proven(Some(keys))
            }
            ProofStage::Proven(_) | ProofStage::Over => return Err(Disbelief::OutOfTurn),
        };
        Ok(())
    }
}

/// Reads the other end's message without payload.
fn read(state: &mut HandshakeState, body: &[u8]) -> Result<(), Disbelief> {
    match state.read_message(body, &mut [0; BODY_MAX]) {
        Ok(_) => Ok(()),
        Err(snow::Error::Rng) => Err(Disbelief::System),
        Err(_) => Err(Disbelief::OtherSecret),
    }
}

/// Returns the keys of a handshake with all messages exchanged: first the connecting end's key.
fn keys_of(mut state: WipedBox<HandshakeState>) -> Box<RecordKeys> {
    let (caller, called) = state.dangerously_get_raw_split();
    let (sends, takes) = if state.is_initiator() { (caller, called) } else { (called, caller) };
    Box::new(RecordKeys::new(&sends, &takes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the ends of a completed deterministic handshake, and its three frames.
    pub(crate) fn known() -> ([ProofExchange; 2], [Vec<u8>; 3]) {
        let key = key(SAME[0]);
        let mut caller = ProofExchange::begin_caller(&key, true, Some(&[1; 32])).unwrap();
        let mut called = ProofExchange::begin_called(&key, true, Some(&[2; 32])).unwrap();
        let hello = said(&mut caller);
        tell(&mut called, &hello).unwrap();
        let answer = said(&mut called);
        tell(&mut caller, &answer).unwrap();
        let proof = said(&mut caller);
        tell(&mut called, &proof).unwrap();
        ([caller, called], [hello, answer, proof])
    }

    pub(crate) fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Expected values of another implementation: Noise's specification in Python, over hashlib and
    /// the package "cryptography".
    #[test]
    fn handshake_frames_match_another_implementation() {
        let (_, frames) = known();
        let told = [
            "c54f465301010130a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209ea32277afe5992b4a4ed\
             fe545ce3b027",
            "c54f465301020130ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59002f226bf03eb30658c3\
             649710b60c07",
            "c54f4653010301107528068880f3129cc2c44e4e695403db",
        ];
        assert_eq!(frames.map(|frame| hex(&frame)), told);
    }

    fn key(secret: &[u8]) -> SecretKey {
        SecretKey::of(secret).unwrap()
    }

    /// A caller and a called end, with these secrets and choices.
    fn pair(secrets: [&[u8]; 2], encrypts: [bool; 2]) -> [ProofExchange; 2] {
        [
            ProofExchange::caller(&key(secrets[0]), encrypts[0]).unwrap(),
            ProofExchange::called(&key(secrets[1]), encrypts[1]).unwrap(),
        ]
    }

    /// Passes these bytes to `to`, in the pieces wanted; returns the number accepted.
    fn tell(to: &mut ProofExchange, bytes: &[u8]) -> Result<usize, Disbelief> {
        let mut at = 0;
        while at < bytes.len() && to.wants() > 0 {
            let n = to.wants().min(bytes.len() - at).min(5);
            to.hear(&bytes[at..at + n])?;
            at += n;
        }
        Ok(at)
    }

    /// Removes and returns the bytes to be sent by an end.
    fn said(of: &mut ProofExchange) -> Vec<u8> {
        let said = of.unsent().to_vec();
        of.sent(said.len());
        said
    }

    const SAME: [&[u8]; 2] = [b"the secret of a job"; 2];

    #[test]
    fn ends_with_the_same_secret_believe_each_other_and_have_the_same_keys() {
        for encrypts in [false, true] {
            let [mut caller, mut called] = pair(SAME, [encrypts; 2]);
            assert!(caller.is_unanswered());
            tell(&mut called, &said(&mut caller)).unwrap();
            assert!(!called.is_proven(), "a hello may be a repeated one");
            tell(&mut caller, &said(&mut called)).unwrap();
            assert!(caller.is_proven() && !caller.is_unanswered());
            // No byte is taken of what follows.
            let last = [said(&mut caller), b"request".to_vec()].concat();
            assert_eq!(tell(&mut called, &last), Ok(last.len() - 7));
            assert!(called.is_proven());
            let [mut one, mut other] =
                [&mut caller, &mut called].map(|end| end.take_keys().unwrap());
            for _ in 0..3 {
                let tag = one.prove().unwrap();
                assert!(other.is_proven_by(&tag));
                std::mem::swap(&mut one, &mut other);
            }
        }
    }

    #[test]
    fn ends_with_other_secrets_or_choices_do_not() {
        let [mut caller, mut called] = pair([SAME[0], b"the secret of another job"], [false; 2]);
        let why = tell(&mut called, &said(&mut caller));
        assert_eq!(why, Err(Disbelief::OtherSecret));
        assert_eq!(tell(&mut caller, &said(&mut called)), Err(Disbelief::Refused));
        assert!(said(&mut caller).is_empty() && caller.wants() == 0);
        for encrypts in [[false, true], [true, false]] {
            let [mut caller, mut called] = pair(SAME, encrypts);
            assert_eq!(tell(&mut called, &said(&mut caller)), Err(Disbelief::Encryption));
            assert_eq!(tell(&mut caller, &said(&mut called)), Err(Disbelief::Encryption));
            // Changing the head in transit gains nothing.
            let [mut caller, mut called] = pair(SAME, encrypts);
            let mut hello = said(&mut caller);
            hello[6] ^= 1;
            assert_eq!(tell(&mut called, &hello), Err(Disbelief::OtherSecret));
        }
    }

    #[test]
    fn every_changed_byte_is_noticed_and_every_missing_one_waited_for() {
        for frame in 0..3 {
            for at in 0.. {
                let mut ends = pair(SAME, [true; 2]);
                let mut changed = None;
                for turn in 0..=frame {
                    let [from, to] = [turn % 2, 1 - turn % 2];
                    let mut bytes = said(&mut ends[from]);
                    if turn == frame && at < bytes.len() {
                        // All but the last byte decides nothing.
                        let mut early = bytes.clone();
                        early.pop();
                        bytes[at] ^= 1 << (at % 8);
                        changed = Some(tell(&mut ends[to], &bytes));
                    } else if turn < frame {
                        tell(&mut ends[to], &bytes).unwrap();
                    }
                }
                let Some(result) = changed else { break };
                assert!(result.is_err(), "frame {frame}, byte {at}");
                let to = 1 - frame % 2;
                assert!(!ends[to].is_proven() && ends[to].take_keys().is_none());
            }
        }
        let [mut caller, mut called] = pair(SAME, [false; 2]);
        let hello = said(&mut caller);
        tell(&mut called, &hello[..hello.len() - 1]).unwrap();
        assert_eq!((called.wants(), called.unsent().len()), (1, 0));
    }

    #[test]
    fn replayed_and_reflected_frames_do_not_authenticate() {
        let [mut caller, mut called] = pair(SAME, [false; 2]);
        let hello = said(&mut caller);
        tell(&mut called, &hello).unwrap();
        let answer = said(&mut called);
        tell(&mut caller, &answer).unwrap();
        let proof = said(&mut caller);
        tell(&mut called, &proof).unwrap();
        assert!(called.is_proven());
        // All of it again: the answer is another one, so the proof is none.
        let [mut other, mut again] = pair(SAME, [false; 2]);
        tell(&mut again, &hello).unwrap();
        assert_ne!(said(&mut again), answer);
        assert_eq!(tell(&mut again, &proof), Err(Disbelief::OtherSecret));
        assert_eq!(tell(&mut other, &answer), Err(Disbelief::OtherSecret));
        // An end's own bytes.
        let [mut caller, _] = pair(SAME, [false; 2]);
        let hello = said(&mut caller);
        assert_eq!(tell(&mut caller, &hello), Err(Disbelief::OutOfTurn));
        let mut turned = hello;
        turned[5] = FrameKind::Answer as u8;
        let [mut caller, mut called] = pair(SAME, [false; 2]);
        assert_eq!(tell(&mut caller, &turned), Err(Disbelief::OtherSecret));
        let [mut caller, _] = pair(SAME, [false; 2]);
        tell(&mut called, &said(&mut caller)).unwrap();
        let answer = said(&mut called);
        assert_eq!(tell(&mut called, &answer), Err(Disbelief::OutOfTurn));
    }

    #[test]
    fn foreign_first_bytes_are_refused_with_their_reason() {
        for bytes in [&b"\x03"[..], b"GET / HTTP/1.1\r\n", b"\xc5OFT", &[0; 8]] {
            let [_, mut called] = pair(SAME, [false; 2]);
            assert_eq!(tell(&mut called, bytes), Err(Disbelief::NoSecret));
            assert!(said(&mut called).is_empty(), "nothing is answered");
        }
        for (at, value, why) in [
            (4, 2, Disbelief::Version),
            (5, 9, Disbelief::OutOfTurn),
            (5, 3, Disbelief::OutOfTurn),
            (6, 2, Disbelief::OutOfTurn),
            (7, 255, Disbelief::OutOfTurn),
            (7, 0, Disbelief::OutOfTurn),
        ] {
            let [mut caller, mut called] = pair(SAME, [false; 2]);
            let mut hello = said(&mut caller);
            hello[at] = value;
            assert_eq!(tell(&mut called, &hello), Err(why), "byte {at}");
        }
    }
}
