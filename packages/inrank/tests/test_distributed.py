"""Two processes over gloo on this machine; one run of `two_processes.py` serves all tests."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from inrank.distributed import copy_from_first, is_first_process, process_count, unwrapped_model
from inrank.matching import plain_name

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("two_processes.py")), str(folder)],
        env={
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_ddp_processes_have_equal_ranks_and_parameters_though_one_decides(both):
    first, second = (result["ddp"]["straight"] for result in both)
    assert first == second
    assert first["events"] >= 4
    assert min(first["ranks"]) > 3


def test_ddp_resumes_bit_for_bit_and_one_process_writes_the_log(both):
    for result in both:
        assert result["ddp"]["resumed"] == result["ddp"]["straight"]
    assert both[0]["ddp"]["lines"] == both[0]["ddp"]["straight"]["events"]


def test_values_that_are_not_finite_stop_all_processes(both):
    for result in both:
        assert result["ddp"]["error"].startswith("step 10: layer second: ")
        assert "not finite" in result["ddp"]["error"]


def test_resized_storage_is_refused_with_what_to_do(both):
    for result in both:
        assert "DistributedDataParallel" in result["ddp"]["refused"]
        assert 'InRankConfig(storage="reserve")' in result["ddp"]["refused"]
        assert "FSDP2" in result["full"]["refused"]
        assert len(result["ddp"]["warned"]) == 1
        assert "averaged by hand" in result["ddp"]["warned"][0]


def test_fsdp2_does_what_ddp_does(both):
    """Shards of moments, young directions in shards, spectra of gathered factors: the same bits as DDP."""
    for result in both:
        assert result["full"]["sharded"] == "DTensor"
        assert result["full"]["young"] > 0
        assert result["full"]["straight"] == result["ddp"]["straight"]
    assert [result["full"]["local"][0] for result in both] == [6, 5]  # directions of V are what is sharded


@pytest.mark.parametrize("mode", ["full", "efficient"])
def test_fsdp2_resumes_bit_for_bit_and_rotates(both, mode):
    first, second = (result[mode] for result in both)
    assert first["resumed"] == first["straight"] == second["straight"] == second["resumed"]
    assert first["rotated"] == second["rotated"]
    assert first["rotated"]["ranks"][0] == first["straight"]["ranks"][0] - 1
    assert first["rotated"]["loss"] == pytest.approx(first["straight"]["loss"], rel=0.1)


def test_accelerate_prepares_and_trains(both):
    first, second = (result["accelerate"] for result in both)
    assert first == second
    assert first["wrapped"] == "DistributedDataParallel"
    assert first["steps"] == 12


def test_one_process_needs_no_distribution():
    assert process_count() == 1
    assert is_first_process()
    value = torch.ones(2)
    assert copy_from_first(value) is value
    model = nn.Linear(2, 2)
    assert unwrapped_model(model) is model
    assert plain_name("a._orig_mod.b._checkpoint_wrapped_module.weight") == "a.b.weight"
