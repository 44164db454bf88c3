//! `toolwharf chat` and `toolwharf conversation` through the real binary, with a scripted model. Dialogues are also
//! tested on a terminal, which `script` provides.

use std::{
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::common::{
    Gateway, Setup,
    chat::{ask, begin, told, with_agent},
    counts, holds,
    shell::{Home, at, fails, json_of, ok, on, on_with, transcript},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    Bin, DEADLINE, Process,
    llm::{Llm, asks, expecting, says, turns},
    wait_for, within,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, Command},
    task::JoinSet,
};

/// A gateway with one scripted server and this model.
async fn gateway(llm: &Llm, more: &str) -> Gateway {
    let setup = Setup::new().tuned("one", json!({ "maxConcurrency": 2 }));
    let gateway = with_agent(setup, llm, "", more).await;
    gateway.up("one").await;
    gateway
}

/// Inserts text before the calls of the model's reply.
fn insert_text(reply: &mut Value, text: &str) {
    let blocks = reply["reply"]["blocks"].as_array_mut();
    blocks.expect("blocks").insert(0, json!({ "text": text }));
}

const PRICES: &str = "[agent.prices.claude-test]\ninput = 1000.0\noutput = 1000.0\n";

/// The model's text goes to stdout as data. Tool calls, usage and a hint on how to continue go to stderr.
#[tokio::test]
async fn one_turn_streams_its_text_and_shows_its_calls() {
    let mut first = asks(&[
        ("t1", "echo", json!({ "n": 1 })),
        ("t2", "fail", json!({ "text": "no luck" })),
    ]);
    insert_text(&mut first, "Let me see.");
    let called = json!({ "tool_results": [{ "contains": "\"n\":1", "is_error": false }, { "contains": "no luck" }] });
    let llm = Llm::start(&turns(&[first, expecting(says("It is one."), called)])).await;
    let gateway = gateway(&llm, PRICES).await;
    let said = on(&gateway, "chat 'Which number?'").await.code(0);
    assert_eq!(said.out, "Let me see.\nIt is one.\n", "{said:?}");
    let calls = ["→ echo {\"n\":1}", "✓ echo: {\"n\":1}", "✗ fail: no luck"];
    holds(&said.err, &calls);
    holds(&said.err, &["20 tokens in, 10 out, cost 0.0300"]);
    // The output goes to a pipe, so it has no colours.
    assert!(!said.err.contains('\u{1b}'), "{said:?}");

    let hint = "to continue: toolwharf chat --conversation ";
    let (_, id) = said.err.rsplit_once(hint).expect("how to continue");
    let id = id.trim();
    let again = json!({ "last_text": "And now?", "body": { "/messages/0/content/0/text": "Which number?" } });
    llm.script(&turns(&[expecting(says("Two."), again)])).await;
    let line = format!("chat --conversation {id}");
    let said = on_with(&gateway, &line, "And now?\n").await;
    assert_eq!(said.code(0).out, "Two.\n");

    let listed = ok(&gateway, "conversation ls", "").await;
    holds(&listed, &[id, "Which number?"]);
    assert_eq!(
        ok(&gateway, &format!("conversation get {id}"), "").await,
        "> Which number?\nLet me see.\n→ echo {\"n\":1}\n→ fail {\"text\":\"no luck\"}\n✓ echo: {\"n\":1}\n\
         ✗ fail: no luck\nIt is one.\n> And now?\nTwo.\n"
    );
    let text = format!("$ conversation rm {id}\n1$ conversation get {id}");
    transcript(&gateway, &text).await;
    assert_eq!(json_of(&gateway, "conversation ls").await, json!([]));
}

#[tokio::test]
async fn events_are_lines_of_json() {
    let llm = Llm::start(&turns(&[says("Hello."), says("Hello.")])).await;
    let gateway = gateway(&llm, "").await;
    for line in ["chat --json Hi", "chat -o json -"] {
        let said = on_with(&gateway, line, "Hi").await.code(0);
        let lines = said.out.lines();
        let events = lines.map(|line| serde_json::from_str(line).expect("a line of JSON"));
        let events: Vec<Value> = events.collect();
        let last = events.len() - 1;
        for (at, kind) in [(0, "conversation"), (1, "started"), (last, "done")] {
            assert_eq!(events[at]["type"], kind, "{said:?}");
        }
        assert_eq!(crate::common::chat::text(&events), "Hello.");
    }
}

/// A model reply whose stream stalls in the middle.
fn stalls() -> Value {
    json!({ "reply": { "blocks": [{ "text": "Well" }], "after": { "events": 3, "then": "stall" } } })
}

/// Each error says what is wrong and how to fix it.
#[tokio::test]
async fn what_cannot_be_is_said_with_the_way_out() {
    let home = Home::new();
    home.transcript("1$ chat --data-dir none Hi # `toolwharf serve`")
        .await;
    let said = home.run_with("chat --data-dir none", " \n").await;
    said.code(2).says("the message is empty");

    let bare = Setup::new().serve().await;
    fails(&bare, "chat Hi", 1, "[agent]").await;

    let unknown = json!({ "fail": { "status": 401, "kind": "authentication_error", "message": "invalid x-api-key" } });
    let llm = Llm::start(&turns(&[unknown, stalls()])).await;
    let gateway = gateway(&llm, "max_chats = 2\n").await;
    transcript(
        &gateway,
        "
        1$ chat Hi # error:
        # to continue:
        1$ chat --project none Hi # `none`
        1$ chat --conversation no-such-one Hi # no-such-one
        # `toolwharf conversation ls` lists
        ",
    )
    .await;

    // A conversation has one turn at a time.
    let message = json!({ "message": "Wait" });
    let mut begun = begin(&gateway, "POST", "/chat", &message).await;
    let first = begun.next_event(DEADLINE).await.expect("an event");
    let first: Value = serde_json::from_str(&first.data).expect("JSON");
    let id = first["id"].as_str().expect("an id");
    let busy = format!("chat --conversation {id} Hi");
    fails(&gateway, &busy, 1, "in progress: wait for its end").await;
}

/// Ctrl-C during a message cancels the turn, including the server's call, and sets the exit code.
#[tokio::test]
async fn an_interrupted_message_is_cancelled_and_exits_with_130() {
    let slow = asks(&[("t1", "slow", json!({ "ms": 600_000 }))]);
    let llm = Llm::start(&turns(&[slow, says("Back.")])).await;
    let gateway = gateway(&llm, "").await;
    let mut chat = Process::spawn(at(&gateway, "chat Go"));
    // Without a message argument, `chat` would wait for the end of stdin, which `Process` holds open.
    running(&gateway).await;
    chat.signal(Signal::INT);
    let status = chat.wait(DEADLINE).await;
    assert_eq!(status.code(), Some(130), "{}", chat.stderr());
    cancelled(&gateway).await;
}

/// Waits until the server is processing a call of `slow`.
async fn running(gateway: &Gateway) {
    counts(&mut gateway.legacy().await, "running", 1, DEADLINE).await;
}

/// Waits until the server has received the cancellation and the call has ended.
async fn cancelled(gateway: &Gateway) {
    let mut peer = gateway.legacy().await;
    counts(&mut peer, "cancelled_count", 1, DEADLINE).await;
    gateway.in_flight("one", 0, DEADLINE).await;
}

/// A command on a separate terminal.
struct Terminal {
    child: Child,
    stdin: ChildStdin,
    shown: Arc<Mutex<String>>,
    _reader: JoinSet<()>,
}

impl Terminal {
    fn run(gateway: &Gateway, line: &str, env: &[(&str, &str)]) -> Self {
        let toolwharf = Bin::path("toolwharf").display().to_string();
        let line = at(gateway, line);
        let words = line.as_std().get_args();
        let words = words.map(|word| quoted(word.to_string_lossy().into_owned()));
        let words: Vec<String> = [quoted(toolwharf)].into_iter().chain(words).collect();
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--command"])
            .arg(format!("stty cols 60; exec {}", words.join(" ")))
            .arg("/dev/null")
            .env("HOME", gateway.folder())
            .current_dir(gateway.folder())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        let mut child = command.spawn().expect("script (util-linux) is installed");
        let stdin = child.stdin.take().expect("asked for as a pipe");
        let mut stdout = child.stdout.take().expect("asked for as a pipe");
        let shown = Arc::<Mutex<String>>::default();
        let into = shown.clone();
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let mut pending = Vec::new();
            while let Ok(1..) = stdout.read_buf(&mut pending).await {
                // A character may arrive in several pieces.
                let whole = match std::str::from_utf8(&pending) {
                    Ok(_) => pending.len(),
                    Err(error) => error.valid_up_to(),
                };
                let text: Vec<u8> = pending.drain(..whole).collect();
                let mut shown = into.lock().unwrap_or_else(PoisonError::into_inner);
                shown.push_str(&String::from_utf8_lossy(&text));
            }
        });
        Self {
            child,
            stdin,
            shown,
            _reader: reader,
        }
    }

    async fn types(&mut self, keys: &str) {
        let typed = self.stdin.write_all(keys.as_bytes()).await;
        typed.expect("the terminal takes it");
        self.stdin.flush().await.expect("the terminal takes it");
    }

    fn shown(&self) -> String {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    /// Waits until the terminal shows `part` at least `times` times.
    async fn shows(&self, part: &str, times: usize) {
        let what = format!("{part:?} {times} times on the terminal");
        let done = tokio::time::timeout(DEADLINE, async {
            wait_for(&what, DEADLINE * 2, async || {
                self.shown().matches(part).count() >= times
            })
            .await;
        });
        assert!(done.await.is_ok(), "no {what}: {:?}", self.shown());
    }

    /// Waits until the command exits, and asserts its exit code. Returns everything that the terminal showed.
    async fn ends(mut self, code: i32) -> String {
        let status = within("the end of the dialogue", DEADLINE, self.child.wait()).await;
        let status = status.expect("waiting for an own child works");
        // The pipe is closed, so everything was read.
        while self._reader.join_next().await.is_some() {}
        let shown = self.shown();
        assert_eq!(status.code(), Some(code), "{shown}");
        shown
    }
}

fn quoted(word: String) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Key codes that the terminal turns into a signal or end of input.
const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

/// Ctrl-C, a real SIGINT from a terminal, cancels a turn including the server's call. The conversation then continues.
#[tokio::test]
async fn ctrl_c_in_a_dialogue_cancels_the_turn_and_the_conversation_goes_on() {
    let arguments = json!({ "ms": 600_000, "why": "x".repeat(200) });
    let mut working = asks(&[("t1", "slow", arguments)]);
    insert_text(&mut working, "Work\u{1b}]0;owned\u{7}ing");
    let back = expecting(says("Welcome back."), json!({ "last_text": "Go on" }));
    let llm = Llm::start(&turns(&[working, back])).await;
    let gateway = gateway(&llm, "").await;
    let mut terminal = Terminal::run(&gateway, "chat", &[]);
    terminal.shows("> ", 1).await;
    terminal.types("Begin\n").await;
    terminal.shows("→ slow", 1).await;
    running(&gateway).await;
    terminal.types(CTRL_C).await;
    terminal.shows("cancelled; completed parts", 1).await;
    terminal.shows("> ", 2).await;
    cancelled(&gateway).await;

    terminal.types("\n").await;
    terminal.types("Go on\n").await;
    terminal.shows("Welcome back.", 1).await;
    terminal.shows("tokens in", 1).await;
    let requests = llm.requests().await;
    let messages = &requests[1]["body"]["messages"];
    assert_eq!(messages[0]["content"][0]["text"], "Begin", "{messages}");
    let result = &messages[2]["content"][0];
    assert_eq!(result["tool_use_id"], "t1", "{messages}");
    assert_eq!(result["is_error"], true, "{messages}");
    assert!(result.to_string().contains("cancelled"), "{messages}");

    terminal.shows("> ", 4).await;
    terminal.types(CTRL_D).await;
    let shown = terminal.ends(0).await;
    holds(&shown, &["to continue: toolwharf chat --conversation"]);
    // Model output cannot control the terminal. Our own text is dimmed, and call lines are cut to 60 columns.
    let safe = "Work\u{fffd}]0;owned\u{fffd}ing";
    holds(&shown, &[safe, "\u{1b}[2m→ slow"]);
    assert!(!shown.contains("\u{1b}]"), "{shown:?}");
    let line = shown.lines().find(|line| line.contains("→ slow"));
    let line = line.expect("it was shown").trim_end();
    let line = line.strip_prefix("\u{1b}[2m").expect("dimmed");
    let line = line.strip_suffix("\u{1b}[0m").expect("dimmed");
    assert_eq!(line.chars().count(), 60, "{line:?}");
    assert!(line.ends_with('…'), "{line:?}");
}

/// Ctrl-C at the prompt exits. `NO_COLOR` disables all escape codes. A failed turn is reported and the next message is
/// accepted. An unknown conversation is reported before the prompt.
#[tokio::test]
async fn ctrl_c_at_the_prompt_ends_and_colours_can_be_switched_off() {
    let unpaid =
        json!({ "fail": { "status": 402, "kind": "billing_error", "message": "no credit" } });
    let llm = Llm::start(&turns(&[unpaid, says("Hello.")])).await;
    let gateway = gateway(&llm, "").await;
    let mut terminal = Terminal::run(&gateway, "chat", &[("NO_COLOR", "1")]);
    terminal.shows("> ", 1).await;
    terminal.types("Hi\n").await;
    terminal.shows("error: ", 1).await;
    terminal.shows("no credit", 1).await;
    terminal.shows("> ", 2).await;
    terminal.types("Hi again\n").await;
    terminal.shows("Hello.", 1).await;
    terminal.shows("> ", 3).await;
    terminal.types(CTRL_C).await;
    let shown = terminal.ends(0).await;
    assert!(!shown.contains('\u{1b}'), "{shown:?}");

    let own = told(&gateway, "/conversations").await;
    let id = own["conversations"][0]["id"].as_str().expect("an id");
    let mut again = Terminal::run(&gateway, &format!("chat --conversation {id}"), &[]);
    again.shows("continuing: Hi", 1).await;
    again.shows("> ", 1).await;
    again.types(CTRL_D).await;
    again.ends(0).await;
    let wrong = Terminal::run(&gateway, "chat --conversation none", &[]);
    let shown = wrong.ends(1).await;
    holds(&shown, &["`toolwharf conversation ls`"]);
    assert!(!shown.contains("> "), "{shown}");
}

/// Each project has its own conversations. The output of a native tool goes to stdout.
#[tokio::test]
async fn a_project_has_conversations_of_its_own() {
    let recipe = json!({ "title": "Soup", "ingredients": ["3 leeks"], "steps": ["Cook."] });
    let show = asks(&[("t1", "display_recipe", recipe)]);
    let llm = Llm::start(&turns(&[show, says("There.")])).await;
    let gateway = gateway(&llm, "native = [\"display_recipe\"]\n").await;
    ok(&gateway, "project add p", "").await;
    let said = on(&gateway, "chat --project p Soup").await;
    let said = said.code(0).says(" --project p");
    assert_eq!(
        said.out, "title: Soup\ningredients:\n  - 3 leeks\nsteps:\n  - Cook.\nThere.\n",
        "{said:?}"
    );
    let own = told(&gateway, "/conversations?project=p").await;
    let id = own["conversations"][0]["id"].as_str().expect("an id");
    let get = format!("conversation get {id}");
    let got = ok(&gateway, &format!("{get} --project p"), "").await;
    assert!(got.starts_with("> Soup\n→ display_recipe "), "{got:?}");
    let text = format!(
        "
        $ conversation ls --project p
        | Soup
        1$ {get} # there is no conversation
        # --project
        1$ chat --conversation {id} Hi # --project
        "
    );
    transcript(&gateway, &text).await;
}

/// A gateway that exits during a turn is reported.
#[tokio::test]
async fn a_gateway_that_dies_in_mid_turn_is_told_of() {
    let slow = asks(&[("t1", "slow", json!({ "ms": 600_000 }))]);
    let llm = Llm::start(&turns(&[slow])).await;
    let gateway = gateway(&llm, "").await;
    let mut chat = Process::spawn(at(&gateway, "chat Go"));
    running(&gateway).await;
    gateway.process.signal(Signal::KILL);
    let status = chat.wait(DEADLINE).await;
    assert_eq!(status.code(), Some(1), "{}", chat.stderr());
    wait_for("its words", DEADLINE, async || {
        chat.stderr().contains("ended before the turn did")
    })
    .await;
}

/// A chat beyond the limit is refused at once. When a running chat has ended, the next one is accepted.
#[tokio::test]
async fn no_more_chats_at_a_time_than_the_settings_allow() {
    let llm = Llm::start(&turns(&[stalls(), says("Hello.")])).await;
    let gateway = gateway(&llm, "max_chats = 1\n").await;
    let message = json!({ "message": "Wait" });
    let mut begun = begin(&gateway, "POST", "/chat", &message).await;
    while let Some(event) = begun.next_event(DEADLINE).await {
        if event.data.contains("Well") {
            break;
        }
    }
    let refused = ask(&gateway, "POST", "/chat", &message).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    assert!(refused.text().contains("`max_chats`"), "{}", refused.text());
    // The refused chat has left no conversation.
    let kept = told(&gateway, "/conversations").await;
    assert_eq!(kept["conversations"].as_array().map(Vec::len), Some(1));
    let limit = "the limit of concurrent chats (1) is reached";
    fails(&gateway, "chat Hi", 1, limit).await;
    drop(begun);
    let what = "the end of the first chat";
    wait_for(what, Duration::from_secs(15), async || {
        on(&gateway, "chat Hi").await.code == Some(0)
    })
    .await;
}
