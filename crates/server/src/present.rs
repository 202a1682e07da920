//! Decisions and views as responses of the API.

pub(crate) mod delivery;
pub(crate) mod refusals;
