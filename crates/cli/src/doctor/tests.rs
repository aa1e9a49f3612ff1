use super::*;

/// A folder with the kernel's files that a test wants.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("fb-doctor-{name}-{}", std::process::id()));
        let machine = Self(root);
        for (file, text) in files {
            machine.put(file, text);
        }
        machine
    }

    fn put(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::io::Write::write_all(&mut files::create_public(path).unwrap(), text.as_bytes())
            .unwrap();
    }

    fn disk(&self, number: &str, cache: &str, fua: &str, rotational: &str, scheduler: &str) {
        let queue = |name: &str| format!("sys/dev/block/{number}/queue/{name}");
        self.put(&queue("write_cache"), cache);
        self.put(&queue("fua"), fua);
        self.put(&queue("rotational"), rotational);
        self.put(&queue("scheduler"), scheduler);
    }

    fn kernel(&self) -> Kernel {
        Kernel::below(&self.0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const LIMITS: ProcessLimits = ProcessLimits { files: 65536, locked_bytes: 8 << 20 };

fn graded(findings: &[Finding], grade: Grade) -> Vec<String> {
    let with = findings.iter().filter(|finding| finding.grade == grade);
    with.map(|finding| format!("{}: {}", finding.subject, finding.found)).collect()
}

#[test]
fn machine_as_it_should_be_has_no_advice() {
    let machine = Machine::new(
        "good",
        &[
            ("proc/sys/kernel/osrelease", "6.12.1-amd64\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ],
    );
    let findings = of_machine(&machine.kernel(), LIMITS);
    assert!(findings.iter().all(|finding| finding.grade == Grade::Ok), "{findings:?}");
    assert_eq!(findings.len(), 6);
}

#[test]
fn what_keeps_pools_from_working_is_a_failure() {
    let machine = Machine::new(
        "bad",
        &[
            ("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("proc/sys/vm/swappiness", "60\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            ("sys/devices/system/clocksource/clocksource0/available_clocksource", "hpet tsc\n"),
        ],
    );
    let limits = ProcessLimits { files: 256, locked_bytes: 65536 };
    let findings = of_machine(&machine.kernel(), limits);
    let failures = graded(&findings, Grade::Failure);
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert_eq!(graded(&findings, Grade::Warning), ["open files: 256"]);
    let fixes: Vec<String> = findings.iter().filter_map(|finding| finding.fix.clone()).collect();
    assert!(fixes.iter().any(|fix| fix == "sysctl -w kernel.io_uring_disabled=0"), "{fixes:?}");
    assert!(fixes.iter().any(|fix| fix.starts_with("echo tsc > /sys/devices")), "{fixes:?}");
    assert!(findings.iter().all(|f| f.grade == Grade::Ok || !f.why.is_empty()));
    // Kernels of the future are not older.
    machine.put("proc/sys/kernel/osrelease", "10.1\n");
    assert_eq!(version(&machine.kernel()).grade, Grade::Ok);
}

fn examined(path: &str, purpose: Purpose, minor: u32) -> Examined {
    let (pool, size_bytes) = (Some("tank".to_owned()), Some(4 << 30));
    Examined { path: path.to_owned(), purpose, pool, size_bytes, number: Some((8, minor)) }
}

#[test]
fn devices_are_judged_by_their_purpose() {
    let machine = Machine::new("disks", &[("sys/class/net/eth0/speed", "10000\n")]);
    machine.disk("8:0", "write back", "0", "0", "[none] mq-deadline");
    machine.disk("8:16", "write back", "0", "1", "none [mq-deadline]");
    machine.disk("8:32", "write through", "0", "0", "none [mq-deadline]");
    machine.disk("8:48", "write back", "1", "0", "[none]");
    let of = |devices: &[Examined]| of_devices(&machine.kernel(), devices);
    // A volatile cache without FUA is bad for a log, and no matter for the main store.
    let log = of(&[examined("/dev/a", Purpose::Log, 0)]);
    let text = graded(&log, Grade::Warning);
    assert!(text.len() == 1 && text[0].contains("volatile write cache"), "{text:?}");
    // Five seconds of 10 Gb/s are 5.8 GiB.
    let text = graded(&log, Grade::Advice);
    assert!(text.len() == 1 && text[0].contains("5 s of writes"), "{text:?}");
    assert!(of(&[examined("/dev/a", Purpose::Data, 0)]).iter().all(|f| f.grade == Grade::Ok));
    assert!(of(&[examined("/dev/b", Purpose::Data, 16)]).iter().all(|f| f.grade == Grade::Ok));
    // Rotating disks are no log, and no cache.
    let any = graded(&of(&[examined("/dev/b", Purpose::Any, 16)]), Grade::Warning);
    assert_eq!(any.len(), 2, "{any:?}");
    let cache = graded(&of(&[examined("/dev/b", Purpose::Cache, 16)]), Grade::Warning);
    assert_eq!(cache, ["cache /dev/b: 8:16 is a rotating disk"]);
    let scheduler = of(&[examined("/dev/c", Purpose::Data, 32)]);
    assert_eq!(scheduler[0].fix.as_deref(), Some("echo none > /sys/block/8:32/queue/scheduler"));
    // One with FUA is a log device.
    let mut good = examined("/dev/d", Purpose::Log, 48);
    good.size_bytes = Some(16 << 30);
    assert!(of(&[good]).iter().all(|f| f.grade == Grade::Ok));
}

#[test]
fn log_on_a_disk_of_its_main_store_is_told() {
    let machine = Machine::new("shared", &[]);
    machine.disk("8:0", "write through", "0", "0", "[none]");
    machine.put("sys/dev/block/8:0/8:1/partition", "1\n");
    std::os::unix::fs::symlink("8:0/8:1", machine.0.join("sys/dev/block/8:1")).unwrap();
    let mut other = examined("/dev/a", Purpose::Data, 0);
    let log = examined("/dev/a1", Purpose::Log, 1);
    let text =
        graded(&of_devices(&machine.kernel(), &[other.clone(), log.clone()]), Grade::Warning);
    assert_eq!(text, ["log /dev/a1: 8:0 holds /dev/a too"]);
    other.pool = Some("other".to_owned());
    assert_eq!(graded(&of_devices(&machine.kernel(), &[other, log]), Grade::Warning).len(), 0);
}

#[test]
fn device_that_is_gone_is_told() {
    let machine = Machine::new("gone", &[]);
    let gone = Examined::at("/nonexistent/disk", Purpose::Data, Some("tank"), None);
    let text = graded(&of_devices(&machine.kernel(), &[gone]), Grade::Warning);
    assert_eq!(text, ["data /nonexistent/disk: it is not there"]);
}
