//! Tables for a terminal: columns, listings, diagnoses.

pub mod columns;
pub mod diagnoses;
pub mod listings;
pub mod past;
