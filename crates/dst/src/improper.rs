//! Improper requests of clients: they must be refused, and change nothing.
//!
//! What enters: a transport and the request. What leaves: an objection when it is performed.
//! Who calls: clients (`client.rs`).

use std::fmt::Display;

use forebay_device::{Device, IoBuf, ZeroOptions};
use forebay_units::SECTOR_BYTES;

use crate::model::Model;
use crate::scenario::Improper;
use crate::subject::Pool;
use crate::transport::{Purpose, REQUEST_MAX_BYTES, Transport};
use crate::verdict::Kind;

/// Makes an improper request. Of a range only the place counts: it is moved so that it ends `count`
/// sectors past the end of the volume.
pub async fn improper<P: Pool>(
    transport: &Transport<P>,
    model: &Model,
    what: Improper,
    (volume, first, count): (u32, u64, u64),
) {
    if what == Improper::NoExport {
        return transport.connect_to_none(model).await;
    }
    let Some(device) = transport.open(model, volume, Purpose::Data).await else { return };
    let size_bytes = device.geometry().size_bytes;
    let inside = (first % 16 * SECTOR_BYTES).min(size_bytes);
    let at = size_bytes - inside;
    let len = inside + count * SECTOR_BYTES;
    match transport.connection(volume) {
        Some(client) => {
            let (at, len) = if what == Improper::TooLong { (0, 0) } else { (at, len) };
            let outcome = through_nbd(&client, what, at, len).await;
            note(model, what, outcome.err());
        }
        // A direct call has no longest request.
        None if what == Improper::TooLong => {}
        None => {
            let outcome = direct(&device, what, at, len).await;
            note(model, what, outcome.err());
        }
    }
}

fn note(model: &Model, what: Improper, refusal: Option<impl Display>) {
    match refusal {
        Some(_) => {
            model.count(&format!("requests refused: {what:?}"), 1);
            model.acts.set(model.acts.get() + 1);
        }
        None => model.object(Kind::Error, format!("an improper request was performed: {what:?}")),
    }
}

async fn direct(
    device: &Device,
    what: Improper,
    at: u64,
    len: u64,
) -> Result<(), forebay_device::DeviceError> {
    let zeros = || IoBuf::zeroed(len as usize);
    match what {
        Improper::Write => device.write(at, zeros().freeze(), true).await,
        Improper::Read => device.read(at, zeros()).await.map(drop),
        Improper::Trim => device.discard(at, len, true).await,
        Improper::Zero => device.write_zeroes(at, len, ZeroOptions::default()).await,
        Improper::Status => device.allocation(at, len).await.map(drop),
        Improper::Misaligned => device.read(1, IoBuf::zeroed(100)).await.map(drop),
        Improper::TooLong | Improper::NoExport => Ok(()),
    }
}

async fn through_nbd(
    client: &forebay_nbd::Client,
    what: Improper,
    at: u64,
    len: u64,
) -> Result<(), forebay_nbd::RequestError> {
    let (zeros, short) = (|| IoBuf::zeroed(len as usize), len as u32);
    match what {
        Improper::Write => client.write_once(at, zeros().freeze(), true).await,
        Improper::Read => client.read_once(at, zeros()).await.map(drop),
        Improper::Trim => client.trim(at, short, true).await,
        Improper::Zero => client.zero(at, short, 0).await,
        Improper::Status => client.block_status(at, short, 0).await.map(drop),
        Improper::Misaligned => client.read_once(1, IoBuf::zeroed(100)).await.map(drop),
        Improper::TooLong => {
            let long = IoBuf::zeroed(REQUEST_MAX_BYTES as usize + SECTOR_BYTES as usize);
            client.write_once(0, long.freeze(), false).await
        }
        Improper::NoExport => Ok(()),
    }
}
