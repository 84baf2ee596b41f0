//! A second opinion on request heads, as plain as can be: it says what is allowed, and knows no faults.

use std::net::Ipv6Addr;

/// The target of a whole head and the head's length, if it is a CONNECT that may be served.
pub(crate) fn accepted(bytes: &[u8]) -> Option<(String, usize)> {
    let mut start = 0;
    loop {
        let rest = &bytes[start..];
        if rest.starts_with(b"\r\n") {
            start += 2;
        } else if rest.starts_with(b"\n") {
            start += 1;
        } else {
            break;
        }
    }
    if start > 8 {
        return None;
    }
    let mut lines = Vec::new();
    let mut end = start;
    loop {
        let length = bytes[end..].iter().position(|&byte| byte == b'\n')?;
        let line = &bytes[end..end + length];
        end += length + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let (request, fields) = lines.split_first()?;
    if fields.len() > 64 {
        return None;
    }
    let request = str::from_utf8(request).ok()?;
    let words: Vec<&str> = request.split(' ').collect();
    let [method, target, version] = words[..] else {
        return None;
    };
    if method != "CONNECT" || !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
        return None;
    }
    are_fields(fields, version == "HTTP/1.1")?;
    Some((authority(target)?, end))
}

/// `None` if one of them may not be there.
fn are_fields(fields: &[&[u8]], needs_host: bool) -> Option<()> {
    let mut hosts = 0;
    for field in fields {
        let colon = field.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&field[..colon], &field[colon + 1..]);
        let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        if name.is_empty() || !name.iter().all(is_token) {
            return None;
        }
        if value.iter().any(|&byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
            return None;
        }
        let value = trimmed(value);
        match name.to_ascii_lowercase().as_slice() {
            b"host" => {
                hosts += 1;
                is_host(value).then_some(())?;
            }
            b"content-length" if value != b"0" => return None,
            b"transfer-encoding" => return None,
            _ => {}
        }
    }
    (hosts == 1 || (hosts == 0 && !needs_host)).then_some(())
}

/// The one spelling of `host:port`, if the text is one.
fn authority(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    if port.is_empty() || port.len() > 5 || !port.chars().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let port: u32 = port.parse().ok()?;
    if port == 0 || port > 65535 {
        return None;
    }
    if let Some(literal) = host.strip_prefix('[') {
        let address: Ipv6Addr = literal.strip_suffix(']')?.parse().ok()?;
        return Some(format!("[{address}]:{port}"));
    }
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_label = |label: &str| {
        let plain = |character: char| character.is_ascii_alphanumeric() || character == '-' || character == '_';
        (1..=63).contains(&label.len()) && label.chars().all(plain)
    };
    (name.len() <= 253 && name.split('.').all(is_label)).then(|| format!("{name}:{port}"))
}

fn is_host(value: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(value) else { return false };
    let digits = |text: &str| text.chars().all(|digit| digit.is_ascii_digit());
    if let Some(literal) = text.strip_prefix('[') {
        let Some((inside, rest)) = literal.split_once(']') else {
            return false;
        };
        let is_port = rest.is_empty() || rest.strip_prefix(':').is_some_and(digits);
        return is_port
            && inside
                .chars()
                .all(|digit| digit.is_ascii_hexdigit() || ":.".contains(digit));
    }
    let (host, port) = text.split_once(':').unwrap_or((text, ""));
    digits(port)
        && host
            .chars()
            .all(|byte| byte.is_ascii_alphanumeric() || "-._~%!$&'()*+,;=".contains(byte))
}

fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
