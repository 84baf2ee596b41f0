//! The settings about anchors that dial in.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::Deserialize;

use crate::base::values::is_label;
use crate::base::yaml::forms::{self, Schema};

/// The settings of `anchors`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The replicas that an anchor connects to, each by a connection of its own.
    #[serde(deserialize_with = "forms::one::<ReplicasForm, _>")]
    pub replicas: Replicas,
}

/// How many replicas there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// As many as this.
    Count(NonZeroU32),
    /// The ready endpoints of this Service.
    Service {
        /// Its namespace.
        namespace: Box<str>,
        /// Its name.
        name: Box<str>,
    },
}

/// One.
impl Default for Replicas {
    fn default() -> Self {
        Self::Count(NonZeroU32::MIN)
    }
}

impl FromStr for Replicas {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let fault = "expected a number of replicas, or the Service whose ready endpoints they are, as NAMESPACE/NAME";
        if let Some((namespace, name)) = text.split_once('/') {
            let are_names = [namespace, name].iter().all(|name| is_label(name));
            return are_names
                .then(|| Self::Service {
                    namespace: namespace.into(),
                    name: name.into(),
                })
                .ok_or(fault);
        }
        let count = text.parse::<NonZeroU32>().map_err(|_| fault)?;
        match count.get() {
            ..=MAX_REPLICAS => Ok(Self::Count(count)),
            _ => Err("an anchor connects to 16 replicas at most"),
        }
    }
}

forms::forms! {
    ReplicasForm: Replicas = Replicas::from_str, Schema::Text;
}

/// The connections that one anchor keeps.
const MAX_REPLICAS: u32 = 16;
