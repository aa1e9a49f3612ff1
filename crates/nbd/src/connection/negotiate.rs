//! The handshake phase of a connection: from the greeting to an open export.

use forebay_rt::net::Stream;

use super::ending::{Denial, Ending};
use super::state::ServerState;
use crate::channel::Channel;
use crate::exports::{ExportHandle, Exports, Peer};
use crate::handshake::{Agreement, ExportInfo, Handshake, HandshakeError, Lookup, Refusal, Step};
use crate::inbox::Inbox;
use crate::tls::{SessionError, TlsConfig, identity_of};

/// The exports that one client may see and open.
struct PeerLookup<'a> {
    exports: &'a dyn Exports,
    peer: Peer,
    server: &'a ServerState,
    opened: Option<ExportHandle>,
}

impl PeerLookup<'_> {
    fn allows(&self, export: &str) -> bool {
        let tls = self.server.tls.as_ref().filter(|_| !self.peer.is_kernel);
        tls.is_none_or(|tls| tls.allows(self.peer.identity.as_deref(), export))
    }
}

impl Lookup for PeerLookup<'_> {
    fn list(&mut self) -> Vec<(String, String)> {
        let entries = self.exports.list(&self.peer).into_iter();
        entries
            .filter(|entry| self.allows(&entry.name))
            .map(|entry| (entry.name, entry.description))
            .collect()
    }

    fn open(&mut self, name: &str) -> Result<ExportInfo, Refusal> {
        self.opened = None;
        if self.server.is_stopping.get() {
            return Err(Refusal::ShuttingDown);
        }
        // The check comes before the look-up, so that the answer does not tell what exists.
        if !self.allows(name) {
            return Err(Refusal::Denied);
        }
        let handle = self.exports.open(name, &self.peer)?;
        let info = handle.info(&self.server.limits);
        self.opened = Some(handle);
        Ok(info)
    }

    fn bitmaps(&mut self) -> Vec<String> {
        let bitmaps = self.opened.as_ref().and_then(|handle| handle.bitmaps.as_ref());
        bitmaps.map_or_else(Vec::new, |bitmaps| bitmaps.names())
    }
}

/// Runs the handshake. It may wait for the client without a bound; the caller has a deadline.
pub(super) async fn negotiate(
    stream: &Stream,
    channel: &Channel,
    inbox: &mut Inbox,
    exports: &dyn Exports,
    (server, is_kernel): (&ServerState, bool),
) -> Result<(Agreement, ExportHandle), Ending> {
    let address = stream.peer().to_owned();
    let peer = Peer { address, uid: stream.peer_uid(), identity: None, is_kernel };
    let mut lookup = PeerLookup { exports, peer, server, opened: None };
    let mut out = Vec::new();
    let mut handshake = match server.tls.as_ref().filter(|_| !is_kernel) {
        None => Handshake::new(server.limits.options_max, &mut out),
        Some(_) => Handshake::requiring_tls(server.limits.options_max, &mut out),
    };
    loop {
        let step = handshake.advance(inbox.bytes(), &mut lookup, &mut out);
        let must_send = !matches!(step, Ok(Step::More(_)));
        if must_send && !out.is_empty() {
            let (sent, back) = channel.send_all(std::mem::take(&mut out)).await;
            out = back;
            out.clear();
            // A client that aborts need not wait for the answer.
            if sent.is_err() && !matches!(step, Ok(Step::Aborted(_))) {
                return Err(Ending::Lost);
            }
        }
        match step.map_err(|error| ending_of(&error))? {
            Step::Need(len) => {
                inbox.begin_message();
                match inbox.fill(len, false).await {
                    Ok(true) => {}
                    Ok(false) if server.is_stopping.get() => return Err(Ending::Stopped),
                    Ok(false) if inbox.bytes().is_empty() => return Err(Ending::Disconnected),
                    Ok(false) | Err(_) => return Err(Ending::Lost),
                }
            }
            Step::More(consumed) => inbox.consume(consumed),
            Step::StartTls(consumed) => {
                inbox.consume(consumed);
                // A correct client waits for the answer. An attacker on the path could insert
                // plain text here, which would pass for a part of the encrypted conversation.
                if !inbox.bytes().is_empty() {
                    return Err(Ending::ProtocolError);
                }
                let config = server.tls.as_ref().expect("StartTls needs a configuration");
                lookup.peer.identity = start_tls(channel, config).await?;
            }
            Step::Aborted(_) => return Err(Ending::Disconnected),
            Step::Transmit(consumed, agreement) => {
                inbox.consume(consumed);
                let handle = lookup.opened.take().expect("the last look-up opened the export");
                return Ok((agreement, handle));
            }
        }
    }
}

fn ending_of(error: &HandshakeError) -> Ending {
    match error {
        HandshakeError::NotOpened(Refusal::ShuttingDown) => Ending::Stopped,
        HandshakeError::NotOpened(_) => Ending::Denied(Denial::Export),
        HandshakeError::NotEncrypted => Ending::Denied(Denial::NotEncrypted),
        _ => Ending::ProtocolError,
    }
}

/// How a TLS handshake ended that failed with `error`.
fn ending_of_tls(error: &SessionError) -> Ending {
    use rustls::{AlertDescription, CertificateError, Error};
    let SessionError::Rustls(error) = error else { return Ending::ProtocolError };
    Ending::Denied(match error {
        Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Denial::CertificateOutOfTime,
        Error::InvalidCertificate(_) | Error::NoCertificatesPresented => Denial::Certificate,
        Error::PeerIncompatible(_) | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            Denial::TlsVersion
        }
        Error::AlertReceived(_) => Denial::ByClient,
        _ => return Ending::ProtocolError,
    })
}

/// Starts TLS; returns the identity that the client's certificate proves, if it showed one.
async fn start_tls(channel: &Channel, config: &TlsConfig) -> Result<Option<String>, Ending> {
    let connection = config.connection().map_err(|_| Ending::ProtocolError)?;
    channel.wrap(connection).await.map_err(|e| match SessionError::from_io(e) {
        Ok(error) => ending_of_tls(&error),
        Err(_) => Ending::Lost,
    })?;
    let certificate = channel.session().and_then(|session| session.peer_certificate());
    let identity = certificate.map(|der| identity_of(&der)).transpose();
    Ok(identity.map_err(|_| Ending::Denied(Denial::Certificate))?.flatten())
}
