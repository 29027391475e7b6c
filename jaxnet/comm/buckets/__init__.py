"""Many values as few messages: which leaves travel together, in which order, and how they are packed."""
