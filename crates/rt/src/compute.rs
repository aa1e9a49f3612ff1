//! Heavy work: off the engine's thread in production, inline under simulation.

use std::collections::VecDeque;
use std::io;
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

/// Threads that have run something aside and wait for more. A new one takes memory, and a process
/// that is short of it ends when a thread finds none to start with.
const IDLE_THREADS: usize = 2;

struct Aside {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

struct Waiting {
    /// For threads that are idle, which are not fewer.
    jobs: VecDeque<Job>,
    idle: usize,
}

static ASIDE: Aside = Aside::new();

impl Aside {
    const fn new() -> Self {
        let waiting = Mutex::new(Waiting { jobs: VecDeque::new(), idle: 0 });
        Self { waiting, arrived: Condvar::new() }
    }

    /// The next job of a thread that ran one. `None` when enough others wait.
    fn next_job(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock().expect("jobs run outside the lock");
        if waiting.idle == IDLE_THREADS {
            return None;
        }
        waiting.idle += 1;
        loop {
            if let Some(job) = waiting.jobs.pop_front() {
                waiting.idle -= 1;
                return Some(job);
            }
            waiting = self.arrived.wait(waiting).expect("as above");
        }
    }

    /// Gives `job` to a thread that is idle, or to a new one. It waits for no other job. Without a
    /// thread it is dropped.
    fn start(&'static self, job: Job) -> io::Result<()> {
        let mut waiting = self.waiting.lock().expect("jobs run outside the lock");
        if waiting.idle > waiting.jobs.len() {
            waiting.jobs.push_back(job);
            self.arrived.notify_one();
            return Ok(());
        }
        drop(waiting);
        let run = move || {
            job();
            while let Some(job) = self.next_job() {
                job();
            }
        };
        std::thread::Builder::new().name("aside".to_owned()).spawn(run).map(drop)
    }
}

/// Runs `work` on another thread, beside all else that runs, or inline when simulated. It may take
/// any time, as on a file system that hangs. Dropping the future does not end the work.
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
    ASIDE.start(Box::new(run)).expect("a thread can be started");
    result.await.expect("what runs aside does not panic")
}

/// Closes `file` on another thread: the close of a file on a file system that hangs does not
/// return.
pub fn close_aside(file: std::fs::File) {
    // Without a thread it is closed here: a descriptor that leaks keeps its lock.
    let _ = ASIDE.start(Box::new(move || drop(file)));
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::mpsc::channel;
    use std::thread::{ThreadId, current, yield_now};

    use super::*;

    /// Runs `count` jobs of which each waits for all others, and returns their threads.
    fn meet(aside: &'static Aside, count: usize) -> HashSet<ThreadId> {
        let (all, (tell, told)) = (Arc::new(std::sync::Barrier::new(count)), channel());
        for _ in 0..count {
            let (all, tell) = (all.clone(), tell.clone());
            let job = move || {
                all.wait();
                tell.send(current().id()).unwrap();
            };
            aside.start(Box::new(job)).unwrap();
        }
        drop(tell);
        told.iter().collect()
    }

    fn await_idle(aside: &Aside, count: usize) {
        while aside.waiting.lock().unwrap().idle != count {
            yield_now();
        }
    }

    #[test]
    fn jobs_aside_run_at_once_and_on_threads_that_wait_if_there_are_any() {
        let aside: &'static Aside = Box::leak(Box::new(Aside::new()));
        let first = meet(aside, 1);
        await_idle(aside, 1);
        assert_eq!(meet(aside, 1), first);
        await_idle(aside, 1);
        let three = meet(aside, 3);
        assert_eq!(three.len(), 3);
        assert!(three.is_superset(&first));
        await_idle(aside, IDLE_THREADS);
        let kept = meet(aside, IDLE_THREADS);
        assert!(kept.len() == IDLE_THREADS && kept.is_subset(&three), "{kept:?} of {three:?}");
    }
}
