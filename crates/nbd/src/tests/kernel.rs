//! Connections that the owner has given to the kernel of the machine.

use std::rc::Rc;

use forebay_device::{BlockDevice, ErrorKind, IoBuf, ZeroOptions};
use forebay_rt as rt;
use forebay_rt::{Runtime, net};
use forebay_units::Nanos;

use super::tls::any_tls;
use super::{CachedDevice, pattern};
use crate::client::{Client, ClientError, RequestError};
use crate::exports::{ExportEntry, ExportHandle, Exports, Peer};
use crate::handshake::Refusal;
use crate::limits::Limits;
use crate::server::Server;
use crate::wire::{Request, command};

/// One device, which the kernel gets without a cache that it would have to flush.
struct OneDevice(Rc<CachedDevice>);

impl Exports for OneDevice {
    fn list(&self, _peer: &Peer) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn open(&self, _name: &str, peer: &Peer) -> Result<ExportHandle, Refusal> {
        let mut handle = ExportHandle::new(self.0.clone());
        handle.write_through = peer.is_kernel;
        Ok(handle)
    }
}

async fn kernel(server: &Rc<Server>) -> Result<Client, ClientError> {
    let (here, there) = net::pair();
    assert!(server.adopt_for_kernel(there), "there was no room");
    Client::open(here, "vol", "kernel", false, None).await
}

#[test]
fn kernel_is_told_of_no_cache_and_its_writes_are_durable() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = Server::new(Rc::new(OneDevice(device.clone())), Limits::default());
        let client = kernel(&server).await.unwrap();
        assert!(!client.geometry().volatile_cache);
        client.write(8192, pattern(4096, 1), false).await.unwrap();
        assert!(device.durable.borrow()[8192..][..4096] == pattern(4096, 1)[..]);
        client.discard(8192, 4096, false).await.unwrap();
        assert!(device.durable.borrow()[8192..][..4096].iter().all(|byte| *byte == 0));
        client.write(8192, pattern(4096, 3), false).await.unwrap();
        client.write_zeroes(8192, 4096, ZeroOptions::default()).await.unwrap();
        assert!(device.durable.borrow()[8192..][..4096].iter().all(|byte| *byte == 0));
        // Others have the cache, and flush it.
        let other = super::connect(&server).await;
        assert!(other.geometry().volatile_cache);
        other.write(0, pattern(4096, 2), false).await.unwrap();
        assert!(device.durable.borrow()[..4096].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn limit_of_a_request_is_for_other_clients() {
    Runtime::simulated(4).block_on(async {
        let limits =
            Limits { request_max_bytes: 4096, connection_bytes_max: 16384, ..Default::default() };
        let device = CachedDevice::new(2 << 20);
        let server = Server::new(Rc::new(OneDevice(device.clone())), limits);
        let client = kernel(&server).await.unwrap();
        client.write_once(0, pattern(1 << 20, 5), false).await.unwrap();
        let read = client.read_once(0, IoBuf::zeroed(1 << 20)).await.unwrap();
        assert!(read[..] == pattern(1 << 20, 5)[..]);
        let other = super::connect(&server).await;
        assert!(other.write_once(0, pattern(8192, 5), false).await.is_err());
        assert_eq!(server.bytes_in_flight(), 0);
    });
}

#[test]
fn kernel_needs_no_tls_where_others_do() {
    Runtime::simulated(2).block_on(async {
        let exports = Rc::new(OneDevice(CachedDevice::new(1 << 20)));
        let server = Server::with_tls(exports, Limits::default(), any_tls());
        assert!(kernel(&server).await.is_ok());
        let (here, there) = net::pair();
        assert!(server.adopt(there));
        let other = Client::open(here, "vol", "other", false, None).await;
        assert!(matches!(other, Err(ClientError::Refused { .. })));
    });
}

#[test]
fn server_that_ends_leaves_requests_of_the_kernel_without_an_answer() {
    for seed in 0..20 {
        Runtime::simulated(seed).block_on(async {
            let device = CachedDevice::new(1 << 20);
            let limits = Limits {
                request_max_bytes: 4096,
                connection_bytes_max: 16384,
                ..Default::default()
            };
            let server = Server::new(Rc::new(OneDevice(device.clone())), limits);
            let client = Rc::new(kernel(&server).await.unwrap());
            let writes: Vec<_> = (0..40u64)
                .map(|i| {
                    let client = client.clone();
                    rt::spawn(
                        async move { client.write_once(i * 4096, pattern(4096, i), false).await },
                    )
                })
                .collect();
            rt::sleep(Nanos::from_millis(3)).await;
            assert_eq!(server.stop(Nanos::from_secs(10)).await, 0);
            assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
            let outcomes = rt::join_all(writes).await;
            let lost = outcomes.iter().filter(|o| matches!(o, Err(RequestError::Lost(_)))).count();
            let done = outcomes.iter().filter(|o| o.is_ok()).count();
            // An error would be the last word on a request.
            assert_eq!(lost + done, 40, "{outcomes:?}");
            assert!(lost > 20, "{done} were performed");
        });
    }
}

// It would outlive the volumes.
#[test]
fn server_that_ends_takes_no_connection_of_the_kernel() {
    Runtime::simulated(7).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = Server::new(Rc::new(OneDevice(device)), Limits::default());
        assert_eq!(server.stop(Nanos::from_secs(10)).await, 0);
        let (_here, there) = net::pair();
        assert!(!server.adopt_for_kernel(there));
    });
}

#[test]
fn failure_of_a_server_that_ends_is_no_answer_either() {
    Runtime::simulated(3).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = Server::new(Rc::new(OneDevice(device.clone())), Limits::default());
        let client = Rc::new(kernel(&server).await.unwrap());
        let write = rt::spawn({
            let client = client.clone();
            async move { client.write_once(0, pattern(4096, 1), false).await }
        });
        while device.writes_begun.get() == 0 {
            rt::sleep(Nanos(1000)).await;
        }
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        server.stop(Nanos::from_secs(10)).await;
        assert!(matches!(write.await, Err(RequestError::Lost(_))));
        assert_eq!(server.bytes_in_flight(), 0);
    });
}

#[test]
fn failures_are_answered_unless_a_server_of_the_kernel_ends() {
    Runtime::simulated(6).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = Server::new(Rc::new(OneDevice(device.clone())), Limits::default());
        let client = kernel(&server).await.unwrap();
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        let failed = client.write_once(0, pattern(4096, 1), false).await;
        assert!(matches!(failed, Err(RequestError::Server { .. })), "{failed:?}");
        // No next server gets the requests of other clients.
        let other = super::connect(&server).await;
        let begun = device.writes_begun.get();
        let write = rt::spawn(async move { other.write_once(0, pattern(4096, 2), false).await });
        while device.writes_begun.get() == begun {
            rt::sleep(Nanos(1000)).await;
        }
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        assert_eq!(server.stop(Nanos::from_secs(10)).await, 0);
        let failed = write.await;
        assert!(matches!(failed, Err(RequestError::Server { .. })), "{failed:?}");
    });
}

#[test]
fn request_that_gets_no_answer_holds_no_memory_while_others_run() {
    Runtime::simulated(5).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let server = Server::new(Rc::new(OneDevice(device.clone())), Limits::default());
        let client = Rc::new(kernel(&server).await.unwrap());
        let writes = [0, 4096].map(|at| {
            let client = client.clone();
            rt::spawn(async move { client.write_once(at, pattern(4096, at), false).await })
        });
        while device.writes_begun.get() < 2 {
            rt::sleep(Nanos(1000)).await;
        }
        let both_bytes = server.bytes_in_flight();
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        let stop = rt::spawn({
            let server = server.clone();
            async move { server.stop(Nanos::from_secs(10)).await }
        });
        while device.in_flight.get() == 2 {
            rt::sleep(Nanos(1000)).await;
        }
        assert_eq!(device.in_flight.get(), 1, "the other write has not ended");
        assert_eq!(server.bytes_in_flight(), both_bytes / 2);
        assert_eq!(stop.await, 0);
        for write in writes {
            assert!(write.await.is_err());
        }
        assert_eq!(server.bytes_in_flight(), 0);
    });
}

#[test]
fn change_of_a_connection_that_was_given_up_does_not_begin() {
    for (seed, command) in
        (0..24).zip([command::WRITE, command::TRIM, command::WRITE_ZEROES].into_iter().cycle())
    {
        Runtime::simulated(seed).block_on(async move {
            let limits = Limits {
                request_max_bytes: 4096,
                connection_bytes_max: 16384,
                ..Default::default()
            };
            let device = CachedDevice::new(1 << 20);
            let server = Server::new(Rc::new(OneDevice(device.clone())), limits);
            let (here, there) = net::pair();
            assert!(server.adopt_for_kernel(there));
            let mut bytes = 3u32.to_be_bytes().to_vec();
            bytes.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
            let count = 100;
            for n in 0..count {
                let (offset_bytes, len_bytes) = (n * 4096, 4096);
                let request = Request { flags: 0, command, cookie: n, offset_bytes, len_bytes };
                bytes.extend(request.encode());
                if command == command::WRITE {
                    bytes.extend(&pattern(4096, n)[..]);
                }
            }
            here.send_all(bytes).await.0.unwrap();
            let changes = || device.writes_begun.get() + device.holes_begun.get();
            while changes() == 0 {
                rt::sleep(Nanos(10_000)).await;
            }
            here.shutdown();
            let begun = changes();
            rt::sleep(Nanos::from_secs(1)).await;
            assert!(begun < count, "the others wait for memory");
            assert_eq!(changes(), begun, "one began after its connection");
            assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
        });
    }
}

// The kernel has sent it again, and what was written over it since must stay.
#[test]
fn write_whose_payload_ends_with_its_connection_does_not_begin() {
    for early in [0, 1000, 4096] {
        Runtime::simulated(early as u64).block_on(async move {
            let device = CachedDevice::new(1 << 20);
            let server = Server::new(Rc::new(OneDevice(device.clone())), Limits::default());
            let (here, there) = net::pair();
            assert!(server.adopt_for_kernel(there));
            let mut bytes = 3u32.to_be_bytes().to_vec();
            bytes.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
            let (offset_bytes, len_bytes, command) = (0, 4096, command::WRITE);
            let request = Request { flags: 0, command, cookie: 1, offset_bytes, len_bytes };
            bytes.extend(request.encode());
            let payload = pattern(4096, 1)[..].to_vec();
            let (first, rest) = payload.split_at(early);
            bytes.extend(first);
            here.send_all(bytes).await.0.unwrap();
            rt::sleep(Nanos::from_millis(10)).await;
            let begun = u64::from(early == payload.len());
            assert_eq!(device.writes_begun.get(), begun);
            here.send_all(rest.to_vec()).await.0.unwrap();
            here.shutdown();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(device.writes_begun.get(), begun, "it began after its connection");
        });
    }
}
