//! Recognises the program that has sent a request over HTTP/1, by the bytes of its head.

/// The sender of a request, by its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientProgram {
    /// No complete CONNECT has been read.
    #[default]
    Unread,
    /// `switchboard connect` of any version: it has always sent `User-Agent: switchboard/VERSION`.
    SwitchboardConnect,
    /// A head as the ProxyCommands of SSH clients, PuTTY and JSch send it, byte for byte but for letter case.
    SshProxyCommand,
    /// Any other CONNECT.
    Other,
}

/// A CONNECT that was read, with any target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SniffedHead {
    /// Its sender.
    pub(super) program: ClientProgram,
    /// The start of the request target as it was sent, with `?` for what is not ASCII.
    pub(super) target: Box<str>,
}

/// Identifies the sender of these bytes. They may hold a malformed target, but the head has to be complete.
pub(super) fn identify(head: &[u8]) -> SniffedHead {
    read(head).unwrap_or_default()
}

fn read(head: &[u8]) -> Option<SniffedHead> {
    let mut lines = head
        .split_inclusive(|&byte| byte == b'\n')
        .map(|line| {
            line.strip_suffix(b"\n")
                .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        })
        .skip_while(|line| *line == Some(b""));
    let request_line = str::from_utf8(lines.next()??).ok()?;
    let [method, target, version] = request_line.split(' ').collect::<Vec<_>>().try_into().ok()?;
    if method != "CONNECT" || !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
        return None;
    }
    let mut fields = Vec::new();
    loop {
        match lines.next()?? {
            b"" => break,
            line => fields.push(field(line)),
        }
    }
    Some(SniffedHead {
        program: program(version, target, &fields),
        target: crate::base::text::ascii(target.chars().take(MAX_TARGET)),
    })
}

/// A field's name and value.
type Field<'a> = (&'a [u8], &'a [u8]);

fn field(line: &[u8]) -> Field<'_> {
    match line.iter().position(|&byte| byte == b':') {
        Some(colon) => {
            let (name, value) = line.split_at(colon);
            (name, value.get(1..).unwrap_or_default().trim_ascii())
        }
        None => (line, b""),
    }
}

/// Returns the sender. `switchboard connect` names itself in `User-Agent`. The heads of SSH clients are recognised by
/// the fields that they lack: other programs send more. `tests/it/requests` has the requests of each, byte for byte.
fn program(version: &str, target: &str, fields: &[Field<'_>]) -> ClientProgram {
    let is = |field: &Field<'_>, name: &[u8]| field.0.eq_ignore_ascii_case(name);
    if fields
        .iter()
        .any(|field| is(field, b"user-agent") && field.1.starts_with(b"switchboard/"))
    {
        return ClientProgram::SwitchboardConnect;
    }
    let mut rest: Vec<_> = fields.iter().collect();
    if let Some(credential) = rest.iter().position(|field| is(field, b"proxy-authorization")) {
        rest.remove(credential);
    }
    match (version, rest.as_slice()) {
        // nc, ncat, corkscrew, connect-proxy, socat and JSch.
        ("HTTP/1.0", []) => ClientProgram::SshProxyCommand,
        // PuTTY.
        ("HTTP/1.1", [host]) if is(host, b"host") && host.1.eq_ignore_ascii_case(target.as_bytes()) => {
            ClientProgram::SshProxyCommand
        }
        // proxytunnel: its Host is the proxy's, or the target's without the port.
        ("HTTP/1.1", [host, connection])
            if is(host, b"host")
                && is(connection, b"proxy-connection")
                && connection.1.eq_ignore_ascii_case(b"keep-alive") =>
        {
            ClientProgram::SshProxyCommand
        }
        _ => ClientProgram::Other,
    }
}

/// The characters of a target that are kept for its refusal.
const MAX_TARGET: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn programs_are_recognised_by_the_whole_of_their_head() {
        use ClientProgram::*;
        for (head, program) in [
            ("CONNECT a:22 HTTP/1.0\r\n\r\n", SshProxyCommand),
            ("CONNECT a:22 HTTP/1.0\n\r\n", SshProxyCommand),
            (
                "CONNECT a:22 HTTP/1.0\r\nProxy-authorization: Basic eA==\r\n\r\n",
                SshProxyCommand,
            ),
            ("CONNECT fd00::1:22 HTTP/1.0\r\n\r\n", SshProxyCommand),
            ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", SshProxyCommand),
            ("CONNECT a:22 HTTP/1.1\r\nHost: A:22\r\n\r\n", SshProxyCommand),
            (
                "CONNECT a:22 HTTP/1.1\r\nHost: 127.0.0.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
                SshProxyCommand,
            ),
            (
                "CONNECT a:22 HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: Keep-Alive\r\n\r\n",
                SshProxyCommand,
            ),
            // curl.
            (
                "CONNECT a:22 HTTP/1.1\r\nHost: a:22\r\nUser-Agent: curl/7.88.1\r\nProxy-Connection: Keep-Alive\r\n\r\n",
                Other,
            ),
            ("CONNECT a:22 HTTP/1.1\r\nHost: b\r\n\r\n", Other),
            ("CONNECT a:22 HTTP/1.1\r\n\r\n", Other),
            ("CONNECT a:22 HTTP/1.0\r\nHost: a:22\r\n\r\n", Other),
            ("CONNECT a:22 HTTP/1.0\r\nX\r\n\r\n", Other),
            (
                "CONNECT a:22 HTTP/1.1\r\nHost: a:22\r\nUser-Agent: switchboard/0.1.0\r\n\r\n",
                SwitchboardConnect,
            ),
            ("CONNECT a:22 HTTP/1.0\r\n", Unread),
            ("GET / HTTP/1.0\r\n\r\n", Unread),
            ("CONNECT a 22 HTTP/1.0\r\n\r\n", Unread),
            ("CONNECT a:22 HTTP/3\r\n\r\n", Unread),
            ("", Unread),
        ] {
            assert_eq!(identify(head.as_bytes()).program, program, "{head:?}");
        }
        let sent = identify("CONNECT fd00::1:\u{1b}\u{e9} HTTP/1.0\r\n\r\n".as_bytes());
        assert_eq!(&*sent.target, "fd00::1:??");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), line in "CONNECT [ -~]{0,9} HTTP/1.[01]\r\n") {
            identify(&bytes);
            let sent = identify(&[line.as_bytes(), &bytes, b"\r\n\r\n"].concat());
            prop_assert!(sent.target.is_ascii());
        }
    }
}
