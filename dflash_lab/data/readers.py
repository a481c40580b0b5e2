"""The one place where sample files are found and read: every format becomes blocks of checked rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_lab.data.arrow_rows import check_schema, checked_blocks
from dflash_lab.data.lines import iter_json_lines
from dflash_lab.data.rows import BLOCK_ROWS, BLOCK_TOKENS, BadRow, CheckedRow, RowBlock, RowProblem, check_row
from dflash_lab.data.store import block_of, is_mappable, record_batches

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_SUFFIXES = {**dict.fromkeys(_JSON_SUFFIXES, "json"), ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
LEGAL_FILES = ".jsonl, .ndjson, .json (also with .gz or .zst), .parquet, .arrow, .feather"
_PARQUET_BATCH_BYTES = 16_000_000


@dataclass(frozen=True)
class SourceFiles:
    """The files of one source, in the order of their rows.

    Args:
        path: What the user named.
        files: The files to read.
        ignored: Files beside them that hold no samples.
        split: The split that was chosen, if there are several.
    """

    path: Path
    files: tuple[Path, ...]
    ignored: tuple[Path, ...] = ()
    split: str | None = None

    def state(self) -> list[list[object]]:
        """Name, size and times of every file: changes when a file does."""
        rows: list[list[object]] = []
        for file in self.files:
            status = file.stat()
            rows.append(
                [str(file.relative_to(self.path.parent)), status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            )
        return rows


def find_files(path: str | Path, *, split: str | None = None) -> SourceFiles:
    """Find the sample files under a path.

    Args:
        path: A file, a folder of shards (read in the order of their names, subfolders too; names that begin with a
            dot or an underscore are not data), or a folder written by `save_to_disk` of Hugging Face datasets.
        split: The split of a saved DatasetDict.

    Returns:
        The files.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If there is nothing to read, a listed file is missing, or the split is not there.
    """
    path = Path(path).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; legal: a file ({LEGAL_FILES}) or a folder of such files")
    if (path / "dataset_dict.json").is_file():
        splits = _read_json(path / "dataset_dict.json").get("splits", [])
        if split not in splits:
            raise ValueError(
                f"{path} is a saved DatasetDict and split is {split!r}; legal: one of {', '.join(map(repr, splits))}"
            )
        return replace(_saved_dataset(path / split), path=path, split=split)
    if split is not None:
        raise ValueError(f"split is {split!r}, but {path} is not a saved DatasetDict; leave split out")
    if path.is_file():
        if file_format(path) is None:
            raise ValueError(f"{path} has no known file name ending; legal: {LEGAL_FILES}")
        return SourceFiles(path, (path,))
    if (path / "state.json").is_file():
        return _saved_dataset(path)
    saved = [inner.parent.name for inner in sorted(path.glob("*/state.json"))]
    if saved:
        raise ValueError(f"{path} holds several saved data sets ({', '.join(saved)}); open one of them")
    every = sorted(
        (file for file in path.rglob("*") if file.is_file()), key=lambda file: file.relative_to(path).as_posix()
    )
    shown = [file for file in every if not any(part[0] in "._" for part in file.relative_to(path).parts)]
    files = tuple(file for file in shown if file_format(file))
    if not files:
        raise ValueError(f"{path} holds no samples: no file in it ends in {LEGAL_FILES}")
    return SourceFiles(path, files, tuple(file for file in shown if file not in set(files)))


def file_format(path: Path) -> str | None:
    """Tell "json", "parquet" or "arrow" by the name's ending, None for any other."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if len(suffixes) > 1 and suffixes[-1] in (".gz", ".zst"):
        return "json" if suffixes[-2] in _JSON_SUFFIXES else None
    return _SUFFIXES.get(suffixes[-1]) if suffixes else None


def can_map(source: SourceFiles, columns: Mapping[str, str | None]) -> bool:
    """Tell whether rows can be read in place: Arrow IPC, plain lists of numbers, not compressed."""
    if any(file_format(file) != "arrow" for file in source.files):
        return False
    return all(is_mappable(file, str(columns["input_ids"]), str(columns["loss_mask"])) for file in source.files)


def read_blocks(source: SourceFiles, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    """Read a source once, in bounded memory, as blocks of checked rows with bad rows among them.

    Args:
        source: From `find_files`.
        columns: From `canonical_columns`.

    Raises:
        ValueError: If a file is cut off, foreign, or lacks a column; the message names it.
    """
    sizes = [max(file.stat().st_size, 1) for file in source.files]
    first_row = 0
    for number, file in enumerate(source.files):
        before, share = sum(sizes[:number]) / sum(sizes), sizes[number] / sum(sizes)
        for block in _READ[str(file_format(file))](file, first_row, columns):
            first_row += block.num_rows
            yield replace(block, share_read=before + share * block.share_read, file=str(file))


def blocks_of_rows(rows: Iterable[object], columns: Mapping[str, str | None], *, name: str) -> Iterator[RowBlock]:
    """Check rows given as mappings; `name` stands for a file name in messages."""
    gathered = _Gathered(0)
    for number, row in enumerate(rows):
        problem = None
        if not isinstance(row, Mapping):
            problem = RowProblem("not_an_object", f"the row is a {type(row).__name__}; legal: a mapping")
        gathered.add(row, problem, f"{name}, row {number}", columns)
        if gathered.full:
            yield replace(gathered.block(), file=name)
    yield replace(gathered.block(), file=name)


def blocks_of_tables(
    tables: Iterable[pa.Table | pa.RecordBatch], columns: Mapping[str, str | None], *, name: str
) -> Iterator[RowBlock]:
    """Check rows given as Arrow tables of one schema; `name` stands for a file name in messages."""
    first_row = 0
    for table in tables:
        check_schema(table.schema, columns, name)
        for batch in table.to_batches() if isinstance(table, pa.Table) else [table]:
            for block in checked_blocks(batch, columns, first_row, lambda row: f"{name}, row {row}"):
                yield replace(block, file=name)
                first_row += block.num_rows


class _Gathered:
    """Rows on their way into a block, the first of them with the number `first_row`."""

    def __init__(self, first_row: int) -> None:
        self._start(first_row)

    def _start(self, first_row: int) -> None:
        self._first_row = first_row
        self._rows: list[CheckedRow] = []
        self._row_numbers: list[int] = []
        self._line_numbers: list[int] = []
        self._bad: list[BadRow] = []
        self._num_tokens = self._num_rows = 0

    @property
    def full(self) -> bool:
        return self._num_rows >= BLOCK_ROWS or self._num_tokens >= BLOCK_TOKENS

    def add(
        self, value: object, problem: RowProblem | None, place: str, columns: Mapping[str, str | None], line: int = -1
    ) -> None:
        """Take a row with the problem it already has, or check it."""
        number = self._first_row + self._num_rows
        self._num_rows += 1
        try:
            if problem is not None:
                raise problem
            row = check_row(value, columns)  # type: ignore[arg-type]
        except RowProblem as found:
            self._bad.append(BadRow(number, found.reason, f"{place}: {found}"))
            return
        self._rows.append(row)
        self._row_numbers.append(number)
        self._line_numbers.append(line)
        self._num_tokens += len(row.input_ids)

    def block(self, share_read: float = 1.0) -> RowBlock:
        """Give what has been gathered and start anew."""
        block = block_of(
            self._rows,
            np.asarray(self._row_numbers, dtype=np.int64),
            line_numbers=np.asarray(self._line_numbers, dtype=np.int64),
            bad=tuple(self._bad),
            num_rows=self._num_rows,
            share_read=share_read,
        )
        self._start(self._first_row + self._num_rows)
        return block


def _read_json_lines(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    gathered = _Gathered(first_row)
    share = 1.0
    for line in iter_json_lines(path, allow_empty=True):
        problem = RowProblem(str(line.reason), str(line.problem)) if line.reason else None
        gathered.add(line.value, problem, f"{path}, line {line.line_number}", columns, line.line_number)
        share = line.share_read
        if gathered.full:
            yield gathered.block(share)
    yield gathered.block()


def _read_arrow(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    size, seen, row = max(path.stat().st_size, 1), 0, 0
    for batch in record_batches(path, mapped=False):
        check_schema(batch.schema, columns, str(path))
        seen += batch.nbytes
        for block in checked_blocks(batch, columns, first_row + row, _place(path, first_row)):
            row += block.num_rows
            yield replace(block, share_read=min(seen / size, 1.0))


def _read_parquet(path: Path, first_row: int, columns: Mapping[str, str | None]) -> Iterator[RowBlock]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            check_schema(file.schema_arrow, columns, str(path))
            wanted = {*columns.values(), "id", "length", "seq_len"} & set(file.schema_arrow.names)
            total = file.metadata.num_rows
            stored = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
            rows_at_once = int(min(max(_PARQUET_BATCH_BYTES * total // max(stored, 1), 1), BLOCK_ROWS))
            row = 0
            for batch in file.iter_batches(batch_size=rows_at_once, columns=sorted(map(str, wanted))):
                for block in checked_blocks(batch, columns, first_row + row, _place(path, first_row)):
                    row += block.num_rows
                    yield replace(block, share_read=row / max(total, 1))
            if row != total:
                raise ValueError(f"{path} is cut off: {row} of {total} rows could be read")
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is cut off or is not a Parquet file: {error}") from error


_READ: dict[str, Callable[[Path, int, Mapping[str, str | None]], Iterator[RowBlock]]] = {
    "json": _read_json_lines,
    "arrow": _read_arrow,
    "parquet": _read_parquet,
}


def _place(path: Path, first_row: int) -> Callable[[int], str]:
    """Name a row by its place in its own file, counted from 0."""
    return lambda row: f"{path}, row {row - first_row}"


def _saved_dataset(folder: Path) -> SourceFiles:
    """Files of a data set written by `save_to_disk`: those that its state lists, and no others."""
    if not (folder / "state.json").is_file():
        raise ValueError(f"{folder} is not a saved data set: state.json is missing")
    state = _read_json(folder / "state.json")
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ValueError(
            f"{folder} was saved with a selection beside its rows, by an old version of datasets; load it there, call "
            f"flatten_indices() and save it again"
        )
    names = [entry["filename"] for entry in state.get("_data_files") or []]
    if not names:
        raise ValueError(f"{folder} holds no samples: state.json lists no files")
    files = tuple(folder / name for name in names)
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is missing, though state.json beside it lists it")
    return SourceFiles(folder, files)


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is a JSON {type(value).__name__}; legal: an object")
    return value
