//! Ctrl-C, SIGTERM and SIGHUP as something to wait for.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use forebay_rt::sync::Notify;
use forebay_rt::{Either, uring};
use forebay_units::Nanos;
use io_uring::{opcode, types};

use crate::failure::{Failure, report};

/// Signals that are no further apart than this are one.
const SAME_WISH: Nanos = Nanos::from_millis(500);

/// SIGINT, SIGTERM and SIGHUP, taken away from their default action.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Takes the signals over. Call it before the runtime starts threads: they inherit the mask.
    pub fn take() -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::new(format!("signals cannot be handled: {e}"));
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            // The terminal is closed: end as well as on Ctrl-C (under nohup it never arrives).
            libc::sigaddset(&raw mut set, libc::SIGHUP);
        }
        let masked =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if masked != 0 {
            return Err(failed(io::Error::from_raw_os_error(masked)));
        }
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Watches from now on. The first signal is told to whoever waits; the second ends the
    /// process at once, without any cleaning up: what was acknowledged is durable already. One that
    /// comes right after the first is the same wish: timeout(1) sends it to the process and to its
    /// group, and a terminal that is closed and its shell both send one.
    #[must_use]
    pub fn watch(self) -> Rc<Stop> {
        let stop = Rc::new(Stop {
            asked: Cell::new(false),
            by: RefCell::default(),
            changed: Notify::new(),
        });
        let tell = stop.clone();
        // One task reads for the process's life: a read that is given up could swallow a signal.
        forebay_rt::spawn(async move {
            match self.next().await {
                Ok(signal) => *tell.by.borrow_mut() = signal.to_string(),
                Err(e) => report(&format!("signals cannot be read ({e}): stopping")),
            }
            let asked_at = forebay_rt::now();
            tell.asked.set(true);
            tell.changed.notify_all();
            while let Ok(signal) = self.next().await {
                if forebay_rt::now() > asked_at + SAME_WISH {
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
        // The vector is kept until the kernel is done, and moving it does not move its memory.
        let (outcome, memory) = unsafe { uring::submit(entry, memory) }.await;
        let got = outcome? as usize;
        if got < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The fields of signalfd_siginfo at 0, 8 and 12: the number, how it came, and from whom.
        let word = |at: usize| {
            i32::from_ne_bytes([memory[at], memory[at + 1], memory[at + 2], memory[at + 3]])
        };
        let from_process = word(8) <= 0;
        Ok(Signal { number: word(0), sender: from_process.then(|| word(12)) })
    }
}

/// A signal, and who sent it: a server that stops says why.
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

/// Whether the user wants the command to end.
pub struct Stop {
    asked: Cell<bool>,
    by: RefCell<String>,
    changed: Rc<Notify>,
}

impl Stop {
    /// Which signal asked, and whose it was.
    #[must_use]
    pub fn by(&self) -> String {
        self.by.borrow().clone()
    }

    /// Whether the user has asked already.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.get()
    }

    /// Waits until the user asks.
    pub async fn asked(&self) {
        self.changed.until(|| self.asked.get()).await;
    }

    /// `work`'s result, unless the user asks before it ends; then `None`, and `work` is dropped.
    pub async fn unless_asked<F: Future>(&self, work: F) -> Option<F::Output> {
        let asked = std::pin::pin!(self.asked());
        match forebay_rt::select(asked, std::pin::pin!(work)).await {
            Either::Left(_) => None,
            Either::Right((out, _)) => Some(out),
        }
    }
}
