use std::slice::from_ref;

use forebay_device::{Device, MemoryDevice};
use forebay_pool::spec::{GroupSpec, ImportOptions, PoolSpec};
use forebay_pool::status::{Health, PoolCondition};
use forebay_pool::{OpenWith, Pool, SuspendReason};
use forebay_rt::Runtime;
use forebay_testkit::Shelf;
use forebay_units::Layout;

use super::*;
use crate::explain::advice;

#[test]
fn uris_are_in_the_form_that_clients_read() {
    assert_eq!(
        hints::nbd_uri("tcp:127.0.0.1:10809", "tank/vol0", false),
        "nbd://127.0.0.1:10809/tank/vol0"
    );
    assert_eq!(
        hints::nbd_uri("unix:/a dir/nbd.sock", "tank/vol0", false),
        "nbd+unix:///tank/vol0?socket=/a%20dir/nbd.sock"
    );
}

#[test]
fn hints_name_clients_and_flush() {
    let lines = connect_hints(&["unix:/s".to_owned(), "tcp:127.0.0.1:1".to_owned()], "p/v", false);
    let text = lines.join("\n");
    for word in ["nbdinfo", "qemu-img", "--fsync=1", "nbdfuse", "nbd://127.0.0.1:1/p/v"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    assert!(connect_hints(&[], "p/v", false).is_empty());
}

#[test]
fn hints_for_tls_name_the_certificates() {
    let lines = connect_hints(&["unix:/s".to_owned(), "tcp:[::1]:1".to_owned()], "p/v", true);
    assert!(lines[1].contains("nbds+unix:///p/v?socket=/s&tls-certificates="), "{lines:?}");
    assert!(lines[2].contains("nbds://[::1]:1/p/v?tls-certificates="), "{lines:?}");
}

#[test]
fn plain_text_off_loopback_needs_plaintext_option() {
    let exposed = |text: &str| match text.strip_prefix("tcp:") {
        Some(address) => ListenAddress::Tcp(address.parse().unwrap()),
        None => ListenAddress::Unix("/s".into()),
    };
    for (address, tls, plaintext, goes) in [
        ("tcp:0.0.0.0:1", false, false, false),
        ("tcp:[::]:1", false, false, false),
        ("tcp:192.0.2.1:1", false, false, false),
        ("tcp:0.0.0.0:1", false, true, true),
        ("tcp:0.0.0.0:1", true, false, true),
        ("tcp:127.0.0.1:1", false, false, true),
        ("tcp:[::1]:1", false, false, true),
        ("unix:/s", false, false, true),
    ] {
        let outcome = refuse_exposed(&exposed(address), tls, plaintext);
        assert_eq!(outcome.is_ok(), goes, "{address} {tls} {plaintext}");
        if let Err(failure) = outcome {
            assert!(failure.hint.contains("--plaintext"), "{}", failure.hint);
        }
    }
}

#[test]
fn socket_never_replaces_file() {
    let path = std::env::temp_dir().join(format!("forebay-file-{}", std::process::id()));
    std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&path).unwrap();
    assert!(refuse_other_files(&path).is_err());
    std::fs::remove_file(&path).unwrap();
    assert!(refuse_other_files(&path).is_ok());
}

#[test]
fn live_line_leaves_out_its_last_parts() {
    let parts: Vec<String> = ["ONLINE", "2 clients", "log 3%"].map(str::to_owned).into();
    assert_eq!(live::fitting(&parts, 79), "ONLINE | 2 clients | log 3%");
    assert_eq!(live::fitting(&parts, 27), "ONLINE | 2 clients | log 3%");
    assert_eq!(live::fitting(&parts, 26), "ONLINE | 2 clients");
    assert_eq!(live::fitting(&parts, 3), "");
}

#[test]
fn change_of_health_is_reported_with_its_reason() {
    let suspended = advice("tank", &PoolCondition::Suspended(SuspendReason::TakenOver));
    assert_eq!(
        watch::line("tank", Health::Online, Health::Suspended, &suspended),
        "pool 'tank' went from ONLINE to SUSPENDED: The pool stopped taking writes: another \
         process has imported the pool. 'forebay pool status tank' says what to do."
    );
    let well = advice("tank", &PoolCondition::Well);
    assert_eq!(
        watch::line("tank", Health::Degraded, Health::Online, &well),
        "pool 'tank' went from DEGRADED to ONLINE"
    );
}

#[test]
fn a_pool_that_comes_back_is_reported_as_one_that_was_never_seen() {
    Runtime::simulated(1).block_on(async {
        let devices =
            ["a", "b"].map(|name| -> Device { Rc::new(MemoryDevice::new(name, 64 << 20)) });
        let shelf = Shelf::new(devices);
        let opener = OpenWith::new(1, move |name| shelf.open(name));
        let paths = vec!["a".to_owned(), "b".to_owned()];
        let group = GroupSpec { layout: Layout::Mirror, devices: paths.clone() };
        let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
        let pool = Pool::create(opener.clone(), "tank", &spec).await.unwrap();
        let mut watch = watch::Watch::default();
        assert_eq!(watch.pools(from_ref(&pool)), []);
        pool.offline("b").await.unwrap();
        let first = watch.pools(from_ref(&pool));
        assert!(first.len() == 1 && first[0].1.contains("from ONLINE to DEGRADED"), "{first:?}");
        assert_eq!(watch.pools(from_ref(&pool)), []);
        pool.export().await.unwrap();
        assert_eq!(watch.pools(&[]), []);
        let options = ImportOptions::default();
        let pool = Pool::import(opener, &paths, "tank", &options).await.unwrap();
        assert_eq!(watch.pools(from_ref(&pool)), first);
        pool.export().await.unwrap();
    });
}

#[test]
fn disconnected_clients_are_reported_once_a_minute_by_account() {
    use forebay_nbd::{Account, Denials, Offenses};
    let mut watch = watch::Watch::default();
    let second = |secs: u64| forebay_units::Nanos::from_secs(secs);
    let quiet = std::collections::BTreeMap::new;
    assert_eq!(watch.clients(quiet, 4, second(1)), None);
    let refused = Offenses { refused: 2, ..Offenses::default() };
    let line = watch.clients(|| [(Account::User(1000), refused)].into(), 4, second(2)).unwrap();
    assert_eq!(line, "clients were disconnected: user 1000: 2 over its share of 4 connections");
    let unasked = || unreachable!("one line a minute: what happens until then is kept");
    assert_eq!(watch.clients(unasked, 4, second(61)), None);
    let host = Account::Host("2001:db8::".parse().unwrap());
    let slow = Offenses { timed_out: 1, evicted: 3, ..Offenses::default() };
    let denied = Denials { export: 1, certificate_out_of_time: 3, ..Denials::default() };
    let broken = Offenses { denied, protocol_errors: 1, lost: 2, ..Offenses::default() };
    let both = || [(Account::Owner, broken), (host, slow)].into();
    assert_eq!(
        watch.clients(both, 4, second(62)).unwrap(),
        "clients were disconnected: the owner: 1 for an export that does not exist or is not \
         theirs, 3 with a certificate that has expired or is not valid yet, 1 for breaking the \
         protocol, 2 whose connection broke off in the middle of a message; 2001:db8::/64: 1 for \
         being too slow, 3 for holding memory that others waited for"
    );
    assert_eq!(watch.clients(quiet, 4, second(300)), None);
}

#[test]
fn certificate_is_warned_of_outside_of_its_time() {
    let day = 86_400;
    let valid = 100 * day..=200 * day;
    for within in [100, 150, 200] {
        assert_eq!(out_of_time(&valid, within * 86_400), None);
    }
    let why = |now: u64| out_of_time(&valid, now).unwrap();
    assert!(why(200 * 86_400 + 1).starts_with("has expired ("), "{}", why(u64::MAX));
    assert!(why(100 * 86_400 - 1).starts_with("is not valid yet (from "), "{}", why(0));
    assert!(why(200 * 86_400 + 1).contains("1970"));
}

#[test]
fn the_listener_of_a_dead_process_is_waited_for_and_one_that_greets_is_not() {
    let folder = std::env::temp_dir().join(format!("forebay-free-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (dying, living) = (folder.join("dying"), folder.join("living"));
    forebay_rt::Runtime::real().unwrap().block_on(async {
        let greeter = Listener::bind_unix(&living, 0o600).unwrap();
        let server = forebay_rt::spawn(async move {
            // The first connection asks whether the address is taken, the second for a greeting.
            let _first = greeter.accept().await.unwrap();
            let second = greeter.accept().await.unwrap();
            second.send_all(b"NBDMAGIC".to_vec()).await.0.unwrap();
        });
        let taken = until_free(&ListenAddress::Unix(living)).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        server.await;
        let left = std::os::unix::net::UnixListener::bind(&dying).unwrap();
        let end = forebay_rt::spawn(async move {
            forebay_rt::sleep(Nanos::from_millis(200)).await;
            drop(left);
        });
        until_free(&ListenAddress::Unix(dying)).await.unwrap();
        end.await;
    });
    std::fs::remove_dir_all(&folder).unwrap();
}
