//! Requests in frames, as requests of HTTP.

use api::{Code, Refusal};
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use axum::response::IntoResponse;
use engine::limits::ExceededLimit;
use frames::{Field, RequestId};
use http_body_util::Full;

use crate::http::connection::ConnectionService;
use crate::http::short_response::ShortResponse;
use crate::present::refusals::{self, Indeterminate, RefusalResponse};

/// Makes the requests of one connection. Clients repeat what they send: it remembers the last short targets.
#[derive(Default)]
pub(super) struct RequestMaker {
    last: Vec<(String, Uri)>,
}

/// Targets that are remembered: acquire, release, keepalive and one more.
const TARGETS: usize = 4;
/// The longest target that is remembered, in bytes: those of calls without parameters are shorter.
const REMEMBERED_MAX: usize = 32;

/// A request in a frame.
pub(super) struct StreamRequest {
    pub(super) id: RequestId,
    method: Method,
    target: Target,
    headers: HeaderMap,
    body: Bytes,
}

/// Where a request goes.
enum Target {
    Call(Uri),
    /// Frames do not carry this call.
    NotCarried,
    /// There is no memory for the call.
    OverLimit(ExceededLimit),
}

impl RequestMaker {
    pub(super) fn make(&mut self, request: &frames::Request<'_>) -> StreamRequest {
        let is_carried = frames::is_carried(request.method, request.target);
        let mut headers = HeaderMap::new();
        for (field, value) in request.fields {
            // As HTTP reads it, and the server to which the request may be forwarded.
            let value = HeaderValue::from_bytes(value.trim_ascii()).expect("the value is visible ASCII");
            headers.insert(HeaderName::from_static(field.name()), value);
        }
        StreamRequest {
            id: request.id,
            method: match request.method {
                frames::Method::Get => Method::GET,
                frames::Method::Post => Method::POST,
            },
            target: is_carried
                .then(|| self.uri(request.target))
                .flatten()
                .map_or(Target::NotCarried, Target::Call),
            headers,
            body: Bytes::copy_from_slice(request.body),
        }
    }

    fn uri(&mut self, target: &str) -> Option<Uri> {
        if let Some((_, uri)) = self.last.iter().find(|(known, _)| known == target) {
            return Some(uri.clone());
        }
        let uri: Uri = target.parse().ok()?;
        if uri.query().is_none() && target.len() <= REMEMBERED_MAX {
            self.last.truncate(TARGETS - 1);
            self.last.insert(0, (target.to_string(), uri.clone()));
        }
        Some(uri)
    }

    #[cfg(test)]
    pub(super) fn remembered_bytes(&self) -> usize {
        self.last.iter().map(|(target, _)| target.len()).sum()
    }
}

impl StreamRequest {
    pub(super) fn body_length(&self) -> usize {
        self.body.len()
    }

    /// The call is not to be carried out: there is no memory for it.
    pub(super) fn refuse(&mut self, limit: ExceededLimit) {
        (self.target, self.body) = (Target::OverLimit(limit), Bytes::new());
    }

    /// Handles the request; `None` if its outcome is not known. To the service it is one of HTTP/1.1: the memory of its
    /// connection is counted here.
    pub(super) async fn handle(self: Box<Self>, service: ConnectionService) -> Option<ShortResponse> {
        let uri = match self.target {
            Target::Call(uri) => uri,
            Target::NotCarried => {
                let detail = "frames carry short calls only; send this one over HTTP";
                return refused(&service, Refusal::new(Code::MethodNotAllowed, detail)).await;
            }
            Target::OverLimit(limit) => return refused(&service, refusals::over_limit(&limit)).await,
        };
        let mut request = Request::new(Full::new(self.body));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) =
            (self.method, uri, self.headers);
        let response = service.handle(request).await;
        if Indeterminate::is_in(&response) { None } else { ShortResponse::read(response).await }
    }
}

async fn refused(service: &ConnectionService, refusal: Refusal) -> Option<ShortResponse> {
    let response = service.pace().pace(RefusalResponse(refusal).into_response()).await;
    ShortResponse::read(response).await
}

/// The fields of a response, by rising number. All others have no meaning in frames.
pub(super) fn fields(headers: &HeaderMap) -> Vec<(Field, &[u8])> {
    let mut fields: Vec<(Field, &[u8])> = Vec::new();
    for (name, value) in headers {
        fields.extend(Field::of(name.as_str()).map(|field| (field, value.as_bytes())));
    }
    fields.sort_unstable_by_key(|(field, _)| *field);
    fields
}
