//! A network of its own for every test: the proxy in one network namespace, and everything else in another.
//!
//! The proxy refuses to lead to loopback and to addresses of its own host, so what it leads to must be elsewhere:
//!
//! ```text
//! the test, the API server 10.8.0.1:6443 ── veth ── the proxy 10.8.0.2, fd08::2
//! every pod of 10.9.0.0/16 and fd09::/64
//! ```
//!
//! A test runs itself again inside. No root is needed where users may make user namespaces; without either it fails.

use std::any::type_name;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use tokio::runtime;
use tokio::time::timeout;

use super::uplink;

/// The network that a scenario runs in.
#[derive(Debug)]
pub(crate) struct Lab {
    /// Keeps the proxy's namespace. It ends with its standard input, so also when this process is killed.
    holder: Child,
    _input: ChildStdin,
    directory: PathBuf,
}

/// Runs a scenario in a network of its own. To be called by a test function, with a closure written there: the name of
/// the closure tells which test to run inside.
pub(crate) fn run<F: AsyncFnOnce(Lab)>(scenario: F) {
    run_as(test_name(type_name::<F>()), scenario);
}

/// The same for a test whose name is known.
pub(crate) fn run_as(test: &str, scenario: impl AsyncFnOnce(Lab)) {
    run_in(&NAMESPACES, test, scenario);
}

/// The same for a scenario with an sshd, which works only as the user that it is outside.
pub(crate) fn run_with_sshd<F: AsyncFnOnce(Lab)>(scenario: F) {
    run_in(&NAMESPACES_OF_THE_USER, test_name(type_name::<F>()), scenario);
}

fn run_in(namespaces: &[&[&str]], function: &str, scenario: impl AsyncFnOnce(Lab)) {
    // The test may be in a module of `tests_in!`: the one of these names that there is runs.
    let (module, name) = function.rsplit_once("::").unwrap();
    let [slow, measured] = ["slow", "measured"].map(|below| format!("{module}::{below}::{name}"));
    let program = Program {
        arguments: &[function, &slow, &measured, "--exact", "--nocapture", "--test-threads=1"],
        timeout: TIMEOUT,
        namespaces,
    };
    run_program(program, scenario);
}

/// The same for any program that comes here again when it is run with these arguments.
pub(crate) fn run_program(program: Program<'_>, scenario: impl AsyncFnOnce(Lab)) {
    match env::var_os(INSIDE) {
        Some(directory) => inside(Path::new(&directory), program.timeout, scenario),
        None => outside(program),
    }
}

/// A program that runs itself again inside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program<'a> {
    pub(crate) arguments: &'a [&'a str],
    /// The deadline of its scenario.
    pub(crate) timeout: Duration,
    /// The commands that may run another in a new network namespace, of which the first that works is taken.
    pub(crate) namespaces: &'a [&'a [&'a str]],
}

/// The test function that a closure was written in.
pub(crate) fn test_name(closure: &'static str) -> &'static str {
    let (_, path) = closure.split_once("::").unwrap();
    path.split("::{{closure}}").next().unwrap()
}

fn outside(this: Program<'_>) {
    let directory = tempfile::tempdir().unwrap();
    let [program, arguments @ ..] = namespace(this.namespaces) else {
        panic!("{NO_NAMESPACE}");
    };
    uplink::outside(directory.path());
    let log = directory.path().join("log");
    let output = File::create(&log).unwrap();
    let mut running = Command::new(program)
        .args(arguments)
        .arg(env::current_exe().unwrap())
        .args(this.arguments)
        .env(INSIDE, directory.path())
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .process_group(0)
        .spawn()
        .unwrap();
    let status = ended(&mut running, this.timeout);
    eprintln!("{}", fs::read_to_string(&log).unwrap());
    let name = this.arguments.first();
    assert!(status.success(), "{name:?} failed in its network: {status}");
    // A name that picks no test ends well too.
    assert!(directory.path().join(DONE).exists(), "{name:?} did not run");
}

/// The status of a process. One that is stuck is ended, with the proxy that it started.
fn ended(running: &mut Child, timeout: Duration) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = running.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > timeout + Duration::from_secs(15) {
            kill_process_group(Pid::from_child(running), Signal::KILL).unwrap();
            return running.wait().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The first of these commands that works here.
fn namespace<'a>(commands: &[&'a [&'a str]]) -> &'a [&'a str] {
    let works = |command: &&&[&str]| {
        let [program, arguments @ ..] = **command else {
            return false;
        };
        let done = Command::new(program)
            .args(arguments)
            .args(["ip", "link", "set", "lo", "up"])
            .output();
        done.is_ok_and(|done| done.status.success())
    };
    commands.iter().find(works).copied().unwrap_or_default()
}

fn inside(directory: &Path, max: Duration, scenario: impl AsyncFnOnce(Lab)) {
    let lab = Lab::new(directory);
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let scenario = Box::pin(scenario(lab));
        assert!(timeout(max, scenario).await.is_ok(), "it took longer than {max:?}");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    fs::write(directory.join(DONE), "").unwrap();
}

impl Lab {
    fn new(directory: &Path) -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo it is there; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = holder.stdin.take().unwrap();
        let mut line = String::new();
        let output = holder.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let lab = Self {
            holder,
            _input: input,
            directory: directory.to_owned(),
        };
        let link = format!("link add pods type veth peer name proxy netns {}", lab.holder.id());
        ip(&mut Command::new("ip"), &format!("{link}\n{OUR_SIDE}"));
        ip(&mut lab.beside_proxy("ip"), PROXY_SIDE);
        lab
    }

    /// A directory that goes with the test.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Has `ip` do that where the test is.
    pub(crate) fn ip(&self, lines: &str) {
        ip(&mut Command::new("ip"), lines);
    }

    /// Has `ip` do that where the proxy is.
    pub(crate) fn ip_beside_proxy(&self, lines: &str) {
        ip(&mut self.beside_proxy("ip"), lines);
    }

    /// The process that has the proxy's network namespace.
    pub(crate) fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// A command where the proxy is.
    pub(crate) fn beside_proxy(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command.args(["--", program]);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

/// Gives lines to `ip`.
fn ip(command: &mut Command, lines: &str) {
    let mut running = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert!(running.wait().unwrap().success(), "ip refused one of:\n{lines}");
}

/// The address of the fake API server.
pub(crate) const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1)), 6443);
/// The proxy's host.
pub(crate) const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 2));

pub(crate) const NAMESPACES: [&[&str]; 2] = [
    &["unshare", "--user", "--map-root-user", "--net", "--"],
    &["unshare", "--net", "--"],
];
/// As NAMESPACES, without other numbers for users: sshd changes to users that a namespace of one user does not have.
const NAMESPACES_OF_THE_USER: [&[&str]; 2] = [
    &["unshare", "--net", "--"],
    &["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--"],
];
const NO_NAMESPACE: &str = "cannot make a network namespace: this test needs `unshare` (util-linux) and `ip` (iproute2), and \
    either the right to make user namespaces (`unshare --user --map-root-user --net ip link` must work) or root with \
    CAP_NET_ADMIN and CAP_SYS_ADMIN";

// An address range that is local as a whole: every pod has its address without one being configured for it.
const OUR_SIDE: &str = "
link set lo up
address add 10.8.0.1/24 dev pods
address add fd08::1/64 dev pods nodad
link set pods up
route add local 10.9.0.0/16 dev lo
route add local fd09::/64 dev lo
route add local 169.254.169.254 dev lo
";
const PROXY_SIDE: &str = "
link set lo up
address add 10.8.0.2/24 dev proxy
address add fd08::2/64 dev proxy nodad
link set proxy up
route add 10.9.0.0/16 via 10.8.0.1
route add fd09::/64 via fd08::1
route add 169.254.169.254 via 10.8.0.1
";

/// Says that this process is inside, and which directory is the test's.
const INSIDE: &str = "SWITCHBOARD_TEST_LAB";
/// The file that says that a scenario ran to its end.
const DONE: &str = "done";
const TIMEOUT: Duration = Duration::from_secs(600);
