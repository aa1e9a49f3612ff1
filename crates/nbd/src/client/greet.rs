//! The client's side of the handshake.

use super::ClientError;
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::message::{BlockSizes, InfoRequest, MetaRequest, OptionReply};
use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, Fields, GREETING_BYTES, Greeting,
    OPTION_REPLY_HEADER_BYTES, OptionHeader, OptionReplyHeader, handshake_flag, info, option,
    reply,
};

/// Longest reply to an option that a client reads.
const MAX_REPLY_BYTES: u32 = 16 << 10;

/// What the server said of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) size_bytes: u64,
    pub(super) flags: u16,
    pub(super) sizes: Option<BlockSizes>,
    pub(super) structured: bool,
    /// The id of `base:allocation`, when the server knows it.
    pub(super) allocation_id: Option<u32>,
}

struct Talk<'a> {
    channel: &'a Channel,
    inbox: &'a mut Inbox,
}

/// An owned reply to an option: what of it a client needs.
enum Heard {
    Ack,
    Export { size_bytes: u64, flags: u16 },
    Sizes(BlockSizes),
    Context(u32),
    Error { kind: u32, text: String },
    Other,
}

impl Talk<'_> {
    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.channel.send_all(bytes).await.0.map_err(lost)
    }

    async fn need(&mut self, len: usize) -> Result<(), ClientError> {
        match self.inbox.fill(len, false).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ClientError::Lost(std::io::ErrorKind::UnexpectedEof.into())),
            Err(e) => Err(lost(e)),
        }
    }

    async fn start_tls(&mut self, connection: rustls::Connection) -> Result<(), ClientError> {
        self.say(option::STARTTLS, &[]).await?;
        match self.hear(option::STARTTLS).await? {
            Heard::Ack if self.inbox.bytes().is_empty() => {}
            Heard::Ack => {
                let why = "bytes in plain text where TLS must begin".to_owned();
                return Err(ClientError::Protocol(why));
            }
            Heard::Error { kind, text } => {
                let why = format!("the server has none: {}", super::reason(kind, &text));
                return Err(ClientError::Tls(why));
            }
            _ => return Err(ClientError::Protocol("no answer to STARTTLS".into())),
        }
        self.channel.wrap(connection).await.map_err(lost)
    }

    async fn say(&mut self, option: u32, data: &[u8]) -> Result<(), ClientError> {
        let header = OptionHeader { option, len_bytes: data.len() as u32 };
        let mut out = header.encode().to_vec();
        out.extend_from_slice(data);
        self.send(out).await
    }

    async fn hear(&mut self, option: u32) -> Result<Heard, ClientError> {
        self.need(OPTION_REPLY_HEADER_BYTES).await?;
        let header = OptionReplyHeader::decode(self.inbox.bytes())?;
        if header.option != option || header.len_bytes > MAX_REPLY_BYTES {
            let detail = format!("an answer of {} bytes to {}", header.len_bytes, header.option);
            return Err(ClientError::Protocol(detail));
        }
        self.inbox.consume(OPTION_REPLY_HEADER_BYTES);
        let len = header.len_bytes as usize;
        self.need(len).await?;
        let heard = match OptionReply::decode(header.kind, &self.inbox.bytes()[..len])? {
            OptionReply::Ack => Heard::Ack,
            OptionReply::Export { size_bytes, flags } => Heard::Export { size_bytes, flags },
            OptionReply::BlockSize(sizes) => Heard::Sizes(sizes),
            OptionReply::MetaContext { id, name: BASE_ALLOCATION } => Heard::Context(id),
            OptionReply::Error { kind, text } => Heard::Error { kind, text: text.to_owned() },
            _ => Heard::Other,
        };
        self.inbox.consume(len);
        Ok(heard)
    }
}

/// TLS tells what was wrong with a certificate in its alerts, which may come late.
fn lost(e: std::io::Error) -> ClientError {
    match e.kind() {
        std::io::ErrorKind::InvalidData => ClientError::Tls(e.to_string()),
        _ => ClientError::Lost(e),
    }
}

/// Opens `name`; structured replies and block status are used when the server has them and
/// `structured` is wanted. With `tls` nothing but the wish for it is said in plain text.
pub(super) async fn greet(
    channel: &Channel,
    inbox: &mut Inbox,
    name: &str,
    structured: bool,
    tls: Option<rustls::Connection>,
) -> Result<Facts, ClientError> {
    let mut talk = Talk { channel, inbox };
    talk.need(GREETING_BYTES).await?;
    let greeting = Greeting::decode(talk.inbox.bytes())?;
    talk.inbox.consume(GREETING_BYTES);
    if greeting.flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(ClientError::Protocol("the server does not speak fixed newstyle".into()));
    }
    let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let flags = greeting.flags & known;
    talk.send(u32::from(flags).to_be_bytes().to_vec()).await?;
    if let Some(connection) = tls {
        talk.start_tls(connection).await?;
    }
    let mut facts =
        Facts { size_bytes: 0, flags: 0, sizes: None, structured: false, allocation_id: None };
    if structured {
        talk.say(option::STRUCTURED_REPLY, &[]).await?;
        facts.structured = matches!(talk.hear(option::STRUCTURED_REPLY).await?, Heard::Ack);
    }
    if facts.structured {
        let mut data = Vec::new();
        MetaRequest { name, queries: vec![BASE_ALLOCATION] }.encode(&mut data);
        talk.say(option::SET_META_CONTEXT, &data).await?;
        loop {
            match talk.hear(option::SET_META_CONTEXT).await? {
                Heard::Context(id) => facts.allocation_id = Some(id),
                Heard::Ack | Heard::Error { .. } => break,
                _ => {}
            }
        }
    }
    let mut data = Vec::new();
    InfoRequest { name, wanted: vec![info::BLOCK_SIZE] }.encode(&mut data);
    talk.say(option::GO, &data).await?;
    let mut known = false;
    loop {
        match talk.hear(option::GO).await? {
            Heard::Export { size_bytes, flags } => {
                (facts.size_bytes, facts.flags, known) = (size_bytes, flags, true);
            }
            Heard::Sizes(sizes) => facts.sizes = Some(sizes),
            Heard::Ack if known => return Ok(facts),
            Heard::Ack => return Err(ClientError::Protocol("GO without the export's size".into())),
            Heard::Error { kind: reply::ERR_UNSUP, .. } => break,
            Heard::Error { kind, text } => {
                return Err(ClientError::Refused { export: name.to_owned(), kind, text });
            }
            _ => {}
        }
    }
    // A server from before GO.
    talk.say(option::EXPORT_NAME, name.as_bytes()).await?;
    let padding =
        if flags & handshake_flag::NO_ZEROES != 0 { 0 } else { EXPORT_NAME_PADDING_BYTES };
    talk.need(10 + padding).await?;
    let mut fields = Fields::new("answer to the export name", talk.inbox.bytes());
    (facts.size_bytes, facts.flags) = (fields.u64()?, fields.u16()?);
    talk.inbox.consume(10 + padding);
    Ok(facts)
}
