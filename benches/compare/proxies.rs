//! Starts the proxies, reads from /proc what they cost, and stops what it started.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::floor;
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
    /// [`floor`]: this program itself.
    Floor,
}

/// On what it runs, and with what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Machine {
    /// One processor to be held to; otherwise all.
    pub(crate) processor: Option<usize>,
}

/// A proxy that runs. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    pub(crate) tls_address: SocketAddr,
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

    /// Starts a copy of it in front of `target` and waits until it accepts. A new copy each time, so that where the pages of one
    /// file lie decides no comparison.
    pub(crate) fn start(&self, target: SocketAddr, machine: &Machine) -> io::Result<Proxy> {
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
            .replace("@TARGET_PORT@", &target.port().to_string())
            .replace("@THREADS@", threads);
        fs::write(directory.path().join("users"), USERS)?;
        let file = directory.path().join("settings.yaml");
        fs::write(&file, settings)?;
        let program = directory.path().join("program");
        fs::copy(&self.path, &program)?;
        let child = self.command(&program, &file, threads, machine.processor).spawn()?;
        let mut proxy = Proxy {
            kind: self.kind,
            address,
            tls_address,
            child,
            _directory: directory,
        };
        proxy.wait_until_it_accepts(Instant::now() + START_TIMEOUT)?;
        Ok(proxy)
    }

    /// Starts an anchor of it that serves a name at the proxy with that address.
    pub(crate) fn start_anchor(&self, proxy: SocketAddr, name: &str, target: SocketAddr) -> io::Result<Anchor> {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(&self.path)
            .args(["anchor", "--dial"]);
        command.arg(format!("http://bench:correct@{proxy}"));
        command.args(["--serve", name, "--to", &target.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Anchor)
    }

    fn template(&self) -> String {
        match self.kind {
            Kind::Switchboard => format!("{}{}\n", include_str!("switchboard.yaml"), self.line),
            Kind::Envoy => include_str!("envoy.yaml").to_owned(),
            Kind::HaProxy => include_str!("haproxy.cfg").to_owned(),
            Kind::Floor => "@LISTEN@ @TLS_LISTEN@ @TARGET@".to_owned(),
        }
    }

    fn command(&self, program: &Path, file: &Path, threads: &str, processor: Option<usize>) -> Command {
        // Both execute the program in their own place: the process is the same.
        let mut command = Command::new("setpriv");
        // A load tool that is killed cannot stop what it started.
        command.args(["--pdeathsig", "KILL"]);
        if let Some(processor) = processor {
            command.args(["taskset", "-c", &processor.to_string()]);
        }
        command.arg(program);
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
            Kind::Floor => command.arg(floor::ARGUMENT).arg(file),
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
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

/// An anchor that runs. Dropped, it ends.
#[derive(Debug)]
pub(crate) struct Anchor(Child);

impl Drop for Anchor {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The time that the machine's processors have spent in softirqs, which belongs to no process (proc_stat(5)).
pub(crate) fn softirq_time() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = stat.split_whitespace().nth(7).and_then(|ticks| ticks.parse().ok());
    TICK * ticks.unwrap_or(0)
}

/// The kernel's memory that it cannot reclaim, of the whole machine, in KiB: `SUnreclaim` of proc_meminfo(5).
pub(crate) fn kernel_memory() -> f64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find(|line| line.starts_with("SUnreclaim:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// How many threads Envoy and HAProxy get: one each for the processors of the machine that the figures are from.
const PROCESSORS: &str = "2";
/// The user of anchors: `bench`, whose password is `correct`.
const USERS: &str = "bench:$2y$05$C4ig4r120vyo1vh3fN8r8eElsx.pkSZw4WxY2QNujrvxq297xDBEu\n";
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// USER_HZ is 100 on every architecture that we measure on.
const TICK: Duration = Duration::from_millis(10);
