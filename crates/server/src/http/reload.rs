//! Reloads the identity file and the denylist: on request, and when the files change.
//!
//! **Invariant.** When a reload has returned, nothing more is decided for a client whose certificate it revoked, on any
//! connection: not for requests in progress, waiters, uploads, or sessions that are resumed. A refused reload changes
//! nothing.
//!
//! **What would break it.** A waiter checked when its request began, granted when the holder releases. A command that a
//! turn has checked just before the reload, and decides just after it has returned. So, in this order: the denylist is
//! replaced, for new connections and requests; open connections of revoked certificates lose their authorization, which
//! every decision checks; every shard passes the turn that may have checked before.
//! A denylist that lost serials, by a truncated file or an old backup: revoked clients would be let in again. So serials
//! leave the list only by an explicit un-revocation.
//! A file that is read while it is written: so a changed file is taken once it was read twice, unchanged in between.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use identity::{Denylist, Error, Serial, UnixTime};
use tokio::sync::watch;

use crate::backend::shards::Backend;
use crate::http::connections::Connections;
use crate::http::identities::{Fingerprint, Identities, IdentityFiles, ParsedIdentity};

/// How often the files are read. A change is in force after two reads.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A revocation is in force within 5 seconds, the reads and the reload itself included.
const _: () = assert!(POLL_INTERVAL.as_millis() * 2 <= 2500, "a change is read twice within half of that");
/// How many serials a message shows.
const SHOWN_MAX: usize = 8;

/// Reloads the files of a server's identity.
pub(crate) struct Reloader {
    identities: Identities,
    connections: Arc<Connections>,
    backend: Arc<Backend>,
    /// Held during a reload: one at a time.
    watched: Mutex<WatchedFiles>,
}

/// The files as they were read.
struct WatchedFiles {
    /// The files that were accepted or refused last.
    settled: Fingerprint,
    /// Other files, read once.
    candidate: Option<Fingerprint>,
}

/// The changes of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadSummary {
    pub(crate) revoked: usize,
    pub(crate) unrevoked: usize,
    /// Connections that were ended.
    pub(crate) closed: usize,
}

impl Reloader {
    pub(crate) fn new(
        identities: Identities,
        connections: &Arc<Connections>,
        backend: &Arc<Backend>,
    ) -> Reloader {
        let watched = Mutex::new(WatchedFiles { settled: identities.loaded, candidate: None });
        let (connections, backend) = (Arc::clone(connections), Arc::clone(backend));
        Reloader { identities, connections, backend, watched }
    }

    pub(crate) fn identities(&self) -> &Identities {
        &self.identities
    }

    /// Reads the files and takes them over at once. If anything is wrong with them, nothing changes.
    pub(crate) fn reload(&self) -> Result<ReloadSummary, Error> {
        let mut watched = self.lock();
        self.take(&mut watched, &self.identities.read_files())
    }

    /// Takes over changed files, until the server stops.
    pub(crate) async fn watch(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            let this = Arc::clone(&self);
            // A panic of the poll is reported by the panic hook.
            let _ = tokio::task::spawn_blocking(move || this.poll()).await;
        }
    }

    /// Reads the files once, and takes them over if they have changed and were read before as they are now.
    fn poll(&self) {
        let mut watched = self.lock();
        let files = self.identities.read_files();
        let read = files.fingerprint();
        let is_changed = read != watched.settled;
        let is_complete = watched.candidate.replace(read) == Some(read);
        if is_changed && is_complete {
            // The outcome is logged and counted.
            let _ = self.take(&mut watched, &files);
        }
    }

    fn take(&self, watched: &mut WatchedFiles, files: &IdentityFiles) -> Result<ReloadSummary, Error> {
        *watched = WatchedFiles { settled: files.fingerprint(), candidate: None };
        let reloaded = self.apply(files);
        self.backend.metrics.reloaded(reloaded.is_ok());
        if let Err(error) = &reloaded {
            tracing::error!(%error, "reload failed, the previous identities and revocations stay in use");
        }
        reloaded
    }

    fn apply(&self, files: &IdentityFiles) -> Result<ReloadSummary, Error> {
        let tls = &self.identities.tls;
        let before = tls.denylist.current();
        let ParsedIdentity { bundle, denylist, spiffe_map } = files.parse()?;
        let certificate = tls.server.prepare(&bundle, &denylist)?;
        refuse_lost(&before, &denylist)?;
        // Nothing below fails.
        let (revoked, unrevoked) = (before.added_in(&denylist), before.unrevoked_in(&denylist));
        tls.denylist.replace(denylist);
        certificate.install();
        tls.server.map_spiffe_ids(spiffe_map);
        self.identities.note_replaced(&bundle);
        let closed = self.connections.end_invalid(tls, self.now());
        self.backend.pass_turn();
        if !unrevoked.is_empty() {
            tracing::warn!(serials = %listed(&unrevoked), "certificates un-revoked");
        }
        if !revoked.is_empty() {
            tracing::info!(serials = %listed(&revoked), "certificates revoked");
        }
        let summary = ReloadSummary { revoked: revoked.len(), unrevoked: unrevoked.len(), closed };
        tracing::info!(
            revoked = summary.revoked,
            unrevoked = summary.unrevoked,
            closed,
            "reloaded identities and revocations"
        );
        Ok(summary)
    }

    fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_millis(self.backend.clocks.unix_ms()))
    }

    fn lock(&self) -> MutexGuard<'_, WatchedFiles> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refuse_lost(before: &Denylist, next: &Denylist) -> Result<(), Error> {
    let lost = before.lost_in(next);
    if lost.is_empty() {
        return Ok(());
    }
    let what =
        "revoked serials are missing from the denylist; restore them, or use `lockd auth unrevoke client`";
    Err(Error::invalid(format!("{what}: serials={}", listed(&lost))))
}

fn listed(serials: &[Serial]) -> String {
    let mut text = serials.iter().take(SHOWN_MAX).map(Serial::to_string).collect::<Vec<_>>().join(",");
    if serials.len() > SHOWN_MAX {
        let _ = write!(text, " more={}", serials.len() - SHOWN_MAX);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::backend::shards::RequestLimits;
    use crate::http::identities::IdentitySources;

    fn reloader(directory: &Path, denylist: &Path) -> Reloader {
        let identities = Identities::load(IdentitySources {
            location: None,
            denylist: Some(denylist.to_path_buf()),
            spiffe_map: None,
            data_dir: directory.to_path_buf(),
        });
        let backend = crate::testing::backend(RequestLimits::default());
        let connections = Connections::new(10, 10, &backend.metrics);
        Reloader::new(identities.expect("a first start"), &connections, &backend)
    }

    /// A denylist that is written in two steps, by `echo` into the file, was in force after the first.
    #[test]
    fn a_changed_file_is_taken_after_two_equal_reads() {
        let directory = tempfile::tempdir().expect("a directory");
        let denylist = directory.path().join("denylist");
        let write = |text: &str| std::fs::write(&denylist, text).expect("written");
        write("");
        let reloader = reloader(directory.path(), &denylist);
        let revoked = || reloader.identities.tls.denylist.len();
        write("0a\n");
        reloader.poll();
        assert_eq!(revoked(), 0, "read once");
        write("0a\n0b\n");
        reloader.poll();
        assert_eq!(revoked(), 0, "it has changed since");
        reloader.poll();
        assert_eq!(revoked(), 2, "read twice");
        write("0b\n");
        reloader.poll();
        reloader.poll();
        assert_eq!(revoked(), 2, "a list that lost serials is refused");
        write("0a\n0b\n0c\n");
        reloader.reload().expect("on request, at once");
        assert_eq!(revoked(), 3);
    }
}
