//! The parts that objects of several kinds have, as the API server sends them.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::base::values::is_object_name;

/// An item of a list that may be invalid, so that the other items are decoded all the same; `None` if it is.
pub(super) struct LenientItem<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for LenientItem<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An untagged enum would copy all of an item first, such as the whole of a container.
        let json = <&RawValue>::deserialize(deserializer)?;
        Ok(Self(serde_json::from_str(json.get()).ok()))
    }
}

/// Returns the valid items.
pub(super) fn valid<T>(items: Option<Vec<LenientItem<T>>>) -> impl Iterator<Item = T> {
    items
        .unwrap_or_default()
        .into_iter()
        .filter_map(|LenientItem(item)| item)
}

/// The metadata of any object.
#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawMetadata {
    /// Its labels.
    pub(super) labels: Option<BTreeMap<String, Option<String>>>,
    /// Its annotations.
    pub(super) annotations: Option<BTreeMap<String, Option<String>>>,
    /// Given while it terminates.
    pub(super) deletion_timestamp: Option<IgnoredAny>,
}

/// A port of a Service, of an EndpointSlice or of a container.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RawPort {
    /// Its name.
    pub(super) name: Option<Box<str>>,
    /// Its number.
    #[serde(alias = "containerPort")]
    pub(super) port: Option<i64>,
    /// Its protocol; TCP if absent.
    pub(super) protocol: Option<String>,
    /// Its application protocol.
    pub(super) app_protocol: Option<String>,
}

impl RawPort {
    /// Returns the number of a TCP port; `None` for another protocol, or an invalid number.
    pub(super) fn tcp_number(&self) -> Option<u16> {
        let is_tcp = matches!(self.protocol.as_deref(), None | Some("" | "TCP"));
        let number = self.port.filter(|_| is_tcp)?;
        u16::try_from(number).ok().filter(|number| *number > 0)
    }
}

/// Returns the object that the label `owner` names.
pub(super) fn owner(labels: &mut BTreeMap<String, Option<String>>, prefix: &str) -> Option<Box<str>> {
    let name = labels.remove(&format!("{prefix}owner")).flatten();
    name.filter(|name| is_object_name(name)).map(Into::into)
}

/// The port of sshd.
pub(super) const SSH: u16 = 22;
/// The longest DNS subdomain (RFC 1123), in bytes.
pub(super) const MAX_NODE: usize = 253;
