#!/usr/bin/env python
"""Run pytest. What failed beside other tests must pass three times alone, and is told.

A test may be late when the machine is busy with others or stands still for a while, and what it
leaves may fail its neighbour. More than four in a run, or one that fails alone, is a failure. What
is told goes into ``beside_others.md`` with its cause, and is mended.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

LIST = Path(__file__).with_name("beside_others.md")
MOST, TIMES = 4, 3


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    with tempfile.TemporaryDirectory() as cache:  # of its own: several may run beside each other
        return run_tests(Path(cache), arguments)


def run_tests(cache: Path, arguments: list[str]) -> int:
    """Return the exit status; what has failed stands in ``cache``."""
    pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}"]
    kept = cache / "v/cache/lastfailed"
    status = subprocess.run([*pytest, *arguments]).returncode
    failed = sorted(json.loads(kept.read_text())) if status == 1 and kept.exists() else []
    if not 1 <= len(failed) <= MOST:
        return status
    for _ in range(TIMES):
        if subprocess.run([*pytest, "-n", "0", "-m", "", *failed]).returncode != 0:
            return status
    for each in failed:
        listed = "listed" if each.partition("[")[0] in LIST.read_text() else f"not in {LIST.name}"
        sys.stdout.write(f"FAILED BESIDE OTHERS, passed {TIMES} times alone, {listed}: {each}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
