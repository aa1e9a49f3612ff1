//! `pool list`, `pool get`, `pool history`, and what `pool import` finds.

use std::collections::BTreeMap;

use forebay_pool::status::{FoundPool, Health, PoolSummary};
use serde::Serialize;

use super::clock::history_time;
use super::status::device_tree;
use super::{Column, Table, bytes, document, percent, property_table, source};
use crate::args::Listing;
use crate::failure::Failure;

const LIST_FIELDS: [&str; 6] = ["name", "size", "allocated", "free", "capacity", "health"];

/// `pool list`. A pool that is known but cannot be opened has no summary: dashes and UNAVAIL.
pub fn pool_list(
    pools: &[(String, Option<PoolSummary>)],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    if listing.json {
        #[derive(Serialize)]
        struct Body<'a> {
            pools: Vec<&'a PoolSummary>,
            unavailable: Vec<&'a String>,
        }
        let open = pools.iter().filter_map(|(_, summary)| summary.as_ref()).collect();
        let unavailable = pools.iter().filter(|p| p.1.is_none()).map(|(name, _)| name).collect();
        return Ok(document("pool list", Body { pools: open, unavailable }));
    }
    let fields: Vec<&str> = if fields.is_empty() {
        LIST_FIELDS.to_vec()
    } else {
        fields.iter().map(String::as_str).collect()
    };
    let mut columns = Vec::new();
    for field in &fields {
        columns.push(match *field {
            "name" => Column::left("NAME"),
            "size" => Column::right("SIZE"),
            "alloc" | "allocated" => Column::right("ALLOC"),
            "free" => Column::right("FREE"),
            "cap" | "capacity" => Column::right("CAP"),
            "health" => Column::left("HEALTH"),
            "guid" => Column::right("GUID"),
            "usable" => Column::right("USABLE"),
            "avail" | "available" => Column::right("AVAIL"),
            other => {
                return Err(Failure::usage(format!(
                    "'{other}' is not a field of pool list; use {}, usable, available, guid",
                    LIST_FIELDS.join(", ")
                )));
            }
        });
    }
    let mut table = Table::new(&columns);
    for (name, summary) in pools {
        let row = fields.iter().map(|field| match (summary, *field) {
            (_, "name") => name.clone(),
            (None, "health") => "UNAVAIL".to_owned(),
            (None, _) => "-".to_owned(),
            (Some(s), field) => summary_field(s, field, listing.exact),
        });
        table.push(row.collect());
    }
    if pools.is_empty() && !listing.scripted {
        return Ok("no pools available\n".to_owned());
    }
    Ok(table.render(listing.scripted))
}

fn summary_field(summary: &PoolSummary, field: &str, exact: bool) -> String {
    match field {
        "size" => bytes(summary.raw_size_bytes, exact),
        "alloc" | "allocated" => bytes(summary.raw_alloc_bytes, exact),
        "free" => bytes(summary.raw_free_bytes, exact),
        "cap" | "capacity" => percent(summary.raw_alloc_bytes, summary.raw_size_bytes, exact),
        "usable" => bytes(summary.size_bytes, exact),
        "avail" | "available" => bytes(summary.free_bytes, exact),
        "guid" => summary.guid.to_string(),
        _ => summary.health.as_str().to_owned(),
    }
}

/// What is known of a pool, for `pool get`.
pub type PoolProperties = (PoolSummary, BTreeMap<String, String>);

/// `pool get`. Fails on a property that a pool does not have.
pub fn pool_get(
    pools: &[PoolProperties],
    wanted: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    const COMPUTED: [&str; 8] =
        ["size", "allocated", "free", "capacity", "usable", "available", "health", "guid"];
    let mut rows = Vec::new();
    let mut json = BTreeMap::new();
    for (summary, properties) in pools {
        let mut all: Vec<(String, String, &str)> = COMPUTED
            .iter()
            .map(|name| ((*name).to_owned(), summary_field(summary, name, listing.exact), "-"))
            .collect();
        for (name, value) in properties {
            if !COMPUTED.contains(&name.as_str()) {
                all.push((name.clone(), value.clone(), source(name, value)));
            }
        }
        let chosen = choose(&all, wanted, "pool")?;
        json.insert(summary.name.clone(), {
            let pairs = chosen.iter().map(|(name, value, _)| (name.clone(), value.clone()));
            pairs.collect::<BTreeMap<_, _>>()
        });
        for (name, value, source) in chosen {
            rows.push([summary.name.clone(), name, value, source.to_owned()]);
        }
    }
    if listing.json {
        #[derive(Serialize)]
        struct Body {
            pools: BTreeMap<String, BTreeMap<String, String>>,
        }
        return Ok(document("pool get", Body { pools: json }));
    }
    Ok(property_table(rows, listing))
}

/// Of `all` properties the `wanted` ones, in the order asked for.
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
            Failure::new(format!("a {what} has no property '{name}'; it has {}", known.join(", ")))
        })
    };
    wanted.iter().map(find).collect()
}

/// `pool history`.
#[must_use]
pub fn history_text(pool: &str, lines: &[String]) -> String {
    let mut text = format!("History for '{pool}':\n");
    for line in lines {
        // The pool keeps seconds since 1970 before each command.
        let stamped = line.split_once(' ').and_then(|(at, rest)| Some((at.parse().ok()?, rest)));
        match stamped {
            Some((at, rest)) => text.push_str(&format!("{} {rest}\n", history_time(at))),
            None => text.push_str(&format!("{line}\n")),
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
        if !pool.remark.is_empty() {
            text.push_str(&format!(" status: {}\n", pool.remark));
        }
        let action = match pool.state {
            Health::Unavail => {
                "The pool cannot be imported as it is. Bring missing devices back, and try again."
            }
            _ => "The pool can be imported using its name or numeric identifier.",
        };
        text.push_str(&format!(" action: {action}\n config:\n\n"));
        // Nothing has been read yet, so there are no error counts to show.
        text.push_str(&device_tree(&pool.name, pool.state, &pool.groups, &pool.logs, None));
    }
    text
}

/// The JSON of the same.
#[must_use]
pub fn found_json(pools: &[FoundPool]) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        pools: &'a [FoundPool],
    }
    document("pool import", Body { pools })
}
