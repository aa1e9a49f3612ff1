use std::io::Write;

use super::recording;

#[test]
fn a_recording_without_a_byte_leaves_no_file() {
    let folder = std::env::temp_dir().join(format!("forebay-recording-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("t.fbt");
    drop(recording(&path, false).unwrap());
    assert!(!path.exists());
    recording(&path, false).unwrap().write_all(b"an event").unwrap();
    assert_eq!(path.metadata().unwrap().len(), 8, "what was written stays");
    assert!(recording(&path, false).is_err());
    drop(recording(&path, true).unwrap());
    assert!(!path.exists());
    drop(recording("/dev/null".as_ref(), true).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
}
