//! `GET /v1/events`: what happens, as it happens, as server-sent events.
//!
//! **Invariant.** What is told is durable. A reader sees the namespaces that its certificate lets it read, while that
//! certificate is good. One that cannot keep up loses its connection, and comes again with `Last-Event-ID`: what it
//! missed is told, or, if that is gone, `reset` is: read again what you need to know.
//!
//! **What would break it.** To tell of a lease whose namespace is not known any more: it may be one that this reader
//! must not see. To leave it out without a word: the reader believes that nothing happened. So it is told `reset`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use api::agents::Event as Told;
use api::words;
use api::{Code, Refusal};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use http_body::Frame;
use identity::Right;
use kernel::{Event, Identity, LeaseId, Namespace};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use crate::backend::event_log::ring::{Entry, EventId, Subject, Taken, What, lease_of};
use crate::backend::shards::App;
use crate::handlers::acquire::resource;
use crate::http::connection::Recheck;
use crate::parse::query::Query;
use crate::parse::{self, Headers};
use crate::peer::Peer;
use crate::present::refusals::Refused;

/// How many may follow, in all and as one identity.
const READERS_MAX: (usize, usize) = (1000, 100);
/// How many entries are read from the ring at a time.
const STEP: usize = 64;
/// A piece of the answer is sent once it is this long.
const PIECE_BYTES: usize = 16 * 1024;
/// Something is sent at least this often: so that both ends know that the other is there.
const QUIET: Duration = Duration::from_secs(15);
/// How long a reader may take to take a piece.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct Where {
    /// Only events of this namespace.
    #[param(value_type = Option<words::Namespace>)]
    namespace: Option<String>,
}

pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Extension(peer): Extension<Peer>,
    recheck: Option<Extension<Recheck>>,
    Query(query): Query<Where>,
    Headers(headers): Headers,
) -> Result<Response, Refused> {
    if app.is_draining() {
        return Err(Refusal::new(Code::Draining, "the server is about to stop; ask another").into());
    }
    let namespace = query.namespace.as_deref().map(|name| parse::namespace(Some(name))).transpose()?;
    if let Some(namespace) = &namespace {
        parse::may(&peer, namespace, Right::Read)?;
    }
    let seen = last_seen(&headers)?;
    let seat = Seat::take(&app.readers, &peer.identity)?;
    let resumed = seen.map(|id| app.news.events.after(id));
    let reader = Reader {
        from: resumed.flatten().unwrap_or_else(|| app.news.events.end()),
        app: Arc::clone(&app),
        peer,
        namespace,
        recheck: recheck.map(|Extension(recheck)| recheck),
        piece: String::from(":\n\n"),
        _seat: seat,
    };
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(reader.run(send, resumed == Some(None)));
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store");
    Ok(response.body(Body::new(Pieces(receive))).expect("its parts are valid"))
}

/// Empty, as it is where no event has come yet, is none.
fn last_seen(headers: &HeaderMap) -> Result<Option<EventId>, Refusal> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    let id = value.to_str().ok().and_then(EventId::parse);
    let wrong = || Refusal::new(Code::InvalidBody, "Last-Event-ID is not the id of an event: LSN.index");
    id.map(Some).ok_or_else(wrong)
}

/// How many follow, by identity.
pub(crate) type Readers = Mutex<BTreeMap<Identity, usize>>;

/// A reader's place among so many.
struct Seat {
    readers: Arc<Readers>,
    identity: Identity,
}

impl Seat {
    fn take(readers: &Arc<Readers>, identity: &Identity) -> Result<Seat, Refusal> {
        let mut counts = readers.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.entry(identity.clone()).or_default();
        if all >= READERS_MAX.0 || *own >= READERS_MAX.1 {
            if *own == 0 {
                counts.remove(identity);
            }
            return Err(Refusal::new(Code::Throttled, "too many follow events already"));
        }
        *own += 1;
        Ok(Seat { readers: Arc::clone(readers), identity: identity.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut counts = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.identity) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.identity);
            }
        }
    }
}

/// The body: pieces, as they come.
struct Pieces(mpsc::Receiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Follows what happens, for one connection.
struct Reader {
    app: Arc<App>,
    peer: Peer,
    namespace: Option<Namespace>,
    recheck: Option<Recheck>,
    /// Where it is in the ring.
    from: u64,
    /// What is sent next.
    piece: String,
    _seat: Seat,
}

/// Nobody takes it any more, or may.
struct Over;

impl Reader {
    async fn run(mut self, send: mpsc::Sender<Bytes>, reset: bool) {
        if reset {
            self.reset();
        }
        let _ = self.follow(&send).await;
    }

    async fn follow(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), Over> {
        let mut closed = self.app.news.events.watch();
        loop {
            let over = *closed.borrow_and_update();
            self.tell_all(send).await?;
            self.flush(send).await?;
            if over {
                return Err(Over);
            }
            tokio::select! {
                changed = closed.changed() => changed.map_err(|_| Over)?,
                () = send.closed() => return Err(Over),
                () = tokio::time::sleep(QUIET) => self.piece.push_str(":\n\n"),
            }
        }
    }

    /// All that is in the ring from here on.
    async fn tell_all(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), Over> {
        loop {
            let Taken::Entries(entries, next) = self.app.news.events.take(self.from, STEP) else {
                return Err(Over);
            };
            if entries.is_empty() {
                return Ok(());
            }
            resolve(&self.app, &entries).await?;
            for entry in &entries {
                self.tell(entry);
                if self.piece.len() >= PIECE_BYTES {
                    self.flush(send).await?;
                }
            }
            self.from = next;
        }
    }

    async fn flush(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), Over> {
        if self.piece.is_empty() {
            return Ok(());
        }
        if self.recheck.as_ref().is_some_and(|recheck| !(recheck.0)()) {
            return Err(Over);
        }
        let piece = std::mem::take(&mut self.piece).into();
        match tokio::time::timeout(PATIENCE, send.send(piece)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Over),
        }
    }

    fn reset(&mut self) {
        self.piece.push_str("event: reset\ndata: {}\n\n");
    }

    fn tell(&mut self, entry: &Entry) {
        let told = match (&entry.what, entry.subject.get()) {
            (What::Contended(contended), _) if self.may_see(&contended.namespace) => {
                contended_told(contended)
            }
            (What::Lease(event), Some(Some(subject))) if self.may_see(&subject.namespace) => {
                lease_told(event, subject)
            }
            (What::Lease(_), None | Some(None)) => return self.reset(),
            _ => return,
        };
        let data = serde_json::to_string(&told).expect("it can always be written");
        // JSON has no line breaks of its own.
        let told = write!(self.piece, "id: {}\nevent: {}\ndata: {data}\n\n", entry.id, told.event);
        told.expect("writing to a string");
    }

    fn may_see(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.peer.rights.allows(namespace.as_str(), Right::Read)
    }
}

/// Finds out whose leases these are, where nobody has yet.
async fn resolve(app: &App, entries: &[Arc<Entry>]) -> Result<(), Over> {
    let unknown = || entries.iter().filter(|entry| entry.subject.get().is_none());
    if unknown().next().is_none() {
        return Ok(());
    }
    let _one_for_all = app.news.events.resolving.lock().await;
    for shard in 0..app.shards() {
        let mut asked: Vec<(Arc<Entry>, LeaseId)> = Vec::new();
        for entry in unknown() {
            let What::Lease(event) = &entry.what else { continue };
            let lease = lease_of(event).filter(|lease| app.shard_of_lease(*lease) == Some(shard));
            asked.extend(lease.map(|lease| (Arc::clone(entry), lease)));
        }
        if asked.is_empty() {
            continue;
        }
        let look = move |view: &crate::backend::shards::View<'_>| {
            for (entry, lease) in asked {
                let subject = view.kernel.lease(lease, view.now).ok().map(|lease| Subject {
                    namespace: lease.namespace,
                    identity: lease.identity,
                    agent: lease.details.agent,
                    members: lease.members,
                });
                // Only who has the lock looks.
                let _ = entry.subject.set(subject);
            }
        };
        app.look(shard, look).await.map_err(|_| Over)?;
    }
    Ok(())
}

fn contended_told(contended: &engine::decider::Contended) -> Told {
    use engine::decider::CameTo;
    let how = match contended.came_to {
        CameTo::Queued => "waits",
        CameTo::Refused => "refused",
        CameTo::Died => "died",
        CameTo::TimedOut => "timed_out",
    };
    Told {
        event: "contention".to_string(),
        namespace: contended.namespace.as_str().to_string(),
        holder: contended.identity.as_str().to_string(),
        agent_id: contended.agent.as_ref().map(|agent| agent.as_str().to_string()),
        resources: contended.members.iter().map(resource).collect(),
        how: Some(how.to_string()),
        blocked_by: contended.holders.iter().map(ToString::to_string).collect(),
        ..Told::default()
    }
}

fn lease_told(event: &Event, subject: &Subject) -> Told {
    let (name, how) = match event {
        Event::Granted(..) | Event::Activated(_) => ("granted", None),
        Event::Rebound(..) => ("granted", Some("rebound")),
        Event::Released(_) => ("released", None),
        Event::Expired { held_until: Some(_), .. } => ("expired", Some("held")),
        Event::Expired { .. } => ("expired", None),
        Event::Revoked(_) => ("revoked", None),
        Event::Reclaimed(_) => ("reclaimed", None),
        Event::Committed { .. } => ("committed", None),
        Event::Removed { .. } | Event::Dropped { .. } => ("committed", Some("removed")),
    };
    let (written, version) = match event {
        Event::Committed { key, version, .. } | Event::Removed { key, version, .. } => {
            (Some(key), Some(version.0))
        }
        _ => (None, None),
    };
    let covered = subject.members.iter().filter(|member| written.is_none_or(|key| member.resource == *key));
    Told {
        event: name.to_string(),
        namespace: subject.namespace.as_str().to_string(),
        public_id: lease_of(event).map(|lease| lease.to_string()),
        holder: subject.identity.as_str().to_string(),
        agent_id: subject.agent.as_ref().map(|agent| agent.as_str().to_string()),
        resources: covered.map(resource).collect(),
        fencing_token: match event {
            Event::Granted(_, token) | Event::Rebound(_, token) => Some(token.0),
            _ => None,
        },
        version,
        how: how.map(ToString::to_string),
        blocked_by: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::http::Request;
    use http_body_util::BodyExt;
    use identity::Role;
    use tower::ServiceExt;

    use super::*;

    /// A certificate was revoked while its holder followed events: it went on following them.
    #[tokio::test]
    async fn a_reader_whose_certificate_is_revoked_is_told_nothing_more() {
        let good = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&good);
        let recheck = Recheck(Arc::new(move || asked.load(Ordering::Acquire)));
        let app = crate::testing::app(crate::backend::shards::Settings::default());
        let router = crate::http::router::router(&app)
            .layer(Extension(recheck))
            .layer(Extension(Peer::anonymous(Role::Worker)));
        let acquire = |key: &str| {
            let body = Body::from(format!("{{\"key\":\"{key}\"}}"));
            let request = Request::post("/v1/acquire").body(body).expect("a valid request");
            let router = router.clone();
            async move {
                let response = router.oneshot(request).await.expect("it always answers");
                assert_eq!(response.status(), 200);
                response.into_body().collect().await.expect("it is read");
            }
        };
        let request = Request::get("/v1/events").body(Body::empty()).expect("a valid request");
        let mut body = router.clone().oneshot(request).await.expect("it always answers").into_body();
        acquire("seen").await;
        let mut told = String::new();
        while !told.contains("seen") {
            let frame = body.frame().await.expect("it goes on").expect("it never fails");
            told += std::str::from_utf8(&frame.into_data().expect("no trailers")).expect("text");
        }
        good.store(false, Ordering::Release);
        acquire("unseen").await;
        while let Some(frame) = body.frame().await {
            let more = frame.expect("it never fails").into_data().expect("no trailers");
            assert!(!String::from_utf8_lossy(&more).contains("unseen"));
        }
    }
}
