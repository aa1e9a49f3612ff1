//! Clients and the administrator: they do what the scenario says and note what they see.

use std::rc::Rc;

use forebay_device::{Device, IoBuf, ZeroOptions};
use forebay_rt as rt;
use forebay_sim::SECTOR_LEN;
use forebay_units::{Nanos, SECTOR_BYTES};

use crate::history::Change;
use crate::model::{Model, Presence, volume_name};
use crate::scenario::{Act, Admin};
use crate::stamp::{Fill, Seen, examine, stamp};
use crate::subject::Pool;
use crate::transport::{Purpose, Transport};
use crate::verdict::Kind;

/// Does everything in `acts`, in order.
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
    match act {
        Act::Pause { ns } => rt::sleep(Nanos(ns)).await,
        Act::Flush { volume } => {
            let Some(device) = transport.open(model, volume, Purpose::Flush).await else { return };
            flush(&device, model, volume).await;
        }
        Act::Write { volume, first, count, fua, fill } => {
            let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
            let Some((first, count)) = usable(&device, model, volume, first, count) else { return };
            write(&device, model, (volume, first, count), fua, fill).await;
        }
        Act::Read { volume, first, count } => {
            let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
            let Some((first, count)) = usable(&device, model, volume, first, count) else { return };
            read(&device, model, (volume, first, count)).await;
        }
        Act::Trim { volume, first, count, fua } => {
            let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
            let Some((first, count)) = usable(&device, model, volume, first, count) else { return };
            let range = (first, count);
            let Some(issued) = model.issue(volume, Change::Zero, range, fua).await else {
                return;
            };
            let outcome = device.discard(first * SECTOR_BYTES, count * SECTOR_BYTES, fua).await;
            if let Err(error) = &outcome {
                model.error_seen("trim", error);
            }
            model.answered(volume, issued, &outcome);
        }
        Act::Zero { volume, first, count, fua, no_hole } => {
            let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
            let Some((first, count)) = usable(&device, model, volume, first, count) else { return };
            let range = (first, count);
            let Some(issued) = model.issue(volume, Change::Zero, range, fua).await else {
                return;
            };
            let options = ZeroOptions { fua, no_hole, fast: false };
            let (at, len) = (first * SECTOR_BYTES, count * SECTOR_BYTES);
            let outcome = device.write_zeroes(at, len, options).await;
            if let Err(error) = &outcome {
                model.error_seen("write zeroes", error);
            }
            model.answered(volume, issued, &outcome);
        }
        Act::Status { volume, first, count } => {
            let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
            let Some((first, count)) = usable(&device, model, volume, first, count) else { return };
            status(&device, model, (volume, first, count)).await;
        }
    }
}

/// What of a range is inside the volume, and inside what the device in hand says of it: a
/// connection does not learn that the volume has grown.
fn usable(
    device: &Device,
    model: &Model,
    volume: u32,
    first: u64,
    count: u64,
) -> Option<(u64, u64)> {
    let (first, count) = model.usable(volume, first, count)?;
    let end = device.geometry().size_bytes / SECTOR_BYTES;
    (first < end).then(|| (first, count.min(end - first)))
}

/// Flushes a volume and notes what is durable then. False when it failed.
pub async fn flush(device: &Device, model: &Model, volume: u32) -> bool {
    let begun = model.update(volume, |v| (v.history.now(), v.heeds_flushes()));
    let Some((issued, heeded)) = begun else { return false };
    match device.flush().await {
        Ok(()) => {
            model.acts.set(model.acts.get() + 1);
            model.update(volume, |v| {
                if heeded && v.heeds_flushes() {
                    v.history.flushed(issued);
                }
            });
            true
        }
        Err(error) => {
            // It may have waited while the volume was destroyed.
            if model.update(volume, |v| v.presence == Presence::Present) == Some(true) {
                model.error_seen("flush", &error);
            }
            false
        }
    }
}

/// Writes stamps.
pub async fn write(
    device: &Device,
    model: &Model,
    (volume, first, count): (u32, u64, u64),
    fua: bool,
    fill: Fill,
) {
    let range = (first, count);
    let Some(issued) = model.issue(volume, Change::Write, range, fua).await else { return };
    let mut buf = IoBuf::recycled(count as usize * SECTOR_LEN);
    for (index, out) in buf.chunks_exact_mut(SECTOR_LEN).enumerate() {
        stamp(out, volume, first + index as u64, issued.ticket.number, fill);
    }
    let outcome = device.write(first * SECTOR_BYTES, buf.freeze(), fua).await;
    if let Err(error) = &outcome {
        model.error_seen("write", error);
    }
    model.answered(volume, issued, &outcome);
}

/// Reads and judges every sector.
pub async fn read(device: &Device, model: &Model, (volume, first, count): (u32, u64, u64)) {
    let Some(issued) = model.update(volume, |v| v.history.read_begins()) else { return };
    let buf = IoBuf::recycled(count as usize * SECTOR_LEN);
    let buf = match device.read(first * SECTOR_BYTES, buf).await {
        Ok(buf) => buf,
        Err(error) => {
            if model.update(volume, |v| v.read_fails(issued, first + count)) != Some(true) {
                model.error_seen("read", &error);
            }
            return;
        }
    };
    model.acts.set(model.acts.get() + 1);
    if buf.len() != count as usize * SECTOR_LEN {
        return model.object(Kind::Read, format!("a read returned {} bytes", buf.len()));
    }
    model.update(volume, |v| {
        for (index, bytes) in buf.chunks_exact(SECTOR_LEN).enumerate() {
            let sector = first + index as u64;
            if sector >= v.history.sectors() {
                break; // shrunk while we read
            }
            let seen = examine(bytes, volume, sector);
            model.judge(Kind::Read, v.history.check_read(issued, sector, seen));
        }
        v.history.read_ends(issued);
    });
}

async fn status(device: &Device, model: &Model, (volume, first, count): (u32, u64, u64)) {
    let Some(issued) = model.update(volume, |v| v.history.read_begins()) else { return };
    let outcome = device.allocation(first * SECTOR_BYTES, count * SECTOR_BYTES).await;
    let runs = match outcome {
        Ok(runs) => runs,
        Err(error) => {
            if model.update(volume, |v| v.read_fails(issued, first + count)) != Some(true) {
                model.error_seen("block status", &error);
            }
            return;
        }
    };
    model.acts.set(model.acts.get() + 1);
    let total: u64 = runs.iter().map(|run| run.len_bytes).sum();
    if runs.is_empty() || runs.iter().any(|r| r.len_bytes == 0) || total > count * SECTOR_BYTES {
        let text = format!("block status of {count} sectors at {first} gave {runs:?}");
        return model.object(Kind::Hole, text);
    }
    model.update(volume, |v| {
        let mut at = first * SECTOR_BYTES;
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

/// The event of a pool that says that its cleaner has moved blocks since the import.
pub const MOVING: &str = "segments cleaned";

/// Does everything in `jobs`, in order. All volumes had `at_first` sectors together, and the pool has
/// room for so many.
pub async fn administrator<P: Pool>(
    pool: Rc<P>,
    model: Rc<Model>,
    disks: Vec<Device>,
    jobs: Vec<Admin>,
    at_first: u64,
) {
    for job in jobs {
        if model.failed() {
            return;
        }
        manage(&*pool, &model, &disks, job, at_first).await;
    }
}

async fn manage<P: Pool>(pool: &P, model: &Model, disks: &[Device], job: Admin, at_first: u64) {
    let outcome = match &job {
        Admin::Pause { ns } => {
            rt::sleep(Nanos(*ns)).await;
            return;
        }
        Admin::Create { volume, sectors } => {
            model.creating(*volume, *sectors);
            let outcome =
                pool.create_volume(&volume_name(*volume), sectors * SECTOR_BYTES, false).await;
            let presence = match outcome {
                Ok(()) => Presence::Present,
                Err(_) => Presence::Destroying,
            };
            model.update(*volume, |v| v.presence = presence);
            outcome
        }
        Admin::Destroy { volume } => {
            if model.usable(*volume, 0, 1).is_none() {
                return;
            }
            model.close(*volume).await;
            model.update(*volume, |v| v.presence = Presence::Destroying);
            let outcome = pool.destroy_volume(&volume_name(*volume)).await;
            if outcome.is_ok() {
                model.update(*volume, |v| v.presence = Presence::Gone);
            }
            outcome
        }
        Admin::Resize { volume, sectors } => {
            if model.usable(*volume, 0, 1).is_none() {
                return;
            }
            model.close(*volume).await;
            model.update(*volume, |v| v.resizing.push(*sectors));
            let outcome = pool.resize_volume(&volume_name(*volume), sectors * SECTOR_BYTES).await;
            model.update(*volume, |v| {
                if outcome.is_ok() {
                    v.history.resize(*sectors);
                    v.resizing.clear();
                }
                v.closed = false;
            });
            outcome
        }
        Admin::Sync { volume, sync } => {
            if model.usable(*volume, 0, 1).is_none() {
                return;
            }
            // Of what is under way while it changes neither is promised.
            model.update(*volume, |v| (v.sync, v.sync_varies) = (None, true));
            let outcome = pool.set_sync(&volume_name(*volume), *sync).await;
            if outcome.is_ok() {
                model.update(*volume, |v| v.sync = Some(*sync));
            }
            outcome
        }
        Admin::Scrub => pool.scrub().await.map(drop),
        Admin::Manage(what) => pool.manage(disks, what).await,
    };
    model.acts.set(model.acts.get() + 1);
    let name = job.name();
    // Whether it asks for more than all volumes had together at first.
    let grows = match &job {
        Admin::Create { sectors, .. } => model.sectors_present() + sectors > at_first,
        Admin::Resize { volume, sectors } => {
            let now = model.update(*volume, |v| v.history.sectors()).unwrap_or(0);
            model.sectors_present() + sectors > at_first + now
        }
        _ => false,
    };
    match outcome {
        Ok(()) => {
            model.count(&format!("admin: {name}"), 1);
            let moving = |(event, count): &(String, u64)| event == MOVING && *count > 0;
            if pool.events().iter().any(moving) {
                model.count(&format!("admin: {name}, while the cleaner is at work"), 1);
            }
        }
        // The last good side, a device that is busy or gone: its own affair.
        Err(refusal) if grows && refusal.message.contains(" free, ") => {
            model.count(&format!("admin: {name} refused for want of space"), 1);
        }
        Err(_) if job.may_be_refused() => model.count(&format!("admin: {name} refused"), 1),
        Err(refusal) => model.error_seen(&format!("{job:?}"), &refusal.message),
    }
}

/// Reads a whole volume, sector by sector where larger reads fail. Unreadable sectors are `None`.
pub async fn read_all(
    device: &Device,
    model: &Model,
    volume: u32,
    sectors: u64,
) -> Vec<Option<Seen>> {
    const CHUNK: u64 = 256;
    let mut seen = Vec::with_capacity(sectors as usize);
    let mut at = 0;
    while at < sectors {
        let count = CHUNK.min(sectors - at);
        if let Err(error) = read_some(device, volume, at, count, &mut seen).await {
            model.error_seen("read after import", &error);
            for sector in at..at + count {
                if read_some(device, volume, sector, 1, &mut seen).await.is_err() {
                    seen.push(None);
                }
            }
        }
        at += count;
    }
    seen
}

/// Adds what a range shows to `seen`; nothing when it cannot be read.
async fn read_some(
    device: &Device,
    volume: u32,
    first: u64,
    count: u64,
    seen: &mut Vec<Option<Seen>>,
) -> Result<(), forebay_device::DeviceError> {
    let buf = IoBuf::recycled(count as usize * SECTOR_LEN);
    let buf = device.read(first * SECTOR_BYTES, buf).await?;
    let sectors = (first..).zip(buf.chunks_exact(SECTOR_LEN));
    seen.extend(sectors.map(|(sector, bytes)| Some(examine(bytes, volume, sector))));
    Ok(())
}
