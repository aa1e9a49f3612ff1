use forebay_pool::status::EventKind;
use forebay_rt as rt;
use forebay_rt::Runtime;
use forebay_units::Nanos;
use std::cell::RefCell;

use super::sink::{Message, Sink};
use super::*;
use crate::log::Level;

fn event(kind: EventKind, sequence: u64) -> EventRecord {
    EventRecord {
        pool: "tank".to_owned(),
        guid: 9,
        sequence,
        time_secs: 1_700_000_000,
        event: kind,
        device: Some("/dev/x".to_owned()),
        text: "/dev/x\nwas taken out".to_owned(),
    }
}

fn notice(sequence: u64) -> Notice {
    let event = event(EventKind::TakenOut, sequence);
    let (level, action) = event_advice(&event);
    Notice { event, level, action }
}

/// Numbers of events, how many were missed, and the second.
type Told = (Vec<u64>, u64, u64);

/// A sink that keeps what it is given, as the numbers of events and when, and fails as often as
/// `failures` says.
fn sink(messages_max: usize, failures: usize) -> (Rc<Sink>, Rc<RefCell<Vec<Told>>>) {
    let told: Rc<RefCell<Vec<Told>>> = Rc::default();
    let (kept, left) = (told.clone(), std::cell::Cell::new(failures));
    let sink = Sink {
        name: "test",
        least: Level::Warning,
        batch_max: 3,
        messages_max,
        window: Nanos::from_secs(3600),
        send: Box::new(move |message: Rc<Message>| {
            if left.get() > 0 {
                left.set(left.get() - 1);
                return Box::pin(async { Err("down".to_owned()) });
            }
            let numbers = message.notices.iter().map(|notice| notice.event.sequence).collect();
            let secs = rt::now().0 / 1_000_000_000;
            kept.borrow_mut().push((numbers, message.missed, secs));
            Box::pin(async { Ok(()) })
        }),
        state: Default::default(),
    };
    (Rc::new(sink), told)
}

#[test]
fn events_beyond_the_limit_come_together_later_and_none_is_lost() {
    Runtime::simulated(1).block_on(async {
        let (sink, told) = sink(2, 0);
        sink.offer(notice(1));
        rt::sleep(Nanos::from_secs(1)).await;
        sink.offer(notice(2));
        rt::sleep(Nanos::from_secs(1)).await;
        for number in 3..=8 {
            sink.offer(notice(number));
        }
        let unimportant = event(EventKind::ScanBegan, 9);
        let (level, action) = event_advice(&unimportant);
        sink.offer(Notice { event: unimportant, level, action });
        rt::sleep(Nanos::from_secs(7200)).await;
        let told = told.borrow();
        let numbers: Vec<&[u64]> = told.iter().map(|(numbers, ..)| numbers.as_slice()).collect();
        assert_eq!(numbers, [&[1][..], &[2], &[3, 4, 5], &[6, 7, 8]]);
        let times: Vec<u64> = told.iter().map(|(.., secs)| *secs).collect();
        assert!(times[2] >= times[0] + 3600 && times[3] >= times[1] + 3600, "{times:?}");
    });
}

#[test]
fn a_flood_is_counted_and_a_failure_is_tried_again() {
    Runtime::simulated(1).block_on(async {
        let (sink, told) = sink(1, 2);
        for number in 1..=300 {
            sink.offer(notice(number));
        }
        rt::sleep(Nanos::from_secs(100)).await;
        assert_eq!(told.borrow()[0].0, [1, 2, 3], "the third try");
        assert_eq!(told.borrow()[0].1, 300 - 256);
        assert!(told.borrow()[0].2 >= 65);
    });
}

#[test]
fn events_of_a_message_that_no_try_could_tell_are_counted_in_the_next_one() {
    Runtime::simulated(1).block_on(async {
        let (sink, told) = sink(60, 3);
        for number in 1..=300 {
            sink.offer(notice(number));
        }
        rt::sleep(Nanos::from_secs(100)).await;
        assert_eq!(told.borrow()[0].0, [4, 5, 6], "what follows the first message");
        assert_eq!(told.borrow()[0].1, 300 - 256 + 3);
    });
}

#[test]
fn every_place_says_what_to_do_in_its_own_form() {
    let message = Rc::new(Message { notices: vec![notice(1), notice(2)], missed: 4 });
    let line = syslog::line(&message.notices[0], 77);
    assert!(
        line.starts_with("<27>forebay[77]: pool 'tank' taken-out: /dev/x\\nwas taken"),
        "{line}"
    );
    assert!(line.contains("'forebay pool replace tank /dev/x NEW'"), "{line}");
    let entry = String::from_utf8(journal::entry(&message.notices[0])).unwrap();
    for field in [
        "MESSAGE=pool 'tank' taken-out: /dev/x\\nwas taken out",
        "PRIORITY=3",
        "FOREBAY_POOL=tank",
        "FOREBAY_EVENT=taken-out",
        "FOREBAY_DEVICE=/dev/x",
        "FOREBAY_SEQUENCE=1",
    ] {
        assert!(entry.lines().any(|line| line == field), "{field}: {entry}");
    }
    assert!(entry.lines().all(|line| line.contains('=')), "{entry}");
    let mail = mail::mail("root@x", "host", &message);
    let (head, body) = mail.split_once("\n\n").unwrap();
    assert!(head.contains("Subject: [forebay host] tank: taken-out and 1 more"), "{head}");
    assert!(head.lines().all(|line| line.contains(": ")), "{head}");
    assert!(body.contains("forebay pool replace tank") && body.contains("4 more events"), "{body}");
    let document: serde_json::Value =
        serde_json::from_str(&webhook::body("host", &message)).unwrap();
    assert_eq!((&document["version"], &document["missed"]), (&1.into(), &4.into()));
    assert_eq!(document["events"][1]["sequence"], 2);
    assert_eq!(document["events"][0]["level"], "error");
    assert!(document["events"][0]["action"].as_str().unwrap().contains("pool replace"));
}

#[test]
fn answers_and_addresses_are_judged() {
    assert_eq!(webhook::judge(b"HTTP/1.1 204 No Content\r\n"), Ok(()));
    assert!(webhook::judge(b"HTTP/1.1 500 Oh\r\n").unwrap_err().contains("500 Oh"));
    assert!(webhook::judge(b"").is_err());
    let url = Url::parse("https://[::1]:8443/a?b").unwrap();
    assert_eq!((url.host.as_str(), url.port, url.target.as_str()), ("::1", 8443, "/a?b"));
    let url = Url::parse("http://x.test").unwrap();
    assert_eq!((url.is_https, url.port, url.target.as_str()), (false, 80, "/"));
    for wrong in ["ftp://x", "https://", "https://a b/", "https://u@x/", "https://x:y/", "x\r\n"] {
        assert!(Url::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn every_event_that_matters_says_what_to_do() {
    for (kind, level) in [
        (EventKind::Suspended, Level::Error),
        (EventKind::SpareNotTaken, Level::Error),
        (EventKind::StateChanged, Level::Warning),
        (EventKind::Repaired, Level::Notice),
    ] {
        let (found, action) = event_advice(&event(kind, 1));
        assert_eq!(found, level);
        assert!(action.contains("tank"), "{action}");
    }
    assert_eq!(event_advice(&event(EventKind::ScanEnded, 1)), (Level::Info, String::new()));
}
