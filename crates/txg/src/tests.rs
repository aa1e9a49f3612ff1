mod fair_queue;
mod throttle;

use crate::{Content, DirtySet, ExtentMap, Groups, Held};
use forebay_device::IoBuf;
use forebay_units::{BLOCK_LEN, Lba, TxgId, VolumeId};
use proptest::prelude::*;

fn common(common_bytes: u64) -> Held {
    Held { common_bytes, reserve_bytes: 0 }
}

fn data(blocks: u64, stamp: u8) -> Content {
    let mut buf = IoBuf::zeroed(blocks as usize * BLOCK_LEN);
    for (block, bytes) in buf.chunks_mut(BLOCK_LEN).enumerate() {
        bytes.fill(stamp.wrapping_add(block as u8));
    }
    Content::Data(buf.freeze())
}

#[derive(Clone, Debug)]
enum Step {
    Data(u64, u64, u8),
    Zero(u64, u64),
    Remove(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..60, 1u64..12, any::<u8>()).prop_map(|(a, b, c)| Step::Data(a, b, c)),
        (0u64..60, 1u64..30).prop_map(|(a, b)| Step::Zero(a, b)),
        (0u64..60, 1u64..30).prop_map(|(a, b)| Step::Remove(a, b)),
    ]
}

/// The state of each block: not dirty, zero, or data with this stamp.
type Model = Vec<Option<Option<u8>>>;

fn flatten(extents: Vec<crate::OverlayExtent>) -> Model {
    let mut out = Model::new();
    let mut at = None;
    for extent in extents {
        assert!(at.is_none_or(|at| at == extent.lba.0), "extents leave a gap");
        assert!(extent.blocks > 0, "an extent of nothing");
        at = Some(extent.lba.0 + extent.blocks);
        for block in 0..extent.blocks as usize {
            out.push(match &extent.content {
                None => None,
                Some(Content::Zero) => Some(None),
                Some(Content::Data(bytes)) => Some(Some(bytes[block * BLOCK_LEN])),
            });
        }
    }
    out
}

/// Lets go of a group, three extents at a time.
fn let_go_in_parts(mut set: DirtySet) {
    let extents = |set: &DirtySet| set.volumes.values().map(|map| map.iter().count()).sum();
    loop {
        let before: usize = extents(&set);
        let is_more = set.let_go(3);
        assert_eq!(extents(&set), before.saturating_sub(3));
        let all = set.volumes.values().flat_map(ExtentMap::iter);
        let data = all.filter(|(_, _, content)| matches!(content, Content::Data(_)));
        assert_eq!(set.data_blocks(), data.map(|(_, blocks, _)| blocks).sum::<u64>());
        assert_eq!(is_more, before > 3);
        if !is_more {
            return assert_eq!(set.data_blocks(), 0);
        }
    }
}

/// Groups that no root has are found, oldest first, whichever of them a root has.
fn check_uncommitted(groups: &Groups, models: &[&Vec<Model>]) {
    let before_all = groups.open_txg().0 - models.len() as u64;
    for rooted in 0..models.len() {
        let sets: Vec<_> = groups.uncommitted(TxgId(before_all + rooted as u64)).collect();
        assert_eq!(sets.len(), models.len() - rooted);
        for (set, model) in sets.iter().zip(&models[rooted..]) {
            assert_eq!(&contents(set), *model);
        }
    }
}

proptest! {
    #[test]
    fn extent_map_agrees_with_a_flat_model(steps in prop::collection::vec(step(), 1..40),
                                       from in 0u64..90, len in 1u64..90) {
        let mut map = ExtentMap::default();
        let mut model: Model = vec![None; 200];
        for step in steps {
            let (lba, blocks) = match step {
                Step::Data(lba, blocks, stamp) => {
                    map.insert(Lba(lba), blocks, data(blocks, stamp));
                    for block in 0..blocks {
                        model[(lba + block) as usize] = Some(Some(stamp.wrapping_add(block as u8)));
                    }
                    continue;
                }
                Step::Zero(lba, blocks) => {
                    map.insert(Lba(lba), blocks, Content::Zero);
                    model[lba as usize..(lba + blocks) as usize].fill(Some(None));
                    continue;
                }
                Step::Remove(lba, blocks) => (lba, blocks),
            };
            map.remove(Lba(lba), blocks);
            model[lba as usize..(lba + blocks) as usize].fill(None);
        }
        let count = model.iter().filter(|b| matches!(b, Some(Some(_)))).count() as u64;
        prop_assert_eq!(map.data_blocks(), count);
        let got = flatten(map.lookup(Lba(from), len));
        prop_assert_eq!(&got[..], &model[from as usize..(from + len) as usize]);
        let all: u64 = map.iter().map(|(_, blocks, _)| blocks).sum();
        prop_assert_eq!(all, model.iter().filter(|b| b.is_some()).count() as u64);
    }
}

#[derive(Clone, Debug)]
enum Turn {
    Absorb(u32, u64, u64, Option<u8>),
    Quiesce,
    Retire,
    Rooted,
    Forget(u32),
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        6 => (0u32..3, 0u64..50, 1u64..12, proptest::option::of(any::<u8>()))
            .prop_map(|(v, lba, blocks, stamp)| Turn::Absorb(v, lba, blocks, stamp)),
        2 => Just(Turn::Quiesce),
        2 => Just(Turn::Retire),
        1 => Just(Turn::Rooted),
        1 => (0u32..3).prop_map(Turn::Forget),
    ]
}

/// The extents of a group, in order, go on after any of them.
fn check_order(set: &DirtySet) {
    let places = |after| set.extents_after(after).map(|(v, lba, ..)| (v, lba)).collect::<Vec<_>>();
    let all = places(None);
    assert!(all.is_sorted());
    assert_eq!(all.len(), set.volumes.values().map(|map| map.iter().count()).sum::<usize>());
    for (at, taken) in all.iter().enumerate() {
        assert_eq!(places(Some(*taken)), &all[at + 1..]);
    }
}

/// The three volumes of a group.
fn contents(set: &DirtySet) -> Vec<Model> {
    let empty = ExtentMap::default();
    let of = |volume: u32| set.volumes.get(&VolumeId(volume)).unwrap_or(&empty);
    (0..3).map(|volume| flatten(of(volume).lookup(Lba(0), 80))).collect()
}

proptest! {
    // Groups against one flat model for each group: reads see the newest content, a retired group
    // holds exactly the writes absorbed while it was open until a root has it, and every held byte
    // is released.
    #[test]
    fn groups_agree_with_a_flat_model(turns in prop::collection::vec(turn(), 1..60)) {
        let fresh = || vec![vec![None; 80]; 3];
        let mut groups = Groups::new(TxgId(7));
        let (mut open, mut syncing): (Vec<Model>, Option<Vec<Model>>) = (fresh(), None);
        let (mut retired, mut next) = (None::<Vec<Model>>, TxgId(7));
        let (mut open_held, mut syncing_held) = (Held::default(), Held::default());
        for turn in turns {
            match turn {
                Turn::Absorb(volume, lba, blocks, stamp) => {
                    let content = stamp.map_or(Content::Zero, |stamp| data(blocks, stamp));
                    let held = Held { common_bytes: blocks * 3, reserve_bytes: blocks };
                    let txg = groups.absorb(VolumeId(volume), Lba(lba), blocks, content, held);
                    prop_assert_eq!(txg, next);
                    open_held += held;
                    for i in 0..blocks {
                        let byte = stamp.map(|stamp| stamp.wrapping_add(i as u8));
                        open[volume as usize][(lba + i) as usize] = Some(byte);
                    }
                }
                Turn::Quiesce if syncing.is_none() => {
                    prop_assert_eq!(groups.quiesce(), next);
                    next = next.next();
                    syncing = Some(std::mem::replace(&mut open, fresh()));
                    syncing_held = std::mem::take(&mut open_held);
                }
                Turn::Quiesce => {}
                Turn::Retire => {
                    let held = groups.retire().map(|set| set.held);
                    prop_assert_eq!(held, syncing.is_some().then_some(syncing_held));
                    retired = syncing.take().or(retired);
                }
                Turn::Rooted => {
                    groups.rooted().into_iter().for_each(let_go_in_parts);
                    retired = None;
                }
                Turn::Forget(volume) => {
                    groups.forget_volume(VolumeId(volume));
                    if let Some(model) = &mut retired {
                        model[volume as usize].fill(None);
                    }
                    open[volume as usize].fill(None);
                    if let Some(model) = &mut syncing {
                        model[volume as usize].fill(None);
                    }
                }
            }
            let models: Vec<_> = retired.iter().chain(&syncing).chain([&open]).collect();
            check_uncommitted(&groups, &models);
            for (volume, newest) in open.iter().enumerate() {
                let older = syncing.as_ref().map(|model| &model[volume]);
                let seen = |i: usize| newest[i].or_else(|| older.and_then(|older| older[i]));
                let seen: Model = (0..80).map(seen).collect();
                let got = flatten(groups.lookup(VolumeId(volume as u32), Lba(0), 80));
                for (lba, content) in seen.iter().enumerate() {
                    let covers = groups.covers(VolumeId(volume as u32), Lba(lba as u64));
                    prop_assert_eq!(covers, content.is_some());
                }
                prop_assert_eq!(got, seen);
            }
            check_order(groups.open());
            let is_data = |b: &&Option<Option<u8>>| matches!(b, Some(Some(_)));
            let count = open.iter().flatten().filter(is_data).count() as u64;
            prop_assert_eq!(groups.open().data_blocks(), count);
            prop_assert_eq!(groups.open().is_empty(), open.iter().flatten().all(Option::is_none));
        }
    }
}

#[test]
fn open_group_hides_the_syncing_group_until_it_retires() {
    let volume = VolumeId(1);
    let mut groups = Groups::new(TxgId(5));
    assert_eq!(groups.absorb(volume, Lba(0), 4, data(4, 10), common(16384)), TxgId(5));
    assert_eq!(groups.quiesce(), TxgId(5));
    assert_eq!(groups.absorb(volume, Lba(1), 1, data(1, 99), common(4096)), TxgId(6));
    groups.absorb(volume, Lba(2), 1, Content::Zero, Held::default());
    let seen = flatten(groups.lookup(volume, Lba(0), 5));
    assert_eq!(seen, [Some(Some(10)), Some(Some(99)), Some(None), Some(Some(13)), None]);
    let done = groups.retire().unwrap();
    assert_eq!((done.data_blocks(), done.held), (4, common(16384)));
    let seen = flatten(groups.lookup(volume, Lba(0), 4));
    assert_eq!(seen, [None, Some(Some(99)), Some(None), None]);
    groups.forget_volume(volume);
    assert!(groups.open().is_empty());
}
