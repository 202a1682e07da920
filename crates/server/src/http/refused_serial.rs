//! The serial of the certificate that the handshake of this task has refused.
//!
//! A failed handshake has no certificate to show. The verifier runs within the task of the handshake and notes the serial
//! here, for the log.

use std::cell::Cell;

use identity::Serial;

tokio::task_local! {
    static REFUSED: Cell<Option<Serial>>;
}

/// Notes the serial of a refused certificate; without effect outside [`during`].
pub(crate) fn note(serial: Serial) {
    let _ = REFUSED.try_with(|refused| refused.set(Some(serial)));
}

/// Runs a handshake, and returns its result with the serial that it noted.
pub(crate) async fn during<T>(handshake: impl Future<Output = T>) -> (T, Option<Serial>) {
    let run = async {
        let result = handshake.await;
        (result, REFUSED.with(Cell::get))
    };
    REFUSED.scope(Cell::new(None), run).await
}
