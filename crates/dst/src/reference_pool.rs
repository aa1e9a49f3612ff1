//! The reference pool: the smallest subject that keeps the promises, and fourteen flaws of it.
//!
//! What always holds: the oracle must pass the pool without a flaw and catch each flaw. It uses one
//! disk: a table of volumes, then an append-only log. Contents are in memory and come back by
//! replay.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_device::{
    Allocation, BlockDevice, Device, DeviceError, DeviceFuture, ErrorKind, Geometry, IoBuf,
    IoBytes, Operation, ZeroOptions, check_range,
};
use forebay_rt as rt;
use forebay_rt::sync::Mutex;
use forebay_sim::SECTOR_LEN;
use forebay_units::{BLOCK_BYTES, Nanos, SECTOR_BYTES};

use crate::subject::{Figures, ImportMode, Manage, Pool, PoolSpec, Refusal, Scrubbed, Subject};

/// A flaw of the reference pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw.
    None,
    /// A FUA write is appended without FUA.
    AckBeforeDurable,
    /// A flush appends but does not flush the device's cache.
    FlushWithoutFlush,
    /// A flush does nothing.
    FlushNothing,
    /// Replay does not check record checksums.
    NoChecksum,
    /// A FUA write overtakes earlier waiting writes.
    Overtake,
    /// Records are appended concurrently; each is acknowledged by itself.
    ParallelAppends,
    /// Waiting records are appended concurrently, and replay skips bad records.
    ReplayPastHole,
    /// Trims are not logged.
    ForgetTrim,
    /// A large write is two records.
    SplitWrite,
    /// Holes are reported over data that is not in the log yet.
    HoleOverWaiting,
    /// The table of volumes is written without FUA.
    VolumeNotDurable,
    /// A large write becomes visible in two steps.
    VisibleInSteps,
    /// What a destroyed volume held stays.
    KeepsDestroyed,
    /// A figure counts what no record has.
    CountsInMemory,
}

impl Flaw {
    /// All flaws.
    pub const ALL: [Flaw; 14] = [
        Flaw::AckBeforeDurable,
        Flaw::FlushWithoutFlush,
        Flaw::FlushNothing,
        Flaw::NoChecksum,
        Flaw::Overtake,
        Flaw::ParallelAppends,
        Flaw::ReplayPastHole,
        Flaw::ForgetTrim,
        Flaw::SplitWrite,
        Flaw::HoleOverWaiting,
        Flaw::VolumeNotDurable,
        Flaw::VisibleInSteps,
        Flaw::KeepsDestroyed,
        Flaw::CountsInMemory,
    ];
}

/// The reference pool as a subject.
pub struct Reference {
    /// Its flaw.
    pub flaw: Flaw,
}

const TABLE_BYTES: u64 = 4096;
const TABLES: u64 = 64;
const LOG_AT: u64 = TABLES * TABLE_BYTES;
const MAGIC: u64 = u64::from_le_bytes(*b"ref rec\n");

type Sectors = BTreeMap<u64, IoBytes>;

#[derive(Clone)]
struct Record {
    volume: u32,
    first: u64,
    count: u64,
    data: Option<IoBytes>,
}

struct Engine {
    disk: Device,
    flaw: Flaw,
    /// Every volume ever created: name, size, whether it exists.
    table: RefCell<Vec<(String, u64, bool)>>,
    table_version: Cell<u64>,
    contents: RefCell<Vec<Sectors>>,
    waiting: RefCell<Vec<Record>>,
    log_end: Cell<u64>,
    seq: Cell<u64>,
    append_turn: Rc<Mutex<()>>,
    /// Changes since the creation or the import.
    changes: Cell<u64>,
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (sum.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_le_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("eight bytes"))
}

impl Engine {
    fn new(disk: Device, flaw: Flaw) -> Rc<Self> {
        Rc::new(Self {
            disk,
            flaw,
            table: RefCell::default(),
            table_version: Cell::new(0),
            contents: RefCell::default(),
            waiting: RefCell::default(),
            log_end: Cell::new(LOG_AT),
            seq: Cell::new(1),
            append_turn: Rc::new(Mutex::new(())),
            changes: Cell::new(0),
        })
    }

    /// Writes the table to its next slot.
    async fn save_table(&self) -> Result<(), DeviceError> {
        let version = self.table_version.get() + 1;
        self.table_version.set(version);
        let mut buf = IoBuf::zeroed(TABLE_BYTES as usize);
        buf[8..16].copy_from_slice(&version.to_le_bytes());
        let mut at = 16;
        for (name, size, exists) in &*self.table.borrow() {
            buf[at] = name.len() as u8;
            buf[at + 1] = u8::from(*exists);
            buf[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
            buf[at + 16..at + 16 + name.len()].copy_from_slice(name.as_bytes());
            at += 32;
        }
        let check = sum(&buf[8..]);
        buf[..8].copy_from_slice(&check.to_le_bytes());
        let durable = self.flaw != Flaw::VolumeNotDurable;
        self.disk.write(version % TABLES * TABLE_BYTES, buf.freeze(), durable).await
    }

    async fn load_table(&self) -> Result<(), Refusal> {
        let slots = self.disk.read(0, IoBuf::zeroed(LOG_AT as usize)).await?;
        let good = slots.chunks(TABLE_BYTES as usize).filter(|b| sum(&b[8..]) == word(b, 0));
        let Some(newest) = good.max_by_key(|b| word(b, 1)) else {
            let disk = self.disk.name().to_owned();
            let message = format!("no table of volumes is readable on {disk}");
            return Err(Refusal { message, named: vec![disk], ..Refusal::default() });
        };
        self.table_version.set(word(newest, 1));
        for entry in newest[16..].chunks(32).take_while(|entry| entry[0] != 0) {
            let name = String::from_utf8_lossy(&entry[16..16 + entry[0] as usize]).into_owned();
            self.table.borrow_mut().push((name, word(entry, 1), entry[1] == 1));
            self.contents.borrow_mut().push(Sectors::new());
        }
        Ok(())
    }

    fn encode(&self, record: &Record) -> IoBytes {
        let data_len = record.data.as_ref().map_or(0, |data| data.len());
        let mut buf = IoBuf::zeroed(SECTOR_LEN + data_len);
        if let Some(data) = &record.data {
            buf[SECTOR_LEN..].copy_from_slice(data);
        }
        let seq = self.seq.replace(self.seq.get() + 1);
        let head = [seq, record.volume.into(), record.first, record.count, data_len as u64];
        buf[..8].copy_from_slice(&MAGIC.to_le_bytes());
        for (index, value) in head.into_iter().enumerate() {
            buf[16 + index * 8..24 + index * 8].copy_from_slice(&value.to_le_bytes());
        }
        let check = sum(&buf[16..]);
        buf[8..16].copy_from_slice(&check.to_le_bytes());
        buf.freeze()
    }

    async fn append(&self, record: &Record) -> Result<(), DeviceError> {
        let bytes = self.encode(record);
        let at = self.log_end.replace(self.log_end.get() + bytes.len() as u64);
        let durable = !matches!(self.flaw, Flaw::AckBeforeDurable | Flaw::FlushWithoutFlush);
        self.disk.write(at, bytes, durable).await
    }

    async fn drain(&self) -> Result<(), DeviceError> {
        let _turn = self.append_turn.lock().await;
        let waiting = self.waiting.take();
        if self.flaw == Flaw::ReplayPastHole {
            let all = rt::join_all(waiting.iter().map(|record| self.append(record))).await;
            return all.into_iter().collect();
        }
        for record in &waiting {
            self.append(record).await?;
        }
        Ok(())
    }

    async fn replay(&self) -> Result<(), DeviceError> {
        let size = self.disk.geometry().size_bytes;
        let mut at = LOG_AT;
        while at + SECTOR_BYTES <= size {
            let head = self.disk.read(at, IoBuf::zeroed(SECTOR_LEN)).await?;
            let (seq, data_len) = (word(&head, 2), word(&head, 6));
            let sane = word(&head, 0) == MAGIC
                && data_len <= 1 << 24
                && at + SECTOR_BYTES + data_len <= size;
            let whole = if sane {
                self.disk.read(at, IoBuf::zeroed(SECTOR_LEN + data_len as usize)).await?
            } else {
                head
            };
            let good =
                sane && (self.flaw == Flaw::NoChecksum || sum(&whole[16..]) == word(&whole, 1));
            if !good {
                if self.flaw == Flaw::ReplayPastHole && at < LOG_AT + (1 << 20) {
                    at += SECTOR_BYTES;
                    continue;
                }
                break;
            }
            let data = (data_len > 0).then(|| IoBuf::copy_of(&whole[SECTOR_LEN..]).freeze());
            let volume = word(&whole, 3) as u32;
            if self.table.borrow().get(volume as usize).is_some_and(|(.., exists)| *exists) {
                self.apply(&Record {
                    volume,
                    first: word(&whole, 4),
                    count: word(&whole, 5),
                    data,
                });
            }
            at += SECTOR_BYTES + data_len;
            self.seq.set(seq + 1);
        }
        self.log_end.set(at);
        Ok(())
    }

    fn apply(&self, record: &Record) {
        let mut contents = self.contents.borrow_mut();
        let sectors = &mut contents[record.volume as usize];
        for index in 0..record.count {
            match &record.data {
                Some(data) => {
                    let part = data.slice(index as usize * SECTOR_LEN, SECTOR_LEN);
                    sectors.insert(record.first + index, part);
                }
                None => drop(sectors.remove(&(record.first + index))),
            }
        }
    }

    async fn change(&self, record: Record, fua: bool) -> Result<(), DeviceError> {
        self.changes.set(self.changes.get() + 1);
        let steps = record.count > 1 && self.flaw == Flaw::VisibleInSteps;
        let split = record.count > 1 && self.flaw == Flaw::SplitWrite;
        let pieces = if steps || split { halves(&record) } else { vec![record] };
        let parallel = self.flaw == Flaw::ParallelAppends && fua;
        for piece in pieces {
            if self.flaw == Flaw::ForgetTrim && piece.data.is_none() {
                self.apply(&piece);
                continue;
            }
            let overtakes = self.flaw == Flaw::Overtake && fua;
            self.apply(&piece);
            if parallel || overtakes {
                self.append(&piece).await?;
            } else {
                self.waiting.borrow_mut().push(piece);
            }
            if steps {
                rt::sleep(Nanos::from_micros(30)).await;
            }
        }
        if fua && !parallel {
            self.drain().await?;
        } else {
            rt::sleep(Nanos::from_micros(3)).await;
        }
        Ok(())
    }
}

fn halves(record: &Record) -> Vec<Record> {
    let half = record.count / 2;
    let part = |first: u64, count: u64| Record {
        volume: record.volume,
        first: record.first + first,
        count,
        data: record
            .data
            .as_ref()
            .map(|d| d.slice(first as usize * SECTOR_LEN, count as usize * SECTOR_LEN)),
    };
    vec![part(0, half), part(half, record.count - half)]
}

/// A running reference pool.
pub struct ReferencePool {
    engine: Rc<Engine>,
}

struct ReferenceVolume {
    engine: Rc<Engine>,
    name: String,
    index: u32,
}

impl Subject for Reference {
    type Pool = ReferencePool;

    async fn create(&self, disks: &[Device], _spec: &PoolSpec) -> Result<ReferencePool, Refusal> {
        let engine = Engine::new(disks[0].clone(), self.flaw);
        engine.save_table().await?;
        Ok(ReferencePool { engine })
    }

    async fn import(
        &self,
        disks: &[Device],
        _spec: &PoolSpec,
        _mode: ImportMode,
    ) -> Result<ReferencePool, Refusal> {
        let engine = Engine::new(disks[0].clone(), self.flaw);
        engine.load_table().await?;
        engine.replay().await?;
        // Replayed records may be in the cache: the next power cut must not take them.
        engine.disk.flush().await?;
        Ok(ReferencePool { engine })
    }

    fn atomic_bytes(&self) -> u64 {
        1 << 30
    }
}

impl ReferencePool {
    fn find(&self, name: &str) -> Option<usize> {
        self.engine.table.borrow().iter().position(|(n, _, exists)| *exists && n == name)
    }
}

impl Pool for ReferencePool {
    fn volumes(&self) -> Vec<String> {
        let table = self.engine.table.borrow();
        table.iter().filter(|(_, _, exists)| *exists).map(|(name, ..)| name.clone()).collect()
    }

    fn volume(&self, name: &str) -> Option<Device> {
        let index = self.find(name)? as u32;
        Some(Rc::new(ReferenceVolume { engine: self.engine.clone(), name: name.to_owned(), index }))
    }

    async fn create_volume(
        &self,
        name: &str,
        size_bytes: u64,
        _sparse: bool,
    ) -> Result<(), Refusal> {
        self.engine.table.borrow_mut().push((name.to_owned(), size_bytes, true));
        self.engine.contents.borrow_mut().push(Sectors::new());
        Ok(self.engine.save_table().await?)
    }

    async fn destroy_volume(&self, name: &str) -> Result<(), Refusal> {
        if let Some(index) = self.find(name) {
            self.engine.table.borrow_mut()[index].2 = false;
            if self.engine.flaw != Flaw::KeepsDestroyed {
                self.engine.contents.borrow_mut()[index].clear();
            }
        }
        Ok(self.engine.save_table().await?)
    }

    async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<(), Refusal> {
        let Some(index) = self.find(name) else { return Ok(()) };
        let old = std::mem::replace(&mut self.engine.table.borrow_mut()[index].1, size_bytes);
        if size_bytes < old {
            let (first, count) = (size_bytes / SECTOR_BYTES, (old - size_bytes) / SECTOR_BYTES);
            let record = Record { volume: index as u32, first, count, data: None };
            self.engine.change(record, true).await?;
        }
        Ok(self.engine.save_table().await?)
    }

    async fn scrub(&self) -> Result<Scrubbed, Refusal> {
        Ok(Scrubbed::default())
    }

    async fn manage(&self, _disks: &[Device], _what: &Manage) -> Result<(), Refusal> {
        Ok(())
    }

    async fn figures(&self) -> Result<Option<Figures>, Refusal> {
        let (table, contents) = (self.engine.table.borrow(), self.engine.contents.borrow());
        let mut lines: Vec<String> = table
            .iter()
            .zip(&*contents)
            .filter(|((_, _, exists), _)| *exists)
            .map(|((name, size, _), held)| format!("{name}: {size} bytes, {} sectors", held.len()))
            .collect();
        if self.engine.flaw == Flaw::CountsInMemory {
            lines.push(format!("{} changes", self.engine.changes.get()));
        }
        let held = contents.iter().map(|sectors| sectors.len() as u64).sum();
        Ok(Some(Figures { lines, taken: vec![("sectors".to_owned(), held)] }))
    }

    async fn export(self) -> Result<(), Refusal> {
        self.engine.drain().await?;
        Ok(self.engine.disk.flush().await?)
    }
}

impl ReferenceVolume {
    fn check(&self, op: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(&self.name, &self.geometry(), op, offset, len)
    }

    async fn zero(&self, offset: u64, len: u64, fua: bool) -> Result<(), DeviceError> {
        self.check(Operation::WriteZeroes, offset, len)?;
        let (first, count) = (offset / SECTOR_BYTES, len / SECTOR_BYTES);
        self.engine.change(Record { volume: self.index, first, count, data: None }, fua).await
    }
}

impl BlockDevice for ReferenceVolume {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.engine.table.borrow()[self.index as usize].1,
            block_bytes: 512,
            volatile_cache: true,
            discard_bytes: BLOCK_BYTES as u32,
            read_only: false,
        }
    }

    fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> DeviceFuture<'_, IoBuf> {
        Box::pin(async move {
            self.check(Operation::Read, offset_bytes, buf.len() as u64)?;
            rt::sleep(Nanos::from_micros(2)).await;
            let contents = self.engine.contents.borrow();
            let sectors = &contents[self.index as usize];
            for (index, out) in buf.chunks_mut(SECTOR_LEN).enumerate() {
                match sectors.get(&(offset_bytes / SECTOR_BYTES + index as u64)) {
                    Some(bytes) => out.copy_from_slice(bytes),
                    None => out.fill(0),
                }
            }
            Ok(buf)
        })
    }

    fn write(&self, offset_bytes: u64, data: IoBytes, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            let len = data.len() as u64;
            self.check(Operation::Write, offset_bytes, len)?;
            if self.engine.log_end.get() + len + (1 << 20) > self.engine.disk.geometry().size_bytes
            {
                let kind = ErrorKind::NoSpace;
                return Err(DeviceError::new(
                    &self.name,
                    Operation::Write,
                    offset_bytes,
                    len,
                    kind,
                ));
            }
            let (first, count) = (offset_bytes / SECTOR_BYTES, len / SECTOR_BYTES);
            let record = Record { volume: self.index, first, count, data: Some(data) };
            self.engine.change(record, fua).await
        })
    }

    fn flush(&self) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            if self.engine.flaw == Flaw::FlushNothing {
                rt::yield_now().await;
                return Ok(());
            }
            self.engine.drain().await?;
            if self.engine.flaw == Flaw::AckBeforeDurable {
                self.engine.disk.flush().await?;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64, fua: bool) -> DeviceFuture<'_, ()> {
        Box::pin(async move {
            self.check(Operation::Discard, offset, len)?;
            let first = offset.next_multiple_of(BLOCK_BYTES);
            let end = (offset + len) / BLOCK_BYTES * BLOCK_BYTES;
            if first < end { self.zero(first, end - first, fua).await } else { Ok(()) }
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, options: ZeroOptions) -> DeviceFuture<'_, ()> {
        Box::pin(self.zero(offset, len, options.fua))
    }

    fn allocation(&self, offset: u64, len: u64) -> DeviceFuture<'_, Vec<Allocation>> {
        Box::pin(async move {
            rt::yield_now().await;
            let contents = self.engine.contents.borrow();
            let waiting = self.engine.waiting.borrow();
            let sector = offset / SECTOR_BYTES;
            let is_hole = |sector: u64| {
                let lies = self.engine.flaw == Flaw::HoleOverWaiting
                    && waiting.iter().any(|record| {
                        record.volume == self.index
                            && (record.first..record.first + record.count).contains(&sector)
                    });
                lies || !contents[self.index as usize].contains_key(&sector)
            };
            let hole = is_hole(sector);
            let run = (sector..(offset + len) / SECTOR_BYTES).take_while(|s| is_hole(*s) == hole);
            Ok(vec![Allocation { len_bytes: run.count() as u64 * SECTOR_BYTES, hole }])
        })
    }
}
