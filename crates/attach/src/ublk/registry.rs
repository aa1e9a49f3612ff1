//! Which ublk devices are attached to which volumes: a file for each in the state folder, for the
//! driver keeps a number only.
//!
//! What always holds: a file counts while the driver has a device of its number and its mark. A
//! restart of the machine, or another program's device, makes it void.

use std::io;
use std::path::{Path, PathBuf};

use super::abi::DeviceState;
use super::control::Control;
use crate::devices::{Attached, Driver, System, text};
use crate::error::AttachError;
use crate::files;
use crate::identity::Identity;

/// The folder of the files.
#[derive(Clone, Debug)]
pub struct Registry(PathBuf);

/// A device, what the driver does with it, and the process that serves it.
pub type Known = (Attached, DeviceState, u32);

impl Registry {
    /// The one in the state folder `state`.
    #[must_use]
    pub fn in_state(state: &Path) -> Self {
        Self(state.join("ublk"))
    }

    /// Keeps `identity` for device `index`.
    pub fn keep(&self, index: u32, identity: &Identity) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)?;
        files::replace(&self.0.join(index.to_string()), &identity.encode())
    }

    /// Forgets device `index`.
    pub fn forget(&self, index: u32) {
        // A file without a device does no harm.
        let _ = std::fs::remove_file(self.0.join(index.to_string()));
    }

    /// The devices that the driver has, by their numbers. None without the driver, or without the
    /// right to ask it.
    pub fn attached(&self, system: &System) -> Vec<Known> {
        let files = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let numbered = |entry: std::fs::DirEntry| {
            let index: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((index, Identity::decode(&text(&entry.path())?)?))
        };
        let mut kept: Vec<(u32, Identity)> = files.filter_map(numbered).collect();
        kept.sort_by_key(|(index, _)| *index);
        if kept.is_empty() {
            return Vec::new();
        }
        let Ok(control) = Control::open(system) else { return Vec::new() };
        let known = |(index, identity): (u32, Identity)| {
            let (state, server) = control.look(index, &identity)?;
            Some((system.shown(Driver::Ublk, index, identity)?, state, server))
        };
        kept.into_iter().filter_map(known).collect()
    }

    /// Takes a device away and forgets it.
    pub fn remove(&self, control: &Control, index: u32) -> Result<(), AttachError> {
        control.remove(index)?;
        self.forget(index);
        Ok(())
    }
}
