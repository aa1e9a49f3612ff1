//! `volume list` and `volume get`.

use std::collections::BTreeMap;

use forebay_pool::properties::VOLUME_PROPERTIES;
use forebay_pool::status::{SnapshotStatus, VolumeStatus};
use serde::Serialize;

use super::json::document;
use super::numbers::bytes;
use super::properties::{choose, property_table, said, source, sources_of};
use super::table::{Column, Table};
use crate::args::{ListedKind, Listing};
use crate::clock::history_time;
use crate::failure::Failure;
use crate::properties::default_of;

const LIST_FIELDS: [&str; 7] =
    ["name", "used", "available", "referenced", "volsize", "sync", "attached"];

const SNAPSHOT_FIELDS: [&str; 5] = ["name", "used", "available", "referenced", "creation"];

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
        // What the volume takes from the pool. What it has written since its newest snapshot is in
        // the space set aside for it; what its snapshots have as well is beside that.
        "used" => {
            let written = volume.written_bytes;
            number(volume.used_bytes.saturating_sub(written) + written.max(volume.reserved_bytes))
        }
        "avail" | "available" => number(volume.available_bytes),
        "refer" | "referenced" => number(volume.referenced_bytes),
        "written" => number(volume.written_bytes),
        "ratio" | "compressratio" => {
            let ratio = volume.compress_percent.max(100) as f64 / 100.0;
            Some((if exact { format!("{ratio:.2}") } else { format!("{ratio:.2}x") }, "-"))
        }
        "usedsnap" | "usedbysnapshots" => number(volume.used_by_snapshots_bytes),
        "origin" => Some((volume.origin.clone().unwrap_or_else(|| "-".to_owned()), "-")),
        "receive_resume_token" => {
            Some((volume.resume_token.clone().unwrap_or_else(|| "-".to_owned()), "-"))
        }
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

/// A field of a snapshot; `None` when neither a snapshot nor a volume has it.
fn snapshot_value(snapshot: &SnapshotStatus, name: &str, exact: bool) -> Option<String> {
    let list = |names: &[String]| match names {
        [] => "-".to_owned(),
        names => names.join(","),
    };
    Some(match name {
        "name" => snapshot.name.clone(),
        "used" => bytes(snapshot.used_bytes, exact),
        "refer" | "referenced" => bytes(snapshot.referenced_bytes, exact),
        "volsize" => bytes(snapshot.size_bytes, exact),
        "creation" if exact => snapshot.created_at.to_string(),
        "creation" => history_time(snapshot.created_at),
        "clones" => list(&snapshot.clones),
        "holds" => list(&snapshot.holds),
        other if is_computed_of_volume(other) => "-".to_owned(),
        other if VOLUME_PROPERTIES.iter().any(|property| property.name == other) => "-".to_owned(),
        _ => return None,
    })
}

/// Volumes and snapshots.
#[derive(Clone, Debug, Default)]
pub struct Versions {
    /// The volumes.
    pub volumes: Vec<ListedVolume>,
    /// The snapshots.
    pub snapshots: Vec<SnapshotStatus>,
}

/// One of them.
#[derive(Clone, Copy)]
enum Version<'a> {
    Volume(&'a ListedVolume),
    Snapshot(&'a SnapshotStatus),
}

impl Version<'_> {
    fn value(self, field: &str, exact: bool) -> Result<String, Failure> {
        let found = match self {
            Version::Volume(_) if matches!(field, "creation" | "clones" | "holds") => {
                Some("-".to_owned())
            }
            Version::Volume(volume) => value(volume, field, exact).map(|(text, _)| text),
            Version::Snapshot(snapshot) => snapshot_value(snapshot, field, exact),
        };
        found.ok_or_else(|| no_field(field))
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
            | "written"
            | "ratio"
            | "compressratio"
            | "usedsnap"
            | "usedbysnapshots"
            | "origin"
            | "receive_resume_token"
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

/// The versions in this order: numbers by value, everything else as text. Without an order each
/// volume comes before its snapshots, which are in the order that they were taken in.
fn sorted<'a>(versions: &'a Versions, order: Order) -> Result<Vec<Version<'a>>, Failure> {
    let mut all: Vec<Version> = Vec::new();
    let of = |snapshot: &SnapshotStatus, volume: &str| {
        snapshot.name.split_once('@').is_some_and(|(name, _)| name == volume)
    };
    for volume in &versions.volumes {
        all.push(Version::Volume(volume));
        let mine = versions.snapshots.iter().filter(|s| of(s, &volume.status.name));
        all.extend(mine.map(Version::Snapshot));
    }
    let is_listed = |s: &SnapshotStatus| versions.volumes.iter().any(|v| of(s, &v.status.name));
    all.extend(versions.snapshots.iter().filter(|s| !is_listed(s)).map(Version::Snapshot));
    let mut keyed = Vec::new();
    for version in all {
        let mut key: Vec<(u64, String)> = Vec::new();
        for field in order.fields {
            let text = version.value(field, true)?;
            key.push((text.parse().unwrap_or(0), text));
        }
        keyed.push((key, version));
    }
    keyed.sort_by(|(a, _), (b, _)| if order.is_descending { b.cmp(a) } else { a.cmp(b) });
    Ok(keyed.into_iter().map(|(_, version)| version).collect())
}

fn no_field(field: &str) -> Failure {
    Failure::usage(format!("'{field}' is not a field of volume list")).with_hint(format!(
        "use {}, refreservation or a property that 'forebay volume get all' shows",
        LIST_FIELDS.join(", ")
    ))
}

/// Refuses fields that `volume list` does not have.
pub fn check_volume_fields(fields: &[String]) -> Result<(), Failure> {
    let is_field = |field: &str| {
        is_computed_of_volume(field)
            || matches!(field, "volsize" | "creation" | "clones" | "holds")
            || VOLUME_PROPERTIES.iter().any(|property| property.name == field)
    };
    match fields.iter().find(|field| !is_field(field)) {
        Some(field) => Err(no_field(field)),
        None => Ok(()),
    }
}

/// `volume list`.
pub fn volume_list(
    versions: &Versions,
    kind: ListedKind,
    fields: &[String],
    order: Order,
    listing: Listing,
) -> Result<String, Failure> {
    let sorted = sorted(versions, order)?;
    let fields: Vec<&str> = match (fields, kind) {
        ([], ListedKind::Volume) => LIST_FIELDS.to_vec(),
        ([], _) => SNAPSHOT_FIELDS.to_vec(),
        (fields, _) => fields.iter().map(String::as_str).collect(),
    };
    let columns: Vec<Column> = fields
        .iter()
        .map(|field| match *field {
            "name" => Column::left("NAME"),
            "sync" => Column::left("SYNC"),
            "attached" => Column::left("ATTACHED"),
            "creation" => Column::left("CREATION"),
            "clones" => Column::left("CLONES"),
            "holds" => Column::left("HOLDS"),
            "origin" => Column::left("ORIGIN"),
            "available" => Column::right("AVAIL"),
            "referenced" => Column::right("REFER"),
            "refreservation" => Column::right("REFRESERV"),
            other => Column::right(&other.to_ascii_uppercase()),
        })
        .collect();
    let mut table = Table::new(&columns);
    for version in &sorted {
        let row = fields.iter().map(|field| version.value(field, listing.exact));
        table.push(row.collect::<Result<Vec<_>, _>>()?);
    }
    if listing.json {
        return Ok(list_json(&sorted, kind));
    }
    if sorted.is_empty() && !listing.scripted {
        let what = if kind == ListedKind::Snapshot { "snapshots" } else { "volumes" };
        return Ok(format!("no {what} available\n"));
    }
    Ok(table.render(listing.scripted))
}

fn list_json(sorted: &[Version], kind: ListedKind) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        volumes: Option<Vec<&'a ListedVolume>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        snapshots: Option<Vec<&'a SnapshotStatus>>,
    }
    let volumes = sorted.iter().filter_map(|version| match version {
        Version::Volume(volume) => Some(*volume),
        Version::Snapshot(_) => None,
    });
    let snapshots = sorted.iter().filter_map(|version| match version {
        Version::Volume(_) => None,
        Version::Snapshot(snapshot) => Some(*snapshot),
    });
    let body = Body {
        volumes: (kind != ListedKind::Snapshot).then(|| volumes.collect()),
        snapshots: (kind != ListedKind::Volume).then(|| snapshots.collect()),
    };
    document("volume list", body)
}

fn values_of(chosen: &[(String, String, &str)]) -> BTreeMap<String, String> {
    chosen.iter().map(|(name, text, _)| (name.clone(), text.clone())).collect()
}

/// The `wanted` properties of a snapshot. What only volumes have is a dash, as in zfs.
fn snapshot_properties(
    snapshot: &SnapshotStatus,
    wanted: &[String],
    exact: bool,
) -> Result<Vec<(String, String, &'static str)>, Failure> {
    const NAMES: [&str; 6] = ["volsize", "used", "referenced", "creation", "clones", "holds"];
    let value = |name: &str| {
        let none = || default_of(name).map(|_| "-".to_owned());
        let text = snapshot_value(snapshot, name, exact).or_else(none)?;
        Some((name.to_owned(), text, "-"))
    };
    let mut all: Vec<_> = NAMES.iter().filter_map(|name| value(name)).collect();
    if !wanted.iter().any(|name| name == "all") {
        let others = wanted.iter().filter(|name| !NAMES.contains(&name.as_str()));
        all.extend(others.filter_map(|name| value(name)));
    }
    choose(&all, wanted, "snapshot")
}

/// `volume get`. Fails for a property that a volume or snapshot does not have.
pub fn volume_get(
    Versions { volumes, snapshots }: &Versions,
    wanted: &[String],
    fields: &[String],
    listing: Listing,
) -> Result<String, Failure> {
    const FIXED: [&str; 12] = [
        "volsize",
        "used",
        "available",
        "referenced",
        "written",
        "usedbysnapshots",
        "compressratio",
        "origin",
        "receive_resume_token",
        "refreservation",
        "sync",
        "attached",
    ];
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
        json.insert(volume.status.name.clone(), values_of(&chosen));
        sources.insert(volume.status.name.clone(), sources_of(&chosen));
        for (name, text, source) in chosen {
            rows.push([volume.status.name.clone(), name, text, source.to_owned()]);
        }
    }
    let mut json_snapshots = BTreeMap::new();
    for snapshot in snapshots {
        let chosen = snapshot_properties(snapshot, wanted, listing.exact || listing.json)?;
        json_snapshots.insert(snapshot.name.clone(), values_of(&chosen));
        sources.insert(snapshot.name.clone(), sources_of(&chosen));
        for (name, text, source) in chosen {
            rows.push([snapshot.name.clone(), name, text, source.to_owned()]);
        }
    }
    if listing.json {
        #[derive(Serialize)]
        struct Body {
            volumes: BTreeMap<String, BTreeMap<String, String>>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            snapshots: BTreeMap<String, BTreeMap<String, String>>,
            sources: BTreeMap<String, BTreeMap<String, String>>,
        }
        let body = Body { volumes: json, snapshots: json_snapshots, sources };
        return Ok(document("volume get", body));
    }
    if rows.is_empty() && !listing.scripted {
        return Ok("no volumes available\n".to_owned());
    }
    property_table(&rows, fields, listing)
}
