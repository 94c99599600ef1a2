"""The attention side of Tandem's wire protocol, version 1.0, over tcp://, in numpy alone (docs/protocol.md).

    import tandem_client
    with tandem_client.Client("tcp://10.0.0.2:7000") as experts:
        print(experts.settings)
        sums = experts.compute(layer=3, rows=rows)  # [rows, hidden] -> [rows, hidden]
"""

from .client import Client, Ticket, describe
from .errors import (Cancelled, DataLoss, DeadlineExceeded, Internal, InvalidArgument, OutOfRange, ResourceExhausted, TandemError,
                     Unavailable, Unsupported)
from .formats import from_bf16, to_bf16
from .settings import Settings

__all__ = ["Cancelled", "Client", "DataLoss", "DeadlineExceeded", "Internal", "InvalidArgument", "OutOfRange", "ResourceExhausted", "Settings",
           "TandemError", "Ticket", "Unavailable", "Unsupported", "describe", "from_bf16", "to_bf16"]
