"""The coordinators that this host serves: whose turn it is, what times out, what was left behind, who takes part."""
