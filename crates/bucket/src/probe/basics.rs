//! Checks that send one request after the other.

use store::object::{ObjectsError, ObjectsErrorKind, Part};

use super::session::{Finding, Session};
use crate::url::Provider;

/// Attempts of a create that must be refused, before a 409 is taken for the store's way to say so.
const CONFLICTS: usize = 3;

/// A HEAD of a missing object: it confirms that a log still has its owner, and "denied" confirms nothing.
pub(super) async fn missing_object(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let name = format!("{}missing/{attempt}", session.prefix());
    match session.client(0).head(&name).await {
        Err(error) if error.kind == ObjectsErrorKind::NotFound => {
            Ok(Finding::passed("a HEAD of a missing object returns 404"))
        }
        Err(error) if error.kind == ObjectsErrorKind::Denied => Ok(Finding::failed(format!(
            "a HEAD of a missing object is denied and does not return 404; {}: {}",
            missing_right(session.url().provider),
            error.what
        ))
        .last()),
        Err(error) => Err(error),
        Ok(_) => Ok(Finding::failed("an object was found that was never created").last()),
    }
}

fn missing_right(provider: Provider) -> &'static str {
    match provider {
        Provider::S3 => "the policy lacks s3:ListBucket on the bucket, or s3:GetObject on its objects",
        Provider::Gcs => "the account lacks storage.objects.get or storage.objects.list on the bucket",
        Provider::Azure => "the account lacks the role Storage Blob Data Contributor on the container",
    }
}

/// Create, create again, read.
pub(super) async fn conditional_create(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let name = session.name(&format!("create/{attempt}"));
    session.create(0, &name, "first").await?;
    let mut conflicts = 0;
    while conflicts < CONFLICTS {
        match session.create(0, &name, "second").await {
            Err(error) if error.kind == ObjectsErrorKind::Taken => break,
            Err(error) if error.kind == ObjectsErrorKind::Conflict => conflicts += 1,
            Err(error) => return Err(error),
            Ok(()) => {
                let what = "the condition of a create is ignored: a second create of one object succeeded, so two servers \
                            could own one log";
                return Ok(Finding::failed(what).last());
            }
        }
    }
    match session.read(0, &name).await? {
        Some(bytes) if bytes == b"first" => {}
        Some(_) => {
            return Ok(Finding::failed("a create that was refused has replaced the object").last());
        }
        None => return Ok(Finding::failed("an object that was created is not found").last()),
    }
    if conflicts == CONFLICTS {
        let what = "an object that exists is reported as a conflict (409) and not as a failed condition (412): usable, but \
                    each conflict costs a read";
        return Ok(Finding::warning(what));
    }
    Ok(Finding::passed("a second creator is refused, and the object stays as it was"))
}

/// One upload that is completed, and one that is aborted.
pub(super) async fn multipart(session: &Session, attempt: u32) -> Result<Finding, ObjectsError> {
    let client = session.client(0);
    let (completed, aborted) = (
        session.name(&format!("upload/{attempt}-completed")),
        session.name(&format!("upload/{attempt}-aborted")),
    );
    let content = Part::from(b"one part".to_vec());
    let id = client.begin_upload(&completed).await?;
    let part = client.upload_part(&completed, &id, 0, &content).await?;
    client.complete_upload(&completed, &id, vec![part]).await?;
    if session.read(0, &completed).await?.as_deref() != Some(b"one part") {
        return Ok(Finding::failed("an upload in parts was completed, and the object is not what was sent"));
    }
    let id = client.begin_upload(&aborted).await?;
    client.upload_part(&aborted, &id, 0, &content).await?;
    client.abort_upload(&aborted, &id).await?;
    if session.exists(0, &aborted).await? {
        return Ok(Finding::failed("an upload in parts was aborted, and the object exists"));
    }
    Ok(Finding::passed("an upload in parts was completed, and another aborted"))
}
