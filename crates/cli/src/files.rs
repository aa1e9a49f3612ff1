//! Files of the command line: this crate's one door to the file system's `open`.
//!
//! Enters: paths of the state folder, of pages, of device files and of `/proc`. Leaves: open files.
//! Always holds: files that Forebay creates for itself have mode 0600. Called by: the commands.
//! Devices of a pool are opened by `forebay_device`, never here.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file or a folder to read it.
pub fn open_to_read(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Opens a file to read what it has now: a read that would wait fails instead.
pub fn open_to_poll(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Opens an existing file to write it.
pub fn open_to_write(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Opens an existing file or device to read and write it.
pub fn open_to_read_and_write(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Creates a file for everybody to read, or empties it.
pub fn create_public(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).open(path)
}

/// Creates a file for everybody to read. Fails if it exists.
pub fn create_new_public(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().create_new(true).write(true).open(path)
}

/// Creates a file for its owner alone, or empties it.
pub fn create_private(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)
}

/// Creates a file for its owner alone. Fails if it exists.
pub fn create_new_private(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)
}

/// Opens a file whose lock matters and not its content. Creates it if it does not exist.
pub fn open_lock(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

/// Opens an existing file to add to its end.
pub fn open_to_append(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().append(true).open(path)
}
