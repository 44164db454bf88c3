// A well-behaved MCP server of both eras at one URL, built on the official TypeScript SDK.
//
// Run as `node server.mjs NODE_MODULES`. The first line of stdout is the server's URL. It offers what the scenarios of
// the official conformance suite need, with the lists of `testkit-conformance`. Legacy clients get sessions with
// resumable streams, modern ones the SDK's handler for single requests.
//
// Deliberately absent: the tasks extension, which the SDK does not have, and the tools that only other tests use.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import { setTimeout as pause } from 'node:timers/promises';

import * as content from './content.mjs';

const [modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const {
  McpServer, ProtocolError, ProtocolErrorCode, ResourceTemplate, WebStandardStreamableHTTPServerTransport,
  createMcpHandler, createRequestStateCodec, fromJsonSchema, inputRequired, inputResponse, isLegacyRequest,
} = require('@modelcontextprotocol/server');
const { localhostHostValidation, localhostOriginValidation, toNodeHandler } = require('@modelcontextprotocol/node');
const { version } = JSON.parse(readFileSync(`${modules}/@modelcontextprotocol/server/package.json`, 'utf8'));

// Between progress notifications, and between log messages.
const PROGRESS_INTERVAL_MS = 50;
// When a client should reconnect after its stream was closed.
const RECONNECT_DELAY_MS = 100;
// Stored events per session. The oldest are dropped.
const MAX_EVENTS = 1000;

const codec = createRequestStateCodec({ key: 'no secret: this server only tests' });

// Which items are listed now. Each modern request has a server of its own, so this belongs to the process.
const listed = { tool: false, prompt: false };
// Legacy sessions by id.
const sessions = new Map();

// --- asking the client ---

const elicit = (message, properties, required = Object.keys(properties)) =>
  inputRequired.elicit({ message, requestedSchema: { type: 'object', properties, required } });
const sample = (text, maxTokens = 100) =>
  inputRequired.createMessage({ messages: [{ role: 'user', content: { type: 'text', text } }], maxTokens });
const roots = () => inputRequired.listRoots();
const STRING = { type: 'string' };

// Each capability with the question that needs it.
const every = () => ({
  elicitation: ['user_name', elicit('What is your name?', { name: STRING })],
  sampling: ['greeting', sample('Generate a greeting', 50)],
  roots: ['client_roots', roots()],
});

// The client's answers to all questions, or undefined if one is missing or unusable. The SDK asks a legacy client
// itself and calls the handler again.
function answered({ mcpReq }, questions) {
  const usable = (key) => {
    const answer = inputResponse(mcpReq.inputResponses, key);
    return answer.kind === 'elicit' ? answer.action !== 'accept' || answer.content !== undefined : answer.kind !== 'missing';
  };
  return Object.keys(questions).every(usable) ? mcpReq.inputResponses : undefined;
}

// A handler that asks `questions` and returns what `then` makes of the answers.
const asks = (questions, then) => (given, context) => {
  const all = questions(given);
  const answers = answered(context, all);
  return answers === undefined ? inputRequired({ inputRequests: all }) : then(answers);
};

// A handler that asks several rounds of questions. `requestState` says which round was asked.
const asksRounds = (name, rounds) => async (_, context) => {
  const state = context.mcpReq.requestState();
  if (state !== undefined && state.name !== name) {
    throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'requestState was made for another tool');
  }
  const asked = state?.round ?? 0;
  const next = answered(context, rounds[asked]) === undefined || state === undefined ? asked : asked + 1;
  if (next === rounds.length) return text('state-ok');
  return inputRequired({ inputRequests: rounds[next], requestState: await codec.mint({ name, round: next }) });
};

// --- tools ---

const text = (said) => ({ content: [{ type: 'text', text: said }] });
const said = (answer) => `action=${answer.action}, content=${JSON.stringify(answer.content ?? null)}`;
const confirm = [{ confirm: elicit('Please confirm', { ok: { type: 'boolean' } }) }];

function toggle(kind) {
  listed[kind] = !listed[kind];
  for (const { server } of sessions.values()) server.toggled[kind].update({ enabled: listed[kind] });
  modern.notify[kind === 'tool' ? 'toolsChanged' : 'promptsChanged']();
  return text(JSON.stringify({ [`toggled_${kind}`]: listed[kind] }));
}

const withoutInput = {
  test_error_handling: () => ({ ...text('This tool intentionally returns an error for testing'), isError: true }),
  async test_tool_with_logging(_, { mcpReq }) {
    for (const message of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      await mcpReq.log('info', message, 'testkit');
      await pause(PROGRESS_INTERVAL_MS);
    }
    return text('Logged three messages');
  },
  async test_tool_with_progress(_, { mcpReq }) {
    const progressToken = mcpReq._meta?.progressToken;
    for (const progress of progressToken === undefined ? [] : [0, 50, 100]) {
      const params = { progressToken, progress, total: 100, message: `${progress} of 100` };
      await mcpReq.notify({ method: 'notifications/progress', params });
      await pause(PROGRESS_INTERVAL_MS);
    }
    return text('Reported progress');
  },
  async test_logging_tool(_, { mcpReq }) {
    await mcpReq.log('info', 'Called', 'testkit');
    return text('Logged if asked to');
  },
  async test_reconnection(_, context) {
    context.http?.closeSSE?.();
    await pause(5 * RECONNECT_DELAY_MS);
    return text('Answered after the stream was closed');
  },
  test_trigger_tool_change: () => toggle('tool'),
  test_trigger_prompt_change: () => toggle('prompt'),
  greet: ({ name }) => text(`Hello, ${name}!`),
  test_header_param: (given) => text(JSON.stringify(given)),
  json_schema_2020_12_tool: (given) => text(JSON.stringify(given)),
  toggled_tool: () => text('I am here'),
};

const withInput = {
  test_sampling: asks(
    ({ prompt }) => ({ answer: sample(prompt) }),
    ({ answer }) => text(`LLM response: ${answer.content.text}`),
  ),
  test_elicitation: asks(
    ({ message }) => ({ answer: elicit(message, content.questions.test_elicitation) }),
    ({ answer }) => text(`User response: ${said(answer)}`),
  ),
  test_streaming_elicitation: asks(
    () => ({ answer: elicit('What is your name?', { name: STRING }) }),
    ({ answer }) => text(`User response: ${said(answer)}`),
  ),
  ...Object.fromEntries(['test_elicitation_sep1034_defaults', 'test_elicitation_sep1330_enums'].map((name) => [name, asks(
    () => ({ answer: elicit('Choose', content.questions[name], []) }),
    ({ answer }) => text(`Elicitation completed: ${said(answer)}`),
  )])),
  test_input_required_result_elicitation: asks(
    () => ({ user_name: elicit('What is your name?', { name: STRING }) }),
    ({ user_name: { content } }) => text(`Hello, ${content?.name ?? 'stranger'}!`),
  ),
  test_input_required_result_sampling: asks(
    () => ({ capital_question: sample('What is the capital of France?') }),
    ({ capital_question }) => text(`LLM response: ${JSON.stringify(capital_question.content)}`),
  ),
  test_input_required_result_list_roots: asks(
    () => ({ client_roots: roots() }),
    ({ client_roots }) => text(`Roots: ${JSON.stringify(client_roots.roots)}`),
  ),
  test_input_required_result_request_state: asksRounds('test_input_required_result_request_state', confirm),
  test_input_required_result_tampered_state: asksRounds('test_input_required_result_tampered_state', confirm),
  test_input_required_result_multiple_inputs: asksRounds(
    'test_input_required_result_multiple_inputs', [Object.fromEntries(Object.values(every()))],
  ),
  test_input_required_result_multi_round: asksRounds('test_input_required_result_multi_round', [
    { step1: elicit('Step 1: What is your name?', { name: STRING }) },
    { step2: elicit('Step 2: What is your favorite color?', { color: STRING }) },
  ]),
};

// These depend on what the client declared.
const withCapabilities = (declared) => ({
  // The SDK refuses to ask a client that cannot be asked.
  test_missing_capability: () => (declared().sampling
    ? text('The client can sample')
    : inputRequired({ inputRequests: { answer: sample('Say something', 1) } })),
  test_input_required_result_capabilities: (_, context) => {
    const possible = Object.entries(every()).filter(([capability]) => declared()[capability]);
    const questions = Object.fromEntries(possible.map(([, question]) => question));
    const answers = answered(context, questions);
    return answers === undefined ? inputRequired({ inputRequests: questions }) : text(JSON.stringify(answers));
  },
});

// --- the server ---

// The schemas and tools of all servers; compiled once.
const tools = content.tools.map(({ name, description, inputSchema }) =>
  [name, { description, inputSchema: fromJsonSchema(inputSchema) }]);
const prompts = content.prompts.map(({ name, description, arguments: given }) => {
  const properties = Object.fromEntries((given ?? []).map(({ name, description }) => [name, { ...STRING, description }]));
  const schema = { type: 'object', properties, required: (given ?? []).map(({ name }) => name) };
  return [name, { description, ...(given && { argsSchema: fromJsonSchema(schema) }) }];
});

// The server of one legacy session or of one modern request.
function serverOf() {
  const capabilities = {
    completions: {}, logging: {}, prompts: { listChanged: true }, tools: { listChanged: true },
    resources: { subscribe: true },
  };
  const mcp = new McpServer({ name: 'testkit-typescript', version }, { capabilities, requestState: { verify: codec.verify } });
  const { server } = mcp;

  const fixed = Object.fromEntries(Object.entries(content.results).map(([name, content]) => [name, () => ({ content })]));
  const declared = () => server.getClientCapabilities() ?? {};
  const handlers = { ...fixed, ...withoutInput, ...withInput, ...withCapabilities(declared) };
  const toggled = {};
  for (const [name, config] of tools) {
    if (!(name in handlers)) continue;
    const tool = mcp.registerTool(name, config, handlers[name]);
    if (name === 'toggled_tool') toggled.tool = tool;
  }
  for (const [name, config] of prompts) {
    const handler = name === 'test_input_required_result_prompt'
      ? (context) => asks(
        () => ({ user_context: elicit('What context should the prompt use?', { context: STRING }) }),
        ({ user_context: { content } }) => ({ messages: [message({ type: 'text', text: `Context: ${content?.context}` })] }),
      )({}, context)
      : (given) => ({ messages: content.prompt(name, given).map(message) });
    const prompt = mcp.registerPrompt(name, config, handler);
    if (name === 'toggled_prompt') toggled.prompt = prompt;
  }
  toggled.tool.update({ enabled: listed.tool });
  toggled.prompt.update({ enabled: listed.prompt });

  for (const { uri, name, ...metadata } of content.resources) {
    mcp.registerResource(name, uri, metadata, () => ({ contents: [content.resource(uri)] }));
  }
  for (const { uriTemplate, name, ...metadata } of content.resourceTemplates) {
    mcp.registerResource(name, new ResourceTemplate(uriTemplate, { list: undefined }), metadata, (uri, { id }) =>
      ({ contents: [content.templated(uri.href, id)] }));
  }
  // No resource ever changes.
  server.setRequestHandler('resources/subscribe', () => ({}));
  server.setRequestHandler('resources/unsubscribe', () => ({}));
  server.setRequestHandler('completion/complete', ({ params }) => {
    const values = content.completions.filter((value) => value.startsWith(params.argument.value));
    return { completion: { values, total: values.length, hasMore: false } };
  });
  return Object.assign(mcp, { toggled });
}

const message = (content) => ({ role: 'user', content });

// --- transport ---

const modern = createMcpHandler(serverOf, { legacy: 'reject' });

// Keeps the events of one session, so that a client can resume a stream.
class Events {
  #events = [];
  #next = 1;

  async storeEvent(stream, message) {
    const id = String(this.#next++);
    this.#events.push({ id, stream, message });
    if (this.#events.length > MAX_EVENTS) this.#events.shift();
    return id;
  }

  async getStreamIdForEventId(id) {
    return this.#events.find((event) => event.id === id)?.stream;
  }

  async replayEventsAfter(id, { send }) {
    const stream = await this.getStreamIdForEventId(id);
    const later = this.#events.filter((event) => event.stream === stream && Number(event.id) > Number(id));
    for (const event of later) await send(event.id, event.message);
    return stream;
  }
}

async function legacy(request) {
  const id = request.headers.get('mcp-session-id');
  if (id !== null) {
    const session = sessions.get(id);
    if (session !== undefined) return session.transport.handleRequest(request);
    const error = { code: -32001, message: 'Session not found' };
    return Response.json({ jsonrpc: '2.0', id: null, error }, { status: 404 });
  }
  const server = serverOf();
  const transport = new WebStandardStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: RECONNECT_DELAY_MS,
    onsessioninitialized: (id) => { sessions.set(id, { server, transport }); },
    onsessionclosed: (id) => { sessions.delete(id); },
  });
  await server.connect(transport);
  const response = await transport.handleRequest(request);
  // Anything but `initialize` is refused and opens no session.
  if (!response.ok) await server.close();
  return response;
}

const fetch = async (request, options) =>
  (await isLegacyRequest(request) ? legacy(request) : modern.fetch(request, options));
const answer = toNodeHandler({ fetch });
const isLocalHost = localhostHostValidation();
const isLocalOrigin = localhostOriginValidation();

const listener = http.createServer((request, response) => {
  if (!isLocalHost(request, response) || !isLocalOrigin(request, response)) return;
  if (request.url === '/mcp') answer(request, response);
  else response.writeHead(404).end();
});
listener.listen(0, '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${listener.address().port}/mcp`));
