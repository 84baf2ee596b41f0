//! The cache: what is used again, what is not, and one process at a time that asks.

use super::*;

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{SystemTime, UNIX_EPOCH};

/// A plugin whose token is valid until then.
fn plugin(home: &Home, expires: &str) -> Source {
    home.plugin(&prints(&json!({"token": "s3cret", "expirationTimestamp": expires})))
}

/// The only file with credentials.
fn entry(home: &Home) -> PathBuf {
    let entries = fs::read_dir(home.path("cache/switchboard")).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

const FAR: &str = "2100-01-01T00:00:00Z";

#[tokio::test]
async fn a_token_with_an_expiry_is_used_again_and_is_the_users_alone() {
    let home = Home::new();
    for _ in 0..3 {
        assert_eq!(home.field(plugin(&home, FAR)).await, "Bearer s3cret");
    }
    assert_eq!(home.runs(), 1);
    let (entry, folder) = (entry(&home), home.path("cache/switchboard"));
    assert_eq!((mode(&folder), mode(&entry)), (0o700, 0o600));
    assert_eq!(mode(&entry.with_extension("lock")), 0o600);
    // The name tells nothing, and nothing else is left.
    let name = entry.file_stem().unwrap().to_str().unwrap();
    assert!(
        name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{name}"
    );
    assert_eq!(fs::read_dir(folder).unwrap().count(), 2);
}

#[tokio::test]
async fn what_has_no_expiry_or_expires_now_is_not_kept() {
    for expires in ["1970-01-01T00:00:00Z", "2001-09-09T01:46:40+02:00"] {
        let home = Home::new();
        for runs in 1..=2 {
            assert_eq!(home.field(plugin(&home, expires)).await, "Bearer s3cret");
            assert_eq!(home.runs(), runs, "{expires}");
        }
    }
    let home = Home::new();
    let soon = jwt(&json!({"exp": now() + 29}));
    for script in [prints(&json!({"token": "s3cret"})), prints(&json!({"token": soon}))] {
        let runs = home.runs();
        for _ in 0..2 {
            home.field(home.plugin(&script)).await;
        }
        assert_eq!(home.runs(), runs + 2);
    }
}

#[tokio::test]
async fn another_command_argument_variable_or_context_has_an_entry_of_its_own() {
    let home = Home::new();
    let script = prints(&json!({"token": "s3cret", "expirationTimestamp": FAR}));
    let path = home.script(&script);
    for (runs, more) in [
        json!({}),
        json!({"args": [path, "a", "b"]}),
        json!({"args": [path, "ab"]}),
        json!({"env": [{"name": "A", "value": "b"}]}),
        json!({"env": [{"name": "Ab", "value": ""}]}),
        json!({"provideClusterInfo": true}),
        json!({"command": "/bin/sh"}),
    ]
    .iter()
    .enumerate()
    {
        for _ in 0..2 {
            home.field(home.plugin_with(&script, more)).await;
            assert_eq!(home.runs(), runs + 1, "{more}");
        }
    }
}

#[tokio::test]
async fn an_entry_of_another_clock_is_not_used() {
    let home = Home::new();
    home.field(plugin(&home, FAR)).await;
    let path = entry(&home);
    let original: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let now = now();
    for (written, expires, is_used) in [
        (now, now + 600, true),
        (now - 3600, i64::MAX, true),
        (now - 86_000, now + 600, true),
        (now, now + 29, false),
        (now, now - 1, false),
        (now, i64::MIN, false),
        (now + 3600, now + 7200, false),
        (now - 90_000, now + 600, false),
        (i64::MAX, i64::MAX, false),
        (i64::MIN, i64::MAX, false),
    ] {
        let mut changed = original.clone();
        changed["written"] = written.into();
        changed["expires"] = expires.into();
        fs::write(&path, changed.to_string()).unwrap();
        let runs = home.runs();
        assert_eq!(home.field(plugin(&home, FAR)).await, "Bearer s3cret");
        assert_eq!(home.runs() == runs, is_used, "{written} {expires}");
    }
}

#[tokio::test]
async fn a_faulty_entry_is_ignored_and_replaced() {
    let home = Home::new();
    home.field(plugin(&home, FAR)).await;
    let path = entry(&home);
    let good = fs::read_to_string(&path).unwrap();
    let elsewhere = home.write("elsewhere", &good.replace("s3cret", "planted"));
    set_mode(&elsewhere, 0o600);
    let write = |content: &str| {
        fs::write(&path, content).unwrap();
        set_mode(&path, 0o600);
    };
    type Damage<'a> = Box<dyn Fn() + 'a>;
    let damages: [(&str, Damage<'_>); 8] = [
        ("empty", Box::new(|| write(""))),
        ("truncated", Box::new(|| write(&good[..good.len() / 2]))),
        ("no token", Box::new(|| write(&good.replace("\"s3cret\"", "null")))),
        (
            "a line end",
            Box::new(|| write(&good.replace("s3cret", "s3\\r\\nX: y"))),
        ),
        ("endless", Box::new(|| write(&" ".repeat(1 << 20)))),
        ("open to the group", Box::new(|| set_mode(&path, 0o640))),
        (
            "a symbolic link",
            Box::new(|| {
                fs::remove_file(&path).unwrap();
                symlink(&elsewhere, &path).unwrap();
            }),
        ),
        (
            "a folder",
            Box::new(|| {
                fs::remove_file(&path).unwrap();
                fs::create_dir(&path).unwrap();
            }),
        ),
    ];
    for (what, damage) in damages {
        damage();
        let runs = home.runs();
        assert_eq!(home.field(plugin(&home, FAR)).await, "Bearer s3cret", "{what}");
        assert_eq!(home.runs(), runs + 1, "{what}");
        if what == "a folder" {
            fs::remove_dir(&path).unwrap();
        } else {
            assert_eq!(
                fs::read_to_string(&path).unwrap().replace(char::is_numeric, ""),
                good.replace(char::is_numeric, "")
            );
            assert_eq!(mode(&path), 0o600, "{what}");
            assert!(fs::symlink_metadata(&path).unwrap().is_file(), "{what}");
        }
    }
    assert!(
        fs::read_to_string(elsewhere).unwrap().contains("planted"),
        "a link was followed"
    );
}

#[tokio::test]
async fn without_a_folder_of_ones_own_all_works_without_a_cache() {
    let home = Home::new();
    let folder = home.path("cache/switchboard");
    fs::create_dir_all(&folder).unwrap();
    set_mode(&folder, 0o755);
    for _ in 0..2 {
        home.field(plugin(&home, FAR)).await;
    }
    assert_eq!((home.runs(), fs::read_dir(&folder).unwrap().count()), (2, 0));
    let target = home.path("target");
    fs::create_dir(&target).unwrap();
    set_mode(&target, 0o700);
    fs::remove_dir(&folder).unwrap();
    symlink(&target, &folder).unwrap();
    home.field(plugin(&home, FAR)).await;
    assert_eq!((home.runs(), fs::read_dir(&target).unwrap().count()), (3, 0));
    for cache in [
        None,
        Some("/proc/none/switchboard".into()),
        Some("/dev/null/switchboard".into()),
    ] {
        let options = credentials::Options {
            cache,
            ..home.options(plugin(&home, FAR))
        };
        within(options.obtain(None)).await.unwrap();
    }
    assert_eq!(home.runs(), 6);
}

/// As VS Code does when it opens a window.
#[tokio::test]
async fn of_eight_parallel_logins_one_runs_the_plugin() {
    let home = Home::new();
    let script = format!(
        "sleep 0.3\n{}",
        prints(&json!({"token": "s3cret", "expirationTimestamp": FAR}))
    );
    let source = home.plugin(&script);
    let logins: Vec<_> = (0..8)
        .map(|_| {
            let options = home.options(source.clone());
            tokio::spawn(async move { field(&options.obtain(None).await.unwrap()) })
        })
        .collect();
    for login in logins {
        assert_eq!(within(login).await.unwrap(), "Bearer s3cret");
    }
    assert_eq!(home.runs(), 1);
}

#[tokio::test]
async fn a_lock_that_is_never_released_is_waited_for_until_the_deadline() {
    let home = Home::new();
    home.field(plugin(&home, FAR)).await;
    let lock = fs::File::open(entry(&home).with_extension("lock")).unwrap();
    lock.lock().unwrap();
    fs::remove_file(entry(&home)).unwrap();
    let options = credentials::Options {
        timeout: Duration::from_millis(200),
        ..home.options(plugin(&home, FAR))
    };
    let line = chain(&within(options.obtain(None)).await.unwrap_err());
    assert_eq!(
        line,
        "another switchboard connect has been asking for the same credentials for too long"
    );
    assert_eq!(home.runs(), 1);
}

/// A person who has closed the browser does not see it open again for each session of the window.
#[tokio::test]
async fn a_login_that_fails_ends_those_that_wait_for_it() {
    let home = Home::new();
    let source = home.plugin("while ! test -e cancel; do sleep 0.05; done; exit 1");
    let logins: Vec<_> = (0..8)
        .map(|_| {
            let options = home.options(source.clone());
            tokio::spawn(async move { chain(&options.obtain(None).await.unwrap_err()) })
        })
        .collect();
    // This thread runs them in turn: all have begun when the plugin of the first has.
    let begun = async {
        while home.runs() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(begun).await;
    home.write("cancel", "");
    let mut said = Vec::new();
    for login in logins {
        said.push(within(login).await.unwrap());
    }
    said.sort_unstable();
    assert!(
        said[0].starts_with("another switchboard connect asked for the same credentials at the same moment and failed")
    );
    assert_eq!(said[7], "the credential plugin sh: it ended with exit status 1");
    assert_eq!((said[6] == said[0], home.runs()), (true, 1));
    // A later one asks anew.
    assert_eq!(chain(&home.obtain(source).await.unwrap_err()), said[7]);
    assert_eq!(home.runs(), 2);
}
