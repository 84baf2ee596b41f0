//! The file of users while the process runs.

use std::path::Path;

use super::*;

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let open = |path: &Path| PasswordFile::open(path).unwrap_err()[0].to_string();
    let missing = tempfile::tempdir().unwrap().path().join("users");
    assert_eq!(open(&missing), "there is no such file");
    assert_eq!(open(Path::new("/dev/zero")), "it is a device, not a regular file");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(
        open(file.path()),
        "it is empty: a file without users needs a line that begins with #"
    );
    file.as_file().set_len((1 << 20) + 1).unwrap();
    assert_eq!(open(file.path()), "larger than 1 MiB");
    fs::write(file.path(), b"#\n\n\xff\n").unwrap();
    assert_eq!(open(file.path()), "line 3: it is not UTF-8");
}

#[tokio::test]
async fn a_changed_file_counts_at_once_and_a_faulty_one_never() {
    let file = File::new(&(line("alice") + &line("bob")));
    let users = file.open();
    assert!(matches!(users.reload(), ReloadResult::Unchanged));
    file.write("alice:plain\nbob\n");
    let ReloadResult::Invalid(faults) = users.reload() else {
        panic!("a faulty file was taken")
    };
    assert_eq!(faults.len(), 2);
    // It is reported once.
    assert!(matches!(users.reload(), ReloadResult::Unchanged));
    users.read_again();
    assert!(matches!(users.reload(), ReloadResult::Invalid(_)));
    fs::remove_file(file.0.path()).unwrap();
    assert!(matches!(users.reload(), ReloadResult::Invalid(_)));
    assert!(is_right(&users, "bob", "correct").await);
    file.write(&format!("alice:{}:ops\n", HASHES[2]));
    assert!(matches!(users.reload(), ReloadResult::Loaded));
    assert!(!users.contains("bob") && !is_right(&users, "bob", "correct").await);
    let Ok(Verdict::Authenticated(alice)) = users.verify("alice", &"correct".into()).await else {
        panic!("refused")
    };
    assert_eq!(&*alice.groups[0], "ops");
    users.read_again();
    assert!(matches!(users.reload(), ReloadResult::Unchanged));
    // A file that becomes good again as it was is taken as well.
    file.write("x");
    assert!(matches!(users.reload(), ReloadResult::Invalid(_)));
    file.write(&format!("alice:{}:ops\n", HASHES[2]));
    assert!(matches!(users.reload(), ReloadResult::Loaded));
}

#[test]
fn a_file_that_is_being_written_ends_no_user() {
    let file = File::new(&(line("alice") + &line("bob")));
    let users = Arc::new(file.open());
    // The second reading is another one, whenever in between the file is written.
    file.write("");
    let reloading = std::thread::spawn({
        let users = Arc::clone(&users);
        move || users.reload()
    });
    while users.readings.lock().begun() == 1 && !reloading.is_finished() {
        std::thread::yield_now();
    }
    file.write(&(line("alice") + &line("bob") + &line("carol")));
    let reloaded = reloading.join().unwrap();
    assert!(users.contains("bob"), "{reloaded:?}");
    let mut reloaded = users.reload();
    while !users.contains("carol") {
        assert!(!matches!(reloaded, ReloadResult::Invalid(_)), "{reloaded:?}");
        reloaded = users.reload();
    }
    assert_eq!(users.len(), 3);
}

#[test]
fn a_file_that_comes_later_counts_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let users = PasswordFile::empty(&path);
    assert!(users.is_empty() && matches!(users.reload(), ReloadResult::Invalid(_)));
    fs::write(&path, line("alice")).unwrap();
    assert!(matches!(users.reload(), ReloadResult::Loaded));
    assert!(users.contains("alice"));
}

// Time is stopped, and goes on by itself where everything waits.
#[tokio::test(start_paused = true)]
async fn the_file_is_followed() {
    let file = File::new(&line("alice"));
    let users = Arc::new(file.open());
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let report = move |found| sender.send(found).unwrap();
    let following = tokio::spawn(Arc::clone(&users).follow(report));
    assert_eq!(reports.recv().await.unwrap(), Ok(ReloadResult::Unchanged));
    file.write(&line("bob"));
    while reports.recv().await.unwrap() != Ok(ReloadResult::Loaded) {}
    assert!(users.contains("bob") && !users.contains("alice"));
    following.abort();
}
