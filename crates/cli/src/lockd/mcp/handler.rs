//! Takes calls, a bounded number at once, and hands them to the desk.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use tokio::sync::Semaphore;

use super::session::{Answer, Desk};
use super::tools::{INSTRUCTIONS, Verb};

/// The most calls at once. Each may wait for a while.
const CALLS_MAX: usize = 64;

pub(super) struct Handler {
    desk: Arc<Desk>,
    turns: Semaphore,
}

impl Handler {
    pub(super) fn new(desk: Arc<Desk>) -> Handler {
        Handler { desk, turns: Semaphore::new(CALLS_MAX) }
    }

    async fn answer(&self, verb: Verb, request: CallToolRequestParams) -> Answer {
        let Ok(_turn) = self.turns.try_acquire() else {
            return Err(format!(
                "REFUSED: {CALLS_MAX} calls are under way, the most at once. NEXT: wait for them to be answered.\n"
            ));
        };
        self.desk.call(verb, request.arguments.unwrap_or_default()).await
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("lockd", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Verb::ALL.map(Verb::tool).to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let unknown =
            || ErrorData::invalid_params(format!("there is no such tool: name={:?}", request.name), None);
        let verb = Verb::named(&request.name).ok_or_else(unknown)?;
        let answer = tokio::select! {
            biased;
            answer = self.answer(verb, request) => answer,
            () = context.ct.cancelled() => Err("CANCELLED.\n".into()),
        };
        let result = match answer {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}
