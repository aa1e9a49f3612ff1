//! What a device's chain comes to.

use std::collections::BTreeMap;

use forebay_device::{ReservationKey, Reservations};
use forebay_format::objects::{Checkpoint, Entry, Extent, ObjectId, Record};

use crate::extents::Extents;

/// The device as of an entry of its chain.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The entry's place; 0 before the first.
    pub position: u64,
    /// Who wrote it.
    pub writer: u64,
    /// Size of the device.
    pub size_bytes: u64,
    /// The machine that holds the reservation.
    holder: Option<u64>,
    /// Registered machines and their keys.
    registrants: BTreeMap<u64, u64>,
    /// Blocks of label areas.
    pub pages: BTreeMap<u64, Vec<u8>>,
    /// Blocks in objects.
    pub extents: Extents,
}

impl State {
    /// An empty device.
    pub fn empty(size_bytes: u64) -> Self {
        Self { size_bytes, ..Self::default() }
    }

    /// From a checkpoint.
    pub fn restored(from: Checkpoint) -> Self {
        Self {
            position: from.position,
            writer: from.writer,
            size_bytes: from.size_bytes,
            holder: from.holder,
            registrants: from.registrants.into_iter().collect(),
            extents: Extents::restored(&from.objects, &from.extents),
            pages: from.pages.into_iter().collect(),
        }
    }

    /// As a checkpoint.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint {
            position: self.position,
            writer: self.writer,
            size_bytes: self.size_bytes,
            holder: self.holder,
            registrants: self.registrants.iter().map(|(host, key)| (*host, *key)).collect(),
            pages: self.pages.iter().map(|(block, bytes)| (*block, bytes.clone())).collect(),
            objects: self.extents.objects().collect(),
            extents: self.extents.iter().copied().collect(),
        }
    }

    /// Applies the next entry.
    pub fn apply(&mut self, entry: &Entry) {
        debug_assert_eq!(entry.position, self.position + 1);
        (self.position, self.writer) = (entry.position, entry.writer);
        for record in &entry.records {
            self.apply_record(entry, record);
        }
    }

    fn apply_record(&mut self, entry: &Entry, record: &Record) {
        match record {
            Record::Add { number, first_block, blocks } => {
                let object = ObjectId { writer: entry.writer, number: *number };
                let extent = Extent { first_block: *first_block, blocks: *blocks, object, at: 0 };
                self.extents.insert(extent);
            }
            Record::Discard { first_block, blocks } => {
                self.extents.remove(*first_block, *blocks);
                let end = first_block.saturating_add(*blocks);
                let pages: Vec<u64> =
                    self.pages.range(*first_block..end).map(|(block, _)| *block).collect();
                pages.iter().for_each(|block| drop(self.pages.remove(block)));
            }
            Record::Page { block, bytes } => {
                match bytes.iter().any(|byte| *byte != 0) {
                    true => self.pages.insert(*block, bytes.clone()),
                    false => self.pages.remove(block),
                };
            }
            Record::Register { key } => {
                self.registrants.insert(entry.host, *key);
            }
            Record::Unregister => self.end_registration(entry.host),
            Record::Reserve => self.holder = Some(entry.host),
            Record::Preempt { victim } => self.preempt(entry.host, *victim),
            Record::Clear => {
                self.holder = None;
                self.registrants.clear();
            }
        }
    }

    fn end_registration(&mut self, host: u64) {
        self.registrants.remove(&host);
        if self.holder == Some(host) {
            self.holder = None;
        }
    }

    fn preempt(&mut self, host: u64, victim: u64) {
        let hosts: Vec<u64> =
            self.registrants.iter().filter(|r| *r.1 == victim).map(|r| *r.0).collect();
        let held = self.holder.is_some_and(|holder| hosts.contains(&holder));
        for gone in hosts.into_iter().filter(|other| *other != host) {
            self.registrants.remove(&gone);
        }
        if held {
            self.holder = Some(host);
        }
    }

    /// The key with which a machine is registered.
    pub fn key_of(&self, host: u64) -> Option<u64> {
        self.registrants.get(&host).copied()
    }

    /// Whether a machine is registered with this key.
    pub fn has_key(&self, key: u64) -> bool {
        self.registrants.values().any(|other| *other == key)
    }

    /// The machine that holds the reservation.
    pub fn holder(&self) -> Option<u64> {
        self.holder
    }

    /// Whether a machine may write: the device is not reserved, or the machine is registered.
    pub fn may_write(&self, host: u64) -> bool {
        self.holder.is_none() || self.registrants.contains_key(&host)
    }

    /// As a device shows it.
    pub fn reservations(&self) -> Reservations {
        let keys = self.registrants.values().map(|key| ReservationKey(*key)).collect();
        let holder = self.holder.and_then(|holder| self.key_of(holder)).map(ReservationKey);
        Reservations { keys, holder }
    }
}
