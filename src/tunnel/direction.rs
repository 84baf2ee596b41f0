//! The two directions in which a tunnel carries bytes.

use std::ops::{Index, IndexMut};

use super::outcome::Side;

/// The direction of bytes, as the user of the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the target.
    Upload,
    /// From the target to the client.
    Download,
}

impl Direction {
    /// Both directions, upload first.
    pub const ALL: [Self; 2] = [Self::Upload, Self::Download];

    /// Returns the value of the metric label `direction`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Upload => "upload",
            Self::Download => "download",
        }
    }

    /// Returns the side that its bytes come from.
    pub fn sender(self) -> Side {
        match self {
            Self::Upload => Side::Client,
            Self::Download => Side::Target,
        }
    }

    /// Returns the side that its bytes go to.
    pub fn receiver(self) -> Side {
        match self {
            Self::Upload => Side::Target,
            Self::Download => Side::Client,
        }
    }
}

/// A value for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Both<T> {
    /// The upload's.
    pub upload: T,
    /// The download's.
    pub download: T,
}

impl<T> Both<T> {
    /// Makes the value of each direction, the upload's first.
    pub fn from_fn(mut make: impl FnMut(Direction) -> T) -> Self {
        let [upload, download] = Direction::ALL.map(&mut make);
        Self { upload, download }
    }
}

impl<T> Index<Direction> for Both<T> {
    type Output = T;

    fn index(&self, direction: Direction) -> &T {
        match direction {
            Direction::Upload => &self.upload,
            Direction::Download => &self.download,
        }
    }
}

impl<T> IndexMut<Direction> for Both<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Upload => &mut self.upload,
            Direction::Download => &mut self.download,
        }
    }
}
