//! What clients of a pool know when another machine takes the pool.
//!
//! What always holds: once the next owner has read the pool, what clients of the owner before are
//! told is durable must be what it found. Errors that they see until then count only when the other
//! machine gives up.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Issued, Model};
use crate::verdict::{Failure, Kind};

/// Numbers of changes that one volume of two machines may have each after a takeover.
const NUMBERS_OF_EACH: u32 = 1 << 13;

/// Another machine that wants the pool of these clients.
#[derive(Default)]
pub(super) enum Rival {
    /// There is none.
    #[default]
    None,
    /// It imports the pool. The first failure since.
    Importing(Option<Failure>),
    /// It has the pool. What each volume held when it had read it, by sector: the number of a
    /// change.
    HasIt(BTreeMap<u32, Vec<u32>>),
}

impl Model {
    /// Another machine begins to import the pool.
    pub fn rival_imports(&self) {
        self.rival.replace(Rival::Importing(None));
        self.list_is_behind.set(true);
    }

    /// Another machine was refused: whatever clients saw meanwhile counts.
    pub fn rival_is_refused(&self) {
        if let Rival::Importing(Some(Failure { kind, message })) = self.rival.take() {
            self.object(kind, message);
        }
    }

    /// The model of the clients of the next owner, which has imported the pool and not read it.
    #[must_use]
    pub fn of_next_owner(&self) -> Rc<Self> {
        let next = self.fork();
        next.forget_callers();
        for volume in next.volumes.borrow_mut().values_mut() {
            volume.history.skip_numbers(NUMBERS_OF_EACH);
        }
        next
    }

    /// The next owner has read the pool, and `next` is what its clients know since.
    pub fn is_replaced_by(&self, next: &Self) {
        let volumes = next.volumes.borrow();
        let contents = volumes.iter().map(|(id, v)| (*id, v.history.contents().to_vec()));
        let contents: BTreeMap<u32, Vec<u32>> = contents.collect();
        for (id, volume) in &*self.volumes.borrow() {
            let lost = contents.get(id).and_then(|found| volume.history.lost_durable(found));
            if let Some(lost) = lost {
                let text = format!("v{id}: durable, and the next owner lacks it: {lost}");
                self.object_for_certain(Kind::Owners, text);
            }
        }
        self.rival.replace(Rival::HasIt(contents));
    }

    /// Keeps a failure for later, or forgets it, while another machine has its hands on the pool.
    /// Returns what counts.
    pub(super) fn contested(&self, failure: Failure) -> Option<Failure> {
        match &mut *self.rival.borrow_mut() {
            Rival::None => return Some(failure),
            Rival::Importing(first) => drop(first.get_or_insert(failure)),
            Rival::HasIt(_) => {}
        }
        None
    }

    /// Adds the counts of the clients of the owner before.
    pub fn absorb(&self, before: &Self) {
        self.acts.set(self.acts.get() + before.acts.get());
        for (event, times) in before.events() {
            self.count(&event, times);
        }
    }

    /// Objects when a change is answered as durable that the next owner has not found.
    pub(super) fn judge_late_answer(&self, id: u32, issued: &Issued) {
        let rival = self.rival.borrow();
        let Rival::HasIt(contents) = &*rival else { return };
        let volumes = self.volumes.borrow();
        let (Some(volume), Some(found)) = (volumes.get(&id), contents.get(&id)) else { return };
        if let Some(lost) = volume.history.lost_of(issued.ticket, found) {
            let text =
                format!("v{id}: acknowledged as durable, and the next owner lacks it: {lost}");
            self.object_for_certain(Kind::Owners, text);
        }
    }

    /// Objects when a flush that was issued at `issued` is answered, and the next owner has not
    /// found what was answered before it.
    pub fn judge_late_flush(&self, id: u32, issued: u64) {
        let rival = self.rival.borrow();
        let Rival::HasIt(contents) = &*rival else { return };
        let volumes = self.volumes.borrow();
        let (Some(volume), Some(found)) = (volumes.get(&id), contents.get(&id)) else { return };
        if let Some(lost) = volume.history.lost_before(issued, found) {
            let text = format!("v{id}: flushed, and the next owner lacks it: {lost}");
            self.object_for_certain(Kind::Owners, text);
        }
    }
}
