//! `volume list` and `volume get`.

use std::collections::BTreeMap;

use forebay_pool::status::VolumeStatus;
use serde::Serialize;

use super::json::document;
use super::numbers::bytes;
use super::properties::{choose, property_table, said, source, sources_of};
use super::table::{Column, Table};
use crate::args::Listing;
use crate::failure::Failure;

const LIST_FIELDS: [&str; 7] =
    ["name", "used", "available", "referenced", "volsize", "sync", "attached"];

/// A volume, and the device that this machine's kernel has it as.
#[derive(Clone, Debug, Serialize)]
pub struct ListedVolume {
    /// What its pool reports.
    #[serde(flatten)]
    pub status: VolumeStatus,
    /// The device's path.
    pub attached: Option<String>,
}

/// A property of a volume, computed or set; `None` when there is no such property.
fn value(listed: &ListedVolume, name: &str, exact: bool) -> Option<(String, &'static str)> {
    let volume = &listed.status;
    let number = |value| Some((bytes(value, exact), "-"));
    match name {
        "attached" => Some((listed.attached.clone().unwrap_or_else(|| "-".to_owned()), "-")),
        "name" => Some((volume.name.clone(), "-")),
        // What the volume takes from the pool: its data, or the space set aside for it.
        "used" => number(volume.used_bytes.max(volume.reserved_bytes)),
        "avail" | "available" => number(volume.available_bytes),
        "refer" | "referenced" => number(volume.used_bytes),
        "volsize" => Some((bytes(volume.size_bytes, exact), "local")),
        "refreserv" | "refreservation" => {
            let shown = match volume.reserved_bytes {
                0 if !exact => "none".to_owned(),
                reserved => bytes(reserved, exact),
            };
            Some((shown, if volume.reserved_bytes == 0 { "default" } else { "local" }))
        }
        "sync" => Some((volume.sync.clone(), source(name, &volume.sync))),
        other => volume.properties.get(other).map(|v| (said(v), source(name, v))),
    }
}

/// Whether a volume has this property, and `volume set` cannot change it.
#[must_use]
pub fn is_computed_of_volume(property: &str) -> bool {
    matches!(
        property,
        "name"
            | "used"
            | "avail"
            | "available"
            | "refer"
            | "referenced"
            | "refreserv"
            | "refreservation"
            | "attached"
    )
}

/// The fields by which volumes are sorted.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The first decides; without fields, the name does.
    pub fields: &'a [String],
    /// The largest first.
    pub is_descending: bool,
}

/// `volumes` in this order: numbers by value, everything else as text.
fn sorted(volumes: &[ListedVolume], order: Order) -> Result<Vec<ListedVolume>, Failure> {
    let key = |volume: &ListedVolume| -> Result<Vec<(u64, String)>, Failure> {
        let of = |field: &String| {
            let (text, _) = value(volume, field, true).ok_or_else(|| no_field(field))?;
            Ok((text.parse().unwrap_or(0), text))
        };
        order.fields.iter().map(of).collect()
    };
    let mut keyed = Vec::new();
    for volume in volumes {
        keyed.push((key(volume)?, volume.clone()));
    }
    // Equal volumes stay in the order of their names.
    keyed.sort_by(|(a, _), (b, _)| if order.is_descending { b.cmp(a) } else { a.cmp(b) });
    Ok(keyed.into_iter().map(|(_, volume)| volume).collect())
}

fn no_field(field: &str) -> Failure {
    Failure::usage(format!("'{field}' is not a field of volume list")).with_hint(format!(
        "use {}, refreservation or a property that 'forebay volume get all' shows",
        LIST_FIELDS.join(", ")
    ))
}

/// `volume list`.
pub fn volume_list(
    volumes: &[ListedVolume],
    fields: &[String],
    order: Order,
    listing: Listing,
) -> Result<String, Failure> {
    let volumes = &sorted(volumes, order)?[..];
    if listing.json {
        #[derive(Serialize)]
        struct Body<'a> {
            volumes: &'a [ListedVolume],
        }
        return Ok(document("volume list", Body { volumes }));
    }
    let fields: Vec<&str> = if fields.is_empty() {
        LIST_FIELDS.to_vec()
    } else {
        fields.iter().map(String::as_str).collect()
    };
    let columns: Vec<Column> = fields
        .iter()
        .map(|field| match *field {
            "name" => Column::left("NAME"),
            "sync" => Column::left("SYNC"),
            "attached" => Column::left("ATTACHED"),
            "available" => Column::right("AVAIL"),
            "referenced" => Column::right("REFER"),
            "refreservation" => Column::right("REFRESERV"),
            other => Column::right(&other.to_ascii_uppercase()),
        })
        .collect();
    let mut table = Table::new(&columns);
    for volume in volumes {
        let mut row = Vec::new();
        for field in &fields {
            match value(volume, field, listing.exact) {
                Some((text, _)) => row.push(text),
                None => return Err(no_field(field)),
            }
        }
        table.push(row);
    }
    if volumes.is_empty() && !listing.scripted {
        return Ok("no volumes available\n".to_owned());
    }
    Ok(table.render(listing.scripted))
}

/// `volume get`. Fails for a property that a volume does not have.
pub fn volume_get(
    volumes: &[ListedVolume],
    wanted: &[String],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    const FIXED: [&str; 7] =
        ["volsize", "used", "available", "referenced", "refreservation", "sync", "attached"];
    let mut rows = Vec::new();
    let mut json = BTreeMap::new();
    let mut sources = BTreeMap::new();
    for volume in volumes {
        let names = FIXED.iter().map(|n| (*n).to_owned());
        let others =
            volume.status.properties.keys().filter(|k| !FIXED.contains(&k.as_str())).cloned();
        let all: Vec<(String, String, &str)> = names
            .chain(others)
            .filter_map(|name| {
                let (text, source) = value(volume, &name, listing.exact || listing.json)?;
                Some((name, text, source))
            })
            .collect();
        let chosen = choose(&all, wanted, "volume")?;
        json.insert(volume.status.name.clone(), {
            let pairs = chosen.iter().map(|(name, text, _)| (name.clone(), text.clone()));
            pairs.collect::<BTreeMap<_, _>>()
        });
        sources.insert(volume.status.name.clone(), sources_of(&chosen));
        for (name, text, source) in chosen {
            rows.push([volume.status.name.clone(), name, text, source.to_owned()]);
        }
    }
    if listing.json {
        #[derive(Serialize)]
        struct Body {
            volumes: BTreeMap<String, BTreeMap<String, String>>,
            sources: BTreeMap<String, BTreeMap<String, String>>,
        }
        return Ok(document("volume get", Body { volumes: json, sources }));
    }
    if volumes.is_empty() && !listing.scripted {
        return Ok("no volumes available\n".to_owned());
    }
    property_table(&rows, fields, listing)
}
