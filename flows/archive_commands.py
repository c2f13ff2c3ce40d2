"""`seedloom archive`: compress and read single files and folders without a flow."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tasks.archive.config import ArchiveSettings
    from tasks.archive.predictors import Loaded

archive_app = typer.Typer(
    name="archive",
    help="Compress text and files with a language model, and read them back on another machine.",
    no_args_is_help=True,
)

Model = Annotated[
    str,
    typer.Option(
        help="Folder of the model, an n-gram model's .safetensors file, or 'ngram:' and text that both sides have."
    ),
]
Rows = Annotated[int, typer.Option(min=1, max=4096, help="Chunks that are read side by side.")]
Window = Annotated[int, typer.Option(min=0, help="Tokens of context; 0: the model's own, at most 1024.")]
Dtype = Annotated[str, typer.Option(help="Number format: float32, bfloat16 or stored.")]
SUFFIX = ".pmz"


@contextmanager
def _told() -> Iterator[None]:
    """Mistakes as one line; warnings as one line without a place in the code."""
    from flows.cli import one_line_errors
    from methods.pmatic import ModelMismatchWarning

    with one_line_errors(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ModelMismatchWarning)
        try:
            yield
        finally:
            for warning in caught:
                if issubclass(warning.category, ModelMismatchWarning):
                    typer.echo(f"warning: {warning.message}", err=True)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Put the file's name before what is wrong with its bytes."""
    from methods.pmatic import FormatError, MismatchError

    try:
        yield
    except (FormatError, MismatchError) as error:
        error.args = (f"{file}: {error}", *error.args[1:])
        raise


def _same_text(calibration: str, source: Path) -> bool:
    place = Path(calibration).expanduser()
    return place.is_file() and (place.samefile(source) or place.read_bytes() == source.read_bytes())


def _check_free(place: Path) -> None:
    """Refuse a file that is there, or whose folder cannot be made, before any work."""
    from methods.common.errors import DataError

    if place.exists():
        raise DataError(f"{place} exists already; name another file with --output")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"{place}: {place.parent} is no folder that can be written ({error.strerror})"
        ) from error


def _write(place: Path, data: bytes) -> None:
    """Write a file as a whole or not at all."""
    part = place.with_name(place.name + ".part")
    part.write_bytes(data)
    part.replace(place)


def _settings(**values: object) -> "ArchiveSettings":
    from pydantic import ValidationError

    from flows.settings_input import explain
    from methods.common.errors import ConfigError
    from tasks.archive.config import ArchiveSettings

    try:
        return ArchiveSettings.model_validate(
            {name: value for name, value in values.items() if value is not None}
        )
    except ValidationError as error:
        raise ConfigError(explain(error, "archive")) from error


def _loaded(model: str, settings: "ArchiveSettings") -> "Loaded":
    from tasks.archive.predictors import load_predictor

    return load_predictor(model, settings)


@archive_app.command()
def calibrate(
    model: Model,
    text: Annotated[str, typer.Option(help="Text like what will be archived, but other text.")],
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("codec.pmc"),
    computations: Annotated[
        str, typer.Option(help="Computations that must be able to read, by commas: steps, bfloat16, float16.")
    ] = "steps",
    bound: Annotated[float, typer.Option(min=0, help="Bound on the log-odds in nats; 0 measures it.")] = 0.0,
    safety: Annotated[float, typer.Option(min=1, help="Factor on the measured mismatch.")] = 4.0,
    design: Annotated[str, typer.Option(help="companded, dp or uniform.")] = "companded",
    tree: Annotated[str, typer.Option(help="auto, huffman, rank or flat.")] = "auto",
    chunk_tokens: Annotated[int, typer.Option(help="Tokens of a chunk.")] = 4096,
    window: Window = 0,
    dtype: Dtype = "float32",
) -> None:
    """Measure how far a model's computations are apart, and write the codec that bridges it."""
    with _told():
        from tasks.archive.archive import make_codec

        settings = _settings(
            computations=[name.strip() for name in computations.split(",")],
            bound=bound,
            safety=safety,
            design=design,
            tree=tree,
            chunk_tokens=chunk_tokens,
            window=window,
            dtype=dtype,
        )
        codec, facts = make_codec(_loaded(model, settings), settings, text)
        codec.save(output)
        typer.echo(json.dumps(facts, indent=1, sort_keys=True))
        typer.echo(f"written to {output}")


@archive_app.command()
def compress(
    source: Annotated[
        Path, typer.Argument(help="File to compress; for whole folders: seedloom run archive.")
    ],
    model: Model,
    output: Annotated[
        Path | None, typer.Option(help=f"File to write; else the source's name and {SUFFIX}.")
    ] = None,
    codec: Annotated[Path | None, typer.Option(help="What `seedloom archive calibrate` wrote.")] = None,
    calibration: Annotated[str, typer.Option(help="Without a codec: text to calibrate on, other text.")] = "",
    bound: Annotated[float, typer.Option(min=0, help="Without a codec: bound in nats; 0 measures it.")] = 0.0,
    embed: Annotated[
        bool, typer.Option(help="Put the codec into the archive; else reading needs its file.")
    ] = True,
    verify: Annotated[bool, typer.Option(help="Read the archive back by single cached steps.")] = True,
    window: Window = 0,
    dtype: Dtype = "float32",
    rows: Rows = 16,
) -> None:
    """Compress one file."""
    with _told():
        from methods.common.errors import ConfigError, DataError
        from methods.pmatic import PMATICCodec, compress_text, decompress_text
        from tasks.archive.archive import make_codec

        if not source.is_file():
            raise DataError(f"{source}: is no file; `seedloom run archive --source {source}` takes folders")
        place = output or source.with_name(source.name + SUFFIX)
        _check_free(place)
        if codec is None and calibration and _same_text(calibration, source):
            raise ConfigError(
                f"calibration {calibration}: is what will be compressed, so the bound would be measured on it; "
                "give other text of its kind"
            )
        if codec is None and not calibration and not bound:
            raise ConfigError("give --codec, or --calibration to measure the mismatch on, or --bound")
        settings = _settings(bound=bound, window=window, dtype=dtype, rows=rows)
        loaded = _loaded(model, settings)
        used = PMATICCodec.load(codec) if codec else make_codec(loaded, settings, calibration)[0]
        data = source.read_bytes()
        blob = compress_text(data, loaded.predictor, loaded.tokenizer, codec=used, embed=embed)
        if verify:
            again = decompress_text(blob, loaded.second("steps"), loaded.tokenizer, codec=used, rows=rows)
            if again != data:
                raise DataError(f"{source}: did not come back; nothing was written")
        _write(place, blob)
        share = f" ({8 * len(blob) / len(data):.3f} bits per byte)" if data else ""
        typer.echo(f"{place}: {len(data):,} bytes in {len(blob):,}{share}{', read back' if verify else ''}")


@archive_app.command()
def decompress(
    source: Annotated[Path, typer.Argument(help="An archive, or a folder that the archive flow wrote.")],
    model: Model,
    output: Annotated[Path | None, typer.Option(help="File or folder to write.")] = None,
    codec: Annotated[
        Path | None, typer.Option(help="The codec of an archive that was written without it.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=0, help="Read this chunk only.")] = None,
    window: Window = 0,
    dtype: Dtype = "float32",
    rows: Rows = 16,
) -> None:
    """Read an archive, or restore a folder; what is written is exactly what was archived, or nothing."""
    with _told():
        from methods.common.errors import DataError
        from methods.pmatic import Archive, PMATICCodec, decompress_text
        from methods.pmatic.text import read_segments
        from tasks.archive.archive import restore

        place = output or source.with_name(source.name.removesuffix(SUFFIX) or "restored")
        if source.is_dir():
            place = output or source.with_name(source.name + "-restored")
        if not source.exists():
            raise DataError(f"{source}: does not exist")
        if not source.is_dir():
            _check_free(place)
        settings = _settings(window=window, dtype=dtype, rows=rows)
        if source.is_dir():
            count = restore(source, _loaded(model, settings), place, rows)
            typer.echo(f"{place}: {count} files")
            return
        blob = source.read_bytes()
        used = PMATICCodec.load(codec) if codec else None
        with _named(source):
            archive = Archive.unpack(blob)
            loaded = _loaded(model, settings)
            steps = loaded.second("steps")
            if chunk is None:
                found = decompress_text(blob, steps, loaded.tokenizer, codec=used, rows=rows)
                data = found.encode("utf-8", "surrogatepass") if isinstance(found, str) else found
            else:
                ((_, data),) = read_segments(archive, steps, loaded.tokenizer, codec=used, indices=[chunk])
        _write(place, data)
        typer.echo(f"{place}: {len(data):,} bytes")


@archive_app.command()
def inspect(
    source: Annotated[
        Path, typer.Argument(help="An archive, a codec, or a folder that the archive flow wrote.")
    ],
) -> None:
    """Show what an archive or a codec says of itself; no model is needed."""
    with _told():
        from methods.common.errors import DataError
        from methods.pmatic import PMATICCodec
        from tasks.archive.archive import describe, describe_codec, read_manifest

        if source.is_dir():
            manifest = read_manifest(source)
            for entry in manifest["files"]:
                typer.echo(f"{entry['size']:>12,} {entry['bytes']:>12,}  {entry['name']}")
            typer.echo(f"Delta {manifest['Delta']:.3g}, model {manifest['model']['name']}")
            return
        try:
            data = source.read_bytes()
        except OSError as error:
            raise DataError(f"{source}: cannot be read ({error.strerror})") from error
        with _named(source):
            facts = describe_codec(PMATICCodec.load(source)) if data[:4] == b"PMC\x01" else describe(data)
        for name, value in facts.items():
            typer.echo(f"{name:<22} {value:.6g}" if isinstance(value, float) else f"{name:<22} {value}")
