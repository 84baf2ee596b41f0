//! Linux and macOS.

use std::env;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::future::pending;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, XattrFlags, fsetxattr, fstat, getxattr, listxattr, stat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal as ProcessSignal, getegid, geteuid, kill_process_group};
#[cfg(target_os = "linux")]
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

/// Returns the user's home.
pub fn home() -> Option<PathBuf> {
    env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// True if it is Windows.
pub(crate) const IS_WINDOWS: bool = false;

/// Tries each of these system calls. One that a seccomp profile refuses would be a panic or an abort, at the start or when
/// the first client comes.
///
/// # Errors
/// The system refuses a call, which the error names.
pub fn try_calls() -> io::Result<()> {
    let refuses =
        |call| move |error: io::Error| io::Error::new(error.kind(), format!("the system refuses {call}: {error}"));
    // AWS-LC aborts the process if getrandom fails, except with ENOSYS: then AWS-LC reads /dev/urandom.
    #[cfg(target_os = "linux")]
    match getrandom(&mut [0; 1], GetRandomFlags::empty()) {
        Err(Errno::NOSYS) => drop(File::open("/dev/urandom").map_err(refuses("getrandom(2), and /dev/urandom"))?),
        random => drop(random.map_err(|error| refuses("getrandom(2)")(error.into()))?),
    }
    let (mut sender, mut receiver) = UnixStream::pair().map_err(refuses("socketpair(2)"))?;
    sender.write_all(&[0]).map_err(refuses("sendto(2)"))?;
    receiver.read_exact(&mut [0]).map_err(refuses("recvfrom(2)"))
}

/// Makes a file that no other user may read.
///
/// # Errors
/// Those of open(2), also where the file exists.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Makes a folder that no other user may read.
///
/// # Errors
/// Those of mkdir(2).
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Gives a new file the owner, the permissions and the extended attributes of the one that it is to replace.
///
/// # Errors
/// Those of fchown(2), fchmod(2), getxattr(2) and setxattr(2).
pub(crate) fn keep_attributes(file: &File, of: &Path) -> io::Result<()> {
    let (own, old) = (file.metadata()?, fs::metadata(of)?);
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(old.permissions())?;
    let (mut names, mut value) = (vec![0; MAX_XATTR_BYTES], vec![0; MAX_XATTR_BYTES]);
    // A file system without extended attributes fails.
    let length = listxattr(of, &mut *names).unwrap_or_default();
    names.truncate(length);
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let length = getxattr(of, name, &mut *value)?;
        match fsetxattr(file, name, value.get(..length).unwrap_or_default(), XattrFlags::empty()) {
            // Attributes of `security` and `trusted` are the system's: the new file has its own.
            Ok(()) | Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// XATTR_LIST_MAX and XATTR_SIZE_MAX of linux/limits.h.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// Returns the output behind descriptor 1, and puts `/dev/null` in its place.
///
/// # Errors
///
/// Those of dup(2), dup2(2) and of opening `/dev/null`.
pub(crate) fn take_stdout() -> io::Result<File> {
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(output.into())
}

/// Returns whether the reader of an output has closed it (poll(2)): POLLERR of a pipe, POLLHUP of a socket or terminal.
pub(crate) fn has_no_reader(output: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Returns whether an output has room for a write, or an error, now or within `timeout` (poll(2)). `true` if the system
/// refuses to say.
pub(crate) fn poll_writable(output: &impl AsFd, timeout: Duration) -> bool {
    let mut polled = [PollFd::new(output, PollFlags::OUT)];
    let timeout = Timespec::try_from(timeout).ok();
    poll(&mut polled, timeout.as_ref()) != Ok(0)
}

/// Makes the kernel close a connection when bytes of it stay unacknowledged for `timeout` (TCP_USER_TIMEOUT of tcp(7)).
/// macOS has no such option that is safe to call: there only an idle connection is closed, by keepalive.
pub(crate) fn set_tcp_user_timeout(socket: &impl AsFd, timeout: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(socket, u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX))?;
    #[cfg(not(target_os = "linux"))]
    let (_, _) = (socket, timeout);
    Ok(())
}

/// Makes a write beyond the maximum file size fail with EFBIG; SIGXFSZ would end the process (setrlimit(2)). Needs a
/// runtime.
pub fn ignore_sigxfsz() {
    // The handler stays after the drop.
    drop(listen(SignalKind::from_raw(ProcessSignal::XFSZ.as_raw())));
}

/// SIGHUP, which ssh sends its ProxyCommand when ssh exits, and the signals that end the client at once.
#[derive(Debug)]
pub(crate) struct Signals {
    hangups: Option<Signal>,
    terminations: Option<Signal>,
    interrupts: Option<Signal>,
}

impl Signals {
    /// Replaces the default handling of the signals, except those that are ignored.
    pub(crate) fn listen() -> Self {
        Self {
            hangups: listen(SignalKind::hangup()),
            terminations: listen(SignalKind::terminate()),
            interrupts: listen(SignalKind::interrupt()),
        }
    }

    /// Waits for the next signal. Returns `true` if the client is to end gracefully, because the terminal or ssh has
    /// gone; `false` if the client is to end at once.
    ///
    /// A terminal sends SIGINT and SIGHUP to its process group. An ssh that shares its connection has left that group
    /// (ControlPersist), and its ProxyCommand has not. So both signals wait until the peer of stdin has gone.
    pub(crate) async fn next_is_hangup(&mut self) -> bool {
        let signal = self.next().await;
        if signal == SignalKind::terminate() {
            return false;
        }
        while has_peer(&io::stdin()) {
            tokio::select! {
                () = next(&mut self.terminations) => return false,
                () = sleep(PEER_INTERVAL) => {}
            }
        }
        signal == SignalKind::hangup()
    }

    /// Waits for the next signal. stdin has no part in it.
    pub(crate) async fn next(&mut self) -> SignalKind {
        tokio::select! {
            biased;
            () = next(&mut self.terminations) => SignalKind::terminate(),
            () = next(&mut self.interrupts) => SignalKind::interrupt(),
            () = next(&mut self.hangups) => SignalKind::hangup(),
        }
    }
}

/// Returns whether an input is a pipe or a socket whose other end is open.
fn has_peer(input: &impl AsFd) -> bool {
    matches!(file_type(input), Some(FileType::Fifo | FileType::Socket)) && !has_no_reader(input)
}

fn file_type(file: &impl AsFd) -> Option<FileType> {
    Some(FileType::from_raw_mode(fstat(file).ok()?.st_mode))
}

/// The interval between checks that stdin has a peer.
const PEER_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the terminal of this process for the stderr of a program that asks the user; `None` unless our own stderr is
/// `/dev/null`, as that of the ProxyCommand of an ssh with ControlPersist.
pub(crate) fn terminal_for_hidden_stderr() -> Option<File> {
    let (own, null) = (fstat(io::stderr()).ok()?, stat("/dev/null").ok()?);
    let is_hidden = file_type(&io::stderr()) == Some(FileType::CharacterDevice) && own.st_rdev == null.st_rdev;
    is_hidden.then(|| OpenOptions::new().write(true).open("/dev/tty").ok())?
}

/// Returns a listener for a signal; `None` if the signal is ignored: the ProxyCommand of `nohup ssh` inherits that.
fn listen(kind: SignalKind) -> Option<Signal> {
    if is_ignored(kind).unwrap_or(false) {
        return None;
    }
    // Without a listener the signal ends the process, as by default.
    signal(kind).ok()
}

async fn next(signals: &mut Option<Signal>) {
    match signals {
        Some(signals) => _ = signals.recv().await,
        None => pending().await,
    }
}

/// Returns whether the process has ignored a signal since its start (proc_pid_status(5)). Fails on macOS: no /proc.
fn is_ignored(kind: SignalKind) -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // The lowest bit is that of signal 1.
    let bit = kind.as_raw_value() - 1;
    Ok(mask.is_some_and(|mask| mask >> bit & 1 == 1))
}

/// Returns the shell for a line of the user's.
pub(crate) fn shell(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(line);
    shell
}

/// The process group of a program. What is left of it is killed on drop, unless it has been [released](Self::release).
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Option<Pid>,
}

impl ProcessGroup {
    /// Gives the program that is to be started a group of its own.
    pub(crate) fn isolate(command: &mut Command) {
        command.process_group(0);
    }

    /// Returns the group of the program.
    pub(crate) fn for_child(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            leader: id.and_then(Pid::from_raw),
        }
    }

    /// Leaves the rest of it running.
    pub(crate) fn release(mut self) {
        self.leader = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.leader {
            // ESRCH: nothing is left.
            kill_process_group(leader, ProcessSignal::KILL).unwrap_or_default();
        }
    }
}

/// Returns the signal that ended a program.
pub(crate) fn termination_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Returns whether a process is suspended (proc_pid_stat(5)), such as by SIGTTIN in the background of its terminal.
/// Always `false` on macOS, which has no /proc: there the caller's deadline ends the program.
pub(crate) fn is_suspended(id: u32) -> bool {
    let Ok(line) = fs::read_to_string(format!("/proc/{id}/stat")) else {
        return false;
    };
    let behind_name = line.rsplit_once(") ").map(|(_, rest)| rest);
    behind_name.is_some_and(|rest| rest.starts_with('T'))
}

/// Opens a regular file. On Linux it is found with O_PATH, which neither waits nor acts on a device (open(2)), and opened
/// through that descriptor: the path may point elsewhere by then.
///
/// # Errors
/// `InvalidInput` if it is not a regular file; else those of open(2).
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let found = with_flags(path, OFlags::PATH)?;
        demand_regular(&found.metadata()?)?;
        match File::open(format!("/proc/self/fd/{}", found.as_raw_fd())) {
            // There is no usable /proc, or the file may not be read. In the second case the open below fails, too.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {}
            opened => return opened,
        }
    }
    let file = with_flags(path, OFlags::NONBLOCK)?;
    demand_regular(&file.metadata()?)?;
    Ok(file)
}

fn with_flags(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn demand_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let kind = match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    let reason = format!("it is {kind}, not a regular file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

/// Returns whether an error says that the process or the system is short of descriptors or memory, and nothing about the file.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM]
        .iter()
        .any(|shortage| Some(*shortage) == errno)
}

/// Checks that only the user and root may write a file. A group with the user's own number counts as the user.
pub(crate) fn is_the_users(file: &File) -> Result<(), &'static str> {
    let found = file.metadata().map_err(|_| "its owner is unknown")?;
    let user = geteuid().as_raw();
    let is_own_group = found.gid() == getegid().as_raw() && found.gid() == user;
    match () {
        () if found.uid() != user && found.uid() != 0 => Err("it belongs to another user"),
        () if found.mode() & 0o002 != 0 => Err("other users may write it (chmod go-w takes that away)"),
        () if found.mode() & 0o020 != 0 && !is_own_group => Err("its group may write it (chmod go-w takes that away)"),
        () => Ok(()),
    }
}

/// Returns whether users other than root and the file's own may read it. A group with the user's own number counts as the user.
pub(crate) fn is_readable_by_others(file: &File) -> bool {
    let is_own_group = |found: &Metadata| found.gid() == getegid().as_raw() && found.gid() == geteuid().as_raw();
    let is_readable = |found: Metadata| found.mode() & if is_own_group(&found) { 0o004 } else { 0o044 } != 0;
    file.metadata().is_ok_and(is_readable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_from_a_fault_of_the_file() {
        for (errno, expected) in [
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::ENOENT, false),
            (libc::EIO, false),
        ] {
            assert_eq!(is_shortage(&io::Error::from_raw_os_error(errno)), expected, "{errno}");
        }
    }
}
