//! The recent history of a resource, and the caller as the server knows it.

use std::sync::Arc;

use api::history::{Caller, CallerRights, History};
use api::schema_types;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use identity::{Right, RightsScope};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::backend::history::HistorySubject;
use crate::backend::history_feed;
use crate::backend::shards::Backend;
use crate::parse;
use crate::parse::query::Query;
use crate::peer::Peer;
use crate::present::JsonResult;
use crate::present::history as present;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// The namespace; `default` if missing.
    #[param(value_type = Option<schema_types::Namespace>)]
    namespace: Option<String>,
}

pub(crate) async fn history(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
    Path(name): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> JsonResult<History> {
    let namespace = parse::namespace(query.namespace.as_deref())?;
    parse::require_right(&peer, &namespace, Right::Read)?;
    let resource = parse::resource(&name)?;
    backend.check_owned(Some(&namespace))?;
    history_feed::catch_up(&backend).await?;
    let now_unix_ms = backend.clocks.unix_ms();
    let read = backend.history.read(HistorySubject::resource(&namespace, &resource), now_unix_ms);
    Ok(Json(History {
        namespace: namespace.as_str().to_string(),
        kind: resource.kind().to_string(),
        name: resource.name().to_string(),
        since_unix_ms: read.since_unix_ms,
        limited_by: present::limit(read.bound),
        now_unix_ms,
        entries: read.records.iter().map(|record| present::entry(record)).collect(),
    }))
}

pub(crate) async fn whoami(
    State(backend): State<Arc<Backend>>,
    Extension(peer): Extension<Peer>,
) -> JsonResult<Caller> {
    let rights = peer.rights.iter().map(|listed| CallerRights {
        namespace: match listed.scope() {
            RightsScope::Any => "*".to_string(),
            RightsScope::Namespace(name) => name.clone(),
        },
        rights: listed.rights().to_string(),
    });
    Ok(Json(Caller {
        identity: peer.identity.as_str().to_string(),
        role: peer.role.as_str().to_string(),
        rights: rights.collect(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        now_unix_ms: backend.clocks.unix_ms(),
    }))
}
