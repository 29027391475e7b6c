"""The MPI reducer without MPI: plans, the choice of an algorithm by size, reading programs, refusals."""

import subprocess
import sys

import jax
import pytest

from jaxnet import comm
from jaxnet.comm import collectives_in, mpi_all_reduce
from jaxnet.comm import mpi as ranks
from jaxnet.comm.mpi import ALGORITHMS, choose_algorithm, planned
from support.programs import clean_environment


def test_mpi4jax_that_is_missing_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4jax", None)
    with pytest.raises(ImportError, match=r"needs mpi4jax.*libopenmpi-dev.*jaxnet\[mpi\].*make install-mpi"):
        mpi_all_reduce()


def test_mpi_is_not_started_by_an_import():
    program = "import sys, jaxnet.comm; print(sorted({'mpi4jax', 'mpi4py'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JAX_NUM_PROCESSES"])
def test_a_launcher_that_mpi_does_not_know_is_refused(name):
    ranks.refuse_other_launchers({name: "1"})
    with pytest.raises(RuntimeError, match=f"{name}=4"):
        ranks.refuse_other_launchers({name: "4"})


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_planned_bytes(ranks):
    spec = jax.ShapeDtypeStruct((ranks * 100,), "float32")
    sent = {a: sum(c.wire_bytes for c in planned(a, spec, ranks)) for a in ALGORITHMS}
    assert sent["ring"] == sent["library"] == 2 * (ranks - 1) * 400
    assert sent["tree"] == 2 * (ranks - 1).bit_length() * ranks * 400
    assert planned("ring", spec, 1) == ()


@pytest.mark.parametrize("ranks", range(2, 10))
def test_a_tree_leads_from_every_rank_to_the_root_and_back(ranks):
    rounds = [c.pairs for c in planned("tree", jax.ShapeDtypeStruct((4,), "float32"), ranks)]
    held = {rank: {rank} for rank in range(ranks)}
    for hops in rounds[: len(rounds) // 2]:
        for sender, receiver in hops:
            assert not held[sender] & held[receiver]
            held[receiver] |= held[sender]
    assert held[0] == set(range(ranks))
    knowing = {0}
    for hops in rounds[len(rounds) // 2 :]:
        assert {sender for sender, _ in hops} <= knowing
        knowing |= {receiver for _, receiver in hops}
    assert knowing == set(range(ranks))


def test_small_messages_take_few_rounds_and_large_ones_few_bytes():
    def chosen(elements, ranks, dtype="float32"):
        return choose_algorithm(jax.ShapeDtypeStruct((elements,), dtype), ranks)

    assert [chosen(n, 2) for n in (0, 1, 2**14 - 1, 2**14, 2**25)] == ["library"] * 3 + ["ring"] * 2
    assert [chosen(2**14, ranks) for ranks in (2, 3)] == ["ring", "library"]
    assert [chosen(n, 2, "bfloat16") for n in (4, 2**20)] == ["tree", "ring"]


CALL = (
    '  %{name} = (f32[8]{{0}}, token[]) custom-call(%x, %t), custom_call_target="mpi_{target}_ffi",'
    " custom_call_has_side_effect=true, backend_config={{nitems = 8 : i64}}"
)


def computation(name, *lines):
    return [f"{name} (p: f32[8]) -> f32[8] {{", *lines, "}"]


def in_program(*entry, of=()):
    """The MPI calls that count in a program of these computations, and those of all devices; by name."""
    text = "\n".join([*of, *computation("ENTRY %main", *entry)])
    counted, all_ = collectives_in(text), collectives_in(text, every_device=True)
    assert {item.transport for item in all_} == {"mpi"}
    assert {item.arrays for item in all_} == {(("float32", 8),)}
    return [item.name for item in counted], [item.name for item in all_]


SWITCH = "  %{name} = f32[8]{{0}} conditional(%i, %x, %x), branch_computations={{%{one}, %{two}}}"
LOOP = "  %loop = f32[8]{0} while(%x), condition=%until, body=%body"
ONE = computation("%one", CALL.format(name="a", target="sendrecv"))
TWO = computation("%two", CALL.format(name="b", target="sendrecv"))
SWITCHED = SWITCH.format(name="switch", one="one", two="two")


def test_calls_in_branches_of_a_switch_over_devices_count_once():
    found = in_program(CALL.format(name="c", target="allreduce"), SWITCHED, of=[*ONE, *TWO])
    assert found == (["c", "a"], ["c", "a", "b"])


@pytest.mark.parametrize(
    "condition",
    [
        SWITCH.format(name="if", one="none", two="one"),
        SWITCH.format(name="if", one="one", two="none"),
        "  %if = f32[8] conditional(%b, %x, %x), true_computation=%none, false_computation=%one",
    ],
)
def test_a_call_in_either_branch_of_a_condition_counts(condition):
    assert in_program(condition, of=[*ONE, *computation("%none")]) == (["a"], ["a"])


def test_different_calls_of_two_branches_both_count():
    other = computation("%other", CALL.format(name="o", target="allreduce"))
    condition = SWITCH.format(name="if", one="one", two="other")
    assert in_program(condition, of=[*ONE, *other]) == (["a", "o"], ["a", "o"])


def test_a_switch_over_devices_in_a_condition_in_a_loop_counts_once():
    inner = computation("%inner", SWITCHED)
    body = computation("%body", SWITCH.format(name="if", one="none", two="inner"))
    found = in_program(LOOP, of=[*ONE, *TWO, *inner, *computation("%none"), *body])
    assert found == (["a"], ["a", "b"])


def test_of_several_programs_each_has_names_of_its_own():
    switch = "\n".join(["HloModule p", *ONE, *TWO, *computation("ENTRY %main", SWITCHED)])
    plain = "\n".join(["HloModule q", *computation("ENTRY %main", CALL.format(name="b", target="sendrecv"))])
    assert [item.name for item in collectives_in(f"{switch}\n{plain}")] == ["a", "b"]


def test_a_sum_by_xla_does_not_stand_for_one_by_mpi():
    text = "ENTRY %main (x: f32[8]) -> f32[8] {\n  %a = f32[8]{0} all-reduce(%x), replica_groups={{0,1}}\n}"
    spec = jax.ShapeDtypeStruct((8,), "float32")
    check = comm.verify(text, planned("library", spec, 2), {"host": 2, "device": 1})
    assert not check.ok
    assert len(check.extra) == 1
