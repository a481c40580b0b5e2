"""Other planners on the same lengths, each through its own public functions, and what is measured of them."""

from peers.outcome import Outcome, measured
from peers.packing import PACKING_PEERS
from peers.padded import PADDED_PEERS
from peers.registry import Peer
from peers.source_way import plan_random, plan_six_buckets, plan_sorted

PEERS: tuple[Peer, ...] = PADDED_PEERS + PACKING_PEERS

__all__ = ["PEERS", "Outcome", "Peer", "measured", "plan_random", "plan_six_buckets", "plan_sorted"]
