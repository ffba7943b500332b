"""Namespaces through bubblewrap, around the rest: private processes, IPC, network, /tmp and /dev/shm.

It adds to Landlock and seccomp what they cannot give: other processes are not even named, files outside cannot be
stat'ed, and SysV or abstract names are the worker's own. It needs user namespaces (or privilege), which most containers
forbid, and CUDA's inter-process handles have not been shown to work across process and IPC namespaces; so nothing uses
it unless asked to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/nix/store")


def bwrap_argv(scratch: str, readable: Sequence[str], devices: Sequence[str] = ()) -> list[str]:
    """The words to put before a worker's command line; its scratch and readable paths keep their names inside.

    The supervisor's descriptors 3 and up pass through bubblewrap to the worker as they are. Raises FileNotFoundError
    where bubblewrap is not installed.
    """
    program = shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin")
    if program is None:
        raise FileNotFoundError("bubblewrap (bwrap) is not installed")
    words = [program, "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-net", "--unshare-uts"]
    words += ["--uid", str(os.getuid()), "--gid", str(os.getgid())]
    for path in _SYSTEM:
        if os.path.isdir(path):
            words += ["--ro-bind", path, path]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--tmpfs", "/tmp", "--ro-bind", "/sys", "/sys"]
    for path in dict.fromkeys(os.path.abspath(each) for each in readable):
        words += ["--ro-bind-try", path, path]
    for path in devices:
        words += ["--dev-bind-try", path, path]
    where = os.path.abspath(scratch)
    return [*words, "--bind", where, where, "--chdir", where, "--"]


def bwrap_works(scratch: str) -> str:
    """An empty string if bubblewrap can start this Python here, or the reason why not (one line)."""
    try:
        prefix = bwrap_argv(scratch, [sys.base_prefix, sys.prefix, os.path.dirname(sys.executable)])
        command = [*prefix, sys.executable, "-I", "-S", "-c", ""]
        done = subprocess.run(command, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return "" if done.returncode == 0 else last[0]
