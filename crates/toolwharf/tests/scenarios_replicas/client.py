"""An SDK client that calls one tool repeatedly and prints the outcome of each call. Arguments: MODE URL"""

import asyncio
import sys

from mcp import Client


async def main(mode: str, url: str) -> None:
    async with Client(url, mode=mode) as client:
        number = 0
        while True:
            text = f"<{number}>"
            try:
                result = await client.call_tool("echo", {"text": text})
                print(f"ok {number}" if text in str(result.content) else f"wrong {result}", flush=True)
            except Exception as error:
                print(f"failed {number}: {error}", flush=True)
            number += 1


asyncio.run(main(*sys.argv[1:]))
