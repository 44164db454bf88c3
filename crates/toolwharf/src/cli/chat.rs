//! `chat`: a conversation with the agent of a running gateway, over its REST API.
//!
//! Invariants: the model's text and the output of native tools go to stdout as they arrive. Tool calls, usage and the
//! prompt go to stderr. Text of a model or a tool cannot control the terminal. Ctrl-C closes the request, which cancels
//! the turn at the gateway, and the conversation continues. Deliberately absent: line editing and a history beyond
//! those of the terminal.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use api::WholeConversation;
use bytes::Bytes;
use futures_util::FutureExt as _;
use hyper::{Method, header};
use model::ProjectId;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    Cancelled, Context, Output, Usage, conversations, http,
    http::{Api, Refused},
    names,
    screen::Screen,
    values,
};
use crate::cli::prompt::stdin;

/// Maximum length of a typed line, in bytes. The rest of a longer line becomes another message.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Timeout without events. The timeouts of the gateway for servers, tools and models are much shorter.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20 * 60);
/// Time limit for the gateway to save a cancelled turn.
const SAVE_TIMEOUT: Duration = Duration::from_secs(15);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub(super) struct Args {
    /// The message of a single turn. `-` reads it from standard input. Without a message, an interactive dialogue
    /// begins.
    message: Option<String>,
    /// The id of the conversation to continue, as in `conversation ls`. The default is a new conversation.
    #[arg(long, value_name = "ID", value_parser = values::name)]
    conversation: Option<String>,
    /// Use the agent and the servers of this project.
    #[arg(long, add = names::projects())]
    project: Option<ProjectId>,
    /// Print each event as a line of JSON, as `-o json` does.
    #[arg(long)]
    json: bool,
}

struct Chat {
    api: Api,
    project: Option<ProjectId>,
    conversation: Option<String>,
    screen: Screen,
    /// True if the last turn was cancelled. The gateway may not have saved that turn yet.
    cancelled: bool,
}

/// How a turn ended.
enum Ended {
    Done,
    Failed(String),
    Cancelled,
}

pub(super) async fn run(context: &Context, args: Args) -> anyhow::Result<()> {
    // The message is read before Ctrl-C is handled, so that Ctrl-C ends the command.
    let message = match args.message.as_deref() {
        Some("-") => Some(stdin()?),
        Some(text) => Some(text.to_owned()),
        None if !io::stdin().is_terminal() => Some(stdin()?),
        None => None,
    };
    if message.as_ref().is_some_and(|text| text.trim().is_empty()) {
        let why = "the message is empty: pass it as an argument or on standard input, or run `toolwharf chat` in a terminal for a dialogue";
        return Err(Usage(why.to_owned()).into());
    }
    let chat = Chat {
        api: context.gateway().await?,
        project: args.project,
        conversation: args.conversation,
        screen: Screen::new(args.json || context.output == Output::Json),
        cancelled: false,
    };
    let interrupts = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    match message {
        Some(message) => chat.once(&message, interrupts).await,
        None => chat.dialogue(interrupts).await,
    }
}

impl Chat {
    async fn once(mut self, message: &str, mut interrupts: Signal) -> anyhow::Result<()> {
        let ended = self.turn(message, &mut interrupts).await;
        self.farewell()?;
        match ended? {
            Ended::Done => Ok(()),
            Ended::Failed(why) => Err(anyhow!(why)),
            Ended::Cancelled => Err(Cancelled.into()),
        }
    }

    async fn dialogue(mut self, mut interrupts: Signal) -> anyhow::Result<()> {
        if let Some(id) = &self.conversation {
            let path = conversations::of(self.project.as_ref(), id);
            let found = self.api.get::<WholeConversation>(&path).await;
            let found = found
                .map_err(|error| conversations::explained(error, self.project.as_ref(), id))?;
            let title = format!("continuing: {}", found.info.title);
            self.screen.word(&title)?;
        }
        self.screen
            .note("Ctrl-C cancels the turn and keeps the conversation; Ctrl-D ends the dialogue")?;
        let mut input = BufReader::new(tokio::io::stdin());
        let mut turns = 0_u32;
        loop {
            self.screen.prompt()?;
            let mut line = Vec::new();
            let mut typed = (&mut input).take(MAX_LINE_BYTES);
            let read = tokio::select! {
                biased;
                _ = interrupts.recv() => {
                    eprintln!();
                    break;
                }
                read = typed.read_until(b'\n', &mut line) => read.context("cannot read the input")?,
            };
            if read == 0 {
                eprintln!();
                break;
            }
            let message = String::from_utf8_lossy(&line);
            let message = message.trim();
            if message.is_empty() {
                continue;
            }
            let why = match self.turn(message, &mut interrupts).await {
                Ok(Ended::Done | Ended::Cancelled) => None,
                Ok(Ended::Failed(why)) => Some(why),
                // If the first turn fails, later ones would fail too.
                Err(error) if turns == 0 => return Err(error),
                Err(error) => Some(format!("{error:#}")),
            };
            if let Some(why) = why {
                self.screen.error(&why)?;
            }
            turns = turns.saturating_add(1);
            // These interrupts were meant for the turn that just ended.
            while interrupts.recv().now_or_never().is_some() {}
        }
        self.farewell()
    }

    /// Prints how to continue the conversation.
    fn farewell(&mut self) -> anyhow::Result<()> {
        let Some(id) = &self.conversation else {
            return Ok(());
        };
        let project = self.project.as_ref();
        let project = project.map(|project| format!(" --project {project}"));
        let project = project.unwrap_or_default();
        self.screen.note(&format!(
            "to continue: toolwharf chat --conversation {id}{project}"
        ))
    }

    /// Sends a message and shows the events until the turn ends or Ctrl-C is pressed.
    async fn turn(&mut self, message: &str, interrupts: &mut Signal) -> anyhow::Result<Ended> {
        let interrupted = tokio::select! {
            biased;
            _ = interrupts.recv() => None,
            ended = self.ask(message) => Some(ended),
        };
        match interrupted {
            Some(ended) => {
                self.screen.end_line()?;
                ended
            }
            None => {
                self.cancelled = true;
                self.screen.interrupted()?;
                self.screen
                    .note("cancelled; completed parts of the turn are kept")?;
                Ok(Ended::Cancelled)
            }
        }
    }

    async fn ask(&mut self, message: &str) -> anyhow::Result<Ended> {
        let mut body = json!({ "message": message });
        if let Some(id) = &self.conversation {
            body["conversation"] = json!(id);
        }
        let mut answer = self.open(serde_json::to_vec(&body)?.into()).await?;
        while let Some(event) = answer.event(SILENCE_TIMEOUT).await? {
            let mut data: Value = serde_json::from_slice(&event.data).context(
                "cannot read the response: the gateway may run another version of Toolwharf",
            )?;
            if event.event == "conversation" {
                data["type"] = json!("conversation");
            }
            if let Some(ended) = self.happened(&data)? {
                return Ok(ended);
            }
        }
        Err(anyhow!(
            "the gateway's response ended before the turn did; completed parts of the turn are kept"
        ))
    }

    /// Sends the request. After a cancelled turn, retries until that turn is saved.
    async fn open(&mut self, body: Bytes) -> anyhow::Result<http::Answer> {
        let path = http::path(&["chat"]) + &http::of_project(self.project.as_ref());
        let stream = [(header::ACCEPT, "text/event-stream")];
        let until = Instant::now() + SAVE_TIMEOUT;
        loop {
            let opened = self
                .api
                .open(Method::POST, &path, body.clone(), &stream)
                .await;
            let error = match opened {
                Ok(answer) => {
                    self.cancelled = false;
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let refused = error.downcast_ref::<Refused>();
            let is_busy =
                refused.is_some_and(|refused| refused.status == 409) && self.conversation.is_some();
            if !(self.cancelled && is_busy && Instant::now() < until) {
                let of = self.project.as_ref();
                return Err(match &self.conversation {
                    Some(id) => conversations::explained(error, of, id),
                    None => error,
                });
            }
            sleep(RETRY_INTERVAL).await;
        }
    }

    /// Shows an event. Returns how the turn ended if it was the last event.
    fn happened(&mut self, event: &Value) -> anyhow::Result<Option<Ended>> {
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        match text("type") {
            // An event without an id means that nothing of the conversation was stored.
            "conversation" => self.conversation = event["id"].as_str().map(str::to_owned),
            "error" => {
                self.screen.event(event)?;
                return Ok(Some(Ended::Failed(text("message").to_owned())));
            }
            "done" => {
                self.screen.event(event)?;
                return Ok(Some(Ended::Done));
            }
            _ => {}
        }
        self.screen.event(event)?;
        Ok(None)
    }
}
