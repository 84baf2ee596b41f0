//! The kernel's figures of the proxy: its descriptors, its memory, and the connections of its network.

use std::collections::{HashMap, HashSet};
use std::fs;

/// The descriptors of a process, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Connections that clients have to the public port.
    pub(crate) downstream: usize,
    /// Connections to pods.
    pub(crate) upstream: usize,
    /// Connections to the API server, and of the admin port.
    pub(crate) own: usize,
    pub(crate) listeners: usize,
    /// Sockets of none of these: such as one that was forgotten after its connection had ended.
    pub(crate) strange: usize,
    pub(crate) pipes: usize,
    /// All others.
    pub(crate) others: usize,
}

impl Descriptors {
    pub(crate) fn of(process: u32) -> Self {
        let sockets = sockets(process);
        let table = |name| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap();
        let (unix, netlink) = (table("unix"), table("netlink"));
        let local: HashSet<_> = unix.lines().filter_map(|line| line.split_whitespace().nth(6)).collect();
        let asking: HashSet<_> = netlink
            .lines()
            .filter_map(|line| line.split_whitespace().nth(9))
            .collect();
        let mut descriptors = Self::default();
        for entry in fs::read_dir(format!("/proc/{process}/fd")).unwrap() {
            // It may have been closed since.
            let Ok(leads_to) = fs::read_link(entry.unwrap().path()) else {
                continue;
            };
            let leads_to = leads_to.to_string_lossy().into_owned();
            let inode = leads_to
                .strip_prefix("socket:[")
                .and_then(|rest| rest.strip_suffix(']'));
            let kind = match inode {
                None if leads_to.starts_with("pipe:") => &mut descriptors.pipes,
                None => &mut descriptors.others,
                // By which signals come.
                Some(inode) if local.contains(inode) => &mut descriptors.others,
                // By which the kernel is asked about connections: there is one from the first question on.
                Some(inode) if asking.contains(inode) => continue,
                Some(inode) => match sockets.get(inode) {
                    Some(Socket { state: LISTEN, .. }) => &mut descriptors.listeners,
                    Some(Socket { local: PUBLIC, .. }) => &mut descriptors.downstream,
                    Some(Socket { remote: PODS, .. }) => &mut descriptors.upstream,
                    Some(Socket { local: ADMIN, .. } | Socket { remote: API, .. }) => &mut descriptors.own,
                    Some(_) | None => &mut descriptors.strange,
                },
            };
            *kind += 1;
        }
        descriptors
    }
}

/// Its resident memory, in KiB.
pub(crate) fn resident(process: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The processor time that it has used, in seconds.
pub(crate) fn processor_seconds(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanos = tasks.filter_map(|task| {
        let times = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<f64>().ok()
    });
    nanos.sum::<f64>() / 1e9
}

#[derive(Clone, Copy, Debug)]
struct Socket {
    local: u16,
    remote: u16,
    state: u8,
}

/// The TCP sockets of the network that the process is in, by their inodes.
fn sockets(process: u32) -> HashMap<String, Socket> {
    let mut sockets = HashMap::new();
    for table in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{process}/net/{table}")).unwrap();
        for line in text.lines().skip(1) {
            let columns: Vec<_> = line.split_whitespace().collect();
            let port = |column: usize| u16::from_str_radix(columns[column].rsplit(':').next().unwrap(), 16).unwrap();
            let socket = Socket {
                local: port(1),
                remote: port(2),
                state: u8::from_str_radix(columns[3], 16).unwrap(),
            };
            sockets.insert(columns[9].to_owned(), socket);
        }
    }
    sockets
}

/// include/net/tcp_states.h.
const LISTEN: u8 = 10;
const PUBLIC: u16 = 8080;
const ADMIN: u16 = 9090;
const PODS: u16 = 22;
const API: u16 = 6443;
