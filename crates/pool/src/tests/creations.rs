//! Creations of a pool that a failed command ends.

use std::cell::Cell;
use std::rc::Rc;

use forebay_device::{ErrorKind, Operation};
use forebay_rt::Runtime;
use forebay_testkit::{Answer, Command, Decision, Script};
use forebay_units::Layout;

use super::rack::{memory, scripted};
use super::{names, spec};
use crate::Pool;
use crate::spec::PoolSpec;

const ALL: [&str; 4] = ["a", "b", "l", "c"];

/// Fails one command that changes a device.
#[derive(Default)]
struct FailsOnce {
    until: Cell<u32>,
}

impl Script for FailsOnce {
    fn before<'a>(&'a self, command: Command<'a>) -> Answer<'a, Decision> {
        let changes = matches!(command.operation, Operation::Write | Operation::Flush);
        let fails = changes && self.until.get() == 1;
        if changes {
            self.until.set(self.until.get().saturating_sub(1));
        }
        let decision = match fails {
            true => Decision::Fail(ErrorKind::Os { errno: 5 }),
            false => Decision::Run,
        };
        Box::pin(std::future::ready(decision))
    }
}

fn whole() -> PoolSpec {
    PoolSpec { caches: names(&["c"]), ..spec(Layout::Mirror, &["a", "b"], &["l"]) }
}

#[test]
fn a_creation_that_a_failed_command_ends_leaves_no_device_in_a_pool() {
    Runtime::simulated(9301).block_on(async {
        for failed in 1.. {
            let fails = Rc::new(FailsOnce::default());
            let opener = scripted(memory(&ALL, 64 << 20), fails.clone());
            fails.until.set(failed);
            let made = Pool::create(opener.clone(), "tank", &whole()).await;
            if fails.until.get() > 0 || made.is_ok() {
                made.unwrap().export().await.unwrap();
                assert!(failed > 30, "only {failed} commands");
                return;
            }
            let found = Pool::discover(opener.clone(), &names(&ALL)).await;
            assert!(found.is_empty(), "after command {failed}: {found:?}");
            // Without -f: no device belongs to a pool.
            let again = Pool::create(opener, "tank", &whole()).await;
            again.unwrap_or_else(|e| panic!("after command {failed}: {e}")).export().await.unwrap();
        }
    });
}
