//! Rows of properties, as `get` prints them.

use std::collections::BTreeMap;

use super::table::{Column, Table};
use crate::args::Listing;
use crate::failure::{ErrorCode, Failure};
use crate::properties::default_of;

/// The `wanted` properties among `all`, in the order of `wanted`.
pub(super) fn choose<'a>(
    all: &[(String, String, &'a str)],
    wanted: &[String],
    what: &str,
) -> Result<Vec<(String, String, &'a str)>, Failure> {
    if wanted.iter().any(|w| w == "all") {
        return Ok(all.to_vec());
    }
    let find = |name: &String| {
        all.iter().find(|p| p.0 == *name).cloned().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|p| p.0.as_str()).collect();
            let message = format!("a {what} has no property '{name}'; it has {}", known.join(", "));
            Failure::new(ErrorCode::PropertyUnknown, message)
        })
    };
    wanted.iter().map(find).collect()
}

/// The source of each value, for JSON: `default`, `local`, or `-` for a read-only property.
pub(super) fn sources_of(chosen: &[(String, String, &str)]) -> BTreeMap<String, String> {
    chosen.iter().map(|(name, _, source)| (name.clone(), (*source).to_owned())).collect()
}

/// The source of a settable property's value, as `zfs get` shows it.
pub(super) fn source(name: &str, value: &str) -> &'static str {
    let is_default = match default_of(name) {
        Some(default) => value == default || (default == "-" && value.is_empty()),
        None => value == "-" || value.is_empty(),
    };
    if is_default { "default" } else { "local" }
}

/// A property's value; a dash for an empty one.
pub(super) fn said(value: &str) -> String {
    if value.is_empty() { "-".to_owned() } else { value.to_owned() }
}

const TITLES: [&str; 4] = ["NAME", "PROPERTY", "VALUE", "SOURCE"];

/// The columns of `get` that `fields` name. Refuses those that it does not have.
pub fn get_columns(fields: &[String]) -> Result<Vec<usize>, Failure> {
    let mut chosen = Vec::new();
    for field in fields {
        match TITLES.iter().position(|title| title.eq_ignore_ascii_case(field)) {
            Some(at) => chosen.push(at),
            None if field == "all" => chosen.extend(0..TITLES.len()),
            None => {
                return Err(Failure::usage(format!("'{field}' is not a field of get"))
                    .with_hint("use name, property, value, source or all"));
            }
        }
    }
    if fields.is_empty() {
        chosen.extend(0..TITLES.len());
    }
    Ok(chosen)
}

/// The table of `get`: name, property, value and source, or the `fields` among them that were asked
/// for.
pub(super) fn property_table(
    rows: &[[String; 4]],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    let chosen = get_columns(fields)?;
    let columns: Vec<Column> = chosen.iter().map(|at| Column::left(TITLES[*at])).collect();
    let mut table = Table::new(&columns);
    for row in rows {
        table.push(chosen.iter().map(|at| row[*at].clone()).collect());
    }
    Ok(table.render(listing.scripted))
}
