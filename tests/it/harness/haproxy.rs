//! A real HAProxy on a port that the kernel chooses.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use tempfile::TempDir;

/// A HAProxy that is stopped when the test ends.
#[derive(Debug)]
pub(crate) struct HaProxy {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl HaProxy {
    /// Passes connections on to `server`, in HAProxy's words.
    pub(crate) fn relay(server: &str) -> Self {
        Self::start(&format!("listen l\n  mode tcp\n  bind fd@0\n  {server}\n"))
    }

    /// Wants a header of the PROXY protocol, and answers a GET with the two addresses that it names.
    pub(crate) fn naming_clients() -> Self {
        let answer = "http-request return status 200 content-type text/plain lf-string \"%ci:%cp %fi:%fp\"";
        Self::start(&format!(
            "frontend f\n  mode http\n  bind fd@0 accept-proxy\n  {answer}\n"
        ))
    }

    /// Its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its port is bound here and handed over as its stdin: no free one has to be guessed, or waited for.
    fn start(sections: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("haproxy.cfg");
        let defaults = "defaults\n  timeout connect 30s\n  timeout client 30s\n  timeout server 30s\n";
        fs::write(&file, format!("{defaults}{sections}")).unwrap();
        // Debian has it in sbin, which is not in every user's PATH.
        let path = format!("{}:/usr/local/sbin:/usr/sbin", std::env::var("PATH").unwrap());
        let child = Command::new("haproxy")
            .args(["-db", "-f"])
            .arg(&file)
            .env("PATH", path)
            .stdin(OwnedFd::from(listener))
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            _directory: directory,
        }
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
