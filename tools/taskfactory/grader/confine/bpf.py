"""Rules about system calls, and their translation into a classic-BPF program for seccomp.

A :class:`Ruleset` is plain data. :func:`assemble` turns it into the program which the kernel runs at each call, and
:func:`decide` says in Python what that program answers: the tests compare the two, and the debug logger uses it.

Every argument the rules look at is an ``int`` in the kernel, which drops the upper half of the register, so tests read
the lower 32 bits and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .syscalls import Machine

# Instruction codes of linux/bpf_common.h.
_LOAD_WORD, _AND, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
# Offsets in struct seccomp_data: nr, arch, instruction pointer, six 64-bit arguments (little endian).
_NR, _ARCH, _ARGUMENTS = 0, 4, 16

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_NOTIFY = 0x7FC00000
RET_ALLOW = 0x7FFF0000

MAX_INSTRUCTIONS = 4096


@dataclass(frozen=True)
class Test:
    """``(argument & mask) in values`` must equal `member`."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    argument: int
    values: frozenset[int]
    member: bool = True
    mask: int = 0xFFFFFFFF

    def holds(self, arguments: Sequence[int]) -> bool:
        return ((arguments[self.argument] & self.mask) in self.values) == self.member


@dataclass(frozen=True)
class Rule:
    """Allowed if all tests of any one alternative hold; otherwise answered with `refusal` (0 pretends success).

    No alternatives: refused always. One empty alternative: allowed always.
    """

    alternatives: tuple[tuple[Test, ...], ...] = ((),)
    refusal: int = 1


@dataclass(frozen=True)
class Ruleset:
    """An allow-list for one architecture: numbers without a rule are answered with `refusal`."""

    machine: Machine
    rules: Mapping[int, Rule]
    refusal: int
    notify: frozenset[int] = field(default_factory=frozenset)
    """Numbers whose refusals go to a listener instead (debugging only); -1 stands for every number without a rule."""


def decide(ruleset: Ruleset, number: int, arguments: Sequence[int]) -> int | None:
    """The errno with which `number` is refused, or None if it is allowed. Foreign ABIs are refused with ENOSYS (38)."""
    if ruleset.machine.foreign_from is not None and number >= ruleset.machine.foreign_from:
        return 38
    rule = ruleset.rules.get(number)
    if rule is None:
        return ruleset.refusal
    if any(all(test.holds(arguments) for test in alternative) for alternative in rule.alternatives):
        return None
    return rule.refusal


class _Assembler:
    """Instructions with symbolic forward jumps; conditional jumps reach only 255, so each is paired with a long one."""

    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int | str]] = []
        self._labels: dict[str, int] = {}
        self._fresh = 0

    def label(self) -> str:
        self._fresh += 1
        return f"L{self._fresh}"

    def place(self, label: str) -> None:
        self._labels[label] = len(self._code)

    def emit(self, code: int, value: int | str = 0, true: int = 0, false: int = 0) -> None:
        self._code.append((code, true, false, value))

    def jump_if(self, code: int, value: int, label: str) -> None:
        self.emit(code, value, true=0, false=1)
        self.emit(_JUMP, label)

    def program(self) -> bytes:
        if len(self._code) > MAX_INSTRUCTIONS:
            raise ValueError(f"the filter has {len(self._code)} instructions; the kernel takes {MAX_INSTRUCTIONS}")
        words = []
        for place, (code, true, false, value) in enumerate(self._code):
            number = self._labels[value] - place - 1 if isinstance(value, str) else value
            words.append(struct.pack("<HBBI", code, true, false, number))
        return b"".join(words)


def assemble(ruleset: Ruleset) -> bytes:
    """The program for `ruleset`: packed ``struct sock_filter``, 8 bytes an instruction."""
    out = _Assembler()
    out.emit(_LOAD_WORD, _ARCH)
    own = out.label()
    out.jump_if(_JUMP_EQUAL, ruleset.machine.audit_arch, own)
    out.emit(_RETURN, RET_KILL_PROCESS)
    out.place(own)
    out.emit(_LOAD_WORD, _NR)
    _search(out, ruleset, _leaves(ruleset))
    return out.program()


def _refusal(ruleset: Ruleset, number: int, errno: int) -> int:
    return RET_NOTIFY if number in ruleset.notify else RET_ERRNO | errno


def _leaves(ruleset: Ruleset) -> list[tuple[int, int | Rule, int]]:
    """(first number, constant action or a rule to evaluate, number) for each run of numbers answered alike."""
    leaves: list[tuple[int, int | Rule, int]] = []
    default = _refusal(ruleset, -1, ruleset.refusal)
    top = max(ruleset.rules, default=0) + 1
    for number in range(top):
        rule = ruleset.rules.get(number)
        action: int | Rule
        if rule is None:
            action = default
        elif not rule.alternatives:
            action = _refusal(ruleset, number, rule.refusal)
        elif () in rule.alternatives:
            action = RET_ALLOW
        else:
            action = rule
        if not leaves or isinstance(action, Rule) or leaves[-1][1] != action:
            leaves.append((number, action, number))
    leaves.append((top, default, top))
    if ruleset.machine.foreign_from is not None:
        leaves.append((ruleset.machine.foreign_from, RET_ERRNO | 38, ruleset.machine.foreign_from))
    return leaves


def _search(out: _Assembler, ruleset: Ruleset, leaves: list[tuple[int, int | Rule, int]]) -> None:
    """Binary search by number: eight comparisons where a plain list would need hundreds."""
    if len(leaves) > 1:
        middle = len(leaves) // 2
        right = out.label()
        out.jump_if(_JUMP_AT_LEAST, leaves[middle][0], right)
        _search(out, ruleset, leaves[:middle])
        out.place(right)
        _search(out, ruleset, leaves[middle:])
        return
    _, action, number = leaves[0]
    if isinstance(action, int):
        out.emit(_RETURN, action)
        return
    for alternative in action.alternatives:
        following = out.label()
        for test in alternative:
            _check(out, test, following)
        out.emit(_RETURN, RET_ALLOW)
        out.place(following)
    out.emit(_RETURN, _refusal(ruleset, number, action.refusal))


def _check(out: _Assembler, test: Test, failed: str) -> None:
    out.emit(_LOAD_WORD, _ARGUMENTS + 8 * test.argument)
    if test.mask != 0xFFFFFFFF:
        out.emit(_AND, test.mask)
    if not test.member:
        for value in sorted(test.values):
            out.jump_if(_JUMP_EQUAL, value, failed)
        return
    passed = out.label()
    for value in sorted(test.values):
        out.jump_if(_JUMP_EQUAL, value, passed)
    out.emit(_JUMP, failed)
    out.place(passed)
