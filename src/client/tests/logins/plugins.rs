//! Credential plugins: what they are told, and those that break, print invalid output, or do not end.

use super::*;

use rustix::process::{Pid, Signal, kill_process};

/// Waits until a file of the home holds that many process ids.
async fn ids(home: &Home, count: usize) -> Vec<i32> {
    let read = async {
        loop {
            let ids: Vec<i32> = home.read("ids").lines().filter_map(|line| line.parse().ok()).collect();
            if ids.len() == count && home.read("ids").ends_with('\n') {
                return ids;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(read).await
}

/// Waits until a process has ended: it is gone, or not reaped yet.
async fn ended(id: i32) {
    let gone = || {
        let line = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        line.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    };
    let wait = async {
        while !gone() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(wait).await;
}

#[tokio::test]
async fn a_plugin_is_told_the_cluster_its_arguments_and_its_variables() {
    let home = Home::new();
    let script = format!(
        "echo \"$KUBERNETES_EXEC_INFO\" > told; echo \"$ROLE $1\" >> told\n{}",
        prints(&json!({"token": "t"}))
    );
    let path = home.write("told-plugin", &format!("cd {}\n{script}", home.folder.path().display()));
    for version in [V1, "client.authentication.k8s.io/v1beta1"] {
        let printed = fs::read_to_string(&path).unwrap();
        fs::write(&path, printed.replace(V1, version)).unwrap();
        let source = home.plugin_with(
            "",
            &json!({
                "apiVersion": version,
                "args": [path, "first"],
                "env": [{"name": "ROLE", "value": "admin"}],
                "provideClusterInfo": true,
            }),
        );
        assert_eq!(home.field(source).await, "Bearer t");
        let told = home.read("told");
        let mut lines = told.lines();
        assert_eq!(
            serde_json::from_str::<Value>(lines.next().unwrap()).unwrap(),
            json!({
                "kind": "ExecCredential",
                "apiVersion": version,
                "spec": {"interactive": false, "cluster": {"server": "https://api.example.com"}},
            })
        );
        assert_eq!(lines.next(), Some("admin first"));
    }
}

#[tokio::test]
async fn a_relative_command_is_looked_for_beside_its_kubeconfig() {
    let home = Home::new();
    fs::create_dir(home.path("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/sh", home.path("bin/plugin")).unwrap();
    let source = home.plugin_with(&prints(&json!({"token": "t"})), &json!({"command": "bin/plugin"}));
    assert_eq!(home.field(source).await, "Bearer t");
}

#[tokio::test]
async fn a_plugin_that_gives_nothing_is_reported_by_its_fault_without_its_output() {
    let home = Home::new();
    let plugin = |script: &str| home.plugin(script);
    for (source, expected) in [
        (
            plugin("echo s3cret; exit 3"),
            "the credential plugin sh: it ended with exit status 3",
        ),
        (
            plugin("echo s3cret; kill -9 $$"),
            "the credential plugin sh: signal 9 ended it",
        ),
        (
            plugin("echo s3cret"),
            "the credential plugin sh: it printed no ExecCredential in JSON (line 1, column 1)",
        ),
        (plugin("true"), "it printed no ExecCredential in JSON"),
        (
            plugin(&prints(&json!({"token": "s3cret two"}))),
            "its token cannot be sent: it has a character",
        ),
        (
            plugin(&prints(&json!({"clientKeyData": "s3cret"}))),
            "without its certificate",
        ),
        (
            plugin("while :; do echo s3cret; done"),
            "it printed more than 64 KiB and was stopped",
        ),
        (
            plugin("(while :; do echo s3cret; done) & exit 0"),
            "it printed more than 64 KiB and was stopped",
        ),
        (
            plugin("kill -STOP $$"),
            "it asks at the terminal, which belongs to ssh: log in with it in a shell first",
        ),
    ] {
        let line = home.failure(source, "s3cret").await;
        assert!(line.contains(expected), "{expected}: {line}");
    }
}

#[tokio::test]
async fn a_plugin_that_cannot_be_run_is_reported_with_what_helps() {
    let home = Home::new();
    let with = |more: Value| home.plugin_with("echo s3cret", &more);
    for (source, expected) in [
        (
            with(json!({"apiVersion": "client.authentication.k8s.io/v1alpha1"})),
            "which is neither",
        ),
        (with(json!({"apiVersion": null})), "which is neither"),
        (
            with(json!({"interactiveMode": "Always"})),
            "demands a terminal (interactiveMode: Always), and stdin belongs to ssh",
        ),
        (with(json!({"command": ""})), "has an exec section without a command"),
        (
            with(json!({"command": "no-such-plugin", "installHint": "Install it\n  from here\u{1b}[m"})),
            "there is no credential plugin no-such-plugin: Install it from here",
        ),
        (
            with(json!({"command": "./no-such-plugin"})),
            "there is no credential plugin ",
        ),
        (
            with(json!({"command": "/dev/null"})),
            "the credential plugin /dev/null: it cannot be started: Permission denied",
        ),
    ] {
        let line = home.failure(source, "s3cret").await;
        assert!(line.contains(expected), "{expected}: {line}");
        assert!(!line.contains('\u{1b}'), "{line}");
    }
}

#[tokio::test]
async fn a_plugin_that_does_not_end_is_stopped_at_the_deadline() {
    let home = Home::new();
    for script in [
        "sleep 1000",
        "exec >&-; sleep 1000",
        "trap '' TERM INT HUP; while :; do sleep 1000; done",
    ] {
        let options = credentials::Options {
            timeout: Duration::from_millis(300),
            ..home.options(home.plugin(script))
        };
        let line = chain(within(options.obtain()).await.unwrap_err().as_ref());
        assert_eq!(line, "the credential plugin sh: it did not end in time and was stopped");
    }
}

#[tokio::test]
async fn nothing_of_a_plugin_is_left_when_its_client_leaves() {
    let home = Home::new();
    let script = format!(
        "if test -e ids; then {}; else sleep 1000 & echo $! > new; echo $$ >> new; mv new ids; wait; fi",
        prints(&json!({"token": "t"}))
    );
    let options = home.options(home.plugin(&script));
    let running = tokio::spawn(async move { options.obtain().await });
    let ids = ids(&home, 2).await;
    running.abort();
    for id in ids {
        ended(id).await;
    }
    assert_eq!(home.field(home.plugin(&script)).await, "Bearer t");
}

#[tokio::test]
async fn what_a_plugin_leaves_behind_on_purpose_lives_and_is_not_waited_for() {
    let home = Home::new();
    let script = format!("sleep 1000 & echo $! > ids\n{}", prints(&json!({"token": "t"})));
    assert_eq!(home.field(home.plugin(&script)).await, "Bearer t");
    let agent = ids(&home, 1).await[0];
    assert!(Path::new(&format!("/proc/{agent}")).exists());
    kill_process(Pid::from_raw(agent).unwrap(), Signal::KILL).unwrap();
    ended(agent).await;
}

#[tokio::test]
async fn the_output_of_a_plugin_is_kept_until_the_proxy_has_rejected_it() {
    let home = Home::new();
    let options = home.options(home.plugin(&prints(&json!({"token": "t"}))));
    let mut login = uplink::credential_cache::CachedLogin::default();
    for runs in [1, 1, 1] {
        login.credentials(&options).await.unwrap();
        assert_eq!(home.runs(), runs);
    }
    login.fresh(&options).await.unwrap();
    assert_eq!(home.runs(), 2);
}

#[tokio::test]
async fn connections_that_log_in_at_the_same_time_share_one_run_of_the_plugin() {
    let home = Home::new();
    let options = home.options(home.plugin(&prints(&json!({"token": "t"}))));
    let login = uplink::credential_cache::CachedLogin::default();
    let (mut first, mut second, mut third) = (login.clone(), login.clone(), login);
    let (one, two, three) = tokio::join!(
        first.credentials(&options),
        second.credentials(&options),
        third.credentials(&options)
    );
    for credentials in [one, two, three] {
        assert!(credentials.unwrap().authorization.is_some());
    }
    assert_eq!(home.runs(), 1);
    let rejected = tokio::join!(first.fresh(&options), second.fresh(&options), third.fresh(&options));
    for credentials in [rejected.0, rejected.1, rejected.2] {
        assert!(credentials.unwrap().authorization.is_some());
    }
    assert_eq!(home.runs(), 2);
}

#[tokio::test]
async fn a_certificate_that_the_proxy_rejects_is_obtained_again() {
    let (home, proxy) = (Home::new(), Proxy::bind().await);
    let (expected, other) = (
        client_auth::Authority::named("clients"),
        client_auth::Authority::named("others"),
    );
    let print = |authority: &client_auth::Authority| {
        let files = authority.issue("alice");
        let read = |path| fs::read_to_string(path).unwrap();
        let status = json!({
            "clientCertificateData": read(files.identity().certificate),
            "clientKeyData": read(files.identity().key),
        });
        home.write("status", &prints(&status));
    };
    let server = client_auth::requiring(&expected);
    print(&other);
    let mut session = Session::start(home.tunnel(home.plugin("sh status"), server.options(&proxy)));
    let stream = proxy.accept().await;
    print(&expected);
    assert!(within(server.acceptor.accept(stream)).await.is_err());
    let _stream = server.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
    assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
    assert_eq!(home.runs(), 2);
}

#[tokio::test]
async fn a_certificate_of_a_plugin_is_shown_to_the_proxy() {
    let home = Home::new();
    let authority = client_auth::Authority::named("clients");
    let files = authority.issue("alice");
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let status = json!({
        "clientCertificateData": read(files.identity().certificate),
        "clientKeyData": read(files.identity().key),
        "expirationTimestamp": "2100-01-01T00:00:00Z",
    });
    home.write("status", &prints(&status));
    let encoded = |path: PathBuf| STANDARD.encode(read(path));
    for source in [
        home.plugin("sh status"),
        home.kubeconfig(&json!({
            "client-certificate-data": encoded(files.identity().certificate),
            "client-key-data": encoded(files.identity().key),
        })),
        home.kubeconfig(&json!({
            "client-certificate": files.identity().certificate,
            "client-key": files.identity().key,
        })),
    ] {
        let (proxy, server) = (Proxy::bind().await, client_auth::requiring(&authority));
        let mut session = Session::start(home.tunnel(source, server.options(&proxy)));
        let stream = server.answer(&proxy, &[ACCEPT, b"hello"].concat()).await;
        assert_eq!(stream.get_ref().1.peer_certificates().unwrap().len(), 1);
        assert_eq!(&read_exactly::<5>(&mut session.stdout).await, b"hello");
    }
    assert_eq!(home.runs(), 1);
}
