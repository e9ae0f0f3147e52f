"""Linking: a pure function from ordered captures to turns with their next state. No I/O, no clock of its own."""

from hintloop_rollout_proxy.linking.board import LinkerOptions
from hintloop_rollout_proxy.linking.decisions import Decision, Drop, Link, Placed
from hintloop_rollout_proxy.linking.linker import Linker

__all__ = ["Decision", "Drop", "Link", "Linker", "LinkerOptions", "Placed"]
