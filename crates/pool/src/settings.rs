//! Settings: the properties of a pool as values, parsed once when they are read or set.

use std::collections::BTreeMap;

use forebay_units::{Nanos, parse_bytes};

/// Values of the properties in [`crate::properties::POOL_PROPERTIES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Freed segments are discarded.
    pub autotrim: bool,
    /// A data device that does not answer for so long is given up; zero: never.
    pub device_timeout: Nanos,
    /// Most bytes that are in memory alone; `None`: by the size of the pool.
    pub dirty_limit: Option<u64>,
    /// Bytes of footers kept in memory.
    pub footer_cache: u64,
    /// A log device that does not answer for so long is given up; zero: never.
    pub log_timeout: Nanos,
    /// Bytes a second that a scan reads; `None`: as much time as it leaves to clients.
    pub scan_rate: Option<u64>,
    /// Age at which a group is synced.
    pub txg_timeout: Nanos,
}

impl Settings {
    /// From the properties that are set. What is not set, or cannot be read, has its default.
    pub fn of(properties: &BTreeMap<String, String>) -> Self {
        const FOOTER_CACHE: u64 = 64 << 20;
        let value = |name: &str| properties.get(name).map(String::as_str);
        let bytes = |name| value(name).and_then(|text| parse_bytes(text).ok());
        let seconds = |name, default| match value(name) {
            Some("off") => Nanos::ZERO,
            text => Nanos::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(default)),
        };
        Self {
            autotrim: value("autotrim") != Some("off"),
            device_timeout: seconds("device_timeout", 30),
            dirty_limit: bytes("dirty_limit"),
            footer_cache: bytes("footer_cache").unwrap_or(FOOTER_CACHE),
            log_timeout: seconds("log_timeout", 5),
            scan_rate: bytes("scan_rate"),
            txg_timeout: seconds("txg_timeout", 5),
        }
    }
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
    fn each_property_is_read() {
        let set = [
            ("autotrim", "off"),
            ("device_timeout", "off"),
            ("dirty_limit", "8M"),
            ("footer_cache", "2M"),
            ("log_timeout", "7"),
            ("scan_rate", "3M"),
            ("txg_timeout", "9"),
        ];
        let set = set.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = Settings {
            autotrim: false,
            device_timeout: Nanos::ZERO,
            dirty_limit: Some(8 << 20),
            footer_cache: 2 << 20,
            log_timeout: Nanos::from_secs(7),
            scan_rate: Some(3 << 20),
            txg_timeout: Nanos::from_secs(9),
        };
        assert_eq!(Settings::of(&BTreeMap::from(set)), expected);
    }
}
