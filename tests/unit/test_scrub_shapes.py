"""What looks private is replaced, to its end and no further; what torch calls things is not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from distprof.scrub import names
from distprof.scrub.copy import scrub
from distprof.scrub.known import Known
from distprof.scrub.shapes import replace_shapes
from tests.unit.handmade import mark, write_trace
from tests.unit.proportion import PROPORTIONATE, growth


def test_quotes_and_brackets_around_a_secret_stay() -> None:
    text = "{\"password\": \"a b\"}, 'token': 'c', {secret: d}, [pwd=e]"
    expected = "{\"password\": \"secret-1\"}, 'token': 'secret-2', {secret: secret-3}, [pwd=secret-4]"
    assert replace_shapes(text, names.Names().of) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("connecting to 10.1.2.3:29500", "connecting to address-1:29500"),
        ("::ffff:10.1.2.3", "address-1"),
        ("on aa-bb-cc-dd-ee-ff", "on address-1"),
        ("at 26-01-31-12-00-00", "at 26-01-31-12-00-00"),
        ("path=/mnt/my data/x", "path=path-1"),
        ("a=/mnt/x,b=/mnt/y", "a=path-1,b=path-2"),
        ("load /mnt/a&b=c/x;f(/d/e)", "load path-1;f(path-2)"),
        ("bob@host:/data/x and git@host:a/b", "address-1 and address-2"),
    ],
)
def test_of_addresses_and_paths_all_is_replaced_and_no_more(text: str, expected: str) -> None:
    replaced = replace_shapes(text, names.Names().of)
    numbers = iter(range(1, 9))
    in_order = re.sub(r"(path|address)-[0-9]", lambda match: f"{match[1]}-{next(numbers)}", replaced)
    assert in_order == expected


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [
        (["gpu17", "gpu17.corp"], "on GPU17.corp, gpu17_x and gpu170", "on host-1, host-2_x and gpu170"),
        (["bob-a", "a"], "xbob-a bob-a-bob-a", "xbob-a host-1-host-1"),
        (["-lead"], "x -lead y-lead", "x host-1 y-lead"),
    ],
)
def test_known_values_are_found_as_whole_words(known: list[str], text: str, expected: str) -> None:
    values, given_names = Known(), names.Names()
    for value in known:
        values.add("host", value)
    assert values.replacer()(text, given_names.of) == expected


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        *((text, True) for text in ("", "12", "-1.5e-07", "[1, 2, [3]]", "(16, 16)", "4x8", "True", "***", "0.125")),
        *((text, False) for text in ("10.215.100.1", "2024-01-31", "030 1234567", "5551234567", "fe80::1", "a", "1a")),
    ],
)
def test_of_what_is_unknown_only_numbers_stay(tmp_path: Path, text: str, kept: bool) -> None:
    trace = write_trace(tmp_path / "rank0.json", [mark(1, 0, 10)], unknown={"thing": [text]})
    scrub([trace], tmp_path / "out")
    (copied,) = (tmp_path / "out").iterdir()
    assert json.loads(copied.read_text())["unknown"]["thing"] == [text if kept else "value-1"]


NAMES_OF_TORCH = """
aten::add
c10d::allreduce_
autograd::engine::evaluate_function: AddmmBackward0
gloo:all_reduce
ProfilerStep#12
Optimizer.step#SGD.step
DistributedDataParallel.forward
Memcpy HtoD (Pinned -> Device)
enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
torch/nn/modules/module.py(1501): _call_impl
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
cudaStreamSynchronize
void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int)
BinaryCrossEntropyWithLogitsBackward0
[memory]
_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_
GPU 0
<built-in method mm of type object at 0x7f0e01de4d20>
cpu:gloo,cuda:nccl
default_pg
2.13.0+cpu
cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8
triton_poi_fused_add_0
token/s
"""


@pytest.mark.parametrize("text", NAMES_OF_TORCH.strip().splitlines())
def test_what_torch_calls_things_is_not_private(text: str) -> None:
    given_names = names.Names()
    assert replace_shapes(text, given_names.of) == text


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "a.",
            "a/",
            "a@",
            "-a",
            "0:",
            '"/',
            "eyJ",
            "; /a ",
            "a1A",
            "A=",
            "--token ",
            "http://",
            "ab.com",
            "\\\\a",
        ),
        *(
            "a@a:",
            "/a,",
            "/a=",
            "a=/",
            "a=/;",
            "$a",
            "%2F",
            "aa-",
            "1.",
            "key:",
            "tokens:",
            "npm_",
            "://:",
            "/a'",
            "=1Aa",
        ),
    ],
)
def test_no_text_takes_more_than_time_in_proportion(piece: str) -> None:
    assert growth(lambda times: replace_shapes(piece * times, names.Names().of), 15_000 // len(piece)) < PROPORTIONATE
