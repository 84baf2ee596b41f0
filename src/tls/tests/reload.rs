//! Files that change while they are read.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn a_read_that_began_before_another_and_ended_after_it_changes_nothing() {
    let files = Files::new();
    let [first, second] = [2020, 2021].map(|from| files.issue(5, from, 2090));
    let settings = files.with_pair(&first.pem, &first.key);
    let tls = Tls::new(settings, Options::default()).unwrap();
    files.with_pair(&second.pem, &second.key);
    // Another read, which began later, has been taken.
    tls.known().taken = u64::MAX;
    assert_eq!(tls.reload(), Reloaded::Unchanged);
    tls.known().taken = 0;
    assert_eq!(tls.reload(), Reloaded::Loaded);
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
    let tls = Tls::new(settings, Options::default()).unwrap();
    let loaded = AtomicUsize::new(0);
    let begun = Instant::now();
    let read = || {
        let mut others = Vec::new();
        while loaded.load(Ordering::Relaxed) < SWAPS {
            assert!(begun.elapsed() < LONGEST, "{others:?}");
            match tls.reload() {
                Reloaded::Unchanged => {}
                Reloaded::Loaded => _ = loaded.fetch_add(1, Ordering::Relaxed),
                other @ (Reloaded::Faulty(_) | Reloaded::Postponed(_)) => others.push(other),
            }
        }
        others
    };
    let others = thread::scope(|scope| {
        let reading = scope.spawn(read);
        for (number, name) in ["other", "one"].into_iter().cycle().take(SWAPS).enumerate() {
            swap(name);
            // One at a time: the one before has been read.
            while loaded.load(Ordering::Relaxed) <= number {
                assert!(begun.elapsed() < LONGEST, "swap {number} is not loaded");
                thread::yield_now();
            }
        }
        reading.join().unwrap()
    });
    assert_eq!(others, []);
}

/// So many that some come between two reads.
const SWAPS: usize = 300;
/// It takes a tenth of a second.
const LONGEST: Duration = Duration::from_secs(60);
