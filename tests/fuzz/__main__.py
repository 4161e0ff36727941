"""Fuzz one parser, or all in turn: ``python -m tests.fuzz NAME --runs 1000000``.

With atheris (extra ``fuzz``) coverage guides the inputs, and an input that takes more than a
second, or memory without bound, is a find as well. Without it, or with ``--engine own``, inputs
are the seeded mutations of ``mutations``, and time and memory are measured. A find ends it with
status 1; put its input into ``seeds/regressions.txt``.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from .corpus import read

NAMES = (
    "framing",
    "byte-framing",
    "native",
    "js-ws",
    "yamux",
    "bymux",
    "resumption",
    "durable",
    "river-json",
    "river-msgpack",
    "river-protobuf",
    "rmb-envelope",
    "rmb-token",
    "request-head",
)


def main() -> int:
    """Return the status for the shell."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", choices=[*NAMES, "all"])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=["atheris", "own"])
    parser.add_argument("--corpus", type=Path, help="a folder for the inputs of atheris")
    arguments = parser.parse_args()
    have = importlib.util.find_spec("atheris") is not None
    if arguments.engine == "atheris" and not have:
        parser.error("atheris is not installed: pip install 'wsmux-streams[fuzz]'")
    guided = have and arguments.engine != "own"
    if guided and arguments.corpus is not None and arguments.name != "all":
        _guided(arguments.name, arguments.runs, arguments.seed, arguments.corpus)
    for name in NAMES if arguments.name == "all" else [arguments.name]:
        if not guided:
            _measured(name, arguments.runs, arguments.seed)
        elif status := _apart(name, arguments.runs, arguments.seed):
            return status
    return 0


def _apart(name: str, runs: int, seed: int) -> int:
    """Let atheris run in a process of its own, since it ends its process; return the status."""
    with tempfile.TemporaryDirectory() as corpus:
        command = [sys.executable, "-m", "tests.fuzz", name, "--corpus", corpus]
        return subprocess.run([*command, f"--runs={runs}", f"--seed={seed}"]).returncode


def _guided(name: str, runs: int, seed: int, corpus: Path) -> NoReturn:
    import atheris

    with atheris.instrument_imports(include=["wsmux"]):
        from .harnesses import HARNESSES
    harness = HARNESSES[name]
    for number, data in enumerate(read(name)):
        (corpus / f"seed-{number:03}").write_bytes(data)

    def entry(data: bytes) -> None:
        harness(data)

    options = [f"-runs={runs}", f"-seed={seed}", "-timeout=1", "-max_len=4096", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={corpus}/", str(corpus)], entry)
    atheris.Fuzz()
    raise AssertionError("atheris ends its process")


def _measured(name: str, runs: int, seed: int) -> None:
    from .harnesses import HARNESSES
    from .mutations import run

    outcome = run(name, HARNESSES[name], read(name), runs, seed)
    print(  # noqa: T201 - the report
        f"{name}: {outcome.runs} inputs, slowest {outcome.slowest * 1000:.1f} ms, "
        f"memory {outcome.growth / 2**20:+.1f} MiB, {outcome.labels} kinds of answers",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
