//! Views for clients with the right to read: keys, leases, tokens, namespaces.

use std::sync::Arc;

use api::{Code, Refusal, responses, schema_types};
use axum::extract::{Path, State};
use axum::{Extension, Json};
use identity::Right;
use kernel::{Bundle, Cursor, LeaseView, Namespace, Predicate, Shard, Token};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::leases::visible_lease;
use crate::backend::lists;
use crate::backend::shards::{Backend, ShardView};
use crate::parse;
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::leases::{self, KeyDescription, public_lease};
use crate::present::refusals::{bad_cursor, no_such_key};

/// The most leases on a page.
const PAGE_MAX: usize = 1000;
/// No further leases are added to a page of this length, in bytes.
const PAGE_BYTES: usize = 1 << 20;
/// The most queries for one page. Rows that the caller may not see, or that are empty, may need many.
const QUERIES_MAX: usize = 400;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DescribeQuery {
    /// Name of the key.
    #[param(value_type = schema_types::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FenceQuery {
    /// Name of the key.
    #[param(value_type = schema_types::Key)]
    key: Option<String>,
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// The fencing token to check.
    #[param(value_type = u64, maximum = 18_446_744_073_709_551_615_usize)]
    token: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeasesQuery {
    /// Only leases of this namespace.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
    /// `cursor` of the previous page.
    #[param(pattern = r"^[0-9]{1,9}\.[0-9]{1,19}$")]
    cursor: Option<String>,
    /// Maximum number of leases on a page; leases that the caller may not see are left out.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

pub(crate) async fn describe(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<DescribeQuery>,
) -> JsonResult<responses::Described> {
    let key = parse::required_key(query.key.as_deref())?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let (resource, of) = (key.clone(), namespace.clone());
    let read = move |view: &ShardView<'_>| {
        let key = view.kernel.key(&of, &resource)?;
        let holders = view.kernel.holders(&of, &resource, view.now);
        let lease = holders.iter().find(|lease| writes(lease)).or(holders.first()).cloned();
        let waiters = view.waiters.count_ahead(&of, &Bundle::of_key(resource), None);
        Some(KeyDescription { key, lease, waiters, moment: view.moment })
    };
    let description = backend.query(backend.shard_of(&namespace), read).await?.ok_or_else(no_such_key)?;
    Ok(Json(leases::described(key.name(), &namespace, &description)))
}

fn writes(lease: &LeaseView) -> bool {
    lease.members.iter().any(|member| member.predicate == Predicate::Mutates)
}

pub(crate) async fn lease(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(id): Path<String>,
) -> JsonResult<responses::Lease> {
    let may_read = |namespace: &Namespace| peer.rights.allows(namespace.as_str(), Right::Read);
    let (view, moment) = visible_lease(&backend, parse::public_id(&id)?, may_read).await?;
    Ok(Json(public_lease(&backend, &view, &moment)))
}

pub(crate) async fn leases(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<LeasesQuery>,
) -> JsonResult<responses::Leases> {
    let namespace = parse::optional_namespace(query.namespace.as_deref())?;
    if let Some(namespace) = &namespace {
        parse::require_right(&peer, namespace, Right::Read)?;
    }
    let (mut shard, mut cursor) = match &query.cursor {
        Some(text) => {
            parse_cursor(text).filter(|(shard, _)| exists(&backend, *shard)).ok_or_else(bad_cursor)?
        }
        None => (namespace.as_ref().map_or(Shard(0), |name| backend.shard_of(name)), Cursor::default()),
    };
    let limit = parse::page_limit(query.limit, PAGE_MAX)?;
    let mut page = responses::Leases::default();
    let mut bytes = 0;
    for _ in 0..QUERIES_MAX {
        if page.leases.len() == limit || bytes >= PAGE_BYTES || !exists(&backend, shard) {
            break;
        }
        let (rights, only) = (peer.rights.clone(), namespace.clone());
        let left = limit - page.leases.len();
        let read = move |view: &ShardView<'_>| {
            let mut leases = view.kernel.leases_page(cursor, left, view.now);
            leases.rows.retain(|lease| {
                rights.allows(lease.namespace.as_str(), Right::Read)
                    && only.as_ref().is_none_or(|only| *only == lease.namespace)
            });
            (leases, view.moment)
        };
        let (leases, moment) = backend.query(shard, read).await?;
        bytes += leases.rows.iter().map(leases::json_bytes).sum::<usize>();
        page.leases.extend(leases.rows.iter().map(|lease| public_lease(&backend, lease, &moment)));
        match leases.next {
            Some(next) => cursor = next,
            // A namespace is in one shard.
            None if namespace.is_some() => return Ok(Json(page)),
            None => (shard, cursor) = (Shard(shard.0 + 1), Cursor::default()),
        }
    }
    page.cursor = exists(&backend, shard).then(|| format!("{}.{}", shard.0, cursor.0));
    Ok(Json(page))
}

fn exists(backend: &Backend, shard: Shard) -> bool {
    shard.0 < backend.shard_count()
}

/// `shard.number`
fn parse_cursor(text: &str) -> Option<(Shard, Cursor)> {
    let (shard, number) = text.split_once('.')?;
    Some((Shard(shard.parse().ok()?), Cursor(number.parse().ok()?)))
}

pub(crate) async fn fence(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Query(query): Query<FenceQuery>,
) -> JsonResult<responses::Fence> {
    let key = parse::required_key(query.key.as_deref())?;
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let missing = || Refusal::new(Code::InvalidBody, "the query parameter `token` is missing");
    let token = Token(query.token.ok_or_else(missing)?);
    let shard = backend.shard_of(&namespace);
    let read = move |view: &ShardView<'_>| view.kernel.is_current(&namespace, &key, token, view.now);
    Ok(Json(responses::Fence { current: backend.query(shard, read).await? }))
}

pub(crate) async fn namespaces(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
) -> JsonResult<responses::Namespaces> {
    let mut namespaces = Vec::new();
    for shard in backend.shards() {
        namespaces.extend(lists::namespaces(&backend, shard).await?);
    }
    namespaces.retain(|namespace| peer.rights.allows(namespace.as_str(), Right::Read));
    namespaces.sort_unstable();
    let names = namespaces.iter().map(|name| name.as_str().to_string());
    Ok(Json(responses::Namespaces { namespaces: names.collect() }))
}
