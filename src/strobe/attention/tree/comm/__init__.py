"""Messages between ranks; the only folder that uses `torch.distributed`."""

from strobe.attention.tree.comm.group import Call, Comm, Exchange, comm_of, comms_of_mesh

__all__ = ["Call", "Comm", "Exchange", "comm_of", "comms_of_mesh"]
