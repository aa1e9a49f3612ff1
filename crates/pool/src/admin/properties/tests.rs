use super::*;

const LIMITED: &[&str] = &["off", "1", "3600"];
const NOT_LIMITED: &[&str] = &["0", "3601", "", "-1", "1s", "auto"];
const SIZES: &[&str] = &["auto", "1M", "1048576", "1T"];
const NO_SIZES: &[&str] = &["1048575", "1099511627777", "0", "off", "none", ""];
const SWITCHES: &[&str] = &["on", "off"];
const NO_SWITCHES: &[&str] = &["yes", "ON", "", "1"];

/// Values that a property can have, and values that it cannot have.
fn values(kind: &str, name: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match name {
        "autoreplace" | "autotrim" | "cache_writes" => (SWITCHES, NO_SWITCHES),
        "cache_dwpd" => (&["off", "0.001", "1", "1000"], &["0", "1001", "-1", "on", ""]),
        "cache_policy" => (&["arc", "s3fifo", "s3fifo-1", "sieve", "lru", "fifo"], &["lfu", ""]),
        "cache_size" => {
            (&["auto", "off", "64K", "1T"], &["65535", "1099511627777", "0", "none", ""])
        }
        "comment" => (&["-", "", "two words"], &["two\nlines", "\u{7f}"]),
        "dedup_index_size" => (&["1M", "1T"], &["auto", "1048575", "1099511627777", "off"]),
        "device_timeout" | "log_timeout" | "outage_warning" => (LIMITED, NOT_LIMITED),
        "dirty_limit" | "footer_cache" | "scan_rate" => (SIZES, NO_SIZES),
        "failmode" => (&["wait", "continue"], &["panic", "off", ""]),
        "log_witness" => (&["second", "idle", "always"], &["never", "off", ""]),
        "scrub_every" => (&["off", "1h", "12h", "3650d"], &["0h", "3651d", "1m", "on", ""]),
        "store_prices" => (&["put=1", DEFAULT_PRICES], &["put", "tax=1"]),
        "txg_timeout" => (&["1", "600"], &["0", "601", "off", ""]),
        "sync" => (&["standard", "always", "disabled"], &["off", ""]),
        "bandwidth_limit" => (&["none", "1M", "1T"], &["auto", "1048575", "1099511627777", "off"]),
        "compression" => (&["off", "lz4", "zstd", "zstd-1", "zstd-19"], &["zstd-0", "zstd-20"]),
        "dedup" => (&["off", "on", "verify"], &["yes", "sha256", ""]),
        "iops_limit" => (&["none", "1", "1000000000"], &["0", "1000000001", "off", ""]),
        "primarycache" => (&["all", "metadata", "none"], &["off", ""]),
        "snapshot_every" => (&["off", "hourly=24,daily=7"], &["hourly", "secondly=1"]),
        "weight" => (&["1", "1000"], &["0", "1001", "none", ""]),
        "reservation" => (&["auto", "none"], &["off", "1M", ""]),
        other => panic!("values of {kind} property {other} are missing here"),
    }
}

#[test]
fn properties_take_the_values_that_they_say_and_no_others() {
    for (kind, known) in [("pool", POOL_PROPERTIES), ("volume", VOLUME_PROPERTIES)] {
        for property in known {
            let name = property.name;
            let (good, bad) = values(kind, name);
            for value in good.iter().chain([&property.default]) {
                assert_eq!(check_property(known, name, value), Ok(()), "{kind} {name}={value}");
            }
            for value in bad {
                let refused = PropertyError::BadValue {
                    property: name,
                    value: (*value).to_owned(),
                    expected: property.values,
                };
                assert_eq!(check_property(known, name, value), Err(refused), "{kind} {name}");
            }
        }
        let (longest, longer) = ("c".repeat(200), "c".repeat(201));
        assert_eq!(check_property(known, "comment", &longest), Ok(()));
        assert!(check_property(known, "comment", &longer).is_err());
        let unknown = check_property(known, "colour", "red");
        assert!(
            matches!(&unknown, Err(PropertyError::Unknown { property, known: names })
                if property == "colour" && names.len() == known.len()),
            "{unknown:?}"
        );
    }
}

#[test]
fn names_are_what_no_other_word_of_a_command_can_be() {
    let (longest, longer) = ("n".repeat(200), "n".repeat(201));
    for good in ["t", "tank", "T-1.x:y_z", "mirrors", &longest] {
        assert_eq!(check_pool_name(good), Ok(()), "{good}");
        assert_eq!(check_volume_name(good), Ok(()), "{good}");
        assert_eq!(check_snapshot_name(good), Ok(()), "{good}");
    }
    for bad in ["", "a/b", "a@b", "a b", "a%b", "a,b", "\u{e4}", &longer] {
        let name = || bad.to_owned();
        assert_eq!(check_pool_name(bad), Err(NameError::BadPool { name: name() }));
        assert_eq!(check_volume_name(bad), Err(NameError::BadVolume { name: name() }));
        assert_eq!(check_snapshot_name(bad), Err(NameError::BadSnapshot { name: name() }));
    }
    // A pool could not be told from an id, nor a volume from an option.
    for (name, is_volume) in [("1tank", true), ("-tank", false), (".tank", false)] {
        assert_eq!(check_pool_name(name), Err(NameError::BadPool { name: name.to_owned() }));
        assert_eq!(check_volume_name(name).is_ok(), is_volume, "{name}");
        assert_eq!(check_snapshot_name(name), Ok(()));
    }
    for name in ["mirror", "raid0", "raidz1", "raidz2", "raidz3", "log", "spare"] {
        assert_eq!(check_pool_name(name), Err(NameError::Reserved { name: name.to_owned() }));
        assert_eq!(check_volume_name(name), Ok(()));
    }
}
