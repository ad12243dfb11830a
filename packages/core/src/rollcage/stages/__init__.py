"""Add features to sessions, one file each; a session pays only for the stages in use."""
