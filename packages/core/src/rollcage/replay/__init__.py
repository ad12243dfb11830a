"""Find the answer to a call: walk along the recording, and match. Pure, without I/O."""
