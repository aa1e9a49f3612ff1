//! The messages of variable length: the data of options, of their replies and of reply chunks.
//!
//! Bytes enter and structs leave, and the other way round. Decoding takes any bytes, as in
//! [`crate::wire`]; lists and texts are bounded. The handshake and both sides call it.

use crate::wire::{Fields, MAX_STRING_BYTES, WireError, WireFlaw, info, reply};

/// Queries in one metadata context option.
pub const MAX_QUERIES: u32 = 64;
/// Kinds of information that a client may ask for in one option.
pub const MAX_INFO_REQUESTS: u16 = 64;
/// Bytes of an error text; a longer text is cut.
pub const MAX_ERROR_TEXT_BYTES: usize = 256;

/// `text` cut to at most `max_bytes`, at a character boundary.
#[must_use]
pub fn bounded(text: &str, max_bytes: usize) -> &str {
    let mut end = text.len().min(max_bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_string32(out: &mut Vec<u8>, text: &str) {
    let text = bounded(text, MAX_STRING_BYTES);
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// The kinds of [`info`] that the client asks for.
    pub wanted: Vec<u16>,
}

impl<'a> InfoRequest<'a> {
    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_string32(out, self.name);
        out.extend_from_slice(&(self.wanted.len() as u16).to_be_bytes());
        for kind in &self.wanted {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }

    /// From bytes, all of them.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("info request", bytes);
        let len = fields.u32()?;
        let name = fields.string(u64::from(len))?;
        let count = fields.u16()?;
        if count > MAX_INFO_REQUESTS {
            let (count, max) = (count.into(), MAX_INFO_REQUESTS.into());
            return Err(fields.error(WireFlaw::TooManyEntries { count, max }));
        }
        let wanted = (0..count).map(|_| fields.u16()).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(Self { name, wanted })
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// The export.
    pub name: &'a str,
    /// Names or prefixes of contexts.
    pub queries: Vec<&'a str>,
}

impl<'a> MetaRequest<'a> {
    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_string32(out, self.name);
        out.extend_from_slice(&(self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            put_string32(out, query);
        }
    }

    /// From bytes, all of them.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("metadata request", bytes);
        let len = fields.u32()?;
        let name = fields.string(u64::from(len))?;
        let count = fields.u32()?;
        if count > MAX_QUERIES {
            return Err(fields.error(WireFlaw::TooManyEntries { count, max: MAX_QUERIES }));
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            let len = fields.u32()?;
            queries.push(fields.string(u64::from(len))?);
        }
        fields.end()?;
        Ok(Self { name, queries })
    }
}

/// Block sizes of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of it.
    pub min_bytes: u32,
    /// The size that performs best.
    pub preferred_bytes: u32,
    /// The longest read or write.
    pub max_bytes: u32,
}

/// The data of a reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionReply<'a> {
    /// The option succeeded; its last reply.
    Ack,
    /// One export and its description.
    Server {
        /// Its name.
        name: &'a str,
        /// Its description.
        description: &'a str,
    },
    /// Size and features.
    Export {
        /// Size in bytes.
        size_bytes: u64,
        /// [`crate::wire::transmission_flag`]s.
        flags: u16,
    },
    /// The canonical name.
    Name(&'a str),
    /// The description for people.
    Description(&'a str),
    /// Block sizes.
    BlockSize(BlockSizes),
    /// A kind of information that this crate does not know.
    OtherInfo(u16),
    /// A metadata context.
    MetaContext {
        /// Its id in replies.
        id: u32,
        /// Its name.
        name: &'a str,
    },
    /// An error.
    Error {
        /// Which of [`reply`].
        kind: u32,
        /// The text for people.
        text: &'a str,
    },
}

impl<'a> OptionReply<'a> {
    /// The kind that goes into the header.
    #[must_use]
    pub fn kind(&self) -> u32 {
        match self {
            Self::Ack => reply::ACK,
            Self::Server { .. } => reply::SERVER,
            Self::Export { .. }
            | Self::Name(_)
            | Self::Description(_)
            | Self::BlockSize(_)
            | Self::OtherInfo(_) => reply::INFO,
            Self::MetaContext { .. } => reply::META_CONTEXT,
            Self::Error { kind, .. } => *kind,
        }
    }

    /// Appends the bytes after the header. Text longer than the protocol allows is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack => {}
            Self::Server { name, description } => {
                put_string32(out, name);
                out.extend_from_slice(bounded(description, MAX_STRING_BYTES).as_bytes());
            }
            Self::Export { size_bytes, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size_bytes.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(text) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(bounded(text, MAX_STRING_BYTES).as_bytes());
            }
            Self::Description(text) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(bounded(text, MAX_STRING_BYTES).as_bytes());
            }
            Self::BlockSize(sizes) => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [sizes.min_bytes, sizes.preferred_bytes, sizes.max_bytes] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
            Self::OtherInfo(kind) => out.extend_from_slice(&kind.to_be_bytes()),
            Self::MetaContext { id, name } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(bounded(name, MAX_STRING_BYTES).as_bytes());
            }
            Self::Error { text, .. } => {
                out.extend_from_slice(bounded(text, MAX_ERROR_TEXT_BYTES).as_bytes());
            }
        }
    }

    /// From the kind in the header and the bytes after it.
    pub fn decode(kind: u32, bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("option reply", bytes);
        let rest_as_text = |fields: &mut Fields<'a>| {
            let len = fields.rest_len();
            fields.string(len)
        };
        if kind & reply::ERROR_BIT != 0 {
            // The error keeps its meaning when its text is not UTF-8.
            let text = rest_as_text(&mut fields).unwrap_or_default();
            return Ok(Self::Error { kind, text });
        }
        let out = match kind {
            reply::ACK => Self::Ack,
            reply::SERVER => {
                let len = fields.u32()?;
                let name = fields.string(u64::from(len))?;
                Self::Server { name, description: rest_as_text(&mut fields)? }
            }
            reply::META_CONTEXT => {
                Self::MetaContext { id: fields.u32()?, name: rest_as_text(&mut fields)? }
            }
            reply::INFO => match fields.u16()? {
                info::EXPORT => Self::Export { size_bytes: fields.u64()?, flags: fields.u16()? },
                info::NAME => Self::Name(rest_as_text(&mut fields)?),
                info::DESCRIPTION => Self::Description(rest_as_text(&mut fields)?),
                info::BLOCK_SIZE => Self::BlockSize(BlockSizes {
                    min_bytes: fields.u32()?,
                    preferred_bytes: fields.u32()?,
                    max_bytes: fields.u32()?,
                }),
                other => {
                    let _ = fields.rest();
                    Self::OtherInfo(other)
                }
            },
            kind => return Err(fields.error(WireFlaw::UnknownKind { kind })),
        };
        fields.end()?;
        Ok(out)
    }
}

/// One extent of a block status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u32,
    /// [`crate::wire::status_flag`]s.
    pub flags: u32,
}

/// The payload of a block status chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusPayload {
    /// The metadata context.
    pub context: u32,
    /// Extents from the request's offset on; at least one.
    pub extents: Vec<Extent>,
}

impl StatusPayload {
    /// Appends the bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.context.to_be_bytes());
        for extent in &self.extents {
            out.extend_from_slice(&extent.len_bytes.to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
    }

    /// From bytes, all of them.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("block status", bytes);
        let context = fields.u32()?;
        let mut extents = Vec::new();
        while fields.rest_len() > 0 {
            extents.push(Extent { len_bytes: fields.u32()?, flags: fields.u32()? });
        }
        if extents.is_empty() || extents.iter().any(|e| e.len_bytes == 0) {
            return Err(fields.error(WireFlaw::EmptyExtent));
        }
        Ok(Self { context, extents })
    }
}

/// The payload of an error chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPayload<'a> {
    /// An [`crate::wire::errno`].
    pub error: u32,
    /// The text for people.
    pub text: &'a str,
    /// Where the error is, in chunks of the kind that carries it.
    pub offset_bytes: Option<u64>,
}

impl<'a> ErrorPayload<'a> {
    /// Appends the bytes; the text is cut to its bound.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let text = bounded(self.text, MAX_ERROR_TEXT_BYTES);
        out.extend_from_slice(&self.error.to_be_bytes());
        out.extend_from_slice(&(text.len() as u16).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
        if let Some(offset) = self.offset_bytes {
            out.extend_from_slice(&offset.to_be_bytes());
        }
    }

    /// From bytes, all of them.
    pub fn decode(bytes: &'a [u8], with_offset: bool) -> Result<Self, WireError> {
        let mut fields = Fields::new("error chunk", bytes);
        let error = fields.u32()?;
        let len = fields.u16()?;
        let text = fields.string(u64::from(len))?;
        let offset_bytes = if with_offset { Some(fields.u64()?) } else { None };
        fields.end()?;
        if error == 0 {
            return Err(fields.error(WireFlaw::NoError));
        }
        Ok(Self { error, text, offset_bytes })
    }
}
