//! Good inputs, made by the encoders: where fuzzing starts. `cargo run --example seeds` writes
//! them to `seeds/`.

use forebay_format::Encoder;
use forebay_format::cache_device::{
    CacheEntry, CacheHeader, CacheShape, RegionFooter, SnapshotHeader,
};
use forebay_format::checksum::crc64;
use forebay_format::config::{
    CacheConfig, GroupConfig, MemberConfig, MemberUse, PoolConfig, RingConfig, SpareConfig,
    VolumeConfig,
};
use forebay_format::dram::{BackupHeader, DramPlace, DramProtection, MemoryHeader};
use forebay_format::footer::{Footer, Run};
use forebay_format::journal::{FrameKind, SegmentRecord, SegmentUse, encode_frame};
use forebay_format::label::{ConfigEnvelope, Heartbeat, LogMark};
use forebay_format::log_frame::{
    Fragment, FrameHeader, LogState, RecordEntry, RecordKind, RingState, frame_len_bytes, seal,
    table_end_bytes,
};
use forebay_format::map_record::{Delta, LeafImage, LeafRun, encode_leaves};
use forebay_format::packed::{Codec, Packer, Unit};
use forebay_format::snapshot::{Snapshot, SnapshotRecord};
use forebay_format::stream::{ResumeToken, StreamEncoder, StreamHeader};
use forebay_format::superblock::{COUNTERS, JournalPosition, Superblock, VERSION};
use forebay_nbd::message::{InfoRequest, MetaRequest, OptionReply};
use forebay_nbd::wire::{
    BASE_ALLOCATION, ChunkHeader, Greeting, OptionHeader, OptionReplyHeader, Request, SimpleReply,
    chunk, command, option,
};
use forebay_units::{BlockAddr, CommitId, FrameSeq, Layout, Lba, SegmentId, TxgId, VolumeId};

/// Target, name and bytes of each.
#[must_use]
pub fn all() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut out = Vec::new();
    media(&mut out);
    log(&mut out);
    map(&mut out);
    snapshots(&mut out);
    streams(&mut out);
    nbd(&mut out);
    rings(&mut out);
    out
}

fn streams(out: &mut Seeds) {
    let header = StreamHeader {
        pool_guid: 7,
        guid: 9,
        base_guid: 0,
        created_at: 1,
        size_bytes: 16384,
        start_bytes: 0,
        is_as_stored: false,
        snapshot: "b".into(),
        source: "tank/v".into(),
        base: String::new(),
    };
    let (mut encoder, mut whole) = StreamEncoder::begin(&header);
    whole.extend(encoder.data(0, &[7; 4096]));
    whole.extend(encoder.hole(4096, 12288));
    whole.extend(encoder.end());
    let stored = StreamHeader { is_as_stored: true, ..header.clone() };
    let (mut encoder, mut packed) = StreamEncoder::begin(&stored);
    packed.extend(encoder.units(0, 4096, &[1, 1, 3, 0, 7, 8, 9]));
    packed.extend(encoder.repeat(4096, 4096, 0));
    packed.extend(encoder.hole(8192, 8192));
    packed.extend(encoder.end());
    out.push(("send_stream", "as-stored", packed));
    let later = StreamHeader { base_guid: 8, base: "a".into(), start_bytes: 4096, ..header };
    let (mut encoder, mut step) = StreamEncoder::begin(&later);
    step.extend(encoder.hole(8192, 4096));
    step.extend(encoder.end());
    out.push(("send_stream", "whole", whole));
    out.push(("send_stream", "step", step));
    let source = "tank/v@b".into();
    let token = ResumeToken { guid: 9, base_guid: 8, start_bytes: 4096, source };
    out.push(("resume_token", "one", token.to_text().into_bytes()));
}

type Seeds = Vec<(&'static str, &'static str, Vec<u8>)>;

fn member(device: u32) -> MemberConfig {
    MemberConfig {
        device,
        path: format!("/dev/d{device}"),
        size_bytes: 1 << 30,
        state: MemberUse::Online,
        stale_since: Some(4),
        stale: vec![(1, 3)],
        replacement: None,
    }
}

fn pool_config() -> PoolConfig {
    let mut first = member(1);
    first.replacement = Some(Box::new(member(3)));
    PoolConfig {
        name: "tank".into(),
        guid: 7,
        generation: 3,
        created_at: 1,
        groups: vec![GroupConfig {
            layout: Layout::Mirror,
            unit_bytes: 65536,
            column_bytes: 1 << 20,
            data_start_bytes: 1 << 20,
            first_segment: 0,
            segments: 64,
            members: vec![first, member(2)],
        }],
        reserve_bytes: 0,
        logs: Vec::new(),
        log_rings: vec![RingConfig {
            ring: 0,
            len_bytes: 1 << 26,
            start_bytes: 0,
            sides: Vec::new(),
        }],
        spares: vec![SpareConfig { path: "/dev/sdz".into(), size_bytes: 1 << 40 }],
        caches: vec![CacheConfig {
            device: 5,
            path: "/dev/k".into(),
            size_bytes: 1 << 31,
            state: MemberUse::Offline,
            nonce: 8,
            added_at: 9,
        }],
        properties: [("compression".to_owned(), "lz4".to_owned())].into(),
        volumes: vec![VolumeConfig {
            id: 1,
            name: "vol".into(),
            size_bytes: 1 << 26,
            sparse: true,
            origin: Some(3),
            writers: vec![1, 3],
            properties: Default::default(),
        }],
        next_device: 4,
        next_volume: 2,
        history: vec!["create".into()],
        scan: None,
        lineage: Default::default(),
        lost: Default::default(),
        figures: Default::default(),
        destroyed: false,
        scrubbed_at: 7,
    }
}

fn caches(out: &mut Seeds) {
    let shape = CacheShape::of(64 << 20);
    let header = CacheHeader { pool: 7, pool_name: "tank".into(), device: 5, nonce: 8, shape };
    out.push(("cache_device", "header", header.encode()[..48].to_vec()));
    let addr = BlockAddr::new(SegmentId(2), 3);
    let entry = CacheEntry { addr, birth: 4, sum: 5 };
    let footer = RegionFooter { nonce: 8, sequence: 9, entries: vec![Some(entry), None] };
    out.push(("cache_device", "footer", footer.encode(shape)[..112].to_vec()));
    let snapshot = SnapshotHeader { nonce: 8, next_sequence: 10 };
    out.push(("cache_device", "snapshot", snapshot.encode()[..32].to_vec()));
}

fn dram(out: &mut Seeds) {
    let protection = DramProtection::Ups { name: "rack1@localhost".into() };
    let backup = BackupHeader {
        id: 7,
        sequence: 2,
        generation: 1,
        place: DramPlace::Memory,
        size_bytes: 1 << 26,
        save_bytes_per_s: 9,
        memory: "/dev/shm/m".into(),
        protection: protection.clone(),
    };
    out.push(("dram", "backup", backup.encode()[..90].to_vec()));
    let alone = Some(protection);
    let memory = MemoryHeader { id: 7, generation: 1, size_bytes: 1 << 26, alone };
    out.push(("dram", "memory", memory.encode()[..56].to_vec()));
}

fn media(out: &mut Seeds) {
    let addr = BlockAddr::new(SegmentId(2), 0);
    let root = Superblock {
        version: VERSION,
        pool: 1,
        commit: CommitId(35),
        previous: CommitId(34),
        txg: TxgId(30),
        config_generation: 4,
        config_sum: 5,
        journal_start: Some(JournalPosition { addr, seq: 9, link: 8 }),
        journal_end: None,
        exported: true,
        written_at: 1,
        nonce: 2,
        host: 3,
        counters: [6; COUNTERS],
        log_state: log_state().encode(),
    };
    out.push(("superblock", "root", root.encode()));
    caches(out);
    dram(out);
    let body = pool_config().encode();
    out.push(("config", "json", body.clone()));
    let envelope = ConfigEnvelope { pool: 9, device: 1, generation: 3, body };
    let mut bytes = envelope.encode().expect("it fits");
    bytes.truncate(48 + envelope.body.len());
    out.push(("config", "envelope", bytes));
    let mut beat = Heartbeat { pool: 1, nonce: 2, host: 3, beat: 4 }.encode();
    beat.truncate(48);
    out.push(("heartbeat", "beat", beat));
    let mut mark = LogMark { epoch: 5, watermark: FrameSeq(6) }.encode(1);
    mark.truncate(40);
    out.push(("heartbeat", "log-mark", mark));
    let mut footer = Footer { pool: 5, segment: SegmentId(8), birth: 2, ..Footer::default() };
    for at in 0..8 {
        footer.push(VolumeId(at / 5), Lba(u64::from(at)), u64::from(at) * 999);
    }
    footer.push(Run::PADDING, Lba(0), 0);
    let mut bytes = footer.encode();
    bytes.truncate(128);
    out.push(("footer", "three-runs", bytes));
    let record = |segment: u32| SegmentRecord {
        segment: SegmentId(segment),
        kind: SegmentUse::Data,
        stream: 2,
        footer: true,
        rows: 4,
        blocks: 9,
        birth: 5,
        last: 6,
        clock: 7,
    };
    let mut records = Encoder::new();
    (0..3).for_each(|segment| record(segment).encode(&mut records));
    let records = records.finish();
    for (name, kind, payload) in [
        ("segments", FrameKind::Segments, &records[..]),
        ("jump", FrameKind::Jump, &[1, 0, 0, 0]),
        ("pad", FrameKind::Pad, &[0; 200]),
    ] {
        let (mut frame, _) = encode_frame(1, 2, 3, 4, kind, false, payload);
        frame.truncate(56 + payload.len());
        out.push(("journal_frame", name, frame));
    }
    out.push(("segment_records", "three", records));
}

fn log_state() -> LogState {
    let ring = |index| RingState { index, len_bytes: 1 << 26, tail_bytes: 8192 };
    LogState {
        epoch: 3,
        committed: TxgId(5),
        tail_seq: FrameSeq(7),
        next_seq: FrameSeq(9),
        watermark: FrameSeq(8),
        max_frame_bytes: 1 << 17,
        rings: vec![ring(0), ring(4)],
    }
}

fn log(out: &mut Seeds) {
    out.push(("log_state", "two-rings", log_state().encode()));
    let entry = |kind, fragment, lba| RecordEntry {
        kind,
        fragment,
        volume: VolumeId(1),
        lba: Lba(lba),
        blocks: 1,
        txg: TxgId(4),
    };
    let entries = [
        entry(RecordKind::Write, Fragment::Continues, 5),
        entry(RecordKind::Write, Fragment::Last, 6),
        entry(RecordKind::Zero, Fragment::Whole, 70),
    ];
    let len_bytes = frame_len_bytes(entries.len(), 2 * 4096) as u32;
    let header = FrameHeader {
        pool: 1,
        epoch: 2,
        seq: FrameSeq(9),
        ring: 1,
        position_bytes: 8192,
        len_bytes,
        max_txg: TxgId(4),
        committed: TxgId(2),
        watermark: FrameSeq(8),
        record_count: 3,
    };
    let mut frame = vec![0; table_end_bytes(entries.len())];
    seal(&header, &entries, &mut frame, [crc64(&[0; 4096]); 2].into_iter());
    frame.truncate(64 + 3 * 32);
    out.push(("log_frame", "three-records", frame));
}

fn snapshots(out: &mut Seeds) {
    let monday = Snapshot {
        id: VolumeId(3),
        volume: VolumeId(1),
        taken_of: VolumeId(4),
        name: "monday".into(),
        commit: 4,
        created_at: 5,
        size_bytes: 1 << 26,
        referenced_blocks: 6,
        holds: vec!["backup".into()],
        is_dying: false,
    };
    let mut bytes = forebay_format::Encoder::new();
    SnapshotRecord::Gone(VolumeId(2)).encode(&mut bytes);
    SnapshotRecord::Present(monday).encode(&mut bytes);
    out.push(("snapshot_records", "two", bytes.finish()));
    let records = vec![([1; 16], 7), ([2; 16], 8)];
    let fingerprints = forebay_format::fingerprints::Fingerprints { next: 9, records };
    out.push(("fingerprints", "two", fingerprints.encode()));
    let (mut packer, mut full) = (Packer::new(0), Vec::new());
    for (lba, len) in [(0, 3000), (4, 2000), (8, 700)] {
        let (volume, bytes) = (VolumeId(2), vec![lba as u8; len]);
        let lba = Lba(lba);
        let unit = Unit { volume, lba, blocks: 4, codec: Codec::Lz4, bytes };
        packer.push(&unit, |_| true, &mut full);
    }
    full.extend(packer.flush());
    out.push(("packed_block", "two", full.into_iter().flat_map(|block| block.bytes).collect()));
    object_device(out);
}

fn object_device(out: &mut Seeds) {
    use forebay_format::objects::{Checkpoint, Entry, Extent, ObjectId, Record};
    let records = vec![
        Record::Add { number: 0, first_block: 300, blocks: 16 },
        Record::Page { block: 208, bytes: vec![1; 4096] },
        Record::Register { key: 7 },
    ];
    let entry = Entry { position: 1, writer: 2, previous: 0, host: 3, records };
    out.push(("object_device", "entry", entry.encode()));
    let object = ObjectId { writer: 2, number: 0 };
    let checkpoint = Checkpoint {
        position: 1,
        writer: 2,
        size_bytes: 1 << 30,
        holder: Some(3),
        registrants: vec![(3, 7)],
        pages: vec![(208, vec![1; 4096])],
        objects: vec![(object, 16)],
        extents: vec![Extent { first_block: 300, blocks: 16, object, at: 0 }],
    };
    out.push(("object_device", "checkpoint", checkpoint.encode()));
}

fn map(out: &mut Seeds) {
    let (a, b) = (BlockAddr::new(SegmentId(3), 4), BlockAddr::new(SegmentId(9), 0));
    let mut delta = Delta::new();
    delta.assign(VolumeId(1), Lba(8), a, &[1, 2, 3]);
    delta.clear(VolumeId(1), Lba(5), 700);
    delta.assign(VolumeId(2), Lba(1 << 30), b, &[4]);
    delta.drop_volume(VolumeId(3));
    delta.assign_sealed(VolumeId(4), Lba(512), a, 40);
    out.push(("map_delta", "all-kinds", delta.encode(4096).remove(0)));
    let run = |start, blocks, addr, sealed| LeafRun { start, blocks, addr, sealed };
    let images = [
        LeafImage {
            volume: VolumeId(1),
            leaf: 2,
            runs: vec![run(0, 3, a, false), run(500, 12, b, true)],
            sums: vec![1, 2, 3],
        },
        LeafImage {
            volume: VolumeId(1),
            leaf: 3,
            runs: (0..200).map(|n| run(n * 2, 1, a.plus(n * 3), n % 2 == 0)).collect(),
            sums: vec![7; 100],
        },
    ];
    for (at, name) in [(0, "runs"), (1, "blocks")] {
        let mut payloads = encode_leaves(&images[at..=at], 1 << 16);
        out.push(("leaf_images", name, payloads.remove(0)));
    }
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OptionHeader { option, len_bytes: data.len() as u32 }.encode().to_vec();
    out.extend_from_slice(data);
    out
}

fn reply_bytes(option: u32, reply: &OptionReply<'_>) -> Vec<u8> {
    let mut data = Vec::new();
    reply.encode(&mut data);
    let header = OptionReplyHeader { option, kind: reply.kind(), len_bytes: data.len() as u32 };
    [header.encode().to_vec(), data].concat()
}

fn request(command: u16, flags: u16, len_bytes: u32) -> Vec<u8> {
    let cookie = 1 << command;
    Request { flags, command, cookie, offset_bytes: 4096, len_bytes }.encode().to_vec()
}

fn nbd(out: &mut Seeds) {
    nbd_requests(out);
    nbd_options(out);
    nbd_replies(out);
}

fn nbd_requests(out: &mut Seeds) {
    let mut requests = vec![1];
    for (command, flags, len) in [
        (command::READ, 0, 4096),
        (command::WRITE, 1, 512),
        (command::FLUSH, 0, 0),
        (command::TRIM, 0, 8192),
        (command::CACHE, 0, 512),
        (command::WRITE_ZEROES, 2, 65536),
        (command::BLOCK_STATUS, 8, 1 << 19),
    ] {
        requests.extend(request(command, flags, len));
        if command == command::WRITE {
            requests.extend([0x5a; 512]);
        }
    }
    requests.extend(request(command::DISC, 0, 0));
    out.push(("nbd_server", "requests", requests));
}

fn nbd_options(out: &mut Seeds) {
    let mut meta = Vec::new();
    MetaRequest { name: "vol", queries: vec![BASE_ALLOCATION] }.encode(&mut meta);
    let mut go = Vec::new();
    InfoRequest { name: "vol", wanted: vec![1, 3] }.encode(&mut go);
    let options: Vec<u8> = [
        3u32.to_be_bytes().to_vec(),
        option_bytes(option::LIST, &[]),
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(option::LIST_META_CONTEXT, &meta),
        option_bytes(option::SET_META_CONTEXT, &meta),
        option_bytes(option::INFO, &go),
        option_bytes(option::STARTTLS, &[]),
        option_bytes(option::GO, &go),
        request(command::BLOCK_STATUS, 0, 65536),
    ]
    .concat();
    for target in ["nbd_server", "nbd_tls"] {
        out.push((target, "options", [&[0], &options[..]].concat()));
        let old = [3u32.to_be_bytes().to_vec(), option_bytes(option::EXPORT_NAME, b"vol")];
        out.push((target, "export-name", [vec![0], old.concat()].concat()));
    }
    // The beginning of a hello of TLS 1.3; the fuzzer knows the way from there.
    let mut hello = vec![1, 22, 3, 1, 0, 69, 1, 0, 0, 65, 3, 3];
    hello.extend([0x33; 32]);
    hello.extend([0, 0, 2, 0x13, 1, 1, 0, 0, 22]);
    hello.extend([0, 43, 0, 3, 2, 3, 4, 0, 10, 0, 4, 0, 2, 0, 29, 0, 51, 0, 2, 0, 0, 0]);
    out.push(("nbd_tls", "hello", hello));
}

fn nbd_replies(out: &mut Seeds) {
    let sizes = OptionReply::Export { size_bytes: 1 << 20, flags: 0xfff };
    let answers = [
        vec![0],
        Greeting { flags: 3 }.encode().to_vec(),
        reply_bytes(option::STRUCTURED_REPLY, &OptionReply::Ack),
        reply_bytes(
            option::SET_META_CONTEXT,
            &OptionReply::MetaContext { id: 1, name: BASE_ALLOCATION },
        ),
        reply_bytes(option::SET_META_CONTEXT, &OptionReply::Ack),
        reply_bytes(option::GO, &sizes),
        reply_bytes(option::GO, &OptionReply::Ack),
    ]
    .concat();
    let chunk = |cookie: u64, kind: u16, data: &[u8]| {
        let len_bytes = data.len() as u32;
        let header = ChunkHeader { flags: 1, kind, cookie, len_bytes };
        [header.encode().to_vec(), data.to_vec()].concat()
    };
    let mut replies = answers;
    for cookie in 0..5u64 {
        let hole = [&(cookie * 4096).to_be_bytes()[..], &4096u32.to_be_bytes()].concat();
        replies.extend(chunk(cookie, chunk::OFFSET_HOLE, &hole));
        replies.extend(SimpleReply { error: 0, cookie }.encode());
        let status = [1u32.to_be_bytes(), 4096u32.to_be_bytes(), 3u32.to_be_bytes()].concat();
        replies.extend(chunk(cookie, chunk::BLOCK_STATUS, &status));
        replies.extend(chunk(cookie, chunk::ERROR, &[0, 0, 0, 5, 0, 2, b'n', b'o']));
    }
    out.push(("nbd_client", "replies", replies));
}

/// A valid write, read and flush; and changes of a descriptor, of the ring's index, and of the
/// header.
fn rings(out: &mut Seeds) {
    let changed = |place: u16, bytes: &[u8]| {
        let head = [&[1][..], &place.to_le_bytes(), &[bytes.len() as u8]].concat();
        [&head, bytes].concat()
    };
    out.push(("vhost_ring", "write", vec![1]));
    out.push(("vhost_ring", "read", vec![0]));
    out.push(("vhost_ring", "flush", vec![4]));
    let table = [&0x6000u64.to_le_bytes()[..], &48u32.to_le_bytes(), &[4, 0]].concat();
    out.push(("vhost_ring", "indirect", changed(0, &table)));
    out.push(("vhost_ring", "index", changed(0x1002, &3u16.to_le_bytes())));
    out.push(("vhost_ring", "sector", changed(0x3008, &u64::MAX.to_le_bytes())));
}
