//! The settings for anchors that dial in.

use std::num::NonZeroU32;

use serde::Deserialize;

use crate::base::values::is_label;
use crate::base::yaml::forms::{self, Schema};

/// The settings of `anchors`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The number of the proxy's replicas: an anchor connects to each. `None` for the ready endpoints of the Service.
    #[serde(deserialize_with = "forms::one::<Replicas, _>")]
    pub replicas: Option<NonZeroU32>,
    /// The name of the proxy's own Service, in the namespace of the pod.
    #[serde(deserialize_with = "forms::one::<Service, _>")]
    pub service: Box<str>,
}

/// The default is one replica.
impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: Some(NonZeroU32::MIN),
            service: "switchboard".into(),
        }
    }
}

fn replicas(text: &str) -> Result<Option<NonZeroU32>, &'static str> {
    if text == "auto" {
        return Ok(None);
    }
    let count = text.parse::<NonZeroU32>().ok();
    let count = count.filter(|count| count.get() <= MAX_REPLICAS);
    count
        .map(Some)
        .ok_or("expected the number of replicas, 1 to 16, or `auto`")
}

fn service(text: &str) -> Result<Box<str>, &'static str> {
    match is_label(text) {
        true => Ok(text.into()),
        false => Err("expected the name of a Service: lower case letters, digits and `-`"),
    }
}

forms::forms! {
    Replicas: Option<NonZeroU32> = replicas, Schema::CountOr(MAX_REPLICAS, "auto");
    Service: Box<str> = service, Schema::Pattern("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$");
}

/// The maximum number of connections of an anchor.
const MAX_REPLICAS: u32 = 16;
