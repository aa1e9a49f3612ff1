//! What a power cut left: every place is read, and each loss gets a class.
//!
//! What enters: a device, the plan of a cycle, what the witness knows. What leaves: findings. What
//! always holds: nothing is written, and a place counts as lost only if a durable record is neither
//! there nor followed by a later one. docs/power-cut.md defines the classes.

use std::collections::{BTreeMap, BTreeSet};

use forebay_device::{Device, DeviceError, IoBuf};
use forebay_rt as rt;
use serde::{Deserialize, Serialize};

use super::sector::{Header, SECTOR_BYTES, Sector, equal_bytes, parse};
use crate::Sync;
use crate::power_cut::CutPlan;

/// What is wrong at a place that should hold a durable record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// No record is there.
    Missing,
    /// An older record is there, whole.
    Stale,
    /// Some blocks of the record are there, and others are not.
    Torn,
    /// A block is of two minds: its parts are of different writes.
    Shorn,
    /// The record lies elsewhere, or one that belongs elsewhere lies here.
    Misdirected,
    /// The record is there with wrong bytes.
    Corrupt,
    /// The place cannot be read.
    Unreadable,
}

impl Damage {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Missing,
        Self::Stale,
        Self::Torn,
        Self::Shorn,
        Self::Misdirected,
        Self::Corrupt,
        Self::Unreadable,
    ];

    /// Whether the record, or a part of it, was never written; the others have causes of their own.
    fn is_absence(self) -> bool {
        matches!(self, Self::Missing | Self::Stale | Self::Torn)
    }

    /// The word that names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Torn => "torn",
            Self::Shorn => "shorn",
            Self::Misdirected => "misdirected",
            Self::Corrupt => "corrupt",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One damaged place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Where it begins, in bytes.
    pub offset_bytes: u64,
    /// What is wrong.
    pub damage: Damage,
    /// The writer of the record that should be there.
    pub writer: u16,
    /// Its number; 0 when no record had to be there, and only a block is shorn.
    pub sequence: u64,
    /// How it was made durable.
    pub sync: Sync,
    /// A later record, written when this one was durable already, is there.
    pub is_overtaken: bool,
}

/// What a cut left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutFindings {
    /// Places whose durable record was looked for.
    pub checked: u64,
    /// Places that hold a record whose acknowledgement did not come before the cut.
    pub unacknowledged: u64,
    /// Damaged places of each class.
    pub damages: BTreeMap<Damage, u64>,
    /// Damaged places whose record was overtaken: no order of the writes leaves this state.
    pub unserializable: u64,
    /// Damaged places of records that were made durable by FUA.
    pub by_fua: u64,
    /// The first damaged places.
    pub losses: Vec<Loss>,
}

impl CutFindings {
    /// Damaged places.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damages.values().sum()
    }

    /// Adds what another cycle found.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.checked += other.checked;
        self.unacknowledged += other.unacknowledged;
        self.unserializable += other.unserializable;
        self.by_fua += other.by_fua;
        for (damage, count) in &other.damages {
            *self.damages.entry(*damage).or_default() += count;
        }
        let room = MAX_LOSSES.saturating_sub(self.losses.len());
        self.losses.extend(other.losses.iter().take(room));
    }

    fn add(&mut self, loss: Loss) {
        *self.damages.entry(loss.damage).or_default() += 1;
        self.unserializable += u64::from(loss.is_overtaken);
        self.by_fua += u64::from(loss.sync == Sync::Fua);
        if self.losses.len() < MAX_LOSSES {
            self.losses.push(loss);
        }
    }
}

/// Damaged places that are listed one by one; more of the same say no more.
const MAX_LOSSES: usize = 64;

/// What the first look at a place saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// One whole record of this cycle, of this number.
    Record(u64),
    /// Anything else: it is looked at again.
    Mixed,
    /// It cannot be read.
    Unreadable,
}

/// The first pass over all places.
struct Survey {
    slots: Vec<Slot>,
    /// For each writer, up to which record a surviving one says that all were durable.
    watermarks: Vec<u64>,
    /// Records, by writer and number, of which a sector was found elsewhere.
    elsewhere: BTreeSet<(u16, u64)>,
}

impl Survey {
    fn new(plan: &CutPlan) -> Self {
        let watermarks = vec![0; usize::from(plan.writers)];
        Self { slots: Vec::new(), watermarks, elsewhere: BTreeSet::new() }
    }

    fn look(&mut self, plan: &CutPlan, record: &[u8]) {
        let place = plan.offset_bytes(self.slots.len() as u64);
        let mut seen: Option<Slot> = None;
        for (index, sector) in record.chunks(SECTOR_BYTES).enumerate() {
            let slot = match parse(sector) {
                Sector::Whole(header) if header.id == plan.id => {
                    self.note(&header, place);
                    let is_own = header.offset_bytes == place && header.index as usize == index;
                    if is_own { Slot::Record(header.sequence) } else { Slot::Mixed }
                }
                _ => Slot::Mixed,
            };
            seen = Some(if seen.is_none_or(|before| before == slot) { slot } else { Slot::Mixed });
        }
        self.slots.push(seen.unwrap_or(Slot::Mixed));
    }

    fn note(&mut self, header: &Header, place: u64) {
        if let Some(mark) = self.watermarks.get_mut(usize::from(header.writer)) {
            *mark = header.watermark.max(*mark);
        }
        if header.offset_bytes != place {
            self.elsewhere.insert((header.writer, header.sequence));
        }
    }
}

/// Reads every place, and compares it with what had to be durable: the records up to
/// `acknowledged` of each writer, and those of which a survivor says so. `progress` is told the
/// bytes that were read.
///
/// # Errors
/// The device does not answer at all; places that cannot be read are findings.
pub async fn verify_records(
    device: &Device,
    plan: &CutPlan,
    acknowledged: &[u64],
    progress: &dyn Fn(u64),
) -> Result<CutFindings, DeviceError> {
    let survey = survey(device, plan, progress).await?;
    let durable = |writer: u16| {
        let told = acknowledged.get(usize::from(writer)).copied().unwrap_or(0);
        told.max(survey.watermarks[usize::from(writer)])
    };
    let mut needed = vec![0; plan.slots() as usize];
    for writer in 0..plan.writers {
        for sequence in 1..=durable(writer) {
            needed[plan.slot(writer, sequence) as usize] = sequence;
            if sequence % (1 << 16) == 0 {
                rt::yield_now().await;
            }
        }
    }
    let mut findings = CutFindings::default();
    for (slot, (&seen, &needed)) in (0..).zip(survey.slots.iter().zip(&needed)) {
        findings.checked += u64::from(needed > 0);
        let writer = plan.owner(slot);
        let damage = match seen {
            Slot::Record(sequence) => {
                findings.unacknowledged += u64::from(sequence > durable(writer));
                (sequence < needed).then(|| stale_or_misdirected(&survey, writer, needed))
            }
            Slot::Unreadable => Some(Damage::Unreadable),
            Slot::Mixed => {
                let buf = IoBuf::recycled(plan.record_bytes as usize);
                match device.read(plan.offset_bytes(slot), buf).await {
                    Ok(record) => judge(plan, &survey, (slot, needed), &record),
                    Err(_) => Some(Damage::Unreadable),
                }
            }
        };
        let Some(damage) = damage else { continue };
        findings.add(Loss {
            offset_bytes: plan.offset_bytes(slot),
            damage,
            writer,
            sequence: needed,
            sync: plan.sync_of(writer),
            is_overtaken: damage.is_absence()
                && needed > 0
                && survey.watermarks[usize::from(writer)] >= needed,
        });
    }
    Ok(findings)
}

async fn survey(
    device: &Device,
    plan: &CutPlan,
    progress: &dyn Fn(u64),
) -> Result<Survey, DeviceError> {
    /// Bytes of a read, about.
    const CHUNK_BYTES: u64 = 1 << 20;
    let record_bytes = u64::from(plan.record_bytes);
    let chunk_slots = (CHUNK_BYTES / record_bytes).max(1);
    let (mut survey, mut first_error) = (Survey::new(plan), None);
    let mut slot = 0;
    while slot < plan.slots() {
        let slots = chunk_slots.min(plan.slots() - slot);
        let buf = IoBuf::recycled((slots * record_bytes) as usize);
        if let Ok(chunk) = device.read(plan.offset_bytes(slot), buf).await {
            chunk.chunks(record_bytes as usize).for_each(|record| survey.look(plan, record));
        } else {
            for slot in slot..slot + slots {
                let buf = IoBuf::recycled(record_bytes as usize);
                match device.read(plan.offset_bytes(slot), buf).await {
                    Ok(record) => survey.look(plan, &record),
                    Err(error) => {
                        first_error.get_or_insert(error);
                        survey.slots.push(Slot::Unreadable);
                    }
                }
            }
        }
        slot += slots;
        progress(plan.offset_bytes(slot));
    }
    match first_error {
        Some(error) if survey.slots.iter().all(|s| *s == Slot::Unreadable) => Err(error),
        _ => Ok(survey),
    }
}

fn stale_or_misdirected(survey: &Survey, writer: u16, needed: u64) -> Damage {
    match survey.elsewhere.contains(&(writer, needed)) {
        true => Damage::Misdirected,
        false => Damage::Stale,
    }
}

/// The class of a place that does not hold one whole record; `None` when nothing is lost there.
fn judge(
    plan: &CutPlan,
    survey: &Survey,
    (slot, needed): (u64, u64),
    record: &[u8],
) -> Option<Damage> {
    let (place, writer) = (plan.offset_bytes(slot), plan.owner(slot));
    let sectors: Vec<Sector> = record.chunks(SECTOR_BYTES).map(parse).collect();
    let block_sectors = (plan.block_bytes as usize / SECTOR_BYTES).max(1);
    let is_shorn = |block: &[Sector]| {
        let version = |sector: &Sector| match sector {
            Sector::Whole(header) => Some((header.id, header.offset_bytes, header.sequence)),
            _ => None,
        };
        block.iter().any(|sector| version(sector) != version(&block[0]))
    };
    if sectors.contains(&Sector::Shorn) || sectors.chunks(block_sectors).any(is_shorn) {
        return Some(Damage::Shorn);
    }
    if needed == 0 {
        return None;
    }
    let (mut right, mut older, mut foreign, mut corrupt) = (0, 0, 0, 0);
    for (index, (sector, bytes)) in sectors.iter().zip(record.chunks(SECTOR_BYTES)).enumerate() {
        match sector {
            Sector::Whole(header) if header.id != plan.id => older += 1,
            Sector::Whole(header) if header.offset_bytes != place => foreign += 1,
            Sector::Whole(header) if header.index as usize != index => foreign += 1,
            Sector::Whole(header) if header.sequence < needed => older += 1,
            Sector::Whole(_) => right += 1,
            Sector::Corrupt => corrupt += 1,
            // Its mark is damaged; is the rest of it the record?
            _ => {
                let equal = equal_bytes(plan, writer, needed, (index as u16, bytes));
                corrupt += u64::from(equal * 2 > SECTOR_BYTES);
            }
        }
    }
    if right == sectors.len() as u64 {
        return None;
    }
    Some(match () {
        () if corrupt > 0 => Damage::Corrupt,
        () if foreign > 0 || survey.elsewhere.contains(&(writer, needed)) => Damage::Misdirected,
        () if right > 0 => Damage::Torn,
        () if older > 0 => Damage::Stale,
        () => Damage::Missing,
    })
}
