mod audit;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Remembers what each slot holds by listening only, as flash would.
#[derive(Default)]
struct Listener {
    programs: u64,
    pads: u64,
    reads: u64,
    erases: BTreeMap<u32, u32>,
    /// Next slot that each block may program: flash pages are written in order, once an erase.
    next: BTreeMap<u32, u32>,
    slots_per_block: u32,
    broken: Option<String>,
}

impl Media for Listener {
    fn program(&mut self, slot: u32, slots: u32, origin: Origin) {
        let block = slot / self.slots_per_block;
        let next = self.next.entry(block).or_insert(0);
        if slot % self.slots_per_block != *next {
            self.broken = Some(format!("slot {slot} programmed, {next} of its block is next"));
        }
        *next += slots;
        if *next > self.slots_per_block {
            self.broken = Some(format!("block {block} programmed past its end"));
        }
        match origin {
            Origin::Pad => self.pads += u64::from(slots),
            Origin::Host | Origin::Clean | Origin::Fold => self.programs += u64::from(slots),
        }
    }
    fn read(&mut self, _slot: u32, slots: u32) {
        self.reads += u64::from(slots);
    }
    fn erase(&mut self, block: u32) {
        *self.erases.entry(block).or_insert(0) += 1;
        self.next.insert(block, 0);
    }
}

fn shape(policy: CleaningPolicy) -> FtlConfig {
    FtlConfig::textbook(150, 24, 10, policy)
}

fn any_policy() -> impl Strategy<Value = CleaningPolicy> {
    prop_oneof![
        Just(CleaningPolicy::Greedy),
        (1..5_u32).prop_map(CleaningPolicy::DChoices),
        Just(CleaningPolicy::CostBenefit),
        Just(CleaningPolicy::Fifo),
        Just(CleaningPolicy::Random),
    ]
}

fn any_shape() -> impl Strategy<Value = FtlConfig> {
    (
        any_policy(),
        prop_oneof![Just(Frontiers::Apart), Just(Frontiers::Shared)],
        prop_oneof![Just(Pace::Whole), Just(Pace::Paced)],
        1..=3_u32,
        prop_oneof![Just(1_u32), Just(4)],
        any::<bool>(),
        0..3_u32,
        prop_oneof![Just(5_u32), Just(16), Just(70)],
    )
        .prop_map(|(policy, frontiers, pace, pools, slots_per_unit, dynamic, gap, n)| {
            let slots_per_block = n.max(2 * slots_per_unit);
            let room = (12 - 3) * (slots_per_block - slots_per_unit + 1) * pools;
            FtlConfig {
                units: room * 4 / 5 / slots_per_unit,
                slots_per_unit,
                slots_per_block,
                blocks_per_pool: 14,
                pools,
                reserve_blocks: 1 + gap % 2,
                streams: 1,
                frontiers,
                policy,
                pace,
                dynamic_wear_leveling: dynamic,
                static_wear_gap: gap * 3,
                cycles_mean: 0.0,
                cycles_sd_fraction: 0.0,
                factory_bad_fraction: 0.05,
            }
        })
}

#[derive(Clone, Debug)]
enum Step {
    Write(u32, u32, usize),
    Burst(u32, u32),
    Trim(u32),
    Flush(usize),
    CleanAhead,
    SecureErase,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => (any::<u32>(), any::<u32>(), 0..3_usize).prop_map(|(u, s, p)| Step::Write(u, s, p)),
        10 => (any::<u32>(), any::<u32>()).prop_map(|(unit, seed)| Step::Burst(unit, seed)),
        4 => any::<u32>().prop_map(Step::Trim),
        2 => (0..3_usize).prop_map(Step::Flush),
        1 => Just(Step::CleanAhead),
        1 => Just(Step::SecureErase),
    ]
}

proptest! {
    /// Against a naive model: the same units are mapped, with the same sizes; all counts hold; and
    /// flash is only ever programmed in order after an erase.
    #[test]
    fn the_layer_follows_a_naive_map(
        config in any_shape(),
        steps in prop::collection::vec(step(), 1..60),
        seed: u64,
    ) {
        let mut ftl = Ftl::new(config.clone(), seed);
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        let mut flash = Listener { slots_per_block: config.slots_per_block, ..Default::default() };
        for step in steps {
            match step {
                Step::Write(unit, slots, pool) => {
                    let unit = unit % config.units;
                    let slots = 1 + slots % config.slots_per_unit;
                    let pool = ftl.pick_pool(pool % config.pools as usize);
                    let slot = ftl.write(unit, slots, pool, &mut flash).unwrap();
                    prop_assert_eq!(ftl.unit_at(slot), Some(unit));
                    model.insert(unit, slots);
                }
                Step::Burst(unit, seed) => {
                    let mut chance = Chance::new(u64::from(seed));
                    let hot = 1 + unit % config.units;
                    for number in 0..config.units {
                        let unit = chance.below(hot);
                        let slots = 1 + chance.below(config.slots_per_unit);
                        let pool = ftl.pick_pool(number as usize % config.pools as usize);
                        ftl.write(unit, slots, pool, &mut flash).unwrap();
                        model.insert(unit, slots);
                    }
                }
                Step::Trim(unit) => {
                    let unit = unit % config.units;
                    prop_assert_eq!(ftl.trim(unit), model.remove(&unit).is_some());
                }
                Step::Flush(pool) => ftl.pad_stripe(pool % config.pools as usize, 1, &mut flash),
                Step::CleanAhead => {
                    ftl.clean_ahead(4, &mut flash, |_| true);
                }
                Step::SecureErase => {
                    ftl.secure_erase(&mut flash);
                    model.clear();
                }
            }
            ftl.audit();
            prop_assert_eq!(&flash.broken, &None);
        }
        for unit in 0..config.units {
            prop_assert_eq!(ftl.slot_of(unit).is_some(), model.contains_key(&unit));
            if let Some(&slots) = model.get(&unit) {
                prop_assert_eq!(ftl.slots_of(unit), slots);
            }
        }
        let counters = ftl.counters();
        prop_assert_eq!(flash.programs, counters.host_slots + counters.moved_slots);
        prop_assert_eq!(flash.pads, counters.padded_slots);
        prop_assert_eq!(flash.reads, counters.moved_slots);
        prop_assert_eq!(flash.erases.values().map(|&n| u64::from(n)).sum::<u64>(), counters.erases);
    }
}

fn overwrite(ftl: &mut Ftl, units: u32, writes: u32, seed: u64) -> Result<(), WornOut> {
    let mut chance = Chance::new(seed);
    for _ in 0..writes {
        ftl.write(chance.below(units), 1, 0, &mut ())?;
    }
    Ok(())
}

#[test]
fn the_same_seed_and_writes_give_the_same_digest() {
    for policy in [CleaningPolicy::Greedy, CleaningPolicy::DChoices(3), CleaningPolicy::Random] {
        let digest = |seed, load| {
            let mut ftl = Ftl::new(shape(policy), seed);
            overwrite(&mut ftl, 150, 5000, load).unwrap();
            ftl.digest()
        };
        assert_eq!(digest(1, 2), digest(1, 2));
        assert_ne!(digest(1, 2), digest(1, 3), "the load must show in the digest");
        assert_ne!(digest(1, 2), digest(2, 2), "the seed must show in the digest");
    }
}

#[test]
fn blocks_fail_at_their_limit_and_the_device_turns_read_only() {
    let mut config = shape(CleaningPolicy::Greedy);
    config.cycles_mean = 50.0;
    config.cycles_sd_fraction = 0.1;
    let mut ftl = Ftl::new(config, 3);
    let mut chance = Chance::new(4);
    let mut writes = 0_u64;
    while ftl.write(chance.below(150), 1, 0, &mut ()).is_ok() {
        writes += 1;
        assert!(writes < 1_000_000, "blocks that fail after 50 cycles never wore out");
    }
    assert!(ftl.is_worn_out());
    ftl.audit();
    let spread = ftl.wear_spread();
    assert!(spread.bad_blocks > 0 && spread.bad_blocks < spread.blocks);
    // All 26 blocks of 10 slots may be erased about 50 times, at some write amplification.
    assert!((5_000..14_000).contains(&writes), "{writes} writes");
    // Old data is still there.
    assert_eq!(ftl.mapped_units(), 150);
}

#[test]
fn static_leveling_moves_cold_data_and_narrows_the_spread() {
    let spread = |gap| {
        let mut config = shape(CleaningPolicy::Greedy);
        config.frontiers = Frontiers::Apart;
        config.dynamic_wear_leveling = true;
        config.static_wear_gap = gap;
        let mut ftl = Ftl::new(config, 1);
        for unit in 0..150 {
            ftl.write(unit, 1, 0, &mut ()).unwrap();
        }
        // Two thirds of the data is never written again.
        overwrite(&mut ftl, 50, 60_000, 9).unwrap();
        (ftl.wear_spread(), ftl.counters().static_moves)
    };
    let (without, none) = spread(0);
    let (with, some) = spread(20);
    assert_eq!(none, 0);
    assert!(some > 0);
    assert!(without.max - without.min > 200, "{without:?}");
    assert!(with.max - with.min < 60, "{with:?}");
}

#[test]
fn data_apart_from_moved_data_helps_under_skew() {
    let wa = |frontiers, policy| {
        let config = FtlConfig {
            frontiers,
            blocks_per_pool: 515,
            ..FtlConfig::textbook(27_853, 512, 64, policy)
        };
        let mut ftl = Ftl::new(config, 1);
        let mut chance = Chance::new(5);
        for unit in 0..27_853 {
            ftl.write(unit, 1, 0, &mut ()).unwrap();
        }
        let mut run = |writes: u32| {
            for _ in 0..writes {
                // Nine of ten writes go to a tenth of the units.
                let hot = chance.below(10) != 0;
                let unit = if hot { chance.below(2785) } else { chance.below(27_853) };
                ftl.write(unit, 1, 0, &mut ()).unwrap();
            }
            ftl.counters()
        };
        let before = run(400_000);
        let after = run(200_000);
        (after.moved_units - before.moved_units) as f64 / 200_000.0 + 1.0
    };
    let one_stream = wa(Frontiers::Shared, CleaningPolicy::Greedy);
    let two_streams = wa(Frontiers::Apart, CleaningPolicy::CostBenefit);
    assert!(two_streams < 0.75 * one_stream, "{two_streams} against {one_stream}");
}

#[test]
fn secure_erase_gives_back_the_speed_of_a_new_device() {
    let mut ftl = Ftl::new(shape(CleaningPolicy::Greedy), 1);
    overwrite(&mut ftl, 150, 5000, 1).unwrap();
    let erases = ftl.counters().erases;
    ftl.secure_erase(&mut ());
    assert_eq!(ftl.mapped_units(), 0);
    assert!(ftl.counters().erases > erases, "erasing wears");
    ftl.audit();
    let moved = ftl.counters().moved_units;
    for unit in 0..150 {
        ftl.write(unit, 1, 0, &mut ()).unwrap();
    }
    assert_eq!(ftl.counters().moved_units, moved, "an erased device has nothing to move");
}

#[test]
fn block_of_agrees_with_division() {
    for slots_per_block in [2, 3, 7, 64, 100, 1023, 4096] {
        let mut config = shape(CleaningPolicy::Fifo);
        config.slots_per_block = slots_per_block;
        config.units = 2;
        let ftl = Ftl::new(config, 1);
        for slot in (0..26 * slots_per_block).chain([1_000_003, 4_000_000_000, u32::MAX - 1]) {
            assert_eq!(ftl.block_of(slot), slot / slots_per_block);
        }
    }
}
