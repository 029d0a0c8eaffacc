"""Keep other libraries quiet while they open a model, and turn their errors into one line."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any

from anisoscope.errors import AnisoscopeError, InputError, first_line, is_out_of_memory

REMOTE_CODE_REMEDY = (
    "It needs code from its author. Pass trust_remote_code=True (--trust-remote-code) if you trust the author."
)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings, progress bars and printed text, because the standard output may carry JSON."""
    with (
        _quiet_transformers(),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Set transformers' own level of messages; without it, formats of other packages still open."""
    try:
        import transformers
    except ImportError:
        yield
        return
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def one_line_errors(source: str) -> Iterator[None]:
    """Turn whatever a library raises while it opens `source` into an InputError of one line."""
    try:
        yield
    except AnisoscopeError:
        raise
    except Exception as error:  # damaged or crafted configurations and weights raise many kinds of errors
        text = str(error)
        if is_out_of_memory(error):
            raise _out_of_memory(source) from error
        if "trust_remote_code" in text:
            raise InputError(f"Cannot open {source}. {REMOTE_CODE_REMEDY}") from error
        if "ignore_mismatched_sizes" in text:
            raise InputError(
                f"The weights of {source} have other sizes than its config.json. "
                "Check that both belong to the same model."
            ) from error
        raise InputError(f"Cannot open {source}: {first_line(error)}. Check its files or save them again.") from error


def _out_of_memory(source: str) -> InputError:
    return InputError(
        f"Not enough memory to open {source}. Use a smaller dtype (dtype='bfloat16' on a GPU), "
        "spread it with device_map='auto', or use a larger machine."
    )
