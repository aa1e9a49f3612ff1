use super::*;

#[test]
fn lines_of_the_kernel_are_understood() {
    let held = "41: FLOCK  ADVISORY  WRITE 708 fe:01:131099 0 EOF";
    assert_eq!(lock_of(held), Some(((0xfe, 1, 131_099), 708)));
    // A waiting lock, a lock of a range, and nonsense.
    assert_eq!(lock_of("41: -> FLOCK  ADVISORY  WRITE 709 fe:01:131099 0 EOF"), None);
    assert_eq!(lock_of("2: POSIX  ADVISORY  READ 1 00:10:22 128 128"), None);
    assert_eq!(lock_of("FLOCK"), None);
    assert_eq!(lock_of(""), None);
}

#[test]
fn command_is_shown_without_its_folder() {
    let shown = command_of(std::process::id());
    assert!(!shown.is_empty() && !shown.starts_with('/'), "{shown}");
    assert_eq!(command_of(u32::MAX), "", "no such process");
}
