//! Generic netlink messages: bytes to values and back. No system call is made here.
//!
//! Numbers are in the machine's byte order; headers, attributes and messages begin at multiples of
//! four bytes.

use crate::error::MessageError;

/// Bytes of the header of each message.
const HEADER_BYTES: usize = 16;
/// Bytes of the header that generic netlink adds.
const GENERIC_HEADER_BYTES: usize = 4;
/// Bytes of the header of an attribute.
const ATTRIBUTE_HEADER_BYTES: usize = 4;
const ALIGNMENT: usize = 4;

/// Message type of an answer that is an acknowledgment or an error.
const ERROR: u16 = 2;
/// Message type of the end of several messages.
const DONE: u16 = 3;
/// Flags of a request that wants an acknowledgment.
const REQUEST_WITH_ACK: u16 = 0x1 | 0x4;
/// The bit of an attribute's type that marks nested attributes, and the one of its byte order.
const TYPE_FLAGS: u16 = 0x8000 | 0x4000;
const NESTED: u16 = 0x8000;

/// A request that is being written.
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request to `family` that the kernel acknowledges.
    pub(crate) fn new(family: u16, command: u8, version: u8, sequence: u32) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&family.to_ne_bytes());
        bytes.extend_from_slice(&REQUEST_WITH_ACK.to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        // The kernel fills in the sender's port.
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&[command, version, 0, 0]);
        Self { bytes }
    }

    pub(crate) fn u32(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub(crate) fn u64(self, kind: u16, value: u64) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// A text, which ends in a zero byte.
    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Attributes within an attribute.
    pub(crate) fn nested(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.push_header(0, kind | NESTED);
        let mut outer = inner(self);
        outer.set_len(start);
        outer
    }

    /// The finished bytes.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }

    fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.push_header(ATTRIBUTE_HEADER_BYTES + value.len(), kind);
        self.bytes.extend_from_slice(value);
        self.bytes.resize(aligned(self.bytes.len()), 0);
        self
    }

    fn push_header(&mut self, len: usize, kind: u16) {
        self.bytes.extend_from_slice(&(len as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
    }

    fn set_len(&mut self, start: usize) {
        let len = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }
}

/// One message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    /// Number of the request that it answers.
    pub(crate) sequence: u32,
    pub(crate) body: Body<'a>,
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// The request was performed.
    Acknowledged,
    /// The request was refused; an error number of the system, above 0.
    Failed(i32),
    /// Attributes.
    Data(Attributes<'a>),
}

/// The messages of one datagram.
pub(crate) fn answers(mut bytes: &[u8]) -> Result<Vec<Answer<'_>>, MessageError> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let header = part(bytes, HEADER_BYTES, "a message header")?;
        let len = u32_at(header, 0) as usize;
        let message = part(bytes, len.max(HEADER_BYTES), "a message")?;
        let (kind, sequence) = (u16_at(header, 4), u32_at(header, 8));
        let payload = &message[HEADER_BYTES..];
        let body = match kind {
            ERROR => {
                let number = part(payload, 4, "an error number")?;
                match i32::from_ne_bytes(number.try_into().expect("four bytes")) {
                    0 => Body::Acknowledged,
                    error => Body::Failed(error.saturating_neg()),
                }
            }
            DONE => Body::Acknowledged,
            _ => {
                part(payload, GENERIC_HEADER_BYTES, "a generic header")?;
                Body::Data(Attributes(&payload[GENERIC_HEADER_BYTES..]))
            }
        };
        all.push(Answer { sequence, body });
        bytes = bytes.get(aligned(message.len())..).unwrap_or_default();
    }
    Ok(all)
}

/// Attributes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The value of the first attribute `kind`; `what` names it in errors.
    pub(crate) fn get(self, kind: u16, what: &'static str) -> Result<&'a [u8], MessageError> {
        let mut rest = self.0;
        while !rest.is_empty() {
            let header = part(rest, ATTRIBUTE_HEADER_BYTES, "an attribute header")?;
            let len = usize::from(u16_at(header, 0)).max(ATTRIBUTE_HEADER_BYTES);
            let value = &part(rest, len, "an attribute")?[ATTRIBUTE_HEADER_BYTES..];
            if u16_at(header, 2) & !TYPE_FLAGS == kind {
                return Ok(value);
            }
            rest = rest.get(aligned(len)..).unwrap_or_default();
        }
        Err(MessageError::Missing { what })
    }

    pub(crate) fn u16(self, kind: u16, what: &'static str) -> Result<u16, MessageError> {
        Ok(u16_at(part(self.get(kind, what)?, 2, what)?, 0))
    }

    pub(crate) fn u32(self, kind: u16, what: &'static str) -> Result<u32, MessageError> {
        Ok(u32_at(part(self.get(kind, what)?, 4, what)?, 0))
    }
}

fn aligned(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

/// The first `len` bytes.
fn part<'a>(bytes: &'a [u8], len: usize, what: &'static str) -> Result<&'a [u8], MessageError> {
    let found = bytes.len();
    bytes.get(..len).ok_or(MessageError::TooShort { what, expected: len, found })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
