//! Runs programs so that nothing of them is left: a guard each, which kills by number and reaps.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::harness::process::is_of_the_user;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

/// A child, and all that it started. Dropping it kills them and reaps the child.
pub(crate) struct Process {
    name: String,
    child: Child,
    id: Pid,
    heads_group: bool,
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts a user's program at the head of a process group, so that its helpers (a ProxyCommand) end with it.
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::spawn(command.process_group(0), true)
    }

    /// Starts a server in the test's own process group: Ctrl-C at a terminal then ends it too, and with it the clients.
    pub(crate) fn start_server(command: &mut Command) -> Self {
        Self::spawn(command, false)
    }

    fn spawn(command: &mut Command, heads_group: bool) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let id = Pid::from_child(&child);
        Self {
            name,
            child,
            id,
            heads_group,
            status: None,
        }
    }

    /// The child itself, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The number of the child.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child alone.
    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "{} has ended already", self.name);
        kill_process(self.id, signal).unwrap();
    }

    /// Returns whether the child has ended. Does not reap it.
    pub(crate) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.status.is_some() || waitid(WaitId::Pid(self.id), options).unwrap().is_some()
    }

    /// Waits for the child's end, then kills what it left behind, and tells how it ended.
    pub(crate) fn wait(&mut self, deadline: Duration) -> ExitStatus {
        until(deadline, &format!("{} ends", self.name), || {
            self.has_ended().then_some(())
        });
        self.end()
    }

    /// Kills before it reaps: until then no other process can have the number.
    fn end(&mut self) -> ExitStatus {
        *self.status.get_or_insert_with(|| {
            let killed = if self.heads_group {
                kill_process_group(self.id, Signal::KILL)
            } else {
                kill_process(self.id, Signal::KILL)
            };
            // An error says that nothing is left to kill.
            killed.ok();
            self.child.wait().unwrap()
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The output and the status of a finished program.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    command: String,
}

impl Finished {
    /// Fails the test with all that is known unless the program ended with 0.
    pub(crate) fn succeeded(self) -> Self {
        assert!(self.status.success(), "{self}");
        self
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            status,
            stdout,
            stderr,
            command,
        } = self;
        write!(f, "{status}\n  {command}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// Runs the command to its end with `input` as its stdin. Its output goes through files in `directory`: a helper that
/// outlives it and still holds a pipe could otherwise keep the test waiting.
pub(crate) fn run(command: &mut Command, input: &[u8], directory: &Path, deadline: Duration) -> Finished {
    let [stdin, stdout, stderr] = ["stdin", "stdout", "stderr"].map(|name| directory.join(name));
    fs::write(&stdin, input).unwrap();
    let mut process = Process::start(
        command
            .stdin(File::open(&stdin).unwrap())
            .stdout(File::create(&stdout).unwrap())
            .stderr(File::create(&stderr).unwrap()),
    );
    let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
    let command = described(command);
    let started = Instant::now();
    while !process.has_ended() {
        assert!(
            started.elapsed() < deadline,
            "still running after {deadline:?}: {command}\n--- stderr\n{}",
            read(&stderr)
        );
        pause();
    }
    Finished {
        status: process.end(),
        stdout: read(&stdout),
        stderr: read(&stderr),
        command,
    }
}

/// A command that reads nothing and says nothing unless it is told otherwise, and gets none of this process's settings.
pub(crate) fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .env("LC_ALL", "C");
    for (name, _) in std::env::vars_os() {
        if is_of_the_user(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// The path of a program. A missing one fails the test, with the Debian package that has it.
pub(crate) fn program(name: &str, package: &str) -> PathBuf {
    // sshd is in sbin, which is not in every user's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(sbin)
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{name} is not here: install the Debian package {package}, as `make test` does"))
}

/// Looks again and again until there is an answer; fails the test at the deadline.
pub(crate) fn until<T>(deadline: Duration, event: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = look() {
            return answer;
        }
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain: {event}");
        pause();
    }
}

/// Between two looks at something that cannot be waited for.
fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

fn described(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        write!(line, " {argument:?}").unwrap();
    }
    line
}
