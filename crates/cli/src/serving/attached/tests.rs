use forebay_attach::{Driver, Identity};

use super::*;

fn device(size_bytes: u64) -> Attached {
    let volume = Volume { pool_guid: 1, volume_id: 2 };
    let identity = Identity { volume, connections: 4, name: "tank/vol0".to_owned() };
    let (path, driver) = ("/dev/nbd0".into(), Driver::Nbd);
    Attached { path, driver, index: 0, identity, size_bytes, read_only: false }
}

#[test]
fn device_lacks_connections_before_it_lacks_size() {
    assert_eq!(lack_of(&device(4096), 4, 4096), None);
    assert_eq!(lack_of(&device(4096), 1, 8192), Some(Lack::Connections(3)));
    assert_eq!(lack_of(&device(4096), 4, 8192), Some(Lack::Size(8192)));
    // More than it needs, while the kernel closes those that a second attach made.
    assert_eq!(lack_of(&device(4096), 8, 4096), None);
}
