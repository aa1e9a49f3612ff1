use std::collections::BTreeMap;

use forebay_format::map_record::LeafRun;
use forebay_units::BlockAddr;
use proptest::prelude::*;
use proptest::test_runner::{TestRng, TestRunner};

use super::*;
use crate::runs::RunList;
use crate::sums::SumBytes;

/// A leaf of one block, whose address tells it from others.
fn leaf(mark: u64) -> Leaf {
    let mut list = RunList::default();
    let addr = BlockAddr::from_raw(mark);
    list.push(LeafRun { start: 7, blocks: 1, addr, sealed: true }, SumBytes::SEALED);
    let mut leaf = Leaf::Empty;
    leaf.store(&list);
    leaf
}

fn mark(leaf: &Leaf) -> u64 {
    leaf.get(7).expect("leaves of this test have block 7").addr.raw()
}

#[derive(Clone, Debug)]
enum Op {
    /// First leaf, distance, count: leaves that get a block.
    Fill(u32, u32, u32),
    /// The same, made empty.
    Empty(u32, u32, u32),
    /// Every leaf of the last fill but one in so many, made empty.
    Thin(u32),
}

fn any_op() -> impl Strategy<Value = Op> {
    // Neighboring pages, neighboring chapters, and the ends of the numbers.
    let first = prop_oneof![
        0..200u32,
        32_700..32_900u32,
        (0..100u32).prop_map(|i| i * 40_961),
        Just(u32::MAX - 500)
    ];
    let step = prop_oneof![3 => Just(1), 2 => 2..5u32, 1 => Just(64), 1 => 60..3000u32];
    let count = prop_oneof![1..5u32, 1..140u32, 1..1500u32];
    prop_oneof![
        3 => (first.clone(), step.clone(), count.clone()).prop_map(|(f, s, n)| Op::Fill(f, s, n)),
        2 => (first, step, count).prop_map(|(f, s, n)| Op::Empty(f, s, n)),
        1 => (2..9u32).prop_map(Op::Thin),
    ]
}

/// A directory, and what it must hold.
#[derive(Default)]
struct World {
    directory: Directory,
    model: BTreeMap<u32, u64>,
    filled: Vec<u32>,
    marks: u64,
    /// Whether a page was an array, and whether one was not.
    seen: (bool, bool),
}

impl World {
    fn set(&mut self, number: u32, to: Option<u64>) {
        let before = self.model.get(&number).copied();
        self.directory.change(number, |slot| {
            assert_eq!((!slot.is_empty()).then(|| mark(slot)), before);
            *slot = to.map_or(Leaf::Empty, leaf);
        });
        match to {
            Some(mark) => self.model.insert(number, mark),
            None => self.model.remove(&number),
        };
    }

    fn step(&mut self, op: &Op) {
        let numbers = |first: u32, step: u32, count: u32| {
            (0..count).map_while(move |i| first.checked_add(i.checked_mul(step)?))
        };
        match *op {
            Op::Fill(first, step, count) => {
                self.filled = numbers(first, step, count).collect();
                for number in self.filled.clone() {
                    self.marks += 1;
                    self.set(number, Some(self.marks));
                }
            }
            Op::Empty(first, step, count) => {
                numbers(first, step, count).for_each(|number| self.set(number, None));
            }
            Op::Thin(kept) => {
                for (index, number) in self.filled.clone().into_iter().enumerate() {
                    if (index as u32) % kept != 0 {
                        self.set(number, None);
                    }
                }
            }
        }
    }

    fn check(&mut self) {
        let expected = || self.model.iter().map(|(number, mark)| (*number, *mark));
        let all = self.directory.iter_from(0).map(|(number, leaf)| (number, mark(leaf)));
        assert!(all.eq(expected()));
        for (number, expected) in &self.model {
            assert_eq!(self.directory.get(*number).map(mark), Some(*expected));
            let next = number.wrapping_add(1);
            let absent = self.directory.get(next).map(mark);
            assert_eq!(absent, self.model.get(&next).copied());
        }
        for from in [0, 1, 63, 64, 100, 32_767, 32_768, 40_000, 1 << 22, u32::MAX - 3] {
            let first = self.model.range(from..).next().map(|(number, _)| *number);
            assert_eq!(self.directory.first_from(from), first);
        }
        self.seen.0 |= self.directory.pages.iter_from(0).next().is_some();
        self.seen.1 |= self.directory.sparse.iter_from(0).next().is_some();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn directory_agrees_with_a_plain_model(ops in prop::collection::vec(any_op(), 1..25)) {
        agree(&ops);
    }
}

fn agree(ops: &[Op]) {
    let mut world = World::default();
    for op in ops {
        world.step(op);
        world.check();
    }
    let numbers: Vec<u32> = world.model.keys().copied().collect();
    numbers.into_iter().for_each(|number| world.set(number, None));
    world.check();
    let empty = Directory::default().memory_bytes();
    assert_eq!(world.directory.memory_bytes(), empty);
}

#[test]
fn directory_agrees_with_a_plain_model_in_the_same_few_histories() {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(8) };
    let drawn = TestRng::deterministic_rng(config.rng_algorithm);
    let ops = prop::collection::vec(any_op(), 1..25);
    TestRunner::new_with_rng(config, drawn)
        .run(&ops, |ops| {
            agree(&ops);
            Ok(())
        })
        .unwrap();
}

#[test]
fn page_changes_its_form_in_both_directions() {
    let mut world = World::default();
    for number in 0..64 {
        world.set(number, Some(u64::from(number)));
        world.check();
        assert_eq!(world.directory.pages.leaf(0).is_some(), number >= 55, "{number} added");
    }
    for number in 0..64 {
        world.set(number, None);
        world.check();
        assert_eq!(world.directory.pages.leaf(0).is_some(), number < 16, "{number} removed");
    }
    assert_eq!(world.seen, (true, true));
}

#[test]
fn chapter_changes_its_form_in_both_directions() {
    let mut world = World::default();
    // Two chapters, so that what one of them does leaves the other as it is.
    for number in (0..512 * 64).chain(512 * 64..530 * 64) {
        world.set(number, Some(u64::from(number)));
    }
    world.check();
    for number in (10 * 64..512 * 64).rev() {
        world.set(number, None);
        if number % 1000 == 0 {
            world.check();
        }
    }
    world.check();
}

#[test]
fn an_emptied_directory_takes_no_more_memory_than_a_new_one() {
    let mut directory = Directory::default();
    let new = directory.memory_bytes();
    // So many pages of each chapter that it finds them in an array.
    let numbers = (0..10u32).flat_map(|chapter| (0..100 * 64).map(move |at| (chapter << 15) + at));
    for number in numbers.clone() {
        directory.change(number, |slot| *slot = leaf(1));
    }
    assert!(directory.memory_bytes() > new);
    for number in numbers {
        directory.change(number, |slot| *slot = Leaf::Empty);
    }
    assert_eq!(directory.memory_bytes(), new);
}

#[test]
fn a_search_goes_on_in_the_next_page() {
    let mut world = World::default();
    let numbers = (0..60).chain(64..128).chain(192..250).chain(512 * 64..512 * 64 + 64);
    numbers.for_each(|number| world.set(number, Some(u64::from(number))));
    assert!(world.seen == (false, false) && world.directory.pages.leaf(64).is_some());
    for from in [0, 59, 60, 61, 63, 64, 127, 128, 191, 192, 249, 250, 255, 256, 512 * 64, 512 * 65]
    {
        let right = world.model.range(from..).next().map(|(number, _)| *number);
        assert_eq!(world.directory.first_from(from), right, "from {from}");
    }
    world.check();
}

// Whichever leaves there are, and in whichever order they came, each takes little memory.
#[test]
fn a_leaf_takes_at_most_36_bytes_wherever_it_lies() {
    const LEAVES: u32 = 1200;
    /// Of the last list, and of the trees' first nodes.
    const FIXED: u64 = 3000;
    let orders: [fn(u32) -> u32; 3] =
        [|index| index, |index| LEAVES - 1 - index, |index| index * 773 % LEAVES];
    // Single leaves, parts of pages, whole pages in chapters of their own.
    let places: [fn(u32) -> u32; 4] = [
        |index| index * 97,
        |index| index / 50 * 64 + index % 50,
        |index| index / 64 * 64 * 512 + index % 64,
        |index| index * 100_003,
    ];
    for (order, place) in orders.iter().flat_map(|o| places.iter().map(move |p| (o, p))) {
        let mut directory = Directory::default();
        let bounded = |directory: &Directory, leaves: u32| {
            let (bytes, most) = (directory.memory_bytes(), 36 * u64::from(leaves) + FIXED);
            assert!(bytes <= most, "{bytes} bytes for {leaves} leaves");
        };
        for index in 0..LEAVES {
            directory.change(place(order(index)), |slot| *slot = leaf(1));
            bounded(&directory, index + 1);
        }
        for index in 0..LEAVES {
            directory.change(place(order(index)), |slot| *slot = Leaf::Empty);
            bounded(&directory, LEAVES - 1 - index);
        }
    }
}

#[test]
fn a_leaf_may_come_anywhere_into_a_full_list() {
    for at in 0..=128 {
        let mut world = World::default();
        // As many as a list has before it is divided, with gaps between them.
        (0..128).for_each(|index| world.set(100 + 200 * index, Some(u64::from(index))));
        world.set(200 * at, Some(1000));
        let expected = world.model.iter().map(|(number, mark)| (*number, *mark));
        let all = world.directory.iter_from(0).map(|(number, leaf)| (number, mark(leaf)));
        assert!(all.eq(expected), "before leaf {at}");
        assert_eq!(world.directory.get(200 * at).map(mark), Some(1000));
    }
}
