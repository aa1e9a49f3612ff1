//! Doorbells: eventfds that another process has handed over. No peer can block the thread by one.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use io_uring::{opcode, types};

use crate::uring;

const COUNTER_BYTES: u32 = 8;

/// Waits until the other side rings, and resets the counter.
pub async fn wait(bell: Rc<File>) -> io::Result<()> {
    loop {
        let fd = types::Fd(bell.as_raw_fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).build();
        // SAFETY: the entry has no pointers.
        let (outcome, _) = unsafe { uring::submit(poll, bell.clone()) }.await;
        outcome?;
        let mut counter = Box::new([0u8; COUNTER_BYTES as usize]);
        let read = opcode::Read::new(fd, counter.as_mut_ptr(), COUNTER_BYTES).build();
        // SAFETY: the entry points into the box, which is kept.
        let (outcome, _) = unsafe { uring::submit(read, (bell.clone(), counter)) }.await;
        match outcome {
            Ok(COUNTER_BYTES) => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

/// Rings for the other side. A counter that is full has been rung already.
pub async fn ring(bell: Rc<File>) {
    let one = Box::new(1u64.to_ne_bytes());
    let fd = types::Fd(bell.as_raw_fd());
    let write = opcode::Write::new(fd, one.as_ptr(), COUNTER_BYTES).build();
    // SAFETY: the entry points into the box, which is kept.
    let _ = unsafe { uring::submit(write, (bell, one)) }.await;
}
