//! `switchboard ls` of the real programs: names that a user may reach, and the lines of ssh_config(5) that show them.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::eventually;
use crate::harness::ports::Ports;
use crate::harness::process::{Server, Settings};
use crate::http2;
use crate::identities::LINE;
use crate::openssh::clients::ours;
use crate::openssh::login::PATIENCE;
use crate::openssh::process::{Finished, quiet, run};

/// A user `alice` with an empty home, and a proxy.
struct World {
    folder: TempDir,
    settings: Settings,
    server: Server,
}

/// The settings of a proxy with these targets of `alice`, each a name and its port.
fn settings(folder: &TempDir, listing: &str, targets: &[&str]) -> String {
    let rows = targets
        .iter()
        .map(|name| format!("    - {{name: \"{name}\", addresses: [\"127.0.0.1:1\"], allowed_users: [alice]}}\n"));
    format!(
        "listen: \"127.0.0.1:0\"\naccess: {{mode: enforce, users: {{file: {}}}}}\nallowlist:\n  listing: {listing}\n  static:\n    \
         - {{name: \"other.svc.cluster.local:22\", addresses: [\"127.0.0.1:1\"], allowed_users: [bob]}}\n    \
         - {{name: \"gpu.svc.cluster.local:22\", dials_in: {{users: [gpu]}}, allowed_users: [alice]}}\n{}",
        folder.path().join("users").display(),
        rows.collect::<String>()
    )
}

impl World {
    fn new(listing: &str, targets: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::write(folder.path().join("users"), LINE).unwrap();
        let settings = Settings::new(&settings(&folder, listing, targets));
        Self {
            server: Server::with(&settings),
            folder,
            settings,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        let mut command = quiet(ours());
        let url = format!("http://alice:correct@{}", self.server.public());
        command.arg(program).args(arguments).env("HOME", self.path("home"));
        match program {
            "ls" => command.env("SWITCHBOARD_PROXY", url),
            _ => command.arg(format!("--proxy=http://{}", self.server.public())),
        };
        run(&mut command, b"", self.folder.path(), PATIENCE)
    }

    /// The names that a picker shows.
    fn shown(&self) -> Vec<String> {
        let folder = fs::read_dir(self.path("switchboard.d")).into_iter().flatten().flatten();
        let mut files = folder.filter(|file| file.file_name().to_str().unwrap().contains("names_of"));
        let text = files.next().map(|file| fs::read_to_string(file.path()).unwrap());
        let text = text.unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.strip_prefix("    HostName "));
        lines.map(str::to_owned).collect()
    }
}

const BOTH: [&str; 2] = ["a.svc.cluster.local:22", "b.svc.cluster.local:2222"];

#[test]
fn names_are_listed_with_their_states_and_each_list_has_a_line_in_the_access_log() {
    let mut world = World::new("users", &BOTH);
    let listed = world.run("ls", &[]).succeeded();
    assert_eq!(
        listed.stdout,
        "a.svc.cluster.local       ready\nb.svc.cluster.local:2222  ready\ngpu.svc.cluster.local     unready\n"
    );
    assert_eq!(listed.stderr, "");
    let line = world.server.process.stdout.find("\"event\":\"list\"");
    for member in ["\"status\":200", "\"user.name\":\"alice\"", "\"upstream.address\":\"\""] {
        assert!(line.contains(member), "{member} in {line}");
    }
    assert_eq!(
        world.run("ls", &["B.svc"]).succeeded().stdout,
        "b.svc.cluster.local:2222  ready\n"
    );
    let refused = world.run("ls", &["a b"]);
    assert_eq!(refused.stderr, "switchboard: no name contains \"a b\"\n");
}

#[test]
fn a_list_over_http_2_is_that_over_http_1() {
    let world = World::new("users", &BOTH);
    let mut peer = http2::peer::Peer::connect(world.server.public());
    let get = |peer: &mut http2::peer::Peer, stream, credential| {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "x"),
            (":path", "/.well-known/switchboard/targets?a.svc"),
            ("proxy-authorization", credential),
        ];
        peer.ask_with(stream, &fields);
    };
    get(&mut peer, 1, "Basic YWxpY2U6Y29ycmVjdA==");
    assert_eq!(peer.expect_status(1, "200")["content-type"], "application/json");
    peer.expect(
        1,
        "{\"targets\":[{\"names\":[\"a.svc.cluster.local\"],\"port\":22,\"state\":\"ready\"}]}",
    );
    peer.expect_end(1);
    get(&mut peer, 3, "Basic YWxpY2U6d3Jvbmc=");
    peer.expect_status(3, "407");
}

#[test]
fn concrete_lines_follow_the_list_and_ssh_reaches_them_by_the_block() {
    let world = World::new("users", &BOTH);
    let config = world.path("config").display().to_string();
    let write = format!("--write={config}");
    let first = world.run("ls", &[&write]);
    assert_eq!(first.status.code(), Some(1), "{first}");
    assert!(
        first
            .stderr
            .contains("ssh does not connect to a.svc.cluster.local by a proxy yet"),
        "{first}"
    );
    world.run("config", &[&write]).succeeded();
    let all = ["a.svc.cluster.local", "b.svc.cluster.local", "gpu.svc.cluster.local"];
    world.run("ls", &[&write]).succeeded();
    assert_eq!(world.shown(), all);
    let mut ssh = quiet("ssh");
    ssh.args(["-G", "-F", &config, "b.svc.cluster.local"]);
    let asked = run(&mut ssh, b"", world.folder.path(), PATIENCE).succeeded();
    for line in ["\nport 2222\n", "\nhostname b.svc.cluster.local\n", " connect --proxy "] {
        assert!(asked.stdout.contains(line), "{asked}");
    }
    // Of a part of the names there is another file.
    world.run("ls", &[&write, "gpu"]).succeeded();
    world.run("ls", &[&write, "gpu", "--remove"]).succeeded();
    world.settings.change(&settings(&world.folder, "users", &BOTH[1..]));
    world.server.process.signal(Signal::HUP);
    eventually("a name is gone", || {
        world.run("ls", &[&write]).succeeded();
        (world.shown() == all[1..]).then_some(())
    });
    world.run("ls", &[&write, "--remove"]).succeeded();
    assert_eq!(world.shown(), Vec::<String>::new());
}

#[test]
fn a_proxy_that_lists_nothing_is_named_and_so_is_a_server_that_is_no_proxy() {
    let world = World::new("off", &BOTH);
    let refused = world.run("ls", &[]);
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused
            .stderr
            .contains("405: only CONNECT is served here (`allowlist.listing` of the proxy lets nobody list names)"),
        "{refused}"
    );
    let mut command = quiet(ours());
    command.args(["ls", "--proxy", &format!("http://{}", world.server.admin())]);
    command.env("HOME", world.path("home"));
    let refused = run(&mut command, b"", world.folder.path(), PATIENCE);
    assert!(
        refused.stderr.contains("is the host and the port of its URL right") || refused.stderr.contains("404"),
        "{refused}"
    );
}
