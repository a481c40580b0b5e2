"""JSON lines, plain or compressed, with the numbers under which an editor shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dflash_lab.data.damage import naming_file

_CHUNK_BYTES = 1 << 22
_FOREIGN = {
    b"\xff\xfe\0\0": "text in UTF-32; legal: UTF-8",
    b"\0\0\xfe\xff": "text in UTF-32; legal: UTF-8",
    b"\xff\xfe": "text in UTF-16; legal: UTF-8",
    b"\xfe\xff": "text in UTF-16; legal: UTF-8",
    b"{\0": "text in UTF-16 or UTF-32; legal: UTF-8",
    b"\0{": "text in UTF-16; legal: UTF-8",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow IPC file",
    b"\x1f\x8b": "compressed by gzip; name it .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; name it .zst",
    b"PK\x03\x04": "a zip archive",
}
# What the decoder has not read when the text ends inside a literal, a number or an escape.
_BEGUN = re.compile(r"\s*|t(ru?)?|f(a(ls?)?)?|n(ul?)?|-|\.|[eE][+-]?|u[0-9a-fA-F]{0,4}")
_COMPRESSION = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class JsonLine:
    """One line that is not blank.

    Args:
        line_number: Physical line, from 1, blank lines counted.
        row_number: Number among the lines that are not blank, from 0.
        value: The object, or None where there is a problem.
        reason: Key of the problem: not_json, cut_off, not_an_object or duplicate_key.
        problem: What is wrong and what is legal.
        share_read: How much of the file has been read, in [0, 1].
    """

    line_number: int
    row_number: int
    value: dict[str, object] | None
    reason: str | None = None
    problem: str | None = None
    share_read: float = 1.0


class _Duplicate(ValueError):
    pass


def iter_json_lines(
    path: str | Path, *, allow_empty: bool = False, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[JsonLine]:
    """Give the lines of a JSONL file (also .gz and .zst) one by one; bad lines are given too, with their problem.

    A byte-order mark, CRLF, blank lines and a missing last line end are all right.

    Args:
        path: The file.
        allow_empty: Whether a file without any line is all right.
        chunk_bytes: How much is read at once; a small number suits whoever wants the first line only.

    Raises:
        ValueError: Naming the file, if it is a JSON array, another format, cut off inside its compression, or empty.
    """
    path = Path(path)
    row_number = 0
    for line_number, raw, ended, share in _raw_lines(path, chunk_bytes):
        if line_number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
            _check_start(path, raw)
        if not raw.strip():
            continue
        yield _parse(raw, ended, line_number, row_number, share)
        row_number += 1
    if not row_number and not allow_empty:
        raise ValueError(f"{path} holds no samples: the file is empty")


def _parse(raw: bytes, ended: bool, line_number: int, row_number: int, share: float) -> JsonLine:
    value, reason, problem = None, None, None
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant)
    except _Duplicate as error:
        reason, problem = "duplicate_key", f"the key {error} stands twice; legal: once"
    except RecursionError:
        reason, problem = "not_json", "not JSON: nested too deeply"
    except ValueError as error:
        reason, problem = "not_json", f"not JSON: {_words(error, raw)}"
        if not ended and _ends_early(error):
            reason, problem = "cut_off", f"the last line is cut off: {_words(error, raw)}"
    else:
        if not isinstance(value, dict):
            reason, problem = "not_an_object", f"the line is a {type(value).__name__}; legal: one JSON object"
            value = None
    return JsonLine(line_number, row_number, value, reason, problem, share)


def _ends_early(error: ValueError) -> bool:
    """Tell whether the text is the beginning of a JSON value that goes on."""
    if isinstance(error, UnicodeDecodeError):
        return error.reason == "unexpected end of data"
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or _BEGUN.fullmatch(error.doc, error.pos) is not None


def _words(error: ValueError, raw: bytes) -> str:
    """Say what is wrong without the decoder's own line number, which is always 1."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} of the line is 0x{raw[error.start]:02x}, {error.reason}; legal: UTF-8"
    if not isinstance(error, json.JSONDecodeError):
        return "a number has too many digits" if "int_max_str_digits" in str(error) else str(error)
    ends = "; lines end in a line feed" if b"\r" in raw.strip() else ""
    return f"{error.msg} at column {error.pos + 1}{ends}"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(repr(key))
            seen.add(key)
    return value


def _constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _check_start(path: Path, raw: bytes) -> None:
    for mark, what in _FOREIGN.items():
        if raw.startswith(mark):
            raise ValueError(f"{path} is not JSON lines but {what}")
    if raw.lstrip().startswith(b"["):
        raise ValueError(f"{path} begins with a JSON array; legal: JSON lines, one object a line without a list around")


def _raw_lines(path: Path, chunk_bytes: int) -> Iterator[tuple[int, bytes, bool, float]]:
    """Physical lines: number from 1, bytes, whether a line end followed, share of the file read."""
    number, rest = 0, []
    compression = _COMPRESSION.get(path.suffix.lower())
    kind = f"JSON lines compressed by {compression}" if compression else "JSON lines"
    with naming_file(path, kind), pa.OSFile(str(path)) as file:
        size = file.size()
        stream = pa.CompressedInputStream(file, compression) if compression and size else file
        while chunk := stream.read(chunk_bytes):
            share = min(file.tell() / size, 1.0)
            first, *lines = chunk.split(b"\n")
            rest.append(first)
            for line in lines:
                number += 1
                yield number, b"".join(rest), True, share
                rest = [line]
    if any(rest):
        yield number + 1, b"".join(rest), False, 1.0
