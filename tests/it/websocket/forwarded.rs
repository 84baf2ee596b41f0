//! Load balancers in front: whom they name, and when a credential through them is in clear.

use std::fs;
use std::io::{Read as _, Write as _};

use crate::harness::authority::Authority;
use crate::harness::peer::Peer;
use crate::harness::ports::Ports as _;
use crate::harness::proxy::Proxy;
use crate::identities::LINE;
use crate::tls::client as tls;

/// A request without a credential is asked for one where it would be safe, and refused where it would be in clear.
#[test]
fn a_credential_is_asked_for_only_where_it_would_not_be_in_clear() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let users = folder.path().join("users");
    fs::write(&users, LINE).unwrap();
    let issued = authority.server("server", &["ssh.example.com"]);
    let config = tls::config(&authority, None);
    for (is_trusted, has_trusted_tls) in [(false, false), (true, false), (true, true)] {
        for cleartext in ["allow", "loopback", "refuse"] {
            let proxies = if is_trusted { "127.0.0.0/8" } else { "192.0.2.0/24" };
            let proxy = Proxy::start(&format!(
                "listen: {{address: \"127.0.0.1:0\", tls: optional, websocket: {{path: /ssh, trusted_tls: {has_trusted_tls}}}, \
                 trusted_proxies: [{proxies}]}}\ntls: {{certificates: [{}]}}\n\
                 access: {{mode: enforce, cleartext: {cleartext}, users: {{file: \"{}\"}}}}\n\
                 allowlist:\n  static:\n    - {{name: \"devbox:22\", addresses: [\"192.0.2.9:22\"], allowed_users: [alice]}}\n",
                issued.setting(),
                users.display()
            ));
            for scheme in [None, Some("http"), Some("https"), Some("https, http")] {
                for forwarded_for in [None, Some("198.51.100.7")] {
                    let mut fields = Vec::new();
                    fields.extend(scheme.map(|scheme| ("X-Forwarded-Proto", scheme)));
                    fields.extend(forwarded_for.map(|client| ("X-Forwarded-For", client)));
                    let request = super::upgrade("/ssh/devbox:22", &fields);
                    for hop_has_tls in [false, true] {
                        let mut head = [0; 12];
                        if hop_has_tls {
                            let mut client = tls::connect(proxy.public(), &config, "ssh.example.com").unwrap();
                            client.write_all(request.as_bytes()).unwrap();
                            client.read_exact(&mut head).unwrap();
                        } else {
                            let mut client = Peer::connect(proxy.public());
                            client.send(&request);
                            client.read_into(&mut head);
                        }
                        let is_forwarded = is_trusted || forwarded_for.is_some();
                        let is_safe = match cleartext {
                            "allow" => true,
                            _ if is_forwarded => has_trusted_tls && scheme.is_none_or(|scheme| scheme == "https"),
                            "loopback" => true,
                            _ => hop_has_tls,
                        };
                        let expected = if is_safe { "HTTP/1.1 401" } else { "HTTP/1.1 403" };
                        assert_eq!(
                            String::from_utf8_lossy(&head),
                            expected,
                            "trusted: {is_trusted}, trusted_tls: {has_trusted_tls}, cleartext: {cleartext}, TLS: {hop_has_tls}\n{request}"
                        );
                    }
                }
            }
        }
    }
}
