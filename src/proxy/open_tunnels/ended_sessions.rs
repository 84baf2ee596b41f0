//! The sessions that operators have ended: this process refuses them for some time.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::protocol::resume::keys::SessionId;

type OwnedSession = (SessionId, Box<str>);

/// The sessions, each with the operator's reason and the end of its refusal. A session is refused only to its user: a
/// hello proves nothing to the proxy, so closing a tunnel that claims another user's session must not end that session.
#[derive(Debug, Default)]
pub struct EndedSessions(Mutex<HashMap<OwnedSession, (Box<str>, Instant)>>);

impl EndedSessions {
    /// Refuses a session for `time`, unless 10,000 are refused already. `user` is its user; empty if there is none.
    pub fn refuse(&self, session: SessionId, user: &str, reason: &str, time: Duration) {
        let (mut sessions, now) = (self.0.lock(), Instant::now());
        sessions.retain(|_, (_, until)| *until > now);
        if sessions.len() < MAX_SESSIONS {
            sessions.insert((session, user.into()), (reason.into(), now + time));
        }
    }

    /// Returns why a session of that user is refused; `None` if it is not.
    pub(crate) fn reason(&self, session: SessionId, user: &str) -> Option<Box<str>> {
        let sessions = self.0.lock();
        let (reason, until) = sessions.get(&(session, user.into()))?;
        (*until > Instant::now()).then(|| reason.clone())
    }
}

/// A session has up to 2 KB of a reason. One beyond the maximum ends as well if its client heeds the end notice.
const MAX_SESSIONS: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_refused_for_its_time_and_no_more_than_so_many_are_kept() {
        let (ended, [first, second]) = (EndedSessions::default(), [1, 2].map(|byte| SessionId([byte; 16])));
        ended.refuse(first, "alice", "abuse", Duration::from_mins(10));
        assert_eq!(ended.reason(first, "alice").as_deref(), Some("abuse"));
        assert_eq!(ended.reason(first, "mallory"), None);
        assert_eq!(ended.reason(second, "alice"), None);
        tokio::time::advance(Duration::from_mins(10)).await;
        assert_eq!(ended.reason(first, "alice"), None);
        for number in 0..=MAX_SESSIONS as u128 {
            ended.refuse(SessionId(number.to_be_bytes()), "", "", Duration::from_secs(1));
        }
        assert_eq!(ended.0.lock().len(), MAX_SESSIONS);
    }
}
