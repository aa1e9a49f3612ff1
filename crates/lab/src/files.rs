//! The lab is an offline tool: it keeps its results in ordinary files, here and nowhere else.

use crate::LabError;
use std::io::Write;
use std::path::{Path, PathBuf};

fn failed(what: &str, path: &Path, why: &std::io::Error) -> LabError {
    LabError::failed(format!("cannot {what} {}: {why}", path.display()))
}

/// A request names this file: that it cannot be read is the request's fault.
#[allow(clippy::disallowed_methods)] // An offline tool reads the page or sweep it is given.
pub(crate) fn read_named(path: &Path) -> Result<String, LabError> {
    std::fs::read(path)
        .map_err(|e| e.to_string())
        .and_then(|bytes| String::from_utf8(bytes).map_err(|_| "it is not text".to_owned()))
        .map_err(|e| LabError::usage(format!("cannot read {}: {e}", path.display())))
}

/// The file's bytes, or none when there is no such file.
#[allow(clippy::disallowed_methods)] // An offline tool looks for results it kept before.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, LabError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("read", path, &e)),
    }
}

/// Makes the directory and those above it.
pub(crate) fn make_dir(path: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(path).map_err(|e| failed("make directory", path, &e))
}

/// Replaces the file whole: a reader sees the old one or the new one, also after a kill. `writer`
/// tells apart processes that write the same file at the same time.
#[allow(clippy::disallowed_methods)] // An offline tool keeps its results.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), LabError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    std::fs::write(&beside, text).map_err(|e| failed("write", &beside, &e))?;
    std::fs::rename(&beside, path).map_err(|e| failed("write", path, &e))
}

/// Opens for appending.
pub(crate) fn append(path: &Path) -> Result<std::fs::File, LabError> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|e| failed("open", path, &e))
}

/// Adds one line, handed to the kernel in one piece.
pub(crate) fn add_line(file: &mut std::fs::File, path: &Path, line: &str) -> Result<(), LabError> {
    file.write_all(format!("{line}\n").as_bytes()).map_err(|e| failed("write", path, &e))
}

/// Files of a directory in order of name; empty when there is none.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, LabError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("list", dir, &e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| failed("list", dir, &e))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// A fingerprint of the running program, so that results kept by another build are not reused.
#[allow(clippy::disallowed_methods)] // It reads nothing but the program itself.
pub(crate) fn program_fingerprint() -> String {
    let own = std::env::current_exe().and_then(std::fs::read);
    own.map_or_else(|_| "unknown".into(), |bytes| crate::hash::of_bytes(&bytes))
}
