// An SDK client that calls one tool repeatedly and prints the outcome of each call. Arguments: MODULES SDK URL
const [modules, sdk, url] = process.argv.slice(2);
const at = (file) => import(`${modules}/@modelcontextprotocol/${file}`);
const { Client, StreamableHTTPClientTransport } =
  sdk === "sdk" ? { ...(await at("sdk/dist/esm/client/index.js")), ...(await at("sdk/dist/esm/client/streamableHttp.js")) } : await at("client/dist/index.mjs");

const client = new Client({ name: "walker", version: "1" });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
for (let n = 0; ; n++) {
  try {
    const { content } = await client.callTool({ name: "echo", arguments: { text: `<${n}>` } });
    console.log(JSON.stringify(content).includes(`<${n}>`) ? `ok ${n}` : `wrong ${JSON.stringify(content)}`);
  } catch (error) {
    console.log(`failed ${n}: ${error.message}`);
  }
}
