"""The error of exports."""

from mmattn.errors import UserError


class ExportError(UserError):
    """A model, or a setting of it, cannot be exported.

    The message names the part that cannot. A wrong export is never written instead.
    """
