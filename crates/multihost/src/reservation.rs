//! Reservations: devices that have them refuse the writes of every machine but the owner's.
//!
//! What enters: devices, the owner's key, and which holders it may replace. What leaves: reserved
//! devices, or a refusal. What always holds: a reservation passes from one owner to the next in one
//! step of the device, so at most one of two importers gets it.

use forebay_device::{
    Device, DeviceError, ErrorKind, ReservationChange, ReservationKey, Reservations,
};
use forebay_units::OwnerNonce;

use crate::error::MultihostError;

/// The key of an owner: its nonce. Zero is no key.
pub(crate) fn key_of(nonce: OwnerNonce) -> ReservationKey {
    ReservationKey(nonce.0.max(1))
}

/// Reserves `device` for the owner with `key`. A holder on another machine is replaced if
/// `may_preempt` permits it; the device then refuses that machine's writes, also those on their
/// way. Returns whether the device is reserved: `false` if it has no reservations, or fails.
pub(crate) async fn reserve(
    device: &Device,
    key: ReservationKey,
    may_preempt: impl Fn(ReservationKey) -> bool,
) -> Result<bool, MultihostError> {
    match take(device, key, may_preempt).await {
        Ok(is_taken) => is_taken.map(|()| true),
        Err(error) if error.kind == ErrorKind::ReservationConflict => Err(MultihostError::Lost),
        Err(error) if error.kind == ErrorKind::Overtaken => {
            Err(MultihostError::Overtaken { device: error.device.clone() })
        }
        // Without reservations, heartbeats protect the device. With an error too: the status does
        // not show the device as reserved then.
        Err(_) => Ok(false),
    }
}

async fn take(
    device: &Device,
    key: ReservationKey,
    may_preempt: impl Fn(ReservationKey) -> bool,
) -> Result<Result<(), MultihostError>, DeviceError> {
    // Not every device without reservations refuses to register.
    device.reservations().await?;
    // This replaces the key of an owner that ended on this machine: its reservation is taken over
    // with it.
    device.change_reservations(ReservationChange::Register { key }).await?;
    let holder = device.reservations().await?.holder;
    let outcome = match holder {
        Some(holder) if holder == key => Ok(()),
        None => device.change_reservations(ReservationChange::Reserve { key }).await,
        Some(holder) if may_preempt(holder) => preempt(device, key, holder).await,
        Some(holder) => {
            unregister(device, key).await;
            let device = device.name().to_owned();
            return Ok(Err(MultihostError::Reserved { device, holder }));
        }
    };
    if outcome.is_err() {
        // Another import was first.
        unregister(device, key).await;
    }
    outcome?;
    evict_others(device, key, &device.reservations().await?).await;
    Ok(Ok(()))
}

/// Takes the reservation from `holder`. Fails if another initiator has taken it meanwhile.
async fn preempt(
    device: &Device,
    key: ReservationKey,
    victim: ReservationKey,
) -> Result<(), DeviceError> {
    let with =
        |abort| device.change_reservations(ReservationChange::Preempt { key, victim, abort });
    match with(true).await {
        Err(error) if error.kind == ErrorKind::Unsupported => with(false).await,
        other => other,
    }
}

async fn unregister(device: &Device, key: ReservationKey) {
    // A registration that stays permits nothing that this process does: it gives up the device.
    let _ = device.change_reservations(ReservationChange::Unregister { key }).await;
}

/// Ends the registrations of imports that gave up halfway: a registered initiator may write.
async fn evict_others(device: &Device, key: ReservationKey, now: &Reservations) {
    for victim in now.keys.iter().copied().filter(|other| *other != key) {
        // Such an import has written nothing, and will not, because it lacks the reservation.
        let _ = preempt(device, key, victim).await;
    }
}

/// Ends the reservation of the owner with `key`, and every registration. Without effect if another
/// owner has the device by now.
pub(crate) async fn release(device: &Device, key: ReservationKey) {
    // A device that fails this stays reserved; the next import finds the key of a known owner.
    let _ = device.change_reservations(ReservationChange::Clear { key }).await;
}

/// Who has reserved a device: `None` if no initiator has, or the device cannot say.
pub(crate) async fn holder_of(device: &Device) -> Option<ReservationKey> {
    device.reservations().await.ok()?.holder
}

#[cfg(test)]
mod tests;
