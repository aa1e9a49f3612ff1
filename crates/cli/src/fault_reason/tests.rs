use forebay_pool::status::IoCounts;
use forebay_rt::Runtime;

use super::*;
use crate::devices::FileOpener;

fn device(path: &str, state: Health) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: "device".to_owned(),
        state,
        read_errors: 0,
        write_errors: 0,
        checksum_errors: 0,
        note: String::new(),
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
    assert_eq!(note(device(path, Health::Unavail)), "missing");
    let mut options = std::fs::OpenOptions::new();
    let file = options.create_new(true).write(true).open(path).unwrap();
    file.set_len(64 << 20).unwrap();
    assert_eq!(note(device(path, Health::Unavail)), "no label of a pool");
    let erred = VdevStatus { write_errors: 3, ..device(path, Health::Faulted) };
    assert_eq!(note(erred), "too many errors");
    assert_eq!(note(device(path, Health::Online)), "");
    assert_eq!(note(device(path, Health::Offline)), "");
    file.lock().unwrap();
    assert_eq!(note(device(path, Health::Unavail)), "in use");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn note_of_the_pool_stays_and_children_are_explained() {
    let told = VdevStatus { note: "resilvering".into(), ..device("/none/a", Health::Unavail) };
    let children = vec![told, device("/none/b", Health::Unavail)];
    let group = VdevStatus { children, ..device("mirror-0", Health::Unavail) };
    let group = explained(group);
    let notes: Vec<&str> = group.children.iter().map(|child| child.note.as_str()).collect();
    assert_eq!((group.note.as_str(), &notes[..]), ("", &["resilvering", "missing"][..]));
}
