//! Logs a warning each day while a certificate of the server is about to expire.
//!
//! Without it the first sign of an expired certificate is that no client connects any more.

use std::sync::Arc;
use std::time::Duration;

use identity::{Certificate, KeyedCertificate, ServerBundle};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::backend::certificate_dates::{CertificateDate, CertificateUse};
use crate::backend::shards::Backend;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Certificates with less time left are warned of.
const SOON_SECONDS: i64 = 30 * 24 * 60 * 60;

/// The dates of all certificates in a server's identity file.
pub(crate) fn dates(bundle: &ServerBundle, file: &std::path::Path) -> Vec<CertificateDate> {
    let date = |which, certificate: &Certificate| CertificateDate {
        which,
        name: certificate.name().to_string(),
        not_after: certificate.not_after().as_secs(),
        file: file.display().to_string(),
    };
    let forwarding = bundle.forwarding().map(KeyedCertificate::certificate);
    let forwarding = forwarding.map(|certificate| date(CertificateUse::Forwarding, certificate));
    // The metric has one series for the other CAs: the one that expires first.
    let other = bundle.anchors().others().iter().min_by_key(|ca| ca.not_after().as_secs());
    let own =
        [date(CertificateUse::Server, bundle.server().certificate()), date(CertificateUse::Ca, bundle.ca())];
    own.into_iter().chain(forwarding).chain(other.map(|ca| date(CertificateUse::OtherCa, ca))).collect()
}

/// Warns at the start and each day, until the server stops.
pub(crate) async fn watch(backend: Arc<Backend>, stopped: watch::Receiver<bool>) {
    repeat(DAY, || warn(&backend), stopped).await;
}

/// Acts at once and after each period, until the server stops.
async fn repeat(period: Duration, act: impl Fn(), mut stopped: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => act(),
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

fn warn(backend: &Backend) {
    let now = backend.clocks.unix_ms() / 1000;
    for date in backend.certificates.all() {
        let remaining = date.remaining(now);
        let (which, cn, not_after_unix) = (date.which.as_str(), &date.name, date.not_after);
        if remaining < 0 {
            tracing::error!(which, cn, not_after_unix, "a certificate has expired; {}", date.advice());
        } else if remaining < SOON_SECONDS {
            let days = remaining / DAY.as_secs().cast_signed();
            tracing::warn!(which, cn, days, not_after_unix, "a certificate expires soon; {}", date.advice());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_warning_is_repeated_until_the_server_stops() {
        let (stop, stopped) = watch::channel(false);
        let warnings = Cell::new(0);
        let count = || {
            warnings.set(warnings.get() + 1);
            if warnings.get() == 3 {
                stop.send_replace(true);
            }
        };
        let repeated = repeat(Duration::from_millis(1), count, stopped);
        tokio::time::timeout(Duration::from_secs(60), repeated).await.expect("it stops");
        assert!(warnings.get() >= 3);
    }
}
