use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<PoolSpec, Failure> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    parse_vdevs(&words)
}

fn shown(spec: &PoolSpec) -> String {
    let groups = spec.groups.iter().map(|g| format!("{:?}({})", g.layout, g.devices.join(" ")));
    let logs = spec.logs.iter().map(|l| format!("log({})", l.devices.join(" ")));
    let caches = spec.caches.iter().map(|device| format!("cache({device})"));
    groups.chain(logs).chain(caches).collect::<Vec<_>>().join(" ")
}

#[test]
fn groups_are_read_as_in_zpool() {
    for (words, expected) in [
        ("a", "Raid0(a)"),
        ("a b log c", "Raid0(a b) log(c)"),
        ("raidz a b c", "Raidz1(a b c)"),
        ("mirror a b mirror c d", "Mirror(a b) Mirror(c d)"),
        ("raidz2 a b c log mirror l m", "Raidz2(a b c) log(l m)"),
        ("raidz3 a b c d log l m", "Raidz3(a b c d) log(l) log(m)"),
        ("raid0 a b log l mirror m n mirror o p", "Raid0(a b) log(l) log(m n) log(o p)"),
        ("log mirror l m", "log(l m)"),
        ("a raidz1 b c", "Raid0(a) Raidz1(b c)"),
        ("a cache k log l cache m", "Raid0(a) log(l) cache(k) cache(m)"),
        ("objects s3://b/p log l", "Raid0(s3://b/p) log(l)"),
        ("raidz objects s3://b/p s3://c/p", "Raidz1(s3://b/p s3://c/p)"),
        (
            "mirror objects s3://b/p s3://c/p objects s3://d/p",
            "Mirror(s3://b/p s3://c/p) Raid0(s3://d/p)",
        ),
    ] {
        assert_eq!(shown(&parse(words).unwrap()), expected, "{words}");
    }
}

#[test]
fn wrong_groups_are_refused() {
    for (words, hint) in [
        ("mirror a", "mirror needs 2"),
        ("raidz1", "raidz1 needs 2"),
        ("raidz objects s3://b/p", "raidz1 needs 2 devices at least, not 1"),
        ("mirror objects s3://b/p d", "d is not in an object store"),
        ("raidz2 a b", "raidz2 needs 3"),
        ("raidz3 a b c", "raidz3 needs 4"),
        ("raid0", "raid0 needs 1"),
        ("a log", "follows 'log'"),
        ("a log raidz1 b c", "single or a mirror"),
        ("a log mirror b", "mirror needs 2"),
        ("a a", "a is named twice"),
        ("a log a", "a is named twice"),
        ("a cache", "follows 'cache'"),
        ("a cache mirror b c", "a cache device is a single device, not mirror"),
        ("a spare raidz1 b c", "a spare is a single device, not raidz1"),
        ("a cache b spare b", "b is named twice"),
        ("a special b", "'special' devices"),
        ("raidz4 a b c d e", "'raidz4' is not a kind of group"),
        ("raid5 a b c", "'raid5' is not a kind of group"),
        ("mirrored a b", "'mirrored' is not a kind of group"),
        ("a log draid1 b", "'draid1' is not a kind of group"),
    ] {
        let failure = parse(words).unwrap_err();
        assert!(failure.message.contains(hint), "{words}: {}", failure.message);
    }
}

#[test]
fn group_has_24_devices_at_most_and_pool_more() {
    let some = |from: usize, count: usize| {
        (from..from + count).map(|at| format!("d{at}")).collect::<Vec<_>>().join(" ")
    };
    let wide = format!("raidz2 {} log mirror l m", some(0, 24));
    assert_eq!(devices_of(&parse(&wide).unwrap()).count(), 26, "a log beside a group of 24");
    let two = format!("mirror {} mirror {}", some(0, 24), some(24, 24));
    assert_eq!(devices_of(&parse(&two).unwrap()).count(), 48);
    for (words, name) in [
        (some(0, 25), "one raid0"),
        (format!("raidz3 {}", some(0, 25)), "one raidz3"),
        (format!("a log mirror {}", some(0, 25)), "one mirror"),
    ] {
        let failure = parse(&words).unwrap_err();
        assert_eq!(failure.code, ErrorCode::TooManyDevices);
        assert!(failure.message.ends_with(name), "{}", failure.message);
    }
}

proptest! {
    #[test]
    fn every_device_is_read_once(words in proptest::collection::vec(
        prop_oneof![
            3 => "[a-j]", 1 => Just("mirror".to_owned()), 1 => Just("raidz1".to_owned()),
            1 => Just("raid0".to_owned()), 1 => Just("log".to_owned()),
        ], 0..16)
    ) {
        if let Ok(spec) = parse_vdevs(&words) {
            let devices: Vec<&String> =
                words.iter().filter(|w| w.len() == 1).collect();
            prop_assert_eq!(devices_of(&spec).collect::<Vec<_>>(), devices);
        }
    }
}
