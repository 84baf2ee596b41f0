//! The files of the page. They are in the program, and come from nowhere else.

use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;

/// The page.
pub(super) async fn page() -> Response {
    ([(CONTENT_TYPE, HTML)], include_str!("assets/index.html")).into_response()
}

/// A file of the page.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(own, _, _)| *own == name) {
        Some((_, kind, text)) => ([(CONTENT_TYPE, *kind)], *text).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Names, types and texts.
const FILES: [(&str, &str, &str); 13] = [
    ("api.js", SCRIPT, include_str!("assets/api.js")),
    ("chart.js", SCRIPT, include_str!("assets/chart.js")),
    ("columns.js", SCRIPT, include_str!("assets/columns.js")),
    ("desk.css", STYLE, include_str!("assets/desk.css")),
    ("desk.js", SCRIPT, include_str!("assets/desk.js")),
    ("details.js", SCRIPT, include_str!("assets/details.js")),
    ("dialogs.js", SCRIPT, include_str!("assets/dialogs.js")),
    ("format.js", SCRIPT, include_str!("assets/format.js")),
    ("grid.js", SCRIPT, include_str!("assets/grid.js")),
    ("icon.svg", IMAGE, include_str!("assets/icon.svg")),
    ("model.js", SCRIPT, include_str!("assets/model.js")),
    ("pages.js", SCRIPT, include_str!("assets/pages.js")),
    ("questions.js", SCRIPT, include_str!("assets/questions.js")),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_beside_the_page_is_served_and_holds_nothing_that_the_policy_forbids() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/operator/desk/assets");
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut served: Vec<_> = FILES.iter().map(|(name, _, _)| *name).collect();
        served.push("index.html");
        served.sort_unstable();
        assert_eq!(names, served);
        let texts = FILES.iter().map(|(name, _, text)| (*name, *text));
        for (name, text) in texts.chain([("index.html", include_str!("assets/index.html"))]) {
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            for word in [
                "http://",
                "https://",
                "innerHTML",
                "insertAdjacentHTML",
                "eval(",
                " style=",
                "onclick",
            ] {
                assert!(!foreign.contains(word), "{name}: {word}");
            }
        }
    }
}
