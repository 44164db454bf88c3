// Every page in both sizes and themes: axe finds nothing, nothing scrolls sideways, and it looks unchanged. Then the main tasks by keyboard alone.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

import { compare } from "./pictures.mjs";
import { api, assert, call, find, run, SCREENS, url } from "./support.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const soak = process.env.TOOLWHARF_SOAK === "1";

await run(async (open) => {
  await call("everything", "echo", { message: "hello" });
  await api("PUT", "/projects/shop", { name: "The shop" });
  const id = (await api("GET", "/calls")).body.calls[0].id;
  const pages = {
    "/servers": "Servers",
    "/servers/everything": "everything",
    "/servers/everything?tab=resources": "Resources (",
    "/servers/hopeless?tab=events": "Events",
    "/servers/hopeless?tab=logs": "lines",
    "/servers/everything?tab=configuration": "Effective configuration",
    "/servers/everything?tab=isolation": "has no sandbox",
    "/tools": "Tools",
    "/tools?server=everything&tool=get-sum": "Returns the sum",
    "/tools/find": "Type a task",
    "/tools/find?q=get-sum": "best first",
    "/tools/find?project=shop": "No tools yet",
    "/calls": "everything/",
    [`/calls/${id}`]: "Timeline",
    "/approvals": "Nothing to approve",
    "/projects": "The shop",
    "/projects/shop?tab=keys": "Keys",
    "/projects/shop?tab=settings": "Remove this project",
    "/keys": "administrator",
    "/install?by=hand": "Entry",
    "/install": "npm",
    "/connect": "Endpoint",
    "/health": "hopeless",
    "/settings": "limits.",
    "/chat": "No model is configured",
    "/sign-in": "signs you in without one",
    "/no/such/page": "Page not found",
  };
  /** Words of ours that users do not know. */
  const unclear = /\bat rest\b|restarting later|in line,|intent written|client's frame|who has it|\w+-\d \*|\bundefined\b|\[object/i;
  const all = [];
  // Only two of the four combinations in a short run.
  for (const screen of soak ? SCREENS : [SCREENS[0], SCREENS[3]]) {
    const page = await open("/servers", { screen });
    for (const [path, text] of Object.entries(pages)) {
      const name = `${screen.name} ${path.replace(id, "CALL")}`;
      await page.goto(url + path);
      await page.locator("main").getByText(text).filter({ visible: true }).first().waitFor();
      await page.waitForFunction(() => !document.querySelector("main :is([aria-busy=true], .skeleton)"));
      // The events and logs of the crashing server grow with time.
      const other = path.includes("hopeless") ? undefined : await compare(page, name);
      if (other) all.push(other);
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }));
      const broken = found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ""}`).slice(0, 3).join("; ")}`);
      const said = unclear.exec(await page.locator("body").innerText());
      if (said) broken.push(`it says ${said[0]}`);
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) broken.push("it scrolls sideways");
      all.push(...broken.map((one) => `${screen.name} ${path}: ${one}`));
    }
    await page.close();
  }
  assert.deepEqual(all, []);

  // Without a mouse: a server is found, restarted and opened; a tool is run.
  const page = await open("/servers");
  const everything = page.getByRole("list", { name: "Servers" }).getByRole("listitem").filter({ hasText: "everything" });
  await everything.getByText("Running").waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("everyth");
  await page.getByRole("listitem").filter({ hasText: "hopeless" }).waitFor({ state: "detached" });
  await page.keyboard.press("Tab");
  for (let tabs = 0; tabs < 40 && !(await page.evaluate(() => document.activeElement.matches("li a"))); tabs++) await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForURL(`${url}/servers/everything`);
  const before = (await api("GET", "/mcp/servers/everything")).body.starts;
  await find(page, "restart everything", "Restart everything");
  await page.getByText("everything is restarted.").waitFor();
  assert.ok((await api("GET", "/mcp/servers/everything")).body.starts > before);
  await find(page, "get-sum", /get-sum/);
  await page.getByRole("heading", { level: 2, name: "get-sum" }).waitFor();
  const field = page.getByLabel(/^a \*/);
  await field.waitFor();
  for (let tabs = 0; tabs < 60 && !(await field.evaluate((node) => node === document.activeElement)); tabs++) await page.keyboard.press("Tab");
  await page.keyboard.type("2");
  await page.keyboard.press("Tab");
  await page.keyboard.type("3");
  await page.keyboard.press("Enter");
  await page.getByText("The sum of 2 and 3 is 5.").waitFor();
});
