"""Memory that broker and worker share, and the layout of a call's arguments in it.

On CUDA: raw driver allocations in multiples of 2 MiB. An IPC handle maps the *whole* allocation it belongs to, read
and write, and torch packs small tensors of any owner into one; a raw allocation of its own holds nothing else. The
handles are opened with the driver's own calls, since torch's IPC keeps its reference counts in files that a worker
could damage. On the CPU: memfds, with the same interface.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .compare import dtype_name
from .protocol import OutputDescriptor, ProtocolViolation, seal_size

GRANULE = 2 << 20
"""Shared CUDA allocations are multiples of this many bytes."""
ALIGNMENT = 4096
"""Each argument starts at a multiple of this many bytes of the arena."""
HANDLE_BYTES = 64

_SCALAR_DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
"""What a returned tensor may hold, right or wrong: entries of whole bytes that mean something by themselves."""
MAX_ENTRIES = 1 << 48
"""More entries than any memory holds; torch's own products of sizes overflow beyond 63 bits."""

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_POISON = {1: 0xA5, 2: 0x7FA5, 4: 0x7FA5A5A5, 8: 0x7FF5A5A5A5A5A5A5}
"""By entry size; NaN when read as a float of that size."""


class DriverError(RuntimeError):
    """A CUDA driver call failed."""


def is_cuda_error(error: RuntimeError) -> bool:
    """Whether an error is the CUDA context's: torch.AcceleratorError (of that text only before 2.8) or the driver's."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error) or isinstance(error, DriverError)


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


_driver_library: ctypes.CDLL | None = None


def _driver() -> ctypes.CDLL:
    """The CUDA driver with argument types set. torch must have initialised CUDA in this thread before."""
    global _driver_library
    if _driver_library is None:
        library = ctypes.CDLL("libcuda.so.1")
        pointer, size = ctypes.c_uint64, ctypes.c_size_t
        library.cuMemAlloc_v2.argtypes = [ctypes.POINTER(pointer), size]
        library.cuMemFree_v2.argtypes = [pointer]
        library.cuMemGetAddressRange_v2.argtypes = [ctypes.POINTER(pointer), ctypes.POINTER(size), pointer]
        library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(_Handle), pointer]
        library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(pointer), _Handle, ctypes.c_uint]
        library.cuIpcCloseMemHandle.argtypes = [pointer]
        library.cuPointerGetAttribute.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_int, pointer]
        library.cuGetErrorName.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)]
        _driver_library = library
    return _driver_library


def _check(code: int, call: str) -> None:
    if code:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        raise DriverError(f"{call}: {(name.value or b'unknown').decode()} ({code})")


class _Pointer:
    """`nbytes` bytes of device memory as torch's `as_tensor` understands them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3,
        }  # fmt: skip


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """A uint8 CUDA tensor over memory that somebody else owns."""
    return torch.as_tensor(_Pointer(address, nbytes), device="cuda")


def allocation_of(address: int) -> tuple[int, int]:
    """(base address, bytes) of the allocation an address belongs to."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _check(_driver().cuMemGetAddressRange_v2(base, size, address), "cuMemGetAddressRange")
    return base.value, size.value


def export_handle(base: int) -> bytes:
    """The IPC handle of an allocation."""
    handle = _Handle()
    _check(_driver().cuIpcGetMemHandle(handle, base), "cuIpcGetMemHandle")
    return bytes(handle.reserved)


def open_handle(handle: bytes) -> int:
    """Map another process's allocation and return its address here."""
    address = ctypes.c_uint64()
    record = _Handle((ctypes.c_ubyte * HANDLE_BYTES).from_buffer_copy(handle))
    _check(_driver().cuIpcOpenMemHandle_v2(address, record, 1), "cuIpcOpenMemHandle")  # 1: enable peer access lazily
    return address.value


def close_handle(address: int) -> None:
    """Unmap what `open_handle` mapped."""
    _check(_driver().cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle")


class SharedArena:
    """A shared block of bytes, made by the broker. `tensor` is its uint8 view there."""

    def __init__(self, nbytes: int, device: str) -> None:
        self.device = device
        self.nbytes = -(-max(nbytes, 1) // GRANULE) * GRANULE
        self.fd = -1
        self.handle = b""
        if device == "cuda":
            address = ctypes.c_uint64()
            _check(_driver().cuMemAlloc_v2(address, self.nbytes), "cuMemAlloc")
            self._address = address.value
            self.handle = export_handle(self._address)
            self.tensor = bytes_at(self._address, self.nbytes)
        else:
            self.fd = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, self.nbytes)
            seal_size(self.fd)  # a worker that shrank it would break the broker, which has it mapped
            self.tensor = map_file(self.fd, self.nbytes)

    def free(self) -> None:
        """Give the memory back; the worker must be dead."""
        del self.tensor
        if self.device == "cuda":
            _check(_driver().cuMemFree_v2(self._address), "cuMemFree")
        else:
            os.close(self.fd)


def map_file(fd: int, nbytes: int) -> torch.Tensor:
    """A uint8 CPU tensor over a shared file."""
    return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers of the entries' size; a complex number as two."""
    scalars = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return scalars.view(_INTEGER[scalars.element_size()])


def copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy bit for bit with a compute kernel of this process (a driver copy may run on a copy engine, concurrently)."""
    torch.bitwise_or(bits(source), 0, out=bits(target))


def poison(target: torch.Tensor) -> None:
    """Overwrite a tensor with bits that no correct output holds.

    Only a dense tensor: what lies in the gaps of a strided one may be other data of the worker's.
    """
    if target.numel() != _extent(target.shape, target.stride()):
        return
    integers = bits(target)
    integers.fill_(_POISON[integers.element_size()])


@dataclass(frozen=True)
class Layout:
    """Where each argument of a call lies in the arena, as JSON for the worker."""

    arguments: list[dict[str, Any]]
    nbytes: int


def plan_layout(args: Sequence[Any]) -> Layout:
    """Lay a call's tensor arguments out one behind the other.

    Raises:
        TypeError: an argument is not a tensor, int, float, bool, None or a flat tuple of these.
    """
    at = 0
    arguments: list[dict[str, Any]] = []

    def place(value: Any) -> dict[str, Any]:
        nonlocal at
        if isinstance(value, torch.Tensor):
            extent = _extent(value.shape, value.stride()) * value.element_size()
            entry = {
                "at": at, "dtype": dtype_name(value.dtype), "shape": list(value.shape), "stride": list(value.stride()),
            }  # fmt: skip
            at += -(-max(extent, 1) // ALIGNMENT) * ALIGNMENT
            return {"tensor": entry}
        if value is None or isinstance(value, (bool, int, float)):
            return {"value": value}
        raise TypeError(f"an argument of type {type(value).__name__}; possible: tensors, numbers, None, flat tuples")

    for value in args:
        arguments.append({"tuple": [place(v) for v in value]} if isinstance(value, (tuple, list)) else place(value))
    return Layout(arguments, at)


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Entries from the first to the last of a strided view, both included."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def view(arena: torch.Tensor, entry: dict[str, Any]) -> torch.Tensor:
    """The tensor an entry of a layout describes, over an arena's bytes."""
    dtype = getattr(torch, entry["dtype"])
    nbytes = _extent(entry["shape"], entry["stride"]) * dtype.itemsize
    flat = arena[entry["at"] : entry["at"] + nbytes].view(dtype)
    return flat.as_strided(entry["shape"], entry["stride"])


def build_arguments(arena: torch.Tensor, arguments: Sequence[dict[str, Any]]) -> list[Any]:
    """A call's positional arguments as fresh views over an arena."""

    def build(entry: dict[str, Any]) -> Any:
        if "tuple" in entry:
            return tuple(build(e) for e in entry["tuple"])
        return view(arena, entry["tensor"]) if "tensor" in entry else entry["value"]

    return [build(entry) for entry in arguments]


def fill_arena(arena: torch.Tensor, arguments: Sequence[dict[str, Any]], args: Sequence[Any]) -> list[Any]:
    """Copy a call's tensors into an arena and return the arguments as views over it."""
    placed = build_arguments(arena, arguments)
    for target, source in zip(placed, args, strict=True):
        pairs = zip(target, source, strict=True) if isinstance(target, tuple) else [(target, source)]
        for t, s in pairs:
            if isinstance(t, torch.Tensor):
                t.copy_(s)
    return placed


class Exporter:
    """Says where CUDA tensors lie, for another process to map; asks the driver once per allocation.

    An allocation is known by the driver's own number for it, which no later allocation at the same address shares.
    """

    _BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int, bytes]] = {}

    def describe(self, output: torch.Tensor) -> OutputDescriptor:
        """The descriptor of one tensor.

        Raises:
            DriverError: its memory cannot be shared (not from cudaMalloc, or imported from elsewhere).
        """
        address = output.untyped_storage().data_ptr()
        number = ctypes.c_uint64()
        _check(_driver().cuPointerGetAttribute(number, self._BUFFER_ID, address), "cuPointerGetAttribute")
        if number.value not in self._known:
            base, nbytes = allocation_of(address)
            self._known[number.value] = base, nbytes, export_handle(base)
        base, nbytes, handle = self._known[number.value]
        return OutputDescriptor(
            handle, nbytes, output.data_ptr() - base, dtype_name(output.dtype), tuple(output.shape),
            tuple(output.stride()),
        )  # fmt: skip


def resolve(output: OutputDescriptor, storage: torch.Tensor) -> torch.Tensor:
    """The strided tensor an untrusted descriptor names, inside `storage` (uint8, the whole mapped allocation).

    Raises:
        ProtocolViolation: an unknown dtype, a negative stride, too many entries, or entries outside the allocation.
    """
    dtype = getattr(torch, output.dtype, None) if output.dtype in _SCALAR_DTYPES else None
    if dtype is None:
        raise ProtocolViolation(f"an output of dtype {output.dtype!r}")
    if any(n < 0 for n in output.shape) or any(s < 0 for s in output.stride) or output.offset % dtype.itemsize:
        raise ProtocolViolation("an output with a negative size, a negative stride or an odd offset")
    if math.prod(n for n in output.shape if n) > MAX_ENTRIES:
        raise ProtocolViolation("an output of more entries than any memory holds")
    nbytes = _extent(output.shape, output.stride) * dtype.itemsize
    if output.offset + nbytes > storage.numel():
        raise ProtocolViolation("an output that reaches outside its allocation")
    return storage[output.offset : output.offset + nbytes].view(dtype).as_strided(output.shape, output.stride)
