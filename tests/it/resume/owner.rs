//! Which process has a socket.

use std::fs;
use std::net::SocketAddr;

/// The id of the process whose end of a connection over IPv4 has that address (proc_pid_net(5), proc_pid_fd(5)).
pub(crate) fn owner_of(address: SocketAddr) -> Option<i32> {
    let SocketAddr::V4(address) = address else {
        panic!("{address} is none of the tests' addresses")
    };
    let its = format!(
        "{:08X}:{:04X}",
        u32::from_le_bytes(address.ip().octets()),
        address.port()
    );
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let inode = table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        (columns.get(1) == Some(&&*its))
            .then(|| columns.get(9).copied())
            .flatten()
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
