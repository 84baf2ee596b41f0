//! The differences between the systems on which the client runs. The server's own calls of Linux are in the modules of its
//! feature; the rest of the client is written once.
//!
//! `unix` and `windows` have the same names with the same meaning. No other file of the client is compiled by system.

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
    IS_WINDOWS, ProcessGroup, Signals, create_private, has_no_reader, is_shortage, is_suspended, is_the_users,
    keep_attributes, make_private_folder, open_regular, poll_writable, set_tcp_user_timeout, shell, take_stdout,
    termination_signal,
};
pub use self::system::{home, ignore_sigxfsz};
