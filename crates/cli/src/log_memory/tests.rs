use super::*;

fn read(word: &str) -> Result<Wanted, String> {
    parse(word).map_err(|failure| failure.message)
}

#[test]
fn words_say_size_backup_and_protection() {
    let wanted = read("dram:1G,backup=/dev/x,ups=rack1@nut:3494").unwrap();
    let name = "rack1@nut:3494".to_owned();
    assert_eq!(
        wanted,
        Wanted {
            size_bytes: 1 << 30,
            backup: Some("/dev/x".to_owned()),
            memory: None,
            protection: DramProtection::Ups { name },
        }
    );
    assert_eq!(read("dram:64M,protection=none").unwrap().protection, DramProtection::None);
    let mirrored = read("dram:64M,protection=mirror").unwrap();
    assert_eq!(mirrored.protection, DramProtection::Mirror);
    assert!(read("dram:64M,protection=mirror,backup=/dev/b").is_err());
    let persistent = read("dram:64M,protection=pmem,memory=/mnt/dax/log").unwrap();
    assert_eq!(persistent.protection, DramProtection::Persistent);
}

#[test]
fn nothing_is_unprotected_in_silence() {
    let refused = [
        ("dram:1G", "nothing protects it"),
        ("dram:1G,backup=/dev/x", "nothing protects it"),
        ("dram:1G,ups=rack1@nut", "name a backup="),
        ("dram:1G,ups=rack1@nut,protection=none", "contradict"),
        ("dram:1G,protection=maybe", "is no protection"),
        ("dram:1G,protection=pmem", "memory="),
        ("dram:1G,protection=pmem,backup=/dev/x,memory=/m", "needs no backup"),
        ("dram:1M,protection=none", "64M at least"),
        ("dram:,protection=none", "size"),
        ("dram:1G,backup", "name=value"),
        ("dram:1G,backup=", "needs one value"),
        ("dram:1G,ups=a@b,ups=c@d,backup=/dev/x", "needs one value"),
        ("dram:1G,speed=9", "unknown"),
        ("dram:1G,backup=/dev/x,ups=a b@c", "NAME@HOST"),
    ];
    for (word, part) in refused {
        let message = read(word).unwrap_err();
        assert!(message.contains(part), "{word}: {message}");
    }
}

#[test]
fn memory_is_a_log_device_only() {
    let words = ["mirror", "a", "dram:1G,protection=none"].map(str::to_owned);
    let spec = crate::vdevs::parse_vdevs(&words).unwrap();
    assert!(check_names(&spec).unwrap_err().message.contains("log device only"));
    let words = ["a", "log", "mirror", "b", "dram:1G,protection=none"].map(str::to_owned);
    check_names(&crate::vdevs::parse_vdevs(&words).unwrap()).unwrap();
}

#[test]
fn memory_that_needs_a_mirror_is_not_made_without_one() {
    let spec = |words: &str| {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        crate::vdevs::parse_vdevs(&words).unwrap()
    };
    const NEEDS: &str = "dram:1G,protection=mirror";
    for words in [format!("a log {NEEDS}"), format!("a log mirror {NEEDS} {NEEDS},memory=/m")] {
        let failure = check_names(&spec(&words)).unwrap_err();
        assert!(failure.message.contains("nothing mirrors it"), "{}", failure.message);
    }
    check_names(&spec(&format!("a log mirror {NEEDS} nbd://h/l"))).unwrap();
}
