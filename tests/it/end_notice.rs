//! Why the proxy has ended a running session, as `switchboard connect` says it: the end notice, by every protocol.

use std::fs;
use std::io::{Write, pipe};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use switchboard::daemon::admin::api;
use tempfile::{NamedTempFile, TempDir};

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::target::Target;
use crate::harness::{CONFIRMATION, allow, eventually};
use crate::http2;
use crate::identities::LINE;

/// A proxy on a port for every protocol, which a user of a file may use, and its target.
struct World {
    authority: Authority,
    target: Target,
    file: Settings,
    server: Server,
    users: PathBuf,
    _folder: TempDir,
}

impl World {
    fn new(more: &str) -> Self {
        let (authority, target, folder) = (Authority::new(), Target::listen(), TempDir::new().unwrap());
        let users = folder.path().join("users");
        fs::write(&users, LINE).unwrap();
        let file = Settings::new(&format!(
            "listen: {{address: \"127.0.0.1:0\", tls: optional}}\ntls: {{certificates: [{}]}}\n\
             access: {{mode: enforce, users: {{file: {}}}}}\n{more}allowlist:\n  static:\n    - {{name: \"devbox:22\", \
             addresses: [\"{}\"], allowed_groups: [ops]}}\n",
            authority.server("server", &["localhost"]).setting(),
            users.display(),
            target.address(),
        ));
        Self {
            server: Server::with(&file),
            authority,
            target,
            file,
            users,
            _folder: folder,
        }
    }

    fn connect(&self, scheme: &str) -> Process {
        Process::spawn(self.command(scheme, &[]))
    }

    fn command(&self, scheme: &str, flags: &[&str]) -> Command {
        let proxy = format!("{scheme}://alice:correct@localhost:{}", self.server.public().port());
        let ca = self.authority.ca();
        let trust = ["--ca", ca.to_str().unwrap()];
        let trust = if scheme == "https" { &trust[..] } else { &[] };
        let connect = ["connect", "--resume", "off", "--proxy", &proxy, "devbox:22"];
        switchboard(&[&connect, trust, flags].concat())
    }
}

const SCHEMES: [&str; 2] = ["http", "https"];

/// How the proxy comes to end a session, and what the client says.
struct Ending {
    settings: &'static str,
    end: fn(&mut World),
    said: &'static str,
    logged: &'static str,
}

const ENDINGS: [Ending; 6] = [
    Ending {
        settings: "drain: {delay: 0s, timeout: 0s, spread: 0s}\n",
        end: |world| world.server.process.signal(Signal::TERM),
        said: "devbox:22: the proxy ended the session: the proxy is shutting down, try again",
        logged: "drained",
    },
    Ending {
        settings: "",
        end: |world| {
            let text = fs::read_to_string(world.file.path()).unwrap();
            world.file.write(&text.replace("devbox:22", "another:22"));
            world.server.process.signal(Signal::HUP);
        },
        said: "the proxy ended the session: devbox:22 has left the allowlist",
        logged: "target_removed",
    },
    Ending {
        settings: "",
        end: |world| fs::write(&world.users, LINE.replace("alice", "bob")).unwrap(),
        said: "the proxy ended the session: the user may no longer ssh to devbox:22",
        logged: "access_revoked",
    },
    Ending {
        settings: "",
        end: |world| {
            let listed = world.server.ask_admin("GET", "/tunnels").body;
            let listed: api::Tunnels = serde_json::from_str(&listed).unwrap();
            let path = format!("/tunnels/{}", listed.tunnels[0].tunnel_id);
            let answer = world
                .server
                .tell_admin("DELETE", &path, r#"{"reason": "the node is replaced"}"#);
            assert_eq!(answer.status, 200, "{}", answer.body);
        },
        said: "devbox:22: the proxy ended the session: an operator ended the connection: the node is replaced",
        logged: "closed_by_operator",
    },
    Ending {
        settings: "timeouts: {request_header: 2m, idle: 1s}\n",
        end: |_| {},
        said: "devbox:22: the proxy ended the session: the connection was idle for too long",
        logged: "idle",
    },
    Ending {
        settings: "limits: {tunnel: {lifetime: 1s}, client: {max_tunnels: unlimited, connects_per_second: unlimited}}\n",
        end: |_| {},
        said: "devbox:22: the proxy ended the session: the longest time for a connection is over",
        logged: "lifetime",
    },
];

#[test]
fn connect_says_why_the_proxy_has_ended_a_session_by_every_protocol() {
    for Ending {
        settings,
        end,
        said,
        logged,
    } in ENDINGS
    {
        for scheme in SCHEMES {
            let mut world = World::new(settings);
            let mut client = world.connect(scheme);
            let mut service = world.target.accept();
            service.send("begun\n");
            assert_eq!(client.stdout.next().as_deref(), Some("begun"), "{logged} {scheme}");
            end(&mut world);
            assert_eq!(client.exit_status(), 1, "{logged} {scheme}");
            let line: Value = serde_json::from_str(&world.server.process.stdout.next().unwrap()).unwrap();
            assert_eq!((&line["reason"], &line["closed_by"]), (&logged.into(), &"proxy".into()));
            // The notice is no byte of the target's.
            assert_eq!(line["bytes_sent"], 6);
            let id = line["tunnel_id"].as_str().unwrap();
            let expected = format!("switchboard: {said} (id {id})");
            assert_eq!(client.stderr.rest(), [expected], "{scheme}");
            assert_eq!(client.stdout.rest(), [""; 0], "{logged} {scheme}");
            // Its SSH server is not told that all has ended in order.
            service.expect_late_reset();
        }
    }
}

#[test]
fn the_notice_is_the_last_of_the_download_over_http_2() {
    for Ending {
        settings,
        end,
        said,
        logged,
    } in ENDINGS
    {
        let mut world = World::new(settings);
        let mut client = http2::peer::Peer::connect_over_tls(world.server.public(), &world.authority.ca());
        client.ask_with(
            1,
            &[
                (":method", "CONNECT"),
                (":authority", "devbox:22"),
                ("proxy-authorization", "Basic YWxpY2U6Y29ycmVjdA=="),
                ("switchboard-end", MARKER),
            ],
        );
        assert_eq!(client.expect_status(1, "200")["switchboard-end"], MARKER);
        let mut service = world.target.accept();
        service.send("begun");
        client.expect(1, "begun");
        end(&mut world);
        let line: Value = serde_json::from_str(&world.server.process.stdout.next().unwrap()).unwrap();
        let sentence = said.trim_start_matches("devbox:22: ");
        let sentence = format!("{sentence} (id {})", line["tunnel_id"].as_str().unwrap());
        // The session in it would be over, too.
        let is_final = matches!(logged, "closed_by_operator" | "idle");
        let sentence = sentence + if is_final { "\x01" } else { "" };
        let length = u8::try_from(sentence.len()).unwrap();
        client.expect(1, [&bytes_of(MARKER)[..], &[length], sentence.as_bytes()].concat());
        client.expect_end(1);
        service.expect_late_reset();
    }
}

#[test]
fn what_connect_says_of_a_target_that_is_no_ssh_server() {
    for (said, ends, expected) in [
        (
            "HTTP/1.1 400 Bad Request\r\n\r\n",
            true,
            "the proxy ended the session: devbox:22 is a web server, not an SSH server",
        ),
        (
            "Not allowed at this time\r\n",
            true,
            "the proxy ended the session: devbox:22 closed the connection: Not allowed at this time",
        ),
        (
            "",
            true,
            "the proxy ended the session: devbox:22 closed the connection before its SSH identification",
        ),
        (
            "",
            false,
            "the proxy ended the session: devbox:22 has sent no SSH identification in 1s",
        ),
    ] {
        for scheme in SCHEMES {
            let world = World::new("ssh_only: true\ntimeouts: {request_header: 2m, ssh_identification: 1s}\n");
            let (stdin, mut ssh) = pipe().unwrap();
            ssh.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap();
            let mut command = world.command(scheme, &["--verbose"]);
            let mut client = Process::spawn_from(&mut command, stdin);
            drop(command);
            let mut service = world.target.accept();
            service.send(said);
            if ends {
                service.finish();
            }
            assert_eq!(client.exit_status(), 1);
            // After the line of `--verbose` about the session.
            let told = client.stderr.rest().pop().unwrap();
            assert!(told.starts_with(&format!("switchboard: {expected} (id ")), "{told}");
            // ssh is told in band, as of every failure in front of the target's first byte.
            assert_eq!(client.stdout.next().as_deref(), Some("SSH-2.0-switchboard"));
        }
    }
}

#[test]
fn what_connect_says_where_it_does_not_speak_for_an_ssh_client() {
    for scheme in SCHEMES {
        let world = World::new("ssh_only: true\n");
        let (stdin, mut user) = pipe().unwrap();
        let mut command = world.command(scheme, &[]);
        let mut client = Process::spawn_from(&mut command, stdin);
        drop(command);
        let mut service = world.target.accept();
        service.send("SSH-2.0-x\r\nmuch more");
        assert_eq!(client.stdout.next().as_deref(), Some("SSH-2.0-x"));
        user.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(client.exit_status(), 1);
        let told = client.stderr.rest().join("\n");
        let expected =
            "switchboard: devbox:22: the proxy ended the session: the client has sent no SSH identification (id ";
        assert!(told.starts_with(expected), "{told}");
    }
}

const MARKER: &str = "00112233445566778899aabbccddeeff";

fn asking(fields: &str) -> String {
    format!("CONNECT devbox:22 HTTP/1.1\r\nHost: devbox:22\r\n{fields}\r\n")
}

fn promise(marker: &str) -> String {
    format!("HTTP/1.1 200 Connection established\r\nSwitchboard-End: {marker}\r\n\r\n")
}

fn draining(target: &Target) -> Server {
    Server::with(&Settings::new(&format!(
        "drain: {{delay: 0s, timeout: 0s, spread: 0s}}\n{}",
        allow(&[("devbox:22", target.address())])
    )))
}

#[test]
fn the_notice_is_the_last_of_the_download_and_only_a_client_that_asks_gets_it() {
    for (fields, is_told) in [
        (format!("Switchboard-End: {MARKER}\r\n"), true),
        (format!("switchboard-END:  {MARKER} \r\n"), true),
        (String::new(), false),
        ("Switchboard-End: 1\r\n".to_owned(), false),
        (format!("Switchboard-End: {}\r\n", MARKER.to_uppercase()), false),
        (format!("Switchboard-End: {MARKER}\r\n").repeat(2), false),
    ] {
        let target = Target::listen();
        let mut server = draining(&target);
        let mut client = server.client(asking(&fields));
        let mut service = target.accept();
        client.expect(if is_told {
            promise(MARKER)
        } else {
            CONFIRMATION.to_owned()
        });
        service.send("down");
        client.expect("down");
        server.process.signal(Signal::TERM);
        if !is_told {
            assert_eq!(client.rest_before_reset(), b"", "{fields}");
            continue;
        }
        let rest = client.rest();
        assert_eq!(server.process.exit_status(), 3);
        let line: Value = serde_json::from_str(&server.process.stdout.next().unwrap()).unwrap();
        let sentence = format!(
            "the proxy ended the session: the proxy is shutting down, try again (id {})",
            line["tunnel_id"].as_str().unwrap()
        );
        let marker: Vec<u8> = (0..16).map(|byte| byte * 0x11).collect();
        let length = u8::try_from(sentence.len()).unwrap();
        assert_eq!(rest, [&marker[..], &[length], sentence.as_bytes()].concat());
    }
}

#[test]
fn a_client_that_reads_nothing_holds_the_end_of_a_drain_up_no_longer_than_any_other() {
    let target = Target::listen();
    let mut server = draining(&target);
    let client = server.client(asking(&format!("Switchboard-End: {MARKER}\r\n")));
    let mut service = target.accept();
    // Until neither the client's kernel nor the proxy takes more.
    service.send_what_fits(&vec![b'x'; 64 << 20]);
    server.process.signal(Signal::TERM);
    assert_eq!(server.process.exit_status(), 3);
    let said = server.process.stderr.rest().join("\n");
    assert!(!said.contains("not all of them ended in time"), "{said}");
    drop(client);
}

/// A tunnel by a proxy that is scripted, with the marker of the request.
fn scripted(proxy: &Target, stdout: impl Into<Stdio>) -> (Process, Peer, String) {
    let url = format!("http://{}", proxy.address());
    let command = switchboard(&["connect", "--resume", "off", "--proxy", &url, "devbox:22"]);
    let client = Process::spawn_into(command, stdout);
    let mut peer = proxy.accept();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(peer.read_once());
    }
    let head = String::from_utf8(head).unwrap();
    let (_, marker) = head.split_once("\r\nSwitchboard-End: ").unwrap();
    let (marker, _) = marker.split_once("\r\n").unwrap();
    (client, peer, marker.to_owned())
}

fn bytes_of(marker: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&marker[at..at + 2], 16).unwrap();
    (0..marker.len()).step_by(2).map(digits).collect()
}

#[test]
fn a_notice_is_found_in_whatever_pieces_it_comes() {
    for pause_at in [None, Some(1), Some(4), Some(15), Some(16), Some(17), Some(19)] {
        let proxy = Target::listen();
        let (mut client, mut peer, marker) = scripted(&proxy, Stdio::piped());
        let notice = [&bytes_of(&marker)[..], b"\x0dwhy it ended."].concat();
        let head = [promise(&marker).as_bytes(), b"first\n"].concat();
        match pause_at {
            // Together with the head.
            None => peer.send([head, notice].concat()),
            Some(at) => {
                peer.send(head);
                assert_eq!(client.stdout.next().as_deref(), Some("first"));
                peer.send(&notice[..at]);
                // It has been read.
                eventually("the client reads", || (peer.unread_by(peer.other()) == 0).then_some(()));
                peer.send(&notice[at..]);
            }
        }
        assert_eq!(client.exit_status(), 1);
        assert_eq!(client.stderr.rest(), ["switchboard: devbox:22: why it ended."]);
    }
}

#[test]
fn what_a_target_sends_is_passed_on_whatever_it_looks_like() {
    let target = Target::listen();
    let mut server = Server::with(&Settings::new(&allow(&[("devbox:22", target.address())])));
    let proxy = format!("http://{}", server.public());
    let received = NamedTempFile::new().unwrap();
    let command = switchboard(&["connect", "--resume", "off", "--proxy", &proxy, "devbox:22"]);
    let mut client = Process::spawn_into(command, received.reopen().unwrap());
    let mut service = target.accept();
    let mut sent = [&bytes_of(MARKER)[..], b"\x03why", promise(MARKER).as_bytes()].concat();
    sent.extend((0..=255_u8).flat_map(|byte| [byte; 16]));
    service.send(&sent);
    service.finish();
    assert_eq!(client.exit_status(), 0);
    assert_eq!(client.stderr.rest(), [""; 0]);
    assert_eq!(fs::read(received.path()).unwrap(), sent);
    server.settles("connections_active", 0.0);
    let line = server.process.stdout.next().unwrap();
    assert!(line.contains(r#""reason":"eof""#), "{line}");
}

/// A proxy that does not know the field: nothing is looked for.
#[test]
fn without_a_promise_the_marker_is_the_targets() {
    let proxy = Target::listen();
    let received = NamedTempFile::new().unwrap();
    let (mut client, mut peer, marker) = scripted(&proxy, received.reopen().unwrap());
    let sent = [b"x", &bytes_of(&marker)[..], b"\x03why"].concat();
    peer.send(CONFIRMATION);
    peer.send(&sent);
    peer.finish();
    assert_eq!(client.exit_status(), 0);
    assert_eq!(fs::read(received.path()).unwrap(), sent);
}
