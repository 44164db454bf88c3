// The chat page: one conversation with an agent over the REST API, and the list of those that are kept.
//
// Whatever a model, a tool or a web page says gets into the document as text: nodes are made with createElement, filled
// with textContent, and links are those of http and https. The key is kept in this tab's session storage and is sent to
// this origin only.
"use strict";

const $ = (id) => document.getElementById(id);
const project = new URLSearchParams(location.search).get("project");
/** Where something is in the API, in this page's project. */
const at = (path, query = {}) => {
  const asked = new URLSearchParams(query);
  if (project !== null) asked.set("project", project);
  return "/api/v1" + path + (asked.size > 0 ? "?" + asked : "");
};
/** Of one list of conversations. */
const PAGE = 30;
/** Of requests that are no turns, in milliseconds. */
const DEADLINE = 30000;
/** Longest text that is shown of a tool's arguments or result, in characters. */
const SHOWN = 20000;

const KEY = "toolwharf.key";
// Storage can be forbidden; then the key lasts as long as the page.
const kept = {
  value: null,
  get() { try { return sessionStorage.getItem(KEY) ?? this.value; } catch { return this.value; } },
  set(key) { this.value = key; try { sessionStorage.setItem(KEY, key); } catch { /* see above */ } },
  drop() { this.value = null; try { sessionStorage.removeItem(KEY); } catch { /* see above */ } },
};

/** What is shown. `turn` is the abort controller of the answer that is being written; `view` counts what was shown. */
const state = { conversation: null, turn: null, stopped: false, next: null, view: 0 };

// ---- Making nodes

const make = (tag, name, ...inner) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...inner.filter((one) => one !== null && one !== ""));
  return node;
};

const ICONS = { bin: "M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.3 10.5v6m3.4-6v6" };
const icon = (name) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};

/** The address if it is one of the web, else null. */
const webAddress = (text) => {
  let url;
  try { url = new URL(text); } catch { return null; }
  return url.protocol === "http:" || url.protocol === "https:" ? url : null;
};

/** A link if the address is one of the web, else its text. */
const link = (address, ...inner) => {
  const url = webAddress(address);
  if (!url) return make("span", "", ...inner);
  const node = make("a", "", ...inner);
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
};

// ---- Markdown, the small part of it that models write

const INLINE = new RegExp([
  "(?<tick>`+)(?<code>[\\s\\S]+?)\\k<tick>(?!`)",
  "\\*\\*(?<strong>[^*\\s](?:[^*]*[^*\\s])?)\\*\\*",
  "(?<![\\w*])[*](?<em>[^*\\s](?:[^*\\n]*[^*\\s])?)[*](?![\\w*])",
  "(?<!\\w)_(?<em2>[^_\\s](?:[^_\\n]*[^_\\s])?)_(?!\\w)",
  "!?\\[(?<text>[^\\]\\n]{1,500})\\]\\((?<to>[^()\\s]{1,2000})(?: \"[^\"\\n]*\")?\\)",
  "(?<bare>https?://[^\\s<>\"'`)\\]]{1,2000})",
].join("|"), "g");

const inline = (into, text) => {
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    into.append(text.slice(from, found.index));
    from = found.index + found[0].length;
    const { code, strong, em, em2, text: words, to, bare } = found.groups;
    if (code !== undefined) into.append(make("code", "", code));
    else if (strong !== undefined) into.append(inline(make("strong"), strong));
    else if (em !== undefined || em2 !== undefined) into.append(inline(make("em"), em ?? em2));
    else if (to !== undefined) into.append(link(to, words));
    else {
      const tail = bare.match(/[.,;:!?]*$/)[0];
      const address = bare.slice(0, bare.length - tail.length);
      into.append(link(address, address), tail);
    }
  }
  into.append(text.slice(from));
  return into;
};

const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;

/** Lines of a list from `at` on; gives the line after it. */
const list = (into, lines, at) => {
  const first = lines[at].match(ITEM);
  const depth = first[1].length;
  const node = make(first[2] === undefined ? "ul" : "ol");
  if (first[2] !== undefined && first[2] !== "1") node.start = Number(first[2]);
  let last = null;
  while (at < lines.length) {
    const item = lines[at].match(ITEM);
    if (item && item[1].length > depth + 1 && last) {
      at = list(last, lines, at);
    } else if (item && item[1].length >= depth && (item[2] === undefined) === (first[2] === undefined)) {
      last = node.appendChild(inline(make("li"), item[3]));
      at += 1;
    } else if (!item && last && /^\s+\S/.test(lines[at])) {
      inline(last, " " + lines[at].trim());
      at += 1;
    } else if (lines[at].trim() === "" && at + 1 < lines.length && lines[at + 1].match(ITEM)) {
      at += 1;
    } else break;
  }
  into.append(node);
  return at;
};

const markdown = (into, text) => {
  into.replaceChildren();
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  let words = [];
  const flush = () => {
    if (words.length) inline(into.appendChild(make("p")), words.join("\n"));
    words = [];
  };
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = line.match(/^\s*(```+|~~~+)/);
    const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    if (fence) {
      flush();
      const body = [];
      for (at += 1; at < lines.length && !lines[at].trimStart().startsWith(fence[1]); at += 1) body.push(lines[at]);
      into.append(make("pre", "", make("code", "", body.join("\n"))));
      at += 1;
    } else if (heading) {
      flush();
      inline(into.appendChild(make("h" + Math.min(heading[1].length + 2, 5))), heading[2]);
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      into.append(make("hr"));
      at += 1;
    } else if (ITEM.test(line)) {
      flush();
      at = list(into, lines, at);
    } else if (/^>\s?/.test(line)) {
      flush();
      const body = [];
      for (; at < lines.length && /^>\s?/.test(lines[at]); at += 1) body.push(lines[at].replace(/^>\s?/, ""));
      inline(into.appendChild(make("blockquote")), body.join("\n"));
    } else {
      if (line.trim() === "") flush(); else words.push(line);
      at += 1;
    }
  }
  flush();
};

// ---- The recipe card

const words = (value) => typeof value === "string" ? value : typeof value === "number" ? String(value) : "";
const lines = (value) => Array.isArray(value) ? value.map(words).filter((line) => line.trim() !== "").slice(0, 500) : [];

const minutes = (value) => {
  if (!Number.isFinite(value) || value <= 0) return "";
  const [hours, rest] = [Math.floor(value / 60), Math.round(value % 60)];
  return [hours ? hours + " h" : "", rest ? rest + " min" : ""].filter(Boolean).join(" ");
};

const recipeCard = (recipe) => {
  const title = words(recipe.title) || "Recipe";
  const head = make("header", "", make("p", "kicker", "Recipe"), make("h2", "", title));
  const both = Number(recipe.prep_minutes) + Number(recipe.cook_minutes);
  const facts = [
    ["Preparation", minutes(recipe.prep_minutes)],
    ["Cooking", minutes(recipe.cook_minutes)],
    ["In all", recipe.prep_minutes && recipe.cook_minutes ? minutes(both) : ""],
    ["Serves", words(recipe.servings)],
  ].filter(([, value]) => value !== "");
  if (facts.length) {
    const rows = facts.map(([name, value]) => make("div", "", make("dt", "", name), make("dd", "", value)));
    head.append(make("dl", "", ...rows));
  }
  const ingredients = make("ul", "ingredients", ...lines(recipe.ingredients).map((line) => make("li", "", line)));
  const steps = make("ol", "steps", ...lines(recipe.steps).map((line) => make("li", "", make("span", "", line))));
  // Lists without bullets are no lists to some screen readers.
  for (const one of [ingredients, steps]) one.setAttribute("role", "list");
  const card = make("article", "recipe", head, make("div", "parts",
    make("section", "", make("h3", "", "Ingredients"), ingredients),
    make("section", "", make("h3", "", "Steps"), steps)));
  card.setAttribute("aria-label", "Recipe: " + title);
  const notes = words(recipe.notes).trim();
  if (notes) card.append(make("p", "notes", notes));
  const foot = make("footer");
  const source = words(recipe.source_url).trim();
  if (source) {
    const url = webAddress(source);
    foot.append(make("span", "source", "From ", link(source, url ? url.host.replace(/^www\./, "") : source)));
  }
  const tags = lines(recipe.tags);
  if (tags.length) foot.append(make("ul", "tags", ...tags.map((tag) => make("li", "", tag))));
  if (foot.childNodes.length) card.append(foot);
  return card;
};

const isRecipe = (value) => value !== null && typeof value === "object" && !Array.isArray(value)
  && words(value.title) !== "" && lines(value.ingredients).length + lines(value.steps).length > 0;

// ---- What is said

const scroll = $("scroll");
const log = $("log");
const atEnd = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
/** Changes the log; who reads its end goes on doing so. */
const changed = (change) => {
  const follow = atEnd();
  change();
  if (follow) scroll.scrollTop = scroll.scrollHeight;
};

const cut = (text) => text.length > SHOWN ? text.slice(0, SHOWN) + "\n… (" + text.length + " characters in all)" : text;
const pretty = (value) => {
  if (typeof value === "string") {
    try { value = JSON.parse(value); } catch { return value; }
  }
  return JSON.stringify(value, null, 2) ?? "";
};
/** What a call is about, in a few words. */
const gist = (value) => {
  if (value === null || typeof value !== "object") return "";
  const first = ["url", "title", "query", "text", "id", "path", "name"].map((key) => value[key]).find((one) => words(one) !== "");
  return words(first ?? Object.values(value).find((one) => words(one) !== "")).slice(0, 120);
};

const says = (text) => {
  $("welcome").hidden = true;
  const mine = make("article", "mine", make("div", "", text));
  mine.setAttribute("aria-label", "You");
  log.append(mine);
};

/** An answer that grows: texts, calls and cards in the order that they come. */
const answer = () => {
  const node = make("article", "theirs");
  node.setAttribute("aria-label", "Agent");
  log.append(node);
  const tools = new Map();
  const waiting = make("span", "waiting", make("i"), make("i"), make("i"));
  waiting.setAttribute("aria-hidden", "true");
  let open = null;
  let frame = 0;

  const draw = () => {
    frame = 0;
    if (open) changed(() => open.draw());
  };
  const close = () => {
    if (frame) { cancelAnimationFrame(frame); draw(); }
    open = null;
  };
  const add = (one) => {
    close();
    changed(() => node.insertBefore(one, waiting.parentNode === node ? waiting : null));
    return one;
  };
  const grow = (kind, text) => {
    if (open?.kind !== kind) {
      close();
      const body = make("div", "md");
      if (kind === "text") add(body);
      else add(make("details", "tool", make("summary", "", make("span", "mark"), make("span", "name", "Thinking")), make("div", "inner", body)));
      open = { kind, text: "", draw() { markdown(body, this.text); } };
    }
    open.text += text;
    frame ||= requestAnimationFrame(draw);
  };

  return {
    /** While something is to come. */
    busy(is) {
      node.setAttribute("aria-busy", String(is));
      if (is) changed(() => node.append(waiting));
      else { close(); waiting.remove(); }
    },
    text: (text) => grow("text", text),
    thinking: (text) => grow("thinking", text),
    call(id, name, server, input) {
      const state = make("span", "state hidden", "running");
      const hint = gist(input);
      const inner = make("div", "inner", make("h3", "", "Asked"), make("pre", "", cut(pretty(input))));
      const box = make("details", "tool running",
        make("summary", "", make("span", "mark"), make("span", "name", name), server ? make("span", "server", server) : "",
          hint ? make("span", "hint", hint) : "", state), inner);
      tools.set(id, { box, inner, state, name, input });
      add(box);
    },
    result(id, failed, text, bytes) {
      const tool = tools.get(id);
      if (!tool) return;
      changed(() => {
        tool.box.className = failed ? "tool failed" : "tool";
        tool.state.textContent = failed ? "failed" : "done";
        if (failed) tool.state.classList.remove("hidden");
        const whole = bytes > new TextEncoder().encode(text).length;
        tool.inner.append(make("h3", "", failed ? "Failed" : "Answered"), make("pre", "", cut(pretty(text)) + (whole ? "\n… (" + bytes + " bytes in all)" : "")));
      });
    },
    /** What a tool of Toolwharf's own has to show; what is unknown stays in the line of its call. */
    native(tool, payload) {
      if (tool !== "display_recipe" || !isRecipe(payload)) return;
      const card = add(recipeCard(payload));
      // It is read from its head on; what follows comes below.
      if (card.offsetHeight > scroll.clientHeight * 0.7) card.scrollIntoView({ block: "start" });
    },
    of: (id) => tools.get(id),
    /** Calls that will get no answer any more. */
    over() {
      for (const { box, state } of tools.values()) {
        if (!box.classList.contains("running")) continue;
        box.className = "tool failed";
        state.textContent = "ended";
        state.classList.remove("hidden");
      }
    },
    wrong(text) {
      const box = make("p", "wrong", text);
      box.setAttribute("role", "alert");
      add(box);
    },
    note: (text) => add(make("p", "note", text)),
    usage(text) {
      if (!this.spent) this.spent = make("p", "usage");
      this.spent.textContent = text;
    },
    end() {
      this.busy(false);
      this.over();
      if (this.spent) add(this.spent);
    },
  };
};

const count = new Intl.NumberFormat();
const spent = ({ input, output, cache_read: read, cache_write: write, cost_micros: cost }) => {
  const all = [input, read, write].reduce((sum, one) => sum + (Number(one) || 0), 0);
  const price = cost > 0 ? " · $" + (cost / 1e6).toFixed(cost < 10000 ? 4 : 2) : "";
  return count.format(all) + " tokens read · " + count.format(Number(output) || 0) + " written" + price;
};

// ---- The API

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** A request with the key; asks for one where it is missing or opens nothing. Without a signal it has a deadline. */
const ask = async (method, path, { body, signal } = {}) => {
  for (let why = ""; ;) {
    // Without a key the cookie of a browser that signed in counts; the header shows that a page of this gateway asks.
    const headers = { "x-requested-with": "toolwharf" };
    const key = kept.get();
    if (key) headers.authorization = "Bearer " + key;
    if (body) headers["content-type"] = "application/json";
    const ends = signal ?? AbortSignal.timeout(DEADLINE);
    const options = { method, headers, signal: ends, cache: "no-store", credentials: key ? "omit" : "same-origin", redirect: "error" };
    if (body) options.body = JSON.stringify(body);
    const reply = await fetch(path, options);
    if (reply.ok) return reply;
    let detail = "";
    try { detail = words((await reply.json()).detail); } catch { /* it has no words for it */ }
    if (reply.status !== 401) throw new Refused(reply.status, detail || "Toolwharf answered with " + reply.status);
    // Another request may have got a key meanwhile.
    if (kept.get() === key) {
      why = key ? "The key opens nothing here: it is unknown, revoked or expired." : "";
      kept.drop();
      await enter(why);
    }
    signal?.throwIfAborted();
  }
};

let door = null;
/** Asks for a key, once for all who wait for it. */
const enter = (why) => door ??= new Promise((done) => {
  $("door-why").textContent = why;
  $("key").value = "";
  $("door").showModal();
  $("enter").onsubmit = (event) => {
    event.preventDefault();
    const key = $("key").value.trim();
    // What a header cannot hold is no key.
    if (!/^[\x21-\x7e]+$/.test(key)) {
      $("door-why").textContent = "A key is one word of letters, digits and signs, such as twh_….";
      return;
    }
    kept.set(key);
    $("key").value = "";
    $("forget").hidden = false;
    door = null;
    $("door").close();
    done();
  };
});
// Without a key there is nothing behind the door.
$("door").addEventListener("close", () => { if (door) $("door").showModal(); });

/** The events of a stream, as they come. */
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const kind = lines.find((line) => line.startsWith("event:"))?.slice(6).trim();
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (kind && data) yield [kind, JSON.parse(data)];
    }
  }
}

// ---- A turn

const status = (text) => { $("status").textContent = text; };

const working = (is) => {
  $("stop").hidden = !is;
  $("send").hidden = is;
};

const happened = (said, kind, data) => {
  switch (kind) {
    case "conversation":
      state.conversation = data.id;
      address();
      break;
    case "text_delta": said.text(data.text); break;
    case "thinking_delta": said.thinking(data.text); break;
    case "retrying": status("The model's provider is busy; asking again in " + Math.ceil(data.pause_ms / 1000) + " s …"); return;
    case "servers_missing":
      for (const { server, reason } of data.servers) said.note("Without the tools of " + server + ": " + reason);
      break;
    case "tool_call": said.call(data.id, data.name, data.server, data.arguments); break;
    case "tool_result": said.result(data.id, data.is_error, data.preview, data.bytes); break;
    case "native": said.native(data.tool, data.payload); break;
    case "usage": said.usage(spent(data)); break;
    case "done":
      if (data.stop_reason === "max_tokens") said.note("The answer was cut here: it got too long.");
      break;
    case "error": said.wrong(data.message); break;
    default: break; // One that a later version has.
  }
  status("");
};

const send = async (text) => {
  const turn = new AbortController();
  const view = state.view;
  state.turn = turn;
  working(true);
  says(text);
  const said = answer();
  said.busy(true);
  scroll.scrollTop = scroll.scrollHeight;
  let ended = false;
  try {
    const body = { message: text };
    if (state.conversation) body.conversation = state.conversation;
    const reply = await begun(body, turn.signal);
    for await (const [kind, data] of events(reply)) {
      ended ||= kind === "done" || kind === "error";
      happened(said, kind, data);
    }
    if (!ended) said.wrong("The connection broke off. What was complete by then is kept: open the conversation again to see it.");
  } catch (error) {
    if (turn.signal.aborted) said.note("Stopped.");
    else if (error instanceof Refused) said.wrong(error.message);
    else said.wrong("Toolwharf cannot be reached: " + error.message);
  }
  said.end();
  if (state.turn === turn) state.turn = null;
  if (state.view === view) {
    working(false);
    status("");
  }
  listed();
};

/** A turn that was stopped ends a moment later on the other side: the next one waits for that. */
const begun = async (body, signal) => {
  const patient = state.stopped;
  state.stopped = false;
  for (let tries = 1; ; tries += 1) {
    try {
      return await ask("POST", at("/chat"), { body, signal });
    } catch (error) {
      if (!(patient && error instanceof Refused && error.status === 409) || tries >= 5) throw error;
      await new Promise((go) => setTimeout(go, 300 * tries));
    }
  }
};

const stop = () => {
  if (!state.turn) return;
  state.stopped = true;
  state.turn.abort();
};

// ---- Conversations that are kept

const address = () => {
  const hash = state.conversation ? "#c=" + encodeURIComponent(state.conversation) : "";
  history.replaceState(null, "", location.pathname + location.search + hash);
};

const clear = () => {
  stop();
  state.view += 1;
  state.conversation = null;
  log.replaceChildren();
  working(false);
  status("");
};

const fresh = () => {
  clear();
  address();
  $("welcome").hidden = false;
  marked();
  drawer(false);
  // On a phone that would bring up the keyboard.
  if (matchMedia("(pointer: fine)").matches) $("message").focus();
};

const open = async (id) => {
  clear();
  const view = state.view;
  state.conversation = id;
  address();
  marked();
  drawer(false);
  $("welcome").hidden = true;
  status("Opening …");
  try {
    const whole = await (await ask("GET", at("/conversations/" + encodeURIComponent(id)))).json();
    if (state.view !== view) return;
    told(whole.messages);
    status("");
  } catch (error) {
    if (state.view !== view) return;
    state.conversation = null;
    address();
    marked();
    status("");
    answer().wrong(error.message);
  }
  scroll.scrollTop = scroll.scrollHeight;
};

/** Draws what is kept of a conversation: turns of blocks, as the Messages API has them. */
const told = (messages) => {
  let said = null;
  for (const { role, content } of messages) {
    for (const block of content) {
      if (role === "user" && block.type === "text" && block.text.startsWith("[System note] ")) {
        continue; // Ours, for the model: the page said it when it came.
      } else if (role === "user" && block.type === "text") {
        said = null;
        says(block.text);
      } else if (block.type === "tool_result") {
        const parts = Array.isArray(block.content) ? block.content : [];
        const text = parts.map((part) => part.type === "text" ? part.text : "(a picture)").join("\n");
        const tool = said?.of(block.tool_use_id);
        said?.result(block.tool_use_id, block.is_error, text, 0);
        if (tool && !block.is_error) said.native(tool.name, tool.input);
      } else if (role === "assistant") {
        said ??= answer();
        if (block.type === "text") said.text(block.text);
        if (block.type === "thinking" && block.thinking) said.thinking(block.thinking);
        if (block.type === "tool_use") said.call(block.id, block.name, null, block.input);
        said.busy(false);
      }
    }
  }
  said?.over();
};

const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

const row = ({ id, title, updated_at }) => {
  const when = make("time", "", day.format(new Date(updated_at)));
  when.dateTime = updated_at;
  const go = make("button", "open", make("span", "title", title || "Untitled"), when);
  go.type = "button";
  go.title = title;
  go.onclick = () => open(id);
  const bin = make("button", "icon", icon("bin"));
  bin.type = "button";
  bin.setAttribute("aria-label", "Delete: " + title);
  bin.onclick = () => remove(id, title);
  const item = make("li", "", go, bin);
  item.dataset.id = id;
  return item;
};

const marked = () => {
  for (const item of $("list").children) {
    const here = item.dataset.id === state.conversation;
    item.classList.toggle("here", here);
    if (here) item.firstChild.setAttribute("aria-current", "true");
    else item.firstChild.removeAttribute("aria-current");
  }
};

const listed = async (after) => {
  try {
    const query = after ? { limit: PAGE, after } : { limit: PAGE };
    const page = await (await ask("GET", at("/conversations", query))).json();
    // Those of projects have a page of their own.
    const own = page.conversations.filter((one) => project !== null || one.project === null).map(row);
    if (after) $("list").append(...own); else $("list").replaceChildren(...own);
    state.next = page.next;
    $("more").hidden = !page.next;
    $("nothing").hidden = $("list").children.length > 0;
    marked();
  } catch (error) {
    status(error.message);
  }
};

const remove = (id, title) => {
  $("sure-what").textContent = title;
  $("sure-no").onclick = () => $("sure").close();
  $("sure-yes").onclick = async () => {
    $("sure").close();
    if (state.conversation === id) fresh();
    try {
      await ask("DELETE", at("/conversations/" + encodeURIComponent(id)));
    } catch (error) {
      status(error.message);
    }
    listed();
  };
  $("sure").showModal();
};

/** Which servers the agent has; it does without knowing. Those of a gateway that just started may not be up yet. */
const offered = async (tries = 1) => {
  try {
    const { tools } = await (await ask("GET", at("/tools"))).json();
    const servers = new Map();
    for (const { server, enabled } of tools) if (enabled) servers.set(server, (servers.get(server) ?? 0) + 1);
    const chips = [...servers].map(([name, many]) =>
      make("li", "", name + " ", make("small", "", many === 1 ? "1 tool" : many + " tools")));
    $("servers").replaceChildren(...chips);
    $("uses").hidden = chips.length === 0;
    if (chips.length === 0 && tries < 5) setTimeout(offered, 2000, tries + 1);
  } catch { /* the list is an ornament */ }
};

// ---- The page's own parts

const drawer = (out) => {
  $("side").classList.toggle("out", out);
  $("veil").hidden = !out;
  $("menu").setAttribute("aria-expanded", String(out));
};

const message = $("message");
// For browsers without `field-sizing`.
const fit = () => {
  if (CSS.supports("field-sizing", "content")) return;
  message.rows = Math.min(12, message.value.split("\n").length);
};

$("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = message.value.trim();
  if (text === "" || state.turn) return;
  message.value = "";
  fit();
  send(text);
});
message.addEventListener("input", fit);
message.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("say").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if ($("side").classList.contains("out")) drawer(false);
  else stop();
});
$("stop").onclick = () => { stop(); message.focus(); };
$("fresh").onclick = fresh;
$("menu").onclick = () => drawer(!$("side").classList.contains("out"));
$("veil").onclick = () => drawer(false);
$("more").onclick = () => listed(state.next);
$("forget").onclick = () => { kept.drop(); location.assign(location.pathname + location.search); };

const begin = async () => {
  const hash = new URLSearchParams(location.hash.slice(1));
  // A link may bring the key along: the part behind the # is not sent, and leaves the address bar at once.
  if (hash.get("key")) kept.set(hash.get("key"));
  state.conversation = hash.get("c");
  address();
  if (project !== null) $("project").textContent = project;
  $("forget").hidden = !kept.get();
  if (state.conversation) await open(state.conversation); else fresh();
  await listed();
  await offered();
};
begin();
