"""The content of a file: its format, and its spans."""

from __future__ import annotations

import codecs
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

import orjson
from rollcage.errors import RollcageError

from rollcage_import.langfuse import langfuse_spans
from rollcage_import.langsmith import langsmith_spans
from rollcage_import.otel import otel_spans
from rollcage_import.spans import Span

__all__ = ["FORMATS", "Format", "Unreadable", "read_spans"]

Format = Literal["otel", "langfuse", "langsmith"]
"""The formats of an import."""
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_READ: Final[dict[Format, Callable[[Any, Counter[str]], Iterator[Span]]]] = {
    "otel": otel_spans,
    "langfuse": langfuse_spans,
    "langsmith": langsmith_spans,
}
_LARGEST: Final = 512 * 1024 * 1024  # bytes of a file
_MOST: Final = 500_000  # spans in it
_LENGTH: Final = struct.Struct(">I")  # before each message, in files of the collector


class Unreadable(RollcageError):
    """A file can't be imported; the message says why."""

    code = "import_unreadable"


def read_spans(
    path: Path, format_: Format | None, skipped: Counter[str]
) -> tuple[Format, list[Span]]:
    """Return the spans of a file, and its format: given, or detected.

    Args:
        path: JSON, a line of JSON for each document, or OTLP as protobuf.
        format_: of its documents.
        skipped: counts the parts that are no spans, by reason.

    Raises:
        Unreadable: the file can't be read, is too large, is not UTF-8, or of no known format; or
            it holds protobuf, and the library that reads it is not installed.
    """
    data = _bytes(path).removeprefix(codecs.BOM_UTF8)  # as Windows' tools write it
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unreadable(f"{path} is text in UTF-16: save it as UTF-8")
    spans: list[Span] = []
    if data.lstrip()[:1] not in (b"", b"{", b"["):
        if format_ not in (None, "otel"):
            raise Unreadable(f"{path} holds no JSON, as an export of {format_} does")
        for document in _protobuf(path, data):
            _take(spans, otel_spans(document, skipped, base64_ids=True), path)
        return "otel", spans
    for document in _documents(path, data, skipped):
        found = format_ or _format_of(document)
        if found is None:
            skipped["a document of no known format"] += 1
            continue
        format_ = found
        _take(spans, _READ[found](document, skipped), path)
    if format_ is None:
        raise Unreadable(
            f"{path} has no known format: it should hold OTLP (`resourceSpans`), an export "
            f"of Langfuse (`observations`) or runs of LangSmith (`run_type`), as JSON or JSON lines"
        )
    return format_, spans


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _LARGEST:
                raise Unreadable(
                    f"{path} has {size:,} bytes; {_LARGEST:,} are read at most: split it"
                )
            return file.read(_LARGEST)
    except OSError as error:
        raise Unreadable(f"{path} can't be read: {error.strerror}") from None


def _take(spans: list[Span], found: Iterator[Span], path: Path) -> None:
    for span in found:
        spans.append(span)
        if len(spans) > _MOST:
            raise Unreadable(f"{path} holds more than {_MOST:,} spans: split it")


def _documents(path: Path, data: bytes, skipped: Counter[str]) -> Iterator[Any]:
    """Yield the whole as one document, or else each line.

    Raises:
        Unreadable: neither the whole nor any of its lines is JSON.
    """
    try:
        yield orjson.loads(data)
        return
    except orjson.JSONDecodeError as error:
        wrong = _wrong(data, error)
    read = 0
    for line in data.splitlines():
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            skipped["a line that is not JSON"] += 1
            continue
        read += 1
        yield document
    if not read:
        raise Unreadable(f"{path} can't be read as JSON: {wrong}")


def _wrong(data: bytes, error: orjson.JSONDecodeError) -> str:
    """Return why a file is not JSON, and where."""
    try:
        data.decode()
    except UnicodeDecodeError as no_text:
        line = data.count(b"\n", 0, no_text.start) + 1
        return f"byte {no_text.start + 1:,}, in line {line:,}, is not valid UTF-8"
    return str(error) if data.strip() else "it is empty"


def _format_of(document: Any) -> Format | None:
    """Return the format of a document, by its first object."""
    first = document
    while isinstance(first, list) and first:
        first = first[0]
    if not isinstance(first, dict):
        return None
    for inner in ("data", "runs"):
        inside = first.get(inner)
        if isinstance(inside, list) and inside and isinstance(inside[0], dict):
            first = inside[0]
    if "resourceSpans" in first:
        return "otel"
    if "run_type" in first:
        return "langsmith"
    observation = "type" in first and ("traceId" in first or "trace_id" in first)
    return "langfuse" if observation or "observations" in first else None


def _protobuf(path: Path, data: bytes) -> Iterator[Any]:
    """Yield messages of OTLP: a single one, or each after its length (the collector's form)."""
    try:
        # protobuf comes without types
        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
    except ImportError:
        raise Unreadable(
            f"{path} holds no JSON; to read it as protobuf: pip install 'rollcage-import[protobuf]'"
        ) from None
    parts = list(_framed(data)) if data[:1] == b"\0" else [data]
    for part in parts:
        try:
            yield MessageToDict(TracesData.FromString(part))
        except (DecodeError, ValueError, RecursionError) as error:
            raise Unreadable(f"{path} holds neither JSON nor OTLP as protobuf: {error}") from None


def _framed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        yield data[at : at + size]
        at += size
