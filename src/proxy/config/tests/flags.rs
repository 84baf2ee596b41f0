//! Flags and the environment over a file.

use super::*;

#[test]
fn flags_override_the_file() {
    let overrides = Overrides {
        listen: vec!["127.0.0.1:1".parse().unwrap()],
        admin: Some("127.0.0.1:2".parse().unwrap()),
        allow: vec![target("OTHER:22", "10.9.9.9:22"), target("new:22", "10.8.8.8:22")],
    };
    let loaded = LoadedConfig::from_reader("f", FULL.as_bytes(), &overrides, Purpose::Serve);
    let config = loaded.unwrap().config;
    assert_eq!(config.listen.len(), 1);
    assert_eq!(config.listen[0].listener.address, "127.0.0.1:1".parse().unwrap());
    assert_eq!(config.admin, "127.0.0.1:2".parse().unwrap());
    let targets: Vec<String> = config
        .targets
        .iter()
        .map(|target| {
            format!(
                "{}={}",
                target.name,
                target.addresses.first().map_or_else(String::new, ToString::to_string)
            )
        })
        .collect();
    assert_eq!(
        targets,
        [
            "devbox.local:22=127.0.0.1:2222",
            "other:22=10.9.9.9:22",
            "plain:22=10.0.0.2:22",
            "gpu1.lab:22=",
            "new:22=10.8.8.8:22",
        ]
    );
}
