"""Start a worker that attacks, and see what it achieves: the tier recorded in a result is what was observed here.

The attacker is started and confined like a worker and knows more than any submission: where the victim's secret lies,
which descriptor it holds, the paths of hidden and result files. It tries every attack of the matrix in a child process
of its own. Whether something changed is also looked at from outside; a changed victim or file counts as a success
whatever the attacker believes.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import mmap
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import attack_files, attack_kernel, attack_process
from .attack_process import Attack
from .bwrap import bwrap_argv
from .policy import interpreter_readable, prepare_scratch, worker_environment
from .report import ConfinementError, Report
from .target import Target, victim

_ATTACK_S = 3
_SEVERITIES: dict[str, dict[str, Attack]] = {
    "verdict": attack_process.VERDICT | attack_files.VERDICT,
    "disturb": attack_process.DISTURB | attack_files.DISTURB | attack_kernel.DISTURB,
    "observe": attack_files.OBSERVE,
}
_GO_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | 0x10  # and F_SEAL_FUTURE_WRITE


@dataclass(frozen=True)
class Outcome:
    """How one attack ended."""

    severity: str
    """"verdict" (reads what is hidden or changes a verdict), "disturb", or "observe" (recorded, never counted)."""
    succeeded: bool
    errno: str
    """Name of the error that stopped it, or of the signal that ended it; empty if it succeeded."""


@dataclass(frozen=True)
class Observed:
    """One run of the matrix."""

    uid: int
    report: Report | None
    """What the attacker's confinement claimed; None if it was not confined."""
    attacks: dict[str, Outcome] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """What was found changed from outside: names of victim state or of files."""
    namespaces: bool = False
    """The attacker was in process, IPC and network namespaces other than ours."""
    error: str = ""
    """Why the matrix could not be completed."""

    @property
    def succeeded(self) -> list[str]:
        """The attacks that succeeded and count."""
        return sorted(name for name, each in self.attacks.items() if each.succeeded and each.severity != "observe")

    @property
    def tier(self) -> str:
        """The observed tier (see :data:`TIERS`)."""
        if self.error or not self.attacks or (self.report is not None and self.report.debug):
            return "unconfined"
        if self.changed or any(self.attacks[name].severity == "verdict" for name in self.succeeded):
            return "unconfined"
        if self.succeeded:
            return "partial"
        return "namespaced" if self.namespaces else "confined"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, with the tier and, for each attack, "blocked" or "succeeded" and the error's name."""
        return {
            "tier": self.tier,
            "uid": self.uid,
            "report": self.report.to_json() if self.report else None,
            "attacks": {
                name: {
                    "outcome": "succeeded" if each.succeeded else "blocked",
                    "errno": each.errno,
                    "severity": each.severity,
                }
                for name, each in self.attacks.items()
            },
            "changed": list(self.changed),
            "namespaces": self.namespaces,
            "error": self.error,
        }


def probe_worker(
    readable: Sequence[str] = (),
    devices: Sequence[str] = (),
    *,
    namespaces: bool = False,
    user: int | None = None,
    python: str = sys.executable,
    confined: bool = True,
    hidden: Sequence[str] = (),
    wide_proc: bool = False,
    base: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Observed:
    """Run the attack matrix against a stand-in broker, both as `user` (default: as we are), and report what succeeded.

    `readable`, `devices`, `hidden` and `wide_proc` are those of the real worker; with `namespaces` it is started
    through bubblewrap. `python` has to be executable by `user`. With `confined` false nothing is confined: the control
    that shows that the attacks work at all. Takes about a second. Failures of the machinery are in `error`, and make
    the tier "unconfined"; raises OSError only where no temporary directory can be made.
    """
    root = tempfile.mkdtemp(prefix="probe-")
    try:
        probe = _Probe(root, readable, devices, user, python, base or os.environ)
        probe.wide_proc, probe.hidden = wide_proc, list(hidden)
        return probe.run(namespaces, confined, timeout_s)
    except (OSError, ValueError, KeyError, ConfinementError, subprocess.SubprocessError) as error:
        return Observed(os.getuid() if user is None else user, None, error=f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


class _Probe:
    """The files and processes of one run."""

    def __init__(
        self,
        root: str,
        readable: Sequence[str],
        devices: Sequence[str],
        user: int | None,
        python: str,
        base: Mapping[str, str],
    ) -> None:
        self.root, self.user, self.python, self.base = root, user, python, base
        self.devices, self.wide_proc = list(devices), False
        self.hidden: list[str] = []
        self.secret = "secret-" + secrets.token_hex(16)
        self.scratch = self._directory("scratch")
        prepare_scratch(self.scratch)
        hidden, results, public = (self._directory(name) for name in ("hidden", "results", "public"))
        self.paths = {
            "hidden": hidden,
            "hidden_file": self._file(hidden, "task.json"),
            "results": results,
            "result_file": self._file(results, "result.json"),
            "public_file": self._file(public, "reference.py"),
            "socket_path": os.path.join(root, "broker.socket"),
            "datagram_path": os.path.join(root, "broker.datagrams"),
            "abstract_name": self.secret[:20],
        }
        for name in ("spare", "truncated", "replaced", "renamed"):
            self._file(results, name)
        own = interpreter_readable() if python == sys.executable else []
        self.readable = [*readable, *own, os.path.dirname(os.path.abspath(__file__)), public]
        if user is not None:
            for directory, _, files in os.walk(root):
                for path in (directory, *(os.path.join(directory, name) for name in files)):
                    os.chown(path, user, user)

    def _directory(self, name: str) -> str:
        path = os.path.join(self.root, name)
        os.mkdir(path, 0o755)
        return path

    def _file(self, directory: str, name: str) -> str:
        path = os.path.join(directory, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(self.secret)
        return path

    def run(self, namespaces: bool, confined: bool, timeout_s: float) -> Observed:
        outside = ("hidden", "results", "public")
        files_before = {name: _snapshot(os.path.join(self.root, name)) for name in outside}
        with self._start("victim", [], {}) as broker:
            assert broker.stdin is not None
            assert broker.stdout is not None
            try:
                here = _exchange(broker, self.paths | {"secret": self.secret}, timeout_s)
                state_before = _exchange(broker, "state", timeout_s)
                answer = self._attack(here, namespaces, confined, timeout_s)
                state_after = _exchange(broker, "state", timeout_s)
            finally:
                broker.kill()
        changed = [f"victim {name}" for name, value in state_before.items() if state_after[name] != value]
        for name in outside:
            after = _snapshot(os.path.join(self.root, name))
            changed += [
                f"{name}/{path}"
                for path in sorted(after.keys() | files_before[name].keys())
                if after.get(path) != files_before[name].get(path)
            ]
        return Observed(
            uid=answer["uid"],
            report=Report.from_json(answer["report"]) if answer["report"] else None,
            attacks={name: Outcome(**each) for name, each in answer["attacks"].items()},
            changed=tuple(changed),
            namespaces=all(answer["namespaces"][kind] != _namespace(kind) for kind in ("pid", "ipc", "net")),
        )

    def _attack(self, here: dict[str, Any], namespaces: bool, confined: bool, timeout_s: float) -> dict[str, Any]:
        go, kept_open = _page(sealed=confined)
        leaked = os.open(self.paths["hidden_file"], os.O_RDONLY)
        try:
            known: dict[str, Any] = {name: here[name] for name in ("pid", "address", "descriptor")} | self.paths
            target = Target(**known, secret=self.secret, go_descriptor=go, scratch=self.scratch)
            setup = {
                "target": dataclasses.asdict(target),
                "confined": confined,
                "readable": self.readable,
                "devices": self.devices,
                "hidden": self.hidden,
                "wide_proc": self.wide_proc,
            }
            prefix = bwrap_argv(self.scratch, self.readable, self.devices) if namespaces else []
            environment = worker_environment(self.scratch, {**self.base, "SOME_TOKEN": self.secret})
            if not confined:
                environment["SOME_TOKEN"] = self.secret
            with self._start("attacker", prefix, environment, go, leaked) as attacker:
                try:
                    out, err = attacker.communicate(json.dumps(setup).encode() + b"\n", timeout_s)
                finally:
                    attacker.kill()
        finally:
            kept_open.close()
            os.close(go)
            os.close(leaked)
        lines = out.splitlines()
        if not lines:
            tail = err.decode(errors="replace").strip().splitlines()[-1:]
            raise OSError(errno.ECHILD, f"the attacker said nothing: {tail}")
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def _start(
        self, role: str, prefix: list[str], environment: dict[str, str], *descriptors: int
    ) -> subprocess.Popen[bytes]:
        """As a worker is started: isolated mode, no site packages, own session, own environment."""
        package = os.path.dirname(os.path.abspath(__file__))
        code = (
            "import importlib.util as u, sys;"
            "a = sys.argv[1];"
            "s = u.spec_from_file_location('confine', a + '/__init__.py', submodule_search_locations=[a]);"
            "m = sys.modules['confine'] = u.module_from_spec(s); s.loader.exec_module(m);"
            "m.probe.main(sys.argv[2])"
        )
        return subprocess.Popen(
            [*prefix, self.python, "-I", "-S", "-B", "-c", code, package, role],
            env=environment or {"PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
            cwd=self.scratch,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )


def _page(*, sealed: bool) -> tuple[int, mmap.mmap]:
    """A page that we can write through our mapping; if `sealed`, whoever gets the descriptor can only read it."""
    page = os.memfd_create("go", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(page, 4096)
    mapping = mmap.mmap(page, 4096)
    if sealed:
        fcntl.fcntl(page, fcntl.F_ADD_SEALS, _GO_SEALS)
    return page, mapping


def _exchange(process: subprocess.Popen[bytes], message: object, timeout_s: float) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise OSError(errno.ESRCH, "the victim does not answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _snapshot(directory: str) -> dict[str, tuple[object, ...]]:
    """Name -> all that an attack could change, for the directory's entries and itself ("")."""
    facts: dict[str, tuple[object, ...]] = {}
    for name in ["", *os.listdir(directory)]:
        path = os.path.join(directory, name)
        kept = os.lstat(path)
        content = b""
        if name and os.path.isfile(path) and not os.path.islink(path):
            with open(path, "rb") as file:
                content = file.read()
        owner = (kept.st_mode, kept.st_uid, kept.st_gid, kept.st_nlink)
        facts[name] = (*owner, kept.st_mtime_ns, kept.st_ctime_ns, content)
    return facts


def _namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def main(role: str) -> None:
    """Entry of the two processes that :func:`probe_worker` starts."""
    if role == "victim":
        victim()
    else:
        _attacker()


def _attacker() -> None:
    from .confinement import enter, seal

    setup = json.loads(sys.stdin.readline())
    target = Target(**setup["target"])
    report = None
    if setup["confined"]:
        keep = [target.go_descriptor]
        enter(
            target.scratch, setup["readable"], setup["devices"],
            keep=keep, hidden=setup["hidden"], wide_proc=setup["wide_proc"],
        )  # fmt: skip
        report = seal().to_json()
    answer = {
        "uid": os.getuid(),
        "report": report,
        "namespaces": {kind: _namespace(kind) for kind in ("pid", "ipc", "net")},
        "attacks": {
            name: {"severity": severity} | _try(attack, target)
            for severity, attacks in _SEVERITIES.items()
            for name, attack in attacks.items()
        },
    }
    print(json.dumps(answer), flush=True)


def _try(attack: Attack, target: Target) -> dict[str, Any]:
    """Try one attack in a child. An attack that fails in any way but by an OSError or a signal counts as succeeded."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_ATTACK_S)
        try:
            attack(target)
            said = "succeeded"
        except OSError as error:
            said = errno.errorcode.get(error.errno or 0, str(error.errno))
        except BaseException as error:
            said = f"succeeded:{error!r}"
        os.write(writing, said.encode()[:200])
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 200).decode(errors="replace")
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if not said:
        said = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "vanished"
    succeeded = said.startswith("succeeded") or said == "vanished"
    return {"succeeded": succeeded, "errno": said.removeprefix("succeeded").removeprefix(":")}
