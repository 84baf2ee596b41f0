//! The commands that signals give to a running process.

use std::future::pending;

use tokio::sync::mpsc;

/// A command to a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read the configuration again.
    Reload,
    /// Drain and end; the second time, end at once.
    Stop,
}

/// The queue of commands. Its end is not a command: a process without signals serves on.
#[derive(Debug)]
pub(super) struct Commands(pub(super) mpsc::Receiver<Command>);

impl Commands {
    /// The next command.
    pub(super) async fn next(&mut self) -> Command {
        match self.0.recv().await {
            Some(command) => command,
            None => pending().await,
        }
    }

    /// Completes at the next [`Command::Stop`]; other commands are dropped.
    pub(super) async fn stop(&mut self) {
        while self.next().await != Command::Stop {}
    }
}
