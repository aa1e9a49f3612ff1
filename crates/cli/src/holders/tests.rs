#![allow(clippy::disallowed_methods, reason = "a test makes the kernel's files itself")]

use super::*;

#[test]
fn lines_of_the_kernel_are_understood() {
    let flock = |line| lock_of(line, &["FLOCK"]);
    let held = "41: FLOCK  ADVISORY  WRITE 708 fe:01:131099 0 EOF";
    assert_eq!(flock(held), Some(((0xfe, 1, 131_099), 708)));
    // A waiting lock, a lock of a range, and nonsense.
    assert_eq!(flock("41: -> FLOCK  ADVISORY  WRITE 709 fe:01:131099 0 EOF"), None);
    let range = "2: OFDLCK ADVISORY  READ -1 00:10:22 128 128";
    assert_eq!(flock(range), None);
    assert_eq!(lock_of(range, &["POSIX", "OFDLCK"]), Some(((0, 0x10, 22), 0)), "of no process");
    assert_eq!(flock("FLOCK"), None);
    assert_eq!(flock(""), None);
}

#[test]
fn file_of_a_loop_device_is_found_by_any_name() {
    let folder = std::env::temp_dir().join(format!("forebay-loops-{}", std::process::id()));
    let sys = folder.join("sys");
    std::fs::create_dir_all(sys.join("loop7/loop")).unwrap();
    std::fs::create_dir_all(sys.join("sda")).unwrap();
    let disk = folder.join("disk.img");
    std::fs::write(&disk, "disk").unwrap();
    std::fs::hard_link(&disk, folder.join("other name")).unwrap();
    let said = format!("{}\n", disk.display());
    std::fs::write(sys.join("loop7/loop/backing_file"), said).unwrap();
    let number = |name: &str| {
        let meta = folder.join(name).metadata().unwrap();
        (meta.dev(), meta.ino())
    };
    let found = loop_device_of(&sys, number("other name"));
    assert_eq!(found.as_deref(), Some("/dev/loop7 is attached to it"));
    assert_eq!(loop_device_of(&sys, number("sys")), None);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn command_is_shown_without_its_folder() {
    let shown = command_of(std::process::id());
    assert!(!shown.is_empty() && !shown.starts_with('/'), "{shown}");
    assert_eq!(command_of(u32::MAX), "", "no such process");
}
