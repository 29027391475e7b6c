"""Published scaling tables, each beside what the simulation makes of its one-device row and the machine's links.

The constants of `machines` and `simulation` are the same for all tables; none is fitted to any. Horovod's cycle sends
every few milliseconds what is ready, which is nearer to buckets (`ddp`) than to the one message that `horovod` makes of
a model below 128 MiB in a compiled program.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
from flax.traverse_util import flatten_dict

from jaxnet.comm import DEVICE, HOST, Collective, Strategy, named_strategy, rooted
from jaxnet.comm.trees import Tree
from jaxnet.cost.machines import MACHINES, Machine
from jaxnet.cost.simulation import Layer, Simulated, Work, simulated, stage
from jaxnet.models.zoo import ZOO, parameter_flops


@dataclass(frozen=True)
class Paper:
    """A published table.

    Attributes:
        name: as users write it.
        title: what was measured.
        source: where it was published.
        machine: on which.
        network: of the zoo, or 'bert_base'.
        batch: examples of a device.
        rate: examples a second of one device, from the same table unless `assumed` says otherwise.
        rows: (devices, examples a second of all, or the efficiency if it is at most 1).
        base: devices beside which that efficiency is.
        strategy: what the system did, by the nearest of ours.
        dtype: of the gradients that travelled.
        assumed: what is not in the source.
    """

    name: str
    title: str
    source: str
    machine: str
    network: str
    batch: int
    rate: float
    rows: tuple[tuple[int, float], ...]
    strategy: str = "ddp"
    dtype: str = "float32"
    assumed: str = ""
    base: int = 1


_TF = "tensorflow/docs, performance/benchmarks.md (May 2017)"
_DLPERF = "Oneflow-Inc/DLPerf, dlperf_benchmark_test_report_v1.md"
_NVIDIA = "NVIDIA/DeepLearningExamples, ResNet-50 v1.5, READMEs of 2020 to 2022"
_PR44 = "horovod pull request #44"
_HOROVOD = "Sergeev and Del Balso, 2018 (Horovod)"
_ZENITH = "Filby and Dandapanthula, Dell EMC, March 2018"
_QUARTER = "one node reaches a quarter of its peak of float32"
_ONE_FROM_44 = "the one-device rate is that of horovod pull request #44, on the same kind of machine"


def _dgx1(network: str, batch: int, rate: float, *rows: float, assumed: str = "") -> Paper:
    return Paper(
        f"tf_dgx1_{network}_b{batch}", f"TensorFlow, DGX-1, {network}, batch {batch}", _TF, "p100-dgx1",
        network, batch, rate, tuple(zip((2, 4, 8), rows, strict=True)), assumed=assumed,
    )  # fmt: skip


def _ec2_k80(network: str, batch: int, rate: float, *rows: float) -> Paper:
    return Paper(
        f"tf_ec2_k80_{network}", f"TensorFlow, up to 8 EC2 p2.8xlarge, {network}, batch {batch}", _TF, "k80-10g",
        network, batch, rate, tuple(zip((8, 16, 32, 64), rows, strict=True)), "hierarchical",
        assumed="parameter servers on the same hosts, taken for a sum of shards between the hosts",
    )  # fmt: skip


def _gce_k80(network: str, batch: int, rate: float, *rows: float) -> Paper:
    return Paper(
        f"tf_gce_k80_{network}", f"TensorFlow, 8 K80 of GCE, {network}, batch {batch}", _TF, "k80-10g",
        network, batch, rate, tuple(zip((2, 4, 8), rows, strict=True)),
        assumed="PCIe as in a p2.8xlarge" if batch != 64 else "batch 64; PCIe as in a p2.8xlarge",
    )  # fmt: skip


def _dlperf(system: str, network: str, batch: int, rate: float, *rows: float, dtype: str = "float32") -> Paper:
    half = dtype == "float16"
    return Paper(
        f"dlperf_{system}_{network}_{'amp' if half else 'fp32'}",
        f"{system}, 4 x 8 V100, EDR, {network}, batch {batch}, {'mixed precision' if half else 'float32'}",
        _DLPERF, "v100-edr", network, batch, rate, tuple(zip((8, 16, 32), rows, strict=True)), "ddp", dtype,
        "gradients travel as float16" if half else "",
    )  # fmt: skip


def _nvidia(system: str, machine: str, batch: int, rate: float, *rows: tuple[int, float], dtype: str) -> Paper:
    return Paper(
        f"nvidia_{system}_{machine.replace('-', '_')}_{'amp' if dtype == 'float16' else 'fp32'}",
        f"{system}, {MACHINES[machine].title}, ResNet-50, batch {batch}, "
        + ("mixed precision" if dtype == "float16" else "float32 (TF32 on A100)"),
        _NVIDIA, machine, "resnet50", batch, rate, rows, dtype=dtype,
        assumed="gradients travel as float16" if dtype == "float16" else "",
    )  # fmt: skip


def _pr44(network: str, rate: float, rdma: float, tcp: float) -> Iterator[Paper]:
    for transport, machine, total in (("rdma", "pascal-25g", rdma), ("tcp", "pascal-25g-tcp", tcp)):
        yield Paper(
            f"horovod_44_{network}_{transport}", f"Horovod, 16 Pascal GPUs, {network}, {transport.upper()}", _PR44,
            machine, network, 64, rate, ((16, total),), assumed="25 Gbit/s, four GPUs a host",
        )  # fmt: skip


_ALL = (
    # ---- The systems that jaxnet reproduces
    Paper("caffe2_57x", "Caffe2 with Gloo, 64 P100, ResNet-50", "Caffe2's announcement (April 2017)", "p100-50g",
          "resnet50", 32, 219.0, ((64, 57 / 64),), "caffe2",
          assumed="batch 32, and the one-device rate of a P100 in TensorFlow's table"),
    Paper("mxnet_16_fp32", "MXNet, 16 V100, ResNet-50, float32", "published as 15.4x", "v100-25g",
          "resnet50", 128, 392.24, ((16, 15.4 / 16),), "per_leaf",
          assumed="EC2 p3.16xlarge, batch 128 and the one-device rate of MXNet in DLPerf"),
    Paper("mxnet_16_fp16", "MXNet, 16 V100, ResNet-50, float16", "published as 13.8x", "v100-25g",
          "resnet50", 256, 1393.87, ((16, 13.8 / 16),), "per_leaf", "float16",
          "EC2 p3.16xlarge, batch 256 and the one-device rate of MXNet in DLPerf"),
    Paper("caffe2_16_fp32", "Caffe2, 16 V100, ResNet-50, float32", "published as 14.8x", "v100-25g",
          "resnet50", 128, 392.24, ((16, 14.8 / 16),), "caffe2",
          assumed="EC2 p3.16xlarge, batch 128 and the one-device rate of MXNet in DLPerf"),
    Paper("caffe2_16_fp16", "Caffe2, 16 V100, ResNet-50, float16", "published as 13.6x", "v100-25g",
          "resnet50", 256, 1393.87, ((16, 13.6 / 16),), "caffe2", "float16",
          "EC2 p3.16xlarge, batch 256 and the one-device rate of MXNet in DLPerf"),
    Paper("goyal_256", "Caffe2 with Gloo, 256 P100, ResNet-50", "Goyal et al., 2017: about 90 % from 8 to 256",
          "p100-50g", "resnet50", 32, 219.0, ((256, 0.90),), "caffe2",
          assumed="the one-device rate of a P100 in TensorFlow's table", base=8),
    Paper("ddl_256", "PowerAI DDL, 256 P100, ResNet-50", "Cho et al., 2017: 95 %", "p100-dgx1",
          "resnet50", 32, 219.0, ((256, 0.95),), "hierarchical",
          assumed="links of a DGX-1 (it was 4 P100 a host), batch 32, the one-device rate of TensorFlow's table"),
    Paper("horovod_512_inception", "Horovod, 512 Pascal GPUs, Inception v3", _HOROVOD, "pascal-25g",
          "inception_v3", 64, 134.4, ((512, 0.90),), assumed=_ONE_FROM_44),
    Paper("horovod_512_resnet101", "Horovod, 512 Pascal GPUs, ResNet-101", _HOROVOD, "pascal-25g",
          "resnet101", 64, 119.4, ((512, 0.90),), assumed=_ONE_FROM_44),
    Paper("horovod_512_vgg16", "Horovod, 512 Pascal GPUs, VGG-16", _HOROVOD, "pascal-25g",
          "vgg16", 64, 130.9, ((512, 0.68),), assumed=_ONE_FROM_44),
    Paper("s_caffe_160", "S-Caffe, 160 K80 GPUs, GoogLeNet", "Awan et al., 2017: 2.5 times as fast as 32", "k80-fdr",
          "googlenet", 16, 134.0, ((160, 0.50),), "s_caffe_hr", base=32,
          assumed="batch 16, and the one-device rate of ResNet-50 on a K80 in TensorFlow's table, by operations"),
    Paper("intel_caffe_phi_256", "Intel Caffe, 256 Xeon Phi, ResNet-50", "published as 97 % from 4 nodes to 256",
          "phi-opa", "resnet50", 16, 62.0, ((256, 0.97),), "per_leaf", base=4, assumed=_QUARTER),
    Paper("intel_caffe_8160_256", "Intel Caffe, 256 x 2 Xeon 8160, ResNet-50", "published as 90 %", "xeon-opa",
          "resnet50", 32, 66.0, ((256, 0.90),), "per_leaf", assumed=_QUARTER),
    *(Paper(f"intel_caffe_zenith_{nodes}", f"Intel Caffe, {nodes} x 2 Xeon 6148, ResNet-50", _ZENITH, "xeon-opa",
            "resnet50", batch, 66.0, ((nodes, efficiency),), "flat", assumed=f"batch 8,192 in all, {_QUARTER}")
      for nodes, batch, efficiency in ((128, 64, 0.90), (256, 32, 0.83), (314, 26, 0.76))),
    Paper("intel_caffe_alexnet_64", "Intel Caffe, 64 x 2 Xeon E5-2697 v3, AlexNet", "published as 5.1 h, not 150",
          "xeon-fdr", "alexnet", 16, 136.0, ((64, 150 / 5.1 / 64),), "per_leaf",
          assumed=f"batch 1,024 in all, FDR InfiniBand, {_QUARTER}"),
    # ---- Tables with their own one-device row
    _ec2_k80("inception_v3", 64, 29.7, 229.0, 459.0, 902.0, 1783.0),
    _ec2_k80("resnet50", 64, 52.4, 378.0, 751.0, 1388.0, 2744.0),
    _ec2_k80("resnet152", 32, 19.4, 146.0, 291.0, 565.0, 981.0),
    _gce_k80("resnet50", 64, 51.9, 99.0, 195.0, 387.0),
    _gce_k80("alexnet", 512, 656.0, 1209.0, 2328.0, 4640.0),
    _gce_k80("vgg16", 32, 35.4, 64.8, 120.0, 234.0),
    *_pr44("inception_v3", 134.4, 2022.6, 1990.7),
    *_pr44("resnet101", 119.4, 1746.2, 1685.1),
    *_pr44("vgg16", 130.9, 1787.4, 1308.7),
    _dgx1("alexnet", 512, 2987.0, 5658.0, 10509.0, 17822.0),
    _dgx1("vgg16", 64, 154.0, 295.0, 584.0, 1081.0),
    _dgx1("vgg16", 32, 144.0, 281.0, 549.0, 820.0),
    _dgx1("resnet50", 64, 219.0, 422.0, 852.0, 1734.0, assumed="it had a parameter server on the CPU"),
    _dgx1("resnet152", 64, 91.8, 181.0, 356.0, 716.0),
    _dgx1("inception_v3", 64, 142.0, 284.0, 569.0, 1131.0),
    _dlperf("oneflow", "resnet50", 128, 397.64, 3130.34, 6260.30, 12411.97),
    _dlperf("mxnet", "resnet50", 128, 392.24, 3006.98, 5758.49, 11331.93),
    _dlperf("tensorflow", "resnet50", 128, 362.44, 2721.98, 5099.42, 9514.64),
    _dlperf("pytorch", "resnet50", 128, 367.29, 2887.65, 5716.79, 10917.09),
    _dlperf("oneflow", "resnet50", 256, 1472.72, 10629.32, 17920.40, 33141.02, dtype="float16"),
    _dlperf("mxnet", "resnet50", 256, 1393.87, 9621.31, 16219.03, 30713.68, dtype="float16"),
    _dlperf("oneflow", "bert_base", 32, 152.89, 1105.55, 2015.78, 3689.80),
    _dlperf("tensorflow", "bert_base", 32, 107.33, 790.03, 1404.04, 2727.90),
    _dlperf("pytorch", "bert_base", 32, 119.60, 921.32, 1499.40, 2885.81),
    _dlperf("oneflow", "bert_base", 64, 534.72, 3399.43, 5745.56, 9911.78, dtype="float16"),
    _dlperf("tensorflow", "bert_base", 64, 422.53, 3112.73, 5050.86, 9409.20, dtype="float16"),
    _dlperf("pytorch", "bert_base", 64, 444.51, 3251.7, 4936.92, 9331.72, dtype="float16"),
    _nvidia("mxnet", "a100", 256, 1022.0, (2, 2032.0), (4, 4035.0), (8, 8001.0), dtype="float32"),
    _nvidia("mxnet", "a100", 256, 2180.0, (2, 4332.0), (4, 8587.0), (8, 16925.0), dtype="float16"),
    _nvidia("paddle", "a100", 256, 993.0, (8, 7955.0), dtype="float32"),
    _nvidia("paddle", "a100", 256, 2711.0, (8, 20267.0), dtype="float16"),
    _nvidia("pytorch", "a100", 256, 938.0, (8, 7248.0), dtype="float32"),
    _nvidia("pytorch", "a100", 256, 2470.0, (8, 16621.0), dtype="float16"),
    _nvidia("mxnet", "v100-dgx1", 96, 384.0, (2, 763.0), (4, 1513.0), (8, 3005.0), dtype="float32"),
    _nvidia("mxnet", "v100-dgx1", 192, 1376.0, (2, 2768.0), (4, 5357.0), (8, 10723.0), dtype="float16"),
    _nvidia("mxnet", "v100-dgx2", 128, 417.0, (2, 821.0), (4, 1623.0), (8, 3223.0), (16, 6338.0), dtype="float32"),
    _nvidia("mxnet", "v100-dgx2", 256, 1492.0, (2, 2935.0), (4, 5726.0), (8, 11368.0), (16, 21484.0), dtype="float16"),
    _nvidia("pytorch", "v100-dgx1", 256, 367.0, (8, 2855.0), dtype="float32"),
    _nvidia("pytorch", "v100-dgx1", 256, 1200.0, (8, 8322.0), dtype="float16"),
    Paper("horovod_779", "Horovod, up to 128 V100, 25 Gbit/s, ResNet-50, mixed precision", "horovod#779", "v100-25g",
          "resnet50", 256, 872.0, ((8, 6679.0), (16, 12828.0), (32, 23870.0), (64, 47195.0), (128, 89783.0)),
          dtype="float16", assumed="batch 256, gradients travel as float16"),
    Paper("horovod_416", "Horovod, 2 x 8 V100 PCIe, 40 Gbit/s RoCE, ResNet-101", "horovod#416", "v100-pcie-40g",
          "resnet101", 64, 202.78, ((4, 650.92), (16, 2379.56))),
    Paper("horovod_288", "Horovod, 2 x 4 V100, InfiniBand, ResNet-50, mixed precision", "horovod#288", "v100x4-edr",
          "resnet50", 256, 641.0, ((4, 2380.0), (8, 4419.71)), dtype="float16",
          assumed="EDR, batch 256, gradients travel as float16"),
)  # fmt: skip
PAPERS = {paper.name: paper for paper in _ALL}


class Compared(NamedTuple):
    """A row of a published table beside the simulation.

    Attributes:
        devices: in all.
        published: the efficiency: examples a second over those of as many devices by themselves.
        simulated: likewise.
        unhidden: likewise, if nothing travelled before the end of backward.
    """

    devices: int
    published: float
    simulated: float
    unhidden: float

    @property
    def points(self) -> float:
        """How many points of efficiency the simulation is too high."""
        return 100 * (self.simulated - self.published)

    def between(self, margin: float = 5.0) -> bool:
        """Whether what was published lies between `unhidden` and `simulated`, with a margin of points on both sides."""
        low, high = sorted((self.unhidden, self.simulated))  # beside a base of its own either may be the lower
        return low - margin / 100 <= self.published <= high + margin / 100


def work_of(paper: Paper) -> tuple[Machine, Strategy, Work]:
    """What a table was measured on, how its gradients travelled, and what one device did."""
    strategy = named_strategy(paper.strategy, platform="gpu")
    work = Work(paper.network, layers_of(paper.network), paper.batch, paper.rate, paper.dtype)
    return MACHINES[paper.machine], strategy, work


def compared(paper: Paper) -> list[Compared]:
    """All rows of a table, simulated."""
    machine, strategy, work = work_of(paper)

    def of(devices: int) -> Simulated:
        return simulated(work, strategy, machine, *machine.hosts(devices))

    rows, base = [], of(paper.base)
    for devices, figure in paper.rows:
        published = figure if figure <= 1 else figure / (devices * paper.rate)
        found = of(devices)
        rows.append(Compared(devices, published, found.efficiency / base.efficiency, found.unhidden / base.unhidden))
    return rows


@cache
def layers_of(network: str) -> tuple[Layer, ...]:
    """The parameters of a network of the zoo, with the operations that each is a factor in, as forward uses them."""
    if network == "bert_base":
        return _BERT
    entry = ZOO[network]
    function, shapes = entry.forward()
    flops = dict(zip(flatten_dict(shapes[0], sep="/"), parameter_flops(function, *shapes), strict=True))
    return tuple(Layer(leaf.size, flops[path]) for path, leaf in entry.parameter_shapes().items())


# Devlin et al., 2019: 30,522 words of 768, twelve blocks of 12 x 768^2 weights with their biases, 128 positions at
# once. The output's weights are those of the words, whose gradient is ready last.
_BLOCK = 12 * 768 * 768 + 13 * 768
_BERT = (
    Layer(30_522 * 768 + 514 * 768, 0.0),
    *(Layer(_BLOCK, 2.0 * 128 * _BLOCK) for _ in range(12)),
    Layer(768 * 768 + 768, 2.0 * 128 * 30_522 * 768 * 0.15),
)


# ---- S-Caffe's reduction, as a ratio of algorithms ----------------------------------------------------------


class Reduction(NamedTuple):
    """Seconds until the root of a machine's devices has the sum of a message of each, by algorithm.

    Attributes:
        bytes: of the message.
        one_by_one: every device sends to the root.
        binomial: along a binomial tree in each host and one across.
        tuned: S-Caffe's choice by size: that, or chains in each host and across, in as many chunks as are fastest.
    """

    bytes: int
    one_by_one: float
    binomial: float
    tuned: float


_CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)


def reduction(bytes_: int, machine: Machine, devices: int) -> Reduction:
    """Simulate the sum of a message of float32 on its way to a root, without the way back.

    A large message goes along a chain in little more than the time of one link, and up a binomial tree in that of its
    depth, here `4 + 4` for 16 devices in each of 10 hosts:

    >>> found = reduction(64 << 20, MACHINES["k80-fdr"], 160)
    >>> round(found.binomial / found.tuned, 1)
    3.2
    """
    hosts, inside = machine.hosts(devices)
    sizes = {HOST: hosts, DEVICE: inside}
    message = jax.ShapeDtypeStruct((bytes_ // 4,), "float32")

    def seconds(collectives: Iterable[Collective]) -> float:
        return sum(stage(each, machine, sizes)[1] for each in collectives if each.size > 1)

    def to_root(tree: Tree, chunks: int = 1) -> float:
        both_ways = rooted(DEVICE, rooted(HOST, tree=tree, chunks=chunks), tree=tree, chunks=chunks)
        return seconds(both_ways.plan(message, sizes).collectives) / 2

    def sent(axes: tuple[str, ...], size: int) -> Collective:
        return Collective("collective-permute", axes, size, message.size, "float32", pairs=((size - 1, 0),))

    near, far = [sent((DEVICE,), inside)] * (inside - 1), [sent((HOST, DEVICE), devices)] * (devices - inside)
    binomial = to_root("binomial")
    tuned = min(binomial, *(to_root("chunked_chain", chunks) for chunks in _CHUNKS))
    return Reduction(bytes_, seconds(near + far), binomial, tuned)
