//! `forebay pool status`, with what the devices say of pools that cannot be opened.

use std::rc::Rc;

use forebay_pool::Opener;
use forebay_pool::status::Health;

use super::outcome::Outcome;
use super::requests::{for_each, reply_as};
use crate::args::Report;
use crate::control::{Action, Reply};
use crate::devices::{FileOpener, answering};
use crate::drives::{Drives, devices_of};
use crate::failure::Failure;
use crate::fault_reason::explain_faults;
use crate::pool_access::PoolAccess;
use crate::render::{self, Closed, OpenPool};
use crate::terminal::with_waiting_line;

/// Switches of the command.
#[derive(Clone, Copy)]
pub struct Options {
    /// How to print.
    pub report: Report,
    /// Only pools that are not healthy.
    pub unhealthy: bool,
    /// Also lost blocks, and the health of drives.
    pub verbose: bool,
}

/// A pool as it is shown.
enum Shown {
    Open(Box<OpenPool>),
    /// It cannot be opened.
    Closed(Closed),
}

/// Shows the pools `wanted`, or all when none is named. A pool that cannot be opened is shown with
/// what its devices say, and makes the exit code 1.
pub async fn status(
    access: &PoolAccess,
    wanted: &[String],
    options: Options,
) -> Result<Outcome, Failure> {
    let names = access.names(wanted)?;
    let mut open: Vec<OpenPool> = Vec::new();
    let mut closed: Vec<Closed> = Vec::new();
    let mut texts = Vec::new();
    let looks = for_each(access, names.clone(), async |name| {
        Ok::<_, Failure>(match ask(access, name, options).await {
            Ok(pool) => Shown::Open(Box::new(pool)),
            Err(failure) => {
                // After Ctrl-C nothing more is looked up.
                access.check_not_interrupted()?;
                Shown::Closed(look(access, name, failure).await?)
            }
        })
    });
    for (_, shown) in looks.await? {
        match shown? {
            Shown::Open(pool) => {
                let status = &pool.status.pool;
                let is_healthy = status.state == Health::Online && status.lost_count == 0;
                if !(options.unhealthy && is_healthy) {
                    let exact = options.report.exact;
                    texts.push(render::status_text(&pool, exact, options.verbose));
                    open.push(*pool);
                }
            }
            Shown::Closed(pool) => {
                texts.push(render::closed_text(&pool));
                closed.push(pool);
            }
        }
    }
    let text = if options.report.json {
        render::status_json(&open, &closed)
    } else if names.is_empty() {
        "no pools available\n".to_owned()
    } else if texts.is_empty() {
        "all pools are healthy\n".to_owned()
    } else {
        texts.join("\n")
    };
    Ok(Outcome { text, complete: closed.is_empty() })
}

async fn ask(access: &PoolAccess, name: &str, options: Options) -> Result<OpenPool, Failure> {
    let handle = access.open(name).await?;
    let outcome = reply_as!(handle.ask(Action::Status).await, Reply::Status);
    let server_pid = handle.server_pid();
    let mut pool = outcome.map(|status| OpenPool { status: *status, server_pid });
    if let Ok(OpenPool { status, .. }) = &mut pool {
        if handle.is_local() && (options.verbose || options.report.json) {
            // A server has read the drives already.
            let drives = Drives::default();
            drives.read(&devices_of(&status.pool)).await;
            status.drives = drives.of(&status.pool);
        }
    }
    handle.close_after(pool).await
}

/// What the devices of a pool say that could not be opened because of `failure`.
async fn look(access: &PoolAccess, name: &str, failure: Failure) -> Result<Closed, Failure> {
    let known = access.state().known_pools()?.into_iter().find(|pool| pool.name == name);
    let Some(known) = known.filter(|_| access.server_of(name).is_none()) else {
        // Its server did not answer.
        return Err(failure);
    };
    let what = format!("looking at the devices of '{name}'");
    let devices = with_waiting_line(&what, false, answering(&known.devices)).await;
    let found = access.discover(&devices).await?;
    let found = found.into_iter().find(|found| found.guid == known.guid);
    let mut pool = Closed::new(&known, found, failure);
    let opener: Rc<dyn Opener> = Rc::new(FileOpener);
    let explaining = async {
        for vdev in pool.vdevs_mut() {
            explain_faults(&opener, known.guid, vdev).await;
        }
    };
    with_waiting_line(&what, false, explaining).await;
    Ok(pool)
}
