//! Waiting for a person (or an init system) to ask the process to end.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use io_uring::{opcode, types};

use crate::uring;

/// Where the handler reports; -1 until somebody waits.
static EVENT_FD: AtomicI32 = AtomicI32::new(-1);

extern "C" fn report(_signal: libc::c_int) {
    // Only what is safe in a handler: one write, and errno left as it was.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let one = 1u64.to_ne_bytes();
        let _ = libc::write(EVENT_FD.load(Ordering::Relaxed), one.as_ptr().cast(), one.len());
        *errno = before;
    }
}

/// SIGINT and SIGTERM, from the first call of [`Interrupts::catch`] on.
pub struct Interrupts {
    event_fd: i32,
    count: Box<Cell<u64>>,
}

impl Interrupts {
    /// Takes both signals over for the whole process, for good.
    pub fn catch() -> io::Result<Self> {
        let mut event_fd = EVENT_FD.load(Ordering::Acquire);
        if event_fd < 0 {
            event_fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
            if event_fd < 0 {
                return Err(io::Error::last_os_error());
            }
            EVENT_FD.store(event_fd, Ordering::Release);
        }
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = report as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            let outcome =
                unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            if outcome != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { event_fd, count: Box::new(Cell::new(0)) })
    }

    /// Waits for the next signal. Needs a real runtime.
    pub async fn next(&mut self) -> io::Result<()> {
        let count = std::mem::replace(&mut self.count, Box::new(Cell::new(0)));
        let entry = opcode::Read::new(
            types::Fd(self.event_fd),
            count.as_ptr().cast(),
            size_of::<u64>() as u32,
        );
        let (outcome, count) = unsafe { uring::submit(entry.build(), count) }.await;
        self.count = count;
        outcome.map(|_| ())
    }
}
