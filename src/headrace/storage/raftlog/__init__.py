"""The commit log of the quorum on disk: frames, snapshots, and their recovery."""
