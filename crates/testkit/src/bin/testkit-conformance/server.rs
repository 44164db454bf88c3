//! The SDK handler: lists, reads, subscriptions. Tools are in [`crate::tools`].

use std::{
    borrow::Cow,
    sync::{Arc, atomic::Ordering},
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams,
        CompleteResult, GetPromptRequestParams, GetPromptResponse, GetPromptResult, GetTaskParams,
        GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
        ServerConfig, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
        UnsubscribeRequestParams, UpdateTaskParams,
    },
    service::{NotificationContext, SubscriptionContext},
    transport::streamable_http_server::session::local::LocalSessionManager,
};
use serde_json::json;

use crate::{
    Era,
    ask::{Answer, Asked, Context, Question, ask, complete, invalid},
    content,
    shared::{Session, Shared},
};

/// The server of one session: a legacy session, a stdio connection, or one modern HTTP request.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Arc<Session>,
    /// The HTTP sessions, for the tool that closes its own stream.
    pub(crate) sessions: Option<Arc<LocalSessionManager>>,
}

impl Server {
    pub(crate) fn new(shared: Arc<Shared>, sessions: Option<Arc<LocalSessionManager>>) -> Self {
        Self {
            shared,
            session: Arc::default(),
            sessions,
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tasks()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(
                Implementation::new("testkit-conformance", env!("CARGO_PKG_VERSION"))
                    .with_title("Toolwharf's conformance server"),
            )
            .with_instructions("Every tool here exists for a test.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        let is_modern =
            |version: &ProtocolVersion| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str();
        let known = ProtocolVersion::KNOWN_VERSIONS.iter();
        match self.shared.era {
            Era::Both => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Era::Legacy => known.filter(|v| !is_modern(v)).cloned().collect(),
            Era::Modern => known.filter(|v| is_modern(v)).cloned().collect(),
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.shared
            .peer_add(context.peer, Arc::clone(&self.session));
    }

    async fn set_level(&self, request: SetLevelRequestParams, context: Context) -> Answer<()> {
        if crate::ask::is_modern(&context) {
            return Err(ErrorData::method_not_found::<
                rmcp::model::SetLevelRequestMethod,
            >());
        }
        *self.session.level.lock() = request.level;
        Ok(())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: Context,
    ) -> Answer<CompleteResult> {
        let typed_so_far = request.argument.value;
        let values: Vec<_> = ["paris", "park", "party", "test", "testing", "42"]
            .into_iter()
            .filter(|value| value.starts_with(&typed_so_far))
            .collect();
        complete(json!({
            "completion": { "values": values, "total": values.len(), "hasMore": false },
        }))
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Answer<ListToolsResult> {
        let extra = self.shared.extra_tool.load(Ordering::Relaxed);
        complete(content::list("tools", extra))
    }

    // Lets the transport check `Mcp-Param-*` headers against the schema.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        let tools = content::list("tools", true);
        let tool = tools["tools"]
            .as_array()?
            .iter()
            .find(|tool| tool["name"] == name)?;
        serde_json::from_value(tool.clone()).ok()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Answer<CallToolResponse> {
        crate::tools::call(self, request, &context).await
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Answer<ListPromptsResult> {
        let extra = self.shared.extra_prompt.load(Ordering::Relaxed);
        complete(content::list("prompts", extra))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Answer<GetPromptResponse> {
        if request.name == "test_input_required_result_prompt" {
            let question = Question::elicitation(
                "user_context",
                "What context should the prompt use?",
                json!({
                    "type": "object",
                    "properties": { "context": { "type": "string" } },
                    "required": ["context"],
                }),
            );
            let responses = request.input_responses.as_ref();
            return match ask(&context, responses, &[question], None).await? {
                Asked::Pending(result) => Ok(result.into()),
                Asked::Answered(answers) => {
                    let text = answers["user_context"]["content"]["context"].to_string();
                    let result: GetPromptResult = complete(json!({
                        "messages": [{
                            "role": "user",
                            "content": { "type": "text", "text": format!("Context: {text}") },
                        }],
                    }))?;
                    Ok(result.into())
                }
            };
        }
        let arguments = request.arguments.unwrap_or_default();
        let argument = |name: &str| {
            let value = arguments.get(name).and_then(|value| value.as_str());
            value.unwrap_or_default().to_owned()
        };
        match content::prompt(&request.name, argument) {
            Some(prompt) => Ok(complete::<GetPromptResult>(prompt)?.into()),
            None => Err(invalid(format!("unknown prompt {:?}", request.name))),
        }
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Answer<ListResourcesResult> {
        complete(content::list("resources", true))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: Context,
    ) -> Answer<ListResourceTemplatesResult> {
        complete(content::list("resourceTemplates", true))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: Context,
    ) -> Answer<ReadResourceResponse> {
        let touched = self.shared.touched.load(Ordering::Relaxed);
        match content::resource(&request.uri, touched) {
            Some(contents) => Ok(complete::<ReadResourceResult>(contents)?.into()),
            // The SDK turns the code into -32602 for modern peers.
            None => Err(ErrorData::resource_not_found(
                "resource not found",
                Some(json!({ "uri": request.uri })),
            )),
        }
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.shared.sink_expect();
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Answer<()> {
        // If this future is dropped instead of cancelled, the next change finds the sink closed.
        let number = self.shared.sink_add(context.sink().clone());
        context.cancelled().await;
        self.shared.sink_remove(number);
        Ok(())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _context: Context) -> Answer<()> {
        self.session.subscribed.lock().insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _context: Context,
    ) -> Answer<()> {
        self.session.subscribed.lock().remove(&request.uri);
        Ok(())
    }

    async fn get_task(&self, request: GetTaskParams, _context: Context) -> Answer<GetTaskResult> {
        self.shared.tasks.get(&request.task_id)
    }

    async fn update_task(&self, request: UpdateTaskParams, _context: Context) -> Answer<()> {
        let responses = request.input_responses;
        self.shared.tasks.update(&request.task_id, responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _context: Context) -> Answer<()> {
        self.shared.tasks.cancel(&request.task_id)
    }
}
