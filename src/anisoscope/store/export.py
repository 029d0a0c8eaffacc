"""Write the records of a run to one file that other programs read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import InputError
from anisoscope.store.files import file_errors, replacing
from anisoscope.store.record_lines import to_line

if TYPE_CHECKING:
    from anisoscope.store.run import Run


def export(run: Run, header: dict[str, Any], path: str | os.PathLike[str], own: tuple[str, ...]) -> Path:
    """Write the records of a run to a file; the suffix is the format.

    Args:
        run: The run.
        header: Its run.json, which goes into the schema metadata of a parquet file.
        path: The file.
        own: Files of the run itself, which are not overwritten.
    """
    target = Path(path)
    writers: dict[str, Callable[[Path], None]] = {
        ".parquet": lambda file: _write_parquet(run, header, file),
        ".csv": lambda file: _write_csv(run, file),
        ".jsonl": lambda file: _write_jsonl(run, file),
    }
    write = writers.get(target.suffix.lower())
    if write is None:
        raise InputError(f"cannot export to {target.name!r}; the name must end in {', '.join(writers)}")
    if target.resolve() in [run.path / name for name in own]:
        raise InputError(f"{target} is a file of the run itself; export to another name")
    with file_errors("write", target), replacing(target) as temporary:
        write(temporary)
    return target


def _write_csv(run: Run, path: Path) -> None:
    """A spreadsheet would evaluate a text that starts like a formula, so such a text gets an apostrophe before it."""
    table = run.table()
    for name in table.select_dtypes("string"):
        table[name] = table[name].str.replace(r"^(?=[=+\-@\t\r])", "'", regex=True)
    table.to_csv(path, index=False)


def _write_parquet(run: Run, header: dict[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(run.table(), preserve_index=False)
    stored = json.dumps(header, ensure_ascii=False).encode()
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"anisoscope": stored}), path)


def _write_jsonl(run: Run, path: Path) -> None:
    with path.open("wb") as file:
        file.writelines(to_line(record.to_json()) for record in run)
