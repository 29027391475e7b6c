"""The one exception for what a user can mend."""


class InputError(Exception):
    """Something the user gave is wrong: a key, a value, a file, an environment variable.

    The message is complete by itself: it names what is wrong, says what was got and what was
    wanted, and how to fix it. `train.py` and the `jaxnet` command print it as one `error: ...`
    line without a traceback and exit with status 2.
    """
