//! Values that several commands take: names, sizes, properties, and how a listing is printed.

use clap::Args;

/// How a listing is printed.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// For scripts: no header, one tab between fields.
    #[arg(short = 'H')]
    pub scripted: bool,
    /// Exact numbers instead of 1.50G.
    #[arg(short = 'p')]
    pub exact: bool,
    /// Versioned JSON.
    #[arg(long, conflicts_with = "scripted")]
    pub json: bool,
}

/// How a report that is no table is printed.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Exact numbers instead of 1.50G.
    #[arg(short = 'p')]
    pub exact: bool,
    /// Versioned JSON.
    #[arg(long)]
    pub json: bool,
}

/// A `P=V` pair, for a volume.
pub fn property(text: &str) -> Result<(String, String), String> {
    pair(text, "sync=always")
}

/// A `P=V` pair, for a pool.
pub fn pool_property(text: &str) -> Result<(String, String), String> {
    pair(text, "comment=lab")
}

fn pair(text: &str, example: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("write it as property=value, for example {example}")),
    }
}

/// Names separated by commas, in one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameList(pub Vec<String>);

/// Reads a [`NameList`].
pub fn name_list(text: &str) -> Result<NameList, String> {
    let names: Vec<String> = text.split(',').map(str::to_owned).collect();
    if names.iter().any(String::is_empty) {
        return Err("write names separated by single commas, or 'all'".to_owned());
    }
    Ok(NameList(names))
}

/// `POOL/VOL`, split.
pub fn volume_name(text: &str) -> Result<VolumeName, String> {
    match text.split_once('/') {
        Some((pool, volume)) if !pool.is_empty() && !volume.is_empty() && !volume.contains('/') => {
            Ok(VolumeName { pool: pool.to_owned(), volume: volume.to_owned() })
        }
        _ => Err("name a volume as POOL/VOL, for example tank/vol0".to_owned()),
    }
}

/// The full name of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// The pool's name.
    pub pool: String,
    /// The volume's name within it.
    pub volume: String,
}
