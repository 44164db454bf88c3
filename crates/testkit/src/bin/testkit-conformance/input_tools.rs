//! The tools that need something from the client: user input, sampling, roots.

use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult};
use serde_json::{Value, json};

use crate::{
    ask::{
        Answer, Asked, Context, Question, ask, complete, internal, invalid, is_modern, pending,
        require,
    },
    content,
    server::Server,
    tools::text,
};

/// Calls the tool if it belongs to this module.
pub(crate) async fn call(
    server: &Server,
    request: &CallToolRequestParams,
    context: &Context,
) -> Answer<Option<CallToolResponse>> {
    let name = &*request.name;
    let argument = |name: &str, otherwise: &str| {
        let value = request.arguments.as_ref().and_then(|all| all.get(name));
        value
            .and_then(Value::as_str)
            .unwrap_or(otherwise)
            .to_owned()
    };
    if let Some(step) = stateful_step(server, request)? {
        return stateful(server, request, context, step).await.map(Some);
    }
    let question = match name {
        "test_sampling" | "ask_sampling" => {
            Question::sampling("answer", &argument("prompt", "Say something"), 100)
        }
        "test_elicitation" => Question::elicitation(
            "answer",
            &argument("message", "Please answer"),
            content::question(name, true),
        ),
        "ask_elicitation" | "test_streaming_elicitation" => {
            let message = argument("message", "What is your name?");
            Question::elicitation("answer", &message, string_schema("name"))
        }
        "ask_roots" => Question::roots("answer"),
        "test_elicitation_sep1034_defaults" => Question::elicitation(
            "answer",
            "Accept the defaults or not",
            content::question(name, false),
        ),
        "test_elicitation_sep1330_enums" => {
            Question::elicitation("answer", "Choose", content::question(name, false))
        }
        "test_input_required_result_elicitation" => {
            Question::elicitation("user_name", "What is your name?", string_schema("name"))
        }
        "test_input_required_result_sampling" => {
            Question::sampling("capital_question", "What is the capital of France?", 100)
        }
        "test_input_required_result_list_roots" => Question::roots("client_roots"),
        "test_missing_capability" => {
            require(context, &[Question::sampling("", "", 1)])?;
            return done(text("The client can sample")).map(Some);
        }
        "test_input_required_result_capabilities" => {
            return capabilities(request, context).await.map(Some);
        }
        _ => return Ok(None),
    };
    let key = question.key;
    let responses = request.input_responses.as_ref();
    let answer = match ask(context, responses, &[question], None).await? {
        Asked::Pending(result) => return Ok(Some(result.into())),
        Asked::Answered(mut answers) => answers.remove(key).unwrap_or_default(),
    };
    let said = match name {
        "ask_sampling" | "ask_elicitation" | "ask_roots" => answer.to_string(),
        "test_sampling" => format!(
            "LLM response: {}",
            answer["content"]["text"].as_str().unwrap_or_default()
        ),
        "test_elicitation_sep1034_defaults" | "test_elicitation_sep1330_enums" => format!(
            "Elicitation completed: action={}, content={}",
            answer["action"].as_str().unwrap_or_default(),
            answer["content"],
        ),
        "test_input_required_result_elicitation" => format!(
            "Hello, {}!",
            answer["content"]["name"].as_str().unwrap_or("stranger")
        ),
        _ => format!("User response: {answer}"),
    };
    done(text(&said)).map(Some)
}

/// Returns the round that this request belongs to, counted from 0, if the tool uses `requestState`.
fn stateful_step(server: &Server, request: &CallToolRequestParams) -> Answer<Option<u64>> {
    let last = match &*request.name {
        "test_input_required_result_request_state"
        | "test_input_required_result_tampered_state"
        | "test_input_required_result_multiple_inputs" => 0,
        "test_input_required_result_multi_round" => 1,
        _ => return Ok(None),
    };
    let Some(sealed) = &request.request_state else {
        return Ok(Some(0));
    };
    let opened = server
        .shared
        .codec
        .open_json::<(String, u64)>(sealed)
        .ok()
        .filter(|(name, step)| *name == request.name && *step <= last);
    match opened {
        Some((_, step)) => Ok(Some(step)),
        None => Err(invalid(
            "requestState was not made for this call or was changed",
        )),
    }
}

async fn stateful(
    server: &Server,
    request: &CallToolRequestParams,
    context: &Context,
    first_step: u64,
) -> Answer<CallToolResponse> {
    let name = &*request.name;
    let confirm = json!({
        "type": "object",
        "properties": { "ok": { "type": "boolean" } },
        "required": ["ok"],
    });
    let mut rounds = match name {
        "test_input_required_result_multiple_inputs" => vec![every_kind()],
        "test_input_required_result_multi_round" => vec![
            vec![Question::elicitation(
                "step1",
                "Step 1: What is your name?",
                string_schema("name"),
            )],
            vec![Question::elicitation(
                "step2",
                "Step 2: What is your favorite color?",
                string_schema("color"),
            )],
        ],
        _ => vec![vec![Question::elicitation(
            "confirm",
            "Please confirm",
            confirm,
        )]],
    };
    let skipped = usize::try_from(first_step).unwrap_or(0).min(rounds.len());
    rounds.drain(..skipped);
    let mut responses = request.input_responses.as_ref();
    let mut answered = json!({});
    for (step, questions) in (first_step..).zip(rounds) {
        let state = server
            .shared
            .codec
            .seal_json(&(name, step))
            .map_err(internal)?;
        match ask(context, responses, &questions, Some(state)).await? {
            Asked::Pending(result) => return Ok(result.into()),
            Asked::Answered(answers) => {
                for (key, answer) in answers {
                    answered[key] = answer;
                }
            }
        }
        // The responses in this request answer one round. A further round needs another request.
        if is_modern(context) {
            responses = None;
        }
    }
    done(text(&format!("state-ok {answered}")))
}

/// A question of each kind.
fn every_kind() -> Vec<Question> {
    vec![
        Question::elicitation("user_name", "What is your name?", string_schema("name")),
        Question::sampling("greeting", "Generate a greeting", 50),
        Question::roots("client_roots"),
    ]
}

/// Asks only for what the client declared.
async fn capabilities(
    request: &CallToolRequestParams,
    context: &Context,
) -> Answer<CallToolResponse> {
    let declared = context.client_capabilities().unwrap_or_default();
    let mut questions = every_kind();
    questions.retain(|question| question.is_supported(&declared));
    if is_modern(context) && request.input_responses.is_none() && !questions.is_empty() {
        return Ok(pending(&questions, None)?.into());
    }
    match ask(context, request.input_responses.as_ref(), &questions, None).await? {
        Asked::Pending(result) => Ok(result.into()),
        Asked::Answered(answers) => done(text(&json!(answers).to_string())),
    }
}

fn done(content: Value) -> Answer<CallToolResponse> {
    let result: CallToolResult = complete(json!({ "content": content }))?;
    Ok(result.into())
}

fn string_schema(property: &str) -> Value {
    json!({
        "type": "object",
        "properties": { property: { "type": "string" } },
        "required": [property],
    })
}
