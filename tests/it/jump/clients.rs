//! Logins and copies by other clients than OpenSSH, each with a password and with a key.

use super::keys::User;
use super::*;
use crate::http2::peer::python;

/// A jump host for alice, and a file that is copied to the target.
struct Copy {
    jump_host: JumpHost,
    user: User,
    content: Vec<u8>,
}

/// How alice proves herself: the method of a script, and its secret.
struct Proof {
    method: &'static str,
    secret: String,
}

impl Copy {
    /// Has a client, which is those commands in turn, log in and copy by each method.
    fn by(mut make: impl FnMut(&Self, &Proof) -> Vec<Command>) {
        let user = User::new();
        let key = user.key("own");
        let jump_host = user.start(&format!("{LINE}alice:{key}\n"));
        let content = noise(64 << 20);
        fs::write(jump_host.path("here"), &content).unwrap();
        let mut copy = Self {
            jump_host,
            user,
            content,
        };
        let key = copy.user.path("own").display().to_string();
        for (method, secret, expected) in [
            ("password", "correct".to_owned(), "password"),
            ("key", key, "public_key"),
        ] {
            let commands = make(&copy, &Proof { method, secret });
            copy.check(commands, expected);
        }
    }

    fn check(&mut self, commands: Vec<Command>, expected: &str) {
        let mut said = String::new();
        for mut command in commands {
            // The ciphers are not optimised here.
            let finished = run(&mut command, &[], self.jump_host.directory.path(), 5 * DEADLINE);
            said += &finished.succeeded().stdout;
            let line = self.jump_host.access_line();
            assert_eq!(
                (&line["auth.method"], &line["user.name"], &line["door"]),
                (&expected.into(), &"alice".into(), &"ssh".into()),
                "{line}"
            );
        }
        assert!(said.starts_with("in\n"), "{said}");
        let there = self.jump_host.path("there");
        assert!(fs::read(&there).unwrap() == self.content, "{expected}");
        fs::remove_file(there).unwrap();
    }

    /// A script with its first arguments, and those of every script.
    fn script(&self, interpreter: PathBuf, name: &str, first: &str, proof: &Proof) -> Vec<Command> {
        let mut command = quiet(interpreter);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/jump").join(name);
        command.arg(script).arg(first);
        command.arg(self.jump_host.server.public().port().to_string());
        command.args([proof.method, &proof.secret, &self.jump_host.sshd.user]);
        command.args(["client_key", "here", "there"].map(|file| self.jump_host.path(file)));
        vec![command]
    }

    /// plink and pscp of a session that PuTTY has saved, with one of the jump host.
    fn putty(&self, proof: &Proof) -> Vec<Command> {
        let home = self.jump_host.path("home");
        let sessions = home.join(".putty/sessions");
        fs::create_dir_all(&sessions).unwrap();
        let key = |key: &Path| {
            let mut puttygen = quiet(program("puttygen", "putty-tools"));
            let converted = key.with_extension("ppk");
            puttygen.arg(key).args(["-O", "private", "-o"]).arg(&converted);
            self.jump_host.run(&mut puttygen).succeeded();
            format!("PublicKeyFile={}\n", converted.display())
        };
        let trusted = |file: &str| {
            let mut keygen = quiet(program("ssh-keygen", "openssh-client"));
            let printed = self
                .jump_host
                .run(keygen.args(["-l", "-f"]).arg(self.jump_host.path(file)));
            format!("SSHManualHostKeys={}\n", printed.stdout.split(' ').nth(1).unwrap())
        };
        let port = self.jump_host.server.public().port();
        let door = format!("HostName=127.0.0.1\nPortNumber={port}\nUserName=alice\n") + &trusted("door_key.pub");
        let box_ = format!(
            "HostName=devbox.team-a\nPortNumber=22\nUserName={}\nProxyMethod=6\nProxyHost=door\nProxyDNS=2\nProxyLocalhost=1\n",
            self.jump_host.sshd.user
        ) + &trusted("host_key.pub")
            + &key(&self.jump_host.path("client_key"));
        let (door, box_) = match proof.method {
            "password" => (
                door,
                box_ + &format!("ProxyUsername=alice\nProxyPassword={}\n", proof.secret),
            ),
            _ => (door + &key(Path::new(&proof.secret)), box_),
        };
        fs::write(sessions.join("door"), "Protocol=ssh\n".to_owned() + &door).unwrap();
        fs::write(sessions.join("box"), "Protocol=ssh\n".to_owned() + &box_).unwrap();
        let mut plink = quiet(program("plink", "putty-tools"));
        plink.env("HOME", &home).args(["-batch", "-load", "box", "echo in"]);
        let mut pscp = quiet(program("pscp", "putty-tools"));
        let there = format!("box:{}", self.jump_host.path("there").display());
        pscp.env("HOME", &home)
            .args(["-batch", "-q"])
            .arg(self.jump_host.path("here"))
            .arg(there);
        vec![plink, pscp]
    }
}

fn paramiko() {
    Copy::by(|copy, proof| copy.script(python(), "clients.py", "paramiko", proof));
}

fn asyncssh() {
    Copy::by(|copy, proof| copy.script(python(), "clients.py", "asyncssh", proof));
}

fn libssh() {
    Copy::by(|copy, proof| copy.script(python(), "clients.py", "libssh", proof));
}

fn ssh2_of_node() {
    let modules = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../ssh2/node_modules");
    assert!(modules.join("ssh2").exists(), "no ssh2: run tests/install-clients");
    let modules = fs::canonicalize(modules).unwrap().display().to_string();
    Copy::by(|copy, proof| copy.script(program("node", "nodejs"), "clients.js", &modules, proof));
}

fn putty() {
    Copy::by(Copy::putty);
}

/// Neither client asks for it before 64 GiB.
fn the_proxy_exchanges_keys_after_a_gibibyte_each_way() {
    let jump_host = JumpHost::open();
    let config = jump_host.path("ssh_config").display().to_string();
    let ssh = format!(
        "ssh -F {config} -o 'ProxyCommand=ssh -v -c aes256-gcm@openssh.com -F {config} -W %h:%p jump' devbox.team-a"
    );
    for line in [
        format!("{ssh} 'head -c 1200000000 /dev/zero' | wc -c"),
        format!("head -c 1200000000 /dev/zero | {ssh} wc -c"),
    ] {
        let mut command = quiet("sh");
        command.args(["-c", &line]);
        let finished = run(&mut command, &[], jump_host.directory.path(), 5 * DEADLINE);
        assert_eq!(finished.stdout, "1200000000\n", "{finished}");
        let exchanges = finished.stderr.matches("SSH2_MSG_KEXINIT received").count();
        assert_eq!(exchanges, 2, "{finished}");
    }
}

tests_in!(slow: the_proxy_exchanges_keys_after_a_gibibyte_each_way, paramiko, asyncssh, libssh, ssh2_of_node, putty);
