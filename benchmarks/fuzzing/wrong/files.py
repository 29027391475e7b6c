"""Config files that are wrong."""

from benchmarks.fuzzing.wrong.part import Wrong


def _whole(text: str | bytes, *words: str) -> Wrong:
    return Wrong(whole=text, words=words)


_RETURNS = "from jaxnet import Config\ndef get_config():\n    {}\n"

FILES = {
    "empty": _whole("", "there is no function get_config()"),
    "blank": _whole("\n\n", "there is no function get_config()"),
    "binary": _whole(bytes(range(256)), "config "),
    "bytes of zero": _whole(bytes(100), "null bytes"),
    "another encoding": _whole("# é\n".encode("utf-16"), "config "),
    "a byte order mark alone": _whole(b"\xef\xbb\xbf", "there is no function get_config()"),
    "a syntax error": _whole("def get_config(:\n", "SyntaxError"),
    "an indentation error": _whole("def get_config():\nreturn 1\n", "IndentationError"),
    "brackets without end": _whole("(" * 5000, "config "),
    "sums without end": _whole("x = " + "+".join(["1"] * 100_000), "config "),
    "a number of many digits": _whole("x = " + "9" * 10_000, "SyntaxError"),
    "an import that is not there": _whole("import nothing_like_it\n", "ModuleNotFoundError"),
    "an exception without words": _whole("raise Exception\n", "line 1: Exception"),
    "an exception of two lines": _whole("raise ValueError('a\\nb')\n", "line 1: ValueError: a b"),
    "an exception that cannot be shown": _whole(
        "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own\n", "Own"
    ),
    "an exception whose repr fails": _whole(
        "class Own(Exception):\n    def __str__(self): return 3\n    __repr__ = __str__\nraise Own\n", "Own"
    ),
    "an exception with control characters": _whole("raise ValueError('\\x1b[2J\\r\\0')\n", "ValueError"),
    "an exception whose class is odd": _whole(
        "type('A\\nB', (Exception,), {})\nraise type('A\\nB', (Exception,), {})\n"
    ),
    "an exception of one's own kind": _whole("class Own(BaseException): pass\nraise Own('why')\n", "Own: why"),
    "an exit": _whole("import sys\nsys.exit(0)\n", "SystemExit"),
    "an exit in get_config": _whole(_RETURNS.format("raise SystemExit('bye')"), "SystemExit: bye"),
    "an exit of a generator": _whole("raise GeneratorExit\n", "GeneratorExit"),
    "an end of asyncio": _whole("import asyncio\nraise asyncio.CancelledError\n", "CancelledError"),
    "an exception group": _whole("raise BaseExceptionGroup('many', [SystemExit(1), ValueError(2)])\n", "many"),
    "no end of calls": _whole(_RETURNS.format("return get_config()"), "RecursionError"),
    "a coroutine": _whole("from jaxnet import Config\nasync def get_config():\n    return 1\n", "coroutine"),
    "a generator": _whole(_RETURNS.format("yield 1"), "generator"),
    "a class": _whole("class get_config: pass\n", "wanted a Config"),
    "the class Config": _whole(_RETURNS.format("return Config"), "wanted a Config"),
    "a number for get_config": _whole("get_config = 3\n", "TypeError"),
    "an argument": _whole("def get_config(size):\n    return size\n", "TypeError"),
    "an argument by name": _whole("def get_config(*, size):\n    return size\n", "TypeError"),
    "nothing": _whole(_RETURNS.format("pass"), "returned None"),
    "a string": _whole(_RETURNS.format("return 'x' * 1000"), "returned 'xxx"),
    "a value whose repr fails": _whole(
        "class Odd:\n    def __repr__(self): 1 / 0\ndef get_config():\n    return Odd()\n", "Odd"
    ),
    "a value whose class lies": _whole(
        "class Odd:\n    @property\n    def __class__(self): 1 / 0\ndef get_config():\n    return Odd()\n", "config "
    ),
    "get_config that is found by a failing function": _whole("def __getattr__(name): 1 / 0\n", "ZeroDivisionError"),
    "a config that is no more a dataclass": _whole(
        "from jaxnet import Config\nfrom jaxnet.data import Digits\nfrom jaxnet.models import CNN\n"
        "def get_config():\n    made = Config(CNN(10), Digits(), 1, 64)\n    object.__setattr__(made, 'epochs', None)\n"
        "    object.__delattr__(made, 'seed') \n    return made\n",
        "epochs",
    ),
    "a config without a field": _whole(
        "from jaxnet import Config\ndef get_config():\n    return object.__new__(Config)\n", "config "
    ),
}
