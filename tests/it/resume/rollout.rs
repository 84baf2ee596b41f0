//! All replicas are replaced under two hundred sessions and a copy.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::Shell;
use super::anchor::Anchor;
use crate::harness::target::{Closed, Echo};
use crate::openssh::clients::ours;
use crate::openssh::login::{HOST, PATIENCE, noise, options};
use crate::openssh::process::{Process, program, quiet, until};
use crate::openssh::proxy::Proxy;
use crate::openssh::sshd::Sshd;
use tempfile::TempDir;

/// A `connect` whose target echoes.
struct Typist {
    child: Child,
    typed: u8,
}

impl Typist {
    fn start(proxy: SocketAddr) -> Self {
        let mut command = quiet(env!("CARGO_BIN_EXE_switchboard"));
        command
            .args(["connect", "--proxy", &format!("http://{proxy}"), ECHO])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        let mut typist = Self { child, typed: 0 };
        // The proxy lets only SSH pass, and the echo of the identification is one, too.
        let stdin = typist.child.stdin.as_mut().unwrap();
        stdin.write_all(IDENTIFICATION).unwrap();
        let mut echo = [0; IDENTIFICATION.len()];
        typist.child.stdout.as_mut().unwrap().read_exact(&mut echo).unwrap();
        assert_eq!(&echo, IDENTIFICATION);
        typist
    }

    /// Types one byte, and waits for it.
    fn type_one(&mut self) {
        self.typed = self.typed.wrapping_add(1);
        self.child.stdin.as_mut().unwrap().write_all(&[self.typed]).unwrap();
        let mut echo = [0];
        let read = self.child.stdout.as_mut().unwrap().read_exact(&mut echo);
        assert!(read.is_ok(), "the session was cut");
        assert_eq!(echo, [self.typed]);
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().unwrap();
    }
}

/// The servers behind the replicas, which share one port.
pub(crate) struct Stage {
    pub(crate) sshd: Sshd,
    anchor: Anchor,
    echoing: Anchor,
    _echo: Echo,
    pub(crate) address: SocketAddr,
    _port: Closed,
    directory: TempDir,
}

impl Stage {
    pub(crate) fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        let (sshd, echo, port) = (Sshd::start(directory.path()), Echo::listen(), Closed::bind());
        Self {
            anchor: Anchor::start(sshd.address),
            echoing: Anchor::start(echo.address()),
            sshd,
            _echo: echo,
            address: port.address(),
            _port: port,
            directory,
        }
    }

    pub(crate) fn replica(&self) -> Proxy {
        let listen = format!(
            "address: \"{}\", reuse_port: true, websocket: {{path: /ssh}}",
            self.address
        );
        let more = format!(
            "    - {{name: \"{ECHO}\", addresses: [\"{}\"]}}\n\
             limits: {{tunnel: {{upload: {RATE}}}, client: {{{UNLIMITED}}}}}\n",
            self.echoing.address
        );
        Proxy::start_at(&listen, self.directory.path(), self.anchor.address, &more)
    }

    fn command(&self, name: &str) -> Command {
        self.command_by(
            &format!("{} connect --proxy http://{} %h:%p", ours(), self.address),
            name,
        )
    }

    pub(crate) fn command_by(&self, proxy_command: &str, name: &str) -> Command {
        let directory = self.directory.path();
        let mut command = quiet(program(name, "openssh-client"));
        command
            .args(options(directory, &self.sshd.user, proxy_command))
            .current_dir(directory);
        command
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Copies the file `here` to `there`, and waits until the first bytes are there: a copy whose tunnel is not open yet when the
    /// replicas are replaced would be one of the new replicas. At [`RATE`] it does not end before they are.
    fn copy(&self) -> Process {
        let mut command = self.command("scp");
        let there = format!("{HOST}:{}", self.path("there").display());
        let copy = Process::start(command.arg(self.path("here")).arg(there));
        until(PATIENCE, "the copy has begun", || {
            fs::metadata(self.path("there"))
                .is_ok_and(|there| there.len() > 0)
                .then_some(())
        });
        copy
    }
}

/// Replaces the replicas by others, beside sessions in which bytes come and go all the time.
fn replace(stage: &Stage, old: &mut [Proxy], shells: &mut [Shell], typists: &mut [Typist]) -> [Proxy; 2] {
    let (is_over, typed) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for part in typists.chunks_mut(TYPISTS / THREADS) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    part.iter_mut().for_each(Typist::type_one);
                    typed.fetch_add(part.len(), Ordering::Relaxed);
                }
            });
        }
        let new = [stage.replica(), stage.replica()];
        old.iter().for_each(Proxy::terminate);
        for (number, shell) in shells.iter_mut().enumerate() {
            shell.echo(&format!("during-{number}"));
        }
        for proxy in old {
            // 3 would say that tunnels were cut.
            assert_eq!(proxy.wait().code(), Some(0), "{}", proxy.log());
        }
        let before = typed.load(Ordering::Relaxed);
        until(PATIENCE, "all go on typing", || {
            (typed.load(Ordering::Relaxed) >= before + 2 * TYPISTS).then_some(())
        });
        is_over.store(true, Ordering::Relaxed);
        new
    })
}

fn two_hundred_sessions_and_a_copy_outlive_the_replacement_of_all_replicas() {
    // Of a gibibyte: MIB=1024 cargo test --test it resume::rollout
    let mebibytes: usize = std::env::var("MIB").map_or(128, |text| text.parse().expect("a number"));
    let stage = Stage::start();
    let mut old = [stage.replica(), stage.replica()];
    let content = noise(mebibytes << 20);
    fs::write(stage.path("here"), &content).unwrap();
    let mut shells: Vec<Shell> = (0..SHELLS).map(|_| Shell::start(stage.command("ssh"))).collect();
    let mut typists: Vec<Typist> = (0..TYPISTS).map(|_| Typist::start(stage.address)).collect();
    let mut copy = stage.copy();
    let new = replace(&stage, &mut old, &mut shells, &mut typists);
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.echo(&format!("behind-{number}"));
    }
    // The replicas have one configuration.
    new[0].replace(RATE, "unlimited");
    new[1].reload();
    assert!(copy.wait(2 * PATIENCE).success());
    assert!(
        fs::read(stage.path("there")).unwrap() == content,
        "the copy is another one"
    );
    shells.into_iter().for_each(Shell::log_out);
    // Each tunnel of the old replicas was moved: neither cut, nor over before. One may be moved twice, or refused and asked for
    // again: it was moved to the other one while that still had its port.
    let tunnels = SHELLS + TYPISTS + 1;
    let lines: Vec<String> = old.iter().flat_map(Proxy::all_access_lines).collect();
    let (refused, opened): (Vec<&String>, Vec<&String>) =
        lines.iter().partition(|line| line.contains(r#""event":"refuse""#));
    let is_draining = |line: &&&String| line.contains(r#""reason":"draining""#);
    assert_eq!(refused.iter().find(|line| !is_draining(line)), None);
    let is_moved = |line: &&&String| line.contains(r#""reason":"resumed_elsewhere""#);
    assert_eq!(opened.iter().find(|line| !is_moved(line)), None);
    assert!(opened.len() >= tunnels, "{}", opened.len());
}

/// Of each tunnel, until the replicas are replaced: the copy takes four minutes, which is more than a drain has.
const RATE: &str = "512KiB/s";
const UNLIMITED: &str = "max_tunnels: unlimited, connects_per_second: unlimited, max_unfinished: unlimited";
const ECHO: &str = "echo.ns:80";
const IDENTIFICATION: &[u8; 15] = b"SSH-2.0-typist\n";
const SHELLS: usize = 20;
const TYPISTS: usize = 180;
const THREADS: usize = 6;

tests_in! { slow: two_hundred_sessions_and_a_copy_outlive_the_replacement_of_all_replicas }
