//! The rule against recorded minutes of real programs: see tests/activity/README.md.

use super::*;

/// The kind of a trace's minutes: work, or only kept alive.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Label {
    Busy,
    Idle,
    /// Work in the minutes of its first line, and otherwise without a label.
    Keys,
}

type Trace = (Label, &'static str, &'static str);

macro_rules! traces {
    ($set:literal $($label:ident: $($name:literal)*;)*) => {
        [$($((Label::$label, $name, include_str!(concat!("../../../../tests/activity/", $set, $name, ".trace"))),)*)*]
    };
}

macro_rules! every_trace {
    ($set:literal) => {
        traces! {
            $set
            Keys: "typing" "typing-alive" "short-commands" "short-commands-alive" "tmux-1-typing" "vscode-editing";
            Busy: "tail-busy" "build" "progress-bar" "scp" "scp-down" "git-clone";
            Idle: "idle-shell" "idle-alive-15" "idle-alive-30" "idle-alive-45" "tail-still" "tmux-15" "tmux-1" "top" "top-1"
                "vscode-idle" "vscode-idle-alive";
        }
    };
}

/// Those that the rule was made with.
const FIRST: [Trace; 23] = every_trace!("");
/// Those that it had not seen.
const SECOND: [Trace; 23] = every_trace!("second/");

/// Returns the verdict of the rule on each minute of a trace, which has that many.
fn judged(trace: &str, minutes: usize) -> Vec<bool> {
    let (mut history, mut moved, mut judged) = (History::default(), Traffic::default(), Vec::new());
    for line in trace.lines().skip(1) {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [second, up, sent, down, received] = numbers[..] else {
            panic!("{line}")
        };
        while second >= 60 * (judged.len() as u64 + 1) {
            judged.push(history.end_minute(moved));
        }
        for (own, new) in moved.messages.iter_mut().zip([up, down]) {
            *own += u32::try_from(new).unwrap();
        }
        for (own, new) in moved.bytes.iter_mut().zip([sent, received]) {
            *own += new;
        }
    }
    while judged.len() < minutes {
        judged.push(history.end_minute(moved));
    }
    judged.truncate(minutes);
    judged
}

/// Returns the minutes with a label, and whether each is judged rightly. A tunnel's first minutes have no label: there is nothing to
/// compare them with, so that they count as active.
fn judgements((label, name, trace): Trace, minutes: usize) -> Vec<(usize, bool)> {
    // A clone is over within its first minute.
    let minutes = if name == "git-clone" { 1 } else { minutes };
    let judged = judged(trace, minutes).into_iter().enumerate();
    let (_, marks) = trace.lines().next().unwrap().split_once("keys:").unwrap();
    let keys: Vec<usize> = marks.split_whitespace().map(|mark| mark.parse().unwrap()).collect();
    match label {
        Label::Busy => judged.collect(),
        Label::Idle => judged
            .skip(1 + ALIKE)
            .map(|(minute, active)| (minute, !active))
            .collect(),
        Label::Keys => judged.filter(|(minute, _)| keys.contains(minute)).collect(),
    }
}

#[test]
fn at_least_95_percent_of_recorded_minutes_are_judged_rightly_and_no_busy_one_is_idle_for_long() {
    measure(FIRST, 17);
    measure(SECOND, 12);
}

/// Measures the error over a recording of so many minutes.
fn measure(traces: [Trace; 23], minutes: usize) {
    let (mut right, mut all) = (0, 0);
    for trace in traces {
        let (label, name, _) = trace;
        let judgements = judgements(trace, minutes);
        let wrong: Vec<_> = judgements
            .iter()
            .filter(|(_, right)| !right)
            .map(|(minute, _)| *minute)
            .collect();
        println!("{name}: {} minutes, wrong: {wrong:?}", judgements.len());
        assert!(!judgements.is_empty(), "{name}");
        right += judgements.len() - wrong.len();
        all += judgements.len();
        // A culler waits for hours: what counts is that a busy tunnel is not idle for minutes on end.
        if label != Label::Idle {
            assert!(wrong.len() * 5 <= judgements.len(), "{name}: {wrong:?}");
            assert!(wrong.windows(2).all(|pair| pair[0] + 1 != pair[1]), "{name}: {wrong:?}");
        }
    }
    println!("{right} of {all}");
    assert!(right * 100 >= all * 95, "{right} of {all}");
}

fn minute(messages: [u32; 2], bytes: [u64; 2]) -> Traffic {
    Traffic { messages, bytes }
}

fn after(one: Traffic, more: Traffic) -> Traffic {
    Traffic {
        messages: [0, 1].map(|way| one.messages[way].wrapping_add(more.messages[way])),
        bytes: [0, 1].map(|way| one.bytes[way] + more.bytes[way]),
    }
}

#[test]
fn a_minute_is_idle_if_it_is_silent_or_like_three_before() {
    let beat = minute([4, 4], [208, 144]);
    for (more, expected) in [
        (Traffic::default(), false),
        (beat, false),
        (minute([5, 5], [260, 180]), false),
        (minute([3, 3], [156, 108]), false),
        (minute([6, 6], [280, 216]), true),
        (minute([4, 4], [208, 144 + 1000]), true),
        (minute([4, 4], [208, 144 + 500]), false),
        (minute([4, 2], [208, 36]), true),
        (minute([301, 4], [208, 144]), true),
        (minute([4, 4], [600 << 10, 144]), true),
    ] {
        let (mut history, mut moved) = (History::default(), minute([u32::MAX - 5, 0], [0, 0]));
        history.end_minute(moved);
        let mut first = Vec::new();
        for _ in 0..4 {
            moved = after(moved, beat);
            first.push(history.end_minute(moved));
        }
        assert_eq!(first, [true, true, true, false]);
        assert!(!history.is_already_active(moved), "the next has not begun");
        moved = after(moved, more);
        // A minute with less than usual may still become like the others.
        let has_less = more.messages[1] < 3 && more.messages[0] <= 4;
        assert_eq!(history.is_already_active(moved), expected && !has_less, "{more:?}");
        assert_eq!(history.end_minute(moved), expected, "{more:?}");
    }
}

#[test]
fn a_copy_at_a_steady_rate_is_active_only_above_512_kib_a_minute() {
    for (kib, expected) in [(400, false), (600, true)] {
        let (mut history, mut moved) = (History::default(), Traffic::default());
        let copied = minute([2, 30], [72, kib << 10]);
        let judged = [(); 5].map(|()| {
            moved = after(moved, copied);
            history.end_minute(moved)
        });
        assert_eq!(judged[4], expected, "{kib}");
    }
}
