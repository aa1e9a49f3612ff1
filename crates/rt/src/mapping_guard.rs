//! Guards of shared mappings: what another process takes out of a file costs that mapping only.
//!
//! What enters: ranges that are mapped from files of other processes. What leaves: whether a range
//! has lost its pages. What always holds: an access past the end of such a file meets zeros instead
//! of ending this process. Called by fronts that share memory with their clients.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that can be guarded at once.
const GUARDS_MAX: usize = 4096;

struct Slot {
    is_taken: AtomicBool,
    start: AtomicUsize,
    /// 0 while the slot guards nothing.
    len: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; GUARDS_MAX] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; GUARDS_MAX];
static INSTALL: Once = Once::new();

/// A guard of one mapping; dropping it ends the guard.
#[derive(Debug)]
pub struct MappingGuard {
    slot: usize,
}

impl MappingGuard {
    /// Guards the `len_bytes` bytes that are mapped at `start`.
    ///
    /// # Safety
    /// The range must be one shared mapping of its own, whole pages long, readable and writable,
    /// that is not unmapped before the guard is dropped.
    pub unsafe fn new(start: *mut u8, len_bytes: usize) -> io::Result<Self> {
        INSTALL.call_once(install);
        let free = |slot: &Slot| !slot.is_taken.swap(true, Ordering::AcqRel);
        let slot = SLOTS
            .iter()
            .position(free)
            .ok_or_else(|| io::Error::other(format!("{GUARDS_MAX} regions are mapped already")))?;
        SLOTS[slot].is_lost.store(false, Ordering::Release);
        SLOTS[slot].start.store(start as usize, Ordering::Release);
        SLOTS[slot].len.store(len_bytes, Ordering::Release);
        Ok(Self { slot })
    }

    /// Whether the mapping has lost pages: all of it has read as zeros since then.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        SLOTS[self.slot].is_lost.load(Ordering::Acquire)
    }
}

impl Drop for MappingGuard {
    fn drop(&mut self) {
        SLOTS[self.slot].len.store(0, Ordering::Release);
        SLOTS[self.slot].is_taken.store(false, Ordering::Release);
    }
}

fn install() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid sigaction.
    let action = unsafe { action.assume_init_mut() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler calls only what is safe in a handler; `action` outlives the call.
    let outcome = unsafe { libc::sigaction(libc::SIGBUS, action, std::ptr::null_mut()) };
    assert_eq!(outcome, 0, "SIGBUS can be handled");
}

/// Puts zeros in the place of a guarded mapping. Other faults end the process as ever.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo, and a SIGBUS has an address.
    let info = unsafe { &*info };
    // SAFETY: as above.
    let address = unsafe { info.si_addr() } as usize;
    for slot in &SLOTS {
        let (start, len) = (slot.start.load(Ordering::Acquire), slot.len.load(Ordering::Acquire));
        if address < start || address - start >= len {
            continue;
        }
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
        );
        // SAFETY: the owner of the guard promises that the range is one mapping of its own.
        let new = unsafe { libc::mmap(start as *mut _, len, protection, flags, -1, 0) };
        if new != libc::MAP_FAILED {
            slot.is_lost.store(true, Ordering::Release);
            return;
        }
    }
    // The access is repeated, and ends the process.
    // SAFETY: no pointers.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
