//! Clients: they perform the acts of a scenario and check what they see.
//!
//! What enters: a script of acts and a transport to the volumes. What leaves: notes in the model,
//! and an objection for each wrong answer. What always holds: a client issues a change only after
//! the model has noted it. Who calls: `run.rs`, one task for each client.

use std::rc::Rc;

use forebay_device::{Device, DeviceError, ErrorKind, IoBuf, ZeroOptions};
use forebay_rt as rt;
use forebay_sim::SECTOR_LEN;
use forebay_units::{BLOCK_BYTES, Nanos, SECTOR_BYTES};

use crate::give_up::{Departure, Leaving, given_up};
use crate::history::Change;
use crate::improper::improper;
use crate::model::{Issued, Model, Terms, volume_name};
use crate::scenario::Act;
use crate::stamp::{Fill, Seen, examine, stamp};
use crate::subject::Pool;
use crate::transport::{Purpose, REQUEST_MAX_BYTES, Transport};
use crate::verdict::Kind;

/// Sectors of one step of zeros that are written.
const STEP_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;

/// Sectors of a block, the unit of trims.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// A range of sectors of one volume.
#[derive(Clone, Copy)]
pub struct SectorRange {
    /// The volume's id.
    pub volume: u32,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
    /// How much higher the range begins on the device.
    shift: u64,
    /// How much longer it is there.
    gap: u64,
}

impl SectorRange {
    /// A range of a volume, cut where the volume has a gap.
    pub fn of(model: &Model, volume: u32, first: u64, count: u64) -> Self {
        let placed = Self::over_gap(model, volume, first, count);
        if placed.gap == 0 {
            return placed;
        }
        let split = model.update(volume, |v| v.split_sector()).unwrap_or(u64::MAX);
        Self { count: split - first, gap: 0, ..placed }
    }

    /// A range of a volume, which on the device spans the gap of the volume when it crosses it.
    fn over_gap(model: &Model, volume: u32, first: u64, count: u64) -> Self {
        let found = model.update(volume, |v| (v.split_sector(), v.gap_sectors));
        let (split, gap) = found.unwrap_or((u64::MAX, 0));
        let shift = if first >= split { gap } else { 0 };
        let crosses = first < split && first + count > split;
        Self { volume, first, count, shift, gap: if crosses { gap } else { 0 } }
    }

    fn offset_bytes(self) -> u64 {
        (self.first + self.shift) * SECTOR_BYTES
    }

    fn len_bytes(self) -> u64 {
        (self.count + self.gap) * SECTOR_BYTES
    }

    fn end(self) -> u64 {
        self.first + self.count
    }

    /// The range in parts of at most so many sectors.
    fn in_parts(self, most: u64) -> impl Iterator<Item = Self> {
        let starts = (0..self.count).step_by(usize::try_from(most).unwrap_or(usize::MAX));
        starts.map(move |skip| Self {
            first: self.first + skip,
            count: (self.count - skip).min(most),
            ..self
        })
    }
}

/// Performs all acts in order.
pub async fn client<P: Pool>(transport: Transport<P>, model: Rc<Model>, acts: Vec<Act>) {
    let transport = Rc::new(transport);
    let mut acts = acts.into_iter();
    while let Some(act) = acts.next() {
        if model.failed() {
            return;
        }
        let Act::GiveUp { requests, waits, after_ns, is_abrupt } = act else {
            begin(&transport, &model, act, None).await;
            continue;
        };
        let departure = Departure::new(waits, Nanos(after_ns), is_abrupt);
        let begin_one = |act| {
            let (transport, model) = (transport.clone(), model.clone());
            let departure = departure.clone();
            rt::spawn(async move { begin(&transport, &model, act, Some(&departure)).await })
        };
        rt::join_all(acts.by_ref().take(requests as usize).map(begin_one)).await;
        if departure.has_gone() {
            model.count("clients that went away", 1);
            transport.disconnect();
        }
    }
}

/// Performs an act once its volume may be used.
async fn begin<P: Pool>(
    transport: &Transport<P>,
    model: &Model,
    act: Act,
    departure: Option<&Rc<Departure>>,
) {
    if let Some(volume) = act.volume() {
        model.opened(volume).await;
        if transport.is_there(model, volume) {
            model.seen(volume);
        }
    }
    perform(transport, model, act, departure).await;
    if transport.is_remote() {
        model.count("client operations through NBD", 1);
    }
}

async fn perform<P: Pool>(
    transport: &Transport<P>,
    model: &Model,
    act: Act,
    departure: Option<&Rc<Departure>>,
) {
    let is_remote = transport.is_remote();
    let leaving = |device: Device| match departure {
        Some(departure) => Leaving::over(device, departure, is_remote),
        None => device,
    };
    let (volume, first, count) = match act {
        Act::Pause { ns } => return rt::sleep(Nanos(ns)).await,
        Act::GiveUp { .. } => return,
        Act::Flush { volume } => {
            let Some(device) = transport.open(model, volume, Purpose::Flush).await else { return };
            flush(&leaving(device), model, volume).await;
            return;
        }
        Act::Improper { volume, what, first, count } => {
            return improper(transport, model, what, (volume, first, count)).await;
        }
        Act::Write { volume, first, count, .. }
        | Act::Read { volume, first, count }
        | Act::Trim { volume, first, count, .. }
        | Act::Zero { volume, first, count, .. }
        | Act::Status { volume, first, count } => (volume, first, count),
    };
    let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
    let device = leaving(device);
    // Requests that take time by their length do not cross a gap.
    let may_cross = matches!(act, Act::Trim { .. } | Act::Zero { no_hole: false, .. });
    let ranges = usable(&device, model, (volume, first, count), may_cross && !is_remote);
    // A connection divides a long request; each part is a request of its own.
    let most = if is_remote { u64::from(REQUEST_MAX_BYTES) / SECTOR_BYTES } else { u64::MAX };
    let Some(range) = ranges else { return };
    for range in range.in_parts(most) {
        if departure.is_some_and(|departure| departure.has_gone()) {
            return;
        }
        perform_on(&device, model, act, range).await;
    }
}

async fn perform_on(device: &Device, model: &Model, act: Act, range: SectorRange) {
    match act {
        Act::Write { fua, fill, .. } => write(device, model, range, fua, fill).await,
        Act::Read { .. } => read(device, model, range).await,
        Act::Trim { fua, .. } => {
            let call = async || device.discard(range.offset_bytes(), range.len_bytes(), fua).await;
            trim(model, range, fua, call).await;
        }
        Act::Zero { fua, no_hole, .. } => {
            let options = ZeroOptions { fua, no_hole, fast: false };
            let (at, len) = (range.offset_bytes(), range.len_bytes());
            let call = async || device.write_zeroes(at, len, options).await;
            // Zeros that keep their space are written, a MiB at a time.
            let step = if no_hole { STEP_SECTORS } else { u64::MAX };
            zero(model, range, range, Terms { fua, step }, "write zeroes", call).await;
        }
        Act::Status { .. } => status(device, model, range).await,
        Act::Pause { .. } | Act::GiveUp { .. } | Act::Flush { .. } | Act::Improper { .. } => {}
    }
}

/// Clips a range to the volume and to the size that the device reports. An NBD connection does not
/// learn that the volume has grown.
fn usable(
    device: &Device,
    model: &Model,
    (volume, first, count): (u32, u64, u64),
    may_cross: bool,
) -> Option<SectorRange> {
    let gap = model.update(volume, |v| v.gap_sectors).unwrap_or(0);
    let end = (device.geometry().size_bytes / SECTOR_BYTES).saturating_sub(gap);
    model.size_seen(volume, end);
    let (first, count) = model.usable(volume, first, count)?;
    let count = count.min(end.saturating_sub(first));
    let place = if may_cross { SectorRange::over_gap } else { SectorRange::of };
    (count > 0).then(|| place(model, volume, first, count))
}

/// Flushes a volume and notes what is durable now.
pub async fn flush(device: &Device, model: &Model, volume: u32) {
    let begun = model.update(volume, |v| (v.history.now(), v.heeds_flushes()));
    let Some((issued, heeded)) = begun else { return };
    match device.flush().await {
        Ok(()) => {
            model.acts.set(model.acts.get() + 1);
            if heeded {
                model.judge_late_flush(volume, issued);
            }
            model.update(volume, |v| {
                if heeded && v.heeds_flushes() {
                    v.history.flushed(issued);
                }
            });
        }
        Err(error) if given_up(&error).is_some() => model.count("flushes given up", 1),
        Err(error) => {
            // The flush may have waited while the volume was destroyed.
            if model.update(volume, |v| v.is_usable()) == Some(true) {
                model.error_seen("flush", &error);
            }
        }
    }
}

/// Writes stamps to a range.
pub async fn write(device: &Device, model: &Model, range: SectorRange, fua: bool, fill: Fill) {
    let SectorRange { volume, first, count, .. } = range;
    let issued = model.issue(volume, Change::Write, (first, count), Terms::whole(fua)).await;
    let Some(issued) = issued else { return };
    let mut buf = IoBuf::recycled(range.len_bytes() as usize);
    for (sector, out) in (first..).zip(buf.chunks_exact_mut(SECTOR_LEN)) {
        stamp(out, volume, sector, issued.ticket.number, fill);
    }
    let outcome = device.write(range.offset_bytes(), buf.freeze(), fua).await;
    change_answered(model, range, issued, "write", &outcome);
}

/// Notes the answer to a change, or that its client gave it up.
fn change_answered(
    model: &Model,
    range: SectorRange,
    issued: Issued,
    what: &str,
    outcome: &Result<(), DeviceError>,
) {
    if let Err(error) = outcome {
        if let Some(given_up) = given_up(error) {
            model.count("changes given up", 1);
            return model.give_up(range.volume, issued, given_up.may_follow);
        }
        change_failed(model, range, issued.ticket.issued, what, error);
    }
    model.answered(range.volume, issued, outcome);
}

/// Notes the error of a change, unless there may be no space for it, its volume was being shrunk or
/// destroyed, or the rest of a block that it changes in part could not be read.
fn change_failed(model: &Model, range: SectorRange, issued: u64, what: &str, error: &DeviceError) {
    let found = model.update(range.volume, |v| {
        let is_sparse = v.is_sparse || issued <= v.thick_since;
        (is_sparse, v.may_fail(issued, range.end()), v.was_in_outage(issued))
    });
    let (is_sparse, may_fail, was_in_outage) = found.unwrap_or((false, true, false));
    let reads = range.first % BLOCK_SECTORS != 0 || range.end() % BLOCK_SECTORS != 0;
    match error.kind {
        _ if given_up(error).is_some() => model.count("changes given up", 1),
        _ if was_in_outage && reads => model.count("suspension: changes of parts failed", 1),
        ErrorKind::NoSpace if is_sparse => model.count("writes refused: no space", 1),
        _ if may_fail => model.count("changes refused: the volume was being cut", 1),
        _ => model.error_seen(what, error),
    }
}

/// Issues a trim. It zeroes whole blocks; the sectors beside them keep their contents.
async fn trim(
    model: &Model,
    range: SectorRange,
    fua: bool,
    call: impl AsyncFnOnce() -> Result<(), DeviceError>,
) {
    let first = range.first.next_multiple_of(BLOCK_SECTORS);
    let end = range.end() / BLOCK_SECTORS * BLOCK_SECTORS;
    if first < end {
        let inner = SectorRange { first, count: end - first, ..range };
        return zero(model, range, inner, Terms::whole(fua), "trim", call).await;
    }
    let issued = model.update(range.volume, |v| v.history.now()).unwrap_or(0);
    let outcome = call().await;
    model.acts.set(model.acts.get() + 1);
    if let Err(error) = outcome {
        change_failed(model, range, issued, "trim of a part of a block", &error);
    }
}

/// Trims a range of whole blocks.
pub async fn trim_all(device: &Device, model: &Model, range: SectorRange) {
    let call = async || device.discard(range.offset_bytes(), range.len_bytes(), false).await;
    zero(model, range, range, Terms::whole(false), "trim", call).await;
}

/// Issues a change of `range` to zeros: a trim, or a write-zeroes. The client asked for `asked`, of
/// which a trim changes only whole blocks.
async fn zero(
    model: &Model,
    asked: SectorRange,
    range: SectorRange,
    terms: Terms,
    name: &str,
    call: impl AsyncFnOnce() -> Result<(), DeviceError>,
) {
    let sectors = (range.first, range.count);
    let issued = model.issue(range.volume, Change::Zero, sectors, terms).await;
    let Some(issued) = issued else { return };
    let outcome = call().await;
    change_answered(model, asked, issued, name, &outcome);
}

/// Notes the error of a read or a block status, unless the volume was being shrunk or destroyed.
fn read_failed(model: &Model, range: SectorRange, issued: u64, what: &str, error: &DeviceError) {
    let excused = model.update(range.volume, |v| v.read_fails(issued, range.end()));
    if given_up(error).is_some() {
        model.count("reads given up", 1);
    } else if excused != Some(true) {
        model.error_seen(what, error);
    }
}

/// Reads a range and checks what it shows.
pub async fn read(device: &Device, model: &Model, range: SectorRange) {
    let SectorRange { volume, first, .. } = range;
    let Some(issued) = model.update(volume, |v| v.history.read_begins()) else { return };
    let buf = IoBuf::recycled(range.len_bytes() as usize);
    let buf = match device.read(range.offset_bytes(), buf).await {
        Ok(buf) => buf,
        Err(error) => return read_failed(model, range, issued, "read", &error),
    };
    model.acts.set(model.acts.get() + 1);
    if buf.len() as u64 != range.len_bytes() {
        return model.object(Kind::Read, format!("a read returned {} bytes", buf.len()));
    }
    model.update(volume, |v| {
        for (sector, bytes) in (first..).zip(buf.chunks_exact(SECTOR_LEN)) {
            if sector >= v.history.sectors() || v.may_be_cut(sector) {
                break; // the volume shrank during the read, or is being shrunk
            }
            let seen = examine(bytes, volume, sector);
            model.judge(Kind::Read, v.history.check_read(issued, sector, seen));
        }
        v.history.read_ends(issued);
    });
}

async fn status(device: &Device, model: &Model, range: SectorRange) {
    let SectorRange { volume, first, count, .. } = range;
    let Some(issued) = model.update(volume, |v| v.history.read_begins()) else { return };
    let outcome = device.allocation(range.offset_bytes(), range.len_bytes()).await;
    let runs = match outcome {
        Ok(runs) => runs,
        Err(error) => return read_failed(model, range, issued, "block status", &error),
    };
    model.acts.set(model.acts.get() + 1);
    let total: u64 = runs.iter().map(|run| run.len_bytes).sum();
    if runs.is_empty() || runs.iter().any(|r| r.len_bytes == 0) || total > range.len_bytes() {
        let text = format!("block status of {count} sectors at {first} returned {runs:?}");
        return model.object(Kind::Hole, text);
    }
    model.update(volume, |v| {
        let mut at = first * SECTOR_BYTES;
        for run in &runs {
            let end = at + run.len_bytes;
            for sector in at.div_ceil(SECTOR_BYTES)..end / SECTOR_BYTES {
                let inside = sector < v.history.sectors() && !v.may_be_cut(sector);
                if run.hole && inside && !v.history.may_be_hole(issued, sector) {
                    let name = volume_name(volume);
                    model.object(Kind::Hole, format!("{name} sector {sector}: a hole over data"));
                }
            }
            at = end;
        }
        v.history.read_ends(issued);
    });
}

/// Sectors of one read of a whole volume.
const CHUNK_SECTORS: u64 = 256;

/// Reads a whole volume, by single sectors where larger reads fail. Unreadable sectors are `None`.
pub async fn read_all(
    device: &Device,
    model: &Model,
    volume: u32,
    sectors: u64,
) -> Vec<Option<Seen>> {
    let mut seen = Vec::with_capacity(sectors as usize);
    let mut at = 0;
    while at < sectors {
        let chunk = SectorRange::of(model, volume, at, CHUNK_SECTORS.min(sectors - at));
        let count = chunk.count;
        if let Err(error) = read_chunk(device, chunk, &mut seen).await {
            model.error_seen("read after import", &error);
            for sector in at..at + count {
                let one = SectorRange::of(model, volume, sector, 1);
                if read_chunk(device, one, &mut seen).await.is_err() {
                    seen.push(None);
                }
            }
        }
        at += count;
    }
    seen
}

/// Reads a whole volume; fails with the first read that does.
pub async fn read_all_or_fail(
    device: &Device,
    model: &Model,
    volume: u32,
    sectors: u64,
) -> Result<Vec<Option<Seen>>, DeviceError> {
    let mut seen = Vec::with_capacity(sectors as usize);
    for chunk in SectorRange::of(model, volume, 0, sectors).in_parts(CHUNK_SECTORS) {
        read_chunk(device, chunk, &mut seen).await?;
    }
    Ok(seen)
}

/// Appends what a range shows to `seen`; appends nothing when the read fails.
async fn read_chunk(
    device: &Device,
    range: SectorRange,
    seen: &mut Vec<Option<Seen>>,
) -> Result<(), DeviceError> {
    let buf = IoBuf::recycled(range.len_bytes() as usize);
    let buf = device.read(range.offset_bytes(), buf).await?;
    let sectors = (range.first..).zip(buf.chunks_exact(SECTOR_LEN));
    seen.extend(sectors.map(|(sector, bytes)| Some(examine(bytes, range.volume, sector))));
    Ok(())
}
