//! User certificates at the jump host, as ssh-keygen makes them and ssh presents them.

use std::sync::Arc;

use russh::keys::{load_openssh_certificate, load_secret_key};

use super::keys::{User, echoes, echoes_for_alice, is_refused};
use super::*;

impl User {
    /// Signs the `.pub` of a key by these arguments of ssh-keygen.
    fn sign(&self, authority: &str, key: &str, arguments: &[&str]) {
        let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
        keygen.args(["-q", "-I", "a test", "-s"]).arg(self.path(authority));
        keygen.args(arguments).arg(self.path(key).with_added_extension("pub"));
        run(&mut keygen, &[], self.folder.path(), DEADLINE).succeeded();
    }

    /// Starts a jump host for the authorities of this file. Alice has the group ops in the file of users, and a key for elsewhere.
    fn start_for(&self, authorities: &str) -> JumpHost {
        let [file, users] = ["authorities", "users"].map(|name| self.path(name));
        fs::write(&file, authorities).unwrap();
        let listed = self.key("listed");
        self.write(&format!("alice::ops\nalice:from=\"192.0.2.1\" {listed}\n"));
        let access = format!(
            "access: {{mode: enforce, users: {{file: {}}}, ssh_authorities: {{file: {}}}}}\n",
            users.display(),
            file.display()
        );
        JumpHost::with("ssh: jump", &access)
    }
}

const FOR_AN_HOUR: [&str; 2] = ["-V", "-1m:+1h"];

#[test]
fn a_certificate_of_each_type_opens_the_door() {
    let user = User::new();
    for (name, kind, authority, of_authority) in [
        ("one", "ed25519", "ca_one", "ecdsa"),
        ("two", "ecdsa", "ca_two", "ed25519"),
        ("three", "rsa", "ca_three", "rsa"),
    ] {
        user.make(name, &["-t", kind]);
        user.make(authority, &["-t", of_authority]);
        user.sign(authority, name, &["-n", "carol,alice", FOR_AN_HOUR[0], FOR_AN_HOUR[1]]);
    }
    let authorities = ["ca_one", "ca_two", "ca_three"]
        .map(|name| fs::read_to_string(user.path(name).with_added_extension("pub")).unwrap());
    let mut jump_host = user.start_for(&authorities.concat());
    for (account, key) in [("alice", "one"), ("alice", "two"), ("alice%box", "three")] {
        user.log_in_with(&jump_host, account, &[key]);
        echoes_for_alice(&mut jump_host, "ssh_certificate");
    }
    // Carol is in no group, so no target names her.
    user.log_in_with(&jump_host, "carol", &["one"]);
    let refused = jump_host.run(jump_host.command("ssh").args(["devbox.team-a", "true"]));
    assert!(
        refused.stderr.contains("carol may not ssh to devbox.team-a:22"),
        "{refused}"
    );
}

#[test]
fn no_other_certificate_opens_it() {
    let user = User::new();
    let authority = user.key("ca");
    user.key("other_ca");
    let forged = user.key("forged");
    let mut jump_host = user.start_for(&format!("{authority}\n"));
    let [hour, window] = FOR_AN_HOUR;
    let named = ["-n", "alice", hour, window];
    for (name, by, arguments) in [
        ("of_bob", "ca", &["-n", "bob", hour, window][..]),
        ("of_nobody", "ca", &[hour, window]),
        ("of_all", "ca", &["-n", "*", hour, window]),
        ("of_a_host", "ca", &["-h", "-n", "alice", hour, window]),
        ("of_others", "other_ca", &named),
        ("of_itself", "of_itself", &named),
        ("elsewhere", "ca", &["-n", "alice", "-O", "source-address=192.0.2.0/24"]),
        ("forced", "ca", &["-n", "alice", "-O", "force-command=true"]),
        ("touched", "ca", &["-n", "alice", "-O", "verify-required"]),
        ("odd", "ca", &["-n", "alice", "-O", "critical:x@example.com=y"]),
        ("bare", "ca", &["-n", "alice", "-O", "clear"]),
        ("late", "ca", &["-n", "alice", "-V", "-2h:-1h"]),
        ("early", "ca", &["-n", "alice", "-V", "+1h:+2h"]),
    ] {
        user.key(name);
        user.sign(by, name, arguments);
        user.log_in_with(&jump_host, "alice", &[name]);
        is_refused(&jump_host);
    }
    // Only the first of several refusals has a line of its own.
    let line = jump_host.access_line();
    assert_eq!(
        (&line["reason"], &line["user.name"], &line["auth.claimed_user"]),
        (&"credentials_refused".into(), &"".into(), &"alice".into()),
        "{line}"
    );
    // A certificate beside another key is none.
    user.key("plain");
    user.sign("ca", "plain", &named);
    fs::rename(user.path("plain-cert.pub"), user.path("forged-cert.pub")).unwrap();
    assert!(forged.starts_with("ssh-ed25519 "));
    user.log_in_with(&jump_host, "alice", &["forged"]);
    is_refused(&jump_host);
    user.key("inside");
    user.sign(
        "ca",
        "inside",
        &["-n", "alice", "-O", "source-address=127.0.0.0/8,::1/128"],
    );
    user.log_in_with(&jump_host, "alice", &["inside"]);
    echoes(&jump_host, &mut jump_host.command("ssh"));
}

#[test]
fn a_certificate_of_a_listed_key_is_not_that_key() {
    let user = User::new();
    let [_, own] = ["ca", "own"].map(|name| user.key(name));
    user.sign("ca", "own", &["-n", "alice"]);
    let mut jump_host = user.start(&format!("alice::ops\nalice:{own}\n"));
    let key = Arc::new(load_secret_key(user.path("own"), None).unwrap());
    let certificate = load_openssh_certificate(user.path("own-cert.pub")).unwrap();
    Runtime::new().unwrap().block_on(async {
        let mut client = hostile::connect(jump_host.server.public()).await;
        let answer = client.authenticate_openssh_cert("alice", key, certificate).await;
        assert!(!answer.unwrap().success());
    });
    let line = jump_host.access_line();
    let expected = "the authority of the certificate is not known here";
    assert_eq!(line["authorization.reason"], expected, "{line}");
    fs::remove_file(user.path("own-cert.pub")).unwrap();
    user.log_in_with(&jump_host, "alice", &["own"]);
    echoes(&jump_host, &mut jump_host.command("ssh"));
    assert_eq!(jump_host.access_line()["auth.method"], "public_key");
}

#[test]
fn an_authority_that_is_removed_ends_the_sessions_of_its_certificates_and_no_others() {
    let user = User::new();
    let [removed, kept] = ["removed_ca", "kept_ca"].map(|name| user.key(name));
    for name in ["removed", "kept"] {
        user.key(name);
        user.sign(&format!("{name}_ca"), name, &["-n", "alice"]);
    }
    let jump_host = user.start_for(&format!("{removed}\n{kept}\n"));
    let (mut ended, _stdin, _stdout) = user.session(&jump_host, "removed");
    let (mut open, stdin, mut stdout) = user.session(&jump_host, "kept");
    // A file with an error changes nothing.
    for text in ["ssh-ed25519 x\n".to_owned(), format!("{kept}\n")] {
        fs::write(user.path("authorities"), text).unwrap();
        jump_host.server.process.signal(Signal::HUP);
    }
    assert_eq!(ended.wait(DEADLINE).code(), Some(255));
    let mut stdin = stdin.unwrap();
    std::io::Write::write_all(&mut stdin, b"on\n").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "on\n");
    drop(stdin);
    open.wait(DEADLINE);
    user.log_in_with(&jump_host, "alice", &["removed"]);
    is_refused(&jump_host);
}

/// OpenSSH signs with it no more.
#[test]
fn an_authority_or_a_key_that_signs_with_sha_1_is_refused() {
    let user = User::new();
    let authority = user.make("ca", &["-t", "rsa", "-b", "2048"]);
    let jump_host = user.start_for(&format!("{authority}\n"));
    for (algorithm, expected) in [("rsa-sha2-256", true), ("ssh-rsa", false)] {
        let key = format!("of_{algorithm}");
        user.key(&key);
        user.sign("ca", &key, &["-n", "alice", "-t", algorithm]);
        user.log_in_with(&jump_host, "alice", &[&key]);
        let text = fs::read_to_string(jump_host.path("ssh_config")).unwrap();
        let all = text.replacen("Host jump\n", "Host jump\n  CASignatureAlgorithms +ssh-rsa\n", 1);
        fs::write(jump_host.path("ssh_config"), all).unwrap();
        match expected {
            true => echoes(&jump_host, &mut jump_host.command("ssh")),
            false => is_refused(&jump_host),
        }
    }
    let key = "signs_with_sha_1";
    user.make(key, &["-t", "rsa", "-b", "2048"]);
    user.sign("ca", key, &["-n", "alice"]);
    user.log_in_with(&jump_host, "alice", &[key]);
    let text = fs::read_to_string(jump_host.path("ssh_config")).unwrap();
    for (algorithms, expected) in [
        ("rsa-sha2-512-cert-v01@openssh.com", true),
        ("ssh-rsa-cert-v01@openssh.com", false),
    ] {
        let only = format!("Host jump\n  PubkeyAcceptedAlgorithms {algorithms}\n");
        fs::write(jump_host.path("ssh_config"), text.replacen("Host jump\n", &only, 1)).unwrap();
        match expected {
            true => echoes(&jump_host, &mut jump_host.command("ssh")),
            false => is_refused(&jump_host),
        }
    }
}
