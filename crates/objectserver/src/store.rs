//! The stored objects: one map behind one lock.
//!
//! **Invariant.** A conditional write checks its condition and takes effect under one acquisition of the lock, so that
//! of any number of racing creates of a name exactly one succeeds.
//! **What would break it.** Only the faults that are meant to: [`Store::check`] followed later by an unconditional
//! [`Store::apply`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::HeaderValue;

use crate::bucket::Bucket;
use crate::call::{ByteRange, Call, ChosenPart, Command, Condition};
use crate::clock;
use crate::object::{Object, etag_of};
use crate::outcome::{Outcome, Refusal, UploadLine, Written};
use crate::uploads::{Part, Upload, blocks_of};

/// What the store needs to know of the server's settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) page_size: usize,
    pub(crate) smallest_part: usize,
    /// Staging a part begins its upload (Azure).
    pub(crate) implicit_uploads: bool,
}

#[derive(Debug)]
pub(crate) struct Store {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) buckets: BTreeMap<String, Bucket>,
    /// Counts writes, parts and uploads.
    generation: u64,
}

/// How a call is applied.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mode {
    /// Conditions are ignored: a fault.
    pub(crate) unconditional: bool,
    /// The age of the state that lists show: a fault.
    pub(crate) list_age: Duration,
}

impl Store {
    pub(crate) fn new(buckets: &[String], limits: Limits) -> Self {
        let buckets = buckets.iter().map(|name| (name.clone(), Bucket::default())).collect();
        Self { limits, state: Mutex::new(State { buckets, generation: 0 }) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the lock")
    }

    pub(crate) fn has_bucket(&self, name: &str) -> bool {
        self.lock().buckets.contains_key(name)
    }

    /// The refusal that the condition of a call leads to now. For the fault that checks before it acts.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Refusal> {
        self.lock().bucket(&call.bucket)?.check(&call.key, call.condition())
    }

    /// Does what the call says.
    pub(crate) fn apply(&self, call: &Call, mode: Mode) -> Outcome {
        self.lock().apply(call, mode, self.limits).unwrap_or_else(Outcome::Refused)
    }

    /// Writes an object without a request.
    pub(crate) fn insert(&self, bucket: &str, key: &str, body: Bytes) -> bool {
        self.lock().write(bucket, key, body, None, &Condition::None).is_ok()
    }
}

impl State {
    pub(crate) fn bucket(&mut self, name: &str) -> Result<&mut Bucket, Refusal> {
        self.buckets.get_mut(name).ok_or(Refusal::NoSuchBucket)
    }

    fn apply(&mut self, call: &Call, mode: Mode, limits: Limits) -> Result<Outcome, Refusal> {
        let bucket = self.bucket(&call.bucket)?;
        let key = call.key.as_str();
        match &call.command {
            Command::Put { body, content_type, condition } => {
                let condition = effective(condition, mode);
                let written =
                    self.write(&call.bucket, key, body.clone(), content_type.clone(), &condition)?;
                if limits.implicit_uploads {
                    self.bucket(&call.bucket)?.uploads.remove(&blocks_of(key));
                }
                Ok(Outcome::Written(written))
            }
            Command::Get { head, range, if_match, if_none_match } => {
                let object = bucket.objects.get(key).ok_or(Refusal::NoSuchKey)?;
                found(object, *head, *range, if_match.as_deref(), if_none_match.as_deref())
            }
            Command::List(query) => Ok(Outcome::Page(bucket.list(query, mode.list_age, limits.page_size))),
            Command::Delete => Ok(Outcome::Deleted { existed: bucket.remove(key).is_some() }),
            Command::DeleteMany { keys } => {
                let results = keys.iter().map(|key| (key.clone(), bucket.remove(key).is_some()));
                Ok(Outcome::DeletedMany(results.collect()))
            }
            Command::Copy { bucket, key: source, condition } => {
                let source = self.bucket(bucket)?.objects.get(source).cloned().ok_or(Refusal::NoSuchKey)?;
                let (condition, content_type) = (effective(condition, mode), source.head.content_type);
                self.write(&call.bucket, key, source.body, content_type, &condition).map(Outcome::Copied)
            }
            Command::Lifecycle => {
                bucket.lifecycle.clone().map(Outcome::Lifecycle).ok_or(Refusal::NoLifecycle)
            }
            Command::Versioning => Ok(Outcome::Versioning(bucket.versioned)),
            Command::Location => Ok(Outcome::Location),
            Command::Exists => Ok(Outcome::Exists),
            _ => self.apply_upload(call, mode, limits),
        }
    }

    fn apply_upload(&mut self, call: &Call, mode: Mode, limits: Limits) -> Result<Outcome, Refusal> {
        match &call.command {
            Command::UploadBegin => {
                let upload = format!("upload-{:08x}", self.next_generation());
                let begun = Upload::new(&call.key, clock::wall());
                self.bucket(&call.bucket)?.uploads.insert(upload.clone(), begun);
                Ok(Outcome::UploadBegun { upload })
            }
            Command::UploadPart { upload, part, body } => self.store_part(call, upload, part, body, limits),
            Command::UploadComplete { upload, parts, condition } => {
                self.complete(call, upload, parts, &effective(condition, mode), limits)
            }
            Command::UploadAbort { upload } => {
                let bucket = self.bucket(&call.bucket)?;
                bucket.upload(&call.key, upload)?;
                bucket.uploads.remove(upload);
                Ok(Outcome::Aborted)
            }
            Command::UploadList { prefix } => {
                let uploads = self.bucket(&call.bucket)?.uploads.iter();
                let of_prefix = uploads.filter(|(_, upload)| upload.key.starts_with(prefix));
                let line = |(id, upload): (&String, &Upload)| UploadLine {
                    key: upload.key.clone(),
                    upload: id.clone(),
                    begun: upload.begun,
                };
                Ok(Outcome::Uploads(of_prefix.map(line).collect()))
            }
            _ => Err(Refusal::NotImplemented("this request")),
        }
    }

    fn store_part(
        &mut self,
        call: &Call,
        upload: &str,
        part: &str,
        body: &Bytes,
        limits: Limits,
    ) -> Result<Outcome, Refusal> {
        let etag = etag_of(self.next_generation()).to_string();
        let bucket = self.bucket(&call.bucket)?;
        if limits.implicit_uploads && !bucket.uploads.contains_key(upload) {
            bucket.uploads.insert(upload.to_owned(), Upload::new(&call.key, clock::wall()));
        }
        let stored = Part { etag: etag.clone(), body: body.clone() };
        bucket.upload(&call.key, upload)?.parts.insert(part.to_owned(), stored);
        Ok(Outcome::PartStored { etag })
    }

    fn complete(
        &mut self,
        call: &Call,
        upload: &str,
        parts: &[ChosenPart],
        condition: &Condition,
        limits: Limits,
    ) -> Result<Outcome, Refusal> {
        let bucket = self.bucket(&call.bucket)?;
        let body = if limits.implicit_uploads && parts.is_empty() {
            Bytes::new()
        } else {
            bucket.upload(&call.key, upload)?.assemble(parts, limits.smallest_part)?
        };
        let written = self.write(&call.bucket, &call.key, body, None, condition)?;
        self.bucket(&call.bucket)?.uploads.remove(upload);
        Ok(Outcome::Completed(written))
    }

    /// The one place where objects are written.
    fn write(
        &mut self,
        bucket: &str,
        key: &str,
        body: Bytes,
        content_type: Option<HeaderValue>,
        condition: &Condition,
    ) -> Result<Written, Refusal> {
        self.bucket(bucket)?.check(key, condition)?;
        let object = Object::new(body, content_type, self.next_generation(), clock::wall());
        let head = object.head.clone();
        let replaced = self.bucket(bucket)?.put(key, object);
        Ok(Written { head, replaced })
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }
}

fn effective(condition: &Condition, mode: Mode) -> Condition {
    if mode.unconditional { Condition::None } else { condition.clone() }
}

fn found(
    object: &Object,
    head: bool,
    range: Option<ByteRange>,
    if_match: Option<&str>,
    if_none_match: Option<&str>,
) -> Result<Outcome, Refusal> {
    let names =
        |list: &str| list.split(',').any(|etag| etag.trim() == "*" || etag.trim() == &*object.head.etag);
    if if_match.is_some_and(|list| !names(list)) {
        return Err(Refusal::ConditionFailed);
    }
    if if_none_match.is_some_and(names) {
        return Err(Refusal::NotModified);
    }
    let range = range.map(|range| resolve(range, object.head.size)).transpose()?;
    Ok(Outcome::Found { object: object.clone(), range, head })
}

/// The bytes of an object that a range stands for.
fn resolve(range: ByteRange, size: u64) -> Result<Range<u64>, Refusal> {
    let resolved = match range {
        ByteRange::From { first, last } => first..last.map_or(size, |last| last.saturating_add(1).min(size)),
        ByteRange::Suffix(length) => size.saturating_sub(length)..size,
    };
    if resolved.is_empty() { Err(Refusal::InvalidRange(size)) } else { Ok(resolved) }
}
