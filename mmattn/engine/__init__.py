"""What mmengine's training lacks for runs that can be trusted. Needs mmengine."""

from .runner import Runner

__all__ = ['Runner']
