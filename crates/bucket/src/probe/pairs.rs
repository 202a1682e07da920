//! Every ordered pair of addresses: what one has created, the other sees at once, and refuses to create again.
//!
//! A HEAD of the next name confirms the owner of a log: 404 means that no other writer has taken over. So a 404 that a
//! cache repeats would let a deposed owner continue: the HEAD is sent before the create, and again right after.

use futures_util::stream::{StreamExt as _, iter};
use store::object::{ObjectsError, ObjectsErrorKind};

use super::session::{Finding, Session};

/// Pairs that are tested at the same time.
const LANES: usize = 8;

pub(super) async fn address_pairs(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let count = session.client_count();
    let pairs = (0..count).flat_map(|reader| (0..count).map(move |creator| (reader, creator)));
    let checks: Vec<_> = pairs.map(|(reader, creator)| one_pair(session, attempt, reader, creator)).collect();
    let mut results = iter(checks).buffer_unordered(LANES);
    let mut failed: Option<Finding> = None;
    let mut error = None;
    while let Some(result) = results.next().await {
        match result {
            Ok(None) => {}
            Ok(Some(finding)) => failed = failed.or(Some(finding)),
            Err(one) => error = error.or(Some(one)),
        }
    }
    match (failed, error) {
        (Some(finding), _) => Ok(finding),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(Finding::passed(match count {
            1 => "an object is seen as soon as it was created, also where it was missing a moment ago"
                .to_string(),
            _ => format!(
                "what was created through one of {count} addresses is seen through every other at once"
            ),
        })),
    }
}

/// `None` if all is well.
async fn one_pair(
    session: &Session,
    attempt: u32,
    reader: usize,
    creator: usize,
) -> Result<Option<Finding>, ObjectsError> {
    let name = session.name(&format!("pair/{attempt}/{reader}-{creator}"));
    let between =
        || format!("created_through={} read_through={}", session.address(creator), session.address(reader));
    if session.exists(reader, &name).await? {
        return Ok(Some(Finding::failed("an object was found that was never created")));
    }
    session.create(creator, &name, "first").await?;
    if !session.exists(reader, &name).await? {
        let what = "an object is not found after it was created, where it was missing before: a deposed owner of a log \
                    would confirm itself";
        return Ok(Some(Finding::failed(format!("{what}: {}", between()))));
    }
    match session.create(reader, &name, "second").await {
        Err(error) if matches!(error.kind, ObjectsErrorKind::Taken | ObjectsErrorKind::Conflict) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => {
            let what =
                "the condition of a create is ignored at an address: a second create of one object succeeded";
            Ok(Some(Finding::failed(format!("{what}: {}", between()))))
        }
    }
}
