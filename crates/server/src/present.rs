//! Decisions and views as responses of the API.
//!
//! **What is absent.** Parsing of requests, and calls to the backend.

pub(crate) mod etag;
pub(crate) mod refusals;
pub(crate) mod delivery;
pub(crate) mod leases;
pub(crate) mod bulk;
pub(crate) mod agents;
pub(crate) mod contention;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod documents;

use axum::Json;

use crate::present::refusals::RefusalResponse;

/// What most handlers return.
pub(crate) type JsonResult<T> = Result<Json<T>, RefusalResponse>;
