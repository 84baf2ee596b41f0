//! The rule that tells whether a tunnel is used or only kept alive. `proxy/open_tunnels/open_tunnel.rs` keeps its
//! state, `proxy/admin/targets.rs` and `kubernetes/writes/activity_reports.rs` report its results.
//!
//! The proxy sees the sizes and the times of encrypted messages. Keepalives of SSH, heartbeats of VS Code and the clock
//! of a status line repeat: they move as much in each minute as in the minutes before. A person and a copy do not
//! repeat. The rule, for each minute of a tunnel:
//!
//! 1. Without a byte it is idle.
//! 2. With more than 300 messages or 512 KiB in a direction it is active: programs work at that pace, and no heartbeat
//!    does.
//! 3. If it is like at least half of the last 10 minutes, and at least 3, it is idle. Two minutes are alike if each
//!    direction's bytes differ by at most 512 or a quarter, the download's messages by at most 1 or a quarter, and the
//!    upload's, which include the keys, by at most 1 or an eighth.
//! 4. Otherwise it is active. That includes ambiguous ones, such as the output of a program at irregular times.
//!
//! `tests/activity/` has recorded minutes of real programs. The tests below check how many of these the rule classifies
//! correctly.

/// The traffic of a tunnel since it began: messages and bytes of the upload and of the download. A message is what one
/// write has passed on, which for a keystroke is one record of SSH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, by direction.
    pub messages: [u32; 2],
    /// Bytes, by direction.
    pub bytes: [u64; 2],
}

impl Traffic {
    /// Returns the traffic between `before` and this.
    fn since(self, before: Self) -> MinuteTraffic {
        let both = |direction: fn([u64; 2]) -> u64, own: fn([u32; 2]) -> u32| Direction {
            // The counter of messages wraps at 2^32.
            messages: saturated(own(self.messages).wrapping_sub(own(before.messages)).into()),
            units: saturated((direction(self.bytes) - direction(before.bytes)).div_ceil(UNIT)),
        };
        MinuteTraffic([
            both(|[up, _]| up, |[up, _]| up),
            both(|[_, down]| down, |[_, down]| down),
        ])
    }
}

/// The traffic of the last minutes of a tunnel. 112 bytes.
#[derive(Clone, Debug, Default)]
pub struct History {
    minutes: [MinuteTraffic; REMEMBERED as usize],
    known: u8,
    next: u8,
    /// The end of the last minute.
    end: Traffic,
}

impl History {
    /// Ends a minute, with `traffic` as the traffic so far. Returns whether the minute was active.
    pub fn end_minute(&mut self, traffic: Traffic) -> bool {
        let minute = traffic.since(self.end);
        let is_active = self.is_active(minute, MinuteTraffic::is_like);
        if let Some(oldest) = self.minutes.get_mut(usize::from(self.next)) {
            *oldest = minute;
        }
        self.next = (self.next + 1) % REMEMBERED;
        self.known = (self.known + 1).min(REMEMBERED);
        self.end = traffic;
        is_active
    }

    /// Returns whether the current minute is active already: further traffic can only confirm that.
    pub fn is_already_active(&self, traffic: Traffic) -> bool {
        self.is_active(traffic.since(self.end), MinuteTraffic::could_still_match)
    }

    /// Returns whether the current minute has a byte.
    pub fn has_moved(&self, traffic: Traffic) -> bool {
        traffic != self.end
    }

    fn is_active(&self, minute: MinuteTraffic, is_like: impl Fn(MinuteTraffic, MinuteTraffic) -> bool) -> bool {
        let known = usize::from(self.known);
        let before = self.minutes.iter().take(known);
        let alike = before.filter(|other| is_like(minute, **other)).count();
        !minute.is_silent() && (minute.is_bulk() || alike < ALIKE.max(known / 2))
    }
}

/// The traffic of a minute, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MinuteTraffic([Direction; 2]);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Direction {
    messages: u16,
    /// Bytes in units of 16, rounded up.
    units: u16,
}

impl MinuteTraffic {
    fn is_silent(self) -> bool {
        self == Self::default()
    }

    fn is_bulk(self) -> bool {
        let Self(directions) = self;
        directions
            .iter()
            .any(|way| way.messages > BULK_MESSAGES || way.units > BULK_UNITS)
    }

    fn is_like(self, other: Self) -> bool {
        self.could_still_match(other) && other.could_still_match(self)
    }

    /// Returns whether this minute, which may still grow, has not moved too much to be like the other.
    fn could_still_match(self, Self(other): Self) -> bool {
        let Self(own) = self;
        own.into_iter()
            .zip(other)
            .zip(MESSAGES_PART)
            .all(|((own, other), part)| {
                own.messages <= other.messages.saturating_add((other.messages / part).max(1))
                    && own.units <= other.units.saturating_add((other.units / 4).max(SMALL_UNITS))
            })
    }
}

fn saturated(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

const REMEMBERED: u8 = 10;
/// The fewest earlier minutes that an idle minute is like. It must be like half of them, too.
const ALIKE: usize = 3;
/// In bytes.
const UNIT: u64 = 16;
const BULK_MESSAGES: u16 = 300;
/// 512 KiB.
const BULK_UNITS: u16 = 32 * 1024;
/// Messages of like minutes differ by at most an eighth in the upload, and a quarter in the download.
const MESSAGES_PART: [u16; 2] = [8, 4];
/// 512 bytes.
const SMALL_UNITS: u16 = 32;

#[cfg(test)]
mod tests;
