//! The settings about anchors that dial in.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::base::yaml::forms::{self, Schema};

/// The settings of `anchors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The number of replicas, to each of which an anchor connects.
    #[serde(deserialize_with = "forms::one::<Replicas, _>")]
    pub replicas: NonZeroU32,
}

/// One replica.
impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: NonZeroU32::MIN,
        }
    }
}

fn replicas(text: &str) -> Result<NonZeroU32, &'static str> {
    let count = text.parse::<NonZeroU32>().ok();
    let count = count.filter(|count| count.get() <= MAX_REPLICAS);
    count.ok_or("expected the number of replicas, 1 to 16")
}

forms::forms! {
    Replicas: NonZeroU32 = replicas, Schema::Count(MAX_REPLICAS);
}

/// The connections that one anchor keeps.
const MAX_REPLICAS: u32 = 16;
