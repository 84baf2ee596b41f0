//! Requests, and what they earn.

/// Requests of real clients, in the writes in which they were seen, and some that are as good.
pub(crate) const GOOD: [(&str, &[&str]); 23] = [
    (
        "proxytunnel",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: Keep-Alive\r\n\r\n"],
    ),
    (
        "proxytunnel -o",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local\r\n\
             Proxy-Connection: Keep-Alive\r\n\r\n",
        ],
    ),
    (
        "proxytunnel -P",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Proxy-Authorization: Basic dXNlcjpwYXNz\r\nProxy-Connection: Keep-Alive\r\n\r\n"],
    ),
    ("nc", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n", "\r\n"]),
    (
        "nc -P",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n",
            "\r\n",
        ],
    ),
    ("ncat", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n"]),
    (
        "a fork of corkscrew",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\n\r\n"],
    ),
    (
        "socat with proxyauth",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-authorization: Basic dXNlcjpwYXNz\r\n",
            "\r\n",
        ],
    ),
    (
        "curl",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local:80\r\n\
             User-Agent: curl/7.88.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
        ],
    ),
    (
        "plink",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: svc-a.ns.svc.cluster.local:80\r\n\r\n"],
    ),
    ("JSch", &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n", "\r\n"]),
    (
        "JSch with a password",
        &[
            "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n",
            "Proxy-Authorization: Basic ",
            "dXNlcjpwYXNz",
            "\r\n",
            "\r\n",
        ],
    ),
    (
        "upper case",
        &["CONNECT SVC-A.NS.svc.Cluster.Local:80 HTTP/1.0\r\n\r\n"],
    ),
    (
        "a trailing dot",
        &["CONNECT svc-a.ns.svc.cluster.local.:80 HTTP/1.0\r\n\r\n"],
    ),
    (
        "zeros before the port",
        &["CONNECT svc-a.ns.svc.cluster.local:00080 HTTP/1.0\r\n\r\n"],
    ),
    (
        "bare line feeds",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\nHost: a\n\n"],
    ),
    (
        "an empty Host",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost:\r\n\r\n"],
    ),
    (
        "another Host",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: unknown.example:1\r\n\r\n"],
    ),
    (
        "no content, said",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"],
    ),
    (
        "a wish to see 100 first",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n"],
    ),
    (
        "a wish to upgrade",
        &["CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"],
    ),
    (
        "an empty line first",
        &["\r\n", "CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n"],
    ),
    ("an IPv6 address", &["CONNECT [FD00:0::1]:22 HTTP/1.0\r\n\r\n"]),
];

const REQUEST_LINE: &str = "the request line is malformed";
const VERSION: &str = "the HTTP version must be 1.0 or 1.1";
const FIELD: &str = "a header field is malformed";
const CONTENT: &str = "the request must not have content";
const HOSTS: &str = "there is more than one Host header";
const BAD_HOST: &str = "the Host header is malformed";
const FORM: &str = "the request target must be host:port";
const PORT: &str = "the port must be 1 to 65535 in decimal digits";
const NO_PORT: &str = "the request target has no port";
const NO_HOST: &str = "the request target has no host";
const USERINFO: &str = "the request target must not hold userinfo";
const BARE_IPV6: &str = "an IPv6 address needs brackets";
const LITERAL: &str = "only an IPv6 address may stand in brackets";
pub(crate) const LABEL: &str = "a label of the host name is empty or too long";
const HOST_BYTE: &str = "the host name holds a forbidden character";
const TLS: &str = "this port does not speak TLS";

/// Whole heads that are malformed, and what the 400 says.
pub(crate) const MALFORMED: [(&[u8], &str); 39] = [
    (b"CONNECT svc-a.ns.svc.cluster.local:80\r\n\r\n", REQUEST_LINE),
    (
        b"CONNECT  svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80  HTTP/1.1\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b" CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT\tsvc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\rHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT svc-a.ns\0.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONN\0ECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        REQUEST_LINE,
    ),
    (b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n", REQUEST_LINE),
    (b"\n\n\n\n\n\n\n\n\n\n\n\n", REQUEST_LINE),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/0.9\r\n\r\n", VERSION),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.2\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/2.0\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 http/1.1\r\nHost: a\r\n\r\n",
        VERSION,
    ),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", TLS),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: y\r\n folded\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost : a\r\n\r\n",
        FIELD,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n Host: a\r\n\r\n",
        FIELD,
    ),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost\r\n\r\n", FIELD),
    (b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n: a\r\n\r\n", FIELD),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\n\r\n",
        "the Host header is missing",
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        HOSTS,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n",
        HOSTS,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a, b\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: http://a/\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: u@a\r\n\r\n",
        BAD_HOST,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 64\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: +0\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.0\r\ntransfer-encoding: xchunked\r\n\r\n",
        CONTENT,
    ),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\
          Transfer-Encoding: chunked\r\n\r\n",
        CONTENT,
    ),
    (b"CONNECT HTTP/1.1\r\nHost: a\r\n\r\n", REQUEST_LINE),
    (b"CONNECT b\xc3\xbccher.example:80 HTTP/1.0\r\n\r\n", HOST_BYTE),
    (
        b"CONNECT svc-a.ns.svc.cluster.local:80\xff HTTP/1.0\r\n\r\n",
        REQUEST_LINE,
    ),
    (
        b"CONNECT \x7fsvc-a.ns.svc.cluster.local:80 HTTP/1.0\r\n\r\n",
        REQUEST_LINE,
    ),
];

/// Request targets that are not `host:port`, and what the 400 says.
pub(crate) const BAD_TARGETS: [(&str, &str); 29] = [
    ("svc-a.ns.svc.cluster.local", NO_PORT),
    ("svc-a.ns.svc.cluster.local:", NO_PORT),
    ("svc-a.ns.svc.cluster.local:0", PORT),
    ("svc-a.ns.svc.cluster.local:65536", PORT),
    ("svc-a.ns.svc.cluster.local:65616", PORT),
    ("svc-a.ns.svc.cluster.local:000080", PORT),
    ("svc-a.ns.svc.cluster.local:+80", PORT),
    ("svc-a.ns.svc.cluster.local:-80", PORT),
    ("svc-a.ns.svc.cluster.local:80x", PORT),
    ("svc-a.ns.svc.cluster.local:0x50", PORT),
    ("svc-a.ns.svc.cluster.local:http", PORT),
    (":80", NO_HOST),
    (".:80", NO_HOST),
    ("root@svc-a.ns.svc.cluster.local:80", USERINFO),
    ("a:b@svc-a.ns.svc.cluster.local:80", USERINFO),
    ("[svc-a.ns.svc.cluster.local]:80", LITERAL),
    ("[127.0.0.1]:80", LITERAL),
    ("[fd00::1%25eth0]:22", LITERAL),
    ("[fd00::1:22", LITERAL),
    ("fd00::1:22", BARE_IPV6),
    ("svc-a.ns.svc.cluster.local:80:80", BARE_IPV6),
    ("svc-a..svc.cluster.local:80", LABEL),
    (".svc-a.ns.svc.cluster.local:80", LABEL),
    ("svc%2da.ns.svc.cluster.local:80", HOST_BYTE),
    ("svc-a.ns.svc.cluster.local,b:80", HOST_BYTE),
    ("/svc-a.ns.svc.cluster.local:80", FORM),
    ("http://svc-a.ns.svc.cluster.local:80/", FORM),
    ("svc-a.ns.svc.cluster.local:80?x", FORM),
    ("*", FORM),
];

/// Names that are well formed, and not on the list.
pub(crate) const UNKNOWN: [&str; 12] = [
    "svc-b.ns.svc.cluster.local:80",
    "svc-a.ns.svc.cluster.local:22",
    "svc-a.ns:80",
    "svc-a:80",
    "localhost:80",
    "127.0.0.1:80",
    "127.1:80",
    "0x7f000001:80",
    "2130706433:80",
    "xn--bcher-kva.example:80",
    "[::1]:80",
    "[::ffff:127.0.0.1]:80",
];
