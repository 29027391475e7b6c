"""Process 0 listens towards the other hosts of the job, and on no other network of its host."""

import pytest

pytestmark = pytest.mark.processes

# Rank 0 has a second network. Once all have joined, it calls the coordinator at each address of its host.
JOIN = """
import subprocess
from jaxnet.cluster.start import start
if rank == 0:
    for words in ("link add other type veth peer name far", "addr add 10.9.0.1/24 dev other", "link set other up"):
        subprocess.run(["ip", *words.split()], check=True)
start()
import jax
jax.devices()
port = int(os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2])
if rank == 0:
    for address in ("10.0.0.1", "10.9.0.1", "127.0.0.1"):
        with socket.socket() as caller:
            print(address, caller.connect_ex((address, port)))
print("joined", jax.process_count())
"""


def test_a_second_network_cannot_call_the_coordinator(lab):
    with lab(JOIN) as job:
        assert job.finish() == 0, job.err
    answers = [line.removeprefix("[0] ").split() for line in job.out if line.startswith("[0] 1")]
    assert [(address, code == "0") for address, code in answers] == [
        ("10.0.0.1", True),
        ("10.9.0.1", False),
        ("127.0.0.1", False),
    ]
    assert sorted(job.out)[-1] == "[1] joined 2"
