"""A restart compiles nothing, and nothing that somebody else may have written is run."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxnet.errors import InputError
from jaxnet.training import compile_cache as cache
from jaxnet.training.compile_cache import CompiledFiles, beside, compile_cache, private, prune


@pytest.fixture
def compiled(monkeypatch):
    """The programs that XLA compiled, by name."""
    from jax._src import compiler

    names, compile_ = [], compiler.backend_compile_and_load

    def counted(backend, module, *arguments, **options):
        names.append(str(module.operation.attributes["sym_name"]).strip('"'))
        return compile_(backend, module, *arguments, **options)

    monkeypatch.setattr(compiler, "backend_compile_and_load", counted)
    return names


def step():
    return jax.jit(lambda x: jnp.sin(x) @ jnp.cos(x), static_argnums=())


def test_what_was_compiled_before_is_not_compiled_again(tmp_path, compiled):
    x = jnp.ones((4, 4))
    outputs = []
    for _ in range(2):
        with compile_cache(tmp_path / "cache"):
            outputs.append(step().lower(x).compile()(x))
    assert sum("lambda" in name for name in compiled) == 1
    assert outputs[0].tobytes() == outputs[1].tobytes()
    step().lower(x).compile()  # outside, the cache is not used
    assert sum("lambda" in name for name in compiled) == 2
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path, mode):
    place = tmp_path / "cache"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(InputError, match=rf"cache can be written by other users \(mode 0{mode:o}\).*`chmod 700"):
        private(place)
    place.chmod(0o755)
    assert private(place) == place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path):
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    os.chown(place, 12345, -1)
    with pytest.raises(InputError, match=r"cache belongs to another user \(uid 12345\)"):
        private(place)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match=r"cache cannot be used: File exists; give another, or compile_cache=none"):
        private(tmp_path / "cache")


@pytest.mark.parametrize(
    "harm", [lambda content: content[:-1], lambda content: b"", lambda content: bytes(9) + content[9:]]
)
def test_a_program_that_is_not_as_it_was_written_is_not_run(tmp_path, compiled, harm):
    x = jnp.ones((4, 4))
    for compilations in (1, 2, 2):
        with compile_cache(tmp_path / "cache"):
            step().lower(x).compile()
        assert sum("lambda" in name for name in compiled) == compilations
        [file] = tmp_path.glob("cache/*/*lambda*-cache")
        if compilations == 1:
            file.write_bytes(harm(file.read_bytes()))


def test_a_damaged_program_that_cannot_be_deleted_is_not_run_either(tmp_path, monkeypatch):
    store = CompiledFiles(tmp_path)
    store.put("a", b"program")
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert store.get("a") is None
    assert file.exists()


def test_a_full_disk_is_told_once_and_leaves_nothing(tmp_path, caplog, monkeypatch):
    store = CompiledFiles(tmp_path)

    def full(path, content):
        with path.open("wb") as file:
            file.write(content[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    for key in ("a", "b"):
        store.put(key, b"program")
        assert store.get(key) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path} cannot be written: No space left on device; a restart compiles again"
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_are_deleted_beyond_the_limit(tmp_path):
    for age in range(5):
        path = tmp_path / f"x86_64-0123456789ab/{age}-cache"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (1000 - age, 1000 - age))
    prune(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["0-cache", "1-cache"]


def test_files_of_others_are_never_deleted(tmp_path):
    others = ["data.bin", "lock/000001.json", "checkpoints/000674/manifest.json", "a/b/c-cache", "x-0123456789ab/notes"]
    own = ["x-0123456789ab/jit_step-cache", "x-0123456789ab/.jit_step.0123456789ab.fresh"]
    for name in others + own:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    prune(tmp_path, 0)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == sorted(others)


@pytest.mark.parametrize("given", ["", ".", "..", "/", "../run"])
def test_a_directory_that_holds_the_run_is_refused(tmp_path, given):
    with pytest.raises(InputError, match=rf"^compile_cache='{given}' is /.*in which the run itself lies; wanted"):
        beside(tmp_path / "run", given)
    assert beside(tmp_path / "run", "../cache") == tmp_path / "run/../cache"
    assert beside(tmp_path / "run", "~nosuchuser/cache") == tmp_path / "run/~nosuchuser/cache"


def test_a_directory_that_the_user_gave_to_jax_stays(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
        with compile_cache(tmp_path / "cache"):
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert not (tmp_path / "cache").exists()


def test_who_comes_second_waits_for_a_program_and_for_no_other(tmp_path):
    store, entered, waits = CompiledFiles(tmp_path), threading.Event(), threading.Event()

    def second():
        waits.set()
        with store.turn("a"):
            entered.set()

    thread = threading.Thread(target=second)
    with store.turn("a"):
        thread.start()
        assert waits.wait(10)
        with store.turn("b"):
            assert not entered.wait(0.1)
    assert entered.wait(10)
    thread.join()
    assert not list(tmp_path.iterdir())


def test_a_process_that_dies_lets_the_next_one_in(tmp_path):
    hold = (
        "import pathlib, sys, time; from jaxnet.training.compile_cache import CompiledFiles\n"
        "with CompiledFiles(pathlib.Path(sys.argv[1])).turn('a'): print('inside', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "inside\n"
        holder.kill()
        with CompiledFiles(tmp_path).turn("a"):
            assert holder.wait() == -signal.SIGKILL


def test_where_files_cannot_be_locked_nobody_waits(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with CompiledFiles(tmp_path).turn("a"), CompiledFiles(tmp_path).turn("a"):
        pass
    with CompiledFiles(tmp_path / "not there").turn("a"):
        pass


def test_nobody_waits_for_ever_for_who_was_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_LONGEST_WAIT_SECONDS", 0.05)
    store = CompiledFiles(tmp_path)
    with store.turn("a"):
        with CompiledFiles(tmp_path).turn("a"):
            pass
        assert list(tmp_path.iterdir())  # it is the first one's to delete
    assert not list(tmp_path.iterdir())


def test_a_child_that_is_forked_meanwhile_holds_nobody_up(tmp_path):
    with CompiledFiles(tmp_path).turn("a"):
        [path] = tmp_path.iterdir()
        copies = [int(link.name) for link in Path("/proc/self/fd").iterdir() if _leads_to(link, path)]
        held = [os.dup(number) for number in copies]  # what a child has of it
    begun = time.monotonic()
    with CompiledFiles(tmp_path).turn("a"):
        assert time.monotonic() - begun < 5
    assert held
    for number in held:
        os.close(number)


def _leads_to(link, path):
    try:
        return link.readlink() == path
    except OSError:
        return False
