use forebay_rt::Runtime;

use super::*;
use crate::exports::{ExportEntry, ExportHandle, Exports, Peer, Revocation};
use crate::handshake::Refusal;
use crate::wire::{Request, command};

/// A stream at the start of transmission, after a short handshake.
async fn into_transmission(server: &Rc<Server>) -> net::Stream {
    let stream = connect_raw(server);
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    stream.send_all(hello).await.0.unwrap();
    let (outcome, _) = stream.recv_exact(vec![0; 18 + 10], 0).await;
    outcome.unwrap();
    stream
}

fn request(command: u16, offset_bytes: u64, len_bytes: u32) -> Request {
    Request { flags: 0, command, cookie: 7, offset_bytes, len_bytes }
}

fn write_bytes(offset_bytes: u64, len: usize) -> Vec<u8> {
    let mut bytes = request(command::WRITE, offset_bytes, len as u32).encode().to_vec();
    bytes.extend_from_slice(&pattern(len, 9));
    bytes
}

async fn ended(stream: &net::Stream) -> bool {
    loop {
        match stream.recv(vec![0; 4096], 0).await.0 {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

/// Checks that another client is still served.
async fn still_serves(client: &Client, salt: u64) {
    client.write(65536, pattern(4096, salt), true).await.unwrap();
    let back = client.read(65536, IoBuf::recycled(4096)).await.unwrap();
    assert!(back[..] == pattern(4096, salt)[..]);
}

async fn drained(server: &Server, connections: usize) {
    for _ in 0..10_000 {
        if server.connections() == connections && server.bytes_in_flight() == 0 {
            return;
        }
        rt::sleep(Nanos::from_millis(10)).await;
    }
    panic!("{} connections, {} bytes in flight", server.connections(), server.bytes_in_flight());
}

#[test]
fn write_truncated_at_any_byte_never_reaches_the_device() {
    Runtime::simulated(5).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let witness = connect(&server).await;
        let whole = write_bytes(0, 512);
        for cut in 0..whole.len() {
            let stream = into_transmission(&server).await;
            if cut > 0 {
                stream.send_all(whole[..cut].to_vec()).await.0.unwrap();
            }
            drop(stream);
        }
        drained(&server, 1).await;
        assert_eq!(device.writes_begun.get(), 0);
        // With a cut at 0 the client left between two requests; else it vanished within one.
        assert_eq!(server.counts().lost, whole.len() as u64 - 1);
        still_serves(&witness, 1).await;

        // A client may leave after the whole request, before the reply: the write happens once.
        let stream = into_transmission(&server).await;
        stream.send_all(whole).await.0.unwrap();
        drop(stream);
        drained(&server, 1).await;
        assert_eq!(device.writes_begun.get(), 2);
        assert!(device.seen.borrow()[..512] == pattern(512, 9)[..]);
    });
}

#[test]
fn large_truncated_write_never_reaches_the_device() {
    // Payloads above the size of a copy through the receive buffer, with and without a short rest:
    // together they use every way of receiving a payload.
    for (seed, len) in [(6, 40 << 10), (7, 100 << 10), (8, 700 << 10)] {
        Runtime::simulated(seed).block_on(async move {
            let device = CachedDevice::new(1 << 20);
            let server = server_of(device.clone(), Limits::default());
            let whole = write_bytes(0, len);
            for step in 0..40 {
                let stream = into_transmission(&server).await;
                let cut = whole.len() * step / 40 + 1;
                stream.send_all(whole[..cut].to_vec()).await.0.unwrap();
                drop(stream);
            }
            drained(&server, 0).await;
            assert_eq!(device.writes_begun.get(), 0);
            // The whole write arrives, so the cuts were what stopped the others.
            let stream = into_transmission(&server).await;
            stream.send_all(whole).await.0.unwrap();
            let (outcome, _) = stream.recv_exact(vec![0; 16], 0).await;
            outcome.unwrap();
            assert!(device.seen.borrow()[..len] == pattern(len, 9)[..]);
        });
    }
}

#[test]
fn handshake_truncated_at_any_byte_disturbs_no_other_client() {
    Runtime::simulated(7).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let witness = connect(&server).await;
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x03\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
        for cut in 0..=hello.len() {
            let stream = connect_raw(&server);
            if cut > 0 {
                stream.send_all(hello[..cut].to_vec()).await.0.unwrap();
            }
            drop(stream);
        }
        drained(&server, 1).await;
        still_serves(&witness, 2).await;
    });
}

#[test]
fn slow_handshake_ends_at_its_deadline() {
    Runtime::simulated(8).block_on(async {
        let limits = Limits { handshake_deadline: Nanos::from_secs(3), ..Default::default() };
        let server = server_of(CachedDevice::new(1 << 20), limits);
        let stream = connect_raw(&server);
        let begun = rt::now();
        for byte in [0u8, 0, 0, 3, b'I', b'H', b'A', b'V'] {
            if stream.send_all(vec![byte]).await.0.is_err() {
                break;
            }
            rt::sleep(Nanos::from_secs(1)).await;
        }
        assert!(ended(&stream).await);
        assert!(rt::now().since(begun) < Nanos::from_secs(9));
        drained(&server, 0).await;
        assert_eq!(server.counts().timed_out, 1);
    });
}

#[test]
fn slow_request_ends_its_connection_and_an_idle_client_stays() {
    Runtime::simulated(9).block_on(async {
        let limits = Limits { stall_deadline: Nanos::from_secs(4), ..Default::default() };
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), limits);
        let idle = connect(&server).await;
        // A payload through the receive buffer, and one that is received in place.
        for len in [4096, 700 << 10] {
            let stream = into_transmission(&server).await;
            let bytes = write_bytes(0, len);
            let begun = rt::now();
            let mut at = 0;
            while at < bytes.len() {
                let step = (bytes.len() / 50).max(1);
                let piece = bytes[at..(at + step).min(bytes.len())].to_vec();
                if stream.send_all(piece).await.0.is_err() {
                    break;
                }
                at += step;
                rt::sleep(Nanos::from_secs(1)).await;
            }
            assert!(at < bytes.len(), "the server waited for a slow request");
            assert!(rt::now().since(begun) < Nanos::from_secs(9));
            drop(stream);
        }
        drained(&server, 1).await;
        assert_eq!((server.counts().timed_out, device.writes_begun.get()), (2, 0));
        rt::sleep(Nanos::from_secs(3600)).await;
        still_serves(&idle, 3).await;
    });
}

#[test]
fn lengths_of_4_gib_end_only_their_own_connection() {
    Runtime::simulated(10).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let witness = connect(&server).await;
        let stream = into_transmission(&server).await;
        let huge = request(command::WRITE, 0, u32::MAX).encode().to_vec();
        stream.send_all(huge).await.0.unwrap();
        assert!(ended(&stream).await);
        drained(&server, 1).await;
        assert_eq!(server.counts().protocol_errors, 1);

        // A request without a payload gets an error, and its connection stays.
        let stream = into_transmission(&server).await;
        for command in [command::READ, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            let bytes = request(command, u64::MAX - 5, u32::MAX).encode().to_vec();
            stream.send_all(bytes).await.0.unwrap();
            let (outcome, reply) = stream.recv_exact(vec![0; 16], 0).await;
            outcome.unwrap();
            assert_ne!(reply[4..8], [0; 4], "command {command} succeeded");
        }
        still_serves(&witness, 4).await;
    });
}

#[test]
fn name_of_no_export_is_denied_and_breaks_no_protocol() {
    Runtime::simulated(1).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let stream = connect_raw(&server);
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x04none");
        stream.send_all(hello).await.0.unwrap();
        assert!(ended(&stream).await);
        drained(&server, 0).await;
        let counts = server.counts();
        assert_eq!((counts.denied.export, counts.protocol_errors), (1, 0));
    });
}

#[test]
fn random_bytes_end_only_their_own_connection() {
    for seed in 0..40 {
        Runtime::simulated(seed).block_on(async {
            let device = CachedDevice::new(1 << 20);
            let server = server_of(device.clone(), Limits::default());
            let witness = connect(&server).await;
            for _ in 0..10 {
                let stream = into_transmission(&server).await;
                let mut bytes = Vec::new();
                for _ in 0..1 + rt::random_below(20) {
                    // Mostly a request, sometimes with one random byte.
                    let mut one = request(
                        rt::random_below(10) as u16,
                        rt::random_below(300) * 4096,
                        rt::random_below(3) as u32 * 4096,
                    )
                    .encode();
                    if rt::random_below(3) == 0 {
                        one[rt::random_below(28) as usize] = rt::random_u64() as u8;
                    }
                    bytes.extend_from_slice(&one);
                }
                // The server may have disconnected already; the test does not care.
                let _ = stream.send_all(bytes).await.0;
                rt::sleep(Nanos(rt::random_below(1_000_000))).await;
            }
            drained(&server, 1).await;
            still_serves(&witness, 5).await;
        });
    }
}

#[test]
fn connection_above_the_limit_is_closed_at_once() {
    Runtime::simulated(11).block_on(async {
        // Clients of one account get two thirds of what is free.
        let limits = Limits { connections_max: 3, ..Default::default() };
        let server = server_of(CachedDevice::new(1 << 20), limits);
        let streams: Vec<_> = (0..2).map(|_| connect_raw(&server)).collect();
        let (here, there) = net::pair();
        assert!(!server.adopt(there));
        assert!(ended(&here).await);
        drop(streams);
        drained(&server, 0).await;
        let client = connect(&server).await;
        still_serves(&client, 6).await;
    });
}

#[test]
fn memory_is_bounded_per_connection_and_in_total() {
    Runtime::simulated(12).block_on(async {
        let limits = Limits {
            request_max_bytes: 64 << 10,
            connection_bytes_max: 256 << 10,
            total_bytes_max: 512 << 10,
            ..Default::default()
        };
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), limits);
        let mut clients = Vec::new();
        for _ in 0..4 {
            clients.push(Rc::new(connect(&server).await));
        }
        let mut tasks = Vec::new();
        for (i, client) in clients.iter().enumerate() {
            for lane in 0..16u64 {
                let client = client.clone();
                tasks.push(rt::spawn(async move {
                    let data = pattern(64 << 10, lane);
                    client.write((i as u64 * 4 + lane % 4) * 65536, data, false).await.unwrap();
                    client.read(lane * 65536, IoBuf::recycled(65536)).await.unwrap();
                }));
            }
        }
        let watched = server.clone();
        let watcher = rt::spawn(async move {
            let mut max_bytes = 0;
            while watched.connections() > 0 {
                max_bytes = max_bytes.max(watched.bytes_in_flight());
                rt::sleep(Nanos::from_micros(50)).await;
            }
            max_bytes
        });
        rt::join_all(tasks).await;
        assert!(device.max_in_flight.get() <= 8, "more payloads than the bound allows");
        drop(clients);
        let max_bytes = watcher.await;
        assert!((128 << 10..=512 << 10).contains(&max_bytes), "{max_bytes} bytes at most");
        drained(&server, 0).await;
    });
}

/// An export that its owner can take away.
struct Revocable(Rc<CachedDevice>, Rc<Revocation>);

impl Exports for Revocable {
    fn list(&self, _: &Peer) -> Vec<ExportEntry> {
        Vec::new()
    }
    fn open(&self, _: &str, _: &Peer) -> Result<ExportHandle, Refusal> {
        let revocation = Some(self.1.clone());
        Ok(ExportHandle { revocation, ..ExportHandle::new(self.0.clone()) })
    }
}

#[test]
fn client_of_a_revoked_export_has_seconds_to_take_its_last_replies() {
    Runtime::simulated(12).block_on(async {
        let revocation = Revocation::new();
        let device = CachedDevice::new(1 << 20);
        let exports = Revocable(device, revocation.clone());
        let server = Server::new(Rc::new(exports), Limits::default());
        let (idle, quick, slow) = (
            connect(&server).await,
            into_transmission(&server).await,
            into_transmission(&server).await,
        );
        let reads = request(command::READ, 0, 1 << 20).encode().repeat(4);
        for stream in [&quick, &slow] {
            stream.send_all(reads.clone()).await.0.unwrap();
        }
        rt::sleep(Nanos::from_secs(1)).await;
        revocation.revoke();
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(idle.flush().await.is_err());
        let replies = 4 * (16 + (1 << 20));
        quick.recv_exact(vec![0; replies], 0).await.0.unwrap();
        assert!(ended(&quick).await);
        rt::sleep(Nanos::from_secs(10)).await;
        drained(&server, 0).await;
        let (outcome, _) = slow.recv_exact(vec![0; replies], 0).await;
        assert!(outcome.is_err(), "it was cut off");
    });
}
