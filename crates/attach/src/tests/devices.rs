#![allow(clippy::disallowed_methods, reason = "a test lays out files with std::fs")]

use std::path::PathBuf;

use crate::{Attached, Driver, Identity, System, Use, Volume};

/// A machine whose `/sys`, `/proc` and `/dev` are a folder, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-at-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let machine = Self(path);
        machine.file("sys/module/nbd/initstate", "live\n");
        machine.file("sys/block/vda/size", "1000\n");
        machine.file("sys/block/nbd0/size", "0\n");
        machine.file("sys/block/nbd1/size", "2048\n");
        machine.file("sys/block/nbd1/ro", "0\n");
        machine.file("sys/block/nbd1/dev", "43:32\n");
        machine.file("sys/block/nbd1/pid", "77\n");
        machine.file("sys/block/nbd1/backend", "forebay:00000000000000ff:3:4:tank/vol0\n");
        machine.file("sys/block/nbd1/nbd1p2/dev", "43:34\n");
        machine.file("sys/block/nbd2/size", "8\n");
        machine.file("sys/block/nbd2/backend", "another program\n");
        machine
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn system(&self) -> System {
        System { sys: self.0.join("sys"), proc: self.0.join("proc"), dev: "/dev".into() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn attached() -> Attached {
    let volume = Volume { pool_guid: 0xff, volume_id: 3 };
    let identity = Identity { volume, connections: 4, name: "tank/vol0".to_owned() };
    let path = "/dev/nbd1".into();
    let driver = Driver::Nbd;
    Attached { path, driver, index: 1, identity, size_bytes: 1 << 20, read_only: false }
}

#[test]
fn devices_of_forebay_are_found_and_no_others() {
    let machine = Machine::new("found");
    assert_eq!(machine.system().attached().unwrap(), [attached()]);
    assert!(machine.system().is_attached(1) && !machine.system().is_attached(0));
    std::fs::remove_dir_all(machine.0.join("sys/module/nbd")).unwrap();
    assert!(!machine.system().has_client());
    assert_eq!(machine.system().attached().unwrap(), []);
}

#[test]
fn uses_of_a_device_and_of_its_partitions_are_found() {
    let machine = Machine::new("uses");
    let system = machine.system();
    let used = || system.use_of(&attached());
    machine.file("proc/self/mountinfo", "21 1 254:0 / / rw - ext4 /dev/vda rw\n");
    machine.file("proc/swaps", "Filename Type Size Used Priority\n/dev/vdb partition 8 0 -2\n");
    machine.file("proc/7/comm", "fio\n");
    machine.file("proc/7/fd/keep", "");
    assert_eq!(used(), None);
    std::os::unix::fs::symlink("/dev/nbd1p2", machine.0.join("proc/7/fd/3")).unwrap();
    assert_eq!(used(), Some(Use::Open { pid: 7, program: "fio".to_owned() }));
    machine.file("sys/block/nbd1/holders/dm-0", "");
    assert_eq!(used(), Some(Use::Device { name: "dm-0".to_owned() }));
    machine.file("proc/swaps", "Filename Type Size Used Priority\n/dev/nbd1 partition 8 0 -2\n");
    assert_eq!(used(), Some(Use::Swap));
    // By the number of a partition, and by the source of a file system with a number of its own.
    let mounts = "30 1 43:34 / /srv/a\\040b rw shared:1 - ext4 /dev/root rw\n";
    machine.file("proc/self/mountinfo", mounts);
    assert_eq!(used(), Some(Use::Mounted { at: "/srv/a b".to_owned() }));
    machine.file("proc/self/mountinfo", "31 1 0:44 / /pool rw - btrfs /dev/nbd1 rw\n");
    assert_eq!(used(), Some(Use::Mounted { at: "/pool".to_owned() }));
}

#[test]
fn identity_survives_its_text_and_other_texts_are_none() {
    let identity = attached().identity;
    assert_eq!(identity.encode(), "forebay:00000000000000ff:3:4:tank/vol0");
    assert_eq!(Identity::decode(&format!("{}\n", identity.encode())), Some(identity));
    let name = Identity::decode("forebay:1:2:3:a/b:c").unwrap().name;
    assert_eq!(name, "a/b:c", "a name may have colons");
    for other in ["", "forebay", "forebay:1:2:3", "forebay:x:2:3:a/b", "forebay:1:2:3:ab", "qemu"] {
        assert_eq!(Identity::decode(other), None, "{other}");
    }
}
