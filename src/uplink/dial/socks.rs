//! A tunnel through a SOCKS 5 proxy (RFC 1928), with a user and a password (RFC 1929) or without.

use std::net::IpAddr;

use anyhow::{Context, anyhow, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use zeroize::Zeroizing;

use crate::base::authority::Authority;

/// Opens a tunnel to `target`, whose name the proxy looks up. `login` is `user:password`.
///
/// # Errors
/// The proxy does not answer, or refuses.
pub(super) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    target: &Authority,
    login: Option<&[u8]>,
) -> anyhow::Result<()> {
    let methods: &[u8] = if login.is_some() { &[5, 2, 0, LOGIN] } else { &[5, 1, 0] };
    match (exchange(stream, methods).await?, login) {
        ([5, 0], _) => {}
        ([5, LOGIN], Some(login)) => {
            let request = login_request(login)?;
            let [_, status] = exchange(stream, &request).await?;
            ensure!(status == 0, "it refuses the user and the password");
        }
        ([5, _], None) => bail!("it demands a user and a password"),
        ([5, _], Some(_)) => bail!("it demands another login than a user and a password"),
        _ => bail!("it is no SOCKS 5 proxy"),
    }
    let mut request = vec![5, 1, 0];
    match target.host().parse() {
        Ok(IpAddr::V4(address)) => request.extend([&[1][..], &address.octets()].concat()),
        Ok(IpAddr::V6(address)) => request.extend([&[4][..], &address.octets()].concat()),
        Err(_) => {
            request.extend([3, u8::try_from(target.host().len())?]);
            request.extend(target.host().as_bytes());
        }
    }
    request.extend(target.port().to_be_bytes());
    let [version, status, _, kind] = exchange(stream, &request).await?;
    ensure!(version == 5, "it is no SOCKS 5 proxy");
    ensure!(status == 0, "it answers: {}", reason(status));
    // The proxy's own address and port, which nobody needs.
    let length = match kind {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await.context(CLOSED)?),
    };
    stream.read_exact(&mut vec![0; length + 2]).await.context(CLOSED)?;
    Ok(())
}

async fn exchange<const N: usize>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &[u8],
) -> anyhow::Result<[u8; N]> {
    let mut answer = [0; N];
    stream.write_all(request).await.context(CLOSED)?;
    stream.flush().await.context(CLOSED)?;
    stream.read_exact(&mut answer).await.context(CLOSED)?;
    Ok(answer)
}

fn login_request(login: &[u8]) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let mut request = Zeroizing::new(vec![1]);
    for part in login.splitn(2, |byte| *byte == b':') {
        let length = u8::try_from(part.len()).map_err(|_| anyhow!("its user or password has more than 255 bytes"))?;
        request.push(length);
        request.extend(part);
    }
    Ok(request)
}

fn reason(status: u8) -> &'static str {
    match status {
        2 => "not allowed",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "timed out",
        7 | 8 => "not supported",
        _ => "failed",
    }
}

const CLOSED: &str = "it closed the connection";
/// The method of RFC 1929.
const LOGIN: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the failure, and the bytes that a proxy received that sends these ones.
    async fn opened(target: &str, login: Option<&[u8]>, answers: &[u8]) -> (Option<String>, Vec<u8>) {
        let (mut near, mut far) = tokio::io::duplex(1024);
        far.write_all(answers).await.unwrap();
        far.shutdown().await.unwrap();
        let error = open(&mut near, &target.parse().unwrap(), login).await.err();
        drop(near);
        let mut received = Vec::new();
        far.read_to_end(&mut received).await.unwrap();
        (error.map(|error| format!("{error:#}")), received)
    }

    #[tokio::test]
    async fn a_tunnel_is_opened_by_name_or_by_address() {
        let accepted = [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for (target, address) in [
            ("a.example:258", [&[3, 9][..], b"a.example", &[1, 2]].concat()),
            ("192.0.2.1:22", vec![1, 192, 0, 2, 1, 0, 22]),
        ] {
            let (error, received) = opened(target, None, &accepted).await;
            let expected = [&[5, 1, 0, 5, 1, 0][..], &address].concat();
            assert_eq!((error, received), (None, expected), "{target}");
        }
        let with_login = [&[5, 2, 1, 0][..], &accepted[2..]].concat();
        let (error, received) = opened("[::1]:1", Some(b"ann:p:w"), &with_login).await;
        assert_eq!(error, None);
        assert_eq!(received[..14], *b"\x05\x02\x00\x02\x01\x03ann\x03p:w\x05");
    }

    #[tokio::test]
    async fn every_refusal_has_a_sentence() {
        for (login, answers, expected) in [
            (None, &b"HTTP/1.1 400 Bad Request\r\n"[..], "it is no SOCKS 5 proxy"),
            (None, &[5, 2], "it demands a user and a password"),
            (None, &[5, 255], "it demands a user and a password"),
            (Some(&b"a:b"[..]), &[5, 255], "it demands another login"),
            (Some(b"a:b"), &[5, 2, 1, 1], "it refuses the user and the password"),
            (None, &[5, 0, 5, 5, 0, 1], "it answers: connection refused"),
            (None, &[5, 0], "it closed the connection"),
            (None, &[5, 0, 5, 0, 0, 1, 0], "it closed the connection"),
            (None, &[5, 0, 5, 0, 0, 3, 9, 0], "it closed the connection"),
        ] {
            let (error, _) = opened("a:1", login, answers).await;
            let error = error.unwrap();
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
        let long = [b'a'; 300];
        let (error, _) = opened("a:1", Some(&long), &[5, 2]).await;
        assert_eq!(error.unwrap(), "its user or password has more than 255 bytes");
    }
}
