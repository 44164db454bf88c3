//! An agent: what it has, its start and its stop.

use std::sync::{Arc, OnceLock};

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    sync::OnceCell,
    time::{Duration, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    chat,
    config::Config,
    conversation::Conversation,
    event::{ChatEvent, ErrorKind},
    generate::{Emitter, Generated, generate},
    keep::{Beginning, Keep, Keeping},
    ledger::{Ledger, RunId},
    llm::Model,
    message::{Block, Image, ImageSource},
    native::{self, NativeOutcome, NativeTool, Ready},
    outcome::{READ_DESCRIPTION, READ_RESULT, picture, read_schema},
    questions::Questions,
    raw::Raw,
    registry::Registry,
    servers::{Servers, ServersError},
    tool::ToolFunction,
    tools::{Called, Records, Tools},
};

/// How long records of what was dropped are waited for at the stop.
const LAST_RECORDS: Duration = Duration::from_secs(15);

/// A model with tools. Cheap to share behind an `Arc`; many chats at once, one for each conversation.
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) servers: Arc<dyn Servers>,
    pub(crate) native: Vec<Ready>,
    pub(crate) records: Records,
    started: OnceCell<()>,
    stopped: CancellationToken,
    why_stopped: OnceLock<String>,
    /// Warnings that were logged, so that each chat does not repeat them.
    warned: Mutex<Vec<String>>,
}

/// What a person says: text, and pictures if the model takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMessage {
    pub text: String,
    pub images: Vec<Image>,
}

impl From<&str> for UserMessage {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for UserMessage {
    fn from(text: String) -> Self {
        let images = Vec::new();
        Self { text, images }
    }
}

impl UserMessage {
    /// Pictures first, as models read them best.
    ///
    /// # Errors
    /// With what is wrong: nothing is said, or a picture is one that a model's API would not take.
    pub(crate) fn into_blocks(self) -> Result<Vec<Block>, String> {
        let mut blocks = Vec::new();
        for Image {
            source: ImageSource::Base64 { data, .. },
        } in self.images
        {
            let image = picture(data).map_err(|why| format!("a picture cannot be sent: {why}"))?;
            blocks.push(Block::Image(image));
        }
        if !self.text.trim().is_empty() {
            blocks.push(Block::text(self.text));
        }
        match blocks.is_empty() {
            true => Err("the message is empty".to_owned()),
            false => Ok(blocks),
        }
    }
}

/// What happens in a chat. Nothing is done before it is polled, and whoever stops polling holds it up. Dropping it
/// cancels the request to the model and all tool calls; the conversation keeps what was complete, and calls without a
/// result get one that says `cancelled`.
pub type ChatStream<'a> = Generated<'a, ChatEvent>;

impl Agent {
    /// An agent. Nothing is started.
    ///
    /// # Errors
    /// If a native tool cannot be offered.
    pub fn new(
        config: Config,
        model: Arc<dyn Model>,
        servers: Arc<dyn Servers>,
        ledger: Arc<dyn Ledger>,
        native: Vec<NativeTool>,
    ) -> Result<Self, native::Error> {
        let mut native = native;
        let schema = read_schema(config.preview_bytes);
        // Its work needs the conversation, so it is done where the conversation is (`tools`).
        let elsewhere = |_: Value| async { Ok(NativeOutcome::text("")) };
        native.push(NativeTool::new(
            READ_RESULT,
            READ_DESCRIPTION,
            schema,
            elsewhere,
        ));
        Ok(Self {
            config,
            model,
            servers,
            native: native::ready(native)?,
            records: Records {
                ledger,
                tasks: TaskTracker::new(),
            },
            started: OnceCell::new(),
            stopped: CancellationToken::new(),
            why_stopped: OnceLock::new(),
            warned: Mutex::default(),
        })
    }

    /// Starts the servers, once: who comes while they are being started waits for that, and a start that failed is
    /// tried again by who comes next. The first chat does this by itself.
    ///
    /// # Errors
    /// As [`Servers::start`], or if it takes too long, or if the agent was stopped.
    pub async fn start(&self) -> Result<(), ServersError> {
        let limit = self.config.start_timeout;
        let start = self.started.get_or_try_init(|| self.servers.start());
        let started = tokio::select! {
            biased;
            () = self.stopped.cancelled() => {
                return Err(ServersError(self.why_stopped().to_owned()));
            }
            started = timeout(limit, start) => started,
        };
        match started {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ServersError(format!(
                "the servers were not started within {} s",
                limit.as_secs_f32()
            ))),
        }
    }

    /// The tools that the model is offered now; starts the servers if they are not.
    ///
    /// # Errors
    /// As [`Agent::start`], or if the servers cannot be listed.
    pub async fn registry(&self) -> Result<Registry, ServersError> {
        self.start().await?;
        let limit = self.config.start_timeout;
        let Ok(tools) = timeout(limit, self.servers.tools()).await else {
            let limit = limit.as_secs_f32();
            return Err(ServersError(format!(
                "the servers' tools were not listed within {limit} s"
            )));
        };
        let registry = Registry::new(tools?, &self.native);
        let mut warned = self.warned.lock();
        if *warned != registry.warnings() {
            for warning in registry.warnings() {
                tracing::warn!("{warning}");
            }
            *warned = registry.warnings().to_vec();
        }
        Ok(registry)
    }

    /// Says something to the model, and does what it asks for until it has ended its turn.
    ///
    /// The exclusive borrow of the conversation is what keeps two turns of it apart. Store it when the stream has
    /// ended or was dropped: it is valid then, whatever happened.
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

    /// [`Agent::chat`] as a stream that owns all that it needs, for a response that outlives its handler.
    ///
    /// `keep` gets the conversation twice: with the user's message, before the model is asked; and at the end, before the
    /// last event comes out, which is held back until it is kept, or after a drop, in a task of the agent's. It has ten
    /// seconds each time. A turn that does not start is not kept.
    ///
    /// With `questions`, servers may ask something in the course of a call: [`ChatEvent::Questions`] tells it, and the answers
    /// are given there.
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

    /// One turn; its last event.
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
            ended = chat::run(self, conversation, message, begin, questions, out) => ended,
        };
        ended.unwrap_or_else(|(kind, message)| ChatEvent::Error { kind, message })
    }

    /// Whether it was stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// What [`Agent::stop`] was told.
    pub(crate) fn why_stopped(&self) -> &str {
        self.why_stopped
            .get()
            .map_or("the agent was stopped", |why| why)
    }

    /// Calls one tool, for those who have a loop of their own. Nothing is cut. Whatever goes wrong is in the result.
    /// Dropping the future cancels the call.
    ///
    /// `function` is one of [`Agent::registry`]'s, `run` a run that the caller has opened.
    pub async fn call(&self, function: &ToolFunction, arguments: Raw, run: &RunId) -> Called {
        let tools = Tools {
            config: &self.config,
            servers: &*self.servers,
            native: &self.native,
            registry: &Registry::default(),
            records: &self.records,
            run,
            person: None,
            kept: Vec::new(),
        };
        tools.call_function("", function, arguments).await
    }

    /// [`Agent::chat`] to its end, for who wants no stream.
    pub async fn chat_all(
        &self,
        conversation: &mut Conversation,
        message: impl Into<UserMessage> + Send,
    ) -> Vec<ChatEvent> {
        self.chat(conversation, message).collect().await
    }

    /// Ends all chats with an error that says `why`, stops the servers, and waits for the last records. There is no start
    /// after it.
    pub async fn stop(&self, why: &str) {
        let _ = self.why_stopped.set(why.to_owned());
        self.stopped.cancel();
        self.servers.stop().await;
        self.records.tasks.close();
        if timeout(LAST_RECORDS, self.records.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("records of cancelled runs were not written in time");
        }
    }
}
