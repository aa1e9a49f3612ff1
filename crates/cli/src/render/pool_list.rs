//! `pool list`, with groups and devices when asked to.

use forebay_pool::status::{PoolStatus, PoolSummary, VdevKind, VdevStatus};
use serde::Serialize;

use super::json::document;
use super::numbers::{bytes, percent};
use super::pools::summary_field;
use super::table::{Column, Table};
use crate::args::Listing;
use crate::failure::Failure;

const FIELDS: [&str; 7] = ["name", "size", "allocated", "free", "capacity", "health", "server"];

/// A pool that could be opened.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The pool as a whole.
    #[serde(flatten)]
    pub summary: PoolSummary,
    /// The id of the process that serves it.
    pub server_pid: Option<u32>,
    /// Data groups and log devices, with `-v`.
    #[serde(flatten)]
    pub vdevs: Option<Vdevs>,
}

/// The device tree of a pool.
#[derive(Clone, Debug, Serialize)]
pub struct Vdevs {
    groups: Vec<Vdev>,
    logs: Vec<Vdev>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    caches: Vec<Vdev>,
}

/// A group, a log device, or a device.
#[derive(Clone, Debug, Serialize)]
struct Vdev {
    name: String,
    kind: VdevKind,
    health: &'static str,
    /// Bytes of the whole device; devices only.
    #[serde(skip_serializing_if = "Option::is_none")]
    device_bytes: Option<u64>,
    /// As of a pool; groups and log devices only.
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_alloc_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_free_bytes: Option<u64>,
    children: Vec<Vdev>,
}

impl Vdevs {
    /// From the device tree of `pool status`.
    #[must_use]
    pub fn new(status: &PoolStatus) -> Self {
        let all = |list: &[VdevStatus]| list.iter().map(Vdev::new).collect();
        let PoolStatus { groups, logs, caches, .. } = status;
        Self { groups: all(groups), logs: all(logs), caches: all(caches) }
    }
}

impl Vdev {
    fn new(status: &VdevStatus) -> Self {
        let size = status.space.map(|space| space.raw_size_bytes);
        let alloc = status.space.and_then(|space| space.raw_alloc_bytes);
        Self {
            name: status.name.clone(),
            kind: status.kind,
            health: status.state.as_str(),
            device_bytes: status.children.is_empty().then_some(status.size_bytes),
            raw_size_bytes: size,
            raw_alloc_bytes: alloc,
            raw_free_bytes: size.zip(alloc).map(|(size, alloc)| size.saturating_sub(alloc)),
            children: status.children.iter().map(Self::new).collect(),
        }
    }

    fn field(&self, field: &str, exact: bool) -> String {
        let number = |value: Option<u64>| value.map(|value| bytes(value, exact));
        let text = match field {
            "size" => number(self.raw_size_bytes.or(self.device_bytes)),
            "alloc" | "allocated" => number(self.raw_alloc_bytes),
            "free" => number(self.raw_free_bytes),
            "cap" | "capacity" => {
                let both = self.raw_alloc_bytes.zip(self.raw_size_bytes);
                both.map(|(alloc, size)| percent(alloc, size, exact))
            }
            "health" => Some(self.health.to_owned()),
            _ => None,
        };
        text.unwrap_or_else(|| "-".to_owned())
    }
}

/// Refuses fields that `pool list` does not have.
pub fn check_pool_fields(fields: &[String]) -> Result<(), Failure> {
    fields.iter().try_for_each(|field| column(field).map(drop))
}

/// `pool list`. A known pool that cannot be opened has dashes, and UNAVAIL.
pub fn pool_list(
    pools: &[(String, Result<Listed, Failure>)],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    let fields = match fields {
        [] => FIELDS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let columns: Result<Vec<Column>, Failure> = fields.iter().map(|field| column(field)).collect();
    let columns = columns?;
    if listing.json {
        #[derive(Serialize)]
        struct Body<'a> {
            pools: Vec<&'a Listed>,
            unavailable: Vec<Unavailable<'a>>,
        }
        let open = pools.iter().filter_map(|(_, listed)| listed.as_ref().ok()).collect();
        let unavailable = pools.iter().filter_map(|(name, listed)| {
            let error = listed.as_ref().err()?;
            Some(Unavailable { name, error })
        });
        let unavailable = unavailable.collect();
        return Ok(document("pool list", Body { pools: open, unavailable }));
    }
    let mut lines = Lines { table: Table::new(&columns), fields, listing };
    for (name, listed) in pools {
        lines.push(name.clone(), |field| match listed {
            Err(_) if field == "health" => "UNAVAIL".to_owned(),
            Err(_) => "-".to_owned(),
            Ok(listed) if field == "server" => match listed.server_pid {
                Some(pid) => pid.to_string(),
                None => "-".to_owned(),
            },
            Ok(listed) => summary_field(&listed.summary, field, listing.exact),
        });
        let Some(vdevs) = listed.as_ref().ok().and_then(|listed| listed.vdevs.as_ref()) else {
            continue;
        };
        lines.push_all(&vdevs.groups, 1);
        for (heading, list) in [("logs", &vdevs.logs), ("cache", &vdevs.caches)] {
            if !list.is_empty() {
                lines.push(heading.to_owned(), |_| "-".to_owned());
                lines.push_all(list, 1);
            }
        }
    }
    if pools.is_empty() && !listing.scripted {
        return Ok("no pools available\n".to_owned());
    }
    Ok(lines.table.render(listing.scripted))
}

/// A pool that could not be opened, and why.
#[derive(Serialize)]
struct Unavailable<'a> {
    name: &'a str,
    error: &'a Failure,
}

struct Lines<'a> {
    table: Table,
    fields: Vec<&'a str>,
    listing: Listing,
}

impl Lines<'_> {
    fn push(&mut self, name: String, value: impl Fn(&str) -> String) {
        let cell = |field: &&str| if *field == "name" { name.clone() } else { value(field) };
        self.table.push(self.fields.iter().map(cell).collect());
    }

    fn push_all(&mut self, vdevs: &[Vdev], depth: usize) {
        for vdev in vdevs {
            let indent = if self.listing.scripted { 0 } else { depth };
            let exact = self.listing.exact;
            self.push(format!("{}{}", "  ".repeat(indent), vdev.name), |f| vdev.field(f, exact));
            self.push_all(&vdev.children, depth + 1);
        }
    }
}

fn column(field: &str) -> Result<Column, Failure> {
    Ok(match field {
        "name" => Column::left("NAME"),
        "size" => Column::right("SIZE"),
        "alloc" | "allocated" => Column::right("ALLOC"),
        "free" => Column::right("FREE"),
        "cap" | "capacity" => Column::right("CAP"),
        "health" => Column::left("HEALTH"),
        "server" => Column::right("SERVER"),
        "dedup" | "dedupratio" => Column::right("DEDUP"),
        "ratio" | "compressratio" => Column::right("RATIO"),
        "guid" => Column::right("GUID"),
        "usable" => Column::right("USABLE"),
        "avail" | "available" => Column::right("AVAIL"),
        "objects" => Column::right("OBJECTS"),
        "stored" => Column::right("STORED"),
        "requests" => Column::right("REQUESTS"),
        "retries" => Column::right("RETRIES"),
        "cost" => Column::right("COST"),
        "monthly" => Column::right("MONTHLY"),
        other => {
            let fields = FIELDS.join(", ");
            return Err(Failure::usage(format!("'{other}' is not a field of pool list"))
                .with_hint(format!(
                    "use {fields}, usable, available, dedupratio, compressratio, guid; of pools in \
                     object stores objects, stored, requests, retries, cost, monthly"
                )));
        }
    })
}
