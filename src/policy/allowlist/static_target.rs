//! A static target: one of the configuration or of a flag, and not of a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

use super::target::{ClientNames, DialsIn, UserLists};
use crate::base::authority::Authority;
use crate::base::values::{self, unless};
use crate::base::yaml::forms::{self, Schema};
use crate::tunnel::host_key_files::HostKeyFiles;
use crate::tunnel::limits::TunnelOverrides;
use crate::tunnel::proxy_header;

/// A target of the configuration or of a flag.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename = "name", deny_unknown_fields)]
pub struct StaticTarget {
    /// The authority that clients ask for.
    #[serde(deserialize_with = "forms::one::<Name, _>")]
    pub name: Authority,
    /// Its addresses; at least one, unless it dials in.
    #[serde(default, deserialize_with = "forms::list::<Address, _, _>")]
    pub addresses: Vec<SocketAddr>,
    /// The users whose anchors may serve it, if it dials in.
    pub dials_in: Option<AnchorUsers>,
    /// The limits that it sets itself.
    #[serde(default)]
    pub limits: TunnelOverrides,
    /// True if both sides of its tunnels must begin with an SSH identification; `None` leaves the default.
    pub ssh_only: Option<bool>,
    /// The version of the PROXY header that a tunnel to it begins with, if any.
    #[serde(
        default,
        rename = "send_proxy_protocol",
        deserialize_with = "forms::one::<SentHeader, _>"
    )]
    pub send_proxy_header: Option<proxy_header::Version>,
    /// The names of client certificates, one of which a client must have; `None` allows every client.
    #[serde(default, deserialize_with = "forms::some_list::<ClientName, _, _>")]
    pub allowed_clients: Option<ClientNames>,
    /// The users that may reach it. Without this and `allowed_groups` access control refuses everyone.
    #[serde(default, deserialize_with = "forms::some_list::<UserName, _, _>")]
    pub allowed_users: Option<Box<[Box<str>]>>,
    /// The groups that may reach it.
    #[serde(default, deserialize_with = "forms::some_list::<UserName, _, _>")]
    pub allowed_groups: Option<Box<[Box<str>]>>,
    /// The files with its host keys, which clients are sent.
    #[serde(default, deserialize_with = "forms::some_list::<KeyFile, _, _>")]
    pub host_keys: Option<HostKeyFiles>,
}

/// The users that may serve a static target as its anchors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnchorUsers {
    /// Names of users.
    #[serde(deserialize_with = "forms::some_list::<AnchorUser, _, _>")]
    pub users: Option<Box<[Box<str>]>>,
    /// Names of groups.
    #[serde(deserialize_with = "forms::some_list::<AnchorUser, _, _>")]
    pub groups: Option<Box<[Box<str>]>>,
}

impl From<AnchorUsers> for DialsIn {
    fn from(AnchorUsers { users, groups }: AnchorUsers) -> Self {
        let lists = UserLists {
            users: users.unwrap_or_default(),
            groups: groups.unwrap_or_default(),
        };
        Self {
            anchors: Some(Arc::new(lists)),
        }
    }
}

impl StaticTarget {
    /// Returns the users and groups that may reach it; `None` if it names none, which refuses everyone.
    pub fn user_lists(&self) -> Option<UserLists> {
        let lists = (self.allowed_users.clone(), self.allowed_groups.clone());
        (lists != (None, None)).then(|| UserLists {
            users: lists.0.unwrap_or_default(),
            groups: lists.1.unwrap_or_default(),
        })
    }
}

forms::forms! {
    Name: Authority = name, Schema::Pattern(":[0-9]{1,5}$");
    Address: SocketAddr = address, forms::ADDRESS, at least one: "at least one address is needed";
    SentHeader: Option<proxy_header::Version> = |text| unless("off", text, str::parse), Schema::Words(&["off", "v1", "v2"]);
    ClientName: Box<str> = values::client_name, Schema::Text,
        at least one: "at least one name is needed; without the key every client is allowed";
    UserName: Box<str> = values::user_name, Schema::Text,
        at least one: "at least one name is needed";
    KeyFile: PathBuf = |text: &str| Ok::<_, String>(PathBuf::from(text)), Schema::Text,
        at least one: "at least one file is needed";
    AnchorUser: Box<str> = values::user_name, Schema::Text, at least one: "at least one name is needed";
}

fn name(text: &str) -> Result<Authority, String> {
    text.parse()
        .map_err(|error| format!("expected the host:port that clients ask for: {error}"))
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => Err("port 0 cannot be dialled"),
        Ok(address) => Ok(address),
        Err(_) => Err("names are not resolved: give IP:port"),
    }
}

/// Parses `NAME:PORT=ADDR[,ADDR…]`, such as `devbox.local:22=127.0.0.1:2222`.
impl FromStr for StaticTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=');
        let parts = parts.filter(|(_, addresses)| !addresses.split(',').any(str::is_empty));
        let (name, addresses) = parts.ok_or("expected NAME:PORT=IP:PORT, and further addresses after commas")?;
        Ok(Self {
            name: name.parse().map_err(|error| format!("bad name: {error}"))?,
            addresses: addresses.split(',').map(address).collect::<Result<_, _>>()?,
            dials_in: None,
            limits: TunnelOverrides::default(),
            ssh_only: None,
            send_proxy_header: None,
            allowed_clients: None,
            allowed_users: None,
            allowed_groups: None,
            host_keys: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_read_from_a_flag() {
        let target: StaticTarget = "Devbox.Local:22=127.0.0.1:2222,[::1]:22".parse().unwrap();
        assert_eq!(target.name, "devbox.local:22".parse().unwrap());
        let addresses: Vec<String> = target.addresses.iter().map(SocketAddr::to_string).collect();
        assert_eq!(addresses, ["127.0.0.1:2222", "[::1]:22"]);
        assert_eq!(target.limits, TunnelOverrides::default());
    }

    #[test]
    fn each_fault_of_a_flag_has_its_error() {
        let [form, name] = ["expected NAME:PORT=IP:PORT", "bad name: "];
        let [resolved, zero] = ["names are not resolved", "port 0 "];
        for (text, error) in [
            ("", form),
            ("a:22", form),
            ("a:22=", form),
            ("a:22=127.0.0.1:1,", form),
            ("a=127.0.0.1:1", name),
            ("=127.0.0.1:1", name),
            ("a:22=b:22", resolved),
            ("a:22=127.0.0.1", resolved),
            ("a:22=127.0.0.1:1, 127.0.0.1:2", resolved),
            ("a:22=127.0.0.1:0", zero),
        ] {
            let found = text.parse::<StaticTarget>().unwrap_err();
            assert!(found.starts_with(error), "{text:?}: {found}");
        }
    }
}
