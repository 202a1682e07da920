//! The response to the request of one operation, as it came from the network.
//!
//! The client library sits between an operation and its request, and its errors do not tell the status. The HTTP service
//! notes the status here, for the operation that the current task carries out. Requests for credentials, which the
//! library sends as part of an operation, are told apart by their path.

use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, StatusCode, Uri};

/// What is known about the request of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Response {
    /// No request was sent: there are no credentials, or no connection.
    #[default]
    NotSent,
    /// The request may have reached the store, and there is no response.
    Missing,
    /// A response, with the error code of Azure.
    Status(StatusCode, Option<String>),
}

/// The request of one operation.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The end of the path of the request; empty for requests to the bucket itself.
    path_end: String,
    response: Mutex<Response>,
}

tokio::task_local! {
    static CURRENT: Arc<Exchange>;
}

impl Exchange {
    /// Runs an operation on this object, and returns its result with the response.
    pub(crate) async fn observe<T>(object: &str, operation: impl Future<Output = T>) -> (T, Response) {
        let path_end = object.rsplit('/').next().unwrap_or_default().to_string();
        let exchange = Arc::new(Exchange { path_end, response: Mutex::default() });
        let result = CURRENT.scope(Arc::clone(&exchange), operation).await;
        let response = exchange.response.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (result, response)
    }

    /// Whether this request is the one of the current operation, and not one for credentials.
    pub(crate) fn has(uri: &Uri) -> bool {
        let is_its = |exchange: &Arc<Exchange>| !exchange.path_end.is_empty() && exchange.is_of(uri);
        CURRENT.try_with(is_its).unwrap_or(false)
    }

    /// The library encodes characters of names, and other ones in each dialect.
    fn is_of(&self, uri: &Uri) -> bool {
        let path = uri.path().as_bytes();
        path.ends_with(self.path_end.as_bytes()) || decoded(path).ends_with(self.path_end.as_bytes())
    }

    fn note(uri: &Uri, response: Response) {
        let _ = CURRENT.try_with(|exchange| {
            if exchange.is_of(uri) {
                *exchange.response.lock().unwrap_or_else(PoisonError::into_inner) = response;
            }
        });
    }

    /// A request is being sent: from here on it may reach the store.
    pub(crate) fn sent(uri: &Uri) {
        Exchange::note(uri, Response::Missing);
    }

    /// The request was not sent: there is no connection.
    pub(crate) fn not_sent(uri: &Uri) {
        Exchange::note(uri, Response::NotSent);
    }

    /// The head of a response has arrived.
    pub(crate) fn received(uri: &Uri, status: StatusCode, headers: &HeaderMap) {
        let code = headers.get("x-ms-error-code").and_then(|code| code.to_str().ok());
        Exchange::note(uri, Response::Status(status, code.map(str::to_string)));
    }
}

/// Without its percent encoding.
fn decoded(path: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(path.len()), path);
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let encoded = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| *byte == b'%');
        decoded.push(encoded.unwrap_or(*byte));
        rest = if encoded.is_some() { &tail[2..] } else { tail };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dialect of GCS encodes a hyphen. A document's blob has one in its name: its requests were taken for requests
    /// for credentials, and each response for a request that was not sent.
    #[tokio::test]
    async fn a_response_is_that_of_an_object_whose_name_is_encoded() {
        let uri = |path: &str| format!("http://host{path}").parse::<Uri>().expect("a URI");
        for (object, path, expected) in [
            ("doc/7-1", "/b/prod%2Fdoc%2F7%2D1", true),
            ("doc/7-1", "/b/prod/doc/7-1", true),
            ("at/::1", "/b/at/%3A%3A1", true),
            ("doc/7%1", "/b/doc/7%251", true),
            ("doc/7-1", "/token", false),
            ("doc/7-1", "/b/doc/7%2", false),
        ] {
            let (found, response) = Exchange::observe(object, async {
                Exchange::received(&uri(path), StatusCode::OK, &HeaderMap::new());
                Exchange::has(&uri(path))
            })
            .await;
            assert_eq!(found, expected, "{object} {path}");
            assert_eq!(response == Response::Status(StatusCode::OK, None), expected, "{object} {path}");
        }
    }
}
