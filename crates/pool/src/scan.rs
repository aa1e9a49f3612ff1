//! Scrubs and resilvers: every live segment read, judged, and put right, at a bounded pace.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_format::config::ScanConfig;
use forebay_rt as rt;
use forebay_rt::sync::MutexGuard;
use forebay_segment::{SegmentInfo, SegmentKind, SegmentState};
use forebay_units::{BLOCK_BYTES, BlockAddr, Nanos, SegmentId, parse_bytes};

use crate::owners::Owner;
use crate::status::ScanStatus;
use crate::{Pool, PoolError, Writers};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Scrub,
    Resilver,
}

/// The last or running scan.
#[derive(Default)]
pub(crate) struct ScanState {
    status: RefCell<Option<ScanStatus>>,
    scrub_wanted: Cell<bool>,
    resilver_wanted: Cell<bool>,
    pub(crate) paused: Cell<bool>,
    pub(crate) stop: Cell<bool>,
    /// A scrub found damage in the map journal: write the map anew.
    pub checkpoint_wanted: Cell<bool>,
    /// Such damage is there still: an import from the devices would not be possible.
    pub journal_damaged: Cell<bool>,
    /// Where a paused scrub goes on.
    next: Cell<u32>,
    begun: Cell<Nanos>,
    /// Seconds that it took before it was paused, or before the last import.
    before_secs: Cell<u64>,
    /// When its progress was last put on the devices.
    kept_at: Cell<Nanos>,
}

impl ScanState {
    /// As the configuration has it: a paused scrub stays paused, one in progress goes on.
    pub fn restored(kept: Option<&ScanConfig>) -> Self {
        let state = Self::default();
        let Some(kept) = kept else { return state };
        let mut now = kept.state.clone();
        if now == "in progress" {
            match kept.kind == "scrub" {
                true => state.scrub_wanted.set(true),
                // What is still missing begins another one.
                false => now = "stopped".to_owned(),
            }
        }
        state.next.set(kept.next_segment);
        state.before_secs.set(kept.elapsed_secs);
        state.begun.set(rt::now());
        *state.status.borrow_mut() = Some(ScanStatus {
            kind: kept.kind.clone(),
            state: now,
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

/// A scan that is cut short by the end of the process is at most this much behind.
const KEEP_EVERY: Nanos = Nanos::from_secs(30);

/// Rows judged at once.
pub(crate) const ROWS: u32 = 16;

impl Pool {
    pub(crate) fn scan_status(&self) -> Option<ScanStatus> {
        let mut status = self.scan_now()?;
        if status.state == "in progress" && self.closing.get() {
            // It goes on after the next import; whoever waits for it here waits in vain.
            status.state = "stopped".to_owned();
        }
        Some(status)
    }

    fn scan_now(&self) -> Option<ScanStatus> {
        let mut status = self.scan.status.borrow().clone()?;
        if status.state == "in progress" {
            status.elapsed_secs = self.scan_secs();
        }
        Some(status)
    }

    fn scan_secs(&self) -> u64 {
        let now = rt::now().since(self.scan.begun.get()).0 / 1_000_000_000;
        self.scan.before_secs.get() + now
    }

    /// The scan as the configuration keeps it.
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

    /// Before the last root: a scan that is cut short goes on from here at the next import.
    pub(crate) fn keep_running_scan(&self) {
        if self.scan_runs() {
            self.keep_scan();
        }
    }

    /// Has the scan's state written with the next root.
    fn keep_scan(&self) {
        self.scan.kept_at.set(rt::now());
        self.sync.config_dirty.set(true);
        self.sync.wake.notify_all();
    }

    fn scan_runs(&self) -> bool {
        self.scan.status.borrow().as_ref().is_some_and(|s| s.state == "in progress")
    }

    /// Starts a scrub, or goes on with a paused one.
    pub async fn scrub(&self) -> Result<(), PoolError> {
        if self.is_stopped() || self.closing.get() {
            return Err(PoolError::new(format!(
                "pool '{}' cannot be scrubbed: {}",
                self.name(),
                self.stop_reason()
            )));
        }
        if self.scan_runs() {
            return Err(PoolError::new(format!(
                "pool '{}' is being scanned; 'forebay pool status' shows how far it is, 'forebay pool \
                 scrub -s' stops a scrub",
                self.name()
            )));
        }
        self.scan.paused.set(false);
        self.scan.stop.set(false);
        self.scan.scrub_wanted.set(true);
        // Whoever asks after this sees it running.
        self.begin_scrub();
        self.sync.done.notify_all();
        Ok(())
    }

    fn segments_in_use(&self) -> Vec<SegmentId> {
        let mut all = Vec::new();
        self.table.for_each(|segment, info| {
            if info.state == SegmentState::Full || info.state == SegmentState::Open {
                all.push(segment);
            }
        });
        all
    }

    /// Begins a scrub, or goes on with one.
    fn begin_scrub(&self) {
        let goes_on = |s: &ScanStatus| {
            s.kind == "scrub" && matches!(s.state.as_str(), "paused" | "in progress")
        };
        if !self.scan.status.borrow().as_ref().is_some_and(goes_on) {
            self.scan.next.set(0);
            self.begin(Kind::Scrub, self.segments_in_use().len() as u64);
            self.health.lost.borrow_mut().begin_scrub();
            return;
        }
        let paused = self.scan.status.borrow().as_ref().is_some_and(|s| s.state == "paused");
        if paused {
            self.progress(|status| status.state = "in progress".to_owned());
            self.scan.begun.set(rt::now());
            self.keep_scan();
        }
    }

    /// Pauses a scrub; [`Pool::scrub`] goes on.
    pub async fn scrub_pause(&self) -> Result<(), PoolError> {
        self.end_scrub(true)
    }

    /// Stops a scrub.
    pub async fn scrub_stop(&self) -> Result<(), PoolError> {
        self.end_scrub(false)
    }

    fn end_scrub(&self, pause: bool) -> Result<(), PoolError> {
        let status = self.scan.status.borrow().clone();
        let scrubbing = status.as_ref().is_some_and(|s| {
            s.kind == "scrub" && (s.state == "in progress" || (!pause && s.state == "paused"))
        });
        if !scrubbing && !self.scan.scrub_wanted.get() {
            return Err(PoolError::new(format!("pool '{}' is not being scrubbed", self.name())));
        }
        let waits = self.scan.scrub_wanted.replace(false);
        let shown = status.is_some_and(|s| s.kind == "scrub" && s.state == "in progress");
        if waits {
            // It has not begun to read: nobody else would end it.
            if !pause {
                self.scan.next.set(0);
            }
            if shown {
                self.finish(if pause { "paused" } else { "stopped" });
            }
        } else if pause {
            self.scan.paused.set(true);
        } else {
            self.scan.stop.set(true);
            self.scan.next.set(0);
            if let Some(status) = self.scan.status.borrow_mut().as_mut()
                && status.state == "paused"
            {
                status.state = "stopped".to_owned();
            }
        }
        self.keep_scan();
        Ok(())
    }

    /// Starts to rebuild what devices miss, at once.
    pub async fn resilver(&self) -> Result<(), PoolError> {
        self.want_resilver();
        Ok(())
    }

    pub(crate) fn want_resilver(&self) {
        self.scan.resilver_wanted.set(true);
        // Whoever asks after this sees it running.
        let stale = self.array.stale_segments().len();
        if stale > 0 && !self.scan_runs() && !self.is_stopped() && !self.closing.get() {
            self.begin(Kind::Resilver, stale as u64);
        }
        self.sync.done.notify_all();
    }

    /// The task that scans.
    pub(crate) async fn scan_loop(self: Rc<Self>) {
        // What was missing at import is rebuilt first.
        self.scan.resilver_wanted.set(!self.array.stale_segments().is_empty());
        loop {
            let scan = &self.scan;
            let ended = || self.closing.get() || self.is_stopped();
            let wanted = || scan.resilver_wanted.get() || scan.scrub_wanted.get() || ended();
            self.sync.done.until(wanted).await;
            if ended() {
                return;
            }
            if scan.resilver_wanted.replace(false) {
                self.run_resilver().await;
            } else if scan.scrub_wanted.replace(false) {
                self.run_scrub().await;
            }
        }
    }

    fn begin(&self, kind: Kind, segments: u64) {
        let per_segment = u64::from(self.table.data_blocks(SegmentId(0))) * BLOCK_BYTES;
        self.scan.begun.set(rt::now());
        self.scan.before_secs.set(0);
        self.keep_scan();
        *self.scan.status.borrow_mut() = Some(ScanStatus {
            kind: if kind == Kind::Scrub { "scrub" } else { "resilver" }.to_owned(),
            state: "in progress".to_owned(),
            started_at: rt::wall_clock(),
            elapsed_secs: 0,
            done_bytes: 0,
            total_bytes: segments * per_segment,
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

    fn finish(&self, state: &str) {
        let elapsed = self.scan_secs();
        self.scan.before_secs.set(elapsed);
        self.progress(|status| {
            status.state = state.to_owned();
            status.elapsed_secs = elapsed;
            if state == "completed" {
                status.done_bytes = status.total_bytes;
            }
        });
        self.keep_scan();
    }

    async fn pace(&self, bytes: u64, begun: Nanos) {
        match parse_bytes(&self.property("scan_rate")) {
            Ok(rate) if rate > 0 => {
                let due = Nanos((bytes as f64 * 1e9 / rate as f64) as u64);
                rt::sleep(due.since(rt::now().since(begun))).await;
            }
            // By itself a scan leaves as much time to others as it takes.
            _ => {
                let took = rt::now().since(begun);
                rt::sleep(took.min(Nanos::from_millis(50))).await;
            }
        }
    }

    async fn run_scrub(self: &Rc<Self>) {
        let in_use = self.segments_in_use();
        self.begin_scrub();
        let next = self.scan.next.get();
        for segment in in_use.into_iter().filter(|s| s.0 >= next) {
            if self.is_stopped() {
                self.finish("stopped");
                return;
            }
            if self.closing.get() {
                return;
            }
            self.scan.next.set(segment.0);
            if self.scan.paused.get() {
                self.finish("paused");
                return;
            }
            if self.scan.stop.get() {
                self.scan.next.set(0);
                self.finish("stopped");
                return;
            }
            if rt::now().since(self.scan.kept_at.get()) >= KEEP_EVERY {
                self.keep_scan();
            }
            let begun = rt::now();
            let bytes = self.scrub_segment(segment).await;
            self.progress(|status| status.done_bytes += bytes);
            self.pace(bytes, begun).await;
        }
        if self.scan.journal_damaged.get() {
            if !self.renew_journal_scrubbing().await && !self.is_stopped() {
                self.progress(|status| status.errors += 1);
            }
            if self.closing.get() && !self.is_stopped() {
                // The end of the pool brings it about.
                return;
            }
            if self.scan.paused.get() || self.scan.stop.get() {
                self.finish(if self.scan.stop.get() { "stopped" } else { "paused" });
                return;
            }
        }
        self.scan.next.set(0);
        self.clean_again().await;
        if !self.is_stopped() {
            self.health.lost.borrow_mut().settle();
        }
        self.finish(if self.is_stopped() { "stopped" } else { "completed" });
    }

    /// Blocks that the cleaner could not read may be readable now.
    async fn clean_again(&self) {
        let _still = self.writers.lock().await;
        self.table.stop_cleaning();
    }

    async fn scrub_segment(self: &Rc<Self>, segment: SegmentId) -> u64 {
        // While this is held nothing is on its way to a segment, and none changes hands.
        let mut still = self.writers.lock().await;
        let info = self.table.get(segment);
        if matches!(info.state, SegmentState::Free | SegmentState::Emptied(_)) {
            return 0;
        }
        let per_row = match self.array.geometry_of(segment) {
            Ok(geometry) => geometry.blocks_per_row(),
            Err(_) => return 0,
        };
        let rows = info.rows;
        let bytes = u64::from(rows) * u64::from(per_row) * BLOCK_BYTES;
        if info.kind == SegmentKind::Map {
            self.scrub_journal(&still, segment, rows).await;
            return bytes;
        }
        let owners = self.owners(&still, segment, &info).await;
        let judge = |addr: BlockAddr, block: &[u8]| self.judge(&owners, addr, block);
        let mut row = 0;
        loop {
            let count = ROWS.min(rows - row);
            if count == 0 {
                return bytes;
            }
            match self.array.scrub_rows(segment, row, count, &judge).await {
                Ok(found) => {
                    self.progress(|status| {
                        status.repaired_bytes += found.repaired_bytes;
                        status.errors += found.damaged.len() as u64;
                    });
                    self.note_damaged(&owners, found.damaged);
                }
                Err(error) => {
                    self.health.remark(error.to_string());
                    self.progress(|status| status.errors += 1);
                }
            }
            row += count;
            let Some(again) = self.let_groups_on(still, segment, info.birth).await else {
                return bytes;
            };
            still = again;
        }
    }

    /// A segment may take seconds: a group that waits has its turn between its rows. What was written
    /// of it when this began stays what it is, unless it was emptied and freed: then there is no
    /// more to do, nor when the pool ends.
    async fn let_groups_on<'a>(
        &'a self,
        still: MutexGuard<'a, Writers>,
        segment: SegmentId,
        birth: u64,
    ) -> Option<MutexGuard<'a, Writers>> {
        drop(still);
        let still = self.writers.lock().await;
        let now = self.table.get(segment);
        let gone = matches!(now.state, SegmentState::Free | SegmentState::Emptied(_));
        let ended = self.closing.get() || self.is_stopped();
        (!gone && now.birth == birth && !ended).then_some(still)
    }

    async fn run_resilver(self: &Rc<Self>) {
        let stale = self.array.stale_segments();
        self.begin(Kind::Resilver, stale.len() as u64);
        for segment in stale {
            if self.closing.get() || self.is_stopped() {
                self.finish("stopped");
                return;
            }
            let begun = rt::now();
            let still = self.writers.lock().await;
            let info = self.table.get(segment);
            let live = !matches!(info.state, SegmentState::Free | SegmentState::Emptied(_));
            let owners = match live {
                true => self.owners(&still, segment, &info).await,
                false => BTreeMap::new(),
            };
            let outcome = if live {
                self.rebuild(still, segment, &info, &owners).await
            } else {
                // Nothing lives here: its column is as good as any.
                self.array.reset_segment(segment).map(|()| forebay_array::Rebuilt::default())
            };
            match outcome {
                Ok(rebuilt) => {
                    self.stats.repaired(rebuilt.written_bytes);
                    let errors = rebuilt.damaged.len() as u64;
                    self.progress(|status| {
                        status.repaired_bytes += rebuilt.written_bytes;
                        status.errors += errors;
                    });
                    self.note_damaged(&owners, rebuilt.damaged);
                }
                Err(error) => {
                    self.health.remark(error.to_string());
                    self.progress(|status| status.errors += 1);
                }
            }
            let bytes = u64::from(self.table.data_blocks(segment)) * BLOCK_BYTES;
            self.progress(|status| status.done_bytes += bytes);
            self.pace(if live { bytes } else { 0 }, begun).await;
        }
        // Rebuilt columns count once they are flushed and the configuration says so.
        self.sync.config_dirty.set(true);
        let _ = self.commit_all().await;
        let done = self.array.replaced();
        let mut left = Vec::new();
        for device in done {
            if self.array.detach(device).is_ok() {
                self.forget_member(device);
                left.push(device.0);
            }
        }
        // A log in the pool follows: it leaves devices that left, and takes those that are whole.
        let in_log = self.log_in_pool();
        if (in_log || !left.is_empty()) && self.restart_log(in_log).await.is_ok() {
            self.let_go(&left).await;
        }
        self.clean_again().await;
        self.finish(if self.is_stopped() { "stopped" } else { "completed" });
        // What was written meanwhile to a device that was away is in the next round.
        if !self.array.stale_segments().is_empty() && !self.is_stopped() {
            self.scan.resilver_wanted.set(true);
        }
    }

    /// Gives a segment back to members that miss it. Groups that wait have their turns between its
    /// rows: what they write to it goes to those members too.
    async fn rebuild(
        &self,
        mut still: MutexGuard<'_, Writers>,
        segment: SegmentId,
        info: &SegmentInfo,
        owners: &BTreeMap<u32, Owner>,
    ) -> Result<forebay_array::Rebuilt, forebay_array::ArrayError> {
        let judge = |addr: BlockAddr, block: &[u8]| self.judge(owners, addr, block);
        let mut rebuilding = self.array.begin_rebuild(segment, info.rows)?;
        while self.array.rebuild_more(&mut rebuilding, &judge).await? {
            // One that was emptied and freed misses nothing any more.
            let Some(again) = self.let_groups_on(still, segment, info.birth).await else {
                return Ok(rebuilding.give_up());
            };
            still = again;
        }
        Ok(rebuilding.end())
    }
}
