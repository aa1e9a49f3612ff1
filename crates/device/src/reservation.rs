//! Persistent reservations: a device refuses writes of initiators that are not registered with it.
//!
//! What enters: keys and changes. What leaves: the keys that a device knows, and who holds it. What
//! always holds: every initiator may read (*Write Exclusive, Registrants Only*). An initiator is a
//! machine (SCSI: an I_T nexus; NVMe: a host). Its processes share one registration.

pub(crate) mod kernel;
mod nvme;
mod scsi;

use std::fmt;

/// A reservation key: the number under which an initiator registers. Never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationKey(pub u64);

impl fmt::Display for ReservationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#018x}", self.0)
    }
}

/// What a device knows of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// The keys of registered initiators, one for each.
    pub keys: Vec<ReservationKey>,
    /// The key of the initiator that holds the reservation.
    pub holder: Option<ReservationKey>,
}

/// A change of a device's reservations. All but `Register` fail with
/// [`ErrorKind::ReservationConflict`](crate::ErrorKind::ReservationConflict) if this initiator is
/// not registered with `key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationChange {
    /// Registers this initiator, in place of the key that it had. A reservation that it holds stays
    /// its own, under the new key.
    Register {
        /// The new key.
        key: ReservationKey,
    },
    /// Ends this initiator's registration, and a reservation that it holds.
    Unregister {
        /// The initiator's key.
        key: ReservationKey,
    },
    /// Reserves the device. Fails if another initiator holds it.
    Reserve {
        /// The initiator's key.
        key: ReservationKey,
    },
    /// Ends every registration with the key `victim`. If the holder was among them, the
    /// reservation passes to this initiator, in one step. Fails if no initiator has the key.
    Preempt {
        /// The initiator's key.
        key: ReservationKey,
        /// The key whose initiators lose their registration.
        victim: ReservationKey,
        /// No command that the device had accepted from them takes effect after this completes.
        abort: bool,
    },
    /// Ends the reservation and every registration.
    Clear {
        /// The initiator's key.
        key: ReservationKey,
    },
}
