//! The fixed-layout messages of the NBD protocol, as bytes and as structs.
//!
//! Bytes enter and structs leave, and the other way round. All integers are big-endian.
//! Decoding takes any bytes: malformed bytes give a [`WireError`], never a panic. Memory is never
//! allocated from an unchecked length. The handshake, both sides and the tests call it.

use std::fmt;

/// First eight bytes of a server: `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second word of the greeting, and the magic of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Longest string that the protocol allows, in bytes.
pub const MAX_STRING_BYTES: usize = 4096;

/// Bytes of the server's greeting.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of an option reply's header.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a request, payload not counted.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply, payload not counted.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Zeros after the answer to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

macro_rules! codes {
    (
        $(#[$doc:meta])* $module:ident: $type:ty {
            $($(#[$item:meta])* $name:ident = $value:expr;)*
        }
    ) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$item])* pub const $name: $type = $value;)*
        }
    };
}

codes!(/** Flags of the greeting and of the client's answer to it. */ handshake_flag: u16 {
    /** Options are answered in the fixed way. */ FIXED_NEWSTYLE = 1;
    /** No padding after the answer to `EXPORT_NAME`. */ NO_ZEROES = 2;
});

codes!(/** Options that a client may send before transmission. */ option: u32 {
    /** Open an export, without a way to refuse it. */ EXPORT_NAME = 1;
    /** End the connection. */ ABORT = 2;
    /** List the exports. */ LIST = 3;
    /** Wrap the connection in TLS. */ STARTTLS = 5;
    /** Facts about an export. */ INFO = 6;
    /** Open an export. */ GO = 7;
    /** Structured replies from here on. */ STRUCTURED_REPLY = 8;
    /** List the metadata contexts. */ LIST_META_CONTEXT = 9;
    /** Choose metadata contexts. */ SET_META_CONTEXT = 10;
    /** Wide headers; this crate does not support them. */ EXTENDED_HEADERS = 11;
});

codes!(/** Kinds of replies to options. */ reply: u32 {
    /** Done. */ ACK = 1;
    /** One export. */ SERVER = 2;
    /** One fact. */ INFO = 3;
    /** One metadata context. */ META_CONTEXT = 4;
    /** The bit that all errors carry. */ ERROR_BIT = 1 << 31;
    /** The server does not know the option. */ ERR_UNSUP = (1 << 31) | 1;
    /** Not allowed for this client. */ ERR_POLICY = (1 << 31) | 2;
    /** Malformed, or out of order. */ ERR_INVALID = (1 << 31) | 3;
    /** The platform does not support it. */ ERR_PLATFORM = (1 << 31) | 4;
    /** TLS must come first. */ ERR_TLS_REQD = (1 << 31) | 5;
    /** No such export. */ ERR_UNKNOWN = (1 << 31) | 6;
    /** The server is shutting down. */ ERR_SHUTDOWN = (1 << 31) | 7;
    /** The client must ask for block sizes. */ ERR_BLOCK_SIZE_REQD = (1 << 31) | 8;
    /** The request or its reply is too long. */ ERR_TOO_BIG = (1 << 31) | 9;
});

codes!(/** Kinds of facts about an export. */ info: u16 {
    /** Size and flags. */ EXPORT = 0;
    /** Its canonical name. */ NAME = 1;
    /** A description for people. */ DESCRIPTION = 2;
    /** Block sizes. */ BLOCK_SIZE = 3;
});

codes!(/** Features of an export. */ transmission_flag: u16 {
    /** Always set. */ HAS_FLAGS = 1 << 0;
    /** Writes are refused. */ READ_ONLY = 1 << 1;
    /** FLUSH works. */ SEND_FLUSH = 1 << 2;
    /** FUA works. */ SEND_FUA = 1 << 3;
    /** The disk rotates. */ ROTATIONAL = 1 << 4;
    /** TRIM works. */ SEND_TRIM = 1 << 5;
    /** WRITE_ZEROES works. */ SEND_WRITE_ZEROES = 1 << 6;
    /** The DF flag works. */ SEND_DF = 1 << 7;
    /** A flush covers every connection. */ CAN_MULTI_CONN = 1 << 8;
    /** CACHE works. */ SEND_CACHE = 1 << 10;
    /** FAST_ZERO works. */ SEND_FAST_ZERO = 1 << 11;
});

codes!(/** Commands of the transmission phase. */ command: u16 {
    /** Read. */ READ = 0;
    /** Write; the data follows the request. */ WRITE = 1;
    /** End the connection; there is no reply. */ DISC = 2;
    /** Make completed writes durable. */ FLUSH = 3;
    /** Discard the range. */ TRIM = 4;
    /** Prefetch the range. */ CACHE = 5;
    /** Zero the range. */ WRITE_ZEROES = 6;
    /** Report which parts of the range are allocated. */ BLOCK_STATUS = 7;
});

codes!(/** Flags of a command. */ command_flag: u16 {
    /** Durable before the reply. */ FUA = 1 << 0;
    /** Zeroing keeps the space. */ NO_HOLE = 1 << 1;
    /** One data chunk only. */ DF = 1 << 2;
    /** One extent only. */ REQ_ONE = 1 << 3;
    /** Zero faster than a write would, or fail. */ FAST_ZERO = 1 << 4;
});

codes!(/** Kinds of chunks of a structured reply. */ chunk: u16 {
    /** No content. */ NONE = 0;
    /** An offset, and data. */ OFFSET_DATA = 1;
    /** An offset and a length of zeros. */ OFFSET_HOLE = 2;
    /** A context id and descriptors. */ BLOCK_STATUS = 5;
    /** The bit that all errors carry. */ ERROR_BIT = 1 << 15;
    /** An error. */ ERROR = (1 << 15) | 1;
    /** An error with its offset. */ ERROR_OFFSET = (1 << 15) | 2;
});

/// Flag of a chunk: the last one of its reply.
pub const CHUNK_DONE: u16 = 1;

codes!(/** Errors on the wire: Linux numbers, but only these. */ errno: u32 {
    /** Not allowed. */ EPERM = 1;
    /** The device failed. */ EIO = 5;
    /** No memory. */ ENOMEM = 12;
    /** The request is invalid. */ EINVAL = 22;
    /** No space. */ ENOSPC = 28;
    /** The data does not fit into one chunk. */ EOVERFLOW = 75;
    /** Not supported. */ ENOTSUP = 95;
    /** The server is shutting down. */ ESHUTDOWN = 108;
});

/// State bits of an extent of `base:allocation`.
pub mod status_flag {
    /// The extent is not allocated.
    pub const HOLE: u32 = 1;
    /// The extent reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The metadata context that tells what is allocated.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The state bit of an extent of a dirty bitmap: the extent may have changed.
pub const DIRTY: u32 = 1;

/// What precedes the name of a bitmap in that of its metadata context. (QEMU's
/// `docs/interop/nbd.rst`.)
pub const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// The protocol's number for an errno of a device; `EIO` when the protocol has none.
#[must_use]
pub fn errno_on_wire(raw: i32) -> u32 {
    match u32::try_from(raw) {
        Ok(
            known @ (errno::EPERM
            | errno::EIO
            | errno::ENOMEM
            | errno::EINVAL
            | errno::ENOSPC
            | errno::EOVERFLOW
            | errno::ENOTSUP
            | errno::ESHUTDOWN),
        ) => known,
        _ => errno::EIO,
    }
}

/// A message that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireError {
    /// The message that was expected.
    pub message: &'static str,
    /// What is wrong with it.
    pub flaw: WireFlaw,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFlaw {
    /// The message ends too early.
    Truncated {
        /// Bytes that the next field has.
        expected_bytes: u64,
        /// Bytes that are left.
        left_bytes: usize,
    },
    /// A string is longer than the protocol allows; the message may be well-formed otherwise.
    StringTooLong {
        /// Its length.
        len_bytes: u64,
    },
    /// A string is not UTF-8.
    NotUtf8,
    /// Bytes follow the message.
    TrailingBytes {
        /// How many.
        len_bytes: usize,
    },
    /// The magic number is another one.
    BadMagic {
        /// The number in the message.
        found: u64,
        /// The protocol's number.
        expected: u64,
    },
    /// A list has more entries than this crate accepts.
    TooManyEntries {
        /// Entries in the list.
        count: u32,
        /// Entries that are accepted.
        max: u32,
    },
    /// The kind of an option reply is unknown.
    UnknownKind {
        /// The kind.
        kind: u32,
    },
    /// A block status has no extent, or an empty one.
    EmptyExtent,
    /// An error chunk has the error number 0.
    NoError,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.message)?;
        match self.flaw {
            WireFlaw::Truncated { expected_bytes, left_bytes } => {
                write!(f, "{expected_bytes} more bytes expected, {left_bytes} left")
            }
            WireFlaw::StringTooLong { len_bytes } => {
                write!(f, "a string of {len_bytes} bytes; {MAX_STRING_BYTES} are allowed")
            }
            WireFlaw::NotUtf8 => f.write_str("a string is not UTF-8"),
            WireFlaw::TrailingBytes { len_bytes } => write!(f, "{len_bytes} bytes too many"),
            WireFlaw::BadMagic { found, expected } => {
                write!(f, "magic {found:#x}, {expected:#x} expected")
            }
            WireFlaw::TooManyEntries { count, max } => {
                write!(f, "a list of {count} entries; {max} are allowed")
            }
            WireFlaw::UnknownKind { kind } => write!(f, "unknown kind {kind}"),
            WireFlaw::EmptyExtent => f.write_str("an empty extent, or no extent"),
            WireFlaw::NoError => f.write_str("an error with the number 0"),
        }
    }
}

impl std::error::Error for WireError {}

/// Takes big-endian fields off the front of a slice.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads `bytes`; errors name `message` as the expected one.
    #[must_use]
    pub fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self { message, rest: bytes }
    }

    /// An error of this message.
    #[must_use]
    pub(crate) fn error(&self, flaw: WireFlaw) -> WireError {
        WireError { message: self.message, flaw }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(N as u64));
        };
        self.rest = rest;
        Ok(*head)
    }

    #[cold]
    fn truncated(&self, expected_bytes: u64) -> WireError {
        self.error(WireFlaw::Truncated { expected_bytes, left_bytes: self.rest.len() })
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: u64) -> Result<&'a [u8], WireError> {
        let whole = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let Some((head, rest)) = whole else { return Err(self.truncated(len)) };
        self.rest = rest;
        Ok(head)
    }

    /// A string of `len` bytes: UTF-8, and no longer than the protocol allows.
    pub fn string(&mut self, len: u64) -> Result<&'a str, WireError> {
        if len > MAX_STRING_BYTES as u64 {
            return Err(self.error(WireFlaw::StringTooLong { len_bytes: len }));
        }
        let bytes = self.bytes(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.error(WireFlaw::NotUtf8))
    }

    /// The number of bytes that are left.
    #[must_use]
    pub fn rest_len(&self) -> u64 {
        self.rest.len() as u64
    }

    /// Everything that is left.
    #[must_use]
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Checks that nothing is left.
    pub fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(self.error(WireFlaw::TrailingBytes { len_bytes: self.rest.len() }))
    }

    fn magic32(&mut self, expected: u32) -> Result<(), WireError> {
        let found = self.u32()?;
        if found == expected {
            return Ok(());
        }
        Err(self.error(WireFlaw::BadMagic { found: found.into(), expected: expected.into() }))
    }

    fn magic64(&mut self, expected: u64) -> Result<(), WireError> {
        let found = self.u64()?;
        if found == expected {
            return Ok(());
        }
        Err(self.error(WireFlaw::BadMagic { found, expected }))
    }
}

/// The first message of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// [`handshake_flag`]s.
    pub flags: u16,
}

impl Greeting {
    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..].copy_from_slice(&self.flags.to_be_bytes());
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("greeting", bytes);
        fields.magic64(GREETING_MAGIC)?;
        fields.magic64(OPTION_MAGIC)?;
        Ok(Self { flags: fields.u16()? })
    }
}

/// Header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which [`option`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len_bytes: u32,
}

impl OptionHeader {
    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_HEADER_BYTES] {
        let mut out = [0; OPTION_HEADER_BYTES];
        out[..8].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("option", bytes);
        fields.magic64(OPTION_MAGIC)?;
        Ok(Self { option: fields.u32()?, len_bytes: fields.u32()? })
    }
}

/// Header of a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The [`option`] that is answered.
    pub option: u32,
    /// Which [`reply`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len_bytes: u32,
}

impl OptionReplyHeader {
    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; OPTION_REPLY_HEADER_BYTES] {
        let mut out = [0; OPTION_REPLY_HEADER_BYTES];
        out[..8].copy_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out[8..12].copy_from_slice(&self.option.to_be_bytes());
        out[12..16].copy_from_slice(&self.kind.to_be_bytes());
        out[16..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("option reply", bytes);
        fields.magic64(OPTION_REPLY_MAGIC)?;
        Ok(Self { option: fields.u32()?, kind: fields.u32()?, len_bytes: fields.u32()? })
    }
}

/// A request of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`command_flag`]s.
    pub flags: u16,
    /// Which [`command`].
    pub command: u16,
    /// The client's number for the request; replies carry it.
    pub cookie: u64,
    /// Where the range begins.
    pub offset_bytes: u64,
    /// Length of the range.
    pub len_bytes: u32,
}

impl Request {
    /// As bytes.
    #[inline]
    #[must_use]
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset_bytes.to_be_bytes());
        out[24..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// From bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("request", bytes);
        fields.magic32(REQUEST_MAGIC)?;
        Ok(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset_bytes: fields.u64()?,
            len_bytes: fields.u32()?,
        })
    }

    /// The byte after the last one; `None` when there is no such offset.
    #[must_use]
    pub fn end_bytes(&self) -> Option<u64> {
        self.offset_bytes.checked_add(u64::from(self.len_bytes))
    }
}

/// A simple reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// 0 or an [`errno`].
    pub error: u32,
    /// The request's cookie.
    pub cookie: u64,
}

impl SimpleReply {
    /// As bytes.
    #[inline]
    #[must_use]
    pub fn encode(self) -> [u8; SIMPLE_REPLY_BYTES] {
        let mut out = [0; SIMPLE_REPLY_BYTES];
        out[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        out[4..8].copy_from_slice(&self.error.to_be_bytes());
        out[8..].copy_from_slice(&self.cookie.to_be_bytes());
        out
    }

    /// From bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("simple reply", bytes);
        fields.magic32(SIMPLE_REPLY_MAGIC)?;
        Ok(Self { error: fields.u32()?, cookie: fields.u64()? })
    }
}

/// Header of a chunk of a structured reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// [`CHUNK_DONE`] or 0.
    pub flags: u16,
    /// Which [`chunk`].
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Bytes that follow.
    pub len_bytes: u32,
}

impl ChunkHeader {
    /// As bytes.
    #[inline]
    #[must_use]
    pub fn encode(self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut out = [0; CHUNK_HEADER_BYTES];
        out[..4].copy_from_slice(&CHUNK_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..].copy_from_slice(&self.len_bytes.to_be_bytes());
        out
    }

    /// From bytes.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new("reply chunk", bytes);
        fields.magic32(CHUNK_MAGIC)?;
        Ok(Self {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            len_bytes: fields.u32()?,
        })
    }
}
