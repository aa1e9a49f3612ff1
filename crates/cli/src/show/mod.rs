//! Turns what pools tell of themselves into text and JSON; knows no I/O.

mod clock;
mod iostat;
mod pools;
mod stats;
mod status;
mod table;
mod volumes;

use serde::Serialize;

pub use clock::{duration, local_time};
pub use iostat::{IostatRow, iostat_header, iostat_json, iostat_rows, iostat_text};
pub use pools::{found_json, found_text, history_json, history_text, pool_get, pool_list};
pub use stats::{stats_json, stats_text};
pub use status::{scan_text, status_json, status_text};
pub use table::{Column, Table};
pub use volumes::{volume_get, volume_list};

use crate::args::Listing;

/// Version of the JSON of every listing. Raised when a field changes its meaning or goes.
pub const JSON_VERSION: u32 = forebay_pool::status::STATUS_VERSION;

#[derive(Serialize)]
struct Document<'a, T> {
    version: u32,
    command: &'a str,
    #[serde(flatten)]
    body: T,
}

/// A JSON document: `version`, `command`, and the fields of `body`. Ends with a line feed.
pub fn document<T: Serialize>(command: &str, body: T) -> String {
    let document = Document { version: JSON_VERSION, command, body };
    let mut text = serde_json::to_string_pretty(&document).expect("plain data");
    text.push('\n');
    text
}

/// Bytes, exact or as people read them.
#[must_use]
pub fn bytes(value: u64, exact: bool) -> String {
    if exact { value.to_string() } else { forebay_units::format_bytes(value) }
}

/// A count, exact or as people read it (`12.3K`, powers of 1024 as zpool has them).
#[must_use]
pub fn count(value: u64, exact: bool) -> String {
    if value < 1024 { value.to_string() } else { bytes(value, exact) }
}

/// How full, in percent; exact and scripted output leave the sign out.
#[must_use]
pub fn percent(part: u64, whole: u64, exact: bool) -> String {
    let share = if whole == 0 { 0 } else { (u128::from(part) * 100 / u128::from(whole)) as u64 };
    if exact { share.to_string() } else { format!("{share}%") }
}

/// Where a settable property's value comes from, as `zfs get` says it.
fn source(name: &str, value: &str) -> &'static str {
    let is_default = match name {
        "sync" => value == "standard",
        "autotrim" => value == "on",
        "txg_timeout" | "log_timeout" => value == "5",
        "device_timeout" => value == "30",
        "dirty_limit" | "footer_cache" | "scan_rate" => value == "auto",
        _ => value == "-",
    };
    if is_default { "default" } else { "local" }
}

/// The rows of `get`: name, property, value, source.
fn property_table(rows: Vec<[String; 4]>, listing: Listing) -> String {
    let mut table = Table::new(&[
        Column::left("NAME"),
        Column::left("PROPERTY"),
        Column::left("VALUE"),
        Column::left("SOURCE"),
    ]);
    for row in rows {
        table.push(row.to_vec());
    }
    table.render(listing.scripted)
}

#[cfg(test)]
mod tests;
