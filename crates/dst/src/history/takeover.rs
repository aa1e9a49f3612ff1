//! What of a history another machine has not found that took the pool over.

use super::{Change, History, Op, Ticket, UNKNOWN};

impl History {
    /// Leaves out numbers: another machine gives them to changes of its own.
    pub fn skip_numbers(&mut self, count: u32) {
        self.issued.resize(self.issued.len() + count as usize, (0, 0));
    }

    /// What each sector held when the volume was last read as a whole: the number of a change, 0
    /// for zeros.
    #[must_use]
    pub fn contents(&self) -> &[u32] {
        &self.base
    }

    /// A part of a change that is not in `found`, if that is certain.
    #[must_use]
    pub fn lost_of(&self, ticket: Ticket, found: &[u32]) -> Option<&Op> {
        let parts = &self.ops[ticket.from..ticket.from + ticket.parts];
        parts.iter().find(|op| self.is_lost(op, found))
    }

    /// A change that was answered before `issued` and is not in `found`, if that is certain.
    #[must_use]
    pub fn lost_before(&self, issued: u64, found: &[u32]) -> Option<&Op> {
        self.ops.iter().find(|op| op.completed() < issued && self.is_lost(op, found))
    }

    /// A durable change that is not in `found`, if that is certain.
    #[must_use]
    pub fn lost_durable(&self, found: &[u32]) -> Option<&Op> {
        self.ops.iter().find(|op| op.is_durable && self.is_lost(op, found))
    }

    /// True when a sector of `op` shows, in `found`, what ended before `op` was issued. Whatever
    /// ended later may have come after it.
    fn is_lost(&self, op: &Op, found: &[u32]) -> bool {
        if op.is_optional {
            return false;
        }
        for sector in op.first..op.first + op.count {
            let Some(shown) = found.get(sector as usize).copied() else { continue };
            let at_sector =
                |other: &&Op| (other.first..other.first + other.count).contains(&sector);
            let may_follow = |other: &&Op| other.completed() >= op.issued;
            let is_explained = match (shown, op.change) {
                (UNKNOWN, _) => true,
                (0, Change::Zero) => true,
                (0, Change::Write) => {
                    let mut zeroings = self.ops.iter().filter(|o| o.change == Change::Zero);
                    zeroings.any(|zeroing| at_sector(&zeroing) && may_follow(&zeroing))
                }
                (number, _) if number == op.number && op.change == Change::Write => return false,
                (number, _) => {
                    let is_it = |o: &&Op| o.number == number && o.change == Change::Write;
                    let mut shown = self.ops.iter().filter(is_it).filter(at_sector);
                    shown.any(|other| may_follow(&other))
                }
            };
            if !is_explained {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of eight sectors: a write of all that is durable, one of the last four that is
    /// answered, and one of the first four that is not.
    fn history() -> (History, [Ticket; 3]) {
        let mut history = History::new("v0", 8, 8);
        let first = history.issue(Change::Write, 0, 8, u64::MAX);
        history.complete(first, true);
        let answered = history.issue(Change::Write, 4, 4, u64::MAX);
        history.complete(answered, false);
        let pending = history.issue(Change::Write, 0, 4, u64::MAX);
        (history, [first, answered, pending])
    }

    #[test]
    fn change_that_the_next_owner_shows_or_has_replaced_is_not_lost() {
        let (history, [first, answered, pending]) = history();
        let found = [3, 3, 3, 3, 2, 2, 2, 2];
        for ticket in [first, answered, pending] {
            assert_eq!(history.lost_of(ticket, &found), None);
        }
    }

    #[test]
    fn change_that_the_next_owner_lacks_is_lost() {
        let (mut history, [first, answered, pending]) = history();
        let found = [1; 8];
        assert_eq!(history.lost_of(first, &found), None);
        assert!(history.lost_of(answered, &found).is_some());
        assert!(history.lost_of(pending, &found).is_some());
        let flush = history.now();
        assert_eq!(history.lost_before(flush, &found).map(|op| op.number), Some(2));
        assert_eq!(history.lost_before(flush, &[1, 1, 1, 1, 2, 2, 2, 2]), None);
    }

    #[test]
    fn zeros_explain_a_write_only_with_a_zeroing_that_may_follow_it() {
        let mut history = History::new("v0", 8, 8);
        let zeroing = history.issue(Change::Zero, 0, 8, u64::MAX);
        let beside = history.issue(Change::Write, 0, 8, u64::MAX);
        history.complete(zeroing, true);
        let after = history.issue(Change::Write, 0, 8, u64::MAX);
        assert_eq!(history.lost_of(beside, &[0; 8]), None);
        assert!(history.lost_of(after, &[0; 8]).is_some());
        assert!(history.lost_of(zeroing, &[u32::MAX; 8]).is_none());
    }
}
