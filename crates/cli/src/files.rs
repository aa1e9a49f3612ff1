//! Files of the command line: this crate's one door to the file system's `open`.
//!
//! Enters: paths of the state folder, of pages, of device files and of `/proc`. Leaves: open files.
//! Always holds: files that Forebay creates for itself have mode 0600. Called by: the commands.
//! Devices of a pool are opened by `forebay_device`, never here.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Whether what is at `path` lies on a file system in memory.
pub fn is_in_memory(path: impl AsRef<Path>) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let Ok(file) = open_to_read(path) else { return false };
    // SAFETY: all zeros are a valid value of this structure of numbers.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `about` outlives the call.
    let outcome = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut about) };
    outcome == 0 && [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&(about.f_type as i64))
}

/// Opens a file or a folder to read it.
pub fn open_to_read(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).open(path)
}

/// Whether a pipe with a name is at `path`: opening it waits for a process that writes to it. One
/// of a shell, such as `/dev/fd/63`, has no name.
pub fn is_named_pipe(path: impl AsRef<Path>) -> bool {
    let named = path.as_ref().canonicalize().and_then(|path| path.metadata());
    named.is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Waits until the name of the file at `path` is durable in its folder.
pub fn sync_name(path: impl AsRef<Path>) -> Result<()> {
    let folder = path.as_ref().parent().filter(|folder| !folder.as_os_str().is_empty());
    open_to_read(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Opens a file to read what it has now: a read that would wait fails instead.
pub fn open_to_poll(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Opens a block device to read it, which fails while it is mounted or another device lies on it.
pub fn open_alone(path: impl AsRef<Path>) -> Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path)
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
