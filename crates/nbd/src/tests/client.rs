use forebay_rt::Runtime;

use super::*;
use crate::client::{ClientError, ConnectionLoss, OptionError, RequestError, WrongLength};
use crate::uri::{UriError, UriFlaw};
use crate::wire::{
    CHUNK_DONE, ChunkHeader, Greeting, OptionReplyHeader, Request, SimpleReply, chunk, command,
    option, reply, transmission_flag as flag,
};

/// A server that sends exactly what the test tells it to.
struct ScriptedServer(net::Stream);

impl ScriptedServer {
    /// Runs the handshake: refuses GO if `old`, and structured replies unless `structured`.
    async fn new(stream: net::Stream, structured: bool, old: bool) -> Self {
        Self::with_flags(stream, 0x1ff, structured, old).await
    }

    async fn with_flags(stream: net::Stream, flags: u16, structured: bool, old: bool) -> Self {
        let script = Self(stream);
        script.say(&Greeting { flags: 3 }.encode()).await;
        script.hear(4).await;
        let refuse = reply::ERR_UNSUP;
        script.hear(16).await;
        let kind = if structured { reply::ACK } else { refuse };
        script.answer(option::STRUCTURED_REPLY, kind, &[]).await;
        if structured {
            let header = script.hear(16).await;
            script.hear(header[15] as usize).await;
            script
                .answer(option::SET_META_CONTEXT, reply::META_CONTEXT, b"\0\0\0\x05base:allocation")
                .await;
            script.answer(option::SET_META_CONTEXT, reply::ACK, &[]).await;
        }
        let header = script.hear(16).await;
        script.hear(header[15] as usize).await;
        let mut export = (1u64 << 20).to_be_bytes().to_vec();
        export.extend(flags.to_be_bytes());
        if old {
            script.answer(option::GO, refuse, b"what?").await;
            script.hear(16 + 3).await;
            script.say(&export).await;
        } else {
            let info: Vec<u8> = [&[0, 0][..], &export].concat();
            script.answer(option::GO, reply::INFO, &info).await;
            script.answer(option::GO, reply::INFO, &[0, 99, 1, 2, 3]).await;
            script.answer(option::GO, reply::ACK, &[]).await;
        }
        script
    }

    async fn say(&self, bytes: &[u8]) {
        self.0.send_all(bytes.to_vec()).await.0.unwrap();
    }

    async fn hear(&self, len: usize) -> Vec<u8> {
        let (outcome, bytes) = self.0.recv_exact(vec![0; len], 0).await;
        outcome.unwrap();
        bytes
    }

    async fn answer(&self, option: u32, kind: u32, data: &[u8]) {
        let header = OptionReplyHeader { option, kind, len_bytes: data.len() as u32 };
        self.say(&[&header.encode()[..], data].concat()).await;
    }

    async fn cookie(&self) -> u64 {
        u64::from_be_bytes(self.hear(28).await[8..16].try_into().unwrap())
    }

    async fn chunk(&self, cookie: u64, kind: u16, done: bool, data: &[u8]) {
        let flags = if done { CHUNK_DONE } else { 0 };
        let header = ChunkHeader { flags, kind, cookie, len_bytes: data.len() as u32 };
        self.say(&[&header.encode()[..], data].concat()).await;
    }
}

fn data_at(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes()[..], bytes].concat()
}

fn with_script<F, G>(
    structured: bool,
    old: bool,
    act: F,
    check: impl FnOnce(Rc<Client>) -> G + 'static,
) where
    F: AsyncFnOnce(ScriptedServer) + 'static,
    G: Future<Output = ()> + 'static,
{
    Runtime::simulated(3).block_on(async move {
        let (here, there) = net::pair();
        let script =
            rt::spawn(async move { act(ScriptedServer::new(there, structured, old).await).await });
        let client = Client::over(here, "vol", "script").await.unwrap();
        check(Rc::new(client)).await;
        script.await;
    });
}

#[test]
fn read_is_put_together_from_chunks_and_holes_in_any_order() {
    with_script(
        true,
        false,
        async |script: ScriptedServer| {
            let (a, b) = (script.cookie().await, script.cookie().await);
            script.chunk(a, chunk::OFFSET_DATA, false, &data_at(512, &[2; 512])).await;
            script.chunk(b, chunk::OFFSET_DATA, true, &data_at(0, &[9; 512])).await;
            let hole = [&0u64.to_be_bytes()[..], &512u32.to_be_bytes()].concat();
            script.chunk(a, chunk::OFFSET_HOLE, false, &hole).await;
            script.chunk(a, chunk::NONE, true, &[]).await;
            script.cookie().await;
        },
        |client| async move {
            let other = client.clone();
            let first =
                rt::spawn(
                    async move { other.read_once(0, IoBuf::copy_of(&[7; 1024])).await.unwrap() },
                );
            rt::sleep(Nanos::from_millis(1)).await;
            let second = client.read_once(0, IoBuf::recycled(512)).await.unwrap();
            let first = first.await;
            assert!(first[..512] == [0; 512] && first[512..] == [2; 512] && second[..] == [9; 512]);
        },
    );
}

#[test]
fn read_reply_without_all_data_is_an_error() {
    with_script(
        true,
        false,
        async |script: ScriptedServer| {
            let cookie = script.cookie().await;
            script.chunk(cookie, chunk::OFFSET_DATA, true, &data_at(0, &[1; 512])).await;
            script.cookie().await;
        },
        |client| async move {
            let outcome = client.read_once(0, IoBuf::recycled(1024)).await;
            let expected = WrongLength { expected_bytes: 1024, found_bytes: 512 };
            assert!(matches!(outcome, Err(RequestError::WrongLength(e)) if e == expected));
        },
    );
}

#[test]
fn error_chunk_fails_its_read() {
    with_script(
        true,
        false,
        async |script: ScriptedServer| {
            let cookie = script.cookie().await;
            script.chunk(cookie, chunk::OFFSET_DATA, false, &data_at(0, &[1; 512])).await;
            let error =
                [&28u32.to_be_bytes()[..], &[0, 4], b"full", &512u64.to_be_bytes()].concat();
            script.chunk(cookie, chunk::ERROR_OFFSET, true, &error).await;
            script.cookie().await;
        },
        |client| async move {
            let outcome = client.read_once(0, IoBuf::recycled(1024)).await.unwrap_err();
            let RequestError::Server { error, text } = outcome else { panic!("{outcome}") };
            assert_eq!((error, text.as_str()), (28, "full"));
        },
    );
}

#[test]
fn wrong_replies_fail_every_request_without_panic() {
    let wrong: Vec<(&str, Vec<u8>)> = vec![
        ("unknown cookie", SimpleReply { error: 0, cookie: 999 }.encode().to_vec()),
        ("no magic", vec![0x55; 64]),
        ("end of stream", vec![]),
    ];
    for (what, bytes) in wrong {
        with_script(
            true,
            false,
            async move |script: ScriptedServer| {
                script.cookie().await;
                script.cookie().await;
                if !bytes.is_empty() {
                    script.say(&bytes).await;
                }
            },
            move |client| async move {
                let other = client.clone();
                let write =
                    rt::spawn(async move { other.write_once(0, pattern(512, 1), false).await });
                let read = client.read_once(0, IoBuf::recycled(512)).await;
                assert!(matches!(read, Err(RequestError::Lost(_))), "{what}: {read:?}");
                // The payload of the write may have been sent; its reply never came.
                assert!(matches!(write.await, Err(RequestError::Lost(_))), "{what}");
                assert!(matches!(client.flush_once().await, Err(RequestError::Lost(_))), "{what}");
                assert_eq!(client.in_flight(), 0);
            },
        );
    }
    for (offset, len) in [(512u64, 1024usize), (1 << 40, 512), (u64::MAX, 512)] {
        with_script(
            true,
            false,
            async move |script: ScriptedServer| {
                let cookie = script.cookie().await;
                script
                    .chunk(cookie, chunk::OFFSET_DATA, true, &data_at(offset, &vec![1; len]))
                    .await;
            },
            |client| async move {
                let read = client.read_once(0, IoBuf::recycled(1024)).await;
                let Err(RequestError::Lost(loss)) = read else { panic!("{read:?}") };
                assert!(matches!(*loss, ConnectionLoss::DataOutsideRange), "{loss}");
            },
        );
    }
}

#[test]
fn client_works_with_servers_older_than_go() {
    with_script(
        false,
        true,
        async |script: ScriptedServer| {
            let cookie = script.cookie().await;
            script.say(&SimpleReply { error: 0, cookie }.encode()).await;
            script.say(&[3; 512]).await;
            let cookie = script.cookie().await;
            script.say(&SimpleReply { error: 22, cookie }.encode()).await;
            script.cookie().await;
        },
        |client| async move {
            assert_eq!((client.size_bytes(), client.flags()), (1 << 20, 0x1ff));
            let read = client.read(0, IoBuf::recycled(512)).await.unwrap();
            assert!(read[..] == [3; 512]);
            assert_eq!(client.flush().await.unwrap_err().errno(), 5);
            let runs = client.allocation(0, 4096).await.unwrap();
            assert_eq!(runs, [Allocation { len_bytes: 4096, hole: false }]);
        },
    );
}

#[test]
fn abandoned_request_does_not_disturb_others() {
    for seed in 0..20 {
        Runtime::simulated(seed).block_on(async {
            let device = CachedDevice::new(1 << 20);
            let server = server_of(device, Limits::default());
            let client = Rc::new(connect(&server).await);
            client.write(0, pattern(65536, 4), false).await.unwrap();
            for _ in 0..50 {
                let deadline = Nanos(rt::random_below(2_000_000));
                let read = rt::timeout(deadline, client.read(0, IoBuf::recycled(65536))).await;
                if let Ok(read) = read {
                    assert!(read.unwrap()[..] == pattern(65536, 4)[..]);
                }
            }
            client.flush().await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(client.in_flight(), 0, "a slot is not free");
        });
    }
}

#[test]
fn refused_and_unreachable_exports_are_different_errors() {
    Runtime::simulated(1).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let refused = Client::over(connect_raw(&server), "nothing", "x").await.err().unwrap();
        let ClientError::Refused { error, .. } = &refused else { panic!("{refused}") };
        assert_eq!(error.kind, reply::ERR_UNKNOWN);
        let line = "the server refuses export 'nothing': 'nothing': there is no such export";
        assert_eq!(refused.to_string(), line);
        let silent = ClientError::Refused {
            export: "v".into(),
            error: OptionError { kind: reply::ERR_POLICY, text: String::new() },
        };
        let line = "the server refuses export 'v': this client may not open it";
        assert_eq!(silent.to_string(), line);
        let (here, there) = net::pair();
        drop(there);
        let lost = Client::over(here, "vol", "x").await.err().unwrap();
        assert!(matches!(lost, ClientError::Lost(_)), "{lost}");
    });
    Runtime::real().unwrap().block_on(async {
        let unreachable =
            Client::connect("nbd+unix:///x?socket=/no/such/socket").await.err().unwrap();
        assert!(matches!(unreachable, ClientError::Connect { .. }), "{unreachable}");
        let error = Client::connect("http://x/y").await.err().unwrap();
        let flaw = UriFlaw::UnknownScheme;
        assert!(
            matches!(error, ClientError::Uri(UriError { flaw: f, .. }) if f == flaw),
            "{error}"
        );
    });
}

#[test]
fn long_requests_are_split_to_the_servers_maximum() {
    Runtime::simulated(2).block_on(async {
        let limits = Limits { request_max_bytes: 64 << 10, ..Default::default() };
        let server = server_of(CachedDevice::new(1 << 20), limits);
        let client = connect(&server).await;
        assert_eq!(client.max_bytes(), 64 << 10);
        let data = pattern(300 << 10, 8);
        client.write(4096, data.clone(), true).await.unwrap();
        let back = client.read(4096, IoBuf::recycled(300 << 10)).await.unwrap();
        assert!(back[..] == data[..]);
    });
}

#[test]
fn every_part_of_a_long_durable_write_is_durable() {
    Runtime::simulated(4).block_on(async {
        let limits = Limits { request_max_bytes: 64 << 10, ..Default::default() };
        let device = CachedDevice::new(1 << 20);
        let client = connect(&server_of(device.clone(), limits)).await;
        let data = pattern(300 << 10, 9);
        client.write(4096, data.clone(), true).await.unwrap();
        assert!(device.durable.borrow()[4096..][..data.len()] == data[..]);
    });
}

#[test]
fn durable_changes_end_with_a_flush_where_the_server_knows_no_fua() {
    Runtime::simulated(3).block_on(async {
        let (here, there) = net::pair();
        let flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES;
        let heard = rt::spawn(async move {
            let script = ScriptedServer::with_flags(there, flags, false, false).await;
            let mut heard = Vec::new();
            for _ in 0..6 {
                let request = Request::decode(&script.hear(28).await).unwrap();
                if request.command == command::WRITE {
                    script.hear(request.len_bytes as usize).await;
                }
                heard.push((request.command, request.flags));
                script.say(&SimpleReply { error: 0, cookie: request.cookie }.encode()).await;
            }
            heard
        });
        let client = Client::over(here, "vol", "script").await.unwrap();
        client.write(0, pattern(4096, 1), true).await.unwrap();
        client.discard(0, 4096, true).await.unwrap();
        let options = ZeroOptions { fua: true, ..ZeroOptions::default() };
        client.write_zeroes(0, 4096, options).await.unwrap();
        let heard = heard.await;
        let durable = |command| [(command, 0), (command::FLUSH, 0)];
        let changes = [command::WRITE, command::TRIM, command::WRITE_ZEROES];
        assert_eq!(heard, changes.map(durable).concat());
    });
}
