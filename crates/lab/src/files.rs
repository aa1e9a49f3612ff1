//! Files of the lab: pages and sweeps that it reads, results that it keeps.
//!
//! The lab is an offline tool. All its access to files is in this module.

use crate::error::{FileAction, LabError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

fn failed(action: FileAction, path: &Path, cause: std::io::Error) -> LabError {
    LabError::File { action, path: path.to_owned(), cause }
}

/// Reads a file that the request names. A failure is the request's fault.
#[allow(clippy::disallowed_methods)] // An offline tool reads the page or sweep it is given.
pub(crate) fn read_named(path: &Path) -> Result<String, LabError> {
    let text = std::fs::read(path)
        .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    text.map_err(|cause| LabError::Input { path: path.to_owned(), cause })
}

/// Opens a file that the request names, for reading.
#[allow(clippy::disallowed_methods)] // An offline tool reads the trace it is given.
pub(crate) fn open_named(path: &Path) -> Result<Box<dyn Read>, LabError> {
    let opened = std::fs::File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)),
        false => Ok(file),
    });
    let file = opened.map_err(|cause| LabError::Input { path: path.to_owned(), cause })?;
    Ok(Box::new(file))
}

/// Whether two paths lead to one file.
#[must_use]
pub fn is_same_file(one: impl AsRef<Path>, other: impl AsRef<Path>) -> bool {
    let identity = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    identity(one.as_ref()).is_some_and(|one| identity(other.as_ref()) == Some(one))
}

/// The file's bytes, or none when there is no such file.
#[allow(clippy::disallowed_methods)] // An offline tool looks for results it kept before.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, LabError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(FileAction::Read, path, e)),
    }
}

/// Makes the directory and those above it.
pub(crate) fn make_dir(path: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(path).map_err(|e| failed(FileAction::MakeDir, path, e))
}

/// Replaces the file whole: a reader sees the old file or the new one, also after a kill. The
/// process id in the temporary name keeps concurrent writers of one file apart.
#[allow(clippy::disallowed_methods)] // An offline tool keeps its results.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), LabError> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = path.with_file_name(name);
    let written =
        std::fs::write(&beside, text).map_err(|e| failed(FileAction::Write, &beside, e)).and_then(
            |()| std::fs::rename(&beside, path).map_err(|e| failed(FileAction::Write, path, e)),
        );
    if written.is_err() {
        // It may be what fills the file system; its name is never looked for again.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Prints to standard output as it is.
pub(crate) fn print(text: &str) -> Result<(), LabError> {
    let written = forebay_rt::sys::stdout().map(|out| out.lock()).and_then(|mut out| {
        out.write_all(text.as_bytes())?;
        out.flush()
    });
    written.map_err(|cause| match cause.kind() {
        std::io::ErrorKind::BrokenPipe => LabError::OutputClosed,
        _ => LabError::Output { cause },
    })
}

/// Begins a file. Fails if there is one.
pub(crate) fn begin(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().create_new(true).write(true).open(path)
}

/// Begins a file, also where there is one.
#[allow(clippy::disallowed_methods)] // An offline tool writes what it is told to.
pub(crate) fn begin_anew(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::File::create(path)
}

/// Opens a pipe or a device to write it.
pub(crate) fn open_as_it_is(path: &Path) -> std::io::Result<std::fs::File> {
    std::fs::OpenOptions::new().write(true).open(path)
}

/// Opens for appending.
pub(crate) fn append(path: &Path) -> Result<std::fs::File, LabError> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|e| failed(FileAction::Write, path, e))
}

/// Adds one line, handed to the kernel in one piece.
pub(crate) fn add_line(file: &mut std::fs::File, path: &Path, line: &str) -> Result<(), LabError> {
    file.write_all(format!("{line}\n").as_bytes()).map_err(|e| failed(FileAction::Write, path, e))
}

/// Files of a directory in order of name; empty when there is none.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>, LabError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(FileAction::List, dir, e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|e| failed(FileAction::List, dir, e))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// A fingerprint of the running program: results of another build are not used again.
#[allow(clippy::disallowed_methods)] // It reads nothing but the program itself.
pub(crate) fn program_fingerprint() -> String {
    let own = std::env::current_exe().and_then(std::fs::read);
    own.map_or_else(|_| "unknown".into(), |bytes| crate::hash::of_bytes(&bytes))
}

#[cfg(test)]
mod tests;
