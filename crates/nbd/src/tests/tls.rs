use std::rc::Rc;

use forebay_device::{BlockDevice, IoBuf, MemoryDevice};
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_rt::net::{self, Stream};
use forebay_units::Nanos;
use proptest::prelude::*;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, SanType,
};
use rustls::CertificateError;

use super::handshake::{go, meta, option_bytes};
use crate::channel::Channel;
use crate::client::{Client, ClientError, OptionError};
use crate::exports::FixedExports;
use crate::limits::Limits;
use crate::server::{Counts, Server};
use crate::tls::allow::matches;
use crate::tls::{AllowList, ClientTls, SessionError, TlsConfig, TlsError, TlsFiles, identity_of};
use crate::uri::Uri;
use crate::wire::{
    BASE_ALLOCATION, GREETING_BYTES, OPTION_REPLY_HEADER_BYTES, OptionReplyHeader, REQUEST_BYTES,
    Request, SIMPLE_REPLY_BYTES, SimpleReply, command, option, reply,
};

/// A certificate authority that lives as long as a test.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
struct Pair {
    cert: String,
    key: String,
    der: Vec<u8>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name = subject(&[name]);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Pair { cert: cert.pem(), key: key.serialize_pem(), der: cert.der().to_vec() }
    }

    fn server(&self) -> Pair {
        let mut params = CertificateParams::new(vec!["store.example".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    fn client(&self, name: &str) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&[name]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn trusts(&self, own: Option<&Pair>) -> ClientTls {
        let own = own.map(|pair| (pair.cert.as_bytes(), pair.key.as_bytes()));
        ClientTls::from_pem(self.pem.as_bytes(), own).unwrap()
    }

    /// A server's configuration: with a certificate of this authority, and optionally with client
    /// certificates of the same authority.
    fn config(&self, requires_client_certificate: bool) -> TlsConfig {
        let pair = self.server();
        let ca = requires_client_certificate.then_some(self.pem.as_bytes());
        TlsConfig::from_pem(pair.cert.as_bytes(), pair.key.as_bytes(), ca).unwrap()
    }
}

/// TLS that every client must start.
pub(super) fn any_tls() -> TlsConfig {
    Authority::new("ca").config(false)
}

fn subject(common_names: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for common in common_names {
        name.push(DnType::CommonName, *common);
    }
    name
}

fn serve(config: TlsConfig, limits: Limits) -> Rc<Server> {
    let device = Rc::new(MemoryDevice::new("memory", 8 << 20));
    let exports = FixedExports::new().with("tank/a", device.clone()).with("tank/b", device.clone());
    Server::with_tls(Rc::new(exports.with("attic/a", device)), limits, config)
}

fn adopt(server: &Rc<Server>) -> Stream {
    let (here, there) = net::pair();
    assert!(server.adopt(there), "there was no room");
    here
}

async fn open(server: &Rc<Server>, export: &str, tls: &ClientTls) -> Result<Client, ClientError> {
    open_as(server, export, tls, "store.example").await
}

/// Opens an export of a server that must prove the name `host`.
async fn open_as(
    server: &Rc<Server>,
    export: &str,
    tls: &ClientTls,
    host: &str,
) -> Result<Client, ClientError> {
    let connection = tls.connection(host)?;
    Client::open(adopt(server), export, "test", true, Some(connection)).await
}

fn simulated<F: Future<Output = ()> + 'static>(test: impl FnOnce() -> F) {
    Runtime::simulated(7).block_on(test());
}

/// The error with which rustls ended the session.
fn session_error(outcome: Result<Client, ClientError>) -> rustls::Error {
    match outcome.err() {
        Some(ClientError::TlsSession(SessionError::Rustls(e))) => e,
        other => panic!("expected an error of the TLS session, not {other:?}"),
    }
}

/// The server's error reply to the request for an export.
fn refusal(outcome: Result<Client, ClientError>) -> OptionError {
    match outcome.err() {
        Some(ClientError::Refused { error, .. }) => error,
        other => panic!("expected a refused export, not {other:?}"),
    }
}

/// The server's counts after it has stopped.
async fn counts(server: &Rc<Server>) -> Counts {
    assert_eq!(server.stop(Nanos::from_secs(5)).await, 0);
    assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
    server.counts()
}

/// Reads until the peer closes the stream.
async fn read_all(channel: &Channel) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let (outcome, buf) = channel.recv(vec![0; 4096], 0).await;
        match outcome {
            Ok(n) if n > 0 => all.extend_from_slice(&buf[..n]),
            _ => return all,
        }
    }
}

async fn read_exactly(channel: &Channel, len: usize) -> Vec<u8> {
    let (outcome, buf) = channel.recv_exact(vec![0; len], 0).await;
    outcome.expect("the stream has the bytes");
    buf
}

/// The kind of one reply to an option.
async fn reply_kind(channel: &Channel, option: u32) -> u32 {
    let header = read_exactly(channel, OPTION_REPLY_HEADER_BYTES).await;
    let header = OptionReplyHeader::decode(&header).unwrap();
    assert_eq!(header.option, option);
    if header.len_bytes > 0 {
        read_exactly(channel, header.len_bytes as usize).await;
    }
    header.kind
}

/// A stream on which the client has answered the greeting.
async fn raw(server: &Rc<Server>) -> Rc<Channel> {
    raw_over(&Rc::new(adopt(server))).await
}

async fn raw_over(stream: &Rc<Stream>) -> Rc<Channel> {
    let channel = Channel::new(stream.clone());
    read_exactly(&channel, GREETING_BYTES).await;
    channel.send_all(3u32.to_be_bytes().to_vec()).await.0.unwrap();
    channel
}

async fn send(channel: &Channel, bytes: Vec<u8>) {
    channel.send_all(bytes).await.0.unwrap();
}

#[test]
fn data_of_any_length_goes_both_ways() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(true), Limits::default());
        let client = open(&server, "tank/a", &ca.trusts(Some(&ca.client("me")))).await.unwrap();
        let mut at = 0;
        for len in [512, 4096, 16 << 10, 40 << 10, 1 << 20, 3 << 20] {
            let data = super::pattern(len, len as u64);
            client.write(at, data.clone(), true).await.unwrap();
            let back = client.read(at, IoBuf::zeroed(len)).await.unwrap();
            assert!(back[..] == data[..], "{len} bytes came back changed");
            at += len as u64;
        }
        // Many requests at a time, so that both directions are busy.
        let reads = (0..32).map(|n| client.read(n * 8192, IoBuf::zeroed(128 << 10)));
        let writes = (0..32)
            .map(|n| client.write((5 << 20) + n * 65536, super::pattern(64 << 10, n), false));
        let both = rt::join(rt::join_all(reads), rt::join_all(writes));
        let (reads, writes) = both.await;
        assert!(reads.iter().all(Result::is_ok) && writes.iter().all(Result::is_ok));
        client.flush().await.unwrap();
        client.close().await;
        let counts = counts(&server).await;
        assert_eq!(counts, Counts { accepted: 1, ..Counts::default() });
    });
}

#[test]
fn only_certificates_of_the_client_ca_are_accepted() {
    simulated(|| async {
        let (ca, other) = (Authority::new("ca"), Authority::new("ca"));
        let server = serve(ca.config(true), Limits::default());
        // No certificate, one of another authority, and a server's certificate.
        for own in [None, Some(other.client("me")), Some(ca.server())] {
            let error = session_error(open(&server, "tank/a", &ca.trusts(own.as_ref())).await);
            assert!(matches!(error, rustls::Error::AlertReceived(_)), "{error}");
        }
        // The server cannot prove the name that the client asks for.
        let me = ca.client("me");
        let tls = ca.trusts(Some(&me));
        let outcome = open_as(&server, "tank/a", &tls, "other.example").await;
        assert!(matches!(
            session_error(outcome),
            rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
        ));
        // A client with another authority does not trust this server.
        let outcome = open(&server, "tank/a", &other.trusts(Some(&me))).await;
        assert!(matches!(session_error(outcome), rustls::Error::InvalidCertificate(_)));
        let client = open(&server, "tank/a", &tls).await.unwrap();
        client.close().await;
        let Counts { accepted, denied, protocol_errors, .. } = counts(&server).await;
        assert_eq!((accepted, denied.certificate, denied.by_client, protocol_errors), (6, 3, 2, 0));
    });
}

#[test]
fn expired_and_future_certificates_are_refused() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(true), Limits::default());
        // The simulated clock begins in November 2023.
        for (from, to) in [(2020, 2023), (2024, 2030)] {
            let mut params = CertificateParams::default();
            params.distinguished_name = subject(&["me"]);
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
            let outcome = open(&server, "tank/a", &ca.trusts(Some(&ca.sign(&params)))).await;
            assert!(matches!(outcome, Err(ClientError::TlsSession(_))), "{from} to {to}");
        }
        assert_eq!(counts(&server).await.denied.certificate_out_of_time, 2);
    });
}

#[test]
fn without_a_client_ca_every_client_is_accepted() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(false), Limits::default());
        let client = open(&server, "attic/a", &ca.trusts(None)).await.unwrap();
        client.write(0, super::pattern(4096, 1), true).await.unwrap();
        client.close().await;
        assert_eq!(counts(&server).await.protocol_errors, 0);
    });
}

#[test]
fn plain_text_gets_only_the_requirement_of_tls() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(true), Limits::default());
        let outcome = Client::over(adopt(&server), "tank/a", "test").await;
        assert_eq!(refusal(outcome).kind, reply::ERR_TLS_REQD);
        let channel = raw(&server).await;
        for asked in [option::LIST, option::INFO, option::GO, option::STRUCTURED_REPLY, 11, 4711] {
            send(&channel, option_bytes(asked, &[])).await;
            assert_eq!(reply_kind(&channel, asked).await, reply::ERR_TLS_REQD, "{asked}");
        }
        // A malformed option gets the same error.
        send(&channel, option_bytes(option::LIST, b"junk")).await;
        assert_eq!(reply_kind(&channel, option::LIST).await, reply::ERR_TLS_REQD);
        send(&channel, option_bytes(option::STARTTLS, b"junk")).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ERR_INVALID);
        send(&channel, option_bytes(option::EXPORT_NAME, b"tank/a")).await;
        assert_eq!(read_all(&channel).await, b"", "the connection ends without a reply");
        let channel = raw(&server).await;
        send(&channel, option_bytes(option::ABORT, &[])).await;
        assert_eq!(reply_kind(&channel, option::ABORT).await, reply::ACK);
        let Counts { accepted, denied, protocol_errors, .. } = counts(&server).await;
        assert_eq!((accepted, denied.not_encrypted, protocol_errors), (3, 1, 0));
    });
}

#[test]
fn options_of_plain_text_are_forgotten_at_starttls() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(true), Limits::default());
        let channel = raw(&server).await;
        send(&channel, option_bytes(option::STRUCTURED_REPLY, &[])).await;
        assert_eq!(reply_kind(&channel, option::STRUCTURED_REPLY).await, reply::ERR_TLS_REQD);
        send(&channel, option_bytes(option::STARTTLS, &[])).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
        let tls = ca.trusts(Some(&ca.client("me")));
        channel.wrap(tls.connection("store.example").unwrap()).await.unwrap();
        // The server sends no second greeting, and refuses a second STARTTLS.
        send(&channel, option_bytes(option::STARTTLS, &[])).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ERR_INVALID);
        send(&channel, meta(option::SET_META_CONTEXT, "tank/a", &[BASE_ALLOCATION])).await;
        assert_eq!(reply_kind(&channel, option::SET_META_CONTEXT).await, reply::ERR_INVALID);
        send(&channel, go(option::GO, "tank/a")).await;
        while reply_kind(&channel, option::GO).await != reply::ACK {}
        let read = Request {
            flags: 0,
            command: command::READ,
            cookie: 99,
            offset_bytes: 0,
            len_bytes: 512,
        };
        send(&channel, read.encode().to_vec()).await;
        let answer = read_exactly(&channel, SIMPLE_REPLY_BYTES).await;
        let answer = SimpleReply::decode(&answer).expect("the reply is a simple one");
        assert_eq!((answer.cookie, answer.error), (99, 0));
        assert_eq!(read_exactly(&channel, 512).await, [0; 512]);
        let disconnect = Request { command: command::DISC, ..read };
        send(&channel, disconnect.encode().to_vec()).await;
        assert_eq!(read_all(&channel).await, b"");
        assert_eq!(counts(&server).await.protocol_errors, 0);
    });
}

#[test]
fn plain_text_after_starttls_ends_the_connection() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let server = serve(ca.config(true), Limits::default());
        // Together with STARTTLS, as an attacker on the path would insert it.
        let channel = raw(&server).await;
        let mut bytes = option_bytes(option::STARTTLS, &[]);
        bytes.extend(option_bytes(option::LIST, &[]));
        send(&channel, bytes).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
        let tls = ca.trusts(Some(&ca.client("me")));
        assert!(channel.wrap(tls.connection("store.example").unwrap()).await.is_err());
        // After the reply, where the TLS layer gets it and may send an alert.
        for junk in [option_bytes(option::LIST, &[]), vec![0; 100_000], vec![22; 100_000]] {
            let channel = raw(&server).await;
            send(&channel, option_bytes(option::STARTTLS, &[])).await;
            assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
            // The server may close the connection before all of it was sent.
            let _ = channel.send_all(junk).await;
            assert!(read_all(&channel).await.len() < 64);
        }
        // During transmission.
        let stream = Rc::new(adopt(&server));
        let channel = raw_over(&stream).await;
        send(&channel, option_bytes(option::STARTTLS, &[])).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
        channel.wrap(tls.connection("store.example").unwrap()).await.unwrap();
        send(&channel, go(option::GO, "tank/a")).await;
        while reply_kind(&channel, option::GO).await != reply::ACK {}
        stream.send_all(vec![0x25; REQUEST_BYTES]).await.0.unwrap();
        assert_eq!(read_all(&channel).await, b"");
        assert_eq!(counts(&server).await.accepted, 5);
    });
}

#[test]
fn stalled_tls_handshake_ends_at_its_deadline() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let limits = Limits { handshake_deadline: Nanos::from_secs(3), ..Limits::default() };
        let server = serve(ca.config(true), limits);
        let channel = raw(&server).await;
        send(&channel, option_bytes(option::STARTTLS, &[])).await;
        assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
        send(&channel, vec![22, 3, 1, 2, 0, 1]).await; // an incomplete record
        assert_eq!(read_all(&channel).await, b"");
        assert_eq!(rt::now().0 / 1_000_000_000, 3);
        // Clients that leave within their hello.
        let tls = ca.trusts(None);
        let mut hello = Vec::new();
        tls.connection("store.example").unwrap().write_tls(&mut hello).unwrap();
        for cut in (0..hello.len()).step_by(37) {
            let channel = raw(&server).await;
            send(&channel, option_bytes(option::STARTTLS, &[])).await;
            assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
            if cut > 0 {
                send(&channel, hello[..cut].to_vec()).await;
            }
            channel.shutdown();
        }
        let counts = counts(&server).await;
        assert_eq!((counts.timed_out, counts.protocol_errors), (1, 0));
        assert_eq!(counts.lost, counts.accepted - 1);
    });
}

#[test]
fn identity_lists_and_opens_only_allowed_exports() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let list = AllowList::parse("[allow]\nme = [\"tank/*\"]\nroot = [\"**\"]\n").unwrap();
        let config = ca.config(true).with_allow_list(list).unwrap();
        let server = serve(config, Limits::default());
        let me = ca.trusts(Some(&ca.client("me")));
        open(&server, "tank/a", &me).await.unwrap().close().await;
        // The reply is the same for exports that exist and for others.
        for export in ["attic/a", "attic/none"] {
            let outcome = open(&server, export, &me).await;
            assert_eq!(refusal(outcome).kind, reply::ERR_POLICY, "{export}");
        }
        let root = ca.trusts(Some(&ca.client("root")));
        open(&server, "attic/a", &root).await.unwrap().close().await;
        let outcome = open(&server, "tank/a", &ca.trusts(Some(&ca.client("Me")))).await;
        assert_eq!(refusal(outcome).kind, reply::ERR_POLICY);
        for (who, count) in [(&me, 2), (&root, 3)] {
            let channel = raw(&server).await;
            send(&channel, option_bytes(option::STARTTLS, &[])).await;
            assert_eq!(reply_kind(&channel, option::STARTTLS).await, reply::ACK);
            channel.wrap(who.connection("store.example").unwrap()).await.unwrap();
            send(&channel, option_bytes(option::LIST, &[])).await;
            for _ in 0..count {
                assert_eq!(reply_kind(&channel, option::LIST).await, reply::SERVER);
            }
            assert_eq!(reply_kind(&channel, option::LIST).await, reply::ACK);
            channel.shutdown();
        }
        assert_eq!(counts(&server).await.protocol_errors, 0);
    });
}

#[test]
fn server_without_tls_refuses_starttls() {
    simulated(|| async {
        let ca = Authority::new("ca");
        let device = Rc::new(MemoryDevice::new("memory", 1 << 20));
        let exports = FixedExports::new().with("tank/a", device);
        let server = Server::new(Rc::new(exports), Limits::default());
        let outcome = open(&server, "tank/a", &ca.trusts(None)).await;
        let Err(ClientError::TlsRefused(error)) = outcome else { panic!("TLS has started") };
        assert_eq!(error.kind, reply::ERR_UNSUP);
        counts(&server).await;
    });
}

#[test]
fn certificate_gives_at_most_one_identity() {
    let ca = Authority::new("ca");
    let named = |common: &[&str], other: Vec<SanType>| {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(common);
        params.subject_alt_names = other;
        identity_of(&ca.sign(&params).der)
    };
    let dns = |name: &str| SanType::DnsName(name.try_into().unwrap());
    let mail = |name: &str| SanType::Rfc822Name(name.try_into().unwrap());
    assert_eq!(named(&["me"], vec![dns("host")]), Ok(Some("me".into())));
    assert_eq!(named(&[], vec![dns("host"), mail("a@b")]), Ok(Some("host".into())));
    assert_eq!(named(&[], vec![mail("a@b")]), Ok(Some("a@b".into())));
    assert_eq!(named(&[], vec![]), Ok(None));
    assert_eq!(named(&["Zürich"], vec![]), Ok(Some("Zürich".into())));
    for wrong in ["me\0.evil", "me\n", "", &"x".repeat(300)] {
        assert!(named(&[wrong], vec![]).is_err(), "{wrong:?}");
    }
    assert!(identity_of(b"junk").is_err());
    let mut trailing = ca.client("me").der;
    assert_eq!(identity_of(&trailing), Ok(Some("me".into())));
    trailing.push(0);
    assert!(identity_of(&trailing).is_err());
}

#[test]
fn inconsistent_configurations_are_refused() {
    let ca = Authority::new("ca");
    let (one, two) = (ca.server(), ca.server());
    let make = |cert: &str, key: &str, ca: Option<&str>| {
        TlsConfig::from_pem(cert.as_bytes(), key.as_bytes(), ca.map(str::as_bytes)).err()
    };
    assert!(matches!(make(&one.cert, &two.key, None), Some(TlsError::Key(_))));
    assert!(matches!(make(&one.cert, &one.cert, None), Some(TlsError::KeyPem(_))));
    assert!(matches!(make(&one.key, &one.key, None), Some(TlsError::NoCertificate)));
    assert!(matches!(make(&one.cert, &one.key, Some("")), Some(TlsError::NoCertificate)));
    let open = ca.config(false).with_allow_list(AllowList::default());
    assert!(matches!(open, Err(TlsError::AllowListWithoutClientCa)));
    for text in ["allow = 3", "[alow]", "[allow]\nme = \"tank/*\"", "[allow]\nme = []\nme = []"] {
        assert!(AllowList::parse(text).is_err(), "{text}");
    }
    let missing = TlsFiles { cert: "/nowhere/cert.pem".into(), ..Default::default() };
    let error = TlsConfig::read(&missing).unwrap_err();
    let TlsError::File { path, .. } = error else { panic!("{error}") };
    assert_eq!(path, missing.cert);
}

#[test]
fn file_that_is_refused_is_named() {
    let folder = std::env::temp_dir().join(format!("forebay-nbd-pem-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        let file = std::fs::File::create_new(folder.join(name));
        std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
    };
    let ca = Authority::new("ca");
    let (one, two) = (ca.server(), ca.server());
    let damaged = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    let all = [("cert", &*one.cert), ("key", &one.key), ("other", &two.key), ("damaged", damaged)];
    all.iter().for_each(|(name, text)| write(name, text));
    for (cert, key, client_ca, refused) in [
        ("key", "key", None, "key"),
        ("damaged", "key", None, "damaged"),
        ("cert", "cert", None, "cert"),
        ("cert", "other", None, "other"),
        ("cert", "key", Some("other"), "other"),
        ("cert", "key", Some("damaged"), "damaged"),
    ] {
        let path = |name: &str| folder.join(name);
        let (cert, key, client_ca) = (path(cert), path(key), client_ca.map(path));
        let files = TlsFiles { cert, key, client_ca, allow: None };
        let said = TlsConfig::read(&files).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{}: ", path(refused).display())), "{said}");
    }
    write("ca-cert.pem", damaged);
    let said = ClientTls::read(&folder).unwrap_err().to_string();
    assert!(said.starts_with(&format!("{}: ", folder.join("ca-cert.pem").display())), "{said}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn uris_carry_tls_parameters() {
    let uri = Uri::parse("nbds://host/tank/a?tls-certificates=/etc/my%20keys").unwrap();
    let tls = uri.tls.clone().unwrap();
    assert_eq!(tls.certificates.unwrap().to_str(), Some("/etc/my keys"));
    assert_eq!((tls.hostname, uri.to_string()), (None, "nbds://host:10809/tank/a".into()));
    let uri = Uri::parse("nbds+unix:///x?tls-hostname=store&socket=/s").unwrap();
    assert_eq!(uri.tls.unwrap().hostname.as_deref(), Some("store"));
    assert_eq!(Uri::parse("nbd://host/?tls-certificates=x").unwrap().tls, None);
    assert!(Uri::parse("nbds://host/?tls-hostname=%zz").is_err());
    Runtime::simulated(1).block_on(async {
        let outcome = Client::connect("nbds://host/x").await;
        assert!(matches!(outcome, Err(ClientError::NoTlsCertificates)));
    });
}

#[test]
fn patterns_stop_at_slashes_unless_doubled() {
    for (pattern, yes, no) in [
        ("tank/*", &["tank/a", "tank/"][..], &["tank", "tank/a/b", "attic/a"][..]),
        ("tank/**", &["tank/a", "tank/a/b"], &["tank", "tankard/a"]),
        ("**", &["", "a", "a/b"], &[]),
        ("", &[""], &["a"]),
        ("t?nk/vm-*-x", &["tank/vm-1-x", "tank/vm--x"], &["tank/vm-x", "t/nk/vm-1-x"]),
        ("Ü?", &["Üö"], &["Ü"]),
    ] {
        assert!(yes.iter().all(|text| matches(pattern, text)), "{pattern}");
        assert!(!no.iter().any(|text| matches(pattern, text)), "{pattern}");
    }
    // Backtracking would take exponential time here.
    assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
}

/// The definition of a match, by trying every split.
fn slow_matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([b'*', b'*', rest @ ..], _) => (0..=text.len()).any(|n| slow_matches(rest, &text[n..])),
        ([b'*', rest @ ..], _) => {
            (0..=text.len()).any(|n| !text[..n].contains(&b'/') && slow_matches(rest, &text[n..]))
        }
        ([b'?', rest @ ..], [c, after @ ..]) => *c != b'/' && slow_matches(rest, after),
        ([p, rest @ ..], [c, after @ ..]) => p == c && slow_matches(rest, after),
        ([], []) => true,
        _ => false,
    }
}

proptest! {
    #[test]
    fn patterns_match_as_defined(pattern in "[ab/*?]{0,8}", text in "[ab/]{0,8}") {
        prop_assert_eq!(
            matches(&pattern, &text),
            slow_matches(pattern.as_bytes(), text.as_bytes())
        );
    }
}
