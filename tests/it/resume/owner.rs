//! Which process has a socket.

use std::fs;
use std::net::SocketAddr;

use crate::harness::peer::as_in_the_table;

/// The id of the process that has the end of a connection over IPv4 from that address to that one (proc_pid_net(5),
/// proc_pid_fd(5)). Connections to different servers may have one local port.
pub(crate) fn owner_of(from: SocketAddr, to: SocketAddr) -> Option<i32> {
    let [from, to] = [from, to].map(as_in_the_table);
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let inode = table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_it = columns.get(1) == Some(&&*from) && columns.get(2) == Some(&&*to);
        is_it.then(|| columns.get(9).copied()).flatten()
    })?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let owns = |id: &i32| {
        let descriptors = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten();
        let mut links = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.any(|link| link.to_str() == Some(&socket))
    };
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(owns)
}
