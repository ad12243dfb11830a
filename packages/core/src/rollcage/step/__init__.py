"""One step, once: the call, its requests, the flow, the driver, streams, the ledger."""
