use forebay_rt::Runtime;

use super::*;
use crate::client::{ClientError, RequestError};
use crate::wire::{
    CHUNK_DONE, ChunkHeader, Greeting, OptionReplyHeader, SimpleReply, chunk, option, reply,
};

/// A server that says exactly what it is told, to see what the client makes of it.
struct Puppet(net::Stream);

impl Puppet {
    /// Shakes hands; refuses GO when `old`, and structured replies unless `structured`.
    async fn new(stream: net::Stream, structured: bool, old: bool) -> Self {
        let puppet = Self(stream);
        puppet.say(&Greeting { flags: 3 }.encode()).await;
        puppet.hear(4).await;
        let refuse = reply::ERR_UNSUP;
        puppet.hear(16).await;
        let kind = if structured { reply::ACK } else { refuse };
        puppet.answer(option::STRUCTURED_REPLY, kind, &[]).await;
        if structured {
            let header = puppet.hear(16).await;
            puppet.hear(header[15] as usize).await;
            puppet
                .answer(option::SET_META_CONTEXT, reply::META_CONTEXT, b"\0\0\0\x05base:allocation")
                .await;
            puppet.answer(option::SET_META_CONTEXT, reply::ACK, &[]).await;
        }
        let header = puppet.hear(16).await;
        puppet.hear(header[15] as usize).await;
        let mut export = (1u64 << 20).to_be_bytes().to_vec();
        export.extend(0x1ffu16.to_be_bytes());
        if old {
            puppet.answer(option::GO, refuse, b"what?").await;
            puppet.hear(16 + 3).await;
            puppet.say(&export).await;
        } else {
            let info: Vec<u8> = [&[0, 0][..], &export].concat();
            puppet.answer(option::GO, reply::INFO, &info).await;
            puppet.answer(option::GO, reply::INFO, &[0, 99, 1, 2, 3]).await;
            puppet.answer(option::GO, reply::ACK, &[]).await;
        }
        puppet
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

fn with_puppet<F, G>(
    structured: bool,
    old: bool,
    act: F,
    check: impl FnOnce(Rc<Client>) -> G + 'static,
) where
    F: AsyncFnOnce(Puppet) + 'static,
    G: Future<Output = ()> + 'static,
{
    Runtime::simulated(3).block_on(async move {
        let (here, there) = net::pair();
        let puppet = rt::spawn(async move { act(Puppet::new(there, structured, old).await).await });
        let client = Client::over(here, "vol", "puppet").await.unwrap();
        check(Rc::new(client)).await;
        puppet.await;
    });
}

#[test]
fn data_in_any_order_holes_and_words_are_put_together() {
    with_puppet(
        true,
        false,
        async |puppet: Puppet| {
            let (a, b) = (puppet.cookie().await, puppet.cookie().await);
            puppet.chunk(a, chunk::OFFSET_DATA, false, &data_at(512, &[2; 512])).await;
            puppet.chunk(b, chunk::OFFSET_DATA, true, &data_at(0, &[9; 512])).await;
            let hole = [&0u64.to_be_bytes()[..], &512u32.to_be_bytes()].concat();
            puppet.chunk(a, chunk::OFFSET_HOLE, false, &hole).await;
            puppet.chunk(a, chunk::NONE, true, &[]).await;
            puppet.cookie().await;
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
fn a_read_with_a_part_left_out_is_an_error() {
    with_puppet(
        true,
        false,
        async |puppet: Puppet| {
            let cookie = puppet.cookie().await;
            puppet.chunk(cookie, chunk::OFFSET_DATA, true, &data_at(0, &[1; 512])).await;
            puppet.cookie().await;
        },
        |client| async move {
            let outcome = client.read_once(0, IoBuf::recycled(1024)).await;
            assert!(matches!(outcome, Err(RequestError::Server { error: 5, .. })), "{outcome:?}");
        },
    );
}

#[test]
fn an_error_within_a_reply_is_the_reply() {
    with_puppet(
        true,
        false,
        async |puppet: Puppet| {
            let cookie = puppet.cookie().await;
            puppet.chunk(cookie, chunk::OFFSET_DATA, false, &data_at(0, &[1; 512])).await;
            let error =
                [&28u32.to_be_bytes()[..], &[0, 4], b"full", &512u64.to_be_bytes()].concat();
            puppet.chunk(cookie, chunk::ERROR_OFFSET, true, &error).await;
            puppet.cookie().await;
        },
        |client| async move {
            let outcome = client.read_once(0, IoBuf::recycled(1024)).await.unwrap_err();
            assert_eq!(outcome, RequestError::Server { error: 28, text: "full".into() });
        },
    );
}

#[test]
fn lies_of_the_server_fail_every_request_and_panic_nobody() {
    let lies: Vec<(&str, Vec<u8>)> = vec![
        ("nobody asked", SimpleReply { error: 0, cookie: 999 }.encode().to_vec()),
        ("no magic", vec![0x55; 64]),
        ("nothing at all", vec![]),
    ];
    for (what, lie) in lies {
        with_puppet(
            true,
            false,
            async move |puppet: Puppet| {
                puppet.cookie().await;
                puppet.cookie().await;
                if !lie.is_empty() {
                    puppet.say(&lie).await;
                }
            },
            move |client| async move {
                let other = client.clone();
                let write =
                    rt::spawn(async move { other.write_once(0, pattern(512, 1), false).await });
                let read = client.read_once(0, IoBuf::recycled(512)).await;
                assert!(matches!(read, Err(RequestError::Lost(_))), "{what}: {read:?}");
                // The write's payload was partly sent, perhaps; its answer never came.
                assert!(matches!(write.await, Err(RequestError::Lost(_))), "{what}");
                assert!(matches!(client.flush_once().await, Err(RequestError::Lost(_))), "{what}");
                assert_eq!(client.in_flight(), 0);
            },
        );
    }
    for (offset, len) in [(512u64, 1024usize), (1 << 40, 512), (u64::MAX, 512)] {
        with_puppet(
            true,
            false,
            async move |puppet: Puppet| {
                let cookie = puppet.cookie().await;
                puppet
                    .chunk(cookie, chunk::OFFSET_DATA, true, &data_at(offset, &vec![1; len]))
                    .await;
            },
            |client| async move {
                let read = client.read_once(0, IoBuf::recycled(1024)).await;
                assert!(matches!(read, Err(RequestError::Lost(_))), "{read:?}");
            },
        );
    }
}

#[test]
fn old_servers_are_spoken_to_in_their_way() {
    with_puppet(
        false,
        true,
        async |puppet: Puppet| {
            let cookie = puppet.cookie().await;
            puppet.say(&SimpleReply { error: 0, cookie }.encode()).await;
            puppet.say(&[3; 512]).await;
            let cookie = puppet.cookie().await;
            puppet.say(&SimpleReply { error: 22, cookie }.encode()).await;
            puppet.cookie().await;
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
fn a_request_that_is_given_up_does_not_disturb_the_others() {
    for seed in 0..20 {
        Runtime::simulated(seed).block_on(async {
            let device = CachedDevice::new(1 << 20);
            let server = server_of(device, Limits::default());
            let client = Rc::new(connect(&server).await);
            client.write(0, pattern(65536, 4), false).await.unwrap();
            for _ in 0..50 {
                let patience = Nanos(rt::random_below(2_000_000));
                let read = rt::timeout(patience, client.read(0, IoBuf::recycled(65536))).await;
                if let Ok(read) = read {
                    assert!(read.unwrap()[..] == pattern(65536, 4)[..]);
                }
            }
            client.flush().await.unwrap();
            rt::sleep(Nanos::from_secs(1)).await;
            assert_eq!(client.in_flight(), 0, "every slot came back");
        });
    }
}

#[test]
fn refusals_and_absences_are_told_apart() {
    Runtime::simulated(1).block_on(async {
        let server = server_of(CachedDevice::new(1 << 20), Limits::default());
        let refused = Client::over(connect_raw(&server), "nothing", "x").await.err().unwrap();
        assert!(
            matches!(refused, ClientError::Refused { kind: reply::ERR_UNKNOWN, .. }),
            "{refused}"
        );
        let said = "the server refuses export 'nothing': 'nothing': there is no such export";
        assert_eq!(refused.to_string(), said);
        let silent = ClientError::Refused {
            export: "v".into(),
            kind: reply::ERR_POLICY,
            text: String::new(),
        };
        let said = "the server refuses export 'v': it is not for this client";
        assert_eq!(silent.to_string(), said);
        let (here, there) = net::pair();
        drop(there);
        let lost = Client::over(here, "vol", "x").await.err().unwrap();
        assert!(matches!(lost, ClientError::Lost(_)), "{lost}");
    });
    Runtime::real().unwrap().block_on(async {
        let nobody = Client::connect("nbd+unix:///x?socket=/no/such/socket").await.err().unwrap();
        assert!(nobody.to_string().contains("/no/such/socket"), "{nobody}");
    });
}

#[test]
fn requests_longer_than_the_server_takes_are_cut_up() {
    Runtime::simulated(2).block_on(async {
        let limits = Limits { request_max_bytes: 64 << 10, ..Default::default() };
        let server = server_of(CachedDevice::new(1 << 20), limits);
        let client = connect(&server).await;
        assert_eq!(client.block_sizes().unwrap().max_bytes, 64 << 10);
        let data = pattern(300 << 10, 8);
        client.write(4096, data.clone(), true).await.unwrap();
        let back = client.read(4096, IoBuf::recycled(300 << 10)).await.unwrap();
        assert!(back[..] == data[..]);
    });
}
