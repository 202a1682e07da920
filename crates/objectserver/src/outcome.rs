//! What a request led to, in terms of no dialect; a dialect turns it into a response.

use std::ops::Range;
use std::time::Duration;

use hyper::StatusCode;

use crate::object::{Object, ObjectHead};

#[derive(Debug)]
pub(crate) enum Outcome {
    /// An object was written.
    Written(Written),
    /// An object, or a range of it.
    Found {
        object: Object,
        range: Option<Range<u64>>,
        head: bool,
    },
    Page(Page),
    /// `existed` is false for an object that was not there.
    Deleted {
        existed: bool,
    },
    /// For each key, in order: whether it existed.
    DeletedMany(Vec<(String, bool)>),
    Copied(Written),
    UploadBegun {
        upload: String,
    },
    PartStored {
        etag: String,
    },
    Completed(Written),
    Aborted,
    Uploads(Vec<UploadLine>),
    Lifecycle(String),
    Versioning(bool),
    Location,
    Exists,
    Refused(Refusal),
}

/// A write that took effect.
#[derive(Debug, Clone)]
pub(crate) struct Written {
    pub(crate) head: ObjectHead,
    /// An object of this name was there before.
    pub(crate) replaced: bool,
}

/// One page of a list.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) prefix: String,
    pub(crate) delimiter: Option<String>,
    pub(crate) objects: Vec<(String, ObjectHead)>,
    pub(crate) common_prefixes: Vec<String>,
    /// The token with which the next page is requested.
    pub(crate) next: Option<String>,
    pub(crate) max: usize,
}

/// One line of a list of open uploads.
#[derive(Debug)]
pub(crate) struct UploadLine {
    pub(crate) key: String,
    pub(crate) upload: String,
    pub(crate) begun: Duration,
}

/// Why a request had no effect, or pretends so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoSuchBucket,
    NoSuchKey,
    NoSuchUpload,
    /// A conditional create found an object.
    AlreadyExists,
    /// As `AlreadyExists`, reported as a conflict (409): a fault.
    AlreadyExistsAsConflict,
    /// Another write was in progress, so that the condition could not be decided (409): a fault.
    ConditionalConflict,
    /// The object does not have the etag or the generation.
    ConditionFailed,
    /// `If-None-Match` of a `GET` names the present etag.
    NotModified,
    /// The range begins behind the end of an object of this size.
    InvalidRange(u64),
    InvalidPart,
    InvalidPartOrder,
    PartTooSmall,
    BodyTooLarge,
    AccessDenied,
    NoLifecycle,
    Malformed(&'static str),
    NotImplemented(&'static str),
    /// A failure of the server: a fault.
    Failure(StatusCode),
}
