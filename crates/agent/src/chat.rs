//! The loop of one turn (A13): the model answers, its tool calls are executed, and the results are sent back, until the
//! model ends its turn.
//!
//! Invariants: an answer is added to the conversation completely or not at all. Once it is added, each of its calls
//! gets a result on every exit path, including a drop ([`Batch`]). The record of a run is closed on every exit path
//! ([`OpenRun`]).

use std::{pin::pin, sync::Arc};

use futures_util::{StreamExt as _, stream};

use crate::{
    agent::{Agent, ChatStream},
    config::Price,
    conversation::{AppResult, CANCELLED, Conversation, Full, Mark, result},
    event::{ChatEvent, ErrorKind},
    generate::{Emitter, generate},
    keep::{Beginning, Keep, Keeping},
    ledger::{NewRun, RunEnd, RunId, RunStatus},
    llm::{Call, ModelError, ModelEvent, ModelRequest, Reply, Stop, Usage},
    message::{Block, Message, UserMessage},
    outcome::{cut, head, text_of},
    questions::Questions,
    servers::ServersError,
    tool_names::ToolNames,
    tools::{Called, Person, Tools, recorded, written},
};

/// Maximum bytes of a result's text in the event for the client.
const MAX_EVENT_PREVIEW_BYTES: usize = 2_000;

type Out = Emitter<ChatEvent>;
type Ended = Result<ChatEvent, (ErrorKind, String)>;

/// Runs one turn of a conversation. Returns its last event.
pub(crate) async fn run(
    agent: &Agent,
    conversation: &mut Conversation,
    message: UserMessage,
    mut begin: Option<Beginning<'_>>,
    questions: Option<&Questions>,
    out: &Out,
) -> Ended {
    let mut said = message
        .into_blocks()
        .map_err(|why| (ErrorKind::Conversation, why))?;
    let registry = registry(agent, out)
        .await
        .map_err(|error| (ErrorKind::Servers, error.to_string()))?;
    let limit = agent.config.conversation_bytes;
    let mut before = Some(conversation.mark());
    if let Some(note) = conversation.note_missing(registry.missing()) {
        said.insert(0, note);
    }
    if let Err(error) = conversation.push_user(said, limit) {
        if let Some(before) = before {
            conversation.go_back(before);
        }
        return Err(full(error));
    }
    let kept_as = begin.as_ref().map(|begin| begin.conversation().to_owned());
    let caller = begin.as_ref().and_then(|begin| begin.caller());
    let caller = caller.map(str::to_owned);
    let mut run = OpenRun::open(agent, kept_as, caller).await?;
    let id = run.id.0.to_string();
    if let Some(begin) = &mut begin
        && let Err(why) = begin.begin(conversation).await
    {
        let why = format!("the message cannot be saved: {why}");
        run.finish(Some(&why)).await;
        return Err((ErrorKind::Conversation, why));
    }
    out.emit(ChatEvent::Started { run: id.clone() }).await;
    if !registry.missing().is_empty() {
        let servers = registry.missing().to_vec();
        out.emit(ChatEvent::ServersMissing { servers }).await;
    }
    let ended = turns(
        agent,
        conversation,
        &mut before,
        &registry,
        &mut run,
        questions,
        out,
    )
    .await;
    let ended = ended.map(|stop| ChatEvent::Done {
        stop_reason: stop.as_str().to_owned(),
        run: id,
    });
    run.finish(ended.as_ref().err().map(|(_, why)| why.as_str()))
        .await;
    ended
}

/// The tools for the turn. If listing them takes long, an event names the servers that the turn waits for.
async fn registry(agent: &Agent, out: &Out) -> Result<ToolNames, ServersError> {
    let mut getting = pin!(agent.registry());
    let patience = agent.config.quiet_wait;
    if let Ok(registry) = tokio::time::timeout(patience, &mut getting).await {
        return registry;
    }
    let servers = agent.servers.starting();
    out.emit(ChatEvent::WaitingForServers { servers }).await;
    getting.await
}

fn full(error: Full) -> (ErrorKind, String) {
    (ErrorKind::Conversation, error.to_string())
}

async fn turns(
    agent: &Agent,
    conversation: &mut Conversation,
    before: &mut Option<Mark>,
    registry: &ToolNames,
    run: &mut OpenRun<'_>,
    questions: Option<&Questions>,
    out: &Out,
) -> Result<Stop, (ErrorKind, String)> {
    let limit = agent.config.conversation_bytes;
    let most = agent.config.max_turns.max(1);
    loop {
        run.turns += 1;
        let request = ModelRequest {
            system: agent.config.system.clone(),
            messages: conversation.messages().to_vec(),
            tools: Arc::clone(registry.functions()),
        };
        let answered = ask(agent, request, run, out).await;
        run.settle_usage(out).await;
        let reply = match answered {
            Ok(reply) => reply,
            Err(error) => {
                take_back(conversation, before.take(), &error);
                return Err((ErrorKind::Model, error.to_string()));
            }
        };
        *before = None;
        let Reply {
            content,
            calls,
            stop,
            ..
        } = reply;
        match &stop {
            Stop::Refusal => {
                let why = "the model refused to answer (refusal); its answer is discarded";
                return Err((ErrorKind::Model, why.to_owned()));
            }
            Stop::MaxTokens | Stop::Other(_) if !calls.is_empty() => {
                let why = format!(
                    "the model's answer ended ({}) in the middle of a tool call; the answer is discarded",
                    stop.as_str()
                );
                return Err((ErrorKind::Model, why));
            }
            _ => {}
        }
        // Thinking alone is not an answer, and the API refuses messages that end with it.
        if content.iter().all(Block::is_thought) {
            return Ok(stop);
        }
        conversation.push_assistant(content, limit).map_err(full)?;
        if calls.is_empty() {
            match stop {
                Stop::PauseTurn if run.turns < most => continue,
                Stop::PauseTurn => return Err(too_many(most)),
                stop => return Ok(stop),
            }
        }
        let mut batch = Batch::new(conversation, &calls, limit);
        if run.turns >= most {
            batch.refuse(&format!(
                "Not called: the limit of {most} turns is reached."
            ));
            batch.close().map_err(full)?;
            return Err(too_many(most));
        }
        let tools = Tools {
            config: &agent.config,
            servers: &*agent.servers,
            native: &agent.native,
            registry,
            records: &agent.records,
            run: &run.id,
            person: questions.map(|questions| Person { questions, out }),
            kept: batch.conversation.results().cloned().collect(),
        };
        call_all(&tools, &calls, &mut batch, run.turns, out).await;
        batch.close().map_err(full)?;
    }
}

/// Removes the content that the provider refused. Otherwise every later request would be refused too.
fn take_back(conversation: &mut Conversation, before: Option<Mark>, error: &ModelError) {
    // These statuses mean that the content is invalid or too long. Other errors (wrong key, unknown model) have nothing
    // to do with the content.
    let ModelError::Refused {
        status: 400 | 413, ..
    } = error
    else {
        return;
    };
    match before {
        Some(before) => conversation.go_back(before),
        None => conversation.leave_out_results(&format!("The result was left out: {error}")),
    }
}

fn too_many(most: u32) -> (ErrorKind, String) {
    let why = format!(
        "the model asked for tools in {most} consecutive turns, which is the limit; send a message to let it continue, \
         or raise `max_turns`"
    );
    (ErrorKind::TurnLimit, why)
}

/// Makes one request to the model and forwards the events.
async fn ask(
    agent: &Agent,
    request: ModelRequest,
    run: &mut OpenRun<'_>,
    out: &Out,
) -> Result<Reply, ModelError> {
    let mut stream = agent.model.stream(request);
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Text(text) => out.emit(ChatEvent::TextDelta { text }).await,
            ModelEvent::Thinking(text) => out.emit(ChatEvent::ThinkingDelta { text }).await,
            ModelEvent::Usage(usage) => run.turn_usage = usage,
            ModelEvent::Retrying { pause, why } => {
                let pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                out.emit(ChatEvent::Retrying { pause_ms, why }).await;
            }
            ModelEvent::Done(reply) => {
                run.turn_usage = reply.usage;
                return Ok(reply);
            }
        }
    }
    Err(ModelError::Cut("the stream had no final event".to_owned()))
}

/// Executes the calls of one answer concurrently.
async fn call_all(tools: &Tools<'_>, calls: &[Call], batch: &mut Batch<'_>, turn: u32, out: &Out) {
    for (call, arguments) in calls.iter().zip(batch.arguments.drain(..)) {
        let function = tools.registry.get(&call.name);
        out.emit(ChatEvent::ToolCall {
            id: call.id.clone(),
            name: call.name.clone(),
            server: function.map(|function| function.origin.server().to_owned()),
            arguments,
        })
        .await;
    }
    let config = tools.config;
    let one = async |at: usize| (at, tools.call(&calls[at]).await);
    let all: Vec<_> = (0..calls.len()).map(one).collect();
    let mut running = stream::iter(all).buffer_unordered(config.parallel_calls.max(1));
    while let Some((at, called)) = running.next().await {
        let call = &calls[at];
        let Called {
            mut parts,
            is_error,
            payload,
            for_app,
            is_piece,
        } = called;
        let text = text_of(&parts);
        if !is_piece {
            let place = place(&call.id, turn, at);
            let uri = format!("{}{}/{place}", results::URI_PREFIX, tools.run.0);
            let kept;
            (parts, kept) = cut(parts, uri, tools.bound(), config.result_bytes);
            if let Some(kept) = kept {
                batch.conversation.keep(kept, config.results_kept);
            }
        }
        batch.results[at] = Some(Block::ToolResult {
            tool_use_id: call.id.clone(),
            content: parts,
            is_error,
        });
        if let Some(result) = &for_app {
            let (call, result) = (call.id.clone(), result.clone());
            let kept = AppResult { call, result };
            batch.conversation.keep_for_app(kept, config.results_kept);
        }
        if let Some(payload) = payload {
            out.emit(ChatEvent::Native {
                id: call.id.clone(),
                tool: call.name.clone(),
                payload,
            })
            .await;
        }
        out.emit(ChatEvent::ToolResult {
            id: call.id.clone(),
            is_error,
            preview: head(&text, MAX_EVENT_PREVIEW_BYTES).to_owned(),
            bytes: text.len(),
            result: for_app,
        })
        .await;
    }
}

/// The last part of a result's URI: the call's id if its characters are safe in a URI, otherwise `TURN-INDEX`.
fn place(id: &str, turn: u32, at: usize) -> String {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    match (1..=128).contains(&id.len()) && id.bytes().all(fits) {
        true => id.to_owned(),
        false => format!("{turn}-{at}"),
    }
}

/// The calls of the latest answer. Dropping this adds a result to the conversation for each call that has none.
struct Batch<'a> {
    conversation: &'a mut Conversation,
    ids: Vec<String>,
    /// The arguments of each call, as stored in the conversation.
    arguments: Vec<crate::raw::Raw>,
    results: Vec<Option<Block>>,
    limit: usize,
    closed: bool,
}

impl<'a> Batch<'a> {
    fn new(conversation: &'a mut Conversation, calls: &[Call], limit: usize) -> Self {
        let last = conversation.messages().last().map(Arc::clone);
        let written = |call: &Call| {
            let blocks = last.iter().flat_map(|last: &Arc<Message>| &last.content);
            blocks.into_iter().find_map(|block| match block {
                Block::ToolUse { id, input, .. } if *id == call.id => Some(input.clone()),
                _ => None,
            })
        };
        Self {
            ids: calls.iter().map(|call| call.id.clone()).collect(),
            arguments: calls
                .iter()
                .map(|call| written(call).unwrap_or_else(crate::raw::Raw::empty_object))
                .collect(),
            results: vec![None; calls.len()],
            conversation,
            limit,
            closed: false,
        }
    }

    /// Gives all calls the same error result.
    fn refuse(&mut self, why: &str) {
        for (id, slot) in self.ids.iter().zip(&mut self.results) {
            *slot = Some(result(id, why, true));
        }
    }

    /// Adds the results to the conversation, in the order of the calls.
    fn close(mut self) -> Result<(), Full> {
        self.put()
    }

    fn put(&mut self) -> Result<(), Full> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let results = self.ids.iter().zip(self.results.drain(..));
        let results = results
            .map(|(id, block)| block.unwrap_or_else(|| result(id, CANCELLED, true)))
            .collect();
        self.conversation.push_results(results, self.limit)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // The error can be ignored: if the results do not fit, short ones are added instead.
        let _ = self.put();
    }
}

/// The record of a run. If dropped before [`OpenRun::finish`], it is closed as cancelled.
struct OpenRun<'a> {
    agent: &'a Agent,
    id: RunId,
    turns: u32,
    usage: Usage,
    /// Token usage of the request in flight.
    turn_usage: Usage,
    price: Price,
    /// The status and the error to record if this is dropped.
    open: Option<(RunStatus, Option<String>)>,
}

impl<'a> OpenRun<'a> {
    async fn open(
        agent: &'a Agent,
        conversation: Option<String>,
        caller: Option<String>,
    ) -> Result<Self, (ErrorKind, String)> {
        let new = NewRun {
            project: agent.config.project.clone(),
            agent: Arc::clone(&agent.config.name),
            model: agent.model.name().to_owned(),
            conversation,
            caller,
        };
        let why = |why: String| {
            (
                ErrorKind::Ledger,
                format!("the run cannot be recorded: {why}"),
            )
        };
        let opened = recorded(agent.records.ledger.run_open(new)).await;
        let id = opened.map_err(why)?;
        let price = agent.config.prices.get(agent.model.name());
        Ok(Self {
            agent,
            id,
            turns: 0,
            usage: Usage::default(),
            turn_usage: Usage::default(),
            price: price.copied().unwrap_or_default(),
            open: Some((RunStatus::Cancelled, None)),
        })
    }

    /// Adds the usage of the latest request, complete or not, and emits the totals.
    async fn settle_usage(&mut self, out: &Out) {
        self.usage.add(std::mem::take(&mut self.turn_usage));
        let Usage {
            input,
            output,
            cache_read,
            cache_write,
        } = self.usage;
        out.emit(ChatEvent::Usage {
            input,
            output,
            cache_read,
            cache_write,
            cost_micros: self.price.micros(self.usage),
        })
        .await;
    }

    fn end(&self, status: RunStatus, error: Option<String>) -> RunEnd {
        let mut usage = self.usage;
        usage.add(self.turn_usage);
        RunEnd {
            status,
            turns: self.turns,
            usage,
            cost_micros: self.price.micros(usage),
            error,
        }
    }

    async fn finish(mut self, error: Option<&str>) {
        let status = match error {
            None => RunStatus::Done,
            Some(_) => RunStatus::Failed,
        };
        let error = error.map(str::to_owned);
        self.open = Some((status, error.clone()));
        let end = self.end(status, error);
        let ledger = &self.agent.records.ledger;
        let finishing = ledger.run_finish(self.id.clone(), end);
        written(&format!("the record of run `{}`", self.id.0), finishing).await;
        self.open = None;
    }
}

impl Drop for OpenRun<'_> {
    fn drop(&mut self) {
        if let Some((mut status, mut error)) = self.open.take() {
            if status == RunStatus::Cancelled && self.agent.is_stopped() {
                status = RunStatus::Interrupted;
                error = Some(self.agent.why_stopped().to_owned());
            }
            let end = self.end(status, error);
            self.agent.records.run_dropped(self.id.clone(), end);
        }
    }
}

impl Agent {
    /// Runs one turn: sends a message to the model and executes its tool calls until the model ends the turn.
    ///
    /// The exclusive borrow prevents two concurrent turns of one conversation. Store the conversation after the stream
    /// has ended or was dropped. It is valid in both cases.
    pub fn chat<'a>(
        &'a self,
        conversation: &'a mut Conversation,
        message: impl Into<UserMessage>,
    ) -> ChatStream<'a> {
        let message = message.into();
        generate(|out| async move {
            let last = self.turn(conversation, message, None, None, &out).await;
            out.emit(last).await;
        })
    }

    /// [`Agent::chat`] as a stream that owns everything it needs, for a response that outlives its handler.
    ///
    /// `keep` receives the conversation twice: with the user's message, before the model is called, and at the end. The
    /// last event is held back until the conversation is stored the second time; after a drop, a task of the agent
    /// stores it. Each of the two writes may take ten seconds. A turn that does not start is not stored.
    ///
    /// With `questions`, servers can ask the user something during a call. [`ChatEvent::Questions`] reports it, and the
    /// answers are passed to `questions`.
    pub fn chat_owned(
        self: &Arc<Self>,
        conversation: Conversation,
        message: impl Into<UserMessage>,
        keep: impl Keep,
        questions: Option<Questions>,
    ) -> ChatStream<'static> {
        let agent = Arc::clone(self);
        let message = message.into();
        generate(|out| async move {
            let mut keeping = Keeping::new(&agent.records, conversation, Box::new(keep));
            if let Some((conversation, begin)) = keeping.parts() {
                let last = agent
                    .turn(conversation, message, Some(begin), questions.as_ref(), &out)
                    .await;
                keeping.end().await;
                out.emit(last).await;
            }
        })
    }

    /// Runs one turn. Returns its last event.
    async fn turn(
        &self,
        conversation: &mut Conversation,
        message: UserMessage,
        begin: Option<Beginning<'_>>,
        questions: Option<&Questions>,
        out: &Emitter<ChatEvent>,
    ) -> ChatEvent {
        let ended = tokio::select! {
            biased;
            () = self.stopped.cancelled() => Err((ErrorKind::Stopped, self.why_stopped().to_owned())),
            ended = run(self, conversation, message, begin, questions, out) => ended,
        };
        ended.unwrap_or_else(|(kind, message)| ChatEvent::Error { kind, message })
    }

    /// Runs [`Agent::chat`] to its end and returns all events.
    pub async fn chat_all(
        &self,
        conversation: &mut Conversation,
        message: impl Into<UserMessage> + Send,
    ) -> Vec<ChatEvent> {
        self.chat(conversation, message).collect().await
    }
}
