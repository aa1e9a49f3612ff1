use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_rt::Runtime;
use forebay_rt::net::{Stream, pair};
use proptest::prelude::*;

use super::*;
use crate::args::ScanVerb;
use crate::failure::{ErrorCode, Failure};

/// Answers hello, gives the pool's name as its history, and refuses the pool `bad`.
#[derive(Default)]
struct Echo {
    seen: RefCell<Vec<Request>>,
}

impl Handler for Echo {
    fn handle(self: Rc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response>>> {
        Box::pin(async move {
            self.seen.borrow_mut().push(request.clone());
            match request.action {
                Action::Hello => Response::Ok(Reply::Hello(Hello {
                    version: PROTOCOL_VERSION,
                    pid: 7,
                    pools: vec!["tank".into()],
                    takes_more: true,
                    listeners: vec![],
                })),
                _ if request.pool == "bad" => Response::Error(refused()),
                _ => Response::Ok(Reply::History(vec![request.pool])),
            }
        })
    }
}

fn refused() -> Failure {
    Failure::new(ErrorCode::PoolNotFound, "no").with_hint("why")
}

fn request(pool: &str) -> Request {
    Request {
        version: PROTOCOL_VERSION,
        pool: pool.into(),
        typed: String::new(),
        action: Action::History,
    }
}

/// Runs `client` against a served connection.
fn with_server<F: Future + 'static>(
    seed: u64,
    client: impl FnOnce(Stream) -> F + 'static,
) -> (F::Output, Rc<Echo>) {
    let handler = Rc::new(Echo::default());
    let served = handler.clone();
    let out = Runtime::simulated(seed).block_on(async move {
        let (near, far) = pair();
        Rc::new(Connections::default()).answer(far, served).await;
        client(near).await
    });
    (out, handler)
}

#[test]
fn requests_are_answered_in_order() {
    for seed in 0..20 {
        let (answers, handler) = with_server(seed, |stream| async {
            let link = Link::greet(stream).await.unwrap();
            assert_eq!(link.hello.pools, ["tank"]);
            let mut answers = Vec::new();
            for pool in ["a", "bad", "b"] {
                answers.push(link.ask(&request(pool)).await);
            }
            answers
        });
        let history = |name: &str| Ok(Reply::History(vec![name.to_owned()]));
        assert_eq!(answers, [history("a"), Err(refused()), history("b")]);
        assert_eq!(handler.seen.borrow().len(), 4);
    }
}

/// Sends raw bytes; what comes back until the server ends the connection.
fn raw(bytes: Vec<u8>) -> (Vec<u8>, Rc<Echo>) {
    with_server(3, |stream| async move {
        stream.send_all(bytes).await.0.unwrap();
        let mut all = Vec::new();
        loop {
            let waited = forebay_rt::timeout(
                forebay_units::Nanos::from_secs(1),
                stream.recv(vec![0; 4096], 0),
            );
            match waited.await {
                Ok((Ok(got), chunk)) if got > 0 => all.extend_from_slice(&chunk[..got]),
                _ => break,
            }
        }
        stream.shutdown();
        all
    })
}

fn framed(body: &str) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(body.as_bytes());
    bytes
}

#[test]
fn length_out_of_bounds_ends_connection_before_memory_is_taken() {
    for prefix in [0u32, REQUEST_MAX_BYTES as u32 + 1, u32::MAX] {
        let mut bytes = prefix.to_be_bytes().to_vec();
        bytes.extend_from_slice(b"the server never reads these bytes");
        let (answer, handler) = raw(bytes);
        let response: Response = serde_json::from_slice(&answer[4..]).unwrap();
        let Response::Error(failure) = response else { panic!("{response:?}") };
        assert_eq!(failure.code, ErrorCode::Protocol);
        assert_eq!(handler.seen.borrow().len(), 0);
    }
}

#[test]
fn bad_request_is_refused_and_next_request_is_answered() {
    let good = serde_json::to_string(&request("a")).unwrap();
    for bad in [
        "{",
        "[]",
        "{\"version\":1}",
        "\u{0}",
        "{\"version\":9,\"pool\":\"\",\"action\":{\"do\":\"hello\"}}",
    ] {
        let mut bytes = framed(bad);
        bytes.extend(framed(&good));
        let (answer, handler) = raw(bytes);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.contains("{\"error\":"), "{bad}: {text}");
        assert!(text.contains("{\"ok\":{\"history\":[\"a\"]}}"), "{bad}: {text}");
        assert_eq!(handler.seen.borrow().len(), 1);
    }
}

#[test]
fn connection_cut_within_request_reaches_no_handler() {
    let whole = framed(&serde_json::to_string(&request("a")).unwrap());
    for cut in 0..whole.len() {
        let part = whole[..cut].to_vec();
        let ((), handler) = with_server(cut as u64, |stream| async move {
            if !part.is_empty() {
                stream.send_all(part).await.0.unwrap();
            }
            stream.shutdown();
        });
        assert_eq!(handler.seen.borrow().len(), 0, "cut at {cut}");
    }
}

#[test]
fn connections_without_requests_keep_no_other_command_out() {
    Runtime::simulated(5).block_on(async {
        let connections = Rc::new(Connections::default());
        let handler = Rc::new(Echo::default());
        let mut half_open = Vec::new();
        for _ in 0..300 {
            let (near, far) = pair();
            connections.answer(far, handler.clone()).await;
            half_open.push(near);
            forebay_rt::sleep(forebay_units::Nanos::from_millis(1)).await;
        }
        let (near, far) = pair();
        connections.answer(far, handler.clone()).await;
        let link = Link::greet(near).await.unwrap();
        // A command that waits between two requests is not the one that has waited longest.
        for _ in 0..30 {
            let (near, far) = pair();
            connections.answer(far, handler.clone()).await;
            half_open.push(near);
        }
        assert!(link.ask(&request("a")).await.is_ok());
    });
}

// What they were sent was read, so they have no request under way.
#[test]
fn connections_that_take_no_reply_keep_no_other_command_out() {
    Runtime::simulated(6).block_on(async {
        let connections = Rc::new(Connections::default());
        let handler = Rc::new(Echo::default());
        let long = framed(&serde_json::to_string(&request(&"x".repeat(1 << 19))).unwrap());
        let mut stuck = Vec::new();
        for _ in 0..70 {
            let (near, far) = pair();
            let answered = Box::pin(connections.answer(far, handler.clone()));
            let second = forebay_units::Nanos::from_secs(1);
            forebay_rt::timeout(second, answered).await.expect("an older one ends");
            // Those that ended first cannot take it.
            let _ = near.send_all(long.clone()).await;
            forebay_rt::sleep(second).await;
            stuck.push(near);
        }
    });
}

#[test]
fn messages_are_as_documented() {
    // docs/control.md shows these; a change here is a change of the protocol.
    let scrub = Request {
        version: 1,
        pool: "tank".into(),
        typed: "forebay pool scrub tank".into(),
        action: Action::Scrub { verb: ScanVerb::Start },
    };
    assert_eq!(
        serde_json::to_string(&scrub).unwrap(),
        "{\"version\":1,\"pool\":\"tank\",\"typed\":\"forebay pool scrub tank\",\
         \"action\":{\"do\":\"scrub\",\"verb\":\"start\"}}"
    );
    assert_eq!(serde_json::to_string(&Response::Ok(Reply::Done)).unwrap(), "{\"ok\":\"done\"}");
    assert_eq!(
        serde_json::to_string(&Response::Error(refused())).unwrap(),
        "{\"error\":{\"code\":\"pool_not_found\",\"message\":\"no\",\"hint\":\"why\"}}"
    );
    let hello = "{\"version\":1,\"pool\":\"\",\"action\":{\"do\":\"hello\"}}";
    let read: Request = serde_json::from_str(hello).unwrap();
    assert_eq!(read.action, Action::Hello);
}

proptest! {
    #[test]
    fn request_arrives_as_it_was_sent(
        pool in ".{0,40}", typed in ".{0,200}", device in ".{0,80}", seed in 0u64..1000
    ) {
        let request = Request {
            version: PROTOCOL_VERSION, pool, typed, action: Action::Offline { device },
        };
        let sent = request.clone();
        let (_, handler) = with_server(seed, |stream| async move {
            send(&stream, &sent, REQUEST_MAX_BYTES).await.unwrap();
            receive::<Response>(&stream, REPLY_MAX_BYTES).await.unwrap()
        });
        prop_assert_eq!(&handler.seen.borrow()[..], &[request][..]);
    }
}

#[test]
fn server_without_volumes_refuses_the_kernel_and_goes_on() {
    let ((refusal, next), _) = with_server(5, |stream| async {
        let link = Link::greet(stream).await.unwrap();
        let nbd = Request { action: Action::Nbd, ..request("") };
        (link.ask(&nbd).await.unwrap_err(), link.ask(&request("tank")).await)
    });
    assert_eq!(refusal.code, ErrorCode::PoolNotServed);
    assert_eq!(next, Ok(Reply::History(vec!["tank".to_owned()])));
}
