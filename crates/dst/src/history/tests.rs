use proptest::prelude::*;

use super::*;

fn write(history: &mut History, first: u64, count: u64) -> u32 {
    let ticket = history.issue(Change::Write, first, count, u64::MAX);
    history.complete(ticket, false);
    ticket.number
}

fn seen(numbers: &[u32]) -> Vec<Option<Seen>> {
    let seen = |n: &u32| if *n == 0 { Seen::Zeros } else { Seen::Write(*n) };
    numbers.iter().map(|n| Some(seen(n))).collect()
}

#[test]
fn prefix_is_accepted_and_gap_is_rejected() {
    let mut history = History::new("v", 4, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 1, 1);
    let c = write(&mut history, 2, 1);
    for fine in [[0, 0, 0, 0], [a, 0, 0, 0], [a, b, 0, 0], [a, b, c, 0]] {
        assert_eq!(history.clone().check_crash(&seen(&fine)), Ok(()));
    }
    for wrong in [[0, b, 0, 0], [a, 0, c, 0], [0, 0, c, 0], [a, b, c, a]] {
        assert!(history.clone().check_crash(&seen(&wrong)).is_err(), "{wrong:?}");
    }
    let now = history.now();
    history.flushed(now);
    assert!(history.clone().check_crash(&seen(&[a, b, 0, 0])).is_err());
    assert!(history.clone().check_crash(&[None, Some(Seen::Write(b)), None, None]).is_ok());
}

#[test]
fn write_is_found_whole_or_not_at_all() {
    let mut history = History::new("v", 4, 100);
    let a = history.issue(Change::Write, 0, 4, u64::MAX).number;
    assert_eq!(history.clone().check_crash(&seen(&[0; 4])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[a; 4])), Ok(()));
    assert!(history.clone().check_crash(&seen(&[a, a, 0, 0])).is_err());
    let mut pieces = History::new("v", 4, 2);
    let a = pieces.issue(Change::Write, 0, 4, u64::MAX).number;
    assert_eq!(pieces.clone().check_crash(&seen(&[0, 0, a, a])), Ok(()));
    assert!(pieces.clone().check_crash(&seen(&[0, a, a, a])).is_err());
}

#[test]
fn write_that_was_given_up_may_be_there_and_never_later() {
    for may_follow in [false, true] {
        let mut history = History::new("v", 4, 100);
        let ticket = history.issue(Change::Write, 0, 4, u64::MAX);
        history.give_up(ticket, may_follow);
        let a = ticket.number;
        assert_eq!(history.clone().check_crash(&seen(&[0; 4])), Ok(()));
        assert_eq!(history.clone().check_crash(&seen(&[a; 4])), Ok(()));
        assert!(history.clone().check_crash(&seen(&[a, a, 0, 0])).is_err());
        let b = write(&mut history, 0, 4);
        let now = history.now();
        history.flushed(now);
        assert_eq!(history.clone().check_crash(&seen(&[b; 4])), Ok(()));
        assert!(history.clone().check_crash(&seen(&[0; 4])).is_err());
        let read = history.read_begins();
        assert_eq!(history.check_read(read, 0, Seen::Write(b)), Ok(()));
        assert_eq!(history.check_read(read, 0, Seen::Write(a)).is_ok(), may_follow);
        assert_eq!(history.check_crash(&seen(&[a; 4])).is_ok(), may_follow);
    }
}

#[test]
fn zeroing_that_was_given_up_explains_zeros_and_demands_none() {
    let mut history = History::new("v", 8, 100);
    let a = write(&mut history, 0, 8);
    let ticket = history.issue(Change::Zero, 0, 8, u64::MAX);
    history.give_up(ticket, false);
    let now = history.now();
    history.flushed(now);
    for fine in [[0; 8], [a; 8], [a, a, a, a, 0, 0, 0, 0]] {
        assert_eq!(history.clone().check_crash(&seen(&fine)), Ok(()));
    }
}

#[test]
fn concurrent_writes_have_one_order_for_all_sectors() {
    let mut history = History::new("v", 2, 100);
    let a = history.issue(Change::Write, 0, 2, u64::MAX).number;
    let b = history.issue(Change::Write, 0, 2, u64::MAX).number;
    assert_eq!(history.clone().check_crash(&seen(&[a, a])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[b, b])), Ok(()));
    assert!(history.clone().check_crash(&seen(&[a, b])).is_err(), "a cycle");
}

#[test]
fn zeros_require_a_zeroing_and_all_that_completed_before_it() {
    let mut history = History::new("v", 3, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 1, 1);
    let ticket = history.issue(Change::Zero, 0, 1, u64::MAX);
    history.complete(ticket, false);
    let c = write(&mut history, 2, 1);
    assert_eq!(history.clone().check_crash(&seen(&[0, b, c])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[0, b, 0])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[a, b, 0])), Ok(()));
    assert_eq!(history.clone().check_crash(&seen(&[0, 0, 0])), Ok(()));
    assert!(
        history.clone().check_crash(&seen(&[a, b, c])).is_err(),
        "the zeroing must be in the prefix"
    );
    let now = history.now();
    history.flushed(now);
    assert!(history.clone().check_crash(&seen(&[0, 0, c])).is_err());
}

#[test]
fn zeros_of_two_zeroings_are_told_apart_by_the_order_of_a_write() {
    let mut history = History::new("v", 2 * BLOCK_SECTORS, 1 << 20);
    let zeroing = history.issue(Change::Zero, 0, 2 * BLOCK_SECTORS, u64::MAX);
    let write = history.issue(Change::Write, 0, 2 * BLOCK_SECTORS, u64::MAX);
    history.complete(write, false);
    history.complete(zeroing, true);
    let found = [vec![write.number; 8], vec![0; 8]].concat();
    assert!(history.clone().check_crash(&seen(&found)).is_err(), "the write is one");
    let later = history.issue(Change::Zero, BLOCK_SECTORS, BLOCK_SECTORS, u64::MAX);
    history.complete(later, false);
    assert_eq!(history.clone().check_crash(&seen(&found)), Ok(()));
}

#[test]
fn read_never_shows_replaced_data() {
    let mut history = History::new("v", 1, 100);
    let a = write(&mut history, 0, 1);
    let b = write(&mut history, 0, 1);
    let now = history.now();
    assert!(history.check_read(now, 0, Seen::Write(a)).is_err());
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()));
    let c = history.issue(Change::Write, 0, 1, u64::MAX);
    assert_eq!(history.check_read(now, 0, Seen::Write(c.number)), Ok(()));
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()));
    history.complete(c, false);
    let later = history.now();
    assert_eq!(history.check_read(now, 0, Seen::Write(b)), Ok(()), "the read was issued earlier");
    assert!(history.check_read(later, 0, Seen::Write(b)).is_err());
    assert!(history.check_read(later, 0, Seen::Garbage).is_err());
    assert!(!history.may_be_hole(later, 0));
}

#[test]
fn long_read_may_show_data_replaced_since_its_issue() {
    let mut history = History::new("v", 1, 100);
    let first = write(&mut history, 0, 1);
    let issued = history.read_begins();
    for _ in 0..20 {
        write(&mut history, 0, 1);
        let now = history.now();
        history.flushed(now);
    }
    assert_eq!(history.check_read(issued, 0, Seen::Write(first)), Ok(()));
    history.read_ends(issued);
    write(&mut history, 0, 1);
    assert!(history.check_read(issued, 0, Seen::Write(first)).is_err(), "no read is in flight");
}

#[test]
fn read_in_flight_during_shrink_and_growth_may_show_old_data() {
    let mut history = History::new("v0", 16, 1 << 20);
    let ticket = history.issue(Change::Write, 8, 8, u64::MAX);
    history.complete(ticket, true);
    let before = history.read_begins();
    history.resize(8);
    history.resize(16);
    let after = history.read_begins();
    let old = Seen::Write(ticket.number);
    assert_eq!(history.check_read(before, 8, old), Ok(()));
    assert!(history.check_read(after, 8, old).is_err(), "sectors that were cut off are zeros");
    assert_eq!(history.check_read(after, 8, Seen::Zeros), Ok(()));
}

proptest! {
    // A few serial or overlapping changes, and any sectors found.
    #[test]
    fn prefix_search_agrees_with_brute_force(
        script in prop::collection::vec(
            (0u64..3, 1u64..3, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
            1..6,
        ),
        found in prop::collection::vec(0u32..6, 3),
    ) {
        // Three blocks; all sectors of a block hold the same.
        let mut history = History::new("v", 3 * BLOCK_SECTORS, 1 << 20);
        let mut ops: Vec<Timed> = Vec::new();
        let mut open: Vec<(usize, Ticket)> = Vec::new();
        let mut clock = 0;
        for (first, count, wait, durable, end, zeroes) in script {
            let count = count.min(3 - first);
            // Two zeroings in flight never overlap.
            let clashes = |op: &Timed| op.5 && first < op.0 + op.1 && op.0 < first + count;
            if wait || zeroes && open.iter().any(|(index, _)| clashes(&ops[*index])) {
                for (index, ticket) in open.drain(..) {
                    clock += 1;
                    ops[index].3 = clock;
                    history.complete(ticket, false);
                }
            }
            clock += 1;
            ops.push((first, count, clock, usize::MAX, false, zeroes));
            let change = if zeroes { Change::Zero } else { Change::Write };
            let (first, count) = (first * BLOCK_SECTORS, count * BLOCK_SECTORS);
            let ticket = history.issue(change, first, count, u64::MAX);
            if end {
                clock += 1;
                let last = ops.len() - 1;
                ops[last].3 = clock;
                ops[last].4 = durable;
                history.complete(ticket, durable);
            } else {
                open.push((ops.len() - 1, ticket));
            }
        }
        let found: Vec<u32> = found.iter().map(|n| (*n).min(ops.len() as u32)).collect();
        let mut possible = false;
        permute(&mut Vec::new(), &ops, &mut |order: &[usize]| {
            let mut sectors = [0u32; 3];
            for index in order {
                for sector in ops[*index].0..ops[*index].0 + ops[*index].1 {
                    sectors[sector as usize] = if ops[*index].5 { 0 } else { *index as u32 + 1 };
                }
            }
            let durable = ops.iter().enumerate().all(|(i, op)| !op.4 || order.contains(&i));
            possible |= durable && sectors[..] == found[..];
        });
        let whole: Vec<u32> = found.iter().flat_map(|n| [*n; BLOCK_SECTORS as usize]).collect();
        let judged = history.check_crash(&seen(&whole));
        prop_assert_eq!(judged.is_ok(), possible, "{:?} of {:?}: {:?}", found, ops, judged);
    }
}

/// First block, count, issue time, completion time, is durable, is a zeroing.
type Timed = (u64, u64, usize, usize, bool, bool);

/// Visits every order of every set of changes that contains, with each change, all that completed
/// before its issue.
fn permute(order: &mut Vec<usize>, ops: &[Timed], visit: &mut dyn FnMut(&[usize])) {
    visit(order);
    for next in 0..ops.len() {
        let ready = !order.contains(&next)
            && (0..ops.len()).all(|other| ops[other].3 >= ops[next].2 || order.contains(&other));
        if ready {
            order.push(next);
            permute(order, ops, visit);
            order.pop();
        }
    }
}

#[test]
fn snapshot_holds_what_was_answered_before_it_and_nothing_after() {
    let mut history = History::new("v", 4, 100);
    let a = write(&mut history, 0, 1);
    let asked = history.now();
    let b = write(&mut history, 1, 1);
    let c = write(&mut history, 2, 1);
    let snapshot = history.frozen("v@s", asked);
    let d = write(&mut history, 3, 1);
    for fine in [[a, 0, 0, 0], [a, b, 0, 0], [a, b, c, 0]] {
        assert_eq!(snapshot.clone().check_crash(&seen(&fine)), Ok(()));
    }
    for wrong in [[0, 0, 0, 0], [0, b, 0, 0], [a, 0, c, 0], [a, b, c, d]] {
        assert!(snapshot.clone().check_crash(&seen(&wrong)).is_err(), "{wrong:?}");
    }
    let mut known = snapshot;
    known.check_crash(&seen(&[a, b, 0, 0])).unwrap();
    assert!(known.is_known());
    assert!(known.clone().check_crash(&seen(&[a, b, c, 0])).is_err(), "it has changed since");
    // The volume goes back, and on from there. A read from before may see either.
    let read = history.read_begins();
    let mut back = history.rolled_back(&known, &history.answered());
    assert_eq!(back.check_read(read, 2, Seen::Write(c)), Ok(()));
    let later = back.read_begins();
    assert!(back.check_read(later, 2, Seen::Write(c)).is_err());
    let e = write(&mut back, 3, 1);
    assert!(e > d, "numbers are used once");
    back.check_crash(&seen(&[a, b, 0, e])).unwrap();
}

#[test]
fn rollback_beside_changes_keeps_or_undoes_those_in_flight() {
    let mut history = History::new("v", 4, 100);
    let a = write(&mut history, 0, 1);
    let asked = history.now();
    let mut snapshot = history.frozen("v@s", asked);
    snapshot.check_crash(&seen(&[a, 0, 0, 0])).unwrap();
    let b = write(&mut history, 1, 1);
    let before = history.issue(Change::Write, 2, 1, u64::MAX);
    let answered = history.answered();
    let during = history.issue(Change::Write, 3, 1, u64::MAX);
    history.complete(during, true);
    let mut back = history.rolled_back(&snapshot, &answered);
    // Its answer comes after that of the rollback, which may have undone it.
    back.complete(before, true);
    let (c, d) = (before.number, during.number);
    for fine in [[a, 0, 0, 0], [a, 0, c, 0], [a, 0, 0, d], [a, 0, c, d]] {
        assert_eq!(back.clone().check_crash(&seen(&fine)), Ok(()), "{fine:?}");
    }
    for wrong in [[a, b, 0, 0], [0, 0, c, d]] {
        assert!(back.clone().check_crash(&seen(&wrong)).is_err(), "{wrong:?}");
    }
    let read = back.read_begins();
    assert_eq!(back.check_read(read, 2, Seen::Write(c)), Ok(()));
    assert!(back.check_read(read, 1, Seen::Write(b)).is_err());
    let later = back.issue(Change::Write, 0, 1, u64::MAX);
    back.complete(later, true);
    assert!(back.clone().check_crash(&seen(&[a, 0, 0, 0])).is_err(), "durable after the rollback");
    assert_eq!(back.check_crash(&seen(&[later.number, 0, c, 0])), Ok(()));
}

#[test]
fn clone_shows_what_its_origin_had() {
    let mut history = History::new("v", 2, 100);
    let a = write(&mut history, 0, 1);
    let asked = history.now();
    let mut snapshot = history.frozen("v@s", asked);
    let b = write(&mut history, 1, 1);
    snapshot.check_crash(&seen(&[a, 0])).unwrap();
    let clone = snapshot.cloned("c", 7);
    let of_origin = |number| Some(Seen::Elsewhere { volume: 7, sector: 0, number });
    assert_eq!(clone.clone().check_crash(&[of_origin(a), Some(Seen::Zeros)]), Ok(()));
    let newer = Some(Seen::Elsewhere { volume: 7, sector: 1, number: b });
    assert!(clone.clone().check_crash(&[of_origin(a), newer]).is_err(), "from after the snapshot");
    let other = Some(Seen::Elsewhere { volume: 8, sector: 0, number: a });
    assert!(clone.clone().check_crash(&[other, Some(Seen::Zeros)]).is_err());
    let mut changed = clone;
    let c = write(&mut changed, 0, 1);
    assert!(c > a);
    let now = changed.read_begins();
    assert!(changed.check_read(now, 0, of_origin(a).unwrap()).is_err(), "it was overwritten");
    changed.check_crash(&seen(&[c, 0])).unwrap();
}

#[test]
fn snapshots_of_one_instant_fit_together() {
    let mut one = History::new("one", 1, 100);
    let mut two = History::new("two", 1, 100);
    two.set_clock(one.clock.clone());
    let asked = one.now();
    let a = write(&mut one, 0, 1);
    let b = write(&mut two, 0, 1);
    let together = |of_one: u32, of_two: u32| {
        let (mut first, mut second) = (one.frozen("one@s", asked), two.frozen("two@s", asked));
        let (in_first, in_second) = (seen(&[of_one]), seen(&[of_two]));
        History::check_together(&mut [(&mut first, &in_first), (&mut second, &in_second)])
    };
    for (of_one, of_two) in [(0, 0), (a, 0), (a, b)] {
        assert_eq!(together(of_one, of_two), Ok(()));
    }
    assert!(together(0, b).is_err(), "the second write without the first");
}
