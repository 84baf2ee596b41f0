//! The protocol of credential plugins: their environment and their output (client.authentication.k8s.io/v1 and
//! v1beta1).

use std::time::SystemTime;

use anyhow::{Context, anyhow, ensure};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorization::Credentials;
use super::kubeconfig::Cluster;
use crate::base::json::Object;
use crate::base::secret::Secret;
use crate::uplink::dial::tls::KeyPair;

/// The versions of the protocol, as a kubeconfig names them.
pub(super) const VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// Returns the value of KUBERNETES_EXEC_INFO.
///
/// `cluster` is for plugins that ask for it, with its certificate authority in base64.
pub(super) fn information(version: &str, is_interactive: bool, cluster: Option<(&Cluster, Option<String>)>) -> String {
    let cluster = cluster.map(|(cluster, authority)| {
        present(json!({
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify.filter(|skips| *skips),
            "certificate-authority-data": authority,
            "proxy-url": cluster.proxy_url,
            "disable-compression": cluster.disable_compression.filter(|disabled| *disabled),
            "config": cluster.exec_config(),
        }))
    });
    let spec = present(json!({"interactive": is_interactive, "cluster": cluster}));
    json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec}).to_string()
}

/// Returns the object without its null fields.
fn present(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

/// Parses a plugin's output, which must have this version. No error quotes the output.
pub(super) fn read(printed: &[u8], version: &str) -> anyhow::Result<Credentials> {
    let Object(read): Object<ExecCredential> = serde_json::from_slice(printed).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        anyhow!("it printed no ExecCredential in JSON (line {line}, column {column})")
    })?;
    ensure!(
        read.kind.as_deref() == Some("ExecCredential"),
        "it printed an object that is no ExecCredential"
    );
    ensure!(
        read.api_version.as_deref() == Some(version),
        "it printed another apiVersion than {version}, which the kubeconfig demands"
    );
    read.into_credentials()
}

/// Parses an object of any version, such as the output of `aws eks get-token`; `None` for any other text.
pub(super) fn read_any(printed: &[u8]) -> Option<anyhow::Result<Credentials>> {
    let Object(read): Object<ExecCredential> = serde_json::from_slice(printed).ok()?;
    (read.kind.as_deref() == Some("ExecCredential")).then(|| read.into_credentials())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    kind: Option<String>,
    api_version: Option<String>,
    status: Option<Object<Status>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: Option<Secret>,
    client_certificate_data: Option<String>,
    client_key_data: Option<Secret>,
    expiration_timestamp: Option<String>,
}

impl ExecCredential {
    fn into_credentials(self) -> anyhow::Result<Credentials> {
        let Object(status) = self.status.context(EMPTY)?;
        let token = status.token.filter(|token| !token.expose().is_empty());
        let token = token.map(|token| Credentials::bearer(token.expose())).transpose();
        let mut credentials = token.context("its token cannot be sent")?.unwrap_or_default();
        let certificate = status.client_certificate_data.filter(|pem| !pem.is_empty());
        let key = status.client_key_data.filter(|pem| !pem.expose().is_empty());
        ensure!(
            certificate.is_some() == key.is_some(),
            "it printed a client certificate without its key, or a key without its certificate"
        );
        let pair = certificate.zip(key);
        credentials.certificate = pair.map(|(certificate, key)| KeyPair { certificate, key });
        let expires = status
            .expiration_timestamp
            .and_then(|time| time.parse::<Timestamp>().ok());
        credentials.expires = expires.map(SystemTime::from);
        ensure!(credentials != Credentials::default(), EMPTY);
        Ok(credentials)
    }
}

const EMPTY: &str = "it printed an ExecCredential with neither a token nor a client certificate";

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(status: &str) -> String {
        format!(r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{status}}}"#)
    }

    #[test]
    fn a_status_becomes_credentials() {
        for status in [
            r#"{"token":"t"}"#,
            // The proxy judges when they expire.
            r#"{"token":"t","expirationTimestamp":"1970-01-01T00:01:00Z"}"#,
            r#"{"token":"t","expirationTimestamp":"never"}"#,
            r#"{"token":"t","clientCertificateData":"","more":[1]}"#,
        ] {
            let credentials = read(printed(status).as_bytes(), VERSIONS[0]).unwrap();
            assert!(credentials.authorization.is_some(), "{status}");
        }
        let pair = r#"{"clientCertificateData":"C","clientKeyData":"K"}"#;
        let credentials = read(printed(pair).as_bytes(), VERSIONS[0]).unwrap();
        assert_eq!(credentials.certificate.unwrap().certificate, "C");
        assert!(credentials.authorization.is_none());
    }

    #[test]
    fn every_fault_of_an_output_has_a_sentence_that_does_not_quote_it() {
        let other = |kind: &str, version: &str| {
            format!(
                r#"{{"kind":"{kind}","apiVersion":"client.authentication.k8s.io/{version}","status":{{"token":"s3cret"}}}}"#
            )
        };
        for (text, fault) in [
            ("s3cret".to_owned(), "no ExecCredential in JSON (line 1, column 1)"),
            (String::new(), "no ExecCredential in JSON"),
            (printed(r#""s3cret""#), "no ExecCredential in JSON"),
            (printed(r#"{"token":{"s3cret":1}}"#), "no ExecCredential in JSON"),
            (printed(r#"{"token":"s3cret"}}"#), "no ExecCredential in JSON"),
            // Arrays with the fields of the objects in their order.
            (printed(r#"["s3cret",null,null]"#), "no ExecCredential in JSON"),
            (
                r#"["ExecCredential","client.authentication.k8s.io/v1",{"token":"s3cret"}]"#.to_owned(),
                "no ExecCredential in JSON",
            ),
            (other("Pod", "v1"), "no ExecCredential"),
            (
                other("ExecCredential", "v1beta1"),
                "another apiVersion than client.authentication.k8s.io/v1,",
            ),
            (other("ExecCredential", "v1alpha1"), "another apiVersion"),
            (printed("null"), "neither a token nor"),
            (printed("{}"), "neither a token nor"),
            (printed(r#"{"token":""}"#), "neither a token nor"),
            (printed(r#"{"token":"s3cret\r\nX: y"}"#), "its token cannot be sent: "),
            (
                printed(r#"{"token":"s3cret","clientKeyData":"s3cret"}"#),
                "without its key",
            ),
        ] {
            let said = format!("{:#}", read(text.as_bytes(), VERSIONS[0]).unwrap_err());
            assert!(said.contains(fault) && !said.contains("s3cret"), "{text}: {said}");
        }
    }

    #[test]
    fn a_plugin_is_told_its_version_and_the_cluster_if_it_asks() {
        let parse = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        assert_eq!(
            parse(information("client.authentication.k8s.io/v1beta1", false, None)),
            json!({
                "kind": "ExecCredential",
                "apiVersion": "client.authentication.k8s.io/v1beta1",
                "spec": {"interactive": false},
            })
        );
        let cluster: Cluster = serde_json::from_value(json!({
            "server": "https://api.example.com",
            "tls-server-name": "api",
            "extensions": [
                {"name": "other", "extension": 1},
                {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}},
            ],
        }))
        .unwrap();
        let told = parse(information(
            VERSIONS[0],
            false,
            Some((&cluster, Some("Q0E=".to_owned()))),
        ));
        assert_eq!(
            told["spec"],
            json!({
                "interactive": false,
                "cluster": {
                    "server": "https://api.example.com",
                    "tls-server-name": "api",
                    "certificate-authority-data": "Q0E=",
                    "config": {"audience": "x"},
                },
            })
        );
    }
}
