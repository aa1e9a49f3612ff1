//! Operations on io_uring as futures that own their buffers until the kernel is done.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::squeue;

use crate::executor;
use crate::ring::Turn;

pub use crate::ring::WORKERS_MAX;

/// One submitted operation that owns `T` (its buffers) until the kernel is done.
pub struct Op<T: 'static> {
    id: Option<usize>,
    kept: Option<T>,
}

/// Submits `entry`. The result is the kernel's (negative: an errno), with `kept` given back.
///
/// # Safety
/// Every pointer in `entry` must point into memory that `kept` owns and that does not move when
/// `kept` does.
pub unsafe fn submit<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry, kept, Turn::InOrder)
}

/// Like [`submit`], for an operation that brings new work, such as a receive. The task that waits
/// for it runs before most ready tasks, so that devices get the new work before they are idle.
///
/// # Safety
/// As for [`submit`].
pub unsafe fn submit_first<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry, kept, Turn::First)
}

/// Like [`submit_first`], for an operation that may never complete, such as waiting for a request
/// of the kernel: the end of a runtime does not wait for it, and never frees what it was lent.
///
/// # Safety
/// As for [`submit`].
pub unsafe fn submit_standing<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry, kept, Turn::Standing)
}

/// Like [`submit`], for a file whose submission itself may block, as on FUSE and NFS: a worker
/// thread of the kernel submits, and blocks instead of this thread. It costs a change of threads.
///
/// All files of a runtime share at most [`WORKERS_MAX`] workers, so the caller bounds the
/// operations that it has under way on one file.
///
/// # Safety
/// As for [`submit`].
pub unsafe fn submit_aside<T: 'static>(entry: squeue::Entry, kept: T) -> Op<T> {
    start(entry.flags(squeue::Flags::ASYNC), kept, Turn::InOrder)
}

fn start<T: 'static>(entry: squeue::Entry, kept: T, turn: Turn) -> Op<T> {
    let id = executor::with(|inner| {
        inner.ring.as_ref().expect("real I/O was asked of a simulated runtime").start(entry, turn)
    });
    Op { id: Some(id), kept: Some(kept) }
}

impl<T: Unpin> Future for Op<T> {
    type Output = (io::Result<u32>, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id.expect("polled after completion");
        let result = executor::with(|inner| {
            inner.ring.as_ref().expect("this op came from a ring").result_of(id, cx.waker())
        });
        let Some(result) = result else { return Poll::Pending };
        self.id = None;
        let kept = self.kept.take().expect("kept until completion");
        let outcome =
            if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as u32) };
        Poll::Ready((outcome, kept))
    }
}

impl<T> Drop for Op<T> {
    fn drop(&mut self) {
        if let (Some(id), Some(kept)) = (self.id.take(), self.kept.take()) {
            executor::with(|inner| {
                inner.ring.as_ref().expect("this op came from a ring").abandon(id, Box::new(kept));
            });
        }
    }
}
