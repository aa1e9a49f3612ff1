//! The switch of a mutation run: which mutant is on in this process.
//!
//! This file is copied into `forebay-units` of the instrumented tree, which calls [`is_on`] at each
//! mutated place. The environment variable `FOREBAY_MUTANT` holds the number of a mutant, or
//! `reach:FILE`: then none is on, and the file gets the number of each that is asked for.
#![allow(clippy::disallowed_methods)] // a tool's own file, not the engine's

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Numbers from here on are no mutants.
const SPECIAL: u32 = u32::MAX - 1;
const NOT_READ: u32 = u32::MAX;
const RECORDING: u32 = u32::MAX - 1;
/// The highest number of a mutant whose reach is recorded.
const MAX_MUTANTS: usize = 1 << 16;

static ON: AtomicU32 = AtomicU32::new(NOT_READ);
static REACHED: [AtomicBool; MAX_MUTANTS] = [const { AtomicBool::new(false) }; MAX_MUTANTS];
static RECORD: Mutex<Option<std::fs::File>> = Mutex::new(None);

/// Whether mutant `number` is on.
#[inline]
pub fn is_on(number: u32) -> bool {
    let on = ON.load(Ordering::Relaxed);
    on == number || (on >= SPECIAL && is_on_at_first(number))
}

/// Reads the environment at the first call, and records.
#[cold]
fn is_on_at_first(number: u32) -> bool {
    if ON.load(Ordering::Relaxed) == NOT_READ {
        ON.store(read_environment(), Ordering::Relaxed);
    }
    let on = ON.load(Ordering::Relaxed);
    if on == RECORDING && !REACHED[number as usize].swap(true, Ordering::Relaxed) {
        let mut record = RECORD.lock().expect("no panic under this lock");
        // A number that is not recorded only costs a mutant that counts as not reached.
        let _ = record.as_mut().map(|file| file.write_all(format!("{number}\n").as_bytes()));
    }
    on == number
}

/// The number of the mutant that is on; 0 is none.
fn read_environment() -> u32 {
    let value = std::env::var("FOREBAY_MUTANT").unwrap_or_default();
    let Some(path) = value.strip_prefix("reach:") else {
        return value.parse().unwrap_or(0);
    };
    *RECORD.lock().expect("no panic under this lock") = std::fs::File::create(path).ok();
    RECORDING
}
