"""The command line. Heavy imports wait inside the commands, so that `seedloom --help` answers at once."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from flows.archive_commands import archive_app
from flows.interrupts import notice
from methods.common.errors import ConfigError, DataError, NumericalError

app = typer.Typer(
    name="seedloom",
    help="New machine-learning papers as pipelines on your own models and data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

app.add_typer(archive_app)

USAGE_ERROR = 2
INTERRUPTED = 130


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A mistake of the user becomes one line and exit status 2; failures of the machine become 1."""
    try:
        yield
    except (ConfigError, DataError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from None
    except (NumericalError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        notice()
        typer.echo("interrupted: finished steps are kept; the same command goes on from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not _is_mlflows(error):
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        typer.echo(f"error: MLflow: {line}", err=True)
        raise typer.Exit(USAGE_ERROR) from None


def _is_mlflows(error: Exception) -> bool:
    """Whether MLflow refused something; it is not imported for that."""
    module = sys.modules.get("mlflow.exceptions")
    return module is not None and isinstance(error, module.MlflowException)


@app.command("list")
def list_flows() -> None:
    """Show the flows and the papers behind them."""
    from rich.console import Console
    from rich.table import Table

    from flows.registry import FLOWS

    table = Table("flow", "what it does", "paper", box=None, pad_edge=False)
    for flow in FLOWS:
        table.add_row(flow.name, flow.summary, flow.paper or "")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def run(
    context: typer.Context,
    flow: Annotated[str, typer.Argument(help="Name of the flow; see `seedloom list`.")],
    params: Annotated[
        str, typer.Option(help="Settings from a YAML file, or from one block of it: FILE or FILE:block.")
    ] = "",
) -> None:
    """Run a flow; `seedloom run FLOW --help` lists its fields, each an option: --field value."""
    with one_line_errors():
        from flows.registry import entry
        from flows.settings_input import config_from, read_block

        if flow in ("--help", "-h"):
            typer.echo(context.get_help())
            raise typer.Exit
        found = entry(flow)
        config = config_from(found.load_config(), context.args, flow, read_block(params) if params else None)

        from tasks.settings import configure_environment
        from tasks.workspace import Workspace

        Workspace(configure_environment().work).check()
        found.check(config)

        from flows.launch import run_flow

        run_flow(found, config)


@app.command()
def up(
    prefect_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the Prefect server [default: 4200].")
    ] = None,
    mlflow_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the MLflow server [default: 5000].")
    ] = None,
    at_once: Annotated[
        int, typer.Option(min=1, max=64, help="Flow runs at the same time; others wait in line.")
    ] = 1,
) -> None:
    """Start Prefect, MLflow and every flow as a deployment, on this machine only; Ctrl-C ends all."""
    with one_line_errors():
        from flows.serve import up as start

        start(prefect_port, mlflow_port, at_once)


@app.command()
def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the network and the MLflow store.")
    ] = False,
) -> None:
    """Check versions, packages, disk, memory, ports and tools, and say what to do about each."""
    with one_line_errors():
        from flows.doctor import doctor as examine

        if not examine(quick):
            raise typer.Exit(1)


@app.command()
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="MLflow run ids (their start is enough) or flow names; none: the last flow run."),
    ] = None,
) -> None:
    """Show the candidates of flow runs side by side, the best marked, with the page that compares them."""
    with one_line_errors():
        from tasks.settings import configure_environment

        current = configure_environment()
        from flows.servers.tracking import check_tracking

        check_tracking(current.mlflow_tracking_uri)
        from flows.compare import compare as show

        show(runs or [])


@app.command()
def params(
    write: Annotated[
        bool, typer.Option("--write/--check", help="Write the file anew and keep your values, or check it.")
    ] = False,
    file: Annotated[Path, typer.Option(help="The file.")] = Path("params.yaml"),
) -> None:
    """Check params.yaml against the settings of every flow, or bring it up to date."""
    with one_line_errors():
        from flows.params import check
        from flows.params import write as renew

        if write:
            update = renew(file)
            for verb, names in (
                ("added", update.added),
                ("dropped", update.dropped),
                ("kept", update.changed),
            ):
                for name in names:
                    typer.echo(f"{verb:8}{name}")
            return
        if lines := check(file):
            raise ConfigError("\nerror: ".join(lines))
        typer.echo(f"{file} fits the settings of every flow")


@app.command()
def cards(
    write: Annotated[
        bool, typer.Option("--write/--check", help="Renew the README's table of papers, or check it.")
    ] = False,
) -> None:
    """Check the papers' cards against their measurements and the README, or renew the README's table."""
    with one_line_errors():
        from flows.cards import check
        from flows.cards import write as renew

        if write:
            typer.echo("README.md: table renewed" if renew(Path()) else "README.md: nothing to renew")
            return
        if lines := check(Path()):
            for line in lines:
                typer.echo(f"error: {line}", err=True)
            raise typer.Exit(1)
        typer.echo("README.md and the cards agree")


@app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="Name of the data set.")],
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
) -> None:
    """Fetch a data set that a study reads; `dvc repro data@NAME` does this where it is needed."""
    with one_line_errors():
        from tasks.prepare.fetch import fetch

        record = fetch(name, output)
        typer.echo(f"{name}: {record['source']} ({record['licence']}) in {output}")


@app.command("code")
def code_of_studies(
    output: Annotated[Path, typer.Argument(help="Folder to write: FLOW.json for the flow of each paper.")],
) -> None:
    """Record which source files each study uses, so that DVC repeats a study when its own code changed."""
    with one_line_errors():
        from flows.study_code import write_records

        names = write_records(output, Path())
        typer.echo(f"{output}: {len(names)} records")


if __name__ == "__main__":
    app()
