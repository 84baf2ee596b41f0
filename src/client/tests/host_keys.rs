//! Published host keys: written before ssh gets a byte, and only from a proxy that is authenticated.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::client::known_hosts::{self, HostKeyOutput, KnownHosts};

const KEY: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("known")
    }

    fn asking(&self, options: Options) -> Options {
        let known = KnownHosts::new(self.file(), &options.target);
        Options {
            host_keys: Some(HostKeyOutput::File(known)),
            ..options
        }
    }
}

fn answer(field: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nSwitchboard-Host-Keys: {field}\r\n\r\nSSH-2.0-x\r\n").into_bytes()
}

fn line(source: &str) -> String {
    let name = known_hosts::name(TARGET);
    format!("{name} ssh-ed25519 {KEY} switchboard:{source}\n")
}

#[tokio::test]
async fn keys_are_in_the_file_when_ssh_gets_the_identification() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let mut session = Session::start(home.asking(proxy.http()));
    let mut stream = proxy.accept().await;
    assert!(
        read_request(&mut stream)
            .await
            .contains("\r\nSwitchboard-Host-Keys: ?1\r\n")
    );
    stream
        .write_all(&answer(&format!("(:{KEY}:);from=annotation")))
        .await
        .unwrap();
    assert_eq!(&read_exactly::<9>(&mut session.stdout).await, b"SSH-2.0-x");
    assert_eq!(fs::read_to_string(home.file()).unwrap(), line("annotation"));
}

#[tokio::test]
async fn a_client_without_a_file_asks_for_no_keys() {
    let proxy = Proxy::bind().await;
    let _session = Session::start(proxy.http());
    let mut stream = proxy.accept().await;
    assert!(!read_request(&mut stream).await.contains("Host-Keys"));
}

/// A client with sessions, once it has the identification: the proxy has answered with this field, and the server with these
/// lines before it.
async fn answered(home: &Home, field: &str, lines: &str) -> (Session, TcpStream) {
    let proxy = Proxy::bind().await;
    let mut options = home.asking(proxy.http());
    options.session = Some(Settings::default());
    let mut session = Session::start(options);
    let mut stream = proxy.accept().await;
    read_request(&mut stream).await;
    let answer = String::from_utf8(answer(field)).unwrap();
    let answer = answer.replace("SSH-2.0", &format!("{lines}SSH-2.0"));
    let answer = answer.replace("Switchboard-Host-Keys: \r\n", "");
    stream.write_all(answer.as_bytes()).await.unwrap();
    read_exactly::<9>(&mut session.stdout).await;
    (session, stream)
}

#[tokio::test]
async fn what_is_no_key_is_not_written_and_the_login_goes_on() {
    let ecdsa = "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAAAgAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    let many: Vec<_> = (0..100_u8)
        .map(|number| {
            format!(
                ":{}:",
                KEY.replace("AQEB", &format!("A{}EB", char::from(b'A' + number % 26)))
            )
        })
        .collect();
    for field in [
        format!("(:{};from=annotation", KEY),
        format!("(:{}:);from=annotation", &KEY[..60]),
        format!("(:{KEY}: :{ecdsa}:);from=annotation"),
        format!("(:{KEY}:);from=nobody"),
        format!("({});from=annotation", many.join(" ")),
        format!("{} ssh-ed25519 {KEY}", known_hosts::name(TARGET)),
        "();from=annotation".to_owned(),
        "?1".to_owned(),
        // The lines of the target count only where the proxy says so.
        String::new(),
    ] {
        let home = Home::new();
        let lines = format!("switchboard-host-key ssh-ed25519 {KEY}\r\n");
        let (mut session, _stream) = answered(&home, &field, &lines).await;
        // As any line before an identification, of which the first nine bytes have been read.
        assert_eq!(
            &read_exactly::<12>(&mut session.stdout).await,
            b"rd-host-key ",
            "{field}"
        );
        assert!(!home.file().exists(), "{field}");
    }
}

#[tokio::test]
async fn the_lines_of_an_anchor_that_listens_are_read_where_the_proxy_allows_it() {
    let home = Home::new();
    let lines = format!("switchboard-host-key ssh-ed25519 {KEY}\r\nswitchboard-host-key ssh-dss AAAA\r\n");
    answered(&home, "();from=anchor", &lines).await;
    assert_eq!(fs::read_to_string(home.file()).unwrap(), line("anchor"));
}

/// A pod without an anchor, or another one that has the address now.
#[tokio::test]
async fn the_lines_of_a_server_do_not_replace_a_key() {
    let home = Home::new();
    let published = line("annotation").replace(KEY, &KEY.replace("AQEB", "AgIC"));
    fs::write(home.file(), &published).unwrap();
    answered(
        &home,
        "();from=anchor",
        &format!("switchboard-host-key ssh-ed25519 {KEY}\r\n"),
    )
    .await;
    assert_eq!(fs::read_to_string(home.file()).unwrap(), published);
}

/// Plain HTTP through a forward proxy: anybody on the way could have written the answer.
#[tokio::test]
async fn in_clear_no_key_is_accepted_even_where_credentials_may_be_sent() {
    let (home, forward) = (Home::new(), Proxy::bind().await);
    let mut options = home.asking(forward.http());
    let url = options.uplink.proxy.to_string();
    options.uplink.proxy = "http://proxy.invalid".parse().unwrap();
    options.uplink.credentials.cleartext = true;
    let variable = |name: &str| (name == "http_proxy").then(|| url.clone().into());
    options.uplink.forward = ForwardProxy::from_environment(&options.uplink.proxy, variable).unwrap();
    assert!(options.uplink.forward.is_some());
    let mut session = Session::start(options);
    let mut stream = forward.accept().await;
    read_request(&mut stream).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    read_request(&mut stream).await;
    stream
        .write_all(&answer(&format!("(:{KEY}:);from=config")))
        .await
        .unwrap();
    assert_eq!(&read_exactly::<9>(&mut session.stdout).await, b"SSH-2.0-x");
    assert!(!home.file().exists());
}

#[tokio::test]
async fn over_tls_keys_are_accepted() {
    let (home, proxy, server) = (Home::new(), Proxy::bind().await, Server::named("127.0.0.1"));
    let mut session = Session::start(home.asking(server.options(&proxy)));
    let _stream = server.answer(&proxy, &answer(&format!("(:{KEY}:);from=config"))).await;
    assert_eq!(&read_exactly::<9>(&mut session.stdout).await, b"SSH-2.0-x");
    assert_eq!(fs::read_to_string(home.file()).unwrap(), line("config"));
}
