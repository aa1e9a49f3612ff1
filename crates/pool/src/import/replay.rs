//! Replay: the log of the last run is read to its end before an import writes anything, and its
//! records are then taken into groups.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::{MemberConfig, PoolConfig, RingConfig};
use forebay_intent_log::{
    LogRing, LogState, Loss, Record, Replay, ReplayVerdict, Side, newest_epoch,
};
use forebay_rt as rt;
use forebay_txg::{Content, Held, Permit};
use forebay_units::{BLOCK_LEN, DeviceId, VolumeId};

use crate::Pool;
use crate::import::device_match::not_newest;
use crate::import::divergence::knows_writer;
use crate::import::error::{ImportErrorKind, LogLoss, RecoveryError, Witness};
use crate::import::found::Found;
use crate::layout::MOST_DIRTY_BYTES;
use crate::opener::OpenDevice;
use crate::settings::Settings;
use crate::spec::ImportOptions;
use crate::status::{ImportRemark, ImportReport};

/// Approximate memory of a record beside its data, in bytes.
const RECORD_BYTES: u64 = 128;

/// The log of the last run, read to its end and judged.
pub(crate) struct OldLog {
    /// Its records; `None` when they are too many to keep, so that the log is read again.
    kept: Option<Vec<Record>>,
    records: u64,
}

impl OldLog {
    /// The log of a pool that was exported: nothing in it counts.
    pub fn none() -> Self {
        Self { kept: Some(Vec::new()), records: 0 }
    }
}

/// Reads the log to its end and writes nothing. Refuses if acknowledged writes are missing in it,
/// unless that is accepted.
///
/// When the root is not the newest, the log was written on behind newer roots. Plain writes under
/// those roots are in no log, so frames that were written after the next root would be there
/// without the writes before them. They are left out if the operator has chosen the older root.
pub(crate) async fn read_log(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    found: &[&Found],
    state: &LogState,
    options: &ImportOptions,
    report: &mut ImportReport,
) -> Result<OldLog, ImportErrorKind> {
    let begun = rt::now();
    let set = Settings::of(&config.properties).dirty_limit;
    let most_bytes = set.unwrap_or(MOST_DIRTY_BYTES).min(MOST_DIRTY_BYTES);
    let mut replay = Replay::open(replay_rings(config, devices), state, config.guid)?;
    let mut kept = Some(Vec::new());
    let mut kept_bytes = 0;
    while let Some(records) = replay.next().await? {
        for record in records {
            let data_bytes: usize = record.data.iter().map(|piece| piece.len()).sum();
            kept_bytes += data_bytes as u64 + RECORD_BYTES;
            match &mut kept {
                Some(list) if kept_bytes <= most_bytes => list.push(record),
                _ => kept = None,
            }
        }
    }
    let end = replay.end().expect("a replay that has ended says how").clone();
    report.log_bytes = end.bytes;
    report.log_records = end.records;
    for damage in &end.damages {
        report.remarks.push(ImportRemark::SideDamaged {
            device: damage.location.device_name.to_string(),
            offset_bytes: damage.location.offset_bytes,
            fault: damage.fault.to_string(),
        });
    }
    match end.verdict {
        ReplayVerdict::CleanEnd => {}
        ReplayVerdict::TornTail { seq } => {
            report.remarks.push(ImportRemark::TornTail { frame: seq.0 });
        }
        ReplayVerdict::NewerRoot { seq, committed } => {
            if !accepts_older_root(options) {
                let witness = Witness::Log { committed, root: state.committed };
                return Err(not_newest(witness, config, found));
            }
            report.remarks.push(ImportRemark::FramesLeftOut { frame: seq.0 });
        }
        ReplayVerdict::Loss(loss) => {
            let loss = log_loss(config, &loss);
            if !options.accept_log_loss {
                return Err(ImportErrorKind::LogLoss(Box::new(loss)));
            }
            report.remarks.push(ImportRemark::LossAccepted { loss: loss.to_string() });
        }
    }
    report.replay_seconds = rt::now().since(begun).as_secs_f64();
    Ok(OldLog { kept, records: end.records })
}

/// Whether the operator has chosen a root that need not be the newest.
fn accepts_older_root(options: &ImportOptions) -> bool {
    options.force || options.rewind_groups > 0 || options.keep.is_some()
}

/// The highest epoch that the log's devices know of. Refuses one above that of `state`, because a
/// newer root began it, unless the operator has chosen an older root: with `keep` one of this line,
/// which the owner that began the epoch must be in.
pub(crate) async fn check_log_epoch(
    config: &PoolConfig,
    devices: &BTreeMap<DeviceId, OpenDevice>,
    state: &LogState,
    found: &[&Found],
    options: &ImportOptions,
) -> Result<u32, ImportErrorKind> {
    let newest = newest_epoch(&replay_rings(config, devices), config.guid).await;
    match newest {
        Some((epoch, device)) if epoch > state.epoch => {
            let log = found.iter().find(|log| *log.path == *device);
            let is_of_line = log.is_none_or(|log| knows_writer(config, log));
            let is_chosen = options.force || options.keep.is_none() || is_of_line;
            match accepts_older_root(options) && is_chosen {
                true => Ok(epoch),
                false => Err(not_newest(Witness::Device(device.to_string()), config, found)),
            }
        }
        _ => Ok(state.epoch),
    }
}

impl Pool {
    /// Takes the old log's records into groups, and commits groups as they fill up.
    pub(crate) async fn replay(
        self: &Rc<Self>,
        old: OldLog,
        state: &LogState,
    ) -> Result<(), RecoveryError> {
        if let Some(records) = old.kept {
            for record in records {
                self.replay_record(record).await?;
            }
            return Ok(());
        }
        let rings = replay_rings(&self.config.borrow(), &self.devices.borrow());
        let mut replay = Replay::open(rings, state, self.guid)?;
        while let Some(records) = replay.next().await? {
            for record in records {
                self.replay_record(record).await?;
            }
        }
        if replay.end().is_none_or(|end| end.records != old.records) {
            let config = self.config.borrow();
            let sides = config.log_rings.iter().flat_map(|ring| &ring.sides);
            let devices = sides.map(|side| side.path.clone()).collect();
            return Err(RecoveryError::LogChanged { devices });
        }
        Ok(())
    }

    async fn replay_record(self: &Rc<Self>, record: Record) -> Result<(), RecoveryError> {
        let volume = self.volumes.borrow().get(&record.volume).cloned();
        let Some(volume) = volume else { return Ok(()) };
        let limit = Pool::blocks_of(volume.size_bytes.get());
        let mut at = record.lba;
        let mut absorb = |blocks: u64, content: Content, held: Held| {
            // Writes past the end belong to a volume that was cut after them.
            if at.0 + blocks <= limit {
                self.dirty.groups.borrow_mut().absorb(record.volume, at, blocks, content, held);
            } else {
                self.dirty.throttle.release(held);
            }
            at.0 += blocks;
        };
        if record.data.is_empty() {
            absorb(u64::from(record.blocks), Content::Zero, Held::default());
            return Ok(());
        }
        for piece in record.data {
            if self.dirty.throttle.dirty_bytes() >= self.limits.get().txg_bytes {
                self.sync_group().await?;
            }
            // A pool that has stopped admits nothing; the next commit reports it.
            let demand = volume.demand(piece.len() as u64, false);
            let held = self.dirty.throttle.admit(demand).await;
            let held = held.map_or(Held::default(), Permit::forget);
            absorb((piece.len() / BLOCK_LEN) as u64, Content::Data(piece), held);
        }
        Ok(())
    }
}

/// The last run's rings, on the devices that are here.
fn replay_rings(config: &PoolConfig, devices: &BTreeMap<DeviceId, OpenDevice>) -> Vec<LogRing> {
    let side = |ring: &RingConfig, member: &MemberConfig| {
        let device_id = DeviceId(member.device);
        let device = devices.get(&device_id)?.device();
        Some(Side { device_id, device, start_bytes: ring.start_bytes })
    };
    let ring = |ring: &RingConfig| LogRing {
        index: ring.ring as u8,
        len_bytes: ring.len_bytes,
        sides: ring.sides.iter().filter_map(|member| side(ring, member)).collect(),
    };
    config.log_rings.iter().map(ring).collect()
}

fn log_loss(config: &PoolConfig, loss: &Loss) -> LogLoss {
    let paths = |rings: &mut dyn Iterator<Item = &RingConfig>| {
        rings.flat_map(|ring| &ring.sides).map(|side| side.path.clone()).collect()
    };
    let is_absent = |ring: &&RingConfig| loss.absent_rings.contains(&(ring.ring as u8));
    let volume = |id: &VolumeId| config.volumes.iter().find(|v| v.id == id.0);
    LogLoss {
        frames: loss.missing.clone(),
        durable: loss.watermark,
        places: loss
            .damages
            .iter()
            .map(|d| (d.location.device_name.clone(), d.location.offset_bytes))
            .collect(),
        missing: paths(&mut config.log_rings.iter().filter(is_absent)),
        devices: paths(&mut config.log_rings.iter()),
        volumes: loss
            .volumes_hint
            .iter()
            .filter_map(volume)
            .map(|v| format!("{}/{}", config.name, v.name))
            .collect(),
    }
}
