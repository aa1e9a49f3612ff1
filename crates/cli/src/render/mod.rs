//! Turns what pools tell of themselves into text and JSON; knows no I/O.

mod clock;
mod closed;
mod iostat;
mod pool_list;
mod pools;
mod stats;
mod status;
mod table;
mod volumes;

use serde::Serialize;

pub use clock::{duration, local_time};
pub use closed::{Closed, closed_text};
pub use iostat::{IostatRow, iostat_header, iostat_json, iostat_rows, iostat_text};
pub use pool_list::{Listed, Vdevs, pool_list};
pub use pools::{
    found_json, found_text, history_json, history_text, is_computed_of_pool, layout, pool_get,
};
pub use stats::{stats_json, stats_text};
pub use status::{scan_text, status_json, status_text};
pub use table::{Column, Table};
pub use volumes::{Order, is_computed_of_volume, volume_get, volume_list};

use crate::args::Listing;
use crate::failure::Failure;

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
        _ => value == "-" || value.is_empty(),
    };
    if is_default { "default" } else { "local" }
}

/// A property's value; a dash for one that was set to nothing.
fn said(value: &str) -> String {
    if value.is_empty() { "-".to_owned() } else { value.to_owned() }
}

/// The rows of `get`: name, property, value, source; of these the `fields` asked for, all when
/// none is named.
fn property_table(
    rows: &[[String; 4]],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    const TITLES: [&str; 4] = ["NAME", "PROPERTY", "VALUE", "SOURCE"];
    let mut chosen = Vec::new();
    for field in fields {
        match TITLES.iter().position(|title| title.eq_ignore_ascii_case(field)) {
            Some(at) => chosen.push(at),
            None if field == "all" => chosen.extend(0..TITLES.len()),
            None => {
                return Err(Failure::usage(format!(
                    "'{field}' is not a field of get; use name, property, value, source or all"
                )));
            }
        }
    }
    if fields.is_empty() {
        chosen.extend(0..TITLES.len());
    }
    let columns: Vec<Column> = chosen.iter().map(|at| Column::left(TITLES[*at])).collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.push(chosen.iter().map(|at| row[*at].clone()).collect());
    }
    Ok(table.render(listing.scripted))
}

/// `text` with what would move the cursor, or pass for another column or line, written as an
/// escape: names of files may hold anything.
#[must_use]
pub fn visible(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests;
