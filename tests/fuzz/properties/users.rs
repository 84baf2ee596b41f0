//! The text of a file of users.

use switchboard::policy::access::files::passwords::check as parse;

/// It has users, or faults that name a line of it, of which the last may be the number of the others; and more lines never have fewer faults.
pub(crate) fn check(bytes: &[u8]) {
    if bytes.is_empty() {
        return assert!(parse(bytes).is_err());
    }
    let lines = bytes.split(|byte| *byte == b'\n').count();
    match parse(bytes) {
        Ok(users) => assert!(users <= lines),
        Err(faults) => {
            assert!(!faults.is_empty() && faults.len() <= lines);
            for (number, fault) in faults.iter().enumerate() {
                let is_count = number >= 20 && number + 1 == faults.len() && fault.line.is_none();
                assert!(
                    is_count || fault.line.is_some_and(|line| (1..=lines).contains(&line)),
                    "{fault}"
                );
            }
            let mut more = bytes.to_vec();
            more.extend(b"\n:");
            let more = parse(&more).expect_err("the last line has no name");
            assert!(more.len() >= faults.len());
        }
    }
}
