//! All clients at once by one port: plain, by TLS of both versions, over both versions of HTTP, with a certificate and
//! without.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use super::clients::{self, Client};
use super::login::{GUARDED, HOST, Login, PATIENCE, PORT, noise};
use super::process::{Finished, program, quiet, run};

#[test]
fn every_peer_comes_by_one_port_at_once() {
    let login = Login::through(&clients::SWITCHBOARD);
    let content = noise(4 << 20);
    thread::scope(|scope| {
        for (client, name) in SSH {
            let (login, content) = (&login, &content);
            scope.spawn(move || echoes(login, client, name, content));
        }
        scope.spawn(|| curl_shows_a_certificate(&login));
        scope.spawn(|| openssl_comes_twice(&login, "-tls1_2"));
        scope.spawn(|| openssl_comes_twice(&login, "-tls1_3"));
    });

    let mut came: Vec<_> = SSH.iter().map(|(client, _)| client.spoken).collect();
    // curl, and openssl twice in each version.
    came.extend([["1.3", "1"], ["1.3", "1"], ["1.3", "1"], ["1.2", "1"], ["1.2", "1"]]);
    let lines = login.proxy.access_lines(came.len());
    assert_eq!(lines.len(), came.len());
    for line in &lines {
        assert!(line.contains(r#""status":200"#), "{line}");
        let guarded = line.contains(&format!(r#""server.address":"{GUARDED}""#));
        assert_eq!(guarded, line.contains(r#""tls.client.subject":"CN=alice""#), "{line}");
    }
    for [tls, http] in came.clone() {
        let fields = format!(r#""tls.version":"{tls}""#);
        let so = |line: &&String| line.contains(&fields) && line.contains(&format!(r#""http.version":"{http}""#));
        let expected = came.iter().filter(|spoken| **spoken == [tls, http]).count();
        assert_eq!(lines.iter().filter(so).count(), expected, "TLS {tls}, HTTP {http}");
    }
    // The port asks for certificates, so that no session is resumed.
    let page = login.proxy.page("/metrics");
    for version in ["1.2", "1.3"] {
        let series = format!(r#"switchboard_tls_handshakes_total{{resumed="true",version="{version}"}} 0"#);
        assert!(page.contains(&series), "{series} is not in {page}");
    }
    let failed = |line: &&str| line.starts_with("switchboard_tls_handshake_failures_total{") && !line.ends_with(" 0");
    assert_eq!(page.lines().find(failed), None);
}

/// `ssh host cat < file`: its end is told at once, and all of it comes back.
fn echoes(login: &Login, client: &Client, name: &str, content: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let finished = finish(
        login,
        login
            .command_by(&client.command(login.proxy.address), "ssh")
            .args([name, "cat"]),
        content,
        directory.path(),
    );
    assert!(
        finished.status.success(),
        "{}: {}",
        client.proxy_command,
        finished.stderr
    );
    let back = fs::read(directory.path().join("stdout")).unwrap();
    assert!(
        back == content,
        "{}: {} bytes came back",
        client.proxy_command,
        back.len()
    );
}

fn curl_shows_a_certificate(login: &Login) {
    let directory = tempfile::tempdir().unwrap();
    let mut curl = quiet(program("curl", "curl"));
    curl.args(["--silent", "--show-error", "--max-time", "60", "-p", "-x"])
        .arg(format!("https://{}", login.proxy.address))
        .args([
            "--proxy-cacert",
            "ca.crt",
            "--proxy-cert",
            "alice.crt",
            "--proxy-key",
            "alice.key",
        ])
        .arg(format!("telnet://{GUARDED}:{PORT}"))
        .current_dir(login.path(""));
    let finished = finish(login, &mut curl, NO_SSH, directory.path());
    assert!(finished.stdout.starts_with("SSH-2.0-OpenSSH_"), "{finished}");
}

fn openssl_comes_twice(login: &Login, version: &str) {
    let directory = tempfile::tempdir().unwrap();
    let session = directory.path().join("session");
    let asked = [format!("CONNECT {HOST}:{PORT} HTTP/1.0\r\n\r\n").as_bytes(), NO_SSH].concat();
    for _ in 0..2 {
        // By TLS 1.3 there is none, for want of a ticket.
        let option = if session.exists() { "-sess_in" } else { "-sess_out" };
        let mut openssl = quiet(program("openssl", "openssl"));
        openssl
            .args([
                "s_client",
                "-connect",
                &login.proxy.address.to_string(),
                version,
                "-ign_eof",
            ])
            .args(["-CAfile", "ca.crt", "-verify_return_error", option])
            .arg(&session)
            .current_dir(login.path(""));
        let finished = finish(login, &mut openssl, &asked, directory.path());
        for said in ["New, TLSv1.", "HTTP/1.1 200 Connection established", "SSH-2.0-OpenSSH_"] {
            assert!(finished.stdout.contains(said), "{said} is not said: {finished}");
        }
    }
}

fn finish(login: &Login, command: &mut Command, input: &[u8], directory: &Path) -> Finished {
    let finished = run(command, input, directory, PATIENCE);
    let log = login.proxy.log();
    assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
    finished
}

/// Each that ssh can be sent through, and where to.
const SSH: [(&Client, &str); 12] = [
    (&clients::SWITCHBOARD, HOST),
    (&clients::SWITCHBOARD_TLS, HOST),
    (&clients::SWITCHBOARD_CERTIFICATE, GUARDED),
    (&clients::PROXYTUNNEL, HOST),
    (&clients::PROXYTUNNEL_TLS, HOST),
    (&clients::NC, HOST),
    (&clients::NCAT, HOST),
    (&clients::CORKSCREW, HOST),
    (&clients::CONNECT_PROXY, HOST),
    (&clients::SOCAT, HOST),
    (&clients::HTTP2, HOST),
    (&clients::HTTP2_TLS, HOST),
];

/// sshd shows its own line, says what is wrong and hangs up.
const NO_SSH: &[u8] = b"SSH-2.0-other\r\nnot a key exchange\r\n";
