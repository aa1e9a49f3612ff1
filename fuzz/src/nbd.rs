//! Hostile NBD peers in simulation: any bytes against a server, a server with TLS, or a client.
//!
//! No bytes cause a panic or disturb a second client. The server gets back the memory of all
//! requests. Without TLS nothing reaches a device whose server requires it. A client ends when its
//! peer does.

use std::rc::Rc;
use std::sync::OnceLock;

use forebay_device::layers::{Counted, Counts};
use forebay_device::{BlockDevice, IoBuf, MemoryDevice};
use forebay_nbd::message::InfoRequest;
use forebay_nbd::wire::{OptionHeader, option};
use forebay_nbd::{Client, FixedExports, Limits, Server, TlsConfig};
use forebay_rt::net::{self, Stream};
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

const SIZE_BYTES: u64 = 1 << 20;

/// Narrow ones, so that they are reached with short inputs.
fn limits() -> Limits {
    Limits {
        connections_max: 4,
        request_max_bytes: 8 << 10,
        connection_bytes_max: 32 << 10,
        total_bytes_max: 64 << 10,
        receive_buffer_bytes: 64 << 10,
        extents_max: 16,
        ..Limits::default()
    }
}

fn exports() -> (Rc<FixedExports>, Rc<Counted>) {
    let device = Counted::new(Rc::new(MemoryDevice::new("memory", SIZE_BYTES)));
    (Rc::new(FixedExports::new().with("vol", device.clone()).with("", device.clone())), device)
}

fn adopt(server: &Rc<Server>) -> Stream {
    let (here, there) = net::pair();
    assert!(server.adopt(there), "there was no room");
    here
}

/// Sends `parts` one after the other while taking all answers, then hangs up.
async fn throw(stream: Stream, parts: Vec<Vec<u8>>) {
    let stream = Rc::new(stream);
    let reader = rt::spawn({
        let stream = stream.clone();
        async move {
            let mut buf = vec![0; 16 << 10];
            loop {
                let (outcome, back) = stream.recv(buf, 0).await;
                buf = back;
                if !matches!(outcome, Ok(n) if n > 0) {
                    return;
                }
            }
        }
    });
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        // The other side may have hung up already.
        let _ = stream.send_all(part).await;
        rt::sleep(Nanos::from_millis(20)).await;
    }
    stream.shutdown();
    reader.await;
}

async fn all_gone(server: &Rc<Server>) {
    assert_eq!(server.stop(Nanos::from_secs(60)).await, 0, "a connection does not end");
    assert_eq!(server.connections(), 0);
}

/// Flags of the client, structured replies, and the export opened.
pub(crate) fn hello() -> Vec<u8> {
    let mut out = 3u32.to_be_bytes().to_vec();
    out.extend(OptionHeader { option: option::STRUCTURED_REPLY, len_bytes: 0 }.encode());
    let mut data = Vec::new();
    InfoRequest { name: "vol", wanted: Vec::new() }.encode(&mut data);
    out.extend(OptionHeader { option: option::GO, len_bytes: data.len() as u32 }.encode());
    out.extend(data);
    out
}

/// Any bytes from a client: from the greeting on, or (first byte odd) as requests.
pub fn server(bytes: &[u8]) {
    let Some((&head, bytes)) = bytes.split_first() else { return };
    let bytes = bytes.to_vec();
    Runtime::simulated(u64::from(head >> 1)).block_on(async move {
        let (exports, _) = exports();
        let server = Server::new(exports, limits());
        let witness = Client::over(adopt(&server), "vol", "witness").await.expect("good");
        let parts = if head & 1 == 1 { vec![hello(), bytes] } else { vec![bytes] };
        let thrown = rt::spawn(throw(adopt(&server), parts));
        for round in 0..4 {
            let data = IoBuf::zeroed(4096).freeze();
            witness.write(round * 4096, data, true).await.expect("others go on");
            witness.read(round * 4096, IoBuf::zeroed(4096)).await.expect("others go on");
            witness.flush().await.expect("others go on");
            rt::sleep(Nanos::from_millis(5)).await;
        }
        thrown.await;
        witness.read(0, IoBuf::zeroed(4096)).await.expect("others go on");
        witness.close().await;
        all_gone(&server).await;
    });
}

fn tls_config() -> &'static TlsConfig {
    static CONFIG: OnceLock<TlsConfig> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        TlsConfig::from_pem(cert.as_bytes(), key.as_bytes(), None).expect("they fit")
    })
}

/// Any bytes from a client of a server that demands TLS: from the greeting on, or (first byte
/// odd) where the TLS handshake should be.
pub fn tls(bytes: &[u8]) {
    let Some((&head, bytes)) = bytes.split_first() else { return };
    let bytes = bytes.to_vec();
    let config = tls_config().clone();
    Runtime::simulated(u64::from(head >> 1)).block_on(async move {
        let (exports, device) = exports();
        let server = Server::with_tls(exports, limits(), config);
        let mut parts = vec![bytes];
        if head & 1 == 1 {
            let mut start = 3u32.to_be_bytes().to_vec();
            start.extend(OptionHeader { option: option::STARTTLS, len_bytes: 0 }.encode());
            parts.insert(0, start);
        }
        throw(adopt(&server), parts).await;
        all_gone(&server).await;
        assert_eq!(device.counts(), Counts::default(), "plain text reached the device");
    });
}

/// Any bytes from a server: the first one seeds the run.
pub fn client(bytes: &[u8]) {
    let Some((&head, bytes)) = bytes.split_first() else { return };
    let bytes = bytes.to_vec();
    Runtime::simulated(u64::from(head)).block_on(async move {
        let (here, there) = net::pair();
        let thrown = rt::spawn(throw(there, vec![bytes]));
        if let Ok(client) = Client::over(here, "vol", "test").await {
            let reads = (0..3).map(|n| client.read_once(n * 4096, IoBuf::zeroed(4096)));
            let write = client.write_once(0, IoBuf::zeroed(512).freeze(), true);
            let status = client.block_status(0, 1 << 20, 0);
            let _ = rt::join(rt::join_all(reads), rt::join(write, status)).await;
            assert_eq!(client.in_flight(), 0, "an answer is still waited for");
            client.close().await;
        }
        thrown.await;
    });
}
