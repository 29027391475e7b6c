"""A process finds its place in the variables of each launcher."""

import pytest

from jaxnet.cluster.addresses import Address, listening_address
from jaxnet.cluster.environment import HEARTBEAT, detect, find_place, heartbeat_seconds
from jaxnet.errors import InputError

CONTRACT = {"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
SLURM = {
    "SLURM_JOB_ID": "4097",
    "SLURM_STEP_NODELIST": "node[01-04,07]",
    "SLURM_STEP_NUM_NODES": "5",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6\n", "SKYPILOT_NUM_NODES": "2"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}


def test_an_empty_environment_is_a_single_process():
    place = find_place({})
    assert (place.detected_by, place.process_index, place.process_count, place.coordinator) == (
        "single",
        0,
        1,
        None,
    )


def test_the_three_variables():
    place = find_place({**CONTRACT, "JAXNET_NETWORK_INTERFACE": "eth1"})
    assert place.detected_by == "variables"
    assert (place.process_index, place.process_count) == (3, 4)
    assert place.coordinator == Address("node1", 1234)
    assert place.bind is None
    assert place.interface == "eth1"


@pytest.mark.parametrize("address", ["127.0.0.1:1234", "localhost:1234", "[::1]:1234"])
def test_a_loopback_coordinator_is_served_on_loopback_alone(address):
    place = find_place({**CONTRACT, "JAX_COORDINATOR_ADDRESS": address})
    assert str(listening_address(place.coordinator, "eth1")) == address


def test_an_explicit_bind_address_is_kept():
    assert find_place({**CONTRACT, "JAX_COORDINATOR_BIND_ADDRESS": "10.0.0.1:99"}).bind == Address("10.0.0.1", 99)


@pytest.mark.parametrize("missing", CONTRACT)
@pytest.mark.parametrize("empty", [True, False])
def test_a_partial_set_names_what_is_missing(missing, empty):
    environ = {name: value for name, value in CONTRACT.items() if name != missing} | ({missing: ""} if empty else {})
    with pytest.raises(InputError, match=f"^{missing} missing beside .* set all three"):
        find_place(environ)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES is 'two'; it must be a whole number"),
        ({"JAX_NUM_PROCESSES": "0"}, "JAX_NUM_PROCESSES is 0; it must be at least 1"),
        ({"JAX_PROCESS_ID": "-1"}, "JAX_PROCESS_ID is '-1'; it must be a whole number"),
        ({"JAX_PROCESS_ID": "1.0"}, "JAX_PROCESS_ID is '1.0'"),
        ({"JAX_PROCESS_ID": "4"}, "JAX_PROCESS_ID is 4, but with JAX_NUM_PROCESSES=4 it must be from 0 to 3"),
        ({"JAX_COORDINATOR_ADDRESS": "node1"}, "JAX_COORDINATOR_ADDRESS is 'node1'; give host:port"),
        ({"JAX_COORDINATOR_ADDRESS": ":1234"}, "JAX_COORDINATOR_ADDRESS is ':1234'; give host:port"),
        ({"JAX_COORDINATOR_ADDRESS": "fd00::1:1234"}, "give host:port"),
        ({"JAX_COORDINATOR_ADDRESS": "node1:"}, "its port '' must be a number"),
        ({"JAX_COORDINATOR_ADDRESS": "node1:http"}, "its port 'http' must be a number"),
        ({"JAX_COORDINATOR_ADDRESS": "node1:65536"}, "its port '65536' must be a number"),
    ],
)
def test_a_wrong_value_names_its_variable(changes, message):
    with pytest.raises(InputError) as caught:
        find_place({**CONTRACT, **changes})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loopback_is_refused_where_the_environment_shows_several_hosts():
    environ = {**CONTRACT, "JAX_COORDINATOR_ADDRESS": "127.0.1.1:1234", "SLURM_STEP_NUM_NODES": "2"}
    with pytest.raises(InputError, match=r"127\.0\.1\.1:1234, a loopback address, but SLURM_STEP_NUM_NODES=2"):
        find_place(environ)
    assert find_place({**environ, "SLURM_STEP_NUM_NODES": "1"}).process_index == 3


def test_the_three_variables_come_before_any_launcher():
    assert detect({**CONTRACT, **SLURM, **OPEN_MPI, **KUBERNETES}) == "variables"


def test_slurm():
    place = find_place(SLURM)
    assert (place.detected_by, place.process_index, place.process_count) == ("slurm", 2, 5)
    assert place.coordinator == Address("node01", 61440 + 1)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,other2", "node1"),
        ("node[001-015],other2", "node001"),
        ("node[001,007-015]", "node001"),
        ("rack1-[3-4].cluster", "rack1-3.cluster"),
        ("a-b,c[1-2]", "a-b"),
    ],
)
def test_slurm_takes_the_first_node(nodes, first):
    place = find_place({**SLURM, "SLURM_STEP_NODELIST": nodes, "JAX_COORDINATOR_PORT": "77"})
    assert place.coordinator == Address(first, 77)


@pytest.mark.parametrize("name", sorted(SLURM.keys() - {"SLURM_STEP_NUM_NODES"}))
def test_a_slurm_batch_script_outside_srun_is_a_single_process(name):
    assert find_place({key: value for key, value in SLURM.items() if key != name}).detected_by == "single"


def test_one_task_is_a_single_process():
    assert detect({**SLURM, "SLURM_NTASKS": "1"}) == "single"
    assert detect({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}) == "single"


def test_open_mpi_comes_before_the_slurm_step_of_its_daemons():
    place = find_place({**SLURM, **OPEN_MPI})
    assert (place.detected_by, place.process_index, place.process_count) == ("openmpi", 1, 2)
    assert place.coordinator is None


@pytest.mark.parametrize(
    ("environ", "method"),
    [
        (KUBERNETES, "kubernetes"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "single"),
        ({"TPU_WORKER_HOSTNAMES": "t0,t1"}, "tpu"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, "single"),
        ({"TPU_PROCESS_ADDRESSES": "t0:8476,t1:8476", **KUBERNETES}, "tpu"),
    ],
)
def test_what_only_jax_can_complete(environ, method):
    place = find_place(environ)
    assert place.detected_by == method
    if method != "single":
        assert place.process_index is None
        assert place.coordinator is None


def test_torchrun():
    place = find_place(TORCHRUN)
    assert (place.detected_by, place.process_index, place.process_count) == ("torchrun", 5, 8)
    assert place.coordinator == Address("node1", 29500)
    assert place.local_device == 1


def test_torchrun_itself_listens_at_its_port():
    assert find_place({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}).coordinator == Address("node1", 29501)
    environ = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "JAX_COORDINATOR_PORT": "77"}
    assert find_place(environ).coordinator == Address("node1", 77)


@pytest.mark.parametrize("alone", [{"LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": ""}])
def test_the_only_process_of_a_host_takes_all_its_devices(alone):
    assert find_place({name: value for name, value in {**TORCHRUN, **alone}.items() if value}).local_device is None


def test_torchrun_at_the_highest_port_leaves_none():
    environ = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "65535"}
    with pytest.raises(InputError, match="MASTER_PORT is 65535, where torchrun itself listens, and no port is left"):
        find_place(environ)
    assert find_place({**environ, "JAX_COORDINATOR_PORT": "77"}).coordinator == Address("node1", 77)


def test_torchrun_comes_before_what_started_it_on_each_host():
    assert detect({**TORCHRUN, **SLURM, **OPEN_MPI, **SKYPILOT}) == "torchrun"
    assert detect({**TORCHRUN, **CONTRACT}) == "variables"


@pytest.mark.parametrize(
    "environ",
    [{**TORCHRUN, "WORLD_SIZE": "1"}, {"MASTER_ADDR": "node1", "MASTER_PORT": "1"}, {"WORLD_SIZE": "8"}, {"RANK": "0"}],
)
def test_what_torchrun_leaves_single(environ):
    assert detect(environ) == "single"


def test_skypilot():
    place = find_place(SKYPILOT)
    assert (place.detected_by, place.process_index, place.process_count) == ("skypilot", 1, 2)
    assert place.coordinator == Address("10.0.0.5", 12321)
    assert find_place({**SKYPILOT, "JAX_COORDINATOR_PORT": "77"}).coordinator == Address("10.0.0.5", 77)
    assert detect({**SKYPILOT, "SKYPILOT_NUM_NODES": "1"}) == "single"
    assert detect({**SKYPILOT, **SLURM}) == "slurm"


@pytest.mark.parametrize(
    ("environ", "changes", "message"),
    [
        (TORCHRUN, {"MASTER_ADDR": ""}, "MASTER_ADDR missing beside RANK, WORLD_SIZE, MASTER_PORT: set them too, or"),
        (TORCHRUN, {"RANK": "8"}, "RANK is 8, but with WORLD_SIZE=8 it must be from 0 to 7"),
        (TORCHRUN, {"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'; it must be a whole number"),
        (TORCHRUN, {"MASTER_PORT": "0"}, "its port '0' must be a number from 1 to 65535"),
        (TORCHRUN, {"LOCAL_RANK": ""}, "LOCAL_RANK is ''; it must be a whole number"),
        (TORCHRUN, {"MASTER_ADDR": "localhost"}, "a loopback address, but GROUP_WORLD_SIZE=2"),
        (TORCHRUN, {"JAX_COORDINATOR_PORT": "x"}, "its port 'x' must be a number"),
        (SKYPILOT, {"SKYPILOT_NODE_IPS": "10.0.0.5"}, "has 1 addresses, but SKYPILOT_NUM_NODES is 2"),
        (SKYPILOT, {"SKYPILOT_NODE_RANK": "2"}, "SKYPILOT_NODE_RANK is 2, but with SKYPILOT_NUM_NODES=2"),
        (SKYPILOT, {"SKYPILOT_NODE_RANK": ""}, "SKYPILOT_NODE_RANK missing beside"),
        (SKYPILOT, {"SKYPILOT_NODE_IPS": "127.0.0.1 10.0.0.6"}, "a loopback address, but SKYPILOT_NUM_NODES=2"),
    ],
)
def test_what_is_wrong_with_other_launchers_variables(environ, changes, message):
    with pytest.raises(InputError) as caught:
        find_place({**environ, **changes})
    assert message in str(caught.value)


def test_the_limit_of_the_heartbeat():
    assert heartbeat_seconds({}) == heartbeat_seconds({HEARTBEAT: ""}) == 100
    assert heartbeat_seconds({HEARTBEAT: "30"}) == 30
    for wrong in ("4", "1.5", "-1"):
        with pytest.raises(InputError, match=HEARTBEAT):
            heartbeat_seconds({HEARTBEAT: wrong})
