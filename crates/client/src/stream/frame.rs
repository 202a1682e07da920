//! Turns a request into a frame, if frames can carry it.

use frames::{BODY_MAX, Field, RequestId, is_carried};
use hyper::Method;
use hyper::body::Bytes;

use crate::call::ApiRequest;

/// The frame of a request, without its number. `None` if it has to be sent over HTTP.
pub(crate) fn frame_of(request: &ApiRequest) -> Option<Bytes> {
    let method = match request.method {
        Method::GET => frames::Method::Get,
        Method::POST => frames::Method::Post,
        _ => return None,
    };
    let body = request.body.in_memory().filter(|body| body.len() <= BODY_MAX)?;
    if !is_carried(method, &request.path) {
        return None;
    }
    let fields = fields(&request.headers)?;
    let mut frame = Vec::new();
    frames::encode_request(&mut frame, RequestId(0), method, &request.path, fields, body).ok()?;
    Some(frame.into())
}

/// The headers as fields by rising number; `None` if frames have no place for one. The content type is always JSON.
fn fields<'a>(headers: &'a [(&'static str, String)]) -> Option<Vec<(Field, &'a [u8])>> {
    let mut fields = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        let is_json = *name == "content-type" && value == "application/json";
        // HTTP would trim the value.
        if value.trim_ascii() != value {
            return None;
        }
        if !is_json {
            fields.push((Field::of(name)?, value.as_bytes()));
        }
    }
    fields.sort_unstable_by_key(|(field, _)| *field);
    Some(fields)
}

#[cfg(test)]
mod tests {
    use api::header;
    use frames::{Message, parse};

    use super::*;
    use crate::document_body::DocumentBody;
    use crate::request::{get, post};

    fn acquire(headers: &[(&'static str, &str)]) -> ApiRequest {
        let mut request = post("/v1/acquire", &());
        request.headers.extend(headers.iter().map(|(name, value)| (*name, (*value).to_string())));
        request
    }

    #[test]
    fn a_short_call_is_a_frame_with_rising_fields() {
        let frame = frame_of(&acquire(&[(header::LEASE_ID, "L"), (header::IDEMPOTENCY_KEY, "k")]));
        let frame = frame.expect("short");
        let Ok(Some((Message::Request(request), _))) = parse(&frame) else { panic!("a request") };
        assert_eq!((request.target, request.body), ("/v1/acquire", b"null".as_slice()));
        let fields: Vec<_> = request.fields.into_iter().collect();
        assert_eq!(fields, [(Field::IdempotencyKey, b"k".as_slice()), (Field::LeaseId, b"L".as_slice())]);
        assert!(frame_of(&get("/v1/describe?key=a".into())).is_some());
    }

    #[test]
    fn what_frames_cannot_express_is_left_to_http() {
        for headers in [
            [("last-event-id", "1")],
            [(header::LEASE_ID, "a\nb")],
            [(header::LEASE_ID, "ä")],
            [(header::LEASE_ID, "a ")],
            [("content-type", "text/plain")],
        ] {
            assert!(frame_of(&acquire(&headers)).is_none(), "{headers:?}");
        }
        assert!(frame_of(&acquire(&[(header::LEASE_ID, "a"), (header::LEASE_ID, "a")])).is_none());
        for path in ["/v1/events", "/v1/describe?key=a b", "/v1/describe?key=ä"] {
            assert!(frame_of(&get(path.into())).is_none(), "{path}");
        }
        let with_body = |body: DocumentBody| ApiRequest { body, ..acquire(&[]) };
        assert!(frame_of(&with_body(vec![b' '; BODY_MAX].into())).is_some());
        assert!(frame_of(&with_body(vec![b' '; BODY_MAX + 1].into())).is_none());
        assert!(frame_of(&with_body(DocumentBody::from_reader(tokio::io::empty()))).is_none());
        assert!(frame_of(&ApiRequest { method: Method::PUT, ..acquire(&[]) }).is_none());
    }
}
