//! `GET /v1/events`: events as they become durable, as server-sent events.
//!
//! **Invariant.** Only durable events are sent. A subscriber sees the namespaces that its certificate lets it read, while
//! that certificate is valid. A subscriber that is too slow loses its connection, and reconnects with `Last-Event-ID`:
//! it gets the events that it missed, or `reset` if they are no longer in the buffer and it must read the state again.
//!
//! With shards on several servers, a stream of all namespaces has several parts, each with the events of the shards of one
//! server (`http::event_streams`). A part ends when its server no longer owns one of them.
//!
//! **What would break it.** To send an event of a lease whose namespace is no longer known: the subscriber may not be
//! allowed to see it. To omit it silently: the subscriber would believe that nothing happened. So it gets `reset`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::schema_types;
use api::{Code, Refusal};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use http_body::Frame;
use identity::Right;
use kernel::{LeaseId, Namespace, Shard};
use serde::Deserialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use crate::backend::error::BackendError;
use crate::backend::event_log::event_buffer::{
    BufferRead, BufferedEvent, EventId, EventKind, Subject, lease_of,
};
use crate::backend::event_log::subscribers::Subscription;
use crate::backend::shards::{Backend, OnlyShards, ShardView};
use crate::parse::query::Query;
use crate::parse::{self, Headers};
use crate::peer::{CertificateCheck, Peer};
use crate::present::events as present;
use crate::present::refusals::{RefusalResponse, too_many_subscriptions};

/// How many entries are read from the buffer at a time.
const ENTRIES_MAX: usize = 64;
/// A chunk of the response is sent once it is this long.
const CHUNK_BYTES: usize = 16 * 1024;
/// A keep-alive comment is sent after this time without an event.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a client may take to receive a chunk.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// Only events of this namespace.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
}

pub(crate) async fn events(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    check: Option<Extension<CertificateCheck>>,
    only: Option<Extension<OnlyShards>>,
    Query(query): Query<EventsQuery>,
    Headers(headers): Headers,
) -> Result<Response, RefusalResponse> {
    backend.check_not_draining()?;
    let namespace = parse::optional_namespace(query.namespace.as_deref())?;
    if let Some(namespace) = &namespace {
        parse::require_right(&peer, namespace, Right::Read)?;
    }
    let only = only.map(|Extension(OnlyShards(shards))| shards);
    check_owned(&backend, namespace.as_ref(), only.as_deref())?;
    let last_id = last_event_id(&headers)?;
    let subscription = Subscription::begin(&backend.subscribers, &peer.identity)
        .map_err(|it| too_many_subscriptions(&it))?;
    let resumed = last_id.map(|id| backend.event_log.events.after(id));
    let follower = Follower {
        position: resumed.flatten().unwrap_or_else(|| backend.event_log.events.end()),
        backend: Arc::clone(&backend),
        peer,
        namespace,
        only,
        check: check.map(|Extension(check)| check),
        chunk: String::from(present::KEEP_ALIVE),
        _subscription: subscription,
    };
    let (send, receive) = mpsc::channel(1);
    tokio::spawn(follower.run(send, resumed == Some(None)));
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store");
    Ok(response.body(Body::new(EventBody(receive))).expect("its parts are valid"))
}

/// Refuses what another server has to stream, or a part of it.
fn check_owned(
    backend: &Backend,
    namespace: Option<&Namespace>,
    only: Option<&[Shard]>,
) -> Result<(), BackendError> {
    only.map_or_else(|| backend.check_owned(namespace), |shards| backend.check_owns(shards))
}

/// Absent and empty both mean that the client has not received an event yet.
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<EventId>, Refusal> {
    let Some(value) = headers.get("last-event-id").filter(|value| !value.is_empty()) else { return Ok(None) };
    let id = value.to_str().ok().and_then(EventId::parse);
    let invalid =
        || Refusal::new(Code::InvalidBody, "the header Last-Event-ID is not the id of an event: LSN.index");
    id.map(Some).ok_or_else(invalid)
}

/// A body whose chunks arrive on a channel.
struct EventBody(mpsc::Receiver<Bytes>);

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Follows the buffer for one connection.
struct Follower {
    backend: Arc<Backend>,
    peer: Peer,
    namespace: Option<Namespace>,
    /// The shards of this part of a stream; `None` for a whole stream.
    only: Option<Arc<[Shard]>>,
    check: Option<CertificateCheck>,
    /// The position of the next entry in the buffer.
    position: u64,
    /// The text that is sent next.
    chunk: String,
    _subscription: Subscription,
}

/// The stream has ended: the client is gone or too slow, may no longer read, or the server is shutting down.
struct StreamEnd;

impl Follower {
    async fn run(mut self, send: mpsc::Sender<Bytes>, reset: bool) {
        if reset {
            self.chunk.push_str(present::RESET);
        }
        let _ = self.follow(&send).await;
    }

    async fn follow(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), StreamEnd> {
        let mut closed = self.backend.event_log.events.watch();
        loop {
            let is_closed = *closed.borrow_and_update();
            self.send_entries(send).await?;
            self.flush(send).await?;
            // The client comes back, and is sent to the server that has the shard now.
            let owned = check_owned(&self.backend, self.namespace.as_ref(), self.only.as_deref());
            if is_closed || owned.is_err() {
                return Err(StreamEnd);
            }
            tokio::select! {
                changed = closed.changed() => changed.map_err(|_| StreamEnd)?,
                () = send.closed() => return Err(StreamEnd),
                () = tokio::time::sleep(KEEP_ALIVE_INTERVAL) => self.chunk.push_str(present::KEEP_ALIVE),
            }
        }
    }

    /// Sends all entries from the position to the end of the buffer.
    async fn send_entries(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), StreamEnd> {
        loop {
            let BufferRead::Events(entries, next) =
                self.backend.event_log.events.read(self.position, ENTRIES_MAX)
            else {
                return Err(StreamEnd);
            };
            if entries.is_empty() {
                return Ok(());
            }
            resolve(&self.backend, &entries).await?;
            for entry in &entries {
                self.append(entry);
                if self.chunk.len() >= CHUNK_BYTES {
                    self.flush(send).await?;
                }
            }
            self.position = next;
        }
    }

    async fn flush(&mut self, send: &mpsc::Sender<Bytes>) -> Result<(), StreamEnd> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        if self.check.as_ref().is_some_and(|check| !(check.0)()) {
            return Err(StreamEnd);
        }
        let chunk = std::mem::take(&mut self.chunk).into();
        match tokio::time::timeout(SEND_TIMEOUT, send.send(chunk)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(StreamEnd),
        }
    }

    fn append(&mut self, entry: &BufferedEvent) {
        if self.only.as_ref().is_some_and(|shards| !shards.contains(&entry.id.shard)) {
            return;
        }
        let event = match (&entry.kind, entry.subject.get()) {
            (EventKind::Contention(contended), _) if self.may_read(&contended.namespace) => {
                present::contention(contended)
            }
            (EventKind::Lease(event), Some(Some(subject))) if self.may_read(&subject.namespace) => {
                present::lease(event, subject)
            }
            (EventKind::Lease(_), None | Some(None)) => return self.chunk.push_str(present::RESET),
            _ => return,
        };
        present::append(&mut self.chunk, entry, event);
    }

    fn may_read(&self, namespace: &Namespace) -> bool {
        self.namespace.as_ref().is_none_or(|only| only == namespace)
            && self.peer.rights.allows(namespace.as_str(), Right::Read)
    }
}

/// Looks up the leases of entries that no subscriber has looked up yet.
async fn resolve(backend: &Backend, entries: &[Arc<BufferedEvent>]) -> Result<(), StreamEnd> {
    let unresolved = || entries.iter().filter(|entry| entry.subject.get().is_none());
    if unresolved().next().is_none() {
        return Ok(());
    }
    // One subscriber looks up for all.
    let _lock = backend.event_log.events.resolving.lock().await;
    for shard in backend.shards() {
        let mut leases: Vec<(Arc<BufferedEvent>, LeaseId)> = Vec::new();
        for entry in unresolved() {
            let EventKind::Lease(event) = &entry.kind else { continue };
            let lease = lease_of(event).filter(|lease| lease.shard == shard);
            leases.extend(lease.map(|lease| (Arc::clone(entry), lease)));
        }
        if leases.is_empty() {
            continue;
        }
        let read = move |view: &ShardView<'_>| {
            for (entry, lease) in leases {
                let subject = view.kernel.lease(lease, view.now).ok().map(|lease| Subject {
                    namespace: lease.namespace,
                    identity: lease.identity,
                    agent: lease.details.agent,
                    members: lease.members,
                });
                // Never set before: the lock is held.
                let _ = entry.subject.set(subject);
            }
        };
        match backend.query(shard, read).await {
            // Another server has the shard: these entries are of no use to anyone here.
            Err(BackendError::Moved(_)) => {}
            result => result.map_err(|_| StreamEnd)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::http::Request;
    use http_body_util::BodyExt;
    use identity::Role;
    use tower::ServiceExt;

    use super::*;

    /// A certificate was revoked while its holder was subscribed: the server went on sending events.
    #[tokio::test]
    async fn a_subscriber_whose_certificate_is_revoked_gets_no_more_events() {
        let good = Arc::new(AtomicBool::new(true));
        let checked = Arc::clone(&good);
        let check = CertificateCheck(Arc::new(move || checked.load(Ordering::Acquire)));
        let backend = crate::testing::backend(crate::backend::shards::RequestLimits::default());
        let router = crate::http::router::router(&backend)
            .layer(Extension(check))
            .layer(Extension(Peer::anonymous(Role::Worker)));
        let acquire = |key: &str| {
            let body = Body::from(format!("{{\"key\":\"{key}\"}}"));
            let request = Request::post("/v1/acquire").body(body).expect("a valid request");
            let router = router.clone();
            async move {
                let response = router.oneshot(request).await.expect("it always answers");
                assert_eq!(response.status(), 200);
                response.into_body().collect().await.expect("a response");
            }
        };
        let request = Request::get("/v1/events").body(Body::empty()).expect("a valid request");
        let mut body = router.clone().oneshot(request).await.expect("it always answers").into_body();
        acquire("seen").await;
        let mut text = String::new();
        while !text.contains("seen") {
            let frame = body.frame().await.expect("it goes on").expect("it never fails");
            text += std::str::from_utf8(&frame.into_data().expect("no trailers")).expect("text");
        }
        good.store(false, Ordering::Release);
        acquire("unseen").await;
        while let Some(frame) = body.frame().await {
            let more = frame.expect("it never fails").into_data().expect("no trailers");
            assert!(!String::from_utf8_lossy(&more).contains("unseen"));
        }
    }
}
