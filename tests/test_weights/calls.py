"""Objects whose pickles call what a test chooses."""


class Calls:
    """Unpickling it calls a function, then gives what it returned a state."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments, state)

    def __reduce__(self):
        return self.reduced[: 2 if self.reduced[2] is None else 3]
