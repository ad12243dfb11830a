"""Lines of bytes between processes: read with a limit, written in order."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from rollcage_mcp.errors import MessageInvalid

__all__ = ["LONGEST", "LineWriter", "lines", "reader_of", "writer_of"]

LONGEST: Final = 64 * 1024 * 1024  # bytes of a message


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream that are not empty, without their ends.

    Raises:
        MessageInvalid: a line is longer than the reader's limit.
    """
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial  # the last line may have no end
            if not line:
                return
        except asyncio.LimitOverrunError as error:
            raise MessageInvalid(
                f"a message is longer than {LONGEST // 2**20} MiB; {error.consumed} bytes were read"
            ) from None
        line = line.rstrip(b"\r\n")
        if line:
            yield line


class LineWriter:
    """Writes messages, each as a line, as a whole and in order; waits for slow readers."""

    def __init__(self, stream: asyncio.StreamWriter) -> None:
        self._stream = stream

    async def write(self, raw: bytes) -> None:
        """Write one message.

        Raises:
            ConnectionError: there is no reader any more.
        """
        if b"\n" in raw:  # within JSON, a line break is white space
            raw = raw.replace(b"\r", b" ").replace(b"\n", b" ")
        self._stream.write(raw + b"\n")
        await self._stream.drain()

    def close(self) -> None:
        """Write no more."""
        self._stream.close()


async def reader_of(file: BinaryIO, limit: int = LONGEST) -> asyncio.StreamReader:
    """Return a file of this process as a stream: pipe, socket, terminal, disk file, `/dev/null`."""
    reader = asyncio.StreamReader(limit=limit)
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not file.isatty()):
        # An event loop can't wait for these: a file, or /dev/null.
        reader.feed_data(file.read())
        reader.feed_eof()
        return reader
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


async def writer_of(file: BinaryIO) -> LineWriter:
    """Return a file of this process as a stream to write to.

    Raises:
        ValueError: the file is neither a pipe nor a socket nor a terminal.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    return LineWriter(asyncio.StreamWriter(transport, protocol, None, loop))
