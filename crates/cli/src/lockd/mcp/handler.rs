//! Dispatches tool calls to the session, with bounded concurrency.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ErrorData, ServerHandler};
use tokio::sync::Semaphore;

use super::session::{AgentSession, ToolResult};
use super::tools::{INSTRUCTIONS, ToolName};

/// Maximum number of concurrent calls; each may wait up to `--max-wait`.
const CALLS_MAX: usize = 64;

pub(super) struct Handler {
    session: Arc<AgentSession>,
    calls: Semaphore,
}

impl Handler {
    pub(super) fn new(session: Arc<AgentSession>) -> Handler {
        Handler { session, calls: Semaphore::new(CALLS_MAX) }
    }

    async fn call(&self, tool: ToolName, request: CallToolRequestParams) -> ToolResult {
        let Ok(_permit) = self.calls.try_acquire() else {
            return Err(format!(
                "REFUSED: {CALLS_MAX} calls are running, which is the limit. NEXT: wait for their results.\n"
            ));
        };
        self.session.call(tool, request.arguments.unwrap_or_default()).await
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
        Ok(ListToolsResult::with_all_items(ToolName::ALL.map(ToolName::tool).to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let unknown = || ErrorData::invalid_params(format!("unknown tool: name={:?}", request.name), None);
        let tool = ToolName::named(&request.name).ok_or_else(unknown)?;
        let result = tokio::select! {
            biased;
            result = self.call(tool, request) => result,
            () = context.ct.cancelled() => Err("CANCELLED.\n".into()),
        };
        let result = match result {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}
