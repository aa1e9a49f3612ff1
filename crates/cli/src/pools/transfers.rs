//! Streams of the set's pools: who may begin one.

use std::rc::Rc;

use forebay_pool::SendOptions;

use super::actions::remember_command;
use super::{PoolSet, few};
use crate::control::{Action, Request, SendSize};
use crate::failure::{ErrorCode, Failure};
use crate::transfer::{Incoming, Outgoing};

impl PoolSet {
    /// Begins to send from the pool `name`.
    pub fn begin_send(&self, name: &str, options: &SendOptions) -> Result<Outgoing, Failure> {
        let pool = self.pool_to_use(name)?;
        let sender = pool.send(options)?;
        let sent = sender.name().to_owned();
        let base = sender.base().map(|base| {
            let volume = sent.split('@').next().unwrap_or_default();
            format!("{volume}@{base}")
        });
        let what = format!("{sent} by 'volume send'");
        let snapshots = base.into_iter().chain([sent]).collect();
        Ok(Outgoing::new(sender, self.transfers.add(name, snapshots, what)))
    }

    /// How long a stream is.
    pub(super) async fn send_size(
        &self,
        name: &str,
        options: &SendOptions,
    ) -> Result<SendSize, Failure> {
        let sender = self.pool(name)?.send(options)?;
        let len_bytes = sender.estimate_bytes().await?;
        let (name, base) = (sender.name().to_owned(), sender.base().map(str::to_owned));
        Ok(SendSize { name, base, start_bytes: sender.start_bytes(), len_bytes })
    }

    /// Begins to receive into a volume, which is taken from its clients when the stream fits it.
    pub async fn begin_receive(&self, request: &Request) -> Result<Incoming, Failure> {
        let Action::Receive { volume, options } = &request.action else {
            return Err(Failure::usage("no stream was asked for"));
        };
        let _alone = self.changing.lock().await;
        let pool = self.pool_to_use(&request.pool)?;
        let name = format!("{}/{volume}", request.pool);
        let held = self.leases.who_holds(&name);
        if !held.is_empty() && !options.roll_back {
            let clients: Vec<String> = held.into_values().flatten().collect();
            let message = format!("'{name}' is busy: clients hold it ({})", few(&clients));
            return Err(Failure::new(ErrorCode::PoolBusy, message)
                .with_hint("disconnect them, or use -F to cut them off"));
        }
        remember_command(&pool, &request.typed);
        let what = format!("{name} by 'volume receive'");
        let ticket = self.transfers.add(&request.pool, Vec::new(), what);
        let (leases, held) = (self.leases.clone(), name.clone());
        let receiver = pool.receive(volume, *options).with_cut_off(move || leases.revoke(&held));
        Ok(Incoming::new(receiver, ticket, name))
    }

    fn pool_to_use(&self, name: &str) -> Result<Rc<forebay_pool::Pool>, Failure> {
        if self.is_leaving.get() {
            let message = "the server is about to end; try again in a moment";
            return Err(Failure::new(ErrorCode::ServerStopping, message));
        }
        self.pool(name)
    }
}
