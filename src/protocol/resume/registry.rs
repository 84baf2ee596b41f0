//! The sessions of an anchor. Only the client that proves a session gets it.

use std::collections::HashMap;

use super::keys::{CryptoError, Keys, Mac, ResumeClaim, SessionId};
use super::reason::EndReason;

/// The sessions of an anchor, by their ids. `S` is the anchor's data of a session.
#[derive(Debug)]
pub struct Registry<S> {
    sessions: HashMap<SessionId, (Keys, S)>,
    decoy: Keys,
    max: usize,
}

impl<S> Registry<S> {
    /// Creates a registry for at most `max` sessions.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn new(max: usize) -> Result<Self, CryptoError> {
        Ok(Self {
            sessions: HashMap::new(),
            decoy: Keys::dummy()?,
            max,
        })
    }

    /// Adds a session under a new random id.
    ///
    /// # Errors
    /// [`EndReason::TooManySessions`] at the maximum, or without random bytes. The session is not kept.
    pub fn open(&mut self, keys: Keys, session: S) -> Result<SessionId, EndReason> {
        if self.is_full() {
            return Err(EndReason::TooManySessions);
        }
        let id = SessionId::random().map_err(|_| EndReason::TooManySessions)?;
        // 128 random bits: neither happens, and if it did, no session would be lost.
        if id == SessionId::NONE || self.sessions.contains_key(&id) {
            return Err(EndReason::TooManySessions);
        }
        self.sessions.insert(id, (keys, session));
        Ok(id)
    }

    /// Returns the session that a client claims and has proved, and the session's keys.
    ///
    /// # Errors
    /// [`EndReason::NoSuchSession`], also for another client's session: the error does not reveal which ids exist.
    pub fn prove(&mut self, claim: &ResumeClaim, proof: &Mac) -> Result<(&Keys, &mut S), EndReason> {
        let entry = self.sessions.get_mut(&claim.id);
        let keys = entry.as_ref().map_or(&self.decoy, |(keys, _)| keys);
        // Also checked without an entry, so that both cases take the same time.
        let is_proved = keys.is_client(claim, proof);
        match entry {
            Some((keys, session)) if is_proved => Ok((keys, session)),
            Some(_) | None => Err(EndReason::NoSuchSession),
        }
    }

    /// Iterates over all sessions.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &S)> {
        self.sessions.iter().map(|(id, (_, session))| (*id, session))
    }

    /// Removes a session: it cannot be resumed any more.
    pub fn remove(&mut self, id: SessionId) -> Option<S> {
        self.sessions.remove(&id).map(|(_, session)| session)
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether the maximum is reached.
    pub fn is_full(&self) -> bool {
        self.sessions.len() >= self.max
    }

    /// Returns whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}
