"""The seccomp program: what the kernel will answer, computed by interpreting the assembled instructions."""

from __future__ import annotations

import errno
import random
import struct

import pytest

from taskfactory.grader.confine import bpf, seccomp
from taskfactory.grader.confine.syscalls import Machine, machine

PID = 4321


def run(program: bytes, number: int, arguments: list[int], arch: int) -> int:
    """A classic-BPF interpreter for the instructions that the assembler emits."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, place = 0, 0
    while True:
        operation, true, false, value = code[place]
        place += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x05:
            place += value
        elif operation == 0x15:
            place += true if accumulator == value else false
        elif operation == 0x35:
            place += true if accumulator >= value else false
        elif operation == 0x06:
            return int(value)
        else:
            raise AssertionError(f"instruction {operation:#x}")


def ruleset(name: str, stage: str) -> bpf.Ruleset:
    here = machine(name)
    assert here is not None
    if stage == "sealed":
        return seccomp.seal_rules(here, PID, signals_scoped=True)
    if stage == "unscoped":
        return seccomp.seal_rules(here, PID, signals_scoped=False)
    return seccomp.startup_rules(here, PID, signals_scoped=True, local_sockets=True)


@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
@pytest.mark.parametrize("stage", ["sealed", "unscoped", "startup"])
def test_program_agrees_with_the_rules(name: str, stage: str) -> None:
    rules = ruleset(name, stage)
    program = bpf.assemble(rules)
    assert len(program) // 8 <= bpf.MAX_INSTRUCTIONS
    dice = random.Random(7)
    interesting = [0, 1, 2, PID, PID + 1, 0xFFFFFFFF, 0x10000000, 0x11, 0x5412, 0x5401, 0x6602, 8, 15, 38, 36, 0x8000]
    for number in [*range(600), 0x3FFFFFFF, 0x40000000, 0x40000027, 0xFFFFFFFF]:
        for _ in range(24 if number in rules.rules else 1):
            # The upper half of a register is noise, which neither the kernel nor the filter may look at.
            arguments = [dice.choice(interesting) | dice.getrandbits(32) << 32 for _ in range(6)]
            refused = bpf.decide(rules, number, arguments)
            expected = bpf.RET_ALLOW if refused is None else bpf.RET_ERRNO | refused
            assert run(program, number, arguments, rules.machine.audit_arch) == expected, (number, arguments)


def test_other_architectures_are_killed() -> None:
    program = bpf.assemble(ruleset("x86_64", "sealed"))
    assert run(program, 20, [0] * 6, 0x40000003) == bpf.RET_KILL_PROCESS


def refusal(stage: str, name: str, *arguments: int) -> int | None:
    rules = ruleset("x86_64", stage)
    return bpf.decide(rules, rules.machine.numbers[name], [*arguments, *[0] * (6 - len(arguments))])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", (), None),
        ("clone", (0x3D0F00,), None),  # a thread
        ("clone", (0x1200011,), None),  # fork
        ("clone", (0x10000011,), errno.EPERM),
        ("clone", (0x8011,), errno.EPERM),  # as a child of our parent
        ("clone3", (), errno.ENOSYS),
        ("prlimit64", (0,), None),
        ("prlimit64", (PID,), None),
        ("prlimit64", (PID + 1,), errno.EPERM),
        ("prlimit64", (PID + 1 | 1 << 32,), errno.EPERM),
        ("setpriority", (0, 0), None),
        ("setpriority", (0, 7), errno.EPERM),
        ("setpriority", (2, 0), errno.EPERM),
        ("socketpair", (1, 0x80001), None),
        ("socketpair", (1, 0x80002), errno.EPERM),
        ("socketpair", (2, 1), errno.EPERM),
        ("socket", (1, 1), errno.EPERM),
        ("ioctl", (5, 0xC020462A), None),  # NVIDIA's
        ("ioctl", (5, 0x30000001), None),  # its unified memory
        ("ioctl", (5, 0x40086602), errno.EPERM),
        ("ioctl", (5, 0x5412), errno.EPERM),
        ("fcntl", (5, 2), None),
        ("fcntl", (5, 8), errno.EPERM),
        ("prctl", (15,), None),
        ("prctl", (36,), errno.EPERM),
        ("chmod", (), 0),
        ("setxattr", (), errno.ENOTSUP),
        ("seccomp", (), errno.EPERM),
        ("ptrace", (), errno.EPERM),
    ],
)
def test_decisions_once_sealed(name: str, arguments: tuple[int, ...], expected: int | None) -> None:
    assert refusal("sealed", name, *arguments) == expected


def test_start_up_allows_a_driver_its_socket_and_little_else() -> None:
    assert refusal("startup", "socket", 1) is None
    assert refusal("startup", "socket", 2) == errno.EPERM
    assert refusal("startup", "seccomp") is None
    assert refusal("startup", "ptrace") == errno.EPERM
    sealed, startup = ruleset("x86_64", "sealed"), ruleset("x86_64", "startup")
    assert set(sealed.rules) <= set(startup.rules)


def test_signals_without_scope_reach_only_oneself() -> None:
    assert refusal("sealed", "kill", 1) is None, "Landlock decides"
    assert refusal("unscoped", "kill", 1) == errno.EPERM
    assert refusal("unscoped", "kill", PID) is None
    assert refusal("unscoped", "tkill", PID) == errno.EPERM


def test_dangerous_calls_have_no_rule() -> None:
    rules = ruleset("x86_64", "sealed")
    names = """process_vm_readv process_vm_writev
    bpf perf_event_open keyctl add_key request_key mount umount2 move_mount
    fsopen open_tree unshare setns pivot_root chroot shmget shmat semget msgget mq_open init_module finit_module
    kexec_load reboot open_by_handle_at name_to_handle_at fanotify_init mknod mknodat execveat iopl ioperm syslog
    process_madvise process_mrelease kcmp migrate_pages move_pages setuid setresuid setgroups capset acct quotactl"""
    allowed = [name for name in names.split() if bpf.decide(rules, rules.machine.numbers[name], [0] * 6) is None]
    assert allowed == []


def test_unknown_machines_have_no_table() -> None:
    assert machine("riscv64") is None
    known = machine("x86_64")
    assert isinstance(known, Machine)
    assert known.numbers["landlock_restrict_self"] == 446
