"""`jaxnet report --html` and `--serve`: one page that needs nothing else, in a browser where there is one."""

import html.parser
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from jaxnet.cli.main import run
from jaxnet.report.page import page
from jaxnet.report.run_files import read_run
from jaxnet.report.served import page_server, version_of
from support.refusals import refused, says
from support.traces import record

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECTIONS = ["figures", "curves", "speed", "time", "sends", "step", "config", "checkpoints", "faults", "environment"]
LEDGER = {
    "attempt": 1, "host": "one", "pid": 7, "start": 100.0, "time": 130.0, "first": 0, "step": 40,
    "seconds": {"start-up": 5.0, "compile": 4.0, "step": 20.0, "other": 1.0}, "ended": False,
}  # fmt: skip
AGAIN = {**LEDGER, "attempt": 2, "start": 140.0, "time": 180.0, "first": 30, "step": 90, "ended": True}
PLAN = {
    "strategy": "ddp", "expression": "during(bucketed(all_reduce('host', 'device'), 25 * MiB))",
    "wire_bytes_per_step": 1500, "wire_bytes_per_axis": {"host+device": 1500},
    "buckets": [{"bytes": 800, "dtype": "float32", "leaves": [{"name": "dense/kernel"}, {"name": "dense/bias"}]}],
    "planned": [{"kind": "all-reduce", "axes": ["host", "device"], "dtype": "float32", "elements": 200}],
    "environment": {"jax": "0.10.2", "devices": "8 x cpu"},
}  # fmt: skip


def write(workdir, lines=(), strategy="ddp", **summary):
    """The files of a run that never was."""
    workdir.mkdir(parents=True, exist_ok=True)
    steps = [
        {"step": step, "split": "train", "loss": 10 / step, "step_seconds": 0.1, "examples_per_second": 100.0}
        for step in range(10, 100, 10)
    ]
    tests = [{"step": 90, "split": "test", "loss": 0.25, "accuracy": 0.5, "examples": 10}]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines or [*steps, *tests]))
    (workdir / "config.json").write_text(json.dumps({"epochs": 3, "strategy": strategy}))
    (workdir / "plan.json").write_text(json.dumps({**PLAN, "strategy": strategy}))
    (workdir / "ledger.jsonl").write_text(f"{json.dumps(LEDGER)}\n{json.dumps(AGAIN)}\n")
    whole = {"steps": 90, "finished": True, "strategy": strategy, "metrics": ["loss", "accuracy"], "loss": 0.25}
    (workdir / "summary.json").write_text(json.dumps({**whole, "mesh": {"host": 1, "device": 2}, **summary}))
    saved = workdir / "checkpoints/000090"
    saved.mkdir(parents=True, exist_ok=True)
    (saved / "state").write_bytes(b"x" * 1234)
    return workdir


class Reader(html.parser.HTMLParser):
    """Every tag is closed in its turn; what refers to other places is kept."""

    void = ("meta", "link", "line", "circle", "rect", "polyline")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.found, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs, one with a trace."""
    from jaxnet.comm import make_mesh

    folder = tmp_path_factory.mktemp("runs")
    write(folder / "a")
    import jax

    record(folder / "a/profile/process_0", make_mesh(1, jax.devices()[:2]))
    write(folder / "b", strategy="xla", skipped_steps=2, rollbacks=1)
    return folder


@pytest.fixture(scope="module")
def made(runs):
    return page([read_run("a", runs / "a"), read_run("b", runs / "b")])


def test_a_page_has_every_section_once_and_refers_to_nothing_outside(made):
    read = Reader(made)
    assert [about["id"] for tag, about in read.found if tag == "h2"] == SECTIONS
    places = [about[name] for _, about in read.found for name in ("src", "href") if name in about]
    assert [place for place in places if not place.startswith(("#", "data:"))] == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", made)


def test_what_is_drawn_is_said_as_well(made):
    read = Reader(made)
    charts = [about for tag, about in read.found if tag == "figure" and "data-chart" in about]
    assert len(charts) == len(re.findall("<summary>Values</summary>", made)) >= 4
    assert all(re.search(r"at step .*; between", about["aria-label"]) for about in charts)
    assert all(
        about.get("aria-hidden") == "true" or about.get("aria-label") for tag, about in read.found if tag == "svg"
    )
    words = " ".join(read.words)
    for said in (
        "goodput 43.8%",
        "attempt 1 ended without a word at step 40, on one",
        "10 steps were done again",
        "2 steps were skipped",
        "1 times the run went back to a checkpoint",
        "all-reduce over host and device",
        "dense/kernel, dense/bias",
        "1,234",
        "8 x cpu",
    ):
        assert said in words, said


def test_what_a_stranger_wrote_is_text(tmp_path):
    evil = "</script><script>alert(1)</script>"
    write(tmp_path / "a", [{"step": 1, "split": "train", evil: 1.0, "loss": 2.0}], strategy=evil)
    made = page([read_run(evil, tmp_path / "a")])
    Reader(made)
    assert "<script>alert" not in made
    assert made.count("</script>") == len(re.findall("<script", made))


@pytest.mark.parametrize("name", ["config.json", "plan.json", "summary.json", "ledger.jsonl"])
@pytest.mark.parametrize("content", [None, "{", '{"mesh": 3}', "[]"])
def test_a_file_that_is_missing_or_odd_costs_its_own_section(tmp_path, name, content):
    write(tmp_path / "a")
    place = tmp_path / "a" / name
    place.unlink() if content is None else place.write_text(content)
    made = page([read_run("a", tmp_path / "a")])
    assert 'id="curves"' in made
    Reader(made)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plan.json", '{"planned": [{}]}'),
        ("plan.json", '{"planned": [{"kind": "a", "axes": ["b"], "elements": 1, "dtype": "cc"}]}'),
        ("plan.json", '{"buckets": [1]}'),
        ("summary.json", '{"metrics": null}'),
    ],
)
def test_a_file_that_jaxnet_has_not_written_costs_its_own_section_too(tmp_path, name, content):
    write(tmp_path / "a")
    (tmp_path / "a" / name).write_text(content)
    made = page([read_run("a", tmp_path / "a")])
    assert 'id="curves"' in made
    assert "cannot be shown: " in made
    Reader(made)


def test_a_long_run_makes_a_page_of_less_than_a_megabyte(tmp_path):
    lines = [
        {"step": step, "split": "train", "loss": 1 + step % 7, "accuracy": 0.5, "extra": step, "more": -step, "last": 1}
        for step in range(40_000)
    ]
    write(tmp_path / "a", lines)
    made = page([read_run("a", tmp_path / "a")])
    assert len(made) < 1_000_000
    steps = [len(each["x"]) for chart in charts_of(made) for each in chart["curves"]]
    assert len(steps) == 5
    assert max(steps) <= 1200


def charts_of(made):
    texts = re.findall(r'<script type="application/json">(.*?)</script>', made, re.DOTALL)
    return [json.loads(text) for text in texts]


# ---- The command ----------------------------------------------------------------------------------------


def test_the_command_writes_a_page(runs, tmp_path, capsys):
    assert run(["report", str(runs / "a"), str(runs / "b"), "--html", f"{tmp_path}/page.html"]) == 0
    assert "written to" in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_what_cannot_be_shown_is_refused(runs, tmp_path, capsys):
    def said(*words):
        return refused(lambda: run(["report", *map(str, words)]), capsys)

    says(said(tmp_path / "none", "--html", tmp_path / "p.html"), ["metrics.jsonl cannot be read", "workdir of a run"])
    says(said(runs / "a", "--html", tmp_path / "no/p.html"), ["p.html cannot be written"])
    says(said(runs / "a", "--html", tmp_path / "p.html", "--json"), ["one of --html, --serve and --json"])
    says(said(runs / "a", "--serve", "70000"), ["must be a port"])
    says(said("gs://bucket/run", "--serve"), ["only runs on this machine"])
    for address in ("192.0.2.1", "a..b", "x" * 64, "::1"):  # the first is nobody's, RFC 5737
        wanted = [f"--address {address}: cannot listen there: ", "; give an IPv4 address or a name of this machine"]
        says(said(runs / "a", "--serve", "0", "--address", address), wanted)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = [f"--serve {port}: cannot listen there: Address already in use; give another port"]
        says(said(runs / "a", "--serve", port), wanted)


def test_a_served_page_follows_its_run(tmp_path):
    workdir = write(tmp_path / "a")
    with page_server({"a": workdir}, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(base) as answer:
            before = answer.read().decode()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        version = urllib.request.urlopen(f"{base}/version").read().decode()
        assert f'data-live="{version}"' in before
        with (workdir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 777, "split": "train", "loss": 0.125}) + "\n")
        assert urllib.request.urlopen(f"{base}/version").read().decode() == version_of({"a": workdir}) != version
        assert "0.125 at step 777" in urllib.request.urlopen(base).read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/etc/passwd")
        shutil.rmtree(workdir)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(base)
        server.shutdown()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"GET /version HTTP/1.1\r\n\r\n", b"GET"])
def test_a_browser_that_goes_away_is_no_error(sent, tmp_path):
    with page_server({"a": write(tmp_path / "a")}, "127.0.0.1", 0) as server:
        here, there = socket.socketpair()
        with here, there:
            there.sendall(sent)
            there.close()
            server.RequestHandlerClass(here, ("there", 0), server)


# ---- In a browser ---------------------------------------------------------------------------------------

# Keys on the first chart, and how wide the page is; what comes out stands in the title.
TRIED = """<script>
addEventListener("load", () => {
  const figure = document.querySelector("figure[data-chart]");
  const press = (key) => figure.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("End"); const last = figure.querySelector("output").textContent;
  press("Home"); press("ArrowRight"); const second = figure.querySelector("output").textContent;
  document.title = JSON.stringify({
    last, second, wide: document.documentElement.scrollWidth, seen: innerWidth,
    ground: getComputedStyle(document.body).backgroundColor,
  });
});
</script>"""


def browsed(made, folder, *options):
    """What a browser makes of a page."""
    (folder / "page.html").write_text(made.replace("</body>", f"{TRIED}</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *options]
    profile = f"--user-data-dir={folder}/profile"
    done = subprocess.run(
        [*command, profile, f"file://{folder}/page.html"], capture_output=True, text=True, timeout=120
    )
    [title] = re.findall("<title>({.*?})</title>", done.stdout)
    return json.loads(html.unescape(title))


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("width", [390, 1280])
def test_keys_read_the_curves_and_no_page_is_wider_than_its_window(made, tmp_path, width):
    found = browsed(made, tmp_path, f"--window-size={width},900")
    assert found["last"].startswith("step 90: a train 0.11")
    assert "a test 0.25" in found["last"]
    assert found["second"].startswith("step 20: a train 0.5")
    assert found["wide"] <= found["seen"]
