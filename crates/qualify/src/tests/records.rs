//! The result log: whole lines, and nothing behind a damaged one.

use proptest::prelude::*;

use super::*;

fn log() -> (Vec<u8>, Qualification) {
    let mut run = qualify(fakes::HONEST, Purpose::Wal, 3);
    run.resumed_s = vec![17];
    let (conditions, plan) = (Box::new(run.conditions.clone()), Box::new(run.plan.clone()));
    let mut records = vec![Record::Begin { conditions, plan }, Record::Resumed { at_s: 17 }];
    records.extend(run.outcomes.iter().cloned().map(|o| Record::Step(Box::new(o))));
    let verdict = run.judge();
    run.verdict = Some(verdict.clone());
    records.push(Record::End(Box::new(verdict)));
    run.records = records.len();
    let lines = records.iter().enumerate().map(|(number, record)| encode(number, record));
    (lines.collect::<String>().into_bytes(), run)
}

#[test]
fn log_is_read_back_whole() {
    let (bytes, run) = log();
    assert_eq!(read_log(&bytes), Ok((run, None)));
}

#[test]
fn cut_log_gives_the_lines_before_the_cut() {
    let (bytes, run) = log();
    let ends: Vec<usize> =
        (0..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1).collect();
    for cut in [ends[0], ends[3] + 1, ends[5] - 1, bytes.len() - 1] {
        let (read, damage) = read_log(&bytes[..cut]).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(read.records, whole);
        assert_eq!(read.outcomes[..], run.outcomes[..whole.saturating_sub(2)]);
        let good_bytes = ends[whole - 1];
        let line = LogDamage::Line { number: whole + 1, good_bytes };
        assert_eq!(damage, (cut != good_bytes).then_some(line));
    }
    assert_eq!(read_log(&bytes[..10]), Err(LogDamage::NotALog));
    assert_eq!(read_log(b""), Err(LogDamage::NotALog));
    assert_eq!(read_log(b"forebay-qualify/9 0 00000000 {}\n"), Err(LogDamage::Version));
}

#[test]
fn line_that_is_missing_in_the_middle_is_noticed() {
    let (bytes, _) = log();
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    lines.remove(4);
    let (read, damage) = read_log(&lines.concat()).unwrap();
    assert_eq!(read.records, 4);
    assert!(matches!(damage, Some(LogDamage::Line { number: 5, .. })));
}

#[test]
fn checksum_or_number_in_another_spelling_is_damage() {
    let (bytes, _) = log();
    let text = String::from_utf8(bytes).unwrap();
    let words: Vec<&str> = text.splitn(4, ' ').collect();
    let [mark, number, sum, rest] = words[..] else { panic!("{text}") };
    for (number, sum) in [(number, sum.to_uppercase()), ("00", sum.to_owned())] {
        // A checksum without a letter would be the same one.
        assert_ne!((number, sum.as_str()), ("0", words[2]));
        let changed = format!("{mark} {number} {sum} {rest}");
        assert_eq!(read_log(changed.as_bytes()), Err(LogDamage::NotALog));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn flipped_bit_is_noticed(at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let (mut bytes, run) = LOG.with(Clone::clone);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        match read_log(&bytes) {
            Ok((read, damage)) => {
                prop_assert!(damage.is_some());
                prop_assert_eq!(&read.outcomes[..], &run.outcomes[..read.outcomes.len()]);
            }
            Err(_) => prop_assert!(at < bytes.iter().position(|b| *b == b'\n').unwrap() + 1
                || bytes[..=at].iter().all(|b| *b != b'\n')),
        }
    }
}

thread_local! {
    static LOG: (Vec<u8>, Qualification) = log();
}

/// An interrupted run used to count as complete when the device could not do its last step.
#[test]
fn step_that_the_device_cannot_do_does_not_end_a_run() {
    let mut run = qualify(fakes::HONEST, Purpose::Forebay, 1);
    assert!(run.is_over(), "every step is done");
    run.outcomes.truncate(3);
    assert!(!run.is_over());
    let failed = |is_unsupported| Ended::Failed { error: "no".to_owned(), is_unsupported };
    run.outcomes[2].measured.ended = failed(true);
    assert!(!run.is_over());
    run.outcomes[2].measured.ended = failed(false);
    assert!(run.is_over(), "the device failed");
}
