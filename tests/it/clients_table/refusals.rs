//! The refusals of the table, and the proxies that give them.

use std::fmt::Display;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::cluster::{Cluster, kubeconfig};
use super::draining;
use super::programs::Program;
use super::targets::targets;
use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::harness::target::{Blackhole, Closed, Echo};
use crate::identities::LINE;

/// A refusal of the table.
pub(super) struct Refusal {
    pub(super) name: &'static str,
    /// The proxy that gives it, of those in [`Worlds`].
    world: World,
    /// The target that is asked for.
    host: &'static str,
    port: u16,
    /// The text that has to be on the terminal.
    pub(super) shown: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum World {
    Main,
    Users,
    /// That of [`Self::Users`], for a client with a user and a password.
    KnownUser,
    Tls,
    Cluster,
    NoCluster,
    ProcessFull,
    ClientFull,
    TargetFull,
    Rate,
    /// One for each request: it drains.
    Draining,
}

/// A row for each refusal: its name, its world, the target, and the text that has to be on the terminal.
macro_rules! refusals {
    ($($name:literal: $world:ident $host:literal:$port:literal, $shown:literal;)+) => {
        pub(super) const REFUSALS: &[Refusal] = &[$(
            Refusal { name: $name, world: World::$world, host: $host, port: $port, shown: $shown },
        )+];
    };
}

refusals! {
    "unknown name": Main "unknown.team-a":22, "not on the allowlist";
    "wrong port": Main "refuses.team-a":2222, "not on the allowlist";
    "malformed name": Main "svc..team-a":22, "a label of the host name is empty or too long";
    "client certificate demanded": Main "guarded.team-a":22, "requires a client certificate";
    "credentials required (407)": Users "box.team-a":22, "credentials are required";
    "user without the right": KnownUser "box.team-a":22, "alice may not ssh to";
    "TLS required": Tls "box.team-a":22, "this port requires TLS";
    "allowlist not loaded": NoCluster "box.team-a":22, "the allowlist is not loaded yet";
    "no ready endpoint": Cluster "empty.team-a":22, "no ready endpoint";
    "closed by its owner (max-tunnels 0)": Cluster "closed.team-a":22, "is closed to new tunnels";
    "cap of the process": ProcessFull "box.team-a":22, "the proxy has reached its tunnel limit";
    "cap of the client": ClientFull "box.team-a":22, "this client address has reached its tunnel limit of 1";
    "cap of the target": TargetFull "box.team-a":22, "has reached its tunnel limit of 1";
    "connect rate": Rate "refuses.team-a":22, "this client address connects too often";
    "the proxy shuts down": Draining "blackhole.team-a":22, "the proxy is shutting down, try again";
    "dial refused": Main "refuses.team-a":22, "refused the connection";
    "dial timed out": Main "blackhole.team-a":22, "did not answer in time";
    "target is a web server": Main "web.team-a":22, "web server, not an SSH server";
    "target says nothing": Main "silent.team-a":22, "has sent no SSH identification";
    "target closes at once": Main "closes.team-a":22, "closed the connection before its SSH identification";
    "sshd is full (MaxStartups)": Main "full.team-a":22, "Exceeded MaxStartups";
    "target resets": Main "resets.team-a":22, "reset the connection before its SSH identification";
}

/// The request of a client, and its proxy.
pub(super) struct Asked {
    pub(super) proxy: SocketAddr,
    pub(super) host: &'static str,
    pub(super) port: u16,
    /// The longest wait of ssh for an identification.
    pub(super) timeout: &'static str,
    /// True if the client says that it is [`USER`], with [`PASSWORD`].
    pub(super) is_known: bool,
}

/// The parts of the worlds' configurations.
struct Parts<'a, K> {
    mode: &'static str,
    with_certificates: &'a str,
    listed: &'a str,
    tls: &'a str,
    users: &'a Path,
    /// Of an API server that answers, and of one that does not.
    kubeconfigs: [K; 2],
}

impl<K: Display> Parts<'_, K> {
    /// The configuration of each world.
    fn settings(&self) -> [(World, String); 9] {
        let Self {
            mode,
            with_certificates,
            listed,
            tls,
            users,
            kubeconfigs: [reachable, unreachable],
        } = self;
        let listen =
            |more: &str| format!("listen: {{address: \"127.0.0.1:0\", refusals: {mode}{more}}}\nssh_only: true\n");
        let kubernetes = |kubeconfig: &dyn Display| {
            format!("allowlist: {{kubernetes: {{enabled: true, wait_for_ready: 1s, kubeconfig: \"{kubeconfig}\"}}}}\n")
        };
        // Their tunnels are held by a peer that says nothing.
        let limits = |limits: &str| {
            format!(
                "{}{listed}limits: {{{limits}}}\ntimeouts: {{request_header: 2m, ssh_identification: 1h}}\n",
                listen("")
            )
        };
        let unlimited = "max_tunnels: unlimited, connects_per_second: unlimited";
        [
            (
                World::Main,
                format!(
                    "{}{tls}{with_certificates}timeouts: {{dial: 1s, connect: 1s, ssh_identification: 5s}}\n",
                    listen(", tls: optional")
                ),
            ),
            (
                World::Users,
                format!(
                    "{}{listed}access: {{mode: enforce, users: {{file: \"{}\"}}}}\n",
                    listen(""),
                    users.display()
                ),
            ),
            (World::Tls, format!("{}{tls}{listed}", listen(", tls: required"))),
            (World::Cluster, listen("") + &kubernetes(reachable)),
            (World::NoCluster, listen("") + &kubernetes(unreachable)),
            (
                World::ProcessFull,
                limits(&format!("process: {{max_tunnels: 1}}, client: {{{unlimited}}}")),
            ),
            (
                World::ClientFull,
                limits("client: {max_tunnels: 1, connects_per_second: unlimited}"),
            ),
            (
                World::TargetFull,
                limits(&format!("target: {{max_tunnels: 1}}, client: {{{unlimited}}}")),
            ),
            (
                World::Rate,
                limits("client: {max_tunnels: unlimited, connects_per_second: 1}"),
            ),
        ]
    }
}

/// The proxies of one mode, and their targets. Everything ends with them.
pub(super) struct Worlds {
    mode: &'static str,
    proxies: Vec<(World, SocketAddr)>,
    timeout: &'static str,
    is_over: Arc<AtomicBool>,
    /// Behind a lock only because the worlds are shared by threads.
    _servers: Mutex<Vec<(World, Server)>>,
    _held: Vec<Peer>,
    _settings: Vec<Settings>,
    _targets: (Blackhole, Closed, Echo, Cluster, Authority, TempDir),
}

impl Worlds {
    /// Starts them with that value of `refusals`.
    pub(super) fn start(mode: &'static str) -> Self {
        let (blackhole, closed, echo, cluster) = (Blackhole::open(), Closed::bind(), Echo::listen(), Cluster::start());
        let (authority, directory) = (Authority::new(), TempDir::new().unwrap());
        let users = directory.path().join("users");
        std::fs::write(&users, LINE).unwrap();
        let all = targets(&blackhole, &closed, &echo);
        let list = |targets: &[String]| format!("allowlist: {{static: [{}]}}\n", targets.join(", "));
        // The last one needs client certificates.
        let (with_certificates, listed) = (list(&all), list(&all[..all.len() - 1]));
        let certificate = authority.server("server", &[]).setting();
        let parts = Parts {
            mode,
            with_certificates: &with_certificates,
            listed: &listed,
            tls: &format!(
                "tls: {{certificates: [{certificate}], client_auth: optional, client_ca: \"{}\"}}\n",
                authority.ca().display()
            ),
            users: &users,
            kubeconfigs: [cluster.address(), closed.address()].map(|server| kubeconfig(directory.path(), server)),
        };
        let settings = parts.settings();
        let (worlds, settings): (Vec<_>, Vec<_>) = settings
            .into_iter()
            .map(|(world, text)| (world, Settings::new(&text)))
            .unzip();
        let servers: Vec<_> = worlds
            .into_iter()
            .zip(&settings)
            .map(|(world, settings)| (world, serve(world, settings)))
            .collect();
        let held = servers
            .iter()
            .filter(|(world, _)| matches!(world, World::ProcessFull | World::ClientFull | World::TargetFull))
            .map(|(_, server)| server.open("box.team-a:22"));
        let is_over = Arc::new(AtomicBool::new(false));
        let worlds = Self {
            mode,
            _held: held.collect(),
            _settings: settings,
            timeout: if mode == "http" { "15" } else { "60" },
            is_over,
            proxies: servers
                .iter()
                .map(|(world, server)| (*world, server.public()))
                .collect(),
            _servers: Mutex::new(servers),
            _targets: (blackhole, closed, echo, cluster, authority, directory),
        };
        worlds.use_up_the_rate();
        worlds
    }

    /// Returns the terminal of a client that earns the refusal of that number.
    pub(super) fn terminal(&self, number: usize, client: &Program) -> String {
        let Refusal { world, host, port, .. } = REFUSALS[number];
        let asked = |proxy| Asked {
            proxy,
            host,
            port,
            timeout: self.timeout,
            is_known: world == World::KnownUser,
        };
        if world == World::Draining {
            return draining::terminal(client, self.mode, asked);
        }
        client.terminal(&asked(self.proxy(world)))
    }

    fn proxy(&self, world: World) -> SocketAddr {
        let world = if world == World::KnownUser { World::Users } else { world };
        self.proxies.iter().find(|(of, _)| *of == world).unwrap().1
    }

    /// Takes every connect that the rate of its proxy allows.
    fn use_up_the_rate(&self) {
        let (proxy, is_over) = (self.proxy(World::Rate), Arc::clone(&self.is_over));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                TcpStream::connect(proxy).ok();
                thread::sleep(Duration::from_millis(5));
            }
        });
    }
}

impl Drop for Worlds {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// One that follows an absent API server does not become ready.
fn serve(world: World, settings: &Settings) -> Server {
    if world == World::NoCluster {
        return Server::without_readiness(settings);
    }
    Server::with(settings)
}

/// The user of [`LINE`], whom no target names.
pub(super) const USER: &str = "alice";
pub(super) const PASSWORD: &str = "correct";
