"""Files that are written whole, their digests, and configs in them."""

from .config_files import read_config_file
from .digest import file_digest

__all__ = ['file_digest', 'read_config_file']
