"""JSON lines, plain or compressed, with the numbers under which an editor shows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

_CHUNK_BYTES = 1 << 22
_FOREIGN = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow IPC file",
    b"\x1f\x8b": "compressed by gzip; name it .gz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; name it .zst",
    b"PK\x03\x04": "a zip archive",
}


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


def iter_json_lines(path: str | Path, *, allow_empty: bool = False) -> Iterator[JsonLine]:
    """Give the lines of a JSONL file (also .gz and .zst) one by one; bad lines are given too, with their problem.

    A byte-order mark, CRLF, blank lines and a missing last line end are all right.

    Args:
        path: The file.
        allow_empty: Whether a file without any line is all right.

    Raises:
        ValueError: Naming the file, if it is a JSON array, another format, cut off inside its compression, or empty.
    """
    path = Path(path)
    row_number = 0
    for line_number, raw, ended, share in _raw_lines(path):
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
        reason, problem = "not_json", f"not JSON: {error}"
        if not ended:
            reason, problem = "cut_off", f"the last line is cut off: {error}"
    else:
        if not isinstance(value, dict):
            reason, problem = "not_an_object", f"the line is a {type(value).__name__}; legal: one JSON object"
            value = None
    return JsonLine(line_number, row_number, value, reason, problem, share)


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


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes, bool, float]]:
    """Physical lines: number from 1, bytes, whether a line end followed, share of the file read."""
    size = max(path.stat().st_size, 1)
    number, rest = 0, b""
    try:
        with pa.OSFile(str(path)) as file:
            compressed = path.suffix in (".gz", ".zst") and size > 1
            stream = (
                pa.CompressedInputStream(file, {".gz": "gzip", ".zst": "zstd"}[path.suffix]) if compressed else file
            )
            while chunk := stream.read(_CHUNK_BYTES):
                share = min(file.tell() / size, 1.0)
                lines = chunk.split(b"\n")
                lines[0] = rest + lines[0]
                rest = lines.pop()
                for line in lines:
                    number += 1
                    yield number, line, True, share
    except OSError as error:
        raise ValueError(f"{path} is cut off or cannot be read: {error}") from error
    if rest:
        yield number + 1, rest, False, 1.0
