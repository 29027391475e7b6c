"""What stands in the way of a run, found before it starts: `jaxnet doctor`.

The checks come in an order in which each can still speak when the next one would hang: this machine, names, files;
then whether all ranks come; what they run; their clocks; the shared directory; the network; devices. Every step has
a time limit, and what does not answer within it is named.
"""
