//! Data devices in object stores: `s3://BUCKET/PREFIX` and `file://DIR`.
//!
//! What enters: names; credentials from the environment and the files of AWS's tools. What leaves:
//! checked names, opened devices. What always holds: no credential is in a name or written.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_device::{Cause, Device, DeviceError, ErrorKind, Operation};
use forebay_objects::{ObjectDevice, Store, StoreError};
use forebay_pool::spec::PoolSpec;
use forebay_stores::RemoteStore;
use forebay_units::{Nanos, format_bytes, parse_bytes};

use crate::devices::DEVICE_MIN_BYTES;
use crate::failure::Failure;
use crate::files;

/// Size of a device whose name gives none.
const DEFAULT_SIZE_BYTES: u64 = 1 << 40;
/// The largest size: the pool keeps a table of its segments in memory.
const MAX_SIZE_BYTES: u64 = 1 << 50;
/// Sizes are multiples of this.
const SIZE_UNIT_BYTES: u64 = 1 << 20;
/// The longest file of credentials or settings that is read.
const FILE_MAX_BYTES: u64 = 1 << 20;
/// Settings that are of use together only.
const CREDENTIALS: [&str; 3] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
/// How long a store may fail before it is said why: less than a pool waits for a device.
const OPEN_TIMEOUT: Nanos = Nanos::from_secs(25);
/// The same for a look.
const LOOK_TIMEOUT: Nanos = Nanos::from_millis(2500);
const EXAMPLE: &str = "for example objects s3://backups/tank?size=2T, or objects file:///srv/tank";

/// What a name says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    place: Place,
    /// The name without what follows `?`.
    name: String,
    size_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Bucket { bucket: String, prefix: String },
    Folder(PathBuf),
}

/// Whether the word names a device in an object store.
#[must_use]
pub fn is_name(word: &str) -> bool {
    word.starts_with("s3://") || word.starts_with("file://")
}

fn parse(word: &str) -> Result<Named, String> {
    let (name, options) = word.split_once('?').unwrap_or((word, ""));
    let mut size_bytes = DEFAULT_SIZE_BYTES;
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", value)) => size_bytes = parse_bytes(value).map_err(|e| e.to_string())?,
            _ => return Err(format!("'{option}' is unknown; there is size=SIZE")),
        }
    }
    size_bytes = size_bytes / SIZE_UNIT_BYTES * SIZE_UNIT_BYTES;
    if !(DEVICE_MIN_BYTES..=MAX_SIZE_BYTES).contains(&size_bytes) {
        let most = format_bytes(MAX_SIZE_BYTES);
        return Err(format!(
            "its size is to be from 64M to {most}, and not {}",
            format_bytes(size_bytes)
        ));
    }
    let name = name.trim_end_matches('/').to_owned();
    if name.contains('@') {
        return Err("credentials belong into the environment or a profile".to_owned());
    }
    let place = match (name.strip_prefix("s3://"), name.strip_prefix("file://")) {
        (Some(rest), _) => match rest.split_once('/') {
            Some((bucket, prefix)) if !bucket.is_empty() && !prefix.is_empty() => {
                Place::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() }
            }
            _ => return Err("it needs a bucket and a prefix".to_owned()),
        },
        (None, Some(folder)) if folder.starts_with('/') => Place::Folder(PathBuf::from(folder)),
        _ => return Err("it needs the absolute path of a folder".to_owned()),
    };
    Ok(Named { place, name, size_bytes })
}

/// The name as a pool keeps it. Fails when the word is no such name; the store is not asked.
pub fn resolve(word: &str) -> Result<String, Failure> {
    match parse(word) {
        Ok(_) => Ok(word.to_owned()),
        Err(what) => Err(Failure::usage(format!("{word}: {what}")).with_hint(EXAMPLE)),
    }
}

/// The same for a device that a pool is to take. A folder is made if it is not there: elsewhere a
/// missing one is a file system that is not mounted.
pub fn resolve_new(word: &str) -> Result<String, Failure> {
    let name = resolve(word)?;
    if let Ok(Named { place: Place::Folder(folder), .. }) = parse(word) {
        std::fs::create_dir_all(&folder).map_err(|e| Failure::io(folder.display(), &e))?;
    }
    Ok(name)
}

/// Fails when such a name is not in a data group.
pub fn check_places(spec: &PoolSpec) -> Result<(), Failure> {
    let logs = spec.logs.iter().flat_map(|log| &log.devices);
    match logs.chain(&spec.caches).chain(&spec.spares).find(|word| is_name(word)) {
        Some(word) => {
            let message = format!("{word}: a device in an object store can be a data device only");
            Err(Failure::usage(message).with_hint("name it before 'log', 'cache' and 'spare'"))
        }
        None => Ok(()),
    }
}

/// Whether the pool has data devices in an object store.
#[must_use]
pub fn has_any(spec: &PoolSpec) -> bool {
    spec.groups.iter().flat_map(|group| &group.devices).any(|word| is_name(word))
}

/// Fails when a new pool would keep its log in an object store.
pub fn check_log(spec: &PoolSpec) -> Result<(), Failure> {
    if has_any(spec) && spec.logs.is_empty() {
        let message = "a pool in an object store needs a log device: each durable write would be a \
                       request to the store";
        return Err(Failure::usage(message)
            .with_hint("name one, better two: log mirror /dev/nvme0n1 nbd://OTHER-HOST/log0"));
    }
    Ok(())
}

/// Opens the device `name` for the machine `host`. With `exclusive`, no other process of this
/// machine opens it so as well.
pub async fn open(name: &str, host: u64, exclusive: bool) -> Result<Device, DeviceError> {
    let failed = |kind| DeviceError::new(name, Operation::Open, 0, 0, kind);
    let refused = |error: StoreError| match error {
        StoreError::InUse => failed(ErrorKind::Busy),
        other => failed(ErrorKind::Layer(Cause::new(other))),
    };
    let named = parse(name).map_err(|text| refused(StoreError::Refused { text }))?;
    let store = match &named.place {
        Place::Bucket { bucket, prefix } => {
            RemoteStore::s3(name, (bucket, prefix), &settings(), exclusive)
        }
        Place::Folder(folder) => RemoteStore::folder(name, folder, exclusive),
    };
    let store: Rc<dyn Store> = store.map_err(refused)?;
    let at_most = if exclusive { OPEN_TIMEOUT } else { LOOK_TIMEOUT };
    Ok(ObjectDevice::open_within(store, host, named.size_bytes, at_most).await?)
}

/// Credentials, region and endpoint: of the profile, and over them those of the environment.
fn settings() -> Vec<(String, String)> {
    let env = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let profile = env("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let home = env("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, name: &str| {
        let path = env(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from);
        read(&path)
    };
    let section = if profile == "default" { profile.clone() } else { format!("profile {profile}") };
    let mut of_profile = section_of(&file("AWS_CONFIG_FILE", "config"), &section);
    of_profile.extend(section_of(&file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &profile));
    let of_environment = std::env::vars()
        .filter(|(name, value)| name.starts_with("AWS_") && !value.is_empty())
        .map(|(name, value)| (name.to_ascii_lowercase(), value));
    merged(of_profile, of_environment.collect())
}

/// Settings of the environment over those of the profile. A key, its secret and its token belong
/// together: they are of one of the two.
fn merged(
    of_profile: Vec<(String, String)>,
    of_environment: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let has_key = of_environment.iter().any(|(name, _)| name == "aws_access_key_id");
    let mut found: BTreeMap<String, String> = of_profile.into_iter().collect();
    found.retain(|name, _| !has_key || !CREDENTIALS.contains(&name.as_str()));
    found.extend(of_environment);
    found.into_iter().collect()
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(file) = files::open_to_read(path) {
        // A file that cannot be read has no settings, as for AWS's own tools.
        let _ = file.take(FILE_MAX_BYTES).read_to_string(&mut text);
    }
    text
}

/// The values of a section of a file of AWS's tools, by their names in the environment.
fn section_of(text: &str, section: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut is_in = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            is_in = name.trim() == section;
        } else if let Some((key, value)) = line.split_once('=').filter(|_| is_in) {
            let key = key.trim().to_ascii_lowercase();
            if key.starts_with('#') || key.starts_with(';') {
                continue;
            }
            let key = if key.starts_with("aws_") { key } else { format!("aws_{key}") };
            found.push((key, value.trim().to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests;
