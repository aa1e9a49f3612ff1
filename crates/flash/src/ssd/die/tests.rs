use super::*;
use proptest::prelude::*;

const NEVER: SuspendRule = SuspendRule { suspend: Suspend::None, cost_ns: 20 };
const ERASE: SuspendRule = SuspendRule { suspend: Suspend::Erase, cost_ns: 20 };

#[test]
fn read_waits_for_an_erase_in_progress_with_a_program_behind_it() {
    let mut die = Die::idle(0);
    die.append(Work::Erase, 0, 50_000);
    die.append(Work::Program, 0, 200);
    assert_eq!(die.read(10, 25, NEVER), 50_025);
    // The program has not started: it is done after the read.
    assert_eq!(die.free(), 50_225);
    // Later work of both kinds does not shorten the wait either.
    die.append(Work::Erase, 0, 50_000);
    assert_eq!(die.read(60, 25, NEVER), 50_050);
}

#[test]
fn read_suspends_what_the_rule_covers() {
    let mut die = Die::idle(0);
    die.append(Work::Erase, 0, 1000);
    assert_eq!(die.read(100, 25, ERASE), 145);
    // The second read finds the erase suspended and pays nothing for it.
    assert_eq!(die.read(110, 25, ERASE), 170);
    assert_eq!(die.free(), 170 + 900);
    die.append(Work::Program, 0, 200);
    assert_eq!(die.read(1100, 25, ERASE), 1295, "a program is not covered");
}

#[test]
fn suspend_that_costs_more_than_it_saves_is_not_made() {
    let mut die = Die::idle(0);
    die.append(Work::Erase, 0, 100);
    assert_eq!(die.read(90, 25, ERASE), 125);
}

#[test]
fn read_uses_a_gap_before_work_whose_data_is_late() {
    let mut die = Die::idle(0);
    die.append(Work::Program, 1000, 200);
    assert_eq!(die.read(10, 25, NEVER), 35);
    assert_eq!(die.free(), 1200);
}

proptest! {
    /// A die does one thing at a time and never more than there is time for.
    #[test]
    fn operations_do_not_overlap_and_busy_time_fits(
        steps in prop::collection::vec((0u64..400, 0usize..4, 1u64..500), 1..80),
        suspend in prop_oneof![
            Just(Suspend::None), Just(Suspend::Erase), Just(Suspend::ProgramAndErase)
        ],
    ) {
        let rule = SuspendRule { suspend, cost_ns: 20 };
        let (mut die, mut now) = (Die::idle(0), 0);
        for (wait, kind, len) in steps {
            now += wait;
            die.forget_before(now);
            match kind {
                0 => { die.append(Work::Program, now, len); }
                1 => { die.append(Work::Erase, now, len); }
                2 => { die.append(Work::CleanRead, now, len); }
                _ => {
                    let end = die.read(now, len, rule);
                    prop_assert!(end >= now + len);
                }
            }
            let pairs = die.operations.iter().zip(die.operations.iter().skip(1));
            prop_assert!(pairs.into_iter().all(|(a, b)| a.start <= a.end && a.end <= b.start));
            let busy = die.busy_until(now);
            prop_assert!(busy.read_ns + busy.program_ns + busy.erase_ns <= u128::from(now));
        }
        let all = die.busy_until(u64::MAX);
        let sum = die.busy.read_ns + die.busy.program_ns + die.busy.erase_ns;
        prop_assert_eq!(all.read_ns + all.program_ns + all.erase_ns, sum);
    }
}
