//! A ticket, as `switchboard ticket` makes it and the proxy keeps it: its letters, its hash, and its entry in a Secret.

mod entry;
mod letters;

pub use self::entry::{SECRET_TYPE, Ticket, TicketTarget, data_of};
pub use self::letters::{Key, Minted};
