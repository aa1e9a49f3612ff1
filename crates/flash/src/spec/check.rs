//! Checks of a device description: an impossible one is refused in one line.

use super::error::{SpecError, SpecFlaw};
use super::{CleaningPolicy, DeviceSpec, DiskSpec, DramSpec, FlashSpec, MediaSpec, Plp, ZonesSpec};

/// Slots are numbered with 32 bits and the highest number means "none".
const MAX_SLOTS: u128 = u32::MAX as u128 - 1;
/// A time of a device, in microseconds or milliseconds. A longer time is a mistake in a unit.
const MAX_TIME: f64 = 1e8;

struct Checker<'a> {
    device: &'a str,
}

impl Checker<'_> {
    fn fail<T>(&self, field: &'static str, flaw: SpecFlaw) -> Result<T, SpecError> {
        Err(SpecError { device: self.device.to_owned(), field, flaw })
    }

    fn range(&self, field: &'static str, value: f64, low: f64, high: f64) -> Result<(), SpecError> {
        if value.is_finite() && (low..=high).contains(&value) {
            return Ok(());
        }
        self.fail(field, SpecFlaw::OutOfRange { found: value, low, high })
    }

    /// A power, an energy or a number of cycles, which may be zero.
    fn not_negative(&self, field: &'static str, value: f64) -> Result<(), SpecError> {
        self.range(field, value, 0.0, 1e12)
    }

    /// A time, in the unit of the field.
    fn time(&self, field: &'static str, value: f64) -> Result<(), SpecError> {
        self.range(field, value, 0.0, MAX_TIME)
    }

    /// A rate or a time that is not zero.
    fn positive(&self, field: &'static str, value: f64) -> Result<(), SpecError> {
        if value > 0.0 {
            return self.range(field, value, 0.0, 1e9);
        }
        self.fail(field, SpecFlaw::NotPositive { found: value })
    }

    fn count(&self, field: &'static str, value: u32) -> Result<(), SpecError> {
        if value > 0 {
            return Ok(());
        }
        self.fail(field, SpecFlaw::Zero)
    }
}

impl DeviceSpec {
    /// Bytes the model offers to its host, whole 4 KiB.
    #[must_use]
    pub fn offered_bytes(&self) -> u64 {
        let bytes = self.capacity_bytes as f64 * (1.0 - self.unused_fraction);
        (bytes as u64).min(self.capacity_bytes) / 4096 * 4096
    }

    /// Whether a device could be like this.
    ///
    /// # Errors
    /// The first field found impossible.
    pub fn check(&self) -> Result<(), SpecError> {
        let c = Checker { device: &self.name };
        c.range("unused_fraction", self.unused_fraction, 0.0, 0.99)?;
        if self.offered_bytes() == 0 {
            return c.fail("capacity_bytes", SpecFlaw::NothingOffered);
        }
        self.check_link(&c)?;
        c.not_negative("power.idle_w", self.power.idle_w)?;
        c.not_negative("power.read_w", self.power.read_w)?;
        c.not_negative("power.write_w", self.power.write_w)?;
        c.not_negative("power.erase_w", self.power.erase_w)?;
        match &self.media {
            MediaSpec::Flash(flash) => self.check_flash(&c, flash),
            MediaSpec::Dram(dram) => check_dram(&c, dram),
            MediaSpec::Disk(disk) => check_disk(&c, disk),
        }
    }

    fn check_link(&self, c: &Checker<'_>) -> Result<(), SpecError> {
        let link = self.interface.resolve();
        c.positive("interface.bandwidth_mb_s", link.bandwidth_mb_s)?;
        c.time("interface.command_us", link.command_us)?;
        c.count("interface.queue_depth", link.queue_depth)?;
        c.time("interface.hop_us", link.hop_us)?;
        c.not_negative("interface.hba_iops_cap", link.hba_iops_cap)?;
        c.range("interface.bit_error_rate", link.bit_error_rate, 0.0, 1e-4)?;
        c.time("interface.retry_us", link.retry_us)
    }

    fn check_flash(&self, c: &Checker<'_>, flash: &FlashSpec) -> Result<(), SpecError> {
        let g = &flash.geometry;
        c.count("media.flash.geometry.channels", g.channels)?;
        c.count("media.flash.geometry.dies_per_channel", g.dies_per_channel)?;
        c.count("media.flash.geometry.planes_per_die", g.planes_per_die)?;
        c.count("media.flash.geometry.blocks_per_plane", g.blocks_per_plane)?;
        c.count("media.flash.geometry.pages_per_block", g.pages_per_block)?;
        c.count("media.flash.geometry.page_bytes", g.page_bytes)?;
        let t = &flash.timing;
        c.time("media.flash.timing.read_us", t.read_us)?;
        c.positive("media.flash.timing.program_us", t.program_us)?;
        c.time("media.flash.timing.program_us", t.program_us)?;
        c.time("media.flash.timing.erase_us", t.erase_us)?;
        c.positive("media.flash.timing.channel_mb_s", t.channel_mb_s)?;
        c.time("media.flash.timing.suspend_us", t.suspend_us)?;
        c.time("media.flash.controller.command_us", flash.controller.command_us)?;
        c.time("media.flash.controller.unit_us", flash.controller.unit_us)?;
        c.time("media.flash.controller.latency_us", flash.controller.latency_us)?;
        c.time("media.flash.controller.power_on_ms", flash.controller.power_on_ms)?;
        c.time("media.flash.cache.flush_us", flash.cache.flush_us)?;
        c.time("media.flash.ftl.idle_after_ms", flash.ftl.idle_after_ms)?;
        c.time("media.flash.ftl.map_persist_ms", flash.ftl.map_persist_ms)?;
        let e = &flash.endurance;
        c.not_negative("media.flash.endurance.cycles_mean", e.cycles_mean)?;
        c.range("media.flash.endurance.cycles_sd_fraction", e.cycles_sd_fraction, 0.0, 1.0)?;
        c.range("media.flash.endurance.factory_bad_fraction", e.factory_bad_fraction, 0.0, 0.9)?;
        if flash.ftl.policy == CleaningPolicy::DChoices(0) {
            return c.fail("media.flash.ftl.policy", SpecFlaw::NoChoices);
        }
        if flash.cache.bytes > flash.raw_bytes() {
            let (cache_bytes, flash_bytes) = (flash.cache.bytes, flash.raw_bytes());
            let flaw = SpecFlaw::CacheExceedsFlash { cache_bytes, flash_bytes };
            return c.fail("media.flash.cache.bytes", flaw);
        }
        c.range("media.flash.ftl.streams", f64::from(flash.ftl.streams), 1.0, 64.0)?;
        check_modern(c, flash)?;
        self.check_units(c, flash)?;
        match &flash.zones {
            None => self.check_room(c, flash),
            Some(zones) => self.check_zones(c, flash, zones),
        }
    }

    fn check_units(&self, c: &Checker<'_>, flash: &FlashSpec) -> Result<(), SpecError> {
        let unit = flash.ftl.mapping_unit_bytes;
        let field = "media.flash.ftl.mapping_unit_bytes";
        if !unit.is_power_of_two() || !(512..=65536).contains(&unit) {
            let flaw = SpecFlaw::NotPowerOfTwo { found: unit, low: 512, high: Some(65536) };
            return c.fail(field, flaw);
        }
        let stripe =
            u64::from(flash.geometry.page_bytes) * u64::from(flash.geometry.planes_per_die);
        let granule = match &flash.controller.compression {
            None => unit,
            Some(z) => {
                let field = "media.flash.controller.compression.granule_bytes";
                if !z.granule_bytes.is_power_of_two() || z.granule_bytes < 64 {
                    let found = z.granule_bytes;
                    let flaw = SpecFlaw::NotPowerOfTwo { found, low: 64, high: None };
                    return c.fail(field, flaw);
                }
                if z.granule_bytes > unit || unit / z.granule_bytes > 64 {
                    let granule_bytes = z.granule_bytes;
                    let flaw = SpecFlaw::UnitNotDivided { granule_bytes, unit_bytes: unit };
                    return c.fail(field, flaw);
                }
                z.granule_bytes
            }
        };
        if stripe % u64::from(granule) != 0 {
            let flaw = SpecFlaw::StripeNotDivided { granule_bytes: granule, stripe_bytes: stripe };
            return c.fail(field, flaw);
        }
        if self.offered_bytes() / u64::from(unit) == 0 {
            return c.fail(field, SpecFlaw::UnitExceedsCapacity { unit_bytes: unit });
        }
        Ok(())
    }

    fn check_zones(
        &self,
        c: &Checker<'_>,
        flash: &FlashSpec,
        zones: &ZonesSpec,
    ) -> Result<(), SpecError> {
        c.range("media.flash.zones.max_active", f64::from(zones.max_active), 1.0, 1024.0)?;
        let most = f64::from(zones.max_active);
        c.range("media.flash.zones.max_open", f64::from(zones.max_open), 1.0, most)?;
        let is_plain = flash.controller.compression.is_none()
            && flash.pslc.is_none()
            && flash.map_memory.is_none()
            && flash.thermal.is_none()
            && flash.ftl.streams == 1
            && flash.ftl.map_journal_units == 0
            && flash.ftl.read_disturb_reads == 0;
        if flash.cache.plp != Plp::Full || !is_plain {
            return c.fail("media.flash.zones", SpecFlaw::ZonesNotPlain);
        }
        let layout = flash.layout();
        let slots = layout.total_slots();
        if slots > MAX_SLOTS {
            let flaw = SpecFlaw::TooManySlots { slots, limit: MAX_SLOTS };
            return c.fail("media.flash.geometry", flaw);
        }
        let zone_bytes = u64::from(layout.slots_per_block) * u64::from(layout.slot_bytes);
        let offered_bytes = self.offered_bytes();
        let left_bytes = slots * u128::from(layout.slot_bytes);
        if u128::from(offered_bytes) > left_bytes || offered_bytes < zone_bytes {
            return c.fail("media.flash.geometry", SpecFlaw::NoRoom { offered_bytes, left_bytes });
        }
        Ok(())
    }

    fn check_room(&self, c: &Checker<'_>, flash: &FlashSpec) -> Result<(), SpecError> {
        let layout = flash.layout();
        let dies = u64::from(flash.geometry.channels) * u64::from(flash.geometry.dies_per_channel);
        let width = u64::from(flash.ftl.superblock_dies);
        if width > dies || (width > 0 && dies % width != 0) {
            let flaw = SpecFlaw::DiesNotDivided { width, dies };
            return c.fail("media.flash.ftl.superblock_dies", flaw);
        }
        if flash.ftl.reserve_superblocks == 0 {
            return c.fail("media.flash.ftl.reserve_superblocks", SpecFlaw::NoReserve);
        }
        let slots = layout.total_slots();
        if slots > MAX_SLOTS {
            let flaw = SpecFlaw::TooManySlots { slots, limit: MAX_SLOTS };
            return c.fail("media.flash.geometry", flaw);
        }
        let bad = (f64::from(layout.blocks_per_pool) * flash.endurance.factory_bad_fraction).ceil();
        let kept = u64::from(layout.blocks_per_pool).saturating_sub(bad as u64);
        let overhead = u64::from(flash.ftl.reserve_superblocks) + layout.open_blocks() + 1;
        let room = kept.saturating_sub(overhead) * u64::from(layout.slots_per_block);
        let units = self.offered_bytes() / u64::from(flash.ftl.mapping_unit_bytes);
        let need = units.div_ceil(u64::from(layout.pools)) * u64::from(layout.slots_per_unit);
        if need > room {
            let slots_left = u128::from(room) * u128::from(layout.pools);
            let left_bytes = slots_left * u128::from(layout.slot_bytes);
            let flaw = SpecFlaw::NoRoom { offered_bytes: self.offered_bytes(), left_bytes };
            return c.fail("media.flash.geometry", flaw);
        }
        Ok(())
    }
}

fn check_modern(c: &Checker<'_>, flash: &FlashSpec) -> Result<(), SpecError> {
    c.range("media.flash.timing.retry_fraction", flash.timing.retry_fraction, 0.0, 1.0)?;
    c.range("media.flash.timing.retry_reads", f64::from(flash.timing.retry_reads), 0.0, 100.0)?;
    if let Some(pslc) = &flash.pslc {
        c.positive("media.flash.pslc.program_us", pslc.program_us)?;
        c.time("media.flash.pslc.program_us", pslc.program_us)?;
        c.time("media.flash.pslc.read_us", pslc.read_us)?;
        c.time("media.flash.pslc.idle_after_ms", pslc.idle_after_ms)?;
        // Three bits a cell elsewhere.
        let most = flash.raw_bytes() as f64 / 3.0;
        c.range("media.flash.pslc.bytes", pslc.bytes as f64, 0.0, most)?;
        c.range("media.flash.pslc.static_bytes", pslc.static_bytes as f64, 0.0, most)?;
        if flash.controller.compression.is_some() {
            return c.fail("media.flash.pslc", SpecFlaw::PslcCompresses);
        }
        if flash.ftl.streams > 1 {
            return c.fail("media.flash.pslc", SpecFlaw::PslcHasStreams);
        }
    }
    if let Some(map) = &flash.map_memory {
        c.time("media.flash.map_memory.look_up_us", map.look_up_us)?;
        c.time("media.flash.map_memory.flush_ms", map.flush_ms)?;
    }
    if let Some(thermal) = &flash.thermal {
        c.range("media.flash.thermal.ambient_c", thermal.ambient_c, -100.0, 200.0)?;
        c.range("media.flash.thermal.limit_c", thermal.limit_c, -100.0, 200.0)?;
        c.positive("media.flash.thermal.c_per_w", thermal.c_per_w)?;
        c.positive("media.flash.thermal.time_s", thermal.time_s)?;
        c.range("media.flash.thermal.slowdown", thermal.slowdown, 1.0, 1e6)?;
    }
    Ok(())
}

fn check_dram(c: &Checker<'_>, dram: &DramSpec) -> Result<(), SpecError> {
    c.time("media.dram.service_us", dram.service_us)?;
    c.time("media.dram.latency_us", dram.latency_us)?;
    c.positive("media.dram.dram_mb_s", dram.dram_mb_s)?;
    c.positive("media.dram.save_mb_s", dram.save_mb_s)?;
    c.positive("media.dram.restore_mb_s", dram.restore_mb_s)?;
    c.time("media.dram.erase_ms", dram.erase_ms)?;
    c.not_negative("media.dram.energy.full_j", dram.energy.full_j)?;
    c.positive("media.dram.energy.save_w", dram.energy.save_w)?;
    c.not_negative("media.dram.energy.charge_w", dram.energy.charge_w)?;
    c.range("media.dram.energy.initial_fraction", dram.energy.initial_fraction, 0.0, 1.0)
}

fn check_disk(c: &Checker<'_>, disk: &DiskSpec) -> Result<(), SpecError> {
    c.positive("media.disk.rpm", disk.rpm)?;
    c.time("media.disk.track_seek_ms", disk.track_seek_ms)?;
    c.time("media.disk.full_seek_ms", disk.full_seek_ms)?;
    c.positive("media.disk.outer_mb_s", disk.outer_mb_s)?;
    c.positive("media.disk.inner_mb_s", disk.inner_mb_s)?;
    if disk.full_seek_ms < disk.track_seek_ms {
        let (found, limit) = (disk.full_seek_ms, disk.track_seek_ms);
        let flaw = SpecFlaw::Below { found, other: "track_seek_ms", limit };
        return c.fail("media.disk.full_seek_ms", flaw);
    }
    if disk.inner_mb_s > disk.outer_mb_s {
        let (found, limit) = (disk.inner_mb_s, disk.outer_mb_s);
        let flaw = SpecFlaw::Above { found, other: "outer_mb_s", limit };
        return c.fail("media.disk.inner_mb_s", flaw);
    }
    Ok(())
}
