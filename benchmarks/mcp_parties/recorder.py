"""Pass each line on and append it to a file, without reading it: the raw recorder.

    python recorder.py FILE COMMAND...

Each line is one `write` to the file, without fsync, like Rollcage's own log by default.
"""

import asyncio
import os
import sys


async def main(path: str, *command: str) -> None:
    """Pass lines both ways until the client closes its side."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert server.stdin is not None
    assert server.stdout is not None
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, sys.stdout
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while line := await source.readline():
            os.write(file, line)
            target.write(line)
            await target.drain()

    back = asyncio.create_task(pass_on(server.stdout, writer))
    await pass_on(reader, server.stdin)
    server.stdin.close()
    await server.wait()
    await back


asyncio.run(main(*sys.argv[1:]))
