//! Requests in frames, as requests of HTTP.

use api::{Code, Refusal};
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use axum::response::IntoResponse;
use frames::{Field, RequestId};
use http_body_util::Full;

use crate::http::connection::ConnectionService;
use crate::http::short_response::ShortResponse;
use crate::present::refusals::{Indeterminate, RefusalResponse};

/// Makes the requests of one connection. Clients repeat what they send: it remembers the last target.
#[derive(Default)]
pub(super) struct RequestMaker {
    last: Vec<(String, Uri)>,
}

/// Targets that are remembered: acquire, release, keepalive and one more.
const TARGETS: usize = 4;

/// A request in a frame.
pub(super) struct StreamRequest {
    pub(super) id: RequestId,
    method: Method,
    /// `None` for a call that frames do not carry.
    uri: Option<Uri>,
    headers: HeaderMap,
    body: Bytes,
}

impl RequestMaker {
    pub(super) fn make(&mut self, request: &frames::Request<'_>) -> StreamRequest {
        let is_carried = frames::is_carried(request.method, request.target);
        let mut headers = HeaderMap::new();
        for (field, value) in request.fields {
            let value = HeaderValue::from_bytes(value).expect("the value is visible ASCII");
            headers.insert(HeaderName::from_static(field.name()), value);
        }
        StreamRequest {
            id: request.id,
            method: match request.method {
                frames::Method::Get => Method::GET,
                frames::Method::Post => Method::POST,
            },
            uri: is_carried.then(|| self.uri(request.target)).flatten(),
            headers,
            body: Bytes::copy_from_slice(request.body),
        }
    }

    fn uri(&mut self, target: &str) -> Option<Uri> {
        if let Some((_, uri)) = self.last.iter().find(|(known, _)| known == target) {
            return Some(uri.clone());
        }
        let uri: Uri = target.parse().ok()?;
        if uri.query().is_none() {
            self.last.truncate(TARGETS - 1);
            self.last.insert(0, (target.to_string(), uri.clone()));
        }
        Some(uri)
    }
}

impl StreamRequest {
    /// Handles the request; `None` if its outcome is not known. The memory of a request that is not alone on its connection
    /// is counted, as over HTTP/2.
    pub(super) async fn handle(
        self: Box<Self>,
        service: ConnectionService,
        is_alone: bool,
    ) -> Option<ShortResponse> {
        let Some(uri) = self.uri else {
            let detail = "frames carry short calls only; send this one over HTTP";
            let refusal = Refusal::new(Code::MethodNotAllowed, detail);
            return ShortResponse::read(RefusalResponse(refusal).into_response()).await;
        };
        let mut request = Request::new(Full::new(self.body));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) =
            (self.method, uri, self.headers);
        *request.version_mut() = if is_alone { Version::HTTP_11 } else { Version::HTTP_2 };
        let response = service.handle(request).await;
        if Indeterminate::is_in(&response) { None } else { ShortResponse::read(response).await }
    }
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
