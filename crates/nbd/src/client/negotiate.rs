//! The client's side of the handshake: from the greeting to an open export.

use super::error::{ClientError, NegotiationError, OptionError};
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::message::{BlockSizes, InfoRequest, MetaRequest, OptionReply};
use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_PADDING_BYTES, Fields, GREETING_BYTES, Greeting,
    OPTION_REPLY_HEADER_BYTES, OptionHeader, OptionReplyHeader, handshake_flag, info, option,
    reply,
};

/// Bytes of an option reply.
const MAX_REPLY_BYTES: u32 = 16 << 10;

/// What the server told about the export, and what both sides agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExportInfo {
    pub(super) size_bytes: u64,
    pub(super) flags: u16,
    pub(super) sizes: Option<BlockSizes>,
    /// Replies are structured.
    pub(super) structured: bool,
    /// The id of `base:allocation`; `None` when the server does not support it.
    pub(super) allocation_id: Option<u32>,
}

/// The connection during the handshake.
struct Negotiation<'a> {
    channel: &'a Channel,
    inbox: &'a mut Inbox,
}

/// The part of an option reply that the client needs.
enum Reply {
    Ack,
    Export { size_bytes: u64, flags: u16 },
    Sizes(BlockSizes),
    Context(u32),
    Error(OptionError),
    Other,
}

impl Negotiation<'_> {
    async fn send(&mut self, bytes: Vec<u8>) -> Result<(), ClientError> {
        self.channel.send_all(bytes).await.0.map_err(ClientError::lost)
    }

    async fn fill(&mut self, len: usize) -> Result<(), ClientError> {
        match self.inbox.fill(len, false).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ClientError::Lost(std::io::ErrorKind::UnexpectedEof.into())),
            Err(e) => Err(ClientError::lost(e)),
        }
    }

    async fn start_tls(&mut self, connection: rustls::Connection) -> Result<(), ClientError> {
        self.send_option(option::STARTTLS, &[]).await?;
        match self.receive_reply(option::STARTTLS).await? {
            Reply::Ack if self.inbox.bytes().is_empty() => {}
            Reply::Ack => return Err(NegotiationError::PlainTextAfterStartTls.into()),
            Reply::Error(e) => return Err(ClientError::TlsRefused(e)),
            _ => return Err(NegotiationError::UnexpectedStartTlsReply.into()),
        }
        self.channel.wrap(connection).await.map_err(ClientError::lost)
    }

    async fn send_option(&mut self, option: u32, data: &[u8]) -> Result<(), ClientError> {
        let header = OptionHeader { option, len_bytes: data.len() as u32 };
        let mut out = header.encode().to_vec();
        out.extend_from_slice(data);
        self.send(out).await
    }

    async fn receive_reply(&mut self, option: u32) -> Result<Reply, ClientError> {
        self.fill(OPTION_REPLY_HEADER_BYTES).await?;
        let header = OptionReplyHeader::decode(self.inbox.bytes())?;
        if header.option != option {
            let (expected, found) = (option, header.option);
            return Err(NegotiationError::WrongOption { expected, found }.into());
        }
        if header.len_bytes > MAX_REPLY_BYTES {
            return Err(NegotiationError::ReplyTooLong { len_bytes: header.len_bytes }.into());
        }
        self.inbox.consume(OPTION_REPLY_HEADER_BYTES);
        let len = header.len_bytes as usize;
        self.fill(len).await?;
        let reply = match OptionReply::decode(header.kind, &self.inbox.bytes()[..len])? {
            OptionReply::Ack => Reply::Ack,
            OptionReply::Export { size_bytes, flags } => Reply::Export { size_bytes, flags },
            OptionReply::BlockSize(sizes) => Reply::Sizes(sizes),
            OptionReply::MetaContext { id, name: BASE_ALLOCATION } => Reply::Context(id),
            OptionReply::Error { kind, text } => {
                Reply::Error(OptionError { kind, text: text.to_owned() })
            }
            _ => Reply::Other,
        };
        self.inbox.consume(len);
        Ok(reply)
    }

    /// Asks for structured replies and block status, and notes in `export` what the server has.
    async fn ask_for_structured(
        &mut self,
        name: &str,
        export: &mut ExportInfo,
    ) -> Result<(), ClientError> {
        self.send_option(option::STRUCTURED_REPLY, &[]).await?;
        let reply = self.receive_reply(option::STRUCTURED_REPLY).await?;
        export.structured = matches!(reply, Reply::Ack);
        if !export.structured {
            return Ok(());
        }
        let mut data = Vec::new();
        MetaRequest { name, queries: vec![BASE_ALLOCATION] }.encode(&mut data);
        self.send_option(option::SET_META_CONTEXT, &data).await?;
        loop {
            match self.receive_reply(option::SET_META_CONTEXT).await? {
                Reply::Context(id) => export.allocation_id = Some(id),
                Reply::Ack | Reply::Error(_) => return Ok(()),
                _ => {}
            }
        }
    }

    /// Opens the export with `GO`; returns false if the server does not know this option.
    async fn go(&mut self, name: &str, export: &mut ExportInfo) -> Result<bool, ClientError> {
        let mut data = Vec::new();
        InfoRequest { name, wanted: vec![info::BLOCK_SIZE] }.encode(&mut data);
        self.send_option(option::GO, &data).await?;
        let mut has_size = false;
        loop {
            match self.receive_reply(option::GO).await? {
                Reply::Export { size_bytes, flags } => {
                    (export.size_bytes, export.flags, has_size) = (size_bytes, flags, true);
                }
                Reply::Sizes(sizes) => export.sizes = Some(sizes),
                Reply::Ack if has_size => return Ok(true),
                Reply::Ack => return Err(NegotiationError::NoExportSize.into()),
                Reply::Error(error) if error.kind == reply::ERR_UNSUP => return Ok(false),
                Reply::Error(error) => {
                    return Err(ClientError::Refused { export: name.to_owned(), error });
                }
                _ => {}
            }
        }
    }

    /// Opens the export with `EXPORT_NAME`, for a server that is older than `GO`.
    async fn open_by_name(
        &mut self,
        name: &str,
        no_zeroes: bool,
        export: &mut ExportInfo,
    ) -> Result<(), ClientError> {
        self.send_option(option::EXPORT_NAME, name.as_bytes()).await?;
        let padding_bytes = if no_zeroes { 0 } else { EXPORT_NAME_PADDING_BYTES };
        self.fill(10 + padding_bytes).await?;
        let mut fields = Fields::new("reply to the export name", self.inbox.bytes());
        (export.size_bytes, export.flags) = (fields.u64()?, fields.u16()?);
        self.inbox.consume(10 + padding_bytes);
        Ok(())
    }
}

/// Opens the export `name`. With `structured`, the client asks for structured replies and block
/// status. With `tls`, it sends nothing but `STARTTLS` in plain text.
pub(super) async fn negotiate(
    channel: &Channel,
    inbox: &mut Inbox,
    name: &str,
    structured: bool,
    tls: Option<rustls::Connection>,
) -> Result<ExportInfo, ClientError> {
    let mut server = Negotiation { channel, inbox };
    server.fill(GREETING_BYTES).await?;
    let greeting = Greeting::decode(server.inbox.bytes())?;
    server.inbox.consume(GREETING_BYTES);
    if greeting.flags & handshake_flag::FIXED_NEWSTYLE == 0 {
        return Err(NegotiationError::NotFixedNewstyle.into());
    }
    let known = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let flags = greeting.flags & known;
    server.send(u32::from(flags).to_be_bytes().to_vec()).await?;
    if let Some(connection) = tls {
        server.start_tls(connection).await?;
    }
    let mut export = ExportInfo::default();
    if structured {
        server.ask_for_structured(name, &mut export).await?;
    }
    if !server.go(name, &mut export).await? {
        let no_zeroes = flags & handshake_flag::NO_ZEROES != 0;
        server.open_by_name(name, no_zeroes, &mut export).await?;
    }
    Ok(export)
}
