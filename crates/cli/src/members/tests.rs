use forebay_pool::status::{Health, IoCounts, VdevKind};
use forebay_rt::Runtime;

use super::*;
use crate::failure::ErrorCode;

fn device(path: &str) -> VdevStatus {
    VdevStatus {
        name: path.to_owned(),
        kind: VdevKind::Device,
        state: Health::Online,
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

fn renamed(pool: &PoolStatus, action: Action) -> Result<Action, Failure> {
    let pool = pool.clone();
    Runtime::real().unwrap().block_on(async move { by_known_names(&pool, action).await })
}

#[test]
fn device_is_found_by_every_path_that_leads_to_it() {
    let dir = std::env::temp_dir().join(format!("fb-members-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).unwrap();
    let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for name in ["d0", "d1", "d2"] {
        let mut options = std::fs::OpenOptions::new();
        options.create_new(true).write(true).open(path(name)).unwrap();
    }
    std::os::unix::fs::symlink(path("d0"), path("link")).unwrap();
    let mut group = device("mirror-0");
    group.children = vec![device(&path("link")), device(&path("d1"))];
    let pool = PoolStatus {
        name: "tank".to_owned(),
        guid: 1,
        state: Health::Online,
        scan: None,
        scrubbed_at: 0,
        groups: vec![group],
        logs: Vec::new(),
        caches: Vec::new(),
        spares: Vec::new(),
        lost: Vec::new(),
        lost_count: 0,
        txg: 0,
        outage_reserve: None,
        store: None,
    };
    let offline = |device: String| renamed(&pool, Action::Offline { device });
    let named = |device: &str| Ok(Action::Offline { device: device.to_owned() });
    assert_eq!(offline(path("d0")), named(&path("link")));
    assert_eq!(offline(path("d1")), named(&path("d1")));
    assert_eq!(offline(path("d2")), named(&path("d2")), "the pool refuses it");
    assert_eq!(offline("mirror-0".to_owned()), named("mirror-0"));

    let attach = |new: &str| {
        let action = Action::Attach { device: path("d0"), new_device: path(new), force: true };
        renamed(&pool, action)
    };
    assert_eq!(attach("d1").unwrap_err().code, ErrorCode::DeviceInUse);
    assert!(attach("d0").is_err(), "by its other name");
    let Ok(Action::Attach { device, new_device, .. }) = attach("d2") else { panic!("goes") };
    assert_eq!((device, new_device), (path("link"), path("d2")));

    let replace = |new: Option<&str>| {
        let new_device = new.map(&path);
        renamed(&pool, Action::Replace { device: path("d1"), new_device, force: false })
    };
    assert!(replace(None).is_ok());
    assert!(replace(Some("d1")).is_ok(), "another device at the same path");
    assert!(replace(Some("link")).is_err());
    std::fs::remove_dir_all(&dir).unwrap();
}
