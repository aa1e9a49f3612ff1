mod closing;
mod core;
mod crash;
mod disk;
mod late_writes;
mod limits;
mod pack;
mod rates;
mod running;
mod scan;
mod verdict;

use std::rc::Rc;

use forebay_device::{IoBuf, IoBytes};
use forebay_format::log_frame::LogState;
use forebay_units::{BLOCK_LEN, DeviceId, FrameSeq, Lba, TxgId, VolumeId};

use crate::{IntentLog, LogConfig, LogRing, Record, Replay, ReplayEnd, Side};
use disk::Disk;

const POOL: u64 = 0x5eed;
const MIB: u64 = 1 << 20;

/// Data that names its record and block in every word.
fn stamped(id: u64, blocks: u32) -> IoBytes {
    let mut buf = IoBuf::recycled(blocks as usize * BLOCK_LEN);
    for (i, block) in buf.chunks_exact_mut(BLOCK_LEN).enumerate() {
        let word = id << 16 | i as u64;
        for place in block.chunks_exact_mut(8) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
    buf.freeze()
}

fn write(id: u64, txg: u64, blocks: u32) -> Record {
    Record::write(VolumeId(id as u32 % 100), TxgId(txg), Lba(id), stamped(id, blocks))
}

/// Whether `got` equals `sent`, byte by byte.
fn same(got: &Record, sent: &Record) -> bool {
    let joined =
        |record: &Record| record.data.iter().flat_map(|piece| piece.to_vec()).collect::<Vec<u8>>();
    got.volume == sent.volume
        && got.txg == sent.txg
        && got.kind == sent.kind
        && got.lba == sent.lba
        && got.blocks == sent.blocks
        && joined(got) == joined(sent)
}

fn ring(index: u8, len_bytes: u64, disks: &[&Rc<Disk>]) -> LogRing {
    let sides = disks.iter().enumerate().map(|(i, disk)| Side {
        device_id: DeviceId(disk.id),
        device: (*disk).clone(),
        start_bytes: 8192 + 4096 * i as u64,
    });
    LogRing { index, len_bytes, sides: sides.collect() }
}

fn start(config: LogConfig, rings: &[LogRing]) -> (IntentLog, LogState) {
    let state = IntentLog::empty_state(&config, rings, 1, TxgId(0), FrameSeq(1));
    (IntentLog::start(config, rings, &state).unwrap(), state)
}

async fn replay(rings: &[LogRing], state: &LogState) -> (Vec<Record>, ReplayEnd) {
    let (state, _) = LogState::decode(&state.encode()).unwrap();
    let mut replay = Replay::open(rings.to_vec(), &state, POOL).unwrap();
    let mut all = Vec::new();
    while let Some(records) = replay.next().await.unwrap() {
        assert!(!records.is_empty(), "records of a frame that has none");
        all.extend(records);
    }
    assert!(replay.next().await.unwrap().is_none());
    (all, replay.end().unwrap().clone())
}
