use super::*;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("forebay-output-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn old_file_stays_until_the_new_one_is_whole() {
    let folder = folder("replaced");
    let path = folder.join("page");
    let mut old = OutputFile::create(&path, false).unwrap();
    old.write_all(b"old").unwrap();
    old.finish().unwrap();
    let exists = OutputFile::create(&path, false).map(|_| ()).unwrap_err();
    assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
    std::os::unix::fs::symlink(&path, folder.join("link")).unwrap();
    for name in ["page", "link"] {
        let mut new = OutputFile::create(&folder.join(name), true).unwrap();
        new.write_all(b"half").unwrap();
        drop(new);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old", "{name}");
        assert_eq!(names(&folder), ["link", "page"], "nothing is left of it");
    }
    let mut new = OutputFile::create(&folder.join("link"), true).unwrap();
    new.write_all(b"new").unwrap();
    new.finish().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    assert!(folder.join("link").is_symlink(), "the link stays one");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn nothing_is_left_of_a_new_file_that_fails() {
    let folder = folder("new");
    drop(OutputFile::create(&folder.join("page"), true).unwrap());
    drop(OutputFile::create(&folder.join("page"), false).unwrap());
    assert_eq!(names(&folder), [""; 0]);
    assert!(OutputFile::create(&folder, true).is_err(), "a folder is no file");
    let mut sink = OutputFile::create(Path::new("/dev/null"), true).unwrap();
    sink.write_all(b"gone").unwrap();
    drop(sink);
    assert!(Path::new("/dev/null").exists(), "only what it made is removed");
    std::fs::remove_dir_all(folder).unwrap();
}
