"""The version of Nonet that is installed."""

from importlib.metadata import version

__version__ = version("nonet")
