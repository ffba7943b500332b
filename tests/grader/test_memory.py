"""Shared memory and layouts: what goes in comes out bit for bit, and no descriptor reaches outside its allocation."""

from __future__ import annotations

import json
import math
import os
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskfactory.grader import memory
from taskfactory.grader.memory import (
    ALIGNMENT,
    GRANULE,
    SharedArena,
    build_arguments,
    copy_bits,
    fill_arena,
    map_file,
    plan_layout,
    poison,
    resolve,
)
from taskfactory.grader.protocol import MAX_DIMS, OutputDescriptor, ProtocolViolation

KEPT_DTYPES = ("bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in shape, dtype and every bit."""
    if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
        return a.shape == b.shape and a.dtype == b.dtype
    # clone: the stride of a single entry may be anything
    plain_a, plain_b = (t.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(plain_a, plain_b)


def passed_on(args: Any) -> list[Any]:
    """Arguments as the worker builds them: laid out, filled in by the broker, described in JSON, viewed again."""
    layout = plan_layout(args)
    arena = torch.full((layout.nbytes,), 0xEE, dtype=torch.uint8)
    fill_arena(arena, layout.arguments, args)
    return build_arguments(arena, json.loads(json.dumps(layout.arguments)))


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_argument_goes_round() -> None:
    x = torch.randn(5, 7).bfloat16()
    args = (x, None, True, 1, 0, False, 0.1, (x, 3, None), (), x.t(), torch.tensor(4, dtype=torch.int64))
    got = passed_on(args)
    assert len(got) == len(args)
    for a, b in zip(args, got, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert same(a, b)
            assert a.stride() == b.stride()
        elif not isinstance(a, tuple):
            assert a == b
    assert same(got[7][0], x)
    assert got[7][1:] == (3, None)


@pytest.mark.parametrize("value", [True, False, 0, 1, -(2**70), 0.0, -0.0, 1e-320, 0.1, math.inf, -math.inf])
def test_numbers_keep_type_and_value(value: float) -> None:
    (got,) = passed_on((value,))
    assert type(got) is type(value)
    assert got == value
    assert math.copysign(1, got) == math.copysign(1, value)


def test_a_nan_stays_one() -> None:
    assert math.isnan(passed_on((math.nan,))[0])


@pytest.mark.parametrize(
    "tensor",
    {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "every other column": torch.arange(24.0).reshape(4, 6)[:, 1::2],
        "a column": torch.arange(12.0).reshape(3, 4)[:, 2],
        "channels last": torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "permuted": torch.arange(60, dtype=torch.int16).reshape(3, 4, 5).permute(2, 0, 1),
        "no entries": torch.zeros(3, 0, 5),
        "a scalar": torch.tensor(2.5, dtype=torch.float64),
        "many dimensions": torch.arange(128, dtype=torch.uint8).reshape(2, 2, 2, 2, 2, 2, 2),
    }.items(),
    ids=lambda item: item[0],
)
def test_tensors_keep_values_and_strides(tensor: tuple[str, torch.Tensor]) -> None:
    x = tensor[1]
    (got,) = passed_on((x,))
    assert same(x, got)
    assert got.stride() == x.stride()


def test_arguments_lie_apart_and_aligned() -> None:
    args = (torch.zeros(1), torch.zeros(1025), torch.zeros(0), (torch.zeros(3), torch.zeros(2, 2)))
    layout = plan_layout(args)
    places = [entry["tensor"]["at"] for entry in (*layout.arguments[:3], *layout.arguments[3]["tuple"])]
    assert places == [0, ALIGNMENT, 3 * ALIGNMENT, 4 * ALIGNMENT, 5 * ALIGNMENT]
    assert layout.nbytes == 6 * ALIGNMENT


def test_filling_one_argument_leaves_the_others_alone() -> None:
    x, y = torch.randn(100), torch.randn(100)
    got = passed_on((x, y, x))
    assert all(same(a, b) for a, b in zip(got, (x, y, x), strict=True))


@pytest.mark.parametrize("value", ["text", b"bytes", {"a": 1}, object(), ((1,),), ("text",), 1j])
def test_other_arguments_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="possible: tensors, numbers, None, flat tuples"):
        plan_layout((value,))


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    order=st.permutations(range(4)),
    dtype=st.sampled_from(KEPT_DTYPES),
    step=st.integers(1, 3),
)
def test_any_strided_tensor_goes_round(shape: list[int], order: list[int], dtype: str, step: int) -> None:
    dims = [k for k in order if k < len(shape)]
    base = torch.arange(math.prod(shape) * step).to(getattr(torch, dtype))
    x = base[::step].reshape(shape).permute(dims)
    (got,) = passed_on((x,))
    assert same(x, got)
    assert got.stride() == x.stride()


# -- bits --------------------------------------------------------------------------------------------------------------

PATTERNS = {
    torch.uint8: [0, 1, 0x80, 0xFF],
    torch.int16: [0, -32768, 0x7FA5, 0x7F81, -1, 0x7C01],
    torch.int32: [0, -(2**31), 0x7F800001, 0x7FC01234, -1, 1],
    torch.int64: [0, -(2**63), 0x7FF0000000000001, 0x7FF8DEADBEEF0000, -1, 1],
}


@pytest.mark.parametrize(
    ("dtype", "integer"),
    [
        (torch.float16, torch.int16), (torch.bfloat16, torch.int16), (torch.float32, torch.int32),
        (torch.float64, torch.int64), (torch.int64, torch.int64), (torch.bool, torch.uint8),
        (torch.float8_e4m3fn, torch.uint8), (torch.complex64, torch.int64),
    ],
)  # fmt: skip
def test_copies_keep_every_bit(dtype: torch.dtype, integer: torch.dtype) -> None:
    """NaN payloads, signalling NaNs, the sign of zero and denormals included."""
    patterns = [0, 1] if dtype is torch.bool else PATTERNS[integer]
    source = torch.tensor(patterns, dtype=integer).view(dtype)
    target = torch.zeros(len(patterns), dtype=integer).view(dtype)
    copy_bits(target, source)
    assert same(source, target)


@pytest.mark.parametrize("dtype", [*KEPT_DTYPES, "complex128"])
def test_copies_follow_strides(dtype: str) -> None:
    source = torch.arange(24).to(getattr(torch, dtype)).reshape(4, 6)[:, ::2].t()
    target = torch.zeros(3, 4, dtype=source.dtype)
    copy_bits(target, source)
    assert same(source, target)
    spread = torch.zeros(2, dtype=source.dtype)
    copy_bits(spread, source[1, 1].expand(2))
    assert spread.tolist() == [source[1, 1].item()] * 2


@pytest.mark.parametrize("dtype", [*KEPT_DTYPES, "complex128"])
def test_poison_changes_every_entry_of_a_dense_tensor(dtype: str) -> None:
    x = torch.zeros(3, 5, dtype=getattr(torch, dtype)).t()
    poison(x)
    assert bool((x.contiguous().reshape(-1).view(torch.uint8) != 0).all())
    if x.is_floating_point():
        assert bool(torch.isnan(x).all())


@pytest.mark.parametrize("shape_stride", [((4, 2), (3, 1)), ((4, 2), (1, 1)), ((3, 4), (0, 1)), ((2,), (5,))])
def test_poison_leaves_strided_tensors_and_their_gaps_alone(shape_stride: tuple[tuple[int, ...], ...]) -> None:
    storage = torch.zeros(64)
    poison(storage.as_strided(*shape_stride))
    assert not bool(storage.any())


def test_poison_of_nothing_is_nothing() -> None:
    poison(torch.zeros(0, 3))


# -- descriptors -------------------------------------------------------------------------------------------------------


def described(dtype: str, shape: Any, stride: Any, offset: int = 0) -> OutputDescriptor:
    return OutputDescriptor(b"", 0, offset, dtype, tuple(shape), tuple(stride))


STORAGE = torch.arange(256, dtype=torch.uint8).repeat(16)


@pytest.mark.parametrize("dtype", KEPT_DTYPES)
def test_a_view_inside_is_resolved(dtype: str) -> None:
    itemsize = getattr(torch, dtype).itemsize
    got = resolve(described(dtype, (3, 2), (5, 2), 2 * itemsize), STORAGE)
    assert (str(got.dtype), tuple(got.shape), got.stride()) == (f"torch.{dtype}", (3, 2), (5, 2))
    assert got.data_ptr() == STORAGE.data_ptr() + 2 * itemsize


@pytest.mark.parametrize(
    "descriptor",
    {
        "an unknown dtype": described("float31", (1,), (1,)),
        "no dtype": described("", (1,), (1,)),
        "something else of torch": described("nn", (1,), (1,)),
        "an attribute that imports": described("_inductor", (1,), (1,)),
        "sub-byte entries": described("uint4", (1,), (1,)),
        "quantised entries": described("quint8", (1,), (1,)),
        "a negative size": described("uint8", (-1,), (1,)),
        "two negative sizes": described("uint8", (-2, -2), (1, 1)),
        "a negative stride": described("uint8", (2,), (-1,), 8),
        "an odd offset": described("float32", (1,), (1,), 2),
        "one entry too many": described("float32", (1025,), (1,)),
        "the last entry half outside": described("float32", (1,), (1,), 4096),
        "a far offset": described("uint8", (1,), (1,), 2**64 - 1),
        "a far stride": described("uint8", (2, 2), (2**62, 2**62)),
        "an extent of 2**64 bytes": described("float32", (2**31, 2**31), (1, 2**31)),
        "more entries than 63 bits count": described("float32", (2**62, 2**62), (0, 0)),
        "entries that count to 0 in 64 bits": described("float32", (2**32, 2**32), (0, 0)),
        "the largest size": described("uint8", (2**63 - 1,), (0,)),
    }.items(),
    ids=lambda item: item[0],
)
def test_descriptors_that_lie(descriptor: tuple[str, OutputDescriptor]) -> None:
    with pytest.raises(ProtocolViolation):
        resolve(descriptor[1], STORAGE)


def test_the_whole_storage_and_its_last_byte_are_inside() -> None:
    assert resolve(described("float32", (1024,), (1,)), STORAGE).numel() == 1024
    assert int(resolve(described("uint8", (1,), (1,), 4095), STORAGE)[0]) == int(STORAGE[-1])
    assert resolve(described("uint8", (0, 7), (7, 1), 4096), STORAGE).numel() == 0


_any_size = st.one_of(st.integers(-2, 40), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=400, deadline=None)
@given(
    dtype=st.one_of(st.sampled_from([*KEPT_DTYPES, "complex128", "bits8", "int1", "float4_e2m1fn_x2"]), st.text()),
    sizes=st.lists(st.tuples(_any_size, _any_size), max_size=MAX_DIMS),
    offset=st.one_of(st.integers(0, 5000), st.integers(0, 2**64 - 1)),
)
def test_any_descriptor_stays_inside_or_is_a_violation(dtype: str, sizes: list[tuple[int, int]], offset: int) -> None:
    descriptor = described(dtype, [n for n, _ in sizes], [s for _, s in sizes], offset)
    try:
        got = resolve(descriptor, STORAGE)
    except ProtocolViolation:
        return
    if not got.numel():
        return
    start = got.data_ptr() - STORAGE.data_ptr()
    last = sum((n - 1) * s for n, s in zip(got.shape, got.stride(), strict=True))
    assert start == offset
    assert start + (last + 1) * got.element_size() <= STORAGE.numel()
    if got.numel() <= 1 << 16:
        copy_bits(torch.empty(got.shape, dtype=got.dtype), got)  # what the broker does with it next


# -- arenas ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, GRANULE, GRANULE + 1])
def test_an_arena_is_whole_granules_of_zeros(nbytes: int) -> None:
    arena = SharedArena(nbytes, "cpu")
    assert arena.nbytes == arena.tensor.numel() == GRANULE * max(1, -(-nbytes // GRANULE))
    assert not bool(arena.tensor.any())
    fd = arena.fd
    arena.free()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_both_sides_see_one_arena() -> None:
    arena = SharedArena(10, "cpu")
    other = map_file(arena.fd, arena.nbytes)
    arena.tensor[5] = 7
    assert int(other[5]) == 7
    other[6] = 8
    assert int(arena.tensor[6]) == 8
    arena.free()


def test_cuda_errors_are_told_from_others() -> None:
    class AcceleratorError(RuntimeError):
        pass

    assert memory.is_cuda_error(AcceleratorError("anything"))
    assert memory.is_cuda_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert memory.is_cuda_error(memory.DriverError("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)"))
    assert not memory.is_cuda_error(RuntimeError("The size of tensor a (3) must match"))
