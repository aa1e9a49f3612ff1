//! All layers over one device, and faults as values that can be written down.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Device, DeviceFuture, Geometry, IoBuf, IoBytes, ZeroOptions,
};
use serde::{Deserialize, Serialize};

use super::{
    BitRot, Effect, Errors, Failure, FlushErrors, Gone, Hung, LostWrites, LyingFlush, Misdirected,
    NoSpace, Ops, ReadOnly, Slow, Tear, TornWrites, Trigger, pass,
};
use crate::{Latency, Seed};

/// One fault, resolved: applying the same values to the same stack does the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are those of the layer's method that each calls
pub enum Fault {
    /// [`TornWrites::add`].
    Torn { trigger: Trigger, tear: Tear },
    /// [`LostWrites::add`].
    Lost { trigger: Trigger },
    /// [`Misdirected::add`].
    Misdirected { trigger: Trigger, to_bytes: u64 },
    /// [`BitRot::flip`].
    Rot { offset_bytes: u64, mask: u8 },
    /// [`BitRot::flip`] in what was written there by the `back`-th write before the last one, so
    /// far behind its beginning; nowhere when there were not so many.
    RotLately { back: u64, permille: u64, mask: u8 },
    /// [`Errors::add`].
    Error { trigger: Trigger, failure: Failure, effect: Effect },
    /// [`FlushErrors::add`].
    FlushError { trigger: Trigger },
    /// [`LyingFlush::set`].
    LyingFlush { on: bool },
    /// [`Slow::set`].
    Slow { ops: Ops, latency: Latency },
    /// [`Hung::hang`].
    Hung { ops: Ops },
    /// [`Hung::hang`], for so long, or until the power goes: whoever injects it sees to that.
    Stuck { ops: Ops, for_secs: Option<u64> },
    /// [`NoSpace::limit`].
    NoSpace { limit_bytes: u64 },
    /// [`Gone::vanish`].
    Gone,
    /// [`Gone::vanish_at`].
    GoneAt { trigger: Trigger, effect: Effect },
    /// [`Gone::come_back`].
    Back,
    /// [`ReadOnly::set`].
    ReadOnly { on: bool },
    /// [`Stack::heal`].
    Heal,
}

impl Fault {
    /// The name of its kind, for summaries.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Torn { .. } => "torn",
            Fault::Lost { .. } => "lost",
            Fault::Misdirected { .. } => "misdirected",
            Fault::Rot { .. } | Fault::RotLately { .. } => "rot",
            Fault::Error { trigger, .. } if trigger.times == u64::MAX => "error for good",
            Fault::Error { .. } => "error once",
            Fault::FlushError { .. } => "flush error",
            Fault::LyingFlush { .. } => "lying flush",
            Fault::Slow { .. } => "slow",
            Fault::Hung { .. } => "hung",
            Fault::Stuck { .. } => "stuck",
            Fault::NoSpace { .. } => "no space",
            Fault::Gone | Fault::GoneAt { .. } => "gone",
            Fault::Back => "back",
            Fault::ReadOnly { .. } => "read-only",
            Fault::Heal => "heal",
        }
    }
}

/// How often each layer of a stack struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // one per layer, named as it is
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

/// A device under every layer, from the outside in: gone, hung, slow, read-only, no space, errors,
/// flush errors, lying flush, torn, lost, misdirected, rot.
pub struct Stack {
    inner: Device,
    gone: Rc<Gone>,
    hung: Rc<Hung>,
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
    /// Offset and length of the last writes.
    written: RefCell<VecDeque<(u64, u64)>>,
}

/// How many writes a stack remembers.
const REMEMBERED: usize = 64;

impl Stack {
    /// All layers over `device`, none of them active. `seed` is for delays; `on_flush_failure` as
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
        let hung = Hung::new(slow.clone());
        let gone = Gone::new(hung.clone());
        Rc::new(Self {
            inner: gone.clone(),
            gone,
            hung,
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
            written: RefCell::default(),
        })
    }

    /// Makes `fault` so.
    pub fn inject(&self, fault: &Fault) {
        match *fault {
            Fault::Torn { trigger, tear } => self.torn.add(trigger, tear),
            Fault::Lost { trigger } => self.lost.add(trigger),
            Fault::Misdirected { trigger, to_bytes } => self.misdirected.add(trigger, to_bytes),
            Fault::Rot { offset_bytes, mask } => self.rot.flip(offset_bytes, mask),
            Fault::RotLately { back, permille, mask } => {
                let written = self.written.borrow();
                let at = written.len().checked_sub(1 + back as usize);
                if let Some((offset, len)) = at.map(|at| written[at]) {
                    self.rot.flip(offset + len * permille.min(999) / 1000, mask);
                }
            }
            Fault::Error { trigger, failure, effect } => self.errors.add(trigger, failure, effect),
            Fault::FlushError { trigger } => self.flush_errors.add(trigger),
            Fault::LyingFlush { on } => self.lying.set(on),
            Fault::Slow { ops, latency } => self.slow.set(Some((ops, latency))),
            Fault::Hung { ops } | Fault::Stuck { ops, .. } => self.hung.hang(ops),
            Fault::NoSpace { limit_bytes } => self.no_space.limit(Some(limit_bytes)),
            Fault::Gone => self.gone.vanish(),
            Fault::GoneAt { trigger, effect } => self.gone.vanish_at(trigger, effect),
            Fault::Back => self.gone.come_back(),
            Fault::ReadOnly { on } => self.read_only.set(on),
            Fault::Heal => self.heal(),
        }
    }

    /// Ends what goes on failing: errors, delays, hangs, lies, limits, absence, and rules that
    /// wait. Damage that was done stays: rot, lost, torn and misdirected writes.
    pub fn heal(&self) {
        self.gone.come_back();
        self.hung.release();
        self.slow.set(None);
        self.read_only.set(false);
        self.no_space.limit(None);
        self.errors.heal();
        self.flush_errors.heal();
        self.lying.set(false);
        self.torn.heal();
        self.lost.heal();
        self.misdirected.disarm();
    }

    /// Ends delays and hangs only.
    pub fn calm(&self) {
        self.hung.release();
        self.slow.set(None);
    }

    /// Whether the device is away.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.is_gone()
    }

    /// Whether one of the last writes that it was given covers the byte at `offset_bytes`.
    #[must_use]
    pub fn wrote_lately(&self, offset_bytes: u64) -> bool {
        let covers = |(at, len): &(u64, u64)| (*at..at + len).contains(&offset_bytes);
        self.written.borrow().iter().any(covers)
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
            hung: self.hung.struck(),
            no_space: self.no_space.struck(),
            gone: self.gone.struck(),
            read_only: self.read_only.struck(),
        }
    }
}

impl BlockDevice for Stack {
    pass!(name);
    pass!(geometry);
    pass!(allocation);
    pass!(read);
    pass!(flush);
    pass!(discard);
    fn write(&self, offset: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        let mut written = self.written.borrow_mut();
        if written.len() == REMEMBERED {
            written.pop_front();
        }
        written.push_back((offset, data.len() as u64));
        drop(written);
        self.inner.write(offset, data, fua)
    }
    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        self.inner.write_zeroes(offset, len, options)
    }
}
