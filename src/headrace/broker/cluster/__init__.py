"""This broker's part in the cluster: the quorum's member, the controller's service, and the membership."""
