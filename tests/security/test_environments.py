"""Any values of the variables that describe a cluster give a place, or one line that says what is wrong."""

from contextlib import suppress

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxnet.cluster.addresses import parse_address
from jaxnet.cluster.environment import Place, find_place
from jaxnet.errors import InputError

NAMES = [
    *("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_BIND_ADDRESS"),
    *("JAX_COORDINATOR_PORT", "JAXNET_NETWORK_INTERFACE", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"),
    *("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES", "KUBERNETES_SERVICE_HOST"),
    *("JOB_COMPLETION_INDEX",),
]
# Those of one launcher have to come together before much of its reading is reached.
TOGETHER = [NAMES[:3], NAMES[6:10], NAMES[14:16], NAMES[16:21], NAMES[24:27]]
NUMBERS = ["0", "1", "2", "-1", "two", "1.0", "\u0662", "\u00b2", "9" * 30, "9" * 5000, " 1", "1_0", "0x1"]
HOSTS = ["node1", "127.0.0.1", "node[1-4,7]", "node[01", "]", "[", "::1", "fd00::1", "é", "10.0.0.1 10.0.0.2", "a,b"]
ADDRESSES = ["node1:1234", "[::1]:1", ":1", "node1:", "node1:0", "node1:99999", "node1:\u0661", "[]:1", "[:1", "]:1:2"]
VALUES = st.sampled_from(["", *NUMBERS, *HOSTS, *ADDRESSES]) | st.text(max_size=8)


@st.composite
def environments(draw):
    names = draw(st.sampled_from(TOGETHER)) + draw(st.lists(st.sampled_from(NAMES), max_size=4))
    return {name: draw(VALUES) for name in names}


@given(environments())
@example({"JAX_COORDINATOR_ADDRESS": "node1:1234", "JAX_NUM_PROCESSES": "9" * 5000, "JAX_PROCESS_ID": "0"})
@settings(max_examples=300, deadline=None)
def test_a_place_or_one_line(environ):
    before = dict(environ)
    with suppress(InputError):
        place = find_place(environ)
        assert isinstance(place, Place)
        assert place.process_count is None or 0 <= place.process_index < place.process_count
        assert place.coordinator is None or 0 < place.coordinator.port < 65536
    assert environ == before


@given(st.text() | st.from_regex(r"\A(\[?[\w:.]*\]?:?)?\d*\Z"))
@settings(max_examples=200, deadline=None)
def test_an_address_is_read_back_or_refused(text):
    with suppress(InputError):
        address = parse_address(text, "NAME")
        assert parse_address(str(address), "NAME") == address
