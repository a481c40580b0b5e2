"""Command line: `python -m dflash_lab.notebooks run NOTEBOOK` and `... report`."""

import argparse
import sys
from collections.abc import Sequence

from dflash_lab.notebooks.report import build_report
from dflash_lab.notebooks.runner import run_notebook

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after the program's name; those of the process when None.

    Returns:
        Exit status: 0 all well, 1 a notebook failed, 2 wrong use (nothing has run), 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    parameters = {name: value for name, value in options.parameters}
    try:
        if len(parameters) < len(options.parameters):
            raise ValueError("a parameter is given twice")
        return _run(options, parameters) if options.command == "run" else _report(options, parameters)
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace, parameters: dict[str, str]) -> int:
    _say(f"{options.notebook} ...")
    result = run_notebook(
        options.notebook, parameters, options.outputs, name=options.name, timeout_seconds=options.timeout
    )
    _say(f"{result.name}: {result.status} in {result.seconds:.1f} s, {result.output_path}")
    if result.ok:
        return 0
    print(f"error: {result.name}: {result.status}: {result.error}", file=sys.stderr)
    return EXIT_INTERRUPTED if result.status == "interrupted" else EXIT_FAILED


def _report(options: argparse.Namespace, parameters: dict[str, str]) -> int:
    report = build_report(options.notebooks, options.outputs, parameters=parameters, only=options.only, say=_say)
    _say(f"report: {report.index} in {report.seconds:.0f} s")
    failed = [run for run in report.runs if not run.ok]
    for run in failed:
        print(f"error: {run.name}: {run.status}: {run.error}", file=sys.stderr)
    if any(run.status == "interrupted" for run in failed):
        return EXIT_INTERRUPTED
    return EXIT_FAILED if failed else 0


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dflash_lab.notebooks", description="Run notebooks and report on them."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="run | report")
    run = commands.add_parser("run", help="run one notebook")
    run.add_argument("notebook")
    run.add_argument("--name", help="name of the run (default: the notebook's)")
    run.add_argument("--timeout", type=float, metavar="SECONDS", help="limit for the whole notebook (default: none)")
    report = commands.add_parser("report", help="run all notebooks and write outputs/report/index.html")
    report.add_argument("--notebooks", default="notebooks", help="folder of the notebooks (default: %(default)s)")
    report.add_argument("--only", action="append", metavar="03", help="only runs whose name begins so; may be repeated")
    for command in (run, report):
        command.add_argument(
            "-p", "--parameter", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE")
        )
        command.add_argument("--outputs", default="outputs", help="folder for what is produced (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
