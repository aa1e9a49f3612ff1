//! The check of refused imports: a refusal must name the devices at fault, and blame no others.
//!
//! What enters: the refusal, and which devices were struck. What leaves: what is wrong with it.
//! What always holds: a refusal may not call a device missing, behind, out of use or unreadable
//! unless something happened to it. Who calls: `boot.rs`, after each refused import.

use std::fmt;

use crate::subject::Refusal;

/// What the harness knows about one device.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Its name in refusals.
    pub name: String,
    /// A fault struck it, or the administrator took it out or put it in.
    pub is_struck: bool,
}

/// What is wrong with a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadRefusal {
    /// It blames a device to which nothing happened.
    BlamesWell {
        /// The device.
        device: String,
    },
    /// It names none of the devices that were struck.
    NamesNone {
        /// The struck devices.
        struck: Vec<String>,
    },
}

impl fmt::Display for BadRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRefusal::BlamesWell { device } => {
                write!(f, "it blames {device}, to which nothing happened")
            }
            BadRefusal::NamesNone { struck } => {
                write!(f, "it names none of the struck devices: {}", struck.join(", "))
            }
        }
    }
}

/// Checks the refusal of an import.
pub fn judge(refusal: &Refusal, suspects: &[Suspect]) -> Result<(), BadRefusal> {
    let is_in = |names: &[String], suspect: &Suspect| names.contains(&suspect.name);
    if let Some(well) = suspects.iter().find(|s| !s.is_struck && is_in(&refusal.blamed, s)) {
        return Err(BadRefusal::BlamesWell { device: well.name.clone() });
    }
    if refusal.cause.is_other_machine() {
        return Ok(());
    }
    let struck = suspects.iter().filter(|s| s.is_struck);
    if !struck.clone().any(|s| is_in(&refusal.blamed, s) || is_in(&refusal.named, s)) {
        let struck = struck.map(|s| s.name.clone()).collect();
        return Err(BadRefusal::NamesNone { struck });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
