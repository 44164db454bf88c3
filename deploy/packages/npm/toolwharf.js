#!/usr/bin/env node
// Starts the program in the package for this platform, which npm installs as an optional dependency.
"use strict";

const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const platform = `@toolwharf/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${platform}/bin/toolwharf`);
} catch {
  console.error(
    process.platform === "linux" && ["x64", "arm64"].includes(process.arch)
      ? `error: the package ${platform} is missing. Install again without --omit=optional; on a system with musl ` +
          "instead of glibc, such as Alpine, use the container image"
      : `error: there is no program for ${process.platform} on ${process.arch}. On Windows, run this in WSL; on ` +
          "macOS, use the container image",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
for (const signal of ["SIGHUP", "SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    // A terminal sends Ctrl-C to both.
    if (signal !== "SIGINT" || !process.stdin.isTTY) child.kill(signal);
  });
}
child.on("error", (error) => {
  console.error(`error: cannot start ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
