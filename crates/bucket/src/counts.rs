//! Counts requests by operation: what an object store charges for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Uri};

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates or replaces an object.
    Put,
    /// Reads an object, or a part of it.
    Get,
    /// Reads the metadata of an object.
    Head,
    /// Lists names.
    List,
    /// Deletes one object.
    Delete,
    /// Deletes up to a thousand objects.
    DeleteMany,
    /// Begins, continues, completes or aborts an upload in parts.
    Upload,
    /// Anything else, such as a request for credentials.
    Other,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 8] = [
        Operation::Put,
        Operation::Get,
        Operation::Head,
        Operation::List,
        Operation::Delete,
        Operation::DeleteMany,
        Operation::Upload,
        Operation::Other,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Put => "put",
            Operation::Get => "get",
            Operation::Head => "head",
            Operation::List => "list",
            Operation::Delete => "delete",
            Operation::DeleteMany => "delete_many",
            Operation::Upload => "upload",
            Operation::Other => "other",
        }
    }

    /// The operation of a request, in any of the dialects.
    pub(crate) fn of(method: &Method, uri: &Uri) -> Operation {
        let query = uri.query().unwrap_or_default();
        let has =
            |name: &str| query.split('&').any(|pair| pair == name || pair.starts_with(&format!("{name}=")));
        let is_upload = ["uploads", "uploadId", "blockid"].iter().any(|name| has(name));
        let is_block_list = query.contains("comp=blocklist");
        match *method {
            _ if is_upload || is_block_list => Operation::Upload,
            Method::PUT => Operation::Put,
            Method::GET if has("list-type") || query.contains("comp=list") => Operation::List,
            Method::GET => Operation::Get,
            Method::HEAD => Operation::Head,
            Method::DELETE => Operation::Delete,
            Method::POST if has("delete") || query.contains("comp=batch") => Operation::DeleteMany,
            _ => Operation::Other,
        }
    }
}

/// The number of requests of each kind. Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts(Arc<[AtomicU64; Operation::ALL.len()]>);

impl RequestCounts {
    pub(crate) fn add(&self, operation: Operation) {
        self.0[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The requests of one kind so far.
    pub fn get(&self, operation: Operation) -> u64 {
        self.0[operation as usize].load(Ordering::Relaxed)
    }

    /// All requests so far.
    pub fn total(&self) -> u64 {
        Operation::ALL.iter().map(|operation| self.get(*operation)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_every_dialect_are_classified() {
        for (method, uri, expected) in [
            (Method::PUT, "http://h/b/log/0/1", Operation::Put),
            (Method::GET, "http://h/b/log/0/1", Operation::Get),
            (Method::HEAD, "http://h/b/log/0/1", Operation::Head),
            (Method::GET, "http://h/b?list-type=2&prefix=log", Operation::List),
            (Method::GET, "http://h/c?restype=container&comp=list", Operation::List),
            (Method::DELETE, "http://h/b/log/0/1", Operation::Delete),
            (Method::POST, "http://h/b?delete", Operation::DeleteMany),
            (Method::POST, "http://h/b?delete=", Operation::DeleteMany),
            (Method::POST, "http://h/b/o?uploads", Operation::Upload),
            (Method::PUT, "http://h/b/o?partNumber=1&uploadId=x", Operation::Upload),
            (Method::PUT, "http://h/c/o?comp=block&blockid=x", Operation::Upload),
            (Method::PUT, "http://h/c/o?comp=blocklist", Operation::Upload),
            (Method::GET, "http://h/b?uploads=", Operation::Upload),
            (Method::POST, "http://sts/", Operation::Other),
        ] {
            assert_eq!(Operation::of(&method, &uri.parse().expect("a URI")), expected, "{method} {uri}");
        }
        for (index, operation) in Operation::ALL.iter().enumerate() {
            assert_eq!(*operation as usize, index);
        }
    }
}
