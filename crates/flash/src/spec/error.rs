//! Errors of device descriptions.

use std::fmt;

/// A description of which no device can be built. Its text is one line that names the device, the
/// field, its value and what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct SpecError {
    /// The device's name.
    pub device: String,
    /// The field at fault, written as in the page (`media.flash.geometry.page_bytes`).
    pub field: &'static str,
    /// What is wrong with it.
    pub flaw: SpecFlaw,
}

/// What is wrong with a field of a description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpecFlaw {
    /// The number is outside its range.
    OutOfRange {
        /// The number.
        found: f64,
        /// The lowest that is possible.
        low: f64,
        /// The highest that is possible.
        high: f64,
    },
    /// The number is not above 0.
    NotPositive {
        /// The number.
        found: f64,
    },
    /// The count is 0.
    Zero,
    /// The number is below that of another field, and must not be.
    Below {
        /// The number.
        found: f64,
        /// The other field.
        other: &'static str,
        /// The other field's number.
        limit: f64,
    },
    /// The number is above that of another field, and must not be.
    Above {
        /// The number.
        found: f64,
        /// The other field.
        other: &'static str,
        /// The other field's number.
        limit: f64,
    },
    /// The number is not a power of two in its range.
    NotPowerOfTwo {
        /// The number.
        found: u32,
        /// The lowest that is possible.
        low: u32,
        /// The highest that is possible, if there is one.
        high: Option<u32>,
    },
    /// The device offers less than one block.
    NothingOffered,
    /// The policy chooses among 0 candidates.
    NoChoices,
    /// A pSLC cache in front of blocks that compress.
    PslcCompresses,
    /// The device has no zones.
    NoZones,
    /// Zones together with a part that only a translation layer has, or without power-loss
    /// protection.
    ZonesNotPlain,
    /// A pSLC cache, which takes all writes, in front of streams.
    PslcHasStreams,
    /// The cache is larger than the flash.
    CacheExceedsFlash {
        /// Bytes of the cache.
        cache_bytes: u64,
        /// Bytes of flash.
        flash_bytes: u64,
    },
    /// The granule of compression does not divide the mapping unit in 1 to 64.
    UnitNotDivided {
        /// Bytes of the granule.
        granule_bytes: u32,
        /// Bytes of the unit.
        unit_bytes: u32,
    },
    /// The granule of the map does not divide what one die programs at once.
    StripeNotDivided {
        /// Bytes of the granule.
        granule_bytes: u32,
        /// Bytes that one die programs at once.
        stripe_bytes: u64,
    },
    /// The mapping unit is larger than the offered capacity.
    UnitExceedsCapacity {
        /// Bytes of the unit.
        unit_bytes: u32,
    },
    /// The width of a superblock does not divide the dies.
    DiesNotDivided {
        /// Dies of a superblock.
        width: u64,
        /// Dies of the device.
        dies: u64,
    },
    /// No superblock is in reserve.
    NoReserve,
    /// The device has more slots than the model can number.
    TooManySlots {
        /// Slots of the device.
        slots: u128,
        /// Slots that can be numbered.
        limit: u128,
    },
    /// The flash cannot hold what the device offers.
    NoRoom {
        /// Bytes that the device offers.
        offered_bytes: u64,
        /// Bytes left after reserve, open and bad blocks.
        left_bytes: u128,
    },
    /// The media is of another kind than the model.
    WrongMedia {
        /// The kind of the model.
        expected: MediaKind,
    },
}

/// A kind of media, as models tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// Flash.
    Flash,
    /// DRAM.
    Dram,
    /// A hard disk.
    Disk,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device \"{}\": {}: {}", self.device, self.field, self.flaw)
    }
}

impl std::error::Error for SpecError {}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flash => "flash",
            Self::Dram => "DRAM",
            Self::Disk => "a disk",
        })
    }
}

impl fmt::Display for SpecFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange { found, low, high } => {
                write!(f, "{found} is not between {low} and {high}")
            }
            Self::NotPositive { found } => write!(f, "{found} is not above 0"),
            Self::Zero => f.write_str("0 is not possible; at least 1 is needed"),
            Self::Below { found, other, limit } => write!(f, "{found} is below {other} {limit}"),
            Self::Above { found, other, limit } => write!(f, "{found} is above {other} {limit}"),
            Self::NotPowerOfTwo { found, low, high: Some(high) } => {
                write!(f, "{found} is not a power of two from {low} to {high}")
            }
            Self::NotPowerOfTwo { found, low, high: None } => {
                write!(f, "{found} is not a power of two from {low} up")
            }
            Self::NothingOffered => f.write_str("less than one 4 KiB block is offered"),
            Self::NoChoices => f.write_str("d-choices = 0 chooses nothing"),
            Self::PslcCompresses => f.write_str("a pSLC cache and compression do not go together"),
            Self::NoZones => f.write_str("the device has no zones"),
            Self::ZonesNotPlain => f.write_str(
                "zones take cache.plp = \"full\" and no compression, pSLC cache, map in part in \
                 memory, map journal, streams, read disturb or thermal limit",
            ),
            Self::PslcHasStreams => f.write_str("a pSLC cache and streams do not go together"),
            Self::CacheExceedsFlash { cache_bytes, flash_bytes } => {
                write!(f, "{cache_bytes} is more than the {flash_bytes} bytes of flash")
            }
            Self::UnitNotDivided { granule_bytes, unit_bytes } => {
                write!(f, "{granule_bytes} does not divide the {unit_bytes}-byte unit in 1 to 64")
            }
            Self::StripeNotDivided { granule_bytes, stripe_bytes } => write!(
                f,
                "{granule_bytes} does not divide the {stripe_bytes} bytes one die programs at once"
            ),
            Self::UnitExceedsCapacity { unit_bytes } => {
                write!(f, "{unit_bytes} is more than the offered capacity")
            }
            Self::DiesNotDivided { width, dies } => {
                write!(f, "{width} does not divide the {dies} dies")
            }
            Self::NoReserve => {
                f.write_str("0 leaves cleaning no block to move data to; at least 1 is needed")
            }
            Self::TooManySlots { slots, limit } => {
                write!(f, "{slots} slots are more than {limit}; build a scaled-down device")
            }
            Self::NoRoom { offered_bytes, left_bytes } => write!(
                f,
                "{offered_bytes} bytes are offered but after reserve, open and bad blocks only \
                 {left_bytes} bytes of flash are left to hold them"
            ),
            Self::WrongMedia { expected } => {
                write!(f, "not {expected}; build it with forebay_flash::build")
            }
        }
    }
}
