//! Connecting the client: from a URI or a stream to an open export.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::{Stream, resolve};
use forebay_rt::sync::Notify;

use super::core::Core;
use super::error::{ClientError, ConnectionLoss, NegotiationError};
use super::negotiate::{ExportInfo, negotiate};
use super::replies;
use super::requests::Client;
use crate::channel::Channel;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::tls::ClientTls;
use crate::uri::{Address, Uri};

const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
const HANDSHAKE_BUFFER_BYTES: usize = 32 << 10;

impl Client {
    /// Connects to the URI `text` and opens its export. The text is the device's name.
    pub async fn connect(text: &str) -> Result<Self, ClientError> {
        let uri = Uri::parse(text)?;
        let tls = match &uri.tls {
            None => None,
            Some(tls) => {
                let folder = tls.certificates.as_ref().ok_or(ClientError::NoTlsCertificates)?;
                let host = match (&tls.hostname, &uri.address) {
                    (Some(name), _) => name,
                    (None, Address::Tcp { host, .. }) => host,
                    (None, Address::Unix(_)) => "localhost",
                };
                Some(ClientTls::read(folder)?.connection(host)?)
            }
        };
        let stream = match &uri.address {
            Address::Unix(path) => Stream::connect_unix(path).await,
            Address::Tcp { host, port } => match resolve(host, *port) {
                Ok(addresses) => connect_any(addresses).await,
                Err(error) => Err(error),
            },
        };
        let stream =
            stream.map_err(|error| ClientError::Connect { address: uri.to_string(), error })?;
        Self::open(stream, &uri.export, text, true, tls).await
    }

    /// Opens `export` over a connected stream. Messages call the client `name`.
    pub async fn over(stream: Stream, export: &str, name: &str) -> Result<Self, ClientError> {
        Self::open(stream, export, name, true, None).await
    }

    /// Opens `export` over a connected stream. Without `structured`, replies are simple, as for old
    /// clients. With `tls`, the client starts TLS first.
    pub(crate) async fn open(
        stream: Stream,
        export: &str,
        name: &str,
        structured: bool,
        tls: Option<rustls::Connection>,
    ) -> Result<Self, ClientError> {
        let channel = Channel::new(Rc::new(stream));
        let mut inbox = Inbox::new(channel.clone(), RECEIVE_BUFFER_BYTES, Rc::default());
        let export = negotiate(&channel, &mut inbox, export, structured, tls).await?;
        let core = Rc::new(Core {
            name: name.to_owned(),
            export,
            outbox: Outbox::new(channel.clone(), Box::new(|_| {})),
            channel,
            pending: RefCell::default(),
            loss: RefCell::default(),
            sender_is_done: Cell::new(false),
            changed: Notify::default(),
        });
        rt::spawn_detached(Box::pin({
            let core = core.clone();
            async move {
                match core.outbox.run().await {
                    // The disconnect was sent, so the receiving task ends too.
                    Ok(()) => core.channel.shutdown(),
                    Err(e) => core.lose(ConnectionLoss::Send(e)),
                }
                core.sender_is_done.set(true);
                core.changed.notify_all();
            }
        }));
        rt::spawn_detached(Box::pin(replies::receive(core.clone(), inbox)));
        Ok(Self { core })
    }
}

/// A connection on which the handshake has ended, and on which nothing was asked yet.
#[derive(Debug)]
pub struct Handshaken {
    /// The socket.
    pub socket: OwnedFd,
    /// Size of the export.
    pub size_bytes: u64,
    /// Flags of the export.
    pub flags: u16,
}

impl Handshaken {
    /// Opens `export` over a connected stream, for a client that takes simple replies.
    pub async fn over(stream: Stream, export: &str) -> Result<Self, ClientError> {
        let stream = Rc::new(stream);
        let channel = Channel::new(stream.clone());
        let mut inbox = Inbox::new(channel.clone(), HANDSHAKE_BUFFER_BYTES, Rc::default());
        let ExportInfo { size_bytes, flags, .. } =
            negotiate(&channel, &mut inbox, export, false, None).await?;
        if !inbox.bytes().is_empty() {
            return Err(NegotiationError::DataAfterHandshake.into());
        }
        let socket = stream.duplicate().map_err(ClientError::lost)?;
        Ok(Self { socket, size_bytes, flags })
    }
}

/// Connects to the first of the addresses that answers.
async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<Stream> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in addresses {
        match Stream::connect_tcp(address).await {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use forebay_rt::Runtime;
    use forebay_rt::net::Listener;

    use super::*;

    #[test]
    fn the_first_address_that_answers_is_connected_to() {
        Runtime::real().unwrap().block_on(async {
            let place = || Listener::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = |at: &Listener| at.address().trim_start_matches("tcp:").parse().unwrap();
            let (closed, open) = (place(), place());
            let addresses: Vec<SocketAddr> = vec![address(&closed), address(&open)];
            drop(closed);
            connect_any(addresses.clone()).await.unwrap();
            let refused = connect_any(addresses[..1].to_vec()).await.err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            assert_eq!(connect_any(vec![]).await.err().unwrap().kind(), io::ErrorKind::NotFound);
        });
    }
}
