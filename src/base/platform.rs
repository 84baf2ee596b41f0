//! What differs between the systems on which the client runs. The server's own calls of Linux are in the modules of its
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
    Group, IS_WINDOWS, Signals, create_private, give_up_after, has_no_reader, has_room, is_shortage, is_suspended,
    is_the_users, keep_owner, killed_by, make_private_folder, open_regular, shell, take_stdout,
};
pub use self::system::{home, outlive_the_limit_of_a_file};
