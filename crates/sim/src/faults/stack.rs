//! A device under every fault layer, and faults as serializable values.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::{BlockDevice, Device, DeviceFuture, IoBytes, Layer};
use forebay_units::Nanos;
use serde::{Deserialize, Serialize};

use super::errors::{Effect, Errors, Failure, FlushErrors, Gone, NoSpace, ReadOnly};
use super::rot::BitRot;
use super::rules::{Ops, Trigger};
use super::timing::{Hung, Late, LyingFlush, Slow};
use super::writes::{LostWrites, Misdirected, Tear, TornWrites};
use crate::{Latency, Seed};

/// One fault, resolved: equal faults on equal stacks have equal effects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each field is an argument of the layer's method that the variant calls
pub enum Fault {
    /// [`TornWrites::add`].
    Torn { trigger: Trigger, tear: Tear },
    /// [`LostWrites::add`].
    Lost { trigger: Trigger },
    /// [`Misdirected::add`].
    Misdirected { trigger: Trigger, to_bytes: u64 },
    /// [`Misdirected::add_flip`].
    Misaddressed { trigger: Trigger, bit: u32 },
    /// The thread that submits a command stands still: [`forebay_rt::stand_still`].
    Blocked { for_ms: u64 },
    /// [`BitRot::flip`].
    Rot { offset_bytes: u64, mask: u8 },
    /// [`BitRot::flip`] within a recent write: the `back`-th before the last, at `permille` of its
    /// length. No effect when there were fewer writes.
    RotRecent { back: u64, permille: u64, mask: u8 },
    /// [`Errors::add`].
    Error { trigger: Trigger, failure: Failure, effect: Effect },
    /// [`FlushErrors::add`].
    FlushError { trigger: Trigger },
    /// [`LyingFlush::set_lying`].
    LyingFlush { on: bool },
    /// [`Slow::set_delay`].
    Slow { ops: Ops, latency: Latency },
    /// [`Slow::set_answer_delay`].
    SlowAnswer { ops: Ops, latency: Latency },
    /// [`Slow::add_area`].
    SlowArea { first_bytes: u64, end_bytes: u64, latency: Latency },
    /// [`Hung::hang`].
    Hung { ops: Ops },
    /// [`Hung::hang`] for a time, or until the power fails. The caller ends it.
    Stuck { ops: Ops, for_secs: Option<u64> },
    /// [`Late::add`].
    Late { trigger: Trigger, for_ms: u64 },
    /// [`NoSpace::limit`].
    NoSpace { limit_bytes: u64 },
    /// [`Gone::vanish`].
    Gone,
    /// [`Gone::vanish_at`].
    GoneAt { trigger: Trigger, effect: Effect },
    /// [`Gone::come_back`].
    Back,
    /// [`ReadOnly::set_read_only`].
    ReadOnly { on: bool },
    /// [`Stack::heal`].
    Heal,
}

/// How often each layer of a stack struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // one count for each layer
pub struct FaultCounts {
    pub torn: u64,
    pub lost: u64,
    pub misdirected: u64,
    pub rot_bytes: u64,
    pub rot_reads: u64,
    pub errors: u64,
    pub flush_errors: u64,
    pub lies: u64,
    pub slow: u64,
    pub hung: u64,
    pub no_space: u64,
    pub gone: u64,
    pub read_only: u64,
}

/// A device under every layer. From the outside in: gone, hung, late, slow, read-only, no space,
/// errors, flush errors, lying flush, torn, lost, misdirected, rot.
pub struct Stack {
    inner: Device,
    gone: Rc<Gone>,
    hung: Rc<Hung>,
    late: Rc<Late>,
    slow: Rc<Slow>,
    read_only: Rc<ReadOnly>,
    no_space: Rc<NoSpace>,
    errors: Rc<Errors>,
    flush_errors: Rc<FlushErrors>,
    lying: Rc<LyingFlush>,
    torn: Rc<TornWrites>,
    lost: Rc<LostWrites>,
    misdirected: Rc<Misdirected>,
    rot: Rc<BitRot>,
    /// Offset and length of the most recent writes.
    recent_writes: RefCell<VecDeque<(u64, u64)>>,
}

/// How many recent writes a stack remembers.
const RECENT_WRITES: usize = 64;

impl Stack {
    /// All layers over `device`, none of them armed. `seed` draws delays; `on_flush_failure` is as
    /// in [`FlushErrors::new`].
    #[must_use]
    pub fn new(device: Device, seed: Seed, on_flush_failure: impl Fn() + 'static) -> Rc<Self> {
        let rot = BitRot::new(device);
        let misdirected = Misdirected::new(rot.clone());
        let lost = LostWrites::new(misdirected.clone());
        let torn = TornWrites::new(lost.clone());
        let lying = LyingFlush::new(torn.clone());
        let flush_errors = FlushErrors::new(lying.clone(), on_flush_failure);
        let errors = Errors::new(flush_errors.clone());
        let no_space = NoSpace::new(errors.clone());
        let read_only = ReadOnly::new(no_space.clone());
        let slow = Slow::new(read_only.clone(), seed);
        let late = Late::new(slow.clone());
        let hung = Hung::new(late.clone());
        let gone = Gone::new(hung.clone());
        Rc::new(Self {
            inner: gone.clone(),
            gone,
            hung,
            late,
            slow,
            read_only,
            no_space,
            errors,
            flush_errors,
            lying,
            torn,
            lost,
            misdirected,
            rot,
            recent_writes: RefCell::default(),
        })
    }

    /// Arms `fault`.
    pub fn inject(&self, fault: &Fault) {
        match *fault {
            Fault::Torn { trigger, tear } => self.torn.add(trigger, tear),
            Fault::Lost { trigger } => self.lost.add(trigger),
            Fault::Misdirected { trigger, to_bytes } => self.misdirected.add(trigger, to_bytes),
            Fault::Misaddressed { trigger, bit } => self.misdirected.add_flip(trigger, bit),
            Fault::Blocked { for_ms } => forebay_rt::stand_still(Nanos::from_millis(for_ms)),
            Fault::Rot { offset_bytes, mask } => self.rot.flip(offset_bytes, mask),
            Fault::RotRecent { back, permille, mask } => {
                let written = self.recent_writes.borrow();
                let at = written.len().checked_sub(1 + back as usize);
                if let Some((offset, len)) = at.map(|at| written[at]) {
                    self.rot.flip(offset + len * permille.min(999) / 1000, mask);
                }
            }
            Fault::Error { trigger, failure, effect } => self.errors.add(trigger, failure, effect),
            Fault::FlushError { trigger } => self.flush_errors.add(trigger),
            Fault::LyingFlush { on } => self.lying.set_lying(on),
            Fault::Slow { ops, latency } => self.slow.set_delay(Some((ops, latency))),
            Fault::SlowAnswer { ops, latency } => self.slow.set_answer_delay(Some((ops, latency))),
            Fault::SlowArea { first_bytes, end_bytes, latency } => {
                self.slow.add_area(first_bytes..end_bytes, latency);
            }
            Fault::Hung { ops } | Fault::Stuck { ops, .. } => self.hung.hang(ops),
            Fault::Late { trigger, for_ms } => self.late.add(trigger, Nanos::from_millis(for_ms)),
            Fault::NoSpace { limit_bytes } => self.no_space.limit(Some(limit_bytes)),
            Fault::Gone => self.gone.vanish(),
            Fault::GoneAt { trigger, effect } => self.gone.vanish_at(trigger, effect),
            Fault::Back => self.gone.come_back(),
            Fault::ReadOnly { on } => self.read_only.set_read_only(on),
            Fault::Heal => self.heal(),
        }
    }

    /// Disarms every layer: errors, delays, hangs, lies, limits, absence and waiting triggers.
    /// Damage stays: rot, lost, torn and misdirected writes.
    pub fn heal(&self) {
        self.gone.come_back();
        self.hung.release();
        self.late.heal();
        self.slow.set_delay(None);
        self.slow.clear_areas();
        self.read_only.set_read_only(false);
        self.no_space.limit(None);
        self.errors.heal();
        self.flush_errors.heal();
        self.lying.set_lying(false);
        self.torn.heal();
        self.lost.heal();
        self.misdirected.disarm();
    }

    /// Ends delays and hangs.
    pub fn calm(&self) {
        self.hung.release();
        self.slow.set_delay(None);
        self.slow.clear_areas();
    }

    /// True when a recent write covers the byte at `offset_bytes`.
    #[must_use]
    pub fn wrote_recently(&self, offset_bytes: u64) -> bool {
        let covers = |(at, len): &(u64, u64)| (*at..at + len).contains(&offset_bytes);
        self.recent_writes.borrow().iter().any(covers)
    }

    /// How often each layer struck.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        FaultCounts {
            torn: self.torn.struck(),
            lost: self.lost.struck(),
            misdirected: self.misdirected.struck(),
            rot_bytes: self.rot.struck(),
            rot_reads: self.rot.seen(),
            errors: self.errors.struck(),
            flush_errors: self.flush_errors.struck(),
            lies: self.lying.struck(),
            slow: self.slow.struck(),
            hung: self.hung.struck() + self.late.struck(),
            no_space: self.no_space.struck(),
            gone: self.gone.struck(),
            read_only: self.read_only.struck(),
        }
    }
}

impl Layer for Stack {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let mut written = self.recent_writes.borrow_mut();
        if written.len() == RECENT_WRITES {
            written.pop_front();
        }
        written.push_back((offset, data.len() as u64));
        drop(written);
        self.inner.write(offset, data, fua)
    }
}
