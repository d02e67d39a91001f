//! Messages of the control connection between both ends. Bytes of the peer are checked here:
//! each length is bounded before memory is allocated.

/// Version of the control protocol.
pub(crate) const PROTOCOL: u32 = 1;
const MAGIC: &[u8; 8] = b"fi_perf\0";
/// First bytes of each end: the magic text, the version and a reserved number.
pub(crate) const HELLO_LEN: usize = 16;
/// Bytes of a frame before its payload.
pub(crate) const HEAD_LEN: usize = 4;
/// Maximum length of a payload.
pub(crate) const MAX_PAYLOAD: usize = 128 << 10;
/// Maximum length of texts and addresses.
const MAX_TEXT: usize = 1024;
const MAX_ADDRESS: usize = 512;
/// Maximum number of endpoints of one end.
pub(crate) const MAX_CHANNELS: usize = 128;
/// Maximum number of parameters.
const MAX_PARAMETERS: usize = 64;

/// Returns the first bytes of this end.
pub(crate) fn hello() -> [u8; HELLO_LEN] {
    let mut bytes = [0; HELLO_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&PROTOCOL.to_be_bytes());
    bytes
}

/// Checks the first bytes of the peer.
pub(crate) fn check_hello(bytes: &[u8; HELLO_LEN]) -> Result<(), String> {
    if &bytes[..8] != MAGIC {
        return Err("the other end is no fi_perf".into());
    }
    match u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) {
        PROTOCOL => Ok(()),
        other => Err(format!(
            "the other end speaks version {other} of the control protocol, this fi_perf version {PROTOCOL}"
        )),
    }
}

/// Kinds of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Parameters = 1,
    Accepted = 2,
    Failed = 3,
    Operation = 4,
    Offer = 5,
    Channels = 6,
    Start = 7,
    Ready = 8,
    End = 9,
    Outcome = 10,
    Bye = 11,
}

const KINDS: [Kind; 11] = [
    Kind::Parameters,
    Kind::Accepted,
    Kind::Failed,
    Kind::Operation,
    Kind::Offer,
    Kind::Channels,
    Kind::Start,
    Kind::Ready,
    Kind::End,
    Kind::Outcome,
    Kind::Bye,
];

/// Returns the head of a frame.
pub(crate) fn head(kind: Kind, length: usize) -> [u8; HEAD_LEN] {
    let length = (length as u32).to_be_bytes();
    [kind as u8, length[1], length[2], length[3]]
}

/// Parses the head of a frame: its kind and the length of the payload.
pub(crate) fn parse_head(bytes: [u8; HEAD_LEN]) -> Result<(Kind, usize), String> {
    let kind = KINDS.into_iter().find(|kind| *kind as u8 == bytes[0]);
    let length = u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]) as usize;
    match kind {
        Some(kind) if length <= MAX_PAYLOAD => Ok((kind, length)),
        Some(_) => Err(format!("the other end sent a control message of {length} bytes")),
        None => Err(format!("the other end sent a control message of kind {}", bytes[0])),
    }
}

/// Encoder of a payload.
#[derive(Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn number(mut self, number: u64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(u16::MAX.into())];
        self.0.extend((bytes.len() as u16).to_be_bytes());
        self.0.extend(bytes);
        self
    }
    pub(crate) fn text(self, text: &str) -> Self {
        let mut end = text.len().min(MAX_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes(&text.as_bytes()[..end])
    }
}

/// Decoder of a payload.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

/// Returns the complaint about a payload.
fn malformed() -> String {
    "the other end sent a malformed control message".into()
}

impl<'a> Decoder<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(taken)
    }
    pub(crate) fn number(&mut self) -> Result<u64, String> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_be_bytes(bytes))
    }
    /// Decodes bytes of at most `max`.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], String> {
        let length = self.take(2)?;
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        if length > max { Err(malformed()) } else { self.take(length) }
    }
    /// Decodes a text; control characters become question marks, for safe printing.
    pub(crate) fn text(&mut self) -> Result<String, String> {
        let bytes = self.bytes(MAX_TEXT)?;
        let text = std::str::from_utf8(bytes).map_err(|_| malformed())?;
        Ok(text.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
    }
    /// Requires the end of the payload.
    pub(crate) fn end(self) -> Result<(), String> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed()) }
    }
}

/// Encodes parameters: names and values.
pub(crate) fn encode_parameters(pairs: &[(&str, String)]) -> Vec<u8> {
    let encoder = Encoder::default().number(pairs.len() as u64);
    pairs.iter().fold(encoder, |to, (name, value)| to.text(name).text(value)).0
}

/// Decodes parameters.
pub(crate) fn decode_parameters(payload: &[u8]) -> Result<Vec<(String, String)>, String> {
    let mut from = Decoder(payload);
    let count = from.number()?;
    if count > MAX_PARAMETERS as u64 {
        return Err(malformed());
    }
    let pairs = (0..count).map(|_| Ok((from.text()?, from.text()?))).collect::<Result<_, String>>();
    from.end()?;
    pairs
}

/// Description of an end.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) system: String,
    pub(crate) program: String,
    pub(crate) library: String,
    pub(crate) library_path: String,
    /// Reason for the absence of numbers of system calls; empty if they are counted.
    pub(crate) uncounted: String,
}

impl Host {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let texts = [
            &self.name,
            &self.system,
            &self.program,
            &self.library,
            &self.library_path,
            &self.uncounted,
        ];
        texts.iter().fold(Encoder::default(), |to, text| to.text(text)).0
    }
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut from = Decoder(payload);
        let host = Self {
            name: from.text()?,
            system: from.text()?,
            program: from.text()?,
            library: from.text()?,
            library_path: from.text()?,
            uncounted: from.text()?,
        };
        from.end()?;
        Ok(host)
    }
}

/// Provider and address of the server, for one operation.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) provider: String,
    pub(crate) provider_version: u64,
    pub(crate) fabric: String,
    pub(crate) domain: String,
    pub(crate) format: u64,
    pub(crate) address: Vec<u8>,
    pub(crate) max_size: u64,
    pub(crate) max_atomic: u64,
}

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let to = Encoder::default().text(&self.provider).number(self.provider_version);
        let to = to.text(&self.fabric).text(&self.domain).number(self.format).bytes(&self.address);
        to.number(self.max_size).number(self.max_atomic).0
    }
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut from = Decoder(payload);
        let offer = Self {
            provider: from.text()?,
            provider_version: from.number()?,
            fabric: from.text()?,
            domain: from.text()?,
            format: from.number()?,
            address: from.bytes(MAX_ADDRESS)?.into(),
            max_size: from.number()?,
            max_atomic: from.number()?,
        };
        from.end()?;
        Ok(offer)
    }
}

/// Address and memory of an endpoint.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct ChannelAddress {
    pub(crate) address: Vec<u8>,
    pub(crate) base: u64,
    pub(crate) key: u64,
}

/// Encodes the endpoints of one end.
pub(crate) fn encode_channels(channels: &[ChannelAddress]) -> Vec<u8> {
    let encoder = Encoder::default().number(channels.len() as u64);
    let add =
        |to: Encoder, one: &ChannelAddress| to.bytes(&one.address).number(one.base).number(one.key);
    channels.iter().fold(encoder, add).0
}

/// Decodes exactly `count` endpoints.
pub(crate) fn decode_channels(payload: &[u8], count: usize) -> Result<Vec<ChannelAddress>, String> {
    let mut from = Decoder(payload);
    if from.number()? != count as u64 || count > MAX_CHANNELS {
        return Err(malformed());
    }
    let mut channels = Vec::new();
    for _ in 0..count {
        let address = from.bytes(MAX_ADDRESS)?.into();
        channels.push(ChannelAddress { address, base: from.number()?, key: from.number()? });
    }
    from.end()?;
    Ok(channels)
}

/// Request for a measurement of one size.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Number of the test in the list of tests.
    pub(crate) test: u64,
    pub(crate) size: u64,
    /// Operations of each endpoint.
    pub(crate) count: u64,
}

impl Start {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Encoder::default().number(self.test).number(self.size).number(self.count).0
    }
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut from = Decoder(payload);
        let start = Self { test: from.number()?, size: from.number()?, count: from.number()? };
        from.end()?;
        Ok(start)
    }
}

/// Processor time and system calls of one end during a measurement.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// System calls, if the kernel lets the process count them.
    pub(crate) calls: Option<u64>,
}

/// Result of one end.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) elapsed_ns: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Transfers with wrong data.
    pub(crate) wrong: u64,
    pub(crate) usage: Usage,
}

impl Outcome {
    /// Adds the values of a later part of the same measurement.
    pub(crate) fn add(&mut self, more: &Self) {
        let first = self.elapsed_ns == 0 && self.sent + self.received == 0;
        let sum = |a: u64, b: u64| a.saturating_add(b);
        self.elapsed_ns = sum(self.elapsed_ns, more.elapsed_ns);
        self.sent = sum(self.sent, more.sent);
        self.received = sum(self.received, more.received);
        self.wrong = sum(self.wrong, more.wrong);
        let (to, from) = (&mut self.usage, &more.usage);
        to.user_ns = sum(to.user_ns, from.user_ns);
        to.system_ns = sum(to.system_ns, from.system_ns);
        to.voluntary = sum(to.voluntary, from.voluntary);
        to.involuntary = sum(to.involuntary, from.involuntary);
        let calls = to.calls.zip(from.calls).map(|(a, b)| sum(a, b));
        to.calls = if first { from.calls } else { calls };
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let u = &self.usage;
        let calls = u.calls.map_or(0, |calls| calls.saturating_add(1));
        let numbers = [
            self.elapsed_ns,
            self.sent,
            self.received,
            self.wrong,
            u.user_ns,
            u.system_ns,
            u.voluntary,
            u.involuntary,
            calls,
        ];
        numbers.iter().fold(Encoder::default(), |to, number| to.number(*number)).0
    }
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, String> {
        let mut from = Decoder(payload);
        let mut next = || from.number();
        let outcome = Self {
            elapsed_ns: next()?,
            sent: next()?,
            received: next()?,
            wrong: next()?,
            usage: Usage {
                user_ns: next()?,
                system_ns: next()?,
                voluntary: next()?,
                involuntary: next()?,
                calls: next()?.checked_sub(1),
            },
        };
        from.end()?;
        Ok(outcome)
    }
}
