//! A target that leaves the allowlist while a session runs: the next tunnel is refused, `connect` ends with that, and the anchor is
//! told nothing.

use std::path::PathBuf;

use rustix::process::Signal;

use switchboard::tunnel::outcome::RefusalReason;

use super::{Way, by_accept, is_zombie};
use crate::openssh::login::{HOST, PATIENCE, PORT};
use crate::openssh::process::until;

#[test]
fn a_session_ends_when_its_target_leaves_the_allowlist() {
    let way = Way::http();
    let mut shell = way.shell();
    shell.type_in("pid-$$");
    let pid = |lines: &[String]| {
        lines
            .iter()
            .find_map(|line| line.strip_prefix("pid-")?.parse::<u32>().ok())
    };
    let pid = shell.stdout.wait(PATIENCE, pid).unwrap();
    let name = |first: &str| format!("name: \"{first}{HOST}:{PORT}\"");
    way.proxy.replace(&name(""), &name("another."));
    let told = format!(": the proxy answered 403: {}", RefusalReason::NotAllowed.phrase());
    let is_told = |lines: &[String]| lines.iter().any(|line| line.ends_with(&told)).then_some(());
    let said = shell.stderr.wait(PATIENCE, is_told);
    said.unwrap_or_else(|said| panic!("{said}\n{}", way.log()));
    assert_eq!(shell.process.wait(PATIENCE).code(), Some(255), "{}", way.log());
    // One tunnel, and one attempt behind it.
    let lines = by_accept(&way.proxy.access_lines(2));
    assert_eq!(lines.len(), 2, "{}", way.log());
    assert_eq!(
        (&lines[0]["reason"], &lines[1]["status"]),
        (&"target_removed".into(), &403.into())
    );
    // The user's shell lives until the anchor ends.
    let is_gone = || !PathBuf::from(format!("/proc/{pid}/stat")).exists() || is_zombie(pid);
    assert!(!is_gone(), "{}", way.log());
    way.anchor.signal(Signal::TERM);
    until(PATIENCE, "the shell ends with the anchor", || is_gone().then_some(()));
}
