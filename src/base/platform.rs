//! The differences between the systems on which the client runs. Only these files of the client are compiled by system.
//! The calls of Linux that only the server needs are in the server's modules.
//!
//! `unix` and `windows` have the same names with the same meaning.

#[cfg(not(target_os = "linux"))]
mod no_pipes;
#[cfg(target_os = "linux")]
mod pipes;
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

pub(crate) use self::system::{
    IS_WINDOWS, ProcessGroup, Signals, create_private, has_no_reader, is_readable_by_others, is_shortage, is_suspended,
    is_the_users, keep_attributes, make_private_folder, open_regular, poll_writable, set_tcp_user_timeout, shell,
    take_stdout, terminal_for_hidden_stderr, termination_signal,
};
pub use self::system::{home, ignore_sigxfsz};
