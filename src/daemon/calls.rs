//! Tries at the start the system calls that the process cannot do without, and unblocks its signals.
//!
//! A call that a seccomp profile refuses would be a panic or an abort, at the start or when the first client comes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use nix::sys::signal::{SigSet, Signal};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Tries each of these system calls.
///
/// # Errors
/// The system refuses a call, which the error names.
pub fn try_calls() -> io::Result<()> {
    let refuses = |call| move |error: io::Error| io::Error::other(format!("the system refuses {call}: {error}"));
    // AWS-LC aborts the process if getrandom fails, except with ENOSYS: then AWS-LC reads /dev/urandom.
    match getrandom(&mut [0; 1], GetRandomFlags::empty()) {
        Err(Errno::NOSYS) => drop(File::open("/dev/urandom").map_err(refuses("getrandom(2), and /dev/urandom"))?),
        random => drop(random.map_err(|error| refuses("getrandom(2)")(error.into()))?),
    }
    let (mut sender, mut receiver) = UnixStream::pair().map_err(refuses("socketpair(2)"))?;
    sender.write_all(&[0]).map_err(refuses("sendto(2)"))?;
    receiver.read_exact(&mut [0]).map_err(refuses("recvfrom(2)"))
}

/// Unblocks the signals that the process handles, for this thread and those that it starts. The process inherits the
/// signal mask of its supervisor, which may block them.
///
/// # Errors
/// The error of sigprocmask(2).
pub fn unblock_signals() -> io::Result<()> {
    let handled = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGCHLD];
    Ok(SigSet::from_iter(handled).thread_unblock()?)
}
