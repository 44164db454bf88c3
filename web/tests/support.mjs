// The browser for console tests: Debian's Chromium without a window, driven by Playwright. `crates/toolwharf/tests/console` starts the gateway
// and passes its address in the environment.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

import { chromium } from "playwright-core";

import { launchOptions } from "./launch.mjs";

export { assert };

export const url = process.env.TOOLWHARF_URL;
const token = process.env.TOOLWHARF_TOKEN;
/** Timeout of a wait. Generous, because test machines are busy. */
const PATIENCE_MS = 30_000;

/** Screen sizes and themes for screenshots. */
export const SCREENS = [
  { name: "390-light", viewport: { width: 390, height: 844 }, colorScheme: "light" },
  { name: "390-dark", viewport: { width: 390, height: 844 }, colorScheme: "dark" },
  { name: "1440-light", viewport: { width: 1440, height: 900 }, colorScheme: "light" },
  { name: "1440-dark", viewport: { width: 1440, height: 900 }, colorScheme: "dark" },
];

/** The origin for Apps. */
export const apps = (await (await fetch(url)).text()).match(/name="apps-origin" content="([^"]*)"/)?.[1];

/**
 * Runs a test with a browser. Policy violations and script errors fail the test. It opens pages with `open`: signed in, if
 * it passes a path.
 */
export async function run(test) {
  const browser = await chromium.launch(launchOptions);
  const pages = [];
  const complaints = [];
  const open = async (path, { screen = SCREENS[3], isAttacked = false, ...options } = {}) => {
    const context = await browser.newContext({ viewport: screen.viewport, colorScheme: screen.colorScheme, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    page.on("pageerror", (error) => complaints.push(error.message));
    page.on("console", (message) => message.type() === "error" && !isAttacked && !/Failed to load resource/.test(message.text()) && complaints.push(message.text()));
    // Requests to other hosts are not allowed.
    page.on("request", (request) => {
      // Also called for requests that an App's policy blocks; the test's listener counts what got through.
      if (isAttacked) return;
      const to = request.url();
      if (!to.startsWith(url) && !to.startsWith(`${apps}/`) && !to.startsWith("data:") && !to.startsWith("blob:")) complaints.push(`asked ${to}`);
    });
    pages.push(page);
    if (path) await signIn(page, path);
    return page;
  };
  try {
    await test(open);
    assert.deepEqual(complaints, []);
  } catch (error) {
    const folder = process.env.TOOLWHARF_PICTURES;
    if (folder) mkdirSync(folder, { recursive: true });
    for (const [at, page] of pages.entries()) {
      console.error(`page ${at}: ${page.url()}\n${await page.locator("body").innerText().catch(() => "")}`);
      if (folder) await page.screenshot({ path: `${folder}/failed-${at}.png` }).catch(() => {});
    }
    console.error(complaints.join("\n"));
    throw error;
  } finally {
    await browser.close();
  }
}

/** Runs a test that begins on one page, signed in. It gets the parts of the page that tests refer to, too. */
export const visit = (path, test, options) =>
  run(async (open) => {
    const page = await open(path, options);
    const [main, dialog, log] = ["main", "dialog", "log"].map((role) => page.getByRole(role));
    await test(page, { open, main, dialog, log, answer: page.getByRole("region", { name: "Run" }) });
  });

/** Signs in with the administrator key. */
export async function signIn(page, path = "/servers") {
  await page.goto(`${url}/sign-in?next=${encodeURIComponent(path)}`);
  await page.fill("#key", token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL(`${url}${path}`);
}

/** Fills in fields, given by their labels, and presses a button. */
export async function fill(where, fields, button) {
  for (const [label, value] of fields) await where.getByLabel(label).fill(value);
  await where.getByRole("button", { name: button, exact: true }).click();
}

/** Replaces the text of an editor. */
export async function write(page, editor, text) {
  await editor.click();
  await page.keyboard.press("ControlOrMeta+a");
  await page.keyboard.press("Backspace");
  await page.keyboard.insertText(text);
}

/** Finds something with ⌘K, without a mouse, and chooses it. */
export async function find(page, words, name) {
  await page.keyboard.press("Control+k");
  await page.getByRole("combobox", { name: "Search everything" }).waitFor();
  await page.keyboard.type(words);
  await page.getByRole("option", { name }).first().waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").waitFor({ state: "detached" });
}

/** Says something to the agent on the page of the chat. */
export async function say(page, text) {
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.keyboard.press("Enter");
}

/** Records in `window.harmed` what a hostile text achieves in the page. */
export const watch = (page) =>
  page.addInitScript(() => {
    window.harmed = [];
    addEventListener("message", ({ data }) => data === "harm" && window.harmed.push(data));
    window.alert = (what) => window.harmed.push(what);
  });

/** Changes the definitions of the server `index`: replaces each text with the one after it. */
export async function redefine(...changes) {
  const file = process.env.TOOLWHARF_ANSWERS;
  const text = changes.reduce((text, [from, to]) => text.replace(from, to), readFileSync(file, "utf8"));
  writeFileSync(file, text);
  await api("POST", "/mcp/servers/index/restart");
}

/** Sends an API request directly. */
export async function api(method, path, body) {
  const response = await fetch(`${url}/api/v1${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  return { status: response.status, body: text && (response.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text };
}

/** Calls a tool by its native name, directly over the API. */
export const call = (server, name, args = {}, more = {}) => api("POST", `/mcp/servers/${server}/call`, { method: "tools/call", params: { name, arguments: args }, ...more });

/** Returns the sorted times between frames in milliseconds, while `act` runs repeatedly in the page for three seconds. */
export const frames = (page, act = () => {}) =>
  page.evaluate(
    (act) =>
      new Promise((done) => {
        const step = new Function(`return (${act})`)();
        const gaps = [];
        let last = performance.now();
        const until = last + 3000;
        const frame = (now) => {
          gaps.push(now - last);
          last = now;
          step(gaps.length);
          if (now < until) requestAnimationFrame(frame);
          else done(gaps.sort((a, b) => a - b));
        };
        requestAnimationFrame(frame);
      }),
    act.toString(),
  );

/** Returns the 95th percentile. */
export const p95 = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length * 0.95)];
