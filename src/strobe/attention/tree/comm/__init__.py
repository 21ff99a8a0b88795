"""Messages between ranks; the only folder that uses `torch.distributed`."""

from strobe.attention.tree.comm.group import CollectiveCall, Comm, Exchange, comm_of, comms_of_mesh

__all__ = ["CollectiveCall", "Comm", "Exchange", "comm_of", "comms_of_mesh"]
