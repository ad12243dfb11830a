"""Which recorded step answers a call: paths, branches, generations of a lineage."""
