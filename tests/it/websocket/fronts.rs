//! OpenSSH by `connect --proxy wss://…` through the load balancers that people have in front of HTTP, with their defaults.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports as _;
use crate::harness::proxy::Proxy;
use crate::harness::target::{Closed, Target};
use crate::identities::LINE;
use crate::openssh::clients::{WEBSOCKET, ours};
use crate::openssh::lines::Lines;
use crate::openssh::login::{HOST, Login, PATIENCE, noise};
use crate::openssh::process::{Process, program, quiet, until};
use crate::resume::Shell;
use crate::resume::rollout::Stage;
use crate::tls::client as tls;

/// A load balancer that takes TLS, and passes `/ssh/` on to the proxy in clear.
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    log: Lines,
    _process: Process,
    _port: Closed,
    authority: Authority,
}

/// Makes the files of one in a folder, and returns its command.
pub(crate) type Setup = fn(&Site<'_>) -> Command;

/// The address of the load balancer, its certificate, the address of the proxy, and a folder.
pub(crate) struct Site<'a> {
    address: SocketAddr,
    cert: &'a Path,
    key: &'a Path,
    proxy: SocketAddr,
    pub(crate) folder: PathBuf,
}

impl Site<'_> {
    /// Writes a file of the folder, with the values of this site.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        let text = [
            ("@ADDRESS@", self.address.to_string()),
            ("@PORT@", self.address.port().to_string()),
            ("@PROXY@", self.proxy.to_string()),
            ("@PROXY_PORT@", self.proxy.port().to_string()),
            ("@CERT@", self.cert.display().to_string()),
            ("@KEY@", self.key.display().to_string()),
            ("@FOLDER@", self.folder.display().to_string()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
        fs::write(&path, text).unwrap();
        path
    }
}

impl Front {
    /// Starts one in front of that proxy, with its files in this folder.
    pub(crate) fn start(setup: Setup, proxy: SocketAddr, folder: PathBuf) -> Self {
        let authority = Authority::new();
        let issued = authority.server("front", &[]);
        let port = Closed::bind();
        let site = Site {
            address: port.address(),
            cert: &issued.cert,
            key: &issued.key,
            proxy,
            folder,
        };
        fs::create_dir(&site.folder).unwrap();
        let mut command = setup(&site);
        let command = command
            .current_dir(&site.folder)
            .stderr(Stdio::piped())
            .stdout(Stdio::null());
        let mut process = Process::start_server(command);
        let log = Lines::of(process.child().stderr.take().unwrap());
        until(PATIENCE, "it listens", || {
            assert!(!process.has_ended(), "{}", log.all().join("\n"));
            Peer::try_connect(site.address).ok()
        });
        Self {
            address: site.address,
            log,
            authority,
            _process: process,
            _port: port,
        }
    }

    /// Starts one in front of a login's proxy.
    fn of(login: &Login, setup: Setup) -> Self {
        Self::start(setup, login.proxy.address, login.path("front"))
    }

    fn proxy_command(&self) -> String {
        let (connect, address, ca) = (ours(), self.address, self.authority.ca());
        format!(
            "{connect} connect --proxy wss://{address}/ssh --ca {} %h:%p",
            ca.display()
        )
    }

    /// `ssh` or `scp` through it.
    fn command(&self, login: &Login, name: &str) -> Command {
        login.command_by(&self.proxy_command(), name)
    }

    /// The head of the answer to a WebSocket request with these fields, in lower case.
    fn answer(&self, fields: &[(&str, &str)]) -> String {
        let config = tls::config(&self.authority, None);
        let mut client = tls::connect(self.address, &config, "127.0.0.1").unwrap();
        let host = self.address.to_string();
        let request = super::upgrade("/ssh/devbox:22", &[&[("Host", &*host)], fields].concat());
        client.write_all(request.as_bytes()).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        String::from_utf8(head).unwrap().to_ascii_lowercase()
    }
}

/// Logs in and copies so many bytes both ways.
fn carries(setup: Setup, size: usize) {
    let login = Login::through(&WEBSOCKET);
    let front = Front::of(&login, setup);
    let finished = login.attempt(front.command(&login, "ssh").args([HOST, "cat"]), b"through\n");
    assert!(
        finished.status.success(),
        "{finished}\n{}\n{}",
        front.log.all().join("\n"),
        login.proxy.log()
    );
    assert_eq!(finished.stdout, "through\n");
    let content = noise(size);
    let here = login.write("here", &content);
    let there = format!("{HOST}:{}", login.path("there").display());
    login.run(front.command(&login, "scp").arg(&here).arg(&there), b"");
    login.run(front.command(&login, "scp").arg(&there).arg(login.path("back")), b"");
    for copy in ["there", "back"] {
        assert!(fs::read(login.path(copy)).unwrap() == content, "{copy} is another one");
    }
}

/// A session goes on by another replica when its own is replaced.
fn outlives_a_rollout(setup: Setup) {
    let stage = Stage::start();
    let mut old = stage.replica();
    let front = Front::start(setup, stage.address, stage.path("front"));
    let mut shell = Shell::start(stage.command_by(&front.proxy_command(), "ssh"));
    let _new = stage.replica();
    old.terminate();
    shell.echo("during");
    // 3 would say that tunnels were cut.
    assert_eq!(old.wait().code(), Some(0), "{}", old.log());
    shell.echo("after");
    shell.log_out();
    stage.sshd.expect_connections(1);
}

/// The proxy's 401 and the client's credential pass through it.
fn asks_for_a_credential(setup: Setup) {
    let (folder, target) = (tempfile::tempdir().unwrap(), Target::listen());
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let proxy = Proxy::start(&format!(
        "listen: {{address: \"127.0.0.1:0\", websocket: {{path: /ssh, trusted_tls: true}}, trusted_proxies: [127.0.0.0/8]}}\n\
         access: {{mode: enforce, users: {{file: \"{}\"}}}}\n\
         allowlist:\n  static:\n    - {{name: \"devbox:22\", addresses: [\"{}\"], allowed_users: [alice]}}\n",
        users.display(),
        target.address()
    ));
    let front = Front::start(setup, proxy.public(), folder.path().join("front"));
    let answer = front.answer(&[]);
    assert!(answer.starts_with("http/1.1 401 "), "{answer}");
    assert!(answer.contains("\r\nwww-authenticate: basic "), "{answer}");
    let answer = front.answer(&[("Authorization", "Basic YWxpY2U6Y29ycmVjdA==")]);
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
}

fn nginx(site: &Site<'_>) -> Command {
    nginx_with(site, include_str!("fronts/nginx.conf"))
}

/// nginx with that configuration.
pub(crate) fn nginx_with(site: &Site<'_>, text: &str) -> Command {
    let file = site.write("nginx.conf", text);
    let mut command = quiet(program("nginx", "nginx-light"));
    command
        .args(["-e", "stderr", "-p"])
        .arg(&site.folder)
        .arg("-c")
        .arg(file);
    command
}

fn apache(site: &Site<'_>) -> Command {
    let file = site.write("apache.conf", include_str!("fronts/apache.conf"));
    let mut command = quiet(program("apache2", "apache2-bin"));
    // Without children, which would survive it.
    command.args(["-X", "-f"]).arg(file);
    command
}

fn caddy(site: &Site<'_>) -> Command {
    let file = site.write("Caddyfile", include_str!("fronts/Caddyfile"));
    let mut command = quiet(program("caddy", "caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
    command
        .env("HOME", &site.folder)
        .env("XDG_DATA_HOME", &site.folder)
        .env("XDG_CONFIG_HOME", &site.folder);
    command
}

fn haproxy(site: &Site<'_>) -> Command {
    haproxy_to(site, "")
}

/// Speaks HTTP/2 to the proxy: Extended CONNECT.
fn haproxy_by_http2(site: &Site<'_>) -> Command {
    haproxy_to(site, "proto h2 ws h2")
}

fn haproxy_to(site: &Site<'_>, protocol: &str) -> Command {
    let pem = [site.cert, site.key]
        .map(|path| fs::read_to_string(path).unwrap())
        .concat();
    site.write("front.pem", &pem);
    haproxy_with(
        site,
        &include_str!("fronts/haproxy.cfg").replace("@PROTOCOL@", protocol),
    )
}

/// HAProxy with that configuration.
pub(crate) fn haproxy_with(site: &Site<'_>, text: &str) -> Command {
    let file = site.write("haproxy.cfg", text);
    let mut command = quiet(program("haproxy", "haproxy"));
    command.args(["-db", "-f"]).arg(file);
    command
}

fn envoy(site: &Site<'_>) -> Command {
    envoy_to(site, "http_protocol_options: {}")
}

/// Speaks HTTP/2 to the proxy: Extended CONNECT.
fn envoy_by_http2(site: &Site<'_>) -> Command {
    envoy_to(site, "http2_protocol_options: {allow_connect: true}")
}

fn envoy_to(site: &Site<'_>, protocol: &str) -> Command {
    let file = site.write(
        "envoy.yaml",
        &include_str!("fronts/envoy.yaml").replace("@PROTOCOL@", protocol),
    );
    // Not the script of that name, whose child would outlive it.
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python/lib");
    let versions = fs::read_dir(python).unwrap().map(|entry| entry.unwrap().path());
    let programs = versions.map(|version| version.join("site-packages/envoy/_bin/envoy"));
    let program = programs.into_iter().find(|program| program.is_file());
    let mut command = quiet(program.expect("Envoy is not here: tests/install-clients installs it"));
    command
        .args([
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
            "-c",
        ])
        .arg(file);
    command
}

macro_rules! fronts {
    ($($name:ident: $setup:ident,)*) => { $(
        mod $name {
            #[test]
            fn carries_copies() {
                super::carries(super::$setup, 6 << 20);
            }

            #[test]
            fn a_session_outlives_a_rollout() {
                super::outlives_a_rollout(super::$setup);
            }

            #[test]
            fn asks_for_a_credential() {
                super::asks_for_a_credential(super::$setup);
            }
        }
    )* };
}

fronts! {
    by_nginx: nginx,
    by_apache: apache,
    by_caddy: caddy,
    by_haproxy: haproxy,
    by_haproxy_and_http2: haproxy_by_http2,
    by_envoy: envoy,
    by_envoy_and_http2: envoy_by_http2,
}

mod slow {
    use super::*;

    #[test]
    fn copies_of_64_mib_are_exact_through_each() {
        for setup in [nginx, apache, caddy, haproxy, haproxy_by_http2] {
            carries(setup, 64 << 20);
        }
    }

    #[test]
    fn copies_of_64_mib_are_exact_through_envoy_and_http2() {
        for setup in [envoy, envoy_by_http2] {
            carries(setup, 64 << 20);
        }
    }

    /// nginx ends what is idle for 60 s; the client's pings are answered in time.
    #[test]
    fn an_idle_session_outlives_the_timeout_of_nginx() {
        let login = Login::through(&WEBSOCKET);
        let front = Front::of(&login, nginx);
        let idle = "echo before; sleep 75; echo after";
        let finished = login.attempt(front.command(&login, "ssh").args([HOST, idle]), b"");
        assert_eq!(finished.stdout, "before\nafter\n", "{finished}");
        login.proxy.access_lines(1);
    }
}
