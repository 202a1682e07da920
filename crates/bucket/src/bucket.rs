//! A bucket as [`Objects`].

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutMode, PutOptions, PutPayload};
use store::object::{
    NewObject, ObjectRange, ObjectStream, ObjectUpload, Objects, ObjectsError, ObjectsErrorKind, Page, Part,
    Pause, RetryPolicy,
};

use crate::counts::RequestCounts;
use crate::download::Download;
use crate::exchange::{Exchange, Response};
use crate::http::Connector;
use crate::options::BucketOptions;
use crate::outcome::{self, Effect};
use crate::provider::Library;
use crate::runtime::RequestRuntime;
use crate::upload::BucketUpload;
use crate::url::{BucketUrl, Provider};

/// Maximum number of requests in flight of one call.
const CONCURRENT_MAX: usize = 128;
/// Maximum number of deletions in flight of one call, where each is a request.
const DELETES_MAX: usize = 16;
/// Maximum attempts of a request, and the pauses between them.
const ATTEMPTS_MAX: u32 = 5;
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The host of GCS: its S3 dialect ignores the condition of a put.
const GCS_HOST: &str = "storage.googleapis.com";

/// The end of the names of directory buckets, which Amazon reserves for them.
const DIRECTORY_BUCKET: &str = "--x-s3";

/// A client of one bucket. Clones share it.
#[derive(Clone)]
pub struct Bucket(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) url: BucketUrl,
    pub(crate) library: Library,
    pub(crate) http: Connector,
    pub(crate) timeout: Duration,
    counts: RequestCounts,
    pub(crate) runtime: RequestRuntime,
}

impl Bucket {
    /// A client of a bucket. Sends no request. The error says what is wrong with the options.
    pub fn new(url: &BucketUrl, options: &BucketOptions) -> Result<Bucket, String> {
        check_endpoint(url, options)?;
        let counts = RequestCounts::default();
        let http = Connector::new(options, counts.clone())?;
        let library = Library::build(url, options, http.clone())?;
        let runtime = RequestRuntime::start().map_err(|error| format!("no threads for requests: {error}"))?;
        let (url, timeout) = (url.clone(), options.timeout);
        Ok(Bucket(Arc::new(Inner { url, library, http, timeout, counts, runtime })))
    }

    /// The requests that were sent so far.
    pub fn counts(&self) -> RequestCounts {
        self.0.counts.clone()
    }

    /// The retries of a server: a few, with pauses that grow. A log repeats an undecided append for ever, through calls of
    /// its own.
    pub fn retry_policy(&self) -> RetryPolicy {
        let client = self.clone();
        let pause: Pause = Arc::new(move |failed| {
            let pause = PAUSE_MIN.saturating_mul(1 << failed.min(6)).min(PAUSE_MAX);
            let pause = pause.mul_f64(0.5 + f64::from(random_byte()) / 512.0);
            match client.0.runtime.block_on(async move { tokio::time::sleep(pause).await }) {
                Some(()) => ControlFlow::Continue(()),
                None => ControlFlow::Break(()),
            }
        });
        RetryPolicy::new(ATTEMPTS_MAX, pause)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    /// The location of the bucket.
    pub fn url(&self) -> &BucketUrl {
        &self.0.url
    }

    fn run<T: Send + 'static, F: Future<Output = Result<T, ObjectsError>> + Send + 'static>(
        &self,
        request: impl FnOnce(Arc<Inner>) -> F,
    ) -> Result<T, ObjectsError> {
        self.0.runtime.block_on(request(Arc::clone(&self.0))).unwrap_or_else(|| Err(stopped()))
    }
}

fn random_byte() -> u8 {
    let mut byte = [0];
    system::random::fill(&mut byte);
    byte[0]
}

pub(crate) fn stopped() -> ObjectsError {
    ObjectsError::new(ObjectsErrorKind::TimedOut, "the client of the object store has ended")
}

/// Refuses what is known by its name not to be fit. The S3 dialect of GCS takes conditions on reads only: two servers would
/// own one log.
fn check_endpoint(url: &BucketUrl, options: &BucketOptions) -> Result<(), String> {
    if url.provider == Provider::S3 && url.bucket.ends_with(DIRECTORY_BUCKET) {
        return Err(format!(
            "directory buckets (S3 Express) list names in no order, and the end of a log is found by a list; use a general \
             purpose bucket: bucket={}",
            url.bucket
        ));
    }
    let endpoint = options.endpoint.as_deref().unwrap_or_default();
    if url.provider == Provider::S3 && endpoint.contains(GCS_HOST) {
        return Err(format!(
            "{GCS_HOST} ignores the condition of a put in the S3 dialect, so two servers could own one log; use \
             gs://{}/{} instead: endpoint={endpoint}",
            url.bucket,
            url.prefix.trim_end_matches('/')
        ));
    }
    Ok(())
}

impl Inner {
    /// The name in the bucket of one of the store's objects.
    pub(crate) fn path(&self, name: &str) -> Path {
        Path::from(format!("{}{name}", self.url.prefix))
    }

    /// Runs one operation of the library, within the time limit. The response decides whether it has succeeded.
    pub(crate) async fn operation<T>(
        &self,
        effect: Effect,
        object: &str,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, ObjectsError> {
        let limited = tokio::time::timeout(self.timeout, operation);
        let (result, response) = Exchange::observe(object, limited).await;
        let detail = match result {
            Ok(Ok(value)) if is_success(&response) => return Ok(value),
            Ok(Ok(_)) => "the library reports success".to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no whole response within {} ms", self.timeout.as_millis()),
        };
        Err(outcome::error(self.url.provider, effect, &response, &detail))
    }

    pub(crate) async fn put(&self, name: &str, bytes: Bytes, mode: PutMode) -> Result<(), ObjectsError> {
        let effect = if mode == PutMode::Create { Effect::Create } else { Effect::Idempotent };
        let (path, options) = (self.path(name), PutOptions { mode, ..PutOptions::default() });
        let put = self.library.objects.put_opts(&path, PutPayload::from_bytes(bytes), options);
        self.operation(effect, name, put).await.map(drop)
    }

    pub(crate) async fn get(&self, name: &str, range: Option<GetRange>) -> Result<Vec<u8>, ObjectsError> {
        let path = self.path(name);
        let options = GetOptions { range, ..GetOptions::default() };
        let get = async { self.library.objects.get_opts(&path, options).await?.bytes().await };
        self.operation(Effect::Idempotent, name, get).await.map(Vec::from)
    }

    async fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        if length == 0 {
            return Ok(Vec::new());
        }
        let range = GetRange::Bounded(offset..offset.saturating_add(length as u64));
        let path = self.path(name);
        let options = GetOptions { range: Some(range), ..GetOptions::default() };
        let get = async { self.library.objects.get_opts(&path, options).await?.bytes().await };
        let limited = tokio::time::timeout(self.timeout, get);
        let (result, response) = Exchange::observe(name, limited).await;
        match (result, &response) {
            (Ok(Ok(bytes)), response) if is_success(response) => Ok(bytes.into()),
            // Past the end of the object.
            (_, Response::Status(status, _)) if status.as_u16() == 416 => Ok(Vec::new()),
            (result, response) => {
                let detail = result.map_or_else(
                    |_| "timeout".to_string(),
                    |result| result.err().map_or_else(String::new, |error| error.to_string()),
                );
                Err(outcome::error(self.url.provider, Effect::Idempotent, response, &detail))
            }
        }
    }

    pub(crate) async fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        let path = self.path(name);
        let options = GetOptions { head: true, ..GetOptions::default() };
        let head = self.library.objects.get_opts(&path, options);
        self.operation(Effect::Idempotent, name, head).await.map(|head| head.meta.size)
    }

    /// One page that has names, or the last one: a store may send pages without any (Azure does).
    pub(crate) async fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        let full = format!("{}{prefix}", self.url.prefix);
        let offset = (!after.is_empty()).then(|| format!("{}{after}", self.url.prefix));
        let mut options = PaginatedListOptions { offset, ..PaginatedListOptions::default() };
        loop {
            let list = self.library.lists.list_paginated(Some(&full), options.clone());
            let page = self.operation(Effect::Create, "", list).await?;
            let names = page.result.objects.iter().filter_map(|object| {
                object.location.as_ref().strip_prefix(&self.url.prefix).map(str::to_string)
            });
            let mut names: Vec<String> = names.filter(|name| name.as_str() > after).collect();
            names.sort_unstable();
            if page.page_token.is_none() || !names.is_empty() {
                return Ok(Page { names, more: page.page_token.is_some() });
            }
            options.page_token = page.page_token;
        }
    }

    /// Deletes as many objects by one request as the dialect can. Each group has the time of one request.
    pub(crate) async fn delete_all(&self, names: Vec<String>) -> Result<(), ObjectsError> {
        let group = match self.url.provider {
            Provider::S3 => 1000,
            Provider::Azure => 256,
            Provider::Gcs => return self.delete_each(names).await,
        };
        for names in names.chunks(group) {
            self.delete_group(names).await?;
        }
        Ok(())
    }

    /// By one request for each (GCS).
    async fn delete_each(&self, names: Vec<String>) -> Result<(), ObjectsError> {
        let deletes: Vec<_> = names.iter().map(|name| self.delete_one(name)).collect();
        let deletes = futures_util::stream::iter(deletes).buffer_unordered(DELETES_MAX);
        deletes.try_for_each(|()| futures_util::future::ready(Ok(()))).await
    }

    async fn delete_one(&self, name: &str) -> Result<(), ObjectsError> {
        let path = self.path(name);
        match self.operation(Effect::Idempotent, name, self.library.objects.delete(&path)).await {
            Err(error) if error.kind == ObjectsErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// By one request for all of them.
    async fn delete_group(&self, names: &[String]) -> Result<(), ObjectsError> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let deleted = self.library.objects.delete_stream(futures_util::stream::iter(paths).boxed());
        let deleted = deleted
            .filter(|result| {
                let is_missing = matches!(result, Err(object_store::Error::NotFound { .. }));
                futures_util::future::ready(!is_missing)
            })
            .try_for_each(|_| futures_util::future::ready(Ok(())));
        let limited = tokio::time::timeout(self.timeout, deleted);
        let (result, response) = Exchange::observe("", limited).await;
        let detail = match result {
            // All objects are missing because the bucket is.
            Ok(Ok(())) if status_is(&response, 404) => "the bucket is missing".to_string(),
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if is_success(&response) => return Err(outcome::in_body(&error.to_string())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no whole response within {} ms", self.timeout.as_millis()),
        };
        Err(outcome::error(self.url.provider, Effect::Create, &response, &detail))
    }
}

fn status_is(response: &Response, expected: u16) -> bool {
    matches!(response, Response::Status(status, _) if status.as_u16() == expected)
}

fn is_success(response: &Response) -> bool {
    matches!(response, Response::Status(status, _) if status.is_success())
}

impl Objects for Bucket {
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        let (name, bytes) = (name.to_string(), Bytes::copy_from_slice(bytes));
        self.run(|bucket| async move { bucket.put(&name, bytes, PutMode::Create).await })
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ObjectsError> {
        let name = name.to_string();
        self.run(|bucket| async move { bucket.get(&name, None).await })
    }

    fn get_range(&self, name: &str, offset: u64, length: usize) -> Result<Vec<u8>, ObjectsError> {
        let name = name.to_string();
        self.run(move |bucket| async move { bucket.get_range(&name, offset, length).await })
    }

    fn open_range(&self, range: &ObjectRange) -> Result<Option<Box<dyn ObjectStream>>, ObjectsError> {
        Ok(Some(Box::new(Download::open(&self.0, range)?)))
    }

    fn head(&self, name: &str) -> Result<u64, ObjectsError> {
        let name = name.to_string();
        self.run(|bucket| async move { bucket.head(&name).await })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Page, ObjectsError> {
        let (prefix, after) = (prefix.to_string(), after.to_string());
        self.run(|bucket| async move { bucket.list(&prefix, &after).await })
    }

    fn delete(&self, name: &str) -> Result<(), ObjectsError> {
        let names = vec![name.to_string()];
        self.run(|bucket| async move { bucket.delete_all(names).await })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectsError> {
        let (name, bytes) = (name.to_string(), Bytes::copy_from_slice(bytes));
        self.run(|bucket| async move { bucket.put(&name, bytes, PutMode::Overwrite).await })
    }

    fn put_part_if_absent(&self, name: &str, content: &Part) -> Result<(), ObjectsError> {
        let (name, content) = (name.to_string(), content.clone());
        self.run(|bucket| async move { bucket.put_part_if_absent(&name, &content).await })
    }

    fn begin_upload(&self, name: &str) -> Result<Box<dyn ObjectUpload>, ObjectsError> {
        Ok(Box::new(BucketUpload::begin(Arc::clone(&self.0), name)?))
    }

    fn abort_old_uploads(&self, prefix: &str) -> Result<usize, ObjectsError> {
        let prefix = prefix.to_string();
        self.run(|bucket| async move { bucket.abort_old_uploads(&prefix).await })
    }

    fn get_ranges(&self, ranges: &[ObjectRange]) -> Vec<Result<Vec<u8>, ObjectsError>> {
        let (bucket, owned) = (Arc::clone(&self.0), ranges.to_vec());
        let read = async move {
            let requests = owned.into_iter().map(|range| {
                let bucket = Arc::clone(&bucket);
                async move { bucket.get_range(&range.name, range.offset, range.length).await }
            });
            futures_util::stream::iter(requests).buffered(CONCURRENT_MAX).collect::<Vec<_>>().await
        };
        let read = self.0.runtime.block_on(read);
        read.unwrap_or_else(|| ranges.iter().map(|_| Err(stopped())).collect())
    }

    fn put_all_if_absent(&self, objects: &[NewObject]) -> Vec<Result<(), ObjectsError>> {
        let bucket = Arc::clone(&self.0);
        let owned: Vec<(String, Bytes)> = objects
            .iter()
            .map(|object| (object.name.clone(), Bytes::copy_from_slice(&object.bytes)))
            .collect();
        let put = async move {
            let requests = owned.into_iter().map(|(name, bytes)| {
                let bucket = Arc::clone(&bucket);
                async move { bucket.put(&name, bytes, PutMode::Create).await }
            });
            futures_util::stream::iter(requests).buffered(CONCURRENT_MAX).collect::<Vec<_>>().await
        };
        let put = self.0.runtime.block_on(put);
        put.unwrap_or_else(|| objects.iter().map(|_| Err(stopped())).collect())
    }

    fn delete_all(&self, names: &[String]) -> Result<(), ObjectsError> {
        if names.is_empty() {
            return Ok(());
        }
        let names = names.to_vec();
        self.run(|bucket| async move { bucket.delete_all(names).await })
    }
}
