"""The command line: `python -m nanovllm_edu start | doctor | fuzz | bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nanovllm_edu import __version__
from nanovllm_edu.errors import NanoVLLMError


def _start(options: argparse.Namespace) -> int:
    from nanovllm_edu.start import start

    return start(options.folder, options.jupyter, not options.no_browser, options.prepare)


def _doctor(options: argparse.Namespace) -> int:
    from nanovllm_edu.doctor import doctor

    return doctor()


def _fuzz(options: argparse.Namespace) -> int:
    from nanovllm_edu.fuzz.cli import run_breakages, run_fuzz

    return run_breakages(options.runs or 500) if options.breakages else run_fuzz(options.runs or 20_000, options.seed)


def _bench(options: argparse.Namespace) -> int:
    if options.ledger:
        from nanovllm_edu.ledger_bench import bench_ledger

        return bench_ledger()
    from nanovllm_edu.bench import bench

    return bench(options.model, rounds=options.rounds, peer=not options.alone)


def _parser() -> argparse.ArgumentParser:
    about = "See how an LLM engine manages its KV cache. What follows `--` after `start` is passed on to JupyterLab."
    parser = argparse.ArgumentParser(prog="python -m nanovllm_edu", description=about)
    parser.add_argument("--version", action="version", version=f"nanovllm_edu {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    start = commands.add_parser("start", help="lay the labs into a folder and open JupyterLab on the first one")
    start.add_argument("folder", nargs="?", type=Path, default=Path("my_labs"),
                       help="your own copies live here and are never overwritten (default: my_labs)")
    start.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    start.add_argument("--prepare", action="store_true", help="lay the labs and prepare the model, and stop there")
    start.set_defaults(run=_start, jupyter=[])

    doctor = commands.add_parser("doctor", help="what is here, what will be used, and how to mend what is missing")
    doctor.set_defaults(run=_doctor)

    fuzz = commands.add_parser("fuzz", help="random workloads against the ledger, every step judged")
    fuzz.add_argument("--runs", type=_count, default=None, help="how many (default: 20000; with --breakages 500 each)")
    fuzz.add_argument("--seed", type=int, default=0, help="the first run's seed; a failure names its own")
    fuzz.add_argument("--breakages", action="store_true", help="break the ledger line by line and find each breakage")
    fuzz.set_defaults(run=_fuzz)

    bench = commands.add_parser("bench", help="tokens per second, beside transformers' generate in the same run")
    bench.add_argument("model", nargs="?", default=None, help="a folder or a hub id (default: the small model)")
    bench.add_argument("--rounds", type=_count, default=3, help="the median of how many is shown (default: 3)")
    bench.add_argument("--alone", action="store_true", help="without transformers, which doubles the memory")
    bench.add_argument("--ledger", action="store_true", help="the ledger's operations instead, without a model")
    bench.set_defaults(run=_bench)
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. What stops it on purpose is told in a sentence, without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # What follows `--` belongs to JupyterLab, whatever it looks like.
    words, jupyter = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = _parser().parse_args(words)
    if jupyter:
        options.jupyter = jupyter
    try:
        return options.run(options)
    except NanoVLLMError as error:
        print(f"\n{error}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
