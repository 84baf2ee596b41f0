//! A ticket, as `switchboard ticket` makes it and the proxy keeps it: its letters, its hash, and its entry in a Secret.

mod code;
mod entry;

pub use self::code::{Key, NewTicket};
pub use self::entry::{SECRET_TYPE, Ticket, TicketTarget, data_of};
