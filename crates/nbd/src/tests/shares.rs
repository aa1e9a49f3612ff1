//! Clients that take more than their share, in virtual time.

use forebay_rt::Runtime;
use proptest::prelude::*;

use super::*;
use crate::account::Account;
use crate::shares::{Ledger, RESERVED_PART, Share};
use crate::wire::{Request, command};

const MIB: u64 = 1 << 20;

/// Limits in the proportions of the default ones, an eighth of their size in memory.
fn limits() -> Limits {
    Limits {
        request_max_bytes: 1 << 20,
        connection_bytes_max: 8 * MIB,
        total_bytes_max: 32 * MIB,
        reply_window_bytes: MIB,
        ..Limits::default()
    }
}

/// A connection of `account` at the start of transmission; `None` when there is no room for it.
async fn raw(server: &Rc<Server>, account: Account) -> Option<net::Stream> {
    let (stream, there) = net::pair();
    if !server.adopt_for(account, there) {
        return None;
    }
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    stream.send_all(hello).await.0.unwrap();
    stream.recv_exact(vec![0; 18 + 10], 0).await.0.unwrap();
    Some(stream)
}

async fn client(server: &Rc<Server>, account: Account) -> Client {
    let (here, there) = net::pair();
    assert!(server.adopt_for(account, there), "there was no room");
    Client::over(here, "vol", "test").await.unwrap()
}

fn request(command: u16, len: u64) -> Vec<u8> {
    let len_bytes = len as u32;
    Request { flags: 0, command, cookie: 7, offset_bytes: 0, len_bytes }.encode().to_vec()
}

/// Writes of 4 KiB, one after the other, for ten seconds; the longest time that one took.
async fn longest_write(client: &Client) -> Nanos {
    let (begun, mut longest) = (rt::now(), Nanos::ZERO);
    while rt::now().since(begun) < Nanos::from_secs(10) {
        let sent = rt::now();
        client.write(65536, pattern(4096, 3), true).await.unwrap();
        longest = longest.max(rt::now().since(sent));
    }
    longest
}

/// What the greedy clients of a test do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greed {
    /// Four long reads; no reply is taken.
    Unread,
    /// The same; 16 KiB are taken each two seconds.
    Trickle,
    /// A long write, of which 16 KiB are sent each two seconds.
    Upload,
    /// Four long reads; then a new connection after each 100 ms.
    Reconnect,
}

async fn be_greedy(server: Rc<Server>, account: Account, greed: Greed) {
    loop {
        let Some(stream) = raw(&server, account.clone()).await else {
            rt::sleep(Nanos::from_millis(100)).await;
            continue;
        };
        if greed == Greed::Upload {
            stream.send_all(request(command::WRITE, MIB)).await.0.unwrap();
        } else {
            stream.send_all(request(command::READ, MIB).repeat(4)).await.0.unwrap();
        }
        loop {
            let step = if greed == Greed::Reconnect { 100 } else { 2000 };
            rt::sleep(Nanos::from_millis(step)).await;
            let goes_on = match greed {
                Greed::Unread => true,
                Greed::Trickle => stream.recv(vec![0; 16 << 10], 0).await.0.is_ok_and(|n| n > 0),
                Greed::Upload => stream.send_all(vec![0; 16 << 10]).await.0.is_ok(),
                Greed::Reconnect => false,
            };
            if !goes_on {
                break;
            }
        }
    }
}

#[test]
fn writes_beside_greedy_clients_are_answered_at_once() {
    let another = Account::User(1000);
    for greed in [Greed::Unread, Greed::Trickle, Greed::Upload, Greed::Reconnect] {
        for (greedy, own) in [
            (&another, Account::Owner),
            (&another, Account::User(1001)),
            (&Account::Owner, Account::Owner),
            (&another, another.clone()),
        ] {
            let greedy = greedy.clone();
            Runtime::simulated(21).block_on(async move {
                let server = server_of(CachedDevice::new(2 << 20), limits());
                for _ in 0..40 {
                    rt::spawn(be_greedy(server.clone(), greedy.clone(), greed));
                }
                rt::sleep(Nanos::from_secs(5)).await;
                // What the greedy ones hold, and what was taken from them again.
                let held = server.bytes_in_flight() + MIB * server.counts().evicted;
                assert!(greed == Greed::Reconnect || held > 12 * MIB, "{held} bytes: no greed");
                let client = client(&server, own.clone()).await;
                let longest = longest_write(&client).await;
                // The device takes two milliseconds at most, and the streams less than one.
                let bound = Nanos::from_millis(20);
                assert!(longest < bound, "{greed:?} of {greedy} beside {own}: {longest:?}");
            });
        }
    }
}

#[test]
fn slow_client_gives_way_to_a_long_request_and_a_quick_one_stays() {
    Runtime::simulated(22).block_on(async {
        let limits = Limits { total_bytes_max: 4 * MIB, connection_bytes_max: 4 * MIB, ..limits() };
        let server = server_of(CachedDevice::new(2 << 20), limits);
        let account = Account::User(1000);
        for _ in 0..8 {
            rt::spawn(be_greedy(server.clone(), account.clone(), Greed::Trickle));
        }
        let quick = client(&server, account.clone()).await;
        let reading = rt::spawn(async move {
            for _ in 0..200 {
                quick.read(0, IoBuf::recycled(256 << 10)).await.unwrap();
                rt::sleep(Nanos::from_millis(50)).await;
            }
        });
        rt::sleep(Nanos::from_secs(5)).await;
        let patient = client(&server, account.clone()).await;
        let begun = rt::now();
        patient.write(0, pattern(1 << 20, 1), true).await.unwrap();
        assert!(rt::now().since(begun) < Nanos::from_secs(20), "{:?}", rt::now().since(begun));
        reading.await;
        let counts = server.counts();
        assert!(counts.evicted > 0, "{counts:?}");
        assert_eq!(server.take_offenses()[&account].evicted, counts.evicted);
    });
}

#[test]
fn clients_of_a_device_that_hangs_are_not_evicted() {
    Runtime::simulated(23).block_on(async {
        let mut slow = CachedDevice::new(2 << 20);
        Rc::get_mut(&mut slow).unwrap().max_delay = Nanos::from_secs(60);
        let server = server_of(slow, limits());
        let clients: Vec<_> = {
            let accounts = (0..12).map(|_| client(&server, Account::User(1000)));
            rt::join_all(accounts).await
        };
        let work = |(number, client): (usize, Client)| async move {
            let request = async |_| match number % 2 {
                0 => client.write(0, pattern(1 << 20, 1), true).await.is_ok(),
                _ => client.read(0, IoBuf::recycled(1 << 20)).await.is_ok(),
            };
            rt::join_all((0..4).map(request)).await.into_iter().all(|is_ok| is_ok)
        };
        let all = rt::join_all(clients.into_iter().enumerate().map(work)).await;
        assert!(all.into_iter().all(|is_ok| is_ok));
        assert_eq!(server.counts().evicted, 0);
    });
}

// Its own replies are what it has to take first.
#[test]
fn a_client_that_takes_no_replies_has_no_other_one_evicted() {
    Runtime::simulated(28).block_on(async {
        let limits = Limits { total_bytes_max: 4 * MIB, connection_bytes_max: 4 * MIB, ..limits() };
        let server = server_of(CachedDevice::new(2 << 20), limits);
        let account = Account::User(1000);
        rt::spawn(be_greedy(server.clone(), account.clone(), Greed::Upload));
        let stuck = raw(&server, account).await.unwrap();
        stuck.send_all(request(command::READ, MIB / 4).repeat(2)).await.0.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        stuck.send_all(request(command::WRITE, MIB)).await.0.unwrap();
        rt::sleep(Nanos::from_secs(30)).await;
        assert!(server.bytes_in_flight() < 2 * MIB, "the last request waits");
        assert_eq!(server.counts().evicted, 0);
    });
}

#[test]
fn idle_connections_of_one_account_leave_room_for_others() {
    Runtime::simulated(24).block_on(async {
        let server = server_of(CachedDevice::new(2 << 20), Limits::default());
        let mut kept = Vec::new();
        for uid in 1000..1004 {
            for _ in 0..255 {
                kept.extend(raw(&server, Account::User(uid)).await);
            }
        }
        let most = Limits::default().connections_max;
        let reserved = most / RESERVED_PART as usize;
        assert!((most - reserved - 4..=most - reserved).contains(&kept.len()), "{}", kept.len());
        let offenses = server.take_offenses();
        assert!(offenses[&Account::User(1000)].refused > 100, "{offenses:?}");
        assert!(offenses[&Account::User(1001)].refused < 255, "the second one has some");
        for _ in 0..reserved {
            kept.push(raw(&server, Account::Owner).await.expect("a part is the owner's"));
        }
        // A place that is left is free again.
        kept.clear();
        rt::sleep(Nanos::from_secs(1)).await;
        assert!(raw(&server, Account::User(1003)).await.is_some());
    });
}

#[test]
fn reads_of_a_client_that_takes_nothing_stop_at_its_window() {
    Runtime::simulated(25).block_on(async {
        let device = CachedDevice::new(2 << 20);
        let server = server_of(device.clone(), limits());
        let stream = raw(&server, Account::Owner).await.unwrap();
        let len = 128 << 10;
        stream.send_all(request(command::READ, len).repeat(64)).await.0.unwrap();
        rt::sleep(Nanos::from_secs(5)).await;
        let held = server.bytes_in_flight();
        assert!(
            held <= limits().reply_window_bytes,
            "{held} bytes for a client that takes nothing"
        );
        // One that takes what it asks for gets more at a time.
        let (outcome, _) = stream.recv_exact(vec![0; 32 * (16 + len as usize)], 0).await;
        outcome.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let held = server.bytes_in_flight();
        assert!(held > 2 * limits().reply_window_bytes, "{held} bytes");
    });
}

#[test]
fn reads_that_fail_take_nothing_of_the_window() {
    Runtime::simulated(26).block_on(async {
        let device = CachedDevice::new(2 << 20);
        let server = server_of(device.clone(), limits());
        let client = client(&server, Account::Owner).await;
        let len = 128 << 10;
        let read = async || {
            let read = client.read_once(0, IoBuf::recycled(len as usize));
            let ended = rt::timeout(Nanos::from_secs(60), std::pin::pin!(read)).await;
            ended.expect("the read does not begin")
        };
        for _ in 0..2 * limits().reply_window_bytes / len {
            *device.fail_next.borrow_mut() = Some(ErrorKind::Gone);
            assert!(read().await.is_err());
        }
        read().await.unwrap();
        assert_eq!(server.bytes_in_flight(), 0);
    });
}

proptest! {
    /// Whatever connections take and give back, the limit holds, and a connection that holds
    /// nothing finds room for a small request.
    #[test]
    fn memory_is_never_taken_whole(
        steps in prop::collection::vec((0u32..4, 0usize..3, 0usize..30, 1u64..(4 << 20)), 1..300)
    ) {
        let ledger = Ledger::new(64 * MIB, 512);
        let mut held: Vec<(Share, u64)> = Vec::new();
        for (what, account, index, bytes) in steps {
            let account = [Account::Owner, Account::User(1), Account::User(2)][account].clone();
            if what == 0 && !held.is_empty() {
                let index = index % held.len();
                drop(held.swap_remove(index));
            } else {
                let share = Share::new(&ledger, &account, ["a", "b"][index % 2], 16 * MIB);
                if share.try_take(bytes) {
                    held.push((share, bytes));
                }
            }
            let sum: u64 = held.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(ledger.used_bytes(), sum);
            prop_assert!(sum <= 64 * MIB);
            for account in [Account::Owner, Account::User(1), Account::User(3)] {
                prop_assert!(Share::new(&ledger, &account, "c", 16 * MIB).try_take(8 << 10));
            }
        }
    }
}
