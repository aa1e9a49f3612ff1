use super::parse;
use crate::event::{Flags, Op};

#[test]
fn letters_of_blkparse_and_biosnoop_are_understood() {
    let sync = Flags::SYNC;
    let cases: [(&[u8], bool, Op, Flags); 9] = [
        (b"R", true, Op::Read, Flags(0)),
        (b"WS", true, Op::Write, sync),
        (b"RAM", true, Op::Read, Flags::AHEAD.with(Flags::META)),
        (b"DS", true, Op::Discard, sync),
        (b"FW", false, Op::Flush, Flags::PREFLUSH),
        (b"FN", false, Op::Flush, Flags::PREFLUSH),
        (b"FF", false, Op::Flush, Flags::PREFLUSH),
        (b"FWFS", true, Op::Write, Flags::PREFLUSH.with(Flags::FUA).with(sync)),
        (b"N", false, Op::Other, Flags(0)),
    ];
    for (word, has_data, op, flags) in cases {
        assert_eq!(parse(word, has_data), Some((op, flags)), "{}", word.escape_ascii());
    }
}

#[test]
fn other_words_are_refused() {
    for word in [&b""[..], b"x", b"w", b"W-", b"12", b"QQ"] {
        assert_eq!(parse(word, true), None, "{}", word.escape_ascii());
    }
}
