//! Public keys at the jump host, by the clients that users have.

use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;

use russh::client::AuthResult;
use russh::keys::{HashAlg, PrivateKeyWithHashAlg, load_secret_key};

use super::*;

/// A folder with the keys of a user, and the file of users.
pub(super) struct User {
    pub(super) folder: TempDir,
}

impl User {
    pub(super) fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes a key by these arguments of ssh-keygen, and returns the line of its `.pub`.
    pub(super) fn make(&self, name: &str, arguments: &[&str]) -> String {
        let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
        keygen.args(["-q", "-N", "", "-C", name]).args(arguments);
        let path = self.path(name);
        run(keygen.arg("-f").arg(&path), &[], self.folder.path(), DEADLINE).succeeded();
        let public = fs::read_to_string(path.with_added_extension("pub")).unwrap();
        public.trim().to_owned()
    }

    /// Makes a key of the usual type.
    pub(super) fn key(&self, name: &str) -> String {
        self.make(name, &["-t", "ed25519"])
    }

    pub(super) fn write(&self, text: &str) {
        fs::write(self.path("users"), text).unwrap();
    }

    /// Starts a jump host for this file.
    pub(super) fn start(&self, text: &str) -> JumpHost {
        self.write(text);
        JumpHost::for_users(&self.path("users"))
    }

    /// Lets ssh log in to the jump host as `user`, by these keys in turn and nothing else.
    pub(super) fn log_in_with(&self, jump_host: &JumpHost, user: &str, keys: &[&str]) {
        jump_host.configure(user);
        let lines = keys
            .iter()
            .map(|key| format!("  IdentityFile {}\n", self.path(key).display()));
        let lines = format!("Host jump\n  BatchMode yes\n{}", lines.collect::<String>());
        let text = fs::read_to_string(jump_host.path("ssh_config")).unwrap();
        fs::write(jump_host.path("ssh_config"), text.replace("Host jump\n", &lines)).unwrap();
    }

    /// Lets alice log in by this key, and returns her session and both ends of a cat there.
    pub(super) fn session(
        &self,
        jump_host: &JumpHost,
        key: &str,
    ) -> (Process, Option<ChildStdin>, BufReader<ChildStdout>) {
        self.log_in_with(jump_host, "alice", &[key]);
        let mut ssh = jump_host.command("ssh");
        ssh.args(["devbox.team-a", "echo in; cat"]);
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut session = Process::start(&mut ssh);
        let stdin = session.child().stdin.take();
        let mut stdout = BufReader::new(session.child().stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "in\n");
        (session, stdin, stdout)
    }
}

#[track_caller]
pub(super) fn echoes(jump_host: &JumpHost, command: &mut Command) {
    let finished = jump_host.run(command.args(["devbox.team-a", "echo in"])).succeeded();
    assert_eq!(finished.stdout, "in\n");
}

/// A command's output comes through, and the access line names alice and the method.
#[track_caller]
pub(super) fn echoes_for_alice(jump_host: &mut JumpHost, method: &str) {
    echoes(jump_host, &mut jump_host.command("ssh"));
    let line = jump_host.access_line();
    assert_eq!(
        (&line["user.name"], &line["auth.method"], &line["door"]),
        (&"alice".into(), &method.into(), &"ssh".into()),
        "{line}"
    );
}

#[track_caller]
pub(super) fn is_refused(jump_host: &JumpHost) {
    let refused = jump_host.run(jump_host.command("ssh").args(["devbox.team-a", "true"]));
    assert_eq!(refused.status.code(), Some(255), "{refused}");
    let said = "Permission denied (publickey,password,keyboard-interactive)";
    assert!(refused.stderr.contains(said), "{refused}");
}

#[test]
fn a_key_of_each_type_opens_the_door_for_logins_and_copies() {
    let user = User::new();
    let types = [
        ("ed25519", &["-t", "ed25519"][..]),
        ("p256", &["-t", "ecdsa", "-b", "256"]),
        ("p384", &["-t", "ecdsa", "-b", "384"]),
        ("p521", &["-t", "ecdsa", "-b", "521"]),
        ("rsa", &["-t", "rsa", "-b", "3072"]),
    ];
    let lines = types.map(|(name, arguments)| format!("alice:{}\n", user.make(name, arguments)));
    let mut jump_host = user.start(&(lines.concat() + "alice::ops\n"));
    for (name, account) in types
        .map(|(name, _)| (name, "alice"))
        .into_iter()
        .chain([("rsa", "alice%box")])
    {
        user.log_in_with(&jump_host, account, &[name]);
        echoes_for_alice(&mut jump_host, "public_key");
    }
    let content = noise(1 << 20);
    fs::write(jump_host.path("here"), &content).unwrap();
    let there = jump_host.path("there");
    let mut scp = jump_host.command("scp");
    scp.arg(jump_host.path("here"))
        .arg(format!("devbox.team-a:{}", there.display()));
    jump_host.run(&mut scp).succeeded();
    assert!(fs::read(&there).unwrap() == content);
}

#[test]
fn the_right_key_may_be_the_last_of_several_and_a_password_may_follow_wrong_ones() {
    let user = User::new();
    let [_, _, _, right] = ["one", "two", "three", "right"].map(|name| user.key(name));
    let mut jump_host = user.start(&format!("{LINE}alice:{right}\n"));
    user.log_in_with(&jump_host, "alice", &["one", "two", "three", "right"]);
    echoes(&jump_host, &mut jump_host.command("ssh"));
    assert_eq!(jump_host.access_line()["auth.method"], "public_key");
    user.log_in_with(&jump_host, "alice", &["one", "two", "three"]);
    let text = fs::read_to_string(jump_host.path("ssh_config")).unwrap();
    let with_password = text.replacen("  BatchMode yes\n", "", 1);
    fs::write(jump_host.path("ssh_config"), with_password).unwrap();
    echoes(&jump_host, &mut jump_host.command_with("ssh", "correct"));
    assert_eq!(jump_host.access_line()["auth.method"], "password");
}

#[test]
fn a_key_opens_nothing_for_another_user_from_elsewhere_or_too_late() {
    let user = User::new();
    let [own, elsewhere, here, late, early, _] =
        ["own", "elsewhere", "here", "late", "early", "unknown"].map(|name| user.key(name));
    let mut jump_host = user.start(&format!(
        "alice::ops\nbob::ops\nalice:{own}\nbob:from=\"192.0.2.0/24\" {elsewhere}\nbob:from=\"127.0.0.0/8,!127.0.0.9\" \
         {here}\nbob:expiry-time=\"20250101\" {late}\nbob:expiry-time=\"29990101\" {early}\n"
    ));
    for (name, key) in [
        ("bob", "late"),
        ("alice", "unknown"),
        ("bob", "own"),
        ("nobody", "own"),
        ("Alice", "own"),
        ("bob", "elsewhere"),
    ] {
        user.log_in_with(&jump_host, name, &[key]);
        is_refused(&jump_host);
    }
    // Only the first of several refusals has a line of its own.
    let line = jump_host.access_line();
    assert_eq!(
        (
            &line["reason"],
            &line["user.name"],
            &line["auth.claimed_user"],
            &line["authorization.reason"]
        ),
        (
            &"credentials_refused".into(),
            &"".into(),
            &"bob".into(),
            &"the key or its certificate has expired".into()
        ),
        "{line}"
    );
    for (name, key) in [("alice", "own"), ("bob", "here"), ("bob", "early")] {
        user.log_in_with(&jump_host, name, &[key]);
        echoes(&jump_host, &mut jump_host.command("ssh"));
        let line = eventually("the line of the tunnel", || {
            Some(jump_host.access_line()).filter(|line| line["event"] == "close")
        });
        assert_eq!(line["user.name"], name);
    }
}

#[test]
fn a_key_that_is_removed_ends_its_session_and_no_other() {
    let user = User::new();
    let [one, other] = ["one", "other"].map(|name| user.key(name));
    let jump_host = user.start(&format!("alice::ops\nalice:{one}\nalice:{other}\n"));
    let (mut removed, _stdin, _stdout) = user.session(&jump_host, "one");
    let (mut kept, stdin, mut stdout) = user.session(&jump_host, "other");
    user.write(&format!("alice::ops\nalice:{other}\n"));
    jump_host.server.process.signal(Signal::HUP);
    assert_eq!(removed.wait(DEADLINE).code(), Some(255));
    let mut why = String::new();
    removed.child().stderr.take().unwrap().read_to_string(&mut why).unwrap();
    assert!(why.contains("the user may no longer ssh to devbox.team-a:22"), "{why}");
    let mut stdin = stdin.unwrap();
    std::io::Write::write_all(&mut stdin, b"on\n").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "on\n");
    drop(stdin);
    kept.wait(DEADLINE);
}

/// OpenSSH no longer signs with it by default.
#[test]
fn a_signature_with_sha_1_is_refused() {
    let user = User::new();
    let key = user.make("rsa", &["-t", "rsa", "-b", "2048"]);
    let jump_host = user.start(&format!("alice::ops\nalice:{key}\n"));
    let key = Arc::new(load_secret_key(user.path("rsa"), None).unwrap());
    Runtime::new().unwrap().block_on(async {
        for (hash, expected) in [
            (None, false),
            (Some(HashAlg::Sha256), true),
            (Some(HashAlg::Sha512), true),
        ] {
            let mut client = hostile::connect(jump_host.server.public()).await;
            let key = PrivateKeyWithHashAlg::new(Arc::clone(&key), hash);
            let answer: AuthResult = client.authenticate_publickey("alice", key).await.unwrap();
            assert_eq!(answer.success(), expected, "{hash:?}");
        }
    });
}

#[test]
fn dropbears_client_comes_through_with_a_key() {
    let user = User::new();
    let key = user.key("own");
    let mut jump_host = user.start(&format!("alice::ops\nalice:{key}\n"));
    // dbclient has one set of keys for all of its hops: sshd takes it, too.
    fs::write(jump_host.path("client_key.pub"), key).unwrap();
    let mut convert = quiet(program("dropbearconvert", "dropbear-bin"));
    convert.args(["openssh", "dropbear"]).arg(user.path("own"));
    jump_host.run(convert.arg(user.path("converted"))).succeeded();
    let port = jump_host.server.public().port();
    let hops = format!("alice@127.0.0.1/{port},{}@devbox.team-a/22", jump_host.sshd.user);
    let mut dbclient = quiet(program("dbclient", "dropbear-bin"));
    dbclient.args(["-y", "-y", "-i"]).arg(user.path("converted"));
    let finished = jump_host.run(dbclient.args([&hops, "echo in"])).succeeded();
    assert_eq!(finished.stdout, "in\n", "{finished}");
    let line = jump_host.access_line();
    assert_eq!(line["auth.method"], "public_key", "{line}");
    assert!(
        line["client.software"].as_str().unwrap().starts_with("dropbear_"),
        "{line}"
    );
}

#[test]
fn the_check_of_a_jump_host_says_what_ssh_finds() {
    let user = User::new();
    let key = user.key("own");
    let jump_host = user.start(&format!("alice::ops\nalice:{key}\n"));
    user.log_in_with(&jump_host, "alice", &["own"]);
    let wrapper = jump_host.path("ssh");
    let script = format!(
        "#!/bin/sh\nexec {} -F {} \"$@\"\n",
        program("ssh", "openssh-client").display(),
        jump_host.path("ssh_config").display()
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o700)).unwrap();
    let check = |name: &str| {
        let mut command = switchboard(&["config", "--jump", "jump", "--check", name]);
        let output = command.env("PATH", jump_host.directory.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = check("devbox.team-a");
    assert_eq!(status, Some(0), "{said}");
    let fine = "ok     jump host  jump opens a tunnel to devbox.team-a:22\nok     SSH        SSH-2.0-OpenSSH_";
    assert!(said.starts_with(fine), "{said}");
    let fails = |name, reason| {
        let (status, said) = check(name);
        assert_eq!(status, Some(1), "{said}");
        assert!(
            said.starts_with("FAILS  jump host  ssh says:\n") && said.contains(reason),
            "{said}"
        );
    };
    fails("nobody.team-a", "nobody.team-a:22 is not on the allowlist");
    fails("closed.team-a:22", "closed.team-a:22 refused the connection");
    user.write(LINE);
    jump_host.server.process.signal(Signal::HUP);
    eventually("the key is removed", || {
        (check("devbox.team-a").0 == Some(1)).then_some(())
    });
    fails("devbox.team-a", "Permission denied");
    fails(
        "devbox.team-a",
        "(this check asks for no password, ticket or passphrase: ssh itself may)",
    );
    fs::write(jump_host.path("known_hosts"), "").unwrap();
    fails("devbox.team-a", "Host key verification failed");
}
