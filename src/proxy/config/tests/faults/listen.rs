//! Faults of `listen` and `admin`: addresses, and what goes with the PROXY protocol.

use super::*;

#[test]
fn a_port_at_any_ipv6_address_takes_ipv4_too() {
    assert_faults(&[
        (
            "listen:\n  - 1.1.1.1:1\n  - \"[::]:1\"\n",
            "line 3: listen[1]: [::]:1 (`[::]` takes IPv4, too) is taken by 1.1.1.1:1 on line 2",
        ),
        (
            "listen:\n  - \"[::]:1\"\n  - 1.1.1.1:1\n",
            "line 3: listen[1]: 1.1.1.1:1 (`[::]` takes IPv4, too) is taken by [::]:1 on line 2",
        ),
        (
            "listen:\n  - 1.1.1.1:1\n  - \"[::ffff:1.1.1.1]:1\"\n",
            "line 3: listen[1]: [::ffff:1.1.1.1]:1 is taken by 1.1.1.1:1 on line 2",
        ),
        (
            "listen: \"[::]:1\"\nadmin: 127.0.0.1:1",
            "line 2: admin: 127.0.0.1:1 (`[::]` takes IPv4, too) is taken by [::]:1 of `listen`",
        ),
        (
            "listen: 0.0.0.0:1\nadmin: \"[::]:1\"",
            "line 2: admin: [::]:1 (`[::]` takes IPv4, too) is taken by 0.0.0.0:1 of `listen`",
        ),
    ]);
}

#[test]
fn addresses_to_listen_on_are_checked() {
    assert_faults(&[
        ("listen: []", "line 1: listen: at least one address is needed"),
        (
            "listen:\n  -\n",
            "line 2: listen[0]: expected a single value or a map (found nothing)",
        ),
        ("listen: {}", "line 1: listen: `address` is missing"),
        (
            "listen: {zzz: off}",
            "line 1: listen: `address` is missing\n\
             line 1: listen.zzz: unknown key; known here: address, tls, proxy_protocol, trusted_proxies, reuse_port, \
             refusals, websocket, ssh, host_keys",
        ),
        (
            "listen: {address: \"1.1.1.1:1\", refusals: off}",
            "line 1: listen.refusals: expected `http`, `auto` or `ssh` (found `off`)",
        ),
        (
            "listen: [localhost:8080]",
            "line 1: listen[0]: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `localhost:8080`)",
        ),
        (
            "listen: 8080",
            "line 1: listen: expected IP:port such as `0.0.0.0:8080` or `[::]:8080` (found `8080`)",
        ),
        (
            "listen:\n  - 1.1.1.1:1\n  - {address: 1.1.1.1:1}\n",
            "line 3: listen[1].address: 1.1.1.1:1 is on line 2 too",
        ),
        (
            "listen: 0.0.0.0:9090",
            "line 1: listen: [::]:9090 (`[::]` takes IPv4, too) is taken by 0.0.0.0:9090 of `listen`",
        ),
        (
            "\nadmin: 0.0.0.0:8080",
            "line 2: admin: 0.0.0.0:8080 (`[::]` takes IPv4, too) is taken by [::]:8080 of `listen`",
        ),
        (
            "\nadmin: 127.0.0.1:8080",
            "line 2: admin: 127.0.0.1:8080 (`[::]` takes IPv4, too) is taken by [::]:8080 of `listen`",
        ),
        (
            "listen: {address: \"[::1]:1\", reuse_port: true}\nadmin: \"[::]:1\"",
            "line 2: admin: [::]:1 is taken by [::1]:1 of `listen`",
        ),
        (
            "listen:\n  - 1.1.1.1:1\n  - {address: 0.0.0.0:1, reuse_port: true}\n",
            "line 3: listen[1].address: 0.0.0.0:1 is taken by 1.1.1.1:1 on line 2",
        ),
    ]);
    for sound in [
        "listen: [1.1.1.1:1, 1.1.1.2:1, 0.0.0.0:2, 0.0.0.0:0, 127.0.0.1:0]\nadmin: 0.0.0.0:3",
        // The second leaves IPv4 to the first.
        "listen: [0.0.0.0:1, \"[::]:1\"]",
        "listen: [\"[::1]:1\", 0.0.0.0:1]",
        "listen: [{address: \"[::]:1\", reuse_port: true}, {address: 127.0.0.1:1, reuse_port: true}]",
        "listen: [{address: 0.0.0.0:1, reuse_port: true}, {address: 127.0.0.1:1, reuse_port: true}]",
    ] {
        Config::parse(sound).unwrap();
    }
}

#[test]
fn proxy_protocol_and_trusted_proxies_need_each_other() {
    for (settings, reason) in [
        (
            "proxy_protocol: required",
            "proxy_protocol: needs `trusted_proxies`: without it any client could claim any address",
        ),
        (
            "proxy_protocol: required, trusted_proxies: []",
            "proxy_protocol: needs `trusted_proxies`: without it any client could claim any address",
        ),
        (
            "trusted_proxies: [10.0.0.0/8]",
            "trusted_proxies: has no effect without `proxy_protocol: required` or `websocket`",
        ),
        (
            "proxy_protocol: off, trusted_proxies: [10.0.0.0/8]",
            "trusted_proxies: has no effect without `proxy_protocol: required` or `websocket`",
        ),
        (
            "proxy_protocol: optional, trusted_proxies: [10.0.0.0/8]",
            "proxy_protocol: must be `off` or `required`: where the header is optional, a client can forge it \
             (found `optional`)",
        ),
        (
            "proxy_protocol: v1",
            "proxy_protocol: expected `off` or `required` (found `v1`)",
        ),
        (
            "proxy_protocol: required, trusted_proxies: [10.0.0.1]",
            "trusted_proxies[0]: expected a network such as `10.0.0.0/8` or `fd00::/8` (found `10.0.0.1`)",
        ),
        (
            "proxy_protocol: required, trusted_proxies: 10.0.0.0/8",
            "trusted_proxies: expected a list (found a single value)",
        ),
        (
            "websocket: {path: /ssh, trusted_tls: true}",
            "websocket.trusted_tls: needs `trusted_proxies`: without it any client could count as one of TLS",
        ),
        (
            "websocket: {path: ssh}",
            "websocket.path: expected a path such as `/ssh`, of letters, digits and `-._~/` (found `ssh`)",
        ),
        (
            "websocket: {path: /a//b}",
            "websocket.path: expected a path such as `/ssh`, of letters, digits and `-._~/` (found `/a//b`)",
        ),
    ] {
        let text = format!("listen: {{address: 1.1.1.1:1, {settings}}}");
        assert_eq!(faults(&text), format!("line 1: listen.{reason}"));
    }
    let off = Config::parse("listen: {address: 1.1.1.1:1, proxy_protocol: off, trusted_proxies: []}").unwrap();
    assert_eq!(off.listen, ["1.1.1.1:1".parse::<SocketAddr>().unwrap().into()]);
}
