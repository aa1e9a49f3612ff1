//! Path probe: system calls on paths whose file system may hang, on threads of their own.
//!
//! What enters: paths, and what to do with each. What leaves: results, or [`NoAnswer`] after
//! [`PROBE_TIMEOUT`]. What always holds: the calling thread does not block, and a path that hangs
//! holds one thread, however often it is probed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_rt as rt;
use forebay_units::Nanos;

/// How long a file system may take for a call such as `stat` or `open`.
const PROBE_TIMEOUT: Nanos = Nanos::from_secs(3);

/// Paths whose probe has not ended since it exceeded [`PROBE_TIMEOUT`].
static HANGING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The file system of a path did not answer within [`PROBE_TIMEOUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAnswer;

fn hanging() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    HANGING.lock().expect("nothing panics under this lock")
}

/// Runs `work` on `path`.
pub async fn probe<T: Send + 'static>(
    path: impl AsRef<Path>,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let path = path.as_ref().to_owned();
    if hanging().contains(&path) {
        return Err(NoAnswer);
    }
    let has_ended = Arc::new(AtomicBool::new(false));
    let (probed, ends) = (path.clone(), has_ended.clone());
    let working = rt::aside(move || {
        let out = work(&probed);
        let mut hanging = hanging();
        ends.store(true, Ordering::Relaxed);
        hanging.remove(&probed);
        out
    });
    let outcome = rt::timeout(PROBE_TIMEOUT, Box::pin(working)).await;
    outcome.map_err(|rt::Elapsed| {
        let mut hanging = hanging();
        // Under the lock: a probe that ends now either finds its path there or adds none.
        if !has_ended.load(Ordering::Relaxed) {
            hanging.insert(path);
        }
        NoAnswer
    })
}

/// Runs `work` on each of `paths`, one after the other. A path that hangs delays the others by
/// [`PROBE_TIMEOUT`], the first time that it is probed.
pub async fn probe_each<T: Send + 'static>(
    paths: Vec<PathBuf>,
    work: impl Fn(&Path) -> T + Clone + Send + 'static,
) -> Vec<(PathBuf, Result<T, NoAnswer>)> {
    let mut probed = Vec::with_capacity(paths.len());
    for path in paths {
        let outcome = probe(&path, work.clone()).await;
        probed.push((path, outcome));
    }
    probed
}

#[cfg(test)]
mod tests;
