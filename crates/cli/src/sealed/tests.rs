use forebay_rt::Runtime;
use forebay_rt::net::{Stream, pair};

use super::*;

fn key(text: &str) -> Option<Key> {
    Some(Key::new(text.as_bytes(), "test").unwrap())
}

const LONG: &str = "a key that is long enough";

/// Both sides of a connection whose sides have these keys.
async fn meet(
    (near, far): (Stream, Stream),
    machine: Option<Key>,
    witness: Option<Key>,
) -> (Result<Channel, SealError>, Result<Channel, SealError>) {
    let accepting = rt::spawn(async move {
        let far = Rc::new(far);
        let accepted = Channel::accept(far.clone(), witness.as_ref()).await;
        if accepted.is_err() {
            far.shutdown();
        }
        accepted
    });
    let connected = Channel::connect(Rc::new(near), machine.as_ref()).await;
    (connected, accepting.await)
}

#[test]
fn holders_of_the_same_key_talk_in_both_directions() {
    for keys in [(key(LONG), key(LONG)), (None, None)] {
        Runtime::simulated(1).block_on(async move {
            let (near, far) = meet(pair(), keys.0, keys.1).await;
            let (near, far) = (near.unwrap(), far.unwrap());
            for number in 0..3u64 {
                near.send(&number, 1000).await.unwrap();
                assert_eq!(far.receive::<u64>(1000).await.unwrap(), number);
                far.send(&(number + 7), 1000).await.unwrap();
                assert_eq!(near.receive::<u64>(1000).await.unwrap(), number + 7);
            }
        });
    }
}

#[test]
fn peer_with_another_key_or_none_is_refused() {
    Runtime::simulated(2).block_on(async {
        let (near, _) = meet(pair(), key(LONG), key("a key that is another one")).await;
        assert!(matches!(near.err(), Some(SealError::Forged)));
        let (near, far) = meet(pair(), None, key(LONG)).await;
        assert!(matches!(near.err(), Some(SealError::KeyMissing)));
        assert!(matches!(far.err(), Some(SealError::KeyMissing)));
        let (near, far) = meet(pair(), key(LONG), None).await;
        assert!(matches!(near.err(), Some(SealError::PeerHasNoKey)));
        assert!(matches!(far.err(), Some(SealError::PeerHasNoKey)));
    });
}

#[test]
fn peer_that_only_knows_the_protocol_is_refused() {
    Runtime::simulated(3).block_on(async {
        let (near, far) = pair();
        let witness = key(LONG);
        let accepting = rt::spawn(async move {
            let channel = Channel::accept(Rc::new(far), witness.as_ref()).await.unwrap();
            channel.receive::<u64>(1000).await
        });
        let nonce = Some(to_hex(&[7; NONCE_BYTES]));
        send(&near, &Greeting { nonce, proof: None }, 1000).await.unwrap();
        let answer: Greeting = receive(&near, 1000).await.unwrap();
        // The witness's own proof is no code of a message.
        let sealed = Sealed { text: "1".to_owned(), code: answer.proof.unwrap() };
        send(&near, &sealed, 1000).await.unwrap();
        assert!(matches!(accepting.await, Err(SealError::Forged)));
    });
}

#[test]
fn changed_repeated_reflected_and_left_out_messages_are_refused() {
    for change in 0..4 {
        Runtime::simulated(4).block_on(async move {
            let (near, far) = meet(pair(), key(LONG), key(LONG)).await;
            let (near, far) = (near.unwrap(), far.unwrap());
            let (to, from) = near.directions.as_ref().unwrap();
            let seal = |direction: &Direction, text: &str| {
                let code = hmac::sign(&direction.key, &direction.covered(text));
                Sealed { text: text.to_owned(), code: to_hex(code.as_ref()) }
            };
            let mut sealed = match change {
                // A message of the witness, sent back to it.
                0 => seal(from, "1"),
                _ => seal(to, "1"),
            };
            if change == 1 {
                sealed.text = "2".to_owned();
            }
            if change == 2 {
                sealed = seal(to, "3");
            }
            send(near.stream(), &sealed, 1000).await.unwrap();
            if change == 3 {
                assert_eq!(far.receive::<u64>(1000).await.unwrap(), 1);
                send(near.stream(), &sealed, 1000).await.unwrap();
            }
            let refused = far.receive::<u64>(1000).await;
            assert!(matches!(refused, Err(SealError::Forged)), "change {change}");
        });
    }
}

#[test]
fn peer_that_does_not_greet_is_given_up() {
    Runtime::simulated(5).block_on(async {
        let (_near, far) = pair();
        let key = key(LONG);
        let refused = Channel::accept(Rc::new(far), key.as_ref()).await;
        assert!(matches!(refused.err(), Some(SealError::Late)));
    });
}

#[test]
fn short_keys_are_refused_and_hexadecimal_is_strict() {
    assert!(Key::new(b"fifteen letters", "test").is_err());
    assert_eq!(from_hex("00ff1A"), Some(vec![0, 255, 26]));
    assert_eq!((from_hex("0"), from_hex("0g"), from_hex("+1")), (None, None, None));
}
