// The browser for console tests: Debian's Chromium, driven by Playwright. `crates/toolwharf/tests/console` starts the gateway
// and passes its address in the environment.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";

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

/** Runs a test with a browser. Policy violations and script errors fail the test. */
export async function run(test) {
  const browser = await chromium.launch(launchOptions);
  const pages = [];
  const complaints = [];
  const open = async (screen = SCREENS[3], { isAttacked = false, ...options } = {}) => {
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

/** Signs in with the administrator key. */
export async function signIn(page, path = "/servers") {
  await page.goto(`${url}/sign-in?next=${encodeURIComponent(path)}`);
  await page.fill("#key", token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL(`${url}${path}`);
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
