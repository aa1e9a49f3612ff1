//! The server's side of the fixed newstyle handshake, without any I/O: the client's bytes enter,
//! the server's bytes and the next [`Step`] leave.
//!
//! With TLS the mode is FORCEDTLS: before `STARTTLS` every option gets `ERR_TLS_REQD` unread, and
//! `EXPORT_NAME` ends the connection. `STARTTLS` discards what was negotiated before it.

use std::{fmt, mem};

use crate::message::{BlockSizes, InfoRequest, MetaRequest, OptionReply};
use crate::wire::{
    self, BASE_ALLOCATION, DIRTY_BITMAP, EXPORT_NAME_PADDING_BYTES, Greeting, MAX_STRING_BYTES,
    OPTION_HEADER_BYTES, OptionHeader, OptionReplyHeader, WireError, WireFlaw, handshake_flag,
    info, option, reply, transmission_flag,
};

/// Bytes of data of an option: a name and a few queries. A longer option ends the connection.
pub const MAX_OPTION_BYTES: u32 = 16 << 10;

/// Bytes of an export's name that an error text shows.
const MAX_SHOWN_NAME_BYTES: usize = 64;

/// Metadata contexts that a client may choose: a block status reports all of them.
const MAX_CONTEXTS: usize = 16;

/// Further options that a client may send for each export, once it has listed the exports.
pub(crate) const OPTIONS_FOR_EACH_EXPORT: u32 = 8;

/// The handshake flags that this server offers.
const OFFERED_FLAGS: u16 = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;

/// The error text for data after an option that has none.
const TAKES_NO_DATA: &str = "this option takes no data";

/// What a client learns about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// [`wire::transmission_flag`]s.
    pub flags: u16,
    /// Block sizes.
    pub sizes: BlockSizes,
    /// The description for people; may be empty.
    pub description: String,
}

/// Why an export was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no export of that name.
    Unknown,
    /// This client may not open it.
    Denied,
    /// The export exists, but cannot be served now.
    Unavailable,
    /// The server is shutting down.
    ShuttingDown,
}

/// The exports of a server, as one client may see them.
pub trait Lookup {
    /// Names and descriptions of the exports that this client may see.
    fn list(&mut self) -> Vec<(String, String)>;
    /// Opens an export, for information or to serve it.
    fn open(&mut self, name: &str) -> Result<ExportInfo, Refusal>;
    /// Names of the bitmaps of the export that was opened last.
    fn bitmaps(&mut self) -> Vec<String>;
}

/// The result of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The name of the export.
    pub name: String,
    /// Replies to reads and block status are structured.
    pub structured: bool,
    /// The metadata contexts that the client chose. The id of each is its place, from 1 on.
    pub contexts: Vec<Context>,
}

/// A metadata context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// `base:allocation`.
    Allocation,
    /// `qemu:dirty-bitmap:` and this name.
    Bitmap(String),
}

impl Context {
    fn name(&self) -> String {
        match self {
            Self::Allocation => BASE_ALLOCATION.to_owned(),
            Self::Bitmap(name) => format!("{DIRTY_BITMAP}{name}"),
        }
    }

    /// Whether a query chooses it. `LIST_META_CONTEXT` takes a namespace too.
    fn matches(&self, query: &str, is_list: bool) -> bool {
        match self {
            Self::Allocation => query == BASE_ALLOCATION || (is_list && query == "base:"),
            Self::Bitmap(_) if is_list && query == "qemu:" => true,
            Self::Bitmap(name) => query
                .strip_prefix(DIRTY_BITMAP)
                .is_some_and(|asked| asked == name || (is_list && asked.is_empty())),
        }
    }
}

/// What the caller does next. The field of a step is the number of bytes that it consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was consumed: the next step needs this many bytes of input.
    Need(usize),
    /// Take the next step.
    More(usize),
    /// Transmission begins.
    Transmit(usize, Agreement),
    /// The client aborted the handshake.
    Aborted(usize),
    /// Send the answer, then start TLS; the next option comes through TLS. Further bytes that
    /// arrived already are plain text, and must not be read as options.
    StartTls(usize),
}

/// The client broke the protocol. The caller may send the output so far, and ends the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// A message cannot be decoded.
    Wire(WireError),
    /// The client has flags that the server did not offer.
    UnknownClientFlags(u32),
    /// The client sent more options than this limit.
    TooManyOptions(u32),
    /// An option has this many bytes of data, more than [`MAX_OPTION_BYTES`].
    OptionTooLong(u32),
    /// `EXPORT_NAME`, which has no error reply, named an export that cannot be opened.
    NotOpened(Refusal),
    /// `EXPORT_NAME`, which has no error reply, came before TLS on a server that requires it.
    NotEncrypted,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wire(e) => write!(f, "handshake: {e}"),
            Self::UnknownClientFlags(flags) => {
                write!(f, "handshake: unknown client flags {flags:#x}")
            }
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

/// The state of TLS in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    /// The server has no TLS.
    Unsupported,
    /// The client must start TLS before any other option.
    Required,
    /// TLS has started.
    Active,
}

/// The state of one handshake.
#[derive(Debug)]
pub struct Handshake {
    encryption: Encryption,
    options_left: u32,
    options_max: u32,
    /// The client has listed the exports, which raised the limit for their number.
    has_listed: bool,
    client_flags: Option<u32>,
    structured: bool,
    /// The metadata contexts that the client chose, and the export that it chose them for.
    contexts_for: Option<(String, Vec<Context>)>,
}

impl Handshake {
    /// A handshake without TLS; appends the greeting to `out`.
    pub fn new(options_max: u32, out: &mut Vec<u8>) -> Self {
        Self::greet(options_max, Encryption::Unsupported, out)
    }

    /// A handshake that requires TLS; appends the greeting to `out`.
    pub fn requiring_tls(options_max: u32, out: &mut Vec<u8>) -> Self {
        Self::greet(options_max, Encryption::Required, out)
    }

    fn greet(options_max: u32, encryption: Encryption, out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&Greeting { flags: OFFERED_FLAGS }.encode());
        Self {
            encryption,
            options_left: options_max,
            options_max,
            has_listed: false,
            client_flags: None,
            structured: false,
            contexts_for: None,
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
            return self.take_client_flags(input);
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
        let is_tls_missing = self.encryption == Encryption::Required;
        match header.option {
            option::STARTTLS if self.answer_starttls(data, out) => Ok(Step::StartTls(end)),
            option::STARTTLS => Ok(Step::More(end)),
            option::ABORT => {
                put(out, header.option, &OptionReply::Ack);
                Ok(Step::Aborted(end))
            }
            option::EXPORT_NAME if is_tls_missing => Err(HandshakeError::NotEncrypted),
            other if is_tls_missing => {
                put_error(out, other, reply::ERR_TLS_REQD, "start TLS first");
                Ok(Step::More(end))
            }
            option::EXPORT_NAME => {
                let no_zeroes = client_flags & u32::from(handshake_flag::NO_ZEROES) != 0;
                let name = answer_export_name(data, no_zeroes, self.offered(), lookup, out)?;
                Ok(Step::Transmit(end, self.agreement(name)))
            }
            option::GO => match answer_info(header.option, data, self.offered(), lookup, out) {
                Some(name) => Ok(Step::Transmit(end, self.agreement(name))),
                None => Ok(Step::More(end)),
            },
            other => {
                self.answer_query(other, data, lookup, out);
                Ok(Step::More(end))
            }
        }
    }

    fn take_client_flags(&mut self, input: &[u8]) -> Result<Step, HandshakeError> {
        let Some(bytes) = input.first_chunk::<4>() else { return Ok(Step::Need(4)) };
        let flags = u32::from_be_bytes(*bytes);
        if flags & !u32::from(OFFERED_FLAGS) != 0 {
            return Err(HandshakeError::UnknownClientFlags(flags));
        }
        self.client_flags = Some(flags);
        Ok(Step::More(4))
    }

    /// Answers `STARTTLS`; returns whether TLS begins.
    fn answer_starttls(&mut self, data: &[u8], out: &mut Vec<u8>) -> bool {
        let (kind, text) = match self.encryption {
            Encryption::Unsupported => (reply::ERR_UNSUP, "this server has no TLS"),
            Encryption::Active => (reply::ERR_INVALID, "TLS has started already"),
            Encryption::Required if !data.is_empty() => (reply::ERR_INVALID, TAKES_NO_DATA),
            Encryption::Required => {
                put(out, option::STARTTLS, &OptionReply::Ack);
                // The server sends no second greeting, so the flags stay. The count of options
                // stays too, so that TLS does not raise the limit.
                self.encryption = Encryption::Active;
                self.structured = false;
                self.contexts_for = None;
                return true;
            }
        };
        put_error(out, option::STARTTLS, kind, text);
        false
    }

    /// Answers an option that leaves the handshake where it is.
    fn answer_query(
        &mut self,
        option: u32,
        data: &[u8],
        lookup: &mut dyn Lookup,
        out: &mut Vec<u8>,
    ) {
        match option {
            option::INFO => {
                answer_info(option, data, self.offered(), lookup, out);
            }
            option::LIST | option::STRUCTURED_REPLY if !data.is_empty() => {
                put_error(out, option, reply::ERR_INVALID, TAKES_NO_DATA);
            }
            option::LIST => self.answer_list(lookup, out),
            option::STRUCTURED_REPLY => {
                self.structured = true;
                put(out, option, &OptionReply::Ack);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.answer_meta(option, data, lookup, out);
            }
            other => put_error(out, other, reply::ERR_UNSUP, "this server does not support it"),
        }
    }

    /// Answers `LIST`. Clients ask for each export after that, so the first list raises the limit.
    fn answer_list(&mut self, lookup: &mut dyn Lookup, out: &mut Vec<u8>) {
        let exports = lookup.list();
        for (name, description) in &exports {
            put(out, option::LIST, &OptionReply::Server { name, description });
        }
        put(out, option::LIST, &OptionReply::Ack);
        if !mem::replace(&mut self.has_listed, true) {
            let count = u32::try_from(exports.len()).unwrap_or(u32::MAX);
            let more = count.saturating_mul(OPTIONS_FOR_EACH_EXPORT);
            self.options_left = self.options_left.saturating_add(more);
            self.options_max = self.options_max.saturating_add(more);
        }
    }

    /// The mask of transmission flags that the server may offer now: DF needs structured replies.
    fn offered(&self) -> u16 {
        if self.structured { u16::MAX } else { !transmission_flag::SEND_DF }
    }

    fn agreement(&self, name: String) -> Agreement {
        let chosen = self.contexts_for.as_ref().filter(|(export, _)| *export == name);
        let contexts = chosen.map_or_else(Vec::new, |(_, contexts)| contexts.clone());
        Agreement { structured: self.structured, contexts, name }
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
            // This option replaces an earlier choice even when it fails.
            self.contexts_for = None;
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
        let all_listed = !setting && request.queries.is_empty();
        let is_chosen = |context: &Context| {
            let matches = |query: &&str| context.matches(query, !setting);
            all_listed || request.queries.iter().any(matches)
        };
        // A client without a use for bitmaps does not wait for their names.
        let asks_for_bitmaps = |query: &&str| query.starts_with("qemu:");
        let bitmaps = match all_listed || request.queries.iter().any(asks_for_bitmaps) {
            true => lookup.bitmaps(),
            false => Vec::new(),
        };
        let all = [Context::Allocation].into_iter().chain(bitmaps.into_iter().map(Context::Bitmap));
        let most = if setting { MAX_CONTEXTS } else { usize::MAX };
        let chosen: Vec<Context> = all.filter(is_chosen).take(most).collect();
        for (id, context) in (1..).zip(&chosen) {
            let id = if setting { id } else { 0 };
            put(out, option, &OptionReply::MetaContext { id, name: &context.name() });
        }
        if setting {
            self.contexts_for = Some((request.name.to_owned(), chosen));
        }
        put(out, option, &OptionReply::Ack);
    }
}

/// Answers `EXPORT_NAME`; returns the name of the export.
fn answer_export_name(
    data: &[u8],
    no_zeroes: bool,
    offered: u16,
    lookup: &mut dyn Lookup,
    out: &mut Vec<u8>,
) -> Result<String, HandshakeError> {
    let name = wire::Fields::new("export name", data).string(data.len() as u64)?;
    let info = lookup.open(name).map_err(HandshakeError::NotOpened)?;
    out.extend_from_slice(&info.size_bytes.to_be_bytes());
    out.extend_from_slice(&(info.flags & offered).to_be_bytes());
    if !no_zeroes {
        out.resize(out.len() + EXPORT_NAME_PADDING_BYTES, 0);
    }
    Ok(name.to_owned())
}

/// Answers `INFO` or `GO`; returns the name of the export when it can be opened.
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
    let export = match lookup.open(request.name) {
        Ok(export) => export,
        Err(refusal) => {
            put_refusal(out, option, request.name, refusal);
            return None;
        }
    };
    let (size_bytes, flags) = (export.size_bytes, export.flags & offered);
    put(out, option, &OptionReply::Export { size_bytes, flags });
    if request.wanted.contains(&info::NAME) {
        put(out, option, &OptionReply::Name(request.name));
    }
    if request.wanted.contains(&info::DESCRIPTION) && !export.description.is_empty() {
        put(out, option, &OptionReply::Description(&export.description));
    }
    put(out, option, &OptionReply::BlockSize(export.sizes));
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
    let kind = match e.flaw {
        WireFlaw::StringTooLong { .. } => reply::ERR_TOO_BIG,
        _ => reply::ERR_INVALID,
    };
    put_error(out, option, kind, &e.to_string());
}

fn put_refusal(out: &mut Vec<u8>, option: u32, name: &str, refusal: Refusal) {
    debug_assert!(name.len() <= MAX_STRING_BYTES);
    let shown = crate::message::bounded(name, MAX_SHOWN_NAME_BYTES);
    let more = if shown.len() < name.len() { "..." } else { "" };
    let (kind, why) = match refusal {
        Refusal::Unknown => (reply::ERR_UNKNOWN, "there is no such export"),
        Refusal::Denied => (reply::ERR_POLICY, "this client may not open it"),
        Refusal::Unavailable => (reply::ERR_UNKNOWN, "it cannot be served now"),
        Refusal::ShuttingDown => (reply::ERR_SHUTDOWN, "the server is shutting down"),
    };
    put_error(out, option, kind, &format!("'{shown}{more}': {why}"));
}
