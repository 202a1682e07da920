//! Lists and deletions: what was created is listed at once and in order, what was deleted is gone.

use futures_util::future::join_all;
use store::object::ObjectsError;

use super::session::{Finding, Session};

/// Objects that are created and listed.
const OBJECTS: usize = 5;

/// After each create, lists through every address.
pub(super) async fn list_after_put(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let prefix = format!("{}list/{attempt}/", session.prefix());
    let mut created = Vec::new();
    for number in 0..OBJECTS {
        let name = session.name(&format!("list/{attempt}/{number:04}"));
        session.create(number, &name, "listed").await?;
        created.push(name);
        let lists: Vec<_> =
            (0..session.client_count()).map(|client| session.client(client).list(&prefix, "")).collect();
        for (client, page) in join_all(lists).await.into_iter().enumerate() {
            let listed = page?.names;
            if listed != created {
                return Ok(Finding::failed(format!(
                    "a list does not show what was created before: an owner could overlook batches and floors: \
                     created={} listed={} listed_through={}",
                    created.len(),
                    listed.len(),
                    session.address(client)
                )));
            }
        }
    }
    let middle = OBJECTS / 2;
    let page = session.client(0).list(&prefix, &created[middle]).await?;
    if page.names != created[middle + 1..] {
        return Ok(Finding::failed(format!(
            "a list that begins after a name does not show the names after it: expected={} listed={}",
            OBJECTS - middle - 1,
            page.names.len()
        )));
    }
    Ok(Finding::passed("a list shows an object as soon as it was created, and can begin after a name"))
}

/// Creates, deletes, looks through every address.
pub(super) async fn head_after_delete(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let name = session.name(&format!("delete/{attempt}"));
    session.create(0, &name, "deleted").await?;
    if !session.exists(0, &name).await? {
        return Ok(Finding::failed("an object that was created is not found"));
    }
    session.client(0).delete_all(vec![name.clone()]).await?;
    let heads: Vec<_> = (0..session.client_count()).map(|client| session.exists(client, &name)).collect();
    for (client, found) in join_all(heads).await.into_iter().enumerate() {
        if found? {
            let what = format!("a deleted object is found: read_through={}", session.address(client));
            return Ok(Finding::failed(what));
        }
    }
    Ok(Finding::passed("a deleted object is not found"))
}
