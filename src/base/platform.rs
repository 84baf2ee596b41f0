//! The differences between the systems on which the client runs. Only these files of the client are compiled by system.
//! The calls of Linux that only the server needs are in the server's modules.
//!
//! `unix` and `windows` have the same names with the same meaning.

#[cfg(not(target_os = "linux"))]
mod no_pipes;
#[cfg(target_os = "linux")]
mod pipes;
mod runtime;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(not(target_os = "linux"))]
pub(crate) use self::no_pipes::{PipeSize, pipe_input, pipe_output};
#[cfg(target_os = "linux")]
pub(crate) use self::pipes::{PipeSize, pipe_input, pipe_output};
#[cfg(unix)]
use self::unix as system;
#[cfg(windows)]
use self::windows as system;

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tokio::runtime::Builder;
use tokio::time::timeout;

pub use self::runtime::{keep_blocking, mark_vital, start_runtime, watch_vital_threads};
pub(crate) use self::system::{
    IS_WINDOWS, ProcessGroup, Signals, create_private, has_no_reader, is_readable_by_others, is_shortage, is_suspended,
    is_the_users, keep_attributes, make_private_folder, open_regular, poll_writable, set_tcp_user_timeout, shell,
    take_stdout, terminal_for_hidden_stderr, termination_signal,
};
pub use self::system::{home, ignore_sigxfsz, try_calls};

/// Runs a program without a terminal for its output. If it does not end in time, it is killed with what it has started, as far as
/// the system can. Blocks.
///
/// # Errors
/// It cannot be started, or does not end in time ([`io::ErrorKind::TimedOut`]).
pub(crate) fn output(program: &mut Command, longest: Duration) -> io::Result<Output> {
    ProcessGroup::isolate(
        program
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    start_runtime(&mut Builder::new_current_thread(), PIPES)?.block_on(async {
        let child = program.spawn()?;
        let group = ProcessGroup::for_child(&child);
        let output = timeout(longest, child.wait_with_output()).await?;
        group.release();
        output
    })
}

/// The descriptors to start a program: three of pipes to it, three of its own, and two by which its start is reported.
const PIPES: usize = 8;
