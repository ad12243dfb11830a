"""The flow of a call, and the seams around it: stages, guards, blocks and branches."""
