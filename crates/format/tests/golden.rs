//! Golden tests: each structure, with fixed content, against bytes that were kept when the format
//! was fixed. `docs/format.md` uses the same examples.
//!
//! An intended change raises the structure's version, changes `docs/format.md`, and rewrites the
//! files: `cargo test -p forebay-format --test golden -- --ignored`.

#[path = "golden/objects.rs"]
mod objects;

use std::collections::BTreeMap;

use forebay_format::Encoder;
use forebay_format::cache_device::{
    CacheEntry, CacheHeader, CacheShape, RegionFooter, SnapshotHeader,
};
use forebay_format::checksum::{block_sum, crc64};
use forebay_format::config::{
    CacheConfig, GroupConfig, MemberConfig, MemberUse, PoolConfig, RingConfig, ScanConfig,
    ScanKind, ScanPhase, SpareConfig, VolumeConfig,
};
use forebay_format::dram::{BackupHeader, DramPlace, DramProtection, MemoryHeader};
use forebay_format::fingerprints::Fingerprints;
use forebay_format::footer::{Footer, Run};
use forebay_format::journal::{FrameHeader, FrameKind, SegmentRecord, SegmentUse, encode_frame};
use forebay_format::label::{ConfigEnvelope, Heartbeat, LogMark};
use forebay_format::log_frame::{
    self, Fragment, LogState, RecordEntry, RecordKind, RingState, frame_len_bytes, seal,
    table_end_bytes,
};
use forebay_format::map_record::{
    Delta, HOLE_SEGMENT, LeafImage, LeafRun, ORIGIN_SEGMENT, decode_leaves, dedup_ref,
    encode_leaves,
};
use forebay_format::objects::{Checkpoint, Entry};
use forebay_format::packed::{Codec, PackedRef, Packer, Unit, unit_in};
use forebay_format::snapshot::{Snapshot, SnapshotRecord};
use forebay_format::superblock::{COUNTERS, JournalPosition, OLDEST_VERSION, Superblock, VERSION};
use forebay_units::{BlockAddr, CommitId, FrameSeq, Layout, Lba, SegmentId, TxgId, VolumeId};

const POOL: u64 = 0x1122_3344_5566_7788;

macro_rules! golden {
    ($name:literal) => {
        ($name, include_bytes!(concat!("golden/", $name)).as_slice())
    };
}

/// The kept bytes, by file.
fn kept() -> BTreeMap<&'static str, &'static [u8]> {
    BTreeMap::from([
        golden!("config.json"),
        golden!("config-envelope.bin"),
        golden!("heartbeat.bin"),
        golden!("log-mark.bin"),
        golden!("superblock.bin"),
        golden!("superblock-5.bin"),
        golden!("superblock-6.bin"),
        golden!("superblock-7.bin"),
        golden!("superblock-8.bin"),
        golden!("log-state.bin"),
        golden!("log-frame.bin"),
        golden!("footer.bin"),
        golden!("journal-segments.bin"),
        golden!("journal-jump.bin"),
        golden!("journal-pad.bin"),
        golden!("map-delta.bin"),
        golden!("map-delta-sealed.bin"),
        golden!("map-leaves.bin"),
        golden!("snapshots.bin"),
        golden!("fingerprints.bin"),
        golden!("object-entry.bin"),
        golden!("object-checkpoint.bin"),
        golden!("packed-block.bin"),
        golden!("cache-header.bin"),
        golden!("cache-footer.bin"),
        golden!("cache-snapshot.bin"),
        golden!("dram-backup.bin"),
        golden!("dram-memory.bin"),
    ])
}

fn member(device: u32, path: &str) -> MemberConfig {
    MemberConfig {
        device,
        path: path.to_owned(),
        size_bytes: 64 << 20,
        state: MemberUse::Online,
        stale_since: None,
        stale: Vec::new(),
        replacement: None,
    }
}

fn config() -> PoolConfig {
    let mut second = member(1, "/dev/b");
    second.state = MemberUse::Faulted;
    second.stale_since = Some(41);
    second.stale = vec![(3, 5)];
    second.replacement = Some(Box::new(member(4, "/dev/e")));
    let ring = RingConfig {
        ring: 0,
        len_bytes: 62 << 20,
        start_bytes: 1 << 20,
        sides: vec![member(3, "/dev/d")],
    };
    PoolConfig {
        name: "tank".to_owned(),
        guid: POOL,
        generation: 7,
        created_at: 1_700_000_000,
        groups: vec![GroupConfig {
            layout: Layout::Raidz1,
            unit_bytes: 16 << 10,
            column_bytes: 256 << 10,
            data_start_bytes: 5 << 20,
            first_segment: 0,
            segments: 232,
            members: vec![member(0, "/dev/a"), second, member(2, "/dev/c")],
        }],
        reserve_bytes: 4 << 20,
        logs: vec![ring.clone()],
        log_rings: vec![ring],
        spares: vec![SpareConfig { path: "/dev/sdz".into(), size_bytes: 1 << 40 }],
        caches: vec![CacheConfig {
            device: 6,
            path: "/dev/k".into(),
            size_bytes: 2 << 30,
            state: MemberUse::Online,
            nonce: 0xc3,
            added_at: 1_700_000_050,
        }],
        properties: BTreeMap::from([("txg_timeout".to_owned(), "5".to_owned())]),
        volumes: vec![VolumeConfig {
            id: 1,
            name: "v".to_owned(),
            size_bytes: 16 << 20,
            sparse: false,
            origin: None,
            writers: Vec::new(),
            properties: BTreeMap::from([("sync".to_owned(), "always".to_owned())]),
        }],
        next_device: 5,
        next_volume: 2,
        history: vec!["1700000000 pool create tank".to_owned()],
        scan: Some(ScanConfig {
            kind: ScanKind::Scrub,
            state: ScanPhase::Paused,
            started_at: 1_790_000_000,
            elapsed_secs: 61,
            done_bytes: 1 << 30,
            total_bytes: 3 << 30,
            repaired_bytes: 4096,
            errors: 1,
            next_segment: 17,
        }),
        lineage: Default::default(),
        lost: Default::default(),
        figures: Default::default(),
        scrubbed_at: 0,
        destroyed: false,
    }
}

fn envelope() -> ConfigEnvelope {
    ConfigEnvelope { pool: POOL, device: 2, generation: 7, body: config().encode() }
}

fn heartbeat() -> Heartbeat {
    Heartbeat { pool: POOL, nonce: 0xa1, host: 0xb2, beat: 3 }
}

fn log_mark() -> LogMark {
    LogMark { epoch: 5, watermark: FrameSeq(77) }
}

fn log_state() -> LogState {
    LogState {
        epoch: 4,
        committed: TxgId(40),
        tail_seq: FrameSeq(100),
        next_seq: FrameSeq(103),
        watermark: FrameSeq(101),
        max_frame_bytes: 128 << 10,
        rings: vec![
            RingState { index: 0, len_bytes: 62 << 20, tail_bytes: 0x3000 },
            RingState { index: 1, len_bytes: 62 << 20, tail_bytes: 0 },
        ],
    }
}

fn superblock() -> Superblock {
    let mut counters = [0; COUNTERS];
    for (at, counter) in counters.iter_mut().enumerate().take(22) {
        *counter = 1000 + at as u64;
    }
    Superblock {
        version: VERSION,
        pool: POOL,
        commit: CommitId(42),
        previous: CommitId(41),
        txg: TxgId(40),
        config_generation: 7,
        config_sum: crc64(&config().encode()),
        journal_start: Some(JournalPosition {
            addr: BlockAddr::new(SegmentId(9), 0),
            seq: 17,
            link: 0x1234_5678_9abc_def0,
        }),
        journal_end: Some(JournalPosition {
            addr: BlockAddr::new(SegmentId(9), 40),
            seq: 23,
            link: segments_frame().1,
        }),
        exported: false,
        written_at: 1_700_000_100,
        nonce: 0xa1,
        host: 0xb2,
        counters,
        log_state: log_state().encode(),
    }
}

fn block() -> Vec<u8> {
    (0..4096u32).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn log_frame() -> (log_frame::FrameHeader, Vec<RecordEntry>, Vec<u8>) {
    let entry = |kind, lba, blocks, txg| RecordEntry {
        kind,
        fragment: Fragment::Whole,
        volume: VolumeId(1),
        lba: Lba(lba),
        blocks,
        txg: TxgId(txg),
    };
    let entries = vec![entry(RecordKind::Write, 5, 1, 41), entry(RecordKind::Zero, 64, 512, 41)];
    let len_bytes = frame_len_bytes(entries.len(), 4096);
    let header = log_frame::FrameHeader {
        pool: POOL,
        epoch: 4,
        seq: FrameSeq(102),
        ring: 0,
        position_bytes: 0x7000,
        len_bytes: len_bytes as u32,
        max_txg: TxgId(41),
        committed: TxgId(39),
        watermark: FrameSeq(101),
        record_count: entries.len() as u16,
    };
    let mut bytes = vec![0; len_bytes as usize];
    let (head, data) = bytes.split_at_mut(table_end_bytes(entries.len()));
    data.copy_from_slice(&block());
    seal(&header, &entries, head, std::iter::once(crc64(&block())));
    (header, entries, bytes)
}

fn footer() -> Footer {
    let mut footer =
        Footer { pool: POOL, segment: SegmentId(3), birth: 39, runs: Vec::new(), sums: Vec::new() };
    for lba in 5..8 {
        let sum = block_sum(POOL, VolumeId(1), Lba(lba), &block());
        footer.push(VolumeId(1), Lba(lba), sum);
    }
    footer.push(VolumeId(1), Lba(100), 0xab_cdef_0123);
    footer.push(Run::PADDING, Lba(0), 0);
    footer
}

fn segment_records() -> Vec<SegmentRecord> {
    vec![
        SegmentRecord {
            segment: SegmentId(3),
            kind: SegmentUse::Data,
            stream: 1,
            footer: true,
            rows: 16,
            blocks: 126,
            birth: 39,
            last: 42,
            clock: 1020,
        },
        SegmentRecord {
            segment: SegmentId(9),
            kind: SegmentUse::Map,
            stream: 15,
            footer: false,
            rows: 5,
            blocks: 0,
            birth: 30,
            last: 42,
            clock: 0,
        },
    ]
}

/// A root of a pool that has not been upgraded.
fn superblock_of(version: u32) -> Superblock {
    Superblock { version, ..superblock() }
}

/// Three units: one that ends in the first packed block, one that goes on in the second, and one
/// that lies in the second.
fn packed_blocks() -> (Vec<Unit>, Vec<PackedRef>, Vec<u8>) {
    let unit = |lba: u64, blocks: u8, codec: Codec, len: usize| {
        let bytes = (0..len).map(|at| (at * 7 + lba as usize) as u8).collect();
        Unit { volume: VolumeId(2), lba: Lba(lba), blocks, codec, bytes }
    };
    let units = vec![
        unit(8, 4, Codec::Lz4, 3000),
        unit(12, 2, Codec::Zstd, 2000),
        unit(1 << 33, 1, Codec::Lz4, 700),
    ];
    let (mut packer, mut full) = (Packer::new(17), Vec::new());
    let pack = |unit: &Unit| packer.push(unit, |_| true, &mut full).unwrap();
    let refs = units.iter().map(pack).collect();
    full.extend(packer.flush());
    (units, refs, full.into_iter().flat_map(|block| block.bytes).collect())
}

fn fingerprints() -> Fingerprints {
    let print = |first: u8| std::array::from_fn(|at| first + at as u8);
    Fingerprints { next: 9, records: vec![(print(0x10), 7), (print(0x80), 8)] }
}

/// What other versions of volumes get: blocks whose sums are in a footer, a hole, a block as in the
/// origin, and references to de-duplicated blocks.
fn sealed_delta() -> Delta {
    let mut delta = Delta::new();
    let snapshot = VolumeId(3);
    delta.assign_sealed(snapshot, Lba(5), BlockAddr::new(SegmentId(3), 7), 32);
    delta.assign_sealed(snapshot, Lba(40), BlockAddr::new(HOLE_SEGMENT, 40), 2);
    delta.assign_sealed(snapshot, Lba(42), BlockAddr::new(ORIGIN_SEGMENT, 42), 1);
    delta.assign_sealed(snapshot, Lba(50), dedup_ref(Lba(7)), 2);
    delta
}

fn snapshots() -> Vec<SnapshotRecord> {
    let monday = Snapshot {
        id: VolumeId(3),
        volume: VolumeId(1),
        taken_of: VolumeId(1),
        name: "monday".to_owned(),
        commit: 42,
        created_at: 1_700_000_060,
        size_bytes: 16 << 20,
        referenced_blocks: 512,
        holds: vec!["backup".to_owned()],
        is_dying: false,
    };
    let dying = Snapshot { id: VolumeId(4), holds: Vec::new(), is_dying: true, ..monday.clone() };
    let promoted = |before: &Snapshot| Snapshot { volume: VolumeId(5), ..before.clone() };
    let gone = SnapshotRecord::Gone(VolumeId(2));
    let there = [&monday, &dying].map(promoted).into_iter();
    let there = [monday.clone(), dying.clone()].into_iter().chain(there);
    [gone].into_iter().chain(there.map(SnapshotRecord::Present)).collect()
}

fn snapshots_payload() -> Vec<u8> {
    let mut out = Encoder::new();
    snapshots().iter().for_each(|record| record.encode(&mut out));
    let bytes = out.finish();
    let lengths: usize = snapshots().iter().map(SnapshotRecord::encoded_len).sum();
    assert_eq!(bytes.len(), lengths);
    bytes
}

fn delta() -> Delta {
    let mut delta = Delta::new();
    let at = BlockAddr::new(SegmentId(3), 0);
    delta.assign(VolumeId(1), Lba(5), at, &[0x11_1111_1111, 0x22_2222_2222, 0x33_3333_3333]);
    delta.clear(VolumeId(1), Lba(64), 512);
    delta.assign(VolumeId(1), Lba(2), at.plus(3), &[0xab_cdef_0123]);
    delta.drop_volume(VolumeId(2));
    delta
}

fn leaves() -> Vec<LeafImage> {
    let run = |start, blocks, segment, block, sealed| {
        let addr = BlockAddr::new(SegmentId(segment), block);
        LeafRun { start, blocks, addr, sealed }
    };
    // Few runs: a list. Then single blocks at scattered places: bitmaps.
    let scattered: Vec<LeafRun> = (0..100).map(|at| run(at * 2, 1, 3, 200 - at, at == 3)).collect();
    vec![
        LeafImage {
            volume: VolumeId(1),
            leaf: 0,
            runs: vec![run(2, 1, 3, 3, false), run(5, 100, 4, 0, true)],
            sums: vec![0xab_cdef_0123],
        },
        LeafImage {
            volume: VolumeId(1),
            leaf: 7,
            sums: (0..99).map(|at| 0x10_0000_0000 + at).collect(),
            runs: scattered,
        },
        LeafImage {
            volume: VolumeId(3),
            leaf: 1,
            sums: (0..512).map(|at| 0x20_0000_0000 + at).collect(),
            runs: (0..512).map(|at| run(at, 1, 5, 1023 - at, false)).collect(),
        },
    ]
}

fn cache_header() -> CacheHeader {
    let (shape, pool_name) = (CacheShape::of(2 << 30), "tank".to_owned());
    CacheHeader { pool: POOL, pool_name, device: 6, nonce: 0xc3, shape }
}

fn cache_footer() -> RegionFooter {
    let sum = block_sum(POOL, VolumeId(1), Lba(5), &block());
    let entry = CacheEntry { addr: BlockAddr::new(SegmentId(3), 0), birth: 39, sum };
    RegionFooter { nonce: 0xc3, sequence: 12, entries: vec![Some(entry), None] }
}

fn dram_backup() -> BackupHeader {
    BackupHeader {
        id: 0xd1,
        sequence: 7,
        generation: 3,
        place: DramPlace::Memory,
        size_bytes: 128 << 20,
        save_bytes_per_s: 500_000_000,
        memory: "/dev/shm/forebay-00000000000000d1.log".to_owned(),
        protection: DramProtection::Ups { name: "rack1@localhost".to_owned() },
    }
}

fn dram_memory() -> MemoryHeader {
    let alone = Some(DramProtection::None);
    MemoryHeader { id: 0xd1, generation: 3, size_bytes: 128 << 20, alone }
}

fn cache_snapshot() -> SnapshotHeader {
    SnapshotHeader { nonce: 0xc3, next_sequence: 13 }
}

fn one_payload(mut payloads: Vec<Vec<u8>>) -> Vec<u8> {
    assert_eq!(payloads.len(), 1, "the example fits one payload");
    payloads.pop().unwrap()
}

/// Three frames, each with the checksum of the one before it.
fn segments_frame() -> (Vec<u8>, u64) {
    let mut payload = Encoder::new();
    segment_records().iter().for_each(|record| record.encode(&mut payload));
    encode_frame(POOL, 22, 42, 0x0fed_cba9_8765_4321, FrameKind::Segments, false, &payload.finish())
}

fn jump_frame() -> (Vec<u8>, u64) {
    let (_, link) = segments_frame();
    encode_frame(POOL, 23, 42, link, FrameKind::Jump, true, &12u32.to_le_bytes())
}

fn pad_frame() -> (Vec<u8>, u64) {
    let (_, link) = jump_frame();
    encode_frame(POOL, 24, 42, link, FrameKind::Pad, false, &[0; 2 * 4096 - 56])
}

/// What the encoders give now, by file.
fn encoded() -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        ("config.json", config().encode()),
        ("config-envelope.bin", envelope().encode().unwrap()),
        ("heartbeat.bin", heartbeat().encode()),
        ("log-mark.bin", log_mark().encode(POOL)),
        ("superblock.bin", superblock().encode()),
        ("superblock-5.bin", superblock_of(OLDEST_VERSION).encode()),
        ("superblock-6.bin", superblock_of(6).encode()),
        ("superblock-7.bin", superblock_of(7).encode()),
        ("superblock-8.bin", superblock_of(8).encode()),
        ("log-state.bin", log_state().encode()),
        ("log-frame.bin", log_frame().2),
        ("footer.bin", footer().encode()),
        ("journal-segments.bin", segments_frame().0),
        ("journal-jump.bin", jump_frame().0),
        ("journal-pad.bin", pad_frame().0),
        ("map-delta.bin", one_payload(delta().encode(4096))),
        ("map-delta-sealed.bin", one_payload(sealed_delta().encode(4096))),
        ("snapshots.bin", snapshots_payload()),
        ("fingerprints.bin", fingerprints().encode()),
        ("object-entry.bin", objects::entry().encode()),
        ("object-checkpoint.bin", objects::checkpoint().encode()),
        ("packed-block.bin", packed_blocks().2),
        ("map-leaves.bin", one_payload(encode_leaves(&leaves(), 16 << 10))),
        ("cache-header.bin", cache_header().encode()),
        ("cache-footer.bin", cache_footer().encode(CacheShape::of(64 << 20))),
        ("cache-snapshot.bin", cache_snapshot().encode()),
        ("dram-backup.bin", dram_backup().encode()),
        ("dram-memory.bin", dram_memory().encode()),
    ])
}

#[test]
fn encoders_match_golden_bytes() {
    let (kept, encoded) = (kept(), encoded());
    assert!(kept.keys().eq(encoded.keys()), "each kept file has an encoder");
    for (name, bytes) in &encoded {
        let first = kept[name].iter().zip(bytes).position(|(kept, now)| kept != now);
        assert_eq!(first, None, "{name}: the first byte that differs");
        assert_eq!(kept[name].len(), bytes.len(), "{name}: length");
    }
}

#[test]
fn decoders_read_golden_bytes() {
    let kept = kept();
    assert_eq!(PoolConfig::decode(kept["config.json"]).unwrap(), config());
    assert_eq!(ConfigEnvelope::decode(kept["config-envelope.bin"]).unwrap(), envelope());
    assert_eq!(Heartbeat::decode(kept["heartbeat.bin"]).unwrap(), heartbeat());
    assert_eq!(LogMark::decode(kept["log-mark.bin"]).unwrap(), (POOL, log_mark()));
    let root = Superblock::decode(kept["superblock.bin"]).unwrap();
    assert_eq!((&root, root.slot()), (&superblock(), 10));
    assert_eq!(
        Superblock::decode(kept["superblock-5.bin"]).unwrap(),
        superblock_of(OLDEST_VERSION)
    );
    assert_eq!(Superblock::decode(kept["superblock-6.bin"]).unwrap(), superblock_of(6));
    assert_eq!(Superblock::decode(kept["superblock-7.bin"]).unwrap(), superblock_of(7));
    assert_eq!(Superblock::decode(kept["superblock-8.bin"]).unwrap(), superblock_of(8));
    check_packed(kept["packed-block.bin"]);
    let state = kept["log-state.bin"];
    assert_eq!(LogState::decode(state).unwrap(), (log_state(), state.len()));
    assert_eq!(Footer::decode(kept["footer.bin"]).unwrap(), footer());
    assert_eq!(Delta::decode(kept["map-delta.bin"]).unwrap(), delta());
    assert_eq!(Delta::decode(kept["map-delta-sealed.bin"]).unwrap(), sealed_delta());
    assert_eq!(SnapshotRecord::decode_all(kept["snapshots.bin"]).unwrap(), snapshots());
    assert_eq!(Fingerprints::decode(kept["fingerprints.bin"]).unwrap(), fingerprints());
    assert_eq!(Entry::decode(kept["object-entry.bin"]).unwrap(), objects::entry());
    assert_eq!(Checkpoint::decode(kept["object-checkpoint.bin"]).unwrap(), objects::checkpoint());
    assert_eq!(decode_leaves(kept["map-leaves.bin"]).unwrap(), leaves());

    assert_eq!(CacheHeader::decode(kept["cache-header.bin"]).unwrap(), cache_header());
    assert_eq!(RegionFooter::decode(kept["cache-footer.bin"]).unwrap(), cache_footer());
    assert_eq!(SnapshotHeader::decode(kept["cache-snapshot.bin"]).unwrap(), cache_snapshot());
    // Header number 7 lies in the second slot; a slot that was torn leaves the other one.
    let mut slots = vec![0x5a; 4096];
    slots.extend(kept["dram-backup.bin"]);
    assert_eq!(BackupHeader::decode(&slots).unwrap(), dram_backup());
    assert_eq!(MemoryHeader::decode(kept["dram-memory.bin"]).unwrap(), dram_memory());

    let (header, entries, _) = log_frame();
    let frame = log_frame::decode(kept["log-frame.bin"]).unwrap();
    assert_eq!((frame.header, &frame.entries, frame.data_start), (header, &entries, 4096));
    assert_eq!(&kept["log-frame.bin"][frame.data_start..], block());

    let payload_of = |name: &str, seq, kind| {
        let header = FrameHeader::decode(kept[name]).unwrap();
        assert_eq!((header.pool, header.seq, header.commit, header.kind), (POOL, seq, 42, kind));
        header.check(kept[name]).unwrap().to_vec()
    };
    let records = payload_of("journal-segments.bin", 22, FrameKind::Segments);
    assert_eq!(SegmentRecord::decode_all(&records).unwrap(), segment_records());
    assert_eq!(payload_of("journal-jump.bin", 23, FrameKind::Jump), 12u32.to_le_bytes());
    // Padding says how long it is and nothing else.
    assert!(payload_of("journal-pad.bin", 24, FrameKind::Pad).is_empty());
    assert_eq!(FrameHeader::decode(kept["journal-pad.bin"]).unwrap().blocks(), 2);
}

#[test]
fn flipped_byte_is_detected_in_every_checksummed_structure() {
    let kept = kept();
    let seen = |name: &str, fails: &dyn Fn(&[u8]) -> bool| {
        for byte in 0..kept[name].len() {
            let mut bad = kept[name].to_vec();
            bad[byte] ^= 0x40;
            assert!(fails(&bad), "{name}: byte {byte}");
        }
    };
    seen("superblock.bin", &|b| Superblock::decode(b).is_err());
    seen("log-state.bin", &|b| LogState::decode(b).is_err());
    seen("log-frame.bin", &|b| log_frame::decode(b).is_err());
    seen("footer.bin", &|b| Footer::decode(b).is_err());
}

/// Each unit is found where its reference says.
fn check_packed(kept: &[u8]) {
    let (units, refs, _) = packed_blocks();
    let addresses: Vec<u64> = refs.iter().map(|at| at.addr().raw()).collect();
    assert_eq!(addresses, [0xe0_0000_0440, 0xe0_0000_0474, 0xe0_0000_0480]);
    let blocks: Vec<&[u8]> = kept.chunks(4096).collect();
    for (unit, at) in units.iter().zip(refs) {
        let first = at.block.0 as usize - 17;
        let (entry, bytes) = unit_in(&blocks[first..first + at.span() as usize], at.slot).unwrap();
        assert_eq!((entry.volume, entry.lba, entry.blocks), (unit.volume, unit.lba, unit.blocks));
        assert_eq!((entry.codec, &bytes), (unit.codec, &unit.bytes));
    }
}

/// Writes the files from what the encoders give now.
#[test]
#[ignore = "changes the kept files: only for a change of the format on purpose"]
#[allow(clippy::disallowed_methods, reason = "a tool for developers, outside of the engine")]
fn write_golden_files() {
    for (name, bytes) in encoded() {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, bytes).unwrap();
    }
}
