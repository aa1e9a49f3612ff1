use super::*;

#[test]
fn only_known_drivers_are_submitted_to_directly() {
    for name in
        ["nvme0n1p2", "nvme0c0n1", "sda", "sdaa12", "vdb1", "dm-3", "loop7", "md127", "ram0"]
    {
        assert!(is_direct(name), "{name}");
    }
    for name in ["nbd0", "rbd0", "drbd1", "sd", "sda1x", "nvme", "sr0", "fd0", ""] {
        assert!(!is_direct(name), "{name}");
    }
}

#[test]
fn files_of_local_file_systems_are_submitted_to_directly_and_others_aside() {
    let shared_memory = File::open("/dev/shm").expect("every Linux has shared memory");
    assert!(!may_block(&shared_memory).unwrap(), "tmpfs");
    assert!(may_block(&File::open("/proc/version").unwrap()).unwrap(), "proc is not known");
}
