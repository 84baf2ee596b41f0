//! The two directions in which a tunnel carries bytes.

/// The direction of bytes, as the user of the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the target.
    Upload,
    /// From the target to the client.
    Download,
}

impl Direction {
    /// Both directions, upload first; `self as usize` is the index.
    pub const ALL: [Self; 2] = [Self::Upload, Self::Download];

    /// The value of the metric label `direction`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
        }
    }
}
