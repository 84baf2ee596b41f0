//! `config --check` names the guilty step of set-ups that are broken, each in one way.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::thread;

use crate::anchor::Anchor;
use crate::credentials::demanding_proxy::DemandingProxy;
use crate::harness::authority::Authority;
use crate::harness::missing;
use crate::harness::ports::Ports;
use crate::harness::process::{Process, Server, Settings, switchboard};
use crate::harness::proxy::Proxy;
use crate::harness::target::Closed;
use crate::openssh::sshd::Sshd;

/// A server that says that to every client, and closes when the client does.
fn says(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                stream.write_all(words).unwrap_or_default();
                stream.shutdown(std::net::Shutdown::Write).unwrap_or_default();
                std::io::copy(&mut stream, &mut std::io::sink()).unwrap_or_default();
            });
        }
    });
    address
}

/// Returns the exit status and the output of a check.
#[track_caller]
fn checked(command: Command) -> (i32, String) {
    let mut process = Process::spawn(command);
    let status = process.exit_status();
    (
        status,
        [process.stdout.rest(), process.stderr.rest()].concat().join("\n"),
    )
}

fn allow(ssh: SocketAddr, closed: SocketAddr, web: SocketAddr, mute: SocketAddr) -> String {
    format!(
        "allowlist:\n  static:\n    - {{name: \"ssh.a:22\", addresses: [\"{ssh}\"]}}\n    - {{name: \"closed.a:22\", addresses: \
         [\"{closed}\"]}}\n    - {{name: \"web.a:22\", addresses: [\"{web}\"]}}\n    - {{name: \"mute.a:22\", addresses: \
         [\"{mute}\"]}}\n"
    )
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn the_guilty_step_of_every_broken_set_up_is_named() {
    let folder = tempfile::TempDir::new().unwrap();
    let sshd = Sshd::start(folder.path());
    let (closed, authority, strange) = (Closed::bind(), Authority::new(), Authority::new());
    let (web, mute) = (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), says(b""));
    let old = says(b"SSH-1.5-x\r\n");
    let allowed = allow(sshd.address, closed.address(), web, mute)
        + &format!("    - {{name: \"old.a:22\", addresses: [\"{old}\"]}}\n");
    let plain = Proxy::start(&format!("ssh_only: false\n{allowed}"));
    let certificate = authority.server("server", &["localhost"]).setting();
    let tls = |more: &str| {
        Proxy::start(&format!(
            "listen: {{address: \"127.0.0.1:0\", tls: required}}\ntls: {{certificates: [{certificate}]{more}}}\n{allowed}"
        ))
    };
    let encrypted = tls("");
    let demanding = tls(&format!(
        ", client_auth: required, client_ca: \"{}\"",
        authority.ca().display()
    ));
    let logged_in = DemandingProxy::start("right", None);
    let (http, https) = (
        format!("http://{}", plain.public()),
        format!("https://{}", encrypted.public()),
    );
    let (closed, admin) = (
        format!("http://{}", closed.address()),
        format!("http://{}", plain.admin()),
    );
    let (to_ssh, to_ssh_tls) = (format!("http://{}", sshd.address), format!("https://{}", sshd.address));
    let (to_plain, to_tls) = (https.replace("https", "http"), http.replace("http", "https"));
    let certified = format!("https://{}", demanding.public());
    let tokens = format!("http://{}", logged_in.address);
    let (ca, other) = (authority.ca().display().to_string(), strange.ca().display().to_string());
    let office = says(b"HTTP/1.1 403 Forbidden by the office\r\n\r\n").to_string();
    let (none, missing): (&[(&str, &str)], _) = (&[], missing());
    let misnamed = ["--ca", ca.as_str(), "--server-name", "other.example"];
    for (number, (proxy, flags, name, variables, [step, reason])) in [
        (
            &http,
            &[][..],
            "a:b:c",
            none,
            ["settings", "the target is not HOST:PORT"],
        ),
        (
            &https,
            &["--ca", &missing],
            "ssh.a",
            none,
            ["settings", "there is no such file"],
        ),
        (
            &http,
            &["--token-file", &missing],
            "ssh.a",
            none,
            ["settings", &format!("cannot read the token in {missing}")],
        ),
        (&closed, &[], "ssh.a", none, ["TCP", "Connection refused"]),
        (
            &http,
            &[],
            "ssh.a",
            &[("http_proxy", closed.as_str())],
            ["network", "Connection refused"],
        ),
        (
            &https,
            &["--ca", &ca],
            "ssh.a",
            &[("https_proxy", office.as_str())],
            ["network", "403: Forbidden by the office"],
        ),
        (
            &to_tls,
            &["--ca", &ca],
            "ssh.a",
            none,
            ["TLS", "is the port one of TLS?"],
        ),
        (
            &https,
            &["--ca", &other],
            "ssh.a",
            none,
            ["TLS", "which is not among the certificates of --ca"],
        ),
        (
            &https,
            &misnamed,
            "ssh.a",
            none,
            [
                "TLS",
                "not valid for name \"other.example\"; certificate is only valid for ",
            ],
        ),
        (
            &certified,
            &["--ca", &ca],
            "ssh.a",
            none,
            ["proxy", "requires a client certificate"],
        ),
        (
            &to_ssh_tls,
            &["--ca", &ca],
            "ssh.a",
            none,
            ["TLS", "is the port one of TLS?"],
        ),
        (&to_plain, &[], "ssh.a", none, ["proxy", ""]),
        (&admin, &[], "ssh.a", none, ["proxy", "this is not a CONNECT proxy"]),
        (
            &to_ssh,
            &[],
            "ssh.a",
            none,
            [
                "proxy",
                "is not HTTP: are the scheme, the address and the port of its URL right?",
            ],
        ),
        (&tokens, &[], "ssh.a", none, ["proxy", "give credentials"]),
        (&http, &[], "unknown.a", none, ["proxy", "the proxy answered 403"]),
        (&http, &[], "closed.a", none, ["proxy", "the proxy answered 502"]),
        (
            &http,
            &[],
            "web.a",
            none,
            ["SSH", "it says \"HTTP/1.1 400 Bad Request\""],
        ),
        (
            &http,
            &[],
            "mute.a",
            none,
            ["SSH", "without a word: is it an SSH server?"],
        ),
        (
            &http,
            &[],
            "old.a",
            none,
            ["SSH", "says \"SSH-1.5-x\": ssh speaks to servers of SSH 2.0 only"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = switchboard(&[&["config", "--proxy", proxy, "--check", name], flags].concat());
        command.envs(variables.iter().copied());
        let (status, printed) = checked(command);
        let fails: Vec<_> = printed.lines().filter(|line| line.starts_with("FAILS")).collect();
        let is_named =
            fails.len() == 1 && fails[0].split_whitespace().nth(1) == Some(step) && fails[0].contains(reason);
        assert!(
            status == 1 && is_named,
            "{number}: {proxy} {flags:?} {name}: {step}, {reason}\n{printed}"
        );
    }
    for (proxy, flags) in [(&http, &[][..]), (&https, &["--ca", &ca])] {
        let (status, printed) = checked(switchboard(
            &[&["config", "--proxy", proxy, "--check", "ssh.a"], flags].concat(),
        ));
        assert!(
            status == 0 && printed.lines().all(|line| line.starts_with("ok ")),
            "{printed}"
        );
        assert!(printed.contains("\nok     SSH       SSH-2.0-OpenSSH"), "{printed}");
    }
}

/// Answers every request so, and closes with the rest unread.
fn portal(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut start = [0; 20];
            std::io::Read::read_exact(&mut stream, &mut start).unwrap_or_default();
            stream.write_all(answer).unwrap_or_default();
        }
    });
    address
}

#[test]
fn a_captive_portal_or_another_server_in_place_of_the_proxy_is_named_with_the_step() {
    let foreign = "this is no answer of switchboard: a web server, a captive portal or another proxy has answered";
    for (answer, step, reason) in [
        (
            &b"HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"[..],
            "proxy",
            "the proxy answered 302: Found",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
            "proxy",
            "403: Forbidden",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "proxy", "400: Bad Request"),
        (
            b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
            "proxy",
            "503: Service Unavailable",
        ),
        (
            b"HTTP/1.1 511 Network Authentication Required\r\n\r\n",
            "proxy",
            "511: Network Authentication Required",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><title>Log in</title>",
            "SSH",
            "a web server or a captive portal has answered",
        ),
        (
            b"HTTP/1.1 200 OK\r\n\r\n",
            "SSH",
            "A web server or a captive portal may have answered",
        ),
    ] {
        let proxy = format!("http://{}", portal(answer));
        let (status, printed) = checked(switchboard(&["config", "--proxy", &proxy, "--check", "ssh.a"]));
        let last = printed.lines().last().unwrap();
        assert!(
            status == 1 && last.starts_with(&format!("FAILS  {step:8}  ")) && last.contains(reason),
            "{printed}"
        );
        assert_eq!(last.contains(foreign), step == "proxy", "{printed}");
    }
}

#[test]
fn a_check_says_if_the_session_will_be_resumable_and_why_an_anchor_has_none() {
    let folder = tempfile::TempDir::new().unwrap();
    let (sshd, closed) = (Sshd::start(folder.path()), Closed::bind());
    let (anchor, dead) = (Anchor::start(sshd.address, &[]), Anchor::start(closed.address(), &[]));
    let targets = [
        ("anchor.a:22", anchor.address()),
        ("dead.a:22", dead.address()),
        ("plain.a:22", sshd.address),
    ];
    let server = Server::with(&Settings::new(&crate::harness::allow(&targets)));
    let proxy = format!("http://{}", server.public());
    for (name, flags, reached, expected) in [
        (
            "anchor.a",
            &[][..],
            true,
            "(the session will be resumable: the target has an anchor)",
        ),
        (
            "anchor.a",
            &["--resume", "off"],
            true,
            "(the session will not be resumable: --resume is off)",
        ),
        (
            "plain.a",
            &[],
            true,
            "(the session will not be resumable: the target has no anchor)",
        ),
        ("dead.a", &[], false, "the anchor cannot reach the SSH server"),
    ] {
        let (status, printed) = checked(switchboard(
            &[&["config", "--proxy", &proxy, "--check", name], flags].concat(),
        ));
        assert_eq!(status == 0, reached, "{printed}");
        let mut steps = printed.lines().filter(|line| !line.starts_with("ok     host key "));
        assert!(steps.next_back().unwrap().contains(expected), "{printed}");
    }
}

#[test]
fn a_verbose_connect_says_if_the_session_will_be_resumable() {
    let folder = tempfile::TempDir::new().unwrap();
    let sshd = Sshd::start(folder.path());
    let anchor = Anchor::start(sshd.address, &[]);
    let targets = [("anchor.a:22", anchor.address()), ("plain.a:22", sshd.address)];
    let server = Server::with(&Settings::new(&crate::harness::allow(&targets)));
    let proxy = format!("http://{}", server.public());
    for (target, resume, expected) in [
        ("anchor.a:22", "auto", "be resumable: the target has an anchor"),
        ("anchor.a:22", "off", "not be resumable: --resume is off"),
        ("plain.a:22", "auto", "not be resumable: the target has no anchor"),
    ] {
        let mut command = switchboard(&["connect", "--proxy", &proxy, "--resume", resume, "-v", target]);
        let mut client = Process::spawn_from(&mut command, std::process::Stdio::piped());
        let line = client.stderr.next().unwrap();
        assert!(
            line.starts_with("switchboard: the session will ") && line.ends_with(expected),
            "{line}"
        );
        client.signal(rustix::process::Signal::TERM);
        client.exit_status();
    }
}

/// In a network of its own, which has no resolver: nothing is asked of the one of this machine.
#[test]
fn a_name_without_an_address_is_named() {
    let check = switchboard(&["config", "--proxy", "http://proxy.example.com", "--check", "ssh.a"]);
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net"])
        .arg(check.get_program())
        .args(check.get_args());
    for (name, value) in check.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (status, printed) = checked(command);
    assert_eq!(status, 1, "{printed}");
    assert!(
        printed.contains("FAILS  DNS       cannot look up proxy.example.com: "),
        "{printed}"
    );
}
