//! The corpus: scenarios as JSON files, each the record of a defect that was found.
#![allow(clippy::disallowed_methods)] // an offline tool's own files, not the engine's

use std::io;
use std::path::{Path, PathBuf};

use crate::scenario::{Scenario, VERSION};

/// Loads every scenario of a folder in order of name. Fails on the first unreadable file.
pub fn load(folder: &Path) -> io::Result<Vec<(PathBuf, Scenario)>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    paths.into_iter().map(|path| load_one(&path).map(|scenario| (path, scenario))).collect()
}

/// Loads one scenario. The error names the file.
pub fn load_one(path: &Path) -> io::Result<Scenario> {
    let named = |text: String| io::Error::other(format!("{}: {text}", path.display()));
    let text = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let scenario: Scenario =
        serde_json::from_slice(&text).map_err(|error| named(error.to_string()))?;
    if scenario.version != VERSION {
        return Err(named(format!("version {} is not {VERSION}", scenario.version)));
    }
    Ok(scenario)
}

/// Writes a scenario as `name.json` and returns its path.
pub fn save(folder: &Path, name: &str, scenario: &Scenario) -> io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.json"));
    let mut text = serde_json::to_vec(scenario).map_err(io::Error::other)?;
    text.push(b'\n');
    std::fs::write(&path, text)?;
    Ok(path)
}
