use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use forebay_device::{Device, MemoryDevice};
use forebay_pool::OpenWith;
use forebay_pool::spec::{GroupSpec, ImportOptions, PoolSpec};
use forebay_pool::status::EventKind;
use forebay_rt::Runtime;
use forebay_testkit::Shelf;
use forebay_units::Layout;

use super::*;

/// A folder of hooks beside a folder for what they write.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("forebay-hooks-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("hooks")).unwrap();
        let place = Self(path);
        place.allow("hooks", 0o755);
        place
    }

    fn hooks(&self) -> PathBuf {
        self.0.join("hooks")
    }

    fn allow(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Adds a shell script. `@` in it is the folder for results.
    fn script(&self, name: &str, mode: u32, body: &str) {
        let body = format!("#!/bin/sh\n{}\n", body.replace('@', self.0.to_str().unwrap()));
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create(true).mode(0o600).open(self.hooks().join(name)).unwrap();
        file.write_all(body.as_bytes()).unwrap();
        drop(file);
        self.allow(&format!("hooks/{name}"), mode);
    }

    fn result(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn event(sequence: u64) -> EventRecord {
    EventRecord {
        pool: "tank".to_owned(),
        guid: 99,
        sequence,
        time_secs: 1_700_000_000,
        event: EventKind::StateChanged,
        device: Some("/dev/x y".to_owned()),
        text: "/dev/x y went \"away\"".to_owned(),
    }
}

async fn until_idle(hooks: &Rc<Hooks>) {
    while hooks.is_running.get() {
        rt::sleep(Nanos::from_millis(50)).await;
    }
}

fn run(work: impl Future<Output = ()> + 'static) {
    Runtime::real().unwrap().block_on(work);
}

#[test]
fn hooks_get_the_event_in_order_of_their_names() {
    let place = Place::new("order");
    place.script("20-second", 0o755, "cat >@/json; echo second >>@/order");
    place.script(
        "10-first",
        0o700,
        "echo \"$FOREBAY_POOL $FOREBAY_POOL_GUID $FOREBAY_EVENT $FOREBAY_TIME $FOREBAY_SEQUENCE \
         $FOREBAY_MISSED $FOREBAY_DEVICE\" >@/variables; echo first >>@/order",
    );
    let folder = place.hooks();
    run(async move {
        let hooks = Hooks::new(folder);
        hooks.offer(vec![event(7)]);
        until_idle(&hooks).await;
    });
    assert_eq!(place.result("order"), "first\nsecond\n");
    let expected = "tank 99 state-changed 1700000000 7 0 /dev/x y\n";
    assert_eq!(place.result("variables"), expected);
    let json: serde_json::Value = serde_json::from_str(&place.result("json")).unwrap();
    assert_eq!((&json["version"], &json["event"]), (&1.into(), &"state-changed".into()));
    assert_eq!((&json["device"], &json["sequence"]), (&"/dev/x y".into(), &7.into()));
    assert_eq!(json["text"], "/dev/x y went \"away\"");
}

#[test]
fn hook_that_hangs_is_killed_and_holds_nothing_up() {
    let place = Place::new("hangs");
    place.script("10-hangs", 0o755, "echo x >>@/began; exec sleep 1000");
    place.script("20-fails", 0o755, "exit 3");
    place.script("30-works", 0o755, "echo $FOREBAY_SEQUENCE >>@/told");
    let folder = place.hooks();
    run(async move {
        let hooks = Hooks::with_timeout(folder, Nanos::from_millis(300));
        hooks.offer(vec![event(1), event(2)]);
        // The caller has its thread back at once, and other tasks run meanwhile.
        assert!(hooks.is_running.get());
        until_idle(&hooks).await;
    });
    assert_eq!(place.result("began"), "x\nx\n");
    assert_eq!(place.result("told"), "1\n2\n");
}

#[test]
fn what_a_hook_that_hangs_has_started_is_killed_with_it() {
    let place = Place::new("children");
    place.script("hook", 0o755, "sleep 1000 & echo $! >@/child; wait");
    let (folder, child) = (place.hooks(), place.0.join("child"));
    run(async move {
        let hooks = Hooks::with_timeout(folder, Nanos::from_millis(500));
        hooks.offer(vec![event(1)]);
        until_idle(&hooks).await;
        let process = std::fs::read_to_string(child).unwrap();
        let process = format!("/proc/{}/stat", process.trim());
        // A zombie may stay until its new parent looks after it.
        let lives = || std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
        for _ in 0..200 {
            if !lives() {
                return;
            }
            rt::sleep(Nanos::from_millis(50)).await;
        }
        panic!("{process} lives");
    });
}

#[test]
fn events_beyond_the_queue_are_counted_for_the_next_hook() {
    let place = Place::new("missed");
    place.script("hook", 0o755, "echo $FOREBAY_SEQUENCE $FOREBAY_MISSED >>@/told");
    let folder = place.hooks();
    run(async move {
        let hooks = Hooks::new(folder);
        hooks.is_running.set(true);
        hooks.offer((1..=MAX_WAITING as u64 + 5).map(event).collect());
        assert_eq!((hooks.waiting.borrow().len(), hooks.missed.get()), (MAX_WAITING, 5));
        hooks.waiting.borrow_mut().truncate(2);
        hooks.is_running.set(false);
        hooks.offer(Vec::new());
        until_idle(&hooks).await;
    });
    assert_eq!(place.result("told"), "1 5\n2 0\n");
}

#[test]
fn events_while_the_folder_does_not_answer_are_counted_for_the_next_hook() {
    let place = Place::new("silent");
    place.script("hook", 0o755, "echo $FOREBAY_SEQUENCE $FOREBAY_MISSED >>@/told");
    let folder = place.hooks();
    run(async move {
        let mut hooks = Hooks::with_timeout(folder, Nanos::from_millis(20));
        Rc::get_mut(&mut hooks).unwrap().find = |folder| {
            while !folder.join("answers").exists() {
                std::thread::yield_now();
            }
            find(folder)
        };
        hooks.offer((1..=3).map(event).collect());
        until_idle(&hooks).await;
        std::fs::create_dir(hooks.folder.join("answers")).unwrap();
        let now = Rc::get_mut(&mut hooks).expect("its task has ended");
        (now.timeout, now.find) = (HOOK_TIMEOUT, find);
        hooks.offer(vec![event(4), event(5)]);
        until_idle(&hooks).await;
    });
    assert_eq!(place.result("told"), "4 3\n5 0\n");
}

#[test]
fn only_programs_that_nobody_else_can_write_are_run() {
    let place = Place::new("modes");
    place.script("good", 0o755, "true");
    place.script("group-may-write", 0o775, "true");
    place.script("others-may-write", 0o757, "true");
    place.script("not-executable", 0o644, "true");
    place.script(".hidden", 0o755, "true");
    std::fs::create_dir(place.hooks().join("folder")).unwrap();
    let found = find(&place.hooks());
    assert_eq!(found.programs, [place.hooks().join("good")]);
    let passed_over = |name: &str| (place.hooks().join(name), "other users may write it");
    let refused = [passed_over("group-may-write"), passed_over("others-may-write")];
    assert_eq!(found.refused, refused);
    place.allow("hooks", 0o777);
    let found = find(&place.hooks());
    assert!(found.programs.is_empty(), "others may add programs");
    assert_eq!(found.refused, [(place.hooks(), "other users may write it")]);
    assert_eq!(find(&place.0.join("none")), Found::default());
}

// A pool counts its events anew each time that it is opened.
#[test]
fn of_a_pool_that_left_and_came_back_the_first_events_are_told_too() {
    Runtime::simulated(1).block_on(async {
        let paths = ["/a", "/b"].map(str::to_owned);
        let memory = |path: &String| Rc::new(MemoryDevice::new(path, 64 << 20)) as Device;
        let shelf = Shelf::new(paths.iter().map(memory));
        let opener = OpenWith::new(1, move |name| shelf.open_alone(name));
        let group = GroupSpec { layout: Layout::Mirror, devices: paths.to_vec() };
        let spec = PoolSpec { groups: vec![group], ..PoolSpec::default() };
        let pool = Pool::create(opener.clone(), "tank", &spec).await.unwrap();
        let mut feed = EventFeed::default();
        pool.offline("/b").await.unwrap();
        let told = feed.new_events(std::slice::from_ref(&pool));
        assert!(!told.is_empty());
        assert_eq!(feed.new_events(std::slice::from_ref(&pool)), []);
        pool.export().await.unwrap();
        drop(pool);
        assert_eq!(feed.new_events(&[]), []);
        let options = ImportOptions::default();
        let pool = Pool::import(opener, &paths, "tank", &options).await.unwrap();
        pool.online("/b").await.unwrap();
        let told = feed.new_events(std::slice::from_ref(&pool));
        assert!(!told.is_empty());
        assert_eq!(told, pool.events_after(0));
        pool.export().await.unwrap();
    });
}
