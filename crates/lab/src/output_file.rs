//! A file to write that takes its name when it is whole.
//!
//! What enters: a path, bytes. What leaves: the file, once it is finished. What always holds: a
//! file that is replaced stays as it was until then, and nothing is left of one that fails. Who
//! calls: the log of operations, and the commands that write a page or a trace.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::files;

/// A file that is being written.
pub struct OutputFile {
    file: File,
    /// Where it is written; empty when it is no regular file, and needs no name.
    written: PathBuf,
    /// The name that it takes at the end, when another file has it until then.
    replaces: Option<PathBuf>,
}

impl OutputFile {
    /// Begins a file at `path`. Fails if there is one, unless `force` says that it is replaced.
    ///
    /// # Errors
    /// The file exists, is a folder or a block device, or cannot be created.
    pub fn create(path: &Path, force: bool) -> io::Result<Self> {
        let old = if force { path.metadata().ok() } else { None };
        let Some(old) = old else {
            let file = files::begin(path)?;
            return Ok(Self { file, written: path.to_owned(), replaces: None });
        };
        if old.file_type().is_block_device() {
            return Err(io::Error::other("a block device is no file to replace"));
        }
        if !old.is_file() {
            let file = files::open_as_it_is(path)?;
            return Ok(Self { file, written: PathBuf::new(), replaces: None });
        }
        // Of a symbolic link, the file that it leads to is replaced.
        let real = path.canonicalize()?;
        let mut name = real.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let written = real.with_file_name(name);
        let file = files::begin_anew(&written)?;
        let begun = Self { file, written, replaces: Some(real) };
        begun.file.set_permissions(old.permissions())?;
        Ok(begun)
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The file system has no room for the bytes, or refuses the new name.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(path) = &self.replaces {
            // The name must not be durable before the content is.
            self.file.sync_all()?;
            std::fs::rename(&self.written, path)?;
        }
        self.written = PathBuf::new();
        Ok(())
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.written.as_os_str().is_empty() {
            // It may be what fills the file system.
            let _ = std::fs::remove_file(&self.written);
        }
    }
}

#[cfg(test)]
mod tests;
