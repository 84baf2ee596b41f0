//! The real OpenSSH through the real binary, by every client that people have: logins, copies and forwards.
//!
//! Every test has its own proxy, sshd, keys and directory. `cargo test --test openssh ncat::` runs one client's.
pub(crate) mod clients;
pub(crate) mod lines;
pub(crate) mod login;
mod one_port;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod socks;
pub(crate) mod sshd;

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use clients::Client;
use lines::Lines;
use login::{CLOSED, GUARDED, HOST, Login, noise};
use process::{Process, program, quiet, run};

/// Each client does each thing under a name of its own.
macro_rules! each_client {
    ($($module:ident: $client:ident,)*) => { $(
        mod $module {
            use super::clients::$client as CLIENT;

            #[test]
            fn runs_a_command() {
                super::runs_a_command(&CLIENT);
            }

            #[test]
            fn runs_a_command_through_an_anchor() {
                super::runs_a_command_by(&CLIENT, &super::Login::through_an_anchor(&CLIENT));
            }

            #[test]
            fn copies_64_mib_up() {
                super::copies_64_mib_up(&CLIENT);
            }

            #[test]
            fn copies_64_mib_down() {
                super::copies_64_mib_down(&CLIENT);
            }

            #[test]
            fn puts_and_gets_files() {
                super::puts_and_gets_files(&CLIENT);
            }

            #[test]
            fn forwards_like_vs_code() {
                super::forwards_like_vs_code(&CLIENT);
            }

            #[test]
            fn shows_refusals() {
                super::shows_refusals(&CLIENT);
            }
        }
    )* };
}

each_client! {
    switchboard_connect: SWITCHBOARD,
    switchboard_connect_by_tls: SWITCHBOARD_TLS,
    switchboard_connect_by_tls_http1: SWITCHBOARD_TLS_HTTP1,
    proxytunnel: PROXYTUNNEL,
    proxytunnel_by_tls: PROXYTUNNEL_TLS,
    netcat: NC,
    ncat: NCAT,
    corkscrew: CORKSCREW,
    connect_proxy: CONNECT_PROXY,
    socat: SOCAT,
    http2: HTTP2,
    http2_by_tls: HTTP2_TLS,
}

fn runs_a_command(client: &Client) {
    runs_a_command_by(client, &Login::through(client));
}

fn runs_a_command_by(client: &Client, login: &Login) {
    let mut ssh = login.command("ssh");
    let finished = login.run(ssh.arg(HOST).arg("cat; echo to stderr >&2; exit 0"), b"through stdin\n");
    assert_eq!(finished.stdout, "through stdin\n");
    // proxytunnel announces its way first (`Via …`), and its -q would also hide a refusal.
    assert!(finished.stderr.ends_with("to stderr\n"), "{finished}");

    let mut ssh = login.command("ssh");
    assert_eq!(login.attempt(ssh.arg(HOST).arg("exit 7"), &[]).status.code(), Some(7));

    for line in login.proxy.access_lines(2) {
        // A client of a session speaks to the anchor, and ssh to sshd within that.
        if login.has_session(client) {
            assert_tunnel_of(client, &line, ["switchboard_resume_1 new", "switchboard_anchor_1"]);
        } else {
            assert_tunnel(client, &line);
        }
    }
}

fn copies_64_mib_up(client: &Client) {
    let login = Login::through(client);
    let content = noise(64 << 20);
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
    assert_tunnel(client, &login.proxy.access_lines(1)[0]);
}

fn copies_64_mib_down(client: &Client) {
    let login = Login::through(client);
    let content = noise(64 << 20);
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
    assert_tunnel(client, &login.proxy.access_lines(1)[0]);
}

fn puts_and_gets_files(client: &Client) {
    let login = Login::through(client);
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
    assert_tunnel(client, &login.proxy.access_lines(1)[0]);
}

/// VS Code keeps one `ssh -T -D PORT host` with a shell on its stdin, and opens all else through that port.
fn forwards_like_vs_code(client: &Client) {
    let login = Login::through(client);
    let content = noise(8 << 20);
    let fetches = 4;
    let (target, server) = socks::serve(content.clone(), fetches);
    let (socks, mut session) = vs_code_session(&login);

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
    assert_tunnel(client, &login.proxy.access_lines(1)[0]);
}

/// Starts the session on a port that was free a moment ago, and again when another process has taken it.
fn vs_code_session(login: &Login) -> (std::net::SocketAddr, Process) {
    for _ in 0..8 {
        let socks = sshd::free_address();
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
        if stdout
            .wait(SOON, |lines| lines.contains(&"ready".to_owned()).then_some(()))
            .is_ok()
        {
            return (socks, session);
        }
        let said = stderr.all().join("\n");
        assert!(said.contains("Address already in use"), "{said}\n{}", login.proxy.log());
    }
    panic!("no port for the forward");
}

fn shows_refusals(client: &Client) {
    let login = Login::through(client);
    for (number, (name, status, phrase, reason)) in [
        (
            "unknown.ns.svc.cluster.local",
            403,
            "the target is not on the allowlist",
            "not_allowed",
        ),
        (
            GUARDED,
            403,
            "the target requires a client certificate",
            "client_not_allowed",
        ),
        (CLOSED, 502, "the target refused the connection", "target_refused"),
        (
            HOST,
            503,
            "the target has reached its tunnel limit, try again later",
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

#[test]
fn a_client_certificate_opens_a_target_that_demands_one() {
    let login = Login::through(&clients::SWITCHBOARD_TLS);
    for (number, client) in [
        &clients::SWITCHBOARD_CERTIFICATE,
        &clients::SWITCHBOARD_CERTIFICATE_HTTP1,
    ]
    .into_iter()
    .enumerate()
    {
        let proxy_command = client.command(login.proxy.address);
        let finished = login.run(
            login.command_by(&proxy_command, "ssh").args([GUARDED, "cat"]),
            b"let in\n",
        );
        assert_eq!(finished.stdout, "let in\n");
        let line = &login.proxy.access_lines(2 * number + 1)[2 * number];
        assert_spoken(client, line);
        assert!(line.contains(r#""tls.client.subject":"CN=alice""#), "{line}");
        // The proxy has a certificate of that name, and none of this: it shows its first.
        let wrong = proxy_command.replace("ssh.example.com", "other.example.com");
        let refused = login.attempt(login.command_by(&wrong, "ssh").args([GUARDED, "true"]), &[]);
        assert_eq!(refused.status.code(), Some(255), "{refused}");
        let expected = "the proxy is not trusted: its certificate is for ";
        assert!(refused.stderr.contains(expected), "{refused}");
        login.proxy.access_lines(2 * number + 2);
    }
}

#[test]
fn nc_is_openbsds() {
    let directory = tempfile::tempdir().unwrap();
    clients::assert_nc_is_the_right_one(directory.path());
}

/// `curl -p -x` opens a tunnel with its own head (User-Agent, Host with the port) and speaks through it.
#[test]
fn curl_tunnels_to_a_banner() {
    let login = Login::through(&clients::SWITCHBOARD);
    let directory = tempfile::tempdir().unwrap();
    let mut curl = quiet(program("curl", "curl"));
    curl.args(["--silent", "--show-error", "--max-time", "120", "-p", "-x"])
        .arg(format!("http://{}", login.proxy.address))
        .arg(format!("telnet://{HOST}:{}", login::PORT));
    // A client that is not ssh: sshd shows its own line, says what is wrong and hangs up.
    let finished = run(
        &mut curl,
        b"SSH-2.0-curl\r\nnot a key exchange\r\n",
        directory.path(),
        SOON,
    );
    assert!(
        finished.stdout.starts_with("SSH-2.0-OpenSSH_"),
        "{finished}\n{}",
        login.proxy.log()
    );
    assert!(login.proxy.access_lines(1)[0].contains(r#""status":200"#));
}

/// ssh kills its ProxyCommand as soon as that closes stdout: what there is to say must be out by then.
#[test]
fn switchboard_connect_prints_the_reason_before_it_hangs_up() {
    let login = Login::through(&clients::SWITCHBOARD);
    // Many times: it is a race that was lost once in six.
    for _ in 0..50 {
        let mut command = quiet(clients::ours());
        command
            .args([
                "connect",
                "--proxy",
                &format!("http://{}", login.proxy.address),
                "unknown:22",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut connect = Process::start(&mut command);
        let mut stdout = connect.child().stdout.take().unwrap();
        let mut stderr = connect.child().stderr.take().unwrap();
        assert_eq!(stdout.read(&mut [0]).unwrap(), 0, "there is no tunnel to print");
        drop(connect);
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert!(said.contains("403: the target is not on the allowlist"), "{said:?}");
    }
}

/// Kubernetes sends SIGTERM and waits: sessions may finish.
#[test]
fn a_session_outlives_sigterm() {
    let mut login = Login::through(&clients::SWITCHBOARD);
    let (mut session, stdout) = shell(&login);
    login.proxy.terminate();
    login.proxy.says("drain");
    echo(&mut session, &stdout, "after");
    drop(session.child().stdin.take());
    assert!(session.wait(SOON).success());
    assert_eq!(login.proxy.wait().code(), Some(0), "{}", login.proxy.log());
    assert_tunnel(&clients::SWITCHBOARD, &login.proxy.access_lines(1)[0]);
}

/// A session with a shell, which has answered.
fn shell(login: &Login) -> (Process, Lines) {
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

fn echo(session: &mut Process, stdout: &Lines, text: &str) {
    let stdin = session.child().stdin.as_mut().unwrap();
    writeln!(stdin, "echo {text}").unwrap();
    stdout
        .wait(SOON, |lines| lines.contains(&text.to_owned()).then_some(()))
        .unwrap();
}

/// sshd 9.8 and later punishes addresses that connect and do not log in, and all of them have the proxy's.
#[test]
fn sshd_sees_the_logins_and_no_other_connection() {
    let mut login = Login::through(&clients::NC);
    let idles = || {
        for _ in 0..3 {
            for path in ["/readyz", "/livez", "/metrics", "/drain"] {
                assert!(login.proxy.page(path).starts_with("HTTP/1.1 200 "), "{path}");
            }
            login.proxy.reload();
        }
    };
    idles();
    assert_eq!(login.sshd.connections(), 0, "{}", login.sshd.log());
    for logins in 1..=2 {
        login.run(login.command("ssh").args([HOST, "true"]), b"");
        idles();
        assert_eq!(login.sshd.connections(), logins, "{}", login.sshd.log());
    }
    login.proxy.terminate();
    assert_eq!(login.proxy.wait().code(), Some(0), "{}", login.proxy.log());
    assert_eq!(login.sshd.connections(), 2, "{}", login.sshd.log());
}

/// The README may only name what is tested here, to the letter but for the throwaway certificate.
#[test]
fn the_readme_gives_these_commands() {
    let readme = include_str!("../../README.md");
    for client in [clients::SWITCHBOARD, clients::PROXYTUNNEL, clients::NC] {
        let line = format!("ProxyCommand {}", client.proxy_command);
        let is_there = readme.lines().any(|there| there.trim() == line);
        assert!(is_there, "not in README.md: {line}");
    }
    let page = include_str!("../../docs/clients.md");
    for client in [clients::SWITCHBOARD_TLS, clients::PROXYTUNNEL_TLS] {
        // A public proxy has a certificate that its clients trust.
        let command = client.proxy_command.replace(" --ca ca.crt", "").replace(" -z", "");
        assert!(
            page.contains(&format!("| `{command}` |")),
            "not in docs/clients.md: {command}"
        );
    }
}

/// A tunnel that ended as sessions do. Whether the client's own end comes as a FIN or as a reset is the client's way.
fn assert_tunnel(client: &Client, line: &str) {
    assert_tunnel_of(client, line, ["OpenSSH_", "OpenSSH_"]);
}

/// The same, of a client and a target with this software.
fn assert_tunnel_of(client: &Client, line: &str, [near, far]: [&str; 2]) {
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
fn assert_spoken(client: &Client, line: &str) {
    let [tls, http] = client.spoken;
    for field in [
        format!(r#""tls.version":"{tls}""#),
        format!(r#""http.version":"{http}""#),
    ] {
        assert!(line.contains(&field), "{field} is not in {line}");
    }
}

const SOON: Duration = Duration::from_secs(120);
