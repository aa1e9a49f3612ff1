//! The screen of pools that are open in this process.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_pool::Pool;
use forebay_rt as rt;

use super::{Key, Moment, Track, View};
use crate::control::StatusReport;
use crate::explain::advice;
use crate::log;

/// The screen, and what it knows of each pool by the pool's id. Messages wait for its end.
pub struct LocalView {
    view: View,
    tracks: Vec<(u64, Track)>,
    chosen: usize,
}

impl LocalView {
    /// Turns to the terminal's other page; `None` when the terminal cannot.
    pub fn open() -> Option<Self> {
        let view = View::open()?;
        log::hold();
        Some(Self { view, tracks: Vec::new(), chosen: 0 })
    }

    /// Takes what the pools are now.
    pub fn add(&mut self, pools: &[Rc<Pool>]) {
        self.tracks.retain(|(guid, _)| pools.iter().any(|pool| pool.guid() == *guid));
        for pool in pools {
            if self.tracks.iter().all(|(guid, _)| *guid != pool.guid()) {
                self.tracks.push((pool.guid(), Track::default()));
            }
            let known = self.tracks.iter_mut().find(|(guid, _)| *guid == pool.guid());
            let Some((_, track)) = known else { continue };
            let moment = moment(pool, track.last_event());
            track.add(moment, rt::now());
        }
    }

    /// Draws what there is, and follows the keys. Returns the key that ends the screen, if it was
    /// hit.
    pub fn show(&mut self) -> Option<Key> {
        let count = self.tracks.len().max(1);
        self.chosen %= count;
        let nothing = Track::default();
        let track = self.tracks.get(self.chosen).map_or(&nothing, |(_, track)| track);
        self.view.show(track, (self.chosen, count));
        match self.view.key()? {
            Key::Next => self.chosen += 1,
            Key::Before => self.chosen += count - 1,
            Key::Resized => {}
            end @ (Key::Leave | Key::Interrupt) => return Some(end),
        }
        None
    }
}

impl Drop for LocalView {
    fn drop(&mut self) {
        self.view.close();
        log::release();
    }
}

fn moment(pool: &Pool, after: u64) -> Moment {
    Moment {
        status: StatusReport {
            pool: pool.status(),
            advice: advice(&pool.name(), &pool.condition()),
            drives: BTreeMap::new(),
        },
        summary: pool.summary(),
        stats: pool.stats(),
        pulse: pool.pulse(),
        events: pool.events_after(after),
    }
}
