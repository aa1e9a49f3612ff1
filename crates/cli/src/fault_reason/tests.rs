use forebay_pool::status::{IoCounts, Protection, VdevKind};
use forebay_rt::Runtime;

use super::*;
use crate::devices::FileOpener;

fn device(path: &str, state: Health) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: VdevKind::Device,
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: None,
        protection: None,
        memory: None,
        objects: None,
        size_bytes: 1 << 26,
        space: None,
        io: IoCounts::default(),
        children: Vec::new(),
    }
}

fn explained(mut vdev: VdevStatus) -> VdevStatus {
    Runtime::real().unwrap().block_on(async move {
        let opener: Rc<dyn Opener> = Rc::new(FileOpener);
        explain_faults(&opener, 1, &mut vdev).await;
        vdev
    })
}

#[test]
fn failed_device_gets_its_reason() {
    let path = std::env::temp_dir().join(format!("forebay-reason-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let note = |vdev| explained(vdev).note;
    assert_eq!(note(device(path, Health::Unavail)), Some(VdevNote::Missing));
    let mut options = std::fs::OpenOptions::new();
    let file = options.create_new(true).write(true).open(path).unwrap();
    file.set_len(64 << 20).unwrap();
    assert_eq!(note(device(path, Health::Unavail)), Some(VdevNote::NoLabel));
    let erred = VdevStatus { write_errors: 3, ..device(path, Health::Faulted) };
    assert_eq!(note(erred), Some(VdevNote::TooManyErrors));
    assert_eq!(note(device(path, Health::Online)), None);
    assert_eq!(note(device(path, Health::Offline)), None);
    file.lock().unwrap();
    assert_eq!(note(device(path, Health::Unavail)), Some(VdevNote::InUse));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn note_of_the_pool_stays_and_children_are_explained() {
    let told =
        VdevStatus { note: Some(VdevNote::Resilvering), ..device("/none/a", Health::Unavail) };
    let children = vec![told, device("/none/b", Health::Unavail)];
    let group = VdevStatus { children, ..device("mirror-0", Health::Unavail) };
    let group = explained(group);
    let notes = group.children.into_iter().map(|child| child.note);
    let expected = [Some(VdevNote::Resilvering), Some(VdevNote::Missing)];
    assert_eq!((group.note, notes.collect::<Vec<_>>()), (None, expected.to_vec()));
}

// A side of a log that missed something is open, and its lock keeps others out.
#[test]
fn failed_device_that_pool_has_open_failed_earlier() {
    let path = std::env::temp_dir().join(format!("forebay-held-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let mut options = std::fs::OpenOptions::new();
    let file = options.create_new(true).write(true).open(path).unwrap();
    file.set_len(64 << 20).unwrap();
    file.lock().unwrap();
    let held =
        VdevStatus { protection: Some(Protection::Heartbeat), ..device(path, Health::Faulted) };
    assert_eq!(explained(held).note, Some(VdevNote::FailedEarlier));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn device_elsewhere_that_cannot_be_opened_says_why() {
    let folder = std::env::temp_dir().join(format!("forebay-reason-store-{}", std::process::id()));
    let name = format!("file://{}?size=64M", folder.display());
    let note = |name: &str| explained(device(name, Health::Unavail)).note;
    assert!(matches!(note(&name), Some(VdevNote::NotOpened { .. })), "{:?}", note(&name));
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(note(&name), Some(VdevNote::NoLabel));
    std::fs::remove_dir_all(&folder).unwrap();
    // The port for discarded bytes, where nothing listens.
    let refused = note("nbd://127.0.0.1:9/log0");
    assert!(matches!(refused, Some(VdevNote::NotOpened { .. })), "{refused:?}");
}
