"""Attacks through the kernel: sockets, namespaces, IPC, privileges and interfaces a worker has no use for."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct

from . import libc
from .attack_process import Attack, Blocked
from .target import Target

_NEWUSER, _NEWNET, _NEWNS, _NEWPID, _NEWIPC = 0x10000000, 0x40000000, 0x00020000, 0x20000000, 0x08000000
_SIGCHLD = 17


def _socket(family: int, kind: int, protocol: int = 0) -> Attack:
    return lambda target: socket.socket(family, kind, protocol)


def _connect(address: str) -> Attack:
    def attack(target: Target) -> None:
        where = "\0" + target.abstract_name if address == "abstract_name" else getattr(target, address)
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(where)

    return attack


def _datagram_pair(target: Target) -> object:
    """A pair of datagram sockets needs no socket() call, and could still send to any path."""
    mine, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return mine.sendto(b"forged", target.datagram_path)


def _stream_pair(target: Target) -> object:
    mine, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return mine.sendto(b"forged", target.socket_path)


def _loopback(target: Target) -> object:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.bind(("127.0.0.1", 0))
    server.listen()
    return socket.create_connection(server.getsockname(), 1)


def _clone(flags: int) -> Attack:
    def attack(target: Target) -> object:
        child = libc.syscall("clone", flags | _SIGCHLD, 0, 0, 0, 0)
        if child == 0:
            os._exit(0)
        return os.waitpid(child, 0)

    return attack


def _clone3(target: Target) -> object:
    child = libc.syscall("clone3", struct.pack("<11Q", _NEWUSER, 0, 0, 0, _SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def _setns(target: Target) -> object:
    return libc.syscall("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)


def _shared_segment(target: Target) -> object:
    segment = libc.syscall("shmget", 0, 4096, 0o1600)
    return libc.syscall("shmctl", segment, 0, 0)


def _message_queue(target: Target) -> object:
    return libc.syscall("msgctl", libc.syscall("msgget", 0, 0o1600), 0, 0)


def _semaphore(target: Target) -> object:
    return libc.syscall("semctl", libc.syscall("semget", 0, 1, 0o1600), 0, 0)


def _posix_queue(target: Target) -> object:
    name = f"confine-probe-{os.getpid()}\0".encode()
    libc.syscall("mq_open", name, os.O_CREAT | os.O_RDWR, 0o600, 0)
    return libc.syscall("mq_unlink", name)


def _perf(target: Target) -> object:
    # PERF_COUNT_SW_TASK_CLOCK of ourselves, user part only: the most harmless there is.
    return libc.syscall("perf_event_open", struct.pack("<IIQ24xQ72x", 1, 120, 1, 1 << 5), 0, -1, -1, 0)


def _io_uring(target: Target) -> object:
    return libc.syscall("io_uring_setup", 1, ctypes.create_string_buffer(120))


def _mount(target: Target) -> object:
    where = target.scratch.encode() + b"\0"
    libc.syscall("mount", b"none\0", where, b"tmpfs\0", 0, 0)
    return libc.syscall("umount2", where, 2)


def _host_name(target: Target) -> object:
    return libc.syscall("sethostname", os.uname().nodename.encode(), len(os.uname().nodename))


def _set_clock(target: Target) -> object:
    """The time zone of the kernel, which is always zero, set to zero: needs the privilege, changes nothing."""
    return libc.syscall("settimeofday", 0, struct.pack("<ii", 0, 0))


def _file_handle(target: Target) -> object:
    handle, mount = ctypes.create_string_buffer(struct.pack("<I", 128), 136), ctypes.create_string_buffer(4)
    return libc.syscall("name_to_handle_at", -100, b"/usr\0", handle, mount, 0)


def _device_node(target: Target) -> None:
    os.mknod(os.path.join(target.scratch, "null"), 0o20666, os.makedev(1, 3))


def _new_privileges(target: Target) -> object:
    if libc.prctl(libc.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1:
        raise Blocked(errno.EPERM, "a setuid program would gain nothing")
    return None


def _capabilities(target: Target) -> object:
    sets = ctypes.create_string_buffer(24)
    libc.syscall("capget", struct.pack("<Ii", 0x20080522, 0), sets)
    if not any(sets.raw):
        raise Blocked(errno.EPERM, "there are none")
    return None


def _foreign_architecture(target: Target) -> object:
    """getpid by the 32-bit entry (int 0x80), whose numbers mean other calls. Dies if the filter looks."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    here = ctypes.addressof(ctypes.c_char.from_buffer(code))
    if os.uname().machine != "x86_64":
        raise Blocked(errno.ENOSYS, "no such entry here")
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(here)()
    if answer < 0:
        raise Blocked(-answer, "refused")
    return answer


def _x32(target: Target) -> object:
    return libc.syscall(0x40000000 + 39)


_EXECUTE_DOMAIN = 0x0040000  # ADDR_NO_RANDOMIZE

DISTURB: dict[str, Attack] = {
    "tcp": _socket(socket.AF_INET, socket.SOCK_STREAM),
    "tcp_loopback": _loopback,
    "udp": _socket(socket.AF_INET, socket.SOCK_DGRAM),
    "tcp6": _socket(socket.AF_INET6, socket.SOCK_STREAM),
    "raw": _socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "netlink": _socket(16, socket.SOCK_RAW),
    "packet": _socket(17, socket.SOCK_RAW),
    "vsock": _socket(40, socket.SOCK_STREAM),
    "alg": _socket(38, socket.SOCK_SEQPACKET),
    "unix": _socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "unix_path": _connect("socket_path"),
    "unix_abstract": _connect("abstract_name"),
    "unix_pair_datagram": _datagram_pair,
    "unix_pair_stream": _stream_pair,
    "unshare_user": lambda target: libc.syscall("unshare", _NEWUSER),
    "unshare_mount": lambda target: libc.syscall("unshare", _NEWNS),
    "clone_user": _clone(_NEWUSER),
    "clone_user_net": _clone(_NEWUSER | _NEWNET),
    "clone_user_pid": _clone(_NEWUSER | _NEWPID | _NEWIPC),
    "clone3_user": _clone3,
    "setns": _setns,
    "sysv_memory": _shared_segment,
    "sysv_messages": _message_queue,
    "sysv_semaphores": _semaphore,
    "posix_queue": _posix_queue,
    "bpf": lambda target: libc.syscall("bpf", 0, struct.pack("<IIII56x", 2, 4, 4, 1), 72),
    "perf_event_open": _perf,
    "io_uring_setup": _io_uring,
    "keyctl": lambda target: libc.syscall("keyctl", 0, -3, 1),
    "add_key": lambda target: libc.syscall("add_key", b"user\0", b"confine-probe\0", b"x", 1, -1),
    "userfaultfd": lambda target: libc.syscall("userfaultfd", 1),
    "mount": _mount,
    "chroot": lambda target: os.chroot(target.scratch),
    "mknod": _device_node,
    "sethostname": _host_name,
    "settimeofday": _set_clock,
    "syslog": lambda target: libc.syscall("syslog", 10, 0, 0),
    "personality": lambda target: libc.syscall("personality", _EXECUTE_DOMAIN),
    "setuid": lambda target: os.setresuid(12345, 12345, 12345),
    "subreaper": lambda target: libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1),
    "file_handle": _file_handle,
    "fanotify": lambda target: libc.syscall("fanotify_init", 0, 0),
    "inotify": lambda target: libc.syscall("inotify_init1", 0),
    "modify_ldt": lambda target: libc.syscall("modify_ldt", 0, ctypes.create_string_buffer(16), 16),
    "new_privileges": _new_privileges,
    "capabilities": _capabilities,
    "foreign_architecture": _foreign_architecture,
    "x32": _x32,
}
