//! The tasks of each client: commands, copies, sftp, the forward of VS Code, refusals.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Stdio;
use std::thread;

use super::clients::Client;
use super::lines::Lines;
use super::login::{self, CLOSED, GUARDED, HOST, Login, noise};
use super::process::Process;
use super::{SOON, socks};
use crate::harness::target::Closed;
use switchboard::tunnel::outcome::RefusalReason;

pub(super) fn runs_a_command(client: &Client, login: &Login) {
    let mut ssh = login.command("ssh");
    let finished = login.run(ssh.arg(HOST).arg("cat; echo to stderr >&2; exit 0"), b"through stdin\n");
    assert_eq!(finished.stdout, "through stdin\n");
    // proxytunnel announces its way first (`Via …`), and its -q would also hide a refusal.
    assert!(finished.stderr.ends_with("to stderr\n"), "{finished}");

    let mut ssh = login.command("ssh");
    assert_eq!(login.attempt(ssh.arg(HOST).arg("exit 7"), &[]).status.code(), Some(7));

    for line in login.proxy.access_lines(2) {
        assert_tunnel(client, login, &line);
    }
}

pub(super) fn copies_up(client: &Client, login: &Login) {
    let content = noise(copied(client));
    let here = login.write("here", &content);
    let there = login.path("there");
    login.run(
        login
            .command("scp")
            .arg(here)
            .arg(format!("{HOST}:{}", there.display())),
        &[],
    );
    assert!(fs::read(there).unwrap() == content, "the copy is another one");
    assert_tunnel(client, login, &login.proxy.access_lines(1)[0]);
}

pub(super) fn copies_down(client: &Client, login: &Login) {
    let content = noise(copied(client));
    let there = login.write("there", &content);
    let here = login.path("here");
    login.run(
        login
            .command("scp")
            .arg(format!("{HOST}:{}", there.display()))
            .arg(&here),
        &[],
    );
    assert!(fs::read(here).unwrap() == content, "the copy is another one");
    assert_tunnel(client, login, &login.proxy.access_lines(1)[0]);
}

/// The length of a copy: bulk for our own client, and more than any buffer for the others.
fn copied(client: &Client) -> usize {
    if client.program == "switchboard" {
        64 << 20
    } else {
        4 << 20
    }
}

pub(super) fn puts_and_gets_files(client: &Client, login: &Login) {
    let files = [
        ("empty", 0),
        ("one byte", 1),
        ("a few pages", 12_345),
        ("long", 5 << 20),
    ];
    let (here, there, back) = (login.path("here"), login.path("there"), login.path("back"));
    let mut batch = format!("mkdir {}\nlcd {}\n", there.display(), here.display());
    for directory in [&here, &back] {
        fs::create_dir(directory).unwrap();
    }
    for (name, size) in files {
        login.write(&format!("here/{name}"), &noise(size));
        batch += &format!("put \"{name}\" \"{}/{name}\"\n", there.display());
    }
    for (name, _) in files {
        batch += &format!("get \"{0}/{name}\" \"{1}/{name}\"\n", there.display(), back.display());
    }
    // sftp ends its options before the destination, and `-b -` reads the batch from stdin.
    login.run(login.command("sftp").args(["-b", "-"]).arg(HOST), batch.as_bytes());
    for (name, size) in files {
        assert!(
            fs::read(there.join(name)).unwrap() == noise(size),
            "{name} was not put whole"
        );
        assert!(
            fs::read(back.join(name)).unwrap() == noise(size),
            "{name} was not got whole"
        );
    }
    assert_tunnel(client, login, &login.proxy.access_lines(1)[0]);
}

/// VS Code keeps one `ssh -T -D PORT host` with a shell on its stdin, and opens all else through that port.
pub(super) fn forwards_like_vs_code(client: &Client, login: &Login) {
    let content = noise(8 << 20);
    let fetches = 4;
    let (target, server) = socks::serve(content.clone(), fetches);
    let port = Closed::bind();
    let socks = port.address();
    let mut session = vs_code_session(login, socks);

    thread::scope(|scope| {
        let readers: Vec<_> = (0..fetches)
            .map(|_| scope.spawn(|| socks::fetch(socks, target)))
            .collect();
        for reader in readers {
            assert!(
                reader.join().unwrap() == content,
                "another content came through the forward"
            );
        }
    });
    server.join().unwrap();

    drop(session.child().stdin.take());
    assert!(session.wait(SOON).success());
    assert_tunnel(client, login, &login.proxy.access_lines(1)[0]);
}

/// Starts the session, whose forward listens there.
fn vs_code_session(login: &Login, socks: SocketAddr) -> Process {
    let mut command = login.command("ssh");
    command
        .args([
            "-T",
            "-o",
            "ExitOnForwardFailure=yes",
            "-D",
            &socks.to_string(),
            HOST,
            "sh",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut session = Process::start(&mut command);
    let stdout = Lines::of(session.child().stdout.take().unwrap());
    let stderr = Lines::of(session.child().stderr.take().unwrap());
    // ssh listens before it asks for the shell: the shell's answer says that the port is open.
    session
        .child()
        .stdin
        .as_mut()
        .unwrap()
        .write_all(b"echo ready\n")
        .unwrap();
    let is_ready = |lines: &[String]| lines.contains(&"ready".to_owned()).then_some(());
    let ready = stdout.wait(SOON, is_ready);
    ready.unwrap_or_else(|said| panic!("{said}\n{}\n{}", stderr.all().join("\n"), login.proxy.log()));
    session
}

pub(super) fn shows_refusals(client: &Client) {
    let login = Login::through(client);
    for (number, (name, status, phrase, reason)) in [
        (
            "unknown.ns.svc.cluster.local",
            403,
            &*RefusalReason::NotAllowed.phrase().to_string(),
            "not_allowed",
        ),
        (
            GUARDED,
            403,
            "the target requires a client certificate",
            "client_not_allowed",
        ),
        (
            CLOSED,
            502,
            &*RefusalReason::TargetRefused.phrase().to_string(),
            "target_refused",
        ),
        (
            HOST,
            503,
            "the target has reached its tunnel limit of 1, try again later",
            "target_full",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let _only_one = (status == 503).then(|| {
            login.proxy.set("limits: {target: {max_tunnels: 1}}\n");
            shell(&login)
        });
        let refused = login.attempt(login.command("ssh").arg(name).arg("true"), &[]);
        assert_eq!(refused.status.code(), Some(255), "{refused}");
        let expected = client.shows(status, phrase, &format!("{name}:{}", login::PORT));
        assert!(refused.stderr.contains(&expected), "{refused}");
        if client.program == "switchboard" {
            let told: Vec<_> = refused.stderr.lines().collect();
            assert!(
                told.len() == 2 && told[0].starts_with("Received disconnect from "),
                "{refused}"
            );
        }
        let line = &login.proxy.access_lines(number + 1)[number];
        for field in [format!(r#""status":{status}"#), format!(r#""reason":"{reason}""#)] {
            assert!(line.contains(&field), "{field} is not in {line}");
        }
        assert_spoken(client, line);
    }
}

/// A session with a shell, which has answered.
pub(super) fn shell(login: &Login) -> (Process, Lines) {
    let mut command = login.command("ssh");
    command
        .args(["-T", HOST, "sh"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut session = Process::start(&mut command);
    let stdout = Lines::of(session.child().stdout.take().unwrap());
    echo(&mut session, &stdout, "before");
    (session, stdout)
}

pub(super) fn echo(session: &mut Process, stdout: &Lines, text: &str) {
    let stdin = session.child().stdin.as_mut().unwrap();
    writeln!(stdin, "echo {text}").unwrap();
    stdout
        .wait(SOON, |lines| lines.contains(&text.to_owned()).then_some(()))
        .unwrap();
}

/// A tunnel that ended as sessions do. Whether the client's own end comes as a FIN or as a reset is the client's way.
pub(super) fn assert_tunnel(client: &Client, login: &Login, line: &str) {
    // A client of a session speaks to the anchor, and ssh to sshd within that.
    let [near, far] = if login.has_session(client) {
        ["switchboard_resume_1 new", "switchboard_anchor_1"]
    } else {
        ["OpenSSH_", "OpenSSH_"]
    };
    assert_spoken(client, line);
    for field in [
        r#""status":200"#,
        r#""server.address":"svc-a.ns.svc.cluster.local""#,
        r#""server.port":80"#,
        &format!(r#""client.software":"{near}"#),
        &format!(r#""upstream.software":"{far}"#),
    ] {
        assert!(line.contains(field), "{field} is not in {line}");
    }
    let ended = ["eof", "reset"]
        .iter()
        .any(|reason| line.contains(&format!(r#""reason":"{reason}""#)));
    assert!(ended, "{line}");
}

/// The client has spoken the protocol that it is tested for.
pub(super) fn assert_spoken(client: &Client, line: &str) {
    let [tls, http] = client.spoken;
    for field in [
        format!(r#""tls.version":"{tls}""#),
        format!(r#""http.version":"{http}""#),
    ] {
        assert!(line.contains(&field), "{field} is not in {line}");
    }
}
