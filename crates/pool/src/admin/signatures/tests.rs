use std::rc::Rc;

use forebay_device::MemoryDevice;
use forebay_rt::Runtime;

use super::*;

fn with(at: usize, bytes: &[u8]) -> Option<&'static str> {
    let mut head = IoBuf::zeroed(LOOKED_AT);
    head[at..at + bytes.len()].copy_from_slice(bytes);
    Runtime::simulated(1).block_on(async move {
        let device: Device = Rc::new(MemoryDevice::new("d", 1 << 20));
        device.write(0, head.freeze(), false).await.unwrap();
        content_of(&device).await
    })
}

#[test]
fn foreign_signatures_are_found_and_empty_devices_pass() {
    assert_eq!(with(0, &[]), None);
    for mark in MARKS {
        assert_eq!(with(mark.at, mark.bytes), Some(mark.what));
        // With one byte less there is no signature.
        assert_ne!(with(mark.at, &mark.bytes[..mark.bytes.len() - 1]), Some(mark.what));
    }
    assert_eq!(with((16 << 10) + 1000, b"...pool_guid..."), Some("a member of a ZFS pool"));
    let mut table = [0; 66];
    table[64..].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(with(446, &table), None, "no entry");
    (table[4], table[12]) = (0x83, 1);
    assert_eq!(with(446, &table), Some("a partition table"));
    table[0] = 7;
    assert_eq!(with(446, &table), None, "text of a boot sector, not a table");
}
