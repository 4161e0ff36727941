"""Run a cluster of a master and two workers, on addresses of their own.

Spark never runs the copy of a slow task on the host of the original, and hosts are told apart by
their addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

__all__ = ["HOSTS", "cluster"]

HOSTS = ("127.0.0.2", "127.0.0.3")

# Seconds until a part of the cluster is up, on a busy machine.
WAIT = 300.0

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Part:
    """A process of the cluster, whose log tells how far it is."""

    def __init__(self, name: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.name = name
        self.lines: list[str] = []
        self._come = threading.Condition()
        self._process = subprocess.Popen(
            [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
        )
        self._reader = threading.Thread(target=self._read, name=f"test-{name}")
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._come:
                self.lines.append(line.decode(errors="replace"))
                self._come.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Return what matches a line of its log, as soon as there is one."""

        def found() -> re.Match[str] | None:
            return next((got for line in self.lines if (got := re.search(pattern, line))), None)

        with self._come:
            self._come.wait_for(found, WAIT)
            match = found()
        assert match is not None, f"{self.name} does not say {pattern}: {''.join(self.lines)}"
        return match

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT)
        self._reader.join(WAIT)
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def cluster(environment: dict[str, str], directory: Path) -> Iterator[str]:
    """Start a cluster and return what drivers call it; its files go into a directory."""
    with ExitStack() as stack:

        def start(name: str, host: str, *arguments: str) -> Part:
            place = ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
            part = Part(name, place, environment | {"SPARK_LOCAL_IP": host})
            stack.callback(part.close)
            return part

        master = start("master.Master", "127.0.0.1")
        url = master.wait_for(r"spark://127\.0\.0\.1:\d+")[0]
        for host in HOSTS:
            own = ["-c", "1", "-m", "1g", "-d", str(directory / host), url]
            start("worker.Worker", host, *own).wait_for("Successfully registered with master")
        yield url
