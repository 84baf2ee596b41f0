//! A link between clients and the proxy on which packets vanish: two network namespaces, each of which sends to an address
//! of the link layer that is not the other's.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::bounds::bound;
use crate::programs::program;

pub struct BlackHole {
    /// Keeps the clients' namespace, as long as its stdin is open.
    holder: Child,
    _input: ChildStdin,
}

/// Returns whether this process runs in a network of its own.
pub fn is_inside() -> bool {
    env::var_os(INSIDE).is_some()
}

/// Runs this program again in a network of its own.
pub fn run_inside() {
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(env::current_exe().unwrap())
        .env(INSIDE, "1")
        .status()
        .unwrap();
    bound(
        "black-holes, which needs unshare (util-linux) and ip (iproute2)",
        status.success(),
    );
}

impl BlackHole {
    pub fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "--", "sh", "-c", "echo it is there; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = holder.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let link = Self { holder, _input: input };
        let peer = format!("peer name wire address {CLIENTS_MAC} netns {}", link.holder.id());
        link.ip(
            &format!("link set lo up\nlink add name wire address {PROXY_MAC} type veth {peer}\naddress add 10.8.0.1/24 dev wire\nlink set wire up"),
            "link set lo up\naddress add 10.8.0.2/24 dev wire\nlink set wire up",
        );
        link.restore();
        link
    }

    /// The proxy's address.
    pub fn near(&self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1))
    }

    /// The program beside the clients.
    pub fn beside_clients(&self) -> Command {
        self.beside(program())
    }

    pub fn cut(&self) {
        self.lead_to(NO_MAC, NO_MAC);
    }

    pub fn restore(&self) {
        self.lead_to(CLIENTS_MAC, PROXY_MAC);
    }

    fn lead_to(&self, clients: &str, proxy: &str) {
        self.ip(
            &format!("neigh replace 10.8.0.2 lladdr {clients} dev wire nud permanent"),
            &format!("neigh replace 10.8.0.1 lladdr {proxy} dev wire nud permanent"),
        );
    }

    fn ip(&self, near: &str, far: &str) {
        for (mut command, lines) in [(Command::new("ip"), near), (self.beside("ip"), far)] {
            let mut running = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            running.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
            assert!(running.wait().unwrap().success(), "{lines}");
        }
    }

    fn beside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command.arg("--").arg(program);
        command
    }
}

impl Drop for BlackHole {
    fn drop(&mut self) {
        self.holder.kill().unwrap();
        self.holder.wait().unwrap();
    }
}

const INSIDE: &str = "SWITCHBOARD_BENCH_BLACK_HOLE";
const PROXY_MAC: &str = "02:00:00:00:00:01";
const CLIENTS_MAC: &str = "02:00:00:00:00:02";
const NO_MAC: &str = "02:00:00:00:00:99";
