"""The commands, a module for each or for each group, and what several of them share."""
