//! Triggers: which commands a fault layer strikes.

use std::cell::{Cell, RefCell};

use forebay_device::{DeviceError, ErrorKind, Operation};
use serde::{Deserialize, Serialize};

/// A set of kinds of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ops(pub u8);

impl Ops {
    /// Reads.
    pub const READ: Ops = Ops(1);
    /// Writes and write-zeroes.
    pub const WRITE: Ops = Ops(2);
    /// Flushes.
    pub const FLUSH: Ops = Ops(4);
    /// Discards.
    pub const DISCARD: Ops = Ops(8);
    /// All kinds.
    pub const ALL: Ops = Ops(15);

    /// True when the set contains `operation`.
    #[must_use]
    pub fn has(self, operation: Operation) -> bool {
        let bit = match operation {
            Operation::Read => Self::READ,
            Operation::Write | Operation::WriteZeroes => Self::WRITE,
            Operation::Flush => Self::FLUSH,
            Operation::Discard => Self::DISCARD,
            Operation::Open | Operation::Allocation | Operation::Check | Operation::Reservation => {
                Ops(0)
            }
        };
        self.0 & bit.0 != 0
    }
}

/// Which commands a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// Kinds of commands.
    pub ops: Ops,
    /// Start of the range that a command must touch. A flush touches every range.
    pub from_bytes: u64,
    /// End of that range.
    pub to_bytes: u64,
    /// How many matching commands pass before the first strike.
    pub skip: u64,
    /// How many commands are struck after that.
    pub times: u64,
}

impl Trigger {
    /// Every command of these kinds.
    #[must_use]
    pub const fn always(ops: Ops) -> Self {
        Self { ops, from_bytes: 0, to_bytes: u64::MAX, skip: 0, times: u64::MAX }
    }

    /// The next command of these kinds.
    #[must_use]
    pub const fn once(ops: Ops) -> Self {
        Self { times: 1, ..Self::always(ops) }
    }

    /// The same trigger after `skip` matching commands.
    #[must_use]
    pub const fn after(self, skip: u64) -> Self {
        Self { skip, ..self }
    }

    /// The same trigger for commands that touch this range.
    #[must_use]
    pub const fn within(self, from_bytes: u64, to_bytes: u64) -> Self {
        Self { from_bytes, to_bytes, ..self }
    }

    /// True when the trigger strikes this command; counts the command.
    fn strikes(&mut self, operation: Operation, offset_bytes: u64, len_bytes: u64) -> bool {
        let touches = operation == Operation::Flush
            || (offset_bytes < self.to_bytes && offset_bytes + len_bytes > self.from_bytes);
        if self.times == 0 || !self.ops.has(operation) || !touches {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if self.times != u64::MAX {
            self.times -= 1;
        }
        true
    }
}

/// A list of triggers with their effects, and a count of strikes.
pub(super) struct Rules<T> {
    rules: RefCell<Vec<(Trigger, T)>>,
    pub(super) struck: Cell<u64>,
}

impl<T: Copy> Rules<T> {
    pub(super) fn new() -> Self {
        Self { rules: RefCell::default(), struck: Cell::new(0) }
    }

    pub(super) fn add(&self, trigger: Trigger, what: T) {
        self.rules.borrow_mut().push((trigger, what));
    }

    pub(super) fn clear(&self) {
        self.rules.borrow_mut().clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.borrow().is_empty()
    }

    /// The effect of the first rule that strikes this command.
    pub(super) fn strike(
        &self,
        operation: Operation,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Option<T> {
        let mut rules = self.rules.borrow_mut();
        let struck = rules.iter_mut().find_map(|(rule, what)| {
            rule.strikes(operation, offset_bytes, len_bytes).then_some(*what)
        });
        if struck.is_some() {
            self.struck.set(self.struck.get() + 1);
            rules.retain(|(rule, _)| rule.times > 0);
        }
        struck
    }
}

pub(super) fn fail(
    name: &str,
    op: Operation,
    offset: u64,
    len: u64,
    kind: ErrorKind,
) -> DeviceError {
    DeviceError::new(name, op, offset, len, kind)
}
