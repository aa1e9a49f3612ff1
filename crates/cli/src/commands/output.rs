//! Files that commands write: pages, traces, recordings.
//!
//! What enters: the path that the operator named, whether an older file is replaced. What leaves:
//! a file to write, or the refusal. What always holds: without `--force` an older file stays, and
//! a block device or the disk of another program is never written. Who calls: the commands.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_lab::OutputFile;
use forebay_rt::sys;

use super::outcome::Outcome;
use crate::failure::{ErrorCode, Failure};
use crate::files;
use crate::holders::refuse_used_file;
use crate::log;

/// A file that takes its name, and the place of an older one, when it is finished.
pub fn create(path: &Path, force: bool) -> Result<OutputFile, Failure> {
    check(path, force)?;
    OutputFile::create(path, force).map_err(|e| refused(path, &e))
}

/// The file of a recording, which has its name at once: one that is killed is good up to its end.
/// `-` is standard output.
pub fn recording(path: &Path, force: bool) -> Result<Box<dyn Write>, Failure> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(sys::stdout().map_err(|e| Failure::io("standard output", &e))?));
    }
    check(path, force)?;
    let made = if force { files::create_public(path) } else { files::create_new_public(path) };
    let file = made.map_err(|e| refused(path, &e))?;
    Ok(Box::new(Recording { file, path: path.to_owned() }))
}

/// The file of a recording. Nothing is left of one that has no byte, as on a full file system.
struct Recording {
    file: File,
    path: PathBuf,
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let is_empty_file = |meta: Metadata| meta.is_file() && meta.len() == 0;
        let is_it = self.path.symlink_metadata().is_ok_and(is_empty_file);
        if is_it && self.file.metadata().is_ok_and(is_empty_file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The result of a recording that went to `path`: standard output holds either of the two.
pub fn recorded(path: &Path, text: String, complete: bool) -> Outcome {
    if path.as_os_str() != "-" {
        return Outcome { text, complete };
    }
    log::notice(text.trim_end());
    Outcome { text: String::new(), complete }
}

/// Refuses JSON beside a recording on standard output.
pub fn refuse_json_beside(path: &Path, is_json: bool) -> Result<(), Failure> {
    if is_json && path.as_os_str() == "-" {
        let message = "--json and the trace cannot both go to standard output";
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn check(path: &Path, force: bool) -> Result<(), Failure> {
    if !force {
        return Ok(());
    }
    if path.metadata().is_ok_and(|meta| meta.file_type().is_block_device()) {
        let message = format!("{} is a block device, and no file to replace", path.display());
        return Err(Failure::new(ErrorCode::DeviceUnusable, message));
    }
    refuse_used_file(path)
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{} exists already", path.display()))
                .with_hint("--force replaces it")
        }
        _ => Failure::io(path.display(), error),
    }
}

#[cfg(test)]
mod tests;
