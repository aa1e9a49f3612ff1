use forebay_units::{BlockAddr, Lba, SegmentId, VolumeId};
use proptest::prelude::*;

use super::*;
use crate::{Encoder, FormatFlaw, varint};

fn addr(segment: u32, block: u32) -> BlockAddr {
    BlockAddr::new(SegmentId(segment), block)
}

fn any_sum() -> impl Strategy<Value = u64> {
    0..1u64 << 40
}

/// A run's place: anywhere that `blocks` fit.
fn any_addr(blocks: u32) -> impl Strategy<Value = BlockAddr> {
    (0..BlockAddr::MAX_SEGMENTS, 0..BlockAddr::MAX_BLOCKS - blocks).prop_map(|(s, b)| addr(s, b))
}

#[derive(Clone, Debug)]
enum Step {
    Assign(u32, u64, BlockAddr, Vec<u64>),
    Clear(u32, u64, u64),
    Drop(u32),
}

fn any_step() -> impl Strategy<Value = Step> {
    let lba = prop_oneof![0..5000u64, 0..MAX_VOLUME_BLOCKS - 2000];
    let assign = (0..4u32, lba.clone(), proptest::collection::vec(any_sum(), 1..40)).prop_flat_map(
        |(v, l, s)| any_addr(40).prop_map(move |a| Step::Assign(v, l, a, s.clone())),
    );
    prop_oneof![
        8 => assign,
        2 => (0..4u32, lba, 1..2000u64).prop_map(|(v, l, n)| Step::Clear(v, l, n)),
        1 => (0..4u32).prop_map(Step::Drop),
    ]
}

fn delta_of(steps: &[Step]) -> Delta {
    let mut delta = Delta::new();
    for step in steps {
        match step {
            Step::Assign(v, l, a, s) => delta.assign(VolumeId(*v), Lba(*l), *a, s),
            Step::Clear(v, l, n) => delta.clear(VolumeId(*v), Lba(*l), *n),
            Step::Drop(v) => delta.drop_volume(VolumeId(*v)),
        }
    }
    delta
}

/// An image from a seed per block: what it points at and whether it is sealed.
fn any_image() -> impl Strategy<Value = LeafImage> {
    let run = (0..3u32, 1..200u32, any::<bool>());
    (any::<u32>(), any::<u32>(), proptest::collection::vec((run, any_addr(512)), 0..200)).prop_map(
        |(volume, leaf, parts)| {
            let mut runs: Vec<LeafRun> = Vec::new();
            let mut start = 0;
            for ((gap, len, sealed), addr) in parts {
                start += gap;
                // Mostly short runs, so that both encodings come up.
                let blocks = if len > 150 { len } else { len % 3 + 1 };
                if start + blocks > LEAF_BLOCKS {
                    break;
                }
                let run = LeafRun { start, blocks, addr, sealed };
                if !runs.last().is_some_and(|last| last.joins(run)) {
                    runs.push(run);
                    start += blocks;
                }
            }
            let sums = runs.iter().filter(|r| !r.sealed).map(|r| r.blocks as u64).sum::<u64>();
            let sums = (0..sums).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24).collect();
            LeafImage { volume: VolumeId(volume), leaf, runs, sums }
        },
    )
}

fn reads_back(images: &[LeafImage]) {
    let payloads = encode_leaves(images, 1 << 20);
    let decoded: Vec<_> = payloads.iter().flat_map(|p| decode_leaves(p).unwrap()).collect();
    assert_eq!(decoded, images);
}

proptest! {
    #[test]
    fn deltas_round_trip(steps in proptest::collection::vec(any_step(), 0..60)) {
        let delta = delta_of(&steps);
        let payloads = delta.encode(1 << 20);
        prop_assert_eq!(payloads.len(), usize::from(!delta.is_empty()));
        for payload in payloads {
            prop_assert!(payload.len() <= delta.encoded_len_max());
            prop_assert_eq!(Delta::decode(&payload), Ok(delta.clone()));
        }
    }

    #[test]
    fn split_deltas_equal_the_whole(
        steps in proptest::collection::vec(any_step(), 0..60), limit in 64..700usize
    ) {
        let delta = delta_of(&steps);
        // Joining what was split gives the whole again, as runs that go on become one.
        let mut joined = Delta::new();
        for payload in delta.encode(limit) {
            prop_assert!(payload.len() <= limit);
            let part = Delta::decode(&payload).unwrap();
            prop_assert!(!part.is_empty());
            for (volume, group) in part.volumes() {
                let mut sums = &group.sums[..];
                for change in &group.changes {
                    match change {
                        Change::Drop => joined.drop_volume(volume),
                        Change::Clear { lba, blocks } => joined.clear(volume, *lba, *blocks),
                        Change::AssignSealed { lba, blocks, addr } => {
                            joined.assign_sealed(volume, *lba, *addr, *blocks);
                        }
                        Change::Assign { lba, blocks, addr } => {
                            let (mine, rest) = sums.split_at(*blocks as usize);
                            joined.assign(volume, *lba, *addr, mine);
                            sums = rest;
                        }
                    }
                }
            }
        }
        prop_assert_eq!(joined, delta);
    }

    #[test]
    fn images_round_trip(images in proptest::collection::vec(any_image(), 0..8)) {
        for image in &images {
            let payload = encode_leaves(std::slice::from_ref(image), 1 << 20).remove(0);
            prop_assert_eq!(payload.len(), 1 + image.encoded_len());
            prop_assert!(image.encoded_len() <= LeafImage::ENCODED_LEN_MAX);
        }
        reads_back(&images);
        let limit = LeafImage::ENCODED_LEN_MAX + 1;
        let payloads = encode_leaves(&images, limit);
        prop_assert!(payloads.iter().all(|p| p.len() <= limit));
        let decoded: Vec<_> = payloads.iter().flat_map(|p| decode_leaves(p).unwrap()).collect();
        prop_assert_eq!(decoded, images);
    }

    #[test]
    fn decoders_never_panic_on_any_bytes(
        mut bytes in proptest::collection::vec(any::<u8>(), 1..300),
    ) {
        bytes[0] = VERSION;
        if let Ok(delta) = Delta::decode(&bytes) {
            let again = delta.encode(1 << 20).concat();
            prop_assert!(delta.is_empty() || Delta::decode(&again) == Ok(delta));
        }
        if let Ok(images) = decode_leaves(&bytes) {
            reads_back(&images.into_iter().map(canonical).collect::<Vec<_>>());
        }
    }

    #[test]
    fn decoders_never_panic_on_damaged_records(
        steps in proptest::collection::vec(any_step(), 1..10),
        image in any_image(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let delta = delta_of(&steps).encode(1 << 20).remove(0);
        let leaves = encode_leaves(&[image], 1 << 20).remove(0);
        for bytes in [delta, leaves] {
            let mut bad = bytes.clone();
            for (at, value) in &damage {
                let at = at.index(bad.len());
                bad[at] = *value;
            }
            let _ = Delta::decode(&bad);
            if let Ok(images) = decode_leaves(&bad) {
                reads_back(&images.into_iter().map(canonical).collect::<Vec<_>>());
            }
            // Cut anywhere but at its start, a record of one group or one leaf is incomplete.
            if bytes.len() > 2 {
                prop_assert!(decode_leaves(&bytes[..bytes.len() - 1]).is_err());
                prop_assert!(Delta::decode(&bytes[..bytes.len() - 1]).is_err());
            }
        }
    }
}

/// An image as this code would have made it: runs that could be one are one.
fn canonical(mut image: LeafImage) -> LeafImage {
    let mut runs: Vec<LeafRun> = Vec::new();
    for run in &image.runs {
        match runs.last_mut() {
            Some(last) if last.joins(*run) => last.blocks += run.blocks,
            _ => runs.push(*run),
        }
    }
    image.runs = runs;
    image
}

#[test]
fn random_block_costs_at_most_eighteen_bytes() {
    let mut delta = Delta::new();
    let count = 1000u64;
    for i in 0..count {
        let lba = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % MAX_VOLUME_BLOCKS;
        delta.assign(VolumeId(9), Lba(lba), addr(i as u32 * 7, 5), &[i]);
    }
    let bytes = delta.encode(1 << 20).concat();
    assert!(bytes.len() <= 18 * count as usize, "{} bytes", bytes.len());
}

#[test]
fn adjacent_changes_are_joined() {
    let mut delta = Delta::new();
    delta.assign(VolumeId(1), Lba(10), addr(3, 100), &[1, 2]);
    delta.assign(VolumeId(1), Lba(12), addr(3, 102), &[3]);
    // The next address is free to be taken for the same run only within a segment.
    delta.assign(VolumeId(1), Lba(13), addr(4, 103), &[4]);
    let (_, group) = delta.volumes().next().unwrap();
    assert_eq!(group.changes.len(), 2);
    assert_eq!(group.sums, [1, 2, 3, 4]);
}

// An address is left out where an assignment goes on at the end of the one before it. The cleaner
// may move blocks there after a sealed run.
#[test]
fn an_assignment_goes_on_only_behind_one_that_has_sums() {
    let volume = VolumeId(3);
    for payload_bytes in [64, 4096] {
        let mut delta = Delta::new();
        delta.assign(volume, Lba(0), addr(5, 10), &[1, 2]);
        delta.assign_sealed(volume, Lba(100), addr(9, 0), 40);
        delta.assign(volume, Lba(200), addr(5, 12), &[3]);
        delta.clear(volume, Lba(300), 7);
        delta.assign(volume, Lba(400), addr(5, 13), &[4]);
        delta.assign_sealed(volume, Lba(500), addr(5, 14), 1);
        delta.assign(volume, Lba(600), addr(5, 15), &[5]);
        let mut found = (Vec::new(), Vec::new());
        for payload in delta.encode(payload_bytes) {
            for (_, group) in Delta::decode(&payload).unwrap().volumes() {
                found.0.extend_from_slice(&group.changes);
                found.1.extend_from_slice(&group.sums);
            }
        }
        let (_, group) = delta.volumes().next().unwrap();
        assert_eq!((&found.0, &found.1), (&group.changes, &group.sums));
    }
}

#[test]
fn volume_drop_discards_earlier_changes() {
    let mut delta = Delta::new();
    delta.assign(VolumeId(1), Lba(10), addr(3, 100), &[1, 2]);
    delta.drop_volume(VolumeId(1));
    let (_, group) = delta.volumes().next().unwrap();
    assert_eq!((&group.changes[..], &group.sums[..]), (&[Change::Drop][..], &[][..]));
    assert_eq!(Delta::decode(&delta.encode(64)[0]), Ok(delta));
}

#[test]
fn images_stay_within_size_bounds() {
    let len = |runs: Vec<LeafRun>, sums: usize| {
        let one = LeafImage { volume: VolumeId(1), leaf: 7, runs, sums: vec![5; sums] };
        reads_back(&[one.clone(), one.clone()]);
        one.encoded_len()
    };
    let sequential = LeafRun { start: 0, blocks: 512, addr: addr(1, 0), sealed: true };
    assert_eq!(len(vec![sequential], 0), 19);
    let random = |n: u32| {
        let run = |i| LeafRun { start: i, blocks: 1, addr: addr(i + 1, 512 - i), sealed: false };
        (0..n).map(run).collect::<Vec<_>>()
    };
    // Nine bytes name the leaf and the encoding; a leaf with holes adds a bitmap. Addresses take
    // what the highest segment and the highest block need: ten bits each here.
    assert_eq!(len(random(512), 512), 9 + 2 + 512 * (3 + 5));
    assert_eq!(len(random(400), 400), 9 + 64 + 2 + 400 * (3 + 5));
    let mut far = random(512);
    far[100].addr = addr((1 << 20) - 1, 7);
    assert_eq!(len(far.clone(), 512), 9 + 2 + 512 * (4 + 5));
    far[101].addr = addr(7, (1 << 20) - 1);
    assert_eq!(len(far, 512), 9 + 5120);
}

macro_rules! assert_flaw {
    ($flaw:expr, $($expected:tt)*) => {
        let flaw = $flaw;
        assert!(matches!(flaw, FormatFlaw::Map(MapFlaw::$($expected)*)), "{flaw}");
    };
}

#[test]
fn out_of_range_addresses_are_refused() {
    let delta = |fill: &dyn Fn(&mut Encoder)| {
        let mut out = Encoder::new();
        out.u8(VERSION).u32(1);
        fill(&mut out);
        Delta::decode(&out.finish()).unwrap_err().flaw
    };
    let assign = |out: &mut Encoder, blocks: u8, addr: u64| {
        out.u8(blocks << 3).u8(0).u40(addr).u40(1).u40(2).u8(3);
    };
    assert_flaw!(delta(&|out| assign(out, 2, 0xf_ffff)), RunLeavesSegment { blocks: 2, .. });
    assert_flaw!(delta(&|out| assign(out, 1, RESERVED_ADDR)), RunReserved { blocks: 1, .. });
    let past = |out: &mut Encoder| {
        varint::put(out, 2 << 3 | 1);
        varint::put(out, varint::zigzag(MAX_VOLUME_BLOCKS as i64 - 1));
    };
    assert_flaw!(delta(&past), PastVolume { volume: VolumeId(1), blocks: 2, .. });
    assert_flaw!(delta(&|out| _ = out.u8(1 << 3 | 1).u8(1)), ChangeBelowZero { .. });
    assert_flaw!(delta(&|out| _ = out.u8(1 << 3 | 4).u8(0)), ChangeFollowsNone { .. });
    let next = |out: &mut Encoder| _ = out.u8(1 << 3 | 4).u8(0).u40(9).u8(3);
    let last = |out: &mut Encoder| _ = out.u8(1 << 3).u8(0).u40(RESERVED_ADDR - 1).u40(9);
    let both = |out: &mut Encoder| {
        last(out);
        next(out);
    };
    assert_flaw!(delta(&both), RunReserved { .. });
    let twice = |out: &mut Encoder| _ = out.u8(3).u32(1).u8(3);
    assert_flaw!(delta(&twice), VolumeOrder { volume: VolumeId(1) });

    let mut overlap = Encoder::new();
    let run = |start| LeafRun { start, blocks: 4, addr: addr(1, 0), sealed: true }.pack();
    overlap.u8(VERSION).u32(1).u32(1).u8(0).u16(2).u64(run(0)).u64(run(3));
    assert_flaw!(decode_leaves(&overlap.finish()).unwrap_err().flaw, LeafRun { .. });
    let version = FormatFlaw::Version { expected: VERSION.into(), found: 1 };
    assert_eq!(Delta::decode(&[1]).unwrap_err().flaw, version);
}

#[test]
fn integer_wider_than_64_bits_is_refused() {
    let mut out = Encoder::new();
    out.bytes(&[0xff; 9]).u8(2);
    assert!(varint::take(&mut Decoder::new("test", &out.finish())).is_err());
    for value in [0, 127, 128, u64::from(u32::MAX), u64::MAX] {
        let mut out = Encoder::new();
        varint::put(&mut out, value);
        assert_eq!(varint::take(&mut Decoder::new("test", &out.finish())), Ok(value));
    }
}
