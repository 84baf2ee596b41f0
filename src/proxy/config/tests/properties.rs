//! Random texts and mutated files: no text panics, and every fault has a position.

use proptest::prelude::*;

use super::*;

/// Pieces of YAML that a random text would hardly contain.
fn piece() -> impl Strategy<Value = String> {
    let words =
        "- |: |, |[|]|{|}|\n|\n  |&a |*a|<<: *a|!!str |---\n|? |~|'|\"|#|%YAML 1.2\n|\t|: 0s|99999999999y|zzz: 1";
    prop_oneof![
        proptest::sample::select(words.split('|').map(str::to_owned).collect::<Vec<String>>()),
        "\\PC{0,4}",
    ]
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,200}", pieces in proptest::collection::vec(piece(), 0..40)) {
        for text in [text, pieces.concat()] {
            if let Err(faults) = Config::parse(&text) {
                prop_assert!(faults.iter().next().is_some());
            }
        }
    }

    #[test]
    fn no_mutation_of_a_file_panics(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), 0..30_usize, piece()), 1..6),
    ) {
        let mut text: Vec<char> = FULL.chars().collect();
        for (at, removed, inserted) in edits {
            let start = at.index(text.len() + 1);
            let end = (start + removed).min(text.len());
            text.splice(start..end, inserted.chars());
        }
        let text: String = text.into_iter().collect();
        let lines = text.split('\n').count() as u64;
        if let Err(faults) = Config::parse(&text) {
            for fault in faults.iter() {
                let line = fault.position.unwrap().line;
                prop_assert!((1..=lines + 1).contains(&line), "{fault} of {lines} lines");
                prop_assert!(!fault.message.is_empty());
            }
            let sorted = faults.iter().map(|fault| fault.position).is_sorted();
            prop_assert!(sorted, "{faults}");
        }
    }
}
