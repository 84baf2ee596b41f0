//! Files that change while they are read.

use std::os::unix::fs::symlink;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::*;

#[test]
fn a_read_of_other_settings_that_ends_after_a_change_of_them_changes_nothing() {
    let (files, others) = (Files::new(), Files::new());
    let [first, second] = [2020, 2021].map(|from| files.issue(5, from, 2090));
    let before = files.with_pair(&first.pem, &first.key);
    let tls = Tls::new(before.clone(), HANDSHAKE).unwrap();
    // It is read by the settings before, and ends after those that come then have been applied.
    let read = || {
        let contents = FileContents::read(&before);
        let next = others.with_pair(&second.pem, &second.key);
        tls.configure(next);
        assert!(matches!(tls.reload(), ReloadResult::Loaded | ReloadResult::Unchanged));
        contents
    };
    let applied = |_| panic!("it counts no more");
    assert_eq!(
        follow::reload::<_, FileError>(&tls.history, Duration::ZERO, read, applied),
        ReloadResult::Unchanged
    );
}

/// As Kubernetes swaps a mounted Secret: by a link to the directory of both files.
#[test]
fn a_pair_that_is_swapped_between_the_reads_of_its_files_is_no_faulty_one() {
    let files = Files::new();
    let folder = files.folder.path();
    let (mounted, next) = (folder.join("mounted"), folder.join("next"));
    for name in ["one", "other"] {
        let made = files.issue(5, 2020, 2090);
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("cert"), made.pem).unwrap();
        fs::write(folder.join(name).join("key"), made.key).unwrap();
    }
    let swap = |name| {
        symlink(folder.join(name), &next).unwrap();
        fs::rename(&next, &mounted).unwrap();
    };
    swap("one");
    let settings = Settings {
        certificates: vec![CertificatePaths {
            cert: mounted.join("cert"),
            key: mounted.join("key"),
        }],
        ..Settings::default()
    };
    let tls = Tls::new(settings, HANDSHAKE).unwrap();
    let (sender, results) = mpsc::channel();
    let swapping = Arc::new(());
    let is_over = Arc::downgrade(&swapping);
    let read = move || {
        while is_over.strong_count() > 0 {
            match tls.reload() {
                ReloadResult::Unchanged => {}
                result @ (ReloadResult::Loaded | ReloadResult::Invalid(_) | ReloadResult::Deferred(_)) => {
                    sender.send(result).unwrap_or_default();
                }
            }
        }
    };
    thread::scope(move |scope| {
        let _swapping = swapping;
        scope.spawn(read);
        for (number, name) in ["other", "one"].into_iter().cycle().take(SWAPS).enumerate() {
            swap(name);
            // One at a time: the one before has been read.
            assert_eq!(
                results.recv_timeout(DEADLINE),
                Ok(ReloadResult::Loaded),
                "swap {number}"
            );
        }
    });
}

/// So many that some come between two reads.
const SWAPS: usize = 300;
/// It only ends a test that hangs.
const DEADLINE: Duration = Duration::from_secs(120);
