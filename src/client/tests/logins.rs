//! The user's credentials: where they come from, how they are sent, and what happens when the proxy refuses them.

use super::*;

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use credentials::{Credentials, Files, Source};
use serde_json::{Value, json};

mod kubeconfig;
mod plugins;
mod refused;

/// A user's home: files, kubeconfigs and plugins, below one folder.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Returns a file whose name goes with its content: the same path for the same content.
    fn keep(&self, kind: &str, content: &str) -> PathBuf {
        self.write(
            &format!("{kind}-{:x}", crate::base::fnv::fnv1a(content.as_bytes())),
            content,
        )
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// How often `plugin` or `command` have run.
    fn runs(&self) -> usize {
        self.read("runs").lines().count()
    }

    /// Returns a kubeconfig with one context, whose user is that.
    fn kubeconfig(&self, user: &Value) -> Source {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "team",
            "contexts": [{"name": "team", "context": {"cluster": "east", "user": "alice"}}],
            "clusters": [{"name": "east", "cluster": {"server": "https://api.example.com"}}],
            "users": [{"name": "alice", "user": user}],
        });
        source(self.keep("config", &config.to_string()))
    }

    /// Returns a kubeconfig whose user has a plugin: a script for `sh`, which counts its runs.
    fn plugin(&self, script: &str) -> Source {
        self.plugin_with(script, &json!({}))
    }

    /// The same, with more fields of its section.
    fn plugin_with(&self, script: &str, more: &Value) -> Source {
        let path = self.script(script);
        let mut exec = json!({"apiVersion": V1, "command": "sh", "args": [path], "interactiveMode": "IfAvailable"});
        exec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.kubeconfig(&json!({"exec": exec}))
    }

    /// Returns the file of a plugin.
    fn script(&self, script: &str) -> PathBuf {
        let folder = self.folder.path().display();
        self.keep("plugin", &format!("cd {folder}\necho run >> runs\n{script}\n"))
    }

    /// Returns a line for `--token-command`, which counts its runs.
    fn command(&self, script: &str) -> Source {
        Source::TokenCommand(format!(
            "cd {} && echo run >> runs; {script}",
            self.folder.path().display()
        ))
    }

    fn options(&self, source: Source) -> credentials::Options {
        credentials::Options {
            source: Some(source),
            timeout: Duration::from_secs(60),
            ..credentials::Options::default()
        }
    }

    async fn obtain(&self, source: Source) -> anyhow::Result<Credentials> {
        within(self.options(source).obtain()).await
    }

    /// Returns the value of `Proxy-Authorization`.
    async fn field(&self, source: Source) -> String {
        field(&self.obtain(source).await.unwrap())
    }

    /// Returns the line that the user sees, which must not hold this text.
    async fn failure(&self, source: Source, secret: &str) -> String {
        let error = self.obtain(source).await.unwrap_err();
        let line = chain(error.as_ref());
        assert!(
            !line.contains(secret) && !format!("{error:?}").contains(secret),
            "{line}: {error:?}"
        );
        line
    }

    /// Returns the settings of a tunnel.
    fn tunnel(&self, source: Source, mut options: Options) -> Options {
        options.uplink.credentials = self.options(source);
        options
    }
}

fn source(path: PathBuf) -> Source {
    Source::Context {
        files: Files::One(path),
        context: None,
    }
}

fn field(credentials: &Credentials) -> String {
    let authorization = credentials.authorization.as_ref().unwrap();
    authorization.expose().to_owned()
}

/// Returns a plugin's output for this status, as a command of `sh`.
fn prints(status: &Value) -> String {
    let credential = json!({"kind": "ExecCredential", "apiVersion": V1, "status": status});
    format!("printf '%s\\n' '{credential}'")
}

/// Returns a JWT with these claims.
fn jwt(claims: &Value) -> String {
    format!("eyJhIjoxfQ.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// Reads a request, and returns its `Proxy-Authorization`.
async fn authorization(stream: &mut TcpStream) -> Option<String> {
    let request = read_request(stream).await;
    let field = request
        .lines()
        .find_map(|line| line.strip_prefix("Proxy-Authorization: "));
    field.map(str::to_owned)
}

const V1: &str = "client.authentication.k8s.io/v1";

#[tokio::test]
async fn each_source_becomes_its_field() {
    let home = Home::new();
    let file = home.write("token", "of-a-file\n");
    let encoded = format!("Basic {}", STANDARD.encode("alice:p:w"));
    let exec = prints(&json!({"token": "of-a-plugin"}));
    let in_object = prints(&json!({"token": "of-an-object"}));
    for (source, expected) in [
        (
            Source::Token("of-the-environment".to_owned().into()),
            "Bearer of-the-environment",
        ),
        (Source::TokenFile(file.clone()), "Bearer of-a-file"),
        (home.command("echo of-a-command"), "Bearer of-a-command"),
        (home.command("cat; echo of-a-'com'mand"), "Bearer of-a-command"),
        (home.command(&in_object), "Bearer of-an-object"),
        (home.kubeconfig(&json!({"token": "of-a-user"})), "Bearer of-a-user"),
        (home.kubeconfig(&json!({"tokenFile": file})), "Bearer of-a-file"),
        (home.kubeconfig(&json!({"tokenFile": "token"})), "Bearer of-a-file"),
        (
            home.kubeconfig(&json!({"tokenFile": "token", "token": "of-a-user"})),
            "Bearer of-a-file",
        ),
        (
            home.kubeconfig(&json!({"username": "alice", "password": "p:w"})),
            &encoded,
        ),
        (home.plugin(&exec), "Bearer of-a-plugin"),
        // A user's own token goes before a plugin.
        (
            home.kubeconfig(&json!({"token": "of-a-user", "exec": {"command": "false", "apiVersion": V1}})),
            "Bearer of-a-user",
        ),
    ] {
        assert_eq!(home.field(source).await, expected);
    }
}

#[tokio::test]
async fn every_source_without_a_token_has_its_sentence() {
    let home = Home::new();
    let file = |content: &str| Source::TokenFile(home.keep("token", content));
    let missing = home.path("missing");
    for (source, expected) in [
        (
            Source::TokenFile(missing.clone()),
            format!("cannot read the token in {}: ", missing.display()),
        ),
        (
            Source::TokenFile("/dev/zero".into()),
            "cannot read the token in /dev/zero: it is a device".to_owned(),
        ),
        (file(""), "cannot be sent: it is empty".to_owned()),
        (
            file("two words s3cret"),
            "cannot be sent: it has a character".to_owned(),
        ),
        (file("s3cret\r\nX: y"), "cannot be sent: it has ".to_owned()),
        (
            file(&"s3cret".repeat(3_000)),
            "cannot be sent: it has more than 12 KiB".to_owned(),
        ),
        (file("s3cret\0"), "cannot be sent: it has a character".to_owned()),
        (
            Source::Token(" s3 cret".to_owned().into()),
            "the token in SWITCHBOARD_TOKEN cannot be sent: ".to_owned(),
        ),
        (
            home.command("true"),
            "the command of --token-command: its output is not a token: it is empty".to_owned(),
        ),
        (
            home.command("echo s3cret; exit 7"),
            "the command of --token-command: it ended with exit status 7".to_owned(),
        ),
        (
            home.command("echo '{\"kind\":\"Pod\"}'"),
            "its output is not a token: it has a character".to_owned(),
        ),
        (
            home.command(&prints(&json!({}))),
            "neither a token nor a client certificate".to_owned(),
        ),
        (home.command("printf '\\377'"), "its output is not a token".to_owned()),
    ] {
        let line = home.failure(source, "s3cret").await;
        assert!(line.contains(&expected), "{line}");
    }
}

#[tokio::test]
async fn the_token_is_sent_over_http_1_in_one_segment() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let session = Session::start(home.tunnel(home.command("echo s3cret"), proxy.http()));
    let mut stream = proxy.accept().await;
    expect_segment(&mut stream, "Bearer s3cret").await;
    stream.write_all(&[ACCEPT, b"hello"].concat()).await.unwrap();
    let (_, mut stdout, _) = session.parts();
    assert_eq!(&read_exactly::<5>(&mut stdout).await, b"hello");
}

#[tokio::test]
async fn a_credential_does_not_cross_the_network_in_clear() {
    let home = Home::new();
    let warned = "cannot log in to the proxy: each host on the way to an http:// proxy can read and use a credential: ";
    for host in [
        "proxy.invalid",
        "192.0.2.1",
        "[2001:db8::1]",
        "localhost.example.com",
        "127.0.0.1.example.com",
    ] {
        let proxy = Proxy::bind().await;
        let mut options = home.tunnel(home.command("echo token"), proxy.http());
        options.uplink.proxy = format!("http://{host}").parse().unwrap();
        let error = Session::start(options).end().await.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(chain(&error).starts_with(warned), "{error}");
    }
    assert_eq!(home.runs(), 0, "the command has run for nothing");
    // Where it may, it goes out; this host is always allowed, by either name.
    for host in ["localhost", "127.0.0.1"] {
        let proxy = Proxy::bind().await;
        let mut options = home.tunnel(home.command("echo token"), proxy.http());
        let port = options.uplink.proxy.port();
        options.uplink.proxy = format!("http://{host}:{port}").parse().unwrap();
        let _session = Session::start(options);
        assert_eq!(authorization(&mut proxy.accept().await).await.unwrap(), "Bearer token");
    }
    let mut options = home.tunnel(Source::Token("x".to_owned().into()), Proxy::bind().await.http());
    options.uplink.proxy = "http://proxy.invalid".parse().unwrap();
    options.uplink.credentials.cleartext = true;
    let line = Session::start(options).failure().await;
    assert!(line.starts_with("cannot look up proxy.invalid"), "{line}");
}

#[tokio::test]
async fn a_certificate_of_the_credentials_is_for_https_alone() {
    let home = Home::new();
    let pair = json!({"client-certificate-data": STANDARD.encode("C"), "client-key-data": STANDARD.encode("K")});
    let proxy = Proxy::bind().await;
    let line = Session::start(home.tunnel(home.kubeconfig(&pair), proxy.http()))
        .failure()
        .await;
    assert!(line.contains("only an https:// proxy can be shown one"), "{line}");
    let server = Server::named("127.0.0.1");
    let line = Session::start(home.tunnel(home.kubeconfig(&pair), server.options(&proxy)))
        .failure()
        .await;
    assert!(
        line.starts_with("cannot use the client certificate: the certificate that came with the credentials: "),
        "{line}"
    );
}

#[test]
fn no_printout_of_the_settings_shows_a_token() {
    let options = credentials::Options {
        source: Some(Source::Token("s3cret".to_owned().into())),
        ..credentials::Options::default()
    };
    assert!(!format!("{options:?} {options:#?}").contains("s3cret"));
}
