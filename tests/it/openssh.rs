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
mod tasks;

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use login::{GUARDED, HOST, Login};
use process::{Process, program, quiet, run};
use switchboard::tunnel::outcome::RefusalReason;
use tasks::{assert_spoken, assert_tunnel, echo, shell};

/// Each client does each task under a name of its own. An anchor sees the same bytes of every client that knows no session: one of
/// them is enough. `clients_table` has the refusals of the clients that show none here.
macro_rules! each_client {
    ($($module:ident: $client:ident $(+ $more:ident)*,)*) => { $(
        mod $module {
            use super::clients::$client as CLIENT;

            each_task!(through);
            $(each_task!($more);)*
        }
    )* };
}

macro_rules! each_task {
    (shows_refusals) => {
        #[test]
        fn shows_refusals() {
            super::tasks::shows_refusals(&CLIENT);
        }
    };
    (by_an_anchor) => {
        mod by_an_anchor {
            use super::CLIENT;

            each_task!(through_an_anchor);
        }
    };
    ($start:ident) => {
        each_task! { $start: runs_a_command, copies_up, copies_down, puts_and_gets_files, forwards_like_vs_code }
    };
    ($start:ident: $($task:ident),*) => { $(
        #[test]
        fn $task() {
            crate::openssh::tasks::$task(&CLIENT, &crate::openssh::Login::$start(&CLIENT));
        }
    )* };
}

each_client! {
    switchboard_connect: SWITCHBOARD + by_an_anchor,
    switchboard_connect_by_tls: SWITCHBOARD_TLS + by_an_anchor + shows_refusals,
    websocket: WEBSOCKET + by_an_anchor + shows_refusals,
    websocket_by_tls: WEBSOCKET_TLS + by_an_anchor + shows_refusals,
    proxytunnel: PROXYTUNNEL,
    proxytunnel_by_tls: PROXYTUNNEL_TLS + shows_refusals,
    netcat: NC + by_an_anchor,
    ncat: NCAT,
    corkscrew: CORKSCREW,
    connect_proxy: CONNECT_PROXY,
    socat: SOCAT,
    http2: HTTP2 + shows_refusals,
    http2_by_tls: HTTP2_TLS + shows_refusals,
}

#[test]
fn a_client_certificate_opens_a_target_that_demands_one() {
    let login = Login::through(&clients::SWITCHBOARD_TLS);
    let client = &clients::SWITCHBOARD_CERTIFICATE;
    let proxy_command = client.command(login.proxy.address);
    let finished = login.run(
        login.command_by(&proxy_command, "ssh").args([GUARDED, "cat"]),
        b"let in\n",
    );
    assert_eq!(finished.stdout, "let in\n");
    let line = &login.proxy.access_lines(1)[0];
    assert_spoken(client, line);
    assert!(line.contains(r#""tls.client.subject":"CN=alice""#), "{line}");
    // The proxy has a certificate of that name, and none of this: it shows its first.
    let wrong = proxy_command.replace("ssh.example.com", "other.example.com");
    let refused = login.attempt(login.command_by(&wrong, "ssh").args([GUARDED, "true"]), &[]);
    assert_eq!(refused.status.code(), Some(255), "{refused}");
    let expected = r#"the proxy is not trusted: certificate not valid for name "other.example.com""#;
    assert!(refused.stderr.contains(expected), "{refused}");
    login.proxy.access_lines(2);
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
        let expected = format!("403: {}", RefusalReason::NotAllowed.phrase());
        assert!(said.contains(&expected), "{said:?}");
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
    assert_tunnel(&clients::SWITCHBOARD, &login, &login.proxy.access_lines(1)[0]);
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
    login.sshd.expect_connections(0);
    for logins in 1..=2 {
        login.run(login.command("ssh").args([HOST, "true"]), b"");
        idles();
        login.sshd.expect_connections(logins);
    }
    login.proxy.terminate();
    assert_eq!(login.proxy.wait().code(), Some(0), "{}", login.proxy.log());
    login.sshd.expect_connections(2);
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

const SOON: Duration = Duration::from_secs(120);
