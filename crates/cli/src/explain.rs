//! What this crate adds to the typed errors of the crates below: a stable code, and the command
//! that helps. Their `Display` says what is wrong; only this crate knows its commands.

mod condition;
mod event;
mod pool;
mod trace;
mod transfer;

use std::fmt::Display;

use forebay_lab::LabError;

use crate::failure::{ErrorCode, Failure};

pub use condition::{Advice, ConditionCode, advice, reserve_line};
pub use event::event_advice;
pub use pool::importable_line;

/// A typed error with a code for programs and a hint for the operator, both from its variant.
pub trait Explain: Display {
    /// For programs.
    fn code(&self) -> ErrorCode;

    /// What helps; empty when nothing more can be said.
    fn hint(&self) -> String {
        String::new()
    }
}

impl<E: Explain> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error.code(), &error).with_hint(error.hint())
    }
}

impl Explain for LabError {
    fn code(&self) -> ErrorCode {
        match (self, self.exit_code()) {
            (LabError::OutputClosed, _) => ErrorCode::OutputClosed,
            (_, 2) => ErrorCode::Usage,
            _ => ErrorCode::Simulation,
        }
    }
}
