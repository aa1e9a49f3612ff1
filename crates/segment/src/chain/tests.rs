mod replaced;

use std::rc::Rc;

use forebay_array::{BlockVerdict, GroupGeometry, GroupSpec};
use forebay_device::{Device, IoBuf, MemoryDevice};
use forebay_format::journal::encode_frame;
use forebay_rt::Runtime;
use forebay_units::CommitId;
use proptest::prelude::*;

use super::*;
use crate::{InFlight, JournalWriter, SegmentTable};

const POOL: u64 = 77;
const UNIT: usize = 16 << 10;
const COLUMN: u64 = 256 << 10;
const SEGMENTS: u32 = 12;

struct Bench {
    devices: Vec<Device>,
    array: Rc<Array>,
}

impl Bench {
    /// A writer as after an import: only the segments in `kept` are in use.
    fn writer(&self, kept: &[JournalPosition]) -> (JournalWriter, Rc<InFlight>) {
        let table = SegmentTable::new();
        let blocks = self.array.geometry_of(SegmentId(0)).unwrap().blocks_per_segment();
        table.add_group(SEGMENTS, blocks);
        for first in kept {
            table.reopen(first.addr.segment());
            table.close(first.addr.segment(), false);
        }
        let in_flight = InFlight::new(8 << 20);
        (JournalWriter::new(self.array.clone(), table, in_flight.clone(), POOL), in_flight)
    }
}

fn bench(layout: Layout, members: usize) -> Bench {
    let geometry = GroupGeometry {
        layout,
        members,
        unit_bytes: UNIT as u64,
        column_bytes: COLUMN,
        data_start_bytes: 0,
        first_segment: 0,
        segments: SEGMENTS,
    };
    let size_bytes = COLUMN * u64::from(SEGMENTS);
    let devices: Vec<Device> = (0..members)
        .map(|i| Rc::new(MemoryDevice::new(&format!("d{i}"), size_bytes)) as Device)
        .collect();
    let members = devices.iter().enumerate().map(|(i, d)| (DeviceId(i as u32), d.clone()));
    let array = Array::new(vec![GroupSpec::healthy(geometry, members.collect())]).unwrap();
    Bench { devices, array }
}

async fn image(device: &Device) -> IoBuf {
    device.read(0, IoBuf::zeroed((COLUMN * u64::from(SEGMENTS)) as usize)).await.unwrap()
}

/// One run of a pool, from import to crash.
#[derive(Clone, Debug)]
struct Boot {
    /// Roots that the import goes back (`-F`).
    rewinds: usize,
    /// Lengths of the frames that it appends.
    frames: Vec<usize>,
    /// Whether it writes a root before the crash.
    rooted: bool,
    /// Picks of the victim's units that lose the writes of this run.
    lost: Vec<u16>,
}

fn boot() -> impl Strategy<Value = Boot> {
    // Few lengths, so that a stale frame often has the length of the right one.
    let length = prop_oneof![Just(100usize), Just(9000), Just(40_000)];
    let lost = prop::collection::vec(any::<u16>(), 0..6);
    let rewinds = prop_oneof![4 => Just(0usize), 1 => 1usize..4];
    (rewinds, prop::collection::vec(length, 1..4), any::<bool>(), lost)
        .prop_map(|(rewinds, frames, rooted, lost)| Boot { rewinds, frames, rooted, lost })
}

/// The journal as a root names it.
#[derive(Clone)]
struct Rooted {
    end: JournalPosition,
    segments: Vec<JournalPosition>,
    doubled: Option<bool>,
    payloads: Vec<Vec<u8>>,
}

/// Plays the runs. After each root the journal must read as the frames of the rooted runs that no
/// rewind left behind, although one device lost some of the writes since the first root.
async fn play(layout: Layout, members: usize, victim: usize, boots: &[Boot]) {
    let b = bench(layout, members);
    let victim = &b.devices[victim % members];
    let mut commit = CommitId(1);
    let (mut journal, in_flight) = b.writer(&[]);
    let start = journal.open(commit).unwrap();
    journal.append(FrameKind::Segments, &[1; 100], commit).await.unwrap();
    journal.finish_rows(commit).await.unwrap();
    in_flight.drain().await.unwrap();
    let end = journal.position().unwrap();
    let (segments, payloads) = (vec![start], vec![vec![1; 100]]);
    let mut roots = vec![Rooted { end, segments, doubled: None, payloads }];
    let mut stamp = 1u8;
    for boot in boots {
        roots.truncate(roots.len().saturating_sub(boot.rewinds).max(1));
        let mut root = roots[roots.len() - 1].clone();
        let (mut journal, in_flight) = b.writer(&root.segments);
        journal.resume(root.end, root.segments, root.doubled);
        let before = image(victim).await;
        // A run without a root leaves its number to the next run. After a rewind, numbers go on
        // from the newest root.
        let next = commit.next();
        for len in &boot.frames {
            stamp = stamp.wrapping_add(1);
            let payload = vec![stamp; *len];
            journal.append(FrameKind::Delta, &payload, next).await.unwrap();
            root.payloads.push(payload);
        }
        journal.finish_rows(next).await.unwrap();
        in_flight.drain().await.unwrap();
        lose_writes(victim, &before, &boot.lost).await;
        if !boot.rooted {
            continue;
        }
        commit = next;
        root.end = journal.position().unwrap();
        let mut reader = read_journal(&b, start, root.end, &root.payloads).await;
        root.segments = reader.segments().to_vec();
        root.doubled = reader.is_end_doubled();
        for (addr, bytes) in reader.take_repairs() {
            b.array.repair(addr, &bytes).await.unwrap();
        }
        scrub_journal(&b, start, root.end, &root.segments).await;
        roots.push(root);
    }
}

/// Reads a journal as an import does, and compares its payloads.
async fn read_journal(
    b: &Bench,
    start: JournalPosition,
    end: JournalPosition,
    expected: &[Vec<u8>],
) -> JournalReader {
    let reader = || JournalReader::new(b.array.clone(), POOL, start, end);
    let (mut reader, found) = match payloads(reader()).await {
        Ok(read) => read,
        Err(_) => payloads(reader().holding_all()).await.unwrap(),
    };
    assert_eq!(found.len(), expected.len());
    for (index, payload) in expected.iter().enumerate() {
        assert!(&found[index] == payload, "frame {index} of {}", expected.len());
    }
    assert!(reader.next().await.unwrap().is_none());
    reader
}

async fn payloads(
    mut reader: JournalReader,
) -> Result<(JournalReader, Vec<Vec<u8>>), SegmentError> {
    let mut found = Vec::new();
    while let Some(frame) = reader.next().await? {
        found.push(frame.payload().to_vec());
    }
    Ok((reader, found))
}

/// Restores the old content of some of the units that changed since `before`.
async fn lose_writes(victim: &Device, before: &IoBuf, lost: &[u16]) {
    let after = image(victim).await;
    let changed: Vec<usize> = (0..before.len())
        .step_by(UNIT)
        .filter(|at| before[*at..at + UNIT] != after[*at..at + UNIT])
        .collect();
    for pick in lost.iter().filter(|_| !changed.is_empty()) {
        let at = changed[usize::from(*pick) % changed.len()];
        let old = IoBuf::copy_of(&before[at..at + UNIT]).freeze();
        victim.write(at as u64, old, false).await.unwrap();
    }
}

/// Scrubs the journal's segments. The scrub must repair what reading did not need, and must find
/// the blocks of the chain and no others.
async fn scrub_journal(
    b: &Bench,
    start: JournalPosition,
    end: JournalPosition,
    segments: &[JournalPosition],
) {
    let whole = JournalReader::new(b.array.clone(), POOL, start, end);
    let blocks = whole.all_blocks().await.unwrap().blocks;
    let judge = |addr: BlockAddr, block: &[u8]| match blocks.get(&addr) {
        None => BlockVerdict::Dead,
        Some(right) if right == block => BlockVerdict::Good,
        Some(_) => BlockVerdict::Bad,
    };
    for first in segments {
        let segment = first.addr.segment();
        let rows = b.array.geometry_of(segment).unwrap().rows();
        let found = b.array.scrub_rows(segment, 0, rows, &judge).await.unwrap();
        assert!(found.damaged.is_empty());
    }
    let again = JournalReader::new(b.array.clone(), POOL, start, end);
    let (mut again, _) = payloads(again).await.unwrap();
    assert!(again.take_repairs().is_empty(), "a scrub left versions of another run");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn stale_frames_of_a_crashed_run_are_never_read(
        boots in prop::collection::vec(boot(), 2..7),
        shape in prop::sample::select(vec![
            (Layout::Mirror, 2), (Layout::Mirror, 3), (Layout::Raidz1, 2), (Layout::Raidz1, 4),
            (Layout::Raidz2, 4), (Layout::Raidz3, 5),
            // Without redundancy: the copies are on other devices.
            (Layout::Raid0, 2), (Layout::Raid0, 3), (Layout::Raid0, 5),
        ]),
        victim in 0usize..8,
    ) {
        Runtime::simulated(3).block_on(async move {
            play(shape.0, shape.1, victim, &boots).await;
        });
    }
}

/// Writes a journal. Returns its start, its end and its payloads.
async fn some_journal(
    b: &Bench,
    frames: &[usize],
) -> (JournalPosition, JournalPosition, Vec<Vec<u8>>) {
    let commit = CommitId(1);
    let (mut journal, in_flight) = b.writer(&[]);
    let start = journal.open(commit).unwrap();
    let mut payloads = Vec::new();
    for (index, len) in frames.iter().enumerate() {
        let payload = vec![index as u8 + 1; *len];
        journal.append(FrameKind::Delta, &payload, commit).await.unwrap();
        if index % 3 == 2 {
            journal.finish_rows(commit).await.unwrap();
        }
        payloads.push(payload);
    }
    journal.finish_rows(commit).await.unwrap();
    in_flight.drain().await.unwrap();
    (start, journal.position().unwrap(), payloads)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // Without parity, the journal survives damage of up to half a column on one device.
    #[test]
    fn journal_without_parity_survives_one_damaged_range(
        frames in prop::collection::vec(1usize..100_000, 1..14),
        members in 1usize..5,
        victim in 0usize..5,
        from in 0usize..(SEGMENTS as usize * COLUMN as usize / BLOCK_LEN),
        blocks in 1usize..=(COLUMN as usize / 2 / BLOCK_LEN),
        zeros in any::<bool>(),
    ) {
        Runtime::simulated(8).block_on(async move {
            let b = bench(Layout::Raid0, members);
            let (start, end, payloads) = some_journal(&b, &frames).await;
            let victim = &b.devices[victim % members];
            let before = image(victim).await;
            // Within one column, so that neither a copy nor a second segment is damaged.
            let column = COLUMN as usize / BLOCK_LEN;
            let upto = (from + blocks).min((from / column + 1) * column);
            for at in from..upto {
                let junk = if zeros { [0; BLOCK_LEN] } else { [0xee; BLOCK_LEN] };
                victim.write((at * BLOCK_LEN) as u64, IoBuf::copy_of(&junk).freeze(), false)
                    .await
                    .unwrap();
            }
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            for payload in &payloads {
                let frame = reader.next().await.unwrap().expect("more frames");
                assert!(frame.payload() == payload);
            }
            assert!(reader.next().await.unwrap().is_none());
            let repairs = reader.take_repairs();
            for (addr, bytes) in repairs {
                b.array.repair(addr, &bytes).await.unwrap();
            }
            // A scrub finds wrong copies, which reading did not need.
            let all = || JournalReader::new(b.array.clone(), POOL, start, end).all_blocks();
            let found = all().await.unwrap();
            assert_eq!(all().await.unwrap().repaired_bytes, 0, "a second scrub repairs again");
            assert!(found.blocks.len() >= 2 * payloads.len());
            let after = image(victim).await;
            for (addr, bytes) in &found.blocks {
                let read = b.array.read(*addr, 1).await.unwrap();
                assert!(read[..] == bytes[..], "{addr}");
            }
            // Nothing else was written.
            let pairs = before.chunks(BLOCK_LEN).zip(after.chunks(BLOCK_LEN));
            for (at, (old, new)) in pairs.enumerate() {
                assert!((from..upto).contains(&at) || old == new, "block {at} of the device");
            }
        });
    }
}

#[test]
fn doubled_segment_stays_doubled_after_its_group_gains_redundancy() {
    Runtime::simulated(9).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let (start, end, _) = some_journal(&b, &[100, 9000, 100]).await;
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        while reader.next().await.unwrap().is_some() {}
        assert_eq!(reader.is_end_doubled(), Some(true));
        // The device becomes a mirror. Copies are no longer needed, but their space is not free
        // while frames say that the copies exist.
        let size = COLUMN * u64::from(SEGMENTS);
        let other = Rc::new(MemoryDevice::new("other", size)) as Device;
        b.array.attach(DeviceId(0), DeviceId(7), other).unwrap();
        let (mut journal, in_flight) = b.writer(reader.segments());
        journal.resume(end, reader.segments().to_vec(), reader.is_end_doubled());
        for index in 0..40u8 {
            journal.append(FrameKind::Delta, &[index; 20_000], CommitId(2)).await.unwrap();
        }
        journal.finish_rows(CommitId(2)).await.unwrap();
        in_flight.drain().await.unwrap();
        let end = journal.position().unwrap();
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        let mut frames = 0;
        while reader.next().await.unwrap().is_some() {
            frames += 1;
        }
        assert_eq!(frames, 43);
        assert_eq!(reader.is_end_doubled(), Some(false), "new segments of a mirror are whole");
        let geometry = b.array.geometry_of(start.addr.segment()).unwrap();
        let first_whole = reader.segments()[1].seq;
        let filled = geometry.doubled_rows() * geometry.blocks_per_row();
        let held: u32 = filled - 1;
        assert!(
            first_whole <= u64::from(held) + start.seq,
            "{first_whole} frames in half a segment"
        );
        let found =
            JournalReader::new(b.array.clone(), POOL, start, end).all_blocks().await.unwrap();
        assert_eq!(found.repaired_bytes, 0);
    });
}

#[test]
fn reader_backtracks_over_a_whole_stale_chain() {
    let frames = vec![100, 100, 40_000];
    let crashed = Boot { rewinds: 0, frames: frames.clone(), rooted: false, lost: Vec::new() };
    let rooted = Boot { rewinds: 0, frames, rooted: true, lost: (0..40).collect() };
    for victim in 0..2 {
        let boots = [crashed.clone(), rooted.clone()];
        Runtime::simulated(4)
            .block_on(async move { play(Layout::Mirror, 2, victim, &boots).await });
    }
}

#[test]
fn reader_backtracks_over_two_roots_that_a_rewind_left_behind() {
    let old = Boot { rewinds: 0, frames: vec![100], rooted: true, lost: Vec::new() };
    // One disk loses the new frames, and has the old ones: the second follows the first, and is of
    // a later root.
    let new = Boot { rewinds: 2, frames: vec![100, 100], rooted: true, lost: (0..40).collect() };
    for (layout, members) in [(Layout::Mirror, 2), (Layout::Raidz1, 4), (Layout::Raid0, 3)] {
        for victim in 0..members {
            let boots = [old.clone(), old.clone(), new.clone()];
            Runtime::simulated(6)
                .block_on(async move { play(layout, members, victim, &boots).await });
        }
    }
}

#[test]
fn root_that_names_another_last_frame_is_refused() {
    Runtime::simulated(5).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let (mut journal, in_flight) = b.writer(&[]);
        let start = journal.open(CommitId(1)).unwrap();
        journal.append(FrameKind::Delta, &[7; 100], CommitId(1)).await.unwrap();
        journal.finish_rows(CommitId(1)).await.unwrap();
        in_flight.drain().await.unwrap();
        let mut end = journal.position().unwrap();
        end.link ^= 1;
        let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
        let error = reader.next().await.unwrap_err();
        let SegmentError::Journal { fault, .. } = error else { panic!("{error}") };
        assert_eq!(fault, JournalFault::WrongEnd);
    });
}

/// Continues the journal at `end` with one frame, as a run of the pool does. Returns its new end.
async fn one_frame(
    b: &Bench,
    (start, end): (JournalPosition, JournalPosition),
    commit: CommitId,
    stamp: u8,
) -> JournalPosition {
    let (mut journal, in_flight) = b.writer(&[start]);
    journal.resume(end, vec![start], None);
    journal.append(FrameKind::Delta, &[stamp; 100], commit).await.unwrap();
    journal.finish_rows(commit).await.unwrap();
    in_flight.drain().await.unwrap();
    journal.position().unwrap()
}

// The first break of the chain is repaired, and a later root confirms the repair.
#[test]
fn error_names_the_break_that_cannot_be_repaired() {
    for victim in 0..2 {
        Runtime::simulated(10).block_on(async move {
            let b = bench(Layout::Mirror, 2);
            let (start, first, _) = some_journal(&b, &[100]).await;
            // A run without a root. One side loses what the next run writes there.
            one_frame(&b, (start, first), CommitId(2), 2).await;
            let before = image(&b.devices[victim]).await;
            let second = one_frame(&b, (start, first), CommitId(2), 3).await;
            lose_writes(&b.devices[victim], &before, &[0]).await;
            let third = one_frame(&b, (start, second), CommitId(3), 4).await;
            let end = one_frame(&b, (start, third), CommitId(4), 5).await;
            let mut reader = JournalReader::new(b.array.clone(), POOL, start, end);
            let mut stamps = Vec::new();
            while let Some(frame) = reader.next().await.unwrap() {
                stamps.push(frame.payload()[0]);
            }
            assert_eq!(stamps, [1, 3, 4, 5]);
            let at = u64::from(third.addr.segment().0) * COLUMN
                + u64::from(third.addr.block()) * BLOCK_LEN as u64;
            for device in &b.devices {
                let rotten = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
                device.write(at, rotten, false).await.unwrap();
            }
            let reader = JournalReader::new(b.array.clone(), POOL, start, end);
            let error = payloads(reader).await.map(|_| ()).unwrap_err();
            let SegmentError::Journal { seq, addr, .. } = error else { panic!("{error}") };
            assert_eq!((seq, addr), (third.seq, third.addr));
        });
    }
}

// Every pool's first frame has number 1 and follows nothing: only the pool's id tells them apart.
#[test]
fn a_frame_of_another_pool_or_number_is_refused_although_its_link_fits() {
    for (pool, seq) in [(POOL, 1), (POOL + 1, 1), (POOL, 2)] {
        Runtime::simulated(14).block_on(async move {
            let b = bench(Layout::Mirror, 2);
            let (frame, link) = encode_frame(pool, seq, 1, 0, FrameKind::Delta, false, &[7; 100]);
            let addr = BlockAddr::new(SegmentId(2), 0);
            for device in &b.devices {
                device.write(2 * COLUMN, IoBuf::copy_of(&frame).freeze(), false).await.unwrap();
            }
            let start = JournalPosition { addr, seq: 1, link: 0 };
            let end = JournalPosition { addr: BlockAddr::new(SegmentId(2), 1), seq: 2, link };
            let found = JournalReader::new(b.array.clone(), POOL, start, end).next().await;
            let refused = Box::new(JournalFault::OtherFrame { seq, pool });
            match found {
                Ok(frame) => {
                    assert!((pool, seq) == (POOL, 1) && frame.unwrap().payload() == [7; 100]);
                }
                Err(SegmentError::Journal { fault, .. }) => {
                    assert!((pool, seq) != (POOL, 1));
                    assert_eq!(fault, JournalFault::Unrepairable(refused));
                }
                Err(error) => panic!("{error}"),
            }
        });
    }
}

// Each frame before the break may have other versions. Two of each would be a million millions.
#[test]
fn a_break_after_many_frames_of_one_root_is_told() {
    Runtime::simulated(13).block_on(async {
        let b = bench(Layout::Mirror, 2);
        let (start, end, _) = some_journal(&b, &[100; 39]).await;
        assert_eq!(end.addr.segment(), start.addr.segment());
        let last = u64::from(end.addr.block() - 1) * BLOCK_LEN as u64;
        for device in &b.devices {
            let rotten = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
            let at = u64::from(start.addr.segment().0) * COLUMN + last;
            device.write(at, rotten, false).await.unwrap();
        }
        let error = JournalReader::new(b.array.clone(), POOL, start, end).next().await;
        let Err(SegmentError::Journal { seq, .. }) = error else { panic!("no break") };
        assert_eq!(seq, end.seq - 1);
    });
}

#[test]
fn jump_past_the_last_segment_is_refused() {
    let at = JournalPosition { addr: BlockAddr::new(SegmentId(0), 0), seq: 1, link: 0 };
    for to in [0, BlockAddr::MAX_SEGMENTS - 1, BlockAddr::MAX_SEGMENTS, u32::MAX] {
        let jump = FrameKind::Jump;
        let (bytes, _) = encode_frame(POOL, 1, 1, 0, jump, false, &to.to_le_bytes());
        let frame = Frame { header: FrameHeader::decode(&bytes).unwrap(), bytes };
        let segment = SegmentId(to);
        let expected = match to < BlockAddr::MAX_SEGMENTS {
            true => Ok(segment),
            false => Err(JournalFault::JumpTarget { segment }),
        };
        assert_eq!(frame.follower(at).map(|next| next.addr.segment()), expected);
    }
}

// A frame with a right checksum may be as long as any: its follower is an address all the same.
#[test]
fn a_frame_up_to_the_end_of_the_longest_segment_has_a_follower() {
    let last = BlockAddr::MAX_BLOCKS - 1;
    let (bytes, _) = encode_frame(POOL, 1, 1, 0, FrameKind::Delta, false, &[7]);
    let frame = Frame { header: FrameHeader::decode(&bytes).unwrap(), bytes };
    for (block, expected) in [(0, 1), (last - 2, last - 1), (last - 1, last), (last, last)] {
        let at = JournalPosition { addr: BlockAddr::new(SegmentId(3), block), seq: 1, link: 0 };
        let next = frame.follower(at).unwrap();
        assert_eq!(next.addr, BlockAddr::new(SegmentId(3), expected));
        assert_eq!((next.seq, next.link), (2, frame.header.sum));
    }
}

#[test]
fn an_error_names_the_row_on_the_devices_of_its_group() {
    Runtime::simulated(11).block_on(async {
        const DATA_START: u64 = 1 << 20;
        let size_bytes = DATA_START + COLUMN * u64::from(SEGMENTS);
        let device = |id: u32| Rc::new(MemoryDevice::new(&format!("d{id}"), size_bytes)) as Device;
        let group = |layout, ids: Vec<u32>, first_segment| {
            let geometry = GroupGeometry {
                layout,
                members: ids.len(),
                unit_bytes: UNIT as u64,
                column_bytes: COLUMN,
                data_start_bytes: DATA_START,
                first_segment,
                segments: SEGMENTS,
            };
            let members = ids.into_iter().map(|id| (DeviceId(id), device(id)));
            GroupSpec::healthy(geometry, members.collect())
        };
        let groups = vec![
            group(Layout::Mirror, vec![0, 1], 0),
            group(Layout::Raidz1, vec![2, 3, 4], SEGMENTS),
        ];
        let array = Array::new(groups).unwrap();
        array.replace(DeviceId(3), DeviceId(5), device(5)).unwrap();
        // Rows of the first group have four blocks, those of the second eight. What replaces a
        // device may not have the row yet.
        for (segment, block, row, names) in
            [(2, 9, 2, vec!["d0", "d1"]), (SEGMENTS + 2, 19, 2, vec!["d2", "d3", "d4"])]
        {
            let addr = BlockAddr::new(SegmentId(segment), block);
            let start = JournalPosition { addr, seq: 1, link: 0 };
            let end = JournalPosition { seq: 2, ..start };
            let error = JournalReader::new(array.clone(), POOL, start, end).next().await;
            let Err(SegmentError::Journal { seq, addr: found, location, fault }) = error else {
                panic!("a frame where there is none")
            };
            assert!(matches!(fault, JournalFault::Unrepairable(_)), "{fault:?}");
            let offset_bytes = DATA_START + 2 * COLUMN + row * UNIT as u64;
            let device_names = names.into_iter().map(str::to_owned).collect();
            assert_eq!((seq, found), (1, addr));
            assert_eq!(location, Some(RowLocation { device_names, offset_bytes }));
        }
    });
}

#[test]
fn the_blocks_of_a_journal_come_with_the_bytes_that_were_rewritten() {
    Runtime::simulated(12).block_on(async {
        let b = bench(Layout::Raid0, 1);
        let (start, end, _) = some_journal(&b, &[9000, 100]).await;
        let first = u64::from(start.addr.segment().0) * COLUMN;
        let block = BLOCK_LEN as u64;
        // A block of the first frame, and copies of both frames.
        for at in [block, COLUMN / 2, COLUMN / 2 + 3 * block] {
            let rotten = IoBuf::copy_of(&[0xee; BLOCK_LEN]).freeze();
            b.devices[0].write(first + at, rotten, false).await.unwrap();
        }
        let all = || JournalReader::new(b.array.clone(), POOL, start, end).all_blocks();
        assert_eq!(all().await.unwrap().repaired_bytes, 3 * block);
        assert_eq!(all().await.unwrap().repaired_bytes, 0);
    });
}
