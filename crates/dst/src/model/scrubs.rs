//! What is known of the scrub that runs or is paused.

use std::cell::Cell;

/// The scrub that runs or is paused, over boots.
#[derive(Default)]
pub struct Scrubs {
    /// How much damage there was when it began. `None`: nothing is known of it.
    from: Cell<Option<u64>>,
    /// It began in this boot. After a power cut, the pool may know of the one before.
    is_new: Cell<bool>,
    /// The pool was exported while it was paused, so the next import finds it paused.
    was_paused: Cell<bool>,
}

impl Scrubs {
    /// A scrub of everything begins.
    pub fn begin(&self, damage: u64) {
        self.from.set(Some(damage));
        self.is_new.set(true);
    }

    /// It was stopped, or another one began that nothing is noted of.
    pub fn forget(&self) {
        self.from.set(None);
    }

    /// True when the scrub began in this boot.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new.get()
    }

    /// True when nothing was damaged since it began. Once it has ended, the next scrub finds
    /// nothing.
    #[must_use]
    pub fn is_calm(&self, damage: u64) -> bool {
        self.from.get() == Some(damage)
    }

    /// The pool was exported with a paused scrub, or without one.
    pub fn export(&self, is_paused: bool) {
        self.was_paused.set(is_paused);
    }

    /// The boot has ended.
    pub fn power_off(&self, is_cut: bool) {
        if is_cut {
            self.was_paused.set(false);
        }
        if is_cut && self.is_new.get() {
            self.forget();
        }
        self.is_new.set(false);
    }

    /// True when this import must find a paused scrub.
    #[must_use]
    pub fn take_paused(&self) -> bool {
        self.was_paused.take()
    }

    /// Takes over what another run knows.
    pub fn set(&self, other: &Self) {
        self.from.set(other.from.get());
        self.is_new.set(other.is_new.get());
        self.was_paused.set(other.was_paused.get());
    }
}
