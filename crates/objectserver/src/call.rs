//! A request in terms of no dialect: what is to be done, to which object, under which condition.

use hyper::body::Bytes;
use hyper::header::HeaderValue;

/// The kinds of requests that are counted, and to which faults can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Create or overwrite an object.
    Put,
    /// Read an object or a range of it.
    Get,
    /// Read the metadata of an object.
    Head,
    /// List one page of objects.
    List,
    /// Delete one object.
    Delete,
    /// Delete several objects with one request.
    DeleteMany,
    /// Copy an object.
    Copy,
    /// Begin a multipart upload. Azure has no such request.
    UploadBegin,
    /// Upload a part, or stage a block.
    UploadPart,
    /// Make an object of parts, or commit a list of blocks.
    UploadComplete,
    /// Abort a multipart upload. Azure has no such request.
    UploadAbort,
    /// List the multipart uploads that are open.
    UploadList,
    /// Read a setting of a bucket: lifecycle, versioning, location, existence.
    Bucket,
    /// Any request that could not be understood.
    Unknown,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Put,
        Self::Get,
        Self::Head,
        Self::List,
        Self::Delete,
        Self::DeleteMany,
        Self::Copy,
        Self::UploadBegin,
        Self::UploadPart,
        Self::UploadComplete,
        Self::UploadAbort,
        Self::UploadList,
        Self::Bucket,
        Self::Unknown,
    ];

    /// The name, in lower case with underscores.
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::Delete => "delete",
            Self::DeleteMany => "delete_many",
            Self::Copy => "copy",
            Self::UploadBegin => "upload_begin",
            Self::UploadPart => "upload_part",
            Self::UploadComplete => "upload_complete",
            Self::UploadAbort => "upload_abort",
            Self::UploadList => "upload_list",
            Self::Bucket => "bucket",
            Self::Unknown => "unknown",
        }
    }
}

/// What must hold for a write to take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    None,
    /// No object has the name: a conditional create.
    Absent,
    /// The object has this etag.
    Etag(String),
    /// The object has this generation (GCS).
    Generation(u64),
}

/// The part of an object that a `GET` wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteRange {
    /// From `first` to `last`, both included; to the end without `last`.
    From { first: u64, last: Option<u64> },
    /// The last bytes.
    Suffix(u64),
}

/// Where a list begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Start {
    Beginning,
    /// After this key.
    After(String),
    /// At this key (Azure).
    At(String),
    /// After all keys with this prefix, which has been listed as a common prefix.
    AfterPrefix(String),
}

#[derive(Debug, Clone)]
pub(crate) struct ListQuery {
    pub(crate) prefix: String,
    pub(crate) delimiter: Option<String>,
    pub(crate) start: Start,
    pub(crate) max: Option<usize>,
}

/// A part that a completed upload is to contain: its name, and its etag where the client states one.
#[derive(Debug, Clone)]
pub(crate) struct ChosenPart {
    pub(crate) name: String,
    pub(crate) etag: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) enum Command {
    Put { body: Bytes, content_type: Option<HeaderValue>, condition: Condition },
    Get { head: bool, range: Option<ByteRange>, if_match: Option<String>, if_none_match: Option<String> },
    List(ListQuery),
    Delete,
    DeleteMany { keys: Vec<String> },
    Copy { bucket: String, key: String, condition: Condition },
    UploadBegin,
    UploadPart { upload: String, part: String, body: Bytes },
    UploadComplete { upload: String, parts: Vec<ChosenPart>, condition: Condition },
    UploadAbort { upload: String },
    UploadList { prefix: String },
    Lifecycle,
    Versioning,
    Location,
    Exists,
}

/// One request. `key` is empty for requests about a bucket.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) bucket: String,
    pub(crate) key: String,
    pub(crate) command: Command,
}

impl Call {
    pub(crate) fn operation(&self) -> Operation {
        match &self.command {
            Command::Put { .. } => Operation::Put,
            Command::Get { head: false, .. } => Operation::Get,
            Command::Get { head: true, .. } => Operation::Head,
            Command::List(_) => Operation::List,
            Command::Delete => Operation::Delete,
            Command::DeleteMany { .. } => Operation::DeleteMany,
            Command::Copy { .. } => Operation::Copy,
            Command::UploadBegin => Operation::UploadBegin,
            Command::UploadPart { .. } => Operation::UploadPart,
            Command::UploadComplete { .. } => Operation::UploadComplete,
            Command::UploadAbort { .. } => Operation::UploadAbort,
            Command::UploadList { .. } => Operation::UploadList,
            Command::Lifecycle | Command::Versioning | Command::Location | Command::Exists => {
                Operation::Bucket
            }
        }
    }

    pub(crate) fn condition(&self) -> &Condition {
        match &self.command {
            Command::Put { condition, .. }
            | Command::Copy { condition, .. }
            | Command::UploadComplete { condition, .. } => condition,
            _ => &Condition::None,
        }
    }

    pub(crate) fn is_write(&self) -> bool {
        !matches!(
            self.operation(),
            Operation::Get | Operation::Head | Operation::List | Operation::UploadList | Operation::Bucket
        )
    }

    /// Whether the request concerns a key that begins with `prefix`. A list does if its own prefix does.
    pub(crate) fn concerns(&self, prefix: &str) -> bool {
        match &self.command {
            Command::List(list) => list.prefix.starts_with(prefix),
            Command::DeleteMany { keys } => keys.iter().any(|key| key.starts_with(prefix)),
            _ => self.key.starts_with(prefix),
        }
    }
}
