use super::*;

fn at(segment: u32, block: u32) -> BlockAddr {
    BlockAddr::new(SegmentId(segment), block)
}

/// A list of runs of so many blocks with a block between them, or none where they would not fit.
fn list_of(runs: u32, blocks: u32, is_sealed: impl Fn(u32) -> bool, segment: u32) -> RunList {
    let gap = u32::from(runs * (blocks + 1) <= LEAF_BLOCKS + 1);
    let mut list = RunList::default();
    for number in 0..runs {
        let (start, sealed) = (number * (blocks + gap), is_sealed(number));
        // In descending order, so that no two of them join.
        let addr = at(segment, 9000 - number * (blocks + 1));
        list.runs.push(LeafRun { start, blocks, addr, sealed }.pack());
        let sums = (0..blocks).map(|block| sum_bytes(u64::from(start + block)));
        list.sums.extend(sums.filter(|_| !sealed));
    }
    list
}

fn stored(list: &RunList) -> Leaf {
    let mut leaf = Leaf::default();
    leaf.store(list);
    let mut loaded = RunList::default();
    leaf.load(&mut loaded);
    assert!(loaded.runs == list.runs && loaded.sums == list.sums, "its content has changed");
    leaf
}

#[test]
fn a_leaf_takes_the_memory_of_its_smallest_form() {
    const LOW: u32 = 3;
    const HIGH: u32 = 1 << 19;
    let none = |_: u32| false;
    let all = |_: u32| true;
    // Runs, blocks of each, whether they are sealed, segment, bytes.
    type Case = (u32, u32, fn(u32) -> bool, u32, usize);
    let cases: [Case; 26] = [
        (0, 1, none, LOW, 0),
        (1, 1, none, LOW, 0),
        (1, 2, none, LOW, 0),
        (2, 1, all, HIGH, 0),
        (3, 1, none, LOW, 39),
        (3, 1, |number| number == 1, LOW, 34),
        (1, 511, all, LOW, 8),
        (1, 512, all, LOW, 0),
        (2, 256, all, HIGH, 0),
        (2, 256, |number| number == 1, LOW, 16 + 256 * 5),
        (4, 128, all, LOW, 32),
        // The entry of a block in a bitmap takes ten bytes, the bitmap 64.
        (21, 1, none, LOW, 273),
        (22, 1, none, LOW, 284),
        (256, 1, none, HIGH, 64 + 2560),
        // Up to 128 runs are quick to search.
        (128, 4, none, LOW, 128 * 8 + 512 * 5),
        (128, 3, none, HIGH, 128 * 8 + 384 * 5),
        (128, 1, all, LOW, 128 * 8),
        (256, 2, none, LOW, 4608),
        (256, 2, none, HIGH, 5120),
        (129, 2, none, LOW, 64 + 2580),
        // More must take half of the memory.
        (129, 2, all, LOW, 129 * 8),
        (160, 2, all, LOW, 160 * 8),
        (170, 1, all, LOW, 64 + 1700),
        (512, 1, all, HIGH, 5120),
        (512, 1, none, LOW, 4608),
        (505, 1, all, HIGH, 64 + 5050),
    ];
    for (runs, blocks, is_sealed, segment, bytes) in cases {
        let list = list_of(runs, blocks, is_sealed, segment);
        let found = stored(&list).heap_bytes();
        assert_eq!(found, heap_bytes(bytes), "{runs} runs of {blocks} blocks, {bytes} bytes");
    }
    // An array of all blocks takes over when it is smaller.
    for (blocks, segment, bytes) in
        [(454, LOW, 4604), (455, LOW, 4608), (505, HIGH, 5114), (506, HIGH, 5120)]
    {
        let list = list_of(blocks, 1, none, segment);
        assert_eq!(stored(&list).heap_bytes(), heap_bytes(bytes), "{blocks} blocks");
    }
}

/// Sets or clears one block.
fn change(leaf: &mut Leaf, block: u32, to: Option<(BlockAddr, &[u64])>, scratch: &mut RunList) {
    let mut ignored = |_, _| {};
    let mut freed = Freed::new(&mut ignored);
    match to {
        Some((addr, sums)) => {
            leaf.assign(NewRun { start: block, blocks: 1, addr, sums }, false, &mut freed, scratch);
        }
        None => leaf.clear((block, block + 1), &mut freed, scratch),
    }
}

#[test]
fn a_leaf_that_changes_block_by_block_takes_little_more_than_its_smallest_form() {
    let mut scratch = RunList::default();
    for (segment, stride) in [(3, 1), (3, 37), (1 << 19, 37), (3, 2)] {
        let mut leaf = Leaf::default();
        let smallest = |leaf: &Leaf| {
            let mut list = RunList::default();
            leaf.load(&mut list);
            stored(&list).heap_bytes()
        };
        let order: Vec<u32> = (0..511).map(|index| index * stride % 511).collect();
        for block in &order {
            let addr = at(segment, if stride == 1 { 70 + *block } else { 9000 - 3 * *block });
            change(&mut leaf, *block, Some((addr, &[9])), &mut scratch);
            let (bytes, least) = (leaf.heap_bytes(), smallest(&leaf));
            // A sixth of a short list is unused, a sixteenth of a long one and of entries.
            let most = least + (least / 6).min(32 + least / 16) + 16;
            assert!(bytes <= most, "{bytes} bytes, {least} would do, with block {block}");
        }
        assert_eq!(leaf.mapped(), 511);
        for block in &order {
            change(&mut leaf, *block, None, &mut scratch);
            let (bytes, least) = (leaf.heap_bytes(), smallest(&leaf));
            // The entries of an array may take a third more.
            let entries = heap_bytes(BITMAP_LEN + leaf.mapped() as usize * ENTRY_LEN);
            let list = least + (least / 3).min(64 + least / 8);
            let is_list = matches!(leaf, Leaf::Runs { .. });
            let most = if is_list { list } else { entries * 4 / 3 } + 16;
            let most = if leaf.mapped() <= 2 { 0 } else { most };
            assert!(bytes <= most, "{bytes} bytes, {least} would do, without block {block}");
        }
        assert!(leaf.is_empty());
    }
}
