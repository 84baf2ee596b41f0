//! Readings that hang, that overlap, and whose contents change between two reads.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::task::AbortOnDropHandle;

use super::*;

/// The result of a reading in these tests.
type Found = ReloadResult<&'static str>;

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_is_started_again_until_it_returns_and_ends_with_its_owner() {
    let (started, failed) = (Arc::new(AtomicU64::new(0)), Cell::new(0));
    let start = || {
        let count = started.fetch_add(1, Ordering::SeqCst);
        async move { assert!(count == 2, "a defect") }
    };
    restarted(start, |error| failed.set(failed.get() + u64::from(error.is_panic()))).await;
    assert_eq!((started.load(Ordering::SeqCst), failed.get()), (3, 2));
    let held = Arc::new(());
    let kept = Arc::clone(&held);
    let hangs = move || {
        let kept = Arc::clone(&kept);
        async move {
            let _kept = kept;
            std::future::pending().await
        }
    };
    let running = restarted(hangs, |_| ());
    assert!(timeout(Duration::from_secs(1), running).await.is_err());
    // The runtime drops the task when it runs next.
    tokio::task::yield_now().await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn contents_are_applied_once_whether_they_are_good_or_faulty() {
    let (readings, applied) = (Mutex::default(), Cell::new(0));
    let reads = |contents: &'static str| {
        reload(
            &readings,
            Duration::ZERO,
            || Ok(contents),
            |contents| {
                applied.set(applied.get() + 1);
                if contents.is_empty() {
                    Err(vec!["empty"])
                } else {
                    Ok(())
                }
            },
        )
    };
    for (contents, expected) in [
        ("one", ReloadResult::Loaded),
        ("one", ReloadResult::Unchanged),
        ("", ReloadResult::Invalid(vec!["empty"])),
        ("", ReloadResult::Unchanged),
        ("one", ReloadResult::Loaded),
    ] {
        assert_eq!(reads(contents), expected, "{contents:?}");
    }
    assert_eq!(applied.get(), 3);
    readings.lock().restart();
    assert_eq!(reads("one"), ReloadResult::Loaded);
}

#[test]
fn contents_that_change_while_they_are_read_are_not_applied() {
    let (readings, reads) = (Mutex::default(), Cell::new(0));
    let read = || {
        reads.set(reads.get() + 1);
        Ok(reads.get())
    };
    let found: Found = reload(&readings, Duration::ZERO, read, |_| panic!("it never settles"));
    assert_eq!(found, ReloadResult::Deferred("it is being written".to_owned()));
    // The first ones of two that agree are the last ones.
    let reads = Cell::new(0);
    let read = || {
        reads.set(reads.get() + 1);
        Ok(reads.get().min(3))
    };
    let found: Found = reload(&readings, Duration::ZERO, read, |contents| {
        assert_eq!(contents, 3);
        Ok(())
    });
    assert_eq!((found, reads.get()), (ReloadResult::Loaded, 4));
    let shortage: Found = reload(
        &readings,
        Duration::ZERO,
        || Err::<(), _>("none left".to_owned()),
        |()| Ok(()),
    );
    assert_eq!(shortage, ReloadResult::Deferred("none left".to_owned()));
}

#[test]
fn a_reading_that_hangs_delays_no_other_and_counts_no_more_after_it() {
    let readings = Arc::new(Mutex::default());
    let applied = Arc::new(Mutex::new("first"));
    let reads = |text: &'static str, hangs: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>| {
        let (readings, applied) = (Arc::clone(&readings), Arc::clone(&applied));
        move || -> Found {
            let read = || {
                if let Some((hangs, released)) = &hangs {
                    hangs.send(()).unwrap();
                    released.recv().unwrap();
                }
                Ok(text)
            };
            reload(&readings, Duration::ZERO, read, |text| {
                *applied.lock() = text;
                Ok(())
            })
        }
    };
    let (hangs, hung) = mpsc::channel();
    let (release, released) = mpsc::channel();
    let hanging = thread::spawn(reads("old", Some((hangs, released))));
    hung.recv().unwrap();
    assert_eq!(reads("new", None)(), ReloadResult::Loaded);
    // It is read twice.
    release.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(hanging.join().unwrap(), ReloadResult::Unchanged);
    assert_eq!(*applied.lock(), "new");
}

/// Returns a reading that hangs until its release is dropped.
async fn hang(reads: &ReadPool) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (started, starts) = tokio::sync::oneshot::channel();
    let read = reads.run(move || {
        started.send(()).ok();
        held.recv().ok();
    });
    tokio::select! {
        biased;
        _ = read => panic!("it does not hang"),
        _ = starts => {}
    }
    release
}

#[tokio::test]
async fn readings_that_hang_are_few() {
    let reads = ReadPool::default();
    let mut hung = Vec::new();
    for _ in 0..FEW_STUCK {
        hung.push(hang(&reads).await);
    }
    assert_eq!(reads.run(|| ()).await, Err(ReadFailure::Stuck));
    drop(hung);
    while Arc::strong_count(&reads.begun) > 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reads.run(|| ()).await, Ok(()));
    assert_eq!(
        reads.run(|| panic!("a defect")).await,
        Err::<(), _>(ReadFailure::Panicked)
    );
}

/// A source that is followed. Its readings hang if it says so at their begin.
struct Source {
    hangs: Arc<AtomicBool>,
    begun: Arc<AtomicU64>,
    again: Arc<Notify>,
    /// The number of each reading that has ended, and why others have not.
    reports: UnboundedReceiver<Result<u64, ReadFailure>>,
    _release: mpsc::Sender<()>,
    _following: AbortOnDropHandle<()>,
}

impl Source {
    fn new() -> Self {
        let (hangs, begun, again) = (Arc::new(AtomicBool::new(true)), Arc::default(), Arc::default());
        let (sender, reports) = unbounded_channel();
        let (release, released) = mpsc::channel::<()>();
        let (is_held, number, found) = (Arc::clone(&hangs), Arc::clone(&begun), sender.clone());
        let released = Arc::new(Mutex::new(released));
        let read = move || {
            let number = AtomicU64::fetch_add(&number, 1, Ordering::SeqCst) + 1;
            if is_held.load(Ordering::SeqCst) {
                released.lock().recv().ok();
            }
            found.send(Ok(number)).ok();
        };
        let wanted: Arc<Notify> = Arc::clone(&again);
        let following = async move {
            let report = |error| sender.send(Err(error)).unwrap_or_default();
            follow(|| Duration::from_secs(10), &wanted, read, report).await;
        };
        Self {
            hangs,
            begun,
            again,
            reports,
            _release: release,
            _following: AbortOnDropHandle::new(tokio::spawn(following)),
        }
    }

    /// Passes time until there is a report. By itself it stands still while a reading is under way.
    async fn report(&mut self) -> Result<u64, ReadFailure> {
        loop {
            match self.reports.try_recv() {
                Ok(report) => return report,
                Err(_) => tokio::time::advance(Duration::from_secs(1)).await,
            }
        }
    }

    /// Waits until so many readings have begun.
    async fn begins(&self, readings: u64) {
        while self.begun.load(Ordering::SeqCst) < readings {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_whose_readings_hang_is_read_slowly_then_no_more_and_at_once_when_it_is_asked_for() {
    let mut source = Source::new();
    // Four readings are late, which is reported once.
    assert_eq!(source.report().await, Err(ReadFailure::Late));
    assert_eq!(source.report().await, Err(ReadFailure::Stuck));
    source.begins(FEW_STUCK as u64).await;
    for reading in FEW_STUCK + 1..=MAX_STUCK {
        let begin = Instant::now();
        assert_eq!(source.report().await, Err(ReadFailure::Late), "{reading}");
        let waited = begin.elapsed().as_secs();
        assert!((280..=300).contains(&waited), "{reading}: {waited} s");
        assert_eq!(source.report().await, Err(ReadFailure::Stuck), "{reading}");
        source.begins(reading as u64).await;
    }
    for _ in 0..3600 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(source.reports.try_recv().is_err());
    assert_eq!(source.begun.load(Ordering::SeqCst), MAX_STUCK as u64);
    source.hangs.store(false, Ordering::SeqCst);
    source.again.notify_one();
    assert_eq!(source.reports.recv().await, Some(Ok(MAX_STUCK as u64 + 1)));
}
