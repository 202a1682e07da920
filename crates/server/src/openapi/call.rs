//! One call: what answers it, and its description.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Code, Refusal, header, schema_types};
use axum::handler::Handler;
use axum::http::header::{CONTENT_ENCODING, ETAG};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::routing::{MethodFilter, MethodRouter, on};
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{Predicate, SizeAbove};
use utoipa::openapi::link::{Link, LinkBuilder};
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{
    ContentBuilder, Deprecated, HeaderBuilder, Ref, RefOr, Required, Response, ResponseBuilder,
};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::query::Flag;

const JSON: &str = "application/json";

/// Shorter answers are not worth it.
const COMPRESSED_MIN: u64 = 1024;

/// A refusal is for people, and its tag nobody's.
#[derive(Clone, Copy)]
struct NotRefused;

impl Predicate for NotRefused {
    fn should_compress<B: http_body::Body>(&self, response: &axum::http::Response<B>) -> bool {
        response.status() == StatusCode::OK
    }
}

async fn weakened(mut response: axum::response::Response) -> axum::response::Response {
    if response.headers().contains_key(CONTENT_ENCODING)
        && let Some(etag) = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok())
    {
        let weak = HeaderValue::from_str(&format!("W/{etag}")).expect("it was one before");
        response.headers_mut().insert(ETAG, weak);
    }
    response
}

/// A method on a path, what answers it, and what is said about it.
pub(crate) struct Call {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<Arc<App>>,
    pub(crate) method: HttpMethod,
    /// Schemas that are referred to, by name.
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
    /// Anything else in a query is refused.
    pub(crate) takes_query: bool,
    name: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: &'static str,
    deprecated: bool,
    parameters: Vec<Parameter>,
    body: Option<RequestBody>,
    answers: Vec<(u16, Response)>,
    codes: Vec<Code>,
    links: Vec<(&'static str, Link)>,
}

impl Call {
    pub(crate) fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Call {
        Call::new(HttpMethod::Get, path, on(MethodFilter::GET, handler))
    }

    pub(crate) fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Call {
        Call::new(HttpMethod::Post, path, on(MethodFilter::POST, handler))
    }

    pub(crate) fn put<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Call {
        Call::new(HttpMethod::Put, path, on(MethodFilter::PUT, handler))
    }

    pub(crate) fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Call {
        Call::new(HttpMethod::Delete, path, on(MethodFilter::DELETE, handler))
    }

    fn new(method: HttpMethod, path: &'static str, handler: MethodRouter<Arc<App>>) -> Call {
        let call = Call {
            path,
            handler,
            method,
            schemas: Vec::new(),
            takes_query: false,
            name: "",
            tag: "",
            summary: "",
            description: "",
            deprecated: false,
            parameters: Vec::new(),
            body: None,
            answers: Vec::new(),
            codes: Vec::new(),
            links: Vec::new(),
        };
        // Whatever is asked can be malformed, and come with a certificate that is good no longer.
        let call = call.refuses(&[Code::InvalidBody, Code::Unauthenticated]);
        let what = "What the client calls this request: in the log, and echoed in the answer.";
        call.header::<HeaderText>(header::CORRELATION_ID, Required::False, what)
    }

    /// Its method, as HTTP spells it.
    pub(crate) fn verb(&self) -> &'static str {
        match self.method {
            HttpMethod::Get => "GET",
            HttpMethod::Post => "POST",
            HttpMethod::Put => "PUT",
            HttpMethod::Delete => "DELETE",
            _ => unreachable!("no call is made with another"),
        }
    }

    /// A name for programs, and one line for people.
    pub(crate) fn named(mut self, tag: &'static str, name: &'static str, summary: &'static str) -> Call {
        (self.tag, self.name, self.summary) = (tag, name, summary);
        self
    }

    /// What one line does not say.
    pub(crate) fn at_length(mut self, description: &'static str) -> Call {
        self.description = description;
        self
    }

    /// An old spelling.
    pub(crate) fn deprecated(mut self) -> Call {
        self.deprecated = true;
        self
    }

    /// Long answers are compressed for those who take that. Their tag is weak then: the same content, in other bytes.
    pub(crate) fn compressed(mut self) -> Call {
        let wanted = SizeAbove::new(COMPRESSED_MIN).and(NotRefused);
        let layer = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(wanted);
        self.handler = self.handler.route_layer(layer).route_layer(map_response(weakened));
        self
    }

    /// The query that its handler takes.
    pub(crate) fn query<T: IntoParams>(mut self) -> Call {
        self.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
        self.takes_query = true;
        self.with::<schema_types::Key>().with::<schema_types::Namespace>().with::<Flag>()
    }

    /// `{id}` in its path.
    pub(crate) fn of_agent(self) -> Call {
        let call = self.with::<schema_types::AgentId>();
        call.parameter::<schema_types::AgentId>("id", ParameterIn::Path, Required::True, "The agent.")
    }

    /// `{resource}` in its path.
    pub(crate) fn of_resource(self) -> Call {
        let what = "Kind and name, as in `FILE:%2Fsrc%2Fmain.rs`.";
        self.parameter::<schema_types::ResourceText>("resource", ParameterIn::Path, Required::True, what)
    }

    /// `{name}` in its path.
    pub(crate) fn of_namespace(self) -> Call {
        let call = self.with::<schema_types::Namespace>();
        call.parameter::<schema_types::Namespace>("name", ParameterIn::Path, Required::True, "The namespace.")
    }

    /// `{id}` in its path.
    pub(crate) fn of_lease(self) -> Call {
        let what = "The public name of a lease.";
        self.parameter::<schema_types::PublicId>("id", ParameterIn::Path, Required::True, what)
    }

    /// A header that its handler reads.
    pub(crate) fn header<T: ToSchema>(self, name: &str, required: Required, what: &str) -> Call {
        self.parameter::<T>(name, ParameterIn::Header, required, what)
    }

    fn parameter<T: ToSchema>(
        mut self,
        name: &str,
        place: ParameterIn,
        needed: Required,
        what: &str,
    ) -> Call {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .required(needed)
            .description(Some(what))
            .schema(Some(Ref::from_schema_name(T::name())));
        self.parameters.push(parameter.build());
        self.with::<T>()
    }

    /// A change: decided in the log, and applied once for one idempotency key.
    pub(crate) fn changes(self) -> Call {
        let what = "The same key within a minute, the same answer: for retries.";
        let codes = [Code::IdempotencyMismatch, Code::Draining, Code::NoSpace];
        self.reads().refuses(&codes).header::<HeaderText>(header::IDEMPOTENCY_KEY, Required::False, what)
    }

    /// It asks a shard.
    pub(crate) fn reads(self) -> Call {
        self.refuses(&[Code::Throttled, Code::Unavailable])
    }

    /// The body that its handler takes.
    pub(crate) fn body<T: ToSchema>(self) -> Call {
        let schema = RefOr::Ref(Ref::from_schema_name(T::name()));
        self.with::<T>().with_body(schema, None).refuses(&[Code::DocumentTooLarge])
    }

    /// Any JSON.
    pub(crate) fn document(self) -> Call {
        self.with_body(anything(), Some("Any JSON value. White space between tokens is not kept."))
    }

    fn with_body(mut self, schema: RefOr<Schema>, what: Option<&str>) -> Call {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.body = Some(body.description(what).build());
        self
    }

    /// What it answers when all is well.
    pub(crate) fn tells<T: ToSchema>(self, what: &str) -> Call {
        self.tells_with::<T>(200, what)
    }

    /// Likewise, under another status.
    pub(crate) fn tells_with<T: ToSchema>(self, status: u16, what: &str) -> Call {
        let schema = RefOr::Ref(Ref::from_schema_name(T::name()));
        self.with::<T>().answers(status, json(schema).description(what))
    }

    /// What it answers, where that is no type of the API.
    pub(crate) fn answers(mut self, status: u16, response: ResponseBuilder) -> Call {
        self.answers.push((status, response.build()));
        self
    }

    /// Why it may say no.
    pub(crate) fn refuses(mut self, codes: &[Code]) -> Call {
        self.codes.extend(codes);
        self.with::<Refusal>()
    }

    /// What its answer can be used for: a call, and where in the answer what it needs is found.
    pub(crate) fn leads_to(mut self, name: &'static str, link: LinkBuilder) -> Call {
        self.links.push((name, link.operation_id(name).build()));
        self
    }

    /// A schema that is referred to.
    pub(crate) fn with<T: ToSchema>(mut self) -> Call {
        self.schemas.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.schemas);
        self
    }

    pub(crate) fn operation(&self) -> Operation {
        let mut operation = OperationBuilder::new()
            .tag(self.tag)
            .operation_id(Some(self.name))
            .summary(Some(self.summary))
            .description(Some(self.description).filter(|text| !text.is_empty()))
            .deprecated(self.deprecated.then_some(Deprecated::True))
            .parameters(Some(self.parameters.clone()))
            .request_body(self.body.clone());
        for (status, answer) in &self.answers {
            let mut answer = answer.clone();
            for (name, link) in self.links.iter().filter(|_| *status == 200) {
                answer.links.insert((*name).to_string(), RefOr::T(link.clone()));
            }
            operation = operation.response(status.to_string(), answer);
        }
        for (status, codes) in self.refusals() {
            operation = operation.response(status.to_string(), refusal(&codes));
        }
        operation.build()
    }

    /// The codes of each status. Where a status is an answer as well, it is that alone.
    fn refusals(&self) -> BTreeMap<u16, Vec<Code>> {
        let mut refusals: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
        for code in &self.codes {
            let codes = refusals.entry(code.status()).or_default();
            if !codes.contains(code) {
                codes.push(*code);
            }
        }
        refusals
    }
}

/// Any JSON.
pub(crate) fn anything() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).into()
}

/// An answer in JSON.
pub(crate) fn json(schema: RefOr<Schema>) -> ResponseBuilder {
    ResponseBuilder::new().content(JSON, ContentBuilder::new().schema(Some(schema)).build())
}

/// A header of an answer that is a number.
pub(crate) fn number(what: &str) -> utoipa::openapi::Header {
    let schema = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    HeaderBuilder::new().schema(Some(schema)).description(Some(what)).build()
}

/// A refusal with one of these codes.
fn refusal(codes: &[Code]) -> Response {
    let means: Vec<String> = codes.iter().map(|code| format!("- `{code}`: {}", code.means())).collect();
    let one_of = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(codes.iter().map(|code| code.as_str())));
    let narrowed = ObjectBuilder::new().property("error", one_of);
    let whole = AllOfBuilder::new().item(Ref::from_schema_name(Refusal::name())).item(narrowed);
    let response = json(RefOr::T(Schema::AllOf(whole.build()))).description(means.join("\n"));
    if codes.iter().any(|code| matches!(code.status(), 409 | 429 | 503)) {
        return response.header("Retry-After", number("Seconds, where it helps to come again.")).build();
    }
    response.build()
}

/// A text in a header: printable ASCII, 1 to 256 characters, no space at either end.
#[derive(ToSchema)]
#[schema(min_length = 1, max_length = 256, pattern = "^[!-~]([ -~]*[!-~])?$")]
pub(crate) struct HeaderText(#[expect(dead_code, reason = "a schema has no values")] String);

/// A number in a header.
#[derive(ToSchema)]
#[schema(value_type = u64, maximum = 18_446_744_073_709_551_615_usize)]
pub(crate) struct HeaderNumber(#[expect(dead_code, reason = "a schema has no values")] u64);

/// The hash of a document, quoted or bare; empty: there must be none.
#[derive(ToSchema)]
#[schema(pattern = r#"^("[0-9a-fA-F]{64}"|[0-9a-fA-F]{64}|"")?$"#)]
pub(crate) struct HeaderEtag(#[expect(dead_code, reason = "a schema has no values")] String);

/// An event's place; empty: none has come yet.
#[derive(ToSchema)]
#[schema(pattern = r"^([0-9]{1,19}\.[0-9]{1,9}(\.[0-9]{1,9})?)?$", examples("1794700000000000.0"))]
pub(crate) struct HeaderEventId(#[expect(dead_code, reason = "a schema has no values")] String);
