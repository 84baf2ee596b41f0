//! What OpenSSH is told of the proxy: the block of ssh_config(5), and its installation.
//!
//! The blocks have a file of their own beside the user's, which includes it in its first line: one line of the user's file
//! is written and removed, and all other bytes of it stay as they are.

mod block;
mod difference;
mod document;
mod edit;
mod quoting;

pub use self::block::{Block, BlockFault, ForeignClient, ProxyCommand};
pub use self::document::DocumentFault;
pub use self::edit::{Edit, EditError, Place, plan};
pub use self::quoting::{QuotingFault, System};
