// A loose comparison of screenshots: the amount of detail in each cell of a grid, and the overall brightness. A changed number
// does not matter, but a page that lost its layout, styles or theme is detected.
import { existsSync, readFileSync, writeFileSync } from "node:fs";

import { url } from "./support.mjs";

const FILE = new URL("pictures.json", import.meta.url);
const COLUMNS = 24;
const ROWS = 16;
/** Thresholds for the spread of brightness in a cell (0 to 255), one per level of detail. */
const LEVELS = [2, 8, 20, 40];
/** Allowed difference of a cell in levels, share of cells that may differ by more, and allowed difference in brightness (0 to 255). */
const NEAR = 1;
const OTHERS = 0.15;
const BRIGHTNESS = 12;

const known = existsSync(FILE) ? JSON.parse(readFileSync(FILE, "utf8")) : {};

/** Returns the level of detail of each cell as digits, one line per row of the grid, and the overall brightness. */
async function grid(page) {
  const picture = (await page.screenshot({ animations: "disabled", caret: "hide" })).toString("base64");
  const drawer = await page.context().newPage();
  const drawn = await drawer.evaluate(
    async ({ picture, columns, rows, levels }) => {
      const image = new Image();
      image.src = `data:image/png;base64,${picture}`;
      await image.decode();
      const { width, height } = image;
      const pen = new OffscreenCanvas(width, height).getContext("2d");
      pen.drawImage(image, 0, 0);
      const { data } = pen.getImageData(0, 0, width, height);
      const cells = Array.from({ length: columns * rows }, () => ({ count: 0, sum: 0, squares: 0 }));
      for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
          const at = (y * width + x) * 4;
          const light = (data[at] + data[at + 1] + data[at + 2]) / 3;
          const cell = cells[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)];
          cell.count += 1;
          cell.sum += light;
          cell.squares += light * light;
        }
      }
      const spread = ({ count, sum, squares }) => Math.sqrt(Math.max(0, squares / count - (sum / count) ** 2));
      const digits = cells.map((cell) => levels.filter((level) => spread(cell) >= level).length);
      const brightness = Math.round(cells.reduce((sum, cell) => sum + cell.sum / cell.count, 0) / cells.length);
      return { brightness, cells: Array.from({ length: rows }, (_, row) => digits.slice(row * columns, (row + 1) * columns).join("")) };
    },
    { picture, columns: COLUMNS, rows: ROWS, levels: LEVELS },
  );
  await drawer.close();
  return drawn;
}

/** Compares a screenshot with the stored one. Returns a description of the difference, or undefined. */
export async function compare(page, name) {
  const drawn = await grid(page);
  if (process.env.TOOLWHARF_UPDATE === "1") {
    known[name] = drawn;
    const sorted = Object.fromEntries(Object.entries(known).sort(([one], [other]) => (one < other ? -1 : 1)));
    const lines = Object.entries(sorted).map(([name, { brightness, cells }]) => ` ${JSON.stringify(name)}: ${JSON.stringify({ brightness, cells })}`);
    writeFileSync(FILE, `{\n${lines.join(",\n")}\n}\n`);
    return undefined;
  }
  const expected = known[name];
  if (!expected) return `${name}: no picture is known; run the test with TOOLWHARF_UPDATE=1`;
  let others = 0;
  expected.cells.forEach((line, row) => [...line].forEach((cell, column) => (others += Math.abs(Number(cell) - Number(drawn.cells[row][column])) > NEAR ? 1 : 0)));
  const share = others / (COLUMNS * ROWS);
  const brighter = drawn.brightness - expected.brightness;
  if (process.env.TOOLWHARF_PICTURES) console.log(`${name}: ${(share * 100).toFixed(1)} % other, ${brighter} brighter`);
  if (share <= OTHERS && Math.abs(brighter) <= BRIGHTNESS) return undefined;
  return `${name}: ${(share * 100).toFixed(0)} % of the picture of ${page.url().slice(url.length)} is other, and it is ${brighter} brighter\n${drawn.cells.join("\n")}`;
}
