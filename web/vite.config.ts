import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

// The gateway for `npm run dev`, which serves the page itself and forwards all other requests.
const gateway = process.env["TOOLWHARF_URL"] ?? "http://127.0.0.1:6280";
const handed = { target: gateway, changeOrigin: true, headers: { origin: gateway } };
const proxy = Object.fromEntries(["/api", "/sign-in", "/sign-out", "/openapi.json", "/docs"].map((path) => [path, handed]));

// The browser version of this package decodes entities with `innerHTML`, which trusted types forbid.
const entities = createRequire(import.meta.url)
  .resolve("decode-named-character-reference")
  .replace(/index\.dom\.js$/, "index.js");

/** Writes `licenses/npm.txt`: the licences of all bundled packages, which require that. */
function licenses(): Plugin {
  return {
    name: "licenses",
    generateBundle(_, bundle) {
      // Its style sheet is not a module of a chunk.
      const folders = new Set([fileURLToPath(new URL("./node_modules/tailwindcss", import.meta.url))]);
      for (const file of Object.values(bundle)) {
        for (const id of file.type === "chunk" ? file.moduleIds : []) {
          const folder = /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id)?.[1];
          if (folder) folders.add(folder);
        }
      }
      const texts = [...folders].map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
        const files = readdirSync(folder).filter((file) => /^(licen[cs]e|notice)/i.test(file)).sort();
        const text = files.map((file) => readFileSync(`${folder}/${file}`, "utf8").trim()).join("\n\n");
        return `${name} ${version} (${license})\n\n${text || "The package has no text of its licence."}\n`;
      });
      this.emitFile({ type: "asset", fileName: "licenses/npm.txt", source: [...new Set(texts)].sort().join(`\n${"-".repeat(80)}\n\n`) });
    },
  };
}

export default defineConfig({
  // Relative addresses: a proxy may serve the gateway below a path. The gateway replaces those in the page (`console/mod.rs`).
  base: "./",
  plugins: [react(), tailwindcss(), licenses()],
  resolve: {
    alias: {
      "@": fileURLToPath(new URL("./src", import.meta.url)),
      // Imported by a test helper in @rjsf/core; ajv generates code at run time.
      "@rjsf/validator-ajv8": fileURLToPath(new URL("./src/form/validator.ts", import.meta.url)),
      "decode-named-character-reference": entities,
    },
  },
  build: { target: "chrome123", modulePreload: { polyfill: false }, assetsInlineLimit: 0, reportCompressedSize: false },
  preview: { proxy },
  server: { proxy },
});
