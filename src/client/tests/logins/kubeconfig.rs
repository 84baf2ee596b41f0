//! The files of contexts: which entry counts, and what is said of those that lead nowhere.

use super::*;

fn of(files: Files, context: Option<&str>) -> Source {
    Source::Context {
        files,
        context: context.map(str::to_owned),
    }
}

#[tokio::test]
async fn of_several_files_the_first_that_has_a_name_counts() {
    let home = Home::new();
    let first = home.write(
        "a/first",
        "clusters: null\ncontexts:\n- {name: one, context: {user: alice}}\n\
         users:\n- {name: alice, user: {tokenFile: ../t/alice}}\n",
    );
    let second = home.write(
        "b/second",
        "current-context: two\ncontexts:\n- {name: one, context: {user: eve}}\n- {name: two, context: {user: bob}}\n\
         users:\n- {name: alice, user: {token: wrong}}\n- {name: bob, user: {token: of-bob}}\n- {name: eve, user: {token: of-eve}}\n",
    );
    home.write("t/alice", "of-alice");
    let empty = home.write("empty", "");
    let files = || Files::Listed(vec![home.path("missing"), empty.clone(), first.clone(), second.clone()]);
    assert_eq!(home.field(of(files(), None)).await, "Bearer of-bob");
    assert_eq!(home.field(of(files(), Some("one"))).await, "Bearer of-alice");
    assert_eq!(
        home.field(of(Files::One(second.clone()), Some("one"))).await,
        "Bearer of-eve"
    );
}

/// Fails with that line, or with one of several, separated by `|`.
async fn assert_said(home: &Home, source: Source, expected: &str) {
    let line = home.failure(source, "s3cret").await;
    let is_said = expected.split('|').any(|expected| line.contains(expected));
    assert!(is_said && !line.contains('\u{1b}'), "{expected}: {line}");
}

#[tokio::test]
async fn a_context_that_is_not_there_is_reported_with_those_that_are() {
    let home = Home::new();
    let file = |text: &str| Files::One(home.keep("config", text));
    let contexts = |count: usize| {
        let list: Vec<_> = (0..count)
            .map(|n| format!("{{name: c{n}, context: {{user: u}}}}"))
            .collect();
        format!("contexts: [{}]\n", list.join(", "))
    };
    let none = "the kubeconfig: no file is found: give --kubeconfig FILE, or set KUBECONFIG";
    let many = "(it has c0, c1, c10, c11, c12, c13, c14, c15, …)";
    for (files, context, expected) in [
        (Files::Listed(Vec::new()), None, none),
        (Files::Listed(vec![home.path("no")]), None, none),
        (Files::One(home.path("no")), None, "/no: No such file or directory"),
        (Files::One("/dev/zero".into()), None, "/dev/zero: it is a device"),
        (Files::One(home.folder.path().into()), None, "it is a directory"),
        (file(""), None, "it has no current context: give --context NAME"),
        (file("current-context: ''"), None, "it has no current context"),
        (file("current-context: x"), None, "it has no context x (it has none)"),
        (
            file(&contexts(2)),
            Some("\u{1b}[mx"),
            "it has no context [mx (it has c0, c1)",
        ),
        (file(&contexts(30)), Some("x"), many),
        (
            file("contexts: [{name: c, context: null}]"),
            Some("c"),
            "its context c has no user",
        ),
        (
            file(&contexts(1)),
            Some("c0"),
            "it has no user u, which its context c0 names",
        ),
    ] {
        assert_said(&home, of(files, context), expected).await;
    }
}

#[tokio::test]
async fn a_file_that_is_no_kubeconfig_is_reported_by_its_position() {
    let home = Home::new();
    for (text, expected) in [
        ("users: [{name: u, user: {token: [s3cret]}}]", ":1:33: not a kubeconfig"),
        ("token: s3cret\n  x: [s3cret", ":2:"),
        ("{\"a\": \"s3cret", ": not a kubeconfig"),
        ("a: &a [*a, s3cret]", "it has no current context|not a kubeconfig"),
        ("- s3cret", "not a kubeconfig"),
        ("s3cret", "not a kubeconfig"),
        ("\0s3cret", "not a kubeconfig"),
    ] {
        assert_said(&home, source(home.keep("config", text)), expected).await;
    }
}

#[tokio::test]
async fn a_user_without_credentials_is_reported_by_what_is_wrong_with_them() {
    let home = Home::new();
    for (user, expected) in [
        (json!(null), "the user alice of the kubeconfig has no credentials"),
        (
            json!({"token": ""}),
            "the user alice of the kubeconfig has no credentials",
        ),
        (
            json!({"token": "s3cret two"}),
            "the token in the user alice of the kubeconfig cannot be sent",
        ),
        (
            json!({"username": "a:b", "password": "s3cret"}),
            "holds a character that cannot be sent",
        ),
        (
            json!({"auth-provider": {"name": "gcp", "config": {"access-token": "s3cret"}}}),
            "has an auth-provider, which Kubernetes has removed: use an exec",
        ),
        (
            json!({"client-certificate": "x"}),
            "/x, which the kubeconfig names: No such file",
        ),
        (
            json!({"client-key-data": "czNjcmV0"}),
            "or a key without its certificate",
        ),
        (
            json!({"client-key-data": "s3cret!"}),
            "the client-key-data of the kubeconfig is not base64",
        ),
        (json!({"tokenFile": "no"}), "/no: No such file"),
    ] {
        assert_said(&home, home.kubeconfig(&user), expected).await;
    }
}

#[tokio::test]
async fn aliases_that_expand_without_bound_are_refused() {
    let home = Home::new();
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let inner = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    let deep = format!("users: {}", "[".repeat(100_000));
    for text in [bomb, deep] {
        let line = home.failure(source(home.write("config", &text)), "xxx").await;
        assert!(
            line.contains("not a kubeconfig") || line.contains("no current context"),
            "{line}"
        );
    }
}
