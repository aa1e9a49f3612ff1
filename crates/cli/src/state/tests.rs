use super::*;
use forebay_pool::spec::Told;

fn environment() -> Environment {
    Environment { override_dir: None, xdg_state_home: None, home: None, uid: 1000 }
}

fn some(text: &str) -> Option<OsString> {
    Some(OsString::from(text))
}

/// A folder that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pool(name: &str, guid: u64) -> KnownPool {
    KnownPool {
        name: name.into(),
        guid,
        devices: vec![format!("/dev/{name}")],
        told: Told::default(),
    }
}

#[test]
fn folder_is_located_in_documented_order() {
    let at = |e: Environment| locate(&e).unwrap();
    let all = || Environment {
        override_dir: some("/o"),
        xdg_state_home: some("/x"),
        home: some("/h"),
        ..environment()
    };
    assert_eq!(at(all()), Path::new("/o"));
    assert_eq!(at(Environment { uid: 0, ..all() }), Path::new("/o"));
    assert_eq!(
        at(Environment { override_dir: None, uid: 0, ..all() }),
        Path::new("/var/lib/forebay")
    );
    assert_eq!(at(Environment { override_dir: None, ..all() }), Path::new("/x/forebay"));
    let relative = Environment { override_dir: some(""), xdg_state_home: some("x"), ..all() };
    assert_eq!(at(relative), Path::new("/h/.local/state/forebay"));
    let none = locate(&environment()).unwrap_err();
    assert_eq!(none.code, ErrorCode::StateFolder);
}

#[test]
fn folder_is_for_its_owner_alone() {
    let scratch = Scratch::new("mode");
    let path = scratch.0.join("deep/state");
    StateDir::open_at(path.clone()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    // Open to others and empty: made private. Open to others and not empty: refused.
    let open = scratch.0.join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    StateDir::open_at(open.clone()).unwrap();
    assert_eq!(std::fs::metadata(&open).unwrap().mode() & 0o777, 0o700);
    std::fs::create_dir(open.join("content")).unwrap();
    std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
    let refused = StateDir::open_at(open.clone()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::StateFolder);
    assert_eq!(std::fs::metadata(&open).unwrap().mode() & 0o777, 0o755, "changed nothing");
}

#[test]
fn pools_are_added_replaced_and_removed() {
    let scratch = Scratch::new("list");
    let state = StateDir::open_at(scratch.0.join("s")).unwrap();
    assert_eq!(state.known_pools().unwrap(), []);
    state.remember(pool("tank", 7)).unwrap();
    state.remember(pool("alpha", 8)).unwrap();
    assert_eq!(state.known_pools().unwrap(), [pool("alpha", 8), pool("tank", 7)]);
    // The same pool again replaces its entry, under a new name too.
    state.remember(pool("pond", 7)).unwrap();
    assert_eq!(state.known_pools().unwrap(), [pool("alpha", 8), pool("pond", 7)]);
    let clash = state.remember(pool("alpha", 9)).unwrap_err();
    assert_eq!(clash.code, ErrorCode::PoolExists);
    state.check_name_free("alpha", Some(8)).unwrap();
    assert!(state.check_name_free("alpha", None).is_err());
    state.forget(8).unwrap();
    assert_eq!(state.known_pools().unwrap(), [pool("pond", 7)]);
}

#[test]
fn damaged_list_is_refused_and_unchanged() {
    let scratch = Scratch::new("damaged");
    let state = StateDir::open_at(scratch.0.join("s")).unwrap();
    for text in ["{", "{\"version\":9,\"pools\":[]}", ""] {
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(state.list_path())
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let refused = state.remember(pool("tank", 7)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::StateFolder);
        let mut now = String::new();
        File::options()
            .read(true)
            .open(state.list_path())
            .unwrap()
            .read_to_string(&mut now)
            .unwrap();
        assert_eq!(now, text);
    }
}

#[test]
fn control_sockets_are_found_by_process() {
    let scratch = Scratch::new("sockets");
    let state = StateDir::open_at(scratch.0.join("s")).unwrap();
    for name in ["control-20.sock", "control-3.sock", "control-x.sock", "nbd.sock"] {
        std::fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(state.path().join(name))
            .unwrap();
    }
    let pids: Vec<u32> = state.control_sockets().unwrap().into_iter().map(|(pid, _)| pid).collect();
    assert_eq!(pids, [3, 20]);
}

#[test]
fn newest_generation_of_pool_is_kept() {
    let scratch = Scratch::new("witness");
    let state = StateDir::open_at(scratch.0.join("state")).unwrap();
    let generation = || state.known_pools().unwrap()[0].told.generation;
    let of = |generation| Told { generation, owner: generation + 100 };
    state.witness(1, of(9), &[]).unwrap();
    state.remember(pool("tank", 1)).unwrap();
    assert_eq!(generation(), 0, "a pool that is not in the list is not added");
    for (told, kept) in [(4, 4), (7, 7), (5, 7)] {
        state.witness(1, of(told), &[]).unwrap();
        assert_eq!(generation(), kept);
    }
    state.remember(pool("tank", 1)).unwrap();
    assert_eq!(generation(), 7);
    state.remember_anew(pool("tank", 1)).unwrap();
    assert_eq!(generation(), 0, "it went back to an older state");
    state.witness(1, of(3), &[]).unwrap();
    assert_eq!(generation(), 3);
    state.forget(1).unwrap();
    state.remember(pool("tank", 1)).unwrap();
    assert_eq!(generation(), 0);
}

#[test]
fn device_that_joins_pool_by_itself_is_kept() {
    let scratch = Scratch::new("joins");
    let state = StateDir::open_at(scratch.0.join("state")).unwrap();
    state.remember(pool("tank", 1)).unwrap();
    let told = Told { generation: 2, owner: 3 };
    let devices = || state.known_pools().unwrap()[0].devices.join(" ");
    state.witness(1, told, &["/dev/spare".to_owned()]).unwrap();
    // A power cut now may leave the configuration before this one.
    assert_eq!(devices(), "/dev/tank /dev/spare");
    state.witness(1, told, &["/dev/spare".to_owned()]).unwrap();
    assert_eq!(devices(), "/dev/tank /dev/spare");
    state.witness(2, told, &["/dev/other".to_owned()]).unwrap();
    assert_eq!(state.known_pools().unwrap().len(), 1);
    let now = KnownPool { devices: vec!["/dev/spare".to_owned()], ..pool("tank", 1) };
    state.remember(now).unwrap();
    assert_eq!(devices(), "/dev/spare");
}

#[test]
fn pool_takes_over_paths_of_pool_whose_disks_swapped_names() {
    let scratch = Scratch::new("names");
    let state = StateDir::open_at(scratch.0.join("state")).unwrap();
    let at = |name: &str, guid, devices: &[&str]| {
        let devices = devices.iter().map(|path| (*path).to_owned()).collect();
        KnownPool { devices, ..pool(name, guid) }
    };
    let devices = |at: usize| state.known_pools().unwrap()[at].devices.join(" ");
    for pool in [at("a", 1, &["u", "v"]), at("b", 2, &["w"]), at("c", 3, &["x"])] {
        state.remember(pool).unwrap();
    }
    state.remember(at("a", 1, &["w", "v"])).unwrap();
    assert_eq!([devices(0), devices(1), devices(2)], ["w v", "u", "x"]);
    state.remember(at("b", 2, &["x"])).unwrap();
    assert_eq!([devices(0), devices(1), devices(2)], ["w v", "x", "u"]);
}

#[test]
fn lock_held_by_stopped_process_fails_after_timeout() {
    let scratch = Scratch::new("held");
    let state = StateDir::open_at(scratch.0.join("state")).unwrap();
    state.remember(pool("tank", 1)).unwrap();
    let held = File::options().write(true).open(state.path().join("lock")).unwrap();
    held.lock().unwrap();
    let refused = state.remember(pool("pond", 2)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::StateFolder);
    drop(held);
    state.remember(pool("pond", 2)).unwrap();
    assert_eq!(state.known_pools().unwrap().len(), 2);
}

#[test]
fn commands_that_change_the_list_at_the_same_time_keep_the_changes_of_each_other() {
    let scratch = Scratch::new("together");
    let state = StateDir::open_at(scratch.0.join("state")).unwrap();
    std::thread::scope(|scope| {
        for guid in 1..=8 {
            let state = &state;
            scope.spawn(move || state.remember(pool(&format!("p{guid}"), guid)).unwrap());
        }
    });
    let known: Vec<u64> = state.known_pools().unwrap().iter().map(|known| known.guid).collect();
    assert_eq!(known, [1, 2, 3, 4, 5, 6, 7, 8]);
}
