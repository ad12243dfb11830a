"""Which recorded step stands for a call: paths, branches, generations of a lineage."""
