//! The programs that people put into ProxyCommand, as one table.

use std::net::SocketAddr;
use std::path::Path;

use super::process::program;
use crate::harness::process::named_by;

/// One way through the proxy.
pub(crate) struct Client {
    /// The program that ssh starts.
    pub(crate) program: &'static str,
    /// The Debian package that has it; none for our own.
    pub(crate) package: &'static str,
    /// The ProxyCommand for a proxy at `proxy.example.com:8080`, as in the README.
    pub(crate) proxy_command: &'static str,
    /// The client's message for a refusal: `@STATUS` is its number, `@PHRASE` its reason, and `@SENTENCE` the reason with the
    /// name in the place of "the target".
    pub(crate) refusal: &'static str,
    /// The versions of TLS and HTTP in the proxy's access line.
    pub(crate) spoken: [&'static str; 2],
}

pub(crate) const SWITCHBOARD: Client = Client {
    program: "switchboard",
    package: "",
    proxy_command: "switchboard connect --proxy http://proxy.example.com:8080 %h:%p",
    // ssh's own line, and the only one: it has been told in band.
    refusal: ": @SENTENCE",
    spoken: ["", "1"],
};

/// By TLS. ssh runs it where the proxy's certificate is.
pub(crate) const SWITCHBOARD_TLS: Client = Client {
    proxy_command: "switchboard connect --proxy https://proxy.example.com:8080 --ca ca.crt %h:%p",
    spoken: ["1.3", "1"],
    ..SWITCHBOARD
};

/// By a WebSocket over TLS, and in clear.
pub(crate) const WEBSOCKET_TLS: Client = Client {
    proxy_command: "switchboard connect --proxy wss://proxy.example.com:8080/ssh --ca ca.crt %h:%p",
    ..SWITCHBOARD_TLS
};
pub(crate) const WEBSOCKET: Client = Client {
    proxy_command: "switchboard connect --proxy ws://proxy.example.com:8080/ssh %h:%p",
    ..SWITCHBOARD
};

/// With a certificate of the user's, and the proxy's by another name than its address: it has one for each.
pub(crate) const SWITCHBOARD_CERTIFICATE: Client = Client {
    proxy_command: "switchboard connect --proxy https://proxy.example.com:8080 --ca ca.crt \
                    --server-name ssh.example.com --cert alice.crt --key alice.key %h:%p",
    ..SWITCHBOARD_TLS
};

pub(crate) const PROXYTUNNEL: Client = Client {
    program: "proxytunnel",
    package: "proxytunnel",
    proxy_command: "proxytunnel -p proxy.example.com:8080 -d %h:%p",
    refusal: "@STATUS @PHRASE",
    spoken: ["", "1"],
};

/// The certificate is of a throwaway authority, which `-z` lets pass: it is TLS that is tested, and not proxytunnel.
pub(crate) const PROXYTUNNEL_TLS: Client = Client {
    proxy_command: "proxytunnel -E -z -p proxy.example.com:8080 -d %h:%p",
    spoken: ["1.3", "1"],
    ..PROXYTUNNEL
};

pub(crate) const NC: Client = Client {
    program: "nc",
    package: "netcat-openbsd",
    proxy_command: "nc -X connect -x proxy.example.com:8080 %h %p",
    refusal: "@STATUS @PHRASE",
    spoken: ["", "1"],
};

pub(crate) const NCAT: Client = Client {
    program: "ncat",
    package: "ncat",
    proxy_command: "ncat --proxy proxy.example.com:8080 --proxy-type http %h %p",
    refusal: "@STATUS",
    spoken: ["", "1"],
};

pub(crate) const CORKSCREW: Client = Client {
    program: "corkscrew",
    package: "corkscrew",
    proxy_command: "corkscrew proxy.example.com 8080 %h %p",
    refusal: "@PHRASE",
    spoken: ["", "1"],
};

/// It says that it failed, and not why.
pub(crate) const CONNECT_PROXY: Client = Client {
    program: "connect-proxy",
    package: "connect-proxy",
    proxy_command: "connect-proxy -H proxy.example.com:8080 %h %p",
    // The line behind it is ssh's: it finds its ProxyCommand gone by a read or by a write.
    refusal: "FATAL: failed to begin relaying via HTTP.",
    spoken: ["", "1"],
};

pub(crate) const SOCAT: Client = Client {
    program: "socat",
    package: "socat",
    proxy_command: "socat - PROXY:proxy.example.com:%h:%p,proxyport=8080",
    refusal: "@PHRASE",
    spoken: ["", "1"],
};

/// An HTTP/2 that is not ours, with prior knowledge.
pub(crate) const HTTP2: Client = Client {
    program: "stdio.py",
    package: PYTHON,
    proxy_command: "stdio.py proxy.example.com 8080 %h:%p",
    refusal: "@PHRASE",
    spoken: ["", "2"],
};

/// The same by TLS, with any certificate.
pub(crate) const HTTP2_TLS: Client = Client {
    proxy_command: "stdio.py proxy.example.com 8080 %h:%p tls",
    spoken: ["1.3", "2"],
    ..HTTP2
};

/// Instead of a package: a script of ours, for the Python that `tests/install-clients` makes.
const PYTHON: &str = "PyPI";

impl Client {
    /// The client's message for that refusal.
    pub(crate) fn shows(&self, status: u16, phrase: &str, target: &str) -> String {
        self.refusal
            .replace("@STATUS", &status.to_string())
            .replace("@PHRASE", phrase)
            .replace("@SENTENCE", &phrase.replace("the target", target))
    }

    /// The ProxyCommand for a proxy at this address, with the program's full path.
    pub(crate) fn command(&self, proxy: SocketAddr) -> String {
        let (name, arguments) = self.proxy_command.split_once(' ').unwrap();
        let program = match self.package {
            "" => ours(),
            PYTHON => script(name),
            package => program(name, package).display().to_string(),
        };
        let arguments = arguments
            .replace("proxy.example.com", &proxy.ip().to_string())
            .replace("8080", &proxy.port().to_string());
        format!("{program} {arguments}")
    }
}

/// Our client: the program of this build, or the one that `SWITCHBOARD_TEST_CLIENT` names, which may be of another build
/// or of another system. The proxy is always of this build.
pub(crate) fn ours() -> String {
    named_by("SWITCHBOARD_TEST_CLIENT")
}

/// A script of tests/it/http2, and what runs it.
fn script(name: &str) -> String {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../python/bin/python");
    assert!(python.exists(), "no {}: run tests/install-clients", python.display());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/http2");
    format!("{} {}", python.display(), folder.join(name).display())
}
