//! Eager sends and sends by the task give one stream.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_rt as rt;
use forebay_rt::net::{Listener, Stream};

use crate::channel::Channel;
use crate::outbox::Outbox;

/// Runs a test with the two ends of a socket, which lies in a folder of this name.
fn with_socket<F: Future<Output = ()> + 'static>(
    name: &str,
    test: impl FnOnce(Stream, Stream) -> F + 'static,
) {
    let dir = std::env::temp_dir().join(format!("forebay-nbd-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("s.sock");
    rt::Runtime::real().unwrap().block_on(async move {
        let listener = Listener::bind_unix(&path, 0o600).unwrap();
        let accepted = rt::spawn(async move { listener.accept().await.unwrap() });
        let here = Stream::connect_unix(&path).await.unwrap();
        test(here, accepted.await).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn full_socket_keeps_order_and_every_charge_returns() {
    with_socket("outbox", |here, there| async move {
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
        // The sending task waits, so a push may send eagerly.
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
        // More than a socket holds, then a little, before the first receive.
        push(0, 1000);
        assert!(released.get() > 0, "no push was sent eagerly");
        assert!(released.get() < 10_000, "a socket cannot hold this much");
        rt::yield_now().await;
        push(1000, 1003);
        outbox.close();
        let (outcome, got) = there.recv_exact(vec![0u8; expected.len()], 0).await;
        outcome.unwrap();
        assert!(got == expected, "the stream differs from the pushed bytes");
        sender.await.unwrap();
        assert_eq!(released.get(), 10_030);
    });
}

#[test]
fn short_replies_wait_for_a_long_one_before_them() {
    with_socket("order", |here, there| async move {
        let outbox = Rc::new(Outbox::new(Channel::new(Rc::new(here)), Box::new(|_| {})));
        let sender = rt::spawn({
            let outbox = outbox.clone();
            async move { outbox.run().await }
        });
        // The sending task waits; it has no turn before all replies are pushed.
        rt::yield_now().await;
        let long = vec![1; 64 << 10];
        outbox.push_large(&[0; 16], IoBuf::copy_of(&long).freeze(), 10);
        let mut expected = [vec![0; 16], long].concat();
        for i in 2..18u8 {
            outbox.push(&[i; 16], Some(&[i; 4096]), 10);
            expected.extend_from_slice(&[i; 16 + 4096]);
        }
        outbox.close();
        let (outcome, got) = there.recv_exact(vec![0u8; expected.len()], 0).await;
        outcome.unwrap();
        assert!(got == expected, "replies in another order");
        sender.await.unwrap();
    });
}
