//! Signals of the process as something to wait for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{opcode, types};

use crate::{sys, uring};

/// Signals that are taken away from their default action.
pub struct Signals {
    fd: OwnedFd,
}

/// A signal that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// The process that sent it; `None` when the kernel did (the terminal, mostly).
    pub sender_pid: Option<i32>,
}

impl Signals {
    /// Takes `signals` over, for the calling thread and the threads that it starts later. Call it
    /// before the process has a second thread.
    pub fn take(signals: &[i32]) -> io::Result<Self> {
        Ok(Self { fd: sys::signal_fd(signals)? })
    }

    /// SIGINT and SIGTERM: a person or an init system asks the process to end.
    pub fn interrupts() -> io::Result<Self> {
        Self::take(&[libc::SIGINT, libc::SIGTERM])
    }

    /// Waits for the next signal. Needs a real runtime. A call that is dropped may lose a signal.
    pub async fn next(&self) -> io::Result<Signal> {
        let len = size_of::<libc::signalfd_siginfo>();
        let mut memory = vec![0u8; len];
        let target = types::Fd(self.fd.as_raw_fd());
        let entry = opcode::Read::new(target, memory.as_mut_ptr(), len as u32).build();
        // SAFETY: the entry points into `memory`, whose heap block stays where it is.
        let (outcome, memory) = unsafe { uring::submit(entry, memory) }.await;
        if (outcome? as usize) < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The fields ssi_signo, ssi_code and ssi_pid of a signalfd_siginfo.
        let word = |at: usize| {
            i32::from_ne_bytes([memory[at], memory[at + 1], memory[at + 2], memory[at + 3]])
        };
        let is_from_process = word(8) <= 0;
        Ok(Signal { number: word(0), sender_pid: is_from_process.then(|| word(12)) })
    }
}
