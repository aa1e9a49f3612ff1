//! Heavy work: off the engine's thread in production, inline under simulation.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use forebay_units::Nanos;
use futures_channel::oneshot;

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    jobs: Mutex<VecDeque<Job>>,
    arrived: Condvar,
}

static POOL: OnceLock<Arc<Pool>> = OnceLock::new();

fn pool() -> &'static Arc<Pool> {
    POOL.get_or_init(|| {
        let pool = Arc::new(Pool { jobs: Mutex::new(VecDeque::new()), arrived: Condvar::new() });
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        for index in 0..cores.saturating_sub(1).clamp(1, 8) {
            let pool = pool.clone();
            std::thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || {
                    loop {
                        let mut jobs = pool.jobs.lock().expect("jobs run outside the lock");
                        let job = loop {
                            match jobs.pop_front() {
                                Some(job) => break job,
                                None => jobs = pool.arrived.wait(jobs).expect("as above"),
                            }
                        };
                        drop(jobs);
                        job();
                    }
                })
                .expect("a worker thread can be started");
        }
        pool
    })
}

/// Runs `work` on a thread of its own, or inline when simulated. It may take any time, as on a file
/// system that hangs. Dropping the future does not end the work.
///
/// # Panics
/// When `work` does, or when there is no thread to be had.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if crate::is_simulated() {
        return work();
    }
    let (done, result) = oneshot::channel();
    let run = move || {
        // The caller may have stopped waiting.
        let _ = done.send(work());
    };
    std::thread::Builder::new()
        .name("aside".to_owned())
        .spawn(run)
        .expect("a thread can be started");
    result.await.expect("what runs aside does not panic")
}

/// Closes `file` on a thread of its own: the close of a file on a file system that hangs does not
/// return.
pub fn close_aside(file: std::fs::File) {
    // Without a thread it is closed here: a descriptor that leaks keeps its lock.
    let _ = std::thread::Builder::new().name("close".to_owned()).spawn(move || drop(file));
}

/// Runs `work` on a worker thread, or inline after `modelled_cost` of virtual time when simulated.
/// `work` must be pure: no I/O, no clock, no chance. A panic in it panics here.
pub async fn compute<T: Send + 'static>(
    modelled_cost: Nanos,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if crate::is_simulated() {
        crate::sleep(modelled_cost).await;
        return work();
    }
    let (done, result) = oneshot::channel();
    let job: Job = Box::new(move || {
        let out = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let _ = done.send(out);
    });
    let pool = pool();
    pool.jobs.lock().expect("jobs run outside the lock").push_back(job);
    pool.arrived.notify_one();
    match result.await.expect("a worker always answers") {
        Ok(out) => out,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
