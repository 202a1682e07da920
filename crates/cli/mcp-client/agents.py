"""Two agents share a key and some files. Fails at the first answer that is not as it should be."""

import asyncio
import re
import sys

from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters

LOCKD, URL, FOLDER = sys.argv[1:]
TOOLS = {"manifest", "acquire", "release", "who_holds", "reconcile", "state_get", "state_update"}


def agent(mode):
    """The identity file is found in the folder, as a client that names none finds it."""
    args = ["mcp", "--server", URL, "--root", "/repo"]
    return Client(StdioServerParameters(command=LOCKD, args=args, cwd=FOLDER), mode=mode, read_timeout_seconds=120)


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    return not result.is_error, result.content[0].text


async def expect(done, words, client, tool, **arguments):
    got, text = await call(client, tool, **arguments)
    assert got == done and words in text, f"{tool} {arguments}: {text}"
    return text


async def work(mode):
    async with agent(mode) as bob:
        async with agent(mode) as ada:
            assert "GRANTED" in ada.instructions, ada.instructions
            tools = {tool.name: tool for tool in (await ada.list_tools()).tools}
            assert set(tools) == TOOLS, sorted(tools)
            for tool in tools.values():
                assert tool.description, tool.name
                Draft202012Validator.check_schema(tool.input_schema)

            await expect(True, "you hold KEY:orders", ada, "acquire", key="orders")
            await expect(True, "HELD: KEY:orders", bob, "who_holds", object="KEY:orders")
            await expect(False, "NEXT: call again with wait_seconds", bob, "acquire", key="orders")
            await expect(True, "version=", ada, "state_update", key="orders", document='{"step": 1}')
            await expect(True, '{"step":1}', bob, "state_get", key="orders")
            await expect(False, "NEXT: acquire it", bob, "state_update", key="orders", document="{}")

            mine = [{"predicate": "MUTATES", "object": "FILE:src/a.rs"}]
            await expect(True, "MUTATES FILE:/repo/src/a.rs", ada, "manifest", intents=mine, reason="a field")
            theirs = [{"predicate": "CONSUMES", "object": "FILE:src/*"}]
            died = await expect(False, 'reason="a field"', bob, "manifest", intents=theirs)
            attempt = re.search(r"^attempt_id=(\S+)$", died, re.MULTILINE).group(1)

            waiting = asyncio.create_task(
                call(bob, "manifest", intents=theirs, attempt_id=attempt, wait_seconds=45)
            )
            await expect(True, "RELEASED handle=2", ada, "release", handle=2)
            done, text = await waiting
            assert done and "CONSUMES FILE:/repo/src/*" in text, text
            await expect(True, "HELD: handle=1 over KEY:orders", ada, "reconcile")
        # The connection ended with the key held.
        await expect(True, "FREE: nobody holds KEY:orders", bob, "who_holds", object="KEY:orders")
        print(f"{mode}: protocol {bob.protocol_version}, all as it should be")


async def main():
    # As clients of this year begin, and as those before.
    for mode in ("auto", "legacy"):
        await work(mode)


asyncio.run(main())
