//! Signals: Ctrl-C, SIGTERM and SIGHUP as an event to wait for.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use forebay_rt::sync::Notify;
use forebay_rt::{Either, uring};
use forebay_units::Nanos;
use io_uring::{opcode, types};

use crate::failure::Failure;
use crate::log;

/// Signals that are no further apart than this count as one.
const REPEAT_WINDOW: Nanos = Nanos::from_millis(500);

/// SIGINT, SIGTERM and SIGHUP, without their default actions.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals and reads them instead. To be called before the runtime starts threads,
    /// which inherit the mask.
    pub fn take() -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::io("signals cannot be handled", &e);
        // SAFETY: all-zero bytes are a valid signal set.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is live, and the signal numbers are valid.
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            // A closed terminal counts as Ctrl-C (under nohup the signal never arrives).
            libc::sigaddset(&raw mut set, libc::SIGHUP);
        }
        // SAFETY: the set is live, and the old mask is not asked for.
        let masked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if masked != 0 {
            return Err(failed(io::Error::from_raw_os_error(masked)));
        }
        // SAFETY: the set is live; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor was just made, and nothing else owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Watches from now on. The first signal sets [`Stop`]. A second one ends the process at once,
    /// without cleaning up: what was acknowledged is durable already. A second one within
    /// [`REPEAT_WINDOW`] is ignored: timeout(1) signals the process and its group, and a terminal
    /// that closes and its shell both send one.
    #[must_use]
    pub fn watch(self) -> Rc<Stop> {
        let stop = Rc::new(Stop {
            asked: Cell::new(false),
            by: RefCell::default(),
            changed: Notify::new(),
        });
        let tell = stop.clone();
        // One task reads for the life of the process: a cancelled read could lose a signal.
        forebay_rt::spawn(async move {
            match self.next().await {
                Ok(signal) => *tell.by.borrow_mut() = signal.to_string(),
                Err(e) => log::error(&format!("signals cannot be read ({e}): stopping")),
            }
            let asked_at = forebay_rt::now();
            tell.asked.set(true);
            tell.changed.notify_all();
            while let Ok(signal) = self.next().await {
                if forebay_rt::now() > asked_at + REPEAT_WINDOW {
                    // SAFETY: the call does not return, and runs no handlers.
                    unsafe { libc::_exit(128 + signal.number) }
                }
            }
        });
        stop
    }

    async fn next(&self) -> io::Result<Signal> {
        let len = size_of::<libc::signalfd_siginfo>();
        let mut memory = vec![0u8; len];
        let target = types::Fd(self.fd.as_raw_fd());
        let entry = opcode::Read::new(target, memory.as_mut_ptr(), len as u32).build();
        // SAFETY: the vector is kept until the kernel is done; moving it does not move its memory.
        let (outcome, memory) = unsafe { uring::submit(entry, memory) }.await;
        let got = outcome? as usize;
        if got < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The fields of signalfd_siginfo at 0, 8 and 12: number, origin, and process id of the sender.
        let word = |at: usize| {
            i32::from_ne_bytes([memory[at], memory[at + 1], memory[at + 2], memory[at + 3]])
        };
        let from_process = word(8) <= 0;
        Ok(Signal { number: word(0), sender: from_process.then(|| word(12)) })
    }
}

/// A signal and its sender: a server that stops reports both.
struct Signal {
    number: i32,
    sender: Option<i32>,
}

impl std::fmt::Display for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.number {
            libc::SIGINT => "SIGINT",
            libc::SIGTERM => "SIGTERM",
            libc::SIGHUP => "SIGHUP",
            _ => "a signal",
        };
        match self.sender {
            Some(pid) => write!(f, "{name} of process {pid}"),
            None => write!(f, "{name} of the terminal"),
        }
    }
}

/// Whether the operator wants the process to end.
pub struct Stop {
    asked: Cell<bool>,
    by: RefCell<String>,
    changed: Rc<Notify>,
}

impl Stop {
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

    /// `work`'s result, unless the operator asks before it ends; then `None`, and `work` is dropped.
    pub async fn unless_asked<F: Future>(&self, work: F) -> Option<F::Output> {
        let asked = std::pin::pin!(self.asked());
        match forebay_rt::select(asked, std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((out, _)) => Some(out),
        }
    }
}
