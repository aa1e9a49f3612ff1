use forebay_rt::Runtime;

use super::*;

const STATUS: &str = "Name:\tforebay\nVmSize:\t 1143412 kB\nRssAnon:\t   16000 kB\nVmData:\t \
                      1055464 kB\n";
const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max data size             unlimited            unlimited            bytes\n\
                      Max address space         2147483648           unlimited            bytes\n";

#[test]
fn limits_leave_what_is_not_in_use() {
    let process = Process::of(STATUS);
    // The allocator's reserve of a gigabyte is there to be used.
    let used = (1_143_412 - 1_055_464 + 16_000) * 1024;
    assert_eq!(process.left_of(LIMITS), [(2 << 30) - used]);
    let data = LIMITS.replace("unlimited            unlimited", "104857600  unlimited");
    assert_eq!(process.left_of(&data)[0], 104_857_600 - 16_000 * 1024);
    let small = data.replace("104857600", "4096");
    assert_eq!(process.left_of(&small)[0], 0, "more in use than the limit");
    assert!(process.left_of("").is_empty());
}

#[test]
fn each_control_group_up_to_the_root_counts() {
    let folders = |list: &str| -> Vec<String> {
        groups_of(list).iter().map(|group| group.folder.display().to_string()).collect()
    };
    let new = "0::/system.slice/forebay.service\n";
    let expected = ["system.slice/forebay.service", "system.slice", ""];
    let expected: Vec<String> = expected.iter().map(|at| format!("/sys/fs/cgroup/{at}")).collect();
    assert_eq!(folders(new), expected);
    let old = "5:cpu,cpuacct:/x\n4:memory:/a\n1:name=systemd:/y\n";
    assert_eq!(folders(old), ["/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory/"]);
    assert!(folders("nonsense\n").is_empty());
}

#[test]
fn control_group_leaves_what_cannot_be_reclaimed() {
    let group = |limit: &'static str| {
        let read = move |path: &Path| match path.file_name().and_then(|name| name.to_str()) {
            Some("memory.max") => limit.to_owned(),
            Some("memory.stat") => "anon 300\nfile 5000\nanon_thp 7\n".to_owned(),
            other => panic!("{other:?} is not a file of the group"),
        };
        groups_of("0::/\n")[0].left_bytes(&read)
    };
    assert_eq!(group("1000\n"), Some(700));
    assert_eq!(group("200\n"), Some(0));
    assert_eq!(group("max\n"), None);
    assert_eq!(group(""), None);
}

#[test]
fn this_machine_has_memory() {
    let free = free_memory_bytes().expect("Linux says what is available");
    assert!(free > 1 << 20, "{free} bytes");
}

#[test]
fn memory_is_counted_on_another_thread() {
    let memory = Runtime::real().unwrap().block_on(async { count().await });
    assert_eq!(memory.all_bytes, memory_bytes());
    assert!(memory.free_bytes.expect("as above") > 1 << 20);
}
