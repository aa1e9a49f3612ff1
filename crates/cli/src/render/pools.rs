//! `pool get`, `pool history`, and what `pool import` finds.

use std::collections::BTreeMap;

use forebay_pool::spec::PoolSpec;
use forebay_pool::status::{FoundPool, Health, PoolSummary, StoreSummary, VdevStatus};
use forebay_units::Layout;
use serde::Serialize;

use super::json::document;
use super::numbers::{bytes, percent};
use super::properties::{choose, property_table, said, source, sources_of};
use super::tree::device_tree;
use crate::args::Listing;
use crate::clock::history_time;
use crate::escape::visible;
use crate::explain::importable_line;
use crate::failure::Failure;
use crate::properties::POOL_READ_ONLY;

/// A field of a pool, in words.
pub(super) fn summary_field(summary: &PoolSummary, field: &str, exact: bool) -> String {
    match field {
        "size" => bytes(summary.raw_size_bytes, exact),
        "alloc" | "allocated" => bytes(summary.raw_alloc_bytes, exact),
        "free" => bytes(summary.raw_free_bytes, exact),
        "cap" | "capacity" => percent(summary.raw_alloc_bytes, summary.raw_size_bytes, exact),
        "usable" => bytes(summary.size_bytes, exact),
        "avail" | "available" => bytes(summary.available_bytes, exact),
        "dedup" | "dedupratio" => {
            ratio(summary.dedup_referenced_bytes, summary.dedup_stored_bytes, exact)
        }
        "ratio" | "compressratio" => {
            ratio(summary.compressed_referenced_bytes, summary.compressed_stored_bytes, exact)
        }
        "guid" => summary.guid.to_string(),
        "objects" | "stored" | "requests" | "retries" | "cost" | "monthly" => {
            store_field(summary.store.as_ref(), field, exact)
        }
        "version" => summary.format_version.to_string(),
        _ => summary.health.as_str().to_owned(),
    }
}

/// A field of a pool in an object store; a dash of another.
fn store_field(store: Option<&StoreSummary>, field: &str, exact: bool) -> String {
    let Some(store) = store else { return "-".to_owned() };
    match field {
        "objects" => store.objects.to_string(),
        "stored" => bytes(store.stored_bytes, exact),
        "requests" => store.requests.to_string(),
        "retries" => store.retries.to_string(),
        "cost" => format!("{:.4}", store.cost.requests + store.cost.egress),
        _ => format!("{:.4}", store.cost.stored_a_month),
    }
}

/// Bytes for each byte that they take, as zpool writes it.
fn ratio(all: u64, stored: u64, exact: bool) -> String {
    let ratio = if stored == 0 { 1.0 } else { all as f64 / stored as f64 };
    if exact { format!("{ratio:.2}") } else { format!("{ratio:.2}x") }
}

/// Whether a pool has this property, and it is read-only.
#[must_use]
pub fn is_computed_of_pool(property: &str) -> bool {
    property == "name" || POOL_READ_ONLY.iter().any(|row| row.name == property)
}

/// The summary and the settings of a pool, for `pool get`.
pub type PoolProperties = (PoolSummary, BTreeMap<String, String>);

/// `pool get`. Fails for a property that a pool does not have.
pub fn pool_get(
    pools: &[PoolProperties],
    wanted: &[String],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    let exact = listing.exact || listing.json;
    let mut rows = Vec::new();
    let mut json = BTreeMap::new();
    let mut sources = BTreeMap::new();
    for (summary, properties) in pools {
        let mut all: Vec<(String, String, &str)> = POOL_READ_ONLY
            .iter()
            .map(|row| (row.name.to_owned(), summary_field(summary, row.name, exact), "-"))
            .collect();
        for (name, value) in properties {
            if !is_computed_of_pool(name) {
                all.push((name.clone(), said(value), source(name, value)));
            }
        }
        let chosen = choose(&all, wanted, "pool")?;
        json.insert(summary.name.clone(), {
            let pairs = chosen.iter().map(|(name, value, _)| (name.clone(), value.clone()));
            pairs.collect::<BTreeMap<_, _>>()
        });
        sources.insert(summary.name.clone(), sources_of(&chosen));
        for (name, value, source) in chosen {
            rows.push([summary.name.clone(), name, value, source.to_owned()]);
        }
    }
    if listing.json {
        #[derive(Serialize)]
        struct Body {
            pools: BTreeMap<String, BTreeMap<String, String>>,
            sources: BTreeMap<String, BTreeMap<String, String>>,
        }
        return Ok(document("pool get", Body { pools: json, sources }));
    }
    if pools.is_empty() && !listing.scripted {
        return Ok("no pools available\n".to_owned());
    }
    property_table(&rows, fields, listing)
}

/// `pool history`.
#[must_use]
pub fn history_text(pool: &str, lines: &[String]) -> String {
    let mut text = format!("History for '{pool}':\n");
    for line in lines {
        // The pool keeps seconds since 1970 before each command.
        let stamped = line.split_once(' ').and_then(|(at, rest)| Some((at.parse().ok()?, rest)));
        match stamped {
            Some((at, rest)) => text.push_str(&format!("{} {}\n", history_time(at), visible(rest))),
            None => text.push_str(&format!("{}\n", visible(line))),
        }
    }
    text
}

/// The JSON of `pool history`.
#[must_use]
pub fn history_json(pools: &BTreeMap<String, Vec<String>>) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: &'a BTreeMap<String, Vec<String>>,
    }
    document("pool history", Body { pools })
}

/// The layout that `pool create -n` shows.
#[must_use]
pub fn layout(pool: &str, spec: &PoolSpec) -> String {
    let mut text = format!("would create '{pool}' with the following layout:\n\n\t{pool}\n");
    let push = |text: &mut String, word: Option<&str>, devices: &[String]| {
        let depth = if word.is_some() { 4 } else { 2 };
        if let Some(word) = word {
            text.push_str(&format!("\t  {word}\n"));
        }
        for device in devices {
            text.push_str(&format!("\t{:depth$}{}\n", "", visible(device)));
        }
    };
    for group in &spec.groups {
        let word = match group.layout {
            Layout::Raid0 => None,
            layout => Some(layout.as_str()),
        };
        push(&mut text, word, &group.devices);
    }
    if !spec.logs.is_empty() {
        text.push_str("\tlogs\n");
    }
    for log in &spec.logs {
        push(&mut text, (log.devices.len() > 1).then_some("mirror"), &log.devices);
    }
    for (heading, devices) in [("cache", &spec.caches), ("spares", &spec.spares)] {
        if !devices.is_empty() {
            text.push_str(&format!("\t{heading}\n"));
            push(&mut text, None, devices);
        }
    }
    text
}

/// What `pool import` without a name lists.
#[must_use]
pub fn found_text(pools: &[FoundPool]) -> String {
    let mut text = String::new();
    for pool in pools {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!(
            "   pool: {}\n     id: {}\n  state: {}\n",
            pool.name,
            pool.guid,
            pool.state.as_str()
        ));
        let line = importable_line(&pool.name, &pool.importable);
        if !line.is_empty() {
            text.push_str(&format!(" status: {line}\n"));
        }
        let action = match pool.state {
            Health::Unavail => {
                "The pool cannot be imported as it is. Bring missing devices back, and try again."
            }
            _ => "The pool can be imported using its name or numeric identifier.",
        };
        text.push_str(&format!(" action: {action}\n config:\n\n"));
        // A pool that is not open has no error counts.
        text.push_str(&device_tree(&pool.name, pool.state, &pool.groups, &pool.logs, &[], None));
    }
    text
}

/// The JSON of the same.
#[must_use]
pub fn found_json(pools: &[FoundPool]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: Vec<Found<'a>>,
    }
    #[derive(Serialize)]
    struct Found<'a> {
        name: &'a str,
        guid: u64,
        state: Health,
        groups: &'a [VdevStatus],
        logs: &'a [VdevStatus],
        remark: String,
        paths: &'a [String],
    }
    let mut found = Vec::new();
    for pool in pools {
        found.push(Found {
            name: &pool.name,
            guid: pool.guid,
            state: pool.state,
            groups: &pool.groups,
            logs: &pool.logs,
            remark: importable_line(&pool.name, &pool.importable),
            paths: &pool.paths,
        });
    }
    document("pool import", Body { pools: found })
}
