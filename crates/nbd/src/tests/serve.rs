use forebay_device::Cause;
use forebay_rt::Runtime;
use forebay_sim::faults::{Hung, Ops};

use super::*;
use crate::client::RequestError;
use crate::wire::{Request, command, command_flag, errno, status_flag};

fn simulated<F: Future<Output = ()> + 'static>(seeds: u64, test: impl Fn() -> F) {
    for seed in 0..seeds {
        Runtime::simulated(seed).block_on(test());
    }
}

/// The errno with which the server answered.
fn server_error(outcome: Result<(), RequestError>) -> u32 {
    match outcome {
        Err(RequestError::Server { error, .. }) => error,
        other => panic!("expected an error of the server, not {other:?}"),
    }
}

const REGION_BYTES: u64 = 64 << 10;

/// One task with its own part of the volume, which compares with a vector.
async fn exercise_region(client: Rc<Client>, region: u64, rounds: u32) {
    let mut model = vec![0u8; REGION_BYTES as usize];
    let mut stored = vec![false; REGION_BYTES as usize / 512];
    let base = region * REGION_BYTES;
    for round in 0..rounds {
        let sectors = REGION_BYTES / 512;
        let first = rt::random_below(sectors);
        let count = 1 + rt::random_below((sectors - first).min(80));
        let (start, len) = ((first * 512) as usize, (count * 512) as usize);
        let (range, marks) = (start..start + len, first as usize..(first + count) as usize);
        let at = base + start as u64;
        match rt::random_below(6) {
            0 | 1 => {
                let data = pattern(len, region * 1000 + u64::from(round));
                client.write(at, data.clone(), round % 3 == 0).await.unwrap();
                model[range].copy_from_slice(&data);
                stored[marks].fill(true);
            }
            2 => {
                client.trim(at, len as u32, false).await.unwrap();
                model[range].fill(0);
                stored[marks].fill(false);
            }
            3 => {
                let keep = rt::random_below(2) == 0;
                let flags = if keep { command_flag::NO_HOLE } else { 0 };
                client.zero(at, len as u32, flags).await.unwrap();
                model[range].fill(0);
                stored[marks].fill(keep);
            }
            4 if client.knows_allocation() => {
                let extents = client.block_status(at, len as u32, 0).await.unwrap();
                let mut sector = first as usize;
                let mut last = None;
                for extent in extents {
                    assert_ne!(
                        last.replace(extent.flags),
                        Some(extent.flags),
                        "equal neighbors are not merged"
                    );
                    let hole = status_flag::HOLE | status_flag::ZERO;
                    let expected = |stored: bool| if stored { 0 } else { hole };
                    for _ in 0..extent.len_bytes / 512 {
                        assert_eq!(expected(stored[sector]), extent.flags);
                        sector += 1;
                    }
                }
                assert_eq!(sector, (first + count) as usize, "the reply does not cover the range");
            }
            _ => {
                let back = client.read(at, IoBuf::recycled(len)).await.unwrap();
                assert!(back[..] == model[range], "round {round} of region {region}");
            }
        }
    }
    let back = client.read(base, IoBuf::recycled(REGION_BYTES as usize)).await.unwrap();
    assert!(back[..] == model[..]);
}

#[test]
fn concurrent_requests_on_many_connections_match_a_vector() {
    simulated(12, || async {
        let device = CachedDevice::new(16 * REGION_BYTES as usize);
        let server = server_of(device.clone(), Limits::default());
        let mut tasks = Vec::new();
        for connection in 0..4 {
            let stream = connect_raw(&server);
            // The first connection has simple replies.
            let client = Client::open(stream, "vol", "client", connection > 0, None).await;
            let client = Rc::new(client.unwrap());
            for lane in 0..4 {
                tasks.push(rt::spawn(exercise_region(client.clone(), connection * 4 + lane, 40)));
            }
        }
        rt::join_all(tasks).await;
        assert!(device.max_in_flight.get() > 4, "requests did not run concurrently");
        server.stop(Nanos::from_secs(1)).await;
        assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
    });
}

#[test]
fn flush_covers_completed_writes_of_every_connection() {
    simulated(20, || async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let (a, b) = (Rc::new(connect(&server).await), connect(&server).await);
        for round in 0..10u64 {
            let writes = (0..4).map(|i| {
                let a = a.clone();
                rt::spawn(async move { a.write(i * 8192, pattern(4096, round + i), false).await })
            });
            for outcome in rt::join_all(writes).await {
                outcome.unwrap();
            }
            b.flush().await.unwrap();
            for i in 0..4u64 {
                let start = i as usize * 8192;
                let kept = device.durable.borrow()[start..start + 4096].to_vec();
                assert!(
                    kept == pattern(4096, round + i)[..],
                    "lost after a flush on another connection"
                );
            }
        }
    });
}

#[test]
fn fua_makes_every_command_durable_at_its_reply() {
    simulated(5, || async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let client = connect(&server).await;
        let kept = |at: usize| device.durable.borrow()[at..at + 4096].to_vec();
        client.write_once(0, pattern(8192, 1), true).await.unwrap();
        assert!(kept(0) == pattern(8192, 1)[..4096]);
        client.zero(0, 4096, command_flag::FUA).await.unwrap();
        assert!(kept(0) == [0; 4096]);
        client.trim(4096, 4096, true).await.unwrap();
        assert!(kept(4096) == [0; 4096]);
        client.write_once(0, pattern(4096, 2), false).await.unwrap();
        assert!(kept(0) == [0; 4096], "the device has no volatile cache");
        // The flag is allowed, without an effect, on commands that write nothing.
        for (command, len_bytes) in [(command::FLUSH, 0), (command::CACHE, 4096)] {
            let flags = command_flag::FUA;
            client.submit(command, flags, 0, len_bytes, None, None).await.unwrap();
        }
        client.read_flagged(0, IoBuf::recycled(4096), command_flag::FUA).await.unwrap();
    });
}

/// Invalid requests for an export of `size` bytes: command, flags, offset, length, errno.
fn invalid_requests(size: u64) -> [(u16, u16, u64, u32, u32); 18] {
    [
        (77, 0, 0, 512, errno::EINVAL),
        (command::TRIM, command_flag::DF, 0, 512, errno::EINVAL),
        (command::FLUSH, 1 << 15, 0, 0, errno::EINVAL),
        (command::TRIM, 0, 100, 512, errno::EINVAL),
        (command::TRIM, 0, 512, 100, errno::EINVAL),
        (command::TRIM, 0, size, 512, errno::EINVAL),
        (command::TRIM, 0, u64::MAX - 511, 512, errno::EINVAL),
        (command::TRIM, 0, 0, u32::MAX - 511, errno::EINVAL),
        (command::WRITE_ZEROES, 0, size - 512, 1024, errno::ENOSPC),
        (command::CACHE, 0, size, 512, errno::EINVAL),
        (command::READ, 0, 512, 0, errno::EINVAL),
        (command::WRITE, 0, 512, 0, errno::EINVAL),
        (command::TRIM, 0, 512, 0, errno::EINVAL),
        (command::WRITE_ZEROES, 0, 512, 0, errno::EINVAL),
        (command::CACHE, 0, 512, 0, errno::EINVAL),
        (command::BLOCK_STATUS, 0, 0, 0, errno::EINVAL),
        (command::BLOCK_STATUS, 0, size, 512, errno::EINVAL),
        (
            command::WRITE_ZEROES,
            command_flag::FAST_ZERO | command_flag::NO_HOLE,
            0,
            4096,
            errno::ENOTSUP,
        ),
    ]
}

#[test]
fn invalid_requests_get_errors_and_the_connection_continues() {
    simulated(4, || async {
        let device = CachedDevice::new((1 << 20) + 100);
        let server = server_of(device.clone(), Limits::default());
        for structured in [true, false] {
            let stream = connect_raw(&server);
            let client = Client::open(stream, "vol", "c", structured, None).await.unwrap();
            assert_eq!(client.size_bytes(), 1 << 20, "whole blocks only");
            let ask = |command, flags, offset_bytes, len_bytes| {
                client.submit(command, flags, offset_bytes, len_bytes, None, None)
            };
            let size = 1u64 << 20;
            for (command, flags, offset, len, expected) in invalid_requests(size) {
                let got = server_error(ask(command, flags, offset, len).await.map(|_| ()));
                assert_eq!(got, expected, "command {command} flags {flags} {offset}+{len}");
            }
            // Only a reply in chunks can be asked not to have several.
            let unfragmented = client.read_flagged(0, IoBuf::recycled(512), command_flag::DF).await;
            match structured {
                true => assert_eq!(unfragmented.unwrap().len(), 512),
                false => assert_eq!(server_error(unfragmented.map(|_| ())), errno::EINVAL),
            }
            if !structured {
                // Its reply has a chunk for each context, and none would be no reply.
                let status = Box::pin(ask(command::BLOCK_STATUS, 0, 0, 512));
                let status = rt::timeout(Nanos::from_secs(9), status).await.expect("no reply");
                assert_eq!(server_error(status.map(|_| ())), errno::EINVAL, "no context");
            }
            client.cache(size - 512, 512).await.expect("the last sector is no farther");
            let past = client.read_once(size, IoBuf::recycled(512)).await;
            assert_eq!(server_error(past.map(|_| ())), errno::EINVAL);
            let past = client.write_once(size, pattern(512, 0), false).await;
            assert_eq!(server_error(past), errno::ENOSPC);
            let odd = client.write_once(7, pattern(512, 0), false).await;
            assert_eq!(server_error(odd), errno::EINVAL);
            let too_long = client.read_once(0, IoBuf::recycled((32 << 20) + 512)).await;
            assert_eq!(server_error(too_long.map(|_| ())), errno::EINVAL);
            // The server discards the payload of a refused write, and reads on behind it.
            let too_long = client.write_once(0, pattern((32 << 20) + 512, 0), false).await;
            assert_eq!(server_error(too_long), errno::ENOSPC);
            client.write(512, pattern(512, 3), false).await.unwrap();
            let back = client.read(512, IoBuf::recycled(512)).await.unwrap();
            assert!(back[..] == pattern(512, 3)[..]);
            client.close().await;
        }
        assert_eq!(device.writes_begun.get(), 2);
    });
}

#[test]
fn req_one_gives_one_extent_and_df_one_chunk() {
    Runtime::simulated(1).block_on(async {
        let server =
            server_of(CachedDevice::new(1 << 20), Limits { extents_max: 4, ..Default::default() });
        let client = connect(&server).await;
        for i in 0..8 {
            client.write(i * 8192, pattern(4096, i), false).await.unwrap();
        }
        let one = client.block_status(0, 1 << 20, command_flag::REQ_ONE).await.unwrap();
        assert_eq!((one.len(), one[0].len_bytes, one[0].flags), (1, 4096, 0));
        let some = client.block_status(0, 1 << 20, 0).await.unwrap();
        assert_eq!(some.len(), 4, "more or fewer extents than the limit");
        let rest = client.block_status(7 * 8192 + 4096, 4096, 0).await.unwrap();
        assert_eq!((rest.len(), rest[0].len_bytes), (1, 4096), "past the end of the request");
        let data = client.read_flagged(0, IoBuf::recycled(65536), command_flag::DF).await.unwrap();
        assert!(data[..4096] == pattern(4096, 0)[..] && data[4096..8192] == [0; 4096]);
    });
}

#[test]
fn device_errors_keep_their_errno_and_hide_the_device_name() {
    simulated(3, || async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let client = connect(&server).await;
        let below = || {
            let kind = ErrorKind::Os { errno: 5 };
            DeviceError::new("secret-path", Operation::Read, 0, 512, kind)
        };
        let corrupt = || ErrorKind::Corrupt { cause: Cause::new(below()) };
        let cases = [
            (ErrorKind::NoSpace, errno::ENOSPC),
            (ErrorKind::Gone, errno::EIO),
            (ErrorKind::ReadOnly, errno::EPERM),
            (ErrorKind::Unsupported, errno::ENOTSUP),
            (corrupt(), errno::EIO),
            (ErrorKind::Os { errno: 121 }, errno::EIO),
        ];
        for (kind, expected) in cases {
            *device.fail_next.borrow_mut() = Some(kind.clone());
            let write = client.write_once(0, pattern(512, 0), false).await;
            assert_eq!(server_error(write), expected);
            *device.fail_next.borrow_mut() = Some(kind);
            match client.read_once(0, IoBuf::recycled(512)).await.unwrap_err() {
                RequestError::Server { error, text } => {
                    assert_eq!(error, expected);
                    assert!(
                        !text.is_empty()
                            && !text.contains(device.name())
                            && !text.contains("secret"),
                        "{text}"
                    );
                }
                other => panic!("{other}"),
            }
        }
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        let flush = client.flush().await.unwrap_err();
        assert_eq!(flush.errno(), 5, "{flush}");
        client.flush().await.unwrap();
    });
}

// 28 bytes of a request must neither hold much memory nor cause much work.
#[test]
fn prefetch_reads_a_range_once_in_short_steps_and_no_more_than_a_read_may() {
    Runtime::simulated(1).block_on(async {
        const MIB: u64 = 1 << 20;
        let device = CachedDevice::new(8 << 20);
        let limits = Limits { request_max_bytes: 5 << 19, ..Default::default() };
        let client = connect(&server_of(device.clone(), limits)).await;
        for (offset, len, expected) in [
            (512, MIB, vec![(512, MIB)]),
            (512, 2 * MIB + 512, vec![(512, MIB), (512 + MIB, MIB), (512 + 2 * MIB, 512)]),
            (0, 8 * MIB, vec![(0, MIB), (MIB, MIB), (2 * MIB, MIB / 2)]),
        ] {
            client.cache(offset, len as u32).await.unwrap();
            assert_eq!(device.reads.take(), expected, "{len} bytes at {offset}");
        }
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        assert_eq!(server_error(client.cache(0, 4096).await), errno::EIO);
    });
}

#[test]
fn read_only_export_refuses_every_kind_of_write() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        device.geometry.set(Geometry { read_only: true, ..device.geometry.get() });
        let server = server_of(device.clone(), Limits::default());
        let client = connect(&server).await;
        assert!(client.geometry().read_only);
        assert_eq!(server_error(client.write_once(0, pattern(512, 0), false).await), errno::EPERM);
        assert_eq!(server_error(client.trim(0, 512, false).await), errno::EPERM);
        assert_eq!(server_error(client.zero(0, 512, 0).await), errno::EPERM);
        client.read(0, IoBuf::recycled(512)).await.unwrap();
        client.flush().await.unwrap();
        assert_eq!(device.writes_begun.get(), 0);
    });
}

#[test]
fn grown_volume_is_served_to_its_new_end() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        device.geometry.set(Geometry { size_bytes: 4096, ..device.geometry.get() });
        let server = server_of(device.clone(), Limits::default());
        let client = connect(&server).await;
        let write = || client.write_once(8192, pattern(512, 0), false);
        assert_eq!(server_error(write().await), errno::ENOSPC);
        device.geometry.set(Geometry { size_bytes: 1 << 20, ..device.geometry.get() });
        write().await.unwrap();
    });
}

#[test]
fn stopped_server_has_left_its_addresses() {
    Runtime::real().unwrap().block_on(async {
        let path = std::env::temp_dir().join(format!("forebay-stopped-{}", std::process::id()));
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        server.listen_unix(&path, 0o600).unwrap();
        assert!(path.exists());
        assert_eq!(server.stop(Nanos::from_secs(5)).await, 0);
        // Later its end would remove the socket of the next server.
        assert!(!path.exists());
    });
}

#[test]
fn stop_answers_requests_in_flight_and_none_after() {
    simulated(30, || async {
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let client = Rc::new(connect(&server).await);
        let writes: Vec<_> = (0..32u64)
            .map(|i| {
                let client = client.clone();
                rt::spawn(async move { client.write_once(i * 4096, pattern(4096, i), true).await })
            })
            .collect();
        rt::sleep(Nanos(rt::random_below(3_000_000))).await;
        assert_eq!(server.stop(Nanos::from_secs(10)).await, 0);
        assert_eq!((server.connections(), server.bytes_in_flight()), (0, 0));
        assert!(!server.adopt(net::pair().0), "a stopped server took a connection");
        let begun = device.writes_begun.get();
        let mut done = 0;
        for (i, outcome) in rt::join_all(writes).await.into_iter().enumerate() {
            match outcome {
                Ok(()) => {
                    done += 1;
                    let kept = device.durable.borrow()[i * 4096..][..4096].to_vec();
                    assert!(kept == pattern(4096, i as u64)[..]);
                }
                Err(
                    RequestError::Server { error: errno::ESHUTDOWN, .. } | RequestError::Lost(_),
                ) => {}
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(done, begun, "a write that reached the device got no answer");
    });
}

#[test]
fn stop_refuses_requests_that_have_not_begun() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let limits =
            Limits { request_max_bytes: 4096, connection_bytes_max: 16384, ..Default::default() };
        let server = server_of(device.clone(), limits);
        let client = Rc::new(connect(&server).await);
        let writes: Vec<_> = (0..40u64)
            .map(|i| {
                let client = client.clone();
                rt::spawn(async move { client.write_once(i * 4096, pattern(4096, i), true).await })
            })
            .collect();
        // All have arrived by now; two at a time fit into the limit.
        rt::sleep(Nanos::from_millis(3)).await;
        assert_eq!(server.stop(Nanos::from_secs(10)).await, 0);
        let outcomes = rt::join_all(writes).await;
        let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as u64;
        let refused: Vec<u32> =
            outcomes.into_iter().filter(Result::is_err).map(server_error).collect();
        assert!(refused.iter().all(|error| *error == errno::ESHUTDOWN));
        assert!(refused.len() > 20, "{done} were performed");
        assert_eq!(done, device.writes_begun.get());
    });
}

#[test]
fn requests_that_fail_because_the_server_ends_are_told_so() {
    Runtime::simulated(1).block_on(async {
        let device = CachedDevice::new(1 << 20);
        let hung = Hung::new(device.clone());
        let exports = FixedExports::new().with("vol", hung.clone());
        let server = Server::new(Rc::new(exports), Limits::default());
        let client = connect(&server).await;
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        assert_eq!(server_error(client.flush_once().await), errno::EIO, "nothing ends");
        *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
        hung.hang(Ops::FLUSH);
        let flush = rt::spawn(async move { client.flush_once().await });
        rt::sleep(Nanos::from_secs(1)).await;
        let stop = rt::spawn(async move { server.stop(Nanos::from_secs(10)).await });
        rt::sleep(Nanos::from_secs(1)).await;
        hung.release();
        assert_eq!(server_error(flush.await), errno::ESHUTDOWN);
        assert_eq!(stop.await, 0);
    });
}

#[test]
fn stop_does_not_wait_without_a_bound() {
    Runtime::simulated(1).block_on(async {
        // The server disconnects a client that takes no replies.
        let device = CachedDevice::new(1 << 20);
        let server = server_of(device.clone(), Limits::default());
        let stream = connect_raw(&server);
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
        for _ in 0..8 {
            let (command, len_bytes) = (command::READ, 1 << 20);
            let request = Request { flags: 0, command, cookie: 1, offset_bytes: 0, len_bytes };
            bytes.extend(request.encode());
        }
        stream.send_all(bytes).await.0.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(server.stop(Nanos::from_secs(2)).await, 0);
        drop(stream);

        // The server abandons a connection whose device hangs, and counts it.
        let hung = Hung::new(device);
        hung.hang(Ops::FLUSH);
        let exports = FixedExports::new().with("vol", hung);
        let server = Server::new(Rc::new(exports), Limits::default());
        let client = Rc::new(connect(&server).await);
        let flush = rt::spawn(async move { client.flush_once().await });
        rt::sleep(Nanos::from_secs(1)).await;
        assert_eq!(server.stop(Nanos::from_secs(2)).await, 1);
        assert!(matches!(flush.await, Err(RequestError::Lost(_))));
    });
}
