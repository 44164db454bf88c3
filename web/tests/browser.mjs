// A browser for Rust tests (`testkit::Browser`): Debian's Chromium without a window, driven by Playwright. Each line on stdin is a request
// `{id, method, params}`; each line on stdout is its answer, `{id, result}` or `{id, error}`. It ends with stdin.
import { createInterface } from "node:readline";

import { chromium } from "playwright-core";

import { launchOptions } from "./launch.mjs";

/** Timeout of a step, less than the time that the test waits for the answer. */
const PATIENCE_MS = 25_000;

// With a profile of its own, as a user's browser has one. An empty name is a new folder in TMPDIR.
const context = await chromium.launchPersistentContext("", { ...launchOptions, viewport: { width: 1200, height: 900 } });
const [page] = context.pages();
page.setDefaultTimeout(PATIENCE_MS);
const complaints = [];
page.on("pageerror", (error) => complaints.push(error.message));
page.on("console", (message) => message.type() === "error" && complaints.push(`${message.location().url} ${message.text()}`));
const inspector = await context.newCDPSession(page);

/** Evaluates an expression in the page, whatever its policy says. */
const evaluate = async (expression) => {
  const { result, exceptionDetails } = await inspector.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
};

const steps = {
  go: async (url) => {
    await page.goto(url, { waitUntil: "commit" });
    await page.waitForLoadState();
  },
  eval: evaluate,
  wait: async (expression) => {
    const end = Date.now() + PATIENCE_MS;
    // During a navigation there is no page to evaluate in.
    while (!(await evaluate(`Boolean(${expression})`).catch(() => false))) {
      if (Date.now() > end) throw new Error(`timed out waiting for ${expression}`);
      await new Promise((done) => setTimeout(done, 20));
    }
  },
  click: (selector) => page.click(selector),
  type: async (selector, text) => {
    await page.locator(selector).press("End");
    await page.keyboard.type(text);
  },
  screen: async (width, colorScheme) => {
    await page.setViewportSize({ width, height: 900 });
    await page.emulateMedia({ colorScheme });
  },
  screenshot: async (path) => void (await page.screenshot({ path })),
  complaints: () => complaints.splice(0),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line);
  let answer;
  try {
    answer = { id, result: (await steps[method](...params)) ?? null };
  } catch (error) {
    const text = await evaluate("document.body.innerText").catch(() => "");
    answer = { id, error: `${error}; the page: ${page.url()}\n${text}` };
  }
  console.log(JSON.stringify(answer));
}
await context.close();
