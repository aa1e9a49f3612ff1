use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions as FileOptions, Permissions};
use std::io::ErrorKind;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use forebay_rt::Runtime;

use super::*;
use crate::vdevs::parse_vdevs;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-dev-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, len_bytes: u64) -> String {
        let path = self.0.join(name);
        let file = FileOptions::new().create_new(true).write(true).open(&path).unwrap();
        file.set_len(len_bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// [`out_of_reach`] on this thread, whose rights a test changes.
fn reach(places: &[PathBuf]) -> String {
    let places = places.to_vec();
    Runtime::simulated(1).block_on(async move { out_of_reach(&places).await })
}

fn found(places: &[PathBuf]) -> Result<Vec<String>, Failure> {
    let places = places.to_vec();
    Runtime::real().unwrap().block_on(async move { search(&places).await })
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn device_must_exist_and_be_large_enough() {
    let scratch = Scratch::new("new");
    let good = scratch.file("good", DEVICE_MIN_BYTES);
    assert_eq!(resolve_new(&good).unwrap(), good);
    let small = scratch.file("small", DEVICE_MIN_BYTES - 1);
    assert_eq!(resolve_new(&small).unwrap_err().code, ErrorCode::DeviceUnusable);
    let missing = scratch.0.join("missing");
    let missing = resolve_new(missing.to_str().unwrap()).unwrap_err();
    assert_eq!(missing.code, ErrorCode::DeviceNotFound);
    assert!(missing.hint.contains("truncate"), "{}", missing.hint);
    let folder = resolve_new(scratch.0.to_str().unwrap()).unwrap_err();
    assert_eq!(folder.code, ErrorCode::DeviceUnusable);
    assert_eq!(resolve_new("/dev/null").unwrap_err().code, ErrorCode::DeviceUnusable);
}

#[test]
fn host_id_is_stable() {
    assert_eq!(FileOpener.host(), FileOpener.host());
    assert!(!sys::host_name().is_empty(), "every Linux has a host name");
}

#[test]
fn devices_that_may_not_be_opened_are_reported_with_reason() {
    let scratch = Scratch::new("access");
    scratch.file("a", DEVICE_MIN_BYTES);
    let places = [scratch.0.clone()];
    assert_eq!(reach(&places), "", "all of it may be opened");
    let may = |name: &str, mode| {
        std::fs::set_permissions(scratch.0.join(name), Permissions::from_mode(mode)).unwrap();
    };
    scratch.file("small", DEVICE_MIN_BYTES - 1);
    scratch.file("b", DEVICE_MIN_BYTES);
    may("", 0o755);
    for name in ["a", "b", "small"] {
        may(name, 0o444);
    }
    let b = [scratch.0.join("b")];
    let (told, named) = as_nobody(|| (reach(&places), reach(&b)));
    assert!(told.contains("/a: ") && told.ends_with("(and 1 more like it)"), "{told}");
    assert!(named.contains("/b: ") && !named.contains("more"), "{named}");
}

#[test]
fn search_does_not_open_files_that_cannot_be_devices() {
    let scratch = Scratch::new("untouched");
    scratch.file("small", DEVICE_MIN_BYTES - 1);
    let path = CString::new(scratch.0.join("small").to_str().unwrap()).unwrap();
    let mut told = [0u8; 256];
    // SAFETY: no pointers.
    let fd = unsafe { libc::inotify_init1(libc::IN_NONBLOCK) };
    assert!(fd >= 0);
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let mut watch = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: `path` ends in a zero byte and outlives the call.
    let added = unsafe { libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) };
    assert!(added >= 0);
    assert_eq!(reach(std::slice::from_ref(&scratch.0)), "");
    let read = watch.read(&mut told);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock, "the file was opened");
}

/// Runs `act` without the rights of root over files. Changes nothing for another user.
fn as_nobody<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: the call changes the file-system user id of this thread only.
    let own = unsafe { libc::syscall(libc::SYS_setfsuid, 65534) };
    let outcome = act();
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsuid, own) };
    outcome
}

#[test]
fn two_names_of_one_device_are_refused() {
    let scratch = Scratch::new("twice");
    let file = scratch.file("file", DEVICE_MIN_BYTES);
    let link = scratch.0.join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let words = ["mirror".to_owned(), file, link.to_str().unwrap().to_owned()];
    let mut spec = parse_vdevs(&words).unwrap();
    let resolved = Runtime::simulated(1).block_on(async move { resolve_spec(&mut spec).await });
    let failure = resolved.unwrap_err();
    assert_eq!(failure.code, ErrorCode::DeviceNamedTwice);
}

#[test]
fn member_is_path_or_name_from_status() {
    assert_eq!(resolve_member("mirror-1").unwrap(), "mirror-1");
    assert_eq!(resolve_member("/gone/disk").unwrap(), "/gone/disk");
    let here = std::env::current_dir().unwrap();
    assert_eq!(resolve_member("./gone").unwrap(), here.join("gone").to_str().unwrap());
}

#[test]
fn search_finds_devices_in_folders() {
    let scratch = Scratch::new("search");
    let big = scratch.file("big", DEVICE_MIN_BYTES);
    let small = scratch.file("small", 4096);
    assert_eq!(found(std::slice::from_ref(&scratch.0)).unwrap(), [big.as_str()]);
    // A device that is named itself is taken whatever its size: the pool says what is wrong.
    assert_eq!(found(&[scratch.0.join("small"), scratch.0.clone()]).unwrap(), [big, small]);
    assert!(found(&[scratch.0.join("missing")]).is_err());
}

#[test]
fn search_passes_over_files_whose_names_are_not_utf8() {
    let scratch = Scratch::new("names");
    let device = scratch.file("device", DEVICE_MIN_BYTES);
    let strange = scratch.0.join(OsStr::from_bytes(b"\xff\xfe"));
    let file = FileOptions::new().create_new(true).write(true).open(&strange).unwrap();
    file.set_len(DEVICE_MIN_BYTES).unwrap();
    assert_eq!(found(std::slice::from_ref(&scratch.0)).unwrap(), [device]);
    // One that is named itself is refused.
    assert_eq!(found(&[strange]).unwrap_err().code, ErrorCode::DeviceUnusable);
}

#[test]
fn device_elsewhere_that_is_out_of_reach_is_named_with_the_reason() {
    let folder = std::env::temp_dir().join(format!("forebay-reach-{}", std::process::id()));
    let name = format!("file://{}?size=64M", folder.display());
    let told = |name: &str| {
        let places = [PathBuf::from(name)];
        Runtime::real().unwrap().block_on(async move { out_of_reach(&places).await })
    };
    let missing = told(&name);
    assert!(missing.starts_with(&format!("; {name}: ")), "{missing}");
    assert_eq!(missing.matches(&name).count(), 1, "{missing}");
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(told(&name), "");
    std::fs::remove_dir_all(&folder).unwrap();
}
