//! System calls that the standard library has no safe form of, for every crate.
//!
//! What enters: open files, paths, numbers. What leaves: values, or the kernel's error. What always
//! holds: every function is safe to call; each `unsafe` block of this module is one system call,
//! and its pointers are to values that outlive the call.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_units::Nanos;

/// The error of the system call that has just failed, unless `outcome` says that it succeeded.
fn check(outcome: libc::c_int) -> io::Result<libc::c_int> {
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(outcome) }
}

/// Takes the file descriptor that a system call has just made.
fn owned(outcome: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(outcome)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A new eventfd whose counter is 0.
pub fn event_fd() -> io::Result<File> {
    // SAFETY: no pointers.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).map(File::from)
}

/// Fills `bytes` from the kernel's random number generator (at most 256 bytes at once).
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    assert!(bytes.len() <= 256, "the kernel gives more than 256 bytes in parts");
    // SAFETY: the kernel writes at most `len` bytes into `bytes`.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Time since the machine started, the time that it was suspended included.
#[must_use]
pub fn boot_time() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the timespec.
    let outcome = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    assert_eq!(outcome, 0, "every kernel with io_uring has this clock");
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Seconds since 1970, also outside of a runtime: for messages to people. Inside a runtime use
/// [`crate::wall_clock`].
#[must_use]
pub fn unix_time_secs() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

/// Seconds since 1970 as text, in local time, in a format of strftime(3).
#[must_use]
pub fn local_time(secs: u64, format: &CStr) -> Option<String> {
    let time = libc::time_t::try_from(secs).ok()?;
    let mut parts = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: `time` is read, `parts` is filled, and both outlive the call.
    let filled = unsafe { libc::localtime_r(&raw const time, parts.as_mut_ptr()) };
    if filled.is_null() {
        return None;
    }
    let mut text = [0u8; 64];
    // SAFETY: `localtime_r` has filled `parts`; at most `text.len()` bytes are written.
    let len = unsafe {
        libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), parts.as_ptr())
    };
    Some(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// The effective user id of this process.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: no pointers; the call cannot fail.
    unsafe { libc::geteuid() }
}

/// The host's name; empty when the kernel does not tell it.
#[must_use]
pub fn host_name() -> Vec<u8> {
    let mut name = vec![0u8; 256];
    // SAFETY: at most `len - 1` bytes are written, so the last byte stays 0.
    let _ = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    name.into_iter().take_while(|byte| *byte != 0).collect()
}

/// Locks `file` for this owner alone, until it is closed; false when another has it locked.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: no pointers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
    }
}

/// Sends SIGINT to this process, as a terminal does on Ctrl-C.
pub fn interrupt_self() {
    let pid = std::process::id() as libc::pid_t;
    // SAFETY: no pointers.
    let _ = unsafe { libc::kill(pid, libc::SIGINT) };
}

/// Whether the process has a controlling terminal. One whose terminal closes loses it.
#[must_use]
pub fn has_controlling_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Kills the processes of a group. Its leader has not been waited for yet, so that no other group
/// has its number.
pub fn kill_group(leader: u32) {
    let Ok(group) = libc::pid_t::try_from(leader) else { return };
    // SAFETY: no pointers.
    let _ = unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// Columns of the terminal behind `fd`; `None` when it is not a terminal or does not say.
#[must_use]
pub fn terminal_columns(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills a winsize.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (outcome == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Asks the file system for the space of `len_bytes` from the file's start at once.
pub fn preallocate(file: &File, len_bytes: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len_bytes).map_err(io::Error::other)?;
    // SAFETY: no pointers.
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) }).map(|_| ())
}

/// Bytes that this process may still use on the file system of `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` ends in a zero byte; the kernel fills `stat`; both outlive the call.
    check(unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) })?;
    // SAFETY: all zeros is a valid statvfs, and the call has filled it.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail * stat.f_frsize)
}

/// The magic number of the file system that holds `file`, as statfs(2) has it.
pub fn file_system_magic(file: &File) -> io::Result<libc::__fsword_t> {
    let mut stat = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills `stat`, which outlives the call.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: all zeros is a valid statfs, and the call has filled it.
    Ok(unsafe { stat.assume_init() }.f_type)
}

/// The logical block size of a block device; `None` when the device does not say.
#[must_use]
pub fn logical_block_bytes(device: &File) -> Option<u32> {
    // _IO(0x12, 104) of <linux/fs.h>
    const BLKSSZGET: libc::c_ulong = 0x1268;
    let mut bytes: libc::c_int = 0;
    // SAFETY: BLKSSZGET fills an int.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), BLKSSZGET, &raw mut bytes) };
    (outcome == 0).then(|| u32::try_from(bytes).ok())?
}

/// A new Unix stream socket.
pub(crate) fn unix_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })
}

/// A new socket to the families of generic netlink in the kernel. It blocks.
pub fn generic_netlink_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_GENERIC) })
}

/// Sends what the socket takes of `bytes` now; 0 when it takes nothing or has failed.
pub(crate) fn send_now(socket: &OwnedFd, bytes: &[u8]) -> usize {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the kernel reads at most `len` bytes of `bytes`.
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(sent).unwrap_or(0)
}

/// Copies what has arrived at a socket, and leaves it there. Does not wait.
pub(crate) fn peek_now(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let (fd, start) = (socket.as_raw_fd(), bytes.as_mut_ptr());
    // SAFETY: the kernel writes at most `len` bytes into `bytes`.
    let got = unsafe { libc::recv(fd, start.cast(), bytes.len(), flags) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Whether one direction of a socket has ended, whatever has arrived before.
pub(crate) fn has_hung_up(socket: &OwnedFd) -> bool {
    let (fd, events) = (socket.as_raw_fd(), libc::POLLRDHUP);
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: `polled` is one entry and outlives the call.
    let outcome = unsafe { libc::poll(&raw mut polled, 1, 0) };
    outcome > 0 && polled.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Takes what has arrived at a socket, and the file that was sent with it. Does not wait.
pub(crate) fn receive_file(
    socket: &OwnedFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    // Room for the header of one control message and one descriptor, aligned as its header is.
    let mut control = [0u64; 3];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid msghdr.
    let mut message = unsafe { MaybeUninit::<libc::msghdr>::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel fills what `message` points to, and all of that outlives the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled `message`, whose control memory is still there.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Ok((got, None));
    }
    // SAFETY: the header lies within `control`, which is aligned for it.
    let header = unsafe { *first };
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok((got, None));
    }
    // SAFETY: as above.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: a control message of this type has at least one descriptor.
    let fd = unsafe { data.cast::<libc::c_int>().read_unaligned() };
    owned(fd).map(|file| (got, Some(file)))
}

/// Bytes that have arrived at a socket and were not received.
pub(crate) fn arrived_bytes(socket: &OwnedFd) -> io::Result<usize> {
    let mut len: libc::c_int = 0;
    // SAFETY: FIONREAD fills an int.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut len) })?;
    Ok(usize::try_from(len).unwrap_or(0))
}

/// A file of `len_bytes` bytes of zeros in memory, which no process can make shorter.
pub fn memory_file(name: &CStr, len_bytes: u64) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` ends in a zero byte and outlives the call.
    let file = owned(unsafe { libc::memfd_create(name.as_ptr(), flags) }).map(File::from)?;
    file.set_len(len_bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Ends one or both directions of a socket. The call fails only when the socket is no longer
/// connected, which is what the caller wants.
pub(crate) fn shutdown(socket: &OwnedFd, how: std::net::Shutdown) {
    let how = match how {
        std::net::Shutdown::Read => libc::SHUT_RD,
        std::net::Shutdown::Write => libc::SHUT_WR,
        std::net::Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: no pointers.
    let _ = unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

/// Sets an integer option of a socket.
pub(crate) fn set_socket_option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` points to `len` bytes that outlive the call.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) }).map(|_| ())
}

/// Whether a file is a stream socket that listens. Fails for a file that is no socket.
pub(crate) fn is_listening(file: &OwnedFd) -> io::Result<bool> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ACCEPTCONN);
    let at = (&raw mut value).cast();
    // SAFETY: the kernel writes at most `len` bytes into `value`, and the new length into `len`.
    check(unsafe { libc::getsockopt(file.as_raw_fd(), level, name, at, &raw mut len) })?;
    Ok(value != 0)
}

/// A connection of a listening socket that does not block, if there is one.
pub(crate) fn accept_now(listener: &OwnedFd) -> io::Result<OwnedFd> {
    let (to, len) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the pointers are null: no address is asked for.
    owned(unsafe { libc::accept4(listener.as_raw_fd(), to, len, libc::SOCK_CLOEXEC) })
}

/// The process on the other side of a Unix socket.
pub(crate) fn peer_process(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `peer`, and the new length into `len`.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (outcome == 0 && peer.uid != u32::MAX).then_some(peer)
}

/// The user whose process has the other end of a TCP connection within this machine, from the
/// kernel's list of sockets (sock_diag(7)). `local` and `peer` are the addresses of this end.
/// `None` when the peer is another machine, or no process has its end any more.
pub(crate) fn loopback_peer_uid(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    if !peer.ip().to_canonical().is_loopback() {
        return None;
    }
    // SAFETY: no pointers.
    let socket = owned(unsafe {
        libc::socket(
            libc::AF_NETLINK,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            libc::NETLINK_SOCK_DIAG,
        )
    });
    let socket = socket.ok()?;
    let request = diag_request(peer, local);
    if send_now(&socket, &request) != request.len() {
        return None;
    }
    let mut answer = [0u8; 512];
    // SAFETY: the kernel writes at most `len` bytes into `answer`.
    let got = unsafe {
        let flags = libc::MSG_DONTWAIT;
        libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), flags)
    };
    diag_uid(answer.get(..usize::try_from(got).ok()?)?)
}

/// Length of `struct nlmsghdr`, and the kind of a question about one socket and of its answer.
const NETLINK_HEADER_BYTES: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Asks for the socket with the address `own`, connected to `peer`: `struct nlmsghdr` and `struct
/// inet_diag_req_v2` of <linux/inet_diag.h>.
fn diag_request(own: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = if own.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(u32::MAX.to_ne_bytes()); // in any state
    body.extend(own.port().to_be_bytes());
    body.extend(peer.port().to_be_bytes());
    for address in [own.ip(), peer.ip()] {
        let mut bytes = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        bytes.resize(16, 0);
        body.extend(bytes);
    }
    body.extend(0u32.to_ne_bytes()); // on any interface
    body.extend([0xff; 8]); // without a cookie
    let len = (NETLINK_HEADER_BYTES + body.len()) as u32;
    let mut message = len.to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]); // sequence and port
    message.extend(body);
    message
}

/// The owner of the socket in an answer, `struct inet_diag_msg`, when a process has it.
fn diag_uid(answer: &[u8]) -> Option<u32> {
    const STATE_AT: usize = NETLINK_HEADER_BYTES + 1;
    const UID_AT: usize = NETLINK_HEADER_BYTES + 64;
    const INODE_AT: usize = UID_AT + 4;
    const ESTABLISHED: u8 = 1;
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    // A socket that its process has closed has no inode, and counts as root's.
    let is_held = word(INODE_AT)? != 0 && *answer.get(STATE_AT)? == ESTABLISHED;
    (kind == SOCK_DIAG_BY_FAMILY && is_held).then(|| word(UID_AT)).flatten()
}

/// Blocks `signals` for the calling thread and the threads that it starts later, and returns a
/// descriptor that a read of a `signalfd_siginfo` takes them from.
pub fn signal_fd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` fills the set, which outlives the call.
    check(unsafe { libc::sigemptyset(set.as_mut_ptr()) })?;
    for signal in signals {
        // SAFETY: `sigemptyset` has filled the set.
        check(unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) })?;
    }
    // SAFETY: the set is filled; the old mask is not asked for.
    let error =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: the set is filled and outlives the call.
    owned(unsafe { libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC) })
}

/// Waits until one of two files can be read, or has ended. Which of them can: a regular file always
/// can. For programs without a runtime.
pub fn wait_readable(files: [BorrowedFd<'_>; 2]) -> io::Result<[bool; 2]> {
    let of =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled = files.map(of);
    loop {
        // SAFETY: `polled` has two entries and outlives the call.
        let outcome = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        match check(outcome) {
            Ok(_) => return Ok(polled.map(|file| file.revents != 0)),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether the process was started without a standard output.
static STARTED_WITHOUT_STDOUT: AtomicBool = AtomicBool::new(false);

/// Runs before the runtime of Rust, which opens /dev/null in the place of a closed standard output.
#[used]
// SAFETY: the section lists functions of this type that the loader calls once, before `main`.
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = {
    extern "C" fn look_at_stdout() {
        // SAFETY: no pointers; the descriptor need not be open.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        STARTED_WITHOUT_STDOUT.store(flags < 0, Ordering::Relaxed);
    }
    look_at_stdout
};

/// Standard output. Fails when the process was started without one: what is written would be lost.
pub fn stdout() -> io::Result<io::Stdout> {
    match STARTED_WITHOUT_STDOUT.load(Ordering::Relaxed) {
        true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        false => Ok(io::stdout()),
    }
}

/// Ends the process at once: nothing is flushed, and no destructor runs.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: no pointers; the call does not return.
    unsafe { libc::_exit(code) }
}

/// Makes the C library's allocator keep up to 1 GiB of freed memory instead of giving it back to
/// the kernel. Call it before the process has a second thread.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (name, value) in [
        (libc::M_MMAP_THRESHOLD, 1 << 30),
        (libc::M_TRIM_THRESHOLD, 1 << 30),
        (libc::M_TOP_PAD, 64 << 20),
    ] {
        // SAFETY: no pointers; it sets a threshold of the allocator.
        unsafe { libc::mallopt(name, value) };
    }
}
