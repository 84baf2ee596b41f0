//! Raises the limit of open files, and computes the caps that fit it.

use std::fs;
use std::num::NonZeroU32;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use super::TotalCaps;
use crate::net::listener::AT_ONCE;

/// The number of descriptors that the process may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FdLimit {
    /// `None` is any number.
    pub(crate) max: Option<u64>,
    /// The number of descriptors that ports beyond the first take.
    ports: u64,
}

/// The limit of open files is too low to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the limit of open files is {0}, and has to be {LEAST} at least, see RLIMIT_NOFILE (`ulimit -Hn`)")]
pub struct TooFewFds(u64);

impl FdLimit {
    /// Raises the soft limit, most often 1,024, to the hard one.
    ///
    /// # Errors
    /// The limit is still below [`LEAST`].
    pub(crate) fn raise() -> Result<Self, TooFewFds> {
        let limit = fs::read_to_string(LIMITS).ok().and_then(|page| open_files(&page));
        let limit = limit.unwrap_or_else(|| getrlimit(Resource::Nofile));
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        let max = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit.maximum,
            Err(error) => {
                warn!(%error, "cannot raise the limit of open files");
                limit.current
            }
        };
        Self::from_limit(max)
    }

    /// Returns the limit, unless it is below [`LEAST`].
    fn from_limit(max: Option<u64>) -> Result<Self, TooFewFds> {
        match max {
            Some(max) if max < LEAST => Err(TooFewFds(max)),
            max => Ok(Self { max, ports: 0 }),
        }
    }

    /// Reserves descriptors for the ports beyond the first: each needs a listener, and [`AT_ONCE`] connections that it
    /// accepts at once.
    pub(crate) fn reserving_runtimes(self, ports: usize) -> Self {
        let taken = ports.saturating_sub(1).saturating_mul(1 + AT_ONCE);
        Self {
            ports: u64::try_from(taken).unwrap_or(u64::MAX),
            ..self
        }
    }

    /// Returns the number of pipes that fit, at most `wanted`: they take at most an eighth of the descriptors.
    pub(crate) fn pipes(self, wanted: usize) -> usize {
        let fit = self.max.and_then(|max| usize::try_from(max / 16).ok());
        fit.map_or(wanted, |fit| wanted.min(fit))
    }

    /// Returns the most connections of the admin port: [`MAX_ADMIN`], or an eighth of the descriptors if that is fewer.
    pub(crate) fn admin_connections(self) -> NonZeroU32 {
        at_most(NonZeroU32::new(MAX_ADMIN), self.max.map_or(u64::MAX, |max| max / 8))
    }

    /// Returns the caps lowered to what fits next to `pipes` pipes. A tunnel takes two descriptors, an unfinished
    /// connection one. A connection beyond the caps is refused with a reason; a connection beyond the descriptors
    /// cannot even be accepted.
    pub(crate) fn caps_for(self, caps: TotalCaps, pipes: usize) -> TotalCaps {
        let Some(max) = self.max else { return caps };
        let pipes = 2 * u64::try_from(pipes).unwrap_or(u64::MAX / 2);
        let reserved = OTHERS + u64::from(self.admin_connections().get()) + self.ports.min(max / 4);
        let left = max.saturating_sub(reserved + pipes);
        let unfinished = at_most(caps.unfinished, left / 4);
        let tunnels = at_most(caps.tunnels, left.saturating_sub(unfinished.get().into()) / 2);
        TotalCaps {
            tunnels: Some(tunnels),
            unfinished: Some(unfinished),
            ..caps
        }
    }
}

/// Returns the limit of open files from a page of proc_pid_limits(5). getrlimit(2) of rustix panics where prlimit64(2)
/// is refused, such as by a seccomp profile.
fn open_files(page: &str) -> Option<Rlimit> {
    let limits = page.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let mut limits = limits.split_whitespace().map(|limit| match limit {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some(Rlimit {
        current: limits.next()??,
        maximum: limits.next()??,
    })
}

fn at_most(cap: Option<NonZeroU32>, fitting: u64) -> NonZeroU32 {
    let fitting = u32::try_from(fitting).unwrap_or(u32::MAX);
    let fitting = NonZeroU32::new(fitting).unwrap_or(NonZeroU32::MIN);
    cap.map_or(fitting, |cap| cap.min(fitting))
}

const LIMITS: &str = "/proc/self/limits";
/// The fewest descriptors that a process serves with: half of them are [`OTHERS`].
const LEAST: u64 = 128;
/// The connections of the admin port where descriptors are plenty.
const MAX_ADMIN: u32 = 128;
/// The descriptors for everything else: 26 for logs, runtimes, listeners and watches, [`AT_ONCE`] connections for each
/// of two ports, and 6 for files and requests of the process.
const OTHERS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caps_fit_the_descriptors() {
        for max in [LEAST, 192, 256, 512, 1024, 4096, 65_536, 1 << 20] {
            let descriptors = FdLimit::from_limit(Some(max)).unwrap();
            let pipes = descriptors.pipes(128);
            let TotalCaps {
                tunnels, unfinished, ..
            } = descriptors.caps_for(TotalCaps::default(), pipes);
            let (tunnels, unfinished) = (u64::from(tunnels.unwrap().get()), u64::from(unfinished.unwrap().get()));
            let admin = u64::from(descriptors.admin_connections().get());
            let taken = 2 * tunnels + unfinished + 2 * pipes as u64 + admin;
            assert!(taken + 26 + 2 * 16 <= max, "{max}: {taken}");
            assert_eq!(admin, 128.min(max / 8), "{max}");
            assert!(tunnels > max / 11 || tunnels == 100_000, "{max}: {tunnels}");
            assert!(unfinished >= max / 16 || unfinished == 4096, "{max}: {unfinished}");
        }
    }

    #[test]
    fn fewer_descriptors_than_a_process_serves_with_are_refused() {
        for few in [0, 64, LEAST - 1] {
            assert_eq!(FdLimit::from_limit(Some(few)).unwrap_err(), TooFewFds(few));
        }
        let expected = "the limit of open files is 64, and has to be 128 at least, see RLIMIT_NOFILE (`ulimit -Hn`)";
        assert_eq!(TooFewFds(64).to_string(), expected);
    }

    #[test]
    fn many_ports_lower_the_caps_by_what_they_take() {
        let tunnels = |descriptors: FdLimit| descriptors.caps_for(TotalCaps::default(), 128).tunnels.unwrap().get();
        let alone = FdLimit::from_limit(Some(20_000)).unwrap();
        assert_eq!(tunnels(alone) - tunnels(alone.reserving_runtimes(21)), 170);
        // No more than a quarter, however many ports there are.
        let few = FdLimit::from_limit(Some(1024)).unwrap();
        assert_eq!(
            tunnels(few.reserving_runtimes(20)),
            tunnels(few.reserving_runtimes(10_000))
        );
    }

    #[test]
    fn the_limit_of_open_files_is_read_as_the_kernel_writes_it() {
        let page = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max processes             unlimited            unlimited            processes \n\
                    Max open files            1024                 unlimited            files     \n";
        let limit = open_files(page).unwrap();
        assert_eq!((limit.current, limit.maximum), (Some(1024), None));
        assert!(open_files("Max open files            1024\n").is_none());
        assert!(open_files("").is_none());
        let (read, asked) = (
            open_files(&fs::read_to_string(LIMITS).unwrap()),
            getrlimit(Resource::Nofile),
        );
        assert_eq!(read, Some(asked));
    }

    #[test]
    fn without_a_limit_of_descriptors_the_caps_are_not_lowered() {
        let unlimited = FdLimit::from_limit(None).unwrap();
        assert_eq!(unlimited.pipes(128), 128);
        assert_eq!(unlimited.admin_connections().get(), 128);
        assert_eq!(unlimited.caps_for(TotalCaps::default(), 128), TotalCaps::default());
        let any = TotalCaps {
            tunnels: None,
            unfinished: None,
            ..TotalCaps::default()
        };
        assert_eq!(unlimited.caps_for(any, 128), any);
    }
}
