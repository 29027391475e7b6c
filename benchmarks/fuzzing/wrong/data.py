"""Data sets that are wrong."""

from benchmarks.fuzzing.wrong.part import Wrong

_ARRAYS = "image, label = np.zeros((32, 8, 8, 1), np.uint8), (np.arange(32) % 2).astype(np.int32)\n"
_HEAD = "num_examples, image_shape, num_classes = 32, (8, 8, 1), 2"


def _data(body: str, *words: str, code: str = "") -> Wrong:
    """A data set whose `load` is this, with arrays and perhaps more at hand."""
    lines = "\n        ".join(body.strip().splitlines())
    own = f"class Mine:\n    def load(self, split):\n        {lines}\n"
    return Wrong(_ARRAYS + code + own, {"data": "Mine()"}, words)


def _source(body: str, *words: str, about: str = _HEAD) -> Wrong:
    """A data set whose source has these attributes, and `rows` that do this, with what is `good` at hand."""
    lines = "\n        ".join(body.strip().splitlines())
    code = (
        f"class Rows:\n    {about}\n    count = 0\n    def rows(self, indices):\n"
        "        indices, n = np.asarray(indices), len(indices)\n"
        "        good = {'image': image[indices], 'label': label[indices]}\n"
        f"        {lines}\n"
    )
    return _data("return Rows()", *words, code=code)


def _counts(number: str, *words: str) -> Wrong:
    return _source("return good", *words, about=f"num_examples, image_shape, num_classes = {number}, (8, 8, 1), 2")


DATA = {
    "a class": Wrong("", {"data": "Synthetic"}, ("data is the class Synthetic",)),
    "none": Wrong("", {"data": "None"}, ("data is of type NoneType",)),
    "a load that fails": _data("return 1 / 0", "ZeroDivisionError"),
    "a load that exits": _data("raise SystemExit(0)", "SystemExit"),
    "a load that raises something that cannot be shown": _data(
        "class Own(Exception):\n    def __str__(self): raise ValueError\nraise Own", "Own"
    ),
    "a load that gives nothing": _data("pass", "NoneType"),
    "a load that gives arrays": _data("return {'image': image, 'label': label}", "dict"),
    "a load without a split": Wrong("class Mine:\n    def load(self): pass", {"data": "Mine()"}, ("load",)),
    "a test split that fails": _data(
        "if split == 'test': 1 / 0\nreturn ArraySource(image, label, 2)", "test", "ZeroDivisionError"
    ),
    "a load that calls itself": _data("return self.load(split)", "RecursionError"),
    "data that hold themselves": Wrong(
        "class Mine(dict):\n    def load(self, split): return Items(train=[self], test=[self]).load(split)\n"
        "mine = Mine()\nmine['features'] = mine",
        {"data": "mine", "task": "Classification()"},
        ("data",),
    ),
    "a list that holds itself": Wrong(
        "loop = []\nloop.append(loop)",
        {"data": "Items(train=[{'features': loop}], test=[{'features': loop}])", "task": "Classification()"},
        ("data",),
    ),
    "a data class that holds itself": Wrong(
        "@dataclass\nclass Mine:\n    inner: object = None\n    def load(self, split): return Synthetic().load(split)\n"
        "mine = Mine()\nmine.inner = mine",
        {"data": "mine"},
        ("itself",),
    ),
    "a failing repr": Wrong(
        "class Odd:\n    def __repr__(self): 1 / 0\n"
        "@dataclass(frozen=True)\nclass Mine(Synthetic):\n    odd: object = Odd()",
        {"data": "Mine((8, 8, 1), 2, 32, 16)"},
        ("ZeroDivisionError",),
    ),
    "a failing repr of its own": Wrong(
        "class Mine:\n    def __repr__(self): 1 / 0\n"
        "    def load(self, split): return Synthetic((8, 8, 1), 2).load(split)",
        {"data": "Mine()"},
        ("data",),
    ),
    "a failing equality": Wrong(
        "@dataclass(frozen=True, eq=False)\nclass Mine(Synthetic):\n"
        "    def __eq__(self, other): 1 / 0\n    def __hash__(self): 1 / 0\n    def __bool__(self): 1 / 0",
        {"data": "Mine((8, 8, 1), 2, 32, 16)"},
    ),
    "fields that fail": Wrong(
        "class Mine:\n    def __getattr__(self, name): 1 / 0", {"data": "Mine()"}, ("data", "ZeroDivisionError")
    ),
    "no examples": _counts("0", "num_examples", "0"),
    "fewer than no examples": _counts("-3", "num_examples", "-3"),
    "half an example": _counts("0.5", "num_examples", "0.5"),
    "text for a number of examples": _counts("'many'", "num_examples", "many"),
    "no number of examples": _counts("None", "num_examples", "None"),
    "nan examples": _counts("float('nan')", "num_examples", "nan"),
    "a number of examples that is an array": _counts("np.ones(3)", "num_examples"),
    "more examples than there are": _counts("1000", "rows", "IndexError"),
    "more examples than can be counted": _counts("10**12", "num_examples"),
    "rows that fail": _source("1 / 0", "rows", "ZeroDivisionError"),
    "rows that exit": _source("raise SystemExit(0)", "rows", "SystemExit"),
    "rows that exit later": _source(
        "Rows.count += 1\nif Rows.count > 2: raise SystemExit(0)\nreturn good", "rows", "SystemExit"
    ),
    "rows that are none": _source("pass", "rows"),
    "rows that are a list": _source("return [good]", "rows", "list"),
    "rows without a label": _source("return {'image': image[indices]}", "rows", "label"),
    "rows with more": _source("return good | {'other': label[indices]}", "rows", "other"),
    "rows of other names each time": _source(
        "Rows.count += 1\nreturn good | {f'x{Rows.count}': label[indices]}", "rows", "x"
    ),
    "rows of another length": _source("return {k: v[:1] for k, v in good.items()}", "rows"),
    "rows of another shape": _source("return good | {'image': np.zeros((n, 9, 9, 1), np.uint8)}", "rows", "image"),
    "rows of another shape later": _source(
        "Rows.count += 1\nreturn good | ({'image': np.zeros((n, 9, 9, 1), np.uint8)} if Rows.count > 2 else {})",
        "rows",
        "image",
    ),
    "rows of another dtype": _source("return good | {'image': good['image'] * 1.0}", "rows", "image"),
    "rows of 64 bits": _source("return good | {'label': good['label'].astype(np.int64)}"),
    "rows of objects": _source("return good | {'image': np.array([object()] * n)}", "rows", "image"),
    "rows of text": _source("return good | {'label': np.array(['cat'] * n)}", "rows", "label"),
    "rows that are lists": _source("return {k: v.tolist() for k, v in good.items()}", "rows", "image"),
    "labels that are too large": _source("return good | {'label': good['label'] + 7}"),
    "labels below 0": _source("return good | {'label': good['label'] - 7}"),
    "a shape of two dims": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (8, 8), 2"
    ),
    "a height of 0": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (0, 8, 1), 2"
    ),
    "no channels": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, (8, 8, 0), 2"
    ),
    "a shape of text": _source(
        "return good", "image_shape", about="num_examples, image_shape, num_classes = 32, 'big', 2"
    ),
    "a shape larger than memory": _source(
        "return good", "1000000x1000000x1", about="num_examples, image_shape, num_classes = 32, (10**6, 10**6, 1), 2"
    ),
    "classes below 0": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), -3"
    ),
    "no classes": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 0"
    ),
    "half a class": _source(
        "return good", "num_classes", about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 1.5"
    ),
    "no threads": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 0, 32, (8, 8, 1), 2"
    ),
    "threads without end": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 10**9, 32, (8, 8, 1), 2"
    ),
    "half a thread": _source(
        "return good", "threads", about="threads, num_examples, image_shape, num_classes = 1.5, 32, (8, 8, 1), 2"
    ),
    "random rows that fail": _source(
        "return good",
        "random_rows",
        "ZeroDivisionError",
        about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 2\n"
        "    def random_rows(self, indices, draws): 1 / 0",
    ),
    "random rows of another length": _source(
        "return good",
        "random_rows",
        about="num_examples, image_shape, num_classes = 32, (8, 8, 1), 2\n"
        "    def random_rows(self, indices, draws): return self.rows(indices[:1])",
    ),
    "items that are none": Wrong("", {"data": "Items(train=None, test=None)"}, ("Items", "train")),
    "items that fail": Wrong(
        "class Bad:\n    def __len__(self): return 32\n    def __getitem__(self, index): 1 / 0",
        {"data": "Items(train=Bad(), test=Bad())", "task": "Classification()"},
        ("ZeroDivisionError",),
    ),
    "items without a length": Wrong("", {"data": "Items(train=iter([]), test=iter([]))"}, ("Items", "train")),
    "no items": Wrong("", {"data": "Items(train=[], test=[])"}, ("num_examples",)),
    "half a thread of items": Wrong(
        "", {"data": "Items(threads='x', train=[{'features': 1.0}], test=[{'features': 1.0}])"}, ("threads",)
    ),
    "arrays that are none": Wrong("", {"data": "Arrays(train=None)"}, ("Arrays(train=...)",)),
    "arrays without a test split": Wrong(
        "",
        {"data": "Arrays(train={'image': np.zeros((16, 8, 8, 1), np.uint8), 'label': np.zeros(16, int)})"},
        ("test",),
    ),
    "arrays that are ragged": Wrong("", {"data": "Arrays(train={'x': [[1], [1, 2]]})"}, ("x",)),
    "images that are empty": Wrong(
        "z = {'image': np.zeros((16, 0, 8, 1), np.uint8), 'label': np.zeros(16, int)}",
        {"data": "Arrays(train=z, test=z)"},
        ("image",),
    ),
    "features that are empty": Wrong(
        "z = {'features': np.zeros((16, 0), np.float32), 'label': np.zeros(16, int)}",
        {"data": "Arrays(train=z, test=z)", "task": "Classification()", "model": "nn.Dense(2)"},
    ),
    "features that are not finite": Wrong(
        "z = {'features': np.full((32, 3), np.nan, np.float32), 'label': np.zeros(32, int)}",
        {"data": "Arrays(train=z, test=z)", "task": "Classification()", "model": "nn.Dense(2)"},
    ),
}
