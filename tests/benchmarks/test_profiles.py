"""A profile counts what ran in timed turns, by kind of work."""

import pytest

from benchmarks import perf
from benchmarks.figures import Figure
from benchmarks.kept import Kept, read, write
from benchmarks.kinds import Kind, kind_of
from benchmarks.perf import Frame, Sample, frame_in, recorded, samples_in
from benchmarks.profiles import Profile, profiles_of, tables_of
from benchmarks.tables import console
from benchmarks.turns import Span, Turns, figures_of

KERNEL = "[kernel.kallsyms]"
LIBC, TORCH = "/usr/lib/libc.so.6", "/venv/torch/lib/libtorch_cpu.so"
PYTHON = "/usr/lib/libpython3.11.so.1.0"
SCRIPT = f"""\
 609.195353:     250000 
\tffffffff821e9617 _copy_to_iter ({KERNEL})
\tffffffff81000130 shmem_file_read_iter ({KERNEL})
\t    7f65872c3959 os_preadv ({PYTHON})

 609.195603:     500000 

 1609.195853:     250000 
\t          1e8d4 [unknown] (/usr/lib/libgomp.so.1 (deleted))

"""  # noqa: W291


def kernel(*symbols: str) -> tuple[Frame, ...]:
    return tuple(Frame(one, KERNEL) for one in symbols)


def sample(time: float, symbol: str = "_PyEval_EvalFrameDefault", binary: str = PYTHON) -> Sample:
    return Sample(time, 0.25, (Frame(symbol, binary),))


def figure(*turns: tuple[float, float], act: str = "save", name: str = "shardkeep") -> Figure:
    starts, seconds = zip(*turns, strict=True)
    return Figure("W1", "tmpfs", act, name, seconds, starts=starts)


def test_samples_are_read_as_perf_prints_them():
    first, second, third = samples_in(SCRIPT.splitlines(keepends=True))
    assert (first.time, first.cpu_seconds) == (609.195353, 0.00025)
    assert [one.symbol for one in first.frames] == [
        "_copy_to_iter",
        "shmem_file_read_iter",
        "os_preadv",
    ]
    assert (second.cpu_seconds, second.frames, second.name) == (0.0005, (), "[unknown]")
    assert (third.time, third.name) == (1609.195853, "libgomp.so.1")


def test_a_symbol_may_have_spaces_and_brackets():
    symbol = "c10::function_ref<void (char**, long)>::callback_fn<direct_copy_kernel(int)> (.cold)"
    assert frame_in(f"\t    7f1 {symbol} ({TORCH})\n") == Frame(symbol, TORCH)


@pytest.mark.parametrize(
    ("symbols", "kind"),
    [
        (("_copy_to_iter", "copy_page_to_iter", "shmem_file_read_iter"), Kind.KERNEL_COPY),
        (("rep_movs_alternative", "_copy_to_iter", "filemap_read"), Kind.KERNEL_COPY),
        (("copy_folio_from_iter_atomic", "generic_perform_write"), Kind.KERNEL_COPY),
        (("folio_unlock", "shmem_write_end", "generic_perform_write"), Kind.KERNEL_COPY),
        (("folio_unlock", "shmem_file_read_iter", "vfs_readv"), Kind.KERNEL),
        (("clear_page_erms", "folio_zero_user", "do_anonymous_page"), Kind.PAGES),
        (("_raw_spin_unlock", "do_anonymous_page", "handle_mm_fault"), Kind.PAGES),
        (("copy_mc_enhanced_fast_string", "wp_page_copy", "handle_mm_fault"), Kind.PAGES),
        (("xas_load", "filemap_get_entry", "shmem_get_folio_gfp", "vfs_readv"), Kind.PAGES),
        (("_raw_spin_lock", "copy_page_range", "dup_mmap", "copy_process"), Kind.FORK),
        (("get_page_from_freelist", "__pte_alloc", "copy_pte_range", "dup_mmap"), Kind.FORK),
        (("finish_task_switch.isra.0", "__schedule", "futex_wait"), Kind.KERNEL),
    ],
)
def test_the_kernel_s_work_is_told_by_the_function_and_its_callers(symbols, kind):
    assert kind_of((*kernel(*symbols), Frame("main", LIBC))) is kind


@pytest.mark.parametrize(
    ("symbol", "binary", "kind"),
    [
        ("__memmove_avx512_unaligned_erms", LIBC, Kind.COPY),
        ("at::native::AVX2::direct_copy_kernel", TORCH, Kind.COPY),
        ("_aligned_strided_to_contig_size4", "/venv/numpy/_multiarray_umath.so", Kind.COPY),
        ("XXH3_update_avx512", "/venv/xxhash/_xxhash.so", Kind.HASH),
        ("[unknown]", "/venv/xxhash/_xxhash.so", Kind.HASH),
        ("PyDict_Copy", PYTHON, Kind.PYTHON),
        ("[unknown]", "/usr/lib/python3.11/lib-dynload/_json.so", Kind.PYTHON),
        ("mkl_blas_sgemm", TORCH, Kind.NATIVE),
        ("cfree@GLIBC_2.2.5", LIBC, Kind.NATIVE),
        ("__vdso_clock_gettime", "[vdso]", Kind.NATIVE),
        ("[unknown]", "[unknown]", Kind.NATIVE),
    ],
)
def test_other_work_is_told_by_the_function_and_its_library(symbol, binary, kind):
    assert kind_of((Frame(symbol, binary), Frame("copy_page_range", LIBC))) is kind


def test_only_what_ran_within_a_turn_counts_from_its_start_until_before_its_stop():
    samples = [sample(time) for time in (0.9, 1.0, 1.9, 2.0, 5.0, 5.5, 6.0)]
    (profile,) = profiles_of([figure((1.0, 1.0), (5.0, 1.0))], samples)
    assert profile.cpu_seconds == pytest.approx(4 * 0.25 / 2)


def test_acts_may_be_part_of_one_another_and_those_without_a_start_have_no_profile():
    blocked, total = figure((1.0, 1.0), act="blocked"), figure((1.0, 4.0), act="until complete")
    mean = Figure("W6", "tmpfs", "step meanwhile", "shardkeep", (0.1,))
    profiles = profiles_of([total, mean, blocked], [sample(1.5), sample(2.5), sample(7.5)])
    assert [one.figure for one in profiles] == [total, blocked]
    assert [one.cpu_seconds for one in profiles] == [0.5, 0.25]


def test_kinds_and_functions_are_shown_with_their_shares():
    samples = [sample(1.1), sample(1.2, "XXH3[/]", "/a/_xxhash.so"), sample(1.3), sample(1.4)]
    ours, raw = figure((1.0, 1.0)), figure((3.0, 1.0), name="raw")
    screen = console()
    with screen.capture() as shown:
        screen.print(*tables_of(profiles_of([ours, raw], samples)))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in shown.get().splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["shardkeep", "1,000.0", "250.0  25%", "750.0  75%"],
        ["raw", "0.0", "", ""],
        ["shardkeep", "750.0  75%", "Python", "_PyEval_EvalFrameDefault"],
        ["", "250.0  25%", "hashing", "XXH3[/]"],
    ]


def test_a_turn_begins_when_the_first_rank_does():
    by_rank = [Turns(), Turns()]
    for turns, start in zip(by_rank, (2.0, 1.0), strict=True):
        turns.spans["load", "raw"] = [Span(start, 4.0 - start, 0.5)]
    (made,) = figures_of("W4", "4 to 2", by_rank)
    assert Profile(made, {}).turns == [(1.0, 3.0)]


def test_when_turns_began_is_not_kept(tmp_path):
    kept = Kept("One process", "", "2001-01-01", "abc", 1.0, {}, [figure((1.0, 1.0))])
    write(tmp_path / "kept.json", {"W1": kept})
    (found,) = read(tmp_path / "kept.json")["W1"].figures
    assert (found.values, found.starts) == ((1.0,), ())
    assert "starts" not in (tmp_path / "kept.json").read_text()


def test_without_perf_nothing_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(perf.shutil, "which", lambda _: None)
    with pytest.raises(SystemExit, match="install the package linux-perf"):
        recorded(pytest.fail, tmp_path / "perf.data")


def test_what_perf_says_is_shown_if_it_cannot_record(tmp_path, monkeypatch):
    (tmp_path / "perf").write_text("#!/bin/sh\necho no permission >&2\n")
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(SystemExit, match="does not record here:\nno permission"):
        recorded(pytest.fail, tmp_path / "perf.data")
