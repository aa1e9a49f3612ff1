//! Ctrl-C and SIGTERM as something to wait for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use forebay_rt::uring;
use io_uring::{opcode, types};

use crate::failure::Failure;

/// SIGINT and SIGTERM, taken away from their default action.
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Takes both signals over. Call it before the runtime starts threads: they inherit the mask.
    pub fn take() -> Result<Self, Failure> {
        let failed = |e: io::Error| Failure::new(format!("signals cannot be handled: {e}"));
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        unsafe {
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGINT);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
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

    /// Waits for the next of them; its number.
    pub async fn next(&self) -> io::Result<i32> {
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
        // The first field of signalfd_siginfo is the number.
        let number = [memory[0], memory[1], memory[2], memory[3]];
        Ok(u32::from_ne_bytes(number) as i32)
    }
}

/// Ends the process at once, without any cleaning up: the answer to a second Ctrl-C. What was
/// acknowledged is durable already.
pub fn exit_now(signal: i32) -> ! {
    unsafe { libc::_exit(128 + signal) }
}
