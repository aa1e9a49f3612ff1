//! What a sender says of its stream, and how it ends.

use std::rc::Rc;

use forebay_device::Operation;
use forebay_format::stream::ResumeToken;
use forebay_rt::{self as rt, Runtime};
use forebay_units::Nanos;

use super::rack::{Rack, memory, paced};
use super::transfers::{KEPT, make, receive, since, target, two_streams, whole};
use super::{names, stamp, volume};
use crate::{LeftBy, SendOptions, TransferError, source_of_token};

#[test]
fn a_sender_says_what_it_sends_and_from_where_on() {
    Runtime::simulated(7120).block_on(async {
        let (tank, full, _) = two_streams().await;
        let sender = tank.send(&since("a", "v@b")).unwrap();
        let said = (sender.name(), sender.base(), sender.start_bytes());
        assert_eq!(said, ("tank/v@b", Some("a"), 0));
        drop(sender);
        assert_eq!(tank.send(&whole("v@b")).unwrap().base(), None);
        let back = target().await;
        let (_, left) = receive(&back, &full[..3], KEPT).await.unwrap_err();
        let LeftBy::Token(token) = left else { panic!("{left:?}") };
        let options = SendOptions { token: Some(token.clone()), ..SendOptions::default() };
        let sender = tank.send(&options).unwrap();
        let due_bytes = ResumeToken::parse(&token).unwrap().start_bytes;
        assert!(due_bytes > 0);
        let said = (sender.name(), sender.base(), sender.start_bytes());
        assert_eq!(said, ("tank/v@a", None, due_bytes));
        assert_eq!(source_of_token(&token).as_deref(), Some("tank/v@a"));
        assert_eq!(source_of_token("1-no-token"), None);
        drop(sender);
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

#[test]
fn a_stream_of_another_snapshot_than_the_one_that_is_named_is_refused() {
    Runtime::simulated(7121).block_on(async {
        let (tank, full, _) = two_streams().await;
        let back = target().await;
        let (_, left) = receive(&back, &full[..3], KEPT).await.unwrap_err();
        let LeftBy::Token(token) = left else { panic!("{left:?}") };
        let named = |name: &str| SendOptions { token: Some(token.clone()), ..whole(name) };
        assert_eq!(tank.send(&named("v@a")).unwrap().name(), "tank/v@a");
        let other = tank.send(&named("v@b")).err().unwrap();
        assert!(matches!(other, TransferError::OtherSource { .. }), "{other}");
        // No snapshot is older than itself.
        let own = tank.send(&since("b", "v@b")).err().unwrap();
        assert!(matches!(own, TransferError::NotOlder { .. }), "{own}");
        tank.export().await.unwrap();
        back.export().await.unwrap();
    });
}

#[test]
fn nothing_is_estimated_or_sent_of_what_is_gone() {
    Runtime::simulated(7122).block_on(async {
        let (tank, _, _) = two_streams().await;
        let sender = tank.send(&whole("v@b")).unwrap();
        tank.destroy_snapshots(&names(&["v@b"])).await.unwrap();
        let gone = sender.estimate_bytes().await.unwrap_err();
        assert!(matches!(gone, TransferError::Gone { .. }), "{gone}");
        drop(sender);
        tank.export().await.unwrap();
        // The devices can still be read.
        let rack = Rack::new(&["a", "l"], 64 << 20);
        let pool = make(rack.host(1), "tank").await;
        pool.create_volume(&volume(1 << 20)).await.unwrap();
        pool.open_volume("v").unwrap().write(0, stamp(1 << 20, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        let mut sender = pool.send(&whole("v@a")).unwrap();
        sender.next().await.unwrap();
        sender.next().await.unwrap();
        rack.switches.works_for.set(Some(0));
        let _ = pool.sync().await;
        assert!(pool.is_resumable(), "it is suspended");
        sender.next().await.unwrap_err();
        sender.end().await;
        let _ = pool.end().await;
    });
}

#[test]
fn a_sender_that_ended_holds_nothing_of_its_pool() {
    Runtime::simulated(7123).block_on(async {
        let pace = |name: &str, operation: Operation, _: u64| {
            (name == "a" && operation == Operation::Read).then_some(Nanos::from_millis(10))
        };
        let pool = make(paced(memory(&["a", "l"], 64 << 20), pace), "tank").await;
        pool.create_volume(&volume(4 << 20)).await.unwrap();
        pool.open_volume("v").unwrap().write(0, stamp(4 << 20, 1), false).await.unwrap();
        pool.take_snapshots(&names(&["v@a"])).await.unwrap();
        rt::sleep(Nanos::from_secs(1)).await;
        let before = Rc::strong_count(&pool);
        let mut sender = pool.send(&whole("v@a")).unwrap();
        // The first record, what was read for the next ones, and another read.
        for _ in 0..3 {
            sender.next().await.unwrap();
        }
        assert!(Rc::strong_count(&pool) > before + 3, "a read is under way");
        sender.end().await;
        assert_eq!(Rc::strong_count(&pool), before);
        pool.export().await.unwrap();
    });
}
