//! Virtual machines: the volumes as disks of vhost-user-blk, and what is reported of front ends.

use std::path::Path;
use std::rc::Rc;

use forebay_nbd::{Exports, Peer};
use forebay_vhost::{Disk, Disks, Event, Limits, Server};

use crate::client_classes::Class;
use crate::failure::{ErrorCode, Failure};
use crate::pools::PoolSet;

/// The volumes of a set of pools.
struct Volumes(Rc<PoolSet>);

impl Disks for Volumes {
    fn names(&self) -> Vec<String> {
        self.0.list(&Peer::default()).into_iter().map(|entry| entry.name).collect()
    }

    fn open(&self, name: &str, peer: &str) -> Option<Disk> {
        let peer = Peer { address: peer.to_owned(), ..Peer::default() };
        let handle = self.0.open_as(name, &peer, Class::Machine).ok()?;
        let revocation = handle.revocation;
        let revoked = Box::pin(async move {
            match revocation {
                Some(revocation) => revocation.revoked().await,
                None => std::future::pending().await,
            }
        });
        let (device, read_only, hold) = (handle.device, handle.read_only, handle.hold);
        Some(Disk { device, read_only, hold, revoked })
    }
}

/// A server of the volumes of `set`, with its sockets in `folder`.
pub(super) fn server(set: &Rc<PoolSet>, folder: &Path) -> Result<Rc<Server>, Failure> {
    let disks = Rc::new(Volumes(set.clone()));
    Server::new(disks, folder, Limits::default()).map_err(|e| {
        let message = format!("--vhost-user {}: {e}", folder.display());
        Failure::new(ErrorCode::CannotListen, message)
            .with_hint("name a folder that exists, and that this user may write to")
    })
}

/// Follows the volumes that came and went. Returns what the operator should know.
pub(super) fn look(server: &Rc<Server>) -> Vec<String> {
    server.update();
    server.take_events().iter().map(sentence).collect()
}

fn sentence(event: &Event) -> String {
    match event {
        Event::NoSocket { name, path, reason } => {
            format!("{name}: virtual machines cannot connect at {}: {reason}", path.display())
        }
        Event::Refused { name, peer } => format!(
            "{name}: refused {peer}: another virtual machine has the volume; disconnect that first"
        ),
        Event::Broken { name, peer, reason } => {
            format!("{name}: disconnected the virtual machine of {peer}: {reason}")
        }
        Event::LostWrites { name } => format!(
            "{name}: the server before this one died with writes that its virtual machine had not \
             flushed; its next flush fails, so that it knows: check its file systems, or restart it"
        ),
    }
}
