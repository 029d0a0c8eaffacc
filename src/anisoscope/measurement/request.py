"""What to measure: one frozen `Request`, in groups, from which everything else about options is derived.

Keywords of `measure`, options of the commands with their help, the settings in run.json and the content keys of a sweep
all come from the fields below. To add an option: add a field here, and use it where it takes effect.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from anisoscope.errors import InputError, unknown

F = TypeVar("F", bound=Callable[..., Any])
TOKENS = 65_536
SITES = ("embed", "resid", "final")
ROWS = ("tokens", "last", "mean", "cls")
MODEL_SAMPLE = 4096  # rows per site that are kept for metrics that need rows: neighbours, clusters, words
VECTOR_SAMPLE = 8192


def option(default: Any, help: str, *, least: int | None = None, changes_numbers: bool = True, word: type = str) -> Any:
    """Declare a field of a request.

    Args:
        default: Its default value.
        help: One line for `--help` and for the documentation of `measure`.
        least: The smallest value allowed.
        changes_numbers: Whether the results depend on it. Only such fields must agree for a run to be resumed.
        word: What the command line reads for a field that Python accepts anything for.
    """
    facts = {"help": help, "least": least, "changes_numbers": changes_numbers, "word": word}
    return field(default=default, metadata=facts)


@dataclass(frozen=True)
class ModelOptions:
    """How to open the model."""

    revision: str | None = option(None, "Revision of a hub model.")
    dtype: str | None = option(None, "float32, bfloat16 or float16. Default: as stored.")
    device: str | None = option(None, "cpu, cuda, cuda:1 or mps. Default: a GPU, if any.", changes_numbers=False)
    device_map: str | None = option(None, "auto, for models larger than one device.", changes_numbers=False)
    tensor_parallel: bool = option(False, "Split every layer over the processes of torchrun.", changes_numbers=False)
    trust_remote_code: bool = option(False, "Run the model's own Python code.", changes_numbers=False)
    allow_pickle: bool = option(False, "Load weights that are pickles, which can run code.", changes_numbers=False)
    tokenizer: Any = option(None, "bytes, for a model of raw bytes without a tokenizer. In Python also a tokenizer.")


@dataclass(frozen=True)
class DataOptions:
    """What the model reads. Sources are compared by the content key of a sweep, and by name in a run."""

    text: Any = option(None, "Text: a file, a folder, .jsonl, .parquet, - or datasets:NAME.")
    images: Any = option(None, "Folder of images.", word=Path)
    audio: Any = option(None, "Folder of recordings.", word=Path)
    window: int | None = option(None, "Tokens per window. Default: 512, or what the model allows.", least=2)
    batch: int = option(8, "Windows, images or clips per forward pass.", least=1)
    field: str | None = option(None, "Field of .jsonl or .parquet rows that holds the text.")
    document_mark: str | None = option(None, "Text that separates documents in a plain file.")
    seconds: float | None = option(None, "Length of a clip of a recording. Default: what the model allows.")


@dataclass(frozen=True)
class SiteOptions:
    """Where to measure."""

    sites: Sequence[str] = option(
        SITES, "Kinds (embed resid attn mlp q k pattern final) or sites (resid.7), separated by commas."
    )
    weights: bool = option(False, "Measure vocabulary matrices and the final norm too. Needs no data.")
    generate: int | None = option(None, "Also measure N tokens that the model adds to each window.", least=1)


@dataclass(frozen=True)
class StatisticsOptions:
    """What to compute, and from how many tokens."""

    metrics: Sequence[Any] | None = option(None, "Metrics by name, separated by commas. Default: all but slow ones.")
    tokens: int | None = option(TOKENS, "Number of tokens to measure.", least=2)
    batch_tokens: int | None = option(None, "Also report mean and deviation over batches of N tokens.", least=2)
    sample: int | None = option(
        None,
        f"Rows kept for metrics that need rows. Default: {MODEL_SAMPLE} per site, {VECTOR_SAMPLE} vectors.",
        least=16,
    )
    seed: int = option(0, "Seed of the sample.")
    rows: str = option(
        "tokens",
        "What a row is: tokens, or one per window: last (its last token), mean, or cls (its first token).",
    )
    errors: bool = option(True, "Error bars, by a jackknife over blocks of documents.")
    special: bool = option(True, "Count special tokens.")


@dataclass(frozen=True)
class VectorOptions:
    """How to read a file of vectors."""

    tensor: str | None = option(None, "Tensor of a file that holds several.")
    column: str | None = option(None, "Column of a parquet file.")
    documents: Any = option(None, "Column or array that names the document of each row.")
    precise: bool = option(False, "Multiply vectors in float64 throughout.")


@dataclass(frozen=True)
class OutputOptions:
    """Where results go."""

    out: Any = option(None, "Run folder to write. The same command resumes it.", changes_numbers=False, word=Path)
    keep_statistics: bool = option(False, "Keep all statistics, for any metric of `recompute`.", changes_numbers=False)
    keep_blocks: bool = option(False, "Keep block statistics, for error bars of `recompute`.", changes_numbers=False)
    overwrite: bool = option(False, "Replace the run in --out instead of resuming it.", changes_numbers=False)


@dataclass(frozen=True)
class Request:
    """What a measurement is asked to do.

    >>> request = Request.of(text="corpus.txt", tokens=4096)
    >>> request.statistics.tokens, request.data.batch
    (4096, 8)
    """

    model: ModelOptions = ModelOptions()
    data: DataOptions = DataOptions()
    sites: SiteOptions = SiteOptions()
    statistics: StatisticsOptions = StatisticsOptions()
    vectors: VectorOptions = VectorOptions()
    output: OutputOptions = OutputOptions()

    @classmethod
    def of(cls, **options: Any) -> Request:
        """Make a request from flat options, such as `text=…, tokens=4096`.

        Raises:
            InputError: An option does not exist; the nearest names are suggested.
        """
        return cls().having(**options)

    def having(self, **options: Any) -> Request:
        """Return this request with some options changed."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in GROUP_OF:
                raise unknown("option", name, GROUP_OF)
            if name == "sites" and isinstance(value, str):
                raise InputError(f"sites must be a list of names, such as [{value!r}], not a text")
            if name == "sites":  # a number is a layer
                value = tuple(f"resid.{site}" if str(site).isdigit() else site for site in value)
            if name == "rows" and value not in ROWS:
                raise unknown("kind of rows", value, ROWS)
            groups.setdefault(GROUP_OF[name], {})[name] = value
        return replace(self, **{group: replace(getattr(self, group), **values) for group, values in groups.items()})

    def flat(self) -> dict[str, Any]:
        """Return all options by name, the inverse of `of`."""
        return {name: getattr(getattr(self, group), name) for name, group in GROUP_OF.items()}

    def only(self, names: Collection[str]) -> dict[str, Any]:
        """Return the options of these names."""
        return {name: value for name, value in self.flat().items() if name in names}

    def flat_without(self, *groups: str) -> dict[str, Any]:
        """Return all options by name, except those of some groups."""
        return {name: value for name, value in self.flat().items() if GROUP_OF[name] not in groups}

    def source(self) -> tuple[str, Any] | None:
        """Return the modality and the source of the data, or None if there is none."""
        sources = {"text": self.data.text, "image": self.data.images, "audio": self.data.audio}
        return next(((modality, source) for modality, source in sources.items() if source is not None), None)

    def data_name(self) -> str | None:
        """Return the name of the data in run.json; texts and files in a list are named by their content."""
        modality, source = self.source() or (None, None)
        if isinstance(source, list | tuple):
            digest = hashlib.sha256("\0".join(map(str, source)).encode()).hexdigest()
            return f"{len(source):,} {'texts' if modality == 'text' else 'files'} ({digest[:12]})"
        if source is None or isinstance(source, str | Path):
            return None if source is None else str(source)
        return type(source).__name__

    @property
    def is_repeatable(self) -> bool:
        """Whether the name of the data identifies it, so that a run of it can be resumed."""
        return self.source() is None or isinstance(self.source()[1], str | Path | list | tuple)  # type: ignore[index]

    def opening(self) -> dict[str, Any]:
        """Return the keywords of `open_model`."""
        return {name: x for name, x in vars(self.model).items() if name != "tokenizer"}

    def reading(self) -> dict[str, Any]:
        """Return the keywords of `model_batches` for the modality of the data."""
        modality = (self.source() or ("text", None))[0]
        if modality == "audio":
            return {"seconds": self.data.seconds}
        if modality == "image":
            return {}
        text = {"window": self.data.window, "tokens": self.statistics.tokens}
        return {**text, "field": self.data.field, "mark": self.data.document_mark, "tokenizer": self.model.tokenizer}

    def settings(self) -> dict[str, Any]:
        """Return what the numbers depend on, as plain JSON: a run is resumed only if this is equal."""
        return {
            name: plain(value)
            for name, value in self.flat().items()
            if OPTIONS[name].metadata["changes_numbers"] and name not in ("text", "images", "audio")
        }


_OPENING = ("revision", "dtype", "device", "trust_remote_code", "allow_pickle")
TANGENT_OPTIONS = (
    *("text", "window", "batch", "field", "document_mark"),
    *("sites", "tokens", "sample", "seed"),
    *_OPENING,
    *("tokenizer", "out", "overwrite"),
)
# Of a tangent test: the defaults and help texts that differ from those of `measure`.
TANGENT_DEFAULTS: dict[str, Any] = {
    "sites": ("resid",),  # gradients are tested in the stream only
    "tokens": 8192,  # fitted on, and as many tested: each costs a backward pass too
    "batch": 4,  # a backward pass keeps all activations of its batch
    "sample": 8192,  # a basis needs more rows than neighbours do
}
TANGENT_HELP = {
    "text": "Text: a file, a folder, .jsonl, .parquet, - or datasets:NAME. Half is fitted on, half is tested.",
    "sites": "Kinds (embed resid) or sites (resid.7), separated by commas.",
    "tokens": "Number of tokens to fit on, and to test on.",
    "sample": "Fit tokens whose activations are kept.",
    "seed": "Seed of every draw.",
}
FIT_OPTIONS = ("sites", "sample", "seed", *_OPENING)


def _groups() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for group in fields(Request):
        for each in fields(group.default):  # type: ignore[arg-type]
            yield group.name, each


OPTIONS: dict[str, dataclasses.Field[Any]] = {each.name: each for _, each in _groups()}
GROUP_OF: dict[str, str] = {each.name: group for group, each in _groups()}


def accepts(
    *names: str, defaults: Mapping[str, Any] | None = None, help: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Give a function with `**options` the signature and the documentation of these options of a request.

    Its docstring holds a line `{options}` in the section `Args:`. An option that is not named raises an InputError.

    Args:
        names: The options.
        defaults: Defaults that differ from the request's own. The function must apply them.
        help: Help texts that differ from the request's own.
    """
    values = {name: (defaults or {}).get(name, OPTIONS[name].default) for name in names}
    texts = {name: (help or {}).get(name, OPTIONS[name].metadata["help"]) for name in names}

    def decorate(function: F) -> F:
        listed = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=values[n]) for n in names]
        signature = inspect.signature(function)
        shown = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        own = {p.name for p in shown}

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            for name in options:
                if name not in own and name not in names:
                    raise unknown("option", name, [*names, *own])
            return function(*args, **options)

        checked.__signature__ = signature.replace(parameters=[*shown, *listed])  # type: ignore[attr-defined]
        lines = "\n    ".join(f"{name}: {texts[name]}" for name in names)
        # Python 3.13 removes the indentation of docstrings, earlier versions keep it
        checked.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("{options}", lines)
        return cast(F, checked)

    return decorate


def names_of(*groups: type) -> tuple[str, ...]:
    """Return the options of these groups."""
    return tuple(each.name for group in groups for each in fields(group))


def shared_options() -> tuple[str, ...]:
    """Return the options that all checkpoints of a sweep share: revision and seed belong to each task."""
    own = ("seed", "revision", "tensor_parallel")
    names = names_of(DataOptions, SiteOptions, StatisticsOptions, ModelOptions)
    return (*(name for name in names if name not in own), "overwrite")


def require_data(request: Request, *, batches: bool) -> None:
    """Refuse a request without data, with two kinds of data, or with too little of it, before anything is opened.

    Args:
        request: The request.
        batches: Whether batches are given besides.
    """
    sources = [x for x in (request.data.text, request.data.images, request.data.audio) if x is not None]
    if not batches and not sources and not request.sites.weights:
        raise InputError("nothing to measure: give text, images, audio or batches, or set weights=True")
    if len(sources) > 1:
        raise InputError("a model takes one kind of data; give one of text, images and audio")
    tokens, size = request.statistics.tokens, request.statistics.batch_tokens
    if size is not None and tokens is not None and tokens < 2 * size:
        raise InputError(f"{tokens} tokens hold no two batches of {size}; measure at least {2 * size}")


def require_rows(request: Request) -> None:
    """Refuse the first token of each window as its row if that token does not count."""
    if request.statistics.rows == "cls" and (not request.statistics.special or request.sites.generate is not None):
        raise InputError("rows 'cls' are first tokens, which special=False and generate leave out; use last or mean")


def require_shareable(request: Request, processes: int) -> None:
    """Refuse what several processes cannot do, before anything is opened."""
    split = request.model.tensor_parallel
    if split and processes == 1:
        raise InputError("tensor parallel needs several processes: start them with torchrun")
    alone = request.sites.generate is not None or request.statistics.batch_tokens is not None
    if processes > 1 and alone:
        raise InputError("generated tokens and batches of tokens are measured by one process; run without torchrun")
    heads = [site for site in request.sites.sites if str(site).split(".")[0] in ("q", "k", "pattern")]
    if split and (request.sites.weights or heads):
        what = heads[0] if heads else "a weight"
        raise InputError(f"{what} is in pieces if layers are split over processes; leave it out, or use device_map")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Describe which settings differ, one text per setting: `tokens (4096 before, 8192 now)`."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{name} ({_short(before.get(name))} before, {_short(after.get(name))} now)" for name in names]


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; a metric is its name, and its version if not 1."""
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Path):
        return str(value)
    name = getattr(value, "name", type(value).__name__)
    version = getattr(value, "version", 1)
    return name if version == 1 else f"{name} (version {version})"


def _short(value: Any) -> str:
    text = (",".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"
