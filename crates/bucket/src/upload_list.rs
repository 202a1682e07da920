//! Finds and aborts uploads that a dead writer has left: S3 and GCS keep their parts, and charge for them, for ever.
//!
//! The client library has no such request, so it is made here with the library's credentials. Azure forgets parts by
//! itself after a week.

use std::error::Error;
use std::time::Duration;

use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{HttpConnector as _, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions};
use store::object::{ObjectsError, ObjectsErrorKind};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::bucket::Inner;
use crate::exchange::Response;
use crate::outcome::{self, Effect};
use crate::provider::BucketAccess;

/// Uploads that were begun this long ago belong to a writer that has ended.
const OLD: time::Duration = time::Duration::days(1);
/// A signed request is sent at once.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// Maximum number of uploads that are aborted by one call.
const UPLOADS_MAX: usize = 1000;

/// An upload that was begun and neither completed nor aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfinishedUpload {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) begun: OffsetDateTime,
}

impl Inner {
    pub(crate) async fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError> {
        let prefix = format!("{}{prefix}", self.url.prefix);
        let query = [("uploads", ""), ("prefix", prefix.as_str())];
        let Some(body) = self.bucket_request(&query).await? else { return Ok(0) };
        let before = OffsetDateTime::now_utc() - OLD;
        let mut aborted = 0;
        for upload in parse(&body).into_iter().filter(|upload| upload.begun < before).take(UPLOADS_MAX) {
            let path = Path::from(upload.key.as_str());
            let abort = self.library.uploads.abort_multipart(&path, &upload.id);
            match self.operation(Effect::Idempotent, &upload.key, abort).await {
                Err(error) if error.kind != ObjectsErrorKind::NotFound => return Err(error),
                _ => aborted += 1,
            }
        }
        Ok(aborted)
    }

    /// The response to a GET of the bucket itself; `None` if the dialect has no such request.
    pub(crate) async fn bucket_request(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Option<String>, ObjectsError> {
        let failed = |error: &dyn std::fmt::Display| {
            outcome::error(self.url.provider, Effect::Idempotent, &Response::NotSent, &error.to_string())
        };
        let Some(request) = self.authorized(query).await.map_err(|error| failed(&error))? else {
            return Ok(None);
        };
        let client = self.http.connect(&ClientOptions::default()).map_err(|error| failed(&error))?;
        let response = tokio::time::timeout(self.timeout, async {
            let response = client.execute(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, object_store::client::HttpError>((head.status, body.collect().await?.to_bytes()))
        });
        let (status, body) = match response.await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(failed(&error)),
            Err(_) => return Err(failed(&"no response within the time limit")),
        };
        let text = String::from_utf8_lossy(&body).into_owned();
        let response = Response::Status(status, None);
        match outcome::failure(self.url.provider, Effect::Idempotent, &response) {
            None => Ok(Some(text)),
            Some(_) => Err(outcome::error(self.url.provider, Effect::Idempotent, &response, &text)),
        }
    }
}

impl Inner {
    /// A GET of the bucket itself with its authorization; `None` if the dialect has no such request.
    async fn authorized(
        &self,
        query: &[(&str, &str)],
    ) -> Result<Option<http::Request<HttpRequestBody>>, Box<dyn Error + Send + Sync>> {
        let request = match &self.library.bucket_access {
            BucketAccess::None => return Ok(None),
            BucketAccess::Signed(signer) => {
                let options = SignedUrlOptions::new().with_query(query.iter().copied());
                let url = signer.signed_url_opts(Method::GET, &Path::default(), SIGNED_FOR, &options).await?;
                http::Request::get(url.as_str())
            }
            BucketAccess::Bearer(url, credentials) => {
                let bearer = credentials.get_credential().await?.bearer.clone();
                // Names of ours need no encoding.
                let query: Vec<String> =
                    query.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let request = http::Request::get(format!("{url}?{}", query.join("&")));
                request.header(http::header::AUTHORIZATION, format!("Bearer {bearer}"))
            }
        };
        Ok(Some(request.body(HttpRequestBody::empty())?))
    }
}

/// The uploads in a list of S3 or GCS. What cannot be read is left out: it is not aborted.
fn parse(xml: &str) -> Vec<UnfinishedUpload> {
    let uploads = xml.split("<Upload>").skip(1);
    let read = |upload: &str| {
        let key = element(upload, "Key")?;
        let id = element(upload, "UploadId")?;
        let begun = OffsetDateTime::parse(&element(upload, "Initiated")?, &Rfc3339).ok()?;
        Some(UnfinishedUpload { key, id, begun })
    };
    uploads.filter_map(read).collect()
}

/// The text of the first element of this name. Keys of ours contain no character that XML escapes.
pub(crate) fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    (!text.contains('&')).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_uploads_is_read() {
        let xml = "<?xml version=\"1.0\"?><ListMultipartUploadsResult><Bucket>b</Bucket>\
                   <Upload><Key>p/blob/a</Key><UploadId>one</UploadId><Initiator><ID>x</ID></Initiator>\
                   <Initiated>2026-11-01T10:00:00.000Z</Initiated></Upload>\
                   <Upload><Key>p/&amp;</Key><UploadId>two</UploadId><Initiated>2026-11-01T10:00:00Z</Initiated></Upload>\
                   <Upload><Key>p/blob/b</Key><UploadId>three</UploadId><Initiated>?</Initiated></Upload>\
                   </ListMultipartUploadsResult>";
        let uploads = parse(xml);
        assert_eq!(uploads.len(), 1, "{uploads:?}");
        assert_eq!((uploads[0].key.as_str(), uploads[0].id.as_str()), ("p/blob/a", "one"));
        assert_eq!(uploads[0].begun.unix_timestamp(), 1_793_527_200);
    }
}
