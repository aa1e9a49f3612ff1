//! The server's side of the fixed newstyle handshake, without any I/O: bytes in, bytes out.
//!
//! With TLS it is the protocol's FORCEDTLS mode: every option before `STARTTLS` is answered
//! `ERR_TLS_REQD` without looking at it, and `EXPORT_NAME` ends the connection. `STARTTLS` gives
//! the bytes to whoever encrypts them ([`Step::StartTls`]); nothing agreed in plain text survives
//! it.

use std::fmt;

use crate::message::{BlockSizes, InfoRequest, MetaRequest, OptionReply};
use crate::wire::{
    self, BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, Greeting, MAX_STRING_BYTES,
    OPTION_HEADER_BYTES, OptionHeader, OptionReplyHeader, WireError, handshake_flag, info, option,
    reply, transmission_flag,
};

/// Longest data of an option: a name and a few queries. Longer ones end the connection.
pub const MAX_OPTION_BYTES: u32 = 16 << 10;

/// The id that `base:allocation` has in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// What a client learns about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFacts {
    /// Size in bytes.
    pub size_bytes: u64,
    /// [`wire::transmission_flag`]s.
    pub flags: u16,
    /// Block sizes.
    pub sizes: BlockSizes,
    /// Words for people; may be empty.
    pub description: String,
}

/// Why an export was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is none of that name.
    Unknown,
    /// Not for this client.
    Denied,
    /// It is there, but cannot be served now.
    Unavailable,
    /// The server ends.
    ShuttingDown,
}

/// What the handshake asks of the server.
pub trait Lookup {
    /// Names and descriptions of the exports that this client may see.
    fn list(&mut self) -> Vec<(String, String)>;
    /// Looks an export up, for facts or to serve it.
    fn open(&mut self, name: &str) -> Result<ExportFacts, Refusal>;
}

/// What both sides agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The export.
    pub name: String,
    /// Replies to reads and block status are structured.
    pub structured: bool,
    /// `base:allocation` was chosen.
    pub base_allocation: bool,
}

/// Where the handshake stands after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was consumed: so many bytes must be there before the next step.
    Need(usize),
    /// So many bytes were consumed; go on.
    More(usize),
    /// So many bytes were consumed; transmission begins.
    Transmit(usize, Agreement),
    /// The client said goodbye; so many bytes were consumed.
    Ended(usize),
    /// So many bytes were consumed; when the answer has left, TLS begins, and with it the next
    /// option. Bytes that came after those consumed were sent too early, and in plain text: they
    /// must not be taken for options.
    StartTls(usize),
}

/// The client broke a rule. What has been written to the output may still be sent; then the
/// connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// Bytes that are no message.
    Wire(WireError),
    /// Flags that nobody offered.
    UnknownClientFlags(u32),
    /// More options than are allowed.
    TooManyOptions(u32),
    /// An option longer than is allowed, in bytes.
    OptionTooLong(u32),
    /// `EXPORT_NAME` (which knows no error reply) for something that cannot be opened.
    NotOpened(Refusal),
    /// `EXPORT_NAME` (which knows no error reply) before TLS, on a server that demands it.
    NotEncrypted,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(e) => write!(f, "handshake: {e}"),
            Self::UnknownClientFlags(flags) => write!(f, "handshake: client flags {flags:#x}"),
            Self::TooManyOptions(max) => write!(f, "handshake: more than {max} options"),
            Self::OptionTooLong(len) => {
                write!(f, "handshake: option of {len} bytes, {MAX_OPTION_BYTES} are allowed")
            }
            Self::NotEncrypted => f.write_str("handshake: an export name in plain text"),
            Self::NotOpened(why) => write!(f, "handshake: export not opened: {why:?}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<WireError> for HandshakeError {
    fn from(e: WireError) -> Self {
        Self::Wire(e)
    }
}

/// How the handshake stands with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    /// There is none here.
    Never,
    /// It must come before anything else.
    Demanded,
    /// It is there.
    Active,
}

/// The state of one handshake.
#[derive(Debug)]
pub struct Handshake {
    encryption: Encryption,
    options_left: u32,
    options_max: u32,
    client_flags: Option<u32>,
    structured: bool,
    /// The export that `base:allocation` was chosen for.
    base_allocation_for: Option<String>,
}

impl Handshake {
    /// Starts, without TLS; the greeting goes to `out`.
    pub fn new(options_max: u32, out: &mut Vec<u8>) -> Self {
        Self::greet(options_max, Encryption::Never, out)
    }

    /// The same for a server that demands TLS.
    pub fn demanding_tls(options_max: u32, out: &mut Vec<u8>) -> Self {
        Self::greet(options_max, Encryption::Demanded, out)
    }

    fn greet(options_max: u32, encryption: Encryption, out: &mut Vec<u8>) -> Self {
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        out.extend_from_slice(&Greeting { flags }.encode());
        Self {
            encryption,
            options_left: options_max,
            options_max,
            client_flags: None,
            structured: false,
            base_allocation_for: None,
        }
    }

    /// Takes at most one message off `input`, and appends the answer to `out`.
    pub fn advance(
        &mut self,
        input: &[u8],
        lookup: &mut dyn Lookup,
        out: &mut Vec<u8>,
    ) -> Result<Step, HandshakeError> {
        let Some(client_flags) = self.client_flags else {
            let Some(bytes) = input.first_chunk::<4>() else { return Ok(Step::Need(4)) };
            let flags = u32::from_be_bytes(*bytes);
            let offered = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
            if flags & !u32::from(offered) != 0 {
                return Err(HandshakeError::UnknownClientFlags(flags));
            }
            self.client_flags = Some(flags);
            return Ok(Step::More(4));
        };
        if input.len() < OPTION_HEADER_BYTES {
            return Ok(Step::Need(OPTION_HEADER_BYTES));
        }
        let header = OptionHeader::decode(input)?;
        if self.options_left == 0 {
            return Err(HandshakeError::TooManyOptions(self.options_max));
        }
        if header.len_bytes > MAX_OPTION_BYTES {
            if header.option != option::EXPORT_NAME {
                put_error(out, header.option, reply::ERR_TOO_BIG, "option too long");
            }
            return Err(HandshakeError::OptionTooLong(header.len_bytes));
        }
        let end = OPTION_HEADER_BYTES + header.len_bytes as usize;
        if input.len() < end {
            return Ok(Step::Need(end));
        }
        self.options_left -= 1;
        let data = &input[OPTION_HEADER_BYTES..end];
        let no_zeroes = client_flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        if self.encryption == Encryption::Demanded {
            match header.option {
                option::STARTTLS | option::ABORT => {}
                option::EXPORT_NAME => return Err(HandshakeError::NotEncrypted),
                other => {
                    put_error(out, other, reply::ERR_TLS_REQD, "TLS must be started first");
                    return Ok(Step::More(end));
                }
            }
        }
        match header.option {
            option::STARTTLS if self.encryption == Encryption::Never => {
                put_error(out, header.option, reply::ERR_UNSUP, "there is no TLS here");
            }
            option::STARTTLS if self.encryption == Encryption::Active => {
                put_error(out, header.option, reply::ERR_INVALID, "TLS is there already");
            }
            option::STARTTLS if data.is_empty() => {
                put(out, header.option, &OptionReply::Ack);
                // The flags and the count of options stay: a second greeting is not sent, and
                // TLS is no way around a limit. Whatever was agreed goes.
                self.encryption = Encryption::Active;
                self.structured = false;
                self.base_allocation_for = None;
                return Ok(Step::StartTls(end));
            }
            option::EXPORT_NAME => {
                let agreed = export_name(data, no_zeroes, self.offered(), lookup, out)?;
                return Ok(Step::Transmit(end, self.agreement(agreed)));
            }
            option::ABORT => {
                put(out, header.option, &OptionReply::Ack);
                return Ok(Step::Ended(end));
            }
            option::INFO | option::GO => {
                let name = answer_info(header.option, data, self.offered(), lookup, out);
                if let (option::GO, Some(name)) = (header.option, name) {
                    return Ok(Step::Transmit(end, self.agreement(name)));
                }
            }
            option::LIST if data.is_empty() => {
                for (name, description) in lookup.list() {
                    let one = OptionReply::Server { name: &name, description: &description };
                    put(out, header.option, &one);
                }
                put(out, header.option, &OptionReply::Ack);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                put(out, header.option, &OptionReply::Ack);
            }
            option::LIST | option::STRUCTURED_REPLY | option::STARTTLS => {
                put_error(out, header.option, reply::ERR_INVALID, "this option takes no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.answer_meta(header.option, data, lookup, out);
            }
            other => put_error(out, other, reply::ERR_UNSUP, "not supported here"),
        }
        Ok(Step::More(end))
    }

    /// The abilities that may be offered as things stand: DF needs structured replies.
    fn offered(&self) -> u16 {
        if self.structured { u16::MAX } else { !transmission_flag::SEND_DF }
    }

    fn agreement(&self, name: String) -> Agreement {
        let base_allocation = self.base_allocation_for.as_deref() == Some(&name);
        Agreement { structured: self.structured, base_allocation, name }
    }

    fn answer_meta(
        &mut self,
        option: u32,
        data: &[u8],
        lookup: &mut dyn Lookup,
        out: &mut Vec<u8>,
    ) {
        let setting = option == option::SET_META_CONTEXT;
        if setting {
            // Whatever becomes of this one, an earlier choice is over.
            self.base_allocation_for = None;
            if !self.structured {
                let text = "structured replies must be negotiated first";
                return put_error(out, option, reply::ERR_INVALID, text);
            }
        }
        let request = match MetaRequest::decode(data) {
            Ok(request) => request,
            Err(e) => return put_malformed(out, option, &e),
        };
        if let Err(refusal) = lookup.open(request.name) {
            return put_refusal(out, option, request.name, refusal);
        }
        // A listing matches a whole namespace too; choosing needs the name itself.
        let listing_all = !setting && request.queries.is_empty();
        let matches = |query: &&str| *query == BASE_ALLOCATION || (!setting && *query == "base:");
        if listing_all || request.queries.iter().any(matches) {
            if setting {
                self.base_allocation_for = Some(request.name.to_owned());
            }
            let id = if setting { BASE_ALLOCATION_ID } else { 0 };
            put(out, option, &OptionReply::MetaContext { id, name: BASE_ALLOCATION });
        }
        put(out, option, &OptionReply::Ack);
    }
}

fn export_name(
    data: &[u8],
    no_zeroes: bool,
    offered: u16,
    lookup: &mut dyn Lookup,
    out: &mut Vec<u8>,
) -> Result<String, HandshakeError> {
    let name = wire::Fields::new("export name", data).string(data.len() as u64)?;
    let facts = lookup.open(name).map_err(HandshakeError::NotOpened)?;
    out.extend_from_slice(&facts.size_bytes.to_be_bytes());
    out.extend_from_slice(&(facts.flags & offered).to_be_bytes());
    if !no_zeroes {
        out.resize(out.len() + EXPORT_NAME_PADDING_BYTES, 0);
    }
    Ok(name.to_owned())
}

/// Answers `INFO` or `GO`; the name when the export is there.
fn answer_info(
    option: u32,
    data: &[u8],
    offered: u16,
    lookup: &mut dyn Lookup,
    out: &mut Vec<u8>,
) -> Option<String> {
    let request = match InfoRequest::decode(data) {
        Ok(request) => request,
        Err(e) => {
            put_malformed(out, option, &e);
            return None;
        }
    };
    let facts = match lookup.open(request.name) {
        Ok(facts) => facts,
        Err(refusal) => {
            put_refusal(out, option, request.name, refusal);
            return None;
        }
    };
    let export = OptionReply::Export { size_bytes: facts.size_bytes, flags: facts.flags & offered };
    put(out, option, &export);
    if request.wanted.contains(&info::NAME) {
        put(out, option, &OptionReply::Name(request.name));
    }
    if request.wanted.contains(&info::DESCRIPTION) && !facts.description.is_empty() {
        put(out, option, &OptionReply::Description(&facts.description));
    }
    put(out, option, &OptionReply::BlockSize(facts.sizes));
    put(out, option, &OptionReply::Ack);
    Some(request.name.to_owned())
}

fn put(out: &mut Vec<u8>, option: u32, answer: &OptionReply<'_>) {
    let start = out.len();
    let header = OptionReplyHeader { option, kind: answer.kind(), len_bytes: 0 };
    out.extend_from_slice(&header.encode());
    answer.encode(out);
    let len = (out.len() - start - wire::OPTION_REPLY_HEADER_BYTES) as u32;
    out[start + 16..start + 20].copy_from_slice(&len.to_be_bytes());
}

fn put_error(out: &mut Vec<u8>, option: u32, kind: u32, text: &str) {
    put(out, option, &OptionReply::Error { kind, text });
}

fn put_malformed(out: &mut Vec<u8>, option: u32, e: &WireError) {
    let kind = if e.string_too_long { reply::ERR_TOO_BIG } else { reply::ERR_INVALID };
    put_error(out, option, kind, &e.to_string());
}

fn put_refusal(out: &mut Vec<u8>, option: u32, name: &str, refusal: Refusal) {
    const SHOWN_BYTES: usize = 64;
    debug_assert!(name.len() <= MAX_STRING_BYTES);
    let shown = crate::message::bounded(name, SHOWN_BYTES);
    let more = if shown.len() < name.len() { "..." } else { "" };
    let (kind, why) = match refusal {
        Refusal::Unknown => (reply::ERR_UNKNOWN, "there is no such export"),
        Refusal::Denied => (reply::ERR_POLICY, "not allowed for this client"),
        Refusal::Unavailable => (reply::ERR_UNKNOWN, "it cannot be served now"),
        Refusal::ShuttingDown => (reply::ERR_SHUTDOWN, "the server is shutting down"),
    };
    put_error(out, option, kind, &format!("'{shown}{more}': {why}"));
}
