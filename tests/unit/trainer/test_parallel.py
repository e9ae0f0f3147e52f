"""Sizes and environments that cannot work are refused before any process waits for another."""

from __future__ import annotations

import pytest
from hintloop_contract.config.layout import LayoutKeys
from hintloop_contract.config.schema import TrainingSection
from hintloop_trainer.errors import ModelError
from hintloop_trainer.megatron import parallel

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((3, 2, 1), "tensor_model_parallel_size 2 x pipeline_model_parallel_size 1 .* multiple of 2"),
        ((6, 2, 2), "pipeline_model_parallel_size 2 .* multiple of 4"),
        ((4, 2, 1, 4), "context_parallel_size 4; .* multiple of 8"),
        ((2, 1, 2, 1, 2), "expert_model_parallel_size 2 does not divide the 1 .* multiple of 4"),
        ((3, 1, 1, 1, 2), "expert_model_parallel_size 2 does not divide the 3 .* multiple of 2"),
        ((6, 2, 1, 1, 4), "expert_model_parallel_size 4 does not divide the 6 .* multiple of 4"),
    ],
)
def test_sizes_that_do_not_divide_the_processes_are_refused(sizes: tuple[int, ...], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        parallel.check_sizes(*sizes)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 2, 2), (8, 2, 1, 2, 2), (4, 1, 1, 1, 4), (2, 2, 1, 1, 2)])
def test_sizes_that_fit_are_taken(sizes: tuple[int, ...]) -> None:
    parallel.check_sizes(*sizes)


@pytest.mark.parametrize(
    ("sizes", "num_processes"),
    [
        ({}, 1),
        ({"tensor_model_parallel_size": 2}, 2),
        ({"pipeline_model_parallel_size": 3}, 3),
        ({"context_parallel_size": 2}, 2),
        ({"expert_model_parallel_size": 4}, 4),
        ({"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2, "pipeline_model_parallel_size": 2}, 4),
    ],
)
def test_the_configured_sizes_need_so_many_processes(sizes: dict[str, int], num_processes: int) -> None:
    assert parallel.smallest(TrainingSection(**sizes, packing=False)).world_size == num_processes


def test_torchrun_s_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in parallel.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    assert parallel.launched_as() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert parallel.launched_as() == (3, 4, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RANK": None, "LOCAL_RANK": None}, "but not RANK, LOCAL_RANK"),
        ({"MASTER_PORT": None}, "but not MASTER_PORT; start every process by torchrun"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four' and no number"),
        ({"RANK": "4"}, "RANK 4 is none of the WORLD_SIZE 4 ranks"),
    ],
)
def test_half_an_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str | None], said: str
) -> None:
    for name, value in (TORCHRUN | changes).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(ModelError, match=said):
        parallel.launched_as()


@pytest.mark.parametrize(
    ("sizes", "world_size"),
    [({}, 1), ({"tensor": 2, "pipeline": 2}, 4), ({"tensor": 2, "expert": 4}, 4), ({"tensor": 3, "expert": 2}, 6)],
)
def test_the_smallest_world_is_one_that_the_sizes_fit(sizes: dict[str, int], world_size: int) -> None:
    keys = LayoutKeys.model_validate({f"{name}_model_parallel_size": size for name, size in sizes.items()})
    found = parallel.smallest(keys)
    assert (found.world_size, found.dp_size * found.tp_size * found.pp_size) == (world_size, world_size)
    parallel.check_sizes(found.world_size, found.tp_size, found.pp_size, found.cp_size, found.ep_size)
