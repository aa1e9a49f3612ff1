//! Sending at once and sending later give one stream.

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};

use crate::channel::Channel;
use crate::outbox::Outbox;

#[test]
fn what_a_full_socket_does_not_take_follows_in_order_and_every_charge_comes_back() {
    let dir = std::env::temp_dir().join(format!("forebay-nbd-outbox-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("s.sock");
    rt::Runtime::real().unwrap().block_on(async move {
        let listener = Listener::bind_unix(&path, 0o600).unwrap();
        let accepted = rt::spawn(async move { listener.accept().await.unwrap() });
        let here = Stream::connect_unix(&path).await.unwrap();
        let there = accepted.await;
        let released = Rc::new(Cell::new(0));
        let release = Box::new({
            let released = released.clone();
            move |bytes| released.set(released.get() + bytes)
        });
        let outbox = Rc::new(Outbox::new(Channel::new(Rc::new(here)), release));
        let sender = rt::spawn({
            let outbox = outbox.clone();
            async move { outbox.run().await }
        });
        // The sender waits: what is pushed now may leave at once.
        rt::yield_now().await;
        let mut expected = Vec::new();
        let mut push = |from: u32, to: u32| {
            for i in from..to {
                let payload = vec![i as u8; 4096];
                outbox.push(&i.to_be_bytes(), Some(&payload), 10);
                expected.extend_from_slice(&i.to_be_bytes());
                expected.extend_from_slice(&payload);
            }
        };
        // Far more than a socket holds, then a little, as nobody reads yet.
        push(0, 1000);
        assert!(released.get() > 0, "nothing left at once");
        assert!(released.get() < 10_000, "a socket does not hold this much");
        rt::yield_now().await;
        push(1000, 1003);
        outbox.close();
        let (outcome, got) = there.recv_exact(vec![0u8; expected.len()], 0).await;
        outcome.unwrap();
        assert!(got == expected, "the stream is not what was pushed");
        sender.await.unwrap();
        assert_eq!(released.get(), 10_030);
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
