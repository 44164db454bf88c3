import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

import tailwindcss from "@tailwindcss/vite";
import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// A gateway for `npm run dev`, which serves this page itself and hands everything else on.
const gateway = process.env["TOOLWHARF_URL"] ?? "http://127.0.0.1:6280";
const handed = { target: gateway, changeOrigin: true, headers: { origin: gateway } };
const proxy = Object.fromEntries(["/api", "/sign-in", "/sign-out", "/openapi.json", "/docs"].map((path) => [path, handed]));

// The version of the package for browsers decodes entities with `innerHTML`, which trusted types refuse.
const entities = createRequire(import.meta.url)
  .resolve("decode-named-character-reference")
  .replace(/index\.dom\.js$/, "index.js");

export default defineConfig({
  plugins: [react(), tailwindcss()],
  resolve: {
    alias: {
      "@": fileURLToPath(new URL("./src", import.meta.url)),
      // A helper for tests in @rjsf/core imports it; ajv makes code at run time.
      "@rjsf/validator-ajv8": fileURLToPath(new URL("./src/form/validator.ts", import.meta.url)),
      "decode-named-character-reference": entities,
    },
  },
  build: { target: "chrome123", modulePreload: { polyfill: false }, assetsInlineLimit: 0, reportCompressedSize: false },
  preview: { proxy },
  server: { proxy },
});
