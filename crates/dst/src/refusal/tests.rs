use super::*;

#[test]
fn refusal_names_struck_devices_and_no_others() {
    let suspects: Vec<Suspect> =
        [("disk0", true), ("disk1", false), ("disk10", true), ("log2", true)]
            .map(|(name, is_struck)| Suspect { name: name.to_owned(), is_struck })
            .to_vec();
    let judge = |message: &str| super::judge(message, &suspects);
    let well = [
        "its raidz1 of 3 devices needs 2 of them; missing: disk0, disk10; bring devices back",
        "its log device is missing (log2), and with it writes; bring it back",
        "segment 3: writes failed; disk0: write of 4096 bytes at offset 0: no space; bring it back",
        // Naming the location of damage blames no device.
        "map journal frame 7 (offset 4096 of disk0, disk1): no copy repairs it; 'import -F'",
        "disk1 knows of newer changes; their devices are missing: disk0; bring them back",
        "disk0: read of 4096 bytes at offset 0: no answer; out of use: disk0; use -f if you dare",
    ];
    for message in well {
        assert_eq!(judge(message), Ok(()), "{message}");
    }
    let blames_disk1 = BadRefusal::BlamesWell { device: "disk1".to_owned() };
    let struck = ["disk0", "disk10", "log2"].map(str::to_owned).to_vec();
    let names_none = BadRefusal::NamesNone { struck };
    let ill = [
        ("the devices that hold newer data are missing: bring them back", &names_none),
        ("disk1 knows of newer changes; bring the others back", &names_none),
        ("missing: disk0, disk1; bring devices back", &blames_disk1),
        (
            "half of them are missing (disk1) and may hold newer data than disk0; bring it back",
            &blames_disk1,
        ),
        (
            "segment 3: writes failed; disk1: flush: Input/output error; bring disk0 back",
            &blames_disk1,
        ),
        (
            "missing: disk0; behind the others, and not rebuilt yet: disk1; bring it back",
            &blames_disk1,
        ),
        ("missing: disk0", &BadRefusal::NoAdvice),
        ("missing: disk1000; bring devices back", &names_none),
        ("", &names_none),
    ];
    for (message, wrong) in ill {
        assert_eq!(judge(message).as_ref(), Err(wrong), "{message}");
    }
}
