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
use super::records::{RecordKeys, TAG_LEN};
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
    Confirm = 3,
    Reject = 4,
}

impl FrameKind {
    fn body_len(self) -> usize {
        match self {
            Self::Hello | Self::Answer => BODY_MAX,
            Self::Confirm => TAG_LEN,
            Self::Reject => 0,
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
pub enum AuthError {
    /// It does not support pre-shared keys at all.
    NoSecret,
    /// It has another version of the handshake.
    Version,
    /// One end encrypts and the other one does not.
    Encryption,
    /// It has another pre-shared key, or its frames were changed or replayed in transit.
    OtherSecret,
    /// It refused this end.
    Refused,
    /// It sent a message out of order.
    OutOfOrder,
    /// The system has no random numbers, or the like.
    System,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSecret => "it has no secret, and this process has one",
            Self::Version => "it has another version of the proof of the secret",
            Self::Encryption => "one end encrypts and the other one does not",
            Self::OtherSecret => "it has not the same secret",
            Self::Refused => "it refuses us: it has not the same secret",
            Self::OutOfOrder => "what it says is no proof of the secret",
            Self::System => "the system has no random numbers",
        })
    }
}

/// Stage of the handshake at one end.
enum HandshakeStage {
    /// Connecting end, after sending its hello.
    AwaitAnswer(WipedBox<HandshakeState>),
    /// The called end.
    AwaitHello(WipedBox<HandshakeState>),
    /// Accepting end, after sending its answer.
    AwaitConfirm(Box<RecordKeys>),
    Proven(Option<Box<RecordKeys>>),
    Over,
}

/// One end's part of the handshake.
pub struct PskHandshake {
    stage: HandshakeStage,
    encrypts: bool,
    /// Frame being received: the bytes available.
    received: Vec<u8>,
    /// Bytes to be sent.
    unsent: Vec<u8>,
}

impl fmt::Debug for PskHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            HandshakeStage::AwaitAnswer(_) => "AwaitAnswer",
            HandshakeStage::AwaitHello(_) => "AwaitHello",
            HandshakeStage::AwaitConfirm(_) => "AwaitProof",
            HandshakeStage::Proven(_) => "Proven",
            HandshakeStage::Over => "Over",
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

impl PskHandshake {
    /// Creates the connecting end's part.
    pub fn caller(key: &SecretKey, encrypts: bool) -> Result<Self, AuthError> {
        Self::begin_caller(key, encrypts, None)
    }

    /// Creates the accepting end's part.
    pub fn called(key: &SecretKey, encrypts: bool) -> Result<Self, AuthError> {
        Self::begin_called(key, encrypts, None)
    }

    /// `ephemeral` is this end's private key, for known answers.
    fn begin_called(
        key: &SecretKey,
        encrypts: bool,
        ephemeral: Option<&[u8]>,
    ) -> Result<Self, AuthError> {
        let prologue = prologue(encrypts);
        let state = on_wiped_stack(|| {
            let builder = with_ephemeral(builder(&prologue, key)?, ephemeral);
            builder.build_responder().map(WipedBox::new)
        });
        let stage = HandshakeStage::AwaitHello(state.map_err(|_: snow::Error| AuthError::System)?);
        Ok(Self { stage, encrypts, received: Vec::new(), unsent: Vec::new() })
    }

    /// `ephemeral` is this end's private key, for known answers.
    fn begin_caller(
        key: &SecretKey,
        encrypts: bool,
        ephemeral: Option<&[u8]>,
    ) -> Result<Self, AuthError> {
        let prologue = prologue(encrypts);
        let started = on_wiped_stack(|| {
            let builder = with_ephemeral(builder(&prologue, key)?, ephemeral);
            let mut state = WipedBox::new(builder.build_initiator()?);
            let body = write(&mut state)?;
            Ok((state, body))
        });
        let (state, body) = started.map_err(|_: snow::Error| AuthError::System)?;
        let unsent = [&FrameKind::Hello.head(encrypts)[..], &body].concat();
        let stage = HandshakeStage::AwaitAnswer(state);
        Ok(Self { stage, encrypts, received: Vec::new(), unsent })
    }

    /// Returns true if the other end has proven its pre-shared key. There may be bytes left to
    /// send.
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, HandshakeStage::Proven(_))
    }

    /// Returns true for the connecting end before any response.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.stage, HandshakeStage::AwaitAnswer(_)) && self.received.is_empty()
    }

    /// Returns true if the first message may wait for the handshake: only at the connecting end.
    pub fn takes_first(&self) -> bool {
        matches!(self.stage, HandshakeStage::AwaitAnswer(_))
    }

    /// Returns the keys for the following data, once.
    pub fn take_keys(&mut self) -> Option<Box<RecordKeys>> {
        match &mut self.stage {
            HandshakeStage::Proven(keys) => keys.take(),
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
            HandshakeStage::Proven(_) | HandshakeStage::Over => return 0,
            // The first byte identifies unauthenticated peers, without waiting for more bytes that
            // may never arrive.
            _ if self.received.is_empty() => 1,
            _ if self.received.len() < HEAD_LEN => HEAD_LEN,
            _ => HEAD_LEN + usize::from(self.received[HEAD_LEN - 1]),
        };
        whole - self.received.len()
    }

    /// Processes received bytes, at most the number wanted. An error ends the exchange; the
    /// remaining bytes to send notify the other end of it.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), AuthError> {
        if bytes.len() > self.wants() {
            return Err(self.end(AuthError::OutOfOrder));
        }
        self.received.extend_from_slice(bytes);
        on_wiped_stack(|| self.parse_messages()).map_err(|why| self.end(why))
    }

    fn end(&mut self, why: AuthError) -> AuthError {
        self.stage = HandshakeStage::Over;
        self.received.clear();
        self.unsent.clear();
        if !matches!(why, AuthError::Refused | AuthError::NoSecret) {
            self.unsent.extend(FrameKind::Reject.head(self.encrypts));
        }
        why
    }

    // The cryptography of each step has a stack frame of its own: threads may have 16 KiB.
    #[inline(never)]
    fn parse_messages(&mut self) -> Result<(), AuthError> {
        let known = self.received.len().min(FRAME_MARK.len());
        if self.received[..known] != FRAME_MARK[..known] {
            return Err(AuthError::NoSecret);
        }
        let Some(head) = self.received.first_chunk::<HEAD_LEN>() else { return Ok(()) };
        let expected = match self.stage {
            HandshakeStage::AwaitAnswer(_) => FrameKind::Answer,
            HandshakeStage::AwaitHello(_) => FrameKind::Hello,
            HandshakeStage::AwaitConfirm(_) => FrameKind::Confirm,
            HandshakeStage::Proven(_) | HandshakeStage::Over => return Err(AuthError::OutOfOrder),
        };
        if *head != expected.head(self.encrypts) {
            return Err(match head {
                [.., version, _, _, _] if *version != FRAME_VERSION => AuthError::Version,
                [.., kind, encrypts, _]
                    if *kind == FrameKind::Reject as u8 && *encrypts == u8::from(self.encrypts) =>
                {
                    AuthError::Refused
                }
                [.., kind, encrypts, _]
                    if [expected, FrameKind::Reject].iter().any(|known| *kind == *known as u8)
                        && *encrypts == u8::from(!self.encrypts) =>
                {
                    AuthError::Encryption
                }
                _ => AuthError::OutOfOrder,
            });
        }
        if self.received.len() < HEAD_LEN + expected.body_len() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.received);
        let body = &frame[HEAD_LEN..];
        let stage = std::mem::replace(&mut self.stage, HandshakeStage::Over);
        self.stage = match stage {
            HandshakeStage::AwaitHello(mut state) => {
                read(&mut state, body)?;
                let answer = write(&mut state).map_err(|_| AuthError::System)?;
                self.unsent.extend(FrameKind::Answer.head(self.encrypts));
                self.unsent.extend(answer);
                HandshakeStage::AwaitConfirm(keys_of(state))
            }
            HandshakeStage::AwaitAnswer(mut state) => {
                read(&mut state, body)?;
                let mut keys = keys_of(state);
                let tag = keys.prove().map_err(|_| AuthError::System)?;
                self.unsent.extend(FrameKind::Confirm.head(self.encrypts));
                self.unsent.extend(tag);
                HandshakeStage::Proven(Some(keys))
            }
            HandshakeStage::AwaitConfirm(mut keys) => {
                if !keys.is_proven_by(body) {
                    return Err(AuthError::OtherSecret);
                }
                HandshakeStage::Proven(Some(keys))
            }
            HandshakeStage::Proven(_) | HandshakeStage::Over => return Err(AuthError::OutOfOrder),
        };
        Ok(())
    }
}

/// Returns this end's message without payload.
#[inline(never)]
fn write(state: &mut HandshakeState) -> Result<[u8; BODY_MAX], snow::Error> {
    let mut body = [0; BODY_MAX];
    state.write_message(&[], &mut body)?;
    Ok(body)
}

/// Reads the other end's message without payload.
#[inline(never)]
fn read(state: &mut HandshakeState, body: &[u8]) -> Result<(), AuthError> {
    match state.read_message(body, &mut [0; BODY_MAX]) {
        Ok(_) => Ok(()),
        Err(snow::Error::Rng) => Err(AuthError::System),
        Err(_) => Err(AuthError::OtherSecret),
    }
}

/// Returns the keys of a handshake with all messages exchanged: first the connecting end's key.
#[inline(never)]
fn keys_of(mut state: WipedBox<HandshakeState>) -> Box<RecordKeys> {
    let (caller, called) = state.dangerously_get_raw_split();
    let (sends, takes) = if state.is_initiator() { (caller, called) } else { (called, caller) };
    Box::new(RecordKeys::new(&sends, &takes))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the ends of a completed deterministic handshake, and its three frames.
    pub(crate) fn known() -> ([PskHandshake; 2], [Vec<u8>; 3]) {
        let key = key(SAME[0]);
        let mut caller = PskHandshake::begin_caller(&key, true, Some(&[1; 32])).unwrap();
        let mut called = PskHandshake::begin_called(&key, true, Some(&[2; 32])).unwrap();
        let hello = take_unsent(&mut caller);
        tell(&mut called, &hello).unwrap();
        let answer = take_unsent(&mut called);
        tell(&mut caller, &answer).unwrap();
        let psk_handshake = take_unsent(&mut caller);
        tell(&mut called, &psk_handshake).unwrap();
        ([caller, called], [hello, answer, psk_handshake])
    }

    pub(crate) fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Expected values of another implementation: Noise's specification in Python, over hashlib and
    /// the package "cryptography".
    #[test]
    fn handshake_frames_match_another_implementation() {
        let (_, frames) = known();
        let expected = [
            "c54f465301010130a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209ea32277afe5992b4a4ed\
             fe545ce3b027",
            "c54f465301020130ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59002f226bf03eb30658c3\
             649710b60c07",
            "c54f4653010301107528068880f3129cc2c44e4e695403db",
        ];
        assert_eq!(frames.map(|frame| hex(&frame)), expected);
    }

    fn key(secret: &[u8]) -> SecretKey {
        SecretKey::of(secret).unwrap()
    }

    /// Returns a connecting and an accepting end, with these pre-shared keys and choices.
    fn pair(secrets: [&[u8]; 2], encrypts: [bool; 2]) -> [PskHandshake; 2] {
        [
            PskHandshake::caller(&key(secrets[0]), encrypts[0]).unwrap(),
            PskHandshake::called(&key(secrets[1]), encrypts[1]).unwrap(),
        ]
    }

    /// Passes these bytes to `to`, in the pieces wanted; returns the number accepted.
    fn tell(to: &mut PskHandshake, bytes: &[u8]) -> Result<usize, AuthError> {
        let mut at = 0;
        while at < bytes.len() && to.wants() > 0 {
            let n = to.wants().min(bytes.len() - at).min(5);
            to.receive(&bytes[at..at + n])?;
            at += n;
        }
        Ok(at)
    }

    /// Removes and returns the bytes to be sent by an end.
    fn take_unsent(of: &mut PskHandshake) -> Vec<u8> {
        let take_unsent = of.unsent().to_vec();
        of.sent(take_unsent.len());
        take_unsent
    }

    const SAME: [&[u8]; 2] = [b"the secret of a job"; 2];

    #[test]
    fn ends_with_the_same_secret_believe_each_other_and_have_the_same_keys() {
        for encrypts in [false, true] {
            let [mut caller, mut called] = pair(SAME, [encrypts; 2]);
            assert!(caller.is_unanswered());
            tell(&mut called, &take_unsent(&mut caller)).unwrap();
            assert!(!called.is_proven(), "a hello may be a repeated one");
            tell(&mut caller, &take_unsent(&mut called)).unwrap();
            assert!(caller.is_proven() && !caller.is_unanswered());
            // No byte is taken of what follows.
            let last = [take_unsent(&mut caller), b"request".to_vec()].concat();
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
        let why = tell(&mut called, &take_unsent(&mut caller));
        assert_eq!(why, Err(AuthError::OtherSecret));
        assert_eq!(tell(&mut caller, &take_unsent(&mut called)), Err(AuthError::Refused));
        assert!(take_unsent(&mut caller).is_empty() && caller.wants() == 0);
        for encrypts in [[false, true], [true, false]] {
            let [mut caller, mut called] = pair(SAME, encrypts);
            assert_eq!(tell(&mut called, &take_unsent(&mut caller)), Err(AuthError::Encryption));
            assert_eq!(tell(&mut caller, &take_unsent(&mut called)), Err(AuthError::Encryption));
            // Changing the head in transit gains nothing.
            let [mut caller, mut called] = pair(SAME, encrypts);
            let mut hello = take_unsent(&mut caller);
            hello[6] ^= 1;
            assert_eq!(tell(&mut called, &hello), Err(AuthError::OtherSecret));
        }
    }

    #[test]
    fn every_changed_byte_is_noticed_and_every_missing_one_waited_for() {
        for frame in 0..3 {
            for at in 0.. {
                let mut ends = pair(SAME, [true; 2]);
                let mut changed = None;
                for expected in 0..=frame {
                    let [from, to] = [expected % 2, 1 - expected % 2];
                    let mut bytes = take_unsent(&mut ends[from]);
                    if expected == frame && at < bytes.len() {
                        // All but the last byte decides nothing.
                        let mut early = bytes.clone();
                        early.pop();
                        bytes[at] ^= 1 << (at % 8);
                        changed = Some(tell(&mut ends[to], &bytes));
                    } else if expected < frame {
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
        let hello = take_unsent(&mut caller);
        tell(&mut called, &hello[..hello.len() - 1]).unwrap();
        assert_eq!((called.wants(), called.unsent().len()), (1, 0));
    }

    #[test]
    fn replayed_and_reflected_frames_do_not_authenticate() {
        let [mut caller, mut called] = pair(SAME, [false; 2]);
        let hello = take_unsent(&mut caller);
        tell(&mut called, &hello).unwrap();
        let answer = take_unsent(&mut called);
        tell(&mut caller, &answer).unwrap();
        let psk_handshake = take_unsent(&mut caller);
        tell(&mut called, &psk_handshake).unwrap();
        assert!(called.is_proven());
        // All of it again: the answer is another one, so the proof is none.
        let [mut other, mut again] = pair(SAME, [false; 2]);
        tell(&mut again, &hello).unwrap();
        assert_ne!(take_unsent(&mut again), answer);
        assert_eq!(tell(&mut again, &psk_handshake), Err(AuthError::OtherSecret));
        assert_eq!(tell(&mut other, &answer), Err(AuthError::OtherSecret));
        // An end's own bytes.
        let [mut caller, _] = pair(SAME, [false; 2]);
        let hello = take_unsent(&mut caller);
        assert_eq!(tell(&mut caller, &hello), Err(AuthError::OutOfOrder));
        let mut turned = hello;
        turned[5] = FrameKind::Answer as u8;
        let [mut caller, mut called] = pair(SAME, [false; 2]);
        assert_eq!(tell(&mut caller, &turned), Err(AuthError::OtherSecret));
        let [mut caller, _] = pair(SAME, [false; 2]);
        tell(&mut called, &take_unsent(&mut caller)).unwrap();
        let answer = take_unsent(&mut called);
        assert_eq!(tell(&mut called, &answer), Err(AuthError::OutOfOrder));
    }

    #[test]
    fn foreign_first_bytes_are_refused_with_their_reason() {
        for bytes in [&b"\x03"[..], b"GET / HTTP/1.1\r\n", b"\xc5OFT", &[0; 8]] {
            let [_, mut called] = pair(SAME, [false; 2]);
            assert_eq!(tell(&mut called, bytes), Err(AuthError::NoSecret));
            assert!(take_unsent(&mut called).is_empty(), "nothing is answered");
        }
        for (at, value, why) in [
            (4, 2, AuthError::Version),
            (5, 9, AuthError::OutOfOrder),
            (5, 3, AuthError::OutOfOrder),
            (6, 2, AuthError::OutOfOrder),
            (7, 255, AuthError::OutOfOrder),
            (7, 0, AuthError::OutOfOrder),
        ] {
            let [mut caller, mut called] = pair(SAME, [false; 2]);
            let mut hello = take_unsent(&mut caller);
            hello[at] = value;
            assert_eq!(tell(&mut called, &hello), Err(why), "byte {at}");
        }
    }
}
