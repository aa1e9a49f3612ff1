//! Settings: the properties of a pool as values, parsed once when they are read or set.

use std::collections::BTreeMap;

use forebay_cache::Policy;
use forebay_units::{Nanos, parse_bytes};

use crate::store_prices::{DEFAULT_PRICES, StorePrices};

/// When data devices are told how far the log has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogWitness {
    /// Within a second.
    Second,
    /// Within a second; sooner while they have nothing else to write.
    Idle,
    /// Before a durable write is answered.
    Always,
}

impl LogWitness {
    /// By the name of the property's value.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "second" => Some(Self::Second),
            "idle" => Some(Self::Idle),
            "always" => Some(Self::Always),
            _ => None,
        }
    }
}

/// What happens to operations while the pool is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailMode {
    /// They wait until it goes on.
    Wait,
    /// They fail.
    Continue,
}

impl FailMode {
    /// By the name of the property's value.
    pub fn parse(value: &str) -> Option<Self> {
        match value {
            "wait" => Some(Self::Wait),
            "continue" => Some(Self::Continue),
            _ => None,
        }
    }
}

/// Values of the properties in [`crate::properties::POOL_PROPERTIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// An empty device at the path of a failed one replaces it.
    pub autoreplace: bool,
    /// Freed segments are discarded.
    pub autotrim: bool,
    /// Thousandths of a cache device that may be written to it a day; `None`: no limit.
    pub cache_milli_dwpd: Option<u64>,
    /// What leaves the read cache when it is full.
    pub cache_policy: Policy,
    /// Bytes of the read cache; `None`: by the memory of the machine.
    pub cache_size: Option<u64>,
    /// Bytes of the index of fingerprints.
    pub dedup_index_size: u64,
    /// A data device that does not answer for so long is given up; zero: never.
    pub device_timeout: Nanos,
    /// Most bytes that are in memory alone; `None`: by the size of the pool.
    pub dirty_limit: Option<u64>,
    /// What happens to operations while the pool is suspended.
    pub failmode: FailMode,
    /// Bytes of footers kept in memory.
    pub footer_cache: u64,
    /// When data devices are told how far the log has come.
    pub log_witness: LogWitness,
    /// A log device that does not answer for so long is given up; zero: never.
    pub log_timeout: Nanos,
    /// A warning is given when an object store is away and durable writes go on for fewer seconds;
    /// `None`: never.
    pub outage_warning_secs: Option<u64>,
    /// Bytes a second that a scan reads; `None`: as much time as it leaves to clients.
    pub scan_rate: Option<u64>,
    /// Seconds from the beginning of a scrub to that of the next; `None`: none begins by itself.
    pub scrub_every_secs: Option<u64>,
    /// What an object store costs.
    pub store_prices: StorePrices,
    /// Age at which a group is synced.
    pub txg_timeout: Nanos,
}

impl Settings {
    /// From the properties that are set. What is not set, or cannot be read, has its default.
    pub fn of(properties: &BTreeMap<String, String>) -> Self {
        const FOOTER_CACHE: u64 = 64 << 20;
        const DEDUP_INDEX_SIZE: u64 = 64 << 20;
        let value = |name: &str| properties.get(name).map(String::as_str);
        let bytes = |name| value(name).and_then(|text| parse_bytes(text).ok());
        let seconds = |name, default| match value(name) {
            Some("off") => Nanos::ZERO,
            text => Nanos::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(default)),
        };
        Self {
            autoreplace: value("autoreplace") == Some("on"),
            autotrim: value("autotrim") != Some("off"),
            cache_milli_dwpd: match value("cache_dwpd") {
                Some("off") => None,
                text => text.and_then(parse_milli).or(Some(DEFAULT_MILLI_DWPD)),
            },
            cache_policy: value("cache_policy")
                .and_then(|name| name.parse().ok())
                .unwrap_or(Policy::Arc),
            cache_size: match value("cache_size") {
                Some("off") => Some(0),
                _ => bytes("cache_size"),
            },
            dedup_index_size: bytes("dedup_index_size").unwrap_or(DEDUP_INDEX_SIZE),
            device_timeout: seconds("device_timeout", 30),
            dirty_limit: bytes("dirty_limit"),
            failmode: value("failmode").and_then(FailMode::parse).unwrap_or(FailMode::Wait),
            footer_cache: bytes("footer_cache").unwrap_or(FOOTER_CACHE),
            log_timeout: seconds("log_timeout", 5),
            log_witness: value("log_witness")
                .and_then(LogWitness::parse)
                .unwrap_or(LogWitness::Idle),
            outage_warning_secs: match value("outage_warning") {
                Some("off") => None,
                text => text.and_then(|text| text.parse().ok()).or(Some(DEFAULT_WARNING_SECS)),
            },
            scan_rate: bytes("scan_rate"),
            scrub_every_secs: value("scrub_every").and_then(parse_span_secs),
            store_prices: StorePrices::parse(value("store_prices").unwrap_or(DEFAULT_PRICES))
                .or_else(|| StorePrices::parse(DEFAULT_PRICES))
                .expect("the default is one"),
            txg_timeout: seconds("txg_timeout", 5),
        }
    }
}

/// How long durable writes can go on without an object store when a warning is given.
const DEFAULT_WARNING_SECS: u64 = 60;

/// What a cache device may be written a day unless the operator says otherwise, in thousandths of
/// its size: what drives for reading are made for.
const DEFAULT_MILLI_DWPD: u64 = 1000;

/// Thousandths in a number such as `0.3`: up to 1000, with three digits after the point at most.
pub(crate) fn parse_milli(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_plain(whole) || !is_plain(part) || part.len() > 3 || whole.len() > 4 {
        return None;
    }
    let part: u64 = format!("{part:0<3}").parse().ok()?;
    let milli = whole.parse::<u64>().ok()? * 1000 + part;
    (1..=1_000_000).contains(&milli).then_some(milli)
}

/// Seconds of a time in hours or days, such as `12h` or `30d`: an hour to ten years.
pub(crate) fn parse_span_secs(text: &str) -> Option<u64> {
    const HOUR_SECS: u64 = 3600;
    const DAY_SECS: u64 = 24 * HOUR_SECS;
    let (number, unit_secs) = match text.strip_suffix('d') {
        Some(days) => (days, DAY_SECS),
        None => (text.strip_suffix('h')?, HOUR_SECS),
    };
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    let span = number.parse::<u64>().ok().filter(|_| is_plain)?.checked_mul(unit_secs)?;
    (HOUR_SECS..=3650 * DAY_SECS).contains(&span).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::properties::POOL_PROPERTIES;

    #[test]
    fn defaults_are_those_of_the_table_of_properties() {
        let table = POOL_PROPERTIES.iter();
        let defaults = table.map(|p| (p.name.to_owned(), p.default.to_owned())).collect();
        assert_eq!(Settings::of(&defaults), Settings::of(&BTreeMap::new()));
    }

    #[test]
    fn spans_are_hours_or_days() {
        let good = [("1h", 3600), ("12h", 43_200), ("1d", 86_400), ("3650d", 315_360_000)];
        for (text, secs) in good {
            assert_eq!(parse_span_secs(text), Some(secs), "{text}");
        }
        let bad = [
            "",
            "h",
            "0h",
            "30",
            "-1d",
            "+1d",
            "1.5d",
            "1 d",
            "3651d",
            "99999999999999999999d",
            "1w",
        ];
        for text in bad {
            assert_eq!(parse_span_secs(text), None, "{text}");
        }
    }

    #[test]
    fn thousandths_have_four_digits_before_the_point_at_most() {
        let good =
            [("0.001", 1), ("0.3", 300), ("1", 1000), ("12.05", 12_050), ("1000", 1_000_000)];
        for (text, milli) in good {
            assert_eq!(parse_milli(text), Some(milli), "{text}");
        }
        let long = "18446744073709551615";
        for text in ["", "0", "0.0", "1000.001", "1001", "10000", "00001", "1.0005", "-1", long] {
            assert_eq!(parse_milli(text), None, "{text}");
        }
    }

    #[test]
    fn words_are_read_and_what_cannot_be_read_has_its_default() {
        let of = |name: &str, value: &str| {
            Settings::of(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
        };
        assert_eq!(of("cache_dwpd", "off").cache_milli_dwpd, None);
        assert_eq!(of("cache_size", "1M").cache_size, Some(1 << 20));
        assert_eq!(of("outage_warning", "off").outage_warning_secs, None);
        assert_eq!(of("device_timeout", "40").device_timeout, Nanos::from_secs(40));
        let witnesses = [
            ("second", LogWitness::Second),
            ("idle", LogWitness::Idle),
            ("always", LogWitness::Always),
        ];
        for (word, witness) in witnesses {
            assert_eq!(of("log_witness", word).log_witness, witness);
        }
        assert_eq!(FailMode::parse("wait"), Some(FailMode::Wait));
        assert_eq!(FailMode::parse("x"), None);
        for property in POOL_PROPERTIES {
            assert_eq!(of(property.name, "no such value"), Settings::of(&BTreeMap::new()));
        }
    }

    #[test]
    fn each_property_is_read() {
        let set = [
            ("autoreplace", "on"),
            ("autotrim", "off"),
            ("cache_dwpd", "0.3"),
            ("cache_policy", "s3fifo"),
            ("cache_size", "off"),
            ("dedup_index_size", "8M"),
            ("device_timeout", "off"),
            ("dirty_limit", "8M"),
            ("failmode", "continue"),
            ("footer_cache", "2M"),
            ("log_timeout", "7"),
            ("log_witness", "always"),
            ("outage_warning", "300"),
            ("scan_rate", "3M"),
            ("scrub_every", "30d"),
            ("store_prices", "put=0.01"),
            ("txg_timeout", "9"),
        ];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = Settings {
            autoreplace: true,
            autotrim: false,
            cache_milli_dwpd: Some(300),
            cache_policy: Policy::S3Fifo,
            cache_size: Some(0),
            dedup_index_size: 8 << 20,
            device_timeout: Nanos::ZERO,
            dirty_limit: Some(8 << 20),
            failmode: FailMode::Continue,
            footer_cache: 2 << 20,
            log_timeout: Nanos::from_secs(7),
            log_witness: LogWitness::Always,
            outage_warning_secs: Some(300),
            scan_rate: Some(3 << 20),
            scrub_every_secs: Some(30 * 86_400),
            store_prices: StorePrices::parse("put=0.01").unwrap(),
            txg_timeout: Nanos::from_secs(9),
        };
        assert_eq!(Settings::of(&BTreeMap::from(set)), expected);
    }
}
