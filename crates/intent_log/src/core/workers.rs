//! The log's workers: which of them is woken, and what it does next.

use std::task::Waker;

use forebay_units::{BLOCK_BYTES, Nanos};

use super::{Core, Issue, Mode};
use crate::group_commit::{Verdict, Waiting};

#[derive(Default)]
pub(super) struct Worker {
    pub(super) idle: Option<Waker>,
    woken: bool,
}

/// What a worker does next.
pub(crate) enum Next {
    Write(Issue),
    Wait,
    /// The next frame gathers records until then.
    Gather(Nanos),
    End,
}

impl Core {
    fn ring_of(&self, worker: usize) -> usize {
        // Consecutive workers serve different rings, so that frames spread over the rings.
        worker % self.rings.len()
    }

    fn fits(&self, ring: usize) -> bool {
        let ring = &self.rings[ring];
        ring.free_bytes() >= self.queue.wanted_bytes(ring.limit_bytes)
    }

    /// Wakes a worker for the queue's first record, unless the workers already woken suffice.
    pub(crate) fn wake_worker(&mut self) {
        if self.mode != Mode::Running || self.queue.is_empty() || !self.may_begin_frame() {
            return;
        }
        let woken_bytes = self.woken as u64 * u64::from(self.config.max_frame_bytes);
        if self.woken > 0 && self.queue.bytes() < woken_bytes {
            return;
        }
        let count = self.workers.len();
        let first = if self.group_commit.is_gathering() { self.gatherer } else { self.next_worker };
        for step in 0..count {
            let at = (first + step) % count;
            if self.workers[at].idle.is_some() && self.fits(self.ring_of(at)) {
                self.workers[at].woken = true;
                self.woken += 1;
                self.next_worker = (at + 1) % count;
                if let Some(waker) = self.workers[at].idle.take() {
                    waker.wake();
                }
                return;
            }
        }
        if !(0..self.rings.len()).any(|ring| self.fits(ring)) {
            self.report_pressure();
        }
    }

    fn waiting(&self, limit_bytes: u64) -> Waiting {
        Waiting {
            records: self.queue.len() as u64,
            bytes: self.queue.bytes(),
            full_bytes: limit_bytes - BLOCK_BYTES,
            frames_in_flight: self.in_flight,
            rings: self.rings.len() as u64,
        }
    }

    /// Whether a worker has something to do: to write a frame, or to wait for the frame's records.
    fn may_begin_frame(&self) -> bool {
        let frames = self.in_flight + self.woken as u64;
        let limit_bytes = self.rings.first().map_or(u64::MAX, |ring| ring.limit_bytes);
        self.group_commit.has_slot(frames, self.rings.len() as u64)
            && (!self.group_commit.is_gathering()
                || self.group_commit.is_due(&self.waiting(limit_bytes)))
    }

    /// Records that are under way: in the queue, or in frames that are not acknowledged.
    pub(crate) fn under_way(&self) -> u64 {
        (self.queue.len() + self.unacked_count) as u64
    }

    /// The time goes on.
    pub(crate) fn pass(&mut self, now: Nanos) {
        self.group_commit.pass(now, self.under_way());
    }

    pub(crate) fn wake_all(&mut self) {
        for worker in &mut self.workers {
            if let Some(waker) = worker.idle.take() {
                waker.wake();
            }
        }
    }

    /// What worker `at` of `generation` does next. Keeps `waker` when the worker must wait.
    pub(crate) fn next_for(
        &mut self,
        at: usize,
        generation: u64,
        waker: &Waker,
        now: Nanos,
    ) -> Next {
        if self.closed || generation != self.generation {
            return Next::End;
        }
        if std::mem::take(&mut self.workers[at].woken) {
            self.woken -= 1;
        }
        let ring = self.ring_of(at);
        let ready = self.mode == Mode::Running && !self.queue.is_empty() && self.fits(ring);
        let verdict = match ready {
            true => {
                let waiting = self.waiting(self.rings[ring].limit_bytes);
                self.group_commit.verdict(now, &waiting)
            }
            false => {
                if at == self.gatherer {
                    self.group_commit.stop_gathering();
                }
                Verdict::Hold
            }
        };
        let next = match verdict {
            Verdict::Issue => self.build(ring).map_or(Next::Wait, Next::Write),
            Verdict::Until(until) => {
                self.gatherer = at;
                Next::Gather(until)
            }
            Verdict::Hold => Next::Wait,
        };
        if !matches!(next, Next::Write(_)) {
            self.workers[at].idle = Some(waker.clone());
        }
        self.wake_worker();
        next
    }
}
