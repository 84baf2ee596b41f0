//! The release binary's programs: the proxy, the anchor, and `connect` with what ssh would do with it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A process that ends with this value.
pub struct Process {
    child: Child,
}

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        Self { child }
    }

    /// The processor time of all its threads, and of those that have ended, in steps of 10 ms.
    pub fn time(&self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = text.rsplit_once(')').unwrap();
        // proc_pid_stat(5): utime and stime are the fields 14 and 15, and the name was the second one.
        let ticks = fields.split_whitespace().skip(11).take(2);
        ticks
            .map(|ticks| Duration::from_millis(10 * ticks.parse::<u64>().unwrap()))
            .sum()
    }

    /// Resident memory in KiB.
    pub fn resident(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn terminate(&self) {
        let process = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &process]).status().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

/// A proxy that is ready.
pub struct Proxy {
    pub process: Process,
    pub address: SocketAddr,
    config: PathBuf,
}

impl Proxy {
    /// A proxy with the targets of these names, at a port that it may share.
    pub fn start(address: SocketAddr, targets: &[(&str, SocketAddr)]) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let admin = free_address(LOOPBACK);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("switchboard-bench-{}-{number}.yaml", std::process::id());
        let config = env::temp_dir().join(name);
        let targets: Vec<String> = targets
            .iter()
            .map(|(name, address)| format!("{{name: '{name}:22', addresses: ['{address}']}}"))
            .collect();
        let text = format!(
            "listen: [{{address: '{address}', reuse_port: true}}]\n\
             admin: '{admin}'\n\
             ssh_only: true\n\
             drain: {{delay: 1s}}\n\
             limits: {{client: {{max_tunnels: unlimited, connects_per_second: unlimited, max_unfinished: unlimited}}}}\n\
             allowlist: {{static: [{}]}}\n",
            targets.join(", ")
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new(program());
        command.args(["serve", "--log", "error", "--config"]).arg(&config);
        let process = Process::spawn(command.stdout(Stdio::null()));
        await_ready(admin);
        Self {
            process,
            address,
            config,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        fs::remove_file(&self.config).unwrap_or_default();
    }
}

/// An anchor that is ready.
pub struct Anchor {
    pub process: Process,
    pub address: SocketAddr,
    admin: SocketAddr,
}

impl Anchor {
    pub fn start(target: SocketAddr) -> Self {
        let (address, admin) = (free_address(LOOPBACK), free_address(LOOPBACK));
        let mut command = Command::new(env::var_os(ANCHOR).unwrap_or_else(program));
        command.args(["anchor", "--log", "error"]);
        for (flag, address) in [("--listen", address), ("--to", target), ("--admin", admin)] {
            command.args([flag, &address.to_string()]);
        }
        let process = Process::spawn(command.stdout(Stdio::null()));
        await_ready(admin);
        Self {
            process,
            address,
            admin,
        }
    }

    /// The value of a metric, 0 if there is none.
    pub fn metric(&self, name: &str) -> f64 {
        let page = get(self.admin, "/metrics").unwrap();
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_default()
    }
}

/// A `connect`, and the bytes of its ssh.
pub struct Client {
    pub process: Process,
    pub stdin: Option<ChildStdin>,
    pub stdout: ChildStdout,
}

impl Client {
    /// Starts it with a target that does what is `asked`, and waits for the target's identification.
    pub fn start(proxy: SocketAddr, mode: Mode, asked: &str) -> Self {
        Self::of(Command::new(program()), proxy, mode, asked)
    }

    /// The same by a command that runs the program, in front of the program's arguments.
    pub fn of(mut command: Command, proxy: SocketAddr, mode: Mode, asked: &str) -> Self {
        let (resume, target) = match mode {
            Mode::Plain => ("off", "target:22"),
            Mode::Session => ("auto", "anchor:22"),
        };
        command.args([
            "connect",
            "--proxy",
            &format!("http://{proxy}"),
            "--no-env-proxy",
            "--resume",
            resume,
            target,
        ]);
        let mut process = Process::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let (stdin, stdout) = (process.child.stdin.take(), process.child.stdout.take().unwrap());
        let mut client = Self { process, stdin, stdout };
        client.send(format!("SSH-2.0-bench_{asked}\r\n").as_bytes()).unwrap();
        while client.receive().expect("an identification") != b'\n' {}
        client
    }

    /// A client whose target echoes.
    pub fn echoing(proxy: SocketAddr, mode: Mode) -> Self {
        Self::start(proxy, mode, "echo")
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(bytes)
    }

    pub fn receive(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.stdout.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// The time of a keystroke to its echo.
    pub fn keystroke(&mut self) -> io::Result<Duration> {
        let began = Instant::now();
        self.send(b"k")?;
        self.receive()?;
        Ok(began.elapsed())
    }
}

/// One connection to the target, or a session with the anchor beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    Session,
}

/// The processor time of this thread.
pub fn thread_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// An address whose port was free a moment ago.
pub fn free_address(at: IpAddr) -> SocketAddr {
    TcpListener::bind((at, 0)).unwrap().local_addr().unwrap()
}

fn await_ready(admin: SocketAddr) {
    let began = Instant::now();
    while !get(admin, "/readyz").is_some_and(|page| page.starts_with("HTTP/1.1 200")) {
        assert!(began.elapsed() < Duration::from_secs(60), "{admin} does not get ready");
        thread::sleep(Duration::from_millis(2));
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Returns whether the anchor is that of another program, such as the small one.
pub fn is_another_anchor() -> bool {
    env::var_os(ANCHOR).is_some()
}

const ANCHOR: &str = "SWITCHBOARD_BENCH_ANCHOR";
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The program: the one of this build, or another build's, to compare both by the same bench.
pub fn program() -> OsString {
    env::var_os("SWITCHBOARD_BENCH_PROGRAM").unwrap_or_else(|| env!("CARGO_BIN_EXE_switchboard").into())
}
