"""The arithmetic of layouts, checked against what DTensor holds on real ranks."""

import pytest

from tests.distributed import cases_layouts


@pytest.mark.parametrize("mesh_shape", [[4], [2, 2], [1, 4], [4, 1]], ids=str)
def test_the_parts_of_any_placement_are_what_dtensor_holds(pool4, mesh_shape):
    compared = pool4.run(cases_layouts.parts_are_what_dtensor_holds, mesh_shape=mesh_shape)

    assert min(compared) > 50


@pytest.mark.parametrize("mesh_shape", [[3], [1, 3]], ids=str)
def test_the_parts_on_three_ranks_are_what_dtensor_holds(pool3, mesh_shape):
    compared = pool3.run(cases_layouts.parts_are_what_dtensor_holds, mesh_shape=mesh_shape)

    assert min(compared) > 50


def test_ranks_outside_the_mesh_hold_nothing(pool4):
    pool4.run(cases_layouts.ranks_outside_the_mesh_hold_nothing)
