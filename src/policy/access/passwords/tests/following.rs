//! The file of users while the process runs.

use std::sync::mpsc;

use super::*;
use crate::policy::access::passwords::reload::MOST_STUCK;

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let open = |path: &Path| Users::open(path).unwrap_err()[0].to_string();
    let missing = tempfile::tempdir().unwrap().path().join("users");
    assert_eq!(open(&missing), "there is no such file");
    assert_eq!(open(Path::new("/dev/zero")), "it is a device, not a regular file");
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(
        open(file.path()),
        "it is empty: without users, it has a line that begins with #"
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
    let mut changed = users.changed();
    assert!(matches!(users.reload(), Reloaded::Unchanged));
    file.write("alice:plain\nbob\n");
    let Reloaded::Faulty(faults) = users.reload() else {
        panic!("a faulty file was taken")
    };
    assert_eq!(faults.len(), 2);
    // It is reported once.
    assert!(matches!(users.reload(), Reloaded::Unchanged));
    fs::remove_file(file.0.path()).unwrap();
    assert!(matches!(users.reload(), Reloaded::Faulty(_)));
    assert!(is_right(&users, "bob", "correct").await);
    assert!(!changed.has_changed().unwrap());
    file.write(&format!("alice:{}:ops\n", HASHES[2]));
    assert!(matches!(users.reload(), Reloaded::Loaded { users: 1 }));
    assert!(changed.has_changed().unwrap());
    changed.mark_unchanged();
    assert!(!users.contains("bob") && users.verify("bob", &"correct".into()).await.is_none());
    let Some(Ok(Verdict::Proved(alice))) = users.verify("alice", &"correct".into()).await else {
        panic!("refused")
    };
    assert_eq!(&*alice.groups[0], "ops");
    // A file that becomes good again as it was is taken as well.
    file.write("x");
    assert!(matches!(users.reload(), Reloaded::Faulty(_)));
    file.write(&format!("alice:{}:ops\n", HASHES[2]));
    assert!(matches!(users.reload(), Reloaded::Loaded { users: 1 }));
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
    while users.readings.load(Ordering::Relaxed) == 1 && !reloading.is_finished() {
        std::thread::yield_now();
    }
    file.write(&(line("alice") + &line("bob") + &line("carol")));
    let reloaded = reloading.join().unwrap();
    assert!(users.contains("bob"), "{reloaded:?}");
    let mut reloaded = users.reload();
    while !users.contains("carol") {
        assert!(!matches!(reloaded, Reloaded::Faulty(_)), "{reloaded:?}");
        reloaded = users.reload();
    }
    assert_eq!(users.len(), 3);
}

#[test]
fn a_file_that_comes_later_counts_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let users = Users::empty(&path);
    assert!(users.is_empty() && matches!(users.reload(), Reloaded::Faulty(_)));
    fs::write(&path, line("alice")).unwrap();
    assert!(matches!(users.reload(), Reloaded::Loaded { users: 1 }));
    assert!(users.contains("alice"));
}

// Time is stopped, and goes on by itself where everything waits.
#[tokio::test(start_paused = true)]
async fn the_file_is_followed() {
    let file = File::new(&line("alice"));
    let users = Arc::new(file.open());
    let mut changed = users.changed();
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let report = move |reloaded: &Reloaded| sender.send(format!("{reloaded:?}")).unwrap();
    let following = tokio::spawn(Arc::clone(&users).follow(report));
    assert_eq!(reports.recv().await.unwrap(), "Unchanged");
    file.write(&line("bob"));
    changed.changed().await.unwrap();
    assert!(users.contains("bob") && !users.contains("alice"));
    while reports.recv().await.unwrap() != "Loaded { users: 1 }" {}
    following.abort();
}

/// The users of a text that changes. Readings of a text that begins with `# hangs` end with it.
struct Hanging {
    text: Arc<Mutex<String>>,
    users: Arc<Users>,
    _release: mpsc::Sender<()>,
}

impl Hanging {
    fn new(text: &str) -> Self {
        let text = Arc::new(Mutex::new(text.to_owned()));
        let (release, released) = mpsc::channel();
        let (shown, released) = (Arc::clone(&text), Mutex::new(released));
        let source = move || {
            let read = shown.lock().clone();
            if read.starts_with("# hangs") {
                let _: Result<(), _> = released.lock().recv();
            }
            Ok(read.into_bytes())
        };
        let users = Arc::new(Users::of(Box::new(source)));
        assert!(matches!(users.reload(), Reloaded::Loaded { .. }));
        Self {
            text,
            users,
            _release: release,
        }
    }

    fn write(&self, text: &str) {
        text.clone_into(&mut self.text.lock());
    }
}

/// Passes the time of the follower until there is a report, however long a reading hangs.
async fn next(reports: &mut tokio::sync::mpsc::UnboundedReceiver<String>) -> (Duration, String) {
    let begun = tokio::time::Instant::now();
    loop {
        match reports.try_recv() {
            Ok(report) => return (begun.elapsed(), report),
            Err(_) => step().await,
        }
    }
}

/// Passes a second of the follower's time: it stands still by itself while a reading is under way.
async fn step() {
    tokio::time::advance(Duration::from_secs(1)).await;
    std::thread::sleep(Duration::from_micros(100));
}

/// Waits until more than so many readings have begun.
async fn begins(users: &Users, before: u64) {
    while users.readings.load(Ordering::Relaxed) == before {
        step().await;
    }
}

#[test]
fn a_reading_that_hangs_delays_no_other_and_counts_no_more_behind_it() {
    let (hangs, hung) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (calls, released) = (AtomicU64::new(0), Mutex::new(released));
    let source = move || {
        let text = match calls.fetch_add(1, Ordering::Relaxed) {
            0 => line("alice") + &line("zed"),
            1 => line("zed"),
            // The second look of the second reading, whether the file is being written.
            2 => {
                hangs.send(()).unwrap();
                released.lock().recv().unwrap();
                line("zed")
            }
            _ => line("alice"),
        };
        Ok(text.into_bytes())
    };
    let users = Arc::new(Users::of(Box::new(source)));
    assert!(matches!(users.reload(), Reloaded::Loaded { users: 2 }));
    let hanging = std::thread::spawn({
        let users = Arc::clone(&users);
        move || users.reload()
    });
    hung.recv().unwrap();
    assert!(matches!(users.reload(), Reloaded::Loaded { users: 1 }));
    assert!(users.contains("alice") && !users.contains("zed"));
    release.send(()).unwrap();
    assert!(matches!(hanging.join().unwrap(), Reloaded::Unchanged));
    assert!(users.contains("alice") && !users.contains("zed"));
}

#[tokio::test(start_paused = true)]
async fn a_file_whose_readings_hang_is_reported_at_a_slow_rate_and_taken_when_it_is_good_again() {
    let file = Hanging::new(&(line("alice") + &line("zed")));
    file.write("# hangs");
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let report = move |reloaded: &Reloaded| sender.send(format!("{reloaded:?}")).unwrap();
    let following = tokio::spawn(Arc::clone(&file.users).follow(report));
    for reading in 0..6 {
        let (waited, report) = next(&mut reports).await;
        assert!(report.contains("not read within 10s"), "{report}");
        let least = if reading < 4 { 20 } else { 310 };
        let bounds = Duration::from_secs(least - 2)..Duration::from_secs(least + 5);
        assert!(bounds.contains(&waited), "{reading}: {waited:?}");
    }
    // What the path leads to now can be read.
    file.write(&line("alice"));
    while file.users.contains("zed") {
        next(&mut reports).await;
    }
    assert!(file.users.contains("alice"));
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn the_readings_that_hang_are_bounded_and_a_reload_reads_all_the_same() {
    let file = Hanging::new(&line("zed"));
    file.write("# hangs");
    let (sender, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let report = move |reloaded: &Reloaded| sender.send(format!("{reloaded:?}")).unwrap();
    let following = tokio::spawn(Arc::clone(&file.users).follow(report));
    for _ in 0..MOST_STUCK {
        assert!(next(&mut reports).await.1.contains("not read within 10s"));
    }
    let begun = MOST_STUCK as u64 + 1;
    while file.users.readings.load(Ordering::Relaxed) < begun {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let report = next(&mut reports).await.1;
        assert!(report.contains("32 readings of the file hang"), "{report}");
    }
    assert_eq!(file.users.readings.load(Ordering::Relaxed), begun);
    file.write(&line("alice"));
    file.users.read_again();
    // Without being asked for it reads no more.
    begins(&file.users, begun).await;
    while file.users.contains("zed") {
        std::thread::yield_now();
    }
    assert!(file.users.contains("alice"));
    following.abort();
}
