"""The table of files is columns of runs, and answers like a list of records."""

from hypothesis import given, strategies as st

from shardkeep.manifest import FileRecord, FileTable
from tests.manifest.examples import file_tables


@given(file_tables(4))
def test_a_table_answers_like_its_records(table: FileTable):
    records = [table[index] for index in range(len(table))]

    assert list(table) == records
    assert FileTable.of(records[::-1]) == table
    assert [(each.number, each.rank) for each in records] == sorted(
        {(each.number, each.rank) for each in records}
    )


@given(file_tables(4), st.integers(0, 4), st.integers(0, 4))
def test_a_file_is_found_by_rank_and_number(table: FileTable, rank: int, number: int):
    places = [
        index for index, each in enumerate(table) if (each.rank, each.number) == (rank, number)
    ]

    assert table.find(rank=rank, number=number) == (places[0] if places else None)


def test_a_table_without_files_is_empty():
    assert len(FileTable()) == 0
    assert list(FileTable()) == []
    assert FileTable().find(rank=0, number=0) is None


def test_a_large_job_takes_few_numbers():
    table = FileTable.of([FileRecord(rank, 0, 8192, 4096, rank) for rank in range(16384)])

    assert table.ranks.runs == ((0, 1, 16384),)
    assert table.nbytes.runs == ((8192, 0, 16384),)
    assert table[9999] == FileRecord(9999, 0, 8192, 4096, 9999)
