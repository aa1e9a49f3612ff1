//! One connection of the server: the handshake, then requests that run side by side.
//!
//! The receiving loop starts requests; each puts its reply into the outbox, and one task sends. A
//! flush needs no barrier here: a request completes on the device before its reply leaves, and the
//! device's flush covers every completed write, from any connection.

mod ending;
mod negotiate;
mod perform;
mod progress;
mod requests;
mod state;
mod watchdog;

use std::cell::Cell;
use std::rc::Rc;

use forebay_rt as rt;
use forebay_rt::net::Stream;

use crate::channel::Channel;
use crate::exports::Exports;
use crate::inbox::Inbox;
pub(crate) use ending::{Denial, Ending};
use state::Connection;
pub(crate) use state::{Client, ServerState};
use watchdog::{Watchdog, watch_revocation, watch_stalls};

/// Serves one client from the greeting to the end of its connection.
pub(crate) async fn serve_connection(
    stream: Rc<Stream>,
    client: Client,
    exports: Rc<dyn Exports>,
    server: Rc<ServerState>,
) -> Ending {
    let limits = server.limits;
    let partial = Rc::new(Cell::new(0));
    let channel = Channel::new(stream.clone());
    let mut inbox = Inbox::new(channel.clone(), limits.receive_buffer_bytes, partial.clone());
    let negotiated =
        negotiate::negotiate(&stream, &channel, &mut inbox, &*exports, (&server, client.is_kernel));
    let outcome = rt::timeout_while_running(limits.handshake_deadline, negotiated).await;
    let (agreement, handle) = match outcome.unwrap_or(Err(Ending::TimedOut)) {
        Ok(agreed) => agreed,
        Err(ending) => {
            stream.shutdown();
            return ending;
        }
    };
    let connection =
        Connection::new(server.clone(), client, stream.clone(), channel, agreement, handle);
    let id = server.add(&connection);
    let sender = rt::spawn({
        let connection = connection.clone();
        async move { connection.outbox.run().await }
    });
    let watchdog = Rc::new(Watchdog::default());
    rt::spawn(watch_stalls(connection.clone(), stream.clone(), partial, watchdog.clone()));
    if let Some(revocation) = connection.handle.revocation.clone() {
        rt::spawn(watch_revocation(revocation, stream.clone(), watchdog.clone()));
    }

    let ending = requests::receive(&connection, &mut inbox).await;
    drop(inbox);
    connection.drained().await;
    connection.outbox.close();
    let sent = sender.await;
    watchdog.stop();
    server.remove(id);
    stream.shutdown();
    match ending {
        _ if connection.progress.is_evicted() => Ending::Evicted,
        _ if watchdog.timed_out() => Ending::TimedOut,
        Ending::Disconnected | Ending::Stopped if sent.is_err() => Ending::Lost,
        ending => ending,
    }
}
