#!/usr/bin/python3
"""The programs `notes-server` and `search-server`, which the pages use as examples.

`search-server` reads the description of its tool `query` from `~/.search`, if that file exists.
"""

import json, os, sys

NOTE = "/notes/one"


def tool(name, description, *arguments):
    properties = {argument: {"type": "string"} for argument in arguments}
    return {"name": name, "description": description, "inputSchema": {"type": "object", "properties": properties}}


def described():
    try:
        with open(os.path.expanduser("~/.search")) as file:
            return file.read().strip()
    except OSError:
        return "Finds products"


if os.path.basename(sys.argv[0]).startswith("notes"):
    tools = [
        tool("list", "Lists the notes"),
        tool("read", "Reads a note", "path"),
        tool("write", "Writes a note", "path", "text"),
        tool("remove", "Removes a note", "path"),
    ]
else:
    tools = [tool("query", described(), "text"), tool("delete_all", "Removes all products")]

print("ready", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    params = message.get("params") or {}
    results = {
        "initialize": {
            "protocolVersion": params.get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "example", "version": "1"},
        },
        "ping": {},
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": "hello"}]},
    }
    result = results.get(message["method"])
    answer = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
    answer = {"jsonrpc": "2.0", "id": message["id"], **answer}
    print(json.dumps(answer, separators=(",", ":")), flush=True)
