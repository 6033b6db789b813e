"""Import libraries of the extra `predict` when they are used."""

from types import ModuleType

from mmattn.errors import MissingPackageError


def import_supervision() -> ModuleType:
    """Return the module supervision.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import supervision
    except ImportError as error:
        raise MissingPackageError(
            'this requires supervision: pip install "mmattn[predict]"'
        ) from error
    return supervision
