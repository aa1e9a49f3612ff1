//! Scrubs and resilvers: every live segment is read, judged and repaired, at a bounded pace.

pub(crate) mod backrefs;
pub(crate) mod error;
pub(crate) mod error_log;
mod journal_repair;
mod resilver;
mod scan;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use forebay_format::config::ScanConfig;
use forebay_rt as rt;
use forebay_segment::SegmentState;
use forebay_units::{BLOCK_BYTES, Nanos, SegmentId};

use crate::Pool;
use crate::scrub::error::ScrubError;
use crate::status::{PoolEvent, ScanKind, ScanPhase, ScanStatus};

/// The last or running scan.
#[derive(Default)]
pub(crate) struct ScanState {
    status: RefCell<Option<ScanStatus>>,
    scrub_wanted: Cell<bool>,
    resilver_wanted: Cell<bool>,
    /// Changes when a scrub is paused or stopped. The task that reads ends with its segment then,
    /// when another scrub may have begun.
    pauses: Cell<u64>,
    /// Changes when a scan begins or is stopped.
    number: Cell<u64>,
    /// A scrub found damage in the map journal, so the map is written anew.
    pub checkpoint_wanted: Cell<bool>,
    /// Parts of the journal have neither redundancy nor a copy, so the map is written anew.
    pub copies_wanted: Cell<bool>,
    /// The journal is still damaged; an import from the devices would fail.
    pub journal_damaged: Cell<bool>,
    /// The segment at which a paused scrub continues.
    next: Cell<u32>,
    begun: Cell<Nanos>,
    /// Seconds before the last pause or import.
    before_secs: Cell<u64>,
    /// When its progress was last written to the devices.
    kept_at: Cell<Nanos>,
}

impl ScanState {
    /// The state that the configuration keeps: a paused scrub stays paused, a scan in progress
    /// continues.
    pub fn restored(kept: Option<&ScanConfig>) -> Self {
        let state = Self::default();
        let Some(kept) = kept else { return state };
        let (kind, phase) = (kept.kind, kept.state);
        if phase == ScanPhase::InProgress {
            let wanted = match kind {
                ScanKind::Scrub => &state.scrub_wanted,
                ScanKind::Resilver => &state.resilver_wanted,
            };
            wanted.set(true);
        }
        state.next.set(kept.next_segment);
        state.before_secs.set(kept.elapsed_secs);
        state.begun.set(rt::now());
        *state.status.borrow_mut() = Some(ScanStatus {
            kind,
            state: phase,
            started_at: kept.started_at,
            elapsed_secs: kept.elapsed_secs,
            done_bytes: kept.done_bytes,
            total_bytes: kept.total_bytes,
            repaired_bytes: kept.repaired_bytes,
            errors: kept.errors,
        });
        state
    }
}

/// Interval at which the progress of a scan is written to the devices.
pub(super) const KEEP_EVERY: Nanos = Nanos::from_secs(30);

/// Interval at which the scan task looks whether a scrub is due.
const DUE_INTERVAL: Nanos = Nanos::from_secs(60);

/// Rows judged at once.
pub(crate) const ROWS: u32 = 16;

impl Pool {
    pub(crate) fn scan_status(&self) -> Option<ScanStatus> {
        let mut status = self.scan_now()?;
        if status.state == ScanPhase::InProgress && self.lifecycle.closing.get() {
            // The scan continues after the next import, so a task that waits for it here would wait
            // for ever.
            status.state = ScanPhase::Stopped;
        }
        Some(status)
    }

    fn scan_now(&self) -> Option<ScanStatus> {
        let mut status = self.scan.status.borrow().clone()?;
        if status.state == ScanPhase::InProgress {
            status.elapsed_secs = self.scan_secs();
        }
        Some(status)
    }

    fn scan_secs(&self) -> u64 {
        let now = rt::now().since(self.scan.begun.get()).0 / 1_000_000_000;
        self.scan.before_secs.get() + now
    }

    /// The scan in the form that the configuration keeps.
    pub(crate) fn scan_config(&self) -> Option<ScanConfig> {
        let status = self.scan_now()?;
        Some(ScanConfig {
            kind: status.kind,
            state: status.state,
            started_at: status.started_at,
            elapsed_secs: status.elapsed_secs,
            done_bytes: status.done_bytes,
            total_bytes: status.total_bytes,
            repaired_bytes: status.repaired_bytes,
            errors: status.errors,
            next_segment: self.scan.next.get(),
        })
    }

    /// Called before the last root: the next import continues the scan from here.
    pub(crate) fn keep_running_scan(&self) {
        if self.scan_runs() {
            self.keep_scan();
        }
    }

    /// Has the next root write the scan's state.
    fn keep_scan(&self) {
        self.scan.kept_at.set(rt::now());
        self.sync.config_dirty.set(true);
        self.sync.wake.notify_all();
    }

    fn scan_runs(&self) -> bool {
        self.scan.status.borrow().as_ref().is_some_and(|s| s.state == ScanPhase::InProgress)
    }

    /// Starts a scrub, or continues a paused one.
    pub async fn scrub(&self) -> Result<(), ScrubError> {
        if self.is_stopped() || self.lifecycle.closing.get() {
            return Err(ScrubError::NotRunning { pool: self.name(), error: self.why_ended() });
        }
        if self.scan_runs() {
            return Err(ScrubError::InProgress { pool: self.name() });
        }
        self.scan.scrub_wanted.set(true);
        // A status that follows this call shows the scrub as running.
        self.begin_scrub();
        self.sync.done.notify_all();
        Ok(())
    }

    fn segments_in_use(&self) -> Vec<SegmentId> {
        let mut all = Vec::new();
        self.store.table.for_each(|segment, info| {
            if info.state == SegmentState::Full || info.state == SegmentState::Open {
                all.push(segment);
            }
        });
        all
    }

    /// Begins a scrub, or continues one.
    fn begin_scrub(&self) {
        let goes_on = |s: &ScanStatus| {
            s.kind == ScanKind::Scrub
                && matches!(s.state, ScanPhase::Paused | ScanPhase::InProgress)
        };
        if !self.scan.status.borrow().as_ref().is_some_and(goes_on) {
            self.scan.next.set(0);
            self.begin(ScanKind::Scrub, self.segments_in_use().len() as u64);
            self.health.lost.borrow_mut().begin_scrub();
            return;
        }
        let paused =
            self.scan.status.borrow().as_ref().is_some_and(|s| s.state == ScanPhase::Paused);
        if paused {
            self.progress(|status| status.state = ScanPhase::InProgress);
            self.scan.begun.set(rt::now());
            self.keep_scan();
        }
    }

    /// Pauses a scrub; [`Pool::scrub`] continues it.
    pub async fn scrub_pause(&self) -> Result<(), ScrubError> {
        self.end_scrub(true)
    }

    /// Stops a scrub.
    pub async fn scrub_stop(&self) -> Result<(), ScrubError> {
        self.end_scrub(false)
    }

    fn end_scrub(&self, pause: bool) -> Result<(), ScrubError> {
        let scrub = self.scan.status.borrow().as_ref().and_then(|status| {
            (status.kind == ScanKind::Scrub).then_some(status.state).filter(|state| {
                *state == ScanPhase::InProgress || (!pause && *state == ScanPhase::Paused)
            })
        });
        // It may wait for a resilver, which has the status.
        let waits = self.scan.scrub_wanted.replace(false);
        if scrub.is_none() && !waits {
            return Err(ScrubError::NotInProgress { pool: self.name() });
        }
        self.scan.pauses.set(self.scan.pauses.get() + 1);
        if !pause {
            self.scan.number.set(self.scan.number.get() + 1);
        }
        match scrub {
            Some(ScanPhase::InProgress) if pause => self.finish(ScanPhase::Paused),
            Some(ScanPhase::InProgress) => self.finish(ScanPhase::Stopped),
            Some(_) => self.progress(|status| status.state = ScanPhase::Stopped),
            None => {}
        }
        self.keep_scan();
        Ok(())
    }

    /// Starts to rebuild at once what devices miss.
    pub fn resilver(&self) {
        self.want_resilver();
    }

    pub(crate) fn want_resilver(&self) {
        self.scan.resilver_wanted.set(true);
        // A status that follows this call shows the resilver as running.
        let stale = self.store.array.stale_segments().len();
        if stale > 0 && !self.scan_runs() && !self.is_stopped() && !self.lifecycle.closing.get() {
            self.begin_resilver(stale as u64);
        }
        self.sync.done.notify_all();
    }

    /// Begins a resilver of `segments`, or continues the one in progress, of which they are the
    /// rest.
    fn begin_resilver(&self, segments: u64) {
        let is_running =
            |s: &ScanStatus| s.kind == ScanKind::Resilver && s.state == ScanPhase::InProgress;
        if !self.scan.status.borrow().as_ref().is_some_and(is_running) {
            self.begin(ScanKind::Resilver, segments);
            return;
        }
        let left_bytes = segments * self.segment_data_bytes();
        self.progress(|status| {
            status.total_bytes = status.total_bytes.max(left_bytes);
            status.done_bytes = status.total_bytes - left_bytes;
        });
    }

    fn segment_data_bytes(&self) -> u64 {
        u64::from(self.store.table.data_blocks(SegmentId(0))) * BLOCK_BYTES
    }

    /// The task that scans.
    pub(crate) async fn scan_loop(self: Rc<Self>) {
        // What devices missed at import is rebuilt first.
        if !self.store.array.stale_segments().is_empty() {
            self.scan.resilver_wanted.set(true);
        }
        loop {
            let scan = &self.scan;
            let ended = || self.lifecycle.closing.get() || self.is_stopped();
            let wanted = || {
                scan.resilver_wanted.get()
                    || scan.scrub_wanted.get()
                    || scan.copies_wanted.get()
                    || ended()
            };
            let _ = rt::timeout(DUE_INTERVAL, Box::pin(self.sync.done.until(wanted))).await;
            if ended() {
                // A scan that ends with the pool shows as running; who waits for it must hear.
                if self.is_stopped() && self.scan_runs() {
                    self.finish(ScanPhase::Stopped);
                }
                return;
            }
            if !wanted() && self.is_scrub_due() {
                scan.scrub_wanted.set(true);
            }
            if scan.copies_wanted.replace(false) {
                self.copy_journal().await;
            } else if scan.resilver_wanted.replace(false) {
                self.run_resilver().await;
            } else if scan.scrub_wanted.replace(false) {
                self.run_scrub().await;
            }
        }
    }

    /// Whether the property `scrub_every` asks for a scrub now. One that the operator paused waits
    /// for the operator.
    fn is_scrub_due(&self) -> bool {
        let Some(every_secs) = self.settings.get().scrub_every_secs else { return false };
        if self.lifecycle.for_command.get() {
            return false;
        }
        let paused = |s: &ScanStatus| s.state == ScanPhase::Paused;
        if self.scan.status.borrow().as_ref().is_some_and(paused) {
            return false;
        }
        let config = self.config.borrow();
        // Configurations of earlier programs know of a scrub only if it was the last scan.
        let scan = config.scan.as_ref().filter(|scan| scan.kind == ScanKind::Scrub);
        let last = match scan.map_or(0, |scan| scan.started_at).max(config.scrubbed_at) {
            0 => config.created_at,
            last => last,
        };
        // A clock that was ahead must not put the next scrub off for years.
        let now = rt::wall_clock();
        now < last || now >= last.saturating_add(every_secs)
    }

    fn begin(&self, kind: ScanKind, segments: u64) {
        if kind == ScanKind::Scrub {
            self.config.borrow_mut().scrubbed_at = rt::wall_clock();
        }
        self.scan.number.set(self.scan.number.get() + 1);
        self.health.events.push(PoolEvent::ScanBegan(kind));
        self.scan.begun.set(rt::now());
        self.scan.before_secs.set(0);
        self.keep_scan();
        *self.scan.status.borrow_mut() = Some(ScanStatus {
            kind,
            state: ScanPhase::InProgress,
            started_at: rt::wall_clock(),
            elapsed_secs: 0,
            done_bytes: 0,
            total_bytes: segments * self.segment_data_bytes(),
            repaired_bytes: 0,
            errors: 0,
        });
    }

    pub(crate) fn progress(&self, change: impl FnOnce(&mut ScanStatus)) {
        if let Some(status) = self.scan.status.borrow_mut().as_mut() {
            change(status);
            status.done_bytes = status.done_bytes.min(status.total_bytes);
        }
    }

    /// The progress of the scan with this number, unless another one has begun or it was stopped.
    fn progress_of(&self, number: u64, change: impl FnOnce(&mut ScanStatus)) {
        if self.scan.number.get() == number {
            self.progress(change);
        }
    }

    fn finish(&self, state: ScanPhase) {
        let elapsed = self.scan_secs();
        self.scan.before_secs.set(elapsed);
        self.progress(|status| {
            status.state = state;
            status.elapsed_secs = elapsed;
            if state == ScanPhase::Completed {
                status.done_bytes = status.total_bytes;
            }
        });
        if let Some(status) = self.scan.status.borrow().as_ref() {
            self.health.events.push(PoolEvent::ScanEnded {
                kind: status.kind,
                phase: state,
                repaired_bytes: status.repaired_bytes,
                errors: status.errors,
            });
        }
        self.keep_scan();
    }

    async fn pace(&self, bytes: u64, begun: Nanos) {
        match self.settings.get().scan_rate {
            Some(rate) => {
                let due = Nanos((bytes as f64 * 1e9 / rate as f64) as u64);
                rt::sleep(due.since(rt::now().since(begun))).await;
            }
            // A scan leaves as much time to clients as it takes.
            None => {
                let took = rt::now().since(begun);
                rt::sleep(took.min(Nanos::from_millis(50))).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
