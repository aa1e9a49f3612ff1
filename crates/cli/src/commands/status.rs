//! `pool status`, with what can be told of pools that cannot be opened.

use forebay_pool::status::{Health, PoolStatus};

use super::outcome::Outcome;
use super::requests::reply_as;
use crate::args::Report;
use crate::control::{Action, Reply};
use crate::failure::Failure;
use crate::pool_access::PoolAccess;
use crate::render::{self, Closed};

/// Switches of the command.
#[derive(Clone, Copy)]
pub struct Options {
    /// How to print.
    pub report: Report,
    /// Only pools that are not well.
    pub unhealthy: bool,
    /// Also what is lost.
    pub verbose: bool,
}

/// Shows the pools `wanted`, all when none is named. One that cannot be opened is shown with what
/// its devices say, and makes the exit code 1.
pub async fn status(
    access: &PoolAccess,
    wanted: &[String],
    options: Options,
) -> Result<Outcome, Failure> {
    let names = access.names(wanted)?;
    let mut open: Vec<PoolStatus> = Vec::new();
    let mut closed: Vec<Closed> = Vec::new();
    let mut texts = Vec::new();
    for name in &names {
        match ask(access, name).await {
            Ok(status) => {
                let well = status.state == Health::Online && status.lost_count == 0;
                if !(options.unhealthy && well) {
                    let exact = options.report.exact;
                    texts.push(render::status_text(&status, exact, options.verbose));
                    open.push(status);
                }
            }
            Err(failure) => {
                // Who has interrupted it does not want to know.
                access.check_not_interrupted()?;
                let pool = look(access, name, failure).await?;
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

async fn ask(access: &PoolAccess, name: &str) -> Result<PoolStatus, Failure> {
    let handle = access.open(name).await?;
    let outcome = reply_as!(handle.ask(Action::Status).await, Reply::Status);
    handle.close_after(outcome.map(|status| *status)).await
}

/// What the devices of a pool say, that `failure` kept from being opened.
async fn look(access: &PoolAccess, name: &str, failure: Failure) -> Result<Closed, Failure> {
    let known = access.state().known_pools()?.into_iter().find(|pool| pool.name == name);
    let Some(known) = known.filter(|_| access.server_of(name).is_none()) else {
        // A server has it, and did not answer.
        return Err(failure);
    };
    let found = access.discover(&known.devices).await?;
    let found = found.into_iter().find(|found| found.guid == known.guid);
    Ok(Closed::new(&known, found, failure.message))
}
