//! A large piece keeps its slot for as long as the writer holds a part of it back, as TLS does with what it has encrypted.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Waker;

use super::*;
use crate::tunnel::direction::{Both, Direction};
use crate::tunnel::limits::bucket::RateLimit;
use crate::tunnel::limits::{Rate, Size};
use crate::tunnel::relay::config::{Options, Resources};
use crate::tunnel::relay::meter::{Meter, Totals};

/// Has always as much as is asked for.
struct Source;

impl Reader for Source {
    fn poll_readable(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_read<'a>(&'a mut self, _context: &mut Context<'_>, buffer: &'a mut [u8]) -> Poll<io::Result<&'a [u8]>> {
        Poll::Ready(Ok(buffer))
    }

    async fn failed(&mut self) -> io::Error {
        pending().await
    }

    async fn ended(&mut self) -> io::Result<()> {
        pending().await
    }
}

/// Takes all bytes at once. Once it has taken this many, a flush waits.
struct HoldsBack(usize);

impl Writer for HoldsBack {
    fn poll_write(&mut self, _context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0 = self.0.saturating_sub(bytes.len());
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_large_piece_keeps_its_slot_until_it_is_sent() {
    let (resources, options) = (Resources::new(0), Options::default());
    let (limit, meter) = (
        RateLimit::new(Rate::UNLIMITED, Size::bytes(1 << 20).unwrap()),
        Meter::new(Arc::new(Totals::default())),
    );
    let config = RelayConfig {
        limits: Both::from_fn(|_| (&limit).into()),
        meter: &meter,
        resources: &resources,
        options: &options,
        on_close: None,
        guard: None,
        is_inspected: false,
    };
    // The third copy is the first large one.
    for (room, slots) in [(copy::MAX_BYTES, 0), (3 * copy::MAX_BYTES, 1)] {
        let flow = Flow {
            direction: Direction::Download,
            reader: Source,
            writer: HoldsBack(room),
            prefix: None,
        };
        let mut pump = Pump::new(flow, BulkMode::Chunks, &config);
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(pump.run()).poll(&mut context).is_pending());
        assert_eq!(resources.large_pieces.taken(), slots, "{room}");
        // The receiver reads again.
        pump.flow.writer.0 = 1;
        assert!(pin!(pump.flush()).poll(&mut context).is_ready());
        assert_eq!(resources.large_pieces.taken(), 0, "{room}");
    }
}
