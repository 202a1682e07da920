//! Long lists, read in several queries.
//!
//! **Invariant.** One query visits at most [`PAGE_ROWS`] rows of a shard: while it runs, no request is decided. Between
//! two queries other requests are decided, so a list is not the state at one moment. A row that exists throughout is in
//! it exactly once.

use engine::waiters::{Ticket, Waiter};
use kernel::{AgentName, AgentView, Cursor, Namespace, PAGE_ROWS, Policy, Scope, Shard};

use crate::backend::error::BackendError;
use crate::backend::shards::{Backend, ShardView};

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

/// A shard's namespaces, in no particular order.
pub(crate) async fn namespaces(backend: &Backend, shard: Shard) -> Result<Vec<Namespace>, BackendError> {
    let (mut namespaces, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = backend.query(shard, move |view| view.kernel.namespaces_page(from)).await?;
        namespaces.extend(page.rows);
        cursor = page.next;
    }
    Ok(namespaces)
}

/// A shard's scopes with a quota or a pause, in order.
pub(crate) async fn policies(backend: &Backend, shard: Shard) -> Result<Vec<(Scope, Policy)>, BackendError> {
    let (mut policies, mut after) = (Vec::new(), None::<Scope>);
    loop {
        let from = after.take();
        let page = backend.query(shard, move |view| view.kernel.policies_page(from.as_ref())).await?;
        policies.extend(page.rows);
        after = page.next;
        if after.is_none() {
            return Ok(policies);
        }
    }
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

    /// A GET of a list visited all that is stored while no other request was decided: with 100,000 agents, every acquire
    /// waited for it.
    #[tokio::test]
    async fn no_list_visits_more_than_a_page_of_rows_in_one_query() {
        let backend = crate::testing::backend(RequestLimits::default());
        fill(&backend, MANY);
        let length = |response: &Value, field: &str| response[field].as_array().map_or(0, Vec::len);
        let agents = get(&backend, "/v1/agents?limit=1000").await;
        assert_eq!((length(&agents, "agents"), &agents["cursor"]), (1000, &Value::from("agent-000999")));
        assert_eq!(length(&get(&backend, "/v1/namespaces").await, "namespaces"), MANY);
        assert_eq!(length(&get(&backend, "/v1/leases?limit=1000").await, "leases"), 1000);
        let page = get(&backend, "/v1/leases?namespace=namespace-99997").await;
        assert!(length(&page, "leases") == 1 || page["cursor"].is_string(), "{page}");
        let contention = get(&backend, "/v1/contention").await;
        assert_eq!((length(&contention, "waiting"), &contention["more"]), (100, &Value::from(true)));
        assert_eq!(length(&get(&backend, "/v1/contention?namespace=other").await, "waiting"), 0);
        assert_eq!(length(&get(&backend, "/v1/quotas").await, "quotas"), MANY);
        for path in ["/v1/describe?key=k0", "/v1/resource/KEY:k0/state", "/v1/fence?key=k0&token=1"] {
            get(&backend, path).await;
        }
        let visited = backend.query_rows_max();
        assert!((200..=PAGE_ROWS as u64).contains(&visited), "one query visited {visited} rows");
    }
}
