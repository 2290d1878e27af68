import pytest

from shardkeep.errors import LayoutError
from shardkeep.layouts import Mesh
from shardkeep.layouts.mesh import unravel


def test_ranks_stand_row_major():
    mesh = Mesh((2, 3), (4, 5, 6, 7, 8, 9))

    assert [mesh.coordinate_of(rank) for rank in (4, 6, 7, 9)] == [(0, 0), (0, 2), (1, 0), (1, 2)]


def test_ranks_may_stand_in_any_order():
    mesh = Mesh((2, 2), (3, 0, 2, 1))

    assert [mesh.coordinate_of(rank) for rank in range(4)] == [(0, 1), (1, 1), (1, 0), (0, 0)]


def test_a_rank_outside_has_no_coordinate():
    mesh = Mesh.line([1, 2])

    assert mesh.coordinate_of(0) is None
    assert 0 not in mesh
    assert 2 in mesh


def test_a_line_has_one_axis():
    assert Mesh.line(iter([5, 3])) == Mesh((2,), (5, 3))


def test_a_mesh_without_axes_is_one_rank():
    assert Mesh((), (7,)).coordinate_of(7) == ()


def test_the_number_of_ranks_must_fit_the_shape():
    with pytest.raises(LayoutError, match=r"shape \(2, 2\) needs 4 ranks, got 3"):
        Mesh((2, 2), (0, 1, 2))


def test_a_rank_stands_in_one_place():
    with pytest.raises(LayoutError, match=r"names each rank once, got \(0, 1, 0\)"):
        Mesh((3,), (0, 1, 0))


def test_equal_meshes_are_one_key():
    assert len({Mesh((2, 1), (0, 1)), Mesh((2, 1), (0, 1)), Mesh((1, 2), (0, 1))}) == 2


@pytest.mark.parametrize(
    ("index", "shape", "coordinate"),
    [(0, (), ()), (5, (2, 3), (1, 2)), (4, (5,), (4,)), (11, (2, 3, 2), (1, 2, 1))],
)
def test_unravel_is_row_major(index: int, shape: tuple[int, ...], coordinate: tuple[int, ...]):
    assert unravel(index, shape) == coordinate
