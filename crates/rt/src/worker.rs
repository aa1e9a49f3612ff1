//! A thread for calls that take a while, such as reads of the kernel's own files.

use std::sync::mpsc;

use futures_channel::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives as long as this value, and does one job after the other. Unlike
/// [`crate::aside`] it needs no memory for a new thread at each job.
pub struct Worker {
    jobs: mpsc::Sender<Job>,
}

impl Worker {
    /// Starts a thread with this name, of at most 15 bytes. `None` when there is none to be had.
    #[must_use]
    pub fn start(name: &str) -> Option<Self> {
        let (jobs, arrived) = mpsc::channel::<Job>();
        let work = move || arrived.into_iter().for_each(|job| job());
        std::thread::Builder::new().name(name.to_owned()).spawn(work).ok()?;
        Some(Self { jobs })
    }

    /// Runs `work` there, after the jobs before it. `None` when this job or one before it panicked.
    /// Dropping the future does not end the work.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, result) = oneshot::channel();
        let job = move || {
            // The caller may have stopped waiting.
            let _ = done.send(work());
        };
        self.jobs.send(Box::new(job)).ok()?;
        result.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn jobs_run_on_one_other_thread() {
        let here = std::thread::current().id();
        Runtime::real().unwrap().block_on(async move {
            let worker = Worker::start("jobs").unwrap();
            let id = || std::thread::current().id();
            let first = worker.run(id).await.unwrap();
            assert_ne!(first, here);
            assert_eq!(worker.run(id).await, Some(first));
        });
    }

    #[test]
    fn worker_ends_with_a_job_that_panics_and_says_so() {
        Runtime::real().unwrap().block_on(async {
            let worker = Worker::start("panics").unwrap();
            let fail = || -> u8 { std::panic::resume_unwind(Box::new("a job that fails")) };
            assert_eq!(worker.run(fail).await, None);
            assert_eq!(worker.run(|| 1).await, None);
        });
    }
}
