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
        let is_its = |exchange: &Arc<Exchange>| {
            !exchange.path_end.is_empty() && uri.path().ends_with(&exchange.path_end)
        };
        CURRENT.try_with(is_its).unwrap_or(false)
    }

    fn note(uri: &Uri, response: Response) {
        let _ = CURRENT.try_with(|exchange| {
            if uri.path().ends_with(&exchange.path_end) {
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
