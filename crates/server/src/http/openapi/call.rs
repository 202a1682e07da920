//! [`ApiCall`]: a handler and its OpenAPI description.

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

use crate::backend::shards::Backend;
use crate::parse::query::Flag;

const JSON: &str = "application/json";

/// Shorter responses are not compressed, in bytes.
const COMPRESSED_MIN: u64 = 1024;

/// Compresses successful responses only.
#[derive(Clone, Copy)]
struct OnlySuccess;

impl Predicate for OnlySuccess {
    fn should_compress<B: http_body::Body>(&self, response: &axum::http::Response<B>) -> bool {
        response.status() == StatusCode::OK
    }
}

async fn weaken_etag(mut response: axum::response::Response) -> axum::response::Response {
    if response.headers().contains_key(CONTENT_ENCODING)
        && let Some(etag) = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok())
    {
        let weak = HeaderValue::from_str(&format!("W/{etag}")).expect("the ETag was a valid header value");
        response.headers_mut().insert(ETAG, weak);
    }
    response
}

/// A method on a path, its handler, and its description.
pub(crate) struct ApiCall {
    pub(crate) path: &'static str,
    pub(crate) handler: MethodRouter<Arc<Backend>>,
    pub(crate) method: HttpMethod,
    /// Referenced schemas, by name.
    pub(crate) schemas: Vec<(String, RefOr<Schema>)>,
    /// Without it, a query is refused.
    pub(crate) takes_query: bool,
    pub(crate) name: &'static str,
    tag: &'static str,
    summary: &'static str,
    description: &'static str,
    deprecated: bool,
    parameters: Vec<Parameter>,
    body: Option<RequestBody>,
    responses: Vec<(u16, Response)>,
    codes: Vec<Code>,
    links: Vec<(&'static str, Link)>,
}

impl ApiCall {
    pub(crate) fn get<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Backend>>) -> ApiCall {
        ApiCall::new(HttpMethod::Get, path, on(MethodFilter::GET, handler))
    }

    pub(crate) fn post<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Backend>>) -> ApiCall {
        ApiCall::new(HttpMethod::Post, path, on(MethodFilter::POST, handler))
    }

    pub(crate) fn put<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Backend>>) -> ApiCall {
        ApiCall::new(HttpMethod::Put, path, on(MethodFilter::PUT, handler))
    }

    pub(crate) fn delete<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<Backend>>) -> ApiCall {
        ApiCall::new(HttpMethod::Delete, path, on(MethodFilter::DELETE, handler))
    }

    fn new(method: HttpMethod, path: &'static str, handler: MethodRouter<Arc<Backend>>) -> ApiCall {
        let call = ApiCall {
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
            responses: Vec::new(),
            codes: Vec::new(),
            links: Vec::new(),
        };
        // Every request can be malformed, or come with a certificate that is no longer valid.
        let call = call.refuses(&[Code::InvalidBody, Code::Unauthenticated]);
        let what = "The client's id of this request: logged, and echoed in the response.";
        call.header::<HeaderText>(header::CORRELATION_ID, Required::False, what)
    }

    /// The HTTP method.
    pub(crate) fn verb(&self) -> &'static str {
        match self.method {
            HttpMethod::Get => "GET",
            HttpMethod::Post => "POST",
            HttpMethod::Put => "PUT",
            HttpMethod::Delete => "DELETE",
            _ => unreachable!("calls are built for these methods only"),
        }
    }

    /// Whether it is an operator's act if an operator calls it; such acts are logged.
    pub(crate) fn is_operator_act(&self) -> bool {
        (self.tag == "operators" && self.method != HttpMethod::Get) || self.name == "set_agent"
    }

    /// Tag, operation id and summary.
    pub(crate) fn named(mut self, tag: &'static str, name: &'static str, summary: &'static str) -> ApiCall {
        (self.tag, self.name, self.summary) = (tag, name, summary);
        self
    }

    /// The description, which extends the summary.
    pub(crate) fn described(mut self, description: &'static str) -> ApiCall {
        self.description = description;
        self
    }

    /// Marks an old spelling of a path.
    pub(crate) fn deprecated(mut self) -> ApiCall {
        self.deprecated = true;
        self
    }

    /// Compresses long responses for clients that accept it. Their `ETag` becomes weak: same content, other bytes.
    pub(crate) fn compressed(mut self) -> ApiCall {
        let wanted = SizeAbove::new(COMPRESSED_MIN).and(OnlySuccess);
        let layer = CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(wanted);
        self.handler = self.handler.route_layer(layer).route_layer(map_response(weaken_etag));
        self
    }

    /// The query parameters of the handler.
    pub(crate) fn query<T: IntoParams>(mut self) -> ApiCall {
        self.parameters.extend(T::into_params(|| Some(ParameterIn::Query)));
        self.takes_query = true;
        self.with::<schema_types::Key>().with::<schema_types::Namespace>().with::<Flag>()
    }

    /// `{id}` in its path.
    pub(crate) fn of_agent(self) -> ApiCall {
        let call = self.with::<schema_types::AgentId>();
        call.parameter::<schema_types::AgentId>("id", ParameterIn::Path, Required::True, "Id of the agent.")
    }

    /// `{resource}` in its path.
    pub(crate) fn of_resource(self) -> ApiCall {
        let what = "Kind and name, as in `FILE:%2Fsrc%2Fmain.rs`.";
        self.parameter::<schema_types::ResourceText>("resource", ParameterIn::Path, Required::True, what)
    }

    /// `{name}` in its path.
    pub(crate) fn of_namespace(self) -> ApiCall {
        let call = self.with::<schema_types::Namespace>();
        call.parameter::<schema_types::Namespace>(
            "name",
            ParameterIn::Path,
            Required::True,
            "Name of the namespace.",
        )
    }

    /// `{id}` in its path.
    pub(crate) fn of_lease(self) -> ApiCall {
        let what = "Public id of the lease.";
        self.parameter::<schema_types::PublicId>("id", ParameterIn::Path, Required::True, what)
    }

    /// A header that the handler reads.
    pub(crate) fn header<T: ToSchema>(self, name: &str, required: Required, what: &str) -> ApiCall {
        self.parameter::<T>(name, ParameterIn::Header, required, what)
    }

    fn parameter<T: ToSchema>(
        mut self,
        name: &str,
        location: ParameterIn,
        needed: Required,
        what: &str,
    ) -> ApiCall {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(location)
            .required(needed)
            .description(Some(what))
            .schema(Some(Ref::from_schema_name(T::name())));
        self.parameters.push(parameter.build());
        self.with::<T>()
    }

    /// A mutation: logged, and applied once for each idempotency key.
    pub(crate) fn changes(self) -> ApiCall {
        let what = "Makes retries safe: the same key within a minute gets the same response.";
        let codes = [Code::IdempotencyMismatch, Code::Draining, Code::NoSpace];
        self.reads().refuses(&codes).header::<HeaderText>(header::IDEMPOTENCY_KEY, Required::False, what)
    }

    /// A call that queries a shard.
    pub(crate) fn reads(self) -> ApiCall {
        self.refuses(&[Code::Moved, Code::Throttled, Code::Unavailable])
    }

    /// The body that the handler reads.
    pub(crate) fn body<T: ToSchema>(self) -> ApiCall {
        let schema = RefOr::Ref(Ref::from_schema_name(T::name()));
        self.with::<T>().with_body(schema, None).refuses(&[Code::DocumentTooLarge])
    }

    /// A body of any JSON.
    pub(crate) fn document(self) -> ApiCall {
        self.with_body(anything(), Some("Any JSON value. White space between tokens is removed."))
    }

    fn with_body(mut self, schema: RefOr<Schema>, what: Option<&str>) -> ApiCall {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let body = RequestBodyBuilder::new().content(JSON, content).required(Some(Required::True));
        self.body = Some(body.description(what).build());
        self
    }

    /// The response with status 200.
    pub(crate) fn returns<T: ToSchema>(self, what: &str) -> ApiCall {
        self.returns_status::<T>(200, what)
    }

    /// A response with another status.
    pub(crate) fn returns_status<T: ToSchema>(self, status: u16, what: &str) -> ApiCall {
        let schema = RefOr::Ref(Ref::from_schema_name(T::name()));
        self.with::<T>().response_with(status, json(schema).description(what))
    }

    /// A response without an API type.
    pub(crate) fn response_with(mut self, status: u16, response: ResponseBuilder) -> ApiCall {
        self.responses.push((status, response.build()));
        self
    }

    /// The error codes that it may return.
    pub(crate) fn refuses(mut self, codes: &[Code]) -> ApiCall {
        self.codes.extend(codes);
        self.with::<Refusal>()
    }

    /// A link: a call that can follow, and where its parameters are in this response.
    pub(crate) fn links_to(mut self, name: &'static str, link: LinkBuilder) -> ApiCall {
        self.links.push((name, link.operation_id(name).build()));
        self
    }

    /// Adds a referenced schema.
    pub(crate) fn with<T: ToSchema>(mut self) -> ApiCall {
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
        for (status, response) in &self.responses {
            let mut response = response.clone();
            for (name, link) in self.links.iter().filter(|_| *status == 200) {
                response.links.insert((*name).to_string(), RefOr::T(link.clone()));
            }
            operation = operation.response(status.to_string(), response);
        }
        for (status, codes) in self.refusals() {
            operation = operation.response(status.to_string(), refusal(&codes));
        }
        operation.build()
    }

    /// The error codes of each status.
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

/// A schema of any JSON.
pub(crate) fn anything() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).into()
}

/// A response with a JSON body.
pub(crate) fn json(schema: RefOr<Schema>) -> ResponseBuilder {
    ResponseBuilder::new().content(JSON, ContentBuilder::new().schema(Some(schema)).build())
}

/// A numeric response header.
pub(crate) fn number(what: &str) -> utoipa::openapi::Header {
    let schema = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    HeaderBuilder::new().schema(Some(schema)).description(Some(what)).build()
}

/// An error response with one of these codes.
fn refusal(codes: &[Code]) -> Response {
    let means: Vec<String> = codes.iter().map(|code| format!("- `{code}`: {}", code.means())).collect();
    let one_of = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some(codes.iter().map(|code| code.as_str())));
    let narrowed = ObjectBuilder::new().property("error", one_of);
    let whole = AllOfBuilder::new().item(Ref::from_schema_name(Refusal::name())).item(narrowed);
    let response = json(RefOr::T(Schema::AllOf(whole.build()))).description(means.join("\n"));
    if codes.iter().any(|code| matches!(code.status(), 409 | 429 | 503)) {
        return response
            .header("Retry-After", number("Seconds to wait before a retry, if a retry may help."))
            .build();
    }
    response.build()
}

/// A text in a header: 1 to 256 printable ASCII characters, without leading or trailing spaces.
#[derive(ToSchema)]
#[schema(min_length = 1, max_length = 256, pattern = "^[!-~]([ -~]*[!-~])?$")]
pub(crate) struct HeaderText(#[expect(dead_code, reason = "used as a schema only")] String);

/// An unsigned integer in a header.
#[derive(ToSchema)]
#[schema(value_type = u64, maximum = 18_446_744_073_709_551_615_usize)]
pub(crate) struct HeaderNumber(#[expect(dead_code, reason = "used as a schema only")] u64);

/// Hash of a document, quoted or bare; empty requires that there is none. Any other value matches no document.
#[derive(ToSchema)]
pub(crate) struct HeaderEtag(#[expect(dead_code, reason = "used as a schema only")] String);

/// Position of an event; empty if none was received yet.
#[derive(ToSchema)]
#[schema(pattern = r"^([0-9]{1,19}\.[0-9]{1,9}(\.[0-9]{1,9})?)?$", examples("1794700000000000.0"))]
pub(crate) struct HeaderEventId(#[expect(dead_code, reason = "used as a schema only")] String);
