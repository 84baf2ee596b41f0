//! Clients that know no ProxyCommand, by a port of `switchboard forward`: their sessions outlive cuts, too.

use std::ffi::OsString;

use super::*;
use crate::http2::peer::python;

/// A script beside this file.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/resume").join(name)
}

impl Way {
    /// Has the client run a shell by a port, and cuts its connections.
    fn outlives_cuts(&self, make: impl FnOnce(&str) -> Command) {
        let forward = Forward::start(self.middle.address, &[&format!("{HOST}:{PORT}")]);
        let mut shell = Shell::of(make(&forward.ports[0].port().to_string()));
        for number in 0..10 {
            self.middle.cut(number % 2 == 0);
            shell.echo(&format!("behind-cut-{number}"));
        }
        shell.log_out();
        self.sshd.expect_connections(1);
    }

    /// A client whose last arguments are the port, the user and the key.
    fn by(&self, program: impl AsRef<std::ffi::OsStr>, first: &[OsString], port: &str) -> Command {
        let mut command = quiet(program);
        command
            .args(first)
            .args([port, &self.sshd.user])
            .arg(self.path("client_key"));
        command.current_dir(self.directory.path());
        command
    }
}

fn plink() {
    let way = Way::http();
    let mut puttygen = quiet(program("puttygen", "putty-tools"));
    puttygen.args(["client_key", "-O", "private", "-o", "client.ppk"]);
    way.run(puttygen.current_dir(way.directory.path()));
    let mut fingerprint = quiet(program("ssh-keygen", "openssh-client"));
    let printed = way.run(fingerprint.args(["-l", "-f"]).arg(way.path("host_key.pub")));
    let fingerprint = printed.stdout.split(' ').nth(1).unwrap();
    way.outlives_cuts(|port| {
        let mut plink = quiet(program("plink", "putty-tools"));
        plink.args([
            "-batch",
            "-P",
            port,
            "-l",
            &way.sshd.user,
            "-hostkey",
            fingerprint,
            "-i",
            "client.ppk",
        ]);
        plink.args(["-T", "127.0.0.1", "sh"]);
        plink
            .env("HOME", way.directory.path())
            .current_dir(way.directory.path());
        plink
    });
}

fn paramiko_and_asyncssh() {
    for library in ["paramiko", "asyncssh"] {
        let way = Way::http();
        way.outlives_cuts(|port| way.by(python(), &[script("shell.py").into(), library.into()], port));
    }
}

fn ssh2_of_node() {
    let way = Way::http();
    let modules = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../ssh2/node_modules");
    assert!(modules.join("ssh2").exists(), "no ssh2: run tests/install-clients");
    let modules = fs::canonicalize(modules).unwrap();
    way.outlives_cuts(|port| {
        way.by(
            program("node", "nodejs"),
            &[script("shell.js").into(), modules.into()],
            port,
        )
    });
}

/// With keys of ECDSA, since the version of Debian knows neither ed25519 nor RSA with SHA-2.
fn jsch() {
    let way = Way::around("http", Faults::none(), "", |directory| {
        Sshd::start_with_keys(directory, &["-t", "ecdsa", "-m", "PEM"])
    });
    let jar = "/usr/share/java/jsch.jar";
    assert!(Path::new(jar).exists(), "no {jar}: run tests/install-clients");
    let first = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jar].map(OsString::from);
    let first = [&first[..], &[script("Shell.java").into()]].concat();
    way.outlives_cuts(|port| way.by(program("java", "default-jdk-headless"), &first, port));
}

tests_in!(slow: plink, paramiko_and_asyncssh, ssh2_of_node, jsch);
