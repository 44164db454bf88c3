"""Builds one version of a package for npm and PyPI, in the folder that the registry serves. Arguments: NAME VERSION TOOLS URL."""

import base64, glob, hashlib, io, json, os, sys, tarfile, zipfile

name, version, tools, url = sys.argv[1:]
for folder in ["files", f"simple/{name}"]:
    os.makedirs(folder, exist_ok=True)

SCRIPT = """#!/usr/bin/env node
const tools = %s, version = %s;
require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    'initialize': { protocolVersion: params && params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 'tiny', version } },
    'tools/list': { tools },
    'tools/call': { content: [{ type: 'text', text: version }] },
  };
  const answer = results[method] ? { result: results[method] } : { error: { code: -32601, message: 'Method not found' } };
  process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, ...answer }) + '\\n');
});
""" % (tools, json.dumps(version))

MODULE = """import json, sys
tools, version = json.loads(%r), %r
def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        results = {
            "initialize": {"protocolVersion": message.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}}, "serverInfo": {"name": "tiny", "version": version}},
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": version}]},
        }
        result = results.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "Method not found"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
""" % (tools, version)

# npm: the package and its registry metadata.
manifest = {"name": name, "version": version, "bin": {name: "index.js"}}
archive = f"files/{name}-{version}.tgz"
with tarfile.open(archive, "w:gz") as tar:
    for path, text in [("package.json", json.dumps(manifest)), ("index.js", SCRIPT)]:
        info = tarfile.TarInfo(f"package/{path}")
        info.size, info.mode = len(text.encode()), 0o755
        tar.addfile(info, io.BytesIO(text.encode()))
content = open(archive, "rb").read()
manifest["dist"] = {
    "tarball": f"{url}/{archive}",
    "shasum": hashlib.sha1(content).hexdigest(),
    "integrity": "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode(),
}
package = json.load(open(name)) if os.path.exists(name) else {"name": name, "versions": {}}
package["versions"][version] = manifest
package["dist-tags"] = {"latest": max(package["versions"])}
with open(name, "w") as file:
    json.dump(package, file)

# PyPI: a wheel and the index.
module = name.replace("-", "_")
info = f"{module}-{version}.dist-info"
with zipfile.ZipFile(f"files/{module}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{module}.py", MODULE)
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {module}:main\n")
    wheel.writestr(f"{info}/RECORD", "\n".join(f"{path},," for path in wheel.namelist() + [f"{info}/RECORD"]))
with open(f"simple/{name}/index.html", "w") as page:
    links = [f'<a href="/{wheel}">{os.path.basename(wheel)}</a>\n' for wheel in sorted(glob.glob("files/*.whl"))]
    page.write(f"<!DOCTYPE html><html><body>\n{''.join(links)}</body></html>")
