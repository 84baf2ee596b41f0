//! The real binary: its command line, its signals, its two streams of lines and its exit status.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, empty, pipe};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit, setrlimit};
use tempfile::TempDir;

use super::ports::{Ports, READY};
use super::seccomp::{self, Call};
use super::{DEADLINE, eventually, on_free_ports};

/// A process that is killed when the test ends.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// The lines of its access log, but for those of the beginnings of tunnels.
    pub(crate) stdout: Lines,
    /// Its messages.
    pub(crate) stderr: Lines,
}

impl Process {
    /// Starts a command.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_into(command, Stdio::piped())
    }

    /// Starts a command whose stdin is that.
    pub(crate) fn spawn_from(command: &mut Command, stdin: impl Into<Stdio>) -> Self {
        let command = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdout: Lines::of_log(child.stdout.take().unwrap()),
            stderr: Lines::of(child.stderr.take().unwrap()),
            child,
        }
    }

    /// Starts a command whose stdout is that. Without a pipe, `stdout` has no lines.
    pub(crate) fn spawn_into(mut command: Command, stdout: impl Into<Stdio>) -> Self {
        let command = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take();
        Self {
            stdout: stdout.map_or_else(|| Lines::of(empty()), Lines::of_log),
            stderr: Lines::of(child.stderr.take().unwrap()),
            child,
        }
    }

    /// Starts a command to which the kernel refuses that call with that error.
    pub(crate) fn spawn_refusing(call: Call, error: i32, mut command: Command) -> Self {
        let ((stdout, its_stdout), (stderr, its_stderr)) = (pipe().unwrap(), pipe().unwrap());
        command.stdin(Stdio::null()).stdout(its_stdout).stderr(its_stderr);
        Self {
            child: seccomp::spawn_refusing(call, error, command).unwrap(),
            stdout: Lines::of_log(stdout),
            stderr: Lines::of(stderr),
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Gives new descriptors only numbers below `current`. Those that it has stay.
    pub(crate) fn limit_descriptors(&self, current: u32, maximum: u32) {
        let [current, maximum] = [current, maximum].map(|number| Some(number.into()));
        prlimit(
            Some(Pid::from_child(&self.child)),
            Resource::Nofile,
            Rlimit { current, maximum },
        )
        .unwrap();
    }

    /// Returns whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, and gives its exit status.
    #[track_caller]
    pub(crate) fn exit_status(&mut self) -> i32 {
        let ended = || self.child.try_wait().unwrap();
        eventually("the process ends", ended).code().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

/// Runs a program to its end. Returns its exit status, its stdout and its stderr.
#[track_caller]
pub(crate) fn ended(command: Command) -> (i32, String, String) {
    let mut process = Process::spawn(command);
    let status = process.exit_status();
    (
        status,
        process.stdout.rest().join("\n"),
        process.stderr.rest().join("\n"),
    )
}

/// The binary with these arguments, and nothing of this process's settings.
pub(crate) fn switchboard(arguments: &[&str]) -> Command {
    clean(Command::new(BINARY), arguments)
}

/// The program of anchors with these arguments.
pub(crate) fn anchor(arguments: &[&str]) -> Command {
    clean(Command::new(anchors()), arguments)
}

/// The program of anchors: that of this build, or the one that `SWITCHBOARD_TEST_ANCHOR` names, which may be of another build.
pub(crate) fn anchors() -> String {
    named_by("SWITCHBOARD_TEST_ANCHOR")
}

/// The program of this build, or the one that the variable names.
pub(crate) fn named_by(variable: &str) -> String {
    let Ok(other) = env::var(variable) else {
        return BINARY.to_owned();
    };
    let path = Path::new(&other);
    assert!(
        path.is_absolute() && path.exists(),
        "{variable} is no absolute path of a program: {other}"
    );
    other
}

/// The binary with at most that many descriptors.
pub(crate) fn switchboard_with_descriptors(max: u32, arguments: &[&str]) -> Command {
    with_descriptors(max, &switchboard(arguments))
}

/// A program of ours with at most that many descriptors.
pub(crate) fn with_descriptors(max: u32, command: &Command) -> Command {
    with_limit(&format!("-n {max}"), command)
}

/// A program of ours under a limit, as ulimit of bash takes it, with the default action for SIGXFSZ, and without the descriptors
/// that these tests have inherited.
pub(crate) fn with_limit(limit: &str, command: &Command) -> Command {
    let mut limited = Command::new("env");
    limited.args(["--default-signal=XFSZ", "bash", "-c"]);
    limited.arg(format!(
        "for fd in /proc/self/fd/*; do fd=${{fd##*/}}; ((fd < 3)) || eval \"exec $fd>&-\"; done
         ulimit {limit} && exec \"$0\" \"$@\""
    ));
    limited.arg(command.get_program());
    let arguments: Vec<_> = command.get_args().filter_map(OsStr::to_str).collect();
    clean(limited, &arguments)
}

/// A program of ours that is started with those signals blocked, as a supervisor may that has blocked them for itself.
pub(crate) fn blocking_signals(signals: &str, command: &Command) -> Command {
    let mut blocking = Command::new("env");
    blocking
        .arg(format!("--block-signal={signals}"))
        .arg(command.get_program());
    let arguments: Vec<_> = command.get_args().filter_map(OsStr::to_str).collect();
    clean(blocking, &arguments)
}

/// The binary, with the default action for SIGHUP and SIGINT. Tests that are run by `nohup`, or in the background by a shell
/// without job control, would pass on that they ignore one or both (POSIX, Shell Command Language 2.11), and `connect` leaves a
/// signal ignored that it finds so.
pub(crate) fn switchboard_with_hangup(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT", BINARY]);
    clean(command, arguments)
}

fn clean(mut command: Command, arguments: &[&str]) -> Command {
    command.args(arguments);
    for (name, _) in env::vars_os() {
        if is_of_the_user(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns whether a variable would lead a client elsewhere: a setting of its own, or the proxy of the user's network.
pub(crate) fn is_of_the_user(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_uppercase();
    name.starts_with("SWITCHBOARD_") || name.ends_with("_PROXY") || name == "XDG_CONFIG_HOME"
}

/// A process that serves.
#[derive(Debug)]
pub(crate) struct Server {
    /// The process.
    pub(crate) process: Process,
    public: SocketAddr,
    admin: SocketAddr,
}

impl Server {
    /// Waits until a command that serves has its ports and is ready.
    pub(crate) fn start(command: Command) -> Self {
        Self::start_into(command, Stdio::piped())
    }

    /// The same, with that for its access log.
    pub(crate) fn start_into(command: Command, stdout: impl Into<Stdio>) -> Self {
        raise_descriptors();
        Self::of(Process::spawn_into(command, stdout))
    }

    /// Starts with these settings, and the kernel refuses that call to it with that error.
    pub(crate) fn refusing(call: Call, error: i32, settings: &Settings) -> Self {
        Self::start_refusing(call, error, switchboard(&["serve", "--config", settings.path()]))
    }

    /// The same for any command that serves.
    pub(crate) fn start_refusing(call: Call, error: i32, command: Command) -> Self {
        raise_descriptors();
        Self::of(Process::spawn_refusing(call, error, command))
    }

    /// Starts with these settings, under which it does not become ready, and waits for its ports only.
    pub(crate) fn without_readiness(settings: &Settings) -> Self {
        let command = switchboard(&["serve", "--config", settings.path()]);
        Self::with_ports(Process::spawn(command))
    }

    fn of(process: Process) -> Self {
        let server = Self::with_ports(process);
        server.becomes(READY);
        server
    }

    fn with_ports(mut process: Process) -> Self {
        let mut port = |which| {
            let line = process.stderr.find(which);
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        Self {
            admin: port("admin port "),
            public: port("public port "),
            process,
        }
    }

    /// Starts with these settings, on ports that the kernel chooses.
    pub(crate) fn with(settings: &Settings) -> Self {
        Self::start(switchboard(&["serve", "--config", settings.path()]))
    }
}

impl Ports for Server {
    fn public(&self) -> SocketAddr {
        self.public
    }

    fn admin(&self) -> SocketAddr {
        self.admin
    }
}

/// Raises the soft limit of open files, most often 1,024, to the hard one: this process has both ends of the tunnels of all
/// tests that run at once. A proxy inside it does the same, and so does the server for itself.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// A configuration file.
#[derive(Debug)]
pub(crate) struct Settings {
    _directory: TempDir,
    file: PathBuf,
}

impl Settings {
    /// A file with these settings, and ports that the kernel chooses.
    pub(crate) fn new(settings: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let settings_file = Self {
            file: directory.path().join("switchboard.yaml"),
            _directory: directory,
        };
        settings_file.change(settings);
        settings_file
    }

    /// Puts other settings into the file.
    pub(crate) fn change(&self, settings: &str) {
        self.write(&on_free_ports(settings));
    }

    /// Puts another file with other settings in its place, without opening this one.
    pub(crate) fn replace(&self, settings: &str) {
        let beside = self.file.with_extension("new");
        fs::write(&beside, on_free_ports(settings)).unwrap();
        fs::rename(beside, &self.file).unwrap();
    }

    /// Puts this text, and nothing else, into the file.
    pub(crate) fn write(&self, text: &str) {
        fs::write(&self.file, text).unwrap();
    }

    /// Its address.
    pub(crate) fn path(&self) -> &str {
        self.file.to_str().unwrap()
    }
}

/// The lines of a stream, read by a thread as they come.
#[derive(Debug)]
pub(crate) struct Lines {
    coming: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
        Self::of_those(stream, |_| true)
    }

    fn of_log(stream: impl Read + Send + 'static) -> Self {
        Self::of_those(stream, |line| !line.contains(OPENED))
    }

    fn of_those(stream: impl Read + Send + 'static, is_one: fn(&str) -> bool) -> Self {
        let (sender, coming) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            for line in lines.filter(|line| is_one(line)) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self {
            coming,
            seen: Vec::new(),
        }
    }

    /// The next line; `None` at the end of the stream.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<String> {
        match self.coming.recv_timeout(DEADLINE) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no further line after {:#?}", self.seen),
        }
    }

    /// The next line that holds `text`.
    #[track_caller]
    pub(crate) fn find(&mut self, text: &str) -> String {
        loop {
            match self.next() {
                Some(line) if line.contains(text) => return line,
                Some(_) => {}
                None => panic!("no {text:?} in {:#?}", self.seen),
            }
        }
    }

    /// All further lines, up to the end of the stream.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Some(line) = self.next() {
            rest.push(line);
        }
        rest
    }
}

/// In an access line of the beginning of a tunnel.
const OPENED: &str = r#""event":"open""#;
const BINARY: &str = env!("CARGO_BIN_EXE_switchboard");
