//! Seccomp filters: the kernel refuses a system call to a process or a thread, as a container's profile may.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::thread;

#[cfg(not(target_arch = "x86_64"))]
use libc::SYS_epoll_pwait as EPOLL_WAIT;
#[cfg(target_arch = "x86_64")]
use libc::SYS_epoll_wait as EPOLL_WAIT;
use libc::{
    EINVAL, ENOMEM, ENOSYS, EPERM, F_SETPIPE_SZ, IPPROTO_TCP, SYS_accept4, SYS_clone3, SYS_epoll_create1, SYS_eventfd2,
    SYS_fcntl, SYS_getrandom, SYS_getsockopt, SYS_pipe2, SYS_prlimit64, SYS_recvfrom, SYS_setsockopt, SYS_shutdown,
    SYS_socketpair, SYS_splice, TCP_INFO,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// A system call, or one use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Splice,
    /// splice(2) of fewer bytes. The relay asks for 1 MiB to fill a pipe and for what is left in it to drain it, so with at
    /// most that number only drains are refused, from the beginning or in their midst.
    SpliceBelow(u32),
    Pipe2,
    SetPipeSize,
    Accept4,
    TcpInfo,
    Prlimit64,
    Shutdown,
    EpollCreate,
    EpollWait,
    Eventfd,
    Setsockopt,
    Recvfrom,
    Getrandom,
    Socketpair,
    /// clone3(2), by which glibc 2.34 and later starts threads.
    Clone3,
}

/// The numbers of the errors that sandboxes refuse system calls with.
pub(crate) const ERRORS: [i32; 4] = [ENOSYS, EPERM, EINVAL, ENOMEM];

/// Has the kernel refuse the call to this thread from now on, and to what it starts.
pub(crate) fn refuse(call: Call, error: i32) {
    seccompiler::apply_filter(&filter(call, error)).unwrap();
}

/// Starts a command to which the kernel refuses the call.
///
/// The filter is that of a thread, which the child inherits. pipe2(2) may be refused to this thread as well: the pipes to
/// the command have to be there already.
pub(crate) fn spawn_refusing(call: Call, error: i32, mut command: Command) -> io::Result<Child> {
    // posix_spawn(3) takes a descriptor of 256 and more for a bad one where prlimit64(2) is refused, and this process may have
    // that many. A command with a user, the same as ever, is started by fork(2).
    // fork(2) of std needs calls in this process that posix_spawn(3) does not.
    // It also starts a process where clone3(2) is refused.
    if matches!(call, Call::Prlimit64 | Call::Clone3) {
        command.uid(rustix::process::geteuid().as_raw());
    }
    let start = move || {
        refuse(call, error);
        command.spawn()
    };
    thread::spawn(start).join().unwrap()
}

/// Runs that on a thread to which the kernel refuses the call.
pub(crate) fn refusing<T: Send>(call: Call, error: i32, run: impl FnOnce() -> T + Send) -> T {
    let run = move || {
        refuse(call, error);
        run()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn filter(call: Call, error: i32) -> BpfProgram {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, Lt};
    let when = |argument, length, operator, value| SeccompCondition::new(argument, length, operator, value).unwrap();
    let (number, conditions) = match call {
        Call::Splice => (SYS_splice, Vec::new()),
        Call::SpliceBelow(bytes) => (SYS_splice, vec![when(4, Qword, Lt, bytes.into())]),
        Call::Pipe2 => (SYS_pipe2, Vec::new()),
        Call::SetPipeSize => (SYS_fcntl, vec![when(1, Dword, Eq, F_SETPIPE_SZ as u64)]),
        Call::Accept4 => (SYS_accept4, Vec::new()),
        Call::Prlimit64 => (SYS_prlimit64, Vec::new()),
        Call::Shutdown => (SYS_shutdown, Vec::new()),
        Call::EpollCreate => (SYS_epoll_create1, Vec::new()),
        Call::EpollWait => (EPOLL_WAIT, Vec::new()),
        Call::Eventfd => (SYS_eventfd2, Vec::new()),
        Call::Setsockopt => (SYS_setsockopt, Vec::new()),
        Call::Recvfrom => (SYS_recvfrom, Vec::new()),
        Call::Getrandom => (SYS_getrandom, Vec::new()),
        Call::Socketpair => (SYS_socketpair, Vec::new()),
        Call::Clone3 => (SYS_clone3, Vec::new()),
        Call::TcpInfo => {
            let (level, option) = (IPPROTO_TCP as u64, TCP_INFO as u64);
            (
                SYS_getsockopt,
                vec![when(1, Dword, Eq, level), when(2, Dword, Eq, option)],
            )
        }
    };
    // Without a rule the call is refused whatever its arguments.
    let rules = match conditions.as_slice() {
        [] => Vec::new(),
        _ => vec![SeccompRule::new(conditions).unwrap()],
    };
    let filter = SeccompFilter::new(
        BTreeMap::from([(number, rules)]),
        SeccompAction::Allow,
        SeccompAction::Errno(error.unsigned_abs()),
        ARCH.try_into().unwrap(),
    );
    filter.unwrap().try_into().unwrap()
}
