//! Files that are made to do harm, or are none.

use super::*;

/// Texts with which a printed line would run something else.
#[test]
fn hostile_names_are_refused() {
    for host in [
        "a;id",
        "a$(id)",
        "a`id`",
        "a b",
        "--all",
        "-n",
        "a\\nid",
        "a'b",
        "a\\\"b",
        "a|b",
        "a&b",
        "a>b",
        "a#b",
        "a\\u001b[31m",
        "ä",
    ] {
        for text in [
            filter(&format!("\"{host}.research:80\""), CLUSTER),
            filter(NAME, &format!("outbound|80||{host}.research.svc.cluster.local")),
            filter(NAME, &format!("outbound|80||box-1.{host}.svc.cluster.local")),
            filter(NAME, &format!("outbound|80 {host}||box-1.research.svc.cluster.local")),
        ] {
            let imported = imported(&[&text], Format::Kubectl);
            assert_eq!((imported.text.as_str(), imported.extent), ("", Extent::Part), "{text}");
            let diagnostics = imported.diagnostics.concat();
            assert!(
                !diagnostics.is_empty() && !diagnostics.contains(['\u{1b}', '\n']),
                "{diagnostics}"
            );
        }
    }
}

#[test]
fn what_is_not_yaml_or_too_much_is_refused() {
    let bomb: String = (1..3_000)
        .map(|level| format!("- &a{level} [*a{}]\n", level - 1))
        .collect();
    for text in [
        "a: [".to_owned(),
        "[".repeat(100_000),
        format!("- &a0 [x]\n{bomb}"),
        "kind: !!str EnvoyFilter\n".to_owned(),
        "--- {}\n".repeat(20_001),
    ] {
        let imported = imported(&[&text], Format::Kubectl);
        assert_eq!((imported.text.as_str(), imported.extent), ("", Extent::Unreadable));
    }
    let not_text = Input {
        name: "a".to_owned(),
        bytes: vec![0xff],
    };
    assert_eq!(
        envoyfilter(&[not_text], &options(Format::Kubectl)).diagnostics,
        ["a:1:1: error: not UTF-8"]
    );
    assert!(Input::from_reader("a", std::io::repeat(b'a')).is_err());
    for (text, remark) in [
        ("kind: Gateway\n", "1:1: warning: kind Gateway: not read"),
        ("a: 1\n", "1:1: error: no Kubernetes object"),
        ("{}\n", "1:1: error: nothing to translate"),
        ("", "1:1: error: nothing to translate"),
    ] {
        let diagnostics = kubectl(text).1;
        assert!(diagnostics.contains(remark), "{diagnostics}");
    }
}
