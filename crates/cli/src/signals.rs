//! Signals: Ctrl-C, SIGTERM and SIGHUP as an event to wait for.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

use forebay_rt::signal::{self, Signal};
use forebay_rt::sync::Notify;
use forebay_rt::{Either, sys};
use forebay_units::Nanos;

use crate::failure::Failure;
use crate::log;
use crate::terminal;

/// Signals that are no further apart than this count as one.
const REPEAT_WINDOW: Nanos = Nanos::from_millis(500);

/// SIGINT, SIGTERM and SIGHUP, without their default actions.
pub struct Signals(signal::Signals);

impl Signals {
    /// Blocks the signals and reads them instead. To be called before the runtime starts threads,
    /// which inherit the mask.
    pub fn take() -> Result<Self, Failure> {
        // A closed terminal (SIGHUP) counts as Ctrl-C. Under nohup the signal never arrives.
        let taken = signal::Signals::take(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
        taken.map(Self).map_err(|e| Failure::io("signals cannot be handled", &e))
    }

    /// Watches from now on. The first signal sets [`Stop`]. A second one ends the process at once,
    /// without cleaning up but for the terminal: what was acknowledged is durable already. A second
    /// one within [`REPEAT_WINDOW`] is ignored: timeout(1) signals the process and its group, and a
    /// terminal that closes and its shell both send one.
    #[must_use]
    pub fn watch(self) -> Rc<Stop> {
        let stop = Rc::new(Stop {
            asked: Cell::new(false),
            by: RefCell::default(),
            changed: Notify::new(),
            ignores_hangup: Cell::new(false),
        });
        let tell = stop.clone();
        // One task reads for the life of the process: a cancelled read could lose a signal.
        forebay_rt::spawn(async move {
            match self.next_that_ends(&tell).await {
                Ok(signal) => *tell.by.borrow_mut() = describe(signal),
                Err(e) => log::error(&format!("signals cannot be read ({e}): stopping")),
            }
            let asked_at = forebay_rt::now();
            tell.asked.set(true);
            tell.changed.notify_all();
            while let Ok(signal) = self.next_that_ends(&tell).await {
                if forebay_rt::now() > asked_at + REPEAT_WINDOW {
                    terminal::give_back();
                    sys::exit_at_once(128 + signal.number)
                }
            }
        });
        stop
    }

    /// The next signal that is no hangup to be ignored.
    async fn next_that_ends(&self, stop: &Stop) -> io::Result<Signal> {
        loop {
            let signal = self.0.next().await?;
            let is_of_process = signal.sender_pid.is_some();
            if signal.number != libc::SIGHUP || !is_of_process || !stop.ignores_hangup.get() {
                return Ok(signal);
            }
            log::warning(&format!(
                "{} changes nothing: settings are read at the start only; restart the service \
                 after a change",
                describe(signal)
            ));
        }
    }
}

/// The signal and its sender: a server that stops reports both.
fn describe(signal: Signal) -> String {
    let name = match signal.number {
        libc::SIGINT => "SIGINT",
        libc::SIGTERM => "SIGTERM",
        libc::SIGHUP => "SIGHUP",
        _ => "a signal",
    };
    match signal.sender_pid {
        Some(pid) => format!("{name} of process {pid}"),
        None => format!("{name} of the terminal"),
    }
}

/// Whether the operator wants the process to end.
pub struct Stop {
    asked: Cell<bool>,
    by: RefCell<String>,
    changed: Rc<Notify>,
    ignores_hangup: Cell<bool>,
}

impl Stop {
    /// From now on a process that sends SIGHUP does not end this one, if this one has no terminal.
    /// Such a SIGHUP asks a service to read its settings again. From the terminal, or from a shell
    /// whose terminal closes, it still counts as Ctrl-C.
    pub fn ignore_hangup_without_terminal(&self) {
        self.ignores_hangup.set(!sys::has_controlling_terminal());
    }

    /// The signal that asked, and its sender.
    #[must_use]
    pub fn by(&self) -> String {
        self.by.borrow().clone()
    }

    /// Whether the operator has asked.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Waits until the operator asks.
    pub async fn asked(&self) {
        self.changed.until(|| self.asked.get()).await;
    }

    /// `work`'s result; `None`, with `work` dropped, when the operator asks before it ends.
    pub async fn unless_asked<F: Future>(&self, work: F) -> Option<F::Output> {
        let asked = std::pin::pin!(self.asked());
        match forebay_rt::select(asked, std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((out, _)) => Some(out),
        }
    }
}
