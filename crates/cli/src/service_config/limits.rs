//! The `[limits]` table: one row a key, with its range.

use std::collections::BTreeMap;

use forebay_nbd::Limits;
use forebay_units::{Nanos, format_bytes};
use toml::Spanned;

use super::values::Quantity;
use super::{Problem, problem};

/// What a number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Things.
    Count,
    /// Seconds.
    Seconds,
    /// Bytes, also as text such as "64M".
    Bytes,
}

/// One key.
pub(super) struct Limit {
    pub key: &'static str,
    pub unit: Unit,
    pub min: u64,
    pub max: u64,
    pub get: fn(&Limits) -> u64,
    set: fn(&mut Limits, u64),
}

const fn secs(n: u64) -> Nanos {
    Nanos(n * 1_000_000_000)
}

/// A row of [`LIMITS`].
macro_rules! limit {
    ($key:literal, Seconds, $min:expr, $max:expr, $field:ident) => {
        Limit {
            key: $key,
            unit: Unit::Seconds,
            min: $min,
            max: $max,
            get: |limits| limits.$field.0 / 1_000_000_000,
            set: |limits, value| limits.$field = secs(value),
        }
    };
    ($key:literal, $unit:ident, $min:expr, $max:expr, $field:ident) => {
        Limit {
            key: $key,
            unit: Unit::$unit,
            min: $min,
            max: $max,
            get: |limits| limits.$field as u64,
            // The range of each row fits the type of its field.
            set: |limits, value| limits.$field = value as _,
        }
    };
}

/// The keys, with the least and the greatest value of each.
pub(super) const LIMITS: [Limit; 11] = [
    limit!("connections", Count, 8, 65_536, connections_max),
    limit!("options", Count, 8, 1024, options_max),
    limit!("handshake_seconds", Seconds, 1, 3600, handshake_deadline),
    limit!("stall_seconds", Seconds, 1, 3600, stall_deadline),
    limit!("request_bytes", Bytes, 4096, 256 << 20, request_max_bytes),
    limit!("connection_bytes", Bytes, 4096, 1 << 40, connection_bytes_max),
    limit!("total_bytes", Bytes, 1 << 20, 1 << 44, total_bytes_max),
    limit!("reply_window_bytes", Bytes, 4096, 1 << 40, reply_window_bytes),
    limit!("slow_drain_seconds", Seconds, 1, 3600, slow_drain),
    limit!("receive_buffer_bytes", Bytes, 64 << 10, 16 << 20, receive_buffer_bytes),
    limit!("extents", Count, 1, 1 << 20, extents_max),
];

/// The keys with their values in `limits`.
pub fn values(limits: &Limits) -> impl Iterator<Item = (&'static str, u64)> {
    LIMITS.iter().map(|limit| (limit.key, (limit.get)(limits)))
}

/// The default limits with the values of `table`.
pub(super) fn read(table: &BTreeMap<String, Spanned<Quantity>>) -> Result<Limits, Problem> {
    let mut limits = Limits::default();
    for (key, value) in table {
        let at = value.span();
        let Some(limit) = LIMITS.iter().find(|limit| limit.key == key) else {
            let keys: Vec<&str> = LIMITS.iter().map(|limit| limit.key).collect();
            return problem(at, format!("unknown limit '{key}', expected {}", keys.join(", ")));
        };
        let number = match (value.get_ref(), limit.unit) {
            (Quantity::Number(number) | Quantity::Size(number), Unit::Bytes)
            | (Quantity::Number(number), _) => *number,
            (Quantity::Size(_), _) => return problem(at, expected(limit)),
        };
        if !(limit.min..=limit.max).contains(&number) {
            return problem(at, expected(limit));
        }
        (limit.set)(&mut limits, number);
    }
    consistent(&limits, table)?;
    Ok(limits)
}

/// Fails where one limit leaves no room for another.
fn consistent(limits: &Limits, table: &BTreeMap<String, Spanned<Quantity>>) -> Result<(), Problem> {
    let least = limits.with_minimums();
    for (key, is, must) in [
        ("connection_bytes", limits.connection_bytes_max, least.connection_bytes_max),
        ("total_bytes", limits.total_bytes_max, least.total_bytes_max),
    ] {
        if is < must {
            let place = table.get(key).or_else(|| table.get("request_bytes"));
            let at = place.map_or(0..0, Spanned::span);
            let message = format!(
                "limits.{key}: expected at least {} bytes, which requests of {} need",
                must,
                format_bytes(u64::from(limits.request_max_bytes))
            );
            return problem(at, message);
        }
    }
    Ok(())
}

fn expected(limit: &Limit) -> String {
    let Limit { key, min, max, .. } = limit;
    match limit.unit {
        Unit::Count => format!("limits.{key}: expected a whole number from {min} to {max}"),
        Unit::Seconds => format!("limits.{key}: expected seconds from {min} to {max}"),
        Unit::Bytes => format!(
            "limits.{key}: expected a size from {} to {}",
            format_bytes(*min),
            format_bytes(*max)
        ),
    }
}
