// Pictures of pages, compared loosely: by the brightness of a coarse grid, so that a number more or less does not matter and a page that
// lost its layout, its styles or its theme does.
import { existsSync, readFileSync, writeFileSync } from "node:fs";

import { url } from "./support.mjs";

const FILE = new URL("pictures.json", import.meta.url);
const COLUMNS = 24;
const ROWS = 16;
/** Brightness from 0 to 9 that a cell may differ by, and the share of cells that may differ by more. */
const NEAR = 1;
const OTHERS = 0.12;

const known = existsSync(FILE) ? JSON.parse(readFileSync(FILE, "utf8")) : {};

/** The brightness of each cell, as digits, a line for each row of the grid. */
async function grid(page) {
  const picture = (await page.screenshot({ animations: "disabled", caret: "hide" })).toString("base64");
  const drawer = await page.context().newPage();
  const cells = await drawer.evaluate(
    async ({ picture, columns, rows }) => {
      const image = new Image();
      image.src = `data:image/png;base64,${picture}`;
      await image.decode();
      const canvas = new OffscreenCanvas(columns, rows);
      const pen = canvas.getContext("2d");
      pen.imageSmoothingQuality = "high";
      pen.drawImage(image, 0, 0, columns, rows);
      const { data } = pen.getImageData(0, 0, columns, rows);
      return Array.from({ length: columns * rows }, (_, at) => (data[at * 4] + data[at * 4 + 1] + data[at * 4 + 2]) / 3);
    },
    { picture, columns: COLUMNS, rows: ROWS },
  );
  await drawer.close();
  return Array.from({ length: ROWS }, (_, row) => cells.slice(row * COLUMNS, (row + 1) * COLUMNS).map((cell) => Math.round((cell / 255) * 9)).join(""));
}

/** Compares the page's picture with the known one of this name; answers with the difference, or nothing if it is the same page. */
export async function compare(page, name) {
  const drawn = await grid(page);
  if (process.env.TOOLWHARF_UPDATE === "1") {
    known[name] = drawn;
    const sorted = Object.fromEntries(Object.entries(known).sort(([one], [other]) => (one < other ? -1 : 1)));
    writeFileSync(FILE, `${JSON.stringify(sorted, null, 1)}\n`);
    return undefined;
  }
  const expected = known[name];
  if (!expected) return `${name}: no picture is known; run the test with TOOLWHARF_UPDATE=1`;
  let others = 0;
  expected.forEach((line, row) => [...line].forEach((cell, column) => (others += Math.abs(Number(cell) - Number(drawn[row][column])) > NEAR ? 1 : 0)));
  const share = others / (COLUMNS * ROWS);
  return share > OTHERS ? `${name}: ${(share * 100).toFixed(0)} % of the picture of ${page.url().slice(url.length)} is other\n${drawn.join("\n")}` : undefined;
}
