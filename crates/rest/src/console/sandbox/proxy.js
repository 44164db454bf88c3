// Relays messages between the console and an App (MCP Apps, 2026-01-26, "Sandbox proxy"). The App is in a frame with an opaque origin
// and has the policy of this page. Its messages are forwarded as plain JSON. Too many or too large messages close it.
"use strict";
const MAX_CHARS = 1 << 20;
const MAX_BURST = 200;
const MAX_PER_SECOND = 50;
const host = new URLSearchParams(location.search).get("host");
const tell = (method, params) => parent.postMessage({ jsonrpc: "2.0", method: `ui/notifications/${method}`, params }, host);
let frame;
let left = MAX_BURST;
let last = performance.now();

function close(reason) {
  frame.remove();
  tell("sandbox-closed", { reason });
}

function draw(html) {
  frame = document.createElement("iframe");
  frame.title = "App";
  frame.sandbox = "allow-scripts allow-forms";
  frame.srcdoc = html;
  let loads = 0;
  frame.addEventListener("load", () => loads++ && close("It left its page."));
  document.body.append(frame);
}

/** Forwards a message of the App as JSON. Drops anything else, and messages that only a proxy may send. */
function read(data) {
  const text = JSON.stringify(data);
  if (text?.length > MAX_CHARS) return close("It sent a message of more than a million characters.");
  const message = JSON.parse(text ?? "null");
  if (message?.jsonrpc === "2.0" && !String(message.method).startsWith("ui/notifications/sandbox-")) parent.postMessage(message, host);
}

addEventListener("message", ({ source, origin, data }) => {
  if (source === parent && origin === host) {
    if (data?.method !== "ui/notifications/sandbox-resource-ready") frame?.contentWindow?.postMessage(data, "*");
    else if (!frame) draw(String(data.params.html));
  } else if (frame?.contentWindow && source === frame.contentWindow && origin === "null") {
    const now = performance.now();
    left = Math.min(MAX_BURST, left + ((now - last) / 1000) * MAX_PER_SECOND) - 1;
    last = now;
    if (left < 0) return close("It sent too many messages.");
    try {
      read(data);
    } catch {
      // Not JSON: dropped.
    }
  }
});
tell("sandbox-proxy-ready", {});
