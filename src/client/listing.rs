//! The names that the user may reach, as the proxy lists them.

use anyhow::anyhow;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::configuration::is_among;
use super::connect::runtime;
use super::ssh_config::HostNames;
use super::stderr::MAX_LINE;
use crate::base::authority::Authority;
use crate::base::json::Object;
use crate::base::text::{chain, printable};
use crate::protocol::listing::{ListedTarget, Listing, NO_USERS, NameFilter};
use crate::uplink::attempt;
use crate::uplink::credential_cache::CachedLogin;
use crate::uplink::dial::dialer::ProxyDialer;
use crate::uplink::dial::head::Wanted;
use crate::uplink::error::{ClientError, Refusal};
use crate::uplink::{self, ProxyUrl};

/// The targets that the user may reach, with valid names.
#[derive(Debug)]
pub struct ReachableNames(Listing);

impl ReachableNames {
    /// Returns why some may be missing; `None` if none are.
    pub fn incomplete(&self) -> Option<&str> {
        self.0.incomplete.as_deref()
    }

    /// Returns a line for each target: that of its names which matches the patterns, or any, and its state.
    pub fn table(&self, patterns: &[String]) -> String {
        let rows = self.0.targets.iter().map(|target| {
            let name = matching_name(target, patterns)
                .or(target.names.first())
                .map_or("", String::as_str);
            let name = match target.port {
                22 => name.to_owned(),
                port => format!("{name}:{port}"),
            };
            (name, &*target.state)
        });
        let rows: Vec<_> = rows.collect();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
        let line = |(name, state): &(String, &str)| format!("{name:width$}  {state}\n");
        rows.iter().map(line).collect()
    }

    /// Returns the names that match the patterns, for ssh, and the number of targets without one.
    pub fn hosts(&self, patterns: &[String]) -> (HostNames, usize) {
        let (mut hosts, mut unmatched) = (HostNames::default(), 0);
        for target in &self.0.targets {
            match matching_name(target, patterns) {
                Some(name) => hosts.add(name, target.port),
                None => unmatched += 1,
            }
        }
        (hosts, unmatched)
    }
}

/// Returns the first name that matches the patterns.
fn matching_name<'a>(target: &'a ListedTarget, patterns: &[String]) -> Option<&'a String> {
    target.names.iter().find(|name| is_among(name, patterns))
}

/// Asks the proxy for the names that contain a text. Invalid names are left out.
///
/// # Errors
/// No name can contain the text, or the proxy does not list names; as a sentence.
pub fn fetch(options: &uplink::Options, text: &str) -> anyhow::Result<ReachableNames> {
    let filter = NameFilter::parse(text).ok_or_else(|| anyhow!("no name contains {text:?}"))?;
    let runtime = runtime().map_err(|error| anyhow!(chain(&error)))?;
    let asked = runtime.block_on(Box::pin(ask(options, &filter)));
    runtime.shutdown_background();
    let mut listing = asked.map_err(|error| anyhow!("{}{}", chain(&error), likely_reason(&error)))?;
    for target in &mut listing.targets {
        let port = target.port;
        target.names.retain(|name| host(name, port).is_some());
        target.state = printable(&target.state, MAX_LINE);
    }
    listing.incomplete = listing.incomplete.map(|reason| printable(&reason, MAX_LINE));
    listing.targets.retain(|target| !target.names.is_empty());
    Ok(ReachableNames(listing))
}

async fn ask(options: &uplink::Options, filter: &NameFilter) -> Result<Listing, ClientError> {
    let wanted = Wanted::Listing {
        filter,
        host: options.proxy.authority(),
    };
    let (mut login, mut dialer) = <(CachedLogin, ProxyDialer)>::default();
    let opened = attempt::open(options, &wanted, &mut login, &mut dialer).await?;
    let mut text = opened.agreement.early;
    let mut rest = opened.stream.take(MAX_BYTES);
    // A listing that was cut is no JSON.
    timeout(options.timeout, rest.read_to_end(&mut text)).await.ok();
    let listing = serde_json::from_slice(&text).map(|Object(listing)| listing);
    listing.map_err(|_| {
        ClientError::Never(anyhow!(
            "the answer is no list of names: is {} the proxy?",
            options.proxy
        ))
    })
}

/// Returns the host of a name, if it is one.
fn host(name: &str, port: u16) -> Option<Authority> {
    let text = if name.contains(':') {
        format!("[{name}]:{port}")
    } else {
        format!("{name}:{port}")
    };
    // ssh would take one that begins with `-` for an option.
    let is_host = |host: &Authority| host.host() == name && !name.starts_with('-');
    text.parse().ok().filter(is_host)
}

/// Returns the likely reason of a refusal.
fn likely_reason(error: &ClientError) -> &'static str {
    let is_off = |refusal: &Refusal| refusal.status == 405 && !refusal.reason.contains(NO_USERS);
    if matches!(error, ClientError::Refused(refusal) if is_off(refusal)) {
        " (`allowlist.listing` of the proxy lets nobody list names)"
    } else {
        ""
    }
}

/// Returns the title of the file with the names of a proxy, or with those that contain a text.
pub fn title(proxy: &ProxyUrl, text: &str) -> Vec<String> {
    let of_text = if text.is_empty() { "" } else { "_" };
    let title = format!("names_of_{}_{}{of_text}{text}", proxy.host(), proxy.port());
    vec![title.to_ascii_lowercase()]
}

/// The most bytes of a listing: five names of 255 bytes for each target.
const MAX_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_has_a_file_of_its_own() {
        let proxy: ProxyUrl = "https://p.example.com".parse().unwrap();
        let titles = ["", "_", "team", "team_", "TEAM"].map(|text| title(&proxy, text).concat());
        assert_eq!(titles[0], "names_of_p.example.com_443");
        assert_eq!(titles[4], titles[2]);
        let different: std::collections::BTreeSet<_> = titles.iter().collect();
        assert_eq!(different.len(), 4, "{titles:?}");
    }
}
