//! `switchboard ls` of the real programs: names that a user may reach, and the lines of ssh_config(5) that show them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::thread;

use rustix::process::Signal;
use serde_json::json;
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
    let refused = world.run("ls", &[&format!("--proxy=ws://{}", world.server.public())]);
    assert!(refused.stderr.contains("not over a WebSocket"), "{refused}");
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
    for (stream, more, status) in [
        (5, vec![("END", "")], "200"),
        (7, vec![("content-length", "9")], "405"),
        (9, vec![("x", "y"); 65], "431"),
    ] {
        let fields = [
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "x"),
            (":path", "/.well-known/switchboard/targets"),
            ("proxy-authorization", "Basic YWxpY2U6Y29ycmVjdA=="),
        ];
        peer.ask_with(stream, &[&fields[..], &more].concat());
        peer.expect_status(stream, status);
    }
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
    assert!(refused.stderr.contains("404"), "{refused}");
}

/// Answers one request with these bytes, and returns what `ls` makes of them.
fn scripted(world: &World, body: &str, arguments: &[&str]) -> Finished {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = quiet(ours());
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    command.args(["ls", "--proxy", &proxy]).args(arguments);
    command.env("HOME", world.path("home"));
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
        });
        run(&mut command, b"", world.folder.path(), PATIENCE)
    })
}

#[test]
fn names_of_a_hostile_proxy_reach_neither_the_terminal_nor_a_file() {
    let world = World::new("off", &[]);
    let write = format!("--write={}", world.path("config").display());
    let hostile = [
        "x.svc.cluster.local\n    ProxyCommand touch owned",
        "*.svc.cluster.local",
        "\"x\".svc.cluster.local",
        "-oProxyCommand=owned.svc.cluster.local",
        "\u{1b}[31m.svc.cluster.local",
        "x y.svc.cluster.local",
        "x.svc.cluster.local#",
        "%h.svc.cluster.local",
    ];
    let body = json!({
        "targets": [
            {"names": hostile, "port": 22, "state": "ready"},
            {"names": ["good.svc.cluster.local", hostile[0]], "port": 22, "state": "ready\u{1b}[31m\nHost *"},
        ],
        "incomplete": "cut\u{1b}[2J\nHost *",
    });
    let listed = scripted(&world, &body.to_string(), &[&write]);
    assert_eq!(listed.stdout, "good.svc.cluster.local  ready[31mHost *\n", "{listed}");
    assert!(listed.stderr.contains("switchboard: cut[2JHost *\n"), "{listed}");
    assert!(!listed.stderr.contains('\u{1b}'), "{listed}");
    assert_eq!(world.shown(), ["good.svc.cluster.local"]);
    let folder = fs::read_dir(world.path("switchboard.d")).unwrap();
    let text: String = folder
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert_eq!(
        text,
        "# Written by `switchboard ls --write`, which replaces this file.\n\
         Host good.svc.cluster.local\n    HostName good.svc.cluster.local\n"
    );
}

#[test]
fn an_answer_that_is_no_list_is_said() {
    let world = World::new("off", &[]);
    for body in ["", "<html>", "[]", "{\"targets\":[{\"names\":[\"x\"]"] {
        let refused = scripted(&world, body, &[]);
        assert_eq!((refused.status.code(), &*refused.stdout), (Some(1), ""), "{body}");
        assert!(
            refused
                .stderr
                .contains("the answer is no list of names: is http://127.0.0.1:"),
            "{refused}"
        );
    }
}

#[test]
fn nothing_is_written_by_a_proxy_that_is_not_authenticated_and_no_name_is_left_out_silently() {
    let world = World::new("users", &BOTH);
    let write = format!("--write={}", world.path("config").display());
    let mut command = quiet(ours());
    command.args(["ls", "--proxy", "http://ssh.example.invalid", &write]);
    command.env("HOME", world.path("home"));
    let refused = run(&mut command, b"", world.folder.path(), PATIENCE);
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused
            .stderr
            .contains("--write needs an https:// proxy, or one on this host"),
        "{refused}"
    );
    let others = world.run("ls", &[&write, "--name=*.prod"]);
    assert_eq!(others.status.code(), Some(1), "{others}");
    assert!(
        others
            .stderr
            .contains("3 targets have no name that matches --name (*.prod) and are not written"),
        "{others}"
    );
    assert!(!world.path("config").exists() && world.shown().is_empty());
    world.run("config", &[&write]).succeeded();
    let some = world.run("ls", &[&write, "--name=a.*"]);
    assert!(
        some.stderr
            .contains("2 targets have no name that matches --name (a.*) and are not written"),
        "{some}"
    );
    assert_eq!(world.shown(), ["a.svc.cluster.local"]);
}

#[test]
fn where_there_are_no_users_the_sentence_says_only_that() {
    let folder = tempfile::Builder::new().prefix("switchboard-").tempdir().unwrap();
    let settings = Settings::new("listen: \"127.0.0.1:0\"\nallowlist:\n  listing: users\n");
    let server = Server::with(&settings);
    let mut command = quiet(ours());
    command.args(["ls", "--proxy", &format!("http://{}", server.public())]);
    command.env("HOME", folder.path());
    let refused = run(&mut command, b"", folder.path(), PATIENCE);
    assert!(refused.stderr.contains("access.mode is open here"), "{refused}");
    assert!(!refused.stderr.contains("allowlist.listing"), "{refused}");
}
