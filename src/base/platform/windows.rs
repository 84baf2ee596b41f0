//! Windows.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use filedescriptor::{FileDescriptor, StdioDescriptor};
use tokio::process::{Child, Command};
use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, ctrl_break, ctrl_c, ctrl_close};

/// Returns the user's home.
pub fn home() -> Option<PathBuf> {
    folder("USERPROFILE")
}

/// Does nothing: Windows has no maximum file size of a process.
pub fn ignore_sigxfsz() {}

/// No call is refused here.
pub fn try_calls() -> io::Result<()> {
    Ok(())
}

fn folder(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// True if it is Windows.
pub(crate) const IS_WINDOWS: bool = true;

/// Makes a file with the permissions of its folder.
///
/// # Errors
/// Those of CreateFile, also where the file exists.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Makes a folder.
///
/// # Errors
/// Those of CreateDirectory.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

/// Does nothing: the new file has the permissions of its folder, as the old one had.
///
/// # Errors
/// None.
pub(crate) fn keep_attributes(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns the output behind the standard handle, and puts the device `NUL` in its place.
///
/// # Errors
///
/// Those of DuplicateHandle, SetStdHandle and of opening `NUL`.
pub(crate) fn take_stdout() -> io::Result<File> {
    let null = FileDescriptor::dup(&OpenOptions::new().write(true).open("NUL")?).map_err(io::Error::other)?;
    let output = FileDescriptor::redirect_stdio(&null, StdioDescriptor::Stdout).map_err(io::Error::other)?;
    // A duplicate handle; `output` is closed here.
    output.as_file().map_err(io::Error::other)
}

/// Returns `false`: only a failed write shows that a pipe has no reader.
pub(crate) fn has_no_reader<T>(_output: &T) -> bool {
    false
}

/// Returns `true`: neither a pipe nor a console reports whether there is room.
pub(crate) fn poll_writable<T>(_output: &T, _longest: Duration) -> bool {
    true
}

/// Returns `false`: the standard library does not read access control lists.
pub(crate) fn is_readable_by_others(_: &File) -> bool {
    false
}

/// Returns `None`: ssh of Windows shares no connections, and so hides no stderr.
pub(crate) fn terminal_for_hidden_stderr() -> Option<File> {
    None
}

/// The events of the console. TerminateProcess, by which another program ends this one, sends no event.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupts: Option<CtrlC>,
    breaks: Option<CtrlBreak>,
    closes: Option<CtrlClose>,
}

impl Signals {
    /// Replaces the default handling of the events.
    pub(crate) fn listen() -> Self {
        Self {
            interrupts: ctrl_c().ok(),
            breaks: ctrl_break().ok(),
            closes: ctrl_close().ok(),
        }
    }

    /// Waits for the next event. Returns `true` if the client is to end gracefully, because the console has gone;
    /// `false` if the client is to end at once.
    pub(crate) async fn next_is_hangup(&mut self) -> bool {
        tokio::select! {
            () = next(self.interrupts.as_mut().map(CtrlC::recv)) => false,
            () = next(self.breaks.as_mut().map(CtrlBreak::recv)) => false,
            () = next(self.closes.as_mut().map(CtrlClose::recv)) => true,
        }
    }

    /// Waits for the next event, and returns the same.
    pub(crate) async fn next(&mut self) -> bool {
        self.next_is_hangup().await
    }
}

async fn next(event: Option<impl Future<Output = Option<()>>>) {
    match event {
        Some(event) => _ = event.await,
        None => pending().await,
    }
}

/// Returns the shell for a line of the user's. /D leaves AutoRun out, and /S takes the quotation marks around the line off.
pub(crate) fn shell(line: &str) -> Command {
    let mut shell = Command::new("cmd");
    shell.raw_arg(format!("/D /S /C \"{line}\""));
    shell
}

/// A child process, killed when its `Child` is dropped. The processes that it has started live on, because Windows has
/// no safe call for a group of processes.
#[derive(Debug)]
pub(crate) struct ProcessGroup;

impl ProcessGroup {
    /// Marks the program to be killed when its `Child` is dropped.
    pub(crate) fn isolate(command: &mut Command) {
        command.kill_on_drop(true);
    }

    /// Returns the program alone.
    pub(crate) fn for_child(_child: &Child) -> Self {
        Self
    }

    /// Does nothing.
    pub(crate) fn release(self) {}
}

/// Returns `None`: Windows has no signals.
pub(crate) fn termination_signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// Returns `false`: no terminal of Windows suspends a process.
pub(crate) fn is_suspended(_id: u32) -> bool {
    false
}

/// Opens a regular file.
///
/// # Errors
/// `InvalidInput` if it is not a regular file; else those of the system.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Checked before the open, because a pipe or a device would act on an open.
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

/// Returns `false`: only the server, which does not run on Windows, needs the answer.
pub(crate) fn is_shortage(_error: &io::Error) -> bool {
    false
}

/// Checks nothing: the permissions of the folder keep other users out.
pub(crate) fn is_the_users(_file: &File) -> Result<(), &'static str> {
    Ok(())
}

/// Does nothing: Windows itself closes a connection whose bytes stay unacknowledged, after about 20 s
/// (TcpMaxDataRetransmissions).
pub(crate) fn set_tcp_user_timeout<S>(_socket: &S, _longest: Duration) -> io::Result<()> {
    Ok(())
}
