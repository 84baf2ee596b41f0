//! Starts the proxies, reads from /proc what they cost, and stops what it started.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::secure::write_certificate;

/// A program that can be measured.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The head of its column.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    path: PathBuf,
    /// A further line of switchboard's configuration.
    line: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Switchboard,
    Envoy,
    /// Speaks no CONNECT: whoever connects is forwarded.
    HaProxy,
}

/// On what it runs, and with what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// One processor to be held to; otherwise all.
    pub(crate) processor: Option<usize>,
    /// Further names for switchboard's allowlist, all of them the target's.
    pub(crate) names: Vec<String>,
    /// The most tunnels that a proxy has to hold where its configuration says so; the usual number where that is more.
    pub(crate) tunnels: usize,
}

/// A proxy that runs. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    pub(crate) tls_address: SocketAddr,
    /// From its start to its first accept.
    pub(crate) started_in: Duration,
    child: Child,
    _directory: TempDir,
}

impl Program {
    /// `None` when there is no such file.
    pub(crate) fn find(name: &str, kind: Kind, path: &Path) -> Option<Self> {
        path.is_file().then(|| Self {
            name: name.to_owned(),
            kind,
            path: path.to_owned(),
            line: String::new(),
        })
    }

    /// The same switchboard with another line in its configuration, which names the column.
    pub(crate) fn with(&self, line: &str) -> Self {
        Self {
            name: line.to_owned(),
            line: line.to_owned(),
            ..self.clone()
        }
    }

    /// Starts it in front of `target` and waits until it accepts.
    pub(crate) fn start(&self, target: SocketAddr, machine: &Machine) -> io::Result<Proxy> {
        self.start_before(&[target], machine)
    }

    /// The same in front of several ports of the target, which get the tunnels in turn.
    pub(crate) fn start_before(&self, targets: &[SocketAddr], machine: &Machine) -> io::Result<Proxy> {
        let target = *targets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = tempfile::tempdir()?;
        write_certificate(directory.path())?;
        let (address, tls_address, admin) = (free_address()?, free_address()?, free_address()?);
        let threads = machine.processor.map_or(PROCESSORS, |_| "1");
        let settings = self
            .template()
            .replace("@LISTEN@", &address.to_string())
            .replace("@PORT@", &address.port().to_string())
            .replace("@TLS_LISTEN@", &tls_address.to_string())
            .replace("@TLS_PORT@", &tls_address.port().to_string())
            .replace("@DIRECTORY@", &directory.path().display().to_string())
            .replace("@ADMIN@", &admin.to_string())
            .replace("@TARGET@", &target.to_string())
            .replace("@TARGETS@", &self.kind.list(targets))
            .replace("@TUNNELS@", &machine.tunnels.max(USUAL_TUNNELS).to_string())
            .replace("@THREADS@", threads);
        let file = directory.path().join("settings.yaml");
        fs::write(&file, settings)?;
        let start = Instant::now();
        let mut command = self.command(&file, threads, machine.processor);
        // A configuration file has no room for so many.
        for names in machine.names.chunks(NAMES_AT_ONCE) {
            let allowed: Vec<_> = names.iter().map(|name| format!("{name}={target}")).collect();
            command.arg("--allow").arg(allowed.join(" "));
        }
        let child = command.spawn()?;
        let mut proxy = Proxy {
            kind: self.kind,
            address,
            tls_address,
            started_in: Duration::ZERO,
            child,
            _directory: directory,
        };
        proxy.wait_until_it_accepts(start + LONGEST_START)?;
        proxy.started_in = start.elapsed();
        Ok(proxy)
    }

    fn template(&self) -> String {
        match self.kind {
            Kind::Switchboard => format!("{}{}\n", include_str!("switchboard.yaml"), self.line),
            Kind::Envoy => include_str!("envoy.yaml").to_owned(),
            Kind::HaProxy => include_str!("haproxy.cfg").to_owned(),
        }
    }

    fn command(&self, file: &Path, threads: &str, processor: Option<usize>) -> Command {
        // Both execute the program in their own place: the process is the same.
        let mut command = Command::new("setpriv");
        // A load tool that is killed cannot stop what it started.
        command.args(["--pdeathsig", "KILL"]);
        if let Some(processor) = processor {
            command.args(["taskset", "-c", &processor.to_string()]);
        }
        command.arg(&self.path);
        match self.kind {
            Kind::Switchboard => command.args(["serve", "--log", "warn", "--config"]).arg(file),
            Kind::Envoy => command
                .args([
                    "--concurrency",
                    threads,
                    "--log-level",
                    "warning",
                    "--use-dynamic-base-id",
                    "-c",
                ])
                .arg(file),
            Kind::HaProxy => command.args(["-db", "-q", "-f"]).arg(file),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

impl Kind {
    /// The ports of the target as the configuration has them.
    fn list(self, targets: &[SocketAddr]) -> String {
        let one = |(number, target): (usize, &SocketAddr)| match self {
            Self::Switchboard => format!("\"{target}\""),
            Self::Envoy => format!(
                "{{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}",
                target.ip(),
                target.port()
            ),
            Self::HaProxy => format!("    server target{number} {target}"),
        };
        let targets: Vec<_> = targets.iter().enumerate().map(one).collect();
        targets.join(if self == Self::HaProxy { "\n" } else { ", " })
    }
}

impl Proxy {
    /// The processor time of all its threads so far, to the nanosecond. No proxy here ends threads while it serves.
    pub(crate) fn processor_time(&self) -> Duration {
        let tasks = fs::read_dir(self.proc("task")).into_iter().flatten().flatten();
        let nanos = tasks.filter_map(|task| {
            let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
            times.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident(&self) -> f64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).unwrap().count()
    }

    fn proc(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.child.id()))
    }

    fn wait_until_it_accepts(&mut self, deadline: Instant) -> io::Result<()> {
        while let Err(error) = TcpStream::connect(self.address) {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!("{:?} ended: {status}", self.kind)));
            }
            if Instant::now() > deadline {
                return Err(error);
            }
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Makes room for long command lines: they may take a quarter of the stack (execve(2)).
pub(crate) fn allow_long_command_lines() -> io::Result<()> {
    let mut limit = getrlimit(Resource::Stack);
    limit.current = Some(LARGE_STACK);
    Ok(setrlimit(Resource::Stack, limit)?)
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// How many threads Envoy and HAProxy get: one each for the processors of the machine that the figures are from.
const PROCESSORS: &str = "2";
/// As many as one argument may carry, 128 KiB (execve(2)).
const NAMES_AT_ONCE: usize = 2_000;
/// A limit of 20,000 open files allows it.
const USUAL_TUNNELS: usize = 9_500;
const LARGE_STACK: u64 = 64 << 20;
const LONGEST_START: Duration = Duration::from_secs(60);
