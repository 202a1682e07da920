//! Long lists, read in several queries.
//!
//! **Invariant.** One query visits at most [`PAGE_ROWS`] rows of a shard: while it runs, no request is decided. Between
//! two queries other requests are decided, so a list is not the state at one moment. A row that exists throughout is in
//! it exactly once.

use engine::waiters::{Ticket, Waiter};
use kernel::{
    AgentName, AgentView, Cursor, KeyView, Namespace, PAGE_ROWS, Policy, ResourceName, Scope, Shard,
};

use crate::backend::error::BackendError;
use crate::backend::moment::Moment;
use crate::backend::shards::{Backend, OnlyShard, ShardView};

/// The most queries for one page. Rows that the caller may not see, or that are empty, may need many.
pub(crate) const QUERIES_MAX: usize = 400;

/// The most bytes of a key in a response, without its name, of which each character may need a backslash.
const KEY_BYTES: usize = 208;

/// A namespace's agents after `after`, at most `most`, by name.
pub(crate) async fn agents(
    backend: &Backend,
    namespace: &Namespace,
    mut after: Option<AgentName>,
    most: usize,
) -> Result<Vec<AgentView>, BackendError> {
    let mut agents: Vec<AgentView> = Vec::new();
    loop {
        let (of, from, left) = (namespace.clone(), after.take(), most - agents.len());
        let read = move |view: &ShardView<'_>| view.kernel.agents_page(&of, from.as_ref(), left, view.now);
        let page = backend.query(backend.shard_of(namespace), read).await?;
        agents.extend(page.rows);
        after = page.next;
        if after.is_none() || agents.len() == most {
            return Ok(agents);
        }
    }
}

/// Part of a list of keys that have a document.
pub(crate) struct KeyList {
    pub(crate) keys: Vec<(ResourceName, KeyView)>,
    /// Whether there are more keys behind them.
    pub(crate) more: bool,
    /// When the last of them was read.
    pub(crate) moment: Moment,
}

/// Which keys to list.
#[derive(Clone)]
pub(crate) struct KeyFilter {
    pub(crate) namespace: Namespace,
    /// What their names begin with.
    pub(crate) prefix: String,
}

/// The keys after `after` that have a document, by name: at most `most`, and no more than fit into a response of
/// `bytes_max` bytes.
pub(crate) async fn keys(
    backend: &Backend,
    filter: &KeyFilter,
    mut after: Option<ResourceName>,
    most: usize,
    bytes_max: usize,
) -> Result<KeyList, BackendError> {
    // The response ends with a cursor, which is as long as a key.
    let (mut keys, mut bytes) = (Vec::new(), KEY_BYTES + 2 * ResourceName::MAX_NAME_BYTES);
    loop {
        // One more tells whether the list goes on.
        let (of, left) = (filter.clone(), most + 1 - keys.len());
        let read = move |view: &ShardView<'_>| {
            (view.kernel.keys_page(&of.namespace, &of.prefix, after.as_ref(), left), view.moment)
        };
        let (page, moment) = backend.query(backend.shard_of(&filter.namespace), read).await?;
        for (key, view) in page.rows {
            bytes += KEY_BYTES + 2 * key.name().len();
            if keys.len() == most || bytes > bytes_max {
                return Ok(KeyList { keys, more: true, moment });
            }
            keys.push((key, view));
        }
        after = page.next;
        if after.is_none() {
            return Ok(KeyList { keys, more: false, moment });
        }
    }
}

/// A position in a list of the rows of all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowPosition {
    pub(crate) shard: Shard,
    pub(crate) cursor: Cursor,
}

impl RowPosition {
    pub(crate) fn first_of(shard: Shard) -> RowPosition {
        RowPosition { shard, cursor: Cursor::default() }
    }

    /// The position behind a page of the same shard, given where that page says that the shard's rows go on.
    pub(crate) fn behind(self, next: Option<Cursor>) -> RowPosition {
        match next {
            Some(cursor) => RowPosition { cursor, ..self },
            None => RowPosition::first_of(Shard(self.shard.0 + 1)),
        }
    }

    /// False behind the last shard.
    pub(crate) fn exists(self, backend: &Backend) -> bool {
        self.shard.0 < backend.shard_count()
    }
}

/// Namespaces that `is_wanted` accepts, at most `most`, in no particular order; and where the list goes on.
pub(crate) async fn namespaces(
    backend: &Backend,
    mut at: RowPosition,
    most: usize,
    is_wanted: impl Fn(&Namespace) -> bool,
) -> Result<(Vec<Namespace>, Option<RowPosition>), BackendError> {
    let start = at;
    let mut namespaces: Vec<Namespace> = Vec::new();
    for _ in 0..QUERIES_MAX {
        if namespaces.len() == most || !at.exists(backend) {
            break;
        }
        let (from, left) = (at.cursor, most - namespaces.len());
        let page = backend.query(at.shard, move |view| view.kernel.namespaces_page(from, left)).await;
        let page = match page {
            // The next page is the other server's.
            Err(BackendError::Moved(_)) if at != start => break,
            page => page?,
        };
        namespaces.extend(page.rows.into_iter().filter(&is_wanted));
        at = at.behind(page.next);
    }
    Ok((namespaces, Some(at).filter(|at| at.exists(backend))))
}

/// Scopes after `after` with a quota or a pause that `is_wanted` accepts, at most `most`: shard by shard, in order
/// within each. A scope without a namespace is in every shard; the first shard is the first to change, and stands for
/// all.
pub(crate) async fn policies(
    backend: &Backend,
    only: Option<OnlyShard>,
    after: Option<Scope>,
    most: usize,
    is_wanted: impl Fn(&Scope) -> bool,
) -> Result<Vec<(Scope, Policy)>, BackendError> {
    let first = after.as_ref().and_then(|scope| scope.namespace.as_ref()).map(|name| backend.shard_of(name));
    let first = first.unwrap_or(Shard(0));
    let (mut policies, mut after): (Vec<(Scope, Policy)>, _) = (Vec::new(), after);
    for shard in backend.shards_in(only).skip_while(|shard| *shard < first) {
        after = after.filter(|_| shard == first);
        loop {
            let from = after.take();
            let page = backend.query(shard, move |view| view.kernel.policies_page(from.as_ref())).await?;
            let shown = |scope: &Scope| (scope.namespace.is_some() || shard == Shard(0)) && is_wanted(scope);
            policies.extend(page.rows.into_iter().filter(|(scope, _)| shown(scope)));
            after = page.next;
            if policies.len() >= most {
                policies.truncate(most);
                return Ok(policies);
            }
            if after.is_none() {
                break;
            }
        }
    }
    Ok(policies)
}

/// The first waiters of a shard that `is_wanted` accepts, at most `most`, in order of arrival.
pub(crate) async fn waiters(
    backend: &Backend,
    shard: Shard,
    most: usize,
    is_wanted: impl Fn(&Waiter) -> bool + Clone + Send + 'static,
) -> Result<Vec<Ticket>, BackendError> {
    let (mut tickets, mut after): (Vec<Ticket>, Option<Ticket>) = (Vec::new(), None);
    loop {
        let is_wanted = is_wanted.clone();
        let read = move |view: &ShardView<'_>| {
            let (mut found, mut last, mut visited) = (Vec::new(), None, 0);
            for (ticket, waiter) in view.waiters.iter_after(after).take(PAGE_ROWS) {
                (last, visited) = (Some(ticket), visited + 1);
                found.extend(is_wanted(waiter).then_some(ticket));
            }
            view.count_waiters(visited);
            (found, last.filter(|_| visited == PAGE_ROWS))
        };
        let (found, last) = backend.query(shard, read).await?;
        tickets.extend(found);
        if tickets.len() >= most || last.is_none() {
            tickets.truncate(most);
            return Ok(tickets);
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Extension;
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt;
    use identity::Role;
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::backend::shards::RequestLimits;
    use crate::peer::Peer;
    use crate::testing::fill;

    const MANY: usize = 100_000;

    async fn get(backend: &Arc<Backend>, path: &str) -> Value {
        let router = crate::http::router::router(backend).layer(Extension(Peer::anonymous(Role::Operator)));
        let request = Request::get(path).body(Body::empty()).expect("a valid request");
        let response = router.oneshot(request).await.expect("it always answers");
        assert_eq!(response.status(), 200, "{path}");
        let body = response.into_body().collect().await.expect("a response").to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }

    /// The number of rows on all pages of a list.
    async fn count(backend: &Arc<Backend>, path: &str, field: &str) -> usize {
        let (mut rows, mut next) = (0, path.to_string());
        loop {
            let page = get(backend, &next).await;
            rows += page[field].as_array().map_or(0, Vec::len);
            let Some(cursor) = page["cursor"].as_str() else { return rows };
            next = format!("{path}?cursor={cursor}");
        }
    }

    /// A GET of a list visited all that is stored while no other request was decided: with 100,000 agents, every acquire
    /// waited for it.
    #[tokio::test]
    async fn no_list_visits_more_than_a_page_of_rows_in_one_query() {
        let backend = crate::testing::backend(RequestLimits::default());
        fill(&backend, MANY);
        let length = |response: &Value, field: &str| response[field].as_array().map_or(0, Vec::len);
        let agents = get(&backend, "/v1/agents?limit=1000").await;
        assert_eq!((length(&agents, "agents"), &agents["cursor"]), (1000, &Value::from("agent-000999")));
        assert_eq!(count(&backend, "/v1/namespaces", "namespaces").await, MANY);
        assert_eq!(length(&get(&backend, "/v1/leases?limit=1000").await, "leases"), 1000);
        let page = get(&backend, "/v1/leases?namespace=namespace-99997").await;
        assert!(length(&page, "leases") == 1 || page["cursor"].is_string(), "{page}");
        let contention = get(&backend, "/v1/contention").await;
        assert_eq!((length(&contention, "waiting"), &contention["more"]), (100, &Value::from(true)));
        assert_eq!(length(&get(&backend, "/v1/contention?namespace=other").await, "waiting"), 0);
        assert_eq!(count(&backend, "/v1/quotas", "quotas").await, MANY);
        for path in ["/v1/describe?key=k0", "/v1/resource/KEY:k0/state", "/v1/fence?key=k0&token=1"] {
            get(&backend, path).await;
        }
        let visited = backend.query_rows_max();
        assert!((200..=PAGE_ROWS as u64).contains(&visited), "one query visited {visited} rows");
    }
}
