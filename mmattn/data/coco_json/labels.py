"""Names of annotations in errors."""

from collections.abc import Callable

from mmattn.errors import UserError


class Labels:
    """Name annotations, and collect what is wrong with them."""

    def __init__(self, annotations: list[dict], where: Callable[[int, dict], str]):
        self.annotations, self.where = annotations, where
        self.first, self.count = None, 0

    def __getitem__(self, position: int) -> str:
        return self.where(position, self.annotations[position])

    def fault(self, position: int, text: str, count: int = 1):
        if self.first is None:
            self.first = f'{self[position]}: {text}'
        self.count += count

    def raise_faults(self):
        if self.first is not None:
            raise UserError(f'{self.first}{more(self.count - 1)}')


def more(count: int) -> str:
    return f' (and {count} more annotations)' if count else ''
