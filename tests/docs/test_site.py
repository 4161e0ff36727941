"""The files of ``examples/site`` run as they are, but for ports and paths, and agree."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from itsdangerous import URLSafeTimedSerializer

import wsmux

from ..helpers.certificates import Certificates
from ..helpers.checkout import ROOT
from ..helpers.nginx import TEMPORARY, configured
from ..helpers.ports import free_port
from ..helpers.programs import needs, package
from ..helpers.redis_server import RedisServer
from ..helpers.timeouts import WAIT
from ..helpers.waiting import wait_for, wait_for_value

SITE = ROOT / "examples" / "site"

SECRET = "a secret of this test"

CLIENTS, WORKERS = 20, 4

NUMBERS = itertools.count()

# Statuses of a worker or of nginx that mean: come again.
LATER = {502, 503, 504}


def replaced(name: str, *pairs: tuple[str, str]) -> str:
    """Return the text of a file of the site with other ports and paths."""
    text = (SITE / name).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


class Site:
    """Redis, gunicorn and nginx as plain processes, each with its file."""

    def __init__(self, stack: ExitStack, folder: Path, certificates: Certificates) -> None:
        needs("nginx", "redis-server")
        self._context = certificates.client
        self.redis = stack.enter_context(RedisServer(folder, configuration=SITE / "redis.conf"))
        self.inside = f"http://127.0.0.1:{free_port()}"
        self._log = stack.enter_context((folder / "gunicorn.log").open("w+"))
        run = stack.enter_context(tempfile.TemporaryDirectory(prefix="wsmux-"))  # a short path
        self.gunicorn = subprocess.Popen(
            [sys.executable, "-m", "gunicorn"],
            cwd=SITE,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "REDIS": self.redis.url, "SECRET_KEY": SECRET}
            | {"PROXIES": "127.0.0.1", "SESSIONS": f"{run}/sessions", "TMPDIR": run}
            | {"BIND": self.inside.removeprefix("http://")},
            stdout=self._log,
            stderr=self._log,
        )
        stack.callback(self._stop)
        listener = socket.create_server(("127.0.0.1", 0))
        self.place = f"localhost:{listener.getsockname()[1]}"
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        text = replaced(
            "nginx.conf",
            ("listen 443 ssl", f"listen {address} ssl"),
            ("127.0.0.1:8000", self.inside.removeprefix("http://")),
            ("worker_shutdown_timeout 30s", "worker_shutdown_timeout 1s"),
            ("/run/nginx.pid", f"{folder}/pid"),
            ("/var/log/nginx", str(folder)),
            ("/etc/ssl/site/chain.pem", str(certificates.chain)),
            ("/etc/ssl/site/key.pem", str(certificates.key)),
            ("http {\n", f"http {{\n{TEMPORARY.format(folder=folder)}\n"),
        )
        self.nginx = stack.enter_context(configured(folder, f"daemon off;\n{text}", listener))
        wait_for(lambda: self.fetch("/health") == (200, b"well"))
        wait_for(lambda: len(self.workers()) == WORKERS)

    def _stop(self) -> None:
        self.gunicorn.terminate()
        self.gunicorn.wait(WAIT)

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def workers(self) -> set[int]:
        """Return the processes that serve."""
        pid = self.gunicorn.pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def fetch(
        self, path: str, data: bytes | None = None, inside: bool = False
    ) -> tuple[int, bytes]:
        """Return status and body, through nginx or from gunicorn itself; (0, b"") if none comes."""
        url = self.inside if inside else f"https://{self.place}"
        context = None if inside else self._context
        try:
            with urllib.request.urlopen(
                url + path, data=data, timeout=WAIT, context=context
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def connect(self, user: str, token: str | None = None, resume: bool = True) -> wsmux.Connection:
        return wsmux.connect(
            f"wss://{self.place}/feed",
            resume=resume,
            ssl_context=self._context,
            headers={"Authorization": f"Bearer {token or signed(user)}"},
            timeout=WAIT,
        )


def signed(user: str, secret: str = SECRET) -> str:
    token = URLSafeTimedSerializer(secret).dumps(user)
    return token if isinstance(token, str) else token.decode()


def refusal(site: Site, user: str, token: str | None = None) -> int | None:
    """Return the status with which a client is refused, or ``None`` if it is not."""
    try:
        site.connect(user, token=token, resume=False).close()
    except wsmux.HandshakeError as error:
        return error.status
    return None


class Follower:
    """A client that follows the feed, and connects again whenever its connection is lost.

    Attributes:
        user: its name.
        connection: the one it has, or had last.
        lines: how many it has read, of all connections.
        worker: the process that sent the last one.
        ends: for each connection that was lost, its error and the code.
    """

    def __init__(self, site: Site, user: str) -> None:
        self._site = site
        self.user = user
        self.connection: wsmux.Connection | None = None
        self.lines = 0
        self.worker = 0
        self.ends: list[tuple[type[Exception] | None, int | None]] = []
        self.failure: Exception | None = None
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def leave(self) -> None:
        self._leaving.set()
        while self._thread.is_alive():
            if self.connection is not None:
                self.connection.abort()
            self._thread.join(0.05)

    def _run(self) -> None:
        try:
            while not self._leaving.is_set():
                try:
                    self.connection = self._site.connect(self.user)
                except (ConnectionError, wsmux.HandshakeError) as error:
                    if getattr(error, "status", None) not in {None, *LATER}:
                        raise
                    self._leaving.wait(0.05)
                    continue
                self._follow(self.connection)
        except Exception as error:
            self.failure = error

    def _follow(self, connection: wsmux.Connection) -> None:
        with connection:
            try:
                with connection.open_stream(WAIT) as stream:
                    stream.timeout = WAIT
                    expected = 0
                    while line := stream.readline():
                        number, worker = map(int, line.split())
                        assert number == expected, "each line comes once, in order"
                        expected += 1
                        self.lines, self.worker = self.lines + 1, worker
            except (wsmux.ConnectionClosed, wsmux.StreamError):
                pass  # which one it is, the connection says
            assert connection.wait_closed(WAIT), "the feed ends only with its worker"
            self.ends.append((type(connection.error), connection.close_code))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path_factory.mktemp("site"), certificates)


@pytest.fixture
def followers(site: Site) -> Iterator[list[Follower]]:
    # Names of their own: the site knows those whose connections were cut for a while.
    made = [Follower(site, f"user-{next(NUMBERS)}") for _ in range(CLIENTS)]
    try:
        wait_for(lambda: all_of(made, lambda each: each.lines > 0))
        yield made
        assert [each.failure for each in made] == [None] * CLIENTS
        assert "Traceback" not in site.log()
    finally:
        for each in made:
            each.leave()


def all_of(followers: list[Follower], condition: Callable[[Follower], object]) -> bool:
    failures = [each.failure for each in followers if each.failure is not None]
    assert not failures
    return all(map(condition, followers))


def further(followers: list[Follower]) -> None:
    """Wait until each has read two more lines, of which one was sent after the call."""
    before = [each.lines for each in followers]
    wait_for(
        lambda: all(each.lines >= count + 2 for each, count in zip(followers, before, strict=True))
    )


@pytest.mark.wide
def test_feeds_go_on_over_a_reload_of_nginx(site: Site, followers: list[Follower]) -> None:
    site.nginx.send_signal(signal.SIGHUP)
    wait_for(lambda: all_of(followers, lambda each: each.connection.stats().reconnects > 0))
    further(followers)
    assert [each.ends for each in followers] == [[]] * CLIENTS


@pytest.mark.wide
def test_a_reload_of_gunicorn_is_told_and_new_workers_serve(
    site: Site, followers: list[Follower]
) -> None:
    before = site.workers()
    site.gunicorn.send_signal(signal.SIGHUP)
    wait_for(lambda: all_of(followers, lambda each: each.ends and each.worker not in before))
    assert {code for each in followers for _, code in each.ends} == {1001}
    wait_for(lambda: not before & site.workers())
    wait_for_value(lambda: len(site.workers()), WORKERS)


@pytest.mark.wide
def test_a_killed_worker_costs_its_own_clients_their_sessions(
    site: Site, followers: list[Follower]
) -> None:
    killed = followers[0].worker
    its = [each for each in followers if each.worker == killed]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: all_of(its, lambda each: each.ends and each.worker != killed))
    assert {error for each in its for error, _ in each.ends} == {wsmux.ResumeLost}
    further(followers)
    assert all(not each.ends for each in followers if each not in its)
    wait_for_value(lambda: len(site.workers()), WORKERS)


@pytest.mark.wide
def test_users_are_found_counted_and_refused_over_all_workers(
    site: Site, followers: list[Follower]
) -> None:
    for each in followers:
        path = f"/notify/{each.user}"
        wait_for_value(lambda path=path: site.fetch(path, b"hello", inside=True)[0], 204)
        with each.connection.accept_stream(WAIT) as stream:
            stream.timeout = WAIT
            assert stream.read() == b"hello"
    assert site.fetch("/notify/nobody", b"hello", inside=True)[0] == 404
    user = followers[0].user
    assert site.fetch(f"/notify/{user}", b"hello")[0] == 404, "nginx does not pass it on"
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(site.connect(user))
        # On a busy machine Redis may be too late for once, and each worker counts for itself.
        wait_for_value(lambda: refusal(site, user), 429)
    assert refusal(site, user, token=signed(user, "another secret")) == 403


@pytest.mark.wide
def test_feeds_go_on_while_redis_is_away(site: Site, followers: list[Follower]) -> None:
    with ExitStack() as stack:
        site.redis.kill()
        try:
            further(followers)
            assert site.fetch("/health") == (200, b"well")
            newcomer = Follower(site, "newcomer")
            stack.callback(newcomer.leave)
            wait_for(lambda: all_of([newcomer], lambda each: each.lines))
        finally:
            site.redis.start()
        path = "/notify/newcomer"
        wait_for_value(lambda: site.fetch(path, b"hello", inside=True)[0], 204)
    assert [each.ends for each in followers] == [[]] * CLIENTS


@pytest.mark.wide
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "wsmux-site.service"
    # The program has to be there; the folder of the service is not entered.
    unit.write_text(replaced(unit.name, ("/srv/site/.venv/bin/gunicorn", needs("sh"))))
    done = subprocess.run(
        [needs("systemd-analyze"), "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_the_manifest_agrees_with_the_site() -> None:
    yaml = package("yaml", "test")
    deployment, service, ingress = yaml.safe_load_all((SITE / "kubernetes.yaml").read_text())
    settings = runpy.run_path(str(SITE / "gunicorn.conf.py"))
    app = (SITE / "app.py").read_text()

    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    [port] = container["ports"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert set(re.findall(r"\benv(?:\.get\(|\[)\"([A-Z_]+)\"", app)) == {
        *("REDIS", "SECRET_KEY", "CLUSTER_KEY"),  # of the Secret
        *(set(given) - {"BIND", "POD_IP", "TMPDIR"}),
    }
    assert given["BIND"] == f"0.0.0.0:{port['containerPort']}"
    [mount], [volume] = container["volumeMounts"], pod["spec"]["volumes"]
    assert mount["name"] == volume["name"]
    # An emptyDir is open to others of its pod; a session's folder must not be.
    assert Path(given["SESSIONS"]).parent == Path(mount["mountPath"])
    for probe in ("readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == port["name"]
        assert f'@app.get("{asked["path"]}")' in app
    [_, pause] = container["lifecycle"]["preStop"]["exec"]["command"]
    (drain,) = map(float, re.findall(r"drain_on_sigterm\((\d+)\)", app))
    assert drain <= 0.8 * min(settings["timeout"], settings["graceful_timeout"])
    assert int(pause) + settings["graceful_timeout"] < pod["spec"]["terminationGracePeriodSeconds"]

    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    [served] = service["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    [rule] = ingress["spec"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {
        "name": service["metadata"]["name"],
        "port": {"name": served["name"]},
    }
    assert f'@mux.stream_route("{path["path"]}")' in app
    limits = [value for name, value in ingress["metadata"]["annotations"].items() if "time" in name]
    assert len(limits) == 2
    assert min(map(int, limits)) > wsmux.Config().ping_interval + wsmux.Config().ping_timeout
    [tls] = ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]


def test_the_unit_and_nginx_agree_with_the_site() -> None:
    unit, app = (SITE / "wsmux-site.service").read_text(), (SITE / "app.py").read_text()
    settings = runpy.run_path(str(SITE / "gunicorn.conf.py"))
    (patience,) = map(int, re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE))
    assert patience > settings["graceful_timeout"]
    given = {*re.findall(r"[ =]([A-Z_]+)=", unit)}
    assert set(re.findall(r"\benv\[\"([A-Z_]+)\"", app)) == {*(given - {"TMPDIR"}), "SECRET_KEY"}
    assert f"proxy_pass http://{settings['bind']};" in (SITE / "nginx.conf").read_text()
    assert settings["workers"] == WORKERS
    assert len(app.splitlines()) < 80
