use super::*;

#[test]
fn stream_is_the_journal_when_device_and_inode_match() {
    let stream = Some((8, 42));
    assert!(is_journal(Some("8:42"), stream));
    for other in [None, Some(""), Some("8"), Some("8:43"), Some("x:42"), Some("8:42:1")] {
        assert!(!is_journal(other, stream), "{other:?}");
    }
    assert!(!is_journal(Some("8:42"), None));
}

#[test]
fn style_decides_what_stands_before_a_message() {
    assert_eq!(Style::Journal.line(Level::Warning, "x"), "<4>x", "the journal adds the time");
    assert_eq!(Style::Command.line(Level::Warning, "x"), "forebay: warning: x");
    assert_eq!(Style::Command.line(Level::Error, "x"), "forebay: x");
    assert_eq!(Style::Plain.line(Level::Info, "x"), "x");
    let line = Style::Log.line(Level::Notice, "x");
    let (time, rest) = line.split_once(' ').unwrap();
    assert_eq!((time.len(), &time[10..11], rest), (24, "T", "notice: x"), "{line}");
}
