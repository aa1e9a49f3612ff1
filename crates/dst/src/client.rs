//! Clients: they perform the acts of a scenario and check what they see.
//!
//! What enters: a script of acts and a transport to the volumes. What leaves: notes in the model,
//! and an objection for each wrong answer. What always holds: a client issues a change only after
//! the model has noted it. Who calls: `run.rs`, one task for each client.

use std::rc::Rc;

use forebay_device::{Device, DeviceError, IoBuf, ZeroOptions};
use forebay_rt as rt;
use forebay_sim::SECTOR_LEN;
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::history::Change;
use crate::model::{Model, Presence, volume_name};
use crate::scenario::Act;
use crate::stamp::{Fill, Seen, examine, stamp};
use crate::subject::Pool;
use crate::transport::{Purpose, Transport};
use crate::verdict::Kind;

/// A range of sectors of one volume.
#[derive(Clone, Copy)]
pub struct SectorRange {
    /// The volume's id.
    pub volume: u32,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
}

impl SectorRange {
    fn offset_bytes(self) -> u64 {
        self.first * SECTOR_BYTES
    }

    fn len_bytes(self) -> u64 {
        self.count * SECTOR_BYTES
    }

    fn end(self) -> u64 {
        self.first + self.count
    }
}

/// Performs all acts in order.
pub async fn client<P: Pool>(transport: Transport<P>, model: Rc<Model>, acts: Vec<Act>) {
    for act in acts {
        if model.failed() {
            return;
        }
        if let Some(volume) = act.volume() {
            model.opened(volume).await;
        }
        perform(&transport, &model, act).await;
        if matches!(transport, Transport::Remote { .. }) {
            model.count("client operations through NBD", 1);
        }
    }
}

async fn perform<P: Pool>(transport: &Transport<P>, model: &Model, act: Act) {
    let (volume, first, count) = match act {
        Act::Pause { ns } => return rt::sleep(Nanos(ns)).await,
        Act::Flush { volume } => {
            let Some(device) = transport.open(model, volume, Purpose::Flush).await else { return };
            flush(&device, model, volume).await;
            return;
        }
        Act::Write { volume, first, count, .. }
        | Act::Read { volume, first, count }
        | Act::Trim { volume, first, count, .. }
        | Act::Zero { volume, first, count, .. }
        | Act::Status { volume, first, count } => (volume, first, count),
    };
    let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
    let Some(range) = usable(&device, model, SectorRange { volume, first, count }) else { return };
    match act {
        Act::Write { fua, fill, .. } => write(&device, model, range, fua, fill).await,
        Act::Read { .. } => read(&device, model, range).await,
        Act::Trim { fua, .. } => {
            let call = async || device.discard(range.offset_bytes(), range.len_bytes(), fua).await;
            zero(model, range, fua, "trim", call).await;
        }
        Act::Zero { fua, no_hole, .. } => {
            let options = ZeroOptions { fua, no_hole, fast: false };
            let (at, len) = (range.offset_bytes(), range.len_bytes());
            let call = async || device.write_zeroes(at, len, options).await;
            zero(model, range, fua, "write zeroes", call).await;
        }
        Act::Status { .. } => status(&device, model, range).await,
        Act::Pause { .. } | Act::Flush { .. } => {}
    }
}

/// Clips a range to the volume and to the size that the device reports. An NBD connection does not
/// learn that the volume has grown.
fn usable(device: &Device, model: &Model, range: SectorRange) -> Option<SectorRange> {
    let (first, count) = model.usable(range.volume, range.first, range.count)?;
    let end = device.geometry().size_bytes / SECTOR_BYTES;
    (first < end).then(|| SectorRange { first, count: count.min(end - first), ..range })
}

/// Flushes a volume and notes what is durable now.
pub async fn flush(device: &Device, model: &Model, volume: u32) {
    let begun = model.update(volume, |v| (v.history.now(), v.heeds_flushes()));
    let Some((issued, heeded)) = begun else { return };
    match device.flush().await {
        Ok(()) => {
            model.acts.set(model.acts.get() + 1);
            model.update(volume, |v| {
                if heeded && v.heeds_flushes() {
                    v.history.flushed(issued);
                }
            });
        }
        Err(error) => {
            // The flush may have waited while the volume was destroyed.
            if model.update(volume, |v| v.presence == Presence::Present) == Some(true) {
                model.error_seen("flush", &error);
            }
        }
    }
}

/// Writes stamps to a range.
pub async fn write(device: &Device, model: &Model, range: SectorRange, fua: bool, fill: Fill) {
    let SectorRange { volume, first, count } = range;
    let issued = model.issue(volume, Change::Write, (first, count), fua).await;
    let Some(issued) = issued else { return };
    let mut buf = IoBuf::recycled(range.len_bytes() as usize);
    for (sector, out) in (first..).zip(buf.chunks_exact_mut(SECTOR_LEN)) {
        stamp(out, volume, sector, issued.ticket.number, fill);
    }
    let outcome = device.write(range.offset_bytes(), buf.freeze(), fua).await;
    if let Err(error) = &outcome {
        model.error_seen("write", error);
    }
    model.answered(volume, issued, &outcome);
}

/// Issues a trim or a write-zeroes.
async fn zero(
    model: &Model,
    range: SectorRange,
    fua: bool,
    name: &str,
    call: impl AsyncFnOnce() -> Result<(), DeviceError>,
) {
    let sectors = (range.first, range.count);
    let issued = model.issue(range.volume, Change::Zero, sectors, fua).await;
    let Some(issued) = issued else { return };
    let outcome = call().await;
    if let Err(error) = &outcome {
        model.error_seen(name, error);
    }
    model.answered(range.volume, issued, &outcome);
}

/// Notes the error of a read or a block status, unless the volume was being shrunk or destroyed.
fn read_failed(model: &Model, range: SectorRange, issued: u64, what: &str, error: &DeviceError) {
    let excused = model.update(range.volume, |v| v.read_fails(issued, range.end()));
    if excused != Some(true) {
        model.error_seen(what, error);
    }
}

async fn read(device: &Device, model: &Model, range: SectorRange) {
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
            if sector >= v.history.sectors() {
                break; // the volume shrank during the read
            }
            let seen = examine(bytes, volume, sector);
            model.judge(Kind::Read, v.history.check_read(issued, sector, seen));
        }
        v.history.read_ends(issued);
    });
}

async fn status(device: &Device, model: &Model, range: SectorRange) {
    let SectorRange { volume, first, count } = range;
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
        let mut at = range.offset_bytes();
        for run in &runs {
            let end = at + run.len_bytes;
            for sector in at.div_ceil(SECTOR_BYTES)..end / SECTOR_BYTES {
                let inside = sector < v.history.sectors();
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

/// Reads a whole volume, by single sectors where larger reads fail. Unreadable sectors are `None`.
pub async fn read_all(
    device: &Device,
    model: &Model,
    volume: u32,
    sectors: u64,
) -> Vec<Option<Seen>> {
    const CHUNK_SECTORS: u64 = 256;
    let mut seen = Vec::with_capacity(sectors as usize);
    let mut at = 0;
    while at < sectors {
        let count = CHUNK_SECTORS.min(sectors - at);
        let chunk = SectorRange { volume, first: at, count };
        if let Err(error) = read_chunk(device, chunk, &mut seen).await {
            model.error_seen("read after import", &error);
            for sector in at..at + count {
                let one = SectorRange { volume, first: sector, count: 1 };
                if read_chunk(device, one, &mut seen).await.is_err() {
                    seen.push(None);
                }
            }
        }
        at += count;
    }
    seen
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
